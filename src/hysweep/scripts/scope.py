"""What a script knows while it is read: its variables, and what was noted on the way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hysweep.schema import BadInput, Problem

# Within a text, a variable of the environment that the script gives no value, and a piece that was not understood.
# `bash.decode` lets neither character into a script.
ENV, PIECE, END = "\x01", "\x02", "\x03"
MARK = re.compile("[\x01\x02]([^\x03]*)\x03")
LONGEST = 1_000_000  # characters of a value
ALWAYS_SET = ("HOME", "PWD", "USER", "LOGNAME", "SHELL", "PATH", "HOSTNAME", "TMPDIR")


class Word(NamedTuple):
    """One field of a command line or of an array, and the line that it comes from."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person should know of one line of the script."""

    line: int
    text: str
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}: {self.what}"


@dataclass(slots=True)
class Scope:
    """The variables of a script that is being read. `given` is what the environment has, by the caller's word."""

    given: Mapping[str, str]
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    positional: list[Word] = field(default_factory=list)
    defaults: dict[str, tuple[str, int]] = field(default_factory=dict)  # what it would read of the environment
    needed: dict[str, int] = field(default_factory=dict)  # and what it must find there
    notes: list[Note] = field(default_factory=list)
    pieces: list[Note] = field(default_factory=list)

    def note(self, line: int, text: str, what: str) -> None:
        found = Note(line, " ".join(text.split())[:100], what)
        if found not in self.notes:
            self.notes.append(found)

    def piece(self, line: int, text: str, what: str = "not understood") -> str:
        """Text that stands for a value that nobody knows."""
        self.pieces.append(Note(line, " ".join(text.split())[:100], what))
        return f"{PIECE}{len(self.pieces) - 1}{END}"

    def assign(self, name: str, value: str) -> None:
        if PIECE in value and name in self.given:
            value = self.given[name]
        if len(value) > LONGEST:
            raise BadInput(Problem(name, f"{len(value):,} characters", "grows without end", "mend the script"))
        self.variables[name] = value
        self.arrays.pop(name, None)

    def is_set(self, name: str) -> bool:
        return name in self.variables or name in self.arrays or name in self.given

    def value(self, name: str) -> str | None:
        """None for a variable that nothing has set."""
        if name in self.variables:
            return self.variables[name]
        if name in self.arrays:
            return self.arrays[name][0].text if self.arrays[name] else ""
        return self.given.get(name)

    def read(self, name: str, line: int) -> str:
        """As a script reads it: a variable that nothing sets is the environment's."""
        value = self.value(name)
        if value is None:
            if name not in ALWAYS_SET:
                self.needed.setdefault(name, line)
            return f"{ENV}{name}{END}"
        return value

    def unset(self, name: str) -> None:
        self.variables.pop(name, None)
        self.arrays.pop(name, None)

    def known(self, text: str) -> str | None:
        """A text as a condition sees it: what the environment lacks is empty. None where a piece is not known."""
        if PIECE in text:
            return None
        return MARK.sub(lambda m: f"/{m[1]}" if m[1] in ALWAYS_SET else "", text)
