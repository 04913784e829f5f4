"""Makespan of trials of mixed length, a few at once: ours, and hydra-optuna-sweeper with hydra-submitit-launcher.

    python benchmarks/makespan.py [TRIALS] [IN_FLIGHT]      as root, on a machine that `hysweep cluster up` works on

On one SLURM cluster of four nodes that this starts, one after another: ours, the stable release of theirs and its
newest candidate, each of these in an environment of its own, made from the index. Trial k takes the same seconds on
each side, from 10 to 90, and does nothing but wait: no side boots Ray. Whole processes, from start to end, against the
bound for whoever does not know how long a trial will take: each begins, in its order, the moment that one has ended.
And how long each takes until sbatch has its first job.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hysweep.cli.cluster import SCRIPT

THEIRS = {
    "stable": ("hydra-core==1.3.8", "hydra-optuna-sweeper==1.3.0", "hydra-submitit-launcher==1.2.0"),
    "candidate": ("hydra-core==1.4.0rc3", "hydra-optuna-sweeper==1.4.0rc3", "hydra-submitit-launcher==1.4.0rc3"),
}
SHORTEST_S, LONGEST_S = 10.0, 90.0

APP = '''"""A function that waits, as their documentation writes one."""
import time
import hydra
from hydra.core.hydra_config import HydraConfig

LENGTHS = {lengths}

@hydra.main(version_base=None, config_path=None, config_name=None)
def main(cfg):
    time.sleep(LENGTHS[HydraConfig.get().job.num])
    return float(cfg.x)

main()
'''
ASKED = (
    "hydra/sweeper=optuna", "hydra/launcher=submitit_slurm", "hydra.sweeper.direction=maximize",
    "hydra.sweeper.sampler.seed=1", "hydra.launcher.partition=main", "hydra.launcher.timeout_min=10",
    "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1", "+x=interval(0,1)",
)  # fmt: skip


def lengths(trials: int) -> list[float]:
    """Seconds, even on a logarithmic scale."""
    draw = random.Random(0)
    return [round(math.exp(draw.uniform(math.log(SHORTEST_S), math.log(LONGEST_S))), 1) for _ in range(trials)]


def theirs(place: Path, packages: tuple[str, ...], trials: int, in_flight: int) -> tuple[float, float]:
    """Seconds of their sweep, in an environment of its own, and until sbatch had taken its first jobs."""
    place.mkdir()
    subprocess.run([sys.executable, "-m", "venv", place / "env"], check=True)
    python = place / "env" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "setuptools", *packages]
    subprocess.run(pip, check=True)
    (place / "app.py").write_text(APP.format(lengths=lengths(trials)))
    wide = (f"hydra.sweeper.n_trials={trials}", f"hydra.sweeper.n_jobs={in_flight}")
    took, began = timed([str(python), "app.py", "-m", *ASKED, *wide], place)
    # what submitit writes when sbatch has answered
    return took, min(file.stat().st_ctime for file in place.rglob("*_submitted.pkl")) - began


def ours(place: Path, trials: int, in_flight: int) -> tuple[float, float]:
    place.mkdir()
    words = (
        "cluster=testcluster", "cluster.nodes=1", "trainer.learning_rate=tag(log,interval(1e-4,1e-2))",
        f"study.n_trials={trials}", f"study.max_parallel={in_flight}", "study.name=makespan", f"study.root={place}",
    )  # fmt: skip
    took, began = timed([sys.executable, __file__, "--ours", str(trials), "run", "-m", *words], place)
    events = map(json.loads, (place / "makespan" / "events.jsonl").read_text().splitlines())
    return took, next(event["time"] for event in events if event["event"] == "submitted") - began


def timed(argv: list[str], place: Path) -> tuple[float, float]:
    """Seconds, and when it began."""
    began = time.time()
    with open(place / "log", "w") as log:
        done = subprocess.run(argv, cwd=place, stdout=log, stderr=log, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{(place / 'log').read_text()[-3000:]}")
    return time.time() - began, began


def run_ours(trials: int, words: list[str]) -> None:
    """hysweep as it is, but that a trial waits: with a stand-in for Ray and for the trainer."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.slurm.bare_study import bare_job

    from hysweep.cli import main as hysweep
    from hysweep.schema import Trial
    from hysweep.schema.job import Job
    from hysweep.study import controller

    def compile_wait(trial: Trial, directory: Path, label: str) -> Job:
        seconds = lengths(trials)[int(directory.name.partition("-")[0])]
        return bare_job(trial, "metrics=1", f"sleep={seconds}")

    controller.compile_trial = compile_wait  # type: ignore[assignment]
    sys.argv = ["hysweep", *words]
    hysweep()


def main(trials: int = 24, in_flight: int = 4) -> None:
    slots = [0.0] * in_flight
    for seconds in lengths(trials):
        heapq.heapreplace(slots, slots[0] + seconds)
    bound = max(slots)
    with tempfile.TemporaryDirectory(prefix="makespan-") as name:
        place = Path(name)
        os.environ["HYSWEEP_TESTCLUSTER"] = f"{place}/cluster"
        subprocess.run(["bash", str(SCRIPT), "up", "4"], check=True, stdout=subprocess.DEVNULL)
        os.environ |= {"SLURM_CONF": f"{place}/cluster/etc/slurm.conf",
                       "PATH": f"{place}/cluster/bin:{os.environ['PATH']}"}  # fmt: skip
        try:
            mine, first = ours(place / "ours", trials, in_flight)
            print(f"{trials} trials, {in_flight} in flight; at best {bound:.0f} s")
            print(f"ours       {mine:6.0f} s  {mine / bound:.2f} of the bound; sbatch after {first:.1f} s", flush=True)
            for side, packages in THEIRS.items():
                took, began = theirs(place / side, packages, trials, in_flight)
                print(f"{side:10} {took:6.0f} s  {took / bound:.2f} of the bound; sbatch after {began:.1f} s;"
                      f" ours takes {mine / took:.2f} and {first / began:.2f} of that  ({', '.join(packages)})",
                      flush=True)  # fmt: skip
        finally:
            subprocess.run(["bash", str(SCRIPT), "down"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        run_ours(int(sys.argv[2]), sys.argv[3:])
    else:
        main(*map(int, sys.argv[1:]))
