"""Right and wrong answers to the exercises of chapter 07.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import math

import torch
from answers import collect

from tfbook.attention import attend
from tfbook.efficient import attend_linear, attend_window, window_mask

RIGHT, WRONG, right, wrong = collect()
LIBRARY = {
    "near-attention": lambda q, k, v, window: attend_window(q, k, v, window=window, causal=True),
    "running-attention": lambda phi_q, phi_k, v: attend_linear(
        phi_q, phi_k, v, feature=lambda x: x, causal=True, form="recurrent"
    ),
}


# near-attention ---------------------------------------------------------------------------------


@right("near-attention")
def near_masked(q, k, v, window):
    gap = torch.arange(len(q))[:, None] - torch.arange(len(k))
    near = (gap >= 0) & (gap < window)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~near, -math.inf).softmax(-1) @ v


@right("near-attention")
def near_by_rows(q, k, v, window):
    rows = []
    for i in range(len(q)):
        a = max(i - window + 1, 0)
        rows.append((q[i] @ k[a : i + 1].mT / math.sqrt(q.shape[-1])).softmax(-1) @ v[a : i + 1])
    return torch.stack(rows)


def masked(message, allow, fill=-math.inf, scaled=True):
    """Note a wrong answer: attention under another mask, or filled with another number."""

    def near(q, k, v, window):
        gap = torch.arange(len(q))[:, None] - torch.arange(len(k))
        scores = q @ k.mT / (math.sqrt(q.shape[-1]) if scaled else 1)
        return scores.masked_fill(~allow(gap, window), fill).softmax(-1) @ v

    near.__name__ = message
    wrong("near-attention", message)(near)


masked("One key too many", lambda gap, w: (gap >= 0) & (gap <= w))
masked("into the future", lambda gap, w: gap.abs() < w)
masked("the distant past is not", lambda gap, w: gap >= 0)
masked("Forbidden scores are 0", lambda gap, w: (gap >= 0) & (gap < w), fill=0.0)
masked("not divided by √d", lambda gap, w: (gap >= 0) & (gap < w), scaled=False)


@wrong("near-attention", "do not sum to 1")
def near_cut(q, k, v, window):
    near = window_mask(len(q), window=window, causal=True)
    return ((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) * near.double()) @ v


@wrong("near-attention", "nothing of the past is left out")
def near_at_most_four(q, k, v, window):
    return near_masked(q, k, v, min(window, 4))


# block-attention --------------------------------------------------------------------------------


def promised(q, k, block):
    return q @ k.unflatten(0, (-1, block)).mean(1).mT


def read(q, k, v, block, promise, top):
    best = promise.topk(top).indices
    mask = torch.zeros_like(promise, dtype=torch.bool).scatter_(-1, best, True)
    return attend(q, k, v, mask=mask.repeat_interleave(block, -1))


@wrong("block-attention", "A mask hides scores that have been computed")
def blocks_masked(q, k, v, block, top):
    return read(q, k, v, block, promised(q, k, block), top)


@right("block-attention")
def blocks_indexed(q, k, v, block, top):
    best = promised(q, k, block).topk(top).indices
    keys, values = (x.unflatten(0, (-1, block))[best].flatten(1, 2) for x in (k, v))
    return attend(q[:, None], keys, values)[:, 0]


@right("block-attention")
def blocks_gathered(q, k, v, block, top):
    rows = []
    for row, best in zip(q, promised(q, k, block).topk(top).indices, strict=True):
        keys, values = (x.unflatten(0, (-1, block))[best].flatten(0, 1) for x in (k, v))
        rows.append(attend(row[None], keys, values)[0])
    return torch.stack(rows)


@wrong("block-attention", "serves all queries")
def blocks_joint(q, k, v, block, top):
    promise = promised(q, k, block)
    return read(q, k, v, block, promise.sum(0, keepdim=True).expand_as(promise), top)


@wrong("block-attention", "by their best key")
def blocks_by_best(q, k, v, block, top):
    return read(q, k, v, block, (q @ k.mT).unflatten(-1, (-1, block)).amax(-1), top)


@wrong("block-attention", "by their first key")
def blocks_by_first(q, k, v, block, top):
    return read(q, k, v, block, q @ k[::block].mT, top)


@wrong("block-attention", "promise least")
def blocks_least(q, k, v, block, top):
    return read(q, k, v, block, -promised(q, k, block), top)


@wrong("block-attention", "One block is read")
def blocks_one(q, k, v, block, top):
    return read(q, k, v, block, promised(q, k, block), 1)


@wrong("block-attention", "All blocks are read")
def blocks_every(q, k, v, block, top):
    return attend(q, k, v)


@wrong("block-attention", "the softmax ran over all keys")
def blocks_cut(q, k, v, block, top):
    promise = promised(q, k, block)
    mask = torch.zeros_like(promise).scatter_(-1, promise.topk(top).indices, 1.0)
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) * mask.repeat_interleave(block, -1) @ v


@wrong("block-attention", "not divided by √d")
def blocks_unscaled(q, k, v, block, top):
    return blocks_masked(q * math.sqrt(q.shape[-1]), k, v, block, top)


@wrong("block-attention", "mean values of the blocks are mixed")
def blocks_of_means(q, k, v, block, top):
    promise = promised(q, k, block)
    mask = torch.zeros_like(promise, dtype=torch.bool)
    mask.scatter_(-1, promise.topk(top).indices, True)
    k, v = (x.unflatten(0, (-1, block)).mean(1) for x in (k, v))
    return attend(q, k, v, mask=mask)


@wrong("block-attention", "Three blocks of two")
def blocks_at_most_two(q, k, v, block, top):
    return blocks_masked(q, k, v, block, min(top, 2))


@wrong("block-attention", "did not choose")
def blocks_with_a_leak(q, k, v, block, top):
    found = blocks_masked(q, k, v, block, top)
    return found + 1e-3 * v.mean(0) if len(q) == 1 else found


# running-attention ------------------------------------------------------------------------------


@right("running-attention")
def running_loop(phi_q, phi_k, v):
    state, total = v.new_zeros(phi_k.shape[-1], v.shape[-1]), v.new_zeros(phi_k.shape[-1])
    rows = []
    for q, k, value in zip(phi_q, phi_k, v, strict=True):
        state, total = state + torch.outer(k, value), total + k
        rows.append(q @ state / (q @ total))
    return torch.stack(rows)


@right("running-attention")
def running_sums(phi_q, phi_k, v):
    states = (phi_k[:, :, None] * v[:, None]).cumsum(0)  # (n, r, d_v)
    mixed = torch.einsum("nr,nrd->nd", phi_q, states)
    return mixed / (phi_q * phi_k.cumsum(0)).sum(-1, keepdim=True)


def weighted(message, change):
    """Note a wrong answer: other weights, made of the products of features."""

    def running(phi_q, phi_k, v):
        return change(phi_q @ phi_k.mT) @ v

    running.__name__ = message
    wrong("running-attention", message)(running)


weighted("not divided by their sum", lambda w: w.tril())
weighted("The future is seen", lambda w: w / w.sum(-1, keepdim=True))
weighted("go through a softmax", lambda w: w.masked_fill(w.tril() == 0, -math.inf).softmax(-1))


@wrong("running-attention", "All values are 1")
def running_without_itself(phi_q, phi_k, v):
    w = (phi_q @ phi_k.mT).tril(-1)
    return w / w.sum(-1, keepdim=True) @ v


@wrong("running-attention", "does not see itself")
def running_one_late(phi_q, phi_k, v):
    found = running_without_itself(phi_q, phi_k, v)
    return found if v.min() != v.max() else v


@wrong("running-attention", "exchanged")
def running_exchanged(phi_q, phi_k, v):
    return running_loop(phi_k, phi_q, v)


@wrong("running-attention", "Compare with the weights")
def running_of_squares(phi_q, phi_k, v):
    return running_loop(phi_q, phi_k.square(), v)


@wrong("running-attention", "has changed the results")
def running_peeks(phi_q, phi_k, v):
    found = running_loop(phi_q, phi_k, v)
    return found + 1e-8 * phi_k[-1].sum() if len(v) != 4 else found + phi_k[-1].sum()


# merge-states -----------------------------------------------------------------------------------


@right("merge-states")
def merged_plainly(a, b):
    top = torch.maximum(a[0], b[0])
    left, right_ = (a[0] - top).exp(), (b[0] - top).exp()
    return top, left * a[1] + right_ * b[1], left * a[2] + right_ * b[2]


@right("merge-states")
def merged_by_stacks(a, b):
    tops, totals, mixes = (torch.stack(parts) for parts in zip(a, b, strict=True))
    top = tops.amax(0)
    factors = (tops - top).exp()
    return top, (factors * totals).sum(0), (factors * mixes).sum(0)


@right("merge-states")
def merged_by_logarithms(a, b):
    top = torch.maximum(a[0], b[0])
    whole = torch.logaddexp(a[0] + a[1].log(), b[0] + b[1].log())
    mixed = sum(s[2] * (s[0] - top).exp() for s in (a, b))
    return top, (whole - top).exp(), mixed


def merged(message, change):
    """Note a wrong answer, made of both states, the common top and the right factors."""

    def merge(a, b):
        top = torch.maximum(a[0], b[0])
        return change(a, b, top, (a[0] - top).exp(), (b[0] - top).exp())

    merge.__name__ = message
    wrong("merge-states", message)(merge)


merged("added as they are", lambda a, b, top, x, y: (top, a[1] + b[1], a[2] + b[2]))
merged("upside down", lambda a, b, top, x, y: (top, a[1] / x + b[1] / y, a[2] / x + b[2] / y))
merged("Both need the same factor", lambda a, b, top, x, y: (top, x * a[1] + y * b[1], a[2] + b[2]))
merged("The smaller of both", lambda a, b, top, x, y: (torch.minimum(a[0], b[0]), a[1], a[2]))
merged("of the first state is kept", lambda a, b, top, x, y: (a[0], a[1] + b[1], a[2] + b[2]))
merged(
    "the division comes",
    lambda a, b, top, x, y: (
        top, x * a[1] + y * b[1], (x * a[2] + y * b[2]) / (x * a[1] + y * b[1])
    ),
)  # fmt: skip
merged(
    "by its own total",
    lambda a, b, top, x, y: (
        top, x * a[1] + y * b[1], x * a[2] / a[1] + y * b[2] / b[1]
    ),
)  # fmt: skip


@wrong("merge-states", "something is infinite")
def merged_without_tops(a, b):
    top = torch.maximum(a[0], b[0])
    total, mixed = (a[0].exp() * a[i] + b[0].exp() * b[i] for i in (1, 2))
    return top, total / top.exp(), mixed / top.exp()


@wrong("merge-states", "One state is empty")
def merged_unless_empty(a, b):
    top = torch.maximum(a[0], b[0])
    left, right_ = (1 / (top - s[0]).exp() for s in (a, b))
    empty = (left == 0).any() or (right_ == 0).any()
    if empty and a[1].min() * b[1].min() == 0:
        return top, a[1] + b[1] + 1, a[2] + b[2]
    return top, left * a[1] + right_ * b[1], left * a[2] + right_ * b[2]


@wrong("merge-states", "Return three tensors")
def merged_to_an_output(a, b):
    top, total, mixed = merged_plainly(a, b)
    return mixed / total
