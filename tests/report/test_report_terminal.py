"""Words and tables of the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from conftest import START, MakeStudy, Study, study_yaml
from hysweep.report import change_line, change_lines, leaderboard, live_table, read_study, words
from hysweep.report.page import page
from hysweep.track import Cause, Phase, State, Status

LONG_POINT = {
    "algorithm": "gspo",
    "trainer.learning_rate": 1.2345e-6,
    "algorithm.clip_ratio_high": 0.0031,
    "rollout.n": 16,
    "rollout.temperature": 0.95,
    "trainer.train_batch_size": 512,
    "algorithm.loss_agg_mode": "seq-mean-token-sum-norm",
}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.21341, "0.2134"), (12.345, "12.35"), (1234.6, "1,235"), (1.2e-5, "1.2e-5"), (3, "3"), (None, "–"), (0.0, "0")],
)
def test_number(value: float | None, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(1.2e-3, "1.2e-3"), (3e-7, "3e-7"), (1e-10, "1e-10"), (0.0, "0")])
def test_learning_rates_are_short(value: float, text: str) -> None:
    assert words.scientific(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.6, "1m 00s"), (725, "12m 05s"), (11220, "3h 07m"), (187200, "2d 04h"), (None, "–"), (-5, "0s")],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.5, 0.12345, None], ["0.5000", "0.1235", "–"]),
        ([1234.5, 2.0], ["1,234.5", "2.0"]),
        ([math.nan, 0.5], ["nan", "0.5000"]),
        ([3e-6, 0.0], ["3.00e-06", "0.00e+00"]),
        ([], []),
    ],
)
def test_a_column_has_one_number_of_decimals(values: Sequence[float | None], texts: Sequence[str]) -> None:
    assert words.aligned(values) == texts


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([1.0], "▄"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([5.0] * 3, "▄▄▄"),
        ([0.0, math.nan, 1.0], "▁ █"),
        ([math.nan] * 2, "  "),
        ([-1e308, 1e308], "▄▄"),
        (list(range(100)), "▁▂▃▃▅▆▆▇█"),
    ],
)
def test_sparkline(values: Sequence[float], line: str) -> None:
    width = 9 if len(values) > 9 else 12
    drawn = words.sparkline(values, width)
    assert len(drawn) == len(line)
    assert drawn[:1] == line[:1]
    assert drawn[-1:] == line[-1:]
    assert list(drawn.replace(" ", "")) == sorted(drawn.replace(" ", "")) or len(set(values)) < 3


def test_labels_name_what_varies() -> None:
    assert words.label({"algorithm": "cispo", "trainer.learning_rate": 1.2e-3}) == "cispo lr=1.2e-3"
    assert words.label({"rollout.n": 8, "model.trust": True}) == "rollout.n=8 trust=true"
    assert words.short_keys(["a.size", "b.size"]) == {"a.size": "a.size", "b.size": "b.size"}


def test_text_from_others_cannot_steer_the_terminal() -> None:
    assert words.clean("a\x1b[31mb\r\n\tc\u202ed\x07") == "a [31mb cd"
    assert words.clean("x" * 50, 10) == "x" * 9 + "…"


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_leaderboard_fits(quickstart: Study, width: int) -> None:
    lines = printed(leaderboard(read_study(quickstart.path, now=START + 900), width=width), width)
    assert all(cell_len(line) <= width for line in lines)
    assert len(lines) == 7  # nothing is folded
    assert lines[1].startswith("★1")
    for told in ("91b722", "cispo", "1.2e-3", "0.86", "→", "40/40", "completed", "6m 39s", "0.111"):
        assert told in lines[1]
    assert "slot-h" in lines[0]


def test_numbers_of_a_column_end_at_the_same_place(quickstart: Study) -> None:
    head, *lines = printed(leaderboard(read_study(quickstart.path), width=80), 80)
    end = head.index("value") + len("value")
    assert all(line[end - 1] in "0123456789–" and line[end] == " " for line in lines)


def test_a_wide_space_is_folded_into_one_column(make_study: MakeStudy) -> None:
    study = make_study(total_steps=1000)
    for i in range(12):
        study.trial(LONG_POINT | {"rollout.n": i}, steps=3)
    lines = printed(leaderboard(read_study(study.path), width=80), 80)
    assert all(cell_len(line) <= 80 for line in lines)
    together = "".join(lines).replace(" ", "")
    assert "clip_high=0.0031" in together
    assert together.count("3/1000") == 12


def test_a_constant_of_the_space_is_in_no_column_and_no_label(make_study: MakeStudy) -> None:
    study = make_study("fixed", space={"reward": "choice(function)", "rollout.n": "choice(4,8)"})
    study.trial({"reward": "function", "rollout.n": 4}, steps=3)
    record = read_study(study.path)
    assert record.keys == ("reward", "rollout.n") and record.varied == ("rollout.n",), "an export has all of them"
    assert record.label(record.trials[0]) == "rollout.n=4"


def test_an_empty_study_has_an_empty_table(make_study: MakeStudy) -> None:
    record = read_study(make_study().path)
    assert len(printed(leaderboard(record), 80)) == 1
    assert "no trial has completed yet" in "\n".join(printed(live_table(record), 80))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 12), (120, 40)])
def test_the_live_view_fits_the_screen(quickstart: Study, width: int, height: int) -> None:
    record = read_study(quickstart.path, now=START + 900)
    lines = printed(live_table(record, width=width, height=height), width)
    assert all(cell_len(line) <= width for line in lines)
    assert len(lines) <= height
    text = "\n".join(lines)
    for told in ("quickstart", "15m 00s", "1 running", "2 completed", "21/40", "━", "best: 0.86", "slot-hours"):
        assert told in text


def test_the_live_view_shows_what_runs_before_what_ended(make_study: MakeStudy) -> None:
    study = make_study()
    for _ in range(30):
        study.trial({"algorithm": "grpo"}, steps=2)
    study.trial({"algorithm": "rloo"}, None, steps=2, status=Status.SUBMITTED)
    lines = printed(live_table(read_study(study.path), height=16), 80)
    assert len(lines) <= 16
    assert "rloo" in lines[3]
    assert any("more" in line for line in lines)


def test_the_last_decisions_are_told(quickstart: Study) -> None:
    quickstart.directory.log("stop", trial=2, cause="pruned", reason="too low", value=0.123456)
    lines = printed(live_table(read_study(quickstart.path), events=1, width=120), 120)
    assert "stop trial 2 cause=pruned reason=too low value=0.1235" in lines[-1]


def test_why_trials_wait_is_told_once_for_those_that_wait_alike(make_study: MakeStudy) -> None:
    study = make_study()
    for n, reason in enumerate(["Resources", "Priority", "Resources"]):
        made = study.trial({"rollout.n": n + 2}, status=Status.CREATED)
        made.save(State(Status.SUBMITTED, attempt=1, job_id=str(n), reason=reason))
    lines = printed(live_table(read_study(study.path), width=100), 100)
    assert "queued: Resources (trials 0, 2)" in [line.strip() for line in lines]
    assert "queued: Priority (trial 1)" in [line.strip() for line in lines]


@pytest.mark.parametrize(("confirm", "told"), [(2, "2 of 2 trials, 2 that confirm"), (0, "4 of 2 trials")])
def test_trials_that_confirm_are_counted_by_themselves(make_study: MakeStudy, confirm: int, told: str) -> None:
    asked = {"n_trials": 2, "confirm": {"top": confirm, "seeds": 1}}
    study = make_study(text=study_yaml("x", study=asked, space={"algorithm": "choice(grpo, rloo)"}))
    for point in ({"algorithm": "grpo"}, {"algorithm": "rloo"}):
        study.trial(point)
        study.trial(point | {"trainer.seed": 7})
    record = read_study(study.path)
    assert printed(live_table(record, width=100), 100)[1].startswith(f"{told} · 4 completed")
    page_text = page(record, "")
    assert (", 2 that confirm" in page_text) == bool(confirm)


def test_each_change_of_state_is_one_plain_line(make_study: MakeStudy) -> None:
    study = make_study()
    trial = study.trial({"algorithm": "cispo", "trainer.learning_rate": 1.2e-3}, status=Status.CREATED)
    created = read_study(study.path)
    assert change_lines(None, created) == ["trial 0 629fd8 cispo lr=1.2e-3: waiting"]
    assert change_lines(created, created) == []
    trial.save(State(Status.SUBMITTED, attempt=1, job_id="1"))
    queued = read_study(study.path)
    assert change_lines(created, queued) == ["trial 0 629fd8 cispo lr=1.2e-3: waiting -> queued"]
    trial.save(State(Status.CREATED, attempt=1, reason="again after node_fail: gone"))
    again = read_study(study.path)
    assert change_lines(queued, again)[0].endswith("queued -> waiting (again after node_fail: gone)")
    trial.save(State(Status.SUBMITTED, attempt=2, job_id="2"))
    assert change_lines(again, read_study(study.path))[0].endswith("waiting -> queued, attempt 2")


def test_ends_are_told_with_their_reason(quickstart: Study) -> None:
    record = read_study(quickstart.path)
    lines = change_lines(None, record)
    assert lines[0].endswith("completed at step 40 (0.7505)")
    assert lines[1].endswith("completed at step 40 (0.8603, the best so far)")
    assert "pruned at step 12 (critic/score/mean 0.1873" in lines[2]
    assert lines[3].endswith("cuda_oom in update at step 3 (CUDA out of memory in the update)")
    assert change_line(record.trials[0], record.trials[0], record) is None


def test_an_end_before_the_first_step(make_study: MakeStudy) -> None:
    study = make_study()
    study.trial({"algorithm": "grpo"}, Cause.CONFIG_ERROR, rows=[], phase=Phase.START, reason="no such key")
    assert change_lines(None, read_study(study.path))[0].endswith(
        "config_error in start before the first step (no such key)"
    )


def test_hostile_text_is_harmless_in_a_terminal(hostile: Study) -> None:
    record = read_study(hostile.path)
    for told in (leaderboard(record), live_table(record), *change_lines(None, record)):
        text = "\n".join(printed(told, 80))
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_square_brackets_are_no_markup(make_study: MakeStudy) -> None:
    study = make_study()
    study.trial({"algorithm": "[red]x[/red]"})
    assert "[red]x[/red]" in "\n".join(printed(leaderboard(read_study(study.path)), 80))


def printed(what: RenderableType, width: int) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get().rstrip("\n").split("\n")
