"""The test cluster is a SLURM cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.conftest import SCRIPT, Cluster

pytestmark = pytest.mark.slurm


SLEEPS = "echo run; exec sleep 300"


def wait_for(holds: Callable[[], object], timeout: float = 30) -> None:
    until = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.2)


def wait_queue(cluster: Cluster, job: str, wanted: str) -> None:
    wait_for(lambda: cluster.queue().get(job) == wanted)


def test_a_job_of_two_nodes_gets_gpus_of_its_own(cluster: Cluster) -> None:
    """Two at once on the same nodes: each has half the GPUs, and sacct says how they ended."""
    show = "srun sh -c 'echo $(hostname):$CUDA_VISIBLE_DEVICES; sleep 2'"
    one, two = (
        cluster.sbatch(
            "-N2", "-w", "node[1-2]", "--ntasks-per-node=1", "--gpus-per-node=4", "-o", "%j.out", "--wrap", show
        )
        for _ in range(2)
    )
    for job in (one, two):
        cluster.wait_state(job, "COMPLETED")
    seen = [sorted((cluster.shared / f"{job}.out").read_text().split()) for job in (one, two)]
    assert sorted(seen) == [["node1:0,1,2,3", "node2:0,1,2,3"], ["node1:4,5,6,7", "node2:4,5,6,7"]]
    assert cluster.exec(["sacct", "-n", "-X", "-P", "-j", one, "-o", "ExitCode"]).stdout == "0:0\n"


def test_a_step_is_ended_with_all_that_it_started(cluster: Cluster) -> None:
    """Its daemons too. In a job the tools are the plain ones, not those that enter the cluster from outside."""
    job = cluster.sbatch("-w", "node1", "-o", "%j.out", "--wrap", "readlink -f $(which srun); setsid -f sleep 987")
    cluster.wait_state(job, "COMPLETED")
    assert (cluster.shared / f"{job}.out").read_text() == "/usr/bin/srun\n"
    wait_for(lambda: "sleep 987" not in cluster.on("node1", ["ps", "ax"]).stdout)


def test_features_and_what_sbatch_refuses(cluster: Cluster) -> None:
    assert cluster.exec(["srun", "-N2", "-C", "a100", "hostname"]).stdout.split() in (
        ["node3", "node4"],
        ["node4", "node3"],
    )
    for words, why in {
        ("-p", "locked"): "Invalid account",
        ("-N5",): "Node count",
        ("-N3", "-C", "h100"): "not available",
        ("-p", "nowhere"): "invalid partition",
    }.items():
        refused = cluster.exec(["sbatch", *words, "--wrap", "true"], check=False)
        assert refused.returncode == 1 and why in refused.stderr
    assert cluster.queue() == {}


def test_preemption_requeues_in_low_and_ends_in_cancel(cluster: Cluster) -> None:
    for partition in ("low", "cancel"):
        cluster.exec(["scontrol", "update", f"partitionname={partition}", "gracetime=0"])
    low, cancel = (
        cluster.sbatch("-p", p, "-N2", "--exclusive", "--open-mode=append", "-o", f"{p}.out", "--wrap", SLEEPS)
        for p in ("low", "cancel")
    )
    for job in (low, cancel):
        wait_queue(cluster, job, "RUNNING")
    high = cluster.sbatch("-N4", "--exclusive", "--wrap", "sleep 1")
    cluster.wait_state(high, "COMPLETED")
    cluster.wait_state(cancel, "PREEMPTED")
    wait_queue(cluster, low, "RUNNING")
    wait_for(lambda: (cluster.shared / "low.out").read_text().count("run\n") == 2)
    assert (cluster.shared / "cancel.out").read_text().count("run\n") == 1
    for partition in ("low", "cancel"):
        cluster.exec(["scontrol", "update", f"partitionname={partition}", "gracetime=20"])


def test_a_dead_node_fails_its_job_or_requeues_it(cluster: Cluster) -> None:
    stays = cluster.sbatch("-N2", "-w", "node[1-2]", "--no-requeue", "--wrap", "srun sleep 300")
    again = cluster.sbatch("-N2", "-w", "node1", "--requeue", "--wrap", "srun sleep 300")
    for job in (stays, again):
        wait_queue(cluster, job, "RUNNING")
    cluster.kill_node("node1")
    cluster.down_node("node1")
    cluster.wait_state(stays, "NODE_FAIL")
    cluster.start_node("node1")
    assert cluster.on("node1", ["hostname"]).stdout == "node1\n"
    wait_queue(cluster, again, "PENDING")
    assert "Restarts=1" in cluster.exec(["scontrol", "show", "job", again]).stdout


def test_a_controller_that_is_killed_or_away_keeps_its_jobs(cluster: Cluster) -> None:
    job = cluster.sbatch("--wrap", "sleep 300")
    wait_queue(cluster, job, "RUNNING")
    cluster.restart_controller()
    assert cluster.queue() == {job: "RUNNING"}
    cluster.stop_controller()
    assert "is DOWN" in cluster.exec(["scontrol", "ping"], check=False).stdout
    cluster.start_controller()
    assert cluster.queue() == {job: "RUNNING"}


def test_a_second_cluster_comes_and_goes_and_leaves_nothing(cluster: Cluster, second: Cluster) -> None:
    """Beside the first, with the other way of tracking processes. A client that waits in it is ended with it."""
    began = time.monotonic()
    assert f'eval "$(hysweep cluster --run {second.run} env)"' in second.script("up", "2").stdout
    assert time.monotonic() - began < 40
    assert "is up already, with 2 nodes" in second.script("up").stderr
    assert second.script("up", "3", check=False).returncode == 2
    longer = Cluster(Path(f"{second.run}x"), second.shared).script("up", check=False)
    assert longer.returncode == 2 and "at most 68 characters" in longer.stderr
    job = second.sbatch("-w", "node2", "--wrap", "setsid -f sleep 986")
    second.wait_state(job, "COMPLETED")
    wait_for(lambda: "sleep 986" not in second.on("node2", ["ps", "ax"]).stdout)
    waits = subprocess.Popen(["srun", "-n1", "sleep", "300"], env=second.submit_env, stderr=subprocess.DEVNULL)
    wait_for(lambda: "RUNNING" in second.queue().values())
    assert cluster.queue() == {}
    own = {second.on(host, ["readlink", "/proc/self/ns/net"]).stdout.strip() for host in ("ctl", "node1", "node2")}
    assert len(own) == 3 and own <= namespaces()
    second.script("down")
    assert waits.wait(10) != 0
    assert not own & namespaces()
    assert nothing_is_left(second)
    assert second.script("status", check=False).returncode == 2


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_up_cut_short_leaves_nothing_or_what_down_takes(second: Cluster, end: signal.Signals) -> None:
    env = os.environ | {"HYSWEEP_TESTCLUSTER": str(second.run)}
    # a shell keeps ignoring what it was born ignoring, as it is where these tests run in the background
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "start_new_session": True}
    up = subprocess.Popen(["bash", str(SCRIPT), "up", "2"], env=env, stderr=subprocess.DEVNULL, **heard)
    wait_for(lambda: (second.run / "mysql").exists())
    os.killpg(up.pid, end)
    assert up.wait(30) == (130 if end == signal.SIGINT else -9)
    if end == signal.SIGKILL:
        second.script("down")
    assert nothing_is_left(second)


@pytest.fixture
def second(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Another cluster, not up yet."""
    monkeypatch.setenv("HYSWEEP_TESTCLUSTER_PROCTRACK", "proctrack/linuxproc")
    longest = f"{cluster.run}-2-".ljust(68, "x")
    yield (other := Cluster(Path(longest), tmp_path))
    other.script("down")


def nothing_is_left(cluster: Cluster) -> bool:
    return not cluster.run.exists() and not [
        p for p in Path("/proc").glob("[0-9]*/cmdline") if str(cluster.run).encode() in said(p)
    ]


def said(cmdline: Path) -> bytes:
    try:
        return cmdline.read_bytes()
    except OSError:
        return b""


def namespaces() -> set[str]:
    """Network namespaces of this machine."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return found
