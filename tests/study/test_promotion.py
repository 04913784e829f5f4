"""Promotion: all stop at a rung, the best go on from their checkpoints, and the sampler hears of the first rung."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage

from hysweep.launch.simulated import SimulatedCluster
from hysweep.schema import BadInput, Promote
from hysweep.study import define
from hysweep.study.controller import Controller
from hysweep.study.promotion import Climber, next_promoted, stop_step
from hysweep.study.rebuild import rebuild
from hysweep.study.search import Search
from hysweep.track import Cause, State, Status

from .fake import FakeLauncher
from .test_controller import begin, causes, finish, optuna_trials
from .test_simulate import run

NINE = "trainer.learning_rate=choice(1e-4,2e-4,3e-4,4e-4,5e-4,6e-4,7e-4,8e-4,9e-4)"
RUNGS = ("study.promote.min_steps=2", "trainer.save_every=2", "trainer.total_steps=18")


def by_rate(point: dict, attempt: int) -> list[float]:
    return [point["trainer.learning_rate"] * (i + 1) for i in range(18)]


def test_the_hours_are_those_of_the_hand(composer):
    # nine do 2 steps, three of them 4 more, one 12 more: 42 of 10 s, of which none is done twice
    found = run(composer, SimulatedCluster(nodes=9, boot_s=0), NINE, "study.max_parallel=9", *RUNGS)
    assert found.causes == {Cause.RUNG: 8, Cause.COMPLETED: 1}
    assert found.gpu_hours == pytest.approx(42 * 10 / 3600)
    assert not found.wasted
    whole = run(composer, SimulatedCluster(nodes=9, boot_s=0), NINE, *RUNGS[2:], root=Path("whole").absolute())
    assert whole.gpu_hours == pytest.approx(9 * 18 * 10 / 3600)


@pytest.mark.parametrize("max_parallel", [1, 4, 9])
def test_the_best_goes_to_its_end_from_where_it_stood(composer, max_parallel):
    fake = FakeLauncher(by_rate)
    directory = begin(composer, NINE, *RUNGS, f"study.max_parallel={max_parallel}")
    why = finish(directory, fake, most_ticks=900)
    assert why == "all 9 trials were made"
    # they come from the worst to the best: where few run at once, more of them are among the best when they get there
    assert causes(directory).count(Cause.COMPLETED) <= (1 if max_parallel == 9 else 5)
    (best,) = [t for t in directory.trials() if t.point()["trainer.learning_rate"] == 9e-4]
    assert best.state().cause is Cause.COMPLETED
    assert list(best.metrics()) == list(range(1, 19))
    assert [a.metrics()[0][0] for a in best.attempts()] == [1, 3, 7], "each from the checkpoint of the one before"
    assert [a.job()["stop_step"] for a in best.attempts()] == [2, 6, None]
    assert {a.job()["total_steps"] for a in best.attempts()} == {18}, "the horizon is that of the whole training"
    assert best.state().value == pytest.approx(18 * 9e-4)


def test_the_sampler_compares_all_at_the_first_rung(composer):
    directory = begin(composer, NINE, *RUNGS, "study.max_parallel=9")
    finish(directory, FakeLauncher(by_rate))
    expected = [2 * t.point()["trainer.learning_rate"] for t in directory.trials()]
    assert [t.value for t in optuna_trials(directory)] == pytest.approx(expected)


def test_tpe_sees_how_far_each_has_come(composer):
    """At the first rung high rates lead, of which only those near 3e-4 came far: it looks there, and not where Optuna's
    record of the first rung leads."""
    asked = {}
    for shown in (True, False):
        words = (
            "trainer.learning_rate=tag(log,interval(1e-4,1e-2))",
            "study.sampler=tpe",
            "study.default_first=false",
            "study.n_trials=99",
        )
        definition = define(composer.compose([*words, f"study.name={shown}"]))
        search = Search(definition, InMemoryStorage(), {})
        place = {}
        for _ in range(30):
            number, point = search.ask()
            place[number] = math.log10(point["trainer.learning_rate"])
            search.tell_values(number, [place[number]])
        far = sorted(place, key=lambda n: abs(place[n] + 3.5))[:6]
        reached = {n: (None, 1 - abs(p + 3.5)) if n in far else (2, p) for n, p in place.items()}
        asked[shown] = [
            math.log10(search.ask(reached if shown else None)[1]["trainer.learning_rate"]) for _ in range(9)
        ]
    assert statistics.median(asked[True]) == pytest.approx(-3.5, abs=0.4)
    assert statistics.median(asked[False]) > -3.0


def test_whoever_drives_it_may_die_after_any_step(composer):
    """A new controller for each step comes to the same."""
    words = ("trainer.learning_rate=choice(1e-4,2e-4,3e-4,4e-4)", *RUNGS[:2], "trainer.total_steps=6")
    fake = FakeLauncher(by_rate)
    directory = begin(composer, *words, "study.max_parallel=4")
    for _ in range(100):
        with Controller(directory, launchers=lambda name: fake) as c:
            if not c.tick():
                break
    assert causes(directory) == [Cause.RUNG] * 3 + [Cause.COMPLETED]
    assert len(fake.submitted) == len(set(fake.submitted)) == 5, "no attempt ran twice"


@pytest.mark.parametrize("dies", [False, True])
def test_a_pruner_gives_up_what_was_promoted(composer, dies):
    """The sampler was told of it at its first rung; it is judged on, whoever drives it."""
    limit = 10 * 9e-4
    directory = begin(composer, NINE, *RUNGS, "study.max_parallel=9", "study.pruner=threshold",
                      f"study.pruner.high={limit}")  # fmt: skip
    fake = FakeLauncher(by_rate)
    for _ in range(200):
        with Controller(directory, launchers=lambda name: fake) as c:
            while (goes_on := c.tick()) and not dies:
                pass
        if not goes_on:
            break
    best = directory.trials()[-1]
    assert best.state().cause is Cause.PRUNED and 11 <= len(best.metrics()) < 18
    assert [t.value for t in optuna_trials(directory)][-1] == pytest.approx(2 * 9e-4)


def test_a_promoted_trial_that_is_preempted_keeps_its_rung(composer):
    fake = FakeLauncher(by_rate, ends={(8, 2): Cause.PREEMPTED})
    directory = begin(composer, NINE, *RUNGS, "study.max_parallel=9")
    finish(directory, fake)
    best = directory.trials()[8]
    assert [a.job()["stop_step"] for a in best.attempts()] == [2, 6, 6, None]
    assert best.state().cause is Cause.COMPLETED


def test_what_is_rebuilt_has_the_rungs_that_it_passed(composer):
    """Its state is lost while it is above the first rung: it goes on to the second, and not to the first again."""
    fake = FakeLauncher(by_rate)
    directory = begin(composer, NINE, *RUNGS, "study.max_parallel=9")
    with Controller(directory, launchers=lambda name: fake) as c:
        while not directory.trials() or not (best := directory.trials()[-1]).attempt(2).claimed():
            c.tick()
    (best.path / "state.json").write_text("{")
    rebuild(directory, launchers=lambda name: fake)
    assert best.state().rungs == 1
    finish(directory, fake)
    assert [a.job()["stop_step"] for a in best.attempts()] == [2, 6, None]


def test_what_fails_above_a_rung_gives_its_place_to_the_next(composer):
    ends = {(8, 2): Cause.CONFIG_ERROR}
    directory = begin(composer, NINE, *RUNGS, "study.max_parallel=9")
    finish(directory, FakeLauncher(by_rate, ends))
    ended = {t.point()["trainer.learning_rate"]: t.state().cause for t in directory.trials()}
    assert ended[9e-4] is Cause.CONFIG_ERROR
    assert ended[8e-4] is Cause.COMPLETED


def test_nobody_is_promoted_beyond_the_budget(composer):
    words = ("cluster.timeout_min=60", "study.budget_gpu_hours=9.5", "study.max_parallel=1")
    directory = begin(composer, NINE, *RUNGS, *words)
    # each attempt took 36 s of the hour that it may take
    finish(directory, FakeLauncher(by_rate), most_ticks=900)
    assert sum(e.gpu_hours for e in directory.ledger()) <= 9.5
    directory = begin(composer, NINE, *RUNGS, "cluster.timeout_min=60", "study.budget_gpu_hours=1", "study.name=small")
    why = finish(directory, FakeLauncher(by_rate))
    assert "budget" in why
    assert causes(directory) == [Cause.RUNG], "and what it had is kept"


def test_the_best_are_confirmed_by_whole_trainings(composer):
    directory = begin(composer, NINE, *RUNGS, "study.max_parallel=9", "study.confirm={top:2,seeds:2}")
    finish(directory, FakeLauncher(by_rate))
    confirmations = [t for t in directory.trials() if "trainer.seed" in t.point()]
    assert [t.state().cause for t in confirmations] == [Cause.COMPLETED] * 2, "of the one that came to its end"
    assert [a.job()["stop_step"] for t in confirmations for a in t.attempts()] == [None, None]


def test_a_state_that_is_written_can_be_read():
    state = State(Status.ENDED, 2, cause=Cause.RUNG, rungs=2)
    assert State.from_dict(state.as_dict()) == state


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trainer.save_every=3"], "study.promote.min_steps = 2: no checkpoint is saved there"),
        (["trainer.save_every=-1"], "give trainer.save_every=2"),
        (["trainer.total_steps=2"], "a whole training has 2 steps"),
        (["study.metric=val-core/copy/acc/mean@*", "trainer.validate_every=4"], "is not measured by then"),
    ],
)
def test_a_trial_that_could_not_stop_there_is_not_submitted(composer, words, says):
    fake = FakeLauncher(by_rate)
    directory = begin(composer, NINE, *RUNGS, *words)
    finish(directory, fake)
    assert not fake.submitted
    assert set(causes(directory)) == {Cause.INFEASIBLE}
    assert says in directory.trials()[0].state().reason


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["study.promote.reduction_factor=4"], "give study.promote.min_steps as well"),
        ([*RUNGS, "trainer.seed=choice(1,2)"], None),
        ([*RUNGS, "study.metric=gpu_hours"], "has no curve to compare"),
    ],
)
def test_what_a_study_cannot_have_with_it(composer, words, says):
    if says is None:
        define(composer.compose([NINE, *words]))
        return
    with pytest.raises(BadInput, match=says):
        define(composer.compose([NINE, *words]))


# --- the rule


@st.composite
def climbers(draw: st.DrawFn) -> list[Climber]:
    count = draw(st.integers(1, 40))
    value = st.floats(-1, 1)
    return [Climber(n, tuple(draw(st.lists(value, min_size=1, max_size=4))), draw(st.booleans())) for n in range(count)]


@given(climbers(), st.integers(2, 5), st.booleans(), st.booleans())
def test_only_the_best_of_a_rung_go_on(found, factor, is_maximised, is_over):
    promote = Promote(min_steps=1, reduction_factor=factor)
    number = next_promoted(found, promote, is_maximised, is_over)
    if number is None:
        return
    (chosen,) = [c for c in found if c.number == number]
    assert chosen.waits
    level = len(chosen.values) - 1
    there = [c for c in found if len(c.values) > level]
    sign = 1 if is_maximised else -1
    better = sum(1 for c in there if sign * c.values[level] > sign * chosen.values[level])
    assert better < max(len(there) // factor, 1 if is_over else 0)


@given(climbers(), st.integers(2, 5), st.booleans())
def test_once_the_search_is_over_somebody_comes_to_the_top(found, factor, is_maximised):
    promote = Promote(min_steps=1, reduction_factor=factor)
    field = {c.number: Climber(c.number, c.values[:1], True) for c in found}
    for _ in range(1000):
        if (number := next_promoted(field.values(), promote, is_maximised, is_over=True)) is None:
            break
        values = (*field[number].values, 0.5)
        field[number] = Climber(number, values, waits=len(values) < 4)
    assert any(not c.waits for c in field.values())
    assert sum(len(c.values) > 1 for c in field.values()) <= max(1, len(field) // factor)


@given(st.integers(1, 50), st.integers(2, 4), st.integers(1, 2000))
def test_the_rungs_grow_by_the_factor_and_stay_below_the_end(first, factor, total):
    promote = Promote(min_steps=first, reduction_factor=factor)
    steps = [s for i in range(12) if (s := stop_step(promote, i, total)) is not None]
    assert steps == [first * factor**i for i in range(12) if first * factor**i < total]
    assert stop_step(Promote(), 0, total) is None
    assert not math.isnan(sum(steps))
