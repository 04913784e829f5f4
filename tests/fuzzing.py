"""How much a parser is tried: some seconds in CI, minutes in `make nightly`. Every text is read or refused."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

NIGHTLY = bool(os.environ.get("HYSWEEP_NIGHTLY"))


def examples(count: int) -> settings:
    """So many tries, and thirty times as many at night."""
    kept = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count * (30 if NIGHTLY else 1), suppress_health_check=kept, deadline=None)


def texts_of(*pieces: str, most: int = 12) -> st.SearchStrategy[str]:
    """What such a parser is likely to stumble over: its own words in any order, with anything between."""
    piece = st.sampled_from(pieces) | st.text(max_size=3) | st.integers().map(str) | st.just("9" * 5000)
    return st.lists(piece, max_size=most).map("".join)


def damaged(whole: str) -> st.SearchStrategy[str]:
    """A text that is cut, or has something else in some place of it."""
    place = st.integers(0, len(whole))
    return st.tuples(place, place, st.text(max_size=6)).map(lambda t: whole[: min(t[:2])] + t[2] + whole[max(t[:2]) :])
