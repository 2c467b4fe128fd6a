"""Switch parts of a model off and see what it costs: the part was needed, or it was not.

What is switched off has to be replaced by something. Zeros are the simplest, but a model has never
seen them; the mean over other texts leaves what is always there; another text's values leave all
statistics as they were and take only what this text said.

Explained in: chapters/10_interpretability_deeper, section "Switching heads off".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_callable,
    check_choice,
    check_float,
    check_ids,
    check_list,
    check_number,
)
from tfbook.attention import MultiHeadAttention
from tfbook.interpret.capturing import capture, patched
from tfbook.interpret.lens import attentions
from tfbook.training import evaluating

__all__ = [
    "Head",
    "ablated",
    "head_effects",
    "head_importance",
    "prune_order",
    "pruned",
]

Head = tuple[int, int]  # layer, head
HOW = ("zero", "mean", "resample")


def ablated(
    model: nn.Module,
    heads: Sequence[Head] = (),
    *,
    mixers: Sequence[int] = (),
    ffns: Sequence[int] = (),
    layers: Sequence[int] = (),
    how: str = "zero",
    reference: Int[Tensor, "R N"] | None = None,
    shift: int = 1,
) -> AbstractContextManager[None]:
    """Switch parts of a model off inside a ``with``; afterwards it is as it was.

    What the part gives is replaced: of a head what it found, z, before its share of ``out_proj``,
    whose bias stays; of a mixer and of a feed-forward part what enters the sum with the stream. By
    "zero" it is replaced by zeros; by "mean" by its mean over all rows and places of the reference;
    by "resample" by what it was in row (b + shift) mod R of the reference, for row b.

    Args:
        model: a decoder or an encoder, with one stack of layers.
        heads: pairs (layer, head).
        mixers: layers of which the whole mixer goes.
        ffns: layers of which the feed-forward part goes.
        layers: layers of which both go; a pre-norm layer is then not there.
        how: "zero", "mean" or "resample".
        reference: tokens (R, N), without padding, for "mean" and "resample". For "resample" they
            may be the tokens that are read, and must be as long as these.
        shift: how many rows further "resample" looks, from 1 to R − 1, so that no row gets its own.

    Returns:
        The context.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a part that is not there, an unknown ``how``, a reference that is missing or
            has one row only; and, from the model's call, one of another length.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> with ablated(model, layers=[0, 1]):
        ...     logits, _ = model(tokens)
        >>> bool(torch.isclose(logits[0, 1], logits[0, 3]).all())  # only the token itself is left
        True

    Source: [michel2019sixteen], by other rows' values: [wang2022interpretability]
    Explained in: chapters/10_interpretability_deeper, section "Switching heads off".
    """
    check_heads("heads", heads, attentions(model))
    blocks = model.stack.blocks
    for name, chosen in (("mixers", mixers), ("ffns", ffns), ("layers", layers)):
        check_list(name, chosen)
        for each in chosen:
            check_number(f"an entry of {name}", each, 0, len(blocks) - 1, whole=True)
    check_choice("how", how, HOW)
    check_number("shift", shift, 1, whole=True)
    if reference is not None:
        check_ids("reference", reference)
    elif how != "zero":
        raise ValueError(f"reference is needed for how {how!r}: tokens to take values from")
    if how == "resample" and shift >= len(reference):
        raise ValueError(
            "reference must have more rows than shift, so that no row gets its own values, "
            f"got {len(reference)} and {shift}"
        )
    whole = [blocks[i].mixer for i in sorted({*mixers, *layers})]
    whole += [blocks[i].ffn for i in sorted({*ffns, *layers})]
    by_layer = {layer: [h for i, h in heads if i == layer] for layer, _ in heads}
    return _ablated(model, by_layer, whole, how, reference, shift)


@contextmanager
def _ablated(model, heads, parts, how, reference, shift):
    """Put the hooks there for a while."""
    names = {layer: f"stack.blocks.{layer}.mixer.z" for layer in heads}
    put = _Zeros() if how == "zero" else _Values(how, shift)
    if how != "zero" and (heads or parts):
        put.read(model, reference, list(names.values()), parts)

    def without(layer):
        def change(z):
            new = z.clone()  # (B, H, N, d_value)
            new[:, heads[layer]] = put(names[layer], z)[:, heads[layer]]
            return new

        return change

    def instead(part):
        def hook(module, args, out):
            y = put(part, _rows(out))
            return (y, *out[1:]) if isinstance(out, tuple) else y

        return hook

    with ExitStack() as stack:
        stack.enter_context(patched(model, {names[layer]: without(layer) for layer in heads}))
        for part in parts:
            stack.callback(part.register_forward_hook(instead(part)).remove)
        yield


class _Zeros:
    """Zeros for every part."""

    def __call__(self, key, x):
        return torch.zeros_like(x)


class _Values:
    """What parts gave for a reference, as a mean or row by row."""

    def __init__(self, how, shift):
        self.how, self.shift, self.found = how, shift, {}

    def read(self, model, reference, names, parts):
        """Run the model over the reference."""

        def keep(part):
            return lambda module, args, out: self.found.__setitem__(part, _rows(out))

        with ExitStack() as stack:
            stack.enter_context(evaluating(model))
            seen = stack.enter_context(capture(model, *names)) if names else {}
            for part in parts:
                stack.callback(part.register_forward_hook(keep(part)).remove)
            model(reference)
        self.found |= seen

    def __call__(self, key, x):
        found = self.found[key]  # (R, N, D), or (R, H, N, D)
        if self.how == "mean":
            return found.mean((0, -2), keepdim=True).expand_as(x)
        if found.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"reference must be as long as the tokens that are read, {x.shape[-2]}, "
                f"got {found.shape[-2]}"
            )
        return found[(torch.arange(len(x), device=x.device) + self.shift) % len(found)]


def _rows(out):
    return out[0] if isinstance(out, tuple) else out


def head_effects(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor | float],
    *,
    how: str = "zero",
    reference: Int[Tensor, "R N"] | None = None,
    shift: int = 1,
) -> Float[Tensor, "L H"]:
    """Return by how much the loss grows when one head is switched off, for each head.

    effect[l, h] = loss(model without head h of layer l) − loss(model). The effects do not sum to
    that of all heads: others may do the same work, or none of it alone.

    Args:
        model: a decoder or an encoder whose layers all have as many heads.
        loss: gets the model, in evaluation mode and without gradients, and returns a number.
        how: as for :func:`ablated`.
        reference: as for :func:`ablated`.
        shift: as for :func:`ablated`.

    Returns:
        One number for each head, (L, H).

    Raises:
        TypeError: for a wrong type or dtype, or a loss that is no number.
        ValueError: for a model without such heads, or choices that :func:`ablated` refuses.

    Cost: L · H + 1 losses.

    Source: [michel2019sixteen]
    Explained in: chapters/10_interpretability_deeper, section "Switching heads off".
    """
    n_layers, n_heads = head_table(model)
    check_callable("loss", loss)
    given = {"how": how, "reference": reference, "shift": shift}
    with evaluating(model):
        whole = _number(loss(model))
        effects = torch.zeros(n_layers, n_heads)
        for layer in range(n_layers):
            for head in range(n_heads):
                with ablated(model, [(layer, head)], **given):
                    effects[layer, head] = _number(loss(model)) - whole
    return effects


def head_importance(
    model: nn.Module,
    losses: Callable[[nn.Module], Float[Tensor, " B"]],
    *,
    normalise: bool = False,
) -> Float[Tensor, "L H"]:
    """Estimate for each head, from one backward pass, how much the loss hangs on it.

    With a gate ξ on what each head found, z ξ, and ξ = 1: I = mean_b |∂loss_b / ∂ξ|, where
    ∂loss_b / ∂ξ = Σ z_b ⊙ ∂loss_b / ∂z_b is the slope along which the loss of row b would change.
    It is the first term of a Taylor series, so it need not be what :func:`head_effects` finds.

    Args:
        model: a decoder or an encoder whose layers all have as many heads.
        losses: gets the model, in evaluation mode, and returns a loss for each row it has read,
            (B,): a row's loss may not hang on other rows.
        normalise: whether the numbers of each layer are divided by the root of the sum of their
            squares, so that layers can be compared.

    Returns:
        One number for each head, (L, H), at least 0.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a model without such heads, or losses of another shape.

    Cost: one forward and one backward pass; weights get no gradients.

    Source: [michel2019sixteen]
    Explained in: chapters/10_interpretability_deeper, section "Switching heads off".
    """
    n_layers, _ = head_table(model)
    check_callable("losses", losses)
    check_bool("normalise", normalise)
    names = [f"stack.blocks.{layer}.mixer.z" for layer in range(n_layers)]
    with evaluating(model), torch.enable_grad(), capture(model, *names, grad=True) as seen:
        found = losses(model)
        check_float("what losses returns", found)
        z = [seen[name] for name in names]  # L of (B, H, N, d_value)
        if found.shape != z[0].shape[:1]:
            raise ValueError(
                "losses must return a loss for each row that the model read, "
                f"({len(z[0])},), got {tuple(found.shape)}"
            )
        if not found.requires_grad:
            raise ValueError("losses must return what the model's answer gives a gradient to")
        slopes = torch.autograd.grad(found.sum(), z)
    gates = [(x.detach() * slope).sum((-2, -1)) for x, slope in zip(z, slopes, strict=True)]
    importance = torch.stack([each.abs().mean(0) for each in gates])  # (L, H)
    if normalise:
        largest = importance.norm(dim=-1, keepdim=True)
        importance = importance / largest.where(largest > 0, 1)
    return importance


def prune_order(importance: Float[Tensor, "L H"]) -> list[Head]:
    """Return all heads as pairs (layer, head), the least important first.

    Args:
        importance: a number for each head, (L, H).

    Raises:
        TypeError: if importance is no floating-point tensor.
        ValueError: if it has another shape, or holds NaN.

    Example:
        >>> prune_order(torch.tensor([[3.0, 1.0], [0.5, 2.0]]))
        [(1, 0), (0, 1), (1, 1), (0, 0)]

    Source: [michel2019sixteen]
    Explained in: chapters/10_interpretability_deeper, section "Switching heads off".
    """
    check_float("importance", importance)
    if importance.ndim != 2:
        raise ValueError(f"importance must have shape (L, H), got {tuple(importance.shape)}")
    if bool(importance.isnan().any()):
        raise ValueError("importance must be numbers, got NaN")
    n_heads = importance.shape[1]
    order = importance.flatten().argsort(stable=True).tolist()
    return [divmod(each, n_heads) for each in order]


def pruned(model: nn.Module, heads: Sequence[Head]) -> AbstractContextManager[None]:
    """Cut heads out of a model inside a ``with``: their weights are then not there.

    It computes what :func:`ablated` computes with zeros, with fewer heads
    (:meth:`tfbook.attention.MultiHeadAttention.prune_heads`); key-value heads whose groups become
    uneven are held more than once. A layer that loses all its heads adds the bias of its
    ``out_proj``. Afterwards the model has its own modules again.

    Args:
        model: a decoder or an encoder.
        heads: pairs (layer, head).

    Returns:
        The context.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a head that is not there, or is named twice.

    Source: [michel2019sixteen]
    Explained in: chapters/10_interpretability_deeper, section "Switching heads off".
    """
    found = attentions(model)
    check_heads("heads", heads, found)
    if len({*map(tuple, heads)}) < len(heads):
        raise ValueError(f"heads must name no head twice, got {list(heads)}")
    gone = {layer: {h for i, h in heads if i == layer} for layer, _ in heads}
    return _pruned(model.stack.blocks, {layer: (found[layer], gone[layer]) for layer in gone})


@contextmanager
def _pruned(blocks, cut) -> Iterator[None]:
    """Put smaller modules in the place of some, for a while."""
    try:
        for layer, (mixer, gone) in cut.items():
            keep = [h for h in range(mixer.n_heads) if h not in gone]
            blocks[layer].mixer = mixer.prune_heads(keep) if keep else _NoHeads(mixer)
        yield
    finally:
        for layer, (mixer, _) in cut.items():
            blocks[layer].mixer = mixer


class _NoHeads(nn.Module):
    """What is left of an attention without heads: the bias of its output."""

    def __init__(self, mixer: MultiHeadAttention):
        """Copy the bias."""
        super().__init__()
        bias = mixer.out_proj.bias
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: object = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], object]:
        """Return the bias in every row, and the state as it came."""
        y = torch.zeros_like(x)
        return (y if self.bias is None else y + self.bias), state


def head_table(model: object) -> tuple[int, int]:
    """Return how many layers and heads there are, or raise where they are no table.

    Raises:
        TypeError: if model has no stack of layers.
        ValueError: unless every layer has multi-head attention with as many heads.
    """
    found = attentions(model)
    counts = [mixer.n_heads for mixer in found.values()]
    if len(found) < len(model.stack.blocks) or len(set(counts)) > 1:
        raise ValueError(
            "model must have multi-head attention with as many heads in every layer, got "
            f"{counts} in {len(model.stack.blocks)} layers"
        )
    return len(counts), counts[0]


def check_heads(name: str, heads: object, found: dict[int, MultiHeadAttention]) -> None:
    """Raise unless a value is a list of pairs (layer, head) that are there.

    Raises:
        TypeError: if it is no list, or a number no integer.
        ValueError: for something else than pairs, a layer without heads or a head out of range.
    """
    check_list(name, heads)
    for pair in heads:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"{name} must hold pairs (layer, head), got {pair!r}")
        layer, head = pair
        check_number(f"a layer of {name}", layer, 0, whole=True)
        if layer not in found:
            raise ValueError(f"{name} must be in layers {list(found)} that have heads, got {layer}")
        check_number(f"a head of {name}", head, 0, found[layer].n_heads - 1, whole=True)


def _number(value: object) -> float:
    """Return what a loss gave as a number."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"loss must return a number, got {kind}")
    return float(value)
