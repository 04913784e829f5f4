"""GPU-hours until a target is reached: our search against Optuna's TPE without pruning, on curves that were recorded.

    python benchmarks/search.py [SEEDS]                  replays recorded/quickstart.csv
    python benchmarks/search.py --record STUDYDIR...     writes it, from the study of recorded/quickstart.yaml

The curves are 48 real trainings: verl on the CPU, the tiny Hy3, four algorithms at twelve learning rates. Between two
learning rates a training goes as the line between them, step by step. The target is 0.95 of the best recorded value;
the value of a trial is the mean of its last three steps. A step costs the same everywhere, and booting nothing. Four
trials at once on either side.

theirs    hydra-optuna-sweeper's loop: ask four, run them to their ends, tell four; TPESampler as it comes
ours      the real controller in a simulation, asynchronous; as the table says, with a pruner, or with promotion
shipped   sweeps/quickstart.yaml as it is, which begins with each algorithm's own learning rate: that is knowledge and
          not search, so it counts for nothing in the ratio

Costs are in whole trainings. Ratios are of means over SEEDS (20) seeds; the search goes on until it reaches the target.
"""

from __future__ import annotations

import csv
import math
import os
import statistics
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna

from hysweep.compose import Composer
from hysweep.compose.composer import load_trial
from hysweep.launch.simulated import SimulatedCluster
from hysweep.study import define
from hysweep.study.curves import Told
from hysweep.study.simulation import BEGINNING, simulate_study
from hysweep.track import Cause, StudyDirectory

TABLE = Path(__file__).parent / "recorded" / "quickstart.csv"
METRIC, LAST, SHARE, AT_ONCE, MOST = "critic/score/mean", 3, 0.95, 4, 200
LOW, HIGH = 3e-5, 1e-2

SEARCH = (
    f"sweep={TABLE.with_suffix('.yaml')}", "study.name=search", "study.sampler=tpe", "study.default_first=false",
    f"trainer.learning_rate=tag(log,interval({LOW},{HIGH}))",
)  # fmt: skip
OURS = {
    "ours, no pruner": (),
    "ours, percentile": ("study.pruner={name: percentile, percentile: 50, min_steps: 3, startup_trials: 4}",),
    "ours, hyperband": ("study.pruner={name: hyperband, min_steps: 2, reduction_factor: 3}",),
    "ours, promotion": ("study.promote={min_steps: 2, reduction_factor: 3}", "trainer.save_every=1"),
}


class Curves:
    """The recorded trainings: by algorithm, at each learning rate the score of each step."""

    def __init__(self) -> None:
        self.scores: dict[str, dict[float, list[float]]] = {}
        with TABLE.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                curve = self.scores.setdefault(row["algorithm"], {}).setdefault(float(row["learning_rate"]), [])
                curve.append(float(row["score"]))
        (self.steps,) = {len(curve) for curves in self.scores.values() for curve in curves.values()}
        best = max(value_of(curve) for curves in self.scores.values() for curve in curves.values())
        self.target = SHARE * best

    def at(self, algorithm: str, rate: float) -> list[float]:
        curves = self.scores[algorithm]
        rates = sorted(curves)
        i = min(max(bisect_left(rates, rate), 1), len(rates) - 1)
        low, high = rates[i - 1], rates[i]
        share = min(1.0, max(0.0, math.log(rate / low) / math.log(high / low)))
        return [a + (b - a) * share for a, b in zip(curves[low], curves[high], strict=True)]

    def __call__(self, point: Mapping[str, Any], steps: int) -> Told:
        curve = self.at(point["algorithm"], point["trainer.learning_rate"])
        return Told(lambda step: {METRIC: curve[step - 1]}, 1.0)


def value_of(curve: list[float]) -> float:
    return statistics.fmean(curve[-LAST:])


def theirs(curves: Curves, seed: int) -> float:
    """Trainings until one reached the target: whole rounds, for each waits for its last."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for round_ in range(1, MOST // AT_ONCE + 1):
        trials = [study.ask() for _ in range(AT_ONCE)]
        values = [
            value_of(curves.at(t.suggest_categorical("algorithm", list(curves.scores)),
                               t.suggest_float("rate", LOW, HIGH, log=True)))
            for t in trials
        ]  # fmt: skip
        for trial, value in zip(trials, values, strict=True):
            study.tell(trial, value)
        if max(values) >= curves.target:
            return float(round_ * AT_ONCE)
    return float(MOST)


def ours(curves: Curves, seed: int, words: tuple[str, ...]) -> float:
    """Trainings, in steps of all trials together, until the first trial that ended with the target."""
    composer = Composer()
    said = (
        f"study.n_trials={MOST}", f"study.max_parallel={AT_ONCE}", f"study.seed={seed}",
        f"study.target={curves.target}", f"trainer.total_steps={curves.steps}", "study.poll_s=0.5",
    )  # fmt: skip
    definition = define(composer.compose([*said, *words]))
    with tempfile.TemporaryDirectory() as root:
        found = simulate_study(definition, composer, SimulatedCluster(AT_ONCE, boot_s=0.0), curves, Path(root))
        directory = StudyDirectory(Path(root) / definition.study.name)
        reached = [
            trial.state().updated - BEGINNING
            for trial in directory.trials()
            if trial.state().cause is Cause.COMPLETED and (trial.state().value or 0.0) >= curves.target
        ]
    if not reached:
        return float(MOST)
    at = min(reached)
    used = math.fsum(max(0.0, min(stay.ended, at) - stay.started) for stay in found.stays)
    return used / curves.steps


def record(studies: list[Path]) -> None:
    """From several studies where some trials had to be run again."""
    rows = []
    for trial in (t for study in studies for t in StudyDirectory(study).trials()):
        if trial.state().cause is not Cause.COMPLETED:
            print(f"left out: trial {trial.number}, {trial.state().cause}")
            continue
        done = load_trial(trial.config_file.read_text(encoding="utf-8"))
        for step, data in sorted(trial.metrics().items()):
            rows.append((done.algorithm.name, done.trainer.learning_rate, step, round(data[METRIC], 6)))
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("algorithm", "learning_rate", "step", "score"), *sorted(rows)])
    print(f"{len(rows)} rows in {TABLE}")


def main(seeds: int = 20) -> None:
    curves = Curves()
    sides: dict[str, Callable[[int], float]] = {"theirs": lambda seed: theirs(curves, seed)}
    for name, words in ({n: (*SEARCH, *more) for n, more in OURS.items()} | {"shipped": ("sweep=quickstart",)}).items():
        sides[name] = lambda seed, words=words: ours(curves, seed, words)  # type: ignore[misc]
    base: list[float] = []
    print(f"target {curves.target:.3f}; trainings of {curves.steps} steps until it is reached, {seeds} seeds")
    print(f"{'':18} {'mean':>6} {'median':>7} {'worst':>6} {'ratio':>6}")
    for name, cost in sides.items():
        costs = [cost(seed) for seed in range(seeds)]
        base = base or costs
        ratio = statistics.fmean(costs) / statistics.fmean(base)
        median, worst = statistics.median(costs), max(costs)
        print(f"{name:18} {statistics.fmean(costs):6.1f} {median:7.1f} {worst:6.1f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("HYSWEEP_CACHE_DIR", tempfile.mkdtemp())
    if sys.argv[1:2] == ["--record"]:
        record(list(map(Path, sys.argv[2:])))
    else:
        main(*map(int, sys.argv[1:]))
