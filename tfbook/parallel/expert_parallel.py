"""Expert parallelism: each process has some experts, and rows travel to those that they chose.

A row is sent to the process of its expert by an all-to-all, and the answer comes back by another.
How many rows travel where the router decides anew each time, so processes tell each other first.

Explained in: chapters/17_hardware, section "Many devices".
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function

from tfbook._checks import check_float
from tfbook.blocks import MixtureOfExperts
from tfbook.parallel.collectives import all_to_all
from tfbook.parallel.groups import Group, check_parts

__all__ = ["SplitExperts"]


class SplitExperts(nn.Module):
    """A mixture of experts of which each process has E/p, and its own rows.

    y_t = Σ_k w_tk expert_{chosen_tk}(x_t), as :class:`tfbook.blocks.MixtureOfExperts`. The router
    and the experts for all rows are in every process, and their gradients are to be added up over
    the processes like those of any replica. An expert has the gradients of the rows of all.

    Args:
        moe: the whole mixture, alike in every process.
        group: the processes.

    Attributes:
        experts: the own ones.
        routing: what the router did with the own rows in the last call.
        heard: how many rows each process sent here in the last call.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if the experts are no multiple of the processes, or the mixture has a capacity,
            which is a count over all rows that no process sees.

    Cost: two all-to-alls forward and two backward of the rows, K times each, that go elsewhere: of
        uniform loads (p − 1)/p · K · T · d_model numbers.

    Example:
        >>> moe = SplitExperts(MixtureOfExperts(8, 16, n_experts=4, top_k=2), Group())
        >>> moe(torch.randn(2, 5, 8)).shape, moe.heard
        (torch.Size([2, 5, 8]), [20])

    Source: [lepikhin2021gshard]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(self, moe: MixtureOfExperts, group: Group):
        """Keep the own experts."""
        super().__init__()
        if not isinstance(moe, MixtureOfExperts):
            raise TypeError(f"moe must be a MixtureOfExperts, got {type(moe).__name__}")
        check_parts("the experts", len(moe.experts), group)
        if moe.router.capacity_factor is not None or moe.router.kind == "expert_choice":
            raise ValueError("moe must have no capacity, no process sees all rows; got one")
        each = len(moe.experts) // group.size
        own = moe.experts[group.rank * each : (group.rank + 1) * each]
        found = copy.deepcopy((moe.router, own, moe.shared))
        self.router, self.experts, self.shared = found
        self.group, self.n_experts, self.d_model = group, len(moe.experts), moe.d_model
        self.routing, self.heard = None, []

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return y for each of the own rows x (..., d_model).

        Raises:
            TypeError: if x is not floating point.
            ValueError: if x ends in another size.
            PeerLost: if a process is gone.
        """
        check_float("x", x, min_dims=1)
        if x.shape[-1] != self.d_model:
            raise ValueError(f"x must end in d_model = {self.d_model}, got {tuple(x.shape)}")
        rows = x.reshape(-1, self.d_model)  # (T, d_model)
        self.routing = routing = self.router(rows)
        # One copy of a row for each choice, expert by expert, and so process by process.
        order = routing.chosen.flatten().argsort(stable=True)  # (T K,)
        source = order // routing.chosen.shape[1]
        counts = torch.bincount(routing.chosen.flatten(), minlength=self.n_experts)
        sent = counts.view(self.group.size, -1)  # (p, E/p)
        heard = torch.stack(all_to_all(sent.unbind(), self.group))  # (p, E/p), from whom for whom
        out, back = sent.sum(1).tolist(), heard.sum(1).tolist()
        self.heard = back
        found = _Travel.apply(rows[source], self.group, out, back)
        found = self._answer(found, heard)
        found = _Travel.apply(found, self.group, back, out)
        weighted = found * routing.weights.flatten()[order, None]
        y = torch.zeros_like(rows).index_add(0, source, weighted.to(rows.dtype))
        if self.shared is not None:
            y = y + self.shared(rows)
        return y.view(x.shape)

    def _answer(self, rows: Tensor, heard: Tensor) -> Tensor:
        """Return what the own experts make of the rows, which come sender by sender."""
        owner = torch.arange(heard.shape[1], device=rows.device).repeat(len(heard))
        owner = owner.repeat_interleave(heard.flatten())  # whose each row is
        order = owner.argsort(stable=True)
        parts = rows[order].split(heard.sum(0).tolist())
        made = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        return torch.cat(made)[order.argsort()]


class _Travel(Function):
    """Rows that go to other processes; their gradients come back."""

    @staticmethod
    def forward(ctx, rows: Tensor, group: Group, out: list[int], back: list[int]) -> Tensor:
        ctx.given = group, back, out
        likes = [rows.new_empty(count, rows.shape[1]) for count in back]
        return torch.cat(all_to_all(rows.split(out), group, likes=likes))

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        group, out, back = ctx.given
        return _Travel.apply(grad.contiguous(), group, out, back), None, None, None
