"""What `layouts` offers is what `check` lets pass, and nothing that check lets pass is left out."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from hysweep.check import check_trial, errors, legal
from hysweep.check.memory import cures
from hysweep.cli import hysweep
from hysweep.estimate import estimate
from hysweep.layouts.grid import crossed, rollout_grid, training_grid
from hysweep.layouts.search import FIELDS, SORTS, search
from hysweep.schema import BadInput, Trial

HY3 = "experiment=hy3_dapo_math"


@pytest.fixture(scope="module")
def hy3(trial_of) -> Trial:
    return trial_of(HY3)


def laid_out(trial: Trial, overrides: dict[str, int | None]) -> Trial:
    for field, value in overrides.items():
        group, name = field.split(".")
        trial = replace(trial, **{group: replace(getattr(trial, group), **{name: value})})
    return trial


def test_every_layout_that_is_offered_passes_check_and_fits(hy3: Trial) -> None:
    found = search(hy3)
    assert found.legal > found.fitting > 1000
    for row in random.Random(1).sample(range(found.fitting), 60):
        trial = laid_out(hy3, found.overrides(row))
        assert errors(check_trial(trial)) == [], found.overrides(row)
        looked = estimate(trial)
        assert looked.fits, (found.overrides(row), looked.verdicts)
        margin = min(v.margin_gib for v in looked.verdicts)
        assert found.table["margin_gib"][row] == pytest.approx(margin, abs=0.05)
        assert found.table["is_sure"][row] == all(v.is_sure for v in looked.verdicts)


@pytest.mark.parametrize(
    "changes",
    [("rollout.expert=16",), ("rollout.expert=32",),
     ("trainer.use_dynamic_batch=false", "trainer.max_token_len_per_gpu=16384",
      "trainer.log_prob_max_token_len_per_gpu=16384", "trainer.micro_batch_size_per_gpu=3",
      "trainer.train_batch_size=96", "trainer.mini_batch_size=96", "trainer.max_response_length=30000",
      "rollout.max_model_len=null")],
    ids=["experts of 16", "experts of 32", "micro batches by count"],
)  # fmt: skip
def test_what_is_offered_goes_with_what_the_layout_does_not_say(trial_of, changes: tuple[str, ...]) -> None:
    """Experts that vLLM spreads over whole replicas; micro batches by count, to which a token budget is nothing."""
    trial = trial_of("experiment=hy3_dapo_math", *changes)
    before = {p.key for p in errors(check_trial(trial))}
    found = search(trial)
    assert found.fitting > 100
    for row in random.Random(1).sample(range(found.fitting), 20):
        assert {p.key for p in errors(check_trial(found.placed(trial, row)))} <= before, found.overrides(row)


def test_no_layout_that_passes_check_is_left_out(hy3: Trial) -> None:
    trial = replace(hy3, cluster=replace(hy3.cluster, nodes=2, gpu_memory_gib=None))  # legal, whether it fits or not
    grid = crossed(training_grid(trial), rollout_grid(trial))
    names = ("tensor", "pipeline", "context", "expert", "expert_tensor", "rollout_tensor", "rollout_data")
    even = grid.where((grid["virtual_pipeline"] == 1) & (grid["first_stage_layers"] == 0))
    offered = set(zip(*(even[name].tolist() for name in names), strict=True))
    sizes = [1, 2, 3, 4, 5, 8, 16]
    dice = random.Random(2)
    seen = 0
    for sizes_of in dice.sample(list(itertools.product(sizes, repeat=5)), 1500):
        chosen = dict(zip(names, (*sizes_of, 16, 1), strict=True))
        if chosen["tensor"] > 8 or chosen["expert_tensor"] > 8:
            continue  # across nodes: legal, and never offered
        fields = {FIELDS[name][0]: value for name, value in chosen.items()}
        passes = not errors(check_trial(laid_out(trial, fields)))
        assert passes == (tuple(chosen.values()) in offered), chosen
        seen += passes
    assert seen > 20


def test_the_verified_layout_is_among_them(hy3: Trial) -> None:
    found, own = search(hy3), hy3.parallelism
    wanted = {"tensor": own.tensor, "pipeline": own.pipeline, "context": own.context, "expert": own.expert,
              "expert_tensor": own.expert_tensor, "rollout_tensor": 16, "rollout_data": 1,
              "virtual_pipeline": 1}  # fmt: skip
    rows = np.logical_and.reduce([found.table[name] == value for name, value in wanted.items()])
    assert rows.sum() == 1
    narrow = (found.table["rollout_tensor"] == 8) & (found.table["rollout_data"] == 1)
    assert not narrow.any(), "8 GPUs hold no replica at 0.65 of their memory"


def test_uneven_stages_are_found_where_even_ones_are_not(trial_of) -> None:
    trial = trial_of(HY3, "model=qwen3_235b_a22b", "cluster.nodes=8", "cluster.gpu_memory_gib=141")
    grid = training_grid(trial)
    uneven = grid.where(grid["pipeline"] == 8)
    assert len(uneven) and (uneven["first_stage_layers"] > 0).all(), "94 layers do not divide by 8"
    layers = uneven["first_stage_layers"] + uneven["last_stage_layers"]
    assert ((94 - layers) % 6 == 0).all()


def test_it_can_be_sorted_by_any_column(hy3: Trial) -> None:
    found = search(hy3)
    by_room = found.table["kv_sequences"][found.order("kv_sequences")]
    assert (np.diff(by_room) <= 0).all()
    assert (np.diff(found.table["seconds"][found.order("seconds")]) >= 0).all()


def test_fewer_nodes_are_looked_at_when_asked(hy3: Trial) -> None:
    found = search(hy3, any_nodes=True)
    assert set(np.unique(found.table["nodes"])) <= set(range(1, 17))
    fewest = found.order("nodes")[0]
    assert found.table["nodes"][fewest] < 16


def test_what_is_given_is_held_before_layouts_are_counted(hy3: Trial) -> None:
    every = search(hy3)
    held = search(laid_out(hy3, {"parallelism.tensor": 2}), given=["parallelism.tensor"])
    assert 0 < held.legal < every.legal and set(held.table["tensor"]) == {2}
    assert held.fitting == (every.table["tensor"] == 2).sum()
    none = search(laid_out(hy3, {"parallelism.tensor": 3}), given=["parallelism.tensor"])
    assert none.legal == none.fitting == 0


@pytest.mark.parametrize(
    ("fields", "layers"),
    [({"parallelism.first_stage_layers": 5}, 80), ({"parallelism.first_stage_layers": 5,
      "parallelism.last_stage_layers": 5}, 80), ({"parallelism.last_stage_layers": 4}, 79),
     ({"parallelism.expert_tensor": None}, 80)],
)  # fmt: skip
def test_a_layout_that_check_lets_pass_is_not_lost_by_naming_it(hy3: Trial, fields, layers: int) -> None:
    """Ends of one's own, which layouts otherwise never have where stages are even; an expert_tensor that is tensor."""
    own = laid_out(hy3, fields)
    own = replace(own, model=replace(own.model, shape=replace(own.model.shape, num_layers=layers)))
    assert not errors(check_trial(own))
    found = search(own, given=list(fields))
    assert found.fitting
    for row in random.Random(3).sample(range(found.fitting), min(20, found.fitting)):
        placed = found.overrides(row)
        assert all(placed[name] == value for name, value in fields.items() if value is not None)
        trial = laid_out(own, placed)
        assert errors(check_trial(trial)) == [] and estimate(trial).fits, placed
        if fields.get("parallelism.expert_tensor", 1) is None:
            assert trial.parallelism.expert_tensor == trial.parallelism.tensor


