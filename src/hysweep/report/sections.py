"""The sections of the page: each a function of the study to markup, or to None where there is nothing to say.

A new section is one more function in `SECTIONS`, a new curve one more row of `figures.METRICS`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from hysweep.report import figures, searching, words
from hysweep.report.explaining import explanation
from hysweep.report.figures import SYMBOLS, Figure, Groups
from hysweep.report.html import Cell, Column, Html, Row, Table, element, join
from hysweep.report.ranking import Ranking, ranking
from hysweep.report.records import AXES, SCORE, AttemptRecord, Standing, StudyRecord, TrialRecord
from hysweep.schema import BadInput
from hysweep.schema.override import emit
from hysweep.schema.search import PRUNER_OPTIONS, SAMPLER_OPTIONS, Confirm, Promote
from hysweep.study.importance import Importances
from hysweep.track import Cause, Phase

SHOWN_FAILURES = 3

# Ends of an attempt that nobody has to look into.
_FINE = frozenset({Cause.COMPLETED, Cause.PRUNED, Cause.RUNG, Cause.CANCELLED})


class View:
    """The record with what several sections need of it, made once."""

    def __init__(self, record: StudyRecord) -> None:
        self.record = record
        self.groups: Groups = figures.grouped(record)
        self.curves: list[Figure] = figures.curves(record, self.groups)
        self.scatters: list[Figure] = figures.scatters(record, self.groups)
        self.importances: Importances | None = searching.importances_of(record)
        self.searched: list[Figure] = _there(
            searching.history(record, self.groups),
            searching.importance(record, self.importances),
            searching.parallel(record, self.groups),
            *searching.chosen(record, self.groups),
            *self.scatters,
            searching.contour(record, self.groups, self.importances),
        )
        self.ran: list[Figure] = _there(searching.timeline(record, self.groups))
        self.ends: list[Figure] = _there(searching.ends(record, self.groups))
        self.trade_offs: list[Figure] = figures.pareto(record, self.groups)
        self.ranking: Ranking | None = ranking(record)
        self.ranked: Figure | None = figures.ranked(record, self.groups, self.ranking) if self.ranking else None

    def data(self) -> dict[str, Any]:
        """What the page's script works on. plotly reads a few tags in its texts, so these are escaped as well."""
        trials = self.record.trials
        places = {t.number: i for i, t in enumerate(trials)}
        return {
            "groups": self.groups.names,
            "numbers": [t.number for t in trials],
            "points": [self.record.label(t) for t in trials],
            "order": [places[t.number] for t in self.record.ranked],
            "trials": [escape(f"trial {t.number} · {self.record.label(t)} · {t.word}") for t in trials],
            "unit": self.record.hour_unit,
            "axes": figures.axes(self.record) if self.curves else {},
            "figures": {f.name: f.spec() for f in self.figures},
        }

    @property
    def figures(self) -> list[Figure]:
        more = [self.ranked] if self.ranked else []
        return [*self.trade_offs, *self.curves, *self.searched, *self.ran, *self.ends, *more]


def _there(*found: Figure | None) -> list[Figure]:
    return [figure for figure in found if figure is not None]


# ---- head -------------------------------------------------------------------------------------------


def header(view: View) -> Html:
    record = view.record
    faults = [element("p", fault, class_="warn") for fault in record.faults[:20]]
    made_up = _badge("simulated: nothing was trained", Standing.FAILED) if record.directory.is_simulated else None
    title = element("div", element("h1", record.name), _study_badge(record), made_up, class_="title")
    started = join(["Started ", time_of(record.created), " · "]) if record.created else None
    made = element("p", started, "page made ", time_of(record.read_at), class_="soft small")
    return element("header", title, _question(record), made, *faults, _cards(view), class_="top")


def _study_badge(record: StudyRecord) -> Html:
    counts = record.counts
    if record.is_live:
        return _badge("running" if Standing.RUNNING in counts else "waiting", Standing.RUNNING)
    if not record.trials:
        return _badge("no trial yet", Standing.WAITING)
    return _badge("finished", Standing.COMPLETED) if record.best else _badge("nothing completed", Standing.FAILED)


