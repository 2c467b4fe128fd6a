"""The exercises of chapter 02 on masks. True means allowed."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    Wrong,
    expect,
    expect_gradients,
    expect_tensor,
    numbers,
    plain_attention,
)


def _other_forms(allowed: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a right mask in the forms that are not asked for, by what is to be said of each."""
    zeros = torch.zeros(allowed.shape)
    return {
        "The mask is inverted: True marks the keys that are allowed.": ~allowed,
        "These are ones and zeros. Return a boolean mask.": zeros.masked_fill(allowed, 1.0),
        "This is an additive mask. Return a boolean one, True where a key is allowed.":
            zeros.masked_fill(~allowed, -math.inf),
    }


# causal-from-shape ------------------------------------------------------------------------------


def causal_from_shape(n: int, m: int) -> torch.Tensor:
    """Build the causal mask for n queries and m keys, aligned to the last key.

    The last query stands at the last key, the query before it at the key before it, and so on:
    query i stands at key i + m - n. A query may see that key and all earlier ones.

    Returns: (n, m), boolean, True where the key is allowed.
    """
    ...


def _causal(n: int, m: int) -> torch.Tensor:
    rows = [[j <= i + m - n for j in range(m)] for i in range(n)]
    return torch.tensor(rows, dtype=torch.bool).reshape(n, m)


def _causal_square(causal: Any) -> None:
    """A square mask is the lower triangle with its diagonal."""
    wanted = _causal(3, 3)
    expect(
        causal(3, 3),
        wanted,
        "The mask is not the lower triangle with its diagonal.",
        mistakes={
            "The diagonal is missing: a query may see the key at its own position.":
                wanted.tril(-1),
            "One key too many is allowed: each query sees the key after its own position.":
                _causal(3, 4)[:, :3] | torch.ones(3, 3).tril(1).bool(),
            "Rows and columns are exchanged: queries are the rows, and query 0 sees key 0 alone.":
                wanted.T,
            **_other_forms(wanted),
        },
    )


def _causal_cache(causal: Any) -> None:
    """With fewer queries than keys, the last query sees all keys."""
    n, m = 2, 5
    wanted = _causal(n, m)
    ones = torch.ones(n, m, dtype=torch.bool)
    expect(
        causal(n, m),
        wanted,
        "The mask should be the last rows of the square mask of the keys.",
        mistakes={
            "The mask is aligned to the first key. The queries are the last of the sequence: "
            "query i stands at key i + m - n.": ones.tril(),
            "The diagonal is missing: a query may see the key at its own position.":
                ones.tril(m - n - 1),
            "The shape is (m, n): queries are the rows, keys are the columns.": wanted.T,
            "The shape is square. Only the rows of the n queries are wanted.": _causal(m, m),
            **_other_forms(wanted),
        },
    )


def _causal_more_queries(causal: Any) -> None:
    """With more queries than keys, the first n - m queries see nothing."""
    expect(
        causal(5, 3),
        _causal(5, 3),
        "The first two queries stand before the first key and may see nothing.",
    )


def _causal_small(causal: Any) -> None:
    """One query sees every key, and no query gives an empty mask."""
    for n, m in ((1, 1), (1, 7), (0, 3)):
        expect(causal(n, m), _causal(n, m))


def _causal_leak(causal: Any) -> None:
    """Changing a key and its value changes no output of an earlier query."""
    n, m = 5, 7
    mask = causal(n, m)
    expect_tensor(mask, (n, m), torch.bool, what="The mask")
    q, k, v = numbers(n, 3, seed=1), numbers(m, 3, seed=2), numbers(m, 2, seed=3)
    before = plain_attention(q, k, v, mask)
    for j in range(m):
        shift = torch.zeros(m, 1).index_fill(0, torch.tensor([j]), 1.0)
        moved = (plain_attention(q, k + shift, v + shift, mask) - before).abs().amax(-1) > 1e-9
        for i in range(n):
            if moved[i] and j > i + m - n:
                raise Wrong(f"Query {i} stands at key {i + m - n} and sees key {j}, later on.")


