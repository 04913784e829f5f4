"""Sampling from a causal language model, several requests at a time. Torch only, no verl."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# What verl may send, by vLLM's names. `logprobs` is the server's affair: it decides what it sends back.
SAMPLING_PARAMS = ("temperature", "top_p", "top_k", "ignore_eos")


@dataclass(frozen=True)
class Request:
    """One prompt to continue. Two requests that are equal are continued alike, whoever shares their batch."""

    prompt_ids: Sequence[int]
    max_tokens: int
    seed: int
    temperature: float = 1.0  # 0: the likeliest token
    top_p: float = 1.0
    top_k: int = -1  # -1 or 0: all tokens
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids = []: nothing to continue")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens = {self.max_tokens}: must be at least 1")
        if self.temperature < 0:
            raise ValueError(f"temperature = {self.temperature}: must be at least 0; 0 is greedy")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p}: must be above 0 and at most 1; 1 keeps every token")
        if self.top_k < -1:
            raise ValueError(f"top_k = {self.top_k}: must be at least 1, or -1 to keep every token")


@dataclass
class Completion:
    """What a prompt was continued with: tokens, and the logarithm of the probability that each was drawn with."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    is_whole: bool = False  # ended by itself or at max_tokens, not interrupted


class Seeds:
    """Gives each request a seed that depends on what it asks, never on when it came.

    The requests of a group are equal. The first of them to come gets the first seed of the group, and so on: as a
    group they draw the same, whatever their order and whoever else asked in between.
    """

    def __init__(self, root: Hashable) -> None:
        self.root = root
        self._asked: Counter[Hashable] = Counter()

    def take(self, asked: Hashable) -> int:
        nth = self._asked[asked]
        self._asked[asked] += 1
        text = repr((self.root, asked, nth))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())

    def forget(self) -> None:
        """Count from the first again: what is asked from now on is another thing."""
        self._asked.clear()


@torch.inference_mode()
def generate(
    model: Any,
    requests: Sequence[Request],
    *,
    eos_ids: frozenset[int],
    pad_id: int,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """Continue each prompt until an end-of-sequence token (kept), its `max_tokens`, or an interruption."""
    ids, mask = _left_padded(requests, pad_id)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    uniforms = torch.nn.utils.rnn.pad_sequence([_uniforms(r) for r in requests], batch_first=True)
    completions = [Completion() for _ in requests]
    past = None
    for step in range(uniforms.shape[1]):
        if is_interrupted():
            break
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )
        past = output.past_key_values
        tokens, log_probs = choose(output.logits[:, -1].float(), requests, uniforms[:, step])
        for request, completion, token, log_prob in zip(
            requests, completions, tokens.tolist(), log_probs.tolist(), strict=True
        ):
            if not completion.is_whole:
                completion.token_ids.append(token)
                completion.log_probs.append(log_prob)
                ended = token in eos_ids and not request.ignore_eos
                completion.is_whole = ended or len(completion.token_ids) == request.max_tokens
        if all(c.is_whole for c in completions):
            break
        ids = tokens.unsqueeze(1)  # those that have ended run along; what they get is dropped
        mask = torch.cat([mask, mask.new_ones(len(requests), 1)], dim=1)
        positions = positions[:, -1:] + 1
    return completions


def choose(
    logits: torch.Tensor, requests: Sequence[Request], uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row of logits, and its log-probability under what it was drawn from.

    Temperature, then top-k, then top-p over what top-k has left; then the inverse of the distribution function at
    the row's number in [0, 1). The log-probability is thus of the cut and renormalised distribution, which is what
    verl asks vLLM for (`logprobs_mode=processed_logprobs`).
    """
    temperature = torch.tensor([r.temperature or 1.0 for r in requests]).unsqueeze(1)
    greedy = torch.tensor([r.temperature == 0 for r in requests])
    size = logits.shape[-1]
    top_k = torch.tensor([min(r.top_k, size) if r.top_k > 0 else size for r in requests]).unsqueeze(1)
    top_p = torch.tensor([r.top_p for r in requests], dtype=torch.float64).unsqueeze(1)

    ordered, tokens = (logits / temperature).double().sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(size) >= top_k, -torch.inf)
    probs = ordered.softmax(-1)
    # A token goes when those before it have reached top_p; the first has none before it and always stays. With
    # top_p = 1 nothing goes, whatever the rounding of the sum.
    goes = (probs.cumsum(-1) - probs >= top_p) & (top_p < 1)
    log_probs = ordered.masked_fill(goes, -torch.inf).log_softmax(-1)

    cumulated = log_probs.exp().cumsum(-1)
    rank = torch.searchsorted(cumulated, uniforms.unsqueeze(1) * cumulated[:, -1:], right=True)
    last = log_probs.isfinite().sum(-1, keepdim=True) - 1
    rank = torch.minimum(rank, last).masked_fill(greedy.unsqueeze(1), 0)
    return tokens.gather(1, rank).squeeze(1), log_probs.gather(1, rank).squeeze(1)


def _uniforms(request: Request) -> torch.Tensor:
    """A request's randomness is its own: as many numbers as it can use, drawn before it meets the others."""
    generator = torch.Generator().manual_seed(request.seed)
    return torch.rand(request.max_tokens, generator=generator, dtype=torch.float64)


def _left_padded(requests: Sequence[Request], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(r.prompt_ids) for r in requests)
    ids = torch.full((len(requests), width), pad_id)
    mask = torch.zeros((len(requests), width), dtype=torch.long)
    for row, request in enumerate(requests):
        ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
        mask[row, width - len(request.prompt_ids) :] = 1
    return ids, mask
