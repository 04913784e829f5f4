"""Each known set, from a copy of the shape that the hub publishes, becomes rows that verl's rewards score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hysweep.data.check import Wants, look
from hysweep.data.sets import SETS, prepare
from hysweep.rewards.routes import scored_by_verl
from hysweep.schema import BadInput

pytest.importorskip("datasets")

CHAT = [{"content": "P", "role": "user"}]
IMAGE = {"bytes": b"\x89PNG", "path": "a.png"}


def of_dapo(index: str, question: str = "What is 1+1?") -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"Solve it step by step.\n\n{question}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


# The columns of each set as its hub has them, and the file that each split is in.
SHAPES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "dapo_math_17k": {"train": [of_dapo("a"), of_dapo("b", "3*3?"), of_dapo("c"), of_dapo("d", "3*3?")]},
    "aime_2024": {"train": [of_dapo(str(i)) for i in range(32)]},
    "gsm8k": {
        split: [{"question": "How many eggs?", "answer": "16-3=<<16-3=13>>13\n#### 1,013"}]
        for split in ("train", "test")
    },
    "math": {
        split: [{"problem": "Find $x$.", "level": "Level 5", "type": "Algebra",
                 "solution": "So $\\boxed{\\frac{1}{2}}$."}]
        for split in ("train", "test")
    },
    "math500": {"test": [{"problem": "Find $x$.", "solution": "So $\\boxed{2}$.", "answer": "2", "subject": "Algebra",
                          "level": 2, "unique_id": "test/algebra/1.json"}]},
    "numina": {
        "train": [
            {"source": "olympiads", "problem": "P", "solution": "\\boxed{4}", "messages": CHAT},
            {"source": "orca_math", "problem": "P", "solution": "\\boxed{4}", "messages": CHAT},
            {"source": "cn_k12", "problem": "P", "solution": "no box", "messages": CHAT},
        ],
        "test": [{"source": "math", "problem": "P", "solution": "\\boxed{4}", "messages": CHAT}],
    },
    "geo3k": {
        split: [{"images": [IMAGE], "problem": "<image>Find x.", "answer": "4"}]
        for split in ("train", "validation", "test")
    },
    "hellaswag": {
        split: [{"ind": 4, "activity_label": "Roof", "ctx_a": "A man sits.", "ctx_b": "he", "ctx": "A man sits. he",
                 "endings": ["is [title] up.", "falls."], "source_id": "s", "split": split, "split_type": "t",
                 "label": label}]
        for split, label in (("train", "1"), ("validation", "0"), ("test", ""))  # as published: without labels
    },
    "codecontests": {
        split: [{"name": "1_A", "description": "Add two numbers.",
                 "public_tests": {"input": ["1 2"], "output": ["3"]},
                 "private_tests": {"input": [], "output": []},
                 "generated_tests": {"input": ["2 2"], "output": ["4"]}}]
        for split in ("train", "valid", "test")
    },
    "eurus2": {
        split: [{"data_source": "numina_olympiads",
                 "prompt": [{"content": "Think.", "role": "system"}, {"content": "P", "role": "user"}],
                 "ability": "math", "reward_model": {"ground_truth": "4", "style": "rule"},
                 "extra_info": {"index": 0, "split": "dummy"}}]
        for split in ("train", "validation")
    },
    "full_hh_rlhf": {
        split: [{"prompt": "Human: hi", "response": "hello", "chosen": "hello", "rejected": "go"}]
        for split in ("train", "test")
    },
    "search_r1": {
        split: [{"id": "t_0", "question": "Who?", "golden_answers": ["Ann"], "data_source": "nq", "prompt": [],
                 "ability": "fact-reasoning", "reward_model": {"ground_truth": {"target": ["Ann"]}, "style": "rule"},
                 "extra_info": {"index": 0, "split": split}, "metadata": None}]
        for split in ("train", "test")
    },
    "openr1mm": {"train": [{"image": IMAGE, "problem": "Find x.", "solution": "<answer>4</answer>",
                            "original_question": "q", "original_answer": "4"}]},
}  # fmt: skip


def copy_of(name: str, folder: Path) -> Path:
    """A directory of the hub's shape: parquet shards below data/, or as the configuration says in README.md."""
    copy = folder / SETS[name].hub
    config = SETS[name].config if name == "gsm8k" else None
    below = copy / (config or "data")
    below.mkdir(parents=True)
    for split, rows in SHAPES[name].items():
        pq.write_table(pa.Table.from_pylist(rows), below / f"{split}-00000-of-00001.parquet")
    if config:
        lines = "".join(f"  - split: {s}\n    path: {config}/{s}-*\n" for s in SHAPES[name])
        told = "".join(f"- config_name: {c}\n  data_files:\n{lines}" for c in (config, "socratic"))
        (copy / "README.md").write_text(f"---\nconfigs:\n{told}---\n")
    return copy


