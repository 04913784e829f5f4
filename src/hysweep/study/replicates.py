"""Replicates: a point is run once for each seed of the space, and the sampler is told of it once, by their mean.

Each replicate is a trial of its own. Those of one point differ in their seed alone; the first of them, which the
sampler asked for, is its lead. A confirmation is one more replicate of one of the best points, with a seed that the
search did not use, when that is over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from hysweep.compose import SEED, Space
from hysweep.schema import Study
from hysweep.track import ACTIONS, State, TrialDirectory, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the sampler is told of a point: its verdict, and its values where that is one."""

    lead: int
    verdict: Verdict
    values: tuple[float, ...] = ()


def same_point(trials: Sequence[TrialDirectory], trial: TrialDirectory) -> list[TrialDirectory]:
    """The replicates of a trial's point, the trial itself and its lead among them, by number."""
    point = _without_seed(trial.point())
    return [t for t in trials if _without_seed(t.point()) == point]


def missing(trials: Sequence[TrialDirectory], seeds: Sequence[int]) -> tuple[int, int] | None:
    """The next replicate to begin: its lead's number and its seed. A point that was pruned, failed or cannot run
    with one seed is not tried with another."""
    begun: set[str] = set()
    for trial in trials if len(seeds) > 1 else ():
        point = repr(_without_seed(trial.point()))
        if point in begun:
            continue
        begun.add(point)
        group = same_point(trials, trial)
        if any(_has_no_value(t.state()) for t in group):
            continue
        there = {t.point().get(SEED) for t in group}
        if left := [s for s in seeds if s not in there]:
            return trial.number, left[0]
    return None


def outcome(group: Sequence[TrialDirectory], seeds: Sequence[int]) -> Outcome | None:
    """What a point came to; None while that is open."""
    states = [t.state() for t in group]
    if not all(s.is_final for s in states):
        return None
    lead = group[0].number
    verdicts = [ACTIONS[s.cause].verdict for s in states if s.cause is not None]
    if Verdict.PRUNED in verdicts:
        return Outcome(lead, Verdict.PRUNED)
    values = [values_of(s) for s in states if not _has_no_value(s)]
    if len(group) < len(seeds) and len(values) == len(group):
        return None
    if not values:
        return Outcome(lead, Verdict.FAILED if verdicts[0] is Verdict.VALUE else verdicts[0])
    return Outcome(lead, Verdict.VALUE, tuple(math.fsum(v) / len(v) for v in zip(*values, strict=True)))


def is_confirmation(point: Mapping[str, Any], space: Space) -> bool:
    """Of a trial's point: whether its seed is none that the search gives."""
    return SEED in point and SEED not in space and point[SEED] not in space.seeds


def unconfirmed(
    trials: Sequence[TrialDirectory], confirmations: Collection[int], study: Study, space: Space
) -> tuple[int, int] | None:
    """The next confirmation to begin, once all that the search asked for has ended: its lead's number and its seed.

    `confirmations`: the numbers of those that there are. Which points are the best is decided by the others alone, so
    that it stays as it is while they are confirmed.
    """
    searched = [t for t in trials if t.number not in confirmations]
    leads: dict[str, TrialDirectory] = {}
    values: dict[str, list[float]] = {}
    for trial in searched:
        state, point = trial.state(), repr(_without_seed(trial.point()))
        if not _has_no_value(state) and state.is_final:
            leads.setdefault(point, trial)
            values.setdefault(point, []).append(values_of(state)[0])
    sign = -1 if study.goals[0].direction == "maximize" else 1
    ranked = sorted(leads, key=lambda p: (sign * math.fsum(values[p]) / len(values[p]), leads[p].number))
    for point in ranked[: study.confirm.top]:
        lead = leads[point]
        group = same_point(trials, lead)
        config = OmegaConf.select(OmegaConf.load(lead.config_file), SEED)
        used = {config, *space.seeds}
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


def _without_seed(point: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in point.items() if key != SEED}
