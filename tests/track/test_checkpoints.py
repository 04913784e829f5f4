from __future__ import annotations

from pathlib import Path

import pytest

from hysweep.track import checkpoint_step, set_aside, superfluous


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


def test_without_a_note_nothing_is_whole(checkpoints: Path) -> None:
    (checkpoints / "latest_checkpointed_iteration.txt").unlink()
    assert len(superfluous(checkpoints, kept=1)) == 4
