"""What every launcher can do, and what it says of a job."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from hysweep.launch import command
from hysweep.schema import Problem
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause


class JobStatus(StrEnum):
    PENDING = "pending"  # taken, nothing of it runs yet
    RUNNING = "running"
    ENDED = "ended"  # nothing of it runs, and nothing of it ever will
    UNKNOWN = "unknown"  # cannot be told from here and now; ask again


@dataclass(frozen=True, slots=True)
class JobState:
    """One look at a job.

    reason   in words, where there is something to say
    cause    why it ended, where the launcher knows and the node could not write its end.json
    submitted, started, ended  unix seconds by the scheduler's record, None where it does not say (yet)
    is_held  it waits because its user said so
    is_stuck it could not be launched on its nodes, or too often, and waits until somebody lets it go
    nodes    where it runs or ran, as the scheduler writes a list of them
    expected when the scheduler means to start it
    name     what the scheduler calls it, where it calls jobs by name
    is_lost  the scheduler knows of no such job, so of no end that it came to
    """

    state: JobStatus
    reason: str = ""
    cause: Cause | None = None
    started: float | None = None
    ended: float | None = None
    submitted: float | None = None
    is_held: bool = False
    is_stuck: bool = False
    nodes: str = ""
    expected: float | None = None
    name: str = ""
    is_lost: bool = False

    @property
    def is_over(self) -> bool:
        return self.state is JobStatus.ENDED

    def is_of(self, attempt: AttemptDirectory) -> bool:
        """Whether it is a job of this attempt, or of an earlier one of its trial that the scheduler runs again: one
        that was killed may give the number of a job that it has forgotten to somebody else's."""
        trial = attempt.trial
        return not self.name or any(self.name.endswith(mark(trial.attempt(n))) for n in range(attempt.number, 0, -1))


def job_name(attempt: AttemptDirectory) -> str:
    """Readable, and of this attempt alone: a submitter that died is followed by its name."""
    return f"{attempt.trial.path.parent.parent.name}-{mark(attempt)}"


@lru_cache(4096)  # a controller asks at every look, of each job in flight
def mark(attempt: AttemptDirectory) -> str:
    """What its job's name ends in, however the scheduler takes that of a study, which may be anything."""
    digest = hashlib.sha256(os.fsencode(command.identity(attempt))).hexdigest()[:8]
    return f"{attempt.trial.path.name.partition('-')[0]}-a{attempt.number}-{digest}"


class Busy(Exception):
    """The attempt cannot be started now; ask again later. Nothing was started, or `find` finds it."""


class Refused(Exception):
    """The attempt will never be started as it is; the text says why.

    `setting` and `value`: the key that it is about, as cluster.partition, where that can be told.
    """

    def __init__(self, why: str, setting: str | None = None, value: object = None) -> None:
        super().__init__(why)
        self.setting, self.value = setting, value

    @classmethod
    def of(cls, problem: Problem) -> Refused:
        """Of one that was found before the scheduler was asked."""
        return cls(f"{problem.why}; {problem.cure}", problem.key, problem.value)


class Launcher(Protocol):
    """Starts attempts, looks at them and stops them. Holds nothing that a new one would not find on disk."""

    def plan(self, job: Job, attempt: AttemptDirectory) -> str:
        """Exactly what would be run, as text. Touches nothing."""
        ...

    def submit(self, attempt: AttemptDirectory) -> str:
        """Start the attempt, whose job.json is written, and return its job id. Twice is once. Raises Busy, Refused."""
        ...

    def find(self, attempt: AttemptDirectory) -> str | None:
        """The job id of an attempt whose submitter died before it could note it; None: submit it again. Raises Busy."""
        ...

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        """One look at all of them."""
        ...

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Ask them to stop and return. Again is harmless, and in time turns from asking into killing."""
        ...

    def hold(self, job_ids: Iterable[str], release: bool = False) -> bool:
        """Keep jobs that wait from starting, or let them again. Again is harmless. False: there is no such thing."""
        ...
