"""The verbs on data and rewards as a person meets them: what they print, their exit codes, nothing heavy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .warm import warm


def hysweep(*words: str) -> subprocess.CompletedProcess[str]:
    return warm(words, {})


@pytest.fixture
def own() -> Path:
    Path("own.csv").write_text("question,answer\nWhat is 1+1?,2\nWhat is 2*3?,6\n,7\n")
    done = hysweep("data", "convert", "own.csv", "-o", "own.parquet", "--prompt", "question", "--answer", "answer",
                   "--data-source", "my/math")  # fmt: skip
    assert done.returncode == 0, done.stderr
    # where it takes a while it also says how many rows a second
    assert re.fullmatch(r"own\.parquet: 2 rows(, \d+/s)?; left out 1 without a prompt, of 3\n", done.stdout)
    return Path("own.parquet")


def test_a_file_is_looked_at_for_a_trial(own: Path) -> None:
    good = hysweep("data", "check", str(own), "--no-tokenizer", "reward=router", "trainer.train_batch_size=2")
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "no problem found")
    bad = hysweep("data", "check", str(own), "--no-tokenizer", "--json", "reward=rule")
    assert bad.returncode == 1
    told = json.loads(bad.stdout)
    assert told["files"][0]["data_sources"] == {"my/math": 2}
    assert {p["severity"] for p in told["problems"]} == {"error"}
    assert [p["value"] for p in told["problems"]] == ["data_source: my/math", 2]


def test_a_reward_is_tried_before_a_gpu_is_held(own: Path) -> None:
    good = hysweep("reward", "try", "exact_match", str(own), "--json")
    assert good.returncode == 0
    means = {t["kind"]: t["score"] for t in json.loads(good.stdout)["tried"]}
    assert means["the truth"] == 1 and means["another row's"] == means["nothing"] == 0
    Path("own.py").write_text("def score(solution_str, ground_truth, **_):\n    return 1 / len(solution_str)\n")
    bad = hysweep("reward", "try", "own.py:score", str(own))
    assert bad.returncode == 1
    assert "ZeroDivisionError" in bad.stdout and "2 could not be scored" in bad.stdout
    Path("answers.jsonl").write_text('{"row": 1, "answer": "6"}\n')
    given = hysweep("reward", "try", "exact_match", str(own), "--answers", "answers.jsonl", "--json")
    assert [(t["row"], t["score"]) for t in json.loads(given.stdout)["tried"]] == [(1, 1.0)]


def test_a_look_without_a_trial_says_what_it_did_not_look_at(own: Path) -> None:
    bare = hysweep("data", "check", str(own))
    assert bare.returncode == 0
    assert "not looked at: whether prompts are too long, whether a reward" in bare.stdout
    assert "name the trial that the files are for, as in model=" in " ".join(bare.stdout.split())
    told = json.loads(hysweep("data", "check", str(own), "--json").stdout)
    assert len(told["not_looked_at"]) == 3
    words = ("data", "check", str(own), "--no-tokenizer", "reward=router", "trainer.train_batch_size=2")
    assert "not looked at: whether prompts are too long; leave out --no-tokenizer" in hysweep(*words).stdout


def test_the_rows_that_have_answers_are_those_that_are_tried() -> None:
    Path("many.csv").write_text("q,a\n" + "".join(f"What is {i}?,{i}\n" for i in range(40)))
    made = hysweep("data", "convert", "many.csv", "-o", "many.parquet", "--prompt", "q", "--answer", "a",
                   "--data-source", "d")  # fmt: skip
    assert made.returncode == 0, made.stderr
    Path("answers.jsonl").write_text('{"row": 37, "answer": "37"}\n{"row": 2, "answer": "no"}\n')
    words = ("reward", "try", "exact_match", "many.parquet", "--n", "3", "--answers", "answers.jsonl")
    tried = json.loads(hysweep(*words, "--json").stdout)
    assert [(t["row"], t["score"]) for t in tried["tried"]] == [(2, 0.0), (37, 1.0)]
    assert (tried["rows_without_answer"], tried["answers_not_tried"]) == (38, 0)
    told = hysweep(*words)
    assert told.returncode == 0
    assert "38 of 40 rows have no answer, and were not tried: 0, 1, 3, 4, 5 and 33 more" in told.stdout
    assert "1 of 2 answers were tried" in hysweep(*words, "--n", "1").stdout
    Path("answers.jsonl").write_text('{"row": 40, "answer": "40"}\n')
    wrong = hysweep(*words)
    assert wrong.returncode == 2 and "does not have: 40; its rows are 0 to 39" in wrong.stderr


def test_of_a_file_only_its_own_functions_are_offered(own: Path) -> None:
    Path("own.py").write_text(
        "import re\nfrom math import sqrt\nLIMIT = 3\nclass Part:\n    def inner(self): ...\n"
        "def _part(): ...\ndef score(solution_str, **_):\n    return sqrt(LIMIT)\n"
    )
    wrong = hysweep("reward", "try", "own.py:compute", str(own))
    assert wrong.returncode == 2 and wrong.stderr.strip().endswith("choose one of score"), wrong.stderr


def test_what_a_reward_prints_and_how_it_differs_is_kept_apart(own: Path) -> None:
    Path("own.py").write_text(
        "def score(solution_str, **_):\n"
        "    print('{')\n"
        "    return {'score': 1, 'acc': float('nan')} if solution_str else {'score': 0, 'empty': 1}\n"
        "def leaves(**_):\n"
        "    raise SystemExit(0)\n"
        "def hangs(**_):\n"
        "    import time\n"
        "    time.sleep(1000)\n"
    )
    told = hysweep("reward", "try", "own.py:score", str(own), "--json")
    read = json.loads(told.stdout, parse_constant=lambda c: pytest.fail(c))
    assert told.returncode == 1 and read["metrics_differ"] == "only some answers have empty"
    left = hysweep("reward", "try", "own.py:leaves", str(own))
    assert left.returncode == 1 and "SystemExit" in left.stdout
    hung = hysweep("reward", "try", "own.py:hangs", str(own), "--timeout", "0.3")
    assert hung.returncode == 1 and "not scored within 0.3 s" in hung.stdout


def test_a_function_that_cannot_be_imported_is_said_once(own: Path) -> None:
    Path("parts").mkdir()
    Path("parts/hs_helper.py").write_text("def norm(text):\n    return text.strip()\n")
    Path("parts/fns.py").write_text(
        "from hs_helper import norm\n"
        "def score(solution_str, ground_truth, **_):\n    return norm(solution_str) == ground_truth\n"
    )
    Path("broken.py").write_text("1 / 0\ndef score(**_):\n    return 1\n")
    said = hysweep("reward", "try", "parts/fns.py:score", str(own))
    assert said.returncode == 2 and not said.stdout
    assert said.stderr.count("No module named 'hs_helper'") == 1
    assert f"set cluster.env.PYTHONPATH={Path('parts').resolve()}" in " ".join(said.stderr.split())
    broken = hysweep("reward", "try", "broken.py:score", str(own))
    assert broken.returncode == 2 and "cannot be imported: ZeroDivisionError" in broken.stderr
    words = "reward=function reward.function_path=parts/fns.py reward.function_name=score"
    cured = hysweep("reward", "try", f"{words} cluster.env={{PYTHONPATH: {Path('parts').resolve()}}}", str(own))
    assert cured.returncode == 0, cured.stderr


def test_a_metric_that_one_route_alone_names_has_a_cure(own: Path) -> None:
    Path("two.csv").write_text("q,a,d\nWhat is 1+1?,2,my/math\nSay yes,yes,my/words\n")
    made = hysweep("data", "convert", "two.csv", "-o", "two.parquet", "--prompt", "q", "--answer", "a",
                   "--data-source", "{d}")  # fmt: skip
    assert made.returncode == 0, made.stderr
    Path("fns.py").write_text("def score(solution_str, **_):\n    return {'score': 1, 'words': 2}\n")
    routes = "reward=router reward.routes={my/math: exact_match, my/words: 'fns.py:score'}"
    said = hysweep("reward", "try", routes, "two.parquet")
    cure = "leave words out of the function that names it, or route my/math through one that names it too"
    assert said.returncode == 1 and cure in said.stdout
    Path("fns.py").write_text("def score(solution_str, **_):\n    return 1\n")
    assert hysweep("reward", "try", routes, "two.parquet").returncode == 0


def test_overrides_of_a_trial_may_have_spaces_in_them(own: Path) -> None:
    done = hysweep("reward", "try", "reward=router reward.routes={my/math: exact_match}", str(own))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data", "convert", "own.csv", "-o", "own.parquet", "--prompt", "question"), "is there already"),
        (
            ("data", "convert", "own.csv", "-o", "x.parquet", "--prompt", "question", "--config", "main"),
            "--config = main",
        ),
        (
            (
                "data",
                "convert",
                "own.csv",
                "-o",
                "x.parquet",
                "--prompt",
                "question",
                "--answer",
                "answer",
                "--data-source",
                "d",
                "--extra",
                "a.level,b.level",
            ),
            "--extra = a.level,b.level: would be one field of extra_info",
        ),
        (("data", "convert", "none.csv", "-o", "x.parquet"), "no such file"),
        (("data", "prepare", "gsm8"), "did you mean gsm8k"),
        (("data", "check", "own.parquet", "trainer.lerning_rate=1"), "learning_rate"),
        (("reward", "try", "mth", "own.parquet"), "did you mean math"),
        (("reward", "try", "none.py:f", "own.parquet"), "no such file"),
        (("reward", "try", "math", "own.csv"), "has no column"),
        (("reward", "try", "math", "own.parquet", "--answers", "latin1.txt"), "is no UTF-8"),
        (("reward", "try", "math", "own.parquet", "--answers", "row.jsonl"), "its row is no number"),
        (("reward", "try", "math", "own.parquet", "--answers", "twice.jsonl"), "line 2: row 0 has an answer already"),
        (("data", "convert", "own.csv", "-o", "own.csv/x.parquet", "--prompt", "question"), "cannot be written"),
    ],
)
def test_bad_input_is_one_clear_error(words: tuple[str, ...], said: str, own: Path) -> None:
    Path("latin1.txt").write_bytes(b"caf\xe9\n")
    Path("row.jsonl").write_text('{"row": "x", "answer": "1"}\n')
    Path("twice.jsonl").write_text('{"row": 0, "answer": "1"}\n' * 2)
    answer = hysweep(*words)
    assert answer.returncode == 2, answer.stdout
    assert said in answer.stderr and "Traceback" not in answer.stderr
    assert not Path("x.parquet").exists()


def test_neither_reading_nor_scoring_brings_the_trainer(own: Path) -> None:
    """Nor `datasets`, pandas and transformers, where a file is no set of a hub."""
    code = (
        "import sys\n"
        "import hysweep.cli.data, hysweep.data.check, hysweep.data.convert, hysweep.data.sets, hysweep.rewards.router\n"
        "print(sorted({'torch', 'ray', 'verl', 'transformers', 'datasets', 'pandas'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
