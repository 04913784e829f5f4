"""How a field of the schema is declared: once, with all that compile, check, help and docs need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any

# The prefixes that most of verl's keys share.
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"


class _Set(tuple[str, ...]):
    """For `Knob.when`: any value but null."""

    def __contains__(self, value: object) -> bool:
        return value is not None


SET = _Set(("a value",))


class _Filled(tuple[str, ...]):
    """For `Knob.when`: a list or dict with something in it."""

    def __contains__(self, value: object) -> bool:
        return bool(value)


FILLED = _Filled(("an entry",))


class Other(tuple[str, ...]):
    """For `Knob.when`: any value but one."""

    one: str

    def __new__(cls, said: tuple[str, ...], one: str) -> Other:
        made = super().__new__(cls, said)
        made.one = one
        return made

    def __contains__(self, value: object) -> bool:
        return value != self.one


@dataclass(frozen=True, slots=True)
class Knob:
    """What a field says of itself.

    doc       one line
    keys      the trainer keys that it is copied to, unchanged; empty: compile derives what follows from it
    when      it has an effect only while each named field has one of the given values; otherwise it is
              not sent, and a value other than the default is reported as ignored
    learned   it says what is learned, so it belongs to a trial's identity
    unit      of the value; also the end of the name
    low, high inclusive bounds
    choices   the only legal values
    """

    doc: str = ""
    keys: tuple[str, ...] = ()
    when: Mapping[str, tuple[Any, ...]] | None = None
    learned: bool = True
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()


def knob(
    default: Any = MISSING,
    doc: str = "",
    *keys: str,
    factory: Any = MISSING,
    when: Mapping[str, tuple[Any, ...]] | None = None,
    learned: bool = True,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] = (),
) -> Any:
    """A dataclass field with its `Knob`. `factory` instead of `default` for lists, dicts and groups."""
    about = Knob(doc, keys, when, learned, unit, low, high, choices)
    metadata = {"knob": about}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One field of a tree of groups: its dotted path, its value there, its default and its `Knob`."""

    path: str
    value: Any
    default: Any
    knob: Knob


def leaves(node: Any, prefix: str = "") -> Iterator[Leaf]:
    """Every field of a dataclass instance, depth first; nested groups are entered, dicts are leaves."""
    for name, default, about in _declared(node.__class__):
        value = getattr(node, name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield Leaf(f"{prefix}{name}", value, default, about)


@cache
def _declared(cls: type) -> tuple[tuple[str, Any, Knob], ...]:
    """Name, default and knob of each field. A default that is a list is one for all who ask: not to be changed."""
    return tuple((f.name, _default(f), f.metadata.get("knob", Knob())) for f in fields(cls))


def _default(f: Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default
