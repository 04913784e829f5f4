"""Ray for one job: `ray start --block` as a child, known to be up, private, and gone without a trace."""

from __future__ import annotations

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

from hysweep.compile.job import Job
from hysweep.launch import processes
from hysweep.launch.command import identity, ray_command, ray_settings
from hysweep.track import AttemptDirectory, Cause

BOOTS = 3
STOP_GRACE = 4.0  # seconds; Ray drains for up to 30, with nothing left to drain

# The kernel takes 107 bytes of a socket's path. Below its temporary directory Ray adds
# /session_2026-01-02_03-04-05_678901_1234567/sockets/plasma_store, and a little for a second store.
SOCKET_PATH = 107
RAY_ADDS = len("/session_2026-01-02_03-04-05_678901_1234567/sockets/plasma_store.1")

# Says whether something came to be in time; raises when the job is to stop.
Wait = Callable[[Callable[[], bool], float], bool]


class BootFailed(Exception):
    def __init__(self, cause: Cause, reason: str) -> None:
        self.cause = cause
        super().__init__(reason)


class Cluster(Protocol):
    """What a driver joins."""

    def boot(self, environment: Mapping[str, str], wait: Wait) -> dict[str, str]:
        """Bring it up and return what the driver's environment needs on top. Raises BootFailed."""
        ...

    @property
    def children(self) -> list[subprocess.Popen[bytes]]: ...

    def why_gone(self) -> str:
        """Empty while it is up."""
        ...

    def stop(self) -> None: ...

    def clear(self) -> None:
        """Remove what it left on this machine. Nothing of it runs any more."""
        ...


class RayHead:
    """A one-node Ray cluster of this job alone: own token, own ports, own short directory, loopback only."""

    def __init__(self, job: Job, attempt: AttemptDirectory) -> None:
        self.job = job
        self.attempt = attempt
        self.head: subprocess.Popen[bytes] | None = None
        self.temporary: Path | None = None
        self._said_before = 0  # bytes of its log from earlier boots

    @property
    def children(self) -> list[subprocess.Popen[bytes]]:
        return [self.head] if self.head else []

    def boot(self, environment: Mapping[str, str], wait: Wait) -> dict[str, str]:
        ours = ray_settings(secrets.token_hex(32))
        for boots_left in reversed(range(BOOTS)):
            self.temporary = make_temporary(self.attempt)
            self._said_before = _size(self.attempt.ray_log(0))
            command = ray_command(self.job, self.temporary, free_port())
            self.head = processes.spawn(command, {**environment, **ours}, self.attempt.ray_log(0), self.attempt.path)
            up = wait(lambda: bool(self.address() or self.why_gone()), self.job.ray_boot_timeout_s)
            if not up:
                self._keep_logs()
                raise BootFailed(Cause.RAY_BOOT, f"Ray was not up within {self.job.ray_boot_timeout_s} s")
            if not self.why_gone():
                self._prove()
                return {**ours, "RAY_ADDRESS": self.address()}
            self._keep_logs()
            clashed = is_port_clash(_end_of(self.attempt.ray_log(0), self._said_before))
            if not (clashed and boots_left):
                raise BootFailed(Cause.PORT_CLASH if clashed else Cause.RAY_BOOT, self.why_gone())
            self.stop()
            self.clear()
        raise AssertionError("unreachable")

    def address(self) -> str:
        """Where Ray is up. It writes this once its raylet is known to its own control service, not before."""
        if self.temporary is None:
            return ""
        with suppress(OSError):
            return (self.temporary / "ray_current_cluster").read_text().strip()
        return ""

    def why_gone(self) -> str:
        code = self.head.poll() if self.head else None
        if code is None:
            return ""
        said = last_error(_end_of(self.attempt.ray_log(0), self._said_before))
        return f"ray start ended with exit code {code}" + (f": {said}" if said else "")

    def stop(self) -> None:
        if self.head:
            processes.stop(self.head, STOP_GRACE)

    def clear(self) -> None:
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def _prove(self) -> None:
        """The GPUs that the raylet offers are those that the job needs.

        The head has just asked Ray's control service for this raylet, and a raylet offers what its command
        line says. So this one node needs no Python that imports Ray to be asked, which would take seconds.
        """
        offered = gpus_offered(self.temporary)
        needed = self.job.ray_gpus if self.job.ray_gpus is not None else self.job.gpus_per_node
        if offered is not None and offered < needed:
            raise BootFailed(Cause.RAY_BOOT, f"Ray offers {offered:g} GPUs, the job needs {needed}")

    def _keep_logs(self) -> None:
        """Ray's own logs go with its directory: keep the ends of those that say why it did not come up."""
        if self.temporary is None:
            return
        with open(self.attempt.ray_log(0), "a", encoding="utf-8") as kept:
            for name in ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err"):
                with suppress(OSError):
                    path = self.temporary / "session_latest" / "logs" / name
                    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]
                    kept.write("\n".join([f"--- the end of {name}", *lines, ""]))


def gpus_offered(temporary: Path | None) -> float | None:
    """How many GPUs the raylet below this directory was started with; None where that cannot be read."""
    for p in processes.descendants():
        with suppress(OSError):
            argv = Path(f"/proc/{p.pid}/cmdline").read_text(errors="replace").split("\0")
            if f"--temp_dir={temporary}" in argv:
                resources = next(a for a in argv if a.startswith("--static_resource_list="))
                found = re.search(r"(?:[=,])GPU,([\d.]+)", resources)
                return float(found[1]) if found else 0.0
    return None


def make_temporary(attempt: AttemptDirectory) -> Path:
    """A directory on this node, short enough for Ray's sockets; named so that whoever cleans up can find it."""
    refused = []
    for root in temporary_roots():
        try:
            path = Path(tempfile.mkdtemp(prefix=_prefix(identity(attempt)), dir=root))
        except OSError as e:
            refused.append(f"{root}: {e.strerror}")
            continue
        if fits(path) and _takes_sockets(path):
            return path
        refused.append(f"{path}: no place for a socket")
        path.rmdir()
    raise BootFailed(Cause.RAY_BOOT, "no temporary directory for Ray: " + "; ".join(refused))


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


def remove_temporaries(directory: str) -> None:
    """Remove what Ray left of the attempt in this directory. Only once nothing of it runs."""
    for path in temporaries(directory):
        with suppress(OSError):
            if path.stat(follow_symlinks=False).st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)


def temporaries(directory: str) -> list[Path]:
    """The temporary directories on this node of the attempt in this directory."""
    return [path for root in temporary_roots() for path in Path(root).glob(_prefix(directory) + "*")]


def _prefix(directory: str) -> str:
    return f"hs-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:8]}-"


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
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def is_port_clash(said: str) -> bool:
    return bool(re.search(r"address already in use|EADDRINUSE|Errno 98|failed to bind to address", said, re.IGNORECASE))


def last_error(said: str) -> str:
    """The line of what Ray said that tells most about why it ended."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?:\w+\.)*\w*(?:Error|Exception)\b", line)]
    return (errors or lines or ["it said nothing"])[-1][:500]


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _end_of(log: Path, since: int) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(since, _size(log) - 65536))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
