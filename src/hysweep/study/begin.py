"""From a command line to a study's directory: nothing is written before every fault that can be known is found."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hysweep.check import errors, lacks_for
from hysweep.compose import Composer, Composition
from hysweep.launch import launcher, unready
from hysweep.schema import BadInput, Problem
from hysweep.study.changes import CLUSTER, is_of_cluster, moved
from hysweep.study.definition import CHANGEABLE, Definition, define, load_definition
from hysweep.study.home import refuse_nested
from hysweep.study.preview import Preview, preview, study_problems
from hysweep.track import SIMULATED, StudyDirectory


@dataclass(frozen=True, slots=True)
class Begun:
    """A study that is there. `is_new`: this call made it; `changes`: what the command line says anew of it;
    `warnings`: what it says in vain."""

    definition: Definition
    directory: StudyDirectory
    is_new: bool
    changes: dict[str, object]
    warnings: tuple[Problem, ...] = ()


class NothingFeasible(Exception):
    """No point of the space that was looked at can run; `looked` says why. Exit code 1."""

    def __init__(self, looked: Sequence[Preview]) -> None:
        self.looked = looked
        super().__init__("no trial of this can run")


def begin(composition: Composition, composer: Composer, command: Sequence[str]) -> Begun:
    """Create the study that a composition asks for, or find it where it is.

    Raises BadInput when its directory holds another study or cannot be written, or when this machine lacks what
    the trials need, or its database does not open; NothingFeasible when every trial would be refused.
    """
    definition = define(composition, command)
    directory = definition.directory
    if directory.is_simulated:
        raise BadInput(
            Problem("study.name", definition.study.name, f"{directory.path} {SIMULATED}", "give another study.name")
        )
    if directory.exists:
        there = load_definition(directory, composer)
        changes: dict[str, Any] = {k: getattr(definition.study, k) for k in CHANGEABLE}
        different = definition.same_question(there)
        if not all(map(is_of_cluster, different)):
            raise BadInput(_another(definition, different, "go on with that one: hysweep resume DIR"))
        if different or CLUSTER in directory.changes():
            changes |= _elsewhere(definition, composition, composer.compose(there.fixed), different)
        return Begun(definition, directory, False, changes)
    refuse_nested("study.root", directory.path.parent)
    looked = preview(definition, composer)
    if not any(p.is_feasible for p in looked):
        raise NothingFeasible(looked)
    launcher(composition.trial.cluster.launcher)  # says so if there is none
    of_study = study_problems(definition, looked)
    if faults := errors(of_study):
        raise BadInput(*faults)
    if lacking := [*lacks_for(composition.trial), *unready(composition.trial.cluster)]:
        raise BadInput(*lacking)
    try:
        directory.create(definition.to_yaml(), composer.snapshot())
    except OSError as e:
        raise BadInput(
            Problem(
                "study.root",
                directory.path.parent,
                f"cannot be written: {e.strerror or e}",
                "give study.root=DIR",
            )
        ) from e
    if definition.study.storage is not None:
        from hysweep.study.storage import open_storage  # imports Optuna, which takes half a second

        try:
            open_storage(definition.study, directory)
        except BadInput:
            shutil.rmtree(directory.path)  # it cannot go on, and with another URL it would be another study
            raise
    return Begun(definition, directory, True, {}, tuple(of_study))


def _elsewhere(
    definition: Definition, asked: Composition, there: Composition, different: Sequence[str]
) -> dict[str, Any]:
    """What changes where the same question is to run on another cluster than its study does, or nothing. Until
    something of a study has run, and where the scheduler refused it, it may simply be said anew."""
    directory = definition.directory
    varied = {key.removeprefix(f"{CLUSTER}.") for key in definition.space.varied if is_of_cluster(key)}
    wanted = {k: v for k, v in asdict(asked.trial.cluster).items() if k not in varied}
    present = asdict(moved(there.trial, directory.changes()).cluster)
    fields = {k: v for k, v in wanted.items() if v != present[k]}
    if not fields:
        return {}
    states = [trial.state() for trial in directory.trials()]
    if any(s.is_refused for s in states) or not any(s.attempt for s in states):
        return {CLUSTER: fields}
    if not different:
        return {}  # it was moved since, and what has run there speaks for that
    words = " ".join(f"{k}={v}" for k, v in _said(definition, different).items()) or f"{CLUSTER}.KEY=VALUE"
    raise BadInput(_another(definition, different, f"let that one go on there: hysweep resume DIR {words}"))


def _said(definition: Definition, keys: Sequence[str]) -> dict[str, str]:
    given = dict(o.lstrip("+").partition("=")[::2] for o in definition.fixed)
    return {key: given[key] for key in keys if key in given}


def _another(definition: Definition, different: Sequence[str], cure: str) -> Problem:
    path = definition.directory.path
    why = f"{path} holds another study: it differs in {', '.join(different)}"
    return Problem(
        "study.name",
        definition.study.name,
        why,
        f"give this one another name, or {cure.replace('DIR', str(path))}",
    )
