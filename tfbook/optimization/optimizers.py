"""Optimizers, written to be read: from a gradient to a step, one parameter after the other.

Each class is a ``torch.optim.Optimizer``, with groups of parameters, ``state_dict`` and learning
rates that a scheduler may change. Its method ``update`` is the formula; the base class
:class:`Written` goes through the parameters. In the formulas w is a parameter, g its gradient, η
the learning rate ``lr`` and λ the ``weight_decay``.

SGD, Adam, AdamW, RAdam and Adafactor take the steps of ``torch.optim`` and keep the same names of
states, so either can go on with what the other has saved. Where speed counts use PyTorch's, which
treat all parameters at once. :mod:`tfbook.optimization.sophia` and
:mod:`tfbook.optimization.muon` have two more.

Explained in: chapters/11_training_deeper, section "Optimizers".
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from tfbook._checks import check_bool, check_module, check_number

__all__ = [
    "Adafactor",
    "Adam",
    "AdamW",
    "Lion",
    "RAdam",
    "SGD",
    "Written",
    "decay_groups",
]

State = dict[str, Tensor]
Group = dict[str, object]
# What a group may hold besides the options of its optimizer.
OTHER_KEYS = {"params", "param_names", "initial_lr", "name"}


def check_amount(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number and not negative."""
    check_number(name, value, 0)


def _check_betas(name: str, value: object) -> None:
    if not (isinstance(value, (tuple, list)) and len(value) == 2):
        raise TypeError(f"{name} must be a pair of numbers, got {value!r}")
    for each in value:
        check_number(name, each, 0, below=1)


def _check_eps(name: str, value: object) -> None:
    for each in value if isinstance(value, (tuple, list)) else [value]:
        if each is not None:
            check_amount(name, each)


# How each option is checked; others are left to the class that has them.
CHECKS = {
    "lr": check_amount,
    "weight_decay": check_amount,
    "momentum": partial(check_number, low=0, below=1),
    "nesterov": check_bool,
    "betas": _check_betas,
    "eps": _check_eps,
}


