"""Launchers: they start an attempt as a job, look at it and stop it; the node runs inside the job."""

from hysweep.launch.protocol import JobState, JobStatus, Launcher
from hysweep.schema import BadInput, Problem, suggest

__all__ = ["LAUNCHERS", "JobState", "JobStatus", "Launcher", "launcher"]

LAUNCHERS = ("local", "slurm")


def launcher(name: str) -> Launcher:
    """The launcher of this name (``cluster.launcher``)."""
    if name == "local":
        from hysweep.launch.local import LocalLauncher

        return LocalLauncher()
    if name == "slurm":
        raise BadInput(
            Problem(
                "cluster.launcher",
                name,
                "this version launches on the local machine only",
                "set cluster.launcher=local to run here; `hysweep plan` works for any cluster",
            )
        )
    raise BadInput(Problem("cluster.launcher", name, "there is no such launcher", suggest(name, LAUNCHERS)))
