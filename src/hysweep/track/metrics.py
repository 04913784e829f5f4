"""Curves of one metric out of what verl logged; a `*` in its name stands for whatever one metric has there.

verl makes names of the data: `val-core/math_dapo/acc/mean@16` (16 answers are drawn); `val-core/*/acc/mean@*` is it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

Steps = Mapping[int, Mapping[str, float]]


def matching(metric: str, names: Iterable[str]) -> list[str]:
    """The names that a metric can stand for: itself, or those that fit its pattern."""
    if "*" not in metric:
        return [name for name in names if name == metric]
    pattern = re.compile(".*".join(map(re.escape, metric.split("*"))))
    return sorted(name for name in names if pattern.fullmatch(name))


def logged(steps: Steps) -> set[str]:
    return {name for data in steps.values() for name in data}


def began_from(attempts: Sequence[Sequence[tuple[int, Mapping[str, float]]]]) -> int:
    """The step that the last of a trial's attempts, each as its rows, went on from; 0: it began anew. One that has said
    nothing went on from no more than the others came to."""
    *before, last = attempts
    if not last:
        return max((rows[-1][0] for rows in before if rows), default=0)
    step, said = last[0]
    is_validation = all(name.startswith("val") for name in said)  # before it trains: of the step that it goes on from
    return step if is_validation else step - 1


def curve_of(steps: Steps, metric: str) -> list[tuple[int, float]]:
    """(step, value) of one metric; steps at which it was not measured are left out. Empty for a pattern that fits
    several metrics: which one was meant is not known."""
    if "*" in metric:
        found = matching(metric, logged(steps))
        if len(found) != 1:
            return []
        (metric,) = found
    return [(step, data[metric]) for step, data in steps.items() if metric in data]
