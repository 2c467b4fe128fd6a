"""Tasks made of text alone: tokens are hidden, cut out, dropped or moved, and to be put right.

:func:`mask_tokens` keeps the length and works on batches. The others change the length, so they
take one sequence, a list of tokens, and :func:`tfbook.data.pad_batch` makes a batch of many.
All that is drawn comes from a generator: the same one gives the same task.

Explained in: chapters/11_training_deeper, section "Which question to train on".
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from tfbook._checks import check_generator, check_ids, check_number
from tfbook.training.objectives import IGNORE, Example

__all__ = [
    "corrupt_spans",
    "delete_tokens",
    "fill_spans",
    "infill",
    "mask_tokens",
    "permute_sentences",
    "rotate",
]


def mask_tokens(
    tokens: Int[Tensor, "B N"],
    *,
    mask_id: int,
    vocab_size: int,
    special: Sequence[int] = (),
    share: float = 0.15,
    generator: torch.Generator | None = None,
) -> Example:
    """Choose 15 % of the tokens to be predicted and hide most of them: BERT's task.

    Of the chosen ones 80 % become ``mask_id``, 10 % a random token, 10 % stay what they are, so
    that a model cannot rely on a visible token being right. Each token is chosen by itself with
    probability ``share``; the number chosen varies.

    Args:
        tokens: (B, N).
        mask_id: stands for a hidden token.
        vocab_size: V; random tokens are any but the special ones.
        special: tokens that are neither chosen nor put in: padding, beginnings, ends.
        share: of the tokens, 0 … 1.
        generator: of what is drawn.

    Returns:
        Inputs, and targets that are IGNORE where nothing was chosen, (B, N).

    Raises:
        ValueError: for one out of its range, or if every token is special.

    Source: [devlin2019bert]
    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    check_number("vocab_size", vocab_size, 1, whole=True)
    check_number("mask_id", mask_id, 0, whole=True)
    check_ids("tokens", tokens, below=vocab_size)
    check_number("share", share, 0, 1)
    check_generator(generator)
    _ids("special", special, 0)
    kept_out = sorted({mask_id, *special})
    ordinary = torch.ones(vocab_size, dtype=torch.bool)
    ordinary[[i for i in kept_out if i < vocab_size]] = False
    ordinary = ordinary.nonzero().squeeze(-1).to(tokens.device)  # ids that may be put in
    if not len(ordinary):
        raise ValueError("special must leave an ordinary token, got all of them")
    device = tokens.device if generator is None else generator.device

    def uniform() -> Tensor:
        return torch.rand(tokens.shape, generator=generator, device=device).to(tokens.device)

    spared = torch.isin(tokens, torch.tensor(kept_out, device=tokens.device))
    chosen = (uniform() < share) & ~spared
    fate = uniform()  # below 0.8 hidden, below 0.9 replaced
    put_in = ordinary[(uniform() * len(ordinary)).long().clamp(max=len(ordinary) - 1)]
    inputs = torch.where(chosen & (fate < 0.8), mask_id, tokens)
    inputs = torch.where(chosen & (fate >= 0.8) & (fate < 0.9), put_in.to(tokens.dtype), inputs)
    return Example(inputs, tokens.masked_fill(~chosen, IGNORE))


def corrupt_spans(
    tokens: Sequence[int],
    *,
    sentinels: Sequence[int],
    share: float = 0.15,
    mean_length: float = 3.0,
    generator: torch.Generator | None = None,
) -> tuple[list[int], list[int]]:
    """Cut spans out of a sequence, each replaced by a sentinel, and ask for them: T5's task.

    With the spans s_1 … s_k the input is the text with sentinel i for s_i, and the target is
    sentinel 1, s_1, sentinel 2, s_2, …, and the sentinel after the last. round(share · N) tokens
    are cut, in about that many over ``mean_length`` spans; where they lie is uniform over all
    ways to cut both what goes and what stays into k pieces, beginning with what stays.

    Args:
        tokens: at least 2.
        sentinels: distinct tokens that do not occur; one more than there are spans.
        share: of the tokens, 0 … 1; at least one goes and one stays.
        mean_length: of a span, at least 1.
        generator: of what is drawn.

    Returns:
        Input and target; :func:`fill_spans` puts them together again.

    Raises:
        ValueError: for one out of its range, or too few sentinels.

    Example:
        >>> corrupt_spans([11, 12, 13, 14], sentinels=[99, 98], share=0.5, mean_length=2.0)
        ([11, 12, 99], [99, 13, 14, 98])

    Source: [raffel2020exploring]
    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    tokens, sentinels = _ids("tokens", tokens, 2), _ids("sentinels", sentinels, 2)
    check_number("share", share, 0, 1)
    check_generator(generator)
    _check_length(mean_length)
    n_cut = min(max(round(share * len(tokens)), 1), len(tokens) - 1)
    n_spans = min(max(round(n_cut / mean_length), 1), len(tokens) - n_cut)
    if len(set(sentinels)) < n_spans + 1 or set(sentinels) & set(tokens):
        raise ValueError(
            f"sentinels must be {n_spans + 1} distinct tokens that do not occur, got {sentinels}"
        )
    inputs, targets, place = [], [], 0
    stays = _pieces(len(tokens) - n_cut, n_spans, generator)
    goes = _pieces(n_cut, n_spans, generator)
    for sentinel, stay, go in zip(sentinels, stays, goes, strict=False):
        inputs += [*tokens[place : place + stay], sentinel]
        targets += [sentinel, *tokens[place + stay : place + stay + go]]
        place += stay + go
    return inputs, [*targets, sentinels[n_spans]]


def fill_spans(
    inputs: Sequence[int], targets: Sequence[int], *, sentinels: Sequence[int]
) -> list[int]:
    """Put spans back where their sentinels stand; undoes :func:`corrupt_spans`.

    A sentinel without a span in the targets vanishes: this also reads what a model has said.

    Args:
        inputs: text with sentinels.
        targets: each sentinel followed by its span.
        sentinels: which tokens are sentinels.

    Raises:
        TypeError: if something is no list of integers.
        ValueError: if one is empty.

    Example:
        >>> fill_spans([11, 12, 99], [99, 13, 14, 98], sentinels=[99, 98])
        [11, 12, 13, 14]

    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    marks = set(_ids("sentinels", sentinels, 1))
    spans, current = {}, []
    for token in _ids("targets", targets, 1):
        if token in marks:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    filled = []
    for token in _ids("inputs", inputs, 1):
        filled += spans.get(token, []) if token in marks else [token]
    return filled


