"""Right and wrong answers to the exercises of chapter 02.

A wrong answer has the right shape and one mistake. Beside it stands a piece of the message that
has to name the mistake.
"""

import itertools
import math

import numpy as np
import torch
from answers import collect
from torch.nn import functional as F

from tfbook import attention

RIGHT, WRONG, right, wrong = collect()


# soft-lookup ------------------------------------------------------------------------------------


@right("soft-lookup")
def lookup_in_matrices(query, keys, values, temperature=1.0):
    weights = torch.softmax(keys @ query / temperature, dim=0)
    return weights @ values


@right("soft-lookup")
def lookup_in_loops(query, keys, values, temperature=1.0):
    like = [(key * query).sum() / temperature for key in keys]
    exps = [torch.exp(x - max(like)) for x in like]
    return sum(e / sum(exps) * value for e, value in zip(exps, values, strict=True))


@right("soft-lookup")
def lookup_with_more_arguments(query, keys, values, temperature=1, *, dim=-1):
    return torch.einsum("m,me->e", F.softmax(keys.mv(query).div(temperature), dim), values)


@wrong("soft-lookup", "similarities themselves were used as weights")
def lookup_unnormalised(query, keys, values, temperature=1.0):
    return keys @ query / temperature @ values


@wrong("soft-lookup", "similarities were divided by their sum")
def lookup_without_exponential(query, keys, values, temperature=1.0):
    like = keys @ query / temperature
    return like / like.sum() @ values


@wrong("soft-lookup", "exponentials do not sum to one")
def lookup_without_division(query, keys, values, temperature=1.0):
    return (keys @ query / temperature).exp() @ values


@wrong("soft-lookup", "the query was not used")
def lookup_of_the_mean(query, keys, values, temperature=1.0):
    return values.mean(0)


@wrong("soft-lookup", "That is a hard lookup")
def lookup_hard(query, keys, values, temperature=1.0):
    return values[(keys @ query).argmax()]


@wrong("soft-lookup", "divided by √d")
def lookup_scaled(query, keys, values, temperature=1.0):
    return torch.softmax(keys @ query / len(query) ** 0.5 / temperature, 0) @ values


@wrong("soft-lookup", "temperature was ignored")
def lookup_without_temperature(query, keys, values, temperature=1.0):
    return torch.softmax(keys @ query, 0) @ values


@wrong("soft-lookup", "multiplied by the temperature")
def lookup_times_temperature(query, keys, values, temperature=1.0):
    return torch.softmax(keys @ query * temperature, 0) @ values


@wrong("soft-lookup", "temperature was applied after the softmax")
def lookup_temperature_late(query, keys, values, temperature=1.0):
    return torch.softmax(keys @ query, 0) / temperature @ values


@wrong("soft-lookup", "subtract the largest one")
def lookup_that_overflows(query, keys, values, temperature=1.0):
    exps = (keys @ query / temperature).exp()
    return exps / exps.sum() @ values


@wrong("soft-lookup", "It is off by up to")
def lookup_that_forgets_the_first_pair(query, keys, values, temperature=1.0):
    return torch.softmax(keys[1:] @ query / temperature, 0) @ values[1:]


@wrong("soft-lookup", "carries no gradient")
def lookup_through_numpy(query, keys, values, temperature=1.0):
    like = (keys.detach().numpy() @ query.detach().numpy()) / temperature
    exps = np.exp(like - like.max())
    return torch.from_numpy(exps / exps.sum() @ values.detach().numpy())


@wrong("soft-lookup", "The gradient with respect to `query`")
def lookup_half_detached(query, keys, values, temperature=1.0):
    return torch.softmax(keys @ query.detach() / temperature, 0) @ values


# stable-softmax ---------------------------------------------------------------------------------


@right("stable-softmax")
def softmax_shifted(scores):
    exps = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return exps / exps.sum(dim=-1, keepdim=True)


@right("stable-softmax")
def softmax_by_log_sum_exp(scores):
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))


@right("stable-softmax")
def softmax_with_detached_maximum(scores):
    top = scores.detach().max(-1).values.unsqueeze(-1)
    exps = math.e ** (scores - top)
    return torch.div(exps, exps.sum(-1)[..., None])


@wrong("stable-softmax", "The columns sum to one")
def softmax_of_columns(scores):
    return torch.softmax(scores, 0)


