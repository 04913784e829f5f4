"""What time it is, for everything that a study notes down: the machine's clock, or another one in a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CLOCK: ContextVar[Callable[[], float]] = ContextVar("clock", default=time.time)


def now() -> float:
    """Unix seconds."""
    return _CLOCK.get()()


@contextmanager
def telling(clock: Callable[[], float]) -> Iterator[None]:
    """Within it, `now` is what `clock` says."""
    token = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(token)
