"""Overrides and ranges as Hydra reads them, checked against the schema before Hydra composes anything."""

from __future__ import annotations

import re
import typing
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    IntervalSweep,
    Override,
    QuotedString,
    RangeSweep,
)
from hydra.errors import HydraException

from hysweep.compose.space import Choice, Dimension, Interval, half_open
from hysweep.schema import BadInput, Problem, suggest
from hysweep.schema.override import emit

GRAMMAR_CURE = "quote it for Hydra and the shell, as in 'key=\"a,b\"'; see Hydra's override grammar"
SPACE_CURE = "write choice(a, b), range(1, 10), interval(0, 1), int(interval(1, 8)) or tag(log, interval(1e-6, 1e-4))"
MOST_VALUES = 100_000  # of a range, which is counted out
OPTIONAL_GROUPS = ("experiment", "sweep")


@dataclass(frozen=True, slots=True)
class Assignments:
    """A command line, sorted: `fixed` override texts as they were given, and the dimensions of a sweep."""

    fixed: tuple[str, ...]
    space: dict[str, Dimension]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The keys that exist.

    fields   with their types
    groups   with their options
    dicts    fields that take any key below them
    aliases  what people call a field elsewhere: the trainer's key for it
    """

    fields: dict[str, Any]
    groups: dict[str, list[str]]
    dicts: Collection[str] = ()
    aliases: dict[str, str] = field(default_factory=dict)

    def is_field_or_group(self, key: str) -> bool:
        return key in self.fields or key in self.groups or any(f.startswith(f"{key}.") for f in self.fields)

    def is_list(self, key: str) -> bool:
        return typing.get_origin(self.fields.get(key)) is list

    def is_plain(self, key: str) -> bool:
        return key not in self.dicts and self.is_field_or_group(key)

    def knows(self, key: str) -> bool:
        return self.is_field_or_group(key) or any(key.startswith(f"{name}.") for name in self.dicts)

    def problem(self, key: str, value: Any) -> Problem | None:
        """What is wrong with naming `key` (and, for a group, with choosing `value`)."""
        if key in self.groups and value is not None and value not in self.groups[key]:
            return Problem(key, value, f"there is no such {key}", suggest(str(value), self.groups[key]))
        if self.knows(key):
            return None
        if key in self.aliases:
            return Problem(key, value, "is the trainer's name for it", f"here it is {self.aliases[key]}")
        return Problem(
            key,
            value,
            "there is no such key",
            suggest(key, self.fields if "." in key else [*self.groups, *self.fields]),
        )


def parse_overrides(texts: Collection[str], words: Vocabulary) -> Assignments:
    """Sort a command line into what is fixed and what varies. Raises BadInput with every fault at once."""
    parser = OverridesParser.create()
    fixed: dict[str, str] = {}
    space: dict[str, Dimension] = {}
    problems: list[Problem] = []
    for text in texts:
        key, _, right = text.partition("=")
        try:
            override = parser.parse_override(text)
        except HydraException as e:
            problems.append(Problem(key, right, _first_line(e), GRAMMAR_CURE))
            continue
        key = override.key_or_group.removeprefix("/")
        if key.startswith(("hydra.", "hydra/")) or key == "hydra":
            continue  # how Hydra itself runs: not a matter of what a trial is
        if override.is_sweep_override():
            try:
                space[key] = _dimension(key, override, words)
                fixed.pop(key, None)
            except BadInput as e:
                problems += e.problems
            continue
        value = None if override.is_delete() else override.value()
        if key in words.groups and value is None:
            if key not in OPTIONAL_GROUPS:
                problems.append(Problem(key, right, "is needed", suggest("", words.groups[key])))
            fixed.pop(key, None)  # none is what these groups have when nothing is said
            continue
        if fault := words.problem(key, value):
            problems.append(fault)
        if words.is_list(key) and isinstance(value, (str, QuotedString)):
            right = f"[{right}]"  # one is a list of one
        if words.fields.get(key) is str and isinstance(value, (bool, int, float)):
            right = emit(right.strip())  # 0.5_5, 1_000 and 220e903 are numbers to Hydra; the field takes the text
        fixed[key] = text if override.is_delete() else assignment(key, right, words)
        space.pop(key, None)
    if problems:
        raise BadInput(*problems)
    return Assignments(tuple(fixed.values()), space)


def assignment(key: str, text: str, words: Vocabulary) -> str:
    """`key=text` as Hydra takes it. A dict takes new keys: Hydra wants to be told so, a person need not."""
    return f"{'' if words.is_plain(key) else '++'}{key}={text}"


def parse_space(space: dict[str, Any], words: Vocabulary) -> dict[str, Dimension]:
    """The `space:` of a sweep file. A list is a choice; a text is one of Hydra's ranges; anything else is a fault."""
    parser = OverridesParser.create()
    dimensions: dict[str, Dimension] = {}
    problems: list[Problem] = []
    for key, text in space.items():
        if isinstance(text, list):
            text = "choice(" + ",".join(emit(v) for v in text) + ")"
        try:
            override = parser.parse_override(f"{key}={text}")
            if not override.is_sweep_override():
                problems.append(Problem(f"space.{key}", text, "one value is no range to search", SPACE_CURE))
                continue
            dimensions[key] = _dimension(key, override, words)
        except HydraException as e:
            problems.append(Problem(f"space.{key}", text, _first_line(e), SPACE_CURE))
        except BadInput as e:
            problems += e.problems
    if problems:
        raise BadInput(*problems)
    return dimensions


