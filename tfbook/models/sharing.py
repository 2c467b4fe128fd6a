"""Weights shared across layers: one block, one mixer or one feed-forward part, used several times.

:func:`share` takes a list of layers and returns one that a config takes as any other; what is
built of it holds each shared module once, and its account counts it once.

Explained in: chapters/08_architectural_variants_deeper, section "Layers that share weights".
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace

from torch import nn

from tfbook._checks import check_choice, check_list, check_number
from tfbook.blocks import MixtureOfExperts, Records
from tfbook.models.layers import Layer, check_spec
from tfbook.models.spec import Part, Run, Site, Spec

__all__ = ["Shared", "SharedLayer", "share", "sharing_order"]

ORDERS = ("sequence", "cycle", "reversed")
SHARES = ("all", "mixer", "ffn")


@dataclass(frozen=True)
class Shared(Spec):
    """A mixer or a feed-forward part that several layers of a stack share.

    Layers with the same ``spec`` and the same ``owner`` get the same module.

    Args:
        spec: what describes it.
        owner: number of the first layer that uses it, where its parameters are counted.

    Example:
        >>> from tfbook.models import FFN
        >>> part, site = Shared(FFN(16), 0), Site(8)
        >>> part.build(site) is part.build(site)
        True

    Source: [lan2020albert]
    Explained in: chapters/08_architectural_variants_deeper, section "Layers that share weights".
    """

    spec: Spec
    owner: int

    def __post_init__(self) -> None:
        """Check the choices."""
        check_spec("spec", self.spec)
        check_number("owner", self.owner, 0, whole=True)

    def __getattr__(self, name: str) -> object:
        """Return what else the part's own description says, such as its position."""
        if name.startswith("__") or name in ("spec", "owner"):
            raise AttributeError(name)
        return getattr(self.spec, name)

    def of_memory(self) -> "Shared":
        """Return the same attention as a layer's ``cross``, shared like this one."""
        return replace(self, spec=self.spec.of_memory())

    def check(self, site: Site) -> None:
        """Raise an error where the part does not fit its place."""
        self.spec.check(site)

    def build(self, site: Site) -> nn.Module:
        """Return the module, made for the first layer that asks."""
        return _once(site, self, lambda: self.spec.build(site))

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield what the part costs; its parameters are the owner's."""
        yield from _counted(self.spec.price(name, run), name, self.owner)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers in the state, of which each layer has its own."""
        return self.spec.held(d_model, length)


@dataclass(frozen=True)
class SharedLayer(Layer):
    """A layer whose whole block, norms included, several places of a stack share.

    Args:
        owner: number of the first layer that uses it, where its parameters are counted. The other
            arguments are those of :class:`tfbook.models.Layer`.

    Example:
        >>> from tfbook.models import FFN, Attention
        >>> layer, site = SharedLayer(Attention(2), FFN(16)), Site(8)
        >>> layer.build(site) is layer.build(site)
        True

    Source: [lan2020albert]
    Explained in: chapters/08_architectural_variants_deeper, section "Layers that share weights".
    """

    _: KW_ONLY
    owner: int = 0
    word = "layer"

    def __post_init__(self) -> None:
        """Check the choices."""
        super().__post_init__()
        check_number("owner", self.owner, 0, whole=True)

    def build(self, site: Site) -> nn.Module:
        """Return the block, made for the first place that asks."""
        return _once(site, self, lambda: Layer.build(self, site))

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield what the layer costs; its parameters are the owner's."""
        yield from _counted(Layer.price(self, name, run), name, self.owner)