@wrong("stable-softmax", "All numbers together sum to one")
def softmax_of_everything(scores):
    exps = (scores - scores.max()).exp()
    return exps / exps.sum()


@wrong("stable-softmax", "not divided by their sum")
def softmax_without_division(scores):
    return scores.exp()


@wrong("stable-softmax", "the exponential is missing")
def softmax_without_exponential(scores):
    return scores / scores.sum(-1, keepdim=True)


@wrong("stable-softmax", "logarithm of the softmax")
def softmax_log(scores):
    return torch.log_softmax(scores, -1)


@wrong("stable-softmax", "divided by the largest of their row")
def softmax_over_largest(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


@wrong("stable-softmax", "largest score was taken of each column")
def softmax_column_maximum(scores):
    return softmax_plain(scores - scores.amax(0, keepdim=True))


@wrong("stable-softmax", "axis 1")
def softmax_of_axis_1(scores):
    return torch.softmax(scores, 1)


@wrong("stable-softmax", "exp(10000) overflows")
def softmax_plain(scores):
    exps = scores.exp()
    return exps / exps.sum(-1, keepdim=True)


@wrong("stable-softmax", "Large scores were clamped")
def softmax_clamped(scores):
    return softmax_plain(scores.clamp(-500, 500))


@wrong("stable-softmax", "largest score of the whole tensor was subtracted")
def softmax_global_maximum(scores):
    return softmax_plain(scores - scores.max())


@wrong("stable-softmax", "dtype float64. It should be float32")
def softmax_in_float64(scores):
    return torch.softmax(scores.double(), -1)


@wrong("stable-softmax", "changed its input `scores`")
def softmax_in_place(scores):
    scores -= scores.amax(-1, keepdim=True)
    return softmax_shifted(scores)


@wrong("stable-softmax", "The result is a list")
def softmax_list(scores):
    return softmax_shifted(scores).tolist()


@wrong("stable-softmax", "carries no gradient")
def softmax_detached(scores):
    return softmax_shifted(scores.data)


# causal-from-shape ------------------------------------------------------------------------------


@right("causal-from-shape")
def causal_by_positions(n, m):
    return torch.arange(m - n, m)[:, None] >= torch.arange(m)


@right("causal-from-shape")
def causal_by_triangle(n, m):
    return torch.ones(n, m, dtype=torch.bool).tril(diagonal=m - n)


@right("causal-from-shape")
def causal_in_loops(n, m):
    mask = torch.zeros(n, m, dtype=torch.bool)
    for i in range(n):
        mask[i, : max(0, i + 1 + m - n)] = True
    return mask


@wrong("causal-from-shape", "The mask is inverted")
def causal_inverted(n, m):
    return ~causal_by_triangle(n, m)


@wrong("causal-from-shape", "The diagonal is missing")
def causal_strict(n, m):
    return torch.ones(n, m, dtype=torch.bool).tril(m - n - 1)


@wrong("causal-from-shape", "One key too many")
def causal_one_ahead(n, m):
    return torch.ones(n, m, dtype=torch.bool).tril(m - n + 1)


@wrong("causal-from-shape", "aligned to the first key")
def causal_first_key(n, m):
    return torch.ones(n, m, dtype=torch.bool).tril()


@wrong("causal-from-shape", "Rows and columns are exchanged")
def causal_upper(n, m):
    return torch.ones(n, m, dtype=torch.bool).triu()


@wrong("causal-from-shape", "The shape is (m, n)")
def causal_turned(n, m):
    return causal_by_triangle(n, m).T if n != m else causal_by_triangle(n, m)


@wrong("causal-from-shape", "The shape is square")
def causal_square(n, m):
    return causal_by_triangle(m, m)


@wrong("causal-from-shape", "additive mask")
def causal_additive(n, m):
    return torch.zeros(n, m).masked_fill(~causal_by_triangle(n, m), -math.inf)


@wrong("causal-from-shape", "ones and zeros")
def causal_float(n, m):
    return torch.ones(n, m).tril(m - n)


@wrong("causal-from-shape", "stand before the first key")
def causal_never_empty(n, m):
    return torch.ones(n, m, dtype=torch.bool).tril(max(m - n, 0))


# masked-attention -------------------------------------------------------------------------------


def scores_of(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


@right("masked-attention")
def masked_filled_twice(q, k, v, mask):
    scores = scores_of(q, k).masked_fill(~mask, -math.inf)
    return scores.softmax(-1).masked_fill(~mask, 0.0) @ v


@right("masked-attention")
def masked_exponentials(q, k, v, mask):
    scores = scores_of(q, k).masked_fill(~mask, -math.inf)
    top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).min)
    exps = (scores - top).exp()
    total = exps.sum(-1, keepdim=True)
    return exps / total.masked_fill(total == 0, 1.0) @ v


