"""The exercises of chapter 03 on splitting, merging and running heads, and on a wrong join."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_gradients, numbers

# split-heads ------------------------------------------------------------------------------------


def split_heads(x: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Split the features of every token into heads.

    Head h gets the features h·d, ..., (h+1)·d - 1 of every token, with d = D / n_heads.

    x: (B, N, D), with D a multiple of n_heads. n_heads: how many heads, H.
    Returns: (B, H, N, d).
    """
    ...


def _split_blocks(split: Any) -> None:
    """Head h holds the h-th block of features of every token."""
    x = numbers(1, 4, 6, seed=301)
    expect(
        split(x, 2),
        torch.stack(x.split(3, -1), 1),
        "Head h should hold the features 3h, 3h + 1 and 3h + 2 of every token.",
        mistakes={
            "The numbers were reshaped straight to (B, H, N, d), so a head holds features of "
            "different kinds from different tokens. Cut the last axis first, to (B, N, H, d), "
            "then exchange two axes.": x.reshape(1, 2, 4, 3),
            "The shape is that of the tokens before the heads: the axes of heads and tokens still "
            "have to be exchanged.": x.view(1, 4, 2, 3),
            "The features were dealt out one by one, like cards: head h got the features h, h + H, "
            "... A head is a block of neighbours: cut the last axis into (H, d), not (d, H).":
                x.view(1, 4, 3, 2).permute(0, 3, 1, 2),
            "The tokens were divided among the heads. Every head sees all tokens, and a part of "
            "their features.": x.view(1, 2, 2, 6),
        },
    )


def _split_sizes(split: Any) -> None:
    """Batches, tokens, heads and features may have different sizes."""
    for (b, n, d), heads in (((2, 5, 6), 2), ((3, 7, 5), 5), ((2, 3, 4), 1)):
        x = numbers(b, n, d, seed=302)
        expect(
            split(x, heads), torch.stack(x.chunk(heads, -1), 1),
            f"With {heads} head{'s' * (heads > 1)} for {d} features a block is not where it "
            "should be.",
        )


def _split_gradients(split: Any) -> None:
    """Gradients reach the input."""
    expect_gradients(lambda x: split(x, 2), x=numbers(2, 3, 4, seed=303))


SPLIT_HEADS = Exercise(
    name="split-heads",
    title="Cut the features into heads",
    level=1,
    section='chapters/03_multi_head, section "Split, attend, concatenate, project"',
    stub=split_heads,
    properties=(_split_blocks, _split_sizes, _split_gradients),
    hints=(
        "Cutting the last axis in two does not move a number. Exchanging axes does.",
        "Cut D into (H, d): which of the two varies faster in memory?",
        "Two calls are enough: a `view` with four axes, then an exchange of the second and the "
        "third.",
    ),
)

# merge-heads ------------------------------------------------------------------------------------


def merge_heads(z: torch.Tensor) -> torch.Tensor:
    """Concatenate the results of the heads along the features of every token.

    A token's features are those of head 0, then those of head 1, and so on.

    z: (B, H, N, d).
    Returns: (B, N, H·d).
    """
    ...


def _merged(z: torch.Tensor) -> torch.Tensor:
    return torch.cat(z.unbind(1), -1)


def _merge_blocks(merge: Any) -> None:
    """A token's features are those of its heads, one after another."""
    z = numbers(1, 2, 3, 2, seed=305)
    expect(
        merge(z),
        _merged(z),
        "A token should get the features of head 0, then those of head 1.",
        mistakes={
            "The numbers were reshaped without exchanging heads and tokens first, so tokens and "
            "heads are mixed up. Bring the axes to (B, N, H, d), then join the last two.":
                z.reshape(1, 3, 4),
            "The heads alternate: joined as (d, H). Join (H, d), so that each head stays a block.":
                z.permute(0, 2, 3, 1).reshape(1, 3, 4),
            "The heads were averaged. They are concatenated: what a head found stays its own.":
                z.mean(1),
            "The heads were added. They are concatenated: what a head found stays its own.":
                z.sum(1),
            "The heads were stacked below one another, (H·N) rows. Concatenate them along the "
            "features, so that a token stays one row.": z.flatten(1, 2),
            "The heads come in reverse order.": _merged(z.flip(1)),
            "The axes are exchanged but the last two are not joined.": z.transpose(1, 2),
        },
    )


