"""head_viewer: where each head of a model looks, token by token."""

import math
from collections.abc import Mapping, Sequence

from tfbook.teaching.explorables._alignment import tokens
from tfbook.teaching.explorables._base import Explorable, one_of, whole, wrapped
from tfbook.teaching.explorables._packing import packed_weights, unpack_weights

TITLE = "What each head looks at"
MAX_TEXTS, MAX_TOKENS, MAX_HEADS, MAX_CHARACTERS = 8, 64, 300, 150_000
MANY = 32  # with more heads than these the text names only the foremost, and the page has layers
SHARES = {
    "self": "itself",
    "previous": "the previous token",
    "first": "the first token",
    "after_copy": "what followed an earlier copy",
}
AHEAD = {"next": "the next token", "last": "the last token"}  # where there is no causal mask


def head_viewer(
    texts: Sequence[Mapping],
    *,
    text: int = 0,
    layer: int = 0,
    head: int = 0,
    token: int | None = None,
    direction: str = "from",
) -> Explorable:
    r"""Return a figure of the attention weights of every head of a model on a few texts.

    All heads are shown as small maps (of more than 32, those of one layer, and all of them as one
    number each), one of them large; a token can be followed to see where its query looks (row $i$
    of the weights $A$) or which queries look at it (column $j$). The numbers beside a map are
    means over the queries $i \ge 1$, since query 0 has no choice under a causal mask: $A_{ii}$,
    $A_{i,i-1}$, $A_{i0}$, the weight on tokens that followed an earlier copy of token $i$ (over
    those $i$ that have one, as an induction head would look), the distance
    $\sum_j A_{ij}|i-j|$ and the entropy $-\sum_j A_{ij} \ln A_{ij}$ in nats. If a text has no
    causal mask, also $A_{i,i+1}$ and $A_{i,n-1}$ over the queries before the last.

    Args:
        texts: One to eight dictionaries with `tokens`, a list of 2 to 64 strings, `weights` of
            shape `(n_layers, n_heads, n, n)`, as numbers or from `pack_weights`, and, if you
            like, `title`. All with the same layers and heads.
        text: Which text, from 0.
        layer: Which layer, from 0.
        head: Which head, from 0.
        token: Which token is followed, from 0; by default the last.
        direction: "from": where the token looks; "to": who looks at it.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, weights do not fit or are no weights, or all together
            take more than 150 000 characters.

    Source: [olsson2022context].
    Explained in: chapters/03_multi_head, section "What the heads of a small model do".
    """
    if isinstance(texts, (str, Mapping)) or not isinstance(texts, Sequence):
        raise TypeError(f"texts must be a list of dictionaries, got {type(texts).__name__}")
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ValueError(f"texts must be 1 to {MAX_TEXTS} dictionaries, got {len(texts)}")
    kept = [_checked(f"texts[{i}]", t) for i, t in enumerate(texts)]
    n_layers, n_heads = kept[0]["weights"]["shape"][:2]
    for i, t in enumerate(kept):
        if t["weights"]["shape"][:2] != [n_layers, n_heads]:
            raise ValueError(
                f"texts[{i}] weights must be of {n_layers} layers and {n_heads} heads like those "
                f"of texts[0], got shape {tuple(t['weights']['shape'])}"
            )
    if n_layers * n_heads > MAX_HEADS:
        raise ValueError(f"texts must show at most {MAX_HEADS} heads, got {n_layers * n_heads}")
    characters = sum(len(t["weights"]["codes"]) for t in kept)
    if characters > MAX_CHARACTERS:
        raise ValueError(
            f"texts must fit into {MAX_CHARACTERS} characters, got {characters}: "
            "two for each weight; give fewer or shorter texts"
        )
    grids = [unpack_weights(t["weights"]) for t in kept]
    sizes = [len(t["tokens"]) for t in kept]
    places = SHARES if all(t["weights"]["causal"] for t in kept) else SHARES | AHEAD
    checks = {
        "text": whole("text", 0, len(kept) - 1),
        "layer": whole("layer", 0, n_layers - 1),
        "head": whole("head", 0, n_heads - 1),
        "token": whole("token", 0, MAX_TOKENS - 1),
        "direction": one_of("direction", "from", "to"),
    }
    state = {"text": checks["text"](text)}
    last = sizes[text] - 1
    state |= {
        "layer": checks["layer"](layer),
        "head": checks["head"](head),
        "token": whole("token", 0, last)(last if token is None else token),
        "direction": checks["direction"](direction),
    }

    def results(now: dict) -> dict:
        weights = grids[now["text"]][now["layer"]][now["head"]]
        i = min(now["token"], sizes[now["text"]] - 1)
        followed = weights[i] if now["direction"] == "from" else [row[i] for row in weights]
        return {"weights": followed, "stats": head_stats(weights, kept[now["text"]]["tokens"])}

    def words(now: dict) -> str:
        shown = kept[now["text"]]
        found = {
            (i, j): head_stats(weights, shown["tokens"])
            for i, heads in enumerate(grids[now["text"]])
            for j, weights in enumerate(heads)
        }
        lines = []
        if n_layers * n_heads > MANY:
            intro = "the heads that put most of their weight on a place are these"
            for key, place in places.items():
                shares = {at: stats[key] or 0.0 for at, stats in found.items()}
                best = sorted(shares, key=shares.get, reverse=True)[:3]
                listed = ", ".join(f"{i}.{j} {shares[i, j]:.2f}" for i, j in best)
                half = sum(share > 0.5 for share in shares.values())
                lines.append(f"on {place}: {listed} (more than half: {half} heads)")
        else:
            intro = (
                "each head puts most of its weight, of the places counted here, as follows (mean "
                "over queries), and looks so far on average"
            )
            for (i, j), stats in found.items():
                shares = {key: stats[key] for key in places if stats[key] is not None}
                best = max(shares, key=shares.get)
                lines.append(
                    f"head {i}.{j} on {places[best]} {shares[best]:.2f}, distance "
                    f"{stats['distance']:.1f}"
                )
        return wrapped(f"""{TITLE}

        {n_layers} layer{"s" * (n_layers > 1)} of {n_heads} head{"s" * (n_heads > 1)} read
        {len(kept)} text{"s" * (len(kept) > 1)}. On “{shown["title"]}” ({len(shown["tokens"])}
        tokens) {intro}: {"; ".join(lines)}.

        In the page you choose text and head and point at a token: the tokens it looks at, or those
        that look at it, are filled by their weight.""")

    data = {
        "title": TITLE, "texts": kept, "n_layers": n_layers, "n_heads": n_heads,
        "shares": [[key, label] for key, label in places.items()],
    }  # fmt: skip
    return Explorable(
        "head_viewer", data=data, state=state, checks=checks, results=results, text=words
    )


