"""The translator in JavaScript against `tfbook`, in whatever runs JavaScript; and planted bugs.

`page` is a browser's page or Node (`node.py`). What the package computes is put together here from
the parts of the same rounded weights in float64: no hooks, heads by `head_mask`.
"""

import functools
import random

import torch

from tests.package.node import library
from tfbook.blocks import layer_norm
from tfbook.data import BOS, EOS
from tfbook.generation import beam_search
from tfbook.pretrained import round_model
from tfbook.teaching.explorables import _weights

LIBRARY = ("tensors", "workers", "translation_model")
LOAD = """async (source) => {
  const bytes = new TextEncoder().encode(source);
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  window.ours = await import(`data:text/javascript;base64,${btoa(text)}`);
}"""
OPEN = """() => {
  const { ours } = window, file = window.tfbookWeights.translator;
  window.model = ours.openTranslator(file);
  window.tokenizer = ours.openTokenizer(file.tokenizer);
  window.told = [];
  window.serve = ours.translating((answer) => window.told.push(answer), 0);
  window.serve({ kind: 'open', file });
}"""
PLAIN = """const plain = (x) => ArrayBuffer.isView(x) ? [...x] : Array.isArray(x) ? x.map(plain)
    : x && typeof x === 'object'
      ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, plain(v)])) : x;"""
# A source that is read, and a target that the decoder reads token by token.
READ = f"""([ids, target, off]) => {{
  {PLAIN}
  const {{ ours, model }} = window;
  const reading = ours.readSource(model, ids, off);
  let read;
  while (!(read = reading.next()).done);
  let past = ours.nothingWritten(model);
  const steps = target.map((token) => {{
    const step = ours.readWritten(model, read.value, past, token, off);
    past = step.past;
    return plain({{ logits: step.logits, own: step.own, cross: step.cross }});
  }});
  return {{ looked: plain(read.value.looked), memory: plain(read.value.memory), steps }};
}}"""
# All that the servant tells of a request that a newer one ends, and of that one.
SERVE = f"""async (request) => {{
  {PLAIN}
  const {{ serve }} = window;
  window.told.length = 0;
  await Promise.all([1, 2].map((id) => serve({{ ...request, kind: 'translate', id }})));
  return plain(window.told.filter(({{ kind }}) => kind === 'grew'));
}}"""


# Beam search where the step and the last token decide what comes next: a row of a table.
GROW = f"""([table, rules]) => {{
  {PLAIN}
  const {{ ours }} = window, steps = [];
  let beams = ours.noBeams({{ bos: 0 }});
  while (!beams.done) {{
    const rows = beams.alive.map(({{ length, token }}) => Float64Array.from(table[length][token]));
    beams = ours.growBeams(beams, rows, rules);
    steps.push(plain(beams));
  }}
  return steps;
}}"""


def load(page, edits=(), model=True):
    """Put the library into a page, and open the model there."""
    page.evaluate(LOAD, library(LIBRARY, edits))
    if model:
        page.evaluate(OPEN)


@functools.cache
def loaded():
    """The shipped translator in float64, its matrices in 8 bits a number."""
    found = _weights.load_translator(torch.float64)
    return round_model(found.model), found.tokenizer


def attend(attention, x, state, off, name):
    """Return what attention gives and its weights (H, N, M); parts named in `off` find nothing."""
    on = torch.tensor([f"{name}.{head}" not in off for head in range(attention.n_heads)])
    weights = attention.weights(x, state)[0]
    return attention(x, state, head_mask=on)[0], weights


def read(ids, target, off=()):
    """Encoder's weights (L, H, M, M), memory (M, D), logits (N, V), own and cross weights."""
    return _read(tuple(ids), tuple(target), tuple(off))


