"""What is sent to W&B: real runs of its client, written offline, sent by its own sync to a stand-in of the server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.warm import warm_in
from wandb_server import ENTITY, KEY, WandbServer

from conftest import START, study_yaml
from hysweep.compose import Composer
from hysweep.compose.composer import trial_yaml
from hysweep.report import read_study
from hysweep.report.wandb.log import Unreadable, merged, read, step_of, steps_of, write
from hysweep.study.tracking import LONGEST, run_name, study_run, trial_run
from hysweep.track import Booking, Cause, Claim, End, State, Status, StudyDirectory

pytestmark = pytest.mark.slow
wandb = pytest.importorskip("wandb")

NOBODY = "http://127.0.0.1:9"
SECRETS = {"WANDB_API_KEY": KEY, "HF_TOKEN": "hf_planted_secret", "AWS_SECRET_ACCESS_KEY": "aws/planted/secret"}
# What verl does with W&B: init with a name and a configuration, log with a step; an attempt that is killed never ends.
CLIENT = """
import os, sys, time, wandb
from pathlib import Path
from hysweep.report.wandb.log import Unreadable, read, steps_of

def written(directory):
    try:
        return steps_of(read(directory).records)
    except Unreadable:
        return []

first, last, is_killed = map(int, sys.argv[1:])
wandb.init(project="sums", name="as verl names it", config={"trainer": {"lr": 0.1}})
for step in range(first, last + 1):
    wandb.log({"critic/score/mean": step / 10 + first / 1000, "training/global_step": step}, step=step)
if is_killed:  # once all but the last step, which its client holds back, is on disk
    while last - 1 not in written(Path(wandb.run.dir).parent):
        time.sleep(0.2)
    os._exit(9)
