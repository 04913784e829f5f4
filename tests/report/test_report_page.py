"""The page: whole, self-contained, escaped, and with its data beside every figure."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import re
import shlex
import subprocess
import sys
from array import array
from collections.abc import Iterable
from html import unescape
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from conftest import HOSTILE, START, MakeStudy, Study, fill_quickstart
from hysweep.report import Curve, read_study, write_page
from hysweep.report.figures import MOST_POINTS, curves, grouped, packed, scatters, thinned
from hysweep.report.html import Cell, Column, Row, Table, element, script_json
from hysweep.report.page import page
from hysweep.report.searching import importances_of
from hysweep.report.sections import run_again
from hysweep.schema import BadInput
from hysweep.study.definition import study_faults
from hysweep.track import Cause, Status, StudyDirectory

VOID = {"meta", "input", "br"}


class Page(HTMLParser):
    """The page as a browser takes it: elements with their attributes, and the text of those that matter."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, list[str]] = {}
        self.open: list[tuple[str, int]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append((tag, len(self.elements) - 1))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, index in self.open:
            self.texts.setdefault(index, []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str, **wanted: str) -> str:
        """Of the first such element."""
        for index, (name, attributes) in enumerate(self.elements):
            if name == tag and all(attributes.get(k.rstrip("_")) == v for k, v in wanted.items()):
                return "".join(self.texts.get(index, []))
        raise AssertionError(f"no <{tag}> with {wanted}")

    def has(self, tag: str, **wanted: str) -> bool:
        return any(
            name == tag and all(a.get(k.rstrip("_")) == v for k, v in wanted.items()) for name, a in self.elements
        )

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.text("script", id="page-data"))
        return data


def made(study: Study, now: float = START + 900) -> Page:
    """The page of a study, with a stand-in for plotly.js: what is in it does not matter here."""
    return Page(text_of(study, now))


def text_of(study: Study, now: float = START + 900) -> str:
    from hysweep.report import figures

    record = read_study(study.directory, metrics=figures.metric_names(), now=now)
    return page(record, "window.Plotly = {};")


def test_write_page_makes_one_file_that_holds_everything(quickstart: Study) -> None:
    path = write_page(quickstart.directory)
    assert path == quickstart.path / "report.html"
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 8_000_000
    assert text.count("plotly.js v") == 1
    parsed = Page(text)
    for tag, attributes in parsed.elements:
        for name in ("src", "href", "action", "data", "poster"):
            link = attributes.get(name) or ""
            assert link.startswith(("#", "data:text/csv")) or not link, (tag, link)
        assert not (tag == "link" or attributes.get("srcset"))
        assert not [a for a in attributes if a.startswith("on")]
    style = parsed.text("style")
    assert "url(" not in style
    assert "@import" not in style
    assert sorted(p.name for p in quickstart.path.iterdir() if "report" in p.name) == ["report.html"]