def infill(
    tokens: Sequence[int],
    *,
    mask_id: int,
    share: float = 0.3,
    mean_length: float = 3.0,
    generator: torch.Generator | None = None,
) -> list[int]:
    """Replace spans by one mask each; how many tokens are missing is for the model to find out.

    Lengths of spans are Poisson with mean ``mean_length``, until round(share · N) tokens are
    covered; a span of length 0 puts in a mask where nothing is missing. The target is the whole
    text: this is the main part of BART's denoising.

    Args:
        tokens: at least 1.
        mask_id: the mask.
        share: of the tokens, 0 … 1.
        mean_length: λ of the Poisson distribution, 0.01 … 10⁶.
        generator: of what is drawn.

    Returns:
        The text with masks.

    Raises:
        ValueError: for one out of its range.

    Source: [lewis2020bart]
    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    tokens = _ids("tokens", tokens, 1)
    check_number("mask_id", mask_id, 0, whole=True)
    check_number("share", share, 0, 1)
    check_number("mean_length", mean_length, 0.01, 1e6)  # below, spans of length 0 never end
    check_generator(generator)
    left, lengths = round(share * len(tokens)), []
    while left > 0:
        drawn = torch.poisson(torch.tensor(float(mean_length)), generator=generator)
        lengths.append(min(int(drawn), left))
        left -= lengths[-1]
    # Spans and single tokens in random order are spans at random places, which never overlap.
    parts = lengths + [None] * (len(tokens) - sum(lengths))
    noised, place = [], 0
    for i in _order(len(parts), generator):
        length = parts[i]
        noised.append(tokens[place] if length is None else mask_id)
        place += 1 if length is None else length
    return noised


def delete_tokens(
    tokens: Sequence[int], *, share: float = 0.15, generator: torch.Generator | None = None
) -> list[int]:
    """Leave out each token with probability ``share``; the model has to find where.

    Args:
        tokens: at least 1.
        share: 0 up to below 1.
        generator: of what is drawn.

    Returns:
        What is left; a sequence that would be empty keeps its first token.

    Raises:
        ValueError: for one out of its range.

    Source: [lewis2020bart]
    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    tokens = _ids("tokens", tokens, 1)
    check_number("share", share, 0, below=1)
    check_generator(generator)
    draws = torch.rand(len(tokens), generator=generator).tolist()
    kept = [token for token, u in zip(tokens, draws, strict=True) if u >= share]
    return kept or tokens[:1]


def permute_sentences(
    tokens: Sequence[int], *, end_id: int, generator: torch.Generator | None = None
) -> list[int]:
    """Put the sentences of a text into a random order.

    Args:
        tokens: at least 1.
        end_id: the token that ends a sentence; what follows the last one is a sentence too.
        generator: of what is drawn.

    Raises:
        ValueError: if there are no tokens.

    Source: [lewis2020bart]
    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    tokens = _ids("tokens", tokens, 1)
    check_number("end_id", end_id, 0, whole=True)
    check_generator(generator)
    sentences = [[]]
    for token in tokens:
        sentences[-1].append(token)
        if token == end_id:
            sentences.append([])
    sentences = [sentence for sentence in sentences if sentence]
    return [token for i in _order(len(sentences), generator) for token in sentences[i]]


def rotate(tokens: Sequence[int], *, generator: torch.Generator | None = None) -> list[int]:
    """Begin a text at a random place and put what stood before it at the end.

    Args:
        tokens: at least 1.
        generator: of what is drawn.

    Raises:
        TypeError: if tokens is no list of integers.
        ValueError: if there are none.

    Source: [lewis2020bart]
    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    tokens = _ids("tokens", tokens, 1)
    check_generator(generator)
    start = int(torch.randint(len(tokens), (), generator=generator))
    return tokens[start:] + tokens[:start]


def _pieces(total: int, n: int, generator: torch.Generator | None) -> list[int]:
    """Cut ``total`` into n lengths of at least 1: choose n − 1 of the total − 1 places to cut."""
    cuts = sorted(i + 1 for i in _order(total - 1, generator)[: n - 1])
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def _order(n: int, generator: torch.Generator | None) -> list[int]:
    return torch.randperm(n, generator=generator).tolist()


def _ids(name: str, value: object, minimum: int) -> list[int]:
    """Return a sequence of tokens as a list."""
    whole = isinstance(value, (list, tuple, range))
    if not whole or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
        raise TypeError(f"{name} must be a list of integers, got {value!r}")
    if len(value) < minimum:
        raise ValueError(f"{name} must hold at least {minimum} tokens, got {len(value)}")
    return list(value)


def _check_length(mean_length: object) -> None:
    check_number("mean_length", mean_length, above=0)
    if mean_length < 1:
        raise ValueError(f"mean_length must be at least 1, got {mean_length}")
