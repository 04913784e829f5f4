"""Faults that only somebody else's command line has: hysweep's own never says such a thing.

Values that no field can have, which `import` passes on by name, and keys that `compile` always sets itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hysweep.compile import TrainerKeys
from hysweep.compose.composer import all_leaves, out_of_bounds, typed_fields
from hysweep.schema import Leaf, Problem, Stage, Trial, suggest
from hysweep.schema.groups import KL_ESTIMATORS, MEGATRON
from hysweep.schema.knob import ACTOR, REF, ROLLOUT
from hysweep.scripts.fields import BUFFER, Source, Unfit, fitted, is_optional
from hysweep.scripts.importer import Imported
from hysweep.scripts.scope import MARK

# When verl comes to a field's key, by its group, and by its name where that differs (docs of the rules: hysweep.check).
LATE = {
    "algorithm": Stage.UPDATE,
    "algorithm.loss_agg_mode": Stage.COMPOSE,
    "algorithm.kl_controller": Stage.START,
    "rollout.correction_is": Stage.UPDATE,
    "rollout.temperature": Stage.ROLLOUT,
    "trainer.learning_rate": Stage.COMPOSE,
}
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
# What verl and vLLM take beside what our fields offer.
ALSO = {
    "algorithm.kl_loss_type": tuple(f"{name}+" for name in KL_ESTIMATORS),  # a gradient straight through
    "algorithm.kl_penalty": tuple(f"{name}+" for name in KL_ESTIMATORS),
    "rollout.dtype": ("auto", "half", "float"),
    "reward.manager": ("rate_limited", "remote"),
}
OFTEN = ("trainer.validate_every", "trainer.save_every")  # 0 and all below: never
ENGINES = ("vllm", "sglang", "trtllm")  # verl/workers/rollout/replica.py: RolloutReplicaRegistry
NEEDED = ("trainer.logger", "data.train_files", "data.val_files")
RESUMES = ("auto", "disable", "resume_path")


def values_that_are_none(source: Source, keys: TrainerKeys) -> list[Problem]:
    """Values of fields' keys that verl itself cannot take, with those that it can."""
    types, _ = typed_fields()
    return [p for leaf in all_leaves() for key in leaf.knob.keys if (p := _misfit(leaf, key, source, keys, types))]


def _misfit(leaf: Leaf, key: str, source: Source, keys: TrainerKeys, types: Any) -> Problem | None:
    value = source.tree.get(key)
    if key in source.explicit and value is None:
        return _missing(leaf, key, keys, types[leaf.path]) if leaf.path.partition(".")[2] else None
    if key not in source.explicit or not leaf.path.partition(".")[2] or _is_unsaid(value):
        return None
    stage = LATE.get(leaf.path, LATE.get(leaf.path.partition(".")[0], Stage.START))
    expected = types[leaf.path]
    if key == f"{ROLLOUT}.name" or (leaf.path == "reward.manager" and _is_imported(source)):
        return None
    try:
        held = fitted(value, expected, is_optional(leaf.path))
    except Unfit:
        if expected is bool and value in (0, 1):
            return None
        needed = KINDS.get(expected, "a list of texts")
        return Problem(key, value, f"is not {needed}", f"give {needed}, as {_usual(leaf, key, keys)}", stage)
    known = {"algorithm.adv_estimator": keys.adv_estimators, "algorithm.loss_mode": keys.policy_losses}.get(leaf.path)
    if known is not None:
        if held in known:
            return None
        why = f"verl {keys.version} has none of this name"
        return Problem(key, value, why, _nearest(str(value), known), stage)
    if held in ALSO.get(leaf.path, ()) or (leaf.path in OFTEN and held < 0):
        return None
    bad = out_of_bounds([Leaf(leaf.path, held, leaf.default, leaf.knob)])
    if not bad or (leaf.path == "rollout.gpu_memory_utilization" and 0 < held <= 1):
        return None
    choices = [str(c) for c in leaf.knob.choices if c is not None]
    cure = _nearest(str(value), [*choices, *ALSO.get(leaf.path, ())]) if choices else ""
    return Problem(key, value, bad[0].why, cure or bad[0].cure, stage)


def _missing(leaf: Leaf, key: str, keys: TrainerKeys, expected: Any) -> Problem | None:
    """A null where verl reckons with the value. A null is false, and an engine's own default where it is rollout's."""
    usual = keys.defaults.get(key)
    if usual is None or expected is bool or is_optional(leaf.path) or leaf.path.startswith("rollout."):
        return None
    return Problem(key, "null", "has no value, and verl reckons with it", f"give one, as {usual}", Stage.START)


def _nearest(word: str, known: Any) -> str:
    """The nearest of them, and where none is near all of them."""
    found = suggest(word, known)
    return found if found.startswith("did you mean") else f"choose one of {', '.join(sorted(known))}"


def _is_unsaid(value: Any) -> bool:
    """Whether a variable of the environment stands there, which may hold anything."""
    return isinstance(value, str) and MARK.search(value) is not None


def _is_imported(source: Source) -> bool:
    return source.tree.get("reward.reward_manager.source") == "importlib"


def _usual(leaf: Leaf, key: str, keys: TrainerKeys) -> object:
    default = keys.defaults.get(key)
    usual = leaf.default if default is None or isinstance(default, str) else default
    return str(usual).lower() if isinstance(usual, bool) else usual


