"""Every way in which a job of several nodes ends: in time, with its cause, and with nothing left.

The times are printed at the end (-s is not needed): seconds from the fault until no process of the attempt runs, and
the job is out of the queue or waits in it again. A row alone has a wide deadline, since the machine or SLURM may be
slow for once; the median of all may not be.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from hysweep.launch import JobStatus, command
from hysweep.launch.boot import temporaries
from hysweep.launch.processes import MARK
from hysweep.launch.roll import meeting_point
from hysweep.launch.slurm import SlurmLauncher
from hysweep.launch.unsaid import unsaid
from hysweep.schema.groups import Cluster as Site
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause, End
from tests.slurm import conftest
from tests.slurm.conftest import Cluster

pytestmark = pytest.mark.slurm

TRAINERS = Path(__file__).parent / "trainers"
STAND_IN = TRAINERS / "stand_in"  # of Ray
DEADLINE = 40.0
GONE_WITHIN = 10.0  # the median
TIMES: list[tuple[str, float]] = []


@dataclass
class Trial:
    """A job on a cluster. What runs of it on all nodes is seen from outside: their processes are this machine's."""

    cluster: Cluster
    attempt: AttemptDirectory
    job: str
    nodes: int

    def processes(self) -> list[psutil.Process]:
        directory = command.identity(self.attempt.trial.attempt(1)).removesuffix("1")
        found = []
        for p in psutil.process_iter():
            try:
                mark = p.environ().get(MARK, "")
                if mark.startswith(directory) or any(directory in a for a in p.cmdline()):
                    found.append(p)
            except psutil.Error:
                continue
        return [p for p in found if runs(p)]

    def of_ray(self, rank: int, name: str) -> psutil.Process:
        """A part of the Ray of one node; of what stands in for it there is only a raylet."""
        (temporary,) = temporaries(command.identity(self.attempt), rank)
        return next(p for p in self.processes() if is_of_ray(cmdline(p), name, f"{temporary}"))

    def supervisors(self, rank: int) -> tuple[psutil.Process, psutil.Process]:
        """The guard and the node on one node of the job."""
        both = [
            p
            for p in self.processes()
            if "hysweep.launch.node" in cmdline(p) and environment(p).get("SLURM_PROCID") == str(rank)
        ]
        both = [p for p in both if name(p).startswith("python")]
        (node,) = [p for p in both if p.ppid() in {q.pid for q in both}]
        (guard,) = [p for p in both if p.pid == node.ppid()]
        return guard, node

    def drivers(self) -> list[psutil.Process]:
        return [p for p in self.processes() if cmdline(p)[1:3] == ["-m", "driver"]]

    def sruns(self) -> list[psutil.Process]:
        return [p for p in self.processes() if name(p) == "srun"]

    def wait(self, done: Callable[[], Any], timeout: float = 60) -> Any:
        until = time.monotonic() + timeout
        while not (answer := done()):
            assert time.monotonic() < until, self.said()
            time.sleep(0.05)
        return answer

    def wait_ready(self, number: int = 1) -> None:
        attempt = self.attempt.trial.attempt(number)
        ready = attempt.path / "ready"
        self.wait(lambda: ready.exists() or attempt.end() or not self.state(), 120)
        assert ready.exists() and attempt.end() is None, self.said()

    def state(self) -> str:
        """In the queue; "" where it is not, "?" where there is nobody to ask."""
        said = self.cluster.exec(["squeue", "-h", "-a", "-o", "%i %T"], check=False)
        if said.returncode:
            return "?"
        return dict(line.split() for line in said.stdout.splitlines()).get(self.job, "")

    def end(self, number: int = 1) -> End:
        end = self.wait(self.attempt.trial.attempt(number).end, 30)
        assert isinstance(end, End)
        return end

    @contextmanager
    def fault(self, row: str, states: tuple[str, ...] = ("",), is_node_dead: bool = False) -> Iterator[None]:
        """What happens in here is the fault: all is gone in time, the job in one of `states` of the queue.

        `is_node_dead`: nobody is left there to clean up; the next attempt on it will.
        """
        began = time.monotonic()
        yield
        self.wait(lambda: not self.processes(), DEADLINE)
        self.wait(lambda: self.state() in states, DEADLINE)
        TIMES.append((row, time.monotonic() - began))
        if not is_node_dead:
            self.check_nothing_left()

    def check_nothing_left(self) -> None:
        for attempt in self.attempt.trial.attempts():
            assert not meeting_point(attempt).exists()
            for rank in range(self.nodes):
                assert not temporaries(command.identity(attempt), rank)

    def said(self) -> str:
        """All logs of the trial, for a test that failed."""
        logs = sorted(p for p in self.attempt.path.parent.rglob("*.log"))
        return "\n".join(f"=== {p.parent.name}/{p.name}\n{p.read_text(errors='replace')[-4000:]}" for p in logs)