@right("masked-attention")
def masked_by_a_large_number(q, k, v, mask):
    scores = torch.where(mask, scores_of(q, k), torch.finfo(q.dtype).min)
    return scores.softmax(-1) * mask @ v


@wrong("masked-attention", "The scale is missing")
def masked_unscaled(q, k, v, mask):
    return (q @ k.mT).masked_fill(~mask, -math.inf).softmax(-1).masked_fill(~mask, 0.0) @ v


@wrong("masked-attention", "divided by d. The scale is √d")
def masked_by_d(q, k, v, mask):
    return masked_filled_twice(q / math.sqrt(q.shape[-1]), k, v, mask)


@wrong("masked-attention", "The softmax ran over the queries")
def masked_columns(q, k, v, mask):
    return scores_of(q, k).masked_fill(~mask, -math.inf).softmax(-2).nan_to_num() @ v


@wrong("masked-attention", "The mask is inverted")
def masked_inverted(q, k, v, mask):
    return scores_of(q, k).masked_fill(mask, -math.inf).softmax(-1) @ v


@wrong("masked-attention", "The mask is inverted")
def masked_inverted_without_nan(q, k, v, mask):
    return masked_filled_twice(q, k, v, ~mask)


@wrong("masked-attention", "The mask is inverted")
def masked_inverted_by_a_large_number(q, k, v, mask):
    return scores_of(q, k).masked_fill(mask, -1e9).softmax(-1) @ v


@wrong("masked-attention", "The mask was not used")
def masked_not(q, k, v, mask):
    return scores_of(q, k).softmax(-1) @ v


@wrong("masked-attention", "applied after the softmax")
def masked_late(q, k, v, mask):
    return scores_of(q, k).softmax(-1) * mask @ v


@wrong("masked-attention", "exp(0) is 1")
def masked_by_product(q, k, v, mask):
    return (scores_of(q, k) * mask).softmax(-1) @ v


@wrong("masked-attention", "added to the scores as ones and zeros")
def masked_by_adding_ones(q, k, v, mask):
    return (scores_of(q, k) + mask).softmax(-1) @ v


@wrong("masked-attention", "still has influence")
def masked_too_gently(q, k, v, mask):
    return (scores_of(q, k) - 20.0 * ~mask).softmax(-1) @ v


@wrong("masked-attention", "got the mean of all values")
def masked_fill_large(q, k, v, mask):
    return scores_of(q, k).masked_fill(~mask, -1e9).softmax(-1) @ v


@wrong("masked-attention", "same number was added to each of its scores")
def masked_add_large(q, k, v, mask):
    return (scores_of(q, k) + torch.where(mask, 0.0, -1e9)).softmax(-1) @ v


@wrong("masked-attention", "came back as NaN")
def masked_nan(q, k, v, mask):
    return scores_of(q, k).masked_fill(~mask, -math.inf).softmax(-1) @ v


@wrong("masked-attention", "The gradient with respect to `q`")
def masked_nan_in_the_gradient(q, k, v, mask):
    additive = torch.where(mask, 0.0, -math.inf)
    return ((scores_of(q, k) + additive).softmax(-1) @ v).nan_to_num()


@wrong("masked-attention", "made to sum to one again")
def masked_late_and_shared_out_again(q, k, v, mask):
    weights = scores_of(q, k).softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300) @ v


@wrong("masked-attention", "overflows. Subtract the largest")
def masked_exponentials_unshifted(q, k, v, mask):
    exps = scores_of(q, k).exp().masked_fill(~mask, 0.0)
    total = exps.sum(-1, keepdim=True)
    return (exps / total.masked_fill(total == 0, 1.0)) @ v


@wrong("masked-attention", "changed its input `mask`")
def masked_in_place(q, k, v, mask):
    forbidden = mask.logical_not_()
    return scores_of(q, k).masked_fill(forbidden, -math.inf).softmax(-1) @ v


