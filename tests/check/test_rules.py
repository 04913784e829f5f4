"""Each rule finds its fault, names the legal values, and leaves what is known to run alone."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hysweep.check import RULES, check_trial, errors, topology
from hysweep.check.memory import changes, gpu_is_what_it_says
from hysweep.check.numbers import divisors
from hysweep.check.site import checkpoint_gib, checkpoints_at_once, disk_problems, heard_of
from hysweep.check.topology import BRIDGED
from hysweep.compile import trainer_keys
from hysweep.compile.history import TABLE
from hysweep.compile.keys import VERSIONS
from hysweep.compose.composer import SHIPPED
from hysweep.estimate import estimate
from hysweep.schema import BadInput, leaves
from hysweep.schema.groups import Shape

HY3 = "experiment=hy3_dapo_math"
CONFIG = "actor_rollout_ref.actor.megatron.override_transformer_config."
PASSED = f"verl.{CONFIG}"


# verl does not say which GPUs its examples ran on, so nothing is said of their memory here.
GPUS = ("cluster=slurm_h100", "cluster.gpu_memory_gib=null", "rollout=vllm", "data=dapo_math",
        "reward=rule", "trainer=hy3", "memory=full_offload")  # fmt: skip
# Eight stages of Qwen3-8B's 36 layers, which only a layout can say.
LAID_OUT = (*GPUS, "model=qwen3_8b", "parallelism=megatron_tensor_2", "parallelism.tensor=1", "parallelism.pipeline=8",
            "cluster.nodes=1", "rollout.tensor=2")  # fmt: skip
# Settings that ran: the Hy3 run, what was measured on one card, the real runs on the CPU, and verl's own examples.
KNOWN_TO_RUN = [
    (),
    (HY3,),
    ("algorithm=gspo",),
    *((HY3, f"algorithm={a}") for a in ("cispo", "rloo", "dr_grpo", "dapo", "gspo", "sapo", "geo_mean", "remax")),
    # the runs of a 2 B Hy3 on one H200, with and without offload
    *((HY3, "cluster=gpu_1", "cluster.gpu=H200", "cluster.gpu_memory_gib=139.8", "cluster.launcher=slurm",
       f"memory={memory}", "rollout.tensor=1",
       "memory.use_remove_padding=true", "memory.use_gradient_checkpointing=true",
       "parallelism.pipeline=1", "parallelism.context=1", "parallelism.expert=1", "trainer.train_batch_size=8",
       "trainer.mini_batch_size=8", "rollout.n=8", "trainer.max_prompt_length=64", "trainer.max_response_length=960",
       "rollout.max_model_len=1024", "reward=rule", "trainer.max_token_len_per_gpu=16384",
       "rollout.gpu_memory_utilization=0.3", "model.shape.num_layers=12", "model.shape.hidden_size=2048",
       "model.shape.num_attention_heads=16", "model.shape.num_key_value_heads=4", "model.shape.num_experts=32",
       "model.shape.num_experts_per_token=4", "model.shape.moe_intermediate_size=768",
       "model.shape.intermediate_size=6144", "model.shape.vocab_size=32768")
      for memory in ("full_recompute", "full_offload")),
    # verl: grpo_trainer/run_qwen3_235b_a22b_megatron.sh and run_deepseek_v3_671b_megatron.sh
    (*GPUS, "model=qwen3_235b_a22b", "parallelism=qwen3_235b_a22b_64", "cluster.nodes=8", "rollout.tensor=8",
     "rollout.n=4"),
    (*GPUS, "model=deepseek_v3", "parallelism=deepseek_v3_96", "cluster.nodes=12", "rollout.tensor=32", "rollout.n=5",
     "trainer.train_batch_size=96", "trainer.mini_batch_size=96"),
    # verl: dppo_trainer/run_qwen3_30b_a3b_megatron.sh, and grpo_trainer/run_qwen3_30b_a3b_megatron.sh's layout
    (*GPUS, "model=qwen3_30b_a3b", "parallelism=qwen3_30b_a3b_8", "cluster.nodes=1", "rollout.tensor=4",
     "algorithm=dppo_tv", "trainer.train_batch_size=256", "trainer.mini_batch_size=32", "rollout.n=16"),
    (*GPUS, "model=qwen3_30b_a3b", "parallelism=megatron_tensor_2", "parallelism.tensor=4", "parallelism.pipeline=2",
     "parallelism.expert=2", "parallelism.expert_tensor=1", "cluster.nodes=1", "rollout.tensor=4", "rollout.n=5"),
    # verl: the examples of one node of eight with Qwen3-8B and FSDP
    *((*GPUS, "model=qwen3_8b", "parallelism=fsdp2", "memory=fsdp2_offload", "memory.offload_policy=false",
       "cluster.nodes=1", "rollout.tensor=2", "trainer.train_batch_size=1024", "trainer.mini_batch_size=256",
       "trainer.max_prompt_length=1024", "trainer.max_response_length=2048", "trainer.max_token_len_per_gpu=24576",
       f"algorithm={a}", f"rollout.n={n}")
      for a, n in (("grpo", 5), ("gspo", 5), ("rloo", 5), ("geo_mean", 5), ("remax", 4), ("reinforce_plus_plus", 8),
                   ("gpg", 5))),
    # 31 layers and the loss are 32 for 8 stages; and stages that are named
    ("cluster=h20_16x8", "model=qwen3_8b", "parallelism=megatron_tensor_2", "rollout=vllm", "parallelism.tensor=1",
     "model.shape.num_layers=31", "parallelism.pipeline=8", f"+verl.{CONFIG}account_for_loss_in_pipeline_split=true"),
    *((*LAID_OUT, f"+verl.{CONFIG}pipeline_model_parallel_layout='{layout}'")
      for layout in ("E|t*5|t*5|t*5|t*5|t*5|t*5|t*6,L", "Et|(tt|)*13(t|)*9L",
                     "Et*3|(t*3|)*5t*3|t*3|t*3|t*3|t*3|t*3||||L")),
]  # fmt: skip


@pytest.mark.parametrize("overrides", KNOWN_TO_RUN, ids=lambda o: " ".join(o)[:80])
def test_what_is_known_to_run_has_no_problem(trial_of, overrides: tuple[str, ...]) -> None:
    assert errors(check_trial(trial_of(*overrides))) == []


def test_the_verified_run_and_the_default_raise_no_warning_either(trial_of) -> None:
    assert check_trial(trial_of()) == check_trial(trial_of(HY3)) == []


UNKNOWN = {leaf.path: leaf.default for leaf in leaves(Shape())}  # what a model has of which nothing is known
# (a good configuration, what breaks it, the key that is named, what the cure says)
BROKEN = [
    ((), ["rollout=vllm"], "rollout.engine", "rollout=embedded"),
    ((), ["parallelism.engine=megatron", "memory.use_gradient_checkpointing=true"], "parallelism.engine", "single"),
    ((), ["cluster.nodes=2"], "cluster.nodes", "give 1"),
    ((), ["cluster.cpus_per_node=4"], "cluster.cpus_per_node", "5"),  # case 23
    ((HY3,), ["parallelism.tensor=3"], "parallelism.tensor * pipeline * context", "128"),  # case 2
    ((HY3,), ["cluster.nodes=1", "parallelism.pipeline=2", "parallelism.context=1", "rollout.tensor=8",
              "parallelism.tensor=2"], "parallelism.expert_tensor * expert * pipeline", "1, 2 or 4"),  # case 3
    ((HY3,), ["parallelism.expert_tensor=null", "parallelism.tensor=8", "parallelism.context=1"],
     "parallelism.expert_tensor * expert * pipeline", "expert_tensor of 1 (unset expert_tensor is tensor, 8)"),
    ((HY3,), ["cluster.nodes=15"], "parallelism.expert_tensor * expert * pipeline",
     "parallelism.pipeline = 16 does not divide 120; `hysweep layouts`"),
    ((HY3,), ["parallelism.expert_tensor=3"], "parallelism.expert_tensor * expert * pipeline", "expert_tensor of 1"),
    ((HY3,), ["rollout.tensor=24"], "rollout.tensor * data", "16"),
    ((HY3,), ["rollout.tensor=3"], "rollout.tensor", "16"),  # case 12
    ((HY3,), ["parallelism.expert=5"], "parallelism.expert", "4"),
    ((HY3, "model.shape.num_experts=0"), [], "parallelism.expert", "give 1"),
    ((HY3,), ["model.shape.num_layers=30", "parallelism.pipeline=4", "parallelism.context=1"],
     "parallelism.pipeline", "first_stage_layers=7"),
    ((HY3,), ["parallelism.virtual_pipeline=2"], "parallelism.virtual_pipeline", "5"),  # case 4: 80 layers, PP 16
    ((), ["trainer.mini_batch_size=3"], "trainer.mini_batch_size", "4"),
    ((HY3,), ["cluster.nodes=48", "rollout.n=2", "trainer.train_batch_size=2", "trainer.mini_batch_size=2"],
     "trainer.mini_batch_size * rollout.n", "mini_batch_size of 3, and a multiple of it"),  # case 9
    ((HY3,), ["cluster.nodes=96", "trainer.train_batch_size=512", "trainer.mini_batch_size=512", "rollout.n=8"],
     "trainer.mini_batch_size * rollout.n", "510 or 513, and a multiple of it for trainer.train_batch_size"),
    ((HY3,), ["cluster.nodes=96", "trainer.train_batch_size=96", "trainer.mini_batch_size=16", "rollout.n=8"],
     "trainer.mini_batch_size * rollout.n", "12 or 24"),
    ((HY3,), ["cluster.nodes=96", "trainer.train_batch_size=96", "trainer.mini_batch_size=10", "rollout.n=8"],
     "trainer.mini_batch_size", "3, 6, 12 or 24"),
    ((*GPUS, "model=qwen3_8b", "parallelism=fsdp2", "memory=fsdp2_offload", "memory.offload_policy=false",
      "cluster.nodes=1", "rollout.tensor=1"),
     ["cluster.gpus_per_node=7", "trainer.train_batch_size=7", "trainer.mini_batch_size=7", "rollout.tensor=4",
      "model.shape.num_attention_heads=28", "model.shape.num_key_value_heads=4"],
     "rollout.tensor * data", "try rollout.tensor of 1"),  # and not 7, which key and value heads refuse
    ((HY3,), ["memory.recompute_granularity=selective", "memory.recompute_method=null",
              "memory.recompute_num_layers=null"], "cluster.gpu_memory_gib", "recompute_granularity=full"),
    ((HY3,), ["trainer.max_response_length=300000", "rollout.max_model_len=null", "parallelism.context=1",
              "model.shape.max_position_embeddings=400000"], "trainer.max_token_len_per_gpu", "302048"),  # case 6
    ((HY3,), ["rollout.max_model_len=8192"], "rollout.max_model_len", "10240"),
    ((HY3,), ["model.shape.max_position_embeddings=4096"], "rollout.max_model_len", "4096"),
    ((HY3,), ["rollout.max_num_batched_tokens=100"], "rollout.max_num_batched_tokens", "256"),
    ((), ["algorithm=rloo", "rollout.n=1"], "rollout.n", "2"),
    ((), ["algorithm.clip_ratio_low=1.5"], "algorithm.clip_ratio_low", "0.2"),
    ((), ["algorithm.clip_ratio_c=1"], "algorithm.clip_ratio_c", "3"),
    ((HY3,), ["rollout.correction_is_threshold='5_0.5'"], "rollout.correction_is_threshold", "0.5_5"),
    ((HY3,), ["rollout.correction_is_threshold=abc"], "rollout.correction_is_threshold", "0.5_5"),
    ((), ["rollout.temperature=0"], "rollout.temperature", "0.9"),
    ((HY3,), ["reward.overlong_buffer_len=9000"], "reward.overlong_buffer_len", "8192"),
    ((), ["data.train_files=[]"], "data.train_files", "parquet"),
    ((), ["data.train_files=[/no/such.parquet]"], "data.train_files", "/no/such.parquet"),
    ((), ["data.val_files=[embedded:vale]"], "data.val_files", "embedded:val"),
    ((), ["reward.function_path=/no/such.py"], "reward.function_path", "/no/such.py"),
    ((), ["reward=rule", "reward.routes={a: maths}"], "reward.routes.a", "math"),
    ((), ["reward=rule", "reward.routes={a: /no/such.py:f}"], "reward.routes.a", "/no/such.py"),
    ((), ["reward=router", "reward.servers={judge: {command: serve}}"], "reward.servers.judge", "leave it out"),
    ((), ["reward.routes={a: math}"], "reward.function_path", "leave one of the two out"),
    ((), ["reward=rule", "reward.model_path=rm"], "reward.model_path", "GPUs"),
    ((), ["algorithm.plugin=/no/such.py", "algorithm.loss_mode=mine"], "algorithm.plugin", "/no/such.py"),
    ((), ["trainer.recipes=/no/such"], "trainer.recipes", "leave it at null"),
    ((), ["verl.actor_rollout_ref.actor.ppo_epoch=2"],
     "verl.actor_rollout_ref.actor.ppo_epoch", "ppo_epochs"),
    ((), ["verl.reward_model.reward_manager=dapo"], "verl.reward_model.reward_manager", "reward"),
    ((), ["verl.trainer.nnodes=2"], "verl.trainer.nnodes", "cluster.nodes"),
    ((HY3,), ["verl.actor_rollout_ref.actor.megatron.grad_offload=true"],
     "verl.actor_rollout_ref.actor.megatron.grad_offload", "leave it out"),
    ((), ["verl.custom_reward_function.path=r.py"], "verl.custom_reward_function.path", "verl.reward.custom"),
    ((), ["verl.model.actor.pretrained=x"], "verl.model.actor.pretrained", "actor_rollout_ref.model.path"),
    ((), ["trainer.verl=0.9.2"], "trainer.verl", "0.9.1"),
    ((), ["trainer.verl=/no/such.whl"], "trainer.verl", "wheel"),
    ((), ["algorithm=dro", "trainer.verl=220e903"], "algorithm.loss_mode", "newer trainer.verl"),
    ((), ["algorithm=dapo", "trainer.verl=220e903"], "algorithm.use_filter_groups", "0.9.1"),
    ((), ["algorithm=gspo", "algorithm.loss_agg_mode=token-mean", "trainer.verl=220e903"],
     "algorithm.loss_agg_mode", "seq-mean-token-mean"),
    ((), ["algorithm=remax", "trainer.use_v1=true"], "trainer.use_v1", "trainer.use_v1=false"),
    ((), ["algorithm=gdpo"], "algorithm.gdpo_reward_keys", "accuracy"),
    ((), ["algorithm=gdpo", "algorithm.gdpo_reward_keys=[a,b]", "reward.manager=naive"], "reward.manager", "gdpo"),
    ((), ["reward.manager=gdpo"], "reward.manager", "naive"),
    ((HY3,), ["algorithm=optimal_token_baseline"], "memory.use_fused_kernels", "false"),
    ((), ["algorithm=ppo"], "algorithm.adv_estimator", "without a critic"),
    ((), ["algorithm=dro", "algorithm.dro_beta=null"], "algorithm.dro_beta", "dro.yaml"),
    ((), ["rollout.correction_rs=seq_max_k1", "rollout.correction_rs_threshold='2'"],
     "rollout.correction_rs", "seq_max_k2"),
    ((), ["rollout.correction_rs='token_k1,seq_max_k2,token_k3'", "rollout.correction_rs_threshold='1,2'"],
     "rollout.correction_rs_threshold", "one for each"),
    ((), ["rollout.correction_rs=token_k3", "rollout.correction_rs_threshold='0.5_2'"],
     "rollout.correction_rs_threshold", "one number above 0"),
    ((), ["rollout.correction_bypass=true", "rollout.correction_is=token"], "rollout.correction_bypass", "false"),
    ((HY3,), ["model.transformer_config.moe_router_bias_update_rate=0.001"],
     "model.transformer_config.moe_router_bias_update_rate", "give 0"),
    ((HY3, "model.shape.num_layers=48", "parallelism.context=1"),
     ["parallelism.pipeline=2", "parallelism.first_stage_layers=11", "parallelism.last_stage_layers=13"],
     "parallelism.first_stage_layers and last_stage_layers", "leave both null"),  # case 4
    ((HY3, "model.shape.num_layers=49", "parallelism.context=1"),
     ["parallelism.pipeline=2", "parallelism.first_stage_layers=11", "parallelism.last_stage_layers=13"],
     "parallelism.first_stage_layers and last_stage_layers", "first_stage_layers=25 and last_stage_layers=24"),
    ((HY3,), ["rollout.expert=4"], "rollout.expert", "1 or 16"),
    ((), ["parallelism.fsdp_size=0"], "parallelism.fsdp_size", "-1"),
    ((), ["parallelism.fsdp_size=3"], "parallelism.fsdp_size", "-1"),
    ((HY3,), ["model.shape.num_key_value_heads=128"], "model.shape.num_key_value_heads", "64"),
    ((HY3,), ["model.shape.num_experts_per_token=200"], "model.shape.num_experts_per_token", "8"),
    ((HY3,), ["model.shape.moe_intermediate_size=0"], "model.shape.moe_intermediate_size", "config.json"),
    ((), ["rollout.top_p=0"], "rollout.top_p", "1 is usual"),
    ((), ["algorithm=clip_cov", "algorithm.clip_cov_lb=9"], "algorithm.clip_cov_lb", "1 and 5"),
    ((), ["algorithm=dapo", "algorithm.filter_groups_metric=''"], "algorithm.filter_groups_metric", "acc"),
    ((), ["model.path=''"], "model.path", "hub"),
    ((), ["+verl.trainer.default_local_dir=/x"], "verl.trainer.default_local_dir", "leave it out"),
    ((), ["+verl.trainer.resume_mode=bogus"], "verl.trainer.resume_mode", "leave it out"),
    ((), ["+verl.actor_rollout_ref.actor.tau_pos=0.5"], "verl.actor_rollout_ref.actor.tau_pos", "leave it out"),
    ((), ["+verl.actor_rollout_ref.actor.clip_ratio=0.3"], "verl.actor_rollout_ref.actor.clip_ratio", "clip_ratio_low"),
    ((), ["+verl.critic.ppo_epochs=2"], "verl.critic.ppo_epochs", "leave it out"),
    ((HY3,), [f"+verl.{CONFIG}num_layers_in_first_pipeline_stage=3"],
     f"verl.{CONFIG}num_layers_in_first_pipeline_stage", "parallelism.first_stage_layers"),
    ((HY3,), ["+verl.actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2"],
     "verl.actor_rollout_ref.ref.megatron.tensor_model_parallel_size", "leave it out"),
    ((HY3,), ["+verl.actor_rollout_ref.rollout.pipeline_model_parallel_size=2"],
     "verl.actor_rollout_ref.rollout.pipeline_model_parallel_size", "leave it out"),
    ((), ["+verl.actor_rollout_ref.rollout.prompt_length=5"], "verl.actor_rollout_ref.rollout.prompt_length", "leave"),
    ((), ["+cluster.env.RAY_ADDRESS=x"], "cluster.env.RAY_ADDRESS", "leave it out"),
    ((), ["cluster.gpu_memory_gib=10"], "cluster.gpu_memory_gib", "leave it at null"),
    ((HY3,), ["model.shape.moe_intermediate_size=1537", "parallelism.expert_tensor=2", "parallelism.expert=4"],
     "parallelism.expert_tensor", "1"),
    ((HY3,), ["model.shape.intermediate_size=13313", "parallelism.tensor=2", "parallelism.context=4"],
     "parallelism.tensor", "1"),
    ((HY3,), ["memory.recompute_method=null"], "memory.recompute_method", "uniform"),
    ((HY3,), ["memory=selective_recompute", "memory.recompute_modules=[core_attention]"],
     "memory.recompute_modules", "core_attn"),
    ((HY3,), ["model.transformer_config.account_for_loss_in_pipeline_split=true"],
     PASSED + "account_for_loss_in_pipeline_split", "leave it out"),
    ((HY3,), ["+verl." + CONFIG + "account_for_loss_in_pipeline_split=true"],
     PASSED + "account_for_loss_in_pipeline_split", "leave it out"),
    ((HY3,), ["+verl." + CONFIG + "account_for_loss_in_pipeline_split=true", "parallelism.first_stage_layers=10"],
     PASSED + "account_for_loss_in_pipeline_split", "keep one"),
    *((LAID_OUT, [f"+verl.{CONFIG}pipeline_model_parallel_layout='{layout}'"],
       PASSED + "pipeline_model_parallel_layout", "Et*4|t*4|t*4|t*4|t*5|t*5|t*5|t*5L")
      for layout in ("Et*5|t*5|t*5|t*5|t*5|t*5|t*5|t*5L", "Et*5|t*5|t*5|t*5|t*5|t*5|t*6L", "Et*36L",
                     "tE|t*35||||||L", "x",
                     "t*999999999", "E|t*5|t*5|t*5|t*5|t*5|t*5|t*6")),
    ((*LAID_OUT, f"+verl.{CONFIG}pipeline_model_parallel_layout='E|t*5|t*5|t*5|t*5|t*5|t*5|t*6L'"),
     ["parallelism.first_stage_layers=4"], PASSED + "pipeline_model_parallel_layout", "keep one"),
    ((HY3,), ["+verl.trainer.v1.trainer_mode=foo"], "verl.trainer.v1.trainer_mode", "sync"),
    ((HY3,), ["+verl.trainer.v1.trainer_mode=separate_async"], "verl.actor_rollout_ref.rollout.nnodes", "1 or more"),
    ((HY3,), ["+verl.trainer.v1.trainer_mode=separate_async"], "trainer.train_batch_size", "512"),
    ((HY3,), ["+verl.trainer.v1.trainer_mode=separate_async"],
     "verl.actor_rollout_ref.rollout.checkpoint_engine.backend", "nccl"),
    ((HY3,), ["+verl.trainer.v1.sampler.max_off_policy_strategy=wayt"],
     "verl.trainer.v1.sampler.max_off_policy_strategy", "wait"),
    ((HY3,), [f"+verl.{CONFIG}bogus_field=1"], f"{PASSED}bogus_field", "leave it out"),
    ((HY3,), [f"+verl.{CONFIG}recompute_granularit=full"], f"{PASSED}recompute_granularit", "recompute_granularity"),
    ((HY3,), ["+model.transformer_config.moe_grouped_gem=true"], "model.transformer_config.moe_grouped_gem",
     "moe_grouped_gemm"),
    ((HY3,), ["+verl.actor_rollout_ref.actor.checkpoint.save_contents=[modell]"],
     "verl.actor_rollout_ref.actor.checkpoint.save_contents", "did you mean model"),
    ((*GPUS, "model=qwen3_8b", "parallelism=megatron_tensor_2", "cluster.nodes=1", "rollout.tensor=2"),
     ["rollout.expert=2"], "rollout.expert", "give 1"),
    ((HY3, "algorithm.use_kl_loss=true"),
     ["+verl.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=1000"],
     "verl.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", "1280"),
    ((), ["+verl.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2"],
     "verl.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size", "parallelism.context"),
    ((HY3,), ["+verl." + CONFIG + "moe_router_score_function=softmax"],
     PASSED + "moe_router_score_function", "sigmoid"),
    ((HY3,), ["+verl." + CONFIG + "moe_token_dispatcher_type=allgather"],
     PASSED + "moe_token_dispatcher_type", "alltoall"),
    ((HY3,), [f"+verl.{CONFIG}moe_shared_expert_overlap=true", f"+verl.{CONFIG}moe_token_dispatcher_type=flex"],
     PASSED + "moe_shared_expert_overlap", "leave it out"),
    ((HY3,), ["+verl." + CONFIG + "overlap_moe_expert_parallel_comm=true"],
     PASSED + "overlap_moe_expert_parallel_comm", "leave it out"),
    ((HY3,), ["cluster.nodes=24", "cluster.gpus_per_node=12", "rollout.tensor=16", "parallelism.pipeline=4",
              "parallelism.context=8"], "rollout.tensor * data", "1, 2, 4 or 8"),
    ((HY3,), ["cluster.nodes=24", "cluster.gpus_per_node=12", "rollout.tensor=8", "rollout.data=3",
              "parallelism.pipeline=4"], "rollout.tensor", "4"),
    ((HY3, "model.shape.num_experts=8"), ["parallelism.expert=8"], "rollout.tensor", "at most 8"),
    ((), ["algorithm=remax", "rollout.agent_workers=3"], "rollout.agent_workers", "2, 4"),
    ((), ["tracking.loggers=[wanddb]"], "tracking.loggers", "wandb"),
    ((), ["tracking.loggers=[rl_insight]", "trainer.verl=0.9.0"], "tracking.loggers", "wandb"),
    ((), ["tracking=wandb", "tracking.project=team/sums"], "tracking.project", "none of /"),
    ((), ["tracking=wandb", f"tracking.project={'p' * 129}"], "tracking.project", "1 to 128"),
    ((), ["tracking=wandb", "tracking.tags=['one,two']"], "tracking.tags", "no comma"),
    ((HY3,), ["+verl.actor_rollout_ref.rollout.mode=sync"], "verl.actor_rollout_ref.rollout.mode", "leave it out"),
    ((HY3,), ["+verl.actor_rollout_ref.rollout.enable_chunked_prefill=false", "rollout.max_num_batched_tokens=4096"],
     "verl.actor_rollout_ref.rollout.enable_chunked_prefill", "10240"),
    ((HY3,), ["+verl.actor_rollout_ref.model.lora_rank=12"], "verl.actor_rollout_ref.model.lora_rank", "16"),
    ((HY3,), ["+verl.actor_rollout_ref.actor.megatron.sequence_parallel=false", "parallelism.tensor=2",
              "parallelism.context=4"], "verl.actor_rollout_ref.actor.megatron.sequence_parallel", "leave it out"),
    ((HY3,), ["+verl.ray_kwargs.ray_init.num_cpus=8"], "verl.ray_kwargs.ray_init.num_cpus", "cpus_per_node"),
    ((HY3,), ["+verl.reward.reward_model.enable=true"], "verl.reward.reward_model.enable", "rollout.name"),
    ((HY3,), ["memory.use_remove_padding=false"], "memory.use_fused_kernels", "use_remove_padding"),
    ((HY3,), ["model.shape.hidden_size=4160"], "memory.use_fused_kernels", "use_fused_kernels=false"),
    ((HY3,), ["parallelism=fsdp2", "memory=resident"], "parallelism.engine", "external_lib"),
    ((HY3,), ["rollout.tensor=8"], "cluster.gpu_memory_gib", "rollout.tensor"),
    ((HY3,), ["memory=offload"], "cluster.gpu_memory_gib", "recompute_granularity=full"),
    ((), ["parallelism.context=2"], "parallelism.context", "1"),
    ((), ["parallelism.tensor=2"], "parallelism.tensor", "leave it at 1"),
    ((), ["algorithm.kl_loss_coef=0.01"], "algorithm.kl_loss_coef", "leave it"),
    ((HY3,), ["algorithm=dapo", "algorithm.clip_ratio_high=0.0"], "algorithm.clip_ratio_high", "above 0"),
    ((HY3,), ["algorithm=gspo", "algorithm.clip_ratio_high=0"], "algorithm.clip_ratio_high", "4e-4"),
    # what SLURM is asked for
    ((HY3,), ["cluster=h100_bare"], "cluster.partition", "give cluster.partition=NAME"),
    ((HY3,), ["cluster=h100_pyxis"], "cluster.account", "or null"),
    ((HY3,), ["cluster.comment=\"a\nb\""], "cluster.comment", "one line"),
    ((HY3,), ["cluster.modules=[\"a\nb\"]"], "cluster.modules.0", "one line"),
    *(((HY3,), [f"cluster.{field}=[a,'']"], f"cluster.{field}.1", "leave it out")
      for field in ("modules", "code")),
    ((HY3,), ["cluster.srun_args=['']"], "cluster.srun_args.0", "leave it out"),
    ((HY3,), ["cluster.local_dir=scratch"], "cluster.local_dir", "/scratch"),
    *(((HY3,), [f"cluster.container={kind}", f"cluster.container_mounts=['{mount}']"], "cluster.container_mounts.0",
       "/data:/mnt")
      for kind, mount in (("pyxis", "data"), ("apptainer", "/data:mnt"), ("pyxis", "$SCRATCH"))),
    *(((HY3,), [f"cluster.python=\"{python}\""], "cluster.python", "/bin/python")
      for python in ("conda run -n 'verl python", "$HOME/python", "true; python")),
    ((HY3,), ["cluster.container=pyxis", "cluster.image=null"], "cluster.container", "verlai/verl:vllm023.dev1"),
    ((HY3,), ["cluster.image=mine.sqsh"], "cluster.image", "cluster.container=pyxis"),
    *(((HY3,), [f"cluster.network_interface='{text}'"], "cluster.network_interface", "as eth0")
      for text in ("^docker0", "eth0,eth1", "=eth0", "eth*", "eth 0")),
    ((HY3,), ["cluster.gres='gpu:nvidia_h100_80gb_hbm3:4'"], "cluster.gres", "both the same"),
    ((HY3,), ["cluster.gres='tmpfs:100'"], "cluster.gres", "both the same"),
    ((HY3,), ["cluster.gres='gpu:h100:eight'"], "cluster.gres", "gpu:8"),
    ((HY3,), ["cluster.gres='8 gpus'"], "cluster.gres", "sinfo"),
    ((HY3,), ["cluster.nodelist='node[001-017]'"], "cluster.nodelist", "16 at most"),
    ((HY3,), ["cluster.nodelist='[node1'"], "cluster.nodelist", "node[001-003]"),  # case 17
    ((HY3,), ["cluster.nodelist='node[1-3]'", "cluster.exclude='node[3-9]'"], "cluster.exclude", "leave it out"),
    *(((HY3,), [f"+cluster.additional_parameters.{name}={value}"], f"cluster.additional_parameters.{name}", cure)
      for name, value, cure in (("partition", "x", "cluster.partition"), ("gpus-per-node", 8, "gpus_per_node"),
                                ("mail_user", "a@b", "cluster.mail_user"), ("N", 2, "cluster.nodes"),
                                ("mem", 0, "cluster.memory_gib"), ("time", 60, "cluster.timeout_min"),
                                ("requeue", "true", "cluster.use_requeue"), ("array", "0-3", "leave it out"),
                                ("job_name", "x", "leave it out"), ("export", "NONE", "leave it out"),
                                ("licenses", "[a,b]", "one text"), ("Licenses", "a", "long name"),
                                ("tmp", '"a\nb"', "one text"), ("licenses", "''", "one text"),
                                ("part", "low", "cluster.partition"), ("gpus-per-n", 8, "cluster.gpus_per_node"),
                                ("tasks-per-node", 2, "leave it out"), ("clusters", "x", "leave it out"),
                                ("M", "x", "long name"), ("b", "now", "long name"))),
    *(((HY3,), [f"+cluster.additional_parameters.licenses={text}"], "cluster.additional_parameters.licenses",
       "a number")
      for text in ("nan", "inf", "[1]", "' '")),
    ((HY3,), ["cluster.memory_gib=0", "+cluster.additional_parameters.mem-per-gpu=100G"],
     "cluster.additional_parameters.mem-per-gpu", "one of them"),
    *(((HY3,), [f"cluster.srun_args=[--label,'{arg}']"], "cluster.srun_args.1", cure)
      for arg, cure in (("--nodes=2", "cluster.nodes"), ("-n4", "leave it out"), ("--export=NONE", "cluster.env"),
                        ("-K0", "leave it out"), ("-w node1", "cluster.nodelist"), ("--node=2", "cluster.nodes"),
                        ("--gres=gpu:1", "cluster.gres"), ("hostname", "--name=value"), ("--", "--name=value"),
                        ("--jobid=7", "leave it out"), ("-V", "leave it out"), ("-G4", "cluster.gpus_per_node"),
                        ("-pbig", "cluster.partition"), ("--qos=x", "cluster.qos"), ("--acc=x", "cluster.account"),
                        ("--nice", "cluster.nice"), ("--deadline=1", "cluster.additional_parameters.deadline"),
                        ("--mpi=none --cpu-bind=none", "as one of the list"))),
    ((HY3,), ["cluster.container=pyxis", "cluster.srun_args=['--container-image=x']"], "cluster.srun_args.0",
     "cluster.image"),
    ((HY3,), ["cluster.setup=['#SBATCH --qos=x']"], "cluster.setup.0", "the field"),
    ((HY3,), ["cluster.setup=[\"true\n#SBATCH --qos=x\"]"], "cluster.setup.0", "the field"),
    *(((HY3,), [f"cluster.setup=[true,'{line}']"], "cluster.setup", "mend it there")
      for line in ("cat <<END", 'echo "x', "if true; then")),
    ((HY3,), ["+cluster.env={A: [b]}"], "cluster.env.A", "give one"),
    ((HY3,), ["+cluster.env={A-B: 1}"], "cluster.env.A-B", "NAME"),
    ((HY3,), ["rollout.val_top_p=0"], "rollout.val_top_p", "1 is usual"),
    (("cluster=gpu_8", "rollout=vllm"), ["reward.model_path=/no/judge"], "reward.model_path", "looked for"),
    (("cluster=gpu_8", "rollout=vllm", "algorithm=ppo"), ["algorithm.critic_path=./no_critic"], "algorithm.critic_path",
     "looked for"),
    ((), ["+reward.function_kwargs.data_source=x"], "reward.function_kwargs.data_source", "call it otherwise"),
    ((), ["+reward.function_kwargs.retries=3"], "reward.function_kwargs.retries", "call it otherwise"),
    ((), ["reward.function_kwargs={a b: 1}"], "reward.function_kwargs.a b", "letters"),
    ((), ["reward.function_kwargs={a: {b c: 1}}"], "reward.function_kwargs.a", "letters"),
    ((), ["+verl.data.apply_chat_template_kwargs={a b: 1}"], "verl.data.apply_chat_template_kwargs.a b", "letters"),
    (("cluster=gpu_8", "rollout=vllm"), ["reward.model_path=/m", "reward.model_nodes=1"], "cluster.launcher",
     "set none apart"),
    ((HY3,), ["cluster.setup=['ulimit -n 9','exec bash']"], "cluster.setup.1", "leave it out"),
    ((HY3,), ["cluster.setup=['ray start --head']"], "cluster.setup.0", "leave it out"),
    ((HY3,), ["cluster.modules=[cuda]", "cluster.setup=['true; module --force purge']"], "cluster.setup.0", "after it"),
    ((HY3,), ["cluster.setup=['export RAY_ADDRESS=auto']"], "cluster.setup.0", "leave it out"),
    ((HY3,), ["cluster.setup=['true; export NCCL_DEBUG=WARN']", "debug=nccl"], "cluster.setup.0", "one of them"),
    ((HY3,), ["cluster.timeout_min=2"], "cluster.timeout_min", "give at least 3"),  # case 26
    ((HY3,), ["cluster.timeout_min=2", "cluster.signal_delay_s=130"], "cluster.signal_delay_s", "12"),
    ((HY3,), ["cluster.timeout_min=2000", "cluster.signal_delay_s=70000"], "cluster.signal_delay_s", "65535"),
    ((HY3,), ["cluster.code=[/no/such/code]"], "cluster.code.0", "as it lies here"),
    ((), ["trainer.use_dynamic_batch=false", "trainer.micro_batch_size_per_gpu=7",
          "trainer.max_token_len_per_gpu=16384", "trainer.log_prob_max_token_len_per_gpu=16384"],
     "trainer.micro_batch_size_per_gpu", "8"),
]  # fmt: skip


SOUND = [
    ["cluster.gres='gpu:nvidia_h100_80gb_hbm3:8'"],
    ["cluster.gres='gpu:h100:6,gpu:a100:2,tmpfs:100G'"],
    ["cluster.gres='gres/gpu:8'"],
    ["cluster.gres=gpu", "cluster.gpus_per_node=1", "cluster.nodes=128", "rollout.tensor=1"],
    ["cluster.nodelist='gpu-[1,3-4],cpu7'", "cluster.exclude='rack[1-2]node[01-02]'"],
    ["cluster.exclude=./bad_nodes.txt", "cluster.comment='<first>'"],
    ["cluster.timeout_min=2880", "cluster.signal_delay_s=600"],
    ["+cluster.additional_parameters.licenses='a:1,b:2'", "+cluster.additional_parameters.contiguous=true"],
    ["+cluster.additional_parameters.partition=null", "+cluster.additional_parameters.hold=false"],
    ["cluster.srun_args=[--label,'--mpi=none','--container-image=x','--cpu-bind=none']"],
    ["cluster.srun_args=['--wait','60','-I','--constraint=a','-J',step,'--quit-on-interrupt','--network=x']"],
    ["cluster.srun_args=['--mpi',pmix,'-D',/tmp,'--container=x','--propagate']"],
    ["cluster.setup=['if true; then','true','fi',\"cat <<END\nx\nEND\"]", "cluster.python='conda run -n verl python'"],
    ["cluster.setup=['module purge','module use /apps','module load cuda']"],
    ["cluster.modules=[cuda]", "cluster.setup=['module load nccl']"],
    ["cluster.setup=['exec 2>&1','source /e/bin/activate','export NCCL_IB_HCA=mlx5','export HF_TOKEN=$(cat ~/.hf)']"],
    ["cluster.container=apptainer"],
    ["cluster.container=pyxis", "cluster.image=/images/verl.sqsh", "cluster.container_mounts=['/data:/mnt']"],
    ["+cluster.env.TOKENIZERS_PARALLELISM=true", "+cluster.env.MAX_NEW_TOKENS=5"],
    ["debug=nccl"],
]


@pytest.mark.parametrize("change", SOUND, ids=lambda c: " ".join(c)[:80])
def test_what_a_site_may_say_is_no_problem(trial_of, change) -> None:
    of_site = [p for p in check_trial(trial_of(HY3, *change)) if p.key.startswith("cluster.")]
    assert [p for p in of_site if p.key != "cluster.gpu_memory_gib"] == []


@pytest.mark.parametrize(
    ("good", "change", "key", "cure"), BROKEN, ids=[b[2] + ":" + str(i) for i, b in enumerate(BROKEN)]
)
def test_one_broken_rule_is_found(trial_of, good, change, key, cure) -> None:
    found = {p.key: p for p in errors(check_trial(trial_of(*good, *change)))}
    assert key in found, found
    assert cure in found[key].cure, found[key]


@pytest.mark.parametrize("verl", VERSIONS)
@pytest.mark.parametrize("key", [old for old, new, _ in TABLE if not any(name.startswith(old) for name in new)])
def test_an_old_key_is_refused_by_the_tree_that_lost_it_and_ignored_by_the_one_that_has_it(
    trial_of, key: str, verl: str
) -> None:
    trial = trial_of(HY3, f"trainer.verl={verl}", f"+verl.{key}=1")
    [problem] = [p for p in check_trial(trial) if p.key == f"verl.{key}"]
    is_there = key in trainer_keys(verl, "megatron")
    assert problem.stage == ("never" if is_there else "compose"), problem


def test_what_is_near_the_limit_is_a_warning_that_says_how_near(trial_of) -> None:
    [problem] = check_trial(trial_of(HY3, "memory.use_fused_kernels=false"))
    assert problem.severity == "warning" and "--strict" in problem.cure
    assert "training does not fit by 4.6 GiB, within the estimate's error of 5 %" in problem.why


@pytest.mark.parametrize(
    "broken",
    [["memory.use_fused_kernels=false"], ["trainer.max_token_len_per_gpu=60000"],
     ["trainer.log_prob_max_token_len_per_gpu=200000"], ["rollout.gpu_memory_utilization=0.95"],
     ["trainer.max_token_len_per_gpu=60000", "trainer.log_prob_max_token_len_per_gpu=200000"]],
    ids=lambda b: " ".join(b),
)  # fmt: skip
def test_the_cure_of_memory_is_the_largest_number_that_fits(trial_of, broken: list[str]) -> None:
    [problem] = check_trial(trial_of(HY3, *broken))
    cure = re.search(r"give (.*?)(?: or |;|$)", problem.cure)[1].split()
    assert check_trial(trial_of(HY3, *broken, *cure)) == [], "and leaves room for the estimate's error"
    more = [f"{name}={int(value) * 1.1:.0f}" for name, value in (c.split("=") for c in cure) if "." not in value]
    assert not more or check_trial(trial_of(HY3, *broken, *more)), more


@pytest.mark.parametrize(
    "broken",
    [(*GPUS, "model=qwen3_8b", "parallelism=megatron_tensor_2", "memory=resident", "cluster.nodes=1", *small)
     for small in ((), ("trainer.mini_batch_size=1",))]
    + [(*GPUS, "model=gpt_oss_20b", "parallelism=mixture_8", "memory=resident", "cluster.nodes=1"),
       (*GPUS, "model=gpt_oss_120b", "parallelism=mixture_32", "memory=resident"),
       (*GPUS, "model=hy3", "parallelism=hy3_128", "cluster.nodes=16", "rollout.tensor=8", "rollout.expert=8"),
       (*GPUS, "model=qwen3_8b", "parallelism=fsdp2", "memory=resident", "cluster.nodes=1",
        "algorithm=optimal_token_baseline"),
       (*GPUS, "model=llama3_1_70b", "parallelism=llama3_1_70b_32", "memory=selective_recompute",
        "memory.recompute_modules=[core_attn]")],
    ids=lambda b: " ".join(b[len(GPUS):])[:80],
)  # fmt: skip
def test_no_cure_of_memory_is_what_another_rule_refuses(trial_of, broken: tuple[str, ...]) -> None:
    """Fused kernels want packed sequences, a width and no whole logits; modules go with selective recomputation."""
    broken = (*broken, "cluster.gpu_memory_gib=79.1")
    before = {p.key for p in errors(check_trial(trial_of(*broken)))}
    words = [name for name, _ in changes(trial_of(*broken), lambda t: True)]
    assert any(word.startswith("memory.") for word in words)
    for word in words:
        after = {p.key for p in errors(check_trial(trial_of(*broken, *word.split())))}
        assert after <= before | {"cluster.gpu_memory_gib"}, (word, after)


def test_all_that_is_wrong_with_a_replica_has_one_cure(trial_of) -> None:
    found = errors(check_trial(trial_of(HY3, "rollout.tensor=3")))
    assert len(found) == 3
    assert all("16" in p.cure and "8" not in p.cure for p in found), found


@pytest.mark.parametrize(
    ("gpu", "gib", "says"),
    [("H1OO", 79.1, "did you mean H100"), ("h10", 79.1, "did you mean H100"), ("H100", 95.6, "of a H100 is 79.1"),
     ("nvidia_h100_80gb_hbm3", 141, "79.1"), ("H2O", 95.6, "did you mean H20"),
     ("H100", 79.6, None), ("h200", 140.4, None), ("nvidia_h100_80gb_hbm3", 79.1, None), ("A100", 39.4, None),
     ("H20O", 95.6, "did you mean H20?"), ("H20O", 139.8, "did you mean H200?"),
     ("L4O", 45, "did you mean L40"), ("h100only", 79.1, None),
     ("B300", 270, None), ("rtx4090", 23.5, None), ("tesla-v100", 31.7, None), ("our_big_ones", 300, "no GPU")],
)  # fmt: skip
def test_a_gpu_has_the_memory_of_its_kind(trial_of, gpu: str, gib: float, says: str | None) -> None:
    trial = trial_of(HY3)
    trial = replace(trial, cluster=replace(trial.cluster, gpu=gpu, gpu_memory_gib=gib))
    found = [f"{p.why}; {p.cure}" for p in gpu_is_what_it_says(trial)]
    assert (says in found[0]) if says else found == [], found


@pytest.mark.parametrize(
    "broken",
    [[HY3, f"parallelism.{name}={size}"] for name in ("expert_tensor", "pipeline", "expert") for size in (3, 5, 12, 48)]
    + [[HY3, f"cluster.nodes={nodes}"] for nodes in (3, 12, 15, 24)]
    + [[HY3, "parallelism.expert_tensor=null", "parallelism.tensor=8", "parallelism.context=1"]]
    + [["experiment=qwen3_30b_a3b", f"cluster.gpus_per_node={count}"] for count in (3, 7, 12)],
    ids=lambda b: " ".join(b),
)
def test_every_size_that_the_cure_of_experts_names_is_one(trial_of, broken: list[str]) -> None:
    """Each value that is offered makes both rules of experts content; where none would, sizes to change are named."""
    rules = (topology.expert_grid_divides_world, topology.experts_split)
    for rule in rules:
        for problem in rule(trial_of(*broken)):
            offered = re.findall(r"(?:parallelism\.(\w+) of |try )((?:\d+(?:, | or )?)+)", problem.cure)
            assert bool(offered) is not ("`hysweep layouts`" in problem.cure), problem
            for name, values in offered:
                for value in re.findall(r"\d+", values):
                    mended = trial_of(*broken, f"parallelism.{name or 'expert'}={value}")
                    assert [*rule(mended)] == [], (problem, value)
                    if name == "expert":
                        assert [*topology.experts_split(mended)] == [], (problem, value)


def test_the_cures_of_lengths_are_possible_together(trial_of) -> None:
    """What is beyond the model's positions is to be shortened: nothing else is sized for it."""
    long = [HY3, "trainer.max_response_length=2000000"]
    found = {p.key: p.cure for p in errors(check_trial(trial_of(*long)))}
    assert "shorten them by" in found.pop("trainer.max_prompt_length + max_response_length")
    assert found["rollout.max_model_len"] == "give at least 131072, or null"
    told = {"trainer.max_response_length": 131072 - 2048, "rollout.max_model_len": 131072}
    for key, cure in found.items():
        if key.endswith("token_len_per_gpu"):
            told[key] = int(re.search(r"\d+", cure)[0])
    mended = errors(check_trial(trial_of(HY3, *(f"{k}={v}" for k, v in told.items()))))
    assert [p for p in mended if "len" in p.key] == []


