"""SLURM's own words: what squeue, sacct and scontrol say of jobs, and what it means. One call for all jobs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from threading import Timer

from hysweep.launch import command
from hysweep.launch.protocol import JobState, JobStatus
from hysweep.track import Cause

WAITING = frozenset(
    [
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
    ]
)
# It has begun, and goes on when the scheduler lets it: what is on its nodes is not to be taken back.
HALTED = frozenset(["SUSPENDED", "STOPPED"])
RUNNING = HALTED | {"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING"}
# What a job ends in, and the cause where the state alone says it. FAILED may be anything.
ENDED: dict[str, Cause | None] = {
    "COMPLETED": None,
    "FAILED": None,
    "LAUNCH_FAILED": None,
    "RECONFIG_FAIL": None,
    "REVOKED": None,
    "CANCELLED": Cause.CANCELLED,
    "TIMEOUT": Cause.TIMEOUT,
    "DEADLINE": Cause.TIMEOUT,
    "NODE_FAIL": Cause.NODE_FAIL,
    "BOOT_FAIL": Cause.NODE_FAIL,
    "PREEMPTED": Cause.PREEMPTED,
    "OUT_OF_MEMORY": Cause.HOST_OOM,
}
STATES = WAITING | RUNNING | set(ENDED)

# Why a job waits whose nodes had a fault: in their prolog, their memory, their disk. scontrol says it with underscores.
_STUCK = {
    "launch failed requeued held": "a node could not launch it; scontrol release",
    "jobholdmaxrequeue": "no node could launch it, as often as the site allows; an administrator can release",
}
_TIMEOUT = 60.0  # seconds for a command of a controller that does not answer
_SILENT_AFTER = 3.0
_SQUEUE = "%i|%T|%N|%S|%e|%V|%r|%j"
_SACCT = "JobID,State,NodeList,Start,End,Submit,ExitCode,JobName"
_LAGS_S = 60.0  # what the records still say of a job that slurmctld does not know is believed so long


class NoAnswer(Exception):
    """The scheduler could not be asked; nothing is known of the jobs for now."""


# Told of a silence: in words, and for how many more seconds the command that has met it is waited for.
Listener = Callable[[str, float], None]
_listener: Listener | None = None


@contextmanager
def telling(say: Listener) -> Iterator[None]:
    """While this is entered `say` hears, once, that the scheduler does not answer: long before a command gives up."""
    global _listener

    def once(what: str, within: float) -> None:
        global _listener
        if _listener is once:
            _listener = None
            say(what, within)

    before, _listener = _listener, once
    try:
        yield
    finally:
        _listener = before


@contextmanager
def overheard(command: str, within: float) -> Iterator[None]:
    """Around a command of the scheduler's that is given `within` seconds: a long silence of it is told."""
    if (listener := _listener) is None:
        yield
        return
    told = f"{command} has said nothing for {_SILENT_AFTER:.0f} s", within - _SILENT_AFTER
    timer = Timer(_SILENT_AFTER, listener, told)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _no_answer(why: str) -> NoAnswer:
    if _listener is not None:
        _listener(why, 0.0)
    return NoAnswer(why)


@dataclass(frozen=True, slots=True)
class Record:
    """What one line of squeue or sacct says of a job. Times in unix seconds; `detail`: its reason or exit code."""

    job: str
    state: str
    nodes: str = ""
    started: float | None = None
    ended: float | None = None
    submitted: float | None = None
    detail: str = ""
    name: str = ""

    def as_state(self) -> JobState:
        if self.state in ENDED:
            reason = f"the scheduler says {self.state}" + (f" ({self.detail})" if self.detail else "")
            cause, times = ENDED[self.state], (self.started, self.ended, self.submitted)
            return JobState(JobStatus.ENDED, reason, cause, *times, nodes=self.nodes, name=self.name)
        if self.state in RUNNING:  # it says when it would end at the latest: that is not when it did
            reason, times = "", (self.started, None, self.submitted)
            if self.state in HALTED:
                reason = f"the scheduler says {self.state}"
            return JobState(JobStatus.RUNNING, reason, None, *times, nodes=self.nodes, name=self.name)
        stuck = _STUCK.get(self.detail.strip("()").replace("_", " ").lower())
        reason = f"{self.detail}: {stuck} {self.job}" if stuck else self.detail
        # squeue's start of a job that waits is when it is expected to
        return JobState(
            JobStatus.PENDING,
            reason,
            submitted=self.submitted,
            is_held=self.detail.startswith("JobHeld"),
            is_stuck=stuck is not None,
            expected=self.started,
            name=self.name,
        )


