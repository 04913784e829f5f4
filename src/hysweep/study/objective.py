"""A trial's curve becomes one value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hysweep.schema import Study


def value_of(curve: Sequence[tuple[int, float]], study: Study) -> float | None:
    """The objective of a finished curve by `study.reduce`; None for an empty one.

    NaN and infinities are no values: a curve that ends in one has the value NaN, whatever the reduction.
    """
    values = [v for _, v in curve]
    if not values:
        return None
    if not math.isfinite(values[-1]):
        return math.nan
    if study.reduce == "mean_last":
        tail = values[-study.last :]
        return math.fsum(tail) / len(tail)
    if study.reduce == "best":
        finite = [v for v in values if math.isfinite(v)]
        return max(finite) if study.direction == "maximize" else min(finite)
    return values[-1]
