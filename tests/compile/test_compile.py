"""A trial becomes the trainer's command. Pure: nothing is run here, no torch is there."""

from __future__ import annotations

import itertools
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hysweep.check import check_trial, errors
from hysweep.compile import Job, compile_trial, ignored, nodes_of, trainer_keys, trainer_values
from hysweep.compile.keys import VERSIONS
from hysweep.compose import Composer
from hysweep.schema import BadInput
from hysweep.study.ledger import worst_case

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


ACTOR = "actor_rollout_ref.actor"
LOSS, LOW, HIGH, DUAL, MEAN = (
    f"{ACTOR}.policy_loss.loss_mode",
    f"{ACTOR}.clip_ratio_low",
    f"{ACTOR}.clip_ratio_high",
    f"{ACTOR}.clip_ratio_c",
    f"{ACTOR}.loss_agg_mode",
)
STD, ESTIMATOR, V1 = "algorithm.norm_adv_by_std_in_grpo", "algorithm.adv_estimator", "trainer.use_v1"
KL_REWARD = {
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 1e-3,
}
GONE = None
# What each algorithm changes of grpo's command, wholly: one line is all that a switch may do.
CHANGES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {STD: False, MEAN: "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor": 8},
    "dapo": {
        HIGH: 0.28,
        DUAL: 10.0,
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc",
        "reward.reward_manager.name": "dapo",
        "reward.reward_kwargs.overlong_buffer_cfg.enable": True,
        "reward.reward_kwargs.overlong_buffer_cfg.len": 1,
        "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": 1.0,
        "reward.reward_kwargs.overlong_buffer_cfg.log": True,
        "reward.reward_kwargs.max_resp_len": 8,
    },
    "rloo": {ESTIMATOR: "rloo", STD: GONE},
    "gspo": {LOSS: "gspo", LOW: 3e-4, HIGH: 4e-4, DUAL: GONE, MEAN: "seq-mean-token-mean"},
    "cispo": {LOSS: "cispo", LOW: 10.0, DUAL: GONE},
    "hy3_grpo": {STD: False, HIGH: 0.28, DUAL: 10.0, MEAN: "seq-mean-token-mean"},
    "hy3_grpo_as_run": {
        STD: False,
        HIGH: 0.28,
        DUAL: 10.0,
        MEAN: "seq-mean-token-mean",
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_coef": 0.0,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
    },
    "reinforce_plus_plus": {ESTIMATOR: "reinforce_plus_plus", STD: GONE, "algorithm.gamma": 1.0, **KL_REWARD},
    "reinforce_plus_plus_baseline": {ESTIMATOR: "reinforce_plus_plus_baseline", STD: GONE, **KL_REWARD},
    "remax": {ESTIMATOR: "remax", STD: GONE, V1: False, **KL_REWARD},
    "opo": {ESTIMATOR: "opo", STD: GONE, f"{ACTOR}.ppo_mini_batch_size": 8},
    "gpg": {ESTIMATOR: "gpg", STD: GONE, LOSS: "gpg", LOW: GONE, HIGH: GONE, DUAL: GONE},
    "ppo": {
        ESTIMATOR: "gae",
        STD: GONE,
        "algorithm.gamma": 1.0,
        "algorithm.lam": 1.0,
        "critic.enable": True,
        "critic.model.path": "(the actor's)",
        "critic.model.tokenizer_path": "(the actor's)",
        "critic.model.trust_remote_code": False,
        "critic.model.use_remove_padding": False,
        "critic.fsdp.param_offload": False,
        "critic.fsdp.optimizer_offload": False,
        "critic.fsdp.offload_policy": False,
        "critic.fsdp.fsdp_size": -1,
        "critic.model.enable_gradient_checkpointing": False,
        "critic.optim.lr": 1e-5,
        "critic.cliprange_value": 0.5,
        "critic.ppo_max_token_len_per_gpu": 8192,
        "critic.ppo_infer_max_token_len_per_gpu": 8192,
        "critic.strategy": "fsdp2",
        "critic.grad_clip": 1.0,
        "trainer.critic_warmup": 0,
    },
    "clip_cov": {
        LOSS: "clip_cov",
        LOW: 1.0,
        HIGH: 1.0,
        DUAL: GONE,
        f"{ACTOR}.policy_loss.clip_cov_ratio": 2e-4,
        f"{ACTOR}.policy_loss.clip_cov_lb": 1.0,
        f"{ACTOR}.policy_loss.clip_cov_ub": 5.0,
    },
    "kl_cov": {
        LOSS: "kl_cov",
        LOW: GONE,
        HIGH: GONE,
        DUAL: GONE,
        f"{ACTOR}.policy_loss.kl_cov_ratio": 2e-4,
        f"{ACTOR}.policy_loss.ppo_kl_coef": 1.0,
    },
    "geo_mean": {LOSS: "geo_mean", LOW: 0.4, HIGH: 0.4, DUAL: GONE, MEAN: GONE},
    "sapo": {
        LOSS: "sapo",
        LOW: GONE,
        HIGH: GONE,
        DUAL: GONE,
        MEAN: GONE,
        f"{ACTOR}.tau_pos": 1.0,
        f"{ACTOR}.tau_neg": 1.05,
    },
    "dppo_tv": {LOSS: "dppo_tv", STD: False, LOW: 0.15, HIGH: 0.15, DUAL: 1e4, MEAN: "seq-mean-token-sum-norm"},
    "dppo_kl": {LOSS: "dppo_kl", STD: False, LOW: 0.05, HIGH: 0.05, DUAL: 1e4, MEAN: "seq-mean-token-sum-norm"},
    "dro": {LOSS: "dro", LOW: GONE, HIGH: GONE, DUAL: GONE, f"{ACTOR}.policy_loss.dro_beta": 0.1},
    "gdpo": {
        ESTIMATOR: "gdpo",
        "algorithm.gdpo_reward_keys": [],
        "reward.reward_manager.name": "gdpo",
        V1: False,
    },
    "grpo_passk": {ESTIMATOR: "grpo_passk"},
    "optimal_token_baseline": {
        ESTIMATOR: "optimal_token_baseline",
        STD: GONE,
        V1: False,
        f"{ACTOR}.calculate_sum_pi_squared": True,
    },
    "tir_optimal_token_baseline": {
        ESTIMATOR: "tir_optimal_token_baseline",
        STD: GONE,
        V1: False,
        f"{ACTOR}.calculate_sum_pi_squared": True,
    },
}


