"""The config groups of a trial. One field is one knob; where its trainer key is the whole story, it says so.

A class is a config group of the same name, a YAML file in conf/<group>/ is a named set of values for it.
Key names and meanings are verl 0.9.1's (verl/trainer/config/ppo_trainer.yaml with model_engine dp or megatron).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hysweep.schema.knob import ACTOR, FILLED, MODEL, REF, ROLLOUT, SET, Other, knob

ON_MEGATRON = {"parallelism.engine": ("megatron",)}
ON_FSDP = {"parallelism.engine": ("fsdp2",)}
ON_VLLM = {"rollout.engine": ("vllm",)}
ON_GPU = {"cluster.gpu": SET}
ON_SLURM = {"cluster.launcher": ("slurm",)}
ON_RAY = {"cluster.launcher": ("ray_job",)}
ELSEWHERE = {"cluster.launcher": ("slurm", "ray_job")}
IN_CONTAINER = ON_SLURM | {"cluster.container": ("pyxis", "apptainer")}
WITH_KL_LOSS = {"algorithm.use_kl_loss": (True,)}
WITH_KL_REWARD = {"algorithm.use_kl_in_reward": (True,)}
ADAPTIVE_KL = WITH_KL_REWARD | {"algorithm.kl_controller": ("adaptive",)}
STEPPED = {"trainer.use_dynamic_batch": (True,)}
FIXED_MICRO = {"trainer.use_dynamic_batch": (False,)}
WITH_IS = {"rollout.correction_is": ("token", "sequence")}
WITH_RS = {"rollout.correction_rs": SET}
OTHERS = Other(("a recipe's",), "main_ppo")
WITH_FUNCTION = {"reward.function_path": SET}
WITH_REWARD_MODEL = {"reward.model_path": SET}
WITH_SANDBOX = {"reward.sandbox_url": SET}
ROUTED = {"reward.routes": FILLED}
# Which losses read which settings: verl/trainer/ppo/core_algos.py, the functions under register_policy_loss.
LOSSES = ("vanilla", "gspo", "cispo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dppo_tv", "dppo_kl", "dro")
CLIPPED = {"algorithm.loss_mode": ("vanilla", "gspo", "cispo", "clip_cov", "geo_mean", "dppo_tv", "dppo_kl")}
CLIPPED_TWICE = {"algorithm.loss_mode": ("vanilla", "dppo_tv", "dppo_kl")}
AGGREGATED = {"algorithm.loss_mode": tuple(loss for loss in LOSSES if loss not in ("sapo", "geo_mean"))}
SCALED = AGGREGATED | {"algorithm.loss_agg_mode": ("seq-mean-token-sum-norm",)}
SAPO, CLIP_COV, KL_COV, DRO = ({"algorithm.loss_mode": (loss,)} for loss in ("sapo", "clip_cov", "kl_cov", "dro"))
# Which estimators read which settings: the same file, under register_adv_est.
ESTIMATORS = (
    "grpo",
    "rloo",
    "gae",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "opo",
    "gpg",
    "grpo_passk",
    "gdpo",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
)
DIVIDED = {"algorithm.adv_estimator": ("grpo", "grpo_passk", "gdpo")}
DISCOUNTED = {"algorithm.adv_estimator": ("gae", "reinforce_plus_plus")}
WITH_CRITIC = {"algorithm.adv_estimator": ("gae",)}
GDPO = {"algorithm.adv_estimator": ("gdpo",)}
KL_ESTIMATORS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")

MEGATRON = f"{ACTOR}.megatron"
FSDP = f"{ACTOR}.fsdp_config"


@dataclass(kw_only=True, slots=True)
class Shape:
    """What check and estimate need of a model's config.json; 0 experts is a dense model, kv_lora_rank 0 no MLA."""

    num_layers: int = knob(1, "transformer layers", low=1, high=10_000)
    hidden_size: int = knob(64, "width of the residual stream", low=1, high=1_000_000)
    num_attention_heads: int = knob(1, "query heads", low=1, high=100_000)
    num_key_value_heads: int = knob(1, "key and value heads", low=1, high=100_000)
    head_dim: int = knob(64, "width of a query or key head", low=1, high=1_000_000)
    intermediate_size: int = knob(64, "width of a dense feed-forward layer", low=1, high=10_000_000)
    moe_intermediate_size: int = knob(0, "width of one expert", low=0, high=10_000_000)
    num_experts: int = knob(0, "experts of a mixture layer", low=0, high=100_000)
    num_experts_per_token: int = knob(0, "experts that a token visits", low=0, high=100_000)
    num_shared_experts: int = knob(0, "experts that every token visits", low=0, high=1_000)
    shared_expert_intermediate_size: int = knob(
        0, "width of one shared expert; 0: as any expert", low=0, high=10_000_000
    )
    first_dense_layers: int = knob(0, "layers before the first mixture layer", low=0, high=10_000)
    num_nextn_predict_layers: int = knob(0, "layers for multi-token prediction, after the others", low=0, high=100)
    vocab_size: int = knob(1, "entries of the embedding", low=1, high=100_000_000)
    tie_word_embeddings: bool = knob(False, "the head is the embedding")
    max_position_embeddings: int = knob(1, "longest sequence", unit="tokens", low=1, high=1_000_000_000)
    sliding_window: int = knob(
        0, "what a layer of sliding attention looks back; 0: there is none", unit="tokens", low=0, high=1_000_000_000
    )
    num_sliding_layers: int = knob(0, "layers of sliding attention", low=0, high=10_000)
    qkv_bias: bool = knob(False, "the projections to queries, keys and values have biases")
    attention_output_bias: bool = knob(False, "the projection out of attention has a bias")
    qk_norm: bool = knob(False, "queries and keys are normalized, head by head")
    attention_sinks: bool = knob(False, "each query head has a learned sink")
    mlp_bias: bool = knob(False, "the projections of a feed-forward layer, or of each expert, have biases")
    router_bias: bool = knob(False, "the router has a learned bias; a balancing bias, which no gradient moves, is none")
    q_lora_rank: int = knob(0, "MLA: width that queries are compressed to; 0: they are not", low=0, high=1_000_000)
    kv_lora_rank: int = knob(0, "MLA: width that keys and values are compressed to", low=0, high=1_000_000)
    qk_nope_head_dim: int = knob(0, "MLA: part of a query or key head without positions", low=0, high=1_000_000)
    qk_rope_head_dim: int = knob(0, "MLA: part of a query or key head with positions", low=0, high=1_000_000)
    v_head_dim: int = knob(0, "MLA: width of a value head", low=0, high=1_000_000)


