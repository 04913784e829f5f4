"""What verl must be told for a trial. Fields that are copied say so in the schema; the rest is here."""

from __future__ import annotations

import os
import shlex
import typing
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from hysweep.compile.entries import MAIN_PPO, MODULE, SEARCHPATH, entry_keys, find_entry
from hysweep.compile.keys import TrainerKeys, trainer_keys
from hysweep.compile.pins import requirements
from hysweep.embedded import assets
from hysweep.rewards import encode, read_routes
from hysweep.schema import BadInput, Leaf, Problem, Trial, leaves, suggest
from hysweep.schema.groups import ESTIMATORS, FSDP, LOSSES, MEGATRON
from hysweep.schema.job import Job
from hysweep.schema.knob import ACTOR, MODEL, REF, ROLLOUT, Knob
from hysweep.schema.override import SAYABLE, emit, refusal

MODEL_ENGINE = {"fsdp2": "dp", "megatron": "megatron"}
EMBEDDED = "embedded:"
WORKERS_CPUS = 3  # of a GPU
ENGINE = "hysweep.embedded.engine"
PLATFORM = "hysweep.embedded.platform"  # which the engine asks for before verl has looked for plug-ins

# Estimators that verl's V1 trainer cannot feed: it computes no greedy baseline, hands over no parts of the reward and
# no sum of squared probabilities (verl/trainer/ppo/v1/trainer_base.py against verl/trainer/ppo/ray_trainer.py).
ONLY_V0 = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")

# Where the names of an algorithm of one's own may stand, and verl's names there.
OWN: dict[str, tuple[str, ...]] = {"algorithm.adv_estimator": ESTIMATORS, "algorithm.loss_mode": LOSSES}
# verl/examples' large mixtures, e.g. grpo_trainer/run_qwen3_235b_a22b_megatron.sh
CPU_OPTIMIZER = {
    f"{ACTOR}.optim.override_optimizer_config.{name}": value
    for name, value in {
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 1.0,
        "overlap_cpu_optimizer_d2h_h2d": True,
        "use_precision_aware_optimizer": True,
    }.items()
}
# How the keys end that compile makes of a field, where it does not copy it: the field.
DERIVED_FROM = {
    "model.path": "model.path", "train_files": "data.train_files", "val_files": "data.val_files",
    "logger": "tracking.loggers", "param_offload": "memory.param_offload", "strategy": "parallelism.engine",
    "optimizer_offload": "memory.optimizer_offload", "context_parallel_size": "parallelism.context",
    "ulysses_sequence_parallel_size": "parallelism.context", "grad_clip": "trainer.grad_clip",
    "clip_grad": "trainer.grad_clip", "dtype": "parallelism.dtype", "rollout.name": "rollout.engine",
    "max_model_len": "rollout.max_model_len", "custom_reward_function.path": "reward.function_path",
    "overlong_buffer_cfg.len": "reward.overlong_buffer_len", "overlong_buffer_cfg.enable": "reward.manager",
    "overlong_buffer_cfg.penalty_factor": "reward.overlong_penalty", "use_v1": "trainer.use_v1",
    **dict.fromkeys((key.partition(".optim.")[2] for key in CPU_OPTIMIZER), "memory.optimizer_on_cpu"),
    "gdpo_reward_keys": "algorithm.gdpo_reward_keys", "gdpo_reward_weights": "algorithm.gdpo_reward_weights",
}  # fmt: skip
PLUGIN = "hysweep.embedded.plugin"
ROUTER = "pkg://hysweep.rewards.router"

# What compile_trial sets for each trial, by its directory.
PLACED = ("trainer.experiment_name", "trainer.default_local_dir", "trainer.resume_mode")

