"""The verb that reads a launch script: writes the experiment, and says what became of each override."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hysweep.cli.say import cell, console_for, say
from hysweep.schema import BadInput, Problem
from hysweep.scripts import Imported, import_script
from hysweep.track import write_text

STDIN = "-"


def import_(file: str, output: Path | None, verl: str, given: Sequence[str], force: bool, as_json: bool) -> int:
    """0: the experiment comes to what the script does; 1: it is written, and something differs or was left out."""
    content = read(file)
    if as_json and output is None:
        raise BadInput(Problem("--json", "stdout", "is where the experiment goes", "add -o FILE"))
    if output is not None and output.exists() and not force:
        raise BadInput(Problem("--output", output, "is there already", "give another, or add --force"))
    is_site = output is not None and output.absolute().parent.name == "cluster"
    name = file if file != STDIN else "stdin"
    imported = import_script(content, name, _label(file, output), verl, variables(given), is_site)
    if output is None:
        click.echo(imported.text, nl=False)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, imported.text)
    if as_json:
        say(json.dumps(_as_dict(imported), indent=1, default=str))
    else:
        _report(imported, output)
    return 1 if imported.faults or imported.unmeant else 0


def read(file: str) -> bytes:
    if file == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as e:
        raise BadInput(Problem("FILE", file, (e.strerror or str(e)).lower(), "give a launch script, or -")) from e
    except ValueError as e:  # a name that no file system has
        raise BadInput(Problem("FILE", repr(file)[:80], "is no name of a file", "give a launch script, or -")) from e


def _label(file: str, output: Path | None) -> str:
    """What the experiment's own groups are called."""
    stem = output.stem if output is not None else Path(file).stem if file != STDIN else ""
    return re.sub(r"[^A-Za-z0-9_\-]+", "_", stem).strip("_-") or "imported"


def variables(texts: Sequence[str]) -> dict[str, str]:
    """What `--set NAME=VALUE` gives to a script. Raises BadInput for what is no variable."""
    pairs = [text.partition("=") for text in texts]
    for text, (name, is_pair, value) in zip(texts, pairs, strict=True):
        if not is_pair or not name.isidentifier():
            raise BadInput(Problem("--set", text, "sets no variable", "write --set NAME=VALUE"))
        if re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", value):
            raise BadInput(Problem("--set", repr(text), "holds a control character", "leave it out"))
    return {name: value for name, _, value in pairs}


def _as_dict(imported: Imported) -> dict[str, Any]:
    return {
        "module": imported.module,
        "verl": imported.verl,
        "options": dict(imported.options),
        "sbatch": [asdict(row) for row in imported.header],
        "overrides": [asdict(row) for row in imported.rows],
        "differences": [asdict(d) for d in imported.differences],
        "notes": [asdict(note) for note in imported.notes],
        "environment": [{"name": n, "default": d, "line": line} for n, (d, line) in imported.defaults.items()],
        "needed": [{"name": n, "line": line} for n, line in imported.needed.items()],
        "is_proven": not imported.faults and not imported.unmeant,
    }


def _report(imported: Imported, output: Path | None) -> None:
    from rich.table import Table

    console = console_for(err=True)

    def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        found = Table(box=None, pad_edge=False)
        for head in heads:
            found.add_column(head, overflow="fold")
        for row in rows:
            found.add_row(*row)
        console.print(found)

    table(
        ("override", "became", "remark"),
        [
            (
                cell(row.override),
                cell(row.became or "-"),
                f"[red]line {row.line}: {cell(row.remark)}[/]" if row.is_fault else cell(row.remark),
            )
            for row in (*imported.header, *imported.rows)
        ],
    )
    if imported.differences:
        faulty = len(imported.unmeant)
        told = (f"{faulty} different, " if faulty else "") + f"{len(imported.differences) - faulty} on purpose"
        console.print(f"\nwhat comes out otherwise than in the script, {told}:")
        table(
            ("key", "before", "after", "why"),
            [
                (cell(d.key), cell(_short(d.before)), cell(_short(d.after)),
                 cell(d.why) if d.is_meant else f"[red]different[/] {cell(d.why)}")
                for d in imported.differences
            ],
        )  # fmt: skip
    for note in imported.notes:
        say(f"note: {note}", err=True)
    for name, line in imported.needed.items():
        say(f"note: line {line}: {name} is read of the environment, "
                   "and has no default: export it, or give it with --set", err=True)  # fmt: skip
    if imported.defaults:
        say(f"variables with a default: {_defaults(imported.defaults)}", err=True)
    say(_verdict(imported, output), err=True)


def _defaults(defaults: Mapping[str, tuple[str, int]]) -> str:
    return " ".join(f"{name}={value}" for name, (value, _) in defaults.items())


def _verdict(imported: Imported, output: Path | None) -> str:
    where = f"{output}: " if output is not None else ""
    count, differing = len(imported.faults), len(imported.unmeant)
    meant = len(imported.differences) - differing
    if not imported.module:
        asked = len(imported.header)
        found = f"{count} of {asked} settings left out" if count else f"{asked} settings"
        return f"{where}{found}; a cluster profile, for the directory cluster/ of a --config-dir"
    if imported.header and not count and not differing:
        where += f"{len(imported.header)} settings of the site; "
    if not count and not differing:
        but = f", but for {meant} keys that hysweep sets on purpose" if meant else ""
        return f"{where}{len(imported.rows)} overrides; verl {imported.verl} comes to the same configuration{but}"
    things = "settings" if imported.header else "overrides"
    and_meant = f", and {meant} on purpose" if meant else ""
    total = len(imported.header) + len(imported.rows)
    return f"{where}{count} of {total} {things} left out, {differing} keys different{and_meant}"


def _short(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
