from __future__ import annotations

import errno
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hysweep.track import checkpoint_step, exactly, set_aside, settle_note, superfluous


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    for step in (5, 10, 15, 20):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("15")
    return tmp_path


def names(paths: list[Path]) -> list[str]:
    return [p.name for p in paths]


def test_the_newest_whole_one_counts(checkpoints: Path, tmp_path: Path) -> None:
    assert checkpoint_step(checkpoints) == 15
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("")
    assert checkpoint_step(checkpoints) == checkpoint_step(tmp_path / "nowhere") == -1


def test_torn_ones_and_old_ones_go(checkpoints: Path) -> None:
    assert names(superfluous(checkpoints, kept=2)) == ["global_step_5", "global_step_20"]
    assert names(superfluous(checkpoints, kept=None)) == ["global_step_20"]
    assert superfluous(checkpoints / "nowhere", kept=1) == []


def test_what_is_set_aside_is_no_checkpoint_and_is_found_again(checkpoints: Path) -> None:
    aside = set_aside(superfluous(checkpoints, kept=1))
    assert sorted(p.name for p in checkpoints.glob("global_step_*")) == ["global_step_15"]
    assert sorted(superfluous(checkpoints, kept=1)) == sorted(aside), "whoever was killed while removing goes on"


@pytest.mark.parametrize("what", ["the note", "the list", "a part"])
def test_what_cannot_be_read_for_once_is_neither_torn_nor_gone(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for folder in checkpoints.glob("*/actor"):
        archive(folder / "model_world_size_1_rank_0.pt")
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    owner, act, place = {
        "the note": (Path, "read_text", checkpoints / NOTE),
        "the list": (os, "listdir", checkpoints),
        "a part": (os, "scandir", str(checkpoints / "global_step_15" / "actor")),
    }[what]
    done = getattr(owner, act)

    def strike(path: Path | str, *more: object, **named: object) -> object:
        if path == place:
            raise stale
        return done(path, *more, **named)

    with monkeypatch.context() as patch, exactly():
        patch.setattr(owner, act, strike)
        with pytest.raises(OSError, match="Stale"):
            settle_note(checkpoints)
        if what != "a part":
            with pytest.raises(OSError, match="Stale"):
                superfluous(checkpoints, kept=1)
    assert checkpoint_step(checkpoints) == 15 and len(list(checkpoints.glob("global_step_*"))) == 4


def test_without_a_note_nothing_is_whole(checkpoints: Path) -> None:
    (checkpoints / "latest_checkpointed_iteration.txt").unlink()
    assert len(superfluous(checkpoints, kept=1)) == 4


# --- what the note speaks of may be torn all the same

NOTE = "latest_checkpointed_iteration.txt"


def archive(path: Path) -> None:
    """What torch.save writes is a zip file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data/0", bytes(3000))


def tensors(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(32))


def fsdp(actor: Path) -> None:
    """verl/utils/checkpoint/fsdp_checkpoint_manager.py"""
    for rank in (0, 1):
        for kind in ("model", "optim", "extra_state"):
            archive(actor / f"{kind}_world_size_2_rank_{rank}.pt")
    tensors(actor / "huggingface" / "model.safetensors")


def dist_ckpt(folder: Path) -> None:
    archive(folder / "common.pt")
    archive(folder / "__0_0.distcp")
    (folder / ".metadata").write_bytes(b"\x80\x04x.")
    (folder / "metadata.json").write_text("{}")


def megatron(actor: Path) -> None:
    """verl/utils/checkpoint/megatron_checkpoint_manager.py, from 0.9 on"""
    for part in ("model", "optimizer", "extra"):
        dist_ckpt(actor / part / "dist_ckpt")
    tensors(actor / "model" / "huggingface" / "model-00001-of-00001.safetensors")
    (actor / "ckpt_contents.json").write_text("{}")


def megatron_before(actor: Path) -> None:
    dist_ckpt(actor / "dist_ckpt")
    tensors(actor / "huggingface" / "model.safetensors")


ENGINES = {"fsdp": fsdp, "megatron": megatron, "megatron before 0.9": megatron_before}
TORN = [
    ("fsdp", "actor/optim_world_size_2_rank_1.pt", "actor/optim_world_size_2_rank_1.pt is cut off"),
    ("fsdp", "actor/huggingface/model.safetensors", "actor/huggingface/model.safetensors is cut off"),
    ("fsdp", "data.pt", "data.pt is cut off"),
    ("megatron", "actor/model/dist_ckpt/.metadata", "actor/model/dist_ckpt/.metadata is cut off"),
    ("megatron", "actor/optimizer/dist_ckpt/common.pt", "actor/optimizer/dist_ckpt/common.pt is cut off"),
    ("megatron before 0.9", "actor/dist_ckpt/__0_0.distcp", "actor/dist_ckpt/__0_0.distcp is cut off"),
]
LOST = [
    ("fsdp", "actor/model_world_size_2_rank_1.pt", "actor/model_world_size_2 lacks rank 1"),
    ("fsdp", "actor", "nothing is in it"),
    ("megatron", "actor/extra/dist_ckpt/.metadata", "actor/extra/dist_ckpt has no .metadata"),
    ("megatron before 0.9", "actor/dist_ckpt/.metadata", "actor/dist_ckpt has no .metadata"),
]


def saved(root: Path, engine: str, *steps: int) -> Path:
    for step in steps:
        ENGINES[engine](root / f"global_step_{step}" / "actor")
        archive(root / f"global_step_{step}" / "data.pt")
    (root / NOTE).write_text(str(max(steps)))
    return root


@pytest.mark.parametrize("engine", ENGINES)
def test_a_whole_checkpoint_stays_the_newest(tmp_path: Path, engine: str) -> None:
    saved(tmp_path, engine, 5, 10)
    assert settle_note(tmp_path) == [] and checkpoint_step(tmp_path) == 10


@pytest.mark.parametrize(("engine", "name", "why"), TORN)
def test_a_torn_one_is_passed_over(tmp_path: Path, engine: str, name: str, why: str) -> None:
    path = saved(tmp_path, engine, 5, 10) / "global_step_10" / name
    path.write_bytes(path.read_bytes()[: 0 if path.name == ".metadata" or path.suffix == ".distcp" else -1])
    assert settle_note(tmp_path) == [f"global_step_10: {why}"]
    assert checkpoint_step(tmp_path) == 5
    assert names(superfluous(tmp_path, kept=None)) == ["global_step_10"]


@pytest.mark.parametrize(("engine", "name", "why"), LOST)
def test_one_that_lacks_something_is_passed_over(tmp_path: Path, engine: str, name: str, why: str) -> None:
    path = saved(tmp_path, engine, 5, 10) / "global_step_10" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert settle_note(tmp_path) == [f"global_step_10: {why}"]
    assert checkpoint_step(tmp_path) == 5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("note", [None, b"", b"1 0", b"\x80"])
def test_a_torn_note_loses_no_checkpoint(tmp_path: Path, engine: str, note: bytes | None) -> None:
    """verl would stumble over it at each start, or begin anew, and what it had saved would be removed."""
    saved(tmp_path, engine, 5, 10)
    (tmp_path / NOTE).unlink() if note is None else (tmp_path / NOTE).write_bytes(note)
    assert settle_note(tmp_path) == [] and (tmp_path / NOTE).read_text() == "10"
    (tmp_path / NOTE).unlink()
    (tmp_path / "global_step_10" / "data.pt").unlink()
    assert settle_note(tmp_path) == ["global_step_10: it has no data.pt, which comes last"]
    assert checkpoint_step(tmp_path) == 5


def test_what_megatron_still_writes_in_the_background_is_not_whole(tmp_path: Path) -> None:
    saved(tmp_path, "megatron", 5, 10)
    (tmp_path / NOTE).unlink()
    (tmp_path / "global_step_10" / "actor" / "ckpt_contents.json").unlink()
    assert settle_note(tmp_path) == ["global_step_10: actor has no ckpt_contents.json, which comes last"]
    assert checkpoint_step(tmp_path) == 5


@pytest.mark.parametrize("spoil", [lambda p: shutil.rmtree(p / "actor"), shutil.rmtree])
def test_where_none_is_whole_the_trainer_begins_anew(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(saved(tmp_path, "fsdp", 5) / "global_step_5")
    settle_note(tmp_path)
    assert not (tmp_path / NOTE).exists() and checkpoint_step(tmp_path) == -1


def test_what_never_was_finished_is_no_matter(tmp_path: Path) -> None:
    saved(tmp_path, "fsdp", 5)
    (tmp_path / "global_step_10" / "actor").mkdir(parents=True)
    assert settle_note(tmp_path) == [] and checkpoint_step(tmp_path) == 5
    assert settle_note(tmp_path / "nowhere") == []
