"""The exercises of chapter 03 on what heads cost, and on sharing keys and values."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    expect,
    expect_gradients,
    expect_number,
    numbers,
    plain_attention,
)

# count-parameters -------------------------------------------------------------------------------


def count_parameters(
    d_model: int, n_heads: int, n_kv_heads: int, d_head: int, bias: bool
) -> int:
    """Count the numbers that an attention module learns.

    Queries have n_heads heads, keys and values have n_kv_heads heads each, all of width d_head.
    The heads are concatenated and projected back to d_model. With `bias`, each of the four
    projections adds one number to each of its outputs.

    d_model: width of a token. n_heads: heads of the queries. n_kv_heads: heads of keys and values.
    d_head: width of one head. bias: whether the projections have biases.
    Returns: the number of parameters, an int.
    """
    ...


def _parameters(width: int, heads: int, shared: int, d: int, bias: bool) -> int:
    outputs = heads * d + 2 * shared * d
    return width * (outputs + heads * d) + bias * (outputs + width)


def _count_weights(count: Any) -> None:
    """Without biases: queries, keys, values and the output projection."""
    width, heads, d = 60, 5, 7
    arguments = dict(d_model=width, n_heads=heads, n_kv_heads=heads, d_head=d, bias=False)
    one = width * heads * d
    expect_number(count, arguments, 4 * one, {
        "The output projection is missing: W_o maps the H·d features back to d_model.": 3 * one,
        "The heads were counted twice: the matrices of the heads are blocks of the big ones, not "
        "additional to them.": (4 * width**2 + 4 * one, 8 * one),
        "The projections were counted as d_model × d_model. Here the heads do not fill d_model: "
        "H·d_head is another number.": 4 * width**2,
        "The output projection was counted as d_model × d_model. It has H·d_head inputs.":
            3 * one + width**2,
        "This is one head: each of the H heads has weights of its own.": 4 * width * d,
        "Biases were counted although `bias` is False.": 4 * one + 3 * heads * d + width,
        "The output projection was counted once for each head, with d_model inputs.":
            3 * one + heads * width**2,
    })


def _count_shared(count: Any) -> None:
    """Fewer heads of keys and values have fewer weights."""
    width, heads, shared, d = 60, 6, 2, 7
    arguments = dict(d_model=width, n_heads=heads, n_kv_heads=shared, d_head=d, bias=False)
    q, kv = width * heads * d, width * shared * d
    expect_number(count, arguments, 2 * q + 2 * kv, {
        "n_kv_heads was not used: W_k and W_v have n_kv_heads·d_head rows.": 4 * q,
        "All projections were counted with n_kv_heads. Queries and W_o keep n_heads.": 4 * kv,
        "The output projection was counted with n_kv_heads. There is one output for each query "
        "head.": q + 3 * kv,
        "Keys and values were counted once together. They have a matrix each.": 2 * q + kv,
        "The keys alone are shared here. Values have n_kv_heads too.": 3 * q + kv,
    })


def _count_biases(count: Any) -> None:
    """Each projection has one bias for each output."""
    width, heads, shared, d = 60, 6, 2, 7
    arguments = dict(d_model=width, n_heads=heads, n_kv_heads=shared, d_head=d, bias=True)
    weights = _parameters(width, heads, shared, d, False)
    inner = heads * d + 2 * shared * d
    expect_number(count, arguments, weights + inner + width, {
        "The biases are missing.": weights,
        "The bias of the output projection is missing: one number for each of the d_model "
        "outputs.": weights + inner,
        "A bias belongs to an output, not to an input: W_o has d_model biases, the others one for "
        "each of their rows.": (weights + 3 * width + heads * d, weights + inner + heads * d),
        "Four biases of width d_model were counted. A projection has one for each output.":
            weights + 4 * width,
        "The biases of keys and values were counted with n_heads. They have n_kv_heads.":
            weights + 3 * heads * d + width,
        "The biases of keys and values were counted once together.":
            weights + heads * d + shared * d + width,
    })


def _count_real(count: Any) -> None:
    """A module of PyTorch has as many."""
    module = torch.nn.MultiheadAttention(24, 3)
    wanted = sum(p.numel() for p in module.parameters())
    arguments = dict(d_model=24, n_heads=3, n_kv_heads=3, d_head=8, bias=True)
    expect_number(count, arguments, wanted, {})


COUNT_PARAMETERS = Exercise(
    name="count-parameters",
    title="Count the parameters",
    level=1,
    section='chapters/03_multi_head, section "What heads cost"',
    stub=count_parameters,
    properties=(_count_weights, _count_shared, _count_biases, _count_real),
    hints=(
        "Write down the shape of each of the four matrices: outputs × inputs.",
        "W_q has n_heads·d_head rows, W_k and W_v have n_kv_heads·d_head rows each, all with "
        "d_model columns. W_o has d_model rows. Which columns?",
        "W_q has `n_heads * d_head` outputs, and W_o takes as many in. A bias belongs to an "
        "output: how many outputs do the other three have?",
    ),
)

# cache-bytes ------------------------------------------------------------------------------------


def cache_bytes(
    n_layers: int, n_kv_heads: int, d_head: int, length: int, batch: int, bytes_per_number: int
) -> int:
    """Count the bytes of a key-value cache.

    While a model generates, every layer keeps the keys and the values of all earlier tokens, for
    each sequence of the batch.

    n_layers: layers of the model. n_kv_heads: heads of keys and values in a layer. d_head: width
    of one head. length: tokens of a sequence. batch: number of sequences. bytes_per_number: 2 for
    16-bit numbers, 4 for 32-bit numbers.
    Returns: the number of bytes, an int.
    """
    ...


def _cache_product(count: Any) -> None:
    """Keys and values, in each layer, for each token of each sequence."""
    parts = dict(n_layers=3, n_kv_heads=5, d_head=7, length=11, batch=13, bytes_per_number=2)
    one = 3 * 5 * 7 * 11 * 13
    expect_number(count, parts, 2 * 2 * one, {
        "Keys and values are both kept: a factor of 2 is missing.": 2 * one,
        "This is how many numbers are kept. Multiply by the bytes of one number.": one,
        "These are bits. A byte has eight of them.": 32 * one,
        "The length is squared. The scores are not kept, only one key and one value per token.":
            (44 * one, 22 * one),
        "The batch is missing: each sequence has a cache of its own.": 4 * one // 13,
        "The layers are missing: each layer has a cache of its own.": 4 * one // 3,
        "The heads are missing: each head of keys and values is kept.": 4 * one // 5,
        "The width of a head is missing.": 4 * one // 7,
        "The length is missing: a key and a value are kept for each token.": 4 * one // 11,
        "Queries were counted too. A query is used once, when its token comes in.": 6 * one,
    })


def _cache_model(count: Any) -> None:
    """A model with 32 layers and 8 heads of width 128 keeps 128 KiB for a token of 16 bits."""
    parts = dict(n_layers=32, n_kv_heads=8, d_head=128, length=1, batch=1, bytes_per_number=2)
    expect_number(count, parts, 128 * 1024, {})


def _cache_linear(count: Any) -> None:
    """Twice as many heads, tokens or sequences take twice as many bytes."""
    parts = dict(n_layers=2, n_kv_heads=4, d_head=16, length=100, batch=3, bytes_per_number=4)
    once = 2 * 2 * 4 * 16 * 100 * 3 * 4
    expect_number(count, parts, once, {})
    for name in ("n_kv_heads", "length", "batch"):
        expect_number(count, {**parts, name: 2 * parts[name]}, 2 * once, {})


CACHE_BYTES = Exercise(
    name="cache-bytes",
    title="How large is the cache?",
    level=1,
    section='chapters/03_multi_head, section "Fewer keys and values"',
    stub=cache_bytes,
    properties=(_cache_product, _cache_model, _cache_linear),
    hints=(
        "How many numbers does one token leave behind in one layer?",
        "In one layer a token leaves n_kv_heads·d_head numbers of its key and as many of its "
        "value.",
        "Then it is a product: how many layers, tokens and sequences leave that much, and how many "
        "bytes does a number take? Try it with `length=1` and `batch=1` first.",
    ),
)

# grouped-queries --------------------------------------------------------------------------------


def grouped_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute attention in which groups of query heads share a head of keys and values.

    With H query heads and G heads of keys and values, H/G neighbouring query heads form a group:
    the first H/G query heads read keys and values of head 0, the next H/G those of head 1, and so
    on. Scores are divided by √d; there is no mask.

    q: (B, H, N, d). k: (B, G, M, d). v: (B, G, M, e). H is a multiple of G.
    Returns: (B, H, N, e).
    """
    ...


