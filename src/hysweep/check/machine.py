"""What this machine has and lacks for running trials, each with the cure. Imports nothing heavy."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import psutil

from hysweep import __version__
from hysweep.compile import least_cpus
from hysweep.embedded import assets
from hysweep.schema import Problem, Stage, Trial
from hysweep.schema.finding import Finding
from hysweep.schema.versions import GPU_STACK, OWN_STACK, operating_system

# What real verl on the CPU was run with, beside verl itself; the extra `cpu` installs them.
CPU_STACK = ("verl", "torch", "ray", "transformers", "TransferQueue", "tensordict")
EXTRAS = {"plotly": "report", "wandb": "wandb"}
_ANSWERS_WITHIN_S = 15.0


def installed(name: str) -> str | None:
    """The version of a distribution, or None; nothing is imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def examine(where: Path) -> list[Finding]:
    """All findings; `where` is the directory that studies will be written to."""
    return [*_system(), *_packages(), *_resources(where), *_cluster()]


def lacks_for(trial: Trial) -> list[Problem]:
    """What this machine lacks to run a trial on it by the local launcher, or to submit it by another."""
    if trial.cluster.launcher == "slurm" and shutil.which("sbatch") is None:
        cure = "log in to a node that can submit; `hysweep plan` works anywhere, `hysweep cluster up` starts one here"
        return [Problem("cluster.launcher", "slurm", "there is no sbatch here", cure, Stage.START)]
    if trial.cluster.launcher == "slurm" and (said := slurm_says_nothing()) is not None:
        where = f"SLURM_CONF={os.environ.get('SLURM_CONF') or 'not set'}"
        why, cure = f"no SLURM cluster answers here ({where}): {said}", _cure_of_silence(trial.cluster.name)
        return [Problem("cluster.launcher", "slurm", why, cure, Stage.START)]
    if trial.cluster.launcher != "local":
        return []
    problems = []
    wanted = trial.trainer.verl
    have = installed("verl")
    if have is None:
        problems.append(
            Problem(
                "verl",
                "not installed",
                "the local launcher runs it here",
                "pip install 'hysweep[cpu]'",
                Stage.START,
            )
        )
    elif wanted not in (have, "installed"):
        problems.append(
            Problem(
                "trainer.verl",
                wanted,
                f"verl {have} is installed",
                f"pip install verl=={wanted}",
                Stage.START,
            )
        )
    there, least = os.cpu_count(), least_cpus(trial)
    if trial.cluster.cpus_per_node is None and there is not None and there < least:
        why = f"are those of this machine, and Ray places processes of verl's by {least}: it would wait for ever"
        cure = f"give cluster.cpus_per_node={least}: here they only count what may be placed"
        problems.append(Problem("cluster.cpus_per_node", there, why, cure, Stage.START))
    if not trial.has_gpu:
        problems += [
            Problem(
                name,
                "not installed",
                "real verl on the CPU needs it",
                "pip install 'hysweep[cpu]'",
                Stage.START,
            )
            for name in CPU_STACK
            if name != "verl" and installed(name) is None
        ]
    return problems


def slurm_says_nothing() -> str | None:
    """What the scheduler's own command says, or that it says nothing, where no cluster answers; None: one does, or
    there is no such command to ask with."""
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%P"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWERS_WITHIN_S,
            env=dict(os.environ) | {"LC_ALL": "C"},
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        return f"sinfo did not answer within {_ANSWERS_WITHIN_S:.0f} s"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return None if not done.returncode else lines[-1] if lines else f"sinfo ended with exit code {done.returncode}"


def _cure_of_silence(cluster: str) -> str:
    if cluster == "testcluster":
        return 'start it with `hysweep cluster up`, then `eval "$(hysweep cluster env)"` in this shell'
    return "log in to a node that reaches it, or set SLURM_CONF to its configuration"


def _system() -> list[Finding]:
    v = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    return [
        Finding("hysweep", True, as_installed("hysweep") or __version__),
        Finding("python", good, v, "use Python 3.11 or 3.12", is_needed=True),
        Finding("system", True, f"{operating_system()}, {platform.system()} {platform.release()} {platform.machine()}"),
    ]


def as_installed(name: str) -> str | None:
    """The version of a distribution, and the commit or place that it came from where that is no registry."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        commit = origin.get("vcs_info", {}).get("commit_id")
        place = f"commit {commit[:12]}" if commit else "from a working copy" if "dir_info" in origin else ""
    except (ValueError, AttributeError, TypeError):
        place = ""
    return f"{found.version} ({place})" if place else found.version


def _packages() -> list[Finding]:
    on_gpus = "a trial on GPUs runs it: see `hysweep setup`, or take an image that has it"
    return [
        *(_package(n, "pip install 'hysweep[cpu]'", is_needed=True) for n in CPU_STACK),
        *(_package(n, on_gpus) for n in GPU_STACK),
        *(_package(n, "pip install hysweep", is_needed=True) for n in OWN_STACK),
        *(_package(n, f"pip install 'hysweep[{extra}]'") for n, extra in EXTRAS.items()),
    ]


def _package(name: str, cure: str, is_needed: bool = False) -> Finding:
    found = as_installed(name)
    return Finding(name, found is not None, found or "not installed", cure, is_needed)


def _resources(where: Path) -> list[Finding]:
    memory = psutil.virtual_memory()
    free_gib = memory.available / 2**30
    there = next(p for p in [where.absolute(), *where.absolute().parents] if p.exists())
    disk_gib = shutil.disk_usage(there).free / 2**30
    return [
        Finding("cores", (os.cpu_count() or 1) >= 2, str(os.cpu_count()), "a trial wants two cores"),
        Finding(
            "memory",
            free_gib >= 4,
            f"{free_gib:.1f} GiB free",
            "a trial on the CPU takes 4 GiB: close something",
        ),
        Finding("disk", disk_gib >= 1, f"{disk_gib:.0f} GiB free at {there}", "make room", is_needed=True),
        Finding(
            "outputs",
            os.access(there, os.W_OK),
            str(where),
            "choose another with study.root=DIR",
            is_needed=True,
        ),
        Finding(
            "tiny model",
            True,
            "built" if assets.is_built() else "not built yet: the first trial builds it in some 20 s",
        ),
    ]


def _cluster() -> list[Finding]:
    gpus = shutil.which("nvidia-smi")
    return [
        Finding(
            "GPU driver",
            gpus is not None,
            gpus or "none",
            "not needed for the tiny model; cluster=local has no GPU",
        ),
        _slurm(),
    ]


def _slurm() -> Finding:
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return Finding("SLURM", False, "no sbatch here", "log in to a node that can submit")
    sbatch = f"{_version_of_slurm()} at {sbatch}"
    if (said := slurm_says_nothing()) is not None:
        cure = f"{_cure_of_silence('')}; for the test cluster {_cure_of_silence('testcluster')}"
        return Finding("SLURM", False, f"{sbatch}, but no cluster answers: {said}", cure)
    return Finding("SLURM", True, sbatch)


def _version_of_slurm() -> str:
    """What the client says of itself; it asks no cluster for that."""
    try:
        done = subprocess.run(["sbatch", "--version"], capture_output=True, text=True, errors="replace", timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return "of unknown version"
    return done.stdout.strip() or "of unknown version"
