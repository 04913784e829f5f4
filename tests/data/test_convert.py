"""Whatever a set was, the same rows come out; and nothing comes out of what is broken."""

from __future__ import annotations

import csv
import gzip
import json
import string
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hysweep.data import sources
from hysweep.data.columns import Recipe, last_boxed, parts_of, read_recipe
from hysweep.data.convert import convert
from hysweep.schema import BadInput

ROWS = [
    {"question": "1+1?", "answer": "2", "level": "easy"},
    {"question": 'two\nlines, "quoted"', "answer": "ü", "level": "hard"},
    {"question": "{no} place", "answer": "007", "level": "easy"},
]
RECIPE = Recipe(prompt="question", answer="answer", data_source="my/set", ability="{level}", extra=("level",))


def write(kind: str, folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    path = folder / f"rows.{kind}"
    table = pa.Table.from_pylist(rows)
    if kind == "csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    elif kind == "parquet":
        pq.write_table(table, path)
    elif kind == "arrow":
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    elif kind == "feather":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    return [str(path)]


KINDS = ("csv", "jsonl", "jsonl.gz", "json", "parquet", "arrow", "feather")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_verls_five_columns(kind: str, tmp_path: Path) -> None:
    done = convert(write(kind, tmp_path, ROWS), tmp_path / "out.parquet", RECIPE)
    assert (done.read, done.rows) == (3, 3)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert table.to_pylist() == [
        {
            "data_source": "my/set",
            "prompt": [{"role": "user", "content": row["question"]}],
            "ability": row["level"],
            "reward_model": {"style": "rule", "ground_truth": row["answer"]},
            "extra_info": {"level": row["level"], "index": i},
        }
        for i, row in enumerate(ROWS)
    ]


TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")) | st.sampled_from('",\n\\[]{}:'), max_size=12
)
SOLID = TEXT.map(lambda t: f"x{t}x")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.fixed_dictionaries({"question": SOLID, "answer": SOLID}), min_size=1, max_size=20),
       block=st.integers(40, 400), kind=st.sampled_from(["csv", "jsonl", "json"]))  # fmt: skip
def test_where_a_file_is_cut_into_pieces_changes_nothing(
    rows: list[dict[str, str]], block: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sources, "BLOCK", block)
        convert(write(kind, tmp_path, rows), tmp_path / "out.parquet", Recipe("question", "answer", data_source="d"),
                force=True)  # fmt: skip
    table = pq.read_table(tmp_path / "out.parquet")
    assert [p[0]["content"] for p in table.column("prompt").to_pylist()] == [r["question"] for r in rows]
    assert [r["ground_truth"] for r in table.column("reward_model").to_pylist()] == [r["answer"] for r in rows]
    assert [e["index"] for e in table.column("extra_info").to_pylist()] == list(range(len(rows)))


def test_shards_by_a_pattern_and_sets_that_datasets_saved(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS * 4)
    (tmp_path / "saved" / "train").mkdir(parents=True)
    (tmp_path / "saved" / "train" / "cache-0f1e.arrow").write_text("what datasets leaves of a map")
    datasets.DatasetDict(train=whole, test=whole.select([0])).save_to_disk(
        tmp_path / "saved", num_shards={"train": 3, "test": 1}
    )
    for name in (str(tmp_path / "saved" / "train"), str(tmp_path / "saved" / "train" / "*.arrow")):
        assert convert([name], tmp_path / "out.parquet", RECIPE, force=True).rows == 12
    assert convert([str(tmp_path / "saved")], tmp_path / "out.parquet", RECIPE, split="test", force=True).rows == 1
    with pytest.raises(BadInput, match="train, test; choose one: --split"):
        convert([str(tmp_path / "saved")], tmp_path / "out.parquet", RECIPE, force=True)


def test_a_local_copy_of_a_set_of_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    copy = tmp_path / "org" / "set"
    (copy / "data").mkdir(parents=True)
    for split in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(ROWS), copy / "data" / f"{split}-00000-of-00001.parquet")
    done = convert([str(copy)], tmp_path / "out.parquet", RECIPE, split="train")
    assert done.rows == 3
    assert pq.read_table(tmp_path / "out.parquet").column("extra_info")[0].as_py()["split"] == "train"


def test_templates_systems_and_what_of_an_answer_counts(tmp_path: Path) -> None:
    rows = [{"q": "2*3", "hint": "add", "a": "so it is\n#### 1,006", "n": 5}]
    recipe = Recipe("{q} = {{?}} in \\boxed{}", "a", r"#### ([0-9,]+)", system="Hint: {hint}", data_source="s{n}")
    convert(write("jsonl", tmp_path, rows), tmp_path / "o.parquet", recipe)
    [row] = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert row["prompt"] == [
        {"role": "system", "content": "Hint: add"}, {"role": "user", "content": "2*3 = {?} in \\boxed{}"}
    ]  # fmt: skip
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("s5", "1,006")


