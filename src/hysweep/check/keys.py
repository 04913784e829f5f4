"""Settings that nothing reads, keys that this verl does not have, versions that do not fit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import MISSING, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import hysweep
from hysweep.check.numbers import either, has_shape
from hysweep.compile import (
    PLACED,
    derived_from,
    flatten,
    ignored,
    is_dead,
    is_shared,
    keys_of,
    moved,
    requirements,
    trainer_values,
)
from hysweep.schema import Leaf, Problem, Severity, Stage, Trial, leaves, suggest
from hysweep.schema.groups import Cluster
from hysweep.schema.versions import installed, unfit

SHIPPED = Path(hysweep.__file__).parent / "conf"
RESERVED = {"RAY_ADDRESS", "VERL_FILE_LOGGER_PATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
# verl/utils/tracking.py: Tracking.supported_backend
LOGGERS = ("wandb", "mlflow", "swanlab", "vemlp_wandb", "tensorboard", "console", "clearml", "trackio", "file")
KERNEL_WIDTH = 128
ULYSSES = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"


def passed_keys_exist(t: Trial) -> Iterator[Problem]:
    """`verl` may name any key of this verl that has an effect."""
    keys, ours = keys_of(t), trainer_values(replace(t, verl={}))
    fields = _fields_of(t)
    for key, value in _passed(t):
        if key in PLACED:
            why, cure = "is set by hysweep for each trial, by its directory", "leave it out"
            yield Problem(f"verl.{key}", value, why, cure, Stage.NEVER)
        elif key == "critic.enable" and value is not None and bool(value) != (t.algorithm.adv_estimator == "gae"):
            yield _critic_against_estimator(t, key, value)
        elif key.startswith("critic.") and t.algorithm.adv_estimator != "gae" and not _builds_critic(t):
            yield Problem(f"verl.{key}", value, "has no effect: there is no critic", "leave it out", Stage.NEVER)
        elif key == "actor_rollout_ref.actor.clip_ratio":
            why = "has no effect: clip_ratio_low and clip_ratio_high win"
            yield Problem(f"verl.{key}", value, why, "use algorithm.clip_ratio_low and _high", Stage.NEVER)
        elif key in fields and not is_shared(key):
            if is_dead(t, fields[key]):
                yield Problem(
                    f"verl.{key}", value, "has no effect beside the other settings", "leave it out", Stage.NEVER
                )
        elif key in ours and not is_shared(key):
            continue  # `fields_win` says so
        elif history := moved(key):
            now = " and ".join(f"verl.{name}" for name in history.new)
            cure = f"use {now}, or the field that sets it" if now else "leave it out"
            stage = Stage.NEVER if key in keys else Stage.COMPOSE
            yield Problem(f"verl.{key}", value, history.why, cure, stage)
        elif key not in keys:
            cure = suggest(key, keys.defaults, below="verl.")
            yield Problem(f"verl.{key}", value, f"verl {t.trainer.verl} has no such key", cure)
    runs_somewhere = t.has_gpu or t.parallelism.engine != "megatron"  # else another rule has said so
    said = ("algorithm.filter_groups.", "actor_rollout_ref.actor.policy_loss.dro_beta")  # with its reason, above
    for key in ours if runs_somewhere else ():
        if key not in keys and not key.startswith(said):
            yield Problem(key, ours[key], f"verl {t.trainer.verl} has no such key", "choose another trainer.verl")


def _builds_critic(t: Trial) -> bool:
    """verl's need_critic: what critic.enable says, else what the estimator needs (verl/trainer/ppo/utils.py)."""
    return bool(dict(flatten(t.verl)).get("critic.enable"))


def _critic_against_estimator(t: Trial, key: str, value: Any) -> Problem:
    if value:
        why = f"builds and trains a critic whose values {t.algorithm.adv_estimator} never reads"
        return Problem(f"verl.{key}", value, why, "leave it out", Stage.NEVER)
    return Problem(f"verl.{key}", value, "leaves out the critic whose values gae needs", "leave it out", Stage.UPDATE)


