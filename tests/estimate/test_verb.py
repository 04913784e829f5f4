"""`hysweep estimate` as a person meets it, and the calibration by runs made up for it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hysweep.check import check_trial, errors
from hysweep.cli import hysweep
from hysweep.cli.estimate import METRIC
from hysweep.compose.composer import trial_yaml
from hysweep.estimate import estimate
from hysweep.estimate.calibration import Comparison, compare, factor_of
from hysweep.estimate.factors import entries, store
from hysweep.estimate.memory import PARTS
from hysweep.estimate.page import COLOURS
from hysweep.layouts.search import search
from hysweep.schema import BadInput, Trial
from hysweep.track import StudyDirectory

from ..layouts.test_search import laid_out
from .measured import RUNS

HY3 = "experiment=hy3_dapo_math"


@pytest.fixture(autouse=True)
def _one_composer(composer, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all, since it is slow to make."""
    monkeypatch.setattr("hysweep.cli.estimate.Composer", lambda dirs: composer)


def say(*words: str) -> Result:
    return CliRunner().invoke(hysweep, ["estimate", *words], catch_exceptions=True)


def test_the_tables() -> None:
    answer = say(HY3)
    assert answer.exit_code == 0
    for words in ("update, GiB per GPU", "saved activations", "first   middle     last", "KV cache", "host memory",
                  "30,720 per GPU, 245,760 per context group", "tightest", "update, middle stage"):  # fmt: skip
        assert words in answer.output
    assert len(re.findall("  fits, ", answer.output)) == 3


def test_what_does_not_fit_is_exit_code_1() -> None:
    answer = say(HY3, "memory.use_fused_kernels=false")
    assert answer.exit_code == 1
    assert "training does not fit by 4.6 GiB, within the estimate's error of 5 %" in answer.output
    assert "--strict" in answer.output and "does not fit by 7" not in answer.output
    sure = say(HY3, "trainer.max_token_len_per_gpu=60000")
    assert sure.exit_code == 1 and "does not fit by 22.9 GiB" in sure.output and "--strict" not in sure.output


def test_json() -> None:
    answer = json.loads(say(HY3, "--json").output)
    assert answer["fits"] and answer["tightest"] == {"phase": "train", "stage": "middle"}
    assert {v["group"] for v in answer["verdicts"]} == {"training", "rollout with weight sync", "resume"}
    assert all(sum(u["parts"].values()) == pytest.approx(u["total_gib"]) for u in answer["uses"])


@pytest.mark.parametrize("words", [(), (HY3, "trainer.lr=1"), (HY3, "rollout.n=8,16"), ("--calibrate",)])
def test_bad_input_is_told_so(words: tuple[str, ...]) -> None:
    assert isinstance(say(*words).exception, BadInput)  # `main` makes exit code 2 and one line of it


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    answer = say(HY3, "model.name='<script>'", "--html", str(tmp_path / "e.html"))
    assert answer.exit_code == 0 and f"written: {tmp_path / 'e.html'}" in answer.output.replace("\n", "")
    text = (tmp_path / "e.html").read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text
    assert not re.search(r"(src|href)=|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", text, re.DOTALL)[0])
    assert svg.get("role") == "img" and svg.find("title").text and "update" in svg.find("desc").text
    found = json.loads(say(HY3, "--json").output)
    assert len(list(svg.iter("rect"))) == sum(len(u["parts"]) for u in found["uses"])
    widths = [float(r.get("width")) for r in svg.iter("rect")]
    assert min(widths) > 0
    assert text.count("<table>") == len({u["phase"] for u in found["uses"]})


def test_every_part_has_a_colour() -> None:
    assert set(COLOURS) == set(PARTS)


# --- calibration


