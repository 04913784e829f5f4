"""The search space: what may vary, in Hydra's grammar, as typed dimensions.

A dimension is what a person names; a parameter is what a sampler draws. They are the same for a choice and an interval.
A conditional dimension has one parameter for each branch, a zip one for all its keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

from hysweep.compose.condition import Condition
from hysweep.schema import BadInput, Problem
from hysweep.schema.override import emit

Point = dict[str, Any]
SEED = "trainer.seed"  # what replicates of a point differ in
MOST_COUNTED = 10_000  # points that are counted one by one, where conditions and filters decide


@dataclass(frozen=True, slots=True)
class Choice:
    """Finitely many values. `texts` are what Hydra is given for each of `values`, quotes and all."""

    key: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, value: Any) -> bool:
        return self._place(value) is not None

    def text(self, value: Any) -> str:
        place = self._place(value)
        return emit(value) if place is None else self.texts[place]

    def _place(self, value: Any) -> int | None:
        """Where a value is. 1 == True == 1.0: the type has to agree too, if anything of that type is there."""
        equal = [i for i, known in enumerate(self.values) if known == value]
        same = [i for i in equal if type(self.values[i]) is type(value)]
        numbers = [i for i in equal if not isinstance(self.values[i], bool) and not isinstance(value, bool)]
        return next(iter(same or numbers), None)


@dataclass(frozen=True, slots=True)
class Interval:
    """All numbers from low to high, both included; the integers among them if `is_int`."""

    key: str
    low: float
    high: float
    is_log: bool = False
    is_int: bool = False

    def __contains__(self, value: Any) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high and (not self.is_int or value == int(value))

    def text(self, value: Any) -> str:
        return emit(int(value) if self.is_int else float(value))


Parameter = Choice | Interval


@dataclass(frozen=True, slots=True)
class Branch:
    """A range that holds under a condition; None: otherwise."""

    when: Condition | None
    range: Parameter


@dataclass(frozen=True, slots=True)
class Conditional:
    """A key whose range depends on the rest of the point: the first branch that applies; if none does, the key keeps
    the configuration's own value and is no part of the point."""

    key: str
    branches: tuple[Branch, ...]

    @property
    def parameters(self) -> dict[str, Parameter]:
        """One for each branch, so that a sampler never mixes what it learned under different conditions."""
        return {f"{self.key}@{i}": branch.range for i, branch in enumerate(self.branches, start=1)}


@dataclass(frozen=True, slots=True)
class Zip:
    """Several keys that are set together: the values of `rows` are mappings from key to value."""

    key: str
    rows: Choice

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.rows.values[0])


Dimension = Choice | Interval | Conditional | Zip

# The value of a field, or the option of a group, at a point that may be incomplete.
Facts = Callable[["Space", Point, str], Any]


