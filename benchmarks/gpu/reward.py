"""A dense score for models of random weights, so that samples of a group differ: the share of digits."""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **_: Any
) -> dict[str, float]:
    share = sum(c.isdigit() for c in solution_str) / max(1, len(solution_str))
    return {"score": share, "acc": float(ground_truth in solution_str)}