class Written(Optimizer):
    """What the optimizers share: the walk through the parameters, and the check of options.

    A subclass says in ``start`` what it keeps for each parameter and in ``update`` how it moves
    one. A parameter without a gradient stays where it is.

    Args:
        params: parameters, or groups of them as in ``torch.optim``.
        defaults: the options of all groups that do not say otherwise.

    Raises:
        ValueError: for an option that does not exist, or is out of its range.

    Explained in: chapters/11_training_deeper, section "Optimizers".
    """

    checks = CHECKS

    def __init__(self, params: object, defaults: Group):
        """Check the options and make the groups."""
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own.

        Raises:
            ValueError: for an option that does not exist, or is out of its range.
        """
        unknown = set(param_group) - set(self.defaults) - OTHER_KEYS
        if unknown:
            raise ValueError(
                f"a group must have options out of {', '.join(self.defaults)}, "
                f"got {', '.join(sorted(unknown))}"
            )
        for name, value in {**self.defaults, **param_group}.items():
            if name in self.checks:
                self.checks[name](name, value)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Move each parameter once.

        Args:
            closure: computes the loss and its gradients anew; None when they are there already.

        Returns:
            What the closure returned.

        Raises:
            TypeError: for a sparse gradient or complex numbers.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moving = [w for w in group["params"] if w.grad is not None]
            for w in moving:
                if w.grad.is_sparse or not w.is_floating_point():
                    raise TypeError("gradients must be dense and real, use torch.optim for others")
                if not self.state[w]:
                    self.state[w].update(self.start(w, group))
            self.move(moving, group)
        return loss

    def start(self, w: Float[Tensor, "*S"], group: Group) -> State:
        """Return what is kept for a parameter before its first step."""
        raise NotImplementedError

    def move(self, weights: list[Float[Tensor, "..."]], group: Group) -> None:
        """Change parameters of a group, which have gradients, and their states in place."""
        for w in weights:
            self.update(w, w.grad, self.state[w], group)

    def update(
        self, w: Float[Tensor, "*S"], g: Float[Tensor, "*S"], state: State, group: Group
    ) -> None:
        """Change w and its state in place, given its gradient g."""
        raise NotImplementedError


class SGD(Written):
    """Stochastic gradient descent, with momentum.

    g ← g + λ w;  m ← μ m + g;  w ← w − η m, or with Nesterov's look ahead w ← w − η (g + μ m).
    Here λ is an L2 penalty, ½ λ |w|² in the loss; for this optimizer without momentum it is the
    same as decaying the weights by η λ.

    Args:
        params: parameters or groups.
        lr: η.
        momentum: μ, 0 … 1; 0 keeps nothing.
        nesterov: whether the step looks ahead; needs momentum.
        weight_decay: λ.

    Raises:
        ValueError: for an option out of its range, or Nesterov without momentum.

    Cost: one number kept for each parameter, none without momentum.

    Source: [sutskever2013importance]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """

    def __init__(
        self,
        params: object,
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ):
        """Keep the options."""
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum above 0, got 0")
        options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, **options})

    def start(self, w: Float[Tensor, "*S"], group: Group) -> State:
        """Return a momentum of 0."""
        return {"momentum_buffer": torch.zeros_like(w)} if group["momentum"] else {}

    def update(
        self, w: Float[Tensor, "*S"], g: Float[Tensor, "*S"], state: State, group: Group
    ) -> None:
        """Change w and its momentum in place."""
        g = g + group["weight_decay"] * w
        if group["momentum"]:
            m = state["momentum_buffer"]
            m.mul_(group["momentum"]).add_(g)
            g = g + group["momentum"] * m if group["nesterov"] else m
        w.sub_(group["lr"] * g)


class Adam(Written):
    """Adam: each number is moved by its mean gradient over the root of its mean square.

    m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  m̂ = m / (1 − β₁ᵗ);  v̂ = v / (1 − β₂ᵗ);
    w ← w − η m̂ / (√v̂ + ε). The corrections undo that both means begin at 0. A penalty λ is added
    to the gradient, g + λ w, and so divided by √v̂ like the rest of it: where gradients are large
    the weights hardly decay. See :class:`AdamW`.

    Args:
        params: parameters or groups.
        lr: η, about the size of a step in each number.
        betas: β₁ and β₂.
        eps: ε.
        weight_decay: λ of the penalty.

    Cost: two numbers kept for each parameter.

    Source: [kingma2015adam]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """

    def __init__(
        self,
        params: object,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        """Keep the options."""
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, **options})

    def start(self, w: Float[Tensor, "*S"], group: Group) -> State:
        """Return means of 0 and a count of 0 steps."""
        zeros = {"exp_avg": torch.zeros_like(w), "exp_avg_sq": torch.zeros_like(w)}
        return {"step": torch.tensor(0.0), **zeros}

    def update(
        self, w: Float[Tensor, "*S"], g: Float[Tensor, "*S"], state: State, group: Group
    ) -> None:
        """Change w and its means in place."""
        m, v, t = _means(g + group["weight_decay"] * w, state, group)
        beta1, beta2 = group["betas"]
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        w.sub_(group["lr"] * m_hat / (v_hat.sqrt() + group["eps"]))


class AdamW(Adam):
    """Adam whose weights decay by themselves: w ← w − η (m̂ / (√v̂ + ε) + λ w).

    The decay does not pass through the means, so each weight shrinks by the same share η λ.

    Args:
        params: parameters or groups; see :func:`decay_groups` for those that should not decay.
        lr: η.
        betas: β₁ and β₂.
        eps: ε.
        weight_decay: λ.

    Cost: two numbers kept for each parameter.

    Source: [loshchilov2019decoupled]
    Explained in: chapters/11_training_deeper, section "Weight decay is not L2".
    """

    def __init__(
        self,
        params: object,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ):
        """Keep the options."""
        super().__init__(params, lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def update(
        self, w: Float[Tensor, "*S"], g: Float[Tensor, "*S"], state: State, group: Group
    ) -> None:
        """Change w and its means in place."""
        w.mul_(1 - group["lr"] * group["weight_decay"])
        super().update(w, g, state, {**group, "weight_decay": 0.0})


class RAdam(Adam):
    """Rectified Adam: no division by √v̂ before v̂ is an estimate worth the name.

    After t steps v̂ is as good as a plain mean over ρ = ρ∞ − 2 t β₂ᵗ / (1 − β₂ᵗ) of them,
    ρ∞ = 2 / (1 − β₂) − 1. For ρ ≤ 5 the step is η m̂; above it is η r m̂ / (√v̂ + ε), with
    r² = (ρ − 4)(ρ − 2) ρ∞ / ((ρ∞ − 4)(ρ∞ − 2) ρ), which rises from near 0 towards 1 like a
    warm-up. As in PyTorch, ε is added to √v, not to √v̂, and the border is 5 (in the paper 4).

    Args:
        params: parameters or groups.
        lr: η.
        betas: β₁ and β₂.
        eps: ε.
        weight_decay: λ of the penalty.

    Cost: two numbers kept for each parameter.

    Source: [liu2020variance]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """

    def update(
        self, w: Float[Tensor, "*S"], g: Float[Tensor, "*S"], state: State, group: Group
    ) -> None:
        """Change w and its means in place."""
        m, v, t = _means(g + group["weight_decay"] * w, state, group)
        beta1, beta2 = group["betas"]
        move = m / (1 - beta1**t)
        longest = 2 / (1 - beta2) - 1  # ρ∞
        length = longest - 2 * t * beta2**t / (1 - beta2**t)  # ρ
        if length > 5:
            ratio = (length - 4) * (length - 2) * longest
            ratio /= (longest - 4) * (longest - 2) * length  # r²
            move = move * math.sqrt(ratio * (1 - beta2**t)) / (v.sqrt() + group["eps"])
        w.sub_(group["lr"] * move)


class Adafactor(Written):
    """Adafactor: of the squares of a matrix of gradients only means of rows and columns are kept.

    V ≈ r cᵀ / mean(r), with r the running mean over each row of g² and c over each column; a
    vector keeps all of V. The share of the new gradient is t^−0.8. The update u = g / √V is
    shortened where its root mean square (RMS) exceeds d, and the step is relative to the
    weights: w ← w − max(ε₂, RMS(w)) · min(η, 1/√t) · u / max(1, RMS(u) / d). There is no momentum.

    Args:
        params: parameters or groups.
        lr: η, a share of the weights' size.
        beta2_decay: the exponent, −0.8.
        eps: ε₁, the least √V, by default the precision of the numbers; and ε₂.
        d: the RMS from which an update is shortened, at least 1.
        weight_decay: λ; the weights shrink by η λ.

    Cost: n + m numbers kept for a matrix of n · m.

    Source: [shazeer2018adafactor]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """

    def __init__(
        self,
        params: object,
        lr: float = 1e-2,
        *,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
    ):
        """Keep the options."""
        if not (isinstance(eps, tuple) and len(eps) == 2):
            raise TypeError(f"eps must be a pair, a number or None and a number, got {eps!r}")
        if beta2_decay > 0 or d < 1:
            raise ValueError(
                f"beta2_decay must be at most 0 and d at least 1, got {beta2_decay} and {d}"
            )
        options = {"beta2_decay": beta2_decay, "d": d, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, "eps": eps, **options})

    def start(self, w: Float[Tensor, "*S"], group: Group) -> State:
        """Return means of 0: of rows and columns for a matrix, of all numbers for a vector."""
        step = {"step": torch.tensor(0.0)}
        if w.ndim < 2:
            return step | {"variance": torch.zeros_like(w)}
        rows, columns = w[..., :1], w[..., :1, :]  # (..., n, 1) and (..., 1, m)
        return step | {"row_var": torch.zeros_like(rows), "col_var": torch.zeros_like(columns)}

    def update(
        self, w: Float[Tensor, "*S"], g: Float[Tensor, "*S"], state: State, group: Group
    ) -> None:
        """Change w and its means in place."""
        state["step"] += 1
        t = state["step"].item()
        least, smallest = group["eps"]
        least = torch.finfo(w.dtype).eps if least is None else least
        share = t ** group["beta2_decay"]
        length = max(smallest, _rms(w)) * min(group["lr"], 1 / math.sqrt(t))
        w.mul_(1 - group["lr"] * group["weight_decay"])
        if w.ndim < 2:
            v = state["variance"].lerp_(g.square(), share).clone()
        else:
            r = state["row_var"].lerp_(g.square().mean(dim=-1, keepdim=True), share)
            c = state["col_var"].lerp_(g.square().mean(dim=-2, keepdim=True), share)
            v = r @ c / r.mean(dim=-2, keepdim=True).clamp(min=least)  # (..., n, m)
        u = g / v.clamp(min=least**2).sqrt()
        w.sub_(length * u / max(1.0, _rms(u) / group["d"]))


class Lion(Written):
    """Lion: every number moves by the same amount, in the direction of a mean gradient's sign.

    w ← w − η (sign(β₁ m + (1 − β₁) g) + λ w);  m ← β₂ m + (1 − β₂) g. The mean that is kept
    reaches further back than the one that decides.

    Args:
        params: parameters or groups.
        lr: η, the size of each step; the paper takes a third to a tenth of AdamW's.
        betas: β₁ and β₂.
        weight_decay: λ; with the smaller η it takes a larger one to decay as much.

    Cost: one number kept for each parameter.

    Source: [chen2023symbolic]
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """

    def __init__(
        self,
        params: object,
        lr: float = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ):
        """Keep the options."""
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def start(self, w: Float[Tensor, "*S"], group: Group) -> State:
        """Return a mean of 0."""
        return {"exp_avg": torch.zeros_like(w)}

    def update(
        self, w: Float[Tensor, "*S"], g: Float[Tensor, "*S"], state: State, group: Group
    ) -> None:
        """Change w and its mean in place."""
        beta1, beta2 = group["betas"]
        m = state["exp_avg"]
        direction = m.lerp(g, 1 - beta1).sign()
        w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * direction)
        m.lerp_(g, 1 - beta2)


def decay_groups(model: nn.Module, weight_decay: float) -> list[Group]:
    """Split a model's parameters into those that decay, and those that do not.

    Matrices decay; biases and the weights of norms, which have one dimension, do not.

    Args:
        model: whose parameters; frozen ones are left out.
        weight_decay: λ of the first group.

    Returns:
        Two groups for any optimizer.

    Raises:
        TypeError: if the model is no module, or the weight decay not a number.
        ValueError: if it is negative.

    Example:
        >>> [len(group["params"]) for group in decay_groups(nn.Linear(3, 5), 0.1)]
        [1, 1]

    Source: [radford2018improving]
    Explained in: chapters/11_training_deeper, section "Weight decay is not L2".
    """
    check_module("model", model)
    check_amount("weight_decay", weight_decay)
    trained = [w for w in model.parameters() if w.requires_grad]
    return [
        {"params": [w for w in trained if w.ndim >= 2], "weight_decay": weight_decay},
        {"params": [w for w in trained if w.ndim < 2], "weight_decay": 0.0},
    ]


def _means(g: Tensor, state: State, group: Group) -> tuple[Tensor, Tensor, float]:
    """Take a gradient into the running means; return them and the number of the step, from 1."""
    beta1, beta2 = group["betas"]
    state["step"] += 1
    m = state["exp_avg"].lerp_(g, 1 - beta1)
    v = state["exp_avg_sq"].mul_(beta2).add_((1 - beta2) * g.square())
    return m, v, state["step"].item()


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()
