"""Files of one's own, a routed reward with a server, and an algorithm of one's own, in a real trial."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.smoke.test_real_verl import ask, left_over, pytestmark, start, the_trial  # noqa: F401

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_algorithm"
PAIRS = [(x, y) for x in range(10) for y in range(10) if x != y]


@pytest.fixture
def study(tmp_path: Path):
    yield tmp_path / "outputs" / "smoke"
    ask("cancel", "outputs/smoke")


def rows(pairs: list[tuple[int, int]]) -> list[dict[str, str]]:
    return [{"question": f"copy {x}{y}=", "answer": f"{x}{y}"} for x, y in pairs]


def own_sets(folder: Path) -> None:
    """A CSV, an Arrow set in shards as `datasets` saves it, and a copy of what a hub has."""
    import datasets

    with open(folder / "own.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer"])
        writer.writeheader()
        writer.writerows(rows(PAIRS))
    datasets.Dataset.from_list(rows(PAIRS)).save_to_disk(folder / "shards", num_shards=3)
    (folder / "hub" / "data").mkdir(parents=True)
    for split, some in (("train", PAIRS), ("test", PAIRS[:16])):
        pq.write_table(pa.Table.from_pylist(rows(some)), folder / "hub" / "data" / f"{split}-00000-of-00001.parquet")


def convert(*words: str) -> None:
    done = ask("data", "convert", *words, "--prompt", "question", "--answer", "answer")
    assert done.returncode == 0, done.stdout + done.stderr


def test_own_sets_train_with_a_routed_reward_and_an_own_algorithm(study: Path, tmp_path: Path) -> None:
    own_sets(tmp_path)
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    convert("own.csv", "-o", "copy.parquet", "--data-source", "my/copy")
    convert("shards/*.arrow", "-o", "judged.parquet", "--data-source", "my/judged")
    convert("hub", "--split", "test", "-o", "val.parquet", "--data-source", "my/both")

    words = ("--config-dir", "conf", "algorithm=median_baseline", "reward=by_source",
             "data.train_files=[copy.parquet,judged.parquet]", "data.val_files=[val.parquet]",
             "trainer.total_steps=3", "trainer.validate_every=3")  # fmt: skip
    checked = ask("check", *words)
    assert (checked.returncode, checked.stdout) == (0, "1 trial looked at: no problem found\n"), checked.stdout
    out, _ = start(*words).communicate(timeout=840)
    trial = the_trial()
    assert (trial["cause"], trial["step"]) == ("completed", 3), out

    [attempt] = study.glob("trials/*/attempts/1")
    lines = [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]
    metrics = {line["step"]: line["data"] for line in lines}
    for step in (1, 2, 3):
        assert 0 < metrics[step]["critic/score/mean"] < 1, "answers are right now and then"
        assert metrics[step]["actor/grad_norm"] > 0
    names = set(metrics[3])
    assert "val-core/my/both/acc/mean@1" in names
    assert {"val-aux/my/both/length/mean@1", "val-aux/my/both/exact_match/mean@1"} <= names, "parts are metrics by name"
    assert (attempt / "server-judge.log").exists()
    assert left_over(study) == []


def test_a_reward_that_gives_no_number_ends_the_trial_with_its_row(study: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float('nan') if ground_truth[0] in '123456789' else 1.0\n"
    )
    words = ("reward=function", "reward.function_path=broken.py", "reward.function_name=score", "trainer.total_steps=3")
    start(*words).communicate(timeout=840)
    trial = the_trial()
    assert trial["cause"] == "reward_error"
    [attempt] = study.glob("trials/*/attempts/1")
    end = json.loads((attempt / "end.json").read_text())
    assert "nan" in end["reason"] and '"solution_str"' in end["reason"] and '"ground_truth"' in end["reason"]
    assert left_over(study) == []
