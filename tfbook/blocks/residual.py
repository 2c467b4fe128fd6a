"""The wiring around a sublayer: the sum with what came in, the norm's place, and dropout.

Explained in: chapters/05_architecture_deeper, section "The residual stream".
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_number

__all__ = ["PLACES", "Residual"]

Place = Literal["pre", "post", "inside", "both", "none"]
PLACES = ("pre", "post", "inside", "both", "none")


class Residual(nn.Module):
    """The wiring around a sublayer: where the norm stands, and the sum with what came in.

    For a sublayer f: "pre" y = x + drop(f(norm(x))), "post" y = norm(x + drop(f(x))), "inside"
    y = x + drop(norm(f(x))), "both" y = x + drop(norm_after(f(norm(x)))), "none" y = x +
    drop(f(x)). In code ``y = leave(x, f(enter(x)))``: f may return more than y, and the wiring need
    not know.

    Args:
        norm: None for "none".
        place: "pre" as in GPT-2, "post" as in 2017, "inside" the branch as in OLMo 2, on "both"
            sides of f as in Gemma 2, or "none".
        norm_after: the second norm of "both", else None.
        dropout: rate on what f adds.
        multiplier: factor on what f adds.

    Attributes:
        skip: rate at which a sequence goes around f in training, 0 at first; see
            :func:`tfbook.training.stochastic_depth`.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for an unknown place, a norm that does not go with it, or a number out of range.

    Source: [he2016deep], places: [xiong2020layer]
    Explained in: chapters/05_architecture_deeper, section "The residual stream".
    """

    def __init__(
        self,
        norm: nn.Module | None,
        *,
        place: Place = "post",
        norm_after: nn.Module | None = None,
        dropout: float = 0.0,
        multiplier: float = 1.0,
    ):
        """Keep the norms and the choices."""
        super().__init__()
        check_place(place)
        check_number("dropout", dropout, 0, below=1)
        check_number("multiplier", multiplier, above=0)
        if (norm is None) != (place == "none"):
            raise ValueError(
                "norm and place go together, norm=None with place='none', got "
                f"norm {norm} and place {place!r}"
            )
        if (norm_after is not None) != (place == "both"):
            raise ValueError(
                "norm_after and place='both' go together, got "
                f"norm_after {norm_after} and place {place!r}"
            )
        self.norm, self.norm_after, self.place = norm, norm_after, place
        self.dropout, self.multiplier, self.skip = dropout, multiplier, 0.0

    def enter(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return what the sublayer gets to see of x."""
        return self.norm(x) if self.place in ("pre", "both") else x

    def leave(self, x: Float[Tensor, "*B D"], y: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Add what the sublayer found, y, to the x that came in."""
        if self.place in ("inside", "both"):
            y = (self.norm_after or self.norm)(y)
        if self.multiplier != 1:
            y = y * self.multiplier
        if self.training and self.skip:
            # One coin for each sequence, and what stays is scaled up as in dropout.
            coins = torch.rand(y.shape[:1] + (1,) * (y.ndim - 1), device=y.device)
            y = y * (coins >= self.skip) / (1 - self.skip)
        x = x + drop(self, y)
        return self.norm(x) if self.place == "post" else x

    def extra_repr(self) -> str:
        """Show where the norm stands."""
        return f"place={self.place!r}"


def drop(module: nn.Module, x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Set a share ``module.dropout`` of the numbers to 0 in training and scale up the others."""
    if not (module.training and module.dropout):
        return x
    return functional.dropout(x, module.dropout)


def check_place(place: object) -> None:
    """Raise ValueError unless ``place`` names a place for the norm."""
    if place not in PLACES:
        raise ValueError(f"place must be one of {', '.join(PLACES)}, got {place!r}")
