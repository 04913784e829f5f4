"""What a study spends: what each attempt used and on what, what is promised to those in flight, what is left.

The unit is GPU-hours; on a machine with no GPU, hours of worker slots.
"""

from __future__ import annotations

import math

from hysweep.compile import nodes_of
from hysweep.launch import JobState
from hysweep.schema import Trial
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Booking, Cause, StudyDirectory

STEP_SECONDS = "timing_s/step"


class Ledger:
    """ledger.jsonl, and beside it in memory what attempts in flight may still come to."""

    def __init__(self, directory: StudyDirectory) -> None:
        self._directory = directory
        self._booked: dict[int, dict[int, Booking]] = {}
        self.spent = 0.0
        self._promised: dict[int, float] = {}
        for entry in directory.ledger():
            self._enter(entry)

    def book(self, entry: Booking) -> None:
        """Once for each attempt, also over a crash."""
        self._promised.pop(entry.trial, None)
        if entry.attempt not in self._booked.get(entry.trial, {}):
            self._directory.book(entry)
            self._enter(entry)

    def _enter(self, entry: Booking) -> None:
        self._booked.setdefault(entry.trial, {})[entry.attempt] = entry
        self.spent += entry.gpu_hours

    def of(self, trial: int) -> list[Booking]:
        """What is booked of a trial, by attempt."""
        return [entry for _, entry in sorted(self._booked.get(trial, {}).items())]

    def ends_alike(self, trial: int, attempt: int, cause: Cause) -> int:
        """How many other attempts of a trial ended so. What the controller asked for goes before what a node saw."""
        return sum(1 for e in self.of(trial) if e.attempt != attempt and e.cause == cause)

    def promise(self, trial: int, hours: float) -> None:
        """The newest attempt of a trial may come to this much."""
        self._promised[trial] = hours

    def release(self, trial: int) -> None:
        self._promised.pop(trial, None)

    def at_most(self, without: int | None = None) -> float:
        """What the study comes to if all that is in flight takes all of its time; `without`: but for that trial."""
        return self.spent + math.fsum(hours for trial, hours in self._promised.items() if trial != without)


def worst_case(asked: Job | Trial) -> float:
    """What an attempt comes to that takes all of its time."""
    nodes, site = (asked.nodes, asked) if isinstance(asked, Job) else (nodes_of(asked), asked.cluster)
    return nodes * site.gpus_per_node * site.timeout_min / 60


def booking(attempt: AttemptDirectory, job: Job, cause: Cause, state: JobState | None, kept_to: float) -> Booking:
    """What an attempt that is over used, and on what.

    state    the scheduler's record, which decides where it has times; None: of an earlier run of the same job
    kept_to  the step up to which what it did counts: what came after is done again, or told to nobody
    """
    start, seconds = _span(attempt, state, job.timeout_min * 60)
    hours_a_second = job.nodes * job.gpus_per_node / 3600
    rows = [(step, data.get(STEP_SECONDS, math.nan)) for step, data in attempt.metrics()]
    boot = min(seconds, _before_first_step(attempt, rows, start, seconds))
    steps = _bounded([s for _, s in rows], seconds - boot)
    productive = math.fsum(s for (step, _), s in zip(rows, steps, strict=True) if step <= kept_to)
    if not rows:
        boot, wasted = 0.0, seconds  # a boot that came to no step
    else:
        wasted = max(0.0, seconds - boot - productive)
    queued = start - state.submitted if state and state.submitted and start else 0.0
    return Booking(
        trial=attempt.trial.number,
        attempt=attempt.number,
        cause=cause,
        gpus=job.nodes * job.gpus_per_node,
        gpu_hours=seconds * hours_a_second,
        requested=worst_case(job),
        queued_h=max(0.0, queued) / 3600,
        boot=boot * hours_a_second,
        productive=productive * hours_a_second,
        wasted=wasted * hours_a_second,
    )


def _span(attempt: AttemptDirectory, state: JobState | None, most: float) -> tuple[float, float]:
    """When it began, and how many seconds it took; 0 where it never began.

    Two times are compared by one clock where there are two of one: those of nodes, of the scheduler and of the file
    server need not agree. What they disagree on is never more than the job's time.
    """
    claim, said = attempt.claimed(), attempt.end()
    if state and state.started and state.ended:
        ran = said.ended - said.started if said and said.started else 0.0  # the record may be of a later, empty run
        return state.started, max(0.0, state.ended - state.started, min(ran, most))
    began = (said.started if said else 0.0) or (claim.created if claim else 0.0)
    start = (state.started if state else None) or began
    if not start:
        return 0.0, 0.0
    ended = (said.ended if said else 0.0) or attempt.last_sign_of_life()
    return start, min(max(0.0, ended - (began or start)), most)


def _before_first_step(attempt: AttemptDirectory, rows: list[tuple[int, float]], start: float, seconds: float) -> float:
    """From the start to the first step: the steps are timed, and the last was written down when it was done."""
    timed = [s for _, s in rows if math.isfinite(s)]
    if not timed:
        return 0.0
    written = attempt.metrics_file.stat().st_mtime
    in_steps = math.fsum(timed) * len(rows) / len(timed)
    return min(max(0.0, written - start - in_steps), max(0.0, seconds - in_steps))


def _bounded(steps: list[float], most: float) -> list[float]:
    """Seconds of each step, `most` together. Where the trainer timed none, what there was, in equal shares."""
    timed = [s for s in steps if math.isfinite(s) and s >= 0]
    if not steps:
        return []
    usual = math.fsum(timed) / len(timed) if timed else most / len(steps)
    filled = [s if math.isfinite(s) and s >= 0 else usual for s in steps]
    total = math.fsum(filled)
    return [s * most / total for s in filled] if total > most else filled
