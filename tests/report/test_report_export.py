"""Tables for other programs: every format says the same, and nothing is lost on the way."""

from __future__ import annotations

import csv
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conftest import METRIC, START, MakeStudy, Study
from hysweep.report import read_study
from hysweep.report.export import COLUMNS, dictionary, export
from hysweep.schema import BadInput
from hysweep.track import Cause

ROOT = Path(__file__).parents[2]


def read(files: list[Path], format: str) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for file in files:
        if format == "csv":
            with open(file, newline="") as text:
                rows: list[dict[str, Any]] = [{k: v or None for k, v in row.items()} for row in csv.DictReader(text)]
        elif format == "json":
            rows = json.loads(file.read_text())
        else:
            pq = pytest.importorskip("pyarrow.parquet")
            rows = pq.read_table(file).to_pylist()
        found[file.stem] = rows
    return found


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_every_format_has_the_study(quickstart: Study, tmp_path: Path, format: str) -> None:
    record = read_study(quickstart.directory, now=START + 900)
    found = read(export(record, format, tmp_path / "out"), format)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [f"{n}.{format}" for n in sorted(COLUMNS)]
    for name, columns in COLUMNS.items():
        assert list(found[name][0])[: len(columns)] == [c.name for c in columns]
    best = found["trials"][1]
    assert int(best["rank"]) == 1 and best["state"] == "completed" and best["point.algorithm"] == "cispo"
    assert float(best["value"]) == record.trials[1].value and float(best["point.trainer.learning_rate"]) == 1.2e-3
    steps = [row for row in found["metrics"] if int(row["trial"]) == 1]
    assert len(steps) == 41 and {int(row["attempt"]) for row in steps} == {1}
    assert float(steps[40]["critic/score/mean"]) == record.trials[1].score.last
    assert steps[0]["critic/score/mean"] is None  # a validation before the first step
    assert math.isclose(sum(float(r["gpu_hours"]) for r in found["ledger"]), sum(e.gpu_hours for e in record.ledger))


def test_a_name_of_a_file_is_no_place_for_three_tables(quickstart: Study, tmp_path: Path) -> None:
    from hysweep.cli.export import export as verb

    with pytest.raises(BadInput, match=r"name a directory for them, as -o .*/x --format csv"):
        verb(quickstart.path, "csv", tmp_path / "x.csv", as_json=False)
    assert not (tmp_path / "x.csv").exists()
    (tmp_path / "d.json").mkdir()
    verb(quickstart.path, "csv", tmp_path / "d.json", as_json=False)
    assert len(list((tmp_path / "d.json").iterdir())) == 3


def test_of_overlapping_attempts_each_step_is_there_once(make_study: MakeStudy, tmp_path: Path) -> None:
    study = make_study()
    study.trial({"algorithm": "grpo"}, earlier=[Cause.PREEMPTED])
    (found,) = [read(export(read_study(study.directory), "json", tmp_path), "json")["metrics"]]
    assert [row["step"] for row in found] == list(range(41))
    assert {row["attempt"] for row in found} == {2}  # the second began again from the start


def test_text_and_odd_numbers_come_through(hostile: Study, tmp_path: Path) -> None:
    trial = hostile.directory.trials()[0]
    line = {"step": 41, "data": {"a": math.inf, "b": None, "c": True, "d": "text", "e": -(10**400), "half \ud800": 1}}
    with open(trial.attempt(1).metrics_file, "a") as file:
        file.write(json.dumps(line) + "\n")
    record = read_study(hostile.directory, now=START + 900)
    by_format = {f: read(export(record, f, tmp_path / f), f) for f in ("csv", "json")}
    for found in by_format.values():
        assert found["trials"][2]["reason"] == record.trials[2].reason
    last = [row for row in by_format["csv"]["metrics"] if row["trial"] == "0"][-1]
    assert last["a"] == "inf" and last["b"] == "nan" and last.get("c") is None and last.get("d") is None
    last = [row for row in by_format["json"]["metrics"] if row["trial"] == 0][-1]
    assert last["a"] is None and last["b"] is None
    pytest.importorskip("pyarrow")
    last = [r for r in read(export(record, "parquet", tmp_path / "p"), "parquet")["metrics"] if r["trial"] == 0][-1]
    assert last["e"] == -math.inf and last["half ?"] == 1


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_text_is_a_formula_to_a_spreadsheet(make_study: MakeStudy, tmp_path: Path, start: str) -> None:
    formula = f"{start}cmd|' /C calc'!A0"
    study = make_study(space={formula: "choice(a, b)", "algorithm": "choice(a, b)"})
    rows = [{"step": 1, "data": {formula: -1.0, METRIC: -0.5}}]
    study.trial({formula: formula, "algorithm": formula}, Cause.UNKNOWN, reason=formula, rows=rows)
    files = export(read_study(study.path), "csv", tmp_path / "out")
    cells = [cell for file in files for row in csv.reader(file.open(newline="")) for cell in row]
    assert not [c for c in cells if c.startswith(start) and not is_number(c)]
    assert f"'{formula}" in cells and "-0.5" in cells
    as_json = export(read_study(study.path), "json", tmp_path / "out")
    assert json.dumps(formula) in as_json[0].read_text(), "for programs it is what it was"


def is_number(cell: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(cell))
    return False


def test_an_empty_study_has_empty_tables(make_study: MakeStudy, tmp_path: Path) -> None:
    for format in ("csv", "json", "parquet"):
        found = read(export(read_study(make_study(format).directory), format, tmp_path / f"{format}.out"), format)
        assert found == {"trials": [], "metrics": [], "ledger": []}


def test_the_dictionary_in_the_docs_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "export.md").read_text().endswith(f"-->\n{dictionary()}")