def faults_of_command(imported: Imported, trial: Trial) -> Iterator[Problem]:
    """Of keys that compile sets whatever the fields say, and of those that a study sets for each trial."""
    tree = imported.source.tree
    # verl/trainer/ppo/v1/trainer_base.py: the correction needs them, and is left out in silence without
    correction = "algorithm.rollout_correction"
    if (tree.get(f"{correction}.rollout_is") or tree.get(f"{correction}.rollout_rs")) and not tree.get(
        f"{ROLLOUT}.calculate_log_probs", True
    ):
        why = "leaves nothing to correct by: the correction is left out in silence"
        yield Problem(f"{ROLLOUT}.calculate_log_probs", False, why, "give true", Stage.NEVER)
    # verl/workers/engine_workers.py: an assert when the actor is built
    dynamic, passes = tree.get(f"{ACTOR}.use_dynamic_bsz"), f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    if tree.get(passes) != dynamic and tree.get(passes) is not None:
        why = f"is not {ACTOR}.use_dynamic_bsz = {dynamic}, as verl asserts"
        yield Problem(passes, tree[passes], why, f"give {str(dynamic).lower()}, or leave it out", Stage.START)
    if imported.source.engine == "megatron" and tree.get(f"{MEGATRON}.use_mbridge") is False:
        why = "was the way without a bridge, which verl has no more"
        yield Problem(f"{MEGATRON}.use_mbridge", False, why, "give true, or leave it out", Stage.START)
    for key in NEEDED:
        if key in imported.source.explicit and tree.get(key) is None:
            yield Problem(key, "null", "has no value, and verl goes through it", "give one, or several", Stage.START)
    engine = tree.get(f"{ROLLOUT}.name")
    if engine not in (None, "???", *ENGINES) and not _is_unsaid(engine):
        yield Problem(f"{ROLLOUT}.name", engine, "is no engine of verl's", _nearest(str(engine), ENGINES), Stage.START)
    yield from _micro_batches(imported)
    yield from _overlong_buffer(imported)
    yield from _resumes(imported)
    yield from _recomputes(imported, trial)


def _micro_batches(imported: Imported) -> Iterator[Problem]:
    """Without dynamic batching each of them must be said, per GPU or of all (verl/utils/config.py: validate_config)."""
    tree = imported.source.tree
    if tree.get(f"{ACTOR}.use_dynamic_bsz") is not False:
        return
    names = [f"{ACTOR}.ppo_micro_batch_size", f"{ROLLOUT}.log_prob_micro_batch_size"]
    if tree.get(f"{ACTOR}.use_kl_loss") or tree.get("algorithm.use_kl_in_reward"):
        names.append(f"{REF}.log_prob_micro_batch_size")
    said = [row.override.partition("=")[0].lstrip("+") for row in imported.rows]
    for name in names:
        per_gpu = f"{name}_per_gpu"
        if name not in said and tree.get(per_gpu) is None:
            why = f"is not said, and without {ACTOR}.use_dynamic_bsz=True verl asks for it"
            yield Problem(per_gpu, "null", why, f"give {per_gpu}=1, or dynamic batching", Stage.COMPOSE)


def _overlong_buffer(imported: Imported) -> Iterator[Problem]:
    """What DAPO's manager asserts, or reads, of a buffer that is on (verl, reward_manager/dapo.py)."""
    tree = imported.source.tree
    if tree.get("reward.reward_manager.name") != "dapo" or not tree.get(f"{BUFFER}.enable"):
        return
    needed = (f"{BUFFER}.len", f"{BUFFER}.penalty_factor", "reward.reward_kwargs.max_resp_len")
    for key in (k for k in needed if tree.get(k) is None):
        usual = {f"{BUFFER}.penalty_factor": 1.0}.get(key, tree.get("data.max_response_length"))
        usual = usual // 5 if key == f"{BUFFER}.len" and isinstance(usual, int) else usual
        yield Problem(key, "null", "is needed where the overlong buffer is on", f"give +{key}={usual}", Stage.ROLLOUT)


def _resumes(imported: Imported) -> Iterator[Problem]:
    """verl only logs a mode that it does not know, and fails once the models are loaded (v1/trainer_base.py)."""
    mode = _said(imported, "trainer.resume_mode")
    path = imported.source.tree.get("trainer.resume_from_path")
    if mode is not None and not mode.startswith("$") and mode not in RESUMES:
        why = "is no way to resume: it fails once the models are loaded"
        yield Problem("trainer.resume_mode", mode, why, _nearest(mode, RESUMES), Stage.START)
    if mode == "resume_path" and not (isinstance(path, str) and (_is_unsaid(path) or "global_step_" in path)):
        why = "is no path of a checkpoint, whose name holds global_step_"
        yield Problem("trainer.resume_from_path", path, why, "give DIR/global_step_N", Stage.START)


def _said(imported: Imported, key: str) -> str | None:
    """The last value of a key that a study sets itself, for which none is kept but what the report shows."""
    said = [row.override.partition("=")[2] for row in imported.rows if re.match(rf"\+*{re.escape(key)}=", row.override)]
    return said[-1].strip().strip("'\"") if said else None


def _recomputes(imported: Imported, trial: Trial) -> Iterator[Problem]:
    """As `recomputation_agrees`, of fields that `import` leaves out where nothing reads them."""
    node, tree = f"{MEGATRON}.override_transformer_config", imported.source.tree
    number = f"{node}.recompute_num_layers"
    if trial.memory.recompute_granularity == "selective" and tree.get(number) is not None:
        why = "is refused beside selective recomputation, which takes modules"
        yield Problem(number, tree[number], why, "leave it out, or recompute_granularity=full", Stage.START)
