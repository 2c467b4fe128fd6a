import { chart, dot, follow, h, prose, show, slider, stat, summary, titled } from "./shared.js";

const SIDE = 320; // the picture's own units
const REACH = 1.35; // the plane shown runs from -1.35 to 1.35
const STEP = 5; // degrees for a press of an arrow key
const wrap = (degrees) => Math.round(((((degrees + 180) % 360) + 360) % 360) - 180);

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { furthest } = data;
    const radians = (degrees) => (degrees * Math.PI) / 180;
    const frequency = () => data.base ** ((-2 * model.get("pair")) / data.d_head);
    const px = (x) => ((x + REACH) / (2 * REACH)) * SIDE;
    const py = (y) => ((REACH - y) / (2 * REACH)) * SIDE;
    const set = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };

    // ------------------------------------------------------------------ controls
    const place = (name, label) => slider(model, name, { label, min: 0, max: furthest, text: String });
    const degrees = (name, label) => slider(model, name, {
      label, min: -180, max: 180, step: STEP, text: (x) => `${show(x, 0)}°`,
    });
    const [m, n] = [place("m", "Position m of the query"), place("n", "Position n of the key")];
    const [turnQ, turnK] = [degrees("q_angle", "Direction of q"), degrees("k_angle", "Direction of k")];
    const pair = slider(model, "pair", { label: `Clock i of ${data.d_head / 2}`, min: 0, max: data.d_head / 2 - 1, text: String });
    // It moves m and n by the same number of positions, and stands at the smaller one.
    const low = () => Math.min(model.get("m"), model.get("n"));
    const both = slider({
      get: low,
      set: (_, v) => set({ m: model.get("m") + v - low(), n: model.get("n") + v - low() }),
      save_changes: () => {},
    }, "both", { label: "Both positions, distance kept", min: 0, max: furthest, text: (x) => `+${x}` });

    // ------------------------------------------------------------------ the plane
    const part = (tag, kind, props = {}) => h(tag, { class: kind, ...props });
    const sides = ["q", "k"].map((letter) => {
      const rest = part("line", `tfx-rest tfx-${letter}`, { x1: px(0), y1: py(0) });
      const trail = part("polyline", `tfx-trail tfx-${letter}`);
      const arrow = part("line", `tfx-vector tfx-${letter}`, { x1: px(0), y1: py(0) });
      const tip = part("polyline", `tfx-tip tfx-${letter}`);
      const handle = h("div", {
        class: "tfx-handle", tabindex: 0, role: "slider", "aria-valuemin": -180, "aria-valuemax": 180,
        "aria-label": `Direction of ${letter}, arrow keys turn it`,
      }, h("span", { class: `tfx-${letter}` }, letter));
      return { letter, rest, trail, arrow, tip, handle, key: `${letter}_angle` };
    });
    const [q, k] = sides;
    const wedge = part("path", "tfx-wedge");
    const plane = h("div", { class: "tfx-plane tfx-turning", role: "group", "aria-label": "Query and key on the dial of the clock" },
      h("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, "aria-hidden": "true" },
        part("line", "tfx-axis", { x1: 0, x2: SIDE, y1: py(0), y2: py(0) }),
        part("line", "tfx-axis", { y1: 0, y2: SIDE, x1: px(0), x2: px(0) }),
        part("circle", "tfx-dial", { cx: px(0), cy: py(0), r: px(1) - px(0) }),
        wedge, sides.flatMap((s) => [s.trail, s.rest, s.arrow, s.tip])), k.handle, q.handle);
    let held = null;
    for (const side of sides) {
      const where = side.letter === "q" ? "m" : "n";
      side.handle.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        held = side;
        plane.setPointerCapture(event.pointerId);
        side.handle.focus({ preventScroll: true });
        event.preventDefault();
      });
      // The tip follows the pointer, so the direction before rotation is the pointer's less the turn.
      side.follow = (event) => {
        const box = plane.getBoundingClientRect();
        const angle = Math.atan2(box.top + box.height / 2 - event.clientY, event.clientX - box.left - box.width / 2);
        set({ [side.key]: wrap((180 / Math.PI) * (angle - model.get(where) * frequency())) });
      };
      side.handle.addEventListener("keydown", (event) => {
        const way = { ArrowLeft: 1, ArrowUp: 1, ArrowRight: -1, ArrowDown: -1 }[event.key];
        if (!way) return;
        event.preventDefault();
        set({ [side.key]: wrap(model.get(side.key) + way * (event.shiftKey ? 1 : STEP)) });
      });
    }
    plane.addEventListener("pointermove", (event) => held && held.follow(event));
    for (const end of ["pointerup", "pointercancel"]) plane.addEventListener(end, () => (held = null));

    // ------------------------------------------------------------------ the score over the gap
    const line = h("polyline", { class: "tfx-line tfx-scaled", "data-name": "curve" });
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const plot = chart(cursor, line);
    const quarter = furthest / 2;
    plot.frame([-furthest, furthest], [-1.08, 1.08], [-2, -1, 0, 1, 2].map((x) => x * quarter), [-1, 0, 1]);
    const mark = h("span", { class: "tfx-mark tfx-scaled" });
    plot.node.append(mark);
    const curve = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Score over the distance m − n, "), "for these two directions and this clock"), plot.node);
    const before = stat("unrotated", "q · k, not rotated", 3);
    const gap = stat("gap", "distance m − n", 0);
    const score = stat("score", "rotated, (R_m q) · (R_n k)", 3);
    before.note.textContent = "cos of the angle between";
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-columns tfx-even tfx-racing" },
        h("div", {}, plane, h("p", { class: "tfx-note tfx-caption" }, prose("Dashed: before rotation. Solid: q turned by mω, k by nω."))),
        h("div", { class: "tfx-stack" }, m.node, n.node, both.node, turnQ.node, turnK.node, pair.node)),
      h("div", { class: "tfx-columns" }, h("div", { class: "tfx-stats tfx-ones" }, before.node, gap.node, score.node), curve), said.node));

    const point = (angle, r = 1) => [px(r * Math.cos(angle)), py(r * Math.sin(angle))];
    const path = (from, to, r) => {
      const count = Math.max(2, Math.ceil(Math.abs(to - from) / 0.1));
      return Array.from({ length: count + 1 }, (_, i) => point(from + ((to - from) * i) / count, r).join(","));
    };
    const draw = () => {
      const w = frequency();
      const [mm, nn, i] = ["m", "n", "pair"].map((key) => model.get(key));
      [m, n, turnQ, turnK, pair].forEach((c) => c.update());
      both.input.max = furthest - Math.abs(mm - nn);
      both.update();
      const turned = sides.map((s) => {
        const start = radians(model.get(s.key));
        const angle = start + (s === q ? mm : nn) * w;
        const [x, y] = point(angle);
        s.rest.setAttribute("x2", point(start)[0]);
        s.rest.setAttribute("y2", point(start)[1]);
        s.arrow.setAttribute("x2", point(angle, 0.96)[0]);
        s.arrow.setAttribute("y2", point(angle, 0.96)[1]);
        s.tip.setAttribute("points", [[0.88, 0.06], [1, 0], [0.88, -0.06]].map(([r, by]) => point(angle + by, r).join(",")).join(" "));
        s.trail.setAttribute("points", path(start, angle, s === q ? 1.08 : 0.82).join(" "));
        const [hx, hy] = point(angle, s === q ? 1.2 : 0.62);
        Object.assign(s.handle.style, { left: `${(100 * hx) / SIDE}%`, top: `${(100 * hy) / SIDE}%` });
        s.handle.setAttribute("aria-valuenow", model.get(s.key));
        s.handle.setAttribute("aria-valuetext", `${show(model.get(s.key), 0)} degrees, rotated to ${show(wrap((180 * angle) / Math.PI), 0)}`);
        return [Math.cos(angle), Math.sin(angle), angle, x, y];
      });
      // The smaller of the two angles between the rotated vectors.
      const [a, b] = turned.map((t) => t[2]);
      const between = Math.atan2(Math.sin(a - b), Math.cos(a - b));
      wedge.setAttribute("d", `M${point(0, 0).join(" ")}L${path(b, b + between, 0.3).join("L")}Z`);
      const result = dot(turned[0].slice(0, 2), turned[1].slice(0, 2));
      const lean = radians(model.get("q_angle")) - radians(model.get("k_angle"));
      const xs = Array.from({ length: 8 * furthest + 1 }, (_, t) => t / 4 - furthest);
      plot.points(line, xs.map((x) => [x, Math.cos(lean + x * w)]));
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.at(mm - nn));
      plot.place(mark, mm - nn, result);
      before.set(Math.cos(lean));
      gap.set(mm - nn);
      gap.note.textContent = `m = ${mm}, n = ${nn}`;
      score.set(result);
      score.note.textContent = `cos ${show((180 / Math.PI) * Math.abs(between), 1)}°`;
      said.set(`Query at ${mm}, key at ${nn}: clock ${i} turns by ${show(w, 4)} radians for each position, and the score is ${show(result, 3)}. ` +
        `It stays so wherever the two stand ${Math.abs(mm - nn)} apart in this order.`);
    };
    return follow(model, ["m", "n", "pair", "q_angle", "k_angle"], draw);
  },
};
