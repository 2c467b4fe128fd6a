"""What exactly fails beyond the trained length, and how far does training repair it?

The models, the texts and the two tasks of `extrapolation`, with three seeds, and the runs that its
conclusions need beside them. Letters 257 to 512 of the same pieces are read in pieces of 64
(`short`) and in 512 (`long`) by

* the learned table with ten times the step size of the other weights, as T5's table has it there,
  and begun with the standard deviation 1 of the word vectors; T5 without its tenfold step size;
* rotary and T5 trained four times as long ("…, longer");
* rotary and T5 trained on pieces of 512, as many letters a step ("…, at 512");
* the rotary models trained on for 5 to 160 further steps on pieces of 512, with plain and with
  divided angles ("tuned 40", "divided, tuned 40"), and divided without training.

`window` hides from the rotary models all keys more than 63 back, `clipped` keeps all keys and lets
every distance beyond 63 count as 63. `shifted` is the loss of the letters of `short` when the
pieces of 64 stand at the positions 448 to 511. `replaced` is what the last 64 letters lose when the
far text is another, and `recall` what the second task gives. `curves` holds the loss over the
positions of those that a chapter draws.

Explained in: chapters/04_positions, section "Train short, test long".
"""

import math

import torch
from torch import Tensor

from tfbook.experiments import extrapolation
from tfbook.experiments.extrapolation import (
    D_HEAD,
    LENGTH,
    LONG,
    N_HEADS,
    RATE,  # noqa: F401 - the card
    STRETCH,
    Reader,
    by_place,
    far_text_effect,
    letters,
    recall_batch,
    rescale,
    short_reading,
    text_batch,
    train,
)
from tfbook.positions import LearnedPositions, LinearScaling, apply_rotary

__all__ = ["SMOKE", "clipped_reader", "run", "shifted_reader", "window_reader"]

FURTHER = (5, 10, 40, 160)
PLAIN = {
    "sinusoidal": {"scheme": "sinusoidal"},
    "learned": {"scheme": "learned"},
    "rotary": {"scheme": "rotary"},
    "learned, tenfold rate": {
        "scheme": "learned",
        "table_rate": 10.0,
        "tables": LearnedPositions,
    },
    "learned, begun at 1": {"scheme": "learned", "begun": 1.0},
    "T5, plain rate": {"scheme": "T5", "table_rate": 1.0},
    "rotary, at 512": {"scheme": "rotary", "length": LONG},
    "T5, at 512": {"scheme": "T5", "length": LONG},
    "rotary, longer": {"scheme": "rotary"},
    "T5, longer": {"scheme": "T5"},
}
RECALLED = ("learned, tenfold rate", "rotary", "rotary, at 512")
SMOKE = {"names": ("rotary", "learned"), "seeds": (0,), "steps": 3, "further": (1, 2),
         "pieces": 2}  # fmt: skip
CARD = {
    "model": "transformer, {layers} layers of width {d_model}, 62,751 to 87,327 parameters",
    "data": "Shakespeare and a task of recall, in pieces of {trained} or {tested}",
    "steps": "{steps} steps, or four times as many",
    "rate": "rate {RATE:g}, or {rate_further:g} in further training",
}
RATE_FURTHER = 2e-3


def window_reader(model: Reader) -> torch.nn.Module:
    """Return the model as it reads when each letter sees the 64 nearest keys alone."""
    return _Reading(model, hidden=True)


def clipped_reader(
    model: Reader, most: int = LENGTH - 1, clocks: tuple[int, ...] | None = None
) -> torch.nn.Module:
    """Return a rotary model as it reads when each larger distance counts as `most`.

    Args:
        model: as trained.
        most: the largest distance that counts as itself.
        clocks: those for which this holds; all when omitted.
    """
    return _Reading(model, most=most, clocks=clocks)


def shifted_reader(model: Reader, first: int) -> torch.nn.Module:
    """Return the model as it reads when the first token stands at another position."""
    return _Reading(model, first=first)


