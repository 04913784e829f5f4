"""One controller a study, on one machine and on several that share a file system."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from filelock import FileLock

from hysweep.launch.processes import own_claim
from hysweep.schema import BadInput
from hysweep.study import lease
from hysweep.study.lease import LEASE_S, Lost, StudyLock, holder
from hysweep.track import StudyDirectory, write_json


@pytest.fixture
def study(tmp_path: Path) -> StudyDirectory:
    directory = StudyDirectory(tmp_path / "s")
    directory.create("study: {}\n", {})
    return directory


def sign(study: StudyDirectory, age: float, **who: object) -> None:
    """As a controller on another machine did so many seconds ago."""
    signed = own_claim().as_dict() | {"token": "theirs", "host": "elsewhere", "boot": "another"} | who
    write_json(study.driver_file, signed)
    then = time.time() - age
    os.utime(study.driver_file, (then, then))


def test_the_second_is_told_who_has_it(study: StudyDirectory) -> None:
    first = StudyLock(study)
    first.acquire()
    with pytest.raises(BadInput, match=f"process {os.getpid()} on .*one controller"):
        StudyLock(study).acquire()
    first.release()
    assert holder(study) is None
    StudyLock(study).acquire()


def test_one_that_died_here_is_followed_at_once(study: StudyDirectory) -> None:
    """Its lock went with it; its name is still there, and its pid may be somebody else's by now."""
    sign(study, age=1, boot=own_claim().boot, host=own_claim().host)
    (lock := StudyLock(study)).acquire()
    assert holder(study).who.pid == os.getpid()
    lock.release()


def test_one_elsewhere_is_waited_for_until_its_lease_is_over(study: StudyDirectory) -> None:
    sign(study, age=LEASE_S - 60)
    with pytest.raises(BadInput, match="on elsewhere"):
        StudyLock(study).acquire()
    sign(study, age=LEASE_S + 1)
    (lock := StudyLock(study)).acquire()
    assert holder(study).is_here
    lock.release()
    assert [p.name for p in study.path.iterdir() if "heir" in p.name] == []


def test_a_lock_that_its_machine_took_to_the_grave_is_replaced(study: StudyDirectory) -> None:
    dead = FileLock(study.lock_file, blocking=False)
    dead.acquire()
    sign(study, age=LEASE_S + 1)
    (lock := StudyLock(study)).acquire()
    lock.renew(is_urgent=True)
    with pytest.raises(BadInput, match="one controller"):
        StudyLock(study).acquire()
    lock.release()


def test_one_of_many_heirs_takes_it(study: StudyDirectory) -> None:
    sign(study, age=LEASE_S + 1)
    heir = study.path / ".heir-of-theirs"
    heir.touch()  # another is on its way
    with pytest.raises(BadInput):
        StudyLock(study).acquire()
    long_ago = time.time() - LEASE_S - 1
    os.utime(heir, (long_ago, long_ago))  # and died there
    (lock := StudyLock(study)).acquire(wait_s=5)
    lock.release()


def test_who_was_away_too_long_writes_no_more(study: StudyDirectory) -> None:
    (lock := StudyLock(study)).acquire()
    sign(study, age=0)
    with pytest.raises(Lost, match="on elsewhere"):
        lock.renew(is_urgent=True)
    lock.release()
    assert study.driver_file.exists(), "it is the other one's"


def test_it_signs_again_in_time(study: StudyDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    (lock := StudyLock(study)).acquire()
    long_ago = time.time() - 100
    os.utime(study.driver_file, (long_ago, long_ago))
    lock.renew()
    assert holder(study).age > 90, "not at each step"
    monkeypatch.setattr(lease, "RENEW_S", 0.0)
    lock.renew()
    assert holder(study).age < 5
    lock.release()


def test_without_locks_the_lease_decides(study: StudyDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StudyLock, "_try_lock", lambda self: None)
    (first := StudyLock(study)).acquire()
    with pytest.raises(BadInput, match="one controller"):
        StudyLock(study).acquire()
    first.release()
    sign(study, age=1, boot=own_claim().boot, ticks=1)  # a process of this machine that is gone
    (second := StudyLock(study)).acquire()
    second.release()


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"host": 1}', "torn {"])
def test_a_damaged_note_is_nobody(study: StudyDirectory, text: str) -> None:
    study.driver_file.write_text(text)
    assert holder(study) is None
    (lock := StudyLock(study)).acquire()
    assert json.loads(study.driver_file.read_text())["pid"] == os.getpid()
    lock.release()


def test_the_second_is_told_how_to_end_the_first(study: StudyDirectory) -> None:
    (first := StudyLock(study)).acquire()
    with pytest.raises(BadInput, match=f"its jobs go on: kill {os.getpid()}$"):
        StudyLock(study).acquire()
    first.release()
    sign(study, age=5, pid=12)
    with pytest.raises(BadInput, match=r"its jobs go on: kill 12 on elsewhere; or wait: it signed 5 s ago, and 180 s"):
        StudyLock(study).acquire()
    write_json(study.controller_file, {"job": "7"})
    with pytest.raises(BadInput, match=r"scancel 7, if that is its job, or kill 12 on elsewhere"):
        StudyLock(study).acquire()
