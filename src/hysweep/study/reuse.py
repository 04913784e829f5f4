"""A result that another study beside this one has already: the same training need not run twice."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hysweep.compose.composer import load_trial
from hysweep.schema import Objective, Trial
from hysweep.study.objective import GPU_HOURS, value_of
from hysweep.track import AttemptDirectory, Cause, StudyDirectory, TrialDirectory, curve_of, write_text


@dataclass(frozen=True, slots=True)
class Found:
    """A completed trial of another study, with the values that this study's objectives make of it."""

    study: str
    trial: TrialDirectory
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"reused: trial {self.trial.number} of {self.study} is the same training"


def find_result(directory: StudyDirectory, identity: str, config: Trial, goals: Sequence[Objective]) -> Found | None:
    """The newest result of the same trial in another study under the same root; None where there is none that tells
    all objectives.

    The same means: the same id and the same end. A trial of another length has learned by another schedule.
    """
    others = directory.path.parent.glob(f"*/trials/*-{identity}")
    found = [TrialDirectory(path) for path in others if path.parent.parent != directory.path]
    for trial in sorted(found, key=lambda t: t.state().updated, reverse=True):
        study = StudyDirectory(trial.path.parent.parent)
        if study.is_simulated and not directory.is_simulated:
            continue  # nothing was trained
        if trial.state().cause is Cause.COMPLETED and _ends_alike(trial, config):
            values = [_value(study, trial, goal) for goal in goals]
            told = [v for v in values if v is not None and math.isfinite(v)]
            if len(told) == len(goals):
                return Found(study.name, trial, tuple(told))
    return None


def copy_metrics(found: Found, attempt: AttemptDirectory) -> None:
    """What was measured, as if this attempt had: tables and pruners compare with it."""
    attempt.path.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"step": step, "data": _plain(data)}) for step, data in found.trial.metrics().items()]
    write_text(attempt.metrics_file, "".join(f"{row}\n" for row in rows))


def _ends_alike(trial: TrialDirectory, config: Trial) -> bool:
    try:
        old = load_trial(trial.config_file.read_text(encoding="utf-8")).trainer
    except Exception:  # a trial.yaml that this version cannot read says nothing
        return False
    return (old.total_steps, old.total_epochs) == (config.trainer.total_steps, config.trainer.total_epochs)


def _value(study: StudyDirectory, trial: TrialDirectory, goal: Objective) -> float | None:
    if goal.metric == GPU_HOURS:
        return math.fsum(entry.gpu_hours for entry in study.ledger() if entry.trial == trial.number)
    return value_of(curve_of(trial.metrics(), goal.metric), goal)


def _plain(data: dict[str, float]) -> dict[str, float | None]:
    """As verl's file logger writes it: no number is null."""
    return {name: None if math.isnan(value) else value for name, value in data.items()}
