"""Whole models from few parts: the 2017 Transformer, BERT, GPT, T5, LLaMA, ViT.

A model is a list of layers: descriptions (``Attention``, ``FFN``, ``Layer``, ...) make a
:class:`TransformerConfig`, and :func:`build` makes the modules that they describe.

Explained in: chapters/05_architecture.
"""

from tfbook.models.architectures import (
    DecoderOnly,
    EncoderDecoder,
    EncoderOnly,
    Transformer,
    build,
    make_stack,
    shift_right,
)
from tfbook.models.attentions import Differential, Gated, Indexed, NativeSparse, Segments
from tfbook.models.config import TransformerConfig
from tfbook.models.conv_attention import ConvAttention, ConvProjection
from tfbook.models.convolutions import (
    ConformerBlock,
    ConformerLayer,
    ConformerState,
    Convolution,
    ConvolutionModule,
)
from tfbook.models.ends import Classes, MaskedToken, NextToken, Patches, Tokens
from tfbook.models.graph_mixers import Messages, Neighbours
from tfbook.models.graph_transformer import Given, GraphTransformer
from tfbook.models.layers import FFN, Attention, Layer, Norm
from tfbook.models.mixers import (
    RWKV,
    DeltaNet,
    GatedDeltaNet,
    LinearAttention,
    NoFFN,
    Retention,
    RWKVChannels,
)
from tfbook.models.mixtures import Experts, active_parameters
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
from tfbook.models.sharing import Shared, SharedLayer, share, sharing_order
from tfbook.models.spec import Part, Run, Site, Spec, fold, table
from tfbook.models.state_spaces import S4D, Mamba, Mamba2

__all__ = [
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
    "Experts",
    "active_parameters",
    "Shared",
    "SharedLayer",
    "share",
    "sharing_order",
    "RWKV",
    "DeltaNet",
    "GatedDeltaNet",
    "LinearAttention",
    "NoFFN",
    "RWKVChannels",
    "Retention",
    "Differential",
    "Gated",
    "Indexed",
    "NativeSparse",
    "Segments",
    "Messages",
    "Neighbours",
    "ConformerBlock",
    "ConformerLayer",
    "ConformerState",
    "Convolution",
    "ConvolutionModule",
    "ConvAttention",
    "ConvProjection",
    "Given",
    "GraphTransformer",
    "S4D",
    "Mamba",
    "Mamba2",
]