CAUSAL_FROM_SHAPE = Exercise(
    name="causal-from-shape",
    title="A causal mask that works with a cache",
    level=2,
    section='chapters/02_attention_deeper, section "Masks in numbers"',
    stub=causal_from_shape,
    properties=(
        _causal_square, _causal_cache, _causal_more_queries, _causal_small, _causal_leak,
    ),
    hints=(
        "Write down the position of each query and of each key, and compare.",
        "Query i stands at position i + m - n. With n = 2 and m = 5 these are 3 and 4.",
        "`torch.arange(n)[:, None] + (m - n) >= torch.arange(m)`, or `tril` of a matrix of ones "
        "with `diagonal=m - n`.",
    ),
)

# masked-attention -------------------------------------------------------------------------------


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Compute scaled dot-product attention over the allowed keys.

    The weights of a query are a softmax over the keys where the mask is True; the others count
    for nothing. A query without any allowed key returns zeros, and no gradient.

    q: (..., n, d). k: (..., m, d). v: (..., m, e). mask: boolean, broadcasts to (..., n, m).
    Returns: (..., n, e).
    """
    ...


def _qkv(*batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shapes = (2, 3), (5, 3), (5, 1)
    q, k, v = (numbers(*batch, *shape, seed=61 + i) for i, shape in enumerate(shapes))
    return q, k, v


MASK = ((True, False, True, True, False), (False, True, False, False, True))


def _masked_open(attend: Any) -> None:
    """A mask that allows everything gives softmax attention."""
    q, k, v = _qkv()
    mask = torch.ones(2, 5, dtype=torch.bool)
    dots = q @ k.T
    expect(
        attend(q, k, v, mask),
        plain_attention(q, k, v),
        "With every key allowed, the result should be softmax(q kᵀ/√d) v.",
        mistakes={
            "The scale is missing: divide the scores by √d.": torch.softmax(dots, -1) @ v,
            "The scores were divided by d. The scale is √d.": torch.softmax(dots / 3, -1) @ v,
            "The softmax ran over the queries. The weights of one query sum to one, over the keys.":
                torch.softmax(dots / math.sqrt(3), -2) @ v,
            "The mask is inverted: True marks the keys that are allowed.":
                (torch.zeros(2, 1), torch.full((2, 1), math.nan), v.mean(0).expand(2, 1)),
        },
    )


def _masked_some(attend: Any) -> None:
    """The weights are a softmax over the allowed keys."""
    q, k, v = _qkv()
    mask = torch.tensor(MASK)
    scores = q @ k.T / math.sqrt(3)
    expect(
        attend(q, k, v, mask),
        plain_attention(q, k, v, mask),
        "The result is not softmax attention over the allowed keys.",
        mistakes={
            "The mask is inverted: True marks the keys that are allowed.":
                plain_attention(q, k, v, ~mask),
            "The mask was not used.": plain_attention(q, k, v),
            "The mask was applied after the softmax, so the weights that are left do not sum to "
            "one: mask the scores before the softmax.": torch.softmax(scores, -1) * mask @ v,
            "The scores of forbidden keys were set to 0. exp(0) is 1, so they still get weight: "
            "set them to -∞.": torch.softmax(scores * mask, -1) @ v,
            "The mask was added to the scores as ones and zeros. It has to become 0 and -∞.":
                torch.softmax(scores + mask, -1) @ v,
        },
    )


def _masked_influence(attend: Any) -> None:
    """Changing a forbidden key and its value changes nothing."""
    q, k, v = _qkv()
    mask = torch.tensor(MASK[:1]).expand(2, 5)
    forbidden = ~mask[0, :, None]
    expect(
        attend(q, k + 40.0 * forbidden, v + 1e4 * forbidden, mask),
        plain_attention(q, k, v, mask),
        "A forbidden key still has influence: its weight should be exactly zero, whatever its "
        "score.",
    )


def _masked_empty(attend: Any) -> None:
    """A query without allowed keys returns zeros."""
    q, k, v = _qkv()
    mask = torch.tensor([MASK[0], (False,) * 5])
    wanted = plain_attention(q, k, v, mask)
    lost = torch.full((1, 1), math.nan, dtype=torch.float64)
    expect(
        attend(q, k, v, mask),
        wanted,
        "The second query may see no key, so its output should be zero.",
        mistakes={
            "The second query may see no key and got the mean of all values: with a large negative "
            "number such as -1e9 in every place, the softmax is uniform. Set its weights to zero.":
                torch.cat([wanted[:1], v.mean(0, keepdim=True)]),
            "The second query may see no key and got softmax attention over all of them: the same "
            "number was added to each of its scores, and the softmax ignores that. Set its weights "
            "to zero.": torch.cat([wanted[:1], plain_attention(q, k, v)[1:]]),
            "The second query may see no key and came back as NaN: its exponentials are all zero, "
            "and 0/0 is NaN. Set its weights to zero.": torch.cat([wanted[:1], lost]),
        },
        tolerance=1e-5,
    )


def _masked_gradients(attend: Any) -> None:
    """Gradients reach q, k and v, and are zero for a query without allowed keys."""
    q, k, v = _qkv()
    mask = torch.tensor([MASK[0], (False,) * 5])
    expect_gradients(lambda *x: attend(*x, mask), q=q, k=k, v=v)
    q = q.requires_grad_()
    gradient = torch.autograd.grad(attend(q, k, v, mask).sum(), q)[0]
    expect(
        gradient[1], torch.zeros_like(gradient[1]),
        "The second query may see no key, and its output does not depend on it.",
        what="The gradient of the second query",
    )


def _masked_extreme(attend: Any) -> None:
    """Scores of any size do no harm, whether their keys are allowed or not."""
    q, k, v = _qkv()
    mask = torch.tensor(MASK[:1]).expand(2, 5)
    for shift in (4000.0, -4000.0):  # one of them makes the score of a forbidden key the largest
        far = k + shift * ~mask[0, :, None]
        weights = torch.softmax(q @ far.T / math.sqrt(3), -1) * mask
        late = weights / weights.sum(-1, keepdim=True)  # 0/0
        expect(
            attend(q, far, v, mask),
            plain_attention(q, far, v, mask),
            "A forbidden key with a large score changes what the allowed ones get.",
            mistakes={
                "The weights were masked after the softmax and made to sum to one again. Where a "
                "forbidden key has a large score, nothing is left to share out, and 0/0 is NaN: "
                "mask the scores before the softmax.": (late @ v, late.nan_to_num() @ v),
            },
        )
    large = (1e5 * q @ k.T / math.sqrt(3)).exp() * mask
    expect(
        attend(1e5 * q, k, v, mask),
        plain_attention(1e5 * q, k, v, mask),
        "Scores of tens of thousands give something else than softmax attention.",
        mistakes={
            "The exponential of a large score overflows. Subtract the largest allowed score of "
            "each row first, or let `torch.softmax` do it.":
                large / large.sum(-1, keepdim=True) @ v,
        },
    )


def _masked_batches(attend: Any) -> None:
    """Leading axes are batch axes, and one mask serves them all."""
    q, k, v = _qkv(2, 3)
    mask = torch.tensor(MASK)
    for given in (mask, mask.expand(2, 1, 2, 5), mask[:1]):
        expect(attend(q, k, v, given), plain_attention(q, k, v, given))


MASKED_ATTENTION = Exercise(
    name="masked-attention",
    title="Attention over the allowed keys",
    level=2,
    section='chapters/02_attention, section "Masks: who may look at whom"',
    stub=masked_attention,
    properties=(
        _masked_open, _masked_some, _masked_influence, _masked_empty, _masked_gradients,
        _masked_batches, _masked_extreme,
    ),
    hints=(
        "Which score gives a weight of exactly zero after the exponential?",
        "`scores.masked_fill(~mask, -math.inf)`, then take the largest score off each row, so that "
        "no exponential exceeds 1. What is the largest score of a row in which every score is -∞?",
        "`where` puts 0 in the place of a largest score of -∞: then all exponentials of an empty "
        "row are 0, and so is their sum. In every other row the sum is at least 1. By what can you "
        "divide?",
    ),
)

# padding-from-lengths ---------------------------------------------------------------------------


def padding_from_lengths(lengths: torch.Tensor, max_len: int) -> torch.Tensor:
    """Build the mask for a batch of sequences that were padded at the end.

    Sequence b has lengths[b] tokens; the keys after them are padding and not allowed. The mask
    broadcasts against scores of shape (B, H, n, m), with m = max_len.

    lengths: (B,), integers from 0 to max_len.
    Returns: (B, 1, 1, max_len), boolean, True where the key is allowed.
    """
    ...


def _padding(lengths: list[int], max_len: int) -> torch.Tensor:
    return torch.tensor([[[[j < length for j in range(max_len)]]] for length in lengths])


def _padding_counts(padding: Any) -> None:
    """The first lengths[b] keys of sequence b are allowed."""
    wanted = _padding([3, 1], 5)
    rows = wanted.mT
    expect(
        padding(torch.tensor([3, 1]), 5),
        wanted,
        "Key j of sequence b is allowed when j < lengths[b].",
        mistakes={
            "One key too many is allowed: positions count from 0, so the last token of sequence b "
            "is at lengths[b] - 1.": _padding([4, 2], 5),
            "The tokens are marked at the end of the sequence. They stand at its beginning, "
            "followed by the padding.": wanted.flip(-1),
            "The mask hides the queries (rows), not the keys (columns): the axis of length max_len "
            "has to be the last one.": rows,
            "The mask hides queries as well as keys. A padded query may see the tokens; its output "
            "is not used. With its row empty, it has nothing to look at.": rows & wanted,
            "The shape is (B, max_len). Against scores (B, H, n, m) the batch axis would meet the "
            "queries: put two axes of length one between.": wanted[:, 0, 0],
            "The shape is (B, 1, max_len). Against scores (B, H, n, m) the batch axis would meet "
            "the heads: put two axes of length one between.": wanted[:, 0],
            "The mask is as wide as the longest sequence. Its width should be max_len.":
                wanted[..., :3],
            **_other_forms(wanted),
        },
    )


def _padding_edges(padding: Any) -> None:
    """A sequence without tokens allows nothing, a full one everything."""
    for lengths in ([0, 5, 2], [0]):
        expect(padding(torch.tensor(lengths), 5), _padding(lengths, 5))


def _padding_alone(padding: Any) -> None:
    """A padded batch gives what each sequence gives alone."""
    lengths, heads, max_len = [2, 5, 3], 2, 7
    q, k, v = (
        numbers(len(lengths), heads, size, 3, seed=67 + i)
        for i, size in enumerate((max_len, max_len, max_len))
    )
    mask = padding(torch.tensor(lengths), max_len)
    expect_tensor(mask, (3, 1, 1, max_len), torch.bool, what="The mask")
    batch = plain_attention(q, k, v, mask)
    for b, length in enumerate(lengths):
        alone = plain_attention(*(x[b, :, :length] for x in (q, k, v)))
        expect(
            batch[b, :, :length], alone,
            f"Sequence {b}, of length {length}, gets another output in the batch than alone.",
        )


PADDING_FROM_LENGTHS = Exercise(
    name="padding-from-lengths",
    title="A padding mask from the lengths",
    level=2,
    section='chapters/02_attention_deeper, section "Masks in numbers"',
    stub=padding_from_lengths,
    properties=(_padding_counts, _padding_edges, _padding_alone),
    hints=(
        "Number the keys 0, 1, 2, … and compare each number with the length.",
        "A comparison of shapes (max_len,) and (B, 1) broadcasts to (B, max_len).",
        "`torch.arange(max_len) < lengths[:, None, None, None]` has the shape (B, 1, 1, max_len).",
    ),
)

EXERCISES = (CAUSAL_FROM_SHAPE, MASKED_ATTENTION, PADDING_FROM_LENGTHS)
