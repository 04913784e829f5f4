"""Writing that a crash cannot tear, reading that forgives one that did."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

# Of a disk that is full.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Faults of a file system that pass, or that somebody mends while all waits.
PASSING = FULL | {errno.EIO, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE,
                  errno.ENOMEM}  # fmt: skip

_IS_KEPT: ContextVar[bool] = ContextVar("is_kept", default=True)
_IS_EXACT: ContextVar[bool] = ContextVar("is_exact", default=False)


@contextlib.contextmanager
def thrown_away() -> Iterator[None]:
    """Within it nothing is made to survive a power cut: what is written will not be kept, and the disk has its rest."""
    token = _IS_KEPT.set(False)
    try:
        yield
    finally:
        _IS_KEPT.reset(token)


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Within it a fault of the file system that passes is raised by whoever reads. For one who decides by what he
    reads, and can come back: a file is not empty, damaged or gone because nothing was heard of it for once."""
    token = _IS_EXACT.set(True)
    try:
        yield
    finally:
        _IS_EXACT.reset(token)


def pass_over(e: OSError, path: Path | None = None) -> None:
    """What cannot be read is as if it were not there; but see `exactly`."""
    if _IS_EXACT.get() and e.errno in PASSING:
        e.filename = e.filename or path  # only `open` says which it was
        raise e


def write_text(path: Path, text: str, mode: int = 0o644, survives_power_cut: bool = True) -> None:
    """Replace `path` as one step: readers see the old text or the new one, also after a power cut where that is asked
    for; it takes the disk some milliseconds."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if survives_power_cut and _IS_KEPT.get():
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, mode: int = 0o644, survives_power_cut: bool = True) -> None:
    write_text(path, json.dumps(value, indent=1, default=str) + "\n", mode, survives_power_cut)


def read_json(path: Path) -> Any | None:
    """The value, or None where there is none that can be read (yet)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        pass_over(e, path)
    except (ValueError, RecursionError):
        pass
    return None


def read_record(path: Path) -> dict[str, Any] | None:
    """The mapping that a file holds, or None where it holds none that can be read."""
    found = read_json(path)
    return found if isinstance(found, dict) else None


def claim(path: Path, text: str) -> bool:
    """Create `path` with `text` if nobody has: True for exactly one of any number of callers.

    The text is there at once: it is written aside and then linked to its name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write_text(temporary, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def clock_of(directory: Path) -> float:
    """What time it is by the clock that the times of the files there have: that of the file server, where there is
    one. Unix seconds."""
    probe = directory / f".now-{os.getpid()}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def age(path: Path) -> float | None:
    """Seconds since a file was last written, whatever this machine's clock says; None: it is not there."""
    try:
        written = path.stat().st_mtime
    except OSError:
        return None
    return clock_of(path.parent) - written


def append_line(path: Path, record: dict[str, Any], survives_power_cut: bool = True) -> None:
    """Add one JSON line by one write. If the last writer died in mid-line, its fragment is ended first."""
    line = (json.dumps(record, default=str) + "\n").encode()
    with open(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)
        file.flush()
        if survives_power_cut and _IS_KEPT.get():
            os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole JSON object of a JSON-lines file; torn and foreign lines are passed over."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(record, dict):
                    yield record
    except OSError as e:
        pass_over(e, path)
