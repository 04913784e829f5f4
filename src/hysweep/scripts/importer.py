"""A launch script as an experiment of hysweep, with the proof of what it comes to."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from hysweep.compile import TrainerKeys, derived_from, trainer_keys, trainer_values
from hysweep.compile.verl import is_dead
from hysweep.compose import Composer
from hysweep.compose.grammar import Vocabulary
from hysweep.schema import BadInput, Problem, Trial, leaves, suggest
from hysweep.schema.groups import Cluster
from hysweep.scripts.bash import decode
from hysweep.scripts.experiment import Experiment, differing, profile_yaml
from hysweep.scripts.fields import Source, get, is_unknown_number, put, wanted
from hysweep.scripts.header import Header, read_header
from hysweep.scripts.launch import MAIN, Launch, launches
from hysweep.scripts.options import FIRST, ON_SLURM, choose, model_option
from hysweep.scripts.proof import (
    SAME_FILES,
    Difference,
    canonical,
    compare,
    compose_written,
    marked_environment,
    rooted,
    with_texts,
)
from hysweep.scripts.scope import Note, Scope
from hysweep.scripts.settings import (
    COUNTED_TOGETHER,
    Row,
    Setting,
    Settings,
    engine_of,
    read_settings,
    says_megatron,
    shown,
)
from hysweep.scripts.shell import Script, read_script
from hysweep.scripts.site import read_site
from hysweep.scripts.tree import Unresolved, resolved, same

GPU_ASSUMED = "which GPUs is not said"  # a note begins so
SIZES = {"cluster.nodes": "trainer.nnodes", "cluster.gpus_per_node": "trainer.n_gpus_per_node"}


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a script.

    text        of the experiment's file, or of the cluster profile's
    module      what is started; empty: the script was read for its cluster profile alone
    rows        each override and what it became
    differences of the trainer's whole configuration, before and after
    notes       lines of the script that were not understood, or that something had to be assumed of
    defaults    the variables of the environment that it reads: (default, line)
    needed      those that it has no default for: line
    header      what the script asks SLURM for, and what became of it
    source      the trainer's configuration as the script has it
    """

    text: str
    verl: str
    module: str
    options: Mapping[str, str]
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    notes: tuple[Note, ...]
    defaults: Mapping[str, tuple[str, int]]
    needed: Mapping[str, int]
    header: tuple[Row, ...] = ()
    source: Source = Source({}, frozenset(), "")

    @property
    def faults(self) -> list[Row]:
        return [row for row in (*self.header, *self.rows) if row.is_fault]

    @property
    def unmeant(self) -> list[Difference]:
        return [d for d in self.differences if not d.is_meant]


def import_script(
    content: bytes, name: str, label: str, verl: str, given: Mapping[str, str], only_site: bool = False
) -> Imported:
    """The experiment that a script comes to under a version of verl. `given` are variables of its environment.

    A script that asks SLURM for nodes and starts no trainer comes to a cluster profile, and so does any that asks,
    with `only_site`. `name` is the script's, for messages, and `label` the experiment's. Nothing of the script is run.
    Raises BadInput for what is no script, starts no trainer and asks for nothing, or is no bash; and for an unknown
    version.
    """
    keys = {engine: trainer_keys(verl, engine) for engine in ("dp", "megatron")}
    text_in = decode(content, name)
    _refuse_unread(given, text_in)
    header = read_header(text_in)
    if header is not None:
        given = {**header.environment, **given}
    if only_site and header is None:
        cure = "give one that has them, or write an experiment"
        raise BadInput(Problem(name, "bash", "has no #SBATCH lines, of which a cluster profile is made", cure))
    try:
        script, launch, others = _launch(text_in, name, given)
    except BadInput as e:
        if header is None:
            raise
        if b"main_ppo" in content and not only_site:
            raise
        return profile(header, None, name, label, verl, [Note(1, name, f"only its #SBATCH lines are read: {e}")])
    if header is not None:
        read_site(header, script)
        if launch is None or only_site:
            return profile(header, script, name, label, verl)
    if launch is None:
        why = f"starts no trainer: {script.ended}" if script.ended else "starts no trainer"
        cure = "give a script, or a command line, that runs python -m verl.trainer.main_ppo"
        raise BadInput(Problem(name, "bash", why, cure))
    engine = engine_of(launch)
    known = keys.get(engine, keys["dp"])
    settings = read_settings(launch, script.scope, engine, known)
    composer = _shipped()
    _drop_unknown_numbers(settings, composer.words)
    source = _source(settings, known)
    experiment, trial = _experiment(source, composer, known, label, verl, header)
    text = experiment.yaml(re.sub(r"\s+", " ", name), verl)
    with marked_environment(text):
        differences = tuple(compare(source, compose_written(text), known))
    _explain(settings, experiment, differences, source, trial, known)
    notes = [*script.scope.notes, *others, *_of_launch(launch), *_of_model(launch, trial), *_of_gpu(header, trial)]
    return Imported(
        text, verl, launch.module, experiment.options, tuple(settings.rows),
        tuple(_readable(d, script.scope) for d in differences), tuple(notes), script.scope.defaults,
        _needed(script.scope, text),
        tuple(header.rows) if header is not None else (), source,
    )  # fmt: skip


