"""How long a step would take, roughly: to rank layouts by, not to promise seconds.

A step is rollout, log-probabilities, update, weight sync and what waits on the host. Each term is bytes or operations
over what the hardware gives; nothing overlaps. What is measured can replace a ranking: `hysweep layouts --sweep`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hysweep.estimate import count_parameters, optimizer_on_cpu
from hysweep.layouts.grid import Grid
from hysweep.schema import Trial
from hysweep.schema.gpus import kind_of

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Machine:
    """Of one GPU: dense bf16 operations a second, and bytes a second of memory, to its node's GPUs, and to others."""

    flops: float
    memory: float
    node: float
    network: float = 50e9  # a 400 Gb/s port a GPU


# The vendors' data sheets; a direction of NVLink.
MACHINES = {
    "H20": Machine(148e12, 4.0e12, 450e9),
    "A100": Machine(312e12, 2.0e12, 300e9),
    "H100": Machine(989e12, 3.35e12, 450e9),
    "H800": Machine(989e12, 3.35e12, 200e9),
    "H200": Machine(989e12, 4.8e12, 450e9),
    "B200": Machine(2250e12, 8.0e12, 900e9),
}
USUAL = MACHINES["H100"]  # what layouts are compared by on a GPU that is not in the table: no seconds are told then

OF_PEAK = 0.4  # of its operations a well laid out trainer gets
HOST = 25e9  # bytes a second between a GPU and its host
RECOMPUTED = 1 / 3  # of forward and backward that full recomputation adds: one forward more
HOP_IN_NODE, HOP_ACROSS = 15e-6, 40e-6  # seconds of one small reduction among tensor ranks, as decoding makes them


def machine_of(t: Trial) -> Machine | None:
    """The GPU that a trial is for; None where its speeds are not known."""
    return MACHINES.get(kind_of(t.cluster.gpu or "") or "")


def step_seconds(t: Trial, grid: Grid, kv_tokens: NDArray[Any]) -> dict[str, Seconds]:
    """Seconds of each part of a step for each row of a grid; `kv_tokens`: room for tokens in a replica's cache."""
    machine = machine_of(t) or USUAL
    update, log_prob = _training(t, grid, machine)
    return {
        "rollout": _rollout(t, grid, machine, kv_tokens),
        "log_prob": log_prob,
        "update": update,
        "sync": _sync(t, grid, machine),
        "offload": _offload(t, grid),
    }


def _training(t: Trial, g: Grid, machine: Machine) -> tuple[Seconds, Seconds]:
    """Update and log-probability passes: operations, then what ranks send each other, then the pipeline's bubble."""
    s, per_node = t.model.shape, t.cluster.gpus_per_node
    counted = count_parameters(s)
    tokens = t.trainer.train_batch_size * t.rollout.n * (t.trainer.max_prompt_length + t.trainer.max_response_length)
    of_a_gpu = tokens / (g["data"] * g["context"])  # a stage sees all tokens of its ranks
    layers = s.num_layers / g["pipeline"]
    forward = 2 * counted.active * tokens / t.world_size / (machine.flops * OF_PEAK)

    # bytes that a token's layer sends in a forward pass: two gathers and two scatters among tensor ranks, keys and
    # values around the context ring, and out to the experts and back
    width = 2 * s.hidden_size
    tensor = 4 * width * (g["tensor"] - 1) / g["tensor"] / machine.node
    keys = 2 * 2 * max(s.num_key_value_heads * s.head_dim, s.kv_lora_rank) / g["tensor"]
    ring = keys * (g["context"] - 1) / _link(g["tensor"] * g["context"], per_node, machine)
    ranks = g["expert"] * g["expert_tensor"]
    out = 2 * s.num_experts_per_token * width * (ranks - 1) / ranks / _link(ranks, per_node, machine)
    sent = of_a_gpu * layers * (tensor + ring / g["context"] + out)

    chunks = np.maximum(1, of_a_gpu / t.trainer.max_token_len_per_gpu)
    bubble = 1 + (g["pipeline"] - 1) / (g["virtual_pipeline"] * chunks)
    recompute = RECOMPUTED if t.memory.recompute_granularity == "full" else 0.0
    gradients = 4 * 2 * counted.total / (g["tensor"] * g["pipeline"]) * (g["data"] > 1)
    gradients = gradients / machine.network / np.maximum(g["expert"], 1)  # most of a mixture is experts
    epochs = t.trainer.ppo_epochs
    update = epochs * ((3 + 3 * recompute) * forward + (3 + recompute) * sent) * bubble + gradients
    passes = 1 - t.rollout.correction_bypass + (t.algorithm.use_kl_loss or t.algorithm.use_kl_in_reward)
    return update, passes * (forward + sent) * bubble


