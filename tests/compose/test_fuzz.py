"""Sweep files and command lines of any content: composed, or refused with the project's own error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from hysweep.compose import Composer
from hysweep.schema import BadInput
from hysweep.study import define
from tests.fuzzing import damaged, examples, texts_of

KEYS = ("algorithm", "rollout.n", "trainer.learning_rate", "study", "study.name", "study.n_trials", "study.pruner",
        "space", "study.sampler.name", "sweep", "cluster.nodes", "tracking.tags", "verl.a.b", "zip", "filter", "seeds",
        "")  # fmt: skip
WORD = texts_of(
    "choice(", "interval(", "range(", "tag(log,", "int(", ")", "(", ",", "1", "0.5", "1e-3", "grpo", "'", '"', "{", "}",
    "[", "]", ":", "=", "${", "}", "\\", "null", "nan", "inf", "*", "glob(", "shuffle(", "-", " ", most=7,
)  # fmt: skip
SWEEP = """# @package _global_
defaults:
  - override /algorithm: grpo
study:
  name: fuzz
  metric: critic/score/mean
  n_trials: 4
  pruner: {name: median, min_steps: 2}
space:
  algorithm: choice(grpo, rloo)
  trainer.learning_rate: tag(log, interval(1e-5, 1e-3))
  algorithm.clip_ratio_high:
    - {when: algorithm == grpo, in: "interval(0.2, 0.4)"}
  filter: ["rollout.n < 9"]
  seeds: 2
"""
SCALAR = st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | WORD
CONTENT = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | WORD, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def take(composer: Composer, words: list[str]) -> None:
    """Composed and defined, or refused; every problem in lines that people can read."""
    try:
        definition = define(composer.compose(words))
    except BadInput as e:
        assert e.problems and all(p.key or p.why for p in e.problems)
        return
    assert definition.directory.path.parent.name == "outputs"


@examples(40)
@given(st.lists(st.tuples(st.sampled_from(["", "+", "~", "++"]), st.sampled_from(KEYS), WORD), max_size=3))
def test_any_command_line(composer: Composer, words: list[tuple[str, str, str]]) -> None:
    take(composer, [f"{sign}{key}={value}" for sign, key, value in words])


@examples(60)
@given(st.lists(WORD, max_size=3))
def test_any_words(composer: Composer, words: list[str]) -> None:
    take(composer, words)


@examples(15)
@given(damaged(SWEEP) | WORD)
@example("a: &a [*a, *a]")
@example("0")
@example("true")
@example("1.5")
@example("[" * 3000)
@example("? {a: b}\n: c")
@example("2026-01-01: 1\n1: 2\ntrue: 3")
def test_any_text_as_a_sweep_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "fuzz.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    take(Composer(), [f"sweep={file}"])


@examples(12)
@given(st.dictionaries(st.sampled_from(KEYS[1:]), CONTENT, max_size=4), CONTENT, CONTENT)
def test_any_content_of_a_sweep_file(tmp_path: Path, content: dict[str, Any], space: Any, study: Any) -> None:
    file = tmp_path / "fuzz.yaml"
    tree = {"space": space, "study": study, **content}
    file.write_text("# @package _global_\n" + yaml.safe_dump(tree), encoding="utf-8")
    take(Composer(), [f"sweep={file}"])
