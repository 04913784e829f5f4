"""Other layouts and memory settings for the same training: `next_rung` after an out-of-memory."""

from hysweep.layouts.ladder import LADDER, Rung, next_rung, rungs

__all__ = ["LADDER", "Rung", "next_rung", "rungs"]
