import { chart, counted, folded, follow, grouped, h, reading, show, slider, stat, summary, titled } from "./shared.js";

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const power = (p) => `10${[...String(p)].map((c) => RAISED[c]).join("")}`;
const STEP = 0.02; // of log10 N, to which the handle snaps
const log = Math.log10;

/** A large number with three digits that count. */
function written(x) {
  const [lead, p] = x.toExponential(2).split("e+");
  return Number(lead) === 1 ? power(p) : `${Number(lead)}·${power(p)}`;
}

const perParameter = (x) => (x < 99.95 ? show(x, x < 9.995 ? 2 : 1) : grouped(Math.round(x)));

/** The law and what is best by it: the same as in _budget.py. */
function lawOf({ e, a, alpha, b, beta }) {
  const g = ((alpha * a) / (beta * b)) ** (1 / (alpha + beta));
  const best = (c) => {
    const n = g * (c / 6) ** (beta / (alpha + beta));
    return [n, c / (6 * n)];
  };
  return {
    loss: (n, d) => e + a / n ** alpha + b / d ** beta, best,
    // Where a level is met: the tokens for a number of parameters, and the other way round.
    tokensAt: (level, n) => (b / (level - e - a / n ** alpha)) ** (1 / beta),
    parametersAt: (level, d) => (a / (level - e - b / d ** beta)) ** (1 / alpha),
  };
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const law = lawOf(data.law);
    const [[left, right], [low, high]] = [data.ranges.parameters, data.ranges.tokens].map((r) => r.map(log));
    /** The same as in _budget.py: the choices as far as the line goes. */
    const reach = (c) => [Math.max(left, log(c / 6) - high), Math.min(right, log(c / 6) - low)];
    const now = () => {
      const c = model.get("compute");
      const [from, to] = data.ranges.tokens.map((d) => c / (6 * d)).reverse();
      const [fewest, most] = data.ranges.parameters;
      const n = Math.min(Math.max(model.get("parameters"), fewest, from), most, to);
      return { c, n, d: c / (6 * n) };
    };

    // ------------------------------------------------------------------ controls
    const compute = slider(model, "compute", {
      label: "FLOPs of training C", min: 10 * log(data.ranges.compute[0]), max: 10 * log(data.ranges.compute[1]),
      read: (i) => Number((10 ** (i / 10)).toPrecision(3)), write: (c) => Math.round(10 * log(c)), text: written,
    });
    const move = (x) => {
      const [from, to] = reach(now().c);
      const [snapped, ends] = [Math.round(x / STEP) * STEP, [10 ** from, 10 ** to]];
      model.set("parameters", Math.min(Math.max(10 ** snapped, ends[0]), ends[1]));
      model.save_changes();
    };
    const toBest = h("button", {
      type: "button", class: "tfx-chip", "data-control": "to_best",
      onclick: () => {
        model.set("parameters", law.best(now().c)[0]);
        model.save_changes();
      },
    }, "To the lowest loss on the line");

    // ------------------------------------------------------------------ the picture
    const levels = data.levels.map((level) => h("polyline", { class: "tfx-level", "data-level": level }));
    const frontier = h("polyline", { class: "tfx-line tfx-third", "data-name": "frontier" });
    const line = h("polyline", { class: "tfx-line tfx-scaled", "data-name": "line" });
    const plot = chart(...levels, frontier, line);
    plot.frame([left, right], [low, high], ...[[left, right], [low, high]].map(([a, b]) =>
      Array.from({ length: Math.floor(b) - Math.ceil(a) + 1 }, (_, i) => Math.ceil(a) + i)), power);
    const best = h("span", { class: "tfx-mark tfx-goal" });
    const handle = h("div", {
      class: "tfx-handle", tabindex: 0, role: "slider", "data-control": "parameters",
      "aria-label": "Parameters N on the line of equal work; arrow keys move it",
    }, h("span", {}, "N"));
    const names = data.models.map(([name, n, d]) => [h("span", { class: "tfx-mark tfx-known" }), h("span", { class: "tfx-called" }, name), log(n), log(d)]);
    const labels = data.levels.map((level) => h("span", { class: "tfx-levelname" }, show(level, 2)));
    for (const node of plot.node.children) node.setAttribute("aria-hidden", "true");
    plot.node.removeAttribute("aria-hidden");
    Object.entries({ role: "group", "aria-label": "Lines of equal loss over parameters and tokens" }).forEach(([k, v]) => plot.node.setAttribute(k, v));
    const painted = h("div", { "aria-hidden": "true" }, labels, best, names.flatMap(([mark, name]) => [mark, name]));
    plot.node.append(painted, handle);
    plot.node.classList.add("tfx-map-of-loss");
    for (const [mark, name, x, y] of names) {
      plot.place(mark, x, y);
      plot.place(name, x, y);
      name.classList.toggle("tfx-leftward", plot.at(x) > 70);
    }
    data.levels.forEach((level, i) => {
      // Evenly across and evenly upward: the line bends from one direction into the other.
      const share = Array.from({ length: 61 }, (_, j) => j / 60);
      const pairs = [
        ...share.map((s) => left + s * (right - left)).map((x) => [x, log(law.tokensAt(level, 10 ** x))]),
        ...share.map((s) => low + s * (high - low)).map((y) => [log(law.parametersAt(level, 10 ** y)), y]),
      ].filter(([x, y]) => x >= left - 1e-9 && x <= right + 1e-9 && y >= low - 1e-9 && y <= high + 1e-9);
      pairs.sort(([x0, y0], [x1, y1]) => x0 - x1 || y1 - y0);
      plot.points(levels[i], pairs);
      const end = pairs.at(-1);
      labels[i].hidden = !end || end[0] < right - 1e-6 || end[1] - low < 0.02 * (high - low);
      levels[i].style.display = labels[i].hidden ? "none" : ""; // no line without its number
      if (end) plot.place(labels[i], right, end[1]);
    });
    const inside = ([x, y]) => x >= left && x <= right && y >= low && y <= high;
    const [cheap, dear] = data.ranges.compute.map(log);
    plot.points(frontier, Array.from({ length: 81 }, (_, i) => law.best(10 ** (cheap + (i * (dear - cheap)) / 80)).map(log)).filter(inside));
    let dragging = null;
    const toPointer = (event) => {
      const box = plot.svg.getBoundingClientRect();
      move(left + ((event.clientX - box.left) / box.width) * (right - left));
    };
    handle.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      dragging = event.pointerId;
      plot.node.setPointerCapture(dragging);
      handle.focus({ preventScroll: true });
      event.preventDefault();
    });
    plot.node.addEventListener("click", toPointer);
    plot.node.addEventListener("pointermove", (event) => event.pointerId === dragging && toPointer(event));
    for (const end of ["pointerup", "pointercancel"]) plot.node.addEventListener(end, () => (dragging = null));
    handle.addEventListener("keydown", (event) => {
      const by = event.shiftKey ? 10 * STEP : STEP;
      const to = { ArrowLeft: -by, ArrowDown: -by, ArrowRight: by, ArrowUp: by, PageUp: 10 * STEP, PageDown: -10 * STEP, Home: -99, End: 99 }[event.key];
      if (!to) return;
      event.preventDefault();
      move(log(now().n) + to);
    });
    const key = (kind, text) => [h("span", { class: `tfx-key ${kind}` }, text), " "];
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Tokens D (upward) over parameters N. "), key("", "6 N D = C"), key("tfx-third", "lowest loss for each C"), key("tfx-level", "equal loss, its number at the right")), plot.node);

    // ------------------------------------------------------------------ numbers
    const stats = {
      loss: stat("loss", "loss L", (x) => show(x, 3)),
      best_loss: stat("best_loss", "lowest on the line", (x) => show(x, 3)),
      ratio: stat("ratio", "tokens a parameter", perParameter),
      best_ratio: stat("best_ratio", "tokens a parameter there", perParameter),
    };
    const n = reading("size", counted), d = reading("tokens", counted);
    const bestN = reading("best_size", counted), bestD = reading("best_tokens", counted);
    stats.loss.note.append(n.node, " parameters, ", d.node, " tokens");
    stats.best_loss.note.append(bestN.node, " parameters, ", bestD.node, " tokens");
    stats.ratio.note.textContent = "at the handle";
    stats.best_ratio.note.textContent = "at the lowest loss";
    const rows = data.models.map(([name, p, t], i) => {
      const [pBest, tBest] = law.best(6 * p * t);
      const numbers = { model_ratio: t / p, model_loss: law.loss(p, t), model_best_loss: law.loss(pBest, tBest) };
      const read = Object.entries(numbers).map(([key, x], j) => {
        const r = reading(`${key}[${i}]`, (v) => (j ? show(v, 3) : perParameter(v)));
        r.set(x);
        return h("td", {}, r.node);
      });
      return h("tr", {}, h("th", { scope: "row" }, name), read);
    });
    const heads = ["model", "tokens a parameter", "its L", "lowest for its C"];
    const table = h("table", { class: "tfx-table tfx-known-table" },
      h("caption", {}, "Where they stand on this surface"),
      h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows));
    const { e, a, alpha, b, beta } = data.law;
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("p", { class: "tfx-note" }, `L(N, D) = ${e} + ${a} / N`, h("sup", {}, String(alpha)), ` + ${b} / D`, h("sup", {}, String(beta)),
        ". The law was fitted to one family of models on one collection of texts; others have other losses."),
      h("div", { class: "tfx-pair-wide" }, compute.node, toBest), figure,
      h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).map((s) => s.node)),
      said.node, rows.length ? folded("Known models beside it", table) : null));

    const draw = () => {
      compute.update();
      const at = now();
      const [pBest, tBest] = law.best(at.c);
      const [from, to] = reach(at.c);
      plot.points(line, [from, to].map((x) => [x, log(at.c / 6) - x]));
      plot.place(handle, log(at.n), log(at.d));
      plot.place(best, log(pBest), log(tBest));
      best.hidden = !inside([pBest, tBest].map(log));
      stats.loss.set(law.loss(at.n, at.d));
      stats.best_loss.set(law.loss(pBest, tBest));
      stats.ratio.set(at.d / at.n);
      stats.best_ratio.set(tBest / pBest);
      [[n, at.n], [d, at.d], [bestN, pBest], [bestD, tBest]].forEach(([r, x]) => r.set(x));
      const words = `${counted(at.n)} parameters, ${counted(at.d)} tokens: loss ${show(law.loss(at.n, at.d), 3)}`;
      const aria = { valuemin: from.toFixed(2), valuemax: to.toFixed(2), valuenow: log(at.n).toFixed(2), valuetext: words };
      for (const [k, v] of Object.entries(aria)) handle.setAttribute(`aria-${k}`, v);
      said.set(`With ${written(at.c)} FLOPs, ${words}. The lowest is ${show(law.loss(pBest, tBest), 3)}, with ${counted(pBest)} parameters and ${counted(tBest)} tokens.`);
    };
    return follow(model, ["compute", "parameters"], draw);
  },
};
