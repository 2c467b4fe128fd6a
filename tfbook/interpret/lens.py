"""What a model would say if it ended earlier, and who wrote the logit that it gives.

Every layer of a pre-norm model adds to one stream, and the last norm and the head read it. So they
can read it after any layer (the lens), and what they read can be taken apart into what was added
(attribution). Both need the stream to be a sum: a norm behind the sum rescales what was there.

Explained in: chapters/10_interpretability, section "Reading the stream".
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_float,
    check_list,
    check_number,
    check_same,
    check_shape,
    check_token_mask,
)
from tfbook.attention import MultiHeadAttention, split_heads
from tfbook.blocks import Block, LayerNorm, RMSNorm, Stack
from tfbook.interpret.capturing import capture
from tfbook.models import DecoderOnly
from tfbook.training import evaluating

__all__ = [
    "LogitParts",
    "TunedLens",
    "direct_logits",
    "fit_tuned_lens",
    "lens_divergence",
    "logit_lens",
    "unembed",
]

SUMS = ("pre", "inside", "both", "none")  # places of a norm that leave the stream a sum


@torch.no_grad()
def unembed(model: DecoderOnly, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N V"]:
    """Read rows of the stream as the end of the model does: the norm behind the layers, the head.

    Args:
        model: a decoder.
        x: rows of the stream, (B, N, d_model).

    Returns:
        Logits (B, N, V).

    Raises:
        TypeError: if model is no decoder, or x of another dtype than its weights.
        ValueError: if x has another shape.

    Explained in: chapters/10_interpretability, section "Reading the stream".
    """
    check_decoder(model)
    check_float("x", x)
    if x.ndim != 3 or x.shape[-1] != model.config.d_model:
        wanted = f"(B, N, {model.config.d_model})"
        raise ValueError(f"x must have shape {wanted}, got {tuple(x.shape)}")
    check_same(**{"x": x, "the weights": model.embed.weight})
    return model.head(model.stack.finish(x), model.embed.weight)


def logit_lens(
    model: DecoderOnly,
    tokens: Int[Tensor, "B N"],
    *,
    mask: Bool[Tensor, "B N"] | None = None,
    layers: Sequence[int] | None = None,
) -> Float[Tensor, "L B N V"]:
    """Read the stream after each layer as if it were the last: logits_l = head(norm(x_l)).

    x_0 are the embeddings and x_l is what l layers have made of them, so with all layers the result
    has one entry more than the model has layers, and the last one is what the model says.

    Args:
        model: a decoder with pre-norm layers.
        tokens: (B, N).
        mask: True = token, (B, N).
        layers: after how many layers to look, each from 0 to n_layers; all when omitted. A large
            vocabulary makes large logits: L · B · N · V numbers.

    Returns:
        Logits, (L, B, N, V).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit, or a post-norm model.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> logits = logit_lens(model, tokens)
        >>> logits.shape, torch.equal(logits[-1], model(tokens)[0])
        (torch.Size([3, 1, 5, 11]), True)

    Source: [nostalgebraist2020logit]
    Explained in: chapters/10_interpretability, section "Reading the stream".
    """
    check_summed(model)
    chosen = _check_layers(layers, len(model.stack.blocks))
    with evaluating(model):
        states = model.hidden_states(tokens, mask=mask)  # L + 1 of (B, N, d_model)
        return torch.stack([unembed(model, states[each]) for each in chosen])


def lens_divergence(
    logits: Float[Tensor, "L B N V"], mask: Bool[Tensor, "B N"] | None = None
) -> Float[Tensor, " L"]:
    """Return how far each layer's word is from the last one's: KL(p_last ‖ p_l), in nats.

    The mean over tokens of Σ_v p_last(v) (ln p_last(v) − ln p_l(v)); the last is 0.

    Args:
        logits: of a lens, (L, B, N, V), the model's own last.
        mask: which places count, (B, N); all when omitted.

    Returns:
        One number for each layer, (L,).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or a mask without a token.

    Example:
        >>> lens_divergence(torch.tensor([[[[0.0, 0.0]]], [[[50.0, 0.0]]]]))
        tensor([0.6931, 0.0000])

    Source: [belrose2023eliciting]
    Explained in: chapters/10_interpretability, section "Reading the stream".
    """
    check_float("logits", logits)
    if logits.ndim != 4 or 0 in logits.shape:
        raise ValueError(f"logits must have shape (L, B, N, V), got {tuple(logits.shape)}")
    if mask is not None:
        check_token_mask(mask, logits.shape[1:3])
        if not bool(mask.any()):
            raise ValueError("mask must have at least one token, got none")
    last = logits[-1].float().log_softmax(-1)  # (B, N, V)
    found = torch.stack([_divergence(last, each.float().log_softmax(-1)) for each in logits])
    return found.mean((1, 2)) if mask is None else found[:, mask].mean(1)


class TunedLens(nn.Module):
    """An affine map for each layer, which brings its stream to where the last one stands.

    logits_l = head(norm(x_l + A_l x_l + b_l)). A and b are 0 at first, so that it begins as the
    logit lens; :func:`fit_tuned_lens` trains them. What leaves the last layer is read as it is.

    Args:
        model: the decoder that it reads; its weights do not become part of the lens.

    Attributes:
        maps: the linear maps A_l, b_l, for after 0 … n_layers − 1 layers.

    Raises:
        TypeError: if model is no decoder.
        ValueError: if its layers are post-norm.

    Cost: n_layers · (d_model² + d_model) parameters.

    Source: [belrose2023eliciting]
    Explained in: chapters/10_interpretability, section "Reading the stream".
    """

    def __init__(self, model: DecoderOnly):
        """Make the maps, all 0."""
        super().__init__()
        check_summed(model)
        d, table = model.config.d_model, model.embed.weight
        made = {"dtype": table.dtype, "device": table.device}
        self.maps = nn.ModuleList(nn.Linear(d, d, **made) for _ in model.stack.blocks)
        for each in self.maps:
            nn.init.zeros_(each.weight)
            nn.init.zeros_(each.bias)

    def forward(self, x: Float[Tensor, "B N D"], layer: int) -> Float[Tensor, "B N D"]:
        """Return x + A x + b for the stream after so many layers.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape or a number that does not fit.
        """
        check_number("layer", layer, 0, len(self.maps), whole=True)
        check_float("x", x)
        weight = self.maps[0].weight
        check_shape("x", x, (*x.shape[:2], len(weight)), "(B, N, d_model)")
        check_same(**{"x": x, "the weights": weight})
        return x + self.maps[layer](x) if layer < len(self.maps) else x

    def logits(
        self,
        model: DecoderOnly,
        tokens: Int[Tensor, "B N"],
        *,
        mask: Bool[Tensor, "B N"] | None = None,
        layers: Sequence[int] | None = None,
    ) -> Float[Tensor, "L B N V"]:
        """Return what :func:`logit_lens` returns, through the maps; same arguments and errors."""
        _check_lens(self, model)
        chosen = _check_layers(layers, len(self.maps))
        with evaluating(model):
            states = model.hidden_states(tokens, mask=mask)
            return torch.stack([unembed(model, self(states[each], each)) for each in chosen])


def fit_tuned_lens(
    model: DecoderOnly,
    batches: Iterable[Int[Tensor, "B N"]],
    *,
    lens: TunedLens | None = None,
    lr: float = 1e-3,
) -> tuple[TunedLens, Float[Tensor, "S L"]]:
    """Train a tuned lens: after each layer it is to say what the model says at its end.

    Each batch is one step of Adam on KL(p_last ‖ p_l), the mean over tokens, for each map by
    itself. The model is not trained, and gets no gradients.

    Args:
        model: a decoder with pre-norm layers.
        batches: tokens (B, N), without padding; those of one step each.
        lens: one to train further; a new one when omitted.
        lr: the rate of Adam, at most 1.

    Returns:
        The lens, and the divergences before each step, (steps, n_layers), in nats.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit, a post-norm model, or no batch.

    Cost: one forward pass of the model a step, and for each layer a pass of the head forwards and
        backwards.

    Source: [belrose2023eliciting]
    Explained in: chapters/10_interpretability, section "Reading the stream".
    """
    check_summed(model)
    check_list("batches", batches, sized=False)
    check_number("lr", lr, high=1, above=0)
    lens = TunedLens(model) if lens is None else lens
    _check_lens(lens, model)
    weights, found = list(lens.parameters()), []
    optimizer = torch.optim.Adam(weights, lr=lr)
    for tokens in batches:
        with evaluating(model):
            states = model.hidden_states(tokens)
            last = unembed(model, states[-1]).float().log_softmax(-1)  # (B, N, V)
            with torch.enable_grad():
                found.append(
                    [_step(lens, model, i, states[i], last) for i in range(len(lens.maps))]
                )
        optimizer.step()
    if not found:
        raise ValueError("batches must hold at least one batch, got none")
    return lens, torch.tensor(found)


def _step(lens: TunedLens, model: DecoderOnly, layer: int, x: Tensor, last: Tensor) -> float:
    """Put the gradient of one map into its weights, and return the divergence."""
    read = model.head(model.stack.finish(lens(x, layer)), model.embed.weight)
    loss = _divergence(last, read.float().log_softmax(-1)).mean()
    weights = list(lens.maps[layer].parameters())
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.grad = gradient
    return float(loss.detach())


class LogitParts(NamedTuple):
    """A logit, or the difference of two, as a sum of what each part of the model wrote.

    Attributes:
        names: "embedding"; of layer 3 "3.head.0" … and "3.bias" for its attention, or "3.mixer"
            where that has no heads to tell apart; "3.ffn"; "norm" for the β of the last norm and
            "head" for the biases of the tokens.
        values: what each wrote, (P, B).
        total: the logit, or the difference, as the model gives it, (B,).

    Explained in: chapters/10_interpretability, section "The answer as a sum".
    """

    names: tuple[str, ...]
    values: Float[Tensor, "P B"]
    total: Float[Tensor, " B"]

    def of(self, name: str) -> Float[Tensor, " B"]:
        """Return what the part of this name wrote, (B,).

        Raises:
            ValueError: if there is none of that name.
        """
        if name not in self.names:
            raise ValueError(f"name must be one of {', '.join(self.names)}, got {name!r}")
        return self.values[self.names.index(name)]

    def heads(self) -> Float[Tensor, "L H B"]:
        """Return what the heads wrote, (layers, heads, B).

        Raises:
            ValueError: if layers differ in how many heads they have.
        """
        found = {}
        for name, value in zip(self.names, self.values, strict=True):
            layer, *rest = name.split(".")
            if rest[:1] == ["head"]:
                found.setdefault(layer, []).append(value)
        counts = [len(each) for each in found.values()]
        if not counts or len(set(counts)) > 1:
            raise ValueError(f"layers must have the same number of heads, got {counts or 'none'}")
        return torch.stack([torch.stack(each) for each in found.values()])


def direct_logits(
    model: DecoderOnly,
    tokens: Int[Tensor, "B N"],
    target: Int[Tensor, " B"],
    against: Int[Tensor, " B"] | None = None,
    *,
    place: int = -1,
    mask: Bool[Tensor, "B N"] | None = None,
) -> LogitParts:
    """Take the logit of a token, or its lead over another, apart into what each part wrote.

    The last row of the stream is a sum, x = Σ_p part_p. With the scale of the last norm held at
    what x gives it, the logit is linear in x:

    logit_t = Σ_p (part_p − mean(part_p)) ⊙ γ / σ(x) · u_t + β · u_t

    with u_t the row of token t in the head; an RMS norm takes no mean off. What a part does
    through later layers is not in its number.

    Args:
        model: a decoder with pre-norm layers.
        tokens: (B, N).
        target: the token whose logit it is, (B,).
        against: the token whose logit is taken off, (B,); none when omitted.
        place: the row that is asked, counted from the end if negative.
        mask: True = token, (B, N).

    Returns:
        The parts, which sum to the logit up to rounding.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit, a post-norm model, or one that uses
            a layer several times.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))]))
        >>> parts = direct_logits(model, torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([2]))
        >>> parts.names
        ('embedding', '0.head.0', '0.head.1', '0.bias', '0.ffn', 'norm', 'head')
        >>> torch.allclose(parts.values.sum(0), parts.total, atol=1e-5)
        True

    Source: [elhage2021mathematical]
    Explained in: chapters/10_interpretability, section "The answer as a sum".
    """
    check_summed(model)
    blocks = list(model.stack.blocks)
    headed = [f"stack.blocks.{i}.mixer.z" for i in attentions(model)]  # and none is used twice
    with evaluating(model), capture(model, "stack.blocks.*.resid_*", *headed) as seen:
        logits = model(tokens, mask=mask)[0]  # (B, N, V)
        batch, n, vocab_size = logits.shape
        check_number("place", place, -n, n - 1, whole=True)
        _check_tokens("target", target, batch, vocab_size)
        if against is not None:
            _check_tokens("against", against, batch, vocab_size)
        names, parts = ["embedding"], [seen["stack.blocks.0.resid_pre"][:, place]]
        for i, block in enumerate(blocks):
            for name, rows in _written(i, block, seen, place):
                names.append(f"{i}.{name}")
                parts.append(rows)
        last = seen[f"stack.blocks.{len(blocks) - 1}.resid_post"][:, place]  # (B, d_model)
        values = torch.stack(parts).float() if last.itemsize < 4 else torch.stack(parts)
        read, shift, bias = _reader(model, last.to(values.dtype), target, against)
        values = torch.einsum("pbd,bd->pb", values, read)
        found = logits[torch.arange(batch), place].to(values.dtype)  # (B, V)
        total = _gathered(found, target, against)
    return LogitParts((*names, "norm", "head"), torch.cat([values, shift[None], bias[None]]), total)


def _written(i, block, seen, place):
    """Yield what each part of a block adds to the row, by name."""
    here = {
        name: seen[f"stack.blocks.{i}.{name}"][:, place]
        for name in ("resid_pre", "resid_mid", "resid_post")
    }
    mixer, residual = block.mixer, block.mixer_residual
    if has_heads(mixer) and _place(residual) in ("pre", "none"):
        z = seen[f"stack.blocks.{i}.mixer.z"][:, :, place]  # (B, H, d_value)
        each = torch.einsum("bhv,hdv->hbd", z, split_heads(mixer.out_proj.weight, mixer.n_heads))
        added = residual.leave(torch.zeros_like(each), each)
        yield from ((f"head.{h}", rows) for h, rows in enumerate(added))
        bias = torch.zeros_like(each[0])
        if mixer.out_proj.bias is not None:
            bias = residual.leave(bias, bias + mixer.out_proj.bias)
        yield "bias", bias
    else:  # a norm inside the branch, or no heads: what it wrote as a whole
        yield "mixer", here["resid_mid"] - here["resid_pre"]
    yield "ffn", here["resid_post"] - here["resid_mid"]


def _reader(model, last, target, against):
    """Return the direction (B, d_model) that reads the logit, and what it adds by itself."""
    head, norm = model.head, model.stack.final_norm
    table = model.embed.weight if head.tied else head.weight
    rows = _gathered(table.to(last.dtype), target, against, by_row=True)  # (B, d_model)
    rows = rows if head.scale is None else rows * head.scale
    shift = bias = rows.new_zeros(len(rows))
    if head.bias is not None:
        bias = _gathered(head.bias.to(last.dtype).expand(len(rows), -1), target, against)
    if norm is None:
        return rows, shift, bias
    read = rows * norm.weight
    if isinstance(norm, RMSNorm):
        spread = last.square().mean(-1, keepdim=True)
    else:
        shift = shift if norm.bias is None else rows @ norm.bias.to(rows.dtype)
        spread = last.var(-1, keepdim=True, correction=0)
        read = read - read.mean(-1, keepdim=True)  # as a mean is taken off each part
    return read / (spread + norm.eps).sqrt(), shift, bias


def _gathered(x, target, against, *, by_row=False):
    """Return the entry of the target in each row, or its row, less that of the other token."""
    rows = torch.arange(len(target), device=x.device)
    pick = (lambda chosen: x[chosen]) if by_row else (lambda chosen: x[rows, chosen])
    return pick(target) if against is None else pick(target) - pick(against)


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return Σ p (ln p − ln q) over the last dimension of logarithms."""
    return functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)


