"""Ray for one job: `ray start --block` as a child on each node, known to be up, private, and gone without a trace."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from hysweep.launch import processes
from hysweep.launch.allocation import Allocation
from hysweep.launch.command import identity, ray_command, ray_settings
from hysweep.launch.roll import Loss, RollCall
from hysweep.schema.job import Job
from hysweep.track import FULL, AttemptDirectory, Cause

BOOTS = 3
STOP_GRACE = 1.0  # seconds; Ray drains for up to 30, with nothing left to drain
GOODBYES = 6.0  # seconds for the other nodes to end what runs there

# The kernel takes 107 bytes of a socket's path. Below its temporary directory Ray adds
# /session_2026-01-02_03-04-05_678901_1234567/sockets/plasma_store, and a little for a second store.
SOCKET_PATH = 107
RAY_ADDS = len("/session_2026-01-02_03-04-05_678901_1234567/sockets/plasma_store.1")

# Says whether something came to be in time; raises when the job is to stop.
Wait = Callable[[Callable[[], bool], float], bool]


class BootFailed(Exception):
    """`nodes`: those to blame, where some are."""

    def __init__(self, cause: Cause, reason: str, *nodes: str) -> None:
        self.cause = cause
        self.nodes = tuple(n for n in nodes if n)
        super().__init__(reason)


class Cluster(Protocol):
    """What a driver joins. Made at once, so that other nodes find this one; booted when all is ready."""

    def boot(self, environment: Mapping[str, str], wait: Wait) -> dict[str, str]:
        """Bring it up and return what the driver's environment needs on top. Raises BootFailed."""
        ...

    def poll(self) -> None:
        """Called all the time; returns at once."""
        ...

    @property
    def children(self) -> list[subprocess.Popen[bytes]]: ...

    def loss(self) -> Loss | None:
        """None while all of it is up."""
        ...

    def unmet(self) -> list[str]:
        """The nodes of which nothing was ever heard."""
        ...

    def dump_stacks(self) -> None:
        """Have the other nodes write down where their processes stand."""
        ...

    def stop(self) -> None: ...

    def clear(self) -> None:
        """Remove what it left on this machine. Nothing of it runs any more."""
        ...


class Ray:
    """`ray start` on one node: a child, its log and its short directory."""

    def __init__(self, job: Job, attempt: AttemptDirectory, rank: int = 0) -> None:
        self.job = job
        self.attempt = attempt
        self.rank = rank
        self.log = attempt.ray_log(rank)
        self.child: subprocess.Popen[bytes] | None = None
        self.temporary: Path | None = None
        self._lock: int | None = None  # says, as long as this process lives, that the directory is in use
        self._said_before = 0  # bytes of its log from earlier boots

    def start(
        self, environment: Mapping[str, str], allocation: Allocation, own: str, head: str | None, port: int | None
    ) -> None:
        """`own` is this node's address; `head` the one to join, None: be it, on `port`."""
        remove_abandoned(self.job.site.local_dir)
        self.temporary, self._lock = make_temporary(self.attempt, self.rank, self.job.site.local_dir)
        self._said_before = _size(self.log)
        command = ray_command(self.job, allocation, self.temporary, own, head, port, free_port())
        self.child = processes.spawn(command, environment, self.log, self.attempt.path)

    def address(self) -> str:
        """Where Ray is up. It writes this once its raylet is known to the cluster's control service, not before."""
        if self.temporary is None:
            return ""
        with suppress(OSError):
            return (self.temporary / "ray_current_cluster").read_text().strip()
        return ""

    def gpus(self) -> float | None:
        return gpus_offered(self.temporary)

    def why_gone(self) -> str:
        """Empty while it runs, or before it does."""
        code = self.child.poll() if self.child else None
        if code is None:
            return ""
        said = last_error(self.said())
        return f"ray start ended with exit code {code}" + (f": {said}" if said else "")

    def said(self) -> str:
        return end_of(self.log, self._said_before)

    def stop(self) -> None:
        if self.child:
            processes.stop(self.child, STOP_GRACE)

    def clear(self) -> None:
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def keep_logs(self) -> None:
        """Ray's own logs go with its directory: keep the ends of those that say why it did not come up."""
        if self.temporary is None:
            return
        with open(self.log, "a", encoding="utf-8") as kept:
            for name in ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err"):
                with suppress(OSError):
                    path = self.temporary / "session_latest" / "logs" / name
                    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]
                    kept.write("\n".join([f"--- the end of {name}", *lines, ""]))


