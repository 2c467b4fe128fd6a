import { bytes, chart, choice, counted, flops, folded, follow, grouped, h, options, reading, show, stat, stops, summary, titled } from "./shared.js";

const PARTS = { projections: "projections", feed_forward: "feed-forward", mixing: "scores, sums", head: "output layer" };

/** The same numbers as _results in _calculator.py. */
function costs(m, { length: n, batch, size, trained }) {
  const { d_model: d, n_layers, n_heads: hs, n_kv_heads: g, d_head: dh, d_ff: f, vocab_size: v } = m;
  const wide = (m.gated ? 2 : 1) * f;
  const attention = d * (hs + 2 * g) * dh + hs * dh * d, network = d * wide + f * d;
  const biases = m.bias ? (hs + 2 * g) * dh + d + wide + d : 0;
  const norm = m.norm === "rms" ? d : 2 * d;
  const layers = n_layers * (attention + network + biases + 2 * norm) + (m.final_norm ? norm : 0);
  const tables = v * d + (m.position === "learned" ? m.max_len * d : 0) + m.segments * d;
  const ends = (m.embedding_norm ? norm : 0) + (m.pooler ? d * d + d : 0);
  const head = m.head ? v * d : 0;
  const parameters = layers + ends + tables + (m.tied ? 0 : head);
  const work = {
    projections: 2 * n_layers * attention, feed_forward: 2 * n_layers * network,
    mixing: 4 * n_layers * hs * dh * n, head: 2 * head,
  };
  const total = Object.values(work).reduce((a, b) => a + b, 0);
  const rest = work.projections + work.feed_forward;
  const cache = 2 * n_layers * g * dh * n * batch * size;
  const read = (size * (layers + head) + cache) / batch;
  return {
    work, parameters, flops: total, rest, training_flops: 3 * total, crossover: (rest * n) / work.mixing,
    weight_bytes: size * parameters, training_bytes: trained * parameters,
    cache_bytes: cache, read_bytes: read, flops_per_byte: total / read,
  };
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const get = (key) => model.get(key);
    const per = () => data.bytes[get("precision")];

    // ------------------------------------------------------------------ controls
    const preset = choice(model, "preset", "Model", Object.values(data.presets).map((p) => p.label), { keys: Object.keys(data.presets) });
    const size = (name, label) => stops(model, name, { label, stops: () => data.stops[name], now: () => get(name) });
    const length = size("length", "Tokens in the context n");
    const batch = size("batch", "Sequences at once");
    const precision = options(model, "precision", "A number takes", Object.entries(data.bytes).map(([key, b]) => [key, `${b} byte${b > 1 ? "s" : ""}`]));

    // ------------------------------------------------------------------ the parts of the work
    const rows = Object.entries(PARTS).map(([key, label]) => {
      const bar = h("span", { class: "tfx-bar" });
      if (key === "mixing") bar.setAttribute("data-sign", "-");
      const amount = reading(key, flops), share = reading(`share[${key}]`, (x) => `${show(x, 1)}%`);
      const node = h("tr", {}, h("th", { scope: "row" }, label),
        h("td", { class: "tfx-wide" }, h("span", { class: "tfx-track" }, bar)), h("td", {}, share.node), h("td", {}, amount.node));
      return { key, bar, amount, share, node };
    });
    const sum = reading("flops", flops);
    const table = h("table", { class: "tfx-table tfx-costs" },
      h("caption", {}, "One token, forward"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "part"), h("td", { class: "tfx-wide" }), h("th", { scope: "col" }, "share"), h("th", { scope: "col" }, "work"))),
      h("tbody", {}, rows.map((r) => r.node)),
      h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "all"), h("td", { class: "tfx-wide" }), h("td", {}, "100%"), h("td", {}, sum.node))));

    // ------------------------------------------------------------------ the picture
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const lines = { mixing: "tfx-raw", rest: "tfx-scaled" };
    for (const [key, kind] of Object.entries(lines)) lines[key] = h("polyline", { class: `tfx-line ${kind}`, "data-name": `curve_${key}` });
    const plot = chart(cursor, ...Object.values(lines));
    const marks = { mixing: h("span", { class: "tfx-mark" }), rest: h("span", { class: "tfx-mark tfx-scaled" }) };
    plot.node.append(...Object.values(marks));
    plot.node.classList.add("tfx-tall", "tfx-roomy");
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "FLOPs of a token over the tokens in its context. "),
        h("span", { class: "tfx-key tfx-raw" }, "scores and sums"), " ", h("span", { class: "tfx-key tfx-scaled" }, "rest of the layers")), plot.node);
    // A click in the picture reads the work there.
    const most = Math.log2(data.stops.length.at(-1));
    plot.node.addEventListener("pointerdown", (event) => {
      const box = plot.svg.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      model.set("length", Math.round(2 ** (most * share)));
      model.save_changes();
    });

    const stats = {
      parameters: stat("parameters", "parameters", counted),
      crossover: stat("crossover", "scores and sums equal the rest of the layers at", (x) => grouped(Math.round(x))),
      training_flops: stat("training_flops", "a token in training", flops),
      training_bytes: stat("training_bytes", "kept in training", bytes),
      weight_bytes: stat("weight_bytes", "bytes of the parameters", bytes),
      cache_bytes: stat("cache_bytes", "cache of keys and values", bytes),
      read_bytes: stat("read_bytes", "read for a generated token", bytes),
      flops_per_byte: stat("flops_per_byte", "FLOPs for a byte read", (x) => show(x, x < 100 ? 2 : 0)),
    };
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-pairs tfx-apart" }, preset.node, precision.node, length.node, batch.node),
      h("div", { class: "tfx-columns tfx-mapside" }, table, figure),
      h("div", { class: "tfx-stats" }, Object.values(stats).slice(0, 3).map((s) => s.node)), said.node,
      folded("More numbers", h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).slice(3).map((s) => s.node)))));

    const units = ["", "k", "M", "G", "T", "P", "E"];
    const power = (p) => `${10 ** (p % 3)}${units[Math.floor(p / 3)]}`;
    const thousands = (x) => (x >= 1024 ? `${x / 1024}k` : String(x));
    const draw = () => {
      [preset, precision, length, batch].forEach((control) => control.update());
      const m = data.presets[get("preset")];
      const n = get("length"), b = get("batch");
      const at = (tokens) => costs(m, { length: tokens, batch: b, size: per(), trained: data.trained });
      const c = at(n);
      for (const { key, bar, amount, share } of rows) {
        const part = (100 * c.work[key]) / c.flops;
        amount.set(c.work[key]);
        share.set(part);
        bar.style.width = `${part}%`;
      }
      sum.set(c.flops);

      const y = { mixing: (t) => Math.log10(at(t).work.mixing), rest: () => Math.log10(c.rest) };
      const from = Math.floor(y.mixing(1)), to = Math.ceil(Math.max(y.mixing(2 ** most), y.rest()));
      const stride = Math.ceil((to - from) / 5);
      const ys = Array.from({ length: Math.floor((to - from) / stride) + 1 }, (_, i) => from + i * stride);
      const xs = [0, 4, 8, 12, 16];
      plot.frame([0, most], [from, to], xs, ys, (p) => p);
      plot.node.querySelectorAll(".tfx-xtick").forEach((node, i) => (node.textContent = thousands(2 ** xs[i])));
      plot.node.querySelectorAll(".tfx-ytick").forEach((node, i) => (node.textContent = power(ys[i])));
      for (const key of Object.keys(lines)) {
        plot.points(lines[key], [0, most].map((x) => [x, y[key](2 ** x)]));
        plot.place(marks[key], Math.log2(n), y[key](n));
      }
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.at(Math.log2(n)));

      const decodes = m.kind === "decoder";
      for (const [key, s] of Object.entries(stats)) s.set(c[key]);
      for (const key of ["cache_bytes", "read_bytes", "flops_per_byte"]) stats[key].node.hidden = !decodes;
      const notes = {
        parameters: `${show(c.flops / c.parameters, 2)} FLOPs of a token for each`,
        crossover: `tokens, ${show(c.crossover / m.d_model, 2)} times d_model`,
        training_flops: "forward once, backward twice that",
        training_bytes: `${data.trained} bytes a parameter: ${per() === 4 ? "parameters 4, gradients 4" : "parameters 2, gradients 2, float32 copy 4"}, AdamW 8; no activations`,
        weight_bytes: `${per()} byte${per() > 1 ? "s" : ""} a number`,
        cache_bytes: `${grouped(n)} token${n > 1 ? "s" : ""}${b > 1 ? ` in each of ${grouped(b)} sequences` : ""}`,
        read_bytes: b > 1 ? `${grouped(b)} tokens share the parameters` : "all parameters and the cache",
        flops_per_byte: "while it generates",
      };
      stats.training_bytes.node.firstChild.textContent = `kept in training, ${per() === 4 ? "float32" : "mixed precision"}`;
      for (const [key, note] of Object.entries(notes)) stats[key].note.textContent = note;
      const beyond = m.max_len !== null && n > m.max_len ? ` It was made for ${grouped(m.max_len)}.` : "";
      said.set(`${m.label}, ${grouped(n)} token${n > 1 ? "s" : ""} in the context: ${flops(c.flops)} for a token, ${show((100 * c.work.mixing) / c.flops, 1)}% of it for scores and sums.${beyond}` +
        (decodes ? ` Generating, it reads ${bytes(c.read_bytes)}.` : " It generates nothing, so it has no cache."));
    };
    return follow(model, ["preset", "length", "batch", "precision"], draw);
  },
};
