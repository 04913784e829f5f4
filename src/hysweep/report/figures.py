"""What the page plots, as plain specifications that plotly.js draws; plotly itself is not imported.

A trace carries, beside plotly's own fields, what the page's script turns into colours and hover texts:

    group   index of the colour
    trials  index of a trial and how many of the points are its own, trial after trial
    best    whether it is the best trial's own
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hysweep.report import words
from hysweep.report.html import Cell, Column, Row, Table
from hysweep.report.ranking import RankedLayout, Ranking
from hysweep.report.records import AXES, SCORE, Curve, Standing, StudyRecord, TrialRecord

# Points that all curves of a page may have together (8 bytes each in the file), and those of one series.
_POINTS = 210_000
MOST_POINTS = 500
LEAST_POINTS = 40
_KNOTS = 40  # of an axis other than the step, for each trial

_DASHES = {Standing.PRUNED: "dash", Standing.FAILED: "dot", Standing.CANCELLED: "dot"}
# plotly's name of a marker, and the character that stands for it in text. As many as there are colours.
SYMBOLS = (
    ("circle", "●"),
    ("square", "■"),
    ("diamond", "◆"),
    ("triangle-up", "▲"),
    ("cross", "✚"),
    ("x", "✖"),
    ("star", "★"),
    ("hexagon", "⬢"),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A curve that the page shows where the trainer wrote it: the first of `names` that occurs.

    needs_gpu      it means nothing where the trainer ran on a CPU
    spans_decades  a logarithmic axis serves it better where its extremes lie far apart
    """

    name: str
    title: str
    names: tuple[str, ...]
    unit: str = ""
    note: str = ""
    needs_gpu: bool = False
    spans_decades: bool = False


# In the order of the page. One row is one more figure.
METRICS = (
    Metric("score", "Training score", (SCORE,), note="Mean of the training samples, before any KL penalty."),
    Metric("reward", "Training reward", ("critic/rewards/mean",), note="With the KL penalty, where there is one."),
    Metric(
        "entropy",
        "Entropy",
        ("actor/entropy", "actor/entropy_loss"),
        unit="nats",
        note="Near zero the policy no longer explores.",
    ),
    Metric(
        "grad_norm",
        "Gradient norm",
        ("actor/grad_norm",),
        note="Of the actor, before it is clipped.",
        spans_decades=True,
    ),
    Metric(
        "kl",
        "KL to the reference",
        ("actor/kl_loss", "actor/reward_kl_penalty"),
        unit="nats",
        note="How far the policy has gone from where it began.",
    ),
    Metric("ppo_kl", "KL of the update", ("actor/ppo_kl",), unit="nats", note="Between the policy before and after."),
    Metric("clip", "Clip fraction", ("actor/pg_clipfrac",), note="Share of tokens whose ratio was clipped."),
    Metric("response", "Response length", ("response_length/mean",), unit="tokens", note="Mean of the samples."),
    Metric(
        "probs_diff",
        "Rollout and training probabilities apart",
        ("training/rollout_probs_diff_mean",),
        note="Mean difference of a token's probability in the two engines; stable runs stay below 0.015.",
        spans_decades=True,
    ),
    Metric("throughput", "Throughput", ("perf/throughput",), unit="tokens/s/GPU", note="Of the whole step."),
    Metric("mfu", "Model FLOPs utilisation", ("perf/mfu/actor",), note="Of the update.", needs_gpu=True),
    Metric(
        "memory",
        "Peak memory",
        ("actor/perf/max_memory_allocated_gb", "perf/max_memory_allocated_gb"),
        unit="GiB",
        note="Highest allocation of a training process so far.",
        needs_gpu=True,
    ),
)


def metric_names() -> list[str]:
    """Every trainer metric that a figure may need."""
    return [name for metric in METRICS for name in metric.names]


@dataclass(frozen=True, slots=True)
class Groups:
    """How trials are told apart by colour: by the values of one key, or one by one, or not at all.

    key    what the colours stand for, in words
    names  the groups, in the order of their colours
    """

    key: str
    names: tuple[str, ...]
    of: Callable[[TrialRecord], int]


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its data beside it.

    is_summarised  the table has one row a trial; the points themselves are in the CSV file
    """

    name: str
    title: str
    note: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    table: Table
    is_wide: bool = False
    is_summarised: bool = False
    metric: str = ""

    def spec(self) -> dict[str, Any]:
        """For the page's script; `curve`: its x is the training step, and may be drawn as something else."""
        return {"data": self.traces, "layout": self.layout} | ({"curve": True} if self.metric else {})


