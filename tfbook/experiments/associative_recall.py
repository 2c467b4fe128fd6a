"""How many pairs can a layer recall that carries a cache, and how many with a state of fixed size?

The task is multi-query associative recall: a sequence names pairs of a key and a value, then it
asks for every key, in another order, and its value is to be named. The keys of a sequence are all
different, and which value belongs to which is drawn anew for each sequence, so that nothing can be
learned by heart. In the task of the source key and value are two tokens that a first layer has to
bring together; here a pair is one row, the sum of both embeddings, so that only the memory is
measured. Each network has one mixer with a feed-forward network behind it. The states are of about
512 numbers; a cache grows. Numbers of pairs take turns from step to step.

Hybrids are four such layers, of which 0, 1, 2 or all are attention and the others linear attention.
They learn the same task in half as many steps, and besides to predict the next character of
Shakespeare; so do two layers of each mixer.

The log holds `recall[name][seed]`, a list over numbers of pairs, of `MIXERS` and of `HYBRIDS`;
`numbers[name]`, what a network carries on after the longest sequence; `text[name]`, the held-out
loss in nats a character; and how many parameters there are.

Source: [arora2023zoology]
Explained in: chapters/09_hybrids, section "Associative recall".
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook import data
from tfbook.data import Windows, char_tokenizer, rows
from tfbook.models import (
    FFN,
    RWKV,
    Attention,
    Convolution,
    DeltaNet,
    Layer,
    LinearAttention,
    Mamba2,
    Norm,
    Retention,
    Rotary,
    Spec,
    TransformerConfig,
    build,
)

__all__ = ["HYBRIDS", "MIXERS", "SMOKE", "Recaller", "numbers_of", "pairs_of", "reader_of", "run"]

SMOKE = {
    "seeds": (0,), "steps": 2, "text_steps": 2, "names": ("attention", "delta rule", "1 of 4, last")
}  # fmt: skip
CARD = {
    "model": "one layer of width {WIDTH} with each mixer, 37,376 to 67,818 parameters, or four",
    "data": "sequences of {pairs_first} to {pairs_last} pairs, or Shakespeare",
    "steps": "{steps:,} steps, half as many with four layers, {text_steps:,} of text",
    "batch": "batches of {ROWS:,} rows",
    "rate": "rate {RATE:g}, rising and then falling",
}
WIDTH, KEYS, VALUES, ROWS, RATE, CONTEXT = 64, 64, 64, 1024, 5e-3, 64
SIZES = {"d_head": 16, "d_value": 16}
# Name → the mixer; all but attention carry on 512 numbers, or a few more.
MIXERS: dict[str, Spec] = {
    "attention": Attention(4, position=Rotary()),
    "delta rule": DeltaNet(2, kernel=1, **SIZES),
    "linear": LinearAttention(2, **SIZES),
    "gated linear": LinearAttention(2, gated=True, **SIZES),
    "retention": Retention(2, **SIZES),
    "Mamba-2": Mamba2(8, d_head=16, expand=1, width=1),
    "RWKV": RWKV(149),
    "convolution": Convolution(9, norm="layer"),
}
HYBRIDS: dict[str, list[str]] = {
    "0 of 4": ["linear"] * 4,
    "1 of 4, first": ["attention"] + ["linear"] * 3,
    "1 of 4, last": ["linear"] * 3 + ["attention"],
    "2 of 4": ["attention", "linear"] * 2,
    "4 of 4": ["attention"] * 4,
}


def layers_of(name: str, depth: int = 1) -> list[Layer]:
    """Return the layers of a hybrid, or so many with one mixer."""
    names = HYBRIDS.get(name, [name] * depth)
    return [Layer(MIXERS[each], FFN(2 * WIDTH), norm=Norm("rms")) for each in names]


def numbers_of(name: str, length: int) -> int:
    """Count what a network for recall carries on after so many rows, over its layers."""
    return sum(layer.mixer.held(WIDTH, length) for layer in layers_of(name))


class Recaller(nn.Module):
    """Rows of pairs, then of keys; layers; and scores of the values at the keys that ask."""

    def __init__(self, name: str):
        """Make a network of one of the mixers or hybrids, untrained."""
        super().__init__()
        config = TransformerConfig(KEYS, WIDTH, decoder=layers_of(name))
        self.stack = build(config).stack
        self.keys, self.values = nn.Embedding(KEYS, WIDTH), nn.Embedding(VALUES, WIDTH)
        self.ask = nn.Parameter(0.3 * torch.randn(WIDTH))
        self.to_value = nn.Linear(WIDTH, VALUES)
        for table in (self.keys, self.values):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Read pairs (B, P) and what is asked for (B, A); return scores (B, A, VALUES)."""
        pairs = self.keys(keys) + self.values(values)  # (B, P, WIDTH)
        x = torch.cat([pairs, self.keys(asked) + self.ask], dim=1)
        y = self.stack(x)[0]
        return self.to_value(y[:, keys.shape[1] :])


