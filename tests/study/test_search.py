"""Samplers, replicates, filters, conditions, several objectives: by the controller, on a scripted launcher."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from hysweep.compose import Composer
from hysweep.report import read_study
from hysweep.schema import BadInput
from hysweep.study import define
from hysweep.study.controller import Controller
from hysweep.study.replicates import missing
from hysweep.study.search import Search
from hysweep.study.storage import _Journal
from hysweep.track import Cause, StudyDirectory, TrialDirectory

from .fake import FakeLauncher
from .test_controller import LR, begin, by_lr, causes, dying_after, finish, optuna_trials, rising

CLIP = "algorithm.clip_ratio_high"
CONDITIONAL = (
    "space={algorithm: 'choice(grpo,rloo,gspo)', algorithm.clip_ratio_high: ["
    "{when: 'algorithm == grpo', in: 'interval(0.2,0.4)'},"
    "{when: 'algorithm == gspo', in: 'tag(log,interval(3e-4,3e-3))'}]}"
)


def points(directory: StudyDirectory) -> list[dict]:
    return [t.point() for t in directory.trials()]


def refused(composer: Composer, *overrides: str) -> str:
    with pytest.raises(BadInput) as caught:
        define(composer.compose(overrides))
    return str(caught.value)


def test_a_branch_is_drawn_where_it_applies(composer: Composer) -> None:
    directory = begin(composer, CONDITIONAL, "study.n_trials=14", "study.sampler={name:tpe,n_startup_trials:4}")
    finish(directory, FakeLauncher(rising))
    spans = {"grpo": (0.2, 0.4), "gspo": (3e-4, 3e-3)}
    for point in points(directory):
        if point["algorithm"] == "rloo":
            assert CLIP not in point
        else:
            low, high = spans[point["algorithm"]]
            assert low <= point[CLIP] <= high
    assert {name for t in optuna_trials(directory) for name in t.params} == {"algorithm", f"{CLIP}@1", f"{CLIP}@2"}
    frozen = [t.config_file.read_text() for t in directory.trials()]
    assert all(
        f"clip_ratio_high: {p[CLIP]}" in text for p, text in zip(points(directory), frozen, strict=True) if CLIP in p
    )


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsgaii", "cmaes", "qmc"])
def test_every_sampler_is_repeatable_over_a_restart(composer: Composer, sampler: str) -> None:
    asked = (CONDITIONAL, f"study.sampler={sampler}", "study.seed=4")
    whole = begin(composer, *asked, "study.n_trials=5", "study.name=whole")
    finish(whole, FakeLauncher(rising))
    cut = begin(composer, *asked, "study.n_trials=5", "study.name=cut")
    fake = FakeLauncher(rising)
    for n in (1, 3, 5):
        finish(cut, fake, {"n_trials": n})
    assert points(cut) == points(whole)


@pytest.mark.parametrize("sampler", ["cmaes", "qmc"])
def test_a_sampler_that_needs_a_package_says_which(composer: Composer, sampler: str, monkeypatch) -> None:
    monkeypatch.setattr("hysweep.study.definition.find_spec", lambda name: None)
    assert "pip install 'hysweep[samplers]'" in refused(composer, LR, "study.n_trials=3", f"study.sampler={sampler}")


NUMBERS = (LR, "rollout.temperature=interval(0.5,1.3)", "study.default_first=false", "study.seed=3")


def test_cmaes_closes_in_on_the_best(composer: Composer) -> None:
    """On two numbers, where its cloud moves; the same generations over a restart."""

    def miss(point: dict) -> float:
        return abs(math.log10(point["trainer.learning_rate"]) + 2.5) + abs(point["rollout.temperature"] - 0.7)

    asked = (*NUMBERS, "study.sampler={name:cmaes,population_size:6}", "study.max_parallel=3")
    whole = begin(composer, *asked, "study.n_trials=60", "study.name=whole")
    finish(whole, FakeLauncher(lambda p, a: [-miss(p)]))
    misses = [miss(p) for p in points(whole)]
    first, last = sorted(misses[:12]), sorted(misses[-12:])
    assert last[6] < 0.5 * first[6], (first, last)
    cut = begin(composer, *asked, "study.n_trials=30", "study.name=cut")
    fake = FakeLauncher(lambda p, a: [-miss(p)])
    for n in (7, 20, 30):
        finish(cut, fake, {"n_trials": n})
    assert len(points(cut)) == 30 and statistics.median(miss(p) for p in points(cut)[-6:]) < first[6]


@pytest.mark.parametrize("kind", ["sobol", "halton"])
def test_qmc_fills_the_space_evenly(composer: Composer, kind: str) -> None:
    """Of eight points of the sequence, one lies in each eighth of a range: at random that has one chance in 400."""
    directory = begin(composer, *NUMBERS, "study.n_trials=9", f"study.sampler={{name:qmc,qmc_type:{kind}}}")
    fake = FakeLauncher(rising)
    for n in (1, 5, 9):  # over restarts
        finish(directory, fake, {"n_trials": n})
    drawn = points(directory)[1:]  # the sequence begins once a point has shown what varies
    eighths = sorted(int((math.log10(p["trainer.learning_rate"]) + 4) / 2 * 8) for p in drawn)
    assert eighths == list(range(8))


@pytest.mark.parametrize(
    ("wish", "most"),
    [
        ("study.confirm.seeds=100000", "at most 100"),
        ("study.confirm.top=5000", "at most 100"),
        ("study.max_parallel=1000000", "at most 10000"),
        ("study.n_trials=100000000", "at most 100000"),
        ("cluster.nodes=10000000", "at most 100000"),
        ("cluster.gpus_per_node=1000000", "at most 4096"),
        ("rollout.agent_workers=1000000", "at most 4096"),
        ("reward.workers=1000000", "at most 4096"),
    ],
)
def test_what_would_start_no_end_of_jobs_has_a_limit(composer: Composer, wish: str, most: str) -> None:
    said = refused(composer, LR, "study.n_trials=3", "study.confirm.top=2", wish)
    assert wish.partition("=")[0] in said and most in said


@pytest.mark.parametrize("sampler", ["random", "tpe", "{name:tpe,multivariate:true,n_startup_trials:3}", "nsgaii"])
def test_an_asking_that_is_cut_short_draws_the_same(
    composer: Composer, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in its journal: also between two of the parameters of one trial."""
    asked = ("algorithm=grpo,rloo", "rollout.temperature=interval(0.5,1.5)", LR, "study.n_trials=6", "study.seed=3")
    whole = begin(composer, *asked, f"study.sampler={sampler}", "study.name=whole")
    finish(whole, FakeLauncher(by_lr))
    directory = begin(composer, *asked, f"study.sampler={sampler}", "study.name=cut")
    append, lines = _Journal.append_logs, itertools.count(1)

    def dying(backend: _Journal, logs: list[dict]) -> None:
        append(backend, logs)
        if next(lines) % 3 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(_Journal, "append_logs", dying)
    fake, deaths = FakeLauncher(by_lr), 0
    while True:
        try:
            finish(directory, fake)
            break
        except KeyboardInterrupt:
            deaths += 1
    assert deaths > 6 and len(fake.submitted) == 6
    assert points(directory) == points(whole)