def _merge_sizes(merge: Any) -> None:
    """Batches, tokens, heads and features may have different sizes."""
    for shape in ((2, 3, 5, 2), (1, 5, 2, 3), (3, 1, 4, 2)):
        z = numbers(*shape, seed=306)
        expect(merge(z), _merged(z))


def _merge_views(merge: Any) -> None:
    """An input that is a transposed view gives the same."""
    z = numbers(2, 5, 3, 2, seed=307).transpose(1, 2)
    expect(merge(z), _merged(z), "The result depends on how the numbers lie in memory.")


def _merge_gradients(merge: Any) -> None:
    """Gradients reach every head."""
    expect_gradients(merge, z=numbers(2, 3, 2, 2, seed=308))


MERGE_HEADS = Exercise(
    name="merge-heads",
    title="Put the heads together again",
    level=1,
    section='chapters/03_multi_head, section "Split, attend, concatenate, project"',
    stub=merge_heads,
    properties=(_merge_blocks, _merge_sizes, _merge_views, _merge_gradients),
    hints=(
        "Which two axes have to be neighbours, and in which order, before they can be joined?",
        "Bring z to (B, N, H, d) first. After exchanging axes, `view` refuses to join them: the "
        "numbers no longer lie in a row. `reshape` copies where it has to.",
        "First the exchange that `split_heads` ended with, then join all axes from the third on.",
    ),
)

# multi-head-attention ---------------------------------------------------------------------------


def multi_head_attention(
    x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, w_o: torch.Tensor,
    n_heads: int,
) -> torch.Tensor:
    """Compute causal multi-head self-attention, without biases.

    Queries, keys and values are x W_qᵀ, x W_kᵀ and x W_vᵀ, split into heads as in split_heads. In
    each head, attention is softmax(q kᵀ / √d) v with d the width of one head's queries; token i
    attends to the tokens 0 to i. The heads are merged, and W_o is applied to the result.

    x: (B, N, D). w_q: (H·d, D). w_k: (H·d, D). w_v: (H·e, D). w_o: (D, H·e). n_heads: H.
    Returns: (B, N, D).
    """
    ...


def _attention_case(
    b: int, n: int, width: int, heads: int, d: int, e: int
) -> tuple[torch.Tensor, ...]:
    shapes = (b, n, width), (heads * d, width), (heads * d, width), (heads * e, width)
    last = (width, heads * e)
    return tuple(numbers(*shape, seed=311 + i) for i, shape in enumerate((*shapes, last)))


def _cut(x: torch.Tensor, heads: int) -> torch.Tensor:
    return torch.stack(x.chunk(heads, -1), 1)


def _attend(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def _before(scores: torch.Tensor) -> torch.Tensor:
    """Hide the scores of later tokens."""
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -math.inf)


def _causal(q: Any, k: Any, v: Any, scale: float | None = None, axis: int = -1) -> torch.Tensor:
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return torch.softmax(_before(q @ k.mT * scale), axis) @ v


def _multi_head(
    x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, heads: int, attend: Any = _attend
) -> torch.Tensor:
    q, k, v = (_cut(x @ w.T, heads) for w in (w_q, w_k, w_v))
    return _merged(attend(q, k, v)) @ w_o.T


