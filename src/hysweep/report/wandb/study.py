"""The study as a run of W&B's own, and a report there: leaderboard, ledger, importances, the page, curves by group."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hysweep.compose.composer import MISCOMPOSED, load_trial
from hysweep.report import words
from hysweep.report.export import trial_columns, trial_rows
from hysweep.report.figures import METRICS
from hysweep.report.records import StudyRecord
from hysweep.report.searching import importances_of
from hysweep.report.wandb.sync import NOTE, first_line
from hysweep.schema import BadInput, Problem, Tracking, leaves
from hysweep.study.tracking import TrackedRun, study_run
from hysweep.track import read_record, write_json, write_text

STEP = "training/global_step"  # what verl logs with every step: the axis that survives a resume
REPORT_FILE = "wandb-report.json"


def tracking_of(record: StudyRecord) -> Tracking:
    """How the trials of a study are tracked. Raises BadInput where it is not by W&B."""
    for trial in record.trials:
        try:
            tracking = load_trial(trial.directory.config_file.read_text(encoding="utf-8")).tracking
        except (OSError, BadInput, *MISCOMPOSED):
            continue
        if "wandb" in tracking.loggers:
            return tracking
    cure = "run it with tracking=wandb, or tracking=wandb_offline"
    raise BadInput(Problem("tracking.loggers", record.name, "no trial of this study is tracked by W&B", cure))


def send_study(record: StudyRecord, page: Path | None) -> str:
    """Write the study's own run, or go on with it, and say where it is. `page`: the HTML report, as an artifact."""
    import wandb

    tracking = tracking_of(record)
    run_of = study_run(record.name, record.created or 0.0, tracking.tags)
    with tempfile.TemporaryDirectory(prefix="hysweep-wandb-") as scratch:
        run = wandb.init(
            project=tracking.project,
            entity=tracking.entity,
            id=run_of.id,
            name=run_of.name,
            group=run_of.group,
            job_type=run_of.job_type,
            tags=list(run_of.tags),
            notes=run_of.notes,
            resume="allow",
            dir=scratch,
            mode="online",
            config=_settings(record),
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )
        with run:
            run.log({name: wandb.Table(columns=c, data=rows) for name, (c, rows) in tables(record).items()})
            run.summary.update(_summary(record))
            if page is not None:
                artifact = wandb.Artifact(f"report-{run_of.id}", type="report", description=f"report of {record.name}")
                artifact.add_file(str(page), name="report.html")
                run.log_artifact(artifact)
        return f"{run.entity}/{run.project}/{run.id}"


def tables(record: StudyRecord) -> dict[str, tuple[list[str], list[list[Any]]]]:
    """Leaderboard, the best first; ledger; importances where there are some."""
    columns = [c.name for c in trial_columns(record)]
    rows = {row["trial"]: row for row in trial_rows(record)}
    found: dict[str, tuple[list[str], list[list[Any]]]] = {
        "leaderboard": (columns, [[_cell(rows[t.number].get(c)) for c in columns] for t in record.ranked])
    }
    if record.ledger:
        entries = [entry.as_dict() for entry in record.ledger]
        found["ledger"] = (list(entries[0]), [[_cell(v) for v in entry.values()] for entry in entries])
    if (ranked := importances_of(record)) and ranked.shares:
        shares = [[key, share, ranked.evaluator, ranked.trials] for key, share in ranked.shares.items()]
        found["importances"] = (["key", "share", "evaluator", "trials"], shares)
    return found


