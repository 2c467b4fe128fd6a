"""sparsity_designer: who sees whom in one layer, what that costs, and what it keeps apart."""

from functools import lru_cache

from tfbook.teaching.explorables._base import Explorable, boolean, one_of, whole, wrapped
from tfbook.teaching.explorables._chance import uniforms

TITLE = "Who sees whom, and what has to travel"
MOST = 64  # tokens in the picture
MOST_RANDOM = 4  # keys drawn for each query
MOST_LAYERS = 8
D_HEAD, SIZE = 64, 2  # of the head that is priced: numbers in a key, bytes of a score
OFF = {
    "window": 1, "dilation": 1, "stride": 0, "block": 0, "global_tokens": 0, "sinks": 0,
    "random_keys": 0, "causal": True,
}  # fmt: skip
PRESETS = {
    "full": OFF | {"window": "all"},
    "window": OFF | {"window": 4},
    "strided": OFF | {"window": 6, "stride": 6},
    "longformer": OFF | {"window": 3, "global_tokens": 1, "causal": False},
    "bigbird": OFF | {"window": 2, "global_tokens": 2, "random_keys": 2, "causal": False},
    "streaming": OFF | {"window": 5, "sinks": 1},
}
LABELS = {
    "full": "Full", "window": "Window", "strided": "Sparse Transformer, strided",
    "longformer": "Longformer", "bigbird": "BigBird", "streaming": "Streaming, with sinks",
}  # fmt: skip
LINKS = {
    "previous": "the token just before", "first": "the first token", "middle": "one halfway back",
    "answer": "the answer", "future": "the last, asked by the first",
}  # fmt: skip
STOPS = {
    "length": [8192, 16_384, 32_768, 65_536, 131_072],
    "cell": [16, 32, 64, 128],
}


def sparsity_designer(
    preset: str = "window",
    *,
    n: int = 32,
    answer: int = 4,
    layers: int = 1,
    length: int = 32_768,
    cell: int = 64,
    seed: int = 0,
    window: int | str | None = None,
    dilation: int | None = None,
    stride: int | None = None,
    block: int | None = None,
    global_tokens: int | None = None,
    sinks: int | None = None,
    random_keys: int | None = None,
    causal: bool | None = None,
) -> Explorable:
    r"""Return a figure in which a sparse pattern of attention is put together.

    Query $i$ sees itself and every key that one of the rules allows: $|i - j| = t d$ with $t$ below
    the window and $d$ the dilation; $i - j$ a multiple of the stride; both in the same block; $j$
    among the sinks or the global tokens, or $i$ a global token; $j$ drawn at random for $i$. With
    `causal` only $j \le i$. What a token has it keeps, since a layer adds to it, so after $L$
    layers query $i$ may know of key $j$ if a chain of at most $L$ such links leads to it.

    At a real length each cell of the pattern stands for a block of `cell` tokens, computed whole:
    $N / \text{cell}$ rows under the same rules. One head of 64 numbers takes
    $4 \cdot 64$ FLOPs and, if scores are kept in 16 bits, 2 bytes for each pair.

    Args:
        preset: "full", "window", "strided", "longformer", "bigbird" or "streaming"; it sets what is
            not given below.
        n: Tokens in the picture, 4 to 64.
        answer: Where the token stands that the last one needs, 0 to n - 1.
        layers: Layers after which the picture shows what has arrived, 1 to 8.
        length: Tokens of the real sequence, 8192 to 131 072.
        cell: Tokens for which a cell stands there, 16 to 128.
        seed: Of the random keys, 0 to 9999.
        window: Keys on each side, the query's own counted, 1 to 64, or "all".
        dilation: Distance from one key of the window to the next, 1 to 8.
        stride: Distance of keys all along the sequence, 2 to 64; 0 for none.
        block: Tokens that see each other, 2 to 64; 0 for none.
        global_tokens: First tokens that see all and that all see, 0 to 8.
        sinks: First tokens that all see, 0 to 8.
        random_keys: Keys drawn for each query, 0 to 4; one may be drawn twice.
        causal: Whether no query sees what comes after it.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [child2019generating], [beltagy2020longformer], [zaheer2020big],
    [xiao2024efficient].
    Explained in: chapters/07_efficient_attention, section "How far a token reaches".
    """
    chosen = PRESETS[one_of("preset", *PRESETS)(preset)]
    own = {
        "window": window, "dilation": dilation, "stride": stride, "block": block,
        "global_tokens": global_tokens, "sinks": sinks, "random_keys": random_keys,
        "causal": causal,
    }  # fmt: skip
    given = {
        "n": n, "answer": answer, "layers": layers, "length": length, "cell": cell, "seed": seed,
        **{name: chosen[name] if value is None else value for name, value in own.items()},
    }  # fmt: skip
    checks = {
        "n": whole("n", 4, MOST),
        "answer": whole("answer", 0, MOST - 1),
        "layers": whole("layers", 1, MOST_LAYERS),
        "length": whole("length", STOPS["length"][0], STOPS["length"][-1]),
        "cell": whole("cell", STOPS["cell"][0], STOPS["cell"][-1]),
        "seed": whole("seed", 0, 9999),
        "window": _window,
        "dilation": whole("dilation", 1, 8),
        "stride": _none_or("stride"),
        "block": _none_or("block"),
        "global_tokens": whole("global_tokens", 0, 8),
        "sinks": whole("sinks", 0, 8),
        "random_keys": whole("random_keys", 0, MOST_RANDOM),
        "causal": boolean("causal"),
    }
    state = {name: check(given[name]) for name, check in checks.items()}
    if state["answer"] >= state["n"]:
        raise ValueError(f"answer must be below n = {n}, got {answer}")
    data = {
        "title": TITLE, "presets": PRESETS, "labels": LABELS, "links": LINKS, "stops": STOPS,
        "most": {"n": MOST, "random_keys": MOST_RANDOM, "layers": MOST_LAYERS}, "d_head": D_HEAD,
        "size": SIZE,
    }  # fmt: skip
    return Explorable(
        "sparsity_designer", data=data, state=state, checks=checks, results=_results, text=_text
    )


