"""Latent attention: all heads read their keys and values off one small vector per position.

Keys and values of a position are linear in a latent of a few hundred numbers, and the latent is all
that has to be kept. Because everything between a query and a latent is linear, the projection that
makes keys can be moved to the side of the query: then attention takes place among the latents, and
no key or value is ever made.

Explained in: chapters/03_multi_head_deeper, section "Latent attention".
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_number,
    check_rows,
    check_same,
    check_shape,
    head_sizes,
)
from tfbook.attention.exact import attend_sdpa
from tfbook.attention.explicit import attend_explicit
from tfbook.attention.heads import merge_heads, split_heads
from tfbook.attention.masks import combine_masks
from tfbook.attention.states import join_key_masks, read_mask
from tfbook.attention.taps import Tap
from tfbook.costs import latent_flops
from tfbook.positions import RotaryPosition, places_for

__all__ = ["LatentAttention", "LatentState"]


@dataclass(frozen=True, eq=False)
class LatentState:
    """The latents that attention has seen; never changed, :meth:`extend` makes a new one.

    Attributes:
        latent: (B, M, d_latent).
        k_rope: the rotated part of the keys, shared by the heads, (B, M, d_rope).
        mask: which positions may be seen at all, (B, 1, 1, M), True = allowed; None for all.
        seen: how many positions came before the next one.

    Explained in: chapters/03_multi_head_deeper, section "Latent attention".
    """

    latent: Float[Tensor, "B M D"]
    k_rope: Float[Tensor, "B M R"]
    mask: Bool[Tensor, "B 1 1 M"] | None
    seen: int

    @property
    def length(self) -> int:
        """Return how many positions are held, M."""
        return self.latent.shape[-2]

    @property
    def nbytes(self) -> int:
        """Return the bytes of latents and rotated parts."""
        return self.latent.nbytes + self.k_rope.nbytes

    def extend(
        self,
        latent: Float[Tensor, "B N D"],
        k_rope: Float[Tensor, "B N R"],
        mask: Bool[Tensor, "B 1 1 N"] | None = None,
    ) -> "LatentState":
        """Return a state with N more positions behind the ones it holds."""
        joined = join_key_masks(self.mask, self.length, mask, latent)
        seen = self.seen + latent.shape[-2]
        latent = torch.cat([self.latent, latent], dim=-2)
        return LatentState(latent, torch.cat([self.k_rope, k_rope], dim=-2), joined, seen)

    def select(self, rows: Int[Tensor, " S"]) -> "LatentState":
        """Return a state of the chosen sequences of the batch, in the order given."""
        mask = None if self.mask is None else self.mask[rows]
        return replace(self, latent=self.latent[rows], k_rope=self.k_rope[rows], mask=mask)


class LatentAttention(nn.Module):
    r"""Attend with many heads whose keys and values come from one latent per position.

    c_j = W_down x_j; head h has the keys [W_k^h c_j ; R_j W_r x_j], the values W_v^h c_j and the
    queries [W_q^h x_i ; R_i W_qr^h x_i], where R rotates to a position. Rotation does not commute
    with W_k, so position has a part of the key of its own, d_rope numbers shared by all heads.

    Absorbed, with the same result: (W_q^h x_i) · (W_k^h c_j) = (W_k^hᵀ W_q^h x_i) · c_j, and
    Σ_j a_ij W_v^h c_j = W_v^h Σ_j a_ij c_j. It is multi-query attention among the latents.

    Args:
        d_model: features of x and y.
        n_heads: H.
        d_latent: size of the latent c.
        d_rope: size of the rotated part, even; 0 for none.
        d_head: size of the other part of queries and keys; d_model / H when omitted.
        d_value: size of a value; d_head when omitted.
        d_query_latent: size of a latent that queries are made from; from x when omitted.
        causal: hide the future, aligned to the last position.
        attend: the attention function, of the signature of :func:`tfbook.attention.attend`.
        position: a part with ``rotate``, such as RotaryPositions(d_rope); needed if d_rope > 0.
        norm: makes a normalisation of a given size for the latents, such as ``nn.RMSNorm``;
            they are kept normalised.
        absorbed: True and False choose the form; None takes the one with fewer FLOPs, which is
            the absorbed one when few queries meet many positions.

    Attributes:
        z: an identity that passes on what each head found, (B, H, N, d_value).
        scores, pattern: two more, that pass on scores and weights (B, H, N, M), formed only while
            one of them has a hook, as in :class:`tfbook.attention.MultiHeadAttention`.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit, or a rotated part without a position or with one
            that does not rotate.

    Cost: see :func:`tfbook.costs.latent_flops`; d_latent + d_rope numbers a position in the state.

    Source: [deepseek2024v2]
    Explained in: chapters/03_multi_head_deeper, section "Latent attention".
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_latent: int,
        d_rope: int = 0,
        d_head: int | None = None,
        d_value: int | None = None,
        d_query_latent: int | None = None,
        causal: bool = False,
        attend: Callable[..., Tensor | tuple[Tensor, ...]] = attend_sdpa,
        position: RotaryPosition | None = None,
        norm: Callable[[int], nn.Module] | None = None,
        absorbed: bool | None = None,
    ):
        """Make the projections, none of which has a bias, Xavier uniform."""
        super().__init__()
        _, d_head, d_value = head_sizes(d_model, n_heads, None, d_head, d_value)
        check_number("d_latent", d_latent, 1, whole=True)
        check_number("d_rope", d_rope, 0, whole=True)
        check_bool("causal", causal)
        if absorbed is not None:
            check_bool("absorbed", absorbed)
        if not callable(attend):
            raise TypeError(f"attend must be callable, got {type(attend).__name__}")
        if (d_rope > 0) != callable(getattr(position, "rotate", None)):
            raise ValueError(
                "d_rope and a position with rotate go together, got "
                f"d_rope = {d_rope} and position {position}"
            )
        self.d_model, self.n_heads, self.d_head, self.d_value = d_model, n_heads, d_head, d_value
        self.d_latent, self.d_rope, self.d_query_latent = d_latent, d_rope, d_query_latent
        self.causal, self.attend, self.position, self.absorbed = causal, attend, position, absorbed
        norm = norm or (lambda size: nn.Identity())
        d_query, self.q_down = d_model, nn.Identity()
        if d_query_latent is not None:
            check_number("d_query_latent", d_query_latent, 1, whole=True)
            d_query = d_query_latent
            self.q_down = nn.Sequential(_linear(d_model, d_query), norm(d_query))
        self.q_proj = _linear(d_query, n_heads * (d_head + d_rope))
        self.kv_down, self.kv_norm = _linear(d_model, d_latent), norm(d_latent)
        self.k_rope_proj = _linear(d_model, d_rope) if d_rope else None
        self.k_up = _linear(d_latent, n_heads * d_head)
        self.v_up = _linear(d_latent, n_heads * d_value)
        self.out_proj = _linear(n_heads * d_value, d_model)
        self.scores, self.pattern, self.z = (Tap() for _ in range(3))

    def extra_repr(self) -> str:
        """Show the sizes."""
        return (
            f"d_model={self.d_model}, n_heads={self.n_heads}, d_latent={self.d_latent}, "
            f"d_rope={self.d_rope}, d_head={self.d_head}, d_value={self.d_value}, "
            f"causal={self.causal}"
        )

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: LatentState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], LatentState]:
        """Mix the rows of x, continuing from a state.

        Args:
            x: (B, N, d_model).
            state: what the call before returned, None at the start of a sequence.
            mask: as for :meth:`tfbook.attention.MultiHeadAttention.forward`.

        Returns:
            y (B, N, d_model), and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit.
        """
        q, state, given = self._project(x, state, mask)  # (B, H, N, d_head + d_rope)
        z = self.z(self._attend(q, state, given))  # (B, H, N, d_value)
        return self.out_proj(merge_heads(z)), state  # (B, N, d_model)

    def weights(
        self,
        x: Float[Tensor, "B N D"],
        state: LatentState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B H N M"]:
        """Return how much each head lets each query take from each position.

        Arguments and errors are those of :meth:`forward`. It is what passes the tap ``pattern``,
        which hooks there see and may replace.
        """
        q, state, given = self._project(x, state, mask)
        q, k, v = self._form(q, state)
        return self._explicit(q, k, v, given)[1].to(x.dtype)

    def _project(self, x, state, mask):
        """Return queries, the state with the latents they meet, and what restricts the scores."""
        check_rows("x", x, self.kv_down.weight)
        self._check_state(x, state)
        batch, n, _ = x.shape
        past, seen = (0, 0) if state is None else (state.length, state.seen)
        q = split_heads(self.q_proj(self.q_down(x)), self.n_heads)  # (B, H, N, d_head + d_rope)
        latent = self.kv_norm(self.kv_down(x))  # (B, N, d_latent)
        k_rope = x[..., :0]  # (B, N, d_rope)
        if self.d_rope:
            own = places_for(self.position, seen, seen + n, x.device)  # (N,)
            q, q_rope = q.split([self.d_head, self.d_rope], dim=-1)
            q = torch.cat([q, self.position.rotate(q_rope, own)], dim=-1)
            k_rope = self.position.rotate(self.k_rope_proj(x), own)
        kept, mask = read_mask(mask, batch, self.n_heads, n, past)
        if state is None:
            state = LatentState(latent, k_rope, kept, n)
        else:
            state = state.extend(latent, k_rope, kept)
        scale = (self.d_head + self.d_rope) ** -0.5
        mask = combine_masks(state.mask, mask)
        return q, state, {"mask": mask, "causal": self.causal, "scale": scale}

    def _form(self, q, state):
        """Return queries, keys and values in the form with fewer operations, or the one chosen."""
        return (self._absorbed if self._absorbs(q, state) else self._naive)(q, state)

    def _naive(self, q, state):
        """Make the keys and values of every head."""
        k = split_heads(self.k_up(state.latent), self.n_heads)  # (B, H, M, d_head)
        v = split_heads(self.v_up(state.latent), self.n_heads)  # (B, H, M, d_value)
        shared = state.k_rope.unsqueeze(1).expand(-1, self.n_heads, -1, -1)
        return q, torch.cat([k, shared], dim=-1), v

    def _absorbed(self, q, state):
        """Move the queries to the latents, which all heads share as keys and values."""
        w_k = self.k_up.weight.unflatten(0, (self.n_heads, self.d_head))  # (H, d_head, d_latent)
        q, q_rope = q.split([self.d_head, self.d_rope], dim=-1)
        q = torch.cat([q @ w_k, q_rope], dim=-1)  # (B, H, N, d_latent + d_rope)
        k = torch.cat([state.latent, state.k_rope], dim=-1)  # (B, M, d_latent + d_rope)
        return q, k.unsqueeze(1), state.latent.unsqueeze(1)  # one head for all: (B, 1, M, …)

    def _attend(self, q, state, given):
        """Return what the heads find, by the function chosen unless its weights have to be seen."""
        absorbed = self._absorbs(q, state)
        q, k, v = self._form(q, state)
        if self.scores.watched or self.pattern.watched:
            found, _ = self._explicit(q, k, v, given)
        else:
            found = self.attend(q, k, v, **given)
        if not absorbed:
            return found  # (B, H, N, d_value)
        w_v = self.v_up.weight.unflatten(0, (self.n_heads, self.d_value))  # (H, d_value, d_latent)
        return found @ w_v.mT  # (B, H, N, d_latent) → (B, H, N, d_value)

    def _explicit(self, q, k, v, given):
        return attend_explicit(
            self.attend, q, k, v, scores=self.scores, pattern=self.pattern, **given
        )

    def _absorbs(self, q, state):
        if self.absorbed is not None:
            return self.absorbed
        n, m = q.shape[-2], state.length
        sizes = {
            name: getattr(self, name)
            for name in ("d_latent", "d_rope", "d_head", "d_value", "d_query_latent")
        }
        absorbed, naive = (
            latent_flops(n, self.d_model, self.n_heads, m=m, absorbed=form, **sizes)
            for form in (True, False)
        )
        return absorbed < naive

    def _check_state(self, x, state):
        if state is None:
            return
        if not isinstance(state, LatentState):
            raise TypeError(f"state must be a LatentState, got {type(state).__name__}")
        wanted = (x.shape[0], state.length)
        check_shape("state.latent", state.latent, (*wanted, self.d_latent), "(B, M, d_latent)")
        check_shape("state.k_rope", state.k_rope, (*wanted, self.d_rope), "(B, M, d_rope)")
        check_same(**{"x": x, "state.latent": state.latent})


def _linear(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear
