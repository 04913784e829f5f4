"""What is found when a machine is looked at. Read on nodes too, so it stands apart from the rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a machine. `is_needed`: nothing is run there without it; else it is worth a look."""

    name: str
    is_good: bool
    found: str
    cure: str = ""
    is_needed: bool = False
