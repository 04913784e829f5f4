"""Build the tiny Hy3, its tokenizer and its task: `python -m hysweep.embedded.build`.

Offline, the same bytes each time on one machine, a few seconds. Safe to run twice at once and to kill: everything is
made in a folder of its own beside the final one and put there by one rename.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from hysweep.embedded import assets
from hysweep.embedded.assets import Recipe

if TYPE_CHECKING:
    from transformers import HYV3ForCausalLM, PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"
SPECIAL_TOKENS = (PAD, EOS, "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}<eos>"
    "{% else %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# The ways to answer "copy xy=" that the model is taught.
HABITS: dict[str, Callable[[int, int], str]] = {
    "right": lambda x, y: f"{x}{y}",
    "shrug": lambda x, y: "?",
    "spaced": lambda x, y: f"{x} {y}",
    "ramble": lambda x, y: f"{x}{y}{x}{y}",
}
PAIRS = [(x, y) for x in range(10) for y in range(10) if x != y]

IGNORED = -100  # the label of a token that is not learned from

Say = Callable[[str], None]


def build(recipe: Recipe = assets.RECIPE, say: Say = print) -> Path:
    """Build what is not built yet; return the folder."""
    final = assets.cache_root() / "embedded" / assets.content_key(recipe)
    final.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(final.with_name(f"{final.name}.lock")):
        if is_complete(final):
            say(f"the tiny Hy3 is built: {final}")
            return final
        for left in final.parent.glob(f"{_staging_prefix(final)}*"):  # by a build that was killed
            shutil.rmtree(left, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=_staging_prefix(final), dir=final.parent))
        try:
            _make(recipe, staging, say)
            staging.chmod(0o755)
            shutil.rmtree(final, ignore_errors=True)  # a folder that somebody took parts out of
            staging.rename(final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return final


def is_complete(folder: Path) -> bool:
    return all((folder / part).is_file() for part in assets.PARTS)


def _staging_prefix(final: Path) -> str:
    return f".{final.name}-"


def _make(recipe: Recipe, folder: Path, say: Say) -> None:
    started = time.monotonic()
    say("building the tiny Hy3 (once): importing torch and transformers")
    with _one_thread():
        tokenizer = make_tokenizer()
        model = make_model(recipe, len(tokenizer))
        size = sum(p.numel() for p in model.parameters())
        say(f"  {size:,} parameters; {recipe.warm_start_steps} steps of warm start")
        warm_start(model, tokenizer, recipe)
        tokenizer.save_pretrained(folder / "model")
        model.save_pretrained(folder / "model")
        write_task(recipe, folder)
    say(f"  built in {time.monotonic() - started:.0f} s: {folder.parent / assets.content_key(recipe)}")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Two threads make a model this small several times slower than one."""
    import torch
    from transformers.utils import logging

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        logging.enable_progress_bar()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and the special ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, model_max_length=512)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(recipe: Recipe, vocab_size: int) -> HYV3ForCausalLM:
    """A Hy3 with random weights."""
    import torch
    from transformers import GenerationConfig, HYV3Config, HYV3ForCausalLM

    pad, eos = SPECIAL_TOKENS.index(PAD), SPECIAL_TOKENS.index(EOS)
    config = HYV3Config(
        # as many logits as tokens: an inference engine masks the ones that have no token, a trainer does not
        vocab_size=vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_hidden_layers,
        num_attention_heads=recipe.num_attention_heads,
        num_key_value_heads=recipe.num_key_value_heads,
        head_dim=recipe.head_dim,
        num_experts=recipe.num_experts,
        num_experts_per_tok=recipe.num_experts_per_tok,
        num_shared_experts=1,
        moe_intermediate_size=recipe.moe_intermediate_size,
        max_position_embeddings=recipe.max_position_embeddings,
        initializer_range=recipe.initializer_range,
        router_scaling_factor=1.0,
        tie_word_embeddings=False,
        pad_token_id=pad,
        eos_token_id=eos,
        bos_token_id=None,
        # The same things under the names of the published config.json, which Megatron-Bridge and vLLM read.
        expert_hidden_dim=recipe.moe_intermediate_size,
        first_k_dense_replace=1,
        route_norm=True,
        qk_norm=True,
        moe_router_use_sigmoid=True,
        moe_router_enable_expert_bias=True,
        num_nextn_predict_layers=0,
    )
    torch.manual_seed(recipe.seed)
    model = HYV3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad, do_sample=True)
    return model


def warm_start(model: HYV3ForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
    """Teach the habits by next-token prediction, each as often as its weight says."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rng = random.Random(recipe.seed)
    names, weights = zip(*recipe.habits, strict=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.warm_start_lr)
    model.train()
    for _ in range(recipe.warm_start_steps):
        rows, labels = [], []
        for x, y in rng.choices(PAIRS, k=recipe.warm_start_batch):
            answer = HABITS[rng.choices(names, weights)[0]](x, y)
            prompt, response = encode(tokenizer, x, y, answer)
            rows.append(torch.tensor(prompt + response))
            labels.append(torch.tensor([IGNORED] * len(prompt) + response))
        # padded on the right, where a causal model cannot see it from the left, so that no mask is needed
        loss = model(
            input_ids=pad_sequence(rows, batch_first=True),
            labels=pad_sequence(labels, batch_first=True, padding_value=IGNORED),
        ).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def encode(tokenizer: PreTrainedTokenizerFast, x: int, y: int, answer: str) -> tuple[list[int], list[int]]:
    """The tokens of a prompt and of an answer to it."""
    prompt = tokenizer.apply_chat_template(_messages(x, y), add_generation_prompt=True, tokenize=False)
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer + EOS)]
    return tokens[0], tokens[1]


def write_task(recipe: Recipe, folder: Path) -> None:
    """verl's five columns. Training sees the prompts many times in a shuffled order, validation each once."""
    import pandas

    rng = random.Random(recipe.seed)
    train = PAIRS * -(-recipe.train_rows // len(PAIRS))
    for split, pairs in (("train", train[: recipe.train_rows]), ("val", list(PAIRS))):
        rng.shuffle(pairs)
        rows = [_row(recipe, split, index, x, y) for index, (x, y) in enumerate(pairs)]
        pandas.DataFrame(rows).to_parquet(folder / f"{split}.parquet")


def _row(recipe: Recipe, split: str, index: int, x: int, y: int) -> dict[str, Any]:
    return {
        "data_source": recipe.data_source,
        "prompt": _messages(x, y),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": HABITS["right"](x, y)},
        "extra_info": {"split": split, "index": index},
    }


def _messages(x: int, y: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"copy {x}{y}="}]


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: it reads it then
    build()


if __name__ == "__main__":
    main()
