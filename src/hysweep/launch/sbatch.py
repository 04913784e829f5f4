"""The batch script of an attempt: Submitit's, with our command for it to run on every node."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import _make_sbatch_string

from hysweep.schema import Cluster
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory

# One line each of what cluster.* becomes: our field, Submitit's parameter.
COPIED = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "comment": "comment",
    "dependency": "dependency",
    "nodelist": "nodelist",
    "exclude": "exclude",
    "mail_type": "mail_type",
    "mail_user": "mail_user",
}
# What Submitit has no parameter for, by sbatch's option.
EXTRA = {"reservation": "reservation", "nice": "nice"}


def script(job: Job, attempt: AttemptDirectory, name: str) -> str:
    """The text that sbatch is given, for the job's `name`.

    Submitit's function is a private one. With what it is given here, 1.5.3 (the oldest that we take) and 1.5.4 write
    the same text; the golden files in tests/launch would tell of a later one that does not.
    """
    site = job.site
    extra: dict[str, Any] = {EXTRA[f]: v for f in EXTRA if (v := getattr(site, f)) is not None}
    if site.memory_gib is not None:
        extra["mem"] = _memory(site.memory_gib)
    extra["requeue" if site.use_requeue else "no-requeue"] = True
    # what the tasks themselves say goes into the attempt's node.log; here is what comes before them
    extra["output"] = str(attempt.path.absolute()).replace("%", "%%") + "/slurm-%j.log"
    parameters: dict[str, Any] = {COPIED[f]: v for f in COPIED if (v := getattr(site, f)) is not None}
    if site.gpu is not None:
        parameters |= {"gres": site.gres} if site.gres else {"gpus_per_node": job.gpus_per_node}
    parameters, extra = _escaped(parameters), _escaped(extra | _spelled(site.additional_parameters))
    text: str = _make_sbatch_string(
        command=_command(job, attempt),
        folder=attempt.path.absolute(),
        job_name=name,
        time=job.timeout_min,
        nodes=job.nodes,
        ntasks_per_node=1,
        cpus_per_task=job.ray_cpus,
        exclusive=True if site.use_exclusive else None,
        signal_delay_s=site.signal_delay_s,
        setup=_setup(job) or None,
        stderr_to_stdout=True,
        wckey=None,  # an empty one is one all the same, and sites that use none refuse it
        additional_parameters=extra,
        use_srun=False,
        **parameters,
    )
    return text.rstrip("\n") + "\n"


def _spelled(options: dict[str, Any]) -> dict[str, Any]:
    """sbatch's own spelling. True has no value; false and null are as if they were not there."""
    return {name.replace("_", "-"): v for name, v in options.items() if v is not None and v is not False}


def _escaped(options: dict[str, Any]) -> dict[str, Any]:
    """sbatch reads a backslash as one that escapes, also within the quotes that Submitit puts around a value."""
    return {name: v.replace("\\", "\\\\") if isinstance(v, str) else v for name, v in options.items()}


def _memory(gib: float) -> str:
    """0 asks for all that a node has."""
    return "0" if gib == 0 else f"{max(1, round(gib * 1024))}M"


# What a script says that its set-up lines ended. A trap of theirs takes its place, and is left to them.
SET_UP_ENDED = "hysweep: the set-up lines ended the script with exit code "
_SAYS_SO = f"""trap 'c=$?; [ -n "${{hysweep_is_set_up:-}}" ] || echo "{SET_UP_ENDED}$c"' EXIT"""


def set_up(site: Cluster) -> list[str]:
    """The site's own lines of a script; where one of them ends it, it says so."""
    lines = [*(f"module load {shlex.quote(m)}" for m in site.modules), *site.setup]
    return [_SAYS_SO, *lines, "hysweep_is_set_up=1"] if lines else []


def _setup(job: Job) -> list[str]:
    lines = set_up(job.site)
    if path := job.env.get("PYTHONPATH"):
        # what runs on a node is the code of the study too, also in an image that has another or none
        lines.append(f"export PYTHONPATH={shlex.quote(path)}${{PYTHONPATH:+:$PYTHONPATH}}")
    return lines


def python_of(job: Job) -> list[str]:
    """The Python that runs on the nodes: an image has its own."""
    if not job.site.python:
        return ["python3" if job.site.container else sys.executable]
    program, *more = shlex.split(job.site.python)
    return [os.path.expanduser(program), *more]  # no shell of the node would: it is quoted


def _command(job: Job, attempt: AttemptDirectory) -> str:
    """One task on each node; when one ends badly, all do."""
    site = job.site
    inside, bind = _container(job, attempt)
    srun = ["srun", "--nodes", str(job.nodes), "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--export=ALL"]
    if job.ray_cpus is not None:
        srun.append(f"--cpus-per-task={job.ray_cpus}")  # from SLURM 22.05 on a step does not take it from its job
    node = [*python_of(job), "-u", "-m", "hysweep.launch.node", "--slurm", str(attempt.path.absolute())]
    return shlex.join([*srun, *bind, *site.srun_args, *inside, *node])


def _container(job: Job, attempt: AttemptDirectory) -> tuple[list[str], list[str]]:
    """What stands before the Python in the container, and what srun is told of it. The study is always seen inside."""
    site = job.site
    if site.container is None or site.image is None:
        return [], []
    study = Path(attempt.path.absolute()).parents[3]
    # a ~ is expanded here: a shell on the node would leave one alone within --option=~/x, as does pyxis
    mounts = list(dict.fromkeys([str(study), *map(os.path.expanduser, site.container_mounts)]))
    image = os.path.expanduser(site.image)
    if site.container == "pyxis":
        pairs = [m if ":" in m else f"{m}:{m}" for m in mounts]
        return [], [f"--container-image={image}", f"--container-mounts={','.join(pairs)}"]
    gpus = [] if site.gpu is None else ["--nv" if site.visible_devices == "CUDA_VISIBLE_DEVICES" else "--rocm"]
    return ["apptainer", "exec", *gpus, *(f"--bind={m}" for m in mounts), _for_apptainer(image)], []


def _for_apptainer(image: str) -> str:
    """A bare name is one of a registry, as it is to pyxis; files and other sources say what they are."""
    is_said = "://" in image or image.endswith((".sif", ".img")) or image.startswith(("/", "./", "../"))
    return image if is_said else f"docker://{image}"
