"""The node: runs one attempt, from its claim to its end.json.

    python -m hysweep.launch.node [--detach | --slurm] DIRECTORY

With ``--slurm`` one of these runs on each node of the allocation. The first is the node that this page tells of, the
others follow it (`hysweep.launch.follower`). DIRECTORY is the attempt that the job was submitted for; when the
scheduler runs the job again, it is the next attempt, and its directory is made here.

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
from typing import Any

from hysweep.launch import command, ending, processes, reach
from hysweep.launch.allocation import Allocation
from hysweep.launch.boot import BootFailed, Cluster, RayCluster
from hysweep.launch.follower import Follower
from hysweep.launch.interfaces import unfit_interface
from hysweep.launch.queue import is_preempted, is_running, requeue
from hysweep.launch.remains import end_all, is_of, say
from hysweep.launch.services import ServiceFailed, Services
from hysweep.launch.stacks import dump
from hysweep.rewards.router import reward_error
from hysweep.schema import BadInput
from hysweep.schema.job import Job
from hysweep.schema.versions import installed, unfit
from hysweep.track import (
    ACTIONS,
    FULL,
    PASSING,
    AttemptDirectory,
    Cause,
    Claim,
    End,
    Phase,
    checkpoint_step,
    exactly,
    set_aside,
    settle_note,
    superfluous,
)
from hysweep.track.files import age

# An attempt is asked to stop by this file in its directory. A signal only makes it look at once.
STOP = "stop"
# Who has not looked for so long was stopped itself, as with a job that is suspended: nothing was to be heard meanwhile.
STOPPED_S = 60.0

LOOK = 1.0  # seconds between looks at the files
POLL = 0.1  # while something is expected to come up
PULSE = 15.0  # the age of node.json is the age of the last sign that the node lives
SILENT = 3 * PULSE
DRIVER_GRACE = 4.0
WRITES_WITHIN = 300.0
LAST_WORDS = 2.0  # what the driver, or another node, has to say of an end that is clear
# What all of the above and Ray's own grace add up to, with room for a loaded machine: who waits longer may kill.
STOPS_WITHIN = 30.0

_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
_SIGNALS = (*_TO_END, signal.SIGCHLD)
# What an end may look like that a signal to every process of the job brought about.
_CONSEQUENCES = (Cause.KILLED, Cause.UNKNOWN, Cause.RAY_BOOT, Cause.NODE_FAIL, Cause.NCCL)
MakeCluster = Callable[[Job, AttemptDirectory, Allocation], Cluster]


class Stopped(Exception):
    """The attempt ends before its trainer does. `nodes`: those to blame, where some are."""

    def __init__(self, cause: Cause, reason: str, *nodes: str) -> None:
        self.cause = cause
        self.nodes = nodes
        super().__init__(reason)


class Node:
    """One attempt. `make_cluster` makes what its driver joins."""

    def __init__(
        self,
        attempt: AttemptDirectory,
        who: Claim,
        make_cluster: MakeCluster = RayCluster,
        allocation: Allocation | None = None,
    ) -> None:
        self.attempt = attempt
        self.who = who
        self.allocation = allocation or Allocation.here()
        self.make_cluster = make_cluster
        self.job: Job | None = None
        self.cluster: Cluster | None = None
        self.driver: subprocess.Popen[bytes] | None = None
        self.services = Services(attempt)
        self.deadline = float("inf")
        self.started = time.time()
        self.oom_kills = processes.oom_kills()
        self.saved_before = checkpoint_step(attempt.trial.checkpoints)
        self._looked = self._pulsed = float("-inf")
        self._said, self._heard = 0.0, time.monotonic()
        self._alive = self._heard
        self._may_requeue = False
        self.guard = os.getppid()

    def run(self) -> End:
        """Everything after the claim. Nothing of the attempt runs once this returns."""
        say(f"pid {os.getpid()} runs {self.attempt.path}")
        try:
            end = self._live()
            if end.cause in _CONSEQUENCES and (received := signal.sigtimedwait(_TO_END, 0)):
                # told together with all that it started, which ended first
                stopped = self._told(signal.Signals(received.si_signo))
                if self._may_requeue:
                    raise stopped
        except Stopped as stopped:
            trouble = ending.last_trouble(ending.read_log(self.attempt.driver_log))
            end = End(stopped.cause, self._phase(), self._exit_code(), str(stopped), trouble, nodes=stopped.nodes)
        except BootFailed as failed:
            end = End(failed.cause, Phase.START, reason=str(failed), nodes=failed.nodes)
        except Exception as e:
            say(traceback.format_exc())
            cause = Cause.DISK_FULL if isinstance(e, OSError) and e.errno in FULL else Cause.UNKNOWN
            end = End(cause, self._phase(), reason=f"the node failed: {type(e).__name__}: {e}")
        say(f"{end.cause}: {end.reason}" if end.reason else str(end.cause))
        self._tear_down()
        end = replace(end, started=self.started, ended=time.time())
        if is_of(self.attempt, self.who.pid):
            self._write_down(end)
        if self._may_requeue:
            self._requeue(end)
        return end

    def _write_down(self, end: End) -> None:
        """Without its end a training that is done would run again, so a disk that is full or away is waited for."""
        until = time.monotonic() + WRITES_WITHIN
        while True:
            try:
                return self.attempt.finish(end)
            except OSError as e:
                if e.errno not in PASSING or time.monotonic() > until:
                    raise
                say(f"the end cannot be written down: {e}")
                time.sleep(LOOK)

    def _live(self) -> End:
        written = self.attempt.job()
        if written is None:
            return End(Cause.UNKNOWN, Phase.START, reason="job.json is missing or cannot be read")
        job = self.job = Job.from_dict(written)
        self.deadline = time.monotonic() + job.timeout_min * 60
        environment = command.on_node(job, self.attempt, os.environ, self.started)
        # the head of a standing Ray need not be where the job runs
        if job.launcher != "ray_job" and (fault := unfit_interface(job, environment, self.allocation.is_alone)):
            return End(Cause.CONFIG_ERROR, Phase.START, reason=str(fault))
        self.cluster = self.make_cluster(job, self.attempt, self.allocation)
        if misfits := [str(m) for m in unfit(job.requires, installed(job.requires))]:
            return End(Cause.CONFIG_ERROR, Phase.START, reason="; ".join(misfits))
        if short := self._lacks_gpus(job) or "; ".join(command.lacks_cpus(job, self.allocation) or ()):
            return End(Cause.CONFIG_ERROR, Phase.START, reason=short)
        self._make_room(job, environment)
        for argv in command.prepare_commands(job):
            code = self._run(argv, environment)
            if code:
                end = self._classify(code)
                return replace(end, reason=f"{' '.join(argv[1:])}: {end.reason}")
        try:
            environment |= self.services.start(job, self.allocation, environment, self.wait)
        except ServiceFailed as e:
            return End(Cause.REWARD_ERROR, Phase.START, reason=str(e))
        environment |= self._tracking(job, environment)
        began = time.monotonic()
        joins = self.cluster.boot(environment, self.wait)
        say(f"the cluster is up after {time.monotonic() - began:.1f} s; the trainer starts")
        code = self._run(command.driver_command(job), environment | joins, self.cluster)
        return self._classify(code)

    def _tracking(self, job: Job, environment: dict[str, str]) -> dict[str, str]:
        """No trainer fails for want of Weights & Biases: where that does not answer, the run is written offline."""
        if not reach.logs_online(environment, job.env) or (why := reach.why_unreachable(environment)) is None:
            return {}
        say(f"Weights & Biases does not answer ({why}): this run is written offline, for `hysweep wandb sync`")
        return {"WANDB_MODE": "offline"}

    def _make_room(self, job: Job, environment: dict[str, str]) -> None:
        """Begin to remove checkpoints that are torn or that earlier attempts kept beyond their number."""
        checkpoints = self.attempt.trial.checkpoints
        with exactly():  # what cannot be read for once is neither torn nor gone
            for torn in settle_note(checkpoints):
                say(f"not gone on from {torn}")
            self.saved_before = checkpoint_step(checkpoints)
            doomed = set_aside(superfluous(checkpoints, job.checkpoints_kept))
        if doomed:
            say("removing " + ", ".join(path.name for path in doomed))
            processes.spawn(["rm", "-rf", *map(str, doomed)], environment, self.attempt.node_log, self.attempt.path)

    def _lacks_gpus(self, job: Job) -> str:
        given = self.allocation.gpus
        if job.site.gpu is None or given is None or given >= job.gpus_per_node:
            return ""
        return f"{self.allocation.name} gave {given} GPUs, the trial needs {job.gpus_per_node} of each node"

    def _run(self, argv: Sequence[str], environment: dict[str, str], cluster: Cluster | None = None) -> int | None:
        """Run one command to its end; None when the cluster that it works on is gone before."""
        self.driver = processes.spawn(argv, environment, self.attempt.driver_log, self.attempt.path)
        driver = self.driver
        self.wait(lambda: driver.poll() is not None or bool(cluster and cluster.loss()))
        loss = cluster.loss() if cluster else None
        # What it says of a loss is worth having. Of a node that fell silent it knows nothing yet.
        if driver.poll() is None and loss and loss.cause is not Cause.NODE_FAIL:
            self.wait(lambda: driver.poll() is not None, LAST_WORDS)
        return self._exit_code()

    def wait(self, done: Callable[[], bool], within: float | None = None) -> bool:
        """Sleep until `done`, or False after `within` seconds. Raises Stopped as soon as the attempt is to end."""
        until = float("inf") if within is None else time.monotonic() + within
        while not done():
            if time.monotonic() > until:
                return False
            processes.reap(self._children())
            self._look()
            if self.cluster:
                self.cluster.poll()
            received = signal.sigtimedwait(_SIGNALS, LOOK if within is None else POLL)
            if received and received.si_signo != signal.SIGCHLD:
                raise self._told(signal.Signals(received.si_signo))
        return True

    def _told(self, received: signal.Signals) -> Stopped:
        """What a signal means.

        The scheduler's USR2 comes so long before the time limit as it was asked to, up to a minute more, and when it
        is about to take the nodes away; where a site sends none, SIGTERM stands for it. A SIGTERM without that is a
        cancel, or srun's, which ends all when one node ended badly: another node has the cause then.
        """
        job = self.allocation.job
        if not job:
            return Stopped(Cause.KILLED, received.name)
        if os.getppid() != self.guard:
            return Stopped(Cause.KILLED, "its guard was killed")
        delay = self.job.site.signal_delay_s if self.job else 0
        if is_preempted(job):
            stopped = Stopped(Cause.PREEMPTED, "the scheduler takes the nodes back")
        elif received is signal.SIGUSR2 and self.deadline - time.monotonic() < delay + 90:
            stopped = Stopped(Cause.TIMEOUT, "the time limit of the job is near")
        elif received is signal.SIGUSR2:
            stopped = Stopped(Cause.PREEMPTED, "the scheduler sent SIGUSR2")
        else:
            return self._why_ended(received)
        self._may_requeue = True
        return stopped

    def _why_ended(self, received: signal.Signals) -> Stopped:
        if self.cluster and is_running(self.allocation.job):
            until = time.monotonic() + LAST_WORDS
            while time.monotonic() < until:
                self.cluster.poll()
                if loss := self.cluster.loss():
                    nodes = (loss.node,) if loss.node else ()
                    return Stopped(loss.cause, ": ".join([*nodes, loss.reason]), *nodes)
                if unmet := self.cluster.unmet():
                    return Stopped(Cause.RAY_BOOT, f"{', '.join(unmet)} ended before it joined", *unmet)
                time.sleep(POLL)
        return Stopped(Cause.KILLED, received.name)

    def _requeue(self, end: End) -> None:
        """Back to the queue, unless the job was cancelled, or came no further. Where it does not work, whoever
        drives the study submits the next attempt."""
        job = self.job
        if job is None or not self.allocation.job or not job.site.use_requeue:
            return
        has_progressed = checkpoint_step(self.attempt.trial.checkpoints) > self.saved_before
        if end.cause is Cause.TIMEOUT and not has_progressed:
            say("not requeued: no checkpoint was saved in this attempt")
        elif is_running(self.allocation.job):
            say("requeued" if requeue(self.allocation.job) else "scontrol could not requeue the job")

    def _look(self) -> None:
        """Whether to go on, by the clock and by the directory."""
        now = time.monotonic()
        if (gap := now - self._alive) > STOPPED_S:
            say(f"this process was stopped for {gap:.0f} s")
            self.deadline += gap
            self._heard += gap
        self._alive = now
        if now > self.deadline:
            raise Stopped(Cause.TIMEOUT, "the time limit of the job")
        if now - self._looked < LOOK:
            return
        self._looked = now
        self._watch()
        self._stop_at_rung()
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

    def _watch(self) -> None:
        """End what hangs, and keep where it stood."""
        if self.job is None:
            return
        if told := reward_error(self.attempt.path):
            raise Stopped(Cause.REWARD_ERROR, told)
        if lost := self.services.loss():
            raise Stopped(Cause.REWARD_ERROR, lost)
        with suppress(OSError):  # a file system that is away for a while
            if (said := self.attempt.last_progress()) != self._said:  # when, by a clock that need not be ours
                self._said, self._heard = said, time.monotonic()
        quiet = time.monotonic() - self._heard
        if quiet > self.job.hung_after_min * 60:
            if self.cluster:
                self.cluster.dump_stacks()
                self.cluster.poll()
            file = dump(self.attempt, self.allocation.rank)
            raise Stopped(Cause.HUNG, f"no sign of life for {quiet / 60:.0f} min; stacks are in {file.name}")

    def _stop_at_rung(self) -> None:
        """The trainer has come as far as it may for now: what it has to go on with is saved, and its step logged."""
        stop = self.job.stop_step if self.job else None
        if stop is None or checkpoint_step(self.attempt.trial.checkpoints) < stop:
            return
        rows = self.attempt.metrics()
        if self.saved_before >= stop or (rows and rows[-1][0] >= stop):
            raise Stopped(Cause.RUNG, f"at step {stop} it waits to be promoted")

    def _classify(self, code: int | None) -> End:
        if told := reward_error(self.attempt.path):
            return End(Cause.REWARD_ERROR, Phase.ROLLOUT, code, told)
        loss = self.cluster.loss() if self.cluster else None
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
        if loss and end.cause in (Cause.UNKNOWN, Cause.RAY_BOOT, Cause.NODE_FAIL, Cause.NCCL):
            cause = Cause.HOST_OOM if loss.cause is Cause.KILLED and kills > 0 else loss.cause
            where = f"{loss.node}: " if loss.node else ""
            nodes = (loss.node,) if loss.node else ()
            return replace(end, cause=cause, reason=f"{where}{loss.reason} while the trainer ran", nodes=nodes)
        return end

    def _phase(self) -> Phase:
        return Phase.UNKNOWN if self.attempt.metrics() else Phase.START

    def _exit_code(self) -> int | None:
        """As a shell says it."""
        code = self.driver.poll() if self.driver else None
        return 128 - code if code is not None and code < 0 else code

    def _children(self) -> list[subprocess.Popen[bytes]]:
        others = self.cluster.children if self.cluster else ()
        return [c for c in (self.driver, *others, *self.services.children) if c]

    def _tear_down(self) -> None:
        began = time.monotonic()
        if self.driver:
            processes.stop(self.driver, DRIVER_GRACE)
        if self.cluster:
            self.cluster.stop()
        local_dir = self.job.site.local_dir if self.job else None
        end_all(self.attempt, is_of(self.attempt, self.who.pid), 0, local_dir, self._children())
        if self.cluster:
            self.cluster.clear()
        say(f"all is gone after {time.monotonic() - began:.1f} s")


def guard(node: int, clear: Callable[[], None]) -> int:
    """Wait for the node, pass on what is meant for it, and `clear` up after it. Returns its exit code."""
    pid = 0
    while not pid:
        received = signal.sigwait(_SIGNALS)
        if received == signal.SIGCHLD:
            pid, status = os.waitpid(node, os.WNOHANG)
        else:
            os.kill(node, signal.SIGUSR2 if received == signal.SIGUSR2 else signal.SIGTERM)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        say(f"the node was ended by {signal.Signals(-code).name}; ending what is left of it")
    clear()
    return code if code >= 0 else 128 - code


def main(argv: Sequence[str] | None = None, cluster: MakeCluster = RayCluster) -> int:
    """Exit code 0: the attempt was run, or another node has it; how it ended is in its end.json.

    Under a scheduler, which goes by it: 0 only where training completed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    flags = {a for a in arguments if a.startswith("--")}
    names = [a for a in arguments if a not in flags]
    if len(names) != 1 or not Path(names[0]).is_dir() or flags - {"--detach", "--slurm"} or len(flags) > 1:
        print("usage: python -m hysweep.launch.node [--detach | --slurm] DIRECTORY", file=sys.stderr)
        return 2
    attempt = AttemptDirectory(Path(os.path.realpath(names[0])))
    # Whoever started this may have ignored signals for all its children; SIGHUP alone is ignored on purpose.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    processes.raise_file_limit()
    if "--slurm" in flags:
        return _in_allocation(attempt, cluster)
    claimed, tell = os.pipe()
    if "--detach" in flags:
        if os.fork():
            os.close(tell)
            # The launcher waits for this process: it learns that the attempt is taken, or that nothing runs.
            return 0 if os.read(claimed, 1) else 1
        os.setsid()
    os.close(claimed)
    node = _fork()
    if node:
        os.close(tell)
        return guard(node, lambda: end_all(attempt, is_of(attempt, node)))
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


