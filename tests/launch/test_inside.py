"""The other nodes of an allocation that somebody else asked for: they wait for the first, but not for ever."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from hysweep.launch import inside
from hysweep.launch.allocation import Allocation
from hysweep.track import StudyDirectory, append_line

HERE = Allocation(1, ("n1", "n2"), job="7")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyDirectory:
    monkeypatch.setattr(inside, "_LOOK", 0.02)
    monkeypatch.setattr(inside, "_GONE_S", 0.5)
    return StudyDirectory(tmp_path / "s")


def joined(study: StudyDirectory) -> threading.Thread:
    thread = threading.Thread(target=inside.join, args=(HERE, study.path), daemon=True)
    thread.start()
    return thread


def test_a_first_node_that_could_not_begin_is_not_waited_for(study: StudyDirectory) -> None:
    """It has made no study: its command line was refused there."""
    thread = joined(study)
    thread.join(20)
    assert not thread.is_alive()


def test_nor_one_that_is_gone_but_one_that_still_signs_is(study: StudyDirectory) -> None:
    study.path.mkdir()
    study.driver_file.touch()
    thread = joined(study)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        os.utime(study.driver_file)
        time.sleep(0.05)
    assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive()


def test_the_first_node_lets_the_others_go(study: StudyDirectory) -> None:
    study.path.mkdir()
    append_line(study.path / "allocation-7-0.jsonl", {"over": True})
    thread = joined(study)
    thread.join(20)
    assert not thread.is_alive()
