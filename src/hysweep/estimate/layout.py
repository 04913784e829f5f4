"""What of a trial the memory depends on, as numbers: `Job` is the same for every layout, `Layout` is what varies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hysweep.estimate.factors import kept_for
from hysweep.estimate.formulas import MIB, Number
from hysweep.schema import BadInput, Memory, Problem, Shape, Stage, Trial

MODULES = ("core_attn", "layernorm", "moe_act", "moe", "mlp", "shared_experts", "mla_up_proj")


@dataclass(frozen=True, slots=True)
class Job:
    """One trial's fixed part.

    with_entropy    the update computes the entropy: a bonus is in the loss
    apart           1 where Megatron computes gate, activation and product one by one: its bias_activation_fusion is off
    with_squares    log-probabilities come with sums of squared probabilities
    has_log_prob    old log-probabilities are computed, not taken from the rollout
    engine_bytes    of a number in the rollout engine
    saves           checkpoints are written
    longest         tokens of the longest sequence; `engine_longest` as the rollout engine allows it
    calibration     what measured runs of the cluster multiply torch's part by; 1: none
    """

    shape: Shape
    engine: str
    has_rollout: bool
    has_reference: bool
    has_critic: bool
    has_log_prob: bool
    with_entropy: bool
    with_squares: bool
    apart: int
    engine_bytes: int
    longest: int
    engine_longest: int
    card: float  # bytes of a GPU
    gpus_per_node: int
    saves: bool
    calibration: float = 1.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes and switches (0 or 1), each a number or an array of them; optimizer_on_cpu may be a share.

    virtual, first_layers, last_layers   1, 0 and 0 where they are not set
    shards          ranks that share one copy of the parameters (FSDP2)
    tokens          of a micro batch of the update, on one GPU; log_prob_tokens: of log-probabilities
    batch_tokens    of all that one GPU sees of an update, at full length; step_tokens: of a step
    full, block     recompute whole layers; `recompute_layers` a group (full), or of each stage (block)
    modules         what selective recomputation computes again, by name (`MODULES`)
    bucket          bytes in which weights go to the rollout
    """

    world: Number
    tensor: Number
    pipeline: Number
    virtual: Number
    context: Number
    expert: Number
    expert_tensor: Number
    first_layers: Number
    last_layers: Number
    shards: Number
    tokens: Number
    log_prob_tokens: Number
    batch_tokens: Number
    step_tokens: Number
    param_offload: Number
    optimizer_offload: Number
    optimizer_on_cpu: Number
    offload_policy: Number
    full: Number
    block: Number
    recompute_layers: Number
    modules: dict[str, Number]
    fused: Number
    rollout_tensor: Number
    rollout_data: Number
    utilisation: Number
    keeps_cache: Number
    bucket: Number
    engine_tokens: Number
    engine_sequences: Number


def job_of(trial: Trial, calibration: float | None = None) -> Job:
    """The fixed part; BadInput where no GPU is named, or not how much memory it has.

    Without a `calibration` the factor that is kept for the cluster is taken.
    """
    if trial.cluster.gpu is None or trial.cluster.gpu_memory_gib is None:
        name = "gpu" if trial.cluster.gpu is None else "gpu_memory_gib"
        raise BadInput(
            Problem(
                f"cluster.{name}",
                "null",
                "there is no GPU whose memory could be estimated"
                if name == "gpu"
                else "what it has to fit into is not said",
                "name a cluster with GPUs, as in cluster=gpu_8"
                if name == "gpu"
                else "give the usable memory of a GPU in GiB",
                Stage.NEVER,
            )
        )
    a, t, longest = trial.algorithm, trial.trainer, trial.trainer.max_prompt_length + trial.trainer.max_response_length
    return Job(
        shape=trial.model.shape,
        engine=trial.parallelism.engine,
        has_rollout=trial.rollout.engine == "vllm",
        has_reference=a.use_kl_loss or a.use_kl_in_reward,
        has_critic=a.adv_estimator == "gae",
        has_log_prob=not trial.rollout.correction_bypass,
        with_entropy=a.entropy_coeff != 0,
        with_squares=a.adv_estimator.endswith("optimal_token_baseline"),
        apart=int(
            trial.parallelism.engine == "megatron"
            and not trial.model.transformer_config.get("bias_activation_fusion", False)
        ),
        engine_bytes=4 if trial.rollout.dtype == "float32" else 2,
        longest=t.max_prompt_length + t.max_response_length,
        engine_longest=max(trial.rollout.max_model_len or longest, longest),
        card=trial.cluster.gpu_memory_gib * 2**30,
        gpus_per_node=trial.cluster.gpus_per_node,
        saves=t.save_every > 0,
        calibration=(kept_for(trial.cluster).factor or 1.0) if calibration is None else calibration,
    )


