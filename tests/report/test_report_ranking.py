"""How well a ranking of layouts predicted: a study of layouts, made with known values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from conftest import METRIC, MakeStudy, Study
from hysweep.cli import hysweep
from hysweep.compose.composer import trial_yaml
from hysweep.layouts.search import Found, search
from hysweep.report import Ranking, ranking, ranking_table, read_study
from hysweep.report.page import page
from hysweep.schema import Trial
from hysweep.track import Cause

HY3 = "experiment=hy3_dapo_math"
SPACE = {"parallelism.pipeline": "choice(8, 16)", "rollout.tensor": "choice(16, 32)"}
THROUGHPUT = {"metric": "perf/throughput", "direction": "maximize"}


@pytest.fixture(scope="module")
def found(trial_of: Callable[..., Trial]) -> Found:
    return search(trial_of(HY3))


@pytest.fixture
def compare(make_study: MakeStudy, trial_of: Callable[..., Trial], found: Found) -> Callable[..., Study]:
    """A study of layouts, the fastest by prediction first, that were measured so; None: not measured."""

    def make(measured: Sequence[float | None], each: int = 300, fixed: Sequence[str] = (), **settings: Any) -> Study:
        study = make_study(study=THROUGHPUT | settings.pop("study", {}), space=settings.pop("space", SPACE))
        order = found.order("seconds")

        def config(point: dict[str, Any]) -> str:
            overrides = (f"{key}={'null' if value is None else value}" for key, value in point.items())
            return trial_yaml(trial_of(HY3, *overrides, *fixed))

        study.config = config
        for i, value in enumerate(measured):
            cause = Cause.COMPLETED if value is not None else Cause.CUDA_OOM
            study.trial(found.overrides(int(order[i * each])), cause, rows=[], value=value)
        return study

    return make


def of(study: Study) -> Ranking:
    answer = ranking(read_study(study.directory))
    assert answer is not None
    return answer


def test_the_prediction_is_that_of_the_search(compare: Callable[..., Study], found: Found) -> None:
    layouts = of(compare([3.0, 2.0, 1.0])).layouts
    order = found.order("seconds")
    assert [layout.seconds for layout in layouts] == [found.table["seconds"][order[i * 300]] for i in range(3)]
    assert layouts[0].seconds_share == 1
    assert [round(layout.measured_share or 0, 3) for layout in layouts] == [1, 0.667, 0.333]


@pytest.mark.parametrize(
    ("measured", "spearman", "outcome"),
    [
        ([600, 500, 400, 300, 200, 100], 1.0, "was measured the best, too"),
        ([100, 200, 300, 400, 500, 600], -1.0, "was measured 6th, 83 % slower than the measured best"),
        # ranks 2 1 3 4 6 5: 1 - 6 * 4 / (6 * 35)
        ([970, 1000, 900, 800, 600, 700], 1 - 24 / 210, "was measured 2nd, 3 % slower than the measured best"),
        ([999, 1000, 900], 0.5, "was measured 2nd, less than 1 % slower than the measured best"),
    ],
)
def test_spearman_is_the_one_that_is_known(
    compare: Callable[..., Study], measured: list[float], spearman: float, outcome: str
) -> None:
    answer = of(compare(measured))
    assert answer.spearman == pytest.approx(spearman)
    told = f"The ranking predicted the measured order with Spearman {spearman:.2f} over {len(measured)} layouts"
    assert answer.sentence == f"{told}; the predicted best {outcome}."
    assert [layout.predicted_rank for layout in answer.layouts] == list(range(1, len(measured) + 1))


def test_equals_share_a_rank(compare: Callable[..., Study]) -> None:
    answer = of(compare([700, 700, 500]))
    assert [layout.measured_rank for layout in answer.layouts] == [1, 1, 3]
    # ranks 1 2 3 against 1.5 1.5 3
    assert answer.spearman == pytest.approx(1.5 / 3**0.5)


def test_layouts_that_are_all_predicted_alike_have_no_order(compare: Callable[..., Study]) -> None:
    answer = of(compare([700, 600, 500, 400], each=0))
    assert {layout.predicted_rank for layout in answer.layouts} == {1}
    assert answer.spearman is None
    assert answer.sentence == "The ranking cannot be judged: all 4 layouts were predicted alike."


def test_seconds_measured_are_ranked_the_other_way(compare: Callable[..., Study]) -> None:
    answer = of(compare([9.0, 8.0, 10.0], study={"metric": "timing_s/step", "direction": "minimize"}))
    assert [layout.measured_rank for layout in answer.layouts] == [2, 1, 3]
    assert answer.spearman == pytest.approx(0.5)
    assert "was measured 2nd, 12 % slower" in answer.sentence


def test_two_measurements_are_too_few(compare: Callable[..., Study]) -> None:
    answer = of(compare([3.0, None, 1.0]))
    assert answer.spearman is None
    assert "cannot be judged yet: of 2 of 3 layouts there is a measurement, and it takes 3." in answer.sentence
    failed = answer.layouts[1]
    assert (failed.measured, failed.predicted_rank, failed.measured_rank) == (None, None, None)


def test_a_predicted_best_that_failed_is_said(compare: Callable[..., Study]) -> None:
    answer = of(compare([None, 3.0, 2.0, 1.0]))
    assert answer.spearman == pytest.approx(1)
    assert answer.sentence.endswith("over 3 layouts; the predicted best has no measurement (cuda oom).")


def test_points_that_are_not_of_the_same_work_are_not_compared(compare: Callable[..., Study]) -> None:
    study = compare([3.0, 2.0])
    study.trial({"trainer.train_batch_size": 256}, rows=[], value=1.0)
    answer = of(study)
    assert answer.spearman is None
    assert "differ in GPUs or in tokens of a step" in answer.sentence


@pytest.mark.parametrize(
    "settings",
    [
        {"study": {"metric": METRIC}},
        {"study": {"direction": "minimize"}},
        {"space": {"trainer.learning_rate": "choice(1e-6, 2e-6)"}},
        {"fixed": ["parallelism=fsdp2", "memory=fsdp2_offload"]},
        {"fixed": ["cluster.gpu=null"]},
    ],
    ids=["another metric", "the slowest wins", "no layout varies", "no Megatron", "no GPU"],
)
def test_another_study_has_no_ranking(compare: Callable[..., Study], settings: dict[str, Any]) -> None:
    study = compare([3.0, 2.0, 1.0], **settings)
    assert ranking(read_study(study.directory)) is None
    assert 'id="ranking"' not in page(read_study(study.directory), "")


def test_a_torn_trial_is_left_out(compare: Callable[..., Study]) -> None:
    study = compare([4.0, 3.0, 2.0, 1.0])
    study.directory.trials()[1].config_file.write_text("parallelism: {tensor: [")
    assert [layout.trial.number for layout in of(study).layouts] == [0, 2, 3]


def test_the_page_shows_table_sentence_and_picture(compare: Callable[..., Study]) -> None:
    record = read_study(compare([970, 1000, 900]).directory)
    text = page(record, "")
    assert 'id="ranking"' in text
    assert "Spearman 0.50 over 3 layouts" in text
    assert "<caption" in text[text.index('id="ranking-table"') - 200 :]
    assert 'data-figure="ranking"' in text
    figures = json.loads(text.split('id="page-data">')[1].split("</script>")[0])["figures"]
    assert sum(count for trace in figures["ranking"]["data"] for _, count in trace["trials"]) == 4, "three and a ring"


def test_the_terminal_table_fits(compare: Callable[..., Study]) -> None:
    study = compare([970, 1000, None])
    console = Console(width=80)
    with console.capture() as capture:
        console.print(ranking_table(of(study), read_study(study.directory)))
    lines = capture.get().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("1,000.0 (1.00)" in line and "2 → 1" in line for line in lines), lines
    assert any("cuda_oom" in line for line in lines)


def test_the_verbs_say_it(compare: Callable[..., Study]) -> None:
    study = compare([970, 1000, 900])
    told = CliRunner().invoke(hysweep, ["report", str(study.path)])
    assert "Spearman 0.50 over 3 layouts; the predicted best was measured 2nd, 3 % slower" in told.output
    assert told.output.splitlines()[-1].endswith("report.html")
    for verb in ("report", "status"):
        answer = json.loads(CliRunner().invoke(hysweep, [verb, "--json", str(study.path)]).output)
        assert answer["ranking"]["spearman"] == pytest.approx(0.5)
        assert [x["measured_rank"] for x in answer["ranking"]["layouts"]] == [2, 1, 3]
