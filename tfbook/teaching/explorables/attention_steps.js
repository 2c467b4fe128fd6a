import { cells, dot, follow, h, options, reading, show, slider, softmax, summary, titled, toggle } from "./shared.js";

const splitWords = (sentence) => sentence.toLowerCase().match(/[^\s.,;:!?"“”()]+/g) || [];

/** Fewest letters to insert, delete, replace or swap to turn one word into the other. */
function distance(a, b) {
  const rows = [Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    rows.push([i]);
    for (let j = 1; j <= b.length; j++) {
      const change = a[i - 1] === b[j - 1] ? 0 : 1;
      let d = Math.min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + change);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) d = Math.min(d, rows[i - 2][j - 2] + 1);
      rows[i].push(d);
    }
  }
  return rows[a.length][b.length];
}

function unpack({ words, vectors, steps_per_unit }) {
  const names = words.split(" ");
  const bytes = Int8Array.from(atob(vectors), (c) => c.charCodeAt(0));
  const d = bytes.length / names.length;
  return new Map(names.map((w, i) => [w, Array.from(bytes.subarray(i * d, (i + 1) * d), (x) => x / steps_per_unit)]));
}

const EXAMPLES = [
  "the boat was near the river bank",
  "she paid the money to the bank",
  "the dog chased the cat because it was hungry",
];

