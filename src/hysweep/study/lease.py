"""Who drives a study: a lock that the system drops when its holder dies, and a lease for where it cannot.

On one machine the lock alone decides. On a file system that several share, the lock of a machine that was cut off may
stay, or may never have been seen by the others. So its holder also signs driver.json again and again, by the file
server's clock, and whoever is elsewhere waits until that was not done for the length of the lease.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from hysweep.launch.processes import Process, boot_id, is_alive, own_claim
from hysweep.schema import BadInput, Problem
from hysweep.track import PASSING, Claim, StudyDirectory, read_record, write_json
from hysweep.track.files import age, claim, clock_of

LEASE_S = 180.0  # longer than a scheduler that does not answer holds up one step
RENEW_S = 30.0
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


class Lost(Exception):
    """Another controller took the study over: this one was away for longer than its lease. It must write no more."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What driver.json says. `age`: seconds since it was signed, by the file server's clock."""

    who: Claim
    token: str
    age: float

    @property
    def is_here(self) -> bool:
        """On this machine, so that its lock is gone when it is."""
        return bool(self.who.boot) and self.who.boot == boot_id()

    @property
    def is_over(self) -> bool:
        if self.is_here:
            return not is_alive(Process(self.who.pid, self.who.ticks))
        return self.age > LEASE_S

    def __str__(self) -> str:
        return f"process {self.who.pid} on {self.who.host}"


def holder(directory: StudyDirectory) -> Holder | None:
    """Who drives a study, or did when it was last signed; None: nobody does."""
    said = read_record(directory.driver_file) or {}
    try:
        signed = directory.driver_file.stat().st_mtime
        return Holder(Claim.from_dict(said), str(said["token"]), clock_of(directory.path) - signed)
    except (OSError, LookupError, TypeError):
        return None


class StudyLock:
    """Held from `acquire` to `release`, and only while `renew` says nothing."""

    def __init__(self, directory: StudyDirectory) -> None:
        self._directory = directory
        self._token = secrets.token_hex(8)
        self._lock = FileLock(directory.lock_file, blocking=False)
        self._renewed = 0.0

    def acquire(self, wait_s: float = 0.0) -> None:
        """Raises BadInput when somebody else drives the study, after `wait_s` seconds, or when it is not writable, and
        OSError for what passes, such as a full disk."""
        deadline = time.monotonic() + wait_s
        try:
            while not self._take():
                if time.monotonic() >= deadline:
                    raise BadInput(held_problem(self._directory))
                time.sleep(min(1.0, max(0.05, deadline - time.monotonic())))
        except OSError as e:
            if e.errno in PASSING:
                raise
            path = str(self._directory.path)
            raise BadInput(Problem(path, "unwritable", str(e), "give yourself the right to write there")) from e

    def renew(self, is_urgent: bool = False) -> None:
        """Sign again when it is time to; `is_urgent` looks now. Raises Lost."""
        if not is_urgent and time.monotonic() - self._renewed < RENEW_S:
            return
        said = read_record(self._directory.driver_file) or {}
        if said.get("token", self._token) != self._token:
            raise Lost(f"{self._directory.path} is driven by process {said.get('pid')} on {said.get('host')} now")
        if said:
            os.utime(self._directory.driver_file)
            self._renewed = time.monotonic()
        else:
            self._sign()

    def release(self) -> None:
        said = read_record(self._directory.driver_file) or {}
        if said.get("token") == self._token:
            self._directory.driver_file.unlink(missing_ok=True)
        self._lock.release()

    def _take(self) -> bool:
        """One try. What stands in the way is somebody's lock, or a lease that is not over."""
        has_lock = self._try_lock()
        before = holder(self._directory)
        if before is None or (before.is_here and has_lock is not None):
            is_free = has_lock is not False
        else:
            is_free = before.is_over and self._inherit(before, has_lock)
        if not is_free:
            self._lock.release()
            return False
        self._sign()
        if before is not None:
            self._heirs(before).unlink(missing_ok=True)
        return True

    def _try_lock(self) -> bool | None:
        """None: this file system has no locks, so the lease alone decides."""
        try:
            self._lock.acquire()
        except Timeout:
            return False
        except NotImplementedError:
            return None
        except OSError as e:
            if e.errno in _NO_LOCKS:
                return None
            raise
        return True

    def _inherit(self, before: Holder, has_lock: bool | None) -> bool:
        """Follow a holder that is gone: one of any number that try at once does."""
        heirs = self._heirs(before)
        if not claim(heirs, self._token):
            with suppress(OSError):
                if (age(heirs) or 0.0) > LEASE_S:  # that one died on the way
                    heirs.unlink()
            return False
        if has_lock is False:
            # the lock of a machine that is no more: a new file has none
            self._directory.lock_file.unlink(missing_ok=True)
            return self._try_lock() is not False
        return True

    def _heirs(self, before: Holder) -> Path:
        return self._directory.path / f".heir-of-{before.token}"

    def _sign(self) -> None:
        write_json(self._directory.driver_file, own_claim().as_dict() | {"token": self._token})
        self._renewed = time.monotonic()


def held_problem(directory: StudyDirectory) -> Problem:
    """The fault of a study that somebody else drives."""
    there = holder(directory)
    cure = f"look at it with `hysweep status {directory.path}`"
    if there is not None and there.is_here:
        cure += f", or end it, and its jobs go on: kill {there.who.pid}"
    elif there is not None:
        job = (read_record(directory.controller_file) or {}).get("job")
        end = f"scancel {job}, if that is its job, or " if job else ""
        cure = (
            f"end it, and its jobs go on: {end}kill {there.who.pid} on {there.who.host}; or wait: it signed "
            f"{there.age:.0f} s ago, and {LEASE_S:.0f} s after its last sign another may go on"
        )
    return Problem(str(directory.path), f"driven by {there or 'a process unknown'}", "a study has one controller", cure)
