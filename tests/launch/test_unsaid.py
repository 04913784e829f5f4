"""What is read from the log of a job whose node wrote no end.json."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hysweep.launch.sbatch import SET_UP_ENDED
from hysweep.launch.unsaid import read_unsaid, unsaid
from hysweep.track import AttemptDirectory, Cause, write_json

ENDED_BY_SRUN = ["srun: launch/slurm: _step_signal: Terminating StepId=7.0", "srun: error: node1: task 0: Terminated"]


@pytest.mark.parametrize(
    ("lines", "cause", "nodes", "reason"),
    [
        (
            ["srun: error: node2: task 1: Exited with exit code 3", *ENDED_BY_SRUN],
            Cause.RAY_BOOT,
            ("node2",),
            "node2: the node process: Exited with exit code 3",
        ),
        (["srun: error: node[2,3]: tasks 1-2: Exited with exit code 127"], Cause.RAY_BOOT, ("node2", "node3"), "127"),
        (
            ["python3: error: x", "srun: error: node[1-4]: tasks 0-3: Exited with exit code 1"],
            Cause.UNKNOWN,
            (),
            "exit code 1: python3: error: x",
        ),
        (
            [
                "srun: error: Task launch for StepId=7.0 failed on node node2: Job credential expired",
                "srun: error: node1: task 0: Killed",
            ],
            Cause.RAY_BOOT,
            ("node2",),
            "node2: its task was not launched: Job credential expired",
        ),
        (
            ["slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T16:14:18 ***", f"{SET_UP_ENDED}0"],
            Cause.KILLED,
            (),
            "the scheduler ended the set-up lines: slurmstepd-n1",
        ),
        (
            ["slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT T DUE TO PREEMPTION ***", f"{SET_UP_ENDED}143"],
            Cause.PREEMPTED,
            (),
            "the scheduler ended the set-up lines: slurmstepd-n1",
        ),
        (
            [
                "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)",
                "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT T DUE TO PREEMPTION ***",
                "srun: error: Unable to create step for job 7: Duplicate job id",
            ],
            Cause.PREEMPTED,
            (),
            "the scheduler ended it: slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT T DUE TO PREEMPTION",
        ),
        (
            [
                "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT T DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***",
                "srun: error: n1: task 0: Killed",
            ],
            Cause.NODE_FAIL,
            (),
            "DUE TO NODE FAILURE",
        ),
        (
            [
                "srun: error: n2: task 1: Killed",
                "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT T DUE TO JOB REQUEUE *",
            ],
            Cause.KILLED,
            (),
            "n2: the node process: Killed",
        ),
        (["srun: error: node1: task 0: Killed"], Cause.KILLED, (), "node1: the node process: Killed"),
        (
            ["srun: error: node2: task 1: User defined signal 2", "srun: error: node1: task 0: Terminated"],
            Cause.PREEMPTED,
            (),
            "the scheduler sent SIGUSR2 to node2",
        ),
        (["srun: error: node1: task 0: Exited with exit code 137"], Cause.KILLED, (), "exit code 137"),
        (["srun: error: node1: task 0: Out Of Memory"], Cause.HOST_OOM, (), "Out Of Memory"),
        (
            [
                "bash: module: command not found",
                "slurmstepd-node1: error: execve(): /x/python: No such file or directory",
                "srun: error: node[1-4]: tasks 0-3: Exited with exit code 2",
            ],
            Cause.CONFIG_ERROR,
            (),
            "execve(): /x/python: No such file or directory; see cluster.python",
        ),
        (
            [
                "slurmstepd-node2: error: execve(): apptainer: No such file or directory",
                "srun: error: node2: task 1: Exited with exit code 2",
            ],
            Cause.RAY_BOOT,
            ("node2",),
            "node2: the node process: Exited with exit code 2: execve(): apptainer: No such file",
        ),
        (
            [
                "ModuleNotFoundError: No module named 'psutil'",
                "srun: error: node2: task 1: Exited with exit code 1",
                *ENDED_BY_SRUN,
            ],
            Cause.CONFIG_ERROR,
            (),
            "ModuleNotFoundError: No module named 'psutil'; see cluster.python",
        ),
        (
            [f"srun: error: node{n}: task {n - 1}: Exited with exit code 2" for n in (2, 1, 4, 3)],
            Cause.UNKNOWN,
            (),
            "exit code 2",
        ),
        (
            [f"srun: error: node{n}: task {n - 1}: Exited with exit code {n % 2 + 1}" for n in (2, 1, 4, 3)],
            Cause.RAY_BOOT,
            ("node2", "node4"),
            "exit code 1",
        ),
        (
            ["srun: unrecognized option '--container-image=x'", 'Try "srun --help" for more information'],
            Cause.CONFIG_ERROR,
            (),
            "unrecognized option '--container-image=x'; see cluster.python, setup, modules, container",
        ),
        (
            [
                "module: loaded",
                "/var/spool/job7/slurm_script: line 20:  1792 Killed                  srun --nodes 2 -x",
            ],
            Cause.KILLED,
            (),
            "srun itself was ended on the first node: Killed",
        ),
        (["hello", "/bin/sh: 3: module: not found"], Cause.UNKNOWN, (), "module: not found"),
    ],
)
def test_the_first_that_ended_badly(lines: list[str], cause: Cause, nodes: tuple[str, ...], reason: str) -> None:
    end = read_unsaid(lines, 4)
    assert end and (end.cause, end.nodes) == (cause, nodes) and reason in end.reason


def test_nothing_loud_is_no_end() -> None:
    assert read_unsaid(["hello", *ENDED_BY_SRUN[:1]], 2) is None


@pytest.mark.parametrize("nodes", ["two", None, [2], {}])
def test_a_job_of_which_somebody_changed_the_nodes_ends_in_words(tmp_path: Path, nodes: object) -> None:
    attempt = AttemptDirectory(tmp_path / "1")
    attempt.path.mkdir()
    write_json(attempt.path / "job.json", {"nodes": nodes})
    (attempt.path / "slurm-7.log").write_text("srun: error: n1: task 0: Exited with exit code 1\n")
    end = unsaid(attempt)
    assert end and end.cause is Cause.UNKNOWN


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    attempt = AttemptDirectory(tmp_path / "1")
    (attempt.path / "slurm-7.log").mkdir(parents=True)
    write_json(attempt.path / "job.json", {"nodes": 1})
    assert unsaid(attempt) is None


def test_a_line_without_end_takes_no_time() -> None:
    began = time.process_time()
    for start, rest in (
        ("", "python"),
        ("x: line 1: 1 A", " "),
        ("srun: error: n1: task 0: Exited with exit code ", "9"),
    ):
        read_unsaid([start + rest * 20000] * 3, 1)
    assert time.process_time() - began < 0.5
