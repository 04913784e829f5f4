"""How the verbs are told of a study and of a trial: a directory, and a number or the beginning of an id."""

from __future__ import annotations

from pathlib import Path

from hysweep.schema import BadInput, Problem
from hysweep.study.definition import written
from hysweep.track import SIMULATED, StudyDirectory, TrialDirectory

NAMED = 12  # trials


def study_at(path: Path) -> StudyDirectory:
    """One whose study.yaml is whole: without it nothing that is said of a study would be true."""
    directory = directory_at(path)
    written(directory)
    return directory


def directory_at(path: Path) -> StudyDirectory:
    directory = StudyDirectory(path.absolute())
    if not directory.exists:
        there = sorted(str(p.parent) for p in Path("outputs").glob("*/study.yaml"))
        cure = f"there is {', '.join(there[:5])}" if there else "give a directory that `hysweep run` printed"
        raise BadInput(Problem("DIR", path, "holds no study", cure))
    return directory


def study_to_drive(path: Path) -> StudyDirectory:
    directory = study_at(path)
    if directory.is_simulated:
        cure = "run the sweep itself, under another study.name; status, report and export show this one"
        raise BadInput(Problem("DIR", path, SIMULATED, cure))
    return directory


def trial_at(directory: StudyDirectory, address: str) -> TrialDirectory:
    trial = directory.find(address)
    if trial is None:
        raise BadInput(Problem("TRIAL", address, "names no trial, or more than one", f"there is {known_in(directory)}"))
    return trial


def known_in(directory: StudyDirectory) -> str:
    """The trials of a study, as a cure names them: the first of many."""
    trials = directory.trials()
    told = ", ".join(f"{t.number} ({t.id[:6]})" for t in trials[:NAMED]) or "none"
    return f"{told} and {len(trials) - NAMED} more" if len(trials) > NAMED else told
