"""`Trial` -> `Job`: the trainer's overrides, its environment and resources. Pure: the same in, the same out."""

from hysweep.compile.job import Job
from hysweep.compile.keys import TrainerKeys, trainer_keys
from hysweep.compile.verl import compile_trial, flatten, ignored, keys_of, resolve, trainer_values

__all__ = [
    "Job",
    "TrainerKeys",
    "compile_trial",
    "flatten",
    "ignored",
    "keys_of",
    "resolve",
    "trainer_keys",
    "trainer_values",
]
