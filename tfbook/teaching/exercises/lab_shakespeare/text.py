"""Steps 1 to 4 of the Shakespeare lab: the text in three parts, its letters, counts and batches."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    Wrong,
    expect,
    expect_plain,
    expect_tensor,
    parts,
)

TEXT = "the cat sat on the mat; the rat ate."
LETTERS = "To be,\nor not to be?"

# lab-split --------------------------------------------------------------------------------------


def split(text: str, valid: int, test: int) -> tuple[str, str, str]:
    """Cut a text into a part to train on, one to choose with and one to report.

    The parts follow one another in the order of the text. Of n characters, the first
    n (100 - valid - test) // 100 are for training, and the test part begins at
    n (100 - test) // 100.

    text: n characters. valid: per cent of the second part. test: per cent of the third.
    Returns: the three parts, for training, validation and test.
    """
    ...


def _split(text: str, valid: int, test: int) -> tuple[str, str, str]:
    first, second = len(text) * (100 - valid - test) // 100, len(text) * (100 - test) // 100
    return text[:first], text[first:second], text[second:]


def _split_parts(split: Any) -> None:
    """The parts lie one behind the other, with the shares that were asked for."""
    n, a, b = len(TEXT), len(TEXT) * 70 // 100, len(TEXT) * 90 // 100
    train, valid, test = _split(TEXT, 20, 10)
    expect_plain(
        split, {"text": TEXT, "valid": 20, "test": 10}, (train, valid, test),
        "Cut twice: at n (100 - valid - test) // 100 and at n (100 - test) // 100.",
        mistakes={
            "The validation part is taken from the text for training: the model would be judged "
            "on what it has learned by heart.": (TEXT[:b], valid, test),
            "The validation part reaches to the end of the text, so it holds the test part. What "
            "is chosen with the one must not be reported as the other.": (train, TEXT[a:], test),
            "Validation and test have each other's shares.": _split(TEXT, 10, 20),
            "The parts are in another order: training, validation, test.": (train, test, valid),
            "The test part comes from the front of the text. Keep the order of the text.":
                (TEXT[n - a :], TEXT[n - b : n - a], TEXT[: n - b]),
            "One character is missing at each cut.": (train, valid[1:], test[1:]),
            "The character at each cut stands in two parts.":
                (train, TEXT[a - 1 : b], TEXT[b - 1 :]),
        },
    )


def _split_whole(split: Any) -> None:
    """Laid together the parts are the text, whatever its length."""
    for n in (0, 1, 9, 19, 29):
        expect_plain(
            split, {"text": TEXT[:n], "valid": 10, "test": 20}, _split(TEXT[:n], 10, 20),
            "Round both cuts down, and let each part begin where the last one ends.",
        )


def _split_empty(split: Any) -> None:
    """A share of 0 gives an empty part."""
    for valid, test in ((0, 20), (20, 0), (0, 0)):
        expect_plain(
            split, {"text": TEXT, "valid": valid, "test": test}, _split(TEXT, valid, test),
            "A share of 0 per cent is an empty part. `text[-0:]` is the whole text: count from "
            "the front.",
        )


LAB_SPLIT = Exercise(
    name="lab-split",
    title="Three parts of one text",
    level=1,
    section='chapters/lab_shakespeare, section "Step 1: three parts of the text"',
    stub=split,
    properties=(_split_parts, _split_whole, _split_empty),
    hints=(
        "Two cuts make three parts. At which characters are they?",
        "`//` divides whole numbers and rounds down. A slice `text[a:b]` begins at a and ends "
        "before b.",
        "`first = len(text) * (100 - valid - test) // 100`, `second = len(text) * (100 - test) "
        "// 100`; return `text[:first], text[first:second], text[second:]`.",
    ),
)

# lab-vocabulary ---------------------------------------------------------------------------------


def vocabulary(
    text: str,
) -> tuple[Callable[[str], torch.Tensor], Callable[[torch.Tensor], str]]:
    """Make the two ways between characters and ids.

    The id of a character is its place, from 0, among the distinct characters of the text in the
    order of `sorted`.

    text: what the characters are taken from.
    Returns: encode, from a string of N characters to ids (N,), int64, which raises an error for a
    character that the text does not hold; and decode, from ids to the string.
    """
    ...


def _ids(text: str, order: Any) -> torch.Tensor:
    places = {character: i for i, character in enumerate(order)}
    return torch.tensor([places[character] for character in text])


def _use(name: str, function: Any, argument: Any) -> Any:
    """Call one of the two functions that came back, and say in words how it failed."""
    if not callable(function):
        raise Wrong(f"`{name}` is a {type(function).__name__}. Return two functions.")
    try:
        return function(argument)
    except Exception as error:
        kind = f"{type(error).__name__}: {error}".rstrip(": ")
        raise Wrong(f"`{name}` raised {kind}.", given={name: argument}) from error


def _vocabulary_ids(vocabulary: Any) -> None:
    """Ids are places among the sorted characters."""
    encode, _ = parts(vocabulary(LETTERS), "encode", "decode")
    order = sorted(set(LETTERS))
    counts = Counter(LETTERS)
    expect(
        _use("encode", encode, LETTERS),
        _ids(LETTERS, order),
        "Number the distinct characters in the order of `sorted`, from 0.",
        what="`encode(text)`",
        given={"text": LETTERS},
        mistakes={
            "The ids begin with 1.": _ids(LETTERS, order) + 1,
            "The characters are numbered as they first appear. Sort them: otherwise another text "
            "with the same characters has other ids.": _ids(LETTERS, dict.fromkeys(LETTERS)),
            "The characters are numbered by how often they occur. Sort them as characters.":
                _ids(LETTERS, sorted(order, key=lambda c: -counts[c])),
            "These are code points, up to a million. Number the characters that occur, from 0.":
                torch.tensor([ord(c) for c in LETTERS]),
            "Each character got a new id at each place. The same character has the same id.":
                torch.arange(len(LETTERS)),
            "Capitals were turned into small letters.":
                _ids(LETTERS.lower(), sorted(set(LETTERS.lower()))),
        },
    )


def _vocabulary_back(vocabulary: Any) -> None:
    """Decoding brings back every character, line ends and capitals too."""
    encode, decode = parts(vocabulary(LETTERS), "encode", "decode")
    for text in (LETTERS, "no", ",\n?", "TTT"):
        ids = _use("encode", encode, text)
        expect_tensor(ids, (len(text),), torch.int64, what="`encode(text)`")
        got = _use("decode", decode, ids)
        if got != text:
            raise Wrong(
                "`decode(encode(text))` is not the text.", given={"text": text}, got=got,
                wanted=text,
            )


def _vocabulary_unknown(vocabulary: Any) -> None:
    """A character that the text does not hold is refused."""
    encode, _ = parts(vocabulary(LETTERS), "encode", "decode")
    try:
        got = encode("to bé")
    except Exception:
        return
    raise Wrong(
        "`encode` let a character pass that the text does not hold. Dropped or replaced in "
        "silence, it would make every score too good; let it raise an error.",
        given={"text": LETTERS, "encode": "to bé"}, got=got,
    )


LAB_VOCABULARY = Exercise(
    name="lab-vocabulary",
    title="Characters to ids and back",
    level=1,
    section='chapters/lab_shakespeare, section "Step 2: characters and ids"',
    stub=vocabulary,
    properties=(_vocabulary_ids, _vocabulary_back, _vocabulary_unknown),
    hints=(
        "`set` finds the distinct characters, `sorted` puts them in order. What finds the place "
        "of a character, and what the character at a place?",
        "A dictionary from character to place serves `encode`, the sorted list serves `decode`. "
        "A function that is defined inside another one sees its variables.",
        "`characters = sorted(set(text))`, `places = {c: i for i, c in enumerate(characters)}`; "
        "`encode` returns `torch.tensor([places[c] for c in s], dtype=torch.int64)`, `decode` "
        "returns `''.join(characters[i] for i in ids.tolist())`.",
    ),
)

# lab-ngram --------------------------------------------------------------------------------------


def ngram_bits(train: str, held: str, n: int, v: int, alpha: float) -> float:
    """Measure how well counts of n characters in a row predict another text.

    p(c after h) = (count(h c) + alpha) / (count(h) + alpha v), where h is the n - 1 characters
    before c, count(h c) is how often h is followed by c in `train`, and count(h) by anything.
    Every character of `held` that has n - 1 characters before it is predicted.

    train: what is counted. held: what is predicted. n: at least 1. v: size of the vocabulary.
    alpha: what is added to each count, above 0.
    Returns: the mean of -log2 p, in bits per character, a float.
    """
    ...


def _ngram_chances(train: str, held: str, n: int, v: int, alpha: float) -> list[float]:
    both = Counter(train[i : i + n] for i in range(len(train) - n + 1))
    before: Counter[str] = Counter()
    for piece, count in both.items():
        before[piece[:-1]] += count
    pieces = [held[i : i + n] for i in range(len(held) - n + 1)]
    return [(both[p] + alpha) / (before[p[:-1]] + alpha * v) for p in pieces]


def _bits(chances: list[float]) -> float:
    return -sum(map(math.log2, chances)) / len(chances)


def _ngram_values(measure: Any) -> None:
    """The mean surprise of the held-out text, in bits."""
    case = {"train": "abracadabra", "held": "bracada", "n": 2, "v": 7, "alpha": 0.25}
    chances = _ngram_chances(**case)
    right = _bits(chances)
    train, held = case["train"], case["held"]
    unsmoothed = Counter(train[i : i + 2] for i in range(len(train) - 1))
    before = Counter(train[:-1])
    pairs = [held[i : i + 2] for i in range(len(held) - 1)]
    after = Counter(train)
    around = _ngram_chances(train, held[-1] + held, 2, 7, 0.25)
    expect_plain(
        measure, case, right, "Average -log2 p over the characters that have a history.",
        mistakes={
            "These are nats: the logarithm to base 2 gives bits.": right * math.log(2),
            "The logarithm to base 10 was taken. Bits take base 2.": right * math.log10(2),
            "The sign is reversed: -log2 p is positive.": -right,
            "This is the sum. Divide by how many characters were predicted.":
                right * len(chances),
            "The sum was divided by the length of the text. The first n - 1 characters have no "
            "history and are not predicted.": right * len(chances) / len(held),
            "This is the perplexity. The bits are its logarithm.": 2**right,
            "The first character was predicted from the last one: an index of -1 counts from the "
            "end. It has no history and is not predicted.": _bits(around),
            "The probabilities were averaged before the logarithm. Take the logarithm of each.":
                -math.log2(sum(chances) / len(chances)),
            "The counts are those of the held-out text. Count in `train`, predict `held`.":
                _bits(_ngram_chances(held, held, 2, 7, 0.25)),
            "The training text was predicted. Count in `train`, predict `held`.":
                _bits(_ngram_chances(train, train, 2, 7, 0.25)),
            "Below the line alpha was added once. It was added to v counts above it: add alpha v.":
                _bits([(unsmoothed[p] + 0.25) / (before[p[0]] + 0.25) for p in pairs]),
            "Alpha is missing below the line: the probabilities sum to more than 1.":
                _bits([(unsmoothed[p] + 0.25) / max(before[p[0]], 0.25) for p in pairs]),
            "The counts were divided by how often the second character occurs. The condition is "
            "what stands before.":
                _bits([(unsmoothed[p] + 0.25) / (after[p[1]] + 1.75) for p in pairs]),
            "The last character of the history at the end of the training text was counted, but "
            "nothing follows it there.":
                _bits([(unsmoothed[p] + 0.25) / (after[p[0]] + 1.75) for p in pairs]),
        },
    )


def _ngram_sums(measure: Any) -> None:
    """The probabilities of all characters after one history sum to 1."""
    for history in ("", "a", "at", "zq"):
        n = len(history) + 1
        letters = "abcdefghijklmnopqrstuvwxyz ;."
        chances = [2 ** -measure(TEXT, history + c, n, 29, 0.1) for c in letters]
        if not math.isclose(total := sum(chances), 1, rel_tol=1e-6):
            raise Wrong(
                f"The probabilities of the 29 characters of an alphabet after {history!r} sum to "
                f"{total:.4g}. The counts below the line are those above it, added up.",
                given={"train": TEXT, "n": n, "v": 29, "alpha": 0.1}, got=total, wanted=1.0,
            )


def _ngram_unseen(measure: Any) -> None:
    """After a history that never occurred, all characters are equally likely."""
    case = {"train": "abcabc", "held": "xyz", "n": 3, "v": 8, "alpha": 0.01}
    expect_plain(measure, case, 3.0, "Nothing was counted after 'xy': p is alpha / (alpha v).")


def _ngram_orders(measure: Any) -> None:
    """Any n works, 1 among them, which looks at no history."""
    for n in (1, 3, 4):
        case = {"train": TEXT, "held": "a cat ate the rat", "n": n, "v": 29, "alpha": 0.2}
        expect_plain(
            measure, case, _bits(_ngram_chances(**case)),
            f"With n = {n} the history has {n - 1} characters.",
        )


LAB_NGRAM = Exercise(
    name="lab-ngram",
    title="Count n characters in a row",
    level=2,
    section='chapters/lab_shakespeare, section "Step 3: what counting achieves"',
    stub=ngram_bits,
    properties=(_ngram_values, _ngram_sums, _ngram_unseen, _ngram_orders),
    hints=(
        "You need two tables of counts, both from `train`: of n characters in a row, and of the "
        "n - 1 in front that something follows.",
        "`Counter(train[i : i + n] for i in range(len(train) - n + 1))` counts the pieces; over "
        "the same i, `train[i : i + n - 1]` counts the histories. A Counter gives 0 for what it "
        "has not seen.",
        "For each i in `range(len(held) - n + 1)`: `p = (both[held[i:i+n]] + alpha) / "
        "(before[held[i:i+n-1]] + alpha * v)`; return the mean of `-math.log2(p)`.",
    ),
)

# lab-batch --------------------------------------------------------------------------------------


def batch(
    ids: torch.Tensor, length: int, batch_size: int, generator: torch.Generator
) -> torch.Tensor:
    """Draw windows of a text: what a model reads, and one character more, the last target.

    Each window begins at random, all places that leave room for it being equally likely, and reads
    on without a gap.

    ids: (T,), int64, the text. length: N, how many characters of a window are read. batch_size: B.
    generator: where chance comes from.
    Returns: (B, N + 1), int64.
    """
    ...


def _rows(got: Any) -> torch.Tensor:
    if isinstance(got, tuple | list):
        raise Wrong(
            "Return one tensor, (B, N + 1). What is read and what is to be predicted are both in "
            "it; the loss of step 6 takes them apart."
        )
    return got


def _batch_windows(draw: Any) -> None:
    """A row is a window of the text, with the target of its last character."""
    ids = torch.arange(100, 150)
    rows = _rows(draw(ids, 6, 4, torch.Generator().manual_seed(3)))
    given = {"ids": "100, 101, …, 149", "length": 6, "batch_size": 4}
    if getattr(rows, "shape", None) == (4, 6):
        raise Wrong(
            "The rows have N characters. The last one needs a target, too: N + 1.", given=given,
            got=rows,
        )
    try:
        expect_tensor(rows, (4, 7), torch.int64, what="The batch")
    except Wrong as wrong:
        wrong.given, wrong.got = given, rows
        raise
    stretch = rows[:, :1] + torch.arange(7)
    slips = [
        (torch.equal(rows, rows[:, :1] + torch.arange(6).repeat(2)[:7]),
         "The last character of a row is its first one again. It is the next one of the text."),
        (torch.equal(rows, rows[:, :1] + torch.arange(7).clamp(max=5)),
         "The last character of a row stands there twice. It is the next one of the text."),
        (torch.equal(rows, rows[:, :1] - torch.arange(7)), "The rows run backwards."),
        (not torch.equal(rows, stretch),
         "The characters of a row do not follow one another in the text."),
    ]
    for is_so, message in slips:
        if is_so:
            raise Wrong(message, given=given, got=rows, wanted=stretch)


def _batch_places(draw: Any) -> None:
    """Every place that leaves room is drawn, the first and the last too."""
    ids, length = torch.arange(9), 4
    rows = _rows(draw(ids, length, 400, torch.Generator().manual_seed(5)))
    found = rows[:, 0].bincount(minlength=5)
    given = {"ids": ids, "length": length, "batch_size": 400}
    if len(found) > 5:
        raise Wrong("A row begins where no room is left for its last target.", given=given)
    for place, words in ((4, "last"), (0, "first")):
        if not found[place]:
            raise Wrong(
                f"No row begins at the {words} place that leaves room for 4 characters and the "
                f"one behind them, {place}. There are T - N places.",
                given=given, got=sorted(set(rows[:, 0].tolist())), wanted=[0, 1, 2, 3, 4],
            )
    if found.min() < 40:
        raise Wrong(
            "Some places are drawn much more often than others, in 400 rows.", given=given,
            got=found.tolist(), wanted="about 80 each",
        )


def _batch_chance(draw: Any) -> None:
    """All chance comes from the generator."""
    ids = torch.arange(1000)

    def begins(generator: torch.Generator, seed: int) -> list[int]:
        torch.manual_seed(seed)
        return _rows(draw(ids, 3, 8, generator))[:, 0].tolist()

    first, again = (torch.Generator().manual_seed(7) for _ in range(2))
    one, other = begins(first, 1), begins(again, 2)
    if one != other:
        raise Wrong(
            "Two generators with the same seed gave different batches. Pass `generator=generator` "
            "to `torch.randint`: then a run can be repeated.", got=other, wanted=one,
        )
    if begins(first, 1) == one or begins(torch.Generator().manual_seed(8), 1) == one:
        raise Wrong(
            "Every batch is the same. Do not set a seed inside: the generator goes on from call to "
            "call.", got=one,
        )


LAB_BATCH = Exercise(
    name="lab-batch",
    title="Windows of the text",
    level=1,
    section='chapters/lab_shakespeare, section "Step 4: batches"',
    stub=batch,
    properties=(_batch_windows, _batch_places, _batch_chance),
    hints=(
        "N characters and the target of the last one take N + 1 places. Where may a window begin "
        "in a text of T?",
        "`torch.randint(high, (batch_size,), generator=generator)` draws from 0 to high - 1. "
        "A column of beginnings, `begins[:, None]`, plus a row of offsets gives a table of places, "
        "and `ids[places]` what stands there.",
        "The offsets are `torch.arange(length + 1)`. The last place at which a window may begin is "
        "T - N - 1; which `high` draws it, and none behind it?",
    ),
)

EXERCISES = (LAB_SPLIT, LAB_VOCABULARY, LAB_NGRAM, LAB_BATCH)
