"""What a verb that waits says of it on stderr, once: for whom, and until when."""

from __future__ import annotations

import time
from types import TracebackType

from hysweep.cli.say import say
from hysweep.launch import queue

PATIENT_S = 8.0  # so long nobody asks what is going on


class Patience:
    """A wait of at most so many seconds. While it is entered, a scheduler that does not answer is told of at once."""

    def __init__(self, within_s: float) -> None:
        self._began = time.monotonic()
        self._within = within_s
        self._until = clock(within_s)
        self._has_told = False
        self.is_answered = True  # by the scheduler
        self._hears = queue.telling(self._hear)

    def __enter__(self) -> Patience:
        self._hears.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self._hears.__exit__(kind, e, at)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began >= self._within

    def note(self, waits_for: str) -> None:
        """Said once it has taken a while."""
        if not self._has_told and time.monotonic() - self._began > PATIENT_S:
            self._has_told = True
            say(f"waiting for {waits_for}, until {self._until} at most; Ctrl-C leaves", err=True)

    def _hear(self, what: str, within: float) -> None:
        self.is_answered, self._has_told = False, True
        say(silence(what, f"asking again until {self._until}; Ctrl-C leaves"), err=True)


def silence(what: str, then: str) -> str:
    return f"the scheduler does not answer ({what}); {then}"


def hear_out(what: str, within: float) -> None:
    """For a verb that asks once."""
    if within > 0:
        say(silence(what, f"waiting for it until {clock(within)}; Ctrl-C leaves"), err=True)


def clock(ahead_s: float) -> str:
    """The time of day so many seconds from now."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + ahead_s))
