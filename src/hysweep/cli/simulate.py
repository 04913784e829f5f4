"""`hysweep simulate`: what a study would come to, on a cluster that there is not."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from hysweep.check import errors
from hysweep.cli.desk import print_problems, refuse_empty
from hysweep.cli.say import say
from hysweep.compile import nodes_of
from hysweep.compose import Composer
from hysweep.launch.simulated import BOOT_S, SimulatedCluster
from hysweep.report import words
from hysweep.schema import BadInput, Problem, hour_unit, suggest
from hysweep.study import Definition, define, preview, study_problems
from hysweep.study.curves import Curves, Given, Model, Recorded
from hysweep.study.home import refuse_nested
from hysweep.study.simulation import Outcome, Stay, simulate_study, without_pruning
from hysweep.study.simulation import Progress as Tell
from hysweep.track import Cause, StudyDirectory, Verdict

CLUSTER_WORDS = ("nodes", "boot_s")
_STYLES = {Cause.COMPLETED: "green", Cause.KILLED: "yellow"}  # a job is killed when its trial is pruned
MOST_LINES = 24  # of the picture: a trial each
BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Risks:
    preempt_per_day: float
    node_fail_per_day: float


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command line."""

    cluster: Sequence[str]
    curves: str
    like: Path | None
    step_s: float | None
    risks: Risks
    seed: int
    keep: Path | None

    def words(self) -> list[str]:
        """As they are typed; what has its usual value is left out."""
        given: list[tuple[str, object, object]] = [
            *(("--cluster", text, None) for text in self.cluster),
            ("--curves", self.curves, "model"),
            ("--like", self.like, None),
            ("--step-s", self.step_s, None),
            ("--preempt-per-day", self.risks.preempt_per_day, 0.0),
            ("--node-fail-per-day", self.risks.node_fail_per_day, 0.0),
            ("--seed", self.seed, 0),
            ("--keep", self.keep, None),
        ]
        return [word for name, value, usual in given if value != usual for word in (name, str(value))]


def simulate(overrides: list[str], is_sweep: bool, config_dirs: Sequence[Path], asked: Asked, as_json: bool) -> int:
    if asked.keep is not None:
        refuse_nested("--keep", asked.keep)
    composer = Composer(config_dirs)
    composition = composer.compose(overrides)
    refuse_empty(composition, is_sweep)
    dirs = [word for d in config_dirs for word in ("--config-dir", str(d))]
    definition = define(composition, ["hysweep", "simulate", *overrides, *asked.words(), *dirs])
    looked = preview(definition, composer)
    feasible = [p.trial for p in looked if p.is_feasible and p.trial is not None]
    if not feasible:
        say("no trial of this can run:", err=True)
        print_problems(looked, err=True)
        return 1
    of_study = study_problems(definition, looked)
    if faults := errors(of_study):
        raise BadInput(*faults)
    for problem in of_study:
        say(f"warning: {problem}", err=True)
    cluster = _cluster(asked, max(map(nodes_of, feasible)), definition.study.max_parallel)
    curves = _curves(asked, definition, composer)
    if asked.keep is not None and (there := asked.keep / definition.study.name).exists():
        raise BadInput(Problem("--keep", there, "is there already", "give another directory, or remove it"))
    with tempfile.TemporaryDirectory(prefix="hysweep-simulate-") as scratch:
        with _bar("simulating", as_json) as tell:
            kept = asked.keep.absolute() if asked.keep else Path(scratch) / "asked"
            found = simulate_study(definition, composer, cluster, curves, kept, asked.step_s, tell)
        unpruned = None
        if definition.study.rules:
            with _bar("the same without pruning", as_json) as tell:
                whole = without_pruning(definition)
                unpruned = simulate_study(whole, composer, cluster, curves, Path(scratch) / "whole", asked.step_s, tell)
    if as_json:
        told = {"study": definition.study.name, "nodes": cluster.nodes, **found.as_dict()}
        say(json.dumps(told | {"without_pruning": unpruned and unpruned.as_dict()}, indent=1, default=str))
    else:
        _print(cluster, found, unpruned, hour_unit(feasible[0].has_gpu))
        if asked.keep is not None:
            say(f"kept: hysweep status {StudyDirectory(asked.keep / definition.study.name).path}")
    return 0 if found.count(Verdict.VALUE) else 1


def _cluster(asked: Asked, nodes_a_trial: int, max_parallel: int) -> SimulatedCluster:
    given: dict[str, float] = {}
    for word in (part for text in asked.cluster for part in text.split(",")):
        name, _, text = word.partition("=")
        if name not in CLUSTER_WORDS:
            raise BadInput(Problem("--cluster", word, "is unknown", suggest(name, CLUSTER_WORDS)))
        try:
            given[name] = int(text) if name == "nodes" else float(text)
        except ValueError:
            given[name] = -1.0
        if not 0 <= given[name] < float("inf") or (name == "nodes" and given[name] < nodes_a_trial):
            least = f"{nodes_a_trial} or more" if name == "nodes" else "seconds"
            why = "is no such number" if name != "nodes" else f"must hold a trial of {nodes_a_trial} nodes"
            raise BadInput(Problem(f"--cluster {name}", text, why, f"give {least}"))
    return SimulatedCluster(
        nodes=int(given.get("nodes", nodes_a_trial * max_parallel)),
        boot_s=given.get("boot_s", BOOT_S),
        preempt_per_day=asked.risks.preempt_per_day,
        node_fail_per_day=asked.risks.node_fail_per_day,
        seed=asked.seed,
    )


