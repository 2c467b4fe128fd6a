"""The model that learns in JavaScript against `torch`, wherever JavaScript runs; and planted bugs.

`page` is a browser's page or Node (`node.py`). Each check answers whether the two agree, in float64
on both sides.
"""


import torch
from torch.nn import functional

from tests.package.node import library
from tfbook.blocks import rms_norm
from tfbook.models import FFN, Attention, Layer, Learned, Norm, Tokens, TransformerConfig, build
from tfbook.teaching.explorables import _training

LIBRARY = ("shared", "workers", "tensors", "language_model", "training_model")
LOAD = """async (source) => {
  const bytes = new TextEncoder().encode(source);
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  window.ours = await import(`data:text/javascript;base64,${btoa(text)}`);
}"""
PLAIN = """const plain = (x) => ArrayBuffer.isView(x) ? [...x] : Array.isArray(x) ? x.map(plain)
    : x && typeof x === 'object'
      ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, plain(v)])) : x;
  const typed = (x) => Array.isArray(x) ? Float64Array.from(x) : x;"""
# Some function of the library; lists of numbers become typed arrays, and all of them come back too.
CALL = f"""([name, given]) => {{
  {PLAIN}
  const taken = given.map(typed);
  const made = window.ours[name](...taken);
  return plain({{ made, taken }});
}}"""
GRADIENTS = f"""([sizes, weights, ids]) => {{
  {PLAIN}
  const {{ ours }} = window, model = ours.roomFor(sizes), grads = ours.roomFor(sizes);
  for (const name in weights) model.named[name].set(weights[name]);
  const loss = ours.lossOf(model, ids, grads);
  const {{ scores, layers }} = ours.forward(model, ids.slice(0, -1));
  const looked = layers.map(({{ heads }}) => heads.map((head) => head.weights));
  return plain({{ loss, scores, looked, grads: grads.named, alone: ours.lossOf(model, ids) }});
}}"""
DRAWN = f"""([sizes, seed]) => {{
  {PLAIN}
  return plain(window.ours.drawWeights(sizes, seed, window.ours.uniform).named);
}}"""
STEPS = f"""([weights, grads, rates, adam]) => {{
  {PLAIN}
  const numbers = Float64Array.from(weights), moments = window.ours.emptyMoments({{ numbers }});
  rates.forEach((lr, i) => window.ours.adamW(numbers, grads[i], moments, lr, adam));
  return plain(numbers);
}}"""
# All that the trainer tells of some requests, one after the other or all at once.
SERVE = f"""async ([requests, slice, together]) => {{
  {PLAIN}
  const told = [];
  const serve = window.ours.trainer((answer) => told.push(answer), window.ours.uniform, slice);
  const done = [];
  for (const request of requests) {{
    done.push(serve(request));
    if (!together) await done.at(-1);
  }}
  await Promise.all(done);
  return plain(told);
}}"""
SIZES = {
    "vocabulary": 11, "context": 7, "d_model": 12, "d_ff": 20, "n_layers": 2, "n_heads": 3,
    "eps": 1e-5,
}  # fmt: skip


def load(page, edits=()):
    """Put the library into a page."""
    page.evaluate(LOAD, library(LIBRARY, edits))


def call(page, name, *given):
    """Return what a function gives, and what its arguments then are."""
    told = [x.flatten().tolist() if isinstance(x, torch.Tensor) else x for x in given]
    answer = page.evaluate(CALL, [name, told])
    return answer.get("made"), answer["taken"]  # what gives nothing is left out


def rand(*shape, seed=0):
    """Normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed + 1000 * sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.double)


def double(numbers):
    """Numbers of Python as a tensor that keeps them."""
    return torch.tensor(numbers, dtype=torch.double)


def error(found, wanted):
    """Return the largest difference, beside the largest number that is wanted."""
    found = torch.tensor(found, dtype=torch.double).flatten()
    wanted = wanted.detach().flatten().double()
    if found.shape != wanted.shape:
        return float("inf")
    off = ((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12)).item()
    return off if off == off else float("inf")


def same(found, wanted, tolerance=1e-12):
    """Tell whether numbers from JavaScript are those of a tensor."""
    return error(found, wanted) < tolerance


def differentiated(function, inputs, dy):
    """Return what a function gives and the gradients of its inputs, by torch."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    made = function(*leaves)
    made.backward(dy)
    return made, [x.grad for x in leaves]


# ---------------------------------------------------------------------- the parts


