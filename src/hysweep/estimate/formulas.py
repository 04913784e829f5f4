"""The formulas of the estimate: bytes of one GPU, each a small function with its source.

Sizes of a layout may be Python numbers or numpy arrays alike: there is no `if` on them, and numpy is not imported.
In the formulas h is hidden_size, a query heads, g key and value heads, d the width of a head, f of a feed-forward
layer, k experts a token, E experts, V the vocabulary. bf16 takes 2 bytes, fp32 4. "Measured" are the runs A, B and C of
docs/estimate.md; mcore is Megatron-core 0.19.2, verl is 0.9.1.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hysweep.estimate.parameters import Parameters
from hysweep.schema import Shape

Number: TypeAlias = Any  # a Python number, or a numpy array of them

GIB = 2**30
MIB = 2**20

# What no formula gives. Each was measured in a job of one GPU (A, B, C), but for the last two.
OUTSIDE_TORCH = 2.8 * GIB  # CUDA context, cuBLAS and Triton in the trainer's process, in steady training: 2.82 to 2.83
OUTSIDE_TORCH_AT_START = 0.67 * GIB  # the same before the first forward pass
AFTER_FIRST_PASS = 0.28 * GIB  # what stays of the first forward and backward: .26, .29, .33; nobody knows what it is
ENGINE_ASLEEP = 1.2 * GIB  # vLLM's process while its memory is given back: 1.17
ENGINE_OVER = 0.6 * GIB  # vLLM's process above the share it was asked to keep to: .46 to .66
ENGINE_CONTEXT = 0.3 * GIB  # CUDA context of vLLM, which counts within its share: .70 less its activations
ON_THE_HOST = 1.27  # bytes of the host for a byte offloaded: 33.2 GiB for 26.2
PROCESS_ON_HOST = 2.96 * GIB  # a trainer's process that offloads nothing
# FSDP2 as it loads, of a byte of a rank's fp32 shard: what is trained passes through the host, a model that never is
# stays there in pinned memory, in pieces that are rounded up. Measured: .51; 3.13, 3.84, 3.60 (one GPU, each of two).
SHARD_PASSES_HOST = 0.5
SHARD_STAYS_ON_HOST = 3.6
# Buffers of NCCL where a job has more than one GPU, in the trainer's process and in vLLM's alike. With the context
# 5 GiB are reckoned with by hand. Measured on two GPUs: 4.1 (context 2), 4.7, 4.9, 5.1 (expert 2).
COMMUNICATION = 2.2 * GIB
# The fullest of the ranks that share the experts, over their mean, where nothing balances the router: 1.2
# to 2 by hand. With every expert on each GPU it is 1, exactly. Measured of random weights, expert 2: 1.46.
IMBALANCE = 1.3


def larger(a: Number, b: Number) -> Number:
    """The maximum, element by element where either is an array."""
    return a + (b - a) * (b > a)


def smaller(a: Number, b: Number) -> Number:
    return a + (b - a) * (b < a)


# --- parameters and what goes with each


def stage_parameters(
    counted: Parameters,
    shape: Shape,
    dense_layers: Number,
    moe_layers: Number,
    has_embedding: Number,
    has_head: Number,
    tensor: Number,
    expert: Number,
    expert_tensor: Number,
) -> tuple[Number, Number]:
    """Parameters of one GPU of a pipeline stage: those outside the experts, and those of the experts.

    Tensor parallelism splits all but the norms (2 h a layer) and the router. A head that is the embedding is a copy of
    it on the last of several stages. mcore transformer/{attention,mlp,moe}, models/gpt/gpt_model.py.
    """
    h = shape.hidden_size
    head = counted.head if counted.head else counted.embedding * (1 - has_embedding)
    ends = (has_embedding * counted.embedding + has_head * head) / tensor + has_head * h
    dense = dense_layers * ((counted.dense_layer - 2 * h) / tensor + 2 * h)
    mixture = moe_layers * ((counted.attention + counted.shared) / tensor + counted.router + 2 * h)
    experts = moe_layers * shape.num_experts * counted.expert / (expert * expert_tensor)
    return ends + dense + mixture, experts


def weights(parameters: Number) -> Number:
    """2 B: bf16. Measured, exact."""
    return 2 * parameters


def gradients(parameters: Number) -> Number:
    """4 B: verl reduces gradients in fp32, in a buffer that lives as long as the weights. Measured, exact."""
    return 4 * parameters


def optimizer(dense: Number, experts: Number, data_context: Number, expert_data: Number) -> Number:
    """12 B: an fp32 copy and Adam's two moments, shared out by the distributed optimizer.

    What lies outside the experts is shared among data x context ranks, the experts among those that hold the same ones
    (Megatron-Bridge, training/utils/theoretical_memory_utils.py). 12 B is measured, exact; so is
    sharing: two GPUs by tensor, expert, pipeline and context.
    """
    return 12 * (dense / data_context + experts / expert_data)


def checkpoint_load(optimizer_bytes: Number) -> Number:
    """8 B beside all of 18 while a checkpoint is read: 26 at one rank. Measured; sharing as the optimizer's, not."""
    return optimizer_bytes * 8 / 12


