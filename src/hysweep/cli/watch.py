"""`hysweep watch`, and what the foreground controller shows: a screen with keys, or plain lines where there is none."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from hysweep.cli.address import study_at
from hysweep.cli.say import say
from hysweep.report import StudyRecord, change_lines, read_study
from hysweep.report.live import LiveView, Request
from hysweep.study.lease import holder
from hysweep.track import StudyDirectory

REFRESH_S = 1.0
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
_NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\r": "enter", "\n": "enter", "\x1b": "escape",
}  # fmt: skip


def watch(path: Path, interval_s: float) -> int:
    """Show a study until somebody leaves; without a terminal, until nothing of it is under way."""
    directory = study_at(path)
    record = read_study(directory)
    has_told = False
    with opened(directory) as shown:
        while True:
            shown.show(record)
            if not shown.has_reader and not has_told and record.is_live and not _is_driven(directory):
                has_told = True
                shown.say(f"nobody drives the study; what is queued may still run: hysweep resume {directory.path}")
            if shown.wait(interval_s):
                return 0
            if not shown.has_reader and not record.is_live and not _is_driven(directory):
                return 0
            record = read_study(directory, previous=record)


def _is_driven(directory: StudyDirectory) -> bool:
    there = holder(directory)
    return there is not None and not there.is_over


class Lines:
    """For a file or a pipe: a line for each change."""

    has_reader = False

    def __init__(self, known: StudyRecord | None) -> None:
        self._before = known

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, record: StudyRecord) -> None:
        for line in change_lines(self._before, record):
            say(line)
        self._before = record

    def say(self, text: str) -> None:
        if text:
            say(text, err=True)

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False


class Screen:
    """The whole terminal, as long as it is entered. A trial is cancelled by `hysweep cancel`, in a process of its own:
    that works whoever drives the study, and where nobody does."""

    has_reader = True

    def __init__(self, directory: StudyDirectory, console: Console) -> None:
        self._directory, self._console = directory, console
        self._view = LiveView()
        self._live = Live(console=console, auto_refresh=False, screen=True)
        self._record: StudyRecord | None = None
        self._keyboard: int | None = None
        self._stack = ExitStack()
        self._cancelling: subprocess.Popen[str] | None = None

    def __enter__(self) -> Screen:
        self._keyboard = _keyboard(self._stack)
        self._stack.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, record: StudyRecord) -> None:
        self._record = record
        self._look_after_cancel()
        width, height = self._console.size
        drawn = self._view.draw(record, width, height, keys=self._keyboard is not None)
        self._live.update(drawn, refresh=True)

    def say(self, text: str) -> None:
        self._view.message = text

    def wait(self, seconds: float) -> bool:
        """Take keys for so long. True when somebody wants to leave."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._keyboard is None:
                time.sleep(left)
                return False
            if not select.select([self._keyboard], [], [], left)[0]:
                continue
            typed = os.read(self._keyboard, 1024).decode(errors="replace")
            if not typed:  # the terminal is gone
                return True
            for key in _KEY.findall(typed):
                if self._take(_NAMES.get(key, key)):
                    return True
        return False

    def _take(self, key: str) -> bool:
        if self._record is None:
            return key in ("q", "Q")
        asked = self._view.press(key, self._record)
        if asked is Request.CANCEL:
            self._cancel()
        self.show(self._record)
        return asked is Request.LEAVE

    def _cancel(self) -> None:
        number = self._view.selected
        if self._cancelling is not None:
            self._view.message = "one at a time: the last one is still being cancelled"
            return
        self._cancelling = subprocess.Popen(
            [sys.executable, "-m", "hysweep", "cancel", str(self._directory.path), str(number)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._view.message = f"cancelling trial {number} …"

    def _look_after_cancel(self) -> None:
        child = self._cancelling
        if child is None or child.poll() is None:
            return
        said = child.communicate()[0].strip().splitlines()
        self._view.message = said[-1] if said else f"cancel ended with exit code {child.returncode}"
        self._cancelling = None


def opened(directory: StudyDirectory, known: StudyRecord | None = None) -> Screen | Lines:
    """What fits where stdout goes. `known`: what need not be told in lines."""
    console = Console()
    return Screen(directory, console) if sys.stdout.isatty() and not console.is_dumb_terminal else Lines(known)


def _keyboard(stack: ExitStack) -> int | None:
    """stdin, key by key and not echoed until the stack is closed; None where nobody types: a file, a job that runs in
    the background of a shell."""
    with suppress(OSError, ValueError, ImportError):
        import termios
        import tty

        keyboard = sys.stdin.fileno()
        if os.isatty(keyboard) and os.tcgetpgrp(keyboard) == os.getpgrp():
            before = termios.tcgetattr(keyboard)
            stack.callback(termios.tcsetattr, keyboard, termios.TCSADRAIN, before)
            tty.setcbreak(keyboard)
            return keyboard
    return None