# causal-attention -------------------------------------------------------------------------------


def later_than(scores):
    return torch.ones_like(scores, dtype=torch.bool).triu(1)


@right("causal-attention")
def causal_by_the_upper_triangle(q, k, v):
    scores = scores_of(q, k)
    return scores.masked_fill(later_than(scores), -math.inf).softmax(-1) @ v


@right("causal-attention")
def causal_row_by_row(q, k, v):
    rows = [
        scores_of(q[:, i : i + 1], k[:, : i + 1]).softmax(-1) @ v[:, : i + 1]
        for i in range(q.shape[1])
    ]
    return torch.cat(rows, dim=1)


@wrong("causal-attention", "Over which scores does each softmax run?")
def causal_as_given(q, k, v):
    scores = scores_of(q, k)
    return scores.masked_fill(later_than(scores), -math.inf).softmax(-2) @ v


@wrong("causal-attention", "its output is its own value")
def causal_over_the_batch(q, k, v):
    scores = scores_of(q, k)
    return scores.masked_fill(later_than(scores), -math.inf).softmax(0).nan_to_num() @ v


@wrong("causal-attention", "the future leaks into the past")
def causal_the_wrong_triangle(q, k, v):
    scores = scores_of(q, k)
    return scores.masked_fill(torch.ones_like(scores).tril().bool(), -1e9).softmax(-1) @ v


@wrong("causal-attention", "the future leaks into the past")
def causal_one_too_many(q, k, v):
    scores = scores_of(q, k)
    return scores.masked_fill(later_than(scores).triu(2), -math.inf).softmax(-1) @ v


@wrong("causal-attention", "not even itself")
def causal_without_the_diagonal(q, k, v):
    scores = scores_of(q, k)
    forbidden = torch.ones_like(scores).triu().bool()
    return scores.masked_fill(forbidden, -1e9).softmax(-1).masked_fill(forbidden, 0.0) @ v


@wrong("causal-attention", "the future leaks into the past")
def causal_after_the_softmax(q, k, v):
    scores = scores_of(q, k)
    return scores.softmax(-1).masked_fill(later_than(scores), 0.0) @ v


@wrong("causal-attention", "The scale is lost")
def causal_unscaled(q, k, v):
    scores = q @ k.mT
    return scores.masked_fill(later_than(scores), -math.inf).softmax(-1) @ v


@wrong("causal-attention", "can be outweighed")
def causal_by_adding_a_large_number(q, k, v):
    scores = scores_of(q, k)
    return (scores - 1e9 * later_than(scores)).softmax(-1) @ v


# self-attention-layer ---------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """A right answer whose parts the wrong ones change."""

    bias, places = False, -1

    def __init__(self, d_model, d_k, d_v):
        super().__init__()
        self.query, self.key, self.value = (
            torch.nn.Linear(d_model, d, bias=self.bias) for d in (d_k, d_k, d_v)
        )

    def hide(self, scores):
        return scores.masked_fill(later_than(scores), -math.inf)

    def width(self, x, k, v):
        return k.shape[-1]

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = self.hide(q @ k.mT / math.sqrt(self.width(x, k, v)))
        return scores.softmax(self.places).nan_to_num() @ v


@right("self-attention-layer")
class LayerOfLinears(Layer):
    pass


@right("self-attention-layer")
class LayerOfParameters(torch.nn.Module):
    def __init__(self, d_model, d_k, d_v):
        super().__init__()
        self.w_v = torch.nn.Parameter(torch.randn(d_model, d_v))
        self.w_k = torch.nn.Parameter(torch.randn(d_model, d_k))
        self.w_q = torch.nn.Parameter(torch.randn(d_model, d_k))

    def forward(self, x):
        return attention.attend(x @ self.w_q, x @ self.w_k, x @ self.w_v, causal=True)


@wrong("self-attention-layer", "Hand over the class of your layer")
def layer_as_a_function(d_model, d_k, d_v):
    return lambda x: x[..., :d_v]


@wrong("self-attention-layer", "have biases")
class LayerWithBiases(Layer):
    bias = True


