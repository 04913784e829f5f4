"""What a node says of itself, with a driver and a torch that are stood in for."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hysweep.launch import probe, survey
from hysweep.launch.allocation import Allocation
from hysweep.launch.probe import Probe
from hysweep.launch.protocol import Refused
from hysweep.launch.sbatch import script
from hysweep.launch.survey import Answer
from hysweep.schema import BadInput, Cluster, Trial
from hysweep.schema.finding import Finding
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, write_json

HOST = socket.gethostname()

SMI = """#!/bin/sh
case "$1" in
--query-gpu*) printf 'NVIDIA H100 80GB HBM3, 81559, 580.1\\nNVIDIA H100 80GB HBM3, 81559, 580.1\\n' ;;
*) echo '| NVIDIA-SMI 580.1    Driver Version: 580.1   CUDA Version: 13.0  |' ;;
esac
"""

TORCH = """
import os, sys
from queue import Queue  # as torch does; ours of that name is not it
if os.environ.get("TORCH_FAILS"):
    sys.exit("NCCL error: unhandled system error")

class cuda:
    set_device = staticmethod(lambda device: None)
    synchronize = staticmethod(lambda: None)
    class nccl:
        version = staticmethod(lambda: (2, 28, 9))

class Numbers:
    def __eq__(self, other): return self
    def all(self): return os.environ.get("SUM") != "wrong"

