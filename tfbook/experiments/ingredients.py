"""What does each line of a training loop bring, for the same model, text and time?

A decoder of one layer reads 204,800 letters of Shakespeare, in 200 batches of 16 windows of 64
letters, and learns to predict the next one. The loop begins as gradient descent at a small rate and
gains one ingredient after the other: AdamW, a rate that was looked for, with a rise and a fall, and
clipping. Beside them stand gradient descent at larger rates and with momentum, the loop
without one ingredient each, rise and fall apart, less weight decay, three and ten times the rate,
and the finished loop with smaller and larger batches, at three rates each, that hold as many
letters.

The `PROBES` ask why clipping helps at the rate 0.01. Each goes on from a run, clipped or not, after
25 steps, when the long gradients are over, with longer or shorter steps or with other means in
Adam: new ones, or those of the other run.

The log holds for each run the loss on 4,096 letters of the validation text (nats a letter) after
each tenth of the run and on as many letters of the test text at its end, the longest gradient, four
texts that it wrote and the share of known words among those of 32 texts, and the seconds it took.

Explained in: chapters/11_training, section "Which lines make the difference?".
"""

import copy
import math
import re
import time
from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import islice

import torch
from torch import nn

from tfbook import data
from tfbook.data import Windows, rows
from tfbook.experiments.warmup import letters
from tfbook.models import FFN, Attention, Layer, Norm, Rotary, TransformerConfig, build
from tfbook.optimization import schedule
from tfbook.training import causal_loss

__all__ = [
    "INGREDIENTS", "PROBES", "SMOKE", "begin", "held_out", "known_words", "run", "train", "write",
]  # fmt: skip

LENGTH, BATCH, STEPS, TENTHS = 64, 16, 200, 10
AFTER = 25  # steps, before a probe changes something
MOMENTUM = partial(torch.optim.SGD, momentum=0.9)
ADAMW = {"betas": (0.9, 0.99), "weight_decay": 0.1, "fused": True}
DECAYED = {"no decay": "none", "decay of matrices": "matrices"}  # of all weights otherwise
# Name → optimizer, rate, schedule, longest gradient, windows in a batch; steps that are clipped.
INGREDIENTS: Mapping[str, tuple] = {
    "SGD, rate 0.01": (torch.optim.SGD, 0.01, "constant", math.inf, BATCH),
    "SGD, rate 0.2": (torch.optim.SGD, 0.2, "constant", math.inf, BATCH),
    **{
        f"SGD, rate {rate}": (torch.optim.SGD, rate, "constant", math.inf, BATCH)
        for rate in (0.05, 0.1, 0.4)
    },
    **{
        f"momentum, rate {rate}": (MOMENTUM, rate, "constant", math.inf, BATCH)
        for rate in (0.02, 0.05, 0.1, 0.2)
    },
    "AdamW, rate 0.001": (torch.optim.AdamW, 0.001, "constant", math.inf, BATCH),
    "AdamW, rate 0.001, clipped": (torch.optim.AdamW, 0.001, "constant", 1.0, BATCH),
    "rate 0.001, clipped": (torch.optim.AdamW, 0.001, "cosine", 1.0, BATCH),
    "AdamW, rate 0.003": (torch.optim.AdamW, 0.003, "constant", math.inf, BATCH),
    "AdamW, rate 0.003, clipped": (torch.optim.AdamW, 0.003, "constant", 1.0, BATCH),
    "warm-up and cosine, rate 0.003": (torch.optim.AdamW, 0.003, "cosine", math.inf, BATCH),
    "rate 0.003, clipped": (torch.optim.AdamW, 0.003, "cosine", 1.0, BATCH),
    "AdamW, rate 0.01": (torch.optim.AdamW, 0.01, "constant", math.inf, BATCH),
    "rise alone, not clipped": (torch.optim.AdamW, 0.01, "rise", math.inf, BATCH),
    "rate 0.01": (torch.optim.AdamW, 0.01, "cosine", math.inf, BATCH),
    "rate 0.01, clipped": (torch.optim.AdamW, 0.01, "cosine", 1.0, BATCH),
    "AdamW, rate 0.01, clipped": (torch.optim.AdamW, 0.01, "constant", 1.0, BATCH),
    "clipped for 40 steps": (torch.optim.AdamW, 0.01, "cosine", 1.0, BATCH, 40),
    "rise alone": (torch.optim.AdamW, 0.01, "rise", 1.0, BATCH),
    "rise alone, rate 0.003": (torch.optim.AdamW, 0.003, "rise", 1.0, BATCH),
    "fall alone": (torch.optim.AdamW, 0.01, "fall", 1.0, BATCH),
    "rate 0.03, clipped": (torch.optim.AdamW, 0.03, "cosine", 1.0, BATCH),
    "rate 0.1, clipped": (torch.optim.AdamW, 0.1, "cosine", 1.0, BATCH),
    **{name: (torch.optim.AdamW, 0.01, "cosine", 1.0, BATCH) for name in DECAYED},
    **{
        f"batches of {size}, rate {rate}": (torch.optim.AdamW, rate, "cosine", 1.0, size)
        for size in (4, 64)
        for rate in (0.001, 0.003, 0.01)
    },
}
# Name → the run that it goes on from, what its steps are multiplied by, whose means Adam has then.
PROBES: Mapping[str, tuple[str, float, str]] = {
    "not clipped, steps times 1.3": ("rate 0.01", 1.3, ""),
    "clipped, steps times 0.76": ("rate 0.01, clipped", 0.76, ""),
    "not clipped, new means": ("rate 0.01", 1.0, "new"),
    "clipped, new means": ("rate 0.01, clipped", 1.0, "new"),
    "not clipped, means of the clipped": ("rate 0.01", 1.0, "rate 0.01, clipped"),
    "clipped, means of the not clipped": ("rate 0.01, clipped", 1.0, "rate 0.01"),
}
SMOKE = {"seeds": (0,), "steps": 10, "names": ("SGD, rate 0.01", "rate 0.01, clipped")}
CARD = {
    "model": "decoder, one layer of width 96, 117,792 parameters",
    "data": "Shakespeare, windows of {LENGTH} characters",
    "rate": "rates as named",
}


