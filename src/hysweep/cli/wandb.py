"""`hysweep wandb sync` and `hysweep wandb report`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from hysweep.cli.address import study_at
from hysweep.cli.say import say
from hysweep.cli.study import shown
from hysweep.report import read_study, write_page
from hysweep.report.figures import metric_names
from hysweep.report.wandb.study import save_report, send_study, tracking_of, write_report
from hysweep.report.wandb.sync import NOTE, Sent, What, must_be_logged_in, sync
from hysweep.schema import BadInput
from hysweep.track import read_record, write_json


def sync_study(path: Path, is_dry: bool, as_json: bool) -> int:
    """Returns 1 when a run could not be sent."""
    directory = study_at(path)
    record = read_study(directory)
    tracking_of(record)
    if not is_dry:
        must_be_logged_in()
    results: list[Sent] = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("runs", total=len(record.trials))
        for result in sync(record, is_dry):
            results.append(result)
            bar.update(task, advance=1)
            if not as_json:
                _tell(result)
    study = "" if is_dry else _study(path)
    if as_json:
        say(json.dumps({"study": study, "trials": [r.as_dict() for r in results]}, indent=1))
    else:
        counts = {what: sum(r.what is what for r in results) for what in What}
        say(
            "; ".join(
                f"{n} {'trial' if n == 1 else 'trials'} {what.value.partition(':')[0]}"
                for what, n in counts.items()
                if n
            )
            or "no trials"
        )
        if study:
            say(f"study: {study}")
    return 1 if any(r.what is What.FAILED for r in results) else 0


def _tell(result: Sent) -> None:
    for why in result.left_out:
        say(f"trial {result.trial}: left out {why}", err=True)
    if result.what is What.FAILED:
        say(f"trial {result.trial}: {result.why}", err=True)
    elif result.what in (What.SENT, What.WOULD_SEND):
        say(f"trial {result.trial}: {result.steps} steps {result.what.value} {result.run}".rstrip())


def _study(path: Path) -> str:
    """The study's own run, with its report if that can be made."""
    directory = study_at(path)
    try:
        page = write_page(directory)
    except BadInput as e:
        say(f"no report in it: {e}", err=True)
        page = None
    where = send_study(read_study(directory), page)
    note = read_record(directory.path / NOTE) or {}
    write_json(directory.path / NOTE, note | {"run": where})
    return where


def report(path: Path, is_offline: bool, as_json: bool) -> int:
    directory = study_at(path)
    record = read_study(directory, metrics=metric_names())
    tracking_of(record)
    if is_offline or os.environ.get("WANDB_MODE") == "offline":
        file = shown(write_report(record))
        say(json.dumps({"file": str(file)}, indent=1) if as_json else file)
        return 0
    must_be_logged_in()
    url = save_report(record)
    say(json.dumps({"url": url}, indent=1) if as_json else url)
    return 0