def test_only_the_scripts_of_the_page_may_run(quickstart: Study) -> None:
    text = write_page(quickstart.directory).read_text(encoding="utf-8")
    parsed = Page(text)
    policy = next(m["content"] for m in parsed.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    for source in (parsed.text("script", id="plotly-source"), parsed.text("script")):
        if source.startswith("{"):
            continue
        assert base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() in policy
    kinds = [s.get("type") for s in parsed.all("script")]
    assert kinds == ["application/json", "text/plain", None]


def test_sections_tell_what_happened(quickstart: Study) -> None:
    parsed = made(quickstart)
    for slug in ("won", "asked", "trials", "curves", "search", "pruning", "failures", "cost"):
        assert parsed.has("section", id=slug, **{"aria-labelledby": f"{slug}-h"})
    won = parsed.text("section", id="won")
    for told in ("Trial 1", "cispo", "1.2e-3", "0.8603", "0.1097 ahead of trial 0", "algorithm.loss_mode", "vanilla"):
        assert told in won
    assert "learning_rate: 0.0012" in won  # the full configuration
    asked = parsed.text("section", id="asked")
    assert "tag(log, interval(1e-4, 1e-2))" in asked
    assert "hysweep run sweep=quickstart trainer.total_steps=40" in asked
    assert "verl 0.9.1" in asked
    assert "worse than the median 0.4211 of 2 others" in parsed.text("section", id="pruning")
    failures = parsed.text("section", id="failures")
    assert "Tried to allocate 2.50 GiB" in failures
    assert "trials/0003-" in failures
    assert "in update" in failures
    cost = parsed.text("table", id="ledger")
    for cause in ("completed", "pruned", "cuda_oom", "not ended yet"):
        assert cause in cost
    head = parsed.text("header")
    assert "running" in head
    assert "15m 00s" in head
    assert "slot-hours" in head


def test_what_was_asked_has_all_that_decides_the_search(make_study: MakeStudy) -> None:
    asked = {
        "sampler": {"name": "tpe", "n_startup_trials": 7, "sigma0": 0.5},
        "pruner": {"name": "percentile", "percentile": 30.0, "startup_trials": 4, "min_steps": 5},
        "pruners": [{"name": "entropy_collapse", "low": 0.1}],
        "seed": 11,
        "enqueue": [{"algorithm": "rloo", "trainer.learning_rate": 2e-3}],
    }
    study = fill_quickstart(make_study("all", study=asked, commits={"/somewhere/mine": "0123456789ab-dirty"}))
    told = Page(write_page(study.directory).read_text()).text("section", id="asked")
    for words in (
        "seed 11", "sampler tpe, n_startup_trials 7",
        "pruner percentile, min_steps 5, startup_trials 4, percentile 30.0",
        "pruner entropy_collapse, low 0.1", "rloo lr=2e-3", "0123456789ab-dirty of mine",
    ):  # fmt: skip
        assert words in told, words
    assert "sigma0" not in told, "tpe does not read it"


def test_of_a_choice_that_all_completed_trials_share_nothing_is_told(make_study: MakeStudy) -> None:
    """It may have mattered most: what chose otherwise failed."""
    one, two = make_study("one"), make_study("two")
    for i in range(6):
        point = {"algorithm": "grpo", "trainer.learning_rate": 1e-3 * (i + 1)}
        one.trial(point, best=0.3 + 0.1 * i)
        two.trial(point | {"rollout.n": 4 * (1 + i % 2)}, best=0.3 + 0.1 * i)
    for study, shares in ((one, set()), (two, {"trainer.learning_rate", "rollout.n"})):
        study.trial({"algorithm": "gspo", "trainer.learning_rate": 1e-3, "rollout.n": 4}, Cause.CUDA_OOM, steps=3)
        record = read_study(study.directory)
        assert set(importances_of(record).shares) == shares
        page = Page(write_page(study.directory).read_text())
        note = "cannot be told of what has one value in all 6 completed trials: algorithm = grpo"
        assert note in page.text("section", id="search")
        assert page.has("table", id="data-importances") == bool(shares)


def test_tables_are_whole_and_accessible(quickstart: Study) -> None:
    parsed = made(quickstart)
    assert len(parsed.all("table")) == len(parsed.all("caption"))
    assert all(th.get("scope") in ("col", "row") for th in parsed.all("th"))
    rows = table_rows(parsed, "leaderboard")
    assert rows[0] == [
        "rank", "trial", "algorithm", "trainer.learning_rate", "value", "state", "steps", "first reward", "last reward",
        "time", "slot-hours",
    ]  # fmt: skip
    assert len(rows) == 7
    assert rows[1][:3] == ["1", "1", "cispo"]
    assert float(rows[1][3]) == 1.2e-3
    assert rows[1][5] == "completed"


def test_every_figure_has_its_data(quickstart: Study) -> None:
    parsed = made(quickstart)
    plots = [a["data-figure"] for a in parsed.all("div") if "data-figure" in a]
    assert plots == [
        "curve-objective", "curve-score", "curve-entropy", "curve-grad_norm", "curve-response", "curve-probs_diff",
        "curve-throughput", "choice-0", "scatter-1", "timeline", "ends",
    ]  # fmt: skip
    assert set(plots) == set(parsed.data["figures"])
    for name in plots:
        assert name
        table = name.replace("curve-", "data-") if name.startswith("curve") else f"data-{name}"
        assert parsed.has("table", id=table)
    assert len([a for a in parsed.all("a") if "data-curve" in a]) == 7
    scatter = table_rows(parsed, "data-scatter-1")
    assert len(scatter) == 6  # five trials have a value or a curve
    assert all(d.get("role") == "img" and d.get("aria-label") for d in parsed.all("div") if "data-figure" in d)


def test_figures_are_what_plotly_draws(quickstart: Study) -> None:
    go = pytest.importorskip("plotly.graph_objects")
    record = read_study(quickstart.path)
    groups = grouped(record)
    for figure in [*curves(record, groups), *scatters(record, groups)]:
        assert figure.traces
        for trace in figure.traces:
            points = sum(count for _, count in trace["trials"])
            own = {k: v for k, v in trace.items() if k not in ("trials", "group", "best")}
            drawn = go.Figure(data=[own], layout=figure.layout)
            assert len(unpacked(trace["x"])) == len(unpacked(trace["y"])) == points
            assert drawn.data[0].mode in ("lines", "lines+markers", "markers")


def test_curves_are_coloured_by_algorithm_and_pruned_ones_dashed(quickstart: Study) -> None:
    record = read_study(quickstart.path)
    groups = grouped(record)
    assert (groups.key, groups.names) == ("algorithm", ("grpo", "cispo", "rloo", "gspo"))
    score = curves(record, groups)[1]
    looks = {(t["group"], t["line"]["dash"], t["best"]) for t in score.traces}
    assert looks == {
        (0, "solid", False),
        (1, "solid", True),
        (2, "dash", False),
        (3, "dot", False),
        (3, "solid", False),
    }
    assert score.traces[-1]["best"]  # drawn last, on top
    assert score.traces[-1]["trials"] == [[1, 41]]
    values = unpacked(score.traces[-1]["y"])
    assert values[:40] == pytest.approx(list(record.trials[1].score.values), rel=1e-6)
    assert math.isnan(values[40])


def test_what_a_cpu_cannot_say_is_not_shown(make_study: MakeStudy) -> None:
    for gpu, shown in ((None, False), ("H20", True)):
        study = make_study(f"study-{gpu}", gpu=gpu)
        study.trial({"algorithm": "grpo"})
        names = [f["data-figure"] for f in made(study).all("div") if "data-figure" in f]
        assert ("curve-mfu" in names) is shown
        assert ("curve-memory" in names) is shown


@pytest.mark.parametrize(
    ("points", "key", "count"),
    [
        ([{"algorithm": f"a{i}"} for i in range(12)], "algorithm", 8),
        ([{"rollout.n": n} for n in (8, 16, 8)], "rollout.n", 2),
        ([{"trainer.learning_rate": n} for n in (1e-3, 2e-3)], "trial", 2),
        ([{"trainer.learning_rate": n / 1e4} for n in range(1, 12)], "", 1),
        ([], "", 1),
    ],
)
def test_colours_stand_for_what_tells_trials_apart(
    make_study: MakeStudy, points: list[dict[str, Any]], key: str, count: int
) -> None:
    study = make_study(text="{}")
    for point in points:
        study.trial(point, steps=2)
    record = read_study(study.path)
    groups = grouped(record)
    assert groups.key == key
    assert len(groups.names) == count
    assert {groups.of(t) for t in record.trials} <= set(range(count))


def test_an_empty_study_and_one_without_a_file(make_study: MakeStudy, tmp_path: Path) -> None:
    parsed = made(make_study())
    assert "no trial yet" in parsed.text("header")
    assert not parsed.has("section", id="won")
    bare = tmp_path / "bare"
    bare.mkdir()
    text = write_page(StudyDirectory(bare)).read_text(encoding="utf-8")
    assert "study.yaml is missing" in Page(text).text("header")


def test_a_study_in_which_nothing_completed(make_study: MakeStudy) -> None:
    study = make_study()
    for cause in Cause:
        if cause is not Cause.COMPLETED:
            study.trial({"algorithm": "grpo"}, cause, steps=2, reason=f"because {cause}", lines=[f"line {cause}"])
    parsed = made(study)
    assert "nothing completed" in parsed.text("header")
    assert parsed.has("a", href="#failures")
    failures = parsed.text("section", id="failures")
    for cause in Cause:
        if cause not in (Cause.COMPLETED, Cause.PRUNED, Cause.RUNG, Cause.CANCELLED):
            assert f"line {cause}" in failures
    assert "line pruned" not in failures


def test_a_trial_that_got_over_a_failure_is_told_with_it(make_study: MakeStudy) -> None:
    study = make_study()
    study.trial({"algorithm": "grpo"}, earlier=[Cause.NODE_FAIL])
    failures = made(study).text("section", id="failures")
    assert "node fail" in failures
    assert "attempt 1 of 2" in failures
    assert "then completed" in failures


def test_a_refused_trial_was_never_submitted(make_study: MakeStudy) -> None:
    study = make_study()
    trial = study.trial({"algorithm": "grpo"}, status=Status.CREATED)
    trial.save(
        trial.state().but(status=Status.ENDED, cause=Cause.INFEASIBLE, reason="a = 1: is odd; try 2\nb = 3: no; 4")
    )
    failures = made(study).text("section", id="failures")
    assert "never submitted" in failures
    assert "a = 1: is odd; try 2\nb = 3: no; 4" in failures


def test_many_failures_of_a_kind_fold(make_study: MakeStudy) -> None:
    study = make_study()
    for _ in range(5):
        study.trial({"algorithm": "grpo"}, Cause.NCCL, steps=2)
    assert "2 more" in made(study).text("section", id="failures")


def test_text_from_others_is_only_ever_text(hostile: Study) -> None:
    parsed = made(hostile)
    assert {tag for tag, _ in parsed.elements} <= {
        "html", "head", "meta", "title", "style", "body", "a", "div", "header", "h1", "h2", "h3", "h4", "p", "span",
        "code", "time", "nav", "ul", "li", "main", "section", "article", "dl", "dt", "dd", "pre", "button", "details",
        "summary", "table", "caption", "thead", "tbody", "tr", "th", "td", "fieldset", "legend", "label", "input",
        "figure", "figcaption", "footer", "noscript", "script", "select", "option", "strong",
    }  # fmt: skip
    assert len(parsed.all("script")) == 3
    assert not parsed.all("img")
    text = page(read_study(hostile.path), "")
    assert "<img" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert HOSTILE.split("\x1b")[0] in parsed.text("h1")
    assert any("alert(1)" in point for point in parsed.data["points"])
    assert all("<" not in t for t in parsed.data["trials"])  # plotly reads tags
    for figure in parsed.data["figures"].values():
        assert "<" not in figure["layout"]["xaxis"]["title"]["text"]
    for name in ("trials", "failures", "pruning", "asked", "won"):
        assert "alert(1)" in parsed.text("section", id=name)


def test_halves_of_characters_do_not_stop_the_page(make_study: MakeStudy) -> None:
    study = make_study()
    study.trial({"algorithm": "a\ud800b"}, Cause.UNKNOWN, steps=1, reason="\udfff broken \x00")
    path = write_page(study.directory)
    assert "broken" in Page(path.read_text(encoding="utf-8")).text("section", id="failures")


def one_of_a_kind(paths: Iterable[Path]) -> list[Path]:
    """The first and the last file of each name: every trial has the same files."""
    by_name: dict[str, list[Path]] = {}
    for path in sorted(paths):
        by_name.setdefault(path.name, []).append(path)
    return [path for same in by_name.values() for path in dict.fromkeys((same[0], same[-1]))]


@pytest.mark.parametrize("keep", [0.0, 0.6])
def test_no_torn_file_stops_the_page(make_study: MakeStudy, keep: float) -> None:
    quickstart = fill_quickstart(make_study(total_steps=8))
    for path in one_of_a_kind(p for p in quickstart.path.rglob("*") if p.is_file()):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * keep)])
        assert text_of(quickstart).endswith("</html>\n")
        if path.stat().st_size > 300:
            path.write_bytes(whole)