def fields_win(t: Trial) -> Iterator[Problem]:
    """What a field says is said by the field alone, so that a study can vary it and a report can tell it."""
    passed = list(_passed(t))
    fields, ours = (_fields_of(t), trainer_values(replace(t, verl={}))) if passed else ({}, {})
    for key, value in passed:
        if key in PLACED or is_shared(key):
            continue
        if key in fields and not is_dead(t, fields[key]):
            why, cure = "has a field of its own", f"use {fields[key].path}"
            yield Problem(f"verl.{key}", value, why, cure, Stage.NEVER)
        elif key == ULYSSES:  # compile says it by the older of two keys
            yield Problem(f"verl.{key}", value, "has a field of its own", "use parallelism.context", Stage.NEVER)
        elif key in ours and key not in fields:
            said = f"is set by {derived_from(key) or 'hysweep'}, to {ours[key]}"
            cure = f"use {field}" if (field := derived_from(key)) else "leave it out"
            yield Problem(f"verl.{key}", value, said, cure)


def _passed(t: Trial) -> Iterator[tuple[str, Any]]:
    """What `verl` names, but for a null that says what is so anyway."""
    keys = keys_of(t)
    for key, value in flatten(t.verl):
        if value is not None or key not in keys or keys.defaults.get(key) is not None:
            yield key, value


def _fields_of(t: Trial) -> dict[str, Leaf]:
    """The field that a key of the trainer is copied from."""
    return {leaf.knob.keys[0]: leaf for leaf in leaves(t) if leaf.knob.keys}


def versions_fit(t: Trial) -> Iterator[Problem]:
    """What is installed here against what the trial needs, where it runs here; a node checks again at its start."""
    if t.cluster.launcher == "local":
        for fault in unfit(requirements(t), installed(requirements(t))):
            yield Problem(fault.package, fault.version, fault.why, fault.cure, Stage.START)


def nothing_is_ignored(t: Trial) -> Iterator[Problem]:
    """A field that has a value and that the chosen algorithm, engine or mode never reads.

    An error where somebody gave it that value; a warning where it came with a shipped option, for other engines too.
    """
    for leaf in ignored(t):
        needs = " and ".join(
            f"{path} = {either('null' if v is None else v for v in alive)}"
            for path, alive in (leaf.knob.when or {}).items()
        )
        group, _, name = leaf.path.partition(".")
        option = getattr(getattr(t, group), "name", "")
        is_shipped = is_as_shipped(t, group, name, leaf.default)
        where, cure = f"has no effect: it needs {needs}", f"leave it at {_written(leaf.default)}"
        if is_shipped:
            where, cure = f"of {group}={option} {where}", f"choose another {group}=, or leave it"
        if is_shipped and not leaf.value:
            continue  # the option switches off what is not there
        severity = Severity.WARNING if is_shipped else Severity.ERROR
        yield Problem(leaf.path, leaf.value, where, cure, Stage.NEVER, severity)


def is_as_shipped(t: Trial, group: str, name: str, default: Any = None) -> bool:
    """Whether a field has the value that its group's shipped option gives it."""
    chosen = getattr(t, group)
    found: bool = _of_option(group, getattr(chosen, "name", "")).get(name, default) == getattr(chosen, name)
    return found


def is_said(site: Cluster, name: str) -> bool:
    """Whether somebody gave a field of the cluster: it is neither the shipped option's nor the usual value."""
    f = Cluster.__dataclass_fields__[name]
    usual = f.default if f.default_factory is MISSING else f.default_factory()
    found: bool = getattr(site, name) != _of_option("cluster", site.name).get(name, usual)
    return found


def _written(value: object) -> object:
    return "null" if value is None else value