export default {
  render({ model, el }) {
    const data = model.get("data");
    const vocabulary = unpack(data);

    // ------------------------------------------------------------------ the computation
    const attend = () => {
      const [mode, causal, padding] = ["mode", "causal", "padding"].map((k) => model.get(k));
      const example = mode === "example";
      const names = example ? data.tokens : splitWords(model.get("sentence"));
      const x = example ? null : names.map((w) => vocabulary.get(w));
      const q = example ? [model.get("query")] : x;
      const d = q[0].length;
      const pads = padding === "none" ? 0 : data.n_pads;
      const zeros = Array.from({ length: pads }, () => new Array(d).fill(0));
      const k = [...(example ? data.keys : x), ...zeros];
      const v = [...(example ? data.values : x), ...zeros];
      const row = Math.min(model.get("row"), names.length - 1);
      const place = (i) => (example ? row : i); // where query i stands
      const allowed = (i, j) => (!causal || j <= place(i)) && (padding !== "masked" || j < names.length);
      const scores = q.map((a) => k.map((b) => dot(a, b)));
      const scaled = scores.map((line) => line.map((s) => s / Math.sqrt(d)));
      const masked = scaled.map((line, i) => line.map((s, j) => (allowed(i, j) ? s : -Infinity)));
      const weights = masked.map(softmax);
      const at = example ? 0 : row;
      const output = v[0].map((_, c) => weights[at].reduce((sum, w, j) => sum + w * v[j][c], 0));
      return { example, names, tokens: [...names, ...zeros.map(() => data.pad)], d, q, k, v, row, at, scores, scaled, masked, weights, output };
    };

    // ------------------------------------------------------------------ controls
    const mode = options(model, "mode", "Show", [["example", "worked example"], ["sentence", "your sentence"]], { hidden: true });
    const causal = toggle(model, "causal", "Causal mask");
    const padding = options(model, "padding", `Padding of ${data.n_pads} tokens`,
      [["none", "none"], ["masked", "masked"], ["unmasked", "not masked"]]);
    const query = data.features.map((f, i) =>
      slider(model, "query", { label: f, min: -2, max: 2, step: 0.1, index: i, read: (x) => Math.round(10 * x) / 10 }));
    const asked = h("div", {}, h("p", { class: "tfx-label" }, "The query, what is asked for"),
      h("div", { class: "tfx-pairs" }, query.map((s) => s.node)));

    const field = h("input", {
      type: "text", class: "tfx-field tfx-long", autocomplete: "off", autocapitalize: "none", spellcheck: "false",
      "data-control": "sentence",
    });
    const advice = h("div", { class: "tfx-advice", role: "status" }); // always there, empty or not
    const write = (text) => {
      model.set("sentence", text);
      model.save_changes();
    };
    const near = (word) => [...vocabulary.keys()]
      .map((w) => [distance(word, w) + (w[0] === word[0] ? 0 : 0.5), w])
      .sort((a, b) => a[0] - b[0]).slice(0, 3).map((pair) => pair[1]);
    const read = () => {
      const words = splitWords(field.value);
      const unknown = words.find((w) => !vocabulary.has(w));
      field.setAttribute("aria-invalid", String(Boolean(unknown) || words.length > data.max_tokens));
      if (words.length > data.max_tokens) {
        advice.replaceChildren(`Up to ${data.max_tokens} words fit here; the figure shows the last sentence that did.`);
      } else if (unknown) {
        const replace = (w) => h("button", {
          type: "button", class: "tfx-chip",
          onclick: () => {
            field.value = words.map((old) => (old === unknown ? w : old)).join(" ");
            read();
            field.focus();
          },
        }, w);
        advice.replaceChildren(`Sorry, “${unknown}” is not among the ${vocabulary.size} words here. Perhaps: `,
          ...near(unknown).map(replace));
      } else {
        advice.replaceChildren();
        if (words.length) write(words.join(" "));
      }
    };
    field.addEventListener("input", read);
    const list = h("details", { class: "tfx-words" }, h("summary", {}, `All ${vocabulary.size} words`),
      h("p", {}, [...vocabulary.keys()].sort().join(" ")));
    const writing = h("div", { class: "tfx-stack" },
      h("label", { class: "tfx-control" }, h("span", { class: "tfx-label" }, `A sentence of up to ${data.max_tokens} words`), field),
      advice,
      h("div", { class: "tfx-chips" }, EXAMPLES.map((text) =>
        h("button", { type: "button", class: "tfx-chip", onclick: () => { field.value = text; read(); } }, text))),
      list);
    const followed = h("div", {}); // rebuilt when the tokens change

    // ------------------------------------------------------------------ places for numbers
    const body = h("div", { class: "tfx-steps" });
    const map = h("div", {});
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title), mode.node, asked, writing,
      h("div", { class: "tfx-pair-wide" }, causal.node, padding.node), followed, map, body, said.node));

    let chosen = null;
    let shownTokens = "";
    const drawFollowed = (a) => {
      const key = `${a.example}|${a.names.join(" ")}`;
      if (key !== shownTokens) {
        shownTokens = key;
        chosen = options(model, "row", a.example ? "The query stands at (the causal mask looks here)" : "Follow the query of",
          a.names.map((t, i) => [i, t]), { shown: () => attend().row });
        followed.replaceChildren(chosen.node);
      }
      followed.hidden = a.example && !model.get("causal");
      chosen.update();
    };

    const heat = (w) => ({ "--heat": `${(100 * w).toFixed(1)}%` });
    const drawMap = (a) => {
      map.hidden = a.example;
      if (a.example) return map.replaceChildren();
      const head = h("tr", {}, h("td", {}), a.tokens.map((t) => h("th", { scope: "col" }, h("span", {}, t))));
      const lines = a.weights.map((line, i) =>
        h("tr", { class: i === a.row ? "tfx-chosen" : null, onclick: () => { model.set("row", i); model.save_changes(); } },
          h("th", { scope: "row" }, a.tokens[i]),
          line.map((w, j) => {
            const out = a.masked[i][j] === -Infinity;
            return h("td", {
              class: out ? "tfx-cell tfx-masked" : "tfx-cell", style: heat(w), "data-name": `weights[${i}][${j}]`, "data-value": String(w),
            }, out ? h("span", { class: "tfx-hidden" }, "masked") : h("span", {}, show(w, 2).replace(/^0/, "")));
          })));
      map.replaceChildren(h("table", { class: "tfx-map" },
        h("caption", {}, "Who attends to whom: each row is one query’s weights"), h("thead", {}, head), h("tbody", {}, lines)));
    };

    const vectorCells = (numbers, name, a, reach) => a.example
      ? cells(numbers, { name, digits: 1, reach })
      : cells(numbers, { name, reach: 2, label: `vector of ${numbers.length} numbers` });
    const value = (name, x, digits) => {
      const r = reading(name, digits);
      r.set(x);
      return r.node;
    };
    const table = (title, heads, columns, rows, foot) => h("table", { class: "tfx-table tfx-step" },
      h("caption", {}, title),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "token"), heads.map((t, i) => h("th", { scope: "col", colspan: i === heads.length - 1 ? columns - i : null }, t)))),
      h("tbody", {}, rows), foot && h("tfoot", {}, foot));
    const features = (what) => h("span", {}, h("span", { class: "tfx-hidden" }, `${what}: ${data.features.join(", ")}`),
      h("span", { class: "tfx-features", "aria-hidden": "true" }, data.features.map((f) => h("span", {}, f.slice(0, 3)))));

    const drawSteps = (a) => {
      const lines = (cellsOf) => a.tokens.map((t, j) => h("tr", { class: a.masked[a.at][j] === -Infinity ? "tfx-out" : null },
        h("th", { scope: "row" }, t), cellsOf(j).map((c) => h("td", { class: c.classList.contains("tfx-track") ? "tfx-wide" : null }, c))));
      const bar = (w) => h("span", { class: "tfx-track" }, h("span", { class: "tfx-bar", style: { width: `${100 * w}%` } }));
      body.replaceChildren(
        table("1 · Compare", [a.example ? features("key") : "key", "q · k"], 2, lines((j) =>
          [vectorCells(a.k[j], null, a, 1), value(`score[${j}]`, a.scores[a.at][j], 2)])),
        table("2 · Scale, mask", [`÷ √${a.d}`, "masked"], 2, lines((j) =>
          [value(`scaled[${j}]`, a.scaled[a.at][j], 2), value(`masked[${j}]`, a.masked[a.at][j], 2)])),
        table("3 · Softmax", ["weight"], 2, lines((j) =>
          [bar(a.weights[a.at][j]), value(`weight[${j}]`, a.weights[a.at][j], 3)])),
        table("4 · Mix values", [a.example ? features("value") : "value"], 1, lines((j) => [vectorCells(a.v[j], null, a, 1)]),
          h("tr", {}, h("th", { scope: "row" }, "output"), h("td", {}, a.example
            ? cells(a.output, { name: "output", digits: 2, reach: 1 })
            : cells(a.output, { name: "output", reach: 2, label: `output, ${a.d} numbers` })))));
    };

    const cosine = (a, b) => dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);
    const draw = () => {
      const a = attend();
      [mode, causal, padding, ...query].forEach((c) => c.update());
      asked.hidden = !a.example;
      writing.hidden = a.example;
      el.classList.toggle("tfx-sentence", !a.example);
      if (splitWords(field.value).join(" ") !== a.names.join(" ") && field !== field.getRootNode().activeElement) field.value = model.get("sentence");
      drawFollowed(a);
      drawMap(a);
      drawSteps(a);
      const w = a.weights[a.at];
      const best = w.indexOf(Math.max(...w));
      const top = `the largest weight, ${show(w[best], 3)}, goes to “${a.tokens[best]}”`;
      if (a.example) {
        said.set(`${top[0].toUpperCase()}${top.slice(1)}. The output is ${data.features.map((f, i) => `${f} ${show(a.output[i], 3)}`).join(", ")}.`);
      } else {
        const close = [...vocabulary].map(([word, x]) => [cosine(a.output, x), word]).sort((x, y) => y[0] - x[0]).slice(0, 4);
        said.set(`For “${a.names[a.row]}” ${top}. The words closest to the output: ${close.map(([c, word]) => `${word} (${show(c, 2)})`).join(", ")}.`);
      }
    };
    field.value = model.get("sentence");
    return follow(model, ["mode", "query", "sentence", "row", "causal", "padding"], draw);
  },
};
