"""`hysweep doctor`: what is there and what is missing: here, in what `setup` fetched, on a cluster's nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hysweep.check import Finding, examine
from hysweep.cli.say import console_for, say
from hysweep.compose import Composer

if TYPE_CHECKING:
    from hysweep.launch.survey import Answer


def doctor(as_json: bool) -> int:
    findings = examine(Path("outputs"))
    broken = _broken(findings)
    if as_json:
        _print_json(findings)
    else:
        _print_table(findings)
        lacks = f"real verl cannot run here: {len(broken)} things are missing"
        say(lacks if broken else "real verl runs here: hysweep run")
    return 1 if broken else 0


def doctor_of_setup(directory: Path, as_json: bool) -> int:
    from hysweep.launch.setup import examine as examine_setup

    findings = examine_setup(directory)
    broken = _broken(findings)
    if as_json:
        _print_json(findings)
    else:
        _print_table(findings)
        say(f"{len(broken)} to mend" if broken else "all of it is there, as it was fetched")
    return 1 if broken else 0


def doctor_of_cluster(
    overrides: list[str],
    config_dirs: Sequence[Path],
    constraints: list[str],
    nodes: int | None,
    within: float,
    as_json: bool,
) -> int:
    from hysweep.cli.patience import hear_out
    from hysweep.launch import queue
    from hysweep.launch.survey import survey

    composition = Composer(config_dirs).compose(overrides)
    console = Console(stderr=True)
    with console.status("asking the cluster") if console.is_terminal else nullcontext():
        root = Path(composition.study.root).expanduser()
        with queue.telling(hear_out):
            answers = survey(composition.trial, root, constraints, nodes, within, partial(say, err=True))
    if as_json:
        say(json.dumps([a.as_dict() for a in answers], indent=1))
    else:
        for answer in answers:
            _print_answer(answer)
    bad = [a for a in answers if not a.is_good]
    if not as_json:
        say(
            f"{len(bad)} of {len(answers)} kinds of node have what is to be mended" if bad else "the cluster can run it"
        )
    return 1 if bad else 0


def _print_answer(answer: Answer) -> None:
    """A row for each thing looked at; where the nodes differ, what each says."""
    job = f"(job {answer.job_id})" if answer.job_id else ""
    title = " ".join(filter(None, [answer.kind, ", ".join(answer.nodes) or "no node", job]))
    table = Table(box=None, pad_edge=False, title=Text(title), title_justify="left", title_style="bold")
    for head in ("", "what", "found", "cure"):
        table.add_column(head, overflow="fold")
    names = dict.fromkeys(f.name for findings in answer.nodes.values() for f in findings)
    for name in names:
        by_node = {node: f for node, fs in answer.nodes.items() for f in fs if f.name == name}
        said = {f.found for f in by_node.values()}
        found = said.pop() if len(said) == 1 and len(by_node) > 1 else _each(by_node)
        bad = [f for f in by_node.values() if not f.is_good]
        mark = "[green]ok[/]" if not bad else "[red]bad[/]" if any(f.is_needed for f in bad) else "[yellow]look[/]"
        table.add_row(mark, name, Text(found), Text(bad[0].cure if bad else ""))
    if answer.problem:
        table.add_row("[red]bad[/]", "job", Text(answer.problem), Text(answer.refused.cure if answer.refused else ""))
    console_for().print(table)


def _each(by_node: Mapping[str, Finding]) -> str:
    if len(by_node) == 1:
        return next(iter(by_node.values())).found
    return "\n".join(f"{node}: {f.found}" for node, f in by_node.items())


def _broken(findings: Sequence[Finding]) -> list[Finding]:
    return [f for f in findings if f.is_needed and not f.is_good]


def _print_json(findings: Sequence[Finding]) -> None:
    say(json.dumps([asdict(f) for f in findings], indent=1))


def _print_table(findings: Sequence[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in ("", "what", "found", "cure"):
        table.add_column(head, overflow="fold")
    for f in findings:
        mark = "[green]ok[/]" if f.is_good else "[red]missing[/]" if f.is_needed else "[yellow]none[/]"
        table.add_row(mark, Text(f.name), Text(f.found), Text("" if f.is_good else f.cure))
    console_for().print(table)
