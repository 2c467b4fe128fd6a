"""Does it help to show easy examples first?

Length is the difficulty. Three orders are compared: examples drawn at random from all; short ones
first, with longer ones coming in during the first half of the training; and the reverse, long ones
first. Two tasks: to repeat a row of digits backwards, and to predict the next character of
sentences out of film reviews. A step has the same number of tokens in each order, so that none gets
more to read; held-out loss is measured over examples of all lengths.

Source: [platanios2019competence], [wu2021when]
Explained in: chapters/11_training_deeper, section "Does the order matter?".
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tfbook import data
from tfbook.data import char_tokenizer, competence, easiest, seeded
from tfbook.models import FFN, Attention, Layer, Norm, Rotary, TransformerConfig, build
from tfbook.training import IGNORE

__all__ = ["ORDERS", "SMOKE", "collate", "digits", "draw", "reviews", "run"]

SMOKE = {"seeds": (0,), "steps": 4, "looks": 2, "budget": 128}
CARD = {
    "model": "decoder, 2 layers of width 48, 56,064 and 60,336 parameters",
    "data": "rows of digits, and sentences of film reviews",
    "batch": "batches of {budget} tokens",
}
ORDERS = ("random", "short first", "long first")
LONGEST, HELD = 120, 150
Example = tuple[list[int], int]  # tokens, and from which target on the loss counts


def digits(seed: int, count: int = 8000, longest: int = 20) -> list[Example]:
    """Draw rows of 2 to `longest` digits, each with a mark (10) and the row backwards behind it."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        n = int(torch.randint(2, longest + 1, (), generator=generator))
        row = torch.randint(10, (n,), generator=generator).tolist()
        found.append(([*row, 10, *row[::-1]], n))
    return found


def reviews(split: str) -> list[Example]:
    """Return sentences of film reviews of at most 120 characters as ids, with an end mark."""
    texts = {s: [text for text, _ in data.movie_sentiment(s)] for s in ("train", split)}
    tokenizer = char_tokenizer("\n" + "".join(texts["train"]))
    known = set(tokenizer.get_vocab())
    kept = (text for text in texts[split] if 1 < len(text) <= LONGEST and known.issuperset(text))
    return [(tokenizer.encode(text + "\n").ids, 0) for text in kept]


def collate(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Pad examples: inputs and targets (B, N), IGNORE where the loss does not count."""
    longest = max(len(ids) for ids, _ in examples) - 1
    inputs = torch.zeros(len(examples), longest, dtype=torch.int64)
    targets = torch.full((len(examples), longest), IGNORE)
    for row, (ids, start) in enumerate(examples):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[row, start : len(ids) - 1] = torch.tensor(ids[start + 1 :])
    return inputs, targets


def draw(
    lengths: Sequence[int],
    order: str,
    step: int,
    steps: int,
    budget: int,
    generator: torch.Generator,
) -> list[int]:
    """Draw indices of examples for a step, until they have `budget` tokens together."""
    pool = range(len(lengths))
    if order != "random":
        sign = 1 if order == "short first" else -1
        share = competence(step, max(1, steps // 2), start=0.05)
        pool = easiest([sign * length for length in lengths], share)
    chosen, tokens = [], 0
    while tokens < budget:
        chosen.append(pool[int(torch.randint(len(pool), (), generator=generator))])
        tokens += lengths[chosen[-1]]
    return chosen


@torch.no_grad()
def _look(net, held):
    """Return the mean loss of a target, and the share of examples in which all are right."""
    total = count = right = 0
    for inputs, targets in held:
        logits = net(inputs)[0]
        total += functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum"
        ).item()
        count += (targets != IGNORE).sum().item()
        right += ((logits.argmax(-1) == targets) | (targets == IGNORE)).all(-1).sum().item()
    return total / count, right / sum(len(inputs) for inputs, _ in held)


def _train(train, held, vocabulary, order, seed, steps, at, budget, rate):
    torch.manual_seed(seed)
    attention = Attention(4, position=Rotary(), bias=False)
    layer = Layer(attention, FFN(128, "swiglu", bias=False), norm=Norm("rms"))
    net = build(TransformerConfig(vocabulary, 48, decoder=[layer] * 2, init="gpt2"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    lengths, losses, exact = [len(ids) - 1 for ids, _ in train], [], []
    for step in range(steps):
        factor = min(1.0, (step + 1) / 50) * (1 - step / steps)
        optimizer.param_groups[0]["lr"] = rate * factor
        chosen = draw(lengths, order, step, steps, budget, seeded(seed, step))
        inputs, targets = collate([train[i] for i in chosen])
        loss = functional.cross_entropy(
            net(inputs)[0].flatten(0, 1), targets.flatten(), ignore_index=IGNORE
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step + 1 in at:
            nats, share = _look(net, held)
            losses.append(round(nats, 4))
            exact.append(round(share, 4))
    return losses, exact


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int = 240,
    looks: int = 6,
    budget: int = 640,
    rate: float = 4e-3,
) -> tuple[dict, None]:
    """Train each task in each order, and log held-out losses on the way."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in locals().items()}
    tasks = {
        "digits": (digits(0), digits(1, HELD), 11),
        "reviews": (reviews("train"), reviews("valid")[:HELD], None),
    }
    at = [steps * (i + 1) // looks for i in range(looks)]
    log = {"settings": settings, "after": at}
    for name, (train, valid, vocabulary) in tasks.items():
        vocabulary = vocabulary or 1 + max(max(ids) for ids, _ in train + valid)
        valid = sorted(valid, key=lambda example: len(example[0]))
        held = [collate(valid[i : i + 50]) for i in range(0, len(valid), 50)]
        found = {
            order: [
                _train(train, held, vocabulary, order, seed, steps, at, budget, rate)
                for seed in seeds
            ]
            for order in ORDERS
        }
        log[name] = {
            order: {"loss": [loss for loss, _ in runs], "exact": [exact for _, exact in runs]}
            for order, runs in found.items()
        }
    return log, None
