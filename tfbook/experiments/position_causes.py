"""Why do the models of the long test read as they do? Distances apart, clocks apart, and the cost.

The models of `extrapolation`. Three questions about them:

* `recall`: the second task, by the distance 1, 2 or 3 that it asks for, within the trained length:
  for sinusoidal positions, for ALiBi, and for ALiBi whose four heads have one slope, after 350
  steps and after four times as many;
* `divided`: the rotary models on text, at positions 33 to 64 and at 257 to 512, when one clock or
  several are slowed eight times, and when every position is divided by 8 and rounded down, so that
  each distance that is read is one of those that were trained;
* `milliseconds`: fused attention, eight heads of width 64 over 2,048 tokens, with turned queries
  and keys and with a number added to every score, the fastest of nine calls on one thread.

Explained in: chapters/04_positions, section "Train short, test long".
"""

import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor

from tfbook.experiments import extrapolation
from tfbook.experiments.extrapolation import (
    D_HEAD,
    LENGTH,
    LONG,
    N_HEADS,
    RATE,  # noqa: F401 - the card
    Reader,
    by_place,
    letters,
    recall_batch,
    train,
)
from tfbook.experiments.position_parts import settings_of
from tfbook.positions import ALiBi, apply_rotary

__all__ = ["SMOKE", "milliseconds", "right_by_distance", "rounded_reader", "run"]

FACTOR = LONG // LENGTH
CLOCKS = {
    "as trained": (),
    "all clocks": (0, 1, 2, 3, 4, 5),
    "clock 0": (0,),
    "clock 1": (1,),
    "clock 2": (2,),
    "clocks 3-5": (3, 4, 5),
}
SMOKE = {"names": ("ALiBi",), "lengths": (2,), "seeds": (0,), "steps": 2, "pieces": 1,
         "tokens": 64}  # fmt: skip
CARD = {
    "model": "transformer, {layers} layers of width {d_model}, 58,184 to 62,751 parameters",
    "data": "Shakespeare and a task of recall, in pieces of {trained}",
    "steps": "{steps} steps, on recall also four times as many, with one seed",
    "rate": "rate {RATE:g}",
}


class _OneSlope(ALiBi):
    """ALiBi with the largest slope in every head."""

    def __init__(self, n_heads: int):
        super().__init__(n_heads)
        self.slopes = [max(self.slopes)] * n_heads


def _recaller(name: str, steps: int) -> Reader:
    if name != "ALiBi, one slope":
        return train("recall", name, steps=steps)
    usual = extrapolation.INSIDE["ALiBi"]
    extrapolation.INSIDE["ALiBi"] = lambda: _OneSlope(N_HEADS)
    try:
        return train("recall", "ALiBi", steps=steps)
    finally:
        extrapolation.INSIDE["ALiBi"] = usual


@torch.no_grad()
def right_by_distance(model: Reader, pieces: int = 64) -> list[float]:
    """Return the share of right answers at the distances 1, 2 and 3, in pieces of 64."""
    ids, target = recall_batch(pieces, LENGTH, torch.Generator().manual_seed(10_000))
    right, back = (model(ids).argmax(dim=-1) == target).float(), ids % 3 + 1
    return [right[(target >= 0) & (back == far)].mean().item() for far in (1, 2, 3)]


def rounded_reader(model: Reader, factor: int = FACTOR) -> torch.nn.Module:
    """Return a rotary model as it reads when positions are divided and rounded down."""
    return _Rounded(model, factor)


class _Rounded(torch.nn.Module):
    def __init__(self, model: Reader, factor: int):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, N) to the scores of the answers (B, N, n_answers)."""
        n, x = ids.shape[1], self.model.embedding(ids)
        places, later = torch.arange(n) // self.factor, torch.ones(n, n).triu(1).bool()
        for layer in self.model.layers:
            part, rows = layer.attention, layer.norm(x)
            q, k, v = (
                w(rows).unflatten(-1, (N_HEADS, D_HEAD)).transpose(1, 2)
                for w in (part.q_proj, part.k_proj, part.v_proj)
            )
            scores = apply_rotary(q, places) @ apply_rotary(k, places).mT / math.sqrt(D_HEAD)
            weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
            x = x + part.out_proj((weights @ v).transpose(1, 2).flatten(2))
            x = x + layer.network(layer.second_norm(x))
        return self.model.to_answer(self.model.norm(x))


@torch.no_grad()
def milliseconds(tokens: int = 2048, calls: int = 9) -> dict[str, float]:
    """Return how long fused attention takes, by the way in which it is told positions."""
    dice = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 8, tokens, 64, generator=dice) for _ in range(3))
    places = torch.arange(tokens)
    bias = torch.randn(1, 8, tokens, tokens, generator=dice)
    bias = bias.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf)
    ways = {
        "no positions": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "turned": lambda: F.scaled_dot_product_attention(
            apply_rotary(q, places), apply_rotary(k, places), v, is_causal=True
        ),
        "a number for each pair": lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=bias),
    }
    found = dict.fromkeys(ways, math.inf)
    for _ in range(calls):
        for name, way in ways.items():
            started = time.process_time()
            way()
            found[name] = min(found[name], 1000 * (time.process_time() - started))
    return found


def run(
    *,
    names: tuple[str, ...] = ("sinusoidal", "ALiBi", "ALiBi, one slope"),
    lengths: tuple[int, ...] = (350, 1400),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 350,
    pieces: int = 64,
    tokens: int = 2048,
) -> tuple[dict, None]:
    """Take the three measurements.

    Returns:
        the log: `recall[name][steps]` holds the shares at the distances 1, 2 and 3, of one seed;
        `divided[name]` a list over seeds of the losses near and far; and `milliseconds`.
    """
    text, divided = letters("train"), {}
    recall = {
        name: {
            str(count): extrapolation.rounded(right_by_distance(_recaller(name, count), pieces))
            for count in lengths
        }
        for name in names
    }

    def read(name: str, model: torch.nn.Module) -> None:
        curve = by_place(model, "text", pieces)
        half = curve[len(curve) // 2 :]
        values = extrapolation.rounded([curve[1], sum(half) / len(half)])
        divided.setdefault(name, []).append(values)

    for seed in seeds:
        model = train("text", "rotary", seed=seed, steps=steps, text=text)
        read("divided and rounded", rounded_reader(model))
        slots = [layer.attention.position for layer in model.layers]
        trained = [slot.frequencies for slot in slots]
        for name, chosen in CLOCKS.items():
            for slot, omega in zip(slots, trained, strict=True):
                factor = torch.ones_like(omega)
                factor[list(chosen)] = FACTOR
                slot.frequencies = omega / factor
            read(name, model)
    settings = {**settings_of(steps), "tokens": tokens}
    took = {name: round(value, 1) for name, value in milliseconds(tokens).items()}
    log = {"recall": recall, "divided": divided, "milliseconds": took}
    return {"settings": settings, "seeds": list(seeds), **log}, None