def is_of_ray(argv: list[str], name: str, temporary: str) -> bool:
    is_stand_in = len(argv) > 2 and argv[1] == "-c" and name == "raylet"
    return any(temporary in a for a in argv) and (is_stand_in or Path(argv[0]).name == name)


Submit = Callable[..., Trial]


def submitter(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, path: Path) -> Submit:
    """`submit(*words)`: a job of two nodes whose driver does that; `has_ray`: with the real one."""
    for name, value in cluster.submit_env.items():
        monkeypatch.setenv(name, value)
    made = 0

    def submit(*words: str, has_ray: bool = False, site: dict[str, Any] | None = None, **changes: Any) -> Trial:
        nonlocal made
        made += 1
        roots = [TRAINERS] if has_ray else [STAND_IN, TRAINERS]
        job = Job(
            module="driver",
            overrides=words,
            env={"PYTHONPATH": os.pathsep.join(map(str, roots))} | changes.pop("env", {}),
            launcher="slurm",
            nodes=2,
            ray_cpus=4,
            ray_gpus=0,
            object_store_gib=0.1,
            timeout_min=30,
            site=Site(name="test", launcher="slurm", nodes=2, **(site or {})),
        )
        job = replace(job, **changes)
        attempt = AttemptDirectory(path / "study" / "trials" / f"{made:04d}-abc" / "attempts" / "1")
        attempt.prepare(job.as_dict())
        return Trial(cluster, attempt, SlurmLauncher().submit(attempt), job.nodes)

    return submit