@pytest.fixture
def measured(composer, tmp_path: Path):
    """A study directory with attempts of a run, whose peaks are given."""

    def make(peaks: list[list[tuple[int, float]]], run: str = "A", name: str = "study") -> Path:
        study = StudyDirectory(tmp_path / name)
        study.create("study: {}\n", {})
        trial: Trial = composer.compose(RUNS[run].overrides).trial
        for number, rows in enumerate(peaks):
            attempt = study.add_trial(number, f"id{number}", trial_yaml(trial), {}).attempt(1)
            attempt.path.mkdir(parents=True)
            lines = [json.dumps({"step": step, "data": {METRIC: gib, "actor/loss": 1.0}}) for step, gib in rows]
            attempt.metrics_file.write_text("\n".join([*lines, '{"step": 9, "da']))
        return study.path

    return make


def test_like_is_compared_with_like(composer) -> None:
    """Run C: the metric's second value is of old_log_prob, and so is ours; the first is of another update."""
    for name, run in RUNS.items():
        found = compare(
            name, estimate(composer.compose(run.overrides).trial), [(1, run.allocated[0]), (2, run.allocated[1])]
        )
        assert found is not None and found.phase == run.set_by
        assert found.error == pytest.approx(0, abs=0.002)
    only = estimate(composer.compose(RUNS["A"].overrides).trial)
    assert compare("A", only, [(1, 33.978)]) is None
    resumed = compare("A", only, [(3, 48.7), (4, 48.7)])
    assert resumed is not None and resumed.phase == "resume" and resumed.error == pytest.approx(0, abs=0.001)


def test_the_last_stage_is_what_verl_measures(composer) -> None:
    found = estimate(composer.compose([HY3]).trial)
    compared = compare("x", found, [(1, 60.0), (2, 62.0)])
    assert compared is not None and compared.computed_gib == found.of("train", "last").torch_gib
    assert compared.computed_gib < found.of("train", "middle").torch_gib


def test_a_factor_is_kept_named_and_left_out(measured, tmp_path: Path) -> None:
    before = json.loads(say(*RUNS["A"].overrides, "--json").output)
    study = measured([[(1, 34.0), (2, 40.326)], [(1, 34.0), (2, 40.4)], [(1, 34.0), (2, 40.2)], [(1, 34.0)]])
    answer = say("--calibrate", str(study))
    assert answer.exit_code == 0
    assert "update" in answer.output and "36.66" in answer.output and "40.33" in answer.output
    assert "0003-id3/1: fewer than two steps" in answer.output
    assert "gpu_1/H200: torch's part times 1.100" in answer.output
    kept = json.loads((tmp_path / "config" / "hysweep" / "calibration.json").read_text())
    assert kept["gpu_1/H200"]["factor"] == pytest.approx(1.1, abs=0.001)
    assert kept["gpu_1/H200"]["runs"] == ["0000-id0/1", "0001-id1/1", "0002-id2/1"]

    after = say(*RUNS["A"].overrides)
    assert "calibrated: torch's part times 1.100" in after.output and "gpu_1/H200" in after.output
    found = json.loads(say(*RUNS["A"].overrides, "--json").output)
    torch = {u["phase"]: u["torch_gib"] for u in found["uses"]}
    assert torch["train"] == pytest.approx(40.326, abs=0.01)
    assert found["calibration"] == pytest.approx(1.1, abs=0.001)
    without = json.loads(say(*RUNS["A"].overrides, "--json", "--no-calibration").output)
    assert without == before
    assert "calibrated" not in say(HY3).output, "another cluster"
    assert say("--forget", *RUNS["A"].overrides).exit_code == 0
    assert "calibrated" not in say(*RUNS["A"].overrides).output
    assert say("--forget", *RUNS["A"].overrides).exit_code == 1, "there is none left"


