"""Legal numbers near a wish, in words: what the cures are made of; and what several rules ask of a trial."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from typing import Any

from hysweep.compile import flatten
from hysweep.schema import Trial
from hysweep.schema.groups import Shape

SHORT = 10  # steps of a run that nobody would resume or validate


def divisors(number: int, near: int, count: int = 4) -> str:
    """The divisors of a number that lie nearest to a wish: "4, 8 or 12"."""
    return either(nearest_to(near, divisors_of(number), count))


def divisors_of(number: int) -> list[int]:
    """All of them, ascending. Each below the root has its partner above, so a batch of a billion takes no time."""
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def nearest_to(near: int, numbers: Iterable[int], count: int = 4) -> list[int]:
    """Those that lie nearest to a wish, ascending; of two as near the smaller."""
    return sorted(sorted(set(numbers), key=lambda n: (abs(n - near), n))[:count])


def either(options: Iterable[object]) -> str:
    *others, last = map(str, options)
    return f"{', '.join(others)} or {last}" if others else last


def data_parallel(trial: Trial) -> int:
    """Ranks that see different data: the world over the ranks that share a sample. 0 if it does not divide."""
    p = trial.parallelism
    each = p.tensor * p.pipeline * p.context if p.engine == "megatron" else p.context
    return trial.world_size // each if trial.world_size % each == 0 else 0


def is_short(trial: Trial) -> bool:
    """Whether a run has so few steps that it can only be there to measure something, as a sweep of layouts is."""
    return trial.trainer.total_steps is not None and trial.trainer.total_steps < SHORT


def has_shape(trial: Trial) -> bool:
    """Whether anything is known of the model's shape: nothing is of a hub's id that no option names."""
    return trial.model.shape != Shape()


def transformer_config(t: Trial) -> dict[str, Any]:
    """Fields of Megatron's TransformerConfig that are named: by the model, and passed on."""
    node = "actor_rollout_ref.actor.megatron.override_transformer_config."
    passed = {key.removeprefix(node): value for key, value in flatten(t.verl) if key.startswith(node)}
    return t.model.transformer_config | passed
