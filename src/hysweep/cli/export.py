"""`hysweep export`: a study as tables for other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from hysweep.cli.address import study_at
from hysweep.cli.say import say
from hysweep.cli.study import shown, tell_faults
from hysweep.report import read_study
from hysweep.report.export import FORMATS
from hysweep.report.export import export as write
from hysweep.schema import BadInput, Problem


def export(path: Path, format: str, target: Path | None, as_json: bool) -> None:
    directory = study_at(path)
    if target is not None and target.suffix.lstrip(".") in FORMATS and not target.is_dir():
        why = "is the name of a file, and there are three: trials, metrics, ledger"
        cure = f"name a directory for them, as -o {target.with_suffix('')} --format {target.suffix.lstrip('.')}"
        raise BadInput(Problem("-o", target, why, cure))
    record = read_study(directory)
    tell_faults(record)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("metrics", total=len(record.trials))
        into = target or directory.path / "export"
        files = write(record, format, into, lambda done, of: bar.update(task, completed=done))
    if as_json:
        say(json.dumps({"files": [str(f) for f in files], "trials": len(record.trials)}, indent=1))
        return
    for file in files:
        say(shown(file.absolute()))
