"""How many labels does it take to tell a good review from a bad one, with and without pretraining?

Four ways to find whether people rated a sentence of a film review above or below 0, from the same
labelled sentences of `tfbook.data.movie_sentiment` and tested on the same others:

- "words": tf-idf weights of words and pairs of words, and logistic regression;
- "probe": MiniLM as it is, the mean of its last rows over the tokens, and logistic regression;
- "untrained": the same probe on a MiniLM whose weights were drawn at random, others for each seed;
- "tuned": the same mean with a linear layer, trained together with all weights of MiniLM.

Sentences of more than 32 tokens and those rated exactly 0 are left out. The strength of the penalty
of the regressions is chosen on validation sentences for each training set, MiniLM's learning rate
once, with the first seed. A seed draws the labelled sentences, and the order in which they come.
The weights are those of the probe that saw all training sentences.

    from tfbook.experiments import sentiment
    probe = sentiment.trained()          # a linear layer on MiniLM's mean vectors

Explained in: chapters/13_language, section "One label for a text".
"""

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from tfbook import experiments, pretrained
from tfbook.data import bucketed, movie_sentiment, pad_batch
from tfbook.models import build
from tfbook.optimization import decay_groups, schedule
from tfbook.training import fit

__all__ = ["SMOKE", "SURE", "Classifier", "masked_mean", "run", "sentences", "trained"]

LONGEST = 32  # tokens, [CLS] and [SEP] among them
SURE = (0.0, 0.5, 1.0, 2.0, 4.01)  # borders of |rating|
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)  # the inverse of the penalty's strength
BATCH = 16
RATES = (5e-5, 1e-4, 2e-4)
PASSES = {50: 8, 200: 5, 800: 3, 2000: 2}
SMOKE = {"sizes": (20,), "seeds": (0,), "most": 30, "passes": {20: 1}, "rates": (1e-4,)}
CARD = {
    "model": "MiniLM-L6 with a linear layer, trained or as it is, 22,713,601 parameters",
    "data": "{sizes_first} to {sizes_last:,} sentences of film reviews",
    "steps": "2 to 8 epochs",
    "batch": "batches of {BATCH}",
}

Example = tuple[str, float]


