"""Processes by identity: who is alive, who belongs to an attempt, and how all of them end.

Linux only, and straight from /proc: marks in the environment, start times in clock ticks and the links
of parents are what stays true when the clock is set, a parent dies or a pid is used again.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hysweep.track import Claim

# All that an attempt starts carries its directory under this name, so that whatever is left of it can be found.
MARK = "HYSWEEP_ATTEMPT"

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILLING = 10.0  # seconds; what SIGKILL has not ended by then hangs in the kernel


class Process(NamedTuple):
    """A process by its start time: a pid alone may be somebody else's by now."""

    pid: int
    ticks: int  # start time in clock ticks after boot, which no setting of the clock moves


class _Stat(NamedTuple):
    is_dead: bool
    parent: int
    ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in parentheses and may hold anything, so the fields are counted from its end.
    fields = text.rpartition(")")[2].split()
    return _Stat(is_dead=fields[0] in "ZXx", parent=int(fields[1]), ticks=int(fields[19]))


def process(pid: int) -> Process | None:
    """The living process of this pid; a zombie is none."""
    stat = _stat(pid)
    return None if stat is None or stat.is_dead else Process(pid, stat.ticks)


def is_alive(p: Process) -> bool:
    return process(p.pid) == p


def send(p: Process, number: int) -> bool:
    """Signal exactly this process; False when it is gone."""
    try:
        handle = os.pidfd_open(p.pid)
    except OSError:
        return False
    try:
        # The handle is of whoever has the pid now, and stays so: check after it was taken.
        if not is_alive(p):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def own_claim() -> Claim:
    """This process, as the one who runs an attempt."""
    pid = os.getpid()
    stat = _stat(pid)
    return Claim(
        host=socket.gethostname(),
        pid=pid,
        created=time.time(),
        boot=boot_id(),
        ticks=stat.ticks if stat else 0,
    )


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def marked(directories: Iterable[str]) -> dict[str, list[Process]]:
    """The living processes that carry the mark of each of these attempts, found in one pass."""
    found: dict[str, list[Process]] = {directory: [] for directory in directories}
    if not found:
        return found
    prefix = MARK.encode() + b"="
    own = os.getpid()
    for pid in _pids():
        p = process(pid)
        if p is None or pid == own:
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read().split(b"\0")
        except OSError:
            continue
        for entry in environment:
            if entry.startswith(prefix):
                directory = os.fsdecode(entry[len(prefix) :])
                if directory in found:
                    found[directory].append(p)
                break
    return found


def descendants() -> list[Process]:
    """The living processes below this one."""
    children: dict[int, list[Process]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat:
            children.setdefault(stat.parent, []).append(Process(pid, stat.ticks))
    found: list[Process] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [p.pid for p in below]
    return [p for p in found if is_alive(p)]


def kill_all(
    find: Callable[[], Iterable[Process]],
    keep: Iterable[subprocess.Popen[bytes]] = (),
    within: float = _KILLING,
) -> list[Process]:
    """SIGKILL whatever `find` finds until it finds nothing; returns what would not die in time."""
    deadline = time.monotonic() + within
    while True:
        left = list(dict.fromkeys(find()))
        if not left or time.monotonic() > deadline:
            return left
        for p in left:
            send(p, signal.SIGKILL)
        reap(keep)
        time.sleep(0.02)


def reap(keep: Iterable[subprocess.Popen[bytes]] = ()) -> None:
    """Take leave of dead children that were adopted from others; those in `keep` report for themselves."""
    kept = {child.pid: child for child in keep}
    while True:
        try:
            # Look before taking: a status taken from under a Popen would read as success there.
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if seen is None:
            return
        if seen.si_pid in kept:
            kept[seen.si_pid].poll()
        else:
            with suppress(ChildProcessError):
                os.waitpid(seen.si_pid, os.WNOHANG)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, daemons among them, instead of pid 1."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int, number: int) -> None:
    """Have the kernel send this process `number` when its parent (the thread that forked it) ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was told
        os.kill(os.getpid(), number)


def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own that SIGKILL of this process takes along."""
    parent = os.getpid()

    def in_child() -> None:
        die_with_parent(parent, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # Some schedulers signal every process of a job, and what this one says to the node ends any other.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    with open(log, "ab") as output:
        return subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=in_child,
        )


def stop(child: subprocess.Popen[bytes], grace: float) -> None:
    """SIGTERM, and SIGKILL after `grace` seconds."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace)
    if child.poll() is None:
        child.kill()
        child.wait()


def raise_file_limit() -> None:
    """To the most that this process may have: a node with many workers opens thousands of files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def oom_kills() -> int:
    """How many processes the kernel has killed on this machine for want of memory; -1 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return -1
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), -1)
