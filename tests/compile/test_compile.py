"""A trial becomes the trainer's command. Pure: nothing is run here, no torch is there."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from hysweep.compile import Job, compile_trial, ignored, trainer_keys, trainer_values
from hysweep.compose import Composer

HERE = Path("/study/trials/0001-abc")


def overrides(trial: Any) -> dict[str, str]:
    return dict(o.split("=", 1) for o in compile_trial(trial, HERE).overrides)


def test_the_verified_hy3_run(trial_of) -> None:
    """The list of its guide and of the launch script, key by key."""
    got = overrides(trial_of("experiment=hy3_dapo_math"))
    actor, rollout, transformer = (
        "actor_rollout_ref.actor",
        "actor_rollout_ref.rollout",
        "+actor_rollout_ref.actor.megatron.override_transformer_config",
    )
    wanted = {
        "model_engine": "megatron",
        "data.train_batch_size": "128",
        f"{rollout}.n": "16",
        f"{actor}.ppo_mini_batch_size": "128",
        f"{actor}.optim.lr": "1e-06",
        f"{actor}.clip_ratio_low": "0.2",
        f"{actor}.clip_ratio_high": "0.28",
        f"{actor}.clip_ratio_c": "10.0",
        f"{actor}.use_kl_loss": "false",
        "algorithm.norm_adv_by_std_in_grpo": "false",
        f"{actor}.loss_agg_mode": "seq-mean-token-mean",
        "reward.reward_manager.name": "dapo",
        "+reward.reward_kwargs.overlong_buffer_cfg.len": "4096",
        "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": "1.0",
        "+reward.reward_kwargs.max_resp_len": "8192",
        "algorithm.rollout_correction.rollout_is": "token",
        "algorithm.rollout_correction.rollout_is_threshold": "'0.5_4.0'",
        f"{rollout}.temperature": "0.9",
        "data.max_prompt_length": "2048",
        "data.max_response_length": "8192",
        f"{rollout}.max_model_len": "10240",
        f"{rollout}.max_num_batched_tokens": "10240",
        "data.truncation": "left",
        f"{rollout}.val_kwargs.temperature": "1.0",
        f"{actor}.megatron.tensor_model_parallel_size": "1",
        f"{actor}.megatron.pipeline_model_parallel_size": "16",
        f"{actor}.megatron.context_parallel_size": "8",
        f"{actor}.megatron.expert_model_parallel_size": "8",
        f"{actor}.megatron.expert_tensor_parallel_size": "1",
        f"{rollout}.tensor_model_parallel_size": "16",
        f"{rollout}.gpu_memory_utilization": "0.65",
        f"{actor}.ppo_max_token_len_per_gpu": "30720",
        f"{rollout}.log_prob_max_token_len_per_gpu": "40960",
        f"{actor}.megatron.param_offload": "true",
        f"{actor}.megatron.optimizer_offload": "true",
        "actor_rollout_ref.model.use_fused_kernels": "true",
        f"{transformer}.moe_router_enable_expert_bias": "true",
        f"{transformer}.moe_router_bias_update_rate": "0",
        f"{transformer}.moe_router_load_balancing_type": "none",
        f"{transformer}.moe_grouped_gemm": "true",
        f"{actor}.megatron.use_mbridge": "true",
        f"{actor}.megatron.vanilla_mbridge": "false",
        "trainer.save_freq": "20",
        "trainer.test_freq": "10",
        "trainer.nnodes": "16",
        "trainer.n_gpus_per_node": "8",
    }
    assert {k: got.get(k) for k in wanted} == wanted
    assert not any("grad_offload" in k for k in got), "verl 0.9.1 has no such key"


ALGORITHMS = sorted(Composer().words.groups["algorithm"])


@pytest.mark.parametrize("base", [(), ("experiment=hy3_dapo_math",)])
def test_switching_the_algorithm_changes_its_own_keys_only(composer: Composer, base: tuple[str, ...]) -> None:
    """No value of one algorithm leaks into another, and nothing else moves."""
    values = {a: trainer_values(composer.compose([*base, f"algorithm={a}"]).trial) for a in ALGORITHMS}
    for a, b in itertools.permutations(ALGORITHMS, 2):
        different = {k for k in values[a] | values[b] if values[a].get(k) != values[b].get(k)}
        strange = {k for k in different if not k.startswith(("algorithm.", "actor_rollout_ref.actor."))}
        assert not strange, (a, b, strange)
    for a in ALGORITHMS:
        clip = values[a]["actor_rollout_ref.actor.clip_ratio_high"]
        assert clip == {"gspo": 4e-4, "hy3_grpo": 0.28}.get(a, 0.2)


def test_every_knob_names_a_key_of_the_trainer() -> None:
    from hysweep.compose.composer import all_leaves

    tables = [trainer_keys("0.9.1", engine) for engine in ("dp", "megatron")]
    unknown = [(leaf.path, key) for leaf in all_leaves() for key in leaf.knob.keys if not any(key in t for t in tables)]
    assert not unknown


def test_prefixes_follow_the_version() -> None:
    keys = trainer_keys("0.9.1", "dp")
    assert keys.override("trainer.nnodes", "2") == "trainer.nnodes=2"
    assert keys.override("reward.reward_kwargs.max_resp_len", "8") == "+reward.reward_kwargs.max_resp_len=8"
    with pytest.raises(KeyError):
        keys.override("actor_rollout_ref.actor.megatron.grad_offload", "true")


def test_what_nothing_reads_is_not_sent_and_is_named(trial_of) -> None:
    trial = trial_of("algorithm=gspo", "algorithm.clip_ratio_c=10", "parallelism.tensor=2")
    assert {leaf.path for leaf in ignored(trial)} == {"algorithm.clip_ratio_c", "parallelism.tensor"}
    assert "actor_rollout_ref.actor.clip_ratio_c" not in overrides(trial)
    assert not list(ignored(trial_of())), "nothing in the default is ignored"


def test_a_path_is_absolute_whatever_the_directory(trial_of, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "t.parquet").touch()
    got = overrides(trial_of("data.train_files=[d/t.parquet]", "model.path=org/name"))
    assert got["data.train_files"] == f"[{tmp_path}/d/t.parquet]"
    assert got["actor_rollout_ref.model.path"] == "org/name"


def test_extra_keys_are_sent(trial_of) -> None:
    trial = trial_of("trainer.extra.actor_rollout_ref.actor.ppo_epochs=2", "trainer.extra.reward.reward_kwargs.x=1")
    got = overrides(trial)
    assert got["actor_rollout_ref.actor.ppo_epochs"] == "2"
    assert got["+reward.reward_kwargs.x"] == "1"


def test_metrics_always_reach_the_study(trial_of) -> None:
    assert overrides(trial_of("tracking.loggers=[console]"))["trainer.logger"] == "[console,file]"


def test_a_job_goes_through_json(trial_of) -> None:
    import json

    job = compile_trial(trial_of(), HERE)
    assert Job.from_dict(json.loads(json.dumps(job.as_dict()))) == job


def test_the_same_in_is_the_same_out(trial_of) -> None:
    assert compile_trial(trial_of(), HERE) == compile_trial(trial_of(), HERE)
