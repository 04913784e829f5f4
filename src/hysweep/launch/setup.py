"""The trainer's code on a shared file system: verl, Megatron-Bridge and TransferQueue at the versions that fit.

Each is a directory named after what it is (``verl-220e903``), made aside and renamed once it is whole. So a study that
runs from one directory is never changed by the next setup beside it, and what was interrupted goes on where it stood.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hysweep.compile.pins import RELEASES, REPOSITORIES, Repository, git_pins
from hysweep.schema import BadInput, Problem, suggest
from hysweep.schema.finding import Finding
from hysweep.track.files import read_json, write_json, write_text

MANIFEST = "setup.json"
RUNTIME_ENV = "runtime_env.yaml"
_SUBMODULES = {name for r in REPOSITORIES for _, name in r.submodules}
MIRRORED = (*(r.name for r in REPOSITORIES), *sorted(_SUBMODULES))

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Part:
    """
    name      of the repository, or `site` for released packages
    ref       the tag or commit that was asked for; the packages with their versions
    source    where from
    path      the directory, below that of the setup
    on_path   what of it belongs on PYTHONPATH
    commit    that was checked out; empty for packages, and before it is there
    """

    name: str
    ref: str
    source: str
    path: str
    on_path: tuple[str, ...]
    commit: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is, or is to be, in a directory. `made`: the parts that this call brought."""

    directory: Path
    verl: str
    parts: tuple[Part, ...]
    made: tuple[str, ...] = ()
    mirrors: Mapping[str, str] = field(default_factory=dict)

    @property
    def python_path(self) -> str:
        entries = [
            os.path.normpath(self.directory / part.path / below) for part in self.parts for below in part.on_path
        ]
        return os.pathsep.join(entries)

    @property
    def overrides(self) -> list[str]:
        """What makes a trial run with it."""
        checkout = next((self.directory / p.path for p in self.parts if p.name == "verl"), None)
        verl = [f"trainer.verl={checkout}"] if checkout else [f"trainer.verl={self.verl}"]
        return [*verl, f"cluster.env.PYTHONPATH={self.python_path}"]

    def as_dict(self) -> dict[str, object]:
        return {
            "directory": str(self.directory),
            "verl": self.verl,
            "parts": [asdict(p) | {"is_new": p.name in self.made} for p in self.parts],
            "env_vars": {"PYTHONPATH": self.python_path},
            "overrides": self.overrides,
        }


def plan(directory: Path, verl: str, mirrors: Mapping[str, str], is_released: bool) -> Setup:
    """What would be in the directory. Raises BadInput."""
    if re.search(r"[\s:,]", str(directory.absolute())):
        raise BadInput(Problem("DIR", directory, "a blank, comma or colon ends an entry of PYTHONPATH", "name another"))
    there = next(p for p in (directory.absolute(), *directory.absolute().parents) if os.path.lexists(p))
    if not there.is_dir():
        what = "is" if there == directory.absolute() else f"lies below {there}, which is"
        raise BadInput(Problem("DIR", directory, f"{what} no directory", "name another"))
    for name in mirrors:
        if name not in MIRRORED:
            raise BadInput(Problem("--mirror", name, "nothing of this name is fetched", suggest(name, MIRRORED)))
    if is_released and mirrors:
        raise BadInput(Problem("--mirror", ", ".join(mirrors), "wheels have no mirror", "leave out --released"))
    if is_released:
        return Setup(directory.absolute(), verl, (_packages(verl),))
    if not re.fullmatch(r"[0-9A-Za-z][\w.+/-]*", verl) or re.search(r"\.\.|//|/$|\.lock$", verl):
        raise BadInput(Problem("--verl", verl, "is no version, tag or commit", "as 0.9.1 or 220e903"))
    parts = tuple(_part(r, ref, mirrors) for r, ref in zip(REPOSITORIES, _refs(verl), strict=True))
    return Setup(directory.absolute(), verl, parts, mirrors=mirrors)


