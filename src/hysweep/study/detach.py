"""A controller that drives a study by itself: a process of this machine, or a small SLURM job.

The job queues itself again shortly before its time limit, and SLURM does when it takes the node away. Nothing is lost
by either: whoever drives a study finds all that there is on disk.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from hysweep.launch import Busy, JobStatus, Refused, queue
from hysweep.launch.sbatch import set_up
from hysweep.launch.slurm import SlurmLauncher, blamed
from hysweep.schema import BadInput, Cluster, Problem, Study
from hysweep.track import StudyDirectory, read_record, write_json, write_text

LEAVES_BEFORE_S = 120  # of its time limit: one step is over by then


def detach_here(directory: StudyDirectory) -> str:
    """Start a process of its own session; returns what to call it."""
    with open(_log(directory), "ab") as log:
        child = subprocess.Popen(
            _command(directory), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return f"process {child.pid}"


def detach_to_slurm(directory: StudyDirectory, study: Study, site: Cluster) -> str:
    """Submit the job; returns what to call it. Raises BadInput when one is there, or when SLURM takes none."""
    note = directory.controller_file
    before = str((read_record(note) or {}).get("job", ""))
    if before and not _is_over(before):
        cure = f"look at it with squeue --jobs={before}, or end it with scancel {before}"
        raise BadInput(Problem("--detach", f"job {before}", "is to drive this study already", cure))
    file = directory.path / "controller.sbatch"
    write_text(file, script(directory, study, site))
    try:
        job = SlurmLauncher().send(file)
    except Busy as e:
        raise BadInput(Problem("--detach", "slurm", str(e), "say it again later")) from e
    except Refused as e:
        raise BadInput(_refusal(e, study, site)) from e
    write_json(note, {"job": job})
    return f"SLURM job {job}"


def _refusal(refused: Refused, study: Study, site: Cluster) -> Problem:
    """With the setting that it is about: what the study does not say of its controller is the trials'."""
    asked = asdict(study.controller)
    own = {"timeout_min": "time_min"}
    found = blamed(refused, site)
    field = own.get(name := (found.setting or "").removeprefix("cluster."), name)
    key, value = found.setting or "--detach", found.value if found.setting else "slurm"
    if key.startswith("cluster.") and asked.get(field) is not None:
        key, value = f"study.controller.{field}", asked[field]
    why = f"the scheduler refused the controller's job: {refused}"
    cure = f"give study.controller.{field}=VALUE" if field in asked else f"mend {key}"
    return Problem(key, value, why, f"{cure}, or study.controller.launcher=local")


def script(directory: StudyDirectory, study: Study, site: Cluster) -> str:
    """The batch script. `site`: the cluster of the trials, which says what study.controller leaves open."""
    asked = study.controller
    options = {
        "job-name": f"{study.name}-controller",
        "partition": asked.partition or site.partition,
        "account": asked.account or site.account,
        "qos": asked.qos or site.qos,
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": 1,
        "mem": f"{int(asked.memory_gib * 1024)}M",
        "time": asked.time_min,
        "signal": f"B:USR1@{LEAVES_BEFORE_S}",
        "open-mode": "append",
        "output": str(_log(directory).absolute()).replace("%", "%%"),
    }
    lines = ["#!/bin/bash", "#SBATCH --requeue"]
    lines += [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    lines += set_up(site)
    lines += [f"cd {shlex.quote(os.getcwd())}", f"exec {shlex.join([*_command(directory), '--as-job'])}"]
    return "\n".join(lines) + "\n"


def requeue() -> bool:
    """Put the job that this is back to the queue; it ends by that. False: this is none, or it cannot be."""
    job = os.environ.get("SLURM_JOB_ID")
    return job is not None and queue.requeue(job)


def _is_over(job: str) -> bool:
    try:
        return queue.states([job])[job].state is JobStatus.ENDED
    except queue.NoAnswer:
        return False


def _command(directory: StudyDirectory) -> list[str]:
    return [sys.executable, "-u", "-m", "hysweep", "resume", str(directory.path.absolute())]


def _log(directory: StudyDirectory) -> Path:
    return directory.path / "controller.log"
