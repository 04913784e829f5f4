"""The controller on a scripted launcher: order, retries, pruning, cancels, budget, and death at every moment."""

from __future__ import annotations

import math
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from hysweep.compose import Composer
from hysweep.launch import JobState, JobStatus
from hysweep.launch.sbatch import SET_UP_ENDED
from hysweep.schema import BadInput, Problem
from hysweep.study import define, load_definition
from hysweep.study.controller import OLD_NEWS_S, Controller
from hysweep.study.pruners import bar_of
from hysweep.track import AttemptDirectory, Cause, Claim, End, Status, StudyDirectory, TrialDirectory, began_from

from .fake import FakeLauncher

LR = "trainer.learning_rate=tag(log,interval(1e-4,1e-2))"


def rising(point: dict, attempt: int) -> list[float]:
    return [0.1 * (i + 1) for i in range(4)]


def by_lr(point: dict, attempt: int) -> list[float]:
    quality = 1 - abs(math.log10(point["trainer.learning_rate"]) + 3)
    return [quality * (i + 1) / 6 for i in range(6)]


def begin(composer: Composer, *overrides: str) -> StudyDirectory:
    definition = define(composer.compose(["study.poll_s=0.05", *overrides]))
    definition.directory.create(definition.to_yaml(), composer.snapshot())
    return definition.directory


def finish(directory: StudyDirectory, fake: FakeLauncher, changes=None, most_ticks: int = 300) -> str:
    with Controller(directory, changes, launchers=lambda name: fake) as c:
        for _ in range(most_ticks):
            if not c.tick():
                return c.why_no_more() or ""
    raise AssertionError("the study does not end")


def causes(directory: StudyDirectory) -> list[Cause | None]:
    return [t.state().cause for t in directory.trials()]


def optuna_trials(directory: StudyDirectory):
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(directory.journal)))
    return optuna.load_study(study_name=None, storage=storage).trials


def test_one_trial_is_a_study_of_one(composer: Composer) -> None:
    directory = begin(composer, "algorithm=cispo")
    finish(directory, fake := FakeLauncher(rising))
    [trial] = directory.trials()
    assert trial.state().value == pytest.approx(0.4)
    assert fake.submitted == [str(trial.attempt(1).path)]
    assert "cispo" in directory.name


def test_a_study_says_what_was_checked_out_where_it_began(composer: Composer, tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    commits = yaml.safe_load(begin(composer).config_file.read_text())["commits"]
    assert commits[str(tmp_path)] == head[:12]


def test_a_grid_runs_every_point_once(composer: Composer) -> None:
    directory = begin(composer, "algorithm=grpo,rloo,gspo,cispo", "rollout.n=4,8", "study.max_parallel=3")
    finish(directory, fake := FakeLauncher(rising))
    points = [tuple(t.point().values()) for t in directory.trials()]
    assert points == [(a, n) for a in ("grpo", "rloo", "gspo", "cispo") for n in (4, 8)]
    assert set(causes(directory)) == {Cause.COMPLETED}
    assert fake.most_at_once == 3
    assert [t.state.name for t in optuna_trials(directory)] == ["COMPLETE"] * 8


def test_a_place_is_filled_the_moment_it_is_free(composer: Composer) -> None:
    """No barrier: a long trial holds nobody up."""
    directory = begin(composer, "rollout.n=2,4,8,16", "study.max_parallel=2")
    long = FakeLauncher(lambda p, a: [0.5] * (30 if p["rollout.n"] == 2 else 3))
    finish(directory, long)
    ended = [e["trial"] for e in directory.events() if e["event"] == "ended"]
    assert ended == [1, 2, 3, 0]


def test_n_trials_is_a_total_also_over_restarts(composer: Composer) -> None:
    directory = begin(composer, LR, "study.n_trials=3")
    fake = FakeLauncher(by_lr)
    finish(directory, fake)
    finish(directory, fake)
    assert len(directory.trials()) == 3
    finish(directory, fake, {"n_trials": 5})
    assert [t.number for t in directory.trials()] == [0, 1, 2, 3, 4]
    assert len({t.id for t in directory.trials()}) == 5, "a restart repeats no draw (case 33)"


def test_the_same_seed_asks_the_same_points_with_and_without_a_restart(composer: Composer) -> None:
    whole = begin(composer, LR, "study.n_trials=6", "study.name=whole")
    finish(whole, FakeLauncher(by_lr))
    cut = begin(composer, LR, "study.n_trials=6", "study.name=cut")
    fake = FakeLauncher(by_lr)
    for n in (2, 3, 6):
        finish(cut, fake, {"n_trials": n})
    assert [t.point() for t in cut.trials()] == [t.point() for t in whole.trials()]


def test_the_named_points_run_first(composer: Composer) -> None:
    directory = begin(
        composer, "algorithm=grpo,cispo", LR, "study.n_trials=3",
        "study.enqueue=[{algorithm:cispo,trainer.learning_rate:1e-3},{algorithm:grpo}]",
    )  # fmt: skip
    finish(directory, FakeLauncher(by_lr))
    points = [t.point() for t in directory.trials()]
    assert points[0] == {"algorithm": "cispo", "trainer.learning_rate": 1e-3}
    assert points[1]["algorithm"] == "grpo"


def test_a_bad_trial_is_pruned_and_its_job_cancelled(composer: Composer) -> None:
    directory = begin(
        composer,
        "rollout.n=2,4,8",
        "study.pruner.name=median",
        "study.pruner.startup_trials=2",
        "study.pruner.min_steps=3",
    )
    fake = FakeLauncher(lambda p, a: [0.1 if p["rollout.n"] == 8 else 0.5] * 8)
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED, Cause.COMPLETED, Cause.PRUNED]
    loser = directory.trials()[2]
    assert str(loser.attempt(1).path) in fake.cancelled
    assert len(loser.curve("critic/score/mean")) < 8
    assert loser.state().reason == (
        "up to step 3 its best critic/score/mean was 0.1, and the best 50 % of 2 completed ones had 0.5 there (median)"
    )
    assert [t.state.name for t in optuna_trials(directory)] == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert len(directory.ledger()) == 3, "what a pruned trial used is booked"


