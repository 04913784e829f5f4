"""What a study would launch, and what is wrong with it, before anything is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hysweep.check import check_trial, errors
from hysweep.compose import Choice, Composer, Dimension, grid, size
from hysweep.schema import BadInput, Problem, Trial, trial_id
from hysweep.study.definition import Definition

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
    """The named points where they are all there is to run, every point of a small finite space; of any other, the
    points that `corners` names."""
    named = [p for p in definition.study.enqueue if set(p) == set(definition.space)]
    if definition.space and not definition.is_grid and definition.n_trials <= len(named):
        return [_look(definition, composer, point) for point in named[: definition.n_trials]]
    points = size(definition.space)
    whole = points is not None and points <= ALL_OF_IT
    chosen = grid(definition.space) if whole else corners(definition.space)
    return [_look(definition, composer, point) for point in chosen]


def corners(space: dict[str, Dimension]) -> Iterator[dict[str, Any]]:
    """Every value of every choice and both ends of every interval, each once, the others at their first."""

    def ends(dimension: Dimension) -> tuple[Any, ...]:
        return dimension.values if isinstance(dimension, Choice) else (dimension.low, dimension.high)

    first = {key: ends(dimension)[0] for key, dimension in space.items()}
    yield first
    for key, dimension in space.items():
        for value in ends(dimension)[1:]:
            yield first | {key: value}


def _look(definition: Definition, composer: Composer, point: dict[str, Any]) -> Preview:
    try:
        trial = composer.point(definition.fixed, definition.space, point)
    except BadInput as e:
        return Preview(point, None, "", e.problems)
    return Preview(point, trial, trial_id(trial, definition.space), tuple(check_trial(trial)))
