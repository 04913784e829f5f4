"""The layouts of a model on a cluster that are legal and fit, best first."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hysweep.estimate import Job, Layout, count_parameters, job_of, layout_of
from hysweep.estimate import memory as m
from hysweep.estimate.result import NEAR
from hysweep.layouts.cost import MACHINES, machine_of, step_seconds
from hysweep.layouts.grid import Grid, crossed, rollout_grid, training_grid
from hysweep.schema import BadInput, Problem, Trial

GIB = 2**30
# Field of a trial for each column of a layout; a value that says "not set" to the field.
FIELDS: dict[str, tuple[str, int | None]] = {
    "tensor": ("parallelism.tensor", None),
    "pipeline": ("parallelism.pipeline", None),
    "first_stage_layers": ("parallelism.first_stage_layers", 0),
    "last_stage_layers": ("parallelism.last_stage_layers", 0),
    "virtual_pipeline": ("parallelism.virtual_pipeline", 1),
    "context": ("parallelism.context", None),
    "expert": ("parallelism.expert", None),
    "expert_tensor": ("parallelism.expert_tensor", None),
    "rollout_tensor": ("rollout.tensor", None),
    "rollout_data": ("rollout.data", None),
}
# Columns to sort by, and whether more of it is better.
SORTS = {
    "seconds": False,
    "train_gib": False,
    "rollout_gib": False,
    "resume_gib": False,
    "margin_gib": True,
    "kv_sequences": True,
    "longest": True,
    "nodes": False,
    **dict.fromkeys(
        (
            "tensor",
            "pipeline",
            "virtual_pipeline",
            "context",
            "data",
            "expert",
            "expert_tensor",
            "rollout_tensor",
            "rollout_data",
        ),
        False,
    ),
}


@dataclass(frozen=True, slots=True)
class Found:
    """What was looked for and found.

    legal     layouts that the rules let pass; fitting: those that also fit, the rows of `table`
    table     a column each: those of FIELDS, data, nodes, and seconds (a step, roughly), its parts, train_gib,
              rollout_gib and resume_gib (fullest phase and stage of one GPU), margin_gib, is_sure (the margin is
              more than the estimate errs by), kv_sequences (of a replica, at full length), longest (tokens that a
              context group may hold)
    """

    legal: int
    fitting: int
    table: dict[str, NDArray[Any]]

    def order(self, by: str) -> NDArray[np.int64]:
        """Rows, best first by a column of SORTS; ties by the time of a step."""
        key = -self.table[by] if SORTS[by] else self.table[by]
        return np.lexsort((self.table["seconds"], key))

    def distinct(self, order: NDArray[np.int64], by: str) -> NDArray[np.int64]:
        """An order without the rows that the cost model cannot tell from an earlier one."""
        told = np.stack([np.round(self.table[name][order].astype(float), 1) for name in ("seconds", by)])
        return order[np.sort(np.unique(told, axis=1, return_index=True)[1])]

    def overrides(self, row: int) -> dict[str, int | None]:
        """The fields of a trial that make it this layout."""
        placed = {
            field: None if (value := int(self.table[name][row])) == unset else value
            for name, (field, unset) in FIELDS.items()
        }
        return placed | {"cluster.nodes": int(self.table["nodes"][row])}

    def placed(self, trial: Trial, row: int) -> Trial:
        """The trial in this layout."""
        for field, value in self.overrides(row).items():
            group, _, leaf = field.partition(".")
            changed: Any = {group: replace(getattr(trial, group), **{leaf: value})}
            trial = replace(trial, **changed)
        return trial


def search(trial: Trial, any_nodes: bool = False, given: Collection[str] = ()) -> Found:
    """All layouts of the trial's model, lengths, batch and memory settings on its cluster, or on fewer of its nodes.

    `given`: fields of FIELDS that are to stay what they are in the trial.
    Raises BadInput where no GPU is named, or the engine is not Megatron.
    """
    _refuse_other_engines(trial)
    nodes = range(1, trial.cluster.nodes + 1) if any_nodes else (trial.cluster.nodes,)
    parts = [_on(replace(trial, cluster=replace(trial.cluster, nodes=n)), given) for n in nodes]
    names = parts[0].table
    table = {name: np.concatenate([part.table[name] for part in parts]) for name in names}
    return Found(sum(p.legal for p in parts), sum(p.fitting for p in parts), table)


def predicted_seconds(trial: Trial) -> float:
    """Seconds of a step of a trial in its own layout, roughly: what `search` ranks that layout by.

    Raises BadInput where no GPU is named, or one whose speeds are not known, or the engine is not Megatron.
    """
    _refuse_other_engines(trial)
    if machine_of(trial) is None:
        why = "its speeds are not known, so no time of a step is predicted"
        raise BadInput(Problem("cluster.gpu", trial.cluster.gpu, why, f"known are {', '.join(MACHINES)}"))
    job, own = job_of(trial), layout_of(trial)
    values = {name: _field(trial, field) for name, (field, _) in FIELDS.items()}
    unset = {name: value or 0 for name, (_, value) in FIELDS.items()} | {"expert_tensor": trial.parallelism.tensor}
    columns = {name: np.array([unset[name] if value is None else value]) for name, value in values.items()}
    columns["data"] = trial.world_size // (columns["tensor"] * columns["pipeline"] * columns["context"])
    seconds = step_seconds(trial, Grid(columns), np.atleast_1d(_room(job, own)) * job.longest)
    return float(sum(seconds.values(), np.zeros(1))[0])


def _refuse_other_engines(trial: Trial) -> None:
    if trial.parallelism.engine != "megatron":
        why = "FSDP2 has no layout to choose but parallelism.context"
        cure = "choose a Megatron parallelism=, as in mixture_8 or megatron_tensor_2"
        raise BadInput(Problem("parallelism.engine", trial.parallelism.engine, why, cure))


def _field(trial: Trial, path: str) -> int | None:
    group, _, leaf = path.partition(".")
    value: int | None = getattr(getattr(trial, group), leaf)
    return value


def _held(trial: Trial, grid: Grid, given: Collection[str]) -> Grid:
    """The rows that have the trial's own values in the fields that are to stay."""
    kept = np.ones(len(grid), bool)
    for name, (field, unset) in FIELDS.items():
        if field in given and name in grid.columns:
            value = _field(trial, field)
            if name == "expert_tensor" and value is None:
                kept &= grid[name] == grid["tensor"]  # unset it is tensor
            else:
                kept &= grid[name] == (unset if value is None else value)
    return grid.where(kept)


