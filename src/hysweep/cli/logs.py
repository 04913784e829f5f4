"""`hysweep logs`: what an attempt said; with --follow what it says, over requeues and retries to the end."""

from __future__ import annotations

import re
import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from pathlib import Path

from hysweep.cli.address import directory_at, known_in, trial_at
from hysweep.cli.say import say
from hysweep.schema import BadInput, Problem
from hysweep.schema.spelled import spelled_out
from hysweep.track import AttemptDirectory, StudyDirectory, TrialDirectory

LOOK_S = 0.3
_PIECE = 1 << 20  # bytes read at once
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


class Tail:
    """One file, read as it grows. It may not be there yet, be shortened, or be another one by now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0
        self._file_id: tuple[int, int] | None = None

    def read(self) -> Iterator[bytes]:
        """What came in since the last time."""
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below; opening may fail, reading may not
        except FileNotFoundError:
            return
        with file:
            stat = self.path.stat()
            if (stat.st_dev, stat.st_ino) != self._file_id or stat.st_size < self._at:
                self._file_id, self._at = (stat.st_dev, stat.st_ino), 0
            file.seek(self._at)
            while piece := file.read(_PIECE):
                self._at += len(piece)
                yield piece


class Printer:
    """Prints pieces of one or several files; of several it says which, as `tail` does. A terminal is given the text and
    its colours, and nothing else that would steer it; a pipe no colours, which Ray gives to what it says."""

    def __init__(self, is_headed: bool) -> None:
        self._is_headed = is_headed
        self._decoder = getincrementaldecoder("utf-8")("replace") if sys.stdout.isatty() else None
        self._last: Path | None = None
        self._ends_line = True
        self.has_printed = False

    def print(self, tail: Tail) -> None:
        for piece in tail.read():
            if self._is_headed and tail.path != self._last:
                self.line(f"==> {tail.path.name} <==")
            self._last = tail.path
            self._write(piece)
            self.has_printed = True

    def line(self, text: str) -> None:
        self._write(("" if self._ends_line else "\n").encode() + text.encode() + b"\n")

    def _write(self, piece: bytes) -> None:
        if self._decoder is not None:
            piece = spelled_out(self._decoder.decode(piece), is_log=True).encode()
        else:
            piece = _COLOUR.sub(b"", piece)
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        self._ends_line = piece.endswith(b"\n")


def logs(path: Path, address: str | None, rank: int | None, number: int | None, follow: bool) -> int:
    """Returns 0, or 1 where there is nothing to print."""
    directory = directory_at(path)
    trial = trial_at(directory, address) if address is not None else _only(directory)
    attempt = _attempt(trial, number, rank)
    nodes = (attempt.job() or {}).get("nodes")
    if rank is not None and isinstance(nodes, int) and rank >= nodes:
        one = "one node, of rank 0" if nodes == 1 else f"{nodes} nodes, of ranks 0 to {nodes - 1}"
        raise BadInput(Problem("--rank", rank, f"attempt {attempt.number} has {one}", "give one of these"))
    is_tty = sys.stdout.isatty()
    printer = Printer(is_headed=rank is not None)
    while True:
        if follow or is_tty:
            say(f"trial {trial.number} ({trial.id[:6]}), attempt {attempt.number}", err=True)
        tails = [Tail(file) for file in _files(attempt, rank)]
        if follow:
            if (following := _follow(directory, trial, attempt, rank, tails, printer)) is None:
                return 0
            attempt = following
        else:
            for tail in tails:
                printer.print(tail)
            if not printer.has_printed:
                names = " nor ".join(t.path.name for t in tails)
                why = _why_nothing(trial)
                say(f"nothing yet: {attempt.path} has no {names}, or it is empty{why}", err=True)
            return 0 if printer.has_printed else 1


def _follow(
    directory: StudyDirectory,
    trial: TrialDirectory,
    attempt: AttemptDirectory,
    rank: int | None,
    tails: Sequence[Tail],
    printer: Printer,
) -> AttemptDirectory | None:
    """Print an attempt to its end. Returns the one that began after it."""
    has_told, waits_for = False, ""
    while True:
        # looked at first: what was written before it is printed below
        end = attempt.end()
        following = next((a for a in _begun(trial, rank) if a.number > attempt.number), None)
        state = trial.state()
        for tail in tails:
            printer.print(tail)
        if end is not None and not has_told:
            has_told = True
            say(f"attempt {attempt.number}: {end.cause}" + (f": {end.reason}" if end.reason else ""), err=True)
        if following is not None:
            return following
        if state.is_final:
            if end is None:
                say(f"it ended by {state.cause}: {state.reason}", err=True)
            return None
        if attempt.claimed() is None and state.reason not in ("", waits_for):
            waits_for = state.reason
            say(f"waits: {waits_for}", err=True)
        if state.is_refused:
            return None
        if end is not None and not (directory.path / "driver.json").exists() and not _may_run_again(attempt):
            say(f"nobody drives the study: hysweep resume {directory.path}", err=True)
            return None
        time.sleep(LOOK_S)


def _why_nothing(trial: TrialDirectory) -> str:
    """What the trial waits for, or why it never began, where somebody has said so."""
    state = trial.state()
    if state.is_final:
        return f"; it ended by {state.cause}" + (f": {state.reason}" if state.reason else "")
    if state.began:
        return "; its job has begun, and no node of it has said a word yet"
    return f"; it waits: {state.reason}" if state.reason else ""


def _may_run_again(attempt: AttemptDirectory) -> bool:
    """Whether the scheduler has put the job back to the queue: the node's last word says so."""
    try:
        said = attempt.node_log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return bool(said) and said[-1].endswith(" requeued")


def _files(attempt: AttemptDirectory, rank: int | None) -> list[Path]:
    """The trainer's log, or what a node said: its supervisor, then its Ray."""
    return [attempt.driver_log] if rank is None else [attempt.node_log_of(rank), attempt.ray_log(rank)]


def _only(directory: StudyDirectory) -> TrialDirectory:
    trials = directory.trials()
    if len(trials) == 1:
        return trials[0]
    why = f"the study has {len(trials)} trials"
    cure = f"name one: {known_in(directory)}" if trials else "wait until it has one"
    raise BadInput(Problem("TRIAL", "not given", why, cure))


def _begun(trial: TrialDirectory, rank: int | None) -> list[AttemptDirectory]:
    """But for what a job, or who drives the study, has made of one that never began."""
    newest = trial.state().attempt
    return [
        a
        for a in trial.attempts()
        if a.number <= newest or a.claimed() is not None or any(file.exists() for file in _files(a, rank))
    ]


def _attempt(trial: TrialDirectory, number: int | None, rank: int | None) -> AttemptDirectory:
    attempts = trial.attempts()
    if not attempts:
        why = f"trial {trial.number} has none yet{_why_nothing(trial)}"
        raise BadInput(Problem("--attempt", number or "newest", why, "look with `hysweep status`"))
    if number is None:
        return (_begun(trial, rank) or attempts)[-1]
    if number not in [a.number for a in attempts]:
        there = ", ".join(str(a.number) for a in attempts)
        raise BadInput(Problem("--attempt", number, f"trial {trial.number} has no such", f"there is {there}"))
    return trial.attempt(number)
