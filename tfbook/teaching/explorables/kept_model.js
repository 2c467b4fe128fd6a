// A reader's own language model in a page of its own: the forward pass of blocks as `write_page` in
// _kept.py found them, character by character with a cache, and the page that lets it write.
import { attendCached, emptyCache, gelu, layerNorm, matvec8, openWeights, plus, remember, rmsNorm, rotaryTable, rotate, row8, silu } from "./tensors.js";
import { cutDown, drawn } from "./language_model.js";

const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  gelu,
  gelu_tanh: (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  tanh: Math.tanh,
  identity: (x) => x,
};

/** The model of a file: what its layers are, and their weights as functions from a row to a row. */
export function openKept(file) {
  const weights = openWeights(file);
  const linear = (name, matrix = weights[`${name}.weight`], bias = weights[`${name}.bias`]) => (x) =>
    bias ? plus(matvec8(matrix, x), bias) : matvec8(matrix, x);
  const norm = (name, { kind, eps }) => (x) => {
    const gain = weights[`${name}.weight`];
    return kind === "rms" ? rmsNorm(x, gain, eps) : layerNorm(x, gain, weights[`${name}.bias`] ?? new Float32Array(gain.length), eps);
  };
  const norms = (layer, names) => names.map((name) => [name, layer.norms[name] ? norm(`${layer.name}.${name}`, layer.norms[name]) : (x) => x]);
  const layers = file.layers.map((layer) => ({
    ...layer,
    ...Object.fromEntries(["q", "k", "v", "out", "up", "gate", "down"].map((part) => [part, linear(`${layer.name}.${part}`)])),
    ...Object.fromEntries(norms(layer, ["mixerNorm", "ffnNorm", "qNorm", "kNorm"])),
    act: ACTIVATIONS[layer.activation],
  }));
  const last = file.norm ? norm("norm", file.norm) : (x) => x;
  const head = file.tied ? linear("head", weights["embed.weight"]) : linear("head");
  return { ...file, weights, layers, score: (x) => head(last(x)) };
}

/** Read one character at a place, counted from 0; the caches of all layers change. */
export function readCharacter(model, caches, token, place) {
  const { places, "embed.weight": embed } = model.weights, d = embed.cols;
  let x = row8(embed, token).map((number, i) => model.scale * number + places[place * d + i]);
  model.layers.forEach((layer, at) => {
    const before = layer.place === "pre";
    const turned = (row) => (layer.base ? rotate(row, rotaryTable(place, layer.size, layer.base), layer.layout) : row);
    const seen = before ? layer.mixerNorm(x) : x;
    remember(caches[at], turned(layer.kNorm(layer.k(seen))), layer.v(seen));
    const { found } = attendCached(turned(layer.qNorm(layer.q(seen))), caches[at], layer.size, layer.factor);
    x = plus(x, layer.out(found));
    if (!before) x = layer.mixerNorm(x);
    const read = before ? layer.ffnNorm(x) : x;
    const up = layer.up(read);
    const inner = layer.gated ? layer.gate(read).map((g, i) => layer.act(g) * up[i]) : up.map(layer.act);
    x = plus(x, layer.down(inner));
    if (!before) x = layer.ffnNorm(x);
  });
  return x;
}

/** A function from ids to the scores of the next character. The model reads the last `context` ids, the
    first of them at place 0; what it has read already is not read again. */
export function readerOf(model) {
  let read = [], caches = null, last = null;
  return (ids) => {
    const seen = ids.slice(-model.context);
    if (!read.length || read.length > seen.length || read.some((id, i) => id !== seen[i])) {
      read = [];
      caches = model.layers.map((layer) => emptyCache(model.context, layer.heads * layer.size));
    }
    for (const id of seen.slice(read.length)) {
      last = readCharacter(model, caches, id, read.length);
      read.push(id);
    }
    return model.score(last);
  };
}

/** The next character: the likeliest at temperature 0, else drawn with a number from 0 to 1. */
export function chosen(scores, temperature, number) {
  if (temperature > 0) return drawn(cutDown(scores, { temperature, top_k: 0, top_p: 1 }), number);
  return scores.reduce((best, score, id) => (score > scores[best] ? id : best), 0);
}

/** Bring the page to life: its controls stand in it with ids. */
export function openPage(file) {
  const $ = (id) => document.getElementById(id);
  const model = openKept(file), next = readerOf(model);
  const { characters, context } = model;
  let writing = false;
  const told = () => ($("shown").textContent = Number($("temperature").value) ? $("temperature").value : "0, the likeliest");
  $("temperature").addEventListener("input", told);
  told();
  async function write() {
    if (writing) return void (writing = false);
    const typed = [...$("prompt").value];
    const unknown = [...new Set(typed.filter((c) => !characters.includes(c)))];
    $("note").textContent = unknown.length ? `Left out, as the model has never read them: ${unknown.join(" ")}` : "";
    const ids = typed.map((c) => characters.indexOf(c)).filter((id) => id >= 0);
    if (!ids.length) return void ($("note").textContent = "Type at least one character that the model knows.");
    const begun = performance.now(), count = Number($("count").value);
    [writing, $("write").textContent] = [true, "Stop"];
    const text = $("text");
    text.textContent = ids.map((id) => characters[id]).join("");
    text.dataset.state = "writing";
    let many = 0, rested = begun;
    while (writing && many < count) {
      const id = chosen(next(ids.slice(-context)), Number($("temperature").value), Math.random());
      ids.push(id);
      text.append(characters[id]);
      many++;
      if (performance.now() - rested < 15) continue;
      await new Promise((go) => setTimeout(go));
      rested = performance.now();
    }
    $("pace").textContent = `${Math.round((1000 * many) / (performance.now() - begun))} characters a second`;
    [writing, $("write").textContent, text.dataset.state] = [false, "Write", "done"];
  }
  $("write").addEventListener("click", write);
  $("write").disabled = false;
}
