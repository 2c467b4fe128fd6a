import { called, follow, h, options, reading, show, slider, stat, summary, titled, tokenRow } from "./shared.js";
import { labelledMap } from "./maps.js";

const LOWERED = "₀₁₂₃₄₅₆₇₈₉";
const lowered = (l) => [...String(l)].map((c) => LOWERED[c]).join("");
const plus = (a) => a.map((row, i) => row.map((x, j) => x + (i === j ? 1 : 0)));
const scaledRows = (a) => a.map((row) => {
  const total = row.reduce((x, y) => x + y, 0);
  return row.map((x) => x / total);
});
const times = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { patterns, tokens } = data;
    const last = patterns.length - 1, end = data.steps.length - 1;
    // Of each layer: the four matrices of its steps, and the product in the other order.
    const layers = [];
    patterns.forEach((pattern, l) => {
      const share = scaledRows(plus(pattern)), below = layers[l - 1];
      layers.push({ steps: [pattern, plus(pattern), share, below ? times(share, below.steps[end]) : share], wrong: below ? times(below.wrong, share) : share });
    });
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };
    const go = (by) => {
      const at = model.get("layer") * (end + 1) + model.get("step") + by;
      if (at >= 0 && at <= last * (end + 1) + end) save({ layer: Math.floor(at / (end + 1)), step: at % (end + 1) });
    };

    // ------------------------------------------------------------------ controls
    const turn = (text, by, control) => h("button", { type: "button", class: "tfx-button", "data-control": control, onclick: () => go(by) }, text);
    const [back, next] = [turn("Previous", -1, "previous"), turn("Next", 1, "next")];
    const place = h("span", { class: "tfx-where" });
    const layer = slider(model, "layer", { label: "Layer", min: 0, max: last, text: String });
    layer.node.hidden = !last;
    const step = options(model, "step", "Step in this layer", data.steps.map((text, k) => [k, text]));
    const row = tokenRow("token", "Row that is followed, filled by what it takes", (token) => save({ token }), () => null);
    row.fill(tokens);

    // ------------------------------------------------------------------ map and table
    const map = labelledMap({ rows: tokens, columns: tokens, name: "matrix", pick: (token) => save({ token }), words: [true, true] });
    const name = h("p", { class: "tfx-label" }), caption = h("p", { class: "tfx-note" });
    const track = () => {
      const bars = [h("span", { class: "tfx-bar" }), h("span", { class: "tfx-bar tfx-was" })];
      return { bars, node: h("span", { class: "tfx-track tfx-double" }, bars) };
    };
    const lines = tokens.map((token, j) => {
      const [right, wrong] = ["right", "wrong"].map((key) => reading(`${key}[${j}]`, 3)), bar = track();
      return { right, wrong, bar, node: h("tr", {}, h("th", { scope: "row" }, `${called(token)} (${j})`),
        h("td", { class: "tfx-wide" }, bar.node), h("td", {}, right.node), h("td", {}, wrong.node)) };
    });
    const key = (kind, text) => h("span", { class: `tfx-key ${kind}` }, text);
    const [rightName, wrongName] = [h("span", {}), h("span", {})];
    const table = h("table", { class: "tfx-table tfx-tokenlist tfx-orders" },
      h("caption", {}, "Where the row came from, in both orders"),
      h("thead", {}, h("tr", {}, ["token", "", "right", "wrong"].map((text) => (text ? h("th", { scope: "col" }, text) : h("td", {}))))), h("tbody", {}, lines.map((l) => l.node)));
    const stats = {
      row_sum: stat("row_sum", "sum of the row at this step", 3), own: stat("own", "what is left of itself", 3),
      difference: stat("difference", "between the orders", 3),
    };
    stats.difference.note.textContent = "share of the row that is moved";
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-turns" }, back, place, next),
      h("div", { class: "tfx-pairs tfx-apart" }, layer.node, step.node),
      h("div", { class: "tfx-columns tfx-even" },
        h("div", { class: "tfx-stack" }, name, map.node, caption),
        h("div", { class: "tfx-stack" }, h("p", { class: "tfx-note" }, key("", "right: "), rightName, h("br", {}), key("tfx-before", "wrong: "), wrongName), table)),
      row.node, h("div", { class: "tfx-stats" }, Object.values(stats).map((s) => s.node)), said.node));

    const factors = (list) => (list.length > 3 ? [list[0], "⋯", ...list.slice(-2)] : list).map((l) => (l === "⋯" ? l : `Ã${lowered(l)}`)).join(" ");
    const draw = () => {
      const [l, k, i] = ["layer", "step", "token"].map((key) => model.get(key));
      const now = layers[l], shown = now.steps[k];
      const [right, wrong] = [now.steps[end][i], now.wrong[i]];
      const downward = Array.from({ length: l + 1 }, (_, x) => l - x);
      [layer, step].forEach((control) => control.update());
      back.setAttribute("aria-disabled", String(!l && !k)); // disabled, it would lose the focus
      next.setAttribute("aria-disabled", String(l === last && k === end));
      place.textContent = `Layer ${l}, step ${k + 1} of ${end + 1}`;
      const product = `R = ${factors(downward)}`;
      name.textContent = [`A${lowered(l)}, the pattern of layer ${l}`, `A${lowered(l)} + I`, `Ã${lowered(l)} = ½ (A${lowered(l)} + I)`, product][k];
      caption.textContent = [
        "Row i: how much of each row below the attention takes.",
        "The residual connection hands on row i itself: 1 is added on the diagonal.",
        "Rows sum to 1 again: half is the row itself, half what the attention takes.",
        l ? "Row i: how much of each token is in row i behind this layer. A later layer stands further left." : "Below layer 0 are the tokens themselves, so R is its shares.",
      ][k];
      rightName.textContent = factors(downward);
      wrongName.textContent = factors([...downward].reverse());
      map.draw({ values: shown, chosen: [i, null], reach: 1, share: Math.sqrt });
      row.draw({ checked: i, followed: i, weights: shown[i], share: Math.sqrt });
      lines.forEach((line, j) => {
        line.right.set(right[j]);
        line.wrong.set(wrong[j]);
        [right, wrong].forEach((values, b) => (line.bar.bars[b].style.width = `${100 * values[j]}%`));
        line.node.classList.toggle("tfx-best", j === i);
      });
      stats.row_sum.set(shown[i].reduce((a, b) => a + b, 0));
      stats.own.set(right[i]);
      stats.own.note.textContent = `behind layer ${l}`;
      stats.difference.set(right.reduce((sum, x, j) => sum + Math.abs(x - wrong[j]), 0) / 2);
      const best = right.map((x, j) => [x, j]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([x]) => x >= 0.005);
      said.set(`${place.textContent}. Behind layer ${l} row ${called(tokens[i])} at ${i} came from ${best.map(([x, j]) => `${called(tokens[j])} at ${j} (${show(x, 2)})`).join(", ")}. ` +
        (l ? `In the wrong order ${stats.difference.node.querySelector(".tfx-number").textContent} of the row would stand elsewhere.` : "With one layer there is no order to mistake."));
    };
    const stop = follow(model, ["layer", "step", "token"], draw);
    return () => {
      stop();
      map.end();
    };
  },
};
