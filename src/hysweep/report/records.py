"""What a study directory says, as frozen records: the one thing that every report is made of.

Only files are read, and only through `hysweep.track`. A study that is being written, was torn by a crash or
holds nothing yet is read as far as it goes.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped, unused-ignore]

from hysweep.report import words
from hysweep.report.comparing import Mean, mean_of, pareto_front
from hysweep.schema import Objective, Study, hour_unit
from hysweep.study.replicates import ranked_points
from hysweep.track import (
    ACTIONS,
    AttemptDirectory,
    Booking,
    Cause,
    End,
    Phase,
    State,
    Status,
    StudyDirectory,
    TrialDirectory,
    Verdict,
    logged,
    matching,
)

SCORE = "critic/score/mean"
SEED = "trainer.seed"  # what replicates differ in
STEP_SECONDS = "timing_s/step"
STEP_TOKENS = "perf/total_num_tokens"
AXES = ("tokens", "hours", "gpu_hours")

T = TypeVar("T")
# What a torn, foreign or half-written file makes a reader raise.
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError)


class Standing(StrEnum):
    """Where a trial stands, in the words that a summary counts by."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    PRUNED = "pruned"
    FAILED = "failed"
    INFEASIBLE = "infeasible"
    CANCELLED = "cancelled"