def grouped(record: StudyRecord) -> Groups:
    """Colour by algorithm where it varies, else by another choice, else by trial while colours last."""
    by_algorithm = {t.number: t.algorithm or words.NOTHING for t in record.trials}
    found = _groups("algorithm", by_algorithm)
    if found:
        return found
    for key in record.keys:
        values = {t.number: words.coordinate(t.point, key, record.space) for t in record.trials}
        is_choice = not any(isinstance(t.point.get(key), float) for t in record.trials)
        if (
            is_choice
            and len(set(values.values())) <= len(SYMBOLS)
            and (found := _groups(words.short_keys(record.keys)[key], values))
        ):
            return found
    if 1 < len(record.trials) <= len(SYMBOLS):
        return Groups("trial", tuple(f"trial {t.number}" for t in record.trials), position(record))
    return Groups("", (next(iter(by_algorithm.values()), "trials"),), lambda trial: 0)


def _groups(key: str, values: dict[int, str]) -> Groups | None:
    """A colour for each value; the first ones keep theirs where there are more values than colours."""
    names = tuple(dict.fromkeys(values.values()))
    if len(names) < 2:
        return None
    if len(names) > len(SYMBOLS):
        names = (*names[: len(SYMBOLS) - 1], "others")
    places = {name: i for i, name in enumerate(names)}
    return Groups(key, names, lambda trial: places.get(values[trial.number], len(names) - 1))


def position(record: StudyRecord) -> Callable[[TrialRecord], int]:
    places = {t.number: i for i, t in enumerate(record.trials)}
    return lambda trial: places[trial.number]