def _question(record: StudyRecord) -> Html:
    parts: list[object] = []
    for goal in record.goals:
        reduced = {
            "last": "its last value",
            "best": "its best value",
            "mean_last": f"the mean of its last {goal.last} values",
            "auc": "the area under its curve",
        }.get(goal.reduce, "")
        verb = "minimise " if goal.direction == "minimize" else "maximise "
        parts += [", " if parts else "", verb if parts else verb.capitalize(), element("code", goal.metric)]
        parts += [f" ({reduced})" if reduced and goal.metric != "gpu_hours" else ""]
    parts += [
        _extent(record),
        f", each point with {len(record.seeds)} seeds" if len(record.seeds) > 1 else "",
        f", {record.setting('max_parallel')} at a time, sampler {record.sampler}" if record.space else "",
    ]
    if record.pruner.get("name") not in (None, "none"):
        parts += [f", pruner {record.pruner['name']}"]
        if record.pruned_by != record.metric:
            parts += [" on ", element("code", record.pruned_by)]
    if record.budget_gpu_hours is not None:
        parts += [f", at most {words.hours(record.budget_gpu_hours)} {record.hour_unit}"]
    if top := record.part("confirm").get("top"):
        again = words.counted(record.part("confirm").get("seeds", Confirm().seeds), "new seed")
        parts += [f"; then the best {top} with {again}" if top != 1 else f"; then the best with {again}"]
    return element("p", *parts, ".", class_="question")


def _extent(record: StudyRecord) -> str:
    n_trials = record.setting("n_trials")
    if n_trials:
        return f" over {words.counted(n_trials, 'trial')}"
    return " over every point of the space" if record.space else " in one trial"


# ---- summary ----------------------------------------------------------------------------------------------------


def _cards(view: View) -> Html:
    record = view.record
    return element(
        "div",
        _best_card(record),
        _trials_card(record),
        _time_card(record),
        *_cost_cards(record),
        class_="cards",
    )


def _card(title: str, big: object, *notes: object) -> Html:
    return element(
        "div",
        element("h2", title),
        element("p", big, class_="big"),
        *(element("p", n) for n in notes if n),
        class_="card",
    )


def _best_card(record: StudyRecord) -> Html:
    if record.best:
        mean = record.mean_of_best
        of = f"mean of {mean.count} runs" if mean and mean.count > 1 else None
        return _card("Best value", words.number(record.best_value), of, _trial_link(record, record.best))
    leading = _leading(record)
    if leading:
        return _card("Ahead so far", words.number(leading.latest), _trial_link(record, leading))
    if record.is_live or not record.trials:
        return _card("Best value", words.NOTHING, "no trial has completed yet")
    why = element("a", "why", href="#failures")
    return _card("Best value", words.NOTHING, join(["no trial has completed: ", why]))


def _trials_card(record: StudyRecord) -> Html:
    counts = record.counts
    bar = element(
        "div",
        *(element("span", class_=standing, style=f"flex-grow:{n}") for standing, n in counts.items()),
        class_="bar",
        aria_hidden="true",
    )
    told = join(
        (element("span", f"{n} {standing}", class_=f"{standing} nowrap") for standing, n in counts.items()),
        " · ",
    )
    n_trials = record.setting("n_trials")
    more = f", {record.confirming} that confirm" if record.confirming else ""
    of = element("span", (f" of {n_trials}" if n_trials else "") + more, class_="soft small")
    return element(
        "div",
        element("h2", "Trials"),
        element("p", len(record.trials) - record.confirming, of, class_="big"),
        bar,
        element("p", told),
        class_="card",
    )


def _time_card(record: StudyRecord) -> Html:
    return _card(
        "Time",
        words.duration(record.seconds),
        "from start to last end" if record.trials and not record.is_live else "so far",
    )


def _cost_cards(record: StudyRecord) -> list[Html]:
    unit = record.hour_unit
    budget = f"of {words.hours(record.budget_gpu_hours)} allowed" if record.budget_gpu_hours is not None else None
    slots = None if record.has_gpu else "no GPU: hours of a worker slot"
    cards = [_card(unit[0].upper() + unit[1:], words.hours(record.gpu_hours), budget, slots)]
    pruned = record.counts.get(Standing.PRUNED, 0)
    if pruned:
        saved = f"{unit}: the steps that {words.counted(pruned, 'pruned trial')} did not take"
        cards.append(_card("Saved by pruning", f"≈ {words.hours(record.saved_gpu_hours)}", saved))
    refused = record.counts.get(Standing.INFEASIBLE, 0)
    if refused and record.refused_gpu_hours:
        saved = f"{unit}: what {words.counted(refused, 'refused point')} would have taken, if as much as those that ran"
        cards.append(_card("Saved by refusing", f"≈ {words.hours(record.refused_gpu_hours)}", saved))
    if (ahead := record.forecast) is not None:
        more = f"{unit} in all, after {words.counted(ahead.trials, 'more trial')}, if they go like those that ended"
        when = f"in about {words.duration(ahead.seconds)}" if ahead.seconds else None
        cards.append(_card("Forecast", f"≈ {words.hours(record.gpu_hours + ahead.gpu_hours)}", more, when))
    return cards


