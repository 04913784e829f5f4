"""A cluster that there is not: jobs wait, boot, make steps and end by a clock that somebody else moves on.

A job goes into a queue and starts when nodes for it are free, in the order in which jobs came; one that has to wait
keeps those behind it waiting. It boots, makes its steps, writes what it logs into its attempt's directory, and
ends: when it is done, at its time limit, or when its nodes fail or are taken. What hits an attempt is drawn by its
trial and number, so that the same study meets the same again.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from hysweep.launch.protocol import JobState, JobStatus, Refused
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause, Claim, End, checkpoint_step, write_text

STEP_SECONDS = "timing_s/step"
DAY = 86400.0
BOOT_S = 60.0
# Ends that the node of a real job would write down itself.
DONE = {Cause.COMPLETED, Cause.RUNG, Cause.TIMEOUT, Cause.KILLED}


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """nodes: how many there are; boot_s: from a job's start to its first step. Preemptions a day and job, failures a
    day and node; a node that failed is back at once."""

    nodes: int
    boot_s: float = BOOT_S
    preempt_per_day: float = 0.0
    node_fail_per_day: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Course:
    """A training from its first step to its last, when nothing happens to it.

    logged      the metrics of a step, from 1
    save_every  steps between checkpoints, less than 1 for none; asked for when somebody may go on from one
    """

    steps: int
    step_s: float
    logged: Callable[[int], Mapping[str, float]]
    save_every: Callable[[], int] = lambda: -1


@dataclass(slots=True)
class Run:
    """A job. `first`: the step that it begins with; `last`: with which it ends, the training's or that of a rung;
    `written`: the last that is in its metrics."""

    id: str
    attempt: AttemptDirectory
    nodes: int
    limit_s: float
    course: Course
    first: int
    last: int
    submitted: float
    written: int
    started: float | None = None
    ended: float | None = None
    due: float = math.inf
    end_of: Cause = Cause.COMPLETED  # why it will end at `due`, if nothing comes before
    is_held: bool = False

    @property
    def seconds(self) -> float:
        return 0.0 if self.started is None or self.ended is None else self.ended - self.started


@dataclass(slots=True)
class SimulatedLauncher:
    """`course_of`: how the training of an attempt goes. `writes_each_step`: somebody looks at metrics while jobs run;
    otherwise they are written once, when the job has ended."""

    cluster: SimulatedCluster
    course_of: Callable[[AttemptDirectory, Job], Course]
    writes_each_step: bool
    now: float
    runs: dict[str, Run] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    free: int = field(init=False)
    unseen: int = 0  # ends that nobody has looked at
    _queue: list[Run] = field(default_factory=list)
    _events: list[tuple[float, int, Run]] = field(default_factory=list)
    _by_attempt: dict[AttemptDirectory, str] = field(default_factory=dict)
    _order: count[int] = field(default_factory=count)
    _live: int = 0

    def __post_init__(self) -> None:
        self.free = self.cluster.nodes

    # --- what every launcher can do

    def plan(self, job: Job, attempt: AttemptDirectory) -> str:
        return f"{job.nodes} of {self.cluster.nodes} simulated nodes"

    def submit(self, attempt: AttemptDirectory) -> str:
        self.calls["submit"] += 1
        if attempt in self._by_attempt:
            return self._by_attempt[attempt]
        job = Job.from_dict(attempt.job() or {})
        if job.nodes > self.cluster.nodes:
            raise Refused(f"it asks for {job.nodes} nodes, and the cluster has {self.cluster.nodes}")
        first = max(0, checkpoint_step(attempt.trial.checkpoints)) + 1
        course = self.course_of(attempt, job)
        last = job.stop_step or course.steps
        id = str(len(self.runs) + 1)
        run = Run(id, attempt, job.nodes, job.timeout_min * 60.0, course, first, last, self.now, first - 1)
        self.runs[id] = run
        self._by_attempt[attempt] = id
        self._live += 1
        self._queue.append(run)
        self._start_what_fits()
        return id

    def find(self, attempt: AttemptDirectory) -> str | None:
        self.calls["find"] += 1
        return self._by_attempt.get(attempt)

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        self.calls["states"] += 1
        self.unseen = 0
        return {id: _state(self.runs[id]) for id in job_ids}

    def cancel(self, job_ids: Iterable[str]) -> None:
        self.calls["cancel"] += 1
        for run in (self.runs[id] for id in job_ids):
            if run.ended is None:
                self._end(run, Cause.KILLED)
        self._start_what_fits()

    def hold(self, job_ids: Iterable[str], release: bool = False) -> bool:
        self.calls["hold"] += 1
        for id in job_ids:
            self.runs[id].is_held = not release
        self._start_what_fits()
        return True

    # --- time

    @property
    def live(self) -> int:
        """Jobs that have not ended."""
        return self._live

    def next_event(self) -> float | None:
        """When something happens next that can be seen from outside; None: nothing does by itself."""
        while self._events and self._events[0][2].ended is not None:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

    def advance(self, to: float) -> None:
        """Let everything happen up to a time, in its order."""
        while (at := self.next_event()) is not None and at <= to:
            _, _, run = heapq.heappop(self._events)
            self.now = max(self.now, at)
            if at >= run.due:
                self._end(run, run.end_of)
                self._start_what_fits()
            else:
                self._write(run)
                self._expect(run)
        self.now = max(self.now, to)

    def _start_what_fits(self) -> None:
        still: list[Run] = []
        is_open = True  # until one has to wait
        for run in self._queue:
            if run.ended is not None:
                continue
            is_open = is_open and (run.is_held or run.nodes <= self.free)
            if is_open and not run.is_held:
                self._start(run)
            else:
                still.append(run)
        self._queue = still

    def _start(self, run: Run) -> None:
        run.started = self.now
        self.free -= run.nodes
        run.attempt.claim(Claim("simulated", 0, self.now, job=run.id))
        draw = random.Random(f"{self.cluster.seed} {run.attempt.trial.path.name} {run.attempt.number}")
        done = Cause.COMPLETED if run.last == run.course.steps else Cause.RUNG
        ends = [
            (self.cluster.boot_s + (run.last - run.first + 1) * run.course.step_s, done),
            (run.limit_s, Cause.TIMEOUT),
            (_wait(draw, self.cluster.preempt_per_day), Cause.PREEMPTED),
            (_wait(draw, self.cluster.node_fail_per_day * run.nodes), Cause.NODE_FAIL),
        ]
        seconds, run.end_of = min(ends, key=lambda e: e[0])
        run.due = self.now + seconds
        self._expect(run)

    def _expect(self, run: Run) -> None:
        """Note when the run is to be looked at next: after its next step, or at its end."""
        assert run.started is not None
        step_done = run.started + self.cluster.boot_s + (run.written - run.first + 2) * run.course.step_s
        at = min(run.due, step_done) if self.writes_each_step else run.due
        heapq.heappush(self._events, (at, next(self._order), run))

    def _end(self, run: Run, cause: Cause) -> None:
        self._live -= 1
        self.unseen += 1
        run.ended, run.end_of = self.now, cause
        if run.started is None:
            return
        self.free += run.nodes
        self._write(run)
        if cause in DONE:
            run.attempt.finish(End(cause, started=run.started, ended=self.now))

    def _write(self, run: Run) -> None:
        """What was logged by now; of one that ended before it was done, also its newest checkpoint."""
        assert run.started is not None
        course, begun = run.course, run.started + self.cluster.boot_s
        # a step that ends just now has ended: times are sums, and may be off by a rounding
        done = run.first - 1 + math.floor((self.now - begun) / course.step_s + 1e-6)
        done = max(run.written, min(done, run.last))
        if done > run.written:
            self._log(run, done)
        if run.ended is not None and run.end_of is not Cause.COMPLETED and (every := course.save_every()) > 0:
            checkpoints, saved = run.attempt.trial.checkpoints, done // every * every
            if saved >= run.first:
                checkpoints.mkdir(exist_ok=True)
                write_text(checkpoints / "latest_checkpointed_iteration.txt", str(saved))

    def _log(self, run: Run, done: int) -> None:
        """The steps up to one, with the time at which that one was done as the file's."""
        assert run.started is not None
        course, begun = run.course, run.started + self.cluster.boot_s
        lines = (
            {"step": step, "data": {STEP_SECONDS: course.step_s, **course.logged(step)}}
            for step in range(run.written + 1, done + 1)
        )
        with open(run.attempt.metrics_file, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        written = round((begun + (done - run.first + 1) * course.step_s) * 1e9)
        os.utime(run.attempt.metrics_file, ns=(written, written))
        run.written = done


def _wait(draw: random.Random, per_day: float) -> float:
    """Seconds to the next of what happens so often a day, at any time alike."""
    drawn = draw.random()  # also where it never happens: one rate leaves the other's draws as they are
    return -math.log(1.0 - drawn) * DAY / per_day if per_day else math.inf


def _state(run: Run) -> JobState:
    if run.ended is not None:
        # a job that never began has no times of its own, as in a scheduler's record
        cause = None if run.end_of is Cause.KILLED else run.end_of
        return JobState(JobStatus.ENDED, _said(run), cause, run.started, run.ended, run.submitted)
    status = JobStatus.PENDING if run.started is None else JobStatus.RUNNING
    return JobState(status, started=run.started, submitted=run.submitted, is_held=run.is_held)


def _said(run: Run) -> str:
    return {
        Cause.PREEMPTED: "its nodes were given to another job",
        Cause.NODE_FAIL: "one of its nodes failed",
        Cause.TIMEOUT: f"it reached its time limit of {run.limit_s / 60:g} min",
    }.get(run.end_of, "")
