"""The library of tensor operations against torch, and the model in the page against `tfbook`.

Operations are called in the browser by themselves, on random inputs; planted bugs must be seen by
these comparisons. The figure is visited as those of `test_explorables.py` are: its numbers are read
off the page and compared with the same rounded weights in PyTorch, in float64 on both sides.
"""

import functools
import json
import random

import pytest
import torch
from torch.nn import functional

from tests.package import test_live_model as package
from tests.package.node import library
from tests.site import test_explorables as others
from tests.site.live_pages import (
    HOSTS,
    SLOW,
    WATCH,
    longest_frame,
    models_asked,
    opener,
    slowed,
    unseen_bugs,
)
from tests.site.test_explorables import axe_faults, check_widths, control, lay_out, tap_slider
from tfbook import attention, blocks, generation, positions, pretrained
from tfbook.pretrained import round_model, round_rows
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _chance, _live, _weights

pytestmark = pytest.mark.browser
figures_at, free_pages, visit = others.figures_at, others.free_pages, others.visit
TOLERANCE = 1e-9
near = functools.partial(pytest.approx, abs=TOLERANCE, rel=0)
CHARACTERS = _live._characters()
QUEEN, KING = "The queen is dead. Long live the ", "The king is dead. Long live the "
FIGURES = {
    "live": lambda: [explorables.live_model(QUEEN, other=KING)],
    "changed": lambda: [
        explorables.live_model(
            QUEEN, other=KING, off=["0.1", "2.ffn"], patch=[2, 5, 6], temperature=0.5, top_k=5
        )
    ],
    "two": lambda: [explorables.live_model("To be"), explorables.live_model("Or not")],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with the figure, and the weights where the built site has them."""
    folder = lay_out(tmp_path_factory.mktemp("live"), FIGURES)
    script = folder / "_static" / "models" / "shakespeare.js"
    script.parent.mkdir()
    script.write_text(_weights.live_script(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def rounded():
    """The model whose matrices have 8 bits a number, in float64."""
    return round_model(pretrained.load("shakespeare", dtype=torch.float64).model)


# ---------------------------------------------------------------------- the library by itself

# Functions of both files in one module, as `module_source` puts them.
LIBRARY = ("workers", "tensors", "language_model")
LOAD = """async (source) => {
  const url = URL.createObjectURL(new Blob([source], { type: 'text/javascript' }));
  window.ours = await import(url);
}"""
# Tensors go and come as {shape, numbers}; what is no tensor as it is.
CALL = """([name, given]) => {
  const inward = (x) => x?.numbers ? Float64Array.from(x.numbers)
    : Array.isArray(x) ? x.map(inward)
    : x && typeof x === 'object'
      ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, inward(v)])) : x;
  const outward = (x) => ArrayBuffer.isView(x) ? [...x] : Array.isArray(x) ? x.map(outward)
    : x && typeof x === 'object'
      ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, outward(v)])) : x;
  return outward(window.ours[name](...given.map(inward)));
}"""
# A text read token by token; the last `kept` tokens are looked at.
READ = """([ids, off, patch, kept]) => {
  const { ours, model } = window;
  const caches = ours.emptyCaches(model);
  const put = (i) => (place, x) =>
    patch.length && place === patch[0] && i === patch[1] ? Float64Array.from(patch[2]) : x;
  const steps = ids.map((id, i) => ours.readToken(model, caches, id, { off, put: put(i) }));
  return steps.slice(-kept).map(({ logits, streams, looked }) => ({
    logits: [...logits], streams: streams.map((x) => [...x]),
    looked: looked.map((heads) => heads.map((row) => [...row])),
  }));
}"""


@pytest.fixture(scope="module")
def bench(browser):
    """A page with the library, and with the weights."""
    page = browser.new_page()
    page.goto("about:blank")
    page.evaluate(_weights.live_script())
    yield page
    page.close()


def load(page, edits=(), model=True):
    page.evaluate(LOAD, library(LIBRARY, edits))
    if model:
        page.evaluate("window.model = window.ours.openModel(window.tfbookWeights.shakespeare)")


def pack(x):
    """A tensor for the browser, a dictionary or a list of them, or what is none."""
    if isinstance(x, torch.Tensor):
        return {"numbers": x.flatten().tolist()}
    if isinstance(x, dict):
        return {key: pack(value) for key, value in x.items()}
    return [pack(value) for value in x] if isinstance(x, list | tuple) else x


def call(page, name, *given):
    return page.evaluate(CALL, [name, [pack(x) for x in given]])


def rand(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + 1000 * sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.double)


def same(found, wanted, tolerance=1e-12):
    """Tell whether numbers from the browser are those of a tensor."""
    found = torch.tensor(found, dtype=torch.double).flatten()
    wanted = wanted.flatten().double()
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=tolerance, atol=1e-12)


def rows8(weight):
    rounded = round_rows(weight)
    return {"values": rounded.values.double(), "scale": rounded.scale.double(),
            "rows": weight.shape[0], "cols": weight.shape[1]}  # fmt: skip


def check_matmul(page):
    a, b = rand(3, 5), rand(5, 4)
    return same(call(page, "matmul", a, b, 3, 5, 4), a @ b)


def check_matvec8(page):
    weight, x = rand(6, 7), rand(7)
    exact = round_rows(weight)
    matrix = exact.values.double() * exact.scale.double()[:, None]
    mine = rows8(weight)
    return (
        same(call(page, "matvec8", mine, x), matrix @ x)
        # 254 steps for each row: what is lost of a sum is small beside it
        and same(call(page, "matvec8", mine, x), weight @ x, 0.05)
        and same(call(page, "row8", mine, 4), matrix[4])
    )


def check_plus(page):
    return same(call(page, "plus", rand(9), rand(9, seed=1)), rand(9) + rand(9, seed=1))


def check_softmax(page):
    x = 300 * rand(8)
    far = torch.tensor([800.0, 801.0, -900.0])
    return same(call(page, "softmaxOf", x), x.softmax(0)) and same(
        call(page, "softmaxOf", far), far.double().softmax(0)
    )


def check_norms(page):
    x, gain, bias = 3 * rand(24) + 1, rand(8), rand(8, seed=2)
    small = 1e-3 * x
    rows, little = x.view(3, 8), small.view(3, 8)
    return (
        same(call(page, "rmsNorm", x, gain, 1e-5), blocks.rms_norm(rows, gain, eps=1e-5))
        and same(call(page, "rmsNorm", small, gain, 1e-5),
                 functional.rms_norm(little, (8,), gain, 1e-5))
        and same(call(page, "layerNorm", small, gain, bias, 1e-5),
                 functional.layer_norm(little, (8,), gain, bias, 1e-5))
    )  # fmt: skip


def check_rotary(page):
    x = rand(4, 10)
    for position in (0, 1, 37, 255):
        table = page.evaluate(
            "([p, s, b]) => { const t = window.ours.rotaryTable(p, s, b);"
            " return { cos: [...t.cos], sin: [...t.sin] }; }", [position, 10, 10000]
        )  # fmt: skip
        angles = {key: torch.tensor(value, dtype=torch.double) for key, value in table.items()}
        for layout in ("interleaved", "half"):
            wanted = positions.apply_rotary(
                x[:, None], torch.tensor([position]), base=10000.0, layout=layout
            )
            if not same(call(page, "rotate", x, angles, layout), wanted):
                return False
    return True


def check_activations(page):
    x = torch.cat([torch.linspace(-9, 9, 61, dtype=torch.double), torch.tensor([0.0, 1e-9, -40])])
    silu, gelu, erf = page.evaluate(
        "x => ['silu', 'gelu', 'erf'].map((name) => x.map(window.ours[name]))", x.tolist()
    )
    return (
        same(silu, functional.silu(x)) and same(gelu, functional.gelu(x))
        and same(erf, torch.erf(x))
    )  # fmt: skip


def check_attention(page):
    good = True
    for causal, n, m in ((False, 3, 5), (True, 4, 4), (True, 2, 5)):
        q, k, v = rand(n, 6), rand(m, 6, seed=3), rand(m, 6, seed=4)
        mask = torch.ones(n, m, dtype=torch.bool).tril(m - n) if causal else None
        wanted = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        weights = attention.attend(q, k, v, causal=causal, return_weights=True)[1]
        found = call(page, "attention", q, k, v, n, m, 6, {"causal": causal})
        good &= same(found["found"], wanted) and same(found["weights"], weights)
        scaled = call(page, "attention", q, k, v, n, m, 6, {"causal": causal, "scale": 2})
        good &= same(scaled["found"], functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=2))  # fmt: skip
    return good


def check_cache(page):
    """Seven tokens through a window of four, two heads of three numbers."""
    q, k, v = (rand(2, 7, 3, seed=s) for s in range(3))
    found = page.evaluate(
        """([q, k, v]) => {
          const cache = window.ours.emptyCache(4, 6);
          return q.map((query, i) => {
            window.ours.remember(cache, k[i], v[i]);
            const { found, weights } = window.ours.attendCached(query, cache, 3, 0.7);
            return { found: [...found], weights: weights.map((row) => [...row]) };
          });
        }""",
        [x.transpose(0, 1).flatten(1).tolist() for x in (q, k, v)],
    )
    mask = attention.band_mask(7, 7, 4) & attention.causal_mask(7)
    wanted, weights = attention.attend(q, k, v, mask=mask, scale=0.7, return_weights=True)
    good = True
    for i, step in enumerate(found):
        held = min(i + 1, 4)
        good &= same(step["found"], wanted[:, i])
        good &= same(step["weights"], weights[:, i, i + 1 - held : i + 1])
    return good


def check_model(page, length=12, kept=12, off=("1.2", "3.ffn", "0.0"), place=2):
    """Random characters, parts switched off, another stream at one of them."""
    text = package.random_text(length, length)
    ids = [CHARACTERS.index(c) for c in text]
    row = 20 * rand(160)
    patch = [place, length // 2, row.tolist()]
    found = page.evaluate(READ, [ids, list(off), patch, kept])
    streams, looked, logits = package.read(_rounded(), ids, off, (place, length // 2, row))
    good = True
    for i, step in enumerate(found, start=length - kept):
        good &= same(step["logits"], logits[i], 1e-9)
        good &= same(step["streams"], streams[:, i], 1e-9)
        first = max(0, i + 1 - 256)
        good &= same(step["looked"], looked[:, :, i, first : i + 1], 1e-9)
    return good


@functools.cache
def _rounded():
    return round_model(pretrained.load("shakespeare", dtype=torch.float64).model)


SETTINGS = [(0.7, 0, 1), (1.3, 5, 1), (1, 0, 0.6), (0.4, 20, 0.9), (2, 3, 0.01), (1, 1, 1)]


def check_cuts(page):
    good = True
    for seed, (temperature, top_k, top_p) in enumerate(SETTINGS):
        logits = 3 * rand(63, seed=seed)
        logits[7] = logits[11] = logits.max() - 0.1  # two that tie
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        cut = generation.Sampling(temperature=temperature, top_k=top_k or None,
                                  top_p=None if top_p == 1 else top_p)  # fmt: skip
        good &= same(call(page, "cutDown", logits, given), cut(logits).softmax(0))
    return good


def check_drawn(page):
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.double)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999999])
    wanted = generation.draw(p.log().expand(6, -1), uniform).tolist()
    return [call(page, "drawn", p, u) for u in uniform.tolist()] == wanted


CHECKS = {
    "matmul": check_matmul, "matvec8": check_matvec8, "plus": check_plus, "softmax": check_softmax,
    "norms": check_norms, "rotary": check_rotary, "activations": check_activations,
    "attention": check_attention, "cache": check_cache, "model": check_model, "cuts": check_cuts,
    "drawn": check_drawn,
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(bench):
    load(bench)
    return bench


@pytest.mark.parametrize("name", CHECKS)
def test_operations_are_torchs(plain, name):
    assert CHECKS[name](plain)


def test_a_long_text_leaves_the_window(plain):
    assert check_model(plain, length=262, kept=3, off=(), place=4)


_, T, M = LIBRARY
# The file, the check that sees the bug, the text, and what stands there instead.
MUTANTS = [
    (T, "matmul", "weight * b[p * m + j]", "weight * b[j * k + p]"),
    (T, "matvec8", "out[i] = scale[i] * sum;", "out[i] = scale[0] * sum;"),
    (T, "matvec8", "values[row + j] * x[j]", "Math.abs(values[row + j]) * x[j]"),
    (T, "matvec8", "(q) => scale[i] * q", "(q) => q / 127"),
    (T, "softmax", "top = Math.max(top, x);\n  if", "top = 0;\n  if"),
    (T, "norms", "Math.sqrt(squares / size + eps)", "Math.sqrt(squares / size) + eps"),
    (T, "norms", "squares / size + eps", "squares / (size - 1) + eps"),
    (T, "norms", "(gain[i] * x[at + i]) / root", "x[at + i] / root"),
    (T, "norms", "x[at + i] - sum / size", "x[at + i]"),
    (T, "rotary", "x[a] * cos[i] - x[b] * sin[i]", "x[a] * cos[i] + x[b] * sin[i]"),
    (T, "rotary", "base ** ((-2 * i) / size)", "base ** (-i / size)"),
    (T, "rotary", 'layout === "half" ? a + pairs : a + 1', "a + 1"),
    (T, "activations", "(2 * x * x) / (2 * n + 1)", "(2 * x * x) / (2 * n - 1)"),
    (T, "activations", "x / (1 + Math.exp(-x))", "1 / (1 + Math.exp(-x))"),
    (T, "attention", "causal && j > i + m - n", "causal && j > i"),
    (T, "attention", "scale = size ** -0.5", "scale = 1 / size"),
    (T, "cache", "Math.min(seen, window)", "seen"),
    (T, "cache", "((seen - held + j) % window)", "(j % window)"),
    (T, "cache", "(cache.seen % cache.window)", "Math.min(cache.seen, cache.window - 1)"),
    (M, "model", "Math.sqrt(d_model) * number", "number"),
    (M, "model", "rotaryTable(caches[0].seen,", "rotaryTable(0,"),
    (M, "model", "d_head, model.scale)", "d_head, d_head ** -0.5)"),
    (M, "model", "rmsNorm(matvec8(part.key, seen), part.keyNorm, eps)", "matvec8(part.key, seen)"),
    (M, "model", "rmsNorm(x, part.ffnNorm, eps)", "rmsNorm(x, part.mixerNorm, eps)"),
    (M, "model", "(g, i) => silu(g) * up[i]", "(g, i) => g * silu(up[i])"),
    (M, "model", "head * d_head, (head + 1)", "0, (head + 1)"),
    (M, "model", "x = put(layer + 1, x);", "put(layer + 1, x);"),
    (M, "model", "x = put(layer + 1, x);", "x = put(layer, x);"),
    (M, "model", "rmsNorm(x, model.finalNorm, model.eps)", "x"),
    (M, "cuts", "(x) => x / temperature", "(x) => x * temperature"),
    (M, "cuts", "|| before < top_p;", "|| before + p[i] < top_p;"),
    (M, "cuts", "x < least ? -Infinity : x", "x <= least ? -Infinity : x"),
    (M, "drawn", "if (sum > place) break;", "if (sum >= place) break;"),
]


def test_planted_bugs_are_seen(bench):
    """All in one test: each is a module of its own in the same page."""
    unseen = []
    try:
        for file, check, old, new in MUTANTS:
            load(bench, [(file, old, new)], model=check == "model")
            if CHECKS[check](bench):
                unseen.append(f"{old} -> {new}")
    finally:
        load(bench)
    assert unseen == []


# ---------------------------------------------------------------------- the figure


READY = "document.querySelectorAll('.tfx-live > .tfx-opened:not([hidden]):not([data-busy])')"


def ask(page):
    """Ask for the model, and wait for its first reading."""
    control(page, "ask").first.click()
    settled(page)
    return page


def settled(page):
    """Wait until what is shown belongs to what was asked."""
    page.wait_for_function(
        "[...document.querySelectorAll('.tfx-live')].every((card) => {"
        " const stage = card.querySelector(':scope > .tfx-opened');"
        " return stage.hidden || !('busy' in stage.dataset); })"
        " && document.querySelector('.tfx-live > .tfx-opened:not([hidden])')"
    )


def numbers(page, *names):
    """Numbers name[0], name[1], … off the page, and single ones, in full precision."""
    found = page.locator(".tfx-live [data-value]").evaluate_all(
        "nodes => nodes.map(node => [node.dataset.name, Number(node.dataset.value)])"
    )
    found = dict(found)
    out = []
    for name in names:
        row = [found[f"{name}[{i}]"] for i in range(96) if f"{name}[{i}]" in found]
        out.append(row)
    return out


def type_text(page, name, text):
    """Type a text into a field whose words are replaced."""
    control(page, name).fill(text)
    settled(page)


def check_page(page, model, text, *, other=None, off=(), patch=(), at=None, heads=((0, 0),)):
    """Logits, probabilities, lens and the weights of some heads off the page."""
    ids = [CHARACTERS.index(c) for c in text]
    at = len(ids) - 1 if at is None else at
    row = None
    if patch:
        source = package.read(model, [CHARACTERS.index(c) for c in other])[0]
        row = (patch[0], patch[2], source[patch[0], patch[1]])
    streams, looked, logits = package.read(model, ids, off, row)
    shown = numbers(page, "logit", "now", "was")
    plain = package.read(model, ids)[2][at].softmax(-1)
    assert shown[0] == near(logits[at].tolist())
    assert shown[1] == near(logits[at].softmax(-1).tolist())
    assert shown[2] == near(plain.tolist())
    with torch.no_grad():
        seen = (model.stack.final_norm(streams[:, at]) @ model.embed.weight.mT).softmax(-1)
    for place, p in enumerate(seen):
        best = p.topk(3)
        nodes = [page.locator(f'[data-name="lens[{place}][{k}]"]') for k in range(3)]
        assert [float(n.get_attribute("data-value")) for n in nodes] == near(best.values.tolist())
        assert [int(n.get_attribute("data-id")) for n in nodes] == best.indices.tolist()
        right = page.locator(f'[data-name="right[{place}]"]').get_attribute("data-value")
        if at + 1 < len(ids):
            assert float(right) == near(p[ids[at + 1]].item())
        else:
            assert right is None
    for layer, head in heads:
        control(page, "head", f"{layer}.{head}").check(force=True)
        assert numbers(page, "weight")[0] == near(looked[layer, head, at].tolist())


ALL_HEADS = [(layer, head) for layer in range(4) for head in range(4)]


@pytest.mark.parametrize("seed", range(3))
def test_random_texts_give_the_packages_numbers(visit, figures_at, rounded, seed):
    page = ask(visit("live", figures_at))
    text = package.random_text(seed, random.Random(seed).randint(2, 96))
    type_text(page, "text", text)
    check_page(page, rounded, text, heads=ALL_HEADS)
    at = random.Random(seed).randrange(len(text))
    control(page, "token", at).check(force=True)
    check_page(page, rounded, text, at=at, heads=ALL_HEADS[seed::5])


def check_changed(page, model):
    """The page that begins with switches, a patch and a cut."""
    given = {"other": KING, "off": ("0.1", "2.ffn"), "patch": (2, 5, 6)}
    check_page(page, model, QUEEN, heads=[(0, 1), (3, 2)], **given)
    cut = generation.Sampling(temperature=0.5, top_k=5)
    logits = torch.tensor(numbers(page, "logit")[0], dtype=torch.double)
    assert numbers(page, "drawn")[0] == near(cut(logits).softmax(0).tolist())
    control(page, "token", 20).check(force=True)
    check_page(page, model, QUEEN, at=20, **given)


def test_switches_and_patch_give_the_packages_numbers(visit, rounded):
    page = ask(visit("changed"))
    check_changed(page, rounded)
    control(page, "token", 32).check(force=True)
    control(page, "all_on").click()
    settled(page)
    check_page(page, rounded, QUEEN, other=KING, patch=(2, 5, 6))
    control(page, "take_out").click()
    settled(page)
    check_page(page, rounded, QUEEN)
    assert page.locator('[data-name="was[0]"]').is_hidden()


def test_a_layer_is_switched_off_by_the_keyboard(visit, rounded):
    page = ask(visit("live"))
    control(page, "on[1]").press("Space")
    settled(page)
    off = [f"1.{part}" for part in (0, 1, 2, 3, "ffn")]
    check_page(page, rounded, QUEEN, off=off)
    control(page, "on[1.ffn]").press("Space")
    settled(page)
    check_page(page, rounded, QUEEN, off=off[:4])
    assert control(page, "on[1]").evaluate("node => node.indeterminate")


def test_an_activation_is_put_in_by_the_keyboard(visit, rounded):
    page = ask(visit("live"))
    control(page, "place", 3).press("Space")
    control(page, "source", 30).press("ArrowRight")
    control(page, "token", 20).press("ArrowLeft")
    control(page, "put").press("Enter")
    settled(page)
    check_page(page, rounded, QUEEN, other=KING, patch=(3, 31, 19), at=19)
    assert "(31)" in page.get_by_text("stands now what").inner_text()


def test_an_activation_is_dragged_with_a_mouse(visit, rounded):
    page = ask(visit("live"))
    control(page, "place", 1).check(force=True)
    chips = page.locator(".tfx-source .tfx-option")
    page.set_viewport_size({"width": 1280, "height": 3000})
    start = chips.nth(5).bounding_box()
    end = page.locator(".tfx-option", has=control(page, "token", 6)).bounding_box()
    page.mouse.move(start["x"] + 8, start["y"] + 8)
    page.mouse.down()
    page.mouse.move(start["x"] + 30, start["y"] - 60, steps=3)
    page.mouse.move(end["x"] + 8, end["y"] + 8, steps=3)
    page.mouse.up()
    page.mouse.move(0, 0)  # what the mouse is over is followed
    settled(page)
    check_page(page, rounded, QUEEN, other=KING, patch=(1, 5, 6))


def test_a_finger_does_it_too(visit, rounded):
    page = visit("live", width=390, touch=True)
    control(page, "ask").tap()
    settled(page)
    tap_slider(page, "temperature", 0.1)
    control(page, "on[2.3]").tap(force=True)
    settled(page)
    control(page, "token", 12).tap(force=True)
    control(page, "source", 3).tap(force=True)
    control(page, "put").tap()
    settled(page)
    check_page(page, rounded, QUEEN, other=KING, off=["2.3"], patch=(1, 3, 12), at=12)


def written_by(logits_of, text, seed, count, sampling):
    """Characters drawn one by one; `logits_of(ids)` scores the next one, (1, V)."""
    ids = [CHARACTERS.index(c) for c in text]
    for uniform in _chance.uniforms(seed, count):
        ids += generation.draw(sampling(logits_of(ids)), torch.tensor([uniform])).tolist()
    return "".join(CHARACTERS[i] for i in ids[len(text) :])


def continued(model):
    """Score what follows growing ids with the package's own cache."""
    state, seen = None, 0

    def logits_of(ids):
        nonlocal state, seen
        with torch.no_grad():
            logits, state = model(torch.tensor([ids[seen:]]), state, last=True)
        seen = len(ids)
        return logits[0]

    return logits_of


