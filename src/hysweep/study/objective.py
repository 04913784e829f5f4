"""A trial's curves become its values, one for each objective."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from hysweep.schema import Objective, Problem, Severity, Stage, Study, Trial

GPU_HOURS = "gpu_hours"  # a metric of ours: what a trial took, of all its attempts


def unmeasured(trial: Trial, study: Study) -> list[Problem]:
    """Objectives of a validation that a trial would end without: nothing validates it, or other answers are drawn."""
    faults = []
    for goal in study.goals:
        if not goal.metric.startswith("val-"):
            continue
        if trial.trainer.validate_every < 1:
            why = f"nothing is validated after the training began, and the objective is {goal.metric}"
            cure = "give a number of steps, as 10"
            faults.append(Problem("trainer.validate_every", trial.trainer.validate_every, why, cure, Stage.NEVER))
        drawn = re.fullmatch(r"val-core/.+@(\d+)(/\w+)?", goal.metric)
        if drawn and int(drawn[1]) != trial.rollout.val_n:
            why = f"so many answers to a prompt are drawn, and the objective is {goal.metric}"
            cure = f"give rollout.val_n={drawn[1]}, or write the metric with @{trial.rollout.val_n} or @*"
            faults.append(Problem("rollout.val_n", trial.rollout.val_n, why, cure, Stage.NEVER, Severity.WARNING))
    return faults


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
