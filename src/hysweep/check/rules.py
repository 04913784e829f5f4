"""The rules. One fact of the trainer, one function; each yields its problems with the nearest legal values.

Numbers are of verl 0.9.1 and Megatron-core 0.16 unless said otherwise. A rule never raises: a trial is checked
by all of them, so that every fault is told at once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import gcd, inf
from pathlib import Path

from hysweep.check.versions import installed, unfit
from hysweep.compile import (
    ONLY_V0,
    expand,
    flatten,
    ignored,
    keys_of,
    moved,
    overlong_buffer_len,
    requirements,
    resolve,
    trainer_values,
    uses_v1,
)
from hysweep.embedded import assets
from hysweep.schema import BadInput, Problem, Severity, Stage, Trial, suggest

Rule = Callable[[Trial], Iterator[Problem]]

# Estimators that compare the samples of one prompt (verl/trainer/ppo/core_algos.py: those that take `index`).
OF_GROUPS = (
    "grpo",
    "rloo",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
    "grpo_passk",
    "gdpo",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
)
# verl/trainer/ppo/rollout_corr_helper.py: SUPPORTED_ROLLOUT_RS_OPTIONS
REJECTIONS = (
    *(f"token_k{k}" for k in (1, 2, 3)),
    *(f"seq_sum_k{k}" for k in (1, 2, 3)),
    *(f"seq_mean_k{k}" for k in (1, 2, 3)),
    *(f"seq_max_k{k}" for k in (2, 3)),
)


def check_trial(trial: Trial) -> list[Problem]:
    """Every problem of a trial, errors first. Empty: as far as can be known at the desk, it runs."""
    try:
        keys_of(trial)
    except BadInput as e:  # no rule can say more of a trainer that is not there
        return list(e.problems)
    found = [problem for rule in RULES for problem in rule(trial)]
    return sorted(found, key=lambda p: p.severity is not Severity.ERROR)


def errors(problems: Iterable[Problem]) -> list[Problem]:
    return [p for p in problems if p.severity is Severity.ERROR]


def divisors(number: int, near: int, count: int = 4) -> str:
    """The divisors of a number that lie nearest to a wish: "4, 8 or 12"."""
    all_of_them = [d for d in range(1, number + 1) if number % d == 0]
    return either(sorted(sorted(all_of_them, key=lambda d: (abs(d - near), d))[:count]))


def either(options: Iterable[object]) -> str:
    *others, last = map(str, options)
    return f"{', '.join(others)} or {last}" if others else last


def data_parallel(trial: Trial) -> int:
    """Ranks that see different data: the world over the ranks that share a sample. 0 if it does not divide."""
    p = trial.parallelism
    if p.engine != "megatron":
        return trial.world_size
    each = p.tensor * p.pipeline * p.context
    return trial.world_size // each if trial.world_size % each == 0 else 0


# --- where it runs


def engine_needs_gpu(t: Trial) -> Iterator[Problem]:
    """Megatron and vLLM are CUDA programs; the embedded server is a CPU one."""
    if t.has_gpu:
        if t.rollout.engine == "embedded":
            yield Problem(
                "rollout.engine",
                "embedded",
                "generates on the CPU, a token at a time",
                "try rollout=vllm",
                Stage.NEVER,
            )
        return
    if t.parallelism.engine == "megatron":
        yield Problem(
            "parallelism.engine",
            "megatron",
            "needs GPUs, and cluster.gpu is null",
            "name a cluster with GPUs, or try parallelism=single",
            Stage.START,
        )
    if t.rollout.engine == "vllm":
        yield Problem(
            "rollout.engine",
            "vllm",
            "needs GPUs, and cluster.gpu is null",
            "name a cluster with GPUs, or try rollout=embedded",
            Stage.START,
        )
    if t.cluster.nodes > 1:
        yield Problem(
            "cluster.nodes",
            t.cluster.nodes,
            "the embedded rollout server serves one host",
            "give 1",
            Stage.START,
        )


def launcher_has_nodes(t: Trial) -> Iterator[Problem]:
    """The local launcher is this machine."""
    if t.cluster.launcher == "local" and t.cluster.nodes > 1:
        yield Problem(
            "cluster.nodes",
            t.cluster.nodes,
            "the local launcher has one node",
            "give 1, or try cluster=slurm",
        )


# --- topology: verl 0.9.1 workers/engine/megatron, Megatron-core parallel_state


def dense_grid_divides_world(t: Trial) -> Iterator[Problem]:
    """world % (tensor * pipeline * context) == 0; with dynamic batching verl checks it after model load."""
    p = t.parallelism
    each = p.tensor * p.pipeline * p.context
    if p.engine == "megatron" and t.world_size % each:
        yield Problem(
            "parallelism.tensor * pipeline * context",
            each,
            f"must divide the {t.world_size} GPUs",
            f"try a product of {divisors(t.world_size, each)}",
            Stage.START,
        )


def expert_grid_divides_world(t: Trial) -> Iterator[Problem]:
    """world % (expert_tensor * expert * pipeline) == 0; an unset expert_tensor is tensor, not 1."""
    p = t.parallelism
    expert_tensor = p.expert_tensor or p.tensor
    each = expert_tensor * p.expert * p.pipeline
    if p.engine == "megatron" and t.world_size % each:
        room = t.world_size // (expert_tensor * p.pipeline)
        cure = f"try parallelism.expert of {divisors(room, p.expert)}" if room else "ask for more GPUs"
        if p.expert_tensor is None and p.tensor > 1:
            cure += f", or parallelism.expert_tensor=1 (unset it is tensor, {p.tensor})"
        yield Problem(
            "parallelism.expert_tensor * expert * pipeline",
            each,
            f"must divide the {t.world_size} GPUs",
            cure,
            Stage.START,
        )


def rollout_grid_divides_world(t: Trial) -> Iterator[Problem]:
    """world % (rollout tensor * data) == 0; found out after actor and reference are loaded."""
    each = t.rollout.tensor * t.rollout.data
    if t.world_size % each:
        yield Problem(
            "rollout.tensor * data",
            each,
            f"must divide the {t.world_size} GPUs",
            f"try a product of {divisors(t.world_size, each)}",
            Stage.START,
        )


def tensor_divides_model(t: Trial) -> Iterator[Problem]:
    """Heads must split over tensor ranks, key-value heads split or repeat; feed-forward widths split."""
    s = t.model.shape
    sides = [("rollout.tensor", t.rollout.tensor)]
    if t.parallelism.engine == "megatron":
        sides.append(("parallelism.tensor", t.parallelism.tensor))
    for key, tensor in sides:
        if s.num_attention_heads % tensor:
            yield Problem(
                key,
                tensor,
                f"must divide num_attention_heads = {s.num_attention_heads}",
                f"try {divisors(s.num_attention_heads, tensor)}",
                Stage.START,
            )
        elif s.num_key_value_heads % tensor and tensor % s.num_key_value_heads:
            yield Problem(
                key,
                tensor,
                f"must divide num_key_value_heads = {s.num_key_value_heads}, or be a multiple of it",
                f"try {divisors(s.num_key_value_heads, tensor)}",
                Stage.START,
            )


def experts_split(t: Trial) -> Iterator[Problem]:
    """num_experts % expert == 0, and only a mixture has experts."""
    s, p = t.model.shape, t.parallelism
    if p.engine != "megatron" or p.expert == 1:
        return
    if not s.num_experts:
        yield Problem("parallelism.expert", p.expert, f"{t.model.name} has no experts", "give 1", Stage.START)
    elif s.num_experts % p.expert:
        yield Problem(
            "parallelism.expert",
            p.expert,
            f"must divide num_experts = {s.num_experts}",
            f"try {divisors(s.num_experts, p.expert)}",
            Stage.START,
        )


def layers_split(t: Trial) -> Iterator[Problem]:
    """Every layer must be built: num_layers % (pipeline * virtual_pipeline) == 0. Megatron drops the rest."""
    s, p = t.model.shape, t.parallelism
    if p.engine != "megatron":
        return
    if p.virtual_pipeline and p.pipeline == 1:
        yield Problem(
            "parallelism.virtual_pipeline",
            p.virtual_pipeline,
            "needs more than one pipeline stage",
            "leave it null, or raise parallelism.pipeline",
            Stage.START,
        )
    given = {"first_stage_layers": p.first_stage_layers, "last_stage_layers": p.last_stage_layers}
    ends = [count for count in given.values() if count]
    stages, rest = p.pipeline - len(ends), s.num_layers - sum(ends)
    if ends and p.pipeline == 1:
        yield Problem(
            "parallelism.pipeline",
            1,
            "has one stage, of all layers",
            "leave first and last_stage_layers null",
            Stage.START,
        )
    elif (stages == 0 and rest) or rest < stages or (stages and rest % stages):
        wish = "parallelism.pipeline" if not ends else f"parallelism.{' and '.join(k for k, v in given.items() if v)}"
        cure = f"try {divisors(s.num_layers, p.pipeline)}" if not ends else "leave whole stages for the others"
        if not ends and s.num_layers > p.pipeline > 2:
            uneven = _uneven(s.num_layers, p.pipeline)
            cure += f", or parallelism.first_stage_layers={uneven[0]} and last_stage_layers={uneven[1]}"
        what = f"must divide num_layers = {s.num_layers}"
        if ends:
            what = f"leave {rest} of num_layers = {s.num_layers} to {stages} stages: the layers built would be others"
        yield Problem(wish, ends or p.pipeline, what, cure, Stage.START)
    else:
        each = {*ends, *([rest // stages] if stages else [])}
        if any(layers % (p.virtual_pipeline or 1) for layers in each):
            layers = min(each)
            yield Problem(
                "parallelism.virtual_pipeline",
                p.virtual_pipeline,
                f"must divide the {either(sorted(each))} layers of a stage",
                f"try {divisors(layers, p.virtual_pipeline or 1)}",
                Stage.START,
            )


def _uneven(layers: int, stages: int) -> tuple[int, int]:
    """Layers of the first and the last stage so that the others are whole; those that hold embedding and head less."""
    each = -(-layers // stages)
    left = layers - each * (stages - 2)
    while left < 2:
        each -= 1
        left = layers - each * (stages - 2)
    return left - left // 2, left // 2


def fsdp_ranks_share_sequences(t: Trial) -> Iterator[Problem]:
    """Ulysses splits the heads, and needs packed sequences (verl/workers/engine/fsdp/transformer_impl.py)."""
    p, heads = t.parallelism, t.model.shape.num_attention_heads
    if p.engine != "fsdp2" or p.context == 1:
        return
    if heads % p.context or t.world_size % p.context:
        yield Problem(
            "parallelism.context",
            p.context,
            f"must divide num_attention_heads = {heads} and the {t.world_size} GPUs",
            f"try {divisors(gcd(heads, t.world_size), p.context)}",
            Stage.START,
        )
    if not t.memory.use_remove_padding:
        yield Problem(
            "memory.use_remove_padding", False, "sequences are shared out only when packed", "give true", Stage.START
        )


def rollout_experts_fill_replica(t: Trial) -> Iterator[Problem]:
    """vLLM spreads experts over a whole replica or not at all (verl/workers/config/rollout.py)."""
    whole = t.rollout.tensor * t.rollout.data
    if t.rollout.expert not in (1, whole):
        yield Problem(
            "rollout.expert",
            t.rollout.expert,
            "is neither 1 nor rollout.tensor * data",
            f"try {either(sorted({1, whole}))}",
            Stage.START,
        )


def router_settings_travel(t: Trial) -> Iterator[Problem]:
    """Hy3's router under any trainer: its bias is used, frozen, and nothing balances the experts' load."""
    needed = {
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0,
        "moe_router_load_balancing_type": "none",
        "moe_grouped_gemm": True,
    }
    if t.model.model_type != "hy_v3" or t.parallelism.engine != "megatron":
        return
    for key, value in needed.items():
        given = t.model.transformer_config.get(key)
        if given != value:
            yield Problem(
                f"model.transformer_config.{key}",
                given,
                "is not what Hy3's router was trained with",
                f"give {value}, or choose model=hy3 and set model.path",
                Stage.NEVER,
            )


# --- batches and lengths


def mini_batches_fill_batch(t: Trial) -> Iterator[Problem]:
    """mini <= train and train % mini == 0; with dynamic batching verl pads with dummy samples instead."""
    train, mini = t.trainer.train_batch_size, t.trainer.mini_batch_size
    if train % mini:
        yield Problem(
            "trainer.mini_batch_size",
            mini,
            f"must divide trainer.train_batch_size = {train}",
            f"try {divisors(train, mini)}",
            Stage.UPDATE,
        )


def mini_batch_splits_over_ranks(t: Trial) -> Iterator[Problem]:
    """mini * n % data parallel ranks == 0; verl multiplies the mini batch by the group size."""
    ranks, samples = data_parallel(t), t.trainer.mini_batch_size * t.rollout.n
    if ranks and samples % ranks:
        up = -(-samples // ranks) * ranks
        yield Problem(
            "trainer.mini_batch_size * rollout.n",
            samples,
            f"must be a multiple of the {ranks} data parallel ranks",
            f"try a product of {up}",
            Stage.UPDATE,
        )


def token_budgets_hold_a_sequence(t: Trial) -> Iterator[Problem]:
    """budget * context >= prompt + response, for the update and for log-probabilities; dies mid-update."""
    if not t.trainer.use_dynamic_batch:
        return
    longest = t.trainer.max_prompt_length + t.trainer.max_response_length
    context = t.parallelism.context if t.parallelism.engine == "megatron" else 1
    for name in ("max_token_len_per_gpu", "log_prob_max_token_len_per_gpu"):
        budget = getattr(t.trainer, name)
        if budget * context < longest:
            yield Problem(
                f"trainer.{name}",
                budget,
                f"times context = {context} is below prompt + response = {longest}",
                f"give at least {-(-longest // context)}",
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
    longest = t.trainer.max_prompt_length + t.trainer.max_response_length
    limit = t.model.shape.max_position_embeddings
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
    if given < longest:
        yield Problem(
            "rollout.max_model_len",
            given,
            f"is below prompt + response = {longest}: answers are cut in silence",
            f"give at least {longest}, or null",
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


# --- algorithms


def group_has_siblings(t: Trial) -> Iterator[Problem]:
    """grpo and rloo compare the samples of one prompt; with one sample there is nothing to compare."""
    if t.rollout.n < 2 and t.algorithm.adv_estimator in OF_GROUPS:
        yield Problem(
            "rollout.n",
            t.rollout.n,
            f"{t.algorithm.adv_estimator} compares the samples of a prompt",
            "give at least 2; 8 to 16 is usual",
            Stage.NEVER,
        )


def clip_range_is_one(t: Trial) -> Iterator[Problem]:
    """PPO's lower clip must leave a positive ratio; other losses bound something else by it."""
    a = t.algorithm
    if a.loss_mode in ("vanilla", "gspo") and not 0 < a.clip_ratio_low < 1:
        yield Problem(
            "algorithm.clip_ratio_low",
            a.clip_ratio_low,
            f"{a.loss_mode} clips the ratio at 1 - this",
            "give a number between 0 and 1; 0.2 is usual (gspo: 3e-4)",
            Stage.NEVER,
        )
    if a.loss_mode == "vanilla" and a.clip_ratio_c <= 1:
        yield Problem("algorithm.clip_ratio_c", a.clip_ratio_c, "must be above 1", "3 is usual", Stage.UPDATE)
    if a.loss_mode == "gspo" and a.clip_ratio_high > 0.05:
        yield Problem(
            "algorithm.clip_ratio_high",
            a.clip_ratio_high,
            "gspo's ratio is of a whole sequence and stays within thousandths of 1: nothing would be clipped",
            "3e-4 and 4e-4 are usual",
            Stage.NEVER,
            Severity.WARNING,
        )