@dataclass(kw_only=True, slots=True)
class Model:
    name: str = knob(doc="name in tables and labels", learned=False)
    path: str = knob(doc="directory or hub id in Hugging Face format; embedded:model is the shipped tiny one")
    model_type: str = knob("", "Hugging Face's name of the architecture; empty: unknown")
    trust_remote_code: bool = knob(
        False, "run code that comes with the model", f"{MODEL}.trust_remote_code", "data.trust_remote_code"
    )
    external_lib: str | None = knob(None, "module to import for a custom model class", f"{MODEL}.external_lib")
    transformer_config: dict[str, Any] = knob(
        factory=dict,
        doc="fields of Megatron's TransformerConfig that this model must have, whatever the algorithm",
        when=ON_MEGATRON,
    )
    shape: Shape = field(default_factory=Shape)


@dataclass(kw_only=True, slots=True)
class Algorithm:
    name: str = knob(doc="name in tables and labels", learned=False)
    plugin: str | None = knob(
        None,
        "Python file with an advantage estimator or policy loss of your own, imported in every process of the trainer",
    )
    adv_estimator: str = knob(
        "grpo",
        "how rewards become advantages; with a plugin also the name of its own",
        "algorithm.adv_estimator",
        choices=ESTIMATORS,
    )
    norm_adv_by_std: bool = knob(
        True,
        "divide by the group's standard deviation (off: the Dr.GRPO correction)",
        "algorithm.norm_adv_by_std_in_grpo",
        when=DIVIDED,
    )
    gamma: float = knob(1.0, "discount of later rewards", "algorithm.gamma", when=DISCOUNTED, low=0, high=1)
    lam: float = knob(1.0, "bias against variance of GAE", "algorithm.lam", when=WITH_CRITIC, low=0, high=1)
    gdpo_reward_keys: list[str] = knob(
        factory=list,
        doc="GDPO: the parts of the reward, as the reward function names them in its dict",
        when=GDPO,
    )
    gdpo_reward_weights: list[float] = knob(factory=list, doc="GDPO: their weights; empty: 1 each", when=GDPO)
    loss_mode: str = knob(
        "vanilla",
        "the policy loss; vanilla is PPO's clipped one with the dual clip; with a plugin also the name of its own",
        f"{ACTOR}.policy_loss.loss_mode",
        choices=LOSSES,
    )
    clip_ratio_low: float = knob(
        0.2,
        "the importance ratio is clipped below 1 - this (geo_mean: its logarithm; dppo: bound of the divergence)",
        f"{ACTOR}.clip_ratio_low",
        when=CLIPPED,
        low=0,
    )
    clip_ratio_high: float = knob(
        0.2, "the importance ratio is clipped above 1 + this", f"{ACTOR}.clip_ratio_high", when=CLIPPED, low=0
    )
    clip_ratio_c: float = knob(
        3.0,
        "dual clip: bound of the loss of a token with a negative advantage, above 1 (dppo: cap of the ratio)",
        f"{ACTOR}.clip_ratio_c",
        when=CLIPPED_TWICE,
        low=1,
    )
    loss_agg_mode: str = knob(
        "token-mean",
        "how token losses become one number",
        f"{ACTOR}.loss_agg_mode",
        when=AGGREGATED,
        choices=(
            "token-mean",
            "token-sum",
            "seq-mean-token-sum",
            "seq-mean-token-mean",
            "seq-mean-token-sum-norm",
        ),
    )
    loss_scale_factor: int | None = knob(
        None,
        "constant that a sequence's sum is divided by; null: the longest response of the batch",
        f"{ACTOR}.loss_scale_factor",
        when=SCALED,
        low=1,
    )
    tau_pos: float = knob(
        1.0, "SAPO: temperature of the gate where the advantage is positive", f"{ACTOR}.tau_pos", when=SAPO, low=0
    )
    tau_neg: float = knob(1.05, "SAPO: temperature of the gate where it is not", f"{ACTOR}.tau_neg", when=SAPO, low=0)
    clip_cov_ratio: float = knob(
        2e-4,
        "Clip-Cov: share of the tokens that are left out",
        f"{ACTOR}.policy_loss.clip_cov_ratio",
        when=CLIP_COV,
        low=0,
        high=1,
    )
    clip_cov_lb: float = knob(
        1.0, "Clip-Cov: least covariance of such a token", f"{ACTOR}.policy_loss.clip_cov_lb", when=CLIP_COV
    )
    clip_cov_ub: float = knob(
        5.0, "Clip-Cov: greatest covariance of such a token", f"{ACTOR}.policy_loss.clip_cov_ub", when=CLIP_COV
    )
    kl_cov_ratio: float = knob(
        2e-4,
        "KL-Cov: share of the tokens that are penalised",
        f"{ACTOR}.policy_loss.kl_cov_ratio",
        when=KL_COV,
        low=0,
        high=1,
    )
    ppo_kl_coef: float = knob(
        0.1, "KL-Cov: weight of the penalty", f"{ACTOR}.policy_loss.ppo_kl_coef", when=KL_COV, low=0
    )
    dro_beta: float | None = knob(
        None, "DRO: weight of the squared log-ratio", f"{ACTOR}.policy_loss.dro_beta", when=DRO, low=0
    )
    use_kl_loss: bool = knob(False, "add a KL term to the loss; builds a reference model", f"{ACTOR}.use_kl_loss")
    kl_loss_coef: float = knob(1e-3, "weight of the KL term", f"{ACTOR}.kl_loss_coef", when=WITH_KL_LOSS, low=0)
    kl_loss_type: str = knob(
        "low_var_kl",
        "estimator of the KL term; with + its gradient is k2's, the unbiased one",
        f"{ACTOR}.kl_loss_type",
        when=WITH_KL_LOSS,
        choices=(*KL_ESTIMATORS, *(f"{name}+" for name in KL_ESTIMATORS)),
    )
    use_kl_in_reward: bool = knob(
        False, "subtract a KL penalty from the reward; builds a reference model", "algorithm.use_kl_in_reward"
    )
    kl_penalty: str = knob(
        "kl", "estimator of that penalty", "algorithm.kl_penalty", when=WITH_KL_REWARD, choices=KL_ESTIMATORS
    )
    kl_controller: str = knob(
        "fixed",
        "whether its weight follows a target",
        "algorithm.kl_ctrl.type",
        when=WITH_KL_REWARD,
        choices=("fixed", "adaptive"),
    )
    kl_coef: float = knob(1e-3, "its weight, or the first one", "algorithm.kl_ctrl.kl_coef", when=WITH_KL_REWARD, low=0)
    kl_target: float = knob(0.1, "adaptive: the KL to keep to", "algorithm.kl_ctrl.target_kl", when=ADAPTIVE_KL, low=0)
    kl_horizon: int = knob(
        10000,
        "adaptive: samples over which it follows",
        "algorithm.kl_ctrl.horizon",
        unit="samples",
        when=ADAPTIVE_KL,
        low=1,
    )
    entropy_coeff: float = knob(0.0, "weight of an entropy bonus", f"{ACTOR}.entropy_coeff")
    use_filter_groups: bool = knob(
        False,
        "dynamic sampling: a group whose samples all score alike is replaced by another prompt's (DAPO)",
        "algorithm.filter_groups.enable",
    )
    filter_groups_metric: str = knob(
        "acc",
        "what they are compared by: reward, or what the reward function calls it",
        "algorithm.filter_groups.metric",
        when={"algorithm.use_filter_groups": (True,)},
    )
    critic_path: str | None = knob(None, "model that the critic starts from; null: the actor's", when=WITH_CRITIC)
    critic_learning_rate: float = knob(1e-5, "of the critic", "critic.optim.lr", when=WITH_CRITIC, low=0, high=1)
    critic_warmup_steps: int = knob(
        0, "steps in which the critic alone learns", "trainer.critic_warmup", unit="steps", when=WITH_CRITIC, low=0
    )
    critic_cliprange: float = knob(0.5, "the value's clip range", "critic.cliprange_value", when=WITH_CRITIC, low=0)


