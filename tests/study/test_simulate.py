"""A study on a simulated cluster: the times are those that a hand computes, and nothing is left behind."""

from __future__ import annotations

import json
import math
from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from hysweep.cli.simulate import Asked, Risks, simulate
from hysweep.cli.steer import pause, tick
from hysweep.cli.study import resume, status
from hysweep.compose import Composer
from hysweep.compose.composer import load_trial
from hysweep.launch.simulated import SimulatedCluster
from hysweep.report import live_table, read_study, write_page
from hysweep.schema import BadInput
from hysweep.study import begin, define
from hysweep.study.curves import Model, Recorded
from hysweep.study.reuse import find_result
from hysweep.study.simulation import Outcome, simulate_study, without_pruning
from hysweep.track import Cause, StudyDirectory, Verdict

LR = "trainer.learning_rate=tag(log,interval(1e-4,1e-2))"
FOUR = "trainer.learning_rate=choice(1e-4,3e-4,1e-3,3e-3)"
PRUNED = ("study.pruner=median", "study.pruner.startup_trials=3")


def run(
    composer: Composer,
    cluster: SimulatedCluster,
    *overrides: str,
    step_s: float = 10.0,
    pruning: bool = True,
    root=None,
) -> Outcome:
    """Ten steps of ten seconds, looked at every five."""
    usual = ("trainer.total_steps=10", "study.poll_s=5", "study.default_first=false", *overrides)
    definition = define(composer.compose(usual))
    definition = definition if pruning else without_pruning(definition)
    curves = Model(definition.space, definition.study, seed=1)
    return simulate_study(definition, composer, cluster, curves, root or Path("simulated").absolute(), step_s)


def test_the_makespan_is_that_of_the_hand(composer):
    # four trials of 20 + 10 x 10 s, two at a time: two waves of 120 s
    found = run(composer, SimulatedCluster(nodes=2, boot_s=20), FOUR, "study.max_parallel=2")
    assert found.makespan_s == 240
    assert found.gpu_hours == pytest.approx(4 * 120 / 3600)
    assert found.boot == pytest.approx(4 * 20 / 3600)
    assert found.utilisation == 1.0
    assert found.causes == {Cause.COMPLETED: 4}
    assert found.queued_h == 0


def test_the_controller_sees_an_end_at_its_next_look(composer):
    found = run(composer, SimulatedCluster(nodes=1, boot_s=0), FOUR, step_s=1.3)
    assert [s.started for s in found.stays] == [0, 15, 30, 45]  # 13 s each, looked at every 5
    assert found.makespan_s == pytest.approx(58)


def test_jobs_wait_for_nodes_in_the_order_in_which_they_came(composer):
    found = run(composer, SimulatedCluster(nodes=1, boot_s=0), FOUR, "study.max_parallel=4")
    assert [(s.trial, s.started) for s in found.stays] == [(0, 0), (1, 100), (2, 200), (3, 300)]
    assert found.queued_h == pytest.approx((100 + 200 + 300) / 3600)
    assert found.calls["states"] == found.polls - 1, "one question for all jobs, and none before the first is there"


def test_pruning_saves_and_is_told_by_how_much(composer):
    words = (LR, "study.n_trials=8", "study.max_parallel=2", "study.sampler=random", *PRUNED)
    cluster = SimulatedCluster(nodes=2, boot_s=20)
    found = run(composer, cluster, *words)
    whole = run(composer, cluster, *words, pruning=False, root=Path("whole").absolute())
    assert found.count(Verdict.PRUNED) > 1
    assert whole.count(Verdict.VALUE) == whole.trials == found.trials == 8
    assert found.gpu_hours < whole.gpu_hours
    assert found.makespan_s < whole.makespan_s == 4 * 120
    assert found.best <= whole.best, "of the same points"


def test_preemptions_are_booked_and_go_on_from_the_checkpoint(composer):
    cluster = SimulatedCluster(nodes=2, boot_s=20, preempt_per_day=500)
    found = run(composer, cluster, FOUR, "study.max_parallel=2", "trainer.save_every=2")
    again = [s for s in found.stays if s.attempt > 1]
    assert again, "at that rate some are hit"
    assert found.causes == {Cause.COMPLETED: 4}
    assert found.wasted[Cause.PREEMPTED] > 0
    assert found.boot + found.productive + math.fsum(found.wasted.values()) == pytest.approx(found.gpu_hours)
    assert min(s.ended - s.started for s in again if s.cause is Cause.COMPLETED) < 120, "not from its first step"


