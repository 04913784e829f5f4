"""Legal numbers near a wish, in words: what the cures are made of."""

from __future__ import annotations

from collections.abc import Iterable

from hysweep.schema import Trial
from hysweep.schema.groups import Shape


def divisors(number: int, near: int, count: int = 4) -> str:
    """The divisors of a number that lie nearest to a wish: "4, 8 or 12"."""
    all_of_them = [d for d in range(1, number + 1) if number % d == 0]
    return either(sorted(sorted(all_of_them, key=lambda d: (abs(d - near), d))[:count]))


def either(options: Iterable[object]) -> str:
    *others, last = map(str, options)
    return f"{', '.join(others)} or {last}" if others else last


def data_parallel(trial: Trial) -> int:
    """Ranks that see different data: the world over the ranks that share a sample. 0 if it does not divide."""
    p = trial.parallelism
    each = p.tensor * p.pipeline * p.context if p.engine == "megatron" else p.context
    return trial.world_size // each if trial.world_size % each == 0 else 0


def has_shape(trial: Trial) -> bool:
    """Whether anything is known of the model's shape: nothing is of a hub's id that no option names."""
    return trial.model.shape != Shape()