class RayCluster:
    """The Ray of this job alone: own token, own ports, own short directories. One node listens on loopback only;
    on several the others start theirs at the same time, towards an address that the first has just chosen."""

    def __init__(self, job: Job, attempt: AttemptDirectory, allocation: Allocation) -> None:
        self.job = job
        self.allocation = allocation
        self.ray = Ray(job, attempt)
        self.roll: RollCall | None = None
        if not allocation.is_alone:
            try:
                self.roll = RollCall(attempt, allocation, job.site.network_interface, job.site.silent_after_s)
            except OSError as e:
                if e.errno in FULL:
                    raise  # of the disk that all share: no fault of this node
                raise BootFailed(Cause.RAY_BOOT, f"{allocation.name}: {e}", allocation.name) from e

    @property
    def children(self) -> list[subprocess.Popen[bytes]]:
        return [self.ray.child] if self.ray.child else []

    def poll(self) -> None:
        if self.roll:
            self.roll.poll()

    def boot(self, environment: Mapping[str, str], wait: Wait) -> dict[str, str]:
        ours = ray_settings(self.roll.token if self.roll else secrets.token_hex(32), is_alone=self.roll is None)
        own = self.roll.address if self.roll else "127.0.0.1"
        for boots_left in reversed(range(BOOTS)):
            # a port that nobody has told yet can be left to the kernel
            port = free_port() if self.roll else 0
            self.ray.start({**environment, **ours}, self.allocation, own, None, port)
            if self.roll:
                self.roll.forget_joins()
                self.roll.tell(boot=f"{own}:{port}")
            settled = wait(lambda: self._is_up() or self.loss() is not None, self.job.ray_boot_timeout_s)
            if settled and self.loss() is None:
                self._prove()
                if self.roll:
                    self.roll.everyone_met()
                return {**ours, "RAY_ADDRESS": self.ray.address()}
            self.ray.keep_logs()
            if not settled:
                raise self._too_late()
            gone = self.ray.why_gone()
            if not (gone and may_pass(self.ray.said()) and boots_left):
                loss = self.loss()
                assert loss is not None
                cause = Cause.PORT_CLASH if is_port_clash(loss.reason) else loss.cause
                cause = Cause.RAY_BOOT if gone and cause is Cause.KILLED else cause
                raise BootFailed(cause, loss.reason if gone else f"{loss.node}: {loss.reason}", loss.node)
            self.ray.stop()
            self.ray.clear()
        raise AssertionError("unreachable")

    def loss(self) -> Loss | None:
        if gone := self.ray.why_gone():
            # On the first node what looks like a lost node is Ray itself gone.
            return Loss("", gone, Cause.PORT_CLASH if is_port_clash(self.ray.said()) else Cause.KILLED)
        return self.roll.loss() if self.roll else None

    def unmet(self) -> list[str]:
        return self.roll.unmet() if self.roll else []

    def dump_stacks(self) -> None:
        if self.roll:
            self.roll.tell(stacks=True)

    def stop(self) -> None:
        if self.roll:
            self.roll.tell(end=True)
        self.ray.stop()
        if self.roll:
            self.roll.wait_for_goodbyes(GOODBYES)

    def clear(self) -> None:
        self.ray.clear()
        if self.roll:
            self.roll.close()

    def _is_up(self) -> bool:
        return bool(self.ray.address()) and not (self.roll and self.roll.missing())

    def _too_late(self) -> BootFailed:
        within = f"within {self.job.ray_boot_timeout_s} s"
        if not self.ray.address():
            return BootFailed(Cause.RAY_BOOT, f"Ray was not up {within}", self.allocation.name)
        missing = self.roll.missing() if self.roll else []
        there = [n for n in self.allocation.nodes if n not in missing]
        reason = f"{', '.join(missing)} did not join {within}; there: {', '.join(there)}"
        return BootFailed(Cause.RAY_BOOT, reason, *missing)

    def _prove(self) -> None:
        """The GPUs that every raylet offers are those that the job needs of its node.

        `ray start` has asked Ray's control service for each raylet, and a raylet offers what its command line says.
        So no Python that imports Ray needs to be asked, which would take seconds.
        """
        offers = {self.allocation.name: self.ray.gpus()}
        if self.roll:
            offers |= {m.name: m.joined for m in self.roll.members.values()}
        needed = self.job.ray_gpus if self.job.ray_gpus is not None else self.job.gpus_per_node
        short = {node: offered for node, offered in offers.items() if offered is not None and offered < needed}
        if short:
            said = ", ".join(f"{node} offers {offered:g}" for node, offered in short.items())
            raise BootFailed(Cause.RAY_BOOT, f"the job needs {needed} GPUs of each node; {said}", *short)


