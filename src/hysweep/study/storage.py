"""Where Optuna keeps its index of a study: the journal in the study's directory, or a database.

The study's directory holds the facts, so that either can be lost (`hysweep rebuild`). Passwords are no part of a URL:
study.yaml is read by all who look at the study. The client library finds them where it always does.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.storages.journal._file import get_lock_file
from sqlalchemy.exc import SQLAlchemyError

from hysweep.schema import BadInput, Problem, Study
from hysweep.study.storage_url import KEY, check_storage, hidden
from hysweep.track import StudyDirectory


class Unreachable(Exception):
    """The database does not answer. The study's directory has all that was to be written there."""


class Damaged(Unreachable):
    """The journal is not what was written to it. It is an index: it can be made again."""


def open_storage(study: Study, directory: StudyDirectory) -> BaseStorage:
    """Raises BadInput when it cannot be opened. Only who holds the study's lock may call this."""
    check_storage(study)
    if study.storage is None:
        return _open_journal(directory.journal)
    url = study.storage.replace("postgresql://", "postgresql+psycopg://", 1)
    # days lie between two statements, and the server may have been started anew
    sure = {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}
    waits = {"connect_args": {"timeout": 60}}
    try:
        return RDBStorage(url, engine_kwargs=waits if url.startswith("sqlite") else sure)
    except ImportError as e:
        raise BadInput(Problem(KEY, url, f"needs a package: {e}", "pip install 'hysweep[postgres]'")) from e
    except (SQLAlchemyError, StorageInternalError) as e:
        cure = "start the server or mend the URL; the study's jobs go on meanwhile"
        raise BadInput(Problem(KEY, hidden(url), f"does not open: {_first_line(e)}", cure)) from e


def name_in_storage(study: Study, created: float) -> str:
    """A database may be that of many studies, so there the name alone would not do."""
    if study.storage is None:
        return study.name
    return f"{study.name} {hashlib.sha256(f'{created!r} {study.name}'.encode()).hexdigest()[:8]}"


@contextmanager
def reaching() -> Iterator[None]:
    """Statements to the storage. Raises Unreachable where it does not answer."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as e:
        raise Unreachable(f"the database of study.storage does not answer: {_first_line(e)}") from e


def _first_line(e: Exception) -> str:
    cause = e.__cause__ if isinstance(e, StorageInternalError) and e.__cause__ else e
    return hidden((str(cause).splitlines() or [type(e).__name__])[0])


# --- the journal


def _open_journal(path: Path) -> BaseStorage:
    for stale in path.parent.glob(f"{path.name}.lock*"):
        stale.unlink()  # of a controller that was killed: whoever holds the study's lock is alone here
    mend_journal(path)
    at = str(path.absolute())
    return JournalStorage(_Journal(at, lock_obj=JournalFileOpenLock(at)))


class _Journal(JournalFileBackend):
    """Optuna's file, without waiting for the disk after each of the four lines that a trial has in it.

    A power cut may take its last lines; the next start enters them again from the trials' directories.
    Raises Damaged when somebody else has written to it, or taken from it, since it was opened.
    """

    def __init__(self, file_path: str, lock_obj: JournalFileOpenLock) -> None:
        super().__init__(file_path, lock_obj)
        self._seen = os.path.getsize(file_path)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        self._prove()
        try:
            for entry in super().read_logs(log_number_from):
                if not isinstance(entry, dict) or "op_code" not in entry:
                    raise ValueError(f"{str(entry)[:60]!r}")
                yield entry
        except (ValueError, RecursionError) as e:
            raise Damaged(f"{self._file_path} has a line that is none of Optuna's: {e}") from e

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with get_lock_file(self._lock):
            self._prove()
            with open(self._file_path, "ab") as file:
                file.write(text.encode())

    def _prove(self) -> None:
        """Others may add to it, as Optuna's dashboard does notes; nobody takes from it."""
        size = os.path.getsize(self._file_path) if os.path.exists(self._file_path) else -1
        if size < self._seen:
            raise Damaged(
                f"{self._file_path} " + ("is gone" if size < 0 else f"was cut from {self._seen} to {size} bytes")
            )
        self._seen = size


def mend_journal(path: Path) -> None:
    """Drop what a dying writer left half-written: Optuna would glue its next line to it and then read nothing.

    Whole lines are kept, in order, up to one in their midst that is none: trials are numbered by their place, so what
    comes after a lost one would be another trial's. Nothing is lost by it: the study's directory holds the facts.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as e:
        raise BadInput(Problem(str(path), "unreadable", str(e), "give yourself the right to read it")) from e
    kept = itertools.takewhile(_is_entry, raw.split(b"\n"))
    mended = b"".join(line + b"\n" for line in kept)
    if mended != raw:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(mended)
        os.replace(draft, path)


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and "op_code" in entry
