"""Every end has one cause, each cause one action. This table is the only one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    COMPLETED = "completed"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    CONFIG_ERROR = "config_error"
    REWARD_ERROR = "reward_error"
    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
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


class Phase(StrEnum):
    """Where in a step an attempt ended, as far as the trainer's log tells."""

    START = "start"
    ROLLOUT = "rollout"
    LOG_PROB = "log_prob"
    UPDATE = "update"
    WEIGHT_SYNC = "weight_sync"
    CHECKPOINT_LOAD = "checkpoint_load"
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
    needs_progress  a further attempt only if the last one came further than the one before
    stops_study   the study stops when its first three trials end so
    """

    verdict: Verdict
    retries: int | None = 0
    needs_progress: bool = False
    stops_study: bool = False


ACTIONS: dict[Cause, Action] = {
    Cause.COMPLETED: Action(Verdict.VALUE),
    Cause.PRUNED: Action(Verdict.PRUNED),
    Cause.INFEASIBLE: Action(Verdict.INFEASIBLE),
    Cause.CONFIG_ERROR: Action(Verdict.FAILED, stops_study=True),
    Cause.REWARD_ERROR: Action(Verdict.FAILED, stops_study=True),
    # Rungs of the memory ladder and more host memory come with the SLURM launcher; the same again is no cure.
    Cause.CUDA_OOM: Action(Verdict.FAILED),
    Cause.HOST_OOM: Action(Verdict.FAILED),
    Cause.NCCL: Action(Verdict.FAILED, retries=1),
    Cause.RAY_BOOT: Action(Verdict.FAILED, retries=1),
    Cause.PORT_CLASH: Action(Verdict.FAILED, retries=1),
    Cause.NODE_FAIL: Action(Verdict.FAILED, retries=None),
    Cause.PREEMPTED: Action(Verdict.FAILED, retries=None),
    Cause.TIMEOUT: Action(Verdict.FAILED, retries=None, needs_progress=True),
    Cause.HUNG: Action(Verdict.FAILED, retries=1),
    Cause.DIVERGED: Action(Verdict.FAILED),
    Cause.KILLED: Action(Verdict.FAILED, retries=1),
    Cause.UNKNOWN: Action(Verdict.FAILED, retries=1),
    Cause.CANCELLED: Action(Verdict.FAILED),
}
