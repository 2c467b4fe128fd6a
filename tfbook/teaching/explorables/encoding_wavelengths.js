import { cells, chart, follow, h, show, slider, stat, summary, titled } from "./shared.js";

const thousands = (x) => (x >= 1000 ? Math.round(x).toLocaleString("en").replaceAll(",", " ") : show(x, x < 100 ? 2 : 1));

export default {
  render({ model, el }) {
    const data = model.get("data");
    const pairs = data.d_model / 2;
    const last = data.n_positions - 1;
    const frequency = (i) => model.get("base") ** ((-2 * i) / data.d_model);

    // ------------------------------------------------------------------ controls
    const position = slider(model, "position", { label: "Position p", min: 0, max: last, text: String });
    const pair = slider(model, "pair", { label: "Clock i", min: 0, max: pairs - 1, text: String });
    const base = slider(model, "base", {
      label: "Base", min: 6, max: 120, read: (i) => Number((10 ** (i / 20)).toPrecision(2)),
      write: (b) => Math.round(20 * Math.log10(b)), text: thousands,
    });

    // ------------------------------------------------------------------ a clock for each pair
    const clocks = Array.from({ length: pairs }, (_, i) => {
      const input = h("input", {
        type: "radio", name: "pair", value: i, "data-control": "clock",
        onchange: () => {
          model.set("pair", i);
          model.save_changes();
        },
      });
      const hand = h("line", { class: "tfx-hand", x1: 0, y1: 0 });
      const entries = h("span", {});
      return { input, hand, entries, node: h("label", { class: "tfx-option" }, input, h("span", {},
        h("svg", { viewBox: "-1.15 -1.15 2.3 2.3", "aria-hidden": "true" },
          h("circle", { class: "tfx-dial", r: 1 }), hand, h("circle", { class: "tfx-hub", r: 0.1 })),
        h("span", { class: "tfx-entries", "aria-hidden": "true" }, entries), h("span", {}, h("span", { class: "tfx-hidden" }, "clock "), String(i)))) };
    });
    const dials = h("form", { class: "tfx-control", onsubmit: (e) => e.preventDefault() },
      h("fieldset", { class: "tfx-options tfx-clocks" },
        h("legend", { class: "tfx-label" }, "Hands at the angle pω, sine up and cosine to the right; below each its two numbers, blue if positive, brown if negative"),
        h("div", { style: { "--line": pairs } }, clocks.map((c) => c.node))));

    // ------------------------------------------------------------------ the curve of one pair
    const turn = h("rect", { class: "tfx-band", y: 0, height: 100 });
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const sine = h("polyline", { class: "tfx-line tfx-scaled", "data-name": "curve_sin" });
    const cosine = h("polyline", { class: "tfx-line tfx-raw", "data-name": "curve_cos" });
    const plot = chart(turn, cursor, cosine, sine);
    const step = 2 ** Math.floor(Math.log2(last / 3));
    plot.frame([0, last], [-1.05, 1.05], Array.from({ length: Math.floor(last / step) + 1 }, (_, i) => i * step), [-1, 0, 1]);
    const marks = [h("span", { class: "tfx-mark" }), h("span", { class: "tfx-mark tfx-scaled" })];
    plot.node.append(...marks);
    const name = h("strong", {});
    const curve = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, name, h("span", { class: "tfx-key tfx-scaled" }, "sin"), " ",
        h("span", { class: "tfx-key tfx-raw" }, "cos"), " ", h("span", { class: "tfx-key tfx-turn" }, "one turn")),
      plot.node);

    const wavelength = stat("wavelength", "wavelength λ", 2);
    const speed = stat("frequency", "frequency ω", 4);
    const turns = stat("turns", "turns so far", 3);
    wavelength.note.textContent = "positions for one turn";
    speed.note.textContent = "radians for each position";
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-thirds" }, position.node, pair.node, base.node), dials, curve,
      h("div", { class: "tfx-stats" }, wavelength.node, speed.node, turns.node), said.node));

    let drawn = "";
    const draw = () => {
      const [p, i, b] = ["position", "pair", "base"].map((k) => model.get(k));
      [position, pair, base].forEach((c) => c.update());
      clocks.forEach((c, j) => {
        const angle = p * frequency(j);
        c.input.checked = j === i;
        c.hand.setAttribute("x2", Math.cos(angle));
        c.hand.setAttribute("y2", -Math.sin(angle));
        c.entries.replaceChildren(...[Math.sin(angle), Math.cos(angle)].map((x, s) => {
          const cell = cells([x]).firstChild;
          Object.assign(cell.dataset, { name: `encoding[${2 * j + s}]`, value: x });
          return cell;
        }));
      });
      const w = frequency(i);
      const length = (2 * Math.PI) / w;
      if (drawn !== `${i} ${b}`) {
        drawn = `${i} ${b}`;
        const xs = Array.from({ length: 4 * last + 1 }, (_, t) => t / 4);
        plot.points(sine, xs.map((x) => [x, Math.sin(x * w)]));
        plot.points(cosine, xs.map((x) => [x, Math.cos(x * w)]));
        name.textContent = `Clock ${i}, columns ${2 * i} and ${2 * i + 1}, over the positions. `;
      }
      const start = Math.floor(p / length) * length;
      turn.setAttribute("x", plot.at(start));
      turn.setAttribute("width", plot.at(Math.min(last, start + length)) - plot.at(start));
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.at(p));
      plot.place(marks[0], p, Math.cos(p * w));
      plot.place(marks[1], p, Math.sin(p * w));
      wavelength.set(length);
      wavelength.node.querySelector(".tfx-number").textContent = thousands(length);
      speed.set(w);
      turns.set((p * w) / (2 * Math.PI));
      turns.note.textContent = `sin ${show(Math.sin(p * w), 2)}, cos ${show(Math.cos(p * w), 2)}`;
      said.set(`At position ${p} clock ${i} has made ${show((p * w) / (2 * Math.PI), 3)} turns; it turns once in ${thousands(length)} positions. ` +
        `The first clock takes ${thousands(2 * Math.PI)}, the last ${thousands((2 * Math.PI) / frequency(pairs - 1))}.`);
    };
    return follow(model, ["position", "pair", "base"], draw);
  },
};
