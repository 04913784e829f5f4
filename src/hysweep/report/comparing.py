"""What several objectives and several seeds make of a ranking: fronts, means and their intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
        2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of `count` runs of one point; `half_width` of its 95 % interval by Student's t, None of a single run."""

    mean: float
    count: int
    half_width: float | None


def mean_of(values: Sequence[float]) -> Mean | None:
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Mean(mean, 1, None)
    t = _T95[len(values) - 2] if len(values) <= len(_T95) + 1 else 1.96 + 2.5 / (len(values) - 1)
    return Mean(mean, len(values), t * statistics.stdev(values) / math.sqrt(len(values)))


def pareto_front(points: Sequence[Sequence[float]], signs: Sequence[int]) -> list[int]:
    """The places of the points that no other is better than: as good in all objectives and better in one.

    signs  1 for an objective that is maximised, -1 for one that is minimised
    """
    turned = [tuple(sign * value for sign, value in zip(signs, point, strict=True)) for point in points]

    def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
        return one != other and all(a >= b for a, b in zip(one, other, strict=True))

    return [i for i, point in enumerate(turned) if not any(dominates(other, point) for other in turned)]
