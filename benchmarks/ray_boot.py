"""From the start of a SLURM job to a driver that sees all of its Ray nodes: three ways to boot, side by side.

    python benchmarks/ray_boot.py [ROUNDS]          as root, on a machine that `hysweep cluster up` works on

ours            this project's node: `ray start` on all nodes at once, towards an address that the first one chose
script          verl's public script (examples/tutorial/slurm/ray_on_slurm.slurm), without its container and with its
                list of nodes mended: the head, ten seconds, each further node and five seconds, then the driver
symmetric-run   `ray symmetric-run` on every node

Each way boots on the same cluster of four nodes that this starts, in turn, the same driver ends each: it joins Ray and
waits until it sees every node and every GPU. For ours also what it takes from the driver's end to a job that is gone
from the queue. All on one machine, whose cores the nodes share.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hysweep.cli.cluster import SCRIPT
from hysweep.launch.slurm import SlurmLauncher
from hysweep.schema.groups import Cluster
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory

NODES = (1, 2, 4)
GPUS = 8
RAY = f"{sys.executable} -m ray.scripts.scripts"
ASKED = f"--ntasks-per-node=1 --cpus-per-task=4 --gpus-per-node={GPUS} --time=10 --partition=main"
MOST_S = 240

DRIVER = '''"""Joins Ray, waits for all nodes and GPUs, notes when it saw them."""
import sys, time
nodes, gpus, note = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
import ray
ray.init(address="auto" if len(sys.argv) < 5 else sys.argv[4], log_to_driver=False, logging_level="error")
while sum(n["Alive"] for n in ray.nodes()) < nodes or ray.cluster_resources().get("GPU", 0) < nodes * gpus:
    time.sleep(0.1)
open(note, "w").write(str(time.time()))
ray.shutdown()
'''

PLAIN = "export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled"

BY_SCRIPT = """#!/bin/bash
date +%s.%N > {began}
{plain}
nodes_array=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head_node=${{nodes_array[0]}}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
ip_head=$head_node_ip:6379
srun --nodes=1 --ntasks=1 -w "$head_node" {ray} start --head --node-ip-address="$head_node_ip" --port=6379 \\
  --num-cpus 4 --num-gpus {gpus} --block &
sleep 10
for ((i = 1; i < SLURM_JOB_NUM_NODES; i++)); do
  srun --nodes=1 --ntasks=1 -w "${{nodes_array[$i]}}" {ray} start --address "$ip_head" \\
    --num-cpus 4 --num-gpus {gpus} --block &
  sleep 5
done
srun --overlap --nodes=1 --ntasks=1 -w "$head_node" {python} {driver} {nodes} {gpus} {note} $ip_head
"""

BY_SYMMETRIC_RUN = """#!/bin/bash
date +%s.%N > {began}
{plain}
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun {ray} symmetric-run --address $head_node:6379 --min-nodes {nodes} --num-cpus 4 --num-gpus {gpus} -- \\
  {python} {driver} {nodes} {gpus} {note}