@pytest.fixture(scope="module")
def sweep_of_algorithms(composer: Composer) -> dict[str, dict[str, Any]]:
    """Each algorithm's values as the points of one sweep: each comes after another."""
    composition = composer.compose(["algorithm=" + ",".join(CHANGES)])
    found = {}
    for name in CHANGES:
        values = trainer_values(composer.point(composition.fixed, composition.space, {"algorithm": name}))
        path = values["actor_rollout_ref.model.path"]
        found[name] = {k: "(the actor's)" if v == path and k.startswith("critic.") else v for k, v in values.items()}
    return found


def test_every_algorithm_is_described_here() -> None:
    assert set(Composer().words.groups["algorithm"]) == set(CHANGES)


def test_switching_from_any_to_any_changes_what_differs_and_nothing_else(sweep_of_algorithms) -> None:
    grpo = sweep_of_algorithms["grpo"]
    for a, b in itertools.permutations(CHANGES, 2):
        before, after = sweep_of_algorithms[a], sweep_of_algorithms[b]
        changed = {k: after.get(k) for k in before | after if before.get(k) != after.get(k)}
        expected = {k: CHANGES[b].get(k, grpo.get(k)) for k in CHANGES[a] | CHANGES[b]}
        assert changed == {k: v for k, v in expected.items() if before.get(k) != v}, (a, b)


