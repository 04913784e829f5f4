"""The code that a job runs, as it was at submit: copied into the study, once for each content."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import hysweep
from hysweep.schema import BadInput, Problem
from hysweep.schema.job import Job

_MOST = 256 * 2**20  # bytes; what is larger is no code
_LOOKS = 5
_SKIPPED = {".git", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", "node_modules"}


def snapshot(job: Job, study: Path, writes: bool = True) -> Job:
    """Copy hysweep itself and the directories of ``cluster.code``; returns the job that runs the copies. With
    `writes` false nothing is copied: the job is what it would be.

    Their PYTHONPATH comes first, and paths of the trial that lie within a directory lead to its copy. Raises BadInput
    where a directory is not there or is too large.
    """
    own = Path(hysweep.__file__).parent
    sources = [own, *(Path(os.path.abspath(os.path.expanduser(d))) for d in job.site.code)]
    copies = {source: _copy(source, study / "code", writes) for source in sources}
    roots = [str(copies[own].parent), *(str(copies[s]) for s in sources[1:])]
    before = [p for p in job.env.get("PYTHONPATH", "").split(os.pathsep) if p]
    moved = {str(s): str(copies[s]) for s in sources}
    overrides = tuple(_moved(o, moved) for o in job.overrides)
    path = os.pathsep.join(dict.fromkeys([*roots, *(_moved(p, moved) for p in before)]))
    return replace(job, overrides=overrides, env=job.env | {"PYTHONPATH": path})


def _moved(text: str, moved: dict[str, str]) -> str:
    for source, copy in moved.items():
        text = text.replace(source + "/", copy + "/")
    return text


def _copy(source: Path, into: Path, writes: bool) -> Path:
    """Somebody may be editing there: where a file goes meanwhile it is looked at again."""
    for left in reversed(range(_LOOKS)):
        try:
            return _copy_once(source, into, writes)
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError("unreachable")


def _copy_once(source: Path, into: Path, writes: bool) -> Path:
    """``into/<hash of the content>/<name>``, made as one step."""
    if not source.is_dir():
        raise BadInput(Problem("cluster.code", source, "there is no such directory", "name one with code"))
    files = sorted(_files(source))
    size = sum((source / f).stat().st_size for f in files)
    if size > _MOST:
        why = f"holds {size / 2**20:.0f} MiB; at most {_MOST / 2**20:.0f} are copied for a study"
        raise BadInput(Problem("cluster.code", source, why, "name a directory of code, or add data to .gitignore"))
    digest = hashlib.sha256()
    for f in files:
        digest.update(os.fsencode(f) + b"\0" + hashlib.sha256((source / f).read_bytes()).digest())
    target = into / digest.hexdigest()[:12] / source.name
    if target.is_dir() or not writes:
        return target
    draft = into / f".{digest.hexdigest()[:12]}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    for f in files:
        (draft / source.name / f).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / f, draft / source.name / f)
    try:
        os.rename(draft, target.parent)
    except OSError:
        if not target.is_dir():  # somebody else was first
            raise
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _files(source: Path) -> Iterable[str]:
    """Paths below `source`: those that Git would commit where it is a checkout, else all but caches."""
    git = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(git, capture_output=True, timeout=60)
        names = [os.fsdecode(n) for n in done.stdout.split(b"\0") if n] if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        names = []
    return [n for n in names if (source / n).is_file()] or list(_walk(source))


def _walk(source: Path) -> Iterator[str]:
    for directory, below, names in os.walk(source):
        below[:] = [d for d in below if d not in _SKIPPED]
        yield from (os.path.relpath(os.path.join(directory, n), source) for n in names)
