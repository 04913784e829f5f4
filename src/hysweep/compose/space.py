"""The search space: what may vary, in Hydra's grammar, as typed dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hysweep.schema.override import emit


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

    def text(self, value: Any) -> str:
        # 1 == True == 1.0: the type has to agree too
        for known, text in zip(self.values, self.texts, strict=True):
            if known == value and type(known) is type(value):
                return text
        return emit(value)


@dataclass(frozen=True, slots=True)
class Interval:
    """All numbers from low to high, both included; the integers among them if `is_int`."""

    key: str
    low: float
    high: float
    is_log: bool = False
    is_int: bool = False

    def text(self, value: Any) -> str:
        return emit(int(value) if self.is_int else float(value))


Dimension = Choice | Interval


def size(space: dict[str, Dimension]) -> int | None:
    """The number of points; None for a space with an interval of real numbers (or no bound worth counting)."""
    total = 1
    for dimension in space.values():
        if isinstance(dimension, Choice):
            total *= len(dimension)
        elif dimension.is_int:
            total *= int(dimension.high) - int(dimension.low) + 1
        else:
            return None
    return total


def grid(space: dict[str, Dimension]) -> Iterator[dict[str, Any]]:
    """Every point of a finite space in Hydra's order: the last key moves fastest."""
    if not space:
        yield {}
        return
    *others, last = space
    for point in grid({key: space[key] for key in others}):
        dimension = space[last]
        values: Any = dimension if isinstance(dimension, Choice) else range(int(dimension.low), int(dimension.high) + 1)
        for value in values:
            yield point | {last: value}


def half_open(start: float, stop: float, step: float) -> tuple[float, ...] | tuple[int, ...]:
    """Hydra's range(): the stop is never among the values, for integers and real numbers alike."""
    count = max(0, math.ceil((stop - start) / step - 1e-12))
    return tuple(start + i * step for i in range(count))