def _cell(value: Any) -> Any:
    """What a table of W&B takes in a column of one type."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


def _settings(record: StudyRecord) -> dict[str, Any]:
    return {
        "study": dict(record.settings),
        "space": dict(record.space),
        "overrides": list(record.overrides),
        "command": record.command,
        "versions": dict(record.versions),
    }


def _summary(record: StudyRecord) -> dict[str, Any]:
    best = record.best
    about: dict[str, Any] = {f"trials/{standing}": n for standing, n in record.counts.items()}
    about |= {"gpu_hours": record.gpu_hours, "saved_gpu_hours": record.saved_gpu_hours}
    if best is not None:
        about |= {"best/value": record.best_value, "best/trial": best.number, "best/point": record.label(best)}
    return about


# ---- the report -------------------------------------------------------------------------------------------------


def write_report(record: StudyRecord) -> Path:
    """The report as JSON, for where W&B cannot be reached: what `save_report` would send. Returns its path."""
    report = _report(record, tracking_of(record), entity="", is_bound=False)
    path = record.directory.path / REPORT_FILE
    write_text(path, report._to_model().spec.model_dump_json(by_alias=True, exclude_none=True, indent=1) + "\n")
    return path


def save_report(record: StudyRecord) -> str:
    """Save the report at W&B, over the one that was saved before; its URL."""
    import wandb

    tracking = tracking_of(record)
    note = read_record(record.directory.path / NOTE) or {}
    report = _report(record, tracking, tracking.entity or str(wandb.Api().default_entity), is_bound=True)
    report.id = str(note.get("report") or "")
    try:
        report.save()
    except Exception as e:  # its client raises whatever it meets
        cure = f"see that {report.project} is there (`hysweep wandb sync` makes it)"
        cure += f", or that the report still is: else remove {NOTE}" if report.id else ""
        raise BadInput(Problem("report", report.id or report.title, f"was not taken: {first_line(e)}", cure)) from e
    write_json(record.directory.path / NOTE, note | {"report": report.id, "url": report.url})
    return str(report.url)


def _report(record: StudyRecord, tracking: Tracking, entity: str, is_bound: bool) -> Any:
    """Intro, leaderboard, curves by group, parallel coordinates, importances, failures.

    is_bound  the sets of runs name their project, which W&B is asked for
    """
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError as e:
        cure = "pip install 'hysweep[wandb]'"
        raise BadInput(Problem("wandb-workspaces", "not installed", "it builds the report", cure)) from e
    run_of = study_run(record.name, record.created or 0.0, tracking.tags)

    def runs(name: str, *more: str, groupby: Sequence[str] = ()) -> Any:
        filters = " and ".join([f"Group == {_quoted(run_of.group)}", *more])
        where = {"entity": entity, "project": tracking.project} if is_bound else {}
        best = wr.OrderBy(wr.SummaryMetric(record.metric), ascending=not record.is_maximised)
        return wr.Runset(name=name, filters=filters, groupby=list(groupby), order=[best], **where)

    trials = "JobType == 'trial'"
    group = _group_key(record)
    lines = [
        wr.LinePlot(title=title, x=wr.Metric(STEP), y=[wr.Metric(name)], title_x="training step", log_y=is_log or None)
        for title, name, is_log in _curves(record)
    ]
    grouped = [f"config.{group}"] if group else []
    curves = wr.PanelGrid(runsets=[runs("by group" if group else "trials", trials, groupby=grouped)], panels=lines)
    columns = [wr.ParallelCoordinatesPlotColumn(wr.Config(key), display_name=name, log=is_log or None)
               for name, key, is_log in _coordinates(record)]  # fmt: skip
    columns.append(wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(record.metric)))
    search = [
        wr.ParallelCoordinatesPlot(columns=columns, layout=wr.Layout(w=24, h=10)),
        wr.ParameterImportancePlot(with_respect_to=record.metric, layout=wr.Layout(w=24, h=10)),
    ]
    board = wr.WeavePanelSummaryTable(table_name="leaderboard", layout=wr.Layout(w=24, h=12))
    return wr.Report(
        project=tracking.project,
        entity=entity,
        title=words.clean(record.name, 120),
        description=words.clean(f"hysweep study {record.name}", 200),
        width="fluid",
        blocks=[
            wr.MarkdownBlock(_intro(record, run_of)),
            wr.H1("Leaderboard"),
            wr.PanelGrid(runsets=[runs("study", "JobType == 'study'")], panels=[board]),
            wr.H1("Curves"),
            curves,
            wr.H1("Search"),
            wr.PanelGrid(runsets=[runs("trials", trials)], panels=search),
            wr.H1("Failures"),
            wr.MarkdownBlock(_failures(record)),
        ],
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _intro(record: StudyRecord, run: TrackedRun) -> str:
    best = record.best
    won = "No trial has completed." if best is None else (
        f"**Trial {best.number}** ({_literal(record.label(best))}) is the best so far: "
        f"{words.mean(record.mean_of_best)}."
    )  # fmt: skip
    counts = ", ".join(f"{n} {standing}" for standing, n in record.counts.items()) or "none yet"
    goals = ", ".join(
        f"{'minimise' if g.direction == 'minimize' else 'maximise'} {_literal(g.metric)}" for g in record.goals
    )
    spent = f"{words.hours(record.gpu_hours)} {record.hour_unit}"
    return f"{goals}. {won}\n\nTrials: {counts}. Spent: {spent}. Runs: group {_literal(run.group)}."


def _failures(record: StudyRecord) -> str:
    failed = [t for t in record.trials if t.standing in ("failed", "infeasible")]
    if not failed:
        return "None."
    rows = [f"| {t.number} | {t.word} | {_literal(words.clean(t.reason, 200))} |" for t in failed]
    return "\n".join(["| trial | cause | reason |", "|---|---|---|", *rows])


def _literal(text: str) -> str:
    """Text of others in Markdown: as code, so that nothing in it is a link, a table or markup."""
    cleaned = words.clean(text).replace("`", "'").replace("|", "¦")
    return f"`{cleaned}`" if cleaned else words.NOTHING


def _curves(record: StudyRecord) -> list[tuple[str, str, bool]]:
    found = {record.metric: ("Objective", record.metric, False)} if "*" not in record.metric else {}
    for metric in METRICS:
        name = next((n for n in metric.names if any(len(t.curve(n)) for t in record.trials)), None)
        if name and not (metric.needs_gpu and not record.has_gpu):
            found.setdefault(name, (metric.title, name, metric.spans_decades))
    return list(found.values())


def _coordinates(record: StudyRecord) -> list[tuple[str, str, bool]]:
    """Name, key in the trainer's configuration, whether by its logarithm: of each key that varies."""
    known = _trainer_keys(record)
    named = words.short_keys(record.keys)
    return [(named[k], key, words.is_scientific(k, record.space)) for k in record.keys for key in known.get(k, ())[:1]]


def _group_key(record: StudyRecord) -> str | None:
    """What tells groups of curves apart: the first choice that varies, as the trainer's configuration has it."""
    known = _trainer_keys(record)
    for key in record.keys:
        is_choice = any(isinstance(t.point.get(key), str) for t in record.trials)
        if is_choice and known.get(key):
            return known[key][0]
    return None


def _trainer_keys(record: StudyRecord) -> Mapping[str, Sequence[str]]:
    for trial in record.trials:
        try:
            config = load_trial(trial.directory.config_file.read_text(encoding="utf-8"))
        except (OSError, BadInput, *MISCOMPOSED):
            continue
        return {leaf.path: leaf.knob.keys for leaf in leaves(config)} | {"algorithm": ("algorithm.adv_estimator",)}
    return {}
