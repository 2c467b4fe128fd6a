"""The translator in the page: its file, its JavaScript in Node, and its figure in Python."""

import base64
import json
import math
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.package import node
from tests.package import translator_checks as checks
from tfbook import data, pretrained
from tfbook.data import BOS, EOS, PAD
from tfbook.experiments import translator
from tfbook.pretrained import round_model
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _translator, _weights
from tfbook.training import translation_loss

HEADS = checks.HEADS
near = {"abs": 1e-9, "rel": 0}


@pytest.fixture(scope="module")
def shipped():
    """The translator in 16 bits a number, in float32."""
    return _weights.load_translator()


# ---------------------------------------------------------------------- the file


def test_it_is_the_shipped_translator(shipped):
    model, tokenizer = translator.trained()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, shipped.model.state_dict()[name])
    assert tokenizer.to_str() == shipped.tokenizer.to_str()
    assert shipped.config == translator.CONFIG and shipped.eos_ids == (EOS,)


def test_the_script_carries_the_rounded_weights():
    script = _weights.live_script("translator")
    start, _, rest = script.partition(" = ")
    assert start == '(window.tfbookWeights ||= {})["translator"]'
    assert len(script.encode()) <= 2_000_000
    file = json.loads(rest.rstrip(";\n"))
    bits, taken = base64.b64decode(file["data"]), 0
    rounded = checks.loaded()[0].state_dict()
    for tensor in file["tensors"]:
        rows, cols, at = tensor["rows"], tensor["cols"], tensor["numbers"]
        if cols:
            steps = np.frombuffer(bits, "i1", rows * cols, at).reshape(rows, cols)
            scale = np.frombuffer(bits, "<f4", rows, tensor["scale"])
            found = steps.astype("f8") * scale.astype("f8")[:, None]
            taken += rows * cols + 4 * rows
        else:
            found = np.frombuffer(bits, "<f4", rows, at)
            taken += 4 * rows
        assert (found == rounded[tensor["name"]].numpy()).all()
    assert taken == len(bits) and {t["name"] for t in file["tensors"]} == set(rounded)


def test_the_file_spells_every_token(shipped):
    """What a merge joins are the bytes of its sides; all tokens but the special ones are told."""
    told = _weights.translator_file(shipped)["tokenizer"]
    spelled = {token: bytes([byte]) for byte, token in enumerate(told["bytes"])}
    for left, right, both in told["merges"]:
        joined = spelled[left] + spelled[right]
        assert spelled.setdefault(both, joined) == joined
    assert sorted(spelled) == list(range(len(told["specials"]), 1500))
    for token, letters in spelled.items():
        assert shipped.tokenizer.decode([token]) == letters.decode("utf-8", errors="replace")


@pytest.mark.untyped
def test_other_models_are_refused(shipped):
    with pytest.raises(TypeError, match="loaded"):
        _weights.translator_file("translator")
    for other in (pretrained.load("shakespeare"),):
        with pytest.raises(ValueError, match="loaded"):
            _weights.translator_file(other)


# ---------------------------------------------------------------------- the library, in Node


@pytest.fixture(scope="module")
def bench():
    """Node with the library and the weights."""
    if node.NODE is None:
        pytest.skip("there is no Node; tests/site compares the same in a browser")
    page = node.NodePage()
    page.evaluate("(script) => void (0, eval)(script)", _weights.live_script("translator"))
    checks.load(page)
    yield page
    page.close()


@pytest.mark.parametrize("name", checks.CHECKS)
def test_the_library_computes_what_the_package_does(bench, name):
    assert checks.CHECKS[name](bench)


@pytest.mark.parametrize("seed", range(4))
def test_random_tokens_of_any_length(bench, seed):
    assert checks.check_model(bench, seed, n=1 + 17 * seed, length=1 + 9 * (3 - seed))


def test_a_search_without_an_end_stops_at_the_most(bench):
    ids = [*checks.random_ids(5, 9), EOS]
    steps = checks.served(bench, ids, 3, 1, 5, ())
    assert len(steps) == 5 and checks._same_steps(steps, ids, 3, 1, 5, ())


