"""The checkpoints of a trial, which its attempts share: which are whole, and which only take room.

verl writes ``global_step_N/`` and, once all of it is there, the number into ``latest_checkpointed_iteration.txt``
(verl/trainer/ppo/v1/trainer_base.py, _save_checkpoint). It forgets at each start which ones it saved before, so those
of earlier attempts are ours to remove; and what a killed attempt left half written is newer than the note.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_STEP = re.compile(r"global_step_(\d+)")
_DOOMED = ".removed-"


def checkpoint_step(checkpoints: Path) -> int:
    """The step of the newest checkpoint that is whole; -1: there is none."""
    try:
        return int((checkpoints / "latest_checkpointed_iteration.txt").read_text())
    except (OSError, ValueError):
        return -1


def superfluous(checkpoints: Path, kept: int | None) -> list[Path]:
    """What a trial of which nothing runs does not need: torn checkpoints, and all but the newest `kept` whole ones."""
    newest = checkpoint_step(checkpoints)
    steps = {}
    doomed = []
    with suppress(OSError):
        for entry in os.scandir(checkpoints):
            if found := _STEP.fullmatch(entry.name):
                steps[int(found[1])] = Path(entry.path)
            elif entry.name.startswith(_DOOMED):
                doomed.append(Path(entry.path))
    whole = sorted(s for s in steps if s <= newest)
    stays = set(whole[-kept:] if kept else whole)
    return doomed + [path for step, path in sorted(steps.items()) if step not in stays]


def set_aside(paths: list[Path]) -> list[Path]:
    """Give them names that nobody takes for checkpoints, at once; removing terabytes takes its time."""
    renamed = []
    for path in paths:
        target = path if path.name.startswith(_DOOMED) else path.with_name(_DOOMED + path.name)
        with suppress(OSError):
            os.rename(path, target)
            renamed.append(target)
    return renamed
