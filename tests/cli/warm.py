"""Runs `hysweep` in a process of its own that starts warm: forked from one that has imported what every verb needs.

Exit code, both outputs, the working directory and the environment are those of a whole process; only the second that
Python takes to import Hydra is spared. Tests of start-up itself, and a sample of the others, start cold.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from multiprocessing.forkserver import ensure_running
from pathlib import Path

import pytest

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.cli.preloaded"])
TIMEOUT_S = 120


def warm(words: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """In this environment, with some variables besides."""
    return warm_in(dict(os.environ) | env, words)


def warm_in(environment: dict[str, str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    _start_server()
    with tempfile.TemporaryDirectory() as where:
        out, err = Path(where, "out"), Path(where, "err")
        place = (list(words), os.getcwd(), environment, out, err)
        process = FORK.Process(target=_main, args=place)
        process.start()
        process.join(TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(list(words), TIMEOUT_S)
        return subprocess.CompletedProcess(list(words), process.exitcode, out.read_text(), err.read_text())


@cache
def _start_server() -> None:
    """It finds no module of the tests by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        ensure_running()


def _main(words: list[str], directory: str, env: dict[str, str], out: Path, err: Path) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    for fd, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), fd)
    sys.argv = ["hysweep", *words]
    from hysweep.cli import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()  # which a forked process leaves out
