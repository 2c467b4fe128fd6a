import { bytes, choice, counted, flops, folded, follow, grouped, h, options, prose, reading, stat, stops, summary, titled, toggle } from "./shared.js";

const NULLS = { d_model: null, n_layers: null, n_heads: null, n_kv_heads: null, d_ff: null, vocab_size: null, tied: null };
const ONCE = new Set(["embed", "position", "segments", "embedding_norm", "final_norm", "head", "pooler"]);
const ADDS = new Set(["out", "cross_out", "down"]); // their result is added to the stream
const ASIDE = new Set(["qkv", "scores", "mix", "cross_qkv", "cross_scores", "cross_mix", "up"]);
const WRITE = { parameters: counted, flops, bytes };
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const product = (list) => list.reduce((a, b) => a * b, 1);

/** Divisors of a number, those that leave an even size if asked. */
const divisors = (number, even) => Array.from({ length: Math.min(number, 128) }, (_, i) => i + 1)
  .filter((x) => number % x === 0 && (!even || (number / x) % 2 === 0));
const largest = (list, wanted) => list.filter((x) => x <= wanted).at(-1) || 1;

/** The same as settled in _sizes.py: the preset, with what was changed. */
function settled(data, get) {
  const preset = data.presets[get("preset")];
  const own = Object.fromEntries(Object.keys(NULLS).map((key) => [key, get(key) ?? preset[key]]));
  const m = { ...preset, ...own, batch: get("batch") };
  m.n_heads = largest(divisors(m.d_model, true), m.n_heads);
  m.n_kv_heads = largest(divisors(m.n_heads), m.n_kv_heads ?? m.n_heads);
  m.d_head = m.d_model / m.n_heads;
  m.length = Math.min(get("length"), m.max_len ?? data.longest);
  return m;
}

/** The same as the parts of tfbook.models, with how the numbers come about. */
function partsOf(m) {
  const { d_model: d, n_heads: hs, n_kv_heads: g, d_head: dh, d_ff: f, vocab_size: v, batch: b, length: n } = m;
  const rows = b * n, biased = m.bias ? 1 : 0;
  const normSize = m.norm === "rms" ? d : 2 * d;
  const normSum = m.norm === "rms" ? `${grouped(d)} scales` : `${grouped(d)} scales + ${grouped(d)} shifts`;
  const two = m.kind === "encoder-decoder";
  const list = [];
  const add = (key, stack, shape, { p = 0, sum = "", fl = 0, work = "", numbers = product(shape) } = {}) => {
    const times = ONCE.has(key) ? 1 : m.n_layers;
    const id = two && stack === "decoder" ? `decoder ${key}` : key;
    list.push({ key, id, stack, times, shape, sum, work, parameters: times * p, flops: times * fl, numbers: times * numbers, each: numbers });
  };
  const linear = (inputs, outputs, more = {}) => ({
    p: inputs * outputs + biased * outputs, fl: 2 * rows * inputs * outputs,
    sum: `${grouped(inputs)} × ${grouped(outputs)}${biased ? ` + ${grouped(outputs)} biases` : ""}`,
    work: `2 × ${grouped(rows)} rows × ${grouped(inputs)} × ${grouped(outputs)}`, ...more,
  });
  const attention = (stack, prefix) => {
    const outputs = (hs + 2 * g) * dh;
    add(`${prefix}qkv`, stack, [b, hs, n, dh], linear(d, outputs, {
      numbers: rows * outputs,
      sum: `${grouped(d)} × (${hs} + 2 × ${g}) × ${dh}${biased ? ` + ${grouped(outputs)} biases` : ""}`,
    }));
    const pairs = { fl: 2 * rows * hs * n * dh, work: `2 × ${b * hs} heads × ${grouped(n)}² × ${dh}` };
    add(`${prefix}scores`, stack, [b, hs, n, n], pairs);
    add(`${prefix}mix`, stack, [b, n, hs * dh], pairs);
    add(`${prefix}out`, stack, [b, n, d], linear(hs * dh, d));
  };
  const norm = (key, stack) => add(key, stack, [b, n, d], { p: normSize, sum: normSum });
  const step = (stack, key, inside) => {
    if (m.place === "pre") norm(key, stack);
    inside();
    if (m.place === "post") norm(key, stack);
  };
  const entrance = (stack) => {
    const again = two && m.shared && stack === "decoder";
    add("embed", stack, [b, n, d], again ? {} : { p: v * d, sum: `${grouped(v)} × ${grouped(d)}` });
    if (m.position === "learned") add("position", stack, [b, n, d], { p: m.max_len * d, sum: `${grouped(m.max_len)} × ${grouped(d)}` });
    else if (m.position !== "t5") add("position", stack, m.position === "rotary" ? [n, dh] : [b, n, d]);
    if (m.segments) add("segments", stack, [b, n, d], { p: m.segments * d, sum: `${m.segments} × ${grouped(d)}` });
    if (m.embedding_norm) norm("embedding_norm", stack);
    if (m.position === "t5") add("position", stack, [hs, n, n], { p: m.n_buckets * hs, sum: `${m.n_buckets} buckets × ${hs} heads` });
    step(stack, "norm_1", () => attention(stack, ""));
    if (two && stack === "decoder") step(stack, "norm_x", () => attention(stack, "cross_"));
    step(stack, "norm_2", () => {
      const wide = (m.gated ? 2 : 1) * f;
      add("up", stack, [b, n, f], linear(d, wide, m.gated ? { numbers: rows * wide, sum: `2 × ${grouped(d)} × ${grouped(f)}` } : {}));
      add("down", stack, [b, n, d], linear(f, d));
    });
    if (m.final_norm) norm("final_norm", stack);
  };
  if (m.kind !== "decoder") entrance("encoder");
  if (m.kind !== "encoder") entrance("decoder");
  if (m.head) add("head", "", [b, n, v], { p: m.tied ? 0 : v * d, sum: m.tied ? "" : `${grouped(d)} × ${grouped(v)}`, fl: 2 * rows * d * v, work: `2 × ${grouped(rows)} rows × ${grouped(d)} × ${grouped(v)}` });
  if (m.pooler) add("pooler", "", [b, d], { p: d * d + d, sum: `${grouped(d)}² + ${grouped(d)} biases` });
  return list;
}

