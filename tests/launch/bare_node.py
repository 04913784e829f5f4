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

from hysweep.compile.job import Job
from hysweep.launch import node
from hysweep.launch.boot import Wait
from hysweep.track import AttemptDirectory


class NoCluster:
    def __init__(self, job: Job, attempt: AttemptDirectory) -> None:
        self.gone = attempt.path / "cluster-gone"
        self.children: list[subprocess.Popen[bytes]] = []

    def boot(self, environment: Mapping[str, str], wait: Wait) -> dict[str, str]:
        return {}

    def why_gone(self) -> str:
        return "the cluster is gone" if self.gone.exists() else ""

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
