"""What a study is: its settings, what is fixed, what varies. study.yaml, written once."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import hysweep
from hysweep.compose import Choice, Composer, Composition, Dimension, Interval, size
from hysweep.compose.grammar import parse_space
from hysweep.schema import BadInput, Problem, Study, suggest
from hysweep.schema.override import emit
from hysweep.track import StudyDirectory

# What may be said anew when a study goes on: how long and how wide, never what it compares.
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
CHANGEABLE = ("n_trials", "max_parallel", "budget_gpu_hours", "hung_after_min", "poll_s")


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
    space: dict[str, Dimension]
    cwd: str
    command: tuple[str, ...] = ()
    created: float = 0.0
    env: dict[str, str | None] = field(default_factory=dict)

    @property
    def n_trials(self) -> int:
        """Trials in total: as asked for, but never more than the space has points."""
        points = size(self.space)
        if self.study.n_trials is None:
            assert points is not None, "define() refuses an infinite space without a number of trials"
            return points
        return self.study.n_trials if points is None else min(self.study.n_trials, points)

    @property
    def is_grid(self) -> bool:
        """All points in order, rather than chosen by a sampler."""
        return self.study.n_trials is None

    @property
    def directory(self) -> StudyDirectory:
        return StudyDirectory(Path(self.cwd) / self.study.root / self.study.name)

    def to_yaml(self) -> str:
        content = {
            "study": asdict(self.study),
            "overrides": list(self.fixed),
            "space": {key: text_of(dimension) for key, dimension in self.space.items()},
            "cwd": self.cwd,
            "command": list(self.command),
            "created": self.created or time.time(),
            "env": self.env,
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
        return settings | env | fixed | {f"space.{k}": text_of(d) for k, d in self.space.items()}


def define(composition: Composition, command: Sequence[str] = ()) -> Definition:
    """The study that a composed command line asks for. Raises BadInput where it asks for none."""
    study, space = composition.study, composition.space
    for key, metric in {"study.metric": study.metric, "study.pruner.metric": study.pruner.metric}.items():
        if metric is not None and not is_metric(metric):
            cure = suggest(metric, [*METRICS, "val-core/DATA_SOURCE/acc/mean@1"])
            raise BadInput(Problem(key, metric, "verl logs no such metric", cure))
    points = size(space)
    if study.n_trials is None and points is not None and points > MOST_POINTS:
        raise BadInput(
            Problem("study.n_trials", "null", f"the grid has {points:,} points", "give study.n_trials=20, say")
        )
    if study.n_trials is None and points is None:
        endless = next(k for k, d in space.items() if isinstance(d, Interval) and not d.is_int)
        raise BadInput(
            Problem("study.n_trials", "null", f"{endless} has no end of values", "give study.n_trials=20, say")
        )
    study = replace(study, enqueue=_still_varied(study.enqueue, space, composition.fixed))
    _check_enqueued(study, space)
    name = study.name or composition.choices.get("sweep") or _name_by_content(composition)
    if not re.fullmatch(r"[^/.\x00-\x1f][^/\x00-\x1f]*", name) or len(name.encode()) > LONGEST_NAME:
        raise BadInput(
            Problem(
                "study.name",
                name,
                "is a directory's name",
                f"leave out / and a leading dot, at most {LONGEST_NAME} bytes",
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


def load_definition(directory: StudyDirectory, composer: Composer) -> Definition:
    """study.yaml back. Raises BadInput when the directory holds no study, or one that cannot be read."""
    if not directory.exists:
        raise BadInput(
            Problem(
                "DIR",
                directory.path,
                "holds no study",
                "give a directory that `hysweep run` printed, as in outputs/quickstart",
            )
        )
    try:
        raw = OmegaConf.to_container(OmegaConf.load(directory.config_file))
        assert isinstance(raw, dict)
        study = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), raw["study"]))
        assert isinstance(study, Study)
        return Definition(
            study=study,
            fixed=tuple(raw["overrides"]),
            space=parse_space(raw["space"], composer.words),
            cwd=raw["cwd"],
            command=tuple(raw.get("command", ())),
            created=raw.get("created", 0.0),
            env=raw.get("env", {}),
        )
    except (
        OmegaConfBaseException,
        yaml.YAMLError,
        LookupError,
        AssertionError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        OSError,
    ) as e:
        raise BadInput(
            Problem(str(directory.config_file), type(e).__name__, "cannot be read as a study", "restore the file")
        ) from e


def text_of(dimension: Dimension) -> str:
    """A dimension in Hydra's grammar: parsing it gives the dimension back."""
    if isinstance(dimension, Choice):
        return f"choice({','.join(dimension.texts)})"
    span = f"interval({dimension.low!r},{dimension.high!r})"
    span = f"tag(log,{span})" if dimension.is_log else span
    return f"int({span})" if dimension.is_int else span


def is_metric(name: str) -> bool:
    """Whether verl can log a metric of this name."""
    return name in METRICS or name.startswith(FAMILIES)


def _still_varied(
    points: list[dict[str, Any]], space: dict[str, Dimension], fixed: Sequence[str]
) -> list[dict[str, Any]]:
    """The named points of a sweep file where a command line has fixed some of what it varied: a point that agrees
    loses the key, one that does not is dropped."""
    given = dict(o.lstrip("+").split("=", 1) for o in fixed if "=" in o)
    kept = []
    for point in points:
        pinned = {k: v for k, v in point.items() if k not in space and k in given}
        if all(given[k] == emit(v) or given[k] == str(v) for k, v in pinned.items()):
            kept.append({k: v for k, v in point.items() if k not in pinned})
    return [p for i, p in enumerate(kept) if p not in kept[:i]]


def _check_enqueued(study: Study, space: dict[str, Dimension]) -> None:
    faults = []
    for i, point in enumerate(study.enqueue):
        if not isinstance(point, dict):
            faults.append(Problem(f"study.enqueue[{i}]", point, "is no point", "write {key: value, ...}"))
            continue
        for key, value in point.items():
            dimension = space.get(key)
            if dimension is None:
                faults.append(
                    Problem(f"study.enqueue[{i}].{key}", value, "does not vary", f"choose of {', '.join(space)}")
                )
            elif isinstance(dimension, Choice) and value not in dimension.values:
                faults.append(
                    Problem(
                        f"study.enqueue[{i}].{key}",
                        value,
                        "is not in the space",
                        f"choose of {', '.join(dimension.texts)}",
                    )
                )
            elif isinstance(dimension, Interval) and not (
                isinstance(value, (int, float))
                and not isinstance(value, bool)
                and dimension.low <= value <= dimension.high
            ):
                faults.append(
                    Problem(
                        f"study.enqueue[{i}].{key}",
                        value,
                        "is not in the space",
                        f"give {dimension.low:g} to {dimension.high:g}",
                    )
                )
    if faults:
        raise BadInput(*faults)


def _name_by_content(composition: Composition) -> str:
    """A name for what has none: the same question is the same study, another one has another directory."""
    kind = "sweep" if composition.space else composition.trial.algorithm.name
    content = {
        "fixed": sorted(o for o in composition.fixed if not o.startswith("study.")),
        "space": {k: text_of(d) for k, d in composition.space.items()},
    }
    return f"{kind}-{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:6]}"


def _versions() -> dict[str, str]:
    found = {"hysweep": hysweep.__version__}
    for name in ("verl", "torch", "transformers", "ray", "vllm", "megatron-bridge", "optuna", "hydra-core"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
