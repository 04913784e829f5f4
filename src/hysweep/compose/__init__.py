"""Overrides and files become a typed `Trial`. The only door to Hydra's composition.

Composer(dirs).compose(["algorithm=cispo"]) -> Composition, or BadInput with every fault at once.
"""

from hysweep.compose.composer import SHIPPED, Composer, Composition, sweep_name
from hysweep.compose.space import (
    SEED,
    Choice,
    Conditional,
    Dimension,
    Interval,
    Parameter,
    Point,
    Space,
    Zip,
    one_of,
    text_of,
)

__all__ = [
    "SEED",
    "SHIPPED",
    "Choice",
    "Composer",
    "Composition",
    "Conditional",
    "Dimension",
    "Interval",
    "Parameter",
    "Point",
    "Space",
    "Zip",
    "one_of",
    "sweep_name",
    "text_of",
]
