"""pretrained_attention: where every head of two real models looks, in prepared sentences."""

import base64
import json
from functools import cache
from pathlib import Path

from tfbook.teaching.explorables._base import (
    Explorable,
    LazyExplorable,
    boolean,
    one_of,
    whole,
    wrapped,
)
from tfbook.teaching.explorables._heads import AHEAD, SHARES, head_stats

NAMES = {"smollm2-135m": "SmolLM2-135M", "minilm-l6": "MiniLM-L6"}
LEVELS = 255  # of 8 bits
RESULTS = Path(__file__).parents[2] / "experiments" / "results"
LARGEST_SCRIPT = 600_000  # bytes


def pack_bytes(weights) -> tuple[list[int], bool, object]:
    r"""Return attention weights in 8 bits each: their shape, whether they are causal, and codes.

    A weight $w$ becomes $\mathrm{round}(255 \sqrt w)$, so that small ones keep their size: rounding
    changes a weight near 1 by at most 0.004, and a small one by less. If no row looks ahead, only
    the lower triangles are kept.

    Args:
        weights: (L, H, n, n), a tensor whose rows sum to 1.

    Returns:
        The shape as a list, a boolean, and a vector of codes from 0 to 255, uint8.

    Raises:
        TypeError: if weights are no tensor of floats.
        ValueError: for a shape that does not fit, or rows that do not sum to 1.

    Explained in: chapters/10_interpretability, section "From layers to heads".
    """
    import torch

    if not isinstance(weights, torch.Tensor) or not weights.is_floating_point():
        raise TypeError(f"weights must be a tensor of floats, got {type(weights).__name__}")
    shape = list(weights.shape)
    if len(shape) != 4 or shape[2] != shape[3] or 0 in shape:
        raise ValueError(f"weights must have shape (L, H, n, n), got {tuple(shape)}")
    sums = weights.sum(-1)
    if not bool((weights >= 0).all()) or not bool(((sums - 1).abs() < 0.01).all()):
        raise ValueError("weights must have rows that are not negative and sum to 1")
    causal = not bool(weights.triu(1).any())
    codes = (LEVELS * weights.clamp(max=1).sqrt()).round().to(torch.uint8)  # (L, H, n, n)
    n = shape[-1]
    kept = torch.ones(n, n, dtype=torch.bool)
    return shape, causal, codes[..., kept.tril() if causal else kept].flatten()