@pytest.mark.parametrize(
    "cause", [Cause.RAY_BOOT, Cause.PORT_CLASH, Cause.NCCL, Cause.KILLED, Cause.UNKNOWN, Cause.HUNG]
)
def test_once_more_then_fail(composer: Composer, cause: Cause) -> None:
    lucky = begin(composer, "study.name=lucky")
    finish(lucky, FakeLauncher(rising, {(0, 1): cause}))
    assert causes(lucky) == [Cause.COMPLETED]
    assert len(lucky.trials()[0].attempts()) == 2
    unlucky = begin(composer, "study.name=unlucky")
    finish(unlucky, FakeLauncher(rising, {(0, 1): cause, (0, 2): cause}))
    assert causes(unlucky) == [cause]
    assert len(unlucky.trials()[0].attempts()) == 2


def test_preemption_is_forgiven_as_often_as_it_comes(composer: Composer) -> None:
    directory = begin(composer)
    finish(directory, FakeLauncher(rising, {(0, n): Cause.PREEMPTED for n in range(1, 6)}))
    assert causes(directory) == [Cause.COMPLETED]
    assert len(directory.trials()[0].attempts()) == 6


def test_progress_is_that_of_the_attempt_that_ended(composer: Composer) -> None:
    """The scheduler began to run the job again, and its node was lost before it could take that attempt."""
    directory = begin(composer, "rollout.n=2")
    fake = FakeLauncher(rising, {(0, 1): Cause.TIMEOUT})
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
    trial = directory.trials()[0]
    trial.attempt(2).prepare(trial.attempt(1).job() or {})
    saved(trial, 1)
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] and len(fake.submitted) == 2


def saved(trial: TrialDirectory, step: int) -> None:
    trial.checkpoints.mkdir(exist_ok=True)
    (trial.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))


@pytest.mark.parametrize(("checkpoint", "attempts"), [(None, 1), (1, 2)])
def test_a_timeout_is_tried_again_from_a_checkpoint_of_its_own_alone(
    composer: Composer, checkpoint: int | None, attempts: int
) -> None:
    """Without one it would take as many GPU-hours again, to end where it ended; one of an earlier attempt is none."""
    directory = begin(composer, "rollout.n=2")
    fake = FakeLauncher(rising, {(0, n): Cause.TIMEOUT for n in (1, 2, 3)})
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
    if checkpoint is not None:
        saved(directory.trials()[0], checkpoint)
    finish(directory, fake)
    assert causes(directory) == [Cause.TIMEOUT] and len(fake.submitted) == attempts


@pytest.mark.parametrize(
    ("attempts", "step"),
    [
        ([[(0, {"val-core/x": 0.1}), (1, {"critic/score/mean": 0.1})]], 0),
        ([[(1, {"critic/score/mean": 0.1})]], 0),
        ([[(1, {"a": 0.1})], [(20, {"val-core/x": 0.1, "val-aux/y": 1.0}), (21, {"a": 0.1})]], 20),
        ([[(1, {"a": 0.1})], [(21, {"a": 0.1, "val-core/x": 0.1})]], 20),
        ([[(1, {"a": 0.1}), (9, {"a": 0.1})], []], 9),
        ([[]], 0),
    ],
)
def test_where_an_attempt_began_is_read_off_its_first_row(attempts: list, step: int) -> None:
    assert began_from(attempts) == step


@pytest.mark.parametrize("cause", [Cause.CONFIG_ERROR, Cause.REWARD_ERROR])
def test_three_faults_of_the_configuration_stop_the_study(composer: Composer, cause: Cause) -> None:
    directory = begin(composer, "rollout.n=2,4,8,16,32")
    why = finish(directory, FakeLauncher(rising, {(n, 1): cause for n in range(5)}))
    assert causes(directory) == [cause] * 3
    assert "mend the configuration" in why


