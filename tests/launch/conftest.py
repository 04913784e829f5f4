from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hysweep.launch import processes
from hysweep.launch.local import LocalLauncher
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory
from tests.launch.attempts import BARE, HERE, everything


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes beside this file can be run with `-m`."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@pytest.fixture
def local() -> LocalLauncher:
    return LocalLauncher(BARE)


@pytest.fixture
def new_attempt(tmp_path: Path) -> Iterator[Callable[..., AttemptDirectory]]:
    """A maker of attempts of the fake trainer; nothing of them outlives the test."""
    made: list[AttemptDirectory] = []

    def make(*arguments: str, **changes: Any) -> AttemptDirectory:
        number = len(made) + 1
        attempt = AttemptDirectory(tmp_path / "trials" / "0001-abc" / "attempts" / str(number))
        attempt.prepare(replace(Job("fake_trainer", arguments), **changes).as_dict())
        made.append(attempt)
        return attempt

    yield make
    for attempt in made:
        claim = attempt.claimed()
        if claim and claim.pid != os.getpid():
            processes.send(processes.Process(claim.pid, claim.ticks), signal.SIGKILL)
        processes.kill_all(lambda a=attempt: everything(a))  # type: ignore[misc]
