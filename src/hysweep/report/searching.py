"""What the page shows of the search itself: its history, what mattered, where the good points lie, who ran when."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hysweep.report import words
from hysweep.report.figures import SYMBOLS, Figure, Groups, axis, is_numeric, packed, plot_text, position
from hysweep.report.html import Cell, Column, Row, Table
from hysweep.report.records import SEED, AttemptRecord, Standing, StudyRecord, TrialRecord
from hysweep.schema import BadInput
from hysweep.schema.hostlist import hosts as hosts_of
from hysweep.study.importance import Importances, importances

MOST_HOSTS = 48  # rows of the timeline: more nodes than that are drawn as places that trials take
GRID = 25  # cells of the map in each direction
_ENDS = {Standing.COMPLETED: "completed", Standing.PRUNED: "pruned", Standing.FAILED: "failed"}


def importances_of(record: StudyRecord) -> Importances | None:
    """Of the keys that vary, by the completed trials of the search; None where they say nothing (yet)."""
    done = [t for t in _done(record) if not record.is_confirmation(t)]
    points = [{k: v for k, v in t.point.items() if k != SEED} for t in done]
    logged = {key for key in record.keys if words.is_scientific(key, record.space)}
    return importances(points, [t.value or 0.0 for t in done], record.is_maximised, logged)


def _done(record: StudyRecord) -> list[TrialRecord]:
    return [t for t in record.trials if t.standing is Standing.COMPLETED and t.value is not None
            and math.isfinite(t.value)]  # fmt: skip


def _spots(
    record: StudyRecord,
    groups: Groups,
    points: Sequence[tuple[TrialRecord, float, float]],
    symbol_of: Callable[[TrialRecord, str], str] = lambda trial, symbol: symbol,
    **more: Any,
) -> list[dict[str, Any]]:
    """A mark for each trial at (x, y), in the colour of its group. `symbol_of`: from the group's own symbol."""
    at = position(record)
    looks: dict[tuple[int, str], list[tuple[TrialRecord, float, float]]] = {}
    for trial, x, y in points:
        group = groups.of(trial)
        looks.setdefault((group, symbol_of(trial, SYMBOLS[group][0])), []).append((trial, x, y))
    marker = {"size": 9, **more.pop("marker", {})}
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": packed([x for _, x, _ in part], "f8"),
            "y": packed([y for _, _, y in part], "f8"),
            "trials": [[at(t), 1] for t, _, _ in part],
            "group": group,
            "marker": marker | {"symbol": symbol},
            **more,
        }
        for (group, symbol), part in sorted(looks.items(), key=lambda look: look[0])
    ]


def history(record: StudyRecord, groups: Groups) -> Figure | None:
    """Each value in the order of asking, and the best until then."""
    done = _done(record)
    if len(done) < 3:
        return None
    better = max if record.is_maximised else min
    best: list[float] = []
    for trial in done:
        value = trial.value or 0.0
        best.append(better(best[-1], value) if best else value)
    marks = _spots(record, groups, [(t, t.number, t.value or 0.0) for t in done])
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": packed([t.number for t in done], "f8"),
        "y": packed(best, "f8"),
        "colour": "soft",
        "line": {"shape": "hv", "width": 1.5},
        "hovertemplate": "best until trial %{x}: <b>%{y:.4~g}</b><extra></extra>",
    }
    values, bests = words.aligned([t.value for t in done]), words.aligned(best)
    rows = [
        Row([Cell(t.number, t.number), Cell(record.label(t)), Cell(v, t.value), Cell(b, best[i])])
        for i, (t, v, b) in enumerate(zip(done, values, bests, strict=True))
    ]
    heads = [Column("trial", True, True), Column("point", class_="long"), Column("value", True), Column("best", True)]
    return Figure(
        "history",
        "Value of each trial",
        "The line is the best until then.",
        [line, *marks],
        {"xaxis": axis("trial"), "yaxis": axis(plot_text(record.metric))},
        Table("data-history", "Values in the order of asking", heads, rows),
    )


