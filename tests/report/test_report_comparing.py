"""Several objectives and several seeds, from the files to the tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hysweep.report import leaderboard, live_table, read_study
from hysweep.report.comparing import mean_of, pareto_front
from hysweep.report.page import page
from hysweep.report.searching import importances_of
from hysweep.track import Cause, State, Status

METRIC = "val-core/tiny_copy/acc/mean@1"


def shown(what) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(what)
    return console.export_text()


def test_the_interval_of_three_values() -> None:
    mean = mean_of([1.0, 2.0, 3.0])
    assert mean is not None and (mean.mean, mean.count) == (2.0, 3)
    assert mean.half_width == pytest.approx(4.303 / math.sqrt(3))
    one = mean_of([5.0])
    assert one is not None and one.half_width is None
    assert mean_of([]) is None


def test_a_front() -> None:
    points = [(1.0, 5.0), (2.0, 4.0), (2.0, 6.0), (0.5, 5.0), (2.0, 4.0)]
    assert pareto_front(points, [1, -1]) == [1, 4], "equals are both on it"
    assert pareto_front(points, [1, 1]) == [2]
    assert pareto_front([], [1, 1]) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_whatever_is_off_the_front_is_beaten_by_something_on_it(points: list[tuple[int, int]]) -> None:
    front = pareto_front(points, [1, 1])
    assert front
    for i, (a, b) in enumerate(points):
        beaten = any(x >= a and y >= b and (x, y) != (a, b) for x, y in (points[k] for k in front))
        assert beaten is (i not in front)


def two_objectives(make_study):
    study = make_study(
        "two",
        study={
            "objectives": [
                {"metric": METRIC, "direction": "maximize", "reduce": "last"},
                {"metric": "gpu_hours", "direction": "minimize", "reduce": "last"},
            ]
        },
    )
    for number, values in enumerate([(0.5, 2.0), (0.9, 5.0), (0.4, 3.0)]):
        trial = study.trial({"rollout.n": 2**number}, Cause.COMPLETED)
        trial.save(State(Status.ENDED, attempt=1, cause=Cause.COMPLETED, value=values[0], values=values))
    study.trial({"rollout.n": 16}, Cause.PRUNED, reason="at step 3 it was bad")
    return study


def test_the_front_of_a_study(make_study) -> None:
    record = read_study(two_objectives(make_study).path)
    assert [t.number for t in record.front] == [1, 0]
    assert record.best is not None and record.best.number == 1, "by the first objective"
    table = shown(leaderboard(record, width=160))
    assert "gpu_hours" in table and table.count("★") == 2
    live = shown(live_table(record, width=160, height=40))
    assert "Pareto front: trials 1, 0" in live and "minimise gpu_hours" in live


def test_the_page_of_a_front(make_study) -> None:
    record = read_study(two_objectives(make_study).path)
    text = page(record, "")
    assert 'data-figure="pareto-1"' in text and "Pareto front" in text
    assert "minimise <code>gpu_hours</code>" in text


def test_replicates_are_ranked_by_the_mean_of_their_point(make_study) -> None:
    study = make_study("seeds", space={"rollout.n": "choice(2,4)", "seeds": [1, 2], "filter": ["rollout.n > 1"]})
    for n, seed, value in [(2, 1, 0.9), (4, 1, 0.7), (2, 2, 0.1), (4, 2, 0.6)]:
        study.trial({"rollout.n": n, "trainer.seed": seed}, Cause.COMPLETED, value=value)
    record = read_study(study.path)
    assert record.filters == ("rollout.n > 1",) and record.keys == ("rollout.n", "trainer.seed")
    assert [t.number for t in record.ranked] == [1, 3, 0, 2], "0.65 before 0.5, though 0.9 was the highest"
    assert record.best is not None and record.best.number == 1
    mean = record.mean(record.best)
    assert mean is not None and mean.mean == pytest.approx(0.65)
    assert "mean±95%" in shown(leaderboard(record, width=160))
    text = page(record, "")
    assert "over 2 seeds" in text and "rollout.n &gt; 1" in text


def test_confirmed_points_are_told_and_weigh_no_more_than_others(make_study) -> None:
    confirm = {"confirm": {"top": 1, "seeds": 2}}
    study = make_study("sure", study=confirm, space={"rollout.n": "choice(2,4,8)", "algorithm": "choice(grpo,cispo)"})
    for place, value in enumerate([0.5, 0.6, 0.7, 0.1, 0.2, 0.3]):
        point = {"rollout.n": 2 ** (1 + place % 3), "algorithm": ("grpo", "cispo")[place // 3]}
        study.trial(point, Cause.COMPLETED, value=value)
    for seed, value in ((2, 0.5), (3, 0.75)):
        study.trial({"rollout.n": 8, "algorithm": "grpo", "trainer.seed": seed}, Cause.COMPLETED, value=value)
    record = read_study(study.path)
    assert record.confirming == 2 and record.best_value == pytest.approx(0.65)
    found = importances_of(record)
    assert found is not None and found.trials == 6
    text = page(record, "")
    assert "; then the best with 2 new seeds." in text and "mean of 3 runs" in text
    assert "over 3 seeds. The next point, that of trial 1 (" in text and "), has 0.6." in text


def test_ranges_of_every_kind_are_shown_in_words(make_study) -> None:
    space = {
        "algorithm": "choice(grpo,gspo)",
        "algorithm.clip_ratio_high": [{"when": "algorithm == grpo", "in": "interval(0.2,0.4)"}, {"in": "choice(1)"}],
        "zip.a": [{"rollout.n": 2, "trainer.seed": 1}, {"rollout.n": 4, "trainer.seed": 2}],
    }
    record = read_study(make_study("kinds", space=space).path)
    assert record.space == {
        "algorithm": "choice(grpo,gspo)",
        "algorithm.clip_ratio_high": "interval(0.2,0.4) when algorithm == grpo; choice(1) otherwise",
        "rollout.n": "2, 4",
        "trainer.seed": "1, 2",
    }
