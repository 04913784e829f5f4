"""`hysweep cluster`: hands its words to the script of the test cluster, which ships with the package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import click

import hysweep

SCRIPT = Path(hysweep.__file__).parent / "slurm" / "testcluster"


def cluster(verb: str, words: list[str], run_directory: Path | None) -> NoReturn:
    """Becomes the script: signals and exit codes are its own."""
    if run_directory is not None:
        os.environ["HYSWEEP_TESTCLUSTER"] = str(run_directory.absolute())
    try:
        os.execvp("bash", ["bash", str(SCRIPT), verb, *words])
    except FileNotFoundError:
        raise click.UsageError("the test cluster needs Linux and bash") from None
