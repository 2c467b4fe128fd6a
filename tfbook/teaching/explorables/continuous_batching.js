import { folded, follow, h, options, show, slider, stat, summary, titled, uniform } from "./shared.js";

/** Tokens of prompts and answers: the same as requests in _serving.py. */
function requests(answers, seed, n) {
  const length = { equal: () => 12, mixed: (u) => 2 + Math.floor(22 * u), heavy: (u) => 2 + Math.floor(38 * u * u * u) }[answers];
  const drawn = Array.from({ length: 2 * n }, (_, i) => uniform(seed, i + 1));
  return drawn.slice(0, n).map((u, i) => ({ request: i, prompt: 2 + Math.floor(14 * u), asked: length(drawn[n + i]) }));
}

const highest = (list, of) => Math.max(...list.map(of));

/** Who is where in batches that are filled once. */
function filledOnce(all, slots) {
  const spans = [];
  for (let start = 0; all.length; ) {
    const [part, rest] = [all.slice(0, slots), all.slice(slots)];
    const end = start + highest(part, (r) => r.asked) - 1;
    const rows = highest(part, (r) => r.prompt) + highest(part, (r) => r.asked) - 1;
    spans.push(...part.map((r, slot) => ({ ...r, slot, start, done: start + r.asked - 1, end, rows })));
    [start, all] = [end, rest];
  }
  return spans;
}

/** Who is where if the next takes each slot that is free: what the package's Server does. */
function filledAnew(all, slots) {
  const free = Array(slots).fill(0);
  return all.map((r) => {
    const start = Math.min(...free);
    const slot = free.indexOf(start);
    free[slot] = start + r.asked - 1;
    return { ...r, slot, start, done: free[slot], end: free[slot] };
  });
}

/** The same numbers as _results in _serving.py. */
function numbers({ policy, answers, slots, page_size: size, step: at, seed, n }) {
  const all = requests(answers, seed, n);
  const isStatic = policy === "static";
  const spans = isStatic ? filledOnce(all, slots) : filledAnew(all, slots);
  const sum = (list, of) => list.reduce((total, x) => total + of(x), 0);
  const steps = highest(spans, (s) => s.end);
  const look = (step) => spans.filter((s) => s.start <= step && step < s.end).map((s) => {
    const filled = s.prompt + Math.min(step + 1, s.done) - s.start;
    return { ...s, filled, held: isStatic ? s.rows : Math.ceil(filled / size) * size };
  });
  const step = Math.min(at, steps - 1);
  const running = look(step);
  const held = sum(running, (s) => s.held);
  const computed = sum(spans, (s) => s.end - s.start);
  const useful = sum(spans, (s) => s.done - s.start);
  return {
    all: spans, now: running, step_shown: step, steps, computed, useful, wasted: computed - useful, tokens_a_step: useful / steps,
    spans: spans.map((s) => [s.request, s.slot, s.start, s.done, s.end]),
    running: running.map((s) => [s.request, s.slot, s.filled, s.held]),
    finished: spans.filter((s) => s.done <= step + 1).length, mean_end: sum(spans, (s) => s.done) / n,
    held, empty: 1 - sum(running, (s) => s.filled) / held,
    peak: highest(Array.from({ length: steps }, (_, i) => sum(look(i), (s) => s.held)), (x) => x),
  };
}

