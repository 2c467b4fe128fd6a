"""Is it the texts of training that let a head that points answer questions about real notes?

`forty_notes` trains readers on 800 questions about sentences with 25 verbs and many names. Here the
same readers are trained on as many questions, for as many epochs and with the same seeds, but on
the texts of `answers`, which tell only who lives where, who works for whom and who owns what. Only
the texts and questions of training differ. Both kinds read the same forty notes and the same new
sentences with the 25 verbs. Nothing was chosen by what came out.

Explained in: chapters/13_language, section "Where is the answer?".
"""

import random

from tfbook import pretrained
from tfbook.experiments import answers, forty_notes

__all__ = ["SMOKE", "run"]

SMOKE = {"seeds": (0,), "n_train": 2, "n_test": 1, "passes": 1, "count": 1}
CARD = {
    "model": "the last {TOP} layers of MiniLM-L6 and a linear layer, 5,324,162 parameters",
    "data": "{n_train} questions on synthetic texts",
    "steps": "{passes} epochs",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}",
}
BATCH, RATE, TOP = answers.BATCH, answers.RATE, answers.TOP


def run(
    *,
    seeds: tuple[int, ...] = (0, 1),
    n_train: int = 800,
    n_test: int = 60,
    passes: int = 4,
    count: int = len(forty_notes.NOTES),
) -> tuple[dict, None]:
    """Train readers on texts of three kinds of facts, and let them answer the notes' questions.

    Args:
        seeds: of the training questions, and of the weights that are drawn.
        n_train: questions to train on.
        n_test: questions of each synthetic test.
        passes: over the training questions.
        count: how many of the notes' questions are asked.

    Returns:
        the log: `read`, for each seed the answers to the notes' questions (`question`), and what
        `answers.measure` finds on texts like those of training, with other names (`own`), and on
        the new sentences of `forty_notes` (`new`).
    """
    language = pretrained.load("minilm-l6")
    tests = {
        "own": answers.examples(n_test, names=1, generator=random.Random(1000)),
        "new": forty_notes.examples(n_test, kept=True, generator=random.Random(1000)),
    }
    read = []
    for seed in seeds:
        taught = answers.examples(n_train, generator=random.Random(seed))
        reader = answers.train(language, taught, passes, seed)
        found: dict = {name: answers.measure(reader, test) for name, test in tests.items()}
        asked = forty_notes.NOTES[:count]
        found["question"] = [reader.read(note.question, note.text).answer for note in asked]
        read.append(found)
    sizes = {"n_train": n_train, "n_test": n_test, "passes": passes}
    return {"seeds": list(seeds), **sizes, "read": read}, None
