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
from tfbook.models.attentions import Differential, Gated, Indexed, NativeSparse, Segments
from tfbook.models.blocks import Block, SharedBias, Stack
from tfbook.models.config import TransformerConfig
from tfbook.models.conv_attention import ConvAttention, ConvProjection
from tfbook.models.convolutions import (
    ConformerBlock,
    ConformerLayer,
    ConformerState,
    Convolution,
    ConvolutionModule,
)
from tfbook.models.depth import (
    AttentionStack,
    DeepNorm,
    HyperConnection,
    HyperStack,
    ScaledResidual,
    deep_norm,
    draw_deep_norm,
    sinkhorn,
    with_deep_norm,
    with_layer_scale,
)
from tfbook.models.embeddings import Entered, PatchEmbedding, TokenEmbedding
from tfbook.models.ends import Classes, MaskedToken, NextToken, Patches, Tokens
from tfbook.models.experts import (
    MixtureOfExperts,
    RoutingLosses,
    mix_experts,
    mix_experts_dense,
    routing_losses,
    update_biases,
)
from tfbook.models.feed_forward import (
    ACTIVATIONS,
    FEED_FORWARDS,
    GATES,
    FeedForward,
    feed_forward_parameters,
    from_conv1d,
    to_conv1d,
)
from tfbook.models.graph_mixers import Messages, Neighbours
from tfbook.models.graph_transformer import Given, GraphTransformer
from tfbook.models.heads import LanguageHead, MaskedHead
from tfbook.models.initial import SCHEMES, initialise
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
from tfbook.models.norms import NORMS, LayerNorm, RMSNorm, layer_norm, make_norm, rms_norm
from tfbook.models.packed import (
    GROUPS,
    GroupedWeight,
    PackedWeight,
    RowWeight,
    can_join,
    join_rows,
    set_weight,
)
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
from tfbook.models.routing import (
    ROUTERS,
    Router,
    Routing,
    load_balancing_loss,
    route,
    router_z_loss,
)
from tfbook.models.sharing import Shared, SharedLayer, share, sharing_order
from tfbook.models.spec import Run, Site, Spec
from tfbook.models.state_spaces import S4D, Mamba, Mamba2
from tfbook.models.states import BlockState, ModelState, Trace
from tfbook.models.streams import ReversibleBlock, ReversibleStack

__all__ = [
    "NORMS",
    "LayerNorm",
    "RMSNorm",
    "layer_norm",
    "make_norm",
    "rms_norm",
    "GROUPS",
    "GroupedWeight",
    "PackedWeight",
    "RowWeight",
    "can_join",
    "join_rows",
    "set_weight",
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
    "ROUTERS",
    "Router",
    "Routing",
    "load_balancing_loss",
    "route",
    "router_z_loss",
    "MixtureOfExperts",
    "RoutingLosses",
    "mix_experts",
    "mix_experts_dense",
    "routing_losses",
    "update_biases",
    "Experts",
    "active_parameters",
    "Shared",
    "SharedLayer",
    "share",
    "sharing_order",
    "AttentionStack",
    "DeepNorm",
    "HyperConnection",
    "HyperStack",
    "ScaledResidual",
    "deep_norm",
    "draw_deep_norm",
    "sinkhorn",
    "with_deep_norm",
    "with_layer_scale",
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
    "ReversibleBlock",
    "ReversibleStack",
]