def test_every_set_has_its_shape_here() -> None:
    assert set(SHAPES) == set(SETS)
    assert len(SETS) >= 11


UNSCORED = {"hellaswag", "full_hh_rlhf", "openr1mm"}  # verl has no rule for these; its own preprocessing makes them


@pytest.mark.parametrize("name", SETS)
def test_a_local_copy_becomes_sound_files(name: str, tmp_path: Path) -> None:
    done = prepare(name, tmp_path / "out", str(copy_of(name, tmp_path)))
    assert [d.path.relative_to(tmp_path / "out").as_posix() for d in done] == [
        SETS[name].files[split] for split in SETS[name].files if split in SHAPES[name]
    ]
    for d in done:
        looked = look([str(d.path)], wants=Wants(knows=None if name in UNSCORED else scored_by_verl))
        assert looked.problems == [], looked.problems
        assert "index" in pq.read_table(d.path).column("extra_info")[0].as_py()


def rows_of(name: str, tmp_path: Path, split: str) -> list[dict[str, Any]]:
    prepare(name, tmp_path / "out", str(copy_of(name, tmp_path)))
    return pq.read_table(tmp_path / "out" / SETS[name].files[split]).to_pylist()


def test_rows_that_a_set_repeats_are_there_once(tmp_path: Path) -> None:
    copy = str(copy_of("dapo_math_17k", tmp_path))
    [done] = prepare("dapo_math_17k", tmp_path / "out", copy)
    assert (done.read, done.rows, done.repeated) == (4, 2, 2)
    assert done.path.name == "dapo-math-17k.parquet", "where data=dapo_math looks for it"
    [done] = prepare("dapo_math_17k", tmp_path / "out", copy, keeps_repeats=True, force=True)
    assert done.rows == 4
    with pytest.raises(BadInput, match="is there already"):
        prepare("dapo_math_17k", tmp_path / "out", copy)


def test_ground_truths_are_cut_out_as_verls_scorers_want_them(tmp_path: Path) -> None:
    [gsm8k] = rows_of("gsm8k", tmp_path, "test")
    assert gsm8k["reward_model"]["ground_truth"] == "1013"
    assert gsm8k["prompt"][0]["content"].endswith('output the final answer after "####".')
    assert gsm8k["extra_info"]["split"] == "test"
    [numina] = rows_of("numina", tmp_path, "train")
    assert numina["data_source"] == "numina_olympiads"
    [code] = rows_of("codecontests", tmp_path, "train")
    assert json.loads(code["reward_model"]["ground_truth"]) == {"inputs": ["1 2", "2 2"], "outputs": ["3", "4"]}
    [geo] = rows_of("geo3k", tmp_path, "test")
    assert geo["images"] == [IMAGE], "images stay bytes"


def test_a_set_that_datasets_saved_and_a_single_file(tmp_path: Path) -> None:
    import datasets

    datasets.DatasetDict({s: datasets.Dataset.from_list(r) for s, r in SHAPES["math"].items()}).save_to_disk(
        tmp_path / "saved"
    )
    assert [d.rows for d in prepare("math", tmp_path / "out", str(tmp_path / "saved"))] == [1, 1]
    (tmp_path / "gsm8k-test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in SHAPES["gsm8k"]["test"]))
    [done] = prepare("gsm8k", tmp_path / "out", str(tmp_path / "gsm8k-test.jsonl"))
    assert done.path.name == "test.parquet"


def test_without_a_network_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match="copy the set's directory here"):
        prepare("math500", tmp_path)
    with pytest.raises(BadInput, match="did you mean gsm8k"):
        prepare("gsm8", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SETS)
def test_a_copy_of_another_shape_is_one_clear_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.get_dataset_config_names", lambda *_: pytest.fail("a file is asked for at the hub"))
    pq.write_table(pa.table({"q": ["x"], "a": [1]}), tmp_path / "copy.parquet")
    with pytest.raises(BadInput):
        prepare(name, tmp_path / "out", str(tmp_path / "copy.parquet"))
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