def test_hy3s_own_settings_are_untouched_by_a_switch(composer: Composer) -> None:
    hy3 = "experiment=hy3_dapo_math"
    grpo = trainer_values(composer.compose([hy3, "algorithm=grpo"]).trial)
    for name in CHANGES:
        values = trainer_values(composer.compose([hy3, f"algorithm={name}"]).trial)
        changed = {k for k in grpo | values if grpo.get(k) != values.get(k)}
        # dapo's manager is there already, and so is its buffer; opo has one update a step either way
        ours = set(CHANGES[name]) - {"reward.reward_kwargs.max_resp_len", f"{ACTOR}.ppo_mini_batch_size"}
        gone = {k for k in grpo if k.startswith("reward.reward_kwargs")} if name == "gdpo" else set()
        critic = {k for k in changed if k.startswith(("critic.megatron.", "critic.optim."))}
        assert changed <= ours | gone | critic, (name, changed - ours - gone - critic)


def test_a_critic_is_laid_out_as_the_actor_is(trial_of) -> None:
    values = trainer_values(trial_of("experiment=hy3_dapo_math", "algorithm=ppo"))
    mirrored = {
        k.replace("critic.megatron", f"{ACTOR}.megatron"): v for k, v in values.items() if "critic.megatron" in k
    }
    assert mirrored == {k: values[k] for k in mirrored}
    assert f"{ACTOR}.megatron.pipeline_model_parallel_size" in mirrored
    assert f"{ACTOR}.megatron.override_transformer_config.moe_router_enable_expert_bias" in mirrored
    assert values["critic.ppo_infer_max_token_len_per_gpu"] == 30720


@pytest.mark.parametrize(
    ("layout", "keys"),
    [
        (("parallelism=fsdp2", "memory=fsdp2_offload", "parallelism.fsdp_size=4"),
         {"critic.fsdp.offload_policy": True, "critic.fsdp.fsdp_size": 4, "critic.fsdp.dtype": "bfloat16",
          "critic.model.enable_gradient_checkpointing": True}),
        (("parallelism=megatron_tensor_2", "memory=cpu_optimizer", "memory.reshardable_checkpoints=true"),
         {"critic.optim.override_optimizer_config.optimizer_cpu_offload": True, "critic.optim.clip_grad": 1.0,
          "critic.megatron.dist_ckpt_optim_fully_reshardable": True, "critic.megatron.optimizer_offload": True}),
    ],
)  # fmt: skip
def test_a_critic_waits_and_steps_where_the_actor_does(trial_of, layout, keys) -> None:
    """The estimate reckons so: a critic that stayed on the GPU would not fit beside the actor."""
    trial = trial_of("algorithm=ppo", "model=qwen3_8b", "cluster=gpu_8", "rollout=vllm", *layout)
    values = trainer_values(trial)
    assert {key: values.get(key) for key in keys} == keys


def test_a_job_has_the_nodes_that_are_set_apart_too(trial_of) -> None:
    """verl wants them beside those that train, or fails once Ray has counted: its resource pools are not shared."""
    hy3 = "experiment=hy3_dapo_math"
    served = trial_of(hy3, "reward=reward_model", "reward.model_path=/models/judge", "reward.model_nodes=2")
    job = compile_trial(served, Path("/t"))
    assert job.nodes == 18
    assert {"trainer.nnodes=16", "reward.reward_model.nnodes=2"} <= set(job.overrides)
    assert worst_case(served) == worst_case(job) == 18 * 8 * 24
    rollout = "+verl.actor_rollout_ref.rollout"
    apart = trial_of(
        hy3, "+verl.trainer.v1.trainer_mode=separate_async", f"{rollout}.nnodes=3", f"{rollout}.n_gpus_per_node=4"
    )
    assert nodes_of(apart) == 16 + 2, "two of four GPUs are a node"
    assert nodes_of(trial_of(hy3, "+verl.distillation.enabled=true", "+verl.distillation.nnodes=1")) == 17


