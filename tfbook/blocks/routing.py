"""Routing: which experts treat a row, by which weights, and what keeps their loads alike.

A router scores every expert for every row and keeps a few of them. What it decided is a
:class:`Routing`, a record that can be read, drawn and turned into losses.

Explained in: chapters/08_architectural_variants, section "A mixture of experts".
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_bool,
    check_choice,
    check_float,
    check_number,
    check_same,
    check_shape,
)

__all__ = [
    "ROUTERS",
    "Router",
    "Routing",
    "check_router",
    "load_balancing_loss",
    "route",
    "router_z_loss",
]

ROUTERS = ("softmax", "top_k", "switch", "sigmoid", "noisy", "expert_choice")


@dataclass(frozen=True, eq=False)
class Routing:
    """What a router decided for T rows and E experts.

    Attributes:
        logits: what the router computed, (T, E), noise included.
        scores: how likely each expert is for each row, (T, E), rows sum to 1.
        chosen: the experts that each row asks for, (T, K), the first choice first.
        weights: what the answer of each is multiplied with, (T, K).
        kept: which of these choices are served, (T, K); False where an expert was full.

    Source: [fedus2022switch]
    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """

    logits: Float[Tensor, "T E"]
    scores: Float[Tensor, "T E"]
    chosen: Int[Tensor, "T K"]
    weights: Float[Tensor, "T K"]
    kept: Bool[Tensor, "T K"]

    @property
    def n_experts(self) -> int:
        """Return how many experts there are, E."""
        return self.logits.shape[1]

    @property
    def load(self) -> Int[Tensor, " E"]:
        """Return how many rows each expert treats."""
        return torch.bincount(self.chosen[self.kept], minlength=self.n_experts)

    @property
    def demand(self) -> Int[Tensor, " E"]:
        """Return how many rows asked for each expert, served or not."""
        return torch.bincount(self.chosen.flatten(), minlength=self.n_experts)

    @property
    def dropped(self) -> int:
        """Return how many choices were not served."""
        return int((~self.kept).sum())

    @property
    def missed(self) -> Bool[Tensor, " T"]:
        """Return which rows no expert treats."""
        return ~self.kept.any(-1)

    def gates(self) -> Float[Tensor, "T E"]:
        """Return the weight of every expert for every row, 0 where it does not treat it."""
        weights = self.weights * self.kept
        empty = torch.zeros(self.logits.shape, dtype=weights.dtype, device=weights.device)
        return empty.scatter_add(1, self.chosen, weights)


def route(
    logits: Float[Tensor, "T E"],
    top_k: int,
    *,
    kind: str = "top_k",
    bias: Float[Tensor, " E"] | None = None,
    scale: float = 1.0,
    capacity: int | None = None,
) -> Routing:
    """Choose experts for each row.

    * "softmax": the k largest of p = softmax(logits), with weights p;
    * "top_k": the same experts, with the softmax of their logits alone, so that weights sum to 1;
    * "switch": "softmax" with k = 1;
    * "sigmoid": the k largest of s = σ(logits), with weights s / Σ s over the chosen ones;
    * "noisy": as "top_k", for logits to which :class:`Router` has added noise;
    * "expert_choice": each expert takes the ``capacity`` rows that like it best by p, weights p. A
      row may be treated by any number of experts.

    Args:
        logits: (T, E), one row for each row of the input.
        top_k: K, how many experts a row asks for. With "expert_choice" the mean over the rows: the
            capacity, when omitted, is ⌈K · T / E⌉.
        kind: one of ``ROUTERS``.
        bias: added to p, with "sigmoid" to s, for the choice only: neither to the logits nor to the
            weights, (E,).
        scale: factor on the weights.
        capacity: rows that an expert treats at most; the first choices of all rows come first, then
            the second ones, and among equals earlier rows. None for no limit.

    Returns:
        The record; differentiable with respect to the logits through scores and weights.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a shape that does not fit, or a number out of range.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
        >>> found = route(logits, 2)
        >>> found.chosen.tolist(), found.load.tolist()
        ([[0, 1], [1, 2]], [1, 2, 1])
        >>> torch.allclose(found.weights.sum(-1), torch.ones(2))
        True

    Source: softmax: [shazeer2017outrageously], top_k: [jiang2024mixtral], switch:
    [fedus2022switch], sigmoid: [deepseek2024v3], bias: [wang2024auxiliary], expert_choice:
    [zhou2022mixture]
    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """
    _check_logits(logits, bias)
    check_router(kind, logits.shape[1], top_k)
    check_number("scale", scale, above=0)
    if capacity is not None:
        check_number("capacity", capacity, 1, whole=True)
    if kind == "expert_choice":
        return _choose_rows(logits, top_k, bias, scale, capacity)
    if kind == "sigmoid":
        raw = torch.sigmoid(logits)  # (T, E)
        scores = raw / raw.sum(-1, keepdim=True).clamp_min(torch.finfo(raw.dtype).tiny)
    else:
        raw = scores = torch.softmax(logits, dim=-1)
    # Without a bias the order is that of the logits, which no softmax has rounded to 0 or to 1.
    liked = logits.detach() if bias is None else raw.detach() + bias
    chosen = liked.topk(top_k, dim=-1).indices  # (T, K)
    weights = raw.gather(1, chosen)  # (T, K)
    if kind in ("top_k", "noisy"):
        weights = torch.softmax(logits.gather(1, chosen), dim=-1)
    elif kind == "sigmoid":
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(raw.dtype).tiny)
    kept = torch.ones_like(chosen, dtype=torch.bool)
    if capacity is not None:
        kept = _queue(chosen, logits.shape[1]) < capacity
    return Routing(logits, scores, chosen, weights * scale, kept)


def _queue(chosen: Int[Tensor, "T K"], n_experts: int) -> Int[Tensor, "T K"]:
    """Return how many choices stand before each one at its expert: first choices come first."""
    asked = chosen.T.flatten()  # all first choices, then all second ones
    order = asked.argsort(stable=True)
    counts = torch.bincount(asked, minlength=n_experts)
    begins = counts.cumsum(0) - counts  # of each expert, in the order
    places = torch.arange(len(asked), device=asked.device) - begins[asked[order]]
    return torch.empty_like(places).scatter(0, order, places).view(chosen.T.shape).T


def _choose_rows(
    logits: Tensor, top_k: int, bias: Tensor | None, scale: float, capacity: int | None
) -> Routing:
    """Let each expert choose its rows."""
    rows, n_experts = logits.shape
    scores = torch.softmax(logits, dim=-1)
    room = math.ceil(top_k * rows / n_experts) if capacity is None else capacity
    liked = scores.detach() if bias is None else scores.detach() + bias
    taken = liked.topk(min(room, rows), dim=0).indices  # (C, E)
    kept = torch.zeros_like(liked, dtype=torch.bool).scatter(0, taken, True)
    # A row asks for those that took it; the other places of its line are not choices at all.
    chosen = torch.arange(n_experts, device=logits.device).expand(rows, -1)
    return RowsChosen(logits, scores, chosen, scores * scale, kept)


class RowsChosen(Routing):
    """What experts decided that choose their rows: no row asks, so none is refused.

    Source: [zhou2022mixture]
    Explained in: chapters/08_architectural_variants_deeper, section
    "Experts that choose their tokens".
    """

    @property
    def demand(self) -> Int[Tensor, " E"]:
        """Return how many rows each expert took."""
        return self.load

    @property
    def dropped(self) -> int:
        """Return 0."""
        return 0


def load_balancing_loss(routing: Routing) -> Float[Tensor, ""]:
    """Return n Σ_i f_i P_i, which is 1 when the load is uniform, and n when one expert has it all.

    f_i is the share of all choices that are expert i, P_i its mean score. Only P has a gradient: it
    takes from experts that are asked often. Choices that were not served count too.

    Args:
        routing: of one layer.

    Raises:
        TypeError: if it is no :class:`Routing`.
        ValueError: if it is of no rows.

    Example:
        >>> load_balancing_loss(route(torch.zeros(4, 2) + torch.eye(2).repeat(2, 1), 1))
        tensor(1.)

    Source: [fedus2022switch], equation 4, without its factor α
    Explained in: chapters/08_architectural_variants, section "Two ways to balance".
    """
    _check_routing(routing)
    demand = routing.demand.to(routing.scores.dtype)
    share = demand / demand.sum().clamp_min(1)  # (E,)
    return routing.n_experts * (share * routing.scores.mean(0)).sum()


def router_z_loss(routing: Routing) -> Float[Tensor, ""]:
    """Return the mean of (log Σ_i e^logit_i)² over the rows: it keeps logits small.

    Args:
        routing: of one layer.

    Raises:
        TypeError: if it is no :class:`Routing`.
        ValueError: if it is of no rows.

    Example:
        >>> router_z_loss(route(torch.zeros(3, 2), 1)) - math.log(2) ** 2
        tensor(0.)

    Source: [zoph2022stmoe], equation 5
    Explained in: chapters/08_architectural_variants_deeper, section
    "What the router z-loss holds down".
    """
    _check_routing(routing)
    return routing.logits.logsumexp(-1).square().mean()


class Router(nn.Module):
    """Scores experts by a linear map of each row, in float32 at least, and chooses some.

    logits = x W_routerᵀ (+ b_router), and with noise logits + ε ⊙ softplus(x W_noiseᵀ), ε normal,
    in training; then :func:`route`.

    Args:
        d_model: size of a row.
        n_experts: E.
        top_k: K.
        kind: one of ``ROUTERS``.
        scale: factor on the weights.
        capacity_factor: an expert treats at most ⌈factor · K · T / E⌉ of T rows, in training; None
            for no limit. Experts that choose their rows take so many, in evaluation too, and 1 is
            meant when it is omitted.
        balanced: whether there is a bias b on the choice that
            :func:`tfbook.blocks.update_biases` moves.
        bias: whether the linear map has one, which is learned.

    Attributes:
        proj: the linear map to the logits.
        noise_proj: that to the size of the noise; None but for "noisy".
        choice_bias: b, (E,), a buffer at 0 first; None if not ``balanced``.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or choices that do not go together.

    Cost: 2 · d_model · E FLOPs a row, with noise twice as many.

    Source: [shazeer2017outrageously], float32: [fedus2022switch]
    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        top_k: int,
        *,
        kind: str = "top_k",
        scale: float = 1.0,
        capacity_factor: float | None = None,
        balanced: bool = False,
        bias: bool = False,
    ):
        """Make the linear maps, Xavier uniform; bias and noise begin at 0."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_number("n_experts", n_experts, 1, whole=True)
        check_router(kind, n_experts, top_k)
        check_number("scale", scale, above=0)
        if capacity_factor is not None:
            check_number("capacity_factor", capacity_factor, above=0)
        check_bool("balanced", balanced)
        check_bool("bias", bias)
        if balanced and kind == "expert_choice":
            raise ValueError("balanced is not for expert_choice, whose loads are equal anyway")
        self.n_experts, self.top_k, self.kind, self.scale = n_experts, top_k, kind, scale
        self.capacity_factor, self.d_model = capacity_factor, d_model
        self.proj = nn.Linear(d_model, n_experts, bias=bias)
        self.noise_proj = nn.Linear(d_model, n_experts, bias=False) if kind == "noisy" else None
        self.register_buffer("choice_bias", torch.zeros(n_experts) if balanced else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew and set the bias on the choice to 0."""
        nn.init.xavier_uniform_(self.proj.weight)
        if self.proj.bias is not None:
            nn.init.zeros_(self.proj.bias)
        if self.noise_proj is not None:
            nn.init.zeros_(self.noise_proj.weight)
        if self.choice_bias is not None:
            nn.init.zeros_(self.choice_bias)

    def forward(self, x: Float[Tensor, "T D"]) -> Routing:
        """Return which experts treat each row of x (T, d_model).

        Raises:
            TypeError: if x is not floating point.
            ValueError: for another shape.
        """
        check_float("x", x)
        check_shape("x", x, (len(x) if x.ndim else 0, self.d_model), "(T, d_model)")
        check_same(**{"x": x, "the weights": self.proj.weight})
        exact = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(exact)
            offset = None if self.proj.bias is None else self.proj.bias.to(exact)
            logits = functional.linear(x, self.proj.weight.to(exact), offset)  # (T, E)
            if self.noise_proj is not None and self.training:
                spread = functional.softplus(functional.linear(x, self.noise_proj.weight.to(exact)))
                logits = logits + torch.randn_like(logits) * spread
        bias = None if self.choice_bias is None else self.choice_bias.to(exact)
        choices = {"kind": self.kind, "scale": self.scale, "bias": bias}
        return route(logits, self.top_k, capacity=self.capacity(len(x)), **choices)

    def capacity(self, rows: int) -> int | None:
        """Return how many of so many rows an expert treats at most; None for no limit.

        Raises:
            TypeError: if rows is not an integer.
            ValueError: if it is negative.

        Example:
            >>> Router(8, 4, 2, capacity_factor=1.25).capacity(100)
            63
        """
        check_number("rows", rows, 0, whole=True)
        if self.capacity_factor is None or not (self.training or self.kind == "expert_choice"):
            return None
        return max(1, math.ceil(self.capacity_factor * self.top_k * rows / self.n_experts))

    def extra_repr(self) -> str:
        """Show the choices."""
        return f"top_k={self.top_k}, kind={self.kind!r}, capacity_factor={self.capacity_factor}"


def check_router(kind: object, n_experts: int, top_k: object) -> None:
    """Raise an error unless so many of so many experts can be chosen in this way.

    Raises:
        TypeError: if ``top_k`` is not an integer.
        ValueError: for an unknown kind or a number out of range.
    """
    check_choice("kind", kind, ROUTERS)
    check_number("top_k", top_k, 1, whole=True)
    if top_k > n_experts:
        raise ValueError(f"top_k must be at most n_experts = {n_experts}, got {top_k}")
    if kind == "switch" and top_k != 1:
        raise ValueError(f"top_k must be 1 for kind 'switch', got {top_k}")


def _check_logits(logits: object, bias: object) -> None:
    check_float("logits", logits)
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must have shape (T, E), got {tuple(logits.shape)}")
    if bias is not None:
        check_float("bias", bias)
        check_shape("bias", bias, logits.shape[1:], "(E,)")
        check_same(logits=logits, bias=bias)


def _check_routing(routing: object) -> None:
    if not isinstance(routing, Routing):
        raise TypeError(f"routing must be a Routing, got {type(routing).__name__}")
    if not len(routing.logits):
        raise ValueError("routing must be of at least one row, got none")