def test_the_time_limit_ends_a_job_that_goes_on_if_it_came_further(composer):
    limit = ("cluster.timeout_min=2", "trainer.total_steps=20", "trainer.save_every=5")
    found = run(composer, SimulatedCluster(nodes=1, boot_s=20), "algorithm=grpo,rloo", *limit)
    assert [s.cause for s in found.stays].count(Cause.TIMEOUT) == 2
    assert found.causes == {Cause.COMPLETED: 2}
    # 120 s to step 10, saved; then 20 + 100 s
    assert found.makespan_s == pytest.approx(2 * 240, abs=20)


def test_failed_nodes_are_retried(composer):
    found = run(composer, SimulatedCluster(nodes=1, boot_s=20, node_fail_per_day=2000), FOUR, "trainer.save_every=1")
    assert Cause.NODE_FAIL in found.wasted
    assert found.causes == {Cause.COMPLETED: 4}


def test_the_same_seed_is_the_same_study(composer):
    words = (LR, "study.n_trials=4", "study.max_parallel=3", *PRUNED)
    cluster = SimulatedCluster(nodes=2, boot_s=20, preempt_per_day=200, seed=4)
    one, other = (run(composer, cluster, *words, root=Path(name).absolute()) for name in "ab")
    assert one == other
    assert run(composer, SimulatedCluster(nodes=2, boot_s=20, seed=4), *words, root=Path("c").absolute()) != one


def test_as_an_earlier_study_went(composer):
    kept = Path("kept").absolute()
    run(composer, SimulatedCluster(nodes=1, boot_s=0), FOUR, "study.name=earlier", step_s=7, root=kept)
    earlier = StudyDirectory(kept / "earlier")
    definition = define(composer.compose([FOUR, "trainer.total_steps=10", "study.default_first=false"]))
    curves = Recorded(earlier, definition.space)
    found = simulate_study(definition, composer, SimulatedCluster(1, 0), curves, Path("new").absolute())
    assert [s.ended - s.started for s in found.stays] == [70, 70, 70, 70]
    then = {json.dumps(t.point()): t.state().value for t in earlier.trials()}
    now = {json.dumps(t.point()): t.state().value for t in StudyDirectory(definition.directory.path).trials()}
    assert not now, "nothing is written where the study would be"
    assert found.best == max(then.values())


def ask(words: list[str], **given) -> int:
    usual = {
        "cluster": (),
        "curves": "model",
        "like": None,
        "step_s": 10.0,
        "risks": Risks(0, 0),
        "seed": 0,
        "keep": None,
    }
    return simulate(
        [*words, "trainer.total_steps=10", "study.poll_s=5"], False, [], Asked(**usual | {"keep": None} | given), True
    )


def test_given_curves_decide_and_nothing_is_written(capsys):
    Path("curves.yaml").write_text(
        "- {when: trainer.learning_rate > 2e-3, values: [0.1, 0.9], step_s: 20}\n- {values: [0.5]}\n"
    )
    before = sorted(Path().rglob("*"))
    assert ask([FOUR], curves="curves.yaml") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["best"] == 0.9 and told["best_point"] == {"trainer.learning_rate": 3e-3}
    assert told["makespan_s"] == 4 * 160, "--step-s goes before what the curves say"
    assert told["without_pruning"] is None
    assert [p for p in sorted(Path().rglob("*")) if "cache" not in p.parts] == before


def test_what_is_kept_is_a_study(capsys):
    assert ask([FOUR, "study.name=here"], keep=Path("there")) == 0
    kept = StudyDirectory(Path("there/here"))
    assert len(kept.trials()) == 4
    started = yaml.safe_load(kept.config_file.read_text())["command"]
    assert started[-4:] == ["--step-s", "10.0", "--keep", "there"]
    with pytest.raises(BadInput, match="is there already"):
        ask([FOUR, "study.name=here"], keep=Path("there"))
    before = sorted(kept.path.rglob("*"))
    with pytest.raises(BadInput, match=r"--keep = there/here: is a study itself"):
        ask([FOUR, "study.name=inner"], keep=kept.path)
    with pytest.raises(BadInput, match=r"study\.root = .*there/here: is a study itself"):
        composer = Composer()
        begin(composer.compose([FOUR, f"study.root={kept.path}"]), composer, [])
    assert sorted(kept.path.rglob("*")) == before