def _window(value: object) -> int | str:
    """Let "all" and whole numbers from 1 to 64 through."""
    if isinstance(value, str):
        if value != "all":
            raise ValueError(f'window must be "all" or 1 to {MOST}, got {value!r}')
        return value
    return whole("window", 1, MOST)(value)


def _none_or(name: str):
    """Return a check that lets 0 and whole numbers from 2 to 64 through."""
    check = whole(name, 0, MOST)

    def checked(value):
        if check(value) == 1:
            raise ValueError(f"{name} must be 0 for none or 2 to {MOST}, got 1")
        return value

    return checked


def _drawn(i: int, last: int, now: dict, chance: list[float]) -> list[int]:
    """Return the keys drawn for query i, from 0 to `last`."""
    first = MOST_RANDOM * i
    return [int(u * (last + 1)) for u in chance[first : first + now["random_keys"]]]


def _few(i: int, last: int, now: dict, chance: list[float]) -> set[int]:
    """Return what query i sees up to key `last` but for its stride."""
    step, block = now["dilation"], now["block"]
    keys = {i, *_drawn(i, last, now, chance)}
    keys.update(range(min(max(now["global_tokens"], now["sinks"]), last + 1)))
    for t in range(1, now["window"]):
        keys.update(j for j in (i - t * step, i + t * step) if 0 <= j <= last)
    if block:
        start = i - i % block
        keys.update(range(start, min(start + block, last + 1)))
    return keys


def rows(n: int, now: dict, chance: list[float]) -> list[set[int]]:
    """Return for each of n queries the keys that it sees."""
    seen = []
    for i in range(n):
        last = i if now["causal"] else n - 1
        if now["window"] == "all" or i < now["global_tokens"]:
            seen.append(set(range(last + 1)))
            continue
        keys = _few(i, last, now, chance)
        if now["stride"]:
            keys.update(range(i % now["stride"], last + 1, now["stride"]))
        seen.append(keys)
    return seen


def kept(n: int, now: dict, chance: list[float]) -> int:
    """Return how many pairs n queries see, without a list of those at the stride."""
    total, stride = 0, now["stride"]
    for i in range(n):
        last = i if now["causal"] else n - 1
        if now["window"] == "all" or i < now["global_tokens"]:
            total += last + 1
            continue
        keys = _few(i, last, now, chance)
        if stride:
            total += (last - i % stride) // stride + 1
            total += sum((i - j) % stride != 0 for j in keys)
        else:
            total += len(keys)
    return total


