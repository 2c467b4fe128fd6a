"""The checks of the project on translation, second half: kinds of mistakes, and alignment."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect_plain, numbers

WHERE = "chapters/project_translation"

# project-judge ----------------------------------------------------------------------------------


def judge(hypothesis: str, reference: str, stems: dict[str, str]) -> str:
    """Say what is wrong with a translation: the first of these that fits.

    "right": the same words. "form": as many words, at each place one of the same stem. "order": the
    same stems, each as often, at other places. "words": anything else.

    hypothesis: what was written, words parted by spaces. reference: what is right. stems: the stem
    of each word; a word that is not there is its own stem.
    Returns: one of the four.
    """
    ...


STEMS = {"turali": "tura", "tura": "tura", "brela": "brel", "brelo": "brel", "zore": "zor",
         "zoren": "zor"}
CASES = (
    ("tura brela zore", "tura brela zore", "right",
     {"": "These are the same words."}),
    ("tura brelo zoren", "tura brela zore", "form",
     {"words": "Stems were not looked up: `brelo` and `brela` are forms of one word.",
      "order": "At each place stands a form of the right word, so the first kind that fits is "
               "\"form\".",
      "": "At each place stands a form of the right word."}),
    ("brela tura zore", "tura brela zore", "order",
     {"form": "Two words stand at other places. \"form\" compares place by place.",
      "right": "Two words stand at other places. The order counts.",
      "": "The words are there, at other places."}),
    ("brelo tura zore", "tura brela zore", "order",
     {"words": "One word stands elsewhere, in another form: \"order\" compares stems, too.",
      "": "The stems are there, at other places."}),
    ("tura brela", "tura brela zore", "words",
     {"form": "A word is missing at the end, and `zip` did not notice. Compare the lengths.",
      "": "A word is missing."}),
    ("tura brela zore zore", "tura brela zore", "words",
     {"form": "There is a word too many at the end, and `zip` did not notice. Compare the lengths.",
      "order": "One word stands there twice. Count how often, not only which.",
      "": "There is a word too many."}),
    ("zore tura brela tura", "tura brela zore zore", "words",
     {"order": "The same stems, but not each as often. Count them: a set does not.",
      "": "The stems are not the same."}),
    ("ga tura", "ga xan", "words",
     {"form": "`xan` is no form of `tura`: a word that is not in the dictionary is its own stem.",
      "": "One word is another."}),
    ("tura ga", "ga tura", "order",
     {"words": "`ga` is not among the stems, so it is its own stem, and all words are there.",
      "": "The words are there, at other places."}),
    ("", "tura", "words", {"": "Nothing was written."}),
)


def _judge_kinds(judge: Any) -> None:
    """Each kind of mistake has its name, and the first that fits is given."""
    for hypothesis, reference, wanted, slips in CASES:
        given = {"hypothesis": hypothesis, "reference": reference, "stems": STEMS}
        got = judge(hypothesis, reference, dict(STEMS))
        if got == wanted:
            continue
        if not isinstance(got, str):
            words = f"The result is a {type(got).__name__}. Return a string."
        elif got not in ("right", "form", "order", "words"):
            words = f"{got!r} is none of the four: right, form, order, words."
        else:
            words = slips.get(got, slips[""])
        raise Wrong(words, given=given, got=got, wanted=wanted)


def _judge_spaces(judge: Any) -> None:
    """Spaces between words do not count."""
    got = judge(" tura  zore ", "tura zore", STEMS)
    if got != "right":
        raise Wrong("Two spaces or one make no difference: compare words, not texts.", got=got,
                    wanted="right")


JUDGE = Exercise(
    name="project-judge",
    title="What kind of mistake?",
    level=2,
    section=f'{WHERE}, section "Step 4: translate, and judge"',
    stub=judge,
    properties=(_judge_kinds, _judge_spaces),
    hints=(
        "Cut both into words and make a list of stems of each. Then ask four questions in turn.",
        "`stems.get(word, word)` gives the word itself where there is no stem.",
        "Two lists are equal place by place and in length; `sorted(a) == sorted(b)` leaves the "
        "places out.",
    ),
)

# project-alignment ------------------------------------------------------------------------------


def alignment_share(weights: torch.Tensor, places: list[int]) -> float:
    """Say how often attention is largest where the word comes from.

    Row t of the weights was used to write word t of the target; the last row wrote eos, which
    comes from nowhere and is left out. Of the columns all count, that of the source's eos, too.

    weights: (N, M), from each step of the decoder to each token of the source. places: N − 1
    columns, where word t comes from.
    Returns: the share of the N − 1 words whose largest weight is at that place.
    """
    ...


def _looked(weights: torch.Tensor) -> list[int]:
    return weights.argmax(dim=1).tolist()


def _weights() -> tuple[torch.Tensor, list[int]]:
    places = [2, 0, 3, 1, 0, 2, 4]
    found = [2, 0, 3, 5, 0, 2, 5, 4]
    scores = numbers(8, 6, seed=391).clamp(-1, 1)
    scores[torch.arange(8), torch.tensor(found)] = torch.linspace(1.4, 2.8, 8, dtype=torch.float64)
    return scores.softmax(dim=1).to(torch.float32), places


def _alignment_values(share: Any) -> None:
    """The largest weight of each row is compared with the place of its word."""
    weights, places = _weights()
    n = len(places)
    looked = _looked(weights)
    hits = sum(a == b for a, b in zip(looked, places, strict=False))
    mass = weights[torch.arange(n), torch.tensor(places)].sum().item()
    shifted = sum(a == b for a, b in zip(looked[1:], places, strict=True))
    inner = sum(a == b for a, b in zip(_looked(weights[:, :-1]), places, strict=False))
    columns = weights[:-1].argmax(dim=0).tolist()
    turned = sum(columns[place] == t for t, place in enumerate(places))
    expect_plain(
        share, {"weights": weights, "places": places}, hits / n,
        "The share of the words whose largest weight is at their place differs.",
        mistakes={
            "This is how many, not which share: divide by the number of words.": float(hits),
            "The row that wrote eos was counted as a word. There are N − 1 words.": hits / (n + 1),
            "These are the weights at the right places, not how often they are the largest.":
                mass / n,
            "Row t + 1 was taken for word t. Row t read the word before, and wrote word t.":
                shifted / n,
            "The column of the source's eos was left out. A look at it is a look elsewhere.":
                inner / n,
            "The largest of each column was looked for. Each row is a word of the target.":
                turned / n,
            "This is the share of the words where the largest weight is elsewhere.": 1 - hits / n,
            "The result is in per cent. It should be from 0 to 1.": 100 * hits / n,
            "The smallest weight was looked for.":
                sum(a == b for a, b in zip(_looked(-weights), places, strict=False)) / n,
            "A weight above one half was wanted. The largest may be smaller.":
                sum(weights[t, p].item() > 0.5 for t, p in enumerate(places)) / n,
        },
    )


def _alignment_ends(share: Any) -> None:
    """All right, and none."""
    weights = torch.eye(4)[[1, 0, 2, 3]]
    for places, wanted in (([1, 0, 2], 1.0), ([0, 2, 1], 0.0)):
        expect_plain(share, {"weights": weights, "places": places}, wanted,
                     f"Here the share is {wanted}.")


ALIGNMENT = Exercise(
    name="project-alignment",
    title="Does attention look where the word comes from?",
    level=1,
    section=f'{WHERE}, section "Step 5: where does the decoder look?"',
    stub=alignment_share,
    properties=(_alignment_values, _alignment_ends),
    hints=(
        "One column for each row, then a comparison with `places`.",
        "`weights[:-1].argmax(dim=1)` leaves the last row out.",
        "`(looked == torch.tensor(places)).float().mean().item()`.",
    ),
)

EXERCISES = (JUDGE, ALIGNMENT)
