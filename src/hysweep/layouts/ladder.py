"""The memory ladder: the same training with less memory, one rung at a time, for the phase that ran out.

A rung changes only fields that say nothing of what is learned, so the trial stays itself and goes on from its
checkpoint. Rungs stand in the order of what they cost: recomputation, then waiting on the host, smaller pieces, and
at last another layout. Each is tried only where it is legal (`hysweep.check`) and changes something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hysweep.check import check_trial, errors
from hysweep.check.memory import fused_kernels
from hysweep.estimate import optimizer_on_cpu
from hysweep.schema import Trial
from hysweep.track import Phase

LEAST_BUCKET_MIB = 256
LEAST_UTILISATION = 0.3
MOST_UTILISATION = 0.9
MOST_RUNGS = 40  # a stop for a ladder that would not end; the longest known has 15


@dataclass(frozen=True, slots=True)
class Rung:
    """name: for records; phases: those that it relieves; climb: the trial one rung up, None where it is there."""

    name: str
    phases: frozenset[Phase]
    climb: Callable[[Trial], Trial | None]


def next_rung(trial: Trial, phase: Phase, kv_starved: bool = False) -> tuple[str, Trial] | None:
    """The name of the next rung for a phase that ran out of memory and the trial on it; None at the top.

    A phase that is not known is taken for the update, where the peak usually is. `kv_starved`: the rollout did not
    run out of the GPU's memory but of room for its cache, and wants more of it, not less.
    """
    if kv_starved:
        more = _utilisation(trial, +0.05)
        return ("more_cache", more) if more and _is_legal(more, trial) else None
    phase = Phase.UPDATE if phase is Phase.UNKNOWN else phase
    for rung in LADDER:
        higher = rung.climb(trial) if phase in rung.phases else None
        if higher is not None and higher != trial and _is_legal(higher, trial):
            return rung.name, higher
    return None


def host_rung(trial: Trial) -> tuple[str, Trial] | None:
    """The same for a node whose own memory ran out: more of it asked for, else less kept there; None at the top."""
    asked = trial.cluster.memory_gib
    if asked:
        return "more_host_memory", replace(trial, cluster=replace(trial.cluster, memory_gib=math.ceil(asked * 1.5)))
    for name in ("optimizer_on_cpu", "offload_policy", "optimizer_offload", "param_offload"):
        if getattr(trial.memory, name):
            less = _memory(trial, **{name: False})
            if _is_legal(less, trial):
                return f"no_{name}", less
    return None


def rungs(trial: Trial, phase: Phase) -> Iterator[tuple[str, Trial]]:
    """The whole ladder from a trial up."""
    for _ in range(MOST_RUNGS):
        step = next_rung(trial, phase)
        if step is None:
            return
        yield step
        trial = step[1]


def _is_legal(higher: Trial, lower: Trial) -> bool:
    """Whether the rung brings no problem that was not there."""
    before = {p.key for p in errors(check_trial(lower))}
    return not [p for p in errors(check_trial(higher)) if p.key not in before]


def _memory(trial: Trial, **changes: Any) -> Trial:
    return replace(trial, memory=replace(trial.memory, **changes))


def _on_megatron(trial: Trial) -> bool:
    return trial.parallelism.engine == "megatron"


def _full_recompute(trial: Trial) -> Trial | None:
    if not _on_megatron(trial):
        return _memory(trial, use_gradient_checkpointing=True)
    if trial.memory.recompute_granularity == "full":
        return None
    return _memory(
        trial,
        recompute_granularity="full",
        recompute_modules=None,
        recompute_method="uniform",
        recompute_num_layers=1,
    )


def _param_offload(trial: Trial) -> Trial:
    return _memory(trial, param_offload=True)


def _optimizer_offload(trial: Trial) -> Trial:
    return _memory(trial, optimizer_offload=True)


def _floor(trial: Trial, context: int | None = None) -> int:
    """The least token budget of a GPU: its share of the longest sequence."""
    longest = trial.trainer.max_prompt_length + trial.trainer.max_response_length
    return -(-longest // (context or trial.parallelism.context))


def _less(trial: Trial, name: str) -> Trial | None:
    """Half the budget, or at once the least, where half would be near it."""
    trainer = trial.trainer
    if not trainer.use_dynamic_batch:
        half = max(1, trainer.micro_batch_size_per_gpu // 2)
        return replace(trial, trainer=replace(trainer, micro_batch_size_per_gpu=half))
    budget, least = getattr(trainer, name), _floor(trial)
    if budget <= least:
        return None
    less: Any = {name: budget // 2 if budget // 2 >= 4 * least else least}
    return replace(trial, trainer=replace(trainer, **less))


def _token_budget(trial: Trial) -> Trial | None:
    return _less(trial, "max_token_len_per_gpu")


def _log_prob_budget(trial: Trial) -> Trial | None:
    return _less(trial, "log_prob_max_token_len_per_gpu")


def _fused_kernels(trial: Trial) -> Trial | None:
    return _memory(trial, **fused_kernels(trial)) if trial.has_gpu else None


def _bucket(trial: Trial) -> Trial | None:
    size = trial.rollout.update_bucket_mib
    if trial.rollout.engine != "vllm" or size <= LEAST_BUCKET_MIB:
        return None
    return replace(trial, rollout=replace(trial.rollout, update_bucket_mib=max(LEAST_BUCKET_MIB, size // 2)))


def _utilisation(trial: Trial, change: float = -0.1) -> Trial | None:
    share = round(trial.rollout.gpu_memory_utilization + change, 2)
    if trial.rollout.engine != "vllm" or not LEAST_UTILISATION <= share <= MOST_UTILISATION:
        return None
    return replace(trial, rollout=replace(trial.rollout, gpu_memory_utilization=share))


def _optimizer_on_cpu(trial: Trial) -> Trial | None:
    if not trial.has_gpu or optimizer_on_cpu(trial):
        return None
    return _memory(trial, optimizer_on_cpu=True) if _on_megatron(trial) else _memory(trial, offload_policy=True)


def _more_context(trial: Trial) -> Trial | None:
    """Twice the ranks to a sequence: the least budget of each is half of what it was."""
    p = trial.parallelism
    if not trial.memory.reshardable_checkpoints or not _on_megatron(trial):
        return None
    context = 2 * p.context
    trainer = replace(
        trial.trainer,
        max_token_len_per_gpu=max(_floor(trial, context), trial.trainer.max_token_len_per_gpu // 2),
        log_prob_max_token_len_per_gpu=max(_floor(trial, context), trial.trainer.log_prob_max_token_len_per_gpu // 2),
    )
    return replace(trial, parallelism=replace(p, context=context), trainer=trainer)


def _more_pipeline(trial: Trial) -> Trial | None:
    """The next number of stages that layers and GPUs divide into."""
    p, layers = trial.parallelism, trial.model.shape.num_layers
    if (
        not trial.memory.reshardable_checkpoints
        or not _on_megatron(trial)
        or p.first_stage_layers
        or p.last_stage_layers
    ):
        return None
    for stages in range(p.pipeline + 1, layers + 1):
        higher = replace(trial, parallelism=replace(p, pipeline=stages, virtual_pipeline=None))
        if layers % stages == 0 and _is_legal(higher, trial):
            return higher
    return None


START, ROLLOUT, LOG_PROB, UPDATE, SYNC = Phase.START, Phase.ROLLOUT, Phase.LOG_PROB, Phase.UPDATE, Phase.WEIGHT_SYNC
LOAD, SAVE = Phase.CHECKPOINT_LOAD, Phase.CHECKPOINT_SAVE


def _rung(name: str, climb: Callable[[Trial], Trial | None], *phases: Phase) -> Rung:
    return Rung(name, frozenset(phases), climb)


# Selective recomputation is no rung: of Megatron's default, attention's core, it was measured to take more memory.
# The optimizer and the gradients are on the GPU for the whole of an update, so that waiting elsewhere helps the others.
LADDER: tuple[Rung, ...] = (
    _rung("full_recompute", _full_recompute, UPDATE),
    _rung("param_offload", _param_offload, START, ROLLOUT, LOG_PROB, SYNC, LOAD, SAVE),
    _rung("optimizer_offload", _optimizer_offload, START, ROLLOUT, LOG_PROB, SYNC, LOAD, SAVE),
    _rung("token_budget", _token_budget, UPDATE),
    _rung("log_prob_budget", _log_prob_budget, LOG_PROB),
    _rung("fused_kernels", _fused_kernels, UPDATE, LOG_PROB),
    _rung("bucket", _bucket, SYNC),
    _rung("utilisation", _utilisation, START, ROLLOUT, SYNC),
    _rung("optimizer_on_cpu", _optimizer_on_cpu, UPDATE, START, LOAD, SAVE),
    _rung("more_context", _more_context, UPDATE, LOG_PROB),
    _rung("more_pipeline", _more_pipeline, UPDATE, LOG_PROB, START, LOAD, SAVE),
)
