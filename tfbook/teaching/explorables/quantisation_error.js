import { chart, choice, folded, follow, h, options, show, slider, stat, summary, titled } from "./shared.js";

const BITS = [2, 3, 4, 5, 6, 7, 8];

/** Numbers of 16 bits, four hexadecimal digits each, which are the upper half of a float32. */
function read(codes) {
  const view = new DataView(new ArrayBuffer(4));
  return (codes.match(/.{4}/g) || []).map((code) => {
    view.setUint16(0, parseInt(code, 16));
    return view.getFloat32(0);
  });
}

/** To the nearest whole number, half way to the even one. */
function even(x) {
  const low = Math.floor(x);
  return x - low === 0.5 ? low + (Math.abs(low) % 2) : Math.round(x);
}

const sizeOf = (shared, all, columns) => (shared === "tensor" ? all : shared === "channel" ? columns : shared);

/** Scale, zero point, codes and what they stand for: the same as quantise and restore, for one group. */
function quantise(weights, bits, symmetric) {
  const half = 2 ** (bits - 1);
  const [least, most] = [Math.min(0, ...weights), Math.max(0, ...weights)];
  const scale = Math.fround(symmetric ? Math.max(-least, most) / (half - 1) : (most - least) / (2 * half - 1));
  const low = symmetric ? 1 - half : -half;
  const zero = symmetric ? 0 : -half - even(least / (scale || 1));
  const codes = weights.map((w) => Math.min(half - 1, Math.max(low, even(w / (scale || 1)) + zero)));
  return { scale, zero, low, half, codes, restored: codes.map((c) => Math.fround((c - zero) * scale)) };
}

function groupsOf(weights, size, bits, symmetric) {
  return Array.from({ length: weights.length / size }, (_, i) => quantise(weights.slice(i * size, (i + 1) * size), bits, symmetric));
}

const norm = (list) => Math.sqrt(list.reduce((sum, x) => sum + x * x, 0));
const relative = (weights, size, bits, symmetric) => {
  const found = groupsOf(weights, size, bits, symmetric).flatMap((g) => g.restored);
  return norm(found.map((x, i) => x - weights[i])) / norm(weights);
};

/** The same numbers as _results in _quantising.py. */
function numbers(data, { weights: name, bits, shared, symmetric, group: at }) {
  const weights = read(data.codes[name]);
  const size = sizeOf(shared, weights.length, data.columns);
  const groups = groupsOf(weights, size, bits, symmetric);
  const shown = Math.min(at, groups.length - 1);
  const { scale, zero, low, half, codes } = groups[shown];
  const restored = groups.flatMap((g) => g.restored);
  const off = restored.map((x, i) => x - weights[i]);
  return {
    weights, size, group_shown: shown, groups: groups.length, scale, zero, off, used: new Set(codes).size,
    grid: Array.from({ length: half - low }, (_, i) => Math.fround(scale * (low + i - zero))),
    relative: norm(off) / norm(weights), largest: Math.max(...off.map(Math.abs)), zeros: restored.filter((x) => x === 0).length / weights.length,
    effective_bits: bits + (data.scale_bits * (symmetric ? 1 : 2)) / size,
    curves: { symmetric: BITS.map((b) => relative(weights, size, b, true)), zero_point: BITS.map((b) => relative(weights, size, b, false)) },
  };
}

