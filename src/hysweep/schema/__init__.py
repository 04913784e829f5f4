"""The typed groups of a trial, declared once; and what can be wrong with one."""

from hysweep.schema.groups import (
    Algorithm,
    Cluster,
    Data,
    Memory,
    Model,
    Parallelism,
    Reward,
    Rollout,
    Shape,
    Tracking,
    Trainer,
    Trial,
    hour_unit,
)
from hysweep.schema.identity import trial_id
from hysweep.schema.knob import Knob, Leaf, leaves
from hysweep.schema.problem import BadInput, Problem, Severity, Stage, Unsaid, nearest, suggest
from hysweep.schema.search import Objective, Promote, Pruner, Sampler
from hysweep.schema.study import ControllerJob, Notify, Study

__all__ = [
    "Algorithm",
    "BadInput",
    "Cluster",
    "ControllerJob",
    "Data",
    "Knob",
    "Leaf",
    "Memory",
    "Model",
    "Notify",
    "Objective",
    "Parallelism",
    "Problem",
    "Promote",
    "Pruner",
    "Reward",
    "Rollout",
    "Sampler",
    "Severity",
    "Shape",
    "Stage",
    "Study",
    "Tracking",
    "Trainer",
    "Trial",
    "Unsaid",
    "hour_unit",
    "leaves",
    "nearest",
    "suggest",
    "trial_id",
]