@functools.cache
@torch.no_grad()
def _read(ids, target, off):
    model, _ = loaded()
    table = model.embed.weight
    looked, own, cross = [], [], []
    x = table[torch.tensor([ids])]
    for at, block in enumerate(model.encoder.blocks):
        y, weights = attend(block.mixer, block.mixer_residual.norm(x), None, off, f"encoder {at}")
        looked.append(weights)
        x = x + y
        x = x + block.ffn(block.ffn_residual.norm(x))
    norm = model.encoder.final_norm
    memory = layer_norm(x, norm.weight, norm.bias)
    x = table[torch.tensor([target])]
    for at, block in enumerate(model.decoder.blocks):
        y, weights = attend(block.mixer, block.mixer_residual.norm(x), None, off, f"decoder {at}")
        own.append(weights)
        x = x + y
        y, weights = attend(
            block.cross, block.cross_residual.norm(x), block.cross.remember(memory), off,
            f"cross {at}",
        )  # fmt: skip
        cross.append(weights)
        x = x + y
        x = x + block.ffn(block.ffn_residual.norm(x))
    logits = model.decoder.final_norm(x) @ table.mT
    return torch.stack(looked), memory[0], logits[0], torch.stack(own), torch.stack(cross)


class Silenced:
    """The decoder with heads switched off, as `beam_search` asks a model: all is read anew."""

    def __init__(self, source, off):
        """Keep the source."""
        self.source, self.off = source, off

    def decode(self, tokens, state, *, last=True):
        """Score what follows each row of what was read and these tokens."""
        rows = torch.cat([state.rows, tokens], 1)
        logits = [read(self.source, row, self.off)[2][-1:] for row in rows.tolist()]
        return torch.stack(logits), Rows(rows)


class Rows:
    """What was read so far, (A, N)."""

    def __init__(self, rows):
        """Keep the rows."""
        self.rows, self.seen = rows, 0

    def select(self, rows):
        """Return some of them."""
        return Rows(self.rows[rows])


def search(ids, off, n_beams, penalty, most):
    """Return the hypotheses under way and the finished ones after each step."""
    return _search(tuple(ids), tuple(off), n_beams, penalty, most)


@functools.cache
def _search(ids, off, n_beams, penalty, most):
    model, _ = loaded()
    steps = []
    asked = {
        "n_beams": n_beams, "max_new_tokens": most, "length_penalty": penalty, "stop": [EOS],
        "on_step": lambda alive, finished: steps.append((alive, finished)),
    }  # fmt: skip
    if off:
        state = Rows(torch.zeros(1, 0, dtype=torch.long))
        beam_search(Silenced(ids, off), [[BOS]], state=state, **asked)
    else:
        state = model.remember(torch.tensor([ids]))
        beam_search(model, [[BOS]], state=state, **asked)
    return steps


def same(found, wanted, tolerance=1e-9):
    """Tell whether numbers from JavaScript are those of a tensor."""
    found = torch.tensor(found, dtype=torch.double)
    return found.shape == wanted.shape and torch.allclose(
        found, wanted.double(), rtol=tolerance, atol=tolerance
    )


def rand(*shape, seed=0):
    """Return the same numbers each time."""
    generator = torch.Generator().manual_seed(seed + 1000 * sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.double)


def random_ids(seed, length):
    """Tokens at random, none of them special."""
    return random.Random(seed).choices(range(4, 1500), k=length)


WORDS = "Click File, then press the keyboard's Enter key; it's 3 o'clock! don't we'll".split()


def random_text(seed):
    """Words, marks, spaces and characters of all planes."""
    chance = random.Random(seed)
    strange = "éñ中文🙂👩\u200d💻\u00a0\t\n  '’\u2028\ufeff\x85\x1c٣²½ǅ"
    parts = [
        chance.choice(WORDS) + " " * chance.randint(0, 3)
        if chance.random() < 0.7
        else "".join(chance.choices(strange, k=chance.randint(1, 4)))
        for _ in range(chance.randint(1, 9))
    ]
    return "".join(parts)


# ---------------------------------------------------------------------- what is compared