def _leading(record: StudyRecord) -> TrialRecord | None:
    """The best that is still running, for as long as none has completed."""
    running = [t for t in record.ranked if t.standing is Standing.RUNNING and t.latest is not None]
    return running[0] if running else None


# ---- sections ---------------------------------------------------------------------------------------------------


def _won(view: View) -> Html | None:
    record = view.record
    best = record.best
    if best is None:
        return None
    names = words.short_keys(best.point)
    point = element(
        "dl",
        element("div", element("dt", record.metric), element("dd", words.number(best.value))),
        *(
            element(
                "div",
                element("dt", key if names[key] == key else f"{key}"),
                element("dd", words.value(key, v, record.space)),
            )
            for key, v in best.point.items()
        ),
        class_="point",
    )
    again = run_again(record, best)
    parts = [
        element(
            "div",
            element("h3", f"Trial {best.number} ", element("code", best.short_id, class_="soft")),
            element("p", _margin(record, best), class_="soft"),
            point,
        ),
        element("div", element("h3", "Run it again"), _command("again", again), _snapshot_hint(record)),
        _difference(record, best),
        element(
            "details",
            element("summary", "Full configuration"),
            element("pre", _config_text(best), class_="text"),
        ),
    ]
    return element("div", *parts, class_="panel winner")


def _margin(record: StudyRecord, best: TrialRecord) -> str:
    own = record.replicates(best)
    done = (t for t in record.ranked if t.standing is Standing.COMPLETED and t.value is not None)
    second = next((t for t in done if t is not best and t not in own), None)
    where = f"trial {second.number} ({record.label(second)})" if second else ""
    if (mean := record.mean(best)) and mean.half_width is not None:
        after = f" The next point, that of {where}, has {words.interval(record.mean(second))}." if second else ""
        return f"Its point has {words.interval(mean)} (95 %) over {mean.count} seeds.{after}"
    if second is None or best.value is None or second.value is None:
        return "The only trial that completed."
    apart = abs(best.value - second.value)
    if not apart:
        return f"Level with {where}; the earlier trial is named."
    return f"{words.number(apart)} ahead of {where}, from one run each."


def run_again(record: StudyRecord, trial: TrialRecord) -> str:
    """The command that makes this one training again, from any directory, as a study of its own beside this one.

    A value on the command line takes its key out of the space of a sweep file, so that nothing varies. What would make
    more trainings of it is turned off. Config groups that are not the shipped ones are those that the study keeps.
    """
    parts: dict[str, Confirm | Promote] = {"confirm": Confirm(), "promote": Promote()}
    own = {"study.name", "study.enqueue", "study.n_trials", *trial.point, *(f"study.{part}" for part in parts)}
    said = {o: o.partition("=")[0].lstrip("+~") for o in record.overrides}
    fixed = [o for o, key in said.items() if not own & {key, ".".join(key.split(".")[:2])}]
    point = [f"{key}={_emitted(value)}" for key, value in trial.point.items()]
    name = [f"study.name={_emitted(f'{record.directory.name}-trial-{trial.number}')}"]
    off = ["study.enqueue=[]"] if record.setting("enqueue") else []
    for part, usual in parts.items():
        given = record.part(part)
        off += [f"study.{part}.{k}={_emitted(v)}" for k, v in asdict(usual).items() if given.get(k, v) != v]
    off += ["study.n_trials=null"] if record.settings.get("n_trials") else []
    kept = ["--config-dir", str(record.directory.conf.absolute())] if _has_own_groups(record) else []
    return _from_anywhere(record, shlex.join(["hysweep", "run", *kept, *fixed, *point, *off, *name]))


def _from_anywhere(record: StudyRecord, command: str) -> str:
    """Relative paths are from where the study was started."""
    return f"cd {shlex.quote(record.cwd)} && {command}" if record.cwd else command


def _has_own_groups(record: StudyRecord) -> bool:
    """Whether the config groups that a study keeps hold anything that is not shipped as it stands there."""
    from hysweep.compose import SHIPPED

    conf = record.directory.conf
    kept = {path: SHIPPED / path.relative_to(conf) for path in conf.rglob("*.yaml")}
    return any(not there.is_file() or there.read_bytes() != path.read_bytes() for path, there in kept.items())


