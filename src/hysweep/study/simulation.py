"""A study driven by the real controller, on a cluster that there is not, by a clock that jumps to what happens next.

The controller looks every study.poll_s seconds, as it does in earnest. Looks at which there is nothing to see are left
out, which changes nothing but the time that it takes to find out.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hysweep.compose import Composer
from hysweep.compose.composer import load_trial
from hysweep.launch.simulated import Course, SimulatedCluster, SimulatedLauncher
from hysweep.schema import BadInput, Problem, Pruner, Trial
from hysweep.schema.job import Job
from hysweep.study.controller import Controller
from hysweep.study.curves import Curves
from hysweep.study.definition import Definition
from hysweep.study.replicates import best_points
from hysweep.track import ACTIONS, AttemptDirectory, Cause, StudyDirectory, Verdict, telling, thrown_away

MOST_ATTEMPTS = 300  # of one trial
BEGINNING = 1e9  # what the clock says at first: seconds on a whole number, so that sums are exact

Progress = Callable[[int, int], None]  # trials that ended, of so many


@dataclass(frozen=True, slots=True)
class Stay:
    """A job on the cluster, in seconds since the study began."""

    trial: int
    attempt: int
    nodes: int
    submitted: float
    started: float
    ended: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a simulated study. Times in seconds, hours as the study books them.

    causes       how many trials ended by what
    utilisation  node-seconds that jobs had, of those that there were until the last job ended
    queued_h     hours that jobs waited, together
    wasted       GPU-hours by cause
    best         of a point that was run with several seeds their mean
    calls        of the controller to the scheduler, by what it asked
    """

    trials: int
    causes: Mapping[Cause, int]
    makespan_s: float
    gpu_hours: float
    utilisation: float
    queued_h: float
    boot: float
    productive: float
    wasted: Mapping[Cause, float]
    best: float | None
    best_point: Mapping[str, Any] | None
    why_over: str
    polls: int
    calls: Mapping[str, int]
    stays: tuple[Stay, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(n for cause, n in self.causes.items() if ACTIONS[cause].verdict is verdict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "trials": self.trials,
            "completed": self.count(Verdict.VALUE),
            "pruned": self.count(Verdict.PRUNED),
            "failed": self.count(Verdict.FAILED),
            "infeasible": self.count(Verdict.INFEASIBLE),
            "makespan_s": self.makespan_s,
            "gpu_hours": self.gpu_hours,
            "utilisation": self.utilisation,
            "queued_h": self.queued_h,
            "boot_gpu_hours": self.boot,
            "productive_gpu_hours": self.productive,
            "wasted_gpu_hours": {str(c): h for c, h in self.wasted.items()},
            "best": self.best,
            "best_point": self.best_point,
            "why_over": self.why_over,
            "polls": self.polls,
            "scheduler_calls": dict(self.calls),
        }


def without_pruning(definition: Definition) -> Definition:
    return replace(definition, study=replace(definition.study, pruner=Pruner(), pruners=[]))


def simulate_study(
    definition: Definition,
    composer: Composer,
    cluster: SimulatedCluster,
    curves: Curves,
    root: Path,
    step_s: float | None = None,
    progress: Progress = lambda ended, of: None,
) -> Outcome:
    """Run a study of simulated jobs to its end, in a directory under `root`.

    step_s  seconds of a step of every trial; None: as the curves say, or as the layout is predicted
    Raises BadInput where a trial has no number of steps, or its seconds a step are not known.
    """
    # nothing of it leaves the directory: no database, no command that tells people
    alone = replace(definition.study, root=str(root), storage=None, notify=type(definition.study.notify)())
    definition = replace(definition, study=alone, created=BEGINNING)
    directory = definition.directory

    def course_of(attempt: AttemptDirectory, job: Job) -> Course:
        steps = job.total_steps
        if steps is None:
            cure = "give it, as in trainer.total_steps=200"
            raise BadInput(Problem("trainer.total_steps", "null", "a simulation reads no data to count them", cure))
        if attempt.number > MOST_ATTEMPTS:
            cure = "give lower rates, a smaller trainer.save_every, or more of cluster.timeout_min"
            why = f"its jobs end before they get on: {MOST_ATTEMPTS} attempts, and it is not done"
            raise BadInput(Problem("trial", attempt.trial.number, why, cure))
        told = curves(attempt.trial.point(), steps)
        seconds = step_s or told.step_s or _predicted(_frozen(attempt))
        return Course(steps, seconds, told.logged, lambda: _frozen(attempt).trainer.save_every)

    scheduler = SimulatedLauncher(cluster, course_of, bool(definition.study.rules), BEGINNING)
    with ExitStack() as stack:
        stack.enter_context(_whole_or_nothing(directory))
        directory.create(definition.to_yaml(), composer.snapshot())
        directory.mark_simulated()
        stack.enter_context(telling(lambda: scheduler.now))
        stack.enter_context(thrown_away())
        controller = stack.enter_context(Controller(directory, launchers=lambda name: scheduler))
        polls = _drive(controller, scheduler, definition, progress)
        return _outcome(controller, scheduler, directory, polls)


@contextmanager
def _whole_or_nothing(directory: StudyDirectory) -> Iterator[None]:
    """What a simulation that did not come to its end has written is no study: it is removed."""
    try:
        yield
    except BaseException:
        shutil.rmtree(directory.path, ignore_errors=True)
        with suppress(OSError):
            directory.path.parent.rmdir()  # where there is nothing else in it
        raise


def _drive(controller: Controller, scheduler: SimulatedLauncher, definition: Definition, progress: Progress) -> int:
    """The loop of a controller that sleeps for study.poll_s after each step. Returns how many steps it made."""
    every, polls, look = definition.study.poll_s, 0, 0
    while True:
        said = scheduler.calls.total() - scheduler.calls["states"], scheduler.unseen
        goes_on = controller.tick()
        polls += 1
        progress(controller.ended, definition.n_trials)
        if not goes_on:
            return polls
        # the controller has something left to do where it has a trial more than there are jobs, and got further
        is_behind = controller.in_flight != scheduler.live
        has_acted = said != (scheduler.calls.total() - scheduler.calls["states"], 0)
        event = scheduler.next_event()
        look += 1
        if event is not None and not (is_behind and has_acted):
            look = max(look, math.ceil((event - BEGINNING) / every - 1e-9))
        elif event is None and not has_acted:
            raise RuntimeError("the simulated study stands still: nothing runs, and the controller waits")
        scheduler.advance(BEGINNING + look * every)


def _frozen(attempt: AttemptDirectory) -> Trial:
    placed = attempt.placement()
    return load_trial(placed or attempt.trial.config_file.read_text(encoding="utf-8"))


def _predicted(trial: Trial) -> float:
    """By the formula that ranks layouts: made for GPUs under Megatron."""
    from hysweep.layouts.cost import machine_of
    from hysweep.layouts.search import predicted_seconds

    cure = "give --step-s SECONDS, or --like STUDYDIR to take them from a study that has run"
    if machine_of(trial) is None or trial.parallelism.engine != "megatron":
        raise BadInput(Problem("--step-s", "(missing)", "how long a step takes is not known", cure))
    return predicted_seconds(trial)


def _outcome(controller: Controller, scheduler: SimulatedLauncher, directory: StudyDirectory, polls: int) -> Outcome:
    states = [(trial, trial.state()) for trial in directory.trials()]
    ran = [run for run in scheduler.runs.values() if run.started is not None and run.ended is not None]
    stays = tuple(
        Stay(
            run.attempt.trial.number,
            run.attempt.number,
            run.nodes,
            run.submitted - BEGINNING,
            (run.started or 0.0) - BEGINNING,
            (run.ended or 0.0) - BEGINNING,
            run.end_of,
        )
        for run in ran
    )
    makespan = max((s.ended for s in stays), default=0.0)
    ledger = directory.ledger()
    wasted: Counter[Cause] = Counter()
    for entry in ledger:
        wasted[entry.cause] += entry.wasted  # type: ignore[assignment]
    points = best_points(states, controller.definition.study, controller.definition.space)
    best = next((t.point() for t, _ in states if t.number == points[0].lead), None) if points else None
    return Outcome(
        trials=len(states),
        causes=Counter(s.cause for _, s in states if s.cause is not None),
        makespan_s=makespan,
        gpu_hours=controller.gpu_hours(),
        utilisation=math.fsum(s.nodes * (s.ended - s.started) for s in stays) / (scheduler.cluster.nodes * makespan)
        if makespan
        else 0.0,
        queued_h=math.fsum(s.started - s.submitted for s in stays) / 3600,
        boot=math.fsum(e.boot for e in ledger),
        productive=math.fsum(e.productive for e in ledger),
        wasted={cause: hours for cause, hours in wasted.items() if hours > 1e-9},
        best=points[0].mean if points else None,
        best_point=best,
        why_over=controller.why_no_more() or "",
        polls=polls,
        calls=dict(scheduler.calls),
        stays=stays,
    )