@pytest.fixture
def submit(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Submit:
    return submitter(cluster, monkeypatch, tmp_path)


@pytest.fixture(scope="module", autouse=True)
def table(pytestconfig: pytest.Config) -> Iterator[None]:
    yield
    pytestconfig.stash[conftest.TIMES] = TIMES


# --- with Ray


def test_ok_with_gpus_on_nodes_that_two_jobs_share(cluster: Cluster, submit: Submit) -> None:
    """Each sees its own nodes' GPUs and no others; nothing secret lies about."""
    site = {"gpu": "H100", "nodelist": "node[1-2]"}
    more: dict[str, Any] = {"has_ray": True, "gpus_per_node": 4, "ray_gpus": 4, "site": site}
    trials = [submit("ray=2,4", "ready", "sleep=3", **more) for _ in range(2)]
    for trial in trials:
        trial.wait_ready()
    for trial in trials:
        secrets = {t for p in trial.processes() if (t := environment(p).get("RAY_AUTH_TOKEN"))}
        assert len(secrets) == 1
        (secret,) = secrets
        assert not any(secret in word for p in trial.processes() for word in cmdline(p))
        files = [p for p in trial.attempt.trial.path.rglob("*") if p.is_file()]
        files += [
            p for rank in (0, 1) for t in temporaries(command.identity(trial.attempt), rank) for p in t.rglob("*")
        ]
        assert not any(secret.encode() in p.read_bytes() for p in files if p.is_file() and not p.is_symlink())
    for trial in trials:
        assert trial.end().cause is Cause.COMPLETED, trial.said()
        cluster.wait_state(trial.job, "COMPLETED")
        trial.wait(lambda t=trial: not t.processes())
        trial.check_nothing_left()
    ran = [t.attempt.driver_log.read_text().split("tasks ran on ")[1].split("\n")[0].split() for t in trials]
    assert sorted(w.split(":")[0] for words in ran for w in words) == ["node1", "node1", "node2", "node2"]
    assert len({w for words in ran for w in words}) == 4, f"no GPU is given twice: {ran}"


def test_a_driver_that_raises(cluster: Cluster, submit: Submit) -> None:
    trial = submit("ray=2,0", "ready", "sleep=1", "raise=the driver raised", has_ray=True)
    trial.wait_ready()
    with trial.fault("driver raises (1 s after ready)"):
        pass
    end = trial.end()
    assert end.cause is Cause.UNKNOWN and end.reason == "ValueError: the driver raised" and end.exit_code == 1
    assert cluster.wait_state(trial.job, "FAILED", "COMPLETED") == "FAILED"


@pytest.mark.parametrize(
    ("rank", "name", "cause", "said"),
    [(1, "raylet", Cause.RAY_BOOT, "node2: ray start ended"), (0, "gcs_server", Cause.KILLED, "ray start ended")],
)
def test_a_part_of_ray_is_killed(
    cluster: Cluster, submit: Submit, rank: int, name: str, cause: Cause, said: str
) -> None:
    trial = submit("ray=2,0", "ready", "sleep=300", has_ray=True, site={"nodelist": "node[1-2]"})
    trial.wait_ready()
    with trial.fault(f"{name} of rank {rank} killed"):
        trial.of_ray(rank, name).kill()
    end = trial.end()
    assert end.cause is cause and said in end.reason, trial.said()
    assert cluster.wait_state(trial.job, "FAILED", "COMPLETED") == "FAILED"


# Any process may be gone by the time that it is asked.


def environment(p: psutil.Process) -> dict[str, str]:
    try:
        return p.environ()
    except psutil.Error:
        return {}


def cmdline(p: psutil.Process) -> list[str]:
    try:
        return p.cmdline()
    except psutil.Error:
        return []


def name(p: psutil.Process) -> str:
    try:
        return p.name()
    except psutil.Error:
        return ""


def runs(p: psutil.Process) -> bool:
    try:
        return p.is_running() and p.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# --- the node side, with what stands in for Ray


def test_who_is_killed_and_what_the_others_say_of_it(cluster: Cluster, submit: Submit) -> None:
    """Each supervising process, and srun: whoever is left ends the rest, and names the node. None comes back."""
    first, other = (lambda t: t.supervisors(0)), (lambda t: t.supervisors(1))
    killed: list[Trial] = []
    rows: list[tuple[str, Callable[[Trial], list[psutil.Process]], Cause, str]] = [
        ("rank 1: task (guard) killed", lambda t: [other(t)[0]], Cause.KILLED, "node2: "),
        ("rank 1: node process killed", lambda t: [other(t)[1]], Cause.KILLED, "node2: "),
        ("rank 1: both killed", lambda t: list(other(t)), Cause.KILLED, "node2: "),
        ("rank 0: task (guard) killed", lambda t: [first(t)[0]], Cause.KILLED, ""),
        ("rank 0: node process killed", lambda t: [first(t)[1]], Cause.KILLED, "node1: the node process: "),
        ("rank 0: both killed", lambda t: list(first(t)), Cause.KILLED, "node1: the node process: Killed"),
        ("rank 0: driver killed", lambda t: t.drivers(), Cause.KILLED, "ended from outside"),
        ("srun killed", lambda t: t.sruns(), Cause.KILLED, ""),
    ]
    for row, who, cause, said in rows:
        trial = submit("ready", "sleep=300", site={"nodelist": "node[1-2]"})
        trial.wait_ready()
        with trial.fault(row, is_node_dead="guard" in row or "both" in row or "srun" in row):
            for p in who(trial):
                with suppress(psutil.NoSuchProcess):  # of two that belong together the other one may be faster
                    p.kill()
        end = trial.attempt.end() or unsaid(trial.attempt)
        assert end and end.cause is cause and said in end.reason, (row, end, trial.said())
        assert cluster.wait_state(trial.job, "FAILED", "COMPLETED") == "FAILED"
        assert "Restarts=0" in cluster.exec(["scontrol", "show", "job", trial.job]).stdout
        killed.append(trial)
    cluster.wait_state(submit("ready", site={"nodelist": "node[1-2]"}).job, "COMPLETED")
    for trial in killed:
        trial.check_nothing_left()


def test_a_job_that_runs_again_after_its_end_runs_nothing(cluster: Cluster, submit: Submit) -> None:
    """A node is lost before it can tell the scheduler that all is done, or somebody says it by hand."""
    trial = submit("ready")
    cluster.wait_state(trial.job, "COMPLETED")
    cluster.exec(["scontrol", "requeue", trial.job])
    trial.wait(lambda: not trial.state())
    assert "Restarts=1" in cluster.exec(["scontrol", "show", "job", trial.job]).stdout
    assert cluster.wait_state(trial.job, "COMPLETED", "FAILED") == "COMPLETED"
    assert trial.end().cause is Cause.COMPLETED
    assert [a.number for a in trial.attempt.trial.attempts()] == [1], trial.said()


def test_a_raylet_is_killed_and_the_driver_is_deaf(cluster: Cluster, submit: Submit) -> None:
    """The least willing driver: it does not notice, and does not listen."""
    trial = submit("deaf", "ready", "sleep=300")
    trial.wait_ready()
    with trial.fault("raylet of rank 1 killed, driver deaf to SIGTERM"):
        trial.of_ray(1, "raylet").kill()
    assert trial.end().nodes == ("node2",) and "the raylet is gone" in trial.end().reason


def test_a_node_that_does_not_join_is_named(cluster: Cluster, submit: Submit) -> None:
    """Its Ray fails; its Python does not even start; it has too few GPUs. Seconds, not the deadline of joining."""
    broken = cluster.shared / "python"
    broken.write_text(f'#!/bin/sh\n[ "$(hostname)" != node2 ] || exit 3\nexec {sys.executable} "$@"\n')
    broken.chmod(0o755)
    rows = [
        ("a node's Ray does not start", {"env": {"STAND_IN": "refuse=node2"}}, "the raylet does not start here"),
        (
            "a node's Python does not start",
            {"site": {"python": str(broken)}},
            "ended before it joined|Exited with exit code 3",
        ),
        ("a node with too few GPUs", {"env": {"STAND_IN": "gpus=node2:1"}, "ray_gpus": 2}, "node2 offers 1"),
    ]
    for row, how, said in rows:
        changes: dict[str, Any] = dict(how)
        changes["site"] = {"nodelist": "node[1-2]"} | changes.get("site", {})
        trial = submit("ready", **changes)
        trial.wait(lambda t=trial: t.attempt.node_log.exists() or not t.state())
        with trial.fault(row):
            pass
        end = trial.attempt.end() or unsaid(trial.attempt)
        assert end and end.cause is Cause.RAY_BOOT and end.nodes == ("node2",), trial.said()
        assert re.search(said, end.reason) and not (trial.attempt.path / "ready").exists()
        assert cluster.wait_state(trial.job, "FAILED", "COMPLETED") == "FAILED"


def test_what_a_site_is_told_wrongly_is_said_before_anything_starts(cluster: Cluster, submit: Submit) -> None:
    """Set-up lines that end the script; an interface that the nodes do not have."""
    rows: list[tuple[dict[str, Any], str]] = [
        ({"setup": ["echo no licence", "set -e", "false"]}, "before the trial began, with exit code 1: no licence"),
        (
            {"network_interface": "eth9"},
            "cluster.network_interface = eth9: node1 has no such interface; it has eth0, lo",
        ),
    ]
    trials = [submit("ready", site={"nodelist": "node[1-2]"} | site) for site, _ in rows]
    for trial, (_, said) in zip(trials, rows, strict=True):
        assert cluster.wait_state(trial.job, "FAILED", "COMPLETED") == "FAILED"
        end = trial.attempt.end() or unsaid(trial.attempt)
        assert end and end.cause is Cause.CONFIG_ERROR and said in end.reason, (end, trial.said())
        assert not (trial.attempt.path / "ready").exists()
        trial.check_nothing_left()


def test_a_cable_is_cut_and_the_node_powered_off(cluster: Cluster, submit: Submit) -> None:
    """Nobody hangs up: our own watch ends the attempt long before the scheduler knows. On both sides of the cut."""
    trial = submit("ready", "sleep=300", site={"nodelist": "node[1-2]"})
    trial.wait_ready()
    cut_off = [p for p in trial.processes() if same_host(p, trial.supervisors(1)[1])]
    began = time.monotonic()
    try:
        cluster.on("node2", ["ip", "link", "set", "eth0", "down"])
        end = trial.end()
        TIMES.append(("node cut off: end.json", time.monotonic() - began))
        trial.wait(lambda: not any(runs(p) and name(p).startswith("python") for p in cut_off), DEADLINE)
        TIMES.append(("node cut off: all gone on both sides", time.monotonic() - began))
    finally:
        cluster.kill_node("node2")
        cluster.down_node("node2")
    assert end.cause is Cause.NODE_FAIL and end.nodes == ("node2",), trial.said()
    trial.wait(lambda: not trial.processes())


def same_host(p: psutil.Process, q: psutil.Process) -> bool:
    try:
        return os.readlink(f"/proc/{p.pid}/ns/net") == os.readlink(f"/proc/{q.pid}/ns/net")
    except OSError:
        return False


def test_a_node_that_the_scheduler_gives_up_is_replaced(cluster: Cluster, submit: Submit) -> None:
    """SLURM runs the job again on others: the next attempt, in a directory that its node made."""
    trial = submit("ready", "1:sleep=300")
    trial.wait_ready()
    lost = trial.supervisors(1)[0].environ()["SLURMD_NODENAME"]
    with trial.fault("node powered off: requeued", states=("PENDING",), is_node_dead=True):
        cluster.down_node(lost)  # first: the rest of the job, which sees it die, would end it as failed
        cluster.kill_node(lost)
    cluster.wait_state(trial.job, "COMPLETED")
    assert trial.end(2).cause is Cause.COMPLETED
    claims = [trial.attempt.trial.attempt(n).claimed() for n in (1, 2)]
    assert {c.job for c in claims if c} == {trial.job}
    assert lost not in trial.attempt.trial.attempt(2).node_log.read_text()


def test_four_nodes_and_a_controller_that_is_away(cluster: Cluster, submit: Submit) -> None:
    """The job does not notice; who asks is told that nobody knows, and later what is."""
    trial = submit("ray=4,0", "ready", "until=asked", has_ray=True, nodes=4)
    cluster.wait_state(trial.job, "RUNNING")
    try:
        cluster.stop_controller()
        assert SlurmLauncher().states([trial.job])[trial.job].state is JobStatus.UNKNOWN
        trial.wait_ready()
        (trial.attempt.path / "asked").touch()
    finally:
        cluster.start_controller()
    assert trial.end().cause is Cause.COMPLETED, trial.said()
    trial.wait(lambda: SlurmLauncher().states([trial.job])[trial.job].is_over)
    assert SlurmLauncher().states([trial.job])[trial.job].cause is None
    assert "tasks ran on node1: node2: node3: node4:" in trial.attempt.driver_log.read_text()
    trial.check_nothing_left()


# --- signals, under both ways of tracking processes


@pytest.fixture(scope="module")
def linuxproc(slurm_session: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A second cluster, whose signals go to every process of a job."""
    path = tmp_path_factory.mktemp("linuxproc")
    other = Cluster(path / "run", path)
    with pytest.MonkeyPatch.context() as m:
        m.setenv("HYSWEEP_TESTCLUSTER_PROCTRACK", "proctrack/linuxproc")
        other.script("up", "2")
    yield other
    other.script("down")


@pytest.fixture(params=["cgroup", "linuxproc"])
def tracker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[Cluster, Submit, str]]:
    cluster: Cluster = request.getfixturevalue("slurm_session" if request.param == "cgroup" else "linuxproc")
    yield cluster, submitter(cluster, monkeypatch, tmp_path), request.param
    cluster.settle()


Tracker = tuple[Cluster, Submit, str]


def test_a_cancelled_job_stays_so(tracker: Tracker) -> None:
    cluster, submit, by = tracker
    trial = submit("ray=2,0", "ready", "sleep=300", has_ray=True)
    trial.wait_ready()
    launcher = SlurmLauncher()
    with trial.fault(f"scancel, {by}"):
        launcher.cancel([trial.job])
    assert cluster.wait_state(trial.job, "CANCELLED", "COMPLETED", "REQUEUED", "PENDING") == "CANCELLED"
    assert launcher.states([trial.job])[trial.job].cause is Cause.CANCELLED
    assert trial.end().cause in (Cause.KILLED, Cause.CANCELLED), trial.said()
    assert "Restarts=0" in cluster.exec(["scontrol", "show", "job", trial.job]).stdout


def test_preempted_requeued_completed(tracker: Tracker) -> None:
    cluster, submit, by = tracker
    # under cgroups a real training goes the same way (test_trainings)
    has_ray = by == "linuxproc"
    joins = ["ray=2,0"] if has_ray else []
    trial = submit(*joins, "metrics=1", "ready", "1:sleep=300", has_ray=has_ray, site=low("low"))
    trial.wait_ready()
    with trial.fault(f"preempted: requeued, {by}", states=("PENDING",)):
        higher = cluster.sbatch("-N2", "-w", "node[1-2]", "--exclusive", "--wrap", "sleep 1")
    first = trial.end()
    assert first.cause is Cause.PREEMPTED, trial.said()
    assert cluster.wait_state(higher, "COMPLETED")
    cluster.wait_state(trial.job, "COMPLETED")
    assert trial.end(2).cause is Cause.COMPLETED, trial.said()
    claims = [trial.attempt.trial.attempt(n).claimed() for n in (1, 2)]
    assert {c.job for c in claims if c} == {trial.job} and all(claims)
    trial.check_nothing_left()


def low(partition: str) -> dict[str, Any]:
    return {"partition": partition, "nodelist": "node[1-2]", "use_exclusive": True}


def test_every_signal_that_may_come(tracker: Tracker) -> None:
    """USR2 near the limit: again only if something was saved. An admin's requeue; a partition that cancels."""
    cluster, submit, by = tracker

    def usr2(t: Trial) -> None:
        cluster.exec(["scancel", "--signal=USR2", t.job])

    def requeue(t: Trial) -> None:
        cluster.exec(["scontrol", "requeue", t.job])

    def higher(t: Trial) -> None:
        cluster.sbatch("-N2", "-w", "node[1-2]", "--exclusive", "--wrap", "sleep 1")

    def term(t: Trial) -> None:
        cluster.exec(["scancel", "--signal=TERM", t.job])

    near = {"timeout_min": 3}
    rows: list[tuple[str, dict[str, Any], Callable[[Trial], None], Cause, bool]] = [
        ("USR2 near the limit, saved: requeued", near | {"saves": True}, usr2, Cause.TIMEOUT, True),
        ("USR2 at another time: requeued", {}, usr2, Cause.PREEMPTED, True),
        ("scontrol requeue", {}, requeue, Cause.KILLED, True),
        ("USR2 near the limit, nothing saved", near, usr2, Cause.TIMEOUT, False),
        ("SIGTERM by hand", {}, term, Cause.KILLED, False),
        ("preempted in a partition that cancels", {"site": low("cancel")}, higher, Cause.PREEMPTED, True),
    ]
    back: list[tuple[str, Trial]] = []

    def wait_back() -> None:
        for row, trial in back:
            trial.wait(lambda t=trial: not t.state())
            assert trial.end(2).cause is Cause.COMPLETED, (row, trial.said())
        back.clear()

    for row, how, what, cause, comes_back in rows:
        changes = dict(how)
        saves = ["1:save=1"] if changes.pop("saves", False) else []
        if "site" in changes:
            wait_back()  # those of the main partition would take its nodes before it is ready
        trial = submit(*saves, "ready", "1:sleep=300", **changes)
        trial.wait_ready()
        with trial.fault(f"{row}, {by}", states=("PENDING", "RUNNING") if comes_back else ("",)):
            what(trial)
        assert trial.end().cause is cause, (row, trial.said())
        if comes_back:
            back.append((row, trial))
        else:
            assert cluster.wait_state(trial.job, "FAILED", "COMPLETED", "REQUEUED") == "FAILED"
    wait_back()


def test_all_of_it_was_gone_in_time() -> None:
    assert TIMES, "this test comes after the others"
    assert median(took for _, took in TIMES) < GONE_WITHIN, TIMES
