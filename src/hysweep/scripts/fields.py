"""What a trainer's configuration says, as fields of a trial: `compile` the other way round."""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any

from hysweep.compile.verl import CPU_OPTIMIZER, MODEL_ENGINE
from hysweep.compose.composer import out_of_bounds
from hysweep.schema import Leaf, Trial, leaves
from hysweep.schema.groups import FSDP, MEGATRON
from hysweep.schema.knob import ACTOR, MODEL, ROLLOUT
from hysweep.scripts.scope import MARK

ENGINES = {engine: field for field, engine in MODEL_ENGINE.items()}
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"


class Unfit(Exception):
    """A value that a field cannot have."""


@dataclass(frozen=True, slots=True)
class Source:
    """The script's configuration: every key resolved, and which of them the script itself sets."""

    tree: Mapping[str, Any]
    explicit: frozenset[str]
    engine: str

    def first(self, *keys: str) -> str | None:
        """The key that a field stands for: the first that verl has, of those that have a value if there are any.

        Where the others say something else, they are passed on by name.
        """
        there = [key for key in keys if key in self.tree]
        said = [key for key in there if self.tree[key] is not None]
        return next(iter(said or there), None)


# For each field that compile derives keys from: those keys, and the field's value. Unfit where the field has none.
Rule = Callable[[Source], Any]


def wanted(source: Source, base: Trial, types: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every field that the script decides. `types` are the fields' own.

    A field that cannot have the script's value is left out: its keys are passed on by name.
    """
    found: dict[str, Any] = {}
    for leaf in leaves(base):
        if leaf.path in DERIVED:
            rule: Rule = DERIVED[leaf.path]
        elif not leaf.knob.keys:
            continue
        elif (key := source.first(*leaf.knob.keys)) is not None:
            rule = _copied(key)
        else:  # this verl has no such key, so what an option says of it must not stay
            found[leaf.path] = leaf.default
            continue
        try:
            value = fitted(rule(source), types[leaf.path], is_optional(leaf.path))
        except Unfit:
            continue
        if not out_of_bounds([Leaf(leaf.path, value, leaf.default, leaf.knob)]):
            found[leaf.path] = value
    return found


def put(trial: Trial, values: Mapping[str, Any]) -> Trial:
    """A copy of a trial with these fields."""
    changed = copy.deepcopy(trial)
    for path, value in values.items():
        group, _, name = path.rpartition(".")
        node: Any = changed
        for part in filter(None, group.split(".")):
            node = getattr(node, part)
        setattr(node, name, value)
    return changed


def get(trial: Trial, path: str) -> Any:
    node: Any = trial
    for name in path.split("."):
        node = getattr(node, name)
    return node


def fitted(value: Any, expected: Any, is_optional: bool) -> Any:
    """A trainer's value as one of a field's type: a whole number is a real one, one file is a list of files.

    Raises Unfit.
    """
    if value == "???":  # OmegaConf's word for a value that somebody must give
        raise Unfit
    if value is None:
        if is_optional:
            return None
        raise Unfit
    if typing.get_origin(expected) is list:
        (inner,) = typing.get_args(expected)
        return [fitted(v, inner, False) for v in (value if isinstance(value, list) else [value])]
    if expected is bool and isinstance(value, bool):
        return value
    if expected in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        if expected is float:
            return float(value)
        if value == value and abs(value) != float("inf") and value == int(value):
            return int(value)
    if expected is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise Unfit


def is_unknown_number(value: Any, expected: Any) -> bool:
    """Whether a variable of the environment stands where a field takes no text."""
    return expected in (int, float, bool) and isinstance(value, str) and MARK.search(value) is not None


@cache
def is_optional(path: str) -> bool:
    hint: Any = Trial
    for name in path.split("."):
        hint = typing.get_type_hints(hint)[name]
    return isinstance(hint, UnionType) and type(None) in typing.get_args(hint)


def _copied(key: str) -> Rule:
    return lambda source: source.tree[key]


def _explicit(source: Source, key: str) -> Any:
    if key not in source.explicit:
        raise Unfit
    return source.tree[key]


def _engine(source: Source) -> Any:
    return ENGINES.get(source.engine, "fsdp2")


def _of_engine(dp: str, megatron: str) -> Rule:
    def rule(source: Source) -> Any:
        return source.tree[megatron if source.engine == "megatron" else dp]

    return rule


def _context(source: Source) -> Any:
    """Under FSDP two keys say it, and the deprecated one wins where it is above 1 (verl/workers/config/actor.py)."""
    if source.engine == "megatron":
        return source.tree[f"{MEGATRON}.context_parallel_size"]
    old = source.tree.get(f"{ACTOR}.ulysses_sequence_parallel_size", 1)
    return old if old != 1 else source.tree.get(f"{FSDP}.ulysses_sequence_parallel_size", 1)


def _on_cpu(source: Source) -> Any:
    return all(source.tree.get(key) == value for key, value in CPU_OPTIMIZER.items())


def _model_path(source: Source) -> Any:
    return source.tree[f"{MODEL}.path"]


def _buffer_log(source: Source) -> Any:
    return _explicit(source, f"{BUFFER}.log")


def _critic_path(source: Source) -> Any:
    path = source.tree.get("critic.model.path")
    return path if "critic.model.path" in source.explicit and path != _model_path(source) else None


def _buffer_len(source: Source) -> Any:
    return source.tree.get(f"{BUFFER}.len") if source.tree.get(f"{BUFFER}.enable") is True else 0


def _buffer_penalty(source: Source) -> Any:
    return _explicit(source, f"{BUFFER}.penalty_factor")


def _gdpo(name: str) -> Rule:
    return lambda source: source.tree.get(f"algorithm.gdpo_{name}") or []


def _seed(source: Source) -> Any:
    key = source.first("data.seed", f"{ACTOR}.data_loader_seed", f"{ROLLOUT}.seed")
    return _explicit(source, key or "")


def _loggers(source: Source) -> Any:
    return source.tree["trainer.logger"]


DERIVED: dict[str, Rule] = {
    "parallelism.engine": _engine,
    "parallelism.context": _context,
    "parallelism.dtype": _of_engine(f"{FSDP}.dtype", f"{MEGATRON}.dtype"),
    "memory.param_offload": _of_engine(f"{FSDP}.param_offload", f"{MEGATRON}.param_offload"),
    "memory.optimizer_offload": _of_engine(f"{FSDP}.optimizer_offload", f"{MEGATRON}.optimizer_offload"),
    "memory.optimizer_on_cpu": _on_cpu,
    "model.path": _model_path,
    "rollout.engine": _copied(f"{ROLLOUT}.name"),
    "rollout.max_model_len": lambda source: _explicit(source, f"{ROLLOUT}.max_model_len"),
    "data.train_files": _copied("data.train_files"),
    "data.val_files": _copied("data.val_files"),
    "reward.function_path": _copied("reward.custom_reward_function.path"),
    "reward.function_name": _copied("reward.custom_reward_function.name"),
    "reward.overlong_buffer_len": _buffer_len,
    "reward.overlong_penalty": _buffer_penalty,
    "reward.overlong_log": _buffer_log,
    "algorithm.critic_path": _critic_path,
    "algorithm.gdpo_reward_keys": _gdpo("reward_keys"),
    "algorithm.gdpo_reward_weights": _gdpo("reward_weights"),
    "trainer.use_v1": lambda source: _explicit(source, "trainer.use_v1"),
    "trainer.grad_clip": _of_engine(f"{ACTOR}.grad_clip", f"{ACTOR}.optim.clip_grad"),
    "trainer.seed": _seed,
    "tracking.loggers": _loggers,
}
