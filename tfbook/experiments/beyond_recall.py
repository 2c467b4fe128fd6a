"""Do mixers that recall alike also revise, copy and predict alike?

Three more tasks for the mixers of `associative_recall` and the models of `hybrid_share`.

Told again: the task of `told_again`, with more rows in a batch, two rates for each network and no
easy sequences as a way in. One layer, as in `associative_recall`, states of equal size.

Copying: letters drawn at random, a marker, and the same letters again, which are to be predicted.
Two layers.

Text: to predict the next character of Shakespeare. Two layers of each mixer, four of the hybrids.

Told again tries two rates, and the better one counts; the others have the first.

The log holds `again`, with what the log of `associative_recall` holds by name; `copied[name]`, the
shares of letters that were predicted, for each of the `lengths`; `text[name]`, the held-out loss in
nats a character; and `parameters[name]` of the models for text.

Explained in: chapters/09_hybrids, section "What recall does not show".
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook import data
from tfbook.data import Windows, char_tokenizer, rows
from tfbook.experiments.associative_recall import (
    MIXERS,
    ROWS,
    SIZES,
    WIDTH,
    fit,
    layers_of,
    swept,
    trial,
)
from tfbook.experiments.hybrid_share import HYBRIDS
from tfbook.experiments.told_again import again_of
from tfbook.models import DeltaNet, Mamba2, Spec, TransformerConfig, build

__all__ = ["AGAIN", "COPIERS", "READERS", "SMOKE", "copied", "run", "text_loss"]

CONTEXT, LETTERS = 64, 26
SMOKE = {
    "names": ("delta rule", "1 of 4, last"), "rates": (0.005,), "seeds": (0,),
    "again_steps": 3, "copy_steps": 2, "text_steps": 2,
}  # fmt: skip
CARD = {
    "model": "for text two or four layers of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "pairs told again, letters to copy, Shakespeare",
    "steps": "{again_steps:,}, {copy_steps:,} and {text_steps:,} steps",
    "batch": "batches of {ROWS:,} rows",
    "rate": "rate {rates_first:g} or {rates_last:g}, rising and then falling",
}
WIDE = Mamba2(8, d_head=16, expand=1, n_groups=4, width=1)  # as wide inside as outside
AGAIN: dict[str, Spec] = {
    name: WIDE if name == "Mamba-2" else MIXERS[name]
    for name in ("attention", "linear", "gated linear", "Mamba-2", "delta rule without erasing",
                 "delta rule")
}  # fmt: skip
SHORT: dict[str, Spec] = {  # with the short convolution that they usually have
    **{name: MIXERS[name] for name in ("attention", "gated linear")},
    "delta rule": DeltaNet(2, **SIZES),
    "Mamba-2": Mamba2(8, d_head=16, expand=1, n_groups=4),
}
COPIERS: dict[str, list[str]] = {
    **{name: [name] * 2 for name in ("attention", "gated linear", "Mamba-2", "delta rule")},
    "attention last": ["gated linear", "attention"],
}
PLAIN = ("attention", "delta rule", "linear", "gated linear", "Mamba-2", "retention", "RWKV",
         "convolution")  # fmt: skip
READERS: dict[str, list[Spec]] = {
    **{name: [AGAIN.get(name, MIXERS[name])] * 2 for name in PLAIN},
    **{name: [MIXERS[each] for each in layers] for name, layers in HYBRIDS.items()},
}


def reader_of(mixers: Sequence[Spec], vocabulary: int) -> nn.Module:
    """Return a decoder of tokens with these mixers, untrained."""
    config = TransformerConfig(vocabulary, WIDTH, decoder=layers_of(mixers), init="gpt2")
    return build(config)


def letters_of(length: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw sequences (size, 2 · length + 1): letters, the marker, the letters again."""
    drawn = torch.randint(LETTERS, (size, length), generator=generator)
    return torch.cat([drawn, torch.full((size, 1), LETTERS), drawn], dim=1)


def copied(mixers: Sequence[Spec], rate: float, steps: int, lengths: Sequence[int]) -> list[float]:
    """Train on copying, lengths in turns; return the share of right letters for each length."""
    torch.manual_seed(0)
    net, generator = reader_of(mixers, LETTERS + 1), torch.Generator().manual_seed(0)

    def scored(tokens):
        length = tokens.shape[1] // 2
        return net(tokens[:, :-1])[0][:, -length:].mT, tokens[:, -length:]  # (B, V, length)

    def loss_of(step):
        length = lengths[step % len(lengths)]
        return functional.cross_entropy(
            *scored(letters_of(length, ROWS // (2 * length), generator))
        )

    fit(net, loss_of, steps, rate)
    net.eval()
    shares = []
    with torch.no_grad():
        for length in lengths:
            scores, right = scored(letters_of(length, 100, torch.Generator().manual_seed(10_000)))
            shares.append(round((scores.argmax(1) == right).double().mean().item(), 3))
    return shares


def text_loss(mixers: Sequence[Spec], rate: float, steps: int, held: int = 200) -> float:
    """Train on Shakespeare and return the held-out loss in nats a character."""
    text = data.shakespeare("train")
    tokenizer = char_tokenizer(text)
    ids = torch.tensor(tokenizer.encode(text).ids)
    tests = rows(torch.tensor(tokenizer.encode(data.shakespeare("valid")).ids), CONTEXT)
    tests = tests[:: len(tests) // held][:held]
    torch.manual_seed(0)
    net = reader_of(mixers, tokenizer.get_vocab_size())
    windows = Windows(ids, CONTEXT, batch_size=ROWS // CONTEXT, seed=0)

    def loss_on(tokens):
        return functional.cross_entropy(net(tokens[:, :-1])[0].mT, tokens[:, 1:])

    fit(net, lambda step: loss_on(windows(step)), steps, rate)
    net.eval()
    with torch.no_grad():
        return round(loss_on(tests).item(), 3)


def run(
    *,
    names: Sequence[str] = tuple(dict.fromkeys((*AGAIN, *READERS, *COPIERS))),
    writes: Sequence[int] = (16, 32, 64),
    lengths: Sequence[int] = (8, 32, 64),
    rates: Sequence[float] = (0.008, 0.003),
    seeds: Sequence[int] = (0,),
    again_steps: int = 800,
    copy_steps: int = 400,
    text_steps: int = 200,
) -> tuple[dict, None]:
    """Train the models of each task."""
    log: dict = {
        "settings": {
            "names": list(names), "rates": list(rates), "again_steps": again_steps,
            "copy_steps": copy_steps, "text_steps": text_steps,
        },
        "writes": list(writes), "lengths": list(lengths), "seeds": list(seeds),
        **{key: {} for key in ("again", "copied", "text")},
        "parameters": {},
    }  # fmt: skip
    for name in (name for name in names if name in AGAIN):

        def attempt(rate, seed, mixers=(AGAIN[name],)):
            return trial(mixers, rate, seed, again_steps, writes, draw=again_of)

        for key, value in swept(attempt, rates, seeds).items():
            log["again"].setdefault(key, {})[name] = value
    for name in (name for name in names if name in COPIERS):
        mixers = [SHORT[each] for each in COPIERS[name]]
        log["copied"][name] = copied(mixers, rates[0], copy_steps, lengths)
    for name in (name for name in names if name in READERS):
        mixers = READERS[name]
        log["text"][name] = text_loss(mixers, rates[0], text_steps)
        log["parameters"][name] = sum(w.numel() for w in reader_of(mixers, 63).parameters())
    counts = log["parameters"].values()
    log["smallest"], log["largest"] = min(counts), max(counts)
    return log, None
