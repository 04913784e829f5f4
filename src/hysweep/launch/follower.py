"""The nodes after the first: each runs Ray for the driver there, and ends it when the first says so or is gone."""

from __future__ import annotations

import os
import signal
import time

from hysweep.launch import command, processes
from hysweep.launch.allocation import Allocation, address_towards
from hysweep.launch.boot import BOOTS, BootFailed, Ray, is_port_clash, may_pass
from hysweep.launch.interfaces import unfit_interface
from hysweep.launch.remains import end_all, say
from hysweep.launch.roll import Presence
from hysweep.launch.stacks import dump
from hysweep.schema.job import Job
from hysweep.track import AttemptDirectory, Cause

LOOK = 0.2  # seconds between looks
# When the scheduler ends the job, the first node says that it ends; for so long it may be waited for.
LAST_WORD = 4.0


class Follower:
    """One node of an attempt. Exit code 0: what there is to say of its end is said elsewhere."""

    def __init__(self, attempt: AttemptDirectory, allocation: Allocation, job: Job) -> None:
        self.attempt = attempt
        self.allocation = allocation
        self.job = job
        self.presence = Presence(attempt, allocation.rank, job.site.silent_after_s)
        self.ray: Ray | None = None
        self.oom_kills = processes.oom_kills()
        self.began = time.time()
        self._guard = os.getppid()
        self._deadline = float("inf")
        self._head = ""
        self._boots_left = 0
        self._said = ""  # that its Ray is up, or why it is not

    def run(self) -> int:
        say(f"pid {os.getpid()} is {self.allocation.name}, rank {self.allocation.rank} of {self.attempt.path}")
        code = self._follow()
        self._tear_down()
        self.presence.leave()
        return code

    def _follow(self) -> int:
        until = time.monotonic() + self.job.ray_boot_timeout_s
        while not self.presence.meet():
            if self._received(LOOK):
                say("ended before the first node was found")
                return 1
            if time.monotonic() > until:
                say(f"the first node was not found within {self.job.ray_boot_timeout_s} s")
                return 1
            claim = self.attempt.claimed()
            if claim is not None and claim.job != self.allocation.job:
                say(f"leaves {self.attempt.path} to job {claim.job}")
                return 0
        while True:
            self.presence.poll()
            for order in self.presence.orders:
                if "end" in order:
                    say("the first node ends the attempt")
                    return 0
                if "boot" in order:
                    self._boots_left = BOOTS
                    self._boot(order["boot"])
                if "stacks" in order:
                    dump(self.attempt, self.allocation.rank)
            self.presence.orders.clear()
            if self.presence.is_lost:
                say("the first node is gone")
                return 0
            self._tell()
            if time.monotonic() > self._deadline:
                # The scheduler tells all nodes; whoever told this one alone had its reasons.
                self._fail("this node alone was told to end", Cause.KILLED)
            if self._received(LOOK):
                if os.getppid() != self._guard:
                    self._fail("its guard was killed", Cause.KILLED)
                self._deadline = min(self._deadline, time.monotonic() + LAST_WORD)

    def _boot(self, head: str) -> None:
        self._head = head
        self._boots_left -= 1
        if self.ray:
            self.ray.stop()
            self.ray.clear()
        self._said = ""
        try:
            environment = command.on_node(self.job, self.attempt, os.environ, self.began)
            environment |= command.ray_settings(self.presence.token, is_alone=False)
            if fault := unfit_interface(self.job, environment, is_alone=False):
                self._fail(str(fault), Cause.CONFIG_ERROR)
                return
            own = address_towards(self.presence.first, self.job.site.network_interface)
            self.ray = Ray(self.job, self.attempt, self.allocation.rank)
            self.ray.start(environment, self.allocation, own, head, None)
        except (BootFailed, OSError) as e:
            self._fail(str(e), Cause.RAY_BOOT)
        else:
            say(f"Ray starts at {own}, towards {head}")

    def _tell(self) -> None:
        """Once each: that Ray is up here, that it is gone."""
        if not self.ray:
            return
        if gone := self.ray.why_gone():
            said = self.ray.said()
            if not self._said and self._boots_left and may_pass(said) and not is_port_clash(said):
                say(f"{gone}; once more")
                self._boot(self._head)
            elif self._said != "failed":
                self.ray.keep_logs()
                kills = processes.oom_kills() - self.oom_kills
                cause = Cause.HOST_OOM if kills > 0 else Cause.PORT_CLASH if is_port_clash(said) else None
                self._fail(gone, cause)
        elif not self._said and self.ray.address():
            self._said = "joined"
            gpus = self.ray.gpus()
            say(f"Ray is up after {time.time() - self.began:.1f} s")
            self.presence.say(joined=gpus if gpus is not None else self.job.gpus_per_node)

    def _fail(self, why: str, cause: Cause | None) -> None:
        """Say so, once; the first node then ends the attempt. To leave with a bad exit code instead would have srun
        end the first node before it has written down why."""
        if self._said != "failed":
            self._said = "failed"
            say(why)
            self.presence.say(failed=why, cause=cause)

    def _received(self, within: float) -> bool:
        """Sleep; whether the scheduler wants the job to end."""
        processes.reap([self.ray.child] if self.ray and self.ray.child else [])
        received = signal.sigtimedwait((signal.SIGTERM, signal.SIGINT, signal.SIGCHLD), within)
        return received is not None and received.si_signo != signal.SIGCHLD

    def _tear_down(self) -> None:
        began = time.monotonic()
        if self.ray:
            self.ray.stop()
        children = [self.ray.child] if self.ray and self.ray.child else []
        end_all(self.attempt, True, self.allocation.rank, self.job.site.local_dir, children)
        if self.ray:
            self.ray.clear()
        say(f"all is gone after {time.monotonic() - began:.1f} s")
