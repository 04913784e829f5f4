"""A model's config.json, as published and as broken, becomes a shape or one clear error."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hysweep.compose import Composer
from hysweep.compose.hf_config import local_model, read_model
from hysweep.schema import BadInput, Shape

QWEN2 = {"model_type": "qwen2", "max_window_layers": 21, "sliding_window": 32768, "use_sliding_window": False}
QWEN3_MOE = {
    "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
    "max_position_embeddings": 40960, "mlp_only_layers": [], "num_experts": 128, "num_experts_per_tok": 8,
    "num_key_value_heads": 4, "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "attention_bias": False, "max_position_embeddings": 131072, "mlp_bias": False,
    "num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size": 128256,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "attention_bias": True, "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880,
    "intermediate_size": 2880, "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_key_value_heads": 8, "sliding_window": 128, "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "attention_bias": False, "kv_lora_rank": 512, "moe_layer_freq": 1,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "tie_word_embeddings": False, "v_head_dim": 128,
}  # fmt: skip
# What the hub has, without the keys that say nothing of a shape.
PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen2_5_0_5b": QWEN2 | {
        "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 151936,
    },
    "qwen2_5_7b": QWEN2 | {
        "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768, "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "tie_word_embeddings": False, "vocab_size": 152064,
    },
    "qwen3_8b": {
        "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36,
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "sliding_window": None,
        "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
    },
    "qwen3_30b_a3b": QWEN3_MOE | {
        "hidden_size": 2048, "intermediate_size": 6144, "max_window_layers": 48, "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_hidden_layers": 48,
    },
    "qwen3_235b_a22b": QWEN3_MOE | {
        "hidden_size": 4096, "intermediate_size": 12288, "max_window_layers": 94, "moe_intermediate_size": 1536,
        "num_attention_heads": 64, "num_hidden_layers": 94,
    },
    "deepseek_v3": DEEPSEEK_V3 | {
        "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432, "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536, "vocab_size": 129280,
    },
    "moonlight_16b_a3b": DEEPSEEK_V3 | {
        "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 11264, "max_position_embeddings": 8192,
        "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
        "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "num_nextn_predict_layers": 0,
        "q_lora_rank": None, "vocab_size": 163840,
    },
    "glm4_5_air": {
        "model_type": "glm4_moe", "attention_bias": True, "first_k_dense_replace": 1, "head_dim": 128,
        "hidden_size": 4096, "intermediate_size": 10944, "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 96,
        "num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False, "use_qk_norm": False, "vocab_size": 151552,
    },
    "llama3_1_8b": LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
    },
    "llama3_1_70b": LLAMA | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
    },
    "gpt_oss_20b": GPT_OSS | {
        "layer_types": ["sliding_attention", "full_attention"] * 12, "num_hidden_layers": 24, "num_local_experts": 32,
    },
    "gpt_oss_120b": GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128},  # the types of its layers left out
    "hy3": {
        "model_type": "hy_v3", "expert_hidden_dim": 1536, "first_k_dense_replace": 1, "head_dim": 128,
        "hidden_size": 4096, "intermediate_size": 13312, "max_position_embeddings": 131072, "num_attention_heads": 64,
        "num_experts": 192, "num_experts_per_tok": 8, "num_hidden_layers": 80, "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1, "num_shared_experts": 1, "qk_norm": True, "tie_word_embeddings": False,
        "vocab_size": 120832,
    },
    "hy3_tiny": {  # as `save_pretrained` of transformers 5.9 writes it
        "model_type": "hy_v3", "attention_bias": False, "expert_hidden_dim": 64, "first_k_dense_replace": 1,
        "head_dim": 32, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 512, "mlp_bias": False,
        "mlp_layer_types": ["dense", "sparse"], "moe_intermediate_size": 64, "num_attention_heads": 4,
        "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "num_nextn_predict_layers": 0, "num_shared_experts": 1, "qk_norm": True, "tie_word_embeddings": False,
        "vocab_size": 262,
    },
}  # fmt: skip
DENSE = PUBLISHED["qwen3_8b"]
MIXTURE = PUBLISHED["qwen3_30b_a3b"]


def write(directory: Path, config: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    (directory / "config.json").write_bytes(text)
    return directory


def shape_of(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    return read_model(write(directory, config))["shape"]


def faults(directory: Path, config: Any) -> str:
    with pytest.raises(BadInput) as caught:
        read_model(write(directory, config))
    assert all(p.key == "model.path" for p in caught.value.problems)
    message = str(caught.value)
    assert len(message.splitlines()) == len(caught.value.problems), "a line a fault"
    return message


# --- what is published


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_reads_as_the_shipped_option(composer: Composer, tmp_path: Path, name: str) -> None:
    shipped = composer.compose([f"model={name}"]).trial.model
    assert read_model(write(tmp_path, PUBLISHED[name])) == {
        "model_type": shipped.model_type,
        "shape": asdict(shipped.shape),
    }


def test_every_shipped_model_is_read(composer: Composer) -> None:
    assert set(composer.words.groups["model"]) == set(PUBLISHED)


def test_every_field_of_a_shape_is_read(tmp_path: Path) -> None:
    for config in (DENSE, MIXTURE, PUBLISHED["deepseek_v3"]):
        assert set(shape_of(tmp_path, config)) == {f.name for f in fields(Shape)}


def test_what_transformers_leaves_out_is_as_its_class_has_it(tmp_path: Path) -> None:
    gemma3 = {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                        "num_hidden_layers": 34, "sliding_window": 1024},
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
    }  # fmt: skip
    found = read_model(write(tmp_path, gemma3))
    shape = Shape(**found["shape"])
    assert found["model_type"] == "gemma3"
    assert (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim) == (8, 4, 256)
    assert (shape.hidden_size, shape.num_layers, shape.vocab_size) == (2560, 34, 262208)
    assert shape.tie_word_embeddings and shape.qk_norm
    assert (shape.sliding_window, shape.num_sliding_layers) == (1024, 29), "each sixth layer sees all"
    without = {k: v for k, v in DENSE.items() if k not in ("tie_word_embeddings", "num_key_value_heads", "head_dim")}
    shape = Shape(**shape_of(tmp_path, without))
    assert (shape.tie_word_embeddings, shape.num_key_value_heads, shape.head_dim) == (False, 32, 128)


def test_the_whole_models_tie_is_that_of_a_model_of_several_media(tmp_path: Path) -> None:
    text = MIXTURE | {"model_type": "qwen3_vl_moe_text", "tie_word_embeddings": True}
    shape = shape_of(tmp_path, {"model_type": "qwen3_vl_moe", "text_config": text, "tie_word_embeddings": False})
    assert not shape["tie_word_embeddings"] and shape["qk_norm"] and shape["num_experts"] == 128


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ({}, 0),
        ({"mlp_only_layers": [0, 1]}, 2),
        ({"first_k_dense_replace": 3}, 3),
        ({"first_k_dense_replace": 100}, 48),
        ({"mlp_layer_types": ["dense"] * 4 + ["sparse"] * 44}, 4),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 47, "first_k_dense_replace": 2}, 1),
        ({"decoder_sparse_step": 48}, 47),
    ],
)
def test_dense_layers_before_the_first_mixture(tmp_path: Path, said: dict[str, Any], first: int) -> None:
    assert shape_of(tmp_path, MIXTURE | said)["first_dense_layers"] == first


@pytest.mark.parametrize("said", [{"decoder_sparse_step": 2}, {"mlp_only_layers": [5]}])
def test_a_pattern_of_mixtures_that_a_shape_cannot_say_is_told(tmp_path: Path, said: dict[str, Any]) -> None:
    assert next(iter(said)) in faults(tmp_path, MIXTURE | said)
    assert "first_dense_layers" not in read_model(tmp_path, {"first_dense_layers"})["shape"]


def test_a_shared_expert_of_a_width_of_its_own(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, MIXTURE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632})
    assert (shape["num_shared_experts"], shape["shared_expert_intermediate_size"]) == (1, 5632)
    assert (shape["qkv_bias"], shape["attention_output_bias"]) == (True, False)


def test_an_unknown_architecture_is_read_by_the_common_names(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, DENSE | {"model_type": "brand_new", "attention_bias": True, "sliding_window": 512,
                                        "use_sliding_window": True})  # fmt: skip
    assert (shape["num_layers"], shape["qkv_bias"], shape["attention_output_bias"]) == (36, True, True)
    assert shape["num_sliding_layers"] == 0, "of 36 layers those after max_window_layers"


# --- what is broken


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
                                 "vocab_size", "max_position_embeddings", "model_type"])  # fmt: skip
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    message = faults(tmp_path, {k: v for k, v in DENSE.items() if k != key})
    assert f"has no {key}" in message and "give model." in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "cannot be read"),
        (b'{"num_hidden_layers": 3', "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[1, 2]", "holds no object"),
        (b"null", "holds no object"),
        (b"[" * 200_000, "cannot be read"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b" " * (16 * 2**20 + 1), "more than"),
    ],
    ids=("empty", "torn", "no text", "list", "null", "deep", "long number", "large"),
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, text: bytes, says: str) -> None:
    message = faults(tmp_path, text)
    assert says in message and len(message) < 500


@pytest.mark.parametrize(
    "said",
    [{"hidden_size": 10**30}, {"hidden_size": -4}, {"hidden_size": 0}, {"hidden_size": "4096"}, {"hidden_size": True},
     {"hidden_size": 4096.0}, {"hidden_size": float("nan")}, {"hidden_size": []}, {"num_attention_heads": 0},
     {"tie_word_embeddings": 1}, {"tie_word_embeddings": "no"}, {"text_config": [1]}, {"model_type": 3},
     {"mlp_layer_types": "dense", "num_experts": 4}, {"layer_types": [1], "sliding_window": 3},
     {"mlp_layer_types": ["dense"], "num_experts": 4, "num_experts_per_tok": 2}],
    ids=str,
)  # fmt: skip
def test_a_value_that_cannot_be_is_told(tmp_path: Path, said: dict[str, Any]) -> None:
    message = faults(tmp_path, DENSE | said)
    assert next(iter(said)) in message and len(message) < 800


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
TIMES = count(10**18)
KEYS = sorted(set().union(*PUBLISHED.values()) | {"text_config", "shared_expert_intermediate_size"})


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(PUBLISHED)), said=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3))
def test_any_values_make_a_shape_within_bounds_or_a_clear_error(tmp_path: Path, name: str, said: dict) -> None:
    write(tmp_path, PUBLISHED[name] | said)
    os.utime(tmp_path / "config.json", ns=(next(TIMES),) * 2)  # two of one size in a moment are two files
    try:
        shape = read_model(tmp_path)["shape"]
    except BadInput as e:
        assert all(p.key == "model.path" and "\n" not in str(p) for p in e.problems)
        return
    for f in fields(Shape):
        knob, value = f.metadata["knob"], shape[f.name]
        assert isinstance(value, bool) == (f.type == "bool")
        assert value in (True, False) if isinstance(value, bool) else knob.low <= value <= knob.high


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 600), junk=st.binary(max_size=6))
def test_a_torn_file_is_a_clear_error(tmp_path: Path, cut: int, junk: bytes) -> None:
    text = json.dumps(PUBLISHED["deepseek_v3"]).encode()
    write(tmp_path, text[: min(cut, len(text) - 1)] + junk)
    os.utime(tmp_path / "config.json", ns=(next(TIMES),) * 2)
    try:
        read_model(tmp_path)
    except BadInput as e:
        assert len(str(e)) < 3000


# --- in a composition


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model", MIXTURE)


def test_a_directory_is_described_by_its_config(composer: Composer, model: Path) -> None:
    found = composer.compose([f"model.path={model}"]).trial.model
    assert found.model_type == "qwen3_moe"
    assert asdict(found.shape) == asdict(composer.compose(["model=qwen3_30b_a3b"]).trial.model.shape)


def test_the_command_line_is_believed_before_the_file(composer: Composer, model: Path) -> None:
    base = [f"model.path={model}", "model.model_type=mine"]
    found = composer.compose([*base, "model.shape.num_layers=6", "++model.shape.vocab_size=9"]).trial.model
    assert (found.model_type, found.shape.num_layers, found.shape.vocab_size) == ("mine", 6, 9)
    assert found.shape.num_experts == 128
    found = composer.compose([*base, "model.shape={num_layers: 7}"]).trial.model
    assert (found.shape.num_layers, found.shape.num_experts) == (7, 128)
    ranged = composer.compose([f"model.path={model}", "model.shape.num_layers=8,9"])
    assert composer.point(ranged.fixed, ranged.space, {"model.shape.num_layers": 9}).model.shape.num_layers == 9


def test_what_the_command_line_says_may_be_missing_from_the_file(composer: Composer, tmp_path: Path) -> None:
    write(tmp_path / "model", {k: v for k, v in MIXTURE.items() if k != "vocab_size"})
    with pytest.raises(BadInput, match="has no vocab_size"):
        composer.compose([f"model.path={tmp_path / 'model'}"])
    found = composer.compose([f"model.path={tmp_path / 'model'}", "model.shape.vocab_size=100"]).trial.model
    assert found.shape.vocab_size == 100


def test_a_path_may_be_relative_or_in_a_home(composer: Composer, model: Path, monkeypatch, tmp_path: Path) -> None:
    assert composer.compose(["model.path=model"]).trial.model.model_type == "qwen3_moe", "the test's own directory"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert composer.compose(["model.path='~/model'"]).trial.model.model_type == "qwen3_moe"


@pytest.mark.parametrize(
    "path", ["Qwen/Qwen3-8B", "embedded:model", "/no/such/place", "", "~nobody/x", "a" * 5000, "\0"]
)
def test_what_is_no_directory_here_is_not_read(path: str) -> None:
    assert local_model(path) is None


def test_a_directory_without_a_config_and_one_named_so_are_not_read(tmp_path: Path) -> None:
    assert local_model(str(tmp_path)) is None
    (tmp_path / "config.json").mkdir()
    assert local_model(str(tmp_path)) is None


def test_models_of_a_sweep_have_each_their_shape(composer: Composer, tmp_path: Path) -> None:
    paths = [write(tmp_path / name, PUBLISHED[name]) for name in ("qwen3_8b", "llama3_1_70b")]
    swept = composer.compose([f"model.path={paths[0]},{paths[1]}"])
    layers = [composer.point(swept.fixed, swept.space, {"model.path": str(p)}).model.shape.num_layers for p in paths]
    assert layers == [36, 80]


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    assert shape_of(tmp_path, DENSE)["num_layers"] == 36
    assert shape_of(tmp_path, DENSE | {"num_hidden_layers": 4})["num_layers"] == 4


def test_a_point_costs_no_reading(composer: Composer, model: Path, monkeypatch) -> None:
    """Reading is kept by the file's time and size: a thousand points read it once."""
    swept = composer.compose([f"model.path={model}", "trainer.seed=range(0,60)"])
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("the file was read again"))
    for seed in range(60):
        assert composer.point(swept.fixed, swept.space, {"trainer.seed": seed}).model.shape.num_experts == 128
