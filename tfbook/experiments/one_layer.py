"""Do several heads lower the loss where there is only one layer to look with?

In the experiment `heads`, a causal transformer of two layers predicts Shakespeare equally well with
1, 2, 4 and 8 heads. A second layer can look a second time, and so may do what a second head would.
Here the same model has one layer; text, steps, batches, rate and seeds are those of `heads`, and
with every number of heads it has the same parameters. The log holds the held-out loss of each run,
on the same passages.

Explained in: chapters/03_multi_head_deeper, section "How many heads?".
"""

from tfbook import data
from tfbook.experiments import heads as characters

__all__ = ["SMOKE", "run"]

SMOKE = {"heads": (1, 2), "seeds": (0,), "steps": 2, "windows": 8}
CARD = {
    "model": "transformer, 1 layer of width {width}, {heads_first} to {heads_last} heads, "
    "{parameters:,} parameters",
    "data": "Shakespeare, windows of {context} characters",
}


def run(
    *,
    heads: tuple[int, ...] = (1, 2, 4, 8),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 1200,
    batch: int = 32,
    rate: float = 4e-3,
    windows: int = 256,
) -> tuple[dict, None]:
    """Train all models; return the log."""
    settings = {key: value for key, value in locals().items()}
    text, held_out = data.shakespeare("train"), data.shakespeare("valid")
    known = "".join(sorted(set(text + held_out)))
    ids, targets = characters.windows_of(characters.encode(held_out, known), windows)
    encoded = characters.encode(text, known)
    log: dict = {
        "settings": settings
        | {"width": characters.WIDTH, "layers": 1, "context": characters.CONTEXT},
        "held_out_loss": {str(n_heads): [] for n_heads in heads},
    }
    for seed in seeds:
        for n_heads in heads:
            model, _ = characters.train(
                n_heads, seed, encoded, len(known), steps, batch, rate, layers=1
            )
            loss = characters.held_out_loss(model, ids, targets)
            log["held_out_loss"][str(n_heads)].append(round(loss, 4))
            log["parameters"] = sum(p.numel() for p in model.parameters())
    return log, None
