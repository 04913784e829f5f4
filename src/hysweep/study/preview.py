"""What a study would launch, and what is wrong with it, before anything is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hysweep.check import check_trial, errors
from hysweep.check.site import secrets_within
from hysweep.compose import Choice, Composer, Parameter, Point, Space
from hysweep.schema import BadInput, Problem, Severity, Stage, Study, Trial, trial_id
from hysweep.schema.knob import leaves
from hysweep.study.changes import changed, later, moved
from hysweep.study.definition import Definition
from hysweep.study.ledger import worst_case
from hysweep.study.objective import unmeasured
from hysweep.study.promotion import unfit_to_promote
from hysweep.study.pruners import idle_pruners

ALL_OF_IT = 256  # spaces up to this many points are looked at whole


@dataclass(frozen=True, slots=True)
class Preview:
    """One point looked at. `trial` is None where it does not even compose; `problems` then say why."""

    point: dict[str, Any]
    trial: Trial | None
    id: str
    problems: tuple[Problem, ...]

    @property
    def is_feasible(self) -> bool:
        return self.trial is not None and not errors(self.problems)


def preview(definition: Definition, composer: Composer) -> list[Preview]:
    """The first points where they are all there is to run, every point of a small finite space; of any other, the
    first points and those that `corners` names."""
    return [_look(definition, composer, point) for point in _points(definition)]


def _points(definition: Definition) -> list[Point]:
    space = definition.space
    first = [] if definition.is_grid else [p for p in definition.first_points() if space.is_whole(p)]
    if space and not definition.is_grid and definition.n_trials <= len(first) * max(1, len(space.seeds)):
        return first[: definition.n_trials]
    if space.size is not None and space.size <= ALL_OF_IT:
        return list(space.grid())
    points = [*first, *corners(space)]
    return [p for i, p in enumerate(points) if p not in points[:i]]


def least_hours(definition: Definition, composer: Composer, changes: Mapping[str, Any]) -> float:
    """What the cheapest of the points that are looked at may come to, where the study runs by now."""
    found = []
    for point in _points(definition):
        with suppress(BadInput):
            found.append(worst_case(moved(composer.point(definition.fixed, definition.space, point), changes)))
    return min(found, default=0.0)


def corners(space: Space) -> Iterator[Point]:
    """Every value of every choice, each branch and both ends of every interval, each once, the others at their
    first. What a filter rejects is left out."""

    def ends(parameter: Parameter) -> tuple[Any, ...]:
        return parameter.values if isinstance(parameter, Choice) else (parameter.low, parameter.high)

    opened: set[str] = set()
    waiting: list[dict[str, Any]] = [{}]
    while waiting:
        given = waiting.pop(0)

        def choose(name: str, parameter: Parameter, given: dict[str, Any] = given) -> Any:
            if name not in opened:
                opened.add(name)
                # what has a condition is looked at where that was first met
                here = given if "@" in name else {}
                waiting.extend(here | {name: value} for value in ends(parameter)[1:])
            return given.get(name, ends(parameter)[0])

        point = space.walk(choose)
        if space.refusal(point) is None:
            yield point


def _look(definition: Definition, composer: Composer, point: dict[str, Any]) -> Preview:
    try:
        trial = composer.point(definition.fixed, definition.space, point)
    except BadInput as e:
        return Preview(point, None, "", e.problems)
    return Preview(point, trial, trial_id(trial, definition.space.varied), tuple(problems_of(trial, definition)))


def study_problems(definition: Definition, looked: Sequence[Preview]) -> list[Problem]:
    """What is wrong with the settings of a study, whatever its points are: what cannot be, and what is said in vain."""
    written = secrets_within(leaves(definition.study, "study."))
    advice = (*_more_than_there_is(definition), *_not_read(definition), *written)
    return [*_beyond_budget(definition, looked), *(replace(p, severity=Severity.WARNING) for p in advice)]


def in_vain(definition: Definition, before: Mapping[str, Any], changes: Mapping[str, Any]) -> list[Problem]:
    """Advice: what changes, both plain, say that nothing would read, or of more than there is."""
    after = replace(definition, study=changed(definition.study, later(before, changes)))
    known = study_problems(definition, ())
    return [problem for problem in study_problems(after, ()) if problem not in known]


def _beyond_budget(definition: Definition, looked: Sequence[Preview]) -> Iterator[Problem]:
    """A budget that allows not one of the trials that were looked at to take its time."""
    budget = definition.study.budget_gpu_hours
    trials = (p.trial for p in looked if p.trial is not None and p.is_feasible)
    least = min((worst_case(t) for t in trials), default=0.0)
    if budget is None or budget >= least:
        return
    why = f"one trial may take {least:g} by its time limit, cluster.timeout_min"
    cure = f"give {least:g} or more, or a time limit that fits"
    yield Problem("study.budget_gpu_hours", budget, why, cure)


def _more_than_there_is(definition: Definition) -> Iterator[Problem]:
    """Advice: more trials than the space has."""
    asked, there = definition.study.n_trials, definition.n_trials
    if asked is None or asked <= there:
        return
    trials = "one trial" if there == 1 else f"{there} trials"
    why = f"{'the space has no more points' if definition.space else 'there is nothing to search'}, so it is {trials}"
    cure = f"leave it out, or give {'a wider range' if definition.space else 'a range, as in algorithm=grpo,cispo'}"
    yield Problem("study.n_trials", asked, why, cure, Stage.NEVER)


def _not_read(definition: Definition) -> Iterator[Problem]:
    """Advice: settings that nothing reads beside the others."""
    study, usual = definition.study, Study()
    for place, goal in enumerate(study.goals, start=1):
        if goal.last != usual.last and goal.reduce != "mean_last":
            key = f"study.objectives[{place}]" if study.objectives else "study"
            yield _idle(f"{key}.last", goal.last, f"reduce={goal.reduce} does not read it", "reduce=mean_last")
    if definition.is_grid and definition.space:
        asked: dict[str, object] = {n: given for n in ("enqueue", "default_first") if (given := getattr(study, n))}
        if study.sampler != usual.sampler and study.sampler.name != "grid":
            asked["sampler"] = study.sampler.name
        for name, given in asked.items():
            yield _idle(f"study.{name}", given, "every point runs, in the order of the space", "study.n_trials")
    if study.pruner.name == "none":
        for name in ("metric", "direction", "min_steps"):
            if (given := getattr(study.pruner, name)) != getattr(usual.pruner, name):
                yield _idle(f"study.pruner.{name}", given, "no pruner reads it", "study.pruner.name")
    if study.notify.command is None:
        for name in ("events", "timeout_s"):
            if (given := getattr(study.notify, name)) != getattr(usual.notify, name):
                yield _idle(f"study.notify.{name}", given, "nobody is told of anything", "study.notify.command")
    if study.force_sqlite and not (study.storage or "").startswith("sqlite"):
        yield _idle("study.force_sqlite", True, "the study is in no SQLite", "study.storage")


def _idle(key: str, value: object, why: str, needs: str) -> Problem:
    return Problem(key, value, f"does nothing: {why}", f"leave it out, or give {needs}", Stage.NEVER)


def problems_of(trial: Trial, definition: Definition) -> list[Problem]:
    """What is wrong with a point of a study, before anything of it runs."""
    study = definition.study
    of_study = (*unmeasured(trial, study), *unfit_to_promote(trial, study), *idle_pruners(trial, study))
    return [*check_trial(trial), *of_study]