wandb.finish()
"""


def environment(home: Path, url: str = "http://127.0.0.1:9") -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    return kept | SECRETS | {"HOME": str(home), "WANDB_BASE_URL": url, "XDG_CONFIG_HOME": str(home / ".config"),
                             "WANDB_ERROR_REPORTING": "false"}  # fmt: skip


def add(directory: StudyDirectory, number: int, attempts: int, cause: Cause | None) -> list[dict[str, str]]:
    """A trial with so many attempts; the environment that each of them logs in."""
    config = Composer().compose(["tracking=wandb_offline", "tracking.project=sums", "tracking.tags=[mine]"]).trial
    point = {"algorithm": ("grpo", "rloo")[number % 2], "trainer.learning_rate": 1e-3 / (number + 1)}
    trial = directory.add_trial(number, f"{number}abcdef12345", trial_yaml(config), point)
    found = []
    for k in range(1, attempts + 1):
        attempt = trial.attempt(k)
        run = trial_run("demo", START, trial.path.name, config, point)
        variables = run.environment(config.tracking.entity, config.tracking.mode, attempt.path)
        attempt.prepare({"overrides": [], "env": variables, "nodes": 1, "gpus_per_node": 1, "total_steps": 8})
        attempt.claim(Claim("node1", 1, START + 60 * k))
        is_last = k == attempts
        ended_by = cause if is_last else Cause.PREEMPTED
        if ended_by is not None:
            attempt.finish(End(ended_by, started=START + 60 * k, ended=START + 60 * k + 50))
            directory.book(Booking(number, k, ended_by, 1, 0.1))
        found.append(variables)
    status = Status.ENDED if cause else Status.SUBMITTED
    trial.save(State(status, attempts, job_id="1", cause=cause, value=0.7 - number / 10 if cause else None))
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    """Trial 0: preempted in step 4, gone on from step 2 to 7. Trial 1: nothing to read in its first attempt. Trial 2:
    nothing to read at all. Trial 3: still runs. Trial 4: refused, never logged."""
    directory = StudyDirectory(tmp_path_factory.mktemp("wandb") / "demo")
    directory.create(study_yaml("demo", study={"metric": "critic/score/mean"}), {})
    first, second = add(directory, 0, 2, Cause.COMPLETED)
    torn, whole = add(directory, 1, 2, Cause.COMPLETED)
    (lost,) = add(directory, 2, 1, Cause.KILLED)
    (running,) = add(directory, 3, 1, None)
    add(directory, 4, 0, Cause.INFEASIBLE)
    starts = [(first, 0, 4, True), (second, 2, 7, False), (whole, 0, 2, False), (running, 0, 1, True)]
    home = tmp_path_factory.mktemp("home")
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, *map(str, map(int, steps))],
            stderr=subprocess.PIPE,
            env=environment(home) | variables,
        )
        for variables, *steps in starts
    ]
    for client, (*_, is_killed) in zip(clients, starts, strict=True):
        said = client.communicate(timeout=120)[1]
        assert client.returncode == (9 if is_killed else 0), said
    for variables in (torn, lost):
        empty = Path(variables["WANDB_DIR"]) / "wandb" / "offline-run-20260101_000000-x"
        empty.mkdir(parents=True)
        (empty / "run-x.wandb").write_bytes(b":W&B\xe1\xbe\x00")
    return directory


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as serving:
        yield serving
    assert serving.unknown == []


def hysweep(server: WandbServer | str, home: Path, *words: str, code: int = 0, key: str = KEY) -> tuple[str, str]:
    url = server if isinstance(server, str) else server.url
    done = warm_in(environment(home, url) | {"WANDB_API_KEY": key}, ["wandb", *words])
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def directories(study: StudyDirectory, trial: int) -> list[Path]:
    return sorted(study.trials()[trial].path.glob("attempts/*/wandb/offline-run-*"))


def test_attempts_are_merged_so_that_each_step_is_there_once(written: StudyDirectory, tmp_path: Path) -> None:
    one, two = (read(d) for d in directories(written, 0))
    assert (steps_of(one.records), steps_of(two.records)) == ([0, 1, 2, 3], [2, 3, 4, 5, 6, 7])
    records = merged([one, two], 0)
    assert steps_of(records) == [0, 1, 2, 3, 4, 5, 6, 7]
    values = {step_of(r): {i.nested_key[0] if i.nested_key else i.key: json.loads(i.value_json) for i in r.history.item}
              for r in records if step_of(r) is not None}  # fmt: skip
    assert values[1]["critic/score/mean"] == 0.1 and values[2]["critic/score/mean"] == pytest.approx(0.202)
    assert values[7]["_runtime"] != values[1]["_runtime"]
    assert [r.num for r in records] == list(range(1, len(records) + 1))
    assert steps_of(merged([one, two], 0, after=5)) == [6, 7]
    (tmp_path / "again").mkdir()
    write(tmp_path / "again" / "run-x.wandb", records)
    assert list(read(tmp_path / "again").records) == records


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.999])
def test_a_torn_file_is_read_up_to_where_it_is_torn(written: StudyDirectory, tmp_path: Path, keep: float) -> None:
    content = next(directories(written, 0)[1].glob("*.wandb")).read_bytes()
    (tmp_path / "run-x.wandb").write_bytes(content[: int(len(content) * keep)])
    try:
        steps = steps_of(read(tmp_path).records)
    except Unreadable:
        steps = []
    assert steps == [2, 3, 4, 5, 6, 7][: len(steps)]


@given(st.lists(st.binary(max_size=100_000), max_size=6))
def test_messages_of_any_length_come_through(messages: list[bytes]) -> None:
    from hysweep.report.wandb import log

    content = log._HEAD
    for message in messages:
        for part in log._parts(message, len(content)):
            content += part
    assert list(log._messages(content)) == messages


def test_every_trial_is_sent_once_and_what_arrived_is_what_was_written(
    written: StudyDirectory, server: WandbServer, tmp_path: Path
) -> None:
    out, err = hysweep(NOBODY, tmp_path, "sync", str(written.path), "--dry-run", code=1)
    assert "trial 0: 8 steps would be sent" in out
    out, err = hysweep(server, tmp_path, "sync", str(written.path), code=1)  # of trial 2 nothing can be read
    trials = {t["trial"]: t for t in _as_json(written, server, tmp_path)}
    assert "trial 2: attempts/1/wandb/offline-run-20260101_000000-x: no run in its 7 bytes" in err
    assert "left out attempts/1/wandb/offline-run-20260101_000000-x" in err  # of trial 1
    assert {n: t["what"] for n, t in trials.items()} == {
        0: "sent_before",
        1: "sent_before",
        2: "failed",
        3: "runs",
        4: "nothing",
    }
    runs = {run.fields["displayName"]: run for run in server.runs.values()}
    assert sorted(runs) == ["demo", "demo-0000-0abcdef12345", "demo-0001-1abcdef12345"]
    first = runs["demo-0000-0abcdef12345"]
    assert first.steps == [0, 1, 2, 3, 4, 5, 6, 7] and first.summary["training/global_step"] == 7
    assert [first.lines[i]["critic/score/mean"] for i in (1, 2)] == [0.1, pytest.approx(0.202)]
    assert first.exit_code == 0
    assert first.fields["groupName"] == "demo" and first.fields["jobType"] == "trial"
    assert {"mine", "grpo"} <= set(first.fields["tags"]) and "algorithm = grpo" in first.fields["notes"]
    assert json.loads(first.fields["config"])["trainer"]["value"] == {"lr": 0.1}
    assert runs["demo-0001-1abcdef12345"].steps == [0, 1, 2]
    # the study is a run of its own: tables, ledger, and its report as an artifact
    study = runs["demo"]
    assert study.fields["jobType"] == "study" and study.summary["best/trial"] == 0
    assert {"leaderboard", "ledger"} <= set(study.summary)
    table = next(body for name, body in study.files.items() if name.startswith("media/table/leaderboard"))
    assert json.loads(table)["columns"][0] == "trial" and len(json.loads(table)["data"]) == 5
    report = next(a for a in server.artifacts if a.get("artifactTypeName") == "report")
    assert report["files"]["report.html"].startswith(b"<!doctype html>")
    # what is known to have been sent may be lost: W&B is asked, and nothing is there twice
    (written.trials()[0].path / "wandb.json").unlink()
    hysweep(server, tmp_path, "sync", str(written.path), code=1)
    assert first.steps == [0, 1, 2, 3, 4, 5, 6, 7]
    _no_secrets(written.path, out, err, *server.received)


def _as_json(written: StudyDirectory, server: WandbServer, home: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(hysweep(server, home, "sync", str(written.path), "--json", code=1)[0])[
        "trials"
    ]
    return found


def _no_secrets(directory: Path, *texts: str) -> None:
    for file in directory.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [name for name, secret in SECRETS.items() if secret.encode() in content], file
    for text in texts:
        assert not [name for name, secret in SECRETS.items() if secret in text], text[:500]


def test_what_does_not_arrive_is_no_success(written: StudyDirectory, server: WandbServer, tmp_path: Path) -> None:
    server.loses = {5}
    for trial in written.trials():
        (trial.path / "wandb.json").unlink(missing_ok=True)
    _, err = hysweep(server, tmp_path, "sync", str(written.path), code=1)
    assert "trial 0: 1 of 8 steps are missing at W&B, the first is 5" in err
    assert not (written.trials()[0].path / "wandb.json").exists() and (written.trials()[1].path / "wandb.json").exists()


def test_without_a_key_nothing_is_tried(written: StudyDirectory, server: WandbServer, tmp_path: Path) -> None:
    _, err = hysweep(server, tmp_path, "sync", str(written.path), code=2, key="")
    assert err.startswith("hysweep: wandb = no answer") and "wandb login" in err and "Traceback" not in err


def test_a_server_that_does_not_answer_is_told_as_that(written: StudyDirectory, tmp_path: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        for why in ("Connection refused", "no answer within 10 s"):
            for verb in ("sync", "report"):
                _, err = hysweep(url, tmp_path, verb, str(written.path), code=2)
                assert err.startswith(f"hysweep: wandb = no answer: {url}: ") and why in err, err
                assert "nothing is lost" in err and "Traceback" not in err and "wandb login" not in err
            deaf.listen(16)


def test_the_report_is_saved_and_saved_again_over_itself(
    written: StudyDirectory, server: WandbServer, tmp_path: Path
) -> None:
    server.projects.add("sums")
    out, err = hysweep(server, tmp_path, "report", str(written.path))
    assert out.startswith(server.url) and f"/{ENTITY}/sums/reports/" in out
    again, _ = hysweep(server, tmp_path, "report", str(written.path))
    assert again == out and len(server.views) == 1
    (view,) = server.views.values()
    text = json.dumps(json.loads(view["spec"]))
    assert view["displayName"] == "demo"
    for part in (
        "Parallel Coordinates Plot",
        "Parameter Importance",
        "training/global_step",
        "leaderboard",
        "Failures",
    ):
        assert part.lower() in text.lower(), part
    assert '"value": "demo"' in text and '"value": "trial"' in text  # the sets of runs are this study's
    _no_secrets(written.path, out, err, *server.received)


def test_without_a_server_the_report_is_a_file(written: StudyDirectory, tmp_path: Path) -> None:
    out, _ = hysweep(NOBODY, tmp_path, "report", str(written.path), "--offline")
    spec = json.loads((written.path / "wandb-report.json").read_text())
    assert out.strip().endswith("wandb-report.json") and len(spec["blocks"]) > 6


def test_a_study_that_is_not_tracked_there_says_so(tmp_path: Path) -> None:
    directory = StudyDirectory(tmp_path / "plain")
    directory.create(study_yaml("plain"), {})
    directory.add_trial(0, "abcdef123456", trial_yaml(Composer().compose([]).trial), {})
    _, err = hysweep(NOBODY, tmp_path, "sync", str(directory.path), code=2)
    assert "tracking=wandb" in err


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_names_are_short_enough_and_unlike(one: str, other: str) -> None:
    names = [run_name(study, f"{n:04d}-3fa9c1d2e4b5") for study in {one, other} for n in range(3)]
    assert len(set(names)) == len(names) and max(map(len, names)) <= LONGEST
    groups = {study_run(study, START, []).group for study in {one, other}}
    assert len(groups) == len({one, other}) and max(map(len, groups)) <= LONGEST


def test_a_report_says_what_the_study_says(written: StudyDirectory) -> None:
    from hysweep.report.wandb.study import tables

    found = tables(read_study(written, now=START + 900))
    columns, rows = found["leaderboard"]
    assert [row[columns.index("trial")] for row in rows][:2] == [0, 1]
    assert found["ledger"][0][:3] == ["trial", "attempt", "cause"]
