"""Launchers: they start an attempt as a job, look at it and stop it; the node runs inside the job."""

from hysweep.launch.protocol import Busy, JobState, JobStatus, Launcher, Refused
from hysweep.schema import BadInput, Cluster, Problem, suggest

__all__ = ["LAUNCHERS", "Busy", "JobState", "JobStatus", "Launcher", "Refused", "launcher", "unready"]

LAUNCHERS = ("local", "slurm", "ray_job")


def launcher(name: str) -> Launcher:
    """The launcher of this name (``cluster.launcher``)."""
    if name == "local":
        from hysweep.launch.local import LocalLauncher

        return LocalLauncher()
    if name == "slurm":
        from hysweep.launch.slurm import SlurmLauncher

        return SlurmLauncher()
    if name == "ray_job":
        from hysweep.launch.ray_job import RayJobLauncher

        return RayJobLauncher()
    raise BadInput(Problem("cluster.launcher", name, "there is no such launcher", suggest(name, LAUNCHERS)))


def unready(site: Cluster) -> list[Problem]:
    """Why jobs could not be submitted from here and now, where that can be known without submitting one."""
    if site.launcher != "ray_job":
        return []
    from hysweep.launch.ray_job import unready

    return unready(site)
