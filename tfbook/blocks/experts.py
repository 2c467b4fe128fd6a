"""Experts: several feed-forward networks, of which each row passes a few.

:func:`mix_experts` sorts rows by expert, so that each expert reads its own rows at once;
:func:`mix_experts_dense` lets every expert read every row and forgets most of it. Both give the
same numbers.

Explained in: chapters/08_architectural_variants, section "A mixture of experts".
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_float,
    check_list,
    check_module,
    check_number,
    check_shape,
)
from tfbook.blocks.feed_forward import FeedForward
from tfbook.blocks.norms import check_width
from tfbook.blocks.routing import Router, Routing, load_balancing_loss, router_z_loss

__all__ = [
    "MixtureOfExperts",
    "Records",
    "RoutingLosses",
    "mix_experts",
    "mix_experts_dense",
    "routing_losses",
    "update_biases",
]


def mix_experts(
    experts: Sequence[nn.Module] | nn.ModuleList, x: Float[Tensor, "T D"], routing: Routing
) -> Float[Tensor, "T D"]:
    """Add what the chosen experts make of each row: y_t = Σ_k w_tk · expert_{chosen_tk}(x_t).

    Rows are sorted by expert, every expert reads its own in one product, and the answers are added
    up where the rows came from. An expert that nobody asks for computes nothing.

    Args:
        experts: E modules, each from rows to rows.
        x: (T, d_model).
        routing: of these T rows to these E experts.

    Returns:
        y (T, d_model); 0 where no expert treats a row.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit.

    Cost: that of the experts for T · K rows, and a copy of them.

    Example:
        >>> from tfbook.blocks.routing import route
        >>> experts = [nn.Identity(), nn.Identity(), nn.Identity()]
        >>> x = torch.tensor([[1.0, 2.0]])
        >>> mix_experts(experts, x, route(torch.tensor([[1.0, 0.0, 1.0]]), 2))
        tensor([[1., 2.]])

    Source: [shazeer2017outrageously], sorted: [gale2023megablocks]
    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """
    _check_experts(experts, x, routing)
    n_rows = len(x)
    # One entry for each choice that is served, expert by expert.
    kept = routing.kept.T.flatten()
    asked = torch.where(kept, routing.chosen.T.flatten(), len(experts))
    counts = torch.bincount(asked, minlength=len(experts) + 1).tolist()[:-1]
    order = asked.argsort(stable=True)[: sum(counts)]
    rows = order % n_rows
    weights = routing.weights.T.flatten()[order]
    # Each expert reads a slice, and its answer is added up while it is in the processor's cache.
    # Sums are in float32 at least.
    y = torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    slices = x[rows].split(counts), weights.to(y.dtype).split(counts), rows.split(counts)
    for expert, own, weight, places in zip(experts, *slices, strict=True):
        if len(own):
            answers = expert(own).to(y.dtype) * weight[:, None]
            y.scatter_add_(0, places[:, None].expand_as(answers), answers)
    return y.to(x.dtype)


def mix_experts_dense(
    experts: Sequence[nn.Module] | nn.ModuleList, x: Float[Tensor, "T D"], routing: Routing
) -> Float[Tensor, "T D"]:
    """Let every expert read every row, and add the answers by weights that are mostly 0.

    The reference for :func:`mix_experts`, with the same arguments, results and errors.

    Cost: that of all E experts for all T rows.

    Example:
        >>> from tfbook.blocks.routing import route
        >>> experts = [nn.Identity(), nn.Tanh(), nn.ReLU()]
        >>> x, found = torch.randn(5, 4), route(torch.randn(5, 3), 2)
        >>> torch.allclose(
        ...     mix_experts_dense(experts, x, found), mix_experts(experts, x, found), atol=1e-6
        ... )
        True

    Source: [jacobs1991adaptive]
    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """
    _check_experts(experts, x, routing)
    gates = routing.gates()  # (T, E)
    y = torch.zeros(x.shape, dtype=gates.dtype, device=x.device)
    for expert, gate in zip(experts, gates.unbind(1), strict=True):
        y = y + gate[:, None] * expert(x).to(gates.dtype)
    return y.to(x.dtype)


class MixtureOfExperts(nn.Module):
    """A feed-forward part of which each row passes K of E experts, and perhaps some for all rows.

    y = Σ_{i chosen} w_i expert_i(x) + shared(x). Experts are :class:`tfbook.blocks.FeedForward`.
    Fine-grained ones are the same thing with m · E experts of size d_ff / m, of which m · K treat
    a row: as many parameters and FLOPs, and many more combinations.

    Args:
        d_model: size of a row.
        d_ff: size of the inner layer of one expert.
        n_experts: E.
        top_k: K, of which each row passes.
        kind: of the experts, as for :class:`tfbook.blocks.FeedForward`.
        router: one of ``tfbook.blocks.ROUTERS``.
        n_shared: how many experts treat every row, beside the chosen ones. They are one network of
            n_shared · d_ff, whose answer has the weight 1.
        bias: whether the linear maps of the experts have one.
        dropout: rate on the inner layers.
        capacity_factor, scale, balanced: as for :class:`tfbook.blocks.Router`.
        router_bias: whether the router's linear map has a bias.

    Attributes:
        router: what chooses.
        experts: the E networks.
        shared: that for all rows; None without.
        routing: what the router did in the last call, a :class:`tfbook.blocks.Routing`; None before
            the first. It is no weight: copies of the module and files do not have it.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size below 1, an unknown name or a number out of range.

    Cost: K / E of the experts' FLOPs, all of their memory, and 2 · d_model · E FLOPs a row for the
        router.

    Example:
        >>> moe = MixtureOfExperts(8, 16, n_experts=4, top_k=2, kind="swiglu")
        >>> y = moe(torch.randn(2, 5, 8))
        >>> int(moe.routing.load.sum())
        20

    Source: [shazeer2017outrageously], [jiang2024mixtral], fine-grained and shared:
    [dai2024deepseekmoe]
    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_experts: int,
        top_k: int,
        *,
        kind: str = "relu",
        router: str = "top_k",
        n_shared: int = 0,
        bias: bool = True,
        dropout: float = 0.0,
        capacity_factor: float | None = None,
        scale: float = 1.0,
        balanced: bool = False,
        router_bias: bool = False,
    ):
        """Make the router and the experts."""
        super().__init__()
        check_number("d_ff", d_ff, 1, whole=True)
        check_number("n_shared", n_shared, 0, whole=True)
        check_bool("router_bias", router_bias)
        own = {"capacity_factor": capacity_factor, "scale": scale, "balanced": balanced}
        own["bias"] = router_bias
        self.router = Router(d_model, n_experts, top_k, kind=router, **own)
        each = {"kind": kind, "bias": bias, "dropout": dropout}
        self.experts = nn.ModuleList(FeedForward(d_model, d_ff, **each) for _ in range(n_experts))
        self.shared = FeedForward(d_model, n_shared * d_ff, **each) if n_shared else None
        self.d_model, self.d_ff, self.records = d_model, d_ff, Records()

    @property
    def routing(self) -> Routing | None:
        """Return what the router did in the last call."""
        return self.records[-1] if self.records else None

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return y for each row of x (..., d_model).

        Raises:
            TypeError: if x is not floating point.
            ValueError: if x ends in another size.
        """
        check_width(x, self.d_model, self.router.proj.weight)
        rows = x.reshape(-1, self.d_model)  # (T, d_model)
        routing = self.router(rows)
        self.records.append(routing)
        y = mix_experts(self.experts, rows, routing)
        if self.shared is not None:
            y = y + self.shared(rows)
        return y.view(x.shape)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"d_model={self.d_model}, d_ff={self.d_ff}, n_experts={len(self.experts)}"


class Records(deque):
    """The last routings of a mixture: as many as it is called in one pass, 1 unless it is shared.

    They hang on the graph of that pass, which no copy of the module may take along, so a copy or a
    pickle has room for as many and is empty.

    Explained in: chapters/08_architectural_variants, section "A mixture of experts".
    """

    def __init__(self, calls: int = 1):
        """Make room for the calls of one pass."""
        super().__init__(maxlen=calls)

    def __reduce__(self) -> tuple:
        """Leave the routings behind."""
        return type(self), (self.maxlen,)

    def __deepcopy__(self, memo: dict) -> "Records":
        """Leave the routings behind."""
        return type(self)(self.maxlen)

    def __copy__(self) -> "Records":
        """Leave the routings behind."""
        return type(self)(self.maxlen)


class RoutingLosses(NamedTuple):
    """What a model's routers did in its last pass, as losses and counts.

    Attributes:
        balance: the mean of :func:`tfbook.blocks.load_balancing_loss` over the layers, 1 when all
            loads are uniform.
        z: the mean of :func:`tfbook.blocks.router_z_loss`.
        dropped: the share of choices that were not served.

    Explained in: chapters/08_architectural_variants, section "Two ways to balance".
    """

    balance: Float[Tensor, ""]
    z: Float[Tensor, ""]
    dropped: float


def routing_losses(model: nn.Module) -> RoutingLosses:
    """Collect the losses of all mixtures of experts in a model, of its last pass.

    ``loss + 0.01 * found.balance + 0.001 * found.z`` is then what training lowers. They have
    gradients where the pass had them. A mixture that several layers share counts once for each.

    Args:
        model: any module, called at least once.

    Raises:
        TypeError: if it is no module.
        ValueError: if there is no mixture in it, or one that has read nothing yet.

    Example:
        >>> moe = MixtureOfExperts(8, 16, n_experts=4, top_k=1)
        >>> _ = moe(torch.randn(5, 8))
        >>> routing_losses(moe).dropped
        0.0

    Source: [fedus2022switch], [zoph2022stmoe]
    Explained in: chapters/08_architectural_variants, section "Two ways to balance".
    """
    found = [routing for moe in _mixtures(model) for routing in _records(moe)]
    balance = torch.stack([load_balancing_loss(each) for each in found]).mean()
    z = torch.stack([router_z_loss(each) for each in found]).mean()
    asked = sum(int(each.demand.sum()) for each in found)
    return RoutingLosses(balance, z, sum(each.dropped for each in found) / asked)


def update_biases(model: nn.Module, rate: float = 1e-3) -> None:
    """Move the bias of each balanced router towards equal loads, without any loss.

    b_i ← b_i + rate · sign(mean load − load_i), by what the rows of the last pass asked for. The
    bias is added to the scores for the choice only, so it never changes what a chosen expert's
    answer is worth. To be called after each step of the optimizer.

    Args:
        model: with mixtures that are ``balanced``, called at least once.
        rate: how far each bias moves.

    Raises:
        TypeError: if model is no module, or rate no number.
        ValueError: if no router in it is balanced, one has read nothing yet, or rate is negative.

    Example:
        >>> moe = MixtureOfExperts(8, 16, n_experts=4, top_k=1, balanced=True)
        >>> _ = moe(torch.randn(1, 8))
        >>> update_biases(moe, 0.1)
        >>> moe.router.choice_bias.sort().values
        tensor([-0.1000,  0.1000,  0.1000,  0.1000])

    Source: [wang2024auxiliary], algorithm 1
    Explained in: chapters/08_architectural_variants, section "Two ways to balance".
    """
    check_number("rate", rate, 0)
    balanced = [moe for moe in _mixtures(model) if moe.router.choice_bias is not None]
    if not balanced:
        raise ValueError("model must have a mixture with balanced=True, got none")
    for moe in balanced:
        demand = sum(each.demand for each in _records(moe)).double()
        with torch.no_grad():
            moe.router.choice_bias += rate * (demand.mean() - demand).sign()


def _mixtures(model: object) -> list[MixtureOfExperts]:
    check_module("model", model)
    found = [each for each in model.modules() if isinstance(each, MixtureOfExperts)]
    if not found:
        raise ValueError("model must have a MixtureOfExperts in it, got none")
    return found


def _records(moe: MixtureOfExperts) -> Iterator[Routing]:
    if not any(len(each.logits) for each in moe.records):
        raise ValueError("model must have been called with at least one row, got no routing yet")
    return (each for each in moe.records if len(each.logits))


def _check_experts(experts: object, x: object, routing: object) -> None:
    check_list("experts", experts)
    for expert in experts:
        check_module("each of the experts", expert)
    check_float("x", x)
    if not isinstance(routing, Routing):
        raise TypeError(f"routing must be a Routing, got {type(routing).__name__}")
    if x.ndim != 2:
        raise ValueError(f"x must have shape (T, d_model), got {tuple(x.shape)}")
    check_shape("routing.logits", routing.logits, (len(x), len(experts)), "(T, E)")
