"""When a running trial is given up: rules over curves, each with its reason in words and numbers.

Curves are read from the trials' directories, so every rule works with several objectives too, and a rule is one
function. Rules that compare trials do so at the same training step; the others look at the trial alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from hysweep.schema import Problem, Pruner, Severity, Stage, Study, Trial

Curve = Sequence[tuple[int, float]]

SCORE = "critic/score/mean"
ENTROPY = "actor/entropy"
PROBS_DIFF = "training/rollout_probs_diff_mean"  # of rollout engine and trainer; needs rollout.calculate_log_probs

# What a rule is about where no metric is named; the others look at the study's.
OWN_METRICS: dict[str, tuple[str, ...]] = {
    "nan": (SCORE, "actor/loss", "actor/pg_loss", "actor/grad_norm"),
    "reward_collapse": (SCORE,),
    "entropy_collapse": (ENTROPY,),
    "probs_diff": (PROBS_DIFF,),
}


def idle_pruners(trial: Trial, study: Study) -> list[Problem]:
    """Rules that can give no trial up, since they wait for a step that it does not have."""
    total = trial.trainer.total_steps
    rules = {"study.pruner": study.pruner} | {
        f"study.pruners[{i}]": rule for i, rule in enumerate(study.pruners, start=1)
    }
    return [
        Problem(f"{key}.min_steps", rule.min_steps, f"a whole training has {total} steps, so {rule.name} gives none up",
                f"give less than {total}, or no pruner", Stage.NEVER, Severity.WARNING)
        for key, rule in rules.items()
        if total is not None and rule.name != "none" and rule.min_steps > total
    ]  # fmt: skip


@dataclass(frozen=True)
class Other:
    """Another trial of the study, with its curve of the metric that is compared."""

    number: int
    curve: Curve
    is_completed: bool

    @cached_property
    def by_step(self) -> dict[int, float]:
        return {step: value for step, value in self.curve if math.isfinite(value)}

    def at(self, step: int) -> float | None:
        """Its value when it had come so far: the first that was measured from there on."""
        return next((v for s, v in self.curve if s >= step and math.isfinite(v)), None)


@dataclass(frozen=True, slots=True)
class Case:
    """One trial at one step. `curve`: the metric up to there, the step being the last."""

    rule: Pruner
    metric: str
    direction: str
    number: int
    curve: Curve
    others: Sequence[Other]
    study: str
    total_steps: int | None

    @property
    def step(self) -> int:
        return self.curve[-1][0]

    @property
    def value(self) -> float:
        return self.curve[-1][1]

    @property
    def said(self) -> str:
        return f"at step {self.step} {self.metric} was {self.value:.4g}"

    @property
    def best(self) -> float:
        return self.best_of([v for _, v in self.curve])

    def best_of(self, values: Sequence[float]) -> float:
        finite = [v for v in values if math.isfinite(v)]
        return (max if self.direction == "maximize" else min)(finite, default=math.nan)

    def is_better(self, one: float, than: float) -> bool:
        return one > than if self.direction == "maximize" else one < than

    def all_of_last(self, count: int, is_bad: Callable[[float], bool]) -> bool:
        """Whether so many values in a row, up to the last, are bad."""
        tail = [v for _, v in self.curve[-count:]]
        return len(tail) == count and all(math.isfinite(v) and is_bad(v) for v in tail)


def reason_to_prune(
    study: Study,
    number: int,
    curve_of: Callable[[str], Curve],
    others_of: Callable[[str], Sequence[Other]],
    since: int,
    total_steps: int | None,
) -> str | None:
    """Why a trial is given up, by the first rule and at the first step that says so; None: it goes on.

    since     the step up to which it was judged before: what was passed is not judged again
    curve_of  the trial's curve of a metric; `others_of`: those of all other trials
    """
    for rule in study.rules:
        for metric in metrics_of(rule, study):
            curve = curve_of(metric)
            fresh = [i for i, (step, _) in enumerate(curve) if step > since and step >= rule.min_steps]
            others = others_of(metric) if fresh and rule.name in COMPARING else ()
            for i in fresh:
                direction = direction_of(rule, metric, study)
                case = Case(rule, metric, direction, number, curve[: i + 1], others, study.name, total_steps)
                if reason := RULES[rule.name](case):
                    return f"{reason} ({rule.name})"
    return None


def metrics_of(rule: Pruner, study: Study) -> tuple[str, ...]:
    if rule.metric:
        return (rule.metric,)
    own = OWN_METRICS.get(rule.name, ())
    return (
        tuple(dict.fromkeys((study.goals[0].metric, *own))) if rule.name == "nan" else own or (study.goals[0].metric,)
    )


def direction_of(rule: Pruner, metric: str, study: Study) -> str:
    """Which values are good: as the rule says, as the objective of this metric has it, or as the first one."""
    named = next((goal.direction for goal in study.goals if goal.metric == metric), None)
    return rule.direction or named or study.goals[0].direction


# --- rules that compare trials


def percentile(case: Case) -> str | None:
    """Its best so far is below what the best so many percent of the completed trials had at this step."""
    kept = 50.0 if case.rule.name == "median" else case.rule.percentile
    completed = [o for o in case.others if o.is_completed]
    there = [v for o in completed if (v := o.by_step.get(case.step)) is not None]
    if not there or len(completed) < case.rule.startup_trials:
        return None
    bar = bar_of(there, kept, case.direction)
    if math.isnan(case.best) or not case.is_better(bar, case.best):
        return None
    best = f"up to step {case.step} its best {case.metric} was {case.best:.4g}"
    return f"{best}, and the best {kept:g} % of {len(there)} completed ones had {bar:.4g} there"


def successive_halving(case: Case) -> str | None:
    """On reaching a rung (min_steps, times the factor, and so on) it is not among the best of those that did."""
    return _at_rung(case, case.rule.min_steps, case.others)


def hyperband(case: Case) -> str | None:
    """Successive halving in brackets, of which each begins to prune a rung later than the one before."""
    top = case.rule.max_steps or case.total_steps or max((o.curve[-1][0] for o in case.others if o.curve), default=0)
    first, factor = case.rule.min_steps, case.rule.reduction_factor
    brackets = 1
    while first * factor**brackets <= top:
        brackets += 1

    def bracket(number: int) -> int:
        # as Optuna: the earlier a bracket prunes, the more trials it can afford
        budgets = [math.ceil(brackets * factor ** (brackets - 1 - i) / (brackets - i)) for i in range(brackets)]
        place = zlib.crc32(f"{case.study}_{number}".encode()) % sum(budgets)
        return next(i for i in range(brackets) if place < sum(budgets[: i + 1]))

    own = bracket(case.number)
    return _at_rung(case, first * factor**own, [o for o in case.others if bracket(o.number) == own])


def _at_rung(case: Case, first: int, others: Sequence[Other]) -> str | None:
    factor, rung = case.rule.reduction_factor, first
    before = case.curve[-2][0] if len(case.curve) > 1 else 0
    while rung * factor <= case.step:
        rung *= factor
    if not before < rung <= case.step:
        return None
    there = [v for o in others if (v := o.at(rung)) is not None]
    places = max(1, (len(there) + 1) // factor)
    better = sum(1 for v in there if case.is_better(v, case.value))
    if math.isfinite(case.value) and better < places:
        return None
    return (
        f"{case.said}: {better} of the {len(there) + 1} on the rung of step {rung} are better, and {places} may go on"
    )


# --- rules about the trial alone


def patient(case: Case) -> str | None:
    """It has brought nothing better for a while."""
    patience = case.rule.patience or 10
    before = [v for _, v in case.curve[:-patience]]
    bar, recent = case.best_of(before), case.best_of([v for _, v in case.curve[-patience:]])
    grown = bar + case.rule.min_delta * (1 if case.direction == "maximize" else -1)
    if not before or math.isnan(bar) or case.is_better(recent, grown):
        return None
    return f"{case.said}, and of the last {patience} values none was better than {bar:.4g}, which it had before"


def threshold(case: Case) -> str | None:
    """It has left the bounds."""
    low, high = case.rule.low, case.rule.high
    if low is not None and case.value < low:
        return f"{case.said}, below {low:g}"
    if high is not None and case.value > high:
        return f"{case.said}, above {high:g}"
    return None


def nan(case: Case) -> str | None:
    """It is no number any more."""
    return None if math.isfinite(case.value) else f"{case.said}, which is no number"


def reward_collapse(case: Case) -> str | None:
    """It has fallen below a share of its best, and stayed there. Says nothing of what never was above 0."""
    patience, best = case.rule.patience or 5, max((v for _, v in case.curve if math.isfinite(v)), default=0.0)
    bar = case.rule.share * best
    if best <= 0 or not case.all_of_last(patience, lambda v: v < bar):
        return None
    return f"{case.said}: for {patience} values below {case.rule.share:g} of its best, {best:.4g}"


def entropy_collapse(case: Case) -> str | None:
    """The policy has stopped to explore."""
    patience, low = case.rule.patience or 5, 0.02 if case.rule.low is None else case.rule.low
    if not case.all_of_last(patience, lambda v: v < low):
        return None
    return f"{case.said}: for {patience} values below {low:g}"


def probs_diff(case: Case) -> str | None:
    """Rollout engine and trainer give the same tokens different probabilities: what is learned is not what was played.

    A healthy run of Hy3 stays below 0.015.
    """
    patience, high = case.rule.patience or 3, 0.05 if case.rule.high is None else case.rule.high
    if not case.all_of_last(patience, lambda v: v > high):
        return None
    return f"{case.said}: for {patience} values above {high:g}"


RULES: dict[str, Callable[[Case], str | None]] = {
    "median": percentile,
    "percentile": percentile,
    "successive_halving": successive_halving,
    "hyperband": hyperband,
    "patient": patient,
    "threshold": threshold,
    "nan": nan,
    "reward_collapse": reward_collapse,
    "entropy_collapse": entropy_collapse,
    "probs_diff": probs_diff,
}
COMPARING = ("median", "percentile", "successive_halving", "hyperband")


def bar_of(values: Sequence[float], kept: float, direction: str) -> float:
    """What the best `kept` percent of some values reach, between two of them by a straight line, as Optuna's
    percentile pruner has it (numpy.percentile)."""
    if not values:
        return math.nan
    ordered = sorted(values, reverse=direction == "minimize")
    place = (1 - kept / 100) * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