# What verl registers and no option offers, with the reason.
EXCLUDED = {
    "grpo_vectorized": "grpo, computed in one go: the same advantages",
    "rloo_vectorized": "rloo, computed in one go: the same advantages",
    "bypass_mode": "chosen by verl itself where rollout correction is bypassed in its older trainer",
}


def test_every_estimator_and_loss_of_verl_is_an_option_or_excluded(trial_of) -> None:
    chosen = [trial_of(f"algorithm={name}").algorithm for name in CHANGES]
    offered = {a.adv_estimator for a in chosen} | {a.loss_mode for a in chosen}
    for verl in VERSIONS:
        keys = trainer_keys(verl, "dp")
        registered = {*keys.adv_estimators, *keys.policy_losses}
        assert registered - offered == set(EXCLUDED)
        assert offered - registered == ({"dro"} if verl == "220e903" else set())


def test_every_algorithm_compiles_for_every_version_or_is_refused(trial_of) -> None:
    for name, verl in itertools.product(CHANGES, VERSIONS):
        trial = trial_of(f"algorithm={name}", f"trainer.verl={verl}", "algorithm.gdpo_reward_keys=[]")
        refused = {p.key for p in errors(check_trial(trial))} - {"verl"}  # 0.9.1 is installed
        if (name, verl) in {("dro", "220e903"), ("dapo", "220e903")}:
            assert refused & {"algorithm.loss_mode", "algorithm.use_filter_groups"}
        else:
            assert compile_trial(trial, HERE).overrides
            assert refused <= {"algorithm.gdpo_reward_keys", "algorithm.adv_estimator"}, (name, verl, refused)


@pytest.mark.parametrize("verl", VERSIONS)
def test_every_knob_names_a_key_of_the_trainer(verl: str) -> None:
    from hysweep.compose.composer import all_leaves

    tables = [trainer_keys(verl, engine) for engine in ("dp", "megatron")]
    unknown = {key for leaf in all_leaves() for key in leaf.knob.keys if not any(key in t for t in tables)}
    newer = {f"{ACTOR}.policy_loss.dro_beta", "algorithm.filter_groups.enable", "algorithm.filter_groups.metric"}
    assert unknown == (newer if verl == "220e903" else set())


