"""live_model: a language model that runs in the reader's browser, opened up and taken apart."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tfbook import pretrained
from tfbook.generation import Sampling
from tfbook.pretrained import round_model
from tfbook.teaching.explorables._base import (
    Explorable,
    LazyExplorable,
    boolean,
    number,
    whole,
    wrapped,
)
from tfbook.teaching.explorables._weights import live_script, model_file

TITLE = "A language model in the page"
NAME = "shakespeare"
LONGEST = 96
TEXTS = (
    "O, thou ha",
    "O, they ha",
    "ROMEO:\nIs the day so young?\n\nBENVOLIO:\nBut new struck nine.\n\nROM",
    "KING RICHARD:\nMy lord, I come to sp",
)
TEXT, OTHER = TEXTS[:2]
# Mean cross-entropy in nats a character over the part "valid" of the plays, each window of 256 read
# afresh: the shipped weights in 16 bits a number, and what 8 bits leave of them.
LOSS = {"shipped": 1.59462, "rounded": 1.59474}
SIGNS = {" ": "space", "\n": "line break"}


def live_model(
    text: str = TEXT,
    *,
    other: str = OTHER,
    token: int | None = None,
    layer: int = 0,
    head: int = 0,
    off: Sequence[str] = (),
    patch: Sequence[int] = (),
    temperature: float = 1,
    top_k: int = 0,
    top_p: float = 1,
    seed: int = 0,
) -> Explorable:
    r"""Return a figure in which a language model of 1.25 million weights runs in the browser.

    It is `pretrained.load("shakespeare")`, a decoder of four layers that reads characters, with its
    matrices rounded to 8 bits a number. Its weights are loaded when the reader asks. The figure
    shows where each head looks; what the stream behind each layer says of the next character, by
    the last norm and the table of the embedding (the logit lens); and the distribution that the
    next character is drawn from. Heads and feed-forward networks can be switched off, which leaves
    out what they add to the stream, and at one token the stream can be replaced by that of another
    text at the same depth (activation patching).

    Args:
        text: What the model reads, 1 to 96 of the 63 characters that it knows.
        other: The other text, from which an activation may be taken.
        token: Which character is followed, from 0; by default the last.
        layer: The layer whose attention is shown, 0 to 3.
        head: The head, 0 to 3.
        off: What is switched off, such as "0.3" (head 3 of layer 0) or "2.ffn".
        patch: Nothing, or three numbers: the place (0 the embedding, l + 1 behind layer l), the
            character of the other text, and the character of the text whose stream is replaced.
        temperature: T, 0.1 to 5.
        top_k: How many characters are kept, 0 keeps all.
        top_p: The probability to keep at least, above 0 to 1; 1 keeps all.
        seed: Which chance the figure draws with, 0 to 9999.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or a text holds a character that the model does not know.

    Source: logit lens: [nostalgebraist2020logit], patching: [meng2022locating].
    Explained in: chapters/05_architecture_deeper, section "The residual stream".
    """
    loaded = _model()
    n_layers, n_heads = len(loaded.config.decoder), loaded.config.decoder[0].mixer.n_heads
    parts = [
        f"{at}.{part}" for at in range(n_layers) for part in (*map(str, range(n_heads)), "ffn")
    ]
    checks = {
        "text": _text("text"),
        "other": _text("other"),
        "token": whole("token", 0, LONGEST - 1),
        "layer": whole("layer", 0, n_layers - 1),
        "head": whole("head", 0, n_heads - 1),
        "off": _parts("off", parts),
        "patch": _patch("patch", n_layers),
        "temperature": number("temperature", 0.1, 5),
        "top_k": whole("top_k", 0, len(_characters())),
        "top_p": number("top_p", 0.01, 1),
        "seed": whole("seed", 0, 9999),
        "asked": boolean("asked"),
    }
    given: dict[str, Any] = {"text": text, "other": other}
    state = {name: checks[name](value) for name, value in given.items()}
    last = len(state["text"]) - 1
    given = {
        "token": whole("token", 0, last)(last if token is None else token), "layer": layer,
        "head": head, "off": off, "patch": patch, "temperature": temperature, "top_k": top_k,
        "top_p": top_p, "seed": seed, "asked": False,
    }  # fmt: skip
    state |= {name: checks[name](value) for name, value in given.items()}
    if state["patch"]:
        for name, at, read in (("of other", 1, state["other"]), ("of text", 2, state["text"])):
            whole(f"the character {name} in patch", 0, len(read) - 1)(state["patch"][at])
    weights = sum(weight.numel() for weight in loaded.model.parameters())
    data = {
        "title": TITLE, "name": NAME, "texts": list(TEXTS), "longest": LONGEST,
        "characters": _characters(), "n_layers": n_layers, "n_heads": n_heads, "weights": weights,
        "size": len(live_script(NAME).encode()), "cost": LOSS["rounded"] - LOSS["shipped"],
        "loss": LOSS["rounded"],
    }  # fmt: skip
    return LazyExplorable(
        "live_model", file=lambda: model_file(pretrained.load(NAME)), data=data, state=state,
        checks=checks, results=_results, text=_said,
    )  # fmt: skip


# --------------------------------------------------------------------------------- what it computes


class Run(NamedTuple):
    """What the model did with a text of N characters.

    streams: (L + 1, N, D), behind the embedding and behind each layer. looked: where the heads
    looked, (L, H, N, N). logits: (N, V).
    """

    streams: Tensor
    looked: Tensor
    logits: Tensor


@cache
def _model() -> pretrained.Pretrained:
    """Return the model with rounded weights, in float64 as in the browser."""
    loaded = pretrained.load(NAME, dtype=torch.float64)
    return pretrained.Pretrained(
        loaded.name, round_model(loaded.model), loaded.tokenizer, loaded.config
    )


@cache
def _characters() -> str:
    words = _model().tokenizer.get_vocab()
    return "".join(sorted(words, key=words.get))


@lru_cache(maxsize=8)
def run(text: str, off: tuple[str, ...] = (), patch: tuple = ()) -> Run:
    """Read a text with parts switched off and, at one character, another stream.

    patch: nothing, or (place, character, row), the row (D,) that stands there instead.
    """
    model = _model().model
    blocks = model.stack.blocks
    streams, looked, hooks = [], [], []

    def behind(place: int):
        def hook(module, args, x: Tensor) -> Tensor:
            if patch and patch[0] == place:
                x = x.clone()
                x[0, patch[1]] = patch[2]
            streams.append(x[0])
            return x

        return hook

    def without(heads: list[int]):
        def hook(module, args, z: Tensor) -> Tensor:
            z = z.clone()
            z[:, heads] = 0
            return z

        return hook

    try:
        hooks.append(blocks[0].resid_pre.register_forward_hook(behind(0)))
        for at, block in enumerate(blocks):
            heads = [h for h in range(block.mixer.n_heads) if f"{at}.{h}" in off]
            hooks += [
                block.mixer.pattern.register_forward_hook(lambda m, a, x: looked.append(x[0])),
                block.mixer.z.register_forward_hook(without(heads)),
                block.resid_post.register_forward_hook(behind(at + 1)),
            ]
            if f"{at}.ffn" in off:
                hooks.append(block.ffn.register_forward_hook(lambda m, a, x: torch.zeros_like(x)))
        with torch.no_grad():
            logits, _ = model(_model().encode(text))
    finally:
        for hook in hooks:
            hook.remove()
    return Run(torch.stack(streams), torch.stack(looked), logits[0])


def changed(now: Mapping) -> Run:
    """Read the text with the switches and the patch of the present state."""
    off, patch = tuple(now["off"]), tuple(now["patch"])
    if patch and not (patch[1] < len(now["other"]) and patch[2] < len(now["text"])):
        patch = ()  # a text became shorter
    if patch:
        place, source, target = patch
        patch = (place, target, run(now["other"]).streams[place, source])
    return run(now["text"], off, patch)


def lens(streams: Tensor) -> Tensor:
    """Return what streams (..., D) say of the next character, probabilities (..., V)."""
    model = _model().model
    with torch.no_grad():
        return (model.stack.final_norm(streams) @ model.embed.weight.mT).softmax(-1)


def _results(now: dict) -> dict:
    found, at = changed(now), min(now["token"], len(now["text"]) - 1)
    sampling = Sampling(
        temperature=now["temperature"], top_k=now["top_k"] or None,
        top_p=now["top_p"] if now["top_p"] < 1 else None,
    )  # fmt: skip
    logits = found.logits[at]
    return {
        "logits": logits.tolist(),
        "next": logits.softmax(-1).tolist(),
        "untouched": run(now["text"]).logits[at].softmax(-1).tolist(),
        "drawn_from": sampling(logits).softmax(-1).tolist(),
        "lens": lens(found.streams[:, at]).tolist(),
        "weights": found.looked[now["layer"], now["head"], at, : at + 1].tolist(),
    }


def _said(now: dict) -> str:
    found, names = _results(now), [SIGNS.get(c, f"“{c}”") for c in _characters()]
    order = sorted(range(len(names)), key=lambda i: -found["next"][i])
    listed = ", ".join(f"{names[i]} {found['next'][i]:.2f}" for i in order[:5])
    places = ["the embedding", *(f"layer {at}" for at in range(len(found["lens"]) - 1))]
    best = [max(range(len(row)), key=row.__getitem__) for row in found["lens"]]
    rows = ", ".join(
        f"behind {place} {names[i]} {row[i]:.2f}"
        for place, i, row in zip(places, best, found["lens"], strict=True)
    )
    text = " ".join(now["text"].split("\n"))
    at = min(now["token"], len(now["text"]) - 1)
    off = f" Switched off: {', '.join(now['off'])}." if now["off"] else ""
    if now["patch"]:
        place, source, target = now["patch"]
        other = " ".join(now["other"].split("\n"))
        off += (
            f" The stream behind {places[place]} at character {target} is that of “{other}” at "
            f"character {source}."
        )
    return wrapped(f"""{TITLE}

    A decoder of {len(places) - 1} layers read nine plays of Shakespeare and guesses the next
    character. Its {sum(w.numel() for w in _model().model.parameters()):,} weights stand in 8 bits a
    number, which costs {LOSS["rounded"] - LOSS["shipped"]:.4f} nats a character.

    Of “{text}” it reads the first {at + 1} characters.{off} It holds these for likely to come next:
    {listed}. The likeliest one by what the stream says: {rows}.

    In the page the model is loaded when you ask, reads what you type and writes on; you see where
    each head looks, switch heads and networks off, and put an activation of one text into
    another.""")


# ------------------------------------------------------------------------------------------- checks


def _text(name: str):
    """Return a check that lets texts through that the model can read."""

    def check(value):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, got {type(value).__name__}")
        if not 1 <= len(value) <= LONGEST:
            raise ValueError(f"{name} must have 1 to {LONGEST} characters, got {len(value)}")
        if unknown := set(value) - set(_characters()):
            raise ValueError(
                f"{name} must be made of the characters that the model knows, "
                f"got {''.join(sorted(unknown))!r}"
            )
        return value

    return check


def _parts(name: str, known: Sequence[str]):
    """Return a check that lets lists of known names through, each once and in order."""

    def check(value):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"{name} must be a list of names, got {type(value).__name__}")
        if unknown := [part for part in value if part not in known]:
            raise ValueError(f"{name} must be out of {', '.join(known)}, got {unknown[0]!r}")
        return [part for part in known if part in value]

    return check


def _patch(name: str, n_layers: int):
    """Return a check that lets nothing through, or a place and two characters."""
    parts = [
        whole(f"the place in {name}", 0, n_layers),
        whole(f"the character of other in {name}", 0, LONGEST - 1),
        whole(f"the character of text in {name}", 0, LONGEST - 1),
    ]

    def check(value):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"{name} must be a list of numbers, got {type(value).__name__}")
        if len(value) not in (0, 3):
            raise ValueError(f"{name} must be empty or three numbers, got {len(value)}")
        return [each(part) for each, part in zip(parts, value, strict=False)]

    return check