def has_heads(mixer: nn.Module) -> bool:
    """Return whether a mixer is multi-head attention and no variant that changes z behind it."""
    return type(mixer) is MultiHeadAttention


def attentions(model: nn.Module) -> dict[int, MultiHeadAttention]:
    """Return the multi-head attentions of a model with one stack, by the number of their layer.

    Raises:
        TypeError: if model has no stack of layers.
        ValueError: if a layer is used several times, so that its taps have one name for all.
    """
    blocks = getattr(getattr(model, "stack", None), "blocks", None)
    if not isinstance(model, nn.Module) or blocks is None:
        raise TypeError(
            "model must have one stack of layers, such as a DecoderOnly or an EncoderOnly, "
            f"got {type(model).__name__}"
        )
    used = [part for block in blocks for part in {block, getattr(block, "mixer", block)}]
    if len({*used}) < len(used):
        raise ValueError("model must have parts of its own in each layer, this one shares some")
    return {i: block.mixer for i, block in enumerate(blocks) if has_heads(_mixer(block))}


def _mixer(block: nn.Module) -> nn.Module | None:
    return getattr(block, "mixer", None)


def check_summed(model: object) -> None:
    """Raise unless a model is a decoder whose stream is a sum of what its layers write.

    Raises:
        TypeError: if it is no decoder.
        ValueError: if layers are post-norm, or no blocks of a mixer and a feed-forward part.
    """
    check_decoder(model)
    norm = model.stack.final_norm
    if norm is not None and not isinstance(norm, LayerNorm | RMSNorm):
        raise ValueError(f"the norm behind the layers must be known, got {type(norm).__name__}")
    for i, block in enumerate(model.stack.blocks):
        if not isinstance(block, Block) or block.cross is not None:
            raise ValueError(
                f"layer {i} must be a mixer and a feed-forward part, got {type(block).__name__}"
            )
        for residual in (block.mixer_residual, block.ffn_residual):
            if (place := _place(residual)) not in SUMS:
                raise ValueError(
                    "model must be pre-norm, so that the stream is a sum of what layers write; "
                    f"layer {i} has its norm at {place!r}, which rescales what was there before"
                )


