"""A real training on two nodes that loses them in the middle, comes back by itself and is told one value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hysweep.track import Cause, StudyDirectory, checkpoint_step
from tests.slurm.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.verl, pytest.mark.timeout(1500)]

STEPS = 3


def test_a_trial_that_is_preempted_goes_on_from_its_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    study = StudyDirectory(tmp_path / "outputs" / "rerun")
    words = [
        "cluster=testcluster",
        "cluster.partition=low",
        'cluster.nodelist="node[1-2]"',
        f"trainer.total_steps={STEPS}",
        "trainer.save_every=1",
        "study.name=rerun",
    ]
    argv = [sys.executable, "-m", "hysweep", "run", *words]
    log = open(tmp_path / "run.log", "w")  # noqa: SIM115 # the child has it
    run = subprocess.Popen(argv, env=cluster.submit_env, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 600
        while not (study.exists and (trials := study.trials()) and checkpoint_step(trials[0].checkpoints) >= 1):
            assert time.monotonic() < until and run.poll() is None, said(tmp_path)
            time.sleep(0.2)
        higher = cluster.sbatch("-N2", "-w", "node[1-2]", "--exclusive", "--wrap", "sleep 1")
        assert cluster.wait_state(higher, "COMPLETED", timeout=90)
        assert run.wait(600) == 0, said(tmp_path)
    finally:
        run.kill()
        log.close()
    (trial,) = study.trials()
    first, second = trial.attempts()
    ends = [a.end() for a in (first, second)]
    assert [end.cause for end in ends if end] == [Cause.PREEMPTED, Cause.COMPLETED], said(tmp_path)
    claims = [a.claimed() for a in (first, second)]
    assert len({c.job for c in claims if c}) == 1, "the scheduler ran the same job again"
    saved = [step for step, _ in first.metrics()]
    assert saved and second.metrics()[0][0] > 1, "it went on from what was saved"
    assert list(trial.metrics()) == list(range(1, STEPS + 1))
    state = trial.state()
    assert state.cause is Cause.COMPLETED and state.value is not None and state.attempt == 2
    booked = [json.loads(line)["cause"] for line in (study.path / "ledger.jsonl").read_text().splitlines()]
    assert booked == ["preempted", "completed"]


def said(path: Path) -> str:
    logs = [path / "run.log", *sorted(path.rglob("node*.log")), *sorted(path.rglob("driver.log"))]
    return "\n".join(f"=== {p}\n{p.read_text(errors='replace')[-3000:]}" for p in logs if os.path.exists(p))