@lru_cache(maxsize=16)
def _priced(real: int, seed: int, rules: tuple[tuple[str, object], ...]) -> tuple[int, int]:
    """Return how many pairs so many queries see, and twice as many."""
    chance = uniforms(seed, 2 * real * MOST_RANDOM)
    return kept(real, dict(rules), chance), kept(2 * real, dict(rules), chance)


def distances(seen: list[set[int]]) -> list[list[int | None]]:
    """Return after how many layers each query may know of each key; None for never."""
    found: list[list[int | None]] = []
    for i in range(len(seen)):
        after: list[int | None] = [None] * len(seen)
        after[i] = 0
        edge = [i]
        while edge:
            ahead = []
            for k in edge:
                for j in seen[k]:
                    if after[j] is None:
                        after[j] = after[k] + 1
                        ahead.append(j)
            edge = ahead
        found.append(after)
    return found


def _results(now: dict) -> dict:
    n, causal = now["n"], now["causal"]
    answer = min(now["answer"], n - 1)
    real = now["length"] // now["cell"]
    chance = uniforms(now["seed"], n * MOST_RANDOM)
    seen = rows(n, now, chance)
    after = distances(seen)
    wanted = [after[i][j] for i in range(n) for j in range(i + 1 if causal else n)]
    links = {
        "previous": (n - 1, n - 2), "first": (n - 1, 0), "middle": (n - 1, n // 2),
        "answer": (n - 1, answer),
    }  # fmt: skip
    if not causal:
        links["future"] = (0, n - 1)
    cells, twice = _priced(real, now["seed"], tuple((name, now[name]) for name in OFF))
    pairs = cells * now["cell"] ** 2
    count = sum(map(len, seen))
    return {
        "preset": next((name for name, p in PRESETS.items() if p.items() <= now.items()), None),
        "kept": count,
        "share": count / n**2,
        "rows": [sorted(row) for row in seen],
        "reached": sum(x is not None and x <= now["layers"] for row in after for x in row),
        "first_layers": after[n - 1][0],
        "all_layers": None if None in wanted else max(wanted),
        "answer_layers": after[n - 1][answer],
        "links": {name: after[i][j] for name, (i, j) in links.items()},
        "pairs": pairs,
        "real_share": cells / real**2,
        "flops": 4 * D_HEAD * pairs,
        "score_bytes": SIZE * pairs,
        "growth": twice / cells,
    }


def _layers(count: int | None) -> str:
    if count is None:
        return "never"
    return f"after {count} layer{'s' * (count != 1)}"


def _text(now: dict) -> str:
    found = _results(now)
    called = LABELS.get(found["preset"], "A pattern of one's own")
    lost = [LINKS[name] for name, count in found["links"].items() if count is None]
    far = [LINKS[name] for name, count in found["links"].items() if count is not None and count > 1]
    told = " ".join(
        f"{what}: {', '.join(names)}."
        for what, names in (("Never met", lost), ("Met only by way of others", far))
        if names
    )
    return wrapped(f"""{TITLE}

    {called}, {now["n"]} tokens, {"causal" if now["causal"] else "in both directions"}: a layer
    keeps {found["kept"]:,} of {now["n"] ** 2:,} pairs, {100 * found["share"]:.1f}%. The first
    token reaches the last {_layers(found["first_layers"])}; every pair that a full layer would
    join meets {_layers(found["all_layers"])}. An answer at {min(now["answer"], now["n"] - 1)}
    reaches the last token {_layers(found["answer_layers"])}. {told}

    At {now["length"]:,} tokens, in blocks of {now["cell"]}, a head computes {found["pairs"]:,}
    scores, {100 * found["real_share"]:.2f}% of all: {found["flops"] / 1e9:,.2f} GFLOP, and
    {found["score_bytes"] / 2**20:,.1f} MiB if they are kept. Twice the length takes
    {found["growth"]:.2f} times as many.

    In the page you choose the rules of the pattern, move the answer, and see after how many layers
    it can arrive.""")
