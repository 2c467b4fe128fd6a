// A language model of characters in plain JavaScript: the forward pass, token by token with a cache,
// and who does the work. The weights are those that `model_file` in _weights.py wrote.
import { slices } from "./workers.js";
import { attendCached, emptyCache, matvec8, plus, remember, rmsNorm, rotaryTable, rotate, row8, silu, softmaxOf } from "./tensors.js";

/** The model of a file: its sizes, and its weights by the part that they belong to. */
export function openModel({ config, characters, tensors, data }) {
  const bits = Uint8Array.from(atob(data), (c) => c.charCodeAt(0)).buffer;
  const weights = {};
  for (const { name, rows, cols, numbers, scale } of tensors)
    weights[name] = cols
      ? { rows, cols, values: new Int8Array(bits, numbers, rows * cols), scale: new Float32Array(bits, scale, rows) }
      : new Float32Array(bits, numbers, rows);
  const layers = Array.from({ length: config.n_layers }, (_, layer) => {
    const part = (name) => weights[`stack.blocks.${layer}.${name}.weight`];
    return {
      mixerNorm: part("mixer_residual.norm"), query: part("mixer.q_proj"), key: part("mixer.k_proj"), value: part("mixer.v_proj"),
      queryNorm: part("mixer.q_norm"), keyNorm: part("mixer.k_norm"), out: part("mixer.out_proj"),
      ffnNorm: part("ffn_residual.norm"), gate: part("ffn.gate_proj"), up: part("ffn.up_proj"), down: part("ffn.down_proj"),
    };
  });
  return { ...config, characters, layers, table: weights["embed.weight"], finalNorm: weights["stack.final_norm.weight"] };
}

/** One cache for each layer, with nothing read yet. */
export const emptyCaches = (model) => model.layers.map(() => emptyCache(model.window, model.n_heads * model.d_head));

/** What the rows of the table say of the stream: a score for each character. */
export const logitsOf = (model, x) => matvec8(model.table, rmsNorm(x, model.finalNorm, model.eps));

/** Read one token. `off` names heads and feed-forward networks that add nothing, such as "0.3" and
    "2.ffn"; `put(place, x)` may give another stream at place 0, the embedding, or l + 1, behind layer l.
    The scores of the next token come back, the streams, and what each head looked at. */
export function readToken(model, caches, token, { off = [], put = (place, x) => x } = {}) {
  const { d_model, d_head, eps } = model;
  const angles = rotaryTable(caches[0].seen, d_head, model.base);
  let x = put(0, row8(model.table, token).map((number) => Math.sqrt(d_model) * number));
  const streams = [x], looked = [];
  model.layers.forEach((part, layer) => {
    // Attention: each head looks back, and what all found is added to the stream.
    const seen = rmsNorm(x, part.mixerNorm, eps);
    const query = rotate(rmsNorm(matvec8(part.query, seen), part.queryNorm, eps), angles);
    const key = rotate(rmsNorm(matvec8(part.key, seen), part.keyNorm, eps), angles);
    remember(caches[layer], key, matvec8(part.value, seen));
    const { found, weights } = attendCached(query, caches[layer], d_head, model.scale);
    weights.forEach((_, head) => off.includes(`${layer}.${head}`) && found.fill(0, head * d_head, (head + 1) * d_head));
    looked.push(weights);
    x = plus(x, matvec8(part.out, found));
    // The feed-forward network: what this token alone says of itself.
    if (!off.includes(`${layer}.ffn`)) {
      const read = rmsNorm(x, part.ffnNorm, eps);
      const gate = matvec8(part.gate, read), up = matvec8(part.up, read);
      x = plus(x, matvec8(part.down, gate.map((g, i) => silu(g) * up[i])));
    }
    x = put(layer + 1, x);
    streams.push(x);
  });
  return { logits: logitsOf(model, x), streams, looked };
}

