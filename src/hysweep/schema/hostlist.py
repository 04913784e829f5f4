"""SLURM's lists of nodes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from hysweep.schema.problem import BadInput, Problem

MOST = 100_000  # names in one list


def hosts(text: str) -> list[str]:
    """The names in SLURM's list, as ``scontrol show hostnames`` gives them.

    Names are separated by commas; ``[1-3,07]`` stands for each of these, zeros in front kept; several in one name
    give all combinations. Raises BadInput for a list that is empty or cannot be read.
    """
    if not text.strip():
        raise BadInput(_unreadable(text, "empty"))
    found: list[str] = []
    left = MOST
    for word in _words(text.strip()):
        parts = re.split(r"\[([^\[\]]*)\]", word)  # text, range, text, range, …
        if any(c in part for part in parts[::2] for c in "[]") or not word:
            raise BadInput(_unreadable(text, f"{word!r} is no name"))
        choices = [[p] if i % 2 == 0 else list(_numbers(p, text)) for i, p in enumerate(parts)]
        left -= math.prod(map(len, choices)) * (1 + len(word) // 64)  # a name may be long, too
        if left < 0:
            raise BadInput(_unreadable(text, f"it names more than {MOST:,} nodes"))
        found += ["".join(combination) for combination in itertools.product(*choices)]
    return found


def _words(text: str) -> Iterator[str]:
    """The parts between commas that are not in brackets."""
    depth, start = 0, 0
    for at, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def _numbers(text: str, whole: str) -> Iterator[str]:
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not (low.isascii() and low.isdigit()) or (dash and not (high.isascii() and high.isdigit())):
            raise BadInput(_unreadable(whole, f"[{text}] is no range"))
        if not dash:
            yield low
            continue
        if len(low) > 18 or len(high) > 18 or not 0 <= int(high) - int(low) < MOST:
            raise BadInput(_unreadable(whole, f"[{text}] is no range"))
        for n in range(int(low), int(high) + 1):
            yield f"{n:0{len(low)}}"


def _unreadable(text: str, why: str) -> Problem:
    return Problem("nodelist", text, f"no list of nodes: {why}", "as in node[001-003],gpu7")
