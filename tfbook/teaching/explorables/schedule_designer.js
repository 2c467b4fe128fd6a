import { chart, choice, folded, follow, grouped, h, options, show, slider, stat, stops, summary, titled } from "./shared.js";

const POINTS = 400; // of a curve

/** The choices as far as they fit into the steps: the same as settled in _schedules.py. */
function settled(now) {
  const warmup = Math.min(now.warmup, now.steps - 1);
  return { ...now, warmup, decay: Math.min(now.decay, now.steps - warmup), step: Math.min(now.step, now.steps) };
}

const rise = (s, { warmup }) => Math.min(1, (s + 1) / (warmup + 1));
const between = (s, from, to) => Math.min(Math.max((s - from) / (to - from), 0), 1);
const halfWave = (u) => (1 + Math.cos(Math.PI * u)) / 2;
const fallTo = (floor, left) => floor + (1 - floor) * left;

/** First step and length of the wave of a restarted cosine in which a step lies. */
function waveOf(s, { warmup, period, stretch }) {
  let [start, length] = [warmup, period];
  if (stretch === 1) start += Math.floor((s - start) / period) * period;
  while (s - start >= length) [start, length] = [start + length, length * stretch];
  return [start, length];
}

// After the rise; the same as in tfbook/optimization/schedules.py.
const AFTER = {
  constant: () => 1,
  inverse_sqrt: (s, c) => Math.sqrt(c.warmup / s),
  linear: (s, c) => 1 - (1 - c.floor) * between(s, c.warmup, c.steps),
  cosine: (s, c) => fallTo(c.floor, halfWave(between(s, c.warmup, c.steps))),
  exponential: (s, c) => 0.5 ** ((s - c.warmup) / c.half_life),
  restarts: (s, c) => {
    const [start, length] = waveOf(s, c);
    return fallTo(c.floor, halfWave((s - start) / length));
  },
  wsd: (s, c) => {
    const u = between(s, c.steps - c.decay, c.steps);
    return 1 - (1 - c.floor) * (c.fall === "sqrt" ? Math.sqrt(u) : u);
  },
};

/** The learning rate of a schedule, as a function of the step. */
function rateOf(shape, now) {
  const least = ["noam", "inverse_sqrt"].includes(shape) ? 1 : 0;
  const c = { ...now, warmup: Math.max(least, now.warmup) };
  if (shape === "noam") return (s) => c.d_model ** -0.5 * Math.min(Math.max(s, 1) ** -0.5, Math.max(s, 1) * c.warmup ** -1.5);
  return (s) => c.peak * (s < c.warmup ? rise(s, c) : AFTER[shape](s, c));
}