def test_a_grid_by_name_runs_its_first_points(composer: Composer) -> None:
    directory = begin(composer, "algorithm=grpo,rloo", "rollout.n=2,4", "study.sampler=grid", "study.n_trials=3")
    finish(directory, FakeLauncher(rising))
    assert [tuple(p.values()) for p in points(directory)] == [("grpo", 2), ("grpo", 4), ("rloo", 2)]
    assert "no end of values" in refused(composer, LR, "study.sampler=grid", "study.n_trials=3")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("study.sampler=tpee",), "did you mean tpe"),
        (("study.sampler={name:random,n_ei_candidates:3}",), "means nothing to random"),
        (("study.sampler.sigma0=0.1",), "cmaes read it"),
        (("study.sampler={nam:tpe}",), "nam"),
        (("study.pruner=mediann",), "did you mean median"),
        (("study.pruner={name:median,percentile:20}",), "means nothing to median"),
        (("study.pruner=threshold",), "would never prune"),
        (("study.pruner={name:threshold,low:1,high:0}",), "threshold: low = 1.0: is above high, 0"),
        (("study.pruners=[{name:hyperband,min_steps:9,max_steps:3}]",), "hyperband: max_steps = 3: is below min_steps"),
        (("study.metric=critic/score/*",), "study.metric = critic/score/*: fits more than one metric"),
        (("study.pruner={name:median,metric:critic/*}",), "study.pruner.metric = critic/*: fits more than one"),
        (("study.objectives=[{metric:gpu_hours}]", "study.reduce=auc"), "study.reduce = auc: does nothing beside"),
        (("study.confirm.seeds=2",), "study.confirm.seeds = 2: does nothing; give study.confirm.top"),
        (("study.notify.events=[finish]",), "study.notify.events = finish: is nothing that is told"),
        (("study.name=' s'",), "study.name =  s: is a directory's name; leave out /, a leading dot and blanks"),
        (
            ("+space.seeds=2", "study.enqueue=[{trainer.seed:1}]"),
            "trainer.seed = 1: does not vary; choose of trainer.learning_rate",
        ),
        (("study.pruners=[{name:nan},{name:patient,share:0.3}]",), "study.pruners[2].share"),
        (("study.pruners=[{name:nan,min_steps:0}]",), "at least 1"),
        (("study.objectives=[{metric:critic/score/mean},{metric:gpu_hour}]",), "did you mean gpu_hours"),
        (("study.objectives=[{metric:gpu_hours},{metric:gpu_hours}]",), "named twice"),
        (("study.objectives=[{metric:gpu_hours,direction:up}]",), "study.objectives[1].direction"),
        (("study.objectives=[{metric:gpu_hours},{metric:critic/score/mean}]", "study.pruner=median"), "no curve"),
        (("study.enqueue=[{trainer.learning_rate:0.5}]",), "is not in the space"),
    ],
)
def test_a_search_that_cannot_be_is_refused(composer: Composer, overrides: tuple[str, ...], says: str) -> None:
    assert says in refused(composer, LR, "study.n_trials=4", *overrides)