def call(page, name, *given):
    """Call a function of the library with tensors as arrays."""
    code = f"""([name, given]) => {{
      {PLAIN}
      const inward = (x) => x?.numbers ? Float64Array.from(x.numbers) : Array.isArray(x)
        ? x.map(inward) : x && typeof x === 'object'
          ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, inward(v)])) : x;
      return plain(window.ours[name](...inward(given)));
    }}"""
    pack = lambda x: {"numbers": x.flatten().tolist()} if isinstance(x, torch.Tensor) else x  # noqa: E731
    return page.evaluate(code, [name, [pack(x) for x in given]])


def check_logarithms(page):
    """ln of the softmax, also where a power would overflow."""
    for x in (3 * rand(9), torch.tensor([800.0, 801.0, -900.0])):
        if not same(call(page, "logSoftmaxOf", x), x.double().log_softmax(0), 1e-12):
            return False
    return True


def check_past(page):
    """Two heads of three numbers; the past is read and never changed."""
    q, k, v = rand(2, 3), rand(2, 5, 3, seed=1), rand(2, 5, 3, seed=2)
    past = [
        {"key": key.flatten().tolist(), "value": value.flatten().tolist()}
        for key, value in zip(k.transpose(0, 1), v.transpose(0, 1), strict=True)
    ]
    found = call(page, "attendPast", q, past, 3, 0.7)
    weights = torch.softmax(0.7 * torch.einsum("hd,hmd->hm", q, k), -1)
    wanted = torch.einsum("hm,hmd->hd", weights, v).flatten()
    return same(found["found"], wanted, 1e-12) and same(found["weights"], weights, 1e-12)


def check_largest(page):
    """With numbers that tie, and fewer numbers than asked for."""
    numbers = (2 * rand(40)).round()
    wanted = sorted(range(40), key=lambda i: (-numbers[i].item(), i))
    return all(call(page, "largest", numbers, k) == wanted[:k] for k in (1, 7, 40, 60))


def check_tokens(page, seeds=range(24)):
    """Texts become the package's ids and ids its texts, whatever stands in them."""
    _, tokenizer = loaded()
    texts = ["\ufeffx", *(random_text(seed) for seed in seeds)]
    rows = [tokenizer.encode(text).ids for text in texts]
    strange = [random_ids(seed, 9) for seed in seeds] + [[1, 300, 2, 0]]
    code = """([texts, rows]) => { const { ours, tokenizer } = window; return [
      texts.map((text) => ours.encodeText(tokenizer, text)),
      rows.map((ids) => ours.decodeIds(tokenizer, ids)), ours.faceOf(tokenizer, 2)]; }"""
    found, told, face = page.evaluate(code, [texts, rows + strange])
    return found == rows and told == texts + tokenizer.decode_batch(strange) and face == "<eos>"


HEADS = ("encoder 0.1", "encoder 1.3", "decoder 1.2", "cross 0.0", "cross 1.3")


def check_model(page, seed=0, n=11, length=9):
    """Encoder and decoder on tokens at random, with all heads and with some."""
    ids, target = [*random_ids(seed, n), EOS], [BOS, *random_ids(seed + 1, length)]
    for off in ((), HEADS):
        found = page.evaluate(READ, [ids, target, list(off)])
        looked, memory, logits, own, cross = read(ids, target, off)
        steps = found["steps"]
        good = (
            same(found["looked"], looked.transpose(1, 2))
            and same(found["memory"], memory)
            and same([step["logits"] for step in steps], logits)
            and same([step["cross"] for step in steps], cross.permute(2, 0, 1, 3))
            and all(same(step["own"], own[:, :, i, : i + 1]) for i, step in enumerate(steps))
        )
        if not good:
            return False
    return True


class Table:
    """A language model where the step and the last token decide what comes next."""

    def __init__(self, table):
        """Keep the scores, (N, V, V)."""
        self.table = table

    def decode(self, tokens, state=None, *, mask=None, last=False):
        """Look them up."""
        rows = tokens if state is None else torch.cat([state.rows, tokens], 1)
        return self.table[rows.shape[1] - 1][tokens[:, -1:]], Rows(rows)


