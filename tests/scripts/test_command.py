"""Somebody else's command line, one setting at a time: what is legal has no problem, what is not has its own key."""

from __future__ import annotations

import pytest

from hysweep.schema import BadInput, Problem
from hysweep.scripts import import_script
from hysweep.scripts.problems import problems_of

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CONFIG = f"{ACTOR}.megatron.override_transformer_config"
PLAIN = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B data.train_files=a.parquet "
    f"data.val_files=b.parquet algorithm.adv_estimator=grpo {ROLLOUT}.name=vllm {ROLLOUT}.n=8 "
    "data.train_batch_size=128 data.max_prompt_length=1000 data.max_response_length=2048 "
    f"{ACTOR}.ppo_mini_batch_size=128 {ACTOR}.use_dynamic_bsz=True trainer.n_gpus_per_node=8"
)
MEGATRON = f"{PLAIN} model_engine=megatron"
STAGES = f"{ACTOR}.megatron.pipeline_model_parallel_size=8"


def found(source: str, **given: str) -> list[Problem]:
    return problems_of(import_script(source.encode(), "run.sh", "run", "0.9.1", given))


@pytest.mark.parametrize(
    "command",
    [
        MEGATRON,
        f"{PLAIN} {ACTOR}.ppo_max_token_len_per_gpu=1024 {ACTOR}.fsdp_config.ulysses_sequence_parallel_size=4 "
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu=1024",
        f"{PLAIN} {ACTOR}.ppo_max_token_len_per_gpu=1024 {ACTOR}.ulysses_sequence_parallel_size=4",
        f"{MEGATRON} actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=12000 {ACTOR}.use_kl_loss=True",
        f"{MEGATRON} {STAGES} \"+{CONFIG}.pipeline_model_parallel_layout='Et*5|t*5|t*5|t*5|t*4|t*4|t*4|t*4L'\"",
        f"{MEGATRON} {ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_type=k3+ trainer.test_freq=-5 data.shuffle=1 "
        f"algorithm.adv_estimator=grpo_vectorized reward.reward_manager.name=remote {ROLLOUT}.dtype=auto",
        f"{MEGATRON} trainer.resume_mode=resume_path trainer.resume_from_path=/c/global_step_30",
        f"{MEGATRON} reward.reward_manager.source=importlib reward.reward_manager.name=Mine",
    ],
    ids=range(8),
)
def test_what_is_legal_has_no_problem_nor_a_warning(command: str) -> None:
    """No time limit and no memory of a GPU either, of which a command line says nothing."""
    assert found(command) == []