def wait_written(page):
    page.locator('.tfx-sofar[data-writing="no"]').wait_for()
    return page.locator(".tfx-written").inner_text()


def test_what_it_writes_is_what_the_package_draws(visit, rounded, record_property):
    page = ask(visit("live"))
    control(page, "top_k").evaluate("n => { n.value = 7; n.dispatchEvent(new Event('input')); }")
    control(page, "write").click()
    found = wait_written(page)
    assert len(found) == 200
    sampling = generation.Sampling(top_k=7)
    record_property("characters_a_second", numbers_of_speed(page))
    control(page, "write").click()  # it goes on from where it was
    more = wait_written(page)
    assert more.startswith(found) and len(more) == 400
    assert more[:210] == written_by(continued(rounded), QUEEN, 0, 210, sampling)
    control(page, "on[3.1]").press("Space")
    settled(page)
    assert wait_written(page) == ""
    control(page, "fresh").click()
    control(page, "write").click()
    other = wait_written(page)
    switched = lambda ids: package.read(rounded, ids, ["3.1"])[2][-1:]  # noqa: E731
    assert other[:20] == written_by(switched, QUEEN, 1, 20, sampling)


def numbers_of_speed(page):
    return float(page.locator('[data-name="speed"]').get_attribute("data-value"))


