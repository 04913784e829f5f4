"""Overrides and files become a typed `Trial`. The only door to Hydra's composition.

Composer(dirs).compose(["algorithm=cispo"]) -> Composition, or BadInput with every fault at once.
"""

from hysweep.compose.composer import SHIPPED, Composer, Composition
from hysweep.compose.space import Choice, Dimension, Interval, grid, size

__all__ = ["SHIPPED", "Choice", "Composer", "Composition", "Dimension", "Interval", "grid", "size"]
