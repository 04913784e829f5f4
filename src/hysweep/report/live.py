"""The live view: what is on the screen, and what each key does to it. It decides; whoever shows it reads the keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from hysweep.report import words
from hysweep.report.records import StudyRecord, TrialRecord
from hysweep.report.terminal import by_activity, live_table

_KEYS = "↑↓ choose   s sort   r reverse   l log   c cancel   q leave"
_LOG_KEYS = "↑↓ PgUp PgDn scroll   l or Esc back   q leave"
_MOST_FAULTS = 3  # more would hide the trials
_LOG_BYTES = 1 << 18  # of the end of a log: what somebody scrolls through


class Request(StrEnum):
    """What the view wants of whoever shows it."""

    LEAVE = "leave"
    CANCEL = "cancel"  # the trial that is selected


def _most_steps(trial: TrialRecord) -> int:
    return -(trial.last_step if trial.last_step is not None else -1)


# What `s` goes through: the name of an order, and how trials lie in it.
ORDERS: dict[str, Callable[[StudyRecord], Sequence[TrialRecord]]] = {
    "activity": by_activity,
    "result": lambda record: record.ranked,
    "trial": lambda record: record.trials,
    "state": lambda record: sorted(record.trials, key=lambda t: (list(record.counts).index(t.standing), t.number)),
    "steps": lambda record: sorted(record.trials, key=_most_steps),
    "GPU-hours": lambda record: sorted(record.trials, key=lambda t: -t.gpu_hours),
}


@dataclass
class LiveView:
    """How trials lie (order, is_reversed), the number of the one that is selected, and whether its log is open, and
    scrolled up by so many lines (up)."""

    order: str = next(iter(ORDERS))
    is_reversed: bool = False
    selected: int | None = None
    has_log: bool = False
    up: int = 0
    asks: bool = False
    message: str = ""

    def press(self, key: str, record: StudyRecord) -> Request | None:
        """Take a key: a character, or up, down, page up, page down, enter, escape."""
        self.message = ""
        if self.asks:
            self.asks = False
            return Request.CANCEL if key in ("y", "Y") else None
        if key in ("q", "Q"):
            return Request.LEAVE
        if self.has_log:
            self._scroll(key)
        elif key == "s":
            names = list(ORDERS)
            self.order, self.is_reversed = names[(names.index(self.order) + 1) % len(names)], False
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif (steps := {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}.get(key)) is not None:
            self._choose(steps, record)
        elif key == "escape":
            self.selected = None
        elif key in ("l", "enter", "c"):
            self._act(key, record)
        return None

    def _choose(self, by: int, record: StudyRecord) -> None:
        numbers = [t.number for t in self.trials(record)]
        if not numbers:
            return
        at = numbers.index(self.selected) + by if self.selected in numbers else 0 if by > 0 else len(numbers) - 1
        self.selected = numbers[max(0, min(at, len(numbers) - 1))]

    def _act(self, key: str, record: StudyRecord) -> None:
        trial = record.trial(self.selected) if self.selected is not None else None
        if trial is None and len(record.trials) == 1:
            trial = record.trials[0]
            self.selected = trial.number
        if trial is None:
            self.message = "choose a trial first: ↑ ↓"
        elif key != "c":
            self.has_log, self.up = True, 0
        elif trial.state.is_final:
            self.message = f"trial {trial.number} has ended: {trial.word}"
        else:
            self.asks = True

    def _scroll(self, key: str) -> None:
        if key in ("l", "escape", "enter"):
            self.has_log = False
        steps = {"up": 1, "k": 1, "down": -1, "j": -1, "page up": 20, "page down": -20}.get(key, 0)
        self.up = max(0, self.up + steps)

    def trials(self, record: StudyRecord) -> list[TrialRecord]:
        found = list(ORDERS[self.order](record))
        return found[::-1] if self.is_reversed else found

    def draw(self, record: StudyRecord, width: int, height: int, keys: bool = True) -> RenderableType:
        """At most `height` lines of `width` columns. `keys`: there is somebody who can press them."""
        chosen = record.trial(self.selected) if self.selected is not None else None
        if self.has_log and chosen is not None:
            return self._log(record, chosen, width, height)
        notes = [Text(words.clean(fault, 400), style="red") for fault in record.faults[:_MOST_FAULTS]]
        if self.message:
            notes.append(Text(words.clean(self.message, 400), style="yellow"))
        if self.asks and chosen is not None:
            told = f"cancel trial {chosen.number} {record.label(chosen)}, for good? y, or any other key"
            notes.append(Text(words.clean(told, 400), style="bold red"))
        elif keys:
            sorting = "" if self.order == "activity" and not self.is_reversed else f"   by {self.order}"
            notes.append(Text(_KEYS + sorting + (" ↑" if self.is_reversed else ""), style="dim"))
        trials = self.trials(record)
        return live_table(record, width=width, height=height, trials=trials, selected=self.selected, notes=notes)

    def _log(self, record: StudyRecord, trial: TrialRecord, width: int, height: int) -> RenderableType:
        room = max(1, height - 2)
        attempts = trial.attempts
        file = trial.directory.attempt(attempts[-1].number).driver_log if attempts else None
        lines = last_lines(file) if file else []
        self.up = min(self.up, max(0, len(lines) - room))
        end = len(lines) - self.up
        shown = lines[max(0, end - room) : end] or [words.clean(f"nothing yet: {trial.word} {trial.state.reason}", 400)]
        of = f", attempt {attempts[-1].number}" if len(attempts) > 1 else ""
        title = Text(f"trial {trial.number} {record.label(trial)}{of} · {trial.word} · {file or ''}", style="bold")
        body = [title, *(Text(line) for line in shown), Text(_LOG_KEYS, style="dim")]
        for line in body:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*body)


def last_lines(path: Path) -> list[str]:
    """The end of a log, harmless to a terminal; of a line that a progress bar wrote over, what was left of it."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = text.split("\n")[size > _LOG_BYTES :]
    shown = [words.plain(line.rstrip("\r").rpartition("\r")[2], 2000) for line in lines]
    return shown[:-1] if shown and not shown[-1] else shown