# --- activations: bytes a token of the GPU's share of a sequence


def attention_saved(s: Shape, tensor: Number) -> Number:
    """What attention keeps for the backward pass, its input aside; scores are never whole (flash or fused attention).

    Norm's output 2 h; queries and keys before their own norms 2 (a + g) d where there are any; values 2 g d, queries
    and keys with positions 2 (a + g) d, the output 2 a d with its 4 a of sums; the sum with the input 2 h. Of MLA the
    compressed and the whole ones. mcore transformer/attention.py and multi_latent_attention.py, read in source.
    """
    heads = s.num_attention_heads / tensor
    outside = (2 * s.hidden_size + 2 * s.hidden_size) / tensor
    if s.kv_lora_rank:
        head, plain, value = s.qk_nope_head_dim + s.qk_rope_head_dim, s.qk_nope_head_dim, s.v_head_dim
        compressed = 2 * (2 * s.q_lora_rank + 2 * s.kv_lora_rank + s.qk_rope_head_dim) / tensor
        return outside + compressed + 2 * heads * (3 * head + (plain + value) + 2 * value) + 4 * heads
    groups = larger(s.num_key_value_heads / tensor, 1)
    both = (heads + groups) * s.head_dim
    inner = s.qk_norm * both + groups * s.head_dim + both + heads * s.head_dim
    return outside + 2 * inner + 4 * heads


def attention_up_projected(s: Shape, tensor: Number) -> Number:
    """Of `attention_saved`, what recomputing mla_up_proj spares: queries, keys and values made of the compressed."""
    if not s.kv_lora_rank:
        return 0
    head = s.qk_nope_head_dim + s.qk_rope_head_dim
    return 2 * (s.num_attention_heads / tensor) * (3 * head + s.qk_nope_head_dim + 2 * s.v_head_dim)


def attention_forward(s: Shape, tensor: Number) -> Number:
    """The most that attention holds where nothing is kept: its norm's output and all heads, twice over."""
    heads, groups = s.num_attention_heads / tensor, larger(s.num_key_value_heads / tensor, 1)
    width = s.head_dim if not s.kv_lora_rank else s.qk_nope_head_dim + s.qk_rope_head_dim
    return (2 * s.hidden_size) / tensor + 2 * (3 * heads + 4 * groups) * width


def attention_core_kept(s: Shape, tensor: Number) -> Number:
    """What recomputing core_attn keeps beside `attention_saved`, 2 (a + g) d: the projection's output whole, from which
    queries and keys were taken, where else their copies would do. Measured: 2 (a + 2 g) d less the values' 2 g d."""
    if s.kv_lora_rank:
        return 0
    return 2 * (s.num_attention_heads / tensor + larger(s.num_key_value_heads / tensor, 1)) * s.head_dim


def dense_saved(s: Shape, tensor: Number, apart: int = 0) -> Number:
    """A gated feed-forward layer keeps its norm's output 2 h, gate and up 4 f, and their product 2 f.

    `apart` is 1 where Megatron's bias_activation_fusion is off: then the activation keeps 4 f of its own. Measured.
    """
    return (2 * s.hidden_size + gated(apart) * s.intermediate_size) / tensor


def gated(apart: int) -> int:
    """Bytes for each unit of width of a gated layer: gate and up 4, product 2, and 4 of an activation that is apart."""
    return 6 + 4 * apart


def dense_working(s: Shape, tensor: Number) -> Number:
    """Beyond what is kept: the gradient of gate and up, 4 f."""
    return 4 * s.intermediate_size / tensor


def dense_forward(s: Shape, tensor: Number) -> Number:
    """Sum, norm and output 6 h, gate and up with their product 6 f."""
    return (6 * s.hidden_size + 6 * s.intermediate_size) / tensor


def shared_width(s: Shape) -> int:
    return s.num_shared_experts * (s.shared_expert_intermediate_size or s.moe_intermediate_size)


def received(tensor: Number, expert: Number, expert_tensor: Number) -> Number:
    """Tokens that a GPU's experts see, for each of its own: tensor ranks share a token's rows, expert_tensor ranks
    gather them again, and where experts are shared out some rank gets more than its part (`IMBALANCE`)."""
    return expert_tensor / tensor * (1 + (IMBALANCE - 1) * (expert > 1))


