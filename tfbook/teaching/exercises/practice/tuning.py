"""The exercises of chapter 18 on fine-tuning: a batch, merged adapters, sentences of one's own."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_plain, numbers

# mended-batch -----------------------------------------------------------------------------------


def mended_batch(
    question: list[int], answer: list[int], pad_to: int
) -> tuple[list[int], list[int]]:
    """Make inputs and targets of one text, of the same length.

    Row t reads token t and is asked for token t + 1. Only tokens of the answer are asked
    for; other targets are -100. Inputs are filled up with 0 to `pad_to` places.

    question: ids. answer: ids. pad_to: at least len(question) + len(answer) - 1.
    Returns: two lists of ids, both `pad_to` long.
    """
    ids = question + answer
    inputs = ids + [0] * (pad_to - len(ids))
    targets = [-100] * len(question) + answer
    targets = targets + [0] * (pad_to - len(targets))
    return inputs, targets


def _made(
    question: list[int], answer: list[int], pad_to: int, slip: str = ""
) -> tuple[list[int], list[int]]:
    ids = question + answer
    shift = 0 if slip in ("both", "same") else 1
    inputs = ids[: len(ids) - shift]
    asked = [-100] * (len(question) - shift) + answer
    if slip == "question":
        asked = ids[1:]
    if slip == "late":  # the first token of the answer is not asked for
        asked = [-100] * len(question) + answer[1:]
    fill = 0 if slip in ("both", "padding") else -100
    return (
        inputs + [0] * (pad_to - len(inputs)),
        asked + [fill] * (pad_to - len(asked)),
    )


_MADE = {
    "both": "Nothing is mended yet: each row is asked for the token that it reads, and padding is "
            "asked for token 0.",
    "same": "Padding is right now. But each row is still asked for the token that it reads: the "
            "model would learn to copy.",
    "padding": "The targets have moved, which is right. But padding is still asked for token 0, "
               "which is a real token: use -100 there.",
    "question": "The question is asked for as well. Only tokens of the answer are to be learned.",
    "late": "The row that reads the last token of the question is asked for nothing. It is the one "
            "that has to predict the first token of the answer.",
}  # fmt: skip


def _batch_check(make: Any, question: list[int], answer: list[int], pad_to: int) -> None:
    given = {"question": question, "answer": answer, "pad_to": pad_to}
    wanted = _made(question, answer, pad_to)
    slips = {words: _made(question, answer, pad_to, slip) for slip, words in _MADE.items()}
    got = make(list(question), list(answer), pad_to)
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise Wrong("Return two lists, inputs and targets.", given=given, got=got)
    for name, row in zip(("The inputs", "The targets"), got, strict=True):
        if not isinstance(row, list):
            raise Wrong(f"{name} are no list.", given=given, got=row)
        if len(row) not in (pad_to, pad_to + 1):
            raise Wrong(f"{name} have {len(row)} places, and should have {pad_to}.", given=given,
                        got=row)  # fmt: skip
    expect_plain(
        lambda **_: tuple(map(list, got)), {}, wanted,
        "Inputs are all tokens but the last, targets all but the first, and -100 where nothing of "
        "the answer is asked.",
        mistakes={words: slip for words, slip in slips.items() if slip != wanted},
    )  # fmt: skip


def _batch_padded(make: Any) -> None:
    """A short text, filled up."""
    _batch_check(make, [5, 1, 7, 12], [3, 4, 11], 9)


def _batch_full(make: Any) -> None:
    """Other lengths."""
    _batch_check(make, [2, 6], [8, 9, 4, 11], 8)
    _batch_check(make, [3, 1, 4, 1, 5], [9, 11], 10)


MENDED_BATCH = Exercise(
    name="mended-batch",
    title="A batch with two faults",
    level=1,
    section='chapters/18_practice, section "A checklist that finds the fault"',
    stub=mended_batch,
    properties=(_batch_padded, _batch_full),
    hints=(
        "Run it by hand on the question [1, 2] with the answer [3, 4]. What does the place that "
        "reads 2 have to predict, and what does your target say?",
        "Which target do the places behind the text get, and does the loss count it?",
        "Of n tokens n - 1 are read, `ids[:-1]`; the last one is only asked for.",
    ),
    broken=True,
)

# merge-adapter ----------------------------------------------------------------------------------


def merge_adapter(
    weight: torch.Tensor, adapters: list[tuple[torch.Tensor, torch.Tensor, float, float]]
) -> torch.Tensor:
    """Return one matrix that does what the frozen one and all its adapters do.

    weight: (d_out, d_in). adapters: a list of (a, b, alpha, share), with a (r, d_in),
    b (d_out, r), alpha a number, and share the weight of this adapter in the sum. Ranks
    may differ. The given weight must not change.
    Returns: (d_out, d_in).
    """
    ...


def _merged(weight: torch.Tensor, adapters: list, slip: str = "") -> torch.Tensor:
    found = weight.clone()
    for a, b, alpha, share in adapters:
        rank = 1 if slip == "rank" else len(adapters[0][0]) if slip == "first" else len(a)
        found = found + (1 if slip == "share" else share) * alpha / rank * (b @ a)
    return found - weight if slip == "bare" else found


_MERGED = {
    "rank": "The update is not divided by the rank: its factor is alpha / r.",
    "first": "Every adapter has its own rank: divide by the one of this adapter.",
    "share": "The shares are not used: each update counts with the weight of its adapter.",
    "bare": "The frozen matrix is missing from the sum.",
}


def _merge_check(make: Any, ranks: tuple[int, ...], d_out: int, d_in: int, seed: int) -> None:
    weight = numbers(d_out, d_in, seed=seed)
    adapters = [
        (numbers(r, d_in, seed=seed + i), numbers(d_out, r, seed=seed + 20 + i), 2.0 + i,
         0.3 * (i + 1))
        for i, r in enumerate(ranks, 1)
    ]  # fmt: skip
    own, wanted = weight.clone(), _merged(weight, adapters)
    slips = {words: _merged(weight, adapters, slip) for slip, words in _MERGED.items()}
    mistakes = {words: x for words, x in slips.items() if not torch.allclose(x, wanted)}
    given = {"weight": weight, "ranks": ranks}
    got = make(own, adapters)
    expect(got, wanted, "It should be W plus the sum of share · alpha / r · B A.",
           mistakes=mistakes, given=given)  # fmt: skip
    if not torch.equal(own, weight):
        raise Wrong("The given weight has changed: work on a copy.", given=given, got=own)


def _merge_one(make: Any) -> None:
    """One adapter."""
    _merge_check(make, (2,), 5, 7, 1801)


def _merge_several(make: Any) -> None:
    """Several adapters with ranks of their own, which leave the weight as it is."""
    _merge_check(make, (2, 3), 5, 7, 1811)
    _merge_check(make, (1, 4, 2), 7, 5, 1821)


MERGE_ADAPTER = Exercise(
    name="merge-adapter",
    title="Merge it",
    level=1,
    section='chapters/18_practice, section "Low-rank adapters"',
    stub=merge_adapter,
    properties=(_merge_one, _merge_several),
    hints=(
        "Put x into (18.1) and collect what stands before it. In which order must B and A stand, "
        "so that the product has the shape of W?",
        "The rank of an adapter is the number of rows of its a.",
        "`+=` on the given tensor changes it for whoever handed it to you.",
    ),
)

# own-classifier ---------------------------------------------------------------------------------


def own_classifier(
    lines: list[str],
    make: Callable,
    fit: Callable,
    hits: Callable,
    rates: tuple[float, ...],
    seed: int = 0,
) -> tuple[float, float]:
    """Fine-tune on labelled lines, and say how good the classifier is on others.

    lines: texts "LABEL<tab>SENTENCE", LABEL a whole number. Of sentences that differ only
    in capitals the first stays. What is left comes into the order of
    np.random.default_rng(seed).permutation(n): its first n // 5 are for the test, the
    next n // 5 for validation, the others are trained on.
    make: make() is a new model. fit: fit(model, examples, rate) trains and returns it;
    examples are pairs (sentence, label). hits: hits(model, examples) tells for each
    whether it is answered correctly. rates: to choose from, by validation; of equals
    the first. seed: of the order.
    Returns: the rate, and the share of test examples that its model answers correctly.
    """
    ...


class _Planted:
    """A classifier that counts words, and notes what it is used for.

    The word that was counted furthest to one side decides. At a middle rate it counts the words of
    all examples, at a low one of the first alone; at a high one it learns whole sentences by heart,
    and answers 0 to others.
    """

    def __init__(self) -> None:
        self.rates, self.learned, self.words, self.texts = [], [], {}, {}

    def fit(self, examples: Sequence, rate: float) -> None:
        self.rates.append(rate)
        self.learned = list(examples)
        self.texts = dict(examples) if rate > 0.5 else {}
        for text, label in self.learned[: 1 if rate < 0.05 else None]:
            for word in text.lower().split():
                self.words[word] = self.words.get(word, 0) + (1 if label else -1)

    def says(self, text: str) -> int:
        if self.rates and self.rates[-1] > 0.5:
            return self.texts.get(text, 0)
        return int(max((self.words.get(w, 0) for w in text.lower().split()), key=abs) > 0)


def _planted_lines(n: int, seed: int) -> list[str]:
    """Return labelled lines, of which a fifth come again in other capitals, some mislabelled."""
    rng, lines = np.random.default_rng(seed), []
    for i in range(n):
        label = int(rng.random() < 0.5)
        word = ("dreadful", "splendid")[label]
        said = 1 - label if i % 9 == 4 else label
        text = f"A {word} film number {i} , {rng.integers(100)} ."
        lines.append(f"{said}\t{text}")
        if i % 5 == 0:
            lines.insert(int(rng.integers(len(lines))) + 1, f"{said}\t{text.upper()}")
    return lines


def _divided(lines: Sequence[str], seed: int) -> tuple[list, list, list]:
    """Return the examples of the three sets: train, validation, test."""
    kept: dict[str, tuple[str, int]] = {}
    for line in lines:
        label, text = line.split("\t")
        kept.setdefault(text.lower(), (text, int(label)))
    found = list(kept.values())
    order = np.random.default_rng(seed).permutation(len(found))
    each, mixed = len(found) // 5, [found[i] for i in order]
    return mixed[2 * each :], mixed[each : 2 * each], mixed[:each]


def _own_check(answer: Any, n: int, rates: tuple[float, ...], seed: int) -> None:
    lines = _planted_lines(n, 1900 + seed)
    train, valid, test = _divided(lines, seed)
    made, asked = [], []

    def make() -> _Planted:
        made.append(_Planted())
        return made[-1]

    def fit(model: _Planted, examples: Sequence, rate: float) -> _Planted:
        model.fit(examples, rate)
        return model

    def hits(model: _Planted, examples: Sequence) -> np.ndarray:
        asked.append((model, list(examples)))
        return np.array([model.says(text) == label for text, label in examples])

    given = {"lines": lines[:3], "rates": rates, "seed": seed}
    got = answer(list(lines), make, fit, hits, rates, seed)

    def wrong(message: str) -> Wrong:
        return Wrong(message, given=given, got=got)

    if not isinstance(got, tuple) or len(got) != 2:
        raise wrong("Return two numbers: the rate, and the share of test examples.")
    if any(len(model.rates) > 1 for model in made):
        raise wrong("A model was trained at two rates, one after the other: make() a new one for "
                    "each rate.")  # fmt: skip
    learned = {text.lower() for model in made for text, _ in model.learned}
    tests = {text.lower() for text, _ in test}
    again = [text.lower() for model in made[:1] for text, _ in model.learned]
    if len(set(again)) < len(again):
        raise wrong("A sentence that comes again in other capitals is still there: drop it before "
                    "you divide, or a copy of a test sentence is learned.")  # fmt: skip
    if not all(isinstance(label, int) for model in made for _, label in model.learned):
        raise wrong("Labels should be whole numbers: int(label).")
    if learned & tests:
        raise wrong("Test sentences were trained on: the first fifth of the order is for the test.")
    for model in made:
        if model.learned != train:
            raise wrong("The sentences that are trained on are not the ones wanted: all that come "
                        "after the first two fifths of the order, in this order.")  # fmt: skip
    looks = [model for model, examples in asked if tests & {text.lower() for text, _ in examples}]
    if len(looks) > 1:
        raise wrong(f"The test sentences were asked {len(looks)} times: choose the rate by the "
                    "validation sentences, and test the chosen model once.")  # fmt: skip
    shares = {}
    for rate in rates:
        model = fit(_Planted(), train, rate)
        shares[rate] = {
            name: float(np.mean([model.says(text) == label for text, label in part]))
            for name, part in (("train", train), ("valid", valid), ("test", test))
        }
    best, learner = (max(rates, key=lambda r: shares[r][part]) for part in ("valid", "train"))
    rate, share = got
    if rate == learner != best:
        raise wrong("The rate was chosen by the sentences that were trained on, where learning by "
                    "heart looks best: choose by the validation sentences.")  # fmt: skip
    if rate != best:
        raise wrong(f"The rate should be {best:g}, at which the validation sentences go best.")
    if not isinstance(share, float) or abs(share - shares[best]["test"]) > 1e-9:
        raise wrong("The second number should be the share of test examples that the chosen model "
                    f"answers correctly, a float: {shares[best]['test']:.3f}.")  # fmt: skip


def _own_usual(answer: Any) -> None:
    """A planted set with copies, and three rates."""
    _own_check(answer, 60, (0.01, 0.1, 1.0), 0)


def _own_other(answer: Any) -> None:
    """Another set in another order."""
    _own_check(answer, 83, (1.0, 0.1, 0.01), 3)


OWN_CLASSIFIER = Exercise(
    name="own-classifier",
    title="Your own labelled sentences",
    level=2,
    section='chapters/18_practice, section "Low-rank adapters"',
    stub=own_classifier,
    properties=(_own_usual, _own_other),
    hints=(
        "A dictionary from the sentence in small letters to the pair keeps each sentence once. "
        "`setdefault` leaves the first one.",
        "The lines of this section train one model at one rate, and test it. What has to be made "
        "anew for each rate?",
        "`max` over the rates takes a `key`: the mean of which hits? The test set comes after it.",
    ),
)

EXERCISES = (MENDED_BATCH, MERGE_ADAPTER, OWN_CLASSIFIER)
