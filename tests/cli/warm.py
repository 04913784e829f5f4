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
from pathlib import Path

FORK = multiprocessing.get_context("forkserver")
VERBS = ("desk", "run", "steer", "data", "estimate", "layouts", "importing", "wandb")
FORK.set_forkserver_preload([*(f"hysweep.cli.{v}" for v in VERBS), "optuna.importance", "pyarrow.parquet"])
TIMEOUT_S = 120


def warm(words: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """In this environment, with some variables besides."""
    return warm_in(dict(os.environ) | env, words)


def warm_in(environment: dict[str, str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
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
