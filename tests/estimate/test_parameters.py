"""The counts of the shipped models agree with what was published of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hysweep.estimate import count_parameters
from hysweep.schema import Shape

MILLION, BILLION = 10**6, 10**9

# The sum of the tensors on the hub, where it is known to the last digit, without buffers.
EXACT = {
    "qwen2_5_0_5b": 494_032_768,
    "qwen2_5_7b": 7_615_616_512,
    "qwen3_8b": 8_190_735_360,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "llama3_1_8b": 8_030_261_248,
    "llama3_1_70b": 70_553_706_496,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
}
# In billions, as model cards and reports have it: total, active, and what their count of active parameters leaves out.
PUBLISHED = {
    "qwen2_5_0_5b": ("0.49", "0.49", ()),
    "qwen2_5_7b": ("7.61", "7.61", ()),
    "qwen3_8b": ("8.2", "8.2", ()),
    "qwen3_30b_a3b": ("30.53", "3.35", ()),
    "qwen3_235b_a22b": ("235.1", "22.2", ()),
    "deepseek_v3": ("671.0", "37", ("embedding",)),
    "glm4_5_air": ("107", "12", ("embedding", "head")),
    "llama3_1_8b": ("8.03", "8.03", ()),
    "llama3_1_70b": ("70.55", "70.55", ()),
    "gpt_oss_20b": ("20.91", "3.61", ("embedding",)),
    "gpt_oss_120b": ("116.83", "5.13", ("embedding",)),
    "moonlight_16b_a3b": ("15.96", "2.24", ("embedding", "head")),
    "hy3": ("295.03", "20.7", ()),
}


def is_rounded(value: float, text: str) -> bool:
    """Whether a published number is this one, with a unit of its last digit to spare for other ways to round."""
    return abs(value - float(text)) <= 10.0 ** -len(text.partition(".")[2])


@pytest.fixture
def shape_of(trial_of):
    return lambda name: trial_of(f"model={name}").model.shape


@pytest.mark.parametrize("name", EXACT)
def test_every_parameter_on_the_hub_is_counted(shape_of, name: str) -> None:
    assert count_parameters(shape_of(name)).total == EXACT[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published(shape_of, name: str) -> None:
    total, active, without = PUBLISHED[name]
    counted = count_parameters(shape_of(name))
    assert is_rounded(counted.total / BILLION, total)
    assert is_rounded((counted.active - sum(getattr(counted, part) for part in without)) / BILLION, active)


def test_every_shipped_model_is_compared(composer) -> None:
    assert set(composer.words.groups["model"]) == set(PUBLISHED) | {"hy3_tiny"}


def test_the_parts_of_hy3(shape_of) -> None:
    """Attention 75.5 M, an expert 18.87 M, a mixture 3.719 B, a dense layer 239 M, MTP 3.75 B."""
    counted = count_parameters(shape_of("hy3"))
    assert is_rounded(counted.attention / MILLION, "75.5")
    assert is_rounded(counted.expert / MILLION, "18.87")
    assert is_rounded(counted.moe_layer / BILLION, "3.719")
    assert is_rounded(counted.dense_layer / MILLION, "239")
    assert is_rounded(counted.embedding / MILLION, "495") and counted.head == counted.embedding
    assert is_rounded(counted.mtp / BILLION, "3.75")


def test_the_hy3_that_memory_was_measured_with() -> None:
    """2 011 419 648 parameters."""
    shape = Shape(
        num_layers=12, hidden_size=2048, num_attention_heads=16, num_key_value_heads=4, head_dim=128,
        intermediate_size=6144, moe_intermediate_size=768, num_experts=32, num_experts_per_token=4,
        num_shared_experts=1, first_dense_layers=1, vocab_size=32768, qk_norm=True,
    )  # fmt: skip
    assert count_parameters(shape).total == 2_011_419_648


def test_the_layers_for_multi_token_prediction_on_the_hub(shape_of) -> None:
    """GLM-4.5-Air's files have a second embedding and head for them, and 128 balancing biases a mixture."""
    counted = count_parameters(shape_of("glm4_5_air"))
    copies = counted.embedding + counted.head
    assert counted.total + counted.mtp + copies + 46 * 128 == 110_468_824_832


def test_a_total_is_the_sum_of_its_parts(shape_of) -> None:
    for name in PUBLISHED:
        s, p = shape_of(name), count_parameters(shape_of(name))
        dense = s.first_dense_layers if s.num_experts else s.num_layers
        layers = dense * p.dense_layer + (s.num_layers - dense) * p.moe_layer
        assert p.total == p.embedding + layers + s.hidden_size + p.head
        if s.num_experts:
            assert p.moe_layer == p.attention + p.router + s.num_experts * p.expert + p.shared + 2 * s.hidden_size
        assert p.active == p.total - (s.num_layers - dense) * (s.num_experts - s.num_experts_per_token) * p.expert


def test_a_dense_model_has_no_mixture(shape_of) -> None:
    counted = count_parameters(shape_of("qwen3_8b"))
    assert (counted.moe_layer, counted.expert, counted.router, counted.shared) == (0, 0, 0, 0)
    assert counted.active == counted.total


def test_a_shared_expert_can_have_a_width_of_its_own() -> None:
    shape = Shape(num_layers=1, num_experts=4, num_experts_per_token=1, moe_intermediate_size=8, num_shared_experts=1)
    assert count_parameters(shape).shared == count_parameters(shape).expert == 3 * 64 * 8
    assert count_parameters(replace(shape, shared_expert_intermediate_size=32)).shared == 3 * 64 * 32


@pytest.mark.verl
def test_the_tiny_hy3_has_as_many_as_are_counted(shape_of) -> None:
    from hysweep.embedded import assets, build

    shape = shape_of("hy3_tiny")
    model = build.make_model(assets.RECIPE, shape.vocab_size)
    assert count_parameters(shape).total == sum(p.numel() for p in model.parameters())
