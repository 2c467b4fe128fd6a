"""Muon: a matrix of weights moves alike in all of its directions.

Explained in: chapters/11_training_deeper, section "Optimizers".
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import check_float, check_list, check_module, check_number
from tfbook.optimization.optimizers import CHECKS, AdamW, Group, State, Written, check_amount

__all__ = ["Muon", "muon_groups", "orthogonalize"]

# Parts at the top of a model whose matrices are no maps between hidden layers.
NOT_HIDDEN = ("head", "position", "target_position", "segments")


def _one_of(*known: str) -> Callable[[str, object], None]:
    def check(name: str, value: object) -> None:
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    return check


class Muon(AdamW):
    """Muon: a matrix moves by its momentum made orthogonal, all else by AdamW.

    m ← μ m + (1 − μ) g;  w ← w − η (s · NS((1 − μ) g + μ m) + λ w). NS, :func:`orthogonalize`,
    sets the singular values of a matrix to about 1, so that each direction is moved alike. The
    factor s is √max(1, rows / columns), or with scale="adamw" 0.2 √max(rows, columns), which gives
    steps about as large as AdamW's, so that its learning rates fit.

    A group with ``rule="adamw"`` follows :class:`AdamW`: meant for embeddings, the last layer,
    norms and biases. :func:`muon_groups` makes both groups.

    Args:
        params: matrices, or groups.
        lr: η.
        momentum: μ.
        nesterov: whether to look ahead; without, NS(m).
        weight_decay: λ.
        steps: iterations of NS.
        scale: "spectral" for √max(1, rows / columns), or "adamw".
        precision: of NS, "bfloat16" as in PyTorch, "full" for that of the weights, or "auto":
            full on a CPU, where products of bfloat16 may take many times as long, else bfloat16.
        rule: "muon" or "adamw".
        betas: β₁ and β₂ of AdamW.
        eps: ε of AdamW.

    Raises:
        ValueError: for an option out of its range, or rule "muon" for what is no matrix.

    Cost: one number kept for each parameter of a matrix, and up to 6 · steps · rows · columns ·
    min(rows, columns) FLOPs for its step. Matrices of one shape take it together, which needs a
    few copies of them for a moment.

    Source: [jordan2024muon], scale "adamw": [liu2025muon]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """

    checks = {
        **CHECKS,
        "steps": partial(check_number, low=0, whole=True),
        "scale": _one_of("spectral", "adamw"),
        "precision": _one_of("auto", "bfloat16", "full"),
        "rule": _one_of("muon", "adamw"),
    }

    def __init__(
        self,
        params: object,
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        steps: int = 5,
        scale: str = "spectral",
        precision: str = "auto",
        rule: str = "muon",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ):
        """Keep the options."""
        options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        options |= {"steps": steps, "scale": scale, "precision": precision, "rule": rule}
        Written.__init__(self, params, {"lr": lr, **options, "betas": betas, "eps": eps})

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own.

        Raises:
            ValueError: as for the class.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for w in group["params"]:
            if group["rule"] == "muon" and w.ndim != 2:
                self.param_groups.pop()
                raise ValueError(
                    f"rule 'muon' is for matrices, got a parameter of shape {tuple(w.shape)}; "
                    "put it into a group with rule='adamw', as muon_groups(model) does"
                )

    def start(self, w: Float[Tensor, "*S"], group: Group) -> State:
        """Return a momentum of 0, or what AdamW keeps."""
        if group["rule"] == "adamw":
            return super().start(w, group)
        return {"momentum_buffer": torch.zeros_like(w)}

    def move(self, weights: list[Float[Tensor, "..."]], group: Group) -> None:
        """Change parameters and their states in place, matrices of one shape together."""
        if group["rule"] == "adamw":
            super().move(weights, group)
            return
        alike = defaultdict(list)
        for w in weights:
            alike[w.shape, w.dtype, w.device].append(w)
        for (shape, dtype, device), matrices in alike.items():
            moves = torch.stack([self._ahead(w, group) for w in matrices])  # (K, R, C)
            half = group["precision"] == "bfloat16"
            if half or (group["precision"] == "auto" and device.type != "cpu"):
                moves = moves.bfloat16()
            moves = orthogonalize(moves, steps=group["steps"]).to(dtype)
            rows, columns = shape
            size = math.sqrt(max(1, rows / columns))
            if group["scale"] == "adamw":
                size = 0.2 * math.sqrt(max(rows, columns))
            for w, move in zip(matrices, moves, strict=True):
                w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * size * move)

    def _ahead(self, w: Tensor, group: Group) -> Tensor:
        """Take the gradient into the momentum; return that, or with Nesterov what comes next."""
        g, m, mu = w.grad, self.state[w]["momentum_buffer"], group["momentum"]
        m.lerp_(g, 1 - mu)
        return g.lerp(m, mu) if group["nesterov"] else m  # (1 − μ) g + μ m


def orthogonalize(
    matrix: Float[Tensor, "*K R C"], *, steps: int = 5
) -> Float[Tensor, "*K R C"]:
    """Bring the singular values of a matrix near 1 and keep its singular vectors.

    X ← X / |X|, then several times X ← a X + (b A + c A²) X with A = X Xᵀ: the polynomial
    a σ + b σ³ + c σ⁵ acts on each singular value σ. Its coefficients lift small values fast rather
    than end at 1: after five steps all that were above 0.003 of |X| lie between 0.68 and 1.21.

    Args:
        matrix: (..., R, C); of several matrices each is treated for itself.
        steps: iterations.

    Returns:
        About U Vᵀ of the decomposition U Σ Vᵀ, (..., R, C), in the precision of the input.

    Raises:
        TypeError: if the matrix is not floating point or steps no integer.
        ValueError: if it has fewer than two dimensions, or steps is negative.

    Example:
        >>> x = orthogonalize(torch.tensor([[3.0, 0.0, 0.0], [0.0, -1.0, 0.0]]))
        >>> torch.linalg.svdvals(x).round(decimals=1)
        tensor([1.1000, 0.8000])

    Cost: per matrix and step 2 (2 R² C + R³) FLOPs, with R the shorter side.

    Source: [jordan2024muon]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """
    check_float("matrix", matrix, min_dims=2)
    check_number("steps", steps, 0, 1000, whole=True)
    a, b, c = 3.4445, -4.7750, 2.0315
    *several, rows, columns = matrix.shape
    tall = rows > columns
    x = matrix.reshape(math.prod(several), rows, columns)  # (K, R, C)
    x = x.mT if tall else x  # the smaller of X Xᵀ and Xᵀ X
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)  # no singular value above 1
    for _ in range(steps):
        gram = x @ x.mT  # A, (K, R, R)
        change = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b A + c A²
        x = torch.baddbmm(x, change, x, beta=a)
    return (x.mT if tall else x).reshape(matrix.shape)


def muon_groups(
    model: nn.Module,
    *,
    lr: float,
    adamw_lr: float,
    weight_decay: float = 0.1,
    not_hidden: Collection[str] = NOT_HIDDEN,
) -> list[Group]:
    """Split a model's parameters into hidden matrices for Muon, and the others for AdamW.

    Args:
        model: whose parameters; frozen ones are left out.
        lr: of Muon.
        adamw_lr: of AdamW.
        weight_decay: λ of all that is a matrix.
        not_hidden: submodules at the top of the model that are no hidden layers; embeddings
            (``nn.Embedding``, or a submodule ``embed``) never are.

    Returns:
        Up to three groups for :class:`Muon`: hidden matrices, other matrices, and the rest.

    Raises:
        TypeError: if the model is no module, or not_hidden no list of names.
        ValueError: if a number is negative, a name is that of no part, or there are no hidden
            matrices.

    Source: [jordan2024muon]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """
    for name, value in (("lr", lr), ("adamw_lr", adamw_lr), ("weight_decay", weight_decay)):
        check_amount(name, value)
    check_module("model", model)
    check_list("not_hidden", not_hidden)
    tops = {name.split(".")[0] for name, _ in model.named_parameters()}
    for name in not_hidden:
        if name not in tops and name not in NOT_HIDDEN:
            raise ValueError(f"not_hidden must name parts of the model, got {name!r}")
    outside = {w for m in model.modules() if isinstance(m, nn.Embedding) for w in m.parameters()}
    groups = {"hidden": [], "matrix": [], "rest": []}
    for name, w in model.named_parameters():
        if not w.requires_grad:
            continue
        inside = w not in outside and name.split(".")[0] not in {"embed", *not_hidden}
        kind = "hidden" if w.ndim == 2 and inside else "matrix" if w.ndim >= 2 else "rest"
        groups[kind].append(w)
    if not groups["hidden"]:
        raise ValueError("model must have hidden matrices, got none")
    decayed = {"weight_decay": weight_decay}
    adamw = {"rule": "adamw", "lr": adamw_lr}
    options = (
        {"rule": "muon", "lr": lr, **decayed},
        adamw | decayed,
        adamw | {"weight_decay": 0.0},
    )
    found = zip(groups.values(), options, strict=True)
    return [{"params": params, **chosen} for params, chosen in found if params]
