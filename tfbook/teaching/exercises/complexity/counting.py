"""The exercises of chapter 06 on counting: FLOPs of one token, bytes of attention weights."""

from typing import Any

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect_number

# token-flops ------------------------------------------------------------------------------------


def token_flops(
    d_model: int, n_layers: int, n_heads: int, n_kv_heads: int, d_head: int, d_ff: int,
    vocab_size: int, context: int,
) -> int:  # fmt: skip
    """Count the FLOPs that a decoder in the style of LLaMA spends on one new token.

    Keys and values of earlier tokens come from a cache. A layer has attention, in which n_heads
    heads of queries share n_kv_heads heads of keys and values, and a feed-forward network of the
    kind SwiGLU; nothing has a bias. A linear layer behind the last one gives the logits. Count
    matrix products only, and a multiplication with its addition as 2 FLOPs.

    d_model: width. n_layers: layers. n_heads: heads of the queries. n_kv_heads: heads of keys and
    values. d_head: width of one head. d_ff: hidden features of the network. vocab_size: tokens of
    the vocabulary. context: positions that the token sees, itself included.
    Returns: the number of FLOPs, an int.
    """
    ...


def _layer_flops(d: int, heads: int, shared: int, width: int, d_ff: int, context: int) -> int:
    attention = 4 * d * heads * width + 4 * d * shared * width + 4 * heads * width * context
    return attention + 6 * d * d_ff


def _flops_odd(flops: Any) -> None:
    """Projections, scores, network and logits are counted, each with the right sizes."""
    d, n, h, g, w, f, v, c = 52, 3, 6, 2, 7, 37, 101, 11
    sizes = dict(
        d_model=d, n_layers=n, n_heads=h, n_kv_heads=g, d_head=w, d_ff=f, vocab_size=v, context=c
    )
    one, logits = _layer_flops(d, h, g, w, f, c), 2 * d * v
    right = n * one + logits
    expect_number(flops, sizes, right, {
        "These are multiplications with their additions. Each of them is 2 FLOPs.": right // 2,
        "The output layer is missing: d_model features to vocab_size logits.": right - logits,
        "The network has two matrices here. SwiGLU has three: gate, up and down.":
            right - n * 2 * d * f,
        "The scores were counted with n_kv_heads. Keys and values are shared, but each of the "
        "n_heads query heads has scores and a sum of its own.": right - n * 4 * (h - g) * w * c,
        "Keys and values were projected to n_heads heads. They have n_kv_heads.":
            right + n * 4 * d * (h - g) * w,
        "All projections were counted with n_kv_heads. Queries and output have n_heads.":
            right - n * 4 * d * (h - g) * w,
        "The layers were counted once. Each of the n_layers layers computes.": one + logits,
        "The output layer was counted in each layer. It comes once.": right + (n - 1) * logits,
        "The context is squared. One new token has one row of scores, not one for each position.":
            right + n * 4 * h * w * (c * c - c),
        "The layers were counted for all positions. Those before are done: the cache holds their "
        "keys and values.": (c * right, right + (c - 1) * n * one,
                             right + (c - 1) * n * (one - 4 * h * w * c)),
        "The embedding was counted as a product. It looks up one row: no FLOPs.": right + logits,
        "The token sees itself too: it was left out of the context.": right - n * 4 * h * w,
        "Attention uses the context twice: scores with the keys, then a sum of the values.":
            right - n * 2 * h * w * c,
        "Scores and sum are missing. They have no parameters, but each position seen costs.":
            right - n * 4 * h * w * c,
        "The scores were counted with d_model features. A query has n_heads·d_head.":
            right + n * 4 * (d - h * w) * c,
        "The scores of one head were counted. Each of the n_heads heads has its own.":
            right - n * 4 * (h - 1) * w * c,
        "The projections of attention were counted as d_model × d_model. Queries have "
        "n_heads·d_head features, keys and values n_kv_heads·d_head.":
            right + n * (8 * d * d - 4 * d * (h + g) * w),
        "The output projection of attention is missing: n_heads·d_head features back to d_model.":
            right - n * 2 * d * h * w,
        "Keys and values were counted once together. Each has a matrix.": right - n * 2 * d * g * w,
        "The backward pass was counted too. Here the model reads a token and learns nothing.":
            3 * right,
    })  # fmt: skip


def _flops_shared(flops: Any) -> None:
    """Fewer heads of keys and values make two projections smaller and nothing else."""
    sizes = dict(d_model=20, n_layers=2, n_heads=12, d_head=3, d_ff=31, vocab_size=17, context=5)
    found = {shared: flops(**sizes, n_kv_heads=shared) for shared in (12, 4, 1)}
    for shared in (4, 1):
        got, wanted = found[12] - found[shared], 2 * 4 * 20 * (12 - shared) * 3
        if got != wanted:
            raise Wrong(
                "With fewer heads of keys and values, their two projections shrink by d_model · "
                f"d_head products for each head, and nothing else does. From 12 heads to {shared}:",
                given={**sizes, "n_kv_heads": shared}, got=got, wanted=wanted,
            )  # fmt: skip


def _flops_context(flops: Any) -> None:
    """Each position more costs 4·n_layers·n_heads·d_head FLOPs, the hundredth like the second."""
    sizes = dict(d_model=20, n_layers=2, n_heads=6, n_kv_heads=3, d_head=5, d_ff=31, vocab_size=17)
    first = flops(**sizes, context=1)
    for context in (2, 3, 100, 4096):
        got, wanted = flops(**sizes, context=context) - first, (context - 1) * 4 * 2 * 6 * 5
        if got != wanted:
            raise Wrong(
                "The FLOPs should grow by the same number with each position that is seen. From 1 "
                f"position to {context}:",
                given={**sizes, "context": context}, got=got, wanted=wanted,
            )  # fmt: skip


