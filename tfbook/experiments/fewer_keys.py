"""Why can sixteen features not hold sixteen facts?

In `pairs_recalled` a state of 16 features answers 85 % of the questions about 16 facts, whose keys
are drawn from 256. Sixteen directions at right angles would be enough for 16 facts, but not for 256
keys, and a layer has to fix the features of a key before it knows which others a list will hold.
Here the same layer learns the same task with keys drawn from 256, from 64 and from 16. The log
holds the share of right answers on fresh lists, for each number of keys and each seed.

Explained in: chapters/07_efficient_attention_deeper, section "Sixteen features, sixteen facts".
"""

from collections.abc import Sequence

from tfbook.experiments.pairs_recalled import Recaller, accuracy, train

__all__ = ["SMOKE", "WAY", "Recaller", "run"]

WAY, FACTS = "linear, 16 features", 16
SMOKE = {"keys": (16,), "seeds": (0,), "steps": 3}
CARD = {
    "model": "one layer of width {width}, {parameters:,} parameters with {keys_first} keys",
    "data": "lists of 16 facts, no key twice; keys drawn from {keys_first}, 64 or {keys_last}",
}


def run(
    *,
    keys: Sequence[int] = (256, 64, 16),
    seeds: Sequence[int] = (0, 1, 2),
    steps: int = 600,
    batch: int = 32,
    rate: float = 1e-2,
    width: int = 64,
) -> tuple[dict, None]:
    """Train one layer for each number of keys and each seed."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in locals().items()}
    right = {
        str(many): [
            accuracy(train(WAY, FACTS, seed, steps, batch, rate, width, keys=many),
                     FACTS, seed, keys=many)[0]
            for seed in seeds
        ]
        for many in keys
    }  # fmt: skip
    parameters = sum(p.numel() for p in Recaller(WAY, width, keys=keys[0]).parameters())
    return {"settings": settings, "parameters": parameters, "accuracy": right}, None