def test_what_is_kept_of_a_simulation_that_cannot_go_on_is_nothing():
    Path("there").mkdir()
    for keep in (Path("there"), Path("new")):
        with pytest.raises(BadInput, match="how long a step takes"):
            ask([FOUR, "study.name=here"], keep=keep, step_s=None)
    assert not Path("there/here").exists() and not Path("new").exists()
    assert ask([FOUR, "study.name=here"], keep=Path("there")) == 0


@pytest.mark.parametrize("words", [(), ("study.confirm.top=2", "study.confirm.seeds=3"), ("sweep=two.yaml",)])
def test_the_best_is_that_of_every_report(words, composer, capsys):
    """Of a point that was run with several seeds it is their mean, here as in `status` and on the page."""
    Path("two.yaml").write_text(
        "# @package _global_\nspace: {trainer.learning_rate: 'choice(1e-4,1e-3)', seeds: [5, 6]}\n"
    )
    search = [*words, *(() if words and "sweep" in words[0] else [FOUR])]
    assert ask([*search, "study.name=here"], keep=Path("there")) == 0
    told, record = json.loads(capsys.readouterr().out), read_study(Path("there/here"))
    assert (told["best"], told["best_point"]) == (record.best_value, record.best.point)
    runs = len(record.replicates(record.best))
    assert runs == (4 if "confirm" in str(words) else 2 if words else 1)
    assert (record.best_value == record.best.value) == (runs == 1)
    line = StringIO()
    Console(file=line, width=200).print(live_table(record, width=200, height=40))
    assert (f"(mean of {runs} runs)" in line.getvalue()) == (runs > 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"step_s": None}, "how long a step takes is not known"),
        ({"cluster": ("nodes=0",)}, "must hold a trial"),
        ({"cluster": ("nodes=many",)}, "nodes"),
        ({"cluster": ("node=4",)}, "nodes"),
        ({"curves": "nowhere.yaml"}, "No such file"),
        ({"curves": "bad.yaml"}, "has speed"),
        ({"curves": "narrow.yaml"}, "has no curve for"),
        ({"curves": "twice.yaml"}, "duplicate key values"),
        ({"curves": "endless.yaml"}, "step_s = inf: is no time"),
        ({"risks": Risks(1e6, 0.0)}, "trial = 0: its jobs end before they get on"),
        ({"like": Path("nowhere")}, "has no completed trial"),
        ({"like": Path("nowhere"), "curves": "bad.yaml"}, "give one of them"),
    ],
)
def test_what_is_wrong_is_said(given, said):
    Path("bad.yaml").write_text("- {values: [1], speed: 3}\n")
    Path("narrow.yaml").write_text("- {when: trainer.learning_rate > 1, values: [1]}\n")
    Path("twice.yaml").write_text("- {values: [1], values: [2]}\n")
    Path("endless.yaml").write_text("- {values: [1], step_s: .inf}\n")
    with pytest.raises(BadInput) as e:
        ask([FOUR], **given)
    assert said in str(e.value)


def test_nothing_simulated_becomes_a_result(composer, capsys):
    """No study reuses it, no command goes on with it, and whoever looks at it is told."""
    root = Path("outputs").absolute()
    run(composer, SimulatedCluster(nodes=2), FOUR, "study.name=tried", root=root)
    tried = StudyDirectory(root / "tried")
    trial = tried.trials()[0]
    config = load_trial(trial.config_file.read_text())
    goals = define(composer.compose([FOUR])).study.goals
    assert find_result(StudyDirectory(root / "real"), trial.id, config, goals) is None
    (tried.path / "simulated").rename(tried.path / "aside")
    assert find_result(StudyDirectory(root / "real"), trial.id, config, goals) is not None, "but for that it would be"
    (tried.path / "aside").rename(tried.path / "simulated")
    with pytest.raises(BadInput, match="simulated"):
        begin(composer.compose([FOUR, "study.name=tried"]), composer, [])
    for act in (lambda: resume(tried.path, [], False), lambda: tick(tried.path, False), lambda: pause(tried.path)):
        with pytest.raises(BadInput, match="no real job goes on"):
            act()
    console = Console(width=100, record=True, file=StringIO())
    console.print(live_table(read_study(tried), width=100))
    assert "simulated" in console.export_text().splitlines()[0]
    status(tried.path, True)
    assert json.loads(capsys.readouterr().out)["is_simulated"] is True
    write_page(tried)
    assert "simulated: nothing was trained" in tried.report_file.read_text()