@dataclass(kw_only=True, slots=True)
class Parallelism:
    name: str = knob(doc="name in tables and labels", learned=False)
    engine: str = knob("fsdp2", "what trains", choices=("fsdp2", "megatron"), learned=False)
    tensor: int = knob(
        1,
        "tensor parallel size",
        f"{MEGATRON}.tensor_model_parallel_size",
        when=ON_MEGATRON,
        learned=False,
        low=1,
    )
    pipeline: int = knob(
        1,
        "pipeline parallel size",
        f"{MEGATRON}.pipeline_model_parallel_size",
        when=ON_MEGATRON,
        learned=False,
        low=1,
    )
    virtual_pipeline: int | None = knob(
        None,
        "virtual pipeline stages a stage",
        f"{MEGATRON}.virtual_pipeline_model_parallel_size",
        when=ON_MEGATRON,
        learned=False,
        low=1,
    )
    first_stage_layers: int | None = knob(
        None,
        "layers of the first pipeline stage; null: as many as the others",
        f"{MEGATRON}.override_transformer_config.num_layers_in_first_pipeline_stage",
        when=ON_MEGATRON,
        learned=False,
        low=1,
    )
    last_stage_layers: int | None = knob(
        None,
        "layers of the last pipeline stage; null: as many as the others",
        f"{MEGATRON}.override_transformer_config.num_layers_in_last_pipeline_stage",
        when=ON_MEGATRON,
        learned=False,
        low=1,
    )
    context: int = knob(1, "ranks that share a sequence: context parallel, or Ulysses under FSDP", learned=False, low=1)
    expert: int = knob(
        1,
        "expert parallel size",
        f"{MEGATRON}.expert_model_parallel_size",
        when=ON_MEGATRON,
        learned=False,
        low=1,
    )
    expert_tensor: int | None = knob(
        None,
        "tensor parallel size of the experts; null: as tensor",
        f"{MEGATRON}.expert_tensor_parallel_size",
        when=ON_MEGATRON,
        learned=False,
        low=1,
    )
    fsdp_size: int = knob(
        -1,
        "ranks that share one copy of the parameters; -1: all",
        f"{FSDP}.fsdp_size",
        when=ON_FSDP,
        learned=False,
        low=-1,
    )
    dtype: str = knob(
        "bfloat16",
        "precision of forward and backward; the optimizer's copy is float32",
        when=ON_GPU,
        choices=("bfloat16", "float16"),
    )