ones = lambda n, device: Numbers()
"""

DISTRIBUTED = """
import os
init_process_group = lambda backend, timeout: None
get_world_size = lambda: int(os.environ["WORLD_SIZE"])
get_rank = lambda: int(os.environ["RANK"])
all_reduce = lambda *a: None
destroy_process_group = lambda: print("NCCL INFO comm - Destroy COMPLETE")
"""


@pytest.fixture
def with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text(SMI)
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    for name, text in {"__init__": TORCH, "distributed": DISTRIBUTED}.items():
        (tmp_path / "site/torch").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"site/torch/{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setattr(probe, "find_spec", lambda name: object())


def look(tmp_path: Path, requires: dict[str, str] | None = None, **cluster: Any) -> dict[str, Finding]:
    site = Cluster(name="x", launcher="slurm", **cluster)
    job = Job("x", (), gpus_per_node=site.gpus_per_node, requires=requires or {}, site=site)
    directory = tmp_path / "s/trials/0000-doctor/attempts/1"
    directory.mkdir(parents=True)
    write_json(probe.pong(directory, 0), {"at": 0.0})
    found = Probe(directory, Allocation(0, (HOST,), gpus=2), job).run()
    return {f.name: f for f in found}


def test_gpus_that_reduce(tmp_path: Path, with_gpus: None) -> None:
    found = look(tmp_path, gpu="H100", gpus_per_node=2, gpu_memory_gib=79.1)
    assert found["GPU driver"].found == "driver 580.1, CUDA up to 13.0"
    assert found["GPUs"].found.startswith("2 seen, 2 promised, 2 given by SLURM")
    assert found["GPU memory"].found == "NVIDIA H100 80GB HBM3, 79.6 GiB each"
    assert found["all-reduce"].found.startswith("2 GPUs, 256 MiB in ")
    assert found["all-reduce"].found.endswith("NCCL 2.28.9")
    assert all(found[n].is_good for n in ("GPU driver", "GPUs", "GPU memory", "all-reduce"))


@pytest.mark.parametrize(
    ("env", "says"),
    [({"TORCH_FAILS": "1"}, "NCCL error: unhandled system error"), ({"SUM": "wrong"}, "the sum is wrong")],
)
def test_gpus_that_do_not(
    tmp_path: Path, with_gpus: None, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], says: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    found = look(tmp_path, gpu="H100", gpus_per_node=2)["all-reduce"]
    assert (found.is_good, found.is_needed) == (False, True)
    assert says in found.found


def test_fewer_gpus_and_less_memory_than_promised(tmp_path: Path, with_gpus: None) -> None:
    found = look(tmp_path, gpu="H100", gpus_per_node=8, gpu_memory_gib=139.0)
    assert (found["GPUs"].is_good, found["GPUs"].found[:27]) == (False, "2 seen, 8 promised, 2 given"[:27])
    assert (found["GPU memory"].is_good, "gpu_memory_gib=79.6" in found["GPU memory"].cure) == (False, True)


def test_versions_clocks_and_places(tmp_path: Path) -> None:
    found = look(tmp_path, {"psutil": "<1"}, local_dir="/nowhere")
    assert "psutil = " in found["packages"].found
    assert not found["packages"].is_good
    assert not found["clock"].is_good, "the other side said that it is 1970"
    assert " s ahead ± " in found["clock"].found
    assert "/nowhere: No such file or directory" in found["temporary"].found
    assert found["ports"].found.endswith("bound; one node, none to reach it")


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_MEETS_WITHIN", 0.2)
    directory = tmp_path / "s/trials/0000-doctor/attempts/1"
    directory.mkdir(parents=True)
    alone = Probe(directory, Allocation(1, (HOST, "other")), Job("x", (), site=Cluster(name="x", launcher="slurm")))
    found = {f.name: f for f in alone.run()}
    assert "no answer within" in found["shared files"].found
    assert found["ports"].found == f"{HOST} never said where it listens"


def test_two_nodes_meet(tmp_path: Path) -> None:
    job = Job("x", (), site=Cluster(name="x", launcher="slurm"))
    nodes = ("node1", "localhost")
    first, second = (Probe(tmp_path, Allocation(rank, nodes), job) for rank in (0, 1))
    found: list[Finding] = []
    listens = threading.Thread(target=lambda: found.append(first._port()))
    listens.start()
    assert second._port().found == "127.0.0.1 reached from 127.0.0.1"
    listens.join()
    assert found[0].found == "127.0.0.1 bound, reached from localhost"


# --- the side that asks


def test_the_job_is_a_trials_but_for_what_it_runs(tmp_path: Path) -> None:
    attempt = AttemptDirectory(tmp_path / "s/trials/0000-doctor/attempts/1")
    text = script(Job("x", (), launcher="slurm", site=Cluster(name="x", launcher="slurm")), attempt, "n")
    assert text.count(survey._TRIALS_NODE) == 1


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("", "FAILED, and wrote nothing: is "),
        ("Traceback\nValueError: x\nsrun: error: node1: task 0: Exited with exit code 1\n", "FAILED: ValueError: x"),
        (
            "srun: error: Application launch failed: No such image\nsrun: Job step aborted: Waiting up to 12 seconds\n",
            "FAILED: srun: error: Application launch failed: No such image",
        ),
        (
            "srun: unrecognized option '--container-image=x'\nTry \"srun --help\" for more information\n",
            "FAILED: srun: unrecognized option '--container-image=x'; see cluster.python",
        ),
    ],
)
def test_the_last_words_of_a_job(tmp_path: Path, log: str, says: str) -> None:
    attempt = AttemptDirectory(tmp_path / "s/trials/0000-doctor/attempts/1")
    attempt.path.mkdir(parents=True)
    (attempt.path / "slurm-7.log").write_text(log)
    answer = Answer("", Job("x", ()), attempt, "word")
    answer.state = survey.JobState(survey.JobStatus.ENDED, "FAILED")
    assert survey._why_silent(answer).startswith(says)


# --- kinds of node of which some are refused


def test_a_kind_that_is_refused_keeps_no_other_from_being_asked(
    tmp_path: Path, trial_of: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Answer] = []

    def sbatch(_: Any, file: Path) -> str:
        if "--constraint=h100" in file.read_text():
            raise Refused("Invalid feature specification")
        return "7"

    monkeypatch.setattr(survey, "lacks_for", lambda trial: [])  # a cluster answers
    monkeypatch.setattr(survey.SlurmLauncher, "send", sbatch)
    monkeypatch.setattr(survey, "_gather", lambda answers, *_: asked.extend(answers))
    monkeypatch.setattr(survey, "_end", lambda ids: None)
    trial = trial_of("cluster=testcluster")
    said: list[str] = []
    one, two = survey.survey(trial, tmp_path, ["h100", "a100"], 1, 1.0, said.append)
    assert (one.job_id, one.problem, one.is_good) == ("", "no job was taken: Invalid feature specification", False)
    assert (two.job_id, asked) == ("7", [two])
    assert said == ["job 7: 1 nodes with a100", "constraint h100: no job was taken: Invalid feature specification"]
    with pytest.raises(BadInput, match="constraint h100"):
        survey.survey(trial, tmp_path, ["h100"], 1, 1.0, said.append)
    wrong = replace(trial, cluster=replace(trial.cluster, srun_args=["hostname"]))
    with pytest.raises(BadInput, match="hostname: is no option"):
        survey.survey(wrong, tmp_path, [], 1, 1.0, said.append)
    assert list(tmp_path.iterdir()) == []


def test_cpus_that_are_too_few_for_the_trainers_processes(tmp_path: Path) -> None:
    """Case 23: where nothing is asked for, a site may give a task one CPU."""
    directory = tmp_path / "s/trials/0000-doctor/attempts/1"
    directory.mkdir(parents=True)
    write_json(probe.pong(directory, 0), {"at": 0.0})
    for cpus, said in ((1, "offers 1 CPUs"), (34, "")):
        job = Job("x", (), least_cpus=34, launcher="slurm", site=Cluster(name="x", launcher="slurm"))
        found = {f.name: f for f in Probe(directory, Allocation(0, (HOST,), cpus=cpus), job).run()}
        assert said in found["CPUs"].found and "cpus_per_node=34" in found["CPUs"].cure if said else "CPUs" not in found


def test_cpus_of_which_slurm_counts_more_than_there_are() -> None:
    assert probe._cpus(64, 8) == "64 CPUs of which 8 are ours"
    assert probe._cpus(2, 8) == "2 CPUs, which SLURM counts as 8"
    assert probe._cpus(2, None) == "2 CPUs, and SLURM does not say how many are ours"
