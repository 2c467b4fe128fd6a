"""The exercises of chapter 13 on labels: of a text, of its tokens, and of an answer in it."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    Wrong,
    expect,
    expect_gradients,
    expect_plain,
    numbers,
    parts,
)

# mean-pooling -----------------------------------------------------------------------------------


def mean_pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Make one vector of each text: the mean over its tokens.

    Padding does not count, whatever numbers stand there, so that a text has the same vector in
    every batch. A text without tokens gets zeros.

    hidden: (B, N, D), the rows of B texts. mask: (B, N), boolean, True at tokens.
    Returns: (B, D), one vector for each text.
    """
    kept = hidden * mask[:, :, None]
    return kept.mean(dim=1)


def _pooled(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.stack([
        rows[real].sum(0) / max(int(real.sum()), 1)
        for rows, real in zip(hidden, mask, strict=True)
    ])


def _pool_values(pool: Any) -> None:
    """The vector of a text is the mean of its tokens' vectors."""
    hidden = numbers(2, 3, 2, seed=621)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    kept = hidden * mask[:, :, None]
    right = _pooled(hidden, mask)
    expect(
        pool(hidden, mask),
        right,
        "The second text has two tokens: its vector is half of their sum.",
        mistakes={
            "Padding was averaged in: the vector depends on how long the other texts of the batch "
            "are. Use `mask`.": hidden.mean(1),
            "Padding is left out of the sum, but counted: divide by the number of tokens.":
                kept.mean(1),
            "This is the sum. A long text would have a long vector: divide by its number of "
            "tokens.": kept.sum(1),
            "The mask is inverted: True marks a token.": _pooled(hidden, ~mask),
            "All texts were divided by the number of tokens of the whole batch. Each has its own.":
                (kept.sum(1) / 5, kept.sum(1) / 2.5),
            "This is the vector of the first token.": hidden[:, 0],
            "This is the vector of the last token.":
                (hidden[:, -1], torch.stack([hidden[0, 2], hidden[1, 1]])),
            "This is the largest number of each dimension. The mean is wanted.":
                (hidden.amax(1), hidden.masked_fill(~mask[:, :, None], -math.inf).amax(1)),
            "One vector came back for all texts. Each text has its own.":
                (kept.sum((0, 1)) / 5, right.mean(0)),
            "The mean ran over the dimensions. It runs over the tokens, axis 1.": hidden.mean(2),
            "The vectors were made 1 long. The mean alone is wanted.":
                right / right.norm(dim=1, keepdim=True),
        },
    )


def _pool_padding(pool: Any) -> None:
    """More padding, or other padding, changes nothing."""
    hidden, mask = numbers(2, 3, 2, seed=623), torch.tensor([[1, 1, 0], [0, 1, 1]]).bool()
    right = _pooled(hidden, mask)
    longer = torch.cat([hidden, torch.full((2, 2, 2), 7.0).double()], 1)
    wider = torch.cat([mask, torch.zeros(2, 2).bool()], 1)
    for more in (0.0, 99.0):
        other = hidden.masked_fill(~mask[:, :, None], more)
        expect(pool(other, mask), right, f"With {more:g} at padding the result differs.")
    expect(
        pool(longer, wider), right,
        "With two more places of padding in each text the result differs.",
    )


def _pool_empty(pool: Any) -> None:
    """A text without tokens has the vector 0."""
    hidden, mask = numbers(3, 2, 2, seed=625), torch.tensor([[1, 1], [0, 0], [0, 1]]).bool()
    expect(
        pool(hidden, mask), _pooled(hidden, mask),
        "The second text has no tokens: divide by at least 1.",
    )


def _pool_sizes(pool: Any) -> None:
    """Any number of texts, tokens and dimensions, and gradients flow."""
    for b, n, d in ((1, 1, 5), (4, 7, 3)):
        hidden = numbers(b, n, d, seed=627)
        mask = torch.arange(n) < torch.arange(1, b + 1)[:, None]
        expect(
            pool(hidden, mask), _pooled(hidden, mask), f"With a shape of {(b, n, d)} it differs."
        )
    expect_gradients(pool, hidden=hidden, mask=mask)


MEAN_POOLING = Exercise(
    name="mean-pooling",
    title="A vector that depends on its neighbours",
    level=1,
    section='chapters/13_language, section "One vector for a text"',
    stub=mean_pool,
    properties=(_pool_values, _pool_padding, _pool_empty, _pool_sizes),
    hints=(
        "Take a text of two tokens, rows 2 and 4, and pad it to four places. What should come out, "
        "and what does?",
        "`mean` divides by all places. Which number should stand there, for each text its own, and "
        "what becomes of it where a text has no token?",
        "The mask knows how many tokens each text has. Keep the axis when you sum it, so that the "
        "division fits, and let no text be divided by 0: `clamp`.",
    ),
    broken=True,
)

# bio-spans --------------------------------------------------------------------------------------

Span = tuple[int, int, str]


def bio_spans(tags: list[str]) -> list[tuple[int, int, str]]:
    """Read the names off a row of tags.

    "B-X" begins a name of kind X, "I-X" goes on with it, "O" is outside of all names. An "I-X" that
    does not follow a token of a name of kind X begins one too.

    tags: one for each token.
    Returns: for each name its first token, the token behind its last, and its kind, in order.
    """
    ...


def _spans(tags: list[str], *, loose: str = "begin", split: bool = True) -> list[Span]:
    """Read as asked, or with a known slip about tags that begin a name."""
    found: list[Span] = []
    start, kind = -1, ""
    for i, tag in enumerate([*tags, "O"]):
        mark, _, new = tag.partition("-")
        goes_on = mark == "I" and kind and (new == kind or loose == "join")
        if mark == "B" and not split and new == kind:
            goes_on = True
        if goes_on:
            continue
        if kind:
            found.append((start, i, kind))
        begins = mark == "B" or (mark == "I" and loose != "ignore")
        start, kind = (i, new) if begins else (-1, "")
    return found


def _span_case(read: Any, text: str, otherwise: str) -> None:
    tags = text.split()
    right = _spans(tags)
    single = [(i, i + 1, tag.partition("-")[2]) for i, tag in enumerate(tags) if tag != "O"]
    expect_plain(
        read, {"tags": tags}, right, otherwise,
        mistakes={
            "The second number is the last token of the name. It is the token behind it, so that "
            "`tokens[start:end]` is the name.": [(a, b - 1, kind) for a, b, kind in right],
            "Each token is a name of its own. \"I-X\" goes on with the name before it.": single,
            "A name that ends with the last token is missing.":
                [span for span in right if span[1] < len(tags)],
            "A name that begins with the first token is missing. No tag stands before it, and "
            "`tags[i - 1]` is the last tag there: an index of -1 counts from the end.":
                [span for span in right if span[0] > 0],
            "A name begins with each \"B-X\", also right behind another of its kind.":
                _spans(tags, split=False),
            "An \"I-X\" of another kind does not go on with the name before it: it begins one.":
                _spans(tags, loose="join"),
            "An \"I-X\" without a name before it begins one.": _spans(tags, loose="ignore"),
            "The kind is what stands behind \"B-\" or \"I-\", without these.":
                [(a, b, tags[a]) for a, b, _ in right],
            "The kinds are missing: a name is its start, its end and its kind.":
                [(a, b) for a, b, _ in right],
            "Start and end are exchanged.": [(b, a, kind) for a, b, kind in right],
            "The tokens are counted from 0.": [(a + 1, b + 1, kind) for a, b, kind in right],
            "The kind was cut at a hyphen. It is all that stands behind the first one.":
                [(a, b, kind.partition("-")[0]) for a, b, kind in right],
            "The kind was cut at a hyphen. It is all that stands behind the first hyphen.":
                [(a, b, kind.rpartition("-")[2]) for a, b, kind in right],
        },
    )


def _spans_plain(read: Any) -> None:
    """A name goes from its B to the last I behind it."""
    _span_case(
        read, "O B-PER I-PER O B-LOC O O B-ORG I-ORG I-ORG O",
        "Here are three names, of two, one and three tokens.",
    )


def _spans_edges(read: Any) -> None:
    """Names may stand at both ends and next to one another."""
    _span_case(read, "B-PER B-PER I-PER", "Two names follow one another, up to the end.")
    _span_case(read, "B-LOC I-LOC B-PER O B-LOC", "A name stands first, and one stands last.")


def _spans_loose(read: Any) -> None:
    """An I without its B begins a name."""
    _span_case(read, "O I-PER I-PER O", "The first \"I-PER\" begins a name.")
    _span_case(read, "I-PER I-PER O B-PER", "The first \"I-PER\" begins a name.")
    _span_case(
        read, "B-PER I-LOC I-LOC I-PER", "Where the kind changes a name ends and another begins."
    )


def _spans_kinds(read: Any) -> None:
    """Kinds may hold hyphens, and there may be no names or no tags."""
    _span_case(read, "B-geo-pol I-geo-pol O I-a-b B-a-c", "The kinds are geo-pol, a-b and a-c.")
    for text in ("", "O O O"):
        _span_case(read, text, "There is no name: the list is empty.")


def _spans_many(read: Any) -> None:
    """Any row of tags."""
    generator = torch.Generator("cpu").manual_seed(631)
    kinds = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "I-PER", "I-LOC"]
    for n in (1, 5, 40):
        drawn = torch.randint(0, len(kinds), (n,), generator=generator)
        _span_case(read, " ".join(kinds[i] for i in drawn), f"With {n} tags the names differ.")