def optimizer_on_cpu(trial: Trial) -> float:
    """The share of a Megatron optimizer's states that stay on the host: by the field, or by verl's keys passed on.

    Megatron-core's OptimizerConfig: of optimizer_cpu_offload alone optimizer_offload_fraction is 0.
    """
    if trial.parallelism.engine != "megatron":
        return 0.0
    if trial.memory.optimizer_on_cpu:
        return 1.0
    node: Any = trial.verl
    for name in ("actor_rollout_ref", "actor", "optim", "override_optimizer_config"):
        node = node.get(name) if isinstance(node, dict) else None
    if not isinstance(node, dict) or node.get("optimizer_cpu_offload") is not True:
        return 0.0
    share = node.get("optimizer_offload_fraction")
    return min(max(float(share), 0.0), 1.0) if isinstance(share, int | float) else 0.0


def layout_of(trial: Trial) -> Layout:
    """A trial's own layout, as Python numbers."""
    p, m, t, r = trial.parallelism, trial.memory, trial.trainer, trial.rollout
    is_megatron = p.engine == "megatron"
    # a loop over fields that FSDP2 does not read would tell what it is not
    tensor, pipeline = (p.tensor, p.pipeline) if is_megatron else (1, 1)
    world, longest = trial.world_size, t.max_prompt_length + t.max_response_length
    ranks = world / (tensor * pipeline * p.context)
    batch = max(t.mini_batch_size * r.n / ranks, 1) * longest / p.context
    step = max(t.train_batch_size * r.n / ranks, 1) * longest / p.context
    micro = t.micro_batch_size_per_gpu * longest / p.context
    of_update = t.max_token_len_per_gpu if t.use_dynamic_batch else micro
    of_log_prob = t.log_prob_max_token_len_per_gpu if t.use_dynamic_batch else micro
    return Layout(
        world=world,
        tensor=tensor,
        pipeline=pipeline,
        virtual=(p.virtual_pipeline or 1) if is_megatron else 1,
        context=p.context,
        expert=p.expert if is_megatron else 1,
        expert_tensor=(p.expert_tensor or p.tensor) if is_megatron else 1,
        first_layers=(p.first_stage_layers or 0) if is_megatron else 0,
        last_layers=(p.last_stage_layers or 0) if is_megatron else 0,
        shards=world if p.fsdp_size < 1 else min(p.fsdp_size, world),
        tokens=min(of_update, batch),
        log_prob_tokens=min(of_log_prob, step),
        batch_tokens=batch,
        step_tokens=step,
        param_offload=int(m.param_offload),
        optimizer_offload=int(m.optimizer_offload),
        optimizer_on_cpu=optimizer_on_cpu(trial),
        offload_policy=int(m.offload_policy and not is_megatron),
        **_recompute(m, is_megatron),
        fused=int(m.use_fused_kernels),
        rollout_tensor=r.tensor,
        rollout_data=r.data,
        utilisation=r.gpu_memory_utilization,
        keeps_cache=int(not r.free_cache_engine),
        bucket=r.update_bucket_mib * MIB,
        engine_tokens=r.max_num_batched_tokens,
        engine_sequences=r.max_num_seqs,
    )


def _recompute(m: Memory, is_megatron: bool) -> dict[str, Number]:
    """FSDP2 recomputes layer by layer, Megatron as it is told; unsaid, a method is uniform and a group one layer."""
    full = m.recompute_granularity == "full" if is_megatron else m.use_gradient_checkpointing
    named = (m.recompute_modules or ["core_attn"]) if is_megatron and m.recompute_granularity == "selective" else []
    return {
        "full": int(full),
        "block": int(full and is_megatron and m.recompute_method == "block"),
        "recompute_layers": (m.recompute_num_layers or 1) if is_megatron else 1,
        "modules": {name: int(name in named) for name in MODULES},
    }
