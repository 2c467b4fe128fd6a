import { called, choice, follow, h, options, reading, show, stat, summary, tokenRow, unpackWeights } from "./shared.js";

const LEVELS = 10; // shades of a map
const visible = Math.sqrt; // how strongly a weight is filled: 0.01 shall be seen

/** One path for each shade, made of runs of cells: far fewer nodes than a rectangle for each cell. */
function shades(rows) {
  const paths = Array.from({ length: LEVELS + 1 }, () => []);
  rows.forEach((row, i) => {
    for (let j = 0; j < row.length; ) {
      const level = Math.round(LEVELS * visible(row[j]));
      let end = j + 1;
      while (end < row.length && Math.round(LEVELS * visible(row[end])) === level) end++;
      paths[level].push(`M${j} ${i}h${end - j}v1h${j - end}z`);
      j = end;
    }
  });
  return paths.map((d, level) => level && d.length
    ? h("path", { d: d.join(""), class: "tfx-shade", style: { "--heat": `${(100 * level) / LEVELS}%` } }) : null).filter(Boolean);
}

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
    after_copy: mean(followers.map(([i, places]) => sum(places.map((j) => rows[i][j])))),
    distance: mean(queries.map((i) => sum(rows[i].map((w, j) => w * Math.abs(i - j))))),
    entropy: Math.max(0, mean(queries.map((i) => -sum(rows[i].map((w) => (w > 0 ? w * Math.log(w) : 0)))))),
  };
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const unpacked = new Map();
    /** Rows of one head on one text. */
    const rowsOf = (text, layer, head) => {
      const { tokens, weights } = data.texts[text];
      if (!unpacked.has(text)) unpacked.set(text, unpackWeights(weights));
      const at = (layer * data.n_heads + head) * tokens.length;
      return unpacked.get(text).slice(at, at + tokens.length);
    };

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
    const minis = Array.from({ length: data.n_layers * data.n_heads }, (_, c) => {
      const [layer, head] = [Math.floor(c / data.n_heads), c % data.n_heads];
      const input = h("input", {
        type: "radio", name: "head", value: `${layer}.${head}`, "data-control": "head", onchange: () => set({ layer, head }),
      });
      const picture = h("svg", { "aria-hidden": "true" });
      return { layer, head, input, picture, node: h("label", { class: "tfx-option tfx-mini" }, input,
        h("span", {}, picture, h("span", {}, h("span", { class: "tfx-hidden" }, "head "), `${layer}.${head}`))) };
    });
    const line = Math.ceil(data.n_heads / Math.ceil(data.n_heads / 6)); // at most six side by side
    const heads = h("form", { class: "tfx-control", onsubmit: (e) => e.preventDefault() },
      h("fieldset", { class: "tfx-options tfx-heads" }, h("legend", { class: "tfx-label" }, "Layer and head"),
        Array.from({ length: data.n_layers }, (_, l) => h("div", { style: { "--line": line } }, minis.filter((m) => m.layer === l).map((m) => m.node)))));

    // ------------------------------------------------------------------ one head, large
    const text = choice(model, "text", "Text", data.texts.map((t) => t.title));
    text.node.hidden = data.texts.length < 2;
    const direction = options(model, "direction", "Show", [["from", "where a token looks"], ["to", "who looks at it"]], { hidden: true });
    const shadesOf = h("g", {});
    const bar = h("rect", { class: "tfx-frame" });
    const large = h("svg", { class: "tfx-large", "aria-hidden": "true" }, shadesOf, bar);
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
    el.append(h("section", { class: "tfx-card", "aria-label": data.title },
      h("p", { class: "tfx-title" }, data.title), text.node,
      h("div", { class: "tfx-columns tfx-even" },
        h("div", { class: "tfx-stack" }, heads, h("div", { class: "tfx-stats tfx-two" }, distance.node, entropy.node)),
        h("div", {}, name, large, h("p", { class: "tfx-ends", "aria-hidden": "true" }, h("span", {}, "rows: queries"), h("span", {}, "columns: keys")))),
      table, direction.node, row.node, legend, said.node));

    // ------------------------------------------------------------------ drawing
    let shownText = null, shownHead = null;
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
      [text, direction].forEach((c) => c.update());
      if (shownText !== a.text) {
        shownText = a.text;
        pointed = null;
        row.fill(a.tokens);
        minis.forEach((m) => {
          m.picture.setAttribute("viewBox", `0 0 ${n} ${n}`);
          m.picture.replaceChildren(...shades(rowsOf(a.text, m.layer, m.head)));
        });
        large.setAttribute("viewBox", `0 0 ${n} ${n}`);
      }
      minis.forEach((m) => (m.input.checked = m.layer === a.layer && m.head === a.head));
      const key = `${a.text} ${a.layer} ${a.head}`;
      if (key !== shownHead) {
        shownHead = key;
        shadesOf.replaceChildren(...shades(a.rows));
        name.textContent = `Layer ${a.layer}, head ${a.head}`;
        const facts = statistics(a.rows, a.tokens);
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
  },
};
