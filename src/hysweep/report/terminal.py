"""A study in a terminal: the leaderboard, the live view, and plain lines where nothing can be redrawn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Group, JustifyMethod, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hysweep.report import words
from hysweep.report.ranking import Ranking
from hysweep.report.records import Standing, StudyRecord, TrialRecord
from hysweep.track import Phase

BEST = "★"
_MOST_REASONS = 3  # why trials wait: more lines would hide the trials

_STYLES = {
    Standing.RUNNING: "cyan",
    Standing.WAITING: "dim",
    Standing.COMPLETED: "green",
    Standing.PRUNED: "dim",
    Standing.FAILED: "red",
    Standing.INFEASIBLE: "yellow",
    Standing.CANCELLED: "dim",
}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of text that knows its width, so that what does not fit is left out rather than broken.

    spare   the columns that go first where the terminal is narrow: 1 before 2; 0 stays
    is_point  one coordinate of the points
    """

    head: str
    cells: Sequence[str]
    is_number: bool = False
    spare: int = 0
    is_point: bool = False

    @property
    def width(self) -> int:
        return max(map(cell_len, [self.head, *self.cells]))


def leaderboard(record: StudyRecord, *, width: int = 80) -> Table:
    """All trials, the best first: a table that fits into `width` columns."""
    trials = record.ranked
    columns, gap = _fitted(_columns(record, trials), width)
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.head,
            justify="right" if column.is_number else "left",
            no_wrap=not column.is_point,
            overflow="fold",
        )
    best = _starred(record)
    for i, trial in enumerate(trials):
        style = "bold green" if trial.number in best else "dim" if trial.standing is Standing.PRUNED else ""
        cells = [Text(column.cells[i]) for column in columns]
        for column, cell in zip(columns, cells, strict=True):
            if column.head == "state" and trial.number not in best:
                cell.stylize(_STYLES[trial.standing])
        table.add_row(*cells, style=style)
    return table


