"""What a model needs, by arithmetic on its shape alone: no torch, no file, no GPU.

count_parameters(trial.model.shape) -> Parameters
"""

from hysweep.estimate.parameters import Parameters, count_parameters

__all__ = ["Parameters", "count_parameters"]