def test_texts_of_every_kind_are_cut_as_the_package_cuts_them(bench):
    assert checks.check_tokens(bench, range(100, 300))
    characters = [
        chr(i) for i in range(0x3000)
        if unicodedata.category(chr(i)) not in ("Cs", "Cn")
    ]  # fmt: skip
    _, tokenizer = checks.loaded()
    texts = [f"a{c} {c}{c} b1{c}2" for c in characters[::7]]
    code = "(texts) => texts.map((text) => window.ours.encodeText(window.tokenizer, text))"
    wanted = [tokenizer.encode(text).ids for text in texts]
    found = bench.evaluate(code, texts)
    differ = [t for t, a, b in zip(texts, found, wanted, strict=True) if a != b]
    assert differ == []


def test_planted_bugs_are_seen(bench):
    assert checks.survivors(bench) == []


# ---------------------------------------------------------------------- eight bits


def test_eight_bits_cost_what_the_page_says(shipped):
    """Each tenth test sentence; over fifths the difference has a deviation of 0.0004."""
    pairs = [
        ([*shipped.tokenizer.encode(a).ids, EOS], [BOS, *shipped.tokenizer.encode(b).ids, EOS])
        for a, b in data.english_french("test")[::10]
    ]

    def loss(model):
        found = []
        with torch.no_grad():
            for pair in pairs:
                batch = tuple(torch.tensor([row]) for row in pair)
                found.append(translation_loss(model, batch, pad_id=PAD))
        return sum(total.item() for total, _ in found) / sum(n for _, n in found)

    cost = loss(round_model(shipped.model)) - loss(shipped.model)
    wanted = _translator.LOSS["rounded"] - _translator.LOSS["shipped"]
    assert cost == pytest.approx(wanted, abs=0.003)


# ---------------------------------------------------------------------- the figure in Python


@pytest.mark.parametrize(
    ("n_beams", "length_penalty", "off", "head", "step"),
    [(4, 1, (), None, None), (1, 0, (), 2, 3), (3, 0.5, HEADS, 0, None)],
)
def test_the_figure_says_what_the_parts_compute(n_beams, length_penalty, off, head, step):
    text = "Press the button."
    figure = explorables.live_translator(
        text, n_beams=n_beams, length_penalty=length_penalty, off=off, head=head, step=step,
        token=2, layer=0, chosen=1,
    )  # fmt: skip
    _, tokenizer = checks.loaded()
    ids = [*tokenizer.encode(text).ids, EOS]
    steps = checks.search(ids, off, n_beams, length_penalty, _translator.MOST)
    alive, finished = steps[(step or len(steps)) - 1]
    hypotheses = sorted([*finished, *alive], key=lambda each: -each.score)
    assert [each["text"] for each in figure.hypotheses] == tokenizer.decode_batch(
        [each.tokens for each in hypotheses]
    )
    assert [each["score"] for each in figure.hypotheses] == pytest.approx(
        [each.score for each in hypotheses], **near
    )
    assert [each["ended"] for each in figure.hypotheses] == [
        each.tokens[-1] == EOS for each in hypotheses
    ]
    tokens = hypotheses[min(1, len(hypotheses) - 1)].tokens
    _, _, logits, _, cross = checks.read(ids, [BOS, *tokens[:-1]], off)
    weights = cross[0, :, 2].mean(0) if head is None else cross[0, head, 2]
    assert figure.weights == pytest.approx(weights.tolist(), **near)
    assert figure.logits == pytest.approx(logits[2].tolist(), **near)
    assert figure.next == pytest.approx(logits[2].softmax(-1).tolist(), **near)
    assert "".join(figure.source) == text + "<eos>"
    assert figure.translation == tokenizer.decode(tokens)
    assert [tokenizer.encode(each).ids[0] for each in figure.written[:1]] == tokens[:1]


def test_the_model_is_left_as_it_was():
    before = explorables.live_translator("Open it.").logits
    assert (
        explorables.live_translator("Open it.", off=["cross 0.1", "encoder 1.2"]).logits != before
    )
    model = _translator._model().model
    assert not any(module._forward_hooks for module in model.modules())
    assert explorables.live_translator("Open it.").logits == before