def test_named_points_under_conditions(composer: Composer) -> None:
    ask = (CONDITIONAL, "study.n_trials=2")
    good = begin(composer, *ask, f"study.enqueue=[{{algorithm:gspo,{CLIP}:1e-3}}]")
    finish(good, FakeLauncher(rising))
    assert points(good)[0] == {"algorithm": "gspo", CLIP: 1e-3}
    assert "is not in the space" in refused(composer, *ask, f"study.enqueue=[{{algorithm:gspo,{CLIP}:0.3}}]")
    assert "does not vary at this point" in refused(composer, *ask, f"study.enqueue=[{{algorithm:rloo,{CLIP}:0.3}}]")
    assert "depends on algorithm" in refused(composer, *ask, f"study.enqueue=[{{{CLIP}:0.3}}]")


def test_the_configurations_own_values_run_first(composer: Composer) -> None:
    own = composer.compose([]).trial.trainer.learning_rate
    first = begin(composer, "algorithm=rloo,grpo", LR, "study.n_trials=2", "study.name=first")
    finish(first, FakeLauncher(by_lr))
    assert points(first)[0] == {"algorithm": "grpo", "trainer.learning_rate": own}
    later = begin(composer, "algorithm=rloo,grpo", LR, "study.n_trials=1", "study.default_first=false")
    finish(later, FakeLauncher(by_lr))
    assert points(later)[0]["trainer.learning_rate"] != own


def test_what_a_filter_rejects_costs_nothing_and_is_counted(composer: Composer) -> None:
    directory = begin(
        composer,
        "space={trainer.learning_rate: 'tag(log,interval(1e-5,1e-1))', rollout.n: 'choice(2,4,8)',"
        " filter: ['trainer.learning_rate < 1e-3 or rollout.n == 4']}",
        "study.n_trials=6",
        "study.sampler=random",
    )
    fake = FakeLauncher(rising)
    finish(directory, fake)
    assert len(fake.submitted) == len(directory.trials()) == 6
    assert all(p["trainer.learning_rate"] < 1e-3 or p["rollout.n"] == 4 for p in points(directory))
    rejected = [e for e in directory.events() if e["event"] == "filtered"]
    told = optuna_trials(directory)
    assert rejected and len(told) == 6 + len(rejected)
    assert all(told[e["trial"]].constraints == {"feasible": 1.0} for e in rejected)


