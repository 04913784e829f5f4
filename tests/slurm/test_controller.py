"""The controller on a real scheduler: killed and gone on with, paused, as a job of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hysweep.compose import Composer
from hysweep.study import define
from hysweep.track import Cause, Status, StudyDirectory
from tests.slurm.conftest import Cluster

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
KILLS = 10
BARE = [sys.executable, "-m", "tests.slurm.bare_study"]


def begin(cluster: Cluster, composer: Composer, name: str, *words: str) -> StudyDirectory:
    site = ("cluster=testcluster", "cluster.nodes=1", f"study.root={cluster.shared}/studies", f"study.name={name}")
    definition = define(composer.compose([*site, "study.poll_s=0.2", "study.sampler=random", *words]))
    definition.directory.create(definition.to_yaml(), composer.snapshot())
    return definition.directory


def environment(cluster: Cluster, words: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return cluster.submit_env | {"BARE_WORDS": words, "PYTHONPATH": path}


def wait(until: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_ten_kills_lose_nothing_and_run_nothing_twice(cluster: Cluster, composer: Composer) -> None:
    lr = "trainer.learning_rate=tag(log,interval(1e-4,1e-2))"
    directory = begin(cluster, composer, "storm", lr, "study.n_trials=8", "study.max_parallel=4")
    env, rng = environment(cluster, "metrics=1 sleep=4"), random.Random(7)
    log = open(directory.path / "said.log", "ab")  # noqa: SIM115
    hit = 0
    for _ in range(KILLS):
        child = subprocess.Popen([*BARE, "resume", str(directory.path)], env=env, cwd=ROOT, stdout=log, stderr=log)
        time.sleep(rng.uniform(0.5, 3.0))
        child.send_signal(signal.SIGKILL)
        hit += child.wait() == -signal.SIGKILL
    done = subprocess.run(
        [*BARE, "resume", str(directory.path)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trials = directory.trials()
    assert hit >= KILLS // 2, "most came before the end"
    assert [t.number for t in trials] == list(range(8))
    assert [t.state().cause for t in trials] == [Cause.COMPLETED] * 8
    assert [t.state().value for t in trials] == [0.5] * 8
    assert [len(t.attempts()) for t in trials] == [1] * 8
    # by the scheduler's own book: as many jobs as attempts
    said = cluster.exec(["sacct", "-n", "-X", "-P", "-a", "-o", "JobName"]).stdout.splitlines()
    assert sorted(n.split("-")[1] for n in said if n.startswith("storm-")) == [f"{n:04d}" for n in range(8)]
    ledger = directory.ledger()
    assert len(ledger) == 8 and all(e.gpu_hours > 3.5 / 3600 for e in ledger)


def test_jobs_that_slurmctld_forgets_are_submitted_again(cluster: Cluster, composer: Composer) -> None:
    """It is killed right after it took them, and gives their numbers to somebody else's."""
    directory = begin(cluster, composer, "forgotten", "rollout.n=2,4", "study.max_parallel=2")
    env = environment(cluster, "metrics=1")
    cluster.exec(["scontrol", "update", "partitionname=main", "state=down"])  # none begins
    subprocess.run([*BARE, "tick", str(directory.path)], env=env, cwd=ROOT, check=True, capture_output=True)
    jobs = {t.state().job_id: t.number for t in directory.trials()}
    cluster.restart_controller(saved=False)
    forgotten = set(jobs) - set(cluster.queue())  # it saves every five seconds: this may have been one of them
    cluster.exec(["scontrol", "update", "partitionname=main", "state=up"])
    others = [cluster.sbatch("--wrap", "sleep 60") for _ in jobs] if forgotten else []
    done = subprocess.run(
        [*BARE, "resume", str(directory.path)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trials = directory.trials()
    assert [t.state().cause for t in trials] == [Cause.COMPLETED] * 2
    booked = sorted((e.trial, str(e.cause)) for e in directory.ledger())
    lost = [(jobs[job], "node_fail") for job in forgotten]
    assert booked == sorted([(0, "completed"), (1, "completed"), *lost]), (forgotten, others)
    assert set(others) <= set(cluster.queue()), "nothing was done to those of others"


def test_what_a_node_cannot_launch_is_held_by_slurm_and_runs_elsewhere(cluster: Cluster, composer: Composer) -> None:
    """Its prolog fails twice: SLURM drains the node, keeps the job back until somebody lets it go, and counts a run."""
    directory = begin(cluster, composer, "stuck", "rollout.n=2", "study.max_parallel=1")
    conf, failed, prolog = cluster.run / "etc/slurm.conf", cluster.shared / "failed", cluster.run / "etc/prolog"
    before = conf.read_text()
    prolog.write_text(f"#!/bin/bash\n[ $(grep -c . {failed}) = 2 ] || {{ echo x >>{failed}; exit 1; }}\n")
    prolog.chmod(0o755)
    try:
        conf.write_text(before + f"Prolog={prolog}\n")
        cluster.exec(["scontrol", "reconfigure"])
        env = environment(cluster, "metrics=1")
        done = subprocess.run(
            [*BARE, "resume", str(directory.path)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=120
        )
    finally:
        conf.write_text(before)
        cluster.exec(["scontrol", "reconfigure"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert (cluster.run / "log/slurmctld.log").read_text().count("release hold on JobId") == 2
    assert [(e.attempt, e.cause, e.gpu_hours > 0) for e in directory.ledger()] == [
        (1, Cause.NODE_FAIL, False),
        (3, Cause.COMPLETED, True),
    ]


def test_a_pause_holds_what_is_queued_and_a_resume_lets_it_go(cluster: Cluster, composer: Composer) -> None:
    alone = ("cluster.exclude='node[2-4]'", "cluster.use_exclusive=true")
    directory = begin(cluster, composer, "paused", "rollout.n=2,4", "study.max_parallel=2", *alone)
    env = environment(cluster, "metrics=1 sleep=12")

    def bare(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*BARE, *words, str(directory.path)], env=env, cwd=ROOT, capture_output=True, text=True)

    ticked = bare("tick", "--json")
    assert json.loads(ticked.stdout)["submitted"] == 2, ticked.stderr
    first, second = directory.trials()
    wait(lambda: first.attempt(1).claimed())
    paused = bare("pause")
    assert paused.returncode == 0 and "1 running go on, 1 are held" in paused.stdout, paused.stdout + paused.stderr
    job = second.state().job_id
    assert cluster.exec(["squeue", "-h", "-j", job, "-o", "%r"]).stdout.startswith("JobHeld")
    wait(lambda: first.attempt(1).end(), 60)
    assert second.attempt(1).claimed() is None
    done = bare("resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [t.state().cause for t in directory.trials()] == [Cause.COMPLETED] * 2
    booked = {e.trial: e for e in directory.ledger()}
    assert booked[1].queued_h * 3600 > 6, "by the scheduler's record"


def test_a_controller_of_its_own_job_goes_on_over_its_time_limit(cluster: Cluster, composer: Composer) -> None:
    """It is told that its time is near (here at once), leaves, queues itself again, and goes on to the end."""
    directory = begin(cluster, composer, "detached", "rollout.n=2,4", "study.max_parallel=1")
    env = environment(cluster, "metrics=1 sleep=4")
    # it would run hysweep itself, and its trials real ones: so it waits
    cluster.exec(["scontrol", "update", "partitionname=main", "state=down"])
    done = subprocess.run(
        [*BARE, "resume", "--detach", str(directory.path)], env=env, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "SLURM job" in done.stdout, done.stdout + done.stderr
    again = subprocess.run(
        [*BARE, "resume", "--detach", str(directory.path)], env=env, cwd=ROOT, capture_output=True, text=True
    )
    assert again.returncode == 2 and "is to drive this study already" in again.stderr
    job = json.loads((directory.path / "controller.json").read_text())["job"]
    script = (directory.path / "controller.sbatch").read_text()
    assert "--signal=B:USR1@120" in script and "#SBATCH --requeue" in script
    cluster.exec(["scancel", job])
    wait(lambda: job not in cluster.queue())
    cluster.exec(["scontrol", "update", "partitionname=main", "state=up"])
    bare = script.replace("-m hysweep resume", "-m tests.slurm.bare_study resume")
    (directory.path / "controller.sbatch").write_text(bare.replace("\ncd ", f"\ncd {ROOT}; : "))
    job = cluster.exec(["sbatch", "--parsable", str(directory.path / "controller.sbatch")], env=env).stdout.strip()
    log = directory.path / "controller.log"
    wait(lambda: directory.driver_file.exists() and directory.trials())
    wait(lambda: directory.trials()[0].state().status is Status.SUBMITTED)
    cluster.exec(["scancel", "--batch", "--signal=USR1", job])
    wait(lambda: "queued again" in log.read_text())
    wait(lambda: len(directory.trials()) == 2 and directory.trials()[1].state().is_final, 240)
    assert [t.state().cause for t in directory.trials()] == [Cause.COMPLETED] * 2, log.read_text()
    assert all(len(t.attempts()) == 1 for t in directory.trials())
    cluster.wait_state(job, "COMPLETED", timeout=90)
