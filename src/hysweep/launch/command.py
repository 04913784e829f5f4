"""The commands of an attempt and the environment that they run in."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from hysweep.check.site import SECRET
from hysweep.launch.allocation import Allocation
from hysweep.launch.interfaces import GLOO, NCCL
from hysweep.launch.processes import MARK
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory

# What a shell, an allocation or another cluster left behind and what would steer this job: which Ray to join,
# which rank to be, how many there are. SLURM_CONF says where the scheduler is, not who we are.
FOREIGN = re.compile(
    r"(?!SLURM_CONF$)(?:SLURM_|SRUN_|PMI_|PMIX_|PMI2_|OMPI_|SUBMITIT_|TORCHELASTIC_)"
    r"|RAY_(?:ADDRESS|API_SERVER_ADDRESS|AUTH_|NAMESPACE$|RUNTIME_ENV|JOB_|RAYLET_|NODE_|CLIENT_|TMPDIR$|START_HOOK$)"
    r"|(?:RANK|LOCAL_RANK|GROUP_RANK|NODE_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
    r"|VERL_FILE_LOGGER_"
)


def foreign(environment: Mapping[str, str]) -> list[str]:
    """The names in `environment` that a job must not inherit."""
    return sorted(name for name in environment if FOREIGN.match(name))


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What a node process gets of its submitter's environment; it runs elsewhere, so paths become absolute."""
    kept = {name: value for name, value in environment.items() if not FOREIGN.match(name)}
    if kept.get("PYTHONPATH"):
        entries = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    return kept


VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def on_node(job: Job, attempt: AttemptDirectory, environment: Mapping[str, str], began: float) -> dict[str, str]:
    """What the trainer and `ray start` have on a node whose own environment is given; `began` in unix seconds."""
    kept = inherited(environment) | settings(job, attempt)
    for name in VISIBILITY:
        # with no GPU Ray's are slots, which it would count by the devices that a shell hides or has
        if name != job.site.visible_devices or job.site.gpu is None:
            kept.pop(name, None)
    if job.site.network_interface is not None:
        for name in (NCCL, GLOO):
            kept.setdefault(name, job.site.network_interface)
    # With the first driver Ray starts a Python for each CPU, 80 MB and 0.4 s of CPU each, that verl does not take: its
    # workers each have an environment of their own (Ray's src/ray/common/ray_config_def.h)
    kept.setdefault("RAY_prestart_worker_first_driver", "0")
    if job.saves_before_end:
        # verl/utils/checkpoint/checkpoint_manager.py, should_save_ckpt_esi: it saves in time for this
        ends = began + job.timeout_min * 60 - job.site.signal_delay_s
        kept.setdefault("MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP", str(int(ends)))
    return kept


def settings(job: Job, attempt: AttemptDirectory) -> dict[str, str]:
    """What is set for the trainer and for `ray start` alike: Ray's workers inherit from the latter."""
    return job.env | {
        MARK: identity(attempt),
        "VERL_FILE_LOGGER_PATH": str(attempt.metrics_file.absolute()),
        "PYTHONUNBUFFERED": "1",
        # Ray's workers rename themselves, which overwrites the environment in /proc, and with it the mark.
        "SPT_NOENV": "1",
    }


def shown(settings: Mapping[str, str]) -> list[str]:
    """NAME=value as a plan may show it: what reads as a secret stays one."""
    return [f"{n}={'…' if SECRET.search(n) else shlex.quote(value)}" for n, value in sorted(settings.items())]


def identity(attempt: AttemptDirectory) -> str:
    """The one spelling of an attempt's directory."""
    return os.path.realpath(attempt.path)


def prepare_commands(job: Job) -> list[list[str]]:
    return [[sys.executable, *argv] for argv in job.prepare]


def driver_command(job: Job) -> list[str]:
    return [sys.executable, "-m", job.module, *job.overrides]


def cpus_for_ray(job: Job, allocation: Allocation) -> int | None:
    """None: as many as Ray counts."""
    return job.ray_cpus if job.ray_cpus is not None else allocation.cpus


def lacks_cpus(job: Job, allocation: Allocation) -> tuple[str, str] | None:
    """What keeps Ray from placing the trainer's processes, and the cure; None where nothing does."""
    offered, least = cpus_for_ray(job, allocation) or os.cpu_count(), job.least_cpus
    if job.launcher == "ray_job" or offered is None or offered >= least:
        return None
    why = f"{allocation.name} offers {offered} CPUs, and the trainer's processes take {least} of each node: it would"
    return f"{why} wait for ever", f"set cluster.cpus_per_node={least} or more"


def ray_command(
    job: Job,
    allocation: Allocation,
    temporary: Path | str,
    own: str,
    head: str | None,
    port: int | str | None,
    client_port: int | str,
) -> list[str]:
    """`ray start` on the node whose address is `own`: of the head on `port`, or joining `head` (``address:port``).

    Every port that can be left to the kernel is.
    """
    optional = {
        "--num-cpus": cpus_for_ray(job, allocation),
        "--num-gpus": job.ray_gpus,
        "--object-store-memory": None if job.object_store_gib is None else int(job.object_store_gib * 2**30),
    }
    if head is None:
        # Ray's client server has no way to be left out, only one to be elsewhere than on its fixed port.
        role = ["--head", f"--port={port}", f"--ray-client-server-port={client_port}", "--include-dashboard=false"]
        role.append("--no-monitor")  # the autoscaler, which has no nodes to add, takes a Python's start
    else:
        role = [f"--address={head}"]
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", *role, "--block"),
        *(f"--node-ip-address={own}", f"--temp-dir={temporary}", "--dashboard-agent-listen-port=0"),
        "--disable-usage-stats",
        *(f"{option}={value}" for option, value in optional.items() if value is not None),
    ]


def ray_settings(token: str, is_alone: bool) -> dict[str, str]:
    """Only who has the token joins, and `ray start` says so on every node alike."""
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    if is_alone:
        # Without it Ray replaces 127.0.0.1 by an address of the network and listens there, and a laptop that
        # changes its network loses its cluster. It is Ray's own default on the systems in the name.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return settings
