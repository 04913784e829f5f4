"""The parts of a study that say how it searches: the sampler, the pruners, the objectives."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from hysweep.schema.knob import knob


@dataclass(kw_only=True, slots=True)
class Sampler:
    """How the next point is chosen. `study.sampler=tpe` is short for `study.sampler.name=tpe`. Null: Optuna's value."""

    name: str = knob("tpe", "", choices=("tpe", "cmaes", "nsgaii", "qmc", "random", "grid"), learned=False)
    n_startup_trials: int | None = knob(
        None, "tpe, cmaes: so many random points before it begins to learn", learned=False, low=0, high=100_000
    )
    n_ei_candidates: int | None = knob(
        None, "tpe: candidates of which it takes the best", learned=False, low=1, high=100_000
    )
    multivariate: bool = knob(True, "tpe: parameters are chosen together, not one by one", learned=False)
    constant_liar: bool = knob(True, "tpe: keeps away from the points that still run", learned=False)
    population_size: int | None = knob(
        None, "cmaes, nsgaii: points of a generation", learned=False, low=2, high=100_000
    )
    sigma0: float | None = knob(None, "cmaes: how widely it looks at first", learned=False, low=0)
    mutation_prob: float | None = knob(None, "nsgaii: how often a parameter is changed", learned=False, low=0, high=1)
    crossover_prob: float | None = knob(None, "nsgaii: how often two parents are mixed", learned=False, low=0, high=1)
    qmc_type: str = knob("sobol", "qmc: the sequence", choices=("sobol", "halton"), learned=False)
    scramble: bool = knob(True, "qmc: the sequence is scrambled by the study's seed", learned=False)


# Which options each sampler reads.
SAMPLER_OPTIONS: dict[str, tuple[str, ...]] = {
    "tpe": ("n_startup_trials", "n_ei_candidates", "multivariate", "constant_liar"),
    "cmaes": ("n_startup_trials", "population_size", "sigma0"),
    "nsgaii": ("population_size", "mutation_prob", "crossover_prob"),
    "qmc": ("qmc_type", "scramble"),
    "random": (),
    "grid": (),
}

# Every rule by which a running trial is given up, with the options that it reads.
PRUNER_OPTIONS: dict[str, tuple[str, ...]] = {
    "none": (),
    "median": ("startup_trials",),
    "percentile": ("startup_trials", "percentile"),
    "successive_halving": ("reduction_factor",),
    "hyperband": ("reduction_factor", "max_steps"),
    "patient": ("patience", "min_delta"),
    "threshold": ("low", "high"),
    "nan": (),
    "reward_collapse": ("share", "patience"),
    "entropy_collapse": ("low", "patience"),
    "probs_diff": ("high", "patience"),
}


@dataclass(kw_only=True, slots=True)
class Pruner:
    """When a running trial is given up; docs/sweeps.md has each rule. Null: the rule's own value."""

    name: str = knob("none", "rule", choices=tuple(PRUNER_OPTIONS), learned=False)
    metric: str | None = knob(
        None, "the metric that it looks at; null: the study's, or that which the rule is about", learned=False
    )
    direction: str | None = knob(
        None, "which of its values are good; null: as the study has it", learned=False,
        choices=(None, "maximize", "minimize"),
    )  # fmt: skip
    min_steps: int = knob(1, "no trial is pruned before this step", unit="steps", learned=False, low=1)
    startup_trials: int = knob(
        2, "median, percentile: none is pruned before this many have completed", learned=False, low=0
    )
    percentile: float = knob(
        50.0,
        "percentile: keep a trial that is among the best so many percent",
        learned=False,
        low=0,
        high=100,
    )
    reduction_factor: int = knob(
        3, "successive_halving, hyperband: of each rung only one in so many goes on", learned=False, low=2
    )
    max_steps: int | None = knob(
        None, "hyperband: the steps of a whole trial; null: trainer.total_steps", unit="steps", learned=False, low=1
    )
    patience: int | None = knob(
        None, "patient, *_collapse, probs_diff: so many values in a row have to be bad", learned=False, low=1
    )
    min_delta: float = knob(0.0, "patient: what counts as better", learned=False, low=0)
    low: float | None = knob(None, "threshold, entropy_collapse: bad below it", learned=False)
    high: float | None = knob(None, "threshold, probs_diff: bad above it", learned=False)
    share: float = knob(0.5, "reward_collapse: bad below this share of its best", learned=False, low=0, high=1)


@dataclass(kw_only=True, slots=True)
class Objective:
    """One of several things to optimise at once."""

    metric: str = knob("critic/score/mean", "any metric of the trainer, or gpu_hours", learned=False)
    direction: str = knob("maximize", "which values are good", choices=("maximize", "minimize"), learned=False)
    reduce: str = knob(
        "last", "how a curve becomes one value", choices=("last", "best", "mean_last", "auc"), learned=False
    )
    last: int = knob(5, "mean_last: the mean of so many last values", learned=False, low=1)


@dataclass(kw_only=True, slots=True)
class Promote:
    """Every trial stops at min_steps; only the best go on from there, each from its own checkpoint."""

    min_steps: int | None = knob(
        None, "where every trial stops first, and is compared; null: each runs to its end", unit="steps",
        learned=False, low=1,
    )  # fmt: skip
    reduction_factor: int = knob(
        3, "one in so many goes on, to so many times as many steps, where it is compared again", learned=False, low=2
    )


@dataclass(kw_only=True, slots=True)
class Confirm:
    """When the search is over, the best points are run again with new seeds: a winner is more than luck."""

    top: int = knob(0, "so many points; 0: none", learned=False, low=0, high=100)
    seeds: int = knob(3, "with so many new seeds each", learned=False, low=1, high=100)


def spell_out(study: MutableMapping[Any, Any]) -> None:
    """`sampler: tpe`, `pruner: median` and `pruners: [nan]` as they are in full, in what a file says of a study."""
    for part in ("sampler", "pruner"):
        if isinstance(study.get(part), str):
            study[part] = {"name": study[part]}
    pruners = study.get("pruners")
    if isinstance(pruners, Sequence) and not isinstance(pruners, str):
        study["pruners"] = [{"name": p} if isinstance(p, str) else p for p in pruners]
