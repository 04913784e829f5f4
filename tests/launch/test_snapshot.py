"""A job runs the code as it was at submit."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hysweep
from hysweep.launch import snapshot as room
from hysweep.launch.snapshot import snapshot
from hysweep.schema import BadInput
from hysweep.schema.groups import Cluster
from hysweep.schema.job import Job


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory of the user's own, under Git: code, data that is ignored, and a file not added yet."""
    place = tmp_path / "my code"
    place.mkdir()
    (place / "rewards.py").write_text("VALUE = 1\n")
    (place / "data.bin").write_bytes(b"x" * 1000)
    (place / ".gitignore").write_text("*.bin\n")
    subprocess.run("git init -q && git add rewards.py", shell=True, cwd=place, check=True)
    (place / "new.py").write_text("")
    return place


def job_of(code: Path) -> Job:
    return Job(
        "m",
        (f"reward.path={code}/rewards.py", f"other={code}-else/x"),
        {"PYTHONPATH": "/mine"},
        site=Cluster(name="c", code=[str(code)]),
    )


def test_the_copy_is_what_runs(code: Path, tmp_path: Path) -> None:
    job = snapshot(job_of(code), tmp_path / "study")
    (code / "rewards.py").write_text("VALUE = 2\n")
    ask = "import rewards, hysweep.launch; print(rewards.VALUE, hysweep.__file__)"
    said = subprocess.check_output([sys.executable, "-c", ask], text=True, env=os.environ | job.env, cwd=tmp_path)
    value, where = said.split(maxsplit=1)
    assert value == "1" and where.startswith(str(tmp_path / "study" / "code"))
    (override, other) = job.overrides
    copy = Path(override.removeprefix("reward.path="))
    assert copy.read_text() == "VALUE = 1\n" and other == f"other={code}-else/x"
    assert (copy.parent / "new.py").exists() and not (copy.parent / "data.bin").exists()
    assert job.env["PYTHONPATH"].endswith(":/mine")


def test_the_same_code_is_copied_once(code: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    one = snapshot(job_of(code), study)
    assert snapshot(job_of(code), study) == one
    before = sorted(p.name for p in (study / "code").iterdir())
    assert len(before) == 2, "hysweep, and the user's"
    (code / "rewards.py").write_text("VALUE = 3\n")
    assert snapshot(job_of(code), study) != one
    assert len(list((study / "code").iterdir())) == 3


def test_a_file_that_an_editor_takes_away_meanwhile(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / ".rewards.py.swp").write_text("")
    files = room._files

    def closes(source: Path) -> list[str]:
        found = list(files(source))
        (code / ".rewards.py.swp").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(room, "_files", closes)
    job = snapshot(job_of(code), tmp_path / "study")
    assert sorted(p.name for p in Path(job.overrides[0].partition("=")[2]).parent.iterdir()) == [
        ".gitignore", "new.py", "rewards.py"
    ]  # fmt: skip


def test_what_would_be_copied_is_said_without_copying(code: Path, tmp_path: Path) -> None:
    said = snapshot(job_of(code), tmp_path / "study", writes=False)
    assert not (tmp_path / "study").exists()
    assert snapshot(job_of(code), tmp_path / "study") == said


def test_hysweep_itself_is_there_whole(tmp_path: Path) -> None:
    job = snapshot(Job("m", ()), tmp_path)
    own = Path(hysweep.__file__).parent
    copy = Path(job.env["PYTHONPATH"]) / "hysweep"
    there = {str(p.relative_to(own)) for p in own.rglob("*.py") if "conf" not in p.parts}
    assert there and there <= {str(p.relative_to(copy)) for p in copy.rglob("*.py")}


def test_what_cannot_be_copied_is_one_clear_error(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="there is no such directory"):
        snapshot(replace(Job("m", ()), site=Cluster(name="c", code=["nowhere"])), tmp_path / "study")
    monkeypatch.setattr(room, "_MOST", 100)
    with pytest.raises(BadInput, match="MiB"):
        snapshot(job_of(code), tmp_path / "study")
