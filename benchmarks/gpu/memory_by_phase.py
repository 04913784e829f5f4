"""What the trainer's processes allocate on their GPU, phase by phase: `model.external_lib=memory_by_phase`.

Each rank appends JSON lines to memory-<rank>.jsonl in $HYSWEEP_ATTEMPT, the directory of its attempt: for each phase
torch's peak, what it had reserved and what stayed, and what the process holds of the host's memory then, in GiB of
2^30 bytes. What lies between two phases is one too. verl's own metrics, maxima since the process began, stay what they
would be.

MEMORY_LIMIT_GIB      torch may reserve no more: as on a smaller GPU
KILL_AT_UPDATE        the first attempt's worker is killed (SIGKILL) before that update, counted from 1
MEMORY_COMPOSITION=1  what made up the peak of the second update, by where it was allocated: composition-<rank>.json
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GIB = 2**30
TRAINER = ("/verl/", "/megatron/", "/transformer_engine/", "/transformers/")
MOST_EVENTS = 1_000_000
SHOWN = 40


class Watch:
    """The peaks of one process."""

    def __init__(self, directory: Path, rank: str) -> None:
        import psutil
        import torch

        self.process = psutil.Process()
        self.rows = directory / f"memory-{rank}.jsonl"
        self.composition = directory / f"composition-{rank}.json"
        self.cuda = torch.cuda if torch.cuda.is_available() else None
        self.updates = 0
        self.peak = self.reserved = 0  # before the last reset
        if self.cuda:
            self._allocated, self._reserved = self.cuda.max_memory_allocated, self.cuda.max_memory_reserved
            self.cuda.max_memory_allocated = lambda device=None: max(self.peak, self._allocated())
            self.cuda.max_memory_reserved = lambda device=None: max(self.reserved, self._reserved())
            if limit := os.environ.get("MEMORY_LIMIT_GIB"):
                self.cuda.set_per_process_memory_fraction(float(limit) * GIB / self.cuda.mem_get_info()[1])

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._note("between", None)
        began = time.time()
        self.updates += name == "train"
        is_first = self.rows.parent.name == "1"
        if name == "train" and is_first and os.environ.get("KILL_AT_UPDATE") == str(self.updates):
            os.kill(os.getpid(), signal.SIGKILL)
        is_looked_at = self.cuda and self.updates == 2 and name == "train" and "MEMORY_COMPOSITION" in os.environ
        if is_looked_at:
            self.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=MOST_EVENTS)
            held = self.cuda.memory_allocated()
        try:
            yield
        finally:
            self._note(name, began)
            if is_looked_at:
                traces = self.cuda.memory._snapshot()["device_traces"][self.cuda.current_device()]
                self.cuda.memory._record_memory_history(None)
                self.composition.write_text(json.dumps(composed(traces, held), indent=1))

    def _note(self, name: str, began: float | None) -> None:
        row: dict[str, Any] = {"phase": name, "began": began, "ended": time.time()}
        row["host"] = round(self.process.memory_info().rss / GIB, 4)
        row["host_peak"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, 4)
        if self.cuda:
            peak, reserved = self._allocated(), self._reserved()
            self.peak, self.reserved = max(self.peak, peak), max(self.reserved, reserved)
            free, card = self.cuda.mem_get_info()
            sizes = {"peak": peak, "reserved": reserved, "held": self.cuda.memory_allocated(), "on_gpu": card - free}
            row |= {key: round(size / GIB, 4) for key, size in sizes.items()}
            self.cuda.reset_peak_memory_stats()
        with open(self.rows, "a") as file:
            file.write(json.dumps(row) + "\n")


def composed(events: list[dict[str, Any]], held: int) -> dict[str, Any]:
    """What was allocated, and where, when most was: `held` before the first event, then by its innermost calls."""
    size = most = 0
    at = -1
    live: dict[int, dict[str, Any]] = {}
    for i, e in enumerate(events):
        if e["action"] == "alloc":
            live[e["addr"]] = e
            size += e["size"]
            if size > most:
                most, at = size, i
        elif e["action"] == "free_completed":
            size -= live.pop(e["addr"], e)["size"]
    live, given_back = {}, 0
    for e in events[: at + 1]:
        if e["action"] == "alloc":
            live[e["addr"]] = e
        elif e["action"] == "free_completed" and live.pop(e["addr"], None) is None:
            given_back += e["size"]
    by_place: dict[str, list[int]] = {}
    for e in live.values():
        found = by_place.setdefault(_place(e.get("frames") or []), [0, 0])
        found[0] += e["size"]
        found[1] += 1
    largest = sorted(by_place.items(), key=lambda item: -item[1][0])[:SHOWN]
    return {
        "held": held / GIB,
        "given_back": given_back / GIB,
        "above": most / GIB,
        "events": len(events),
        "is_whole": len(events) < MOST_EVENTS,
        "raised_at": _place(events[at].get("frames") or []) if at >= 0 else "",
        "places": [{"gib": round(v[0] / GIB, 4), "tensors": v[1], "where": where} for where, v in largest],
    }


def _place(frames: list[dict[str, Any]]) -> str:
    """The innermost three calls of the trainer's own code."""
    named = [
        f"{Path(f['filename']).name}:{f['line']}:{f['name']}"
        for f in frames
        if any(p in f["filename"] for p in TRAINER)
    ]
    return " < ".join(named[:3]) or " < ".join(f"{Path(f['filename']).name}:{f['name']}" for f in frames[:3]) or "?"


def _wrap(watch: Watch, cls: type, method: str, phase_of: Callable[[Any], str]) -> None:
    plain = getattr(cls, method)

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **words: Any) -> Any:
        with watch.phase(phase_of(self)):
            return plain(self, *args, **words)

    @functools.wraps(plain)
    async def call_later(self: Any, *args: Any, **words: Any) -> Any:
        with watch.phase(phase_of(self)):
            return await plain(self, *args, **words)

    setattr(cls, method, call_later if inspect.iscoroutinefunction(plain) else call)


def install() -> None:
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    watch = Watch(Path(os.environ["HYSWEEP_ATTEMPT"]), os.environ["RANK"])
    phases = {"train_mini_batch": "train", "load_checkpoint": "resume", "save_checkpoint": "save"}
    for method, phase in phases.items():
        _wrap(watch, TrainingWorker, method, lambda worker, phase=phase: phase)
    _wrap(watch, TrainingWorker, "reset", lambda worker: "start")
    _wrap(watch, TrainingWorker, "infer_batch", lambda w: "reference" if w.engine_config.forward_only else "log_prob")
    _wrap(watch, ActorRolloutRefWorker, "update_weights", lambda worker: "weight_sync")


# verl imports the module in every process that reads the model's configuration; only these train.
if os.environ.get("WG_BACKEND") == "ray" and "RANK" in os.environ and not hasattr(sys, "_hysweep_memory"):
    sys._hysweep_memory = True  # type: ignore[attr-defined]
    install()
