"""Every legal layout of a model on a cluster, as columns of numbers: no memory, no cost yet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from hysweep.check import legal
from hysweep.check.numbers import divisors_of
from hysweep.schema import Trial

Column = NDArray[np.int64]

TRAINING = (
    "tensor",
    "pipeline",
    "first_stage_layers",
    "last_stage_layers",
    "virtual_pipeline",
    "context",
    "expert",
    "expert_tensor",
    "data",
)
ENDS = ("first_stage_layers", "last_stage_layers")
NARROWEST = 64  # columns of an expert on a rank: DeepSeek-V3 over 32 GPUs, as verl's example has it
MOST_CHUNKS = 8  # virtual stages of a stage: more of them cost more sends than they save waiting


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns of one length, by name; a count of layers of 0 is one that is not set, as for even stages."""

    columns: dict[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def where(self, chosen: NDArray[np.bool_]) -> Grid:
        return Grid({name: column[chosen] for name, column in self.columns.items()})


def training_grid(t: Trial, given: Collection[str] = ()) -> Grid:
    """The layouts of training: those that Megatron takes for this model, world, batch and lengths.

    A number of stages that does not divide the layers is there with shorter ends (first and last stage), evenly as can
    be; where the trial's own ends are `given`, every number of stages is there with these. Tensor ranks stay within a
    node. The token budget, or the micro batch, is the trial's own.
    """
    world, s = t.world_size, t.model.shape
    longest = t.trainer.max_prompt_length + t.trainer.max_response_length
    ranks = _divisors(world)
    tensors = ranks[ranks <= t.cluster.gpus_per_node]
    ends = [getattr(t.parallelism, name) or 0 if f"parallelism.{name}" in given else 0 for name in ENDS]
    pipes = _pipelines(ranks[ranks <= s.num_layers], s.num_layers, *ends)
    experts = _divisors(s.num_experts) if s.num_experts else np.ones(1, np.int64)
    grid = _product({"tensor": tensors, "pipe": np.arange(len(pipes)), "context": ranks})
    for i, name in enumerate(("pipeline", "first_stage_layers", "last_stage_layers", "virtual_pipeline")):
        grid[name] = pipes[grid["pipe"], i]
    del grid["pipe"]
    dense_layers = s.first_dense_layers if s.num_experts else s.num_layers
    fits = (
        legal.dense_grid(world, grid["tensor"], grid["pipeline"], grid["context"])
        & legal.heads_split(s.num_attention_heads, s.num_key_value_heads, grid["tensor"])
        # more would pad each sequence by a tenth and more
        & ((grid["context"] == 1) | (grid["tensor"] * grid["context"] * 2 * 10 <= longest))
        & legal.width_splits(s.intermediate_size if dense_layers else 0, grid["tensor"])
    )
    if t.trainer.use_dynamic_batch:
        for budget in (t.trainer.max_token_len_per_gpu, t.trainer.log_prob_max_token_len_per_gpu):
            fits &= legal.budget_holds(budget, grid["context"], longest)
    grid = {name: column[fits] for name, column in grid.items()}
    grid["data"] = world // (grid["tensor"] * grid["pipeline"] * grid["context"])
    # without dynamic batching a rank's share is whole micro batches
    micro = 1 if t.trainer.use_dynamic_batch else t.trainer.micro_batch_size_per_gpu
    fits = legal.batch_splits(t.trainer.mini_batch_size * t.rollout.n, grid["data"] * micro)
    grid = {name: column[fits] for name, column in grid.items()}
    # each with every way to lay out the experts
    ways = _product({"expert": experts, "expert_tensor": ranks[ranks <= t.cluster.gpus_per_node]})
    if not s.num_experts:
        ways = {name: column[:1] for name, column in ways.items()}
    count, each = len(ways["expert"]), len(grid["tensor"])
    grid = {name: np.repeat(column, count) for name, column in grid.items()}
    grid |= {name: np.tile(column, each) for name, column in ways.items()}
    fits = (
        legal.expert_grid(world, grid["expert_tensor"], grid["expert"], grid["pipeline"])
        & legal.experts_split(s.num_experts, grid["expert"])
        & legal.width_splits(s.moe_intermediate_size, grid["expert_tensor"])
    )
    return Grid({name: grid[name][fits] for name in TRAINING})


def rollout_grid(t: Trial, given: Collection[str] = ()) -> Grid:
    """The replicas of the rollout engine that fill the GPUs and split the model.

    Without rollout.expert vLLM cuts every expert over all ranks of a replica: so narrow that each would do little but
    wait (`NARROWEST`) they are there only where rollout.tensor or .data is `given`.
    """
    world, s = t.world_size, t.model.shape
    grid = _product({"rollout_tensor": _divisors(world), "rollout_data": _divisors(world)})
    tensor, data = grid["rollout_tensor"], grid["rollout_data"]
    experts = tensor <= s.num_experts if s.num_experts and t.model.model_type == "hy_v3" else tensor > 0
    width = s.moe_intermediate_size if s.num_experts and t.rollout.expert == 1 else 0
    is_given = bool({"rollout.tensor", "rollout.data"} & set(given))
    fits = (
        ((width == 0) | is_given | (width >= NARROWEST * tensor * data))
        & legal.experts_spread(t.rollout.expert, tensor, data)
        & legal.replica_fills(world, t.cluster.gpus_per_node, tensor, data)
        & legal.heads_split(s.num_attention_heads, s.num_key_value_heads, tensor)
        & experts
    )
    return Grid({name: column[fits] for name, column in grid.items()})


def crossed(one: Grid, other: Grid) -> Grid:
    """Each row of one beside each row of the other."""
    columns = {name: np.repeat(column, len(other)) for name, column in one.columns.items()}
    return Grid(columns | {name: np.tile(column, len(one)) for name, column in other.columns.items()})


def _pipelines(stages: Column, layers: int, first: int = 0, last: int = 0) -> Column:
    """Rows of (stages, layers of the first, of the last, virtual stages). `first`, `last`: above 0 where they are set.

    Ends that are set split into virtual stages as the others do.
    """
    rows = []
    for count in map(int, stages):
        if first or last:
            ends = [layers_of for layers_of in (first, last) if layers_of]
            if count > 1 and legal.stages_split(layers, count, first, last):
                others = (layers - sum(ends)) // (count - len(ends)) if count > len(ends) else 0
                each = gcd(*ends, others)
                rows += [(count, first, last, c) for c in range(1, min(each, MOST_CHUNKS) + 1) if each % c == 0]
        elif layers % count == 0:
            each = layers // count
            chunks = [c for c in range(1, min(each, MOST_CHUNKS) + 1) if legal.chunks_split(layers, count, c)]
            rows += [(count, 0, 0, c) for c in chunks]
        elif count > 2:
            shorter = legal.shorter_ends(layers, count)
            if legal.stages_split(layers, count, *shorter):
                rows.append((count, *shorter, 1))
    return np.array(rows, np.int64).reshape(-1, 4)


def _divisors(number: int) -> Column:
    return np.array(divisors_of(number), np.int64)


def _product(columns: dict[str, Column]) -> dict[str, Column]:
    """Every combination, a column each."""
    crossed = np.meshgrid(*columns.values(), indexing="ij")
    return {name: column.ravel() for name, column in zip(columns, crossed, strict=True)}
