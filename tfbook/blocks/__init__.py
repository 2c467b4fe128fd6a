"""What a model is made of besides attention: norms, feed-forward nets, experts, blocks, embeddings.

These are the modules that compute; what describes them in a configuration, prices them and builds
a whole model stands in :mod:`tfbook.models`.

Explained in: chapters/05_architecture and chapters/08_architectural_variants.
"""

from tfbook.blocks.blocks import Block, SharedBias, Stack, check_parallel
from tfbook.blocks.depth import (
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
from tfbook.blocks.embeddings import Entered, PatchEmbedding, TokenEmbedding
from tfbook.blocks.experts import (
    MixtureOfExperts,
    Records,
    RoutingLosses,
    mix_experts,
    mix_experts_dense,
    routing_losses,
    update_biases,
)
from tfbook.blocks.feed_forward import (
    ACTIVATIONS,
    FEED_FORWARDS,
    GATES,
    FeedForward,
    feed_forward_parameters,
    from_conv1d,
    to_conv1d,
)
from tfbook.blocks.heads import LanguageHead, MaskedHead
from tfbook.blocks.initial import SCHEMES, initialise
from tfbook.blocks.norms import NORMS, LayerNorm, RMSNorm, layer_norm, make_norm, rms_norm
from tfbook.blocks.packed import (
    GROUPS,
    GroupedWeight,
    PackedWeight,
    RowWeight,
    can_join,
    join_rows,
    set_weight,
)
from tfbook.blocks.residual import PLACES, Residual
from tfbook.blocks.routing import (
    ROUTERS,
    Router,
    Routing,
    check_router,
    load_balancing_loss,
    route,
    router_z_loss,
)
from tfbook.blocks.states import BlockState, ModelState, Trace
from tfbook.blocks.stepping import Step, Steps
from tfbook.blocks.streams import ReversibleBlock, ReversibleStack

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
    "PLACES",
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
    "check_parallel",
    "SharedBias",
    "Stack",
    "Entered",
    "PatchEmbedding",
    "TokenEmbedding",
    "LanguageHead",
    "MaskedHead",
    "SCHEMES",
    "initialise",
    "ROUTERS",
    "check_router",
    "Router",
    "Routing",
    "load_balancing_loss",
    "route",
    "router_z_loss",
    "MixtureOfExperts",
    "Records",
    "RoutingLosses",
    "mix_experts",
    "mix_experts_dense",
    "routing_losses",
    "update_biases",
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
    "ReversibleBlock",
    "ReversibleStack",
    "Step",
    "Steps",
]
