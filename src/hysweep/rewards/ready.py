"""Ready rewards. Each says its scale, and takes the answer, the ground truth, and options of its own.

All return {"score": ..., "acc": ...}; acc is 1 for an answer that is right altogether, else 0. None of them raises for
what a model wrote: that is a low score. What is wrong with an option or a ground truth raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hysweep.rewards.child import CHILD, TooLong

Score = dict[str, float]

THINK_ANSWER = r"\s*<think>.*?</think>\s*<answer>.*?</answer>\s*"


def _score(value: float, is_right: bool | None = None) -> Score:
    return {"score": float(value), "acc": float(value >= 1.0 if is_right is None else is_right)}


def exact_match(solution: str, truth: Any, *, after: str = "", ignore_case: bool = False, regex: str = "") -> Score:
    """1 where the answer is the ground truth, but for space around it; else 0.

    after        only what follows the last of this text counts, as ``####``; without it the answer is wrong
    regex        only its first group counts, where it matches last
    ignore_case  A is a
    """
    said = solution
    if after:
        _, found, said = solution.rpartition(after)
        if not found:
            return _score(0)
    if regex:
        matches = list(_compiled(regex).finditer(said))
        if not matches:
            return _score(0)
        said = matches[-1].group(1 if matches[-1].re.groups else 0) or ""
    truths = truth if isinstance(truth, (list, tuple)) else [truth]
    pairs = [(said.strip(), str(one).strip()) for one in truths]
    return _score(any((a.casefold() == b.casefold()) if ignore_case else a == b for a, b in pairs))


def math(solution: str, truth: Any, *, timeout_s: float = 10.0) -> Score:
    """1 where the answer's last expression equals the ground truth by math-verify, else 0; 0 where it takes too long.

    The ground truth may be a number, an expression, or a text with \\boxed{} in it.
    """
    try:
        return _score(float(CHILD.ask("math_equal", [solution, str(truth)], timeout_s)))
    except TooLong:
        return _score(0)


def format(solution: str, truth: Any = None, *, regex: str = THINK_ANSWER) -> Score:
    """1 where the whole answer is of the form that the regular expression says, else 0.

    The default is <think>...</think><answer>...</answer>, with space anywhere between.
    """
    return _score(_compiled(regex).fullmatch(solution) is not None)


def length(
    solution: str, truth: Any = None, *, least: int = 0, most: int | None = None, slack: int = 0, unit: str = "words"
) -> Score:
    """1 from `least` to `most`, falling evenly to 0 over `slack` beyond either; 0 at once where slack is 0.

    unit  words, or characters
    """
    if unit not in ("words", "characters"):
        raise ValueError(f"unit = {unit}: is none that is counted; give words or characters")
    size = len(solution.split()) if unit == "words" else len(solution)
    beyond = max(least - size, size - most if most is not None else 0, 0)
    if not beyond:
        return _score(1)
    return _score(max(0.0, 1 - beyond / slack) if slack else 0.0, False)


def code(
    solution: str, truth: Any, *, timeout_s: float = 10.0, memory_mib: int = 1024, most_tests: int = 32,
    is_partial: bool = True,
) -> Score:  # fmt: skip
    """The share of the tests that the answer's Python program passes, or 1 and 0 with ``is_partial: false``.

    The ground truth is JSON (or the same as a dict): ``{"inputs": [...], "outputs": [...]}``, what is typed and what
    must be printed; or ``{"asserts": ["assert f(1) == 2", ...]}``. The program is the last block in ```python fences,
    or all of the answer. Each test is a process of its own with a limit of time and memory, in an empty directory,
    without the environment. That stops accidents, not attacks: of a model that is not to be trusted run programs in
    Sandbox Fusion, through verl's routing
    (``reward=sandbox``).
    """
    from hysweep.rewards.sandbox import passed

    tests = json.loads(truth) if isinstance(truth, str) else truth
    if not isinstance(tests, Mapping):
        raise ValueError(f"the ground truth has no tests: {str(truth)[:80]}; give inputs and outputs, or asserts")
    share = passed(program_of(solution), tests, timeout_s, memory_mib, most_tests)
    return _score(share if is_partial else float(share == 1.0), share == 1.0)


def json_schema(solution: str, truth: Any = None, *, schema: Any = None, schema_file: str = "") -> Score:
    """1 for JSON that has the schema, 0.5 for other JSON, 0 for what is none.

    The schema is `schema`, the file `schema_file`, or else the ground truth. Fences around the answer are taken off.
    """
    import jsonschema

    wanted = schema if schema is not None else _json_file(schema_file) if schema_file else truth
    if isinstance(wanted, str):
        wanted = json.loads(wanted)
    if not isinstance(wanted, Mapping):
        raise ValueError(f"the schema is no object: {str(wanted)[:80]}")
    validator = _validator(json.dumps(dict(wanted), sort_keys=True))
    try:
        found = json.loads(_unfenced(solution))
    except (ValueError, RecursionError):
        return _score(0)
    try:
        validator.validate(found)
    except (jsonschema.ValidationError, RecursionError):  # what is nested too deep to be looked at has it not
        return _score(0.5)
    return _score(1)


_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def program_of(solution: str) -> str:
    """The last fenced block, or all of it."""
    blocks = _FENCED.findall(solution)
    return str(blocks[-1]) if blocks else solution


def _unfenced(text: str) -> str:
    found = re.search(r"```(?:json)?[ \t]*\n(.*?)```", text, re.DOTALL)
    return found[1] if found else text


@lru_cache(maxsize=64)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.DOTALL)


@lru_cache(maxsize=64)
def _json_file(path: str) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    import jsonschema

    wanted = json.loads(schema)
    kind = jsonschema.validators.validator_for(wanted)
    kind.check_schema(wanted)
    return kind(wanted)
