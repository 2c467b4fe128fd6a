"""Small modules between the layers of a frozen model, and keys and values learned in front of it.

A bottleneck adapter bends what a sublayer adds to the stream: y + W_up σ(W_down y). Prefix tuning
changes no layer at all: it gives every attention some keys and values to look at that no token
made, by the state that a cache uses.

Explained in: chapters/18_practice, section "Low-rank adapters".
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_generator, check_module, check_number
from tfbook.attention import KVState, MultiHeadAttention
from tfbook.blocks import BlockState, ModelState
from tfbook.models import DecoderOnly
from tfbook.practice.freezing import freeze, matching
from tfbook.practice.lora import dense_weight, exchange, lora_layers

__all__ = [
    "Bottleneck",
    "Prefix",
    "Prefixed",
    "add_bottlenecks",
    "bottlenecks",
    "remove_adapters",
]


class Bottleneck(nn.Module):
    """A layer, and behind it a small network with a residual connection: h + W_up σ(W_down h).

    W_up is 0 at first, so nothing changes until it is trained.

    Args:
        base: the frozen layer whose rows (..., d) are bent, with ``out_features`` = d.
        size: width of the bottleneck.
        generator: of W_down.

    Attributes:
        down, up: the two linear maps, d to ``size`` and back, with biases.

    Raises:
        TypeError: for a wrong type, or a base that is nothing linear.
        ValueError: if size is below 1.

    Cost: 2 d · size + d + size parameters.

    Source: [houlsby2019parameter]
    Explained in: chapters/18_practice, section "Low-rank adapters".
    """

    def __init__(self, base: nn.Module, size: int, *, generator: torch.Generator | None = None):
        """Freeze the base and draw W_down."""
        super().__init__()
        dense = dense_weight(base).detach()
        check_number("size", size, 1, 2**20, whole=True)
        check_generator(generator)
        freeze(base)
        d = base.out_features
        self.base, self.size = base, size
        self.down, self.up = nn.Linear(d, size).to(dense), nn.Linear(size, d).to(dense)
        bound = d**-0.5
        with torch.no_grad():
            drawn = torch.empty(size, d).uniform_(-bound, bound, generator=generator)
            self.down.weight.copy_(drawn)
        for zeros in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zeros)

    @property
    def in_features(self) -> int:
        """Return how wide the rows are that come in."""
        return self.base.in_features

    @property
    def out_features(self) -> int:
        """Return d."""
        return self.base.out_features

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... E"]:
        """Map each row, and bend it."""
        h = self.base(x)  # (..., d)
        return h + self.up(functional.gelu(self.down(h)))  # (..., d) → (..., size) → (..., d)


def add_bottlenecks(
    model: nn.Module,
    size: int,
    *,
    where: Sequence[str] = ("*.out_proj", "*.down_proj"),
    generator: torch.Generator | None = None,
) -> list[str]:
    """Put a bottleneck behind layers of a model, in place, and freeze everything else.

    Args:
        model: whose layers are replaced.
        size: width of a bottleneck.
        where: patterns of the names of linear layers, as for :func:`matching`: by default the last
            of each attention and each feed-forward network, before the residual connection.
        generator: see :class:`Bottleneck`.

    Returns:
        The names of the layers that got one.

    Raises:
        TypeError: for a wrong type.
        ValueError: if a pattern fits no linear layer, or there are bottlenecks already.

    Source: [houlsby2019parameter]
    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    check_module("model", model)
    if bottlenecks(model):
        raise ValueError("model must have no bottlenecks yet, and has some")
    layers = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    chosen = matching(list(layers), where)
    if not chosen:
        raise ValueError("where must hold at least one pattern, got none")
    new = {name: Bottleneck(layers[name], size, generator=generator) for name in chosen}
    freeze(model)
    exchange(model, {layers[name]: new[name] for name in chosen})
    return chosen


