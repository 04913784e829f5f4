"""Where the processes of an attempt stand, for one that makes no progress."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hysweep.launch import command, processes
from hysweep.track import AttemptDirectory

_MOST = 64  # processes
_WITHIN = 10.0  # seconds for all: the other nodes take their own meanwhile, and then all end


def stacks_file(attempt: AttemptDirectory, rank: int) -> Path:
    return attempt.path / f"stacks-{rank}.txt"


def dump(attempt: AttemptDirectory, rank: int) -> Path:
    """Write the Python stacks of the attempt's processes on this node, by py-spy; returns the file."""
    directory = command.identity(attempt)
    found = dict.fromkeys([*processes.descendants(), *processes.marked([directory])[directory]])
    pythons = [p for p in found if _is_python(p.pid)][:_MOST]
    until = time.monotonic() + _WITHIN
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda p: _stacks(p, until), pythons))
    file = stacks_file(attempt, rank)
    with open(file, "a", encoding="utf-8") as out:
        out.write(f"=== {time.strftime('%Y-%m-%d %H:%M:%S')}: {len(parts)} processes\n\n" + "\n\n".join(parts) + "\n")
    return file


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/exe").resolve().name
    except OSError:
        return False


def _stacks(p: processes.Process, until: float) -> str:
    beside = Path(sys.executable).with_name("py-spy")
    tool = str(beside) if beside.exists() else shutil.which("py-spy")
    if tool is None:
        return f"Process {p.pid}: no py-spy in this environment: pip install py-spy"
    left = until - time.monotonic()
    if left <= 0:
        return f"Process {p.pid}: not looked at: the others took {_WITHIN:.0f} s"
    try:
        done = subprocess.run(
            [tool, "dump", "--pid", str(p.pid)], capture_output=True, text=True, errors="replace", timeout=left
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"Process {p.pid}: {e}"
    return done.stdout.strip() or f"Process {p.pid}: {done.stderr.strip()}"
