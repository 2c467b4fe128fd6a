"""State spaces as parts of a layer: S4D, Mamba and Mamba-2, described, built and priced.

A Mamba layer is a mixer alone, ``Layer(Mamba(), NoFFN(), parallel=True, one_norm=True)``; in a
hybrid it may have a feed-forward network like any other.

Explained in: chapters/09_hybrids, section "A hybrid is a list".
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import check_bool, check_choice, check_even, check_number
from tfbook.models.layers import Norm, check_spec
from tfbook.models.mixers import check_causal, linear_state_flops, refuse_cross
from tfbook.models.spec import Part, Run, Site, Spec
from tfbook.recurrent import Mamba2Mixer, MambaMixer, S4DMixer, heads_of

__all__ = ["S4D", "Mamba", "Mamba2"]


@dataclass(frozen=True)
class S4D(Spec):
    """State spaces with a diagonal A that does not change, see :class:`tfbook.recurrent.S4DMixer`.

    The FLOPs are those of its matrix products; the Fourier transforms of a convolution are not
    counted.

    Args:
        d_state: N, even: numbers in the state of a column.
        kind: how A begins, "lin" or "inv".

    Example:
        >>> S4D(16).held(64, length=1000)  # numbers, however long the sequence
        1024

    Source: [gu2022parameterization]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """

    d_state: int = 64
    kind: str = "lin"
    word = "s4d"
    of_memory = refuse_cross

    def __post_init__(self) -> None:
        """Check the choices."""
        check_even("d_state", self.d_state)
        check_choice("kind", self.kind, ("lin", "inv"))

    def check(self, site: Site) -> None:
        """Raise ValueError where the place is no decoder."""
        check_causal("S4D", site)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        return S4DMixer(site.d_model, self.d_state, kind=self.kind)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the convolution, or one step where there is one row, and the output."""
        d, size, numbers = run.d_model, run.d_model * self.d_state, run.batch * run.n * run.d_model
        # Kernel, last state, and what is left of the first one: half as many complex numbers.
        products = (1 + run.batch * (1 + (run.past > 0))) * (run.n > 1)
        flops, weights = products * size * run.n, 2 * d + 2 * size
        memory = {"moves": 2 * numbers + weights + size * run.n * 2, "keeps": 2 * size * run.n}
        yield run.rows(f"{name}.kernel", weights, flops, **memory)
        yield run.linear(f"{name}.out_proj", d, 2 * d)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the state, two for a complex one."""
        return d_model * self.d_state


class _Convolved:
    """What both Mambas share: a short convolution, and places where they fit."""

    of_memory = refuse_cross

    def _check_sizes(self, *names: str) -> None:
        for name in ("d_state", "expand", "width", *names):
            check_number(name, getattr(self, name), 1, whole=True)
        check_bool("mixer_bias", self.bias)
        check_bool("conv_bias", self.conv_bias)

    def check(self, site: Site) -> None:
        """Raise ValueError where the place is no decoder."""
        check_causal(type(self).__name__, site)

    def _convolution(self, name: str, run: Run, columns: int) -> Part:
        """Return the row of the convolution and the SiLU behind it."""
        weights, numbers = columns * (self.width + self.conv_bias), run.batch * run.n * columns
        memory = {"moves": 2 * numbers + weights, "keeps": 2 * numbers}
        flops = 2 * numbers * self.width
        return run.part(f"{name}.conv", (run.batch, run.n, columns), weights, flops, **memory)


@dataclass(frozen=True)
class Mamba(_Convolved, Spec):
    """A state space that chooses what to keep, see :class:`tfbook.recurrent.MambaMixer`.

    Args:
        d_state: S, numbers in the state of a column.
        expand: columns inside, in multiples of d_model.
        width: rows that the convolution sees.
        rank: of the map that makes Δ; ⌈d_model / 16⌉ when omitted.
        bias: whether the maps in and out have one.
        conv_bias: whether the convolution has one.
        inner_norm: the norm of each of r, B and C, from which Δ and the state are made; None for
            none. Jamba has it, whose large models were not stable without.

    Example:
        >>> Mamba().held(64, length=1000)  # numbers, however long the sequence
        2432

    Source: [gu2024mamba], inner norms: [lieber2024jamba]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """

    d_state: int = 16
    _: KW_ONLY
    expand: int = 2
    width: int = 4
    rank: int | None = None
    bias: bool = False
    conv_bias: bool = True
    inner_norm: Norm | None = None
    word = "mamba"

    def __post_init__(self) -> None:
        """Check the choices."""
        self._check_sizes(*["rank"] * (self.rank is not None))
        check_spec("inner_norm", self.inner_norm, Norm, open=True)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        mixer = MambaMixer(
            site.d_model,
            self.d_state,
            expand=self.expand,
            width=self.width,
            rank=self.rank,
            bias=self.bias,
            conv_bias=self.conv_bias,
        )
        if self.inner_norm is not None:
            sizes = {"r": mixer.rank, "b": mixer.d_state, "c": mixer.d_state}
            mixer.x_proj = NormedParts(mixer.x_proj, sizes, self.inner_norm.make)
        return mixer

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the map in, the convolution, the maps to Δ, B and C, the scan, the map out."""
        d, inner = run.d_model, self.expand * run.d_model
        rank = -(-d // 16) if self.rank is None else self.rank
        numbers = run.batch * run.n * inner
        yield run.linear(f"{name}.in_proj", d, 2 * inner, bias=self.bias)
        yield self._convolution(name, run, inner)
        yield run.linear(f"{name}.x_proj", inner, rank + 2 * self.d_state, bias=False)
        if self.inner_norm is not None:
            for part, size in (("r", rank), ("b", self.d_state), ("c", self.d_state)):
                weights, rows = self.inner_norm.parameters(size), run.batch * run.n
                memory = {"moves": 2 * rows * size + weights}
                memory["keeps"] = rows * self.inner_norm.keeps(size)
                shape = (run.batch, run.n, size)
                yield run.part(f"{name}.x_proj.norms.{part}", shape, weights, **memory)
        yield run.linear(f"{name}.delta_proj", rank, inner)
        whole, weights = numbers * self.d_state, inner * (self.d_state + 1)
        memory = {"moves": 6 * whole + weights, "keeps": 3 * whole + 5 * numbers}
        shape = (run.batch, run.n, inner)
        yield run.part(f"{name}.scan", shape, weights, 2 * whole, **memory)
        yield run.linear(f"{name}.out_proj", inner, d, bias=self.bias)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the state and of the rows that the convolution still sees."""
        return self.expand * d_model * (self.d_state + self.width - 1)


class NormedParts(nn.Module):
    """A linear map of which each part of the answer is normalised by itself."""

    def __init__(self, proj: nn.Linear, sizes: dict[str, int], norm: Callable[[int], nn.Module]):
        """Make a norm for each part, which the sizes name."""
        super().__init__()
        self.proj, self.sizes = proj, tuple(sizes.values())
        self.norms = nn.ModuleDict({name: norm(size) for name, size in sizes.items()})

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B E"]:
        """Return the parts side by side."""
        parts = self.proj(x).split(self.sizes, dim=-1)
        normed = (norm(part) for norm, part in zip(self.norms.values(), parts, strict=True))
        return torch.cat(list(normed), dim=-1)


@dataclass(frozen=True)
class Mamba2(_Convolved, Spec):
    """A state space that is a masked attention too, see :class:`tfbook.recurrent.Mamba2Mixer`.

    Args:
        d_state: S, the size of B and C.
        d_head: P, columns of a head; it divides expand · d_model.
        expand: columns inside, in multiples of d_model.
        n_groups: how many B and C; it divides the number of heads.
        width: rows that the convolution sees.
        bias: whether the maps in and out have one.
        conv_bias: whether the convolution has one.
        chunk: rows in a chunk.

    Example:
        >>> Mamba2(16, d_head=32).held(64, length=1000)  # numbers, however long the sequence
        2528

    Source: [dao2024transformers]
    Explained in: chapters/09_hybrids, section "One map, three ways to compute it".
    """

    d_state: int = 128
    _: KW_ONLY
    d_head: int = 64
    expand: int = 2
    n_groups: int = 1
    width: int = 4
    bias: bool = False
    conv_bias: bool = True
    chunk: int = 64
    word = "mamba2"

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        self._check_sizes("d_head", "n_groups", "chunk")

    def check(self, site: Site) -> None:
        """Raise ValueError where the sizes do not divide each other, or the place is no decoder."""
        heads_of(self.expand * site.d_model, self.d_head, self.n_groups)
        super().check(site)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        return Mamba2Mixer(
            site.d_model,
            self.d_state,
            expand=self.expand,
            d_head=self.d_head,
            n_groups=self.n_groups,
            width=self.width,
            bias=self.bias,
            conv_bias=self.conv_bias,
            chunk=self.chunk,
        )

    def _columns(self, d_model: int) -> int:
        """Count the columns that the convolution sees."""
        return self.expand * d_model + 2 * self.n_groups * self.d_state

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the map in, the convolution, writing and reading the state, norm, the map out."""
        d, inner, columns = run.d_model, self.expand * run.d_model, self._columns(run.d_model)
        heads = heads_of(inner, self.d_head, self.n_groups)
        numbers, lines = run.batch * run.n * inner, run.batch * heads
        yield run.linear(f"{name}.in_proj", d, inner + columns + heads, bias=self.bias)
        yield self._convolution(name, run, columns)
        flops = lines * linear_state_flops(run.n, self.d_state, self.d_head, self.chunk)
        rows = lines * run.n * (2 * self.d_state + 2 * self.d_head + min(run.n, self.chunk))
        memory = {"moves": rows + 3 * heads, "keeps": rows}
        shape = (run.batch, heads, run.n, self.d_head)
        yield run.part(f"{name}.state", shape, 3 * heads, flops, **memory)
        memory = {"moves": 3 * numbers + inner, "keeps": 4 * numbers}
        yield run.part(f"{name}.norm", (run.batch, run.n, inner), inner, **memory)
        yield run.linear(f"{name}.out_proj", inner, d, bias=self.bias)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the state and of the rows that the convolution still sees."""
        state = self.expand * d_model * self.d_state
        return state + self._columns(d_model) * (self.width - 1)
