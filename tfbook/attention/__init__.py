"""Attention: as a function, as a module with heads, and with a memory of what it has read.

Everything that mixes rows by content is a function
``attend(q, k, v, *, mask, bias, causal, scale, return_weights, return_lse)`` with queries q
(..., n, d_q), keys k (..., m, d_k) and values v (..., m, d_v). Leading dimensions broadcast, a mask
is boolean with True = allowed, ``causal`` is aligned to the last key, and a query that may see no
key gets zeros (and gives zero gradient). Float16 and bfloat16 inputs are computed in float32.

Explained in: chapters/02_attention and chapters/03_multi_head.
"""

from tfbook.attention.caches import (
    Cache,
    DynamicCache,
    SlidingCache,
    SlidingKVState,
    StaticCache,
    StaticKVState,
    make_empty,
)
from tfbook.attention.differential import DifferentialAttention, first_lambda
from tfbook.attention.exact import attend, attend_sdpa, attend_topk, attention_with, merge_partials
from tfbook.attention.explicit import attend_explicit, scores_of
from tfbook.attention.gated import GatedAttention, SinkAttention, attend_plus_one, attend_sink
from tfbook.attention.head_surgery import (
    SomeHeads,
    Weights,
    fill,
    keep_heads,
    kept_groups,
    pack_torch,
    pick_rows,
    unpack_torch,
)
from tfbook.attention.heads import HeadsTogether, group_heads, merge_heads, split_heads
from tfbook.attention.latent import LatentAttention, LatentState
from tfbook.attention.lookup import hard_lookup, soft_lookup
from tfbook.attention.masks import (
    band_mask,
    block_mask,
    causal_mask,
    combine_masks,
    document_mask,
    padding_mask,
    to_additive,
    to_boolean,
)
from tfbook.attention.multihead import MultiHeadAttention
from tfbook.attention.registry import PROPERTIES, VARIANTS, Variant, register
from tfbook.attention.scores import (
    additive_scores,
    at_least_float32,
    bilinear_scores,
    dot_scores,
    log_sum_exp,
    masked_scores,
    masked_softmax,
    mix,
    multiply_shared,
    restrict,
    scaled_dot_scores,
    softmax_jacobian,
)
from tfbook.attention.states import KVState, join_key_masks, read_mask, with_head_axis
from tfbook.attention.taps import Tap
from tfbook.attention.tiled import attend_online, attend_rows

__all__ = [
    "causal_mask",
    "band_mask",
    "padding_mask",
    "document_mask",
    "block_mask",
    "combine_masks",
    "to_additive",
    "to_boolean",
    "dot_scores",
    "scaled_dot_scores",
    "bilinear_scores",
    "additive_scores",
    "restrict",
    "masked_scores",
    "masked_softmax",
    "log_sum_exp",
    "mix",
    "multiply_shared",
    "softmax_jacobian",
    "at_least_float32",
    "attend_rows",
    "attend_online",
    "PROPERTIES",
    "Variant",
    "VARIANTS",
    "register",
    "attend",
    "attend_sdpa",
    "attend_topk",
    "attention_with",
    "merge_partials",
    "hard_lookup",
    "soft_lookup",
    "Tap",
    "attend_explicit",
    "scores_of",
    "HeadsTogether",
    "KVState",
    "join_key_masks",
    "read_mask",
    "with_head_axis",
    "Cache",
    "DynamicCache",
    "SlidingCache",
    "SlidingKVState",
    "StaticCache",
    "StaticKVState",
    "make_empty",
    "SomeHeads",
    "Weights",
    "fill",
    "keep_heads",
    "kept_groups",
    "pack_torch",
    "pick_rows",
    "unpack_torch",
    "group_heads",
    "merge_heads",
    "split_heads",
    "MultiHeadAttention",
    "LatentAttention",
    "LatentState",
    "DifferentialAttention",
    "first_lambda",
    "GatedAttention",
    "SinkAttention",
    "attend_plus_one",
    "attend_sink",
]
