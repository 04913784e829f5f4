"""Each fault of a file is found with its row and what mends it; a sound file has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models

from hysweep.check import check_trial, errors
from hysweep.data.check import Wants, look
from hysweep.rewards.routes import scored_by_verl
from hysweep.schema import Severity


def row(**other: Any) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"q{other.pop('n', 0)}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1"},
        "extra_info": {"index": 0},
        **other,
    }


def chat(*said: tuple[str | None, str | None]) -> list[dict[str, str | None]]:
    return [{"role": role, "content": content} for role, content in said]


def file_of(folder: Path, *rows: dict[str, Any], name: str = "train.parquet") -> str:
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / name)
    return str(folder / name)


def test_a_sound_file_has_no_problem(tmp_path: Path) -> None:
    looked = look([file_of(tmp_path, row(n=1), row(n=2))], wants=Wants(knows=scored_by_verl, batch=2))
    assert looked.problems == []
    assert (looked.files[0].rows, dict(looked.files[0].data_sources)) == (2, {"openai/gsm8k": 2})


BAD_ROWS = [
    (row(prompt=chat()), "no message"),
    (row(prompt=None), "no message"),
    (row(prompt=chat(("user", "  "))), "an empty message"),
    (row(prompt=chat(("user", None))), "an empty message"),
    (row(prompt=chat(("human", "q"))), "a role that no chat template knows"),
    (row(prompt=chat((None, "q"))), "a role that no chat template knows"),
    (row(reward_model={"style": "rule", "ground_truth": " "}), "no ground truth"),
    (row(reward_model={"style": "rule", "ground_truth": None}), "no ground truth"),
    (row(data_source=None), "no data_source"),
    (row(data_source="my/own"), "no way to score"),
]


@pytest.mark.parametrize(("bad", "said"), BAD_ROWS, ids=[said for _, said in BAD_ROWS])
def test_a_bad_row_is_an_error_and_is_named(bad: dict[str, Any], said: str, tmp_path: Path) -> None:
    looked = look([file_of(tmp_path, row(n=1), row(n=2), bad)], wants=Wants(knows=scored_by_verl))
    [problem] = looked.problems
    assert said in problem.why and "1" in problem.why
    assert problem.severity is Severity.ERROR
    assert "row 2" in str(problem) or "my/own" in str(problem)


BAD_SHAPES = [
    ({k: v for k, v in row().items() if k != "data_source"}, "has no column data_source"),
    (row(prompt="what?"), "list of messages"),
    (row(prompt=[{"text": "q"}]), "role and content"),
    (row(reward_model={"style": "rule"}), "ground_truth"),
    (row(extra_info="x"), "verl puts"),
    (row(prompt=[{"role": 1, "content": "q"}]), "is to be text"),
    (row(prompt=[{"role": "user", "content": 5}]), "is to be text"),
]


@pytest.mark.parametrize(("bad", "said"), BAD_SHAPES, ids=[said for _, said in BAD_SHAPES])
def test_a_shape_that_verl_cannot_use(bad: dict[str, Any], said: str, tmp_path: Path) -> None:
    [problem] = look([file_of(tmp_path, bad)]).problems
    assert said in problem.why


def test_columns_of_nothing_are_rows_of_nothing(tmp_path: Path) -> None:
    why = [p.why for p in look([file_of(tmp_path, row(prompt=[{"role": None, "content": None}]))]).problems]
    assert any("a role" in w for w in why) and any("an empty message" in w for w in why)


def test_names_of_data_sources_are_told_as_lines_and_not_without_end(tmp_path: Path) -> None:
    rows = [row(n=i, data_source=f"{i}\x1b]0;title\x07" + "x" * 500) for i in range(9)]
    said = look([file_of(tmp_path, *rows)], wants=Wants(knows=scored_by_verl)).problems
    assert len(said) == 6 and "4 others" in str(said[-1].value)
    assert all(str(p).isprintable() and len(str(p.value)) < 100 for p in said)


@pytest.mark.parametrize(
    ("routes", "said", "cured"),
    [
        (
            "my/mth: math",
            "no route of reward.routes takes",
            "no row goes by reward.routes.my/mth: did you mean 'my/math'?",
        ),
        ("other: math", "no route of reward.routes takes", "add it there"),
        (
            "my/math: verl",
            "go by reward.routes.my/math to verl, which has no scorer",
            "to a ready reward or a function",
        ),
    ],
)
def test_a_route_that_takes_no_row_is_named(routes: str, said: str, cured: str, trial_of, tmp_path: Path) -> None:
    path = file_of(tmp_path, *(row(n=i, data_source="my/math") for i in range(8)))
    words = (f"data.train_files=[{path}]", f"data.val_files=[{path}]", "reward.function_path=null")
    (found, *_) = check_trial(trial_of(*words, f"reward.routes={{{routes}}}"))
    assert said in found.why and cured in found.cure


def test_a_misspelt_route_whose_rows_another_takes_is_a_warning(trial_of, tmp_path: Path) -> None:
    path = file_of(tmp_path, *(row(n=i, data_source="my/math") for i in range(8)))
    words = ("reward=router", f"data.train_files=[{path}]", f"data.val_files=[{path}]")
    [found] = check_trial(trial_of(*words, "reward.routes={my/mth: exact_match}"))
    assert (found.key, found.cure) == ("reward.routes.my/mth", "did you mean 'my/math'?")
    assert errors([found]) == []
    assert check_trial(trial_of(*words, "reward.routes={my/math: exact_match, my/mth: format}")) == []
    assert check_trial(trial_of(*words, "reward.routes={other: exact_match}")) == []


def test_scores_that_verl_cannot_put_together(trial_of, tmp_path: Path) -> None:
    files = [file_of(tmp_path, *(row(n=i, data_source=name) for i in range(4)), name=f"{at}.parquet")
             for at, name in enumerate(("math_dapo", "openai/gsm8k"))]  # fmt: skip
    words = (f"data.train_files=[{','.join(files)}]", f"data.val_files=[{files[0]}]")
    found = check_trial(trial_of(*words, "reward=rule"))
    assert [p.key for p in found] == ["train_files"] and "a batch of both" in found[0].why
    for reward in (["reward=router", "reward.function_path=null"], ["reward.routes={a: verl}", "reward=router"]):
        assert not any("a batch of both" in p.why for p in check_trial(trial_of(*words, *reward)))


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([row()])
    pq.write_table(table.append_column("prompt", table["prompt"]), tmp_path / "x.parquet")
    [problem] = look([str(tmp_path / "x.parquet")]).problems
    assert "more than one column prompt" in problem.why


def test_a_trial_whose_reward_does_not_know_the_shipped_data(trial_of, tmp_path: Path) -> None:
    found = check_trial(trial_of("reward=rule"))
    assert [p.key for p in found if "tiny_copy" in p.why] == ["data.train_files", "data.val_files"]
    (tmp_path / "d.parquet").mkdir()
    found = check_trial(trial_of(f"data.train_files=[{tmp_path / 'd.parquet'}]"))
    assert [p.why for p in found] == ["is a directory: verl reads files"]


def test_what_stands_between_files(tmp_path: Path) -> None:
    one = file_of(tmp_path, row(n=1), row(n=1), row(n=2), name="a.parquet")
    other = file_of(tmp_path, row(n=3, extra_info={"index": "text"}), name="b.parquet")
    val = file_of(tmp_path, row(n=2), name="val.parquet")
    said = [str(p) for p in look([one, other], [val], Wants(batch=8)).problems]
    assert len(said) == 4
    assert any("extra_info" in s and "cannot put the files together" in s for s in said)
    assert any("1: of its 3 prompts, so many are there before" in s for s in said)
    assert any("1 different prompts to validate with, so many are trained on" in s for s in said)
    assert any("train_files = 4: are fewer rows than a step takes (8)" in s for s in said)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "torn.parquet").write_text("PAR1")
    (tmp_path / "x.arrow").write_text("x")
    said = [str(p) for p in look([str(tmp_path / "torn.parquet"), str(tmp_path / "none.parquet")]).problems]
    assert "cannot be read" in said[0] and "no such file" in said[1]


def test_lengths_are_counted_by_whoever_knows_the_tokens(tmp_path: Path) -> None:
    def words(chats: list[list[dict[str, Any]]]) -> list[int]:
        return [sum(len(m["content"].split()) for m in c) for c in chats]

    path = file_of(tmp_path, row(n=1), row(prompt=chat(("user", "a b c d e"))))
    cut = look([path], wants=Wants(lengths=words, max_prompt_length=3, batch=2))
    assert cut.files[0].spread() == {"p50": 1, "p99": 1, "max": 5}
    [problem] = cut.problems
    assert "1 of 2 prompts are longer than 3 tokens: they are cut" in problem.why
    dropped = look([path], wants=Wants(lengths=words, max_prompt_length=3, batch=2, drops_longer=True))
    assert ["left out" in p.why or "fewer rows" in p.why for p in dropped.problems] == [True, True]


def test_jsonl_that_verl_reads_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row(n=1)) + "\n" + json.dumps(row(prompt=[])) + "\n")
    [problem] = look([str(tmp_path / "a.jsonl")]).problems
    assert "1 of 2 rows have no message" in problem.why


def test_a_trials_own_check_glances_at_the_files_that_are_here(trial_of, tmp_path: Path) -> None:
    good = file_of(tmp_path, *(row(n=i, data_source="mine") for i in range(8)))
    words = (f"data.train_files=[{good}]", f"data.val_files=[{good}]", "reward.routes={mine: exact_match}",
             "reward.function_path=null")  # fmt: skip
    assert check_trial(trial_of(*words)) == []
    found = check_trial(trial_of(*words[:2], "reward=rule"))
    assert [p.why for p in found if "no way to score" in p.why] and "mine" in str(found[0].value)
    few = file_of(tmp_path, row(data_source="mine"), name="few.parquet")
    found = check_trial(trial_of(f"data.train_files=[{few}]", *words[1:]))
    assert any("fewer rows than a step takes" in p.why for p in found)


def test_a_trials_own_check_says_how_many_prompts_are_too_long(trial_of, tmp_path: Path, monkeypatch) -> None:
    """By the words alone, which takes no trainer; an error where nothing, or less than a step, would be left."""
    long, short = chat(("user", "copy " * 20)), chat(("user", "copy 47="))
    Tokenizer(models.BPE({c: i for i, c in enumerate("cop y47=")}, [])).save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr("hysweep.check.data.model_path", lambda name: str(tmp_path))

    def found(rows: list[Any], *words: str) -> list[tuple[str, Severity]]:
        path = file_of(tmp_path, *(row(prompt=p, data_source="tiny_copy") for p in rows))
        words = (f"data.train_files=[{path}]", f"data.val_files=[{path}]", "trainer.train_batch_size=4",
                 "trainer.mini_batch_size=4", *words)  # fmt: skip
        return [(p.why, p.severity) for p in check_trial(trial_of(*words)) if "prompt" in p.why or "rows" in p.why]

    drops = "data.filter_overlong_prompts=true"
    assert found([short] * 8) == []
    for words, ends in (((), "cut on their left, the instruction first"), ((drops,), "left out")):
        told = found([short] * 7 + [long], *words)
        assert told == [(f"at least 1 of 8 prompts are longer than 32 tokens: they are {ends}", Severity.WARNING)] * 2
    assert found([short] * 7 + [long], "trainer.max_prompt_length=200") == []
    few = dict(found([short] * 3 + [long] * 5, drops))
    assert few["are left, fewer rows than a step takes (4): nothing is trained"] is Severity.ERROR
    none = [why for why, severity in found([long] * 8, drops) if severity is Severity.ERROR]
    assert none == ["rows are left: every prompt that was looked at is too long"] * 2
    many = found([long] * 2_500, drops)
    assert ("at least 2,000 of the first 2,000 prompts are longer than 32 tokens: they are left out",
            Severity.WARNING) in many  # fmt: skip
    assert [s for _, s in many].count(Severity.ERROR) == 2


def test_the_tiny_tasks_reward_for_other_data_is_said(trial_of, tmp_path: Path) -> None:
    path = file_of(tmp_path, *(row(n=i, data_source="mine") for i in range(8)))
    words = f"data.train_files=[{path}]", f"data.val_files=[{path}]", "trainer.max_prompt_length=64"
    [train, val] = check_trial(trial_of(*words))
    assert "8 rows are scored by the reward of the tiny task" in train.why and "reward=router" in train.cure
    assert train.severity is val.severity is Severity.WARNING