_STANDINGS = {
    Verdict.VALUE: Standing.COMPLETED,
    Verdict.PRUNED: Standing.PRUNED,
    Verdict.FAILED: Standing.FAILED,
    Verdict.INFEASIBLE: Standing.INFEASIBLE,
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric by step, in the order of the steps. A value may be NaN or infinite, as written."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.steps, self.values, strict=True)

    @property
    def first(self) -> float | None:
        return self.values[0] if self.values else None

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One job of a trial. Times are unix seconds; `ended` and `cause` are None while it runs.

    cause  the controller's word, once it has booked the attempt: a job that it stopped says only that it was killed
    nodes  where it ran: a list as the scheduler writes one, or the host of its first process
    """

    number: int
    started: float | None = None
    ended: float | None = None
    seen: float = 0.0  # last sign of life
    cause: Cause | None = None
    phase: Phase = Phase.UNKNOWN
    reason: str = ""
    lines: tuple[str, ...] = ()
    gpus: int = 0
    total_steps: int | None = None
    last_step: int | None = None
    is_claimed: bool = False
    nodes: str = ""

    def seconds(self, now: float, silence_s: float) -> float:
        """How long it ran; one that fell silent without an end counts up to its last sign of life."""
        if self.started is None:
            return 0.0
        alive = now if now - self.seen < silence_s else self.seen
        return max(0.0, (self.ended or max(alive, self.started)) - self.started)


@dataclass(frozen=True, slots=True)
class Spending:
    """Booked GPU-hours by what they went to; `queued_h` are hours in the queue, with no GPU."""

    requested: float
    queued_h: float
    boot: float
    productive: float
    wasted: Mapping[Cause, float]

    @property
    def is_known(self) -> bool:
        return bool(self.boot or self.productive or self.wasted)

    def as_dict(self) -> dict[str, Any]:
        named = {"requested": self.requested, "queued_h": self.queued_h, "boot": self.boot}
        return named | {"productive": self.productive, "wasted": {str(c): h for c, h in self.wasted.items()}}


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a study is still to take, if its trials go on as those that ended did. trials: those under way included."""

    trials: int
    gpu_hours: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial as its directory shows it.

    config     trial.yaml, as nested dicts
    curves     the metrics that were asked for when the study was read; `curve` fetches any other
    gpu_hours  booked ones, and those of attempts that are not booked yet
    saved_gpu_hours   what the steps that pruning left out would have cost; 0 for a trial that was not pruned
    axes       what curves can be drawn against beside the step: tokens, hours since its first start, GPU-hours
    files      what it was read from: name, time and size of each file
    is_damaged its state.json cannot be read, so that where it stands is not known
    """

    directory: TrialDirectory
    number: int
    id: str
    point: Mapping[str, Any]
    config: Mapping[str, Any]
    state: State
    attempts: tuple[AttemptRecord, ...]
    metric: str
    curves: Mapping[str, Curve]
    last_step: int | None = None
    total_steps: int | None = None
    seconds: float = 0.0
    gpu_hours: float = 0.0
    saved_gpu_hours: float = 0.0
    axes: Mapping[str, Curve] = field(default_factory=dict, repr=False)
    files: tuple[tuple[str, int, int], ...] = field(default=(), repr=False)
    is_damaged: bool = False

    @property
    def short_id(self) -> str:
        return self.id[:6]

    @property
    def status(self) -> Status:
        return self.state.status

    @property
    def cause(self) -> Cause | None:
        """Of the end of the trial; of its last attempt while another may follow."""
        return self.state.cause or (self.attempts[-1].cause if self.attempts else None)

    @property
    def reason(self) -> str:
        """The controller's word on the end, or the node's where the controller said none."""
        return self.state.reason or (self.attempts[-1].reason if self.attempts else "")

    @property
    def value(self) -> float | None:
        return self.state.value

    @property
    def values(self) -> tuple[float, ...]:
        """Of a completed trial, the value of each objective."""
        return self.state.values or (() if self.state.value is None else (self.state.value,))

    @property
    def algorithm(self) -> str:
        """The option that the study varied, or else the name that the frozen trial has."""
        named = self.point.get("algorithm") or _at(self.config, "algorithm.name") or ""
        return words.clean(named, 40)

    @property
    def standing(self) -> Standing:
        if self.state.is_final:
            if self.state.cause is Cause.CANCELLED:
                return Standing.CANCELLED
            return _STANDINGS[ACTIONS[self.state.cause or Cause.UNKNOWN].verdict]
        current = self.attempts[-1] if self.attempts else None
        if self.status is Status.SUBMITTED and (self.state.began or (current and current.is_claimed)):
            return Standing.RUNNING
        return Standing.WAITING

    @property
    def word(self) -> str:
        """The state in one word, more exact than `standing`: the cause of the end, or how far it has come."""
        if self.state.is_final:
            return str(self.state.cause or Cause.UNKNOWN)
        if self.state.ending:
            return "stopping"
        if self.state.is_refused:
            return "refused"
        if self.standing is Standing.RUNNING:
            return "starting" if self.last_step is None else "running"
        return {Status.CREATED: "waiting", Status.SUBMITTING: "submitting"}.get(self.status, "queued")

    @property
    def is_live(self) -> bool:
        return self.standing in (Standing.RUNNING, Standing.WAITING)

    @property
    def nodes(self) -> str:
        """Where its newest attempt runs or ran."""
        return self.attempts[-1].nodes if self.attempts else ""

    @property
    def objective(self) -> Curve:
        return self.curve(self.metric)

    @property
    def score(self) -> Curve:
        """The mean reward of the training samples."""
        return self.curve(SCORE)

    @property
    def latest(self) -> float | None:
        """The value if there is one, else where the objective stands now."""
        return self.value if self.value is not None else self.objective.last

    def curve(self, metric: str) -> Curve:
        """A metric by step over all attempts; where steps overlap after a resume, the last attempt wins."""
        if metric in self.curves:
            return self.curves[metric]
        return _curves(_attempted(self.directory.metrics, {}), [metric])[metric]


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study as its directory shows it at one moment.

    settings   the fields of `schema.Study`, as written, and as changed since
    space      dotted key -> the range, in Hydra's grammar
    filters    the conditions that every point meets
    seeds      those that each point is run with; none: one run each
    overrides  the fixed overrides
    command    what started it, in which directory (cwd)
    commits    what was checked out when it began, by directory
    read_at    when it was read
    faults     what could not be read, one line each
    """

    directory: StudyDirectory
    name: str
    settings: Mapping[str, Any]
    space: Mapping[str, str]
    overrides: tuple[str, ...]
    command: str
    cwd: str
    versions: Mapping[str, str]
    commits: Mapping[str, str]
    created: float | None
    trials: tuple[TrialRecord, ...]
    ledger: tuple[Booking, ...]
    events: tuple[Mapping[str, Any], ...]
    read_at: float
    faults: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    is_paused: bool = False

    @property
    def goals(self) -> tuple[Objective, ...]:
        """What is optimised, at least one."""
        return _goals(self.settings)

    @property
    def metric(self) -> str:
        """The objective, or the first of several."""
        return self.goals[0].metric

    @property
    def sampler(self) -> str:
        """By name; studies of the first version have nothing else. Every point, in order, is a grid."""
        if self.settings.get("n_trials") is None:
            return "grid"
        given = self.settings.get("sampler")
        return str(_mapping(given).get("name") or given or _DEFAULTS.sampler.name)

    @property
    def filtered(self) -> int:
        """How many points that the sampler drew the filters have rejected."""
        return sum(1 for e in self.events if e.get("event") == "filtered")

    @property
    def pruner(self) -> Mapping[str, Any]:
        """The fields of `schema.Pruner`, as written."""
        return _mapping(self.settings.get("pruner"))

    @property
    def more_pruners(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(map(_mapping, _sequence(self.settings.get("pruners"))))

    @property
    def enqueued(self) -> tuple[Mapping[str, Any], ...]:
        """The points that the study names to run first."""
        return tuple(point for p in _sequence(self.settings.get("enqueue")) if (point := _mapping(p)))

    def part(self, name: str) -> Mapping[str, Any]:
        """The settings of a part of the study, as written; none where one word stands for all."""
        return _mapping(self.settings.get(name))

    @property
    def pruned_by(self) -> str:
        """The metric that the pruner looks at."""
        return str(self.pruner.get("metric") or self.metric)

    @property
    def is_maximised(self) -> bool:
        return self.goals[0].direction != "minimize"

    @property
    def has_gpu(self) -> bool:
        """False only where every trial that says what its cluster has, has none."""
        told = [t for t in self.trials if "cluster" in t.config]
        return not told or any(_at(t.config, "cluster.gpu") for t in told)

    @property
    def hour_unit(self) -> str:
        return hour_unit(self.has_gpu)

    @property
    def keys(self) -> tuple[str, ...]:
        """What varies: the keys of the space, then any other that a point names."""
        return tuple(dict.fromkeys([*self.space, *(key for trial in self.trials for key in trial.point)]))

    @property
    def varied(self) -> tuple[str, ...]:
        """The same without constants, which tell no trial from another."""
        return tuple(key for key in self.keys if not words.is_constant(self.space.get(key, "")))

    @property
    def best(self) -> TrialRecord | None:
        """The best of the completed trials; of equals, the earlier one."""
        done = [t for t in self.ranked if t.standing is Standing.COMPLETED and _finite(t.value) is not None]
        return done[0] if done else None

    @property
    def best_value(self) -> float | None:
        """Of the best: of a point that was run with several seeds their mean."""
        return self.mean_of_best.mean if self.mean_of_best else None

    @property
    def mean_of_best(self) -> Mean | None:
        return self.mean(self.best) if self.best else None

    @property
    def front(self) -> tuple[TrialRecord, ...]:
        """With several objectives: the completed trials that no other is better than, by the first objective."""
        if len(self.goals) < 2:
            return ()
        done = [t for t in self.ranked if t.standing is Standing.COMPLETED and len(t.values) == len(self.goals)]
        signs = [1 if goal.direction == "maximize" else -1 for goal in self.goals]
        return tuple(done[i] for i in pareto_front([t.values for t in done], signs))

    def replicates(self, trial: TrialRecord) -> tuple[TrialRecord, ...]:
        """The trials of the same point with other seeds, and the trial itself."""
        return self._by_point[_point_key(trial)] if self.has_replicates else (trial,)

    @property
    def has_replicates(self) -> bool:
        """Whether points are run with several seeds: all of them, or the best to confirm them."""
        return len(self.seeds) > 1 or bool(_whole(_mapping(self.settings.get("confirm")).get("top")))

    @property
    def confirming(self) -> int:
        """How many trials confirm the best: they come on top of `n_trials`, with seeds that the search does not use."""
        return sum(map(self.is_confirmation, self.trials))

    def is_confirmation(self, trial: TrialRecord) -> bool:
        is_asked = SEED not in self.space and _whole(self.part("confirm").get("top"))
        return bool(is_asked) and SEED in trial.point and trial.point[SEED] not in self.seeds

    def mean(self, trial: TrialRecord) -> Mean | None:
        """Of the replicates of a trial's point that completed."""
        done = [t.value for t in self.replicates(trial) if t.standing is Standing.COMPLETED and t.value is not None]
        return mean_of(done)

    @property
    def _by_point(self) -> dict[str, tuple[TrialRecord, ...]]:
        groups: dict[str, list[TrialRecord]] = {}
        for trial in self.trials:
            groups.setdefault(_point_key(trial), []).append(trial)
        return {key: tuple(group) for key, group in groups.items()}

    @property
    def ranked(self) -> tuple[TrialRecord, ...]:
        """Completed trials best first, of replicates by the mean of their point, and points that were confirmed before
        others; then those under way, then pruned ones, then the rest."""
        done = [t for t in self.trials if t.standing is Standing.COMPLETED and _finite(t.value) is not None]
        completed = ((t.number, t.point, t.value or 0.0) for t in done)
        points = ranked_points(completed, self.seeds, self.is_maximised, self.has_replicates)
        places = {number: place for place, point in enumerate(points) for number in point.trials}
        order = [Standing.COMPLETED, *Standing]

        def key(trial: TrialRecord) -> tuple[int, float, int]:
            known = _finite(places.get(trial.number, trial.latest))
            if known is None:
                return order.index(trial.standing), math.inf, trial.number
            is_descending = self.is_maximised and trial.number not in places
            return order.index(trial.standing), -known if is_descending else known, trial.number

        return tuple(sorted(self.trials, key=key))

    @property
    def counts(self) -> dict[Standing, int]:
        """Trials by standing, those that occur."""
        standings = [t.standing for t in self.trials]
        return {s: standings.count(s) for s in Standing if s in standings}

    @property
    def refusal(self) -> str | None:
        """What the scheduler said that takes no job of the study as it is; None: it took what it was asked for."""
        return next((t.state.reason for t in self.trials if t.state.is_refused), None)

    @property
    def is_live(self) -> bool:
        return any(t.is_live for t in self.trials)

    @property
    def gpu_hours(self) -> float:
        return sum(t.gpu_hours for t in self.trials)

    @property
    def spending(self) -> Spending:
        """What the booked attempts used, and on what."""
        wasted: dict[Cause, float] = {}
        for e in self.ledger:
            wasted[e.cause] = wasted.get(e.cause, 0.0) + e.wasted
        return Spending(
            requested=math.fsum(e.requested for e in self.ledger),
            queued_h=math.fsum(e.queued_h for e in self.ledger),
            boot=math.fsum(e.boot for e in self.ledger),
            productive=math.fsum(e.productive for e in self.ledger),
            wasted={c: h for c, h in sorted(wasted.items(), key=lambda w: -w[1]) if h > 0},
        )

    @property
    def saved_gpu_hours(self) -> float:
        return sum(t.saved_gpu_hours for t in self.trials)

    @property
    def refused_gpu_hours(self) -> float:
        """What the infeasible points would have cost, if each took as much as the median trial that ran to an end."""
        ran = [t.gpu_hours for t in self.trials if t.state.is_final and t.gpu_hours > 0]
        refused = sum(t.standing is Standing.INFEASIBLE for t in self.trials)
        return refused * statistics.median(ran) if ran else 0.0

    @property
    def forecast(self) -> Forecast | None:
        """What is still to come, while trials are under way; None where nothing has ended to go by."""
        ended = [t for t in self.trials if t.state.is_final and t.gpu_hours > 0]
        live = [t for t in self.trials if t.is_live]
        wanted = _whole(self.setting("n_trials"))
        if not ended or not live:
            return None
        more = max(len(live), (wanted or 0) - (len(self.trials) - len(live)))
        each = statistics.mean(t.gpu_hours for t in ended)
        begun = math.fsum(min(each, t.gpu_hours) for t in live)
        ahead = max(0.0, more * each - begun)
        if self.budget_gpu_hours is not None:
            ahead = min(ahead, max(0.0, self.budget_gpu_hours - self.gpu_hours))
        seconds = statistics.mean(t.seconds for t in ended) * (more * each - begun) / each
        return Forecast(more, ahead, seconds / max(1, _whole(self.setting("max_parallel")) or 1))

    @property
    def budget_gpu_hours(self) -> float | None:
        return _finite(self.setting("budget_gpu_hours"))

    @property
    def seconds(self) -> float | None:
        """From its start to now, or to the last end once nothing is under way."""
        if self.created is None:
            return None
        ends = [a.ended for t in self.trials for a in t.attempts if a.ended]
        ended = max(ends, default=self.created) if self.trials and not self.is_live else self.read_at
        return max(0.0, ended - self.created)

    def setting(self, name: str) -> Any:
        """A field of `schema.Study`: as the study was started, or its default."""
        given = self.settings.get(name)
        return given if given is not None else getattr(_DEFAULTS, name)

    def trial(self, number: int) -> TrialRecord | None:
        return next((t for t in self.trials if t.number == number), None)

    def label(self, trial: TrialRecord) -> str:
        """The point of a trial in a few words."""
        varied = set(self.varied)
        return words.label({k: v for k, v in trial.point.items() if k in varied}, self.space) or trial.algorithm


_DEFAULTS = Study()


def read_study(
    path: StudyDirectory | Path | str,
    *,
    metrics: Collection[str] = (),
    previous: StudyRecord | None = None,
    now: float | None = None,
) -> StudyRecord:
    """Read a study directory, whatever its condition.

    metrics   curves to hold in memory beside the objective and the training score
    previous  an earlier record of the same study: trials whose files did not change since are not read again
    """
    directory = path if isinstance(path, StudyDirectory) else StudyDirectory(Path(path))
    now = time.time() if now is None else now
    faults: list[str] = []
    asked = _mapping(_yaml(directory.config_file, faults))
    settings = {**_mapping(asked.get("study")), **_mapping(_attempted(directory.changes, {}))}
    metric = _goals(settings)[0].metric
    pruned_by = str(_mapping(settings.get("pruner")).get("metric") or metric)
    goals = [goal.metric for goal in _goals(settings)]
    wanted = list(dict.fromkeys([*goals, pruned_by, SCORE, STEP_SECONDS, *metrics]))
    silence_s = 60 * (_finite(settings.get("hung_after_min")) or _DEFAULTS.hung_after_min)

    ledger = tuple(e for e in _attempted(directory.ledger, []) if math.isfinite(e.gpu_hours))
    events = tuple(_attempted(lambda: list(directory.events()), []))
    nodes = _nodes(events)
    known = {t.directory.path: t for t in previous.trials} if previous and previous.metric == metric else {}
    trials = []
    for trial in _attempted(directory.trials, []):
        if not _is_trial(trial):
            continue
        before = known.get(trial.path)
        stamp = _stamp(trial)
        if (
            previous is None
            or before is None
            or before.files != stamp
            or not before.curves.keys() >= set(wanted)
            # a file may change twice within one tick of the file system's clock
            or max((m for _, m, _ in stamp), default=0) > (previous.read_at - 2) * 1e9
        ):
            before = _read_trial(trial, metric, wanted, stamp, faults)
        trials.append(_costed(_placed(before, nodes), ledger, now, silence_s))

    unread = [t.number for t in trials if t.is_damaged]
    faults += [f"state.json of trial {number} cannot be read: hysweep rebuild {directory.path}" for number in unread]
    return StudyRecord(
        directory=directory,
        name=words.clean(settings.get("name") or directory.path.absolute().name),
        settings=settings,
        space=_ranges(asked.get("space")),
        filters=tuple(str(f) for f in _sequence(_mapping(asked.get("space")).get("filter"))),
        seeds=tuple(s for s in _sequence(_mapping(asked.get("space")).get("seeds")) if isinstance(s, int)),
        overrides=tuple(str(o) for o in _sequence(asked.get("overrides"))),
        command=_command(asked.get("command")),
        cwd=str(asked.get("cwd") or ""),
        versions={str(k): str(v) for k, v in _mapping(asked.get("versions")).items()},
        commits={str(k): str(v) for k, v in _mapping(asked.get("commits")).items()},
        created=_finite(asked.get("created")),
        trials=tuple(trials),
        ledger=ledger,
        events=events,
        read_at=now,
        faults=tuple(faults),
        is_paused=directory.is_paused,
    )


def _point_key(trial: TrialRecord) -> str:
    return repr(sorted((key, repr(value)) for key, value in trial.point.items() if key != SEED))


def _is_trial(trial: TrialDirectory) -> bool:
    """False for a directory that no controller made."""
    number, _, id = trial.path.name.partition("-")
    return number.isdigit() and bool(id)


def _read_trial(
    trial: TrialDirectory,
    metric: str,
    wanted: Collection[str],
    stamp: tuple[tuple[str, int, int], ...],
    faults: list[str],
) -> TrialRecord:
    steps = _attempted(trial.metrics, {})
    last_step = max(steps, default=None)
    directories = _attempted(trial.attempts, [])
    attempts = tuple(_read_attempt(a, last_step if len(directories) == 1 else _last_step(a)) for a in directories)
    config = _mapping(_yaml(trial.config_file, faults))
    state = trial.state_if_legible()
    is_damaged = state is None
    state = state or State()
    if state.status is Status.SUBMITTED and state.began:
        attempts = tuple(_begun(a, state.began) if a.number == state.attempt else a for a in attempts)
    total = next((a.total_steps for a in reversed(attempts) if a.total_steps), None)
    return TrialRecord(
        directory=trial,
        number=trial.number,
        id=trial.id,
        point=_mapping(_attempted(trial.point, {})),
        config=config,
        state=state,
        attempts=attempts,
        metric=metric,
        curves=_curves(steps, wanted),
        last_step=last_step,
        total_steps=total or _whole(_at(config, "trainer.total_steps")),
        axes=_axes(attempts, directories, steps),
        files=stamp,
        is_damaged=is_damaged,
    )


def _axes(
    attempts: Sequence[AttemptRecord], directories: Sequence[AttemptDirectory], steps: Mapping[int, Mapping[str, Any]]
) -> dict[str, Curve]:
    """By step, at its end: tokens of the steps until then, hours since the trial's first start, GPU-hours of all its
    attempts until then. Those that the trainer did not measure are left out.

    A step ends where the times of the steps say so: the last one when the metrics were last written, but within its
    attempt.
    """
    axes = {name: Curve() for name in AXES}
    start = next((a.started for a in attempts if a.started), None)
    tokens = gpu_hours = 0.0
    if any(STEP_TOKENS in data for data in steps.values()):
        for step, data in steps.items():
            tokens += _finite(data.get(STEP_TOKENS)) or 0.0
            axes["tokens"].steps.append(step)
            axes["tokens"].values.append(tokens)
    ends: dict[int, tuple[float, float]] = {}
    for attempt, directory in zip(attempts, directories, strict=True):
        if attempt.started is None or start is None:
            continue
        rows = _attempted(directory.metrics, [])
        times = [_finite(data.get(STEP_SECONDS)) or 0.0 for _, data in rows]
        written = _written(directory.metrics_file) or attempt.started
        until = min(written, attempt.ended or written)
        at = max(attempt.started, until - math.fsum(times))
        ends = {step: end for step, end in ends.items() if not rows or step < rows[0][0]}
        for (step, _), seconds in zip(rows, times, strict=True):
            at += seconds
            ends[step] = ((at - start) / 3600, gpu_hours + (at - attempt.started) * attempt.gpus / 3600)
        gpu_hours += max(0.0, (attempt.ended or at) - attempt.started) * attempt.gpus / 3600
    if any(math.isfinite(data.get(STEP_SECONDS, math.nan)) for data in steps.values()):
        for step, (hours, spent) in sorted(ends.items()):
            for name, value in (("hours", hours), ("gpu_hours", spent)):
                axes[name].steps.append(step)
                axes[name].values.append(value)
    return axes


def _written(path: Path) -> float | None:
    """When a file was last written to."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _last_step(attempt: AttemptDirectory) -> int | None:
    return max((step for step, _ in _attempted(attempt.metrics, [])), default=None)


def _read_attempt(attempt: AttemptDirectory, last_step: int | None) -> AttemptRecord:
    end = _attempted(attempt.end)
    claim = _attempted(attempt.claimed)
    job = _mapping(_attempted(attempt.job))
    known = end if isinstance(end, End) else None
    return AttemptRecord(
        number=attempt.number,
        started=(known and _finite(known.started)) or (claim and _finite(claim.created)) or None,
        ended=(known and _finite(known.ended)) or None,
        seen=_attempted(attempt.last_sign_of_life, 0.0),
        cause=known.cause if known else None,
        phase=known.phase if known else Phase.UNKNOWN,
        reason=str(known.reason) if known else "",
        lines=tuple(str(line) for line in known.lines) if known else (),
        gpus=(_whole(job.get("nodes")) or 1) * (_whole(job.get("gpus_per_node")) or 1) if job else 0,
        total_steps=_whole(job.get("total_steps")),
        last_step=last_step,
        is_claimed=claim is not None,
        nodes=claim.host if claim else "",
    )


def _begun(attempt: AttemptRecord, began: float) -> AttemptRecord:
    """A job that holds its nodes, though the attempt's own process has not come up: it fetches an image, say."""
    return attempt if attempt.is_claimed else replace(attempt, started=began, seen=math.inf)


def _nodes(events: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, Any], str]:
    """Where attempts that are over ran, by trial and attempt, where the scheduler said so."""
    return {(e.get("trial"), e.get("attempt")): str(e["nodes"]) for e in events if e.get("nodes")}


def _placed(trial: TrialRecord, nodes: Mapping[tuple[Any, Any], str]) -> TrialRecord:
    """The trial with the nodes that the scheduler named rather than the first host alone."""
    running = {trial.state.attempt: trial.state.nodes} if not trial.state.is_final else {}
    named = {a.number: nodes.get((trial.number, a.number)) or running.get(a.number) for a in trial.attempts}
    if not any(named.values()):
        return trial
    return replace(trial, attempts=tuple(replace(a, nodes=named[a.number] or a.nodes) for a in trial.attempts))


def _costed(trial: TrialRecord, ledger: tuple[Booking, ...], now: float, silence_s: float) -> TrialRecord:
    """The trial with what it has cost by `now`, and what pruning it spared."""
    entries = {e.attempt: e for e in ledger if e.trial == trial.number}
    booked = {number: entry.gpu_hours for number, entry in entries.items()}
    attempts = tuple(_booked(a, entries[a.number]) if a.number in entries else a for a in trial.attempts)
    seconds = {a.number: a.seconds(now, silence_s) for a in attempts}
    running = {a.number: seconds[a.number] / 3600 * a.gpus for a in trial.attempts if a.number not in booked}
    spent = sum(booked.values()) + sum(running.values())
    saved = 0.0
    if trial.standing is Standing.PRUNED and trial.total_steps and trial.last_step:
        measured = [s for s in trial.curves[STEP_SECONDS].values if math.isfinite(s)]
        gpus = next((a.gpus for a in reversed(trial.attempts) if a.gpus), 1)
        a_step = statistics.median(measured) * gpus / 3600 if measured else spent / trial.last_step
        saved = max(0, trial.total_steps - trial.last_step) * a_step
    return replace(trial, attempts=attempts, seconds=sum(seconds.values()), gpu_hours=spent, saved_gpu_hours=saved)


def _booked(attempt: AttemptRecord, entry: Booking) -> AttemptRecord:
    """The controller knows why an attempt ended, and of one whose node left no word how long it took."""
    ended = attempt.ended
    if ended is None and attempt.started is not None and entry.gpus:
        ended = attempt.started + 3600 * entry.gpu_hours / entry.gpus
    return replace(attempt, cause=entry.cause, ended=ended)


def _curves(steps: Mapping[int, Mapping[str, Any]], metrics: Collection[str]) -> dict[str, Curve]:
    curves = {metric: Curve() for metric in metrics}
    names = logged(steps) if any("*" in metric for metric in metrics) else set()
    meant = {m: (matching(m, names) if "*" in m else [m]) for m in metrics}  # a pattern that fits several means none
    for step, data in steps.items():
        for metric, curve in curves.items():
            value = data.get(meant[metric][0]) if len(meant[metric]) == 1 else None
            if isinstance(value, (int, float)):
                curve.steps.append(step)
                curve.values.append(float(value))
    return curves


def _stamp(trial: TrialDirectory) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of what a trial is read from. A file replaced changes the time of its directory."""
    attempts = _attempted(trial.attempts, [])
    paths = [trial.path, *(p for a in attempts for p in (a.path, a.metrics_file, a.driver_log, a.node_log))]
    stamp = []
    for path in paths:
        try:
            s = os.stat(path)
        except OSError:
            continue
        stamp.append((str(path), s.st_mtime_ns, s.st_size))
    return tuple(stamp)


def _attempted(read: Callable[[], T], otherwise: Any = None) -> Any:
    """What `read` gives, or `otherwise` where the file under it is missing, torn or foreign."""
    try:
        return read()
    except _UNREADABLE:
        return otherwise


_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _yaml(path: Path, faults: list[str]) -> Any:
    """A YAML file as plain data. OmegaConf would stumble over a `${` that is only text."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML_LOADER)
    except FileNotFoundError:
        faults.append(f"{_relative(path)} is missing")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError):
        faults.append(f"{_relative(path)} cannot be read")
    return None


