"""`hysweep layouts`: a table of what fits, and a sweep of the best, whose report says how well the order predicted."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hysweep.check import check_trial, errors
from hysweep.check.memory import cures, memory_fits
from hysweep.check.numbers import either
from hysweep.cli.sweep_file import time_limit_min, write_sweep
from hysweep.compose import Composer
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


MOST_GPUS = 1024  # of the clusters that a cure looks at
WIDE = 160  # columns, where nobody looks: nothing is cut
LEGEND = """\
step: seconds, predicted and not measured: to rank by. train, roll, resume, free: GiB of a GPU, at the fullest.
seqs: whole sequences in a replica's cache. longest: tokens that the ranks of a sequence may hold. rTP, rDP: rollout."""


def layouts(
    overrides: list[str],
    config_dirs: Sequence[Path],
    sort: str,
    top: int,
    any_nodes: bool,
    sweep: Path | None,
    as_json: bool,
) -> int:
    from hysweep.layouts.search import as_rows, search

    composition = Composer(config_dirs).compose(overrides)
    if composition.space:
        key = next(iter(composition.space))
        raise BadInput(Problem(key, "varies", "layouts are of one trial", "give it one value"))
    faults = errors(check_trial(composition.trial, without=[memory_fits]))
    place = [p for p in faults if p.key in ("cluster.nodes", "rollout.engine")]
    if place:
        raise BadInput(*place)
    given = {o.lstrip("+").partition("=")[0] for o in composition.fixed}
    found = search(composition.trial, any_nodes, given)
    order = found.order(sort)
    rows = list(as_rows(found, order, top))
    if sweep is not None:
        chosen = found.distinct(order, sort)[:top]
        slowest = max(found.table["seconds"][chosen], default=0.0)
        said = ["--sort", sort, "--top", str(top), *(["--any-nodes"] if any_nodes else [])]
        write_sweep(
            sweep,
            overrides,
            config_dirs,
            [found.overrides(int(row)) for row in chosen],
            said,
            min(composition.trial.cluster.timeout_min, time_limit_min(slowest)),
        )
    cure = None if rows else _cure(composition.trial, found, any_nodes, given)
    if cure:
        click.echo(f"no layout to offer: {cure}", err=True)
    if as_json:
        told = {"legal": found.legal, "fitting": found.fitting, "layouts": rows, "cure": cure}
        click.echo(json.dumps(told, indent=1))
        return 0 if rows else 1
    if rows:
        _print(rows)
    card = composition.trial.cluster
    click.echo(
        f"{found.legal:,} legal layouts on {composition.trial.world_size} x {card.gpu}, {found.fitting:,} fit in "
        f"{card.gpu_memory_gib} GiB" + (f"; the best {len(rows)} by {sort}" if rows else "")
    )
    if rows:
        click.echo(LEGEND)
        best = " ".join(f"{k}={emit(v)}" for k, v in found.overrides(int(order[0])).items())
        click.echo(f"the first: {best}")
    if sweep is not None and rows:
        places = [word for d in (sweep.parent.parent, *config_dirs) for word in ("--config-dir", str(d))]
        command = shlex.join(["hysweep", "run", "-m", f"sweep={sweep.stem}", *places])
        click.echo(f"written: {sweep}; {command}")
        click.echo("its report says how well this ranking predicted the measured one")
    return 0 if rows else 1


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
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    shown = {name: head for name, head in SHOWN.items() if name in rows[0]}
    if len({row["nodes"] for row in rows}) == 1:
        del shown["nodes"]
    for head in shown.values():
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(row, name) for name in shown))
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def _text(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if name == "pipeline" and (row["first_stage_layers"] or row["last_stage_layers"]):
        return f"{value} ({row['first_stage_layers']}..{row['last_stage_layers']})"
    return f"{value:.1f}" if isinstance(value, float) else f"{value}"