@dataclass(kw_only=True, slots=True)
class Memory:
    name: str = knob(doc="name in tables and labels", learned=False)
    param_offload: bool = knob(False, "parameters and gradients wait on the host while others run", learned=False)
    optimizer_offload: bool = knob(False, "the optimizer waits on the host while others run", learned=False)
    optimizer_on_cpu: bool = knob(
        False,
        "the optimizer lives and steps on the host (Megatron's hybrid optimizer): slow, and saves the most",
        when=ON_MEGATRON,
        learned=False,
    )
    offload_policy: bool = knob(
        False,
        "FSDP2's own offload: parameters, gradients and optimizer live on the host",
        f"{FSDP}.offload_policy",
        when=ON_FSDP,
        learned=False,
    )
    reshardable_checkpoints: bool = knob(
        False,
        "a checkpoint can be resumed under another layout (more context or pipeline ranks)",
        f"{MEGATRON}.dist_ckpt_optim_fully_reshardable",
        when=ON_MEGATRON,
        learned=False,
    )
    recompute_granularity: str | None = knob(
        None,
        "recompute activations in the backward pass",
        f"{MEGATRON}.override_transformer_config.recompute_granularity",
        when=ON_MEGATRON,
        learned=False,
        choices=(None, "full", "selective"),
    )
    recompute_modules: list[str] | None = knob(
        None,
        "what selective recomputation computes again; null: core_attn",
        f"{MEGATRON}.override_transformer_config.recompute_modules",
        when=ON_MEGATRON | {"memory.recompute_granularity": ("selective",)},
        learned=False,
    )
    recompute_method: str | None = knob(
        None,
        "which layers full recomputation saves the inputs of",
        f"{MEGATRON}.override_transformer_config.recompute_method",
        when=ON_MEGATRON | {"memory.recompute_granularity": ("full",)},
        learned=False,
        choices=(None, "uniform", "block"),
    )
    recompute_num_layers: int | None = knob(
        None,
        "layers a group",
        f"{MEGATRON}.override_transformer_config.recompute_num_layers",
        when=ON_MEGATRON | {"memory.recompute_granularity": ("full",)},
        learned=False,
        low=1,
    )
    use_gradient_checkpointing: bool = knob(
        True,
        "recompute activations layer by layer (FSDP)",
        f"{MODEL}.enable_gradient_checkpointing",
        when=ON_FSDP,
        learned=False,
    )
    use_fused_kernels: bool = knob(
        False, "never hold the logits of a whole batch", f"{MODEL}.use_fused_kernels", learned=False
    )
    use_remove_padding: bool = knob(True, "pack sequences", f"{MODEL}.use_remove_padding", learned=False)


