"""Loss scaling: gradients of half precision kept out of the range where they become 0.

Explained in: chapters/17_hardware, section "Numbers bit by bit".
"""

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import check_float, check_number

__all__ = ["LossScaler"]


class LossScaler:
    """Dynamic loss scaling: gradients are computed S times too large, so that few become 0.

    In float16 a gradient below 6 · 10⁻⁸ is 0. The loss is multiplied with S, every gradient with
    it, and before the step they are divided again. If one is infinite or NaN, the step is left out
    and S halved; after ``interval`` steps in a row that were taken, S is doubled.

    Args:
        scale: S at first.
        growth: factor on S after ``interval`` good steps.
        backoff: factor on S after a bad one.
        interval: steps from one growth to the next.

    Attributes:
        scale: S now.
        good: steps taken since S was last changed.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
        >>> scaler, sgd = LossScaler(scale=8.0), torch.optim.SGD([weight], lr=0.5)
        >>> scaler.scaled((weight * 3).sum()).backward()
        >>> weight.grad
        tensor([24.])
        >>> scaler.step(sgd), weight.data
        (True, tensor([-0.5000]))

    Source: [micikevicius2018mixed]
    Explained in: chapters/17_hardware, section "Numbers bit by bit".
    """

    def __init__(
        self,
        scale: float = 2.0**16,
        *,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ):
        """Begin with a scale and no steps."""
        check_number("scale", scale, above=0)
        check_number("growth", growth, 1)
        check_number("backoff", backoff, above=0, below=1)
        check_number("interval", interval, 1, whole=True)
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.good = 0

    def scaled(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return S times the loss, to call ``backward`` on.

        Raises:
            TypeError: if loss is no floating-point tensor.
        """
        check_float("loss", loss)
        return loss * self.scale

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Divide the gradients by S and take the optimizer's step, if all of them are finite.

        Returns:
            Whether the step was taken.

        Raises:
            TypeError: if it is no optimizer.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be an Optimizer, got {type(optimizer).__name__}")
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for gradient in gradients:
            gradient.div_(self.scale)
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            self.scale, self.good = self.scale * self.backoff, 0
            return False
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = self.scale * self.growth, 0
        return True

    def state_dict(self) -> dict[str, float]:
        """Return what has to be kept to go on with."""
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from a state.

        Raises:
            TypeError: if it is no such dictionary.
            ValueError: if a number is out of range.
        """
        if not isinstance(state, dict) or set(state) != {"scale", "good"}:
            raise TypeError(f"state must be a dictionary with scale and good, got {state!r}")
        check_number("scale", state["scale"], above=0)
        check_number("good", state["good"], 0, whole=True)
        self.scale, self.good = state["scale"], state["good"]
