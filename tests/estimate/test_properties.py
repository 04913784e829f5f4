"""What holds for any layout: arrays as numbers, more tokens never less, more ranks and more offload never more."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hysweep.estimate import Layout, estimate, job_of, layout_of
from hysweep.estimate.formulas import SHARD_PASSES_HOST, SHARD_STAYS_ON_HOST
from hysweep.estimate.layout import MODULES
from hysweep.estimate.memory import Use, cache_tokens, engine_of, host_of, stage_sizes, uses
from hysweep.estimate.parameters import count_parameters
from hysweep.schema import BadInput, Trial

MODELS = ("hy3", "qwen3_8b", "qwen3_30b_a3b", "deepseek_v3", "gpt_oss_20b", "qwen2_5_0_5b")
ON_64_NODES = ("cluster=slurm", "cluster.nodes=64", "rollout=vllm", "rollout.tensor=8", "trainer=hy3", "memory=offload")
SIZES = st.sampled_from((1, 2, 4, 8))


@pytest.fixture(scope="module")
def trials(composer) -> dict[str, Trial]:
    found = {m: composer.compose((f"model={m}", *ON_64_NODES, "parallelism.engine=megatron")).trial for m in MODELS}
    # enough samples for every rank to fill its budget, however the world is laid out
    return {m: replace(t, trainer=replace(t.trainer, mini_batch_size=8192, train_batch_size=8192))
            for m, t in found.items()}  # fmt: skip


@st.composite
def changes(draw) -> dict[str, dict[str, object]]:
    pipeline = draw(st.sampled_from((1, 2, 4, 8)))
    granularity = draw(st.sampled_from((None, "selective", "full")))
    return {
        "parallelism": {
            "engine": draw(st.sampled_from(("megatron", "megatron", "fsdp2"))),
            "tensor": draw(SIZES),
            "pipeline": pipeline,
            "virtual_pipeline": draw(st.sampled_from((None, 2))) if pipeline > 1 else None,
            "first_stage_layers": draw(st.sampled_from((None, 1, 3))) if pipeline > 2 else None,
            "context": draw(SIZES),
            "expert": draw(SIZES),
            "expert_tensor": draw(st.sampled_from((None, 1))),
        },
        "memory": {
            "param_offload": draw(st.booleans()),
            "optimizer_offload": draw(st.booleans()),
            "optimizer_on_cpu": draw(st.booleans()),
            "offload_policy": draw(st.booleans()),
            "use_fused_kernels": draw(st.booleans()),
            "use_gradient_checkpointing": draw(st.booleans()),
            "recompute_granularity": granularity,
            "recompute_method": draw(st.sampled_from(("uniform", "block"))),
            "recompute_num_layers": draw(st.sampled_from((None, 1, 2))),
            "recompute_modules": draw(st.lists(st.sampled_from(MODULES), unique=True)),
        },
        "rollout": {
            "tensor": draw(SIZES),
            "data": draw(st.sampled_from((1, 2))),
            "gpu_memory_utilization": draw(st.sampled_from((0.3, 0.65))),
            "free_cache_engine": draw(st.booleans()),
        },
        "trainer": {"max_token_len_per_gpu": draw(st.sampled_from((10240, 30720)))},
        "algorithm": {"use_kl_loss": draw(st.booleans()), "adv_estimator": draw(st.sampled_from(("grpo", "gae")))},
    }


def changed(trial: Trial, of: dict[str, dict[str, object]]) -> Trial:
    return replace(trial, **{group: replace(getattr(trial, group), **values) for group, values in of.items()})


def every_use(trial: Trial) -> dict[tuple[str, str], Use]:
    found = uses(job_of(trial), layout_of(trial))
    return {(stage, phase): use for stage, phases in found.items() for phase, use in phases.items()}


def assert_at_most(less: Trial, more: Trial, slack: float = 1e-9, but: str = "") -> None:
    """In every phase `but` one."""
    one, other = every_use(less), every_use(more)
    for key in one:
        if but in key:
            continue
        assert one[key].total <= other[key].total * (1 + slack), (key, one[key], other[key])
        assert one[key].torch <= other[key].torch * (1 + slack), (key, one[key], other[key])


def as_arrays(layouts: list[Layout]) -> Layout:
    values = {}
    for f in fields(Layout):
        column = [getattr(x, f.name) for x in layouts]
        values[f.name] = (
            {name: np.array([c[name] for c in column]) for name in MODULES} if f.name == "modules" else np.array(column)
        )
    return Layout(**values)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=5)
@given(st.data())
def test_arrays_are_numbers(trials, model: str, data) -> None:
    """One call on arrays says of each layout what a call of its own says."""
    several = data.draw(st.lists(changes(), min_size=2, max_size=4))
    same = {"parallelism": {"engine": several[0]["parallelism"]["engine"]}, "algorithm": several[0]["algorithm"]}
    made = [changed(changed(trials[model], c), same) for c in several]
    job, layouts = job_of(made[0]), [layout_of(t) for t in made]
    at_once, counted = uses(job, as_arrays(layouts)), count_parameters(job.shape)
    engines = engine_of(job, as_arrays(layouts), counted)
    for i, layout in enumerate(layouts):
        for stage, phases in uses(job, layout).items():
            for phase, use in phases.items():
                together = at_once[stage][phase]
                assert set(together.parts) == set(use.parts)
                for name in ("total", "torch"):
                    of_all = np.broadcast_to(getattr(together, name), (len(layouts),))
                    assert of_all[i] == pytest.approx(getattr(use, name))
                for part, size in use.parts.items():
                    all_of_part = np.broadcast_to(together.parts[part], (len(layouts),))
                    assert all_of_part[i] == pytest.approx(size, rel=1e-9, abs=1e-3)
        assert engines.room[i] == pytest.approx(engine_of(job, layout, counted).room)
        tokens = cache_tokens(job, as_arrays(layouts), engines, job.longest)
        assert tokens[i] == pytest.approx(cache_tokens(job, layout, engine_of(job, layout, counted), job.longest))
        assert host_of(job, as_arrays(layouts))[i] == pytest.approx(host_of(job, layout))


@settings(max_examples=25)
@given(st.data())
def test_more_tokens_are_never_less_memory(trials, data) -> None:
    trial = changed(trials[data.draw(st.sampled_from(MODELS))], data.draw(changes()))
    few, more = sorted(data.draw(st.lists(st.integers(1024, 200_000), min_size=2, max_size=2)))
    one, other = (
        replace(trial, trainer=replace(trial.trainer, max_token_len_per_gpu=n, log_prob_max_token_len_per_gpu=n))
        for n in (few, more)
    )
    assert_at_most(one, other)


@settings(max_examples=25)
@given(st.data())
def test_more_ranks_to_a_tensor_or_a_sequence_are_never_more_memory(trials, data) -> None:
    trial = changed(trials[data.draw(st.sampled_from(MODELS))], data.draw(changes()))
    which = data.draw(st.sampled_from(("tensor", "context")))
    p = replace(trial.parallelism, expert_tensor=trial.parallelism.expert_tensor or 1)
    more = replace(p, **{which: 2 * getattr(p, which)})
    # norms and routers are whole on every tensor rank, so the optimizer of those grows where nothing else shrinks;
    # and what is cut has to be put together before it is sent
    but = "weight_sync" if more.tensor > p.tensor == 1 else ""
    assert_at_most(replace(trial, parallelism=more), replace(trial, parallelism=p), slack=1e-2, but=but)


@settings(max_examples=25)
@given(st.data())
def test_offload_is_never_more_on_the_gpu(trials, data) -> None:
    trial = changed(trials[data.draw(st.sampled_from(MODELS))], data.draw(changes()))
    switch = data.draw(st.sampled_from(("param_offload", "optimizer_offload", "optimizer_on_cpu", "offload_policy")))
    off, on = (replace(trial, memory=replace(trial.memory, **{switch: value})) for value in (False, True))
    assert_at_most(on, off)
    assert host_of(job_of(on), layout_of(on)) >= host_of(job_of(off), layout_of(off)) * (1 - 1e-9)


@settings(max_examples=25)
@given(st.data())
def test_more_recomputation_never_keeps_more(trials, data) -> None:
    trial = changed(trials[data.draw(st.sampled_from(MODELS))], data.draw(changes()))

    def with_(**values: object) -> float:
        found = every_use(replace(trial, memory=replace(trial.memory, **values)))
        return max(use.parts["saved activations"] for (_, phase), use in found.items() if phase == "train")

    none = with_(recompute_granularity=None, use_gradient_checkpointing=False)
    modules = data.draw(st.sampled_from((["layernorm"], ["layernorm", "mlp"], ["layernorm", "mla_up_proj"])))
    some = with_(recompute_granularity="selective", recompute_modules=modules, use_gradient_checkpointing=False)
    core = with_(recompute_granularity="selective", recompute_modules=["core_attn"], use_gradient_checkpointing=False)
    full = with_(recompute_granularity="full", recompute_num_layers=1, use_gradient_checkpointing=True,
                 recompute_method="uniform")  # fmt: skip
    assert full <= some <= none <= core  # attention's core was measured to keep more


@settings(max_examples=20)
@given(st.data())
def test_every_layer_and_parameter_is_somewhere(trials, data) -> None:
    trial = changed(trials[data.draw(st.sampled_from(MODELS))], data.draw(changes()))
    if trial.parallelism.engine != "megatron":
        return
    job, layout = job_of(trial), layout_of(trial)
    counted = count_parameters(job.shape)
    sizes = stage_sizes(job, layout, counted)
    between = max(layout.pipeline - 2, 0)
    layers = sizes["first"].layers + (layout.pipeline > 1) * sizes["last"].layers + between * sizes["middle"].layers
    assert layers == pytest.approx(job.shape.num_layers)
    one = replace(layout, tensor=1, pipeline=1, virtual=1, expert=1, expert_tensor=1, first_layers=0)
    assert stage_sizes(job, one, counted)["first"].parameters == counted.total


def test_a_loop_over_many_layouts_is_one_call(trials) -> None:
    job, layout = job_of(trials["hy3"]), layout_of(trials["hy3"])
    many = replace(layout, pipeline=np.tile([1, 2, 4, 8], 2500), tensor=np.repeat([1, 2, 4, 8], 2500))
    found = uses(job, many)["first"]["train"]
    assert found.total.shape == (10_000,) and np.isfinite(found.total).all()


def test_the_scalar_path_needs_no_numpy() -> None:
    code = "import sys, hysweep.estimate; sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("model", ["hy3", "qwen3_8b", "deepseek_v3"])
@pytest.mark.parametrize("engine", ["megatron", "fsdp2"])
def test_every_number_is_finite_and_no_part_is_below_zero(trials, model: str, engine: str) -> None:
    trial = replace(trials[model], parallelism=replace(trials[model].parallelism, engine=engine))
    found = estimate(trial)
    assert all(gib > 0 for u in found.uses for gib in u.parts.values())
    assert all(u.torch_gib <= u.total_gib == pytest.approx(sum(u.parts.values())) for u in found.uses)


def test_fsdp2_shares_everything_out(trials) -> None:
    """16 B a parameter, all fp32: 4 weights, 4 gradients, 8 moments."""
    t = trials["qwen3_8b"]
    found = estimate(replace(t, parallelism=replace(t.parallelism, engine="fsdp2"),
                             memory=replace(t.memory, param_offload=False, optimizer_offload=False)))  # fmt: skip
    share = count_parameters(t.model.shape).total / 512 / 2**30
    parts = found.of("train").parts
    assert [parts[p] / share for p in ("weights", "gradients", "optimizer")] == pytest.approx([4, 4, 8])
    policy = replace(t, parallelism=replace(t.parallelism, engine="fsdp2"),
                     memory=replace(t.memory, offload_policy=True))  # fmt: skip
    assert "weights" not in estimate(policy).of("train").parts


def test_a_reference_of_fsdp2_is_on_the_host(trials) -> None:
    """verl offloads what is never trained there, whatever is said of the actor."""
    t = trials["qwen3_8b"]
    without = replace(t, parallelism=replace(t.parallelism, engine="fsdp2"),
                      memory=replace(t.memory, param_offload=False, optimizer_offload=False))  # fmt: skip
    with_one = replace(without, algorithm=replace(t.algorithm, use_kl_loss=True))
    plain, found = estimate(without), estimate(with_one)
    assert "other models" not in found.of("train").parts
    assert found.of("reference").parts.get("weights", 0) == 0
    shard = 4 * count_parameters(t.model.shape).total / t.world_size / 2**30
    more = t.cluster.gpus_per_node * shard * (SHARD_STAYS_ON_HOST - SHARD_PASSES_HOST)
    assert found.host_gib_per_node - plain.host_gib_per_node == pytest.approx(more)


def test_the_latent_cache_is_the_same_on_every_rank(trials) -> None:
    t = trials["deepseek_v3"]
    found = [estimate(replace(t, rollout=replace(t.rollout, tensor=n))).cache for n in (1, 8)]
    assert [c.bytes_per_token for c in found if c] == [61 * (512 + 64) * 2] * 2


def test_a_sliding_layer_keeps_its_window(trials) -> None:
    t = trials["gpt_oss_20b"]
    without = replace(t.model, shape=replace(t.model.shape, sliding_window=0, num_sliding_layers=0))
    sliding, whole = (estimate(x).cache for x in (t, replace(t, model=without)))
    assert sliding is not None and whole is not None
    assert 1.9 < sliding.sequences / whole.sequences < 2.0


def test_without_a_gpu_there_is_one_clear_line(trial_of, trials) -> None:
    with pytest.raises(BadInput, match=r"cluster\.gpu = null: there is no GPU"):
        estimate(trial_of())
    t = trials["hy3"]
    with pytest.raises(BadInput, match=r"cluster\.gpu_memory_gib = null"):
        estimate(replace(t, cluster=replace(t.cluster, gpu_memory_gib=None)))
