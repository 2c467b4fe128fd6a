"""Does MiniLM as it is beat counted words for other test sentences, too?

The log of `sentiment` holds shares alone. Two of its ways, "words" and "probe", are fitted again to
the same three draws of 200 labelled sentences, with the same choice of the penalty, and this log
holds which test sentences they answer correctly: for each way (`right`) a text of 0 and 1 for every
draw, in the order of the test sentences, so that the ways can be paired by sentence.

Explained in: chapters/18_practice, section "Which model at all".
"""

from collections.abc import Sequence

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from tfbook import pretrained
from tfbook.experiments.sentiment import labels, regression, sentences

__all__ = ["SIZE", "SMOKE", "run"]

SIZE = 200
SMOKE = {"seeds": (0,), "size": 8, "most": 10}
CARD = {
    "model": "MiniLM-L6 as it is, 22,713,216 parameters",
    "data": "{SIZE} sentences of film reviews",
    "steps": "nothing is trained but a logistic regression",
    "batch": "",
    "rate": "",
}


def run(
    *, seeds: Sequence[int] = (0, 1, 2), size: int = SIZE, most: int | None = None
) -> tuple[dict, None]:
    """Fit both ways to each draw, and say which test sentences they answer correctly."""
    language = pretrained.load("minilm-l6")
    pool, valid, test = (sentences(language, split, most) for split in ("train", "valid", "test"))
    checked, wanted = labels(valid), labels(test)

    def texts(pairs: Sequence) -> list[str]:
        return [text for text, _ in pairs]

    def vectors(pairs: Sequence) -> np.ndarray:
        return language.embed(texts(pairs)).double().numpy()

    held, asked = vectors(valid), vectors(test)
    right: dict[str, list[str]] = {"words": [], "probe": []}
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(pool))[:size]
        chosen = [pool[i] for i in order]
        make = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        counted = (
            make.fit_transform(texts(chosen)),
            *(make.transform(texts(part)) for part in (valid, test)),
        )
        for way, (made, of_valid, of_test) in {
            "words": counted,
            "probe": (vectors(chosen), held, asked),
        }.items():
            fitted = regression(made, labels(chosen), of_valid, checked)
            found = fitted.predict(of_test) == wanted
            right[way].append("".join(str(int(x)) for x in found))
    return {"settings": {"seeds": list(seeds)}, "right": right}, None