/** Where a curve has corners, besides even places. */
function places(shape, now) {
  const { steps, warmup, decay } = now;
  const list = Array.from({ length: POINTS + 1 }, (_, i) => Math.round((i * steps) / POINTS));
  list.push(Math.max(1, warmup));
  if (shape === "wsd") list.push(steps - decay);
  if (shape === "restarts") {
    // Waves shorter than a point of the picture cannot be drawn one by one.
    for (let s = warmup, n = 0; s < steps && n < POINTS; n++) {
      const [start, length] = waveOf(s, now);
      s = start + length;
      list.push(s - 1, s);
    }
  }
  return [...new Set(list.filter((s) => s <= steps))].sort((a, b) => a - b);
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const power = (e) => `10${e < 0 ? "⁻" : ""}${[...String(Math.abs(e))].map((d) => RAISED[d]).join("")}`;

/** A learning rate with three digits that count. */
function written(x) {
  if (x === 0) return "0";
  if (x >= 0.00995) return String(Number(x.toPrecision(3)));
  const [lead, e] = x.toExponential(2).split("e");
  return Number(lead) === 1 ? power(Number(e)) : `${Number(lead)}·${power(Number(e))}`;
}

const short = (s) => (s >= 1000 ? `${Number((s / 1000).toFixed(2))}k` : String(s));

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["shape", "against", "peak", "steps", "warmup", "step", "floor", "d_model", "half_life", "period", "stretch", "decay", "fall"];
    const now = () => settled(Object.fromEntries(names.map((key) => [key, model.get(key)])));

    // ------------------------------------------------------------------ controls
    const keys = Object.keys(data.shapes);
    const labels = Object.values(data.shapes).map((s) => s.label);
    const shape = choice(model, "shape", "Schedule", labels, { keys });
    const against = choice(model, "against", "Beside it", ["nothing", ...labels], { keys: ["none", ...keys] });
    const size = (name, label, fits = () => true, text = grouped) => stops(model, name, {
      label, stops: () => data.stops[name].filter(fits), now: () => now()[name], text,
    });
    const always = {
      peak: size("peak", "Highest rate", undefined, written),
      steps: size("steps", "Steps in all"),
      warmup: size("warmup", "Steps of warm-up w", (x) => x < now().steps),
    };
    const others = {
      d_model: size("d_model", "Size of the model d"),
      floor: slider(model, "floor", { label: "Floor, a share", min: 0, max: 50, read: (i) => i / 50, write: (x) => Math.round(50 * x), text: (x) => show(x, 2) }),
      half_life: size("half_life", "Half-life, steps", (x) => x <= now().steps),
      period: size("period", "First wave, steps", (x) => x <= now().steps),
      stretch: size("stretch", "Each wave longer", undefined, (x) => `${x} times`),
      decay: size("decay", "Steps of the fall", (x) => x <= now().steps - now().warmup),
      fall: options(model, "fall", "The fall is", [["linear", "a line"], ["sqrt", "a root"]]),
    };
    const step = slider(model, "step", {
      label: "Step s", min: 0, max: 200, text: grouped,
      read: (i) => Math.round((i * now().steps) / 200), write: (s) => Math.round((200 * now().step) / now().steps),
    });

    // ------------------------------------------------------------------ the picture
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const lines = ["raw", "scaled"].map((kind, i) => h("polyline", { class: `tfx-line tfx-${kind}`, "data-name": i ? "curve" : "curve_against" }));
    const plot = chart(cursor, ...lines);
    const marks = ["tfx-mark", "tfx-mark tfx-scaled"].map((kind) => h("span", { class: kind }));
    plot.node.append(...marks);
    plot.node.classList.add("tfx-tall");
    const unit = h("span", {});
    const own = h("span", { class: "tfx-key" });
    const other = h("span", { class: "tfx-key tfx-raw" });
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Learning rate over the steps", unit, ". "), own, " ", other), plot.node);
    // A click in the picture reads the rate there.
    plot.node.addEventListener("pointerdown", (event) => {
      const box = plot.svg.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      model.set("step", Math.round(share * now().steps));
      model.save_changes();
    });
    const formula = h("p", { class: "tfx-note" });
    const stats = {
      rate: stat("rate", "rate at step s", written),
      highest: stat("highest", "highest", written),
      mean: stat("mean", "mean of all steps", written),
      last: stat("last", "at the last step", written),
    };
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-pairs tfx-apart" }, shape.node, against.node), step.node, figure, formula,
      h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).map((s) => s.node)), said.node,
      folded("Length, warm-up and what else the schedules take",
        h("div", { class: "tfx-thirds" }, Object.values(always).map((c) => c.node), Object.values(others).map((c) => c.node)))));

    const draw = () => {
      const c = now();
      const chosen = [c.shape, c.against].filter((s) => s !== "none");
      const takes = new Set(chosen.flatMap((s) => data.shapes[s].takes));
      [shape, against, step, ...Object.values(always)].forEach((control) => control.update());
      for (const [key, control] of Object.entries(others)) {
        control.update();
        control.node.hidden = !takes.has(key);
      }
      always.peak.node.hidden = chosen.every((s) => s === "noam");
      const { label, formula: then } = data.shapes[c.shape];
      formula.textContent = c.shape === "noam" ? `Rate at step s (0 counts as 1): ${then}.` :
        `Up to step w: (s + 1) / (w + 1). Then: ${then}. Times the highest rate.`;

      const rates = chosen.map((s) => rateOf(s, c));
      const top = Math.max(...chosen.map((s, i) => rates[i](s === "noam" || s === "inverse_sqrt" ? Math.max(1, c.warmup) : c.warmup)));
      const e = Math.floor(Math.log10(top) + 1e-9);
      const high = top / 10 ** e;
      const every = high < 2 ? 0.5 : high < 5 ? 1 : 2;
      const ys = Array.from({ length: Math.floor(high / every + 1e-9) + 1 }, (_, i) => i * every);
      plot.frame([0, c.steps], [0, 1.06 * high], [0, 1, 2, 3, 4].map((i) => (i * c.steps) / 4), ys, (x) => String(x));
      plot.node.querySelectorAll(".tfx-xtick").forEach((n, i) => (n.textContent = short((i * c.steps) / 4)));
      unit.textContent = e ? `, in ${power(e)}` : "";
      own.textContent = label;
      [other, lines[0], marks[0]].forEach((node) => node.toggleAttribute("hidden", chosen.length < 2));
      other.textContent = chosen.length > 1 ? data.shapes[c.against].label : "";
      lines[0].style.display = chosen.length > 1 ? "" : "none";
      chosen.forEach((s, i) => {
        plot.points(lines[1 - i], places(s, c).map((x) => [x, rates[i](x) / 10 ** e]));
        plot.place(marks[1 - i], c.step, rates[i](c.step) / 10 ** e);
      });
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.at(c.step));

      let [sum, highest] = [0, 0];
      for (let s = 0; s < c.steps; s++) {
        const x = rates[0](s);
        sum += x;
        highest = Math.max(highest, x);
      }
      const here = rates[0](c.step);
      stats.rate.set(here);
      stats.rate.note.replaceChildren(`${show((100 * here) / highest, 1)}% of the highest`);
      stats.highest.set(highest);
      stats.highest.note.textContent = `reached at step ${grouped(c.shape === "noam" || c.shape === "inverse_sqrt" ? Math.max(1, c.warmup) : c.warmup)}`;
      stats.mean.set(sum / c.steps);
      stats.mean.note.textContent = `${show((100 * sum) / c.steps / highest, 1)}% of the highest`;
      stats.last.set(rates[0](c.steps - 1));
      stats.last.note.textContent = `step ${grouped(c.steps - 1)}`;
      let words = `At step ${grouped(c.step)} of ${grouped(c.steps)} the learning rate is ${written(here)}.`;
      if (chosen.length > 1) words += ` Beside it, ${data.shapes[c.against].label}: ${written(rates[1](c.step))}.`;
      said.set(words);
      const beside = chosen.length > 1 ? rates[1](c.step) : null;
      for (const key of ["name", "value"]) delete other.dataset[key];
      if (beside !== null) Object.assign(other.dataset, { name: "against_rate", value: beside });
    };
    return follow(model, names, draw);
  },
};