def _relative(path: Path) -> str:
    return path.name if path.name == "study.yaml" else f"{path.parent.name}/{path.name}"


def _command(given: Any) -> str:
    return shlex.join(map(str, given)) if isinstance(given, list) else str(given or "")


def _ranges(space: Any) -> dict[str, str]:
    """What varies, key by key, each with its range in words."""
    ranges: dict[str, str] = {}
    for key, content in _mapping(space).items():
        rows = [row for row in _sequence(content) if isinstance(row, dict)]
        if key in ("filter", "seeds"):
            continue
        if key == "zip" or key.startswith("zip."):
            ranges |= {str(k): ", ".join(_grammar(row.get(k)) for row in rows) for k in (rows[0] if rows else ())}
        elif rows and all("in" in row for row in rows):
            ranges[key] = "; ".join(
                f"{_grammar(row['in'])} " + (f"when {row['when']}" if "when" in row else "otherwise") for row in rows
            )
        else:
            ranges[key] = _grammar(content)
    return ranges


def _grammar(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given, default=str)


def _goals(settings: Mapping[str, Any]) -> tuple[Objective, ...]:
    """The objectives as written; what is missing or odd in them as the schema has it."""
    written = [_mapping(o) for o in _sequence(settings.get("objectives"))] or [settings]
    found = []
    for one in written:
        goal = Objective(last=_whole(one.get("last")) or Objective().last)
        for name in ("metric", "direction", "reduce"):
            if one.get(name):
                setattr(goal, name, str(one[name]))
        found.append(goal)
    return tuple(found)


def _mapping(given: Any) -> Mapping[str, Any]:
    return {str(k): v for k, v in given.items()} if isinstance(given, dict) else {}


def _sequence(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _at(config: Mapping[str, Any], path: str) -> Any:
    """A field of nested dicts by its dotted path; None where there is none."""
    node: Any = config
    for part in path.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _whole(given: Any) -> int | None:
    finite = _finite(given)
    return None if finite is None else int(finite)


def _finite(given: Any) -> float | None:
    """The number, if it is one that can be counted with."""
    is_number = isinstance(given, float) or (type(given) is int and abs(given) < 2**63)
    return float(given) if is_number and math.isfinite(given) else None