BIO_SPANS = Exercise(
    name="bio-spans",
    title="From tags to names",
    level=2,
    section='chapters/13_language_deeper, section "Exercises"',
    stub=bio_spans,
    properties=(_spans_plain, _spans_edges, _spans_loose, _spans_kinds, _spans_many),
    hints=(
        "Walk through the tags and remember the name you are in: where it began, and its kind.",
        "A name ends where the tag is not an I of its kind. Walking over one more \"O\" at the end "
        "closes the last one.",
        "Cut a tag at its first hyphen into mark and kind. There are three things to do at a tag: "
        "go on, close a name, open one. Which of them at an `I` of another kind?",
    ),
)

# answer-span ------------------------------------------------------------------------------------


def best_span(
    start: torch.Tensor, end: torch.Tensor, context: torch.Tensor, longest: int
) -> tuple[int, int]:
    """Find the answer to a question in a text.

    A span from token i to token j, both in it, has the score start[i] + end[j]. It may not end
    before it begins, has at most `longest` tokens, and both its ends stand in the context, not in
    the question. The span with the highest score is the answer.

    start: (N,), scores. end: (N,), scores. context: (N,), boolean, True at tokens of the text that
    may hold the answer, at least one. longest: in tokens, at least 1.
    Returns: i and j, two ints.
    """
    ...


