"""How much each key that varied had to do with the result: by Optuna's PED-ANOVA, which needs nothing else installed.

PED-ANOVA (Watanabe et al., 2023, arXiv:2304.10255) compares where the best tenth of the trials lie with where all lie.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST = 5  # trials: fewer say nothing
FEW = 30  # below it the ranking is a hint


@dataclass(frozen=True, slots=True)
class Importances:
    """shares: by key, the most important first; together 1, or none where fewer than two keys can be compared.
    left_out: keys that not every trial has. untold: keys of which every trial has the same value."""

    evaluator: str
    trials: int
    shares: Mapping[str, float]
    left_out: tuple[str, ...]
    untold: tuple[str, ...] = ()

    @property
    def is_a_hint(self) -> bool:
        return self.trials < FEW


def importances(
    points: Sequence[Mapping[str, Any]], values: Sequence[float], is_maximised: bool, logged: Collection[str]
) -> Importances | None:
    """Of completed trials. `logged`: keys that are compared by their logarithm. None where there is nothing to tell:
    too few trials, or fewer than two keys, of those that all of them have, that could be compared."""
    measured = [(p, v) for p, v in zip(points, values, strict=True) if math.isfinite(v)]
    named = dict.fromkeys(k for p, _ in measured for k in p)
    keys = [k for k in named if len({repr(p.get(k)) for p, _ in measured}) > 1]
    untold = tuple(k for k in named if k not in keys)
    shared = [k for k in keys if all(k in p for p, _ in measured)]
    left_out = tuple(k for k in keys if k not in shared)
    if len(measured) < LEAST or len({v for _, v in measured}) == 1:
        return None
    if len(shared) < 2:
        return Importances("PED-ANOVA", len(measured), {}, left_out, untold) if untold else None
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize" if is_maximised else "minimize")
        ranges = {k: _distribution([p[k] for p, _ in measured], k in logged) for k in shared}
        for point, value in measured:
            params = {k: _stored(point[k], ranges[k]) for k in shared}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=ranges, value=value))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (ValueError, RuntimeError):
        return None
    finally:
        optuna.logging.set_verbosity(before)
    return Importances("PED-ANOVA", len(measured), dict(found), left_out, untold) if found else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _distribution(values: Sequence[Any], is_logged: bool) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if all(map(_is_number, values)):
        low, high = min(values), max(values)
        if all(isinstance(v, int) for v in values):
            return IntDistribution(low, high, log=is_logged and low > 0)
        return FloatDistribution(low, high, log=is_logged and low > 0)
    return CategoricalDistribution(sorted({_text(v) for v in values}))


def _stored(value: Any, distribution: Any) -> Any:
    return _text(value) if hasattr(distribution, "choices") else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
