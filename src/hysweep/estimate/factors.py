"""The factors that measured runs came to (`hysweep estimate --calibrate`), by cluster, in the user's configuration.

Whoever estimates takes the same one. The file is read once in a process: a study keeps what it began with until it is
resumed, and no trial's id depends on it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import platformdirs

from hysweep.schema import Cluster

# Beyond these the run is of another configuration than its file says, and no overhead.
LEAST, MOST = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Kept:
    """factor: of a cluster, None where none is kept; fault: why what is kept is not taken."""

    factor: float | None = None
    fault: str = ""


def store() -> Path:
    return platformdirs.user_config_path("hysweep") / "calibration.json"


def place(cluster: Cluster) -> str:
    """What a factor belongs to: the option of the cluster and the kind of its GPU."""
    return f"{cluster.name}/{cluster.gpu}"


def kept_for(cluster: Cluster) -> Kept:
    found = entries(store())
    if found is None:
        return Kept(fault="cannot be read")
    if (entry := found.get(place(cluster))) is None:
        return Kept()
    factor = entry.get("factor") if isinstance(entry, dict) else None
    if is_size(factor) and LEAST <= factor <= MOST:
        return Kept(float(factor))
    return Kept(fault=f"holds no factor from {LEAST:g} to {MOST:g} for {place(cluster)}")


@cache
def entries(path: Path) -> dict[str, Any] | None:
    """The factors of all clusters; None where there is something else in their place."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def is_size(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