def _flops_smollm(flops: Any) -> None:
    """SmolLM2-135M spends 276 million FLOPs on its hundredth token."""
    sizes = dict(
        d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, d_head=64, d_ff=1536,
        vocab_size=49_152, context=100,
    )  # fmt: skip
    expect_number(flops, sizes, 275_871_744, {})


TOKEN_FLOPS = Exercise(
    name="token-flops",
    title="What does the next token cost?",
    level=2,
    section='chapters/06_complexity, section "Count the products"',
    stub=token_flops,
    properties=(_flops_odd, _flops_shared, _flops_context, _flops_smollm),
    hints=(
        "Write down the shape of every matrix that the token's vector meets on its way to the "
        "logits. A matrix with a·b numbers costs one vector 2·a·b FLOPs.",
        "A layer has seven matrices: four in attention, three in the network. Two of the four are "
        "narrower. Besides, every query head meets context keys and as many values.",
        "With `q = n_heads * d_head` and `kv = n_kv_heads * d_head`, the four matrices of "
        "attention have `2 * d_model * (q + kv)` numbers. Scores and sum take `4 * q * context` "
        "FLOPs a layer.",
    ),
    warm=("torch._dynamo",),  # PyTorch's counter of FLOPs loads it
)

# attention-memory -------------------------------------------------------------------------------


def attention_memory(
    n: int, d_model: int, n_heads: int, n_layers: int, bytes_per_number: int
) -> int:
    """Count the bytes of the attention weights that training keeps for one sequence.

    The backward pass needs the weights that every layer has computed, so all of them are kept.
    Where a mask forbids a token to see another, the weight is 0, and is kept as well.

    n: tokens of the sequence. d_model: width of a token. n_heads: heads of a layer. n_layers:
    layers. bytes_per_number: 2 for 16-bit numbers, 4 for 32-bit numbers.
    Returns: the number of bytes, an int.
    """
    pairs = n * n
    weights = pairs * d_model
    return n_layers * weights * bytes_per_number


def _memory_pairs(memory: Any) -> None:
    """Each head of each layer keeps one number for each pair of tokens."""
    n, d, h, layers, size = 11, 45, 5, 3, 4
    sizes = dict(n=n, d_model=d, n_heads=h, n_layers=layers, bytes_per_number=size)
    one = layers * size * n * n
    expect_number(memory, sizes, one * h, {
        "Each pair has d_model numbers here. Queries and keys have that many, but their product is "
        "one number for each pair and head.": (one * d, one * d * h),
        "Each pair has d_head numbers in a head. The sum over them is taken: one weight is left.":
            one * d // h,
        "The heads are missing. Each head has weights of its own.": one,
        "A head has n·d_head numbers here, as queries and keys have. Weights belong to pairs.":
            layers * size * n * d,
        "Each head has n numbers here. It has one for each pair: n·n.": layers * size * n * h,
        "The layers are missing: each keeps its weights until the backward pass.":
            one * h // layers,
        "This is how many numbers are kept. Multiply by the bytes of one number.": one * h // size,
        "These are bits. A byte has eight of them.": 8 * one * h,
        "Half of the pairs were left out. Masked pairs have a weight too, 0, which is kept.":
            (one * h // 2, layers * size * h * n * (n + 1) // 2),
    })  # fmt: skip


def _memory_width(memory: Any) -> None:
    """Wider tokens have no more weights, more heads and more tokens do."""
    sizes = dict(n=6, d_model=36, n_heads=4, n_layers=2, bytes_per_number=2)
    once = 2 * 2 * 4 * 36
    expect_number(memory, sizes, once, {})
    expect_number(memory, {**sizes, "d_model": 72}, once, {
        "With tokens twice as wide there are more bytes. A weight is one number, however long the "
        "query and the key are.": (2 * once, 4 * once),
    })  # fmt: skip
    expect_number(memory, {**sizes, "n_heads": 8}, 2 * once, {
        "With twice as many heads of half the width there are no more bytes. Queries and keys take "
        "as many as before, weights twice as many.": once,
    })  # fmt: skip
    expect_number(memory, {**sizes, "n": 12}, 4 * once, {
        "With twice as many tokens there should be four times as many pairs.": 2 * once,
    })  # fmt: skip


def _memory_layer(memory: Any) -> None:
    """512 tokens and 8 heads keep 8 MiB of 32-bit weights in one layer."""
    sizes = dict(n=512, d_model=512, n_heads=8, n_layers=1, bytes_per_number=4)
    expect_number(memory, sizes, 8 * 2**20, {})


ATTENTION_MEMORY = Exercise(
    name="attention-memory",
    title="Half a gibibyte too much",
    level=2,
    section='chapters/06_complexity, section "Where memory goes"',
    stub=attention_memory,
    properties=(_memory_pairs, _memory_width, _memory_layer),
    hints=(
        "Take 2 tokens and one head. Write down all weights: how many are there, and does their "
        "number depend on how long the queries are?",
        "The scores of one head are `Q @ K.T`, with Q and K of shape (n, d_head). What is the "
        "shape of the product, and how many such products does a layer have?",
        "One factor in the line `weights = …` is a width that the product `Q @ K.T` has summed "
        "away.",
    ),
    broken=True,
)

EXERCISES = (TOKEN_FLOPS, ATTENTION_MEMORY)
