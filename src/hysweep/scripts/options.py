"""Which of the shipped options an experiment begins with: those that leave the least to be said."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hysweep.compose.composer import SHIPPED
from hysweep.schema import Trial

# The first is taken where nothing speaks for another. No option that reads the environment is ever taken: what it
# comes to would differ by machine.
FIRST = {
    "model": "hy3_tiny",
    "parallelism": "fsdp2",
    "memory": "resident",
    "rollout": "vllm",
    "data": "tiny_copy",
    "reward": "rule",
    "trainer": "tiny",
    "algorithm": "grpo",
    "cluster": "gpu_8",
    "tracking": "local",
}
# Fields that weigh more than all others.
TELLING = ("algorithm.adv_estimator", "algorithm.loss_mode", "parallelism.engine", "rollout.engine", "reward.manager",
           "reward.function_path")  # fmt: skip
VARIANT = re.compile(r"[-_](base|instruct|chat|it|hf|bf16|sft|\d{4})$")  # of one shape


ON_SLURM = "slurm_h100"


def choose(wanted: Mapping[str, Any], nodes: int, on_slurm: bool = False) -> dict[str, str]:
    """An option for each group, by the fields that the script decides."""
    chosen = {
        group: _closest(group, first, wanted) for group, first in FIRST.items() if group not in ("model", "cluster")
    }
    return {
        "model": model_option(str(wanted.get("model.path", ""))) or FIRST["model"],
        **chosen,
        "cluster": ON_SLURM if on_slurm or nodes > 1 else FIRST["cluster"],
    }


def model_option(path: str) -> str | None:
    """The shipped model of that name, or of the name that only says how it was tuned."""
    names = {_base(str(content["model"].get("path", ""))): name for name, content in _contents("model").items()}
    # Hy3's reads $MODEL_PATH, as its script does: its default is its name
    names |= {
        _base(default): path.stem
        for path in (SHIPPED / "model").glob("*.yaml")
        for default in re.findall(r"^path: \$\{oc\.env:\w+,([^}]*)\}", path.read_text(encoding="utf-8"), re.M)
    }
    return names.get(_base(path)) if path else None


def _base(path: str) -> str:
    name = path.rstrip("/").rpartition("/")[2].lower()
    while found := VARIANT.search(name):
        name = name[: found.start()]
    return name


def _closest(group: str, first: str, wanted: Mapping[str, Any]) -> str:
    """The option that leaves the fewest fields to be written."""
    contents = _contents(group)
    unsaid = _defaults(group)

    def distance(name: str) -> tuple[int, int, int, bool, str]:
        said = unsaid | {key: value for key, value in _flat(contents[name]) if not key.endswith(".name")}
        apart = [key for key, value in said.items() if wanted.get(key, unsaid.get(key, value)) != value]
        taken_back = [key for key in apart if wanted.get(key, unsaid.get(key)) is None]
        return len(set(apart) & set(TELLING)), len(taken_back), len(apart), name != first, name

    return min(contents, key=distance, default=first)


def _defaults(group: str) -> dict[str, Any]:
    cls = typing.get_type_hints(Trial)[group]
    return {f"{group}.{f.name}": f.default for f in fields(cls) if f.default is not MISSING}


@cache
def _contents(group: str) -> dict[str, dict[str, Any]]:
    """The options of a group as trees from the root, but for those that read the environment."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((SHIPPED / group).glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text) or {}
        if "${oc.env:" in text or "defaults" in content:
            continue
        found[path.stem] = content if _is_global(path) else {group: content}
    return found


def _is_global(path: Path) -> bool:
    return path.read_text(encoding="utf-8").startswith("# @package _global_")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    return [
        pair
        for name, value in tree.items()
        for pair in (_flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)])
    ]
