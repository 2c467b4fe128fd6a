import { choice, folded, follow, h, show, stat, summary, titled, tokenRow, unpackWeights } from "./shared.js";

/** The target word with the clearest source word, both with letters enough: as telling_word in _alignment.py. */
function telling({ source, target }, grid) {
  const word = (text) => /^\s*\p{L}{4,}\s*$/u.test(text);
  let [best, most] = [0, 0];
  grid.forEach((row, t) => {
    const top = Math.max(...row);
    if (top > most && word(target[t]) && word(source[row.indexOf(top)])) [best, most] = [t, top];
  });
  return best;
}

const CROWDED = 16; // so many source words leave no room for numbers in the matrix

export default {
  render({ model, el }) {
    const data = model.get("data");
    const grids = data.pairs.map((pair) => unpackWeights(pair.weights)); // target words, then source words

    // ------------------------------------------------------------------ what is followed
    let pointed = null; // by a mouse, for as long as it rests there
    const now = () => {
      const chosen = model.get("chosen");
      const [pair, grid] = [data.pairs[chosen], grids[chosen]];
      const kept = { side: model.get("side"), word: Math.min(model.get("word"), pair[model.get("side")].length - 1) };
      const at = pointed || kept;
      const forward = at.side === "target";
      const weights = forward ? grid[at.word] : grid.map((row) => row[at.word]);
      return { chosen, pair, grid, kept, ...at, forward, weights };
    };
    const pick = (side) => (word) => {
      pointed = null;
      model.set("side", side);
      model.set("word", word);
      model.save_changes();
    };
    const point = (side) => (word) => {
      pointed = word === null ? null : { side, word };
      draw();
    };

    // ------------------------------------------------------------------ parts
    // Another sentence is read from a word that says something, not from where the last one was left.
    const sentence = choice({
      get: (key) => model.get(key),
      set: (_, chosen) => {
        for (const [key, value] of [["side", "target"], ["word", telling(data.pairs[chosen], grids[chosen])], ["chosen", chosen]]) model.set(key, value);
      },
      save_changes: () => model.save_changes(),
    }, "chosen", "Sentence",
      data.pairs.map((p, i) => `${i + 1} · ${p.source.join(" ")}`));
    const rows = {
      source: tokenRow("source", "Source", pick("source"), point("source")),
      target: tokenRow("target", "Target", pick("target"), point("target")),
    };
    const threads = h("svg", { "aria-hidden": "true" });
    const weave = h("div", { class: "tfx-weave tfx-upright" }, threads, rows.source.node, rows.target.node);
    const reference = h("p", { class: "tfx-note" });
    const map = h("div", { class: "tfx-scroll" });
    const largest = stat("largest", "largest weight", 3);
    const total = stat("total", "sum of weights", 2);
    const entropy = stat("entropy", "entropy", 3);
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title), sentence.node,
      h("div", { class: "tfx-columns tfx-mapside" }, weave,
        h("div", { class: "tfx-stack" }, h("div", { class: "tfx-stats tfx-ones" }, largest.node, total.node, entropy.node), said.node, reference)),
      folded("All weights as a map", map)));

    // Threads join the near edges of the chips at their middles, and cross none; thickness is weight.
    const drawThreads = () => {
      const { grid, forward, word } = now();
      const home = weave.getBoundingClientRect();
      const [above, below] = ["source", "target"].map((side) => rows[side].faces().map((f) => f.getBoundingClientRect()));
      if (!home.width) return;
      threads.setAttribute("viewBox", `0 0 ${home.width} ${home.height}`);
      threads.replaceChildren(...grid.flatMap((row, t) => row.map((w, s) => {
        const on = forward ? t === word : s === word;
        if (w < (on ? 0.01 : 0.1)) return null;
        const [from, to] = [above[s], below[t]];
        if (!from.width || !to.width) return null; // a chip that is not shown has no place
        return h("line", {
          class: on ? "tfx-strand tfx-on" : "tfx-strand", "stroke-width": 0.75 + 7 * w,
          x1: from.right - home.left, y1: from.top + from.height / 2 - home.top,
          x2: to.left - home.left, y2: to.top + to.height / 2 - home.top,
        });
      })).filter(Boolean));
    };
    // A map that is wider than the page scrolls in its own box, which the keyboard must reach.
    const watch = new ResizeObserver(() => {
      drawThreads();
      const wide = map.scrollWidth > map.clientWidth;
      for (const [key, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", "Matrix of weights"]])
        wide ? map.setAttribute(key, value) : map.removeAttribute(key);
    });
    watch.observe(weave);
    watch.observe(map);

    let lines = [], heads = [], shown = null;
    const fill = ({ chosen, pair, grid }) => {
      if (shown === chosen) return;
      shown = chosen;
      for (const side of ["source", "target"]) rows[side].fill(pair[side]);
      reference.hidden = !pair.reference;
      reference.textContent = `A human wrote: ${pair.reference}`;
      heads = pair.source.map((t) => h("th", { scope: "col" }, h("span", {}, t)));
      lines = grid.map((row, t) => h("tr", { onclick: () => pick("target")(t) },
        h("th", { scope: "row" }, pair.target[t]),
        row.map((w, s) => h("td", {
          class: "tfx-cell", style: { "--heat": `${(100 * Math.sqrt(w)).toFixed(1)}%` }, "data-name": `weights[${t}][${s}]`, "data-value": w,
        }, h("span", {}, w < 0.005 ? "" : show(w, 2).replace(/^0/, ""))))));
      map.replaceChildren(h("table", {
        class: pair.source.length > CROWDED ? "tfx-map tfx-crowded" : "tfx-map", style: { "--columns": pair.source.length, "--longest": Math.max(...pair.target.map((t) => t.length)) },
      }, h("caption", {}, "All weights: each row is one target word"),
      h("thead", {}, h("tr", {}, h("td", {}), heads)), h("tbody", {}, lines)));
    };

    const draw = () => {
      const a = now();
      fill(a);
      sentence.update();
      const [own, other] = a.forward ? ["target", "source"] : ["source", "target"];
      rows[own].draw({ checked: a.kept.side === own ? a.kept.word : null, followed: a.word, weights: null });
      rows[other].draw({ checked: a.kept.side === other ? a.kept.word : null, followed: null, weights: a.weights, share: Math.sqrt });
      lines.forEach((line, t) => {
        line.classList.toggle("tfx-chosen", a.forward && t === a.word);
        [...line.cells].forEach((cell, s) => cell.classList.toggle("tfx-column", !a.forward && s - 1 === a.word));
      });
      heads.forEach((head, s) => head.classList.toggle("tfx-column", !a.forward && s === a.word));
      drawThreads();
      const best = a.weights.indexOf(Math.max(...a.weights));
      const sum = a.weights.reduce((x, y) => x + y, 0);
      const spread = Math.max(0, -a.weights.reduce((x, w) => x + (w > 0 ? w * Math.log(w) : 0), 0));
      largest.set(a.weights[best]);
      largest.note.textContent = `“${a.pair[other][best]}”`;
      total.set(sum);
      total.note.textContent = a.forward ? "a row: always 1" : `a column: from 0 to ${a.grid.length}`;
      entropy.set(spread);
      entropy.note.textContent = `nats, as if spread over ${show(Math.exp(spread), 1)} words`;
      entropy.node.hidden = !a.forward;
      const word = a.pair[a.side][a.word];
      const where = `word ${a.word + 1} of ${a.pair[a.side].length}`;
      said.set(a.forward
        ? `“${word}”, target ${where}, was read mostly from “${a.pair.source[best]}”, source word ${best + 1}, with weight ${show(a.weights[best], 2)}.`
        : `“${word}”, source ${where}, got ${show(sum, 2)} of all weight, most of it for “${a.pair.target[best]}” (${show(a.weights[best], 2)}).`);
    };
    const stop = follow(model, ["chosen", "side", "word"], draw);
    return () => {
      stop();
      watch.disconnect();
    };
  },
};
