"""Convolution beside attention: the Conformer's module, and its layer.

A convolution sees its neighbours whatever they hold, attention whatever it looks for however far.
The Conformer does one after the other. Convolution inside of attention stands in
:mod:`tfbook.models.conv_attention`.

Explained in: chapters/09_hybrids.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_bool,
    check_callable,
    check_choice,
    check_module,
    check_number,
    check_rows,
)
from tfbook.attention import Cache, KVState
from tfbook.blocks import Block, BlockState, LayerNorm, Residual
from tfbook.models.layers import Layer, Norm, check_spec
from tfbook.models.spec import Part, Run, Site, Spec
from tfbook.recurrent import CausalConv, ConvState, read_tokens

__all__ = [
    "ConformerBlock",
    "ConformerLayer",
    "ConformerState",
    "Convolution",
    "ConvolutionModule",
]

NORMS = ("batch", "layer")


class ConvolutionModule(nn.Module):
    """The Conformer's convolution: a gate, a wide filter for each number, a norm and swish.

    y = W_down swish(norm(conv(W_value x ⊙ σ(W_gate x)))), where conv gives each of the d_model
    numbers a filter of its own, over ``width`` rows: the row in the middle, or the last where the
    future is hidden.

    Args:
        d_model: size of a row.
        width: rows that a filter sees; odd, unless causal.
        causal: hide the future; then there is a state, and pieces give the whole.
        norm: "batch", over all tokens of the batch as in the paper, or "layer".
        bias: whether the linear maps have one.

    Attributes:
        up_proj: W_value and W_gate, one above the other.
        conv: the filters, (d_model, width); no bias, the norm has one.
        norm: the norm.
        down_proj: W_down.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size below 1, or an even width that has no middle.

    Cost: (6 · d_model + 2 · width) · d_model FLOPs a row, however long the sequence.

    Example:
        >>> import torch
        >>> y, state = ConvolutionModule(8, width=5)(torch.randn(2, 11, 8))
        >>> y.shape, state
        (torch.Size([2, 11, 8]), None)

    Source: [gulati2020conformer], gate: [dauphin2017language]
    Explained in: chapters/09_hybrids.
    """

    def __init__(
        self,
        d_model: int,
        width: int = 31,
        *,
        causal: bool = False,
        norm: str = "batch",
        bias: bool = True,
    ):
        """Draw the linear maps, Xavier uniform with biases at 0, and the filters."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_bool("causal", causal)
        check_width(width, causal)
        check_choice("norm", norm, NORMS)
        check_bool("bias", bias)
        self.d_model, self.width, self.causal = d_model, width, causal
        self.up_proj = nn.Linear(d_model, 2 * d_model, bias=bias)
        self.conv = CausalConv(d_model, width, bias=False)
        self.norm = nn.BatchNorm1d(d_model) if norm == "batch" else LayerNorm(d_model)
        self.down_proj = nn.Linear(d_model, d_model, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the linear maps anew, Xavier uniform with biases at 0, and the filters."""
        for linear in (self.up_proj, self.down_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        self.conv.reset_parameters()

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"d_model={self.d_model}, width={self.width}, causal={self.causal}"

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: ConvState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], ConvState | None]:
        """Convolve the rows of x.

        Args:
            x: (B, N, d_model).
            state: what the call before returned; None at the start, and always if not causal.
            mask: which rows are tokens, boolean, broadcasting to (B, 1, N), as ``padding_mask``;
                others are 0 to the filters, in a causal module as if they were not there, and are
                left out of the norm's mean. A mask of pairs has no meaning here.

        Returns:
            y (B, N, d_model), and the state to continue from, None if not causal.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or a state where there can be none.
        """
        check_rows("x", x, self.up_proj.weight)
        tokens = read_tokens(mask, x)  # (B, N)
        y = functional.glu(self.up_proj(x), dim=-1)  # (B, N, d_model)
        if self.causal:
            y, state = self.conv(y, state, mask=mask)
        else:
            if state is not None:
                raise ValueError("state must be None: this convolution sees the future")
            y = y if tokens is None else y.masked_fill(~tokens[..., None], 0.0)
            filters = self.conv.weight[:, None]  # (d_model, 1, width)
            given = {"groups": self.d_model, "padding": self.width // 2}
            y = functional.conv1d(y.mT, filters, **given).mT
        return self.down_proj(functional.silu(self._normalise(y, tokens))), state

    def _normalise(self, y, tokens):
        """Apply the norm; one over the batch sees tokens alone."""
        if not isinstance(self.norm, nn.BatchNorm1d):
            return self.norm(y)
        if tokens is None:
            return self.norm(y.flatten(0, 1)).view_as(y)
        return y.masked_scatter(tokens[..., None], self.norm(y[tokens]))


@dataclass(frozen=True)
class Convolution(Spec):
    """The Conformer's convolution as a mixer, see :class:`ConvolutionModule`.

    In a decoder it hides the future.

    Args:
        width: rows that a filter sees; odd, unless the future is hidden.
        norm: "batch" or "layer".
        bias: whether the linear maps have one.

    Example:
        >>> Convolution(15).held(d_model=8, length=100)
        112

    Source: [gulati2020conformer]
    Explained in: chapters/09_hybrids.
    """

    width: int = 31
    _: KW_ONLY
    norm: str = "batch"
    bias: bool = True
    word = "convolution"

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        check_number("width", self.width, 1, whole=True)
        check_choice("convolution norm", self.norm, NORMS)
        check_bool("convolution_bias", self.bias)

    def check(self, site: Site) -> None:
        """Raise ValueError for an even width where the future is seen, or a look into a memory."""
        check_width(self.width, site.causal)
        if site.memory:
            raise ValueError("a convolution looks into no memory, it cannot be a layer's cross")

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = {"causal": site.causal, "norm": self.norm, "bias": self.bias}
        return ConvolutionModule(site.d_model, self.width, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the linear maps, the filters and the norm."""
        d, rows = run.d_model, run.batch * run.n
        up = run.linear(f"{name}.up_proj", d, 2 * d, bias=self.bias)
        yield up._replace(saved=up.saved + 2 * rows * d * run.bytes_per_number)  # for the gate
        work = {"moves": 2 * rows * d + d * self.width, "keeps": rows * d}
        yield run.rows(f"{name}.conv", d * self.width, 2 * rows * d * self.width, **work)
        yield run.rows(f"{name}.norm", 2 * d, keeps=rows * d)
        yield run.linear(f"{name}.down_proj", d, d, bias=self.bias, keeps=2 * rows * d)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the last rows, as many however long the sequence."""
        return d_model * (self.width - 1)


class ConformerState(NamedTuple):
    """What a Conformer's layer carries on: the states of its attention and its convolution.

    Attributes:
        attention: keys and values.
        convolution: the last rows; None at the start, or if the future is seen.

    Explained in: chapters/09_hybrids.
    """

    attention: KVState | None = None
    convolution: ConvState | None = None

    @property
    def length(self) -> int:
        """Return how many positions the attention holds."""
        return 0 if self.attention is None else self.attention.length

    @property
    def nbytes(self) -> int:
        """Return the bytes of both."""
        return sum(each.nbytes for each in self if each is not None)

    def select(self, rows: Int[Tensor, " S"]) -> "ConformerState":
        """Return the state of the chosen sequences of the batch, in the order given."""
        return ConformerState(*(each if each is None else each.select(rows) for each in self))


class ConformerBlock(Block):
    """A layer of a Conformer: half a feed-forward step, attention, convolution, another half step.

    x ← x + ½ first_ffn(norm(x)), x ← x + mixer(norm(x)), x ← x + convolution(norm(x)),
    y = norm(x + ½ ffn(norm(x))), each with norms of its own.

    Args:
        mixer: the attention, ``mixer(x, state=None, *, mask=None) -> (y, state)``.
        first_ffn, ffn: the feed-forward networks.
        convolution: such as :class:`ConvolutionModule`.
        norm: makes a norm of a given size.
        dropout: rate on what each sublayer adds.
        multiplier: factor on what the two feed-forward networks add.

    Attributes:
        final_norm: behind the last sum.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a rate out of range.

    Example:
        >>> import torch
        >>> from tfbook.attention import MultiHeadAttention
        >>> from tfbook.blocks.feed_forward import FeedForward
        >>> half = lambda: FeedForward(8, 32, kind="silu")
        >>> parts = MultiHeadAttention(8, n_heads=2), half(), half(), ConvolutionModule(8, 5)
        >>> ConformerBlock(*parts)(torch.randn(1, 9, 8))[0].shape
        torch.Size([1, 9, 8])

    Source: [gulati2020conformer], half steps: [lu2019understanding]
    Explained in: chapters/09_hybrids.
    """

    def __init__(
        self,
        mixer: nn.Module,
        first_ffn: nn.Module,
        ffn: nn.Module,
        convolution: nn.Module,
        *,
        norm: Callable[[int], nn.Module] = LayerNorm,
        dropout: float = 0.0,
        multiplier: float = 0.5,
    ):
        """Put a residual connection around each part."""
        check_callable("norm", norm)
        super().__init__(mixer, ffn, norm=norm, place="pre", dropout=dropout)
        check_module("first_ffn", first_ffn)
        check_module("convolution", convolution)
        width = ffn.d_model
        shared = {"place": "pre", "dropout": dropout}
        self.first_ffn = first_ffn
        self.first_ffn_residual = Residual(norm(width), multiplier=multiplier, **shared)
        self.convolution = convolution
        self.convolution_residual = Residual(norm(width), **shared)
        self.ffn_residual = Residual(norm(width), multiplier=multiplier, **shared)
        self.final_norm = norm(width)

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: BlockState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], BlockState]:
        """Pass x through the sublayers, continuing from a state.

        Args:
            x: (B, N, d_model).
            state: what the call before returned, None at the start of a sequence.
            mask: which rows are tokens, boolean, broadcasting to (B, 1, N), as ``padding_mask``.

        Returns:
            y (B, N, d_model), and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or a mask of pairs.
        """
        before = self._read_own(state)
        x = self._first(x)
        y, attended = self.mixer(self.mixer_residual.enter(x), before.attention, mask=mask)
        x = self.resid_mid(self.mixer_residual.leave(x, y))
        seen = self.convolution_residual.enter(x)
        y, convolved = self.convolution(seen, before.convolution, mask=mask)
        x = self.convolution_residual.leave(x, y)
        y = self.ffn(self.ffn_residual.enter(x))
        x = self.resid_post(self.final_norm(self.ffn_residual.leave(x, y)))
        return x, BlockState(ConformerState(attended, convolved))

    def weights(
        self,
        x: Float[Tensor, "B N D"],
        state: BlockState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B H N M"], None]:
        """Return the weights of the attention, and None, for there is no look into a memory.

        Arguments and errors are those of :meth:`forward`.
        """
        seen = self.mixer_residual.enter(self._first(x))
        return self.mixer.weights(seen, self._read_own(state).attention, mask=mask), None

    def empty_state(self, batch: int, *, cache: Cache | None = None) -> BlockState:
        """Return a state with nothing in it yet, the attention's in the cache of one's choice."""
        return BlockState(ConformerState(self.mixer.empty_state(batch, cache=cache)))

    def _first(self, x):
        x = self.resid_pre(x)
        return self.first_ffn_residual.leave(x, self.first_ffn(self.first_ffn_residual.enter(x)))

    def _read_own(self, state):
        own = self._read_state(state).mixer
        if not (own is None or isinstance(own, ConformerState)):
            raise TypeError(f"state.mixer must be a ConformerState, got {type(own).__name__}")
        return ConformerState() if own is None else own


@dataclass(frozen=True)
class ConformerLayer(Layer):
    """A layer of a Conformer, see :class:`ConformerBlock`, wherever a :class:`Layer` may stand.

    Args:
        mixer: the attention.
        ffn: the description of both feed-forward networks, which have weights of their own.
        convolution: what stands behind the attention.
        norm: of each sublayer, and behind the layer.
        dropout: rate on what each sublayer adds.
        multiplier: factor on what the two feed-forward networks add.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a value out of range, or a choice of :class:`Layer` that has no place here.

    Example:
        >>> from tfbook.models.layers import FFN, Attention
        >>> ConformerLayer(Attention(4), FFN(64, "silu"), convolution=Convolution(15)).multiplier
        0.5

    Source: [gulati2020conformer]
    Explained in: chapters/09_hybrids.
    """

    _: KW_ONLY
    multiplier: float = 0.5
    convolution: Spec = Convolution()

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        super().__post_init__()
        check_spec("convolution", self.convolution)
        if self.cross is not None or self.parallel or self.place != "pre":
            raise ValueError(
                "a ConformerLayer has place 'pre', is not parallel and looks into no memory, got "
                f"place {self.place!r}, parallel {self.parallel} and cross {self.cross}"
            )

    def check(self, site: Site) -> None:
        """Raise an error where a part does not fit its place."""
        super().check(site)
        self.convolution.check(site)

    def build(self, site: Site) -> nn.Module:
        """Make the block."""
        return ConformerBlock(
            self.mixer.build(site),
            self.ffn.build(site),
            self.ffn.build(site),
            self.convolution.build(site),
            norm=self.norm.make,
            dropout=self.dropout,
            multiplier=self.multiplier,
        )

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the four sublayers, each with its norm, and the norm behind them."""
        own = replace(run, m=None)
        order = ("first_ffn", self.ffn), ("mixer", self.mixer)
        order += ("convolution", self.convolution), ("ffn", self.ffn)
        for part, described in order:
            yield _norm(self.norm, f"{name}.{part}_residual.norm", run)
            *steps, last = described.price(f"{name}.{part}", own)
            dropped = run.dropped(self.dropout, run.batch * run.n * run.d_model)
            yield from (*steps, last._replace(saved=last.saved + dropped))
        yield _norm(self.norm, f"{name}.final_norm", run)


def _norm(norm: Norm, name: str, run: Run) -> Part:
    keeps = run.batch * run.n * norm.keeps(run.d_model)
    return run.rows(name, norm.parameters(run.d_model), keeps=keeps)


def check_width(width: object, causal: bool) -> None:
    """Raise unless a filter of this width has a middle, or needs none.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is below 1, or even where the future is seen.
    """
    check_number("width", width, 1, whole=True)
    if not causal and width % 2 == 0:
        raise ValueError(f"width must be odd, so that a filter has a middle, got {width}")
