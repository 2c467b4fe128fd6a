"""live_translator: a translator that runs in the reader's browser, its beams and where it looks."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tfbook import pretrained
from tfbook.data import BOS, EOS, SPECIALS, english_french
from tfbook.generation import Hypothesis, beam_search
from tfbook.pretrained import round_model
from tfbook.teaching.explorables._base import (
    Explorable,
    LazyExplorable,
    boolean,
    number,
    whole,
    wrapped,
)
from tfbook.teaching.explorables._weights import live_script, load_translator, translator_file

TITLE = "A translator in the page"
NAME = "translator"
LONGEST = 120  # characters of a sentence
MOST = 64  # tokens of a translation
BEAMS = 5
TEXTS = (
    "Click Accessibility to open the panel.",
    "Press the Enter key.",
    "Open a terminal window.",
    "Turn off the screen.",
    "My cat sleeps on the sofa.",
)
TEXT = TEXTS[0]
# Mean cross-entropy in nats a token of the sentences in "test", and BLEU of their greedy
# translations: the shipped weights in 16 bits a number, and what 8 bits leave of them.
LOSS = {"shipped": 2.97034, "rounded": 2.97062}
BLEU = {"shipped": 7.92, "rounded": 7.83}


def live_translator(
    text: str = TEXT,
    *,
    n_beams: int = 4,
    length_penalty: float = 1,
    layer: int = 1,
    head: int | None = None,
    token: int = 0,
    step: int | None = None,
    chosen: int = 0,
    off: Sequence[str] = (),
) -> Explorable:
    r"""Return a figure in which an encoder-decoder translates English in the browser.

    It is the translator that ``python -m tfbook.experiments translator`` trained, with its matrices
    rounded to 8 bits a number. Its weights are loaded when the reader asks. The figure cuts a
    sentence into byte pairs, runs the encoder, and lets beam search write: the tree of hypotheses
    grows step by step, and a grid shows where each written token looked in the source. Heads of
    the encoder, of the decoder, and between the two can be switched off, which leaves out what
    they add.

    Args:
        text: What is translated, 1 to 120 characters.
        n_beams: How many hypotheses are kept, 1 to 5.
        length_penalty: α of the score $\ln p / n^\alpha$ of n tokens, 0 to 2.
        layer: The layer of the decoder whose attention to the source is shown, 0 or 1.
        head: The head, 0 to 3; None shows the mean of all.
        token: Which written token is followed, from 0; the last if there are fewer.
        step: How many tokens are written, 1 to 64; None for all.
        chosen: Which hypothesis is followed, 0 the one with the highest score.
        off: Heads that are switched off, such as "encoder 0.3", "decoder 1.0" or "cross 1.2".

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [vaswani2017attention], beam search: [wu2016google].
    Explained in: chapters/13_language_deeper, section "Translating real sentences".
    """
    loaded = _model()
    n_layers, n_heads = len(loaded.config.decoder), loaded.config.decoder[0].mixer.n_heads
    parts = [
        f"{kind} {at}.{each}"
        for kind in ("encoder", "decoder", "cross")
        for at in range(n_layers)
        for each in range(n_heads)
    ]
    checks = {
        "text": _sentence,
        "n_beams": whole("n_beams", 1, BEAMS),
        "length_penalty": number("length_penalty", 0, 2),
        "layer": whole("layer", 0, n_layers - 1),
        "head": _or_none(whole("head", 0, n_heads - 1)),
        "token": whole("token", 0, MOST - 1),
        "step": _or_none(whole("step", 1, MOST)),
        "chosen": whole("chosen", 0, 2 * BEAMS - 1),
        "off": _heads_off(parts),
        "asked": boolean("asked"),
    }
    given: dict[str, Any] = {
        "text": text, "n_beams": n_beams, "length_penalty": length_penalty, "layer": layer,
        "head": head, "token": token, "step": step, "chosen": chosen, "off": off, "asked": False,
    }  # fmt: skip
    state = {name: checks[name](value) for name, value in given.items()}
    data = {
        "title": TITLE, "name": NAME, "texts": list(TEXTS), "longest": LONGEST, "most": MOST,
        "n_layers": n_layers, "n_heads": n_heads, "eos": EOS,
        "weights": sum(weight.numel() for weight in loaded.model.parameters()),
        "pairs": len(english_french("train")), "size": len(live_script(NAME).encode()),
    }  # fmt: skip
    return LazyExplorable(
        "live_translator", file=lambda: translator_file(load_translator()), data=data, state=state,
        checks=checks, results=_results, text=_said,
    )  # fmt: skip


# --------------------------------------------------------------------------------- what it computes


class Written(NamedTuple):
    """What the decoder did with N tokens of a translation, each row where it wrote one.

    logits: (N, V). cross: where it looked in the M tokens of the source, (L, H, N, M).
    """

    logits: Tensor
    cross: Tensor


@cache
def _model() -> pretrained.Pretrained:
    """Return the translator with rounded weights, in float64 as in the browser."""
    loaded = load_translator(torch.float64)
    return pretrained.Pretrained(
        loaded.name, round_model(loaded.model), loaded.tokenizer, loaded.config, (EOS,)
    )


def source_of(text: str) -> list[int]:
    """Return the tokens that the encoder reads, the end among them."""
    return [*_model().tokenizer.encode(text).ids, EOS]


def face(token: int) -> str:
    """Return a token as it stands by itself."""
    return SPECIALS[token] if token < len(SPECIALS) else _model().tokenizer.decode([token])


@contextmanager
def _without(off: Sequence[str]):
    """Leave out what some heads find."""
    model, hooks = _model().model, []

    def silence(heads: list[int]):
        def hook(module, args, z: Tensor) -> Tensor:
            z = z.clone()
            z[:, heads] = 0
            return z

        return hook

    stacks = {"encoder": model.encoder, "decoder": model.decoder, "cross": model.decoder}
    try:
        for name in off:
            kind, place = name.split()
            layer, head = map(int, place.split("."))
            block = stacks[kind].blocks[layer]
            part = block.cross if kind == "cross" else block.mixer
            hooks.append(part.z.register_forward_hook(silence([head])))
        with torch.no_grad():
            yield model
    finally:
        for hook in hooks:
            hook.remove()


@lru_cache(maxsize=16)
def search(
    text: str, n_beams: int, length_penalty: float, off: tuple[str, ...] = ()
) -> list[list[Hypothesis]]:
    """Return the hypotheses after each step, those with the highest score first."""
    steps = []

    def keep(alive: list[Hypothesis], finished: list[Hypothesis]) -> None:
        steps.append(sorted([*finished, *alive], key=lambda each: -each.score))

    with _without(off) as model:
        state = model.remember(torch.tensor([source_of(text)]))
        beam_search(
            model, [[BOS]], state=state, n_beams=n_beams, max_new_tokens=MOST,
            length_penalty=length_penalty, stop=[EOS], on_step=keep,
        )  # fmt: skip
    return steps


@lru_cache(maxsize=16)
def written(text: str, tokens: tuple[int, ...], off: tuple[str, ...] = ()) -> Written:
    """Return what the decoder does when it writes these tokens."""
    source, read = torch.tensor([source_of(text)]), torch.tensor([[BOS, *tokens[:-1]]])
    with _without(off) as model:
        logits = model(source, read)[0]
        cross = model.attention_weights(source, read).cross
    return Written(logits, torch.stack([layer[0] for layer in cross]))


def _now(now: Mapping) -> tuple[list[Hypothesis], Hypothesis, Written, int]:
    """Return the hypotheses at this step, the one followed, what it did, and the token followed."""
    off = tuple(now["off"])
    steps = search(now["text"], now["n_beams"], now["length_penalty"], off)
    step = len(steps) if now["step"] is None else min(now["step"], len(steps))
    found = steps[step - 1]
    hypothesis = found[min(now["chosen"], len(found) - 1)]
    did = written(now["text"], tuple(hypothesis.tokens), off)
    return found, hypothesis, did, min(now["token"], len(hypothesis.tokens) - 1)


def _weights(did: Written, now: Mapping, at: int) -> Tensor:
    rows = did.cross[now["layer"], :, at]  # (H, M)
    return rows.mean(0) if now["head"] is None else rows[now["head"]]


def _results(now: dict) -> dict:
    found, hypothesis, did, at = _now(now)
    decode = _model().tokenizer.decode
    return {
        "source": [face(token) for token in source_of(now["text"])],
        "written": [face(token) for token in hypothesis.tokens],
        "translation": decode(hypothesis.tokens),
        "hypotheses": [
            {
                "text": decode(each.tokens), "tokens": len(each.tokens), "log_prob": each.log_prob,
                "score": each.score, "ended": each.tokens[-1] == EOS,
            }
            for each in found
        ],
        "weights": _weights(did, now, at).tolist(),
        "logits": did.logits[at].tolist(),
        "next": did.logits[at].softmax(-1).tolist(),
    }  # fmt: skip


def _said(now: dict) -> str:
    found, hypothesis, did, at = _now(now)
    decode = _model().tokenizer.decode
    listed = "; ".join(f"“{decode(each.tokens)}” {each.score:.3f}" for each in found)
    weights = _weights(did, now, at)
    faces = [face(token).strip() for token in source_of(now["text"])]
    best = weights.argsort(descending=True)[:3].tolist()
    looked = ", ".join(f"“{faces[j]}” {weights[j]:.2f}" for j in best)
    own = (
        f"the mean of layer {now['layer']}'s heads"
        if now["head"] is None
        else f"head {now['layer']}.{now['head']}"
    )
    off = f" Switched off: {', '.join(now['off'])}." if now["off"] else ""
    size = sum(weight.numel() for weight in _model().model.parameters())
    return wrapped(f"""{TITLE}

    An encoder and a decoder of {did.cross.shape[0]} layers each learned English to French from
    {len(english_french("train")):,} pairs of sentences. Their {size:,} weights stand in 8 bits a
    number, which costs {LOSS["rounded"] - LOSS["shipped"]:.4f} nats a token.

    With {now["n_beams"]} beam{"s" * (now["n_beams"] > 1)} and a length penalty of
    {now["length_penalty"]:g}, “{now["text"]}” becomes “{decode(hypothesis.tokens)}”.{off} The
    hypotheses by their scores, ln p divided by a power of the length: {listed}.

    Where “{face(hypothesis.tokens[at]).strip()}”, token {at + 1}, is written, {own} looks at
    {looked}.

    In the page the model is loaded when you ask and translates what you type; you see the beams
    grow and where each written token looks, and switch heads off.""")


# ------------------------------------------------------------------------------------------- checks


def _sentence(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text must be a string, got {type(value).__name__}")
    if not 1 <= len(value) <= LONGEST:
        raise ValueError(f"text must have 1 to {LONGEST} characters, got {len(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"text must be valid Unicode, got {value!r}")
    return value


def _or_none(check):
    """Return a check that lets None through, too."""
    return lambda value: None if value is None else check(value)


def _heads_off(known: Sequence[str]):
    """Return a check that lets lists of heads through, each once and in order."""

    def check(value):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"off must be a list of names, got {type(value).__name__}")
        if unknown := [part for part in value if part not in known]:
            raise ValueError(f"off must be out of {', '.join(known)}, got {unknown[0]!r}")
        return [part for part in known if part in value]

    return check