def bottlenecks(model: nn.Module) -> dict[str, Bottleneck]:
    """Return the bottlenecks of a model, by the name of their layer.

    Raises:
        TypeError: if model is no module.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    check_module("model", model)
    return {name: part for name, part in model.named_modules() if isinstance(part, Bottleneck)}


def remove_adapters(model: nn.Module) -> list[str]:
    """Take LoRA, DoRA and bottlenecks off a model, in place: the layers are those before them.

    All stays frozen: :func:`tfbook.practice.thaw` what is to be trained.

    Args:
        model: with adapters.

    Returns:
        The names of the layers that had one.

    Raises:
        TypeError: if model is no module.
        ValueError: if it has no adapters.

    Explained in: chapters/18_practice, section "Low-rank adapters".
    """
    found = lora_layers(model) | bottlenecks(model)
    if not found:
        raise ValueError("model must have adapters, got none")
    exchange(model, {layer: layer.base for layer in found.values()})
    return list(found)


class Prefix(nn.Module):
    """Keys and values for every attention of a decoder that stand in front of those of the tokens.

    They are a state like that of a cache that has read P columns, so no layer knows of them. In
    rotary attention they are keys as they stand in a cache, turned already.

    Args:
        model: a decoder all of whose mixers are multi-head attention, without a window.
        length: P, how many.
        generator: of the numbers, normal with standard deviation 0.02.

    Attributes:
        keys, values: for each layer (n_kv_heads, P, d_head) and (n_kv_heads, P, d_value).

    Raises:
        TypeError: for a wrong type, or a model of another kind.
        ValueError: if length is below 1, or leaves no room in the model's context.

    Cost: 2 · L · P · n_kv_heads · d_head parameters, and P keys more for every query.

    Source: [li2021prefix], without the network that makes the prefix while it is trained
    Explained in: chapters/18_practice, section "Low-rank adapters".
    """

    def __init__(self, model: nn.Module, length: int, *, generator: torch.Generator | None = None):
        """Draw the keys and values."""
        super().__init__()
        mixers = _attentions(model)
        check_number("length", length, 1, (model.config.max_len or 2**20 + 1) - 1, whole=True)
        check_generator(generator)
        self.length = length

        def draw(mixer, size):
            drawn = torch.randn(mixer.n_kv_heads, length, size, generator=generator)
            return nn.Parameter(0.02 * drawn.to(mixer.k_proj.weight.detach()))

        self.keys = nn.ParameterList(draw(mixer, mixer.d_head) for mixer in mixers)
        self.values = nn.ParameterList(draw(mixer, mixer.d_value) for mixer in mixers)

    def state(self, batch: int) -> ModelState:
        """Return what a decoder continues from: P columns read, the same for each sequence.

        Args:
            batch: how many sequences.

        Raises:
            TypeError: if batch is no integer.
            ValueError: if it is below 1.
        """
        check_number("batch", batch, 1, whole=True)
        layers = []
        for k, v in zip(self.keys, self.values, strict=True):
            k, v = (x.expand(batch, *x.shape) for x in (k, v))  # (B, n_kv_heads, P, d)
            layers.append(BlockState(KVState(k, v, None, self.length)))
        return ModelState(tuple(layers), self.length)

    @torch.no_grad()
    def read(self, model: nn.Module, tokens: Int[Tensor, "1 P"]) -> None:
        """Begin from a text instead of from chance: its keys and values, as the model makes them.

        Args:
            model: the one that the prefix was made for.
            tokens: (1, P).

        Raises:
            TypeError: for a wrong type.
            ValueError: for another shape, or a model that does not fit.
        """
        mixers = _attentions(model)
        if len(mixers) != len(self.keys) or tuple(tokens.shape) != (1, self.length):
            raise ValueError(
                f"tokens must be (1, {self.length}) for {len(self.keys)} layers, "
                f"got {tuple(tokens.shape)} and {len(mixers)} layers"
            )
        _, state = model(tokens)
        for i, layer in enumerate(state.layers):
            self.keys[i].copy_(layer.mixer.k[0])
            self.values[i].copy_(layer.mixer.v[0])


class Prefixed(nn.Module):
    """A frozen decoder that begins every sequence behind a prefix; called as the decoder is.

    Args:
        model: see :class:`Prefix`; all of it is frozen.
        prefix: made for it.

    Raises:
        TypeError: for a wrong type.

    Source: [li2021prefix]
    Explained in: chapters/18_practice, section "Low-rank adapters".
    """

    def __init__(self, model: nn.Module, prefix: Prefix):
        """Freeze the model."""
        super().__init__()
        mixers = _attentions(model)
        if not isinstance(prefix, Prefix):
            raise TypeError(f"prefix must be a Prefix, got {type(prefix).__name__}")
        if len(mixers) != len(prefix.keys):
            raise ValueError(
                f"prefix must be of {len(mixers)} layers as the model, got {len(prefix.keys)}"
            )
        freeze(model)
        self.model, self.prefix, self.config = model, prefix, model.config

    def forward(
        self,
        tokens: Int[Tensor, "B N"],
        state: ModelState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        last: bool = False,
    ) -> tuple[Float[Tensor, "B K V"], ModelState]:
        """Score what follows each token; arguments and errors are those of the decoder."""
        state = self.prefix.state(len(tokens)) if state is None else state
        return self.model(tokens, state, mask=mask, last=last)

    def decode(
        self,
        tokens: Int[Tensor, "B N"],
        state: ModelState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        last: bool = False,
    ) -> tuple[Float[Tensor, "B K V"], ModelState]:
        """Do what :meth:`forward` does; by this name generation calls every model."""
        return self(tokens, state, mask=mask, last=last)


def _attentions(model: object) -> list[MultiHeadAttention]:
    check_module("model", model)
    if not isinstance(model, DecoderOnly):
        raise TypeError(f"model must be a DecoderOnly, got a {type(model).__name__}")
    mixers = [block.mixer for block in model.stack.blocks]
    for i, mixer in enumerate(mixers):
        if not isinstance(mixer, MultiHeadAttention) or mixer.window is not None:
            raise TypeError(
                f"model must have multi-head attention without a window in every layer, got a "
                f"{type(mixer).__name__} in layer {i}"
            )
    return mixers