def pairs_of(
    count: int, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw sequences: keys and values of the pairs, keys that are asked for, and their values."""
    keys = torch.rand(size, KEYS, generator=generator).argsort(1)[:, :count]  # all different
    values = torch.randint(VALUES, (size, count), generator=generator)
    order = torch.rand(size, count, generator=generator).argsort(1)
    return keys, values, keys.gather(1, order), values.gather(1, order)


def _fit(net: nn.Module, loss_of, steps: int) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.01)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min((step + 1) / 30, 1) * (1 - step / steps)
        optimizer.zero_grad()
        loss_of(step).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def learn_recall(name: str, seed: int, steps: int, pairs: Sequence[int]) -> Recaller:
    """Train on pairs in turns, about as many rows in each batch."""
    torch.manual_seed(seed)
    net, generator = Recaller(name), torch.Generator().manual_seed(seed)

    def loss_of(step):
        count = pairs[step % len(pairs)]
        *given, wanted = pairs_of(count, ROWS // (2 * count), generator)
        return functional.cross_entropy(net(*given).flatten(0, 1), wanted.flatten())

    _fit(net, loss_of, steps)
    return net.eval()


@torch.no_grad()
def accuracy(net: Recaller, count: int, seed: int) -> float:
    """Return the share of questions that are answered rightly, in 100 fresh sequences."""
    *given, wanted = pairs_of(count, 100, torch.Generator().manual_seed(10_000 + seed))
    return (net(*given).argmax(-1) == wanted).double().mean().item()


def reader_of(name: str, vocabulary: int) -> nn.Module:
    """Return a decoder of characters with the layers of a hybrid, or two of a mixer."""
    return build(TransformerConfig(vocabulary, WIDTH, decoder=layers_of(name, 2), init="gpt2"))


def learn_text(name: str, steps: int, held: int = 200) -> float:
    """Train on Shakespeare and return the held-out loss in nats a character."""
    text = data.shakespeare("train")
    tokenizer = char_tokenizer(text)
    ids = torch.tensor(tokenizer.encode(text).ids)
    tests = rows(torch.tensor(tokenizer.encode(data.shakespeare("valid")).ids), CONTEXT)
    tests = tests[:: len(tests) // held][:held]
    torch.manual_seed(0)
    net = reader_of(name, tokenizer.get_vocab_size())
    windows = Windows(ids, CONTEXT, batch_size=ROWS // CONTEXT, seed=0)

    def loss_on(tokens):
        scores = net(tokens[:, :-1])[0]  # (B, N, V)
        return functional.cross_entropy(scores.mT, tokens[:, 1:])

    _fit(net, lambda step: loss_on(windows(step)), steps)
    net.eval()
    with torch.no_grad():
        return loss_on(tests).item()


def run(
    *,
    names: Sequence[str] = (*MIXERS, *HYBRIDS),
    pairs: Sequence[int] = (4, 16, 64),
    seeds: Sequence[int] = (0, 1),
    steps: int = 500,
    text_steps: int = 200,
) -> tuple[dict, None]:
    """Train each network on recall with every seed, and on text with one."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in locals().items()}
    seeds_of = settings.pop("seeds")
    recall, text, numbers, parameters = {}, {}, {}, {}
    for name in names:
        own = steps // 2 if name in HYBRIDS else steps
        recall[name] = []
        for seed in seeds:
            net = learn_recall(name, seed, own, pairs)
            recall[name].append([round(accuracy(net, count, seed), 3) for count in pairs])
        parameters[name] = sum(w.numel() for w in net.parameters())
        numbers[name] = [numbers_of(name, 2 * count) for count in pairs]
    for name in names:
        text[name] = round(learn_text(name, text_steps), 3)
    return {
        "settings": settings,
        "pairs": list(pairs),
        "seeds": seeds_of,
        "recall": recall,
        "numbers": numbers,
        "parameters": parameters,
        "text": text,
    }, None
