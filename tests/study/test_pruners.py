"""Each rule on curves made for it: when it prunes, when it does not, and what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hysweep.compose import Composer
from hysweep.schema import Pruner, Severity, Study
from hysweep.schema.search import PRUNER_OPTIONS
from hysweep.study.pruners import RULES, Other, idle_pruners, reason_to_prune

SCORE, ENTROPY, DIFF = "critic/score/mean", "actor/entropy", "training/rollout_probs_diff_mean"


def judge(
    rule: Pruner,
    curve: Sequence[float],
    others: Sequence[Sequence[float]] = (),
    metric: str = SCORE,
    since: int = 0,
    completed: bool = True,
    **study: object,
) -> str | None:
    curves = {metric: list(enumerate(curve, start=1))}
    known = [Other(n, list(enumerate(c, start=1)), completed) for n, c in enumerate(others)]
    return reason_to_prune(
        Study(name="s", pruner=rule, **study),  # type: ignore[arg-type]
        len(known),
        lambda name: curves.get(name, []),
        lambda name: known,
        since,
        27,
    )


def test_every_rule_is_there() -> None:
    assert set(RULES) == set(PRUNER_OPTIONS) - {"none"}


CASES = [
    (Pruner(name="median"), [0.1], [[0.5], [0.7]], "the best 50 % of 2 completed ones had 0.6 there (median)"),
    (Pruner(name="median"), [0.4, 0.1], [[0.3, 0.5], [0.3, 0.5]],
     "up to step 2 its best critic/score/mean was 0.4, and the best 50 % of 2 completed ones had 0.5"),
    (Pruner(name="median"), [0.1], [[0.5]], None),  # too few have completed
    (Pruner(name="median", min_steps=2), [0.1], [[0.5], [0.5]], None),
    (Pruner(name="median"), [0.6, 0.1], [[0.5, 0.5], [0.5, 0.5]], None),  # its best counts
    (Pruner(name="percentile", percentile=75.0), [0.5], [[0.2], [0.6], [0.8], [0.9]], None),
    (Pruner(name="percentile", percentile=75.0), [0.3], [[0.2], [0.6], [0.8], [0.9]], "the best 75 % of 4"),
    (Pruner(name="successive_halving", min_steps=2), [0.9, 0.1], [[0.0, 0.5], [0.0, 0.4]],
     "2 of the 3 on the rung of step 2 are better, and 1 may go on (successive_halving)"),
    (Pruner(name="successive_halving", min_steps=2), [0.1, 0.5], [[0.0, 0.4], [0.0, 0.3]], None),
    (Pruner(name="successive_halving", min_steps=2), [0.1], [[0.5], [0.5]], None),  # no rung yet
    (Pruner(name="successive_halving", min_steps=2), [0.1, 0.1], [[0.5], [0.5]], None),  # nobody else has come so far
    (Pruner(name="patient", patience=2), [0.5, 0.4, 0.5], [], "of the last 2 values none was better than 0.5"),
    (Pruner(name="patient", patience=2), [0.5, 0.4, 0.6], [], None),
    (Pruner(name="patient", patience=2, min_delta=0.2), [0.5, 0.4, 0.6], [], "none was better"),
    (Pruner(name="threshold", low=0.2), [0.3, 0.1], [], "at step 2 critic/score/mean was 0.1, below 0.2 (threshold)"),
    (Pruner(name="threshold", high=0.2), [0.1, 0.3], [], "above 0.2"),
    (Pruner(name="threshold", low=0.0, high=1.0), [0.0, 1.0], [], None),
    (Pruner(name="nan"), [0.1, math.nan], [], "at step 2 critic/score/mean was nan, which is no number (nan)"),
    (Pruner(name="nan"), [0.1, 0.2], [], None),
    (Pruner(name="reward_collapse", patience=2), [0.8, 0.3, 0.3], [],
     "for 2 values below 0.5 of its best, 0.8 (reward_collapse)"),
    (Pruner(name="reward_collapse", patience=2), [0.8, 0.3, 0.5, 0.3], [], None),
    (Pruner(name="reward_collapse", patience=2), [-0.1, -0.9, -0.9], [], None),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "curve", "others", "says"), CASES)
def test_rules(rule: Pruner, curve: list[float], others: list[list[float]], says: str | None) -> None:
    reason = judge(rule, curve, others)
    assert (reason is None) if says is None else (says in (reason or "")), reason


@pytest.mark.parametrize(
    ("rule", "metric", "curve", "says"),
    [
        (Pruner(name="entropy_collapse"), ENTROPY, [0.3, *[0.01] * 5], "for 5 values below 0.02 (entropy_collapse)"),
        (Pruner(name="entropy_collapse"), ENTROPY, [0.3, *[0.01] * 4], None),
        (Pruner(name="entropy_collapse", low=0.5, patience=1), ENTROPY, [0.3], "below 0.5"),
        (Pruner(name="probs_diff"), DIFF, [0.01, 0.06, 0.06, 0.06], "for 3 values above 0.05 (probs_diff)"),
        (Pruner(name="probs_diff"), DIFF, [0.014] * 9, None),
        (Pruner(name="nan"), "actor/grad_norm", [1.0, math.inf], "actor/grad_norm was inf"),
    ],
)
def test_rules_of_the_field_look_at_their_own_metric(rule: Pruner, metric: str, curve: list[float], says) -> None:
    reason = judge(rule, curve, metric=metric)
    assert (reason is None) if says is None else (says in (reason or "")), reason


def test_a_minimised_metric_turns_it_round() -> None:
    rule = Pruner(name="median")
    assert judge(rule, [0.9], [[0.1], [0.2]], direction="minimize") is not None
    assert judge(rule, [0.1], [[0.5], [0.6]], direction="minimize") is None
    assert judge(Pruner(name="median", direction="maximize"), [0.1], [[0.5], [0.6]], direction="minimize") is not None


def test_what_was_judged_is_not_judged_again() -> None:
    rule = Pruner(name="successive_halving", min_steps=1, reduction_factor=3)
    late = [[0.5, 0.5], [0.6, 0.6]]
    assert judge(rule, [0.1, 0.1], late) is not None
    assert judge(rule, [0.1, 0.1], late, since=1) is None, "it passed the rung of step 1 when it was there"


def test_the_first_of_several_rules_that_says_so_does() -> None:
    rule, more = Pruner(name="nan"), [Pruner(name="threshold", low=0.5)]
    assert (judge(rule, [0.1], pruners=more) or "").endswith("(threshold)")
    assert (judge(rule, [math.nan], pruners=more) or "").endswith("(nan)")


def test_hyperband_keeps_its_brackets_apart() -> None:
    """Of 40 trials with steady values, each bracket prunes from its own rung on, and some run to the end."""
    rule = Pruner(name="hyperband", min_steps=1, reduction_factor=3)
    stops = []
    for number in range(40):
        others = [Other(n, [(s, n / 40) for s in range(1, 28)], True) for n in range(40) if n != number]
        value = number / 40
        stop = None
        for step in range(1, 28):
            curve = [(s, value) for s in range(1, step + 1)]
            study = Study(name="s", pruner=rule)
            if reason_to_prune(study, number, lambda m, c=curve: c, lambda m, o=others: o, step - 1, 27):
                stop = step
                break
        stops.append(stop)
    assert None in stops and {s for s in stops if s} <= {1, 3, 9, 27}
    assert len(set(stops)) > 2, "more than one bracket"
    assert stops[39] is None, "the best goes on"


numbers = st.one_of(st.floats(-5, 5, allow_nan=False), st.just(math.nan), st.just(math.inf))


@given(
    st.sampled_from(sorted(RULES)),
    st.lists(numbers, min_size=1, max_size=12),
    st.lists(st.lists(numbers, max_size=12), max_size=4),
    st.sampled_from(["maximize", "minimize"]),
)
def test_no_curve_makes_a_rule_stumble(name: str, curve, others, direction: str) -> None:
    rule = Pruner(name=name, low=0.0) if name == "threshold" else Pruner(name=name)
    reason = judge(rule, curve, others, direction=direction)
    assert reason is None or (reason.startswith(("at step ", "up to step ")) and reason.endswith(f"({name})"))


@given(st.lists(st.lists(st.floats(-5, 5), min_size=9, max_size=9), min_size=1, max_size=9))
def test_the_best_curve_is_never_pruned_by_comparison(others: list[list[float]]) -> None:
    best = [max(values) + 1 for values in zip(*others, strict=True)]
    for name in ("median", "percentile", "successive_halving", "hyperband"):
        assert judge(Pruner(name=name), best, others) is None


def test_a_rule_that_waits_for_a_step_that_no_trial_has_is_said(composer: Composer) -> None:
    words = ["sweep=quickstart", "trainer.total_steps=10", "study.pruners=[{name: nan, min_steps: 11}]"]
    late = composer.compose([*words, "study.pruner={name: median, min_steps: 400}"])
    found = idle_pruners(late.trial, late.study)
    assert [(p.key, p.value, p.severity) for p in found] == [
        ("study.pruner.min_steps", 400, Severity.WARNING),
        ("study.pruners[1].min_steps", 11, Severity.WARNING),
    ]
    soon = composer.compose(
        ["sweep=quickstart", "trainer.total_steps=10", "study.pruner={name: median, min_steps: 10}"]
    )
    assert not idle_pruners(soon.trial, soon.study)
