"""The page that a reader keeps: opened from a disk, it writes what the rounded model writes.

Its functions are called in the browser by themselves as well, where each part that a block may have
is compared with PyTorch, and planted bugs must be seen.
"""

import re

import pytest
import torch
from torch import nn

from tests.package.node import library
from tfbook.attention import MultiHeadAttention
from tfbook.blocks import Block, FeedForward, LayerNorm, RMSNorm
from tfbook.positions import RotaryPositions
from tfbook.pretrained import round_model
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _kept

CHARACTERS = sorted("ROMEO: abcdefghijklmnopqrstuvwxyz\n.,<&")
CONTEXT = 12
LOAD = """async (source) => {
  const url = URL.createObjectURL(new Blob([source], { type: 'text/javascript' }));
  window.ours = await import(url);
}"""
SCORES = """([file, ids]) => {
  const next = window.ours.readerOf(window.ours.openKept(file));
  return ids.map((_, i) => [...next(ids.slice(0, i + 1))]);
}"""


class Writer(nn.Module):
    """A decoder of small parts, each of its choices open."""

    def __init__(
        self, *, norm=RMSNorm, place="pre", kind="gelu", bias=True, rotary="interleaved",
        places=False, scale=1.0, tied=False, last=True, qk_norm=None, head_bias=False, heads=2,
    ):  # fmt: skip
        super().__init__()
        torch.manual_seed(3)
        v, d = len(CHARACTERS), 16
        self.table, self.scale, self.tied = nn.Embedding(v, d), scale, tied
        self.places = nn.Embedding(CONTEXT, d) if places else None

        def block():
            turns = RotaryPositions(d // heads, layout=rotary, base=50.0) if rotary else None
            mixer = MultiHeadAttention(
                d, heads, causal=True, bias=bias, position=turns, qk_norm=qk_norm
            )
            ffn = FeedForward(d, 3 * d, kind=kind, bias=bias)
            return Block(mixer, ffn, norm=norm, place=place)

        self.layers = nn.ModuleList(block() for _ in range(2))
        self.last = norm(d) if last else None
        self.scores = None if tied else nn.Linear(d, v, bias=head_bias)
        for weight in self.parameters():
            if weight.ndim == 1:  # gains and biases that do something
                nn.init.normal_(weight, 1.0, 0.3)

    def forward(self, ids):
        x = self.scale * self.table(ids)
        if self.places is not None:
            x = x + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x, _ = layer(x)
        if self.last is not None:
            x = self.last(x)
        return x @ self.table.weight.T if self.tied else self.scores(x)


MODELS = {
    "as in the lab": {"norm": LayerNorm, "bias": False},
    "learned places": {"places": True, "rotary": None, "tied": True, "scale": 4.0},
    "norms behind": {"place": "post", "last": False, "kind": "relu", "head_bias": True},
    "gate, halves": {"kind": "swiglu", "rotary": "half", "qk_norm": RMSNorm, "heads": 4},
    "tanh": {"kind": "gelu_tanh", "qk_norm": LayerNorm},
    "geglu": {"kind": "geglu", "norm": LayerNorm, "tied": True},
}


def ids_of(text):
    return [CHARACTERS.index(c) for c in text]


@torch.no_grad()
def scores(model, ids):
    """What the rounded model says behind the last characters that it can read."""
    rounded = round_model(model).double().eval()
    return [rounded(torch.tensor([ids[: i + 1][-CONTEXT:]]))[0, -1] for i in range(len(ids))]


@torch.no_grad()
def likeliest(model, prompt, n):
    rounded, ids = round_model(model).double().eval(), ids_of(prompt)
    for _ in range(n):
        ids.append(rounded(torch.tensor([ids[-CONTEXT:]]))[0, -1].argmax().item())
    return "".join(CHARACTERS[i] for i in ids)


@pytest.fixture
def disk(browser):
    """A context whose pages may open files and nothing else."""
    context = browser.new_context(offline=True)
    yield context
    context.close()


@pytest.fixture(scope="module")
def bench(browser):
    page = browser.new_page()
    page.goto("about:blank")
    yield page
    page.close()


def right(page, name):
    """Whether the functions of the page give the scores of a model."""
    model = Writer(**MODELS[name])
    ids = ids_of("ROMEO:\nthe quick, brown <fox>.".replace(">", "&"))
    file = _kept.kept_file(model, CHARACTERS, CONTEXT)
    found = torch.tensor(page.evaluate(SCORES, [file, ids]), dtype=torch.double)
    return torch.allclose(found, torch.stack(scores(model, ids)), atol=1e-5, rtol=0)


@pytest.mark.browser
@pytest.mark.parametrize("name", MODELS)
def test_its_scores_are_those_of_the_rounded_model(bench, name):
    bench.evaluate(LOAD, library(_kept.SCRIPTS))
    assert right(bench, name)


# The model that sees the bug, the text, and what stands there instead.
MUTANTS = [
    ("tanh", "places[place * d + i]", "1"),
    ("learned places", "places[place * d + i]", "places[i]"),
    ("learned places", "model.scale * number", "number"),
    ("as in the lab", "rotaryTable(place,", "rotaryTable(place + place % 2,"),
    ("gate, halves", "layer.base), layer.layout)", "layer.base))"),
    ("gate, halves", "layer.act(g) * up[i]", "g * layer.act(up[i])"),
    ("gate, halves", "turned(layer.kNorm(layer.k(seen)))", "turned(layer.k(seen))"),
    ("norms behind", "if (!before) x = layer.mixerNorm(x);", ""),
    ("norms behind", "plus(matvec8(matrix, x), bias)", "matvec8(matrix, x)"),
    ("norms behind", "Math.max(0, x)", "x"),
    ("tanh", "0.044715", "0.44715"),
    ("as in the lab", "ids.slice(-model.context)", "ids.slice(0, model.context)"),
    ("as in the lab", "read.some((id, i) => id !== seen[i])", "false"),
    ("as in the lab", "head(last(x))", "head(x)"),
]


@pytest.mark.browser
def test_planted_bugs_are_seen(bench):
    unseen = []
    for name, old, new in MUTANTS:
        bench.evaluate(LOAD, library(_kept.SCRIPTS, [("kept_model", old, new)]))
        try:
            if right(bench, name):
                unseen.append(old)
        except Exception:  # noqa: BLE001 - an error in the page is noticed, too
            continue
    assert unseen == []


@pytest.mark.browser
@pytest.mark.parametrize("name", ["as in the lab", "learned places"])
def test_the_file_writes_from_a_disk(disk, tmp_path, name):
    model = Writer(**MODELS[name])
    path = explorables.write_page(
        model, tmp_path / "kept" / "mine.html", characters=CHARACTERS, context=CONTEXT,
        prompt="ROMEO:\n", title="A & B <mine>", about="Trained </script> by me.",
    )  # fmt: skip
    page, asked, errors = disk.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda m: m.type == "error" and errors.append(m.text))
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(path.as_uri())
    assert page.title() == "A & B <mine>" == page.inner_text("h1")
    assert "Trained </script> by me." in page.inner_text("main")
    assert page.input_value("#prompt") == "ROMEO:\n"

    page.fill("#temperature", "0")
    page.fill("#count", "40")  # past the context
    page.click("#write")
    page.wait_for_selector("#text[data-state=done]")
    assert page.text_content("#text") == likeliest(model, "ROMEO:\n", 40)

    page.fill("#prompt", "abc9")
    page.fill("#count", "5")
    page.fill("#temperature", "1")
    page.click("#write")
    page.wait_for_selector("#text[data-state=done]")
    text = page.text_content("#text")
    assert text.startswith("abc") and len(text) == 8 and set(text) <= set(CHARACTERS)
    assert "never read" in page.inner_text("#note") and "9" in page.inner_text("#note")
    assert asked == [path.as_uri()] and errors == []