def check_growth(page):
    """Beam search over random tables, with an end that is often likely and often not."""
    for seed in range(60):
        chance = random.Random(seed)
        n_beams, most = chance.randint(1, 5), chance.randint(1, 16)
        penalty = chance.choice([0, 0, 0.5, 1, 2])
        table = 3 * rand(most, 7, 7, seed=seed)
        rules = {"n_beams": n_beams, "penalty": penalty, "most": most, "eos": 3}
        found = page.evaluate(GROW, [table.tolist(), rules])
        wanted = []
        beam_search(
            Table(table), [[0]], n_beams=n_beams, max_new_tokens=most, length_penalty=penalty,
            stop=[3], on_step=lambda *told, keep=wanted: keep.append(told),
        )  # fmt: skip
        nodes = {0: {"parent": None}}
        if len(found) != len(wanted):
            return False
        for step, hypotheses in zip(found, wanted, strict=True):
            nodes |= {each["node"]: each for each in step["made"]}
            for kind, expected in zip(("alive", "finished"), hypotheses, strict=True):
                told = [nodes[each["node"]] for each in step[kind]]
                if not _same_hypotheses(nodes, told, expected, 3):
                    return False
    return True


# Beams, penalty, the most tokens, and heads that are off.
SEARCHES = [(4, 1, 10, ()), (1, 0, 12, ()), (3, 0, 9, ()), (5, 1.7, 7, ()), (2, 0.6, 4, HEADS)]


def served(page, ids, n_beams, penalty, most, off):
    """What the servant told of a search, steps and nodes; None if it told of an ended one."""
    asked = {"ids": ids, "n_beams": n_beams, "penalty": penalty, "most": most, "off": list(off)}
    told = page.evaluate(SERVE, asked)
    if {answer["id"] for answer in told} != {2} or [a["done"] for a in told].count(True) != 1:
        return None
    return [step for answer in told for step in answer["steps"]]


def check_beams(page, searches=SEARCHES, sentences=("Click Cancel.", "Open it")):
    """Each step's hypotheses under way and finished, and what they rest on."""
    _, tokenizer = loaded()
    for text in sentences:
        ids = [*tokenizer.encode(text).ids, EOS]
        for n_beams, penalty, most, off in searches:
            steps = served(page, ids, n_beams, penalty, most, off)
            if steps is None or not _same_steps(steps, ids, n_beams, penalty, most, off):
                return False
    return True


def _same_steps(steps, ids, n_beams, penalty, most, off):
    wanted = search(ids, off, n_beams, penalty, most)
    if len(steps) != len(wanted):
        return False
    nodes = {0: {"parent": None}}
    for step, hypotheses in zip(steps, wanted, strict=True):
        for look in step["looks"]:
            read_so_far = [BOS, *_tokens(nodes, look["node"])]
            _, _, logits, _, cross = read(ids, read_so_far, off)
            best = logits[-1].topk(8)
            told = [[each["logit"], each["chance"]] for each in look["best"]]
            chances = logits[-1].softmax(-1)[best.indices]
            if not (
                same(look["cross"], cross[:, :, -1])
                and [each["token"] for each in look["best"]] == best.indices.tolist()
                and same(told, torch.stack([best.values, chances], 1))
            ):
                return False
        nodes |= {each["node"]: each for each in step["made"]}
        for kind, expected in zip(("alive", "finished"), hypotheses, strict=True):
            found = [nodes[node] for node in step[kind]]
            if not _same_hypotheses(nodes, found, expected, EOS):
                return False
    return True


def _same_hypotheses(nodes, found, expected, end):
    numbers = [[each["log_prob"], each["score"], each["length"]] for each in found]
    wanted = [[h.log_prob, h.score, len(h.tokens)] for h in expected]
    return (
        [_tokens(nodes, each["node"]) for each in found] == [h.tokens for h in expected]
        and [each["ended"] for each in found] == [h.tokens[-1] == end for h in expected]
        and (found == expected == [] or same(numbers, torch.tensor(wanted, dtype=torch.double)))
    )


