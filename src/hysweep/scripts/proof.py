"""The round trip: what an experiment makes of verl's configuration against what the script made of it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hysweep.compile import ONLY_V0, TrainerKeys, trainer_values
from hysweep.compile.verl import is_dead
from hysweep.compose import Composer
from hysweep.schema import Trial, leaves
from hysweep.schema.groups import FSDP, MEGATRON
from hysweep.schema.knob import ACTOR, REF, ROLLOUT
from hysweep.scripts.fields import BUFFER, Source, get, put
from hysweep.scripts.scope import END, ENV
from hysweep.scripts.settings import OWN
from hysweep.scripts.tree import literal, resolved, same

GUARDED = "hysweep's router calls the function, so that what it raises ends the trial"
# What compile sets whatever the fields say, and why: see hysweep/compile/verl.py.
ALWAYS = {
    **OWN,
    "trainer.resume_from_path": "hysweep resumes each trial from its own checkpoints",
    f"{ACTOR}.strategy": "hysweep trains with FSDP2",
    f"{REF}.strategy": "hysweep trains with FSDP2",
    "critic.strategy": "hysweep trains with FSDP2",
    f"{ROLLOUT}.calculate_log_probs": "hysweep always asks for the rollout's probabilities",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": "must agree with the actor",
    f"{REF}.log_prob_use_dynamic_bsz": "must agree with the actor",
    f"{MEGATRON}.use_mbridge": "hysweep loads models through Megatron-Bridge",
    f"{MEGATRON}.vanilla_mbridge": "hysweep loads models through Megatron-Bridge",
    "reward.custom_reward_function.path": GUARDED,
    "reward.custom_reward_function.name": GUARDED,
    "reward.custom_reward_function.reward_kwargs.function": GUARDED,
}
# What names the same files in other words.
SAME_FILES = ("a path is made absolute", "files are a list of absolute paths")
DEAD = "nothing reads it: "
MISSING = "???"  # OmegaConf's word for a value that somebody must give
# Both say how many ranks share a sequence under FSDP; hysweep says it by the first, for the reference too.
ULYSSES = (f"{ACTOR}.ulysses_sequence_parallel_size", f"{FSDP}.ulysses_sequence_parallel_size",
           f"{REF}.ulysses_sequence_parallel_size", f"{REF}.fsdp_config.ulysses_sequence_parallel_size")  # fmt: skip
PATHS = ("model.path", "algorithm.critic_path", "data.train_files", "data.val_files", "reward.function_path")
SEEDS = ("data.seed", f"{ACTOR}.data_loader_seed", f"{ROLLOUT}.seed")


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that comes out otherwise than in the script; `is_meant` where hysweep does so on purpose."""

    key: str
    before: Any
    after: Any
    why: str
    is_meant: bool


def compose_written(text: str) -> Trial:
    """The trial of an experiment file. Raises BadInput where it does not compose."""
    return _composed(text, frozenset(os.environ.items()))


@lru_cache(4)  # a script is proven, and then checked
def _composed(text: str, environment: frozenset[tuple[str, str]]) -> Trial:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "experiment" / "imported.yaml"
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
        return Composer([Path(directory)]).compose(["experiment=imported"]).trial


def rooted(trial: Trial) -> Trial:
    """A trial whose paths begin with the mark of a variable, so that they are absolute ones to compile."""

    def root(value: Any) -> Any:
        return [root(v) for v in value] if isinstance(value, list) else f"/{value}" if _is_marked(value) else value

    return put(trial, {path: root(get(trial, path)) for path in PATHS})


