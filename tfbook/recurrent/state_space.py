"""State-space models: a linear differential equation, made discrete, as a layer of a network.

h'(t) = A h(t) + B x(t), y(t) = C h(t): in steps of Δ it is a linear recurrence, and since A, B and
C do not depend on x also a convolution. S4D has a diagonal A of complex numbers.

Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Complex, Float, Inexact, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_choice,
    check_even,
    check_float,
    check_number,
    check_rows,
    check_same,
    check_shape,
    check_tensor,
)
from tfbook.attention import at_least_float32
from tfbook.recurrent.scan import read_tokens, scan_sequential

__all__ = [
    "S4DMixer",
    "S4DState",
    "convolve_causal",
    "discretize",
    "discretize_diagonal",
    "hippo_legs",
    "legendre_memory",
    "legendre_series",
    "s4d_initial",
]

METHODS = ("zoh", "bilinear")
Matrix = Float[Tensor, "*#B S S"]


def discretize(
    a: Matrix, b: Float[Tensor, "*#B S R"], delta: float, *, method: str = "zoh"
) -> tuple[Float[Tensor, "*B S S"], Float[Tensor, "*B S R"]]:
    """Turn h'(t) = A h(t) + B x(t) into steps h_t = Ā h_{t−1} + B̄ x_t of length Δ.

    Zero-order hold, exact for an x that is constant during each step:
    Ā = exp(Δ A), B̄ = ∫_0^Δ exp(s A) ds B, which is A⁻¹ (Ā − I) B where A has an inverse.
    Bilinear: Ā = (I − Δ/2 A)⁻¹ (I + Δ/2 A), B̄ = (I − Δ/2 A)⁻¹ Δ B.

    Args:
        a: A, (..., s, s); it may be singular.
        b: B, (..., s, r).
        delta: Δ, above 0.
        method: "zoh" or "bilinear".

    Returns:
        Ā and B̄.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit.

    Example:
        >>> discretize(torch.zeros(1, 1), torch.ones(1, 1), 0.5)  # h' = x
        (tensor([[1.]]), tensor([[0.5000]]))

    Source: [gu2022efficiently]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """
    check_float("a", a, min_dims=2)
    check_float("b", b, min_dims=2)
    check_same(a=a, b=b)
    size = a.shape[-1]
    check_shape("a", a, (*a.shape[:-2], size, size), "(..., s, s)")
    check_shape("b", b, (*b.shape[:-2], size, b.shape[-1]), "(..., s, r)")
    check_number("delta", delta, above=0)
    check_choice("method", method, METHODS)
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"a and b must broadcast, got {tuple(a.shape)} and {tuple(b.shape)}"
        ) from None
    a, b = a.expand(*batch, size, size), b.expand(*batch, size, b.shape[-1])
    if method == "zoh":  # exp of [[A, B], [0, 0]] has both integrals
        both = functional.pad(torch.cat([a, b], dim=-1), (0, 0, 0, b.shape[-1]))
        both = torch.linalg.matrix_exp(delta * both)
        return both[..., :size, :size], both[..., :size, size:]
    half = delta / 2 * a
    eye = torch.eye(size, dtype=a.dtype, device=a.device)
    return torch.linalg.solve(eye - half, eye + half), torch.linalg.solve(eye - half, delta * b)


def discretize_diagonal(
    a: Inexact[Tensor, "..."], delta: Float[Tensor, "..."], *, method: str = "zoh"
) -> tuple[Inexact[Tensor, "..."], Inexact[Tensor, "..."]]:
    """Do what :func:`discretize` does for a diagonal A and B = 1, number by number.

    Zero-order hold: ā = exp(Δ a), b̄ = (exp(Δ a) − 1) / a, which is Δ at a = 0. Bilinear:
    ā = (1 + Δ a / 2) / (1 − Δ a / 2), b̄ = Δ / (1 − Δ a / 2).

    Args:
        a: the diagonal, real or complex.
        delta: Δ, real, any shape that broadcasts with a.
        method: "zoh" or "bilinear".

    Returns:
        ā and b̄, of the common shape.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that do not broadcast, or an unknown method.

    Example:
        >>> discretize_diagonal(torch.tensor([0.0, -2.0]), torch.tensor(0.5))
        (tensor([1.0000, 0.3679]), tensor([0.5000, 0.3161]))

    Source: [gu2022parameterization]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """
    check_tensor("a", a)
    if not (a.is_floating_point() or a.is_complex()):
        raise TypeError(f"a must be real or complex floating point, got {a.dtype}")
    check_float("delta", delta)
    check_choice("method", method, METHODS)
    if a.dtype.to_real() != delta.dtype:
        raise TypeError(f"a and delta must be equally precise, got {a.dtype} and {delta.dtype}")
    try:
        torch.broadcast_shapes(a.shape, delta.shape)
    except RuntimeError:
        raise ValueError(
            f"a and delta must broadcast, got {tuple(a.shape)} and {tuple(delta.shape)}"
        ) from None
    step = delta * a
    if method == "bilinear":
        return (1 + step / 2) / (1 - step / 2), delta / (1 - step / 2)
    small = step.abs() < 1e-4  # there (exp(z) − 1) / z by its series, exact to z³ / 24
    safe = torch.where(small, torch.ones_like(step), step)
    share = torch.where(small, 1 + step / 2 * (1 + step / 3), torch.expm1(safe) / safe)
    return step.exp(), delta * share


def s4d_initial(size: int, kind: str = "lin") -> Complex[Tensor, " S"]:
    """Return the diagonal that S4D begins with: one number of each conjugate pair.

    "lin": a_n = −1/2 + iπn. "inv": a_n = −1/2 + i (N / π) (N / (2n + 1) − 1), n = 0 … N/2 − 1.

    Args:
        size: N, even, the numbers of the state with their conjugates.
        kind: "lin" or "inv".

    Returns:
        a, (N / 2,), complex128.

    Raises:
        TypeError: if the size is not an integer.
        ValueError: if it is odd or below 2, or no kind has this name.

    Example:
        >>> s4d_initial(4).imag / math.pi
        tensor([0., 1.], dtype=torch.float64)

    Source: [gu2022parameterization]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """
    check_even("size", size)
    check_choice("kind", kind, ("lin", "inv"))
    n = torch.arange(size // 2, dtype=torch.float64)
    speed = math.pi * n if kind == "lin" else size / math.pi * (size / (2 * n + 1) - 1)
    return torch.complex(torch.full_like(n, -0.5), speed)


def convolve_causal(
    x: Float[Tensor, "*B N D"], kernel: Float[Tensor, "D M"]
) -> Float[Tensor, "*B N D"]:
    """Convolve each column with its own kernel, by FFT: y[t, c] = Σ_l kernel[c, l] x[t − l, c].

    Rows before the first are 0. Both are filled up with zeros to n + m − 1 places, for an FFT goes
    in a circle.

    Args:
        x: (..., n, d).
        kernel: (d, m).

    Returns:
        (..., n, d) in the dtype of x.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that do not fit.

    Example:
        >>> convolve_causal(torch.eye(3)[:, :1], torch.ones(1, 2)).flatten().round().abs()
        tensor([1., 1., 0.])

    Cost: d n log n, about 15 d n log₂(2n) FLOPs where n = m, and not d n².

    Source: [gu2022efficiently]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """
    check_float("x", x, min_dims=2)
    check_float("kernel", kernel)
    check_same(x=x, kernel=kernel)
    if kernel.ndim != 2 or kernel.shape[0] != x.shape[-1]:
        raise ValueError(
            f"kernel must have shape (d, m) = ({x.shape[-1]}, m), got {tuple(kernel.shape)}"
        )
    n = x.shape[-2]
    if not (n and kernel.shape[-1]):
        return torch.zeros_like(x)
    wide, kernel = at_least_float32(x), at_least_float32(kernel)
    size = n + kernel.shape[-1] - 1
    spectrum = torch.fft.rfft(wide, size, dim=-2) * torch.fft.rfft(kernel, size, dim=-1).mT
    return torch.fft.irfft(spectrum, size, dim=-2)[..., :n, :].to(x.dtype)


def hippo_legs(
    size: int, *, dtype: torch.dtype = torch.float64
) -> tuple[Float[Tensor, "S S"], Float[Tensor, "S 1"]]:
    """Return the matrices of HiPPO-LegS, with which a state remembers the whole past evenly.

    A_nk = −√((2n + 1)(2k + 1)) for n > k, −(n + 1) for n = k, 0 for n < k, and B_n = √(2n + 1).
    With h'(t) = (A h(t) + B x(t)) / t, h_n(t) is the coefficient of x on [0, t] for the Legendre
    polynomial of degree n, stretched to [0, t] and of mean square 1.

    Args:
        size: numbers in the state, at least 1.
        dtype: of the matrices.

    Returns:
        A (size, size) and B (size, 1).

    Raises:
        TypeError: if the size is not an integer, or the dtype not floating point.
        ValueError: if it is below 1.

    Example:
        >>> hippo_legs(2)[0]
        tensor([[-1.0000,  0.0000],
                [-1.7321, -2.0000]], dtype=torch.float64)

    Source: [gu2020hippo]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """
    check_number("size", size, 1, whole=True)
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype must be floating point, got {dtype!r}")
    n = torch.arange(size, dtype=torch.float64)
    root = (2 * n + 1).sqrt()
    a = -(root[:, None] * root).tril(-1) - torch.diag(n + 1)
    return a.to(dtype) + 0.0, root[:, None].to(dtype)


def legendre_memory(x: Float[Tensor, "*B N"], size: int) -> Float[Tensor, "*B S"]:
    """Read a sequence with HiPPO-LegS and return what its state remembers of it.

    In τ = log t the equation is h' = A h + B x, so the exact step from t = k − 1 to k, with x
    constant between, is a zero-order hold of length log(k / (k − 1)): with Ā_k = (k / (k − 1))^A,
    h_k = Ā_k h_{k−1} + (1 − Ā_k) e_0 x_k, for −A⁻¹ B = e_0, and h_1 = e_0 x_1.

    Args:
        x: a function of n steps of equal length, (..., n).
        size: numbers in the state.

    Returns:
        The state, (..., size): coefficients for :func:`legendre_series`.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a size below 1, or no value.

    Example:
        >>> legendre_memory(torch.tensor([1.0, 3.0]), size=2)  # the mean, and a rise
        tensor([2.0000, 0.8660])

    Cost: n matrix exponentials of (size, size).

    Source: [gu2020hippo]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """
    check_float("x", x, min_dims=1)
    if not x.shape[-1]:
        raise ValueError(f"x must hold at least one value, got shape {tuple(x.shape)}")
    a, n = hippo_legs(size)[0].to(x.device), x.shape[-1]
    later = torch.arange(2, n + 1, dtype=a.dtype, device=x.device)
    steps = torch.linalg.matrix_exp((later / (later - 1)).log()[:, None, None] * a)  # Ā_2 … Ā_n
    first, *values = x.to(a.dtype)[..., None].unbind(-2)  # (..., 1) each
    constant = functional.one_hot(torch.zeros((), dtype=torch.long), size).to(a)
    held = first * constant
    for step, value in zip(steps.unbind(0), values, strict=True):
        held = (held - value * constant) @ step.mT + value * constant
    return held.to(x.dtype)


def legendre_series(
    coefficients: Float[Tensor, "*B S"], places: Float[Tensor, " M"]
) -> Float[Tensor, "*B M"]:
    """Evaluate Σ_n c_n √(2n + 1) P_n(2u − 1): what a state of HiPPO-LegS says of the past.

    Args:
        coefficients: c, (..., s).
        places: u from 0, the beginning, to 1, now, (m,).

    Returns:
        Values (..., m).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit.

    Example:
        >>> legendre_series(torch.tensor([2.0, 1.0]), torch.tensor([0.0, 0.5, 1.0]))
        tensor([0.2679, 2.0000, 3.7321])

    Source: [gu2020hippo]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """
    check_float("coefficients", coefficients, min_dims=1)
    check_float("places", places)
    check_same(coefficients=coefficients, places=places)
    if places.ndim != 1:
        raise ValueError(f"places must have shape (m,), got {tuple(places.shape)}")
    u = 2 * places - 1
    rows = [torch.ones_like(u), u]
    for n in range(1, coefficients.shape[-1] - 1):  # Bonnet: (n + 1) P_{n+1} = (2n + 1) u P_n − …
        rows.append(((2 * n + 1) * u * rows[n] - n * rows[n - 1]) / (n + 1))
    rows = [(2 * n + 1) ** 0.5 * row for n, row in enumerate(rows[: coefficients.shape[-1]])]
    if not rows:
        return places.new_zeros(*coefficients.shape[:-1], len(places))
    return coefficients @ torch.stack(rows)


@dataclass(frozen=True, eq=False)
class S4DState:
    """What an S4D layer carries on; never changed.

    Attributes:
        h: the state of each column, (B, d_model, d_state / 2), complex; b̄ is not in it yet.
        seen: how many rows came before the next one, masked ones included.

    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """

    h: Complex[Tensor, "B D S"]
    seen: int

    @property
    def length(self) -> int:
        """Return how many rows were read."""
        return self.seen

    @property
    def nbytes(self) -> int:
        """Return the bytes of h."""
        return self.h.nbytes

    def select(self, rows: Int[Tensor, " S"]) -> "S4DState":
        """Return the state of the chosen sequences of the batch, in the order given."""
        return replace(self, h=self.h[rows])


class S4DMixer(nn.Module):
    """A state space for each column, with a diagonal A: S4D, as a mixer.

    h_t = ā ⊙ h_{t−1} + x_t and z_t = 2 Re((c ⊙ b̄) · h_t) + D x_t for each of the d_model columns,
    with ā and b̄ by zero-order hold; since b̄ does not change it can wait for c. Then
    y = W₁ g + b₁, times σ(W₂ g + b₂), with g = GELU(z), mixes columns.
    Since ā, b̄ and c are the same at each t, z is a convolution of x with the kernel
    K_l = 2 Re(Σ_s c_s ā_s^l b̄_s), computed by FFT for all rows at once.

    Args:
        d_model: columns of x and y.
        d_state: N, even; N / 2 complex numbers for each column stand for as many pairs.
        kind: how A begins, "lin" or "inv", see :func:`s4d_initial`.
        delta: smallest and largest Δ that a column begins with.

    Attributes:
        log_delta: log Δ, (d_model,).
        log_rate, speed: a = −exp(log_rate) + i speed, (d_model, N / 2) each.
        c: real and imaginary parts, (d_model, N / 2, 2).
        skip: D, (d_model,).
        out_proj: W₁ over W₂, (2 d_model, d_model), and their biases.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Cost: 2 d_model² + d_model (2 N + 4) parameters; a row alone takes O(d_model N), all n rows
        O(d_model n (N + log n)); the state holds d_model N / 2 complex numbers.

    Example:
        >>> mixer = S4DMixer(4, d_state=6)
        >>> x = torch.randn(1, 5, 4)
        >>> whole, _ = mixer(x)
        >>> start, state = mixer(x[:, :2])
        >>> rest, state = mixer(x[:, 2:], state)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-5), state.length
        (True, 5)

    Source: [gu2022parameterization]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        kind: str = "lin",
        delta: tuple[float, float] = (0.001, 0.1),
    ):
        """Begin with the A of ``kind``, random Δ and c, and D = 1."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        start = s4d_initial(d_state, kind)
        low, high = check_range(delta)
        self.d_model, self.d_state, self.kind = d_model, d_state, kind
        rows, dtype = (d_model, d_state // 2), torch.get_default_dtype()
        rate, speed = (each.to(dtype).expand(rows).clone() for each in (-start.real, start.imag))
        self.log_rate, self.speed = nn.Parameter(rate.log()), nn.Parameter(speed)
        self.log_delta = nn.Parameter(torch.empty(d_model).uniform_(math.log(low), math.log(high)))
        self.c = nn.Parameter(torch.randn(*rows, 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.ones(d_model))
        self.out_proj = nn.Linear(d_model, 2 * d_model)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.d_model}, d_state={self.d_state}, kind={self.kind!r}"

    def steps(self) -> tuple[Complex[Tensor, "D S"], Complex[Tensor, "D S"]]:
        """Return ā and c ⊙ b̄, (d_model, d_state / 2) each."""
        rate, speed, delta, c = map(
            at_least_float32, (self.log_rate.exp(), self.speed, self.log_delta.exp(), self.c)
        )
        a, b = discretize_diagonal(torch.complex(-rate, speed), delta[:, None])
        return a, b * torch.view_as_complex(c.contiguous())

    def kernel(self, n: int) -> Float[Tensor, "D N"]:
        """Return the first n numbers of each column's kernel, K_l = 2 Re(Σ_s c_s ā_s^l b̄_s).

        Raises:
            TypeError: if n is not an integer.
            ValueError: if it is negative.
        """
        check_number("n", n, 0, whole=True)
        a, c = self.steps()
        return 2 * torch.einsum("ds,dsl->dl", c, _powers(a, n)).real

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: S4DState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], S4DState]:
        """Pass the rows of x through the state spaces, continuing from a state.

        Args:
            x: (B, N, d_model).
            state: what the call before returned; None at the start of a sequence.
            mask: which rows are tokens, boolean, broadcasting to (B, 1, N), as ``padding_mask``.
                A row that is none leaves the state as it is.

        Returns:
            y (B, N, d_model), and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or a mask that is not one of rows.
        """
        check_rows("x", x, self.out_proj.weight)
        a, c = self.steps()
        held, seen = self._read_state(x, state, a)
        tokens = read_tokens(mask, x)
        wide = at_least_float32(x)
        if tokens is None and x.shape[1] > 1:
            z, last = self._convolve(wide, held, a, c)
        else:
            z, last = _recur(wide, held, a, c, tokens)
        z = z + at_least_float32(self.skip) * wide
        y = functional.glu(self.out_proj(functional.gelu(z).to(x.dtype)), dim=-1)
        return y, S4DState(last, seen + x.shape[1])

    def _convolve(self, x, held, a, c):
        """Return z without D x, and the last h, by convolution."""
        n = x.shape[1]
        powers = _powers(a, n + 1)  # ā^0 … ā^n
        kernel = 2 * torch.einsum("ds,dsl->dl", c, powers[..., :n]).real
        z = convolve_causal(x, kernel)
        # What is left of each row, and of h_0, after the steps that follow.
        last = torch.einsum("dsl,bld->bds", powers[..., :n].flip(-1), x.to(powers.dtype))
        if held is None:
            return z, last
        old = 2 * torch.einsum("bds,dst->btd", held * c, powers[..., 1:]).real
        return z + old, last + held * powers[..., n]

    def _read_state(self, x, state, a):
        """Return h before x and how many rows were read."""
        shape = (len(x), *a.shape)
        if state is None:
            return None, 0
        if not isinstance(state, S4DState):
            raise TypeError(f"state must be an S4DState, got {type(state).__name__}")
        check_shape("state.h", state.h, shape, "(B, d_model, d_state / 2)")
        if state.h.dtype != a.dtype:
            raise TypeError(f"state.h must have dtype {a.dtype}, got {state.h.dtype}")
        return state.h, state.seen


def check_range(delta: object) -> tuple[float, float]:
    """Return the smallest and the largest Δ.

    Raises:
        TypeError: if they are not a pair of numbers.
        ValueError: if they are not positive and in order.
    """
    if not isinstance(delta, tuple | list) or len(delta) != 2:
        raise TypeError(f"delta must be a pair, the smallest and the largest, got {delta!r}")
    low, high = delta
    check_number("the smallest delta", low, above=0)
    check_number("the largest delta", high, low)
    return low, high


def _powers(a, n):
    """Return a^0 … a^{n−1} in a new last dimension, by halves."""
    powers = torch.ones_like(a)[..., None]
    while powers.shape[-1] < n:
        powers = torch.cat([powers, powers * (powers[..., -1:] * a[..., None])], dim=-1)
    return powers[..., :n]


def _recur(x, held, a, c, tokens):
    """Return z without D x, and the last h, row by row."""
    a, rows = a.expand(*x.shape[:2], *a.shape), x[..., None].to(a.dtype)
    if tokens is not None:
        here = tokens[:, :, None, None]
        a, rows = torch.where(here, a, 1.0), torch.where(here, rows, 0.0)
    h, last = scan_sequential(a, rows.expand(a.shape), state=held)
    return 2 * (h * c).sum(-1).real, last
