"""A hysweep whose trials run a bare trainer: `python -m tests.slurm.bare_study VERB WORDS`.

With a stand-in for Ray, which starts at once; BARE_RAY=1: with the real one.
"""

from __future__ import annotations

import os
from pathlib import Path

from hysweep.cli import main
from hysweep.schema import Trial
from hysweep.schema.job import Job
from hysweep.study import controller

TRAINERS = Path(__file__).parent / "trainers"


def compile_bare(trial: Trial, directory: Path, label: str) -> Job:
    """What BARE_WORDS says instead of verl."""
    return bare_job(trial, *os.environ.get("BARE_WORDS", "metrics=1").split())


def bare_job(trial: Trial, *words: str) -> Job:
    """The bare trainer, which does what its words say."""
    roots = [TRAINERS] if os.environ.get("BARE_RAY") else [TRAINERS / "stand_in", TRAINERS]
    return Job(
        module="driver",
        overrides=words,
        env={"PYTHONPATH": os.pathsep.join(map(str, roots))},
        launcher="slurm",
        nodes=trial.cluster.nodes,
        ray_cpus=1,
        ray_gpus=0,
        object_store_gib=0.1,
        timeout_min=5,
        site=trial.cluster,
    )


if __name__ == "__main__":
    controller.compile_trial = compile_bare  # type: ignore[assignment]
    main()