def _fork() -> int:
    """Become guard (returns the node's pid) and node (returns 0)."""
    parent = os.getpid()
    processes.adopt_orphans()
    node = os.fork()
    if not node:
        processes.adopt_orphans()
        processes.die_with_parent(parent, signal.SIGTERM)
    return node


def _final_end(first: AttemptDirectory, until: AttemptDirectory) -> End | None:
    """The end of an earlier attempt of the same job, if none is to follow it. A scheduler runs a job again though it
    has ended when its node was lost before it could say so."""
    ends = [end for n in range(first.number, until.number) if (end := first.trial.attempt(n).end())]
    return ends[-1] if ends and ACTIONS[ends[-1].cause].is_last else None


def leave(attempt: AttemptDirectory, who: Claim) -> int:
    """To whoever has the attempt. Where that is an earlier run of this very job, a scheduler that was killed has
    forgotten it: it may have ended it with the rest, and counts this run as the first. Then only we can tell."""
    say(f"pid {os.getpid()} leaves {attempt.path} to who has it")
    other = attempt.claimed()
    until = time.monotonic() + 2 * SILENT
    while other and other.job == who.job and attempt.end() is None and time.monotonic() < until:
        if (age(attempt.path / "node.json") or 0.0) > SILENT:
            reason = "the scheduler has forgotten that it ran the job, and ran it once more"
            ended = max(other.created, attempt.last_progress())
            attempt.finish(End(Cause.NODE_FAIL, reason=reason, started=other.created, ended=ended))
            return 1
        time.sleep(LOOK)
    return 0


