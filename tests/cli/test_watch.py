"""`hysweep watch` in a real terminal, and where there is none."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from hysweep.study.lease import StudyLock
from hysweep.track import Claim, State, Status, StudyDirectory

STUDY = (
    "study: {name: demo, metric: critic/score/mean, n_trials: 2, budget_gpu_hours: 8}\n"
    "space: {algorithm: 'choice(grpo, rloo)'}\n"
    "versions: {}\n"
)


@pytest.fixture
def study(tmp_path: Path) -> StudyDirectory:
    directory = StudyDirectory(tmp_path / "demo")
    directory.create(STUDY, {})
    for number, algorithm in enumerate(["grpo", "rloo"]):
        trial = directory.add_trial(
            number, f"{number}abcdef12345", f"algorithm: {{name: {algorithm}}}\n", {"algorithm": algorithm}
        )
        attempt = trial.attempt(1)
        attempt.prepare({"overrides": [], "env": {}, "nodes": 2, "gpus_per_node": 8, "total_steps": 10})
        attempt.claim(Claim("node1", 1, time.time() - 60))
        attempt.driver_log.write_text(f"log of {algorithm}\n")
        trial.save(State(Status.SUBMITTED, 1, job_id=str(number)))
    return directory


class Terminal:
    """A process in a pseudo-terminal of 80 columns, and what it shows."""

    def __init__(self, words: list[str]) -> None:
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        pid, self.fd = pty.fork()
        if pid == 0:
            environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
            os.execve(sys.executable, [sys.executable, "-m", "hysweep", *words], environment)
        self.pid = pid
        import fcntl
        import termios

        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def until(self, is_there: Callable[[str], bool], seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self._stream.feed(os.read(self.fd, 65536))
                except OSError:  # it has ended
                    break
            if is_there(self.text):
                return self.text
        raise AssertionError(f"not seen within {seconds} s:\n{self.text}")

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def ended(self) -> int:
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(study: StudyDirectory) -> Iterator[Terminal]:
    shown = Terminal(["watch", str(study.path), "--every", "0.2"])
    yield shown
    try:
        os.kill(shown.pid, signal.SIGKILL)
        os.waitpid(shown.pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    os.close(shown.fd)


def test_keys_sort_open_a_log_and_cancel(terminal: Terminal, study: StudyDirectory) -> None:
    terminal.until(lambda text: "q leave" in text and "node1" in text)
    assert "8.00 GPU-hours" in terminal.text or "GPU-hours left" in terminal.text
    terminal.type("s")
    terminal.until(lambda text: "by result" in text)
    terminal.type("\x1b[B\x1b[Bl")
    terminal.until(lambda text: "log of rloo" in text)
    with open(study.trials()[1].attempt(1).driver_log, "a") as log:
        log.write("one more line\n")
    terminal.until(lambda text: "one more line" in text)
    terminal.type("lcn")
    terminal.until(lambda text: "q leave" in text and "for good" not in text)
    assert not study.trials()[1].is_cancel_requested
    (lock := StudyLock(study)).acquire()  # somebody drives it, who is to see the request
    terminal.type("cy")
    terminal.until(lambda text: "cancelling trial 1" in text)
    deadline = time.monotonic() + 60
    while not study.trials()[1].is_cancel_requested and time.monotonic() < deadline:
        time.sleep(0.1)
    assert study.trials()[1].is_cancel_requested and not study.trials()[0].is_cancel_requested
    lock.release()
    terminal.type("q")
    assert terminal.ended() == 0


def test_ctrl_c_leaves(terminal: Terminal) -> None:
    terminal.until(lambda text: "q leave" in text)
    terminal.type("\x03")
    assert terminal.ended() == 130


def test_without_a_terminal_it_prints_changes_and_ends_with_the_study(study: StudyDirectory) -> None:
    command = [sys.executable, "-m", "hysweep", "watch", str(study.path), "--every", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        first = [child.stdout.readline() for _ in range(2)]
        for trial in study.trials():
            trial.save(trial.state().but(status=Status.ENDED, cause="completed", value=0.5))
        rest = child.stdout.read()
        told = child.stderr.read()
    assert child.returncode == 0
    assert told.count("nobody drives the study") == 1
    assert [line.split(":")[0] for line in first] == ["trial 0 0abcde grpo", "trial 1 1abcde rloo"]
    assert rest.count("-> completed") == 2 and "\x1b" not in rest
