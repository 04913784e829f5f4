"""Replicates: a point is run once for each seed of the space, and the sampler is told of it once, by their mean.

Each replicate is a trial of its own. Those of one point differ in their seed alone; the first of them, which the
sampler asked for, is its lead. A confirmation is one more replicate of one of the best points, with a seed that the
search did not use, when that is over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hysweep.compose import SEED, Space
from hysweep.schema import Study
from hysweep.track import ACTIONS, Cause, State, TrialDirectory, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the sampler is told of a point: its verdict, and its values where that is one."""

    lead: int
    verdict: Verdict
    values: tuple[float, ...] = ()


def outcomes(trials: Iterable[tuple[TrialDirectory, State]], seeds: Sequence[int]) -> list[Outcome]:
    """What all points came to that are known, in the order in which that was."""
    groups: dict[str, list[tuple[TrialDirectory, State]]] = {}
    for trial, state in trials:
        groups.setdefault(_key(trial.point()) if seeds else str(trial.number), []).append((trial, state))
    known = [(max(s.updated for _, s in group), told) for group in groups.values() if (told := outcome(group, seeds))]
    return [told for _, told in sorted(known, key=lambda k: k[0])]


def same_point(trials: Sequence[TrialDirectory], trial: TrialDirectory) -> list[TrialDirectory]:
    """The replicates of a trial's point, the trial itself and its lead among them, by number."""
    point = _key(trial.point())
    return [t for t in trials if _key(t.point()) == point]


def missing(trials: Sequence[TrialDirectory], seeds: Sequence[int]) -> tuple[int, int] | None:
    """The next replicate to begin: its lead's number and its seed. A point that was pruned, failed or cannot run
    with one seed is not tried with another."""
    groups: dict[str, list[tuple[TrialDirectory, object]]] = {}
    for trial in trials if len(seeds) > 1 else ():
        point = trial.point()
        groups.setdefault(_key(point), []).append((trial, point.get(SEED)))
    for group in groups.values():
        there = [seed for _, seed in group]
        left = [s for s in seeds if s not in there]
        if left and not any(_has_no_value(t.state()) for t, _ in group):
            return group[0][0].number, left[0]
    return None


def outcome(group: Sequence[tuple[TrialDirectory, State]], seeds: Sequence[int]) -> Outcome | None:
    """What a point came to; None while that is open."""
    states = [state for _, state in group]
    if not all(s.is_final for s in states):
        return None
    lead = group[0][0].number
    verdicts = [ACTIONS[s.cause].verdict for s in states if s.cause is not None]
    if Verdict.PRUNED in verdicts:
        return Outcome(lead, Verdict.PRUNED)
    values = [values_of(s) for s in states if not _has_no_value(s)]
    if len(group) < len(seeds) and len(values) == len(group):
        return None
    if not values:
        return Outcome(lead, Verdict.FAILED if verdicts[0] is Verdict.VALUE else verdicts[0])
    return Outcome(lead, Verdict.VALUE, tuple(math.fsum(v) / len(v) for v in zip(*values, strict=True)))


@dataclass(frozen=True, slots=True)
class Ranked:
    """A point with those of its replicates that completed, by number, and their values."""

    trials: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def lead(self) -> int:
        return self.trials[0]

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)


def ranked_points(
    completed: Iterable[tuple[int, Mapping[str, Any], float]],
    seeds: Sequence[int],
    is_maximised: bool,
    has_replicates: bool = True,
) -> list[Ranked]:
    """What is the best of a study: points, the best first, by the mean of their values; those that were confirmed go
    before the others.

    completed       number, point and value of each trial that has one
    seeds           with which the search runs each point
    has_replicates  whether trials that differ in their seed alone are of one point
    """
    groups: dict[str, list[tuple[int, float]]] = {}
    for number, point, value in sorted(completed, key=lambda c: c[0]):
        groups.setdefault(_key(point) if has_replicates else str(number), []).append((number, value))
    points = [Ranked(*map(tuple, zip(*group, strict=True))) for group in groups.values()]
    sign = -1 if is_maximised else 1
    return sorted(points, key=lambda p: (len(p.values) <= max(1, len(seeds)), sign * p.mean, p.lead))


def is_confirmation(point: Mapping[str, Any], space: Space) -> bool:
    """Of a trial's point: whether its seed is none that the search gives."""
    return SEED in point and SEED not in space and point[SEED] not in space.seeds


def best_points(trials: Iterable[tuple[TrialDirectory, State]], study: Study, space: Space) -> list[Ranked]:
    """The same of the trials of a study."""
    completed = [
        (t.number, t.point(), s.value) for t, s in trials if s.cause is Cause.COMPLETED and s.value is not None
    ]
    is_maximised = study.goals[0].direction == "maximize"
    return ranked_points(completed, space.seeds, is_maximised, has_replicates(study, space))


def has_replicates(study: Study, space: Space) -> bool:
    """Whether points are run with several seeds: all of them, or the best to confirm them."""
    return len(space.seeds) > 1 or study.confirm.top > 0


def unconfirmed(
    trials: Sequence[TrialDirectory],
    confirmations: Collection[int],
    study: Study,
    space: Space,
    seed_of: Callable[[TrialDirectory], int],
) -> tuple[int, int] | None:
    """The next confirmation to begin, once all that the search asked for has ended: its lead's number and its seed.

    `confirmations`: the numbers of those that there are. Which points are the best is decided by the others alone, so
    that it stays as it is while they are confirmed.
    """
    searched = {t.number: t for t in trials if t.number not in confirmations}
    for point in best_points(((t, t.state()) for t in searched.values()), study, space)[: study.confirm.top]:
        lead = searched[point.lead]
        group = same_point(trials, lead)
        used = {seed_of(lead), *space.seeds}
        fresh = itertools.islice((s for s in itertools.count(1) if s not in used), study.confirm.seeds)
        there = {t.point().get(SEED) for t in group}
        if left := [s for s in fresh if s not in there]:
            return lead.number, left[0]
    return None


def values_of(state: State) -> tuple[float, ...]:
    """The value of each objective of a trial that has one."""
    return tuple(state.values) or (() if state.value is None else (state.value,))


def _has_no_value(state: State) -> bool:
    return state.is_final and (
        state.cause is None or ACTIONS[state.cause].verdict is not Verdict.VALUE or not values_of(state)
    )


def _key(point: Mapping[str, Any]) -> str:
    """What the replicates of a point have in common."""
    return repr(sorted((key, repr(value)) for key, value in point.items() if key != SEED))
