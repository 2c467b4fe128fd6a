import { folded, follow, h, options, show, slider, stat, summary, titled } from "./shared.js";

/** The tasks of each stage in their order, as [kind, micro]: the same as in tfbook/parallel/schedules.py. */
const SCHEDULES = {
  gpipe: (p, m) => Array.from({ length: p }, () => ["F", "B"].flatMap((kind) => Array.from({ length: m }, (_, i) => [kind, i]))),
  "1f1b": (p, m) => Array.from({ length: p }, (_, stage) => {
    const first = Math.min(m, p - 1 - stage);
    const tasks = Array.from({ length: first }, (_, i) => ["F", i]);
    for (let i = 0; i < m; i++) {
      if (first + i < m) tasks.push(["F", first + i]);
      tasks.push(["B", i]);
    }
    return tasks;
  }),
};

/** When each stage does each task, if it begins as soon as it can: the same as timeline. */
function timeline(stages, backward) {
  const ends = new Map();
  const done = stages.map(() => []);
  for (let moved = true; moved; ) {
    moved = false;
    stages.forEach((tasks, stage) => {
      while (done[stage].length < tasks.length) {
        const [kind, micro] = tasks[done[stage].length];
        const other = stage + (kind === "B" ? 1 : -1);
        // Its own forward pass stands before it in both orders.
        const need = other >= 0 && other < stages.length ? `${other}${kind}${micro}` : null;
        if (need && !ends.has(need)) return;
        const start = Math.max(done[stage].at(-1)?.end ?? 0, need ? ends.get(need) : 0);
        const end = start + (kind === "B" ? backward : 1);
        ends.set(`${stage}${kind}${micro}`, end);
        done[stage].push({ kind, micro, start, end });
        moved = true;
      }
    });
  }
  return done;
}

/** Of how many micro-batches a stage keeps activations at most. */
function inFlight(tasks) {
  let [kept, most] = [0, 0];
  for (const [kind] of tasks) {
    kept += kind === "F" ? 1 : -1;
    most = Math.max(most, kept);
  }
  return most;
}

/** The same numbers as _results in _pipeline.py. */
function numbers({ schedule, stages: p, micro_batches: m, backward, moment: at }) {
  const tasks = SCHEDULES[schedule](p, m);
  const spans = timeline(tasks, backward);
  const total = Math.max(...spans.flat().map((span) => span.end));
  const moment = Math.min(at, total - 1);
  const busy = spans.flat().reduce((sum, { start, end }) => sum + end - start, 0);
  const count = (stage, test) => stage.filter(test).length;
  const kept = tasks.map(inFlight);
  return {
    spans, total, moment_shown: moment, kept,
    bubble: 1 - busy / (total * p), formula: (p - 1) / (m + p - 1), most: Math.max(...kept), share: Math.max(...kept) / m,
    doing: spans.map((stage) => {
      const now = stage.find(({ start, end }) => start <= moment && moment < end);
      return now ? `${now.kind}${now.micro}` : "";
    }),
    held: spans.map((stage) => count(stage, (s) => s.kind === "F" && s.start <= moment) - count(stage, (s) => s.kind === "B" && s.end <= moment)),
    waits: spans.map((stage) => stage[0].start),
    others: Object.fromEntries(Object.entries(SCHEDULES).map(([name, make]) => [name, Math.max(...make(p, m).map(inFlight))])),
  };
}

