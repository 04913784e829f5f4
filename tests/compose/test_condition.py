"""Conditions: a small grammar that is read whole, says where it is wrong, and never raises once it was read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hysweep.compose.condition import parse_condition
from hysweep.compose.grammar import Vocabulary
from hysweep.schema import BadInput

WORDS = Vocabulary(
    fields={"rollout.n": int, "trainer.rate": float, "trainer.on": bool, "reward.kind": str, "data.files": list[str]},
    groups={"algorithm": ["grpo", "gspo"]},
    dicts=("verl",),
)
VALUES = {"rollout.n": 8, "trainer.rate": 0.5, "trainer.on": True, "reward.kind": "rule", "algorithm": "grpo",
          "data.files": ["a"], "verl.x.y": None}  # fmt: skip


def holds(text: str, **others: object) -> bool:
    known = VALUES | {k.replace("__", "."): v for k, v in others.items()}
    return parse_condition(text, WORDS, "space.filter").holds(known.get)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("algorithm == grpo", True),
        ("algorithm == 'gspo'", False),
        ("algorithm != gspo", True),
        ("algorithm in [grpo, gspo] and rollout.n >= 8", True),
        ("algorithm not in [gspo]", True),
        ("not (rollout.n < 8 or trainer.on == false)", True),
        ("4 < rollout.n <= 8", True),
        ("rollout.n * 2 + 1 == 17", True),
        ("rollout.n % 3 == 2 and rollout.n / 4 == 2", True),
        ("-rollout.n < -7.5", True),
        ("trainer.on", True),
        ("trainer.on == true", True),
        ("reward.kind == rule", True),
        ("trainer.rate == 5e-1", True),
        ("verl.x.y == null", True),
        ("verl.x.y > 3", False),  # nothing is neither above nor below
        ("verl.x.y <= 3", False),
        ("rollout.n / (rollout.n - 8) > 0", False),  # nor is what cannot be divided
        ("verl.x.y == 1 or rollout.n\n == 8", True),
    ],
)
def test_what_it_says(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("algorithm = grpo", "cannot be read: invalid syntax, at character 11; write == to compare"),
        ("algorithm == grpoo", "did you mean grpo"),
        ("algorithm in [grpo, gsppo]", "did you mean gspo"),
        ("rollout.m == 3", "'rollout.m' (at character 1) is no field"),
        ("rollout.n == 3 and rollout.k == 4", "(at character 20)"),
        ("grpo == gspo", "names no field"),
        ("1 == 1", "names no field"),
        ("rollout.n", "a value and no condition"),
        ("rollout.n and trainer.on", "no condition"),
        ("rollout.n == rule", "can never be the same"),
        ("reward.kind < 3", "only numbers have an order"),
        ("trainer.on == 1", "can never be the same"),
        ("rollout.n in 3", "is no list"),
        ("rollout.n is 3", "compared in a way"),
        ("__import__('os').system('x')", "no part of a condition"),
        ("rollout.n ** 999 > 1", "no part of a condition"),
        ("[x for x in rollout.n] == 1", "no part of a condition"),
        ("lambda: 1", "no part of a condition"),
        ("(rollout.n := 3) == 3", "cannot be read"),
        ("f'{rollout.n}' == 'a'", "no part of a condition"),
        ("rollout.n == 3j", "no part of a condition"),
        ("rollout.n == 1e999", "no part of a condition"),
        ("(" * 500 + "rollout.n == 1" + ")" * 500, "cannot be read"),
        ("not " * 400 + "trainer.on", ""),
        ("rollout.n == 1 and " * 200 + "trainer.on", "longer than"),
        ("\0", "cannot be read"),
    ],
)
def test_what_is_none_is_told_with_its_place(text: str, says: str) -> None:
    if not says:
        assert holds(text) is True
        return
    with pytest.raises(BadInput) as caught:
        holds(text)
    (problem,) = caught.value.problems
    assert problem.key == "space.filter"
    assert says in str(problem)


# --- properties

NAMES = st.sampled_from(["rollout.n", "trainer.rate"])


@st.composite
def numbers(draw, depth: int = 2) -> str:
    if depth == 0 or draw(st.booleans()):
        number = st.one_of(st.integers(0, 99), st.floats(0, 9, allow_nan=False).map(lambda f: round(f, 3)))
        return draw(st.one_of(NAMES, number.map(str)))
    left, right = draw(numbers(depth - 1)), draw(numbers(depth - 1))
    return f"({left} {draw(st.sampled_from('+-*'))} {right})"


@st.composite
def conditions(draw, depth: int = 3) -> str:
    kind = draw(st.sampled_from(["compare", "in", "not", "and", "or"] if depth else ["compare", "in"]))
    if kind == "compare":
        order = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
        return f"{draw(numbers())} {order} {draw(numbers())}"
    if kind == "in":
        negated = draw(st.sampled_from(["", "not "]))
        return f"{draw(numbers())} {negated}in [{', '.join(draw(st.lists(numbers(1), min_size=1, max_size=3)))}]"
    if kind == "not":
        return f"not ({draw(conditions(depth - 1))})"
    return f"({draw(conditions(depth - 1))}) {kind} ({draw(conditions(depth - 1))})"


@given(conditions(), st.integers(-20, 20), st.floats(-5, 5, allow_nan=False))
def test_it_agrees_with_python_where_both_can_read_it(text: str, n: int, rate: float) -> None:
    """Python's own eval is the judge: of texts that this test made, with names and numbers alone."""
    try:
        condition = parse_condition(text, WORDS, "space.filter")
    except BadInput as e:
        assert "names no field" in str(e)
        return
    python = text.replace("rollout.n", "n").replace("trainer.rate", "rate")
    assert condition.holds({"rollout.n": n, "trainer.rate": rate}.get) is bool(eval(python, {"n": n, "rate": rate}))
    again = parse_condition(condition.text, WORDS, "space.filter")
    assert again == condition


PIECES = [
    "rollout.n",
    "algorithm",
    "grpo",
    "==",
    "in",
    "not",
    "and",
    "(",
    ")",
    "[",
    "]",
    ",",
    "3",
    "'x'",
    ".",
    "=",
    "\\",
]


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)))
def test_any_text_is_read_or_refused_and_never_raises(text: str) -> None:
    try:
        condition = parse_condition(text, WORDS, "space.filter")
    except BadInput as e:
        assert len(e.problems) == 1
        return
    for values in (VALUES, dict.fromkeys(VALUES), dict.fromkeys(VALUES, "text"), dict.fromkeys(VALUES, True)):
        assert condition.holds(values.get) in (True, False)
