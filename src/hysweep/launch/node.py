"""The node: runs one attempt, from its claim to its end.json.

    python -m hysweep.launch.node [--detach] DIRECTORY

Two processes. The *node* claims the attempt, prepares, boots Ray, runs the trainer and says why it ended. Its
parent, the *guard*, does nothing until the node is gone, however it went, and then ends whatever is left. Whichever
of the two is shot, the other one cleans up; if both are, the kernel ends their children, and whoever looks at the
attempt next ends what those had started (`hysweep.launch.local`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hysweep.check.versions import installed, unfit
from hysweep.compile.job import Job
from hysweep.launch import command, ending, processes
from hysweep.launch.boot import BootFailed, Cluster, RayHead, is_port_clash, remove_temporaries
from hysweep.track import AttemptDirectory, Cause, Claim, End, Phase

# An attempt is asked to stop by this file in its directory. A signal only makes it look at once.
STOP = "stop"

LOOK = 1.0  # seconds between looks at the files
POLL = 0.1  # while something is expected to come up
PULSE = 15.0  # the age of node.json is the age of the last sign that the node lives
DRIVER_GRACE = 5.0
# What all of the above and Ray's own grace add up to, with room for a loaded machine: who waits longer may kill.
STOPS_WITHIN = 30.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Stopped(Exception):
    """The attempt ends before its trainer does."""

    def __init__(self, cause: Cause, reason: str) -> None:
        self.cause = cause
        super().__init__(reason)


class Node:
    """One attempt. `cluster` is what its driver joins."""

    def __init__(
        self,
        attempt: AttemptDirectory,
        who: Claim,
        cluster: Callable[[Job, AttemptDirectory], Cluster] = RayHead,
    ) -> None:
        self.attempt = attempt
        self.who = who
        self.make_cluster = cluster
        self.cluster: Cluster | None = None
        self.driver: subprocess.Popen[bytes] | None = None
        self.deadline = float("inf")
        self.started = time.time()
        self.oom_kills = processes.oom_kills()
        self._looked = self._pulsed = float("-inf")

    def run(self) -> None:
        """Everything after the claim. Nothing of the attempt runs once this returns."""
        say(f"pid {os.getpid()} runs {self.attempt.path}")
        try:
            end = self._live()
        except Stopped as stopped:
            trouble = ending.last_trouble(ending.read_log(self.attempt.driver_log))
            end = End(stopped.cause, self._phase(), self._exit_code(), str(stopped), trouble)
        except BootFailed as failed:
            end = End(failed.cause, Phase.START, reason=str(failed))
        except Exception as e:
            traceback.print_exc()
            end = End(Cause.UNKNOWN, self._phase(), reason=f"the node failed: {type(e).__name__}: {e}")
        say(f"{end.cause}: {end.reason}" if end.reason else str(end.cause))
        self._tear_down()
        if is_of(self.attempt, self.who.pid):
            self.attempt.finish(replace(end, started=self.started, ended=time.time()))

    def _live(self) -> End:
        written = self.attempt.job()
        if written is None:
            return End(Cause.UNKNOWN, Phase.START, reason="job.json is missing or cannot be read")
        job = Job.from_dict(written)
        self.deadline = time.monotonic() + job.timeout_min * 60
        if misfits := [str(m) for m in unfit(job.requires, installed(job.requires))]:
            return End(Cause.CONFIG_ERROR, Phase.START, reason="; ".join(misfits))
        environment = command.inherited(os.environ) | command.settings(job, self.attempt)
        for argv in command.prepare_commands(job):
            code = self._run(argv, environment)
            if code:
                end = self._classify(code)
                return replace(end, reason=f"{' '.join(argv[1:])}: {end.reason}")
        self.cluster = self.make_cluster(job, self.attempt)
        began = time.monotonic()
        joins = self.cluster.boot(environment, self.wait)
        say(f"the cluster is up after {time.monotonic() - began:.1f} s; the trainer starts")
        code = self._run(command.driver_command(job), environment | joins, self.cluster)
        return self._classify(code)

    def _run(self, argv: Sequence[str], environment: dict[str, str], cluster: Cluster | None = None) -> int | None:
        """Run one command to its end; None when the cluster that it works on is gone before."""
        self.driver = processes.spawn(argv, environment, self.attempt.driver_log, self.attempt.path)
        driver = self.driver
        self.wait(lambda: driver.poll() is not None or bool(cluster and cluster.why_gone()))
        if driver.poll() is None:
            self.wait(lambda: driver.poll() is not None, DRIVER_GRACE)  # what it says of it is worth having
        return self._exit_code()

    def wait(self, done: Callable[[], bool], within: float | None = None) -> bool:
        """Sleep until `done`, or False after `within` seconds. Raises Stopped as soon as the attempt is to end."""
        until = float("inf") if within is None else time.monotonic() + within
        while not done():
            if time.monotonic() > until:
                return False
            processes.reap(self._children())
            self._look()
            received = signal.sigtimedwait(_SIGNALS, LOOK if within is None else POLL)
            if received and received.si_signo != signal.SIGCHLD:
                raise Stopped(Cause.KILLED, signal.Signals(received.si_signo).name)
        return True

    def _look(self) -> None:
        """Whether to go on, by the clock and by the directory."""
        now = time.monotonic()
        if now > self.deadline:
            raise Stopped(Cause.TIMEOUT, "the time limit of the job")
        if now - self._looked < LOOK:
            return
        self._looked = now
        if os.path.exists(self.attempt.path / STOP):
            raise Stopped(Cause.KILLED, "asked to stop")
        if now - self._pulsed > PULSE:
            self._pulsed = now
            try:
                os.utime(self.attempt.path / "node.json")
            except OSError as e:
                say(f"node.json cannot be touched: {e}")
            if not is_of(self.attempt, self.who.pid):
                # Nobody could find this job again, nor learn how it ended.
                raise Stopped(Cause.KILLED, "its directory was removed")

    def _classify(self, code: int | None) -> End:
        gone = self.cluster.why_gone() if self.cluster else ""
        metrics = self.attempt.metrics()
        names = (*ending.SCORES, *ending.LOSSES) if code else ending.SCORES
        kills = processes.oom_kills() - self.oom_kills
        end = ending.classify(
            ending.read_log(self.attempt.driver_log),
            code,
            has_trained=bool(metrics),
            not_a_number=ending.not_a_number(metrics, names),
            oom_kills=kills,
        )
        if gone and end.cause in (Cause.UNKNOWN, Cause.RAY_BOOT, Cause.NODE_FAIL):
            # On one machine there is no other node to go to: what looks like a lost node is Ray itself gone.
            cause = Cause.PORT_CLASH if is_port_clash(gone) else Cause.HOST_OOM if kills > 0 else Cause.KILLED
            return replace(end, cause=cause, reason=f"{gone} while the trainer ran")
        return end

    def _phase(self) -> Phase:
        return Phase.UNKNOWN if self.attempt.metrics() else Phase.START

    def _exit_code(self) -> int | None:
        """As a shell says it."""
        code = self.driver.poll() if self.driver else None
        return 128 - code if code is not None and code < 0 else code

    def _children(self) -> list[subprocess.Popen[bytes]]:
        return [c for c in (self.driver, *(self.cluster.children if self.cluster else ())) if c]

    def _tear_down(self) -> None:
        began = time.monotonic()
        if self.driver:
            processes.stop(self.driver, DRIVER_GRACE)
        if self.cluster:
            self.cluster.stop()
        end_all(self.attempt, self.who.pid, self._children())
        if self.cluster:
            self.cluster.clear()
        say(f"all is gone after {time.monotonic() - began:.1f} s")


def is_of(attempt: AttemptDirectory, node: int) -> bool:
    """Whether the attempt is still this node's: its directory may have been removed, and even made anew."""
    claim = attempt.claimed()
    if claim is not None:
        return claim.pid == node
    try:
        os.stat(attempt.path / "node.json")
    except FileNotFoundError:
        return False
    except OSError:  # a file system that is away for a while
        pass
    return True


