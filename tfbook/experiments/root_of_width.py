"""Does a wide attention layer learn without the division by the root of the width?

The game: a sequence holds rock, paper and scissors in random order, each in one of four random
colours, and each must name the colour of the one it beats. One layer of attention with learned
matrices for queries, keys and values, and a matrix to the four colours, plays it. At the start the
numbers of queries and keys have variance 1. It is trained by plain gradient descent, with scores
divided by the root of the width and not, at several widths and learning rates.

Two controls, at one width: without the division, but with matrices for queries and keys that begin
so much smaller that the scores have the same spread as divided ones; and Adam in place of plain
gradient descent, with the division and without it.

The log holds the share of right answers on 4,000 other sequences after training. One task, three
symbols, no norms.

Source: [vaswani2017attention], section 3.2.1.
Explained in: chapters/02_attention, section "Why a large spread hurts".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook.attention import attend

__all__ = ["SMOKE", "Player", "examples", "run", "train"]

BATCH, HELD = 64, 4000
SMOKE = {
    "widths": (4,),
    "rates": (0.1,),
    "seeds": (0,),
    "steps": 3,
    "control": 4,
    "adam_rates": (0.01,),
}
CARD = {
    "model": "one attention layer of width {widths_first}–{widths_last}, at most 6,400 parameters",
    "data": "rock, paper and scissors in random colours",
    "rate": "rates {rates_first:g} to {rates_last:g}, plain gradient descent; as a control Adam",
}


def examples(size: int, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences of three, kind and colour one-hot, and the colour that each must name.

    Returns:
        tokens `(size, 3, 7)` and colours `(size, 3)`.
    """
    kind = torch.rand(size, 3, generator=chance).argsort(dim=-1)
    colour = torch.randint(4, (size, 3), generator=chance)
    beaten = (kind + 2) % 3
    where = (kind[:, None, :] == beaten[:, :, None]).float().argmax(dim=-1)
    one_hot = torch.cat([F.one_hot(kind, 3), F.one_hot(colour, 4)], dim=-1).float()
    return one_hot, colour.gather(1, where)


class Player(nn.Module):
    """One layer of attention that names a colour for each token."""

    def __init__(
        self, width: int, divide: bool, chance: torch.Generator, small_start: bool = False
    ):
        """Draw the four matrices so that queries and keys have variance 1.

        With `small_start` their variance is one over the root of the width, so that undivided
        products begin with variance 1.
        """
        super().__init__()
        self.scale = None if divide else 1.0  # None: one over the root of the width

        def matrix(inputs: int, outputs: int, std: float) -> nn.Parameter:
            return nn.Parameter(std * torch.randn(inputs, outputs, generator=chance))

        # Each token has two ones among its seven numbers.
        self.W_q, self.W_k, self.W_v = (matrix(7, width, 0.5**0.5) for _ in range(3))
        self.to_colour = matrix(width, 4, width**-0.5)
        if small_start:
            with torch.no_grad():
                self.W_q.mul_(width**-0.25)
                self.W_k.mul_(width**-0.25)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the colours, (B, 3, 4)."""
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        return attend(q, k, v, scale=self.scale) @ self.to_colour


def train(
    width: int,
    divide: bool,
    rate: float,
    seed: int,
    steps: int = 250,
    *,
    small_start: bool = False,
    adam: bool = False,
) -> float:
    """Train one layer and return its share of right answers."""
    chance = torch.Generator().manual_seed(seed)
    player = Player(width, divide, chance, small_start)
    rule = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = rule(player.parameters(), lr=rate)
    for _ in range(steps):
        x, wanted = examples(BATCH, chance)
        optimizer.zero_grad()
        F.cross_entropy(player(x).flatten(0, 1), wanted.flatten()).backward()
        optimizer.step()
    x, wanted = examples(HELD, torch.Generator().manual_seed(0))
    with torch.no_grad():
        return round((player(x).argmax(dim=-1) == wanted).float().mean().item(), 3)


def run(
    *,
    widths: tuple[int, ...] = (16, 64, 256),
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0),
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5),
    steps: int = 250,
    control: int = 256,
    adam_rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1),
) -> tuple[dict, None]:
    """Train every width at every rate, divided and not, and the controls at one width.

    Returns:
        the log: `right[way][width]` is a list over rates of lists over seeds; `small_start` is
        such a list for the width `control`, and `adam[way]` one over `adam_rates`.
    """
    return {
        "settings": {"steps": steps, "batch": BATCH},
        "widths": list(widths),
        "rates": list(rates),
        "seeds": list(seeds),
        "right": {
            way: {
                str(width): [
                    [train(width, divide, rate, seed, steps) for seed in seeds] for rate in rates
                ]
                for width in widths
            }
            for way, divide in (("divided", True), ("not divided", False))
        },
        "control": control,
        "small_start": [
            [train(control, False, rate, seed, steps, small_start=True) for seed in seeds]
            for rate in rates
        ],
        "adam_rates": list(adam_rates),
        "adam": {
            way: [
                [train(control, divide, rate, seed, steps, adam=True) for seed in seeds]
                for rate in adam_rates
            ]
            for way, divide in (("divided", True), ("not divided", False))
        },
    }, None