def test_a_filter_that_leaves_little_is_still_found_or_given_up(composer: Composer) -> None:
    few = begin(
        composer,
        "space={rollout.n: 'int(interval(1,60))', filter: ['rollout.n % 29 == 0']}",
        "study.n_trials=10", "study.sampler=random", "study.default_first=false",
    )  # fmt: skip
    finish(few, FakeLauncher(rising))
    assert sorted(p["rollout.n"] for p in points(few)) == [29, 58]
    assert "rejects every point" in refused(composer, "space={rollout.n: [2,4], filter: ['rollout.n > 4']}")


def test_replicates_are_told_as_one_by_their_mean(composer: Composer) -> None:
    directory = begin(composer, "space={rollout.n: [2,4], seeds: 3}", "study.max_parallel=2")
    fake = FakeLauncher(lambda p, a: [p["trainer.seed"] / 10 + p["rollout.n"]] * 3)
    finish(directory, fake)
    begun = [t.point() for path in fake.submitted for t in directory.trials() if path.startswith(str(t.path))]
    assert [(p["rollout.n"], p["trainer.seed"]) for p in begun] == [(n, s) for n in (2, 4) for s in (1, 2, 3)]
    told = optuna_trials(directory)
    assert [t.value for t in told if t.state.name == "COMPLETE"] == [pytest.approx(2.2), pytest.approx(4.2)]
    assert [t.state.name for t in told].count("FAIL") == 4, "the lead stands for all"
    assert len({t.id for t in directory.trials()}) == 6


def test_replicates_over_a_restart_and_a_failure(composer: Composer) -> None:
    directory = begin(composer, "space={rollout.n: [2,4], seeds: [7,9]}", "study.n_trials=4")
    fake = FakeLauncher(rising, {(1, 1): Cause.DIVERGED})
    for n in (1, 2, 3, 4):
        finish(directory, fake, {"n_trials": n})
    assert len(fake.submitted) == len(set(fake.submitted)) == 4
    assert causes(directory)[1] is Cause.DIVERGED
    told = [t.value for t in optuna_trials(directory) if t.state.name == "COMPLETE"]
    assert told == [pytest.approx(0.4)] * 2, "the mean of those that completed"
    assert "no multiple of the 2 seeds" in refused(composer, "space={rollout.n: [2,4], seeds: 2}", "study.n_trials=3")


