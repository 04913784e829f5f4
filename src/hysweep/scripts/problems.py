"""What is wrong with somebody else's command line: what it sets in vain, and what its trial would be refused for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

from hysweep.check import check_trial
from hysweep.check.batches import checkpoints_are_made
from hysweep.check.keys import fields_win
from hysweep.check.memory import memory_is_known
from hysweep.check.rules import Rule
from hysweep.compile import TrainerKeys, moved, trainer_keys
from hysweep.compile.tabulate import MODEL_ENGINES
from hysweep.compose.composer import all_leaves
from hysweep.schema import BadInput, Problem, Severity, Stage, Trial
from hysweep.schema.knob import MODEL, ROLLOUT
from hysweep.scripts.command import faults_of_command, values_that_are_none
from hysweep.scripts.fields import BUFFER
from hysweep.scripts.importer import Imported
from hysweep.scripts.proof import DEAD, compose_written
from hysweep.scripts.settings import REPLACES

# Nodes that verl never makes a dataclass of: a key that `+` adds there is read by nobody.
UNREAD = ("reward.", "algorithm.", "trainer.", "data.")


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
    keys = trainer_keys(imported.verl, imported.source.engine)
    trial = _as_launched(trial, imported)
    of_command = [*values_that_are_none(imported.source, keys), *faults_of_command(imported, trial)]
    others = [*_in_words(imported, keys), *map(_by_key, check_trial(trial, without=_not_asked(imported)))]
    told = {p.key for p in of_command}
    found = [*of_command, *(p for p in others if p.key not in told)]
    return sorted(found, key=lambda p: p.severity is not Severity.ERROR)


def _as_launched(trial: Trial, imported: Imported) -> Trial:
    """The trial that the command line starts, where hysweep's own would be another.

    It does not say which GPUs it is for, nor where: nothing is said of their memory, or of files here. And the trainer
    is the one that it names, where hysweep chooses the one that can run the algorithm.
    """
    use_v1 = imported.source.tree.get("trainer.use_v1")
    return replace(
        trial,
        cluster=replace(trial.cluster, gpu_memory_gib=None, launcher="slurm"),
        trainer=replace(trial.trainer, use_v1=use_v1 if isinstance(use_v1, bool) else trial.trainer.use_v1),
    )


def _not_asked(imported: Imported) -> list[Rule]:
    """Rules that make no sense here: it has no fields to prefer, and without #SBATCH lines no time limit."""
    return [fields_win, memory_is_known, *([] if imported.header else [checkpoints_are_made])]


def _by_key(problem: Problem) -> Problem:
    """In the command line's own words: what `verl.` passes on is its key, and a field is the key that it stands for."""
    key, why, cure = (_in_keys(text) for text in (problem.key, problem.why, problem.cure))
    return replace(problem, key=key.removeprefix("verl."), why=why, cure=cure.replace("+verl.", "+"))


def _in_keys(text: str) -> str:
    return re.sub(r"(?<![\w.])[a-z]+\.\w+(?![\w.]|\* )", lambda m: _keys().get(m[0], m[0]), text)


@cache
def _keys() -> dict[str, str]:
    copied = {leaf.path: leaf.knob.keys[0] for leaf in all_leaves() if leaf.knob.keys}
    return copied | {
        "tracking.loggers": "trainer.logger",
        "rollout.engine": f"{ROLLOUT}.name",
        "rollout.max_model_len": f"{ROLLOUT}.max_model_len",
        "model.path": f"{MODEL}.path",
        "reward.overlong_buffer_len": f"{BUFFER}.len",
        "reward.overlong_penalty": f"{BUFFER}.penalty_factor",
        "algorithm.critic_path": "critic.model.path",
    }


def _when(override: str, keys: TrainerKeys) -> Stage:
    """When a verl stumbles over an override: its tree takes no unlisted key without +, its dataclasses none at all."""
    key = override.lstrip("+~").partition("=")[0]
    if key not in keys.defaults and not override.startswith("+"):
        return Stage.COMPOSE
    return Stage.NEVER if key in keys or key.startswith(UNREAD) else Stage.START


def _in_words(imported: Imported, keys: TrainerKeys) -> Iterator[Problem]:
    for row in imported.rows:
        key, _, value = row.override.lstrip("+~").partition("=")
        history = moved(key)
        if row.is_fault and row.remark.startswith(REPLACES):
            why, _, inner = row.remark.partition(": ")
            cure = f"write {inner}={value}" if inner else "leave it out"
            yield Problem(key, value, why, f"{cure}, in line {row.line}", Stage.START)
        elif row.is_fault:
            stage = Stage.COMPOSE if key in keys.defaults else _when(row.override, keys)
            yield Problem(key, value, row.remark, f"mend it in line {row.line}", stage)
        elif history is not None and row.remark:
            cure = f"use {' and '.join(history.new)}" if history.new else "leave it out"
            yield Problem(key, value, history.why, cure, _when(row.override, keys))
        elif row.remark.startswith("Hydra reads"):
            yield Problem(key, value, row.remark, f"write {key}=\"'{value}'\"", Stage.NEVER)
        elif row.remark.startswith(DEAD):
            why = f"has no effect: {_in_keys(row.remark.removeprefix(DEAD).partition(' needs ')[2])} would be needed"
            yield Problem(key, value, why, "leave it out", Stage.NEVER, Severity.WARNING)


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