"""


@contextlib.contextmanager
def cluster() -> Iterator[Path]:
    """A SLURM cluster of four nodes, its commands in PATH, and a directory that all its nodes see."""
    with tempfile.TemporaryDirectory(prefix="ray-boot-") as place:
        os.environ["HYSWEEP_TESTCLUSTER"] = f"{place}/cluster"
        subprocess.run(["bash", str(SCRIPT), "up", "4"], check=True, stdout=subprocess.DEVNULL)
        os.environ["SLURM_CONF"] = f"{place}/cluster/etc/slurm.conf"
        # `ray symmetric-run` calls `ray` by its name
        os.environ["PATH"] = f"{place}/cluster/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        try:
            (Path(place) / "driver.py").write_text(DRIVER)
            yield Path(place)
        finally:
            subprocess.run(["bash", str(SCRIPT), "down"], check=True, stdout=subprocess.DEVNULL)


def by_text(text: str, place: Path, nodes: int) -> tuple[float, float]:
    words = {
        "began": place / "began",
        "note": place / "seen",
        "driver": place / "driver.py",
        "python": sys.executable,
        "ray": RAY,
        "gpus": GPUS,
        "nodes": nodes,
        "plain": PLAIN,
    }
    (place / "job.sh").write_text(text.format(**words))
    argv = [
        "sbatch",
        "--parsable",
        f"--nodes={nodes}",
        *ASKED.split(),
        f"--output={place}/job.log",
        str(place / "job.sh"),
    ]
    job = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=place).stdout.strip()
    return watch(job, place, until_gone=False)  # the others may take minutes to leave


def ours(place: Path, nodes: int) -> tuple[float, float]:
    attempt = AttemptDirectory(place / f"study-{time.time():.0f}" / "trials" / "0000-boot" / "attempts" / "1")
    site = Cluster(
        name="bench",
        gpu="fake",
        nodes=nodes,
        gpus_per_node=GPUS,
        partition="main",
        setup=[f"date +%s.%N > {place}/began"],
    )
    job = Job(
        module="driver",
        overrides=(str(nodes), str(GPUS), str(place / "seen")),
        env={"PYTHONPATH": str(place)},
        launcher="slurm",
        nodes=nodes,
        gpus_per_node=GPUS,
        ray_cpus=4,
        ray_gpus=GPUS,
        timeout_min=10,
        site=site,
    )
    attempt.prepare(job.as_dict())
    return watch(SlurmLauncher().submit(attempt), place, until_gone=True)


def watch(job: str, place: Path, until_gone: bool) -> tuple[float, float]:
    """Seconds from the job's start until the driver saw all, and from then until the job was gone; nan for never."""
    seen, began = place / "seen", place / "began"
    until = time.monotonic() + MOST_S
    gone_at = None
    while time.monotonic() < until and gone_at is None and (until_gone or not seen.exists()):
        queued = subprocess.run(
            ["squeue", "--noheader", f"--jobs={job}"], capture_output=True, text=True
        ).stdout.strip()
        gone_at = time.time() if not queued else None
        time.sleep(0.2)
    subprocess.run(["scancel", job], check=False)
    while subprocess.run(["squeue", "--noheader", f"--jobs={job}"], capture_output=True, text=True).stdout.strip():
        time.sleep(0.2)
    try:
        saw = float(seen.read_text())
        return saw - float(began.read_text()), gone_at - saw if gone_at else float("nan")
    except OSError:
        return float("nan"), float("nan")
    finally:
        seen.unlink(missing_ok=True)
        began.unlink(missing_ok=True)


WAYS = {
    "ours": ours,
    "script": lambda place, nodes: by_text(BY_SCRIPT, place, nodes),
    "symmetric-run": lambda place, nodes: by_text(BY_SYMMETRIC_RUN, place, nodes),
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    took: dict[tuple[str, int], list[float]] = {}
    ends: dict[int, list[float]] = {}
    with cluster() as place:
        for _ in range(rounds):
            for nodes in NODES:
                for name, way in WAYS.items():
                    seconds, gone = way(place, nodes)
                    took.setdefault((name, nodes), []).append(seconds)
                    if name == "ours":
                        ends.setdefault(nodes, []).append(gone)
                    print(f"  {name} {nodes}: {seconds:.1f} s", file=sys.stderr, flush=True)
    median = {key: statistics.median(values) for key, values in took.items()}
    print(f"{'nodes':>5} {'ours':>8} {'script':>8} {'ratio':>6} {'symmetric-run':>14} {'ratio':>6} {'our end':>8}")
    for n in NODES:
        a, b, c = (median[name, n] for name in WAYS)
        end = statistics.median(ends[n])
        print(f"{n:5} {a:7.1f}s {b:7.1f}s {a / b:6.2f} {c:13.1f}s {a / c:6.2f} {end:7.1f}s")


if __name__ == "__main__":
    main()