def test_what_is_missing_is_found_by_one_look_at_each_trial(tmp_path, monkeypatch) -> None:
    study, looked = StudyDirectory(tmp_path / "s"), []
    trials = [study.add_trial(n, f"a{n}", "", {"rollout.n": n // 2, "trainer.seed": n % 2}) for n in range(19)]
    point = TrialDirectory.point
    monkeypatch.setattr(TrialDirectory, "point", lambda trial: looked.append(trial) or point(trial))
    assert missing(trials, [0, 1]) == (18, 1) and missing(trials, [0]) is None
    assert looked == trials


def test_a_point_that_cannot_run_is_not_tried_with_another_seed(composer: Composer) -> None:
    directory = begin(composer, "space={trainer.mini_batch_size: [4,7], seeds: 2}")
    finish(directory, fake := FakeLauncher(rising))
    assert len(fake.submitted) == 2
    assert causes(directory).count(Cause.INFEASIBLE) == 1


def test_several_objectives_are_all_told(composer: Composer) -> None:
    directory = begin(
        composer, "rollout.n=2,4,8",
        "study.objectives=[{metric:critic/score/mean,reduce:best},{metric:gpu_hours,direction:minimize}]",
    )  # fmt: skip
    finish(directory, FakeLauncher(lambda p, a: [0.9 / p["rollout.n"], 0.1]))
    assert set(causes(directory)) == {Cause.COMPLETED}
    states = [t.state() for t in directory.trials()]
    assert [s.value for s in states] == [s.values[0] for s in states] == [0.45, 0.225, 0.1125]
    assert all(s.values[1] == pytest.approx(0.01) for s in states)
    assert [t.values for t in optuna_trials(directory)] == [list(s.values) for s in states]


def test_pruning_with_several_objectives_looks_at_a_metric_of_its_own(composer: Composer) -> None:
    directory = begin(
        composer, "rollout.n=2,4,8", "study.pruner={name:median,metric:critic/score/mean,min_steps:2}",
        "study.objectives=[{metric:gpu_hours,direction:minimize},{metric:critic/score/mean}]",
    )  # fmt: skip
    finish(directory, FakeLauncher(lambda p, a: [1.0 / p["rollout.n"]] * 6))
    assert causes(directory) == [Cause.COMPLETED, Cause.COMPLETED, Cause.PRUNED]
    assert [t.state.name for t in optuna_trials(directory)] == ["COMPLETE", "COMPLETE", "PRUNED"]


def test_a_pattern_stands_for_the_one_metric_that_fits(composer: Composer) -> None:
    found = begin(composer, "study.metric=critic/sc*/mean", "study.name=found")
    finish(found, FakeLauncher(rising))
    assert found.trials()[0].state().value == pytest.approx(0.4)
    none = begin(composer, "study.metric=val-core/*/acc/mean@*")
    finish(none, FakeLauncher(rising))
    assert "never logged val-core/*/acc/mean@*" in none.trials()[0].state().reason


def test_the_sampler_learns_from_pruned_trials_what_they_came_to(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4", "study.pruner={name:threshold,low:0.3,min_steps:2}")
    finish(directory, FakeLauncher(lambda p, a: [1.0 / p["rollout.n"]] * 5))
    assert causes(directory) == [Cause.COMPLETED, Cause.PRUNED]
    assert directory.trials()[1].state().reason == "at step 2 critic/score/mean was 0.25, below 0.3 (threshold)"
    last = optuna_trials(directory)[1]
    assert last.state.name == "PRUNED" and list(last.intermediate_values.values()) == [0.25]


def test_an_old_study_with_a_sampler_by_name_is_still_read(composer: Composer) -> None:
    directory = begin(composer, LR, "study.n_trials=1", "study.sampler=random")
    text = directory.config_file.read_text()
    start, end = text.index("  sampler:\n"), text.index("  seed:")
    directory.config_file.write_text(text[:start] + "  sampler: random\n" + text[end:])
    finish(directory, FakeLauncher(by_lr))
    assert causes(directory) == [Cause.COMPLETED]


def test_infinite_values_are_none(composer: Composer) -> None:
    directory = begin(composer, "study.objectives=[{metric:critic/score/mean},{metric:gpu_hours}]")
    finish(directory, FakeLauncher(lambda p, a: [0.1, math.inf]))
    assert causes(directory) == [Cause.DIVERGED]


def test_the_best_are_confirmed_with_new_seeds(composer: Composer) -> None:
    """Trial 2 is the luckiest of the search; with other seeds its neighbour is better."""

    def luck(point: dict, attempt: int) -> list[float]:
        n, seed = point["rollout.n"], point.get("trainer.seed")
        return [{2: 0.1, 4: 0.6, 8: 0.9}[n] if seed is None else {2: 0.1, 4: 0.6, 8: 0.3}[n]] * 2

    ask = ("rollout.n=2,4,8", "study.confirm={top:2,seeds:2}", "study.max_parallel=2")
    assert define(composer.compose(ask)).most_trials == 7
    directory = begin(composer, *ask)
    fake = FakeLauncher(luck)
    why = finish(directory, fake)
    assert why == "all 3 trials were made"
    more = [t.point() for t in directory.trials()][3:]
    assert sorted(p["rollout.n"] for p in more) == [4, 4, 8, 8]
    assert len({p["trainer.seed"] for p in more}) == 2
    own = composer.compose([]).trial.trainer.seed
    assert own not in {p["trainer.seed"] for p in more}
    finish(directory, fake)
    assert len(fake.submitted) == 7, "once is enough"
    record = read_study(directory)
    assert record.best is not None and record.best.point["rollout.n"] == 4
    told = [t.state.name for t in optuna_trials(directory)]
    assert told == ["COMPLETE"] * 3 + ["FAIL"] * 4
    assert "trainer.seed is searched" in refused(composer, "trainer.seed=1,2", "study.confirm.top=1")


def test_the_best_is_confirmed_also_where_its_file_was_damaged(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4", "study.confirm={top:1,seeds:1}")
    fake = FakeLauncher(lambda p, a: [p["rollout.n"] / 10] * 2)
    with Controller(directory, launchers=lambda name: fake) as c:
        while len(causes(directory)) < 2 or None in causes(directory):
            c.tick(asks=len(causes(directory)) < 2)
    directory.trials()[1].config_file.write_text("{torn: [")
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3


def test_confirmation_over_restarts_and_with_replicates(composer: Composer) -> None:
    whole = begin(composer, "space={rollout.n: [2,4], seeds: 2}", "study.confirm={top:1,seeds:3}")
    fake = FakeLauncher(lambda p, a: [p["rollout.n"] / 10] * 2)
    for _ in range(60):
        with Controller(whole, launchers=lambda name: fake) as c:
            if not c.tick():
                break
    assert len(fake.submitted) == len(set(fake.submitted)) == 7
    assert [p["rollout.n"] for p in points(whole)].count(4) == 5
    told = [t for t in optuna_trials(whole) if t.state.name == "COMPLETE"]
    assert [t.value for t in told] == [pytest.approx(0.2), pytest.approx(0.4)]


def test_a_confirmation_whose_asking_was_cut_short_is_one_all_the_same(composer: Composer, monkeypatch) -> None:
    """It runs to its end whatever a pruner says, and the sampler hears nothing of it."""
    ask = ("rollout.n=2,4", "study.confirm={top:1,seeds:1}", "study.pruner={name:threshold,low:0.05}")
    directory = begin(composer, *ask)
    fake = FakeLauncher(lambda p, a: [0.0 if "trainer.seed" in p else p["rollout.n"] / 10] * 3)
    with dying_after(monkeypatch, Search, "replicate", 1):
        finish(directory, fake)
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3
    assert [t.state.name for t in optuna_trials(directory)] == ["COMPLETE", "COMPLETE", "FAIL"]


def test_a_result_of_another_study_is_taken_where_that_is_asked_for(composer: Composer) -> None:
    old = begin(composer, "rollout.n=2,4", "study.name=old")
    finish(old, FakeLauncher(lambda p, a: [0.9, p["rollout.n"] / 10], {(1, 1): Cause.DIVERGED}))
    new = begin(composer, "rollout.n=2,4,8", "study.name=new", "study.reuse=true", "study.reduce=best")
    fake = FakeLauncher(rising)
    finish(new, fake)
    assert len(fake.submitted) == 2, "what diverged there is run here"
    first = new.trials()[0]
    state = first.state()
    assert (state.cause, state.value) == (Cause.COMPLETED, 0.9), "by this study's objective"
    assert state.reason == "reused: trial 0 of old is the same training"
    assert first.curve("critic/score/mean") == old.trials()[0].curve("critic/score/mean")
    assert [e.trial for e in new.ledger()] == [1, 2]
    assert optuna_trials(new)[0].value == 0.9
    for name, more in {"longer": "trainer.total_steps=9", "plain": "study.reuse=false"}.items():
        again = begin(composer, "rollout.n=2", f"study.name={name}", "study.reuse=true", more)
        finish(again, other := FakeLauncher(rising))
        assert len(other.submitted) == 1, name


def test_a_result_of_another_study_is_taken_after_a_crash_too(composer: Composer, monkeypatch) -> None:
    finish(begin(composer, "rollout.n=2", "study.name=old"), FakeLauncher(rising))
    new = begin(composer, "rollout.n=2", "study.name=new", "study.reuse=true")
    fake = FakeLauncher(rising)
    with dying_after(monkeypatch, StudyDirectory, "add_trial", 1):
        finish(new, fake)
    finish(new, fake)
    assert not fake.submitted and causes(new) == [Cause.COMPLETED]


def test_a_root_may_begin_with_ones_home(composer: Composer, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    directory = begin(composer, "rollout.n=2,4", "study.root='~/studies'", "study.name=s")
    assert directory.path == tmp_path / "me/studies/s" and directory.exists
