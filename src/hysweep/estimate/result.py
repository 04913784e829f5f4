"""The answer for one trial: what each phase holds on each stage, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from hysweep.estimate import formulas as f
from hysweep.estimate import memory as m
from hysweep.estimate.layout import Job, Layout, job_of, layout_of
from hysweep.estimate.parameters import count_parameters
from hysweep.schema import Trial

# Measured runs lie within so much of the estimate, as a share of the GPU's memory: nearer to its limit it is not sure.
NEAR = 0.05
# As people say it, in tables and sentences.
PHASES = {
    "train": "update",
    "critic": "critic's update",
    "log_prob": "old log-probabilities",
    "reference": "reference",
    "rollout": "rollout",
    "weight_sync": "weight sync",
    "resume": "resume from a checkpoint",
}


@dataclass(frozen=True, slots=True)
class StageUse:
    """GiB of one GPU of a pipeline stage in one phase.

    parts      what adds up to total_gib, in the order of `memory.PARTS`; nothing that is 0
    torch_gib  what torch allocates of it at the peak
    """

    phase: str
    stage: str
    parts: dict[str, float]
    total_gib: float
    torch_gib: float

    @property
    def cached_gib(self) -> float:
        """What torch keeps beside its peak, in blocks that are too small for logits (`memory.Use.overlap`)."""
        return sum(self.parts.get(name, 0) for name in (*m.OF_TORCH, m.CALIBRATION)) - self.torch_gib


@dataclass(frozen=True, slots=True)
class StageInfo:
    """A stage of the pipeline; parameters are those of one of its GPUs, in flight its micro batches at most."""

    name: str
    layers: float
    parameters: int
    in_flight: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a group of phases fits; the margin is of its fullest phase and stage, and `why` says what decided.

    is_sure: the margin, or what is lacking, is more than the estimate errs by (`NEAR` of the GPU's memory).
    """

    group: str
    fits: bool
    is_sure: bool
    margin_gib: float
    phase: str
    stage: str
    why: str

    @property
    def words(self) -> str:
        by = f"{abs(self.margin_gib):.1f} GiB"
        said = f"fits, {by} to spare" if self.fits else f"does not fit by {by}"
        return said if self.is_sure else f"{said}, within the estimate's error of {NEAR * 100:g} %"


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """The rollout's cache: GiB of a GPU, bytes of a token there, tokens and sequences at full length of a replica."""

    gib: float
    bytes_per_token: float
    tokens: int
    sequences: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Budget:
    """A micro batch of a phase, in tokens: what a GPU holds of it, what the ranks that share a sequence hold together,
    and the longest sequence, which the latter must hold."""

    phase: str
    per_gpu: int
    per_context_group: int
    longest_sequence: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Everything that `hysweep estimate` shows. GiB are 2^30 bytes.

    calibration  the factor that torch's part was multiplied by; 1: none
    """

    gpu: str
    gpu_memory_gib: float
    stages: tuple[StageInfo, ...]
    uses: tuple[StageUse, ...]
    verdicts: tuple[Verdict, ...]
    cache: CacheRoom | None
    budgets: tuple[Budget, ...]
    host_gib_per_node: float
    checkpoint_gib: float
    calibration: float = 1.0

    @property
    def fits(self) -> bool:
        return all(v.fits for v in self.verdicts)

    @property
    def tightest(self) -> StageUse:
        """The phase and stage with the least room."""
        return max(self.uses, key=lambda u: u.total_gib)

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(u.phase for u in self.uses))

    def of(self, phase: str, stage: str | None = None) -> StageUse:
        """A phase on a stage; without one, on its fullest."""
        found = [u for u in self.uses if u.phase == phase and stage in (None, u.stage)]
        return max(found, key=lambda u: u.total_gib)

    def torch_peak_gib(self, phases: Iterable[str]) -> float:
        """The most that torch allocates in any of some phases, on any stage."""
        among = set(phases)
        return max(u.torch_gib for u in self.uses if u.phase in among)

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        tightest = self.tightest
        return found | {"fits": self.fits, "tightest": {"phase": tightest.phase, "stage": tightest.stage}}


def estimate(trial: Trial, calibration: float | None = None) -> Estimate:
    """The memory that a trial needs, by arithmetic; BadInput where its cluster names no GPU or not its memory.

    `calibration` multiplies what torch allocates; without one it is the cluster's own (`hysweep.estimate.factors`).
    """
    job, layout = job_of(trial, calibration), layout_of(trial)
    sizes = m.stage_sizes(job, layout, count_parameters(job.shape))
    by_stage = m.uses(job, layout)
    names = _names(trial.parallelism.pipeline if job.engine == "megatron" else 1)
    uses = tuple(
        _stage_use(phase, shown, use)
        for phase in by_stage["first"]
        for name, shown in names.items()
        for use in [by_stage[name][phase]]
    )
    cache = _cache(job, layout)
    return Estimate(
        gpu=trial.cluster.gpu or "",
        gpu_memory_gib=job.card / f.GIB,
        stages=tuple(
            StageInfo(
                shown,
                round(sizes[name].layers, 3),
                round(sizes[name].parameters),
                f.in_flight(layout.pipeline, layout.virtual, sizes[name].index),
            )
            for name, shown in names.items()
        ),
        uses=uses,
        verdicts=tuple(_verdicts(job, layout, uses, cache)),
        cache=cache,
        budgets=tuple(_budgets(trial, job, layout)),
        host_gib_per_node=m.host_of(job, layout) / f.GIB,
        checkpoint_gib=m.checkpoint_of(job) / f.GIB,
        calibration=job.calibration,
    )


def _names(pipeline: int) -> dict[str, str]:
    if pipeline == 1:
        return {"first": "all"}
    return {name: name for name in m.STAGES if name != "middle" or pipeline > 2}


def _stage_use(phase: str, stage: str, use: m.Use) -> StageUse:
    gib = {name: size / f.GIB for name, size in use.parts.items() if size}
    return StageUse(phase, stage, gib, use.total / f.GIB, use.torch / f.GIB)


def _verdicts(job: Job, layout: Layout, uses: tuple[StageUse, ...], cache: CacheRoom | None) -> Iterable[Verdict]:
    card = job.card / f.GIB
    for group, phases in m.GROUPS.items():
        among = [u for u in uses if u.phase in phases]
        if not among:
            continue
        fullest = max(among, key=lambda u: u.total_gib)
        margin = card - fullest.total_gib
        phase, why = fullest.phase, f"{fullest.total_gib:.1f} of {card:.1f} GiB"
        if fullest.cached_gib >= 1:
            why += f", {fullest.cached_gib:.1f} of it torch's cache"
        if group == m.ROLLOUT and cache is not None and (fault := _cache_fault(job, layout, among, cache)):
            short, why = fault
            phase, margin = "rollout", min(margin, short)
        yield Verdict(group, margin >= 0, abs(margin) >= NEAR * card, margin, phase, fullest.stage, why)


def _cache_fault(job: Job, layout: Layout, among: list[StageUse], cache: CacheRoom) -> tuple[float, str] | None:
    """What keeps the engine from starting, and the GiB that it lacks: it wants room for one whole sequence."""
    parts = next(u.parts for u in among if u.phase == "rollout")
    asked, taken = layout.utilisation * job.card / f.GIB, parts["engine weights"] + parts["engine working set"]
    of_one = f.cache_sequence(job.shape, layout.rollout_tensor, job.engine_bytes, job.engine_longest) / f.GIB
    short = asked - taken - of_one
    if short >= 0:
        return None
    if asked <= taken:
        return short, f"the engine may take {asked:.1f} GiB, weights and one step take {taken:.1f}: no room for a cache"
    return short, f"the cache has {cache.gib:.1f} GiB, one sequence of {job.engine_longest:,} tokens takes {of_one:.1f}"


def _cache(job: Job, layout: Layout) -> CacheRoom | None:
    if not job.has_rollout:
        return None
    engine = m.engine_of(job, layout, count_parameters(job.shape))
    tokens = m.cache_tokens(job, layout, engine, job.longest)
    layers = job.shape.num_layers
    return CacheRoom(
        gib=max(engine.room, 0) / f.GIB,
        bytes_per_token=layers * f.cache_layer_token(job.shape, layout.rollout_tensor, job.engine_bytes),
        tokens=int(tokens),
        sequences=int(tokens / job.longest),
        replicas=int(layout.world / (layout.rollout_tensor * layout.rollout_data)),
    )


def _budgets(trial: Trial, job: Job, layout: Layout) -> Iterable[Budget]:
    """The budget is of a GPU: ranks that share sequences take as many times as much together, which surprises people
    who set it for the group."""
    t = trial.trainer
    context, longest = trial.parallelism.context, job.longest
    share = t.micro_batch_size_per_gpu * longest // context
    for phase, tokens in (("train", t.max_token_len_per_gpu), ("log_prob", t.log_prob_max_token_len_per_gpu)):
        per_gpu = tokens if t.use_dynamic_batch else share
        yield Budget(phase, per_gpu, per_gpu * context, longest)
