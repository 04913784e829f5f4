"""A trial within an allocation that somebody else asked for, as Hydra's stock ``submitit_slurm`` does.

That launcher runs the same function on every node. The first node's drives the study and starts attempts here; those
of the other nodes join each of them. They meet in a file of the study's directory, one line for each attempt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from hysweep.launch import command, processes
from hysweep.launch.allocation import Allocation
from hysweep.launch.local import LocalLauncher
from hysweep.launch.protocol import JobState
from hysweep.launch.remains import say
from hysweep.schema import BadInput, Problem
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, StudyDirectory, append_line, read_lines
from hysweep.track.files import age

_LOOK = 0.5
# Who drives a study signs for it twice a minute. A first node that cannot even begin says nothing either.
_GONE_S = 600.0


def allocation(environment: Mapping[str, str]) -> Allocation | None:
    """That which this process is a task of, as started by Submitit on every node; None: it is none."""
    is_task = "SUBMITIT_EXECUTOR" in environment and "SLURM_PROCID" in environment
    return Allocation.of(environment) if is_task else None


class InsideLauncher(LocalLauncher):
    """On the first node: its node process is a child here, and all that LocalLauncher knows of it holds."""

    def __init__(self, here: Allocation, study: Path) -> None:
        super().__init__()
        self._here = here
        self._meeting = _meeting(here, study)
        self._children: list[subprocess.Popen[bytes]] = []

    def submit(self, attempt: AttemptDirectory) -> str:
        written = attempt.job()
        if written is None:
            raise FileNotFoundError(f"{attempt.path}/job.json: not written yet")
        nodes = Job.from_dict(written).nodes
        if nodes != len(self._here.nodes):
            why = f"the allocation has {len(self._here.nodes)} nodes"
            raise BadInput(Problem("cluster.nodes", nodes, why, "give cluster.nodes and hydra.launcher.nodes alike"))
        append_line(self._meeting, {"attempt": command.identity(attempt)})
        self._children.append(_node(attempt.path))
        while attempt.claimed() is None and self._children[-1].poll() is None:
            time.sleep(0.05)
        job_id = self.find(attempt)
        if job_id is None:
            raise OSError(f"the node process did not start; see {attempt.path / 'start.log'}")
        return job_id

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        self._children = [child for child in self._children if child.poll() is None]
        return super().states(job_ids)

    def over(self) -> None:
        """Let the other nodes go."""
        append_line(self._meeting, {"over": True})


def join(here: Allocation, study: Path) -> None:
    """On every other node: take part in each attempt until the first node says that it is over, or is gone."""
    meeting, driver = _meeting(here, study), StudyDirectory(study).driver_file
    joined, heard = 0, time.monotonic()
    while True:
        lines = list(read_lines(meeting))
        for line in lines[joined:]:
            if "over" in line:
                return
            _node(Path(line["attempt"])).wait()
            heard = time.monotonic()
        joined = len(lines)
        if time.monotonic() - heard > _GONE_S:
            heard, signed = time.monotonic(), age(driver)
            if signed is None or signed > _GONE_S:
                say(f"leaves: the first node has not been heard of for {_GONE_S:.0f} s")
                return
        time.sleep(_LOOK)


def _meeting(here: Allocation, study: Path) -> Path:
    return study / f"allocation-{here.job}-{here.restarts}.jsonl"


def _node(attempt: Path) -> subprocess.Popen[bytes]:
    # The attempt is the one that is named, however often the scheduler has run this job.
    environment = {k: v for k, v in os.environ.items() if k != "SLURM_RESTART_COUNT"}
    argv = [sys.executable, "-u", "-m", "hysweep.launch.node", "--slurm", str(attempt)]
    return processes.spawn(argv, environment, attempt / "start.log", attempt)
