"""What the process that `warm` forks from has done before: imported every verb, and composed once."""

import gc

import optuna.importance  # noqa: F401
import pyarrow.parquet  # noqa: F401

from hysweep.cli import data, desk, estimate, importing, layouts, run, steer, wandb  # noqa: F401
from hysweep.compose import Composer
from tests.cli import warm  # noqa: F401

Composer().compose(["experiment=hy3_dapo_math"])
gc.freeze()  # so that no fork goes over all that is there already
