"""Can two layers give back a text that they have just read?

Letters drawn at random, a marker, and the same letters again, which are to be predicted. Two
layers, with the short convolution that the delta rule usually has, at one rate.

The log holds `copied[name][seed]`, the shares of letters that were predicted, for each of the
`lengths`; and `parameters[name]`. Of two names the lower layer stands first.

Explained in: chapters/09_hybrids_deeper, section "Copying".
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook.experiments.associative_recall import MIXERS, ROWS, SIZES, WIDTH, fit, layers_of
from tfbook.models import DeltaNet, Spec, TransformerConfig, build

__all__ = ["COPIERS", "SMOKE", "copied", "letters_of", "mixers_of", "model_of", "run"]

LETTERS = 26
SMOKE = {"names": ("delta rule, delta rule",), "seeds": (0,), "steps": 2}
CARD = {
    "model": "two layers of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "{lengths_first} to {lengths_last} letters, a marker, the letters again",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "rate {rate:g}, rising and then falling",
}
KINDS: dict[str, Spec] = {
    "attention": MIXERS["attention"],
    "gated linear": MIXERS["gated linear"],
    "delta rule": DeltaNet(2, **SIZES),
}
COPIERS = (
    "attention, attention", "gated linear, attention", "delta rule, delta rule",
    "gated linear, gated linear",
)  # fmt: skip


def mixers_of(name: str) -> list[Spec]:
    """Return the mixers of a model, the lower one first."""
    return [KINDS[each] for each in name.split(", ")]


def model_of(mixers: Sequence[Spec]) -> nn.Module:
    """Return a decoder of letters and the marker with these mixers, untrained."""
    vocabulary = LETTERS + 1
    config = TransformerConfig(vocabulary, WIDTH, decoder=layers_of(mixers), init="gpt2")
    return build(config)


def letters_of(length: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw sequences (size, 2 · length + 1): letters, the marker, the letters again."""
    drawn = torch.randint(LETTERS, (size, length), generator=generator)
    return torch.cat([drawn, torch.full((size, 1), LETTERS), drawn], dim=1)


def copied(
    mixers: Sequence[Spec], rate: float, seed: int, steps: int, lengths: Sequence[int]
) -> list[float]:
    """Train on copying, lengths in turns; return the share of right letters for each length."""
    torch.manual_seed(seed)
    net, generator = model_of(mixers), torch.Generator().manual_seed(seed)

    def scored(tokens):
        length = tokens.shape[1] // 2
        return net(tokens[:, :-1])[0][:, -length:].mT, tokens[:, -length:]  # (B, V, length)

    def loss_of(step):
        length = lengths[step % len(lengths)]
        drawn = letters_of(length, ROWS // (2 * length), generator)
        return functional.cross_entropy(*scored(drawn))

    fit(net, loss_of, steps, rate)
    net.eval()
    shares = []
    with torch.no_grad():
        for length in lengths:
            tests = torch.Generator().manual_seed(10_000 + seed)
            scores, right = scored(letters_of(length, 100, tests))
            shares.append(round((scores.argmax(1) == right).double().mean().item(), 3))
    return shares


def run(
    *,
    names: Sequence[str] = COPIERS,
    lengths: Sequence[int] = (8, 32, 64),
    rate: float = 0.008,
    seeds: Sequence[int] = (0, 1),
    steps: int = 400,
) -> tuple[dict, None]:
    """Train each model with every seed."""
    log: dict = {
        "settings": {"names": list(names), "rate": rate, "steps": steps},
        "lengths": list(lengths), "seeds": list(seeds), "copied": {}, "parameters": {},
    }  # fmt: skip
    for name in names:
        mixers = mixers_of(name)
        log["copied"][name] = [copied(mixers, rate, seed, steps, lengths) for seed in seeds]
        log["parameters"][name] = sum(w.numel() for w in model_of(mixers).parameters())
    counts = log["parameters"].values()
    log["smallest"], log["largest"] = min(counts), max(counts)
    return log, None