@dataclass(kw_only=True, slots=True)
class Rollout:
    name: str = knob(doc="name in tables and labels", learned=False)
    engine: str = knob(
        "vllm",
        "what generates; embedded is hysweep's small server for machines with no GPU",
        choices=("vllm", "embedded"),
        learned=False,
    )
    n: int = knob(8, "samples a prompt: the group size", f"{ROLLOUT}.n", low=1, high=100_000)
    temperature: float = knob(1.0, "of training samples", f"{ROLLOUT}.temperature", low=0)
    top_p: float = knob(1.0, "of training samples", f"{ROLLOUT}.top_p", low=0, high=1)
    top_k: int = knob(-1, "of training samples; -1: all", f"{ROLLOUT}.top_k", low=-1)
    val_do_sample: bool = knob(False, "sample in validation (off: greedy)", f"{ROLLOUT}.val_kwargs.do_sample")
    val_temperature: float = knob(
        1.0,
        "of validation samples",
        f"{ROLLOUT}.val_kwargs.temperature",
        when={"rollout.val_do_sample": (True,)},
        low=0,
    )
    val_top_p: float = knob(
        1.0,
        "of validation samples",
        f"{ROLLOUT}.val_kwargs.top_p",
        when={"rollout.val_do_sample": (True,)},
        low=0,
        high=1,
    )
    val_n: int = knob(1, "samples a validation prompt", f"{ROLLOUT}.val_kwargs.n", low=1, high=100_000)
    dtype: str = knob(
        "bfloat16", "precision of the rollout", f"{ROLLOUT}.dtype", choices=("bfloat16", "float16", "float32")
    )
    correction_is: str | None = knob(
        None,
        "importance weights that correct the gap of rollout and training engine",
        "algorithm.rollout_correction.rollout_is",
        choices=(None, "token", "sequence"),
    )
    correction_is_threshold: str = knob(
        "2.0",
        "one number: cap (TIS); low_high: weights outside become zero (IcePop). Always a string",
        "algorithm.rollout_correction.rollout_is_threshold",
        when=WITH_IS,
    )
    correction_is_normalize: bool = knob(
        False,
        "scale the weights of a batch to a mean of 1",
        "algorithm.rollout_correction.rollout_is_batch_normalize",
        when=WITH_IS,
    )
    correction_rs: str | None = knob(
        None,
        "rejection sampling: measures of the gap, separated by commas (token_k1, seq_mean_k3, seq_max_k2, ...); "
        "what lies beyond is left out of the loss",
        "algorithm.rollout_correction.rollout_rs",
    )
    correction_rs_threshold: str | None = knob(
        None,
        "bound of each measure, or one for all: low_high or one number for k1, one number for k2 and k3. "
        "Always a string",
        "algorithm.rollout_correction.rollout_rs_threshold",
        when=WITH_RS,
    )
    correction_bypass: bool = knob(
        False,
        "take the rollout's probabilities for the old policy's, and spare that pass",
        "algorithm.rollout_correction.bypass_mode",
    )
    tensor: int = knob(
        1, "tensor parallel size of a replica", f"{ROLLOUT}.tensor_model_parallel_size", learned=False, low=1
    )
    data: int = knob(1, "data parallel size of a replica", f"{ROLLOUT}.data_parallel_size", learned=False, low=1)
    expert: int = knob(
        1,
        "expert parallel size of a replica: 1, or tensor * data",
        f"{ROLLOUT}.expert_parallel_size",
        when=ON_VLLM,
        learned=False,
        low=1,
    )
    update_bucket_mib: int = knob(
        2048,
        "weights go from trainer to rollout in pieces of this size",
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
        unit="MiB",
        when=ON_VLLM,
        learned=False,
        low=1,
    )
    gpu_memory_utilization: float = knob(
        0.5,
        "share of each GPU's memory that the engine takes",
        f"{ROLLOUT}.gpu_memory_utilization",
        when=ON_VLLM,
        learned=False,
        low=0.05,
        high=1,
    )
    max_model_len: int | None = knob(
        None,
        "longest sequence of the engine; null: prompt + response",
        unit="tokens",
        when=ON_VLLM,
        learned=False,
        low=1,
    )
    max_num_batched_tokens: int = knob(
        8192,
        "tokens of one engine step",
        f"{ROLLOUT}.max_num_batched_tokens",
        unit="tokens",
        when=ON_VLLM,
        learned=False,
        low=1,
    )
    max_num_seqs: int = knob(
        256, "sequences that run at once in a replica", f"{ROLLOUT}.max_num_seqs", learned=False, low=1
    )
    enforce_eager: bool = knob(False, "no CUDA graphs", f"{ROLLOUT}.enforce_eager", when=ON_VLLM, learned=False)
    free_cache_engine: bool = knob(
        True, "give the cache's memory back while training", f"{ROLLOUT}.free_cache_engine", learned=False
    )
    agent_workers: int = knob(
        8, "processes that drive generation", f"{ROLLOUT}.agent.num_workers", learned=False, low=1, high=4096
    )


@dataclass(kw_only=True, slots=True)
class Data:
    name: str = knob(doc="name in tables and labels", learned=False)
    train_files: list[str] = knob(
        doc="parquet or JSON files: one, a list of shards, or a glob; embedded:train is the shipped tiny task",
        factory=list,
    )
    val_files: list[str] = knob(
        doc="as train_files, to validate with; embedded:val is the shipped tiny task", factory=list
    )
    truncation: str = knob(
        "error",
        "what happens to a longer prompt",
        "data.truncation",
        choices=("error", "left", "right", "middle"),
    )
    filter_overlong_prompts: bool = knob(False, "drop longer prompts first", "data.filter_overlong_prompts")
    reader: str = knob(
        "verl",
        "what reads the files; arrow also takes Arrow files, their shards and save_to_disk directories as they are",
        choices=("verl", "arrow"),
        learned=False,
    )
    shuffle: bool = knob(True, "shuffle the training set", "data.shuffle")
    loader_workers: int = knob(
        8, "processes that load rows", "data.dataloader_num_workers", learned=False, low=0, high=1024
    )


