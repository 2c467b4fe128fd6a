"""Which rate does an adapter of each rank want, and what does it reach there?

MiniLM learns from labelled sentences of `tfbook.data.movie_sentiment` whether a sentence praises a
film, by the program of the chapter: a head of two scores on the mean of the last rows, one pass,
a rate that rises for a tenth of the steps and falls to 0. The head is trained alone, or with
adapters of one of two ranks. The vectors under a head that is trained alone never
change, so they are computed once. Each way begins with three peaks of the rate; as long as the best
on the validation sentences lies at an end of what was tried, the next one is tried, a factor of
about three further, if the ladder has one. The rates are chosen with the first draw of the
labelled sentences.

The log holds for each way the share of validation sentences that each rate answers rightly
(`tried`), the rate chosen (`rate`), the number of weights that are trained (`trained`), and over
draws which of the test sentences are answered rightly (`right`, texts of 0 and 1). Under `read` it
holds the same of the validation sentences, for adapters of rank 4 and the first draw.

Explained in: chapters/18_practice, section "Low-rank adapters".
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook import pretrained
from tfbook.experiments.sentiment import labels, sentences
from tfbook.practice import LoraLinear

__all__ = ["LADDER", "SMOKE", "WAYS", "Classifier", "fit", "run"]

BATCH, SIZE, HELD, ASKED = 8, 400, 200, 463  # the last two: of validation and test sentences
LADDER = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
ADAPTED = (3e-4, 1e-3, 3e-3)
WAYS = {  # name → (rank, the rates tried first); rank 0 is the head alone
    "head": (0, (1e-2, 3e-2, 1e-1)),
    "rank 4": (4, ADAPTED),
    "rank 1": (1, ADAPTED),
}
SMOKE = {"seeds": (0,), "size": 8, "held": 2, "asked": 2, "ways": ("rank 4",), "further": False}
CARD = {
    "model": "MiniLM-L6 with a linear layer, 22,713,986 parameters, and adapters",
    "data": "{size} sentences of film reviews",
    "steps": "{steps} steps",
    "batch": "batches of {BATCH}",
    "rate": "rate chosen for each way",
}


class Classifier(nn.Module):
    """MiniLM with a head of two scores; rank 0 trains the head alone."""

    def __init__(self, language: pretrained.Pretrained, rank: int):
        """Freeze the body, and put adapters beside its projections."""
        super().__init__()
        self.language = language
        self.body = copy.deepcopy(language.model).requires_grad_(False)
        self.head = nn.Linear(384, 2)
        for part in list(self.body.modules()):
            for name, layer in list(part.named_children()):
                if rank > 0 and name.endswith("_proj"):
                    own = torch.Generator()  # leaves the draws below as they are in the chapter
                    adapter = LoraLinear(layer, rank, alpha=2 * rank, generator=own)
                    with torch.no_grad():
                        adapter.lora_a.copy_(torch.randn(rank, layer.in_features))
                        adapter.lora_a /= layer.in_features**0.5
                    setattr(part, name, adapter)

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return the mean of the last rows of each text, (B, 384)."""
        ids, mask = self.language.encode(list(texts))
        share = mask[..., None] / mask.sum(1)[:, None, None]
        return (self.body.hidden(ids, mask=mask) * share).sum(1)

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Return two scores for each text, (B, 2)."""
        return self.head(self.vectors(texts))


class OnVectors(nn.Module):
    """A head alone, on vectors that were computed before."""

    def __init__(self):
        """Draw the head."""
        super().__init__()
        self.head = nn.Linear(384, 2)

    def forward(self, rows: Sequence[Tensor]) -> Tensor:
        """Return two scores for each row, (B, 2)."""
        return self.head(torch.stack(list(rows)))


def fit(model: nn.Module, examples: Sequence[tuple], rate: float) -> nn.Module:
    """Train on each example once, with a rate that rises and falls to 0."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    steps = len(examples) // BATCH
    for step, drawn in enumerate(torch.randperm(len(examples))[: steps * BATCH].split(BATCH)):
        rise, fall = min(1, 10 * (step + 1) / steps), 1 - step / steps
        optimizer.param_groups[0]["lr"] = rate * rise * fall
        told, asked = zip(*(examples[i] for i in drawn.tolist()), strict=True)
        loss = functional.cross_entropy(model(told), torch.tensor(asked))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    return model


