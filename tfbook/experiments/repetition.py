"""What is a text worth when it is read again and again?

A small transformer is trained for a fixed number of steps on Shakespeare, one character at a time.
The tokens that it reads are always as many; what differs is how much text they come from, and so
how often each character is read: once, or 4, 16 or 64 times. The log holds the loss on text
that was never read, and on that which was.

Source: [muennighoff2023scaling]
Explained in: chapters/11_training_deeper, section "How often is a text read?".
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from tfbook import data
from tfbook.data import Loader, char_tokenizer, rows, shuffled
from tfbook.models import FFN, Attention, Layer, Norm, Rotary, TransformerConfig, build

__all__ = ["SMOKE", "run"]

SMOKE = {"seeds": (0,), "steps": 8, "times": (1, 4), "held": 4}
CARD = {
    "model": "decoder, 2 layers of width 48, 59,552 parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
}
CONTEXT, BATCH = 32, 8


def _loss(net, tokens):
    return functional.cross_entropy(net(tokens[:, :-1])[0].flatten(0, 1), tokens[:, 1:].flatten())


def _train(text, held, vocabulary, seed, steps, rate):
    """Go through rows of text, epoch after epoch, and return the losses on new and on read text."""
    torch.manual_seed(seed)
    layer = Layer(Attention(4, position=Rotary()), FFN(128, "swiglu"), norm=Norm("rms"))
    net = build(TransformerConfig(vocabulary, 48, decoder=[layer] * 2, init="gpt2"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)

    def plan(generator):
        return shuffled(len(text), BATCH, generator=generator)

    loader, step = Loader(text, plan, collate=torch.stack, seed=seed), 0
    while step < steps:
        for batch in loader:
            optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 50, 1) * (1 - step / steps)
            optimizer.zero_grad()
            _loss(net, batch).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step == steps:
                break
    with torch.no_grad():
        new, read = _loss(net, held).item(), _loss(net, text[: len(held)]).item()
    return round(new, 4), round(read, 4)


def run(
    *,
    times: Sequence[int] = (1, 4, 16, 64),
    seeds: Sequence[int] = (0, 1, 2),
    steps: int = 384,
    rate: float = 4e-3,
    held: int = 200,
) -> tuple[dict, None]:
    """Train with each number of repetitions and each seed."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in locals().items()}
    text = data.shakespeare("train")
    tokenizer = char_tokenizer(text)
    every = rows(torch.tensor(tokenizer.encode(text).ids), CONTEXT)
    tests = rows(torch.tensor(tokenizer.encode(data.shakespeare("valid")).ids), CONTEXT)
    tests, found = tests[:: len(tests) // held][:held], {"new": {}, "read": {}}
    for often in times:
        count = steps * BATCH // often  # rows
        losses = []
        for seed in seeds:
            order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
            chosen = every[order[:count]]
            losses.append(_train(chosen, tests, tokenizer.get_vocab_size(), seed, steps, rate))
        found["new"][str(often)], found["read"][str(often)] = map(list, zip(*losses, strict=True))
    return {"settings": settings, "characters": steps * BATCH * CONTEXT, "loss": found}, None
