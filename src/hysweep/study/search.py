"""The only door to Optuna: storage, sampler, pruner, ask and tell.

Optuna's journal is an index of the study's directory. Only the controller opens it; jobs never do.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, PercentilePruner
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import StudyDirection
from optuna.trial import TrialState

from hysweep.compose import Choice, Dimension, grid
from hysweep.schema import BadInput, Problem
from hysweep.study.definition import Definition

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

FEASIBLE = "feasible"  # the name of our one constraint: at most 0 means yes


class Search:
    """Ask and tell over one journal, so that the same seed, asked in the same order, gives the same points,
    also across restarts."""

    def __init__(self, definition: Definition, journal: Path, placed: dict[int, dict[str, Any]]) -> None:
        """`placed`: the points of the trials that have a directory, by number. What the journal has lost of them
        is entered again: it is an index, and they are the facts."""
        self._definition = definition
        for stale in journal.parent.glob(f"{journal.name}.lock*"):
            stale.unlink()  # of a controller that was killed: whoever holds the study's lock is alone here
        mend_journal(journal)
        backend = JournalFileBackend(str(journal.absolute()), lock_obj=JournalFileOpenLock(str(journal.absolute())))
        self._study = optuna.create_study(
            storage=JournalStorage(backend),
            study_name=definition.study.name,
            direction=StudyDirection[definition.study.direction.upper()],
            sampler=RandomSampler(seed=0),
            pruner=_pruner(definition),
            load_if_exists=True,
        )
        is_new = not self._study.get_trials(deepcopy=False)
        self._restore(placed)
        if is_new:
            self._enqueue()

    def _restore(self, placed: dict[int, dict[str, Any]]) -> None:
        """Numbers are positions in the journal, so what is missing is filled up in order; what was never placed, a
        repetition, as failed."""
        for number in range(len(self._study.get_trials(deepcopy=False)), max(placed, default=-1) + 1):
            params = self._category_texts(placed.get(number, {}))
            ranges = {key: _distribution(self._definition.space[key]) for key in params}
            state = TrialState.RUNNING if number in placed else TrialState.FAIL
            self._study.add_trial(optuna.trial.create_trial(state=state, params=params, distributions=ranges))

    def _enqueue(self) -> None:
        """What runs first, in order: the points that the study names, or all of a grid. Repeatable after a crash."""
        points: Iterable[dict[str, Any]] = self._definition.study.enqueue
        if self._definition.is_grid:
            points = grid(self._definition.space)
        for point in points:
            self._study.enqueue_trial(self._category_texts(point), skip_if_exists=True)

    def unfinished(self) -> list[int]:
        """Numbers of the trials that were asked for and not told, oldest first."""
        return [t.number for t in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))]

    def unfinished_beyond(self, placed: Iterable[int]) -> list[int]:
        """Those of `unfinished` that have no directory: a crash came between asking and freezing."""
        known = set(placed)
        return [n for n in self.unfinished() if n not in known]

    def enqueue(self, point: dict[str, Any]) -> None:
        """Have a point asked next."""
        self._study.enqueue_trial(self._category_texts(point))

    def ask(self) -> tuple[int, dict[str, Any]]:
        """The next trial: its number and its point."""
        number = next(
            (t.number for t in self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))),
            len(self._study.get_trials(deepcopy=False)),
        )
        self._study.sampler = self._sampler(number)
        trial = self._study.ask()
        return trial.number, self._suggest(trial)

    def again(self, number: int) -> dict[str, Any]:
        """The point of a trial whose asking was cut short: the same as it would have been."""
        self._study.sampler = self._sampler(number)
        return self._suggest(self._trial(number))

    def report(self, number: int, curve: Iterable[tuple[int, float]]) -> int | None:
        """Hand over a curve; the step at which the pruner gives the trial up, or None.

        Steps that were reported before are passed over, so this can be repeated.
        """
        if isinstance(self._study.pruner, NopPruner):
            return None
        trial = self._trial(number)
        known = self._study.get_trials(deepcopy=False)[number].intermediate_values
        floor = self._definition.study.pruner.min_steps
        for step, value in curve:
            if step in known or not math.isfinite(value):
                continue
            trial.report(value, step)
            if step >= floor and trial.should_prune():
                return step
        return None

    def tell_value(self, number: int, value: float) -> None:
        self._tell(number, TrialState.COMPLETE, value, feasible=True)

    def tell_pruned(self, number: int) -> None:
        self._tell(number, TrialState.PRUNED, None, feasible=True)

    def tell_failed(self, number: int) -> None:
        self._tell(number, TrialState.FAIL, None, feasible=True)

    def tell_infeasible(self, number: int) -> None:
        """A point that cannot run: the sampler learns to keep away, no best trial is ever among them."""
        self._tell(number, TrialState.PRUNED, None, feasible=False)

    def _tell(self, number: int, state: TrialState, value: float | None, feasible: bool) -> None:
        known = self._study.get_trials(deepcopy=False)[number]
        if known.state.is_finished():
            return  # told before a crash
        if FEASIBLE not in known.constraints:
            self._trial(number).set_constraint(FEASIBLE, 0.0 if feasible else 1.0)
        self._study.tell(number, value, state=state)

    def _trial(self, number: int) -> optuna.Trial:
        frozen = self._study.get_trials(deepcopy=False)[number]
        return optuna.Trial(self._study, frozen._trial_id)

    def _suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        return {key: _suggest_one(trial, key, d) for key, d in self._definition.space.items()}

    def _category_texts(self, point: dict[str, Any]) -> dict[str, Any]:
        space = self._definition.space
        return {k: space[k].text(v) if isinstance(space[k], Choice) else v for k, v in point.items() if k in space}

    def _sampler(self, number: int) -> BaseSampler:
        """A sampler for one trial. Seeded by the study's seed and the trial's number: a restart, which makes new
        samplers, would otherwise draw again what was drawn before."""
        name, seed = self._definition.study.sampler, self._definition.study.seed
        mixed = (seed * 1_000_003 + number) % 2**31
        if name == "random":
            return RandomSampler(seed=mixed)
        if name == "cmaes":
            return CmaEsSampler(seed=mixed)
        if name == "nsgaii":
            return NSGAIISampler(seed=mixed)
        if name == "qmc":  # counts its own points in the journal, and must scramble them alike each time
            return QMCSampler(seed=seed, scramble=True)
        return TPESampler(seed=mixed)


def _suggest_one(trial: optuna.Trial, key: str, dimension: Dimension) -> Any:
    if isinstance(dimension, Choice):
        text = trial.suggest_categorical(key, list(dimension.texts))
        return dimension.values[dimension.texts.index(text)]
    if dimension.is_int:
        return trial.suggest_int(key, int(dimension.low), int(dimension.high), log=dimension.is_log)
    return trial.suggest_float(key, dimension.low, dimension.high, log=dimension.is_log)


def _distribution(dimension: Dimension) -> BaseDistribution:
    """The same range as `_suggest_one` asks for."""
    if isinstance(dimension, Choice):
        return CategoricalDistribution(dimension.texts)
    if dimension.is_int:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.is_log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.is_log)


def _pruner(definition: Definition) -> BasePruner:
    p = definition.study.pruner
    if p.name == "median" or p.name == "percentile":
        kept = 50.0 if p.name == "median" else p.percentile
        return PercentilePruner(kept, n_startup_trials=p.startup_trials, n_warmup_steps=max(0, p.min_steps - 1))
    if p.name == "hyperband":
        return HyperbandPruner(min_resource=p.min_steps, reduction_factor=p.reduction_factor)
    return NopPruner()


def mend_journal(path: Path) -> None:
    """Drop what a dying writer left half-written: Optuna would glue its next line to it and then read nothing.

    Whole lines are kept, in order. Nothing is lost by it: the study's directory holds the facts.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as e:
        raise BadInput(Problem(str(path), "unreadable", str(e), "give yourself the right to read it")) from e
    kept = [line for line in raw.split(b"\n") if _is_entry(line)]
    mended = b"".join(line + b"\n" for line in kept)
    if mended != raw:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(mended)
        os.replace(draft, path)


def _is_entry(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and "op_code" in entry