def test_one_dead_job_does_not_end_a_study(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8")
    finish(directory, FakeLauncher(rising, {(0, 1): Cause.DIVERGED}))
    assert causes(directory) == [Cause.DIVERGED, Cause.COMPLETED, Cause.COMPLETED]


def test_out_of_memory_goes_up_the_ladder_to_its_top(composer: Composer) -> None:
    """Each attempt is the same trial on less memory; at the top it fails, and what was frozen stays as it was."""
    lucky = begin(composer, "study.name=lucky")
    finish(lucky, FakeLauncher(rising, {(0, 1): Cause.CUDA_OOM}))
    assert causes(lucky) == [Cause.COMPLETED]
    (trial,) = lucky.trials()
    first, second = (a.job() for a in trial.attempts())
    assert first and second and first["overrides"] != second["overrides"]
    assert trial.attempt(1).placement() is None and trial.attempt(2).placement() != trial.config_file.read_text()
    rungs = [e["rung"] for e in lucky.events() if e["event"] == "retry"]

    hopeless = begin(composer, "study.name=hopeless")
    finish(hopeless, FakeLauncher(rising, {(0, n): Cause.CUDA_OOM for n in range(1, 50)}))
    assert causes(hopeless) == [Cause.CUDA_OOM]
    climbed = [e["rung"] for e in hopeless.events() if e["event"] == "retry"]
    assert climbed[:1] == rungs and len(hopeless.trials()[0].attempts()) == len(climbed) + 1
    assert "no further rung" in hopeless.trials()[0].state().reason


def test_a_preempted_attempt_stays_on_its_rung(composer: Composer) -> None:
    directory = begin(composer)
    finish(directory, FakeLauncher(rising, {(0, 1): Cause.CUDA_OOM, (0, 2): Cause.PREEMPTED}))
    jobs = [a.job() for a in directory.trials()[0].attempts()]
    assert causes(directory) == [Cause.COMPLETED]
    assert jobs[1]["overrides"] == jobs[2]["overrides"] != jobs[0]["overrides"]


def test_a_node_to_blame_is_not_used_again(composer: Composer) -> None:
    directory = begin(composer, "cluster.launcher=slurm", "cluster.exclude=bad0")
    fake = FakeLauncher(rising, {(0, 1): Cause.NODE_FAIL, (0, 2): Cause.RAY_BOOT}, nodes=("n7",))
    finish(directory, fake)
    assert [a.job()["site"]["exclude"] for a in directory.trials()[0].attempts()] == ["bad0", "bad0,n7", "bad0,n7"]


def test_all_attempts_of_a_trial_are_one_run_in_wandb(composer: Composer) -> None:
    """Case 41: verl gives no id, so the environment does; trials have one each, and a study made anew has others."""
    runs = []
    for name in ("one", "two"):
        directory = begin(composer, "tracking=wandb", "rollout.n=2,4", f"study.name={name}")
        finish(directory, FakeLauncher(rising, {(0, 1): Cause.PREEMPTED}))
        envs = [a.job()["env"] for t in directory.trials() for a in t.attempts()]
        assert {e["WANDB_RESUME"] for e in envs} == {"allow"} and {e["WANDB_RUN_GROUP"] for e in envs} == {name}
        runs.append([e["WANDB_RUN_ID"] for e in envs])
    (first, again, other), second = runs
    assert first == again != other and len({first, other, *second}) == 4


def test_a_run_in_wandb_has_names_tags_and_a_place_of_its_own(composer: Composer) -> None:
    """Cases 39 and 41: names of at most 128 characters, told apart; an offline run lies beside its attempt."""
    long = "s" * 100
    directory = begin(composer, "tracking=wandb_offline", "tracking.tags=[mine]", "rollout.n=2,4", f"study.name={long}")
    finish(directory, FakeLauncher(rising, {}))
    envs = {t.number: (t.attempt(1), t.attempt(1).job()) for t in directory.trials()}
    names = [next(o for o in job["overrides"] if "experiment_name" in o) for _, job in envs.values()]
    assert len(set(names)) == 2
    for attempt, job in envs.values():
        env = job["env"]
        assert env["WANDB_MODE"] == "offline" and env["WANDB_DIR"] == str(attempt.path.absolute())
        assert env["WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL"] == "1" and env["WANDB_JOB_TYPE"] == "trial"
        assert "mine" in env["WANDB_TAGS"].split(",") and "rollout.n" in env["WANDB_NOTES"]
        assert all(len(env[f"WANDB_{name}"]) <= 128 for name in ("RUN_ID", "RUN_GROUP"))
    assert all(len(name.partition("=")[2]) <= 128 for name in names)


def test_no_key_of_the_environment_is_written_anywhere(composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    from hysweep.report import read_study, write_page
    from hysweep.report.export import export

    secrets = {n: f"planted-{n.lower()}" for n in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD")}
    for name, secret in secrets.items():
        monkeypatch.setenv(name, secret)
    directory = begin(composer, "tracking=wandb", "rollout.n=2,4")
    finish(directory, FakeLauncher(rising, {(0, 1): Cause.PREEMPTED}))
    write_page(directory)
    export(read_study(directory), "csv", directory.path / "export")
    files = [f for f in directory.path.rglob("*") if f.is_file()]
    assert len(files) > 20
    found = [(f, n) for f in files for n, secret in secrets.items() if secret.encode() in f.read_bytes()]
    assert found == []


def test_a_busy_scheduler_is_asked_again_and_a_refusal_is_final(composer: Composer) -> None:
    busy = begin(composer, "study.name=busy", "rollout.n=2,4")
    fake = FakeLauncher(rising, busy_for=3)
    with Controller(busy, launchers=lambda name: fake) as c:
        c.tick()
        assert len(busy.trials()) == 1 and busy.trials()[0].state().reason == "too many"
        while c.tick():
            pass
    assert causes(busy) == [Cause.COMPLETED] * 2
    assert all(len(t.attempts()) == 1 for t in busy.trials())


def test_runs_of_the_scheduler_s_own_are_attempts(composer: Composer) -> None:
    """SLURM ran the job again twice: after it lost a node, after it preempted it. All three are told and booked."""
    directory = begin(composer, "cluster.launcher=slurm")
    fake = FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        (trial,) = directory.trials()
        job_id = trial.state().job_id
        for number, end in ((2, None), (3, End(Cause.KILLED, reason="SIGTERM"))):
            if end:
                trial.attempt(2).finish(end)
            trial.attempt(number).prepare(trial.attempt(1).job())
            trial.attempt(number).claim(Claim("h", 1, 0.0, job=job_id))
        fake.run_again(job_id, trial.attempt(3))
        while c.tick():
            pass
    assert causes(directory) == [Cause.COMPLETED]
    assert [(e.attempt, e.cause) for e in directory.ledger()] == [
        (1, "node_fail"),
        (2, "preempted"),
        (3, "completed"),
    ]


@pytest.mark.parametrize("said", [JobStatus.PENDING, JobStatus.RUNNING])
def test_a_job_that_goes_on_though_its_trial_is_done_is_not_waited_for(composer: Composer, said: JobStatus) -> None:
    """SLURM may have forgotten that it ran, or that it ended. Until that is old news it may be how jobs end."""

    class Forgetful(FakeLauncher):
        def states(self, job_ids):
            seen = super().states(job_ids)
            return {id: JobState(said) if s.is_over and id not in self.cancelled else s for id, s in seen.items()}

    directory, fake = begin(composer, "cluster.launcher=slurm"), Forgetful(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        for _ in range(20):
            c.tick()
        (trial,) = directory.trials()
        end_file = trial.attempt(1).path / "end.json"
        assert end_file.exists() and not trial.state().is_final and not fake.cancelled
        os.utime(end_file, (0, time.time() - 2 * OLD_NEWS_S))
        while c.tick():
            pass
    assert causes(directory) == [Cause.COMPLETED] and trial.state().value is not None
    assert fake.cancelled == {str(trial.attempt(1).path)} and [e.attempt for e in directory.ledger()] == [1]


@pytest.mark.parametrize(("started", "is_left"), [(1.0, False), (2.0e9, True), (None, True)])
def test_a_run_that_goes_on_after_its_end_is_ended_and_the_next_one_is_not(
    composer: Composer, started: float | None, is_left: bool
) -> None:
    class Forgetful(FakeLauncher):
        def states(self, job_ids):
            seen, runs = super().states(job_ids), JobState(JobStatus.RUNNING, started=started)
            return {id: runs if s.is_over and id == self.submitted[0] and id not in self.cancelled else s
                    for id, s in seen.items()}  # fmt: skip

    directory = begin(composer, "cluster.launcher=slurm")
    fake = Forgetful(rising, ends={(0, 1): Cause.PREEMPTED})
    with Controller(directory, launchers=lambda name: fake) as c:
        for _ in range(20):
            c.tick()
        (trial,) = directory.trials()
        os.utime(trial.attempt(1).path / "end.json", (0, time.time() - 2 * OLD_NEWS_S))
        for _ in range(20):
            c.tick()
    assert fake.cancelled == (set() if is_left else {str(trial.attempt(1).path)})
    booked = [] if is_left else [(1, "preempted"), (2, "completed")]
    assert [(e.attempt, e.cause) for e in directory.ledger()] == booked


def test_a_job_whose_number_is_given_to_another_one_is_lost_and_its_trial_goes_on(composer: Composer) -> None:
    """By a scheduler that was killed before it had saved that it took the first."""

    class Forgetful(FakeLauncher):
        def submit(self, attempt):
            taken = (attempt.trial.number, attempt.number) != (1, 1)
            return super().submit(attempt) if taken else str(attempt.path)

        def states(self, job_ids):
            another = JobState(JobStatus.RUNNING, name="somebody-0000-a1-x")
            return {id: super(Forgetful, self).states([id])[id] if id in self.jobs else another for id in job_ids}

    directory = begin(composer, "rollout.n=2,4")
    finish(directory, Forgetful(rising))
    assert causes(directory) == [Cause.COMPLETED] * 2
    booked = [(e.trial, e.attempt, e.cause) for e in directory.ledger()]
    assert sorted(booked) == [(0, 1, "completed"), (1, 1, "node_fail"), (1, 2, "completed")]
    late = Claim("a node", 1, 0.0, job="should the scheduler remember it")
    assert not directory.trials()[1].attempt(1).claim(late)


def test_a_run_that_the_scheduler_ended_in_its_set_up_lines_is_told_as_such(composer: Composer) -> None:
    directory, fake = begin(composer, "cluster.launcher=slurm"), FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        (trial,) = directory.trials()
        first, second = trial.attempt(1), trial.attempt(2)
        said = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT T DUE TO PREEMPTION ***"
        (first.path / "slurm-7.log").write_text(f"{said}\n{SET_UP_ENDED}0\n")
        second.prepare(first.job())
        second.claim(Claim("h", 1, 0.0, job=trial.state().job_id))
        fake.run_again(trial.state().job_id, second)
        while c.tick():
            pass
    assert [(e.attempt, e.cause) for e in directory.ledger()] == [(1, "preempted"), (2, "completed")]


def test_runs_of_a_job_that_never_began_lie_between_two_that_did(composer: Composer) -> None:
    """Taken again, twice, while its image was fetched: the scheduler counts that, and nothing of it is on disk."""
    directory, fake = begin(composer, "cluster.launcher=slurm"), FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        (trial,) = directory.trials()
        fourth = trial.attempt(4)
        fourth.prepare(trial.attempt(1).job())
        fourth.claim(Claim("h", 1, 0.0, job=trial.state().job_id))
        fake.run_again(trial.state().job_id, fourth)
        while c.tick():
            pass
    assert causes(directory) == [Cause.COMPLETED]
    assert [(e.attempt, e.cause) for e in directory.ledger()] == [(1, "node_fail"), (4, "completed")]


@pytest.mark.parametrize("name", ["attempts/2", "attempts/2/trial.yaml"])
def test_what_lies_where_an_attempt_is_to_be_stops_no_study(composer: Composer, name: str) -> None:
    directory, fake = begin(composer, "rollout.n=2,4"), FakeLauncher(rising, {(0, 1): Cause.PREEMPTED})
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
    path = directory.trials()[0].path / name
    if name.endswith("yaml"):
        path.mkdir(parents=True)
    else:
        path.write_text("")
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED if name.endswith("yaml") else Cause.UNKNOWN, Cause.COMPLETED]


def test_a_run_that_began_and_ended_while_the_queue_was_asked_is_not_lost(composer: Composer) -> None:
    class Quick(FakeLauncher):
        def states(self, job_ids):
            ids = list(job_ids)
            if (job := next(iter(ids), "")).endswith("/1") and job not in self.runs:
                first = AttemptDirectory(Path(job))
                first.finish(End(Cause.PREEMPTED, started=1.0, ended=2.0))
                third = first.trial.attempt(3)
                third.prepare(first.job())
                third.claim(Claim("h", 1, 0.0, job=job))
                self.run_again(job, third)
                while not super().states(ids)[job].is_over:
                    pass
            return super().states(ids)

    directory, fake = begin(composer, "cluster.launcher=slurm"), Quick(rising)
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] and len(fake.submitted) == 1
    assert [(e.attempt, e.cause) for e in directory.ledger()] == [(1, "preempted"), (3, "completed")]


def test_a_job_that_was_forgotten_before_it_began_is_submitted_as_often_as_it_takes(composer: Composer) -> None:
    class Forgetful(FakeLauncher):
        def states(self, job_ids):
            lost = {id: JobState(JobStatus.ENDED, "unknown", is_lost=True) for id in job_ids if id not in self.jobs}
            return lost | super().states(id for id in job_ids if id in self.jobs)

        def submit(self, attempt):
            if attempt.number >= 4:
                return super().submit(attempt)
            return str(attempt.path)  # taken, and never run

    directory = begin(composer)
    finish(directory, Forgetful(rising))
    assert causes(directory) == [Cause.COMPLETED]
    assert [str(e.cause) for e in directory.ledger()] == ["node_fail"] * 3 + ["completed"]
    assert [e.gpu_hours for e in directory.ledger()][:3] == [0.0] * 3


def test_an_infeasible_point_costs_nothing_and_is_counted(composer: Composer) -> None:
    directory = begin(composer, "trainer.mini_batch_size=4,7,8")
    finish(directory, fake := FakeLauncher(rising))
    assert causes(directory) == [Cause.COMPLETED, Cause.INFEASIBLE, Cause.COMPLETED]
    assert len(fake.submitted) == 2
    assert "trainer.mini_batch_size = 7" in directory.trials()[1].state().reason


def test_the_same_trial_never_runs_twice(composer: Composer) -> None:
    """Case 35: a small space under a sampler is exhausted, not repeated."""
    directory = begin(composer, "rollout.n=2,4", "study.n_trials=2", "study.sampler=random", "study.seed=3")
    finish(directory, fake := FakeLauncher(rising))
    assert len(fake.submitted) == len(set(fake.submitted)) == 2
    assert sorted(t.point()["rollout.n"] for t in directory.trials()) == [2, 4]


@pytest.mark.parametrize("values", [[0.1, math.nan], [math.nan], [0.1, math.inf]])
def test_no_number_is_no_value(composer: Composer, values: list[float]) -> None:
    directory = begin(composer)
    finish(directory, FakeLauncher(lambda p, a: values))
    assert causes(directory) == [Cause.DIVERGED]
    assert [t.state.name for t in optuna_trials(directory)] == ["FAIL"]


def test_a_metric_that_never_comes_is_said_with_the_nearest(composer: Composer) -> None:
    directory = begin(composer, "study.metric=actor/scores")
    finish(directory, FakeLauncher(rising))
    state = directory.trials()[0].state()
    assert state.cause is Cause.CONFIG_ERROR
    assert "never logged actor/scores" in state.reason


def test_a_budget_ends_the_asking(composer: Composer) -> None:
    """Each takes 0.01, and could take an hour."""
    directory = begin(composer, "rollout.n=2,4,8,16", "study.budget_gpu_hours=1.015", "study.max_parallel=4")
    why = finish(directory, fake := FakeLauncher(rising))
    assert len(directory.trials()) == 2
    assert fake.most_at_once == 1, "two at once could come to two hours"
    assert "budget" in why


def test_a_cancelled_trial_stays_cancelled_and_the_others_go_on(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4", "study.max_parallel=2")
    fake = FakeLauncher(lambda p, a: [0.5] * 6)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        directory.trials()[0].request_cancel()
        while c.tick():
            pass
    finish(directory, fake)
    assert causes(directory) == [Cause.CANCELLED, Cause.COMPLETED]


def test_a_cancelled_study_asks_no_more_until_it_is_resumed(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4,8")
    fake = FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
        directory.request_cancel()
        while c.tick():
            pass
        assert c.why_no_more() == "cancelled"
    assert causes(directory) == [Cause.CANCELLED]
    directory.withdraw_cancel()
    finish(directory, fake)
    assert causes(directory) == [Cause.CANCELLED, Cause.COMPLETED, Cause.COMPLETED]


def test_one_controller_at_a_time(composer: Composer) -> None:
    directory = begin(composer)
    first = Controller(directory, launchers=lambda name: FakeLauncher(rising))
    with first, pytest.raises(BadInput, match="one controller"):
        Controller(directory).__enter__()


def test_a_torn_journal_is_mended(composer: Composer) -> None:
    directory = begin(composer, LR, "study.n_trials=2")
    fake = FakeLauncher(by_lr)
    finish(directory, fake)
    with open(directory.journal, "ab") as file:
        file.write(b'{"op_code": 4, "worker')
    finish(directory, fake, {"n_trials": 3})
    assert len(optuna_trials(directory)) == 3


def test_a_lost_journal_is_only_an_index(composer: Composer) -> None:
    """No journal: what is on disk is still there, nothing runs again."""
    directory = begin(composer, "rollout.n=2,4")
    fake = FakeLauncher(rising)
    finish(directory, fake)
    assert [t.state().value for t in directory.trials()] == [pytest.approx(0.4)] * 2
    directory.journal.unlink()
    finish(directory, fake)
    assert len(fake.submitted) == 2


def test_a_damaged_state_runs_nothing_again(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4")
    finish(directory, fake := FakeLauncher(rising))
    (directory.trials()[0].path / "state.json").write_text("{torn")
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 2
    assert len(fake.submitted) == 2


@pytest.mark.parametrize("garbage", [b"", b"study: [", b"\x80\x00", b"study: {}", b"- 1", b"study: {nope: 1}"])
def test_a_damaged_definition_is_told(composer: Composer, garbage: bytes) -> None:
    directory = begin(composer)
    directory.config_file.write_bytes(garbage)
    with pytest.raises(BadInput, match=r"study\.yaml"):
        Controller(directory)


@pytest.mark.parametrize("garbage", [b"", b"\x80\x00", b"trainer: [", b"- 1", b"nope: 1", b"trainer: {seed: x}", None])
@pytest.mark.parametrize("name", ["trial.yaml", "attempts/1/job.json", "point.json"])
def test_a_damaged_record_of_a_trial_that_runs_is_made_again(composer: Composer, name: str, garbage) -> None:
    directory = begin(composer, "rollout.n=2,4", "study.max_parallel=2")
    fake = FakeLauncher(rising, {(0, 1): Cause.PREEMPTED})
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
    file = directory.trials()[0].path / name
    file.unlink() if garbage is None else file.write_bytes(garbage)
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 2
    assert len(fake.submitted) == len(set(fake.submitted)) == 3
    assert [e.attempt for e in directory.ledger() if e.trial == 0] == [1, 2]


def test_a_trial_of_which_nothing_can_be_read_is_one_clear_error(composer: Composer) -> None:
    directory = begin(composer, "rollout.n=2,4")
    fake = FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
    for name in ("trial.yaml", "point.json"):
        (directory.trials()[0].path / name).write_text("{torn")
    with pytest.raises(BadInput, match=r"trial\.yaml = damaged: .*bring the file back.*hysweep cancel .* 0"):
        finish(directory, fake)


def test_a_journal_lost_in_the_middle_is_made_again(composer: Composer) -> None:
    directory = begin(composer, "algorithm=grpo,rloo", LR, "study.n_trials=4", "study.max_parallel=2")
    fake = FakeLauncher(by_lr)
    with Controller(directory, launchers=lambda name: fake) as c:
        for _ in range(9):
            c.tick()
    before = {t.number: t.point() for t in directory.trials()}
    assert any(not t.state().is_final for t in directory.trials())
    directory.journal.unlink()
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 4
    assert {n: p for n, p in ((t.number, t.point()) for t in directory.trials()) if n in before} == before
    assert sorted(t.state.name for t in optuna_trials(directory)) == ["COMPLETE"] * 4
    assert len(fake.submitted) == len(set(fake.submitted)) == 4


def test_points_that_are_one_trial_run_once(composer: Composer, tmp_path: Path) -> None:
    """Two options of equal values are the same training."""
    own = tmp_path / "mine" / "algorithm"
    own.mkdir(parents=True)
    (own / "twin.yaml").write_text("name: twin\nadv_estimator: rloo\n")
    directory = begin(Composer([tmp_path / "mine"]), "algorithm=rloo,twin,grpo")
    why = finish(directory, fake := FakeLauncher(rising))
    assert [t.point()["algorithm"] for t in directory.trials()] == ["rloo", "grpo"]
    assert len(fake.submitted) == 2
    assert "nothing new" in why


def test_a_label_that_is_varied_makes_trials(composer: Composer) -> None:
    directory = begin(composer, "data.name=a,b")
    finish(directory, FakeLauncher(rising))
    assert causes(directory) == [Cause.COMPLETED] * 2


@pytest.mark.parametrize("kept", [10.0, 25.0, 50.0, 75.0, 90.0])
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_bar_is_that_of_optuna(kept: float, direction: str) -> None:
    import numpy

    values = [0.6562, 0.7188, 0.75, 0.7969]
    percent = 100 - kept if direction == "maximize" else kept
    bar = bar_of(values, kept, direction)
    assert bar == pytest.approx(numpy.percentile(values, percent))


def test_a_sweep_file_with_named_points_can_be_pinned(composer: Composer) -> None:
    definition = define(composer.compose(["sweep=quickstart", "algorithm=grpo"]))
    assert definition.study.enqueue == [{"trainer.learning_rate": 1e-3}]


NULLS = {
    "list": ["trainer.checkpoints_kept=null,2"],
    "tpe": ["trainer.checkpoints_kept=null,2", "study.sampler=tpe"],
    "file": ["space={trainer.checkpoints_kept: [2, null]}"],
    "condition": [
        "space={trainer.checkpoints_kept: [{when: 'rollout.n == 4', in: [null, 2]}, {in: [3]}]}",
        "rollout.n=4",
    ],
    "zip": [
        "space={zip: [{trainer.checkpoints_kept: null, rollout.n: 2}, {trainer.checkpoints_kept: 2, rollout.n: 4}]}"
    ],
}


@pytest.mark.parametrize("space", NULLS.values(), ids=NULLS)
def test_a_null_is_a_value_like_another(composer: Composer, space: list[str]) -> None:
    """On a command line, in a sweep file, and in study.yaml, which each controller reads again."""
    overrides = [*space, "study.n_trials=2"]
    directory = begin(composer, *overrides)
    assert load_definition(directory, composer).space == define(composer.compose(overrides)).space
    fake = FakeLauncher(rising)
    with Controller(directory, launchers=lambda name: fake) as c:
        c.tick()
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 2
    kept = [t.point()["trainer.checkpoints_kept"] for t in directory.trials()]
    assert sorted(kept, key=str) == [2, None]


def test_foreign_lines_in_the_journal_are_dropped(composer: Composer) -> None:
    directory = begin(composer, LR, "study.n_trials=2")
    fake = FakeLauncher(by_lr)
    finish(directory, fake)
    directory.journal.write_bytes(directory.journal.read_bytes() + b'{"status": 1}\n[]\n')
    finish(directory, fake, {"n_trials": 3})
    assert len(directory.trials()) == 3


def test_a_frozen_trial_is_not_touched_by_an_edited_default(composer: Composer, tmp_path: Path) -> None:
    own = tmp_path / "mine" / "algorithm"
    own.mkdir(parents=True)
    (own / "grpo.yaml").write_text("name: grpo\nclip_ratio_high: 0.31\n")
    directory = begin(Composer([tmp_path / "mine"]), "rollout.n=2,4")
    (own / "grpo.yaml").write_text("name: grpo\nclip_ratio_high: 0.99\n")
    finish(directory, FakeLauncher(rising))
    for trial in directory.trials():
        assert "clip_ratio_high: 0.31" in trial.config_file.read_text()


# --- death at every moment


class Crash(BaseException):
    """The process is gone: nothing after this line happens."""


@contextmanager
def dying_at(monkeypatch, moment: int):
    """Count every act that leaves a trace, and die just before, or just after, the one numbered `moment`."""
    from optuna.storages.journal import JournalFileBackend

    from hysweep.track import directory as directory_module
    from hysweep.track import files

    count = 0

    def around(act):
        def counted(*args, **kwargs):
            nonlocal count
            if ".lock" in str(args[0]):  # Optuna's own, within one of the acts
                return act(*args, **kwargs)
            count += 1
            if count == moment:
                raise Crash
            result = act(*args, **kwargs)
            count += 1
            if count == moment:
                raise Crash
            return result

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", around(files.os.replace))
        patch.setattr(directory_module, "append_line", around(directory_module.append_line))
        patch.setattr(directory_module.os, "rename", around(directory_module.os.rename))
        patch.setattr(JournalFileBackend, "append_logs", around(JournalFileBackend.append_logs))
        patch.setattr(FakeLauncher, "submit", around(FakeLauncher.submit))
        patch.setattr(FakeLauncher, "cancel", around(FakeLauncher.cancel))
        yield lambda: count


@pytest.mark.slow
def test_death_at_any_moment_loses_nothing_and_runs_nothing_twice(composer: Composer, monkeypatch, tmp_path) -> None:
    """A study of two trials, one of which needs two attempts, killed at each of its acts in turn."""
    overrides = ("rollout.n=2,4", "study.max_parallel=2")
    # a death every few acts; `make nightly` dies at each one
    stride = 1 if os.environ.get("HYSWEEP_NIGHTLY") else 19
    moment, died = 1 - stride, True
    while died:
        moment += stride
        died = False
        directory = begin(composer, *overrides, f"study.name=m{moment}")
        fake = FakeLauncher(lambda p, a: [0.5, 0.6], {(0, 1): Cause.PORT_CLASH})
        try:
            with dying_at(monkeypatch, moment), Controller(directory, launchers=lambda name, f=fake: f) as c:
                while c.tick():
                    pass
        except Crash:
            died = True
        finish(directory, fake)
        states = [t.state() for t in directory.trials()]
        assert [s.cause for s in states] == [Cause.COMPLETED] * 2, (moment, states)
        assert all(s.status is Status.ENDED and s.value == pytest.approx(0.6) for s in states), moment
        assert len(fake.submitted) == len(set(fake.submitted)) == 3, (moment, fake.submitted)
        told = [t.value for t in optuna_trials(directory) if t.state.name == "COMPLETE"]
        assert told == [pytest.approx(0.6)] * 2, moment
        assert not [t for t in optuna_trials(directory) if t.state.name in ("RUNNING", "WAITING")], moment
        booked = [(e.trial, e.attempt) for e in directory.ledger()]
        assert sorted(booked) == [(0, 1), (0, 2), (1, 1)], (moment, booked)
    assert moment > 60, "the acts were counted"


@pytest.mark.slow
def test_death_at_any_moment_of_a_change_of_the_cluster(composer: Composer, monkeypatch) -> None:
    """Two jobs wait in a queue, and are taken back and submitted anew; then, after the death, once more."""
    stride = 1 if os.environ.get("HYSWEEP_NIGHTLY") else 13
    moment, died = 3 - stride, True  # with the third the changes are on disk
    while died:
        moment += stride
        died = False
        directory = begin(composer, "rollout.n=2,4", "study.max_parallel=2", f"study.name=c{moment}")
        fake = FakeLauncher(lambda p, a: [0.5, 0.6], queued_for=12)
        with Controller(directory, launchers=lambda name, f=fake: f) as c:
            c.tick()
        for minutes, at in ((7, moment), (8, 1 + moment * 7 % 31), (8, -1)):
            changes = {"cluster": {"timeout_min": minutes}}
            try:
                with dying_at(monkeypatch, at), Controller(directory, changes, launchers=lambda name, f=fake: f) as c:
                    while c.tick():
                        pass
            except Crash:
                died |= at == moment
        trials = directory.trials()
        assert causes(directory) == [Cause.COMPLETED] * 2, moment
        last = [t.attempt(t.state().attempt).job()["timeout_min"] for t in trials]
        assert set(last) <= ({7, 8} if died else {7}), (moment, last)
        assert len(fake.submitted) == len(set(fake.submitted)), (moment, fake.submitted)
        submitted = sorted((t.number, a.number) for t in trials for a in t.attempts() if a.claimed())
        assert sorted((e.trial, e.attempt) for e in directory.ledger()) == submitted, moment
        assert not [t for t in optuna_trials(directory) if t.state.name in ("RUNNING", "WAITING")], moment
    assert moment > 60, "the acts were counted"


@contextmanager
def dying_after(monkeypatch, owner: type, act: str, time: int):
    """Die just after an act has been done so often."""
    done, left = getattr(owner, act), [time]

    def counted(*args, **kwargs):
        result = done(*args, **kwargs)
        left[0] -= 1
        if not left[0]:
            raise Crash
        return result

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(owner, act, counted)
        yield


@pytest.mark.parametrize("composes", [True, False])
def test_a_point_that_cannot_run_asks_for_no_job_after_a_crash_either(
    composer: Composer, monkeypatch, composes: bool
) -> None:
    directory = begin(composer, "trainer.mini_batch_size=4,7")
    if not composes:
        point = Composer.point

        def broken(self, fixed, space, values):
            if values == {"trainer.mini_batch_size": 7}:
                raise BadInput(Problem("trainer.mini_batch_size", 7, "does not compose", "give 4"))
            return point(self, fixed, space, values)

        monkeypatch.setattr(Composer, "point", broken)
    fake = FakeLauncher(rising)
    with dying_after(monkeypatch, StudyDirectory, "add_trial", 2):
        finish(directory, fake)
    finish(directory, fake)
    assert len(fake.submitted) == 1 and causes(directory) == [Cause.COMPLETED, Cause.INFEASIBLE]
    assert [t.state.name for t in optuna_trials(directory)] == ["COMPLETE", "PRUNED"]


DAMAGE = {
    "gone": lambda raw: None,
    "empty": lambda raw: b"",
    "cut": lambda raw: raw[: len(raw) // 2],
    "cut within its head": lambda raw: raw[:9],
    "garbage after it": lambda raw: raw + b"\x80\x00\xff garbage",
    "a line after it that nobody can follow": lambda raw: raw + b"[" * 100_000 + b"\n",
    "a foreign line after it": lambda raw: raw + b'{"level": "info"}\n[1]\n',
    "another one's": lambda raw: raw[raw.index(b"\n") + 1 :],
}


@pytest.mark.parametrize(
    "space",
    [("algorithm=grpo,rloo", LR, "study.n_trials=5"), (f"{LR.partition('=')[0]}=1e-4,2e-4,4e-4,8e-4,1e-3",)],
    ids=["drawn", "grid"],
)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_journal_damaged_while_it_is_used_is_made_again(composer: Composer, damage, space) -> None:
    words = (*space, "study.max_parallel=2")
    calm = begin(composer, *words, "study.name=calm")
    finish(calm, FakeLauncher(by_lr))
    directory, fake = begin(composer, *words, "study.name=rough"), FakeLauncher(by_lr)
    with Controller(directory, launchers=lambda name: fake) as c:
        looks = 0
        while c.tick():
            looks += 1
            assert looks < 300
            if looks in (2, 9, 16):
                after = damage(directory.journal.read_bytes())
                directory.journal.unlink()
                if after is not None:
                    directory.journal.write_bytes(after)
    assert any(e["event"] == "journal_damaged" for e in directory.events())
    assert causes(directory) == [Cause.COMPLETED] * 5
    assert len(fake.submitted) == len(set(fake.submitted)) == 5
    assert [t.point() for t in directory.trials()] == [t.point() for t in calm.trials()], "the search went on as it was"
    told = [(t.state.name, t.params, t.value) for t in optuna_trials(directory)]
    assert told == [(t.state.name, t.params, t.value) for t in optuna_trials(calm)]


@pytest.mark.parametrize("space", ["trainer.learning_rate=1e-4,2e-4,4e-4", LR])
def test_a_journal_that_lost_its_end_is_completed(composer: Composer, space: str) -> None:
    """Wherever a power cut took it: between any two of its lines, and at any state of the study."""
    directory = begin(composer, space, "study.n_trials=3", "study.max_parallel=2")
    fake = FakeLauncher(by_lr)
    with Controller(directory, launchers=lambda name: fake) as c:
        for _ in range(4):
            c.tick()
    lines = directory.journal.read_bytes().splitlines(keepends=True)
    for left in range(len(lines)):
        directory.journal.write_bytes(b"".join(lines[:left]))
        with Controller(directory, launchers=lambda name: fake):
            known = {t.number: (t.state.name, len(t.params)) for t in optuna_trials(directory)}
            assert [known[t.number] for t in directory.trials()] == [("RUNNING", 1)] * 2, left
    finish(directory, fake)
    assert causes(directory) == [Cause.COMPLETED] * 3 and len(fake.submitted) == 3
    told = [t.params for t in optuna_trials(directory) if t.state.name == "COMPLETE"]
    assert [{k: float(v) for k, v in params.items()} for params in told] == [t.point() for t in directory.trials()]


def test_what_comes_after_a_lost_line_of_the_journal_is_no_other_trial_s(composer: Composer) -> None:
    directory = begin(composer, LR, "study.n_trials=4")
    finish(directory, fake := FakeLauncher(by_lr))
    before = [(t.state.name, t.params, t.value) for t in optuna_trials(directory)]
    lines = directory.journal.read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if b"datetime_start" in line)
    directory.journal.write_bytes(b"".join([*lines[:first], b"{torn\n", *lines[first + 1 :]]))
    finish(directory, fake)
    assert [(t.state.name, t.params, t.value) for t in optuna_trials(directory)] == before