def importance(record: StudyRecord, of: Importances | None) -> Figure | None:
    if of is None or not of.shares:
        return None
    names = words.short_keys(record.keys)
    shares = list(of.shares.items())[::-1]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": packed([share for _, share in shares], "f8"),
        "labels": [plot_text(names.get(key, key)) for key, _ in shares],
        "colour": "accent",
        "hovertemplate": "%{y}: <b>%{x:.2f}</b><extra></extra>",
    }
    note = f"By {of.evaluator}, from {words.counted(of.trials, 'completed trial')}; together 1."
    if of.is_a_hint:
        note += " So few trials give a hint, no more."
    if of.left_out:
        note += f" Not in every trial, so not compared: {', '.join(names.get(k, k) for k in of.left_out)}."
    rows = [Row([Cell(key), Cell(f"{share:.3f}", share), Cell(of.evaluator)]) for key, share in shares[::-1]]
    return Figure(
        "importances",
        "What mattered",
        note,
        [bars],
        {"xaxis": axis("share", rangemode="tozero"), "yaxis": {"type": "category", "title": {"text": ""}}},
        Table("data-importances", "Importance of each key", [Column("key", is_head=True), Column("share", True),
              Column("evaluator")], rows),
    )  # fmt: skip


def untold(record: StudyRecord, of: Importances | None) -> str:
    """Of keys whose importance is not among those shown, since every completed trial has the same value."""
    if of is None or not of.untold:
        return ""
    done = _done(record)
    same = ", ".join(f"{key} = {words.value(key, done[0].point[key], record.space)}" for key in of.untold)
    have = "has one value" if len(of.untold) == 1 else "have one value each"
    return f"What mattered cannot be told of what {have} in all {of.trials} completed trials: {same}."


class _Scale:
    """Where the values of one key lie between 0 and 1: numbers by their size or logarithm, choices side by side."""

    def __init__(self, record: StudyRecord, key: str, trials: Sequence[TrialRecord]) -> None:
        self.key, self._record = key, record
        values = [t.point[key] for t in trials if t.point.get(key) is not None]
        self.is_numeric = is_numeric(record, key)
        self.is_log = self.is_numeric and words.is_scientific(key, record.space) and min(values, default=0) > 0
        self.choices = [] if self.is_numeric else list(dict.fromkeys(words.value(key, v) for v in values))
        numbers = [self._size(v) for v in values] if self.is_numeric else [0.0]
        self.low, self.high = min(numbers, default=0.0), max(numbers, default=1.0)

    def _size(self, value: Any) -> float:
        return math.log10(value) if self.is_log else float(value)

    def place(self, value: Any) -> float:
        if not self.is_numeric:
            return self.choices.index(words.value(self.key, value)) / max(1, len(self.choices) - 1)
        span = self.high - self.low
        return (self._size(value) - self.low) / span if span else 0.5

    def value(self, place: float) -> float:
        size = self.low + place * (self.high - self.low)
        return float(10**size) if self.is_log else size

    def ticks(self) -> list[tuple[float, str]]:
        if not self.is_numeric:
            return [(i / max(1, len(self.choices) - 1), choice) for i, choice in enumerate(self.choices)]
        if self.low == self.high:
            return [(0.5, words.value(self.key, self.value(0.5), self._record.space))]
        whole = all(isinstance(t.point.get(self.key), int) for t in self._record.trials if self.key in t.point)
        values = [round(self.value(p)) if whole else self.value(p) for p in (0.0, 1.0)]
        return [(p, words.value(self.key, v, self._record.space)) for p, v in zip((0.0, 1.0), values, strict=True)]


