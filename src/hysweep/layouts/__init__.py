"""Other layouts and memory settings for the same training.

next_rung(trial, phase), host_rung(trial): what to change after an out-of-memory.
search.search(trial): all legal layouts that fit, best first; search.predicted_seconds(trial): of a step, in its own.
    They need numpy, so `search` is imported by whoever asks.
"""

from hysweep.layouts.ladder import LADDER, Rung, host_rung, next_rung, rungs

__all__ = ["LADDER", "Rung", "host_rung", "next_rung", "rungs"]