def check_products(page):
    """Two products of the library."""
    a, b, c, out = rand(3, 5), rand(4, 5), rand(3, 6), rand(5, 6)
    made = call(page, "matmulByRows", a, b, 3, 5, 4)[0]
    taken = call(page, "addByColumns", out, a, c, 3, 5, 6)[1]
    return same(made, a @ b.T) and same(taken[0], out + a.T @ c)


def check_linear(page):
    """Of y = x Wᵀ."""
    x, weight, dy, dweight = rand(4, 5), rand(3, 5), rand(4, 3), rand(3, 5, seed=1)
    _, (dx, dw) = differentiated(functional.linear, [x, weight], dy)
    made, taken = call(page, "linearBack", x, weight, dy, dweight, 4, 5, 3)
    return same(made, dx) and same(taken[3], dweight + dw)


def check_norm(page):
    """Of the RMS norm, on small numbers too, where ε counts."""
    good = True
    for size in (1, 3e-3):
        x, gain, dy, dgain = size * rand(4, 6), rand(6), rand(4, 6, seed=2), rand(6, seed=3)
        _, (dx, dg) = differentiated(lambda x, g: rms_norm(x, g, eps=1e-5), [x, gain], dy)
        made, taken = call(page, "rmsNormBack", x, gain, 1e-5, dy, dgain)
        good &= same(made, dx) and same(taken[4], dgain + dg)
    return good


def check_softmax(page):
    """Of the softmax, row by row."""
    scores, dp = 2 * rand(4, 5), rand(4, 5, seed=1)
    p, (ds,) = differentiated(lambda s: s.softmax(-1), [scores], dp)
    return same(call(page, "softmaxBack", p.detach(), dp, 4, 5)[0], ds)