@torch.no_grad()
def hits(model: nn.Module, examples: Sequence[tuple]) -> np.ndarray:
    """Return which examples are answered rightly."""
    found = []
    for i in range(0, len(examples), 50):
        told, asked = zip(*examples[i : i + 50], strict=True)
        found.append(model(told).argmax(-1).numpy() == np.array(asked))
    return np.concatenate(found)


def on_vectors(frozen: Classifier, examples: Sequence[tuple]) -> list[tuple]:
    """Return the examples with their vectors in place of their texts."""
    rows = []
    with torch.no_grad():
        for i in range(0, len(examples), 50):
            rows += frozen.vectors([text for text, _ in examples[i : i + 50]])
    return list(zip(rows, (label for _, label in examples), strict=True))


def run(
    *,
    seeds: Sequence[int] = (0,),
    size: int = SIZE,
    ways: Sequence[str] = tuple(WAYS),
    held: int = HELD,
    asked: int = ASKED,
    further: bool = True,
) -> tuple[dict, None]:
    """Choose a rate for each way, and train there on several draws of the sentences."""
    language = pretrained.load("minilm-l6")

    def examples(part: str) -> list[tuple]:
        found = sentences(language, part)
        return list(zip((text for text, _ in found), labels(found).tolist(), strict=True))

    def some(part: str, n: int) -> list[tuple]:
        found = examples(part)
        return [found[i] for i in np.random.default_rng(0).permutation(len(found))[:n]]

    pool, valid, test = examples("train"), some("valid", held), some("test", asked)
    every = examples("valid") if further else valid
    drawn = {
        seed: [pool[i] for i in np.random.default_rng(seed).permutation(len(pool))[:size]]
        for seed in seeds
    }
    first, found, read = seeds[0], {}, ""
    for way in ways:
        rank, begun = WAYS[way]
        learned, choosing, testing = drawn, valid, test
        if way == "head":
            frozen = Classifier(language, 0)
            learned = {seed: on_vectors(frozen, part) for seed, part in drawn.items()}
            choosing, testing = on_vectors(frozen, valid), on_vectors(frozen, test)

        def taught(rate: float, seed: int, way=way, rank=rank, learned=learned) -> nn.Module:
            torch.manual_seed(seed)
            model = OnVectors() if way == "head" else Classifier(language, rank)
            return fit(model, learned[seed], rate)

        shares, best, todo = {}, None, list(begun if further else begun[:1])
        while todo:
            for rate in todo:
                model = taught(rate, first)
                shares[rate] = float(hits(model, choosing).mean())
                if max(shares, key=shares.get) == rate:
                    best = (rate, model)
            place = LADDER.index(best[0])
            near = [k for k in (place - 1, place + 1) if 0 <= k < len(LADDER)]
            todo = [LADDER[k] for k in near if LADDER[k] not in shares] if further else []
        rate, model = best
        right = [hits(model, testing)]
        right += [hits(taught(rate, seed), testing) for seed in seeds[1:]]
        found[way] = {
            "tried": {f"{r:g}": round(shares[r], 4) for r in sorted(shares)},
            "rate": rate,
            "trained": sum(w.numel() for w in model.parameters() if w.requires_grad),
            "right": ["".join("01"[int(x)] for x in each) for each in right],
        }
        if way == "rank 4":
            read = "".join("01"[int(x)] for x in hits(model, every))
    settings = {"seeds": list(seeds), "size": size, "steps": size // BATCH}
    return {"settings": settings, "n_test": len(test), "ways": found, "read": read}, None
