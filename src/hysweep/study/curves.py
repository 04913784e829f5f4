"""How trainings go in a simulation: by a model, by curves that somebody gives, or as those of an earlier study went.

The model: each point has a quality, a smooth random function of where it lies in the space, made by the seed alone.
A curve rises from a tenth towards it, by an exponential whose time is a tenth to half of the training, and shakes by
0.02. So points near each other do alike, what is good early is mostly good late, and no number means anything beyond
that. Objectives that are minimised get one minus that.
"""

from __future__ import annotations

import bisect
import json
import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from hysweep.compose import Choice, Interval, Parameter, Space
from hysweep.compose.condition import Condition, parse_condition
from hysweep.compose.grammar import Vocabulary
from hysweep.launch.simulated import STEP_SECONDS
from hysweep.schema import BadInput, Problem, Study
from hysweep.schema.problem import unreadable_yaml
from hysweep.study.objective import GPU_HOURS
from hysweep.study.pruners import OWN_METRICS, direction_of, metrics_of
from hysweep.track import Cause, StudyDirectory

Point = Mapping[str, Any]
Logged = Callable[[int], Mapping[str, float]]  # the metrics of a step

WAVES = 3  # of the model's quality, over the whole space: so many hills and valleys
NOISE = 0.02
FIRST = 0.1  # where the model's curves begin


@dataclass(frozen=True, slots=True)
class Told:
    """Of one training. `step_s`: seconds of a step, where that is known of it."""

    logged: Logged
    step_s: float | None = None


Curves = Callable[[Point, int], Told]  # (point, steps)


def metrics_in(study: Study) -> dict[str, str]:
    """The metrics that a simulated training logs, with the direction that is good: those that the study looks at.

    What rules of the field watch, such as the entropy, is left out: a model has nothing to say of it.
    """
    found = {goal.metric: goal.direction for goal in study.goals if goal.metric != GPU_HOURS}
    for rule in study.rules:
        if rule.name not in OWN_METRICS:
            found |= {metric: direction_of(rule, metric, study) for metric in metrics_of(rule, study)}
    return {metric.replace("*", "simulated"): direction for metric, direction in found.items()}


class Model:
    """The synthetic model (see above)."""

    def __init__(self, space: Space, study: Study, seed: int) -> None:
        self._space, self._metrics, self._seed = space, metrics_in(study), seed
        self._waves = lru_cache(4096)(self._waves_of)

    def __call__(self, point: Point, steps: int) -> Told:
        quality = self.quality(point)
        text = json.dumps(point, sort_keys=True, default=str)
        draw = random.Random(f"{self._seed} {text}")
        time = max(1.0, steps * draw.uniform(0.1, 0.5))

        def logged(step: int) -> Mapping[str, float]:
            risen = quality - (quality - FIRST) * math.exp(-(step - 1) / time)
            found = {}
            for metric, direction in self._metrics.items():
                value = risen + random.Random(f"{self._seed} {text} {metric} {step}").gauss(0.0, NOISE)
                found[metric] = 1.0 - value if direction == "minimize" else value
            return found

        return Told(logged)

    def quality(self, point: Point) -> float:
        """Between 0 and 1."""
        total = 0.0
        for name, (parameter, value) in self._space.parameters_of(point).items():
            place = place_of(parameter, value)
            total += sum(height * math.cos(turns * place + shift) for height, turns, shift in self._waves(name))
        return 1.0 / (1.0 + math.exp(-total))

    def _waves_of(self, name: str) -> list[tuple[float, float, float]]:
        draw = random.Random(f"{self._seed} {name}")
        return [(draw.gauss(0.0, 0.6), draw.uniform(0.5, 2.0) * math.pi * k, draw.uniform(0.0, 2 * math.pi))
                for k in range(1, WAVES + 1)]  # fmt: skip


def place_of(parameter: Parameter, value: Any) -> float:
    """Where a value lies in its range, from 0 to 1."""
    if isinstance(parameter, Choice):
        return parameter.values.index(value) / max(1, len(parameter) - 1) if value in parameter else 0.0
    low, high = float(parameter.low), float(parameter.high)
    if parameter.is_log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (float(value) - low) / (high - low) if high > low else 0.0


# --- curves that somebody gives


@dataclass(frozen=True, slots=True)
class _Given:
    when: Condition | None
    values: tuple[float, ...]
    step_s: float | None