@pytest.mark.parametrize("value", [None, "x", [1], {"a": {"b": 1}}, 1e400])
def test_no_file_with_other_content_stops_the_page(make_study: MakeStudy, value: Any) -> None:
    quickstart = fill_quickstart(make_study(total_steps=8))
    for path in one_of_a_kind(p for p in quickstart.path.rglob("*") if p.suffix in (".json", ".jsonl", ".yaml")):
        whole = path.read_bytes()
        path.write_text(json.dumps(value))
        assert text_of(quickstart).endswith("</html>\n")
        path.write_bytes(whole)
    for name in ("study", "space", "overrides", "command", "versions", "created"):
        quickstart.directory.config_file.write_text(json.dumps({"study": {"metric": "critic/score/mean"}, name: value}))
        assert text_of(quickstart).endswith("</html>\n")
    for setting in (
        "metric",
        "direction",
        "n_trials",
        "pruner",
        "reduce",
        "budget_gpu_hours",
        "hung_after_min",
        "name",
    ):
        quickstart.directory.config_file.write_text(json.dumps({"study": {setting: value}}))
        assert text_of(quickstart).endswith("</html>\n")


def test_json_cannot_end_its_script() -> None:
    dumped = script_json({"a": "</script><!--&\u2028"})
    assert not re.search(r"[<>&\u2028]", dumped)
    assert json.loads(dumped) == {"a": "</script><!--&\u2028"}


