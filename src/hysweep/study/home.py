"""Where a study is at home: its jobs write to its real path, and are found by it.

A directory that was moved or copied makes itself at home where it is, but never while jobs may be in flight: those
belong to where it came from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hysweep.schema import BadInput, Problem
from hysweep.study.trials import events_by_trial, last_known
from hysweep.track import Place, Status, StudyDirectory, TrialDirectory, exactly


@exactly()
def settle_home(directory: StudyDirectory) -> None:
    """Whoever is to drive a study, or to stop something of it, calls this first. Raises BadInput when what may be in
    flight is another directory's."""
    here, home = Place.of(directory.path), directory.home()
    if home is not None:
        if home.is_that_of(here):
            return
        came, is_copy = _origin(home)
        events = events_by_trial(directory)
        if open_ones := [t for t in directory.trials() if _may_have_job(t, events.get(t.number, []))]:
            back = f"hysweep resume {home.path}" if is_copy else f"mv {here.path} {home.path}"
            names = " ".join(f"trials/{t.path.name}" for t in open_ones[:5]) + (" ..." if len(open_ones) > 5 else "")
            why = f"{came}, and {len(open_ones)} of its trials were in flight: their jobs are not this directory's"
            cure = f"go on there: {back}; or remove {names} here, and these trials begin anew"
            raise BadInput(Problem("DIR", directory.path, why, cure))
        if is_copy and _is_in_database(directory):
            why = f"{came}, and the database of study.storage has one study for both"
            raise BadInput(Problem("DIR", directory.path, why, f"go on there: hysweep resume {home.path}"))
        for of_another in (directory.driver_file, directory.controller_file):
            of_another.unlink(missing_ok=True)
        directory.log("moved", home=home.path, is_copy=is_copy)
    directory.save_home(here)


def refuse_nested(key: str, root: Path) -> None:
    """Raises BadInput where the directory that is to hold a study is one itself."""
    if StudyDirectory(root).exists:
        raise BadInput(Problem(key, root, "is a study itself", "give the directory that is to hold studies"))


def came_from(directory: StudyDirectory) -> str:
    """Of a directory that is not at home where it is, in words; nothing of another."""
    home = directory.home()
    return "" if home is None or home.is_that_of(Place.of(directory.path)) else _origin(home)[0]


def _origin(home: Place) -> tuple[str, bool]:
    """In words where a directory comes from, and whether that is still there."""
    is_copy = StudyDirectory(Path(home.path)).exists
    return f"{'is a copy of' if is_copy else 'was moved from'} {home.path}", is_copy


def _is_in_database(directory: StudyDirectory) -> bool:
    try:
        return yaml.safe_load(directory.config_file.read_text(encoding="utf-8"))["study"]["storage"] is not None
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
        return False  # load_definition says what is wrong with it


def _may_have_job(trial: TrialDirectory, events: list[dict[str, Any]]) -> bool:
    """Of a state that cannot be read the events tell, and whether the newest attempt has ended."""
    state = trial.state_if_legible()
    if state is None:
        state, _ = last_known(trial, events)
        begun = [a for a in trial.attempts() if a.claimed() is not None]
        if begun and begun[-1].end() is not None:
            return False
    return state.status in (Status.SUBMITTING, Status.SUBMITTED)
