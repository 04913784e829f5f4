"""A study whose controller is killed with SIGKILL again and again, at random instants: `python -m
tests.study.kill_storm DIRECTORY KILLS TRIALS SEED` runs it undisturbed and so, and prints what came of both as JSON.

A process of its own, since it forks. Jobs live on disk alone, as those of a scheduler do.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hysweep.compose import Composer
from hysweep.launch import JobState, JobStatus
from hysweep.study import define
from hysweep.study import definition as definitions
from hysweep.study.controller import Controller
from hysweep.track import AttemptDirectory, Cause, Claim, End, StudyDirectory, append_line, write_text

SECONDS = 0.03  # of each job
SPACE = ("trainer.learning_rate=tag(log,interval(1e-4,1e-2))", "rollout.n=2,4,8", "study.sampler=random")


class DiskLauncher:
    """A job is there once its attempt is claimed, and over once its time is."""

    def submit(self, attempt: AttemptDirectory) -> str:
        assert attempt.job() is not None
        if not attempt.claim(Claim("disk", 1, time.time())):
            append_line(attempt.trial.path.parent.parent / "submitted-twice.jsonl", {"attempt": str(attempt.path)})
        return str(attempt.path)

    def find(self, attempt: AttemptDirectory) -> str | None:
        return str(attempt.path) if attempt.claimed() else None

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        return {job: self._look(AttemptDirectory(Path(job))) for job in job_ids}

    def cancel(self, job_ids: Iterable[str]) -> None:
        raise AssertionError("nothing is cancelled here")

    def hold(self, job_ids: Iterable[str], release: bool = False) -> bool:
        return False

    def plan(self, job: object, attempt: AttemptDirectory) -> str:
        return ""

    def _look(self, attempt: AttemptDirectory) -> JobState:
        claim = attempt.claimed()
        assert claim is not None
        if time.time() - claim.created < SECONDS:
            return JobState(JobStatus.RUNNING, started=claim.created)
        if attempt.end() is None:
            point, number = attempt.trial.point(), attempt.trial.number
            score = point["rollout.n"] + point["trainer.learning_rate"]
            rows = [{"step": n, "data": {"critic/score/mean": score * n, "timing_s/step": 0.01}} for n in (1, 2)]
            write_text(attempt.metrics_file, "".join(json.dumps(r) + "\n" for r in rows))
            cause = Cause.COMPLETED
            if number % 10 == 3 and attempt.number == 1:
                cause = Cause.PORT_CLASH
            elif number % 25 == 7:
                cause = Cause.DIVERGED
            attempt.finish(End(cause, started=claim.created, ended=claim.created + SECONDS))
        return JobState(JobStatus.ENDED)


def begin(composer: Composer, root: Path, name: str, trials: int) -> StudyDirectory:
    words = [*SPACE, f"study.name={name}", f"study.root={root}", f"study.n_trials={trials}", "study.max_parallel=8"]
    definition = define(composer.compose(words))
    definition.directory.create(definition.to_yaml(), composer.snapshot())
    return definition.directory


def drive(directory: StudyDirectory, launcher: DiskLauncher) -> None:
    with Controller(directory, launchers=lambda name: launcher) as c:
        while c.tick():
            time.sleep(0.002)


def storm(directory: StudyDirectory, launcher: DiskLauncher, kills: int, seconds: float, rng: random.Random) -> int:
    """Kill it so often; returns how often that hit a study that was not over. `seconds`: of an undisturbed run."""
    hit, start = 0, 0.0
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            try:
                drive(directory, launcher)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0, 2 * (0.5 * seconds / kills + start)))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        hit += os.WIFSIGNALED(status)
        began = time.monotonic()
        with Controller(directory, launchers=lambda name: launcher):
            start = time.monotonic() - began  # what a start costs by now: it reads the directory
    return hit


def result(directory: StudyDirectory) -> dict[str, Any]:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(directory.journal)))
    told = optuna.load_study(study_name=None, storage=storage).trials
    trials = []
    for trial in directory.trials():
        state = trial.state()
        trials.append([trial.number, trial.id, trial.point(), str(state.cause), state.value, len(trial.attempts())])
    return {
        "trials": trials,
        "ledger": sorted([e.trial, e.attempt, str(e.cause), round(e.gpu_hours, 9)] for e in directory.ledger()),
        "told": [[t.number, t.state.name, t.params, t.value] for t in told],
        "twice": (directory.path / "submitted-twice.jsonl").exists(),
    }


def main(root: Path, kills: int, trials: int, seed: int) -> None:
    composer = Composer()
    definitions.Composer = lambda *a, **k: composer  # type: ignore[assignment, misc]  # composes each point once
    launcher = DiskLauncher()
    whole = begin(composer, root, "whole", trials)
    began = time.monotonic()
    drive(whole, launcher)
    seconds = time.monotonic() - began
    stormy = begin(composer, root, "stormy", trials)
    hit = storm(stormy, launcher, kills, seconds, random.Random(seed))
    drive(stormy, launcher)
    print(json.dumps({"whole": result(whole), "stormy": result(stormy), "hit": hit, "seconds": seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