def _curves(asked: Asked, definition: Definition, composer: Composer) -> Curves:
    if asked.like is not None:
        if asked.curves != "model":
            raise BadInput(Problem("--like", asked.like, "says the same as --curves", "give one of them"))
        return Recorded(StudyDirectory(asked.like.absolute()), definition.space)
    if asked.curves == "model":
        return Model(definition.space, definition.study, asked.seed)
    return Given(Path(asked.curves), composer.words, definition.space, definition.study)


@contextmanager
def _bar(what: str, as_json: bool) -> Iterator[Tell]:
    """A progress bar on stderr, where a person looks."""
    if as_json or not sys.stderr.isatty():
        yield lambda ended, of: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda ended, of: bar.update(task, completed=ended, total=of)


def _print(cluster: SimulatedCluster, found: Outcome, unpruned: Outcome | None, unit: str) -> None:
    console = Console()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("simulated", justify="right")
    if unpruned is not None:
        table.add_column("without pruning", justify="right")
    columns = [c for c in (found, unpruned) if c is not None]
    for name, of in _rows(unit).items():
        table.add_row(name, *(of(c) for c in columns))
    console.print(table)
    if unpruned is not None:
        console.print(_saved(found, unpruned, unit))
    console.print(Text(f"over: {found.why_over}"), soft_wrap=True)
    if found.best_point is not None:
        console.print(Text(f"best: {words.label(found.best_point)}"), soft_wrap=True)
    console.print(_picture(cluster, found, console.width))


def _rows(unit: str) -> dict[str, Callable[[Outcome], str]]:
    return {
        "makespan": lambda o: words.duration(o.makespan_s),
        unit: lambda o: words.hours(o.gpu_hours),
        "  of them boot": lambda o: words.hours(o.boot),
        "  wasted": lambda o: words.hours(math.fsum(o.wasted.values())),
        "hours in the queue": lambda o: words.hours(o.queued_h),
        "utilisation": lambda o: f"{o.utilisation:.0%}",
        "trials completed": lambda o: f"{o.count(Verdict.VALUE):,}",
        "pruned": lambda o: f"{o.count(Verdict.PRUNED):,}",
        "failed or infeasible": lambda o: f"{o.count(Verdict.FAILED) + o.count(Verdict.INFEASIBLE):,}",
        "best value": lambda o: words.number(o.best),
    }


def _saved(found: Outcome, unpruned: Outcome, unit: str) -> str:
    hours, seconds = unpruned.gpu_hours - found.gpu_hours, unpruned.makespan_s - found.makespan_s
    share = hours / unpruned.gpu_hours if unpruned.gpu_hours else 0.0
    sooner = f"ends {words.duration(abs(seconds))} {'sooner' if seconds >= 0 else 'later'}"
    verb = "saves" if hours >= 0 else "costs"
    return f"pruning {verb} {words.hours(abs(hours))} {unit} ({abs(share):.0%}) and {sooner}"


def _picture(cluster: SimulatedCluster, found: Outcome, width: int) -> Text:
    """Time from left to right: of a small study each trial's jobs, of a large one how many nodes were busy."""
    span = max(20, min(width, 100) - 8)
    if not found.makespan_s:
        return Text()
    if found.trials > MOST_LINES:
        busy = [0.0] * span
        for stay in found.stays:
            for column, share in _columns(stay, found.makespan_s, span):
                busy[column] += share * stay.nodes
        bars = "".join(BARS[round(min(1.0, b / cluster.nodes) * (len(BARS) - 1))] for b in busy)
        return Text.assemble("nodes   ", (bars, "cyan"))
    picture = Text()
    for trial in sorted({s.trial for s in found.stays}):
        line, styles = [" "] * span, [""] * span
        for stay in (s for s in found.stays if s.trial == trial):
            for column in range(int(stay.submitted / found.makespan_s * span), _last(stay.started, found, span)):
                line[column], styles[column] = "·", "dim"
            for column in range(int(stay.started / found.makespan_s * span), _last(stay.ended, found, span) + 1):
                line[column], styles[column] = "━", _STYLES.get(stay.cause, "red")
        picture.append(f"{trial:>6}  ", "dim")
        for mark, style in zip(line, styles, strict=True):
            picture.append(mark, style)
        picture.append("\n")
    return picture


def _last(at: float, found: Outcome, span: int) -> int:
    return min(span - 1, int(at / found.makespan_s * span))


def _columns(stay: Stay, makespan: float, span: int) -> Iterator[tuple[int, float]]:
    """The columns of a picture in which a job ran, with the share of each."""
    start, end = stay.started / makespan * span, stay.ended / makespan * span
    for column in range(int(start), min(span, math.ceil(end))):
        yield column, min(end, column + 1) - max(start, column)
