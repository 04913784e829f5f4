"""A job that the scheduler runs again: which attempt a run of it is, and what of it a node finds and makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hysweep.launch.unsaid import read_unsaid
from hysweep.track import AttemptDirectory, Cause, Claim, End
from tests.launch.attempts import BARE, end_of, runs

New = Callable[..., AttemptDirectory]


def run(submitted: AttemptDirectory, restarts: int = 0, rank: int = 0, nodes: int = 1) -> subprocess.CompletedProcess:
    names = ",".join(f"n{i}" for i in range(nodes))
    said = {"JOB_ID": "7", "JOB_NODELIST": names, "RESTART_COUNT": str(restarts), "PROCID": str(rank)}
    env = os.environ | {f"SLURM_{k}": v for k, v in said.items()}
    argv = [sys.executable, *BARE, "--slurm", str(submitted.path)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)


def test_a_run_is_as_many_attempts_on_as_there_were_before(new_attempt: New) -> None:
    """Of those between that never began there is what they would have run, for whoever looks."""
    first = new_attempt("metrics=1")
    assert run(first, restarts=2).returncode == 0
    third = first.trial.attempt(3)
    assert end_of(third).cause is Cause.COMPLETED and runs(third) == 1 and runs(first) == 0
    assert first.trial.attempt(2).job() == third.job() == first.job()


def test_what_an_earlier_job_left_of_a_run_that_never_began_is_not_run(new_attempt: New) -> None:
    """Its memory was another one, say. The second attempt is of a new job by now, and so is the third."""
    new_attempt()
    second, third = new_attempt("metrics=1"), new_attempt("metrics=1", "exit=3")
    assert run(second, restarts=1).returncode == 0
    assert third.job() == second.job() and end_of(third).cause is Cause.COMPLETED


@pytest.mark.parametrize("end", [Cause.COMPLETED, Cause.PREEMPTED])
def test_a_scheduler_that_has_forgotten_a_run_has_nothing_run_beside_it(new_attempt: New, end: Cause) -> None:
    """The run before that one never began, and of the two it counts one."""
    first = new_attempt("metrics=1")
    first.finish(End(Cause.PREEMPTED))
    second, third = first.trial.attempt(2), first.trial.attempt(3)
    for attempt in (second, third):
        attempt.prepare(first.job() or {})
    third.claim(Claim("elsewhere", 1, 50.0, job="7"))
    third.finish(End(end, started=1.0, ended=2.0))
    assert run(first, restarts=1).returncode == 0
    assert second.claimed() is None and end_of(third) == End(end, started=1.0, ended=2.0)


def test_other_nodes_make_no_job_of_an_attempt(new_attempt: New) -> None:
    """On several hosts processes of one number would write to one file; and where the first node never comes, nobody
    is to take the attempt for one that may have begun."""
    first = new_attempt("metrics=1", nodes=2, ray_boot_timeout_s=1)
    assert run(first, restarts=1, rank=1, nodes=2).returncode == 1
    second = first.trial.attempt(2)
    assert (second.path / "node-1.log").exists() and not second.is_prepared


@pytest.mark.parametrize("rank", [0, 1])
def test_a_directory_that_cannot_be_made_is_one_line(new_attempt: New, rank: int) -> None:
    first = new_attempt("metrics=1", nodes=2)
    Path(first.trial.attempt(2).path).write_text("a file")
    done = run(first, restarts=1, rank=rank, nodes=2)
    assert done.returncode == 2 and "Error: " in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_disk_that_was_full_before_a_node_could_say_so() -> None:
    said = [
        "2026-01-01 OSError: [Errno 28] No space left on device: '/x'",
        "srun: error: n1: task 0: Exited with exit code 2",
    ]
    for nodes in (1, 2):
        end = read_unsaid(said, nodes)
        assert end and (end.cause, end.nodes) == (Cause.DISK_FULL, ()) and "No space left" in end.reason
