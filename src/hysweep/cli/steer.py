"""The verbs that steer a study from outside: tick, pause, rebuild."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from hysweep.cli.address import study_at, study_to_drive
from hysweep.cli.patience import Patience, hear_out
from hysweep.cli.say import say
from hysweep.launch import queue
from hysweep.report import read_study
from hysweep.schema import BadInput
from hysweep.study.controller import Controller
from hysweep.study.home import settle_home
from hysweep.study.storage import Unreachable
from hysweep.track import Status, StudyDirectory

HONOURED_WITHIN_S = 20.0  # a controller that drives the study sees a request in its next step


def tick(path: Path, as_json: bool) -> int:
    """One step. Returns 1 once the study is over with no result, when its storage does not answer, or when the
    scheduler refuses what it was asked for."""
    directory = study_to_drive(path)
    before = sum(1 for e in directory.events() if e.get("event") == "submitted")
    with Controller(directory) as controller:
        try:
            with queue.telling(hear_out):
                controller.tick()
        except Unreachable as e:
            say(f"{e}; nothing was lost", err=True)
            return 1
        why, in_flight, is_over = controller.why_no_more(), controller.in_flight, controller.is_over
        refusal = controller.refusal
    record = read_study(directory)
    submitted = sum(1 for e in record.events if e.get("event") == "submitted") - before
    facts = {
        "is_over": is_over,
        "is_paused": record.is_paused,
        "why_no_more": why,
        "refusal": str(refusal) if refusal else None,
        "in_flight": in_flight,
        "submitted": submitted,
        "trials": len(record.trials),
        "best": record.best.number if record.best else None,
        "gpu_hours": round(record.gpu_hours, 6),
    }
    if as_json:
        say(json.dumps(facts, indent=1))
    elif is_over:
        say(f"over: {why}")
    else:
        paused = "paused; " if record.is_paused else ""
        say(f"{paused}{len(record.trials)} trials, {in_flight} in flight, {submitted} submitted now")
    if refusal:
        say(f"hysweep: {refusal}", err=True)
    return 1 if refusal or (is_over and record.best is None) else 0


def pause(path: Path) -> int:
    """Leave the request, and carry it out unless a controller is there to do so. Returns 1 while something waits in a
    queue that may still begin."""
    directory = study_to_drive(path)
    taken = Controller(directory)  # before anything changes: it says what is wrong with the definition
    settle_home(directory)
    directory.request_pause()
    try:
        with taken as controller, Patience(HONOURED_WITHIN_S) as patience:
            while not patience.is_over:
                with suppress(Unreachable):
                    controller.tick(asks=False)
                if not _unheld(directory):
                    break
                time.sleep(0.3)
    except BadInput:  # somebody drives it, and will see the request
        with Patience(HONOURED_WITHIN_S) as patience:
            while (waiting := _unheld(directory)) and not patience.is_over:
                patience.note(f"{waiting} jobs to be held by who drives the study")
                time.sleep(0.3)
    record, left = read_study(directory), _unheld(directory)
    counts = {str(standing): n for standing, n in record.counts.items()}
    held = sum(1 for t in record.trials if t.state.is_held and not t.state.is_final)
    say(f"paused; {counts.get('running', 0)} running go on, {held} are held in the queue")
    if left:
        say(f"{left} wait in a queue and are not held yet: hysweep status {directory.path}", err=True)
    say(f"  go on:  hysweep resume {directory.path}")
    return 1 if left else 0


def _unheld(directory: StudyDirectory) -> int:
    """Jobs that were submitted, are not known to run, and may begin."""
    states = [(t, t.state()) for t in directory.trials()]
    return sum(
        1
        for trial, s in states
        if s.status is Status.SUBMITTED
        and not s.is_held
        and s.began is None
        and trial.attempt(s.attempt).claimed() is None
    )


def rebuild(path: Path, as_json: bool) -> int:
    from hysweep.study.rebuild import rebuild as make_again

    directory = study_at(path)
    found = make_again(directory)
    if as_json:
        say(json.dumps({"trials": dict(found.trials), "restored": found.restored}, indent=1))
        return 0
    for line in found.restored:
        say(f"restored {line}")
    by = ", ".join(f"{n} {word}" for word, n in sorted(found.trials.items()))
    say(f"Optuna's study was made again from {sum(found.trials.values())} trials: {by or 'none'}")
    return 0