def states(jobs: Iterable[str], missed: dict[str, float] | None = None) -> dict[str, JobState]:
    """One look at all of them: one call of squeue, and one of sacct for those that it knows no more.

    `missed`, kept from look to look: since when slurmctld does not know a job of which the records say no end. They may
    lag; but a slurmctld that was killed has forgotten what it took in its last seconds, and the records never hear it.

    Raises NoAnswer when the scheduler does not answer.
    """
    missed = {} if missed is None else missed
    wanted = sorted(set(jobs), key=lambda j: (len(j), j))
    if not wanted:
        return {}
    found, is_whole = _squeue(wanted)
    gone = [j for j in wanted if j not in found]
    recorded, records_are_whole = _sacct(gone) if gone else ({}, True)
    answers = {}
    for job in wanted:
        if job in found:
            answers[job] = found[job].as_state()
        elif job in recorded and recorded[job].state in ENDED:
            answers[job] = recorded[job].as_state()
        elif job in recorded:
            since = missed.setdefault(job, time.monotonic())
            if time.monotonic() - since > _LAGS_S and _is_unknown(job):
                answers[job] = JobState(
                    JobStatus.ENDED, "the scheduler has lost the job", Cause.NODE_FAIL, is_lost=True
                )
            else:
                answers[job] = JobState(JobStatus.UNKNOWN, f"sacct still says {recorded[job].state}")
        elif (is_whole and records_are_whole) or _is_unknown(job):
            answers[job] = JobState(JobStatus.ENDED, "the scheduler knows the job no more", is_lost=True)
        else:  # what runs would be run again
            answers[job] = JobState(JobStatus.UNKNOWN, "the scheduler says what cannot be read")
    for job in [j for j in missed if j not in answers or answers[j].state is not JobStatus.UNKNOWN]:
        del missed[job]
    return answers


def named(ending: str) -> str | None:
    """The newest job whose name ends so, or None. Raises NoAnswer."""
    found = read_squeue(_ask(["squeue", "--me", "--noheader", "--states=all", f"--format={_SQUEUE}"]))
    return max((r.job for r in found if r.name.endswith(ending)), key=lambda j: (len(j), j), default=None)


def submitted_by_me() -> int:
    """How many jobs this user has in the queue. Raises NoAnswer."""
    return len(read_squeue(_ask(["squeue", "--me", "--noheader", f"--format={_SQUEUE}"])))


def cancel(jobs: Sequence[str]) -> None:
    """One call for all. What is not there any more is no fault."""
    if jobs:
        with suppress(NoAnswer):
            _run(["scancel", "--quiet", *jobs])


def hold(jobs: Sequence[str], release: bool = False) -> None:
    """Keep pending jobs from starting, or let them again."""
    if jobs:
        with suppress(NoAnswer):
            _run(["scontrol", "release" if release else "hold", ",".join(jobs)])


def is_running(job: str) -> bool:
    """Whether the scheduler would let the job go on: not after a cancel, nor where it has requeued it itself."""
    try:
        said = _ask(["scontrol", "--oneliner", "show", "job", job])
    except NoAnswer:
        return False
    return " JobState=RUNNING " in said


def is_preempted(job: str) -> bool:
    """Whether the scheduler is about to take the job's nodes for another one."""
    try:
        said = _ask(["scontrol", "--oneliner", "show", "job", job])
    except NoAnswer:
        return False
    at = re.search(r" PreemptTime=(\S+)", said)
    return at is not None and at[1] not in ("None", "Unknown", "N/A")


def requeue(job: str) -> bool:
    """Put the job that this process runs in back to the queue. False where that cannot be done from here."""
    try:
        done = _run(["scontrol", "requeue", job])
    except NoAnswer:
        return False
    # the requeue ends this job, and may end scontrol with it
    return done.returncode in (0, -15, -9)


# --- reading


def read_squeue(text: str) -> list[Record]:
    """The jobs in what squeue said in our format; lines that are none are passed over."""
    found = []
    for line in text.splitlines():
        fields = [*line.split("|", 7), ""]
        if len(fields) > 7 and (job := _plain_id(fields[0])) and (state := read_state(fields[1])):
            reason = "" if fields[6].strip() in ("", "None", "(null)") else fields[6].strip()
            nodes = "" if fields[2].strip() == "(null)" else fields[2].strip()
            started, ended, submitted = map(_time, fields[3:6])
            found.append(Record(job, state, nodes, started, ended, submitted, reason, fields[7].strip()))
    return found


