"""The rollout engine, its replicas and what is sampled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from hysweep.check import legal
from hysweep.check.numbers import divisors_of, either, has_shape, nearest_to
from hysweep.compile import (
    uses_v1,
)
from hysweep.estimate import estimate
from hysweep.estimate.memory import ROLLOUT
from hysweep.schema import Problem, Severity, Stage, Trial, suggest


def rollout_grid_divides_world(t: Trial) -> Iterator[Problem]:
    """world % (rollout tensor * data) == 0; found out after actor and reference are loaded."""
    each = t.rollout.tensor * t.rollout.data
    if t.world_size % each:
        tensors = replicas_that_fit(t)
        beside = f" beside rollout.data={t.rollout.data}" if t.rollout.data > 1 else ""
        if not tensors:
            tensors, beside = replicas_that_fit(t, 1), " and rollout.data=1"
        yield Problem(
            "rollout.tensor * data",
            each,
            f"must divide the {t.world_size} GPUs",
            f"try rollout.tensor of {either(nearest_to(t.rollout.tensor, tensors))}{beside}",
            Stage.START,
        )


def legal_replicas(t: Trial, data: int | None = None) -> list[int]:
    """Tensor ranks of a replica that fill the GPUs and split the heads, beside its data ranks."""
    s, data = t.model.shape, data or t.rollout.data
    served = s.num_experts if t.model.model_type == "hy_v3" and s.num_experts else t.world_size
    return [
        d
        for d in divisors_of(t.world_size)
        if d <= served
        and legal.replica_fills(t.world_size, t.cluster.gpus_per_node, d, data)
        and (not has_shape(t) or legal.heads_split(s.num_attention_heads, s.num_key_value_heads, d))
    ]


def replicas_that_fit(t: Trial, data: int | None = None) -> list[int]:
    """Of those the ones that the estimate lets hold the model; all where it knows of none, or is not asked."""
    legal_ones = legal_replicas(t, data)
    if not t.has_gpu or t.cluster.gpu_memory_gib is None or not has_shape(t):
        return legal_ones
    rollout = replace(t.rollout, data=data or t.rollout.data)
    others = {d: estimate(replace(t, rollout=replace(rollout, tensor=d))) for d in legal_ones}
    fitting = [d for d, found in others.items() if all(v.fits for v in found.verdicts if v.group == ROLLOUT)]
    return fitting or legal_ones


def rollout_experts_fill_replica(t: Trial) -> Iterator[Problem]:
    """See `legal.experts_spread`; and only a mixture has some to spread."""
    whole = t.rollout.tensor * t.rollout.data
    if t.rollout.expert > 1 and has_shape(t) and not t.model.shape.num_experts:
        why = f"{t.model.name} has no experts, and vLLM refuses to spread them"
        yield Problem("rollout.expert", t.rollout.expert, why, "give 1", Stage.START)
    elif not legal.experts_spread(t.rollout.expert, t.rollout.tensor, t.rollout.data):
        yield Problem(
            "rollout.expert",
            t.rollout.expert,
            "is neither 1 nor rollout.tensor * data",
            f"try {either(sorted({1, whole}))}",
            Stage.START,
        )


def engine_step_holds_sequences(t: Trial) -> Iterator[Problem]:
    """vLLM: max_num_batched_tokens >= max_num_seqs."""
    r = t.rollout
    if r.engine == "vllm" and r.max_num_batched_tokens < r.max_num_seqs:
        yield Problem(
            "rollout.max_num_batched_tokens",
            r.max_num_batched_tokens,
            f"is below max_num_seqs = {r.max_num_seqs}",
            f"give at least {r.max_num_seqs}",
            Stage.START,
        )


def temperature_leaves_diversity(t: Trial) -> Iterator[Problem]:
    """Nothing to draw from, or too little; vLLM's SamplingParams wants top_p above 0."""
    r = t.rollout
    for key, top_p in (("top_p", r.top_p), ("val_top_p", r.val_top_p if r.val_do_sample else 1)):
        if top_p == 0:
            yield Problem(f"rollout.{key}", 0.0, "leaves nothing to draw from", "1 is usual", Stage.ROLLOUT)
    if r.val_n > 1 and (r.val_temperature == 0 or not r.val_do_sample):
        key, value = ("val_temperature", 0.0) if r.val_do_sample else ("val_do_sample", False)
        why = f"is greedy: all {r.val_n} answers to a validation prompt (rollout.val_n) would be the same"
        cure = "set rollout.val_n=1, or sample them" + ("" if r.val_do_sample else ": rollout.val_do_sample=true")
        yield Problem(f"rollout.{key}", value, why, cure, Stage.NEVER, Severity.WARNING)
    if t.rollout.temperature == 0:
        yield Problem(
            "rollout.temperature",
            0.0,
            "all samples of a group would be the same",
            "0.9 to 1.0 is usual",
            Stage.ROLLOUT,
        )
    elif t.rollout.temperature < 0.5:
        yield Problem(
            "rollout.temperature",
            t.rollout.temperature,
            "leaves little diversity in a group",
            "0.9 to 1.0 is usual",
            Stage.NEVER,
            Severity.WARNING,
        )