def _emitted(value: Any) -> str:
    try:
        return emit(value)
    except (TypeError, ValueError):
        return str(value)


def _snapshot_hint(record: StudyRecord) -> Html | None:
    conf = record.directory.conf.absolute()
    if not conf.is_dir() or _has_own_groups(record):
        return None
    return element(
        "p",
        "Should the config groups have changed since, add ",
        element("code", f"--config-dir {shlex.quote(str(conf))}"),
        ": the groups as they were when the study began.",
        class_="soft small",
    )


def _difference(record: StudyRecord, best: TrialRecord) -> Html:
    """Against the configuration that nothing was said of; where that cannot be composed, against the first trial."""
    first = record.trials[0]
    default = _default(record)
    if default is None and first is best:
        return element("p", "It is the first trial, so there is no difference to it.", class_="soft small")
    name, title = "default", "What differs from the default configuration"
    if default is None:
        name, title = f"trial {first.number}", f"What differs from the first trial, {record.label(first)}"
    one, other = _flat(first.config if default is None else default), _flat(best.config)
    changed = [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]
    rows = [Row([Cell(element("code", key), key), Cell(one.get(key, "")), Cell(other.get(key, ""))]) for key in changed]
    if not rows:
        return element("p", "Nothing differs from the default configuration.", class_="soft small")
    columns = [Column("key", is_head=True), Column(name), Column(f"trial {best.number}")]
    table = Table("difference", f"Trial {best.number} against the {name}", columns, rows)
    if len(rows) <= 12:
        return element("div", _tools(element("h3", title), table.csv_link()), table.html())
    summary = element("summary", f"{title}: {words.counted(len(rows), 'key')}")
    return element("details", summary, _tools(table.csv_link()), table.html())


def _default(record: StudyRecord) -> Mapping[str, Any] | None:
    """What `hysweep run` would train without a word, by the config groups as they were when the study began."""
    from hysweep.compose import Composer  # brings Hydra
    from hysweep.compose.composer import MISCOMPOSED, trial_yaml

    conf = record.directory.conf
    try:
        composer = Composer([conf], shipped=False) if conf.is_dir() else Composer()
        found = yaml.safe_load(trial_yaml(composer.compose([]).trial))
    except (BadInput, OSError, yaml.YAMLError, *MISCOMPOSED):
        return None
    return found if isinstance(found, dict) else None


def _asked(view: View) -> Html | None:
    record = view.record
    facts: list[tuple[str, Html]] = []
    if record.space:
        varied = [
            element("li", element("code", key), " ", element("code", r, class_="chip"))
            for key, r in record.space.items()
            if key in record.varied
        ]
        facts.append(("Varied", element("ul", *varied)))
    if record.filters:
        rejected = f" ({words.counted(record.filtered, 'drawn point')} rejected)" if record.filtered else ""
        facts.append(("Only where", join([join(element("code", f, class_="chip") for f in record.filters), rejected])))
    if record.overrides:
        facts.append(("Fixed", join(element("code", o, class_="chip") for o in record.overrides)))
    if record.command:
        facts.append(("Started by", _command("command", _from_anywhere(record, record.command))))
    if record.settings and record.space:
        facts.append(("Searched by", join(element("code", text, class_="chip") for text in _search_words(record))))
    if enqueued := [words.label(point, record.space) for point in record.enqueued]:
        facts.append(("Run first", join(element("code", text, class_="chip") for text in enqueued)))
    if record.commits:
        facts.append(
            ("Commit", join((f"{commit} of {Path(where).name}" for where, commit in record.commits.items()), " · "))
        )
    if record.versions:
        facts.append(("Versions", join((f"{name} {version}" for name, version in record.versions.items()), " · ")))
    if not facts:
        return None
    rows = (join([element("dt", name), element("dd", told)]) for name, told in facts)
    return element("div", element("dl", *rows, class_="facts"), class_="panel")


def _search_words(record: StudyRecord) -> list[str]:
    """The seed, the sampler and each pruner with all that it reads."""
    sampler = {"name": record.sampler} | dict(record.part("sampler"))
    told = [f"seed {record.setting('seed')}", _with_options(sampler, SAMPLER_OPTIONS, "sampler")]
    rules = [rule for rule in (record.pruner, *record.more_pruners) if rule.get("name") not in (None, "none")]
    every = {name: ("metric", "direction", "min_steps", *options) for name, options in PRUNER_OPTIONS.items()}
    return told + [_with_options(rule, every, "pruner") for rule in rules]


