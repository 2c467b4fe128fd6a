"""Whole models from few parts: the 2017 Transformer, BERT, GPT, T5, LLaMA, ViT.

A model is a list of layers: descriptions (``Attention``, ``FFN``, ``Layer``, ...) make a
:class:`TransformerConfig`, and :func:`build` makes the modules that they describe.

Explained in: chapters/05_architecture.
"""

from tfbook.models.account import Part, fold, table
from tfbook.models.architectures import (
    DecoderOnly,
    EncoderDecoder,
    EncoderOnly,
    Transformer,
    build,
    make_stack,
    shift_right,
)
from tfbook.models.blocks import Block, SharedBias, Stack
from tfbook.models.config import TransformerConfig
from tfbook.models.embeddings import Entered, PatchEmbedding, TokenEmbedding
from tfbook.models.ends import Classes, MaskedToken, NextToken, Patches, Tokens
from tfbook.models.feed_forward import (
    ACTIVATIONS,
    FEED_FORWARDS,
    GATES,
    FeedForward,
    feed_forward_parameters,
    from_conv1d,
    to_conv1d,
)
from tfbook.models.heads import LanguageHead, MaskedHead
from tfbook.models.initial import SCHEMES, initialise
from tfbook.models.layers import FFN, Attention, Layer, Norm
from tfbook.models.norms import NORMS, LayerNorm, RMSNorm, layer_norm, make_norm, rms_norm
from tfbook.models.placements import (
    Learned,
    LinearBias,
    Rotary,
    Shaw,
    Sinusoidal,
    T5Buckets,
    TransformerXL,
)
from tfbook.models.presets import PRESETS, PUBLISHED, Published, preset
from tfbook.models.residual import Residual
from tfbook.models.spec import Run, Site, Spec
from tfbook.models.states import BlockState, ModelState, Trace

__all__ = [
    "NORMS",
    "LayerNorm",
    "RMSNorm",
    "layer_norm",
    "make_norm",
    "rms_norm",
    "Residual",
    "ACTIVATIONS",
    "FEED_FORWARDS",
    "GATES",
    "FeedForward",
    "feed_forward_parameters",
    "from_conv1d",
    "to_conv1d",
    "BlockState",
    "ModelState",
    "Trace",
    "Block",
    "SharedBias",
    "Stack",
    "Entered",
    "PatchEmbedding",
    "TokenEmbedding",
    "LanguageHead",
    "MaskedHead",
    "SCHEMES",
    "initialise",
    "Part",
    "fold",
    "table",
    "Run",
    "Site",
    "Spec",
    "Learned",
    "LinearBias",
    "Rotary",
    "Shaw",
    "Sinusoidal",
    "T5Buckets",
    "TransformerXL",
    "FFN",
    "Attention",
    "Layer",
    "Norm",
    "Classes",
    "MaskedToken",
    "NextToken",
    "Patches",
    "Tokens",
    "TransformerConfig",
    "PRESETS",
    "PUBLISHED",
    "Published",
    "preset",
    "DecoderOnly",
    "EncoderDecoder",
    "EncoderOnly",
    "Transformer",
    "build",
    "make_stack",
    "shift_right",
]