def _answer(
    start: torch.Tensor, end: torch.Tensor, context: torch.Tensor, longest: int,
    *, least: int = 0, ends: str = "both", score: Any = None,
) -> tuple[int, int]:
    """Try all spans, as asked or with a known slip."""
    s, e, inside = start.tolist(), end.tolist(), context.tolist()
    score = (lambda i, j: s[i] + e[j]) if score is None else score
    allowed = {"both": lambda i, j: inside[i] and inside[j], "none": lambda i, j: True,
               "start": lambda i, j: inside[i], "end": lambda i, j: inside[j]}[ends]
    spans = [
        (i, j) for i in range(len(s)) for j in range(len(s))
        if least <= j - i < longest and allowed(i, j)
    ]
    return max(spans, key=lambda span: score(*span)) if spans else (-1, -1)


def _found(find: Any, case: tuple[Any, ...], slips: dict[str, Any], otherwise: str) -> None:
    """Compare the reader's span with the best one."""
    got, right = parts(find(*case), "i", "j"), _answer(*case)
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in got):
        kind = next(type(x).__name__ for x in got if not isinstance(x, int) or x is True)
        raise Wrong(f"A result is a {kind}. Return two ints: `.item()` takes them out.")
    start, end, context, longest = case
    i, j = got
    if (i, j) == right:
        return
    n = len(start)
    slips = {
        "The end is the token behind the answer. Here it is the last token of it.":
            (right[0], right[1] + 1),
        "The two results are exchanged: the start comes first.": right[::-1],
        **slips,
    }
    message = next((words for words, slip in slips.items() if (i, j) == slip), "")
    if not message and 0 <= i < n and 0 <= j < n:
        if j < i:
            message = "The answer ends before it begins. Only spans with i ≤ j are allowed."
        elif not (context[i] and context[j]):
            message = "The answer begins or ends outside of the context."
        elif j - i >= longest:
            message = f"The answer has {j - i + 1} tokens, more than {longest}."
    raise Wrong(message or otherwise, got=(i, j), wanted=right)


