"""`hysweep doctor --cluster` on a real SLURM cluster: what its nodes say, and why they say nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Cluster, Done

pytestmark = pytest.mark.slurm


def doctor(cluster: Cluster, *words: str) -> Done:
    argv = [sys.executable, "-m", "hysweep", "doctor", "--cluster", *words]
    done = cluster.exec(argv, check=False, cwd=cluster.shared)
    assert "Traceback" not in done.stderr, done.stderr
    assert not list(cluster.shared.glob("**/.doctor-*")), "no file is left"
    assert not cluster.queue(), "no job is left"
    return done


def findings(answer: dict[str, Any], node: int = 0) -> dict[str, dict[str, Any]]:
    return {f["name"]: f for f in answer["nodes"][node]["findings"]}


def test_each_kind_of_node_is_asked(cluster: Cluster) -> None:
    began = time.monotonic()
    done = doctor(cluster, "testcluster", "--constraint", "h100", "--constraint", "a100", "--json")
    assert time.monotonic() - began < 40
    assert done.returncode == 0, done
    one, two = json.loads(done.stdout)
    assert [a["kind"] for a in (one, two)] == ["h100", "a100"]
    assert [n["node"] for n in one["nodes"] + two["nodes"]] == ["node1", "node2", "node3", "node4"]
    first, second = findings(one), findings(one, 1)
    assert "there and back in" in first["shared files"]["found"]
    assert "reached from node2" in first["ports"]["found"]
    assert "10.77.0.11 reached from 10.77.0.12" in second["ports"]["found"]
    assert first["all-reduce"]["found"] == "not run: no GPUs were asked for"
    assert float(first["clock"]["found"].split()[0]) < 1
    assert "verl 0.9.1" in first["packages"]["found"]
    assert "GiB free" in first["/dev/shm"]["found"]
    assert not (cluster.shared / "outputs").exists(), "the directory of studies was made for this alone"


def test_a_person_reads_a_table(cluster: Cluster) -> None:
    done = doctor(cluster, "testcluster", "--nodes", "1")
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[0].startswith("node")
    assert "one node, none to reach it" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-1] == "the cluster can run it"


def test_gpus_that_no_driver_shows(cluster: Cluster) -> None:
    words = ["cluster.gpu=H100", "cluster.gpu_memory_gib=79", "cluster.gpus_per_node=4", "rollout=vllm"]
    done = doctor(cluster, "testcluster", "--nodes", "1", "--json", *words)
    assert done.returncode == 1, done
    (answer,) = json.loads(done.stdout)
    found = findings(answer)
    assert (found["GPU driver"]["is_good"], found["GPU driver"]["found"]) == (False, "there is no nvidia-smi")
    assert found["GPUs"]["found"].startswith("4 seen, 4 promised, 4 given by SLURM; CUDA_VISIBLE_DEVICES=0,1,2,3")
    assert found["all-reduce"]["found"] == "not run: no GPU of NVIDIA's answers"


def test_what_stays_in_the_queue_is_withdrawn(cluster: Cluster) -> None:
    cluster.sbatch("-N4", "--exclusive", "--wrap", "sleep 60")
    done = subprocess.run(
        [sys.executable, "-m", "hysweep", "doctor", "--cluster", "testcluster", "--within", "4", "--json"],
        env=cluster.submit_env, capture_output=True, text=True, cwd=cluster.shared, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done
    (answer,) = json.loads(done.stdout)
    assert "still waits in the queue: Resources" in answer["problem"]
    assert len(cluster.queue()) == 1, "it was withdrawn"


def test_a_job_that_ends_without_a_word(cluster: Cluster) -> None:
    done = doctor(cluster, "testcluster", "--json", "cluster.python=/no/python")
    assert done.returncode == 1, done
    (answer,) = json.loads(done.stdout)
    assert answer["problem"].startswith("the scheduler says FAILED")
    assert "/no/python" in answer["problem"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "cluster.launcher = local: its nodes cannot be asked by sbatch"),
        (("testcluster", "cluster.partition=nope"), "no job was taken: invalid partition specified: nope"),
        (("testcluster", "--constraint", "z9"), "constraint z9: no job was taken: "),
        (("nope",), "cluster = nope"),
        (("testcluster", "cluster.nope=1"), "cluster.nope"),
    ],
)
def test_what_cannot_be_asked(cluster: Cluster, words: tuple[str, ...], says: str) -> None:
    done = doctor(cluster, *words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_from_a_directory_that_the_nodes_do_not_see(cluster: Cluster) -> None:
    done = doctor(cluster, "testcluster", "--within", "20", "--json", "study.root=/dev/shm/hs-doctor")
    assert done.returncode == 1, done
    (answer,) = json.loads(done.stdout)
    assert answer["nodes"] == []
    assert "is /dev/shm/hs-doctor seen on the nodes?" in answer["problem"]
    assert not Path("/dev/shm/hs-doctor").exists()
