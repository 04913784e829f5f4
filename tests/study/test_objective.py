"""A curve becomes a value; a pattern becomes a metric."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hysweep.compose import Composer
from hysweep.schema import Objective, Study
from hysweep.study import value_of
from hysweep.study.objective import unmeasured
from hysweep.track import curve_of

CURVE = [(1, 0.0), (2, 1.0), (4, 0.5)]


@pytest.mark.parametrize(
    ("goal", "value"),
    [
        (Objective(), 0.5),
        (Objective(reduce="best"), 1.0),
        (Objective(reduce="best", direction="minimize"), 0.0),
        (Objective(reduce="mean_last", last=2), 0.75),
        (Objective(reduce="mean_last", last=9), 0.5),
        (Objective(reduce="auc"), (0.5 * 1 + 0.75 * 2) / 3),
    ],
)
def test_reductions(goal: Objective, value: float) -> None:
    assert value_of(CURVE, goal) == pytest.approx(value)


@pytest.mark.parametrize("reduce", ["last", "best", "mean_last", "auc"])
def test_what_ends_in_no_number_has_no_value(reduce: str) -> None:
    assert math.isnan(value_of([(1, 0.1), (2, math.nan)], Objective(reduce=reduce)))
    assert value_of([], Objective(reduce=reduce)) is None
    assert value_of([(3, 0.25)], Objective(reduce=reduce)) == 0.25


@given(st.lists(st.floats(-100, 100, allow_nan=False), min_size=1, max_size=20), st.integers(1, 5))
def test_the_area_lies_between_the_lowest_and_the_highest(values: list[float], every: int) -> None:
    curve = [(every * i, v) for i, v in enumerate(values)]
    area = value_of(curve, Objective(reduce="auc"))
    assert area is not None and min(values) - 1e-9 <= area <= max(values) + 1e-9


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("val-core/gsm/acc/mean@8", [0.1]),
        ("val-core/*/acc/mean@*", [0.1]),
        ("val-core/gsm/acc/*", []),  # mean@8 and best@8: which one is not known
        ("val-core/gsm/acc/mean@4", []),
        ("val.core/*", []),
    ],
)
def test_patterns(metric: str, expected: list[float]) -> None:
    steps = {1: {"val-core/gsm/acc/mean@8": 0.1, "val-core/gsm/acc/best@8": 0.2}, 2: {"critic/score/mean": 0.3}}
    assert [v for _, v in curve_of(steps, metric)] == expected


@pytest.mark.parametrize(
    ("metric", "overrides", "key"),
    [
        ("val-core/*/acc/mean@*", "trainer.validate_every=-1", "trainer.validate_every"),
        ("val-core/own/acc/mean@8", "rollout.val_n=4", "rollout.val_n"),
        ("val-core/own/acc/mean@4", "rollout.val_n=4", None),
        ("val-aux/own/acc/best@2/mean", "rollout.val_n=4", None),
        ("critic/score/mean", "trainer.validate_every=-1", None),
    ],
)
def test_an_objective_that_no_validation_gives_is_told(
    composer: Composer, metric: str, overrides: str, key: str | None
) -> None:
    found = unmeasured(composer.compose([overrides]).trial, Study(metric=metric))
    assert [fault.key for fault in found] == ([key] if key else [])
