"""`model.external_lib` of a Hy3 that FSDP trains and vLLM serves: names that vLLM's loader knows, and memory's watch.

transformers 5.9 renames three of Hy3's weights as it loads them, verl 0.9.1 sends them under those names, and vLLM 0.24
knows the checkpoint's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import memory_by_phase  # noqa: F401
import verl.workers.engine.fsdp.transformer_impl as fsdp

_unfused = fsdp.unfuse_moe_params
NAMES = {".mlp.e_score_correction_bias": ".mlp.expert_bias", ".mlp.shared_experts.": ".mlp.shared_mlp."}


def named(weights: Iterable[Any], model_type: str | None = None) -> Iterator[Any]:
    for name, weight in _unfused(weights, model_type):
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs) if model_type == "hy_v3" else name
        yield name, weight


if _unfused.__name__ != "named":
    fsdp.unfuse_moe_params = named
