"""What the runs of a study are called in Weights & Biases: fixed before a job is submitted, the same for all attempts.

verl names a run and its project, and gives neither id nor group: those come from the environment of the process that
logs. W&B takes names, groups and ids of 128 characters, and tags of 64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hysweep.schema import Trial

LONGEST = 128
LONGEST_TAG = 64


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """One run of W&B's: a trial with all its attempts, or the study itself."""

    id: str
    name: str
    group: str
    job_type: str
    tags: tuple[str, ...] = ()
    notes: str = ""

    def environment(self, entity: str | None, mode: str, directory: Path) -> dict[str, str]:
        """What makes the process that logs write to this run. An offline run lies in `directory`."""
        said = {
            "WANDB_RUN_ID": self.id,
            "WANDB_RESUME": "allow",
            "WANDB_RUN_GROUP": self.group,
            "WANDB_JOB_TYPE": self.job_type,
            "WANDB_TAGS": ",".join(self.tags),
            "WANDB_NOTES": self.notes,
            "WANDB_ENTITY": entity or "",
            "WANDB_MODE": mode if mode != "online" else "",
            "WANDB_DIR": str(directory),
            # a job may be killed at any moment: what is written at once is not lost
            "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "1",
            # its client would wait for a server that is gone as long as the job may run, all its GPUs with it
            "WANDB_FINISH_TIMEOUT": "300",
        }
        return {name: value for name, value in said.items() if value}


def trial_run(study: str, created: float, trial: str, config: Trial, point: Mapping[str, Any]) -> TrackedRun:
    """The run of a trial. `created` and the names of study and trial make its id: the same study made anew has others.

    trial   the name of its directory
    """
    about = [config.algorithm.name, config.model.name, *config.tracking.tags]
    lines = [f"trial {trial} of study {study}", *(f"{key} = {value}" for key, value in point.items())]
    return TrackedRun(
        id=_id(f"{created}/{study}/{trial}"),
        name=run_name(study, trial),
        group=shortened(study, LONGEST),
        job_type="trial",
        tags=_tags(about),
        notes="\n".join(lines),
    )


def study_run(study: str, created: float, tags: Sequence[str]) -> TrackedRun:
    """The run that a study is itself: leaderboard, ledger, report."""
    group = shortened(study, LONGEST)
    return TrackedRun(_id(f"{created}/{study}"), group, group, "study", _tags(tags), f"study {study}")


def run_name(study: str, trial: str) -> str:
    """The name of a trial's run: its study's, as far as there is room, and its own, which makes it unique there."""
    return f"{shortened(study, LONGEST - 1 - len(trial))}-{trial}"


def shortened(text: str, longest: int) -> str:
    """A name that is too long keeps its beginning; a hash of all of it tells it from others that begin alike."""
    if len(text) <= longest:
        return text
    return f"{text[: longest - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _id(seed: str) -> str:
    return hashlib.sha256(seed.encode()).hexdigest()[:16]


def _tags(of: Sequence[str]) -> tuple[str, ...]:
    """Each once; a comma would part one in two."""
    return tuple(dict.fromkeys(shortened(tag.replace(",", " "), LONGEST_TAG) for tag in of if tag.strip()))