/** The distribution to draw from: temperature, then top-k, then top-p, as in tfbook.generation. */
export function cutDown(logits, { temperature, top_k, top_p }) {
  const scores = logits.map((x) => x / temperature);
  const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a] || a - b);
  const least = top_k ? scores[order[Math.min(top_k, order.length) - 1]] : -Infinity;
  const p = softmaxOf(scores.map((x) => (x < least ? -Infinity : x)));
  let before = 0;
  const kept = new Set(order.filter((i) => {
    const stays = top_p === 1 || before < top_p;
    before += p[i];
    return stays && p[i] > 0;
  }));
  return softmaxOf(scores.map((x, i) => (kept.has(i) ? x : -Infinity)));
}

/** The first token at which the sum of probabilities passes a number between 0 and 1. */
export function drawn(p, uniform) {
  const place = uniform * p.reduce((a, b) => a + b, 0);
  let sum = 0, last = 0;
  for (let i = 0; i < p.length; i++) {
    if (!p[i]) continue;
    last = i;
    sum += p[i];
    if (sum > place) break;
  }
  return last;
}

/** Who does the work, in a worker or in the page itself: a function that takes requests and answers
    through `tell`. After `slice` milliseconds it lets others in: a newer request ends an older one.
    `chance(seed, i)` is the i-th number of a seed. */
export function servant(tell, chance, slice = 12) {
  const latest = { look: 0, write: 0 };
  const pause = slices(slice);
  let model = null, written = null;
  const mayGoOn = async ({ kind, id }) => (await pause(), latest[kind] === id);

  /** Read a text; null if nobody waits for it any more. */
  async function readText(request, ids, changes = () => ({})) {
    const caches = emptyCaches(model), steps = [];
    for (const [i, id] of ids.entries()) {
      if (!(await mayGoOn(request))) return null;
      steps.push(readToken(model, caches, id, changes(i)));
    }
    return { caches, steps };
  }

  /** The text with switches and, at one token, the stream that another text has there. */
  async function readChanged(request) {
    const { ids, other, off, patch: [place, from, to] } = request;
    const source = place === undefined ? null : await readText(request, other);
    const put = (at, x) => (at === place ? source.steps[from].streams[at] : x);
    return readText(request, ids, (i) => (i === to && source ? { off, put } : { off }));
  }

  const kinds = {
    open({ file }) {
      model = openModel(file);
      tell({ kind: "ready" });
    },
    /** What the model does with a text, with the changes and, for the scores, without. */
    async look(request) {
      const plain = await readText(request, request.ids);
      const changed = request.off.length || request.patch.length ? await readChanged(request) : plain;
      if (!plain || !changed) return;
      const steps = changed.steps.map(({ logits, streams, looked }) => ({
        logits, looked, lens: streams.map((x) => softmaxOf(logitsOf(model, x))),
      }));
      tell({ kind: "looked", id: request.id, steps, plain: plain.steps.map((step) => step.logits) });
    },
    /** Write on: `count` characters, drawn with the numbers of a seed from `start` on. */
    async write(request) {
      const { id, sampling, seed, count } = request;
      const key = JSON.stringify([request.ids, request.other, request.off, request.patch]);
      if (written?.key !== key) {
        const read = await readChanged(request);
        if (!read) return tell({ kind: "wrote", id, tokens: [], seconds: 0, done: true });
        written = { key, caches: read.caches, logits: read.steps.at(-1).logits, many: 0 };
      }
      const now = written;
      let tokens = [], begun = performance.now(), told = begun;
      for (let i = 0; i < count; i++) {
        if (!(await mayGoOn(request))) break;
        const token = drawn(cutDown(now.logits, sampling), chance(seed, ++now.many));
        now.logits = readToken(model, now.caches, token, { off: request.off }).logits;
        tokens.push(token);
        if (performance.now() - told > 60) {
          told = performance.now();
          tell({ kind: "wrote", id, tokens, seconds: (told - begun) / 1000 });
          [tokens, begun] = [[], told];
        }
      }
      tell({ kind: "wrote", id, tokens, seconds: (performance.now() - begun) / 1000, done: true });
    },
    /** End what is being written. */
    stop() {},
    /** Forget what was written: the next writing begins at the text. */
    again() {
      written = null;
    },
  };
  return (request) => {
    if (request.kind === "stop" || request.kind === "again") latest.write = -1;
    else latest[request.kind] = request.id;
    return kinds[request.kind](request);
  };
}
