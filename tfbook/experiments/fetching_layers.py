"""Do the layers whose heads attend to a fact also decide whether it is found?

In one text of chapter 07 the last token attends to the far fact in layers 17 to 24 of SmolLM2-135M,
counted from 0. Here other texts, those of `some_layers`, are read with all pairs in these eight
layers only, in all layers but these, or in the middle ten; the other layers see a window of 63 and
the first token. Every third layer finds as many facts, and 17, 20 and 23 are among them: two more
plans keep all pairs in these three alone, and in the seven others. Nothing is trained. The log
holds for each plan, in `finished`, how many answers are right at each distance, of how many, the
mean loss between a quarter of the text and the question, and in how many layers all pairs are seen.

Explained in: chapters/07_efficient_attention, section "Windows in some layers".
"""

from collections.abc import Sequence

from tfbook.experiments import some_layers

__all__ = ["PLANS", "SMOKE", "run"]

SMOKE = {"n": 48, "distances": (16,), "texts": 1, "plans": ("17 to 24",)}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters",
    "data": "{texts} texts of {n} tokens at each of 2 distances",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
FETCH = range(17, 25)
BOTH = (17, 20, 23)  # of the eight, those that stand in every third layer, too
# Which layers of SmolLM2 see all pairs.
PLANS: dict[str, Sequence[int]] = {
    "the middle 10": range(10, 20),
    "17 to 24": FETCH,
    "all but 17 to 24": [layer for layer in range(some_layers.DEPTH) if layer not in FETCH],
    "17, 20 and 23": BOTH,
    "every third but 17, 20 and 23": [
        layer for layer in some_layers.PLANS["every third"] if layer not in BOTH
    ],
}


def run(
    *,
    n: int = 256,
    distances: Sequence[int] = (112, 200),
    texts: int = 20,
    plans: Sequence[str] = tuple(PLANS),
) -> tuple[dict, None]:
    """Read all texts with each plan."""
    settings = {"n": n, "distances": list(distances), "texts": texts}
    chosen = {name: PLANS[name] for name in plans}
    return {
        "settings": settings,
        "finished": some_layers.finished(chosen, n, distances, texts),
    }, None
