"""Telling people what happens: a command of theirs, which may be slow, wrong or hang without the study noticing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import Any

from hysweep.launch import command
from hysweep.schema import Notify
from hysweep.track import StudyDirectory, append_line, read_lines

EVENTS = ("end", "failure", "budget")


class Notifier:
    """Each event once, also over restarts: notified.jsonl has those that were told."""

    def __init__(self, directory: StudyDirectory, settings: Notify) -> None:
        self._directory, self._settings = directory, settings
        self._file = directory.path / "notified.jsonl"
        self._told = {str(line["key"]) for line in read_lines(self._file) if "key" in line}
        self._running: list[tuple[subprocess.Popen[bytes], float, str]] = []

    def is_due(self, event: str, key: str) -> bool:
        return self._settings.command is not None and event in self._settings.events and key not in self._told

    def tell(self, event: str, key: str, text: str, **details: Any) -> None:
        """Start the command; `key` is what makes the event another one than those before."""
        settings = self._settings
        if settings.command is None or not self.is_due(event, key):
            return
        self._told.add(key)
        append_line(self._file, {"time": time.time(), "key": key, "text": text})
        study = self._directory.name
        told = {"event": event, "study": study, "directory": str(self._directory.path), "text": text, **details}
        names = {"HYSWEEP_EVENT": event, "HYSWEEP_STUDY": study, "HYSWEEP_TEXT": text}
        try:
            # a file rather than a pipe: who does not read holds nobody up
            with tempfile.TemporaryFile() as stdin, open(self._directory.path / "notify.log", "ab") as log:
                stdin.write(json.dumps(told, default=str).encode() + b"\n")
                stdin.seek(0)
                child = subprocess.Popen(
                    ["/bin/sh", "-c", settings.command],
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    env=command.inherited(os.environ) | names,
                    start_new_session=True,
                )
        except (OSError, ValueError) as e:  # a NUL in the command, of a study that was begun before that was refused
            self._failed(key, str(e))
            return
        self._running.append((child, time.monotonic() + settings.timeout_s, key))

    def look(self) -> None:
        """End those that take too long, note those that failed."""
        still = []
        for child, deadline, key in self._running:
            code = child.poll()
            if code is None and time.monotonic() < deadline:
                still.append((child, deadline, key))
            elif code is None:
                with suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                self._failed(key, f"not done after {self._settings.timeout_s:g} s")
            elif code:
                self._failed(key, f"exit code {code}, see notify.log")
        self._running = still

    def close(self) -> None:
        """Give those that still run what is left of their time."""
        while self._running:
            self.look()
            time.sleep(0.02)

    def _failed(self, key: str, why: str) -> None:
        self._directory.log("notify_failed", key=key, reason=why)