def ranking_table(of: Ranking, record: StudyRecord) -> Table:
    """Each layout with its predicted and its measured speed, those in brackets relative to the best, and both ranks."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("trial", justify="right")
    table.add_column("layout", overflow="fold")
    for head in ("predicted s per step", words.clean(record.metric, 20), "ranks"):
        table.add_column(head, justify="right")
    seconds = words.aligned([layout.seconds for layout in of.layouts])
    values = words.aligned([layout.measured for layout in of.layouts])
    for layout, predicted, measured in zip(of.layouts, seconds, values, strict=True):
        is_measured = layout.measured is not None
        table.add_row(
            str(layout.trial.number),
            Text(record.label(layout.trial)),
            f"{predicted} ({words.share(layout.seconds_share)})",
            f"{measured} ({words.share(layout.measured_share)})" if is_measured else Text(layout.trial.word),
            f"{layout.predicted_rank} → {layout.measured_rank}" if is_measured else words.NOTHING,
            style="bold green" if layout.trial is record.best else "",
        )
    return table


def live_table(
    record: StudyRecord,
    *,
    width: int = 80,
    height: int = 24,
    events: int = 4,
    trials: Sequence[TrialRecord] | None = None,
    selected: int | None = None,
    notes: Sequence[Text] = (),
) -> RenderableType:
    """The running view: how far each trial is, counts by state, the best so far and the last decisions.

    At most `height` lines.

    trials    the order of the table; else those under way first, then those that ended last
    selected  the number of a trial that is marked and told in full
    notes     lines below everything
    """
    order = by_activity(record) if trials is None else trials
    chosen = next((t for t in order if t.number == selected), None)
    head = [_title(record, width), _counts(record)]
    foot = [*_waiting_lines(record), _best_line(record), *_spending_line(record), *_event_lines(record, events)]
    if chosen is not None:
        foot = [_told(record, chosen), *foot[: max(0, height - len(head) - len(notes) - 8)]]
    foot += notes
    room = max(1, height - len(head) - len(foot) - 2)
    if len(order) > room:
        room = max(1, room - 1)
    first = 0 if chosen is None else max(0, min(order.index(chosen) - room // 2, len(order) - room))
    shown = order[first : first + room]
    body = _progress_table(record, shown, width, selected)
    left_out = len(record.trials) - len(shown)
    more = [Text(f"… and {left_out} more", style="dim")] if left_out else []
    lines: list[Text | Table] = [*head, body, *more, *foot]
    for line in lines:
        if isinstance(line, Text):
            line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def by_activity(record: StudyRecord) -> list[TrialRecord]:
    """Trials that run, those that wait, then those that ended last."""
    live = [t for t in record.trials if t.is_live]
    ended = sorted((t for t in record.trials if not t.is_live), key=lambda t: t.state.updated, reverse=True)
    live.sort(key=lambda t: (t.standing is not Standing.RUNNING, t.number))
    return live + ended


def change_lines(before: StudyRecord | None, after: StudyRecord) -> list[str]:
    """What became of the trials between two readings of a study, one plain line for each change of state."""
    earlier = {t.number: t for t in before.trials} if before else {}
    lines = [change_line(earlier.get(trial.number), trial, after) for trial in after.trials]
    return [line for line in lines if line]


def change_line(before: TrialRecord | None, after: TrialRecord, study: StudyRecord) -> str | None:
    """``trial 3 3fa9c1 cispo lr=1.2e-3: running -> pruned at step 12 (...)``; None where nothing changed, be it only
    what it waits for."""
    is_same = before and (before.word, before.state.attempt) == (after.word, after.state.attempt)
    waits_alike = after.standing is not Standing.WAITING or (before and before.state.reason == after.state.reason)
    if is_same and (waits_alike or not after.state.reason):
        return None
    name = " ".join(filter(None, [f"trial {after.number} {after.short_id}", study.label(after)]))
    came_from = f"{before.word} -> " if before and not is_same else ""
    return words.clean(f"{name}: {came_from}{after.word}{_circumstances(before, after, study)}", 400)


def _circumstances(before: TrialRecord | None, after: TrialRecord, study: StudyRecord) -> str:
    if not after.state.is_final:
        is_next = after.state.attempt > 1 and before and before.state.attempt != after.state.attempt
        attempt = f", attempt {after.state.attempt}" if is_next else ""
        return attempt + (f" ({after.state.reason})" if after.state.reason and not is_next else "")
    last = after.attempts[-1] if after.attempts else None
    phase = f" in {last.phase}" if last and last.phase is not Phase.UNKNOWN else ""
    if after.standing is Standing.COMPLETED:
        phase = ""
    at = f" at step {after.last_step}" if after.last_step is not None else " before the first step"
    if after.standing is Standing.INFEASIBLE or after.reason.startswith("at step "):
        at = ""
    remarks = [after.reason] if after.reason else []
    if after.standing is Standing.COMPLETED:
        remarks = [words.number(after.value), *(["the best so far"] if after is study.best else []), *remarks]
    elif after.standing is Standing.PRUNED and not remarks:
        remarks = [words.number(after.latest)]
    return f"{phase}{at}" + (f" ({', '.join(remarks)})" if remarks else "")


def _columns(record: StudyRecord, trials: Sequence[TrialRecord]) -> list[_Column]:
    best = _starred(record)
    names = words.short_keys(record.keys)
    scores = [(_brief(t.score.first), _brief(t.score.last)) for t in trials]
    hours = words.aligned_hours([t.gpu_hours for t in trials])
    before_arrow = max((len(first) for first, _ in scores), default=0)
    return [
        _Column("", [_rank(t, place, best) for place, t in enumerate(trials, start=1)]),
        _Column("trial", [str(t.number) for t in trials], is_number=True),
        _Column("id", [t.short_id for t in trials], spare=3),
        *(
            _Column(
                names[key],
                [words.coordinate(t.point, key, record.space) for t in trials],
                is_number=_is_numeric([t.point.get(key) for t in trials]),
                is_point=True,
            )
            for key in record.varied
        ),
        _Column("value", words.aligned([t.latest for t in trials]), is_number=True),
        *_means(record, trials),
        *(
            _Column(words.metric(goal.metric), words.aligned([_objective(t, i) for t in trials]), is_number=True)
            for i, goal in enumerate(record.goals)
            if i > 0
        ),
        _Column("score", [f"{first:>{before_arrow}}→{last}" for first, last in scores], spare=2),
        _Column("steps", [_steps(t) for t in trials], is_number=True),
        _Column("state", [t.word for t in trials]),
        _Column("time", [words.duration(t.seconds or None) for t in trials], is_number=True, spare=1),
        _Column(_hour_head(record), hours, is_number=True, spare=4),
    ]


def _starred(record: StudyRecord) -> set[int]:
    """Numbers of the best: one trial, or with several objectives the front."""
    best = record.front or ((record.best,) if record.best else ())
    return {t.number for t in best}


def _means(record: StudyRecord, trials: Sequence[TrialRecord]) -> list[_Column]:
    """With seeds: the mean of a trial's point and the half of its 95 % interval."""
    if not record.has_replicates:
        return []
    means = [record.mean(t) for t in trials]
    texts = words.aligned([m.mean if m else None for m in means])
    widths = words.aligned([m.half_width if m else None for m in means])
    cells = [f"{t}±{w}" if m and m.half_width is not None else t for m, t, w in zip(means, texts, widths, strict=True)]
    return [_Column("mean±95%", cells, is_number=True)]