def _row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _best_pair(find: Any) -> None:
    """The sum of both scores decides, and the end does not come before the start."""
    start, end = _row(0.5, -3.0, 1.5, 0.2, 2.0, -9.0), _row(-0.5, 3.0, -2.0, 2.5, -0.6, 0.8)
    case = start, end, torch.ones(6).bool(), 6
    first = int(start.argmax())
    last = int(end.argmax())
    _found(find, case, {
        "The best start and the best end were taken one by one, so the answer ends before it "
        "begins. Look for the best pair with i ≤ j.": (first, last),
        "The best start was taken first, and then the best end behind it. Another start with its "
        "end may have a higher sum.": (first, first + int(end[first:].argmax())),
        "The best end was taken first, and then the best start before it. Another pair may have a "
        "higher sum.": (int(start[: last + 1].argmax()), last),
        "The scores were multiplied. Add them: they are logarithms, and two negative ones would "
        "make a positive product.":
            _answer(*case, score=lambda i, j: (start[i] * end[j]).item()),
        "The worst span was found.":
            _answer(*case, score=lambda i, j: -(start[i] + end[j]).item()),
        "The mean over the span was taken. Only its first and last token count.":
            _answer(*case, score=lambda i, j: ((start[i] + end[j]) / (j - i + 1)).item()),
    }, "Another span with i ≤ j has a higher sum.")


def _single_token(find: Any) -> None:
    """An answer may be a single token."""
    start, end = _row(0.0, 1.0, 4.0, 0.5, -1.0), _row(1.5, 0.0, 4.0, 1.0, 2.0)
    case = start, end, torch.ones(5).bool(), 3
    _found(find, case, {
        "An answer of one token is allowed: i = j.": _answer(*case, least=1),
    }, "The best span is a single token.")


def _in_context(find: Any) -> None:
    """Both ends stand in the context."""
    start, end = _row(5.0, 4.0, 0.5, 1.0, -0.5, 3.0), _row(0.3, 3.0, 2.0, -1.0, 1.5, 6.0)
    context = torch.tensor([False, False, True, True, True, False])
    case = start, end, context, 6
    _found(find, case, {
        "The answer was found outside of the context, which is True at the tokens that may hold "
        "it.": _answer(*case, ends="none"),
        "The answer begins in the context, but it ends outside of it. Both ends stand in it.":
            _answer(*case, ends="start"),
        "The answer ends in the context, but it begins outside of it. Both ends stand in it.":
            _answer(*case, ends="end"),
        "Scores outside of the context were set to 0. Where all others are negative, 0 wins: set "
        "them to -∞.": _answer(start * context, end * context, torch.ones(6).bool(), 6),
    }, "Another span within the context has a higher sum.")
    below = start - 9.0, end - 9.0, context, 6
    _found(find, below, {
        "Scores outside of the context were set to 0. Here all scores are negative, and 0 wins: "
        "set them to -∞.": _answer(below[0] * context, below[1] * context, torch.ones(6).bool(), 6),
    }, "With all scores lowered by 9 the best span is the same.")


def _not_too_long(find: Any) -> None:
    """The answer has at most so many tokens."""
    start, end = _row(3.0, 0.0, 1.0, 1.7, 0.4, 0.3), _row(0.0, 0.2, 1.0, 1.6, 2.0, 2.8)
    for longest in (3, 1, 2):
        case = start, end, torch.ones(6).bool(), longest
        _found(find, case, {
            "The length is not limited: from i to j there are j - i + 1 tokens.":
                _answer(start, end, case[2], 6),
            "One token too many is allowed: from i to j there are j - i + 1 tokens.":
                _answer(start, end, case[2], longest + 1),
            "One token too few is allowed: from i to j there are j - i + 1 tokens.":
                _answer(start, end, case[2], longest - 1),
        }, f"With at most {longest} tokens another span has a higher sum.")


def _any_text(find: Any) -> None:
    """Texts of any length."""
    generator = torch.Generator("cpu").manual_seed(641)
    for n, longest in ((1, 1), (7, 2), (50, 9), (200, 30)):
        start, end = torch.randn(2, n, generator=generator, dtype=torch.float64).unbind()
        context = torch.rand(n, generator=generator) < 0.7
        context[n // 2] = True
        _found(find, (start, end, context, longest), {}, f"With {n} tokens the answer differs.")


ANSWER_SPAN = Exercise(
    name="answer-span",
    title="Where is the answer?",
    level=3,
    section='chapters/13_language, section "Where is the answer?"',
    stub=best_span,
    properties=(_best_pair, _single_token, _in_context, _not_too_long, _any_text),
    hints=(
        "The best start and the best end need not belong together. Write the scores of all pairs "
        "into a table.",
        "`start[:, None] + end` has the score of span (i, j) in row i and column j. Which entries "
        "are allowed? `triu` and `tril` keep bands of a table.",
        "What is not allowed becomes -∞, also where a row or a column is no context. `argmax` of a "
        "table counts through all its entries: which row and which column is number 17?",
    ),
)

EXERCISES = (MEAN_POOLING, BIO_SPANS, ANSWER_SPAN)
