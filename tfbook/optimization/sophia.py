"""Sophia: steps measured by the curvature of the loss, and two ways to estimate it.

Explained in: chapters/11_training_deeper, section "Optimizers".
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tfbook._checks import check_float, check_generator, check_list, check_number
from tfbook.optimization.optimizers import CHECKS, Group, State, Written

__all__ = ["Sophia", "gauss_newton_bartlett", "hutchinson"]


class Sophia(Written):
    """Sophia: a mean gradient over the curvature, no number of it larger than 1.

    m ← β₁ m + (1 − β₁) g;  w ← w − η (clip(m / max(γ h, ε), −1 … 1) + λ w). h is a running mean of
    estimates of the diagonal of the Hessian, h ← β₂ h + (1 − β₂) ĥ, which :meth:`curvature` takes
    every ten steps or so, from :func:`hutchinson` or :func:`gauss_newton_bartlett`. Where the
    curvature is unknown, small or negative the step is η in the direction of the sign.

    Args:
        params: parameters or groups.
        lr: η, the largest step in each number.
        betas: β₁ and β₂.
        gamma: γ; the larger, the fewer numbers are clipped.
        eps: ε.
        weight_decay: λ.

    Cost: two numbers kept for each parameter, and an estimate every k steps.

    Example:
        >>> w = torch.nn.Parameter(torch.tensor([4.0, 4.0]))
        >>> sophia = Sophia([w], lr=0.1, betas=(0.0, 0.0), gamma=1.0)
        >>> loss = (torch.tensor([1.0, 100.0]) * w**2).sum()
        >>> sophia.curvature(hutchinson(loss, [w]))  # exact here: the Hessian is diagonal
        >>> loss.backward()
        >>> sophia.step()
        >>> w.data  # the same step for a flat and for a steep direction
        tensor([3.9000, 3.9000])

    Source: [liu2024sophia]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """

    checks = {**CHECKS, "gamma": partial(check_number, above=0)}

    def __init__(
        self,
        params: object,
        lr: float = 1e-4,
        *,
        betas: tuple[float, float] = (0.96, 0.99),
        gamma: float = 0.01,
        eps: float = 1e-12,
        weight_decay: float = 0.0,
    ):
        """Keep the options."""
        options = {"betas": betas, "gamma": gamma, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, **options})

    def start(self, w: Float[Tensor, "*S"], group: Group) -> State:
        """Return a mean of 0 and a curvature of 0."""
        return {"exp_avg": torch.zeros_like(w), "hessian": torch.zeros_like(w)}

    @torch.no_grad()
    def curvature(self, estimates: Sequence[Float[Tensor, "..."]]) -> None:
        """Take in an estimate of the Hessian's diagonal for each parameter, in their order.

        Args:
            estimates: ĥ, of the parameters' shapes.

        Raises:
            ValueError: if there are more or fewer estimates than parameters, or a shape differs.
        """
        owners = [(w, group) for group in self.param_groups for w in group["params"]]
        wanted = [tuple(w.shape) for w, _ in owners]
        given = [tuple(estimate.shape) for estimate in estimates]
        if wanted != given:
            raise ValueError(f"estimates must have the parameters' shapes {wanted}, got {given}")
        for (w, group), estimate in zip(owners, estimates, strict=True):
            if not self.state[w]:
                self.state[w].update(self.start(w, group))
            self.state[w]["hessian"].lerp_(estimate, 1 - group["betas"][1])

    def update(
        self, w: Float[Tensor, "*S"], g: Float[Tensor, "*S"], state: State, group: Group
    ) -> None:
        """Change w and its mean in place."""
        m, h = state["exp_avg"], state["hessian"]
        m.lerp_(g, 1 - group["betas"][0])
        move = (m / (group["gamma"] * h).clamp(min=group["eps"])).clamp(-1, 1)
        w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * move)


def hutchinson(
    loss: Float[Tensor, ""],
    parameters: Sequence[Tensor],
    *,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Estimate the diagonal of the Hessian: u ⊙ H u, with random signs u.

    The entry i is H_ii plus Σ_j≠i u_i u_j H_ij, whose mean is 0. H u is the gradient of gᵀ u, so
    all of the model must have second derivatives. PyTorch's fused attention has none: build the
    model with ``attend="reference"``.

    Args:
        loss: a number that still has its graph; it is kept for ``loss.backward()``.
        parameters: what the Hessian is with respect to.
        generator: of the random signs.

    Returns:
        One estimate for each parameter, of its shape.

    Raises:
        TypeError: if a parameter is no floating-point tensor.
        ValueError: if the loss is not one number, has no graph, or there are no parameters.

    Cost: one more backward pass, through the backward pass.

    Source: [liu2024sophia]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """
    check_float("loss", loss)
    if loss.numel() != 1:
        raise ValueError(f"loss must be one number, got {loss!r}")
    _check(parameters, generator, loss=loss)
    gradients = torch.autograd.grad(
        loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True
    )
    signs = [_signs(w, generator) for w in parameters]
    product = sum((g * u).sum() for g, u in zip(gradients, signs, strict=True))
    if not product.requires_grad:  # the loss is linear
        return [torch.zeros_like(w) for w in parameters]
    rows = torch.autograd.grad(
        product, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return [u * row for u, row in zip(signs, rows, strict=True)]


def gauss_newton_bartlett(
    logits: Float[Tensor, "*B V"],
    parameters: Sequence[Tensor],
    *,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Estimate the diagonal of the Gauss-Newton matrix: n g², with labels drawn from the model.

    g is the gradient of the mean cross-entropy of n rows of logits, with targets that are drawn
    from the model's own distribution. Its mean of n g² is the diagonal of the mean of
    Jᵀ (diag p − p pᵀ) J, which has no negative entry; the Hessian is this matrix plus a part that
    vanishes where the model fits.

    Args:
        logits: (..., V), with their graph, which is kept.
        parameters: what the matrix is with respect to.
        generator: of the labels.

    Returns:
        One estimate for each parameter, of its shape.

    Raises:
        TypeError: if a parameter is no floating-point tensor.
        ValueError: if logits have no dimension or no graph, or there are no parameters.

    Cost: one backward pass.

    Source: [liu2024sophia]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """
    check_float("logits", logits, min_dims=1)
    _check(parameters, generator, logits=logits)
    rows = logits.flatten(0, -2) if logits.ndim > 1 else logits[None]  # (n, V)
    with torch.no_grad():
        labels = torch.multinomial(rows.softmax(-1), 1, generator=generator).squeeze(-1)
    loss = functional.cross_entropy(rows, labels)
    gradients = torch.autograd.grad(
        loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return [len(rows) * g.square() for g in gradients]


def _check(parameters: object, generator: object, **output: Tensor) -> None:
    """Raise unless there is a graph, and parameters that it can be followed to."""
    check_list("parameters", parameters)
    for each in parameters:
        check_float("a parameter", each)
    check_generator(generator)
    ((name, value),) = output.items()
    if not len(parameters) or not value.requires_grad:
        raise ValueError(f"{name} must have a graph, and parameters must hold some to follow it to")


def _signs(w: Tensor, generator: torch.Generator | None) -> Tensor:
    device = w.device if generator is None else generator.device
    coins = torch.randint(0, 2, w.shape, generator=generator, device=device)
    return (2 * coins - 1).to(w)
