"""Measured against computed: verl's own peak of torch's memory, and the factor that a cluster's runs come to.

verl logs `actor/perf/max_memory_allocated_gb`: GiB, the maximum since the process began, so over all phases until then,
on a rank of the last pipeline stage (engine_workers.py asks is_mp_src_rank_with_outputs). What it is compared with is
therefore the largest of our phases' torch parts on that stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from hysweep.estimate.factors import LEAST, MOST
from hysweep.estimate.result import Estimate

METRIC = "actor/perf/max_memory_allocated_gb"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One attempt. phase: which of ours is the largest; factor: measured / computed."""

    name: str
    phase: str
    computed_gib: float
    measured_gib: float

    @property
    def factor(self) -> float:
        return self.measured_gib / self.computed_gib

    @property
    def error(self) -> float:
        """Of the estimate, as a share of what was measured."""
        return self.computed_gib / self.measured_gib - 1

    @property
    def is_usable(self) -> bool:
        return LEAST <= self.factor <= MOST


def compare(name: str, computed: Estimate, peaks: Iterable[tuple[int, float]]) -> Comparison | None:
    """An attempt's (step, peak) against its estimate; None before two steps are done.

    In the first update the optimizer has no moments yet, so its peak is another one. An attempt that does not begin
    at the first step has loaded a checkpoint.
    """
    of_run = sorted(peaks)
    if len(of_run) < 2:
        return None
    was_resumed = of_run[0][0] > 1
    last = computed.stages[-1].name
    among = [u for u in computed.uses if u.stage == last and (u.phase != "resume" or was_resumed)]
    largest = max(among, key=lambda u: u.torch_gib)
    return Comparison(name, largest.phase, largest.torch_gib, of_run[-1][1])


def factor_of(comparisons: Iterable[Comparison]) -> float | None:
    """The median of the usable ones; None where there is none."""
    usable = [c.factor for c in comparisons if c.is_usable]
    return median(usable) if usable else None
