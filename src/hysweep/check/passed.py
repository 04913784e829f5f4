"""Keys that are passed to the trainer by name and have no field: their values, which verl finds wrong late or never."""

from __future__ import annotations

from collections.abc import Iterator

from hysweep.check.numbers import has_shape
from hysweep.check.transformer_fields import KNOWN
from hysweep.compile import flatten, keys_of, trainer_values
from hysweep.schema import Problem, Severity, Stage, Trial, nearest, suggest
from hysweep.schema.override import SAYABLE, refusal

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # vLLM: LoRAConfig.max_lora_rank
NODES = ("actor", "ref")  # of actor_rollout_ref, and the critic: who is built of a TransformerConfig
# The only values of a key, and when verl looks.
CLOSED: dict[str, tuple[tuple[str, ...], Stage]] = {
    # verl/trainer/ppo/v1/__init__.py: get_trainer_cls
    "trainer.v1.trainer_mode": (("sync", "colocate_async", "separate_async"), Stage.START),
    # verl/workers/config: the dataclasses' own checks
    "actor_rollout_ref.actor.megatron.dtype": (("bfloat16", "float16"), Stage.START),
    "actor_rollout_ref.ref.megatron.dtype": (("bfloat16", "float16"), Stage.START),
    "actor_rollout_ref.actor.megatron.router_replay.mode": (("disabled", "R2", "R3"), Stage.COMPOSE),
    "actor_rollout_ref.actor.optim.lr_scheduler_type": (
        ("constant", "cosine"),
        Stage.COMPOSE,
    ),
    # Megatron-core: AttnBackend, OptimizerParamScheduler
    "actor_rollout_ref.actor.megatron.override_transformer_config.attention_backend": (
        ("flash", "fused", "unfused", "local", "auto"),
        Stage.START,
    ),
    "actor_rollout_ref.actor.optim.lr_decay_style": (
        ("constant", "linear", "cosine", "inverse-square-root", "WSD"),
        Stage.START,
    ),
    "trainer.v1.sampler.max_off_policy_strategy": (("drop", "wait"), Stage.START),
    "critic.loss_agg_mode": (
        ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
        Stage.UPDATE,
    ),
}
# Sizes of the grid, which verl hands over beside the fields given by name: these win (megatron/transformer_impl.py)
SIZES = {
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "virtual_pipeline_model_parallel_size": "virtual_pipeline",
    "context_parallel_size": "context",
    "expert_model_parallel_size": "expert",
    "expert_tensor_parallel_size": "expert_tensor",
}
# verl/trainer/config/config.py: CheckpointConfig. A name that it does not know is saved by nobody.
CONTENTS = ("model", "optimizer", "extra", "hf_model")
WHOLE = ("model", "optimizer", "extra")  # what training goes on from as if it had never stopped


def overrides_can_be_said(t: Trial) -> Iterator[Problem]:
    """A node is told of names and plain values alone, in Hydra's grammar: what that cannot carry would fail there."""
    keys = keys_of(t)
    passed = {f"verl.{key}": (key, value) for key, value in flatten(t.verl) if key in keys}
    for field, tree in (
        ("reward.function_kwargs", t.reward.function_kwargs),
        ("model.transformer_config", t.model.transformer_config),
    ):
        passed |= {f"{field}.{name}": (f"x.{name}", value) for name, value in tree.items()}
    for field, (key, value) in passed.items():
        if why := refusal(key, value):
            yield Problem(field, value, why, SAYABLE)


def closed_sets_are_kept(t: Trial) -> Iterator[Problem]:
    """Keys with a few legal words, each looked up by verl when it comes to it."""
    for key, value in flatten(t.verl):
        if key in CLOSED and value is not None:
            known, stage = CLOSED[key]
            if value not in known:
                yield Problem(
                    f"verl.{key}", value, "is none of the values it can have", suggest(str(value), known), stage
                )


