"""From a config to parts: which attention, which norm, which position, which first weights.

Here, and nowhere else, the words of a :class:`tfbook.models.TransformerConfig` become modules; the
parts themselves know no config.

Explained in: chapters/05_architecture, section "The whole model learns".
"""

import math
from functools import partial

from torch import Tensor, nn

from tfbook.attention import VARIANTS, MultiHeadAttention
from tfbook.models.blocks import Block, SharedBias, SharedRotation, Stack
from tfbook.models.config import SHARED, TransformerConfig
from tfbook.models.embeddings import LanguageHead, MaskedHead, PatchEmbedding
from tfbook.models.layers import FeedForward, make_norm
from tfbook.positions import (
    ALiBi,
    LearnedPositions,
    RotaryPositions,
    ShawPositions,
    SinusoidalPositions,
    T5Bias,
    TransformerXLPositions,
)

__all__ = [
    "initialise",
    "make_attention",
    "make_embed_norm",
    "make_embedding",
    "make_head",
    "make_position",
    "make_stack",
]


def make_stack(
    config: TransformerConfig,
    n_layers: int,
    position: nn.Module | None,
    *,
    causal: bool,
    cross: bool = False,
) -> Stack:
    """Make the blocks of an encoder or a decoder, and the norm behind them.

    Args:
        config: the choices.
        n_layers: how many blocks.
        position: what :func:`make_position` returned; layers share it where it is not added.
        causal: whether the blocks hide the future.
        cross: whether they look into a memory.

    Explained in: chapters/05_architecture, section "The encoder".
    """
    shared = None
    if config.position in SHARED:
        shared = (SharedRotation if config.position == "rotary" else SharedBias)(position)
    norm = partial(make_norm, config.norm, eps=config.norm_eps)
    blocks = [
        Block(
            make_attention(config, shared or _own_position(config), causal=causal),
            FeedForward(
                config.d_model,
                config.d_ff,
                kind=config.ffn,
                bias=config.ffn_bias,
                dropout=config.ffn_dropout,
            ),
            cross=make_attention(config, None, memory=True) if cross else None,
            norm=norm,
            place=config.norm_place,
            dropout=config.dropout,
        )
        for _ in range(n_layers)
    ]
    return Stack(blocks, norm(config.d_model) if config.has_final_norm else None, shared=shared)


def make_attention(
    config: TransformerConfig, position: object, *, causal: bool = False, memory: bool = False
) -> MultiHeadAttention:
    """Make the attention of a block, or with ``memory`` its cross-attention.

    Explained in: chapters/05_architecture, section "The decoder".
    """
    n_heads, n_kv_heads, d_head = config.heads
    scale = config.attention_scale
    if scale is None and config.position == "t5" and memory:
        scale = 1.0  # T5 divides by √d nowhere, with a bias or without
    return MultiHeadAttention(
        config.d_model,
        n_heads,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        d_memory=config.d_model if memory else None,
        causal=causal,
        attend=VARIANTS[config.attend].fn,
        position=position,
        bias=config.attention_bias,
        scale=scale,
        dropout=config.attention_dropout,
        window=config.window if causal else None,
        qk_norm=partial(make_norm, config.norm, eps=config.norm_eps) if config.qk_norm else None,
    )


def make_position(config: TransformerConfig, *, causal: bool) -> nn.Module | None:
    """Make the part that knows positions, None where there is none or each layer has its own.

    Explained in: chapters/05_architecture, section "From words in to words out".
    """
    n_heads, _, d_head = config.heads
    if config.position == "sinusoidal":
        return SinusoidalPositions(config.d_model)
    if config.position == "learned":
        return LearnedPositions(config.n_positions, config.d_model)
    if config.position == "rotary":
        return RotaryPositions(
            d_head,
            base=config.rope_base,
            layout=config.rope_layout,
            scaling=config.rope_scaling,
        )
    if config.position == "alibi":
        return ALiBi(n_heads)
    if config.position == "t5":
        return T5Bias(n_heads, config.n_buckets, config.max_distance, bidirectional=not causal)
    return None


