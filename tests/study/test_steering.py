"""Pause, budget, stop conditions, messages: what a person steers a study by."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml

from hysweep.cli import study as verbs
from hysweep.compose import Composer
from hysweep.launch import Busy, JobState, JobStatus
from hysweep.launch.sbatch import SET_UP_ENDED
from hysweep.report import read_study
from hysweep.schema import BadInput, Notify
from hysweep.study import begin as begin_study
from hysweep.study import controller
from hysweep.study.controller import LAUNCHES, Controller
from hysweep.study.ledger import Ledger
from hysweep.study.rebuild import rebuild
from hysweep.study.stopping import last_mark
from hysweep.track import Booking, Cause, Claim, StudyDirectory, TrialDirectory

from .fake import FakeLauncher
from .test_controller import begin, causes, dying_after, finish, rising


def ticks(directory: StudyDirectory, fake: FakeLauncher, n: int, **more) -> None:
    with Controller(directory, launchers=lambda name: fake, **more) as c:
        for _ in range(n):
            c.tick()


# --- pause


def test_a_pause_holds_what_waits_and_lets_go_on_what_runs(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8", "study.max_parallel=2")
    fake = FakeLauncher(rising, queued_for=5)
    ticks(directory, fake, 1)
    fake.waits[fake.submitted[0]] = 0  # the first one runs
    directory.request_pause()
    ticks(directory, fake, 12)
    states = [t.state() for t in directory.trials()]
    assert [s.cause for s in states] == [Cause.COMPLETED, None], "no third one was asked for"
    assert states[1].is_held and fake.held == {states[1].job_id}
    directory.withdraw_pause()
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3 and not fake.held
    assert all(len(t.attempts()) == 1 for t in directory.trials())


def test_a_release_that_the_scheduler_did_not_hear_is_said_again(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2")
    fake = FakeLauncher(rising, queued_for=5)
    ticks(directory, fake, 1)
    directory.request_pause()
    ticks(directory, fake, 2)
    assert fake.held
    directory.withdraw_pause()
    hold, calls = fake.hold, []

    def deaf_at_first(job_ids, release=False):
        calls.append(release)
        return hold(job_ids, release) if len(calls) > 2 else True

    fake.hold = deaf_at_first  # type: ignore[method-assign]
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] and calls == [True] * 3
    assert not directory.trials()[0].state().is_held


class Launching(FakeLauncher):
    """Nodes fail to launch a job `failures` times, and the scheduler keeps it back each time."""

    def __init__(self, failures: int) -> None:
        super().__init__(rising, queued_for=4)
        self.failures, self.is_stuck = failures, failures > 0
        self.released = 0

    def hold(self, job_ids, release=False):
        if release and self.is_stuck:
            self.is_stuck, self.released = False, self.released + 1
        return super().hold(job_ids, release)

    def states(self, job_ids):
        why = "launch failed requeued held: scontrol release 7"
        stuck = {id for id in job_ids if self.is_stuck and self._run(id).end() is None}
        seen = super().states(id for id in job_ids if id not in stuck)
        if not stuck:
            self.is_stuck = self.released < self.failures  # it is seen to wait, and then fails once more
        return seen | {id: JobState(JobStatus.PENDING, why, is_stuck=True, is_held=id in self.held) for id in stuck}


def test_what_a_node_could_not_launch_is_let_go_again(composer: Composer) -> None:
    directory, fake = begin(composer, "rollout.n=2"), Launching(LAUNCHES - 1)
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] and fake.released == LAUNCHES - 1


def test_what_no_node_can_launch_is_left_and_told(composer: Composer) -> None:
    directory, fake = begin(composer, "rollout.n=2", "study.notify.command='true'"), Launching(LAUNCHES + 5)
    for _ in range(8):  # as `hysweep tick` does: nothing is remembered but by the disk
        ticks(directory, fake, 3)
    assert fake.released == LAUNCHES - 1
    assert "scontrol release 7" in directory.trials()[0].state().reason
    assert (directory.path / "notified.jsonl").read_text().count("waits for you") == 1
    directory.request_cancel()
    finish(directory, fake)
    assert causes(directory) == [Cause.CANCELLED]


def test_what_fails_again_before_the_next_look_is_counted_too(composer: Composer, monkeypatch) -> None:
    """A tick every few minutes sees it kept back each time, and would cost the site a node each time."""
    directory, fake = begin(composer, "rollout.n=2", "study.notify.command='true'"), Launching(99)
    hold = fake.hold

    def in_vain(job_ids, release=False):
        done = hold(job_ids, release)
        fake.is_stuck = True
        return done

    fake.hold = in_vain  # type: ignore[method-assign]
    ticks(directory, fake, 6)
    assert directory.trials()[0].state().failed_launches == 1, "not heard yet, as far as can be told"
    monkeypatch.setattr(controller, "OLD_NEWS_S", -1.0)
    before = fake.released
    for _ in range(8):
        ticks(directory, fake, 1)
    assert fake.released - before == LAUNCHES - 2
    assert (directory.path / "notified.jsonl").read_text().count("waits for you") == 1


def test_while_paused_nothing_is_let_go(composer: Composer) -> None:
    directory, fake = begin(composer, "rollout.n=2"), Launching(0)
    ticks(directory, fake, 1)
    directory.request_pause()
    fake.failures, fake.is_stuck = 1, True
    ticks(directory, fake, 3)
    assert fake.released == 0 and not fake.held, "nothing is said again and again to what is kept back already"
    directory.withdraw_pause()
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] and fake.released == 1


def test_all_that_is_to_stop_is_cancelled_by_one_call(composer: Composer) -> None:
    """One for each would hold a step up, as long as the scheduler does not answer, for that of all of them."""
    directory = begin(composer, "rollout.n=2,4,8", "study.max_parallel=3")
    fake = FakeLauncher(rising, queued_for=5)
    ticks(directory, fake, 1)
    directory.request_cancel()
    cancel, calls = fake.cancel, []
    fake.cancel = lambda ids: calls.append(list(ids)) or cancel(calls[-1])  # type: ignore[method-assign, func-returns-value]
    finish(directory, fake)
    assert causes(directory) == [Cause.CANCELLED] * 3 and [len(ids) for ids in calls] == [3]


def test_a_full_disk_pauses_the_study_until_somebody_made_room(composer: Composer, tmp_path: Path) -> None:
    directory = begin(composer, "rollout.n=2,4,8", "study.max_parallel=2")
    fake = FakeLauncher(rising, ends={(0, 1): Cause.DISK_FULL, (1, 1): Cause.DISK_FULL})
    told = {"notify": Notify(command=f"cat >> {tmp_path}/told", timeout_s=10.0)}
    with Controller(directory, told, launchers=lambda name: fake) as c:
        for _ in range(20):
            c.tick()
    assert directory.is_paused and len(fake.submitted) == 2, "nothing more is tried"
    assert [str(t.state().status) for t in directory.trials()] == ["created"] * 2
    assert "is paused, trial 0 ended by disk_full" in (tmp_path / "told").read_text()
    assert [e["event"] for e in directory.events()].count("paused") == 1
    directory.withdraw_pause()
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3
    assert [len(t.attempts()) for t in directory.trials()] == [2, 2, 1]


def test_where_nothing_can_be_held_it_is_withdrawn(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4", "study.max_parallel=2")
    fake = FakeLauncher(rising, queued_for=5, can_hold=False)
    ticks(directory, fake, 1)
    directory.request_pause()
    ticks(directory, fake, 4)
    assert len(fake.cancelled) == 2
    assert {str(t.state().status) for t in directory.trials()} == {"created"}
    directory.withdraw_pause()
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 2
    assert all(len(t.attempts()) == 2 for t in directory.trials())


def test_what_waits_is_taken_back_when_the_cluster_changes(composer: Composer) -> None:
    """And submitted anew, once; what runs goes on as it is."""
    directory = begin(composer, "rollout.n=2,4,8", "study.max_parallel=3")
    fake = FakeLauncher(rising, queued_for=3)
    ticks(directory, fake, 1)
    fake.waits[fake.submitted[0]] = 0
    directory.request_pause()
    ticks(directory, fake, 1)
    directory.save_changes({"cluster": {"timeout_min": 7, "max_submitted": 9}})
    ticks(directory, fake, 1)
    assert not fake.cancelled, "a study that is paused submits nothing"
    directory.withdraw_pause()
    finish(directory, fake)
    first, *others = directory.trials()
    assert causes(directory) == [Cause.COMPLETED] * 3 and first.attempt(1).job()["timeout_min"] != 7
    assert [len(t.attempts()) for t in directory.trials()] == [1, 2, 2]
    assert all(t.attempt(2).job()["timeout_min"] == 7 for t in others)
    moved = [e for e in directory.events() if e["event"] == "stop"]
    assert [e["trial"] for e in moved] == [1, 2] and all(
        "cluster.* of the study has changed" in e["reason"] for e in moved
    )


def test_what_waits_stays_where_the_budget_has_no_room_for_it_elsewhere(composer: Composer) -> None:
    directory = begin(composer, "study.budget_gpu_hours=1.5")
    fake = FakeLauncher(rising, queued_for=3)
    ticks(directory, fake, 1)
    directory.save_changes({"cluster": {"timeout_min": 120}})
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] and len(directory.trials()[0].attempts()) == 1


def test_a_change_that_the_scheduler_refuses_costs_one_job_its_place(composer: Composer) -> None:
    directory = begin(composer, "cluster.launcher=slurm", "rollout.n=2,4,8", "study.max_parallel=3")
    fake = FakeLauncher(rising, queued_for=9, refuses_job=lambda job: job["timeout_min"] == 7 and "invalid partition")
    ticks(directory, fake, 1)
    directory.save_changes({"cluster": {"timeout_min": 7}})
    ticks(directory, fake, 20)
    assert len(fake.cancelled) == 1 and causes(directory) == [None, Cause.COMPLETED, Cause.COMPLETED]
    directory.save_changes({"cluster": {"timeout_min": 8}})
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3


def test_a_change_that_no_job_shows_leaves_the_queue_alone(composer: Composer) -> None:
    directory = begin(composer)
    fake = FakeLauncher(rising, queued_for=3)
    ticks(directory, fake, 1)
    directory.save_changes({"cluster": {"max_submitted": 3}})
    finish(directory, fake)
    assert len(directory.trials()[0].attempts()) == 1


class Drained(FakeLauncher):
    """Takes no job but of seven minutes."""

    def submit(self, attempt) -> str:
        self.asked += 1
        if attempt.job()["timeout_min"] != 7:
            raise Busy("partition inactive or drain")
        return super().submit(attempt)


def test_what_no_scheduler_has_taken_yet_goes_where_the_study_runs_by_now(composer: Composer) -> None:
    directory, fake = begin(composer, "rollout.n=2,4", "study.max_parallel=2"), Drained(rising)
    ticks(directory, fake, 2)
    assert "drain" in directory.trials()[0].state().reason and not fake.submitted
    directory.save_changes({"cluster": {"timeout_min": 7}})
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 2 and [len(t.attempts()) for t in directory.trials()] == [1, 1]


def test_what_no_scheduler_has_taken_yet_can_be_cancelled(composer: Composer) -> None:
    directory, fake = begin(composer, "rollout.n=2,4", "study.max_parallel=2"), Drained(rising)
    ticks(directory, fake, 2)
    asked = fake.asked
    directory.request_cancel()
    assert finish(directory, fake) == "cancelled"
    assert causes(directory) == [Cause.CANCELLED] and fake.asked == asked and not directory.ledger()


def test_a_trial_that_completes_while_it_is_taken_back_has_its_value(composer: Composer) -> None:
    class Late(FakeLauncher):
        def cancel(self, job_ids) -> None:
            if (first := self.submitted[0]) in job_ids and self._run(first).end() is None:
                row = {"step": 1, "data": {"critic/score/mean": 0.7}}
                self._run(first).metrics_file.write_text(json.dumps(row) + "\n")
                self._finish(first, Cause.COMPLETED)
            super().cancel(job_ids)

    directory, fake = begin(composer, "rollout.n=2,4", "study.max_parallel=2"), Late(rising, queued_for=5)
    ticks(directory, fake, 1)
    finish(directory, fake, {"cluster": {"timeout_min": 7}})
    assert causes(directory) == [Cause.COMPLETED] * 2 and directory.trials()[0].state().value == 0.7
    assert [len(t.attempts()) for t in directory.trials()] == [1, 2] and len(directory.ledger()) == 3


@pytest.mark.parametrize(("later", "memory"), [({}, 120), ({"memory_gib": 80.0}, 120), ({"memory_gib": 90.0}, 90)])
def test_memory_that_the_ladder_added_stays_until_the_study_says_another(composer: Composer, later, memory) -> None:
    site = ("cluster=testcluster", "cluster.nodes=1")
    directory, fake = begin(composer, *site), FakeLauncher(rising, {(0, 1): Cause.HOST_OOM, (0, 2): Cause.PREEMPTED})
    with Controller(directory, {"cluster": {"memory_gib": 80.0}}, launchers=lambda name: fake) as c:
        while len(fake.submitted) < 2:
            c.tick()
    finish(directory, fake, {"cluster": later} if later else None)
    (trial,) = directory.trials()
    assert [trial.attempt(n).job()["site"]["memory_gib"] for n in (1, 2, 3)] == [80, 120, memory]
    assert causes(directory) == [Cause.COMPLETED]


def test_the_scheduler_s_word_goes_before_what_a_script_said_for_its_node(composer: Composer) -> None:
    """A signal to a script in its set-up lines looks from inside as if one of them had ended it."""

    class Preempting(FakeLauncher):
        def submit(self, attempt) -> str:
            if attempt.number > 1:
                return super().submit(attempt)
            (attempt.path / "slurm-7.log").write_text(f"{SET_UP_ENDED}0\n")
            return "7"

        def states(self, job_ids) -> dict[str, JobState]:
            lost = JobState(JobStatus.ENDED, "the scheduler says PREEMPTED", Cause.PREEMPTED)
            return {"7": lost} | super().states(j for j in job_ids if j != "7")

    directory = begin(composer)
    finish(directory, Preempting(rising))
    assert causes(directory) == [Cause.COMPLETED]
    assert [e.cause for e in directory.ledger()] == [Cause.PREEMPTED, Cause.COMPLETED]


def test_a_job_held_before_a_crash_is_released_after_it(composer: Composer) -> None:
    """The controller died after it had the job held; meanwhile the pause was taken back."""
    directory = begin(composer)
    fake = FakeLauncher(rising, queued_for=3)
    ticks(directory, fake, 1)
    directory.request_pause()
    ticks(directory, fake, 2)
    assert fake.held
    directory.withdraw_pause()
    finish(directory, fake)
    assert not fake.held and causes(directory) == [Cause.COMPLETED]


# --- budget


def test_the_worst_case_of_what_runs_is_reserved(composer: Composer) -> None:
    """Each may take an hour: of 2.5 two run at once, and the third waits until one has ended for less."""
    directory = begin(composer, "rollout.n=2,4,8,16", "study.budget_gpu_hours=2.5", "study.max_parallel=4")
    finish(directory, fake := FakeLauncher(rising))
    assert fake.most_at_once == 2
    assert len(directory.trials()) == 4


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.HUNG, Cause.DISK_FULL])
def test_a_retry_that_the_budget_has_no_room_for_waits_for_more(composer: Composer, cause: Cause) -> None:
    """0.01 is spent, and 1.01 would be more than there is."""
    directory = begin(composer, "study.budget_gpu_hours=1.005")
    fake = FakeLauncher(rising, {(0, 1): cause})
    with Controller(directory, launchers=lambda name: fake) as c:
        while c.tick():
            directory.withdraw_pause()  # of the full disk
        assert "the budget of 1.005 slot-hours is used" in (c.why_no_more() or "")
    trial = directory.trials()[0]
    assert causes(directory) == [None] and len(trial.attempts()) == 1
    assert "waits for a larger budget" in trial.state().reason
    assert "its one trial was made" in finish(directory, fake, {"budget_gpu_hours": 9.0})
    assert causes(directory) == [Cause.COMPLETED] and len(trial.attempts()) == 2


def test_a_rerun_of_the_scheduler_s_own_is_stopped_where_it_is_too_much(composer: Composer) -> None:
    directory = begin(composer, "cluster.launcher=slurm", "study.budget_gpu_hours=3100000")
    fake = FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        (trial,) = directory.trials()
        c._ledger.book(Booking(9, 1, Cause.COMPLETED, 8, 3_099_999.9))
        trial.attempt(2).prepare(trial.attempt(1).job())
        trial.attempt(2).claim(Claim("h", 1, 0.0, job=trial.state().job_id))
        fake.run_again(trial.state().job_id, trial.attempt(2))
        while c.tick():
            pass
    assert fake.cancelled and causes(directory) == [None]
    assert "no room" in next(e["reason"] for e in directory.events() if e["event"] == "stop")
    assert "waits for a larger budget" in trial.state().reason
    finish(directory, fake, {"budget_gpu_hours": 9_000_000.0})
    assert causes(directory) == [Cause.COMPLETED] and len(trial.attempts()) == 3


def test_a_budget_that_fits_no_trial_is_refused(composer: Composer) -> None:
    with pytest.raises(BadInput, match=r"study\.budget_gpu_hours = 0\.5: one trial may take 1"):
        begin_study(composer.compose(["study.budget_gpu_hours=0.5"]), composer, [])


def test_a_study_begins_with_what_it_says_in_vain(composer: Composer) -> None:
    begun = begin_study(composer.compose(["rollout.n=2,4", "study.n_trials=5"]), composer, [])
    assert [p.key for p in begun.warnings] == ["study.n_trials"]


@pytest.mark.parametrize(
    "less",
    [
        {"budget_gpu_hours": 0.5},
        {"budget_gpu_hours": 2.5, "cluster": {"timeout_min": 180}},
    ],
)
def test_a_budget_below_one_trial_uses_up_no_point(composer: Composer, less: dict[str, object]) -> None:
    """Also where a trial may take more by now than those that ran: none is asked for, and more budget goes on."""
    directory = begin(composer, "rollout.n=2,4,8,16,32", "study.n_trials=2")
    finish(directory, fake := FakeLauncher(rising))
    for _ in range(2):
        assert "the budget of" in finish(directory, fake, {"n_trials": 5} | less)
        assert len(directory.trials()) == 2
    assert "all 5 trials" in finish(directory, fake, {"budget_gpu_hours": 9.0})
    assert causes(directory) == [Cause.COMPLETED] * 5


def test_a_trial_that_the_budget_has_no_room_for_waits_for_more(composer: Composer) -> None:
    """Each takes a hundredth of what it may take. What is larger than what is left is known when it is asked for."""
    words = ("cluster.timeout_min=60,240", "study.budget_gpu_hours=3")
    directory = begin(composer, *words)
    assert "a trial may take 4" in finish(directory, fake := FakeLauncher(rising))
    assert causes(directory) == [Cause.COMPLETED, None]
    assert "waits for a larger budget: it may take 4 slot-hours" in directory.trials()[1].state().reason
    assert "a trial may take 4" in finish(directory, fake), "looked at again, it is the same"
    assert "all 2 trials" in finish(directory, fake, {"budget_gpu_hours": 9.0})
    assert causes(directory) == [Cause.COMPLETED] * 2


def test_a_budget_that_somebody_raises_meanwhile_is_taken(composer: Composer) -> None:
    directory = begin(composer, "cluster.timeout_min=60,240", "study.max_parallel=2", "study.budget_gpu_hours=3")
    fake = FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        directory.save_changes({"budget_gpu_hours": 9.0})
        while c.tick():
            pass
    assert causes(directory) == [Cause.COMPLETED] * 2


def test_a_trial_that_waits_for_more_budget_can_be_cancelled(composer: Composer) -> None:
    directory = begin(composer, "cluster.timeout_min=60,240", "study.budget_gpu_hours=3")
    finish(directory, fake := FakeLauncher(rising))
    directory.trials()[1].request_cancel()
    assert "all 2 trials" in finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED, Cause.CANCELLED]


def test_what_is_spent_is_told_by_what_it_went_to(composer: Composer) -> None:
    """Attempt 1 lost two of its three steps: the checkpoint was made after the first."""
    directory = begin(composer)

    class Timed(FakeLauncher):
        def _look(self, id):
            seen = super()._look(id)
            attempt = self._run(id)
            rows = [json.loads(line) for line in attempt.metrics_file.read_text().splitlines()]
            for row in rows:
                row["data"]["timing_s/step"] = 6.0
            attempt.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            if rows and attempt.number == 1:
                checkpoints = attempt.trial.checkpoints
                checkpoints.mkdir(exist_ok=True)
                (checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
            return seen

    finish(directory, Timed(lambda p, a: [0.5] * 3, {(0, 1): Cause.PREEMPTED}))
    first, second = directory.ledger()
    assert (first.cause, second.cause) == (Cause.PREEMPTED, Cause.COMPLETED)
    hour = 3600
    assert first.gpu_hours == pytest.approx(36 / hour) and first.requested == 1.0
    assert first.productive == pytest.approx(6 / hour)
    assert first.wasted == pytest.approx(first.gpu_hours - first.boot - first.productive)
    assert second.productive == pytest.approx(12 / hour) and second.boot == pytest.approx(24 / hour, abs=3 / hour)


def test_a_boot_that_came_to_no_step_is_wasted(composer: Composer) -> None:
    directory = begin(composer)
    finish(directory, FakeLauncher(lambda p, a: [0.5] if a == 2 else [], {(0, 1): Cause.RAY_BOOT}))
    first = directory.ledger()[0]
    assert first.cause is Cause.RAY_BOOT and first.productive == first.boot == 0
    assert first.wasted == pytest.approx(first.gpu_hours)


def test_the_ledger_reserves_until_it_books(composer: Composer) -> None:
    ledger = Ledger(begin(composer))
    ledger.promise(3, 8.0)
    ledger.promise(4, 2.0)
    assert ledger.at_most() == 10.0 and ledger.at_most(without=3) == 2.0
    for _ in range(2):
        ledger.book(Booking(3, 1, Cause.COMPLETED, 8, 1.5))
    assert ledger.at_most() == 3.5 and ledger.spent == 1.5


# --- stop conditions


def test_a_target_that_is_reached_ends_the_asking(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8,16", "study.target=0.3")
    why = finish(directory, FakeLauncher(lambda p, a: [p["rollout.n"] / 20]))
    assert len(directory.trials()) == 3 and "target of 0.3 is reached: the best is 0.4" in why


def test_a_target_is_reached_by_a_point_not_by_one_of_its_seeds(composer: Composer) -> None:
    """The first has 0.9 and 0.1: its mean is below the target, and so is the best that is told."""
    words = ("sweep=seeds.yaml", "study.target=0.6", "study.notify.command='cat >> told.jsonl'")
    Path("seeds.yaml").write_text("# @package _global_\nspace: {rollout.n: 'choice(2,4,8)', seeds: [1, 2]}\n")
    directory = begin(composer, *words)
    values = {(2, 1): 0.9, (2, 2): 0.1, (4, 1): 0.7, (4, 2): 0.5, (8, 1): 0.1, (8, 2): 0.1}
    why = finish(directory, FakeLauncher(lambda p, a: [values[p["rollout.n"], p["trainer.seed"]]]))
    assert "target of 0.6 is reached: the best is 0.6" in why and len(directory.trials()) == 4
    (told,) = map(json.loads, Path("told.jsonl").read_text().splitlines())
    assert told["best"] == pytest.approx(0.6) == read_study(directory).best_value


def test_a_target_goes_by_the_direction_of_the_first_objective(composer: Composer) -> None:
    goals = "study.objectives=[{metric:critic/score/mean,direction:minimize},{metric:gpu_hours,direction:minimize}]"
    directory = begin(composer, "rollout.n=2,4,8,16", "study.target=0.3", goals)
    why = finish(directory, FakeLauncher(lambda p, a: [0.9 - p["rollout.n"] / 10]))
    assert "target of 0.3" in why and len(directory.trials()) == 3


def test_patience_ends_what_brings_nothing_better(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8,16,32", "study.patience_trials=2")
    why = finish(directory, FakeLauncher(lambda p, a: [0.5 if p["rollout.n"] == 4 else 0.1]))
    assert len(directory.trials()) == 4 and "2 trials in a row brought nothing better than 0.5" in why
    # also over a restart
    assert "nothing better" in finish(directory, FakeLauncher(rising))


def test_time_ends_the_asking(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8,16", "study.max_hours=0")
    assert "0 hours have passed" in finish(directory, FakeLauncher(rising))
    assert not directory.trials()
    finish(directory, FakeLauncher(rising), {"max_hours": 1.0})
    assert len(directory.trials()) == 4


def test_what_was_changed_once_holds_for_whoever_drives_it_next(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8,16", "study.n_trials=1")
    fake = FakeLauncher(rising)
    finish(directory, fake, {"n_trials": 3})
    assert "all 3 trials" in finish(directory, fake)


# --- messages


def notified(directory: StudyDirectory) -> list[dict]:
    lines = (directory.path / "told.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_people_are_told_once_of_each_event(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8", "study.budget_gpu_hours=1.03")
    command = "cat >> told.jsonl; echo $HYSWEEP_EVENT $HYSWEEP_STUDY: $HYSWEEP_TEXT >> texts"
    changes = {"notify": Notify(command=f"cd {directory.path}; {command}")}
    fake = FakeLauncher(rising, {(1, 1): Cause.DIVERGED})
    for _ in range(2):
        finish(directory, fake, changes)
    told = notified(directory)
    assert sorted(e["event"] for e in told) == ["end", "failure"], "three hundredths of an hour are no half"
    (end,) = [e for e in told if e["event"] == "end"]
    assert end["trials"] == 3 and end["best"] == pytest.approx(0.4) and end["study"] == directory.name
    texts = (directory.path / "texts").read_text()
    assert "failure" in texts and "trial 1" in texts and "diverged" in texts


def test_people_are_told_of_a_failure_after_a_crash_too(composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = begin(composer, "rollout.n=2")
    changes = {"notify": Notify(command=f"cd {directory.path}; cat >> told.jsonl", events=["failure"])}
    fake = FakeLauncher(rising, {(0, 1): Cause.DIVERGED})
    with dying_after(monkeypatch, TrialDirectory, "save", 3):  # submitting, submitted, ended
        finish(directory, fake, changes)
    assert causes(directory) == [Cause.DIVERGED]
    for _ in range(2):
        finish(directory, fake)
    assert [e["event"] for e in notified(directory)] == ["failure"]


@pytest.mark.parametrize("command", ["exit 3", "/no/such/thing", "sleep 100"])
def test_a_message_that_fails_or_hangs_is_no_trouble(composer: Composer, command: str) -> None:
    directory = begin(composer)
    began = time.monotonic()
    finish(directory, FakeLauncher(rising), {"notify": Notify(command=command, timeout_s=1.0)})
    assert time.monotonic() - began < 30 and causes(directory) == [Cause.COMPLETED]
    assert [e["event"] for e in directory.events()][-1] == "notify_failed"


@pytest.mark.parametrize(
    ("spent", "mark"), [(0, None), (4.9, None), (5, 50), (7.99, 50), (8, 80), (10, 100), (11, 100)]
)
def test_the_marks_of_a_budget(spent: float, mark: int | None) -> None:
    assert last_mark(spent, 10.0) == mark
    assert last_mark(spent, None) is None


@pytest.mark.parametrize("said", ['{"n_trials": "many"}', '{"speed": 3}', '{"notify": null}', '{"notify": 7}'])
def test_changes_that_no_study_can_have_are_told_of(composer: Composer, said: str) -> None:
    directory = begin(composer, "rollout.n=2,4")
    (directory.path / "changes.json").write_text(said)
    with pytest.raises(BadInput, match=r"changes\.json says so"):
        Controller(directory)


@pytest.mark.parametrize(
    ("key", "value"), [("cwd", None), ("created", "now"), ("env", 3), ("overrides", [3]), ("versions", ...)]
)
def test_a_definition_with_other_kinds_of_values_is_none(composer: Composer, key: str, value: object) -> None:
    directory = begin(composer, "rollout.n=2,4")
    content = yaml.safe_load(directory.config_file.read_text())
    if value is ...:
        del content[key]
    else:
        content[key] = value
    directory.config_file.write_text(yaml.safe_dump(content))
    with pytest.raises(BadInput, match="cannot be read as a study"):
        Controller(directory)


def test_a_controller_that_is_killed_leaves_its_jobs_and_the_study_to_others(
    composer: Composer, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, fake = begin(composer, "rollout.n=2,4", "study.max_parallel=2"), FakeLauncher(rising, queued_for=10_000)
    monkeypatch.setattr(
        controller, "Controller", lambda d, changes: Controller(d, changes, launchers=lambda name: fake)
    )

    def kill() -> None:
        while len(fake.submitted) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    (killer := threading.Thread(target=kill, daemon=True)).start()
    assert verbs.drive(directory, {}) == 130
    killer.join()
    assert not directory.driver_file.exists() and not fake.cancelled
    rebuild(directory, launchers=lambda name: fake)
    fake.waits.clear()
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 2 and len(fake.submitted) == 2
