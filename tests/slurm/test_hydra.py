"""Real verl on two nodes of the real cluster, through Hydra's launchers: ours, and the stock one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hysweep.report import read_study
from hysweep.track import Cause, StudyDirectory
from tests.slurm.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

HYSWEEP = (sys.executable, "-m", "hysweep")
TINY = ("cluster=testcluster", "trainer.validate_every=-1", "trainer.save_every=-1")


def run(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    # the cache of the tiny model is the tests' own, where the nodes see it
    env = cluster.submit_env | {"HYSWEEP_CACHE_DIR": str(cluster.shared.parent / "cache")}
    return cluster.exec([*HYSWEEP, "run", *words], cwd=cluster.shared, env=env, timeout=600)


def studies(cluster: Cluster) -> list[StudyDirectory]:
    found = [StudyDirectory(p.parent) for p in sorted((cluster.shared / "outputs").glob("*/study.yaml"))]
    return [s for s in found if s.exists]


def test_a_sweep_of_two_trials(cluster: Cluster) -> None:
    """With the settings that people have for hydra-submitit-launcher; each trial on two nodes, both at once."""
    ours = ("hydra/launcher=hysweep_slurm", "hydra.launcher.partition=main", "hydra.launcher.array_parallelism=2")
    said = run(cluster, "-m", *ours, *TINY, "study.name=ours", "trainer.total_steps=4", "algorithm=grpo,rloo")
    record = read_study(StudyDirectory(cluster.shared / "outputs" / "ours"))
    assert [t.state.cause for t in record.trials] == [Cause.COMPLETED] * 2, said.stdout
    for trial in record.trials:
        job = json.loads((trial.directory.attempt(1).path / "job.json").read_text())
        assert job["nodes"] == 2 and len(trial.directory.attempt(1).metrics()) == 4
        assert cluster.wait_state(trial.state.job_id or "", "COMPLETED") == "COMPLETED"
    nodes = [set(node_names(t.directory.attempt(1).path)) for t in record.trials]
    assert all(len(n) == 2 for n in nodes)


def test_the_stock_launcher_runs_one_trial_on_its_nodes_not_one_on_each(cluster: Cluster) -> None:
    stock = ("hydra/sweeper=basic", "hydra/launcher=submitit_slurm", "hydra.launcher.nodes=2")
    asked = ("hydra.launcher.cpus_per_task=8", "hydra.launcher.partition=main")
    run(cluster, "-m", *stock, *asked, *TINY, "study.name=stock", "trainer.total_steps=1", "algorithm=grpo")
    record = read_study(StudyDirectory(cluster.shared / "outputs" / "stock"))
    (trial,) = record.trials
    assert trial.state.cause is Cause.COMPLETED and len(trial.directory.attempts()) == 1
    assert len(node_names(trial.directory.attempt(1).path)) == 2


def node_names(attempt: Path) -> list[str]:
    """The hosts whose Ray said that it is up, by the addresses in their logs."""
    logs = sorted(attempt.glob("ray-*.log"))
    found = [line.split()[-1] for log in logs for line in log.read_text().splitlines() if "Local node IP" in line]
    return list(dict.fromkeys(found))
