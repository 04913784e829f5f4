"""What is known of a trial and of an attempt, as frozen records.

`from_dict` raises KeyError, TypeError or ValueError for what is no such record.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from hysweep.schema.sound import sound
from hysweep.track.causes import Cause, Phase


class Status(StrEnum):
    """Where a trial stands. Written by the controller alone."""

    CREATED = "created"  # frozen on disk, never submitted
    SUBMITTING = "submitting"  # a token: the launcher was or is about to be called
    SUBMITTED = "submitted"  # the launcher gave a job id
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class State:
    """state.json: the controller's word on a trial.

    ending  why the controller asked the job to stop (pruned, cancelled, hung); the cause once it has
    is_held the scheduler was told to keep the job in the queue, since the study is paused
    is_refused  the scheduler would not take its next job as it is; nothing of it ran, and it is asked again
    failed_launches  of this job, one after the other: no node could begin it
    rungs   of study.promote, so many it has passed; it waits on the last of them if that is its cause
    began   when the scheduler began to run the job, where its node process was not there yet
    expected  when the scheduler means to start a job that waits
    nodes   where the job runs, as the scheduler writes a list of them
    value   the objective, when it has one; of several the first. times are unix seconds
    values  all of several objectives, in the study's order
    """

    status: Status = Status.CREATED
    attempt: int = 0
    job_id: str | None = None
    ending: Cause | None = None
    cause: Cause | None = None
    reason: str = ""
    value: float | None = None
    values: tuple[float, ...] = ()
    is_held: bool = False
    is_refused: bool = False
    failed_launches: int = 0
    rungs: int = 0
    began: float | None = None
    expected: float | None = None
    nodes: str = ""
    updated: float = 0.0

    @property
    def is_final(self) -> bool:
        return self.status is Status.ENDED

    def but(self, **changes: Any) -> State:
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> State:
        return sound(
            cls(
                status=Status(d["status"]),
                attempt=d["attempt"],
                job_id=d.get("job_id"),
                ending=Cause(d["ending"]) if d.get("ending") else None,
                cause=Cause(d["cause"]) if d.get("cause") else None,
                reason=d.get("reason", ""),
                value=d.get("value"),
                values=tuple(d.get("values", ())),
                is_held=d.get("is_held", False),
                is_refused=d.get("is_refused", False),
                failed_launches=d.get("failed_launches", 0),
                rungs=d.get("rungs", 0),
                began=d.get("began"),
                expected=d.get("expected"),
                nodes=d.get("nodes", ""),
                updated=d.get("updated", 0.0),
            )
        )


@dataclass(frozen=True, slots=True)
class End:
    """end.json: the node's word on why its attempt ended. Written by the node alone, last of all.

    lines  the decisive lines of the log, oldest first
    nodes  those to blame: the next attempt goes elsewhere
    """

    cause: Cause
    phase: Phase = Phase.UNKNOWN
    exit_code: int | None = None
    reason: str = ""
    lines: tuple[str, ...] = ()
    started: float = 0.0
    ended: float = 0.0
    nodes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> End:
        return sound(
            cls(
                cause=Cause(d["cause"]),
                phase=Phase(d.get("phase", "unknown")),
                exit_code=d.get("exit_code"),
                reason=d.get("reason", ""),
                lines=tuple(d.get("lines", ())),
                started=d.get("started", 0.0),
                ended=d.get("ended", 0.0),
                nodes=tuple(d.get("nodes", ())),
            )
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """node.json: who runs an attempt. Created once, by the first node process that reaches it."""

    host: str
    pid: int
    created: float  # when it took the attempt, unix seconds
    boot: str = ""  # kernel boot id: after a reboot no process of an earlier boot runs
    ticks: int = 0  # its start in clock ticks after boot: a pid alone may be somebody else's by now
    job: str = ""  # the scheduler's id of the job that it runs in

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Claim:
        return sound(
            cls(
                host=d["host"],
                pid=d["pid"],
                created=d["created"],
                boot=d.get("boot", ""),
                ticks=d.get("ticks", 0),
                job=d.get("job", ""),
            )
        )


@dataclass(frozen=True, slots=True)
class Booking:
    """A line of ledger.jsonl: what one attempt used, in GPU-hours; on a machine with no GPU in hours of worker slots.

    requested   all its GPUs for all of its time limit
    queued_h    hours that it waited in the queue, with no GPU
    boot        until its first step began
    productive  steps whose results were kept
    wasted      all else: steps that were lost, a boot that came to no step, what came after the last step
    """

    trial: int
    attempt: int
    cause: Cause
    gpus: int
    gpu_hours: float
    requested: float = 0.0
    queued_h: float = 0.0
    boot: float = 0.0
    productive: float = 0.0
    wasted: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Booking:
        hours = {k: d.get(k) or 0.0 for k in ("requested", "queued_h", "boot", "productive", "wasted")}
        return sound(cls(d["trial"], d["attempt"], Cause(d["cause"]), d["gpus"], d["gpu_hours"], **hours))
