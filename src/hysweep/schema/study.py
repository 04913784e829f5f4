"""What a sweep file says beside the trial: how the space is searched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hysweep.schema.knob import knob
from hysweep.schema.search import Confirm, Objective, Promote, Pruner, Sampler


@dataclass(kw_only=True, slots=True)
class ControllerJob:
    """Where ``--detach`` puts the controller."""

    launcher: str | None = knob(
        None,
        "slurm: a small job that queues itself again before its time limit; local: a process of this machine; "
        "null: as the trials",
        choices=(None, "local", "slurm"),
        learned=False,
    )
    partition: str | None = knob(None, "of that job; null: the trials'", learned=False)
    account: str | None = knob(None, "of that job; null: the trials'", learned=False)
    qos: str | None = knob(None, "of that job; null: the trials'", learned=False)
    time_min: int = knob(1440, "time limit of that job", unit="min", learned=False, low=5)
    memory_gib: float = knob(2.0, "of that job", unit="GiB", learned=False, low=0.5)


@dataclass(kw_only=True, slots=True)
class Notify:
    """Who is told of what happens."""

    command: str | None = knob(
        None, "a shell command; it has HYSWEEP_EVENT, HYSWEEP_STUDY and HYSWEEP_TEXT, and JSON on stdin", learned=False
    )
    events: list[str] = knob(
        factory=lambda: ["end", "failure", "budget"],
        doc="when it runs: the study's end, a trial that failed, half, four fifths and all of the budget",
        learned=False,
    )
    timeout_s: float = knob(30.0, "it is ended after so long", unit="s", learned=False, low=1)


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
        None, "trials in total, also over restarts; null: every point of a finite space", learned=False, low=1,
        high=100_000,
    )  # fmt: skip
    max_parallel: int = knob(1, "trials in flight", learned=False, low=1, high=10_000)
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
    promote: Promote = field(default_factory=Promote)
    confirm: Confirm = field(default_factory=Confirm)
    default_first: bool | None = knob(
        None,
        "the configuration's own values run first, where the space has them; null: unless `enqueue` names what does",
        learned=False,
    )
    enqueue: list[dict[str, Any]] = knob(
        factory=list, doc="points that run first, before the sampler is asked", learned=False
    )
    reuse: bool = knob(
        False, "a trial that another study under `root` has completed does not run: its result is taken", learned=False
    )
    budget_gpu_hours: float | None = knob(
        None,
        "no job that could take the study beyond this, each at its time limit; null: no limit",
        unit="GPU-hours",
        learned=False,
        low=0,
    )
    max_hours: float | None = knob(
        None, "no new trial once so much time has passed since the study began", unit="h", learned=False, low=0
    )
    patience_trials: int | None = knob(
        None, "no new trial once so many in a row have brought nothing better", learned=False, low=1
    )
    target: float | None = knob(None, "no new trial once a value is as good as this", learned=False)
    hung_after_min: int = knob(60, "a job without progress for so long is cancelled", unit="min", learned=False, low=1)
    poll_s: float = knob(1.0, "seconds between looks at the jobs", unit="s", learned=False, low=0.05)
    storage: str | None = knob(
        None,
        "where Optuna's index of the study is: a URL of SQLAlchemy's, as in postgresql+psycopg://me@host/optuna, "
        "without a password; null: its journal, in the study's directory",
        learned=False,
    )
    force_sqlite: bool = knob(False, "use SQLite on a network file system too, where it has been torn", learned=False)
    controller: ControllerJob = field(default_factory=ControllerJob)
    notify: Notify = field(default_factory=Notify)

    @property
    def goals(self) -> list[Objective]:
        """What is optimised: one objective, or several."""
        one = Objective(metric=self.metric, direction=self.direction, reduce=self.reduce, last=self.last)
        return self.objectives or [one]

    @property
    def rules(self) -> list[Pruner]:
        """Every pruner that is not none."""
        return [p for p in (self.pruner, *self.pruners) if p.name != "none"]