const percent = (x, digits = 1) => `${show(100 * x, digits)}%`;
const three = (x) => String(Number(x.toPrecision(3))).replace("-", "−");
const BINS = 48;

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["weights", "bits", "shared", "symmetric", "group"];
    const now = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));

    // ------------------------------------------------------------------ controls
    const keys = Object.keys(data.labels);
    const which = choice(model, "weights", "Weights of MiniLM-L6", Object.values(data.labels), { keys });
    const bits = slider(model, "bits", { label: "Bits b", min: 2, max: 8, text: String });
    const shared = options(model, "shared", "A scale for", data.shared);
    const scheme = options(model, "symmetric", "The grid", [[true, "symmetric"], [false, "with a zero point"]]);
    const group = slider(model, "group", { label: "Group whose grid is shown", min: 0, max: 1, write: () => numbers(data, now()).group_shown, text: () => String(numbers(data, now()).group_shown) });

    // ------------------------------------------------------------------ histogram over the grid
    const [bars, grid, rug] = [h("g", {}), h("g", {}), h("g", {})];
    const plot = chart(bars, grid, rug);
    plot.node.classList.add("tfx-tall", "tfx-roomy", "tfx-still");
    const key = (kind, text) => h("span", { class: `tfx-key ${kind}` }, text);
    const figure = (title, notes, node) => h("figure", { class: "tfx-curve" }, h("figcaption", {}, h("strong", {}, title), " ", ...notes), node);
    const histogram = figure("How many weights are how large.", [key("tfx-binkey", "all 512, those of the group darker"), " ", key("tfx-gridkey", "numbers of the group's grid")], plot.node);

    // ------------------------------------------------------------------ errors
    const [others, own] = ["tfx-errordots", "tfx-errordots tfx-on"].map((kind) => h("path", { class: kind }));
    const scatter = chart(others, own);
    scatter.node.classList.add("tfx-tall", "tfx-roomy", "tfx-still");
    const lines = { symmetric: h("polyline", { class: "tfx-line tfx-scaled", "data-name": "curve_symmetric" }), zero_point: h("polyline", { class: "tfx-line tfx-raw", "data-name": "curve_zero_point" }) };
    const curve = chart(...Object.values(lines));
    const mark = h("span", { class: "tfx-mark" });
    curve.node.append(mark);
    curve.node.classList.add("tfx-tall", "tfx-roomy", "tfx-still");
    const stats = {
      relative: stat("relative", "error of the weights", percent),
      largest: stat("largest", "largest error", three),
      zeros: stat("zeros", "of the weights become 0", (x) => percent(x, 0)),
      effective_bits: stat("effective_bits", "bits a number, scales included", (x) => String(Number(x.toFixed(3)))),
      scale: stat("scale", "step of the group's grid", three),
      used: stat("used", "numbers of the grid are used", String),
    };
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-pairs tfx-apart" }, which.node, scheme.node), h("div", { class: "tfx-abreast" }, shared.node, bits.node), group.node, histogram,
      h("div", { class: "tfx-stats tfx-loose" }, Object.values(stats).map((s) => s.node)), said.node,
      folded("The error of each weight, and of other bits", h("div", { class: "tfx-columns tfx-even" },
        figure("Error over weight.", [h("span", { class: "tfx-note" }, "A dot for each weight, those of the group darker.")], scatter.node),
        figure("Error over bits.", [key("", "symmetric"), " ", key("tfx-raw", "with a zero point"), " ", h("span", { class: "tfx-note" }, "Dot: what is chosen.")], curve.node)))));

    const draw = () => {
      const given = now();
      const c = numbers(data, given);
      group.input.max = Math.max(1, c.groups - 1);
      group.node.hidden = c.groups < 2;
      [which, bits, shared, scheme, group].forEach((control) => control.update());
      const inGroup = (i) => Math.floor(i / c.size) === c.group_shown;
      const ends = [...c.weights, ...c.grid];
      const reach = Math.max(...ends.map(Math.abs)) * 1.04;
      const every = reach < 0.6 ? 0.2 : reach < 1.5 ? 0.5 : 1;
      const xs = Array.from({ length: 2 * Math.floor(reach / every) + 1 }, (_, i) => Number(((i - Math.floor(reach / every)) * every).toFixed(1)));

      const count = [Array(BINS).fill(0), Array(BINS).fill(0)];
      c.weights.forEach((w, i) => {
        const bin = Math.min(BINS - 1, Math.floor(((w + reach) / (2 * reach)) * BINS));
        count[0][bin]++;
        if (inGroup(i)) count[1][bin]++;
      });
      const most = Math.max(...count[0]);
      const step = most > 120 ? 50 : most > 50 ? 25 : 10;
      plot.frame([-reach, reach], [-0.14 * most, 1.05 * most], xs, Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step));
      const wide = 100 / BINS;
      bars.replaceChildren(...count.flatMap((list, which) => list.map((n, i) => (n ? h("rect", {
        class: which ? "tfx-bin tfx-on" : "tfx-bin", x: i * wide, width: 0.92 * wide, y: plot.up(n), height: plot.up(0) - plot.up(n),
      }) : "")).filter(Boolean)));
      grid.replaceChildren(...c.grid.map((x) => h("line", { class: "tfx-gridline", x1: plot.at(x), x2: plot.at(x), y1: 0, y2: 100, "data-grid": x })));
      rug.replaceChildren(...c.weights.flatMap((w, i) => (inGroup(i) ? h("line", { class: "tfx-rug", x1: plot.at(w), x2: plot.at(w), y1: plot.up(-0.02 * most), y2: plot.up(-0.12 * most) }) : [])));

      const far = 1.1 * Math.max(c.largest, 1e-9);
      const power = 10 ** Math.floor(Math.log10(far));
      const tick = Number((Math.floor(far / power) * power).toPrecision(1));
      scatter.frame([-reach, reach], [-far, far], xs, [-tick, 0, tick]);
      const dots = (fits) => c.weights.map((w, i) => (fits(i) ? `M${scatter.at(w).toFixed(2)} ${scatter.up(c.off[i]).toFixed(2)}h0` : "")).join("");
      others.setAttribute("d", dots((i) => !inGroup(i)));
      own.setAttribute("d", dots(inGroup));
      curve.frame([2, 8], [-3, 0.1], BITS, [-3, -2, -1, 0], (x) => (x > 0 ? String(x) : `${Number((100 * 10 ** x).toPrecision(1))}%`));
      for (const [name, line] of Object.entries(lines)) curve.points(line, c.curves[name].map((x, i) => [BITS[i], Math.log10(x)]));
      curve.place(mark, given.bits, Math.log10(c.relative));
      mark.classList.toggle("tfx-scaled", given.symmetric);

      for (const [name, s] of Object.entries(stats)) s.set(c[name]);
      stats.relative.note.textContent = "‖Ŵ − W‖ / ‖W‖";
      stats.largest.note.textContent = `largest weight: ${three(Math.max(...c.weights.map(Math.abs)))}`;
      stats.zeros.note.textContent = "their connections are gone";
      stats.effective_bits.note.textContent = `${show(16 / c.effective_bits, 2)} times smaller than in 16 bits`;
      stats.scale.note.textContent = given.symmetric ? "0 is in the middle" : `the zero point is ${String(c.zero).replace("-", "−")}`;
      stats.used.note.textContent = `of ${c.grid.length}, by ${c.size} weights of the group`;
      said.set(`In ${given.bits} bits, a scale for ${data.shared.find(([value]) => value === given.shared)[1]}, ${given.symmetric ? "symmetric" : "with a zero point"}: the error is ${percent(c.relative)} of the weights, ${percent(c.zeros, 0)} of them become 0, and a number takes ${Number(c.effective_bits.toFixed(2))} bits.`);
    };
    return follow(model, names, draw);
  },
};