OPTIMIZER = "+verl.actor_rollout_ref.actor.optim.override_optimizer_config."


def test_an_optimizer_that_verls_own_keys_keep_on_the_host_is_seen(trial_of) -> None:
    """By the estimate, by the cures, which offer it no more, and by layouts; of it a share counts as that share."""
    tight = ["experiment=qwen3_30b_a3b", "memory=offload"]
    passed = [f"{OPTIMIZER}optimizer_cpu_offload=true", f"{OPTIMIZER}optimizer_offload_fraction="]
    none, field = trial_of(*tight), trial_of(*tight, "memory.optimizer_on_cpu=true")
    whole, half, unsaid = (trial_of(*tight, passed[0], *more) for more in ([passed[1] + "1"], [passed[1] + "0.5"], []))
    gib = [estimate(t).of("train").parts.get("optimizer", 0.0) for t in (none, half, whole, field, unsaid)]
    assert gib == [gib[0], pytest.approx(gib[0] / 2), 0.0, 0.0, gib[0]] and gib[0] > 1
    assert estimate(whole).host_gib_per_node == estimate(field).host_gib_per_node
    assert not any("optimizer_on_cpu" in p.cure for p in check_trial(whole))


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [("actor.optim.override_optimizer_config.optimizer_offload_fraction", "1", "memory.optimizer_on_cpu"),
     ("actor.megatron.param_offload", "false", "memory.param_offload"),
     ("actor.megatron.context_parallel_size", "2", "parallelism.context")],
)  # fmt: skip
def test_what_a_field_sets_names_that_field(trial_of, key: str, value: str, field: str) -> None:
    trial = trial_of(HY3, "memory.optimizer_on_cpu=true", f"+verl.actor_rollout_ref.{key}={value}")
    found = [p.cure for p in check_trial(trial) if p.key == f"verl.actor_rollout_ref.{key}"]
    assert f"use {field}" in found


