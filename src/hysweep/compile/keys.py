"""Which keys, algorithms and requirements a verl has, from a table of facts: no torch, no verl.

The tables of three versions are shipped. That of any other verl is made where it is first asked for, and kept in the
user's cache under the content of the files that it was made of.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from hysweep.embedded.assets import cache_root
from hysweep.schema import BadInput, Problem, suggest

TABLES = Path(__file__).parent / "tables"
VERSIONS = tuple(sorted((p.stem.removeprefix("verl-") for p in TABLES.glob("*.json")), reverse=True))
INSTALLED = "installed"
# What reading a verl that lacks something, or is torn, raises.
UNREADABLE = (OSError, zipfile.BadZipFile, SyntaxError, KeyError, UnicodeDecodeError, yaml.YAMLError, HydraException,
              OmegaConfBaseException)  # fmt: skip

# Nodes that take keys which verl's own YAML does not list. The reward nodes: verl reads them with .get
# (verl/experimental/reward_loop/reward_manager); the engine nodes: fields of the dataclass behind the YAML,
# which fails on any other at worker start (verl/workers/config/engine.py); algorithm.gdpo_*: of AlgoConfig
# (verl/trainer/config/algorithm.py); critic.ppo_infer_...: of CriticConfig (verl/workers/config/critic.py).
OPEN = (
    "reward.reward_kwargs",
    "reward.custom_reward_function.reward_kwargs",
    "ray_kwargs.ray_init",
    "actor_rollout_ref.actor.megatron.override_transformer_config",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.actor.fsdp_config.turbo_config",
    "actor_rollout_ref.ref.fsdp_config.turbo_config",
    "actor_rollout_ref.ref.megatron.override_transformer_config",
    "distillation.teacher_models",
    "critic.megatron.override_transformer_config",
    "critic.fsdp.mixed_precision",
    "critic.ppo_infer_max_token_len_per_gpu",
    "algorithm.gdpo_reward_keys",
    "algorithm.gdpo_reward_weights",
)


@dataclass(frozen=True)
class TrainerKeys:
    """The keys of one verl under one of its model engines, with their defaults, and what else it says of itself.

    root: where its files lie, for one that is not simply installed.
    """

    version: str
    defaults: Mapping[str, Any]
    adv_estimators: tuple[str, ...]
    policy_losses: tuple[str, ...]
    requires: Mapping[str, str]
    root: Path | None = None

    @cached_property
    def _above(self) -> frozenset[str]:
        """Every node that listed keys lie below."""
        return frozenset(key[:i] for key in self.defaults for i, c in enumerate(key) if c == ".")

    def __contains__(self, key: str) -> bool:
        return key in self.defaults or self.is_open(key)

    def is_open(self, key: str) -> bool:
        """Whether `key` is, or lies below, a node that takes any key."""
        parts = key.split(".")
        above = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
        return any(node in OPEN or self.defaults.get(node) == {} for node in above)

    def override(self, key: str, text: str) -> str:
        """`key=text` with the prefix that this version needs: Hydra wants + for a key that is not listed.

        Raises KeyError for a key that the trainer does not have.
        """
        if key in self.defaults or key in self._above:
            return f"{key}={text}"
        if self.is_open(key):
            return f"+{key}={text}"
        raise KeyError(key)


@cache
def trainer_keys(verl: str, model_engine: str) -> TrainerKeys:
    """Of a version, of the `installed` one, of a wheel or of a checkout. Raises BadInput where there is none."""
    table, root = _table(verl)
    return TrainerKeys(
        table["version"],
        table["shared"] | table[model_engine],
        tuple(table["adv_estimators"]),
        tuple(table["policy_losses"]),
        table["requires"],
        root,
    )


@cache
def _table(verl: str) -> tuple[dict[str, Any], Path | None]:
    if verl in VERSIONS:
        return json.loads((TABLES / f"verl-{verl}.json").read_text(encoding="utf-8")), None
    root = None
    try:
        root = _root(verl)
        return _table_of(root), None if verl == INSTALLED else root
    except ModuleNotFoundError as e:
        raise BadInput(Problem("trainer.verl", verl, str(e), f"install it, or try {' or '.join(VERSIONS)}")) from e
    except UNREADABLE as e:
        is_there = os.path.exists(os.path.expanduser(verl))
        why = f"holds no verl that can be read: {_torn(e, root)}" if is_there else "is no version that is known"
        cure = suggest(verl, [*VERSIONS, INSTALLED]) + ", or the path of a wheel or a checkout"
        raise BadInput(Problem("trainer.verl", verl, why, cure)) from e


def _torn(error: Exception, root: Path | None) -> str:
    """What is wrong with a verl, and in which of its files, by the name that it has inside."""

    def inside(file: object) -> str:
        path = Path(str(file))
        return str(path.relative_to(root) if root is not None and path.is_relative_to(root) else path)

    if isinstance(error, FileNotFoundError):
        return f"{inside(error.filename)} is missing"
    if isinstance(error, SyntaxError):
        return f"{inside(error.filename)}, line {error.lineno}, is no Python"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{inside(error.problem_mark.name)}, line {error.problem_mark.line + 1}, is no YAML"
    return " ".join(str(error).split())[:200]


def _root(verl: str) -> Path:
    """The directory that holds the package: a wheel is unpacked, once."""
    from hysweep.compile.tabulate import installed_verl, unpack

    if verl == INSTALLED:
        return installed_verl()
    path = Path(os.path.expanduser(verl)).absolute()
    if path.suffix != ".whl":
        return path
    target = cache_root() / "verl" / _digest([path])
    if not target.is_dir():
        part = target.with_name(f"{target.name}.{os.getpid()}")
        unpack(path, part)
        try:
            part.rename(target)
        except OSError:  # another process was first
            if not target.is_dir():
                raise
    return target


def _table_of(root: Path) -> dict[str, Any]:
    from hysweep.compile import tabulate

    kept = cache_root() / "verl" / f"table-{_digest([*tabulate.sources(root), Path(tabulate.__file__)])}.json"
    try:
        table: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or torn: make it (again)
        table = json.loads(json.dumps(tabulate.tabulate(root)))
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(table), encoding="utf-8")
        part.replace(kept)
    return table


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
