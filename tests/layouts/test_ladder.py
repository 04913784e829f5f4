"""The memory ladder: the same training, less memory, legal at each rung, and an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from hysweep.check import check_trial, errors
from hysweep.compile import compile_trial
from hysweep.layouts import LADDER, next_rung, rungs
from hysweep.schema import leaves, trial_id
from hysweep.track import Phase

HY3 = "experiment=hy3_dapo_math"
QWEN = ("experiment=hy3_dapo_math", "model=qwen3_8b", "parallelism=megatron_tensor_2", "cluster=gpu_8",
        "memory=resident", "memory.use_remove_padding=true", "memory.use_gradient_checkpointing=true",
        "rollout.tensor=2", "cluster.launcher=slurm", "cluster.gpu_memory_gib=null")  # fmt: skip
FSDP = (*QWEN, "parallelism=fsdp2", "memory.use_gradient_checkpointing=false")
STARTS = [(HY3,), QWEN, (*QWEN, "memory.reshardable_checkpoints=true"), FSDP, ()]


@pytest.mark.parametrize("start", STARTS, ids=lambda s: " ".join(s)[-40:])
def test_each_rung_is_the_same_training_and_legal(trial_of, start: tuple[str, ...]) -> None:
    trial = trial_of(*start)
    assert errors(check_trial(trial)) == []
    for phase in Phase:
        climbed = list(rungs(trial, phase))
        assert len(climbed) < 20
        for name, higher in climbed:
            assert trial_id(higher) == trial_id(trial), name
            assert errors(check_trial(higher)) == [], name
            assert compile_trial(higher, Path("/t")).overrides != compile_trial(trial, Path("/t")).overrides
            before, after = ({leaf.path: leaf for leaf in leaves(t)} for t in (trial, higher))
            assert not [p for p in before if before[p].value != after[p].value and before[p].knob.learned]


@pytest.mark.parametrize("phase", Phase)
def test_hy3s_preset_still_has_rungs(trial_of, phase: Phase) -> None:
    assert next_rung(trial_of(HY3), phase) is not None


def names(trial, phase: Phase) -> list[str]:
    return list(dict.fromkeys(name for name, _ in rungs(trial, phase)))


def test_the_order_is_the_declared_one(trial_of) -> None:
    trial = trial_of(*QWEN, "memory.reshardable_checkpoints=true")
    order = [rung.name for rung in LADDER]
    for phase in Phase:
        climbed = names(trial, phase)
        assert climbed == sorted(climbed, key=order.index), phase
    assert names(trial, Phase.UPDATE)[:2] == ["full_recompute", "token_budget"]
    assert names(trial, Phase.UPDATE)[-1] == "more_context"
    assert names(trial, Phase.START)[-1] == "more_pipeline"
    assert "more_context" not in names(trial_of(*QWEN), Phase.UPDATE), "its checkpoints fit one layout alone"


def test_fused_kernels_come_with_what_they_want(trial_of) -> None:
    padded = trial_of(*QWEN, "memory.use_remove_padding=false")
    higher = dict(rungs(padded, Phase.UPDATE))["fused_kernels"]
    assert higher.memory.use_fused_kernels and higher.memory.use_remove_padding
    assert "fused_kernels" not in names(trial_of(*QWEN, "algorithm=optimal_token_baseline"), Phase.UPDATE)


def test_a_token_budget_is_never_under_the_longest_sequence(trial_of) -> None:
    for _, higher in rungs(trial_of(HY3), Phase.UPDATE):
        assert higher.trainer.max_token_len_per_gpu * higher.parallelism.context >= 2048 + 8192
    assert higher.trainer.max_token_len_per_gpu == 1280


def test_a_cache_that_is_too_small_wants_more_memory_not_less(trial_of) -> None:
    more = next_rung(trial_of(HY3), Phase.ROLLOUT, kv_starved=True)
    less = next_rung(trial_of(HY3), Phase.ROLLOUT)
    assert more and less
    assert more[1].rollout.gpu_memory_utilization > 0.65 > less[1].rollout.gpu_memory_utilization
