"""Batches, token budgets and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

from hysweep.check import legal
from hysweep.check.numbers import data_parallel, divisors, divisors_of, either, has_shape, is_short, nearest_to
from hysweep.compile import flatten, uses_v1
from hysweep.schema import Problem, Severity, Stage, Trial

# The reference's budget, where it is not that of the rollout's log-probabilities.
OF_REFERENCE = "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"


def mini_batches_fill_batch(t: Trial) -> Iterator[Problem]:
    """mini <= train and train % mini == 0; with dynamic batching verl pads with dummy samples instead."""
    train, mini = t.trainer.train_batch_size, t.trainer.mini_batch_size
    if train % mini:
        yield Problem(
            "trainer.mini_batch_size",
            mini,
            f"must divide trainer.train_batch_size = {train}",
            f"try {either(nearest_to(mini, _dividing(t) or divisors_of(train)))}",
            Stage.UPDATE,
        )


def mini_batch_splits_over_ranks(t: Trial) -> Iterator[Problem]:
    """mini * n % data parallel ranks == 0; verl multiplies the mini batch by the group size."""
    ranks, samples = data_parallel(t), t.trainer.mini_batch_size * t.rollout.n
    if ranks and not legal.batch_splits(samples, ranks):
        mini, step = t.trainer.mini_batch_size, _step(t)
        dividing = _dividing(t)
        below = mini // step * step
        near = nearest_to(mini, dividing or [size for size in (below, below + step) if size], 2)
        cure = f"try trainer.mini_batch_size of {either(near)}"
        if not dividing:
            cure += ", and a multiple of it for trainer.train_batch_size"
        yield Problem(
            "trainer.mini_batch_size * rollout.n",
            samples,
            f"must be a multiple of the {ranks} data parallel ranks",
            cure,
            Stage.UPDATE,
        )


def _dividing(t: Trial) -> list[int]:
    """Mini batches that divide the batch and split over the ranks."""
    return [d for d in divisors_of(t.trainer.train_batch_size) if d % _step(t) == 0]


def _step(t: Trial) -> int:
    """What a mini batch must be a multiple of, so that its samples split over the data parallel ranks."""
    ranks = data_parallel(t) or 1
    return ranks // gcd(ranks, t.rollout.n)


def _longest(t: Trial) -> tuple[int, int]:
    """Tokens of the longest sequence, and of the longest one that the model has positions for: what cures name."""
    longest = t.trainer.max_prompt_length + t.trainer.max_response_length
    return longest, min(longest, t.model.shape.max_position_embeddings) if has_shape(t) else longest


def token_budgets_hold_a_sequence(t: Trial) -> Iterator[Problem]:
    """budget * context >= prompt + response, for the update and for log-probabilities; dies mid-update."""
    if not t.trainer.use_dynamic_batch:
        return
    longest, possible = _longest(t)
    context = t.parallelism.context  # Ulysses multiplies it too (verl/workers/engine/utils.py)
    budgets: dict[str, Any] = {
        f"trainer.{name}": getattr(t.trainer, name)
        for name in ("max_token_len_per_gpu", "log_prob_max_token_len_per_gpu")
    }
    if t.algorithm.use_kl_loss or t.algorithm.use_kl_in_reward:  # else there is no reference
        budgets |= {f"verl.{key}": value for key, value in flatten(t.verl) if key == OF_REFERENCE}
    for key, budget in budgets.items():
        if isinstance(budget, int) and not legal.budget_holds(budget, context, possible):
            yield Problem(
                key,
                budget,
                f"times context = {context} is below prompt + response = {longest}",
                f"give at least {-(-possible // context)}",
                Stage.UPDATE,
            )


def micro_batch_divides(t: Trial) -> Iterator[Problem]:
    """Without dynamic batching each rank's share must be a multiple of the micro batch."""
    if t.trainer.use_dynamic_batch or not (ranks := data_parallel(t)):
        return
    micro, samples = t.trainer.micro_batch_size_per_gpu, t.trainer.mini_batch_size * t.rollout.n
    if samples % ranks == 0 and (samples // ranks) % micro:
        yield Problem(
            "trainer.micro_batch_size_per_gpu",
            micro,
            f"must divide the {samples // ranks} samples of a rank",
            f"try {divisors(samples // ranks, micro)}",
            Stage.UPDATE,
        )


def lengths_fit_engine(t: Trial) -> Iterator[Problem]:
    """prompt + response <= max_model_len <= max_position_embeddings; verl clamps generation in silence."""
    longest, possible = _longest(t)
    limit = t.model.shape.max_position_embeddings if has_shape(t) else longest + (t.rollout.max_model_len or 0)
    if longest > limit:
        yield Problem(
            "trainer.max_prompt_length + max_response_length",
            longest,
            f"the model has {limit} positions",
            f"shorten them by {longest - limit}",
            Stage.START,
        )
    given = t.rollout.max_model_len
    if t.rollout.engine != "vllm" or given is None:
        return
    if given < possible:
        yield Problem(
            "rollout.max_model_len",
            given,
            f"is below prompt + response = {longest}: answers are cut in silence",
            f"give at least {possible}, or null",
            Stage.NEVER,
        )
    if given > limit:
        yield Problem(
            "rollout.max_model_len",
            given,
            f"the model has {limit} positions",
            f"give at most {limit}",
            Stage.START,
        )


def samples_split_over_agents(t: Trial) -> Iterator[Problem]:
    """verl's older trainer hands every agent worker the same number of samples (DataProto.chunk)."""
    samples, workers = t.trainer.train_batch_size * t.rollout.n, t.rollout.agent_workers
    if not uses_v1(t) and samples % workers:
        yield Problem(
            "rollout.agent_workers",
            workers,
            f"must divide the {samples} samples of a step",
            f"try {divisors(samples, workers)}",
            Stage.ROLLOUT,
        )


def padding_is_small(t: Trial) -> Iterator[Problem]:
    """Advice: packed sequences are padded to a multiple of tensor * context * 2 each (verl, megatron/util.py)."""
    p = t.parallelism
    multiple = p.tensor * p.context * 2 if p.context > 1 else p.tensor
    longest = t.trainer.max_prompt_length + t.trainer.max_response_length
    if p.engine == "megatron" and multiple * 10 > longest:
        yield Problem(
            "parallelism.tensor * context",
            p.tensor * p.context,
            f"pads each sequence to a multiple of {multiple} tokens, and the longest has {longest}",
            "use fewer tensor or context ranks for such short sequences",
            Stage.NEVER,
            Severity.WARNING,
        )


def checkpoints_are_made(t: Trial) -> Iterator[Problem]:
    """Advice: a job that is cut off goes on from its last checkpoint, if it has one."""
    every, steps, limit = t.trainer.save_every, t.trainer.total_steps, t.cluster.timeout_min
    if is_short(t):
        return
    if t.cluster.launcher != "local" and (every <= 0 or (steps is not None and every > steps)):
        by = f", by its limit of {limit} min or before," if t.cluster.launcher == "slurm" else ""
        yield Problem(
            "trainer.save_every",
            every,
            f"no checkpoint is made before the end: a job that is cut off{by} begins anew",
            "20 is usual",
            Stage.NEVER,
            Severity.WARNING,
        )