def _own_position(config: TransformerConfig) -> nn.Module | None:
    """Make the position part of one layer."""
    n_heads, _, d_head = config.heads
    if config.position == "shaw":
        return ShawPositions(d_head, config.max_distance)
    if config.position == "transformer-xl":
        return TransformerXLPositions(n_heads, d_head)
    return None


def make_embedding(config: TransformerConfig) -> nn.Embedding | PatchEmbedding:
    """Make what turns tokens, or images, into rows."""
    if config.patches is not None:
        return PatchEmbedding(*config.patches, config.d_model)
    return nn.Embedding(config.vocab_size, config.d_model)


def make_embed_norm(config: TransformerConfig) -> nn.Module | None:
    """Make the norm behind the embeddings, if there is one."""
    if not config.embedding_norm:
        return None
    return make_norm(config.norm, config.d_model, eps=config.norm_eps)


def make_head(config: TransformerConfig) -> nn.Module | None:
    """Make what the model ends in, if it ends in anything but hidden states."""
    tied = config.tie_embeddings
    if config.output == "lm":
        return LanguageHead(config.d_model, config.vocab_size, tied=tied, scale=config.logit_scale)
    if config.output == "mlm":
        return MaskedHead(
            config.d_model,
            config.vocab_size,
            ffn=config.ffn,
            norm=config.norm,
            eps=config.norm_eps,
            tied=tied,
        )
    if config.output == "classes":
        return nn.Linear(config.d_model, config.n_classes)
    return None


def initialise(model: nn.Module, config: TransformerConfig) -> None:
    """Draw the weights of a model anew by the scheme that the config names; biases become 0.

    * "xavier": linear maps uniform in ±√(6 / (inputs + outputs)), tables normal with std
      1/√d_model;
    * "gpt2": normal with std 0.02, and 0.02/√(2L) for the maps that write into the residual stream,
      L layers with two of them each;
    * "bert": normal with std 0.02, cut off at two of them;
    * "t5": normal; with std 1/√inputs for linear maps, but 1/√(d_model · d_head) for queries,
      which takes the place of dividing scores by √d_head; 1 for tables of tokens.

    Norms stay as they were made, and tables of positions are normal: with std 0.02, and for the T5
    bias 1/√d_model.

    Source: [glorot2010understanding], [radford2019language], [devlin2019bert] and
    [raffel2020exploring], in this order
    Explained in: chapters/05_architecture, section "The whole model learns".
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    depth = config.n_layers if config.kind == "encoder" else config.decoder_layers
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            _SCHEMES[config.init](name.split(".")[-2:], parameter, config, depth)


# Each gets the last two words of a parameter's name, such as ["q_proj", "weight"].

TABLES = ("embed", "target_embed", "segments", "head")
POSITIONS = ("position", "target_position")


def _xavier(name: list[str], weight: Tensor, config: TransformerConfig, depth: int) -> None:
    if name[0] in TABLES and not (name[0] == "head" and config.output == "classes"):
        nn.init.normal_(weight, std=config.d_model**-0.5)
    elif name[0] in POSITIONS:
        nn.init.normal_(weight, std=0.02)
    else:
        nn.init.xavier_uniform_(weight)


def _gpt2(name: list[str], weight: Tensor, config: TransformerConfig, depth: int) -> None:
    writes = name[0] in ("out_proj", "down_proj")
    nn.init.normal_(weight, std=0.02 / math.sqrt(2 * depth) if writes else 0.02)


def _bert(name: list[str], weight: Tensor, config: TransformerConfig, depth: int) -> None:
    nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)


def _t5(name: list[str], weight: Tensor, config: TransformerConfig, depth: int) -> None:
    _, _, d_head = config.heads
    if name[0] in TABLES and not (name[0] == "head" and config.output == "classes"):
        std = 1.0
    elif name[0] in POSITIONS:
        std = config.d_model**-0.5
    elif name[0] == "q_proj":
        std = (config.d_model * d_head) ** -0.5
    else:
        std = weight.shape[1] ** -0.5
    nn.init.normal_(weight, std=std)


_SCHEMES = {"xavier": _xavier, "gpt2": _gpt2, "bert": _bert, "t5": _t5}