def test_writing_can_be_stopped_and_looked_into(visit, rounded):
    page = ask(visit("live"))
    control(page, "write").click()
    page.wait_for_function("document.querySelector('.tfx-written').textContent.length > 5")
    control(page, "write").click()
    found = wait_written(page)
    control(page, "inside").click()
    settled(page)
    text = (QUEEN + found)[-96:]
    assert control(page, "text").input_value() == text
    check_page(page, rounded, text)


def test_unknown_characters_are_left_out_with_a_word(visit, rounded):
    page = ask(visit("live"))
    type_text(page, "text", "Caf\u00e9 3")
    assert control(page, "text").input_value() == "Caf "
    assert page.get_by_text("left out: \u00e9 3").is_visible()
    check_page(page, rounded, "Caf ")
    control(page, "text").fill("")
    assert page.get_by_text("Type a character.").is_visible()
    type_text(page, "text", "x" * 120)
    check_page(page, rounded, "x" * 96)
    for i, text in enumerate(_live.TEXTS):
        control(page, f"text[{i}]").click()
        settled(page)
        check_page(page, rounded, text)


@pytest.fixture
def fresh_page(browser):
    """Open pages of a context of their own."""
    yield from opener(browser, "live_model")


@pytest.mark.parametrize("host", HOSTS)
def test_nothing_is_loaded_before_it_is_asked_for(fresh_page, folder, figures_at, rounded, host):
    origin = figures_at if host != "file" else folder.as_uri()
    page = fresh_page(f"{origin}/two.html", HOSTS[host])
    assert models_asked(page) == []
    control(page, "ask").nth(1).click()
    page.wait_for_function(f"{READY}.length === 1")
    assert len(models_asked(page)) == 1
    place = page.locator(".tfx-live > .tfx-opened:not([hidden])").get_attribute("data-place")
    assert place == {"http": "worker"}.get(host, "page")
    logits = package.read(rounded, [CHARACTERS.index(c) for c in "Or not"])[2][-1]
    assert numbers(page, "logit")[0] == near(logits.tolist())
    control(page, "ask").first.click()  # the other figure takes what is there
    page.wait_for_function(f"{READY}.length === 2")
    assert len(models_asked(page)) == 1
    assert page.complaints == []


