"""A trial's identity is its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from hysweep.schema.groups import Trial
from hysweep.schema.knob import leaves

# Labels of a choice of values, not values: renaming algorithm/grpo.yaml makes no other trial.
_LABEL = "name"


def trial_id(trial: Trial, varied: Collection[str] = ()) -> str:
    """12 hex digits that say *what is learned*.

    Hashes the sorted resolved values of every field that is declared as `learned`, and of every field in
    `varied` (dotted names that the study's space moves; a group's name stands for all its fields).
    Memory rungs, layouts, the cluster and the number of steps are not part of it, unless varied: the same
    training on other nodes is another attempt of the same trial.
    """

    def belongs(path: str, learned: bool) -> bool:
        group, _, name = path.partition(".")
        if name == _LABEL:
            return path in varied
        return learned or path in varied or group in varied

    content = {leaf.path: leaf.value for leaf in leaves(trial) if belongs(leaf.path, leaf.knob.learned)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
