"""What a sweep file says beside the trial: how the space is searched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hysweep.schema.knob import knob


@dataclass(kw_only=True, slots=True)
class Pruner:
    """When a running trial is given up. Values are compared at the same training step."""

    name: str = knob("none", "rule", choices=("none", "median", "percentile", "hyperband"), learned=False)
    metric: str | None = knob(None, "the metric that it looks at; null: the study's", learned=False)
    min_steps: int = knob(1, "no trial is pruned before this step", unit="steps", learned=False, low=1)
    startup_trials: int = knob(2, "none is pruned before this many have ended", learned=False, low=0)
    percentile: float = knob(
        50.0,
        "percentile: keep a trial that is among the best so many percent",
        learned=False,
        low=0,
        high=100,
    )
    reduction_factor: int = knob(3, "hyperband: of each rung only one in so many goes on", learned=False, low=2)


@dataclass(kw_only=True, slots=True)
class Study:
    name: str = knob(
        "",
        "also the directory under `root`; empty: the sweep's name, or one made of the content",
        learned=False,
    )
    root: str = knob("outputs", "directory of all studies", learned=False)
    metric: str = knob("critic/score/mean", "what is optimised: any metric of the trainer", learned=False)
    reduce: str = knob("last", "how a curve becomes one value", choices=("last", "best", "mean_last"), learned=False)
    last: int = knob(5, "mean_last: the mean of so many last values", learned=False, low=1)
    direction: str = knob("maximize", "which values are good", choices=("maximize", "minimize"), learned=False)
    n_trials: int | None = knob(
        None, "trials in total, also over restarts; null: every point of a finite space", learned=False, low=1
    )
    max_parallel: int = knob(1, "trials in flight", learned=False, low=1)
    sampler: str = knob(
        "tpe",
        "how the next point is chosen",
        choices=("tpe", "random", "cmaes", "nsgaii", "qmc"),
        learned=False,
    )
    seed: int = knob(0, "of the search: the same seed asks the same points", learned=False, low=0, high=2**31 - 1)
    pruner: Pruner = field(default_factory=Pruner)
    enqueue: list[dict[str, Any]] = knob(
        factory=list, doc="points that run first, before the sampler is asked", learned=False
    )
    budget_gpu_hours: float | None = knob(
        None, "no new trial once so much is used; null: no limit", unit="GPU-hours", learned=False, low=0
    )
    hung_after_min: int = knob(60, "a job without progress for so long is cancelled", unit="min", learned=False, low=1)
    poll_s: float = knob(1.0, "seconds between looks at the jobs", unit="s", learned=False, low=0.05)