def _dimension(key: str, override: Override, words: Vocabulary) -> Dimension:
    value = override.value()
    text = override.input_line.partition("=")[2] if override.input_line else str(value)
    fault = words.problem(key, None)
    if fault:
        raise BadInput(Problem(key, text, fault.why, fault.cure))
    if isinstance(value, Glob):
        names = value.filter(words.groups.get(key, []))
        if not names:
            raise BadInput(Problem(key, text, "matches none of its options", suggest(key, words.groups.get(key, []))))
        return Choice(key, tuple(names), tuple(names))
    if key in words.groups and not isinstance(value, ChoiceSweep):
        raise BadInput(Problem(key, text, "its options are names", suggest("", words.groups[key])))
    if isinstance(value, IntervalSweep):
        return _interval(key, text, value, words)
    if isinstance(value, RangeSweep):
        return _range(key, text, value)
    assert isinstance(value, ChoiceSweep)
    elements = [_plain(e) for e in value.list]
    if words.is_list(key):
        elements = [[e] if isinstance(e, str) else e for e in elements]
    # within choice() Hydra hands over strings without their quotes: they are put back where they are needed
    texts = [emit(e) for e in elements]
    faults = [
        fault
        for element in elements
        if key in words.groups and (fault := words.problem(key, "null" if element is None else element))
    ]
    if faults:
        raise BadInput(*faults)
    if not elements:
        raise BadInput(Problem(key, text, "nothing to choose from", SPACE_CURE))
    if words.fields.get(key) is str:
        written = {part.strip() for part in re.split(r"[,()]", text)}
        for element, emitted in zip(elements, texts, strict=True):
            if isinstance(element, (bool, int, float)) and emitted not in written:
                why = f"one of its values reads as the number {emitted}, and the field takes a text"
                raise BadInput(Problem(key, text, why, "put each in quotes: choice('0.5_5','2.0')"))
    unique = dict(zip(texts, elements, strict=True))  # the same value twice is one value
    return Choice(key, tuple(unique.values()), tuple(unique))


def _interval(key: str, text: str, value: IntervalSweep, words: Vocabulary) -> Interval:
    low, high = value.start, value.end
    assert low is not None and high is not None
    if low >= high:
        raise BadInput(Problem(key, text, f"is empty: {low} is not below {high}", "put the lower end first"))
    is_log = "log" in value.tags
    if unknown := set(value.tags) - {"log"}:
        raise BadInput(Problem(key, text, f"no such tag: {', '.join(sorted(unknown))}", "the tag is log"))
    if is_log and low <= 0:
        raise BadInput(
            Problem(key, text, f"a logarithmic range cannot reach {low}", "start above 0, or leave the tag out")
        )
    whole = isinstance(low, int) and isinstance(high, int)
    if not whole and words.fields.get(key) is int:
        # interval() always hands over real numbers; a whole number wants whole points
        if low != int(low) or high != int(high):
            raise BadInput(Problem(key, text, "the field takes whole numbers", "give whole ends"))
        whole = True
    return Interval(key, int(low) if whole else low, int(high) if whole else high, is_log, whole)


def _range(key: str, text: str, value: RangeSweep) -> Choice:
    start, stop, step = value.start, value.stop, value.step
    assert start is not None and stop is not None
    if step and (stop - start) / step > MOST_VALUES:
        raise BadInput(Problem(key, text, f"has more than {MOST_VALUES:,} values", "write int(interval(...))"))
    values = half_open(start, stop, step) if step else ()
    if not values:
        raise BadInput(
            Problem(key, text, "is empty", "range(start, stop, step) ends before stop, for whole and real numbers")
        )
    return Choice(key, values, tuple(emit(v) for v in values))


def _plain(element: Any) -> Any:
    """A parsed element as the plain value that a person would name."""
    if isinstance(element, QuotedString):
        return element.text
    if isinstance(element, list):
        return [_plain(e) for e in element]
    if isinstance(element, dict):
        return {_plain(k): _plain(v) for k, v in element.items()}
    return element


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
