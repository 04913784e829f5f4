"""tick, pause, resume, rebuild as a person meets them. No trainer runs here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hysweep.cli import patience, steer
from hysweep.cli import study as verbs
from hysweep.compose import Composer
from hysweep.study import define
from hysweep.study.lease import StudyLock
from hysweep.track import Cause, State, Status, StudyDirectory

from .test_cli import hysweep


@pytest.fixture
def study(composer: Composer) -> StudyDirectory:
    """One whose time is over before it began, so that no step starts anything."""
    definition = define(composer.compose(["rollout.n=2,4", "study.max_hours=0", "study.name=s"]))
    definition.directory.create(definition.to_yaml(), composer.snapshot())
    return definition.directory


@pytest.mark.parametrize(
    ("words", "key"),
    [
        *((words, "DIR") for words in (["status", ""], ["cancel", " "], ["report", ""], ["watch", ""])),
        *((["logs", "outputs/s", ""], "TRIAL"), (["cancel", "outputs/s", ""], "TRIAL")),
        *(
            (["resume", "outputs/s", ""], "OVERRIDES"),
            (["run", ""], "OVERRIDES"),
            (["check", "seed=1", ""], "OVERRIDES"),
        ),
        *((["export", "outputs/s", "-o", ""], "--output"), (["run", "--config-dir", ""], "--config-dir")),
    ],
)
def test_an_empty_word_stands_for_nothing(study: StudyDirectory, words: list[str], key: str) -> None:
    """As of a variable that is not set: neither for the current directory, nor for the only trial."""
    study.add_trial(0, "abc123abc123", "", {})
    answer = hysweep(*words)
    assert answer.returncode == 2 and not answer.stdout
    assert re.fullmatch(rf"hysweep: {key} = '\s*': [^\n]*; [^\n]*\n", answer.stderr)
    assert not study.trials()[0].is_cancel_requested and not study.is_cancel_requested


def test_a_tick_does_one_step_and_says_how_it_stands(study: StudyDirectory) -> None:
    answer = hysweep("tick", "outputs/s")
    assert answer.returncode == 1, "it is over, and nothing completed"
    assert answer.stdout == "over: 0 hours have passed since it began (study.max_hours)\n"
    facts = json.loads(hysweep("tick", "outputs/s", "--json").stdout)
    assert facts["is_over"] and facts["submitted"] == facts["in_flight"] == 0 and facts["best"] is None
    assert not study.driver_file.exists()


@pytest.mark.parametrize("verb", ["tick", "pause", "rebuild", "resume"])
def test_what_is_no_study_is_said(verb: str) -> None:
    answer = hysweep(verb, "outputs/nope")
    assert answer.returncode == 2 and "holds no study" in answer.stderr
    assert not Path("outputs").exists()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`tools(sbatch="...")`: what a command of the scheduler does, as bash."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")

    def make(**scripts: str) -> None:
        for name, script in scripts.items():
            (place / name).write_text(f"#!/bin/bash\n{script}\n")
            (place / name).chmod(0o755)

    return make


@pytest.mark.parametrize("verb", ["tick", "rebuild"])
def test_the_second_one_is_told_who_drives_it(study: StudyDirectory, verb: str) -> None:
    (lock := StudyLock(study)).acquire()
    answer = hysweep(verb, "outputs/s")
    lock.release()
    assert answer.returncode == 2
    assert "driven by process" in answer.stderr and "a study has one controller" in answer.stderr


def test_a_pause_is_seen_and_a_resume_ends_it(study: StudyDirectory) -> None:
    answer = hysweep("pause", "outputs/s")
    assert answer.returncode == 0 and answer.stdout.startswith("paused; 0 running go on, 0 are held in the queue")
    assert "paused" in hysweep("status", "outputs/s").stdout
    assert json.loads(hysweep("status", "outputs/s", "--json").stdout)["is_paused"]
    (lock := StudyLock(study)).acquire()
    answer = hysweep("resume", "outputs/s")
    lock.release()
    assert answer.returncode == 0 and "no longer paused; driven by process" in answer.stdout
    assert not study.is_paused
    assert [e["event"] for e in study.events()] == ["paused", "resumed"]


def test_a_resume_of_what_somebody_drives_changes_it_and_is_no_failure(study: StudyDirectory) -> None:
    (lock := StudyLock(study)).acquire()
    answer = hysweep("resume", "outputs/s")
    assert answer.returncode == 0 and answer.stdout.startswith("driven by process"), "it was not paused at all"
    hysweep("pause", "outputs/s")
    answer = hysweep("resume", "outputs/s", "study.n_trials=1", "cluster.timeout_min=7")
    assert answer.returncode == 0 and "no longer paused; changed; driven by process" in answer.stdout
    lock.release()
    assert study.changes() == {"n_trials": 1, "cluster": {"timeout_min": 7}} and not study.is_paused


def test_a_resume_says_what_it_is_given_in_vain() -> None:
    words = ("run", "-m", "rollout.n=2,4", "trainer.total_steps=1", "study.name=two", "study.max_hours=0")
    assert "in outputs/two" in hysweep(*words).stdout
    said = hysweep("resume", "outputs/two", "study.n_trials=3").stderr
    assert "warning: study.n_trials = 3: the space has no more points, so it is 2 trials" in said
    assert "warning" not in hysweep("resume", "outputs/two", "study.n_trials=2").stderr


def test_a_pause_counts_what_is_held_by_now(study: StudyDirectory) -> None:
    gone = study.add_trial(0, "abc123abc123", "", {})
    gone.save(State(Status.ENDED, attempt=1, job_id="7", cause=Cause.CANCELLED, is_held=True))
    assert "0 are held in the queue" in hysweep("pause", "outputs/s").stdout


def test_a_job_that_has_begun_is_not_waited_for_by_a_pause(study: StudyDirectory) -> None:
    begun = study.add_trial(0, "abc123abc123", "", {})
    begun.save(State(Status.SUBMITTED, attempt=1, job_id="7", began=1.0))
    (lock := StudyLock(study)).acquire()
    answer = hysweep("pause", "outputs/s")
    lock.release()
    assert answer.returncode == 0 and "1 running go on, 0 are held" in answer.stdout


@pytest.mark.parametrize(("made", "says"), [(2, "over: all 2 of its trials were made"), (1, "go on with the 1 that")])
def test_a_cancel_says_how_it_goes_on_if_it_can(study: StudyDirectory, made: int, says: str) -> None:
    for number in range(made):
        study.add_trial(number, f"abc12{number}abc123", "", {})
    answer = hysweep("cancel", "outputs/s")
    assert answer.returncode == 0 and says in answer.stdout
    assert ("hysweep resume" in answer.stdout) == (made < 2)


# --- what the scheduler refuses, and a scheduler that is not there


def test_a_refusal_is_one_clear_line_and_the_study_goes_on_elsewhere(tools) -> None:
    tools(sbatch="echo 'sbatch: error: invalid partition specified: mian' >&2; exit 1", squeue="true", sinfo="true")
    command = ["run", "cluster=testcluster", "study.name=s", "cluster.nodes=1"]
    for answer in (hysweep(*command, "cluster.partition=mian"), hysweep("resume", "outputs/s")):
        assert answer.returncode == 2 and "Traceback" not in answer.stderr
        assert "cluster.partition = mian: the scheduler refused trial 0: invalid partition" in answer.stderr
    assert "hysweep resume" in answer.stderr and "cluster.partition=VALUE" in answer.stderr
    assert "refused: the scheduler refused it: invalid partition" in hysweep("status", "outputs/s").stdout
    assert "invalid partition" in hysweep("logs", "outputs/s").stderr
    tick = hysweep("tick", "outputs/s", "--json")
    assert tick.returncode == 1 and "invalid partition" in json.loads(tick.stdout)["refusal"]
    for words in ([*command, "cluster.partition=main"], ["resume", "outputs/s", "cluster.partition=gpu"]):
        assert f"cluster.partition = {words[-1].partition('=')[2]}: the" in hysweep(*words).stderr
    assert StudyDirectory(Path("outputs/s")).changes()["cluster"] == {"partition": "gpu"}


def test_no_cluster_at_all_is_said_before_anything_is_written(tools) -> None:
    said = "resolve_ctls_from_dns_srv: res_nsearch error: Unknown host"
    tools(sbatch="exit 1", sinfo=f"echo 'sinfo: error: {said}' >&2; exit 1")
    answer = hysweep("run", "cluster=testcluster", SLURM_CONF="/no/slurm.conf")
    assert answer.returncode == 2 and not Path("outputs").exists()
    assert "no SLURM cluster answers here (SLURM_CONF=/no/slurm.conf)" in answer.stderr and said in answer.stderr
    assert 'hysweep cluster up`, then `eval "$(hysweep cluster env)"`' in answer.stderr
    answer = hysweep("doctor", "--cluster", "testcluster")
    assert answer.returncode == 2 and "hysweep cluster up" in answer.stderr
    assert not Path("outputs").exists()
    found = {f["name"]: f for f in json.loads(hysweep("doctor", "--json").stdout)}
    assert not found["SLURM"]["is_good"] and "no cluster answers" in found["SLURM"]["found"]


PENDING = "'|PENDING|(null)|N/A|N/A|N/A|Priority'"
SILENT = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.fixture
def queued(composer: Composer, tools) -> StudyDirectory:
    """One whose only job, 7, waits in a queue. Its number is as many as were submitted, and 7."""
    tools(sbatch="echo x >> $0.s; echo $((6 + $(wc -l < $0.s)))", sinfo="true", scontrol="true", sacct="true",
          scancel="echo $@ >> $0.s", squeue=f"echo 7{PENDING}")  # fmt: skip
    definition = define(composer.compose(["cluster=testcluster", "cluster.nodes=1", "study.name=s"]))
    definition.directory.create(definition.to_yaml(), composer.snapshot())
    assert hysweep("tick", "outputs/s").stdout == "1 trials, 1 in flight, 1 submitted now\n"
    return definition.directory


def test_a_scheduler_that_does_not_answer_is_said_once_by_who_waits_for_it(queued: StudyDirectory, tools) -> None:
    """And until when; what a verb prints for programs stays as it is."""
    tools(squeue=SILENT)
    answer = hysweep("tick", "outputs/s", "--json")
    assert json.loads(answer.stdout)["in_flight"] == 1 and not answer.stderr, "it has waited for nothing"
    ended = "echo '7|CANCELLED|(null)|N/A|N/A|N/A|None'"
    tools(squeue=f"echo x >> $0.s; [ $(wc -l < $0.s) -gt 2 ] && exec {ended}; {SILENT}")
    answer = hysweep("cancel", "outputs/s")
    assert answer.returncode == 0 and answer.stdout.startswith("stopped 1 of 1 trials")
    [line] = answer.stderr.splitlines()
    assert re.fullmatch(
        r"the scheduler does not answer \(slurm_load_jobs error: Unable to contact .*\);"
        r" asking again until \d\d:\d\d:\d\d; Ctrl-C leaves", line
    )  # fmt: skip


def test_a_resume_elsewhere_takes_along_what_waits_and_says_so(queued: StudyDirectory, tools) -> None:
    """Whoever drives the study then does it."""
    (lock := StudyLock(queued)).acquire()
    answer = hysweep("resume", "outputs/s", "cluster.max_submitted=5")
    assert "trial 0" not in answer.stdout
    answer = hysweep("resume", "outputs/s", "cluster.timeout_min=120", "study.budget_gpu_hours=1.5")
    assert answer.stdout.startswith(
        "trial 0, waiting in a queue with other settings of the cluster: stays there, the b"
    )
    queued.save_changes({})
    answer = hysweep("resume", "outputs/s", "cluster.partition=preempt")
    lock.release()
    assert answer.stdout.startswith(
        "trial 0, waiting in a queue with other settings of the cluster: taken back, and sub"
    )
    tools(squeue=f"[ -e ${{0%/*}}/scancel.s ] && echo 8{PENDING} || echo 7{PENDING}")
    for _ in range(3):
        hysweep("tick", "outputs/s")
    [trial] = queued.trials()
    assert trial.state().job_id == "8"
    assert "--partition=preempt" in (trial.attempt(2).path / "job.sbatch").read_text()
    tools(squeue="echo '8|RUNNING|n1|2026-01-01T00:00:00|N/A|N/A|None'")
    hysweep("tick", "outputs/s")
    (lock := StudyLock(queued)).acquire()
    answer = hysweep("resume", "outputs/s", "cluster.partition=main")
    lock.release()
    assert answer.stdout.startswith("trial 0, running with other settings of the cluster: goes on as it is\n")


def test_a_verb_that_waits_for_another_controller_says_so(
    queued: StudyDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patience, "PATIENT_S", 0.2)
    monkeypatch.setattr(steer, "HONOURED_WITHIN_S", 1.0)
    monkeypatch.setattr(verbs, "STOPPED_WITHIN_S", 1.0)
    (lock := StudyLock(queued)).acquire()
    try:
        assert steer.pause(queued.path) == 1
        paused = capsys.readouterr().err
        assert verbs.cancel(queued.path, []) == 1
        cancelled = capsys.readouterr().err
    finally:
        lock.release()
    assert paused.startswith("waiting for 1 jobs to be held by who drives the study, until ")
    assert cancelled.startswith("waiting for 1 trial to be stopped by process ")
    assert paused.count("waiting for") == cancelled.count("waiting for") == 1


def test_what_a_resume_changes_stays_changed(study: StudyDirectory) -> None:
    hysweep("resume", "outputs/s", "study.controller.partition=cpu", "study.n_trials=1")
    hysweep("resume", "outputs/s", "study.controller.time_min=60", "study.budget_gpu_hours=7")
    changes = {"controller": {"partition": "cpu", "time_min": 60}, "n_trials": 1, "budget_gpu_hours": 7.0}
    assert study.changes() == changes
    assert "7" in hysweep("status", "outputs/s").stdout.splitlines()[0]
    answer = hysweep("resume", "outputs/s", "study.seed=3")
    assert answer.returncode == 2 and "cannot change" in answer.stderr


@pytest.mark.parametrize("is_driven", [False, True])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("study.n_trials=null", "trainer.learning_rate has no end of values"),
        ("study.n_trials=3", "is no multiple of the 2 seeds"),
        ("study.notify.events=[finish]", "study.notify.events = finish: is nothing that is told"),
        (r"study.notify.command=echo \${X}", "braces after a $ are Hydra's"),
        ("cluster.timeout_min=30,60", "cluster.timeout_min = 30,60: is a range"),
        ("cluster=local,gpu_1", "cluster = local,gpu_1: is a range"),
    ],
)
def test_a_change_with_which_a_study_cannot_go_on_is_refused_and_not_kept(
    composer: Composer, change: str, says: str, is_driven: bool
) -> None:
    words = ["trainer.learning_rate=interval(1e-5,1e-3)", "+space.seeds=2", "study.n_trials=4", "study.max_hours=0"]
    definition = define(composer.compose([*words, "study.name=s"]))
    definition.directory.create(definition.to_yaml(), composer.snapshot())
    lock = StudyLock(definition.directory)
    if is_driven:
        lock.acquire()
    answer = hysweep("resume", "outputs/s", change)
    lock.release()
    assert answer.returncode == 2 and says in answer.stderr and "Traceback" not in answer.stderr
    assert not definition.directory.changes()


@pytest.mark.parametrize("verb", ["run", "plan", "check"])
def test_a_password_is_repeated_nowhere(verb: str) -> None:
    answer = hysweep(verb, "-m", "rollout.n=2,4", "study.storage='postgresql://me:geheim@h/d'")
    assert answer.returncode == 2 and "PGPASSWORD" in answer.stderr
    assert "geheim" not in answer.stdout + answer.stderr and "Traceback" not in answer.stderr
    assert not Path("outputs").exists()


def test_a_budget_below_one_trial_is_refused_before_anything_is_written() -> None:
    answer = hysweep("run", "study.budget_gpu_hours=0.1")
    assert answer.returncode == 2 and "study.budget_gpu_hours = 0.1: one trial may take" in answer.stderr
    assert not Path("outputs").exists()


@pytest.mark.parametrize("verb", ["run", "plan", "check", "simulate"])
def test_a_budget_below_one_trial_is_found_by_every_verb_that_looks_ahead(verb: str) -> None:
    words = ["-m", "cluster.timeout_min=60,120", "study.budget_gpu_hours=0.5", "trainer.total_steps=4"]
    steps = ["--step-s", "1"] if verb == "simulate" else []
    answer = hysweep(verb, *words, *steps)
    said = answer.stdout + answer.stderr
    assert "study.budget_gpu_hours = 0.5: one trial may take 1 by its time limit" in said
    assert "give 1 or more" in said and "no problem found" not in said and "all can run" not in said
    assert answer.returncode == (1 if verb in ("plan", "check") else 2)
    words[2] = "study.budget_gpu_hours=1"
    if verb != "run":
        assert "one trial may take" not in hysweep(verb, *words, *steps).stdout
    assert not Path("outputs").exists()


def test_a_budget_below_one_trial_is_told_to_programs() -> None:
    words = ["study.budget_gpu_hours=0.5", "cluster.timeout_min=60", "--json"]
    (of_study,) = [p for p in json.loads(hysweep("check", *words).stdout) if not p["is_feasible"]]
    assert of_study["problems"][0]["key"] == "study.budget_gpu_hours"
    assert of_study in json.loads(hysweep("plan", *words).stdout)["problems"]


def test_braces_in_a_message_are_refused() -> None:
    answer = hysweep("run", r"study.notify.command='echo \${HYSWEEP_TEXT}'")
    assert answer.returncode == 2 and "study.notify.command" in answer.stderr
    assert not Path("outputs").exists()


def test_a_controller_s_job_asks_for_little_and_says_when_its_time_is_near(study: StudyDirectory) -> None:
    from dataclasses import replace

    from hysweep.schema import Cluster, ControllerJob, Study
    from hysweep.study.detach import script

    site = Cluster(name="c", launcher="slurm", partition="gpu", account="me", modules=["python/3.11"])
    asked = Study(name="my study", controller=ControllerJob(partition="cpu", time_min=90))
    text = script(study, asked, site)
    for line in ("--partition=cpu", "--account=me", "--time=90", "--requeue", "--signal=B:USR1@120", "--mem=2048M"):
        assert f"#SBATCH {line}\n" in text
    assert "#SBATCH --job-name='my study-controller'" in text and "--qos" not in text
    assert text.rstrip().endswith(f"-m hysweep resume {study.path} --as-job")
    assert "module load python/3.11" in text
    assert "--partition=gpu" in script(study, replace(asked, controller=ControllerJob()), site)


def test_a_damaged_state_is_said_by_whatever_shows_the_study(study: StudyDirectory) -> None:
    for number in (0, 1):
        trial = study.add_trial(number, f"abc{number}", "{}", {"rollout.n": 2})
        trial.save(State(Status.ENDED, attempt=1, cause=Cause.COMPLETED, value=0.5 - number / 10))
    (study.trials()[0].path / "state.json").write_text("")
    line = f"state.json of trial 0 cannot be read: hysweep rebuild {study.path}"
    assert line in hysweep("status", "outputs/s").stdout
    assert json.loads(hysweep("status", "outputs/s", "--json").stdout)["faults"] == [line]
    for verb in ("report", "export"):
        assert line in hysweep(verb, "outputs/s").stderr


def test_a_value_that_is_no_number_is_null_for_programs(study: StudyDirectory) -> None:
    trial = study.add_trial(0, "abc123abc123", "{}", {"rollout.n": 2})
    trial.save(State(Status.SUBMITTED, attempt=1, job_id="7", began=1.0, nodes="n[1-2]"))
    attempt = trial.attempt(1)
    attempt.path.mkdir(parents=True)
    attempt.metrics_file.write_text('{"step": 1, "data": {"critic/score/mean": NaN}}\n')

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    told = json.loads(hysweep("status", "outputs/s", "--json").stdout, parse_constant=refuse)["trials"][0]
    assert (told["state"], told["latest"], told["step"], told["nodes"]) == ("running", None, 1, "n[1-2]")


READERS = ["status", "report", "export", "watch"]


@pytest.mark.parametrize("verb", [*READERS, "resume", "tick", "pause", "cancel", "rebuild"])
@pytest.mark.parametrize(("keep", "what"), [("study:", "empty"), ("cwd:", "cut off"), (None, "damaged")])
def test_a_study_whose_definition_is_lost_is_refused_and_nothing_changes(
    study: StudyDirectory, verb: str, keep: str | None, what: str
) -> None:
    """One with settings that no study has is shown all the same."""
    text = study.config_file.read_text()
    lost = text.replace("n_trials: null", "n_trials: many") if keep is None else text.partition(keep)[0]
    assert lost != text
    study.config_file.write_text(lost)
    study.report_file.write_text("as it was")
    study.request_pause()
    before = sorted(study.path.rglob("*"))
    answer = hysweep(verb, "outputs/s")
    if keep is None and verb in READERS:
        assert answer.returncode == 0
        return
    assert answer.returncode == 2 and not answer.stdout
    assert f"study.yaml = {what}: cannot be read as a study" in answer.stderr and len(answer.stderr.splitlines()) == 1
    assert sorted(study.path.rglob("*")) == before and study.report_file.read_text() == "as it was"


def test_changes_that_are_damaged_leave_a_pause_as_it_is(study: StudyDirectory) -> None:
    study.save_changes({"n_trials": "many"})
    study.request_pause()
    answer = hysweep("resume", "outputs/s")
    assert answer.returncode == 2 and "changes.json says so" in answer.stderr and study.is_paused


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("study.n_trails=5", "study.n_trails = 5: is unknown; did you mean study.n_trials"),
        ("n_trials=5", "n_trials = 5: is unknown; did you mean study.n_trials"),
        ("study.metric=x", "study.metric = x: cannot change when a study goes on; one of study.n_trials, "),
        ("rollout.n=4", "rollout.n = 4: cannot change when a study goes on; one of study.n_trials, "),
    ],
)
def test_what_a_resume_cannot_change_is_said(study: StudyDirectory, asked: str, says: str) -> None:
    study.request_pause()
    answer = hysweep("resume", "outputs/s", asked)
    assert answer.returncode == 2 and says in answer.stderr and study.is_paused


def test_what_a_resume_does_not_name_of_the_cluster_stays(queued: StudyDirectory) -> None:
    """Also within a field that holds several by name, and of an earlier resume; what fits goes by all of it."""
    (lock := StudyLock(queued)).acquire()
    for word in ("cluster.env.A=1", "cluster.env.B=2", "cluster.env.A=3", "cluster.launcher=local"):
        assert hysweep("resume", "outputs/s", word).returncode == 0
    assert queued.changes()["cluster"] == {"env": {"A": "3", "B": "2"}, "launcher": "local"}
    answer = hysweep("resume", "outputs/s", "cluster.signal_delay_s=60")
    lock.release()
    assert answer.returncode == 2 and "it needs cluster.launcher = slurm" in answer.stderr
