"""The live view: what keys do, and that it fits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from conftest import START, MakeStudy, Study
from hysweep.report import StudyRecord, read_study
from hysweep.report.live import ORDERS, LiveView, Request, last_lines
from hysweep.track import Cause, State, Status


@pytest.fixture
def record(quickstart: Study) -> StudyRecord:
    return read_study(quickstart.directory, now=START + 900)


def drawn(view: LiveView, record: StudyRecord, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view.draw(record, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def press(view: LiveView, record: StudyRecord, *keys: str) -> Request | None:
    asked = None
    for key in keys:
        asked = view.press(key, record)
    return asked


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 12), (120, 40), (40, 8)])
def test_it_fits(record: StudyRecord, width: int, height: int) -> None:
    view = LiveView()
    press(view, record, "down", "down")
    lines = drawn(view, record, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_keys_choose_within_the_table(record: StudyRecord) -> None:
    view = LiveView()
    order = [t.number for t in view.trials(record)]
    press(view, record, "down")
    assert view.selected == order[0]
    press(view, record, "j", "up", "k", "up")
    assert view.selected == order[0]
    press(view, record, "page down", "down")
    assert view.selected == order[-1]
    press(view, record, "escape")
    assert view.selected is None


def test_sorting_goes_through_all_orders_and_comes_back(record: StudyRecord) -> None:
    view, seen = LiveView(), []
    for _ in ORDERS:
        seen.append((view.order, [t.number for t in view.trials(record)]))
        assert sorted(seen[-1][1]) == [0, 1, 2, 3, 4, 5]
        press(view, record, "s")
    assert view.order == seen[0][0]
    orders = dict(seen)
    assert orders["trial"] == [0, 1, 2, 3, 4, 5]
    assert orders["result"][0] == 1
    assert orders["activity"][:2] == [4, 5]
    press(view, record, "r")
    assert [t.number for t in view.trials(record)] == orders["activity"][::-1]


def test_a_trial_is_cancelled_only_after_a_yes(record: StudyRecord) -> None:
    view = LiveView()
    assert press(view, record, "c") is None and "choose" in view.message
    view.selected = 4
    assert press(view, record, "c") is None
    assert any("cancel trial 4" in line for line in drawn(view, record))
    assert press(view, record, "n") is None
    assert press(view, record, "c", "y") is Request.CANCEL
    view.selected = 1
    assert press(view, record, "c", "y") is None  # it has ended
    assert press(view, record, "q") is Request.LEAVE


def test_the_log_of_the_chosen_trial_opens_scrolls_and_closes(quickstart: Study) -> None:
    trial = quickstart.directory.trials()[4]
    log = trial.attempt(1).driver_log
    log.write_text("".join(f"line {i}\n" for i in range(100)) + "\x1b[31mred\x1b[0m\n 10%\r 50%\r100%\n")
    record, view = read_study(quickstart.directory, now=START + 900), LiveView(selected=4)
    press(view, record, "l")
    lines = drawn(view, record)
    assert len(lines) <= 24 and lines[-2] == "100%" and lines[-3] == "red" and "trial 4" in lines[0]
    press(view, record, *["page up"] * 20)
    assert "line 0" in drawn(view, record)[1]
    press(view, record, "page down")
    assert "line 20" in drawn(view, record)[1]
    press(view, record, "escape")
    assert any("activity" in line or "log" in line for line in drawn(view, record)) and not view.has_log


def test_the_chosen_row_stays_in_sight(make_study: MakeStudy) -> None:
    study = make_study()
    for i in range(60):
        study.trial({"algorithm": "grpo", "trainer.learning_rate": (i + 1) / 1e4}, steps=3)
    record, view = read_study(study.directory, now=START + 9000), LiveView(order="trial")
    for number in (0, 30, 59):
        view.selected = number
        lines = drawn(view, record)
        assert len(lines) <= 24
        assert any(line.startswith(f"{number:>2} ") for line in lines), number


def test_where_a_trial_runs_and_what_it_waits_for(make_study: MakeStudy) -> None:
    study = make_study()
    running = study.trial({"algorithm": "grpo"}, None, steps=5, status=Status.SUBMITTED)
    running.save(running.state().but(nodes="node[1-16]"))
    waiting = study.trial({"algorithm": "rloo"}, None, status=Status.CREATED)
    expected = START + 7200
    waiting.save(State(Status.SUBMITTED, 2, job_id="7", reason="Resources", expected=expected))
    record = read_study(study.directory, now=START + 900)
    assert record.trials[0].nodes == "node[1-16]"
    lines = "\n".join(drawn(LiveView(), record))
    assert "node[1-16]" in lines and "Resources, starts " in lines and "try" in lines
    assert "attempt 2" in "\n".join(drawn(LiveView(selected=1), record, 120))


def test_nodes_of_attempts_that_ended_are_those_that_the_scheduler_named(quickstart: Study) -> None:
    quickstart.directory.log("attempt_ended", trial=0, attempt=1, cause=Cause.COMPLETED, nodes="node[3-4]")
    record = read_study(quickstart.directory, now=START + 900)
    assert record.trials[0].nodes == "node[3-4]"
    assert record.trials[1].nodes == "node1"


def test_what_is_left_of_the_budget_is_shown(make_study: MakeStudy) -> None:
    study = make_study(study={"budget_gpu_hours": 100})
    study.trial({"algorithm": "grpo"}, steps=5)
    assert any(
        "slot-hours left" in line for line in drawn(LiveView(), read_study(study.directory, now=START + 900), 120)
    )


def test_a_hostile_log_is_harmless(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_bytes(b"\x1b]0;owned\x07title\n\x1b[2Jgone\nbell\x07\n\xff\xfe raw\n\x1b(B\x1b=done\r\n")
    lines = last_lines(log)
    assert lines[0] == "title" and lines[1] == "gone" and lines[-1].endswith("done")
    assert not any(ord(c) < 32 for line in lines for c in line)
    assert last_lines(tmp_path / "missing") == []
