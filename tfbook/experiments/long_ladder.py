"""What do momentum and AdamW alone bring in a run ten times as long, and what does its model write?

The decoder of `ingredients` reads ten times as many batches with two loops that `longer_loops`
leaves out, neither of them clipped: gradient descent with momentum, and AdamW at a constant rate of
0.003. The last program of the chapter is trained once more, so that it can write.

The log holds for each of the two loops the loss on 4,096 letters of the validation text in nats a
letter after each tenth of the run (`losses`, a list for each seed), and for the program four texts
that the model of seed 0 writes and the share of known words among those of 32 texts (`texts`,
`words`), beside its loss at the end (`ends`).

Explained in: chapters/11_training, section "Which lines make the difference?".
"""

from tfbook import data
from tfbook.experiments import ingredients
from tfbook.experiments.ingredients import BATCH, LENGTH, TENTHS, known_words, write  # noqa: F401

__all__ = ["LOOPS", "SMOKE", "WRITERS", "run"]

STEPS = 2000
LOOPS = ("momentum, rate 0.2", "AdamW, rate 0.003")
WRITERS = ("rate 0.01, clipped",)
SMOKE = {"names": LOOPS[-1:], "writers": WRITERS[-1:], "seeds": (0,), "steps": 10}
CARD = {**ingredients.CARD, "batch": "batches of {BATCH}"}


def run(
    *,
    seeds: tuple[int, ...] = (0,),
    steps: int = STEPS,
    names: tuple[str, ...] = LOOPS,
    writers: tuple[str, ...] = WRITERS,
) -> tuple[dict, None]:
    """Train with every loop and every seed, and let the finished program write.

    Returns:
        the log: `losses` by name, lists over seeds of lists over `after`, shares of the run;
        `texts`, `words` and the loss at the end (`ends`) by name.
    """
    losses: dict[str, list[list[float]]] = {name: [] for name in names}
    for name, ends in losses.items():
        for seed in seeds:
            _, found, _ = ingredients.train(name, seed, steps)
            ends.append([round(loss, 3) for loss in found])
    signs = sorted(set(data.shakespeare("train") + data.shakespeare("valid")))
    texts, words, wrote = {}, {}, {}
    for name in writers:
        model, found, _ = ingredients.train(name, 0, steps)
        lines = ["".join(signs[i] for i in row) for row in write(model).tolist()]
        texts[name] = [line.strip("\n") for line in lines[:4]]
        words[name], wrote[name] = round(known_words(lines), 2), round(found[-1], 3)
    after = [k / TENTHS for k in range(TENTHS + 1)]
    log = {"losses": losses, "texts": texts, "words": words, "ends": wrote}
    return {
        "settings": {"steps": steps, "batch": BATCH},
        "seeds": list(seeds),
        "after": after,
        **log,
    }, None