def test_a_clip_that_hardly_clips_is_a_warning(trial_of) -> None:
    [problem] = check_trial(trial_of("algorithm.clip_ratio_high=1.28"))
    assert problem.severity == "warning" and problem.cure == "did you mean 0.28?"


def test_a_budget_counts_for_each_context_rank(trial_of) -> None:
    """Case 6: 16384 x 4 holds 40960, 16384 x 1 does not."""
    long = [HY3, "trainer.max_prompt_length=8192", "trainer.max_response_length=32768", "rollout.max_model_len=null",
            "trainer.max_token_len_per_gpu=16384"]  # fmt: skip
    wide = check_trial(trial_of(*long, "parallelism.context=4", "parallelism.tensor=2"))
    narrow = check_trial(trial_of(*long, "parallelism.context=1", "parallelism.tensor=8"))
    assert not [p for p in wide if "token_len" in p.key]
    assert [p for p in narrow if p.key == "trainer.max_token_len_per_gpu"]


def test_a_reward_function_is_looked_for_in_its_file(trial_of, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for text, is_good in [
        ("def score(): ...", True),
        ("async def score(): ...", True),
        ("from other import score", True),
        ("score = lambda **k: 0", True),
        ("def compute_score(): ...", False),
        ("def score(:", False),
    ]:
        file.write_text(text)
        found = errors(check_trial(trial_of(f"reward.function_path={file}", "reward.function_name=score")))
        assert (not found) is is_good, (text, found)


def test_a_reward_file_is_never_run(trial_of, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef compute_score(): ...")
    assert errors(check_trial(trial_of(f"reward.function_path={file}"))) == []
    assert not (tmp_path / "ran").exists()


def test_legal_but_wasteful_is_a_warning(trial_of) -> None:
    found = check_trial(trial_of("algorithm.use_kl_loss=true", "algorithm.kl_loss_coef=0"))
    assert found and not errors(found)
    assert "use_kl_loss=false" in found[0].cure


def test_errors_come_first(trial_of) -> None:
    found = check_trial(trial_of("rollout.temperature=0.1", "algorithm.clip_ratio_c=1"))
    assert [p.severity for p in found] == ["error", "warning"]


@pytest.mark.parametrize("change", ["trainer.train_batch_size=9999991", "cluster.nodes=99991"])
def test_a_large_number_is_answered_at_once(trial_of, change: str) -> None:
    assert errors(check_trial(trial_of(HY3, change)))


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x", "n" * 300, "./" + "n" * 5000])
def test_a_path_that_no_machine_has_is_one_problem(trial_of, name: str) -> None:
    """No home of that user, and names that no file system takes: no rule raises."""
    for key in ("model.path", "data.train_files", "reward.function_path", "algorithm.plugin", "trainer.verl",
                "trainer.recipes", "algorithm.name"):  # fmt: skip
        more = {"trainer.recipes": ["trainer.entry=own.main_own"], "algorithm.name": ["algorithm.lam=0.5"]}
        check_trial(trial_of(f"{key}='{name}'", *more.get(key, [])))
    for key, more in (("algorithm.critic_path", ["algorithm=ppo"]), ("cluster.code", ["cluster.launcher=slurm"])):
        check_trial(trial_of(f"{key}='{name}'", *more))


def test_divisors_are_looked_for_up_to_the_root() -> None:
    """Up to the number itself it would take a day."""
    assert divisors(1_000_003 * 998_917, 5) == "1, 998917, 1000003 or 998919996751"


def test_the_nearest_divisors() -> None:
    assert divisors(192, 6) == "4, 6, 8 or 12" or divisors(192, 6) == "3, 4, 6 or 8"
    assert divisors(1, 6) == "1"


def test_megatron_is_asked_only_of_architectures_that_nothing_else_brings(trial_of) -> None:
    def says(*overrides: str) -> bool:
        return any(p.key == "model.model_type" for p in check_trial(trial_of(HY3, "model=qwen3_30b_a3b", *overrides)))

    assert says("model.model_type=own_moe")
    assert not says("model.model_type=own_moe", "model.external_lib=my.bridges")
    assert not says("model.model_type=own_moe", "parallelism=fsdp2")
    assert not says("model.model_type=''")
    shipped = (p.stem for p in (SHIPPED / "model").glob("*.yaml"))
    assert {trial_of(f"model={name}").model.model_type for name in shipped} <= BRIDGED


def test_every_rule_says_what_it_knows() -> None:
    assert len({rule.__name__ for rule in RULES}) == len(RULES)


UNUSUAL = [
    ((*GPUS, "model=qwen3_8b", "cluster.nodes=1", "rollout.tensor=2"), ["parallelism=fsdp2"],
     "memory.recompute_granularity", "another memory="),
    ((*GPUS, "model=qwen3_8b", "cluster.nodes=1", "rollout.tensor=2", "parallelism=fsdp2", "memory=offload"),
     ["trainer.use_dynamic_batch=false"], "trainer.max_token_len_per_gpu", "another trainer="),
    ((HY3,), ["model=hy3_tiny", "model.path=org/model", *[f"model.shape.{k}={v}" for k, v in UNKNOWN.items()],
              "model.model_type=''"], "model.shape", "config.json"),
    ((HY3, "model=qwen3_30b_a3b"), ["model.model_type=own_moe"], "model.model_type", "parallelism=fsdp2"),
    ((HY3,), ["memory.use_fused_kernels=false"], "cluster.gpu_memory_gib", "hysweep estimate"),
    ((HY3,), ["cluster.gpu=H2O"], "cluster.gpu", "did you mean H20"),
    ((HY3,), ["cluster.gpu=FOO"], "cluster.gpu", "name the card"),
    ((HY3,), ["algorithm=gspo", "algorithm.clip_ratio_low=0.2"], "algorithm.clip_ratio_low", "3e-4"),
    ((HY3,), ["algorithm=grpo", "algorithm.clip_ratio_low=3e-4"], "algorithm.clip_ratio_low", "gspo"),
    ((HY3,), ["algorithm=dapo", "algorithm.clip_ratio_high=4e-4"], "algorithm.clip_ratio_high", "gspo"),
    ((HY3,), ["trainer.learning_rate=1e-3"], "trainer.learning_rate", "1e-6"),
    ((HY3,), ["rollout.n=2"], "rollout.n", "8 to 16"),
    ((HY3,), ["tracking.mode=offline"], "tracking.mode", "tracking=wandb"),
    ((HY3,), ["tracking.tags=[mine]"], "tracking.tags", "tracking=wandb"),
    ((HY3,), ["algorithm=gpg", "trainer.mini_batch_size=32"], "algorithm.loss_mode", "use_kl_loss"),
    ((HY3,), ["rollout.dtype=float16", "rollout.correction_is=null", "rollout.correction_is_threshold='2.0'"],
     "rollout.correction_is", "token"),
    ((HY3,), ["trainer.save_every=-1"], "trainer.save_every", "20"),
    ((HY3,), ["trainer.max_prompt_length=32", "trainer.max_response_length=64", "rollout.max_model_len=96",
              "reward.overlong_buffer_len=8"], "parallelism.tensor * context", "fewer"),
    ((HY3,), ["rollout.temperature=0.3"], "rollout.temperature", "0.9"),
    ((HY3,), ["rollout.val_n=4", "rollout.val_do_sample=false"], "rollout.val_do_sample", "rollout.val_n=1"),
    ((HY3,), ["rollout.val_n=4", "rollout.val_temperature=0"], "rollout.val_temperature", "rollout.val_n=1"),
    ((HY3,), ["algorithm.use_kl_loss=true", "algorithm.kl_loss_coef=0"], "algorithm.kl_loss_coef", "use_kl_loss=false"),
    ((HY3,), ["algorithm=ppo"], "algorithm.critic_path", "smaller critic"),
    ((HY3,), ["algorithm=opo", "trainer.mini_batch_size=64"], "trainer.mini_batch_size", "128"),
    ((HY3,), ["cluster.timeout_min=15"], "cluster.timeout_min", "more nodes"),
    ((HY3,), ["cluster.gpu_memory_gib=null"], "cluster.gpu_memory_gib", "nvidia-smi"),
    ((HY3,), ["rollout.n=1"], "rollout.n", "8 to 16"),
    (
        (HY3,),
        ["model.shape.hidden_size=4095", "memory.use_fused_kernels=false", "cluster.gpu_memory_gib=null"],
        "model.shape.hidden_size",
        "4088 or 4096",
    ),
    ((HY3,), ["+verl.actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]"],
     "verl.actor_rollout_ref.actor.checkpoint.save_contents", "[model,optimizer,extra,hf_model]"),
    ((HY3,), ["cluster.memory_gib=100"], "cluster.memory_gib", "give 0"),
    ((HY3,), ["+cluster.env.WANDB_API_KEY=abc"], "cluster.env.WANDB_API_KEY", "export it in the shell"),
    ((HY3,), ["cluster.setup=['export HF_TOKEN=abc']"], "cluster.setup.0", "export it in the shell"),
    ((HY3,), ["trainer.validate_every=-1", "trainer.validate_before=false"], "trainer.validate_every", "steps"),
]  # fmt: skip


@pytest.mark.parametrize(("good", "change", "key", "cure"), UNUSUAL, ids=[u[2] for u in UNUSUAL])
def test_what_is_legal_and_unusual_is_a_warning(trial_of, good, change, key, cure) -> None:
    problems = check_trial(trial_of(*good, *change))
    assert errors(problems) == []
    found = {p.key: p for p in problems}
    assert key in found, found
    assert cure in found[key].cure


def test_every_rule_finds_something(trial_of) -> None:
    """No rule is there in vain: each yields a problem for one of the mutations above."""
    silent = set(RULES)
    for good, change, *_ in [*BROKEN, *UNUSUAL]:
        trial = trial_of(*good, *change)
        with contextlib.suppress(BadInput):  # of a trainer.verl that is not there: no rule is asked then
            silent -= {rule for rule in RULES if rule in silent and [*rule(trial)]}
    assert {rule.__name__ for rule in silent} <= {
        "versions_fit", "reward_function_is_there", "rows_are_sound", "calibration_is_readable"
    }  # fmt: skip


def test_of_the_shell_what_sbatch_ignores_and_what_wins_is_said() -> None:
    """Case 20."""
    shell = {"SBATCH_MEM": "4G", "SBATCH_TIME": "60", "SBATCH_ACCOUNT": "a", "SBATCH_TIMELIMIT": "5",
             "SBATCH_ARRAY_INX": "0-3", "SBATCH_HINT": "compute_bound", "SLURM_MEM": "x"}  # fmt: skip
    found = {p.key: p for p in heard_of(shell)}
    assert sorted(found) == ["SBATCH_ACCOUNT", "SBATCH_ARRAY_INX", "SBATCH_MEM", "SBATCH_TIME", "SBATCH_TIMELIMIT"]
    assert "ignored" in found["SBATCH_MEM"].why and "SBATCH_MEM_PER_NODE" in found["SBATCH_MEM"].cure
    assert "SBATCH_TIMELIMIT" in found["SBATCH_TIME"].cure
    assert "cluster.account" in found["SBATCH_ACCOUNT"].why
    assert "cluster.timeout_min" in found["SBATCH_TIMELIMIT"].why
    assert errors(found.values()) == []


def test_the_disk_that_checkpoints_take(trial_of) -> None:
    """About 4 TB a save for Hy3."""
    hy3 = trial_of(HY3, "trainer.total_steps=100", "trainer.save_every=20")
    size = checkpoint_gib(hy3)
    assert size is not None and 3500 < size < 4500
    for overrides, most in (((), 5), (("trainer.checkpoints_kept=3",), 3), (("trainer.checkpoints_kept=1",), 2),
                            (("trainer.checkpoints_kept=9",), 5), (("trainer.save_every=-1",), 0),
                            (("trainer.total_steps=null",), None),
                            (("trainer.total_steps=null", "trainer.checkpoints_kept=2"), 2)):  # fmt: skip
        trial = trial_of(HY3, "trainer.total_steps=100", "trainer.save_every=20", *overrides)
        assert checkpoints_at_once(trial) == most, overrides
    kept = trial_of(HY3, "trainer.total_steps=100", "trainer.checkpoints_kept=1")
    assert disk_problems(kept, parallel=2, trials=2, free_gib=4 * size + 1) == []
    (problem,) = disk_problems(kept, parallel=2, trials=3, free_gib=4 * size + 1)
    assert "in the end" in problem.why
    (problem,) = disk_problems(kept, parallel=2, trials=2, free_gib=4 * size - 1)
    assert "while it runs" in problem.why
    (problem,) = disk_problems(trial_of(HY3), parallel=1, trials=1, free_gib=size - 1)
    assert "at least" in problem.why, "its script saves for ever and keeps all"
    assert checkpoint_gib(trial_of()) is None and disk_problems(trial_of(), 1, 1, 0.0) == []