def set_up(planned: Setup, say: Say) -> Setup:
    """Bring what is missing. Twice is once. Raises BadInput with one line of what git or pip said."""
    directory = planned.directory
    with _alone(directory):
        made, parts = [], []
        for part in planned.parts:
            target = directory / part.path
            if target.exists():
                commit = _as_it_was(part, target)
                say(f"{part.path}: is there")
            else:
                say(f"{part.path}: from {part.source}")
                began = time.monotonic()
                bring = _install if part.name == "site" else _clone
                commit = bring(part, target, planned.mirrors)
                say(f"{part.path}: there after {time.monotonic() - began:.0f} s")
                made.append(part.name)
            parts.append(Part(**asdict(part) | {"commit": commit, "on_path": part.on_path}))
        done = Setup(directory, planned.verl, tuple(parts), tuple(made), planned.mirrors)
        write_json(directory / MANIFEST, {"verl": done.verl, "parts": [asdict(p) for p in parts]})
        write_text(directory / RUNTIME_ENV, runtime_env(done))
    return done


def runtime_env(setup: Setup) -> str:
    """Of Ray, with what it is in the words of hysweep."""
    words = " ".join(["hysweep run", *(shlex.quote(o) for o in setup.overrides)])
    lines = [
        "# The code of the trainer, for all nodes; made by hysweep setup.",
        f"# In hysweep: {words}",
        "# and cluster.python, where the nodes have another Python than the machine that submits.",
        "# In Ray: ray job submit --runtime-env=THIS_FILE",
        "env_vars:",
        f"  PYTHONPATH: {json.dumps(setup.python_path)}",
    ]
    return "\n".join(lines) + "\n"


# --- what is asked for


def _refs(verl: str) -> list[str]:
    pins = git_pins(verl)
    return [pins[r.name] for r in REPOSITORIES]


def _part(repository: Repository, ref: str, mirrors: Mapping[str, str]) -> Part:
    # a version is tagged with a v before it
    ref = f"v{ref}" if re.fullmatch(r"\d+\.\d+[\w.]*", ref) else ref
    label = ref[:7] if re.fullmatch(r"[0-9a-f]{7,40}", ref) else ref.removeprefix("v").replace("/", "_")
    source = _url(mirrors.get(repository.name, repository.url))
    return Part(repository.name, ref, source, f"{repository.name}-{label}", repository.on_path)


def _url(source: str) -> str:
    """A directory by its full name: git takes shallow copies of such alone, and clones elsewhere than here."""
    return Path(source).absolute().as_uri() if "://" not in source and Path(source).is_dir() else source


def _packages(verl: str) -> Part:
    if verl not in RELEASES:
        cure = f"choose {' or '.join(RELEASES)}, or leave out --released"
        raise BadInput(Problem("--verl", verl, "is not known as a release", cure))
    ref = " ".join(f"{name}=={version}" for name, version in RELEASES[verl].items())
    return Part("site", ref, "the package index", f"site-{verl}", (".",))


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    lock = FileLock(directory / ".lock", blocking=False)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as e:
        raise BadInput(Problem("DIR", directory, "somebody else sets it up now", "wait for that")) from e
    except OSError as e:
        raise BadInput(Problem("DIR", directory, e.strerror or str(e), "name one that you can write to")) from e
    try:
        yield
    finally:
        lock.release()


# --- git


def _clone(part: Part, target: Path, mirrors: Mapping[str, str]) -> str:
    """Check out one commit without its history where the source allows that. Returns the commit."""
    repository = next(r for r in REPOSITORIES if r.name == part.name)
    draft = target.with_name(f".draft-{target.name}")
    if _config(draft, "remote.origin.url") != part.source:
        shutil.rmtree(draft, ignore_errors=True)  # of another source, or no repository yet
        _git(part, target.parent, "init", "--quiet", str(draft))
        _git(part, draft, "remote", "add", "origin", part.source)
    commit = _fetch(part, draft)
    _git(part, draft, "checkout", "--quiet", "--force", "--detach", commit)
    for path, name in repository.submodules:
        _bring_submodule(part, draft, path, name, mirrors)
    _git(part, draft, "config", "hysweep.ref", part.ref)
    _git(part, draft, "config", "hysweep.commit", commit)
    os.rename(draft, target)
    return commit


def _bring_submodule(part: Part, draft: Path, path: str, name: str, mirrors: Mapping[str, str]) -> None:
    key = f"submodule.{path}.url"
    if name in mirrors:
        _git(part, draft, "config", key, _url(mirrors[name]))
    commit = _git(part, draft, "rev-parse", f"HEAD:{path}").strip()
    source = _config(draft, key) or _git(part, draft, "config", "--file", ".gitmodules", key).strip()
    wanted = Part(name, commit[:7], source, path, ())
    words = ("submodule", "update", "--init", "--force", "--progress")
    try:
        _git(wanted, draft, *words, "--depth=1", "--", path)
    except BadInput:  # a source that gives no single commits
        _git(wanted, draft, *words, "--", path)


