import { chart, choice, folded, follow, h, options, reading, show, slider, stat, stops, summary, titled, uniform } from "./shared.js";

const SIDE = 320; // the picture's own units
const VIEW = 2.4; // the plane shown runs from -2.4 to 2.4
const MOVE = 0.1; // of the start, for an arrow key
const GRID = 120; // level lines are found on so many squares a side
const LEVELS = [0.05, 0.2, 0.8, 3.2, 12.8, 51.2, 204.8, 819.2];
const FLOOR = -8; // the loss curve ends at 10⁻⁸

/** The loss and its gradient: the same as value in _optimizers.py. */
function valueAt([x, y], { surface, condition, tilt, lowest }) {
  const [dx, dy] = [x - lowest[0], y - lowest[1]];
  if (surface === "valley") {
    const r = y - 0.5 * x * x;
    return { loss: 0.5 * (dx * dx + condition * r * r), gradient: [dx - condition * r * x, condition * r] };
  }
  const angle = (tilt * Math.PI) / 180;
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  const [u, v] = [cos * dx + sin * dy, cos * dy - sin * dx];
  return { loss: 0.5 * (u * u + condition * v * v), gradient: [cos * u - sin * condition * v, sin * u + cos * condition * v] };
}

// As PyTorch's lerp rounds.
const toward = (a, b, share) => (share < 0.5 ? a + share * (b - a) : b - (b - a) * (1 - share));

/** A number after step t of an optimizer: the same as in tfbook.training. */
function moved(optimizer, w, g, state, t, rate, c) {
  const { momentum: beta1, beta2, weight_decay: decay } = c;
  if (optimizer === "sgd") return w - rate * (g + decay * w);
  if (optimizer === "momentum") {
    state.m = beta1 * state.m + (g + decay * w);
    return w - rate * state.m;
  }
  if (optimizer === "lion") {
    const mean = toward(state.m, g, 1 - beta1);
    state.m = toward(state.m, g, 1 - beta2);
    return w * (1 - rate * decay) - rate * Math.sign(mean);
  }
  if (optimizer === "adam") g += decay * w;
  else w *= 1 - rate * decay;
  state.m = toward(state.m, g, 1 - beta1);
  state.v = state.v * beta2 + (1 - beta2) * (g * g);
  const [mean, square] = [state.m / (1 - beta1 ** t), state.v / (1 - beta2 ** t)];
  return w - (rate * mean) / (Math.sqrt(square) + c.eps);
}

/** The points after 0, 1, … steps, up to where the path leaves. */
function walk(optimizer, rate, c) {
  const path = [[...c.start]];
  const states = [{ m: 0, v: 0 }, { m: 0, v: 0 }];
  let w = [...c.start];
  for (let t = 1; t <= c.steps; t++) {
    const { gradient } = valueAt(w, c);
    w = w.map((x, i) => {
      const chance = Math.sqrt(3) * (2 * uniform(c.seed, 2 * t - 1 + i) - 1);
      return moved(optimizer, x, gradient[i] + c.noise * chance, states[i], t, rate, c);
    });
    if (!w.every((x) => Math.abs(x) <= c.farthest)) break;
    path.push(w);
  }
  return path;
}

/** Pieces of the line on which the loss has a level, found on triangles. */
function levelLine(level, loss) {
  const size = (2 * VIEW) / GRID;
  const at = (i, j) => [i * size - VIEW, j * size - VIEW, loss[j][i] - level];
  const pieces = [];
  for (let j = 0; j < GRID; j++) for (let i = 0; i < GRID; i++) {
    const below = (loss[j][i] < level) + (loss[j][i + 1] < level) + (loss[j + 1][i] < level) + (loss[j + 1][i + 1] < level);
    if (below === 0 || below === 4) continue; // most squares: no line passes
    const [a, b, c, d] = [at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)];
    for (const corners of [[a, b, c], [a, c, d]]) {
      const cut = [];
      corners.forEach((p, n) => {
        const q = corners[(n + 1) % 3];
        if (p[2] < 0 === q[2] < 0) return;
        const share = p[2] / (p[2] - q[2]);
        cut.push([p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])]);
      });
      if (cut.length === 2) pieces.push(cut);
    }
  }
  return pieces;
}

