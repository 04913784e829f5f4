"""What is on disk is whole or not there; what is torn is passed over."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hysweep.track import (
    ACTIONS,
    AttemptDirectory,
    Booking,
    Cause,
    Claim,
    End,
    Place,
    State,
    Status,
    StudyDirectory,
    append_line,
    exactly,
    read_json,
    read_lines,
    write_json,
)


@pytest.fixture
def study(tmp_path: Path) -> StudyDirectory:
    directory = StudyDirectory(tmp_path / "study")
    directory.create("study: {}\n", {"algorithm/grpo.yaml": "name: grpo\n"})
    return directory


def metrics(attempt: AttemptDirectory, rows: list[tuple[int, dict[str, float]]]) -> None:
    attempt.path.mkdir(parents=True, exist_ok=True)
    attempt.metrics_file.write_text("".join(json.dumps({"step": s, "data": d}) + "\n" for s, d in rows))


def test_every_cause_has_one_action() -> None:
    assert set(ACTIONS) == set(Cause)


def test_a_state_survives_the_disk(study: StudyDirectory) -> None:
    trial = study.add_trial(3, "abcdef", "model: {}\n", {"algorithm": "grpo"})
    saved = trial.save(State(Status.SUBMITTED, attempt=2, job_id="x", ending=Cause.PRUNED, reason="r", value=0.5))
    assert trial.state() == saved
    assert (trial.number, trial.id, trial.point()) == (3, "abcdef", {"algorithm": "grpo"})


def test_an_end_and_a_claim_survive_the_disk(study: StudyDirectory) -> None:
    attempt = study.add_trial(0, "aa", "", {}).attempt(1)
    attempt.path.mkdir(parents=True)
    assert attempt.claim(Claim("host", 7, 1.5, "boot"))
    assert not attempt.claim(Claim("other", 8, 2.5))
    assert attempt.claimed() == Claim("host", 7, 1.5, "boot")
    end = End(Cause.CUDA_OOM, exit_code=1, lines=("a", "b"), started=1.0, ended=2.0)
    attempt.finish(end)
    assert attempt.end() == end


def test_the_last_attempt_wins_where_steps_overlap(study: StudyDirectory) -> None:
    trial = study.add_trial(0, "aa", "", {})
    metrics(trial.attempt(1), [(1, {"s": 0.1}), (2, {"s": 0.2}), (3, {"s": 0.3}), (4, {"s": 0.4})])
    metrics(trial.attempt(2), [(3, {"s": 9.0}), (5, {"s": 0.5})])
    assert trial.curve("s") == [(1, 0.1), (2, 0.2), (3, 9.0), (5, 0.5)]


@pytest.mark.parametrize("garbage", ["", "{", "[]", "7", '{"status": "dancing"}', "null", '{"attempt": 1}'])
def test_a_damaged_record_is_none(study: StudyDirectory, garbage: str) -> None:
    trial = study.add_trial(0, "aa", "", {})
    attempt = trial.attempt(1)
    attempt.path.mkdir(parents=True)
    for path in (
        trial.path / "state.json",
        trial.path / "point.json",
        attempt.path / "end.json",
        attempt.path / "node.json",
    ):
        path.write_text(garbage)
    assert (trial.state(), attempt.end(), attempt.claimed()) == (State(), None, None)
    assert isinstance(trial.point(), dict)


ODD = (None, "x", -1, True, math.inf, 10**400, [], [1], {}, {"a": 1}, "\ud800")
WHOLE: dict[str, Any] = {
    "state": State(Status.ENDED, 1, "7", cause=Cause.COMPLETED, value=0.5, values=(0.5,), began=1.0, expected=2.0),
    "end": End(Cause.HUNG, exit_code=1, reason="r", lines=("a",), started=1.0, ended=2.0, nodes=("n1",)),
    "claim": Claim("n1", 7, 1.0, "b", 2, "j"),
    "booking": Booking(0, 1, Cause.COMPLETED, 8, 1.5),
    "home": Place("/a", "n1", 3),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_record_holds_what_it_is_to_hold_or_is_none(study: StudyDirectory, kind: str) -> None:
    trial = study.add_trial(0, "abcdef123456", "", {})
    attempt = trial.attempt(1)
    attempt.path.mkdir(parents=True)
    path, read = {
        "state": (trial.path / "state.json", trial.state_if_legible),
        "end": (attempt.path / "end.json", attempt.end),
        "claim": (attempt.path / "node.json", attempt.claimed),
        "booking": (study.path / "ledger.jsonl", lambda: next(iter(study.ledger()), None)),
        "home": (study.path / "home.json", study.home),
    }[kind]
    whole = WHOLE[kind]
    sample = asdict(whole)
    for name in sample:
        for odd in ODD:
            path.write_text(json.dumps(sample | {name: odd}) + "\n")
            found = read()
            for field, value in asdict(found).items() if found else ():
                was = sample[field]
                fits = isinstance(value, type(was)) or (isinstance(was, float) and type(value) is int)
                assert fits or value is None, (kind, name, odd)
                assert isinstance(value, bool) == isinstance(was, bool) and str(value) != str(10**400)
    path.write_text(json.dumps(sample) + "\n")
    assert read() == whole


def test_null_is_no_number(study: StudyDirectory) -> None:
    """verl's file logger writes NaN and infinity as null."""
    trial = study.add_trial(0, "aa", "", {})
    trial.attempt(1).path.mkdir(parents=True)
    trial.attempt(1).metrics_file.write_text(
        '{"step": 1, "data": {"s": null}}\n{"step": null, "data": {}}\n{"step": 2}\n'
    )
    [(step, value)] = trial.curve("s")
    assert step == 1 and value != value