@dataclass(kw_only=True, slots=True)
class Reward:
    name: str = knob(doc="name in tables and labels", learned=False)
    manager: str = knob(
        "naive", "how a reward is computed", "reward.reward_manager.name", choices=("naive", "dapo", "gdpo")
    )
    function_path: str | None = knob(
        None, "Python file with a reward function; null: verl's routing by data_source; embedded:reward"
    )
    function_name: str = knob("compute_score", "its name there", when=WITH_FUNCTION)
    function_kwargs: dict[str, Any] = knob(
        factory=dict, doc="what it is called with besides the row", when=WITH_FUNCTION
    )
    routes: dict[str, Any] = knob(
        factory=dict,
        doc="what scores a row, by its data_source or a pattern of them: a ready reward, file.py:function, a URL, "
        "server:NAME/path or verl; {reward, weight, options}; or a list of these, which is added up",
    )
    servers: dict[str, Any] = knob(
        factory=dict,
        doc="what routes ask and the job starts: name -> {command with {port}, health: path, ready_s}",
        when=ROUTED,
    )
    timeout_s: float = knob(60.0, "of a request to an endpoint", unit="s", when=ROUTED, learned=False, low=0.01)
    retries: int = knob(3, "more tries of a request that failed", when=ROUTED, learned=False, low=0)
    batch: int = knob(16, "most rows of a request", unit="rows", when=ROUTED, learned=False, low=1)
    concurrent: int = knob(
        8, "most requests of one scoring process at once", unit="requests", when=ROUTED, learned=False, low=1, high=4096
    )
    model_path: str | None = knob(None, "reward model, in Hugging Face format", "reward.reward_model.model_path")
    model_engine: str = knob(
        "vllm",
        "what serves the reward model",
        "reward.reward_model.rollout.name",
        when=WITH_REWARD_MODEL,
        choices=("vllm", "sglang"),
        learned=False,
    )
    model_tensor: int = knob(
        1,
        "its tensor parallel size",
        "reward.reward_model.rollout.tensor_model_parallel_size",
        when=WITH_REWARD_MODEL,
        learned=False,
        low=1,
    )
    model_gpu_memory_utilization: float = knob(
        0.5,
        "share of each GPU's memory that it takes",
        "reward.reward_model.rollout.gpu_memory_utilization",
        when=WITH_REWARD_MODEL,
        learned=False,
        low=0.05,
        high=1,
    )
    model_nodes: int = knob(
        0,
        "nodes of its own, which the job has beside cluster.nodes; 0: it shares the trainer's GPUs",
        when=WITH_REWARD_MODEL,
        learned=False,
        low=0,
        high=100_000,
    )
    sandbox_url: str | None = knob(
        None, "Sandbox Fusion that runs code for verl's routing", "reward.sandbox_fusion.url", learned=False
    )
    sandbox_concurrent: int = knob(
        64,
        "most programs at once",
        "reward.sandbox_fusion.max_concurrent",
        when=WITH_SANDBOX,
        learned=False,
        low=1,
        high=100_000,
    )
    sandbox_memory_mib: int = knob(
        1024, "memory of a program", "reward.sandbox_fusion.memory_limit_mb", unit="MiB", when=WITH_SANDBOX, low=1
    )
    overlong_buffer_len: int | None = knob(
        None,
        "DAPO: the last tokens of the response length in which a penalty grows; 0: none; null: a fifth of it",
        unit="tokens",
        when={"reward.manager": ("dapo",)},
        low=0,
    )
    overlong_penalty: float = knob(
        1.0, "DAPO: the penalty at the full length", when={"reward.manager": ("dapo",)}, low=0
    )
    overlong_log: bool = knob(
        True, "DAPO: log the penalty as a metric", when={"reward.manager": ("dapo",)}, learned=False
    )
    workers: int = knob(8, "processes that score", "reward.num_workers", learned=False, low=1, high=4096)