def _run_of(submitted: AttemptDirectory, allocation: Allocation) -> AttemptDirectory:
    """The attempt that this run of a job is. A scheduler that was killed counts fewer runs than there were: then it is
    the last one that began, and whoever has that is met there."""
    counted = submitted.number + allocation.restarts
    later = (a for a in submitted.trial.attempts() if a.number > counted)
    begun = [a for a in later if (claim := a.claimed()) is not None and claim.job == allocation.job]
    return begun[-1] if begun else submitted.trial.attempt(counted)


def _prepare(submitted: AttemptDirectory, attempt: AttemptDirectory, job: dict[str, Any]) -> None:
    """Runs that never came so far were attempts too. What an earlier job left of one that never began was for that job.
    By one node alone: on several, processes of one number would write to one file."""
    for run in (submitted.trial.attempt(n) for n in range(submitted.number + 1, attempt.number + 1)):
        if run.claimed() is None:
            run.prepare(job)


def _in_allocation(submitted: AttemptDirectory, cluster: MakeCluster) -> int:
    """One rank of a SLURM job."""
    try:
        allocation = Allocation.of(os.environ)
    except BadInput as e:
        say(str(e))
        return 2
    attempt = _run_of(submitted, allocation)
    written = submitted.job()
    if written is None:
        say(f"{submitted.path}/job.json is missing or cannot be read")
        return 2
    if (end := _final_end(submitted, attempt)) is not None:
        say(f"the scheduler runs the job again, but what it is for ended: {end.cause}")
        return 0 if end.cause.is_as_planned else 1
    is_first = allocation.rank == 0
    try:
        if is_first:
            _prepare(submitted, attempt, written)
        attempt.path.mkdir(parents=True, exist_ok=True)
        with open(attempt.node_log_of(allocation.rank), "ab", buffering=0) as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
    except OSError as e:
        say(f"{type(e).__name__}: {e}")
        return 2
    local_dir = Job.from_dict(written).site.local_dir
    node = _fork()
    if node:
        return guard(node, lambda: end_all(attempt, not is_first or is_of(attempt, node), allocation.rank, local_dir))
    if not is_first:
        return Follower(attempt, allocation, Job.from_dict(written)).run()
    who = replace(processes.own_claim(), job=allocation.job)
    if not attempt.claim(who):
        return leave(attempt, who)
    end = Node(attempt, who, cluster, allocation).run()
    return 0 if end.cause.is_as_planned else 1


if __name__ == "__main__":
    sys.exit(main())