def one_kl_is_enough(t: Trial) -> Iterator[Problem]:
    a = t.algorithm
    if a.use_kl_loss and a.use_kl_in_reward:
        yield Problem(
            "algorithm.use_kl_in_reward",
            True,
            "and use_kl_loss penalise the same distance twice",
            "keep one of them",
            Stage.NEVER,
            Severity.WARNING,
        )
    if a.use_kl_loss and a.kl_loss_coef == 0:
        yield Problem(
            "algorithm.kl_loss_coef",
            0,
            "a reference model would run every step for nothing",
            "set algorithm.use_kl_loss=false",
            Stage.NEVER,
            Severity.WARNING,
        )


def numbers_are_above_zero(t: Trial) -> Iterator[Problem]:
    """What the losses assert at their first update."""
    a = t.algorithm
    needed = {
        "clip_cov": ("clip_cov_ratio",),
        "kl_cov": ("kl_cov_ratio",),
        "sapo": ("tau_pos", "tau_neg"),
        "dro": ("dro_beta",),
    }
    for name in needed.get(a.loss_mode, ()):
        if not getattr(a, name):
            yield Problem(
                f"algorithm.{name}",
                getattr(a, name),
                f"{a.loss_mode} needs it above 0",
                f"see conf/algorithm/{a.loss_mode}.yaml",
                Stage.UPDATE,
            )


