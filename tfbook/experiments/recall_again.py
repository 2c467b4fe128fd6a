"""What have the layers chosen that learned to recall, and what do they recall with a second seed?

The longer runs of `associative_recall` once more (but not retention's), with another seed and the
rates that were best there, and a look into the trained layer while it reads 64 pairs: how much of
the state a pair keeps (`kept`), what is left of the first pair when the questions begin (`left`),
the β of the delta rule (`beta`), the a of Mamba-2 (`a`) and its `step`, and the mean inner product
of two keys of length 1 (`overlap`) and its mean size (`overlap_size`).

"adding, positive keys" is the delta rule without erasing, with one difference: its queries and keys
pass through elu(x) + 1, as those of linear attention do.

The log holds `recall[name][seed]`, `curve[name]`, `rate[name]`, `parameters`, as the log of
`associative_recall` does, and `learned[name]`, each a list over heads.

Source: [arora2023zoology]
Explained in: chapters/09_hybrids_deeper, section "What layers learn that recall".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook.attention import split_heads
from tfbook.experiments.associative_recall import (
    MIXERS,
    RATES,
    ROWS,  # noqa: F401
    SIZES,
    WIDTH,  # noqa: F401
    Adder,
    Adding,
    Recaller,
    pairs_of,
    trial,
)
from tfbook.models import Spec
from tfbook.recurrent import DeltaMixer, LinearAttentionMixer, Mamba2Mixer

__all__ = ["LAYERS", "SMOKE", "look", "run"]

SMOKE = {"names": ("linear", "Mamba-2", "gated delta rule"), "steps": 4}
CARD = {
    "model": "one layer of width {WIDTH} with each mixer, {smallest:,} to {largest:,} parameters",
    "data": "sequences of {pairs_first} to {pairs_last} pairs",
    "steps": "{steps:,} steps with the second seed of associative_recall",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "rate {RATES[0]:g}, without erasing {RATES[1]:g}, rising and then falling",
}


class PositiveAdder(Adder):
    """The delta rule without erasing, with queries and keys that have no negative number."""

    def features(self, x: Tensor) -> Tensor:
        """Make every number positive, then the length 1."""
        return functional.normalize(functional.elu(x) + 1, dim=-1)


@dataclass(frozen=True)
class PositiveAdding(Adding):
    """What describes a :class:`PositiveAdder`."""

    module = PositiveAdder


# Name → the mixer and its rate.
LAYERS: dict[str, tuple[Spec, float]] = {
    "Mamba-2": (MIXERS["Mamba-2"], RATES[0]),
    "delta rule": (MIXERS["delta rule"], RATES[0]),
    "delta rule without erasing": (MIXERS["delta rule without erasing"], RATES[1]),
    "adding, positive keys": (PositiveAdding(2, kernel=1, **SIZES), RATES[1]),
    "linear": (MIXERS["linear"], RATES[0]),
    "gated linear": (MIXERS["gated linear"], RATES[0]),
    "gated delta rule": (MIXERS["gated delta rule"], RATES[0]),
}


def _overlaps(k: Tensor) -> dict[str, list[float]]:
    """Return the mean inner product of two keys (B, H, P, d) made of length 1, and its size."""
    k = functional.normalize(k, dim=-1)
    inner = (k @ k.mT)[..., ~torch.eye(k.shape[-2], dtype=torch.bool)]  # (B, H, P (P − 1))
    return {"overlap": inner.mean((0, 2)), "overlap_size": inner.abs().mean((0, 2))}


def _chosen(mixer: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return what a mixer makes of its rows (B, P, D): kept shares (B, P, H), or other things."""
    if isinstance(mixer, Mamba2Mixer):
        step = functional.softplus(mixer.in_proj(x)[..., -mixer.n_heads :] + mixer.delta_bias)
        a = -mixer.log_rate.exp()
        return {"kept": torch.exp(a * step), "a": a, "step": step.mean((0, 1))}
    if isinstance(mixer, LinearAttentionMixer):
        found = _overlaps(functional.elu(mixer._heads(x)[1]) + 1)
        if mixer.gated:
            found["kept"] = torch.exp(functional.logsigmoid(mixer.g_proj(x)) / mixer.temperature)
        return found
    rows = torch.cat([part(x) for part in (mixer.q_proj, mixer.k_proj, mixer.v_proj)], dim=-1)
    rows = functional.silu(mixer.conv(rows, None, mask=None)[0])
    width = mixer.n_heads * mixer.d_head
    k = split_heads(rows[..., width : 2 * width], mixer.n_heads)
    if isinstance(mixer, PositiveAdder):
        k = mixer.features(k)
    found = _overlaps(k) | {"beta": torch.sigmoid(mixer.beta_proj(x)).mean((0, 1))}
    if hasattr(mixer, "log_rate"):
        found["kept"] = mixer._log_decay(x).exp().mT
    return found


@torch.no_grad()
def look(net: Recaller) -> dict[str, list[float]]:
    """Return what the only layer chooses at 64 pairs, for each head, the mean over sequences."""
    kinds = Mamba2Mixer | LinearAttentionMixer | DeltaMixer
    mixer = next(part for part in net.modules() if isinstance(part, kinds))
    seen: list[Tensor] = []
    hook = mixer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    keys, values, asked, _ = pairs_of(64, 100, torch.Generator().manual_seed(30_000))
    net(keys, values, asked)
    hook.remove()
    found = _chosen(mixer, seen[0][:, : keys.shape[1]])
    if "kept" in found:
        kept = found.pop("kept")
        found |= {"kept": kept.mean((0, 1)), "left": kept[:, 1:].prod(1).mean(0)}
    return {name: [round(x, 3) for x in numbers.tolist()] for name, numbers in found.items()}


def run(
    *,
    names: Sequence[str] = tuple(LAYERS),
    pairs: Sequence[int] = (4, 16, 64),
    seeds: Sequence[int] = (1,),
    steps: int = 2700,
) -> tuple[dict, None]:
    """Train each layer at its rate, and look into it."""
    log: dict = {
        "settings": {"names": list(names), "steps": steps},
        "pairs": list(pairs), "seeds": list(seeds),
        **{key: {} for key in ("recall", "curve", "rate", "learned", "parameters")},
    }  # fmt: skip
    for name in names:
        mixer, rate = LAYERS[name]
        ends = [trial([mixer], rate, seed, steps, pairs, look=look) for seed in seeds]
        log["recall"][name] = [end["right"] for end in ends]
        log["curve"][name] = ends[0]["curve"]
        log["learned"][name] = ends[0]["looked"]
        log["rate"][name] = rate
        log["parameters"][name] = sum(w.numel() for w in Recaller([mixer]).parameters())
    counts = log["parameters"].values()
    log["smallest"], log["largest"] = min(counts), max(counts)
    return log, None
