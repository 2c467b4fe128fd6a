"""alignment_viewer: which words of a source sentence each translated word was read from."""

import math
from collections.abc import Mapping, Sequence

from tfbook.teaching.explorables._base import Explorable, one_of, whole, wrapped
from tfbook.teaching.explorables._packing import packed_weights, unpack_weights

TITLE = "Which word was read from where"
MAX_PAIRS, MAX_TOKENS = 24, 40


def alignment_viewer(
    pairs: Sequence[Mapping], *, chosen: int = 0, side: str = "target", word: int | None = None
) -> Explorable:
    r"""Return a figure of the weights with which each target word read the source words.

    Row $t$ of a pair's weights is the softmax $\alpha_{t1}, \dots, \alpha_{tm}$ over the $m$ source
    words, so it sums to 1. Following a source word instead shows its column, whose sum says how
    much of all reading fell on that word and can be anything from 0 to the number of target words.

    Args:
        pairs: One to 24 dictionaries with `source` and `target`, lists of up to 40 tokens,
            `weights` of shape `(len(target), len(source))`, as numbers or from `pack_weights`,
            and, if there is one, `reference`, the translation by a human.
        chosen: Which pair, from 0.
        side: Follow a word of the "target" or of the "source".
        word: Which word of that side, from 0. By default the target word that was read most clearly
            from one word of the source, both of at least four letters, or else the first.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or weights do not fit their words or are no weights.

    Explained in: chapters/01_motivation_deeper, section "Trained on real sentences".
    """
    if isinstance(pairs, (str, Mapping)) or not isinstance(pairs, Sequence):
        raise TypeError(f"pairs must be a list of dictionaries, got {type(pairs).__name__}")
    if not 1 <= len(pairs) <= MAX_PAIRS:
        raise ValueError(f"pairs must be 1 to {MAX_PAIRS} dictionaries, got {len(pairs)}")
    kept = [_pair(f"pairs[{i}]", pair) for i, pair in enumerate(pairs)]
    grids = [unpack_weights(pair["weights"]) for pair in kept]
    checks = {
        "chosen": whole("chosen", 0, len(kept) - 1),
        "side": one_of("side", "source", "target"),
        "word": whole("word", 0, MAX_TOKENS - 1),
    }
    state = {"chosen": checks["chosen"](chosen), "side": checks["side"](side)}
    if word is None:
        word = telling_word(kept[chosen], grids[chosen]) if side == "target" else 0
    state["word"] = whole("word", 0, len(kept[chosen][side]) - 1)(word)

    def results(now: dict) -> dict:
        pair, grid = kept[now["chosen"]], grids[now["chosen"]]
        word = min(now["word"], len(pair[now["side"]]) - 1)
        if now["side"] == "target":
            weights = grid[word]
            entropy = max(0.0, -math.fsum(w * math.log(w) for w in weights if w > 0))
        else:
            weights, entropy = [row[word] for row in grid], None
        return {
            "weights": weights, "total": math.fsum(weights), "entropy": entropy,
            "best": weights.index(max(weights)),
        }  # fmt: skip

    def text(now: dict) -> str:
        pair, grid = kept[now["chosen"]], grids[now["chosen"]]
        read = "; ".join(
            f"“{word}” from “{pair['source'][row.index(max(row))]}” ({max(row):.2f})"
            for word, row in zip(pair["target"], grid, strict=True)
        )
        told = f" A human translated: “{pair['reference']}”." if pair["reference"] else ""
        return wrapped(f"""{TITLE}

        {len(kept)} translated sentence{"s" * (len(kept) > 1)}. Chosen is
        “{" ".join(pair["source"])}”, translated as “{" ".join(pair["target"])}”.{told} Each target
        word was read mostly from one source word, with the weight in brackets: {read}.

        In the page you choose a sentence and point at a word: the words it was read from are
        filled by their weight, and a matrix shows all weights.""")

    data = {"title": TITLE, "pairs": kept}
    return Explorable(
        "alignment_viewer", data=data, state=state, checks=checks, results=results, text=text
    )


def telling_word(pair: Mapping, grid: Sequence[Sequence[float]]) -> int:
    """Return the target word that was read most clearly from one source word, both real words."""
    best, most = 0, 0.0
    for t, row in enumerate(grid):
        top = max(row)
        if top > most and _is_word(pair["target"][t]) and _is_word(pair["source"][row.index(top)]):
            best, most = t, top
    return best


def _is_word(token: str) -> bool:
    return len(token.strip()) >= 4 and token.strip().isalpha()


def _pair(name: str, pair) -> dict:
    if not isinstance(pair, Mapping):
        raise TypeError(f"{name} must be a dictionary, got {type(pair).__name__}")
    if missing := {"source", "target", "weights"} - set(pair):
        raise ValueError(f"{name} must have {', '.join(sorted(missing))}")
    source, target = (tokens(f"{name} {side}", pair[side], 1, MAX_TOKENS) for side in SIDES)
    weights = packed_weights(f"{name} weights", pair["weights"], 2)
    if weights["shape"] != [len(target), len(source)]:
        raise ValueError(
            f"{name} weights must have shape (target words, source words) = "
            f"{(len(target), len(source))}, got {tuple(weights['shape'])}"
        )
    reference = pair.get("reference")
    if reference is not None and not isinstance(reference, str):
        raise TypeError(f"{name} reference must be a string, got {type(reference).__name__}")
    return {"source": source, "target": target, "weights": weights, "reference": reference}


SIDES = ("source", "target")


def tokens(name: str, value, low: int, high: int) -> list[str]:
    """Return a list of `low` to `high` strings.

    Raises:
        TypeError: if it is no list of strings.
        ValueError: if there are more or fewer.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list of strings, got {type(value).__name__}")
    if wrong := [t for t in value if not isinstance(t, str)]:
        raise TypeError(f"{name} must be a list of strings, got {type(wrong[0]).__name__} in it")
    if not low <= len(value) <= high:
        raise ValueError(f"{name} must have {low} to {high} tokens, got {len(value)}")
    return list(value)
