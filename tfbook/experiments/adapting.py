"""How many weights must be trained to teach MiniLM one thing more?

MiniLM learns to tell good film reviews from bad ones, from few labelled sentences of
`tfbook.data.movie_sentiment`, in several ways: "head", a linear layer on the mean of its last rows,
all else frozen; "lora r", adapters of rank r on all projections beside that layer; "dora 4", the
same with lengths apart from directions; "full", all weights. Each way has one learning rate, chosen
beforehand on other sentences. A seed draws the labelled sentences and their order.

The log holds for each way a list over seeds of the share of right answers on the test sentences
(`accuracy`), which of them were right (`right`, as texts of 0 and 1), the number of parameters that
are trained, and how many bytes they and what AdamW keeps of them take (`bytes`: weight, gradient
and two moments).

Explained in: chapters/18_practice, section "Fine-tuning on your own data".
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from tfbook import pretrained
from tfbook.data import bucketed, pad_batch
from tfbook.experiments.sentiment import Classifier, labels, logits, sentences
from tfbook.optimization import decay_groups
from tfbook.practice import add_lora, count_trained, freeze, thaw

__all__ = ["RATES", "SMOKE", "adapt", "prepare", "run"]

BATCH, PASSES = 8, 4
RATES = {
    "head": 3e-2,
    "lora 1": 2e-3,
    "lora 4": 2e-3,
    "lora 16": 2e-3,
    "dora 4": 2e-3,
    "full": 1e-4,
}
SMOKE = {"seeds": (0,), "size": 8, "n_test": 6, "passes": 1, "ways": ("head", "lora 1")}
CARD = {
    "model": "MiniLM-L6 with a linear layer, 22,713,601 parameters and those of adapters",
    "data": "{size} sentences of film reviews",
    "steps": "{passes} epochs",
    "batch": "batches of {BATCH}",
    "rate": "rate {full:g} for all weights, {lora:g} for adapters",
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


def run(
    *,
    ways: Sequence[str] = tuple(RATES),
    seeds: Sequence[int] = (0, 1),
    size: int = 64,
    passes: int = PASSES,
    n_test: int = 200,
) -> tuple[dict, None]:
    """Teach MiniLM in each way with each seed, and test it on the same sentences."""
    language = pretrained.load("minilm-l6")
    pool, test = sentences(language, "train"), sentences(language, "test")
    test = [test[i] for i in np.random.default_rng(9).permutation(len(test))[:n_test]]
    found = {way: {"accuracy": [], "right": []} for way in ways}
    for seed in seeds:
        drawn = [pool[i] for i in np.random.default_rng(seed).permutation(len(pool))[:size]]
        for way in ways:
            torch.manual_seed(seed)
            model = Classifier(language.model)
            prepare(model, way, seed)
            trained = count_trained(model).trained
            adapt(model, language, drawn, RATES[way], passes, seed)
            right = (logits(model, language, test) > 0) == labels(test)
            found[way]["accuracy"].append(round(float(right.mean()), 4))
            found[way]["right"].append("".join("01"[int(x)] for x in right))
            found[way] |= {"trained": trained, "bytes": 16 * trained}
    log = {
        "seeds": list(seeds),
        "size": size,
        "passes": passes,
        "n_test": n_test,
        "good": round(float(labels(test).mean()), 4),
        "full": RATES["full"],
        "lora": RATES["lora 4"],
        "ways": found,
    }
    return log, None