@dataclass(kw_only=True, slots=True)
class Trainer:
    name: str = knob(doc="name in tables and labels", learned=False)
    verl: str = knob(
        "0.9.1",
        "the trainer: a version that is known here (0.9.1, 0.9.0, 220e903), `installed`, a wheel or a checkout",
    )
    entry: str = knob("main_ppo", "what trains: main_ppo, or the module of a recipe's own entry, as dapo.main_dapo")
    recipes: str | None = knob(
        None, "checkout of verl's recipe collection, which the entry is a module of", when={"trainer.entry": OTHERS}
    )
    use_v1: bool | None = knob(None, "verl's V1 trainer; null: wherever the algorithm can run on it", learned=False)
    learning_rate: float = knob(1e-6, "of the actor", f"{ACTOR}.optim.lr", low=0, high=1)
    weight_decay: float = knob(0.01, "of the actor's optimizer", f"{ACTOR}.optim.weight_decay", low=0)
    grad_clip: float = knob(1.0, "largest norm of the gradient", low=0)
    train_batch_size: int = knob(128, "prompts a step", "data.train_batch_size", unit="prompts", low=1, high=10_000_000)
    mini_batch_size: int = knob(
        128, "prompts an update", f"{ACTOR}.ppo_mini_batch_size", unit="prompts", low=1, high=10_000_000
    )
    ppo_epochs: int = knob(1, "passes over a step's samples", f"{ACTOR}.ppo_epochs", low=1)
    max_prompt_length: int = knob(
        512, "prompts are cut or dropped beyond it", "data.max_prompt_length", unit="tokens", low=1
    )
    max_response_length: int = knob(1024, "longest answer", "data.max_response_length", unit="tokens", low=1)
    use_dynamic_batch: bool = knob(
        True, "micro batches by token budget, not by count", f"{ACTOR}.use_dynamic_bsz", learned=False
    )
    max_token_len_per_gpu: int = knob(
        16384,
        "token budget of a micro batch of the update",
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        unit="tokens",
        when=STEPPED,
        learned=False,
        low=1,
    )
    log_prob_max_token_len_per_gpu: int = knob(
        16384,
        "token budget of a micro batch of log-probabilities",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        f"{REF}.log_prob_max_token_len_per_gpu",
        unit="tokens",
        when=STEPPED,
        learned=False,
        low=1,
    )
    micro_batch_size_per_gpu: int = knob(
        1,
        "samples of a micro batch",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        f"{REF}.log_prob_micro_batch_size_per_gpu",
        when=FIXED_MICRO,
        learned=False,
        low=1,
    )
    total_steps: int | None = knob(
        None,
        "steps of training; null: as many as total_epochs make",
        "trainer.total_training_steps",
        learned=False,
        low=1,
    )
    total_epochs: int = knob(1, "passes over the training set", "trainer.total_epochs", low=1)
    validate_before: bool = knob(True, "validate before the first step", "trainer.val_before_train", learned=False)
    validate_every: int = knob(10, "steps between validations; -1: never", "trainer.test_freq", learned=False, low=-1)
    save_every: int = knob(20, "steps between checkpoints; -1: never", "trainer.save_freq", learned=False, low=-1)
    checkpoints_kept: int | None = knob(
        None, "older ones are deleted; null: keep all", "trainer.max_actor_ckpt_to_keep", learned=False, low=1
    )
    seed: int = knob(
        1,
        "of data order and sampling",
        "data.seed",
        f"{ACTOR}.data_loader_seed",
        f"{ROLLOUT}.seed",
        low=0,
        high=2**31 - 1,
    )


