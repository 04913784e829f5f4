"""The settings of hydra-submitit-launcher, which people have, as settings of a cluster: they mean the same here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hysweep.schema import BadInput, Problem, suggest
from hysweep.schema.groups import Cluster
from hysweep.schema.override import emit

LAUNCHER = "hysweep_slurm"
SWEEPER = "hysweep"
# Hydra's launchers, and which of ours launches under hysweep's sweeper: jobs go out one by one, none waits for others.
LAUNCHED_BY = {LAUNCHER: "slurm", "submitit_slurm": "slurm", "submitit_local": "local", "basic": "local"}

# hydra.launcher.<name>: the field that it is here.
SAME = {
    "timeout_min": "cluster.timeout_min",
    "cpus_per_task": "cluster.cpus_per_node",
    "gpus_per_node": "cluster.gpus_per_node",
    "mem_gb": "cluster.memory_gib",
    "nodes": "cluster.nodes",
    "partition": "cluster.partition",
    "qos": "cluster.qos",
    "comment": "cluster.comment",
    "constraint": "cluster.constraint",
    "exclude": "cluster.exclude",
    "gres": "cluster.gres",
    "account": "cluster.account",
    "signal_delay_s": "cluster.signal_delay_s",
    "setup": "cluster.setup",
    "array_parallelism": "study.max_parallel",
}
# Options of sbatch that have no field of their own here.
EXTRA = {"cpus_per_gpu", "gpus_per_task", "mem_per_gpu", "mem_per_cpu"}
# What cannot be otherwise here, with the only value that changes nothing and why.
FIXED: dict[str, tuple[Any, str]] = {
    "tasks_per_node": (1, "one task runs on each node, whatever it has of GPUs"),
    "name": (None, "jobs are named after their study and trial"),
    "submitit_folder": (None, "what a job writes is in its trial's directory"),
    "stderr_to_stdout": (None, "both are in one file here"),
    # a job that is told of its time limit goes back to the queue as long as it comes further
    "max_num_timeout": (None, "cluster.use_requeue says whether a job goes back to the queue"),
}


def translated(overrides: Iterable[str]) -> list[str]:
    """A command line with, for a launcher of Hydra's that is named in it, the cluster's settings that it stands for.

    A stock sweeper hands its jobs to the stock launchers itself. Raises BadInput for a launcher that nothing would
    ask, and for a setting of one that means nothing here.
    """
    words = list(overrides)
    name = _chosen("hydra/launcher", words)
    if name is None or name == SWEEPER or (name != LAUNCHER and _chosen("hydra/sweeper", words) not in (None, SWEEPER)):
        return words
    if name not in LAUNCHED_BY:
        why = f"is not asked by hydra/sweeper={SWEEPER}, which launches by itself"
        raise BadInput(Problem("hydra/launcher", name, why, f"leave it out, or {suggest(name, LAUNCHED_BY)}"))
    settings: dict[str, Any] = {}
    for word in words:
        key, _, text = word.lstrip("+").partition("=")
        if key.startswith("hydra.launcher."):
            settings[key.removeprefix("hydra.launcher.")] = _value(key, text)
    return [*words, *as_overrides(settings, name)]


def _chosen(group: str, words: Iterable[str]) -> str | None:
    return next((text for key, _, text in (w.partition("=") for w in reversed(list(words))) if key == group), None)


def as_overrides(settings: Mapping[str, Any], launcher: str = LAUNCHER) -> list[str]:
    """The overrides that these settings of a launcher stand for; what is unset stands for nothing."""
    found = [f"cluster.launcher={LAUNCHED_BY[launcher]}"]
    extra: dict[str, Any] = {}
    own = {f.name.removeprefix("use_"): f.name for f in fields(Cluster)}
    for name, value in settings.items():
        head, _, tail = name.partition(".")
        if head == "additional_parameters":
            for option, text in ({tail: value} if tail else _mapping(name, value)).items():
                field = own.get(option.replace("-", "_"))
                if field is None:
                    extra[option] = text
                else:
                    found.append(f"cluster.{field}={_said(name, text)}")
        elif head in EXTRA:
            extra[head.replace("_", "-")] = value
        elif head in SAME:
            if value is not None:
                found.append(f"{SAME[head]}={_said(name, value)}")
        elif head in FIXED:
            only, why = FIXED[head]
            if only is not None and value != only:
                raise BadInput(Problem(f"hydra.launcher.{name}", value, why, f"leave it at {only}"))
        elif not head.startswith("_"):
            cure = suggest(head, [*SAME, *EXTRA, "additional_parameters"])
            raise BadInput(Problem(f"hydra.launcher.{name}", value, "the launcher has no such setting", cure))
    for option, value in extra.items():
        if value is not None:
            found.append(f"+cluster.additional_parameters.{option}={_said(option, value)}")
    return found


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None or (isinstance(value, Mapping) and all(isinstance(option, str) for option in value)):
        return dict(value or {})
    raise BadInput(Problem(f"hydra.launcher.{name}", value, "is no mapping of options by name", "write {NAME: VALUE}"))


def _said(name: str, value: Any) -> str:
    try:
        return emit(value)
    except (TypeError, ValueError) as e:
        raise BadInput(Problem(f"hydra.launcher.{name}", value, str(e), "give a text, a number or a list")) from e


def as_typed(problem: Problem, words: Iterable[str]) -> Problem:
    """The problem with the key that a command line gave, where that said it in a launcher's words."""
    keys = [word.lstrip("+").partition("=")[0] for word in words]
    for key in keys:
        if key.startswith("hydra.launcher."):
            here = _here(key.removeprefix("hydra.launcher."))
            if here and here not in keys and f"{problem.key}.".startswith(f"{here}."):
                return replace(problem, key=key + problem.key.removeprefix(here))
    return problem


def _here(name: str) -> str:
    """The key here of a launcher's setting; empty where there is no one key."""
    head, _, option = name.partition(".")
    own = {f.name.removeprefix("use_"): f.name for f in fields(Cluster)}
    if head == "additional_parameters":
        beside = f"cluster.additional_parameters.{option}" if option else "cluster.additional_parameters"
        return f"cluster.{own[bare]}" if (bare := option.replace("-", "_")) in own else beside
    return f"cluster.additional_parameters.{head.replace('_', '-')}" if head in EXTRA else SAME.get(head, "")


def _value(key: str, text: str) -> Any:
    if re.fullmatch(r"\d+(?::\d+)+", text):
        return text  # to YAML 24:00:00 is a number, 86400
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"x={text}"]), resolve=True)["x"]  # type: ignore[call-overload,index]
    except (OmegaConfBaseException, YAMLError) as e:
        raise BadInput(Problem(key, text, "cannot be read", "write it as in YAML")) from e