@wrong("self-attention-layer", "Are the matrices parameters")
class LayerWithoutParameters(torch.nn.Module):
    def __init__(self, d_model, d_k, d_v):
        super().__init__()
        self.maps = [torch.randn(d_model, d).double() for d in (d_k, d_k, d_v)]

    def forward(self, x):
        q, k, v = (x @ w for w in self.maps)
        return attention.attend(q, k, v, causal=True)


@wrong("self-attention-layer", "the future leaks into the past")
class LayerWithoutMask(Layer):
    def hide(self, scores):
        return scores


@wrong("self-attention-layer", "The scale is missing")
class LayerUnscaled(Layer):
    def width(self, x, k, v):
        return 1


@wrong("self-attention-layer", "divided by √d_model")
class LayerScaledByTheModel(Layer):
    def width(self, x, k, v):
        return x.shape[-1]


@wrong("self-attention-layer", "divided by √d_v")
class LayerScaledByTheValue(Layer):
    def width(self, x, k, v):
        return v.shape[-1]


@wrong("self-attention-layer", "the future leaks into the past")
class LayerOverQueries(Layer):
    places = -2


@wrong("self-attention-layer", "Does a gradient reach all three")
class LayerDetached(Layer):
    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        return self.hide(q.detach() @ k.mT.detach() / math.sqrt(k.shape[-1])).softmax(-1) @ v


# circle-matrices --------------------------------------------------------------------------------


KINDS, COLOURS = torch.eye(3), torch.eye(4)


def circle(asks=9 * KINDS[[2, 0, 1]], answers=KINDS, hands=COLOURS):
    """Three matrices whose rows for the kinds, or for the colours, are given."""
    none = torch.zeros(4, asks.shape[1])
    w_v = torch.cat([torch.zeros(3, hands.shape[1]), hands])
    return torch.cat([asks, none]), torch.cat([answers, torch.zeros(4, answers.shape[1])]), w_v


@right("circle-matrices")
def circle_of_axes():
    return circle()


@right("circle-matrices")
def circle_in_the_plane():
    turn = 2 * math.pi / 3 * torch.arange(3)
    along = torch.stack([turn.cos(), turn.sin()], dim=1)
    return list(circle(6 * along[[2, 0, 1]], along, 3 * COLOURS.int()))


@wrong("circle-matrices", "Return three matrices")
def circle_of_two():
    return circle()[:2]


@wrong("circle-matrices", "W_q should be a tensor with seven rows")
def circle_transposed():
    return tuple(w.T for w in circle())


@wrong("circle-matrices", "as many columns")
def circle_of_two_widths():
    w_q, w_k, w_v = circle()
    return w_q[:, :2], w_k, w_v


@wrong("circle-matrices", "W_v should have four columns")
def circle_of_kinds():
    return circle(hands=COLOURS[:, :3])


@wrong("circle-matrices", "in another order: return your second, then your first")
def circle_backwards():
    return circle(9 * KINDS[[1, 2, 0]])


@wrong("circle-matrices", "the circle runs the other way")
def circle_backwards_of_other_colours():
    return circle(9 * KINDS[[1, 2, 0]], hands=COLOURS.flip(0))


@wrong("circle-matrices", "So it reads itself")
def circle_of_selves():
    return circle(9 * KINDS, 2 * KINDS)


@wrong("circle-matrices", "are one matrix")
def circle_shared():
    return circle(3 * KINDS, 3 * KINDS)


@wrong("circle-matrices", "longer queries")
def circle_of_short_queries():
    return circle(KINDS[[2, 0, 1]])


@wrong("circle-matrices", "It changes with the colours")
def circle_of_colours():
    w_q, w_k, w_v = circle()
    return w_q, torch.cat([w_k[:3], 3 * COLOURS[:, :3]]), w_v


@wrong("circle-matrices", "not largest at red. The kind has a part in it")
def circle_that_hands_over_kinds():
    w_q, w_k, w_v = circle()
    return w_q, w_k, w_v + torch.cat([2 * COLOURS[1:], torch.zeros(4, 4)])


@wrong("circle-matrices", "largest at its own place")
def circle_of_other_colours():
    return circle(hands=COLOURS.flip(0))


@wrong("circle-matrices", "colours are right")
def circle_of_loud_colours():
    return circle(3 * KINDS[[2, 0, 1]], hands=torch.diag(torch.tensor([1.0, 1, 1, 9])))


