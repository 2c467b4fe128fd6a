"""Can a decoder learn from examples in its input, with its weights as they are?

Each text is a regression problem of its own: inputs x_1, x_2, … in R^3 with independent standard
normal numbers, answers y_i = w·x_i/√3 with w drawn anew for each text, in the order x_1, y_1, x_2,
y_2, … At each x_i the model names y_i, having read i - 1 examples. No w comes back, so the weights
cannot hold one; what they can hold is how to find it from examples. The model is a GPT of this
package whose table of words is replaced by linear maps, from numbers and back.

The log holds the squared error on fresh texts by the number of examples read, and beside it that
of least squares (of all solutions the one with the smallest norm), which is the best that anyone
can do here. Two controls: the answers of the examples come from another w than the question, and
all inputs are three times as large as any that training made likely.

Source: [garg2022what]
Explained in: chapters/05_architecture_deeper, section "Decoder only: GPT and LLaMA".
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook.models import FFN, Attention, Layer, Rotary, TransformerConfig, build

__all__ = ["SMOKE", "Regressor", "least_squares", "problems", "run"]

SIZE = 3  # numbers in an input
SMOKE = {"steps": 3, "tests": 7, "batch": 2}
CARD = {
    "model": "GPT, {layers} layers of width {width}, 200,449 parameters",
    "data": "regression problems of {examples} examples, none twice",
}


class Regressor(nn.Module):
    """A small GPT that reads numbers: linear maps in place of the table of words."""

    def __init__(self, width: int = 64, n_layers: int = 4, n_heads: int = 4):
        """Make an untrained model."""
        super().__init__()
        layer = Layer(Attention(n_heads, position=Rotary()), FFN(4 * width, "gelu"))
        config = TransformerConfig(1, width, decoder=[layer] * n_layers, init="gpt2")
        self.read = nn.Linear(SIZE + 1, width)
        self.stack = build(config).stack
        self.answer = nn.Linear(width, 1)

    def forward(self, x: Float[Tensor, "B K C"], y: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """Name each y_i from x_i and the examples before it; y_i itself is read after that.

        Args:
            x: inputs (B, K, 3).
            y: answers (B, K).

        Returns:
            What the model holds for the answers, (B, K).
        """
        tokens = x.new_zeros(*y.shape, 2, SIZE + 1)  # (B, K, 2, 4): an input, an answer, …
        tokens[:, :, 0, :SIZE] = x
        tokens[:, :, 1, SIZE] = y
        hidden = self.stack.encode(self.read(tokens.flatten(1, 2)))  # (B, 2K, width)
        return self.answer(hidden[:, 0::2])[..., 0]  # (B, K)


def problems(
    count: int, examples: int, generator: torch.Generator
) -> tuple[Float[Tensor, "B K C"], Float[Tensor, "B K"]]:
    """Draw regression problems: inputs (B, K, 3) and answers (B, K), both of variance 1."""
    x = torch.randn(count, examples, SIZE, generator=generator)
    w = torch.randn(count, SIZE, 1, generator=generator)
    return x, (x @ w)[..., 0] / math.sqrt(SIZE)


def least_squares(x: Float[Tensor, "B K C"], y: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Name each y_i by the shortest w that fits the examples before it; 0 before the first."""
    named = torch.zeros_like(y)
    for i in range(1, y.shape[1]):
        w = torch.linalg.pinv(x[:, :i].double()) @ y[:, :i, None].double()  # (B, 3, 1)
        named[:, i] = (x[:, i] * w[..., 0]).sum(dim=-1)
    return named


@torch.no_grad()
def _errors(model: nn.Module, x: Tensor, y: Tensor, shown: Tensor) -> list[float]:
    """Return the mean squared error by the number of examples, whose answers are `shown`."""
    found = []
    for i in range(y.shape[1]):
        read = torch.cat([shown[:, :i], y[:, i:]], dim=1)[:, : i + 1]
        found.append((model(x[:, : i + 1], read)[:, -1] - y[:, i]).pow(2).mean().item())
    return [float(f"{error:.3g}") for error in found]


def run(
    *,
    steps: int = 5000,
    batch: int = 64,
    examples: int = 10,
    width: int = 64,
    layers: int = 4,
    rate: float = 1e-3,
    tests: int = 4000,
    seed: int = 0,
) -> tuple[dict, None]:
    """Train the model and measure it on fresh problems."""
    settings = dict(locals())
    torch.manual_seed(seed)
    model, generator = Regressor(width, layers), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    losses = []
    for step in range(steps):
        slope = min(1.0, (step + 1) / 200, 2.5 * (1 - step / steps))
        optimizer.param_groups[0]["lr"] = rate * slope
        x, y = problems(batch, examples, generator)
        loss = (model(x, y) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    piece = max(1, steps // 50)
    x, y = problems(tests, examples, torch.Generator().manual_seed(10_000 + seed))
    other, _ = problems(tests, 1, torch.Generator().manual_seed(20_000 + seed))
    foreign = (x * other).sum(dim=-1) / math.sqrt(SIZE)  # answers of another w
    squared = (least_squares(x, y) - y).pow(2).mean(dim=0).tolist()
    return {
        "settings": settings,
        "steps": list(range(piece, steps + 1, piece)),
        "loss": [
            float(f"{sum(losses[s - piece : s]) / piece:.3g}")
            for s in range(piece, steps + 1, piece)
        ],
        "model": _errors(model.eval(), x, y, y),
        "least_squares": [round(error, 4) for error in squared],
        "foreign_answers": _errors(model, x, y, foreign),
        "three_times_as_large": _errors(model, 3 * x, 3 * y, 3 * y),
    }, None
