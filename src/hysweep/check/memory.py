"""Whether it fits: the estimate's verdicts (`hysweep.estimate`) as problems."""

from __future__ import annotations

from collections.abc import Iterator

from hysweep.check.numbers import has_shape
from hysweep.estimate import estimate
from hysweep.schema import Problem, Severity, Stage, Trial

# Measured runs lie within 5 % of the estimate; nearer to the limit than that, it does not know.
SURE = 0.05
STAGES = {"training": Stage.UPDATE, "rollout with weight sync": Stage.START, "resume": Stage.START}
CURES = {
    "training": "a rung more frugal: memory=full_offload or a lower trainer.max_token_len_per_gpu",
    "rollout with weight sync": "another rollout.gpu_memory_utilization, more rollout.tensor ranks, or memory=offload",
    "resume": "more ranks to share the optimizer, or memory=cpu_optimizer",
}


def memory_is_known(t: Trial) -> Iterator[Problem]:
    """Advice: whether it fits cannot be looked at where nobody says what the GPUs have."""
    if t.has_gpu and t.cluster.gpu_memory_gib is None:
        why = f"how much a {t.cluster.gpu} has is not said: whether it fits was not looked at"
        cure = "give its GiB, as `nvidia-smi` shows them"
        yield Problem("cluster.gpu_memory_gib", "null", why, cure, Stage.NEVER, Severity.WARNING)


def memory_fits(t: Trial) -> Iterator[Problem]:
    """A phase that is over the GPU's memory by more than the estimate errs; one that is near it is a warning."""
    if not t.has_gpu or t.cluster.gpu_memory_gib is None or not has_shape(t):
        return
    card = t.cluster.gpu_memory_gib
    for verdict in estimate(t).verdicts:
        near = SURE * card
        if verdict.margin_gib >= near:
            continue
        is_over = verdict.margin_gib < -near
        why = f"{verdict.group}: {verdict.why}, by the estimate"
        cure = f"see `hysweep estimate`, `hysweep layouts`; {CURES[verdict.group]}"
        yield Problem(
            "cluster.gpu_memory_gib",
            card,
            why if is_over else f"{why}: too near to be sure",
            cure,
            STAGES[verdict.group],
            Severity.ERROR if is_over else Severity.WARNING,
        )
