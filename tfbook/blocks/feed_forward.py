"""The feed-forward network: linear maps with something nonlinear between them, for each row.

Explained in: chapters/05_architecture_deeper, section "The feed-forward network".
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_bool, check_choice, check_number
from tfbook.attention import Tap
from tfbook.blocks.norms import check_width
from tfbook.blocks.residual import drop

__all__ = [
    "ACTIVATIONS",
    "FEED_FORWARDS",
    "GATES",
    "FeedForward",
    "feed_forward_parameters",
    "from_conv1d",
    "to_conv1d",
]


def gelu_tanh(x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Return x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), close to GELU but not equal to it.

    Source: [hendrycks2016gelu]
    Explained in: chapters/05_architecture_deeper, section "The feed-forward network".
    """
    return functional.gelu(x, approximate="tanh")


def identity(x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Return x."""
    return x


def clipped_swiglu(gate: Float[Tensor, "*S"], up: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Return g σ(1.702 g) ⊙ (u + 1), g cut off above 7 and u above 7 and below −7.

    g σ(1.702 g) is close to GELU; what is cut off keeps half precision from overflowing.

    Source: [openai2025gptoss]
    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,  # x Φ(x), exact
    "gelu_tanh": gelu_tanh,
    "silu": functional.silu,  # x σ(x), also called Swish
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": identity,
}
# A gated network multiplies one projection with an activated other one.
GATES = {
    "glu": "sigmoid",
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "swiglu": "silu",
    "swiglu_clipped": "silu",  # and more, see clipped_swiglu
    "bilinear": "identity",
}
FEED_FORWARDS = (*ACTIVATIONS, *GATES)


class FeedForward(nn.Module):
    """Two or three linear maps with something nonlinear between them, for each row by itself.

    Plain: y = W_down act(W_up x + b_up) + b_down. Gated: the inner layer is
    act(W_gate x + b_gate) ⊙ (W_up x + b_up) instead. With "swiglu_clipped", the gate of GPT-OSS,
    both factors are cut off, the activation is steeper, and 1 is added to the second factor.

    Args:
        d_model: size of a row.
        d_ff: size of the inner layer, often 4 · d_model; with a gate often two thirds of that.
        kind: an activation out of :data:`ACTIVATIONS`, or a gate out of :data:`GATES`.
        bias: whether the linear maps have one.
        dropout: rate on the inner layer.

    Attributes:
        up_proj, gate_proj, down_proj: the linear maps; gate_proj is None without a gate.
        hidden: an identity that passes on the inner layer, (..., d_ff). A forward hook on it reads
            or replaces what passes.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size below 1, an unknown kind or a rate out of range.

    Cost: 4 · d_model · d_ff FLOPs a row, 6 · d_model · d_ff with a gate; half as many parameters,
        and the biases.

    Example:
        >>> ffn = FeedForward(512, 2048)
        >>> sum(weight.numel() for weight in ffn.parameters())
        2099712

    Source: [vaswani2017attention], gated: [dauphin2017language], [shazeer2020glu]
    Explained in: chapters/05_architecture_deeper, section "The feed-forward network".
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        kind: str = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ):
        """Make the linear maps, Xavier uniform with biases at 0."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_number("d_ff", d_ff, 1, whole=True)
        check_kind(kind)
        check_bool("bias", bias)
        check_number("dropout", dropout, 0, below=1)
        self.d_model, self.d_ff, self.kind = d_model, d_ff, kind
        self.activation = ACTIVATIONS[GATES.get(kind, kind)]
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if kind in GATES else None
        self.hidden = Tap()
        self.dropout = dropout
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, Xavier uniform, and set the biases to 0."""
        for projection in (self.up_proj, self.gate_proj, self.down_proj):
            if projection is None:
                continue
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return y for each row of x (..., d_model).

        Raises:
            TypeError: if x is not floating point.
            ValueError: if x ends in another size.
        """
        check_width(x, self.d_model, self.up_proj.weight)
        if self.gate_proj is None:
            hidden = self.activation(self.up_proj(x))  # (..., d_ff)
        elif self.kind == "swiglu_clipped":
            hidden = clipped_swiglu(self.gate_proj(x), self.up_proj(x))
        else:
            hidden = self.activation(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(drop(self, self.hidden(hidden)))

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"d_model={self.d_model}, d_ff={self.d_ff}, kind={self.kind!r}"


def feed_forward_parameters(
    d_model: int, d_ff: int, *, kind: str = "relu", bias: bool = True
) -> int:
    """Count the parameters of :class:`FeedForward` without making it.

    2 · d_model · d_ff + d_ff + d_model; with a gate 3 · d_model · d_ff + 2 · d_ff + d_model.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for an unknown kind, or a size below 1.

    Example:
        >>> feed_forward_parameters(512, 2048), feed_forward_parameters(512, 2048, bias=False)
        (2099712, 2097152)

    Explained in: chapters/05_architecture_deeper, section "The feed-forward network".
    """
    check_number("d_model", d_model, 1, whole=True)
    check_number("d_ff", d_ff, 1, whole=True)
    check_kind(kind)
    check_bool("bias", bias)
    inner = 2 if kind in GATES else 1
    return (inner + 1) * d_model * d_ff + bias * (inner * d_ff + d_model)


def to_conv1d(ffn: FeedForward) -> nn.Sequential:
    """Write a plain feed-forward network as two convolutions of width one.

    A linear map of each row is a convolution whose kernel sees that row only: the weight
    (outputs, inputs) becomes a kernel (outputs, inputs, 1). Convolutions have the positions last:
    ``conv(x.mT).mT`` equals ``ffn(x)``.

    Args:
        ffn: without a gate.

    Returns:
        Convolution, activation, convolution, with copies of the weights.

    Raises:
        TypeError: if ffn is no :class:`FeedForward`.
        ValueError: if it has a gate, which is no sequence of layers.

    Source: [vaswani2017attention], [lin2014network]
    Explained in: chapters/05_architecture_deeper, section
    "A feed-forward network is a convolution of width one".
    """
    if not isinstance(ffn, FeedForward):
        raise TypeError(f"ffn must be a FeedForward, got {type(ffn).__name__}")
    if ffn.gate_proj is not None:
        raise ValueError(f"ffn must be a plain network, got the gated kind {ffn.kind!r}")
    layers = []
    for linear in (ffn.up_proj, ffn.down_proj):
        outputs, inputs = linear.weight.shape
        conv = nn.Conv1d(inputs, outputs, 1, bias=linear.bias is not None)
        conv = conv.to(linear.weight)
        with torch.no_grad():
            conv.weight.copy_(linear.weight[..., None])  # (outputs, inputs, 1)
            if linear.bias is not None:
                conv.bias.copy_(linear.bias)
        layers.append(conv)
    return nn.Sequential(layers[0], _Activation(ffn.activation), layers[1])


def from_conv1d(up: nn.Conv1d, down: nn.Conv1d, *, kind: str = "relu") -> FeedForward:
    """Write two convolutions of width one as a feed-forward network; undoes :func:`to_conv1d`.

    Args:
        up: to the inner layer.
        down: back from it.
        kind: the activation between them, out of :data:`ACTIVATIONS`.

    Raises:
        ValueError: if a convolution has another width or groups, if the two do not fit one
            another, or if the kind has a gate.

    Explained in: chapters/05_architecture_deeper, section
    "A feed-forward network is a convolution of width one".
    """
    check_kind(kind)
    if kind in GATES:
        raise ValueError(f"kind must have no gate, got {kind!r}")
    for name, conv in (("up", up), ("down", down)):
        if not isinstance(conv, nn.Conv1d) or conv.weight.shape[-1] != 1 or conv.groups != 1:
            raise ValueError(f"{name} must be an nn.Conv1d of width 1, got {conv}")
    sizes = (up.in_channels, up.out_channels, up.bias is None)
    if sizes != (down.out_channels, down.in_channels, down.bias is None):
        raise ValueError(f"up and down must lead there and back alike, got {up} and {down}")
    ffn = FeedForward(up.in_channels, up.out_channels, kind=kind, bias=up.bias is not None)
    ffn = ffn.to(up.weight)
    with torch.no_grad():
        for linear, conv in ((ffn.up_proj, up), (ffn.down_proj, down)):
            linear.weight.copy_(conv.weight[..., 0])
            if conv.bias is not None:
                linear.bias.copy_(conv.bias)
    return ffn


class _Activation(nn.Module):
    """An activation function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


def check_kind(kind: object) -> None:
    """Raise ValueError unless ``kind`` names a feed-forward network."""
    check_choice("kind", kind, FEED_FORWARDS)
