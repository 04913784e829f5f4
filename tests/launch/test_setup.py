"""Fetching the trainer's code: from repositories that are made here, whole or not at all, and again without harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from hysweep.compile.pins import GIT_PINS
from hysweep.launch import setup
from hysweep.launch.setup import Setup, examine, load, plan, set_up
from hysweep.schema import BadInput
from tests.cli.warm import warm

Mirrors = dict[str, str]


def git(where: Path, *words: str) -> str:
    argv = ["git", "-C", str(where), "-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"]
    return subprocess.run([*argv, *words], check=True, capture_output=True, text=True).stdout.strip()


def repository(where: Path, files: dict[str, str], tag: str = "", submodule: tuple[str, Path] | None = None) -> Path:
    """A repository of two commits; the first has the tag."""
    where.mkdir(parents=True)
    git(where, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(text)
    if submodule:
        git(where, "submodule", "--quiet", "add", str(submodule[1]), submodule[0])
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "-m", "one")
    if tag:
        git(where, "tag", tag)
    (where / "later").write_text("")
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "-m", "two")
    return where


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("mirrors")
    lm = repository(root / "Megatron-LM", {"megatron/core/__init__.py": "WHAT = 'core'\n"})
    pins = GIT_PINS["0.9.1"]
    return {
        "Megatron-LM": lm,
        "verl": repository(root / "verl", {"verl/__init__.py": "WHAT = 'verl'\n"}, pins["verl"]),
        "Megatron-Bridge": repository(
            root / "Megatron-Bridge",
            {"src/megatron/bridge/__init__.py": "WHAT = 'bridge'\n"},
            pins["Megatron-Bridge"],
            ("3rdparty/Megatron-LM", lm),
        ),
        "TransferQueue": repository(
            root / "TransferQueue", {"transfer_queue/__init__.py": "WHAT = 'queue'\n"}, pins["TransferQueue"]
        ),
    }


@pytest.fixture
def mirrors(repositories: dict[str, Path]) -> Mirrors:
    return {name: str(path) for name, path in repositories.items()}


def fetch(directory: Path, mirrors: Mirrors, verl: str = "0.9.1") -> Setup:
    return set_up(plan(directory, verl, mirrors, is_released=False), lambda _: None)


def test_all_of_it_can_be_imported(tmp_path: Path, mirrors: Mirrors, repositories: dict[str, Path]) -> None:
    done = fetch(tmp_path / "d", mirrors)
    assert done.made == ("verl", "Megatron-Bridge", "TransferQueue")
    code = "import verl, transfer_queue, megatron.bridge as b, megatron.core as c; print(verl.__file__, b.WHAT, c.WHAT)"
    path = yaml.safe_load((tmp_path / "d" / "runtime_env.yaml").read_text())["env_vars"]["PYTHONPATH"]
    said = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert said.stdout.split() == [str(tmp_path / "d/verl-0.9.1/verl/__init__.py"), "bridge", "core"], said.stderr
    for part in done.parts:
        assert part.commit == git(repositories[part.name], "rev-parse", f"{part.ref}^{{commit}}")
        assert not (tmp_path / "d" / part.path / "later").exists(), "the tag, not what came after it"
    assert git(tmp_path / "d/verl-0.9.1", "rev-list", "--count", "HEAD") == "1", "without its history"
    assert {p.name for p in (tmp_path / "d").iterdir() if not p.name.startswith(".")} == {
        *(p.path for p in done.parts),
        "setup.json",
        "runtime_env.yaml",
    }
    assert all(f.is_good for f in examine(tmp_path / "d"))
    assert load(tmp_path / "d").as_dict()["env_vars"] == done.as_dict()["env_vars"]


def test_again_changes_nothing(tmp_path: Path, mirrors: Mirrors) -> None:
    fetch(tmp_path, mirrors)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/*") if p.name != ".git"}
    # what is there needs no source
    again = fetch(tmp_path, dict.fromkeys(mirrors, "file:///nowhere"))
    assert again.made == ()
    assert {p: p.stat().st_mtime_ns for p in before} == before


@pytest.mark.parametrize("length", [7, 40])
def test_a_commit(tmp_path: Path, mirrors: Mirrors, repositories: dict[str, Path], length: int) -> None:
    commit = git(repositories["verl"], "rev-parse", "HEAD")
    done = fetch(tmp_path, mirrors, commit[:length])
    assert done.parts[0].path == f"verl-{commit[:7]}"
    assert (tmp_path / done.parts[0].path / "later").exists()
    assert done.overrides[0] == f"trainer.verl={tmp_path}/verl-{commit[:7]}"


def test_what_was_cut_short_goes_on(tmp_path: Path, mirrors: Mirrors) -> None:
    with pytest.raises(BadInput) as e:
        fetch(tmp_path, mirrors | {"Megatron-LM": "file:///nowhere"})
    assert str(e.value).startswith("Megatron-LM = ")
    assert ": git could not fetch it: '/nowhere' does not appear to be a git repository" in str(e.value)
    assert str(e.value).endswith("look at file:///nowhere, or give --mirror Megatron-LM=PATH")
    assert "\n" not in str(e.value)
    assert not list(tmp_path.glob("Megatron-Bridge*"))
    fetched = (tmp_path / ".draft-Megatron-Bridge-0.6.2" / "src").stat().st_ino
    shutil.copytree(tmp_path / ".draft-Megatron-Bridge-0.6.2", tmp_path / ".draft-TransferQueue-0.1.11")
    done = fetch(tmp_path, mirrors)
    assert done.made == ("Megatron-Bridge", "TransferQueue")
    assert (tmp_path / "Megatron-Bridge-0.6.2" / "src").stat().st_ino == fetched
    assert not (tmp_path / "TransferQueue-0.1.11" / "src").exists(), "a draft of another source is none"
    assert all(f.is_good for f in examine(tmp_path))


def test_two_versions_lie_beside_each_other(tmp_path: Path, mirrors: Mirrors, repositories: dict[str, Path]) -> None:
    fetch(tmp_path, mirrors)
    second = fetch(tmp_path, mirrors, git(repositories["verl"], "rev-parse", "HEAD"))
    assert second.made == ("verl",)
    assert (tmp_path / "verl-0.9.1" / "verl").is_dir(), "a study that runs from it goes on"
    assert "verl-0.9.1" not in (tmp_path / "runtime_env.yaml").read_text()


@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        (lambda d: (d / "verl-0.9.1/verl/__init__.py").write_text("x"), "verl-0.9.1", "1 changed: verl/__init__.py"),
        (lambda d: git(d / "verl-0.9.1", "commit", "--allow-empty", "-m", "x"), "verl-0.9.1", "is at "),
        (lambda d: shutil.rmtree(d / "verl-0.9.1/.git"), "verl-0.9.1", "is at no commit"),
        (lambda d: shutil.rmtree(d / "TransferQueue-0.1.11"), "TransferQueue-0.1.11", "missing"),
        (
            lambda d: git(d / "Megatron-Bridge-0.6.2", "submodule", "deinit", "--all", "--force"),
            "Megatron-Bridge-0.6.2",
            "3rdparty/Megatron-LM is missing",
        ),
        (
            lambda d: (d / "Megatron-Bridge-0.6.2/3rdparty/Megatron-LM/megatron/core/__init__.py").write_text(""),
            "Megatron-Bridge-0.6.2",
            "1 changed: 3rdparty/Megatron-LM",
        ),
        (lambda d: (d / "runtime_env.yaml").write_text(""), "runtime_env.yaml", "missing or changed"),
    ],
)
def test_the_doctor_sees_what_is_not_as_it_was(
    tmp_path: Path, mirrors: Mirrors, change: Callable[[Path], object], name: str, says: str
) -> None:
    fetch(tmp_path, mirrors)
    change(tmp_path)
    (bad,) = [f for f in examine(tmp_path) if not f.is_good]
    assert (bad.name, bad.is_needed) == (name, True)
    assert says in bad.found
    assert "hysweep setup" in bad.cure


def test_what_was_changed_by_hand_is_not_taken(tmp_path: Path, mirrors: Mirrors) -> None:
    fetch(tmp_path, mirrors)
    git(tmp_path / "verl-0.9.1", "commit", "--allow-empty", "-m", "x")
    with pytest.raises(BadInput, match="was changed by hand; remove "):
        fetch(tmp_path, mirrors)


def test_one_at_a_time(tmp_path: Path, mirrors: Mirrors) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(BadInput, match="somebody else sets it up"):
        fetch(tmp_path, mirrors)


# --- wheels


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that pip takes all from."""
    where = tmp_path / "wheels"
    where.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(where))
    monkeypatch.setitem(setup.RELEASES, "0.9.1", {"verl": "0.9.1", "TransferQueue": "0.1.11"})
    for name, version in setup.RELEASES["0.9.1"].items():
        about = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(where / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            text = f"WHAT = '{name}'\n"
            wheel.writestr(f"{name.lower()}/__init__.py", text)
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", f"{name.lower()}/__init__.py,,{len(text)}\n{about}/METADATA,,\n")
    return where


def test_released_packages(tmp_path: Path, index: Path) -> None:
    def bring() -> Setup:
        return set_up(plan(tmp_path / "d", "0.9.1", {}, is_released=True), lambda _: None)

    wheel = next(index.glob("TransferQueue*"))
    wheel.rename(tmp_path / "aside.whl")
    with pytest.raises(BadInput, match=r"--released = 0.9.1: pip could not install it: No matching distribution"):
        bring()
    assert not (tmp_path / "d" / "site-0.9.1").exists()
    (tmp_path / "aside.whl").rename(wheel)
    assert bring().made == ("site",)
    assert bring().made == ()
    assert bring().overrides == ["trainer.verl=0.9.1", f"cluster.env.PYTHONPATH={tmp_path}/d/site-0.9.1"]
    assert all(f.is_good for f in examine(tmp_path / "d"))
    (tmp_path / "d/site-0.9.1/verl/__init__.py").write_text("other\n")
    (found,) = [f.found for f in examine(tmp_path / "d") if not f.is_good]
    assert found == "verl: 1 files missing or changed, as verl/__init__.py"
    shutil.rmtree(tmp_path / "d/site-0.9.1/transferqueue")
    shutil.rmtree(next((tmp_path / "d/site-0.9.1").glob("TransferQueue*")))
    with pytest.raises(BadInput, match=r"lacks TransferQueue==0.1.11"):
        bring()


# --- the verb


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["setup", "d", "--mirror", "vel=."], "--mirror = vel: nothing of this name is fetched; did you mean verl?"),
        (["setup", "d", "--mirror", "verl"], "as verl=/mirrors/verl.git"),
        (["setup", "d", "--mirror", "verl=nowhere"], "there is no such directory"),
        (["setup", "d", "--verl=-x"], "--verl = -x: is no version, tag or commit"),
        (["setup", "d", "--verl=220e903", "--released"], "is not known as a release"),
        (["setup", "a:b"], "DIR = a:b"),
        (["setup", "file"], "DIR = file: is no directory"),
        (["setup", "file/x", "--dry-run"], "DIR = file/x: lies below "),
        *(([*words, ""], "DIR = '': is empty; name one") for words in (["setup"], ["setup", "--dry-run"])),
        (["setup", "  "], "DIR = '  ': is empty"),
        (["setup", "d", "--mirror", "verl=.", "--mirror", "verl=.."], "--mirror = verl=..: verl has another, .; give"),
        (["setup", "d", "--mirror", "verl=.", "--released"], "--mirror = verl: wheels have no mirror"),
        *((["setup", "d", f"--verl={verl}"], f"--verl = {verl or repr('')}: is no version") for verl in ("", "a/../b")),
        (["doctor", "--setup", "d"], "holds no setup.json that can be read; hysweep setup d"),
        (["doctor", "cluster=slurm"], "--cluster"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, words: list[str], says: str) -> None:
    (tmp_path / "file").write_text("")
    said = warm(words, {})
    assert (said.returncode, said.stdout) == (2, "")
    assert says in said.stderr
    assert len(list(tmp_path.iterdir())) == 1