def _refuse_unread(given: Mapping[str, str], text: str) -> None:
    """A variable that the script nowhere names would change nothing: a typo, most likely."""
    for variable, value in given.items():
        if not re.search(rf"\b{re.escape(variable)}\b", text):
            read = sorted({m[1] for m in re.finditer(r"\$\{?([A-Za-z_]\w*)", text)})
            cure = suggest(variable, read) if read else "leave it out: it reads none"
            raise BadInput(Problem(f"--set {variable}", value, "is no variable that the script reads", cure))


def _readable(d: Difference, scope: Scope) -> Difference:
    """A difference whose variables of the environment stand as the script has them, not as marks."""
    before, after = (with_texts(canonical(value), lambda text: shown(text, scope)) for value in (d.before, d.after))
    return replace(d, before=before, after=after)


@cache
def _shipped() -> Composer:
    return Composer()


def _launch(source: str, name: str, given: Mapping[str, str]) -> tuple[Script, Launch | None, list[Note]]:
    """The first start of a trainer; where there is none, in the branches of commands that would have to succeed."""
    script = read_script(source, name, given)
    found = launches(script.commands)
    if not found:
        other = read_script(source, name, given, probes_succeed=True)
        found = launches(other.commands)
        script = other if found else script
    others = [Note(one.line, one.module, "starts another trainer: not read") for one in found[1:]]
    return script, found[0] if found else None, others


def _source(settings: Settings, keys: TrainerKeys) -> Source:
    """The whole configuration under the script's settings, of which those that lead nowhere are left out."""
    values = {key: setting.value for key, setting in settings.values.items()}
    values["model_engine"] = settings.engine
    try:
        tree = resolved(keys, values)
    except Unresolved:
        for key, setting in list(settings.values.items()):
            if "${" in str(setting.value):
                setting.row.is_fault, setting.row.remark = True, "refers to what verl does not have: write it by hand"
                del settings.values[key], values[key]
        tree = resolved(keys, values)
    for key in COUNTED_TOGETHER:
        if key in settings.values and isinstance(tree.get(key), int):
            _count_by_gpu(key, tree, settings)
    return Source(tree, frozenset(settings.values), settings.engine)


def _count_by_gpu(key: str, tree: dict[str, Any], settings: Settings) -> None:
    """A micro batch of all GPUs as that of one, where it comes out even."""
    setting = settings.values.pop(key)
    world = tree["trainer.nnodes"] * tree["trainer.n_gpus_per_node"]
    new = f"{key}_per_gpu"
    share, rest = divmod(setting.value, world) if isinstance(world, int) and world > 0 else (0, 1)
    tree[key] = None
    if rest or not share or new in settings.values:
        setting.row.is_fault = new not in settings.values
        setting.row.remark = f"counted all GPUs, and {setting.value} is no multiple of their {world}: give {new}"
        if new in settings.values:
            setting.row.remark = f"{new} says it"
        return
    settings.values[new] = Setting(share, setting.row)
    setting.row.remark = f"counted all GPUs: {setting.value} of {world} are {share} a GPU"
    tree[new] = share


