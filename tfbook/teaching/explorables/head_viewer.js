import { called, choice, follow, h, options, reading, show, slider, stat, summary, titled, tokenRow, unpackWeights } from "./shared.js";
import { shades, visible } from "./shades.js";
import { fetchWeights, handedOver } from "./workers.js";

const LEVELS = 10; // shades of a map
const MANY = 32; // with more heads than these only those of one layer are drawn, and all in an overview

/** The same numbers as head_stats in _heads.py. */
function statistics(rows, tokens) {
  const queries = rows.map((_, i) => i).slice(1);
  const mean = (list) => (list.length ? list.reduce((a, b) => a + b, 0) / list.length : null);
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const followers = queries.map((i) => [i, tokens.slice(0, i - 1).flatMap((t, j) => (t === tokens[i] ? [j + 1] : []))])
    .filter(([, places]) => places.length);
  return {
    self: mean(queries.map((i) => rows[i][i])),
    previous: mean(queries.map((i) => rows[i][i - 1])),
    first: mean(queries.map((i) => rows[i][0])),
    next: mean(queries.slice(0, -1).map((i) => rows[i][i + 1])),
    last: mean(queries.slice(0, -1).map((i) => rows[i].at(-1))),
    after_copy: mean(followers.map(([i, places]) => sum(places.map((j) => rows[i][j])))),
    distance: mean(queries.map((i) => sum(rows[i].map((w, j) => w * Math.abs(i - j))))),
    entropy: Math.max(0, mean(queries.map((i) => -sum(rows[i].map((w) => (w > 0 ? w * Math.log(w) : 0)))))),
  };
}

/** Rows of one head out of bytes, as rows_of in _pretrained.py reads them: 255 √w each. */
function rowsOfBytes({ n_layers, n_heads, texts, script: { causal } }, bytes) {
  const sizes = texts.map(({ tokens: { length: n } }) => (causal ? (n * (n + 1)) / 2 : n * n));
  const starts = sizes.map((_, t) => sizes.slice(0, t).reduce((sum, size) => sum + size * n_layers * n_heads, 0));
  return (text, layer, head) => {
    const n = texts[text].tokens.length;
    let at = starts[text] + (layer * n_heads + head) * sizes[text];
    return Array.from({ length: n }, (_, i) => {
      const squares = Array.from({ length: n }, (_, j) => (causal && j > i ? 0 : bytes[at++] ** 2));
      const total = squares.reduce((a, b) => a + b, 0);
      return squares.map((s) => s / total);
    });
  };
}

/** A card that asks before it loads; `open(rowsOf)` then draws in its place. */
function askFirst({ model, el }, open) {
  const data = model.get("data");
  const { name, size } = data.script;
  let end = null, ended = false;
  const load = async () => {
    if (ask.getAttribute("aria-disabled") === "true") return;
    ask.setAttribute("aria-disabled", "true");
    ask.textContent = "Loading …";
    try {
      if (!model.get("asked")) {
        model.set("asked", true);
        model.save_changes();
      }
      const codes = window.tfbookModules?.head_viewer ? await fetchWeights("head_viewer", name) : await handedOver(model);
      if (ended) return;
      const focused = ask.getRootNode().activeElement === ask;
      const rowsOf = rowsOfBytes(data, Uint8Array.from(atob(codes), (c) => c.charCodeAt(0)));
      el.replaceChildren();
      end = open(rowsOf);
      if (focused) el.querySelector("select").focus();
    } catch (error) {
      ask.removeAttribute("aria-disabled");
      ask.textContent = "The weights did not load. Try again";
      console.warn("head viewer", error.message);
    }
  };
  const ask = h("button", { type: "button", class: "tfx-button", "data-control": "ask", onclick: load }, `Load the weights (${show(size / 1e6, 1)} MB)`);
  const text = data.texts[model.get("text")];
  el.classList.add("tfx");
  el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
    titled(data.title),
    h("p", {}, `${data.n_layers} layers of ${data.n_heads} heads on ${data.texts.length} sentences, computed beforehand. It begins with “${text.title}”, head ${model.get("layer")}.${model.get("head")}.`), ask));
  if (model.get("asked")) load();
  return () => {
    ended = true;
    end?.();
  };
}