def trainer_knows_algorithm(t: Trial) -> Iterator[Problem]:
    """Names in the registries of this verl: it looks them up at the first update."""
    keys, a = keys_of(t), t.algorithm
    for key, value, known in (
        ("adv_estimator", a.adv_estimator, keys.adv_estimators),
        ("loss_mode", a.loss_mode, keys.policy_losses),
    ):
        if value not in known:
            yield Problem(
                f"algorithm.{key}",
                value,
                f"verl {t.trainer.verl} has none of this name",
                f"choose a newer trainer.verl, or one of {', '.join(known)}",
                Stage.UPDATE,
            )
    if a.use_filter_groups and ("algorithm.filter_groups.enable" not in keys.defaults or not uses_v1(t)):
        who = f"verl {t.trainer.verl}" if uses_v1(t) else "verl's older trainer"
        yield Problem(
            "algorithm.use_filter_groups",
            True,
            f"{who} does not replace groups: it would train on all of them",
            "set it false, or choose trainer.verl=0.9.1 and an algorithm of the V1 trainer",
            Stage.NEVER,
        )
    if a.loss_mode == "gspo" and keys.version.startswith("0.9.0.dev") and a.loss_agg_mode != "seq-mean-token-mean":
        yield Problem(
            "algorithm.loss_agg_mode",
            a.loss_agg_mode,
            f"gspo of verl {t.trainer.verl} always takes seq-mean-token-mean",
            "give seq-mean-token-mean, or choose trainer.verl=0.9.1",
            Stage.NEVER,
        )