/** The part of a line between two points that lies in the picture; what leaves it is not drawn. */
function clipped([x0, y0], [x1, y1]) {
  let [from, to] = [0, 1];
  for (const [p, q] of [[x0 - x1, x0], [x1 - x0, SIDE - x0], [y0 - y1, y0], [y1 - y0, SIDE - y0]]) {
    if (p === 0 && q < 0) return "";
    if (p < 0) from = Math.max(from, q / p);
    if (p > 0) to = Math.min(to, q / p);
  }
  if (from > to) return "";
  const at = (share) => (share === 0 ? [x0, y0] : share === 1 ? [x1, y1] : [x0 + share * (x1 - x0), y0 + share * (y1 - y0)]).join(" ");
  return `M${at(from)}L${at(to)}`;
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["optimizer", "against", "surface", "lr", "against_lr", "momentum", "beta2", "weight_decay", "condition", "tilt", "noise", "seed", "start", "step"];
    const { steps, reach, farthest, lowest, eps } = data;
    const now = () => ({ steps, farthest, lowest, eps, ...Object.fromEntries(names.map((key) => [key, model.get(key)])) });
    const px = (x) => ((x + VIEW) / (2 * VIEW)) * SIDE;
    const py = (y) => ((VIEW - y) / (2 * VIEW)) * SIDE;

    // ------------------------------------------------------------------ controls
    const keys = Object.keys(data.labels);
    const labels = Object.values(data.labels);
    const size = (name, label, text = (x) => String(Number(x.toPrecision(3)))) =>
      stops(model, name, { label, stops: () => data.stops[name], now: () => model.get(name), text });
    const own = choice(model, "optimizer", "Optimizer", labels, { keys });
    const other = choice(model, "against", "Beside it", ["nothing", ...labels], { keys: ["none", ...keys] });
    const rate = size("lr", "Its learning rate");
    const otherRate = size("against_lr", "Learning rate of that");
    const surface = options(model, "surface", "Surface", Object.entries(data.surfaces));
    const sizes = {
      condition: size("condition", "Steeper one way", (x) => `${Number(x.toPrecision(3))} times`),
      tilt: slider(model, "tilt", { label: "Turned by", min: 0, max: 45, step: 5, text: (x) => `${x}°` }),
      noise: size("noise", "Noise in the gradient"),
      momentum: size("momentum", "Momentum μ, or β₁"),
      beta2: size("beta2", "β₂"),
      weight_decay: size("weight_decay", "Weight decay λ"),
    };
    const step = slider(model, "step", { label: "Steps taken", min: 0, max: steps, text: String });
    const luck = h("button", {
      type: "button", class: "tfx-chip", "data-control": "fresh",
      onclick: () => {
        model.set("seed", (model.get("seed") + 1) % 10_000);
        model.save_changes();
      },
    }, "Other noise");

    // ------------------------------------------------------------------ the plane
    const lines = h("g", {});
    const tracks = ["k", "q"].map((letter) => ({
      later: h("path", { class: `tfx-trail tfx-${letter}` }),
      line: h("path", { class: `tfx-track-line tfx-${letter}`, "data-name": letter === "q" ? "path" : "against_path" }),
      dots: h("g", { class: `tfx-dots tfx-${letter}` }),
      head: h("circle", { class: `tfx-head tfx-${letter}`, r: 5.5 }),
    }));
    const cross = h("path", { class: "tfx-cross", d: `M${px(lowest[0]) - 6} ${py(lowest[1])}h12m-6-6v12` });
    const handle = h("div", {
      class: "tfx-handle", tabindex: 0, role: "slider", "aria-label": "Start, arrow keys move it",
      "aria-valuemin": -reach, "aria-valuemax": reach,
    }, h("span", {}, "s"));
    const plane = h("div", { class: "tfx-plane", role: "group", "aria-label": "The surface from above, with the paths" },
      h("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, "aria-hidden": "true" },
        h("line", { class: "tfx-axis", x1: 0, x2: SIDE, y1: py(0), y2: py(0) }),
        h("line", { class: "tfx-axis", y1: 0, y2: SIDE, x1: px(0), x2: px(0) }),
        lines, h("circle", { class: "tfx-zero", cx: px(0), cy: py(0), r: 6 }), cross,
        tracks.flatMap((t) => [t.later, t.line, t.dots, t.head])), handle);
    const tidy = (x) => Number(Math.max(-reach, Math.min(reach, Math.round(20 * x) / 20)).toFixed(2));
    const move = (start) => {
      model.set("start", start.map(tidy));
      model.save_changes();
    };
    const toPointer = (event) => {
      const box = plane.getBoundingClientRect();
      move([((event.clientX - box.left) / box.width) * 2 * VIEW - VIEW, VIEW - ((event.clientY - box.top) / box.height) * 2 * VIEW]);
    };
    let dragging = null;
    const grab = (event) => {
      if (event.button) return;
      dragging = event.pointerId;
      plane.setPointerCapture(dragging);
      handle.focus({ preventScroll: true });
      event.preventDefault();
    };
    handle.addEventListener("pointerdown", grab);
    plane.addEventListener("click", toPointer);
    plane.addEventListener("pointermove", (event) => event.pointerId === dragging && toPointer(event));
    for (const end of ["pointerup", "pointercancel"]) plane.addEventListener(end, () => (dragging = null));
    handle.addEventListener("keydown", (event) => {
      const by = event.shiftKey ? 5 * MOVE : MOVE;
      const way = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowDown: [0, -by], ArrowUp: [0, by] }[event.key];
      if (!way) return;
      event.preventDefault();
      move(model.get("start").map((x, i) => x + way[i]));
    });

    // ------------------------------------------------------------------ the loss
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const curves = ["raw", "scaled"].map((kind, i) => h("polyline", { class: `tfx-line tfx-${kind}`, "data-name": i ? "curve" : "curve_against" }));
    const plot = chart(cursor, ...curves);
    const marks = ["tfx-mark", "tfx-mark tfx-scaled"].map((kind) => h("span", { class: kind }));
    plot.node.append(...marks);
    const legend = [h("span", { class: "tfx-key tfx-raw" }), h("span", { class: "tfx-key" })];
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Loss over the steps. "), legend[1], " ", legend[0]), plot.node);
    const small = (x) => (x < 0.001 || x >= 10_000 ? (x === 0 ? "0" : written(x)) : show(x, 3));
    const written = (x) => {
      const [lead, e] = x.toExponential(1).split("e");
      const raised = [...String(Math.abs(e))].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]).join("");
      return `${Number(lead)}·10${e < 0 ? "⁻" : ""}${raised}`;
    };
    const stats = [stat("against_loss", "", small), stat("loss", "", small)];
    const spots = ["against_w", "w"].map((name) => [0, 1].map((i) => reading(`${name}[${i}]`, 2)));
    const formulas = [h("p", { class: "tfx-note" }), h("p", { class: "tfx-note" })];
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-columns tfx-even tfx-racing" },
        h("div", { class: "tfx-stack" }, own.node, rate.node, formulas[1], other.node, otherRate.node, formulas[0], step.node),
        h("div", {}, plane, h("p", { class: "tfx-note tfx-caption" }, "s: the start, drag it. +: where the loss is 0. Ring: the origin, to which a weight decay pulls."))),
      h("div", { class: "tfx-columns" }, h("div", { class: "tfx-stack" }, stats[1].node, stats[0].node), figure), said.node,
      folded("The surface, noise and the other numbers", surface.node,
        h("div", { class: "tfx-pairs" }, Object.values(sizes).map((c) => c.node)), luck)));

    let drawn = "";
    const draw = () => {
      const c = now();
      [own, other, rate, otherRate, surface, step, ...Object.values(sizes)].forEach((control) => control.update());
      const two = c.against !== "none";
      const kinds = [c.against, c.optimizer];
      otherRate.node.hidden = !two;
      sizes.tilt.node.hidden = c.surface !== "bowl";
      sizes.momentum.node.hidden = kinds.every((k) => ["sgd", "none"].includes(k));
      sizes.beta2.node.hidden = kinds.every((k) => ["sgd", "momentum", "none"].includes(k));
      luck.hidden = !c.noise;

      const look = [c.surface, c.condition, c.tilt].join();
      if (look !== drawn) {
        drawn = look;
        const places = Array.from({ length: GRID + 1 }, (_, i) => (i * 2 * VIEW) / GRID - VIEW);
        const loss = places.map((y) => places.map((x) => valueAt([x, y], c).loss));
        lines.replaceChildren(...LEVELS.map((level) => h("path", {
          class: "tfx-level", "data-level": level,
          d: levelLine(level, loss).map(([a, b]) => `M${px(a[0])} ${py(a[1])}L${px(b[0])} ${py(b[1])}`).join(""),
        })));
      }
      handle.style.left = `${(100 * px(c.start[0])) / SIDE}%`;
      handle.style.top = `${(100 * py(c.start[1])) / SIDE}%`;
      handle.setAttribute("aria-valuenow", c.start[0]);
      handle.setAttribute("aria-valuetext", `${show(c.start[0], 2)} across, ${show(c.start[1], 2)} up; loss ${small(valueAt(c.start, c).loss)}`);

      const paths = [two ? walk(c.against, c.against_lr, c) : [], walk(c.optimizer, c.lr, c)];
      const losses = paths.map((path) => path.map((w) => valueAt(w, c).loss));
      const logs = losses.map((list) => list.map((x) => Math.max(FLOOR, Math.log10(Math.max(x, 1e-300)))));
      const every = logs.flat();
      const low = Math.floor(Math.min(0, ...every)), high = Math.min(6, Math.ceil(Math.max(0.01, ...every)));
      const stride = Math.ceil((high - low) / 4);
      const ys = Array.from({ length: Math.floor((high - low) / stride) + 1 }, (_, i) => low + i * stride);
      plot.frame([0, steps], [low, high], [0, 1, 2, 3, 4].map((i) => (i * steps) / 4), ys, (x) => x);
      plot.node.querySelectorAll(".tfx-ytick").forEach((n, i) => (n.textContent = ys[i] === 0 ? "1" : written(10 ** ys[i]).replace("1·", "")));
      const words = [];
      paths.forEach((path, i) => {
        const t = tracks[i];
        const shown = Boolean(path.length);
        formulas[i].textContent = shown ? data.formulas[kinds[i]] : "";
        formulas[i].hidden = !shown;
        const gone = shown && c.step >= path.length;
        const spot = path[Math.min(c.step, path.length - 1)];
        const places = path.map(([x, y]) => [px(x), py(y)]);
        const inside = ([x, y]) => x >= 0 && x <= SIDE && y >= 0 && y <= SIDE;
        const pieces = places.slice(1).map((b, n) => clipped(places[n], b));
        t.later.setAttribute("d", pieces.join(""));
        t.line.setAttribute("d", pieces.slice(0, c.step).join(""));
        t.dots.replaceChildren(...places.slice(0, c.step + 1).filter(inside).map(([x, y]) => h("circle", { cx: x, cy: y, r: 1.9 })));
        t.head.style.display = shown && !gone && inside(places[c.step]) ? "" : "none";
        marks[i].hidden = curves[i].style.display = "";
        curves[i].style.display = shown ? "" : "none";
        marks[i].hidden = !shown || gone || Math.log10(losses[i][c.step]) > high;
        stats[i].node.hidden = legend[i].hidden = !shown;
        if (!shown) return stats[i].clear();
        const label = data.labels[kinds[i]];
        legend[i].textContent = label;
        stats[i].node.firstChild.textContent = `loss of ${label}`;
        plot.points(curves[i], logs[i].map((y, x) => [x, Math.min(y, high)]));
        if (gone) {
          stats[i].clear();
          spots[i].forEach((r) => r.clear());
          stats[i].note.textContent = `left, beyond ${written(farthest).replace("1·", "")}, at step ${path.length}`;
          words[i] = `${label} has left for good, at step ${path.length}`;
          return undefined;
        }
        t.head.setAttribute("cx", px(spot[0]));
        t.head.setAttribute("cy", py(spot[1]));
        plot.place(marks[i], c.step, logs[i][c.step]);
        stats[i].set(losses[i][c.step]);
        spots[i].forEach((r, n) => r.set(spot[n]));
        stats[i].note.replaceChildren("at (", spots[i][0].node, ", ", spots[i][1].node, ")");
        words[i] = `${label} stands at ${show(spot[0], 2)}, ${show(spot[1], 2)} with loss ${small(losses[i][c.step])}`;
        return undefined;
      });
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.at(c.step));
      said.set(`After ${c.step} steps ${[words[1], words[0]].filter(Boolean).join("; ")}.`);
    };
    return follow(model, names, draw);
  },
};