# padding-from-lengths ---------------------------------------------------------------------------


@right("padding-from-lengths")
def padding_by_broadcasting(lengths, max_len):
    return torch.arange(max_len) < lengths[:, None, None, None]


@right("padding-from-lengths")
def padding_in_loops(lengths, max_len):
    mask = torch.zeros(len(lengths), 1, 1, max_len, dtype=torch.bool)
    for row, length in zip(mask, lengths.tolist(), strict=True):
        row[..., :length] = True
    return mask


@wrong("padding-from-lengths", "The mask is inverted")
def padding_inverted(lengths, max_len):
    return ~padding_by_broadcasting(lengths, max_len)


@wrong("padding-from-lengths", "One key too many")
def padding_one_more(lengths, max_len):
    return torch.arange(max_len) <= lengths[:, None, None, None]


@wrong("padding-from-lengths", "at the end of the sequence")
def padding_left(lengths, max_len):
    return padding_by_broadcasting(lengths, max_len).flip(-1)


@wrong("padding-from-lengths", "hides the queries (rows), not the keys (columns)")
def padding_rows(lengths, max_len):
    return padding_by_broadcasting(lengths, max_len).mT


@wrong("padding-from-lengths", "hides queries as well as keys")
def padding_rows_and_columns(lengths, max_len):
    mask = padding_by_broadcasting(lengths, max_len)
    return mask & mask.mT


@wrong("padding-from-lengths", "meet the queries")
def padding_matrix(lengths, max_len):
    return torch.arange(max_len) < lengths[:, None]


@wrong("padding-from-lengths", "meet the heads")
def padding_without_heads(lengths, max_len):
    return torch.arange(max_len) < lengths[:, None, None]


@wrong("padding-from-lengths", "as wide as the longest sequence")
def padding_of_the_longest(lengths, max_len):
    return padding_by_broadcasting(lengths, int(lengths.max()))


@wrong("padding-from-lengths", "ones and zeros")
def padding_float(lengths, max_len):
    return padding_by_broadcasting(lengths, max_len).float()


# attention-backward -----------------------------------------------------------------------------


def backward_with(q, k, v, grad_output, through_softmax, scale=None):
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    a = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    grad_s = through_softmax(a, grad_output @ v.mT) * scale
    return grad_s @ k, grad_s.mT @ q, a.mT @ grad_output


def softmax_backward(a, grad_a):
    return a * (grad_a - (a * grad_a).sum(-1, keepdim=True))


@right("attention-backward")
def backward_by_formula(q, k, v, grad_output):
    return backward_with(q, k, v, grad_output, softmax_backward)


@right("attention-backward")
def backward_by_jacobian(q, k, v, grad_output):
    def through(a, grad_a):
        jacobian = torch.diag_embed(a) - a[..., :, None] * a[..., None, :]
        return (jacobian @ grad_a[..., None]).squeeze(-1)

    return backward_with(q, k, v, grad_output, through)


@right("attention-backward")
def backward_by_output(q, k, v, grad_output):
    """The row sum of A∘dA is the dot product of the output and its gradient."""
    scale = q.shape[-1] ** -0.5
    a = torch.softmax(scale * q @ k.mT, -1)
    row = (grad_output * (a @ v)).sum(-1, keepdim=True)
    grad_s = a * (grad_output @ v.mT - row)
    return [scale * grad_s @ k, scale * grad_s.mT @ q, a.mT @ grad_output]


@wrong("attention-backward", "The softmax was skipped")
def backward_without_softmax(q, k, v, grad_output):
    return backward_with(q, k, v, grad_output, lambda a, grad_a: grad_a)


@wrong("attention-backward", "second half of the softmax Jacobian is missing")
def backward_without_row_sum(q, k, v, grad_output):
    return backward_with(q, k, v, grad_output, lambda a, grad_a: a * grad_a)


@wrong("attention-backward", "only the diagonal of the softmax Jacobian")
def backward_of_the_diagonal(q, k, v, grad_output):
    return backward_with(q, k, v, grad_output, lambda a, grad_a: a * (1 - a) * grad_a)


@wrong("attention-backward", "ran over the queries")
def backward_column_sum(q, k, v, grad_output):
    def through(a, grad_a):
        return a * (grad_a - (a * grad_a).sum(-2, keepdim=True))

    return backward_with(q, k, v, grad_output, through)