def async_trainer_is_whole(t: Trial) -> Iterator[Problem]:
    """What separate_async asserts before it starts (verl/trainer/ppo/v1/trainer_separate_async.py)."""
    passed, mode = dict(flatten(t.verl)), "trainer.v1.trainer_mode"
    if passed.get(mode) != "separate_async":
        return
    given = {**keys_of(t).defaults, **passed}
    rollout, sync = "actor_rollout_ref.rollout", "trainer.v1.separate_async.parameter_sync_step"
    for name in ("nnodes", "n_gpus_per_node"):
        if not given.get(f"{rollout}.{name}"):
            why, cure = "is how many the rollout has for itself, and separate_async needs some", "give 1 or more"
            yield Problem(f"verl.{rollout}.{name}", given.get(f"{rollout}.{name}"), why, cure, Stage.START)
    backend = f"{rollout}.checkpoint_engine.backend"
    if given.get(backend) == "naive":
        why = "hands no weights to GPUs apart, as separate_async has them"
        yield Problem(f"verl.{backend}", "naive", why, "give nccl", Stage.START)
    steps, mini, train = given.get(sync) or 1, t.trainer.mini_batch_size, t.trainer.train_batch_size
    if isinstance(steps, int) and train != steps * mini:
        why = f"is not parameter_sync_step * mini_batch_size = {steps} * {mini}, as separate_async has it"
        yield Problem("trainer.train_batch_size", train, why, f"give {steps * mini}", Stage.START)


def transformer_fields_exist(t: Trial) -> Iterator[Problem]:
    """Megatron-Bridge sets each as an attribute, and raises for one that is none: the GPUs are held by then."""
    if t.parallelism.engine != "megatron":
        return
    named = [(f"model.transformer_config.{name}", value) for name, value in t.model.transformer_config.items()]
    heads = [f"actor_rollout_ref.{who}.megatron.override_transformer_config." for who in NODES]
    heads.append("critic.megatron.override_transformer_config.")
    named += [(f"verl.{k}", v) for k, v in flatten(t.verl) if k.startswith(tuple(heads))]
    for key, value in named:
        name = key.partition("transformer_config.")[2].partition(".")[0]
        if name not in KNOWN:
            close = nearest(name, sorted(KNOWN))
            cure = f"did you mean {' or '.join(close)}?" if close else "leave it out"
            yield Problem(key, value, "is no field of Megatron's TransformerConfig", cure, Stage.START)
        elif name in SIZES and value != getattr(t.parallelism, SIZES[name]):
            why = "wins over the size that the ranks are laid out by, and the layers are built for other ranks"
            cure = f"leave it out, and set parallelism.{SIZES[name]}"
            yield Problem(key, value, why, cure, Stage.START)


def checkpoints_are_whole(t: Trial) -> Iterator[Problem]:
    """What a checkpoint holds: by names that verl knows, and all that training goes on from."""
    passed = dict(flatten(t.verl))
    for who in ("actor_rollout_ref.actor", "critic"):
        for name in ("save_contents", "load_contents"):
            key = f"{who}.checkpoint.{name}"
            contents = passed.get(key)
            if not isinstance(contents, list):
                continue
            unknown = [c for c in contents if c not in CONTENTS]
            for content in unknown:
                why = "is nothing that verl saves or loads: it is passed over in silence"
                yield Problem(f"verl.{key}", content, why, suggest(str(content), CONTENTS), Stage.NEVER)
            lacking = [c for c in WHOLE if c not in contents]
            if lacking and not unknown:
                why = f"leaves out {' and '.join(lacking)}: training does not go on from it as it was"
                cure = f"give [{','.join([*WHOLE, *(c for c in contents if c not in WHOLE)])}]"
                yield Problem(f"verl.{key}", contents, why, cure, Stage.NEVER, Severity.WARNING)


