"""How many weights must be trained to teach MiniLM one thing more?

MiniLM learns to tell good film reviews from bad ones, from few labelled sentences of
`tfbook.data.movie_sentiment`, in several ways: "head", a linear layer on the mean of its last rows,
all else frozen; "lora r", adapters of rank r on all projections beside that layer; "dora 4", the
same with lengths apart from directions; "full", all weights. The rate of the head, of adapters
(at rank 4) and of all weights is chosen on validation sentences, with a draw of its own. A seed
draws the labelled sentences and their order.

The log holds for each way a list over seeds of the share of right answers on the test sentences
(`accuracy`) and of which of them were right (`right`, texts of 0 and 1); the number of parameters
that are trained (`trained`); the bytes that frozen weights take, that trained ones take with their
gradient and two moments, and that a batch of sentences keeps for the backward pass (`bytes`); and
the seconds of a step (`step`). `tried` holds the validation accuracy of each rate.

Explained in: chapters/18_practice, section "Low-rank adapters".
"""

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn import functional

from tfbook import pretrained
from tfbook.data import bucketed, pad_batch
from tfbook.experiments.sentiment import Classifier, labels, logits, sentences
from tfbook.hardware import saved_bytes
from tfbook.optimization import decay_groups
from tfbook.practice import add_lora, count_trained, freeze, thaw

__all__ = ["RATES", "SMOKE", "WAYS", "adapt", "kept_bytes", "prepare", "run"]

BATCH, PASSES = 8, 4
WAYS = ("head", "lora 1", "lora 4", "lora 16", "dora 4", "full")
RATES = {  # tried with the way named
    "head": (1e-2, 3e-2, 1e-1),
    "lora 4": (5e-4, 1.5e-3, 5e-3),
    "full": (3e-5, 1e-4, 3e-4),
}
SMOKE = {
    "seeds": (0,),
    "size": 8,
    "passes": 1,
    "ways": ("head", "lora 1"),
    "rates": {"head": (3e-2,), "lora 4": (2e-3,)},
    "most": 6,
}
CARD = {
    "model": "MiniLM-L6 with a linear layer, 22,713,601 parameters, and adapters",
    "data": "{size} sentences of film reviews",
    "steps": "{passes} epochs",
    "batch": "batches of {BATCH}",
    "rate": "rate chosen for each kind of way",
}


def prepare(model: Classifier, way: str, seed: int = 0) -> None:
    """Freeze what is not trained, and put adapters on, in place."""
    if way == "full":
        return
    kind, *rank = way.split()
    if kind == "head":
        freeze(model)
    else:
        generator = torch.Generator().manual_seed(seed)
        add_lora(model, int(rank[0]), dora=kind == "dora", generator=generator)
    thaw(model, "head.*")


def adapt(model: Classifier, language, pairs: Sequence, rate: float, passes: int, seed: int):
    """Train what is not frozen, with a rate that rises and falls."""
    rows = [encoded.ids for encoded in language.tokenizer.encode_batch([t for t, _ in pairs])]
    good = torch.tensor(labels(pairs), dtype=torch.float32)
    generator, lengths = torch.Generator().manual_seed(seed), list(map(len, rows))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(decay_groups(model, 0.01), lr=rate)
    order = [b for _ in range(passes) for b in bucketed(lengths, BATCH, generator=generator)]
    for step, chosen in enumerate(order):
        rise = min(1.0, (step + 1) / math.ceil(len(order) / 10))
        for group in optimizer.param_groups:
            group["lr"] = rate * rise * (1 - step / len(order))
        ids, sizes = pad_batch([rows[i] for i in chosen], language.pad_id)
        told = model(ids, torch.arange(ids.shape[1]) < sizes[:, None])
        loss = functional.binary_cross_entropy_with_logits(told, good[chosen])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    return model.eval()


def kept_bytes(model: Classifier, language, pairs: Sequence) -> int:
    """Return how much a batch of sentences keeps for the backward pass, parameters not counted."""
    ids, mask = language.encode([text for text, _ in pairs])
    return saved_bytes(lambda: model(ids, mask), besides=model.parameters())


def kind_of(way: str) -> str:
    """Return the way whose rate a way takes."""
    return way if way in RATES else "lora 4"


def run(
    *,
    ways: Sequence[str] = WAYS,
    seeds: Sequence[int] = (0, 1, 2),
    size: int = 200,
    passes: int = PASSES,
    rates: Mapping[str, Sequence[float]] = RATES,
    most: int | None = None,
) -> tuple[dict, None]:
    """Teach MiniLM in each way with each seed, and test it on the same sentences."""
    language = pretrained.load("minilm-l6")
    pool, valid, test = (sentences(language, part) for part in ("train", "valid", "test"))
    valid, test = valid[:most], test[:most]

    def taught(way: str, rate: float, seed: int) -> tuple[Classifier, float]:
        order = np.random.default_rng(seed).permutation(len(pool))[:size]
        model = Classifier(language.model)
        prepare(model, way, seed)
        started = time.process_time()
        adapt(model, language, [pool[i] for i in order], rate, passes, seed)
        return model, (time.process_time() - started) / (passes * math.ceil(size / BATCH))

    def right(model: Classifier, pairs: Sequence) -> np.ndarray:
        return (logits(model, language, pairs) > 0) == labels(pairs)

    tried = {
        way: {
            rate: round(float(right(taught(way, rate, 100)[0], valid).mean()), 4) for rate in each
        }
        for way, each in rates.items()
    }
    chosen = {way: max(found, key=found.get) for way, found in tried.items()}
    found = {}
    for way in ways:
        found[way] = {"accuracy": [], "right": [], "step": []}
        for seed in seeds:
            model, seconds = taught(way, chosen[kind_of(way)], seed)
            answers = right(model, test)
            found[way]["accuracy"].append(round(float(answers.mean()), 4))
            found[way]["right"].append("".join("01"[int(x)] for x in answers))
            found[way]["step"].append(round(seconds, 3))
        trained, total = count_trained(model)
        kept = kept_bytes(model, language, pool[:BATCH])
        sizes = {"frozen": 4 * (total - trained), "trained": 16 * trained, "kept": kept}
        found[way] |= {"trained": trained, "bytes": sizes}
    log = {
        "settings": {"seeds": list(seeds), "size": size, "passes": passes},
        "n_test": len(test),
        "good": round(float(labels(test).mean()), 4),
        "tried": {way: {f"{rate:g}": x for rate, x in each.items()} for way, each in tried.items()},
        "rates": chosen,
        "ways": found,
    }
    return log, None