def _objective(trial: TrialRecord, place: int) -> float | None:
    return trial.values[place] if place < len(trial.values) else None


def _rank(trial: TrialRecord, place: int, best: set[int]) -> str:
    """The place among completed trials, which are the first of the ranking."""
    return f"{BEST if trial.number in best else ' '}{place if trial.standing is Standing.COMPLETED else ''}"


def _fitted(columns: list[_Column], width: int) -> tuple[list[_Column], int]:
    """The columns that fit and the gap between them. A point that is too wide becomes one folded column."""

    def total(gap: int) -> int:
        return sum(c.width + gap for c in columns) - gap

    while total(1) > width and any(c.spare for c in columns):
        points = [c for c in columns if c.is_point]
        spared = min(c.spare for c in columns if c.spare)
        if spared > 2 and len(points) > 1:
            break
        columns = [c for c in columns if c.spare != spared]
    if total(1) > width:
        columns = _one_point_column(columns)
    return columns, 2 if total(2) <= width else 1


def _one_point_column(columns: list[_Column]) -> list[_Column]:
    points = [c for c in columns if c.is_point]
    if not points:
        return columns
    texts = [
        " ".join(c.cells[i] if c.head == "algorithm" else f"{c.head}={c.cells[i]}" for c in points)
        for i in range(len(points[0].cells))
    ]
    merged = _Column("point", texts, is_point=True)
    at = columns.index(points[0])
    return [*columns[:at], merged, *(c for c in columns[at:] if not c.is_point)]


