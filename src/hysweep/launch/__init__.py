"""Launchers: they start an attempt as a job, look at it and stop it; the node runs inside the job."""

from hysweep.launch.protocol import Busy, JobState, JobStatus, Launcher, Refused
from hysweep.schema import BadInput, Problem, suggest

__all__ = ["LAUNCHERS", "Busy", "JobState", "JobStatus", "Launcher", "Refused", "launcher"]

LAUNCHERS = ("local", "slurm")


def launcher(name: str) -> Launcher:
    """The launcher of this name (``cluster.launcher``)."""
    if name == "local":
        from hysweep.launch.local import LocalLauncher

        return LocalLauncher()
    if name == "slurm":
        from hysweep.launch.slurm import SlurmLauncher

        return SlurmLauncher()
    raise BadInput(Problem("cluster.launcher", name, "there is no such launcher", suggest(name, LAUNCHERS)))