def test_weights_that_do_not_load_can_be_asked_for_again(fresh_page, figures_at):
    page = fresh_page(f"{figures_at}/live.html")
    page.route("**/models/*.js", lambda route: route.abort())
    control(page, "ask").click()
    page.get_by_text("did not load").wait_for()
    page.unroute_all()
    ask(page)


FIGURE_MUTANTS = [
    ("source.steps[from].streams[at]", "source.steps[to].streams[at]"),
    ("i === to && source ? { off, put } : { off }", "i === to && source ? { put } : { off }"),
    ("plain: plain.steps.map(", "plain: changed.steps.map("),
    ("save({ layer, head })", "save({ layer: head, head: layer })"),
    ("draws = cutDown(step.logits, sampling())", "draws = p"),
    ("g.right.set(step.lens[place][follower])", "g.right.set(step.lens[place][seen.ids[at]])"),
    ("other: idsOf(other), off", "other: idsOf(text), off"),
]


def test_planted_bugs_of_the_figure_are_seen(fresh_page, figures_at, rounded):
    seen = lambda page: check_changed(ask(page), rounded)  # noqa: E731
    address = f"{figures_at}/changed.html"
    assert unseen_bugs(fresh_page, address, "live_model", FIGURE_MUTANTS, seen) == []


@pytest.mark.parametrize("host", ["worker", "page"])
def test_a_slow_page_does_not_freeze(fresh_page, figures_at, host, record_property):
    """Between two frames the page answers, also where it does the work itself."""
    before = "delete window.Worker" if host == "page" else None
    page = ask(fresh_page(f"{figures_at}/live.html", before))
    slowed(page, SLOW)
    page.evaluate(WATCH)
    control(page, "write").click()
    page.wait_for_function("document.querySelector('.tfx-written').textContent.length > 20")
    writing = longest_frame(page)
    control(page, "write").click()
    wait_written(page)
    control(page, "text").fill("Speak, speak, I charge thee, speak. Who art thou that")
    settled(page)
    reading = longest_frame(page)
    slowed(page, 1)
    record_property("longest_ms", json.dumps({"writing": writing, "reading": reading}))
    assert writing < 1000 and reading < 3000  # a guard against what takes seconds; no stop-watch