def test_elements_escape_and_leave_out() -> None:
    made = element("a", "<b>", 3, None, href='"x"', class_=None, hidden=True, data_v=0)
    assert made == '<a href="&quot;x&quot;" hidden data-v="0">&lt;b&gt;3</a>'


def test_csv_is_safe_for_a_spreadsheet() -> None:
    table = Table(
        "t", "T", [Column("name", is_head=True), Column("x", True)], [Row([Cell("=1+1"), Cell("-1.00", -1.0)])]
    )
    assert table.csv() == "name,x\n'=1+1,-1.0\n"


def test_the_command_repeats_the_best_trial(quickstart: Study) -> None:
    record = read_study(quickstart.path)
    assert record.best is not None
    assert run_again(record, record.best) == (
        "hysweep run trainer.total_steps=40 sweep=quickstart algorithm=cispo trainer.learning_rate=0.0012 "
        "study.n_trials=null study.name=quickstart-trial-1"
    )


def test_the_command_composes_to_the_same_trial_and_varies_nothing(make_study: MakeStudy) -> None:
    from hysweep.compose import Composer
    from hysweep.compose.composer import trial_yaml

    composer = Composer()
    asked = composer.compose(["sweep=quickstart", "trainer.seed=7", "study.name=mine", "rollout.n=4"])
    point = {"algorithm": "cispo", "trainer.learning_rate": 0.0012345678901234567}
    trial = composer.point(asked.fixed, asked.space, point)
    study = make_study("mine", overrides=list(asked.fixed), study={"enqueue": [{"algorithm": "grpo"}]})
    directory = study.directory.add_trial(0, "0123456789ab", trial_yaml(trial), point)
    record = read_study(study.path)
    arguments = shlex.split(run_again(record, record.trials[0]))
    assert arguments[:2] == ["hysweep", "run"]
    again = composer.compose(arguments[2:])
    assert not again.space
    assert again.trial_yaml() == directory.config_file.read_text()
    assert again.study.name == "mine-trial-0"
    assert again.study.enqueue == []