# verl/trainer/ppo/rollout_corr_helper.py: SUPPORTED_ROLLOUT_RS_OPTIONS
REJECTIONS = (
    *(f"token_k{k}" for k in (1, 2, 3)),
    *(f"seq_sum_k{k}" for k in (1, 2, 3)),
    *(f"seq_mean_k{k}" for k in (1, 2, 3)),
    *(f"seq_max_k{k}" for k in (2, 3)),
)


def correction_is_readable(t: Trial) -> Iterator[Problem]:
    """Importance weights: one positive number, or low_high. Rejection: see `_is_bound`.

    verl/trainer/ppo/rollout_corr_helper.py; it says so at the first update.
    """
    r = t.rollout
    if r.correction_is is not None and not _is_bound(r.correction_is_threshold, may_span=True):
        yield Problem(
            "rollout.correction_is_threshold",
            r.correction_is_threshold,
            "is neither a cap nor low_high",
            "try '2.0' (TIS) or '0.5_5' (IcePop), in quotes",
            Stage.START,
        )
    if r.correction_bypass and (r.correction_is or r.correction_rs) and uses_v1(t):
        yield Problem(
            "rollout.correction_bypass",
            True,
            "leaves nothing to correct: verl's V1 trainer takes the rollout's probabilities for the old ones",
            "set it false, or correction_is and correction_rs null",
            Stage.NEVER,
        )
    if r.correction_rs is None:
        return
    names = [name.strip() for name in r.correction_rs.split(",")]
    for name in names:
        if name not in REJECTIONS:
            yield Problem(
                "rollout.correction_rs", name, "verl measures no such gap", suggest(name, REJECTIONS), Stage.UPDATE
            )
    bounds = [text.strip() for text in (r.correction_rs_threshold or "").split(",") if text.strip()]
    if len(bounds) not in (1, len(names)):
        yield Problem(
            "rollout.correction_rs_threshold",
            r.correction_rs_threshold,
            f"has {len(bounds)} bounds for {len(names)} measures",
            "give one for all, or one for each, separated by commas",
            Stage.UPDATE,
        )
        return
    for name, bound in zip(names, bounds * (len(names) if len(bounds) == 1 else 1), strict=True):
        if name in REJECTIONS and not _is_bound(bound, may_span=name.endswith("k1")):
            yield Problem(
                "rollout.correction_rs_threshold",
                bound,
                f"is no bound of {name}",
                "give low_high or one number for k1, one number above 0 for k2 and k3",
                Stage.UPDATE,
            )


def _is_bound(text: str, may_span: bool) -> bool:
    """One number above 0, or low_high with 0 < low <= high."""
    try:
        numbers = [float(part) for part in text.split("_")]
    except ValueError:
        return False
    most = 2 if may_span else 1
    return len(numbers) <= most and all(0 < n < inf for n in numbers) and numbers[0] <= numbers[-1]


def replica_fits_nodes(t: Trial) -> Iterator[Problem]:
    """A replica that spans nodes fills each; with data parallel ranks, each lies in a node (verl's vLLM replica)."""
    r, per_node = t.rollout, t.cluster.gpus_per_node
    whole = r.tensor * r.data
    in_node = min(per_node, whole)
    if legal.replica_fills(whole, per_node, r.tensor, r.data):
        return
    if whole % in_node:
        yield Problem(
            "rollout.tensor * data",
            whole,
            f"must be a multiple of the {per_node} GPUs of a node, or less",
            f"try rollout.tensor of {either(nearest_to(r.tensor, replicas_that_fit(t) or replicas_that_fit(t, 1)))}",
            Stage.START,
        )
    else:
        yield Problem(
            "rollout.tensor",
            r.tensor,
            f"with rollout.data above 1 it must divide the {per_node} GPUs of a node",
            f"try {either(nearest_to(r.tensor, [d for d in legal_replicas(t) if d <= per_node] or [1]))}",
            Stage.START,
        )


def engine_serves_model(t: Trial) -> Iterator[Problem]:
    """vLLM's HYV3: a replica has no more tensor ranks than the model has experts."""
    experts = t.model.shape.num_experts
    if t.rollout.engine == "vllm" and t.model.model_type == "hy_v3" and t.rollout.tensor > experts > 0:
        yield Problem(
            "rollout.tensor",
            t.rollout.tensor,
            f"is above num_experts = {experts}",
            f"give at most {experts}",
            Stage.START,
        )


def precisions_are_corrected(t: Trial) -> Iterator[Problem]:
    """Advice: engines that compute in different precision draw from different distributions."""
    r = t.rollout
    if t.has_gpu and r.dtype != t.parallelism.dtype and r.correction_is is None and r.correction_rs is None:
        yield Problem(
            "rollout.correction_is",
            None,
            f"the rollout computes in {r.dtype}, the trainer in {t.parallelism.dtype}, and nothing corrects the gap",
            "try rollout.correction_is=token, or one precision",
            Stage.NEVER,
            Severity.WARNING,
        )
