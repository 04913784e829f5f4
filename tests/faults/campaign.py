"""A study in bad weather: the real controller over a simulated cluster, where whatever can go wrong does, by a seed.

The scheduler is busy before or after it has taken a job, says nothing of what it knows, tells what was true a while
ago, and loses cancellations; jobs are preempted and nodes fail; disks are full now and then; clocks of the hosts that
drive it disagree; and the controller dies between any two of its acts, and in the middle of a line.
"""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend

from hysweep.compose import Composer
from hysweep.launch import Busy, JobState, JobStatus
from hysweep.launch.simulated import Course, SimulatedCluster, SimulatedLauncher
from hysweep.schema.job import Job
from hysweep.study import define, storage
from hysweep.study.controller import Controller
from hysweep.study.curves import Model
from hysweep.study.simulation import BEGINNING
from hysweep.track import AttemptDirectory, StudyDirectory, files, telling, thrown_away
from hysweep.track import directory as directory_module

SPACE = (
    "algorithm=grpo,rloo", "trainer.learning_rate=tag(log,interval(1e-4,1e-2))", "study.sampler=random",
    "study.max_parallel=4", "trainer.total_steps=10", "trainer.save_every=2", "cluster.timeout_min=240",
)  # fmt: skip
STEP_S, POLL_S, SKEW_S = 60.0, 30.0, 90.0
MOST_LOOKS = 20_000


class Crash(BaseException):
    """The process is gone: nothing after this line happens."""


class Weather:
    """What goes wrong, and how often: `strength` 0 for never. It blows while the controller acts, and only then."""

    def __init__(self, seed: int, strength: float = 1.0) -> None:
        self.draw, self.strength, self.blows = random.Random(seed), strength, False
        self.hits: dict[str, int] = {}

    def strikes(self, what: str, chance: float) -> bool:
        if not self.blows or self.draw.random() >= chance * self.strength:
            return False
        self.hits[what] = self.hits.get(what, 0) + 1
        return True

    def around(self, act: Callable[..., Any], tear: Callable[..., None] = lambda *args: None) -> Callable[..., Any]:
        """An act that leaves a trace on disk. `tear`: does half of it."""

        def struck(*args: Any, **kwargs: Any) -> Any:
            if ".lock" in str(args[0]):  # Optuna's own, within one of the acts
                return act(*args, **kwargs)
            if self.strikes("died before an act", 0.004):
                raise Crash
            if self.strikes("died within an act", 0.004):
                tear(*args)
                raise Crash
            if self.strikes("disk full", 0.004):
                raise OSError(errno.ENOSPC, "No space left on device")
            done = act(*args, **kwargs)
            if self.strikes("died after an act", 0.004):
                raise Crash
            return done

        return struck


class Stormy:
    """A scheduler that one cannot rely on."""

    def __init__(self, within: SimulatedLauncher, weather: Weather) -> None:
        self.within, self.weather = within, weather
        self.said: dict[str, JobState] = {}

    @contextmanager
    def calm(self) -> Iterator[None]:
        blew, self.weather.blows = self.weather.blows, False
        try:
            yield
        finally:
            self.weather.blows = blew

    def plan(self, job: Job, attempt: AttemptDirectory) -> str:
        return self.within.plan(job, attempt)

    def submit(self, attempt: AttemptDirectory) -> str:
        if self.weather.strikes("busy", 0.1):
            raise Busy("socket timed out")
        with self.calm():
            id = self.within.submit(attempt)
        if self.weather.strikes("taken, but the answer was lost", 0.1):
            raise Busy("socket timed out")
        if self.weather.strikes("died before it could note the job", 0.05):
            raise Crash
        return id

    def find(self, attempt: AttemptDirectory) -> str | None:
        if self.weather.strikes("no answer", 0.1):
            raise Busy("slurmctld does not answer")
        return self.within.find(attempt)

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        wanted = list(job_ids)
        if self.weather.strikes("no answer", 0.1):
            return {id: JobState(JobStatus.UNKNOWN, "slurmctld does not answer") for id in wanted}
        fresh = self.within.states(wanted)
        old = {id: self.said[id] for id in wanted if id in self.said and self.weather.strikes("told late", 0.1)}
        self.said |= fresh | old
        return fresh | old

    def cancel(self, job_ids: Iterable[str]) -> None:
        wanted = [id for id in job_ids if not self.weather.strikes("cancel lost", 0.3)]
        with self.calm():
            self.within.cancel(wanted)

    def hold(self, job_ids: Iterable[str], release: bool = False) -> bool:
        with self.calm():
            return self.within.hold(job_ids, release)


