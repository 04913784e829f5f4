"""What was lost or damaged of a study, made again from what is left: the trial directories and the events.

state.json   from what events.jsonl says of the trial last, or from the attempts that nodes claimed
point.json   from events.jsonl
ledger       of attempts that ended and are not booked
Optuna's study, journal or database, from all of these
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import optuna

from hysweep.compose import Composer
from hysweep.launch import Launcher, launcher
from hysweep.schema import BadInput
from hysweep.schema.job import Job
from hysweep.study.controller import Controller
from hysweep.study.definition import load_definition
from hysweep.study.home import settle_home
from hysweep.study.lease import StudyLock
from hysweep.study.ledger import booking
from hysweep.study.storage import mend_journal, name_in_storage, open_storage
from hysweep.study.trials import events_by_trial, last_known
from hysweep.track import (
    ACTIONS,
    Cause,
    StudyDirectory,
    TrialDirectory,
    Verdict,
    exactly,
    read_record,
    write_json,
)


@dataclass
class Rebuilt:
    """`trials`: by how they stand. `restored`: what was damaged, one line each."""

    trials: Counter[str] = field(default_factory=Counter)
    restored: list[str] = field(default_factory=list)


@exactly()
def rebuild(directory: StudyDirectory, launchers: Callable[[str], Launcher] = launcher) -> Rebuilt:
    """Raises BadInput when somebody drives the study, or when it is none."""
    definition = load_definition(directory, Composer([directory.conf], shipped=False))
    settle_home(directory)
    found = Rebuilt()
    lock = StudyLock(directory)
    lock.acquire()
    try:
        decisions = events_by_trial(directory)
        for trial in directory.trials():
            _restore_trial(trial, decisions.get(trial.number, []), found)
        for number in sorted(decisions.keys() - {t.number for t in directory.trials()}):
            found.restored.append(f"nothing of trial {number}: its directory is gone")
        _restore_ledger(directory, decisions, found)
        if definition.study.storage is None:
            _drop_journal(directory, found)
        else:
            storage = open_storage(definition.study, directory)
            with suppress(KeyError):
                optuna.delete_study(study_name=name_in_storage(definition.study, definition.created), storage=storage)
    finally:
        lock.release()
    with Controller(directory, launchers=launchers):
        pass  # it enters in Optuna's study what is missing there, and tells it what became of it
    for trial in directory.trials():
        state = trial.state()
        found.trials[str(state.cause or state.status)] += 1
    return found


def _restore_trial(trial: TrialDirectory, events: list[dict[str, Any]], found: Rebuilt) -> None:
    if read_record(trial.path / "point.json") is None:
        point = next((e["point"] for e in events if isinstance(e.get("point"), dict)), None)
        if point is not None:
            write_json(trial.path / "point.json", point)
            found.restored.append(f"trial {trial.number}: its point, from events.jsonl")
        else:
            found.restored.append(f"trial {trial.number}: its point is lost; the sampler will not know of it")
    if trial.state_if_legible() is None:
        state, source = last_known(trial, events)
        trial.save(state)
        found.restored.append(f"trial {trial.number}: {state.cause or state.status}, from {source}")


def _restore_ledger(directory: StudyDirectory, decisions: dict[int, list[dict[str, Any]]], found: Rebuilt) -> None:
    """An attempt that was said to have ended is booked; how its steps counted is told by what came after."""
    booked = {(e.trial, e.attempt) for e in directory.ledger()}
    by_number = {t.number: t for t in directory.trials()}
    for number, events in decisions.items():
        for event in events:
            key = number, event.get("attempt")
            if event.get("event") != "attempt_ended" or key in booked or number not in by_number:
                continue
            try:
                attempt, cause = by_number[number].attempt(int(event["attempt"])), Cause(event["cause"])
                job = Job.from_dict(attempt.job() or {})
            except (LookupError, TypeError, ValueError):
                continue
            counts = ACTIONS[cause].verdict in (Verdict.VALUE, Verdict.PRUNED)
            later = (a.metrics() for a in by_number[number].attempts() if a.number > attempt.number)
            after = next(filter(None, later), [])
            kept_to = math.inf if counts else after[0][0] - 1 if after else -1
            directory.book(booking(attempt, job, cause, None, kept_to))
            booked.add((number, attempt.number))
            found.restored.append(f"trial {number}: the hours of attempt {attempt.number}")


def _drop_journal(directory: StudyDirectory, found: Rebuilt) -> None:
    before = directory.journal.stat().st_size if directory.journal.exists() else None
    with suppress(BadInput):
        mend_journal(directory.journal)
    if before is None:
        found.restored.append("the journal, which was not there")
    elif not directory.journal.exists() or directory.journal.stat().st_size != before:
        found.restored.append("the journal, which had torn or foreign lines")
    directory.journal.unlink(missing_ok=True)
