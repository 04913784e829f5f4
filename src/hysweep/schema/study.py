"""What a sweep file says beside the trial: how the space is searched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hysweep.schema.knob import knob
from hysweep.schema.search import Objective, Pruner, Sampler


@dataclass(kw_only=True, slots=True)
class Study:
    name: str = knob(
        "",
        "also the directory under `root`; empty: the sweep's name, or one made of the content",
        learned=False,
    )
    root: str = knob("outputs", "directory of all studies", learned=False)
    metric: str = knob(
        "critic/score/mean",
        "what is optimised: any metric of the trainer, or gpu_hours; a * in it stands for what one metric has there",
        learned=False,
    )
    reduce: str = knob(
        "last",
        "how a curve becomes one value; auc: the area under it, by the number of its steps",
        choices=("last", "best", "mean_last", "auc"),
        learned=False,
    )
    last: int = knob(5, "mean_last: the mean of so many last values", learned=False, low=1)
    direction: str = knob("maximize", "which values are good", choices=("maximize", "minimize"), learned=False)
    n_trials: int | None = knob(
        None, "trials in total, also over restarts; null: every point of a finite space", learned=False, low=1
    )
    max_parallel: int = knob(1, "trials in flight", learned=False, low=1)
    objectives: list[Objective] = knob(
        factory=list,
        doc="several things to optimise at once, in place of metric, direction, reduce and last; each has these four",
        learned=False,
    )
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = knob(0, "of the search: the same seed asks the same points", learned=False, low=0, high=2**31 - 1)
    pruner: Pruner = field(default_factory=Pruner)
    pruners: list[Pruner] = knob(
        factory=list, doc="more of them, each as study.pruner; the first that gives a trial up does", learned=False
    )
    default_first: bool | None = knob(
        None,
        "the configuration's own values run first, where the space has them; null: unless `enqueue` names what does",
        learned=False,
    )
    enqueue: list[dict[str, Any]] = knob(
        factory=list, doc="points that run first, before the sampler is asked", learned=False
    )
    budget_gpu_hours: float | None = knob(
        None, "no new trial once so much is used; null: no limit", unit="GPU-hours", learned=False, low=0
    )
    hung_after_min: int = knob(60, "a job without progress for so long is cancelled", unit="min", learned=False, low=1)
    poll_s: float = knob(1.0, "seconds between looks at the jobs", unit="s", learned=False, low=0.05)

    @property
    def goals(self) -> list[Objective]:
        """What is optimised: one objective, or several."""
        one = Objective(metric=self.metric, direction=self.direction, reduce=self.reduce, last=self.last)
        return self.objectives or [one]

    @property
    def rules(self) -> list[Pruner]:
        """Every pruner that is not none."""
        return [p for p in (self.pruner, *self.pruners) if p.name != "none"]
