"""Keys that verl had, or that articles say it has: where each one went. One table for check and import."""

from __future__ import annotations

from dataclasses import dataclass

ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"


@dataclass(frozen=True, slots=True)
class Moved:
    """`old` as somebody wrote it; `new`: the keys that do it now, none where nothing does; `why` in one line."""

    old: str
    new: tuple[str, ...]
    why: str


LEGACY = "is the old name of a reward setting, and main_ppo reads it no more (verl PR 7331)"
NEVER = "was never a key of verl"

# A key, or a node with all that lies below it. The first that fits counts.
TABLE: tuple[tuple[str, tuple[str, ...], str], ...] = (
    # verl 45632b5fa, June 2026: still in the schema, read by nothing
    ("reward_model.reward_manager", ("reward.reward_manager.name",), LEGACY),
    ("reward_model.reward_kwargs", ("reward.reward_kwargs",), LEGACY),
    ("reward_model.overlong_buffer", ("reward.reward_kwargs.overlong_buffer_cfg",), LEGACY),
    ("reward_model.enable", ("reward.reward_model.enable",), LEGACY),
    ("reward_model.model.path", ("reward.reward_model.model_path",), LEGACY),
    ("reward_model", (), LEGACY),
    ("custom_reward_function", ("reward.custom_reward_function",), LEGACY),
    ("sandbox_fusion", ("reward.sandbox_fusion",), LEGACY),
    ("data.reward_fn_key", (), "has no effect: the reward loop reads the column data_source"),
    # within verl
    (f"{MEGATRON}.grad_offload", (), "gradients follow param_offload; gone since 0.9.1, and read by nothing before"),
    (f"{REF}.megatron.grad_offload", (), "a reference model has no gradients"),
    (f"{ACTOR}.policy_loss.tau_pos", (f"{ACTOR}.tau_pos",), "is a key of the actor itself"),
    (f"{ACTOR}.policy_loss.tau_neg", (f"{ACTOR}.tau_neg",), "is a key of the actor itself"),
    (f"{ACTOR}.router_replay", (f"{MEGATRON}.router_replay",), "moved to the engine in 0.9.1"),
    ("data.continuous_token", (), "is gone since 0.9.0"),
    (f"{ACTOR}.ppo_micro_batch_size", (f"{ACTOR}.ppo_micro_batch_size_per_gpu",), "counted all GPUs; deprecated"),
    ("critic.ppo_micro_batch_size", ("critic.ppo_micro_batch_size_per_gpu",), "counted all GPUs; deprecated"),
    (f"{ROLLOUT}.log_prob_micro_batch_size", (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",),
     "counted all GPUs; smaller than their number it hangs (verl issue 2490)"),
    (f"{REF}.log_prob_micro_batch_size", (f"{REF}.log_prob_micro_batch_size_per_gpu",),
     "counted all GPUs; smaller than their number it hangs (verl issue 2490)"),
    # articles
    ("model.actor.pretrained", ("actor_rollout_ref.model.path",), NEVER),
    ("model.actor.path", ("actor_rollout_ref.model.path",), NEVER),
    ("model.actor.fsdp_config.mixed_precision", (f"{ACTOR}.fsdp_config.mixed_precision",), NEVER),
    ("model.actor.fsdp_config.offload_params", (f"{ACTOR}.fsdp_config.param_offload",), NEVER),
    ("model.actor.fsdp_config.use_fsdp", (), f"{NEVER}; model_engine=dp is FSDP"),
    (f"{ACTOR}.fsdp_config.use_fsdp", (), f"{NEVER}; model_engine=dp is FSDP"),
    (f"{ACTOR}.fsdp_config.offload_params", (f"{ACTOR}.fsdp_config.param_offload",), NEVER),
    ("model.actor", (), f"{NEVER}; models are set below actor_rollout_ref.model"),
    ("system.tp_size", (f"{MEGATRON}.tensor_model_parallel_size",), NEVER),
    ("system.pp_size", (f"{MEGATRON}.pipeline_model_parallel_size",), NEVER),
    ("system.dp_size", (), f"{NEVER}; what tensor, pipeline and context leave of the GPUs is data parallel"),
    ("system.enable_hybrid_engine", (), f"{NEVER}; trainer and rollout share the GPUs anyway"),
    ("enable_hybrid_engine", (), f"{NEVER}; trainer and rollout share the GPUs anyway"),
    ("trainer.num_epochs", ("trainer.total_epochs",), NEVER),
    ("algorithm.ppo.clip_coef", (f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"), NEVER),
    ("reward.functions", (), f"{NEVER}; one function serves all: reward.custom_reward_function"),
    ("fsdp_config.use_fsdp", (), f"{NEVER}; model_engine=dp is FSDP"),
)  # fmt: skip


def moved(key: str) -> Moved | None:
    """What became of a key, or None for one that has no history. Below a node, the rest of the name is kept."""
    for old, new, why in TABLE:
        if key == old or key.startswith(f"{old}."):
            rest = key.removeprefix(old)
            return Moved(key, tuple(f"{name}{rest}" for name in new), why)
    return None