def _attention_values(attend: Any) -> None:
    """Project, split, attend to what is not later, merge, project."""
    x, w_q, w_k, w_v, w_o = case = _attention_case(1, 3, 4, 2, 2, 2)
    plain = [x @ w.T for w in (w_q, w_k, w_v)]
    q, k, v = (_cut(y, 2) for y in plain)
    mixed = [y.reshape(1, 2, 3, 2) for y in plain]
    z, scores = _causal(q, k, v), q @ k.mT / math.sqrt(2)
    turned = [_cut(x @ w, 2) for w in (w_q, w_k, w_v)]
    expect(
        attend(*case, 2),
        _merged(z) @ w_o.T,
        "This is not causal multi-head attention.",
        mistakes={
            "The scores were divided by √D. Each head has queries of width d = D/H: its scale is "
            "√d.": _merged(_causal(q, k, v, 1 / 2)) @ w_o.T,
            "The scores were not divided by √d.": _merged(_causal(q, k, v, 1.0)) @ w_o.T,
            "The output projection is missing: the heads stand side by side and never meet.":
                _merged(z),
            "There is one head over all features: n_heads was not used.": _causal(*plain) @ w_o.T,
            "The heads hold scrambled tokens: cut the features to (B, N, H, d), then exchange two "
            "axes, instead of reshaping to (B, H, N, d).":
                (_merged(_causal(*mixed)) @ w_o.T,
                 _causal(*mixed).reshape(1, 3, 4) @ w_o.T),
            "The heads were merged by a reshape alone: bring the axes to (B, N, H, d) before.":
                z.reshape(1, 3, 4) @ w_o.T,
            "The projections of the input are missing: queries, keys and values were all cut from "
            "x itself.": _merged(_causal(*[_cut(x, 2)] * 3)) @ w_o.T,
            "The weights W_q, W_k and W_v are transposed: a batch of rows is projected by "
            "`x @ w.T`.": (_merged(_causal(*turned)) @ w_o.T, _merged(_causal(*turned)) @ w_o),
            "W_o is transposed: rows are projected by `@ w_o.T`.": _merged(z) @ w_o,
            "The softmax ran over the queries. It runs over the keys, the last axis.":
                _merged(_causal(q, k, v, axis=-2)) @ w_o.T,
            "Every head got the weights of the average score. Each head has a softmax of its own.":
                _merged(torch.softmax(_before(scores).mean(1, keepdim=True), -1) @ v) @ w_o.T,
            "Every token attends to all tokens, later ones, too: the mask is missing.":
                _merged(_attend(q, k, v)) @ w_o.T,
            "The mask hides earlier tokens in place of later ones.":
                _merged(_causal(q.flip(2), k.flip(2), v.flip(2)).flip(2)) @ w_o.T,
            "The weights of later tokens were set to 0 after the softmax, so the others do not add "
            "up to 1. Set their scores to -inf before.":
                _merged(torch.softmax(scores, -1).tril() @ v) @ w_o.T,
        },
    )


def _attention_sizes(attend: Any) -> None:
    """Heads need not fill the width, and values may be wider than keys."""
    for sizes in ((2, 5, 6, 2, 3, 3), (1, 3, 5, 2, 3, 7), (2, 2, 3, 1, 5, 2)):
        case = _attention_case(*sizes)
        expect(
            attend(*case, sizes[3]), _multi_head(*case, sizes[3], _causal),
            f"With D = {sizes[2]}, H = {sizes[3]}, keys of width {sizes[4]} and values of width "
            f"{sizes[5]} the result differs. The widths follow from the weights.",
        )


def _attention_order_of_heads(attend: Any) -> None:
    """Reordering the heads, with their columns of W_o, changes nothing."""
    x, *weights = _attention_case(2, 3, 6, 3, 2, 2)
    order = torch.tensor([4, 5, 0, 1, 2, 3])
    w_q, w_k, w_v, w_o = (w[order] for w in (*weights[:3], weights[3].T))
    expect(attend(x, w_q, w_k, w_v, w_o.T, 3), attend(x, *weights, 3).detach())


def _attention_gradients(attend: Any) -> None:
    """Gradients reach the input and all weights."""
    names = ("x", "w_q", "w_k", "w_v", "w_o")
    case = dict(zip(names, _attention_case(1, 3, 4, 2, 2, 3), strict=True))
    expect_gradients(lambda *tensors: attend(*tensors, 2), **case)


MULTI_HEAD_ATTENTION = Exercise(
    name="multi-head-attention",
    title="Multi-head attention",
    level=2,
    section='chapters/03_multi_head, section "Split, attend, concatenate, project"',
    stub=multi_head_attention,
    properties=(
        _attention_values, _attention_sizes, _attention_order_of_heads, _attention_gradients,
    ),
    hints=(
        "Heads behave like a batch axis: after the split, one attention formula and one mask serve "
        "all.",
        "Keep the order: project, split, attend, merge, project. The scale is set by the width of "
        "one head's queries. Scores of later tokens become -inf before the softmax.",
        "Print each `shape` on the way: (B, N, H·d) after the projection, (B, H, N, d) after the "
        "split, (B, H, N, N) for the scores, (B, H, N, e) after the average. What is left to do?",
    ),
)

