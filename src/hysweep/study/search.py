"""The only door to Optuna: storage, sampler, pruner, ask and tell.

Optuna's journal is an index of the study's directory. Only the controller opens it; jobs never do.
"""

from __future__ import annotations

import io
import math
import pickle
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import NopPruner
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hysweep.compose import SEED, Choice, Parameter
from hysweep.schema import BadInput, Problem
from hysweep.schema.search import SAMPLER_OPTIONS
from hysweep.study.definition import Definition
from hysweep.study.storage import name_in_storage

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", message="Constraints have been set, but CmaEsSampler")  # docs/sweeps.md says so

FEASIBLE = "feasible"  # the name of our one constraint: at most 0 means yes
JUDGED = "judged"  # by a pruner, up to this step
REPLICATE_OF = "replicate_of"

Reached = tuple[int | None, float]  # the step of a rung, None for a training's end, and the value there


class Search:
    """Ask and tell over one journal, so that the same seed, asked in the same order, gives the same points,
    also across restarts."""

    def __init__(self, definition: Definition, storage: BaseStorage, placed: Mapping[int, dict[str, Any]]) -> None:
        """`placed`: the points of the trials that have a directory, by number. What the storage has lost of them
        is entered again: it is an index, and they are the facts."""
        self._definition = definition
        self._study = optuna.create_study(
            storage=storage,
            study_name=name_in_storage(definition.study, definition.created),
            directions=[StudyDirection[goal.direction.upper()] for goal in definition.study.goals],
            sampler=RandomSampler(seed=0),
            pruner=NopPruner(),  # hysweep.study.pruners judges
            load_if_exists=True,
        )
        self._restore(placed)
        self._enqueue()

    def _restore(self, placed: Mapping[int, dict[str, Any]]) -> None:
        """Numbers are positions in the journal, so what is missing is filled up in order; what was never placed, a
        repetition, as failed. Of the last that it still has it may have lost a part."""
        storage = self._study._storage
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING)):
            point = placed.get(trial.number, {})
            if point and trial.state is TrialState.WAITING:
                storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
            params, ranges = self._params(point), self._ranges(point)
            for name in ranges.keys() - trial.params.keys():
                stored = ranges[name].to_internal_repr(params[name])
                storage.set_trial_param(trial._trial_id, name, stored, ranges[name])
        for number in range(len(self._study.get_trials(deepcopy=False)), max(placed, default=-1) + 1):
            point = placed.get(number, {})
            state = TrialState.RUNNING if number in placed else TrialState.FAIL
            self._add(state, point, {SEED: point[SEED]} if SEED in point and self._definition.space.seeds else {})

    def _add(self, state: TrialState, point: dict[str, Any], about: dict[str, Any]) -> None:
        """A trial that no sampler is asked for."""
        params, ranges = self._params(point), self._ranges(point)
        self._study.add_trial(
            optuna.trial.create_trial(state=state, params=params, distributions=ranges, user_attrs=about)
        )

    def replicate(self, lead: int, point: dict[str, Any], seed: int) -> int:
        """The number of a new trial with the same point as its lead but for the seed. The sampler does not see it."""
        self._add(TrialState.RUNNING, point, {SEED: seed, REPLICATE_OF: lead})
        return len(self._study.get_trials(deepcopy=False)) - 1

    def _enqueue(self) -> None:
        """What runs first, in order: the points that the study names, or all of a grid. Of those that a crash or a
        damaged storage left out, what is missing."""
        known = [t.system_attrs.get("fixed_params", t.params) for t in self._study.get_trials(deepcopy=False)]
        seen = {frozenset(params.items()) for params in known}
        for point in self._definition.first_points():
            params = self._params(point)
            if frozenset(params.items()) not in seen:
                self._study.enqueue_trial(params)

    def unfinished(self) -> list[int]:
        """Numbers of the trials that were asked for and not told, oldest first."""
        return [t.number for t in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))]

    def enqueue(self, point: dict[str, Any]) -> None:
        """Have a point asked next."""
        self._study.enqueue_trial(self._params(point))

    def ask(self, reached: Mapping[int, Reached] | None = None) -> tuple[int, dict[str, Any]]:
        """The next trial: its number and its point. `reached`: under promotion, how far each trial has come."""
        known = self._study.get_trials(deepcopy=False)
        number = next((t.number for t in known if t.state is TrialState.WAITING), len(known))
        if reached and number == len(known) and self._definition.study.sampler.name == "tpe":
            self._study.enqueue_trial(self._drawn_among(reached, number))
        self._study.sampler = self._sampler(number)
        trial = self._study.ask()
        return trial.number, self._suggest(trial)

    def _drawn_among(self, reached: Mapping[int, Reached], number: int) -> dict[str, Any]:
        """What TPE draws where it sees how far trials have come. Optuna's record of a trial is final once it is told,
        which is at its first rung; here whole trainings come first, by their values, and then what stands on a rung,
        the higher the better: as TPE ranks pruned trials (optuna/samplers/_tpe/sampler.py: _split_trials)."""
        scratch = optuna.create_study(directions=self._study.directions, sampler=self._sampler(number))
        for trial in self._study.get_trials():
            if trial.number in reached:
                step, value = reached[trial.number]
                trial.state = TrialState.COMPLETE if step is None else TrialState.PRUNED
                trial.values = [value] if step is None else None
                trial.intermediate_values = {} if step is None else {step: value}
            scratch.add_trial(trial)
        return self._params(self._suggest(scratch.ask()))

    def again(self, number: int) -> dict[str, Any]:
        """The point of a trial whose asking was cut short: the same as it would have been."""
        self._study.sampler = self._sampler(number)
        return self._suggest(_Redrawn(self._study, self._known(number)._trial_id))

    def judged(self, number: int) -> int:
        """The step up to which a pruner has judged a trial; -1: not yet."""
        told = self._study._storage.get_study_user_attrs(self._study._study_id)
        return int(told.get(f"{JUDGED}:{number}", self._known(number).user_attrs.get(JUDGED, -1)))

    def mark_judged(self, number: int, step: int) -> None:
        if self._known(number).state.is_finished():  # it was told at its first rung, and has been promoted since
            self._study.set_user_attr(f"{JUDGED}:{number}", step)
        else:
            self._trial(number).set_user_attr(JUDGED, step)

    def tell_values(self, number: int, values: Sequence[float]) -> None:
        self._tell(number, TrialState.COMPLETE, values, feasible=True)

    def tell_pruned(self, number: int, last: tuple[int, float] | None = None) -> None:
        """`last`: the step and the value to which it had come. The sampler ranks pruned trials by it."""
        is_open = not self._known(number).state.is_finished()
        if last is not None and is_open and len(self._definition.study.goals) == 1 and math.isfinite(last[1]):
            self._trial(number).report(last[1], last[0])
        self._tell(number, TrialState.PRUNED, None, feasible=True)

    def tell_failed(self, number: int) -> None:
        self._tell(number, TrialState.FAIL, None, feasible=True)

    def tell_infeasible(self, number: int) -> None:
        """A point that cannot run: the sampler learns to keep away, no best trial is ever among them."""
        self._tell(number, TrialState.PRUNED, None, feasible=False)

    def _tell(self, number: int, state: TrialState, values: Sequence[float] | None, feasible: bool) -> None:
        known = self._known(number)
        if known.state.is_finished():
            return  # told before a crash
        if FEASIBLE not in known.constraints:
            self._trial(number).set_constraint(FEASIBLE, 0.0 if feasible else 1.0)
        self._study.tell(number, values, state=state)

    def _trial(self, number: int) -> optuna.Trial:
        return optuna.Trial(self._study, self._known(number)._trial_id)

    def _known(self, number: int) -> FrozenTrial:
        """One trial, by itself: a list of all takes the longer the more have ended."""
        storage, study = self._study._storage, self._study._study_id
        return storage.get_trial(storage.get_trial_id_from_study_id_trial_number(study, number))

    def _suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        space = self._definition.space
        point = space.walk(lambda name, parameter: _suggest_one(trial, name, parameter))
        seed = trial.user_attrs.get(SEED, space.seeds[0] if space.seeds else None)
        return point if seed is None else point | {SEED: seed}

    def _params(self, point: dict[str, Any]) -> dict[str, Any]:
        return {name: _stored(p, value) for name, (p, value) in self._definition.space.parameters_of(point).items()}

    def _ranges(self, point: dict[str, Any]) -> dict[str, BaseDistribution]:
        return {name: _distribution(p) for name, (p, _) in self._definition.space.parameters_of(point).items()}

    def _sampler(self, number: int) -> BaseSampler:
        """A sampler for one trial. Seeded by the study's seed and the trial's number: a restart, which makes new
        samplers, would otherwise draw again what was drawn before."""
        asked, seed = self._definition.study.sampler, self._definition.study.seed
        mixed = (seed * 1_000_003 + number) % 2**31
        given = {k: v for k in SAMPLER_OPTIONS[asked.name] if (v := getattr(asked, k)) is not None}
        if asked.name == "cmaes":
            if "population_size" in given:
                given["popsize"] = given.pop("population_size")
            return _Cma(seed=mixed, warn_independent_sampling=False, **given)
        if asked.name == "nsgaii":
            return NSGAIISampler(seed=mixed, **given)
        if asked.name == "qmc":  # counts its own points in the journal, and must scramble them alike each time
            return QMCSampler(seed=seed, warn_independent_sampling=False, warn_asynchronous_seeding=False, **given)
        if asked.name == "tpe":
            # what has a condition is modelled among the trials that have it
            grouped = asked.multivariate and self._definition.space.has_conditions
            return TPESampler(seed=mixed, group=grouped, **given)
        return RandomSampler(seed=mixed)


