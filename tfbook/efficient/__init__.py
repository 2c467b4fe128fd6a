"""Attention for less: windows, blocks, kernels, low rank, hashing, memories and chosen keys.

Functions with the signature of :func:`tfbook.attention.attend` that form fewer than n × n weights
or none at all, and mixers that keep less than every key. Opening this room adds its functions to
:data:`tfbook.attention.VARIANTS`.

Explained in: chapters/07_efficient_attention.
"""

from tfbook.efficient.blocks import attend_bigbird, attend_blocks, attend_strided
from tfbook.efficient.hashed import (
    attend_hashed,
    collision_probability,
    hash_recall,
    hashed_mask,
    lsh_buckets,
)
from tfbook.efficient.indexed import (
    IndexedAttention,
    IndexedState,
    LightningIndexer,
    index_loss,
)
from tfbook.efficient.linear import (
    FEATURES,
    attend_linear,
    elu_features,
    relu_features,
    squared_relu_features,
    state_chunked,
    state_parallel,
    state_recurrent,
)
from tfbook.efficient.low_rank import (
    LinformerAttention,
    attend_nystrom,
    newton_inverse,
    segment_means,
)
from tfbook.efficient.memory import SegmentAttention, SegmentState, SinkCache, SinkKVState
from tfbook.efficient.patterns import (
    bigbird_layout,
    expand_layout,
    fixed_mask,
    hops_needed,
    pairs,
    reach,
    strided_mask,
    window_mask,
)
from tfbook.efficient.random_features import (
    attend_features,
    draw_projection,
    fourier_features,
    kernel_variance,
    positive_features,
)
from tfbook.efficient.selected import NativeSparseAttention, NativeSparseState, attend_chosen
from tfbook.efficient.windows import attend_dilated, attend_window, window_pairs

__all__ = [
    "bigbird_layout",
    "expand_layout",
    "fixed_mask",
    "hops_needed",
    "pairs",
    "reach",
    "strided_mask",
    "window_mask",
    "attend_dilated",
    "attend_window",
    "window_pairs",
    "attend_bigbird",
    "attend_blocks",
    "attend_strided",
    "FEATURES",
    "attend_linear",
    "elu_features",
    "relu_features",
    "squared_relu_features",
    "state_chunked",
    "state_parallel",
    "state_recurrent",
    "attend_features",
    "draw_projection",
    "fourier_features",
    "kernel_variance",
    "positive_features",
    "LinformerAttention",
    "attend_nystrom",
    "newton_inverse",
    "segment_means",
    "attend_hashed",
    "collision_probability",
    "hash_recall",
    "hashed_mask",
    "lsh_buckets",
    "SegmentAttention",
    "SegmentState",
    "SinkCache",
    "SinkKVState",
    "IndexedAttention",
    "IndexedState",
    "LightningIndexer",
    "NativeSparseAttention",
    "NativeSparseState",
    "attend_chosen",
    "index_loss",
]
