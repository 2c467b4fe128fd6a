"""attention_steps: one attention computed step by step, on a worked example or on a sentence."""

import base64
import re
from collections.abc import Sequence

import torch

from tfbook.attention import attend, causal_mask, dot_scores
from tfbook.data import word_vectors
from tfbook.teaching.explorables._base import (
    Explorable,
    boolean,
    matrix,
    one_of,
    vector,
    whole,
    wrapped,
)

FEATURES = ("animal", "action", "object", "definite")
TOKENS = ("the₁", "cat", "sat", "on", "the₂", "mat")
KEYS = ((0, 0, 0, 1), (1, 0, 0.3, 0), (0, 1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0))
VALUES = (
    (0.1, 0, 0, 0.8), (0.9, 0, 0.1, 0.7), (0, 0.9, 0, 0.3), (0, 0, 0.5, 0), (0, 0, 0, 0.9),
    (0, 0, 0.9, 0.6),
)  # fmt: skip
PADDING = ("none", "masked", "unmasked")
N_PADS = 2
PAD = "[pad]"
TITLE = "Attention, step by step"
MAX_TOKENS = 10


def attention_steps(
    *,
    mode: str = "example",
    query: Sequence[float] = (0.9, 0.1, 0.2, 0.3),
    sentence: str = "the boat was near the river bank",
    row: int | None = None,
    causal: bool = False,
    padding: str = "none",
    tokens: Sequence[str] = TOKENS,
    features: Sequence[str] = FEATURES,
    keys: Sequence[Sequence[float]] = KEYS,
    values: Sequence[Sequence[float]] = VALUES,
) -> Explorable:
    r"""Return a figure of $\mathrm{softmax}(qK^\top/\sqrt{d_k} + \text{mask})V$, computed in steps.

    In mode "example" one query meets given keys and values. In mode "sentence" the reader edits a
    sentence and its words attend to each other with Q = K = V = X, the shipped word vectors;
    `row` is the token whose query is followed. Under the causal mask the query of the example
    stands at token `row`. Padding adds two tokens with zero vectors, masked or not.

    Args:
        mode: "example" or "sentence".
        query: The query of the example, `(d_k,)`, from -2 to 2.
        sentence: One to ten known words; case and punctuation do not matter.
        row: Which token is followed, from 0; by default the last.
        causal: Let a query see itself and earlier tokens only.
        padding: "none", "masked" or "unmasked".
        tokens: `m` names of the keys of the example, at most ten.
        features: `d_k` names of the entries of query and keys, at most six.
        keys: `(m, d_k)`.
        values: `(m, d_v)` with d_v = d_k, so that the output reads in the same features.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, shapes do not fit, or a word is unknown.

    Explained in: chapters/02_attention_deeper, section "The worked example".
    """
    tokens, features = [str(t) for t in tokens], [str(f) for f in features]
    if not 1 <= len(tokens) <= MAX_TOKENS or not 1 <= len(features) <= 6:
        raise ValueError(
            f"tokens must be 1 to {MAX_TOKENS} and features 1 to 6, "
            f"got {len(tokens)} and {len(features)}"
        )
    size = len(features)
    k = matrix("keys", len(tokens), size)(keys)
    v = matrix("values", len(tokens), size)(values)
    words, x = word_vectors()
    vectors = dict(zip(words, x.double(), strict=True))

    def known_sentence(value):
        if not isinstance(value, str):
            raise TypeError(f"sentence must be a string, got {type(value).__name__}")
        split = split_words(value)
        if unknown := [w for w in split if w not in vectors]:
            raise ValueError(f"sentence must use known words, got {', '.join(unknown)}")
        if not 1 <= len(split) <= MAX_TOKENS:
            raise ValueError(f"sentence must have 1 to {MAX_TOKENS} words, got {len(split)}")
        return " ".join(split)

    checks = {
        "mode": one_of("mode", "example", "sentence"),
        "query": vector("query", size, -2, 2),
        "sentence": known_sentence,
        "causal": boolean("causal"),
        "padding": one_of("padding", *PADDING),
        "row": whole("row", 0, MAX_TOKENS - 1),
    }
    state = {
        name: checks[name](value)
        for name, value in (
            ("mode", mode), ("query", query), ("sentence", sentence), ("causal", causal),
            ("padding", padding),
        )
    }  # fmt: skip
    n = len(tokens) if mode == "example" else len(split_words(sentence))
    state["row"] = whole("row", 0, n - 1)(n - 1 if row is None else row)

    def results(now: dict) -> dict:
        if now["mode"] == "example":
            names = tokens
            q, ks, vs = (torch.tensor(x, dtype=torch.double) for x in ([now["query"]], k, v))
            places = [min(now["row"], len(names) - 1)]
        else:
            names = split_words(now["sentence"])
            q = ks = vs = torch.stack([vectors[word] for word in names])  # (n, d)
            places = list(range(len(names)))
        pads = 0 if now["padding"] == "none" else N_PADS
        ks, vs = (torch.cat([x, x.new_zeros(pads, x.shape[1])]) for x in (ks, vs))  # (m, d)
        mask = torch.ones(len(q), len(ks), dtype=torch.bool)
        if now["causal"]:
            mask = causal_mask(len(ks))[places]
        if now["padding"] == "masked":
            mask = mask & (torch.arange(len(ks)) < len(names))
        output, weights = attend(q, ks, vs, mask=mask, return_weights=True)
        followed = 0 if now["mode"] == "example" else min(now["row"], len(names) - 1)
        return {
            "tokens": names + [PAD] * pads,
            "scores": dot_scores(q, ks)[followed].tolist(),
            "weights": weights[followed].tolist(),
            "all_weights": weights.tolist(),
            "output": output[followed].tolist(),
        }

    def text(now: dict) -> str:
        got = results(now)
        pairs = zip(got["tokens"], got["weights"], strict=True)
        shares = ", ".join(f"{token} {weight:.3f}" for token, weight in pairs)
        if now["mode"] == "example":
            asked = ", ".join(f"{f} {x:g}" for f, x in zip(features, now["query"], strict=True))
            mixed = ", ".join(f"{f} {x:.3f}" for f, x in zip(features, got["output"], strict=True))
            story = f"""A query ({asked}) meets the keys of “{" ".join(tokens)}”. Each score is the
            dot product of the query with a key, divided by √{size}, and the softmax turns the
            scores into weights: {shares}. The output is the sum of the values with these
            weights: {mixed}."""
        else:
            word = got["tokens"][min(now["row"], len(got["tokens"]) - 1)]
            story = f"""The words of “{now["sentence"]}” attend to each other; queries, keys and
            values are all the words' own vectors. The word “{word}” gives its weights so:
            {shares}."""
        return wrapped(f"""{TITLE}

        {story}

        In the page you can move the query, switch causal and padding masks, choose the token that
        is followed, and write a sentence of your own from {len(words)} words.""")

    steps = max(abs(i) for row in x.tolist() for i in row)
    assert steps < 8, "the packed form below has room for numbers below 8"
    packed = bytes((round(i * 16) & 0xFF) for row in x.tolist() for i in row)
    data = {
        "title": TITLE, "tokens": tokens, "features": features, "keys": k, "values": v,
        "n_pads": N_PADS, "pad": PAD, "max_tokens": MAX_TOKENS, "words": " ".join(words),
        "vectors": base64.b64encode(packed).decode(), "steps_per_unit": 16,
    }  # fmt: skip
    return Explorable(
        "attention_steps", data=data, state=state, checks=checks, results=results, text=text
    )


def split_words(sentence: str) -> list[str]:
    """Return the words of a sentence in lower case, without punctuation."""
    return re.findall(r"[^\s.,;:!?\"“”()]+", sentence.lower())
