import { choice, folded, follow, grouped, h, options, reading, show, slider, stat, stops, summary, titled } from "./shared.js";

const WIDE = 360; // the picture's own units
const ROW = 42;

/** For each level its joins [s, t], the pair at s before the pair at t: the same as levels in _scan.py. */
function levels(method, n) {
  const every = (from, by, d) => Array.from({ length: Math.max(0, Math.ceil((n - from) / by)) }, (_, i) => [from + i * by - d, from + i * by]);
  if (method === "sequential") return every(1, 1, 1).map((join) => [join]);
  const distances = Array.from({ length: Math.log2(n) }, (_, p) => 2 ** p);
  if (method === "hillis_steele") return distances.map((d) => every(d, 1, d));
  return [...distances.map((d) => every(2 * d - 1, 2 * d, d)), ...distances.slice(0, -1).reverse().map((d) => every(3 * d - 1, 2 * d, d))];
}

/** The pairs after 0, 1, … levels, and the first of the steps that each stands for. */
function run(plan, pairs) {
  const states = [{ pairs, from: pairs.map((_, t) => t) }];
  for (const joins of plan) {
    const before = states.at(-1);
    const after = { pairs: [...before.pairs], from: [...before.from] };
    for (const [s, t] of joins) {
      const [[a, b], [c, d]] = [before.pairs[s], before.pairs[t]];
      after.pairs[t] = [c * a, c * b + d];
      after.from[t] = before.from[s];
    }
    states.push(after);
  }
  return states;
}

/** Levels, joins, and rounds of p joins at once: the same as account in _scan.py. */
function account(method, n, p) {
  if (method === "sequential") return { depth: n - 1, work: n - 1, rounds: n - 1 };
  const powers = Array.from({ length: Math.log2(n) }, (_, i) => 2 ** i);
  const sizes = method === "hillis_steele" ? powers.map((d) => n - d) : [...powers, ...powers.slice(1).map((d) => d - 1)];
  const sum = (of) => sizes.reduce((all, size) => all + of(size), 0);
  return { depth: sizes.length, work: sum((size) => size), rounds: sum((size) => Math.ceil(size / p)) };
}