def pretrained_attention(
    model: str = "smollm2-135m",
    *,
    sentence: int = 0,
    layer: int = 0,
    head: int = 0,
    token: int | None = None,
    direction: str = "from",
) -> Explorable:
    r"""Return a :func:`head_viewer` of all heads of a real model on twenty prepared sentences.

    The weights were computed beforehand, in 8 bits each, and are loaded when the reader asks.

    Args:
        model: "smollm2-135m", 30 layers of 9 heads with a causal mask, or "minilm-l6", 6 layers of
            12 heads without one.
        sentence: which sentence, from 0 to 19.
        layer: which layer, from 0.
        head: which head, from 0.
        token: which token is followed, from 0; by default the last.
        direction: "from": where the token looks; "to": who looks at it.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Explained in: chapters/10_interpretability, section "From layers to heads".
    """
    model = one_of("model", *NAMES)(model)
    texts = _texts()[model]
    n_layers, n_heads = texts[0]["shape"][:2]
    title = f"What each head of {NAMES[model]} looks at"
    sizes = [len(text["tokens"]) for text in texts]
    checks = {
        "text": whole("sentence", 0, len(texts) - 1),
        "layer": whole("layer", 0, n_layers - 1),
        "head": whole("head", 0, n_heads - 1),
        "token": whole("token", 0, max(sizes) - 1),
        "direction": one_of("direction", "from", "to"),
        "asked": boolean("asked"),
    }
    state = {"text": checks["text"](sentence)}
    last = sizes[sentence] - 1
    state |= {
        "layer": checks["layer"](layer),
        "head": checks["head"](head),
        "token": whole("token", 0, last)(last if token is None else token),
        "direction": checks["direction"](direction),
        "asked": False,
    }

    def results(now: dict) -> dict:
        weights = rows_of(model, now["text"], now["layer"], now["head"])
        i = min(now["token"], sizes[now["text"]] - 1)
        followed = weights[i] if now["direction"] == "from" else [row[i] for row in weights]
        return {"weights": followed, "stats": head_stats(weights, texts[now["text"]]["tokens"])}

    def words(now: dict) -> str:
        text = texts[now["text"]]
        found = results(now)
        best = sorted(enumerate(found["weights"]), key=lambda pair: -pair[1])[:3]
        looks = ", ".join(f"“{text['tokens'][j]}” ({j}) {w:.2f}" for j, w in best if w >= 0.005)
        i = min(now["token"], sizes[now["text"]] - 1)
        what = "looks at" if now["direction"] == "from" else "is looked at by"
        return wrapped(f"""{title}

        {len(texts)} sentences, {n_layers} layers of {n_heads} heads. On “{text["title"]}” in head
        {now["layer"]}.{now["head"]} “{text["tokens"][i]}” ({i}) {what} {looks or "no token"}.

        In the page the weights of all heads are loaded when you ask; then you choose sentence,
        layer and head and point at a token.""")

    causal = texts[0]["causal"]
    places = SHARES if causal else SHARES | AHEAD
    name = f"attention-{model}"
    data = {
        "title": title, "n_layers": n_layers, "n_heads": n_heads,
        "texts": [{"title": text["title"], "tokens": text["tokens"]} for text in texts],
        "shares": [[key, label] for key, label in places.items()],
        "script": {"name": name, "size": len(attention_script(model)), "causal": causal},
    }  # fmt: skip
    return LazyExplorable(
        "head_viewer", file=lambda: _file(model), data=data, state=state, checks=checks,
        results=results, text=words,
    )  # fmt: skip


@cache
def _texts() -> dict:
    return json.loads((RESULTS / "pretrained_attention.json").read_text(encoding="utf-8"))


@cache
def _codes(model: str) -> list[bytes]:
    """Return the codes of each sentence."""
    from safetensors.numpy import load_file

    found = load_file(RESULTS / "pretrained_attention.safetensors")
    return [found[f"{model}.{i}"].tobytes() for i in range(len(_texts()[model]))]


def rows_of(model: str, text: int, layer: int, head: int) -> list[list[float]]:
    """Return the weights of one head on one sentence, each row made to sum to 1 again."""
    _, n_heads, n, _ = _texts()[model][text]["shape"]
    causal = _texts()[model][text]["causal"]
    size = n * (n + 1) // 2 if causal else n * n
    at = (layer * n_heads + head) * size
    codes = iter(_codes(model)[text][at : at + size])
    rows = []
    for i in range(n):
        kept = i + 1 if causal else n
        squares = [next(codes) ** 2 for _ in range(kept)]
        rows.append([s / sum(squares) for s in squares] + [0.0] * (n - kept))
    return rows


def _file(model: str) -> str:
    """Return the codes of all sentences, one after the other, in base64."""
    return base64.b64encode(b"".join(_codes(model))).decode("ascii")


@cache
def attention_script(model: str = "smollm2-135m") -> str:
    """Return a script that leaves a model's attention weights where head_viewer.js finds them.

    Args:
        model: "smollm2-135m" or "minilm-l6".

    Raises:
        ValueError: if the model is another, or the script is too long.

    Explained in: chapters/10_interpretability, section "From layers to heads".
    """
    model = one_of("model", *NAMES)(model)
    script = f'(window.tfbookWeights ||= {{}})["attention-{model}"] = "{_file(model)}";\n'
    if len(script) > LARGEST_SCRIPT:
        raise ValueError(
            f"model must be one whose script has at most {LARGEST_SCRIPT} bytes, got {len(script)}"
        )
    return script