def masked_mean(hidden: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B D"]:
    """Return the mean of each text's rows, padding left out: Σ_i m_i h_i / Σ_i m_i."""
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class Classifier(nn.Module):
    """An encoder, the mean of its last rows, and one number from it: above 0 for a good review."""

    def __init__(self, encoder: nn.Module):
        """Put a linear layer that knows nothing on an encoder of its own."""
        super().__init__()
        self.encoder = copy.deepcopy(encoder)
        self.head = nn.Linear(encoder.config.d_model, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, " B"]:
        """Return the logit of "good" for each text."""
        return self.head(masked_mean(self.encoder.hidden(ids, mask=mask), mask))[:, 0]


def sentences(language: pretrained.Pretrained, split: str, most: int | None = None):
    """Return the sentences of a split that are used here: rated other than 0, and short enough."""
    pairs = [(text, rating) for text, rating in movie_sentiment(split) if rating]
    ids, mask = language.encode([text for text, _ in pairs])
    short = (mask.sum(1) <= LONGEST).tolist()
    found = [pair for pair, keep in zip(pairs, short, strict=True) if keep]
    return found if most is None else found[:: len(found) // most]  # good ones come first


def trained() -> nn.Linear:
    """Return the shipped probe: from MiniLM's mean vector (length 1) to the logit of "good"."""
    weights = experiments.weights("sentiment")
    probe = nn.Linear(weights["weight"].shape[1], 1)
    probe.load_state_dict(weights)
    return probe.eval().requires_grad_(False)


def labels(pairs: Sequence[Example]) -> np.ndarray:
    """Return 1 for what was rated above 0, and 0 for what was rated below."""
    return np.array([int(rating > 0) for _, rating in pairs])


def regression(train, train_labels, valid, valid_labels) -> LogisticRegression:
    """Fit a logistic regression with each penalty, and return the best on the validation set."""
    fits = [
        LogisticRegression(C=penalty, max_iter=3000).fit(train, train_labels)
        for penalty in PENALTIES
    ]
    return max(fits, key=lambda fitted: fitted.score(valid, valid_labels))


def tune(language, pairs: Sequence[Example], passes: int, rate: float, seed: int) -> Classifier:
    """Train an encoder and a head together, with a learning rate that rises and falls."""
    model = Classifier(language.model)
    rows = [encoded.ids for encoded in language.tokenizer.encode_batch([t for t, _ in pairs])]
    good = torch.tensor(labels(pairs), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(passes):
        for chosen in bucketed(list(map(len, rows)), BATCH, generator=generator):
            ids, lengths = pad_batch([rows[i] for i in chosen], language.pad_id)
            batches.append((ids, torch.arange(ids.shape[1]) < lengths[:, None], good[chosen]))

    def loss(model, batch):
        ids, mask, wanted = batch
        return F.binary_cross_entropy_with_logits(model(ids, mask), wanted)

    fit(
        model,
        batches,
        loss=loss,
        optimizer=torch.optim.AdamW(decay_groups(model, 0.01), lr=rate),
        steps=len(batches),
        schedule=schedule("linear", steps=len(batches), warmup=math.ceil(len(batches) / 10)),
        clip=1.0,
        progress=False,
    )
    return model.eval()


@torch.no_grad()
def logits(model: Classifier, language, pairs: Sequence[Example]) -> np.ndarray:
    """Return a trained model's logit of "good" for each sentence."""
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]))
    found = torch.empty(len(pairs))
    for start in range(0, len(order), 32):
        chosen = order[start : start + 32]
        found[chosen] = model(*language.encode([pairs[i][0] for i in chosen]))
    return found.numpy()