const short = (x) => (x !== 0 && Math.abs(x) < 0.0095 ? show(x, 3) : String(Number(x.toPrecision(3))).replace("-", "−"));

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["method", "n", "level", "reset", "length", "processors"];
    const get = (key) => model.get(key);
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };
    const depth = () => levels(get("method"), get("n")).length;
    const level = () => Math.min(get("level"), depth());
    const spot = () => (get("reset") < get("n") ? get("reset") : 0);
    /** A model in which one value is read as it holds now. */
    const held = (name, read) => ({ get: read, set: (_, value) => model.set(name, value), save_changes: () => model.save_changes() });

    // ------------------------------------------------------------------ controls
    const methods = Object.entries(data.labels);
    const method = choice(model, "method", "Way", methods.map(([, label]) => label), { keys: methods.map(([key]) => key) });
    const n = options(model, "n", "Steps n", data.sizes.map((size) => [size, String(size)]));
    const at = slider(held("level", level), "level", { label: "Levels done", min: 0, max: 15, text: (x) => `${x} of ${depth()}` });
    const reset = slider(held("reset", spot), "reset", { label: "Forget everything (g = 0) at t", min: 0, max: 15, text: (x) => (x ? String(x) : "nowhere") });
    const size = (name, label) => stops(model, name, { label, stops: () => data.stops[name], now: () => get(name) });
    const length = size("length", "Steps of a real sequence n"), processors = size("processors", "Joins at once p");
    const step = (name, label, kind, to) => h("button", { type: "button", class: kind, "data-control": name, onclick: () => save({ level: Math.max(0, Math.min(depth(), to())) }) }, label);
    const next = step("next", "Next level", "tfx-button", () => level() + 1);
    const buttons = h("div", { class: "tfx-chips" }, next, step("back", "Back", "tfx-chip", () => level() - 1), step("start", "Start", "tfx-chip", () => 0), step("end", "End", "tfx-chip", depth));

    // ------------------------------------------------------------------ the tree
    const svg = h("svg", { "aria-hidden": "true" }), marks = h("div", {});
    const tree = h("div", { class: "tfx-tree", "aria-hidden": "true" }, svg, marks);
    const key = (kind, text) => h("span", { class: `tfx-key ${kind}` }, text);
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Levels from top to bottom, steps t from left to right. "), key("", "two parts joined"), " ", key("tfx-handed", "as it was"), " ",
        h("span", { class: "tfx-note" }, "Below a dot stands its b.")), tree);
    const note = h("p", { class: "tfx-note" });

    // ------------------------------------------------------------------ numbers
    const body = h("tbody", {});
    const table = h("table", { class: "tfx-table tfx-scanned" },
      h("caption", {}, "The pairs now"),
      h("thead", {}, h("tr", {}, ["t", "steps joined", "g", "b", "h in the end"].map((text) => h("th", { scope: "col" }, text)))), body);
    const stats = {
      depth: stat("depth", "levels", grouped), work: stat("work", "joins", grouped),
      done: stat("done", "joins done", grouped), widest: stat("widest", "widest level", grouped),
    };
    const costs = methods.map(([name, label]) => {
      const values = Object.fromEntries(["depth", "work", "rounds"].map((column) => [column, reading(`${name}.${column}`, grouped)]));
      return { name, values, node: h("tr", {}, h("th", { scope: "row" }, label), Object.values(values).map((r) => h("td", {}, r.node))) };
    });
    const account_ = h("table", { class: "tfx-table tfx-known-table" },
      h("caption", {}, "At a real length"),
      h("thead", {}, h("tr", {}, ["way", "levels", "joins", "rounds of p joins"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, costs.map((c) => c.node)));
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("p", { class: "tfx-note" }, "h", h("sub", {}, "t"), " = g", h("sub", {}, "t"), " h", h("sub", {}, "t−1"), " + b", h("sub", {}, "t"),
        ". Joined: (g₁, b₁), then (g₂, b₂), is (g₂g₁, g₂b₁ + b₂)."),
      h("div", { class: "tfx-pairs tfx-apart" }, method.node, n.node),
      h("div", { class: "tfx-columns tfx-even" }, h("div", { class: "tfx-stack" }, figure, at.node, buttons), h("div", { class: "tfx-stack" }, table, reset.node, note)),
      h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).map((s) => s.node)),
      said.node, folded("The same at a real length", h("div", { class: "tfx-pairs" }, length.node, processors.node), account_)));

    const draw = () => {
      const count = get("n"), name = get("method");
      const pairs = data.a.slice(0, count).map((a, t) => [t && t === spot() ? 0 : a, data.b[t]]);
      const plan = levels(name, count);
      const states = run(plan, pairs);
      const ends = states.at(-1).pairs.map((pair) => pair[1]);
      const now = level();
      at.input.max = plan.length;
      reset.input.max = count - 1;
      [method, n, at, reset, length, processors].forEach((control) => control.update());
      next.setAttribute("aria-disabled", now === plan.length);

      const x = (t) => ((t + 0.5) * WIDE) / count, y = (i) => 14 + i * ROW;
      const tall = y(plan.length) + 24;
      svg.setAttribute("viewBox", `0 0 ${WIDE} ${tall}`);
      tree.style.setProperty("aspect-ratio", `${WIDE} / ${tall}`);
      const lines = [], dots = [], words = [];
      states.forEach(({ pairs: row }, i) => {
        const made = new Map(i ? plan[i - 1].map(([s, t]) => [t, s]) : []);
        row.forEach((pair, t) => {
          const join = made.has(t);
          const kind = i > now ? " tfx-todo" : i === now && i ? " tfx-fresh" : "";
          for (const s of !i ? [] : join ? [t, made.get(t)] : [t])
            lines.push(h("line", { class: `tfx-branch${join ? "" : " tfx-handed"}${kind}`, x1: x(s), y1: y(i - 1), x2: x(t), y2: y(i) }));
          dots.push(h("circle", { class: `tfx-knob${join ? " tfx-join" : ""}${kind}`, cx: x(t), cy: y(i), r: !i || join ? 5 : 2.5 }));
          if (count <= 8 && i <= now && (!i || join || i === now)) words.push(h("span", { class: "tfx-value", "data-b": show(pair[1], 2), style: { left: `${(100 * x(t)) / WIDE}%`, top: `${(100 * (y(i) + 14)) / tall}%` } }));
        });
      });
      svg.replaceChildren(h("g", {}, lines), h("g", {}, dots));
      marks.replaceChildren(...words);

      const { pairs: row, from } = states[now];
      body.replaceChildren(...row.map((pair, t) => {
        const cell = (key, value) => {
          const r = reading(`${key}[${t}]`, short);
          r.set(value);
          return h("td", {}, r.node);
        };
        const fresh = now > 0 && plan[now - 1].some((join) => join[1] === t);
        const part = from[t] === t ? String(t) : `${from[t]}–${t}`;
        return h("tr", { class: fresh ? "tfx-best" : "" }, h("th", { scope: "row" }, String(t)), h("td", {}, part), cell("a", pair[0]), cell("b", pair[1]), cell("h", ends[t]));
      }));
      const sizes = plan.map((joins) => joins.length);
      const sum = (list) => list.reduce((a, b) => a + b, 0);
      stats.depth.set(plan.length);
      stats.depth.note.textContent = { sequential: "n − 1", hillis_steele: "log₂ n", blelloch: "2 log₂ n − 1" }[name];
      stats.work.set(sum(sizes));
      stats.work.note.textContent = { sequential: "n − 1", hillis_steele: "n log₂ n − n + 1", blelloch: "2n − 2 − log₂ n" }[name];
      stats.done.set(sum(sizes.slice(0, now)));
      stats.done.note.textContent = `in ${now} of ${plan.length} levels`;
      stats.widest.set(Math.max(...sizes));
      stats.widest.note.textContent = "joins, done at once";
      for (const { name: way, values, node } of costs) {
        const found = account(way, get("length"), get("processors"));
        for (const [column, r] of Object.entries(values)) r.set(found[column]);
        node.classList.toggle("tfx-best", way === name);
      }
      note.textContent = now === plan.length ? "Each pair now stands for all steps up to its t, and its b is the state h." :
        name !== "blelloch" ? "Each pair stands for the steps that are joined in it." :
        now < Math.log2(count) ? "On the way up: a part is joined with the one before it." : "On the way down: what stands before a place is complete, and is joined with it.";
      said.set(`${data.labels[name]}: ${now} of ${plan.length} levels done, ${sum(sizes.slice(0, now))} of ${sum(sizes)} joins. ` +
        `At ${grouped(get("length"))} steps with ${grouped(get("processors"))} joins at once: ${costs.map((c) => `${data.labels[c.name]} ${c.values.rounds.node.textContent} rounds`).join(", ")}.`);
    };
    return follow(model, names, draw);
  },
};
