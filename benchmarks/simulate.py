"""The controller under load: a simulated study of many trials, real in everything but the cluster and the clock.

    python benchmarks/simulate.py [TRIALS] [IN_FLIGHT] [TPE_TRIALS]

TRIALS (10000) with the random sampler, IN_FLIGHT (1000) at once, four algorithms and a learning rate; then TPE_TRIALS
(500) with TPE beside it. Prints minutes, milliseconds a trial, memory, and calls to the scheduler a look. Ends with 1
when the first takes more than 10 minutes or 1 GB, or asks the scheduler more than once a look for how its jobs stand.
The disk is not waited for, as always in a simulation.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from hysweep.compose import Composer
from hysweep.launch.simulated import SimulatedCluster
from hysweep.study import define
from hysweep.study.curves import Model
from hysweep.study.simulation import simulate_study

SPACE = ("algorithm=grpo,rloo,gspo,cispo", "trainer.learning_rate=tag(log,interval(1e-4,1e-2))",
         "trainer.total_steps=int(interval(50,150))", "study.poll_s=30",
         "cluster.timeout_min=240")  # fmt: skip
MOST_MINUTES, MOST_GB = 10.0, 1.0


def run(sampler: str, trials: int, in_flight: int) -> bool:
    composer = Composer()
    words = (f"study.sampler={sampler}", f"study.n_trials={trials}", f"study.max_parallel={in_flight}")
    definition = define(composer.compose([*SPACE, *words]))
    began, cpu, load = time.monotonic(), time.process_time(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as root:
        curves = Model(definition.space, definition.study, seed=0)
        found = simulate_study(
            definition, composer, SimulatedCluster(in_flight), curves, Path(root), step_s=60.0, progress=_say(trials)
        )
    minutes, cpu = (time.monotonic() - began) / 60, time.process_time() - cpu
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    asked = found.calls["states"] / found.polls
    print(
        f"{sampler}: {trials} trials, {in_flight} in flight: {minutes:.1f} min, {minutes * 6e4 / trials:.0f} ms a trial"
        f" ({cpu * 1e3 / trials:.0f} ms of CPU), {gigabytes:.2f} GB at most, {found.polls} looks with {asked:.2f} calls"
        f" for all jobs each, {found.calls['submit'] / trials:.2f} submissions a trial; simulated"
        f" {found.makespan_s / 3600:.0f} h at {found.utilisation:.0%}; load before {load:.1f}, after"
        f" {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores",
        flush=True,
    )
    return minutes <= MOST_MINUTES and gigabytes <= MOST_GB and asked <= 1.0


def _say(trials: int):  # type: ignore[no-untyped-def]
    said = [0]

    def progress(ended: int, of: int) -> None:
        if ended - said[0] >= trials / 10:
            said[0] = ended
            print(f"  {ended} of {of}", file=sys.stderr, flush=True)

    return progress


def main(trials: int = 10_000, in_flight: int = 1_000, tpe_trials: int = 500) -> int:
    is_good = run("random", trials, in_flight)
    if tpe_trials:
        run("tpe", tpe_trials, max(1, min(in_flight, tpe_trials // 10)))
    return 0 if is_good else 1


if __name__ == "__main__":
    os.environ.setdefault("HYSWEEP_CACHE_DIR", tempfile.mkdtemp())
    sys.exit(main(*map(int, sys.argv[1:])))