# Of the actor's keys, those that the critic takes over, and what they are called there: how it is laid out, what of it
# waits where, and how it steps. One grid of ranks serves both.
MIRRORED = {
    f"{MEGATRON}.": "critic.megatron.",
    f"{FSDP}.": "critic.fsdp.",
    f"{ACTOR}.optim.override_optimizer_config.": "critic.optim.override_optimizer_config.",
    f"{ACTOR}.optim.clip_grad": "critic.optim.clip_grad",
    f"{ACTOR}.grad_clip": "critic.grad_clip",
    f"{ACTOR}.strategy": "critic.strategy",
    f"{ACTOR}.ulysses_sequence_parallel_size": "critic.ulysses_sequence_parallel_size",
    f"{MODEL}.enable_gradient_checkpointing": "critic.model.enable_gradient_checkpointing",
}


def compile_trial(trial: Trial, directory: Path, label: str = "trial") -> Job:
    """The job of a trial whose own directory is `directory` (absolute); `label` names its run in trackers.

    Raises BadInput for a key that the trial's verl does not have, for a trainer.verl that cannot be found, and for
    routes and servers of the reward that say nothing.
    """
    read_routes(trial.reward.routes)
    values = trainer_values(trial) | {
        "trainer.experiment_name": label,
        "trainer.default_local_dir": str(directory / "checkpoints"),
        "trainer.resume_mode": "auto",
    }
    keys = keys_of(trial)
    overrides, faults = [], []
    for key, value in values.items():
        if why := refusal(key, value):
            faults.append(Problem(f"verl.{key}", value, why, SAYABLE))
            continue
        try:
            overrides.append(keys.override(key, emit(value)))
        except KeyError:
            why = f"verl {trial.trainer.verl} has no such key"
            faults.append(Problem(f"verl.{key}", value, why, suggest(key, keys.defaults)))
    if faults:
        raise BadInput(*faults)
    uses_embedded = any(v.startswith(EMBEDDED) for v in _texts(trial))
    return Job(
        module=MODULE if trial.trainer.entry == MAIN_PPO else trial.trainer.entry,
        overrides=(*_entry_options(trial), *overrides),
        env=_environment(trial),
        requires=requirements(trial),
        prepare=(("-m", "hysweep.embedded.build"),) if uses_embedded else (),
        launcher=trial.cluster.launcher,
        nodes=nodes_of(trial),
        gpus_per_node=trial.cluster.gpus_per_node,
        ray_cpus=trial.cluster.cpus_per_node,
        least_cpus=least_cpus(trial),
        ray_gpus=trial.cluster.gpus_per_node,
        object_store_gib=trial.cluster.object_store_gib,
        timeout_min=trial.cluster.timeout_min,
        ray_boot_timeout_s=trial.cluster.ray_boot_timeout_s,
        # verl/trainer/ppo/ray_trainer.py asks should_save_ckpt_esi; V1 has no such code
        saves_before_end=not uses_v1(trial),
        services={n: _service(n, said) for n, said in trial.reward.servers.items()} if trial.reward.routes else {},
        site=trial.cluster,
        total_steps=trial.trainer.total_steps,
        checkpoints_kept=trial.trainer.checkpoints_kept,
    )


