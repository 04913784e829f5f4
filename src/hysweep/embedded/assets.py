"""Where the tiny Hy3, its task and its reward are. Light: no torch here, see `build` for what makes them."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import platformdirs


@dataclass(frozen=True)
class Recipe:
    """The tiny model and its task. Every field belongs to the key of the folder that they are built in.

    The task is to copy two different digits: "copy 47=" asks for "47". The model is first taught a few habits of
    answering, each as often as its weight says. One is right; the others refuse, miss the format or do not stop. So
    it is right now and then, as a real base model is, and reinforcement learning has something to find. See
    `build.HABITS`.
    """

    seed: int = 0

    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 2  # one dense, one mixture of experts
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 4
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    max_position_embeddings: int = 512
    initializer_range: float = 0.05

    habits: tuple[tuple[str, float], ...] = (("right", 0.26), ("shrug", 0.22), ("spaced", 0.26), ("ramble", 0.26))
    warm_start_steps: int = 80
    warm_start_batch: int = 64
    warm_start_lr: float = 3e-3

    data_source: str = "tiny_copy"
    train_rows: int = 1440  # each of the 90 prompts 16 times


RECIPE = Recipe()

# The names that a config may use, as in `embedded:model`, and what they stand for below the folder.
BUILT = {"model": "model", "train": "train.parquet", "val": "val.parquet"}
NAMES = (*BUILT, "reward")

PARTS = ("model/config.json", "model/model.safetensors", "model/tokenizer.json", "train.parquet", "val.parquet")


def locate(name: str) -> Path:
    """The path of one of `NAMES`. It need not be built yet."""
    if name == "reward":
        return Path(__file__).with_name("reward.py")
    if name not in BUILT:
        raise ValueError(f"embedded:{name}: there is no such thing; try one of {', '.join(NAMES)}")
    return folder() / BUILT[name]


def is_built() -> bool:
    """Whether everything that `locate` names is there."""
    return all((folder() / part).is_file() for part in PARTS)


def folder() -> Path:
    """Where the current recipe is, or will be, built."""
    return cache_root() / "embedded" / content_key()


def cache_root() -> Path:
    root = os.environ.get("HYSWEEP_CACHE_DIR")
    return Path(root).expanduser().absolute() if root else platformdirs.user_cache_path("hysweep")


def content_key(recipe: Recipe = RECIPE) -> str:
    """Another recipe, or another text of the code that follows it, is another folder: nothing stale is ever used."""
    return _key(recipe, Path(__file__).with_name("build.py").read_text(encoding="utf-8"))


@cache
def _key(recipe: Recipe, done: str) -> str:
    said = json.dumps(asdict(recipe), sort_keys=True)
    return hashlib.sha256(f"{said}\n{done}".encode()).hexdigest()[:12]
