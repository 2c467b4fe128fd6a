"""A classifier with few examples: what do dropout, in which place, and label smoothing do for it?

A small encoder says whether a sentence of a film review is positive or negative. It learns from
1,500 of them, drawn at random, over and over: without any help, with dropout in one place or in
all, and with smoothed labels. The log holds the loss on training sentences and on a third of the
test sentences after each epoch, and at the end, for all test sentences, how often the model is
right, how sure it is, and by how much the two differ: the expected calibration error, over ten bins
of confidence. It also holds what one number does that is fitted afterwards on other sentences: a
temperature for the logits.

Source: [srivastava2014dropout], [muller2019when], [guo2017calibration]
Explained in: chapters/11_training_deeper, section "Label smoothing".
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from tfbook import data
from tfbook.data import BOS, PAD, bucketed, pad_batch, seeded, word_tokenizer
from tfbook.models import FFN, Attention, Classes, Layer, Norm, Rotary, TransformerConfig, build

__all__ = ["HELP", "SMOKE", "bins", "calibration_error", "fit_temperature", "run"]

PLACES = ("dropout", "attention_dropout", "ffn_dropout")
HELP: Mapping[str, Mapping[str, float]] = {
    "none": {},
    "sublayers": {"dropout": 0.3},
    "attention": {"attention_dropout": 0.3},
    "feed-forward": {"ffn_dropout": 0.3},
    "all three": dict.fromkeys(PLACES, 0.3),
    "smoothing 0.1": {"smoothing": 0.1},
    "smoothing 0.2": {"smoothing": 0.2},
    "smoothing 0.4": {"smoothing": 0.4},
}
SMOKE = {"help_": ("none", "smoothing 0.1"), "seeds": (0,), "epochs": 1, "examples": 64}
CARD = {
    "model": "encoder, 2 layers of width 32, 153,986 parameters",
    "data": "{examples:,} sentences of film reviews",
    "steps": "{epochs} epochs",
    "batch": "batches of {BATCH}",
}
BINS, BATCH = 10, 50


def bins(
    confidence: Float[Tensor, " T"], right: Bool[Tensor, " T"], n_bins: int = BINS
) -> list[list[float]]:
    """Return [examples, mean confidence, share that is right] of each bin of (0, 1] with any."""
    place = (confidence * n_bins).ceil().clamp(1, n_bins)  # (T,)
    found = []
    for number in range(1, n_bins + 1):
        here = place == number
        if here.any():
            sure, correct = confidence[here].mean().item(), right[here].double().mean().item()
            found.append([int(here.sum()), round(sure, 4), round(correct, 4)])
    return found


def calibration_error(found: Sequence[Sequence[float]]) -> float:
    """Return Σ n_b |right_b − confidence_b| / Σ n_b over bins."""
    total = sum(count for count, _, _ in found)
    return sum(count * abs(right - sure) for count, sure, right in found) / total


def fit_temperature(logits: Float[Tensor, "T C"], labels: Tensor) -> float:
    """Return the temperature under which the labels have the smallest loss."""
    temperatures = torch.logspace(-1, 1.5, 251)
    losses = [functional.cross_entropy(logits / t, labels).item() for t in temperatures]
    return temperatures[int(torch.tensor(losses).argmin())].item()


def _sentences(split, tokenizer=None):
    pairs = [(text, int(rating > 0)) for text, rating in data.movie_sentiment(split) if rating]
    tokenizer = tokenizer or word_tokenizer([text for text, _ in pairs], vocab_size=4000)
    ids = [[BOS, *tokenizer.encode(text).ids[:47]] for text, _ in pairs]
    return ids, torch.tensor([label for _, label in pairs]), tokenizer


@torch.no_grad()
def _logits(net, ids):
    net.eval()
    found = torch.zeros(len(ids), 2)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        tokens = pad_batch([ids[i] for i in chosen], PAD)[0]
        found[chosen] = net(tokens, mask=tokens != PAD)
    net.train()
    return found


def _measure(logits, labels):
    chances = logits.softmax(-1)
    sure, said = chances.max(-1)
    seen = bins(sure, said == labels)
    return {
        "accuracy": round((said == labels).double().mean().item(), 4),
        "loss": round(functional.cross_entropy(logits, labels).item(), 4),
        "confidence": round(sure.mean().item(), 4),
        "calibration_error": round(calibration_error(seen), 4),
        "bins": seen,
    }


def _train(sets, help_, seed, epochs, rate):
    (ids, labels), valid, test = sets
    torch.manual_seed(seed)
    layer = Layer(Attention(2, position=Rotary()), FFN(88, "swiglu"), norm=Norm("rms"))
    config = TransformerConfig(4000, 32, encoder=[layer] * 2, head=Classes(2))
    net = build(config.replace(**{name: help_.get(name, 0.0) for name in PLACES}))
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    lengths, curves = [len(row) for row in ids], {"train": [], "test": []}
    for epoch in range(epochs):
        for chosen in bucketed(lengths, BATCH, generator=seeded(seed, epoch)):
            tokens = pad_batch([ids[i] for i in chosen], PAD)[0]  # (B, N)
            loss = functional.cross_entropy(
                net(tokens, mask=tokens != PAD),
                labels[chosen],
                label_smoothing=help_.get("smoothing", 0.0),
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        some = torch.arange(0, len(ids), max(1, len(ids) // 500)).tolist()
        seen = functional.cross_entropy(_logits(net, [ids[i] for i in some]), labels[some])
        curves["train"].append(round(seen.item(), 4))
        part = test[0][::3], test[1][::3]
        curves["test"].append(
            round(functional.cross_entropy(_logits(net, part[0]), part[1]).item(), 4)
        )
    found = _measure(_logits(net, test[0]), test[1]) | curves
    temperature = fit_temperature(_logits(net, valid[0]), valid[1])
    cooled = _measure(_logits(net, test[0]) / temperature, test[1])
    return found | {"temperature": round(temperature, 2), "with_temperature": cooled}


def run(
    *,
    help_: Sequence[str] = tuple(HELP),
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 8,
    examples: int = 1500,
    rate: float = 2e-3,
) -> tuple[dict, None]:
    """Train with each kind of help and each seed."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in locals().items()}
    ids, labels, tokenizer = _sentences("train")
    # Drawn at random: in the source positive sentences stand together.
    chosen = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))[:examples]
    sets = (([ids[i] for i in chosen.tolist()], labels[chosen]),) + tuple(
        _sentences(split, tokenizer)[:2] for split in ("valid", "test")
    )
    runs = {
        name: [_train(sets, HELP[name], seed, epochs, rate) for seed in seeds] for name in help_
    }
    return {"settings": settings, "tested": len(sets[2][0]), "runs": runs}, None
