"""What a study is: its settings, what is fixed, what varies. study.yaml, written once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import hysweep
from hysweep.check.site import unwritable
from hysweep.compose import SEED, Choice, Composer, Composition, Conditional, Interval, Point, Space, Zip
from hysweep.compose.composer import as_typed, read_yaml
from hysweep.schema import BadInput, Notify, Problem, Pruner, Sampler, Study, suggest
from hysweep.schema.override import emit
from hysweep.schema.search import PRUNER_OPTIONS, SAMPLER_OPTIONS, Confirm, spell_out
from hysweep.study.notify import EVENTS
from hysweep.study.objective import GPU_HOURS
from hysweep.study.promotion import impossible_promotion
from hysweep.study.pruners import metrics_of
from hysweep.study.storage_url import check_storage
from hysweep.track import StudyDirectory, matching

# What verl 0.9.1 logs (verl/trainer/ppo/metric_utils.py): the names that are fixed, and the families whose names
# depend on data, reward function or engine.
METRICS = (
    *(f"critic/{x}/{how}" for x in ("score", "rewards", "advantages", "returns") for how in ("mean", "min", "max")),
    *(f"actor/{what}" for what in ("entropy", "pg_loss", "loss", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl",
                                   "kl_loss", "kl_coef", "grad_norm", "lr")),
)  # fmt: skip
FAMILIES = ("val-core/", "val-aux/", "actor/", "critic/vf", "critic/values/", "rollout_corr/", "training/", "reward/",
            "response_length", "response/", "prompt_length", "perf/", "timing_s/", "timing_per_token_ms/",
            "global_seqlen/", "num_turns/")  # fmt: skip
MOST_POINTS = 10_000  # of a grid
LONGEST_NAME = 100  # bytes: it is part of the names of runs in trackers, which have 128
# What may be said anew when a study goes on: how long and how wide, never what it compares.
CHANGEABLE = ("n_trials", "max_parallel", "budget_gpu_hours", "max_hours", "patience_trials", "target",
              "hung_after_min", "poll_s", "controller", "notify")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Definition:
    """A study as it was asked for.

    fixed   overrides that hold for every trial
    space   what varies; empty: one trial
    cwd     where relative paths of the trial start
    env     environment variables that the config files ask for, as they were at the start
    """

    study: Study
    fixed: tuple[str, ...]
    space: Space
    cwd: str
    command: tuple[str, ...] = ()
    created: float = 0.0
    env: dict[str, str | None] = field(default_factory=dict)

    @property
    def n_trials(self) -> int:
        """Trials in total: as asked for, but never more than the space has points, each with all its seeds."""
        points = self.space.size
        if points is not None:
            points *= max(1, len(self.space.seeds))
        if self.study.n_trials is None:
            assert points is not None, "define() refuses an infinite space without a number of trials"
            return points
        return self.study.n_trials if points is None else min(self.study.n_trials, points)

    @property
    def most_trials(self) -> int:
        """With those that confirm the best."""
        confirm = self.study.confirm
        points = self.n_trials // max(1, len(self.space.seeds))
        return self.n_trials + min(confirm.top, points) * confirm.seeds

    @property
    def is_grid(self) -> bool:
        """All points in order, rather than chosen by a sampler."""
        return self.study.n_trials is None or self.study.sampler.name == "grid"

    def first_points(self) -> Iterable[Point]:
        """What runs before a sampler is asked: a whole grid, or the configuration's own values and the points that
        the study names."""
        if self.is_grid:
            return self.space.grid()
        wanted = self.study.default_first
        own = self.space.default() if wanted or (wanted is None and not self.study.enqueue) else None
        return ([own] if own else []) + [p for p in self.study.enqueue if p != own]

    @property
    def directory(self) -> StudyDirectory:
        return StudyDirectory(Path(self.cwd) / os.path.expanduser(self.study.root) / self.study.name)

    def to_yaml(self) -> str:
        content = {
            "study": asdict(self.study),
            "overrides": list(self.fixed),
            "space": self.space.as_dict(),
            "cwd": self.cwd,
            "command": list(self.command),
            "created": self.created or time.time(),
            "env": self.env,
            "commits": _commits(Path(self.cwd), Path(hysweep.__file__).parent),
            "versions": _versions(),
        }
        return OmegaConf.to_yaml(OmegaConf.create(content))

    def same_question(self, other: Definition) -> list[str]:
        """The keys in which two studies differ, beside what may change when one goes on."""
        mine, theirs = self._question(), other._question()
        return sorted(k for k in mine | theirs if mine.get(k) != theirs.get(k))

    def _question(self) -> dict[str, Any]:
        settings = {f"study.{k}": v for k, v in asdict(self.study).items() if k not in CHANGEABLE}
        fixed = {o.partition("=")[0]: o.partition("=")[2] for o in self.fixed if not o.startswith("study.")}
        env = {f"${name}": value for name, value in self.env.items()}
        return settings | env | fixed | {f"space.{k}": content for k, content in self.space.as_dict().items()}


def define(composition: Composition, command: Sequence[str] = ()) -> Definition:
    """The study that a composed command line asks for. Raises BadInput where it asks for none."""
    study, space = composition.study, composition.space
    if faults := study_faults(study, space):
        raise BadInput(*faults)
    check_storage(study)
    study = replace(study, enqueue=_still_varied(study.enqueue, space, composition.fixed))
    _check_enqueued(study, space)
    name = study.name or composition.choices.get("sweep") or _name_by_content(composition)
    is_plain = re.fullmatch(r"[^/.\x00-\x1f][^/\x00-\x1f]*", name) and name == name.strip()
    if not is_plain or "${" in name or len(name.encode()) > LONGEST_NAME:
        raise BadInput(
            Problem(
                "study.name",
                name,
                "is a directory's name",
                f"leave out /, a leading dot and blanks at its ends, and ${{; at most {LONGEST_NAME} bytes",
            )
        )
    return Definition(
        study=replace(study, name=name),
        fixed=composition.fixed,
        space=space,
        cwd=str(Path.cwd()),
        command=tuple(command),
        created=time.time(),
        env=composition.env,
    )


def written(directory: StudyDirectory) -> dict[str, Any]:
    """What study.yaml says, as plain data. Raises BadInput when there is none, or when it is not whole."""
    if not directory.exists:
        cure = "give a directory that `hysweep run` printed, as in outputs/quickstart"
        raise BadInput(Problem("DIR", directory.path, "holds no study", cure))
    try:
        raw = read_yaml(directory.config_file.read_text(encoding="utf-8"))
    except OSError as e:
        cure = "give yourself the right to read it, or wait for its file system"
        raise BadInput(Problem(str(directory.config_file), "unreadable", e.strerror or str(e), cure)) from e
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise BadInput(_unreadable(directory, "damaged")) from e
    if not isinstance(raw, dict) or "versions" not in raw:  # the last of it
        raise BadInput(_unreadable(directory, "cut off" if raw else "empty"))
    return {str(key): value for key, value in raw.items()}


def composer_of(directory: StudyDirectory) -> Composer:
    """What composes a study's points: the config groups as they were when it began."""
    return Composer([directory.conf], shipped=False) if directory.conf.is_dir() else Composer()