def test_the_command_is_of_one_training(make_study: MakeStudy, tmp_path: Path) -> None:
    """Whatever makes several of a point: seeds, confirmation, promotion."""
    from hysweep.compose import Composer

    settings = {"confirm": {"top": 2, "seeds": 2}, "promote": {"min_steps": 2, "reduction_factor": 4}}
    text = f"study: {json.dumps(settings)}\nspace: {{rollout.n: [2, 4], seeds: 3}}\n"
    (tmp_path / "mine.yaml").write_text(f"# @package _global_\n{text}")
    composer = Composer()
    asked = composer.compose([f"sweep={tmp_path / 'mine.yaml'}"])
    study = make_study("mine", overrides=[*asked.fixed, "study.confirm.top=2"], study=settings)
    for name, content in composer.snapshot().items():
        (study.directory.conf / name).parent.mkdir(parents=True, exist_ok=True)
        (study.directory.conf / name).write_text(content)
    study.trial({"rollout.n": 2, "trainer.seed": 3}, Cause.COMPLETED, steps=2)
    record = read_study(study.path)
    _, _, _, conf, *words = shlex.split(run_again(record, record.trials[0]))
    again = Composer([Path(conf)]).compose(words)
    assert (again.trial.rollout.n, again.trial.trainer.seed) == (2, 3)
    assert not again.space and not again.space.seeds
    assert again.study.confirm.top == 0 and again.study.promote.min_steps is None
    assert study_faults(again.study, again.space) == [], "and nothing of it is said in vain"


