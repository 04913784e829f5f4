"""The checkpoints of a trial, which its attempts share: which are whole, and which only take room.

verl writes ``global_step_N/`` and, once all of it is there, the number into ``latest_checkpointed_iteration.txt``
(verl/trainer/ppo/v1/trainer_base.py, _save_checkpoint). It forgets at each start which ones it saved before, so those
of earlier attempts are ours to remove; and what a killed attempt left half written is newer than the note.

A power cut, a full disk or a hand may still tear what the note speaks of, or the note. verl would then stumble at each
start, so before it does the note is set to the newest checkpoint of which every file has its end (`settle_note`).
Nothing is unpickled for that: archives of torch.save, which are zip files, and safetensors say where they end.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from hysweep.track.files import pass_over, write_text

_NOTE = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d+)")
_DOOMED = ".removed-"
_WEIGHTS = (".pt", ".pth", ".safetensors", ".distcp")
_PARTS = ("model", "optimizer", "extra")
_SHARD = re.compile(r"(.+_world_size_\d+)_rank_(\d+)\.pt")


def checkpoint_step(checkpoints: Path) -> int:
    """The step of the newest checkpoint that is whole; -1: there is none."""
    try:
        return int((checkpoints / _NOTE).read_text())
    except OSError as e:
        pass_over(e)
    except ValueError:
        pass
    return -1


def settle_note(checkpoints: Path) -> list[str]:
    """Have the note say the newest checkpoint that is whole, or nothing where none is. Only while nothing of the trial
    runs. Returns why those that are newer were passed over."""
    noted = checkpoint_step(checkpoints)
    passed: list[str] = []
    for step, path in sorted(_steps(checkpoints).items(), reverse=True):
        if step > noted >= 0:
            continue  # never finished
        torn = tear_of(path, is_noted=noted >= 0)
        if torn is None:
            if step != noted:
                write_text(checkpoints / _NOTE, str(step))
            return passed
        passed.append(f"global_step_{step}: {torn}")
    (checkpoints / _NOTE).unlink(missing_ok=True)  # verl would stumble over one that says nothing, or too much
    return passed


def tear_of(checkpoint: Path, is_noted: bool = True) -> str | None:
    """What is torn or missing of a checkpoint; None: it looks whole. `is_noted`: the trainer had said that it was."""
    shards: dict[str, set[int]] = defaultdict(set)
    has_weights = False
    for folder, _, names in os.walk(checkpoint, onerror=pass_over):
        for name in names:
            path = Path(folder, name)
            if not _has_end(path):
                return f"{path.relative_to(checkpoint)} is cut off"
            if (shard := _SHARD.fullmatch(name)) is not None:
                shards[f"{folder}/{shard[1]}"].add(int(shard[2]))
            has_weights = has_weights or Path(folder) != checkpoint
        if os.path.basename(folder) == "dist_ckpt" and ".metadata" not in names:
            return f"{Path(folder).relative_to(checkpoint)} has no .metadata"
    for kind, ranks in shards.items():
        if missing := set(range(int(kind.rsplit("_", 1)[1]))) - ranks:
            return f"{os.path.relpath(kind, checkpoint)} lacks rank {min(missing)}"
    if not has_weights:
        return "nothing is in it"
    if is_noted:
        return None
    for role in checkpoint.iterdir():
        # Megatron's, from verl 0.9 on: written last, also where the rest is written in the background
        if any((role / part / "dist_ckpt").is_dir() for part in _PARTS) and not (role / "ckpt_contents.json").is_file():
            return f"{role.name} has no ckpt_contents.json, which comes last"
    return None if (checkpoint / "data.pt").is_file() else "it has no data.pt, which comes last"


def _has_end(path: Path) -> bool:
    """Whether a file goes on to its end, as far as its kind tells."""
    if path.suffix not in (*_WEIGHTS, ".metadata") and path.name != ".metadata":
        return True
    try:
        return _goes_to_its_end(path)
    except OSError:  # what cannot be read here may be read there
        return True


def _goes_to_its_end(path: Path) -> bool:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if path.suffix in (".pt", ".pth"):  # a zip file ends in its directory
            file.seek(max(0, size - 22))
            end = file.read()
            return len(end) == 22 and end.startswith(b"PK\x05\x06")
        if path.suffix == ".safetensors":
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            with suppress(ValueError, AttributeError, LookupError, TypeError):
                header = json.loads(file.read(length)) if length < size else {}
                ends = [t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"]
                return size == 8 + length + max(ends, default=0) and bool(header)
            return False
        return size > 0


def superfluous(checkpoints: Path, kept: int | None) -> list[Path]:
    """What a trial of which nothing runs does not need: torn checkpoints, and all but the newest `kept` whole ones."""
    newest = checkpoint_step(checkpoints)
    steps = _steps(checkpoints)
    doomed = [Path(checkpoints, name) for name in _listed(checkpoints) if name.startswith(_DOOMED)]
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


def _steps(checkpoints: Path) -> dict[int, Path]:
    return {int(f[1]): checkpoints / f[0] for name in _listed(checkpoints) if (f := _STEP.fullmatch(name))}


def _listed(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError as e:
        pass_over(e)
        return []
