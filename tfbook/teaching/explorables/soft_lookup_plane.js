import { dot, follow, h, reading, show, slider, softmax, summary, titled, toggle } from "./shared.js";

const SIDE = 320; // the picture's own units
const CELLS = 26;
const STEP = 0.05;

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { keys, values, reach } = data;
    const px = (x) => ((x + reach) / (2 * reach)) * SIDE;
    const py = (y) => ((reach - y) / (2 * reach)) * SIDE;
    const clamp = (x) => Math.max(-reach, Math.min(reach, Math.round(x / STEP) * STEP));
    const tidy = (x) => Number(clamp(x).toFixed(2));

    const weightsAt = (query) => {
      const scores = keys.map((k) => dot(query, k));
      if (!model.get("hard")) return { scores, weights: softmax(scores.map((s) => s / model.get("temperature"))) };
      const best = scores.indexOf(Math.max(...scores));
      return { scores, weights: scores.map((_, i) => (i === best ? 1 : 0)) };
    };

    // ------------------------------------------------------------------ controls
    const axis = (label, index) => slider(model, "query", {
      label, index, min: -reach, max: reach, step: STEP, read: tidy, text: (x) => show(x, 2),
    });
    const [across, upward] = [axis("Query, across", 0), axis("Query, up", 1)];
    const temperature = slider(model, "temperature", {
      label: "Temperature", min: -26, max: 14, read: (i) => Number((10 ** (i / 20)).toPrecision(2)),
      write: (t) => Math.round(20 * Math.log10(t)), text: (t) => show(t, t < 1 ? 2 : 1),
    });
    const hard = toggle(model, "hard", "Hard lookup");
    const controls = [across, upward, temperature, hard];

    // ------------------------------------------------------------------ the plane
    const low = Math.min(...values);
    const high = Math.max(...values);
    const share = (v) => `${((100 * (v - low)) / (high - low || 1)).toFixed(1)}%`;
    const size = SIDE / CELLS;
    const ground = Array.from({ length: CELLS * CELLS }, (_, c) => {
      const [x, y] = [(c % CELLS) * size, Math.floor(c / CELLS) * size];
      // Half a unit wider, so that no gaps show between the cells.
      const node = h("rect", { x, y, width: size + 0.5, height: size + 0.5, class: "tfx-ground" });
      const middle = [(2 * reach * (x + size / 2)) / SIDE - reach, reach - (2 * reach * (y + size / 2)) / SIDE];
      return { node, middle };
    });
    const threads = keys.map((k) => h("line", { class: "tfx-thread", x2: px(k[0]), y2: py(k[1]) }));
    const arrow = h("line", { class: "tfx-arrow", x1: px(0), y1: py(0) });
    const stand = ([x, y]) => ({ left: `${(100 * px(x)) / SIDE}%`, top: `${(100 * py(y)) / SIDE}%` });
    // Discs are no SVG: text on their own ground is text whose contrast can be checked.
    const points = keys.map((k, i) =>
      h("span", { class: "tfx-point", style: { "--share": share(values[i]), ...stand(k) } }, String(values[i])));
    const handle = h("div", {
      class: "tfx-handle", tabindex: 0, role: "slider", "aria-label": "Query point, arrow keys move it",
      "aria-valuemin": -reach, "aria-valuemax": reach,
    }, h("span", {}, "q"));
    const plane = h("div", { class: "tfx-plane", role: "group", "aria-label": "Keys and query in the plane" },
      h("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, "aria-hidden": "true" },
        h("g", { class: "tfx-grounds" }, ground.map((g) => g.node)),
        h("line", { class: "tfx-axis", x1: 0, x2: SIDE, y1: py(0), y2: py(0) }),
        h("line", { class: "tfx-axis", y1: 0, y2: SIDE, x1: px(0), x2: px(0) }),
        threads, arrow),
      h("div", { "aria-hidden": "true" }, points), handle);

    const move = (query) => {
      model.set("query", query.map(tidy));
      model.save_changes();
    };
    const toPointer = (event) => {
      const box = plane.getBoundingClientRect();
      move([((event.clientX - box.left) / box.width) * 2 * reach - reach, reach - ((event.clientY - box.top) / box.height) * 2 * reach]);
    };
    let dragging = null;
    const grab = (event) => {
      if (event.button) return;
      dragging = event.pointerId;
      plane.setPointerCapture(dragging);
      handle.focus({ preventScroll: true });
      toPointer(event);
      event.preventDefault();
    };
    handle.addEventListener("pointerdown", grab);
    // A mouse may press anywhere; a finger beside the handle may want to scroll the page, and a tap will do.
    plane.addEventListener("pointerdown", (event) => event.pointerType === "mouse" && grab(event));
    plane.addEventListener("click", toPointer);
    plane.addEventListener("pointermove", (event) => event.pointerId === dragging && toPointer(event));
    for (const end of ["pointerup", "pointercancel"]) plane.addEventListener(end, () => (dragging = null));
    handle.addEventListener("keydown", (event) => {
      const by = event.shiftKey ? 5 * STEP : STEP;
      const step = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowDown: [0, -by], ArrowUp: [0, by] }[event.key];
      if (!step) return;
      event.preventDefault();
      move(model.get("query").map((x, i) => x + step[i]));
    });

    // ------------------------------------------------------------------ numbers
    const rows = keys.map((k, i) => {
      const score = reading(`score[${i}]`, 2);
      const weight = reading(`weight[${i}]`, 3);
      const bar = h("span", { class: "tfx-bar" });
      return { score, weight, bar, node: h("tr", {},
        h("th", { scope: "row" }, h("span", { class: "tfx-swatch", style: { "--share": share(values[i]) } }), String(values[i])),
        h("td", {}, score.node), h("td", { class: "tfx-wide" }, h("span", { class: "tfx-track" }, bar)), h("td", {}, weight.node)) };
    });
    const result = reading("result", 3);
    const table = h("table", { class: "tfx-table" },
      h("thead", {}, h("tr", {}, ["value", "q · k"].map((t) => h("th", { scope: "col" }, t)), h("th", { scope: "col", colspan: 2 }, "weight"))),
      h("tbody", {}, rows.map((r) => r.node)));
    const pin = h("span", { class: "tfx-pin" });
    const scale = h("div", { class: "tfx-scale" },
      h("p", {}, "answer ", result.node), h("div", { class: "tfx-ramp", "aria-hidden": "true" }, pin),
      h("p", { class: "tfx-ends", "aria-hidden": "true" }, h("span", {}, String(low)), h("span", {}, String(high))));

    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-columns tfx-even" }, h("div", {}, plane, scale),
        h("div", { class: "tfx-stack" }, temperature.node, hard.node, across.node, upward.node, table)), said.node));

    let painted = "";
    const draw = () => {
      const query = model.get("query");
      controls.forEach((c) => c.update());
      const { scores, weights } = weightsAt(query);
      const answer = dot(weights, values);
      const look = `${model.get("hard")} ${model.get("temperature")}`;
      if (look !== painted) {
        painted = look;
        ground.forEach((g) => g.node.style.setProperty("--share", share(dot(weightsAt(g.middle).weights, values))));
      }
      const [x, y] = [px(query[0]), py(query[1])];
      Object.assign(handle.style, stand(query));
      handle.setAttribute("aria-valuenow", query[0]);
      handle.setAttribute("aria-valuetext", `${show(query[0], 2)} across, ${show(query[1], 2)} up; answer ${show(answer, 2)}`);
      arrow.setAttribute("x2", x);
      arrow.setAttribute("y2", y);
      threads.forEach((line, i) => {
        line.setAttribute("x1", x);
        line.setAttribute("y1", y);
        line.style.strokeWidth = 0.5 + 7 * weights[i];
        line.style.opacity = 0.15 + 0.85 * weights[i];
      });
      const best = weights.indexOf(Math.max(...weights));
      rows.forEach((r, i) => {
        r.score.set(scores[i]);
        r.weight.set(weights[i]);
        r.bar.style.width = `${100 * weights[i]}%`;
        r.node.classList.toggle("tfx-best", i === best);
        points[i].classList.toggle("tfx-best", i === best);
      });
      result.set(answer);
      pin.style.left = share(answer);
      said.set(`Query at ${show(query[0], 2)} across, ${show(query[1], 2)} up: the key with value ${values[best]} gets ` +
        `${show(100 * weights[best], 1)}% of the weight, and the answer is ${show(answer, 2)}.`);
    };
    return follow(model, ["query", "temperature", "hard"], draw);
  },
};