class _Reading(torch.nn.Module):
    """A trained model, read in another way."""

    def __init__(
        self,
        model: Reader,
        *,
        hidden: bool = False,
        most: int = LONG,
        first: int = 0,
        clocks: tuple[int, ...] | None = None,
    ):
        super().__init__()
        self.model, self.hidden, self.most, self.first = model, hidden, most, first
        self.going_on = torch.zeros(D_HEAD // 2)  # 1 for a clock that is not clipped
        if clocks is not None:
            self.going_on = 1 - torch.eye(D_HEAD // 2)[list(clocks)].sum(dim=0)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, N) to the scores of the answers (B, N, n_answers)."""
        places = torch.arange(ids.shape[1]) + self.first
        x = self.model.entrance(self.model.embedding(ids), positions=places)
        for layer in self.model.layers:
            x = x + self._attend(layer.attention, layer.norm(x), places)
            x = x + layer.network(layer.second_norm(x))
        return self.model.to_answer(self.model.norm(x))

    def _attend(self, attention: torch.nn.Module, x: Tensor, places: Tensor) -> Tensor:
        distance = places[:, None] - places
        allowed = (distance >= 0) & (distance < (LENGTH if self.hidden else LONG))
        q, k, v = (
            w(x).unflatten(-1, (N_HEADS, D_HEAD)).transpose(1, 2)
            for w in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if attention.position is None:
            scores = q @ k.mT
        else:
            scores = apply_rotary(q, places) @ apply_rotary(k, places).mT
            others = self.going_on.repeat_interleave(2)  # both numbers of a pair
            fixed = apply_rotary(q * (1 - others), places.new_full(places.shape, self.most)) @ k.mT
            if others.any():
                fixed += apply_rotary(q * others, places) @ apply_rotary(k, places).mT
            scores = torch.where(distance > self.most, fixed, scores)
        weights = (scores / math.sqrt(D_HEAD)).masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return attention.out_proj((weights @ v).transpose(1, 2).flatten(2))


def _long(curve: list[float]) -> float:
    """Return the mean over the second half of the positions."""
    half = curve[len(curve) // 2 :]
    return sum(half) / len(half)


def _tuned(model: Reader, task: str, divided: bool, steps: int, seed: int, text: Tensor) -> Reader:
    tuned = rescale(model, LinearScaling(LONG / LENGTH) if divided else None)
    generator = torch.Generator().manual_seed(1000 + seed)
    if task == "text":
        batches = (text_batch(text, 4, LONG, generator) for _ in range(steps))
    else:
        batches = (recall_batch(4, LONG, generator) for _ in range(steps))
    extrapolation.fit(tuned, batches, steps, RATE_FURTHER)
    return tuned


@torch.no_grad()
def _shifted(model: Reader, pieces: int) -> float:
    """Return the loss of the letters of `short` at the last positions of the long pieces."""
    return short_reading(shifted_reader(model, LONG - LENGTH), pieces)


def run(
    *,
    names: tuple[str, ...] = tuple(PLAIN),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 350,
    further: tuple[int, ...] = FURTHER,
    pieces: int = 64,
) -> tuple[dict, None]:
    """Train every model with every seed, and read its pieces in every way.

    Returns:
        the log: `short`, `long`, `shifted`, `window`, `clipped` and `replaced` are lists over seeds
        by name; `curves` and `recall` lists over seeds of lists over stretches of 32 positions.
    """
    text = letters("train")
    parts = ("short", "long", "shifted", "window", "clipped", "replaced", "curves", "recall")
    log: dict = {part: {} for part in parts}

    def note(part: str, name: str, value: float | list[float]) -> None:
        log[part].setdefault(name, []).append(extrapolation.rounded(value))

    def read(name: str, model: torch.nn.Module) -> None:
        curve = by_place(model, "text", pieces)
        note("short", name, short_reading(model, pieces))
        note("long", name, _long(curve))
        note("curves", name, curve)

    for seed in seeds:
        for name in names:
            more = {"seed": seed, "steps": steps * (4 if "longer" in name else 1), **PLAIN[name]}
            model = train("text", text=text, **more)
            read(name, model)
            if name in ("sinusoidal", "learned", "rotary"):
                note("shifted", name, _shifted(model, pieces))
            if name.endswith("at 512"):
                note("replaced", name, far_text_effect(model, pieces))
            if name == "rotary":
                for way, reader in (("window", window_reader), ("clipped", clipped_reader)):
                    curve = by_place(reader(model), "text", pieces)
                    note(way, name, _long(curve))
                    note("curves", way, curve)
                read("divided", rescale(model, LinearScaling(LONG / LENGTH)))
                for count in further:
                    for words, divided in (("", False), ("divided, ", True)):
                        tuned = _tuned(model, "text", divided, count, seed, text)
                        read(f"{words}tuned {count}", tuned)
                        if count == 40:
                            effect = far_text_effect(tuned, pieces)
                            note("replaced", f"{words}tuned {count}", effect)
            if name in RECALLED:
                model = train("recall", **more)
                note("recall", name, by_place(model, "recall", pieces))
                if name == "rotary":
                    for words, divided in (("", False), ("divided, ", True)):
                        tuned = _tuned(model, "recall", divided, 40, seed, text)
                        note("recall", f"{words}tuned 40", by_place(tuned, "recall", pieces))
    settings = {"trained": LENGTH, "tested": LONG, "steps": steps, "batch": 32, "layers": 2,
                "d_model": extrapolation.D_MODEL, "n_heads": N_HEADS, "further": list(further),
                "rate_further": RATE_FURTHER}  # fmt: skip
    places = [STRETCH * i + STRETCH // 2 for i in range(LONG // STRETCH)]
    return {"settings": settings, "seeds": list(seeds), "places": places, **log}, None
