import { bytes, choice, flops, folded, follow, grouped, h, reading, show, slider, stat, stops, summary, titled, toggle, uniform } from "./shared.js";

const RULES = ["window", "dilation", "stride", "block", "global_tokens", "sinks", "random_keys", "causal"];
const KINDS = { near: "window", far: "stride", block: "block", wide: "global and sinks", chance: "random" };
const WIDEST = 24; // of the window's slider; one further is "all"

/** Tells `see(key, kind)` what query i sees of n, but for its stride: the same as _few in _sparsity.py. */
function few(i, last, c, see) {
  see(i, "near");
  for (let t = 1; t < c.window; t++) {
    if (i - t * c.dilation >= 0) see(i - t * c.dilation, "near");
    if (i + t * c.dilation <= last) see(i + t * c.dilation, "near");
  }
  if (c.block) for (let j = i - (i % c.block); j <= Math.min(last, i - (i % c.block) + c.block - 1); j++) see(j, "block");
  for (let j = 0; j < Math.min(Math.max(c.global_tokens, c.sinks), last + 1); j++) see(j, "wide");
  for (let t = 0; t < c.random_keys; t++) see(Math.floor(uniform(c.seed, c.most_random * i + t + 1) * (last + 1)), "chance");
}

/** For each query the kind of rule by which it sees a key, or null. */
function rows(n, c) {
  return Array.from({ length: n }, (_, i) => {
    const last = c.causal ? i : n - 1;
    const row = Array(n).fill(null);
    const see = (j, kind) => (row[j] ??= kind);
    if (c.window === "all" || i < c.global_tokens) {
      for (let j = 0; j <= last; j++) see(j, c.window === "all" ? "near" : "wide");
      return row;
    }
    few(i, last, c, see);
    if (c.stride) for (let j = i % c.stride; j <= last; j += c.stride) if (row[j] !== "near") row[j] = "far";
    return row;
  });
}

/** How many pairs n queries see, without a list of those at the stride. */
function kept(n, c) {
  const seen = new Int32Array(n).fill(-1);
  let total = 0;
  for (let i = 0; i < n; i++) {
    const last = c.causal ? i : n - 1;
    if (c.window === "all" || i < c.global_tokens) {
      total += last + 1;
      continue;
    }
    if (c.stride) total += Math.floor((last - (i % c.stride)) / c.stride) + 1;
    few(i, last, c, (j) => {
      if (seen[j] === i) return;
      seen[j] = i;
      if (!c.stride || (i - j) % c.stride !== 0) total++;
    });
  }
  return total;
}

/** After how many layers each query may know of each key; Infinity for never. */
function distances(seen) {
  return seen.map((_, i) => {
    const after = Array(seen.length).fill(Infinity);
    after[i] = 0;
    for (let edge = [i]; edge.length; ) {
      const ahead = [];
      for (const k of edge) seen[k].forEach((kind, j) => {
        if (!kind || after[j] !== Infinity) return;
        after[j] = after[k] + 1;
        ahead.push(j);
      });
      edge = ahead;
    }
    return after;
  });
}

