"""The tiny model and its task: the same each time, made once, never half."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hysweep.embedded import assets, build

pytestmark = pytest.mark.verl


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HYSWEEP_CACHE_DIR", str(tmp_path))
    return tmp_path / "embedded"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def visible(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.suffix != ".lock"]


def test_it_builds_the_same_bytes_each_time(quick, tmp_path, monkeypatch):
    built = []
    for root in ("one", "two"):
        monkeypatch.setenv("HYSWEEP_CACHE_DIR", str(tmp_path / root))
        built.append(contents(build.build(quick)))
    assert built[0] == built[1]
    assert set(assets.PARTS) <= built[0].keys()


def test_what_is_built_is_left_alone(quick, cache):
    said: list[str] = []
    folder = build.build(quick)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert build.build(quick, say=said.append) == folder
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert said == [f"the tiny Hy3 is built: {folder}"]


def test_a_folder_with_a_part_missing_is_built_anew(quick, cache):
    folder = build.build(quick)
    whole = contents(folder)
    shutil.rmtree(folder / "model")
    assert contents(build.build(quick)) == whole


def test_it_leaves_the_process_as_it_was(quick, cache):
    import torch

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    build.build(quick)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


QUICK = "import dataclasses; quick = dataclasses.replace(assets.RECIPE, warm_start_steps=2, train_rows=100)"


def start(code: str) -> subprocess.Popen[str]:
    code = f"from hysweep.embedded import assets, build\n{QUICK}\n{code}"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_two_at_once_make_one(cache):
    both = [start("build.build(quick)") for _ in range(2)]
    said = [p.communicate(timeout=300)[0] for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert sorted("building" in text for text in said) == [False, True]
    assert len(visible(cache)) == 1


def test_a_killed_build_leaves_no_half_folder_and_the_next_one_cleans_up(quick, cache):
    halfway = start("import time; build.warm_start = lambda *_: time.sleep(300)\nbuild.build(quick)")
    deadline = time.monotonic() + 120
    while not (cache.is_dir() and visible(cache)) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(halfway.pid, signal.SIGKILL)
    halfway.wait()
    assert [p.name[0] for p in visible(cache)] == ["."]  # its own, hidden
    folder = build.build(quick)
    assert build.is_complete(folder)
    assert visible(cache) == [folder]


def test_the_config_carries_the_names_of_transformers_and_of_the_published_model(quick, cache):
    config = json.loads((build.build(quick) / "model" / "config.json").read_text())
    assert config["architectures"] == ["HYV3ForCausalLM"]
    assert config["expert_hidden_dim"] == config["moe_intermediate_size"]
    assert config["mlp_layer_types"] == ["dense", "sparse"]
    assert config["first_k_dense_replace"] == 1
    assert config["route_norm"] is config["qk_norm"] is True


def test_as_many_logits_as_tokens_and_every_prompt_has_one_length(quick):
    tokenizer = build.make_tokenizer()
    assert build.make_model(quick, len(tokenizer)).config.vocab_size == len(tokenizer)
    assert len({len(build.encode(tokenizer, x, y, "")[0]) for x, y in build.PAIRS}) == 1


def test_the_task_has_the_columns_of_verl(quick, cache):
    import pandas

    folder = build.build(quick)
    train, val = (pandas.read_parquet(folder / name) for name in ("train.parquet", "val.parquet"))
    assert list(train.columns) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert len(train) == quick.train_rows
    assert sorted(row["ground_truth"] for row in val["reward_model"]) == sorted(f"{x}{y}" for x, y in build.PAIRS)
    for row in (*train.to_dict("records"), *val.to_dict("records")):
        assert row["prompt"][0]["content"] == f"copy {row['reward_model']['ground_truth']}="


@pytest.mark.slow
def test_the_shipped_model_is_right_now_and_then(cache):
    """There is something to learn, and enough of it to be found by trying."""
    import torch

    tokenizer = build.make_tokenizer()
    model = build.make_model(assets.RECIPE, len(tokenizer))
    with build._one_thread():
        build.warm_start(model, tokenizer, assets.RECIPE)
    rows = [build.encode(tokenizer, x, y, f"{x}{y}") for x, y in build.PAIRS]
    start, right = len(rows[0][0]), torch.tensor([answer for _, answer in rows])
    with torch.no_grad():
        logits = model.eval()(torch.tensor([prompt + answer for prompt, answer in rows])).logits[:, start - 1 : -1]
    sampled = logits.log_softmax(-1).gather(2, right[:, :, None]).sum(dim=(1, 2)).exp().mean().item()
    greedy = (logits.argmax(-1) == right).all(dim=1).float().mean().item()
    assert 0.12 < sampled < 0.35
    assert greedy < 0.75


def test_whoever_looks_at_its_data_first_has_it_built(cache, tmp_path):
    argv = [sys.executable, "-m", "hysweep", "data", "check"]
    looked = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert looked.returncode == 0, looked.stderr
    assert "it can be trained on" in looked.stdout and assets.is_built()