def passed_values_are_legal(t: Trial) -> Iterator[Problem]:
    """Keys that have no field of ours, whose wrong values verl finds late or never."""
    passed = dict(flatten(t.verl))
    rollout = "actor_rollout_ref.rollout"
    if passed.get(f"{rollout}.mode") == "sync":
        yield Problem(f"verl.{rollout}.mode", "sync", "was removed from verl", "leave it out", Stage.START)
    if passed.get(f"{rollout}.enable_chunked_prefill") is False and t.rollout.engine == "vllm":
        longest = t.rollout.max_model_len or t.trainer.max_prompt_length + t.trainer.max_response_length
        if t.rollout.max_num_batched_tokens < longest:
            yield Problem(
                f"verl.{rollout}.enable_chunked_prefill",
                False,
                f"needs rollout.max_num_batched_tokens of at least {longest}",
                f"give rollout.max_num_batched_tokens={longest}, or leave it out",
                Stage.START,
            )
    stages = passed.get(f"{rollout}.pipeline_model_parallel_size", 1)
    if stages != 1:
        why = "no engine of verl's has pipeline ranks"
        yield Problem(f"verl.{rollout}.pipeline_model_parallel_size", stages, why, "leave it out", Stage.START)
    engine = passed.get(f"{rollout}.name", t.rollout.engine)
    for key, value in passed.items():
        other = key.removeprefix(f"{rollout}.engine_kwargs.").partition(".")
        if key.startswith(f"{rollout}.engine_kwargs.") and other[2] and other[0] != engine:
            why = f"has no effect: the engine is {engine}"
            yield Problem(f"verl.{key}", value, why, "leave it out", Stage.NEVER, Severity.WARNING)
    for name, least in (
        ("prompt_length", t.trainer.max_prompt_length),
        ("response_length", t.trainer.max_response_length),
    ):
        given = passed.get(f"{rollout}.{name}")
        if isinstance(given, int) and given < least:
            why = f"is below trainer.max_{name} = {least}: what is longer is cut in silence"
            yield Problem(f"verl.{rollout}.{name}", given, why, "leave it out", Stage.NEVER)
    ref, actor = "actor_rollout_ref.ref.megatron", "actor_rollout_ref.actor.megatron"
    ours = trainer_values(t) if any(key.startswith(f"{ref}.") for key in passed) else {}
    for key in (k for k in passed if k.startswith(f"{ref}.") and k.endswith("parallel_size")):
        if passed[key] != ours.get(key.replace(ref, actor), 1):
            why = "is not the actor's: one grid of ranks serves both, and the first to start decides"
            yield Problem(f"verl.{key}", passed[key], why, "leave it out", Stage.NEVER)
    rank = passed.get("actor_rollout_ref.model.lora_rank", 0)
    if rank and rank not in LORA_RANKS:
        cure = f"try one of {', '.join(map(str, LORA_RANKS))}"
        yield Problem("verl.actor_rollout_ref.model.lora_rank", rank, "is no rank that vLLM serves", cure, Stage.START)
    if passed.get("actor_rollout_ref.model.mtp.enable") and has_shape(t) and not t.model.shape.num_nextn_predict_layers:
        why = f"{t.model.name} has no layers for it"
        yield Problem("verl.actor_rollout_ref.model.mtp.enable", True, why, "leave it out", Stage.START)
    sequence = "actor_rollout_ref.actor.megatron.sequence_parallel"
    if passed.get(sequence) is False and t.parallelism.tensor > 1 and t.model.shape.num_experts:
        why = "a mixture with tensor ranks needs it"
        yield Problem(f"verl.{sequence}", False, why, "leave it out", Stage.UPDATE)
    if "ray_kwargs.ray_init.num_cpus" in passed and passed["ray_kwargs.ray_init.num_cpus"] is not None:
        why = "Ray refuses it where a cluster is joined, as each trial does"
        cure = "set cluster.cpus_per_node instead"
        yield Problem(
            "verl.ray_kwargs.ray_init.num_cpus", passed["ray_kwargs.ray_init.num_cpus"], why, cure, Stage.START
        )
    if passed.get("reward.reward_manager") is not None:
        why = "replaces the whole node by a word, and the reward loop fails"
        yield Problem(
            "verl.reward.reward_manager", passed["reward.reward_manager"], why, "set reward.manager", Stage.ROLLOUT
        )
    if passed.get("reward.reward_model.enable"):
        if not passed.get("reward.reward_model.rollout.name"):
            why = "needs an engine for the reward model"
            cure = "give +verl.reward.reward_model.rollout.name=vllm"
            yield Problem("verl.reward.reward_model.enable", True, why, cure, Stage.COMPOSE)
        if t.algorithm.use_filter_groups and not passed.get("reward.reward_model.enable_resource_pool"):
            why = "scores only after groups were replaced"
            cure = "give it a pool of its own, or set algorithm.use_filter_groups=false"
            yield Problem("verl.reward.reward_model.enable", True, why, cure, Stage.START)
