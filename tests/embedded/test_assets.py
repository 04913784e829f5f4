"""Where things are: without torch, for the rooms that only need a path."""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from hysweep.embedded import assets


def test_the_names_of_a_config_are_all_found_in_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HYSWEEP_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "embedded" / assets.content_key()
    assert assets.locate("model") == folder / "model"
    assert assets.locate("train") == folder / "train.parquet"
    assert assets.locate("val") == folder / "val.parquet"
    assert set(assets.NAMES) == {"model", "train", "val", "reward"}


def test_the_reward_is_the_file_that_is_shipped():
    assert assets.locate("reward").is_file()


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"embedded:modle.*model, train, val, reward"):
        assets.locate("modle")


def test_a_changed_recipe_is_another_folder():
    keys = {
        assets.content_key(
            dataclasses.replace(assets.RECIPE, **{field.name: _other(getattr(assets.RECIPE, field.name))})
        )
        for field in dataclasses.fields(assets.RECIPE)
    }
    assert len(keys | {assets.content_key()}) == len(dataclasses.fields(assets.RECIPE)) + 1


def _other(value):
    return value[:-1] if isinstance(value, tuple) else value + type(value)(1)


def test_a_changed_builder_is_another_folder(monkeypatch):
    before = assets.content_key()
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, **kw: read(path, **kw) + "\n")
    assert assets.content_key() != before


def test_nothing_is_built_until_every_part_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HYSWEEP_CACHE_DIR", str(tmp_path))
    for part in assets.PARTS:
        assert not assets.is_built()
        (assets.folder() / part).parent.mkdir(parents=True, exist_ok=True)
        (assets.folder() / part).touch()
    assert assets.is_built()


def test_it_imports_no_torch():
    heavy = ["torch", "transformers", "ray", "verl", "pandas", "numpy"]
    code = f"import sys, hysweep.embedded.assets; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("answer", "score"), [("47", 1.0), (" 47\n", 1.0), ("74", 0.0), ("4747", 0.0), ("4 7", 0.0), ("?", 0.0), ("", 0.0)]
)
def test_only_the_right_digits_are_rewarded(answer, score):
    # as verl loads it: by its path, with no package around it
    spec = importlib.util.spec_from_file_location("custom_module", assets.locate("reward"))
    reward = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reward)
    found = reward.compute_score("tiny_copy", answer, "47", {"index": 0}, reward_router_address=None)
    assert found == {"score": score, "acc": score}