def _fetch(part: Part, draft: Path) -> str:
    is_commit = re.fullmatch(r"[0-9a-f]{7,40}", part.ref)
    if not is_commit or len(part.ref) == 40:
        try:
            _git(part, draft, "fetch", "--depth=1", "--progress", "origin", part.ref)
            return _git(part, draft, "rev-parse", "FETCH_HEAD^{commit}").strip()
        except BadInput:
            if not is_commit:
                raise
    # the beginning of a commit's name, or a source that gives only what has a name: its history has it
    _git(part, draft, "fetch", "--tags", "--progress", "origin", "+refs/heads/*:refs/remotes/origin/*")
    return _git(part, draft, "rev-parse", "--verify", "--quiet", f"{part.ref}^{{commit}}").strip()


def _git(part: Part, where: Path, *words: str) -> str:
    """Run git; its progress goes to the terminal, its last words into the error."""
    # what a mirror is, is the user's word; git's own settings of another repository are not meant for this one
    argv = ["git", "-C", str(where), "-c", "protocol.file.allow=always", "-c", "advice.detachedHead=false", *words]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith("GIT_SSL")}
    code, out, said = _run(argv, environment | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"})
    if code == 0:
        return out
    lines = [line.strip() for line in said if line.strip()]
    why = next((line for line in lines if line.startswith(("fatal:", "error:"))), "")
    why = why.partition(": ")[2] or (lines[-1] if lines else f"git {words[0]} ended with exit code {code}")
    if words[0] == "rev-parse":
        why = f"{part.source} has no such commit"
    cure = f"look at {part.source}, or give --mirror {part.name}=PATH"
    raise BadInput(Problem(part.name, part.ref, f"git could not fetch it: {why}", cure))


def _run(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, list[str]]:
    """Exit code, output, and the lines of its errors, which a terminal sees as they come."""
    try:
        child = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except FileNotFoundError as e:
        raise BadInput(Problem(argv[0], "not found", "it fetches the code", f"install {argv[0]}")) from e
    assert child.stdout and child.stderr
    said = b""
    is_seen = sys.stderr.isatty()
    while piece := os.read(child.stderr.fileno(), 4096):
        said = (said + piece)[-65536:]
        if is_seen:
            sys.stderr.write(piece.decode(errors="replace"))
            sys.stderr.flush()
    out = child.stdout.read().decode(errors="replace")
    return child.wait(), out, re.split(r"[\r\n]+", said.decode(errors="replace"))


def _config(repository: Path, key: str) -> str:
    if not (repository / ".git").is_dir():
        return ""
    argv = ["git", "-C", str(repository), "config", "--get", key]
    return subprocess.run(argv, capture_output=True, text=True).stdout.strip()


# --- pip


def _install(part: Part, target: Path, mirrors: Mapping[str, str]) -> str:
    """Wheels alone, without what they need: that is the environment's, where torch and CUDA are."""
    draft = target.with_name(f".draft-{target.name}")
    shutil.rmtree(draft, ignore_errors=True)  # pip keeps what it has loaded
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    argv = [*pip, "--no-deps", "--only-binary=:all:", "--target", str(draft), *part.ref.split()]
    code, _, said = _run(argv, os.environ)
    if code:
        errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
        why = (errors or [line for line in said if line.strip()] or [f"exit code {code}"])[-1]
        cure = "mend what pip says, or leave out --released"
        raise BadInput(Problem("--released", part.path.removeprefix("site-"), f"pip could not install it: {why}", cure))
    os.rename(draft, target)
    return ""


# --- looking at what is there


def _as_it_was(part: Part, target: Path) -> str:
    """The commit of a part that is there. Raises BadInput when it is not what it is called."""
    if part.name == "site":
        found = {f"{d.name}=={d.version}".lower() for d in distributions(path=[str(target)])}
        if missing := sorted(p for p in part.ref.split() if p.lower() not in found):
            raise BadInput(Problem(part.path, "changed", f"lacks {', '.join(missing)}", f"remove {target}, and again"))
        return ""
    commit, head = _config(target, "hysweep.commit"), _head(target)
    if not commit or _config(target, "hysweep.ref") != part.ref or head != commit:
        why = f"was not made of {part.ref}, or was changed by hand"
        raise BadInput(Problem(part.path, head[:7] or "no checkout", why, f"remove {target}, and again"))
    return commit


def _head(checkout: Path) -> str:
    argv = ["git", "-C", str(checkout), "rev-parse", "--verify", "--quiet", "HEAD"]
    done = subprocess.run(argv, capture_output=True, text=True)
    is_own = (checkout / ".git").exists()  # without it git answers for whatever it lies in
    return done.stdout.strip() if is_own and done.returncode == 0 else ""


def load(directory: Path) -> Setup:
    """The setup that a directory holds. Raises BadInput."""
    written: Any = read_json(directory / MANIFEST)
    try:
        parts = tuple(Part(**p | {"on_path": tuple(p["on_path"])}) for p in written["parts"])
        return Setup(directory.absolute(), written["verl"], parts)
    except (TypeError, KeyError) as e:
        cure = f"hysweep setup {directory}"
        raise BadInput(Problem("--setup", directory, f"holds no {MANIFEST} that can be read", cure)) from e


def examine(directory: Path) -> list[Finding]:
    """Whether all of a setup is there and as it was fetched. Raises BadInput where there is none."""
    setup = load(directory)
    findings = [_finding(setup, part) for part in setup.parts]
    file = directory / RUNTIME_ENV
    is_same = file.is_file() and file.read_text(encoding="utf-8") == runtime_env(setup)
    again = f"hysweep setup {directory} --verl {setup.verl}"
    return [*findings, Finding(RUNTIME_ENV, is_same, str(file) if is_same else "missing or changed", again, True)]


def _finding(setup: Setup, part: Part) -> Finding:
    target = setup.directory / part.path
    cure = f"remove {target}; hysweep setup {setup.directory} --verl {setup.verl}"
    cure += " --released" if part.name == "site" else ""
    if not target.is_dir():
        return Finding(part.path, False, "missing", cure, is_needed=True)
    wrong = _packages_that_differ(part, target) if part.name == "site" else _what_differs(part, target)
    found = "; ".join(wrong) or (f"{part.ref} ({part.commit[:7]})" if part.commit else part.ref)
    return Finding(part.path, not wrong, found, cure, is_needed=True)


def _what_differs(part: Part, target: Path) -> list[str]:
    head = _head(target)
    if head != part.commit:
        return [f"is at {head[:7] or 'no commit'}, not at {part.commit[:7]}"]
    wrong = []
    git = ["git", "-C", str(target)]
    # what Python leaves beside its sources is no change
    status = [*git, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=untracked"]
    done = subprocess.run(status, capture_output=True, text=True)
    changed = [line[3:] for line in done.stdout.splitlines()]
    repository = next(r for r in REPOSITORIES if r.name == part.name)
    for path, _ in repository.submodules:
        listed = subprocess.run([*git, "submodule", "status", path], capture_output=True, text=True)
        mark = listed.stdout[:1]
        if mark == "-":
            wrong.append(f"{path} is missing")
        elif mark == "+":
            wrong.append(f"{path} is at another commit")
    if changed:
        names = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")
        wrong.append(f"{len(changed)} changed: {names}")
    return wrong


def _packages_that_differ(part: Part, target: Path) -> list[str]:
    """Missing or other versions, and files that are gone or have another size."""
    there = {d.name.lower(): d for d in distributions(path=[str(target)])}
    wrong = []
    for wanted in part.ref.split():
        name, _, version = wanted.partition("==")
        found = there.get(name.lower())
        if found is None or found.version != version:
            wrong.append(f"{name} is {found.version if found else 'missing'}, not {version}")
            continue
        # --target puts programs elsewhere than the package says
        files = [f for f in found.files or () if ".." not in f.parts]
        sizes = [(f, Path(str(f.locate()))) for f in files]
        torn = [str(f) for f, p in sizes if not p.is_file() or (f.size is not None and p.stat().st_size != f.size)]
        if torn:
            wrong.append(f"{name}: {len(torn)} files missing or changed, as {torn[0]}")
    return wrong
