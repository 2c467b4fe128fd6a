import { folded, follow, h, reading, show, softmax, stat, summary, titled, toggle, tokenRow } from "./shared.js";

const WIDE = 360, TALL = 150, LEVELS = [140, 84, 28]; // the picture's own units, words at the bottom
const DRAWN = 0.02; // a smaller weight is not drawn
const TIE = 1e-9, TOLD = 4; // words of the answer that are listed
const MANY = 3; // with more words than these they are counted
const quoted = (list) => (list.length > MANY ? `one of ${list.length} words alike` : list.map((word) => `“${word}”`).join(" or "));
const split = (text) => text.split(/[ \t\r\n]+/).filter(Boolean);

export default {
  render({ model, el }) {
    const data = model.get("data");
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };
    /** The same as _results in _induction.py. */
    const run = () => {
      const words = split(model.get("text"));
      const i = Math.min(model.get("token"), words.length - 1);
      const vocabulary = [...new Set(words)];
      const back = words.map((_, place) => softmax(words.slice(0, place + 1).map((_, j) => (j === place - 1 ? data.sharp : 0))));
      const mixed = (weights) => vocabulary.map((word) => weights.reduce((sum, w, j) => sum + (words[j] === word ? w : 0), 0));
      const before = back.map((weights) => (model.get("first_head") ? mixed(weights) : vocabulary.map(() => 0)));
      const own = vocabulary.indexOf(words[i]);
      const scores = before.slice(0, i + 1).map((parts, j) => data.sharp * (parts[own] - (j ? 0 : data.passed)));
      const weights = softmax(scores);
      const logits = mixed(weights).map((share) => data.sharp * share);
      const top = Math.max(...logits);
      const wanted = [...new Set(words.slice(1, i + 1).filter((_, j) => words[j] === words[i]))];
      const written = before.map((parts) => (parts.some((x) => x) ? vocabulary[parts.indexOf(Math.max(...parts))] : null));
      return { words, i, vocabulary, back, written, scores, weights, logits, probabilities: softmax(logits), answer: vocabulary.filter((_, v) => logits[v] >= top - TIE), wanted };
    };

    // ------------------------------------------------------------------ controls
    const field = h("input", { type: "text", class: "tfx-field tfx-long", autocomplete: "off", autocapitalize: "none", spellcheck: "false", "data-control": "text" });
    const advice = h("div", { class: "tfx-advice", role: "status" }); // always there, empty or not
    const read = () => {
      const words = split(field.value);
      const long = words.find((word) => word.length > data.max_letters);
      const wrong = words.length > data.max_words || Boolean(long);
      field.setAttribute("aria-invalid", String(wrong));
      advice.textContent = long ? `“${long}” has more than ${data.max_letters} letters; the figure shows the last text that fitted.`
        : wrong ? `Up to ${data.max_words} words fit here; the figure shows the last text that did.` : "";
      const text = words.join(" ");
      if (!wrong && words.length && text !== model.get("text")) save({ text, token: words.length - 1 });
    };
    field.addEventListener("input", read);
    const examples = h("div", { class: "tfx-chips" }, data.examples.map((text) =>
      h("button", { type: "button", class: "tfx-chip", "data-control": "example", onclick: () => { field.value = text; read(); } }, text)));
    const head = toggle(model, "first_head", "The head of layer 0 writes");
    const row = tokenRow("token", "The word that asks what comes next, and where the head of layer 1 looks", (token) => save({ token }), () => null);

    // ------------------------------------------------------------------ the picture
    const svg = h("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, preserveAspectRatio: "none" });
    const marks = h("div", {}), words = h("div", { class: "tfx-top" });
    const picture = h("div", { class: "tfx-circuit", "aria-hidden": "true" }, h("div", { class: "tfx-lattice" }, svg, marks), words);
    const key = (kind, text) => h("span", { class: `tfx-key ${kind}` }, text);
    const figure = h("figure", { class: "tfx-curve tfx-circuited" },
      h("figcaption", {}, h("strong", {}, "Words below, behind layer 0 in the middle, behind layer 1 above. "),
        key("tfx-first", "layer 0 writes the word before"), " ", key("", "layer 1 finds its own word there and copies")), picture);

    // ------------------------------------------------------------------ numbers
    const body = h("tbody", {});
    const table = h("table", { class: "tfx-table tfx-scanned tfx-keysof" },
      h("caption", {}, "What the head of layer 1 meets"),
      h("thead", {}, h("tr", {}, ["place", "layer 0 wrote there", "score", "weight"].map((text) => h("th", { scope: "col" }, text)))), body);
    const told = h("tbody", {});
    const answers = h("table", { class: "tfx-table tfx-scanned" }, h("caption", {}, "What it says next, with its probability"),
      h("thead", { class: "tfx-hidden" }, h("tr", {}, ["word", "", "probability"].map((text) => (text ? h("th", { scope: "col" }, text) : h("td", {}))))), told);
    const found = stat("found", "probability of what followed earlier", 3);
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-stack" }, h("div", { class: "tfx-pair-wide" }, h("label", { class: "tfx-control" }, h("span", { class: "tfx-label" }, `Up to ${data.max_words} words`), field), head.node), advice, examples),
      row.node, figure,
      h("div", { class: "tfx-columns tfx-mapside" }, answers, h("div", {}, found.node)), said.node, folded("What the head of layer 1 meets, word by word", table)));

    const line = (kind, from, to, n, w) => h("line", {
      class: `tfx-branch ${kind}`, x1: ((from[0] + 0.5) * WIDE) / n, y1: LEVELS[from[1]], x2: ((to[0] + 0.5) * WIDE) / n, y2: LEVELS[to[1]],
      "vector-effect": "non-scaling-stroke", style: { "stroke-width": (0.75 + 3 * w).toFixed(2) },
    });
    const drawPicture = ({ words: list, i, back, scores, weights, answer, written }) => {
      const n = list.length;
      const lines = [];
      const meant = (j) => scores[j] > data.sharp / 2; // its own word is written there
      if (model.get("first_head"))
        back.forEach((row, t) => row.forEach((w, j) => {
          if (w >= DRAWN) lines.push(line(`tfx-first${j < n && meant(t) && t <= i ? "" : " tfx-todo"}`, [j, 0], [t, 1], n, w));
        }));
      weights.forEach((w, j) => w >= DRAWN && lines.push(line("tfx-second", [j, 1], [i, 2], n, w)));
      svg.replaceChildren(...lines);
      const mark = (t, level, kind, text) => h("span", { class: `tfx-stop ${kind}`, style: { left: `${(100 * (t + 0.5)) / n}%`, top: `${(100 * LEVELS[level]) / TALL}%` } }, text);
      marks.replaceChildren(...list.flatMap((_, t) => [mark(t, 0, ""), mark(t, 1, written[t] && t <= i && meant(t) ? "tfx-on" : "")]), mark(i, 2, "tfx-on"),
        h("span", { class: i > n / 2 ? "tfx-says tfx-leftward" : "tfx-says", style: { left: `${(100 * (i + 0.5)) / n}%`, top: `${(100 * LEVELS[2]) / TALL}%` } }, answer.length > MANY ? "many alike" : answer.join(" or ")));
      words.style.setProperty("--columns", n);
      words.replaceChildren(...list.map((word, t) => h("span", { class: t === i ? "tfx-named" : "" }, word)));
    };

    let shown = null;
    const draw = () => {
      const now = run();
      const { words: list, i, vocabulary, written, scores, weights, probabilities, answer, wanted } = now;
      head.update();
      if (field !== field.getRootNode().activeElement && split(field.value).join(" ") !== list.join(" ")) field.value = list.join(" ");
      if (shown !== list.join(" ")) row.fill(list);
      shown = list.join(" ");
      row.draw({ checked: i, followed: i, weights: list.map((_, j) => weights[j] ?? 0) });
      drawPicture(now);
      const cell = (name, x, digits) => {
        const r = reading(name, digits);
        r.set(x);
        return h("td", {}, r.node);
      };
      body.replaceChildren(...list.map((word, j) => h("tr", { class: j > i ? "tfx-later" : scores[j] > data.sharp / 2 ? "tfx-best" : "" },
        h("th", { scope: "row" }, `${j} ${word}`), h("td", { "data-name": `before[${j}]` }, written[j] === null ? "nothing" : written[j]),
        ...(j > i ? [h("td", {}, "later"), h("td", {}, "–")] : [cell(`score[${j}]`, scores[j], 0), cell(`key_weight[${j}]`, weights[j], 2)]))));
      const order = vocabulary.map((_, v) => v).sort((a, b) => probabilities[b] - probabilities[a]).slice(0, TOLD);
      told.replaceChildren(...order.map((v) => h("tr", { class: answer.includes(vocabulary[v]) ? "tfx-best" : "" },
        h("th", { scope: "row" }, vocabulary[v]), h("td", { class: "tfx-wide" }, h("span", { class: "tfx-track" }, h("span", { class: "tfx-bar", style: { width: `${100 * probabilities[v]}%` } }))),
        cell(`probability[${vocabulary[v]}]`, probabilities[v], 3))));
      found.set(vocabulary.reduce((sum, word, v) => sum + (wanted.includes(word) ? probabilities[v] : 0), 0));
      found.note.textContent = wanted.length ? quoted(wanted) : "no earlier copy";
      const best = weights.map((w, j) => [w, j]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([, j]) => scores[j] > data.sharp / 2);
      const where = best.length ? `looks at ${best.map(([w, j]) => `“${list[j]}” at ${j} (${show(w, 2)})`).join(", ")}` : i ? "finds its word written nowhere, looks at all places after the first alike," : "has only itself to look at";
      said.set(`At “${list[i]}” (${i}) the head of layer 1 ${where} and the model says ${quoted(answer)}. ` +
        (!wanted.length ? `“${list[i]}” stands here for the first time, so there is nothing to copy.` :
          `Earlier, “${list[i]}” was followed by ${quoted(wanted)}` + (answer.every((word) => wanted.includes(word)) ? "." : ": that is missed.")));
    };
    field.value = model.get("text");
    return follow(model, ["text", "token", "first_head"], draw);
  },
};