def test_the_text_says_what_is_shown():
    figure = explorables.live_translator("Open it.", off=["cross 0.1"], head=1, token=1)
    words = " ".join(repr(figure).split())
    assert f"“Open it.” becomes “{figure.translation}”. Switched off: cross 0.1." in words
    assert f"“{figure.written[1].strip()}”, token 2, is written, head 1.1 looks at" in words
    for each in figure.hypotheses:
        assert f"“{each['text']}” {each['score']:.3f}" in words


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"text": ""}, ValueError, "text"),
        ({"text": "a" * 121}, ValueError, "text must have 1 to 120"),
        ({"text": "\ud800"}, ValueError, "valid Unicode"),
        ({"text": 3}, TypeError, "text"),
        ({"n_beams": 6}, ValueError, "n_beams"),
        ({"n_beams": 1.5}, TypeError, "n_beams"),
        ({"length_penalty": math.nan}, ValueError, "length_penalty"),
        ({"length_penalty": -1}, ValueError, "length_penalty"),
        ({"layer": 2}, ValueError, "layer"),
        ({"head": 4}, ValueError, "head"),
        ({"token": -1}, ValueError, "token"),
        ({"step": 0}, ValueError, "step"),
        ({"chosen": 10}, ValueError, "chosen"),
        ({"off": "cross 0.1"}, TypeError, "off"),
        ({"off": ["cross 2.0"]}, ValueError, "off"),
    ],
)
@pytest.mark.untyped
def test_what_the_figure_refuses(given, error, words):
    with pytest.raises(error, match=re.escape(words)):
        explorables.live_translator(**given)


def test_what_is_stored_is_small_and_holds_no_weights():
    html = explorables.live_translator()._html()
    assert len(html) < 4_000 and 'asked": false' in html


def test_python_hands_over_the_weights_when_asked(shipped):
    figure = explorables.live_translator()
    assert "file" not in figure.widget.data
    figure.asked = True
    assert figure.widget.data["file"] == _weights.translator_file(shipped)
    assert "file" not in figure.data


# ---------------------------------------------------------------------- the page


def test_the_page_says_what_the_model_does():
    """Every number in the page's section, computed."""
    page = Path(__file__).resolve().parents[2] / "book" / "live_models.md"
    text = page.read_text(encoding="utf-8")
    words = " ".join(text[text.index("## A translator") :].split())
    loss, bleu = _translator.LOSS, _translator.BLEU
    assert f"cost {loss['shipped']:.4f} nats a token" in words
    assert f"the rounded ones {loss['rounded']:.4f}" in words
    assert f"{bleu['shipped']:.2f} and {bleu['rounded']:.2f}" in words
    assert f"{len(_weights.live_script('translator').encode()) / 1e6:.1f} MB" in words
    decode = _translator._model().tokenizer.decode

    def best(text, n_beams=4, length_penalty=1.0, off=()):
        """The hypothesis that wins, and its text without the full stop."""
        found = _translator.search(text, n_beams, length_penalty, off)[-1][0]
        return found, decode(found.tokens).rstrip(".")

    def says(found):
        return f"{found.log_prob:.2f}".replace("-", "−")

    panel, enter, window, screen, cat = _translator.TEXTS
    four, *fewer = (best(panel, n)[1] for n in (4, 3, 2, 1))
    assert f"becomes *{four}*, which is right" in words
    assert f"it becomes *{fewer[0]}*, *{fewer[1]}* and *{fewer[2]}*" in words
    winner = best(panel)[0].tokens
    third = [each.tokens for each in _translator.search(panel, 4, 1.0)[2]]
    assert third.index(winner[:3]) == 3 and len(third) == 4
    for n, text in ((1, "writes"), (4, "find")):
        found, french = best(enter, n)
        assert re.search(rf"{text} \*{re.escape(french)}\*, with (ln p )?{says(found)}", words)
    for alpha in (1.0, 0.0):
        found, french = best(window, 4, alpha)
        assert f"becomes *{french}*, with" in words
        assert re.search(rf"{says(found)} for {len(found.tokens)}\b", words)
        assert f"{found.log_prob / len(found.tokens):.2f}".replace("-", "−") in words
    cross = _translator.written(panel, tuple(winner)).cross[1].mean(0)
    source = [_translator.face(token) for token in _translator.source_of(panel)]
    names = [_translator.face(token) for token in winner]
    for french, english in (("Cliquez", "Click"), (" panneau", " panel"), (" sur", "."),
                            (" sur", "<eos>")):  # fmt: skip
        weight = cross[names.index(french), source.index(english)]
        assert f"{weight:.2f}" in words
    off = tuple(f"cross {layer}.{head}" for layer in range(2) for head in range(4))
    alone = {best(text, off=off)[1] for text in (panel, cat)}
    assert f"*{alone.pop()}*" in words and not alone
    own = tuple(f"decoder {layer}.{head}" for layer in range(2) for head in range(4))
    assert "repeats *pour*" in words and " pour pour pour" in best(panel, off=own)[1]
    for text in (screen, cat):
        assert f"*{text.rstrip('.')}* becomes *{best(text)[1]}*" in words
