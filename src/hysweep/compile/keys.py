"""Which keys a version of verl has, from a table in the wheel: no torch, no verl, no composing of its tree.

A table is made by ``python -m hysweep.compile.tabulate`` from the verl that is installed; a contract test compares
it with a fresh one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent / "tables"

# Nodes that take keys which verl's own YAML does not list. The reward nodes: verl reads them with .get
# (verl/experimental/reward_loop/reward_manager); the engine nodes: fields of the dataclass behind the YAML,
# which fails on any other at worker start (verl/workers/config/engine.py).
OPEN = (
    "reward.reward_kwargs",
    "reward.custom_reward_function.reward_kwargs",
    "ray_kwargs.ray_init",
    "actor_rollout_ref.actor.megatron.override_transformer_config",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
)


class TrainerKeys:
    """The keys of one verl version under one of its model engines, with their defaults."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self.defaults = defaults
        self._open = (*OPEN, *(key for key, value in defaults.items() if value == {}))

    def __contains__(self, key: str) -> bool:
        return key in self.defaults or self.is_open(key)

    def is_open(self, key: str) -> bool:
        """Whether `key` is, or lies below, a node that takes any key."""
        return any(key == node or key.startswith(f"{node}.") for node in self._open)

    def override(self, key: str, text: str) -> str:
        """`key=text` with the prefix that this version needs: Hydra wants + for a key that is not listed.

        Raises KeyError for a key that the trainer does not have.
        """
        if key in self.defaults or any(listed.startswith(f"{key}.") for listed in self.defaults):
            return f"{key}={text}"
        if self.is_open(key):
            return f"+{key}={text}"
        raise KeyError(key)


@cache
def trainer_keys(version: str, model_engine: str) -> TrainerKeys:
    table = json.loads((TABLES / f"verl-{version}.json").read_text(encoding="utf-8"))
    return TrainerKeys(table["shared"] | table[model_engine])
