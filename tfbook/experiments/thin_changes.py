"""How many directions does the change need that fine-tuning makes in a matrix?

All weights of MiniLM learn to tell praise from blame from 400 labelled sentences of
`tfbook.data.movie_sentiment`, read once. Then the change of every projection, W after training
minus W before, is cut down to its largest r directions, by its singular values, and the classifier
is tested with W before plus what is left. All other weights stay as they were trained.

The log holds for each rank r the share of test sentences that are answered rightly (`accuracy`) and
which of them (`right`, texts of 0 and 1); and for each matrix its singular values (`values`), those
of the change.

Explained in: chapters/18_practice, section "Low-rank adapters".
"""

from collections.abc import Sequence

import numpy as np
import torch

from tfbook import pretrained
from tfbook.experiments.clear_labels import SIZE, Classifier, learn, vectors
from tfbook.experiments.sentiment import sentences

__all__ = ["RANKS", "RATE", "SMOKE", "cut", "run"]

RATE, BATCH, RANKS = 1e-4, 8, (0, 1, 4, 16, 384)
SMOKE = {"size": 8, "ranks": (1,), "most": 8}
CARD = {
    "model": "MiniLM-L6 with a head of two scores, 22,713,986 parameters",
    "data": "{size} sentences of film reviews",
    "steps": "one epoch",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}",
}


def cut(change: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the matrix of this rank that lies nearest to a change."""
    left, values, right = torch.linalg.svd(change, full_matrices=False)
    return (left[:, :rank] * values[:rank]) @ right[:rank]


def run(
    *, size: int = SIZE, ranks: Sequence[int] = RANKS, seed: int = 0, most: int | None = None
) -> tuple[dict, None]:
    """Train all weights, and test with changes of each rank."""
    language = pretrained.load("minilm-l6")
    pool, test = (sentences(language, part) for part in ("train", "test"))
    test = test if most is None else test[:: len(test) // most]
    drawn = [pool[i] for i in np.random.default_rng(seed).permutation(len(pool))[:size]]
    labels = np.array([int(rating > 0) for _, rating in drawn])
    good = np.array([rating > 0 for _, rating in test])
    model = Classifier(language.model, seed=seed).requires_grad_(True)
    names = [name for name, _ in model.named_parameters() if name.endswith("_proj.weight")]
    before = {name: model.get_parameter(name).detach().clone() for name in names}
    learn(model, lambda i: language.encode([drawn[j][0] for j in i]), labels, RATE, seed)
    changes = {name: model.get_parameter(name).detach() - before[name] for name in names}
    found: dict[str, dict] = {"accuracy": {}, "right": {}}
    for rank in ranks:
        with torch.no_grad():
            for name in names:
                model.get_parameter(name).copy_(before[name] + cut(changes[name], rank))
        said = vectors(language, [text for text, _ in test], model).argmax(-1).numpy() == good
        found["accuracy"][f"{rank}"] = round(float(said.mean()), 4)
        found["right"][f"{rank}"] = "".join("01"[int(x)] for x in said)
    values = {
        name: [float(f"{x:.3g}") for x in torch.linalg.svdvals(change).tolist()]
        for name, change in changes.items()
    }
    return {"settings": {"size": size, "seed": seed}, "values": values, **found}, None
