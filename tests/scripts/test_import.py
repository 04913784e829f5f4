"""From a launch script to an experiment that comes to the same configuration of verl."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from hysweep.compile import flatten, trainer_keys
from hysweep.compile.keys import VERSIONS
from hysweep.schema import BadInput
from hysweep.schema.override import emit
from hysweep.scripts import Imported, import_script
from hysweep.scripts.launch import launches
from hysweep.scripts.settings import Settings, read_settings
from hysweep.scripts.shell import read_script
from hysweep.scripts.tree import Unresolved, resolved, same

MAIN = "python3 -m verl.trainer.main_ppo"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def take(source: str, verl: str = "0.9.1", **given: str) -> Imported:
    return import_script(source.encode(), "run.sh", "run", verl, given)


def written(imported: Imported) -> dict[str, Any]:
    """The fields and keys of the file, by path, as they are written."""
    content = OmegaConf.to_container(OmegaConf.create(imported.text), resolve=False)
    assert isinstance(content, dict)
    return dict(flatten({str(k): v for k, v in content.items()}))


def overrides(source: str, engine: str = "dp") -> Settings:
    script = read_script(source, "run.sh", {})
    (launch,) = launches(script.commands)
    return read_settings(launch, script.scope, engine, trainer_keys("0.9.1", engine))


# In our own words what launch scripts are made of: defaults, a probe, arrays, a case, arithmetic, a log.
FSDP = r"""#!/usr/bin/env bash
set -xeuo pipefail
KIND=${KIND:-$(python3 -c 'import some_device' 2>/dev/null && echo other || echo cuda)}
MODEL=${MODEL:-Qwen/Qwen3-8B}
DATA=${DATA:-$HOME/sums}
prompt=$((1024 * 1)) answer=$((1024 * 2))
case "$KIND" in
    cuda) tp=${TP:-2} ;;
    *) echo "what is $KIND?" >&2; exit 1 ;;
esac
[ "$tp" -gt 1 ] && eager=False || eager=True
TRAINING=(
    algorithm.adv_estimator=grpo
    data.train_files="['$DATA/train.parquet', '$DATA/more.parquet']"   # two shards
    data.val_files="$DATA/val.parquet"
    data.train_batch_size=${BATCH:-64} data.max_prompt_length=$prompt data.max_response_length=${answer}
)
TRAINING+=(
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.002
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${BUDGET:-$(((prompt + answer) * 3))}
)
if [ "${WITH_DAPO:-1}" != 0 ]; then
    TRAINING+=(reward.reward_manager.name=dapo +reward.reward_kwargs.overlong_buffer_cfg.enable=True
               +reward.reward_kwargs.overlong_buffer_cfg.len=512
               +reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0
               +reward.reward_kwargs.max_resp_len=$answer)
fi
"${PYTHON:-python3}" -m verl.trainer.main_ppo "${TRAINING[@]}" \
    actor_rollout_ref.model.path=$MODEL \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=$tp \
    actor_rollout_ref.rollout.enforce_eager=$eager \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.seed=3 \
    trainer.logger='["console","wandb"]' trainer.project_name=sums trainer.experiment_name="run_$(date +%s)" \
    trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.total_epochs=3 "$@" 2>&1 | tee log.txt
"""

MEGATRON = f"""
ray job submit --runtime-env=env.yaml --no-wait -- python3 -m verl.trainer.main_ppo \\
  --config-path=config --config-name='ppo_megatron_trainer.yaml' algorithm.adv_estimator=gae \\
  {ACTOR}.megatron.tensor_model_parallel_size=4 {ACTOR}.megatron.context_parallel_size=2 \\
  {ACTOR}.megatron.param_offload=True actor_rollout_ref.ref.megatron.param_offload=True \\
  {ACTOR}.megatron.grad_offload=True \\
  +{ACTOR}.megatron.override_transformer_config.recompute_granularity=full \\
  +{ACTOR}.megatron.override_transformer_config.recompute_method=uniform \\
  +{ACTOR}.megatron.override_transformer_config.moe_grouped_gemm=True \\
  reward_model.reward_manager=dapo +{ACTOR}.optim.override_optimizer_config.foo=1 \\
  actor_rollout_ref.model.path=/models/Qwen3-8B-Base critic.model.path=/models/critic \\
  trainer.nnodes=2 trainer.n_gpus_per_node=8 data.train_files=/d/a.parquet data.val_files=/d/b.parquet