def load_definition(directory: StudyDirectory, composer: Composer) -> Definition:
    """study.yaml back. Raises BadInput when the directory holds no study, or one that cannot be read."""
    raw = written(directory)
    try:
        spell_out(raw["study"])
        study = as_typed(Study, raw["study"])
        fixed = tuple(raw["overrides"])
        space = composer.space(raw["space"], fixed)
        assert all(isinstance(o, str) for o in fixed) and (study.n_trials is not None or space.size is not None)
        return Definition(
            study=study,
            fixed=fixed,
            space=space,
            cwd=os.fspath(raw["cwd"]),
            command=tuple(raw.get("command", ())),
            created=float(raw.get("created", 0.0)),
            env=dict(raw.get("env", {})),
        )
    except (
        OmegaConfBaseException,
        LookupError,
        AssertionError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as e:
        raise BadInput(_unreadable(directory, "damaged")) from e


def _unreadable(directory: StudyDirectory, what: str) -> Problem:
    cure = "restore the file; the results are in trials/ all the same"
    return Problem(str(directory.config_file), what, "cannot be read as a study", cure)


def study_faults(study: Study, space: Space) -> list[Problem]:
    """What is wrong with the settings of a study, by themselves and for this space."""
    faults = [*_check_metrics(study), *_check_search(study, space), *_check_notify(study.notify)]
    asked = study.controller
    texts = {f"controller.{name}": getattr(asked, name) for name in ("partition", "account", "qos")}
    texts["root"] = str(Path.cwd() / study.root)  # the path of a log is an option too
    faults += [fault for name, text in texts.items() if text and (fault := unwritable(f"study.{name}", text))]
    points = space.size
    endless = f"{_endless(space)} has no end of values" if points is None else ""
    too_many = f"the grid has {points:,} points" if points is not None and points > MOST_POINTS else ""
    if study.n_trials is None and (endless or too_many):
        faults.append(Problem("study.n_trials", "null", endless or too_many, "give study.n_trials=20, say"))
    return faults


def is_metric(name: str) -> bool:
    """Whether verl can log a metric of this name, or it is one of ours. A * stands for what one name has there."""
    stem = name.partition("*")[0]
    is_family = name.startswith(FAMILIES) or ("*" in name and stem != "" and any(f.startswith(stem) for f in FAMILIES))
    return name == GPU_HOURS or bool(matching(name, METRICS)) or is_family


def _still_varied(points: list[dict[str, Any]], space: Space, fixed: Sequence[str]) -> list[dict[str, Any]]:
    """The named points of a sweep file where a command line has fixed some of what it varied: a point that agrees
    loses the key, one that does not is dropped."""
    given = dict(o.lstrip("+").split("=", 1) for o in fixed if "=" in o)
    kept = []
    for point in points:
        pinned = {k: v for k, v in point.items() if k not in space.varied and k in given}
        if all(given[k] == emit(v) or given[k] == str(v) for k, v in pinned.items()):
            kept.append({k: v for k, v in point.items() if k not in pinned})
    return [p for i, p in enumerate(kept) if p not in kept[:i]]


def _check_enqueued(study: Study, space: Space) -> None:
    faults: list[Problem] = []
    for i, point in enumerate(study.enqueue):
        where = f"study.enqueue[{i}]"
        if not isinstance(point, dict):
            faults.append(Problem(where, point, "is no point", "write {key: value, ...}"))
            continue
        faults += [fault for key, value in point.items() if (fault := _value_fault(where, key, value, point, space))]
        if not faults and space.is_whole(point) and (text := space.refusal(point)):
            faults.append(Problem(where, point, f"is rejected by the filter {text}", "leave it out"))
    if faults:
        raise BadInput(*faults)


def _value_fault(where: str, key: str, value: Any, point: dict[str, Any], space: Space) -> Problem | None:
    """What is wrong with one coordinate of a named point."""
    zipped = next((d for d in space.values() if isinstance(d, Zip) and key in d.keys), None)
    dimension = space.get(key) or zipped
    outside = "is not in the space"
    if dimension is None:
        others = [name for name in space.varied if name != SEED or not space.seeds]
        return Problem(f"{where}.{key}", value, "does not vary", f"choose of {', '.join(others)}")
    if isinstance(dimension, Zip):
        part = {k: point[k] for k in dimension.keys if k in point}
        if any(part.items() <= row.items() for row in dimension.rows.values):
            return None
        return Problem(f"{where}.{key}", value, outside, f"choose of {', '.join(dimension.rows.texts)}")
    if isinstance(dimension, Conditional):
        named = {name for b in dimension.branches if b.when for name in b.when.keys}
        unsaid = sorted(name for name in named if name in space.varied and name not in point)
        if unsaid:
            return Problem(f"{where}.{key}", value, f"depends on {', '.join(unsaid)}", "name that as well")
        applying = [(p, v) for p, v in space.parameters_of(point).values() if p in dimension.parameters.values()]
        if not applying:
            return Problem(f"{where}.{key}", value, "does not vary at this point", "leave it out")
        dimension = applying[0][0]
    if value in dimension:
        return None
    cure = (
        f"choose of {', '.join(dimension.texts)}"
        if isinstance(dimension, Choice)
        else f"give {dimension.low:g} to {dimension.high:g}"
    )
    return Problem(f"{where}.{key}", value, outside, cure)


def _check_metrics(study: Study) -> list[Problem]:
    named = {"study.metric": study.metric, "study.pruner.metric": study.pruner.metric}
    named |= {f"study.pruners[{i}].metric": p.metric for i, p in enumerate(study.pruners, start=1)}
    named |= {f"study.objectives[{i}].metric": o.metric for i, o in enumerate(study.objectives, start=1)}
    cures = [*METRICS, GPU_HOURS, "val-core/DATA_SOURCE/acc/mean@*"]
    faults = [
        Problem(key, metric, "verl logs no such metric", suggest(metric, cures))
        for key, metric in named.items()
        if metric is not None and not is_metric(metric)
    ]
    for key, metric in named.items():
        fits = [m for m in matching(metric or "", METRICS) if m.startswith("critic/")]  # all of these are always logged
        if len(fits) > 1:
            faults.append(Problem(key, metric, f"fits more than one metric: {', '.join(fits[:3])}", "name one of them"))
    if study.objectives:
        idle = [n for n in ("metric", "direction", "reduce", "last") if getattr(study, n) != getattr(Study(), n)]
        cure = "say it in study.objectives, and leave it out here"
        faults += [Problem(f"study.{n}", getattr(study, n), "does nothing beside objectives", cure) for n in idle]
    for i, goal in enumerate(study.objectives, start=1):
        if [o.metric for o in study.objectives].count(goal.metric) > 1:
            faults.append(Problem(f"study.objectives[{i}].metric", goal.metric, "is named twice", "name each once"))
    watched = {"study.pruner": study.pruner} | {f"study.pruners[{i}]": p for i, p in enumerate(study.pruners, start=1)}
    for key, pruner in watched.items():
        if pruner.name != "none" and GPU_HOURS in metrics_of(pruner, study):
            cure = f"give {key}.metric, as in critic/score/mean"
            faults.append(Problem(f"{key}.metric", GPU_HOURS, "has no curve that a pruner could look at", cure))
    return faults


def _check_search(study: Study, space: Space) -> list[Problem]:
    """Options that do nothing, and samplers that cannot do what is asked of them."""
    sampler, key = study.sampler, "study.sampler"
    faults = _idle(key, sampler, Sampler(), SAMPLER_OPTIONS)
    faults += _idle("study.pruner", study.pruner, Pruner(), PRUNER_OPTIONS)
    for i, pruner in enumerate(study.pruners, start=1):
        faults += _idle(f"study.pruners[{i}]", pruner, Pruner(), PRUNER_OPTIONS)
        if pruner.name == "none":
            faults.append(Problem(f"study.pruners[{i}].name", "none", "is no rule", "leave it out"))
    for pruner in study.rules:
        if pruner.name == "threshold" and pruner.low is None and pruner.high is None:
            faults.append(Problem("threshold", "no bounds", "would never prune", "give low or high"))
        if pruner.low is not None and pruner.high is not None and pruner.low > pruner.high:
            why = f"is above high, {pruner.high:g}, so that every trial is given up"
            faults.append(Problem(f"{pruner.name}: low", pruner.low, why, "exchange the two"))
        if pruner.max_steps is not None and pruner.max_steps < pruner.min_steps:
            why = f"is below min_steps, {pruner.min_steps}"
            faults.append(
                Problem(f"{pruner.name}: max_steps", pruner.max_steps, why, "give the steps of a whole trial")
            )
    needed = {"cmaes": "cmaes", "qmc": "scipy"}.get(sampler.name)
    if needed and find_spec(needed) is None:
        faults.append(Problem(key, sampler.name, f"needs {needed}", "pip install 'hysweep[samplers]'"))
    if sampler.name == "cmaes" and len(study.goals) > 1:
        faults.append(Problem(key, "cmaes", "has one objective", "choose nsgaii or tpe"))
    if sampler.name == "grid" and space.size is None:
        faults.append(Problem(key, "grid", f"{_endless(space)} has no end of values", "choose tpe, or a range()"))
    if space.seeds and study.n_trials is not None and study.n_trials % len(space.seeds):
        n = len(space.seeds)
        less = study.n_trials // n * n
        cure = f"give {less or n} or {less + n}" if less else f"give {n}"
        faults.append(Problem("study.n_trials", study.n_trials, f"is no multiple of the {n} seeds", cure))
    faults += impossible_promotion(study, space.seeds)
    if not study.confirm.top and study.confirm != Confirm():
        faults.append(Problem("study.confirm.seeds", study.confirm.seeds, "does nothing", "give study.confirm.top=3"))
    if study.confirm.top and SEED in space:
        faults.append(Problem("study.confirm", study.confirm.top, f"{SEED} is searched", "leave one of the two out"))
    if space.size == 0:
        faults.append(
            Problem("space.filter", "; ".join(f.text for f in space.filters), "rejects every point", "mend it")
        )
    return faults


def _check_notify(notify: Notify) -> list[Problem]:
    faults = []
    if "${" in (notify.command or ""):
        why, cure = "braces after a $ are Hydra's, not the shell's", "write $NAME, or put the command into a script"
        faults.append(Problem("study.notify.command", notify.command, why, cure))
    faults += [
        Problem("study.notify.events", event, "is nothing that is told", suggest(event, EVENTS))
        for event in notify.events
        if event not in EVENTS
    ]
    return faults


def _idle(
    key: str, part: Sampler | Pruner, default: Sampler | Pruner, read: dict[str, tuple[str, ...]]
) -> list[Problem]:
    """Options that were given and that nobody reads."""
    optional = {name for names in read.values() for name in names}
    return [
        Problem(
            f"{key}.{name}",
            getattr(part, name),
            f"means nothing to {part.name}",
            f"leave it out; {', '.join(k for k, names in read.items() if name in names)} read it",
        )
        for name in sorted(optional)
        if name not in read.get(part.name, ()) and getattr(part, name) != getattr(default, name)
    ]


def _endless(space: Space) -> str:
    return next(name for name, p in space.parameters.items() if isinstance(p, Interval) and not p.is_int)


def _name_by_content(composition: Composition) -> str:
    """A name for what has none: the same question is the same study, another one has another directory."""
    kind = "sweep" if composition.space else composition.trial.algorithm.name
    content = {
        "fixed": sorted(o for o in composition.fixed if not o.startswith("study.")),
        "space": composition.space.as_dict(),
    }
    return f"{kind}-{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:6]}"


def _commits(*directories: Path) -> dict[str, str]:
    """What is checked out where a study begins and where hysweep itself lies, by the checkout's directory; a commit
    that ends in -dirty was changed since."""
    found = {}
    for directory in directories:
        git = ["git", "-C", str(directory)]
        told = (
            [*git, "rev-parse", "--show-toplevel"],
            [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        )
        try:
            root, commit = (
                subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True) for argv in told
            )
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            continue
        found[root.stdout.strip()] = commit.stdout.strip()
    return found


@cache
def _versions() -> dict[str, str]:
    found = {"hysweep": hysweep.__version__}
    for name in ("verl", "torch", "transformers", "ray", "vllm", "megatron-bridge", "optuna", "hydra-core"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
