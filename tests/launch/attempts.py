"""What the tests of this room ask of attempts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hysweep.launch import JobState, Launcher, processes
from hysweep.track import AttemptDirectory, End

HERE = Path(__file__).parent
BARE = ("-m", "bare_node")


def wait_for(done: Callable[[], Any], seconds: float = 40) -> Any:
    """The first true answer of `done`."""
    until = time.monotonic() + seconds
    while not (answer := done()):
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.02)
    return answer


def everything(attempt: AttemptDirectory) -> list[processes.Process]:
    """All living processes of an attempt: those marked, those the trainer noted, the node and its guard."""
    directory = os.path.realpath(attempt.path)
    found = processes.marked([directory])[directory]
    noted = attempt.path / "offspring"
    if noted.exists():
        found += [p for p in map(processes.process, map(int, noted.read_text().split())) if p]
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                argv = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            p = processes.process(int(name))
            if os.fsencode(directory) in argv and p:
                found.append(p)
    return list(dict.fromkeys(found))


def runs(attempt: AttemptDirectory) -> int:
    """How often the trainer was started."""
    ran = attempt.path / "ran"
    return len(ran.read_text().splitlines()) if ran.exists() else 0


def over(launcher: Launcher, job_id: str, seconds: float = 40) -> JobState:
    return wait_for(lambda: (s := launcher.states([job_id])[job_id]).is_over and s, seconds)


def end_of(attempt: AttemptDirectory) -> End:
    end = attempt.end()
    assert end
    return end