def nodes_of(trial: Trial) -> int:
    """Nodes of the whole job: those that train, and those that verl sets apart besides, each in a pool of its own.

    For a reward model, for the teacher of a distillation (verl/trainer/ppo/v1/trainer_base.py), and for the rollout of
    separate_async (trainer_separate_async.py).
    """
    passed, per_node = dict(flatten(trial.verl)), trial.cluster.gpus_per_node
    pools = {
        "reward.reward_model": passed.get("reward.reward_model.enable_resource_pool") is True,
        "distillation": passed.get("distillation.enabled") is True,
        ROLLOUT: passed.get("trainer.v1.trainer_mode") == "separate_async",
    }
    nodes = trial.cluster.nodes + (trial.reward.model_nodes if trial.reward.model_path is not None else 0)
    for pool in (name for name, is_there in pools.items() if is_there):
        count, gpus = passed.get(f"{pool}.nnodes"), passed.get(f"{pool}.n_gpus_per_node")
        together = max(1, per_node // gpus) if isinstance(gpus, int) and gpus > 0 else 1
        nodes += -(-count // together) if isinstance(count, int) and count > 0 else 0
    return nodes


def least_cpus(trial: Trial) -> int:
    """CPUs of each node below which Ray never places all of verl's actors, and verl waits for ever; 0: not known.

    verl takes 3 with each GPU (verl/single_controller/ray/base.py, ResourcePoolManager); TransferQueue, which V1 needs,
    one for its controller and one for each unit of its store.
    """
    if trial.trainer.entry != MAIN_PPO:
        return 0
    queue = 0
    if uses_v1(trial):
        values = {**keys_of(trial).defaults, **trainer_values(trial)}
        units = values.get("transfer_queue.backend.SimpleStorage.num_data_storage_units")
        is_simple = values.get("transfer_queue.backend.storage_backend") == "SimpleStorage"
        queue = 1 + (units if is_simple and isinstance(units, int) else 0)
    return WORKERS_CPUS * trial.cluster.gpus_per_node + -(-queue // nodes_of(trial))


def _service(name: str, said: Any) -> dict[str, Any]:
    """A server as it is started elsewhere: files that its command names here get their whole path."""
    command = said.get("command") if isinstance(said, dict) else None
    if not command:
        raise BadInput(Problem(f"reward.servers.{name}", said, "says no command", "give command: python FILE"))
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    return {**said, "command": [resolve(word) if os.path.isfile(word) else word for word in words]}


def keys_of(trial: Trial) -> TrainerKeys:
    engine, trainer = MODEL_ENGINE[trial.parallelism.engine], trial.trainer
    if trainer.entry == MAIN_PPO:
        return trainer_keys(trainer.verl, engine)
    return entry_keys(trainer.verl, engine, trainer.entry, trainer.recipes or ".")


def _entry_options(trial: Trial) -> tuple[str, ...]:
    """What a recipe's entry needs to find its configuration, and verl's, wherever it is started."""
    trainer = trial.trainer
    if trainer.entry == MAIN_PPO:
        return ()
    entry = find_entry(trainer.entry, trainer.recipes or ".", MODEL_ENGINE[trial.parallelism.engine])
    return f"--config-name={entry.config_name}", f"hydra.searchpath=[{SEARCHPATH}]"


def trainer_values(trial: Trial) -> dict[str, Any]:
    """Every trainer key that the trial sets, with its value: what does not depend on a directory."""
    every = list(leaves(trial))
    values: dict[str, Any] = {"model_engine": MODEL_ENGINE[trial.parallelism.engine], **_live(trial, every)}
    defaults = {key for leaf in every if leaf.value == leaf.default for key in leaf.knob.keys}
    for part in (_engine, _model, _algorithm, _rollout, _data, _reward, _tracking):
        values |= part(trial)
    if not trial.has_gpu:
        values |= _without_gpu(trial)
    known = keys_of(trial)
    values = {
        k: v
        for k, v in values.items()
        # null says nothing where null is the default, and a default says nothing to a version that has no such key
        if (v is not None or known.defaults.get(k) is not None) and not (k in defaults and k not in known)
    }
    return values | dict(flatten(trial.verl))


def _live(trial: Trial, every: Iterable[Leaf]) -> dict[str, Any]:
    """The keys that fields are copied to, of the fields that something reads."""
    return {key: leaf.value for leaf in every if not is_dead(trial, leaf) for key in leaf.knob.keys}


def is_dead(trial: Trial, leaf: Leaf) -> bool:
    """Whether a field has no effect beside what the others say (`Knob.when`).

    What an estimator or a loss of somebody's own reads is not known: it may be anything.
    """
    return any(
        _value(trial, path) not in alive and not (path in OWN and is_own(trial, path))
        for path, alive in (leaf.knob.when or {}).items()
    )


def is_own(trial: Trial, path: str) -> bool:
    """Whether the estimator or loss that `path` (of `OWN`) names is the plug-in's, not verl's."""
    return trial.algorithm.plugin is not None and _value(trial, path) not in OWN[path]


def ignored(trial: Trial) -> Iterator[Leaf]:
    """The fields that somebody set and that nothing will read."""
    return (leaf for leaf in leaves(trial) if leaf.value != leaf.default and is_dead(trial, leaf))


@cache
def _second_keys() -> frozenset[str]:
    groups = (hint for hint in typing.get_type_hints(Trial).values() if is_dataclass(hint))
    return frozenset(key for g in groups for f in fields(g) for key in f.metadata.get("knob", Knob()).keys[1:])


def is_shared(key: str) -> bool:
    """Whether a field of ours sets this key along with another: then `verl` may say it otherwise.

    Reference and critic follow the actor, a seed seeds everything: the field says it for all, `verl` for one.
    """
    return key in _second_keys() or key.startswith((f"{REF}.", "critic.")) or key == f"{ROLLOUT}.name"


def derived_from(key: str) -> str | None:
    """The field that compile derives a trainer's key from, where it is not copied; None: hysweep sets it by itself."""
    return next((field for end, field in DERIVED_FROM.items() if key.endswith(f".{end}")), None)


def flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested dict as dotted keys; an empty dict is a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def resolve(name: str) -> str:
    """A file as the absolute path that every worker can open; `embedded:<name>` as the path it is built at."""
    if "://" in name:
        return name  # of another file system
    if name.startswith(EMBEDDED):
        known = name.removeprefix(EMBEDDED)
        return str(assets.locate(known)) if known in assets.NAMES else name  # `check` says which there are
    return str(Path(os.path.expanduser(name)).absolute())  # of a home that there is not it stays as it is


def expand(names: list[str]) -> list[str]:
    """Files as `resolve` gives them; a pattern as the files here that match it, or itself where none does."""
    return [
        path
        for name in names
        for path in (sorted(glob(resolve(name))) if has_magic(name) else [resolve(name)]) or [resolve(name)]
    ]


def model_path(name: str) -> str:
    """Like `resolve`, but what is no path here is left as it is: the id of a model on a hub."""
    is_path = name.startswith((EMBEDDED, "~", ".", "/")) or os.path.exists(name)
    return resolve(name) if is_path else name


def _engine(trial: Trial) -> dict[str, Any]:
    if trial.parallelism.engine == "megatron":
        return _megatron(trial)
    memory, parallelism = trial.memory, trial.parallelism
    values = {
        f"{ACTOR}.strategy": "fsdp2",
        f"{FSDP}.param_offload": memory.param_offload,
        f"{REF}.fsdp_config.param_offload": memory.param_offload,
        f"{FSDP}.optimizer_offload": memory.optimizer_offload,
        f"{ACTOR}.grad_clip": trial.trainer.grad_clip,
    }
    if parallelism.context > 1:  # the reference follows the actor
        values[f"{ACTOR}.ulysses_sequence_parallel_size"] = parallelism.context
    if trial.has_gpu:
        values |= {f"{FSDP}.dtype": parallelism.dtype, f"{REF}.fsdp_config.dtype": parallelism.dtype}
    return values


def _megatron(trial: Trial) -> dict[str, Any]:
    memory, parallelism = trial.memory, trial.parallelism
    values: dict[str, Any] = {
        f"{MEGATRON}.use_mbridge": True,
        f"{MEGATRON}.vanilla_mbridge": False,
        f"{MEGATRON}.context_parallel_size": parallelism.context,
        f"{MEGATRON}.param_offload": memory.param_offload,
        f"{REF}.megatron.param_offload": memory.param_offload,
        f"{MEGATRON}.optimizer_offload": memory.optimizer_offload,
        f"{MEGATRON}.use_remove_padding": memory.use_remove_padding,
        f"{ACTOR}.optim.clip_grad": trial.trainer.grad_clip,
    }
    if trial.has_gpu:
        values |= {f"{MEGATRON}.dtype": parallelism.dtype, f"{REF}.megatron.dtype": parallelism.dtype}
    return values | (CPU_OPTIMIZER if memory.optimizer_on_cpu else {})


def _algorithm(trial: Trial) -> dict[str, Any]:
    algorithm = trial.algorithm
    values: dict[str, Any] = {"trainer.use_v1": uses_v1(trial)}
    if algorithm.adv_estimator.endswith("optimal_token_baseline"):
        values[f"{ACTOR}.calculate_sum_pi_squared"] = True
    if algorithm.adv_estimator == "gdpo":
        values["algorithm.gdpo_reward_keys"] = algorithm.gdpo_reward_keys
        if algorithm.gdpo_reward_weights:
            values["algorithm.gdpo_reward_weights"] = algorithm.gdpo_reward_weights
    if algorithm.adv_estimator == "gae":
        values |= _critic(trial)
    return values


def uses_v1(trial: Trial) -> bool:
    """Whether verl's V1 trainer runs the trial: not where it lacks what the estimator needs (see `ONLY_V0`)."""
    given = trial.trainer.use_v1
    if trial.trainer.entry != MAIN_PPO:  # recipes bring trainers of their own, made of the older one
        return bool(given)
    return given if given is not None else trial.algorithm.adv_estimator not in ONLY_V0


def _critic(trial: Trial) -> dict[str, Any]:
    """The critic is a second model of the actor's shape, laid out as the actor is."""
    shared = trial.model
    values: dict[str, Any] = {
        "critic.enable": True,
        "critic.model.path": model_path(trial.algorithm.critic_path or shared.path),
        "critic.model.tokenizer_path": model_path(shared.path),
        "critic.model.trust_remote_code": shared.trust_remote_code,
        "critic.model.external_lib": shared.external_lib,
        "critic.model.use_remove_padding": trial.memory.use_remove_padding,
    }
    if trial.trainer.use_dynamic_batch:
        # V1 gives the critic this budget and not ppo_max_token_len_per_gpu (verl/trainer/ppo/v1/trainer_base.py)
        budget = trial.trainer.max_token_len_per_gpu
        values |= {
            "critic.ppo_max_token_len_per_gpu": budget,
            "critic.ppo_infer_max_token_len_per_gpu": budget,
        }
    else:
        values["critic.ppo_micro_batch_size_per_gpu"] = trial.trainer.micro_batch_size_per_gpu
    of_actor = _live(trial, leaves(trial)) | _engine(trial) | _model(trial)
    return values | {
        key.replace(own, critics, 1): value
        for key, value in of_actor.items()
        for own, critics in MIRRORED.items()
        if key.startswith(own)
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
    # verl skips the correction in silence where the rollout's probabilities are not there
    values: dict[str, Any] = {f"{ROLLOUT}.name": trial.rollout.engine, f"{ROLLOUT}.calculate_log_probs": True}
    if trial.rollout.engine == "vllm":
        values[f"{ROLLOUT}.max_model_len"] = trial.rollout.max_model_len or longest
    if trial.trainer.use_dynamic_batch:  # the log-prob passes must agree with the actor: verl asserts it at start
        values[f"{ROLLOUT}.log_prob_use_dynamic_bsz"] = True
    return values


def _data(trial: Trial) -> dict[str, Any]:
    values: dict[str, Any] = {
        "data.train_files": expand(trial.data.train_files),
        "data.val_files": expand(trial.data.val_files),
    }
    if trial.data.reader == "arrow":
        values |= {"data.custom_cls.path": "pkg://hysweep.data.arrow_dataset", "data.custom_cls.name": "ArrowDataset"}
    return values


def _reward(trial: Trial) -> dict[str, Any]:
    reward = trial.reward
    values: dict[str, Any] = {}
    custom = "reward.custom_reward_function"
    if reward.routes or reward.function_path is not None:
        # the router stands before a function too: what it raises, or no number, ends the trial with its row
        values |= {f"{custom}.path": ROUTER, f"{custom}.name": "compute_score"}
    if reward.routes:
        values |= {
            f"{custom}.reward_kwargs.routes": _routes(reward.routes),
            f"{custom}.reward_kwargs.timeout_s": reward.timeout_s,
            f"{custom}.reward_kwargs.retries": reward.retries,
            f"{custom}.reward_kwargs.batch": reward.batch,
            f"{custom}.reward_kwargs.concurrent": reward.concurrent,
        }
    elif reward.function_path is not None:
        path = reward.function_path
        function = f"{path if path.startswith('pkg://') else resolve(path)}:{reward.function_name}"
        values[f"{custom}.reward_kwargs.function"] = function
        values |= {f"{custom}.reward_kwargs.{name}": value for name, value in reward.function_kwargs.items()}
    if reward.model_path is not None:
        values |= {"reward.reward_model.enable": True, "reward.reward_model.model_path": model_path(reward.model_path)}
        if reward.model_nodes:
            values |= {
                "reward.reward_model.enable_resource_pool": True,
                "reward.reward_model.nnodes": reward.model_nodes,
                "reward.reward_model.n_gpus_per_node": trial.cluster.gpus_per_node,
            }
    if reward.manager == "dapo" and (length := overlong_buffer_len(trial)):
        buffer = "reward.reward_kwargs.overlong_buffer_cfg"
        values |= {
            f"{buffer}.enable": True,
            f"{buffer}.len": length,
            f"{buffer}.penalty_factor": reward.overlong_penalty,
            f"{buffer}.log": reward.overlong_log,
            "reward.reward_kwargs.max_resp_len": trial.trainer.max_response_length,
        }
    return values


def _routes(routes: dict[str, Any]) -> str:
    try:
        return encode(routes, resolve)
    except BadInput:  # a rule says so, and `compile_trial`; other rules look at the other keys
        return str(routes)


def overlong_buffer_len(trial: Trial) -> int:
    """In tokens; unset it is the DAPO paper's share of the response, 4096 of 20480."""
    given = trial.reward.overlong_buffer_len
    return given if given is not None else trial.trainer.max_response_length // 5


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
    roots = [str(root)] if (root := keys_of(trial).root) else []
    if trial.trainer.entry != MAIN_PPO:
        roots.append(resolve(trial.trainer.recipes or "."))
    own = dict(trial.cluster.env)
    if roots:
        env["PYTHONPATH"] = os.pathsep.join([*roots, *filter(None, [own.pop("PYTHONPATH", "")])])
    if not trial.has_gpu:
        env |= {
            # a plugin that cannot load is passed over in silence, unless its platform is asked for by name
            "VERL_PLATFORM": "cpu",
            # two threads made the tiny model six times slower than one
            "OMP_NUM_THREADS": "1",
            "TQ_NUM_THREADS": "1",
            "TQ_CLIENT_ZMQ_IO_THREADS": "1",
        }
    # verl's main_ppo imports the model's module before it looks up a rollout; a recipe's trainer does not
    is_early = trial.model.external_lib or trial.trainer.entry != MAIN_PPO
    modules = [PLATFORM, ENGINE] if is_early and not trial.has_gpu else []
    if trial.algorithm.plugin is not None:
        env["HYSWEEP_PLUGIN"] = resolve(trial.algorithm.plugin)
        modules.append(PLUGIN)
    if modules:
        env["VERL_USE_EXTERNAL_MODULES"] = ",".join(modules)
    if trial.model.path.startswith(EMBEDDED):
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return env | own


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
