"""Whether grids fit, as arithmetic alone: on numbers for `check`, on numpy arrays for `hysweep.layouts`.

One code for both, so that what `layouts` offers is what `check` lets pass. Each says where its rule is from.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Whole: TypeAlias = Any  # a Python int, or a numpy array of them; the answer is of the same kind


def dense_grid(world: Whole, tensor: Whole, pipeline: Whole, context: Whole) -> Any:
    """Ranks of the dense part fill the GPUs (Megatron-core parallel_state)."""
    return world % (tensor * pipeline * context) == 0


def expert_grid(world: Whole, expert_tensor: Whole, expert: Whole, pipeline: Whole) -> Any:
    """And so do those of the experts, whose grid lies over the same pipeline (Megatron-core parallel_state)."""
    return world % (expert_tensor * expert * pipeline) == 0


def heads_split(heads: int, groups: int, tensor: Whole) -> Any:
    """Query heads split; key and value heads split, or repeat (Megatron-core attention; vLLM's parallel linears)."""
    return (heads % tensor == 0) & ((groups % tensor == 0) | (tensor % groups == 0))


def experts_split(experts: int, expert: Whole) -> Any:
    """Megatron-core's MoE layer; a dense model has none to split."""
    return (expert == 1) | ((experts % expert == 0) & (experts > 0))


def width_splits(width: int, ranks: Whole) -> Any:
    """Megatron-core's parallel linears. A width of 0 is that of a layer which is not there."""
    return width % ranks == 0


def stages_split(layers: int, pipeline: Whole, first: Whole = 0, last: Whole = 0) -> Any:
    """Every layer is built, and every stage has one. `first`, `last`: layers of those stages, 0 where not set.

    Megatron-core transformer_block.get_num_layers_to_build: what the ends leave must divide among the others.
    """
    ends = (first > 0) * 1 + (last > 0) * 1
    stages, rest = pipeline - ends, layers - first - last
    share = stages + (stages == 0)  # no division by nothing: with no stage left there must be no layer left either
    return (stages >= 0) & (rest >= stages) & ((rest % share) * (stages > 0) + rest * (stages == 0) == 0)


def shorter_ends(layers: int, stages: int) -> tuple[int, int]:
    """Layers of the first and the last of more than two stages so that the others are whole and equal.

    The ends also hold embedding and head, so they get less.
    """
    each = -(-layers // stages)
    left = layers - each * (stages - 2)
    while left < 2:
        each -= 1
        left = layers - each * (stages - 2)
    return left - left // 2, left // 2


def chunks_split(layers: Whole, pipeline: Whole, virtual: Whole) -> Any:
    """Stages of equal size split into virtual ones, of which there are none with a single stage."""
    return ((virtual == 1) | (pipeline > 1)) & (layers % (pipeline * virtual) == 0)


def replica_fills(world: Whole, per_node: int, tensor: Whole, data: Whole) -> Any:
    """Replicas fill the GPUs; one that spans nodes fills each, and its data ranks each lie in one (verl's vLLM)."""
    whole = tensor * data
    in_node = whole * (whole < per_node) + per_node * (whole >= per_node)
    return (world % whole == 0) & (whole % in_node == 0) & ((data == 1) | (per_node % tensor == 0))


def experts_spread(expert: Whole, tensor: Whole, data: Whole) -> Any:
    """vLLM spreads experts over a whole replica or not at all (verl/workers/config/rollout.py)."""
    return (expert == 1) | (expert == tensor * data)


def batch_splits(samples: int, ranks: Whole) -> Any:
    """verl hands each data parallel rank the same number of samples of a mini batch."""
    return samples % ranks == 0


def budget_holds(budget: Whole, context: Whole, longest: int) -> Any:
    """The longest sequence fits the token budget of the ranks that share it (verl seqlen_balancing)."""
    return budget * context >= longest