def check_attention(page):
    """Of one causal head."""
    n, size = 5, 4
    q, k, v, dout = rand(n, size), rand(n, size, seed=1), rand(n, size, seed=2), rand(n, size)
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    weights = (q @ k.T / size**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    _, wanted = differentiated(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        [q, k, v],
        dout,
    )
    made = call(page, "attentionBack", q, k, v, weights, dout, n, size)[0]
    return all(same(made[name], x) for name, x in zip(("dq", "dk", "dv"), wanted, strict=True))


def check_loss(page):
    """Cross-entropy, with scores far apart too."""
    good = True
    for size in (1, 2000):
        scores, targets = size * rand(4, 6), torch.tensor([5, 0, 3, 3])
        loss, (wanted,) = differentiated(
            lambda s, t=targets: functional.cross_entropy(s, t, reduction="sum"),
            [scores],
            torch.tensor(1.0).double(),
        )
        found = page.evaluate(
            "([s, t, m]) => { const made = window.ours.crossEntropy(Float64Array.from(s), t, m);"
            " return { loss: made.loss, dscores: [...made.dscores] }; }",
            [scores.flatten().tolist(), targets.tolist(), 6],
        )
        good &= same([found["loss"]], loss) and same(found["dscores"], wanted)
    return good


# ---------------------------------------------------------------------- the model


def package_model(sizes, seed=0):
    """The same model of the package, random weights and gains of all sizes."""
    norm = Norm("rms", eps=sizes["eps"])
    layer = Layer(
        Attention(sizes["n_heads"], bias=False),
        FFN(sizes["d_ff"], kind="relu", bias=False),
        norm=norm,
        place="pre",
    )
    config = TransformerConfig(
        sizes["vocabulary"], sizes["d_model"], decoder=[layer] * sizes["n_layers"],
        embedding=Tokens(Learned()), max_len=sizes["context"],
    )  # fmt: skip
    model = build(config).double()
    with torch.no_grad():
        for at, weight in enumerate(model.parameters()):
            weight.copy_(0.5 * rand(*weight.shape, seed=100 * seed + at) + (weight.ndim == 1))
    return model


def gradient_errors(page, sizes, length, seed=0):
    """Return the errors of loss, scores, weights of the heads and of each weight's gradient."""
    model = package_model(sizes, seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(sizes["vocabulary"], (length + 1,), generator=generator)
    logits = model(ids[None, :-1])[0][0]
    loss = functional.cross_entropy(logits, ids[1:], reduction="sum")
    loss.backward()
    weights = {name: x.flatten().tolist() for name, x in model.named_parameters()}
    found = page.evaluate(GRADIENTS, [sizes, weights, ids.tolist()])
    assert found["grads"].keys() == weights.keys()
    errors = {
        "loss": error([found["loss"]], loss),
        "alone": error([found["alone"]], loss),
        "scores": error(found["scores"], logits),
    }
    for at, looked in enumerate(attention_of(model, ids[:-1])):
        for head, rows in enumerate(looked):
            errors[f"looked {at}.{head}"] = error(found["looked"][at][head], rows)
    for name, weight in model.named_parameters():
        errors[name] = error(found["grads"][name], weight.grad)
    return errors


def attention_of(model, ids):
    """Where the heads look, (H, n, n) for each layer, block by block."""
    looked = []
    with torch.no_grad():
        x = (model.embed.weight[ids] + model.position.weight[: len(ids)])[None]
        for block in model.stack.blocks:
            seen = block.mixer_residual.norm(x)
            looked.append(block.mixer.weights(seen)[0])
            x = x + block.mixer(seen)[0]
            x = x + block.ffn(block.ffn_residual.norm(x))
    return looked


def check_model(page, tolerance=1e-11):
    """A whole and a short sequence, one and two layers."""
    one = SIZES | {"n_layers": 1, "n_heads": 1}
    cases = [(SIZES, 7, 0), (SIZES, 3, 1), (one, 7, 2)]
    return all(
        max(gradient_errors(page, sizes, length, seed).values()) < tolerance
        for sizes, length, seed in cases
    )


def check_first_weights(page):
    """What is drawn at the beginning, for both depths."""
    good = True
    for n_layers, seed in ((1, 0), (2, 9999)):
        sizes = _training.SIZES | {"vocabulary": 27, "n_layers": n_layers}
        found = page.evaluate(DRAWN, [sizes, seed])
        wanted = dict(_training.new_model(27, n_layers, seed).named_parameters())
        good &= found.keys() == wanted.keys()
        good &= all(same(found[name], weight) for name, weight in wanted.items() if good)
    return good


def check_adamw(page):
    """Five steps with other gradients and another learning rate each; some gradients are 0."""
    weights, rates = rand(9), [0.01, 0.01, 0.5, 0.002, 0.1]
    grads = rand(5, 9)
    grads[:, 4] = 0
    adam = {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
    leaf = weights.clone().requires_grad_()
    optimizer = torch.optim.AdamW([leaf], lr=1.0, **adam)
    for grad, lr in zip(grads, rates, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        leaf.grad = grad.clone()
        optimizer.step()
    return same(page.evaluate(STEPS, [weights.tolist(), grads.tolist(), rates, adam]), leaf)


# ---------------------------------------------------------------------- the training


TEXT = "the cat sat on the mat\nthe dog sat on the log\n" * 4 + "a bird sang in the tree at noon\n"


def beginning(text=TEXT, *, n_layers=1, lr=0.01, seed=3, **other):
    """The request with which the page begins."""
    known = _training.characters_of(text)
    ids = [known.index(c) for c in text]
    return {
        "kind": "begin", "id": 1, "turn": 1, "ids": ids, "seed": seed, "lr": lr,
        "first": known.index("\n"), "probe": ids[:9], "batch": _training.BATCH,
        "adam": _training.ADAM, "share": _training.SHARE, "most": _training.MOST,
        "count": _training.WRITTEN,
        "sizes": _training.SIZES | {"vocabulary": len(known), "n_layers": n_layers},
    } | other  # fmt: skip


def serve(page, requests, slice_ms=1000, together=False):
    """Return the losses that were told, those held out by step, and the last look inside."""
    told = page.evaluate(SERVE, [requests, slice_ms, together])
    losses = [loss for answer in told for loss in answer.get("losses", [])]
    held = [pair for answer in told if answer["kind"] == "told" for pair in answer["held"]]
    shown = [answer for answer in told if answer["kind"] == "shown"]
    return losses, held, shown, told


def check_training(page, steps=12):
    """Losses, what is held out, what is written, and where the heads look, after some steps."""
    good, count = True, 40
    for n_layers, seed in ((1, 3), (2, 8)):
        if not good:
            return False
        begun = beginning(n_layers=n_layers, seed=seed, count=count)
        losses, held, shown, _ = serve(page, [begun, {"kind": "run", "turn": 2, "count": steps}])
        wanted = _training.train(TEXT, n_layers, 0.01, seed, steps)
        known = _training.characters_of(TEXT)
        ids = torch.tensor(begun["probe"])
        looked = attention_of(wanted.model, ids)
        early = _training.train(TEXT, n_layers, 0.01, seed, 10)
        good &= (
            same(losses, double(wanted.losses), 1e-10)
            and [step for step, _ in held] == [10]
            and same([held[0][1]], double(early.held), 1e-10)
            and shown[-1]["step"] == steps
            and same([shown[-1]["held"][1]], double(wanted.held), 1e-10)
            and "".join(known[i] for i in shown[-1]["sample"]) == wanted.written[:count]
            and all(
                same(shown[-1]["looked"][layer][head], rows, 1e-10)
                for layer, heads in enumerate(looked)
                for head, rows in enumerate(heads)
            )
        )
    return bool(good)


CHECKS = {
    "products": check_products, "linear": check_linear, "norm": check_norm,
    "softmax": check_softmax, "attention": check_attention, "loss": check_loss,
    "model": check_model, "first": check_first_weights, "adamw": check_adamw,
    "training": check_training,
}  # fmt: skip

T, M = "tensors", "training_model"
# The file, the check that sees the bug, the text, and what stands there instead.
MUTANTS = [
    (T, "products", "a[i * k + p] * b[j * k + p]", "a[i * k + p] * b[p * m + j]"),
    (T, "products", "out[p * m + j] += weight", "out[p * m + j] = weight"),
    (M, "linear", "addByColumns(dweight, dy, x, n, rows, cols);", ""),
    (M, "norm", "- (x[at + i] * along) / size / root ** 2", ""),
    (M, "norm", "/ size / root ** 2)", "/ size / root)"),
    (M, "norm", "dgain[i] += (dy[at + i] * x[at + i]) / root;", "dgain[i] += dy[at + i];"),
    (M, "norm", "gain[i] * dy[at + i] * x[at + i];", "dy[at + i] * x[at + i];"),
    (M, "softmax", "(dp[i * m + j] - mean)", "dp[i * m + j]"),
    (M, "attention", "const scale = size ** -0.5;", "const scale = 1;"),
    (M, "attention", "addByColumns(dk, dscores, q,", "addByColumns(dk, dscores, k,"),
    (M, "attention", "addByColumns(dv, weights, dout,", "addByColumns(dv, weights, v,"),
    (M, "loss", "dscores[i * m + target] -= 1;", ""),
    (M, "loss", "Math.max(a, b)", "0"),
    (M, "model", "let dx = rmsNormBack(run.left, model.finalNorm, eps, dlast, grads.finalNorm);",
     "let dx = dlast;"),
    (M, "model", "dx = plus(dx, rmsNormBack(kept.middle,",
     "dx = plus(dread, rmsNormBack(kept.middle,"),
    (M, "model", "(kept.active[i] > 0 ? d : 0)", "d"),
    (M, "model", "dseen = plus(dseen, linearBack(kept.seen, part.value,",
     "dseen = plus(dseen, linearBack(kept.seen, part.key,"),
    (M, "model", "grads.table[id * d_model + c] += dx", "grads.table[id * d_model + c] = dx"),
    (M, "model", "grads.places[i * d_model + c] += dx[i * d_model + c];", ""),
    (M, "model", "model.layers.length - 1; layer >= 0", "model.layers.length - 1; layer > 0"),
    (M, "model", "{ causal: true }", "{ causal: false }"),
    (M, "first", "Math.sqrt(2 * sizes.n_layers)", "1"),
    (M, "first", "1 / Math.sqrt(cols) / writes", "1 / Math.sqrt(rows) / writes"),
    (M, "adamw", "(1 - lr * weight_decay) * weights[i]", "weights[i]"),
    (M, "adamw", "(1 - b2 ** t)) + eps", "(1 - b2 ** t) + eps)"),
    (M, "adamw", "/ (1 - b1 ** t) / size", "/ size"),
    (M, "adamw", "(1 - b2) * grads[i] ** 2", "(1 - b2) * grads[i]"),
    (M, "training", "grads.numbers.fill(0);", ""),
    (M, "training", "grads.numbers[i] /= count", "grads.numbers[i] /= 1"),
    (M, "training", "ids.slice(0, ids.length - held), held:", "ids, held:"),
    (M, "training", "(learned.length - context)", "learned.length"),
    (M, "training", "step * batch + row + 1", "step + row + 1"),
    (M, "training", "tokens.slice(-context)", "tokens.slice(0, context)"),
    (M, "training", "at + context < held.length", "at < held.length"),
]  # fmt: skip


def unseen_mutants(page):
    """Return the planted bugs that the checks do not see."""
    unseen = []
    try:
        for file, check, old, new in MUTANTS:
            load(page, [(file, old, new)])
            try:
                seen = not CHECKS[check](page)
            except Exception:  # noqa: BLE001
                seen = True  # it ended in an error of the page
            if not seen:
                unseen.append(f"{old} -> {new}")
    finally:
        load(page)
    return unseen
