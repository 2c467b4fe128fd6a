"""Which part of a model fails at new positions and distances? How far back do T5 and ALiBi read?

The models of `extrapolation`, trained on pieces of 64 letters. Letters 257 to 512 of the test texts
are read in pieces of 64 that begin at position 0 or at 448:

* `moved` is the loss when all of a sinusoidal model is told 448 to 511 ("all"), when only its
  attention weights are those of that reading ("weights"), when all else is ("all but the weights"),
  and when only the clocks that made a whole turn within 64 positions are told 448 to 511 ("fast
  clocks"), or only the others ("slow clocks");
* `before` is the weight of each head of the first layer on the letter before, at both places;
* `scores` is the score that the head with the largest such weight gives on average, over texts and
  positions, to the letter at each distance, less its mean over all 32 distances, at both places;
* `angles` is the loss of the rotary models at positions 33 to 64 and at 257 to 512 when the angle
  of some clocks stays, at all larger distances, what it is at 63 ("clock 2 stops"), or when some
  turn eight times as slowly at all distances ("clocks 2-5 slowed");
* `kept` is the rise of the loss at the last letter of a piece of 64 when all but the last so many
  letters are another text, for T5 and ALiBi.

Explained in: chapters/04_positions, section "New positions".
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tfbook.experiments import extrapolation
from tfbook.experiments.extrapolation import (
    D_HEAD,
    D_MODEL,
    LENGTH,
    LONG,
    N_HEADS,
    RATE,  # noqa: F401 - the card
    Reader,
    by_place,
    letters,
    short_reading,
    test_pieces,
    train,
)
from tfbook.experiments.position_controls import clipped_reader
from tfbook.positions import sinusoidal_encoding, sinusoidal_wavelengths

__all__ = ["SMOKE", "moved_reader", "rise_if_replaced", "run", "settings_of"]

SHIFT = LONG - LENGTH
KEPT = (1, 2, 4, 8, 16, 32)
DISTANCES = 32
STOPPED = {
    "as trained": (),
    "all clocks stop": (0, 1, 2, 3, 4, 5),
    "clocks 0-1 stop": (0, 1),
    "clock 2 stops": (2,),
    "clocks 2-3 stop": (2, 3),
    "clocks 2-5 stop": (2, 3, 4, 5),
    "clocks 3-5 stop": (3, 4, 5),
}
SMOKE = {"seeds": (0,), "reading": ("ALiBi",), "steps": 2, "pieces": 1}
CARD = {
    "model": "transformer, {layers} layers of width {d_model}, 62,751 to 62,815 parameters",
    "data": "Shakespeare, windows of {trained} characters",
    "rate": "rate {RATE:g}",
}


def codes_of(moved: str) -> Tensor:
    """Return the codes (64, d_model) of positions 0-63, "fast", "slow" or "all" clocks moved on."""
    codes = sinusoidal_encoding(torch.arange(LENGTH), D_MODEL)
    far = sinusoidal_encoding(torch.arange(LENGTH) + SHIFT, D_MODEL)
    fast = sinusoidal_wavelengths(D_MODEL) <= LENGTH
    told = {"none": fast & ~fast, "fast": fast, "slow": ~fast, "all": fast | ~fast}[moved]
    return torch.where(told, far, codes)


def moved_reader(model: Reader, weights: str, rest: str) -> torch.nn.Module:
    """Return a sinusoidal model whose attention weights are those of a reading with other codes.

    Args:
        model: as trained.
        weights: which clocks are moved on in the reading that gives the weights.
        rest: which are moved on in the reading that gives the values and all else.
    """
    return _Moved(model, weights, rest)


class _Moved(torch.nn.Module):
    def __init__(self, model: Reader, weights: str, rest: str):
        super().__init__()
        self.model, self.codes = model, [codes_of(weights), codes_of(rest)]

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, 64) to the scores of the answers (B, 64, n_answers)."""
        words = self.model.embedding(ids)
        guide, x = (words + codes for codes in self.codes)
        for layer in self.model.layers:
            weights = weights_of(layer, guide)
            guide, x = (_through(layer, stream, weights) for stream in (guide, x))
        return self.model.to_answer(self.model.norm(x))


def scores_of(layer: torch.nn.Module, x: Tensor) -> Tensor:
    """Return the scores (B, heads, N, N) of a layer's attention, before the mask."""
    part, rows = layer.attention, layer.norm(x)
    q, k = (w(rows).unflatten(-1, (N_HEADS, D_HEAD)).transpose(1, 2)
            for w in (part.q_proj, part.k_proj))  # fmt: skip
    return q @ k.mT / math.sqrt(D_HEAD)


def weights_of(layer: torch.nn.Module, x: Tensor) -> Tensor:
    """Return the weights (B, heads, N, N) of a layer's causal attention."""
    scores = scores_of(layer, x)
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    return scores.masked_fill(later, -math.inf).softmax(dim=-1)


