"""How large may the learning rate be when a pretrained model learns something more?

MiniLM with a linear layer, all weights trained, learns to tell good film reviews from bad ones from
200 labelled sentences, at each of several rates. Beside it the same model learns from scratch, from
weights that were drawn anew, with the same sentences in the same order. A seed draws the sentences,
their order and the weights of the model from scratch. Test sentences are the same for all.

The log holds for each start ("pretrained", "scratch") and each rate a list over seeds of the share
of right answers on the test sentences (`accuracy`) and on those that were learned (`learned`), and
of how far the weights of the encoder have moved, as a share of their length (`moved`).

Explained in: chapters/18_practice, section "Fine-tuning on your own data".
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector

from tfbook import pretrained
from tfbook.experiments.adapting import BATCH, adapt
from tfbook.experiments.sentiment import Classifier, labels, logits, sentences
from tfbook.models import build

__all__ = ["BATCH", "RATES", "SMOKE", "run", "start_of"]

RATES = {"pretrained": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3), "scratch": (1e-4, 1e-3)}
SMOKE = {"seeds": (0,), "size": 8, "passes": 1, "rates": {"scratch": (1e-4,)}, "most": 6}
CARD = {
    "model": "MiniLM-L6 with a linear layer, 22,713,601 parameters, pretrained or from scratch",
    "data": "{size} sentences of film reviews",
    "steps": "{passes} epochs",
    "batch": "batches of {BATCH}",
    "rate": "rates {tried_first:g} to {tried_last:g}",
}


def start_of(language: pretrained.Pretrained, start: str, seed: int) -> Classifier:
    """Return a classifier that has not been trained: on MiniLM, or on weights drawn anew."""
    torch.manual_seed(seed)
    return Classifier(language.model if start == "pretrained" else build(language.model.config))


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2),
    size: int = 200,
    passes: int = 2,
    rates: Mapping[str, Sequence[float]] = RATES,
    most: int | None = None,
) -> tuple[dict, None]:
    """Train from each start at each rate with each seed, and test on the same sentences."""
    language = pretrained.load("minilm-l6")
    pool, test = (sentences(language, part) for part in ("train", "test"))
    test = test[:most]

    def right(model: Classifier, pairs: Sequence) -> float:
        found = (logits(model, language, pairs) > 0) == labels(pairs)
        return round(float(found.mean()), 4)

    found = {start: {} for start in rates}
    for start, tried in rates.items():
        for rate in tried:
            each = {"accuracy": [], "learned": [], "moved": []}
            for seed in seeds:
                order = np.random.default_rng(seed).permutation(len(pool))[:size]
                learned = [pool[i] for i in order]
                model = start_of(language, start, seed)
                before = parameters_to_vector(model.encoder.parameters()).detach().clone()
                adapt(model, language, learned, rate, passes, seed)
                after = parameters_to_vector(model.encoder.parameters()).detach()
                each["accuracy"].append(right(model, test))
                each["learned"].append(right(model, learned))
                each["moved"].append(round(((after - before).norm() / before.norm()).item(), 5))
            found[start][f"{rate:g}"] = each
    log = {
        "settings": {"seeds": list(seeds), "size": size, "passes": passes},
        "tried": sorted({rate for tried in rates.values() for rate in tried}),
        "n_test": len(test),
        "good": round(float(labels(test).mean()), 4),
        "starts": found,
    }
    return log, None
