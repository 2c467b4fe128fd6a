import { bytes, chart, choice, counted, flops, folded, follow, grouped, h, options, show, stat, stops, summary, titled } from "./shared.js";

const NULLS = { n_layers: null, n_heads: null, n_kv_heads: null, d_head: null };
const KINDS = [
  ["multi_head", "every head its own", "tfx-raw"],
  ["cache", "as it is", "tfx-scaled"],
  ["multi_query", "one head for all", "tfx-third"],
  ["window", "sliding window", "tfx-fourth"],
];

/** The same as _model in _cache.py. */
function settled(data, get) {
  const preset = data.presets[get("preset")];
  const m = { ...preset };
  m.n_layers = get("n_layers") ?? preset.n_layers;
  m.n_heads = get("n_heads") ?? preset.n_heads;
  m.d_head = get("d_head") ?? preset.d_model / preset.n_heads;
  const wanted = get("n_kv_heads") ?? preset.n_kv_heads ?? m.n_heads;
  m.n_kv_heads = Array.from({ length: m.n_heads }, (_, i) => i + 1).filter((g) => m.n_heads % g === 0 && g <= wanted).at(-1);
  m.d_model = m.n_heads * m.d_head;
  m.d_ff = Math.floor((2 * preset.d_ff * m.d_model + preset.d_model) / (2 * preset.d_model));
  return m;
}