def _through(layer: torch.nn.Module, x: Tensor, weights: Tensor) -> Tensor:
    v = layer.attention.v_proj(layer.norm(x)).unflatten(-1, (N_HEADS, D_HEAD)).transpose(1, 2)
    x = x + layer.attention.out_proj((weights @ v).transpose(1, 2).flatten(2))
    return x + layer.network(layer.second_norm(x))


@torch.no_grad()
def _first_layer(model: Reader, pieces: int) -> tuple[dict, dict]:
    """Return the weights on the letter before, by head, and the mean scores of the best head."""
    ids = test_pieces("text", pieces)[0].unflatten(1, (-1, LENGTH)).flatten(0, 1)
    layer, words, before, scores = model.layers[0], model.embedding(ids), {}, {}
    late = slice(LENGTH - DISTANCES, LENGTH)  # these have all the distances behind them
    best = None
    for place, moved in ((0, "none"), (SHIFT, "all")):
        x = words + codes_of(moved)
        weights = weights_of(layer, x).mean(dim=0).diagonal(-1, dim1=-2, dim2=-1)
        share = weights[:, late.start - 1 :].mean(dim=1)
        before[str(place)] = extrapolation.rounded(share.tolist())
        best = share.argmax() if best is None else best
        mean = scores_of(layer, x)[:, best].mean(dim=0)
        by_distance = torch.stack(
            [mean.diagonal(-far)[late.start - far :].mean() for far in range(DISTANCES)]
        )
        centred = by_distance - by_distance.mean()
        scores[str(place)] = extrapolation.rounded(centred.tolist())
    return before, scores


def _near_and_far(model: torch.nn.Module, pieces: int) -> list[float]:
    curve = by_place(model, "text", pieces)
    half = curve[len(curve) // 2 :]
    return extrapolation.rounded([curve[1], sum(half) / len(half)])


def _by_clock(model: Reader, pieces: int) -> dict[str, list[float]]:
    """Return a rotary model's losses near and far, some of its clocks stopped or slowed."""
    found = {
        name: _near_and_far(clipped_reader(model, clocks=clocks), pieces)
        for name, clocks in STOPPED.items()
    }
    for layer in model.layers:
        slot = layer.attention.position
        slot.frequencies = slot.frequencies / torch.tensor([1, 1, *[LONG / LENGTH] * 4])
    found["clocks 2-5 slowed"] = _near_and_far(model, pieces)
    return found


@torch.no_grad()
def rise_if_replaced(model: torch.nn.Module, kept: int, pieces: int = 64) -> float:
    """Return the rise of the last letter's loss when all but the `kept` last are another text."""
    ids, target = (
        part.unflatten(1, (-1, LENGTH)).flatten(0, 1) for part in test_pieces("text", pieces)
    )
    other = ids.clone()
    other[:, : LENGTH - kept] = ids.roll(len(ids) // 2, 0)[:, : LENGTH - kept]
    right, wrong = (F.cross_entropy(model(x)[:, -1], target[:, -1]) for x in (ids, other))
    return (wrong - right).item()


def settings_of(steps: int) -> dict[str, int]:
    """Return what the logs say of the models."""
    return {"trained": LENGTH, "tested": LONG, "steps": steps, "batch": 32, "layers": 2,
            "d_model": D_MODEL, "n_heads": N_HEADS}  # fmt: skip


def run(
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    reading: tuple[str, ...] = ("T5", "ALiBi"),
    steps: int = 350,
    pieces: int = 64,
) -> tuple[dict, None]:
    """Train the models and take the measurements.

    Returns:
        the log: `moved[way]` is a list over seeds; `before` and `scores` lists over seeds of
        `{place: list}`; `angles[way]` a list over seeds of the losses near and far;
        `kept[scheme][letters]` a number, of the first seed.
    """
    text = letters("train")
    ways = {
        "none": ("none", "none"),
        "all": ("all", "all"),
        "weights": ("all", "none"),
        "all but the weights": ("none", "all"),
        "fast clocks": ("fast", "fast"),
        "slow clocks": ("slow", "slow"),
    }
    log: dict = {
        "moved": {way: [] for way in ways}, "before": [], "scores": [], "angles": {}, "kept": {}
    }  # fmt: skip
    for seed in seeds:
        model = train("text", "sinusoidal", seed=seed, steps=steps, text=text)
        for way, parts in ways.items():
            loss = short_reading(moved_reader(model, *parts), pieces)
            log["moved"][way].append(extrapolation.rounded(loss))
        before, scores = _first_layer(model, pieces)
        log["before"].append(before)
        log["scores"].append(scores)
        rotary = train("text", "rotary", seed=seed, steps=steps, text=text)
        for way, losses in _by_clock(rotary, pieces).items():
            log["angles"].setdefault(way, []).append(losses)
    for name in reading:
        model = train("text", name, seed=seeds[0], steps=steps, text=text)
        log["kept"][name] = {
            str(kept): extrapolation.rounded(rise_if_replaced(model, kept, pieces)) for kept in KEPT
        }
    return {"settings": settings_of(steps), "seeds": list(seeds), **log}, None