"""


def test_a_script_of_fsdp_comes_to_the_same() -> None:
    imported = take(FSDP)
    fields = written(imported)
    assert (imported.faults, imported.unmeant) == ([], [])
    assert fields["data.train_files"] == ["${oc.env:HOME}/sums/train.parquet", "${oc.env:HOME}/sums/more.parquet"]
    assert fields["data.val_files"] == ["${oc.env:HOME}/sums/val.parquet"]
    assert fields["trainer.max_token_len_per_gpu"] == 9216
    assert not {key for key in fields if key.startswith("verl.data")}
    assert fields["reward.overlong_buffer_len"] == 512
    assert fields["algorithm.kl_loss_coef"] == 0.002
    assert fields["verl.actor_rollout_ref.rollout.engine_kwargs.vllm.seed"] == 3
    assert (imported.options["model"], imported.options["cluster"]) == ("qwen3_8b", "gpu_8")
    assert imported.defaults["BUDGET"] == ("9216", FSDP.partition("BUDGET")[0].count("\n") + 1)
    assert next(r for r in imported.rows if "train_batch_size" in r.override).line == 16
    assert "the file logger" in next(d for d in imported.differences if d.key == "trainer.logger").why


def test_a_script_of_megatron_comes_to_the_same() -> None:
    imported = take(MEGATRON)
    fields = written(imported)
    assert (imported.faults, imported.unmeant) == ([], [])
    assert fields["parallelism.tensor"] == 4
    assert fields["parallelism.context"] == 2
    assert fields["algorithm.critic_path"] == "/models/critic"
    assert fields["model.path"] == "/models/Qwen3-8B-Base"
    assert fields[f"verl.{ACTOR}.megatron.override_transformer_config.moe_grouped_gemm"] is True
    remarks = {row.override.partition("=")[0]: row.remark for row in imported.rows}
    assert "gradients follow" in remarks[f"{ACTOR}.megatron.grad_offload"]
    assert "reads it no more" in remarks["reward_model.reward_manager"]
    assert imported.options["cluster"] == "slurm_h100"


def test_a_given_variable_takes_the_place_of_the_default() -> None:
    fields = written(take(FSDP, MODEL="/m/Own", TP="4", HOME="/home/me"))
    assert fields["rollout.tensor"] == 4
    assert fields["data.val_files"] == ["/home/me/sums/val.parquet"]
    assert (fields["model.name"], fields["model.model_type"]) == ("Own", "")


def test_what_cannot_be_said_is_listed_and_the_rest_is_written() -> None:
    imported = take(
        f"A=(data.train_files=a.parquet)\n{MAIN} ${{A[@]}} {ACTOR}.optim.lrr=1 {ROLLOUT}.n=$(nproc) "
        f"model_engine=veomni trainer.nnodes=$NODES {ACTOR}.optim.lr=1e-5 +a.b.c=1 data.seed='x y' "
        f"{ROLLOUT}.temperature=0.3,0.4 'bad=[' {ROLLOUT}.name=sglang data.val_files=${{DIR:?}}/b.parquet "
        "~data.shuffle trainer.logger='${no.such.key}'"
    )
    faults = {row.override.partition("=")[0]: row.remark for row in imported.faults}
    assert "did you mean actor_rollout_ref.actor.optim.lr" in faults[f"{ACTOR}.optim.lrr"]
    assert "$(nproc) is not understood" in faults[f"{ROLLOUT}.n"]
    assert "--set" in faults["trainer.nnodes"]
    assert {"+a.b.c", f"{ROLLOUT}.temperature", "bad", "~data.shuffle", "trainer.logger"} <= faults.keys()
    assert [d.key for d in imported.unmeant] == ["model_engine"]
    assert written(imported)["trainer.learning_rate"] == 1e-5
    assert written(imported)[f"verl.{ROLLOUT}.name"] == "sglang"
    assert imported.needed == {"DIR": 3 - 1}


@pytest.mark.parametrize("version", VERSIONS)
def test_old_names_become_what_the_version_has(version: str) -> None:
    source = f"""{MAIN} {ACTOR}.ppo_micro_batch_size=16 {ACTOR}.use_dynamic_bsz=False custom_reward_function.path=/r.py
    """.replace("path=/r.py\n", f"path=/r.py {ACTOR}.router_replay.mode=R3 model_engine=megatron trainer.nnodes=2\n")
    imported = take(source, version)
    fields = written(imported)
    assert imported.unmeant == []
    assert fields["reward.function_path"] == "/r.py"
    assert fields["trainer.verl"] == version
    assert any("16 of 16 are 1 a GPU" in row.remark for row in imported.rows)
    new = f"verl.{ACTOR}.megatron.router_replay.mode"
    assert fields.get(new, fields.get(f"verl.{ACTOR}.router_replay.mode")) == "R3"


def test_a_text_that_hydra_reads_as_a_number_is_pointed_out() -> None:
    settings = overrides(f"{MAIN} algorithm.rollout_correction.rollout_is_threshold=0.5_5")
    assert "Hydra reads 0.5_5 as the number 0.55" in settings.rows[0].remark
    quoted = overrides(f"{MAIN} \"algorithm.rollout_correction.rollout_is_threshold='0.5_5'\"")
    assert [s.value for s in quoted.values.values()] == ["0.5_5"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("echo hi", "starts no trainer"),
        ("", "starts no trainer"),
        ("echo no GPU; exit 1\n" + MAIN, "line 1 ends it: no GPU"),
        ("if true; then\n" + MAIN, "run.sh line"),
        ("python3 -m verl.trainer.sft_trainer a=1", "starts no trainer"),
    ],
)
def test_what_starts_no_trainer_is_refused(source: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        take(source)


@pytest.mark.parametrize(
    "start",
    [
        "nohup python -u -m verl.trainer.main_ppo",
        "CUDA_VISIBLE_DEVICES=0 python3 verl/trainer/main_ppo.py",
        "uv run --frozen python3 -m recipe.dapo.main_dapo",
        "srun --overlap bash -c 'python3 -m verl.trainer.main_ppo trainer.nnodes=2'; true",
        "if nvidia-smi; then python3 -m verl.trainer.main_ppo",
        "mkdir -p logs && cd verl && python3 -m verl.trainer.main_ppo",
    ],
)
def test_a_trainer_is_found_however_it_is_started(start: str) -> None:
    source = f"{start} trainer.nnodes=2" if "bash -c" not in start else start.replace("srun --overlap ", "")
    source += "; fi" if start.startswith("if") else ""
    for succeed in (False, True):
        found = launches(read_script(source, "x", {}, succeed).commands)
        if found:
            break
    assert [w.text for w in found[0].overrides] == ["trainer.nnodes=2"]


TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
SCALAR = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | TEXT
NAME = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda n: n not in ("on", "off", "no", "yes", "null", "true", "false", "nan", "inf")
)
VALUE = st.recursive(SCALAR, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAME, v, max_size=3), max_leaves=6)


def without_interpolation(value: Any) -> bool:
    return "${" not in str(value)


@settings(max_examples=80)
@given(VALUE.filter(without_interpolation), st.booleans())
def test_any_value_comes_through_shell_and_hydra(value: Any, in_an_array: bool) -> None:
    node = "actor_rollout_ref.model.override_config"
    word = shlex.quote(f"+{node}.x={emit(value)}")
    source = f'A=(\n {word}\n)\n{MAIN} "${{A[@]}}"' if in_an_array else f"{MAIN} \\\n {word}"
    found = overrides(source)
    assert not any(row.is_fault for row in found.rows), found.rows
    expected = dict(flatten({f"{node}.x": value}))
    assert found.values.keys() == expected.keys()
    assert all(same(found.values[key].value, expected[key]) for key in expected)


@settings(max_examples=3, phases=(Phase.generate,))  # each is two compositions: not worth shrinking
@given(st.dictionaries(NAME, VALUE, min_size=1, max_size=3))
def test_any_value_comes_through_to_the_experiment(values: dict[str, Any]) -> None:
    words = [shlex.quote(f"+actor_rollout_ref.model.override_config.{k}={emit(v)}") for k, v in values.items()]
    imported = take(f"{MAIN} {' '.join(words)}")
    assert imported.unmeant == []


@pytest.mark.parametrize("engine", ["dp", "megatron"])
def test_the_tree_is_that_of_omegaconf(engine: str) -> None:
    """Of the newest table, with an interpolated node in the place of which a script puts a name."""
    keys = trainer_keys("0.9.1", engine)
    values = {"trainer.default_local_dir": "/x/${trainer.project_name}", "data.max_prompt_length": 7}
    tree: dict[str, Any] = {}
    for key, value in {**keys.defaults, **values}.items():
        *above, name = key.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[name] = value
    reference = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    assert isinstance(reference, dict)
    assert resolved(keys, values) == dict(flatten({str(k): v for k, v in reference.items()}))


@pytest.mark.parametrize("text", ["${no.key}", "${a", "${trainer.logger.x}", "${oc.decode:1}", "${trainer.device}"])
def test_an_interpolation_that_leads_nowhere_is_said(text: str) -> None:
    with pytest.raises(Unresolved):
        resolved(trainer_keys("0.9.1", "dp"), {"trainer.device": text})


def test_files_that_go_in_as_a_list_are_named_in_their_row() -> None:
    imported = import_script(b"python3 -m verl.trainer.main_ppo data.train_files=/d/a.parquet", "x", "x", "0.9.1", {})
    assert imported.rows[0].became == "data.train_files"


def test_an_option_that_hydra_does_not_have_is_a_fault() -> None:
    source = b"python3 -m verl.trainer.main_ppo --bogus-opt=1 --cfg job --info data.train_files=/d/a.parquet"
    imported = import_script(source, "x", "x", "0.9.1", {})
    assert [row.override for row in imported.faults] == ["--bogus-opt=1"]
    assert "refuse" in imported.faults[0].remark