def _on(trial: Trial, given: Collection[str]) -> Found:
    job, own = job_of(trial), layout_of(trial)
    training, rollout = (
        _held(trial, grid, given) for grid in (training_grid(trial, given), rollout_grid(trial, given))
    )
    legal = len(training) * len(rollout)
    # what cannot fit beside any partner is left out before the two are crossed
    training = training.where(_peak(job, _layout(trial, own, training), m.TRAINING, training) <= job.card)
    rollout = rollout.where(_room(job, _layout(trial, own, rollout)) >= 1)
    grid = crossed(training, rollout)
    layout = _layout(trial, own, grid)
    train, roll = (_peak(job, layout, group, grid) for group in (m.TRAINING, m.ROLLOUT))
    resume = _peak(job, layout, m.RESUME, grid)
    fullest = np.maximum(np.maximum(train, roll), resume)
    fits = fullest <= job.card
    grid, layout = grid.where(fits), _layout(trial, own, grid.where(fits))
    sequences = _room(job, layout)
    seconds = step_seconds(trial, grid, sequences * job.longest)
    table: dict[str, NDArray[Any]] = dict(grid.columns)
    table["nodes"] = np.full(len(grid), trial.cluster.nodes)
    table["seconds"] = sum(seconds.values(), np.zeros(len(grid)))
    table |= {f"{name}_s": part + np.zeros(len(grid)) for name, part in seconds.items()}
    for name, peak in (("train_gib", train), ("rollout_gib", roll), ("resume_gib", resume)):
        table[name] = peak[fits] / GIB
    table["margin_gib"] = (job.card - fullest[fits]) / GIB
    table["is_sure"] = job.card - fullest[fits] >= NEAR * job.card
    table["kv_sequences"] = sequences.astype(np.int64)
    table["longest"] = trial.trainer.max_token_len_per_gpu * grid["context"]
    return Found(legal, int(fits.sum()), table)


def _layout(trial: Trial, own: Layout, g: Grid) -> Layout:
    """The estimate's layout with these columns in place of the trial's own sizes."""
    t, longest = trial.trainer, trial.trainer.max_prompt_length + trial.trainer.max_response_length
    found = own
    if "tensor" in g.columns:
        share = trial.rollout.n * longest / (g["data"] * g["context"])
        batch, step = t.mini_batch_size * share, t.train_batch_size * share
        micro = t.micro_batch_size_per_gpu * longest / g["context"]
        update = t.max_token_len_per_gpu if t.use_dynamic_batch else micro
        log_prob = t.log_prob_max_token_len_per_gpu if t.use_dynamic_batch else micro
        found = replace(
            found,
            tensor=g["tensor"],
            pipeline=g["pipeline"],
            virtual=g["virtual_pipeline"],
            context=g["context"],
            expert=g["expert"],
            expert_tensor=g["expert_tensor"],
            first_layers=g["first_stage_layers"],
            last_layers=g["last_stage_layers"],
            tokens=np.minimum(update, batch),
            log_prob_tokens=np.minimum(log_prob, step),
            batch_tokens=batch,
            step_tokens=step,
        )
    if "rollout_tensor" in g.columns:
        found = replace(found, rollout_tensor=g["rollout_tensor"], rollout_data=g["rollout_data"])
    return found


def _peak(job: Job, layout: Layout, group: str, g: Grid) -> NDArray[np.float64]:
    """Bytes of the fullest phase of a group, on the fullest stage that there is."""
    there = {"first": np.ones(len(g), bool), "middle": g["pipeline"] > 2, "last": g["pipeline"] > 1}
    peak = np.zeros(len(g))
    for stage, phases in m.uses(job, layout).items():
        for phase, use in phases.items():
            if phase in m.GROUPS[group]:
                peak = np.maximum(peak, np.where(there[stage], use.total, 0))
    return peak


def _room(job: Job, layout: Layout) -> NDArray[np.float64]:
    """Whole sequences that a replica's cache holds; without vLLM there is no limit."""
    if not job.has_rollout:
        return np.full(np.shape(layout.rollout_tensor), 1e9)
    engine = m.engine_of(job, layout, count_parameters(job.shape))
    return np.asarray(m.cache_tokens(job, layout, engine, job.longest) / job.longest)


def as_rows(found: Found, order: NDArray[np.int64], top: int) -> Iterator[dict[str, Any]]:
    """The first rows as plain numbers, for tables and JSON."""
    for rank, row in enumerate(order[:top], 1):
        yield {"rank": rank, **{name: column[row].item() for name, column in found.table.items()}}
