"""Hy3 in the layout that was verified on 128 H20: it fits with fused kernels and does not without.

The numbers are estimates, by hand, and what the layout was seen to do.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hysweep.estimate import Estimate, estimate, formulas
from hysweep.estimate.memory import RESUME, ROLLOUT, TRAINING

HY3 = "experiment=hy3_dapo_math"


@pytest.fixture(scope="module")
def hy3(composer):
    return lambda *more: estimate(composer.compose((HY3, *more)).trial)


def verdict(found: Estimate, group: str):
    return next(v for v in found.verdicts if v.group == group)


def test_it_fits_with_fused_kernels_and_not_without(hy3) -> None:
    fused, whole = hy3(), hy3("memory.use_fused_kernels=false")
    assert fused.fits and fused.gpu_memory_gib == 95.6
    assert not whole.fits
    assert [v.group for v in whole.verdicts if not v.fits] == [TRAINING]
    assert (verdict(whole, TRAINING).phase, verdict(whole, TRAINING).stage) == ("train", "last")


@pytest.mark.parametrize("imbalance", [1.2, 1.3, 1.6, 2.0])
def test_so_it_is_for_every_imbalance_that_is_likely(hy3, monkeypatch, imbalance: float) -> None:
    monkeypatch.setattr(formulas, "IMBALANCE", imbalance)
    assert hy3().fits and not hy3("memory.use_fused_kernels=false").fits


# Of each stage: parameters of a GPU in billions, weights, gradients, optimizer, and the range of the total.
TABLE = {
    "first": (2.93, 5.5, 10.9, 21.8, (73, 83)),
    "middle": (2.74, 5.1, 10.2, 26.0, (75, 85)),
    "last": (3.24, 6.0, 12.1, 26.7, (63, 73)),
}


@pytest.mark.parametrize("stage", TABLE)
def test_the_table_of_stages(hy3, stage: str) -> None:
    found = hy3()
    billions, weights, gradients, optimizer, (low, high) = TABLE[stage]
    info = next(s for s in found.stages if s.name == stage)
    use = found.of("train", stage)
    assert info.parameters / 1e9 == pytest.approx(billions, rel=0.003)
    assert use.parts["weights"] == pytest.approx(weights, rel=0.012)
    assert use.parts["gradients"] == pytest.approx(gradients, rel=0.012)
    assert use.parts["optimizer"] == pytest.approx(optimizer, rel=0.012)
    assert 11 <= use.parts["working set"] <= 21
    by_hand = use.total_gib - formulas.COMMUNICATION / formulas.GIB  # of the sleeping engine: measured later
    assert low <= by_hand <= high


def test_what_is_saved_in_flight(hy3) -> None:
    found = hy3()
    assert [(s.layers, s.in_flight) for s in found.stages] == [(5, 16), (5, 15), (5, 1)]
    assert found.of("train", "first").parts["saved activations"] == pytest.approx(18.8, rel=0.005)
    assert found.of("train", "middle").parts["saved activations"] == pytest.approx(17.6, rel=0.005)
    assert found.of("train", "last").parts["saved activations"] == pytest.approx(1.2, rel=0.03)


def test_the_last_stage_without_fused_kernels(hy3) -> None:
    use = hy3("memory.use_fused_kernels=false").of("train", "last")
    assert use.total_gib > 97
    assert use.parts["logits"] < 35, "bf16 logits are freed before the gradient: run C"


def test_log_probabilities_have_room(hy3) -> None:
    assert hy3().of("log_prob").total_gib < 40


def test_the_rollout_needs_16_gpus(hy3) -> None:
    at_16, at_8 = hy3(), hy3("rollout.tensor=8")
    assert verdict(at_16, ROLLOUT).fits
    assert not verdict(at_8, ROLLOUT).fits and verdict(at_8, TRAINING).fits
    assert "no room for a cache" in verdict(at_8, ROLLOUT).why
    assert at_16.of("rollout").parts["engine weights"] == pytest.approx(34.3, rel=0.005)
    assert at_8.of("rollout").parts["engine weights"] == pytest.approx(68.7, rel=0.005)
    assert verdict(at_8, ROLLOUT).margin_gib == pytest.approx(-10.6, rel=0.05)


def test_the_cache_of_a_replica(hy3) -> None:
    """Key and value heads repeat beyond their count, so a token takes 40 KiB for any size from 8."""
    cache = hy3().cache
    assert cache.bytes_per_token == 40 * 1024
    assert cache.tokens == pytest.approx(623_000, rel=0.03)
    assert cache.sequences == 61 and cache.replicas == 8
    assert hy3("rollout.tensor=32").cache.bytes_per_token == 40 * 1024
    assert hy3("rollout.tensor=4").cache.bytes_per_token == 80 * 1024
    at_8 = hy3("rollout.tensor=8", "rollout.gpu_memory_utilization=0.9").cache
    assert at_8.tokens == pytest.approx(349_000, rel=0.05)


def test_twice_the_gpus_halve_what_the_optimizer_takes(hy3) -> None:
    """256 GPUs: dp 2 and edp 2, so the middle stage's 26.0 are 13.0."""
    assert hy3("cluster.nodes=32").of("train", "middle").parts["optimizer"] == pytest.approx(13.0, rel=0.005)


