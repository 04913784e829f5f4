"""A launcher whose jobs live in the test: for speed. The real one is in tests/launch and the smoke test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hysweep.launch import Busy, JobState, JobStatus, Refused
from hysweep.launch.slurm import blamed
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause, Claim, End, checkpoint_step

Curve = Callable[[dict, int], list[float]]  # (point, attempt) -> the score of each step


class FakeLauncher:
    """Jobs move on by one step at each look. `ends` scripts how an attempt ends: (trial, attempt) -> cause.

    `nodes` are blamed for it; the first `busy_for` submissions come at a bad time, and all are refused if `refuses`,
    or those that `refuses_job` has a word against.
    A job that has a step to stop at does, with a checkpoint, and the next attempt goes on from there.
    A job waits for `queued_for` looks; with `can_hold` for longer, where it is told to.
    """

    def __init__(
        self,
        curve: Curve,
        ends: dict[tuple[int, int], Cause] | None = None,
        nodes: tuple[str, ...] = (),
        busy_for: int = 0,
        refuses: str = "",
        queued_for: int = 0,
        can_hold: bool = True,
        refuses_job: Callable[[dict], str] = lambda job: "",
    ) -> None:
        self.curve, self.ends, self.nodes = curve, ends or {}, nodes
        self.busy_for, self.refuses, self.refuses_job = busy_for, refuses, refuses_job
        self.asked = 0  # how often it was asked to take a job
        self.runs: dict[str, AttemptDirectory] = {}  # job id -> what it runs now, where that is not what it began with
        self.jobs: dict[str, int] = {}  # job id -> steps done
        self.submitted: list[str] = []
        self.cancelled: set[str] = set()
        self.most_at_once = 0
        self.queued_for = queued_for  # looks
        self.can_hold = can_hold
        self.held: set[str] = set()
        self.waits: dict[str, int] = {}

    def plan(self, job, attempt) -> str:
        return "fake"

    def submit(self, attempt: AttemptDirectory) -> str:
        assert attempt.job() is not None, "job.json comes first"
        self.asked += 1
        if said := self.refuses or self.refuses_job(attempt.job()):
            raise blamed(Refused(said), Job.from_dict(attempt.job() or {}).site)
        if self.busy_for:
            self.busy_for -= 1
            raise Busy("too many")
        id = str(attempt.path)
        if attempt.claim(Claim("fake", 1, time.time())):
            self.submitted.append(id)
            self.jobs[id] = max(0, checkpoint_step(attempt.trial.checkpoints))
            self.waits[id] = self.queued_for
        self.most_at_once = max(self.most_at_once, len(self._alive()))
        return id

    def find(self, attempt: AttemptDirectory) -> str | None:
        return str(attempt.path) if attempt.claimed() else None

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        return {id: self._look(id) for id in job_ids}

    def cancel(self, job_ids: Iterable[str]) -> None:
        for id in job_ids:
            self.cancelled.add(id)
            if self._run(id).end() is None:
                self._finish(id, Cause.KILLED)

    def hold(self, job_ids: Iterable[str], release: bool = False) -> bool:
        if self.can_hold:
            (self.held.difference_update if release else self.held.update)(job_ids)
        return self.can_hold

    def run_again(self, id: str, attempt: AttemptDirectory) -> None:
        """As a scheduler does by itself."""
        self.runs[id], self.jobs[id] = attempt, 0

    def _alive(self) -> list[str]:
        return [id for id in self.jobs if self._run(id).end() is None]

    def _run(self, id: str) -> AttemptDirectory:
        return self.runs.get(id, AttemptDirectory(Path(id)))

    def _look(self, id: str) -> JobState:
        attempt = self._run(id)
        if attempt.end() is not None:
            return JobState(JobStatus.ENDED)
        if self.waits.get(id, 0):
            if id not in self.held:
                self.waits[id] -= 1
            return JobState(JobStatus.PENDING, is_held=id in self.held)
        trial, number = attempt.trial, attempt.number
        scripted = self.ends.get((trial.number, number))
        curve = self.curve(trial.point(), number)
        step, stop = self.jobs[id], (attempt.job() or {}).get("stop_step")
        if step < (stop or len(curve)) and not (scripted and step >= 2):
            with open(attempt.metrics_file, "a") as file:
                file.write(json.dumps({"step": step + 1, "data": {"critic/score/mean": curve[step]}}) + "\n")
            self.jobs[id] += 1
            return JobState(JobStatus.RUNNING)
        if step == stop:
            attempt.trial.checkpoints.mkdir(exist_ok=True)
            (attempt.trial.checkpoints / "latest_checkpointed_iteration.txt").write_text(f"{stop}")
            scripted = scripted or Cause.RUNG
        self._finish(id, scripted or Cause.COMPLETED)
        return JobState(JobStatus.ENDED)

    def _finish(self, id: str, cause: Cause) -> None:
        now = time.time()
        self._run(id).finish(End(cause, started=now - 36, ended=now, nodes=self.nodes))
