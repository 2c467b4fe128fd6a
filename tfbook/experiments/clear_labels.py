"""Does a classifier learn more from sentences that people rated clearly?

MiniLM learns to tell praise from blame from 400 labelled sentences of
`tfbook.data.movie_sentiment`. They are drawn from all sentences ("any"), or only from those whose
rating lies further from 0 than 1 ("above 1") or 2 ("above 2"). There are two ways to learn: "head",
a linear layer of two scores on the mean of MiniLM's last rows, and "lora 4", adapters of rank 4 on
all projections beside such a head. Both read each sentence once. The rate of the head is chosen on
validation sentences, with a draw of its own from all sentences; that of the adapters lies between
the two best rates of the experiment adapting. The head gets more draws, since MiniLM's vectors are
computed only once.

The log holds for each way and each kind of labels a list over draws of which test sentences were
answered rightly (`right`, texts of 0 and 1); the ratings of the test sentences (`ratings`), and how
many sentences there are to draw from (`pool`). `tried` holds the validation accuracy of each rate
of the head.

Explained in: chapters/18_practice, section "Low-rank adapters".
"""

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook import pretrained
from tfbook.experiments.sentiment import masked_mean, sentences
from tfbook.practice import add_lora, thaw

__all__ = ["KINDS", "RATES", "SMOKE", "Classifier", "learn", "run"]

BATCH, SIZE, RANK = 8, 400, 4
KINDS = {"any": 0.0, "above 1": 1.0, "above 2": 2.0}  # how far a rating lies from 0 at least
RATES, ADAPTER_RATE = (0.01, 0.03, 0.1), 0.001
SMOKE = {
    "size": 8, "draws": {"head": 1, "lora 4": 1}, "kinds": ("any",), "most": 8, "rates": (0.03,),
}  # fmt: skip
CARD = {
    "model": "MiniLM-L6 with a head of two scores, 22,713,986 parameters, and adapters",
    "data": "{size} sentences of film reviews",
    "steps": "one epoch",
    "batch": "batches of {BATCH}",
    "rate": "rates {chosen_first:g} and {chosen_last:g}",
}


class Classifier(nn.Module):
    """An encoder, the mean of its last rows, and two scores from it."""

    def __init__(self, encoder: nn.Module, rank: int = 0, seed: int = 0):
        """Freeze a copy of an encoder, with adapters if a rank is given, and put a head on it."""
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.head = nn.Linear(encoder.config.d_model, 2)
        if rank:
            add_lora(self, rank, generator=torch.Generator().manual_seed(seed))
            thaw(self, "head.*")

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the scores of each text, (B, 2)."""
        return self.head(masked_mean(self.encoder.hidden(ids, mask=mask), mask))


def learn(model: nn.Module, read, labels: np.ndarray, rate: float, seed: int) -> nn.Module:
    """Read each example once, with a rate that rises for a tenth of the steps and falls to 0."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    steps = len(labels) // BATCH
    order = np.random.default_rng(seed).permutation(len(labels))[: steps * BATCH]
    for step, chosen in enumerate(order.reshape(steps, BATCH)):
        rise, fall = min(1.0, 10 * (step + 1) / steps), 1 - step / steps
        optimizer.param_groups[0]["lr"] = rate * rise * fall
        loss = F.cross_entropy(model(*read(chosen)), torch.tensor(labels[chosen]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def vectors(language, texts: Sequence[str], of=None) -> Tensor:
    """Return what a classifier says of each text, or MiniLM's mean vector of it."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found: Tensor | None = None
    for start in range(0, len(order), 32):
        chosen = order[start : start + 32]
        ids, mask = language.encode([texts[i] for i in chosen])
        rows = of(ids, mask) if of else masked_mean(language.model.hidden(ids, mask=mask), mask)
        found = torch.empty(len(texts), rows.shape[-1]) if found is None else found
        found[chosen] = rows
    return found


def run(
    *,
    size: int = SIZE,
    draws: Mapping[str, int] = {"head": 20, "lora 4": 6},  # noqa: B006
    kinds: Sequence[str] = ("any", "above 1", "above 2"),
    rates: Sequence[float] = RATES,
    most: int | None = None,
) -> tuple[dict, None]:
    """Choose the rate of the head, then learn from each kind of labels; test on the same set."""
    language = pretrained.load("minilm-l6")
    sets = {part: sentences(language, part) for part in ("train", "valid", "test")}
    if most is not None:
        sets = {part: found[:: len(found) // most] for part, found in sets.items()}
    texts = {part: [text for text, _ in found] for part, found in sets.items()}
    ratings = {part: np.array([rating for _, rating in found]) for part, found in sets.items()}
    good = {part: (found > 0).astype(int) for part, found in ratings.items()}
    seen = {part: vectors(language, x) for part, x in texts.items() if "head" in draws}
    pools = {kind: np.flatnonzero(abs(ratings["train"]) > KINDS[kind]) for kind in kinds}

    def right(way: str, rate: float, seed: int, kind: str, part: str) -> np.ndarray:
        drawn = np.random.default_rng(seed).permutation(pools[kind])[:size]
        labels = good["train"][drawn]
        if way == "head":
            torch.manual_seed(seed)
            head = nn.Linear(seen["train"].shape[1], 2)
            learn(head, lambda chosen: (seen["train"][drawn[chosen]],), labels, rate, seed)
            said = head(seen[part]).argmax(-1)
        else:
            model = Classifier(language.model, RANK, seed)

            def read(chosen):
                return language.encode([texts["train"][i] for i in drawn[chosen]])

            learn(model, read, labels, rate, seed)
            said = vectors(language, texts[part], model).argmax(-1)
        return said.numpy() == good[part]

    tried, chosen = {}, {"head": rates[0], "lora 4": ADAPTER_RATE}
    if "head" in draws:
        tried = {r: round(float(right("head", r, 100, "any", "valid").mean()), 4) for r in rates}
        chosen["head"] = max(tried, key=tried.get)
    found: dict[str, dict] = {}
    for way, n in draws.items():
        found[way] = {}
        for kind in kinds if way == "head" else kinds[:2]:
            hits = [right(way, chosen[way], seed, kind, "test") for seed in range(n)]
            found[way][kind] = ["".join("01"[int(x)] for x in each) for each in hits]
    return {
        "settings": {
            "size": size,
            "draws": dict(draws),
            "seeds": list(range(max(draws.values()))),
        },  # fmt: skip
        "pool": {kind: len(each) for kind, each in pools.items()},
        "tried": {f"{rate:g}": share for rate, share in tried.items()},
        "chosen": list(chosen.values()),
        "ratings": [round(float(x), 2) for x in ratings["test"]],
        "right": found,
    }, None