def test_check_and_layouts_take_the_factor_too(composer, tmp_path: Path) -> None:
    """One verdict: what estimate says with a kept factor is what check says, and what layouts offers."""
    trial = composer.compose([HY3]).trial
    assert check_trial(trial) == [] and estimate(trial).fits
    before = search(trial)
    store().parent.mkdir(parents=True)
    store().write_text(json.dumps({"h20_16x8/H20": {"factor": 1.3, "runs": []}}))
    entries.cache_clear()
    told = estimate(trial)
    assert told.calibration == 1.3 and not told.fits and told == estimate(trial, 1.3)
    assert [p.key for p in errors(check_trial(trial))] == ["cluster.gpu_memory_gib"]
    found = search(trial)
    assert found.legal == before.legal and 0 < found.fitting < before.fitting
    own = estimate(laid_out(trial, found.overrides(row := int(found.order("seconds")[0]))))
    assert found.table["margin_gib"][row] == pytest.approx(min(v.margin_gib for v in own.verdicts), abs=0.05)


def test_what_rejects_all_runs_says_that_the_old_factor_stays(measured) -> None:
    say("--calibrate", str(measured([[(1, 34.0), (2, 40.326)]])))
    answer = say("--calibrate", str(measured([[(1, 34.0), (2, 400.0)]], name="other")))
    assert answer.exit_code == 1 and "kept before stays in use" in answer.output and "--forget" in answer.output


def test_a_trial_and_an_attempt_can_be_named(measured) -> None:
    study = measured([[(1, 34.0), (2, 36.6)]])
    trial = next((study / "trials").iterdir())
    for directory in (trial, trial / "attempts" / "1"):
        answer = json.loads(say("--calibrate", str(directory), "--json").output)
        [[run]] = answer["runs"].values()
        assert run["name"] == "0000-id0/1" and abs(run["error"]) < 0.01


def test_what_cannot_be_compared_is_told(measured, tmp_path: Path) -> None:
    study = measured([[(1, 34.0), (2, 400.0)]])
    answer = say("--calibrate", str(study))
    assert answer.exit_code == 1 and "left out" in answer.output and "no factor" in answer.output
    broken = measured([[(1, 34.0), (2, 36.6)]], name="other")
    next((broken / "trials").iterdir()).joinpath("trial.yaml").write_text("nonsense: [")
    answer = say("--calibrate", str(broken))
    assert answer.exit_code == 1 and "trial.yaml cannot be read" in answer.output
    assert isinstance(say("--calibrate", str(tmp_path / "nowhere")).exception, BadInput)


def test_an_attempt_that_ran_out_of_memory_is_no_measure(measured) -> None:
    study = measured([[(1, 34.0), (2, 36.6)], [(1, 34.0), (2, 60.0)]])
    trials = sorted((study / "trials").iterdir())
    end = {"exit_code": 1, "cause": "cuda_oom", "phase": "update", "excerpt": [], "ended": 1.0}
    (trials[1] / "attempts" / "1" / "end.json").write_text(json.dumps(end))
    answer = json.loads(say("--calibrate", str(study), "--json").output)
    [runs] = answer["runs"].values()
    assert [run["name"] for run in runs] == ["0000-id0/1"]
    assert "ended by cuda_oom" in answer["passed_over"]["0001-id1/1"]


@pytest.mark.parametrize("text", ["", "[1]", '{"gpu_1/H200": 3}', '{"gpu_1/H200": {"factor": "x"}}',
                                  '{"gpu_1/H200": {"factor": 100}}', '{"gpu_1/H200": {"factor": NaN}}'])  # fmt: skip
def test_a_store_that_is_broken_is_passed_over_and_mended(measured, text: str) -> None:
    store().parent.mkdir(parents=True)
    store().write_text(text)
    told = say(*RUNS["A"].overrides).output
    assert "calibrated" not in told and "warning: " in told and "calibrate DIR` again" in told
    assert say("--calibrate", str(measured([[(1, 34.0), (2, 36.6)]]))).exit_code == 0
    assert "calibrated" in say(*RUNS["A"].overrides).output


def test_the_factor_is_the_median_of_the_usable() -> None:
    runs = [Comparison("x", "train", 10.0, measured) for measured in (10.0, 11.0, 12.0, 100.0, 1.0)]
    assert factor_of(runs) == pytest.approx(1.1)
    assert factor_of(runs[3:]) is None
