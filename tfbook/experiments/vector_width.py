"""Is the one vector of a translator too small, or is it hard to learn to fill it?

The translator of chapter 01 with one vector, in its small language, and trained as in the
experiment `sentence_length`. Only the size of the context c is varied: the encoder's states have
96 numbers in each direction for every size, a linear layer makes c of the two last ones, and the
decoder's states have 48 numbers for every size. (The layers that make and read c grow with it.)
Each size is trained for few and for many steps. The log holds, for each kind of sentence and
seed, the share of sentences without a mistake.

Since c is the same at every step, one call of `nn.GRU` takes the place of the chapter's loop over
the French words. It computes the same formulas.

Explained in: chapters/01_motivation, section "Longer sentences, worse translations".
"""

import torch
from torch import Tensor, nn

from tfbook.experiments import sentence_length as language

__all__ = ["SMOKE", "WIDTHS", "Translator", "model_of", "run"]

WIDTHS = (24, 48, 96, 192)
SHAPES = language.SHAPES
BATCH, RATE = language.BATCH, language.RATE
SMOKE = {"steps": (1, 2), "seeds": (0,), "size": 2}
CARD = {
    "model": "encoder-decoder of GRUs, states of 96 and 48, a vector of 24 to 192 numbers, "
             "149,353 to 226,297 parameters",
    "data": "a small language, sentences of 7 to 22 words",
    "steps": "{steps_first:,} or {steps_last:,} steps",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g} at most",
}


class Translator(nn.Module):
    """A translator whose vector has `width` numbers, and all else the same size."""

    def __init__(self, width: int, d: int = 48, states: int = 96):
        """Make one with a vector of `width` numbers."""
        super().__init__()
        self.encoder = language.Encoder(states)
        self.pack, self.first = nn.Linear(2 * states, width), nn.Linear(width, d)
        self.write = nn.Embedding(len(language.WRITE), d)
        self.layer = nn.GRU(d + width, d, batch_first=True)
        self.g = nn.Linear(d + width, len(language.WRITE))

    def forward(self, source: Tensor, written_before: Tensor) -> Tensor:
        """Give the logits of each French word (B, N, |WRITE|), the words before it being given."""
        c = self.pack(self.encoder(source)[1])  # (B, width)
        begun = torch.tanh(self.first(c))
        at_each = c[:, None].expand(-1, written_before.shape[1], -1)
        s, _ = self.layer(torch.cat([self.write(written_before), at_each], dim=-1), begun[None])
        return self.g(torch.cat([s, at_each], dim=-1))


def model_of(width: int) -> Translator:
    """Make a translator with a vector of `width` numbers, untrained.

    Raises:
        ValueError: if no translator of that width is measured.
    """
    if width not in WIDTHS:
        raise ValueError(f"width must be one of {', '.join(map(str, WIDTHS))}, got {width!r}")
    return Translator(width)


def run(
    *, steps: tuple[int, ...] = (400, 4000), seeds: tuple[int, ...] = (0,), size: int = 200
) -> tuple[dict, None]:
    """Train every translator with every seed, for each number of steps.

    Returns:
        the log: `faultless[width][steps]` is a list over kinds of lists over seeds.
    """
    faultless: dict[str, dict] = {}
    for width in WIDTHS:
        faultless[str(width)] = {}
        for number in steps:
            found = []
            for seed in seeds:
                torch.manual_seed(seed)
                model = language.train(model_of(width), number, seed)
                found.append([language.shares(model, shape, size)[0] for shape in SHAPES])
            columns = zip(*found, strict=True)
            faultless[str(width)][str(number)] = [[round(x, 4) for x in row] for row in columns]
    return {
        "settings": {"steps": list(steps), "sentences": size},
        "kinds": [list(shape) for shape in SHAPES],
        "lengths": [language.length_of(shape) for shape in SHAPES],
        "widths": list(WIDTHS),
        "seeds": list(seeds),
        "faultless": faultless,
    }, None
