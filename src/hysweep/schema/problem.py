"""What is wrong with a setting, said so that a person can mend it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher, get_close_matches
from enum import StrEnum


class Stage(StrEnum):
    """When the trainer itself would have stumbled, had we let it start."""

    COMPOSE = "compose"  # the trainer's own configuration refuses it
    START = "start"  # workers come up, GPUs are held
    ROLLOUT = "rollout"  # after the first rollout was paid for
    UPDATE = "update"  # at the first update
    NEVER = "never"  # silently ignored


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


class Unsaid(StrEnum):
    """The value of a problem that has none, unlike one that is empty."""

    VALUE = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: ``key = value: why; cure``. Without a value (`Unsaid.VALUE`) ``key: why; cure``."""

    key: str
    value: object
    why: str
    cure: str
    stage: Stage = Stage.COMPOSE
    severity: Severity = Severity.ERROR

    def __hash__(self) -> int:  # a value may be a list
        return hash((self.key, str(self.value), self.why, self.cure))

    def __str__(self) -> str:
        if self.value is Unsaid.VALUE:
            return f"{self.key}: {self.why}; {self.cure}"
        value = "null" if self.value is None else repr(self.value) if _is_blank(self.value) else self.value
        return f"{self.key} = {value}: {self.why}; {self.cure}"

    def as_dict(self) -> dict[str, object]:
        """For JSON, which has no nan."""
        is_odd = isinstance(self.value, float) and not math.isfinite(self.value)
        value = {"value": str(self.value)} if is_odd else {}
        return asdict(self) | {"stage": str(self.stage), "severity": str(self.severity)} | value


def _is_blank(value: object) -> bool:
    return isinstance(value, str) and not value.strip()


def unreadable_yaml(error: Exception) -> str:
    """Where a YAML file is broken, and how, on one line."""
    mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not what:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {what}"


class BadInput(Exception):
    """The question could not be taken: exit code 2, the problems as text, no traceback."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The names among `known` that `word` was probably meant to be, best first.

    Looks first at the last part of dotted names: the same word elsewhere (``tensor`` for ``parallelism.tensor``),
    initials (``lr`` for ``learning_rate``), a part (``oom`` for ``cuda_oom``), then at spelling.
    """
    as_written = {name.lower(): name for name in known}  # GRPO for grpo, gpus for GPUS
    names, word = list(as_written), word.lower()
    tail, tails = word.rsplit(".", 1)[-1], {name: name.rsplit(".", 1)[-1] for name in names}
    same = [name for name in names if tails[name] == tail]
    initials = [name for name in names if "_" in tails[name] and _initials(tails[name]) == tail]
    longer = [name for name in names if tails[name].startswith(f"{tail}_")]
    parts = [name for name in names if len(tail) > 2 and tail in tails[name].split("_")]
    spelled = get_close_matches(word, names, n=count, cutoff=0.6)
    spelled = [name for name in spelled if _likeness(name, word) > _likeness(spelled[0], word) - 0.15]
    within = set(get_close_matches(tail, tails.values(), n=count, cutoff=0.7))
    group = [n for n in names if tails[n] in within and n.partition(".")[0] == word.partition(".")[0]]
    found = dict.fromkeys(same + initials + longer + parts + group + spelled)
    return [as_written[name] for name in found][:count]


def _likeness(name: str, word: str) -> float:
    return SequenceMatcher(None, word, name).ratio()


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.split("_"))


def suggest(word: str, known: Iterable[str], where: str = "`hysweep show --doc`", below: str = "") -> str:
    """A cure for an unknown name: the nearest ones, or all when they are few; else where they can be seen.
    `below`: what a person has to write before each."""
    known = sorted(known)
    close = nearest(word, known)
    if close:
        return "did you mean " + " or ".join(f"{below}{name}" for name in close) + "?"
    return "choose one of " + ", ".join(known) if 0 < len(known) <= 32 else f"see {where} for what there is"