def _with_options(given: Mapping[str, Any], read: Mapping[str, Sequence[str]], kind: str) -> str:
    options = [f"{k} {given[k]}" for k in read.get(str(given["name"]), ()) if given.get(k) is not None]
    return ", ".join([f"{kind} {given['name']}", *options])


def _leaderboard(view: View) -> Html | None:
    record = view.record
    if not record.trials:
        return None
    trials, best, front = record.ranked, record.best, record.front
    names = words.short_keys(record.keys)
    values = words.aligned([t.latest for t in trials])
    firsts = words.aligned([t.score.first for t in trials])
    lasts = words.aligned([t.score.last for t in trials])
    hours = words.aligned_hours([t.gpu_hours for t in trials])
    rows = []
    for i, trial in enumerate(trials):
        is_done = trial.standing is Standing.COMPLETED
        rows.append(
            Row(
                [
                    Cell(i + 1 if is_done else "", i + 1 if is_done else None),
                    Cell(
                        join([trial.number, " ", element("code", trial.short_id, class_="soft")]),
                        trial.number,
                    ),
                    *(_point_cell(record, trial, key) for key in record.varied),
                    Cell(values[i], trial.latest),
                    *_more_values(record, trial),
                    Cell(_badge(trial.word, trial.standing), trial.word),
                    Cell(_steps(trial), trial.last_step),
                    Cell(firsts[i], trial.score.first),
                    Cell(lasts[i], trial.score.last),
                    Cell(words.duration(trial.seconds or None), round(trial.seconds) or None),
                    Cell(hours[i], round(trial.gpu_hours, 6)),
                ],
                id=f"trial-{trial.number}",
                class_="best" if trial is best or trial in front else None,
            )
        )
    columns = [
        Column("rank", True),
        Column("trial", is_head=True, class_="nowrap"),
        *(Column(names[key], figures.is_numeric(record, key), key=key) for key in record.varied),
        Column("value", True),
        *([Column("mean ± 95 %", True)] if record.has_replicates else []),
        *(Column(words.metric(goal.metric), True, key=goal.metric) for goal in record.goals[1:]),
        Column("state"),
        Column("steps", True),
        Column("first reward", True),
        Column("last reward", True),
        Column("time", True),
        Column(record.hour_unit, True),
    ]
    table = Table("leaderboard", "Leaderboard", columns, rows)
    search = element("input", type="search", placeholder="Filter, e.g. cispo completed", aria_label="Filter the trials",
                     data_filter="leaderboard")  # fmt: skip
    count = element(
        "span", words.counted(len(trials), "trial"), id="leaderboard-count", class_="soft small", role="status"
    )
    note = f"Value: {record.metric}; of a trial that did not complete, what it had come to."
    reward = f"Reward: {SCORE}."
    return join(
        [
            element("p", note, " ", reward, class_="soft small"),
            _tools(search, count, table.csv_link()),
            table.html(),
        ]
    )


def _more_values(record: StudyRecord, trial: TrialRecord) -> list[Cell]:
    """The mean over seeds, and the other objectives, where a study has them."""
    cells = []
    if record.has_replicates:
        mean = record.mean(trial)
        cells.append(Cell(words.interval(mean), mean.mean if mean else None))
    for i in range(1, len(record.goals)):
        value = trial.values[i] if i < len(trial.values) else None
        cells.append(Cell(words.number(value), value))
    return cells


def _pareto_section(view: View) -> Html | None:
    if not view.trade_offs:
        return None
    front = view.record.front
    links = join((_trial_link(view.record, t) for t in front), ", ")
    said = element(
        "p", f"No trial is better in every objective than {words.counted(len(front), 'trial')}: ", links, "."
    )
    return join([said, _marks(view), _figures(view.trade_offs)])


def _point_cell(record: StudyRecord, trial: TrialRecord, key: str) -> Cell:
    return Cell(words.coordinate(trial.point, key, record.space), trial.point.get(key))


def _curve_section(view: View) -> Html | None:
    if not view.curves:
        return None
    note = "A line is a trial" + (", the thick one the best." if view.record.best else ".")
    if figures.is_thinned(view.record, view.curves):
        note += " Of a long curve the lowest and the highest point of each stretch are drawn."
    return join([element("p", note, class_="soft small"), _legend(view), _figures(view.curves)])


def _search_section(view: View) -> Html | None:
    if not view.searched:
        return None
    told = searching.untold(view.record, view.importances)
    note = element("p", told, class_="soft small") if told else None
    return join([_marks(view), note, _figures(view.searched)])


