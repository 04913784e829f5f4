"""A trial's curves become its values, one for each objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from hysweep.schema import Objective

GPU_HOURS = "gpu_hours"  # a metric of ours: what a trial took, of all its attempts


def value_of(curve: Sequence[tuple[int, float]], goal: Objective) -> float | None:
    """The objective of a finished curve by `goal.reduce`; None for an empty one.

    NaN and infinities are no values: a curve that ends in one has the value NaN, whatever the reduction.
    """
    values = [v for _, v in curve]
    if not values:
        return None
    if not math.isfinite(values[-1]):
        return math.nan
    finite = [(step, v) for step, v in curve if math.isfinite(v)]
    if goal.reduce == "mean_last":
        tail = values[-goal.last :]
        return math.fsum(tail) / len(tail)
    if goal.reduce == "best":
        best = max if goal.direction == "maximize" else min
        return best(v for _, v in finite)
    if goal.reduce == "auc":
        return _mean_height(finite)
    return values[-1]


def _mean_height(curve: Sequence[tuple[int, float]]) -> float:
    """The area under a curve by the trapezoidal rule, divided by the steps that it spans: its mean height."""
    span = curve[-1][0] - curve[0][0]
    if not span:
        return curve[-1][1]
    return math.fsum((t - s) * (v + w) / 2 for (s, v), (t, w) in pairwise(curve)) / span
