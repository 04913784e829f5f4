"""What a model's config.json says of its architecture, in the words of the schema.

The file is read as it is, without transformers: composing a trial must not wait for it, nor need its newest release.
An architecture that is not in `FAMILIES` is read by the names that most of them share; what its code does beyond those
(layers of linear attention, say) is then not known here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from hysweep.schema import BadInput, Knob, Problem, Shape

EMBEDDED = "embedded:"
MOST_BYTES = 16 * 2**20  # a published one has some kilobytes
KEPT = 64  # files whose reading is kept

_KNOBS: dict[str, Knob] = {f.name: f.metadata["knob"] for f in fields(Shape)}


@dataclass(frozen=True, slots=True)
class Family:
    """What the code of an architecture (model_type) adds to a config.json.

    defaults  the values of keys that are not in the file: transformers leaves out what is as usual
    fixed     fields of `Shape` that no key says
    """

    defaults: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)


_QWEN2 = Family({"use_sliding_window": False}, {"qkv_bias": True, "attention_output_bias": False})
_QWEN3 = Family({"use_sliding_window": False}, {"qk_norm": True})
_TIED = Family({"tie_word_embeddings": True})

# After the classes of transformers 5.9: their defaults, and the modules that they make.
FAMILIES: dict[str, Family] = {
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": Family({"use_sliding_window": False, "qkv_bias": True}, {"attention_output_bias": False}),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3,
    "hy_v3": Family({"first_k_dense_replace": 1}, {"qk_norm": True}),
    "glm4_moe": Family({"first_k_dense_replace": 1}, {"attention_output_bias": False}),
    "gpt_oss": Family(
        {"attention_bias": True, "sliding_window_pattern": 2},
        {"attention_sinks": True, "mlp_bias": True, "router_bias": True},
    ),
    "gemma3_text": Family(
        {
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "sliding_window_pattern": 6,
            "tie_word_embeddings": True,
        },
        {"qk_norm": True},
    ),
    "gemma": _TIED,
    "gemma2": Family({"tie_word_embeddings": True, "sliding_window_pattern": 2}),
    "cohere": _TIED,
    "cohere2": Family({"tie_word_embeddings": True, "sliding_window_pattern": 4}),
    "ernie4_5": _TIED,
    "ernie4_5_moe": _TIED,
    "smollm3": _TIED,
    "starcoder2": _TIED,
}


def local_model(path: str) -> Path | None:
    """The directory that `model.path` names, when it is one here that has a config.json; a hub id is none."""
    if not path or path.startswith(EMBEDDED):
        return None
    directory = Path(os.path.expanduser(path)).absolute()
    return directory if os.path.isfile(directory / "config.json") else None


def read_model(directory: Path, given: Collection[str] = ()) -> dict[str, Any]:
    """`{"model_type": ..., "shape": {...}}` with every field of `Shape` but those in `given`, which are known better.

    Raises BadInput with all that is wrong: one problem for each field that the file does not say, or says wrongly.
    """
    path = directory / "config.json"
    try:
        about = path.stat()
        model_type, shape, faults = _read(path, about.st_mtime_ns, about.st_size)
    except OSError as e:
        raise BadInput(_unreadable(path, e)) from e
    wrong = [problem for name, problem in faults.items() if name not in given]
    if wrong:
        raise BadInput(*wrong)
    return {"model_type": model_type, "shape": {name: v for name, v in shape.items() if name not in given}}


@lru_cache(KEPT)
def _read(path: Path, mtime_ns: int, size: int) -> tuple[str, dict[str, Any], dict[str, Problem]]:
    """The model type, the shape and what is wrong by field; kept for as long as the file is the same."""
    config = _Config(path, _load(path))
    return config.model_type, config.shape(), config.faults


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        content = json.loads(raw.decode("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError, RecursionError) as e:
        raise BadInput(_unreadable(path, e)) from e
    return content


def _unreadable(path: Path, error: Exception) -> Problem:
    why = " ".join(str(error).split())[:200]
    return Problem(
        "model.path", str(path.parent), f"its config.json cannot be read: {why}", "mend it, or copy it again"
    )


class _Config:
    """One config.json, in the terms of `Shape`; what is wrong is gathered in `faults`, by the field it is for."""

    def __init__(self, path: Path, top: dict[str, Any]) -> None:
        self.faults: dict[str, Problem] = {}
        self._directory = path.parent
        text = top.get("text_config") or {}  # the language model of a model of several media
        if not isinstance(text, dict):
            raise BadInput(self._problem("model_type", "text_config", text, "is no object"))
        self.model_type = self._name(top)
        family = FAMILIES.get(str(text.get("model_type", self.model_type)), Family())
        said = top | text
        if top.get("tie_word_embeddings") is not None:
            said["tie_word_embeddings"] = top["tie_word_embeddings"]
        self._values = family.defaults | {name: value for name, value in said.items() if value is not None}
        self._fixed = family.fixed

    def shape(self) -> dict[str, Any]:
        """Every field of `Shape`."""
        layers = self._whole("num_layers", "num_hidden_layers")
        hidden = self._whole("hidden_size", "hidden_size")
        heads = self._whole("num_attention_heads", "num_attention_heads")
        shape = {
            "num_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": self._whole("num_key_value_heads", "num_key_value_heads", default=heads),
            "head_dim": self._whole("head_dim", "head_dim", default=max(hidden // heads, 1)),
            "num_nextn_predict_layers": self._whole("num_nextn_predict_layers", "num_nextn_predict_layers", default=0),
            "vocab_size": self._whole("vocab_size", "vocab_size"),
            "tie_word_embeddings": self._flag("tie_word_embeddings", "tie_word_embeddings"),
            "max_position_embeddings": self._whole("max_position_embeddings", "max_position_embeddings"),
            "qkv_bias": self._flag("qkv_bias", "qkv_bias", "attention_bias"),
            "attention_output_bias": self._flag("attention_output_bias", "attention_bias"),
            "qk_norm": self._flag("qk_norm", "qk_norm", "use_qk_norm"),
            "attention_sinks": False,
            "mlp_bias": self._flag("mlp_bias", "mlp_bias"),
            "router_bias": False,
        }
        shape |= self._feed_forward(layers) | self._sliding(layers) | self._latent()
        if shape["kv_lora_rank"]:  # what transformers calls head_dim here is a part of it
            shape["head_dim"] = shape["qk_nope_head_dim"] + shape["qk_rope_head_dim"]
        return shape | self._fixed

    def _feed_forward(self, layers: int) -> dict[str, int]:
        mixture = dict.fromkeys(
            ("moe_intermediate_size", "num_experts_per_token", "num_shared_experts", "shared_expert_intermediate_size",
             "first_dense_layers"), 0
        )  # fmt: skip
        experts = self._whole("num_experts", "num_experts", "n_routed_experts", "num_local_experts", default=0)
        if not experts:
            return mixture | {
                "num_experts": 0,
                "intermediate_size": self._whole("intermediate_size", "intermediate_size"),
            }
        # Some architectures call the width of an expert intermediate_size: they have no dense layer.
        names = ("moe_intermediate_size", "expert_hidden_dim", "intermediate_size")
        width = self._whole("moe_intermediate_size", *names)
        width_shared = self._whole("shared_expert_intermediate_size", "shared_expert_intermediate_size", default=0)
        shared_default = 1 if width_shared else 0
        return {
            "num_experts": experts,
            "moe_intermediate_size": width,
            "intermediate_size": self._whole("intermediate_size", "intermediate_size", default=max(width, 1)),
            "num_experts_per_token": self._whole("num_experts_per_token", "num_experts_per_tok", "experts_per_token"),
            "num_shared_experts": self._whole(
                "num_shared_experts", "n_shared_experts", "num_shared_experts", default=shared_default
            ),
            "shared_expert_intermediate_size": width_shared,
            "first_dense_layers": self._first_dense(layers),
        }

    def _first_dense(self, layers: int) -> int:
        """The dense layers before the first mixture; a dense layer after one is a pattern that `Shape` cannot say."""
        name = "first_dense_layers"
        types = self._list(name, "mlp_layer_types", str)
        only = self._list(name, "mlp_only_layers", int)
        if types:
            mixture = [kind != "dense" for kind in types]
            if len(types) != layers:
                self._fault(name, "mlp_layer_types", types, f"says nothing of some of {layers} layers, or of more")
        elif "first_k_dense_replace" in self._values:
            first = self._whole(name, "first_k_dense_replace")
            mixture = [i >= first for i in range(layers)]
        else:
            step = max(self._whole(name, "decoder_sparse_step", default=1), 1)
            mixture = [(i + 1) % step == 0 and i not in only for i in range(layers)]
        first = mixture.index(True) if True in mixture else len(mixture)
        if not all(mixture[first:]):
            key = "mlp_layer_types" if types else "mlp_only_layers" if only else "decoder_sparse_step"
            self._fault(name, key, self._values.get(key), "puts a dense layer after a mixture, which has no name here")
        return first

    def _sliding(self, layers: int) -> dict[str, int]:
        """The window, and the layers that have it: by their types, from a layer on, but each n-th, or all."""
        window = self._whole("sliding_window", "sliding_window", default=0)
        types = self._list("num_sliding_layers", "layer_types", str)
        if not window or self._values.get("use_sliding_window") is False:
            return {"sliding_window": 0, "num_sliding_layers": 0}
        if types:
            count = sum(kind == "sliding_attention" for kind in types)
        elif "max_window_layers" in self._values:
            count = max(layers - self._whole("num_sliding_layers", "max_window_layers"), 0)
        elif pattern := self._whole("num_sliding_layers", "sliding_window_pattern", default=0):
            count = layers - layers // pattern
        else:
            count = layers
        return {"sliding_window": window if count else 0, "num_sliding_layers": count}

    def _latent(self) -> dict[str, int]:
        """Multi-head latent attention."""
        names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        rank = self._whole("kv_lora_rank", "kv_lora_rank", default=0)
        if not rank:
            return dict.fromkeys(("kv_lora_rank", "q_lora_rank", *names), 0)
        queries = self._whole("q_lora_rank", "q_lora_rank", default=0)
        return {"kv_lora_rank": rank, "q_lora_rank": queries} | {name: self._whole(name, name) for name in names}

    def _whole(self, name: str, *keys: str, default: int | None = None) -> int:
        """The first of these keys that the file has, within the bounds of the field `name`."""
        low, high = _KNOBS[name].low or 0, _KNOBS[name].high or 0
        key = next((key for key in keys if key in self._values), None)
        if key is None:
            if default is None:
                self._fault(name, keys[0], None, "")
            return int(low) if default is None else default
        value = self._values[key]
        if type(value) is not int:  # true is an int to Python
            self._fault(name, key, value, "is no whole number")
        elif not low <= value <= high:
            self._fault(name, key, value, f"is not within {low:.0f} and {high:.0f}")
        else:
            return value
        return int(low)

    def _flag(self, name: str, *keys: str) -> bool:
        key = next((key for key in keys if key in self._values), None)
        if key is None:
            return False
        value = self._values[key]
        if not isinstance(value, bool):
            self._fault(name, key, value, "is neither true nor false")
        return value is True

    def _list(self, name: str, key: str, kind: type) -> list[Any]:
        value = self._values.get(key, [])
        if isinstance(value, list) and all(type(element) is kind for element in value):
            return value
        self._fault(name, key, value, "is no list of " + ("names" if kind is str else "whole numbers"))
        return []

    def _name(self, top: dict[str, Any]) -> str:
        value = top.get("model_type")
        if isinstance(value, str) and value:
            return value
        self.faults["model_type"] = self._problem("model_type", "model_type", value, "is no name")
        return ""

    def _fault(self, name: str, key: str, value: Any, why: str) -> None:
        self.faults.setdefault(name, self._problem(f"shape.{name}", key, value, why))

    def _problem(self, name: str, key: str, value: Any, why: str) -> Problem:
        if value is None:
            said = f"its config.json has no {key}"
        else:
            text = type(value).__name__ if isinstance(value, (list, dict)) else json.dumps(value)
            said = f"its config.json has {key} = {text if len(text) <= 60 else text[:57] + '...'}, which {why}"
        return Problem("model.path", str(self._directory), said, f"mend the file, or give model.{name}=...")