def curves(record: StudyRecord, groups: Groups) -> list[Figure]:
    """The objective first, then every metric that some trial has."""
    shown: list[tuple[Metric, str]] = []
    objective = Metric("objective", "Objective", (record.metric,), note="What the study optimises.")
    for metric in (objective, *METRICS):
        if metric.needs_gpu and not record.has_gpu:
            continue
        written = (name for name in metric.names if any(len(t.curve(name)) for t in record.trials))
        name = next(written, None)
        if name and not any(_is_same(record, name, taken) for _, taken in shown):
            shown.append((metric, name))
    series = sum(1 for _, name in shown for t in record.trials if len(t.curve(name)))
    limit = max(LEAST_POINTS, min(MOST_POINTS, _POINTS // max(1, series)))
    return [_curve_figure(record, groups, metric, name, limit) for metric, name in shown]


def _is_same(record: StudyRecord, one: str, other: str) -> bool:
    """Whether two metrics say the same of every trial, as reward and score do without a penalty."""
    return one == other or all(t.curve(one) == t.curve(other) for t in record.trials)


def axes(record: StudyRecord) -> dict[str, list[list[dict[str, str]] | None]]:
    """What curves can be drawn against beside the step: of each trial, steps and what had come together at their end.

    A few steps of each, between which the page draws straight on. What no trial has measured is left out.
    """
    found: dict[str, list[list[dict[str, str]] | None]] = {}
    for name in AXES:
        of = [knots(t.axes[name], _KNOTS) if name in t.axes and len(t.axes[name]) > 1 else None for t in record.trials]
        if any(of):
            found[name] = [[packed(c.steps, "f8"), packed(c.values, "f8")] if c else None for c in of]
    return found


def knots(curve: Curve, limit: int) -> Curve:
    """Every so many-th point, with both ends: enough of a curve that only ever rises."""
    if len(curve) <= limit:
        return curve
    keep = sorted({round(i * (len(curve) - 1) / (limit - 1)) for i in range(limit)})
    return Curve(array("q", [curve.steps[i] for i in keep]), array("d", [curve.values[i] for i in keep]))


def is_thinned(record: StudyRecord, of: Sequence[Figure]) -> bool:
    """Whether some curve has more points than are drawn of it."""
    points = sum(len(t.curve(f.metric)) for f in of for t in record.trials)
    drawn = sum(count - 1 for f in of for trace in f.traces for _, count in trace["trials"])
    return bool(drawn < points)


def _curve_figure(record: StudyRecord, groups: Groups, metric: Metric, name: str, limit: int) -> Figure:
    best = record.best
    full = [(i, t, t.curve(name)) for i, t in enumerate(record.trials) if len(t.curve(name))]
    drawn = [(i, t, thinned(curve, limit)) for i, t, curve in full]
    lines: dict[tuple[int, str, bool], list[tuple[int, Curve]]] = {}
    for i, trial, curve in drawn:
        key = (groups.of(trial), _DASHES.get(trial.standing, "solid"), trial is best)
        lines.setdefault(key, []).append((i, curve))
    is_sparse = max((len(curve) for _, _, curve in drawn), default=0) <= 30
    traces = [
        _line(group, dash, is_best, part, is_sparse)
        for (group, dash, is_best), part in sorted(lines.items(), key=lambda item: (item[0][2], item[0][0]))
    ]
    values = [v for _, _, curve in full for v in curve.values if math.isfinite(v)]
    is_log = metric.spans_decades and bool(values) and min(values) > 0 and max(values) > 50 * min(values)
    unit = metric.unit if record.has_gpu else metric.unit.replace("GPU", "slot")
    return Figure(
        name=f"curve-{metric.name}",
        title=metric.title,
        note=f"{name}. {metric.note}".strip(),
        traces=traces,
        layout={
            "xaxis": axis("training step", rangemode="tozero"),
            "yaxis": axis(", ".join(filter(None, [unit, "log scale" if is_log else ""])), values if is_log else None),
        },
        table=_curve_table(record, metric, name, [(t, curve) for _, t, curve in full]),
        is_wide=metric.name == "objective",
        is_summarised=True,
        metric=name,
    )


def _line(group: int, dash: str, is_best: bool, part: Sequence[tuple[int, Curve]], is_sparse: bool) -> dict[str, Any]:
    """All trials of one look as one trace, with gaps between: few traces draw fast, however many trials."""
    steps, values, trials = array("q"), array("d"), []
    for i, curve in part:
        steps.extend(curve.steps)
        values.extend(curve.values)
        steps.append(curve.steps[-1])
        values.append(math.nan)
        trials.append([i, len(curve) + 1])
    return {
        "type": "scatter",
        "mode": "lines+markers" if is_sparse else "lines",
        "x": packed(steps, "u2" if min(steps) >= 0 and max(steps) < 65536 else "f8"),
        "y": packed(values, "f4"),
        "trials": trials,
        "group": group,
        "opacity": 1 if is_best else 0.75,
        "best": is_best,
        "line": {"dash": dash},
        "marker": {"size": 7 if is_best else 5},
        "connectgaps": False,
    }


def _curve_table(record: StudyRecord, metric: Metric, name: str, series: Sequence[tuple[TrialRecord, Curve]]) -> Table:
    def finite(curve: Curve) -> list[float]:
        return [v for v in curve.values if math.isfinite(v)]

    ends = [(c.first, min(finite(c), default=None), max(finite(c), default=None), c.last) for _, c in series]
    columns = [words.aligned([row[k] for row in ends]) for k in range(4)]
    rows = [
        Row(
            [
                Cell(trial.number, trial.number),
                Cell(record.label(trial)),
                Cell(trial.word),
                Cell(len(curve), len(curve)),
                Cell(curve.steps[0], curve.steps[0]),
                Cell(curve.steps[-1], curve.steps[-1]),
                *(Cell(columns[k][i], ends[i][k]) for k in range(4)),
            ]
        )
        for i, (trial, curve) in enumerate(series)
    ]
    heads = ["points", "first step", "last step", "first", "lowest", "highest", "last"]
    return Table(
        f"data-{metric.name}",
        f"{metric.title} ({name}) by trial",
        [Column("trial", True, True), Column("point"), Column("state"), *(Column(h, True) for h in heads)],
        rows,
    )


def scatters(record: StudyRecord, groups: Groups) -> list[Figure]:
    """The objective against each number that varies; the learning rate first."""
    keys = [key for key in record.keys if _is_spread(record, key)]
    keys.sort(key=lambda key: not key.endswith("learning_rate"))
    return [_scatter(record, groups, key) for key in keys]


def is_numeric(record: StudyRecord, key: str) -> bool:
    """Whether every value that a key takes is a number."""
    values = [t.point[key] for t in record.trials if t.point.get(key) is not None]
    return bool(values) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _is_spread(record: StudyRecord, key: str) -> bool:
    """Whether a key has so many values that a plot shows more than the leaderboard."""
    if not is_numeric(record, key):
        return False
    measured = {t.point.get(key) for t in record.trials if t.latest is not None} - {None}
    return len(measured) > (1 if key.endswith("learning_rate") else 3)


def _scatter(record: StudyRecord, groups: Groups, key: str) -> Figure:
    placed = [t for t in record.trials if t.point.get(key) is not None]
    measured = [t for t in placed if t.latest is not None and math.isfinite(t.latest)]
    name = words.short_keys(record.keys)[key]
    is_log = words.is_scientific(key, record.space) and all(t.point[key] > 0 for t in measured)
    values = words.aligned([t.latest for t in measured])
    return Figure(
        name=f"scatter-{record.keys.index(key)}",
        title=f"Objective by {'learning rate' if name == 'lr' else name}",
        note="Filled: completed. Open: what a trial that did not complete had come to. Ring: the best.",
        traces=_marks(record, groups, [(t, float(t.point[key])) for t in measured]),
        layout={
            "xaxis": axis(plot_text(key), [float(t.point[key]) for t in measured] if is_log else None),
            "yaxis": axis(plot_text(record.metric)),
        },
        table=Table(
            f"data-scatter-{record.keys.index(key)}",
            f"{record.metric} by {key}",
            [
                Column("trial", True, True),
                Column(groups.key or "group"),
                Column(key, True),
                Column("objective", True),
                Column("state"),
            ],
            [
                Row(
                    [
                        Cell(t.number, t.number),
                        Cell(groups.names[groups.of(t)]),
                        Cell(words.value(key, t.point[key], record.space), t.point[key]),
                        Cell(value, t.latest),
                        Cell(t.word),
                    ]
                )
                for t, value in zip(measured, values, strict=True)
            ],
        ),
    )


def pareto(record: StudyRecord, groups: Groups) -> list[Figure]:
    """The first of several objectives by each of the others; the front is ringed."""
    done = [t for t in record.trials if len(t.values) == len(record.goals) > 1]
    return [_trade_off(record, groups, done, i) for i in range(1, len(record.goals))] if done else []


def _trade_off(record: StudyRecord, groups: Groups, done: Sequence[TrialRecord], place: int) -> Figure:
    first, other = record.metric, record.goals[place].metric
    front, at = record.front, position(record)
    ring = {"size": 20, "symbol": "circle-open", "line": {"width": 2}}
    rings = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": packed([t.values[place]], "f8"),
            "y": packed([t.values[0]], "f8"),
            "trials": [[at(t), 1]],
            "group": groups.of(t),
            "marker": ring,
        }
        for t in front
    ]
    columns = [words.aligned([t.values[i] for t in done]) for i in (0, place)]
    rows = [
        Row(
            [
                Cell(t.number, t.number),
                Cell(record.label(t)),
                *(Cell(columns[k][i], t.values[p]) for k, p in enumerate((0, place))),
                Cell("yes" if t in front else ""),
            ]
        )
        for i, t in enumerate(done)
    ]
    heads = [Column("trial", True, True), Column("point", class_="long"), Column(first, True), Column(other, True)]
    return Figure(
        name=f"pareto-{place}",
        title=f"{words.metric(first)} by {words.metric(other)}",
        note="Ring: on the Pareto front, where no other trial is better.",
        traces=[*_marks(record, groups, [(t, t.values[place]) for t in done], rings_best=False), *rings],
        layout={"xaxis": axis(plot_text(other)), "yaxis": axis(plot_text(first))},
        table=Table(f"data-pareto-{place}", f"{first} by {other}", [*heads, Column("on the front")], rows),
        is_wide=len(record.goals) == 2,
    )


