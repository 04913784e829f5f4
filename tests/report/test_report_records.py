"""Records: what a study directory says, whatever its condition."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import METRIC, START, MakeStudy, Study, study_yaml, write_metrics
from hysweep.report import Standing, read_study
from hysweep.report.records import SCORE
from hysweep.track import Cause, Status, StudyDirectory


def test_trials_are_read_as_their_directories_show_them(quickstart: Study) -> None:
    record = read_study(quickstart.path, now=START + 900)
    assert [t.standing for t in record.trials] == [
        Standing.COMPLETED,
        Standing.COMPLETED,
        Standing.PRUNED,
        Standing.FAILED,
        Standing.RUNNING,
        Standing.WAITING,
    ]
    assert [t.word for t in record.trials] == ["completed", "completed", "pruned", "cuda_oom", "running", "waiting"]
    assert record.metric == METRIC
    assert record.counts[Standing.COMPLETED] == 2
    best = record.best
    assert best is not None
    assert best.number == 1
    assert best.point == {"algorithm": "cispo", "trainer.learning_rate": 1.2e-3}
    assert best.algorithm == "cispo"
    assert (best.last_step, best.total_steps) == (40, 40)
    assert len(best.score) == 40
    assert best.objective.first == 0.05
    assert best.curve("actor/entropy").steps[0] == 1  # not among those held: fetched from the directory
    assert not record.has_gpu
    assert record.hour_unit == "slot-hours"


def test_ranking_puts_completed_first_and_only_they_can_win(make_study: MakeStudy) -> None:
    study = make_study()
    study.trial({"algorithm": "a"}, Cause.PRUNED, value=0.99)
    study.trial({"algorithm": "b"}, value=0.5)
    study.trial({"algorithm": "c"}, Cause.CUDA_OOM, value=0.98)
    study.trial({"algorithm": "d"}, value=0.7)
    study.trial({"algorithm": "e"}, None, status=Status.SUBMITTED)
    study.trial({"algorithm": "f"}, value=math.inf)
    record = read_study(study.path)
    assert record.best is not None
    assert record.best.number == 3
    assert [t.number for t in record.ranked] == [3, 1, 5, 4, 0, 2]


def test_the_smallest_wins_where_the_study_minimises(make_study: MakeStudy) -> None:
    study = make_study(study={"direction": "minimize"})
    for value in (0.5, 0.2, 0.3):
        study.trial({"algorithm": "grpo"}, value=value)
    record = read_study(study.path)
    assert [t.value for t in record.ranked] == [0.2, 0.3, 0.5]
    assert record.best is record.ranked[0]


def test_an_attempt_that_left_no_word_took_what_is_booked(make_study: MakeStudy) -> None:
    """The times of its files may be those of a copy."""
    study = make_study("lost")
    trial = study.trial({"rollout.n": 2}, earlier=[Cause.PREEMPTED])
    first = trial.attempt(1)
    (first.path / "end.json").unlink()
    record = read_study(study.path)
    entry = next(e for e in record.ledger if e.attempt == 1)
    attempt = record.trials[0].attempts[0]
    assert attempt.ended - attempt.started == pytest.approx(3600 * entry.gpu_hours)
    assert record.trials[0].seconds == pytest.approx(3600 * record.gpu_hours)


def test_gpu_hours_are_booked_ones_and_those_of_running_attempts(make_study: MakeStudy) -> None:
    study = make_study(gpus=8, gpu="H20")
    study.trial({"algorithm": "grpo"}, steps=10, earlier=[Cause.PREEMPTED])
    running = study.trial({"algorithm": "rloo"}, None, steps=5, status=Status.SUBMITTED)
    started = START + 60
    for name in ("metrics.jsonl", "driver.log"):
        os.utime(running.attempt(1).path / name, (started + 100, started + 100))
    record = read_study(study.path, now=started + 360)
    assert record.hour_unit == "GPU-hours"
    assert record.trials[0].gpu_hours == pytest.approx(sum(e.gpu_hours for e in record.ledger))
    assert record.trials[1].gpu_hours == pytest.approx(360 * 8 / 3600)
    # two days of silence are not two days of work
    silent = read_study(study.path, now=started + 2 * 86400)
    assert silent.trials[1].gpu_hours == pytest.approx(100 * 8 / 3600)


def test_pruning_saves_the_steps_that_were_left_out(quickstart: Study) -> None:
    pruned = read_study(quickstart.path).trials[2]
    assert pruned.saved_gpu_hours == pytest.approx((40 - 12) * 9.0 / 3600)
    assert read_study(quickstart.path).saved_gpu_hours == pruned.saved_gpu_hours


def test_where_attempts_overlap_the_last_one_wins(make_study: MakeStudy) -> None:
    study = make_study()
    trial = study.trial({"algorithm": "grpo"}, rows=[row(5, 0.5), row(6, 0.6)], earlier=[Cause.NODE_FAIL])
    write_metrics(trial.attempt(1).metrics_file, [row(4, 0.1), row(5, 0.2), row(6, 0.3)])
    record = read_study(study.path).trials[0]
    assert list(record.score) == [(4, 0.1), (5, 0.5), (6, 0.6)]
    assert [a.cause for a in record.attempts] == [Cause.NODE_FAIL, Cause.COMPLETED]
    assert [a.last_step for a in record.attempts] == [6, 6]


def test_numbers_that_are_none_stay_in_the_curve(make_study: MakeStudy) -> None:
    study = make_study()
    study.trial({"algorithm": "grpo"}, Cause.DIVERGED, rows=[row(1, 0.1), row(2, math.nan), row(3, math.inf)])
    curve = read_study(study.path).trials[0].score
    assert curve.first == 0.1
    assert math.isnan(curve.values[1])
    assert curve.last == math.inf


def test_an_unsubmitted_trial_and_a_refused_one(make_study: MakeStudy) -> None:
    study = make_study()
    study.trial({"algorithm": "grpo"}, status=Status.CREATED)
    refused = study.trial({"algorithm": "rloo"}, status=Status.CREATED)
    refused.save(refused.state().but(status=Status.ENDED, cause=Cause.INFEASIBLE, reason="a = 1: no; yes"))
    waiting, infeasible = read_study(study.path).trials
    assert (waiting.word, waiting.last_step, waiting.gpu_hours) == ("waiting", None, 0.0)
    assert (infeasible.standing, infeasible.reason) == (Standing.INFEASIBLE, "a = 1: no; yes")


def test_a_trial_between_attempts_waits(make_study: MakeStudy) -> None:
    study = make_study()
    trial = study.trial({"algorithm": "grpo"}, Cause.NODE_FAIL, steps=5)
    trial.save(trial.state().but(status=Status.CREATED, cause=None, reason="again after node_fail"))
    assert read_study(study.path).trials[0].word == "waiting"


@pytest.mark.parametrize("text", ["", "study: {metric: [", "- a\n- b\n", "study: 3\nspace: x\ntrials: 1\n", "\x00"])
def test_a_torn_study_file_is_read_as_defaults(make_study: MakeStudy, text: str) -> None:
    study = make_study(text=text)
    study.trial({"algorithm": "grpo"})
    record = read_study(study.path)
    assert record.name == "demo"
    assert record.metric == SCORE
    assert record.keys == ("algorithm",)
    assert len(record.trials) == 1


def test_a_missing_study_file_is_told(tmp_path: Path) -> None:
    record = read_study(tmp_path)
    assert record.trials == ()
    assert record.best is None
    assert record.faults == ("study.yaml is missing",)


def test_text_that_looks_like_an_interpolation_is_text(make_study: MakeStudy) -> None:
    study = make_study(text=study_yaml("x", command="hysweep run 'model.path=${oc.env:HOME'"))
    assert read_study(study.path).command == "hysweep run 'model.path=${oc.env:HOME'"


def test_a_command_given_as_arguments_is_quoted(make_study: MakeStudy) -> None:
    study = make_study(text=study_yaml("x", command=["hysweep", "run", "a=choice(1, 2)"]))
    assert read_study(study.path).command == "hysweep run 'a=choice(1, 2)'"


def test_files_cut_in_the_middle_do_not_hide_the_rest(quickstart: Study) -> None:
    trials = quickstart.directory.trials()
    torn(trials[0].path / "state.json")
    torn(trials[1].attempt(1).metrics_file, keep=0.5)
    torn(trials[1].attempt(1).path / "end.json")
    torn(trials[2].path / "point.json")
    (trials[3].path / "point.json").write_text("[1, 2]")
    (trials[3].attempt(1).path / "end.json").write_text('{"cause": "no such cause"}')
    (trials[4].path / "state.json").write_text('{"status": "no such status", "attempt": 1}')
    (trials[5].path / "trial.yaml").write_bytes(b"\xff\xfe{")
    torn(quickstart.path / "ledger.jsonl", keep=0.9)
    (quickstart.path / "trials" / "not-a-trial").mkdir()
    (quickstart.path / "trials" / "00x7-abc").mkdir()
    (quickstart.path / "trials" / "0006-lostlost").mkdir()
    record = read_study(quickstart.path)
    assert [t.number for t in record.trials] == [0, 1, 2, 3, 4, 5, 6]
    assert record.trials[1].last_step is not None
    assert 10 < record.trials[1].last_step < 40
    assert record.trials[2].point == {}
    assert any("state" in fault for fault in record.faults)


def test_metrics_in_the_middle_of_a_write(make_study: MakeStudy) -> None:
    study = make_study()
    trial = study.trial({"algorithm": "grpo"}, None, rows=[row(1, 0.1)], status=Status.SUBMITTED)
    with open(trial.attempt(1).metrics_file, "a") as file:
        file.write('{"step": 2, "data": {"critic/score/me')
    assert read_study(study.path).trials[0].last_step == 1


def test_only_what_changed_is_read_again(quickstart: Study) -> None:
    age(quickstart.path)
    first = read_study(quickstart.path)
    trial = quickstart.directory.trials()[4]
    with open(trial.attempt(1).metrics_file, "a") as file:
        file.write(json.dumps(row(22, 0.77)) + "\n")
    second = read_study(quickstart.path, previous=first)
    for before, after in zip(first.trials, second.trials, strict=True):
        assert (before.curves is after.curves) == (after.number != 4)
    assert second.trials[4].score.last == 0.77
    assert second.trials[4].last_step == 22


def test_what_was_read_within_the_last_seconds_is_read_again(quickstart: Study) -> None:
    first = read_study(quickstart.path)
    second = read_study(quickstart.path, previous=first)
    assert all(a.curves is not b.curves for a, b in zip(first.trials, second.trials, strict=True))


def test_more_metrics_than_before_are_fetched(quickstart: Study) -> None:
    age(quickstart.path)
    first = read_study(quickstart.path)
    second = read_study(quickstart.path, metrics=["actor/entropy"], previous=first)
    assert len(second.trials[0].curves["actor/entropy"]) == 40


def test_importing_the_room_imports_neither_plotly_nor_optuna() -> None:
    code = "import sys, hysweep.report; print([m for m in ('plotly', 'optuna', 'torch', 'wandb') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_path_is_taken_as_text_too(quickstart: Study) -> None:
    assert read_study(str(quickstart.path)).directory == StudyDirectory(quickstart.path)


def row(step: int, score: float) -> dict[str, Any]:
    return {"step": step, "data": {SCORE: score}}


def torn(path: Path, keep: float = 0.6) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def age(path: Path) -> None:
    """Make every file look an hour old."""
    for name in [path, *path.rglob("*")]:
        os.utime(name, (START, START))
