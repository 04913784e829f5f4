"""A study as tables for other programs: trials, metrics and the ledger, as CSV, Parquet or JSON.

`COLUMNS` is the data dictionary: docs/export.md shows it, and a test compares. pyarrow is imported for Parquet alone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hysweep.report.records import StudyRecord, TrialRecord
from hysweep.report.words import csv_line
from hysweep.schema import BadInput, Problem

FORMATS = ("csv", "parquet", "json")
Row = Mapping[str, Any]
Tell = Callable[[int, int], None]  # trials done, of how many


@dataclass(frozen=True, slots=True)
class Column:
    """kind: int, float or text."""

    name: str
    kind: str
    doc: str


# Of each table, the columns that every study has. `trials` has one more for each key that varies (point.KEY) and for
# each of several objectives (objective.METRIC), `metrics` one for each metric that was logged.
COLUMNS: dict[str, tuple[Column, ...]] = {
    "trials": (
        Column("trial", "int", "number, in the order of asking"),
        Column("id", "text", "hash of what it learns"),
        Column("state", "text", "running, waiting, completed, pruned, failed, infeasible or cancelled"),
        Column("cause", "text", "why it ended; empty while it is open"),
        Column("reason", "text", "the same in words, or what it waits for"),
        Column("value", "float", "the objective, the first of several; of what did not complete, how far it had come"),
        Column("rank", "int", "among the completed trials, 1 the best"),
        Column("step", "int", "the last step that was logged"),
        Column("total_steps", "int", "steps that it was to take"),
        Column("attempts", "int", "how many jobs it took"),
        Column("started", "float", "when its first attempt began, unix seconds"),
        Column("ended", "float", "when its last attempt ended, unix seconds"),
        Column("seconds", "float", "that its attempts ran"),
        Column("gpu_hours", "float", "that it used; with no GPU, hours of worker slots"),
        Column("saved_gpu_hours", "float", "of a pruned trial, what the steps left out would have cost"),
        Column("nodes", "text", "where its last attempt ran"),
    ),
    "metrics": (
        Column("trial", "int", "number"),
        Column("id", "text", "of the trial"),
        Column("attempt", "int", "whose value it is: where attempts overlap, the last one's"),
        Column("step", "int", "training step"),
    ),
    "ledger": (
        Column("trial", "int", "number"),
        Column("attempt", "int", "number, from 1"),
        Column("cause", "text", "why it ended"),
        Column("gpus", "int", "that it held; with no GPU, worker slots"),
        Column("gpu_hours", "float", "that it used"),
        Column("requested", "float", "GPU-hours: its GPUs for all of its time limit"),
        Column("queued_h", "float", "hours in the queue, with no GPU"),
        Column("boot", "float", "GPU-hours until its first step"),
        Column("productive", "float", "GPU-hours of steps that were kept"),
        Column("wasted", "float", "GPU-hours of all else"),
    ),
}  # fmt: skip


def export(record: StudyRecord, format: str, target: Path, tell: Tell = lambda done, of: None) -> list[Path]:
    """Write trials, metrics and ledger of a study into the directory `target`, each file as one step.

    Raises BadInput for Parquet without pyarrow.
    """
    write = _parquet_writer() if format == "parquet" else {"csv": _write_csv, "json": _write_json}[format]
    target.mkdir(parents=True, exist_ok=True)
    names = metric_names(record)
    metric_columns = (*COLUMNS["metrics"], *(Column(n, "float", "as the trainer logged it") for n in names))
    tables: dict[str, tuple[Sequence[Column], Iterable[Sequence[Row]]]] = {
        "trials": (trial_columns(record), [trial_rows(record)]),
        "metrics": (metric_columns, metric_rows(record, tell)),
        "ledger": (COLUMNS["ledger"], [[entry.as_dict() for entry in record.ledger]]),
    }
    files = []
    for name, (columns, batches) in tables.items():
        file = target / f"{name}.{format}"
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            write(draft, columns, batches)
            os.replace(draft, file)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
        files.append(file)
    return files


def trial_columns(record: StudyRecord) -> tuple[Column, ...]:
    points = [Column(f"point.{key}", _kind(t.point.get(key) for t in record.trials), key) for key in record.keys]
    several = record.goals if len(record.goals) > 1 else ()
    return (
        *COLUMNS["trials"],
        *points,
        *(Column(f"objective.{goal.metric}", "float", goal.metric) for goal in several),
    )


def trial_rows(record: StudyRecord) -> list[Row]:
    ranks = {t.number: i for i, t in enumerate((t for t in record.ranked if t.standing == "completed"), start=1)}
    return [_trial_row(record, trial, ranks.get(trial.number)) for trial in record.trials]


def _trial_row(record: StudyRecord, trial: TrialRecord, rank: int | None) -> Row:
    starts = [a.started for a in trial.attempts if a.started]
    ends = [a.ended for a in trial.attempts if a.ended]
    row: dict[str, Any] = {
        "trial": trial.number,
        "id": trial.id,
        "state": str(trial.standing),
        "cause": str(trial.state.cause) if trial.state.cause else None,
        "reason": trial.reason or None,
        "value": trial.latest,
        "rank": rank,
        "step": trial.last_step,
        "total_steps": trial.total_steps,
        "attempts": len(trial.attempts),
        "started": min(starts, default=None),
        "ended": max(ends, default=None) if trial.state.is_final else None,
        "seconds": trial.seconds,
        "gpu_hours": trial.gpu_hours,
        "saved_gpu_hours": trial.saved_gpu_hours,
        "nodes": trial.nodes or None,
    }
    row |= {f"point.{key}": trial.point.get(key) for key in record.keys}
    if len(record.goals) > 1:
        row |= {f"objective.{g.metric}": v for g, v in zip(record.goals, trial.values, strict=False)}
    return row


def metric_names(record: StudyRecord) -> list[str]:
    """Every metric that some trial logged."""
    return sorted({name for t in record.trials for data in t.directory.metrics().values() for name in data})


def metric_rows(record: StudyRecord, tell: Tell = lambda done, of: None) -> Iterator[list[Row]]:
    """A row for each step of each trial, trial by trial."""
    for done, trial in enumerate(record.trials, start=1):
        owner: dict[int, int] = {}
        for attempt in trial.directory.attempts():
            owner |= dict.fromkeys((step for step, _ in attempt.metrics()), attempt.number)
        about = {"trial": trial.number, "id": trial.id}
        yield [
            {**data, **about, "attempt": owner.get(step), "step": step}
            for step, data in trial.directory.metrics().items()
        ]
        tell(done, len(record.trials))


def _kind(values: Iterable[Any]) -> str:
    """What fits all values that there are. A truth value is text: true, false."""
    known = [v for v in values if v is not None]
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in known):
        return "text"
    return "int" if known and all(isinstance(v, int) for v in known) else "float"


def _plain(value: Any, kind: str) -> Any:
    """A value as its column has it; what a column of numbers cannot hold is missing."""
    if value is None:
        return None
    if kind == "text":
        return value if isinstance(value, str) else json.dumps(value, default=str)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int) and abs(value) >= 2**63:
        return None
    return int(value) if kind == "int" else float(value)


# ---- formats ----------------------------------------------------------------------------------------------------


def _write_csv(file: Path, columns: Sequence[Column], batches: Iterable[Sequence[Row]]) -> None:
    """UTF-8, a head line; what is missing is empty, and what is no number is nan, inf or -inf."""
    with open(file, "w", encoding="utf-8", errors="replace", newline="") as out:
        out.write(csv_line(c.name for c in columns))
        for rows in batches:
            out.writelines(csv_line(_plain(row.get(c.name), c.kind) for c in columns) for row in rows)


def _write_json(file: Path, columns: Sequence[Column], batches: Iterable[Sequence[Row]]) -> None:
    """A list of objects, one a line; what is missing, or no number, is null."""

    def value(of: Any, kind: str) -> Any:
        plain = _plain(of, kind)
        return None if isinstance(plain, float) and not math.isfinite(plain) else plain

    with open(file, "w", encoding="utf-8") as out:
        out.write("[")
        separator = "\n"
        for rows in batches:
            for row in rows:
                out.write(separator + json.dumps({c.name: value(row.get(c.name), c.kind) for c in columns}))
                separator = ",\n"
        out.write("\n]\n")


def _parquet_writer() -> Callable[[Path, Sequence[Column], Iterable[Sequence[Row]]], None]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as e:
        cure = "pip install 'hysweep[report]', or take --format csv"
        raise BadInput(Problem("--format", "parquet", "needs pyarrow, which is not installed", cure)) from e

    def write(file: Path, columns: Sequence[Column], batches: Iterable[Sequence[Row]]) -> None:
        """One row group a trial; what is missing is null, NaN stays NaN."""
        types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
        schema = pa.schema([pa.field(_legible(c.name), types[c.kind], metadata={"doc": c.doc}) for c in columns])
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for rows in batches:
                arrays = [
                    pa.array([_legible(_plain(row.get(c.name), c.kind)) for row in rows], types[c.kind])
                    for c in columns
                ]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

    return write


def _legible(value: Any) -> Any:
    """Text without halves of characters, which UTF-8 has none of."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def dictionary() -> str:
    """The columns of each table, as docs/export.md shows them."""
    parts = []
    for name, columns in COLUMNS.items():
        rows = "\n".join(f"| `{c.name}` | {c.kind} | {c.doc} |" for c in columns)
        parts.append(f"### {name}\n\n| column | type | meaning |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)