def test_the_columns_are_what_the_estimate_says(hy3: Trial) -> None:
    found = search(hy3)
    row = found.order("seconds")[0]
    looked = estimate(laid_out(hy3, found.overrides(row)))
    phases = {"train_gib": ("train", "log_prob", "reference"), "resume_gib": ("resume",)}
    for name, of in phases.items():
        most = max(u.total_gib for u in looked.uses if u.phase in of)
        assert found.table[name][row] == pytest.approx(most, abs=0.05), name


def test_where_none_fits_the_cure_is_one_with_which_some_do(hy3: Trial) -> None:
    narrow = replace(hy3, cluster=replace(hy3.cluster, nodes=8))
    assert search(narrow).fitting == 0
    assert cures(narrow, lambda other: search(other).fitting > 0) == ["memory.optimizer_on_cpu=true"]


def test_replicas_that_cut_experts_to_slivers_are_offered_only_where_they_are_named(hy3: Trial) -> None:
    found = search(hy3)
    ranks = found.table["rollout_tensor"] * found.table["rollout_data"]
    assert (hy3.model.shape.moe_intermediate_size >= 64 * ranks).all()
    held = search(laid_out(hy3, {"rollout.tensor": 64}), given=["rollout.tensor"])
    assert held.fitting and set(held.table["rollout_tensor"]) == {64}


def test_what_the_model_cannot_tell_apart_is_swept_once(hy3: Trial) -> None:
    found = search(hy3)
    order = found.order("longest")
    told = found.distinct(order, "longest")
    assert told[0] == order[0] and len(told) < len(order)
    pairs = [(round(float(found.table["seconds"][row]), 1), int(found.table["longest"][row])) for row in told]
    assert len(set(pairs)) == len(pairs)


def test_the_help_names_every_column_that_can_be_sorted_by() -> None:
    said = " ".join(CliRunner().invoke(hysweep, ["layouts", "--help"]).output.split())
    assert all(name in said for name in SORTS)


def test_fsdp_has_no_layouts(trial_of) -> None:
    with pytest.raises(BadInput, match="megatron"):
        search(trial_of())


@pytest.mark.parametrize(
    ("layers", "pipeline", "first", "last", "is_whole"),
    [(30, 4, 0, 0, False), (80, 16, 0, 0, True), (48, 2, 11, 13, False), (20, 1, 0, 1, False), (94, 8, 11, 11, True),
     (61, 12, 0, 6, True), (3, 3, 1, 1, True), (2, 3, 1, 1, False)],
)  # fmt: skip
def test_every_layer_is_built(layers: int, pipeline: int, first: int, last: int, is_whole: bool) -> None:
    """Case 4: Megatron would build 28, 64, 24 and 1 of them, and say nothing."""
    assert bool(legal.stages_split(layers, pipeline, first, last)) is is_whole
    many = legal.stages_split(layers, np.array([pipeline, pipeline]), np.array([first] * 2), np.array([last] * 2))
    assert many.tolist() == [is_whole] * 2, "the same for arrays"
