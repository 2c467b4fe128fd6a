"""How many pairs can a layer recall that carries a cache, and how many with a state of fixed size?

The task is multi-query associative recall: a sequence names pairs of a key and a value, then it
asks for every key, in another order, and its value is to be named. The keys of a sequence are all
different, and which value belongs to which is drawn anew for each sequence, so that nothing can be
learned by heart. In the task of the source key and value are two tokens that a first layer has to
bring together; here a pair is one row, the sum of both embeddings, so that only the memory is
measured. Each network has one mixer with the same norm and the same feed-forward network behind it.
The states are of about 512 numbers; a cache grows. Numbers of pairs take turns from step to step.

Keys and values have 16 numbers in each of two heads, in Mamba-2 too, which is for that half as wide
inside as outside (`NarrowMamba2`). The heads of the gated delta rule usually begin with decays of
all kinds; with two heads both may happen to forget within a few rows, so here they begin slowly, as
those of Mamba-2 do (`Patient`).

"delta rule without erasing" has the same keys of length 1 as the delta rule, the same β, the same
norm, and no other difference. So the two say what erasing brings, while linear attention
differs from both in its features and its division too.

Each network tries three rates with the first seed; the one that recalls most of the largest number
of pairs, in sequences that are not used otherwise, is used with the second seed too. Attention,
which recalls all with the first rate, and two mixers that cannot ask try that one only (`ONCE`).
Those that come out far behind have one seed (`LONE`), and so do the short runs of those that begin
late (`LATE`). Where the loss is still falling after these steps (all but `ENOUGH`) the best rate is
used once more, with the first seed, for three times as many steps.

The log holds `recall[name][seed]`, a list over numbers of pairs; `rates[name]`, what each rate
reached with the most pairs, and `rate[name]`, the best; `curve[name]`, the loss with the most pairs
after each quarter of the steps, the mean over seeds; `numbers[name]`, what a network carries on
after the sequences; how many `parameters` there are; and `long`, with `recall[name]` and
`curve[name]` of the longer runs.

Source: [arora2023zoology]
Explained in: chapters/09_hybrids_deeper, section "Whole layers compared".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook.attention import merge_heads, split_heads
from tfbook.efficient import state_chunked
from tfbook.models import (
    FFN,
    RWKV,
    Attention,
    Convolution,
    DeltaNet,
    GatedDeltaNet,
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
from tfbook.recurrent import DeltaMixer, DeltaState, GatedDeltaMixer, Mamba2Mixer

__all__ = [
    "MIXERS", "RATES", "SMOKE", "Recaller", "fit", "longer", "numbers_of", "pairs_of", "run",
    "trial",
]  # fmt: skip

SMOKE = {
    "names": ("attention", "delta rule", "delta rule without erasing"),
    "rates": (0.005,), "seeds": (0,), "steps": 4, "long_steps": 6,
}  # fmt: skip
CARD = {
    "model": "one layer of width {WIDTH} with each mixer, 37,376 to 67,818 parameters",
    "data": "sequences of {pairs_first} to {pairs_last} pairs",
    "steps": "{steps:,} steps, all but three networks also {long_steps:,}",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "the best rate of {RATES[2]:g} to {RATES[1]:g}, rising and then falling",
}
WIDTH, KEYS, VALUES, ROWS, RATES = 64, 64, 64, 1024, (0.005, 0.015, 0.002)
SIZES = {"d_head": 16, "d_value": 16}
ONCE, LATE = ("attention", "RWKV", "convolution"), ("Mamba-2", "gated delta rule")
LONE, ENOUGH = ("retention", "RWKV", "convolution", *LATE), ONCE


class Adder(DeltaMixer):
    """The mixer of the delta rule, but what stands under a key is left there."""

    def features(self, x: Tensor) -> Tensor:
        """Give queries or keys (B, H, N, d) the length 1."""
        return functional.normalize(x, dim=-1)

    def mix(self, x: Tensor, state: None, tokens: None) -> tuple[Tensor, DeltaState]:
        """Mix the rows of x (B, N, D); it begins with nothing, and every row is a token."""
        rows = torch.cat([part(x) for part in (self.q_proj, self.k_proj, self.v_proj)], dim=-1)
        rows, conv = self.conv(rows, None, mask=None)
        rows = functional.silu(rows)
        sizes = [self.n_heads * size for size in (self.d_head, self.d_head, self.d_value)]
        q, k, v = (split_heads(part, self.n_heads) for part in rows.split(sizes, dim=-1))
        q, k = self.features(q), self.features(k)
        beta = torch.sigmoid(self.beta_proj(x)).mT[..., None]  # (B, H, N, 1)
        z, matrix = state_chunked(q * self.d_head**-0.5, k, beta * v)
        z = functional.rms_norm(z, (self.d_value,), self.norm_weight, self.eps)
        kept = DeltaState(matrix=matrix, conv=conv, seen=x.shape[1])
        return self.out_proj(merge_heads(z)), kept


@dataclass(frozen=True)
class Adding(DeltaNet):
    """What describes an :class:`Adder`."""

    module = Adder


class Patient(GatedDeltaMixer):
    """The mixer of the gated delta rule, whose heads all begin to fade slowly."""

    def __init__(self, d_model: int, n_heads: int, **choices: object):
        """Let a begin as 1 in every head; decays are then from 0.90 to 0.999."""
        super().__init__(d_model, n_heads, **choices)
        nn.init.zeros_(self.log_rate)


@dataclass(frozen=True)
class PatientNet(GatedDeltaNet):
    """What describes a :class:`Patient`."""

    module = Patient


@dataclass(frozen=True)
class NarrowMamba2(Mamba2):
    """Mamba-2 with half as many columns inside as outside."""

    def build(self, site) -> nn.Module:
        """Make the module, whose maps in and out have the width of the stream."""
        mixer = Mamba2Mixer(
            site.d_model // 2, self.d_state, expand=self.expand, d_head=self.d_head,
            n_groups=self.n_groups, width=self.width, chunk=self.chunk,
        )  # fmt: skip
        mixer.in_proj = nn.Linear(site.d_model, mixer.in_proj.out_features, bias=False)
        mixer.out_proj = nn.Linear(mixer.d_inner, site.d_model, bias=False)
        return mixer

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the state."""
        return super().held(d_model // 2, length)


# Name → the mixer; all but attention carry on 512 numbers, or a few more or less.
MIXERS: dict[str, Spec] = {
    "attention": Attention(4, position=Rotary()),
    "delta rule": DeltaNet(2, kernel=1, **SIZES),
    "linear": LinearAttention(2, **SIZES),
    "gated linear": LinearAttention(2, gated=True, **SIZES),
    "Mamba-2": NarrowMamba2(16, d_head=16, expand=1, n_groups=2, width=1),
    "retention": Retention(2, **SIZES),
    "RWKV": RWKV(149),
    "convolution": Convolution(9, norm="layer"),
    "delta rule without erasing": Adding(2, kernel=1, **SIZES),
    "gated delta rule": PatientNet(2, kernel=1, **SIZES),
}


def layers_of(mixers: Sequence[Spec]) -> list[Layer]:
    """Return layers with these mixers that are alike in all else."""
    return [Layer(each, FFN(2 * WIDTH), norm=Norm("rms")) for each in mixers]


def numbers_of(mixers: Sequence[Spec], length: int) -> int:
    """Count what layers with these mixers carry on after so many rows."""
    return sum(each.held(WIDTH, length) for each in mixers)


class Recaller(nn.Module):
    """Rows of pairs, then of keys; layers; and scores of the values at the keys that ask."""

    def __init__(self, mixers: str | Sequence[Spec], *, joined: bool = True):
        """Make a network, untrained: of one of MIXERS, or of a list of mixers, one a layer.

        Args:
            mixers: what carries the past.
            joined: whether a pair is one row, or two, the key before its value.
        """
        super().__init__()
        mixers = [MIXERS[mixers]] if isinstance(mixers, str) else mixers
        self.joined = joined
        config = TransformerConfig(KEYS, WIDTH, decoder=layers_of(mixers))
        self.stack = build(config).stack
        self.keys, self.values = nn.Embedding(KEYS, WIDTH), nn.Embedding(VALUES, WIDTH)
        self.ask = nn.Parameter(0.3 * torch.randn(WIDTH))
        self.to_value = nn.Linear(WIDTH, VALUES)
        for table in (self.keys, self.values):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Read pairs (B, P) and what is asked for (B, A); return scores (B, A, VALUES)."""
        both = self.keys(keys), self.values(values)  # (B, P, WIDTH) each
        given = both[0] + both[1] if self.joined else torch.stack(both, dim=2).flatten(1, 2)
        return self.answer(given, asked)

    def answer(self, given: Tensor, asked: Tensor) -> Tensor:
        """Read rows (B, P, WIDTH) and what is asked for (B, A); return scores (B, A, VALUES)."""
        x = torch.cat([given, self.keys(asked) + self.ask], dim=1)
        return self.to_value(self.stack(x)[0][:, given.shape[1] :])


def pairs_of(
    count: int, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw sequences: keys and values of the pairs, keys that are asked for, and their values."""
    keys = torch.rand(size, KEYS, generator=generator).argsort(1)[:, :count]  # all different
    values = torch.randint(VALUES, (size, count), generator=generator)
    order = torch.rand(size, count, generator=generator).argsort(1)
    return keys, values, keys.gather(1, order), values.gather(1, order)


def fit(net: nn.Module, loss_of, steps: int, rate: float) -> None:
    """Minimise loss_of(step); the rate rises for 30 steps and then falls to 0."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 30, 1) * (1 - step / steps)
        optimizer.zero_grad()
        loss_of(step).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def accuracy(net: nn.Module, draw, count: int, seed: int) -> float:
    """Return the share of questions that are answered rightly, in 100 fresh sequences."""
    *given, wanted = draw(count, 100, torch.Generator().manual_seed(seed))
    return (net(*given).argmax(-1) == wanted).double().mean().item()


def trial(
    mixers: Sequence[Spec], rate: float, seed: int, steps: int, pairs: Sequence[int], *,
    joined: bool = True, draw=pairs_of, make: Callable[..., nn.Module] = Recaller,
    length: Callable[[int], int] | None = None, rows: int = ROWS,
    look: Callable[[nn.Module], dict] | None = None,
) -> dict:  # fmt: skip
    """Train on numbers of pairs in turns, with about as many rows in each batch.

    Args:
        mixers: one for each layer.
        rate: of learning, at its highest.
        seed: of the weights and of the sequences.
        steps: of training.
        pairs: the numbers that take turns.
        joined: whether a pair is one row.
        draw: makes sequences from a number of pairs, how many, and a generator.
        make: makes the network from the mixers.
        length: rows of a sequence with so many pairs; as many questions as pairs when omitted.
        rows: in a batch.
        look: what else to find out about the trained network.

    Returns:
        `right`, the shares for each number; `chosen_by`, the last of them on other sequences; and
        `curve`, the mean loss of the last ten batches with it, after each quarter of the steps.
        `looked` is what `look` returned.
    """
    torch.manual_seed(seed)
    net, generator = make(mixers, joined=joined), torch.Generator().manual_seed(seed)
    length = length or (lambda count: (2 if joined else 3) * count)
    losses: list[float] = []

    def loss_of(step):
        count = pairs[step % len(pairs)]
        *given, wanted = draw(count, rows // length(count), generator)
        loss = functional.cross_entropy(net(*given).flatten(0, 1), wanted.flatten())
        if count == pairs[-1]:
            losses.append(loss.item())
        return loss

    fit(net, loss_of, steps, rate)
    net.eval()
    ends = [len(losses) * quarter // 4 for quarter in (1, 2, 3, 4)]
    return {
        "right": [round(accuracy(net, draw, count, 10_000 + seed), 3) for count in pairs],
        "chosen_by": round(accuracy(net, draw, pairs[-1], 20_000), 3),
        "curve": [round(mean(losses[max(0, end - 10) : end] or losses), 3) for end in ends],
        **({"looked": look(net)} if look else {}),
    }


def swept(attempt, rates: Sequence[float], seeds: Sequence[int]) -> dict:
    """Try every rate with the first seed, and the best one with the others.

    Args:
        attempt: returns what :func:`trial` returns, from a rate and a seed.
        rates: to be tried.
        seeds: of which the first chooses.

    Returns:
        `recall` by seed, `rates`, `rate` and `curve`, as in the log.
    """
    tried = {rate: attempt(rate, seeds[0]) for rate in rates}
    best = max(tried, key=lambda rate: tried[rate]["chosen_by"])
    runs = [tried[best], *(attempt(best, seed) for seed in seeds[1:])]
    return {
        "recall": [each["right"] for each in runs],
        "rates": {f"{rate:g}": each["chosen_by"] for rate, each in tried.items()},
        "rate": best,
        "curve": [
            round(mean(each), 3) for each in zip(*(one["curve"] for one in runs), strict=True)
        ],
    }


def longer(attempt, rate: float, seeds: Sequence[int]) -> dict:
    """Train at one rate with every seed; return `recall` by seed, and the mean `curve`."""
    runs = [attempt(rate, seed) for seed in seeds]
    return {
        "recall": [each["right"] for each in runs],
        "curve": [
            round(mean(each), 3) for each in zip(*(one["curve"] for one in runs), strict=True)
        ],
    }


def run(
    *,
    names: Sequence[str] = tuple(MIXERS),
    pairs: Sequence[int] = (4, 16, 64),
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0, 1),
    steps: int = 900,
    long_steps: int = 2700,
) -> tuple[dict, None]:
    """Train each network at every rate; at its best one with every seed, and once longer."""
    log: dict = {
        "settings": {
            "names": list(names), "rates": list(rates), "steps": steps,
            "long_steps": long_steps,
        },
        "pairs": list(pairs), "seeds": list(seeds),
        **{key: {} for key in ("recall", "rates", "rate", "curve", "numbers", "parameters")},
        "long": {"recall": {}, "curve": {}},
    }  # fmt: skip
    for name in names:
        mixers = [MIXERS[name]]

        def attempt(rate, seed, own=steps, mixers=mixers):
            return trial(mixers, rate, seed, own, pairs)

        found = swept(
            attempt,
            rates[:1] if name in ONCE else rates,
            seeds[:1] if name in LONE else seeds,
        )
        for key, value in found.items():
            log[key][name] = value
        if name not in ENOUGH:
            again = longer(lambda *a: attempt(*a, long_steps), found["rate"], seeds[:1])
            for key, value in again.items():
                log["long"][key][name] = value
        log["numbers"][name] = [numbers_of(mixers, 2 * count) for count in pairs]
        log["parameters"][name] = sum(w.numel() for w in Recaller(mixers).parameters())
    return log, None
