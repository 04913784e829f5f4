"""Sending what a study has written offline: each trial's run once, with its attempts merged, and checked on arrival."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from hysweep.compose.composer import MISCOMPOSED, load_trial
from hysweep.launch.reach import why_unreachable
from hysweep.report.records import Standing, StudyRecord, TrialRecord
from hysweep.report.wandb.log import OfflineRun, Unreadable, merged, read, steps_of, write
from hysweep.schema import BadInput, Problem
from hysweep.schema import Trial as Config
from hysweep.study.tracking import TrackedRun, trial_run
from hysweep.track import TrialDirectory, read_record, write_json

NOTE = "wandb.json"  # of a trial, or of the study: what was sent
_TIMEOUT_S = 1800.0  # for one run, over a slow line
_MOST_SAMPLES = 10_000  # that W&B gives back of a curve at once


class What(StrEnum):
    SENT = "sent"
    WOULD_SEND = "would be sent"
    SENT_BEFORE = "was sent before"
    RUNS = "still runs: sent once it has ended"
    NOTHING = "has written no offline run"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one trial.

    steps    how many were sent
    left_out directories that could not be read, each with why
    """

    trial: int
    what: What
    steps: int = 0
    why: str = ""
    run: str = ""
    left_out: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "trial": self.trial,
            "what": self.what.name.lower(),
            "steps": self.steps,
            "why": self.why,
            "run": self.run,
            "left_out": list(self.left_out),
        }


@dataclass(frozen=True, slots=True)
class Offline:
    """What a trial has written offline, as one run."""

    run: TrackedRun
    config: Config
    starts: tuple[OfflineRun, ...]
    left_out: tuple[str, ...]


def sync(record: StudyRecord, is_dry: bool = False) -> Iterator[Sent]:
    """Send every trial that has ended, one by one: what W&B does not have of it. `is_dry` asks nobody."""
    for trial in record.trials:
        yield _sync(record, trial, is_dry)


def _sync(record: StudyRecord, trial: TrialRecord, is_dry: bool) -> Sent:
    directories = _directories(trial.directory)
    if not directories:
        return Sent(trial.number, What.NOTHING)
    if trial.is_live:
        return Sent(trial.number, What.RUNS)
    note = _note(trial.directory)
    stamp = _stamp(directories)
    if note.get("stamp") == stamp:
        return Sent(trial.number, What.SENT_BEFORE, run=str(note.get("run", "")))
    try:
        offline = offline_run(record, trial)
    except Unreadable as e:
        return Sent(trial.number, What.FAILED, why=str(e))
    exit_code = 0 if trial.standing is Standing.COMPLETED else 1
    # W&B appends: what it has of a run would be there twice
    after = note.get("last_step") if is_dry else _last_step_there(offline)
    records = merged(offline.starts, exit_code, after)
    steps = steps_of(records)
    if is_dry:
        return Sent(trial.number, What.WOULD_SEND, len(steps), left_out=offline.left_out)
    try:
        where = _send(offline, records)
        _verify(where, steps)
    except Failed as e:
        return Sent(trial.number, What.FAILED, why=str(e), left_out=offline.left_out)
    last = max(steps, default=after)
    write_json(trial.directory.path / NOTE, {"run": where, "last_step": last, "stamp": stamp})
    return Sent(trial.number, What.SENT, len(steps), run=where, left_out=offline.left_out)


def offline_run(record: StudyRecord, trial: TrialRecord) -> Offline:
    """Raises Unreadable when nothing of the trial can be read."""
    starts, left_out = [], []
    for directory in _directories(trial.directory):
        try:
            starts.append(read(directory))
        except Unreadable as e:
            left_out.append(f"{directory.relative_to(trial.directory.path)}: {e}")
    if not starts:
        raise Unreadable("; ".join(left_out))
    try:
        config = load_trial(trial.directory.config_file.read_text(encoding="utf-8"))
    except (OSError, BadInput, *MISCOMPOSED) as e:
        raise Unreadable(f"its configuration cannot be read: {e}") from e
    run = trial_run(record.name, record.created or 0.0, trial.directory.path.name, config, trial.point)
    return Offline(run, config, tuple(starts), tuple(left_out))


class Failed(Exception):
    """W&B did not take a run, or has something else than was sent."""