def _experiment(
    source: Source, composer: Composer, keys: TrainerKeys, label: str, verl: str, header: Header | None
) -> tuple[Experiment, Trial]:
    any_trial = composer.compose([f"{group}={option}" for group, option in FIRST.items()]).trial
    found = wanted(source, any_trial, composer.words.fields)
    if header is not None:
        # of two numbers of nodes or GPUs the trainer's counts: it is the job's size
        asked = {f"cluster.{name}": value for name, value in header.fields.items()}
        told = {p: found[p] for p, key in SIZES.items() if key in source.explicit and p in found}
        _contradicted(header, {p: v for p, v in told.items() if asked.get(p, v) != v})
        if told.get("cluster.gpus_per_node", asked.get("cluster.gpus_per_node")) != asked.get("cluster.gpus_per_node"):
            asked.pop("cluster.gres", None)
        found |= asked | told | {"cluster.launcher": "slurm"}
    alive = _alive(put(any_trial, found))
    found = {path: get(alive, path) for path in found}
    options = choose(found, int(found.get("cluster.nodes", 1)), header is not None)
    base = composer.compose([f"{group}={option}" for group, option in options.items()]).trial
    trial = _alive(put(base, found | {"trainer.verl": verl}))
    trial = put(trial, dict(_names(trial, base, label)))
    if options["model"] == FIRST["model"] and trial.model.path != base.model.path:
        trial = replace(trial, model=type(trial.model)(name=trial.model.name, path=trial.model.path))
        trial = put(trial, {p: v for p, v in found.items() if p.startswith("model.")})
    passed = dict(_passed(source, trial, keys))
    trial = replace(trial, verl=passed)
    said = dict(differing(trial, base)) | {"trainer.verl": verl}
    return Experiment(options, said, passed), trial


def _drop_unknown_numbers(settings: Settings, words: Vocabulary) -> None:
    for key, setting in list(settings.values.items()):
        if is_unknown_number(setting.value, words.fields.get(words.aliases.get(key, ""))):
            setting.row.is_fault = True
            setting.row.remark = "takes a number, and the variable has no default: give it with --set"
            del settings.values[key]


def _alive(trial: Trial) -> Trial:
    """Without the values that nothing reads beside the others: `check` would name each."""
    return put(trial, {leaf.path: leaf.default for leaf in leaves(trial) if is_dead(trial, leaf)})


def _names(trial: Trial, base: Trial, label: str) -> list[tuple[str, str]]:
    """A group that is no longer what its option's name says is named after the script, a model after its path."""
    changed = {path.partition(".")[0] for path, _ in differing(trial, base)}
    plain = ("model", "algorithm", *(() if trial.cluster.launcher == "slurm" else ("cluster",)))
    names = [(f"{group}.name", label) for group in changed if group not in plain]
    if "model" in changed and not model_option(trial.model.path):
        names.append(("model.name", trial.model.path.rstrip("/").rpartition("/")[2] or label))
    return names


def _passed(source: Source, trial: Trial, keys: TrainerKeys) -> list[tuple[str, Any]]:
    """What no field says: passed to the trainer by its own name."""
    ours = trainer_values(trial)
    return [
        (d.key, d.before)
        for d in compare(source, rooted(trial), keys)
        if not d.is_meant and d.key in keys and d.key != "model_engine" and (d.key in source.explicit or d.key in ours)
    ]