def _title(record: StudyRecord, width: int) -> Text:
    spent = words.hours(record.gpu_hours)
    if record.budget_gpu_hours is not None:
        spent += f" of {words.hours(record.budget_gpu_hours)}"
    right = f"{spent} {record.hour_unit} · {words.duration(record.seconds)}"
    goals = [f"{'maximise' if g.direction != 'minimize' else 'minimise'} {words.clean(g.metric)}" for g in record.goals]
    name = words.clean(record.name, max(8, width // 3))
    made_up = ("  simulated", "red") if record.directory.is_simulated else ""
    left = Text.assemble((name, "bold"), made_up, f"  {', '.join(goals)}")
    left.truncate(max(1, width - len(right) - 2), overflow="ellipsis")
    return Text.assemble(left, " " * max(2, width - left.cell_len - len(right)), (right, "dim"))


def _counts(record: StudyRecord) -> Text:
    of = record.setting("n_trials")
    confirming = f", {record.confirming} that confirm" if record.confirming else ""
    parts = [Text(words.counted(len(record.trials) - record.confirming, "trial", of) + confirming)]
    parts += [Text(f"{n} {standing}", style=_STYLES[standing]) for standing, n in record.counts.items()]
    parts += [Text("paused", style="bold yellow")] if record.is_paused else []
    if record.budget_gpu_hours is not None:
        left = max(0.0, record.budget_gpu_hours - record.gpu_hours)
        parts.append(Text(f"{words.hours(left)} {record.hour_unit} left"))
    if record.filtered:
        parts.append(Text(f"{words.counted(record.filtered, 'point')} filtered out", style="dim"))
    return Text(" · ").join(parts)


def _spending_line(record: StudyRecord) -> list[Text]:
    """What the hours of the attempts that ended went to."""
    spent = record.spending
    if not spent.is_known:
        return []
    parts = [f"productive {words.hours(spent.productive)}", f"boot {words.hours(spent.boot)}"]
    wasted = [f"{words.hours(h)} {cause}" for cause, h in spent.wasted.items()]
    parts += [f"wasted {words.hours(sum(spent.wasted.values()))} ({', '.join(wasted)})"] if wasted else []
    parts += [f"{words.hours(spent.queued_h)} h in the queue"] if spent.queued_h > 0.005 else []
    return [Text(f"{record.hour_unit}: {' · '.join(parts)}", style="dim")]


def _progress_table(record: StudyRecord, trials: Sequence[TrialRecord], width: int, selected: int | None) -> Table:
    """A row a trial. What is always the same is left out, and on a narrow terminal what can be seen elsewhere."""
    digits = len(str(max((t.number for t in trials), default=0)))
    latest = words.aligned([t.latest for t in trials])
    hours = words.aligned_hours([t.gpu_hours for t in trials])
    places = [_place(t) for t in trials]
    heads = {
        "trial": True,
        "point": True,
        "progress": True,
        "steps": True,
        "latest": True,
        "trend": width >= 64,
        "try": any(t.state.attempt > 1 for t in trials),
        "time": width >= 100 or not any(places),
        _hour_head(record): width >= 72,
        "where": any(places) and width >= 64,
    }
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", width=width)
    for head in (h for h, is_shown in heads.items() if is_shown):
        is_number = head in ("steps", "latest", "try", "time", _hour_head(record))
        ratio = {"point": 5, "where": 4}.get(head)
        fixed = {"progress": 10, "trend": 8}.get(head)
        justify: JustifyMethod = "right" if is_number else "left"
        table.add_column(head, justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio, width=fixed)
    for trial, value, spent, place in zip(trials, latest, hours, places, strict=True):
        trend = trial.objective if len(trial.objective) > 7 else trial.score
        cells: dict[str, RenderableType] = {
            "trial": Text(f"{trial.number:>{digits}}" + (f" {trial.short_id}" if width >= 100 else "")),
            "point": Text(record.label(trial)),
            "progress": _progress(trial),
            "steps": Text(_steps(trial)),
            "latest": Text(value),
            "trend": Text(words.sparkline(trend.values, 8), style=_STYLES[trial.standing]),
            "try": Text(str(trial.state.attempt or "")),
            "time": Text(words.duration(trial.seconds or None)),
            _hour_head(record): Text(spent),
            "where": Text(place),
        }
        style = "reverse" if trial.number == selected else "dim" if not trial.is_live else ""
        table.add_row(*(cell for head, cell in cells.items() if heads[head]), style=style)
    return table


def _place(trial: TrialRecord) -> str:
    """Where a trial runs, or what it waits for; nothing of one that ended."""
    if trial.standing is Standing.RUNNING:
        return ", ".join(filter(None, [words.clean(trial.nodes, 60), words.clean(trial.state.reason, 60)]))
    if trial.standing is Standing.WAITING:
        return ", ".join(filter(None, [words.clean(trial.state.reason, 60), _expected(trial)]))
    return ""


def _expected(trial: TrialRecord) -> str:
    """When the scheduler means to start it."""
    at = trial.state.expected
    return f"starts {words.clock(at)[:5]}" if at and trial.standing is Standing.WAITING else ""


def _told(record: StudyRecord, trial: TrialRecord) -> Text:
    """One trial in full, in a line."""
    started = trial.attempts[-1].started if trial.attempts else None
    parts = [
        f"trial {trial.number} {trial.short_id} {record.label(trial)}",
        trial.word,
        f"attempt {trial.state.attempt}" if trial.state.attempt > 1 else "",
        f"on {trial.nodes}" if trial.nodes else "",
        f"since {words.clock(started)[:5]}" if started and trial.standing is Standing.RUNNING else "",
        _expected(trial),
        trial.reason,
    ]
    return Text(words.clean(" · ".join(filter(None, parts)), 400), style="bold")


def _progress(trial: TrialRecord) -> RenderableType:
    """A bar while there is something to measure, else the state as a word."""
    if trial.word == "running" and trial.total_steps:
        return ProgressBar(total=trial.total_steps, completed=trial.last_step or 0, width=10)
    return Text(trial.word, style=_STYLES[trial.standing])


def _waiting_lines(record: StudyRecord) -> list[Text]:
    """Why trials wait, in the scheduler's words; those that wait for the same are one line. First what stops it all."""
    waiting = [t for t in record.trials if t.standing is Standing.WAITING and t.state.reason]
    alike: dict[tuple[str, str], list[TrialRecord]] = {}
    for trial in sorted(waiting, key=lambda t: not t.state.is_refused):
        alike.setdefault((trial.word, trial.state.reason), []).append(trial)
    lines = []
    for (word, reason), of in list(alike.items())[:_MOST_REASONS]:
        first = min((t for t in of if t.state.expected), key=lambda t: t.state.expected or 0.0, default=None)
        told = ", ".join(filter(None, [words.clean(reason, 200), _expected(first) if first else ""]))
        lines.append(f"{word}: {told} (trial{'s'[: len(of) != 1]} {', '.join(str(t.number) for t in of)})")
    return [Text(line, style="red" if line.startswith("refused") else "yellow") for line in lines]


def _best_line(record: StudyRecord) -> Text:
    best = record.best
    if best is None:
        return Text("no trial has completed yet", style="dim")
    if front := record.front:
        trials = ", ".join(str(t.number) for t in front)
        return Text(f"{BEST} Pareto front: {'trial' if len(front) == 1 else 'trials'} {trials}", style="bold green")
    name = f"trial {best.number} {best.short_id} {record.label(best)}"
    return Text(f"{BEST} best: {words.mean(record.mean_of_best)}  {name}", style="bold green")


def _event_lines(record: StudyRecord, count: int) -> list[Text]:
    last = record.events[-count:] if count else ()
    return [Text(_event(e), style="dim") for e in last]


def _event(event: Mapping[str, Any]) -> str:
    details = {k: v for k, v in event.items() if k not in ("time", "event", "trial", "id", "job")}
    trial = [f"trial {event['trial']}"] if "trial" in event else []
    told = [_detail(key, v) for key, v in details.items() if v not in (None, "", [])]
    name = str(event.get("event", ""))
    return f"{words.clock(event.get('time'))} {words.clean(' '.join([name, *trial, *told]), 300)}"


def _detail(key: str, of: Any) -> str:
    if key == "point" and isinstance(of, Mapping):
        return words.label(of)
    if isinstance(of, float):
        return f"{key}={words.number(of)}"
    return f"{key}={of if isinstance(of, str) else json.dumps(of, default=str)}"


def _steps(trial: TrialRecord) -> str:
    done = words.NOTHING if trial.last_step is None else str(trial.last_step)
    return f"{done}/{trial.total_steps}" if trial.total_steps else done


def _brief(value: float | None) -> str:
    """Three digits, enough to see where a curve came from and went."""
    if value is None:
        return words.NOTHING
    return f"{value:.2f}" if 0.01 <= abs(value) < 100 or not value else words.number(float(f"{value:.2g}"))


def _hour_head(record: StudyRecord) -> str:
    return record.hour_unit.removesuffix("ours")


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values if v is not None)
