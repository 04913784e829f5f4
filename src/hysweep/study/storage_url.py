"""The URL of study.storage: whether it can be used, and how it may be shown. Opens nothing and imports no client."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from hysweep.schema import BadInput, Problem, Study

KEY = "study.storage"
# Whose locks SQLite cannot rely on (https://sqlite.org/faq.html#q5); Optuna's users have had files torn on them.
NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "gluster", "panfs", "wekafs", "afs", "9p",
           "orangefs", "fuse.sshfs", "fuse.gluster", "fuse.ceph")  # fmt: skip


def check_storage(study: Study) -> None:
    """Raises BadInput for a URL that holds a password, or of what cannot be used. Reaches for nothing."""
    url = study.storage
    if url is None:
        return
    cure = "give sqlite:////DIRECTORY/FILE.db or postgresql+psycopg://USER@HOST/DATABASE, or leave it out"
    try:
        parts = urlsplit(url)
        secret = parts.password or {"password", "sslpassword"} & set(parse_qs(parts.query))
    except ValueError as e:
        raise BadInput(Problem(KEY, hidden(url), f"is no URL: {e}", cure)) from e
    if secret:
        private = "leave it out; PGPASSWORD or ~/.pgpass says it, and only to you"
        raise BadInput(Problem(KEY, hidden(url), "holds a password, and study.yaml is read by others", private))
    if parts.scheme not in ("sqlite", "postgresql", "postgresql+psycopg") or (
        parts.scheme == "sqlite" and not re.fullmatch(r"sqlite:///.+", url)
    ):
        raise BadInput(Problem(KEY, hidden(url), "is no URL that can be used", cure))
    if parts.scheme == "sqlite" and not study.force_sqlite and (kind := network_file_system(_file(url))):
        cure = "leave study.storage out, or study.force_sqlite=true if you know better"
        raise BadInput(Problem(KEY, url, f"SQLite on {kind} gets torn", cure))


def hidden(url: str) -> str:
    """A URL as it may be shown: with no password, however it is written."""
    shown = re.sub(r"(://[^/?#]*?):[^/?#]*@", r"\1:***@", url)
    return re.sub(r"(?i)(password=)[^&#]*", r"\1***", shown)


def network_file_system(path: Path, mounts: str | None = None) -> str | None:
    """The kind of the file system under `path` if other machines share it; None: it is this machine's alone."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return None
    target = os.path.realpath(path)
    kinds = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after and len(fields := before.split()) > 4:
            kinds[fields[4].encode().decode("unicode_escape")] = after.split()[0]
    within = [at for at in kinds if target == at or target.startswith(at.rstrip("/") + "/")]
    kind = kinds[max(within, key=len)] if within else ""
    return kind if kind.startswith(NETWORK) else None


def _file(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///").partition("?")[0])
