"""Each ready reward on its own scale."""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from typing import Any

import pytest

from hysweep.rewards import ready
from hysweep.rewards.child import Child, TooLong


@pytest.mark.parametrize(
    ("answer", "truth", "options", "score"),
    [
        (" 42 \n", "42", {}, 1), ("42.", "42", {}, 0), ("so\n#### 42", 42, {"after": "####"}, 1),
        ("42", "42", {"after": "####"}, 0),
        ("A", "a", {"ignore_case": True}, 1), ("A", "a", {}, 0), ("x=1, x=2", "2", {"regex": r"x=(\d)"}, 1),
        ("none", "2", {"regex": r"x=(\d)"}, 0), ("b", ["a", "b"], {}, 1), ("", "", {}, 1),
    ],
)  # fmt: skip
def test_exact_match(answer: str, truth: Any, options: dict[str, Any], score: float) -> None:
    assert ready.exact_match(answer, truth, **options) == {"score": score, "acc": score}


@pytest.mark.skipif(find_spec("jsonschema") is None, reason="pip install 'hysweep[reward]'")
def test_json_that_is_nested_too_deep_does_not_have_the_schema() -> None:
    schema = {"type": "array", "items": {"$ref": "#"}}
    assert ready.json_schema("[" * 900 + "]" * 900, schema=schema) == {"score": 0.5, "acc": 0.0}


@pytest.mark.skipif(find_spec("math_verify") is None, reason="pip install 'hysweep[reward]'")
@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        ("so $\\boxed{\\frac{1}{2}}$", "0.5", 1), ("The answer is \\boxed{x+1}", "1+x", 1), ("\\boxed{3}", "4", 0),
        ("", "4", 0),
        ("no idea", "4", 0), ("\\boxed{1,013}", "1013", 1), ("\\boxed{\\{1,2\\}}", "\\{2,1\\}", 1),
        ("\\boxed{(1,2)}", "(2,1)", 0),
        ("It is 7", 7, 1),
    ],
)  # fmt: skip
def test_math(answer: str, truth: Any, score: float) -> None:
    assert ready.math(answer, truth) == {"score": score, "acc": score}


@pytest.mark.parametrize(
    ("answer", "options", "score"),
    [
        ("<think>a\nb</think>\n<answer>c</answer>", {}, 1), ("<answer>c</answer>", {}, 0),
        ("x <think></think><answer></answer>", {}, 0),
        ("yes", {"regex": "yes|no"}, 1), ("yes!", {"regex": "yes|no"}, 0),
    ],
)  # fmt: skip
def test_format(answer: str, options: dict[str, Any], score: float) -> None:
    assert ready.format(answer, **options)["score"] == score


@pytest.mark.parametrize(
    ("words", "options", "score"),
    [
        (5, {}, 1), (5, {"least": 5, "most": 5}, 1), (6, {"most": 5}, 0), (6, {"most": 5, "slack": 4}, 0.75),
        (4, {"least": 5, "slack": 2}, 0.5),
        (50, {"most": 5, "slack": 4}, 0),
    ],
)  # fmt: skip
def test_length(words: int, options: dict[str, Any], score: float) -> None:
    told = ready.length("w " * words, **options)
    assert told == {"score": score, "acc": float(score == 1)}


def test_length_in_characters() -> None:
    assert ready.length("abcd", most=4, unit="characters")["score"] == 1
    with pytest.raises(ValueError, match="words or characters"):
        ready.length("a", unit="lines")


ADD = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7\n"]}
GOOD = "Here:\n```python\na, b = map(int, input().split())\nprint(a + b)\n```\n"


@pytest.mark.parametrize(
    ("answer", "truth", "options", "score"),
    [
        (GOOD, ADD, {}, 1),
        (GOOD, json.dumps(ADD), {}, 1),
        ("print(3)", ADD, {}, 0.5),
        ("print(3)", ADD, {"is_partial": False}, 0),
        ("oops(", ADD, {}, 0),
        ("def f(x):\n    return x + 1", {"asserts": ["assert f(1) == 2", "assert f(1) == 3"]}, {}, 0.5),
        ("while True: pass", {"inputs": [""], "outputs": [""]}, {"timeout_s": 0.5}, 0),
        ("x = 'a' * 2**31\nprint(1)", {"inputs": [""], "outputs": ["1"]}, {"memory_mib": 256}, 0),
        ("import os; print(os.environ.get('SECRET', 'none'))", {"inputs": [""], "outputs": ["none"]}, {}, 1),
        ("import os; print(len(os.listdir('.')))", {"inputs": [""], "outputs": ["1"]}, {}, 1),
    ],
)  # fmt: skip
def test_code(answer: str, truth: Any, options: dict[str, Any], score: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "token")
    assert ready.code(answer, truth, **options) == {"score": score, "acc": float(score == 1)}


def test_code_without_tests_is_the_files_fault() -> None:
    with pytest.raises(ValueError, match="no tests"):
        ready.code("print(1)", {})


PERSON = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}


@pytest.mark.skipif(find_spec("jsonschema") is None, reason="pip install 'hysweep[reward]'")
@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ('{"name": "Ann"}', 1),
        ('```json\n{"name": "Ann"}\n```', 1),
        ('{"name": 1}', 0.5),
        ("[]", 0.5),
        ("Ann", 0),
        ("", 0),
        ("[" * 100_000, 0),
    ],
)
def test_json_schema(answer: str, score: float, tmp_path) -> None:
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    for given in ({"schema": PERSON}, {"truth": json.dumps(PERSON)}, {"schema_file": str(tmp_path / "person.json")}):
        assert ready.json_schema(answer, **given) == {"score": score, "acc": float(score == 1)}


@pytest.mark.skipif(find_spec("math_verify") is None, reason="pip install 'hysweep[reward]'")
def test_what_does_not_come_back_is_ended_and_the_next_is_answered() -> None:
    child = Child()
    assert child.ask("math_equal", ["\\boxed{2}", "2"], 30) == 1.0
    assert child._process is not None
    os.kill(child._process.pid, signal.SIGSTOP)
    with pytest.raises(TooLong):
        child.ask("math_equal", ["\\boxed{2}", "2"], 0.1)
    assert child.ask("math_equal", ["\\boxed{2}", "2"], 30) == 1.0
    child._end()