def _ran_section(view: View) -> Html | None:
    return join([_marks(view), _figures(view.ran)]) if view.ran else None


def _ranking_section(view: View) -> Html | None:
    if view.ranking is None:
        return None
    table = figures.ranking_table("ranking-table", view.record, view.ranking.layouts)
    note = "Predicted: by the cost model of hysweep layouts, from each frozen trial. #: the rank among the measured."
    return join(
        [
            element("p", view.ranking.sentence),
            _tools(element("p", note, class_="soft small"), table.csv_link()),
            table.html(),
            *([_marks(view), _figures([view.ranked])] if view.ranked else []),
        ]
    )


def _marks(view: View) -> Html:
    """Which mark of a figure stands for what."""
    marks = (
        element("li", element("span", f"{SYMBOLS[i][1]} ", class_=f"g{i}", aria_hidden="true"), name)
        for i, name in enumerate(view.groups.names)
    )
    key = element("li", view.groups.key, class_="soft") if view.groups.key not in ("", "trial") else None
    return element("ul", key, *marks, class_="marks")


def _legend(view: View) -> Html:
    """Which colours and dashes there are, and a box to take each out of all figures."""
    groups = view.groups
    standings = view.record.counts

    def box(kind: str, value: object, label: str, swatch: str) -> Html:
        box = element("input", type="checkbox", checked=True, value=value, data_toggle=kind)
        return element("label", box, element("span", class_=f"swatch {swatch}", aria_hidden="true"), label)

    boxes = [box("groups", i, name, f"g{i}") for i, name in enumerate(groups.names)]
    if Standing.PRUNED in standings:
        boxes.append(box("dashes", "dash", "pruned", "dash soft"))
    if Standing.FAILED in standings or Standing.CANCELLED in standings:
        boxes.append(box("dashes", "dot", "failed or cancelled", "dot soft"))
    return element(
        "fieldset",
        element("legend", groups.key or "Shown"),
        *boxes,
        _most(len(view.record.trials)),
        _against(view.record),
        class_="legend",
    )


def _most(count: int) -> Html | None:
    """How many trials the curves show, the best first: beyond some dozens, lines hide each other."""
    if count <= 15:
        return None
    chosen = 25 if count > 40 else count
    options = [
        element("option", f"the best {n}" if n < count else f"all {n}", value=n, selected=n == chosen)
        for n in (10, 25, 50, count)
        if n <= count
    ]
    return element("label", "Curves of ", element("select", *options, id="most"))


def _against(record: StudyRecord) -> Html | None:
    """What curves are drawn against: the step, or anything else that some trial measured."""
    names = {"tokens": "tokens", "hours": "hours", "gpu_hours": record.hour_unit}
    measured = [name for name in AXES if any(len(t.axes.get(name, ())) > 1 for t in record.trials)]
    if not measured:
        return None
    options = [element("option", "steps", value="step"), *(element("option", names[n], value=n) for n in measured)]
    return element("label", "Against ", element("select", *options, id="against"))


def _figures(of: Iterable[Figure]) -> Html:
    return element("div", *map(_figure, of), class_="figures")


def _figure(figure: Figure) -> Html:
    caption = element("figcaption", element("h3", figure.title), element("p", figure.note))
    plot = element("div", class_="plot", data_figure=figure.name, role="img",
                   aria_label=f"{figure.title}: a plot; its data follow as a table")  # fmt: skip
    if figure.is_summarised:
        link = element(
            "a",
            "CSV of the points drawn",
            class_="csv",
            href="#",
            download=f"{figure.name}.csv",
            data_curve=figure.name,
        )
    else:
        link = figure.table.csv_link()
    data = element("details", element("summary", "Data"), _tools(link), figure.table.html())
    return element("figure", caption, plot, data, class_="full" if figure.is_wide else None)


def _pruned(view: View) -> Html | None:
    record = view.record
    trials = [t for t in record.trials if t.standing is Standing.PRUNED]
    if not trials:
        return None
    metric = record.pruned_by
    values = words.aligned([t.curve(metric).last for t in trials])
    saved = words.aligned_hours([t.saved_gpu_hours for t in trials])
    columns = [
        Column("trial", is_head=True),
        Column("at step", True),
        Column(metric, True),
        Column("why", class_="long"),
        Column(f"{record.hour_unit} saved", True),
    ]
    rows = [
        Row(
            [
                Cell(_trial_link(record, t), t.number),
                Cell(_steps(t), t.last_step),
                Cell(values[i], t.curve(metric).last),
                Cell(t.reason),
                Cell(saved[i], round(t.saved_gpu_hours, 6)),
            ]
        )
        for i, t in enumerate(trials)
    ]
    table = Table("pruned", "Pruned trials", columns, rows)
    note = "Saved: the steps left out, at the trial's own median time a step. Where it was heading is not known."
    ends = [_marks(view), _figures(view.ends)] if view.ends else []
    return join([_tools(element("p", note, class_="soft small"), table.csv_link()), table.html(), *ends])