def end_all(attempt: AttemptDirectory, node: int, children: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    """SIGKILL what is left of an attempt, below this process or by its mark, and remove Ray's directory.

    Marks and Ray's directory only of an attempt that is still the node's: they are named alike in its successor.
    """
    directory = command.identity(attempt)
    is_ours = is_of(attempt, node)

    def left() -> list[processes.Process]:
        return processes.descendants() + (processes.marked([directory])[directory] if is_ours else [])

    stuck = processes.kill_all(left, keep=children)
    if stuck:
        say("these would not die: " + ", ".join(str(p.pid) for p in stuck))
    if is_ours:
        remove_temporaries(directory)


def guard(node: int, attempt: AttemptDirectory) -> int:
    """Wait for the node, pass on what is meant for it, and clean up after it. Returns its exit code."""
    pid = 0
    while not pid:
        if signal.sigwait(_SIGNALS) == signal.SIGCHLD:
            pid, status = os.waitpid(node, os.WNOHANG)
        else:
            os.kill(node, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(status)
    if code:
        say(f"the node ended with {code}; ending what is left of it")
    end_all(attempt, node)
    return code


def say(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None, cluster: Callable[[Job, AttemptDirectory], Cluster] = RayHead) -> int:
    """Exit code 0: the attempt was run, or another node has it. How it ended is in its end.json."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    detach = "--detach" in arguments
    names = [a for a in arguments if a != "--detach"]
    if len(names) != 1 or not Path(names[0]).is_dir():
        print("usage: python -m hysweep.launch.node [--detach] DIRECTORY", file=sys.stderr)
        return 2
    attempt = AttemptDirectory(Path(os.path.realpath(names[0])))
    # Whoever started this may have ignored signals for all its children; SIGHUP alone is ignored on purpose.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    claimed, tell = os.pipe()
    if detach:
        if os.fork():
            os.close(tell)
            # The launcher waits for this process: it learns that the attempt is taken, or that nothing runs.
            return 0 if os.read(claimed, 1) else 1
        os.setsid()
    os.close(claimed)
    parent = os.getpid()
    processes.adopt_orphans()
    node = os.fork()
    if node:
        os.close(tell)
        return guard(node, attempt)
    processes.adopt_orphans()
    processes.die_with_parent(parent, signal.SIGTERM)
    who = processes.own_claim()
    is_ours = attempt.claim(who)
    with suppress(BrokenPipeError):  # nobody waits for it
        os.write(tell, b"1")
    os.close(tell)
    if is_ours:
        Node(attempt, who, cluster).run()
    else:
        say(f"pid {os.getpid()} leaves {attempt.path} to who has it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
