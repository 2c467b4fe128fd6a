"""Differential attention: the difference of two softmax attentions, so that noise falls out.

Explained in: chapters/08_architectural_variants_deeper, section "Attention that subtracts".
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_bool,
    check_callable,
    check_number,
    check_rows,
    check_same,
    check_shape,
)
from tfbook.attention.caches import Cache, make_empty
from tfbook.attention.exact import attend_sdpa
from tfbook.attention.heads import merge_heads, split_heads
from tfbook.attention.masks import combine_masks
from tfbook.attention.states import KVState, read_mask
from tfbook.positions import RotaryPosition, places_for

__all__ = ["DifferentialAttention", "first_lambda"]


def first_lambda(layer: int) -> float:
    """Return λ_init = 0.8 − 0.6 e^(−0.3 layer), layers counted from 0: 0.2, 0.36, … towards 0.8.

    Args:
        layer: number of the layer.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is negative.

    Example:
        >>> [round(first_lambda(layer), 3) for layer in (0, 1, 11)]
        [0.2, 0.356, 0.778]

    Source: [ye2025differential]
    Explained in: chapters/08_architectural_variants_deeper, section "Attention that subtracts".
    """
    check_number("layer", layer, 0, whole=True)
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DifferentialAttention(nn.Module):
    """Attend twice with each head, and take λ of the second map from the first.

    head = (softmax(q₁ k₁ᵀ / √d) − λ softmax(q₂ k₂ᵀ / √d)) v with q₁, q₂, k₁, k₂ of d = d_model / 2H
    features and v of 2d; λ = exp(λ_q1 · λ_k1) − exp(λ_q2 · λ_k2) + λ_init, one for the layer. Each
    head is then normalised by its root mean square and multiplied with 1 − λ_init, so that what
    the layer adds is as large as that of attention. Called like every mixer, see
    :class:`tfbook.attention.MultiHeadAttention`.

    Args:
        d_model: features of x and y.
        n_heads: H; as many parameters as attention with 2H heads.
        layer: number of the layer, from 0, for λ_init.
        lambda_init: λ_init itself, in the place of :func:`first_lambda` of the layer.
        causal: hide the future, aligned to the last key.
        attend: the attention function, called with two query heads for each head.
        position: None or a part with ``rotate``, such as rotary positions for d features.
        normalise: whether each head is normalised and scaled.
        eps: ε of that norm.

    Attributes:
        q_proj, k_proj, v_proj, out_proj: the linear maps, without biases. Head h has the features
            2hd … 2(h + 1)d, those of the first map before those of the second.
        lambda_q1, lambda_k1, lambda_q2, lambda_k2: (d,) each.
        norm_weight: γ of the norm, (2d,), shared by the heads; None without.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit, or a λ_init outside 0 … 1.

    Cost: 8 · d_model² FLOPs a row for the projections, as attention; 2 · n · m · d_model for the
        scores and 4 · n · m · d_model for mixing. SDPA has queries and keys filled up with zeros
        to the size of the values, so that its scores cost 4 · n · m · d_model.

    Example:
        >>> mixer = DifferentialAttention(8, n_heads=2, causal=True)
        >>> x = torch.randn(1, 5, 8)
        >>> whole, _ = mixer(x)
        >>> start, state = mixer(x[:, :3])
        >>> rest, state = mixer(x[:, 3:], state)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-5)
        True

    Source: [ye2025differential]
    Explained in: chapters/08_architectural_variants_deeper, section "Attention that subtracts".
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        layer: int = 0,
        lambda_init: float | None = None,
        causal: bool = False,
        attend: Callable[..., Tensor] = attend_sdpa,
        position: RotaryPosition | None = None,
        normalise: bool = True,
        eps: float = 1e-5,
    ):
        """Make the projections, Xavier uniform, and the vectors of λ, normal with std 0.1."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_number("n_heads", n_heads, 1, whole=True)
        if d_model % (2 * n_heads):
            raise ValueError(f"2 · n_heads must divide d_model, got {n_heads} and {d_model}")
        given = first_lambda(layer) if lambda_init is None else lambda_init
        check_number("lambda_init", given, 0, below=1)
        check_bool("causal", causal)
        check_callable("attend", attend)
        if position is not None and not callable(getattr(position, "rotate", None)):
            raise TypeError(f"position must have rotate, got {type(position).__name__}")
        check_bool("normalise", normalise)
        check_number("eps", eps, above=0)
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_model // (2 * n_heads)
        self.causal, self.attend, self.position = causal, attend, position
        self.lambda_init, self.eps = given, eps
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.empty(self.d_head)) for _ in range(4)
        )
        self.norm_weight = nn.Parameter(torch.ones(2 * self.d_head)) if normalise else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
        for vector in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
            nn.init.normal_(vector, std=0.1)
        if self.norm_weight is not None:
            nn.init.ones_(self.norm_weight)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return (
            f"d_model={self.d_model}, n_heads={self.n_heads}, d_head={self.d_head}, "
            f"causal={self.causal}, lambda_init={self.lambda_init:.3f}"
        )

    @property
    def weight(self) -> Float[Tensor, ""]:
        """Return λ as it stands, in float32 at least."""
        exact = torch.promote_types(self.lambda_q1.dtype, torch.float32)
        q1, k1, q2, k2 = (
            each.to(exact)
            for each in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2)
        )
        return (q1 @ k1).exp() - (q2 @ k2).exp() + self.lambda_init

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: KVState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], KVState]:
        """Mix the rows of x, continuing from a state.

        Args:
            x: (B, N, d_model).
            state: what the call before returned, None at the start of a sequence. Its keys have
                both halves of each head, (B, H, M, 2d).
            mask: as for :meth:`tfbook.attention.MultiHeadAttention.forward`.

        Returns:
            y (B, N, d_model), and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit.
        """
        q, state, given = self._project(x, state, mask)
        both = self._heads(q, state, given)  # (B, H, 2, N, 2d), what each map finds
        first, second = both.unbind(2)
        z = first - self.weight.to(first.dtype) * second  # (B, H, N, 2d)
        if self.norm_weight is not None:
            z = functional.rms_norm(z, z.shape[-1:], self.norm_weight, self.eps)
            z = (1 - self.lambda_init) * z
        return self.out_proj(merge_heads(z)), state.trim()  # (B, N, d_model)

    def weights(
        self,
        x: Float[Tensor, "B N D"],
        state: KVState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B H N M"]:
        """Return the difference of the two maps of each head; rows sum to 1 − λ.

        Arguments and errors are those of :meth:`forward`. Weights may be negative.
        """
        q, state, given = self._project(x, state, mask)
        eye = torch.eye(state.length, dtype=x.dtype, device=x.device)  # values that show weights
        v = eye.expand(*state.k.shape[:2], -1, -1)
        first, second = self._heads(q, KVState(state.k, v, state.mask, state.seen), given).unbind(2)
        return first - self.weight.to(first.dtype) * second

    def empty_state(self, batch: int, *, cache: Cache | None = None) -> KVState:
        """Return a state with no keys yet, in the cache of one's choice.

        Arguments and errors are those of
        :meth:`tfbook.attention.MultiHeadAttention.empty_state`.
        """
        sizes = (self.n_heads, 2 * self.d_head, 2 * self.d_head)
        return make_empty(cache, batch, *sizes, like=self.k_proj.weight)

    def _project(self, x, state, mask):
        """Return queries (B, H, 2, N, d), the state with their keys, and what restricts scores."""
        check_rows("x", x, self.q_proj.weight)
        self._check_state(x, state)
        batch, n, _ = x.shape
        past, seen = (0, 0) if state is None else (state.length, state.seen)
        q, k = (
            self._halves(split_heads(y, self.n_heads)) for y in (self.q_proj(x), self.k_proj(x))
        )
        v = split_heads(self.v_proj(x), self.n_heads)  # (B, H, N, 2d)
        if self.position is not None:
            own = places_for(self.position, seen, seen + n, x.device)  # (N,)
            q, k = (
                self.position.rotate(y.flatten(1, 2), own).unflatten(1, (self.n_heads, 2))
                for y in (q, k)
            )
        k = torch.cat(k.unbind(2), dim=-1)  # (B, H, N, 2d)
        kept, mask = read_mask(mask, batch, self.n_heads, n, past)
        state = KVState(k, v, kept, n) if state is None else state.extend(k, v, kept)
        mask = combine_masks(state.mask, mask)  # broadcasts to (B, H, N, M)
        if mask is not None and mask.shape[1] > 1:  # one for each map
            mask = mask.repeat_interleave(2, dim=1)
        return q, state, {"mask": mask, "causal": self.causal}

    def _halves(self, x):
        """Put the halves of each head side by side: (B, H, N, 2d) → (B, H, 2, N, d)."""
        return x.unflatten(-1, (2, self.d_head)).movedim(-2, 2)

    def _heads(self, q, state, given):
        """Return what each map of each head finds, (B, H, 2, N, 2d)."""
        q, k = q.flatten(1, 2), self._halves(state.k).flatten(1, 2)  # (B, 2H, …, d)
        v = state.v.repeat_interleave(2, dim=1)  # (B, 2H, M, 2d)
        if self.attend is attend_sdpa and v.shape[-1] == 2 * self.d_head:
            # Its fast kernel wants queries as wide as values; zeros change no score.
            q, k = (functional.pad(each, (0, self.d_head)) for each in (q, k))
        found = self.attend(q, k, v, scale=self.d_head**-0.5, **given)
        return found.unflatten(1, (self.n_heads, 2))

    def _check_state(self, x, state):
        if state is None:
            return
        if not isinstance(state, KVState):
            raise TypeError(f"state must be a KVState, got {type(state).__name__}")
        shape = (x.shape[0], self.n_heads, state.length, 2 * self.d_head)
        check_shape("state.k", state.k, shape, "(B, H, M, 2d)")
        check_shape("state.v", state.v, shape, "(B, H, M, 2d)")
        check_same(**{"x": x, "state.k": state.k, "state.v": state.v})
