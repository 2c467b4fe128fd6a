"""LoRA: a frozen linear map with a product of two thin matrices beside it, and what grew out of it.

y = W x + (α / r) B A x, with A (r, d_in) and B (d_out, r). Only A and B are trained. DoRA trains
the length of each row of the whole beside its direction. QLoRA is the same over a W that was
quantised: W may be any frozen module that acts like a linear layer, see :class:`LinearLike`.

Explained in: chapters/18_practice, section "Low-rank adapters".
"""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_bool,
    check_generator,
    check_module,
    check_number,
    check_shape,
)
from tfbook.practice.freezing import freeze, matching
from tfbook.pretrained import round_rows

__all__ = [
    "LinearLike",
    "LoraLinear",
    "RoundedLinear",
    "add_lora",
    "bake_lora",
    "dense_weight",
    "lora_layers",
    "merge_lora",
    "unmerge_lora",
]


@runtime_checkable
class LinearLike(Protocol):
    """What an adapter can stand on: a frozen module that maps rows (..., d_in) to (..., d_out).

    ``nn.Linear`` is one. One whose numbers are packed has no ``weight`` in floating point; it may
    have ``dense()``, which returns the matrix (d_out, d_in) that it stands for. DoRA and merging
    need it, LoRA itself does not.

    Attributes:
        in_features: d_in.
        out_features: d_out.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """

    in_features: int
    out_features: int

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... E"]:
        """Map each row."""
        ...


