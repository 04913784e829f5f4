"""What a model and a trial need, by arithmetic alone: no torch, no numpy, no file, no GPU.

count_parameters(trial.model.shape) -> Parameters
estimate(trial) -> Estimate: GiB of a GPU by phase, stage and part; verdicts; host memory; size of a checkpoint
memory.uses(job, layout) is the same arithmetic on numpy arrays of layouts.
"""

from hysweep.estimate.layout import Job, Layout, job_of, layout_of, optimizer_on_cpu
from hysweep.estimate.parameters import Parameters, count_parameters
from hysweep.estimate.result import Estimate, StageUse, Verdict, estimate

__all__ = [
    "Estimate",
    "Job",
    "Layout",
    "Parameters",
    "StageUse",
    "Verdict",
    "count_parameters",
    "estimate",
    "job_of",
    "layout_of",
    "optimizer_on_cpu",
]