def ranked(record: StudyRecord, groups: Groups, of: Ranking) -> Figure | None:
    """The measured speed of each layout against what was predicted; None before there is one."""
    measured = [layout for layout in of.layouts if layout.measured is not None]
    if not measured:
        return None
    goes = "fall" if record.is_maximised else "rise"
    return Figure(
        name="ranking",
        title="Measured speed by predicted time",
        note=f"Where the ranking is right, marks {goes} from left to right. Ring: the best.",
        traces=_marks(record, groups, [(layout.trial, layout.seconds) for layout in measured]),
        layout={
            "xaxis": axis("predicted seconds of a step"),
            "yaxis": axis(plot_text(record.metric)),
        },
        table=ranking_table("data-ranking", record, measured),
        is_wide=True,
    )


def ranking_table(name: str, record: StudyRecord, layouts: Sequence[RankedLayout]) -> Table:
    """Layouts with what was predicted and measured of each."""
    seconds = words.aligned([layout.seconds for layout in layouts])
    values = words.aligned([layout.measured for layout in layouts])
    columns = [
        Column("trial", True, True),
        Column("layout", class_="long"),
        Column("predicted s", True, key="predicted seconds per step"),
        Column("of the least", True),
        Column(record.metric, True),
        Column("of the best", True),
        Column("# predicted", True, key="rank predicted"),
        Column("# measured", True, key="rank measured"),
    ]
    rows = [
        Row(
            [
                Cell(layout.trial.number, layout.trial.number),
                Cell(record.label(layout.trial)),
                Cell(seconds[i], layout.seconds),
                Cell(words.share(layout.seconds_share), layout.seconds_share),
                Cell(layout.trial.word if layout.measured is None else values[i], layout.measured),
                Cell(words.share(layout.measured_share), layout.measured_share),
                Cell(words.number(layout.predicted_rank), layout.predicted_rank),
                Cell(words.number(layout.measured_rank), layout.measured_rank),
            ]
        )
        for i, layout in enumerate(layouts)
    ]
    return Table(name, "Layouts, predicted and measured", columns, rows)