class Given:
    """Curves of a file: the first whose condition holds at a point. Its values lie evenly between the first step and
    the last, with straight lines between them."""

    def __init__(self, path: Path, words: Vocabulary, space: Space, study: Study) -> None:
        self._space, self._metrics, self._path = space, metrics_in(study), path
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), Loader=get_yaml_loader())  # no key twice
        except OSError as e:
            cure = "give `model`, or a file that is there"
            raise BadInput(Problem("--curves", path, e.strerror or str(e), cure)) from e
        except (yaml.YAMLError, UnicodeDecodeError) as e:
            raise BadInput(Problem("--curves", path, f"is no YAML: {unreadable_yaml(e)}", "mend it")) from e
        if not isinstance(content, list) or not content:
            raise BadInput(Problem("--curves", path, "is no list of curves", "write `- {when: ..., values: [...]}`"))
        self._curves = [self._read(i, entry, words) for i, entry in enumerate(content)]

    def _read(self, place: int, entry: Any, words: Vocabulary) -> _Given:
        where = f"{self._path}[{place}]"
        if not isinstance(entry, dict) or (unknown := sorted(map(str, entry.keys() - {"when", "values", "step_s"}))):
            what = f"has {', '.join(unknown)}" if isinstance(entry, dict) else "is no mapping"
            raise BadInput(Problem(where, entry, what, "a curve has values, and may have when and step_s"))
        values, step_s = entry.get("values"), entry.get("step_s")
        if not isinstance(values, list) or not values or not all(_is_number(v) for v in values):
            raise BadInput(Problem(f"{where}.values", values, "are no numbers", "write values: [0.1, 0.2, 0.4]"))
        if step_s is not None and not (_is_number(step_s) and 0 < step_s < math.inf):
            raise BadInput(Problem(f"{where}.step_s", step_s, "is no time", "give seconds, more than 0"))
        when = parse_condition(entry["when"], words, f"{where}.when") if "when" in entry else None
        return _Given(when, tuple(map(float, values)), step_s)

    def __call__(self, point: Point, steps: int) -> Told:
        value_of = self._space.lookup(point)
        found = next((c for c in self._curves if c.when is None or c.when.holds(value_of)), None)
        if found is None:
            said = " ".join(f"{k}={v}" for k, v in point.items())
            cure = "add a last one without `when`"
            raise BadInput(Problem("--curves", self._path, f"has no curve for {said}", cure))

        def logged(step: int) -> Mapping[str, float]:
            return dict.fromkeys(self._metrics, _between(found.values, (step - 1) / max(1, steps - 1)))

        return Told(logged, found.step_s)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _between(values: tuple[float, ...], share: float) -> float:
    """At a share of the way from the first value to the last."""
    place = min(share, 1.0) * (len(values) - 1)
    low = min(int(place), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


# --- as an earlier study went


@dataclass(frozen=True, slots=True)
class _Recorded:
    point: Point
    steps: tuple[int, ...]
    data: tuple[Mapping[str, float], ...]
    step_s: float


class Recorded:
    """As the nearest completed trial of an earlier study went, with its seconds a step. Beyond its last step, that."""

    def __init__(self, directory: StudyDirectory, space: Space) -> None:
        self._directory, self._space = directory, space
        if not self._trials:
            cure = "give the directory of a study that has run"
            raise BadInput(Problem("--like", directory.path, "has no completed trial with metrics", cure))

    @cached_property
    def _trials(self) -> list[_Recorded]:
        found = []
        for trial in self._directory.trials() if self._directory.exists else []:
            rows = trial.metrics() if trial.state().cause is Cause.COMPLETED else {}
            timed = [data[STEP_SECONDS] for data in rows.values() if STEP_SECONDS in data]
            if rows and timed:
                found.append(_Recorded(trial.point(), tuple(rows), tuple(rows.values()), statistics.mean(timed)))
        return found

    def __call__(self, point: Point, steps: int) -> Told:
        nearest = min(self._trials, key=lambda t: self._distance(point, t.point))

        def logged(step: int) -> Mapping[str, float]:
            at = max(0, bisect.bisect_right(nearest.steps, step) - 1)
            return {name: value for name, value in nearest.data[at].items() if name != STEP_SECONDS}

        return Told(logged, nearest.step_s)

    def _distance(self, one: Point, other: Point) -> float:
        """Over the parameters of the first point, each from 0 to 1; one that the other lacks counts as far."""
        total = 0.0
        for name, (parameter, value) in self._space.parameters_of(one).items():
            key = name.partition("@")[0]
            theirs: Any = {k: other.get(k) for k in value} if isinstance(value, Mapping) else other.get(key)
            if isinstance(parameter, Interval) and _is_number(theirs) and (theirs > 0 or not parameter.is_log):
                total += min(1.0, abs(place_of(parameter, value) - place_of(parameter, theirs))) ** 2
            else:
                total += float(theirs != value)
        return total