@pytest.mark.parametrize(
    ("text", "boxed"),
    [("so \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"), ("\\boxed{1} then \\boxed{2}", "2"), ("none", None),
     ("\\boxed{1", None),
     ("$\\boxed 7$", "7"), ("\\fbox{x}", "x")],
)  # fmt: skip
def test_the_last_box_of_a_solution(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed


def test_chats_of_other_shapes_and_rows_in_verls_own(tmp_path: Path) -> None:
    said = [("human", "hi"), ("gpt", "yes?"), ("human", "2+2")]
    chats = [{"conversations": [{"from": who, "value": what} for who, what in said], "answer": 4}]
    convert(
        write("parquet", tmp_path, chats), tmp_path / "a.parquet", Recipe("conversations", "answer", data_source="c")
    )
    [row] = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [m["role"] for m in row["prompt"]] == ["user", "assistant", "user"]
    assert row["reward_model"]["ground_truth"] == "4"
    done = convert([str(tmp_path / "a.parquet")], tmp_path / "b.parquet", Recipe())
    assert done.rows == 1
    assert pq.read_table(tmp_path / "b.parquet").to_pylist() == [row]


def test_rows_without_a_prompt_or_an_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [
        *ROWS,
        {"question": " ", "answer": "1", "level": "x"},
        {"question": "q", "answer": None, "level": "x"},
        ROWS[0],
    ]
    done = convert(write("jsonl", tmp_path, rows), tmp_path / "o.parquet", RECIPE, is_unique=True)
    assert (done.read, done.rows, done.no_prompt, done.no_answer, done.repeated) == (6, 3, 1, 1, 1)
    assert "left out 1 without a prompt, 1 without an answer, 1 that repeat another, of 6" in str(done)
    assert convert(write("jsonl", tmp_path, rows), tmp_path / "p.parquet", RECIPE, limit=2).rows == 2


def test_values_of_mixed_types_are_text(tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": 1}, {"question": "b", "answer": "two"}, {"question": "c", "answer": [3, "4"]}]
    convert(write("jsonl", tmp_path, rows[:1]), tmp_path / "o.parquet", Recipe("question", "answer", data_source="d"))
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    convert(
        [str(tmp_path / "m.jsonl")], tmp_path / "o.parquet", Recipe("question", "answer", data_source="d"), force=True
    )
    truths = [r["ground_truth"] for r in pq.read_table(tmp_path / "o.parquet").column("reward_model").to_pylist()]
    assert truths == ["1", "two", '[3, "4"]']


@pytest.mark.parametrize(
    ("answers", "truths"),
    [
        ("1.5 true false", ["1.5", "true", "false"]),
        ("true 1.5 false", ["true", "1.5", "false"]),
        ("1 true", ["1", "true"]),
        ("1.0 3 false 0", ["1.0", "3", "false", "0"]),
        ("null 2.5 true", ["2.5", "true"]),
        ("[1.5,true]", ["[1.5, true]"]),
        ('{"x":1.5} {"x":true}', ['{"x": 1.5}', '{"x": true}']),
    ],
)
def test_true_and_false_among_numbers_stay_what_they_are(answers: str, truths: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("".join(f'{{"q": "a", "a": {answer}}}\n' for answer in answers.split()))
    convert([str(tmp_path / "x.jsonl")], tmp_path / "o.parquet", Recipe("q", "a", data_source="d"))
    found = pq.read_table(tmp_path / "o.parquet").column("reward_model").to_pylist()
    assert [r["ground_truth"] for r in found] == truths


@pytest.mark.parametrize("values", [("1.5", "true"), ("true", "5"), ("[1]", "[true]")])
def test_no_later_piece_turns_numbers_into_truths(
    values: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BLOCK", 20)
    (tmp_path / "x.jsonl").write_text("".join(f'{{"q": "a", "a": "1", "level": {v}}}\n' for v in values))
    with pytest.raises(BadInput, match=r"extra_info\.level is"):
        convert([str(tmp_path / "x.jsonl")], tmp_path / "o.parquet",
                Recipe("q", "a", data_source="d", extra=("level",)))  # fmt: skip


BAD = [
    ("x.jsonl", '{"question": "a", "answer": "1"}\n{"question": "b", oops}\n', RECIPE, "line 2 is no JSON"),
    ("x.jsonl", "[1, 2]\n", RECIPE, "no object"),
    ("x.json", '[{"question": "a"', RECIPE, "does not end"),
    ("x.csv", "question,answer\na,1,2\n", RECIPE, "no CSV that can be read"),
    ("x.csv", "", RECIPE, "is empty"),
    ("x.csv", "question,answer,level\n,,\n", RECIPE, "none has both"),
    ("x.csv", "question,answer\na,1\n", RECIPE, "column = level: is not there"),
    ("x.csv", "question,answer\na,1\n", Recipe("qestion", "answer", data_source="d"), "did you mean question"),
    ("x.csv", "question,answer\na,1\n", Recipe("{qestion}!", "answer", data_source="d"), "did you mean question"),
    ("x.csv", "question,answer\na,1\n", Recipe(), "name one: --prompt"),
    ("x.csv", "question,answer\na,1\n", Recipe("question"), "--answer COLUMN"),
    ("x.csv", "question,answer\na,1\n", Recipe("question", "answer"), "--data-source NAME"),
    ("x.csv", "question,answer\na,1\n", Recipe("question", "answer", "(", data_source="d"), "no regular expression"),
    ("x.parquet", "PAR1 torn", RECIPE, "cannot be read"),
    ("x.arrow", "ARROW1 torn", RECIPE, "cannot be read"),
    ("x.txt", "hello", RECIPE, "is of no kind"),
    ("none.csv", None, RECIPE, "no such file"),
    ("none*.csv", None, RECIPE, "matches no file"),
    ("x.csv", "question,question,answer,level\na,b,1,x\n", RECIPE, "more than one column question"),
    ("x.csv", "question,answer,level\ncaf\xe9,1,x\n".encode("latin1"), RECIPE, "iconv -f latin1 -t utf-8"),
    ("x.csv", "question,answer,l\xe9vel\na,1,x\n".encode("latin1"), RECIPE, "iconv -f latin1 -t utf-8"),
    ("x.json", b'[{"question": "caf\xe9", "answer": 1, "level": 1}, {"answer": "x"}]', RECIPE, "iconv -f latin1"),
    ("x.csv", "question;answer\na;1\n", RECIPE, "the separator seems to be ;"),
    ("x.csv", 'question;answer\n"a, b";1,5\n', RECIPE, "the separator seems to be ;"),
    ("x.csv", "question\tanswer\na\t1\n", RECIPE, "seems to be a tab .*; name it .tsv"),
    ("x.tsv", "question,answer\na,1\n", RECIPE, "seems to be , .*; save it with tabs, or name it .csv"),
    ("x.csv", "question,answer,level\na,1,x\n".encode("utf-16"), RECIPE, "is no UTF-8"),
    ("x.jsonl", b'{"question": "caf\xe9", "answer": "1", "level": "x"}\n', RECIPE, "is no UTF-8"),
    (
        "x.jsonl",
        '{"question": "\\ud800", "answer": "1", "level": "x"}\n',
        RECIPE,
        "is no UTF-8: .*what is no character",
    ),
    ("x.jsonl", f'{{"question": "a", "level": "x", "answer": {"[" * 3000}{"]" * 3000}}}', RECIPE, "nested too deep"),
    ("x.json", '[{"question": "a", "answer": "1", "level": "x"}]\n[{"question": "b"}]', RECIPE, "more after its list"),
]


@pytest.mark.parametrize(("name", "text", "recipe", "said"), BAD, ids=lambda v: str(v)[:30])
def test_what_is_broken_is_said_and_leaves_nothing(
    name: str, text: str | bytes | None, recipe: Recipe, said: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    out = tmp_path / "out"
    out.mkdir()
    (out / "o.parquet").write_text("before")
    with pytest.raises(BadInput, match=said):
        convert([str(tmp_path / name)], out / "o.parquet", recipe, force=True)
    assert [p.name for p in out.iterdir()] == ["o.parquet"]
    assert (out / "o.parquet").read_text() == "before"


def test_parquet_that_no_row_can_be_made_of(tmp_path: Path) -> None:
    path, recipe = str(tmp_path / "x.parquet"), Recipe("q", "a", data_source="d")
    twice = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"]), pa.array(["1"])], names=["q", "q", "a"])
    for table, said in (
        (twice, "more than one column q"),
        (pa.table({"q": [b"\xff"], "a": ["1"]}), "column = q: is of a type that is no text: binary"),
        (pa.table({"q": [{"x": b"\xff"}], "a": ["1"]}), "column = q: is of a type that is no text"),
        (pa.table({"question": ["x"], "a": ["1"]}), "column = q: is not there; the columns are question, a"),
    ):
        pq.write_table(table, path)
        with pytest.raises(BadInput, match=said):
            convert([path], tmp_path / "o.parquet", recipe)
    pq.write_table(pa.table({"q": ["x"], "a": ["1"]}), tmp_path / "y.parquet")
    with pytest.raises(BadInput, match=r"column = q: .*x\.parquet: is not there"):  # of several it says which
        convert([str(tmp_path / "y.parquet"), path], tmp_path / "o.parquet", recipe)
    pq.write_table(pa.table({"a.b": ["x"], "a": [{"when": datetime(2026, 1, 2)}]}), path)
    convert([path], tmp_path / "o.parquet", Recipe("a.b", "{a}", data_source="d"))
    [row] = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert (row["prompt"][0]["content"], row["reward_model"]["ground_truth"]) == (
        "x",
        '{"when": "2026-01-02 00:00:00"}',
    )


def test_a_ground_truth_is_the_number_that_was_written(tmp_path: Path) -> None:
    big = 123456789012345678901234567890
    rows = [{"q": "a", "a": big}, {"q": "b", "a": 7}, {"q": "c", "a": float("nan")}, {"q": "d", "a": {"n": [big]}}]
    for some, truths in ((rows[:3], [str(big), "7"]), (rows[3:], [f'{{"n": [{big}]}}'])):
        (tmp_path / "x.jsonl").write_text("".join(json.dumps(r) + "\n" for r in some))
        done = convert([str(tmp_path / "x.jsonl")], tmp_path / "o.parquet", Recipe("q", "a", data_source="d"),
                       force=True)  # fmt: skip
        found = pq.read_table(tmp_path / "o.parquet").column("reward_model").to_pylist()
        assert [r["ground_truth"] for r in found] == truths
        assert done.no_answer == len(some) - len(truths)  # what is no number is no answer


@pytest.mark.parametrize("pattern", [r"#### (\d+)", r"(?<=#### )\d+", r"(?P<n>\d+)\Z", r"(\d+)(\Z)", r"[(#](?: )(\d+)",
                                     r"#### (?P<answer>\d+)"])  # fmt: skip
def test_an_expression_counts_by_its_first_group(pattern: str, tmp_path: Path) -> None:
    source = write("jsonl", tmp_path, [{"q": "a", "a": "(1) so it is\n#### 42"}])
    convert(source, tmp_path / "o.parquet", Recipe("q", "a", pattern, data_source="d"))
    assert pq.read_table(tmp_path / "o.parquet").column("reward_model")[0].as_py()["ground_truth"] == "42"


@pytest.mark.parametrize(
    ("pattern", "answer", "counts"),
    [
        (r"(\d+)$", "so\n#### 42\n", "42"),
        (r"答案：(\w+)", "答案：四十二。", "四十二"),
        (r"(\w+) gewinnt", "Müller gewinnt", "Müller"),
        (r"a(b{,2})", "abb", "bb"),
    ],
)
def test_an_expression_means_what_it_means_to_python(pattern: str, answer: str, counts: str, tmp_path: Path) -> None:
    source = write("jsonl", tmp_path, [{"q": "a", "a": answer}])
    convert(source, tmp_path / "o.parquet", Recipe("q", "a", pattern, data_source="d"))
    assert pq.read_table(tmp_path / "o.parquet").column("reward_model")[0].as_py()["ground_truth"] == counts


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (Recipe("q", "a", r"#### (\d+)", data_source="d"), r"--answer-regex '#### (\\d+)' finds nothing in row"),
        (Recipe("q", "a", boxed=True, data_source="d"), "--boxed finds nothing in row"),
    ],
)
def test_an_answer_in_which_nothing_counts_is_shown(recipe: Recipe, said: str, tmp_path: Path) -> None:
    good = {"q": "a", "a": "so \\boxed{42}\n#### 42"}
    empty, bad = {"q": "b", "a": None}, {"q": "c", "a": "it is seven"}
    done = convert(write("jsonl", tmp_path, [good, empty, bad, bad]), tmp_path / "o.parquet", recipe)
    assert (done.rows, done.no_answer) == (1, 3)
    assert f"{said} 2, whose answer is 'it is seven'" in str(done)
    with pytest.raises(BadInput) as caught:
        convert(write("jsonl", tmp_path, [bad, bad]), tmp_path / "p.parquet", recipe)
    assert f"{said} 0, whose answer is 'it is seven'" in str(caught.value) and "mapping" not in str(caught.value)
    whole = convert(write("jsonl", tmp_path, [good]), tmp_path / "q.parquet", recipe)
    assert not whole.notes


def test_that_columns_of_a_csv_stay_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("q,a,level\n1+1,2,3\n")
    source, recipe = [str(tmp_path / "own.csv")], Recipe("q", "a", data_source="d", extra=("level",))
    done = convert(source, tmp_path / "o.parquet", recipe)
    assert pq.read_table(tmp_path / "o.parquet").to_pylist()[0]["extra_info"]["level"] == "3"
    assert "level stay text" in str(done)
    assert not convert(source, tmp_path / "p.parquet", replace(recipe, extra=())).notes


def test_where_a_file_cannot_be_written(tmp_path: Path) -> None:
    source = write("parquet", tmp_path, ROWS)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match=r"-o = .*: cannot be written"):
        convert(source, tmp_path / "file" / "o.parquet", RECIPE)
    with pytest.raises(BadInput, match="one of the files that are read"):
        convert([str(tmp_path / "*.parquet")], Path(source[0]), RECIPE, force=True)
    assert pq.read_table(source[0]).to_pylist() == ROWS


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [("state.json", "{", "cannot be read"), ("state.json", "{}", "names no file"),
     ("dataset_dict.json", "[1]", r"\(none\)"),
     ("state.json", '{"_data_files": [{"filename": "gone.arrow"}]}', "has lost gone.arrow")],
)  # fmt: skip
def test_a_saved_set_that_is_broken(file: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / file).write_text(text)
    with pytest.raises(BadInput, match=said):
        convert([str(tmp_path / "saved")], tmp_path / "o.parquet", RECIPE)


@pytest.mark.parametrize(
    ("text", "said"),
    [(b"prompt: 5", "--mapping prompt = 5: is not a text"), (b"boxed: 'yes'", "is not true or false"),
     (b"extra: 5", "extra = 5: is not a list of columns"), (b"extra: [{a: 1}]", "is not a list of columns"),
     (b"prompt: caf\xe9", "is no YAML"), (b"5: a", "is no part of a mapping")],
)  # fmt: skip
def test_a_mapping_of_other_types(text: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_bytes(text)
    with pytest.raises(BadInput, match=said):
        read_recipe(tmp_path / "map.yaml", {})


def test_an_interrupted_conversion_leaves_no_half_file(tmp_path: Path) -> None:
    def stop(seen: int, rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(write("jsonl", tmp_path, ROWS), tmp_path / "out" / "o.parquet", RECIPE, watch=stop)
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_killed_conversion_left_is_cleared_away_and_files_are_safe(tmp_path: Path) -> None:
    left = tmp_path / ".o.parquet.999999999.part"
    left.write_text("half")
    convert(write("jsonl", tmp_path, ROWS), tmp_path / "o.parquet", RECIPE)
    assert not left.exists()
    with pytest.raises(BadInput, match="is there already"):
        convert(write("jsonl", tmp_path, ROWS), tmp_path / "o.parquet", RECIPE)
    with pytest.raises(BadInput, match="no name of a parquet file"):
        convert(write("jsonl", tmp_path, ROWS), tmp_path, RECIPE)


def test_a_column_that_changes_its_type_later_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": "a", "answer": "1", "level": 1}, {"question": "b", "answer": "2", "level": {"deep": 1}}]
    monkeypatch.setattr(sources, "BLOCK", 60)
    with pytest.raises(BadInput, match="another type"):
        convert(
            write_lines(tmp_path, rows),
            tmp_path / "o.parquet",
            Recipe("question", "answer", data_source="d", extra=("level",)),
        )


def write_lines(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    path = folder / "lines.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return [str(path)]


def test_a_mapping_file_and_flags_before_it(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("prompt: question\nanswer: answer\nextra: [level]\ndata_source: file\n")
    assert read_recipe(path, {"data_source": "flag"}) == Recipe(
        "question", "answer", data_source="flag", extra=("level",)
    )
    path.write_text("promt: question\n")
    with pytest.raises(BadInput, match="did you mean prompt"):
        read_recipe(path, {})


@given(st.text(string.ascii_letters + "{}_ ", max_size=20))
def test_a_text_with_places_is_all_there(text: str) -> None:
    told = "".join(
        f"{{{part}}}" if is_name else part.replace("{", "{{").replace("}", "}}")
        for part, is_name in parts_of(text, False)
    )
    assert parts_of(told, False) is not None
    assert "".join(p for p, _ in parts_of(text, False)).replace("{", "").replace("}", "") == text.replace(
        "{", ""
    ).replace("}", "")