def test_a_file_that_cannot_be_read_for_once_is_named() -> None:
    """Of this one every read fails."""
    broken = Path("/proc/self/mem")
    assert read_json(broken) is None and list(read_lines(broken)) == []
    with exactly():
        for read in (read_json, lambda path: list(read_lines(path))):
            with pytest.raises(OSError, match="/proc/self/mem") as caught:
                read(broken)
            assert caught.value.errno == errno.EIO


def test_trials_are_in_the_order_of_their_numbers(study: StudyDirectory) -> None:
    for number in (10_001, 9_999, 3):
        study.add_trial(number, f"a{number}", "", {})
    assert [t.number for t in study.trials()] == [3, 9_999, 10_001]


def test_attempts_are_in_the_order_of_their_numbers(study: StudyDirectory) -> None:
    trial = study.add_trial(0, "aa", "", {})
    for n in (1, 2, 10):
        metrics(trial.attempt(n), [(n, {"s": float(n)})])
    assert [a.number for a in trial.attempts()] == [1, 2, 10]


@given(st.lists(st.integers(), max_size=6), st.binary(max_size=30))
def test_lines_are_read_around_a_torn_one(tmp_path_factory, values: list[int], garbage: bytes) -> None:
    path = tmp_path_factory.mktemp("t") / "x.jsonl"
    for v in values:
        append_line(path, {"v": v})
    with open(path, "ab") as file:
        file.write(b'{"v": 1' + garbage.replace(b"}", b""))  # the writer died in mid-line
    append_line(path, {"v": "after"})
    read = [r["v"] for r in read_lines(path) if "v" in r]
    assert read[: len(values)] == values
    assert read[-1] == "after"


def test_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"half": ')
    assert read_json(tmp_path / "x.json") is None
    assert read_json(tmp_path / "none.json") is None
    assert list(read_lines(tmp_path / "none.jsonl")) == []


def test_a_study_is_created_whole_or_not_at_all(tmp_path: Path) -> None:
    directory = StudyDirectory(tmp_path / "s")
    directory.create("a: 1\n", {"config.yaml": "x: 1\n"})
    assert directory.exists and (directory.conf / "config.yaml").read_text() == "x: 1\n"
    with pytest.raises(OSError):
        directory.create("a: 2\n", {})
    assert directory.config_file.read_text() == "a: 1\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s"], "no draft is left"


def test_a_trial_is_frozen_once(study: StudyDirectory) -> None:
    first = study.add_trial(1, "aa", "old\n", {"x": 1})
    again = study.add_trial(1, "aa", "new\n", {"x": 2})
    assert first == again and again.config_file.read_text() == "old\n"


def test_a_trial_is_found_by_number_or_id(study: StudyDirectory) -> None:
    for n, i in ((0, "aabb"), (1, "aacc"), (12, "ddee")):
        study.add_trial(n, i, "", {})
    assert study.find("12").id == "ddee"
    assert study.find("aab").number == 0
    assert study.find("aa") is None, "two begin so"
    assert study.find("7") is None


def test_gpu_hours_are_booked_once(study: StudyDirectory) -> None:
    for _ in range(2):
        study.book(Booking(0, 1, Cause.COMPLETED, 8, 2.0, requested=4.0, productive=1.5))
    study.book(Booking(0, 2, Cause.KILLED, 8, 1.0))
    assert [e.gpu_hours for e in study.ledger()] == [2.0, 1.0]
    assert study.ledger()[0].productive == 1.5


def test_a_ledger_of_an_earlier_version_is_read(study: StudyDirectory) -> None:
    line = '{"trial": 3, "attempt": 1, "cause": "completed", "gpus": 8, "gpu_hours": 2.5}'
    (study.path / "ledger.jsonl").write_text(line + '\n{"trial": 4}\n{"torn')
    assert study.ledger() == [Booking(3, 1, Cause.COMPLETED, 8, 2.5)]


def _writer(path: str) -> None:
    value = 0
    while True:
        value += 1
        write_json(Path(path), {"value": value, "fill": "x" * 5000})


def test_a_killed_writer_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for _ in range(5):
        process = multiprocessing.get_context("fork").Process(target=_writer, args=(str(path),))
        process.start()
        while not path.exists():
            pass
        seen = {json.loads(path.read_text())["value"] for _ in range(200)}
        assert seen
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert json.loads(path.read_text())["fill"] == "x" * 5000