class Space(Mapping[str, Dimension]):
    """Dimensions by key, the filters that their points must pass, and the seeds that each point is run with.

    `facts` says what the configuration has for names that do not vary.
    """

    def __init__(
        self,
        dimensions: Mapping[str, Dimension] | None = None,
        filters: Sequence[Condition] = (),
        seeds: Sequence[int] = (),
        facts: Facts = lambda space, point, name: None,
    ) -> None:
        self._dimensions = dict(dimensions or {})
        self.filters, self.seeds, self._facts = tuple(filters), tuple(seeds), facts
        self._order = _ordered(self._dimensions)
        faults = [
            Problem(f"space.{key}", key, "is set by two dimensions", "name it once")
            for i, key in enumerate(self._keys)
            if key in self._keys[:i]
        ]
        if faults:
            raise BadInput(*faults)

    def __getitem__(self, key: str) -> Dimension:
        return self._dimensions[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._dimensions)

    def __len__(self) -> int:
        return len(self._dimensions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Space):
            return NotImplemented
        mine, theirs = ((s._dimensions, s.filters, s.seeds) for s in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def with_facts(self, facts: Facts) -> Space:
        return Space(self._dimensions, self.filters, self.seeds, facts)

    # --- keys and parameters

    @property
    def _keys(self) -> list[str]:
        sets = [d.keys if isinstance(d, Zip) else (key,) for key, d in self._dimensions.items()]
        return [key for keys in sets for key in keys] + ([SEED] if self.seeds else [])

    @property
    def varied(self) -> tuple[str, ...]:
        """The keys of a trial that it sets."""
        return tuple(self._keys)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """What a sampler can be asked for, by name."""
        found: dict[str, Parameter] = {}
        for key, dimension in self._dimensions.items():
            if isinstance(dimension, Conditional):
                found |= dimension.parameters
            else:
                found[key] = dimension.rows if isinstance(dimension, Zip) else dimension
        return found

    @property
    def has_conditions(self) -> bool:
        return any(isinstance(d, Conditional) for d in self._dimensions.values())

    def text(self, key: str, value: Any) -> str:
        """The value of one key of a point, as Hydra takes it."""
        dimension = self._dimensions.get(key)
        if isinstance(dimension, Choice):
            return dimension.text(value)
        if isinstance(dimension, Interval):
            return dimension.text(value)
        if isinstance(dimension, Conditional):
            fitting = next((b.range for b in dimension.branches if value in b.range), None)
            return fitting.text(value) if fitting else emit(value)
        return emit(value)

    # --- points

    def walk(self, choose: Callable[[str, Parameter], Any]) -> Point:
        """The point that comes of choosing a value for one parameter after another. Only those that apply are asked
        for: what has a condition comes after what it depends on."""
        point: Point = {}
        for key in self._order:
            for name, parameter in self._applying(key, point):
                point |= self._set(key, choose(name, parameter))
        return point

    def parameters_of(self, point: Mapping[str, Any]) -> dict[str, tuple[Parameter, Any]]:
        """The parameters that a point (or a part of one) comes of, each with the value that was drawn."""
        found: dict[str, tuple[Parameter, Any]] = {}
        for key in self._order:
            dimension = self._dimensions[key]
            if isinstance(dimension, Zip):
                row = {k: point[k] for k in dimension.keys if k in point}
                fitting = [r for r in dimension.rows.values if row and row.items() <= r.items()]
                if fitting:
                    found[key] = (dimension.rows, fitting[0])
            elif key in point:
                for name, parameter in self._applying(key, point):
                    found[name] = (parameter, point[key])
        return found

    def is_whole(self, point: Mapping[str, Any]) -> bool:
        """Whether a point says all that varies where it is, and nothing else."""
        drawn = self.parameters_of(point)
        try:
            return self.walk(lambda name, _: drawn[name][1]) == dict(point)
        except KeyError:
            return False

    def default(self) -> Point | None:
        """The configuration's own values, and the space's constants, as a point; None where one of them lies outside of
        the space, or a filter rejects it."""
        point: Point = {}
        for key in self._order:
            for _, parameter in self._applying(key, point):
                dimension = self._dimensions[key]
                keys = dimension.keys if isinstance(dimension, Zip) else (key,)
                own = {k: self._facts(self, point, k) for k in keys}
                value = own if isinstance(dimension, Zip) else own[key]
                if isinstance(parameter, Choice) and len(parameter.values) == 1:  # a constant, whatever else is set
                    value = parameter.values[0]
                if value not in parameter:
                    return None
                point |= self._set(key, value)
        return point if point and self.refusal(point) is None else None

    def refusal(self, point: Mapping[str, Any]) -> str | None:
        """The filter that rejects a point; None where it may run."""
        value_of = self.lookup(point)
        return next((f.text for f in self.filters if not f.holds(value_of)), None)

    def _applying(self, key: str, point: Mapping[str, Any]) -> Iterator[tuple[str, Parameter]]:
        """The parameter that a key has at a point: one, or none."""
        dimension = self._dimensions[key]
        if isinstance(dimension, Conditional):
            value_of = self.lookup({k: v for k, v in point.items() if k != key})
            for (name, parameter), branch in zip(dimension.parameters.items(), dimension.branches, strict=True):
                if branch.when is None or branch.when.holds(value_of):
                    yield name, parameter
                    return
        else:
            yield key, dimension.rows if isinstance(dimension, Zip) else dimension

    def _set(self, key: str, value: Any) -> Point:
        return dict(value) if isinstance(self._dimensions[key], Zip) else {key: value}

    def lookup(self, point: Mapping[str, Any]) -> Callable[[str], Any]:
        """What a condition asks at a point: its own values, and those that the configuration has there."""
        known = dict(point)
        return lambda name: known[name] if name in known else self._facts(self, known, name)

    # --- all points

    @cached_property
    def size(self) -> int | None:
        """The number of points, replicates not counted; None for a space with an interval of real numbers.

        With conditions or filters it is counted, and of a space too large for that, it is the most that it can have.
        """
        total = 1
        for key in self._order:
            dimension = self._dimensions[key]
            parts = list(dimension.parameters.values()) if isinstance(dimension, Conditional) else []
            counts = [_count(p) for p in parts or [self.parameters[key]]]
            if any(c is None for c in counts):
                return None
            total *= max(c or 0 for c in counts)
        if total > MOST_COUNTED or not (self.filters or self.has_conditions):
            return total
        return sum(1 for _ in self.grid())

    @cached_property
    def rejected(self) -> int:
        """How many points of a finite space, if it is counted, the filters reject."""
        size = self.size
        if size is None or size > MOST_COUNTED or not self.filters:
            return 0
        return sum(1 for _ in self._all()) - size

    def grid(self) -> Iterator[Point]:
        """Every point of a finite space that passes the filters, in Hydra's order: the last key moves fastest."""
        return (point for point in self._all() if self.refusal(point) is None)

    def _all(self, done: int = 0, point: Point | None = None) -> Iterator[Point]:
        point = point or {}
        if done == len(self._order):
            yield point
            return
        key = self._order[done]
        applying = list(self._applying(key, point))
        for _, parameter in applying:
            for value in _values(parameter):
                yield from self._all(done + 1, point | self._set(key, value))
        if not applying:
            yield from self._all(done + 1, point)

    # --- as a sweep file has it

    def as_dict(self) -> dict[str, Any]:
        """The `space:` of a sweep file: parsing it gives the space back."""
        content: dict[str, Any] = {}
        for key, dimension in self._dimensions.items():
            if isinstance(dimension, Zip):
                content[key] = [dict(row) for row in dimension.rows.values]
            elif isinstance(dimension, Conditional):
                content[key] = [
                    ({"when": b.when.text} if b.when else {}) | {"in": text_of(b.range)} for b in dimension.branches
                ]
            else:
                content[key] = text_of(dimension)
        if self.filters:
            content["filter"] = [f.text for f in self.filters]
        if self.seeds:
            content["seeds"] = list(self.seeds)
        return content


def text_of(dimension: Dimension) -> str:
    """A dimension in Hydra's grammar, with what that has no word for in plain ones."""
    if isinstance(dimension, Choice):
        return one_of(dimension.texts)
    if isinstance(dimension, Zip):
        return f"one of {', '.join(dimension.rows.texts)}"
    if isinstance(dimension, Conditional):
        return "; ".join(
            f"{text_of(b.range)} " + (f"when {b.when.text}" if b.when else "otherwise") for b in dimension.branches
        )
    span = f"interval({dimension.low!r},{dimension.high!r})"
    span = f"tag(log,{span})" if dimension.is_log else span
    return f"int({span})" if dimension.is_int else span


def one_of(texts: Sequence[str]) -> str:
    """A choice in Hydra's grammar. Its choice() takes no null; a list with commas does, from two values on."""
    listed = ",".join(texts)
    return listed if "null" in texts and len(texts) > 1 else f"choice({listed})"


def half_open(start: float, stop: float, step: float) -> tuple[float, ...] | tuple[int, ...]:
    """Hydra's range(): the stop is never among the values, for integers and real numbers alike. Real numbers are those
    that a person would write: 0.3 is one of range(0.1, 0.5, 0.1)."""
    first, last, each = (Decimal(repr(n)) for n in (start, stop, step))
    count = max(0, math.ceil((last - first) / each))
    if all(isinstance(n, int) for n in (start, step)):
        return tuple(int(start + i * step) for i in range(count))
    return tuple(float(first + i * each) for i in range(count))


def _ordered(dimensions: Mapping[str, Dimension]) -> list[str]:
    """The keys, each after those that its conditions name. Raises BadInput for a circle."""
    order = [key for key, d in dimensions.items() if not isinstance(d, Conditional)]
    waiting = {key: d for key, d in dimensions.items() if isinstance(d, Conditional)}
    while waiting:
        free = [key for key, d in waiting.items() if not any(_names(d, other) for other in waiting)]
        if not free:
            key = next(iter(waiting))
            why = f"depends on itself, by way of {', '.join(waiting)}"
            raise BadInput(Problem(f"space.{key}", key, why, "leave one of the conditions out"))
        order += free
        waiting = {key: d for key, d in waiting.items() if key not in free}
    return order


def _names(dimension: Conditional, key: str) -> bool:
    """Whether a condition names a key, or a field of it where it is a group."""
    named: Iterable[str] = (name for b in dimension.branches if b.when for name in b.when.keys)
    return any(name == key or name.startswith(f"{key}.") for name in named)


def _count(parameter: Parameter) -> int | None:
    if isinstance(parameter, Choice):
        return len(parameter)
    return int(parameter.high) - int(parameter.low) + 1 if parameter.is_int else None


def _values(parameter: Parameter) -> Iterable[Any]:
    return parameter if isinstance(parameter, Choice) else range(int(parameter.low), int(parameter.high) + 1)