def _send(offline: Offline, records: Sequence[Any]) -> str:
    """Hand the merged run to `wandb sync`, and say where it is: entity/project/id."""
    config, run = offline.config.tracking, offline.run
    _name(records, run)
    with tempfile.TemporaryDirectory(prefix="hysweep-wandb-") as scratch:
        directory = Path(scratch) / f"offline-run-{offline.starts[0].directory.name.partition('run-')[2]}"
        directory.mkdir()
        for start in offline.starts:  # of files of the same name the last attempt's
            shutil.copytree(start.directory / "files", directory / "files", dirs_exist_ok=True)
        file = directory / f"run-{run.id}.wandb"
        write(file, records)
        argv = [sys.executable, "-m", "wandb", "sync", "--id", run.id, "--project", config.project]
        argv += ["--entity", config.entity] if config.entity else []
        environment = os.environ | {"WANDB_MODE": "online", "WANDB_DIR": scratch}
        try:
            done = subprocess.run(
                [*argv, str(directory)], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S,
                env=environment, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as e:
            raise Failed(f"`wandb sync` was not done after {_TIMEOUT_S:.0f} s") from e
        # its exit code says nothing: the mark that it leaves does
        if not file.with_name(f"{file.name}.synced").exists():
            said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise Failed("`wandb sync` sent nothing: " + (said[-1].strip() if said else "it said nothing"))
    return _where(offline)


def _name(records: Sequence[Any], run: TrackedRun) -> None:
    """The run as it is called by now: those of studies that an older version drove had fewer names."""
    for record in records:
        if record.WhichOneof("record_type") == "run":
            found = record.run
            found.run_id, found.display_name, found.run_group = run.id, run.name, run.group
            found.job_type, found.notes = run.job_type, run.notes
            found.tags[:] = list(run.tags)


def _verify(where: str, steps: Sequence[int]) -> None:
    """Compare the steps that W&B has with those that were sent. Raises Failed."""
    import wandb

    try:
        run = wandb.Api().run(where)
        rows = run.history(samples=_MOST_SAMPLES, keys=["_step"], pandas=False)
    except Exception as e:  # its client raises whatever it meets
        raise Failed(f"it was sent, and cannot be read back: {first_line(e)}") from e
    there = sorted(int(row["_step"]) for row in rows)
    missing = sorted(set(steps) - set(there))
    if missing and len(there) < _MOST_SAMPLES:
        raise Failed(f"{len(missing)} of {len(steps)} steps are missing at W&B, the first is {missing[0]}")
    if len(there) != len(set(there)):
        raise Failed(f"{len(there) - len(set(there))} steps are there twice at W&B")


def _last_step_there(offline: Offline) -> int | None:
    """The last step of the run that W&B has; None: it has no such run."""
    import wandb

    try:
        last = wandb.Api().run(_where(offline)).lastHistoryStep
    except Exception:  # its client raises whatever it meets; what is wrong with the server shows when it is sent
        return None
    return None if last < 0 else int(last)


def _where(offline: Offline) -> str:
    tracking = offline.config.tracking
    return "/".join([tracking.entity or _default_entity(), tracking.project, offline.run.id])


@cache
def _default_entity() -> str:
    import wandb

    return str(wandb.Api().default_entity)


def must_be_logged_in() -> None:
    """Raises BadInput where W&B cannot be reached with a key."""
    try:
        import wandb
    except ImportError as e:
        cure = "pip install 'hysweep[wandb]'"
        raise BadInput(Problem("wandb", "not installed", "it sends and reads the runs", cure)) from e
    if (why := why_unreachable(os.environ)) is not None:  # its client would try again for minutes
        cure = "sync from a machine that reaches it; nothing is lost meanwhile. WANDB_BASE_URL says where it is"
        raise BadInput(Problem("wandb", "no answer", why, cure))
    try:
        wandb.Api(timeout=30).default_entity  # noqa: B018 - asks the server
    except Exception as e:  # its client raises whatever it meets
        raise BadInput(Problem("wandb", "no answer", first_line(e), "export WANDB_API_KEY, or `wandb login`")) from e


def first_line(of: Exception) -> str:
    return (str(of).strip() or type(of).__name__).splitlines()[0]


def _directories(trial: TrialDirectory) -> list[Path]:
    """Where runs were written offline, in the order of their starts."""
    found = []
    for attempt in trial.attempts():
        found += sorted((attempt.path / "wandb").glob("offline-run-*"))
    return [d for d in found if d.is_dir()]


def _stamp(directories: Sequence[Path]) -> list[list[Any]]:
    """What tells whether something was written since."""
    files = [f for d in directories for f in sorted(d.glob("run-*.wandb"))]
    return [[f.parent.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files]


def _note(trial: TrialDirectory) -> dict[str, Any]:
    return read_record(trial.path / NOTE) or {}
