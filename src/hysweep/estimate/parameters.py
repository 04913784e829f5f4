"""How many parameters a model has, and where they are.

In the formulas h is hidden_size, a a number of query heads, g of key and value heads, d the width of a head, f the
width of a feed-forward layer, E a number of experts, V the entries of the vocabulary. Biases, norms and sinks are
counted; buffers are not, such as the bias that balances a router and that no gradient moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from hysweep.schema import Shape


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a model.

    embedding    V h
    head         V h; 0 where the head is the embedding (tie_word_embeddings)
    attention    of one layer, without the layer's norms
    router       of one mixture layer: h E, and E biases where it has any; 0 in a dense model
    expert       one expert
    shared       the experts that every token visits, of one mixture layer
    dense_layer  attention, a dense feed-forward layer and two norms
    moe_layer    attention, router, every expert, the shared ones and two norms; 0 in a dense model
    mtp          all layers for multi-token prediction: they share embedding and head with the others
    total        the whole model without mtp, as models are published; its last norm (h) is in no other field
    active       what one token uses of that: of the experts only those that it visits. Embedding and head are in it, as
                 Tencent and Alibaba publish it. What DeepSeek and OpenAI publish is `active - embedding`; Moonshot for
                 Moonlight and Z.ai for GLM-4.5-Air leave out the head too.
    """

    embedding: int
    head: int
    attention: int
    router: int
    expert: int
    shared: int
    dense_layer: int
    moe_layer: int
    mtp: int
    total: int
    active: int


def count_parameters(shape: Shape) -> Parameters:
    """The count of a model of this shape: a decoder of gated feed-forward layers and root-mean-square norms."""
    s, h = shape, shape.hidden_size
    embedding = s.vocab_size * h
    head = 0 if s.tie_word_embeddings else embedding
    attention = _latent_attention(s) if s.kv_lora_rank else _grouped_attention(s)
    dense_layer = attention + _feed_forward(h, s.intermediate_size, s.mlp_bias) + 2 * h

    is_mixture = s.num_experts > 0
    router = s.num_experts * (h + s.router_bias)
    expert = _feed_forward(h, s.moe_intermediate_size, s.mlp_bias) if is_mixture else 0
    width_shared = s.shared_expert_intermediate_size or s.moe_intermediate_size
    shared = s.num_shared_experts * _feed_forward(h, width_shared, s.mlp_bias) if is_mixture else 0
    moe_layer = attention + router + s.num_experts * expert + shared + 2 * h if is_mixture else 0

    # One layer for multi-token prediction: a layer as the last one is, a projection of [embedding, state] to h before
    # it, a norm of either half, and a norm before the head.
    mtp = s.num_nextn_predict_layers * ((moe_layer or dense_layer) + 2 * h * h + 3 * h)

    num_dense = min(s.first_dense_layers, s.num_layers) if is_mixture else s.num_layers
    num_moe = s.num_layers - num_dense
    total = embedding + num_dense * dense_layer + num_moe * moe_layer + h + head
    active = total - num_moe * max(s.num_experts - s.num_experts_per_token, 0) * expert
    return Parameters(embedding, head, attention, router, expert, shared, dense_layer, moe_layer, mtp, total, active)


def _grouped_attention(s: Shape) -> int:
    """h (a + 2 g) d into queries, keys and values, a d h out of them; norms of a query and of a key head: 2 d."""
    h, a, g, d = s.hidden_size, s.num_attention_heads, s.num_key_value_heads, s.head_dim
    projections = (a + 2 * g) * d * (h + s.qkv_bias) + a * d * h + s.attention_output_bias * h
    return projections + s.qk_norm * 2 * d + s.attention_sinks * a


def _latent_attention(s: Shape) -> int:
    """Multi-head latent attention (DeepSeek's MLA).

    Queries: h rq + rq + rq a (dn + dr), or h a (dn + dr) where they are not compressed. Keys and values:
    h (rkv + dr) + rkv + rkv a (dn + dv). Out: a dv h. With rq and rkv the ranks (each with a norm), dn and dr the parts
    of a head without and with positions, dv the width of a value head.
    """
    h, a = s.hidden_size, s.num_attention_heads
    of_queries = a * (s.qk_nope_head_dim + s.qk_rope_head_dim)
    queries = s.q_lora_rank * (h + s.qkv_bias + 1 + of_queries) if s.q_lora_rank else h * of_queries
    down = (s.kv_lora_rank + s.qk_rope_head_dim) * (h + s.qkv_bias)
    up = s.kv_lora_rank * (1 + a * (s.qk_nope_head_dim + s.v_head_dim))
    return queries + down + up + a * s.v_head_dim * h + s.attention_output_bias * h


def _feed_forward(h: int, f: int, has_bias: bool) -> int:
    """Gate and up, h f each, and down, f h: 3 h f, with biases 2 f + h more."""
    return 3 * h * f + has_bias * (2 * f + h)