def test_the_verb(tmp_path: Path, mirrors: Mirrors) -> None:
    given = [word for name, path in mirrors.items() for word in ("--mirror", f"{name}={path}")]
    dry = warm(["setup", "d", "--dry-run", "--verl", "220e903"], {})
    assert (dry.returncode, "github.com/verl-project" in dry.stdout, os.listdir(tmp_path)) == (0, True, [])
    said = warm(["setup", "d", *given], {})
    assert said.returncode == 0, said.stderr
    assert f"cluster.env.PYTHONPATH={tmp_path}/d/verl-0.9.1:" in said.stdout
    again = json.loads(warm(["setup", "d", *given, "--json"], {}).stdout)
    assert [p["is_new"] for p in again["parts"]] == [False] * 3
    shown = warm(["show", "--json", *again["overrides"], "trainer.verl=0.9.1"], {})
    assert json.loads(shown.stdout)["cluster"]["env"]["PYTHONPATH"] == again["env_vars"]["PYTHONPATH"]
    looked = warm(["doctor", "--setup", "d", "--json"], {})
    assert (looked.returncode, {f["is_good"] for f in json.loads(looked.stdout)}) == (0, {True})
    shutil.rmtree(tmp_path / "d/verl-0.9.1")
    looked = warm(["doctor", "--setup", "d"], {})
    assert (looked.returncode, "1 to mend" in looked.stdout) == (1, True)