export default {
  render({ model, el }) {
    return model.get("data").script ? askFirst({ model, el }, (rowsOf) => view({ model, el, rowsOf })) : view({ model, el });
  },
};

function view({ model, el, rowsOf: given }) {
  const data = model.get("data");
  const unpacked = new Map();
  /** Rows of one head on one text. */
  const rowsOf = given ?? ((text, layer, head) => {
    const { tokens, weights } = data.texts[text];
    if (!unpacked.has(text)) unpacked.set(text, unpackWeights(weights));
    const at = (layer * data.n_heads + head) * tokens.length;
    return unpacked.get(text).slice(at, at + tokens.length);
  });

  let pointed = null;
  const now = () => {
    const [text, layer, head, direction] = ["text", "layer", "head", "direction"].map((k) => model.get(k));
    const { tokens } = data.texts[text];
    const kept = Math.min(model.get("token"), tokens.length - 1);
    const at = pointed === null ? kept : Math.min(pointed, tokens.length - 1);
    const rows = rowsOf(text, layer, head);
    const from = direction === "from";
    return { text, layer, head, tokens, kept, at, rows, from, weights: from ? rows[at] : rows.map((r) => r[at]) };
  };
  const set = (values) => {
    for (const [key, value] of Object.entries(values)) model.set(key, value);
    model.save_changes();
  };
  const pick = (token) => {
    pointed = null;
    set({ token });
  };
  const point = (token) => {
    if (token === pointed) return;
    pointed = token;
    drawToken();
  };

  // ------------------------------------------------------------------ all heads, small
  const many = data.n_layers * data.n_heads > MANY;
  const layer = slider(model, "layer", { label: "Layer", min: 0, max: data.n_layers - 1, text: String });
  layer.node.hidden = !many;
  const minis = Array.from({ length: (many ? 1 : data.n_layers) * data.n_heads }, (_, c) => {
    const head = c % data.n_heads;
    const at = () => (many ? model.get("layer") : Math.floor(c / data.n_heads));
    const input = h("input", { type: "radio", name: "head", "data-control": "head", onchange: () => set({ layer: at(), head }) });
    const picture = h("svg", { "aria-hidden": "true" });
    const name = h("span", {});
    const update = () => {
      input.value = name.textContent = `${at()}.${head}`;
      input.checked = at() === model.get("layer") && head === model.get("head");
    };
    return { at, head, update, picture, node: h("label", { class: "tfx-option tfx-mini" }, input,
      h("span", {}, picture, h("span", {}, h("span", { class: "tfx-hidden" }, "head "), name))) };
  });
  const line = Math.ceil(data.n_heads / Math.ceil(data.n_heads / 6)); // at most six side by side
  const rowsOfMinis = Array.from({ length: minis.length / data.n_heads }, (_, l) => minis.slice(l * data.n_heads, (l + 1) * data.n_heads));
  const heads = h("form", { class: "tfx-control", onsubmit: (e) => e.preventDefault() },
    h("fieldset", { class: "tfx-options tfx-heads" }, h("legend", { class: "tfx-label" }, many ? "Heads of this layer" : "Layer and head"),
      rowsOfMinis.map((row) => h("div", { style: { "--line": line } }, row.map((m) => m.node)))));

  // ------------------------------------------------------------------ all heads, one number each
  let counted = "first";
  const facts = new Map(); // text → statistics of every head
  const factsOf = (text) => {
    if (!facts.has(text)) {
      const { tokens } = data.texts[text];
      facts.set(text, Array.from({ length: data.n_layers * data.n_heads }, (_, c) =>
        statistics(rowsOf(text, Math.floor(c / data.n_heads), c % data.n_heads), tokens)));
    }
    return facts.get(text);
  };
  const own = { get: () => counted, set: (_, value) => (counted = value), save_changes: () => drawOverview() };
  const counts = options(own, "counted", "Every head: its mean weight on", data.shares);
  const tiles = Array.from({ length: data.n_layers * data.n_heads }, (_, c) =>
    h("rect", { class: "tfx-shade", x: c % data.n_heads, y: Math.floor(c / data.n_heads), width: 0.94, height: 0.9, "data-name": `overview[${c}]` }));
  const chosenTile = h("rect", { class: "tfx-here", width: 0.94, height: 0.9 });
  const grid = h("svg", {
    class: "tfx-overview", viewBox: `0 0 ${data.n_heads} ${data.n_layers}`, preserveAspectRatio: "none", "aria-hidden": "true",
    style: { "--layers": data.n_layers },
    onclick: (e) => {
      const box = grid.getBoundingClientRect();
      const cell = (share, n) => Math.max(0, Math.min(n - 1, Math.floor(share * n)));
      set({ layer: cell((e.clientY - box.top) / box.height, data.n_layers), head: cell((e.clientX - box.left) / box.width, data.n_heads) });
    },
  }, tiles, chosenTile);
  const most = h("p", { class: "tfx-note" });
  const overview = h("div", { class: "tfx-stack" }, counts.node, grid,
    h("p", { class: "tfx-ends", "aria-hidden": "true" }, h("span", {}, `rows: layers 0 to ${data.n_layers - 1}`), h("span", {}, `columns: heads 0 to ${data.n_heads - 1}`)), most);
  overview.hidden = !many;
  const drawOverview = () => {
    if (!many) return;
    counts.update();
    const found = factsOf(model.get("text")).map((f) => f[counted] ?? 0);
    tiles.forEach((tile, c) => {
      tile.style.setProperty("--heat", `${(100 * found[c]).toFixed(1)}%`);
      tile.dataset.value = found[c];
    });
    chosenTile.setAttribute("x", model.get("head"));
    chosenTile.setAttribute("y", model.get("layer"));
    const best = found.map((x, c) => [x, c]).sort((a, b) => b[0] - a[0]).slice(0, 3)
      .map(([x, c]) => `${Math.floor(c / data.n_heads)}.${c % data.n_heads} (${show(x, 2)})`);
    most.textContent = `More than half of it: ${found.filter((x) => x > 0.5).length} of ${found.length} heads. Most of all: ${best.join(", ")}.`;
  };

  // ------------------------------------------------------------------ one head, large
  const text = choice(model, "text", "Text", data.texts.map((t) => t.title));
  text.node.hidden = data.texts.length < 2;
  const direction = options(model, "direction", "Show", [["from", "where a token looks"], ["to", "who looks at it"]], { hidden: true });
  const shadesOf = h("g", {});
  const bar = h("rect", { class: "tfx-frame" });
  const large = h("svg", { class: "tfx-large tfx-headmap", "aria-hidden": "true" }, shadesOf, bar);
  const under = (event) => {
    const box = large.getBoundingClientRect();
    const share = model.get("direction") === "from" ? (event.clientY - box.top) / box.height : (event.clientX - box.left) / box.width;
    return Math.max(0, Math.min(now().tokens.length - 1, Math.floor(share * now().tokens.length)));
  };
  large.addEventListener("pointermove", (e) => e.pointerType === "mouse" && point(under(e)));
  large.addEventListener("pointerleave", () => point(null));
  large.addEventListener("click", (e) => pick(under(e)));
  const row = tokenRow("token", "Token that is followed", pick, point);
  const shares = data.shares.map(([key, label]) => {
    const value = reading(key, 3);
    const fill = h("span", { class: "tfx-bar" });
    return { key, value, fill, node: h("tr", {}, h("th", { scope: "row" }, label),
      h("td", { class: "tfx-wide" }, h("span", { class: "tfx-track" }, fill)), h("td", {}, value.node)) };
  });
  const table = h("table", { class: "tfx-table tfx-shares" },
    h("caption", {}, "Mean weight that a query puts on"), h("tbody", {}, shares.map((s) => s.node)));
  const distance = stat("distance", "mean distance", 2);
  const entropy = stat("entropy", "mean entropy", 3);
  distance.note.textContent = "tokens";
  const legend = h("p", { class: "tfx-note tfx-legend" }, "Filled by the root of the weight: ",
    [0.01, 0.1, 0.5, 1].map((w) => h("span", { class: "tfx-token", style: { "--heat": `${100 * visible(w)}%` } }, String(w))));
  const name = h("p", { class: "tfx-label" });
  const said = summary();
  el.classList.add("tfx");
  el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
    titled(data.title), h("div", { class: "tfx-abreast" }, text.node, direction.node),
    h("div", { class: "tfx-columns tfx-mapside" },
      h("div", { class: "tfx-stack" }, layer.node, heads, table),
      h("div", { class: "tfx-stack" }, h("div", {}, name, large, h("p", { class: "tfx-ends tfx-under-map", "aria-hidden": "true" }, h("span", {}, "rows: queries"), h("span", {}, "columns: keys"))),
        h("div", { class: "tfx-stats tfx-two" }, distance.node, entropy.node))),
    overview, row.node, legend, said.node));

  // ------------------------------------------------------------------ drawing
  let shownText = null, shownHead = null, shownMinis = null;
  const drawToken = () => {
    const a = now();
    row.draw({ checked: a.kept, followed: a.at, weights: a.weights, share: visible });
    const n = a.tokens.length;
    const place = a.from ? { x: 0, y: a.at, width: n, height: 1 } : { x: a.at, y: 0, width: 1, height: n };
    for (const [key, value] of Object.entries(place)) bar.setAttribute(key, value);
    const best = a.weights.map((w, j) => [w, j]).sort((x, y) => y[0] - x[0]).slice(0, 3).filter(([w]) => w >= 0.005);
    const list = best.map(([w, j]) => `${called(a.tokens[j])} at ${j} (${show(w, 2)})`).join(", ");
    const who = `${called(a.tokens[a.at])} at ${a.at}`;
    said.set(`Head ${a.layer}.${a.head}: ${a.from ? `${who} looks at ${list}` : `${who} is looked at by ${list || "no token"}`}.`);
  };
  const draw = () => {
    const a = now();
    const n = a.tokens.length;
    [text, direction, layer, ...minis].forEach((c) => c.update());
    if (shownText !== a.text) {
      shownText = a.text;
      pointed = null;
      row.fill(a.tokens);
      large.setAttribute("viewBox", `0 0 ${n} ${n}`);
    }
    const drawn = `${a.text} ${many ? a.layer : ""}`;
    if (drawn !== shownMinis) {
      shownMinis = drawn;
      minis.forEach((m) => {
        m.picture.setAttribute("viewBox", `0 0 ${n} ${n}`);
        m.picture.replaceChildren(...shades(rowsOf(a.text, m.at(), m.head), LEVELS));
      });
    }
    const key = `${a.text} ${a.layer} ${a.head}`;
    if (key !== shownHead) {
      shownHead = key;
      shadesOf.replaceChildren(...shades(a.rows, LEVELS));
      name.textContent = `Layer ${a.layer}, head ${a.head}`;
      const facts = statistics(a.rows, a.tokens);
      drawOverview();
      shares.forEach((s) => {
        const known = facts[s.key] !== null;
        s.node.classList.toggle("tfx-out", !known);
        if (known) s.value.set(facts[s.key]);
        else s.value.clear();
        s.fill.style.width = `${100 * (facts[s.key] || 0)}%`;
      });
      distance.set(facts.distance);
      entropy.set(facts.entropy);
      entropy.note.textContent = `nats, as if spread over ${show(Math.exp(facts.entropy), 1)}`;
    }
    drawToken();
  };
  return follow(model, ["text", "layer", "head", "token", "direction"], draw);
}