@torch.no_grad()
def means(encoder: nn.Module, language, texts: Sequence[str]) -> np.ndarray:
    """Return an encoder's masked means of texts, of length 1, as MiniLM's own are made."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found = torch.empty(len(texts), encoder.config.d_model)
    for start in range(0, len(order), 50):
        chosen = order[start : start + 50]
        ids, mask = language.encode([texts[i] for i in chosen])
        found[chosen] = F.normalize(masked_mean(encoder.hidden(ids, mask=mask), mask), dim=-1)
    return found.double().numpy()


def by_rating(right: np.ndarray, pairs: Sequence[Example]) -> list[float | None]:
    """Return the share of right answers where people were undecided, …, where they were sure."""
    strength = np.abs([rating for _, rating in pairs])
    groups = [(low <= strength) & (strength < high) for low, high in zip(SURE, SURE[1:])]  # noqa: B905
    return [round(float(right[g].mean()), 4) if g.any() else None for g in groups]


def run(
    *,
    sizes: tuple[int, ...] = tuple(PASSES),
    seeds: tuple[int, ...] = (0, 1, 2),
    passes: dict[int, int] = PASSES,
    rates: tuple[float, ...] = RATES,
    most: int | None = None,
) -> tuple[dict, dict[str, Tensor]]:
    """Train each way with each number of labels and each seed, and test it.

    Args:
        sizes: numbers of labelled sentences.
        seeds: each draws its own sentences.
        passes: over the sentences when MiniLM is trained, for each size.
        rates: learning rates of MiniLM to choose from.
        most: sentences of each split; None for all.

    Returns:
        the log: `accuracy` on the test sentences for each way and size, one number a seed; with all
        training sentences in `all`; `by_rating` at the largest size; and the probe's weights.
    """
    language = pretrained.load("minilm-l6")
    pool, valid, test = (sentences(language, split, most) for split in ("train", "valid", "test"))
    texts = {id(part): [text for text, _ in part] for part in (pool, valid, test)}
    truth = {id(part): labels(part) for part in (pool, valid, test)}
    vectors = {key: language.embed(found).double().numpy() for key, found in texts.items()}
    wanted, checked = truth[id(test)], truth[id(valid)]

    def words(chosen: np.ndarray) -> np.ndarray:
        make = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        train = make.fit_transform([texts[id(pool)][i] for i in chosen])
        held, asked = (make.transform(texts[id(part)]) for part in (valid, test))
        return regression(train, truth[id(pool)][chosen], held, checked).predict(asked) == wanted

    def probe(chosen: np.ndarray) -> LogisticRegression:
        train = vectors[id(pool)][chosen]
        return regression(train, truth[id(pool)][chosen], vectors[id(valid)], checked)

    def fine(chosen: np.ndarray, rate: float, seed: int) -> Classifier:
        return tune(language, [pool[i] for i in chosen], passes[len(chosen)], rate, seed)

    def draw(size: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).permutation(len(pool))[:size]

    tried = {}
    if len(rates) > 1:
        size = sizes[len(sizes) // 2]
        for rate in rates:
            model = fine(draw(size, seeds[0]), rate, seeds[0])
            tried[rate] = float(((logits(model, language, valid) > 0) == checked).mean())
    rate = max(tried, key=tried.get) if tried else rates[0]

    def untrained(seed: int) -> dict[str, float]:
        torch.manual_seed(seed)
        body = build(language.config).eval()
        held, asked = (means(body, language, texts[id(part)]) for part in (valid, test))
        chosen = draw(max(sizes), seed)
        made = means(body, language, [texts[id(pool)][i] for i in chosen])
        found = {}
        for size in sizes:  # a smaller draw is the beginning of a larger one
            known = truth[id(pool)][chosen[:size]]
            fitted = regression(made[:size], known, held, checked)
            found[str(size)] = round(float((fitted.predict(asked) == wanted).mean()), 4)
        return found

    accuracy: dict[str, dict[str, list]] = {"words": {}, "probe": {}, "tuned": {}}
    sure: dict[str, list] = {"words": [], "probe": [], "tuned": []}
    for size in sizes:
        for seed in seeds:
            chosen = draw(size, seed)
            right = {
                "words": words(chosen),
                "probe": probe(chosen).predict(vectors[id(test)]) == wanted,
                "tuned": (logits(fine(chosen, rate, seed), language, test) > 0) == wanted,
            }
            for name, found in right.items():
                accuracy[name].setdefault(str(size), []).append(round(float(found.mean()), 4))
                if size == max(sizes):
                    sure[name].append(by_rating(found, test))
    drawn = [untrained(seed) for seed in seeds]
    accuracy["untrained"] = {str(size): [each[str(size)] for each in drawn] for size in sizes}
    everything = np.arange(len(pool))
    last = probe(everything)
    complete = {
        "words": float(words(everything).mean()),
        "probe": float((last.predict(vectors[id(test)]) == wanted).mean()),
    }
    strength = np.abs([rating for _, rating in test])
    log = {
        "sizes": list(sizes),
        "seeds": list(seeds),
        "passes": {str(size): passes[size] for size in sizes},
        "rate": rate,
        "rates_tried": {str(key): round(value, 4) for key, value in tried.items()},
        "sentences": {"train": len(pool), "valid": len(valid), "test": len(test)},
        "good": round(float(wanted.mean()), 4),
        "accuracy": accuracy,
        "all": {name: round(value, 4) for name, value in complete.items()},
        "borders": list(SURE),
        "in_group": np.histogram(strength, SURE)[0].tolist(),
        "by_rating": sure,
    }
    weights = {
        "weight": torch.tensor(last.coef_, dtype=torch.float32),
        "bias": torch.tensor(last.intercept_, dtype=torch.float32),
    }
    return log, weights