@pytest.mark.browser
def test_writing_stops_when_told(disk, tmp_path):
    path = explorables.write_page(
        Writer(), tmp_path / "mine.html", characters=CHARACTERS, context=CONTEXT, prompt="a"
    )
    page = disk.new_page()
    page.goto(path.as_uri())
    page.fill("#count", "5000")
    page.click("#write")
    page.wait_for_function("() => document.getElementById('text').textContent.length > 20")
    page.click("#write")
    page.wait_for_selector("#text[data-state=done]")
    assert len(page.text_content("#text")) < 5001
    assert page.inner_text("#write") == "Write"
    assert re.fullmatch(r"\d+ characters a second", page.inner_text("#pace"))


# what is refused ----------------------------------------------------------------------------------


class WithState(Writer):
    def forward(self, ids):
        return super().forward(ids), None


class Twice(Writer):
    def forward(self, ids):
        return 2 * super().forward(ids)


class Halves(Writer):
    def forward(self, ids):
        return super().forward(ids[:, : len(ids[0]) // 2])


class Shifted(Writer):
    """Each row enters with the row of the character before it."""

    def forward(self, ids):
        x = self.table(ids) + self.table(ids.roll(1, 1))
        for layer in self.layers:
            x, _ = layer(x)
        return self.scores(self.last(x))


def changed(**parts):
    """A model whose first block is of another kind."""
    model, d = Writer(), 16
    mixer = parts.pop("mixer", {})
    ffn = FeedForward(d, 8, kind=parts.pop("kind", "gelu"))
    model.layers[0] = Block(
        MultiHeadAttention(d, 2, **{"causal": True} | mixer), ffn, **{"place": "pre"} | parts
    )
    return model


def write(model, **given):
    given = {"characters": CHARACTERS, "context": CONTEXT, "prompt": "a"} | given
    return explorables.write_page(model, "/nowhere/at/all.html", **given)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: write("model"), TypeError, "model"),
        (lambda: write(Writer(), context=0), ValueError, "context"),
        (lambda: write(Writer(), title=3), TypeError, "title"),
        (lambda: write(Writer(), prompt="é"), ValueError, "prompt must be made"),
        (lambda: write(Writer(), prompt=""), ValueError, "at least one"),
        (lambda: write(Writer(), characters=["ab"]), TypeError, "single characters"),
        (lambda: write(Writer(), characters="abc"), ValueError, "as many as characters"),
        (lambda: write(nn.Linear(2, 2)), ValueError, "tfbook.blocks.Block"),
        (lambda: write(Twice()), ValueError, "it computes something else"),
        (lambda: write(WithState()), ValueError, "got None"),
        (lambda: write(Halves()), ValueError, "must give logits"),
        (lambda: write(Shifted()), ValueError, "what enters the first block"),
        (lambda: write(changed(mixer={"n_kv_heads": 1})), ValueError, "block 0 .* as many heads"),
        (lambda: write(changed(mixer={"window": 4})), ValueError, "no window"),
        (lambda: write(changed(mixer={"causal": False})), ValueError, "causal attention"),
        (lambda: write(changed(place="inside")), ValueError, 'place "pre" or "post"'),
        (lambda: write(changed(parallel=True)), ValueError, "one after the other"),
        (lambda: write(changed(kind="swiglu_clipped")), ValueError, "FeedForward as its network"),
        (lambda: write(changed(mixer={"position": RotaryPositions(8, rotated=4)})), ValueError,
         "rotary positions"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_model_stays_as_it_is(tmp_path):
    model = Writer().train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    explorables.write_page(
        model, tmp_path / "a.html", characters=CHARACTERS, context=CONTEXT, prompt="a"
    )
    assert model.training and not model.layers[0]._forward_pre_hooks
    assert all(torch.equal(before[name], w) for name, w in model.state_dict().items())