def gpus_offered(temporary: Path | None) -> float | None:
    """How many GPUs the raylet below this directory was started with; None where that cannot be read."""
    for p in processes.descendants():
        with suppress(OSError):
            argv = Path(f"/proc/{p.pid}/cmdline").read_text(errors="replace").split("\0")
            if f"--temp_dir={temporary}" in argv:
                for resources in (a for a in argv if a.startswith("--static_resource_list=")):
                    found = re.search(r"(?:[=,])GPU,([\d.]+)", resources)
                    return float(found[1]) if found else 0.0
    return None


def make_temporary(attempt: AttemptDirectory, rank: int = 0, local_dir: str | None = None) -> tuple[Path, int]:
    """A directory on this node, short enough for Ray's sockets; named so that whoever cleans up can find it. With the
    lock on it: a descriptor to close.

    Raises BootFailed where there is none; one that was asked for by name is not replaced by another.
    """
    refused = []
    for root in [local_dir] if local_dir else temporary_roots():
        try:
            # It has its name only once it is locked: see remove_abandoned.
            made = Path(tempfile.mkdtemp(prefix="new-hy-", dir=root))
            lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = made.with_name(_prefix(identity(attempt), rank) + made.name.removeprefix("new-hy-"))
            made.rename(path)
        except OSError as e:
            refused.append(f"{root}: {e.strerror}")
            continue
        if fits(path) and _takes_sockets(path):
            return path, lock
        refused.append(f"{path}: no place for a socket")
        os.close(lock)
        path.rmdir()
    raise BootFailed(Cause.RAY_BOOT, "no temporary directory for Ray: " + "; ".join(refused))


def remove_abandoned(local_dir: str | None = None) -> None:
    """Remove such directories of ours that nobody holds: what SIGKILL of all of an attempt on this node left."""
    for root in [local_dir] if local_dir else temporary_roots():
        for path in Path(root).glob(_ANY):
            with suppress(OSError):
                if path.stat(follow_symlinks=False).st_uid != os.getuid():
                    continue
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lock)


def temporary_roots() -> list[str]:
    return list(dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]))


def fits(path: Path) -> bool:
    return len(os.fsencode(path)) + RAY_ADDS <= SOCKET_PATH


def _takes_sockets(path: Path) -> bool:
    name = path / "s"
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(name))
        name.unlink()
    except OSError:
        return False
    return True


def remove_temporaries(directory: str, rank: int = 0, local_dir: str | None = None) -> None:
    """Remove what Ray left of the attempt in this directory. Only once nothing of it runs."""
    for path in temporaries(directory, rank, local_dir):
        with suppress(OSError):
            if path.stat(follow_symlinks=False).st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)


def temporaries(directory: str, rank: int = 0, local_dir: str | None = None) -> list[Path]:
    """The temporary directories on this node of the attempt in this directory."""
    roots = [local_dir] if local_dir else temporary_roots()
    return [path for root in roots for path in Path(root).glob(_prefix(directory, rank) + "*")]


_ANY = "hy-" + "[0-9a-f]" * 8 + "-[0-9]*-*"


def _prefix(directory: str, rank: int) -> str:
    """By the rank too: two nodes may have one such directory between them."""
    return f"hy-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:8]}-{rank}-"


def free_port() -> int:
    """A port that is free, and that nobody is given by chance until Ray takes it, some seconds later.

    So it lies above the ports of Ray's workers (up to 19999) and below those that the kernel hands out: a port
    that the kernel chose for us it may choose for a neighbour too, and two Rays that start together did clash.
    """
    with suppress(OSError, ValueError):
        first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        for port in random.sample(range(20000, first_of_kernel), k=100):
            if _is_free(port):
                return port
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        chosen: int = s.getsockname()[1]
        return chosen


def _is_free(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("", port))  # at any address: Ray and servers of rewards listen at that of a network
        except OSError:
            return False
        return True


def is_port_clash(said: str) -> bool:
    return bool(re.search(r"address already in use|EADDRINUSE|Errno 98|failed to bind to address", said, re.IGNORECASE))


def may_pass(said: str) -> bool:
    """Whether Ray may come up when it is started again. It gives a raylet 30 s, which on a busy node, with many nodes
    reading one file system, is too little; how long we wait is ours to say."""
    return is_port_clash(said) or "timed out during startup" in said


def last_error(said: str) -> str:
    """The line of what Ray said that tells most about why it ended."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?:\w+\.)*\w*(?:Error|Exception)\b", line)]
    return (errors or lines or ["it said nothing"])[-1][:500]


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def end_of(log: Path, since: int = 0) -> str:
    """At most its last 64 KiB."""
    try:
        with open(log, "rb") as file:
            file.seek(max(since, _size(log) - 65536))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
