import { called, folded, follow, h, options, reading, show, slider, stat, summary, titled } from "./shared.js";
import { labelledMap } from "./maps.js";

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { rows, columns, axes, quoted, kinds } = data;
    const names = [rows, columns];
    const named = (axis, i) => (quoted[axis] ? `${called(names[axis][i])} (${i})` : names[axis][i]);
    const place = ([i, j]) => `${axes[0]} ${named(0, i)}, ${axes[1]} ${named(1, j)}`;
    const choose = (i, j) => {
      model.set("chosen", [i, j]);
      model.save_changes();
    };
    // One scale for all kinds, so that their colours and bars can be compared.
    const numbers = kinds.flatMap((kind) => data.effects[kind].flat());
    const [low, high] = [Math.min(0, ...numbers), Math.max(0, ...numbers)];
    const reach = Math.max(-low, high), span = reach ? [low, high] : [0, 1];

    const kind = options(model, "kind", "What is patched", kinds.map((k) => [k, k]));
    kind.node.hidden = kinds.length < 2;
    const capital = (text) => text[0].toUpperCase() + text.slice(1);
    const sliders = axes.map((axis, a) => {
      const made = slider(model, "chosen", { label: capital(axis), min: 0, max: names[a].length - 1, index: a, text: (i) => named(a, i) });
      made.node.hidden = names[a].length < 2;
      return made;
    });
    const map = labelledMap({ rows, columns, name: "effects", pick: choose, bars: true, words: quoted });
    const end = (x) => h("span", {}, show(x, 2));
    const scale = h("div", { class: "tfx-signs", "aria-hidden": "true" }, h("p", { class: "tfx-ends" }, end(-reach), h("span", {}, data.unit), end(reach)));
    const effect = stat("effect", data.unit, 3), rank = stat("rank", "rank by size", String);
    rank.note.textContent = `of ${rows.length * columns.length}`;
    const list = h("div", { class: "tfx-chips" });
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title), kind.node,
      h("div", { class: "tfx-columns tfx-mapside" },
        h("div", { class: "tfx-stack" }, map.node, scale,
          h("p", { class: "tfx-note" }, `A row is one ${axes[0]}, a column one ${axes[1]}. Below the map the row of the chosen cell as bars, at its right the column.`)),
        h("div", { class: "tfx-stack" }, sliders.map((s) => s.node), h("div", { class: "tfx-stats tfx-two" }, effect.node, rank.node), said.node)),
      folded("The largest of this kind", list)));

    const draw = () => {
      const now = model.get("kind"), [i, j] = model.get("chosen");
      const values = data.effects[now];
      const x = values[i][j];
      [kind, ...sliders].forEach((control) => control.update());
      map.draw({ values, chosen: [i, j], reach, span });
      const cells = values.flatMap((row, r) => row.map((y, c) => [r, c, y]));
      const nth = 1 + cells.filter((cell) => Math.abs(cell[2]) > Math.abs(x)).length;
      effect.set(x);
      effect.note.textContent = x < 0 ? "the other way" : x > 0 ? "" : "nothing";
      rank.set(nth);
      const largest = cells.sort((a, b) => Math.abs(b[2]) - Math.abs(a[2])).slice(0, data.named);
      if (list.children.length !== largest.length) // the same buttons, so that the focus stays
        list.replaceChildren(...largest.map(() => h("button", { type: "button", class: "tfx-chip", "data-control": "largest" })));
      largest.forEach(([r, c, y], k) => {
        const number = reading(`largest[${k}]`, 2);
        number.set(y);
        const chip = list.children[k];
        chip.replaceChildren(`${place([r, c])}: `, number.node);
        chip.onclick = () => choose(r, c);
      });
      said.set(`Patched: ${now}, ${place([i, j])}. What came of it: ${show(x, 3)} (${data.unit}), number ${nth} of ${cells.length} by size.`);
    };
    const stop = follow(model, ["kind", "chosen"], draw);
    return () => {
      stop();
      map.end();
    };
  },
};
