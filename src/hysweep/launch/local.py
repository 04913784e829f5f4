"""Jobs on this machine. They outlive the controller and its terminal; all that is known of them is on disk."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hysweep.launch import command, processes
from hysweep.launch.allocation import Allocation
from hysweep.launch.boot import remove_temporaries
from hysweep.launch.node import PULSE, STOP, STOPS_WITHIN
from hysweep.launch.protocol import JobState, JobStatus
from hysweep.schema import BadInput, Problem
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause, Claim
from hysweep.track.files import age

_PREFIX = "local:"
_STARTS_WITHIN = 120.0  # seconds for a Python to come up and take the attempt, on a machine that swaps
# Another machine, or container, cannot be asked whether a process lives: its node's pulse must do.
_PULSE_LOST = 40 * PULSE


class LocalLauncher:
    """A job is a node process of its own session, its id the directory of its attempt.

    Nothing is started twice because a node first claims its attempt (`AttemptDirectory.claim`), and `submit` returns
    only once that has happened:

    - the submitter dies before it starts the node: no claim; `find` says None; submitted again;
    - it dies after that, before the claim: `find` may say None too; of the two nodes one gets the claim, and the
      other leaves at once;
    - it dies after the claim: `find` gives the job id, whether the node runs or is gone.
    """

    def __init__(self, node: Sequence[str] = ("-m", "hysweep.launch.node")) -> None:
        """`node`: the arguments that make a Python a node, for tests whose trainer needs no Ray."""
        self._node = tuple(node)

    def plan(self, job: Job, attempt: AttemptDirectory) -> str:
        _refuse(job)
        dropped = command.foreign(os.environ)
        settings = command.settings(job, attempt)
        ray = command.ray_settings("<fresh>", is_alone=True)
        start = command.ray_command(job, Allocation.here(), "<short directory>", "127.0.0.1", None, 0, "<free>")
        drops = ["# not inherited: " + " ".join(dropped)] if dropped else []
        return "\n".join(
            [
                f"# on this machine, at most {job.timeout_min} min; {attempt.driver_log} has the trainer's output",
                f"cd {shlex.quote(str(attempt.path.absolute()))}",
                *drops,
                *(f"export {setting}" for setting in command.shown(settings)),
                *(f"{shlex.join(argv)}  # first" for argv in command.prepare_commands(job)),
                f"# Ray for this job alone; it must be up within {job.ray_boot_timeout_s} s",
                *(f"export {name}={value}" for name, value in ray.items()),
                " ".join(start) + " &",
                "export RAY_ADDRESS=<what Ray wrote to <short directory>/ray_current_cluster>",
                shlex.join(command.driver_command(job)),
            ]
        )

    def submit(self, attempt: AttemptDirectory) -> str:
        directory = command.identity(attempt)
        written = attempt.job()
        if written is None:
            raise FileNotFoundError(f"{attempt.path}/job.json: not written yet")
        _refuse(Job.from_dict(written))
        if attempt.claimed() is None:
            self._start(attempt, directory)
        return _PREFIX + directory

    def _start(self, attempt: AttemptDirectory, directory: str) -> None:
        # A directory of this name may have been removed under a job that still runs.
        processes.kill_all(lambda: processes.marked([directory])[directory])
        with open(attempt.node_log, "ab") as log:
            starter = subprocess.Popen(
                [sys.executable, *self._node, "--detach", directory],
                cwd=directory,
                env=command.inherited(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            starter.wait(_STARTS_WITHIN)
        except subprocess.TimeoutExpired:
            starter.kill()
            starter.wait()
        if attempt.claimed() is None:
            (attempt.path / STOP).touch()  # should it come up after all
            said = attempt.node_log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise OSError(f"the node process did not start: {said[-1] if said else 'it said nothing'}")

    def find(self, attempt: AttemptDirectory) -> str | None:
        return _PREFIX + command.identity(attempt) if attempt.claimed() else None

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        attempts = {job_id: _attempt(job_id) for job_id in job_ids}
        states = {job_id: _state(attempt) for job_id, attempt in attempts.items()}
        # What ended without a word may have left something running: only once that is gone is it over.
        silent = {
            command.identity(attempts[job_id]): job_id
            for job_id, state in states.items()
            if state.is_over and attempts[job_id].end() is None
        }
        for directory, left in processes.marked(silent).items():
            for p in left:
                processes.send(p, signal.SIGKILL)
            if left:
                job_id = silent[directory]
                states[job_id] = JobState(JobStatus.RUNNING, f"{len(left)} processes of a dead node are being ended")
            else:
                remove_temporaries(directory)
        return states

    def cancel(self, job_ids: Iterable[str]) -> None:
        for attempt in map(_attempt, job_ids):
            if attempt.end() is None:
                # The file reaches a node that is not up yet, or on another machine.
                with suppress(FileNotFoundError):
                    os.close(os.open(attempt.path / STOP, os.O_CREAT | os.O_WRONLY, 0o644))
                node = _node(attempt.claimed())
                if node:
                    processes.send(node, signal.SIGKILL if _is_overdue(attempt) else signal.SIGTERM)

    def hold(self, job_ids: Iterable[str], release: bool = False) -> bool:
        return False  # nothing waits here


def _refuse(job: Job) -> None:
    if job.nodes != 1:
        raise BadInput(Problem("cluster.nodes", job.nodes, "this machine is one node", "set cluster.nodes=1"))


def _attempt(job_id: str) -> AttemptDirectory:
    return AttemptDirectory(Path(job_id.removeprefix(_PREFIX)))


def _node(claim: Claim | None) -> processes.Process | None:
    """The node process of a claim, if it lives and can be seen from here."""
    if claim is None or claim.host != socket.gethostname() or claim.boot != processes.boot_id():
        return None
    node = processes.Process(claim.pid, claim.ticks)
    return node if processes.is_alive(node) else None


def _state(attempt: AttemptDirectory) -> JobState:
    claim = attempt.claimed()
    end = attempt.end()
    if end is not None:
        return JobState(JobStatus.ENDED, end.reason, end.cause, end.started)
    if claim is None:
        return JobState(JobStatus.ENDED, "its directory holds no claim any more", Cause.KILLED)
    if claim.host != socket.gethostname():
        return _state_elsewhere(attempt, claim)
    if claim.boot != processes.boot_id():
        return JobState(JobStatus.ENDED, "the machine was restarted", Cause.NODE_FAIL, claim.created)
    if _node(claim):
        if _is_overdue(attempt):
            processes.send(processes.Process(claim.pid, claim.ticks), signal.SIGKILL)
        return JobState(JobStatus.RUNNING, _asked(attempt), started=claim.created)
    end = attempt.end()  # it may have written this just before it went
    if end is not None:
        return JobState(JobStatus.ENDED, end.reason, end.cause, end.started)
    return JobState(JobStatus.ENDED, "its node process was killed", Cause.KILLED, claim.created)


def _state_elsewhere(attempt: AttemptDirectory, claim: Claim) -> JobState:
    silence = age(attempt.path / "node.json") or 0.0
    if silence < 4 * PULSE:
        return JobState(JobStatus.RUNNING, started=claim.created)
    if silence < _PULSE_LOST:
        return JobState(JobStatus.UNKNOWN, f"no pulse from {claim.host} for {silence:.0f} s", None, claim.created)
    return JobState(JobStatus.ENDED, f"{claim.host} fell silent", Cause.NODE_FAIL, claim.created)


def _is_overdue(attempt: AttemptDirectory) -> bool:
    return (age(attempt.path / STOP) or 0.0) > STOPS_WITHIN  # since it was first asked to stop


def _asked(attempt: AttemptDirectory) -> str:
    return "asked to stop" if (attempt.path / STOP).exists() else ""
