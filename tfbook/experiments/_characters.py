"""The transformer of characters that several experiments train.

Explained in: chapters/13_language_deeper, section "Predicting the next character".
"""

from torch import nn

from tfbook.models import FFN, Attention, Layer, Norm, Rotary, Tokens, TransformerConfig, build

__all__ = ["HEADS", "LAYERS", "begun_as_identity"]

LAYERS, HEADS = 4, 4


def begun_as_identity(
    vocab_size: int,
    d_model: int,
    d_ff: int,
    *,
    dropout: float,
    max_len: int | None = None,
    causal: bool = True,
) -> nn.Module:
    """Make our transformer with fresh weights, of which each block begins as the identity.

    What a sublayer writes into the residual stream is 0 at first, and scores of normalised queries
    and keys are half as large again as 1/√d_head makes them. With `causal` it is a decoder, without
    an encoder.
    """
    norm = Norm("rms")
    scale = 1.5 * (d_model // HEADS) ** -0.5
    attention = Attention(HEADS, position=Rotary(), bias=False, qk_norm=norm, scale=scale)
    layer = Layer(attention, FFN(d_ff, "swiglu", bias=False), norm=norm, dropout=dropout)
    config = TransformerConfig(
        vocab_size,
        d_model,
        **{"decoder" if causal else "encoder": [layer] * LAYERS},
        embedding=Tokens(scale="sqrt(d_model)", dropout=dropout),
        max_len=max_len,
        init="gpt2",
    )
    model = build(config)
    for matrix in model.stack.parameters():
        if matrix.ndim == 2:
            nn.init.normal_(matrix, std=0.5 * matrix.shape[1] ** -0.5)
    for block in model.stack.blocks:
        nn.init.zeros_(block.mixer.out_proj.weight)
        nn.init.zeros_(block.ffn.down_proj.weight)
    return model