def parallel(record: StudyRecord, groups: Groups) -> Figure | None:
    """Each completed trial as a line through its values, to its result."""
    done = _done(record)
    keys = [k for k in record.keys if k != SEED and len({repr(t.point.get(k)) for t in done}) > 1]
    if len(done) < 3 or len(keys) < 2:
        return None
    scales = [_Scale(record, key, done) for key in keys]
    values = [t.value or 0.0 for t in done]
    low, high = min(values), max(values)
    at, best = position(record), record.best
    lines: dict[tuple[int, bool], list[tuple[int, list[float]]]] = {}
    for trial, value in zip(done, values, strict=True):
        places = [s.place(trial.point[s.key]) if trial.point.get(s.key) is not None else math.nan for s in scales]
        places.append((value - low) / (high - low) if high > low else 0.5)
        lines.setdefault((groups.of(trial), trial is best), []).append((at(trial), places))
    traces = []
    for (group, is_best), part in sorted(lines.items(), key=lambda item: (item[0][1], item[0][0])):
        y = [p for _, places in part for p in (*places, math.nan)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": packed([*range(len(keys) + 1), len(keys)] * len(part), "f4"),
                "y": packed(y, "f4"),
                "trials": [[place, len(keys) + 2] for place, _ in part],
                "group": group,
                "opacity": 1 if is_best else 0.45,
                "best": is_best,
                "line": {},
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    names = words.short_keys(record.keys)
    labels = [plot_text(names[k]) for k in keys] + [plot_text(words.metric(record.metric))]
    ends = [s.ticks() for s in scales] + [[(0.0, words.number(low)), (1.0, words.number(high))]]
    notes = [
        {
            "x": i,
            "y": y,
            "text": plot_text(text),
            "showarrow": False,
            "font": {"size": 11},
            "yshift": 9,
            "xanchor": "left" if i == 0 else "right" if i == len(keys) else "center",
        }
        for i, ticks in enumerate(ends)
        for y, text in ticks[:12]
    ]
    rows = [
        Row(
            [
                Cell(t.number, t.number),
                *(Cell(words.coordinate(t.point, k, record.space), t.point.get(k)) for k in keys),
                Cell(words.number(t.value), t.value),
            ]
        )
        for t in done
    ]
    columns = [
        Column("trial", True, True),
        *(Column(names[k], is_numeric(record, k), key=k) for k in keys),
        Column("value", True),
    ]
    return Figure(
        "parallel",
        "Points and their values",
        "A line is a completed trial, the thick one the best; it ends at its value.",
        traces,
        {
            "xaxis": axis("", tickmode="array", tickvals=list(range(len(labels))), ticktext=labels, zeroline=False,
                          range=[-0.15, len(keys) + 0.15], ticklabeloverflow="allow"),
            "yaxis": axis("", showticklabels=False, showgrid=False, zeroline=False, range=[-0.06, 1.12]),
            "annotations": notes,
        },
        Table("data-parallel", "Points of the completed trials", columns, rows),
        is_wide=True,
    )  # fmt: skip


def chosen(record: StudyRecord, groups: Groups) -> list[Figure]:
    """The objective by each choice that varies: a mark a trial, side by side."""
    found = []
    for key in record.keys:
        trials = [
            t
            for t in record.trials
            if t.point.get(key) is not None and t.latest is not None and math.isfinite(t.latest)
        ]
        names = list(dict.fromkeys(words.value(key, t.point[key]) for t in trials))
        if not is_numeric(record, key) and 2 <= len(names) <= 20:
            found.append(_choice(record, groups, key, trials, names))
    return found


def _choice(
    record: StudyRecord, groups: Groups, key: str, trials: Sequence[TrialRecord], names: Sequence[str]
) -> Figure:
    spread: dict[str, int] = {}
    points = []
    for trial in trials:
        name = words.value(key, trial.point[key])
        turn = spread[name] = spread.get(name, -1) + 1
        # side by side, so that equal values do not hide each other: 0, 1, -1, 2, -2 …
        beside = (turn % 9 + 1) // 2 * (1 if turn % 2 else -1)
        points.append((trial, names.index(name) + 0.06 * beside, trial.latest or 0.0))
    hover = "%{customdata}<br><b>%{y:.4~g}</b><extra></extra>"
    best = [point for point in points if point[0] is record.best]
    ring = {"size": 19, "line": {"width": 2}}
    traces = [
        *_spots(record, groups, points, lambda t, s: s if t.standing is Standing.COMPLETED else f"{s}-open",
                hovertemplate=hover),
        *_spots(record, groups, best, lambda t, s: "circle-open", marker=ring, hovertemplate=hover),
    ]  # fmt: skip
    values = words.aligned([t.latest for t in trials])
    rows = [
        Row([Cell(t.number, t.number), Cell(words.value(key, t.point[key])), Cell(v, t.latest), Cell(t.word)])
        for t, v in zip(trials, values, strict=True)
    ]
    place = record.keys.index(key)
    return Figure(
        f"choice-{place}",
        f"Objective by {words.short_keys(record.keys)[key]}",
        "Filled: completed. Open: what a trial that did not complete had come to. Ring: the best.",
        traces,
        {
            "xaxis": axis("", **_named(names),
                          range=[-0.5, len(names) - 0.5], zeroline=False),
            "yaxis": axis(plot_text(record.metric)),
        },
        Table(f"data-choice-{place}", f"{record.metric} by {key}", [Column("trial", True, True), Column(key),
              Column("objective", True), Column("state")], rows),
        is_wide=len(names) > 6,
    )  # fmt: skip


def contour(record: StudyRecord, groups: Groups, of: Importances | None) -> Figure | None:
    """A map of the objective over the two numbers that mattered most, between the trials by their distance."""
    done = _done(record)
    order = list(of.shares) if of and of.shares else list(record.keys)
    keys = [k for k in order if k != SEED and is_numeric(record, k) and all(t.point.get(k) is not None for t in done)
            and len({t.point[k] for t in done}) > 3][:2]  # fmt: skip
    if len(keys) < 2 or len(done) < 6:
        return None
    across, up = (_Scale(record, key, done) for key in keys)
    known = [(across.place(t.point[across.key]), up.place(t.point[up.key]), t.value or 0.0) for t in done]
    places = [i / (GRID - 1) for i in range(GRID)]
    heights = [[_between(known, x, y) for x in places] for y in places]
    names = words.short_keys(record.keys)
    traces: list[dict[str, Any]] = [
        {
            "type": "contour",
            "x": packed([across.value(p) for p in places], "f8"),
            "y": packed([up.value(p) for p in places], "f8"),
            "z": [[float(f"{v:.5g}") for v in row] for row in heights],
            "colour": "scale",
            "hoverinfo": "skip",
        },
        *_spots(
            record,
            groups,
            [(t, float(t.point[across.key]), float(t.point[up.key])) for t in done],
            marker={"line": {"width": 1, "color": "#fff"}},
            hovertemplate="%{customdata}<extra></extra>",
        ),
    ]
    values = words.aligned([t.value for t in done])
    rows = [
        Row(
            [
                Cell(t.number, t.number),
                *(Cell(words.value(s.key, t.point[s.key], record.space), t.point[s.key]) for s in (across, up)),
                Cell(v, t.value),
            ]
        )
        for t, v in zip(done, values, strict=True)
    ]
    return Figure(
        "contour",
        f"Objective over {names[across.key]} and {names[up.key]}",
        "Between the completed trials (the marks) it is weighted by distance: a guess, the worse the further away.",
        traces,
        {
            "xaxis": axis(plot_text(across.key), [across.value(0), across.value(1)] if across.is_log else None),
            "yaxis": axis(plot_text(up.key), [up.value(0), up.value(1)] if up.is_log else None),
        },
        Table("data-contour", "Completed trials", [Column("trial", True, True),
              *(Column(names[s.key], True, key=s.key) for s in (across, up)), Column("value", True)], rows),
    )  # fmt: skip


def _named(names: Sequence[str]) -> dict[str, Any]:
    """An axis with a name at each whole number."""
    return {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": [plot_text(n) for n in names]}


def _between(known: Sequence[tuple[float, float, float]], x: float, y: float) -> float:
    """Inverse distance weighting (Shepard, 1968), by the third power, and flat close to a trial."""
    weights = [((x - a) ** 2 + (y - b) ** 2 + 0.01) ** -1.5 for a, b, _ in known]
    return math.fsum(w * v for w, (_, _, v) in zip(weights, known, strict=True)) / math.fsum(weights)


def ends(record: StudyRecord, groups: Groups) -> Figure | None:
    """When each trial ended and how far it had come: what pruning does as the study goes on."""
    start = _start(record)
    ended = [(t, t.attempts[-1].ended, t.last_step) for t in record.trials
             if t.standing in _ENDS and t.attempts and t.attempts[-1].ended and t.last_step is not None]  # fmt: skip
    if start is None or not any(t.standing is Standing.PRUNED for t, _, _ in ended):
        return None
    symbols = {Standing.COMPLETED: "circle", Standing.PRUNED: "x", Standing.FAILED: "square-open"}
    hover = "%{customdata}<br>after %{x:.3~g} h, at step %{y}<extra></extra>"
    points = [(t, ((when or start) - start) / 3600, float(step or 0)) for t, when, step in ended]
    traces = _spots(record, groups, points, lambda t, s: symbols[t.standing], hovertemplate=hover)
    rows = [
        Row(
            [
                Cell(t.number, t.number),
                Cell(t.word),
                Cell(words.duration((when or start) - start), (when or start) - start),
                Cell(step, step),
                Cell(t.reason),
            ]
        )
        for t, when, step in ended
    ]
    columns = [Column("trial", True, True), Column("state"), Column("after", True, key="seconds after the start"),
               Column("last step", True), Column("why", class_="long")]  # fmt: skip
    return Figure(
        "ends",
        "Where trials ended, over time",
        "●: completed. ✖: pruned. □: failed.",
        traces,
        {"xaxis": axis("hours since the start", rangemode="tozero"), "yaxis": axis("last step", rangemode="tozero")},
        Table("data-ends", "Ends of trials", columns, rows),
        is_wide=True,
    )


def timeline(record: StudyRecord, groups: Groups) -> Figure | None:
    """Who ran where and when: a bar an attempt, on each of its nodes, or on a place of its own where there are many."""
    start = _start(record)
    ran = [(t, a, a.started, a.ended or min(record.read_at, max(a.seen, a.started)))
           for t in record.trials for a in t.attempts if a.started]  # fmt: skip
    if start is None or not ran:
        return None
    hosts = {a.nodes: _hosts(a.nodes) for _, a, _, _ in ran}
    names = sorted({h for of in hosts.values() for h in of}, key=_natural)
    by_host = all(hosts.values()) and 1 < len(names) <= MOST_HOSTS
    rows_of = (lambda attempt: [names.index(h) for h in hosts[attempt.nodes]]) if by_host else _lanes(ran)
    count = len(names) if by_host else 1 + max(row for _, a, _, _ in ran for row in rows_of(a))
    at = position(record)
    lines: dict[tuple[int, bool], list[tuple[int, list[float], list[float]]]] = {}
    for trial, attempt, began, ended in ran:
        xs, ys = [], []
        for row in rows_of(attempt):
            xs += [(began - start) / 3600, (max(began, ended) - start) / 3600, (ended - start) / 3600]
            ys += [float(row), float(row), math.nan]
        is_good = attempt.cause is None or trial.standing in (Standing.COMPLETED, Standing.PRUNED)
        lines.setdefault((groups.of(trial), is_good), []).append((at(trial), xs, ys))
    thick = max(2.0, min(12.0, 240 / max(1, count)))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": packed([x for _, xs, _ in part for x in xs], "f8"),
            "y": packed([y for _, _, ys in part for y in ys], "f4"),
            "trials": [[place, len(xs)] for place, xs, _ in part],
            "group": group,
            "all": True,
            "opacity": 0.9 if is_good else 0.4,
            "line": {"thick": thick},
            "hovertemplate": "%{customdata}<br>%{x:.3~g} h<extra></extra>",
        }
        for (group, is_good), part in sorted(lines.items())
    ]
    rows = [
        Row([Cell(t.number, t.number), Cell(a.number, a.number), Cell(a.nodes), Cell(words.moment(began), began),
             Cell(words.moment(a.ended) if a.ended else "", a.ended), Cell(a.gpus, a.gpus),
             Cell(str(a.cause or "runs"))])
        for t, a, began, _ in ran
    ]  # fmt: skip
    columns = [Column("trial", True, True), Column("attempt", True), Column("nodes"), Column("from", True),
               Column("to", True), Column("GPUs" if record.has_gpu else "slots", True), Column("ended by")]  # fmt: skip
    ticks = _named(names) if by_host else {}
    more: Mapping[str, Any] = ticks if by_host else {"showticklabels": False}
    return Figure(
        "timeline",
        "Who ran where and when",
        "A bar is an attempt on a node."
        if by_host
        else "A bar is an attempt; those above each other ran at the same time.",
        traces,
        {
            "xaxis": axis("hours since the start", rangemode="tozero"),
            "yaxis": axis("node" if by_host else "", zeroline=False, range=[-0.7, count - 0.3], **more),
        },
        Table("data-timeline", "Attempts, where and when", columns, rows),
        is_wide=True,
    )


def _start(record: StudyRecord) -> float | None:
    starts = [a.started for t in record.trials for a in t.attempts if a.started]
    first = min(starts, default=None)
    return first if record.created is None or first is None else min(first, record.created)


def _hosts(nodes: str) -> list[str]:
    try:
        return hosts_of(nodes) if nodes else []
    except BadInput:
        return [nodes]


def _natural(name: str) -> tuple[object, ...]:
    return tuple(f"{int(p):020}" if p.isdigit() else p for p in re.split(r"(\d+)", name))


def _lanes(ran: Sequence[tuple[TrialRecord, AttemptRecord, float, float]]) -> Any:
    """A row for each attempt such that no two of a row overlap, from below."""
    free: list[float] = []
    lane_of: dict[int, int] = {}
    for _, attempt, began, ended in sorted(ran, key=lambda r: r[2]):
        lane = next((i for i, until in enumerate(free) if until <= began), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = ended
        lane_of[id(attempt)] = lane
    return lambda attempt: [lane_of[id(attempt)]]