def dense_weight(layer: nn.Module) -> Float[Tensor, "E D"]:
    """Return the matrix (d_out, d_in) that a linear-like layer stands for.

    Args:
        layer: with ``dense()``, or with a floating-point ``weight``.

    Raises:
        TypeError: if it has neither.
        ValueError: if the matrix has another shape than the layer says.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    _check_linear("layer", layer)
    dense = getattr(layer, "dense", None)
    weight = dense() if callable(dense) else getattr(layer, "weight", None)
    if not (isinstance(weight, Tensor) and weight.is_floating_point()):
        raise TypeError(
            f"layer must have dense() or a floating-point weight, got a {type(layer).__name__}"
        )
    check_shape("the weight", weight, (layer.out_features, layer.in_features), "(d_out, d_in)")
    return weight


class RoundedLinear(nn.Module):
    """A frozen linear map whose weight is kept in 8 bits a number, a scale for each row.

    The bare version of a quantised base: the matrix is restored for every product, so it saves
    memory and no time. W ≈ s_i q_ij, see :func:`tfbook.pretrained.round_rows`.

    Args:
        linear: whose weight is rounded; its bias is kept as it is.

    Raises:
        TypeError: if linear is no ``nn.Linear``.
        ValueError: if its weight is not finite.

    Source: [dettmers2023qlora]
    Explained in: chapters/18_practice, section "Low-rank adapters".
    """

    def __init__(self, linear: nn.Linear):
        """Round the weight."""
        super().__init__()
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be an nn.Linear, got {type(linear).__name__}")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        values, scale = round_rows(linear.weight.detach())
        self.register_buffer("values", values)  # (d_out, d_in), int8
        self.register_buffer("scale", scale.to(linear.weight.dtype))  # (d_out,)
        bias = None if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("bias", bias)

    def dense(self) -> Float[Tensor, "E D"]:
        """Return the matrix that the numbers stand for."""
        return self.values.to(self.scale.dtype) * self.scale[:, None]

    @property
    def weight(self) -> Float[Tensor, "E D"]:
        """Return the same, by the name that other modules ask for."""
        return self.dense()

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... E"]:
        """Map each row, x (..., d_in)."""
        return functional.linear(x, self.dense(), self.bias)


class LoraLinear(nn.Module):
    """A frozen linear map and a trained one of low rank beside it: y = W x + (α / r) B A x.

    B is 0 at first, so nothing changes until it is trained. With ``dora`` the map is
    y = m ⊙ (V / |V|) x, V = W + (α / r) B A, with |V| the length of each row, through which no
    gradient goes, and m the trained lengths, at first those of W.

    Args:
        base: the frozen map, see :class:`LinearLike`.
        rank: r.
        alpha: α; 2 r when omitted, so that the factor does not change with the rank.
        dropout: share of the numbers of x that B A does not see in training.
        dora: whether lengths are trained apart from directions.
        generator: of A, uniform in ±1/√d_in as PyTorch draws a linear layer.

    Attributes:
        lora_a, lora_b: A (r, d_in) and B (d_out, r).
        magnitude: m (d_out,), or None.

    Raises:
        TypeError: if base is nothing linear, or an argument of a wrong type.
        ValueError: for a number out of its range.

    Cost: r (d_in + d_out) parameters, with ``dora`` d_out more, and twice as many FLOPs a row.

    Example:
        >>> layer = LoraLinear(nn.Linear(7, 5), rank=2)
        >>> x = torch.randn(3, 7)
        >>> torch.equal(layer(x), layer.base(x)), layer.lora_a.shape, layer.lora_b.shape
        (True, torch.Size([2, 7]), torch.Size([5, 2]))

    Source: [hu2022lora], lengths: [liu2024dora], quantised base: [dettmers2023qlora]
    Explained in: chapters/18_practice, section "Low-rank adapters".
    """

    def __init__(
        self,
        base: nn.Module,
        rank: int,
        *,
        alpha: float | None = None,
        dropout: float = 0.0,
        dora: bool = False,
        generator: torch.Generator | None = None,
    ):
        """Freeze the base and draw A."""
        super().__init__()
        _check_linear("base", base)
        check_number("rank", rank, 1, min(base.in_features, base.out_features), whole=True)
        alpha = 2.0 * rank if alpha is None else alpha
        check_number("alpha", alpha, above=0)
        check_number("dropout", dropout, 0, below=1)
        check_bool("dora", dora)
        check_generator(generator)
        self.base, self.rank, self.alpha, self.p = base, rank, alpha, dropout
        freeze(base)
        dense = dense_weight(base).detach()  # tells dtype and device as well
        bound = 1 / math.sqrt(base.in_features)
        drawn = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.lora_a = nn.Parameter(drawn.to(dense))  # (r, d_in)
        self.lora_b = nn.Parameter(dense.new_zeros(base.out_features, rank))  # (d_out, r)
        self.magnitude = nn.Parameter(dense.norm(dim=1)) if dora else None  # (d_out,)
        self.register_buffer("merged", None, persistent=False)

    @property
    def in_features(self) -> int:
        """Return d_in."""
        return self.base.in_features

    @property
    def out_features(self) -> int:
        """Return d_out."""
        return self.base.out_features

    @property
    def bias(self) -> Float[Tensor, " E"] | None:
        """Return the bias of the base."""
        return getattr(self.base, "bias", None)

    @property
    def scale(self) -> float:
        """Return α / r."""
        return self.alpha / self.rank

    @property
    def weight(self) -> Float[Tensor, "E D"]:
        """Return the matrix of the whole map, (d_out, d_in), computed anew unless it is merged."""
        if self.merged is not None:
            return self.merged
        dense = dense_weight(self.base) + self.scale * self.lora_b @ self.lora_a  # V
        return dense if self.magnitude is None else self._stretch()[:, None] * dense

    def _stretch(self) -> Tensor:
        """Return m / |V|, (d_out,)."""
        with torch.no_grad():
            v = dense_weight(self.base) + self.scale * self.lora_b @ self.lora_a
            lengths = v.norm(dim=1).clamp(min=torch.finfo(v.dtype).tiny)  # a row of zeros stays one
        return self.magnitude / lengths

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... E"]:
        """Map each row, x (..., d_in) to (..., d_out)."""
        if self.merged is not None:
            return functional.linear(x, self.merged, self.bias)
        y = self.base(x)  # (..., d_out)
        thin = functional.linear(functional.dropout(x, self.p, self.training), self.lora_a)
        update = self.scale * functional.linear(thin, self.lora_b)  # (..., r) → (..., d_out)
        if self.magnitude is None:
            return y + update
        plain = y if self.bias is None else y - self.bias  # the bias is not stretched
        stretched = self._stretch() * (plain + update)
        return stretched if self.bias is None else stretched + self.bias

    def merge(self) -> None:
        """Put the whole map into one matrix, of which the layer computes from now on."""
        self.merged = self.weight.detach().clone()

    def unmerge(self) -> None:
        """Compute with base and adapter apart again, to the bit as before."""
        self.merged = None

    def bake(self) -> nn.Linear:
        """Return a plain linear layer that computes the same and knows of no adapter."""
        weight, bias = self.weight.detach().clone(), self.bias
        linear = nn.Linear(self.in_features, self.out_features, bias is not None, device="meta")
        linear.weight = nn.Parameter(weight)
        if bias is not None:
            linear.bias = nn.Parameter(bias.detach().clone())
        return linear.train(self.training)

    def extra_repr(self) -> str:
        """Show the choices."""
        dora = ", dora=True" if self.magnitude is not None else ""
        merged = ", merged" if self.merged is not None else ""
        return f"rank={self.rank}, alpha={self.alpha:g}{dora}{merged}"


def add_lora(
    model: nn.Module,
    rank: int,
    *,
    alpha: float | None = None,
    where: Sequence[str] = ("*_proj",),
    dropout: float = 0.0,
    dora: bool = False,
    generator: torch.Generator | None = None,
) -> list[str]:
    """Put an adapter on linear layers of a model, in place, and freeze everything else.

    A layer that several parts share gets one adapter, which they share.

    Args:
        model: whose layers are replaced.
        rank: see :class:`LoraLinear`.
        alpha: see :class:`LoraLinear`.
        where: patterns of the names of layers, as for :func:`matching`: by default all
            projections of attention and feed-forward parts.
        dropout: see :class:`LoraLinear`.
        dora: see :class:`LoraLinear`.
        generator: see :class:`LoraLinear`.

    Returns:
        The names of the layers that got one.

    Raises:
        TypeError: for a wrong type.
        ValueError: if a pattern fits no linear layer, an adapter is there already, or a rank is
            larger than a layer.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))]))
        >>> add_lora(model, 2, where=["*.q_proj", "*.v_proj"])
        ['stack.blocks.0.mixer.q_proj', 'stack.blocks.0.mixer.v_proj']

    Source: [hu2022lora]
    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    check_module("model", model)
    if lora_layers(model):
        raise ValueError("model must have no LoRA yet: bake_lora or remove_adapters first")
    layers = {name: part for name, part in model.named_modules() if name and _is_linear(part)}
    chosen = matching(list(layers), where)
    if not chosen:
        raise ValueError("where must hold at least one pattern, got none")
    choices = {"alpha": alpha, "dropout": dropout, "dora": dora, "generator": generator}
    new = {name: LoraLinear(layers[name], rank, **choices) for name in chosen}  # all or none
    freeze(model)
    for name, adapter in new.items():
        adapter.train(layers[name].training)
    exchange(model, {layers[name]: adapter for name, adapter in new.items()})
    return chosen