def mixture_saved(s: Shape, tensor: Number, expert: Number, expert_tensor: Number, apart: int = 0) -> Number:
    """Norm's output 2 h, router and maps 20 E, shared experts 6 f each; of the routed tokens the experts' input 2 k h,
    gate and up 4 k f and their product 2 k f. mcore transformer/moe (experts.py, token_dispatcher.py).

    An activation that is apart (`dense_saved`) keeps 6 k f, since the product is weighted after it. Measured.
    """
    k, f = s.num_experts_per_token, s.moe_intermediate_size
    own = (2 * s.hidden_size + 20 * s.num_experts + gated(apart) * shared_width(s)) / tensor
    routed = 2 * s.hidden_size + (4 + weighted(apart)) * f / expert_tensor
    return own + received(tensor, expert, expert_tensor) * k * routed


def weighted(apart: int) -> int:
    """What an expert's activation keeps for each unit of width beside gate and up: what moe_act computes again."""
    return 2 + 6 * apart


def _copies(s: Shape, tensor: Number, expert: Number, expert_tensor: Number) -> tuple[Number, Number, Number, Number]:
    """Routed tokens (2 k h each): as they are sent and as they arrive; sorted by expert; once; and being summed up.

    A rank that is alone receives what it sent; a rank with one expert has nothing to sort. Of experts that are cut
    every rank has a part of each sum: in fp32, a copy for NCCL, and its share of the result. mcore moe/
    token_dispatcher.py, MoEAlltoAllTokenDispatcher. Measured (tensor 2): 1.0 and 0.8 % above forward and update.
    """
    once = received(tensor, expert, expert_tensor) * 2 * s.num_experts_per_token * s.hidden_size
    sent = 2 * s.num_experts_per_token * s.hidden_size / tensor + once / expert_tensor * (expert > 1)
    summed = (4 + 2 / expert_tensor) * once * (expert_tensor > 1)
    return sent, once * (s.num_experts / expert > 1), once, summed


def mixture_working(s: Shape, tensor: Number, expert: Number, expert_tensor: Number) -> Number:
    """Beyond what is kept, at the worse of two moments: the experts' outputs are put back in order (sent, received,
    output and reordered, beside the sorted ones that are kept) and summed up, or the gradients of an expert's layers
    exist (2 k h and 4 k f). The shared experts' output 2 h. Measured: 0.2 % above the peak of A and B."""
    f = s.moe_intermediate_size
    sent, ordered, once, summed = _copies(s, tensor, expert, expert_tensor)
    backward = once + received(tensor, expert, expert_tensor) * s.num_experts_per_token * 4 * f / expert_tensor
    return 2 * s.hidden_size / tensor + larger(sent + once + ordered + summed, backward)


def mixture_forward(s: Shape, tensor: Number, expert: Number, expert_tensor: Number) -> Number:
    """The most where nothing is kept: 6 h, and sent, sorted and output with gate, up and product (6 k f), or with the
    reordered, summed up. Measured: 0.1 % below the forward pass of A, B and C."""
    f = s.moe_intermediate_size
    sent, ordered, once, summed = _copies(s, tensor, expert, expert_tensor)
    inner = received(tensor, expert, expert_tensor) * s.num_experts_per_token * 6 * f / expert_tensor
    return 6 * s.hidden_size / tensor + sent + ordered + once + larger(inner, ordered + summed)


def gathered(s: Shape, tensor: Number) -> Number:
    """Tensor ranks that share a sequence put it together before a projection: 2 h, whole. 0 where there is one."""
    return 2 * s.hidden_size * (tensor > 1)


def in_flight(pipeline: Number, virtual: Number, stage: Number) -> Number:
    """Micro batches whose activations a stage keeps when it is fullest; `stage` counts from 0.

    pipeline - stage under 1F1B. Interleaved, 2 (pipeline - stage - 1) + (virtual - 1) pipeline + 1 chunks, of which
    `virtual` are a micro batch: mcore pipeline_parallel/schedules.py, get_pp_rank_microbatches.
    """
    chunks = 2 * (pipeline - stage - 1) + (virtual - 1) * pipeline + 1
    plain = pipeline - stage
    return plain + (chunks / virtual - plain) * (virtual > 1)


# --- the head


def logits_training(s: Shape, tensor: Number, with_entropy: bool) -> Number:
    """fp32 logits, and their gradient divided by the temperature: 8 V a token; an entropy bonus keeps a copy, 12 V.

    verl workers/engine/megatron/transformer_impl.py, _lm_head_logits_processor. 8 V is measured (C, exact)."""
    return (12 if with_entropy else 8) * s.vocab_size / tensor


def logits_forward(s: Shape, tensor: Number, with_entropy: bool, with_squares: bool) -> Number:
    """Log-probabilities with entropy: logits, a copy and their softmax, 3 x 4 V (measured, C, exact). Without, as a
    reference: bf16 and fp32 logits, 6 V. Sums of squared probabilities take three more beside the logits, 16 V."""
    return (16 if with_squares else 12 if with_entropy else 6) * s.vocab_size / tensor


