"""A Hy3 of any shape with random weights, a tokenizer with as many entries as it has logits, and prompts of one length.

    python benchmarks/gpu/model.py NAME DIRECTORY [--prompt TOKENS]... [--no-weights]

The weights are made on the GPU where there is one. What an inference engine masks and a trainer does not (logits that
have no token) would part their probabilities: so no entry is without a token.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from hysweep.embedded.build import CHAT_TEMPLATE, EOS, PAD, SPECIAL_TOKENS

# As `model.shape` says it, so that the estimate counts what is built. `half` of B2's hidden size with more experts a
# token, and half of its weights in embedding and head: another shape.
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "num_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 512, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_token": 2,
        "vocab_size": 512, "max_position_embeddings": 4096,
    },
    "b2": {
        "num_layers": 12, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_token": 4,
        "vocab_size": 32768, "max_position_embeddings": 16384,
    },
    "wide": {
        "num_layers": 8, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 4096, "moe_intermediate_size": 512, "num_experts": 32, "num_experts_per_token": 6,
        "vocab_size": 65536, "max_position_embeddings": 16384,
    },
}  # fmt: skip
ROWS = 64
SHORT = 32  # tokens of the first rows of a ramp-<tokens>.parquet; the others are of full length


def shape_overrides(name: str) -> list[str]:
    return [
        "model=hy3",
        *(f"model.shape.{k}={v}" for k, v in SHAPES[name].items()),
        "model.shape.num_nextn_predict_layers=0",
    ]


def config_of(name: str) -> Any:
    """transformers' configuration, with the names of the published config.json that Megatron-Bridge and vLLM read."""
    from transformers import HYV3Config

    s = SHAPES[name]
    return HYV3Config(
        architectures=["HYV3ForCausalLM"],
        dtype="bfloat16",
        vocab_size=s["vocab_size"],
        hidden_size=s["hidden_size"],
        intermediate_size=s["intermediate_size"],
        num_hidden_layers=s["num_layers"],
        num_attention_heads=s["num_attention_heads"],
        num_key_value_heads=s["num_key_value_heads"],
        head_dim=s["head_dim"],
        max_position_embeddings=s["max_position_embeddings"],
        initializer_range=0.02,
        num_experts=s["num_experts"],
        num_experts_per_tok=s["num_experts_per_token"],
        num_shared_experts=1,
        moe_intermediate_size=s["moe_intermediate_size"],
        router_scaling_factor=2.826,
        pad_token_id=SPECIAL_TOKENS.index(PAD),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
        bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 11158840.0},
        first_k_dense_replace=1,
        expert_hidden_dim=s["moe_intermediate_size"],
        qk_norm=True,
        route_norm=True,
        moe_router_use_sigmoid=True,
        moe_router_enable_expert_bias=True,
        num_nextn_predict_layers=0,
        enable_lm_head_fp32=True,
        enable_moe_fp32_combine=True,
    )


def write_tokenizer(directory: Path, entries: int) -> Any:
    """One token a byte, the special ones, and names for the rest of the entries."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"<{i}>" for i in range(entries - len(words))]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    assert len(fast) == entries
    return fast


def write_prompts(file: Path, tokenizer: Any, lengths: list[int]) -> None:
    """verl's five columns; a row's prompt is exactly as long as asked for, in tokens."""
    import pandas

    rng = random.Random(1)
    frame = len(
        tokenizer.apply_chat_template([{"role": "user", "content": ""}], add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
    )
    rows = []
    for i, length in enumerate(lengths):
        text = "".join(rng.choice("abcdefghij 0123456789") for _ in range(length - frame))
        row = {"data_source": "digits", "prompt": [{"role": "user", "content": text}], "ability": "math"}
        rows.append(
            row | {"reward_model": {"style": "rule", "ground_truth": "7"}, "extra_info": {"index": i, "split": "train"}}
        )
    pandas.DataFrame(rows).to_parquet(file)


def write_weights(directory: Path, config: Any) -> int:
    """Random bf16 weights, and biases of experts that move some tokens; returns how many parameters there are."""
    import torch
    from transformers import HYV3ForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = HYV3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = model.to(torch.bfloat16)
    for name, bias in model.named_buffers():
        if "e_score_correction_bias" in name:
            bias.data = torch.randn_like(bias.float()) * 0.05
    model.save_pretrained(directory, max_shard_size="10GB")
    return sum(p.numel() for p in model.parameters())


def build(name: str, directory: Path, prompts: list[int], with_weights: bool = True) -> None:
    """The model's directory, with its files prompts-<tokens>.parquet and ramp-<tokens>.parquet for each length."""
    directory.mkdir(parents=True, exist_ok=True)
    config = config_of(name)
    config.save_pretrained(directory)
    tokenizer = write_tokenizer(directory, config.vocab_size)
    for length in prompts:
        write_prompts(directory / f"prompts-{length}.parquet", tokenizer, [length] * ROWS)
        write_prompts(
            directory / f"ramp-{length}.parquet", tokenizer, [SHORT] * (ROWS // 4) + [length] * (3 * ROWS // 4)
        )
    if with_weights and not (directory / "model.safetensors").exists():
        print(f"{name}: {write_weights(directory, config):,} parameters in {directory}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--prompt", type=int, action="append", default=[], help="length of a file of prompts, in tokens"
    )
    parser.add_argument("--no-weights", action="store_true", help="what a check or an estimate reads, nothing more")
    given = parser.parse_args()
    build(given.name, given.directory, given.prompt or [960], not given.no_weights)


if __name__ == "__main__":
    main()
