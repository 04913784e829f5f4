"""Whether a record that was read holds what its fields are declared to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


# What a field of each declared type may hold, beside the enumerations, which see to it themselves.
_HOLDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int and abs(value) < 2**63,
    "bool": lambda value: isinstance(value, bool),
    "float": _is_number,
    "tuple[str, ...]": lambda value: all(isinstance(item, str) for item in value),
    "tuple[float, ...]": lambda value: all(map(_is_number, value)),
}


@cache
def _holds(cls: type[Any]) -> tuple[tuple[str, Callable[[Any], bool], bool], ...]:
    """Of each field its name, what it may hold, and whether that may be None."""
    kinds = [(f.name, *str(f.type).partition(" | None")[:2]) for f in fields(cls)]
    return tuple((name, _HOLDS[kind], bool(optional)) for name, kind, optional in kinds if kind in _HOLDS)


def sound(record: T) -> T:
    """The record, if each of its fields holds what it is to: somebody else may have written it."""
    cls: Any = type(record)
    for name, holds, is_optional in _holds(cls):
        value = getattr(record, name)
        if not (holds(value) or (is_optional and value is None)):
            raise TypeError(f"{name} = {value!r}")
    return record