def test_it_fits(visit):
    check_widths(ask(visit("changed", width=390)), [320, 390, 600, 768, 1280])


def test_axe_finds_no_fault(visit):
    page = visit("changed")
    assert axe_faults(page) == []
    ask(page)
    control(page, "write").click()
    wait_written(page)
    assert axe_faults(page) == []


def test_every_control_has_a_name_and_is_reached_by_tab(visit):
    page = ask(visit("live"))
    nodes = page.locator(".tfx :is(input, button, select, summary, textarea, [tabindex])")
    names = nodes.evaluate_all(
        """nodes => nodes.map(n => [n.tabIndex, n.ariaLabel || n.closest('label')?.textContent
            || n.textContent || (n.hidden ? 'hidden' : '')])"""
    )
    assert all(index == 0 and name.strip() for index, name in names)


def test_it_says_in_words_what_it_shows(visit):
    page = ask(visit("live"))
    control(page, "token", 5).check(force=True)
    said = page.get_by_role("status").filter(has_text="at 5 the likeliest character is")
    said.wait_for()
    assert "looks at" in said.inner_text()


def test_the_page_of_the_book_has_no_fault(look, note_weights, site, rounded):
    """As the other pages are visited, from a disk; the model is asked for after it was weighed."""
    name = "book/live_models.html"

    def then(page):
        ask(page)
        check_page(page, rounded, _live.TEXT)

    faults, weight = look(name, home=site.as_uri(), then=then)
    note_weights({name: weight})
    assert faults == []