def logits_fsdp(s: Shape) -> Number:
    """bf16 logits of transformers, scaled, softmax and product or gradients: 8 V (verl/utils/torch_functional.py and
    workers/engine/fsdp/transformer_impl.py, read in source, not measured)."""
    return 8 * s.vocab_size


SPLIT_OF_KERNEL = 9504  # verl/utils/kernel/kernels.py: entries of the vocabulary whose gradients exist at once


def fused_training(s: Shape, tensor: Number, tokens: Number) -> Number:
    """verl's fused kernel: bf16 gradients of a split of the logits, of the hidden states and of the head's weight."""
    split = smaller(s.vocab_size / tensor, SPLIT_OF_KERNEL)
    by_token = 2 * split + 2 * s.hidden_size + fused_forward(s, tensor)
    return tokens * by_token + 2 * s.vocab_size / tensor * s.hidden_size


def fused_forward(s: Shape, tensor: Number) -> Number:
    """Its forward pass, a token: three fp32 sums for each 1024 entries of the vocabulary."""
    return 12 * s.vocab_size / tensor / 1024 + 24


# --- the rollout engine (vLLM)


def engine_weights(
    counted: Parameters, s: Shape, num_moe: int, tensor: Number, data: Number, bytes_each: int
) -> Number:
    """The model on one GPU: experts are shared among tensor x data ranks, the rest among tensor ranks.

    Key and value heads are repeated where ranks are more. vLLM model_executor/layers/linear.py, fused_moe/config.py.
    """
    experts = num_moe * s.num_experts * counted.expert
    share = s.num_key_value_heads / tensor
    repeated = 0 if s.kv_lora_rank else s.num_layers * 2 * s.hidden_size * s.head_dim * (larger(share, 1) - share)
    return bytes_each * ((counted.total - experts) / tensor + repeated + experts / (tensor * data))


def cache_layer_token(s: Shape, tensor: Number, bytes_each: int) -> Number:
    """Keys and values of one token in one layer, on one GPU: 2 max(1, g / tensor) d; of MLA the compressed ones, the
    same on every rank. Measured: 24,576 B a token of 12 layers, exact."""
    if s.kv_lora_rank:
        return (s.kv_lora_rank + s.qk_rope_head_dim) * bytes_each + 0 * tensor
    return 2 * larger(s.num_key_value_heads / tensor, 1) * s.head_dim * bytes_each


def cache_sequence(s: Shape, tensor: Number, bytes_each: int, length: Number) -> Number:
    """The cache of one sequence: a layer of sliding attention keeps its window alone."""
    window = smaller(length, s.sliding_window) if s.sliding_window else length
    layer_tokens = (s.num_layers - s.num_sliding_layers) * length + s.num_sliding_layers * window
    return cache_layer_token(s, tensor, bytes_each) * layer_tokens


def engine_working(s: Shape, tensor: Number, tokens: Number, sequences: Number, ranks: Number) -> Number:
    """What vLLM sets aside beside weights and cache: one step of `tokens`, logits of `sequences`, its context.

    Measured: .70 GiB, of which .41 by the formula and .3 taken as context. Where GPUs share a replica, NCCL's buffers.
    """
    heads = (s.num_attention_heads + 2 * s.num_key_value_heads) / tensor * s.head_dim
    out = s.num_attention_heads / tensor * s.head_dim
    routed = s.num_experts_per_token * (2 * s.hidden_size + 2 * s.moe_intermediate_size / tensor)
    feed = 6 * s.intermediate_size / tensor if not s.num_experts else routed + 6 * shared_width(s) / tensor
    step = tokens * (4 * s.hidden_size + 2 * heads + 2 * out + feed)
    return step + sequences * s.vocab_size * 8 + ENGINE_CONTEXT + COMMUNICATION * (ranks > 1)


# --- FSDP2


def fsdp_sharded(parameters: int, shards: Number) -> tuple[Number, Number, Number]:
    """Weights 4 B, gradients 4 B, moments 8 B a parameter: all fp32, all shared out (verl's model_dtype fp32)."""
    share = parameters / shards
    return 4 * share, 4 * share, 8 * share


def fsdp_gathered(counted: Parameters) -> int:
    """Layers put together in bf16: the one at work and the next, and embedding and head, which stay."""
    return 2 * 2 * max(counted.dense_layer, counted.moe_layer) + 2 * (counted.embedding + counted.head)


def fsdp_reducing(counted: Parameters) -> int:
    """Gradients of the largest of them on their way: 2 B as they are made, 4 B as they are reduced."""
    return 6 * max(counted.dense_layer, counted.moe_layer, counted.head, counted.embedding)