@cache
def _of_option(group: str, name: str) -> dict[str, Any]:
    """The fields that a shipped option gives its group; what the environment may change as it is without."""
    path = SHIPPED / group / f"{name}.yaml"
    if not os.path.isfile(path):  # a name may be of any length
        return {}
    text = re.sub(r"\$\{oc\.env:\w+,([^{}]*)\}", r"\1", path.read_text(encoding="utf-8"))
    content = yaml.safe_load(text)
    found = content.get(group, {}) if "@package _global_" in text else content
    return found if isinstance(found, dict) else {}


def loggers_are_known(t: Trial) -> Iterator[Problem]:
    """verl asserts the name in `fit`, after the models are loaded (verl/utils/tracking.py)."""
    known = LOGGERS if keys_of(t).version.startswith("0.9.0") else (*LOGGERS, "rl_insight")
    for name in t.tracking.loggers:
        if name not in known:
            yield Problem("tracking.loggers", name, "verl has no such logger", suggest(name, known), Stage.START)


def runs_can_be_named(t: Trial) -> Iterator[Problem]:
    """Weights & Biases refuses a project's name once the models are loaded (wandb/sdk/wandb_settings.py)."""
    if "wandb" not in t.tracking.loggers:
        usual: dict[str, object] = {"entity": None, "mode": "online", "tags": []}
        for name in usual:
            if (value := getattr(t.tracking, name)) != usual[name]:
                why, cure = "has no effect: wandb is none of tracking.loggers", "take tracking=wandb, or leave it out"
                yield Problem(f"tracking.{name}", value, why, cure, Stage.NEVER, Severity.WARNING)
        return
    project = t.tracking.project
    odd = sorted(set(project) & set("/\\#?%:"))
    if odd or not 0 < len(project) <= 128:
        why = "is no name for a project of Weights & Biases" + (f": it has {' '.join(odd)}" if odd else "")
        yield Problem("tracking.project", project, why, "take 1 to 128 characters, none of / \\ # ? % :", Stage.START)
    for tag in t.tracking.tags:
        if not 0 < len(tag.strip()) <= 64 or "," in tag:
            why = "is no tag of Weights & Biases"
            yield Problem("tracking.tags", tag, why, "take 1 to 64 characters, and no comma", Stage.START)


def kernels_are_fused(t: Trial) -> Iterator[Problem]:
    """Megatron's fused kernels want packed sequences; verl turns them off with a line in the log."""
    if t.parallelism.engine == "megatron" and t.memory.use_fused_kernels and not t.memory.use_remove_padding:
        why = "has no effect: verl fuses only with packed sequences"
        yield Problem("memory.use_fused_kernels", True, why, "set memory.use_remove_padding=true", Stage.NEVER)


def kernels_take_the_width(t: Trial) -> Iterator[Problem]:
    """verl/utils/kernel/kernels.py asserts it at the first log-probabilities: seen to fail on a GPU."""
    m, width = t.memory, t.model.shape.hidden_size
    if t.parallelism.engine != "megatron" or not (m.use_fused_kernels and m.use_remove_padding) or not has_shape(t):
        return
    if width % KERNEL_WIDTH:
        why = f"the fused kernels take a hidden_size that {KERNEL_WIDTH} divides, and it is {width}"
        yield Problem("memory.use_fused_kernels", True, why, "set memory.use_fused_kernels=false", Stage.ROLLOUT)


def environment_is_free(t: Trial) -> Iterator[Problem]:
    """Variables that each trial sets itself, or verl for each worker: others' values would be overwritten."""
    for name, value in sorted(t.cluster.env.items()):
        if name in RESERVED:
            why = "is set for each trial, or by verl for each worker"
            yield Problem(f"cluster.env.{name}", value, why, "leave it out", Stage.NEVER)
        elif not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            yield Problem(f"cluster.env.{name}", value, "is no name of a variable", "write it as NAME", Stage.START)
        elif not isinstance(value, str):  # OmegaConf lets a list through
            yield Problem(f"cluster.env.{name}", value, "is no text", "give one", Stage.START)
