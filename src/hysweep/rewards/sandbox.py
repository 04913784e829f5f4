"""Runs a model's program against tests, each in a process with limits. It stops accidents, not attacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# A process limits itself: to do it between fork and exec is not safe where there are threads.
LIMITED = """
import resource, sys
file, memory, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, 2**24),
                   (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(what, (most, most))
with open(file, encoding="utf-8") as text:
    program = compile(text.read(), "answer", "exec")
sys.argv = ["answer"]
exec(program, {"__name__": "__main__"})
"""


def passed(program: str, tests: Mapping[str, Any], timeout_s: float, memory_mib: int, most: int) -> float:
    """The share of the tests that it passes; of many the first `most`. Raises ValueError where there are none."""
    cases: list[tuple[str, str, str | None]] = []
    if "inputs" in tests:
        if len(tests["inputs"]) != len(tests["outputs"]):
            raise ValueError(f"{len(tests['inputs'])} inputs and {len(tests['outputs'])} outputs")
        cases += [(program, _text(i), _text(o)) for i, o in zip(tests["inputs"], tests["outputs"], strict=True)]
    cases += [(f"{program}\n{line}\n", "", None) for line in tests.get("asserts", ())]
    if not cases:
        raise ValueError("the ground truth has no tests: give inputs and outputs, or asserts")
    cases = cases[:most]
    return sum(_passes(*case, timeout_s, memory_mib) for case in cases) / len(cases)


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _passes(program: str, typed: str, wanted: str | None, timeout_s: float, memory_mib: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="hysweep-code-") as empty, tempfile.TemporaryFile() as out:
        file = os.path.join(empty, ".answer.py")
        with open(file, "w", encoding="utf-8", errors="replace") as text:
            text.write(program)
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", LIMITED, file, str(memory_mib * 2**20), str(int(timeout_s) + 1)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=empty,
            env={"PATH": "/usr/bin:/bin", "HOME": empty},
            start_new_session=True,
        )
        try:
            process.communicate(typed.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):  # what it started, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            return False
        if wanted is None:
            return True
        out.seek(0)
        said = out.read().decode(errors="replace")
    return [x.rstrip() for x in said.strip().splitlines()] == [x.rstrip() for x in wanted.strip().splitlines()]
