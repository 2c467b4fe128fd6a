"""The exercises of chapter 06 on counting: FLOPs of an answer, bytes of attention weights."""

from typing import Any

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect_number

# answer-flops -----------------------------------------------------------------------------------


def answer_flops(
    d_model: int, n_layers: int, n_heads: int, n_kv_heads: int, d_head: int, d_ff: int,
    vocab_size: int, prompt: int, answer: int,
) -> int:  # fmt: skip
    """Count the FLOPs with which a decoder in the style of LLaMA reads a prompt and answers it.

    The prompt goes through in one pass, then each written token but the last, which nobody reads.
    Keys and values of earlier tokens come from a cache. A layer has attention, in which n_heads
    heads of queries share n_kv_heads heads of keys and values, and a feed-forward network of the
    kind SwiGLU; nothing has a bias. Each token meets itself and those before it, and no later ones.
    A linear layer behind the last one gives the scores of the vocabulary, only where a token is
    chosen by them. Count matrix products only, and a multiplication with its addition as 2 FLOPs.

    d_model: width. n_layers: layers. n_heads: heads of the queries. n_kv_heads: heads of keys and
    values. d_head: width of one head. d_ff: hidden features of the network. vocab_size: tokens of
    the vocabulary. prompt: tokens that are read, at least 1. answer: tokens that are written, at
    least 1.
    Returns: the number of FLOPs, an int.
    """
    ...


def _row_flops(d: int, heads: int, shared: int, width: int, d_ff: int) -> int:
    return 4 * d * heads * width + 4 * d * shared * width + 6 * d * d_ff