@wrong("attention-backward", "is of dA alone")
def backward_plain_sum(q, k, v, grad_output):
    def through(a, grad_a):
        return a * (grad_a - grad_a.sum(-1, keepdim=True))

    return backward_with(q, k, v, grad_output, through)


@wrong("attention-backward", "The scale is missing on the way back")
def backward_unscaled(q, k, v, grad_output):
    return backward_with(q, k, v, grad_output, softmax_backward, scale=1.0)


@wrong("attention-backward", "scores without the scale")
def backward_of_unscaled(q, k, v, grad_output):
    a = (q @ k.mT).softmax(-1)
    grad_s = softmax_backward(a, grad_output @ v.mT)
    return grad_s @ k, grad_s.mT @ q, a.mT @ grad_output


@wrong("attention-backward", "used A where it needs Aᵀ")
def backward_values_turned(q, k, v, grad_output):
    grad_q, grad_k, _ = backward_by_formula(q, k, v, grad_output)
    return grad_q, grad_k, (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ grad_output


@wrong("attention-backward", "used dS where it needs dSᵀ")
def backward_keys_turned(q, k, v, grad_output):
    grad_q, _, grad_v = backward_by_formula(q, k, v, grad_output)
    a = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    grad_s = softmax_backward(a, grad_output @ v.mT) / math.sqrt(q.shape[-1])
    return grad_q, grad_s @ q, grad_v


@wrong("attention-backward", "q and k are exchanged")
def backward_exchanged(q, k, v, grad_output):
    grad_q, grad_k, grad_v = backward_by_formula(q, k, v, grad_output)
    return grad_k, grad_q, grad_v


@wrong("attention-backward", "in another order")
def backward_from_the_end(q, k, v, grad_output):
    return backward_by_formula(q, k, v, grad_output)[::-1]


@wrong("attention-backward", "Return three tensors")
def backward_of_two(q, k, v, grad_output):
    return backward_by_formula(q, k, v, grad_output)[:2]


@wrong("attention-backward", "at your line")
def backward_without_batch(q, k, v, grad_output):
    a = (q @ k.t() / math.sqrt(q.shape[-1])).softmax(-1)
    grad_s = softmax_backward(a, grad_output @ v.t()) / math.sqrt(q.shape[-1])
    return grad_s @ k, grad_s.t() @ q, a.t() @ grad_output


@wrong("attention-backward", "Autograd was used")
def backward_by_autograd(q, k, v, grad_output):
    with torch.enable_grad():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        output = F.scaled_dot_product_attention(*leaves)
        return torch.autograd.grad(output, leaves, grad_output)


# streaming-attention ----------------------------------------------------------------------------


@right("streaming-attention")
def streaming(q, chunks):
    top, total, output = torch.tensor(-math.inf), 0.0, 0.0
    for k, v in chunks:
        scores = k @ q / math.sqrt(len(q))
        new = torch.maximum(top, scores.max())
        old_to_new = torch.exp(top - new)
        exps = torch.exp(scores - new)
        total = total * old_to_new + exps.sum()
        output = output * old_to_new + exps @ v
        top = new
    return output / total


@right("streaming-attention")
def streaming_by_log_sum_exp(q, chunks):
    lse, output = -math.inf, 0.0
    while (chunk := next(chunks, None)) is not None:
        k, v = chunk
        scores = k @ q * len(q) ** -0.5
        added = scores.logsumexp(0).item()
        both = np.logaddexp(lse, added)
        output = output * math.exp(lse - both) + scores.softmax(0) @ v * math.exp(added - both)
        lse = both
    return output


def stream_with(q, chunks, *, scale=None, total_factor=1.0, output_factor=1.0):
    """Rescale by exp(old - new) to the power of a factor."""
    scale = len(q) ** -0.5 if scale is None else scale
    top, total, output = None, 0.0, 0.0
    for k, v in chunks:
        scores = k @ q * scale
        new = scores.max() if top is None else torch.maximum(top, scores.max())
        shift = 0.0 if top is None else (top - new).item()
        exps = (scores - new).exp()
        total = total * math.exp(shift * total_factor) + exps.sum()
        output = output * math.exp(shift * output_factor) + exps @ v
        top = new
    return output, total


@wrong("streaming-attention", "The scale is missing")
def streaming_unscaled(q, chunks):
    output, total = stream_with(q, chunks, scale=1.0)
    return output / total


@wrong("streaming-attention", "divided by d. The scale is √d")
def streaming_by_d(q, chunks):
    output, total = stream_with(q, chunks, scale=1 / len(q))
    return output / total


@wrong("streaming-attention", "not divided by the sum")
def streaming_without_division(q, chunks):
    return stream_with(q, chunks)[0]


@wrong("streaming-attention", "multiply the sum and the weighted values by exp(old - new)")
def streaming_without_rescaling(q, chunks):
    output, total = stream_with(q, chunks, total_factor=0, output_factor=0)
    return output / total


@wrong("streaming-attention", "rescaled the sum of exponentials but not the weighted values")
def streaming_forgets_the_values(q, chunks):
    output, total = stream_with(q, chunks, output_factor=0)
    return output / total


@wrong("streaming-attention", "rescaled the weighted values but not the sum")
def streaming_forgets_the_sum(q, chunks):
    output, total = stream_with(q, chunks, total_factor=0)
    return output / total


@wrong("streaming-attention", "The rescaling goes the wrong way")
def streaming_wrong_way(q, chunks):
    output, total = stream_with(q, chunks, total_factor=-1, output_factor=-1)
    return output / total


@wrong("streaming-attention", "the results were averaged")
def streaming_mean_of_chunks(q, chunks):
    return torch.stack([(k @ q / len(q) ** 0.5).softmax(0) @ v for k, v in chunks]).mean(0)


@wrong("streaming-attention", "the results were added")
def streaming_sum_of_chunks(q, chunks):
    return sum((k @ q / len(q) ** 0.5).softmax(0) @ v for k, v in chunks)


@wrong("streaming-attention", "over the last chunk alone")
def streaming_last_chunk(q, chunks):
    for k, v in chunks:
        output = (k @ q / len(q) ** 0.5).softmax(0) @ v
    return output


@wrong("streaming-attention", "over the first chunk alone")
def streaming_first_chunk(q, chunks):
    k, v = next(chunks)
    return (k @ q / len(q) ** 0.5).softmax(0) @ v


@wrong("streaming-attention", "subtract the running maximum")
def streaming_without_maximum(q, chunks):
    total = output = 0.0
    for k, v in chunks:
        exps = (k @ q / len(q) ** 0.5).exp()
        total, output = total + exps.sum(), output + exps @ v
    return output / total


@wrong("streaming-attention", "subtract the running maximum")
def streaming_with_the_first_maximum(q, chunks):
    total = output = 0.0
    top = None
    for k, v in chunks:
        scores = k @ q / len(q) ** 0.5
        top = scores.max() if top is None else top
        exps = (scores - top).exp()
        total, output = total + exps.sum(), output + exps @ v
    return output / total


@wrong("streaming-attention", "holds earlier chunks")
def streaming_list(q, chunks):
    pairs = list(chunks)
    return streaming(q, iter(pairs))


@wrong("streaming-attention", "holds earlier chunks")
def streaming_concatenation(q, chunks):
    all_k, all_v = next(chunks)
    for k, v in chunks:
        all_k, all_v = torch.cat([all_k, k]), torch.cat([all_v, v])
    return (all_k @ q / len(q) ** 0.5).softmax(0) @ all_v


@wrong("streaming-attention", "holds earlier chunks")
def streaming_twice(q, chunks):
    first, second = itertools.tee(chunks)
    top = max((k @ q).max() for k, _ in first) / len(q) ** 0.5
    total = output = 0.0
    for k, v in second:
        exps = (k @ q / len(q) ** 0.5 - top).exp()
        total, output = total + exps.sum(), output + exps @ v
    return output / total


# the package's own answers ----------------------------------------------------------------------

LIBRARY = {
    "soft-lookup": lambda query, keys, values, temperature=1.0: attention.soft_lookup(
        query[None], keys, values, temperature=temperature
    )[0],
    "stable-softmax": lambda scores: attention.masked_softmax(scores[None])[0],
    "causal-from-shape": attention.causal_mask,
    "masked-attention": lambda q, k, v, mask: attention.attend(q, k, v, mask=mask),
    "padding-from-lengths": lambda lengths, max_len: (
        attention.padding_mask(lengths, max_len)[:, None]
    ),
}