/** What a part does, in a sentence or two. */
function told(part, m) {
  const after = m.place === "post" ? "after the sum with the stream" : "before the sublayer, which leaves the stream itself as it is";
  const normed = `Each token's vector is scaled to a common size, ${after}. What is learned is a factor${m.norm === "rms" ? "" : " and a shift"} for each entry.`;
  const groups = m.n_kv_heads === m.n_heads ? "" : ` ${m.n_heads / m.n_kv_heads} query heads share each of the ${m.n_kv_heads} heads of keys and values.`;
  const pairs = "Every token meets every other, so twice the length makes four times the numbers.";
  const { key } = part;
  if (key.endsWith("qkv")) {
    return key === "qkv"
      ? `Three projections of each token: what it asks, what it answers to, what it says.${groups}`
      : `The decoder's tokens ask; keys and values come from what the encoder gave, and are computed once for a sentence.${groups}`;
  }
  if (key.endsWith("scores")) return `Each head compares each query with each key, which the softmax turns into weights. ${pairs}`;
  if (key.endsWith("mix")) return `Each token gets the mean of the values with its weights; the heads' results stand side by side. ${pairs}`;
  if (key.endsWith("out")) return "What the heads found is mixed and added to the stream.";
  return {
    embed: part.parameters ? "Each token takes its row of a table. Looking up multiplies nothing." : "The second stack reads the same table as the first.",
    position: {
      learned: "A learned vector for each position is added. A longer text has no vector for what lies beyond.",
      sinusoidal: "Sines and cosines of the position are added. Nothing is learned.",
      rotary: "In every block queries and keys are turned by angles that grow with the position. Nothing is learned, and nothing is added to the stream.",
      t5: "A learned number for each bucket of distance and each head is added to the scores of every block.",
    }[m.position],
    segments: "A learned vector says which of two sentences the token belongs to.",
    embedding_norm: "The sum of the embeddings is scaled to a common size.",
    final_norm: "Without a norm at the end the sum of all blocks would go out at whatever size it has grown to.",
    up: m.gated ? `Two projections of each token alone: one passes through ${m.act} and multiplies the other.` : `Each token alone is projected to a wider vector, which passes through ${m.act}.`,
    down: "The wide vector comes back to the width of the stream and is added to it.",
    head: m.tied ? "Each vector is compared with every row of the embedding table, which is used once more: no new weights." : "Each vector is compared with a row for each token that could come next.",
    pooler: "It projects the first token's vector once more, for questions about the whole text. Who wants the tokens' vectors leaves it out, so no work is counted.",
  }[key] || normed;
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const get = (key) => model.get(key);
    const now = () => settled(data, get);

    // ------------------------------------------------------------------ controls
    const preset = choice(model, "preset", "Begin with the sizes of", Object.values(data.presets).map((p) => p.label), { keys: Object.keys(data.presets), also: NULLS });
    const size = (name, label, list = () => data.stops[name]) => stops(model, name, { label, stops: list, now: () => now()[name] });
    const of = {
      d_model: size("d_model", "Width d_model"),
      n_layers: size("n_layers", "Blocks"),
      n_heads: size("n_heads", "Heads", () => divisors(now().d_model, true)),
      n_kv_heads: size("n_kv_heads", "Heads of keys and values", () => divisors(now().n_heads)),
      d_ff: size("d_ff", "Feed-forward width"),
      vocab_size: size("vocab_size", "Vocabulary"),
      length: size("length", "Tokens", () => data.stops.length.filter((x) => x <= (now().max_len ?? data.longest))),
      batch: size("batch", "Sequences at once"),
    };
    const sizes = Object.values(of);
    const tied = toggle({ get: () => now().tied, set: (k, v) => model.set(k, v), save_changes: () => model.save_changes() }, "tied", "Output tied to the embedding");
    const precision = options(model, "precision", "A number takes", Object.entries(data.bytes).map(([key, b]) => [key, `${b} byte${b > 1 ? "s" : ""}`]));
    const measure = options(model, "measure", "Bars show", [["parameters", "parameters"], ["flops", "FLOPs"], ["bytes", "outputs"]]);

    const total = stat("total_parameters", "parameters", counted);
    const work = stat("total_flops", "one pass", flops);
    const weights = stat("weight_bytes", "weights", bytes);
    const activations = stat("activation_bytes", "largest output", bytes);
    const cache = stat("cache_bytes", "cache of keys and values", bytes);
    const walk = h("div", { class: "tfx-walk" });
    const form = h("form", { onsubmit: (e) => e.preventDefault() },
      h("fieldset", { class: "tfx-options" }, h("legend", { class: "tfx-label" }, "Parts in the order of the data; pick one"), walk));
    const detail = h("div", { class: "tfx-detail" });
    const FIRST = new Set(["length", "d_model"]); // what the question needs
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-columns tfx-even tfx-walking tfx-cornered" },
        h("div", { class: "tfx-stack" }, preset.node, of.length.node, of.d_model.node, measure.node), form, detail),
      h("div", { class: "tfx-stats tfx-loose tfx-five" }, total.node, work.node, weights.node, activations.node, cache.node), said.node,
      folded("The other sizes", h("div", { class: "tfx-thirds" }, Object.keys(of).filter((key) => !FIRST.has(key)).map((key) => of[key].node), tied.node), precision.node)));

    // ------------------------------------------------------------------ the walk
    let rows = [], structure = "";
    const build = (parts, m) => {
      rows = parts.map((part, i) => {
        const input = h("input", {
          type: "radio", name: "part", value: part.id, "data-control": "part",
          onchange: () => {
            model.set("part", part.id);
            model.save_changes();
          },
        });
        const shape = h("span", { class: "tfx-shape" });
        const amount = reading(`amount[${i}]`, (x) => (x ? WRITE[get("measure")](x) : "–"));
        const bar = h("span", { class: "tfx-bar" });
        const flow = ADDS.has(part.key) ? "adds" : ASIDE.has(part.key) ? "aside" : "on";
        const node = h("div", { class: "tfx-part", "data-flow": m.place === "pre" && part.key.startsWith("norm") ? "aside" : flow },
          h("span", { class: "tfx-stream", "aria-hidden": "true" }), h("span", { class: "tfx-knot", "aria-hidden": "true" }, flow === "adds" ? "+" : ""),
          h("label", {}, input, h("span", { class: "tfx-face" },
            h("span", { class: "tfx-partname" }, data.names[part.key]), shape,
            h("span", { class: "tfx-track" }, bar), amount.node)));
        return { id: part.id, input, shape, amount, bar, node };
      });
      const stages = [];
      parts.forEach((part, i) => {
        const inside = !ONCE.has(part.key);
        const last = stages.at(-1);
        if (last && last.inside === inside && last.stack === part.stack) last.rows.push(rows[i]);
        else stages.push({ inside, stack: part.stack, rows: [rows[i]] });
      });
      const name = { encoder: "Encoder block", decoder: "Decoder block" };
      walk.replaceChildren(...stages.map((s) => h("div", { class: s.inside ? "tfx-stage tfx-repeated" : "tfx-stage" },
        s.inside ? h("p", { class: "tfx-times" }, h("span", { class: "tfx-stream", "aria-hidden": "true" }), `${m.kind === "encoder-decoder" ? name[s.stack] : "Block"}, ${m.n_layers} time${m.n_layers > 1 ? "s" : ""}`) : null,
        s.rows.map((r) => r.node))));
    };

    const line = (name, value, sum, write) => {
      const number = reading(`part_${name}`, write);
      number.set(value);
      return h("span", {}, `${{ parameters: "Parameters", flops: "FLOPs", bytes: "Output" }[name]}: `, sum ? `${sum} = ` : "", number.node, ". ");
    };
    const draw = () => {
      const m = now();
      // What cannot be is put right for all to see, Python too.
      const fixes = ["n_heads", "n_kv_heads", "length"].filter((key) => get(key) !== null && get(key) !== m[key]);
      if (fixes.length) {
        fixes.forEach((key) => model.set(key, m[key]));
        model.save_changes();
        return; // the changes draw again
      }
      [preset, ...sizes, tied, precision, measure].forEach((c) => c.update());
      const parts = partsOf(m);
      const form = `${get("preset")} ${m.n_layers}`;
      if (form !== structure) {
        structure = form;
        build(parts, m);
      }
      const per = data.bytes[get("precision")];
      const sum = (key) => parts.reduce((s, p) => s + p[key], 0);
      const measured = get("measure");
      const amount = (p) => (measured === "bytes" ? per * p.numbers : p[measured]);
      const most = Math.max(...parts.map(amount), 1);
      const chosen = parts.find((p) => p.id === get("part")) || parts.find((p) => p.key === "qkv");
      parts.forEach((p, i) => {
        const row = rows[i];
        const others = p.key === "qkv" && m.n_kv_heads !== m.n_heads ? `, k v ${m.n_kv_heads} heads` : p.key === "up" && m.gated ? " twice" : "";
        row.shape.textContent = `(${p.shape.map(grouped).join(", ")})${others}`;
        row.amount.set(amount(p));
        row.bar.style.width = `${(100 * amount(p)) / most}%`;
        row.input.checked = p === chosen;
        row.node.classList.toggle("tfx-chosen", p === chosen);
      });
      const times = chosen.times > 1 ? `${chosen.times} × ` : "";
      const wrap = (text) => (times && text ? `${times}(${text})` : text);
      detail.replaceChildren(
        h("p", {}, h("strong", {}, `${capital(data.names[chosen.key])}. `), prose(told(chosen, m))),
        h("p", {}, line("parameters", chosen.parameters, wrap(chosen.sum), grouped), line("flops", chosen.flops, chosen.work && times + chosen.work, flops),
          line("bytes", per * chosen.numbers, `${times}${grouped(chosen.each)} × ${per} B`, bytes)));

      const all = sum("parameters");
      total.set(all);
      total.note.textContent = grouped(all);
      work.set(sum("flops"));
      work.note.textContent = `${flops(sum("flops") / (m.batch * m.length))} a token`;
      weights.set(per * all);
      weights.note.textContent = `${per} byte${per > 1 ? "s" : ""} a number`;
      activations.set(per * Math.max(...parts.map((p) => p.each)));
      const widest = parts.reduce((a, p) => (p.each > a.each ? p : a));
      activations.note.textContent = data.names[widest.key];
      cache.node.hidden = m.kind === "encoder";
      const kinds = m.kind === "encoder-decoder" ? 2 : 1;
      cache.set(per * kinds * m.n_layers * 2 * m.n_kv_heads * m.d_head * m.length * m.batch);
      cache.note.textContent = `${grouped(m.length)} tokens${m.batch > 1 ? ` of ${m.batch} sequences` : ""}${kinds > 1 ? " on either side" : ""}`;
      const parts100 = (p, of) => `${(100 * p / Math.max(of, 1)).toFixed(1)}%`;
      said.set(`${m.label}${Object.keys(NULLS).some((key) => get(key) !== null) ? ", changed" : ""}: ${counted(all)} parameters, ${flops(sum("flops"))} for ${grouped(m.batch * m.length)} tokens. ` +
        `${data.names[chosen.key]}: ${parts100(chosen.parameters, all)} of the parameters and ${parts100(chosen.flops, sum("flops"))} of the FLOPs.`);
    };
    return follow(model, ["preset", ...Object.keys(NULLS), "length", "batch", "precision", "part", "measure"], draw);
  },
};