def _place(residual: nn.Module) -> str:
    return getattr(getattr(residual, "inner", residual), "place", "a place unknown here")


def check_decoder(model: object) -> None:
    """Raise unless a model is a decoder with one stream.

    Raises:
        TypeError: if it is no decoder.
        ValueError: if its stack carries several streams.
    """
    if not isinstance(model, DecoderOnly):
        raise TypeError(f"model must be a DecoderOnly, got {type(model).__name__}")
    if type(model.stack) is not Stack:
        raise ValueError(f"model must have one stream, got a {type(model.stack).__name__}")


def _check_layers(layers: object, n_layers: int) -> list[int]:
    if layers is None:
        return list(range(n_layers + 1))
    check_list("layers", layers)
    for each in layers:
        check_number("an entry of layers", each, 0, n_layers, whole=True)
    if not len(layers):
        raise ValueError("layers must name at least one layer, got none")
    return list(layers)


def _check_lens(lens: object, model: object) -> None:
    check_summed(model)
    if not isinstance(lens, TunedLens):
        raise TypeError(f"lens must be a TunedLens, got {type(lens).__name__}")
    sizes = (len(lens.maps), lens.maps[0].in_features)
    wanted = (len(model.stack.blocks), model.config.d_model)
    if sizes != wanted:
        raise ValueError(f"lens must be of (n_layers, d_model) = {wanted}, got {sizes}")


def _check_tokens(name: str, value: object, batch: int, vocab_size: int) -> None:
    """Raise unless a value holds a token of the vocabulary for each row of the batch."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32):
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a tensor of integers, got {kind}")
    check_shape(name, value, (batch,), "(B,)")
    if int(value.min()) < 0 or int(value.max()) >= vocab_size:
        ends = f"{int(value.min())} to {int(value.max())}"
        raise ValueError(f"{name} must be from 0 to {vocab_size - 1}, got {ends}")