/** The same numbers as _results in _cache.py, as functions of the length. */
function costs(m, { batch, window, size }) {
  const { d_model: d, n_heads: hs, n_kv_heads: g, d_head: dh, d_ff: f, vocab_size: v, n_layers } = m;
  const wide = (m.gated ? 2 : 1) * f;
  const products = d * (hs + 2 * g) * dh + hs * dh * d + d * wide + f * d;
  const biases = m.bias ? (hs + 2 * g) * dh + d + wide + d : 0;
  const norm = m.norm === "rms" ? d : 2 * d;
  const parameters = n_layers * (products + biases + 2 * norm) + (m.final_norm ? norm : 0) +
    v * d * (m.tied ? 1 : 2) + (m.position === "learned" ? m.max_len * d : 0);
  const alone = 2 * n_layers * products, met = 4 * n_layers * hs * dh, head = 2 * d * v;
  const kept = 2 * n_layers * dh * batch * size;
  const triangle = (t) => (t * (t + 1)) / 2;
  const squares = (t) => (t * (t + 1) * (2 * t + 1)) / 6;
  return {
    parameters, weight_bytes: size * parameters, break_even: (size * parameters) / (kept * g),
    cache: (t) => kept * g * t, window: (t) => kept * g * Math.min(t, window),
    multi_head: (t) => kept * hs * t, multi_query: (t) => kept * t,
    step: { cached: (t) => batch * (alone + met * t + head), uncached: (t) => batch * (t * alone + met * t * t + head) },
    total: {
      cached: (t) => batch * (t * (alone + head) + met * triangle(t)),
      uncached: (t) => batch * (triangle(t) * alone + met * squares(t) + t * head),
    },
  };
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const get = (key) => model.get(key);
    const now = () => settled(data, get);

    // ------------------------------------------------------------------ controls
    const preset = choice(model, "preset", "Begin with the sizes of", Object.values(data.presets).map((p) => p.label), { keys: Object.keys(data.presets), also: NULLS });
    const size = (name, label, list = () => data.stops[name], value = () => now()[name]) => stops(model, name, { label, stops: list, now: value });
    const plain = (name, label) => size(name, label, undefined, () => get(name));
    const length = plain("length", "Tokens so far");
    const sizes = [
      size("n_layers", "Blocks"), size("n_heads", "Heads"),
      size("n_kv_heads", "Heads of keys and values", () => {
        const { n_heads } = now();
        return Array.from({ length: n_heads }, (_, i) => i + 1).filter((x) => n_heads % x === 0);
      }),
      size("d_head", "Size of a head"), plain("batch", "Sequences at once"), plain("window", "Sliding window, tokens"),
    ];
    const precision = options(model, "precision", "A number takes", Object.entries(data.bytes).map(([key, b]) => [key, `${b} byte${b > 1 ? "s" : ""}`]));
    const measure = options(model, "measure", "Work for", [["step", "this token"], ["total", "all tokens up to it"]]);

    // ------------------------------------------------------------------ pictures
    const line = (name, kind) => h("polyline", { class: `tfx-line ${kind}`, "data-name": `curve_${name}` });
    const cursors = [0, 1].map(() => h("line", { class: "tfx-cursor", y1: 0, y2: 100 }));
    const lines = { uncached: line("uncached", "tfx-raw"), cached: line("cached", "tfx-scaled") };
    const work = chart(cursors[0], lines.uncached, lines.cached);
    const dots = { uncached: h("span", { class: "tfx-mark" }), cached: h("span", { class: "tfx-mark tfx-scaled" }) };
    work.node.append(...Object.values(dots));
    const what = h("strong", {});
    const first = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, what, h("span", { class: "tfx-key tfx-raw" }, "everything read again"), " ",
        h("span", { class: "tfx-key tfx-scaled" }, "with a cache")), work.node);
    const weightsLine = h("line", { class: "tfx-weights" });
    const shapes = Object.fromEntries(KINDS.map(([name, , kind]) => [name, line(name, kind)]));
    const memory = chart(cursors[1], weightsLine, ...Object.values(shapes));
    const mark = h("span", { class: "tfx-mark tfx-scaled" });
    memory.node.append(mark);
    const second = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Bytes of the cache over the tokens. "),
        KINDS.flatMap(([, label, kind]) => [h("span", { class: `tfx-key ${kind}` }, label), " "]),
        h("span", { class: "tfx-key tfx-weights" }, "the weights")), memory.node);
    const stats = {
      step_uncached: stat("step_uncached", "this token, all read again", flops),
      step_cached: stat("step_cached", "this token, with a cache", flops),
      total_uncached: stat("total_uncached", "all tokens, all read again", flops),
      total_cached: stat("total_cached", "all tokens, with a cache", flops),
    };
    const held = KINDS.map(([name, label]) => [name, stat(`${name}_bytes`, `cache, ${label}`, bytes)]);
    const weights = stat("weight_bytes", "weights", bytes);
    const even = stat("break_even", "as heavy as the weights at", (x) => grouped(Math.round(x)));
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-pairs" }, preset.node, measure.node, length.node, sizes[2].node),
      h("div", { class: "tfx-columns tfx-even" }, first, second),
      h("div", { class: "tfx-stats tfx-four" }, [...held.map(([, s]) => s), weights, even].map((s) => s.node)), said.node,
      folded("The work in numbers", h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).map((s) => s.node))),
      folded("The other sizes", h("div", { class: "tfx-thirds" }, sizes.filter((_, i) => i !== 2).map((s) => s.node)), precision.node)));

    const units = ["", "k", "M", "G", "T", "P", "E", "Z"];
    const power = (p) => `${10 ** (((p % 3) + 3) % 3)}${p < 0 ? "" : units[Math.floor(p / 3)]}`;
    const thousands = (x) => (x >= 1024 ? `${Number((x / 1024).toFixed(1))}k` : String(x));
    const draw = () => {
      const m = now();
      if (get("n_kv_heads") !== null && get("n_kv_heads") !== m.n_kv_heads) {
        model.set("n_kv_heads", m.n_kv_heads);
        model.save_changes();
        return; // the change draws again
      }
      [preset, length, ...sizes, precision, measure].forEach((c) => c.update());
      const t = get("length");
      const c = costs(m, { batch: get("batch"), window: get("window"), size: data.bytes[get("precision")] });
      const how = c[get("measure")];
      // The picture reaches from a token to twice the length, at least 256, each axis in factors.
      const end = Math.max(256, 2 ** Math.ceil(Math.log2(2 * t)));
      const steps = Array.from({ length: 97 }, (_, i) => end ** (i / 96));
      const logs = Math.log2(end);
      const every = Math.ceil(logs / 4);
      const xs = Array.from({ length: Math.floor(logs / every) + 1 }, (_, i) => i * every);
      const frame = (plot, low, high) => {
        const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
        const stride = Math.ceil((to - from) / 4);
        const ys = Array.from({ length: Math.floor((to - from) / stride) + 1 }, (_, i) => from + i * stride);
        plot.frame([0, logs], [from, to], xs, ys, (p) => p);
        // `frame` writes both axes alike; here one counts in twos and the other in tens.
        plot.node.querySelectorAll(".tfx-xtick").forEach((n, i) => (n.textContent = thousands(2 ** xs[i])));
        return (f) => steps.map((x) => [Math.log2(x), Math.log10(f(x))]);
      };
      const name = (plot, unit) => plot.node.querySelectorAll(".tfx-ytick").forEach((n) => (n.textContent = unit(Number(n.textContent))));
      let curve = frame(work, how.cached(1), how.uncached(end));
      name(work, power);
      for (const key of ["uncached", "cached"]) {
        work.points(lines[key], curve(how[key]));
        work.place(dots[key], Math.log2(t), Math.log10(how[key](t)));
      }
      what.textContent = get("measure") === "step" ? "FLOPs of the token at this length. " : "FLOPs of all tokens up to this length. ";
      curve = frame(memory, c.multi_query(1), Math.max(c.multi_head(end), c.weight_bytes));
      name(memory, power);
      for (const [key] of KINDS) memory.points(shapes[key], curve(c[key]));
      memory.place(mark, Math.log2(t), Math.log10(c.cache(t)));
      for (const [key, at] of Object.entries({ x1: 0, x2: 100, y1: memory.up(Math.log10(c.weight_bytes)), y2: memory.up(Math.log10(c.weight_bytes)) })) weightsLine.setAttribute(key, at);
      for (const x of ["x1", "x2"]) {
        cursors[0].setAttribute(x, work.at(Math.log2(t)));
        cursors[1].setAttribute(x, memory.at(Math.log2(t)));
      }

      for (const part of ["step", "total"]) {
        const [less, more] = [c[part].cached(t), c[part].uncached(t)];
        stats[`${part}_cached`].set(less);
        stats[`${part}_uncached`].set(more);
        stats[`${part}_uncached`].note.textContent = `${show(more / less, more / less < 10 ? 2 : 0)} times as much`;
        stats[`${part}_cached`].note.textContent = part === "step" ? `${flops(4 * m.n_layers * m.d_model * t * get("batch"))} of it for scores and values` : `${grouped(t)} tokens`;
      }
      held.forEach(([key, s]) => {
        s.set(c[key](t));
        s.note.textContent = `${show((100 * c[key](t)) / c.weight_bytes, 1)}% of the weights`;
      });
      weights.set(c.weight_bytes);
      weights.note.textContent = `${counted(c.parameters)} parameters`;
      even.set(c.break_even);
      even.note.textContent = get("batch") > 1 ? `tokens in each of ${get("batch")} sequences` : "tokens";
      said.set(`At ${grouped(t)} tokens a step takes ${flops(c.step.cached(t))} with a cache and ${flops(c.step.uncached(t))} without. ` +
        `The cache takes ${bytes(c.cache(t))}, the weights ${bytes(c.weight_bytes)}.`);
    };
    return follow(model, ["preset", ...Object.keys(NULLS), "length", "batch", "window", "precision", "measure"], draw);
  },
};
