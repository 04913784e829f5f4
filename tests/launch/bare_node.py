"""A node whose trainer joins nothing: `python -m bare_node` stands in for `python -m hysweep.launch.node`.

LATE_S in the environment: seconds that it takes to come up, before it does anything at all. What its trainer joins
is gone as soon as the attempt's directory holds a file `cluster-gone`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

from hysweep.launch import node
from hysweep.launch.allocation import Allocation
from hysweep.launch.boot import Wait
from hysweep.launch.roll import Loss
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause


class NoCluster:
    def __init__(self, job: Job, attempt: AttemptDirectory, allocation: Allocation) -> None:
        self.gone = attempt.path / "cluster-gone"
        self.children: list[subprocess.Popen[bytes]] = []

    def boot(self, environment: Mapping[str, str], wait: Wait) -> dict[str, str]:
        return {}

    def poll(self) -> None:
        pass

    def loss(self) -> Loss | None:
        return Loss("", "the cluster is gone", Cause.KILLED) if self.gone.exists() else None

    def unmet(self) -> list[str]:
        return []

    def dump_stacks(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def clear(self) -> None:
        pass


if __name__ == "__main__":
    time.sleep(float(os.environ.get("LATE_S", "0")))
    node.PULSE = 0.3
    node.LOOK = 0.2
    node.DRIVER_GRACE = 1.0
    sys.exit(node.main(cluster=NoCluster))