# scrambled-heads --------------------------------------------------------------------------------


def scrambled_heads(
    x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, w_o: torch.Tensor,
    n_heads: int,
) -> torch.Tensor:
    """Compute multi-head self-attention, without mask and biases.

    x: (B, N, D), the rows of a batch. w_q: (H·d, D). w_k: (H·d, D). w_v: (H·e, D).
    w_o: (D, H·e). n_heads: the number of heads, H.
    Returns: (B, N, D).
    """
    b, n, _ = x.shape
    cut = ((x @ w.T).view(b, n, n_heads, -1) for w in (w_q, w_k, w_v))
    q, k, v = (part.transpose(1, 2) for part in cut)
    weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    return (weights @ v).reshape(b, n, -1) @ w_o.T


def _scrambled_shuffle(attend: Any) -> None:
    """Shuffled words give shuffled outputs."""
    x, *weights = _attention_case(1, 4, 4, 2, 2, 2)
    order = torch.tensor([2, 0, 3, 1])
    expect(
        attend(x[:, order], *weights, 2),
        attend(x, *weights, 2)[:, order],
        "Shuffled words do not give shuffled outputs, although there are no positions: somewhere a "
        "row is not a word.",
        what="The output for shuffled words",
    )


def _scrambled_values(attend: Any) -> None:
    """The output is that of heads made one by one."""
    x, w_q, w_k, w_v, w_o = case = _attention_case(1, 4, 4, 2, 2, 2)
    plain = [x @ w.T for w in (w_q, w_k, w_v)]
    dealt = [y.view(1, 4, 2, 2).permute(0, 3, 1, 2) for y in plain]
    z = _attend(*[_cut(y, 2) for y in plain])
    expect(
        attend(*case, 2),
        _merged(z) @ w_o.T,
        "The output differs from that of a loop over heads, each with its own rows of the "
        "matrices.",
        mistakes={
            "The features were dealt out to the heads one by one. A head is a block of "
            "neighbouring features: cut the last axis into (H, d), not (d, H).":
                _merged(_attend(*dealt)) @ w_o.T,
            "There is one head over all features: n_heads was not used.":
                _attend(*plain) @ w_o.T,
            "The heads alternate in the joined rows: they were joined as (d, H). Join (H, d), so "
            "that each head stays a block.": z.permute(0, 2, 3, 1).flatten(2) @ w_o.T,
        },
    )


def _scrambled_sizes(attend: Any) -> None:
    """Batches, heads and widths may have different sizes."""
    for sizes in ((2, 5, 6, 3, 2, 2), (3, 4, 5, 2, 3, 7), (2, 2, 3, 1, 5, 2)):
        case = _attention_case(*sizes)
        expect(
            attend(*case, sizes[3]), _multi_head(*case, sizes[3]),
            f"With D = {sizes[2]}, H = {sizes[3]}, keys of width {sizes[4]} and values of width "
            f"{sizes[5]} the result differs.",
        )


SCRAMBLED_HEADS = Exercise(
    name="scrambled-heads",
    title="Every shape is right",
    level=2,
    section='chapters/03_multi_head, section "Split, attend, concatenate, project"',
    stub=scrambled_heads,
    properties=(_scrambled_shuffle, _scrambled_values, _scrambled_sizes),
    hints=(
        "Follow the shapes line by line. Where do the heads begin to be an axis, and where do they "
        "end?",
        "A reshape never moves a number in memory. In which order do the averages (B, H, N, e) lie "
        "there, and which numbers belong to one word?",
        "Two steps are needed where there is one: `transpose` exchanges two axes, `flatten` joins "
        "the last two.",
    ),
    broken=True,
)

EXERCISES = (SPLIT_HEADS, MERGE_HEADS, MULTI_HEAD_ATTENTION, SCRAMBLED_HEADS)