@dataclass(frozen=True, slots=True)
class _Failure:
    """An attempt that went wrong, or a trial that was refused before it had one."""

    trial: TrialRecord
    attempt: AttemptRecord | None
    cause: Cause
    reason: str
    lines: tuple[str, ...] = ()


def _failures(view: View) -> Html | None:
    by_cause: dict[Cause, list[_Failure]] = {}
    for failure in _failed(view.record):
        by_cause.setdefault(failure.cause, []).append(failure)
    if not by_cause:
        return None
    groups = sorted(by_cause.items(), key=lambda item: -len(item[1]))
    return element("div", *(_cause(view.record, cause, failures) for cause, failures in groups), class_="panel")


def _failed(record: StudyRecord) -> Iterable[_Failure]:
    for trial in record.trials:
        seen = False
        for attempt in trial.attempts:
            is_last = attempt is trial.attempts[-1]
            # the controller has the last word on the last attempt: it knows what it asked to stop
            cause = trial.state.cause if is_last and trial.state.is_final else attempt.cause
            if cause is None or cause in _FINE:
                continue
            seen = True
            reason = (trial.reason if is_last else attempt.reason) or attempt.reason
            yield _Failure(trial, attempt, cause, reason, attempt.lines)
        cause = trial.state.cause
        if trial.state.is_final and cause is not None and cause not in _FINE and not seen:
            yield _Failure(trial, None, cause, trial.reason)


def _cause(record: StudyRecord, cause: Cause, failures: list[_Failure]) -> Html:
    """One cause with its attempts; many of them fold away behind the first few."""
    count = element("span", words.counted(len(failures), "attempt"), class_="soft small")
    if cause is Cause.INFEASIBLE:
        count = element("span", f"{len(failures)} refused before any job was asked for", class_="soft small")
    standing = Standing.INFEASIBLE if cause is Cause.INFEASIBLE else Standing.FAILED
    title = element("h3", _badge(cause, standing), count)
    articles = [_article(record, failure) for failure in failures]
    told = explanation(cause)
    hint = element("details", element("summary", "What it means, and what to do"), _prose(told)) if told else None
    rest = articles[SHOWN_FAILURES:]
    more = element("details", element("summary", f"{len(rest)} more"), *rest) if rest else None
    return element("div", title, hint, *articles[:SHOWN_FAILURES], more, class_="cause")


def _prose(markdown: str) -> Html:
    """A page of ours: paragraphs, lists, code and bold text. Nothing else is in them."""
    blocks = []
    for block in markdown.strip().split("\n\n"):
        if block.startswith("- "):
            items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
            blocks.append(element("ul", *(element("li", _inline(item)) for item in items)))
        elif not block.startswith("#"):
            blocks.append(element("p", _inline(block)))
    return element("div", *blocks, class_="prose")


def _inline(markdown: str) -> Html:
    parts = re.split(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^]]+)\]\([^)]+\)", markdown)
    made: list[object] = []
    for plain, code, bold, link in zip(
        parts[::4], [*parts[1::4], None], [*parts[2::4], None], [*parts[3::4], None], strict=True
    ):
        made += [plain, element("code", code) if code else element("strong", bold) if bold else link]
    return join(made)


def _article(record: StudyRecord, failure: _Failure) -> Html:
    trial, attempt = failure.trial, failure.attempt
    facts = []
    if attempt and len(trial.attempts) > 1:
        facts.append(f"attempt {attempt.number} of {len(trial.attempts)}")
    if attempt and attempt.phase is not Phase.UNKNOWN:
        facts.append(f"in {attempt.phase.replace('_', ' ')}")
    if attempt:
        facts.append(f"after step {attempt.last_step}" if attempt.last_step else "before its first step")
    if attempt is None or attempt is not trial.attempts[-1]:
        facts.append(f"then {trial.word}" if attempt else "never submitted")
    log = None
    if attempt:
        path = trial.directory.attempt(attempt.number).driver_log.relative_to(record.directory.path)
        log = element("p", "Whole log: ", element("code", path), class_="soft small")
    lines = element("pre", "\n".join(failure.lines), class_="text") if failure.lines else None
    return element(
        "article",
        element(
            "h4",
            _trial_link(record, trial),
            element("span", " · " + " · ".join(facts), class_="soft") if facts else None,
        ),
        element("p", failure.reason, class_="lines") if failure.reason else None,
        lines,
        log,
    )


