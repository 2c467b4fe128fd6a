"""The exercises of chapter 18 on fine-tuning: what is learned from a text, and merged adapters."""

from typing import Any

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

EXERCISES = (MENDED_BATCH, MERGE_ADAPTER)
