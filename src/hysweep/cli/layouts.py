"""`hysweep layouts`: a table of what fits, and a sweep of the best, whose report says how well the order predicted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hysweep.check import check_trial, errors
from hysweep.check.memory import cures, memory_fits
from hysweep.check.numbers import either
from hysweep.cli.say import console_for, say
from hysweep.cli.sweep_file import time_limit_min, write_sweep
from hysweep.compose import Composer
from hysweep.estimate.result import NEAR
from hysweep.schema import BadInput, Problem, Trial
from hysweep.schema.override import emit

if TYPE_CHECKING:
    from hysweep.layouts.search import Found

SHOWN = {
    "rank": "#", "tensor": "TP", "pipeline": "PP", "virtual_pipeline": "VPP", "context": "CP", "data": "DP",
    "expert": "EP", "expert_tensor": "ETP", "rollout_tensor": "rTP", "rollout_data": "rDP", "nodes": "nodes",
    "seconds": "step", "train_gib": "train", "rollout_gib": "roll", "resume_gib": "resume",
    "margin_gib": "free", "kv_sequences": "seqs",
    "longest": "longest",
}  # fmt: skip


BOUNDLESS = 1e6  # GiB of a GPU into which everything fits
MOST_GPUS = 1024  # of the clusters that a cure looks at
STEP = "step: seconds, predicted and not measured: to rank by."
LEGEND = """\
train, roll, resume, free: GiB of a GPU, at the fullest.
seqs: whole sequences in a replica's cache. longest: tokens that the ranks of a sequence may hold. rTP, rDP: rollout."""
NOT_SURE = f"~: within the estimate's error of {NEAR * 100:g} % of the GPU's memory: it may not fit."


def layouts(
    overrides: list[str],
    config_dirs: Sequence[Path],
    sort: str,
    top: int,
    any_nodes: bool,
    sweep: Path | None,
    as_json: bool,
) -> int:
    from hysweep.layouts.cost import machine_of
    from hysweep.layouts.search import as_rows, search

    sort = _column(sort)
    composition = Composer(config_dirs).compose(overrides)
    if composition.space:
        key = next(iter(composition.space))
        raise BadInput(Problem(key, "varies", "layouts are of one trial", "give it one value"))
    faults = errors(check_trial(composition.trial, without=[memory_fits]))
    if any(p.key in ("cluster.nodes", "rollout.engine") for p in faults):
        raise BadInput(*faults)
    given = {o.lstrip("+").partition("=")[0] for o in composition.fixed}
    found = search(composition.trial, any_nodes, given)
    order = found.order(sort)
    rows = list(as_rows(found, order, top))
    is_predicted = machine_of(composition.trial) is not None
    for row in rows if not is_predicted else ():
        row |= {name: None for name in row if name == "seconds" or name.endswith("_s")}
    chosen = found.distinct(order, sort)[:top] if sweep is not None else order[:1]
    placed = [found.placed(composition.trial, int(row)) for row in chosen]
    placed = placed or _legal(composition.trial, any_nodes, given)
    told = (p for t in placed for p in errors(check_trial(t, without=[] if rows else [memory_fits])))
    problems = list({str(p): p for p in told}.values())
    if sweep is not None and rows and not problems:
        limit = composition.trial.cluster.timeout_min
        if is_predicted:
            limit = min(limit, time_limit_min(max(found.table["seconds"][chosen], default=0.0)))
        said = ["--sort", sort, "--top", str(top), *(["--any-nodes"] if any_nodes else [])]
        write_sweep(
            sweep,
            overrides,
            config_dirs,
            [found.overrides(int(row)) for row in chosen],
            said,
            limit,
        )
    cure = None if rows else _cure(composition.trial, found, any_nodes, given)
    if cure:
        say(f"no layout to offer: {cure}", err=True)
    for problem in problems:
        say(f"problem: {problem}", err=True)
    if problems:
        refused = "the first of these" if sweep is None else f"what {sweep} would hold, so it is not written"
        refused = refused if rows else "this whatever the layout"
        say(f"`hysweep check` refuses {refused}", err=True)
    answer = 0 if rows and not problems else 1
    if as_json:
        facts = {"legal": found.legal, "fitting": found.fitting, "layouts": rows, "cure": cure}
        say(json.dumps(facts | {"problems": [p.as_dict() for p in problems]}, indent=1, default=str))
        return answer
    if rows:
        _print(rows)
    card = composition.trial.cluster
    say(
        f"{found.legal:,} legal layouts on {composition.trial.world_size} x {card.gpu}, {found.fitting:,} fit in "
        f"{card.gpu_memory_gib} GiB" + (f"; the best {len(rows)} by {sort}" if rows else "")
    )
    if rows:
        unknown = f"no step is predicted: of a {card.gpu} no speeds are known; ranked as if it were an H100."
        say(f"{STEP if is_predicted else unknown} {LEGEND}")
        if not all(row["is_sure"] for row in rows):
            say(NOT_SURE)
        best = " ".join(f"{k}={emit(v)}" for k, v in found.overrides(int(order[0])).items())
        say(f"the first: {best}")
    if sweep is not None and not answer:
        places = [word for d in config_dirs for word in ("--config-dir", str(d))]
        command = shlex.join(["hysweep", "run", "-m", f"sweep={sweep}", *places])
        say(f"written: {sweep}; {command}")
        say("its report says how well this ranking predicted the measured one")
    return answer