const plural = (x) => `layer${x === 1 ? "" : "s"}`;
const percent = (x) => `${show(100 * x, x < 0.0995 ? 2 : 1)}%`;
const when = (x) => (x === Infinity ? "never" : `after ${x} ${plural(x)}`);

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["n", "answer", "layers", "length", "cell", "seed", ...RULES];
    const now = () => {
      const c = { ...Object.fromEntries(names.map((key) => [key, model.get(key)])), most_random: data.most.random_keys };
      return { ...c, answer: Math.min(c.answer, c.n - 1) };
    };
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };
    const presetNow = () => Object.keys(data.presets).find((key) => RULES.every((rule) => data.presets[key][rule] === model.get(rule))) || "own";

    // ------------------------------------------------------------------ controls
    const keys = Object.keys(data.presets);
    const preset = choice({ get: presetNow, set: (_, key) => key !== "own" && save(data.presets[key]), save_changes: () => {} },
      "preset", "Pattern", [...keys.map((key) => data.labels[key]), "one of your own"], { keys: [...keys, "own"] });
    const count = (name, label, max, text = String, min = 0) => slider(model, name, { label, min, max, text });
    // 1 would be every key: none, and then from 2 on.
    const apart = (name, label) => slider(model, name, {
      label, min: 1, max: 32, read: (x) => (x === 1 ? 0 : x), write: (x) => (x === 0 ? 1 : x), text: (x) => (x ? String(x) : "none"),
    });
    const controls = {
      n: count("n", "Tokens in the picture n", data.most.n, String, 4),
      window: slider(model, "window", {
        label: "Window, itself counted", min: 1, max: WIDEST + 1, read: (x) => (x > WIDEST ? "all" : x),
        write: (x) => (x === "all" ? WIDEST + 1 : Math.min(x, WIDEST)), text: (x) => (x === "all" ? "all" : String(x)),
      }),
      dilation: count("dilation", "Dilation of the window", 8, String, 1),
      stride: apart("stride", "Stride"),
      block: apart("block", "Block"),
      global_tokens: count("global_tokens", "Global tokens", 8),
      sinks: count("sinks", "Sinks", 8),
      random_keys: count("random_keys", "Random keys", data.most.random_keys),
    };
    const causal = toggle(model, "causal", "Causal");
    const luck = h("button", { type: "button", class: "tfx-chip", "data-control": "fresh", onclick: () => save({ seed: (model.get("seed") + 1) % 10_000 }) }, "Other random keys");
    const answer = slider({ ...model, get: () => now().answer, set: (k, v) => model.set(k, v), save_changes: () => model.save_changes() },
      "answer", { label: "The answer stands at", min: 0, max: data.most.n - 1, text: String });
    const layers = count("layers", "Shown after layers L", data.most.layers, String, 1);
    const size = (name, label, text = grouped) => stops(model, name, { label, stops: () => data.stops[name], now: () => model.get(name), text });
    const length = size("length", "Tokens of a real text N"), cell = size("cell", "Tokens in a cell there");

    // ------------------------------------------------------------------ the picture
    const later = h("path", { class: "tfx-kind-later", "data-name": "later" });
    const paths = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, h("path", { class: `tfx-kind-${kind}`, "data-name": `path_${kind}` })]));
    const unseen = h("path", { class: "tfx-kind-none" });
    const column = h("rect", { class: "tfx-frame", width: 1, y: 0 });
    const asker = h("rect", { class: "tfx-frame tfx-asker", height: 1, x: 0 });
    const svg = h("svg", { class: "tfx-large tfx-seen", "aria-hidden": "true" }, unseen, later, Object.values(paths), asker, column);
    let dragging = false;
    const toPointer = (event) => {
      const box = svg.getBoundingClientRect();
      const j = Math.floor(((event.clientX - box.left) / box.width) * model.get("n"));
      save({ answer: Math.min(model.get("n") - 1, Math.max(0, j)) });
    };
    svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      dragging = true;
      svg.setPointerCapture(event.pointerId);
      toPointer(event);
    });
    svg.addEventListener("pointermove", (event) => dragging && toPointer(event));
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => (dragging = false));
    const legend = Object.entries({ ...KINDS, later: "" }).map(([kind, text]) => h("span", { class: `tfx-key tfx-kind-${kind}` }, text));
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Rows ask, columns are seen. "), legend.flatMap((key) => [key, " "]),
        h("span", { class: "tfx-note" }, "Framed: the last token's row, and the answer's column; drag it.")), svg);

    // ------------------------------------------------------------------ numbers
    const stats = {
      kept: stat("kept", "pairs in a layer", grouped),
      first_layers: stat("first_layers", "first to last", when),
      all_layers: stat("all_layers", "every pair has met", when),
      reached: stat("reached", "pairs met", grouped),
    };
    const costs = {
      real_share: stat("real_share", "of all scores", percent),
      flops: stat("flops", "scores and mix of a head", flops),
      score_bytes: stat("score_bytes", "scores, if they are kept", bytes),
      growth: stat("growth", "for twice the length", (x) => `${show(x, 2)}×`),
    };
    const links = Object.entries(data.links).map(([key, label]) => {
      const value = reading(`link[${key}]`, when), where = h("td", {}), one = h("td", {});
      return { key, value, where, one, node: h("tr", {}, h("th", { scope: "row" }, label), where, one, h("td", {}, value.node)) };
    });
    const table = h("table", { class: "tfx-table tfx-links" },
      h("caption", {}, "What the last token needs"),
      h("thead", {}, h("tr", {}, ["link", "key", "in one layer", "may arrive"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, links.map((l) => l.node)));
    const first = [controls.window, controls.global_tokens];
    const waiting = Object.values(controls).filter((c) => !first.includes(c));
    const verdict = h("p", { class: "tfx-verdict" });
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-columns tfx-even" },
        figure,
        h("div", { class: "tfx-stack" }, preset.node, first.map((c) => c.node), answer.node, layers.node, causal.node, verdict)),
      h("div", { class: "tfx-stats tfx-four tfx-worded" }, Object.values(stats).map((s) => s.node)), said.node,
      folded("Length, dilation, stride, blocks, sinks, random keys", h("div", { class: "tfx-pairs" }, waiting.map((c) => c.node)), luck),
      folded("The pattern in numbers, layer by layer", table),
      folded("The same at a real length", h("p", { class: "tfx-note" }, `At a real length the rules hold for cells of several tokens, each computed whole. One head of ${data.d_head} numbers, ${data.size} bytes a score.`),
      h("div", { class: "tfx-pairs" }, length.node, cell.node),
      h("div", { class: "tfx-stats tfx-four" }, Object.values(costs).map((s) => s.node)))));

    const square = (i, j) => `M${j} ${i}h1v1h-1z`;
    const diamond = (i, j) => `M${j + 0.5} ${i}l.5 .5l-.5 .5l-.5-.5z`;
    let priced = { key: null };
    const draw = () => {
      const c = now();
      const { n } = c;
      answer.input.max = n - 1;
      [preset, answer, layers, length, cell, causal, ...Object.values(controls)].forEach((control) => control.update());
      controls.dilation.node.hidden = c.window === "all" || c.window < 2;
      luck.hidden = !c.random_keys;
      const seen = rows(n, c);
      const after = distances(seen);
      svg.setAttribute("viewBox", `0 0 ${n} ${n}`);
      const drawn = Object.fromEntries([...Object.keys(KINDS), "later", "none"].map((kind) => [kind, ""]));
      const kinds = new Set();
      let [count, reached] = [0, 0];
      seen.forEach((row, i) => row.forEach((kind, j) => {
        if (after[i][j] <= c.layers) reached++;
        if (kind) {
          count++;
          kinds.add(kind);
          drawn[kind] += (kind === "chance" ? diamond : square)(i, j);
        } else if (after[i][j] <= c.layers) drawn.later += square(i, j);
        else if (c.causal && j > i) drawn.none += `M${j} ${i + 1}l1-1`;
      }));
      for (const [kind, path] of Object.entries(paths)) path.setAttribute("d", drawn[kind]);
      later.setAttribute("d", drawn.later);
      unseen.setAttribute("d", drawn.none);
      Object.keys(KINDS).forEach((kind, k) => (legend[k].hidden = !kinds.has(kind)));
      legend.at(-1).hidden = c.layers < 2;
      legend.at(-1).textContent = `within ${c.layers} layers`;
      for (const [key, value] of Object.entries({ x: c.answer, height: n })) column.setAttribute(key, value);
      for (const [key, value] of Object.entries({ y: n - 1, width: n })) asker.setAttribute(key, value);

      const wanted = after.flatMap((row, i) => (c.causal ? row.slice(0, i + 1) : row));
      const every = Math.max(...wanted);
      const full = c.causal ? (n * (n + 1)) / 2 : n * n;
      stats.kept.set(count);
      stats.kept.note.textContent = `${percent(count / (n * n))} of n², ${percent(count / full)} of what ${c.causal ? "a causal mask allows" : "there is"}`;
      const layered = (s, x, note) => {
        if (x === Infinity) s.clear();
        else s.set(x);
        if (x === Infinity) s.node.querySelector(".tfx-number").textContent = "never";
        s.note.textContent = note;
      };
      layered(stats.first_layers, after[n - 1][0], "the shortest chain of links");
      layered(stats.all_layers, every, c.causal ? "that a causal layer joins" : "in both directions");
      stats.reached.set(reached);
      stats.reached.note.textContent = `${percent(reached / full)}, within ${c.layers} ${plural(c.layers)}`;
      const places = { previous: [n - 1, n - 2], first: [n - 1, 0], middle: [n - 1, Math.floor(n / 2)], answer: [n - 1, c.answer], future: [0, n - 1] };
      for (const link of links) {
        link.node.hidden = link.key === "future" && c.causal;
        const [i, j] = places[link.key];
        const x = after[i][j];
        if (x === Infinity || link.node.hidden) link.value.clear();
        else link.value.set(x);
        if (x === Infinity) link.value.node.textContent = "never";
        link.where.textContent = String(j);
        link.one.textContent = x <= 1 ? "yes" : "no";
        link.node.classList.toggle("tfx-lost", x === Infinity && !link.node.hidden);
      }
      const key = [c.length, c.cell, c.seed, ...RULES.map((rule) => c[rule])].join();
      if (priced.key !== key) {
        const real = Math.floor(c.length / c.cell);
        const cells = kept(real, c);
        const pairs = cells * c.cell ** 2;
        priced = { key, pairs, real_share: cells / real ** 2, flops: 4 * data.d_head * pairs, score_bytes: data.size * pairs, growth: kept(2 * real, c) / cells };
      }
      for (const [name, s] of Object.entries(costs)) s.set(priced[name]);
      costs.real_share.note.textContent = `${grouped(priced.pairs)} scores`;
      costs.flops.note.textContent = `all would take ${flops(4 * data.d_head * c.length ** 2)}`;
      costs.score_bytes.note.textContent = `all would take ${bytes(data.size * c.length ** 2)}`;
      costs.growth.note.textContent = "2× grows with N, 4× with N²";
      const travels = after[n - 1][c.answer];
      verdict.dataset.bound = travels === Infinity ? "memory" : "";
      verdict.replaceChildren(`The answer at ${c.answer} reaches the last token `, h("strong", {}, when(travels)), ".");
      const lost = links.filter((l) => l.node.classList.contains("tfx-lost")).map((l) => data.links[l.key]);
      said.set(`${grouped(count)} of ${grouped(n * n)} pairs in a layer. The answer at ${c.answer} reaches the last token ${when(travels)}.` +
        (lost.length ? ` Never met: ${lost.join(", ")}.` : "") +
        ` At ${grouped(c.length)} tokens a head computes ${percent(priced.real_share)} of all scores.`);
    };
    return follow(model, names, draw);
  },
};