def _is_marked(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(ENV)


def compare(source: Source, trial: Trial, keys: TrainerKeys) -> Iterator[Difference]:
    """Every key that differs, with the reason where it is known."""
    values = trainer_values(trial)
    after = resolved(keys, {key: literal(value) for key, value in values.items()})
    for key in sorted(source.tree.keys() | after.keys()):
        one, other = source.tree.get(key), after.get(key)
        is_gone = key in source.explicit and key not in after  # null, where another null is not the same as nothing
        is_text = isinstance(one, int | float) and not isinstance(one, bool) and str(one) == other
        if not is_gone and (is_text or same(canonical(one), canonical(other))):
            continue
        if key == "model_engine" and one == source.engine and source.engine != other:
            yield Difference(key, one, other, f"hysweep writes no jobs for {one}", False)
            continue
        why = _meant(key, one, other, source, trial, values)
        if not why and key not in values and key not in source.explicit and "${" in str(_default(key, keys)):
            why = "follows another key"
        yield Difference(key, one, other, why, bool(why))


def _default(key: str, keys: TrainerKeys) -> Any:
    """Of a key, or of the nearest node above it that verl has a default for."""
    while key not in keys.defaults and "." in key:
        key = key.rpartition(".")[0]
    return keys.defaults.get(key)


def _meant(key: str, before: Any, after: Any, source: Source, trial: Trial, values: Mapping[str, Any]) -> str:
    """Why hysweep differs on purpose; empty where it does not."""
    is_said = key in source.explicit
    if key in ALWAYS:
        return ALWAYS[key]
    if key == "trainer.logger" and set(_list(after)) == {*_list(before), "file"}:
        return "the file logger is how results reach a study"
    if key == f"{ROLLOUT}.max_model_len" and before is None:
        return "the longest prompt and the longest answer"
    if key in ULYSSES and trial.parallelism.context in (before, after):
        return "of the two keys for it the other is taken"
    if key in SEEDS and not is_said:
        return "hysweep seeds every run"
    if key == "trainer.use_v1" and not is_said and trial.algorithm.adv_estimator in ONLY_V0:
        return f"verl's V1 trainer cannot run {trial.algorithm.adv_estimator}"
    if key in values and isinstance(after, str | list) and _absolute(before) == _list(canonical(after)):
        return SAME_FILES[0] if isinstance(after, str) else SAME_FILES[1]
    if before == MISSING:
        return "verl has no default for it"
    if is_said and key not in values and (path := _dead_field(key, trial)):
        return f"{DEAD}{path}"
    if not is_said and key in values:
        if key.startswith("critic.") and trial.algorithm.adv_estimator == "gae":
            return "the critic is laid out as the actor is"
        if key.startswith(f"{MEGATRON}.override_transformer_config."):
            return "this model needs it"
        if key.startswith(("reward.reward_kwargs.", BUFFER)):
            return "the dapo reward manager wants it"
    return ""


def _dead_field(key: str, trial: Trial) -> str:
    """What a key would need to be read, where its field has no effect in this trial."""
    owners = [leaf for leaf in leaves(trial) if key in leaf.knob.keys]
    if not owners or not all(is_dead(trial, leaf) for leaf in owners):
        return ""
    return f"{owners[0].path} needs " + " and ".join(
        f"{path} = {' or '.join(map(_plain, alive))}" for path, alive in (owners[0].knob.when or {}).items()
    )


def _plain(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _absolute(value: Any) -> list[Any]:
    """A path, or several, as compile has them. A variable of the environment holds an absolute one, or nobody knows."""
    return [
        str(Path(os.path.expanduser(v)).absolute()) if isinstance(v, str) and not _is_marked(v) else v
        for v in _list(canonical(value))
    ]


def canonical(value: Any) -> Any:
    """A value with the environment's variables as the marks that they are, whatever path they were made part of."""
    return with_texts(value, lambda text: re.sub(f"/*{ENV}", ENV, text) if ENV in text else text)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_texts(v, change) for v in value]
    if isinstance(value, dict):
        return {k: with_texts(v, change) for k, v in value.items()}
    return value


@contextmanager
def marked_environment(text: str) -> Iterator[None]:
    """For the time of a proof, each variable of the environment that a text names has its own mark as its value."""
    names = {m[1].partition(",")[0] for m in re.finditer(r"\$\{oc\.env:([^{}]*)\}", text)}
    before = {name: os.environ.get(name) for name in names if name}
    os.environ.update({name: f"/{ENV}{name}{END}" for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