const percent = (x) => `${show(100 * x, 1)}%`;
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["schedule", "stages", "micro_batches", "backward", "moment", "followed"];
    const now = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));

    // ------------------------------------------------------------------ controls
    const schedule = options(model, "schedule", "Schedule", Object.entries(data.labels));
    const whole = (name, label) => slider(model, name, { label, min: 1, max: data.most[name], text: String });
    const sizes = [whole("stages", "Stages p"), whole("micro_batches", "Micro-batches m"), whole("backward", "Time of a backward pass")];
    const moment = slider(model, "moment", { label: "Unit of time", min: 0, max: 1, write: () => numbers(now()).moment_shown, text: () => String(numbers(now()).moment_shown) });
    const followed = slider(model, "followed", { label: "Micro-batch that stands out", min: 0, max: 1, write: (x) => Math.min(x, model.get("micro_batches") - 1), text: (x) => String(Math.min(x, model.get("micro_batches") - 1)) });

    // ------------------------------------------------------------------ the picture
    const boxes = h("g", {});
    const cursor = h("rect", { class: "tfx-now" });
    const svg = h("svg", { preserveAspectRatio: "none" }, boxes, cursor);
    const labels = h("div", {});
    const left = h("div", { class: "tfx-lanes-left" });
    const ticks = h("div", {});
    const lanes = h("div", { class: "tfx-lanes", "aria-hidden": "true" }, left, h("div", { class: "tfx-lanes-box" }, svg, labels, ticks));
    svg.addEventListener("pointerdown", (event) => {
      const box = svg.getBoundingClientRect();
      const { total } = numbers(now());
      model.set("moment", Math.min(total - 1, Math.max(0, Math.floor((total * (event.clientX - box.left)) / box.width))));
      model.save_changes();
    });
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Stages over time. "), h("span", { class: "tfx-key tfx-forward" }, "forward"), " ", h("span", { class: "tfx-key tfx-backward" }, "backward"), " ",
        h("span", { class: "tfx-note" }, "Number: micro-batch. Gaps: the stage waits. Grey: the unit of time that is looked at.")), lanes);
    const stats = {
      bubble: stat("bubble", "of the time a stage waits", percent),
      total: stat("total", "units of time for a step", String),
      most: stat("most", "micro-batches kept at most", String),
      share: stat("share", "of the batch's activations kept", percent),
    };
    const body = h("tbody", {});
    const table = h("table", { class: "tfx-table tfx-keeping" },
      h("caption", {}, "Micro-batches whose activations a stage keeps"),
      h("thead", {}, h("tr", {}, ["stage", "does now", "keeps", "at most", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "tfx-hidden" }, "as a bar"))))), body);
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      schedule.node, h("div", { class: "tfx-thirds" }, sizes.map((s) => s.node)),
      figure, h("div", { class: "tfx-pairs" }, moment.node, followed.node),
      h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).map((s) => s.node)), said.node,
      folded("Stage by stage", table)));

    const draw = () => {
      const given = now();
      const { stages: p, micro_batches: m } = given;
      const c = numbers(given);
      moment.input.max = c.total - 1;
      followed.input.max = Math.max(1, m - 1);
      followed.node.hidden = m < 2;
      [schedule, moment, followed, ...sizes].forEach((control) => control.update());
      svg.setAttribute("viewBox", `0 0 ${c.total} ${p}`);
      lanes.style.setProperty("--lanes", p);
      const chosen = Math.min(given.followed, m - 1);
      const all = c.spans.flatMap((stage, lane) => stage.map((span) => ({ ...span, lane })));
      boxes.replaceChildren(...all.map(({ kind, micro, start, end, lane }) => h("rect", {
        class: `tfx-task tfx-${kind === "F" ? "forward" : "backward"}${micro === chosen ? " tfx-on" : ""}`,
        x: start, y: lane + 0.06, width: end - start, height: 0.88, "data-task": `${lane}${kind}${micro}`,
      })));
      for (const [key, value] of Object.entries({ x: c.moment_shown, y: 0, width: 1, height: p })) cursor.setAttribute(key, value);
      // A number stands where there is room for it: on a phone for the wider boxes only.
      labels.replaceChildren(...all.filter(({ start, end }) => c.total / (end - start) < 48).map(({ kind, micro, start, end, lane }) => h("span", {
        class: `tfx-tasknumber${micro === chosen ? " tfx-on" : ""}${c.total / (end - start) > 22 ? " tfx-needs-room" : ""}`, "data-kind": kind, "data-n": micro,
        style: { left: `${(50 * (start + end)) / c.total}%`, top: `${(100 * (lane + 0.5)) / p}%` },
      })));
      left.replaceChildren(...c.spans.map((_, i) => h("span", {}, String(i))));
      ticks.replaceChildren(...[0, 1, 2, 3, 4].map((i) => Math.round((i * c.total) / 4)).map((t) => h("span", { class: "tfx-xtick", style: { left: `${(100 * t) / c.total}%` } }, String(t))));
      body.replaceChildren(...c.kept.map((kept, i) => h("tr", {},
        h("th", { scope: "row" }, String(i)),
        h("td", { "data-name": `doing[${i}]`, "data-value": c.doing[i] }, c.doing[i] ? `${c.doing[i][0] === "F" ? "forward" : "backward"} ${c.doing[i].slice(1)}` : "waits"),
        h("td", { class: "tfx-number", "data-name": `held[${i}]`, "data-value": c.held[i] }, String(c.held[i])),
        h("td", { class: "tfx-number", "data-name": `kept[${i}]`, "data-value": kept }, String(kept)),
        h("td", { class: "tfx-wide" }, h("span", { class: "tfx-track tfx-held" },
          h("span", { class: "tfx-bar", style: { width: `${(100 * c.held[i]) / m}%` } }), h("span", { class: "tfx-limit", style: { left: `${(100 * kept) / m}%` } }))))));
      for (const [key, s] of Object.entries(stats)) s.set(c[key]);
      stats.bubble.note.textContent = `(p − 1)/(m + p − 1) = ${p - 1}/${m + p - 1}`;
      stats.total.note.textContent = `of them ${m * (1 + given.backward)} in work`;
      stats.most.note.textContent = `GPipe ${c.others.gpipe}, 1F1B ${c.others["1f1b"]}`;
      stats.share.note.textContent = `by the first stage, ${c.most} of ${plural(m, "micro-batch").replace("batchs", "batches")}`;
      said.set(`${data.labels[given.schedule]}, ${plural(p, "stage")}, ${plural(m, "micro-batch").replace("batchs", "batches")}: a stage waits ${percent(c.bubble)} of ${c.total} units of time and the first one keeps the activations of at most ${c.most}.`);
    };
    return follow(model, names, draw);
  },
};
