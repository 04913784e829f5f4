"""The estimate reproduces what was measured, by formulas that know nothing of these runs but their settings."""

from __future__ import annotations

import pytest

from hysweep.estimate import Estimate, estimate
from hysweep.estimate.formulas import ON_THE_HOST
from hysweep.estimate.memory import GROUPS, ROLLOUT

from .measured import HOST_OF_FSDP2, HOST_OF_SAVED, KEPT_BACK, PEAKS, RESUME_OF_SAVED, RUNS, SAVED, TWO

GIB = 2**30
PARAMETERS = 2_011_419_648
HIDDEN, LAYERS, VOCABULARY = 2048, 12, 32768


@pytest.fixture(scope="module")
def found(composer) -> dict[str, Estimate]:
    return {name: estimate(composer.compose(run.overrides).trial) for name, run in RUNS.items()}


def within(share: float, of: float):
    return pytest.approx(of, rel=share)


@pytest.mark.parametrize("name", RUNS)
def test_the_static_part_is_exact(found, name: str) -> None:
    parts = found[name].of("train").parts
    for part, each in {"weights": 2, "gradients": 4, "optimizer": 12}.items():
        assert parts[part] * GIB == each * PARAMETERS
    assert sum(parts[p] for p in ("weights", "gradients", "optimizer")) == within(1e-5, of=33.719)


@pytest.mark.parametrize("name", RUNS)
def test_the_peak_of_the_update(found, name: str) -> None:
    assert found[name].of("train").torch_gib == within(0.002, of=RUNS[name].train)


@pytest.mark.parametrize("name", RUNS)
def test_the_peak_of_rollout_and_sync(found, name: str) -> None:
    peak = max(found[name].of(phase).total_gib for phase in GROUPS[ROLLOUT])
    assert peak == within(0.01, of=RUNS[name].whole_gpu)


@pytest.mark.parametrize("name", RUNS)
def test_verls_own_metric_and_the_phase_that_it_comes_from(found, name: str) -> None:
    run = RUNS[name]
    phases = [phase for phase in found[name].phases if phase != "resume"]
    assert max(phases, key=lambda p: found[name].of(p).torch_gib) == run.set_by
    assert found[name].torch_peak_gib(phases) == within(0.002, of=run.allocated[1])


@pytest.mark.parametrize("name", RUNS)
def test_what_torch_reserves_and_what_the_process_has(found, name: str) -> None:
    """The total holds layers and head at once, as torch's cache does."""
    phases = ("train", "log_prob")
    process = max(u.total_gib - u.parts["sleeping engine"] for u in found[name].uses if u.phase in phases)
    assert process == within(0.025, of=RUNS[name].process)
    assert process - 2.8 == within(0.025, of=RUNS[name].reserved)


# Above the base, GiB: saved after the forward pass, the peak of the backward pass, and of a pass without gradients.
ABOVE_BASE = {"A": (0.8766, 2.6547, 1.3454), "B": (1.7532, 5.3093, 2.6909), "C": (2.8765, 4.8753, 6.0017)}


@pytest.mark.parametrize("name", RUNS)
def test_activations(found, name: str) -> None:
    saved, backward, forward = ABOVE_BASE[name]
    update, log_prob = found[name].of("train").parts, found[name].of("log_prob").parts
    ends = 2 * 2 * HIDDEN * (32768 if name == "B" else 16384) / GIB  # the last layer's output, and the norm's
    logits = 4 * VOCABULARY * 16384 / GIB if name == "C" else 0
    assert update["saved activations"] + ends + logits == within(0.005, of=saved)
    assert update["saved activations"] + max(update["working set"], update["logits"]) == within(0.005, of=backward)
    assert max(log_prob["working set"], log_prob["logits"]) == within(0.005, of=forward)


def test_bytes_of_a_token(found) -> None:
    """14 x 2 h are saved, 174 kB are there at the peak."""
    parts = found["A"].of("train").parts
    saved = parts["saved activations"] * GIB / 16384
    assert saved + 2 * 2 * HIDDEN == 14 * 2 * HIDDEN
    assert saved + parts["working set"] * GIB / 16384 == within(0.005, of=174_000)


def test_the_head_without_fused_kernels(found) -> None:
    update, log_prob = found["C"].of("train").parts, found["C"].of("log_prob").parts
    assert update["logits"] * GIB == 16384 * (2 * 4 * VOCABULARY + 2 * 2 * HIDDEN)
    assert log_prob["logits"] * GIB == 16384 * 3 * 4 * VOCABULARY


def test_transients(found) -> None:
    sync = found["A"].of("weight_sync")
    resting = sum(sync.parts[p] for p in ("weights", "gradients", "optimizer"))
    assert sync.torch_gib - resting - 0.28 == within(0.01, of=2.01)


