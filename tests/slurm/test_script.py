"""What the test cluster refuses, with one clear line; no cluster is needed for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hysweep.cli.cluster import SCRIPT

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def refused(run: Path, *words: str, prefix: tuple[str, ...] = (), **env: str) -> str:
    """The one line that it says; nothing is made."""
    existed = run.exists()
    script = SCRIPT.read_text()
    done = subprocess.run(
        [*prefix, shutil.which("bash") or "bash", "-s", "--", *words],
        input=script,
        capture_output=True,
        text=True,
        env={**os.environ, "HYSWEEP_TESTCLUSTER": str(run), **env},
    )
    assert done.returncode == 2, done
    assert run.exists() == existed
    assert not done.stdout
    [line] = done.stderr.splitlines()
    return line


def tools(place: Path, **fakes: str) -> str:
    """A PATH with what the script itself uses, and fakes of what it looks for."""
    place.mkdir()
    for tool in ("bash", "uname", "id", "cksum", "cut", "dirname", "mkdir", "rmdir", "flock", "unshare", "true"):
        if tool not in fakes:
            (place / tool).symlink_to(shutil.which(tool) or tool)
    for name, text in fakes.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    return str(place)


def test_who_is_not_root_is_told(tmp_path: Path) -> None:
    drop = ("setpriv", "--reuid=65534", "--clear-groups") if os.geteuid() == 0 else ()
    assert "needs root" in refused(tmp_path / "c", "up", prefix=drop)


@ROOT_ONLY
def test_missing_packages_are_named_with_the_cure(tmp_path: Path) -> None:
    line = refused(tmp_path / "c", "up", PATH=tools(tmp_path / "bin"))
    assert "lacks " in line and " slurm-client " in line and line.endswith("hysweep cluster install")


@ROOT_ONLY
def test_without_apt_the_packages_are_named(tmp_path: Path) -> None:
    assert "no Debian" in refused(tmp_path / "c", "install", PATH=tools(tmp_path / "bin"))


@ROOT_ONLY
def test_a_machine_without_namespaces_is_told(tmp_path: Path) -> None:
    here = ("slurmctld", "slurmd", "sbatch", "slurmdbd", "munged", "mariadbd", "mariadb", "ip")
    path = tools(
        tmp_path / "bin", unshare="echo 'unshare failed: not permitted' >&2; exit 1", **dict.fromkeys(here, "")
    )
    assert refused(tmp_path / "c", "up", PATH=path).endswith("no namespaces: unshare failed: not permitted")


@ROOT_ONLY
def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine").touch()
    assert "is not a test cluster's" in refused(tmp_path / "c", "down")
    assert (tmp_path / "c" / "mine").exists()


@ROOT_ONLY
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "many"], "up N"),
        (["status"], "ctl is not up"),
        (["exec", "true"], "ctl is not up"),
        (["on", "node1", "true"], "node1 is not up"),
        (["kill-node", "node9"], "node9 is not up"),
        (["frobnicate"], "no verb frobnicate"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in refused(tmp_path / "c", *words)


def test_the_verb_hands_words_and_directory_to_the_script(tmp_path: Path) -> None:
    """Also words that look like options."""
    code = "from hysweep.cli import main; import sys; sys.argv = ['hysweep', *sys.argv[1:]]; main()"
    shown = subprocess.run(
        [sys.executable, "-c", code, "cluster", "--run", "c", "help", "--run", "x"], capture_output=True, text=True
    )
    assert shown.returncode == 0 and "kill-node nodeK" in shown.stdout
    env = subprocess.run(
        [sys.executable, "-c", code, "cluster", "--run", "c", "env"], capture_output=True, text=True, cwd=tmp_path
    )
    assert env.returncode == 2
    assert env.stderr.startswith(f"testcluster: ctl is not up in {tmp_path}/c; start it (up, start-node), ")
