import { chart, follow, h, options, reading, slider, summary, titled, toggle } from "./shared.js";
import { voice } from "./asking.js";

const three = (x) => (x !== 0 && (x < 1e-3 || x >= 1e5) ? x.toExponential(1) : String(Number(x.toPrecision(3))));
// Lengths and scores differ by powers of ten.
const LOGS = ["norm", "score"];

export default {
  render({ model, el }) {
    const data = model.get("data");
    const get = (key) => model.get(key);
    const set = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };
    const last = data.every * (data.points - 1);
    const steps = Array.from({ length: data.points }, (_, i) => i * data.every);
    const at = () => Math.floor(get("step") / data.every);

    // ------------------------------------------------------------------ controls
    const run = options(model, "run", "Run", Object.keys(data.runs).map((name) => [name, name]));
    run.node.addEventListener("change", () => set({ answer: "" }));
    const healthy = toggle(model, "healthy", "The run without a fault beside it");
    const step = slider(model, "step", { label: "Step at which the traces are read", min: 0, max: last, step: data.every, text: (x) => String(x - (x % data.every)) });

    // ------------------------------------------------------------------ the traces
    const all = (trace) => Object.values(data.values).flatMap((each) => each[trace]);
    const panels = Object.entries(data.traces).map(([trace, label]) => {
      const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
      const other = h("polyline", { class: "tfx-line tfx-third", "data-name": `healthy_${trace}_line` });
      const own = h("polyline", { class: "tfx-line tfx-scaled", "data-name": `${trace}_line` });
      const plot = chart(cursor, other, own);
      plot.node.classList.add("tfx-roomy");
      plot.node.addEventListener("pointerdown", (event) => {
        const box = plot.svg.getBoundingClientRect();
        set({ step: data.every * Math.round((data.points - 1) * Math.min(1, Math.max(0, (event.clientX - box.left) / box.width))) });
      });
      const [here, there] = [reading(trace, three), reading(`healthy_${trace}`, three)];
      const beside = h("span", { class: "tfx-note" }, h("span", { class: "tfx-hidden" }, " healthy"), " (", there.node, ")");
      const node = h("figure", { class: "tfx-curve tfx-panel", "data-trace": trace }, h("figcaption", {}, h("strong", {}, `${label[0].toUpperCase()}${label.slice(1)}: `), here.node, beside), plot.node);
      const scale = LOGS.includes(trace) ? Math.log10 : (x) => x;
      const low = Math.floor(Math.min(...all(trace).map(scale)));
      const draw = (values, normal, shown) => {
        const top = trace === "entropy" ? 1.05 : LOGS.includes(trace) ? Math.ceil(Math.max(...all(trace).map(scale))) : Math.max(5.2, 1.05 * Math.max(...values));
        const [from, every] = LOGS.includes(trace) ? [low, Math.ceil((top - low) / 4)] : [0, trace === "entropy" ? 0.5 : top > 20 ? 10 : 1];
        const ys = Array.from({ length: Math.floor((top - from) / every + 1e-9) + 1 }, (_, i) => from + i * every);
        plot.frame([0, last], [from, top], [0, 100, 200], ys, (x) => String(x));
        // Powers of ten are written as numbers, from the upward axis only.
        if (LOGS.includes(trace)) plot.node.querySelectorAll(".tfx-ytick").forEach((tick, i) => (tick.textContent = ys[i] < 4 ? String(Number((10 ** ys[i]).toPrecision(1))) : `${10 ** (ys[i] - 3)}k`));
        const draw = (line, list) => plot.points(line, list.map((y, i) => [steps[i], scale(y)]));
        draw(own, values);
        draw(other, normal);
        other.style.display = beside.style.display = shown ? "" : "none";
        for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.at(steps[at()]));
        here.set(values[at()]);
        there.set(normal[at()]);
      };
      return { trace, node, draw };
    });
    const own = h("span", { class: "tfx-key" });
    const normal = h("span", { class: "tfx-key tfx-third" }, "healthy, in brackets");

    // ------------------------------------------------------------------ the question
    const inputs = Object.keys(data.faults).map((name) => h("input", { type: "radio", name: "answer", value: name, "data-control": "answer", onchange: () => set({ answer: name }) }));
    const said = voice({ right: "Yes.", wrong: "No." });
    const question = h("form", { class: "tfx-question tfx-named-fault", onsubmit: (e) => e.preventDefault() },
      h("fieldset", {}, h("legend", {}, "What is wrong?"), h("div", { class: "tfx-pairs" },
        Object.values(data.faults).map(({ label }, i) => h("label", { class: "tfx-choice" }, inputs[i], h("span", {}, label))))), said.node);
    const told = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-pair-wide" }, run.node, healthy.node, h("p", { class: "tfx-note" }, own, " ", normal, " 300 steps; gradients and scores in powers of ten."), step.node),
      h("div", { class: "tfx-columns tfx-even tfx-panels" }, panels.map((p) => p.node)), question, told.node));

    let before = null;
    const draw = () => {
      [run, healthy, step].forEach((control) => control.update());
      const fault = data.runs[get("run")];
      const answer = get("answer");
      const right = answer === fault;
      own.textContent = `run ${get("run")}`;
      normal.style.display = get("healthy") ? "" : "none";
      const { trace: tells, found, check, sign } = data.faults[fault];
      for (const { trace, node, draw: drawPanel } of panels) {
        drawPanel(data.values[fault][trace], data.values.none[trace], get("healthy"));
        node.classList.toggle("tfx-telling", right && trace === tells);
      }
      inputs.forEach((input) => (input.checked = input.value === answer));
      if (before !== `${fault} ${answer}`) {
        before = `${fault} ${answer}`;
        if (!answer) said.clear();
        else if (right) {
          const checked = check ? `The check \`${check}\` says: ${found[0]} (${found[1]}).` : "No check of the list looks for it: the loop of training has to be read.";
          said.tell("right", `What gives it away is the ${data.traces[tells].split(",")[0]}. ${sign} ${checked}`);
        } else {
          const chosen = data.faults[answer];
          said.tell("wrong", `With that fault, look at the ${data.traces[chosen.trace].split(",")[0]}. ${chosen.sign} Compare that with this run.`);
        }
      }
      const i = at();
      told.set(`Run ${get("run")}, step ${steps[i]}: ${Object.entries(data.traces).map(([trace, label]) => `${label.split(",")[0]} ${three(data.values[fault][trace][i])}${get("healthy") ? ` (healthy ${three(data.values.none[trace][i])})` : ""}`).join("; ")}.`);
    };
    return follow(model, ["run", "healthy", "step", "answer"], draw);
  },
};