def _legal(trial: Trial, any_nodes: bool, given: Collection[str]) -> list[Trial]:
    """The trial in one of its legal layouts, if there is one: what is wrong with it is so whether it fits or not."""
    from hysweep.layouts.search import search

    roomy = replace(trial, cluster=replace(trial.cluster, gpu_memory_gib=BOUNDLESS))
    found = search(roomy, any_nodes, given)
    return [found.placed(trial, 0)] if found.fitting else []


def _column(said: str) -> str:
    """The column to sort by, by its name or by what the table has above it. Raises BadInput where there is none."""
    from hysweep.layouts.search import SORTS

    heads = {SHOWN[name]: name for name in SORTS}
    column = heads.get(said, said)
    if column not in SORTS:
        known = ", ".join(name if name == head else f"{name} ({head})" for head, name in heads.items())
        raise BadInput(Problem("--sort", said, "there is no such column", f"choose of {known}"))
    return column


def _cure(trial: Trial, found: Found, any_nodes: bool, given: Collection[str]) -> str:
    """What helps where no layout is both legal and fits: changes of memory with which some layout does."""
    from hysweep.layouts.search import FIELDS, search

    held = [field for field, _ in FIELDS.values() if field in given]
    other = [f"leave out {' or '.join(held)}"] if held else []
    if not found.legal:
        if errors(check_trial(trial, without=[memory_fits])):
            return "none is legal; `hysweep check` says why"
        return "; or ".join(["none is legal of those that are looked at", *(other or ["take another cluster.nodes"])])
    helping = cures(trial, lambda changed: search(changed, any_nodes, given).fitting > 0)
    nodes = [trial.cluster.nodes * times for times in (2, 4, 8, 16) if trial.world_size * times <= MOST_GPUS]
    grown = (replace(trial, cluster=replace(trial.cluster, nodes=n)) for n in nodes)
    enough = next((bigger.cluster.nodes for bigger in grown if search(bigger, given=given).fitting), None)
    more = f"give cluster.nodes={enough}" if enough else "take more cluster.nodes"
    return "; or ".join([*other, *([f"give {either(helping[:2])}"] if helping else []), more])


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    shown = {name: head for name, head in SHOWN.items() if rows[0].get(name) is not None}
    if len({row["nodes"] for row in rows}) == 1:
        del shown["nodes"]
    for head in shown.values():
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(row, name) for name in shown))
    console_for().print(table)


def _text(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if name == "pipeline" and (row["first_stage_layers"] or row["last_stage_layers"]):
        return f"{value} ({row['first_stage_layers']}..{row['last_stage_layers']})"
    if name == "margin_gib" and not row["is_sure"]:
        return f"~{value:.1f}"
    return f"{value:.1f}" if isinstance(value, float) else f"{value}"
