"""A study on the real cluster while, by a seed, one thing after another goes wrong.

Whatever it is: no trial is lost, none runs on after it has a result, each attempt is booked once and by the right
cause, and the study ends.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from hysweep.compose import Composer
from hysweep.launch.processes import MARK
from hysweep.track import AttemptDirectory, Cause, Status, StudyDirectory
from tests.slurm.conftest import Cluster
from tests.slurm.test_controller import BARE, ROOT, begin, environment, wait

pytestmark = pytest.mark.slurm

NIGHT_S = 3600 if os.environ.get("HYSWEEP_NIGHTLY") else 0
TRIALS, FAULTS = 6, 3
SECONDS = 6  # that an undisturbed trial takes; it has a checkpoint from the first on
PAUSE_S = (1.0, 3.0)


@dataclass
class Campaign:
    """`has_ray`: the real one, on two nodes a trial. `blamed`: what an attempt that was struck may have ended by."""

    cluster: Cluster
    directory: StudyDirectory
    draw: random.Random
    partition: str
    has_ray: bool
    controller: subprocess.Popen[bytes] | None = None
    blamed: dict[tuple[int, int], set[Cause]] = field(default_factory=dict)
    down: list[str] = field(default_factory=list)
    has_forgotten: bool = False
    hits: Counter[str] = field(default_factory=Counter)

    def drive(self) -> None:
        """Somebody drives the study, from here on."""
        if self.controller is None or self.controller.poll() is not None:
            with open(self.directory.path / "said.log", "ab") as log:
                argv = [*BARE, "resume", str(self.directory.path)]
                joins, with_ray = ("ray=2,0", {"BARE_RAY": "1"}) if self.has_ray else ("", {})
                env = environment(self.cluster, f"{joins} metrics=1 1:save=1 sleep={SECONDS}") | with_ray
                self.controller = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=log, stderr=log)

    def strike(self) -> None:
        faults: dict[str, Callable[[], bool]] = {
            "controller killed": self.controller_killed,
            "node process killed": self.node_process_killed,
            "raylet killed": lambda: self.ray_killed("raylet"),
            "head killed": lambda: self.ray_killed("gcs_server"),
            "job requeued": self.job_requeued,
            "node down": self.node_down,
            "preempted": self.preempted,
            "told to leave": self.told_to_leave,
            "partition closed": self.partition_closed,
            "slurmdbd away": self.accounting_away,
            "slurmctld killed": self.scheduler_killed,
            "slurmctld away": self.scheduler_away,
        }
        until = time.monotonic() + 10
        while not self.live() and time.monotonic() < until:
            time.sleep(0.2)
        for name in self.draw.sample(list(faults), len(faults)):  # the first that finds something to strike
            if faults[name]():
                self.hits[name] += 1
                return

    def submitted(self) -> list[tuple[AttemptDirectory, str]]:
        """Attempts that have not ended, as far as the controller knows them, with their jobs."""
        found = []
        for trial in self.directory.trials():
            state = trial.state()
            if state.status is Status.SUBMITTED and state.job_id and not trial.attempt(state.attempt).end():
                found.append((trial.attempt(state.attempt), state.job_id))
        return found

    def live(self) -> list[tuple[AttemptDirectory, str]]:
        """Those of them that have begun."""
        return [(attempt, job) for attempt, job in self.submitted() if attempt.claimed()]

    def blame(self, attempt: AttemptDirectory, *causes: Cause) -> None:
        """It may have come to its end just before; then the scheduler may run the next one already."""
        for number in (attempt.number, attempt.number + 1):
            self.blamed.setdefault((attempt.trial.number, number), {Cause.COMPLETED, Cause.PREEMPTED}).update(causes)

    def struck(self, *causes: Cause) -> tuple[AttemptDirectory, str] | None:
        """One of them. Each trial is killed by hand at most once: a second time it would be given up."""
        once = {trial for (trial, _), ends in self.blamed.items() if Cause.KILLED in ends}
        among = [r for r in self.live() if r[0].trial.number not in once]
        if not among:
            return None
        attempt, job = self.draw.choice(among)
        self.blame(attempt, *causes)
        return attempt, job

    def controller_killed(self) -> bool:
        assert self.controller
        self.controller.send_signal(signal.SIGKILL)
        return self.controller.wait() == -signal.SIGKILL

    def node_process_killed(self) -> bool:
        found = self.struck(Cause.KILLED, Cause.UNKNOWN)
        return found is not None and self.kill(found[0], lambda argv: "hysweep.launch.node" in argv)

    def ray_killed(self, name: str) -> bool:
        """A part of it, on one of the nodes that have it."""
        if not self.has_ray:
            return False
        found = self.struck(Cause.KILLED, Cause.RAY_BOOT, Cause.UNKNOWN)
        return found is not None and self.kill(found[0], lambda argv: Path(argv[0]).name == name, only_one=True)

    def kill(self, attempt: AttemptDirectory, which: Callable[[list[str]], bool], only_one: bool = False) -> bool:
        mine = [p for p in psutil.process_iter() if _mark(p) == os.path.realpath(attempt.path)]
        wanted = [p for p in mine if (argv := _cmdline(p)) and which(argv)]
        for p in self.draw.sample(wanted, min(1, len(wanted))) if only_one else wanted:
            with suppress(psutil.Error):
                p.kill()
        return bool(wanted)

    def job_requeued(self) -> bool:
        found = self.struck(Cause.KILLED, Cause.PREEMPTED, Cause.UNKNOWN)
        if found is None:
            return False
        return self.cluster.exec(["scontrol", "requeue", found[1]], check=False).returncode == 0

    def node_down(self) -> bool:
        """One on which something runs, and at most two at once."""
        at: dict[str, list[AttemptDirectory]] = {}
        for attempt, job in self.submitted():
            for node in self.cluster.nodes_of(job):
                at.setdefault(node, []).append(attempt)
        if not at or len(self.down) == 2:
            return False
        node = self.draw.choice(sorted(at))
        for attempt in at[node]:
            self.blame(attempt, Cause.NODE_FAIL, Cause.PREEMPTED)  # the scheduler runs it again in either case
        self.cluster.down_node(node)
        self.down.append(node)
        return True

    def preempted(self) -> bool:
        """A job of higher priority takes all nodes for a moment."""
        self.cluster.sbatch(f"-N{4 - len(self.down)}", "-p", "main", "--exclusive", "--wrap", "sleep 1")
        return bool(self.submitted())

    def told_to_leave(self) -> bool:
        """By the signal that comes before a time limit or a preemption."""
        found = self.struck(Cause.PREEMPTED)
        return (
            found is not None and self.cluster.exec(["scancel", "--signal=USR2", found[1]], check=False).returncode == 0
        )

    def partition_closed(self) -> bool:
        """sbatch is refused."""
        for state in ("inactive", "up"):
            self.cluster.exec(["scontrol", "update", f"partitionname={self.partition}", f"state={state}"])
            time.sleep(3 * (state == "inactive"))
        return True

    def accounting_away(self) -> bool:
        self.cluster.stop_accounting()
        time.sleep(3)
        self.cluster.start_accounting()
        return True

    def scheduler_killed(self) -> bool:
        """It forgets the jobs that it took in its last seconds, and gives their numbers to the next."""
        self.has_forgotten = True
        self.cluster.restart_controller()
        return True

    def scheduler_away(self) -> bool:
        self.cluster.stop_controller()
        time.sleep(2)
        self.cluster.start_controller()
        return True

    def judge(self, said: str) -> None:
        trials = self.directory.trials()
        log = (self.directory.path / "said.log").read_text()[-3000:]
        assert [t.number for t in trials] == list(range(TRIALS)), (said, log)
        assert [t.state().cause for t in trials] == [Cause.COMPLETED] * TRIALS, (said, self.blamed, log)
        assert [t.state().value for t in trials] == [0.5] * TRIALS, (said, log)
        booked = [(e.trial, e.attempt, e.cause) for e in self.directory.ledger()]
        assert len({b[:2] for b in booked}) == len(booked), (said, booked)
        attempts = {(t.number, a.number) for t in trials for a in t.attempts() if a.claimed()}
        assert attempts <= {b[:2] for b in booked}, (said, booked)
        for trial, attempt, cause in booked:
            is_last = attempt == max(a for t, a, _ in booked if t == trial)
            assert (cause is Cause.COMPLETED) == is_last, (said, booked, "nothing runs after a result")
            allowed = self.blamed.get((trial, attempt), {Cause.COMPLETED, Cause.PREEMPTED})  # by chance, or by all
            end = trials[trial].attempt(attempt).end()
            has_begun = trials[trial].attempt(attempt).claimed() is not None
            if not has_begun or (self.has_forgotten and (end is None or end.cause is Cause.NODE_FAIL)):
                allowed = allowed | {Cause.NODE_FAIL}  # no fault of ours struck it, or it was killed as nobody's
            assert cause in allowed, (said, (trial, attempt, cause), allowed, log)
        mine = f"{self.directory.path}/"
        wait(lambda: not [p for p in psutil.process_iter() if _mark(p).startswith(mine)], 30)


def _mark(p: psutil.Process) -> str:
    with suppress(psutil.Error):
        return p.environ().get(MARK, "")
    return ""


def _cmdline(p: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return p.cmdline()
    return []


@pytest.mark.timeout(NIGHT_S + 900)
def test_a_campaign(cluster: Cluster, composer: Composer) -> None:
    """One study, or in `make nightly` an hour of them: in both partitions that are preempted, without and with Ray."""
    until, seed = time.monotonic() + NIGHT_S, int(os.environ.get("HYSWEEP_SEED", "1"))
    hits = Counter[str]()
    while True:
        lr = "trainer.learning_rate=tag(log,interval(1e-4,1e-2))"
        partition, has_ray = ("cancel", "low")[seed % 2], seed % 4 in (2, 3)
        limits = (f"study.n_trials={TRIALS}", "study.max_parallel=3")
        site = (f"cluster.partition={partition}", f"cluster.nodes={1 + has_ray}")
        directory = begin(cluster, composer, f"campaign-{seed}", lr, *limits, *site)
        campaign = Campaign(cluster, directory, random.Random(seed), partition, has_ray, hits=hits)
        said, begun = f"HYSWEEP_SEED={seed}", time.monotonic()
        goal = hits.total() + FAULTS
        while time.monotonic() - begun < 300:
            if campaign.controller and campaign.controller.poll() in (0, 1):
                break
            campaign.drive()
            time.sleep(campaign.draw.uniform(*PAUSE_S))
            if hits.total() < goal:
                campaign.strike()
            elif campaign.down:
                cluster.start_node(node := campaign.down.pop())
                cluster.exec(["scontrol", "update", f"nodename={node}", "state=resume"], check=False)
        campaign.judge(said)
        cluster.settle()
        seed += 1
        if time.monotonic() >= until:
            break
    print(dict(hits))