def head_stats(weights: Sequence[Sequence[float]], tokens: Sequence[str]) -> dict:
    """Return what `head_viewer` counts of one head's weights `(n, n)` on n tokens."""
    n = len(tokens)
    copies = {
        i: [j + 1 for j in range(i - 1) if tokens[j] == tokens[i]]  # j + 1 < i
        for i in range(1, n)
    }
    copies = {i: places for i, places in copies.items() if places}

    def mean(values) -> float:
        values = list(values)
        return math.fsum(values) / len(values)

    def entropy(row) -> float:
        return -math.fsum(w * math.log(w) for w in row if w > 0)

    rows, inner = range(1, n), range(1, n - 1)
    looked = [math.fsum(weights[i][j] for j in places) for i, places in copies.items()]
    return {
        "self": mean(weights[i][i] for i in rows),
        "previous": mean(weights[i][i - 1] for i in rows),
        "first": mean(weights[i][0] for i in rows),
        "after_copy": mean(looked) if looked else None,
        "next": mean(weights[i][i + 1] for i in inner) if inner else None,
        "last": mean(weights[i][-1] for i in inner) if inner else None,
        "distance": mean(math.fsum(w * abs(i - j) for j, w in enumerate(weights[i])) for i in rows),
        "entropy": max(0.0, mean(entropy(weights[i]) for i in rows)),
    }


def _checked(name: str, text) -> dict:
    if not isinstance(text, Mapping):
        raise TypeError(f"{name} must be a dictionary, got {type(text).__name__}")
    if missing := {"tokens", "weights"} - set(text):
        raise ValueError(f"{name} must have {', '.join(sorted(missing))}")
    pieces = tokens(f"{name} tokens", text["tokens"], 2, MAX_TOKENS)
    weights = packed_weights(f"{name} weights", text["weights"], 4)
    if weights["shape"][2:] != [len(pieces)] * 2:
        raise ValueError(
            f"{name} weights must have shape (layers, heads, {len(pieces)}, {len(pieces)}) for "
            f"{len(pieces)} tokens, got {tuple(weights['shape'])}"
        )
    glue = "" if all(len(p) == 1 for p in pieces) else " "
    title = text.get("title", glue.join(pieces).strip()[:40])
    if not isinstance(title, str) or not title.strip():
        raise ValueError(f"{name} title must be a text, got {title!r}")
    return {"title": " ".join(title.split()), "tokens": pieces, "weights": weights}
