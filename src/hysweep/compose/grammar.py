"""Overrides and ranges as Hydra reads them, checked against the schema before Hydra composes anything."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Collection, Mapping
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

from hysweep.compose.condition import Condition, parse_condition
from hysweep.compose.space import SEED, Branch, Choice, Conditional, Dimension, Interval, Space, Zip, half_open, one_of
from hysweep.schema import BadInput, Problem, suggest
from hysweep.schema.override import emit

GRAMMAR_CURE = "quote it for Hydra and the shell, as in 'key=\"a,b\"'; see Hydra's override grammar"
SPACE_CURE = "write choice(a, b), range(1, 10), interval(0, 1), int(interval(1, 8)) or tag(log, interval(1e-6, 1e-4))"
BRANCH_CURE = "write {when: algorithm == grpo, in: 'interval(0.2, 0.4)'}"
ZIP_CURE = "write a list of mappings with the same keys, as in [{rollout.n: 8, trainer.train_batch_size: 64}, ...]"
UNREAD = (HydraException, ValueError, RecursionError)  # a number of 5,000 digits, brackets within brackets
MOST_VALUES = 100_000  # of a range, which is counted out
MOST_SEEDS = 1_000
SHORT_FOR = {"study.sampler": "study.sampler.name", "study.pruner": "study.pruner.name"}
NOT_OF_A_TRIAL = ("study", "space", "sweep")  # they say how to search
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

    fields: Mapping[str, Any]
    groups: dict[str, list[str]]
    dicts: Collection[str] = ()
    aliases: dict[str, str] = field(default_factory=dict)

    def is_field_or_group(self, key: str) -> bool:
        return key in self.fields or key in self.groups or any(f.startswith(f"{key}.") for f in self.fields)

    @property
    def sections(self) -> set[str]:
        """What holds fields: study, study.sampler, trainer, and the like."""
        return {f[:i] for f in self.fields for i, c in enumerate(f) if c == "."} | {"space"}

    def is_list(self, key: str) -> bool:
        return typing.get_origin(self.fields.get(key)) is list

    def is_plain(self, key: str) -> bool:
        return key not in self.dicts and self.is_field_or_group(key)

    def knows(self, key: str) -> bool:
        return self.is_field_or_group(key) or any(key.startswith(f"{name}.") for name in self.dicts)

    def problem(self, key: str, value: Any) -> Problem | None:
        """What is wrong with naming `key` (and, for a group, with choosing `value`)."""
        if key in self.groups and value is not None and value not in self.groups[key]:
            cure = suggest(str(value), self.groups[key])
            if re.fullmatch(r"[A-Za-z][\w-]*", str(value)) and not cure.startswith("did"):
                cure += f"; one of your own: --config-dir DIR, where {key}/{value}.yaml is"
            return Problem(key, value, f"there is no such {key}", cure)
        if self.knows(key):
            return None
        if key in self.aliases:
            return Problem(key, value, "is verl's name for it", f"here it is {self.aliases[key]}")
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
    problems = _without_equals(texts, words)
    for text in texts:
        key, _, right = text.partition("=")
        if not _has_equals(text):
            continue
        try:
            override = parser.parse_override(text)
        except UNREAD as e:
            problems.append(_unread(key, right, e, GRAMMAR_CURE))
            continue
        key = override.key_or_group.removeprefix("/")
        if key in SHORT_FOR and not override.is_delete() and not isinstance(override.value(), dict):
            key = SHORT_FOR[key]
        if key == "hydra.searchpath":
            problems.append(Problem(key, right, "is no place that options are taken from", "give --config-dir DIR"))
        if key.startswith(("hydra.", "hydra/")) or key == "hydra":
            continue  # how Hydra itself runs: not a matter of what a trial is
        if override.package is not None:
            problems.append(
                Problem(f"{key}@{override.package}", right, "is no place that there is", f"write {key}={right}")
            )
            continue
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
        if key == "study.pruners":
            right = _spelled_out(right, value)
        if words.fields.get(key) is str and isinstance(value, (bool, int, float)):
            right = emit(right.strip())  # 0.5_5, 1_000 and 220e903 are numbers to Hydra; the field takes the text
        fixed[key] = text if override.is_delete() else assignment(key, right, words)
        space.pop(key, None)
    if problems:
        raise BadInput(*problems)
    return Assignments(tuple(fixed.values()), space)


def _spelled_out(text: str, value: Any) -> str:
    """`[nan,median]` as a list of rules; to Hydra the first of them is a number."""
    rules = (
        [value.text if isinstance(value, QuotedString) else value] if isinstance(value, (str, QuotedString)) else value
    )
    if not isinstance(rules, list):
        return text
    named = ["nan" if isinstance(rule, float) and math.isnan(rule) else rule for rule in _plain(rules)]
    return emit([{"name": rule} if isinstance(rule, str) else rule for rule in named])


def assignment(key: str, text: str, words: Vocabulary) -> str:
    """`key=text` as Hydra takes it. A dict takes new keys: Hydra wants to be told so, a person need not."""
    return f"{'' if words.is_plain(key) else '++'}{key}={text}"


def parse_space(space: dict[str, Any], words: Vocabulary, given: dict[str, Dimension] | None = None) -> Space:
    """The `space:` of a sweep file, and the dimensions that a command line has given beside it, which win.

    A text is one of Hydra's ranges, a list a choice, a list of mappings with `in` a range under conditions; one value
    is a constant. `zip` (and `zip.NAME`) sets several keys together; `filter` and `seeds` are about whole points.
    Raises BadInput with every fault at once.
    """
    dimensions: dict[str, Dimension] = {}
    filters: list[Condition] = []
    seeds: tuple[int, ...] = ()
    problems: list[Problem] = []
    for key, content in space.items():
        try:
            if key == "filter":
                texts = content if isinstance(content, list) else [content]
                filters = [parse_condition(text, words, "space.filter") for text in texts]
            elif key == "seeds":
                seeds = _seeds(content)
            elif key == "zip" or key.startswith("zip."):
                dimensions[key] = _zip(key, content, words)
            elif isinstance(content, list) and any(isinstance(e, dict) and {"in", "when"} & set(e) for e in content):
                dimensions[key] = _conditional(key, content, words)
            elif isinstance(content, dict) and key not in words.dicts:
                inner = next((f"{key}.{name}" for name in content if f"{key}.{name}" in words.fields), None)
                cure = BRANCH_CURE if {"in", "when"} & set(content) else SPACE_CURE
                cure = f"write {inner}: {content[inner.rpartition('.')[2]]}" if inner else cure
                problems.append(Problem(f"space.{key}", content, "is no range", cure))
            else:
                dimensions[key] = _written(key, content, words)
        except BadInput as e:
            problems += e.problems
        except (TypeError, ValueError) as e:  # of `emit`: what YAML knows and no override can say, as !!binary
            problems.append(Problem(f"space.{key}", content, str(e), SPACE_CURE))
    if seeds and SEED in (given or {}):
        problems.append(Problem(SEED, "a range", "is what seeds are for", "leave space.seeds out, or the range"))
    if problems:
        raise BadInput(*problems)
    return Space(dimensions | (given or {}), filters, seeds)


def _written(key: str, content: Any, words: Vocabulary) -> Choice | Interval:
    """A range or a constant of a sweep file."""
    if isinstance(content, list):
        content = one_of([emit(v) for v in content])
    text = content if isinstance(content, str) else emit(content)
    try:
        override = OverridesParser.create().parse_override(f"{key}={text}")
    except UNREAD as e:
        raise BadInput(_unread(f"space.{key}", text, e, SPACE_CURE)) from e
    if override.is_sweep_override():
        return _dimension(key, override, words)
    value = _plain(override.value())
    if value is None or value == "":
        raise BadInput(Problem(f"space.{key}", text, "is nothing to search", SPACE_CURE))
    if fault := words.problem(key, value):
        raise BadInput(fault)
    return Choice(key, (value,), (emit(value),))


def _conditional(key: str, content: list[Any], words: Vocabulary) -> Conditional:
    branches: list[Branch] = []
    problems: list[Problem] = []
    for i, branch in enumerate(content, start=1):
        where = f"space.{key}[{i}]"
        if not isinstance(branch, dict) or "in" not in branch or set(branch) - {"in", "when"}:
            problems.append(Problem(where, branch, "is no range under a condition", BRANCH_CURE))
            continue
        try:
            when = parse_condition(branch["when"], words, f"{where}.when") if "when" in branch else None
            if when and any(name == key or name.startswith(f"{key}.") for name in when.keys):
                problems.append(Problem(f"{where}.when", when.text, "depends on itself", BRANCH_CURE))
            branches.append(Branch(when, _written(key, branch["in"], words)))
        except BadInput as e:
            problems += e.problems
        if "when" not in branch and i < len(content):
            problems.append(Problem(where, branch, "has no condition, so none after it can apply", "put it last"))
    if problems:
        raise BadInput(*problems)
    return Conditional(key, tuple(branches))


def _zip(key: str, content: Any, words: Vocabulary) -> Zip:
    rows = content if isinstance(content, list) else []
    keys = set(rows[0]) if rows and isinstance(rows[0], dict) else set()
    if not keys or any(not isinstance(row, dict) or set(row) != keys for row in rows):
        raise BadInput(Problem(f"space.{key}", content, "is no list of settings that go together", ZIP_CURE))
    problems = [
        fault for row in rows for name, value in row.items() if (fault := words.problem(str(name), _option(value)))
    ]
    if problems:
        raise BadInput(*dict.fromkeys(problems))
    texts = [", ".join(f"{name}={emit(value)}" for name, value in row.items()) for row in rows]
    unique = dict(zip(texts, rows, strict=True))
    return Zip(key, Choice(key, tuple(unique.values()), tuple(unique)))


def _option(value: Any) -> Any:
    """For `Vocabulary.problem`, which takes None for: whatever the option."""
    return "null" if value is None else value


def _seeds(content: Any) -> tuple[int, ...]:
    """How many replicates, whose seeds are then 1, 2, ...; or their seeds."""
    cure = "write seeds: 3, or seeds: [11, 12, 13]"
    seeds = list(range(1, content + 1)) if isinstance(content, int) and not isinstance(content, bool) else content
    if not isinstance(seeds, list) or not seeds or len(seeds) > MOST_SEEDS:
        raise BadInput(Problem("space.seeds", content, f"is no number of seeds from 1 to {MOST_SEEDS}", cure))
    if any(not isinstance(s, int) or isinstance(s, bool) or s < 0 for s in seeds) or len(set(seeds)) < len(seeds):
        raise BadInput(Problem("space.seeds", content, "are no different whole numbers", cure))
    return tuple(seeds)


def _dimension(key: str, override: Override, words: Vocabulary) -> Choice | Interval:
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
    _refuse_endless(key, text, low, high)
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
    _refuse_endless(key, text, start, stop, step)
    if step and (stop - start) / step > MOST_VALUES:
        raise BadInput(Problem(key, text, f"has more than {MOST_VALUES:,} values", "write int(interval(...))"))
    values = half_open(start, stop, step) if step else ()
    if not values:
        raise BadInput(
            Problem(key, text, "is empty", "range(start, stop, step) ends before stop, for whole and real numbers")
        )
    return Choice(key, values, tuple(emit(v) for v in values))


def _has_equals(text: str) -> bool:
    """Whether it can be an override: KEY=VALUE, or ~KEY to take something out."""
    return text.lstrip().startswith("~") or text.find("=") > 0


def _without_equals(texts: Collection[str], words: Vocabulary) -> list[Problem]:
    """Of words that are no override, as `rollout.tensor 8`: one fault for a key and the value behind it."""
    pairs: list[tuple[str, str]] = []
    is_behind_key = False
    for text in texts:
        if _has_equals(text):
            is_behind_key = False
            continue
        for word in filter(None, re.split(r"[\s:=]+", text)):
            if is_behind_key and not words.knows(word.lstrip("+")):
                pairs[-1] = (pairs[-1][0], word)
                is_behind_key = False
            else:
                pairs.append((word, ""))
                is_behind_key = words.knows(word.lstrip("+")) or "." in word
    return [_of_two_words(key, value, words) for key, value in pairs]


def _of_two_words(key: str, value: str, words: Vocabulary) -> Problem:
    if not words.knows(key.lstrip("+")) and (fault := words.problem(key.lstrip("+"), value or "(nothing)")):
        return fault
    why = "there is no =: an override is one word, KEY=VALUE"
    return Problem(key, value or "(nothing)", why, f"write {key}={value or 'VALUE'}")


def _refuse_endless(key: str, text: str, *numbers: float) -> None:
    if any(isinstance(n, float) and not math.isfinite(n) for n in numbers):
        raise BadInput(Problem(key, text, "its ends are no finite numbers", SPACE_CURE))


def _unread(key: str, text: str, error: Exception, cure: str) -> Problem:
    """What Hydra could not read; its choice() takes no null, and says so in words of Python's types."""
    inner = re.fullmatch(r"\s*choice\((.*)\)\s*", text, re.DOTALL)
    if inner and "NoneType" in str(error):
        return Problem(key, text, "choice() takes no null", f"write the values alone: {inner[1].strip()}")
    if unknown := re.search(r"Unknown function '(\w+)'", str(error)):
        return Problem(key, text, f"there is no range {unknown[1]}()", SPACE_CURE)
    if not re.search("[\"'\\\\]", text):  # of brackets in quotes nothing is said
        odd = [o for o, c in ("()", "[]", "{}") if text.count(o) > text.count(c)]
        if odd:
            return Problem(key, text, f"a {odd[0]} in it is not closed", "close it")
    return Problem(key, text, _first_line(error), cure)


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