def _costs(view: View) -> Html | None:
    record = view.record
    spent: dict[str, list[float]] = {}
    for entry in record.ledger:
        spent.setdefault(entry.cause, []).append(entry.gpu_hours)
    booked = sum(entry.gpu_hours for entry in record.ledger)
    running = record.gpu_hours - booked
    if running > 1e-9:
        under_way = [a for t in record.trials for a in t.attempts if a.cause is None]
        spent["not ended yet"] = [running] + [0.0] * (len(under_way) - 1)
    total = sum(map(sum, spent.values()))
    if not spent:
        return None
    causes = sorted(spent, key=lambda cause: -sum(spent[cause]))
    shown = words.aligned_hours([sum(spent[c]) for c in causes])
    wasted: Mapping[str, float] = {str(c): h for c, h in record.spending.wasted.items()}
    rows = []
    for cause, hours in zip(causes, shown, strict=True):
        share = sum(spent[cause]) / total if total else 0.0
        bar = element("span", element("span", style=f"width:{share:.1%}"), class_="share", aria_hidden="true")
        rows.append(
            Row(
                [
                    Cell(cause),
                    Cell(len(spent[cause]), len(spent[cause])),
                    Cell(hours, round(sum(spent[cause]), 6)),
                    Cell(join([f"{share:.0%} ", bar]), round(share, 6)),
                    Cell(words.hours(wasted.get(cause, 0.0)), round(wasted.get(cause, 0.0), 6)),
                ]
            )
        )
    columns = [
        Column("cause", is_head=True),
        Column("attempts", True),
        Column(record.hour_unit, True),
        Column("share", True),
        Column("wasted", True),
    ]
    table = Table("ledger", f"{record.hour_unit} by cause of end", columns, rows)
    note = f"{words.hours(total)} {record.hour_unit} in all, by what each attempt ended with."
    went = record.spending
    if went.is_known:
        note += (
            f" Of those booked {words.hours(went.productive)} went to steps that were kept, {words.hours(went.boot)} to"
            f" starting, {words.hours(sum(wasted.values()))} were wasted. Asked for: {words.hours(went.requested)};"
            f" in the queue: {words.hours(went.queued_h)} h."
        )
    return join([_tools(element("p", note, class_="soft small"), table.csv_link()), table.html()])


SECTIONS: tuple[tuple[str, str, Callable[[View], Html | None]], ...] = (
    ("What won", "won", _won),
    ("What was asked", "asked", _asked),
    ("Leaderboard", "trials", _leaderboard),
    ("Pareto front", "pareto", _pareto_section),
    ("Ranking of layouts", "ranking", _ranking_section),
    ("Training curves", "curves", _curve_section),
    ("Search", "search", _search_section),
    ("Timeline", "timeline", _ran_section),
    ("Pruned", "pruning", _pruned),
    ("Failures", "failures", _failures),
    ("Cost", "cost", _costs),
)


# ---- small parts ------------------------------------------------------------------------------------------------


def _trial_link(record: StudyRecord, trial: TrialRecord) -> Html:
    return element("a", f"trial {trial.number}", f" {record.label(trial)}".rstrip(), href=f"#trial-{trial.number}")


def _badge(word: object, standing: Standing) -> Html:
    return element("span", str(word).replace("_", " "), class_=f"badge {standing}")


def _command(name: str, command: str) -> Html:
    button = element("button", "Copy", type="button", data_copy=name, aria_label="Copy the command")
    return element("div", element("pre", element("code", command, id=name)), button, class_="command")


def _tools(*parts: object) -> Html:
    return element("div", *parts, class_="tools")


def time_of(unix: float | None) -> Html:
    try:
        iso = datetime.fromtimestamp(unix or math.nan).astimezone().isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        iso = None
    return element("time", words.moment(unix), datetime=iso)


def _steps(trial: TrialRecord) -> str:
    done = words.NOTHING if trial.last_step is None else str(trial.last_step)
    return f"{done} / {trial.total_steps}" if trial.total_steps else done


def _config_text(trial: TrialRecord) -> str:
    try:
        return trial.directory.config_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested dicts as dotted keys, values as text."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = words.value(f"{prefix}{key}", value)
    return flat
