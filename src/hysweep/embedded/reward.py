"""The reward of the tiny task. verl loads this file by its path, so it imports nothing."""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **_: Any
) -> dict[str, float]:
    """1 for exactly the right digits, else 0. There is no partial credit: the score is the share that is right."""
    is_right = float(solution_str.strip() == str(ground_truth))
    return {"score": is_right, "acc": is_right}
