"""What the controller costs: CPU a trial, and CPU a step with many trials behind it and as many in flight.

    python benchmarks/controller.py [TRIALS] [ENDED] [IN_FLIGHT]

TRIALS (200) run from their asking to their end, on a launcher in memory whose jobs end at once; random sampler, no
pruner. Then a study of ENDED (10000) trials is made up, and steps are timed in it with IN_FLIGHT (100) jobs that go
on, beside the same steps in a study where none has ended. Ends with 1 when those behind cost anything that can be seen.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import optuna

from hysweep.compose import Composer
from hysweep.launch import JobState, JobStatus
from hysweep.study import controller, define
from hysweep.study.controller import Controller
from hysweep.study.storage import open_storage
from hysweep.track import AttemptDirectory, Cause, Claim, End, State, Status, StudyDirectory

SPACE = ("trainer.learning_rate=tag(log,interval(1e-4,1e-2))", "study.sampler=random")
STEPS = 200
MOST = 2.0  # times as much with those behind as without


class Memory:
    """`runs_on`: jobs that never end."""

    def __init__(self, runs_on: bool) -> None:
        self.runs_on = runs_on

    def plan(self, job: object, attempt: AttemptDirectory) -> str:
        return ""

    def submit(self, attempt: AttemptDirectory) -> str:
        attempt.claim(Claim("memory", 1, time.time()))
        return str(attempt.path)

    def find(self, attempt: AttemptDirectory) -> str | None:
        return str(attempt.path) if attempt.claimed() else None

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        return {job: self._look(job) for job in job_ids}

    def cancel(self, job_ids: Iterable[str]) -> None:
        pass

    def hold(self, job_ids: Iterable[str], release: bool = False) -> bool:
        return False

    def _look(self, job: str) -> JobState:
        if self.runs_on:
            return JobState(JobStatus.RUNNING)
        attempt = AttemptDirectory(Path(job))
        attempt.metrics_file.write_text(json.dumps({"step": 1, "data": {"critic/score/mean": 0.5}}) + "\n")
        attempt.finish(End(Cause.COMPLETED, started=time.time() - 1, ended=time.time()))
        return JobState(JobStatus.ENDED)


def begin(composer: Composer, root: str, name: str, trials: int, in_flight: int) -> StudyDirectory:
    wide = (f"study.n_trials={trials}", f"study.max_parallel={in_flight}")
    definition = define(composer.compose([*SPACE, *wide, f"study.name={name}", f"study.root={root}"]))
    definition.directory.create(definition.to_yaml(), composer.snapshot())
    return definition.directory


def make_up(directory: StudyDirectory, ended: int, frozen: str) -> None:
    """Trials that ended, in the directory and in the journal."""
    with Controller(directory, launchers=lambda name: Memory(True)) as c:
        definition = c.definition
    study = optuna.load_study(study_name=definition.study.name, storage=open_storage(definition.study, directory))
    key, span = "trainer.learning_rate", optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)
    for number in range(ended):
        point = {key: 1e-4 * 100 ** (number / ended)}
        study.add_trial(optuna.trial.create_trial(params=point, distributions={key: span}, value=0.5))
        trial = directory.path / "trials" / f"{number:04d}-{number:012x}"
        (trial / "attempts" / "1").mkdir(parents=True)
        (trial / "trial.yaml").write_text(frozen)
        (trial / "point.json").write_text(json.dumps(point))
        state = State(Status.ENDED, 1, f"j{number}", cause=Cause.COMPLETED, value=0.5, updated=float(number))
        (trial / "state.json").write_text(json.dumps(state.as_dict()))


def cpu(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def main(trials: int = 200, ended: int = 10_000, in_flight: int = 100) -> int:
    composer = Composer()
    controller.Composer = lambda *a, **k: composer  # type: ignore[assignment, misc]  # a start is not what is measured
    with tempfile.TemporaryDirectory() as root:
        whole = begin(composer, root, "whole", trials, 10)

        def drive() -> None:
            with Controller(whole, launchers=lambda name: Memory(False)) as c:
                while c.tick():
                    pass

        began = time.monotonic()
        a_trial = cpu(drive) / trials
        wall = (time.monotonic() - began) / trials
        print(
            f"a trial, from asking to telling: {a_trial * 1000:.1f} ms of CPU, {wall * 1000:.1f} ms ({trials} trials)"
        )

        frozen = composer.compose(["trainer.learning_rate=1e-3"]).trial_yaml()
        steps: dict[int, float] = {}
        for behind in (0, ended):
            directory = begin(composer, root, f"behind-{behind}", behind + in_flight, in_flight)
            make_up(directory, behind, frozen)
            began = time.monotonic()
            with Controller(directory, launchers=lambda name: Memory(True)) as c:
                start = time.monotonic() - began
                asked = cpu(c.tick)
                steps[behind] = cpu(lambda c=c: [c.tick() for _ in range(STEPS)]) / STEPS
            print(
                f"{behind:6} ended, {in_flight} in flight: a step {steps[behind] * 1000:.2f} ms of CPU;"
                f" a start {start:.1f} s; asking for and submitting one {asked / in_flight * 1000:.1f} ms"
            )
    ratio = steps[ended] / steps[0]
    print(f"a step with {ended} trials behind it costs {ratio:.2f} times one with none (at most {MOST:g})")
    return int(ratio > MOST)


if __name__ == "__main__":
    os.environ.setdefault("HYSWEEP_CACHE_DIR", tempfile.mkdtemp())
    sys.exit(main(*map(int, sys.argv[1:])))