def _explain(
    settings: Settings,
    experiment: Experiment,
    differences: tuple[Difference, ...],
    source: Source,
    trial: Trial,
    keys: TrainerKeys,
) -> None:
    """For each override, the field or the key that it became."""
    ours = trainer_values(replace(trial, verl={}))
    by_key = {d.key: d for d in differences}
    owners: dict[str, list[str]] = {}
    for leaf in leaves(trial):
        for key in leaf.knob.keys:
            owners.setdefault(key, []).append(leaf.path)
    for key, setting in settings.values.items():
        row = setting.row
        if key in experiment.verl:
            row.became = f"verl.{key}"
            if key in ours:
                row.remark = row.remark or f"no field can say it: hysweep's own value is {ours[key]}"
        elif key in by_key:
            row.remark = row.remark or by_key[key].why
            if by_key[key].why in SAME_FILES or key == "trainer.logger":
                row.became = derived_from(key) or "set by hysweep"
        elif key in owners and key in ours:
            row.became = owners[key][0]
        elif key in ours:
            row.became = derived_from(key) or "set by hysweep"
        elif key in keys.defaults and same(source.tree.get(key), keys.defaults[key]):
            row.remark = row.remark or f"is verl {keys.version}'s default"
        elif key in keys.defaults:
            row.remark = row.remark or "follows from the others"


def _of_launch(launch: Launch) -> list[Note]:
    notes = []
    if launch.module != MAIN:
        what = "is another entry point: its overrides are read as those of main_ppo"
        notes.append(Note(launch.line, launch.module, what))
    if says_megatron(launch):
        what = "verl takes dp and refuses the keys of megatron: read as model_engine=megatron"
        notes.append(Note(launch.line, "strategy=megatron without model_engine", what))
    return notes


def _contradicted(header: Header, told: Mapping[str, Any]) -> None:
    for row in header.rows:
        for path, value in told.items():
            if path in row.became:
                row.remark = f"the trainer is told {value}, which is taken"


def _of_gpu(header: Header | None, trial: Trial) -> list[Note]:
    if header is None or header.says_gpu:
        return []
    what = f"{GPU_ASSUMED}: taken as {trial.cluster.gpu}; set cluster.gpu and cluster.gpu_memory_gib"
    row = next((row for row in header.rows if "gpu" in row.override), header.rows[0])
    return [Note(row.line, row.override, what)]


def profile(
    header: Header, script: Script | None, name: str, label: str, verl: str, notes: Sequence[Note] = ()
) -> Imported:
    """The cluster profile of a script's #SBATCH lines. Raises BadInput where it does not compose."""
    said: dict[str, Any] = {"name": label, "launcher": "slurm", **header.fields}
    told = [*(script.scope.notes if script is not None else ()), *notes]
    if "gpus_per_node" not in said:
        what = "asks for no GPUs: set cluster.gpu, .gpu_memory_gib and .gpus_per_node if its nodes have some"
        told.append(Note(header.rows[0].line, header.rows[0].override, what))
    elif not header.says_gpu:
        usual = _shipped().compose([f"cluster={ON_SLURM}"]).trial.cluster
        said |= {"gpu": usual.gpu, "gpu_memory_gib": usual.gpu_memory_gib}
        told += _of_gpu(header, _shipped().compose([f"cluster={ON_SLURM}"]).trial)
    said = {f.name: said[f.name] for f in fields(Cluster) if f.name in said}  # in the schema's order
    text = profile_yaml(said, re.sub(r"\s+", " ", name))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "cluster" / "imported.yaml"
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
        with marked_environment(text):
            Composer([Path(directory)]).compose(["cluster=imported"])
    needed = _needed(script.scope, text) if script is not None else {}
    return Imported(text, verl, "", {}, (), (), tuple(told), {}, needed, tuple(header.rows))


def _needed(scope: Scope, text: str) -> dict[str, int]:
    """The variables that a file reads of the environment, and the script gives no default."""
    return {name: line for name, line in scope.needed.items() if f"${{oc.env:{name}}}" in text}


def _of_model(launch: Launch, trial: Trial) -> list[Note]:
    if trial.model.model_type or trial.model.path.startswith("embedded:"):
        return []
    what = "is no model that is shipped: set model.model_type and model.shape, for check and estimate"
    return [Note(launch.line, str(trial.model.path), what)]
