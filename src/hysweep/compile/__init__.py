"""`Trial` -> `Job`: the trainer's overrides, its environment and resources. Pure: the same in, the same out."""

from hysweep.compile.history import Moved, moved
from hysweep.compile.keys import TrainerKeys, trainer_keys
from hysweep.compile.pins import requirements
from hysweep.compile.tabulate import registered_names
from hysweep.compile.verl import (
    ONLY_V0,
    OWN,
    PLACED,
    compile_trial,
    derived_from,
    expand,
    flatten,
    ignored,
    is_dead,
    is_own,
    is_shared,
    keys_of,
    least_cpus,
    model_path,
    nodes_of,
    overlong_buffer_len,
    resolve,
    trainer_values,
    uses_v1,
)
from hysweep.schema.job import Job

__all__ = [
    "ONLY_V0",
    "OWN",
    "PLACED",
    "Job",
    "Moved",
    "TrainerKeys",
    "compile_trial",
    "derived_from",
    "expand",
    "flatten",
    "ignored",
    "is_dead",
    "is_own",
    "is_shared",
    "keys_of",
    "least_cpus",
    "model_path",
    "moved",
    "nodes_of",
    "overlong_buffer_len",
    "registered_names",
    "requirements",
    "resolve",
    "trainer_keys",
    "trainer_values",
    "uses_v1",
]
