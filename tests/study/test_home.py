"""A study that was moved or copied: the jobs of another directory are neither adopted nor stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from hysweep.cli.steer import pause, tick
from hysweep.cli.study import cancel, resume, status
from hysweep.compose import Composer
from hysweep.schema import BadInput
from hysweep.study.controller import Controller
from hysweep.study.rebuild import rebuild
from hysweep.track import Cause, StudyDirectory

from .fake import FakeLauncher
from .test_controller import begin, causes, finish, rising


def in_flight(composer: Composer, fake: FakeLauncher, *overrides: str) -> StudyDirectory:
    """One trial has ended, two run."""
    directory = begin(composer, "rollout.n=2,4,8", "study.max_parallel=3", *overrides)
    with Controller(directory, launchers=lambda name: fake) as c:
        for _ in range(4):
            c.tick()
    assert [t.state().is_final for t in directory.trials()] == [True, False, False]
    return directory


def one_short(point: dict, attempt: int) -> list[float]:
    return [0.5] * (2 if point["rollout.n"] == 2 else 9)


def copy_of(directory: StudyDirectory, is_moved: bool = False) -> StudyDirectory:
    there = directory.path.with_name("elsewhere")
    (shutil.move if is_moved else shutil.copytree)(directory.path, there)
    return StudyDirectory(there)


VERBS = {
    "resume": lambda d, fake: resume(d.path, [], detach=False),
    "tick": lambda d, fake: tick(d.path, as_json=False),
    "pause": lambda d, fake: pause(d.path),
    "cancel": lambda d, fake: cancel(d.path, []),
    "rebuild": lambda d, fake: rebuild(d, launchers=lambda name: fake),
    "controller": lambda d, fake: finish(d, fake),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_copy_leaves_the_jobs_of_the_original_alone(composer: Composer, verb: str) -> None:
    directory = in_flight(composer, fake := FakeLauncher(one_short))
    copy = copy_of(directory)
    before = [t.state() for t in copy.trials()]
    with pytest.raises(BadInput, match=r"is a copy of .*2 of its trials were in flight.*hysweep resume"):
        VERBS[verb](copy, fake)
    assert [t.state() for t in copy.trials()] == before and not fake.cancelled
    assert not copy.is_paused and not copy.is_cancel_requested
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3 and len(fake.submitted) == 3


def test_a_copy_whose_states_are_damaged_asks_for_no_job_either(composer: Composer) -> None:
    copy = copy_of(in_flight(composer, fake := FakeLauncher(one_short)))
    for trial in copy.trials():
        (trial.path / "state.json").write_text("{torn")
    with pytest.raises(BadInput, match="2 of its trials were in flight"):
        rebuild(copy, launchers=lambda name: fake)


@pytest.mark.parametrize("verb", [VERBS["rebuild"], VERBS["controller"]])
@pytest.mark.parametrize("lost", [[], ["events.jsonl"]])
def test_a_result_whose_state_is_damaged_is_no_job_in_flight(composer: Composer, verb, lost: list[str]) -> None:
    directory = begin(composer, "rollout.n=2,4")
    finish(directory, fake := FakeLauncher(rising))
    values = [t.state().value for t in directory.trials()]
    copy = copy_of(directory)
    (copy.trials()[0].path / "state.json").write_text("")
    for name in lost:
        (copy.path / name).unlink()
    verb(copy, fake)
    finish(copy, fake)
    assert [t.state().value for t in copy.trials()] == values and causes(copy) == [Cause.COMPLETED] * 2
    assert len(fake.submitted) == 2


@pytest.mark.parametrize(("is_moved", "came"), [(False, "is a copy of"), (True, "was moved from")])
def test_the_status_of_a_copy_says_whose_jobs_it_shows(
    composer: Composer, capsys: pytest.CaptureFixture[str], is_moved: bool, came: str
) -> None:
    directory = in_flight(composer, FakeLauncher(one_short))
    status(directory.path, as_json=False)
    assert came not in capsys.readouterr().out
    copy = copy_of(directory, is_moved)
    status(copy.path, as_json=False)
    assert f"{copy.path} {came} {directory.path}, and what runs or waits is not its own" in capsys.readouterr().out
    status(copy.path, as_json=True)
    assert f'"came_from": "{came} {directory.path}"' in capsys.readouterr().out


def test_without_them_a_copy_goes_on_by_itself(composer: Composer) -> None:
    """As the message says: the trials that were in flight begin anew."""
    directory = in_flight(composer, fake := FakeLauncher(one_short))
    copy = copy_of(directory)
    for trial in copy.trials()[1:]:
        shutil.rmtree(trial.path)
    finish(copy, fake)
    finish(directory, fake)
    for study in (copy, directory):
        assert causes(study) == [Cause.COMPLETED] * 3
        assert [t.point()["rollout.n"] for t in study.trials()] == [2, 4, 8]
    assert len(fake.submitted) == 5


def test_moved_in_flight_it_has_to_go_back(composer: Composer) -> None:
    directory = in_flight(composer, fake := FakeLauncher(one_short))
    moved = copy_of(directory, is_moved=True)
    with pytest.raises(BadInput, match=f"was moved from .*mv {moved.path} {directory.path}"):
        tick(moved.path, as_json=False)
    shutil.move(moved.path, directory.path)
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3


@pytest.mark.parametrize("is_moved", [True, False])
def test_with_nothing_in_flight_it_is_at_home_where_it_is(composer: Composer, is_moved: bool) -> None:
    directory = begin(composer, "rollout.n=2,4,8")
    finish(directory, fake := FakeLauncher(rising), {"n_trials": 2})
    directory.controller_file.write_text('{"job": "7"}')
    there = copy_of(directory, is_moved)
    finish(there, fake, {"n_trials": 3})
    assert causes(there) == [Cause.COMPLETED] * 3 and len(fake.submitted) == 3
    assert not there.controller_file.exists(), "that job drives the other one"
    home = there.home()
    assert home is not None and home.path == str(there.path)


def test_a_link_to_a_study_is_the_study(composer: Composer) -> None:
    directory = in_flight(composer, fake := FakeLauncher(one_short))
    link = directory.path.with_name("link")
    link.symlink_to(directory.path)
    finish(StudyDirectory(link), fake)
    assert causes(directory) == [Cause.COMPLETED] * 3


def test_a_host_that_mounts_it_elsewhere_sees_the_same_study(composer: Composer) -> None:
    directory = in_flight(composer, fake := FakeLauncher(one_short))
    home = directory.home()
    assert home is not None
    directory.save_home(replace(home, path="/mnt/elsewhere/study", host="login-2"))
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3 and len(fake.submitted) == 3


def test_a_copy_does_not_share_the_original_s_database(composer: Composer, tmp_path) -> None:
    directory = begin(composer, "rollout.n=2,4", f"study.storage=sqlite:///{tmp_path}/optuna.db")
    finish(directory, fake := FakeLauncher(rising))
    with pytest.raises(BadInput, match=r"the database of study\.storage has one study for both"):
        finish(copy_of(directory), fake)
