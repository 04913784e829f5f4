"""Real verl on two nodes of the real cluster, through Hydra's launchers: ours, and the stock one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hysweep.report import read_study
from hysweep.track import Cause, StudyDirectory, TrialDirectory, checkpoint_step
from tests.slurm.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.verl, pytest.mark.timeout(3000)]

HYSWEEP = (sys.executable, "-m", "hysweep")
TINY = ("cluster=testcluster", "trainer.validate_every=-1")
STEPS = 4


def environment(cluster: Cluster) -> dict[str, str]:
    # the cache of the tiny model is the tests' own, where the nodes see it
    return cluster.submit_env | {"HYSWEEP_CACHE_DIR": str(cluster.shared.parent / "cache")}


def trials_of(study: StudyDirectory) -> list[TrialDirectory]:
    return study.trials() if study.exists else []


def said(study: StudyDirectory) -> str:
    root = study.path.parent.parent
    logs = [root / "run.log", *sorted(study.path.rglob("node*.log")), *sorted(study.path.rglob("driver.log"))]
    return "\n".join(f"=== {p}\n{p.read_text(errors='replace')[-3000:]}" for p in logs if p.exists())


def test_a_sweep_of_two_trials_of_which_one_is_preempted(cluster: Cluster) -> None:
    """With the settings that people have for hydra-submitit-launcher; each trial on two nodes, both at once. One loses
    them in the middle, comes back by itself, goes on from its checkpoint and is told one value."""
    ours = ("hydra/launcher=hysweep_slurm", "hydra.launcher.partition=low", "hydra.launcher.array_parallelism=2")
    # nodes of its own for each: else both would lose theirs
    words = (
        *ours,
        "cluster.use_exclusive=true",
        *TINY,
        "trainer.save_every=1",
        "study.name=ours",
        f"trainer.total_steps={STEPS}",
    )
    study = StudyDirectory(cluster.shared / "outputs" / "ours")
    log = open(cluster.shared / "run.log", "w")  # noqa: SIM115 # the child has it
    argv = [*HYSWEEP, "run", "-m", *words, "algorithm=grpo,rloo"]
    run = subprocess.Popen(argv, env=environment(cluster), cwd=cluster.shared, stdout=log, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 600
        while not (saved := [t for t in trials_of(study) if checkpoint_step(t.checkpoints) >= 1]):
            assert time.monotonic() < until and run.poll() is None, said(study)
            time.sleep(0.2)
        claims = {t.number: t.attempt(1).claimed() for t in study.trials()}
        lost = saved[0].number
        nodes = cluster.exec(["squeue", "-h", "-j", claims[lost].job, "-o", "%N"]).stdout.strip()
        higher = cluster.sbatch("-N2", "-w", nodes, "--exclusive", "--wrap", "sleep 1")
        assert cluster.wait_state(higher, "COMPLETED", timeout=90)
        assert run.wait(600) == 0, said(study)
    finally:
        run.kill()
        log.close()
    trials = study.trials()
    assert [t.state().cause for t in trials] == [Cause.COMPLETED] * 2, said(study)
    for trial in trials:
        attempts = trial.attempts()
        assert [a.end().cause for a in attempts] == [*[Cause.PREEMPTED] * (trial.number == lost), Cause.COMPLETED]
        assert {a.claimed().job for a in attempts} == {claims[trial.number].job}, "the scheduler ran the same job again"
        assert attempts[-1].metrics()[0][0] > 1 or trial.number != lost, "it went on from what was saved"
        assert list(trial.metrics()) == list(range(1, STEPS + 1))
        assert trial.state().value is not None
        assert json.loads((attempts[0].path / "job.json").read_text())["nodes"] == 2
        assert len(node_names(attempts[0].path)) == 2
        assert cluster.wait_state(claims[trial.number].job, "COMPLETED") == "COMPLETED"
    booked = [(entry.trial, str(entry.cause)) for entry in study.ledger()]
    assert sorted(booked) == sorted([(lost, "preempted"), *((t.number, "completed") for t in trials)])


def test_the_stock_launcher_runs_one_trial_on_its_nodes_not_one_on_each(cluster: Cluster) -> None:
    stock = ("hydra/sweeper=basic", "hydra/launcher=submitit_slurm", "hydra.launcher.nodes=2")
    asked = ("hydra.launcher.cpus_per_task=8", "hydra.launcher.partition=main")
    words = (*stock, *asked, *TINY, "trainer.save_every=-1", "study.name=stock", "trainer.total_steps=1")
    argv = [*HYSWEEP, "run", "-m", *words, "algorithm=grpo"]
    cluster.exec(argv, cwd=cluster.shared, env=environment(cluster), timeout=600)
    record = read_study(StudyDirectory(cluster.shared / "outputs" / "stock"))
    (trial,) = record.trials
    assert trial.state.cause is Cause.COMPLETED and len(trial.directory.attempts()) == 1
    assert len(node_names(trial.directory.attempt(1).path)) == 2


@pytest.mark.skipif(not os.environ.get("HYSWEEP_NIGHTLY"), reason="of `make nightly`: it takes a quarter of an hour")
def test_the_quickstart(cluster: Cluster) -> None:
    """The whole of it as it is shipped, each trial on two nodes."""
    argv = [*HYSWEEP, "run", "-m", "sweep=quickstart", "cluster=testcluster", "study.name=quickstart"]
    cluster.exec(argv, cwd=cluster.shared, env=environment(cluster), timeout=2700)
    study = StudyDirectory(cluster.shared / "outputs" / "quickstart")
    trials = study.trials()
    causes = [t.state().cause for t in trials]
    assert len(trials) == 6 and set(causes) <= {Cause.COMPLETED, Cause.PRUNED}, said(study)
    assert causes[:4] == [Cause.COMPLETED] * 4, "the learning rates that are vetted are good"
    best = read_study(study).best
    assert best is not None and best.state.value is not None and best.state.value > 0.7
    assert (study.path / "report.html").stat().st_size > 10_000


def node_names(attempt: Path) -> list[str]:
    """The hosts whose Ray said that it is up, by the addresses in their logs."""
    logs = sorted(attempt.glob("ray-*.log"))
    found = [line.split()[-1] for log in logs for line in log.read_text().splitlines() if "Local node IP" in line]
    return list(dict.fromkeys(found))
