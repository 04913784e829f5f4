"""A job that the scheduler refuses: nothing of it ran, so nothing of the study is lost; it goes on elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from hysweep.compose import Composer
from hysweep.launch import JobState, JobStatus
from hysweep.report import Standing, change_lines, read_study
from hysweep.schema import BadInput
from hysweep.study import begin as begin_study
from hysweep.study.changes import move
from hysweep.study.controller import Controller
from hysweep.study.definition import load_definition
from hysweep.track import AttemptDirectory, Cause, Status, StudyDirectory

from .fake import FakeLauncher
from .test_controller import begin, causes, finish, optuna_trials, rising

SLURM = ("cluster=testcluster", "cluster.partition=mian", "study.n_trials=2", "rollout.n=2,4,8")
NO_PARTITION = "invalid partition specified: mian"


def only_main(job: dict) -> str:
    return "" if job["site"]["partition"] == "main" else NO_PARTITION


def stops(directory: StudyDirectory, fake: FakeLauncher, changes=None, most: int = 50) -> str:
    """Drive to the refusal; what it says."""
    with Controller(directory, changes, launchers=lambda name: fake) as c:
        for _ in range(most):
            if not c.tick():
                assert not c.is_over
                return str(c.refusal)
    raise AssertionError("the study does not stop")


def test_a_refusal_burns_no_trial_and_says_what_to_change(composer: Composer) -> None:
    directory = begin(composer, *SLURM)
    fake = FakeLauncher(rising, refuses=NO_PARTITION)
    said = stops(directory, fake)
    assert said.startswith("cluster.partition = mian: the scheduler refused trial 0: invalid partition")
    assert f"hysweep resume {directory.path} cluster.partition=VALUE" in said
    (trial,) = directory.trials()
    state = trial.state()
    assert (state.status, state.attempt, state.cause) == (Status.CREATED, 0, None) and state.is_refused
    assert not directory.ledger() and [t.state.name for t in optuna_trials(directory)] == ["RUNNING"]
    assert fake.asked == 1, "no other trial was begun to be refused as well"
    record = read_study(directory)
    assert record.trials[0].word == "refused" and NO_PARTITION in (record.refusal or "")


def test_whoever_goes_on_asks_again_and_the_event_is_written_once(composer: Composer) -> None:
    directory = begin(composer, *SLURM)
    fake = FakeLauncher(rising, refuses=NO_PARTITION)
    stops(directory, fake)
    stops(directory, fake)
    assert fake.asked == 2 and [e["event"] for e in directory.events()].count("refused") == 1
    fake.refuses = ""
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 2
    assert all(len(t.attempts()) == 1 and not t.state().is_refused for t in directory.trials())
    assert read_study(directory).refusal is None


def test_a_resume_elsewhere_runs_the_same_trials_there(composer: Composer) -> None:
    directory = begin(composer, *SLURM)
    fake = FakeLauncher(rising, refuses_job=only_main)
    stops(directory, fake)
    (refused,) = directory.trials()
    finish(directory, fake, {"cluster": {"partition": "main"}})
    assert causes(directory) == [Cause.COMPLETED] * 2
    assert directory.trials()[0].path == refused.path, "where it runs is no part of what it is"
    assert {t.attempt(1).job()["site"]["partition"] for t in directory.trials()} == {"main"}
    assert directory.changes()["cluster"] == {"partition": "main"}
    finish(directory, fake, {"n_trials": 3})  # the next one knows of it
    assert causes(directory) == [Cause.COMPLETED] * 3


def test_what_runs_goes_on_while_another_is_refused(composer: Composer) -> None:
    directory = begin(composer, *SLURM, "study.max_parallel=2")
    fake = FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        submit = fake.submit

        def once(attempt: AttemptDirectory) -> str:
            if attempt.trial.number == 1:
                fake.refuses = NO_PARTITION
            return submit(attempt)

        fake.submit = once  # type: ignore[method-assign]
        assert c.tick(), "trial 0 is in flight"
        assert [t.state().is_refused for t in directory.trials()] == [False, True]
        assert c.refusal is None
        while c.tick():
            pass
        assert c.refusal is not None
    assert causes(directory) == [Cause.COMPLETED, None] and fake.asked == 2


def test_a_driving_controller_takes_over_what_another_process_changes(composer: Composer) -> None:
    directory = begin(composer, *SLURM, "study.max_parallel=2")
    fake = FakeLauncher(rising, refuses_job=only_main)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        directory.save_changes({"cluster": {"partition": "main"}, "n_trials": 3})
        while c.tick():
            pass
    assert causes(directory) == [Cause.COMPLETED] * 3


def test_where_clusters_are_searched_a_point_that_cannot_run_is_that_point_s_end(composer: Composer) -> None:
    directory = begin(composer, "cluster=testcluster", "cluster.partition=main", "cluster.timeout_min=30,60,90")
    too_long = "Requested time limit is invalid"
    fake = FakeLauncher(rising, refuses_job=lambda job: too_long if job["timeout_min"] == 60 else "")
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED, Cause.CONFIG_ERROR, Cause.COMPLETED]


def test_a_refused_trial_can_be_cancelled(composer: Composer) -> None:
    directory = begin(composer, *SLURM, "study.n_trials=1")
    fake = FakeLauncher(rising, refuses=NO_PARTITION)
    stops(directory, fake)
    directory.trials()[0].request_cancel()
    finish(directory, fake)
    assert causes(directory) == [Cause.CANCELLED]


def test_a_crash_while_it_is_refused_loses_nothing(composer: Composer) -> None:
    """The token was written, and the controller died before it heard of the refusal."""
    directory = begin(composer, *SLURM)
    fake = FakeLauncher(rising)
    fake.submit = lambda attempt: exec("raise KeyboardInterrupt")  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
    assert directory.trials()[0].state().status is Status.SUBMITTING
    stops(directory, FakeLauncher(rising, refuses=NO_PARTITION))
    assert directory.trials()[0].state().attempt == 0
    finish(directory, FakeLauncher(rising), {"cluster": {"partition": "main"}})
    assert causes(directory) == [Cause.COMPLETED] * 2


# --- the same command with another cluster


@pytest.fixture
def can_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine of a cluster: `begin` looks whether one can submit here, and whether the scheduler answers."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("sbatch", "sinfo"):
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")


def ask(composer: Composer, *overrides: str):
    words = ["study.name=s", "cluster=testcluster", "study.n_trials=2", "rollout.n=2,4,8", *overrides]
    return begin_study(composer.compose(words), composer, [])


def test_the_same_command_elsewhere_is_a_change_until_something_has_run(composer: Composer, can_submit) -> None:
    first = ask(composer, "cluster.partition=mian")
    assert first.is_new
    fake = FakeLauncher(rising, refuses_job=only_main)
    stops(first.directory, fake)
    again = ask(composer, "cluster.partition=main")
    assert again.changes["cluster"] == {"partition": "main"}
    finish(again.directory, fake, again.changes)
    assert causes(again.directory) == [Cause.COMPLETED] * 2
    assert "cluster" not in ask(composer, "cluster.partition=main").changes, "it is there by now"
    assert "cluster" not in ask(composer, "cluster.partition=mian").changes, "and stays there"


def test_what_has_run_elsewhere_is_told_how_to_move(composer: Composer, can_submit) -> None:
    begun = ask(composer, "cluster.partition=main")
    finish(begun.directory, FakeLauncher(rising))
    with pytest.raises(BadInput, match=r"differs in cluster.partition; .*hysweep resume \S+ cluster.partition=gpu"):
        ask(composer, "cluster.partition=gpu")
    with pytest.raises(BadInput, match=r"differs in rollout\.temperature"):
        ask(composer, "cluster.partition=main", "rollout.temperature=0.5")


def test_what_a_move_may_say(composer: Composer) -> None:
    directory = begin(composer, "cluster=testcluster", "cluster.partition=mian", "cluster.timeout_min=30,60")
    definition = load_definition(directory, composer)
    assert move(definition, composer, ["cluster.partition=main", "cluster.nodes=1"], {}) == {
        "partition": "main",
        "nodes": 1,
    }
    with pytest.raises(BadInput, match=r"cluster.timeout_min = 90: is searched"):
        move(definition, composer, ["cluster.timeout_min=90"], {})
    fixed = load_definition(begin(composer, "study.name=f", "cluster=testcluster", "cluster.partition=mian"), composer)
    whole = move(fixed, composer, ["cluster=local"], {})
    assert whole == asdict(composer.compose(["cluster=local"]).trial.cluster)
    with pytest.raises(BadInput, match=r"cluster\.nodes"):
        move(fixed, composer, ["cluster.nodes=0"], {})


# --- what the scheduler alone knows of a job


class Waiting(FakeLauncher):
    """Its jobs are what `said` says, and no node of theirs has come up."""

    said = JobState(JobStatus.PENDING, "Resources")

    def submit(self, attempt: AttemptDirectory) -> str:
        return "7"

    def find(self, attempt: AttemptDirectory) -> str | None:
        return None

    def states(self, job_ids):
        return dict.fromkeys(job_ids, self.said)


def test_why_a_job_waits_and_since_when_it_runs_is_noted(composer: Composer) -> None:
    directory = begin(composer, "cluster.launcher=slurm")
    fake = Waiting(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        c.tick()
        (trial,) = directory.trials()
        waiting = read_study(directory)
        assert trial.state().reason == "Resources" and waiting.trials[0].word == "queued"
        fake.said = JobState(JobStatus.PENDING, "ReqNodeNotAvail, UnavailableNodes:n1")
        c.tick()
        elsewhere = read_study(directory, previous=waiting)
        (line,) = change_lines(waiting, elsewhere)
        assert line.endswith(": queued (ReqNodeNotAvail, UnavailableNodes:n1)")
        assert change_lines(elsewhere, read_study(directory)) == []
        began = waiting.read_at - 360
        fake.said = JobState(JobStatus.RUNNING, started=began)
        c.tick()
        state, record = trial.state(), read_study(directory)
        assert (state.reason, state.began) == ("", began)
        assert record.trials[0].word == "starting" and record.counts == {Standing.RUNNING: 1}
        assert record.trials[0].seconds == pytest.approx(360, abs=30)
        assert record.gpu_hours == pytest.approx(c.gpu_hours(), rel=0.1) and record.gpu_hours > 0
        fake.said = JobState(JobStatus.PENDING, "BeginTime")  # it was preempted
        c.tick()
        assert trial.state().began is None and read_study(directory).trials[0].word == "queued"