def read_sacct(text: str) -> list[Record]:
    """The newest record of each job in what sacct said in our format; steps and lines that are none are passed over."""
    found: dict[str, Record] = {}
    for line in text.splitlines():
        fields = [*line.split("|", 7), ""]
        if len(fields) < 8 or "." in fields[0]:
            continue
        job, state = _plain_id(fields[0]), read_state(fields[1])
        if job and state:
            nodes = "" if fields[2].startswith("None") else fields[2]
            started, ended, submitted = map(_time, fields[3:6])
            detail = f"exit code {fields[6]}" if fields[6] else ""
            found[job] = Record(job, state, nodes, started, ended, submitted, detail, fields[7].strip())
    return list(found.values())


def read_state(text: str) -> str | None:
    """A state by its full name, from any spelling: ``CANCELLED by 0``, ``OUT_OF_ME+``; None for no state."""
    word = (text.split() or [""])[0].upper()
    if word in STATES:
        return word
    if word.endswith("+") and len(word) > 3:
        fits = [s for s in sorted(STATES) if s.startswith(word[:-1])]
        return fits[0] if len(fits) == 1 else None
    return None


def _plain_id(text: str) -> str | None:
    """``12``, ``12_3`` of an array, ``12+0`` of a heterogeneous job: the id that the job goes by."""
    found = re.fullmatch(r"(\d+(?:_\d+)?)(?:\+0)?", text.strip(), re.ASCII)
    return found[1] if found else None


def _time(text: str) -> float | None:
    with suppress(ValueError, OverflowError):  # of year 1 there is no such time
        return datetime.fromisoformat(text.strip()).timestamp()
    return None


# --- asking


def _squeue(jobs: Sequence[str]) -> tuple[dict[str, Record], bool]:
    """The jobs that it knows, and whether all that it said could be read."""
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}", f"--format={_SQUEUE}"]
    done = _run(argv)
    # a job alone that is known no more is an error to squeue
    if done.returncode and "Invalid job id" not in done.stderr:
        raise _no_answer(_said(argv, done))
    found = read_squeue(done.stdout)
    return {r.job: r for r in found}, len(found) >= _lines(done.stdout)


def _sacct(jobs: Sequence[str]) -> tuple[dict[str, Record], bool]:
    """Nothing where the site keeps no records."""
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(jobs)}", f"--format={_SACCT}"]
    try:
        done = _run(argv)
    except NoAnswer:
        return {}, True
    if done.returncode and "disabled" not in done.stderr:
        raise _no_answer(_said(argv, done))
    found = {r.job: r for r in read_sacct(done.stdout)}
    return found, bool(found) or not _lines(done.stdout)


def _lines(text: str) -> int:
    return sum(1 for line in text.splitlines() if line.strip())


def _is_unknown(job: str) -> bool:
    """Whether the scheduler itself says that it has no such job."""
    try:
        done = _run(["scontrol", "--oneliner", "show", "job", job])
    except NoAnswer:
        return False
    return done.returncode != 0 and "Invalid job id" in done.stdout + done.stderr


def _ask(argv: Sequence[str]) -> str:
    done = _run(argv)
    if done.returncode:
        raise _no_answer(_said(argv, done))
    return done.stdout


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        with overheard(argv[0], _TIMEOUT):
            return subprocess.run(
                argv, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, env=asking(os.environ)
            )
    except FileNotFoundError as e:
        why = f"{argv[0]}: there is no such command here"
        # a site may keep no records, and so have no sacct
        raise (NoAnswer if argv[0] == "sacct" else _no_answer)(why) from e
    except subprocess.TimeoutExpired as e:
        raise _no_answer(f"{argv[0]} did not answer within {_TIMEOUT:.0f} s") from e


def asking(environment: Mapping[str, str]) -> dict[str, str]:
    """For commands of the scheduler: no SQUEUE_FORMAT or SLURM_TIME_FORMAT of the user's, times as we read them."""
    kept = command.inherited(environment)
    return {k: v for k, v in kept.items() if not re.match(r"(?:SQUEUE|SACCT|SCANCEL|SCONTROL)_", k)} | {"LC_ALL": "C"}


def _said(argv: Sequence[str], done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"{argv[0]} ended with exit code {done.returncode}"
