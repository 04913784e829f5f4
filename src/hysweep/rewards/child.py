"""A process of its own for what may not come back: math-verify's simplifying, which no thread can stop."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any


class TooLong(Exception):
    """It was not done in time; the process is ended, the next call has another."""


class Child:
    """Started at the first call, ended with this process, or when a call takes too long. Calls take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, name: str, args: Sequence[Any], timeout_s: float) -> Any:
        """The answer of a function of `CALLS`. Raises TooLong, and RuntimeError with what it raised."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps([name, list(args)]).encode() + b"\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                is_there = bool(selector.select(timeout_s))
            line = process.stdout.readline() if is_there else b""
            if not line:
                code = process.poll()
                self._end()
                if is_there and code not in (None, -9):
                    raise RuntimeError(f"{name}: its process ended with {code}")
                raise TooLong(name)
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{name}: {answer['error']}")
        return answer["value"]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
            path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hysweep.rewards.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": path},
            )
            first = self._process.stdout.readline() if self._process.stdout else b""  # it has imported what it needs
            if first != b"ready\n":
                raise RuntimeError("the process for math-verify did not start: pip install 'hysweep[reward]'")
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(Exception):
                self._process.wait(5)
            self._process = None


CHILD = Child()
atexit.register(CHILD._end)


def math_equal(solution: str, truth: str) -> float:
    """Whether the last expression of a text equals the ground truth, by math-verify; its own limits of time hold here,
    where it has the main thread."""
    from math_verify import parse, verify

    gold = parse(truth if "\\boxed" in truth or "$" in truth else f"\\boxed{{{truth}}}")
    return float(verify(gold, parse(solution))) if gold else 0.0


CALLS: dict[str, Callable[..., Any]] = {"math_equal": math_equal}


def main() -> None:
    import logging

    import math_verify  # noqa: F401

    logging.disable(logging.WARNING)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    out.write(b"ready\n")
    out.flush()
    for line in sys.stdin:
        name, args = json.loads(line)
        try:
            answer = {"value": CALLS[name](*args)}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        out.write(json.dumps(answer).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