def begin(seed: int, dropout: float = 0.0) -> nn.Module:
    """Return the untrained model."""
    torch.manual_seed(seed)
    layer = Layer(
        Attention(4, position=Rotary()), FFN(384, "gelu"), norm=Norm("rms"), dropout=dropout
    )
    size = int(letters("train").max()) + 1
    return build(TransformerConfig(size, 96, decoder=[layer], init="gpt2"))


@torch.no_grad()
def held_out(model: nn.Module, split: str = "valid") -> float:
    """Return the loss on 4,096 letters of a split, in nats a letter."""
    total, count = causal_loss(model, rows(letters(split), LENGTH)[:64])
    return total.item() / count


def _course(name: str, steps: int):
    """Return the share of the rate in each step."""
    if name == "constant":
        return schedule("constant")
    whole = schedule("cosine", steps=steps, warmup=steps // 10)
    if name == "rise":
        return lambda step: whole(step) if step < steps // 10 else 1.0
    if name == "fall":
        return lambda step: whole(step) if step >= steps // 10 else 1.0
    return whole


def _weights(model: nn.Module, decayed: str) -> list[dict]:
    """Return the groups of weights for AdamW, with the decay of each."""
    if not decayed:
        return [{"params": list(model.parameters())}]
    shrinks = [w for w in model.parameters() if w.ndim == 2 and decayed == "matrices"]
    others = [w for w in model.parameters() if w.ndim != 2 or decayed == "none"]
    return [{"params": shrinks}, {"params": others, "weight_decay": 0.0}]


def _walk(name: str, seed: int, steps: int) -> Iterator[tuple]:
    """Yield model, optimizer and length of the gradient: at the start, and after each step."""
    start, longer, means = PROBES.get(name, (name, 1.0, ""))
    kind, rate, course, longest, size, *until = INGREDIENTS[start]
    model = begin(seed)
    more = ADAMW if kind is torch.optim.AdamW else {}
    optimizer = kind(_weights(model, DECAYED.get(name, "")), lr=rate, **more)
    course = torch.optim.lr_scheduler.LambdaLR(optimizer, _course(course, steps))
    drawn = Windows(letters("train"), LENGTH, batch_size=size, seed=seed)
    yield model, optimizer, 0.0
    for step in range(steps):
        if step == AFTER and name in PROBES:
            course.base_lrs = [rate * longer]
            optimizer.param_groups[0]["lr"] *= longer
            if means == "new":
                optimizer.state.clear()
            elif means:
                _, other, _ = next(islice(_walk(means, seed, steps), AFTER, None))
                optimizer.load_state_dict(copy.deepcopy(other.state_dict()))
        total, count = causal_loss(model, drawn(step))
        optimizer.zero_grad()
        (total / count).backward()
        most = longest if step < (until or [steps])[0] else math.inf
        norm = nn.utils.clip_grad_norm_(model.parameters(), most).item()
        optimizer.step()
        course.step()
        yield model, optimizer, norm


def train(name: str, seed: int, steps: int = STEPS) -> tuple[nn.Module, list[float], float]:
    """Train with one of INGREDIENTS or PROBES; return model, losses and its longest gradient."""
    steps = steps * BATCH // INGREDIENTS[PROBES.get(name, (name,))[0]][4]
    losses, norms = [], []
    for step, (model, _, norm) in enumerate(_walk(name, seed, steps)):
        norms.append(norm)
        if step == 0 or step * TENTHS % steps < TENTHS:
            losses.append(held_out(model))
    return model, losses, max(norms)


@torch.no_grad()
def write(model: nn.Module, seed: int = 0, n: int = 80, temperature: float = 0.7) -> torch.Tensor:
    """Let a model write 32 texts of n letters that begin with a new line; (32, n + 1)."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.zeros(32, 1, dtype=torch.long)  # 0 is the new line
    for _ in range(n):
        scores = model(text[:, -LENGTH:])[0][:, -1] / temperature
        text = torch.cat([text, scores.softmax(-1).multinomial(1, generator=generator)], dim=1)
    return text


@cache
def _words() -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", data.shakespeare("train").lower()))


def known_words(texts: list[str]) -> float:
    """Return the share of words of three and more letters that occur in the training text."""
    found = [w for text in texts for w in re.findall(r"\b[a-z]{3,}\b", text.lower())]
    return sum(w in _words() for w in found) / max(len(found), 1)


def run(
    *, seeds: tuple[int, ...] = (0, 1, 2), steps: int = STEPS, names: tuple[str, ...] | None = None
) -> tuple[dict, None]:
    """Train with every ingredient, every probe and every seed.

    Returns:
        the log: `losses`, `tests`, `norms`, `words`, `texts` and `took` by name, lists over seeds;
        `losses` are lists over `after`, shares of the run.
    """
    signs = sorted(set(data.shakespeare("train") + data.shakespeare("valid")))
    kept = ("losses", "tests", "norms", "words", "texts", "took")
    log: dict[str, dict] = {what: {} for what in kept}
    for name in names or (*INGREDIENTS, *PROBES):
        for part in log.values():
            part[name] = []
        for seed in seeds:
            started = time.process_time()
            model, losses, norm = train(name, seed, steps)
            log["took"][name].append(round(time.process_time() - started, 1))
            log["losses"][name].append([round(loss, 3) for loss in losses])
            log["tests"][name].append(round(held_out(model, "test"), 3))
            log["norms"][name].append(round(norm, 2))
            texts = ["".join(signs[i] for i in row) for row in write(model).tolist()]
            log["words"][name].append(round(known_words(texts), 2))
            log["texts"][name].append([text.strip("\n") for text in texts[:4]])
    after = [k / TENTHS for k in range(TENTHS + 1)]
    settings = {"steps": steps, "batch": BATCH}
    return {"settings": settings, "seeds": list(seeds), "after": after, **log}, None
