"""What verl must be told for a trial. Fields that are copied say so in the schema; the rest is here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hysweep.compile.job import Job
from hysweep.compile.keys import TrainerKeys, trainer_keys
from hysweep.embedded import assets
from hysweep.schema import Leaf, Trial, leaves
from hysweep.schema.groups import FSDP, MEGATRON
from hysweep.schema.knob import ACTOR, MODEL, REF, ROLLOUT
from hysweep.schema.override import emit

MODEL_ENGINE = {"fsdp2": "dp", "megatron": "megatron"}
EMBEDDED = "embedded:"
ENGINE = "hysweep.embedded.engine"


def compile_trial(trial: Trial, directory: Path, label: str = "trial") -> Job:
    """The job of a trial whose own directory is `directory` (absolute); `label` names its run in trackers.

    Raises KeyError for a key that the trial's verl does not have: `check` finds those first.
    """
    values = trainer_values(trial) | {
        "trainer.experiment_name": label,
        "trainer.default_local_dir": str(directory / "checkpoints"),
        "trainer.resume_mode": "auto",
    }
    keys = keys_of(trial)
    uses_embedded = any(v.startswith(EMBEDDED) for v in _texts(trial))
    return Job(
        module="verl.trainer.main_ppo",
        overrides=tuple(keys.override(key, emit(value)) for key, value in values.items()),
        env=_environment(trial),
        prepare=(("-m", "hysweep.embedded.build"),) if uses_embedded else (),
        launcher=trial.cluster.launcher,
        nodes=trial.cluster.nodes,
        gpus_per_node=trial.cluster.gpus_per_node,
        ray_cpus=trial.cluster.cpus_per_node,
        ray_gpus=trial.cluster.gpus_per_node,
        object_store_gib=trial.cluster.object_store_gib,
        timeout_min=trial.cluster.timeout_min,
        ray_boot_timeout_s=trial.cluster.ray_boot_timeout_s,
        total_steps=trial.trainer.total_steps,
    )


def keys_of(trial: Trial) -> TrainerKeys:
    return trainer_keys(trial.trainer.verl, MODEL_ENGINE[trial.parallelism.engine])


def trainer_values(trial: Trial) -> dict[str, Any]:
    """Every trainer key that the trial sets, with its value: what does not depend on a directory."""
    dead = {leaf.path for leaf in leaves(trial) if is_dead(trial, leaf)}
    values: dict[str, Any] = {"model_engine": MODEL_ENGINE[trial.parallelism.engine]}
    for leaf in leaves(trial):
        if leaf.path not in dead:
            values |= dict.fromkeys(leaf.knob.keys, leaf.value)
    for part in (_engine, _model, _rollout, _data, _reward, _tracking):
        values |= part(trial)
    if not trial.has_gpu:
        values |= _without_gpu(trial)
    values |= dict(flatten(trial.trainer.extra))
    return {k: v for k, v in values.items() if v is not None or keys_of(trial).defaults.get(k) is not None}


def is_dead(trial: Trial, leaf: Leaf) -> bool:
    """Whether a field has no effect beside what the others say (`Knob.when`)."""
    return any(_value(trial, path) not in alive for path, alive in (leaf.knob.when or {}).items())


def ignored(trial: Trial) -> Iterator[Leaf]:
    """The fields that somebody set and that nothing will read."""
    return (leaf for leaf in leaves(trial) if leaf.value != leaf.default and is_dead(trial, leaf))


def flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested dict as dotted keys; an empty dict is a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def resolve(name: str) -> str:
    """A file as the absolute path that every worker can open; `embedded:<name>` as the path it is built at."""
    if name.startswith(EMBEDDED):
        known = name.removeprefix(EMBEDDED)
        return str(assets.locate(known)) if known in assets.NAMES else name  # `check` says which there are
    return str(Path(name).expanduser().absolute())


def model_path(name: str) -> str:
    """Like `resolve`, but what is no path here is left as it is: the id of a model on a hub."""
    is_path = name.startswith((EMBEDDED, "~", ".", "/")) or Path(name).exists()
    return resolve(name) if is_path else name


def _engine(trial: Trial) -> dict[str, Any]:
    memory, clip = trial.memory, trial.trainer.grad_clip
    if trial.parallelism.engine == "megatron":
        return {
            f"{MEGATRON}.use_mbridge": True,
            f"{MEGATRON}.vanilla_mbridge": False,
            f"{MEGATRON}.param_offload": memory.param_offload,
            f"{REF}.megatron.param_offload": memory.param_offload,
            f"{MEGATRON}.optimizer_offload": memory.optimizer_offload,
            f"{MEGATRON}.use_remove_padding": memory.use_remove_padding,
            f"{ACTOR}.optim.clip_grad": clip,
        }
    return {
        f"{ACTOR}.strategy": "fsdp2",
        f"{FSDP}.param_offload": memory.param_offload,
        f"{REF}.fsdp_config.param_offload": memory.param_offload,
        f"{FSDP}.optimizer_offload": memory.optimizer_offload,
        f"{ACTOR}.grad_clip": clip,
    }


def _model(trial: Trial) -> dict[str, Any]:
    values = {f"{MODEL}.path": model_path(trial.model.path)}
    if trial.parallelism.engine == "megatron":
        values |= {
            f"{MEGATRON}.override_transformer_config.{key}": value
            for key, value in trial.model.transformer_config.items()
        }
    return values


def _rollout(trial: Trial) -> dict[str, Any]:
    longest = trial.trainer.max_prompt_length + trial.trainer.max_response_length
    values: dict[str, Any] = {f"{ROLLOUT}.name": trial.rollout.engine, f"{ROLLOUT}.calculate_log_probs": True}
    if trial.rollout.engine == "vllm":
        values[f"{ROLLOUT}.max_model_len"] = trial.rollout.max_model_len or longest
    if trial.trainer.use_dynamic_batch:  # the log-prob passes must agree with the actor: verl asserts it at start
        values[f"{ROLLOUT}.log_prob_use_dynamic_bsz"] = True
    return values


def _data(trial: Trial) -> dict[str, Any]:
    return {
        "data.train_files": [resolve(f) for f in trial.data.train_files],
        "data.val_files": [resolve(f) for f in trial.data.val_files],
    }


def _reward(trial: Trial) -> dict[str, Any]:
    reward = trial.reward
    values: dict[str, Any] = {}
    if reward.function_path is not None:
        values["reward.custom_reward_function.path"] = resolve(reward.function_path)
    if reward.manager == "dapo" and reward.overlong_buffer_len:
        buffer = "reward.reward_kwargs.overlong_buffer_cfg"
        values |= {
            f"{buffer}.enable": True,
            f"{buffer}.len": reward.overlong_buffer_len,
            f"{buffer}.penalty_factor": reward.overlong_penalty,
            f"{buffer}.log": True,
            "reward.reward_kwargs.max_resp_len": trial.trainer.max_response_length,
        }
    return values


def _tracking(trial: Trial) -> dict[str, Any]:
    # the file logger is how results reach the study: it cannot be left out
    return {"trainer.logger": list(dict.fromkeys([*trial.tracking.loggers, "file"]))}


def _without_gpu(trial: Trial) -> dict[str, Any]:
    """What real verl needs to run on the CPU, whatever is trained. See hysweep.embedded."""
    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    values: dict[str, Any] = {
        "trainer.device": "cpu",
        f"{MODEL}.override_config.attn_implementation": "sdpa",
        # one module can be named; a model's own comes first, and then ours comes by the environment
        f"{MODEL}.external_lib": trial.model.external_lib or ENGINE,
        f"{ACTOR}.use_torch_compile": False,
        f"{FSDP}.use_torch_compile": False,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "trainer.v1.sampler.custom_sampler.path": "pkg://hysweep.embedded.sampler",
        "trainer.v1.sampler.custom_sampler.name": "FastReplayBuffer",
    }
    for config in (FSDP, f"{REF}.fsdp_config"):
        values |= {f"{config}.mixed_precision.{key}": dtype for key, dtype in fp32.items()}
    return values


def _environment(trial: Trial) -> dict[str, str]:
    env = {"RAY_USAGE_STATS_ENABLED": "0", "TOKENIZERS_PARALLELISM": "false"}
    if not trial.has_gpu:
        env |= {
            # a plugin that cannot load is passed over in silence, unless its platform is asked for by name
            "VERL_PLATFORM": "cpu",
            # two threads made the tiny model six times slower than one
            "OMP_NUM_THREADS": "1",
            "TQ_NUM_THREADS": "1",
            "TQ_CLIENT_ZMQ_IO_THREADS": "1",
        }
        if trial.model.external_lib:
            env["VERL_USE_EXTERNAL_MODULES"] = ENGINE
    if trial.model.path.startswith(EMBEDDED):
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return env | trial.cluster.env


def _texts(trial: Trial) -> Iterator[str]:
    yield trial.model.path
    yield from trial.data.train_files
    yield from trial.data.val_files
    if trial.reward.function_path:
        yield trial.reward.function_path


def _value(trial: Trial, path: str) -> Any:
    node: Any = trial
    for name in path.split("."):
        node = getattr(node, name)
    return node