def lora_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers of a model that have an adapter, by name.

    Raises:
        TypeError: if model is no module.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    check_module("model", model)
    return {name: part for name, part in model.named_modules() if isinstance(part, LoraLinear)}


def merge_lora(model: nn.Module) -> list[str]:
    """Let each adapted layer compute with one matrix: as fast as without adapters.

    The adapters stay, and get no gradient while they are merged. A merged layer holds a second
    matrix, so this costs the memory of the adapted weights; :func:`bake_lora` does not.

    Args:
        model: with adapters.

    Returns:
        The names of the layers.

    Raises:
        TypeError: if model is no module.
        ValueError: if it has no adapters.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    return _each(model, LoraLinear.merge)


def unmerge_lora(model: nn.Module) -> list[str]:
    """Undo :func:`merge_lora`: the weights are those before it, to the bit.

    Args:
        model: with adapters.

    Returns:
        The names of the layers.

    Raises:
        TypeError: if model is no module.
        ValueError: if it has no adapters.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    return _each(model, LoraLinear.unmerge)


def bake_lora(model: nn.Module) -> list[str]:
    """Replace each adapted layer by a plain one that computes the same, for good.

    The model then has the parts and the names that it had before :func:`add_lora`; a quantised base
    becomes a matrix in floating point. All stays frozen as it is: :func:`thaw` what is to be
    trained.

    Args:
        model: with adapters.

    Returns:
        The names of the layers.

    Raises:
        TypeError: if model is no module.
        ValueError: if it has no adapters.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    baked = {}
    names = _each(model, lambda layer: baked.update({layer: layer.bake()}))
    for layer in baked.values():
        freeze(layer)
    exchange(model, baked)
    return names


def exchange(model: nn.Module, new: dict[nn.Module, nn.Module]) -> None:
    """Put other modules in the place of some, wherever they stand in a model."""
    for part in list(model.modules()):
        for name, child in list(part._modules.items()):  # a child may stand there by two names
            if child in new and part is not new[child]:
                setattr(part, name, new[child])


def _each(model, do) -> list[str]:
    found = lora_layers(model)
    if not found:
        raise ValueError("model must have adapters, got none: add_lora adds them")
    for layer in found.values():
        do(layer)
    return list(found)


def _is_linear(part: nn.Module) -> bool:
    sizes = (getattr(part, name, None) for name in ("in_features", "out_features"))
    return all(isinstance(size, int) for size in sizes)


def _check_linear(name: str, layer: object) -> None:
    check_module(name, layer)
    if not _is_linear(layer):
        raise TypeError(
            f"{name} must have in_features and out_features, as nn.Linear has, "
            f"got a {type(layer).__name__}"
        )