class _Cma(CmaEsSampler):
    """Optuna keeps this sampler's state in the storage as a pickle, which would run whatever somebody else has put into
    a database or a journal. Here it is read only as what it is: numbers, and the three classes of cmaes."""

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> Any:
        for trial in reversed(completed_trials):
            kept = {k: v for k, v in trial.system_attrs.items() if k.startswith(self._attr_key_optimizer)}
            if kept:
                try:
                    return _Numbers(io.BytesIO(bytes.fromhex(self._concat_optimizer_attrs(kept)))).load()
                except Exception as e:  # a pickle that is damaged raises whatever it meets
                    why = f"what the storage keeps of it at trial {trial.number} is none of its own: {e}"
                    cure = "somebody else wrote there, or it is damaged: hysweep rebuild makes the storage anew"
                    raise BadInput(Problem("study.sampler.name", "cmaes", why, cure)) from e
        return None


class _Numbers(pickle.Unpickler):
    """Builds nothing but arrays and optimizers of cmaes."""

    ALLOWED = frozenset(
        [(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")]
        + [("numpy", "ndarray"), ("numpy", "dtype")]
        + [("cmaes._cma", "CMA"), ("cmaes._sepcma", "SepCMA"), ("cmaes._cmawm", "CMAwM")]
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


class _Redrawn(optuna.Trial):
    """A trial that has some of its parameters, drawn once more: what was drawn for those is drawn again, and dropped,
    so that the others come out as they would have."""

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        known = self._get_latest_trial()
        is_drawn = not (
            self._is_fixed_param(name, distribution)
            or distribution.single()
            or self._is_relative_param(name, distribution)
        )
        if name in known.params and is_drawn:
            self.study.sampler.sample_independent(self.study, known, name, distribution)
        return super()._suggest(name, distribution)


def _suggest_one(trial: optuna.Trial, name: str, parameter: Parameter) -> Any:
    if isinstance(parameter, Choice):
        text = trial.suggest_categorical(name, list(parameter.texts))
        return parameter.values[parameter.texts.index(text)]
    if parameter.is_int:
        return trial.suggest_int(name, int(parameter.low), int(parameter.high), log=parameter.is_log)
    return trial.suggest_float(name, parameter.low, parameter.high, log=parameter.is_log)


def _distribution(parameter: Parameter) -> BaseDistribution:
    """The same range as `_suggest_one` asks for."""
    if isinstance(parameter, Choice):
        return CategoricalDistribution(parameter.texts)
    if parameter.is_int:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.is_log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.is_log)


def _stored(parameter: Parameter, value: Any) -> Any:
    """A value as Optuna keeps it: that of a choice by its text."""
    if isinstance(parameter, Choice):
        return parameter.text(value)
    return int(value) if parameter.is_int else float(value)