def _groups_case(b: int, h: int, g: int, n: int, m: int, d: int, e: int) -> tuple[Any, ...]:
    shapes = (b, h, n, d), (b, g, m, d), (b, g, m, e)
    return tuple(numbers(*shape, seed=321 + i) for i, shape in enumerate(shapes))


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    size = q.shape[1] // k.shape[1]
    heads = [plain_attention(q[:, h], k[:, h // size], v[:, h // size]) for h in range(q.shape[1])]
    return torch.stack(heads, 1)


def _groups_values(attend: Any) -> None:
    """Neighbouring query heads share a head of keys and values."""
    q, k, v = case = _groups_case(1, 4, 2, 2, 3, 2, 2)
    tiled = plain_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))
    k_all, v_all = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    mean_k, mean_v = k.mean(1, keepdim=True), v.mean(1, keepdim=True)
    expect(
        attend(*case),
        _grouped(*case),
        "Query head h should read keys and values of head h // (H/G).",
        mistakes={
            "The heads of keys and values were repeated in turn, 0 1 0 1. Neighbours form a "
            "group: 0 0 1 1, which is `repeat_interleave`, not `repeat`.": tiled,
            "The heads of keys and values were averaged. Each group reads its own.":
                plain_attention(q, mean_k, mean_v),
            "All query heads read the first head of keys and values.":
                plain_attention(q, k[:, :1], v[:, :1]),
            "The query heads of a group were averaged. Each query head gives a result of its own.":
                plain_attention(q.view(1, 2, 2, 2, 2).mean(2), k, v),
            "The scale is missing: divide the scores by √d.":
                torch.softmax(q @ k_all.mT, -1) @ v_all,
            "Keys go by groups of neighbours but values in turn: both belong to the same head.":
                plain_attention(q, k_all, v.repeat(1, 2, 1, 1)),
            "The softmax ran over the queries. It runs over the keys.":
                torch.softmax(q @ k_all.mT / 2**0.5, -2) @ v_all,
        },
    )


def _groups_all_sizes(attend: Any) -> None:
    """From one shared head to a head for each query head."""
    for heads, groups in ((6, 3), (6, 2), (5, 1), (3, 3)):
        case = _groups_case(2, heads, groups, 2, 5, 3, 7)
        expect(
            attend(*case), _grouped(*case),
            f"With {heads} query heads and {groups} heads of keys and values the result differs.",
        )


def _groups_gradients(attend: Any) -> None:
    """Gradients of all query heads of a group reach their keys and values."""
    q, k, v = _groups_case(1, 4, 2, 2, 3, 2, 3)
    expect_gradients(attend, q=q, k=k, v=v)


GROUPED_QUERIES = Exercise(
    name="grouped-queries",
    title="Heads that share their keys",
    level=2,
    section='chapters/03_multi_head, section "Fewer keys and values"',
    stub=grouped_queries,
    properties=(_groups_values, _groups_all_sizes, _groups_gradients),
    hints=(
        "Write down which head of keys each of 6 query heads reads when there are 2 of them.",
        "Either repeat each head of keys and values H/G times, next to each other, or give the "
        "queries two axes in place of one, (G, H/G), and let keys and values broadcast.",
        "With 6 query heads and 2 of keys, the order of the repeated keys is 0 0 0 1 1 1. Compare "
        "`torch.arange(2).repeat(3)` with `torch.arange(2).repeat_interleave(3)`.",
    ),
)

EXERCISES = (COUNT_PARAMETERS, CACHE_BYTES, GROUPED_QUERIES)
