"""Whole models from few parts: the 2017 Transformer, BERT, GPT, T5, LLaMA, ViT.

Explained in: chapters/05_architecture.
"""

from tfbook.models.account import Part, walk
from tfbook.models.architectures import (
    DecoderOnly,
    EncoderDecoder,
    EncoderOnly,
    Transformer,
    build,
    shift_right,
)
from tfbook.models.assembly import (
    initialise,
    make_attention,
    make_embed_norm,
    make_embedding,
    make_head,
    make_position,
    make_stack,
)
from tfbook.models.blocks import (
    Block,
    BlockState,
    ModelState,
    SharedBias,
    SharedRotation,
    Stack,
    Trace,
)
from tfbook.models.config import Patches, TransformerConfig
from tfbook.models.embeddings import LanguageHead, MaskedHead, PatchEmbedding
from tfbook.models.layers import (
    ACTIVATIONS,
    FEED_FORWARDS,
    GATES,
    NORMS,
    FeedForward,
    LayerNorm,
    Residual,
    RMSNorm,
    feed_forward_parameters,
    from_conv1d,
    layer_norm,
    make_norm,
    rms_norm,
    to_conv1d,
)
from tfbook.models.presets import PRESETS, PUBLISHED, Published, preset

__all__ = [
    "ACTIVATIONS",
    "FEED_FORWARDS",
    "GATES",
    "NORMS",
    "FeedForward",
    "LayerNorm",
    "RMSNorm",
    "Residual",
    "feed_forward_parameters",
    "from_conv1d",
    "layer_norm",
    "make_norm",
    "rms_norm",
    "to_conv1d",
    "Block",
    "BlockState",
    "ModelState",
    "SharedBias",
    "SharedRotation",
    "Stack",
    "Trace",
    "LanguageHead",
    "MaskedHead",
    "PatchEmbedding",
    "Part",
    "walk",
    "Patches",
    "TransformerConfig",
    "PRESETS",
    "PUBLISHED",
    "Published",
    "preset",
    "initialise",
    "make_attention",
    "make_embed_norm",
    "make_embedding",
    "make_head",
    "make_position",
    "make_stack",
    "DecoderOnly",
    "EncoderDecoder",
    "EncoderOnly",
    "Transformer",
    "build",
    "shift_right",
]