def half_a_line(path: Path, content: Any) -> None:
    text = json.dumps(content)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text[: len(text) // 2])


def half_a_log(backend: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
    half_a_line(Path(backend._file_path), logs[0])


@contextmanager
def striking(weather: Weather) -> Iterator[None]:
    """Every act of the controller that leaves a trace on disk is exposed to the weather."""
    places: list[tuple[Any, str, Callable[..., Any]]] = [
        (files.os, "replace", weather.around(files.os.replace)),
        (directory_module, "append_line", weather.around(directory_module.append_line, half_a_line)),
        (storage._Journal, "append_logs", weather.around(storage._Journal.append_logs, half_a_log)),
    ]
    saved = [(place, name, getattr(place, name)) for place, name, _ in places]
    for place, name, struck in places:
        setattr(place, name, struck)
    try:
        yield
    finally:
        for place, name, act in saved:
            setattr(place, name, act)


def run(composer: Composer, root: Path, name: str, seed: int, weather: Weather, *more: str) -> dict[str, Any]:
    """One study to its end; what came of it."""
    words = [*SPACE, f"study.poll_s={POLL_S}", f"study.seed={seed}", f"study.name={name}", f"study.root={root}", *more]
    definition = define(composer.compose(words))
    directory = definition.directory
    directory.create(definition.to_yaml(), composer.snapshot())
    curves = Model(definition.space, definition.study, seed)

    def course_of(attempt: AttemptDirectory, job: Job) -> Course:
        steps = job.total_steps or 0
        return Course(steps, STEP_S, curves(attempt.trial.point(), steps).logged, lambda: 2)

    rough = weather.strength > 0
    nodes = SimulatedCluster(4, preempt_per_day=20.0 * rough, node_fail_per_day=10.0 * rough, seed=seed)
    scheduler = SimulatedLauncher(nodes, course_of, bool(definition.study.rules), BEGINNING)
    stormy = Stormy(scheduler, weather)
    skew, looks, deaths = 0.0, 0, 0
    with telling(lambda: scheduler.now + skew), thrown_away(), striking(weather):
        is_over = False
        while not is_over:
            skew = weather.draw.uniform(-SKEW_S, SKEW_S) if rough else 0.0  # it goes on from another host
            try:
                weather.blows = True
                with Controller(directory, launchers=lambda _: stormy) as controller:
                    while not is_over:
                        weather.blows = True
                        is_over = not controller.tick()
                        weather.blows = False
                        looks += 1
                        assert looks < MOST_LOOKS, "the study does not end"
                        scheduler.advance(scheduler.now + POLL_S)
            except (Crash, OSError):
                deaths += 1
                assert deaths < MOST_LOOKS, "the study does not get further"
            finally:
                weather.blows = False
            scheduler.advance(scheduler.now + POLL_S)
    return came_of(directory, scheduler) | {"deaths": deaths, "looks": looks, "hits": weather.hits}


def came_of(directory: StudyDirectory, scheduler: SimulatedLauncher) -> dict[str, Any]:
    """Of each trial its cause and value, what Optuna was told, what was booked, and each job that there was."""
    import optuna
    from optuna.storages import JournalStorage

    index = JournalStorage(JournalFileBackend(str(directory.journal)))
    told = optuna.load_study(study_name=None, storage=index).trials
    states = {t.number: t.state() for t in directory.trials()}
    return {
        "points": {t.number: (t.id, t.point()) for t in directory.trials()},
        "causes": {number: s.cause for number, s in states.items()},
        "values": {number: s.value for number, s in states.items()},
        "steps": {t.number: list(t.metrics()) for t in directory.trials()},
        "told": {t.number: (t.state.name, t.values) for t in told},
        "booked": sorted((e.trial, e.attempt) for e in directory.ledger()),
        "jobs": sorted((r.attempt.trial.number, r.attempt.number) for r in scheduler.runs.values()),
        "open": [r.id for r in scheduler.runs.values() if r.ended is None],
        "used": sum(r.seconds for r in scheduler.runs.values()) / 3600,
        "hours": sum(e.gpu_hours for e in directory.ledger()),
        "by_attempt": {(e.trial, e.attempt): e.cause for e in directory.ledger()},
        "ends": {(r.attempt.trial.number, r.attempt.number): r.end_of for r in scheduler.runs.values()},
    }