def estimator_gets_what_it_needs(t: Trial) -> Iterator[Problem]:
    a = t.algorithm
    if a.adv_estimator in ONLY_V0 and t.trainer.use_v1:
        lacks = {"remax": "makes no greedy baseline", "gdpo": "hands over no parts of a reward"}
        why = lacks.get(a.adv_estimator, "keeps no sums of squared probabilities")
        yield Problem(
            "trainer.use_v1",
            True,
            f"verl's V1 trainer {why}, which {a.adv_estimator} needs: it fails after the first rollout",
            "leave it null",
            Stage.ROLLOUT,
        )
    if a.adv_estimator.endswith("optimal_token_baseline") and t.memory.use_fused_kernels:
        yield Problem(
            "memory.use_fused_kernels",
            True,
            f"{a.adv_estimator} needs whole logits, which fused kernels never make",
            "give false",
            Stage.UPDATE,
        )
    if a.adv_estimator == "gdpo":
        if not a.gdpo_reward_keys:
            yield Problem(
                "algorithm.gdpo_reward_keys",
                "[]",
                "names no part of the reward",
                "name the keys of your reward function's dict: [accuracy,format]",
                Stage.ROLLOUT,
            )
        if a.gdpo_reward_weights and len(a.gdpo_reward_weights) != len(a.gdpo_reward_keys):
            yield Problem(
                "algorithm.gdpo_reward_weights",
                a.gdpo_reward_weights,
                f"are not as many as the {len(a.gdpo_reward_keys)} gdpo_reward_keys",
                "give one for each, or none",
                Stage.ROLLOUT,
            )
        if t.reward.manager != "gdpo":
            yield Problem(
                "reward.manager", t.reward.manager, "does not keep the parts of a reward", "give gdpo", Stage.ROLLOUT
            )
    elif t.reward.manager == "gdpo":
        yield Problem(
            "reward.manager",
            "gdpo",
            f"keeps parts of a reward that {a.adv_estimator} does not read",
            "give naive",
            Stage.NEVER,
        )
    if a.adv_estimator == "gae" and t.model.model_type == "hy_v3":
        if t.parallelism.engine == "fsdp2":
            yield Problem(
                "algorithm.adv_estimator",
                "gae",
                "needs a critic, and transformers has no Hy3 with a value head",
                "choose an algorithm without a critic",
                Stage.START,
            )
        elif not a.critic_path:
            yield Problem(
                "algorithm.critic_path",
                None,
                "the critic is a second Hy3 on the same GPUs: twice the memory on the host, and a second update",
                "choose an algorithm without a critic, or a smaller critic of the same tokenizer",
                Stage.NEVER,
                Severity.WARNING,
            )
    if a.adv_estimator == "opo" and (
        t.trainer.mini_batch_size != t.trainer.train_batch_size or t.trainer.ppo_epochs > 1
    ):
        yield Problem(
            "trainer.mini_batch_size",
            t.trainer.mini_batch_size,
            "opo's baseline is that of exactly on-policy updates: one a step",
            f"give {t.trainer.train_batch_size}, and trainer.ppo_epochs=1",
            Stage.NEVER,
            Severity.WARNING,
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


def temperature_leaves_diversity(t: Trial) -> Iterator[Problem]:
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


def overlong_buffer_fits(t: Trial) -> Iterator[Problem]:
    if t.reward.manager == "dapo" and overlong_buffer_len(t) > t.trainer.max_response_length:
        yield Problem(
            "reward.overlong_buffer_len",
            t.reward.overlong_buffer_len,
            f"is above trainer.max_response_length = {t.trainer.max_response_length}",
            f"give at most {t.trainer.max_response_length}",
            Stage.ROLLOUT,
        )


# --- files and keys


def something_trains(t: Trial) -> Iterator[Problem]:
    for name in ("train_files", "val_files"):
        if not getattr(t.data, name):
            yield Problem(f"data.{name}", "[]", "names no file", "give parquet files, or choose a data= option")


def files_exist(t: Trial) -> Iterator[Problem]:
    """Local files of a local job must be there and be of a kind that verl reads."""
    named = [(f"data.{n}", f) for n in ("train_files", "val_files") for f in _found(getattr(t.data, n))]
    if t.reward.function_path is not None:
        named.append(("reward.function_path", t.reward.function_path))
    for key, name in [*named, ("model.path", t.model.path)]:
        if name.startswith("embedded:"):
            if name.removeprefix("embedded:") not in assets.NAMES:
                known = [f"embedded:{n}" for n in assets.NAMES]
                yield Problem(key, name, "is not shipped", suggest(name, known))
            continue
        if key == "model.path" and not name.startswith(("/", "~", ".")):
            continue  # the id of a model on a hub: not ours to look up here
        if (
            t.cluster.launcher == "local"
            and not name.startswith(("pkg://", "hdfs://"))
            and not Path(resolve(name)).exists()
        ):
            yield Problem(key, name, "there is no such file", f"looked for {resolve(name)}", Stage.START)
        if key.startswith("data.") and Path(name).suffix not in (".parquet", ".json", ".jsonl"):
            yield Problem(key, name, "verl reads .parquet, .json and .jsonl", "convert it first", Stage.START)


def _found(names: list[str]) -> list[str]:
    """Names as they are given, patterns as the files that match them."""
    return [found for name in names for found in (expand([name]) if any(c in name for c in "*?[") else [name])]


def reward_function_is_there(t: Trial) -> Iterator[Problem]:
    """The file must define the function: read, not run."""
    path = t.reward.function_path
    if path is None or path.startswith(("embedded:", "pkg://")) or not Path(resolve(path)).is_file():
        return
    try:
        tree = ast.parse(Path(resolve(path)).read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError) as e:
        yield Problem("reward.function_path", path, f"is no Python that can be read: {e}", "mend it", Stage.ROLLOUT)
        return
    names = [n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    names += [
        target.id
        for n in tree.body
        if isinstance(n, ast.Assign)
        for target in n.targets
        if isinstance(target, ast.Name)
    ]
    names += [a.asname or a.name for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
    if t.reward.function_name not in names:
        yield Problem(
            "reward.function_name",
            t.reward.function_name,
            f"{path} has no such function",
            suggest(t.reward.function_name, names) if names else "it defines none",
            Stage.ROLLOUT,
        )


def passed_keys_exist(t: Trial) -> Iterator[Problem]:
    """`verl` may name any key of this verl that no field of ours sets."""
    keys, passed = keys_of(t), dict(flatten(t.verl))
    ours = trainer_values(replace(t, verl={}))
    for key, value in passed.items():
        if key in ours:
            why, cure = f"is set by a field of its own, to {ours[key]}", "use that field (see `hysweep show --doc`)"
            yield Problem(f"verl.{key}", value, why, cure)
        elif history := moved(key):
            now = " and ".join(f"verl.{name}" for name in history.new)
            cure = f"use {now}, or the field that sets it" if now else "leave it out"
            yield Problem(f"verl.{key}", value, history.why, cure, Stage.NEVER)
        elif key not in keys:
            yield Problem(f"verl.{key}", value, f"verl {t.trainer.verl} has no such key", suggest(key, keys.defaults))
    runs_somewhere = t.has_gpu or t.parallelism.engine != "megatron"  # else another rule has said so
    said = ("algorithm.filter_groups.", "actor_rollout_ref.actor.policy_loss.dro_beta")  # with its reason, above
    for key in ours if runs_somewhere else ():
        if key not in keys and not key.startswith(said):
            yield Problem(key, ours[key], f"verl {t.trainer.verl} has no such key", "choose another trainer.verl")


def versions_fit(t: Trial) -> Iterator[Problem]:
    """What is installed here against what the trial needs, where it runs here; a node checks again at its start."""
    if t.cluster.launcher == "local":
        for fault in unfit(requirements(t), installed(requirements(t))):
            yield Problem(fault.package, fault.version, fault.why, fault.cure, Stage.START)


def nothing_is_ignored(t: Trial) -> Iterator[Problem]:
    """A field that somebody set and that the chosen algorithm, engine or mode never reads."""
    for leaf in ignored(t):
        needs = " and ".join(
            f"{path} = {either('null' if v is None else v for v in alive)}"
            for path, alive in (leaf.knob.when or {}).items()
        )
        default = "null" if leaf.default is None else leaf.default
        yield Problem(leaf.path, leaf.value, f"has no effect: it needs {needs}", f"leave it at {default}", Stage.NEVER)


def something_validates(t: Trial) -> Iterator[Problem]:
    if t.trainer.validate_every <= 0 and not t.trainer.validate_before:
        yield Problem(
            "trainer.validate_every",
            t.trainer.validate_every,
            "nothing is ever validated",
            "give a number of steps",
            Stage.NEVER,
            Severity.WARNING,
        )


RULES: tuple[Rule, ...] = (
    engine_needs_gpu,
    launcher_has_nodes,
    dense_grid_divides_world,
    expert_grid_divides_world,
    rollout_grid_divides_world,
    tensor_divides_model,
    experts_split,
    layers_split,
    fsdp_ranks_share_sequences,
    rollout_experts_fill_replica,
    router_settings_travel,
    mini_batches_fill_batch,
    mini_batch_splits_over_ranks,
    token_budgets_hold_a_sequence,
    micro_batch_divides,
    lengths_fit_engine,
    engine_step_holds_sequences,
    group_has_siblings,
    clip_range_is_one,
    one_kl_is_enough,
    numbers_are_above_zero,
    trainer_knows_algorithm,
    estimator_gets_what_it_needs,
    correction_is_readable,
    temperature_leaves_diversity,
    overlong_buffer_fits,
    something_trains,
    files_exist,
    reward_function_is_there,
    passed_keys_exist,
    versions_fit,
    nothing_is_ignored,
    something_validates,
)