def test_disk_and_host(hy3) -> None:
    found = hy3()
    assert found.checkpoint_gib * 2**30 == pytest.approx(590e9 + 3.5e12, rel=0.02)
    assert 300 <= hy3("trainer.save_every=-1").host_gib_per_node <= 400
    saved = found.host_gib_per_node - hy3("trainer.save_every=-1").host_gib_per_node
    assert saved / 8 == pytest.approx(1.27 * 6.0, rel=0.01), "the weights: the optimizer is on the host already"
    with_reference = hy3("algorithm.use_kl_loss=true")
    each = (with_reference.host_gib_per_node - found.host_gib_per_node) / 8
    assert each == pytest.approx(1.27 * 6.0, rel=0.01)
    assert "reference" in with_reference.phases and "reference" not in found.phases


def test_the_budget_is_of_a_gpu(hy3) -> None:
    """Case 7: with 8 context ranks, 30,720 tokens a GPU are 245,760 of a micro batch."""
    update, log_prob = hy3().budgets
    assert (update.per_gpu, update.per_context_group, update.longest_sequence) == (30720, 245760, 10240)
    assert (log_prob.per_gpu, log_prob.per_context_group) == (40960, 327680)
    use = hy3().of("train", "first")
    assert use.parts["saved activations"] * 2**30 == 16 * 5 * 30720 * 2 * 4096


def test_a_critic_is_a_second_model(hy3) -> None:
    found = hy3("algorithm=ppo")
    assert found.of("critic", "first").parts["weights"] == hy3().of("train", "first").parts["weights"]
    assert found.of("critic", "last").parts["weights"] < hy3().of("train", "last").parts["weights"]
    assert found.checkpoint_gib == 2 * hy3().checkpoint_gib
    resident = hy3("algorithm=ppo", "memory.param_offload=false", "memory.optimizer_offload=false")
    assert resident.of("train", "middle").parts["other models"] == pytest.approx(41.3, rel=0.005)


def test_an_entropy_bonus_keeps_more_logits(hy3) -> None:
    plain = hy3("memory.use_fused_kernels=false").of("train", "last").parts["logits"]
    bonus = hy3("memory.use_fused_kernels=false", "algorithm.entropy_coeff=0.001").of("train", "last").parts["logits"]
    assert bonus - plain == pytest.approx(4 * 120832 * 30720 / 2**30)


def test_no_pass_for_old_probabilities_where_the_rollouts_are_taken(hy3) -> None:
    assert "log_prob" not in hy3("rollout.correction_bypass=true", "rollout.correction_is=null").phases


def test_a_trial_that_trains_may_not_resume(composer) -> None:
    """18 B a parameter and little else train on a card that 26 do not load on."""
    trial = composer.compose((HY3, "cluster.nodes=16")).trial
    small = replace(trial, trainer=replace(trial.trainer, max_token_len_per_gpu=1280))
    found = estimate(replace(small, cluster=replace(small.cluster, gpu_memory_gib=64.0)))
    assert verdict(found, TRAINING).fits and not verdict(found, RESUME).fits