@dataclass(kw_only=True, slots=True)
class Cluster:
    name: str = knob(doc="name in tables and labels", learned=False)
    launcher: str = knob("local", "who starts jobs", choices=("local", "slurm", "ray_job"), learned=False)
    nodes: int = knob(1, "nodes a trial", "trainer.nnodes", learned=False, low=1, high=100_000)
    gpus_per_node: int = knob(
        1,
        "GPUs a node; on a machine with none: worker slots",
        "trainer.n_gpus_per_node",
        learned=False,
        low=1,
        high=4096,
    )
    gpu: str | None = knob(None, "kind of GPU; null: none, verl runs on the CPU", learned=False)
    gpu_memory_gib: float | None = knob(None, "memory of a GPU", unit="GiB", when=ON_GPU, learned=False, low=1)
    cpus_per_node: int | None = knob(
        None, "CPUs that Ray may hand out on a node; null: those of the allocation", learned=False, low=1
    )
    object_store_gib: float | None = knob(
        None, "Ray's shared memory on a node; null: Ray's own choice", unit="GiB", learned=False, low=0.08
    )
    timeout_min: int = knob(240, "time limit of a job", unit="min", learned=False, low=1, high=525_600)
    ray_boot_timeout_s: int = knob(300, "until all nodes must have joined", unit="s", learned=False, low=10)
    silent_after_s: int = knob(
        5, "a node of which nothing was heard for so long is lost", unit="s", when=ON_SLURM, learned=False, low=3
    )
    network_interface: str | None = knob(
        None, "interface that nodes reach each other by; null: the one that leads there", when=ON_SLURM, learned=False
    )
    local_dir: str | None = knob(
        None, "directory of a node for Ray's files and sockets; null: its temporary one", learned=False
    )
    visible_devices: str = knob(
        "CUDA_VISIBLE_DEVICES",
        "the variable that says which GPUs are ours; the others are not passed on",
        choices=("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        when=ON_GPU,
        learned=False,
    )
    ray_address: str | None = knob(
        None,
        "dashboard of a standing Ray cluster, as http://head:8265; null: RAY_API_SERVER_ADDRESS, or RAY_ADDRESS",
        when=ON_RAY,
        learned=False,
    )
    # --- what SLURM is asked for, by sbatch's own names
    partition: str | None = knob(None, "partition, or several with commas", when=ON_SLURM, learned=False)
    account: str | None = knob(None, "account that pays", when=ON_SLURM, learned=False)
    qos: str | None = knob(None, "quality of service", when=ON_SLURM, learned=False)
    constraint: str | None = knob(None, "features that nodes must have", when=ON_SLURM, learned=False)
    reservation: str | None = knob(None, "reservation to run in", when=ON_SLURM, learned=False)
    nodelist: str | None = knob(None, "nodes that must be among them", when=ON_SLURM, learned=False)
    exclude: str | None = knob(None, "nodes never to use", when=ON_SLURM, learned=False)
    use_exclusive: bool = knob(False, "whole nodes, shared with nobody", when=ON_SLURM, learned=False)
    gres: str | None = knob(
        None,
        "GPUs of a node in the site's words, as gpu:h100:8; null: --gpus-per-node",
        when=ON_SLURM | ON_GPU,
        learned=False,
    )
    memory_gib: float | None = knob(
        None,
        "memory of a node; 0: all of it; null: the site's default",
        unit="GiB",
        when=ON_SLURM,
        learned=False,
        low=0,
    )
    signal_delay_s: int = knob(
        120, "so long before the time limit the job is told", unit="s", when=ON_SLURM, learned=False, low=1
    )
    use_requeue: bool = knob(
        True, "a job that is preempted or reaches its limit goes back to the queue", when=ON_SLURM, learned=False
    )
    dependency: str | None = knob(None, "jobs to wait for, as afterok:1234", when=ON_SLURM, learned=False)
    comment: str | None = knob(None, "comment in the site's records", when=ON_SLURM, learned=False)
    mail_type: str | None = knob(None, "events to send mail on, as END,FAIL", when=ON_SLURM, learned=False)
    mail_user: str | None = knob(None, "whom to send it to", when=ON_SLURM, learned=False)
    nice: int | None = knob(None, "lower priority by so much", when=ON_SLURM, learned=False)
    srun_args: list[str] = knob(factory=list, doc="more arguments of srun", when=ON_SLURM, learned=False)
    additional_parameters: dict[str, Any] = knob(
        factory=dict, doc="more options of sbatch, by name; true: without a value", when=ON_SLURM, learned=False
    )
    modules: list[str] = knob(
        factory=list,
        doc="modules to load first; where more than a load is needed, all of it is in setup",
        when=ON_SLURM,
        learned=False,
    )
    setup: list[str] = knob(
        factory=list,
        doc="lines of bash to run next, after the modules, on the first node",
        when=ON_SLURM,
        learned=False,
    )
    python: str | None = knob(
        None,
        "the Python of the nodes; null: the one that submits, on a Ray cluster python3",
        when=ELSEWHERE,
        learned=False,
    )
    container: str | None = knob(
        None,
        "what runs the image; null: no container",
        choices=(None, "pyxis", "apptainer"),
        when=ON_SLURM,
        learned=False,
    )
    image: str | None = knob(
        None, "image, in the words of what runs it; unused without a container", when=ON_SLURM, learned=False
    )
    container_mounts: list[str] = knob(
        factory=list,
        doc="directories of the node to see inside, as /data or /data:/mnt",
        when=IN_CONTAINER,
        learned=False,
    )
    max_submitted: int | None = knob(
        None, "most jobs in the queue at once, where the site has such a limit", when=ON_SLURM, learned=False, low=1
    )
    code: list[str] = knob(
        factory=list,
        doc="directories of code that trials import: each trial runs a copy as it was at submit",
        when=ELSEWHERE,
        learned=False,
    )
    env: dict[str, str] = knob(factory=dict, doc="environment of the trainer", learned=False)


@dataclass(kw_only=True, slots=True)
class Tracking:
    name: str = knob(doc="name in tables and labels", learned=False)
    loggers: list[str] = knob(
        factory=lambda: ["console", "file"],
        doc="where verl sends metrics; file is always among them",
        learned=False,
    )
    project: str = knob("hysweep", "project of the runs", "trainer.project_name", learned=False)
    entity: str | None = knob(
        None, "whose the runs of Weights & Biases are, a team or a user; null: your default", learned=False
    )
    mode: str = knob(
        "online",
        "of Weights & Biases; offline: runs are written beside each attempt, and `hysweep wandb sync` sends them",
        choices=("online", "offline"),
        learned=False,
    )
    tags: list[str] = knob(
        factory=list, doc="of the runs of Weights & Biases, beside the algorithm and the model", learned=False
    )


@dataclass(kw_only=True, slots=True)
class Trial:
    """All that one job trains, and where. The root of what `compose` returns for a point of the space."""

    model: Model
    algorithm: Algorithm
    parallelism: Parallelism
    memory: Memory
    rollout: Rollout
    data: Data
    reward: Reward
    trainer: Trainer
    cluster: Cluster
    tracking: Tracking
    verl: dict[str, Any] = knob(
        factory=dict,
        doc="any other key of the trainer, as in +verl.actor_rollout_ref.actor.shuffle=true",
    )

    @property
    def has_gpu(self) -> bool:
        return self.cluster.gpu is not None

    @property
    def world_size(self) -> int:
        """GPUs (or, with none, worker slots) of the whole job."""
        return self.cluster.nodes * self.cluster.gpus_per_node


def hour_unit(has_gpu: bool) -> str:
    """What a study's ledger and budget count: on a machine with no GPU, hours of a worker slot."""
    return "GPU-hours" if has_gpu else "slot-hours"
