"""`hysweep logs`: the right file, followed over attempts, and it ends by itself."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hysweep.track import AttemptDirectory, Cause, Claim, End, State, Status, StudyDirectory, TrialDirectory, write_json

from .warm import warm


@pytest.fixture
def study(tmp_path: Path) -> StudyDirectory:
    directory = StudyDirectory(tmp_path / "outputs" / "s")
    directory.create("study: {}\n", {})
    return directory


def trial(study: StudyDirectory, number: int = 0, id: str = "abc123def456") -> TrialDirectory:
    return study.add_trial(number, id, "", {})


def attempt(of: TrialDirectory, number: int = 1, **logs: str) -> AttemptDirectory:
    made = of.attempt(number)
    made.path.mkdir(parents=True)
    for name, text in logs.items():
        (made.path / f"{name.replace('_', '-')}.log").write_text(text)
    return made


@pytest.fixture
def follower() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`follower(words...)`: `hysweep logs outputs/s --follow words`, running."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "hysweep", "logs", "outputs/s", "--follow", *words]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, stdin=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_trainers_log_and_that_of_a_rank(study: StudyDirectory) -> None:
    attempt(trial(study), driver="one\ntwo", node="boots\n", node_1="follows\n", ray_1="joins\n")
    said = warm(["logs", "outputs/s", "0"], {})
    assert (said.returncode, said.stdout) == (0, "one\ntwo")
    assert warm(["logs", "outputs/s"], {}).stdout == "one\ntwo", "a study's only trial need not be named"
    assert warm(["logs", "outputs/s", "abc", "--rank", "0"], {}).stdout == "==> node.log <==\nboots\n"
    said = warm(["logs", "outputs/s", "0", "--rank", "1"], {})
    assert said.stdout == "==> node-1.log <==\nfollows\n==> ray-1.log <==\njoins\n"


def test_of_many_trials_the_first_are_named(study: StudyDirectory) -> None:
    for number in range(14):
        trial(study, number, f"abc{number:09}")
    for words in ([], ["99"]):
        said = warm(["logs", "outputs/s", *words], {})
        assert said.returncode == 2 and said.stderr.endswith("11 (abc000) and 2 more\n")


def test_colours_are_for_a_terminal(study: StudyDirectory) -> None:
    attempt(trial(study), driver="\x1b[36m(TaskRunner pid=7)\x1b[0m step:1\x1b[32m [repeated 2x]\x1b[0m\n")
    assert warm(["logs", "outputs/s"], {}).stdout == "(TaskRunner pid=7) step:1 [repeated 2x]\n"


def test_the_newest_attempt_or_the_one_that_is_named(study: StudyDirectory) -> None:
    of = trial(study)
    attempt(of, 1, driver="first\n")
    attempt(of, 2, driver="second\n")
    assert warm(["logs", "outputs/s", "0"], {}).stdout == "second\n"
    assert warm(["logs", "outputs/s", "0", "--attempt", "1"], {}).stdout == "first\n"


def test_what_was_made_of_an_attempt_that_never_began_is_not_the_newest(study: StudyDirectory) -> None:
    """Other nodes of a job whose first one never came have made two more; then the second was submitted anew."""
    of = trial(study)
    of.save(State(Status.SUBMITTED, attempt=2, job_id="8"))
    attempt(of, 1, driver="first\n")
    attempt(of, 2, driver="second\n")
    attempt(of, 3)
    assert warm(["logs", "outputs/s", "0"], {}).stdout == "second\n"
    attempt(of, 4).claim(Claim("n1", 1, 0.0, job="8"))
    assert "attempts/4 has no driver.log" in warm(["logs", "outputs/s", "0"], {}).stderr


def test_runs_that_never_began_are_passed_over(
    study: StudyDirectory, follower: Callable[..., subprocess.Popen[str]]
) -> None:
    of = trial(study)
    of.save(State(Status.SUBMITTED, attempt=1, job_id="x"))
    attempt(of, 1, driver="first\n")
    follows = follower("0")
    assert follows.stdout and follows.stdout.readline() == "first\n"
    attempt(of, 2)
    attempt(of, 4, driver="fourth\n").claim(Claim("n1", 1, 0.0, job="x"))
    assert follows.stdout.readline() == "fourth\n"
    of.save(State(Status.ENDED, attempt=4, job_id="x", cause=Cause.COMPLETED))
    _, said = follows.communicate(timeout=30)
    assert follows.returncode == 0 and "attempt 2" not in said and "attempt 4" in said


def test_a_rank_that_no_node_has(study: StudyDirectory) -> None:
    of = attempt(trial(study), driver="one\n", node_1="two\n")
    for nodes, says in ((1, "attempt 1 has one node, of rank 0"), (2, "attempt 1 has 2 nodes, of ranks 0 to 1")):
        write_json(of.path / "job.json", {"nodes": nodes})
        said = warm(["logs", "outputs/s", "--rank", "2"], {})
        assert (said.returncode, said.stdout) == (2, "") and f"--rank = 2: {says}; " in said.stderr
    assert warm(["logs", "outputs/s", "--rank", "1"], {}).stdout == "==> node-1.log <==\ntwo\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nowhere", "0"], 2, "holds no study"),
        (["outputs/s", "7"], 2, "there is 0 (abc123), 1 (fff000)"),
        (["outputs/s"], 2, "TRIAL = not given: the study has 2 trials; name one: 0 (abc123), 1 (fff000)"),
        (["outputs/s", "0", "--attempt", "3"], 2, "--attempt = 3: trial 0 has no such; there is 1"),
        (["outputs/s", "1"], 2, "trial 1 has none yet"),
        (["outputs/s", "0"], 1, "has no driver.log, or it is empty"),
    ],
)
def test_what_is_not_there(study: StudyDirectory, words: list[str], code: int, says: str) -> None:
    attempt(trial(study))
    trial(study, 1, "fff000fff000")
    said = warm(["logs", *words], {})
    assert (said.returncode, said.stdout) == (code, "")
    assert says in said.stderr


def test_what_a_trial_waits_for_is_said(study: StudyDirectory) -> None:
    of = trial(study)
    attempt(of)
    of.save(State(Status.SUBMITTED, attempt=1, job_id="7", reason="ReqNodeNotAvail"))
    said = warm(["logs", "outputs/s"], {})
    assert said.returncode == 1 and "or it is empty; it waits: ReqNodeNotAvail" in said.stderr
    of.save(State(Status.SUBMITTED, attempt=1, job_id="7", began=1.0))
    assert "its job has begun" in warm(["logs", "outputs/s"], {}).stderr
    of.save(State(Status.ENDED, attempt=1, job_id="7", cause=Cause.CANCELLED, reason="by the user"))
    said = warm(["logs", "outputs/s", "--follow"], {})
    assert "it ended by cancelled: by the user" in said.stderr and "waits" not in said.stderr


def test_it_follows_from_attempt_to_attempt_to_the_end(
    study: StudyDirectory, follower: Callable[..., subprocess.Popen[str]]
) -> None:
    of = trial(study)
    of.save(State(Status.SUBMITTED, attempt=1, job_id="x"))
    (study.path / "driver.json").write_text("{}")
    first = attempt(of, 1, driver="step 1\n")
    process = follower()
    assert process.stdout
    assert process.stdout.readline() == "step 1\n"
    with open(first.driver_log, "a") as log:
        log.write("step 2\nhalf a li")
        log.flush()
        assert process.stdout.readline() == "step 2\n"
        log.write("ne\n")
    assert process.stdout.readline() == "half a line\n"
    first.finish(End(Cause.PREEMPTED, reason="the nodes were taken"))
    time.sleep(1)
    assert process.poll() is None, "there may be another attempt"
    second = attempt(of, 2)
    time.sleep(0.5)
    second.driver_log.write_text("step 3\n")
    assert process.stdout.readline() == "step 3\n"
    second.driver_log.write_text("new\n")
    assert process.stdout.readline() == "new\n", "a file that was made anew is read from its beginning"
    second.finish(End(Cause.COMPLETED))
    of.save(State(Status.ENDED, attempt=2, cause=Cause.COMPLETED))
    rest, told = process.communicate(timeout=20)
    assert (rest, process.returncode) == ("", 0)
    assert told.splitlines() == [
        "trial 0 (abc123), attempt 1",
        "attempt 1: preempted: the nodes were taken",
        "trial 0 (abc123), attempt 2",
        "attempt 2: completed",
    ]


def test_without_a_controller_it_ends_with_the_attempt_unless_that_was_requeued(
    study: StudyDirectory, follower: Callable[..., subprocess.Popen[str]]
) -> None:
    of = trial(study)
    made = attempt(of, 1, driver="one\n", node="2026-01-01 00:00:00 requeued\n")
    made.finish(End(Cause.TIMEOUT))
    process = follower("0")
    time.sleep(2)
    assert process.poll() is None
    made.node_log.write_text("2026-01-01 00:00:00 all is gone after 0.1 s\n")
    said, told = process.communicate(timeout=20)
    assert (said, process.returncode) == ("one\n", 0)
    assert "hysweep resume" in told


def test_completion_knows_the_trials(study: StudyDirectory) -> None:
    trial(study, 3)
    words = {"_HYSWEEP_COMPLETE": "bash_complete", "COMP_WORDS": "hysweep logs outputs/s ", "COMP_CWORD": "3"}
    assert "plain,3" in warm([], words).stdout