def test_a_sweep_that_is_not_shipped_is_composed_from_what_the_study_keeps(
    make_study: MakeStudy, tmp_path: Path
) -> None:
    from hysweep.compose import Composer

    (tmp_path / "quickstart.yaml").write_text(
        "# @package _global_\ntrainer: {total_steps: 4}\nspace: {rollout.n: [2, 4]}\n"
    )
    composer = Composer()
    asked = composer.compose([f"sweep={tmp_path / 'quickstart.yaml'}"])
    study = make_study("mine", overrides=list(asked.fixed))
    for name, text in composer.snapshot().items():
        (study.directory.conf / name).parent.mkdir(parents=True, exist_ok=True)
        (study.directory.conf / name).write_text(text)
    study.trial({"rollout.n": 2}, Cause.COMPLETED, steps=2)
    record = read_study(study.path)
    _, _, option, conf, *words = shlex.split(run_again(record, record.trials[0]))
    assert option == "--config-dir"
    again = Composer([Path(conf)]).compose(words)
    assert (again.trial.trainer.total_steps, again.trial.rollout.n) == (4, 2)


def test_the_command_is_right_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an option of one's own, a sweep by its path, a file and a place of studies, all relative."""
    from hysweep.compose import SHIPPED, Composer
    from hysweep.compose.composer import trial_yaml
    from hysweep.schema import trial_id
    from hysweep.study import begin

    home, elsewhere = tmp_path / "my home", tmp_path / "elsewhere"
    for place in (home / "mine" / "algorithm", elsewhere):
        place.mkdir(parents=True)
    own = (SHIPPED / "algorithm" / "grpo.yaml").read_text().replace("name: grpo", "name: own")
    (home / "mine" / "algorithm" / "own.yaml").write_text(own)
    (home / "reward.py").write_text("def compute_score(**row):\n    return 1.0\n")
    (home / "sweep.yaml").write_text("# @package _global_\nstudy: {n_trials: 1}\nspace: {rollout.n: [2, 4]}\n")
    monkeypatch.chdir(home)
    composer = Composer([Path("mine")])
    words = ["sweep=sweep.yaml", "algorithm=own", "reward.function_path=reward.py", "study.root=studies"]
    typed = ["hysweep", "run", "-m", "--config-dir", "mine", *words]
    begun = begin(composer.compose(words), composer, typed)
    trial = composer.point(begun.definition.fixed, begun.definition.space, {"rollout.n": 4})
    id = trial_id(trial, begun.definition.space.varied)
    begun.directory.add_trial(0, id, trial_yaml(trial), {"rollout.n": 4})
    record = read_study(Path("studies/sweep"))
    again = run_again(record, record.trials[0])
    started = re.search(r'id="command">([^<]*)<', page(record, ""))
    assert started is not None
    monkeypatch.chdir(elsewhere)
    for command in (again, unescape(started[1])):
        words = command.replace("hysweep run", f"{sys.executable} -m hysweep check --json")
        told = subprocess.run(words, shell=True, capture_output=True, text=True, timeout=120)
        assert told.returncode == 0, told
        assert id in [point["id"] for point in json.loads(told.stdout)]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such directory"):
        write_page(StudyDirectory(tmp_path / "nowhere"))