def _marks(
    record: StudyRecord, groups: Groups, points: Sequence[tuple[TrialRecord, float]], rings_best: bool = True
) -> list[dict[str, Any]]:
    """A mark where each trial's objective stands above its x, filled if it completed, and a ring around the best."""
    place, best = position(record), record.best
    looks: dict[tuple[int, bool], list[tuple[TrialRecord, float]]] = {}
    for trial, x in points:
        looks.setdefault((groups.of(trial), trial.standing is Standing.COMPLETED), []).append((trial, x))

    def trace(group: int, part: Sequence[tuple[TrialRecord, float]], marker: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "scatter",
            "mode": "markers",
            "x": packed([x for _, x in part], "f8"),
            "y": packed([t.latest or 0.0 for t, _ in part], "f8"),
            "trials": [[place(t), 1] for t, _ in part],
            "group": group,
            "marker": marker,
        }

    traces = [
        trace(group, part, {"size": 10, "symbol": SYMBOLS[group][0] + ("" if is_done else "-open")})
        for (group, is_done), part in sorted(looks.items(), key=lambda look: look[0])
    ]
    ringed = [(t, x) for t, x in points if t is best]
    if best and ringed and rings_best:
        ring = {"size": 20, "symbol": "circle-open", "line": {"width": 2}}
        traces.append(trace(groups.of(best), ringed, ring))
    return traces


def thinned(curve: Curve, limit: int) -> Curve:
    """At most about `limit` points that keep what is worth seeing: the ends, and the extremes of each stretch.

    Of a stretch, the lowest and the highest point stay, and the first that is no number at all, so neither a
    spike nor a gap disappears.
    """
    if len(curve) <= limit:
        return curve
    buckets = max(1, limit // 2 - 1)
    count = len(curve) - 2
    keep = [0]
    for b in range(buckets):
        part = range(1 + b * count // buckets, 1 + (b + 1) * count // buckets)
        finite = [i for i in part if math.isfinite(curve.values[i])]
        gap = next((i for i in part if not math.isfinite(curve.values[i])), None)
        ends = (
            {min(finite, key=curve.values.__getitem__), max(finite, key=curve.values.__getitem__)} if finite else set()
        )
        keep += sorted(ends if gap is None else ends | {gap})
    keep.append(len(curve) - 1)
    return Curve(array("q", [curve.steps[i] for i in keep]), array("d", [curve.values[i] for i in keep]))


def packed(numbers: Sequence[float], kind: str) -> dict[str, str]:
    """Numbers as plotly's typed arrays, which take less room than text. What does not fit becomes a gap.

    kind  u2: whole numbers below 65,536; f4: seven digits; f8: all digits
    """
    code, limit = {"u2": ("H", 65536.0), "f4": ("f", 3.4e38), "f8": ("d", math.inf)}[kind]
    values: array[Any] = array(code, numbers if kind == "u2" else [v if abs(v) < limit else math.nan for v in numbers])
    if sys.byteorder == "big":
        values.byteswap()
    return {"dtype": kind, "bdata": base64.b64encode(values.tobytes()).decode()}


def axis(title: str, logged: Sequence[float] | None = None, **more: Any) -> dict[str, Any]:
    """An axis; a logarithmic one for the values in `logged`, every label a whole number of its own."""
    plain = {"title": {"text": title}, "exponentformat": "e"} | more
    if not logged:
        return plain
    return plain | {"type": "log", "tickformat": ".2~e" if max(logged) < 0.1 else "~g"}


def plot_text(text: str) -> str:
    """plotly reads a few tags in its texts; what others wrote has none."""
    return escape(words.clean(text, 60))
