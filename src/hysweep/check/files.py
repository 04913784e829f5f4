"""Files that must be there, and what must be in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hysweep.check.numbers import is_short
from hysweep.check.rewards import function_problems
from hysweep.compile import (
    expand,
    resolve,
)
from hysweep.embedded import assets
from hysweep.schema import Problem, Severity, Stage, Trial, suggest


def something_trains(t: Trial) -> Iterator[Problem]:
    for name in ("train_files", "val_files"):
        if not getattr(t.data, name):
            yield Problem(f"data.{name}", "[]", "names no file", "give parquet files, or choose a data= option")


def files_exist(t: Trial) -> Iterator[Problem]:
    """Local files of a local job must be there and be of a kind that verl reads."""
    named = [(f"data.{n}", f) for n in ("train_files", "val_files") for f in _found(getattr(t.data, n))]
    if t.reward.function_path is not None:
        named.append(("reward.function_path", t.reward.function_path))
    models = {
        "model.path": t.model.path,
        "algorithm.critic_path": t.algorithm.critic_path,
        "reward.model_path": t.reward.model_path,
    }
    for key, name in [*named, *((key, path) for key, path in models.items() if path is not None)]:
        if name.startswith("embedded:"):
            if name.removeprefix("embedded:") not in assets.NAMES:
                known = [f"embedded:{n}" for n in assets.NAMES]
                yield Problem(key, name, "is not shipped", suggest(name, known))
            continue
        if key == "reward.function_path" and (not name.strip() or os.path.isdir(resolve(name))):
            yield Problem(key, name or "''", "is no file", "give a Python file that defines the function", Stage.START)
            continue
        if key in models and not name.strip():
            yield Problem(key, "''", "names no model", "give a directory, or the id of a model on a hub", Stage.START)
            continue
        if key in models and os.path.exists(resolve(name)) and not os.path.isfile(f"{resolve(name)}/config.json"):
            yield Problem(key, name, "holds no config.json", "give a directory in Hugging Face format", Stage.START)
            continue
        if key in models and not name.startswith(("/", "~", ".")):
            continue  # the id of a model on a hub: not ours to look up here
        is_elsewhere = t.cluster.launcher != "local" or name.startswith(("pkg://", "hdfs://"))
        if not is_elsewhere and not os.path.exists(resolve(name)):
            yield Problem(key, name, "there is no such file", f"looked for {resolve(name)}", Stage.START)
        if key.startswith("data.") and t.data.reader == "verl" and os.path.isdir(resolve(name)):
            why, cure = "is a directory: verl reads files", "name its files, as DIR/*.parquet, or set data.reader=arrow"
            yield Problem(key, name, why, cure, Stage.START)
        elif (
            key.startswith("data.")
            and t.data.reader == "verl"
            and Path(name).suffix not in (".parquet", ".json", ".jsonl")
        ):
            yield Problem(
                key,
                name,
                "verl reads .parquet, .json and .jsonl",
                "hysweep data convert makes one, or set data.reader=arrow",
                Stage.START,
            )


def unseen(t: Trial) -> list[str]:
    """Data files and the model that are not here to be looked at: on the nodes, or on a hub."""
    files = [name for name in (*_found(t.data.train_files), *_found(t.data.val_files), t.model.path) if name.strip()]
    return [name for name in files if not name.startswith("embedded:") and not os.path.exists(resolve(name))]


def _found(names: list[str]) -> list[str]:
    """Names as they are given, patterns as the files that match them."""
    return [found for name in names for found in (expand([name]) if any(c in name for c in "*?[") else [name])]


def reward_function_is_there(t: Trial) -> Iterator[Problem]:
    """The file must define the function: read, not run. That there is a file, `files_exist` says."""
    path = t.reward.function_path
    if path is None or path.startswith(("embedded:", "pkg://")):
        return
    python_path = t.cluster.env.get("PYTHONPATH", "")
    for problem in function_problems("reward.function_path", path, t.reward.function_name, False, python_path):
        is_name = "no such function" in problem.why
        yield replace(problem, key="reward.function_name", value=t.reward.function_name) if is_name else problem


def something_validates(t: Trial) -> Iterator[Problem]:
    if t.trainer.validate_every <= 0 and not t.trainer.validate_before and not is_short(t):
        yield Problem(
            "trainer.validate_every",
            t.trainer.validate_every,
            "nothing is ever validated",
            "give a number of steps",
            Stage.NEVER,
            Severity.WARNING,
        )
