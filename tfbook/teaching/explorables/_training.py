"""live_training: a small language model that learns in the reader's browser."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tfbook.generation import draw
from tfbook.models import (
    FFN,
    Attention,
    DecoderOnly,
    Layer,
    Learned,
    Norm,
    Tokens,
    TransformerConfig,
    build,
)
from tfbook.teaching.explorables._base import Explorable, number, whole, wrapped
from tfbook.teaching.explorables._chance import SPREAD, hashed

TITLE = "A language model that learns in the page"
# Given names of many countries, in an order drawn once.
NAMES = """
ralph rosa astrid simon angela walter aurora rebecca cora lena antonia claudia dora viola
anton miguel lidia elias alina jonathan louis valentina colin brian george adam naomi noah
ella aisha patricia monica wanda isaac hassan asha ibrahim zoe emma amy olga pedro andre
charles ingrid fabian lydia jasper david yara edith oliver harold omar hugo ivy michael claire
hector joseph leo alex gloria leonard camille mia wendy gabriel henry veronica eli robert
carlos laura gustav lea daniel sandra leon barbara jana judith abigail vera martin enzo heidi
richard jonas marc bella marta matteo thomas paul boris nora roberto james kenji raul gerda
sofia hannah una pia katya irma sergio oscar beatrice melissa mohamed peter tom joan denis
penelope anna edgar john cecilia leila ana samuel chiara linda elisa miriam ida luca ines
jakob jack ulrich manuel tina mario karen amelia lily frank harry carla selma guido nadia
johanna basil margaret stephen virginia lars theodora zeno nathan helena mary maya ravi daria
alan norman jamal julian lisa alice bruno paula lucas bianca sonia andrew pablo philip victor
louise ruth maria jane lucy edward marco rose fiona karl nina eva clara anne sven albert
elizabeth frances olivia renata arthur mei theo jacob yusuf ivan evan hilda deborah marion
august charlotte kim caroline ramona sara helen zara stella freya silvia sylvia max jasmin
adele grace natalia felix marina adrian diego yvonne carmen luis ian petra catherine william
lucia igor elsa rita fatima emil robin esther luna livia sebastian tara joy kai mina ellen
samir amir teresa bernard quentin susan mona maia alfred julia martha gina tomas greta giulia
kira jose erika eric ursula hana ada aaron dorothy diana otto elena ben emily matilda flora
joel mila harriet agnes yasmin chloe tobias mark irene rachel marie conrad emilia aria iris
priya amanda tamara magda isabel
"""
# Shakespeare's eighteenth sonnet.
VERSE = """Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
Nor shall death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee.
"""
TEXTS = {
    "Names": "\n".join(NAMES.split()) + "\n",
    # Each of the hundred once; what comes next is not to be told from what came before.
    "Sums": "".join(
        f"{a}+{b}={a + b}\n" for a, b in (divmod(int(i), 10) for i in hashed(SPREAD, 100).argsort())
    ),
    "A sonnet": VERSE,
}
SIZES = {"d_model": 16, "n_heads": 2, "d_ff": 64, "context": 16, "eps": 1e-5}
ADAM = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
BATCH = 8
SHARE, MOST = 0.1, 8  # of the text is held out; pieces of it that are looked at
WRITTEN = 120
SHORTEST, LONGEST, KINDS = 100, 20_000, 200  # characters of a text, and different ones
FOLLOWED = 12
TOLD = 60  # steps that the text form speaks of


def live_training(
    text: str = TEXTS["Names"],
    *,
    probe: str | None = None,
    lr: float = 0.01,
    n_layers: int = 1,
    layer: int = 0,
    head: int = 0,
    seed: int = 0,
) -> Explorable:
    """Return a figure in which a decoder of a few thousand weights learns in the browser.

    It reads characters: learned positions, `n_layers` layers of two heads with d_model = 16, RMS
    norms before the parts, ReLU, one table for embedding and scores, no biases. A step takes 8
    pieces of 16 characters from places drawn by chance and follows AdamW with PyTorch's defaults.
    The last tenth of the text is held out. The reader starts and stops the training, goes step by
    step, and changes the learning rate while it runs; the loss, what the model writes and where its
    heads look are drawn anew.

    Args:
        text: What is learned, 100 to 20,000 characters, of at most 200 kinds; by default 301 given
            names, one a line.
        probe: Up to 16 characters of the text whose attention is shown; by default its first 12.
        lr: Learning rate, 0.00001 to 10.
        n_layers: 1 or 2.
        layer: The layer whose attention is read, 0 to `n_layers` - 1.
        head: The head, 0 or 1.
        seed: Of the first weights, the pieces and what is written, 0 to 9999.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or the probe holds a character that the text has not.

    Source: [loshchilov2019decoupled].
    Explained in: chapters/11_training_deeper, section "Optimizers".
    """
    checks = {
        "text": _text,
        "probe": _probe,
        "lr": number("lr", 1e-5, 10),
        "n_layers": whole("n_layers", 1, 2),
        "layer": whole("layer", 0, 1),
        "head": whole("head", 0, SIZES["n_heads"] - 1),
        "seed": whole("seed", 0, 9999),
    }
    checks["text"](text)
    given: dict[str, Any] = {
        "text": text, "probe": text[:FOLLOWED] if probe is None else probe, "lr": lr,
        "n_layers": n_layers, "layer": layer, "head": head, "seed": seed,
    }  # fmt: skip
    state = {name: checks[name](value) for name, value in given.items()}
    whole("layer", 0, state["n_layers"] - 1)(state["layer"])
    if unknown := set(state["probe"]) - set(text):
        raise ValueError(
            f"probe must be made of characters of the text, got {''.join(sorted(unknown))!r}"
        )
    data = {
        "title": TITLE, "texts": [[name, words] for name, words in TEXTS.items()], "sizes": SIZES,
        "adam": ADAM, "batch": BATCH, "share": SHARE, "most": MOST, "written": WRITTEN,
        "shortest": SHORTEST, "longest": LONGEST, "most_kinds": KINDS,
    }  # fmt: skip
    return Explorable(
        "live_training", data=data, state=state, checks=checks, results=_results, text=_said
    )


# --------------------------------------------------------------------------------- what it computes


class Training(NamedTuple):
    """A training so far.

    losses: of each step, in nats a character, before its update. held: the loss of what is held
    out, after the last step. written: what the model then writes on from the first line break.
    """

    model: DecoderOnly
    losses: list[float]
    held: float
    written: str


def characters_of(text: str) -> str:
    """Return the different characters of a text in order; their places are their ids."""
    return "".join(sorted(set(text)))


def new_model(vocabulary: int, n_layers: int, seed: int) -> DecoderOnly:
    """Return the decoder with the first weights that the browser draws, in float64.

    Gains are 1, tables normal with std 0.1, linear maps with std 1/√inputs, √(2 n_layers) times
    less where they write into the stream.
    """
    norm = Norm("rms", eps=SIZES["eps"])
    layer = Layer(
        Attention(SIZES["n_heads"], bias=False),
        FFN(SIZES["d_ff"], kind="relu", bias=False),
        norm=norm,
        place="pre",
    )
    config = TransformerConfig(
        vocabulary, SIZES["d_model"], decoder=[layer] * n_layers, embedding=Tokens(Learned()),
        max_len=SIZES["context"],
    )  # fmt: skip
    model = build(config).to(torch.float64)
    weights = dict(model.named_parameters())
    names = [name for name in _order(n_layers) if weights[name].ndim == 2]
    count = sum(weights[name].numel() for name in names)
    u, v = torch.from_numpy(hashed(seed * SPREAD, 2 * count)).view(count, 2).unbind(1)
    normal = (-2 * u.log()).sqrt() * (2 * math.pi * v).cos()
    with torch.no_grad():
        for name, drawn in zip(
            names, normal.split([weights[name].numel() for name in names]), strict=True
        ):
            weight = weights[name]
            spread = weight.shape[1] ** -0.5 if name.startswith("stack") else 0.1
            if "out_proj" in name or "down_proj" in name:
                spread /= math.sqrt(2 * n_layers)
            weight.copy_(spread * drawn.view_as(weight))
    return model


def _order(n_layers: int) -> list[str]:
    parts = [
        "mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.out_proj", "mixer_residual.norm",
        "ffn.up_proj", "ffn.down_proj", "ffn_residual.norm",
    ]  # fmt: skip
    layers = [f"stack.blocks.{at}.{part}" for at in range(n_layers) for part in parts]
    return [f"{name}.weight" for name in ("embed", "position", *layers, "stack.final_norm")]


@lru_cache(maxsize=16)
def train(text: str, n_layers: int, lr: float, seed: int, steps: int) -> Training:
    """Train for some steps as the browser does, with the package's model and `torch.optim`."""
    known, context = characters_of(text), SIZES["context"]
    ids = torch.tensor([known.index(c) for c in text])
    held = max(context + 1, math.floor(len(ids) * SHARE))
    learned, held_out = ids[: len(ids) - held], ids[len(ids) - held :]
    model = new_model(len(known), n_layers, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, **ADAM)
    places = torch.from_numpy(hashed((seed + 10_000) * SPREAD, steps * BATCH))
    places = (places * (len(learned) - context)).floor().long()
    losses = []
    for starts in places.view(steps, BATCH):
        rows = learned[starts[:, None] + torch.arange(context + 1)]  # (B, N + 1)
        loss = _loss(model, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    count = min(MOST, (held - 1) // context)
    with torch.no_grad():
        rows = held_out[torch.arange(count)[:, None] * context + torch.arange(context + 1)]
        left = _loss(model, rows).item()
        written = _write(model, known, text, seed)
    return Training(model, losses, left, written)


def _loss(model: DecoderOnly, rows: Tensor) -> Tensor:
    return functional.cross_entropy(model(rows[:, :-1])[0].mT, rows[:, 1:])


def _write(model: DecoderOnly, known: str, text: str, seed: int) -> str:
    ids = [known.index("\n" if "\n" in known else text[0])]
    for uniform in hashed((seed + 20_000) * SPREAD, WRITTEN).tolist():
        logits = model(torch.tensor([ids[-SIZES["context"] :]]))[0][:, -1]
        ids += draw(logits, torch.tensor([uniform])).tolist()
    return "".join(known[i] for i in ids[1:])


def _results(now: Mapping) -> dict:
    found = train(now["text"], now["n_layers"], now["lr"], now["seed"], TOLD)
    return {
        "parameters": found.model.count_parameters(),
        "even": math.log(len(characters_of(now["text"]))),
        "losses": list(found.losses),
        "held_out": found.held,
        "written": found.written,
    }


def _said(now: dict) -> str:
    found, kinds = _results(now), len(characters_of(now["text"]))
    heads = SIZES["n_heads"] * now["n_layers"]
    layers = "one layer" if now["n_layers"] == 1 else f"{now['n_layers']} layers"
    begins = " ".join(now["text"][:40].split())
    last = sum(found["losses"][-10:]) / 10
    lines = ", ".join(f"“{line}”" for line in found["written"].split("\n")[:5] if line)
    return wrapped(f"""{TITLE}

    A decoder of {layers}, {heads} heads and {found["parameters"]:,} weights learns to guess the
    next character of a text of {len(now["text"]):,} characters that begins “{begins} …”. Its last
    tenth is held out. Guessing evenly among {kinds} characters costs {found["even"]:.2f} nats a
    character.

    At the start a step costs {found["losses"][0]:.2f}. With a learning rate of {now["lr"]:g} the
    last ten of {TOLD} steps cost {last:.2f} in the mean, what is held out then
    {found["held_out"]:.2f}, and the model writes {lines}.

    In the page you start and stop the training, change the learning rate while it runs, paste a
    text of your own, and see the loss, what the model writes and where its heads look change.""")


# ------------------------------------------------------------------------------------------- checks


def _text(value: object) -> str:
    """Let texts through that are long enough to be learned from."""
    if not isinstance(value, str):
        raise TypeError(f"text must be a string, got {type(value).__name__}")
    if not SHORTEST <= len(value) <= LONGEST:
        raise ValueError(f"text must have {SHORTEST} to {LONGEST} characters, got {len(value)}")
    if len(set(value)) > KINDS:
        raise ValueError(
            f"text must have at most {KINDS} different characters, got {len(set(value))}"
        )
    return value


def _probe(value: object) -> str:
    """Let texts through that the model can see at once."""
    if not isinstance(value, str):
        raise TypeError(f"probe must be a string, got {type(value).__name__}")
    if not 1 <= len(value) <= SIZES["context"]:
        raise ValueError(f"probe must have 1 to {SIZES['context']} characters, got {len(value)}")
    return value