@pytest.mark.parametrize("name", RUNS)
def test_resume_takes_26_bytes_a_parameter(found, name: str) -> None:
    assert found[name].of("resume").torch_gib * GIB == 26 * PARAMETERS


@pytest.mark.parametrize("name", RUNS)
def test_the_host(found, name: str) -> None:
    assert found[name].host_gib_per_node == within(0.005, of=RUNS[name].host)
    tensors = 14 * PARAMETERS / GIB if name == "B" else 0
    assert found[name].host_gib_per_node - 2.96 == within(1e-9, of=ON_THE_HOST * tensors)


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_takes_14_bytes_a_parameter(found, name: str) -> None:
    assert found[name].checkpoint_gib * GIB == 14 * PARAMETERS


@pytest.mark.parametrize("name", RUNS)
def test_the_engine(found, name: str) -> None:
    cache, parts = found[name].cache, found[name].of("rollout").parts
    assert cache.bytes_per_token == 24_576
    assert parts["engine weights"] == within(0.001, of=3.75)
    assert parts["KV cache"] == within(0.001, of=37.49)
    assert cache.tokens == within(0.001, of=1_637_920)
    engine = [p for p in parts if p.startswith("engine") or p == "KV cache"]
    assert 42.4 <= sum(parts[p] for p in engine) <= 42.6


@pytest.mark.parametrize("name", RUNS)
def test_it_ran(found, name: str) -> None:
    assert found[name].fits and [v.group for v in found[name].verdicts] == list(GROUPS)


def test_offload_lowers_the_rollout_and_not_the_update(found, composer) -> None:
    other = estimate(composer.compose((*RUNS["A"].overrides, "memory.param_offload=true",
                                       "memory.optimizer_offload=true")).trial)  # fmt: skip
    assert other.of("train").total_gib == found["A"].of("train").total_gib
    assert found["A"].of("rollout").total_gib - other.of("rollout").total_gib == within(1e-5, of=33.719)


@pytest.mark.parametrize("name", PEAKS)
def test_the_peaks_of_other_shapes_and_settings(composer, name: str) -> None:
    run = PEAKS[name]
    computed = estimate(composer.compose(run.overrides).trial)
    for phase in ("train", "log_prob", "weight_sync", "reference"):
        if measured := getattr(run, phase):
            # below 6 GiB the constants are more than one part in a hundred
            assert computed.of(phase).torch_gib == pytest.approx(measured, rel=0.01, abs=0.06)
    if run.host:
        assert -0.05 <= computed.host_gib_per_node / run.host - 1 <= 0.1


def test_a_checkpoint_goes_through_the_host(composer) -> None:
    computed = estimate(composer.compose(SAVED).trial)
    assert computed.host_gib_per_node == within(0.02, of=HOST_OF_SAVED)
    assert computed.of("resume").torch_gib == within(0.002, of=RESUME_OF_SAVED)


@pytest.mark.parametrize("overrides", HOST_OF_FSDP2)
def test_what_fsdp2_loads_goes_through_the_host(composer, overrides: tuple[str, ...]) -> None:
    computed = estimate(composer.compose(overrides).trial)
    assert -0.06 <= computed.host_gib_per_node / HOST_OF_FSDP2[overrides] - 1 <= 0.1


def test_every_rank_reads_a_model_whose_embeddings_are_tied(composer) -> None:
    words = ("model=qwen3_8b", "parallelism=fsdp2", "parallelism.engine=fsdp2", "cluster=gpu_8", "cluster.gpu=H100")
    plain = estimate(composer.compose(words).trial)
    tied = estimate(composer.compose((*words, "model.shape.tie_word_embeddings=true")).trial)
    assert tied.host_gib_per_node - plain.host_gib_per_node > 6 * 4 * 7.5e9 / GIB


def test_the_run_that_was_kept_back(composer) -> None:
    computed = estimate(composer.compose(KEPT_BACK.overrides).trial)
    for phase in ("train", "log_prob", "weight_sync"):
        assert -0.05 <= computed.of(phase).torch_gib / getattr(KEPT_BACK, phase) - 1 <= 0.1


@pytest.mark.parametrize("name", TWO)
def test_two_gpus_to_a_job(composer, name: str) -> None:
    run = TWO[name]
    computed = estimate(composer.compose(run.overrides).trial)
    phases = ("train", "log_prob", "weight_sync")
    for stage, peaks in run.peaks.items():
        for phase, measured in zip(phases, peaks, strict=True):
            assert -0.03 <= computed.of(phase, stage).torch_gib / measured - 1 <= 0.03, (phase, stage)
    for phase, measured in zip(("train", "weight_sync"), run.whole, strict=True):
        assert -0.05 <= max(computed.of(phase, s).total_gib for s in run.peaks) / measured - 1 <= 0.1, phase