def _link(ranks: Any, per_node: int, machine: Machine) -> Any:
    """Bytes a second among so many neighbours: within a node or across."""
    return np.where(ranks <= per_node, machine.node, machine.network)


def _rollout(t: Trial, g: Grid, machine: Machine, kv_tokens: NDArray[Any]) -> Seconds:
    """Decoding reads the weights once a token, and the cache of each sequence, in as many waves as the cache needs."""
    s = t.model.shape
    counted = count_parameters(s)
    replicas = t.world_size / (g["rollout_tensor"] * g["rollout_data"])
    prompt, answer = t.trainer.max_prompt_length, t.trainer.max_response_length
    sequences = t.trainer.train_batch_size * t.rollout.n / replicas
    room = np.minimum(t.rollout.max_num_seqs * g["rollout_data"], kv_tokens / (prompt + answer))
    at_once = np.clip(np.minimum(sequences, room), 1, None)
    waves = np.ceil(sequences / at_once)
    # of a mixture so many experts are read as the tokens of a step visit
    visited = 1 - (1 - s.num_experts_per_token / s.num_experts) ** at_once if s.num_experts else 1.0
    experts = counted.expert * s.num_experts * (s.num_layers - s.first_dense_layers) if s.num_experts else 0
    ranks = g["rollout_tensor"] * g["rollout_data"]  # experts are spread over all of a replica
    weights = 2 * ((counted.total - experts) / g["rollout_tensor"] + experts * visited / ranks)
    groups = np.maximum(s.num_key_value_heads / g["rollout_tensor"], 1) * s.head_dim * 2
    of_a_token = 2 * s.num_layers * (s.kv_lora_rank + s.qk_rope_head_dim if s.kv_lora_rank else groups)
    cache = at_once / g["rollout_data"] * (prompt + answer / 2) * of_a_token
    is_wide = g["rollout_tensor"] > t.cluster.gpus_per_node
    hops = 2 * s.num_layers * np.where(is_wide, HOP_ACROSS, HOP_IN_NODE) * (g["rollout_tensor"] > 1)
    # ranks that see different data meet in each layer of experts, which lie over all of them: out to them and back
    mixtures = (s.num_layers - s.first_dense_layers) * (g["rollout_data"] > 1) if s.num_experts else 0
    hops = hops + 2 * mixtures * np.where(ranks > t.cluster.gpus_per_node, HOP_ACROSS, HOP_IN_NODE)
    seconds: Seconds = waves * answer * ((weights + cache) / machine.memory + hops)
    return seconds


def _sync(t: Trial, g: Grid, machine: Machine) -> Seconds:
    """Every replica gets all weights, each GPU its share; what a pipeline stage holds goes over the network."""
    bytes_ = 2 * count_parameters(t.model.shape).total
    return bytes_ / machine.network * (g["pipeline"] > 1) + bytes_ / machine.node + 0.0 * g["tensor"]


def _offload(t: Trial, g: Grid) -> Seconds:
    """Weights and optimizer go to the host and come back once a step."""
    total = count_parameters(t.model.shape).total
    of_a_gpu = total / (g["tensor"] * g["pipeline"] * np.maximum(g["expert"], 1))
    bytes_ = 2 * of_a_gpu * t.memory.param_offload + 12 * total / t.world_size * t.memory.optimizer_offload
    slow = 4 * 12 * total / t.world_size * optimizer_on_cpu(t)
    seconds: Seconds = (2 * bytes_ + slow) / HOST
    return seconds
