"""Whether it fits: the estimate's verdicts (`hysweep.estimate`) as problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hysweep.check.keys import KERNEL_WIDTH
from hysweep.check.numbers import either, has_shape
from hysweep.check.rollout import legal_replicas
from hysweep.estimate import estimate, optimizer_on_cpu
from hysweep.estimate.factors import kept_for, store
from hysweep.estimate.result import NEAR
from hysweep.schema import Problem, Severity, Stage, Trial
from hysweep.schema.gpus import GPUS, kind_of, mistyped
from hysweep.schema.override import emit

Fits = Callable[[Trial], bool]
SHARES = tuple(hundredths / 100 for hundredths in range(30, 95, 5))
BUDGETS = ("max_token_len_per_gpu", "log_prob_max_token_len_per_gpu")
STAGES = {"training": Stage.UPDATE, "rollout with weight sync": Stage.START, "resume": Stage.START}


def cure_of(t: Trial, group: str) -> str:
    """What would help a group of phases, of what is not chosen yet: by the estimate of the trial with it.

    Changes of memory alone that let it fit, the cheapest first, and with room for the estimate's error where they can;
    else the one that helps the most; else more GPUs.
    """
    before, card = _margins(t), t.cluster.gpu_memory_gib or 0.0
    others = {name for name, margin in before.items() if margin >= 0 and name != group}

    def leaves(other: Trial, room: float = 0.0) -> bool:
        margins = _margins(other)
        return before[group] < margins[group] >= room and all(margins[name] >= 0 for name in others)

    if found := cures(t, partial(leaves, room=NEAR * card)) or cures(t, leaves):
        return f"give {either(found[:2])}"
    changed = [(_margins(other)[group], name) for name, other in changes(t, leaves)]
    margin, name = max(changed, default=(before[group], ""))
    if margin > before[group]:
        return f"more cluster.nodes, or another layout: {name} alone leaves it {-margin:.1f} GiB short"
    return "more cluster.nodes, or another layout"


def cures(t: Trial, fits: Fits) -> list[str]:
    """The changes with which a trial fits, the cheapest first; of one field the first, which changes the least."""
    found: dict[str, str] = {}
    for name, other in changes(t, fits):
        if fits(other):
            found.setdefault(name.partition("=")[0], name)
    return list(found.values())


def _margins(t: Trial) -> dict[str, float]:
    return {v.group: v.margin_gib for v in estimate(t).verdicts}


def changes(t: Trial, fits: Fits) -> Iterator[tuple[str, Trial]]:
    """Settings of memory that the trial has not, as a command line says them, in the order of what they cost.

    Of a number it is the one nearest to the trial's own that `fits`.
    """
    m, r, on_megatron = t.memory, t.rollout, t.parallelism.engine == "megatron"
    kernels = fused_kernels(t)

    def memory(**changes: Any) -> tuple[str, Trial]:
        said = " ".join(f"memory.{name}={emit(value)}" for name, value in changes.items())
        return said, replace(t, memory=replace(m, **changes))

    if on_megatron and m.recompute_granularity != "full":
        whole = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        whole |= {"recompute_modules": None} if m.recompute_modules is not None else {}
        yield memory(**whole)
        if kernels:
            yield memory(**whole, **kernels)
    if not on_megatron and not m.use_gradient_checkpointing:
        yield memory(use_gradient_checkpointing=True)
    if not (m.param_offload and m.optimizer_offload):
        yield memory(param_offload=True, optimizer_offload=True)
    yield from _smaller_batches(t, fits)
    if kernels:
        yield memory(**kernels)
    for share in sorted(SHARES, key=lambda share: abs(share - r.gpu_memory_utilization)):
        if r.engine == "vllm" and share != r.gpu_memory_utilization:
            other = replace(t, rollout=replace(r, gpu_memory_utilization=share))
            yield f"rollout.gpu_memory_utilization={share:g}", other
    if r.engine == "vllm":
        for tensor in (size for size in legal_replicas(t) if size > r.tensor):
            spread = tensor * r.data if r.expert > 1 else 1  # experts fill a replica, or are not spread
            said = f"rollout.tensor={tensor}" + (f" rollout.expert={spread}" if spread > 1 else "")
            yield said, replace(t, rollout=replace(r, tensor=tensor, expert=spread))
    if on_megatron and not optimizer_on_cpu(t):
        yield memory(optimizer_on_cpu=True)


def fused_kernels(t: Trial) -> dict[str, bool]:
    """The settings of memory that turn the fused kernels on; none where they are on, or another rule refuses them."""
    m, on_megatron = t.memory, t.parallelism.engine == "megatron"
    needs_logits = t.algorithm.adv_estimator.endswith("optimal_token_baseline")
    if m.use_fused_kernels or needs_logits or (on_megatron and t.model.shape.hidden_size % KERNEL_WIDTH):
        return {}
    return {"use_fused_kernels": True} | (
        {} if m.use_remove_padding or not on_megatron else {"use_remove_padding": True}
    )


def _smaller_batches(t: Trial, fits: Fits) -> Iterator[tuple[str, Trial]]:
    """The token budgets of the update, of the log-probabilities, of both: as large as fits, at least one sequence."""
    least = -(-(t.trainer.max_prompt_length + t.trainer.max_response_length) // t.parallelism.context)
    for names in ((BUDGETS[0],), (BUDGETS[1],), BUDGETS):
        own = {name: getattr(t.trainer, name) for name in names}

        if t.trainer.use_dynamic_batch and min(own.values()) > least:
            fit = partial(_fit, fits=fits, t=t, budgets=own)
            other = _at(_largest(least, max(own.values()), fit), t, own)
            yield " ".join(f"trainer.{name}={getattr(other.trainer, name)}" for name in names), other


def _at(tokens: int, t: Trial, budgets: Mapping[str, int]) -> Trial:
    """A trial whose `budgets` are so many tokens at most."""
    capped: Any = {name: min(tokens, budget) for name, budget in budgets.items()}
    return replace(t, trainer=replace(t.trainer, **capped))


def _fit(tokens: int, fits: Fits, t: Trial, budgets: Mapping[str, int]) -> bool:
    return fits(_at(tokens, t, budgets))


def _largest(least: int, above: int, fits: Callable[[int], bool]) -> int:
    """The largest number from `least` up that fits, with two digits that count; `least` where none does."""
    low = least
    if not fits(least):
        return least
    while above - low > 1:
        middle = (low + above) // 2
        low, above = (middle, above) if fits(middle) else (low, middle)
    step = int(10 ** max(len(str(low)) - 2, 0))
    return max(low // step * step, least)


def memory_is_known(t: Trial) -> Iterator[Problem]:
    """Advice: whether it fits cannot be looked at where nobody says what the GPUs have."""
    if t.has_gpu and t.cluster.gpu_memory_gib is None:
        why = f"how much memory each {t.cluster.gpu} has is not said: whether it fits was not looked at"
        cure = "give its GiB, as `nvidia-smi` shows them"
        yield Problem("cluster.gpu_memory_gib", "null", why, cure, Stage.NEVER, Severity.WARNING)


def gpu_is_what_it_says(t: Trial) -> Iterator[Problem]:
    """Advice: a name that is of no kind that is known, and a memory that such a card has not."""
    c = t.cluster
    if not c.gpu:
        return
    kind = kind_of(c.gpu)
    has = GPUS[kind] if kind else None
    if kind is None:
        why = "is no GPU that is known: its memory is taken as it is said, and no time of a step is predicted"
        cure = (
            f"did you mean {meant}?"
            if (meant := mistyped(c.gpu, c.gpu_memory_gib))
            else "name the card, as in H100, H20 or B300"
        )
        yield Problem("cluster.gpu", c.gpu, why, cure, Stage.NEVER, Severity.WARNING)
    elif has and c.gpu_memory_gib is not None and abs(c.gpu_memory_gib - has) > NEAR * has:
        why, cure = f"of a {kind} is {has:g} GiB", f"give {has:g}, or the cluster.gpu that it is"
        yield Problem("cluster.gpu_memory_gib", c.gpu_memory_gib, why, cure, Stage.NEVER, Severity.WARNING)


def memory_fits(t: Trial) -> Iterator[Problem]:
    """A phase that is over the GPU's memory by more than the estimate errs; one that is near it is a warning."""
    if not t.has_gpu or t.cluster.gpu_memory_gib is None or not has_shape(t):
        return
    for verdict in estimate(t).verdicts:
        if verdict.fits and verdict.is_sure:
            continue
        is_error = verdict.is_sure
        near = "" if is_error else "; --strict stops what is so near"
        yield Problem(
            "cluster.gpu_memory_gib",
            t.cluster.gpu_memory_gib,
            f"{verdict.group} {verdict.words} ({verdict.why})",
            f"see `hysweep estimate`, `hysweep layouts`; {cure_of(t, verdict.group)}{near}",
            STAGES[verdict.group],
            Severity.ERROR if is_error else Severity.WARNING,
        )


def calibration_is_readable(t: Trial) -> Iterator[Problem]:
    """Advice: a factor that was kept for the cluster, and that nobody can take."""
    if t.has_gpu and (fault := kept_for(t.cluster).fault):
        why, cure = f"{fault}, and none is taken", "run `hysweep estimate --calibrate DIR` again, or remove it"
        yield Problem("calibration", store(), why, cure, Stage.NEVER, Severity.WARNING)