const percent = (x) => `${show(100 * x, 0)}%`;

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["policy", "answers", "slots", "page_size", "step", "seed"];
    const now = () => ({ ...Object.fromEntries(names.map((name) => [name, model.get(name)])), n: data.requests });

    // ------------------------------------------------------------------ controls
    const policy = options(model, "policy", "The batch is", Object.entries(data.policies));
    const answers = options(model, "answers", "Lengths of answers", Object.entries(data.answers));
    const page = options(model, "page_size", "Rows of a page", data.pages.map((s) => [s, String(s)]));
    const slots = slider(model, "slots", { label: "Slots of the batch", min: 1, max: data.most_slots, text: String });
    const step = slider(model, "step", { label: "Step", min: 0, max: 1, write: () => numbers(now()).step_shown, text: () => String(numbers(now()).step_shown) });
    const fresh = h("button", {
      class: "tfx-chip", type: "button", "data-control": "fresh",
      onclick: () => {
        model.set("seed", (model.get("seed") % 9999) + 1);
        model.save_changes();
      },
    }, "Other requests");

    // ------------------------------------------------------------------ slots over time, and the cache
    const lanesOf = (...content) => {
      const svg = h("svg", { preserveAspectRatio: "none" }, content);
      const [labels, left, ticks] = [h("div", {}), h("div", { class: "tfx-lanes-left" }), h("div", {})];
      const node = h("div", { class: "tfx-lanes", "aria-hidden": "true" }, left, h("div", { class: "tfx-lanes-box" }, svg, labels, ticks));
      const frame = (wide, high) => {
        svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
        node.style.setProperty("--lanes", high);
        left.replaceChildren(...Array.from({ length: high }, (_, i) => h("span", {}, String(i))));
        ticks.replaceChildren(...[0, 1, 2, 3, 4].map((i) => Math.round((i * wide) / 4)).map((t) => h("span", { class: "tfx-xtick", style: { left: `${(100 * t) / wide}%` } }, String(t))));
      };
      return { node, svg, labels, frame };
    };
    const [boxes, cursor, rows] = [h("g", {}), h("rect", { class: "tfx-now", y: 0, width: 1 }), h("g", {})];
    const time = lanesOf(boxes, cursor);
    let wide = 1; // steps that the picture has room for
    time.svg.addEventListener("pointerdown", (event) => {
      const box = time.svg.getBoundingClientRect();
      const { steps } = numbers(now());
      model.set("step", Math.min(steps - 1, Math.max(0, Math.floor((wide * (event.clientX - box.left)) / box.width))));
      model.save_changes();
    });
    const memory = lanesOf(rows);
    memory.node.classList.add("tfx-low-lanes");
    const picture = (title, keys, plot) => h("figure", { class: "tfx-curve" }, h("figcaption", {}, h("strong", {}, title), " ", ...keys.flat()), plot);
    const key = (kind, text) => [h("span", { class: `tfx-key ${kind}` }, text), " "];
    const stats = {
      steps: stat("steps", "steps until all are served", String),
      tokens_a_step: stat("tokens_a_step", "wanted tokens a step", 2),
      wasted: stat("wasted", "tokens computed for nothing", String),
      mean_end: stat("mean_end", "steps until a request is done, on average", 1),
      peak: stat("peak", "rows of the cache held at most", String),
      empty: stat("empty", "of the rows held now are empty", percent),
    };
    const body = h("tbody", {});
    const table = h("table", { class: "tfx-table tfx-scanned" },
      h("caption", {}, "Who runs in this step"),
      h("thead", {}, h("tr", {}, ["slot", "request", "tokens made", "rows filled", "rows held"].map((text) => h("th", { scope: "col" }, text)))), body);
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-abreast" }, policy.node, fresh), h("div", { class: "tfx-pair-wide" }, answers.node, slots.node),
      picture("Slots over steps.", [key("tfx-forward", "a token that is wanted"), key("tfx-backward", "one that nobody asked for"), h("span", { class: "tfx-note" }, "Number: request. Grey: the step that is looked at.")], time.node),
      step.node, h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).slice(0, 4).map((s) => s.node)), said.node,
      folded("The cache in this step", page.node,
        picture("Rows of keys and values in this step.", [key("tfx-forward", "filled"), key("tfx-backward", "held, but empty"), h("span", { class: "tfx-note" }, "A line for each slot; thin lines: ends of pages.")], memory.node),
        h("div", { class: "tfx-stats tfx-two" }, Object.values(stats).slice(4).map((s) => s.node)), table)));

    const draw = () => {
      const given = now();
      const c = numbers(given);
      const other = numbers({ ...given, policy: given.policy === "static" ? "continuous" : "static" });
      const isStatic = given.policy === "static";
      step.input.max = Math.max(1, c.steps - 1);
      [policy, answers, page, slots, step].forEach((control) => control.update());

      // Both kinds on one scale, so that the shorter one is seen to be shorter.
      wide = Math.max(c.steps, other.steps);
      time.frame(wide, given.slots);
      const box = (kind, lane, from, to, props = {}) => h("rect", { class: `tfx-task ${kind}`, x: from, y: lane + 0.06, width: to - from, height: 0.88, ...props });
      boxes.replaceChildren(...c.all.flatMap((s) => [
        box(`tfx-forward${s.start <= c.step_shown && c.step_shown < s.end ? " tfx-on" : ""}`, s.slot, s.start, s.done, { "data-request": s.request }),
        s.end > s.done ? box("tfx-backward", s.slot, s.done, s.end, { "data-wasted": s.request }) : "",
      ]).filter(Boolean));
      time.labels.replaceChildren(...c.all.filter((s) => (s.done - s.start) * 48 > wide).map((s) => h("span", {
        class: `tfx-tasknumber${s.start <= c.step_shown && c.step_shown < s.end ? " tfx-on" : ""}${(s.done - s.start) * 20 > wide ? "" : " tfx-needs-room"}`, "data-n": s.request,
        style: { left: `${(50 * (s.start + s.done)) / wide}%`, top: `${(100 * (s.slot + 0.5)) / given.slots}%` },
      })));
      cursor.setAttribute("x", c.step_shown);
      cursor.setAttribute("height", given.slots);
      const longest = Math.max(...c.all.map((s) => s.prompt)) + Math.max(...c.all.map((s) => s.asked)) - 1;
      memory.frame(Math.max(longest, ...c.now.map((s) => s.held)), given.slots);
      rows.replaceChildren(...c.now.flatMap((s) => {
        const size = isStatic ? s.held : given.page_size;
        return Array.from({ length: s.held / size }, (_, i) => i * size).flatMap((from) => {
          const full = Math.min(from + size, s.filled);
          return [box("tfx-forward", s.slot, from, full), full < from + size ? box("tfx-backward", s.slot, full, from + size) : ""];
        });
      }).filter(Boolean));
      body.replaceChildren(...c.now.map((s) => h("tr", {}, h("th", { scope: "row" }, String(s.slot)),
        [["request", s.request], ["made", Math.min(c.step_shown + 1, s.done) - s.start + 1], ["filled", s.filled], ["held", s.held]].map(([name, x]) =>
          h("td", { class: "tfx-number", "data-name": `${name}[${s.slot}]`, "data-value": x }, name === "made" ? `${x} of ${s.asked}` : String(x))))));
      for (const [name, s] of Object.entries(stats)) s.set(c[name]);
      const [here, there] = isStatic ? ["static", "continuous"] : ["continuous", "static"];
      const note = (name, text) => (stats[name].note.textContent = text);
      note("steps", `${there}: ${other.steps}`);
      note("tokens_a_step", `of ${given.slots} slots; ${there}: ${show(other.tokens_a_step, 2)}`);
      note("wasted", `${percent(c.wasted / c.computed)} of ${c.computed}`);
      note("mean_end", `${there}: ${show(other.mean_end, 1)}`);
      note("peak", `${there}: ${other.peak}`);
      note("empty", `${c.held} rows are held`);
      said.set(`With ${here} batches all ${data.requests} requests are served after ${c.steps} steps, and ${c.wasted} of ${c.computed} tokens are computed for nothing. After step ${c.step_shown}, ${c.finished} are done.`);
    };
    return follow(model, names, draw);
  },
};
