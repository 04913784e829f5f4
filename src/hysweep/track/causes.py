"""Every end has one cause, each cause one action. This table is the only one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    COMPLETED = "completed"
    PRUNED = "pruned"
    RUNG = "rung"
    INFEASIBLE = "infeasible"
    CONFIG_ERROR = "config_error"
    REWARD_ERROR = "reward_error"
    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
    DISK_FULL = "disk_full"
    NCCL = "nccl"
    RAY_BOOT = "ray_boot"
    PORT_CLASH = "port_clash"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    TIMEOUT = "timeout"
    HUNG = "hung"
    DIVERGED = "diverged"
    KILLED = "killed"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"

    @property
    def is_as_planned(self) -> bool:
        """Whether the job did all that it was sent for."""
        return self in (Cause.COMPLETED, Cause.RUNG)


class Phase(StrEnum):
    """Where in a step an attempt ended, as far as the trainer's log tells."""

    START = "start"
    ROLLOUT = "rollout"
    LOG_PROB = "log_prob"
    UPDATE = "update"
    WEIGHT_SYNC = "weight_sync"
    CHECKPOINT_LOAD = "checkpoint_load"
    CHECKPOINT_SAVE = "checkpoint_save"
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """What the study is told once no further attempt is made."""

    VALUE = "value"
    PRUNED = "pruned"
    FAILED = "failed"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class Action:
    """What the controller does about a cause.

    verdict       what the study is told when no attempt is left
    retries       further attempts; None: as many as the budget allows
    needs_progress  a further attempt only if the last one saved a checkpoint: else it would come as far again
    climbs        a further attempt only with less memory, one rung up the ladder of its phase
    elsewhere     the nodes that the end blames are not used again
    stops_study   the study stops when its first three trials end so
    pauses_study  nothing new is submitted until somebody has mended it and says `resume`: every trial would end so
    """

    verdict: Verdict
    retries: int | None = 0
    needs_progress: bool = False
    climbs: bool = False
    elsewhere: bool = False
    stops_study: bool = False
    pauses_study: bool = False

    @property
    def is_last(self) -> bool:
        """No attempt follows such an end: nodes run nothing more, and whoever drives waits for nothing more."""
        return self.retries == 0


ACTIONS: dict[Cause, Action] = {
    Cause.COMPLETED: Action(Verdict.VALUE),
    Cause.PRUNED: Action(Verdict.PRUNED),
    Cause.RUNG: Action(Verdict.PRUNED),  # unless it is promoted later
    Cause.INFEASIBLE: Action(Verdict.INFEASIBLE),
    Cause.CONFIG_ERROR: Action(Verdict.FAILED, stops_study=True),
    Cause.REWARD_ERROR: Action(Verdict.FAILED, stops_study=True),
    Cause.CUDA_OOM: Action(Verdict.FAILED, retries=None, climbs=True),
    Cause.HOST_OOM: Action(Verdict.FAILED, retries=1, climbs=True),
    Cause.DISK_FULL: Action(Verdict.FAILED, retries=None, pauses_study=True),
    Cause.NCCL: Action(Verdict.FAILED, retries=1, elsewhere=True),
    Cause.RAY_BOOT: Action(Verdict.FAILED, retries=1, elsewhere=True),
    Cause.PORT_CLASH: Action(Verdict.FAILED, retries=1),
    Cause.NODE_FAIL: Action(Verdict.FAILED, retries=None, elsewhere=True),
    Cause.PREEMPTED: Action(Verdict.FAILED, retries=None),
    Cause.TIMEOUT: Action(Verdict.FAILED, retries=None, needs_progress=True),
    Cause.HUNG: Action(Verdict.FAILED, retries=1),
    Cause.DIVERGED: Action(Verdict.FAILED),
    Cause.KILLED: Action(Verdict.FAILED, retries=1),
    Cause.UNKNOWN: Action(Verdict.FAILED, retries=1),
    Cause.CANCELLED: Action(Verdict.FAILED),
}

# What a node may take an end for that it sees only from inside, where the scheduler knows better.
_VAGUE = frozenset({Cause.KILLED, Cause.UNKNOWN, Cause.NCCL, Cause.RAY_BOOT, Cause.NODE_FAIL, Cause.PREEMPTED})


def settle(by_node: Cause | None, by_scheduler: Cause | None) -> Cause:
    """The cause of an end from what the node wrote (None: it could not) and what the scheduler's record says.

    The trainer's log is more exact, the record is more certain: it decides where the log has only consequences.
    """
    if by_node is None:
        return by_scheduler or Cause.KILLED
    if by_scheduler is not None and by_node in _VAGUE:
        return by_scheduler
    return by_node
