"""Whether it fits: the estimate's verdicts (`hysweep.estimate`) as problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

from hysweep.check.numbers import either, has_shape
from hysweep.check.rollout import legal_replicas
from hysweep.estimate import estimate
from hysweep.schema import Problem, Severity, Stage, Trial

# Measured runs lie within 5 % of the estimate; nearer to the limit than that, it does not know.
SURE = 0.05
UTILISATIONS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
STAGES = {"training": Stage.UPDATE, "rollout with weight sync": Stage.START, "resume": Stage.START}


def cure_of(t: Trial, group: str) -> str:
    """What would help a group of phases, of what is not chosen yet: by the estimate of the trial with it.

    Changes of memory alone that let it fit, the cheapest first; else the one that helps the most; else more GPUs.
    """
    before = _margin(t, group)
    helping = [(name, margin) for name, other in _changes(t) if (margin := _margin(other, group)) > before]
    fitting: dict[str, str] = {}
    for name, margin in helping:
        if margin >= 0:
            fitting.setdefault(name.partition("=")[0], name)  # of one field the first: it changes the least
    if fitting:
        return f"give {either(list(fitting.values())[:2])}"
    if helping:
        name, margin = max(helping, key=lambda pair: pair[1])
        return f"more cluster.nodes, or another layout: {name} alone leaves it {-margin:.0f} GiB short"
    return "more cluster.nodes, or another layout"


def _margin(t: Trial, group: str) -> float:
    return next((v.margin_gib for v in estimate(t).verdicts if v.group == group), inf)


def _changes(t: Trial) -> Iterator[tuple[str, Trial]]:
    """Settings of memory that the trial has not, as a command line says them, in the order of what they cost."""
    m, r, on_megatron = t.memory, t.rollout, t.parallelism.engine == "megatron"

    def memory(**changes: Any) -> Trial:
        return replace(t, memory=replace(m, **changes))

    if on_megatron and m.recompute_granularity != "full":
        whole = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        said = " ".join(f"memory.{name}={value}" for name, value in whole.items())
        yield said, memory(**whole)
        if not m.use_fused_kernels:
            yield f"{said} memory.use_fused_kernels=true", memory(**whole, use_fused_kernels=True)
    if not on_megatron and not m.use_gradient_checkpointing:
        yield "memory.use_gradient_checkpointing=true", memory(use_gradient_checkpointing=True)
    if not (m.param_offload and m.optimizer_offload):
        both = memory(param_offload=True, optimizer_offload=True)
        yield "memory.param_offload=true memory.optimizer_offload=true", both
    floor = -(-(t.trainer.max_prompt_length + t.trainer.max_response_length) // t.parallelism.context)
    if t.trainer.use_dynamic_batch and t.trainer.max_token_len_per_gpu > floor:
        less = replace(t, trainer=replace(t.trainer, max_token_len_per_gpu=floor))
        yield f"trainer.max_token_len_per_gpu={floor}", less
    if not m.use_fused_kernels:
        yield "memory.use_fused_kernels=true", memory(use_fused_kernels=True)
    for share in UTILISATIONS:
        if r.engine == "vllm" and share != r.gpu_memory_utilization:
            other = replace(t, rollout=replace(r, gpu_memory_utilization=share))
            yield f"rollout.gpu_memory_utilization={share:g}", other
    if r.engine == "vllm":
        for tensor in legal_replicas(t):
            if tensor > r.tensor:
                yield f"rollout.tensor={tensor}", replace(t, rollout=replace(r, tensor=tensor))
    if on_megatron and not m.optimizer_on_cpu:
        yield "memory.optimizer_on_cpu=true", memory(optimizer_on_cpu=True)


def memory_is_known(t: Trial) -> Iterator[Problem]:
    """Advice: whether it fits cannot be looked at where nobody says what the GPUs have."""
    if t.has_gpu and t.cluster.gpu_memory_gib is None:
        why = f"how much a {t.cluster.gpu} has is not said: whether it fits was not looked at"
        cure = "give its GiB, as `nvidia-smi` shows them"
        yield Problem("cluster.gpu_memory_gib", "null", why, cure, Stage.NEVER, Severity.WARNING)


def memory_fits(t: Trial) -> Iterator[Problem]:
    """A phase that is over the GPU's memory by more than the estimate errs; one that is near it is a warning."""
    if not t.has_gpu or t.cluster.gpu_memory_gib is None or not has_shape(t):
        return
    card = t.cluster.gpu_memory_gib
    for verdict in estimate(t).verdicts:
        near = SURE * card
        if verdict.margin_gib >= near:
            continue
        is_over = verdict.margin_gib < -near
        why = f"{verdict.group}: {verdict.why}, by the estimate"
        cure = f"see `hysweep estimate`, `hysweep layouts`; {cure_of(t, verdict.group)}"
        yield Problem(
            "cluster.gpu_memory_gib",
            card,
            why if is_over else f"{why}: too near to be sure",
            cure,
            STAGES[verdict.group],
            Severity.ERROR if is_over else Severity.WARNING,
        )
