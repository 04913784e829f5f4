"""What a job of a standing Ray cluster runs on its head: one attempt, from its claim to its end.json.

    python -m hysweep.launch.ray_node DIRECTORY

It is the node of `hysweep.launch.node`, but for the Ray that its driver joins: that is there already, and stays.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hysweep.launch import node, processes
from hysweep.launch.allocation import Allocation
from hysweep.launch.boot import BootFailed, Wait, last_error
from hysweep.launch.roll import Loss
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause

JOINS_WITHIN = 60.0  # seconds for a process to import Ray and join
NOT_SEEN = 3  # exit code: there is no such directory here


class StandingRay:
    """The cluster that the job runs in. Nothing of it is ours to start, to watch or to end: whatever the driver has
    started there goes with the driver."""

    def __init__(self, job: Job, attempt: AttemptDirectory, allocation: Allocation) -> None:
        self.job = job
        self.attempt = attempt
        self.children: list[subprocess.Popen[bytes]] = []

    def boot(self, environment: Mapping[str, str], wait: Wait) -> dict[str, str]:
        # which cluster, its token, the job's code and environment: a node passes none of it on by itself
        joins = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
        if "RAY_ADDRESS" not in joins:
            raise BootFailed(Cause.RAY_BOOT, "RAY_ADDRESS is not set: this is no job of a Ray cluster")
        self._wait_for_room({**environment, **joins}, wait)
        return joins

    def _wait_for_room(self, environment: Mapping[str, str], wait: Wait) -> None:
        job, log = self.job, self.attempt.ray_log(0)
        gpus = job.ray_gpus if job.ray_gpus is not None else job.gpus_per_node
        asked = [str(job.nodes), str(gpus), str(job.ray_boot_timeout_s)]
        argv = [sys.executable, "-m", "hysweep.launch.ray_room", *asked]
        child = processes.spawn(argv, environment, log, self.attempt.path)
        self.children = [child]
        is_over = wait(lambda: child.poll() is not None, job.ray_boot_timeout_s + JOINS_WITHIN)
        processes.stop(child, 1.0)
        self.children = []
        if not is_over or child.returncode != 0:
            said = log.read_text(encoding="utf-8", errors="replace")
            raise BootFailed(Cause.RAY_BOOT, last_error(said) if is_over else "the Ray cluster could not be joined")

    def poll(self) -> None:
        pass

    def loss(self) -> Loss | None:
        return None

    def unmet(self) -> list[str]:
        return []

    def dump_stacks(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def clear(self) -> None:
        pass


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0: training completed; so Ray's own list of jobs says the same as ours."""
    [name] = sys.argv[1:] if argv is None else argv
    attempt = AttemptDirectory(Path(name))
    if not attempt.path.is_dir():
        print(f"{name} is not seen on {socket.gethostname()}, where Ray runs the job", file=sys.stderr)
        return NOT_SEEN
    with open(attempt.node_log, "ab", buffering=0) as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    code = node.main([name], StandingRay)
    end = attempt.end()
    return code or (0 if end and end.cause.is_as_planned else 1)


if __name__ == "__main__":
    sys.exit(main())