def _tokens(nodes, node):
    found = []
    while nodes[node]["parent"] is not None:
        found.insert(0, nodes[node]["token"])
        node = nodes[node]["parent"]
    return found


CHECKS = {
    "logarithms": check_logarithms, "past": check_past, "largest": check_largest,
    "tokens": check_tokens, "model": check_model, "growth": check_growth,
    "beams": check_beams,
}  # fmt: skip
T, _, M = LIBRARY
# The file, the check that sees the bug, the text, and what stands there instead.
MUTANTS = [
    (T, "logarithms", "const whole = top + Math.log(total);", "const whole = Math.log(total);"),
    (T, "past", "sum += query[c] * key[c];", "sum += query[c] * key[c - head];"),
    (T, "model", "found[c] += row[j] * value[c];", "value[c] *= row[j], found[c] += value[c];"),
    (T, "largest", "numbers[best[at - 1]] < numbers[i]", "numbers[best[at - 1]] <= numbers[i]"),
    (T, "largest", "if (best.length > count) best.pop();", ""),
    (M, "tokens", "|| join.rank < first.rank", ""),
    (M, "tokens", "[first, at] = [join, i]", "[first, at] = [join, 0]"),
    (M, "tokens", "\\p{White_Space}+(?!\\P{White_Space})|", ""),
    (M, "tokens", ", { ignoreBOM: true }", ""),
    (
        M,
        "tokens",
        "specials.map(() => [])",
        "specials.map((s) => [...s].map((c) => c.charCodeAt()))",
    ),
    (M, "model", "plus(matvec8(part, x), part.bias)", "matvec8(part, x)"),
    (M, "model", "(u) => Math.max(0, u)", "(u) => u"),
    (M, "model", "const seen = rows.map((x) => normed(part.mixerNorm, x))", "const seen = rows"),
    (M, "model", "angles[i]), all, d_head", "angles[0]), all, d_head"),
    (M, "model", "next.push(plus(mixed, thought(part, mixed)));", "next.push(mixed);"),
    (M, "model", "rows.map((x) => normed(model.encoderNorm, x))", "rows"),
    (
        M,
        "model",
        "rotaryTable(past[0].length, d_head, model.base)",
        "rotaryTable(1, d_head, model.base)",
    ),
    (M, "model", "normed(part.crossNorm, x)", "normed(part.mixerNorm, x)"),
    (M, "model", "heard(there, off, `cross ${layer}`", "heard(there, off, `decoder ${layer}`"),
    (M, "model", "found.fill(0, head * size, (head + 1) * size)", "found.fill(0)"),
    (M, "model", "matvec8(model.table, normed(model.decoderNorm, x))", "matvec8(model.table, x)"),
    (M, "growth", "width = 2 * n_beams;", "width = n_beams;"),
    (M, "growth", "alive[from].log_prob + chances[token]", "chances[token]"),
    (M, "growth", "score: each.log_prob / length ** penalty }", "score: each.log_prob / length }"),
    (M, "growth", "rank >= n_beams : following", "rank > 2 * n_beams : following"),
    (M, "growth", "following.length === n_beams) return", "following.length > n_beams) return"),
    (M, "growth", "penalty > 0 ? most : length + 1", "length + 1"),
    (M, "growth", "<= kept.at(-1).score", "<= kept[0].score"),
    (M, "growth", "kept.length === n_beams &&", "kept.length > 0 &&"),
    (M, "beams", "({ from }) => written[from].past", "(_, i) => written[i].past"),
    (M, "beams", "latest === id)", "true)"),
    (M, "beams", "Math.exp(chances[token])", "chances[token]"),
]


def survivors(page, broken=RuntimeError):
    """Planted bugs that no check sees: each is a module of its own in the same page."""
    unseen = []
    for file, check, old, new in MUTANTS:
        load(page, [(file, old, new)])
        try:
            if CHECKS[check](page):
                unseen.append(f"{old} -> {new}")
        except broken:
            pass
    load(page)
    return unseen
