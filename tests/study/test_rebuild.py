"""`hysweep rebuild`: what is lost or damaged of a study comes back from its trial directories."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from hysweep.compose import Composer
from hysweep.schema import BadInput
from hysweep.study.controller import Controller
from hysweep.study.rebuild import rebuild
from hysweep.track import Cause, Claim, StudyDirectory

from .fake import FakeLauncher
from .test_controller import LR, begin, by_lr, causes, finish, optuna_trials, rising


def facts(directory: StudyDirectory) -> list:
    return [(t.number, t.state.name, t.params, t.value, t.intermediate_values) for t in optuna_trials(directory)]


def again(directory: StudyDirectory, fake: FakeLauncher):
    return rebuild(directory, launchers=lambda name: fake)


def test_optuna_s_study_is_what_it_was(composer: Composer) -> None:
    """With failed, pruned and infeasible trials, and what the pruner compares with."""
    directory = begin(
        composer, "trainer.mini_batch_size=8,7,4,2,1", "study.pruner.name=median", "study.pruner.startup_trials=1",
        "study.pruner.min_steps=2",
    )  # fmt: skip
    scores = {8: 0.5, 4: 0.9, 2: 0.2, 1: 0.1}
    fake = FakeLauncher(lambda p, a: [scores[p["trainer.mini_batch_size"]]] * 5, {(2, 1): Cause.DIVERGED})
    finish(directory, fake)
    assert set(causes(directory)) == {Cause.COMPLETED, Cause.INFEASIBLE, Cause.DIVERGED, Cause.PRUNED}
    before = facts(directory)
    found = again(directory, fake)
    after = facts(directory)
    assert [f[:4] for f in after] == [f[:4] for f in before]
    completed = [i for i, f in enumerate(before) if f[1] == "COMPLETE"]
    assert [after[i] for i in completed] == [before[i] for i in completed]
    assert found.trials == {"completed": 1, "infeasible": 1, "diverged": 1, "pruned": 2} and not found.restored


def test_the_search_goes_on_as_if_nothing_had_been(composer: Composer) -> None:
    whole = begin(composer, LR, "study.n_trials=5", "study.name=whole")
    finish(whole, FakeLauncher(by_lr))
    mended = begin(composer, LR, "study.n_trials=5", "study.name=mended")
    fake = FakeLauncher(by_lr)
    finish(mended, fake, {"n_trials": 3})
    mended.journal.write_bytes(mended.journal.read_bytes()[:400] + b'{"op_code": 4, "wor')
    assert "the journal, which had torn or foreign lines" in again(mended, fake).restored
    finish(mended, fake, {"n_trials": 5})
    assert [t.point() for t in mended.trials()] == [t.point() for t in whole.trials()]


def test_damaged_states_come_from_the_events(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8", "study.max_parallel=3")
    fake = FakeLauncher(lambda p, a: [0.5] * (2 if p["rollout.n"] == 2 else 9), {(1, 1): Cause.PORT_CLASH})
    with Controller(directory, launchers=lambda name: fake) as c:
        for _ in range(6):
            c.tick()
    before = [t.state().but(updated=0) for t in directory.trials()]
    assert before[0].cause is Cause.COMPLETED and before[1].attempt == 2 and not before[2].is_final
    for trial in directory.trials():
        (trial.path / "state.json").write_text("{torn")
    (directory.trials()[0].path / "point.json").unlink()
    directory.journal.unlink()
    found = again(directory, fake)
    assert [t.state().but(updated=0) for t in directory.trials()] == before
    assert directory.trials()[0].point() == {"rollout.n": 2}
    assert len(found.restored) == 5
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3
    assert len(fake.submitted) == len(set(fake.submitted)) == 4


def test_a_lost_ledger_is_booked_again(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4")
    finish(directory, fake := FakeLauncher(rising, {(0, 1): Cause.PREEMPTED}))
    before = [(e.trial, e.attempt, e.cause, e.gpu_hours) for e in directory.ledger()]
    (directory.path / "ledger.jsonl").write_text("torn")
    foreign = {"event": "attempt_ended", "trial": 1, "attempt": None, "cause": "completed"}
    with open(directory.path / "events.jsonl", "a") as events:
        events.write(json.dumps(foreign) + "\n")
    again(directory, fake)
    assert [(e.trial, e.attempt, e.cause, e.gpu_hours) for e in directory.ledger()] == before


def test_steps_of_an_attempt_that_was_gone_on_from_are_booked_as_such_again(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2", "study.promote={min_steps:2}", "trainer.total_steps=4",
                      "trainer.save_every=2")  # fmt: skip
    finish(directory, fake := FakeLauncher(rising, {(0, 2): Cause.PREEMPTED}))
    trial = directory.trials()[0]
    assert [e.cause for e in directory.ledger()] == [Cause.RUNG, Cause.PREEMPTED, Cause.COMPLETED]
    trial.attempt(3).metrics_file.write_text('{"step": 4, "data": {"critic/score/mean": 0.4}}\n')
    trial.attempt(2).metrics_file.write_text('{"step": 3, "data": {"critic/score/mean": 0.3}}\n')
    (directory.path / "ledger.jsonl").unlink()
    again(directory, fake)
    assert [(e.productive > 0, e.wasted > 0.001) for e in directory.ledger()] == [(True, False)] * 3


def test_a_trial_whose_directory_is_gone_is_named(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8")
    finish(directory, fake := FakeLauncher(rising))
    shutil.rmtree(directory.trials()[1].path)
    assert "nothing of trial 1: its directory is gone" in again(directory, fake).restored


def test_what_cannot_be_read_for_once_is_not_restored(composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = begin(composer, "rollout.n=2")
    finish(directory, fake := FakeLauncher(rising))
    read_text, state = Path.read_text, directory.trials()[0].path / "state.json"
    before = state.read_text()

    def stale(path: Path, *more: str, **named: str) -> str:
        if path == state:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return read_text(path, *more, **named)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Stale"):
        patch.setattr(Path, "read_text", stale)
        again(directory, fake)
    assert state.read_text() == before and not again(directory, fake).restored


def test_a_definition_that_may_not_be_read_is_not_called_damaged(
    composer: Composer, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = begin(composer, "rollout.n=2")

    def denied(path: Path, *_: str, **__: str) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(BadInput, match=r"study\.yaml = unreadable: Permission denied"):
        rebuild(directory)


def test_a_definition_that_was_cut_off_is_none(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8")
    text = directory.config_file.read_text()
    directory.config_file.write_text(text[: text.index("env:")])
    with pytest.raises(BadInput, match="cannot be read as a study"):
        rebuild(directory)


@pytest.mark.parametrize("lost", ["events.jsonl", "journal.log"])
def test_what_is_lost_for_good_runs_nothing_again(composer: Composer, lost: str) -> None:
    directory = begin(composer, "rollout.n=2,4")
    finish(directory, fake := FakeLauncher(rising))
    (directory.path / lost).unlink()
    (directory.trials()[1].path / "state.json").unlink()
    again(directory, fake)
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 2 and len(fake.submitted) == 2


def test_the_verb_says_what_it_did(composer: Composer, capsys: pytest.CaptureFixture[str]) -> None:
    from hysweep.cli.steer import rebuild as verb

    directory = begin(composer, "rollout.n=2,4")
    finish(directory, FakeLauncher(rising))
    (directory.trials()[1].path / "state.json").write_text("")
    assert verb(directory.path, False) == 0
    said = capsys.readouterr().out
    assert "restored trial 1: completed, from events.jsonl" in said and "from 2 trials: 2 completed" in said
    assert verb(directory.path, True) == 0
    assert json.loads(capsys.readouterr().out) == {"trials": {"completed": 2}, "restored": []}


@pytest.mark.parametrize("rebuilds", [True, False])
def test_a_lost_state_of_a_job_that_the_scheduler_runs_again_is_that_of_the_same_job(
    composer: Composer, rebuilds: bool
) -> None:
    """Its second run never began, its third one did; of a fourth, nodes have made a directory and no more."""
    directory, fake = begin(composer, "cluster.launcher=slurm"), FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
    (trial,) = directory.trials()
    job, written = trial.state().job_id, trial.attempt(1).job()
    for number in (2, 3, 4):
        trial.attempt(number).prepare(written)
    trial.attempt(3).claim(Claim("h", 1, 0.0, job=job))
    fake.run_again(job, trial.attempt(3))
    (trial.path / "state.json").write_text("{torn")
    if rebuilds:
        again(directory, fake)
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] and fake.submitted == [job]
    assert [(e.attempt, e.cause) for e in directory.ledger()] == [(1, "node_fail"), (3, "completed")]


def test_a_trial_whose_state_is_lost_is_cancelled_with_its_job(composer: Composer) -> None:
    directory, fake = begin(composer, "rollout.n=2"), FakeLauncher(lambda p, a: [0.1] * 50)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
    (trial,) = directory.trials()
    (trial.path / "state.json").write_text("")
    trial.request_cancel()
    finish(directory, fake)
    assert causes(directory) == [Cause.CANCELLED] and fake.cancelled == {str(trial.attempt(1).path)}
    assert [(e.attempt, e.cause) for e in directory.ledger()] == [(1, "cancelled")]


def test_an_attempt_of_which_no_event_tells_is_found_by_what_its_trial_did_last(composer: Composer) -> None:
    """Its controller was killed between the submission of the second attempt and the line that tells of it."""
    directory, fake = begin(composer, "rollout.n=2"), FakeLauncher(rising, {(0, 1): Cause.PREEMPTED})
    with Controller(directory, launchers=lambda name: fake) as c:
        while len(fake.submitted) < 2:
            c.tick()
    (trial,) = directory.trials()
    events = (directory.path / "events.jsonl").read_text().splitlines(keepends=True)
    assert json.loads(events.pop())["event"] == "submitted"
    (directory.path / "events.jsonl").write_text("".join(events))
    trial.attempt(3).prepare(trial.attempt(1).job())
    (trial.path / "state.json").write_text("")
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] and len(fake.submitted) == 2
    assert [(e.attempt, e.cause) for e in directory.ledger()] == [(1, "preempted"), (2, "completed")]
