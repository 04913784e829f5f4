"""What is wrong with somebody else's command line: what it sets in vain, and what its trial would be refused for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from hysweep.check import check_trial
from hysweep.compile import moved
from hysweep.compile.tabulate import MODEL_ENGINES
from hysweep.schema import BadInput, Problem, Stage
from hysweep.scripts.importer import Imported
from hysweep.scripts.proof import compose_written


def problems_of(imported: Imported) -> list[Problem]:
    """Every problem of a launch script: of its own words first, then of the trial that it starts.

    Raises BadInput for an engine whose keys are not known here.
    """
    if not imported.module:
        raise BadInput(Problem("script", "bash", "starts no trainer", "give one that runs main_ppo"))
    for row in imported.rows:
        key, _, engine = row.override.partition("=")
        if key == "model_engine" and engine not in MODEL_ENGINES:
            raise BadInput(
                Problem(key, engine, "is an engine that cannot be checked", f"of {', '.join(MODEL_ENGINES)}")
            )
    with _named_environment(imported.text):
        trial = compose_written(imported.text)
    # a command line does not say which GPUs it is for, nor where: nothing is said of their memory, or of files here
    trial = replace(trial, cluster=replace(trial.cluster, gpu_memory_gib=None, launcher="slurm"))
    return [*_in_words(imported), *check_trial(trial)]


def _in_words(imported: Imported) -> Iterator[Problem]:
    for row in imported.rows:
        key, _, value = row.override.lstrip("+~").partition("=")
        history = moved(key)
        if row.is_fault:
            yield Problem(key, value, row.remark, f"mend it in line {row.line}", Stage.COMPOSE)
        elif history is not None and row.remark:
            cure = f"use {' and '.join(history.new)}" if history.new else "leave it out"
            yield Problem(key, value, history.why, cure, Stage.NEVER)
        elif row.remark.startswith("Hydra reads"):
            yield Problem(key, value, row.remark, f"write {key}=\"'{value}'\"", Stage.NEVER)


@contextmanager
def _named_environment(text: str) -> Iterator[None]:
    """Each variable that a text asks for and that is not set stands for itself: $NAME."""
    missing = {m for m in re.findall(r"\$\{oc\.env:(\w+)", text) if m not in os.environ}
    os.environ.update({name: f"${name}" for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
