"""When a study asks for no further trial, beside its number of trials and its budget."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hysweep.schema import Study
from hysweep.study.replicates import Outcome
from hysweep.track import Verdict


class Progress:
    """The best value so far, and how many points in a row brought nothing better, in the order in which they were
    known: each that is run with several seeds once, with the mean.

    What failed or could not run says nothing of the space, so it is not counted.
    """

    def __init__(self, study: Study, known: Iterable[Outcome]) -> None:
        self._sign = 1.0 if study.goals[0].direction == "maximize" else -1.0
        self.best: float | None = None
        self.without_better = 0
        for told in known:
            self.add(told)

    def add(self, told: Outcome, is_again: bool = False) -> None:
        """`is_again`: of a trial that was added before, and has come further since."""
        if told.verdict not in (Verdict.VALUE, Verdict.PRUNED):
            return
        value = told.values[0] if told.values else None
        if value is not None and (self.best is None or self._sign * (value - self.best) > 0):
            self.best, self.without_better = value, 0
        elif not is_again:
            self.without_better += 1

    def why_stop(self, study: Study, hours: float) -> str | None:
        """`hours` since the study began."""
        if study.max_hours is not None and hours >= study.max_hours:
            return f"{study.max_hours:g} hours have passed since it began (study.max_hours)"
        if self.best is None:
            return None
        if study.target is not None and self._sign * (self.best - study.target) >= 0:
            return f"the target of {study.target:g} is reached: the best is {self.best:.4g} (study.target)"
        if study.patience_trials is not None and self.without_better >= study.patience_trials:
            said = f"{self.without_better} trials in a row brought nothing better than {self.best:.4g}"
            return f"{said} (study.patience_trials)"
        return None


def last_mark(spent: float, budget: float | None) -> int | None:
    """The highest of the marks of a budget that was passed, in percent."""
    if not budget:
        return None
    percent = 100 * spent / budget + 1e-9
    return max((m for m in (50, 80, 100) if math.floor(percent) >= m), default=None)