def test_without_plotly_the_cure_is_named(quickstart: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(BadInput, match=r"pip install 'hysweep\[report\]'"):
        write_page(quickstart.directory)


def test_a_page_can_be_made_again_while_the_sweep_goes_on(quickstart: Study) -> None:
    first = write_page(quickstart.directory).read_text(encoding="utf-8")
    quickstart.trial({"algorithm": "grpo", "trainer.learning_rate": 5e-3}, best=0.95)
    second = write_page(quickstart.directory).read_text(encoding="utf-8")
    assert "Trial 6" not in first
    assert "Trial 6" in second


def test_thinning_keeps_the_ends_the_extremes_and_the_gaps() -> None:
    values = [math.sin(i / 200) for i in range(20_000)]
    values[777], values[12_345], values[15_000] = 9.0, -9.0, math.nan
    curve = Curve(array("q", range(20_000)), array("d", values))
    thin = thinned(curve, MOST_POINTS)
    assert len(thin) <= MOST_POINTS + 1
    kept = dict(thin)
    assert kept[777] == 9.0
    assert kept[12_345] == -9.0
    assert math.isnan(kept[15_000])
    assert (thin.steps[0], thin.steps[-1]) == (0, 19_999)
    assert list(thin.steps) == sorted(set(thin.steps))
    assert all(values[s] == v or math.isnan(v) for s, v in thin)
    assert thinned(thin, 1000) is thin


def test_a_curve_that_is_no_number_at_all_is_thinned_too() -> None:
    curve = Curve(array("q", range(3000)), array("d", [math.nan] * 3000))
    assert len(thinned(curve, 100)) <= 100


def test_numbers_that_do_not_fit_become_gaps() -> None:
    assert unpacked(packed([1.5, 1e300, -math.inf], "f4"))[0] == 1.5
    assert all(math.isnan(v) for v in unpacked(packed([1e300, -math.inf], "f4")))
    assert unpacked(packed([1, 65535], "u2")) == [1, 65535]


def test_pages_of_large_studies_stay_small(make_study: MakeStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget of points holds for any number of series: checked with a tenth of both."""
    from hysweep.report import figures

    monkeypatch.setattr(figures, "_POINTS", 26_000)
    study = make_study(total_steps=1000)
    for i in range(20):
        study.trial({"algorithm": "grpo", "trainer.learning_rate": (i + 1) / 1e4})
    record = read_study(study.path, metrics=figures.metric_names())
    shown = curves(record, grouped(record))
    points = sum(count for f in shown for t in f.traces for _, count in t["trials"])
    assert 20_000 < points < 30_000
    assert figures.is_thinned(record, shown)


def unpacked(numbers: dict[str, str]) -> list[float]:
    code = {"u2": "H", "f4": "f", "f8": "d"}[numbers["dtype"]]
    return list(array(code, base64.b64decode(numbers["bdata"])))


def table_rows(parsed: Page, name: str) -> list[list[str]]:
    """The rows of a table as its CSV link holds them."""
    links = [a for a in parsed.all("a") if a.get("download") == f"{name}.csv"]
    prefix, _, content = (links[0]["href"] or "").partition(",")
    assert prefix == "data:text/csv;charset=utf-8"
    return list(csv.reader(io.StringIO(unquote(content))))


def table_head(parsed: Page, name: str) -> list[str]:
    return table_rows(parsed, name)[0]


def test_words_and_lines_stand_out_in_light_and_in_dark() -> None:
    """As WCAG asks: 4.5 for words, 3 for lines, on every ground that they stand on."""

    def light_of(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    css = (resources.files("hysweep.report") / "assets" / "page.css").read_text()
    roots = re.findall(r":root \{(.*?)\n *\}", css, re.S)
    schemes = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", root)) for root in roots]
    assert len(schemes) == 2 and set(schemes[0]) == set(schemes[1])
    for colours in schemes:
        for name, colour in colours.items():
            if name in ("page", "panel", "mark", "code", "line", "strong"):
                continue
            for ground in ("page", "panel", "mark", "code"):
                low, high = sorted((light_of(colour), light_of(colours[ground])))
                assert (high + 0.05) / (low + 0.05) >= (3 if re.fullmatch(r"g\d", name) else 4.5), (name, ground)