def share(
    layers: Sequence[Layer], n_unique: int = 1, *, what: str = "all", order: str = "sequence"
) -> list[Layer]:
    """Return layers of which several use the same weights.

    ALBERT is ``share([layer] * 12)``; pairs of neighbours are ``share([layer] * 12, 6)``.

    Args:
        layers: of one stack; those that come to share must be alike.
        n_unique: how many layers have weights of their own.
        what: "all", the "mixer" alone (with the look into a memory), or the "ffn" alone.
        order: which layers share, see :func:`sharing_order`.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for an unknown name, a number out of range, or layers that differ.

    Example:
        >>> from tfbook.models import FFN, Attention, TransformerConfig
        >>> layers = [Layer(Attention(2), FFN(16))] * 6
        >>> sizes = {}
        >>> for n in (1, 3, 6):
        ...     config = TransformerConfig(11, 8, decoder=share(layers, n))
        ...     sizes[n] = config.count_parameters()
        >>> sizes[3] - sizes[1] == 2 * (sizes[6] - sizes[3]) // 3
        True

    Source: [lan2020albert], orders: [takase2023lessons]
    Explained in: chapters/08_architectural_variants_deeper, section "Layers that share weights".
    """
    check_list("layers", layers)
    for layer in layers:
        if not isinstance(layer, Layer):
            raise TypeError(f"layers must hold layers, got {type(layer).__name__}")
    check_choice("what", what, SHARES)
    names = sharing_order(len(layers), n_unique, order=order)
    found = []
    for layer, name in zip(layers, names, strict=True):
        owner = names.index(name)
        _check_alike(layer, layers[owner], owner, what)
        found.append(_sharing(layer, owner, what))
    return found


def sharing_order(n_layers: int, n_unique: int, *, order: str = "sequence") -> list[int]:
    """Return for each layer which of the weights it uses, 0 … n_unique − 1.

    * "sequence": neighbours share, 0 0 1 1 2 2;
    * "cycle": the weights come round again, 0 1 2 0 1 2;
    * "reversed": as in a cycle, the last time backwards, 0 1 2 2 1 0.

    Args:
        n_layers: how many layers.
        n_unique: how many of them have weights of their own.
        order: one of these.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: for an unknown order, or a number out of range.

    Example:
        >>> sharing_order(9, 3, order="reversed")
        [0, 1, 2, 0, 1, 2, 2, 1, 0]

    Source: [takase2023lessons]
    Explained in: chapters/08_architectural_variants_deeper, section "Layers that share weights".
    """
    check_number("n_layers", n_layers, 1, 10_000, whole=True)
    check_number("n_unique", n_unique, 1, n_layers, whole=True)
    check_choice("order", order, ORDERS)
    if order == "sequence":
        return [i * n_unique // n_layers for i in range(n_layers)]
    last = n_unique * ((n_layers - 1) // n_unique)  # where the last round begins
    turned = order == "reversed" and last > 0
    return [
        n_unique - 1 - i % n_unique if turned and i >= last else i % n_unique
        for i in range(n_layers)
    ]


def _sharing(layer: Layer, owner: int, what: str) -> Layer:
    """Return a layer that takes its weights, or some of them, from the owner."""
    if what == "all":
        choices = {each.name: getattr(layer, each.name) for each in fields(Layer)}
        return SharedLayer(**choices, owner=owner)
    parts = ("ffn",) if what == "ffn" else ("mixer", "cross")
    chosen = {part: getattr(layer, part) for part in parts}
    return replace(layer, **{part: x and Shared(x, owner) for part, x in chosen.items()})


def _check_alike(layer: Layer, first: Layer, owner: int, what: str) -> None:
    names = {"all": ("",), "mixer": ("mixer", "cross"), "ffn": ("ffn",)}[what]
    for name in names:
        one, other = (getattr(x, name) if name else x for x in (layer, first))
        if one != other:
            raise ValueError(
                f"layers that share must be alike, got {one} where layer {owner} has {other}"
            )


def _once(site: Site, spec: Spec, make) -> nn.Module:
    """Return the module that a stack makes once of this description, for this kind of place."""
    key = (spec, site.causal, site.memory)
    again = key in site.shared
    module = site.once(key, make)
    if again:  # a mixture of experts remembers one routing for each call of a pass
        for each in module.modules():
            if isinstance(each, MixtureOfExperts):
                each.records = Records(each.records.maxlen + 1)
    return module


def _counted(parts: Iterator[Part], name: str, owner: int) -> Iterator[Part]:
    """Yield the rows of the account, without parameters in all blocks but the owner's."""
    block = re.search(r"blocks\.(\d+)", name)
    own = block is None or int(block[1]) == owner
    for part in parts:
        yield part if own else part._replace(parameters=0)
