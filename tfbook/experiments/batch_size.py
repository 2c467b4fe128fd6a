"""How many steps, and how many examples, does a loss cost with batches of different sizes?

A small transformer reads Shakespeare one character at a time, in windows of 32. It is trained with
AdamW, without a schedule, until the loss on held-out text is at a target, with batches of 2 to 256
windows. For each batch size several learning rates are tried with one seed, and half of the lowest
where that is the best. A rate is given up after one and a half times the steps of the best so far.
The one that needs the fewest is then run with other seeds, and these count. The curve
S = S_min (1 + B_crit / B) is laid through the mean steps, each with the same relative weight.

Beside it the log holds the noise scale of the gradient, tr Σ / |G|², a batch size that can be read
off the gradients of one model: how large a batch is when the noise of its mean gradient is as
long as the gradient itself. It is measured on the way, from small and large batches, and put
together from means of many, since it is a quotient of noisy numbers.

Source: [mccandlish2018empirical]
Explained in: chapters/11_training_deeper, section "Batch size".
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tfbook import data
from tfbook.data import Windows, char_tokenizer, rows
from tfbook.models import FFN, Attention, Layer, Norm, Rotary, TransformerConfig, build

__all__ = ["SMOKE", "fit_steps", "model", "noise_scale", "run"]

SMOKE = {"batches": (4, 8), "rates": (4e-3, 8e-3), "seeds": (0, 1), "target": 4.0, "most": 30}
CARD = {
    "model": "decoder, one layer of width 32, {parameters:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "steps": "as many steps as a loss of {target} takes",
    "batch": "batches of {batches_first} to {batches_last}",
    "rate": "of the rates {rates_first:g} to {rates_last:g} the best",
}
CONTEXT, HELD = 32, 128


def model(vocabulary: int) -> nn.Module:
    """Make the model that is trained: one layer of width 32."""
    attention = Attention(2, position=Rotary(), bias=False)
    layer = Layer(attention, FFN(88, "swiglu", bias=False), norm=Norm("rms"))
    return build(TransformerConfig(vocabulary, 32, decoder=[layer], init="gpt2"))


def _loss(net, tokens):
    return functional.cross_entropy(net(tokens[:, :-1])[0].flatten(0, 1), tokens[:, 1:].flatten())


def fit_steps(batches: Sequence[float], steps: Sequence[float]) -> tuple[float, float]:
    """Lay S = S_min (1 + B_crit / B) through points, and return S_min and B_crit.

    The squares of (fitted − seen) / seen are made small, which is linear in S_min and in
    E_min = S_min B_crit.
    """
    seen = np.asarray(steps, dtype=float)  # (P,)
    columns = np.stack([np.ones(len(seen)), 1 / np.asarray(batches, dtype=float)], axis=1)  # (P, 2)
    (s_min, e_min), *_ = np.linalg.lstsq(columns / seen[:, None], np.ones(len(seen)), rcond=None)
    return float(s_min), float(e_min / s_min)


def noise_scale(small: Sequence[float], large: Sequence[float], b: int, m: int) -> float:
    """Return tr Σ / |G|² from squared lengths of mean gradients of b and of m > b examples.

    E|g_B|² = |G|² + tr Σ / B, and two sizes B give both unknowns.
    """
    few, many = float(np.mean(small)), float(np.mean(large))
    squared = (m * many - b * few) / (m - b)  # |G|²
    trace = (few - many) / (1 / b - 1 / m)  # tr Σ
    return trace / squared


def _squared_lengths(net, tokens, b):
    """Return |g|² of each part of b examples, and of all."""
    total, small = None, []
    parts = tokens.split(b)
    for part in parts:
        grads = torch.autograd.grad(_loss(net, part), list(net.parameters()))
        flat = torch.cat([grad.flatten() for grad in grads])  # (parameters,)
        small.append(flat.square().sum().item())
        total = flat if total is None else total + flat
    return small, (total / len(parts)).square().sum().item()


def _train(ids, held, vocabulary, batch, rate, seed, target, most):
    """Return after how many steps the held-out loss is at the target, or None, and the model."""
    torch.manual_seed(seed)
    net = model(vocabulary)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.0)
    windows, next_look, before = Windows(ids, CONTEXT, batch_size=batch, seed=seed), 10, None
    for step in range(1, most + 1):
        optimizer.zero_grad()
        _loss(net, windows(step)).backward()
        optimizer.step()
        if step >= next_look:
            with torch.no_grad():
                now = _loss(net, held).item()
            if now <= target:
                if before is None:
                    return float(step), net
                (first, high), share = before, 0.0
                share = (high - target) / (high - now)  # on the line between the last two looks
                return first + share * (step - first), net
            before, next_look = (step, now), max(step + 1, round(1.06 * step))
    return None, net


def _best(seen: dict[str, float | None]) -> str:
    """Return the rate that needs the fewest steps."""
    return min((taken, rate) for rate, taken in seen.items() if taken is not None)[1]


def run(
    *,
    batches: Sequence[int] = (2, 4, 8, 16, 32, 64, 128, 256),
    rates: Sequence[float] = (2e-3, 4e-3, 8e-3, 16e-3, 32e-3),
    seeds: Sequence[int] = (0, 1, 2),
    target: float = 2.35,
    most: int = 20000,
) -> tuple[dict, None]:
    """Train with each batch size, rate and seed, and fit the curve."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in locals().items()}
    text = data.shakespeare("train")
    tokenizer = char_tokenizer(text)
    ids = torch.tensor(tokenizer.encode(text).ids)
    held = rows(torch.tensor(tokenizer.encode(data.shakespeare("valid")).ids), CONTEXT)
    held, vocabulary = held[:: len(held) // HELD][:HELD], tokenizer.get_vocab_size()

    tried, chosen, steps = {}, {}, {}
    for batch in batches:

        def until(rate, seed, limit, batch=batch):
            found, _ = _train(ids, held, vocabulary, batch, rate, seed, target, limit)
            return None if found is None else round(found, 1)

        limit, seen = most, {}
        for rate in rates:
            seen[f"{rate:g}"] = taken = until(rate, 1000, limit)
            limit = limit if taken is None else min(limit, int(1.5 * taken))
        tried[str(batch)] = seen
        lowest = min(rates)
        if _best(seen) == f"{lowest:g}":  # at the edge: look beyond it
            seen[f"{lowest / 2:g}"] = until(lowest / 2, 1000, limit)
        best = _best(seen)
        chosen[str(batch)] = float(best)
        steps[str(batch)] = [until(float(best), seed, most) for seed in seeds]
    s_min, b_crit = fit_steps(list(map(int, steps)), [float(np.mean(x)) for x in steps.values()])

    small, large, many = [], [], 128
    for seed in seeds:  # halfway to the target, in the loss
        _, net = _train(ids, held, vocabulary, 16, 8e-3, seed, (target + 3.3) / 2, most)
        windows = Windows(ids, CONTEXT, batch_size=many, seed=100 + seed)
        for number in range(4):
            few, all_ = _squared_lengths(net, windows(number), 4)
            small, large = small + few, [*large, all_]
    return {
        "settings": settings,
        "parameters": sum(p.numel() for p in net.parameters()),
        "tried": tried,
        "chosen": chosen,
        "steps": steps,
        "s_min": round(s_min, 1),
        "b_crit": round(b_crit, 2),
        "noise_scale": round(noise_scale(small, large, 4, many), 2),
    }, None
