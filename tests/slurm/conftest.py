"""A real SLURM cluster for the session: brought up once, taken down at the end.

Wanted by CI=true (then a machine that cannot have it is a failure) or WITH_SLURM=1 (then it is a skip).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from hysweep.cli.cluster import SCRIPT

CANNOT = 2  # the script's exit code where the machine is at fault
PREFIX = "hysweep-slurm-"
IN_CI = os.environ.get("CI") == "true"
WANTED = IN_CI or os.environ.get("WITH_SLURM") == "1"
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Cluster:
    run: Path
    shared: Path  # a directory that all nodes see, as they see all but /tmp/ray and /dev/shm

    @property
    def submit_env(self) -> dict[str, str]:
        """The environment of a client: sbatch, squeue, ... of its PATH are the cluster's."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_"))}
        return plain | {"SLURM_CONF": f"{self.run}/etc/slurm.conf", "PATH": f"{self.run}/bin:{plain['PATH']}"}

    def script(self, *words: str, check: bool = True, timeout: float = 120) -> Done:
        """`testcluster WORDS`"""
        return _testcluster(self.run, *words, check=check, timeout=timeout)

    def exec(self, argv: Sequence[str], check: bool = True, timeout: float = 120, **more: Any) -> Done:
        """Run a client here, with the cluster's tools in its PATH."""
        more = {"env": self.submit_env, "capture_output": True, "text": True} | more
        done = subprocess.run(argv, check=False, timeout=timeout, **more)
        assert not check or done.returncode == 0, (argv, done.returncode, done.stdout, done.stderr)
        return done

    def on(self, node: str, argv: Sequence[str], check: bool = True, timeout: float = 120) -> Done:
        """Run a command on a node."""
        return self.script("on", node, *argv, check=check, timeout=timeout)

    def kill_node(self, node: str) -> None:
        """Power it off. SLURM sees that after some 30 s, see `down_node`."""
        self.script("kill-node", node)

    def down_node(self, node: str) -> None:
        """What SLURM does with a dead node, at once: its jobs end with NODE_FAIL, or are requeued.

        Drained before: while it still answers it would be back at once, and take the next job.
        """
        for state in ("drain", "down"):
            self.exec(["scontrol", "update", f"nodename={node}", f"state={state}", "reason=test"])

    def start_node(self, node: str) -> None:
        """Power it on, wait until it serves."""
        self.exec(["scontrol", "update", f"nodename={node}", "state=undrain"], check=False)
        self.script("start-node", node)

    def stop_controller(self) -> None:
        """No slurmctld from here on: clients fail after some 9 s."""
        self.script("stop-controller")

    def start_controller(self) -> None:
        self.script("start-controller")

    def stop_accounting(self) -> None:
        """No slurmdbd from here on: sacct fails."""
        self.script("stop-accounting")

    def start_accounting(self) -> None:
        self.script("start-accounting")

    def restart_controller(self, *, saved: bool = True) -> None:
        """kill -9, and again. Not `saved`: it forgets what it took in the last seconds, and gives ids twice."""
        self.script("restart-controller", *([] if saved else ["now"]))

    def nodes_of(self, job: str) -> list[str]:
        """On which it runs; none where it waits or is over."""
        said = self.exec(["squeue", "-h", "-j", job, "-o", "%N"], check=False).stdout.strip()
        return self.exec(["scontrol", "show", "hostnames", said]).stdout.split() if said else []

    def sbatch(self, *words: str) -> str:
        """Submit, e.g. `sbatch("-N2", "--wrap", "srun hostname")`; output in `shared`. Returns the job's id."""
        return self.exec(["sbatch", "--parsable", *words], cwd=self.shared).stdout.strip()

    def queue(self) -> dict[str, str]:
        """State of each job that waits or runs, by id."""
        lines = self.exec(["squeue", "-h", "-a", "-o", "%i %T"]).stdout.splitlines()
        return dict(line.split() for line in lines)

    def state(self, job: str) -> str:
        """What sacct says of a job, "" while it says nothing."""
        return self.exec(["sacct", "-n", "-X", "-P", "-j", job, "-o", "State"]).stdout.strip()

    def wait_state(self, job: str, *wanted: str, timeout: float = 60) -> str:
        """Wait until sacct says one of `wanted`."""
        until = time.monotonic() + timeout
        while (state := self.state(job).split(" ")[0]) not in wanted:
            assert time.monotonic() < until, f"{job} is {state!r}, not {wanted}, after {timeout} s: {self._seen(job)}"
            time.sleep(0.2)
        return state

    def settle(self) -> None:
        """No job, every node idle: as it was at the start."""
        self.exec(["scontrol", "ping"])
        until = time.monotonic() + 60
        while self.queue():
            self.exec(["scancel", "--full", "--user=root"], check=False)
            assert time.monotonic() < until, self.queue()
            time.sleep(0.2)
        nodes = dict(self._nodes())
        for node, state in nodes.items():
            self.start_node(node)
            if state.startswith(("down", "drain")):
                self.exec(["scontrol", "update", f"nodename={node}", "state=resume"], check=False)
        while any(state != "idle" for _, state in self._nodes()):
            assert time.monotonic() < until, self._nodes()
            time.sleep(0.2)

    def _seen(self, job: str) -> str:
        """What the controller knows, and what the nodes said last."""
        words = (["scontrol", "show", "job", job], ["sinfo", "-N", "-l"])
        said = [self.exec(argv, check=False).stdout for argv in words]
        logs = sorted(self.run.glob("log/slurm*d*.log"))
        return "\n".join(said + [f"{f.name}:\n" + "\n".join(f.read_text().splitlines()[-20:]) for f in logs])

    def _nodes(self) -> list[tuple[str, str]]:
        lines = self.exec(["sinfo", "-h", "-N", "-p", "main", "-o", "%N %t"]).stdout.splitlines()
        return [(node, state) for node, state in (line.split() for line in lines)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where no cluster is wanted one skip says so for all."""
    tests = [item for item in items if item.get_closest_marker("slurm")]
    if tests and not WANTED:
        why = (
            f"{len(tests)} TESTS ON A SLURM CLUSTER NOT RUN: WITH_SLURM=1 (as root, Debian) installs SLURM, starts one"
        )
        tests[0].add_marker(pytest.mark.skip(reason=why))
        items[:] = [item for item in items if item not in tests[1:]]
        config.hook.pytest_deselected(items=tests[1:])


LOGS = pytest.StashKey[list[str]]()  # of each process that had a cluster
TIMES = pytest.StashKey[list[tuple[str, float]]]()  # of test_faults: seconds until all is gone, by fault


@pytest.fixture(scope="session")
def slurm_session(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    _take_down_what_a_killed_session_left()
    run = Path(tempfile.gettempdir(), f"{PREFIX}{os.getpid()}")
    for verb in (["install"], ["up", "4"]):
        done = _testcluster(run, *verb, check=False, timeout=600)
        if done.returncode == CANNOT and not IN_CI:
            pytest.skip(f"NO TEST ON A SLURM CLUSTER: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
    try:
        yield Cluster(run, tmp_path_factory.mktemp("shared"))
    finally:
        pytestconfig.stash[LOGS] = [str(shutil.copytree(run / "log", tmp_path_factory.mktemp("slurm") / "log"))]
        _testcluster(run, "down")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What one of several processes (pytest-xdist) has to tell, the one that reports hears."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["slurm"] = session.config.stash.get(LOGS, []), session.config.stash.get(TIMES, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    logs, times = getattr(node, "workeroutput", {}).get("slurm", ([], []))
    node.config.stash.setdefault(LOGS, []).extend(logs)
    node.config.stash.setdefault(TIMES, []).extend(times)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if times := config.stash.get(TIMES, []):
        terminalreporter.section("seconds until all is gone")
        for row, took in times:
            terminalreporter.write_line(f"{took:6.1f}  {row}")
    if terminalreporter.stats.keys() & {"failed", "error"}:
        for logs in config.stash.get(LOGS, []):
            terminalreporter.section(f"the cluster's logs: {logs}")
            for log in ("slurmctld.log", "slurmdbd.log"):
                terminalreporter.write_line("\n".join(Path(logs, log).read_text().splitlines()[-30:]))


@pytest.fixture
def cluster(slurm_session: Cluster) -> Iterator[Cluster]:
    """The session's cluster, idle again after each test."""
    yield slurm_session
    slurm_session.settle()


def _testcluster(run: Path, *words: str, check: bool = True, timeout: float = 120) -> Done:
    argv = ["bash", str(SCRIPT), *words]
    env = os.environ | {"HYSWEEP_TESTCLUSTER": str(run)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env=env, stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
    return done


def _take_down_what_a_killed_session_left() -> None:
    for run in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not psutil.pid_exists(int(run.name.removeprefix(PREFIX).partition("-")[0])):
            _testcluster(run, "down", check=False)