# (what is added, the key that is named, its severity, what the cure says, when verl would have stumbled)
WRONG = [
    ("algorithm.adv_estimator=remax", "trainer.use_v1", "error", "trainer.use_v1=false", "rollout"),
    (f"algorithm.rollout_correction.rollout_is=token {ROLLOUT}.calculate_log_probs=False",
     f"{ROLLOUT}.calculate_log_probs", "error", "true", "never"),
    (f"{ROLLOUT}.log_prob_use_dynamic_bsz=False", f"{ROLLOUT}.log_prob_use_dynamic_bsz", "error", "true", "start"),
    ("trainer.resume_mode=bogus", "trainer.resume_mode", "error", "auto, disable, resume_path", "start"),
    ("trainer.resume_mode=resume_path trainer.resume_from_path=/c", "trainer.resume_from_path", "error",
     "global_step_N", "start"),
    (f"{ACTOR}.megatron.use_mbridge=False", f"{ACTOR}.megatron.use_mbridge", "error", "true", "start"),
    ("trainer.v1.trainer_mode=foo", "trainer.v1.trainer_mode", "error", "sync", "start"),
    (f"{ACTOR}.checkpoint.save_contents='[model,hf_modell]'", f"{ACTOR}.checkpoint.save_contents", "error",
     "hf_model", "never"),
    (f"{ACTOR}.checkpoint.save_contents='[model]'", f"{ACTOR}.checkpoint.save_contents", "warning",
     "[model,optimizer,extra]", "never"),
    (f"+{CONFIG}.recompute_granularit=full", f"{CONFIG}.recompute_granularit", "error", "recompute_granularity",
     "start"),
    (f"{CONFIG}.recompute_granularity=selective {CONFIG}.recompute_num_layers=1", f"{CONFIG}.recompute_num_layers",
     "error", "leave it out", "start"),
    (f"{CONFIG}.recompute_method=uniform", f"{CONFIG}.recompute_method", "warning", "leave it out", "never"),
    (f"{ACTOR}.ppo_micro_batch_size_per_gpu=1", f"{ACTOR}.ppo_micro_batch_size_per_gpu", "warning", "leave it out",
     "never"),
    (f"{ROLLOUT}.tensor_model_parallel_size=2 {ROLLOUT}.expert_parallel_size=2", f"{ROLLOUT}.expert_parallel_size",
     "error", "give 1", "start"),
    (f"{ACTOR}.policy_loss.loss_mode=gspoo", f"{ACTOR}.policy_loss.loss_mode", "error", "gspo", "update"),
    ("algorithm.adv_estimator=grpoo", "algorithm.adv_estimator", "error", "grpo", "update"),
    (f"{ACTOR}.loss_agg_mode=token-meen", f"{ACTOR}.loss_agg_mode", "error", "token-mean", "compose"),
    (f"{ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_type=full", f"{ACTOR}.kl_loss_type", "error", "low_var_kl", "update"),
    (f"{ACTOR}.clip_ratio_c=0.5", f"{ACTOR}.clip_ratio_c", "error", "at least 1", "update"),
    (f"{ACTOR}.clip_ratio_low=abc", f"{ACTOR}.clip_ratio_low", "error", "a number, as 0.2", "update"),
    (f"{ROLLOUT}.gpu_memory_utilization=1.5", f"{ROLLOUT}.gpu_memory_utilization", "error", "at most 1", "start"),
    ("reward.reward_manager.name=bogus", "reward.reward_manager.name", "error", "dapo, gdpo, naive", "start"),
    ("reward.reward_manager=dapo", "reward.reward_manager", "error", "reward.reward_manager.name=dapo", "start"),
    *((f"trainer.n_gpus_per_node={n}", "trainer.n_gpus_per_node", "error", cure, "start")
      for n, cure in ((0, "at least 1"), (-3, "at least 1"), ("abc", "a whole number"))),
    (f"{STAGES} \"+{CONFIG}.pipeline_model_parallel_layout='Et*5|t*5|t*5|t*5|t*4|t*4|t*4|t*2L'\"",
     f"{CONFIG}.pipeline_model_parallel_layout", "error", "Et*4|t*4", "start"),
    (f"{ACTOR}.megatron.dtype=float32", f"{ACTOR}.megatron.dtype", "error", "bfloat16", "start"),
    (f"{CONFIG}.attention_backend=flsh", f"{CONFIG}.attention_backend", "error", "flash", "start"),
    (f"+{CONFIG}.tensor_model_parallel_size=2", f"{CONFIG}.tensor_model_parallel_size", "error",
     f"{ACTOR}.megatron.tensor_model_parallel_size", "start"),
    (f"{ROLLOUT}.name=vlmm", f"{ROLLOUT}.name", "error", "vllm", "start"),
    (f"+{ROLLOUT}.engine_kwargs.sglang.foo=1", f"{ROLLOUT}.engine_kwargs.sglang.foo", "warning", "leave it out",
     "never"),
    (f"{ROLLOUT}.max_model_len=2048", f"{ROLLOUT}.max_model_len", "error", "3048", "never"),
    (f"{ROLLOUT}.pipeline_model_parallel_size=2", f"{ROLLOUT}.pipeline_model_parallel_size", "error", "leave", "start"),
    ("trainer.logger=[consol]", "trainer.logger", "error", "console", "start"),
    *((f"{key}=null", key, "error", "give one", "start")
      for key in (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.megatron.tensor_model_parallel_size",
                  "trainer.logger", "data.val_files")),
    ("critic.enable=True", "critic.enable", "error", "leave it out", "never"),
    ("algorithm.adv_estimator=gae critic.enable=False", "critic.enable", "error", "leave it out", "update"),
    (f"{ACTOR}.use_dynamic_bsz=False {ACTOR}.ppo_micro_batch_size_per_gpu=1",
     f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "error", "=1", "compose"),
    ("reward.reward_manager.name=dapo +reward.reward_kwargs.overlong_buffer_cfg.enable=True "
     "+reward.reward_kwargs.overlong_buffer_cfg.len=400 +reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1",
     "reward.reward_kwargs.max_resp_len", "error", "max_resp_len=2048", "rollout"),
    ("+reward.bogus=1", "reward.bogus", "error", "mend", "never"),
    (f"{ACTOR}.megatron.grad_offload=true", f"{ACTOR}.megatron.grad_offload", "error", "leave it out", "compose"),
    (f"+{ACTOR}.megatron.grad_offload=true", f"{ACTOR}.megatron.grad_offload", "error", "leave it out", "start"),
    ("reward_model.reward_manager=dapo", "reward_model.reward_manager", "error", "reward.reward_manager.name", "never"),
    ("+trainer.num_epochs=1", "trainer.num_epochs", "error", "total_epochs", "never"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "key", "severity", "cure", "stage"), WRONG, ids=[w[0][:60] for w in WRONG])
def test_one_wrong_setting_is_said_once_by_its_own_key(
    more: str, key: str, severity: str, cure: str, stage: str
) -> None:
    [problem] = [p for p in found(f"{MEGATRON} {more}") if p.severity == severity]
    assert (problem.key, problem.stage) == (key, stage), problem
    assert cure in problem.cure, problem


def test_a_variable_that_a_script_never_reads_is_no_variable_of_it() -> None:
    source = MEGATRON.replace("n_gpus_per_node=8", "n_gpus_per_node=${GPUS:-8}")
    assert found(source, GPUS="4") == []
    with pytest.raises(BadInput, match="did you mean GPUS"):
        found(source, GPU="4")
