"""`hysweep doctor`: what is there and what is missing: here, in what `setup` fetched, on a cluster's nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from hysweep.check import Finding, examine


def doctor(as_json: bool) -> int:
    findings = examine(Path("outputs"))
    broken = _broken(findings)
    if as_json:
        _print_json(findings)
    else:
        _print_table(findings)
        lacks = f"real verl cannot run here: {len(broken)} things are missing"
        click.echo(lacks if broken else "real verl runs here: hysweep run")
    return 1 if broken else 0


def doctor_of_setup(directory: Path, as_json: bool) -> int:
    from hysweep.launch.setup import examine as examine_setup

    findings = examine_setup(directory)
    broken = _broken(findings)
    if as_json:
        _print_json(findings)
    else:
        _print_table(findings)
        click.echo(f"{len(broken)} to mend" if broken else "all of it is there, as it was fetched")
    return 1 if broken else 0


def doctor_of_cluster(
    overrides: list[str],
    config_dirs: Sequence[Path],
    constraints: list[str],
    nodes: int | None,
    within: float,
    as_json: bool,
) -> int:
    raise NotImplementedError


def _broken(findings: Sequence[Finding]) -> list[Finding]:
    return [f for f in findings if f.is_needed and not f.is_good]


def _print_json(findings: Sequence[Finding]) -> None:
    click.echo(json.dumps([asdict(f) for f in findings], indent=1))


def _print_table(findings: Sequence[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in ("", "what", "found", "cure"):
        table.add_column(head, overflow="fold")
    for f in findings:
        mark = "[green]ok[/]" if f.is_good else "[red]missing[/]" if f.is_needed else "[yellow]none[/]"
        table.add_row(mark, f.name, f.found, "" if f.is_good else f.cure)
    Console().print(table)