def test_prefixes_follow_the_version() -> None:
    keys = trainer_keys("0.9.1", "dp")
    assert keys.override("trainer.nnodes", "2") == "trainer.nnodes=2"
    assert keys.override("reward.reward_kwargs.max_resp_len", "8") == "+reward.reward_kwargs.max_resp_len=8"
    offload = "actor_rollout_ref.actor.megatron.grad_offload"
    assert trainer_keys("0.9.0", "megatron").override(offload, "true") == f"{offload}=true"
    with pytest.raises(KeyError):
        trainer_keys("0.9.1", "megatron").override(offload, "true")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A verl of somebody's own: the installed one's files, with a key and a loss more."""
    root = tmp_path_factory.mktemp("checkout")
    found = find_spec("verl")
    if found is None:
        pytest.skip("verl is not installed: pip install 'hysweep[cpu]'")
    package = Path(found.submodule_search_locations[0])
    for name in ("trainer/config", "version"):
        shutil.copytree(package / name, root / "verl" / name)
    algorithms = (package / "trainer/ppo/core_algos.py").read_text()
    (root / "verl/trainer/ppo").mkdir()
    more = '\n\n@register_policy_loss("mine")\ndef mine(): ...\n'
    (root / "verl/trainer/ppo/core_algos.py").write_text(algorithms + more)
    tree = root / "verl/trainer/config/ppo_trainer.yaml"
    tree.write_text(tree.read_text().replace("\ntrainer:\n", "\ntrainer:\n  of_mine: 3\n"))
    return root


def test_a_checkout_and_a_wheel_are_read_as_they_are(checkout: Path, trial_of, tmp_path: Path) -> None:
    keys = trainer_keys(str(checkout), "dp")
    assert keys.defaults["trainer.of_mine"] == 3
    assert "mine" in keys.policy_losses
    trial = trial_of(f"trainer.verl={checkout}", "+verl.trainer.of_mine=4")
    job = compile_trial(trial, HERE)
    assert "trainer.of_mine=4" in job.overrides
    assert job.env["PYTHONPATH"] == str(checkout), "which is put before the installed one"
    assert "verl" not in job.requires
    wheel = tmp_path / "verl-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in checkout.rglob("*"):
            archive.write(path, path.relative_to(checkout))
    job = compile_trial(trial_of(f"trainer.verl={wheel}", "verl.trainer.of_mine=4"), HERE)
    assert "trainer.of_mine=4" in job.overrides
    assert (Path(job.env["PYTHONPATH"]) / "verl/version/version").is_file()


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("verl/trainer/ppo/core_algos.py", None, "verl/trainer/ppo/core_algos.py is missing"),
        ("verl/version/version", None, "verl/version/version is missing"),
        ("verl/trainer/ppo/core_algos.py", b"\n(((", "verl/trainer/ppo/core_algos.py, line "),
        ("verl/trainer/config/ppo_trainer.yaml", b"\nx: [", "verl/trainer/config/ppo_trainer.yaml, line "),
        ("verl/version/version", b"torn", "verl/version/version in it is torn"),
    ],
    ids=["no algorithms", "no version", "no Python", "no YAML", "torn"],
)
def test_a_torn_wheel_is_refused_with_the_file_in_it(
    checkout: Path, tmp_path: Path, name: str, change: bytes | None, says: str
) -> None:
    wheel = tmp_path / "verl-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in (p for p in checkout.rglob("*") if p.is_file()):
            inside = str(path.relative_to(checkout))
            if inside != name or change is not None:
                archive.writestr(inside, path.read_bytes() + (change or b"") * (inside == name))
    if change == b"torn":
        wheel.write_bytes(wheel.read_bytes().replace(change, b"nrot"))
    with pytest.raises(BadInput) as refused:
        trainer_keys(str(wheel), "dp")
    [problem] = refused.value.problems
    assert (problem.key, says in problem.why) == ("trainer.verl", True), problem
    assert str(tmp_path) not in problem.why


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
    trial = trial_of("verl.actor_rollout_ref.actor.shuffle=true", "verl.reward.reward_kwargs.x=1")
    got = overrides(trial)
    assert got["actor_rollout_ref.actor.shuffle"] == "true"
    assert got["+reward.reward_kwargs.x"] == "1"


def test_thresholds_stay_texts_however_they_come(trial_of) -> None:
    """0.5_5 is 0.55 to Hydra, and 2_4 is 24: IcePop would become a cap in silence."""
    for written in ("0.5_5", "2_4", "'0.5_5'", "0.5_4.0", "5"):
        got = overrides(trial_of("rollout.correction_is=token", f"rollout.correction_is_threshold={written}"))
        assert got["algorithm.rollout_correction.rollout_is_threshold"] == "'" + written.strip("'") + "'"


def test_files_may_be_one_a_list_or_a_pattern(trial_of, tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet"):
        (tmp_path / name).touch()
    both = f"[{tmp_path}/a.parquet,{tmp_path}/b.parquet]"
    assert overrides(trial_of("data.train_files=*.parquet"))["data.train_files"] == both
    assert overrides(trial_of("data.train_files=[a.parquet,b.parquet]"))["data.train_files"] == both
    assert overrides(trial_of("data.train_files=a.parquet"))["data.train_files"] == f"[{tmp_path}/a.parquet]"


def test_metrics_always_reach_the_study(trial_of) -> None:
    assert overrides(trial_of("tracking.loggers=[console]"))["trainer.logger"] == "[console,file]"


def test_a_job_goes_through_json(trial_of) -> None:
    import json

    job = compile_trial(trial_of(), HERE)
    assert Job.from_dict(json.loads(json.dumps(job.as_dict()))) == job


def test_the_same_in_is_the_same_out(trial_of) -> None:
    assert compile_trial(trial_of(), HERE) == compile_trial(trial_of(), HERE)
