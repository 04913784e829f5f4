"""What an attempt may have left on a node, and its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from hysweep.launch import command, processes
from hysweep.launch.boot import remove_temporaries
from hysweep.launch.roll import meeting_point
from hysweep.track import AttemptDirectory


def is_of(attempt: AttemptDirectory, node: int) -> bool:
    """Whether the attempt is still this node's: its directory may have been removed, and even made anew."""
    claim = attempt.claimed()
    if claim is not None:
        return claim.pid == node
    try:
        os.stat(attempt.path / "node.json")
    except FileNotFoundError:
        return False
    except OSError:  # a file system that is away for a while
        pass
    return True


def end_all(
    attempt: AttemptDirectory,
    is_ours: bool,
    rank: int = 0,
    local_dir: str | None = None,
    children: Sequence[subprocess.Popen[bytes]] = (),
) -> None:
    """SIGKILL what is left of an attempt, below this process or by its mark, remove Ray's directory and the secret.

    More than what is below only where `is_ours`, that is, where the attempt is still the caller's: they are named
    alike in its successor.
    """
    directory = command.identity(attempt)

    def left() -> list[processes.Process]:
        return processes.descendants() + (processes.marked([directory])[directory] if is_ours else [])

    stuck = processes.kill_all(left, keep=children)
    if stuck:
        say("these would not die: " + ", ".join(str(p.pid) for p in stuck))
    if is_ours:
        remove_temporaries(directory, rank, local_dir)
        with suppress(OSError):
            meeting_point(attempt).unlink(missing_ok=True)


def say(text: str) -> None:
    with suppress(OSError):  # the log lies on a disk that may be full: there is more to do than to talk
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)
