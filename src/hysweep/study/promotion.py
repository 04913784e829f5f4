"""Promotion: every trial stops at a rung, and of those that reached it only the best go on, each from its checkpoint.

Asynchronous successive halving by promotion (Li et al., arXiv:1810.05934, algorithm 2). The rungs are at
``min_steps``, that times ``reduction_factor``, and so on, below the trial's own number of steps. Whenever there is
room, the best trial of the highest rung that has one goes on: of n that reached a rung, n // reduction_factor may.
Once the search is over at least one goes on from each rung, so that a study ends with a whole training.

The trainer knows nothing of it: its number of steps, and with it the schedule of the learning rate, is that of the
whole training. The node ends it when the checkpoint of the rung is on disk (`Job.stop_step`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hysweep.schema import Problem, Promote, Stage, Study, Trial
from hysweep.study.objective import GPU_HOURS


@dataclass(frozen=True, slots=True)
class Climber:
    """A trial that has reached a rung. `values`: the objective at each that it has; `waits`: it stands on the last of
    them, and may go on."""

    number: int
    values: tuple[float, ...]
    waits: bool


def rung_step(promote: Promote, level: int) -> int:
    """The step of a rung, from 0."""
    assert promote.min_steps is not None
    return int(promote.min_steps * promote.reduction_factor**level)


def stop_step(promote: Promote, passed: int, total_steps: int | None) -> int | None:
    """Where a trial that has passed so many rungs stops next; None: at its end."""
    if promote.min_steps is None or total_steps is None:
        return None
    step = rung_step(promote, passed)
    return step if step < total_steps else None


def next_promoted(climbers: Collection[Climber], promote: Promote, is_maximised: bool, is_over: bool) -> int | None:
    """The number of the trial that goes on; None: none may yet. `is_over`: no further trial comes to any rung."""
    sign = -1.0 if is_maximised else 1.0
    for level in reversed(range(max((len(c.values) for c in climbers), default=0))):
        there = [c for c in climbers if len(c.values) > level]
        places = len(there) // promote.reduction_factor
        best = sorted(there, key=lambda c: (sign * c.values[level], c.number))
        for climber in best[: max(places, 1) if is_over else places]:
            if climber.waits and len(climber.values) == level + 1:
                return climber.number
    return None


def unfit_to_promote(trial: Trial, study: Study) -> list[Problem]:
    """Why a trial cannot stop at the rungs of a study: it would have no checkpoint there, or no value."""
    promote, trainer, key = study.promote, trial.trainer, "study.promote.min_steps"
    first = promote.min_steps
    if first is None:
        return []
    total = trainer.total_steps
    if total is None:
        return [
            Problem(
                "trainer.total_steps", "null", "a trial that is promoted has to have its end", "give it", Stage.NEVER
            )
        ]
    if first >= total:
        return [
            Problem(
                key, first, f"a whole training has {total} steps", f"give at most {total - 1}, or null", Stage.NEVER
            )
        ]
    faults = []
    if trainer.save_every < 1 or first % trainer.save_every:
        why = f"no checkpoint is saved there: trainer.save_every is {trainer.save_every}"
        faults.append(Problem(key, first, why, f"give trainer.save_every={first}", Stage.NEVER))
    compared = study.goals[0].metric
    if compared.startswith("val-") and not 1 <= trainer.validate_every <= first:
        why = f"{compared} is not measured by then: trainer.validate_every is {trainer.validate_every}"
        faults.append(Problem(key, first, why, f"give trainer.validate_every={first}", Stage.NEVER))
    return faults


def impossible_promotion(study: Study, seeds: Sequence[int]) -> list[Problem]:
    """What a study cannot have together with promotion."""
    key, first = "study.promote.min_steps", study.promote.min_steps
    if first is None:
        if study.promote != Promote():
            cure = f"give {key} as well"
            return [Problem("study.promote.reduction_factor", study.promote.reduction_factor, "does nothing", cure)]
        return []
    faults = []
    if len(seeds) > 1:
        why = "replicates of one point would stand on different rungs"
        faults.append(Problem(key, first, why, "leave the seeds out, and give study.confirm.top=3"))
    if study.goals[0].metric == GPU_HOURS:
        faults.append(Problem(key, first, f"{GPU_HOURS} has no curve to compare", "give another objective first"))
    return faults
