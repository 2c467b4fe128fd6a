"""The exercises of chapter 03 on single heads: importance, removal, pruning, circuits."""

import math
from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    Wrong,
    expect,
    expect_gradients,
    expect_plain,
    numbers,
)

# head-importance --------------------------------------------------------------------------------


def head_importance(contributions: torch.Tensor, grad_output: torch.Tensor) -> torch.Tensor:
    """Estimate how much the loss depends on each head.

    Let a mask number m_h multiply what head h adds to the output: y = Σ_h m_h c_h. The importance
    of head h is the size of the loss's slope with respect to m_h at m_h = 1, the absolute value
    taken for each example, then averaged over the examples.

    contributions: (B, H, N, D), what each head adds to the output. grad_output: (B, N, D), the
    gradient of each example's loss with respect to y.
    Returns: (H,).
    """
    ...


def _importance_case(b: int, h: int, n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    return numbers(b, h, n, d, seed=341), numbers(b, n, d, seed=342)


def _importance_values(rate: Any) -> None:
    """The importance is the mean over the examples of |Σ c_h · grad|."""
    c, grad = _importance_case(3, 2, 2, 3)
    products = c * grad[:, None]
    slopes = products.sum((-2, -1))
    expect(
        rate(c, grad),
        slopes.abs().mean(0),
        "The importance is not the mean over the examples of |Σ c_h · grad|.",
        mistakes={
            "The sign was dropped after averaging: a head that helps one example and hurts "
            "another looks unimportant. Take the absolute value for each example.":
                slopes.mean(0).abs(),
            "The sign is still there: importance is the size of the slope.": slopes.mean(0),
            "The absolute value was taken of every product. The slope is the sum of the products, "
            "and what cancels in it does not count.": products.abs().sum((-2, -1)).mean(0),
            "The absolute value was taken for every token. The loss of an example has one slope "
            "for a head: sum over its tokens first.": products.sum(-1).abs().sum(-1).mean(0),
            "The examples were added. Take their mean.": slopes.abs().sum(0),
            "The products were averaged over tokens and features. The slope is their sum.":
                products.mean((-2, -1)).abs().mean(0),
            "The gradient was not used: this is how large a head's contribution is, not how much "
            "the loss depends on it.":
                (c.flatten(2).norm(dim=-1).mean(0), c.abs().sum((-2, -1)).mean(0)),
            "Each example got importances of its own. Average them.": slopes.abs(),
            "Squares were averaged in place of absolute values.":
                (slopes.square().mean(0), slopes.square().mean(0).sqrt()),
        },
    )


def _importance_slope(rate: Any) -> None:
    """Autograd through a mask number agrees."""
    c, grad = _importance_case(5, 3, 2, 7)
    mask = torch.ones(5, 3, 1, 1, dtype=c.dtype, requires_grad=True)
    loss = ((mask * c).sum(1) * grad).sum()
    slope = torch.autograd.grad(loss, mask)[0]
    expect(rate(c, grad), slope.abs().mean(0).flatten())


def _importance_silent(rate: Any) -> None:
    """A head that adds nothing has importance zero."""
    c, grad = _importance_case(2, 3, 2, 5)
    c[:, 1] = 0.0
    expect(rate(c, grad)[1], torch.zeros((), dtype=c.dtype), "Head 1 adds zeros.")


HEAD_IMPORTANCE = Exercise(
    name="head-importance",
    title="Which heads matter?",
    level=2,
    section='chapters/03_multi_head_deeper, section "Pruning heads"',
    stub=head_importance,
    properties=(_importance_values, _importance_slope, _importance_silent),
    hints=(
        "If m_h grows a little, y moves in the direction of c_h. How much does the loss move?",
        "The slope is the dot product of c_h and the gradient, over all tokens and features of an "
        "example. Then the absolute value, then the mean over the examples.",
        "`grad_output[:, None]` has an axis for the heads, so that the two can be multiplied. "
        "Which axes are summed before the absolute value, and which one is averaged after it?",
    ),
)

# remove-heads -----------------------------------------------------------------------------------


def remove_heads(loss: Callable[[list[int]], float], n_heads: int, count: int) -> list[int]:
    """Choose which heads can go, one after the other: each time the one that then costs least.

    loss: a function; loss(gone) is the loss of the model without the heads in the list gone.
    n_heads: the number of heads; they are called 0 to n_heads - 1. count: how many are removed.
    Returns: the removed heads, a list in the order of their removal.
    """
    ...


def _loss_of(prices: list[float], pair: tuple[int, int] = (-1, -1)) -> Callable[..., float]:
    """Make a loss to which each missing head adds its price, and a missing pair half a nat more."""

    def loss(gone: list[int]) -> float:
        missing = {int(head) for head in gone}
        return 2.0 + sum(prices[head] for head in missing) + 0.5 * (set(pair) <= missing)

    return loss


def _chosen(choose: Any, wanted: list[int], given: tuple, mistakes: dict[str, list[int]]) -> None:
    prices, *pair, count = given
    arguments = {"loss": _loss_of(prices, *pair), "n_heads": len(prices), "count": count}
    told = f"The heads cost {prices} alone, and these should go: {wanted}."
    if pair:
        told = f"The heads cost {prices} alone, {pair[0]} together half a nat more. {wanted} go."
    expect_plain(choose, arguments, wanted, told, mistakes=mistakes)


def _removal_first(choose: Any) -> None:
    """The first head to go is the one that costs least."""
    _chosen(choose, [2], ([0.6, 0.03, 0.02, 0.2], 1), {
        "This is the head that is missed most. The one that costs least is to go.": [0],
        "These are the heads that stay. Return those that go.": [0, 1, 3],
    })  # fmt: skip


def _removal_pair(choose: Any) -> None:
    """After each removal the prices are measured anew."""
    _chosen(choose, [2, 3], ([0.6, 0.03, 0.02, 0.2], (1, 2), 2), {
        "The heads were ranked once, by what each costs alone. Heads 1 and 2 stand in for one "
        "another: when one is gone, the other costs more. Measure again after each removal.":
            [2, 1],
    })  # fmt: skip


def _removal_order(choose: Any) -> None:
    """The heads stand in the order of their removal."""
    _chosen(choose, [1, 3, 0], ([0.3, 0.1, 0.5, 0.2], 3), {
        "The heads stand in the order of their numbers, not of their removal.": [0, 1, 3],
        "The head that went last stands first.": [0, 3, 1],
    })  # fmt: skip


def _removal_none(choose: Any) -> None:
    """Any number of heads can go, none as well."""
    for count, wanted in ((0, []), (3, [1, 2, 0])):
        _chosen(choose, wanted, ([0.3, 0.1, 0.2], count), {})


REMOVE_HEADS = Exercise(
    name="remove-heads",
    title="Which head can go?",
    level=2,
    section='chapters/03_multi_head_deeper, section "Pruning heads"',
    stub=remove_heads,
    properties=(_removal_first, _removal_pair, _removal_order, _removal_none),
    hints=(
        "For each head that is still there: what is the loss without it, and without those that "
        "are gone already?",
        "A loop over `count` removals, and in it one over the heads that are left.",
        "`min` takes a function as its `key`. What has to be in the list that you give to `loss`?",
    ),
)

# prune-heads ------------------------------------------------------------------------------------


def prune_heads(
    w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, w_o: torch.Tensor, n_heads: int,
    keep: list[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Remove heads from the weights of multi-head attention.

    Head h owns the h-th block of rows of W_q, W_k and W_v, and the h-th block of columns of W_o.
    The smaller weights compute what the large ones compute when the heads that are not kept add
    nothing.

    w_q: (H·d, D). w_k: (H·d, D). w_v: (H·e, D). w_o: (D, H·e). n_heads: H. keep: the heads that
    stay, in the order in which they stand afterwards.
    Returns: the new W_q, W_k, W_v and W_o, in this order.
    """
    ...


def _weights(width: int, heads: int, d: int, e: int) -> tuple[torch.Tensor, ...]:
    shapes = (heads * d, width), (heads * d, width), (heads * e, width), (width, heads * e)
    return tuple(numbers(*shape, seed=341 + i) for i, shape in enumerate(shapes))


def _kept(weight: torch.Tensor, heads: int, keep: list[int]) -> torch.Tensor:
    return torch.cat([weight.chunk(heads)[h] for h in keep])


def _four(result: Any) -> tuple[Any, ...]:
    if not isinstance(result, tuple | list) or len(result) != 4:
        raise Wrong("Return four tensors: `return w_q, w_k, w_v, w_o`.")
    return tuple(result)


def _prune_rows(prune: Any) -> None:
    """Blocks of rows of W_q, W_k and W_v stay."""
    weights, keep = _weights(4, 4, 2, 2), [1, 3]
    result = _four(prune(*weights, 4, keep))
    for got, weight, name in zip(result, weights, ("W_q", "W_k", "W_v"), strict=False):
        zeroed = torch.cat([
            part if h in keep else 0 * part for h, part in enumerate(weight.chunk(4))
        ])
        expect(
            got,
            _kept(weight, 4, keep),
            f"{name} does not hold the rows of heads 1 and 3.",
            what=f"The new {name}",
            mistakes={
                "The listed heads were removed. They are the ones that stay.":
                    _kept(weight, 4, [0, 2]),
                "The rows of the other heads were set to zero. Remove them: a smaller matrix is "
                "the purpose.": zeroed,
                "Single rows were kept in place of blocks: head h owns the rows h·d to "
                "(h+1)·d - 1.": weight[keep],
                "The rows were dealt out to the heads one by one. A head is a block of "
                "neighbouring rows.": weight.view(2, 4, 4)[:, keep].reshape(4, 4),
                f"{name} is still complete.": weight,
                f"The columns of {name} were cut. They belong to the features of the input; heads "
                "are blocks of rows.": weight.view(8, 4)[:, keep],
            },
        )


def _prune_columns(prune: Any) -> None:
    """Blocks of columns of W_o stay."""
    weights, keep = _weights(4, 4, 2, 2), [1, 3]
    w_o = weights[3]
    expect(
        _four(prune(*weights, 4, keep))[3],
        _kept(w_o.T, 4, keep).T,
        "W_o does not hold the columns of heads 1 and 3.",
        what="The new W_o",
        mistakes={
            "W_o is still complete: its columns for the removed heads have no input any more.": w_o,
            "The rows of W_o were cut. Its rows are the features of the output; a head owns a "
            "block of columns.": _kept(w_o, 4, keep),
            "Single columns were kept in place of blocks.": w_o[:, keep],
            "The new W_o is transposed: it has D rows.": _kept(w_o.T, 4, keep),
            "The columns of the other heads stay in W_o.": _kept(w_o.T, 4, [0, 2]).T,
        },
    )


def _prune_order(prune: Any) -> None:
    """The heads stand in the order of the list, and any number of them may stay."""
    weights = _weights(5, 3, 2, 2)
    for keep in ([2, 0], [1], [0, 1, 2]):
        result = _four(prune(*weights, 3, keep))
        wanted = [_kept(w, 3, keep) for w in weights[:3]] + [_kept(weights[3].T, 3, keep).T]
        for got, value in zip(result, wanted, strict=True):
            expect(
                got, value,
                f"With keep = {keep} the blocks do not stand in the order of the list.",
            )


def _run(
    x: torch.Tensor, weights: tuple[torch.Tensor, ...], heads: int, keep: list[int]
) -> torch.Tensor:
    """Compute the output of the listed heads, each through its own columns of W_o."""
    q, k, v = ((x @ w.T).chunk(heads, -1) for w in weights[:3])
    columns = weights[3].chunk(heads, 1)
    total = torch.zeros(len(x), len(columns[0]), dtype=x.dtype)
    for h in keep:
        a = torch.softmax(q[h] @ k[h].T / math.sqrt(q[h].shape[-1]), -1)
        total = total + a @ v[h] @ columns[h].T
    return total


def _prune_function(prune: Any) -> None:
    """The pruned heads compute what the whole module computes without the others."""
    weights, x = _weights(5, 4, 3, 2), numbers(3, 5, seed=346)
    small = _four(prune(*weights, 4, [2, 3]))
    shapes = [tuple(w.shape) for w in small if isinstance(w, torch.Tensor)]
    if shapes != [(6, 5), (6, 5), (4, 5), (5, 4)]:
        raise Wrong(
            "Values may have another width than keys: the block of W_v and W_o is H·e / H, not "
            "that of W_q.", got=shapes, wanted=[(6, 5), (6, 5), (4, 5), (5, 4)],
        )
    expect(_run(x, small, 2, [0, 1]), _run(x, weights, 4, [2, 3]))


PRUNE_HEADS = Exercise(
    name="prune-heads",
    title="Cut heads out of the weights",
    level=2,
    section='chapters/03_multi_head_deeper, section "Pruning heads"',
    stub=prune_heads,
    properties=(_prune_rows, _prune_columns, _prune_order, _prune_function),
    hints=(
        "Give the rows of W_q two axes, (H, d): then a head is one index.",
        "W_q, W_k and W_v lose rows, W_o loses columns: everything that produced or used the "
        "removed heads' features. Take the width of a block from each matrix.",
        "`blocks[keep]` picks along the first axis, in the order of the list. For W_o the heads "
        "are on the second: give its columns two axes, (H, e), pick, and join them again.",
    ),
)

# head-circuits ----------------------------------------------------------------------------------


def head_circuits(
    w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, w_o: torch.Tensor, n_heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reduce every head to two matrices of the size of the model.

    Tokens stand in the rows of x. For head h with its blocks of the weights, the scores before
    scaling are q kᵀ = x W_QK xᵀ, and what the head adds to the output is A x W_OV, with A its
    attention weights.

    w_q: (H·d, D). w_k: (H·d, D). w_v: (H·e, D). w_o: (D, H·e). n_heads: H.
    Returns: W_QK and W_OV of all heads, each (H, D, D).
    """
    ...


def _circuits(weights: tuple[torch.Tensor, ...], heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    w_q, w_k, w_v = (torch.stack(w.chunk(heads)) for w in weights[:3])
    w_o = torch.stack(weights[3].chunk(heads, 1))
    return w_q.mT @ w_k, w_v.mT @ w_o.mT


def _two(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong("Return two tensors: `return w_qk, w_ov`.")
    return tuple(result)


def _circuits_scores(circuits: Any) -> None:
    """The scores of each head are x W_QK xᵀ."""
    weights = w_q, w_k, *_ = _weights(4, 2, 2, 2)
    right, other = _circuits(weights, 2)
    dealt_q, dealt_k = (w.view(2, 2, 4).transpose(0, 1) for w in (w_q, w_k))
    expect(
        _two(circuits(*weights, 2))[0],
        right,
        "x W_QK xᵀ does not give q kᵀ of each head.",
        what="The first result, W_QK,",
        mistakes={
            "W_QK is transposed: that gives k qᵀ. With tokens in rows, q kᵀ = x W_qᵀ W_k xᵀ.":
                right.mT.contiguous(),
            "The heads were added up: each head has a matrix of its own.": w_q.T @ w_k,
            "The scale 1/√d is in the matrix. It was to be left out.": right / math.sqrt(2),
            "The rows were dealt out to the heads one by one. A head is a block of neighbouring "
            "rows.": dealt_q.mT @ dealt_k,
            "The two results are exchanged: return W_QK first.": other,
            "Each head's matrix is (d, d): W_q W_kᵀ compares features of the head. The matrix that "
            "stands between two tokens is W_qᵀ W_k.":
                torch.stack(w_q.chunk(2)) @ torch.stack(w_k.chunk(2)).mT,
        },
    )


def _circuits_outputs(circuits: Any) -> None:
    """What each head adds to the output is A x W_OV."""
    weights = _weights(4, 2, 2, 2)
    w_v, w_o = weights[2:]
    right = _circuits(weights, 2)[1]
    rows = torch.stack(w_o.chunk(2))
    expect(
        _two(circuits(*weights, 2))[1],
        right,
        "A x W_OV is not what each head adds to the output.",
        what="The second result, W_OV,",
        mistakes={
            "W_OV is transposed: that is W_o W_v, for tokens in columns. With tokens in rows the "
            "head adds A x W_vᵀ W_oᵀ.": right.mT.contiguous(),
            "The heads were added up: each head has a matrix of its own.": w_v.T @ w_o.T,
            "The heads were cut from the rows of W_o. A head owns a block of its columns.":
                torch.stack(w_v.chunk(2)).mT @ rows,
        },
    )


def _circuits_sizes(circuits: Any) -> None:
    """Keys and values may have different widths."""
    for width, heads, d, e in ((5, 3, 2, 7), (7, 1, 3, 2), (6, 2, 3, 5)):
        weights = _weights(width, heads, d, e)
        for got, wanted in zip(
            _two(circuits(*weights, heads)), _circuits(weights, heads), strict=True
        ):
            expect(
                got, wanted,
                f"With D = {width}, H = {heads}, keys of width {d} and values of width {e} the "
                "matrices differ.",
            )


def _circuits_sum(circuits: Any) -> None:
    """The heads add up to multi-head attention."""
    weights, x = _weights(5, 3, 2, 2), numbers(7, 5, seed=347)
    w_qk, w_ov = _two(circuits(*weights, 3))
    a = torch.softmax(x @ w_qk @ x.T / math.sqrt(2), -1)
    expect((a @ x @ w_ov).sum(0), _run(x, weights, 3, [0, 1, 2]))


def _circuits_gradients(circuits: Any) -> None:
    """Gradients reach all four weights."""
    names = ("w_q", "w_k", "w_v", "w_o")
    case = dict(zip(names, _weights(4, 2, 2, 3), strict=True))
    expect_gradients(lambda *weights: torch.cat(_two(circuits(*weights, 2))), **case)


HEAD_CIRCUITS = Exercise(
    name="head-circuits",
    title="A head is two matrices",
    level=3,
    section='chapters/03_multi_head, section "A sum of heads"',
    stub=head_circuits,
    properties=(
        _circuits_scores, _circuits_outputs, _circuits_sizes, _circuits_sum, _circuits_gradients,
    ),
    hints=(
        "Write q = x W_qᵀ and k = x W_kᵀ for one head, and multiply out q kᵀ. What stands between "
        "the two x?",
        "The head adds A v W_oᵀ with v = x W_vᵀ and its own columns of W_o. Move the brackets.",
        "`unflatten` gives the rows of W_q, W_k and W_v two axes, (H, d); do it with the columns "
        "of W_o as well, heads in front. Then each result is one product of two blocks.",
    ),
)

EXERCISES = (HEAD_IMPORTANCE, REMOVE_HEADS, PRUNE_HEADS, HEAD_CIRCUITS)