def _answer_odd(flops: Any) -> None:
    """Rows, allowed pairs and scores of the vocabulary are counted, each as often as it comes."""
    d, n, h, g, w, f, v, p, a = 52, 3, 6, 2, 7, 37, 101, 12, 5
    sizes = dict(
        d_model=d, n_layers=n, n_heads=h, n_kv_heads=g, d_head=w, d_ff=f, vocab_size=v,
        prompt=p, answer=a,
    )  # fmt: skip
    row, pair, scores = n * _row_flops(d, h, g, w, f), n * 4 * h * w, 2 * d * v
    t = p + a - 1  # tokens that go through the layers
    pairs = t * (t + 1) // 2
    right = t * row + pairs * pair + a * scores
    again = [p + k for k in range(a)]  # lengths that a program without a cache would read
    expect_number(flops, sizes, right, {
        "These are multiplications with their additions. Each of them is 2 FLOPs.": right // 2,
        "The output layer was counted for every token that goes through. Its scores are needed "
        "only where a token is chosen, once for each written one.": right + (t - a) * scores,
        "The output layer was counted once. Each written token is chosen by scores of its own.":
            right - (a - 1) * scores,
        "The output layer is missing: d_model features to vocab_size scores.": right - a * scores,
        "The output layer was counted in each layer. It comes once for each written token.":
            right + (n - 1) * a * scores,
        "The last written token was sent through the layers too. Nobody reads it.":
            right + row + (t + 1) * pair,
        "Only the prompt went through the layers. Each written token but the last is read too.":
            p * row + p * (p + 1) // 2 * pair + a * scores,
        "Each step read the whole text again. The cache holds the keys and values of what was "
        "read: a token goes through the layers once.":
            sum(again) * row + sum(m * (m + 1) // 2 for m in again) * pair + a * scores,
        "Each token met all others, later ones too. The mask leaves token i the first i tokens.":
            right + (t * t - pairs) * pair,
        "A token meets itself too: it was left out of the pairs.": right - t * pair,
        "Attention uses each pair twice: for a score, then for the sum of the values.":
            right - pairs * pair // 2,
        "Scores and sum are missing. They have no parameters, but each allowed pair costs.":
            right - pairs * pair,
        "The scores were counted with n_kv_heads. Keys and values are shared, but each of the "
        "n_heads query heads has scores and a sum of its own.": right - pairs * n * 4 * (h - g) * w,
        "The scores were counted with d_model features. A query has n_heads·d_head.":
            right + pairs * n * 4 * (d - h * w),
        "The scores of one head were counted. Each of the n_heads heads has its own.":
            right - pairs * n * 4 * (h - 1) * w,
        "The network has two matrices here. SwiGLU has three: gate, up and down.":
            right - t * n * 2 * d * f,
        "Keys and values were projected to n_heads heads. They have n_kv_heads.":
            right + t * n * 4 * d * (h - g) * w,
        "All projections were counted with n_kv_heads. Queries and output have n_heads.":
            right - t * n * 4 * d * (h - g) * w,
        "The projections of attention were counted as d_model × d_model. Queries have "
        "n_heads·d_head features, keys and values n_kv_heads·d_head.":
            right + t * n * (8 * d * d - 4 * d * (h + g) * w),
        "The layers were counted once. Each of the n_layers layers computes.":
            (t * row + pairs * pair) // n + a * scores,
        "The backward pass was counted too. Here the model learns nothing.": 3 * right,
    })  # fmt: skip


def _answer_split(flops: Any) -> None:
    """A token costs as much to write as to read, but for the scores that it is chosen by."""
    sizes = dict(d_model=20, n_layers=2, n_heads=6, n_kv_heads=3, d_head=5, d_ff=31, vocab_size=17)
    first = flops(**sizes, prompt=30, answer=1)
    for moved in (1, 7, 29):
        case = {**sizes, "prompt": 30 - moved, "answer": 1 + moved}
        got, wanted = flops(**case) - first, moved * 2 * 20 * 17
        if got != wanted:
            raise Wrong(
                "As many tokens go through the layers, and meet as many before them, whether they "
                "are read or written. Only the scores of the vocabulary are computed more often. "
                f"With {moved} of 30 tokens of the prompt written instead, there should be so many "
                "FLOPs more:", given=case, got=got, wanted=wanted,
            )  # fmt: skip


def _answer_grows(flops: Any) -> None:
    """The thousandth token costs more than the first by the tokens that it meets."""
    sizes = dict(
        d_model=20, n_layers=2, n_heads=6, n_kv_heads=3, d_head=5, d_ff=31, vocab_size=17, answer=1
    )
    row, pair = 2 * _row_flops(20, 6, 3, 5, 31), 2 * 4 * 6 * 5
    for n in (2, 100, 1000):
        case = {**sizes, "prompt": n}
        got, wanted = flops(**case) - flops(**{**sizes, "prompt": n - 1}), row + n * pair
        if got != wanted:
            raise Wrong(
                f"With a prompt of {n:,} tokens in place of {n - 1:,}, one more token goes through "
                f"the layers, and meets {n:,}, itself included. That should be so many FLOPs more:",
                given=case, got=got, wanted=wanted,
            )  # fmt: skip


def _answer_smollm(flops: Any) -> None:
    """SmolLM2-135M reads 1,000 tokens and writes 200 for 316 billion FLOPs."""
    sizes = dict(
        d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, d_head=64, d_ff=1536,
        vocab_size=49_152, prompt=1000, answer=200,
    )  # fmt: skip
    expect_number(flops, sizes, 315_641_180_160, {})


ANSWER_FLOPS = Exercise(
    name="answer-flops",
    title="What does an answer cost?",
    level=2,
    section='chapters/06_complexity, section "Both under the roof"',
    stub=answer_flops,
    properties=(_answer_odd, _answer_split, _answer_grows, _answer_smollm),
    hints=(
        "Sort the work into three kinds: what each token costs that goes through the layers, what "
        "each pair of tokens costs, and what each choice of a token costs. How often does each "
        "kind come?",
        "Take a prompt of 3 tokens and an answer of 2. Which tokens go through the layers? Write "
        "down whom each of them meets, and from which rows a token is chosen.",
        "A layer has seven matrices, with `2 * d_model * (q + kv) + 3 * d_model * d_ff` numbers, "
        "where `q = n_heads * d_head` and `kv = n_kv_heads * d_head`. A pair costs `4 * q` FLOPs a "
        "layer. The pairs of t tokens are 1 + 2 + … + t.",
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
    """512 tokens and 8 heads keep 8.4 MB of 32-bit weights in one layer."""
    sizes = dict(n=512, d_model=512, n_heads=8, n_layers=1, bytes_per_number=4)
    expect_number(memory, sizes, 8 * 2**20, {})


ATTENTION_MEMORY = Exercise(
    name="attention-memory",
    title="Half a gigabyte too much",
    level=2,
    section='chapters/06_complexity_deeper, section "What a backward pass keeps of attention"',
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

EXERCISES = (ANSWER_FLOPS, ATTENTION_MEMORY)
