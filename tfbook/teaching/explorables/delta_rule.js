import { chart, folded, follow, h, options, reading, show, slider, stat, summary, titled } from "./shared.js";

const SIDE = 320; // the pictures' own units
const REACH = 1.5; // the plane of keys runs from -1.5 to 1.5
const VIEW = 2.6; // and that of values from -2.6 to 2.6
const STEP = 5; // degrees for a press of an arrow key
const ARROWS = { first: ["k", "1", 1.27], second: ["g", "2", 0.82], query: ["q", "q", 0.38] };
const LINES = { linear: "tfx-raw", decay: "tfx-fourth", delta: "tfx-scaled", gated: "tfx-third" };
const KEYS = { linear: "tfx-raw", decay: "tfx-fourth", delta: "", gated: "tfx-third" };
const EMPTY = [[0, 0], [0, 0]];
const wrap = (degrees) => Math.round(((((degrees + 180) % 360) + 360) % 360) - 180);
const unit = (degrees) => [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
const read = (state, key) => [0, 1].map((j) => key[0] * state[0][j] + key[1] * state[1][j]);
const distance = (x, y) => Math.hypot(x[0] - y[0], x[1] - y[1]);
const tiny = (x) => show(x < 1e-9 ? 0 : x, 3); // what rounding leaves is nothing
const pair = (x, digits = 2) => `(${show(x[0], digits)}, ${show(x[1], digits)})`;

/** What a write leaves, erases and adds, and the state after it: the same as write in _delta.py. */
function write(mode, state, key, value, { beta, alpha }) {
  const share = mode === "decay" || mode === "gated" ? alpha : 1;
  const erases = mode === "delta" || mode === "gated";
  const strength = erases ? beta : 1;
  const left = state.map((row) => row.map((x) => share * x));
  const now = erases ? read(left, key) : [0, 0];
  const erased = key.map((k) => now.map((x) => -strength * k * x));
  const added = key.map((k) => value.map((x) => strength * k * x));
  return { left, erased, added, after: left.map((row, i) => row.map((x, j) => x + erased[i][j] + added[i][j])) };
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["mode", "first", "second", "query", "beta", "alpha", "written", "watched"];
    const now = () => Object.fromEntries(names.map((key) => [key, model.get(key)]));
    const count = data.writes.length;
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };
    /** How far the watched of two keys so many degrees apart reads from its value, each written once. */
    const errorAt = (mode, degrees, c) => {
      const keys = [unit(0), unit(degrees)];
      const state = data.writes.slice(0, 2).reduce((s, [key, value]) => write(mode, s, keys[key], value, c).after, EMPTY);
      const watched = c.watched === "first" ? 0 : 1;
      return distance(read(state, keys[watched]), data.writes[watched][1]);
    };

    // ------------------------------------------------------------------ controls
    const mode = options(model, "mode", "A write", Object.entries(data.modes));
    const formula = h("p", { class: "tfx-formula" });
    const degrees = (name, label) => slider(model, name, { label, min: -180, max: 180, step: STEP, text: (x) => `${show(x, 0)}°` });
    const turns = { first: degrees("first", "First key"), second: degrees("second", "Second key"), query: degrees("query", "Query") };
    const part = (name, label, max) => slider(model, name, { label, min: 0, max: 20 * max, read: (i) => i / 20, write: (x) => Math.round(20 * x), text: (x) => show(x, 2) });
    const beta = part("beta", "β, where a write erases", 2), alpha = part("alpha", "α, where the state fades", 1);
    const step = (name, label, kind, to) => h("button", {
      type: "button", class: kind, "data-control": name, onclick: () => save({ written: Math.min(count, Math.max(0, to(model.get("written")))) }),
    }, label);
    const next = step("next", "Write next", "tfx-button", (x) => x + 1);
    const buttons = h("div", { class: "tfx-chips" }, next, step("back", "Take it back", "tfx-chip", (x) => x - 1), step("none", "Empty", "tfx-chip", () => 0));

    // ------------------------------------------------------------------ keys
    const place = (view) => [(x) => ((x + view) / (2 * view)) * SIDE, (y) => ((view - y) / (2 * view)) * SIDE];
    const [px, py] = place(REACH), [vx, vy] = place(VIEW);
    const axes = (x, y) => [h("line", { class: "tfx-axis", x1: 0, x2: SIDE, y1: y(0), y2: y(0) }), h("line", { class: "tfx-axis", y1: 0, y2: SIDE, x1: x(0), x2: x(0) })];
    const sides = Object.entries(ARROWS).map(([name, [letter, sign, radius]]) => {
      const arrow = h("line", { class: `tfx-vector tfx-${letter}${name === "query" ? " tfx-thin" : ""}`, x1: px(0), y1: py(0) });
      const tip = h("polyline", { class: `tfx-tip tfx-${letter}` });
      const handle = h("div", {
        class: "tfx-handle", tabindex: 0, role: "slider", "aria-valuemin": -180, "aria-valuemax": 180, "data-handle": name,
        "aria-label": `${{ first: "First key", second: "Second key", query: "Query" }[name]}, arrow keys turn it`,
      }, h("span", { class: `tfx-${letter}` }, sign));
      return { name, letter, radius, arrow, tip, handle };
    });
    const plane = h("div", { class: "tfx-plane tfx-turning tfx-keys", role: "group", "aria-label": "Keys and query as arrows" },
      h("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, "aria-hidden": "true" }, axes(px, py),
        h("circle", { class: "tfx-dial", cx: px(0), cy: py(0), r: px(1) - px(0) }), sides.flatMap((s) => [s.arrow, s.tip])), sides.map((s) => s.handle));
    let held = null;
    const turn = (name, to) => save({ [name]: wrap(to) });
    for (const side of sides) {
      side.handle.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        held = side.name;
        plane.setPointerCapture(event.pointerId);
        side.handle.focus({ preventScroll: true });
        event.preventDefault();
      });
      side.handle.addEventListener("keydown", (event) => {
        const way = { ArrowLeft: 1, ArrowUp: 1, ArrowRight: -1, ArrowDown: -1 }[event.key];
        if (!way) return;
        event.preventDefault();
        turn(side.name, model.get(side.name) + way * (event.shiftKey ? 1 : STEP));
      });
    }
    plane.addEventListener("pointermove", (event) => {
      if (!held) return;
      const box = plane.getBoundingClientRect();
      turn(held, (180 / Math.PI) * Math.atan2(box.top + box.height / 2 - event.clientY, event.clientX - box.left - box.width / 2));
    });
    for (const end of ["pointerup", "pointercancel"]) plane.addEventListener(end, () => (held = null));

    // ------------------------------------------------------------------ values
    const reads = ["k", "g"].map((letter) => ({
      line: h("line", { class: `tfx-rest tfx-${letter}` }), ring: h("circle", { class: `tfx-ring tfx-${letter}`, r: 7 }),
      goal: h("path", { class: `tfx-aim tfx-${letter}` }),
    }));
    const answer = h("line", { class: "tfx-vector tfx-q", x1: vx(0), y1: vy(0) }), end = h("circle", { class: "tfx-head tfx-q", r: 5.5 });
    const values = h("div", { class: "tfx-plane tfx-turning" },
      h("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, "aria-hidden": "true" }, axes(vx, vy), reads.flatMap((r) => [r.line, r.goal, r.ring]), answer, end));
    const caption = (text) => h("p", { class: "tfx-note tfx-caption" }, text);

    // ------------------------------------------------------------------ the state
    const slab = (name, title, named) => {
      const cells = EMPTY.map((row, i) => row.map((_, j) => reading(named ? `state[${i}][${j}]` : `${name}[${i}][${j}]`, 2)));
      const tds = cells.map((row) => row.map((r) => h("td", { class: "tfx-cell" }, r.node)));
      const size = h("table", { class: "tfx-grid-table" }, h("caption", {}, h("span", { class: "tfx-slabname" }, title)), h("tbody", {}, tds.map((row) => h("tr", {}, row))));
      const set = (matrix) => matrix.forEach((row, i) => row.forEach((x, j) => {
        cells[i][j].set(x);
        tds[i][j].style.setProperty("--heat", `${Math.min(100, 50 * Math.abs(x)).toFixed(1)}%`);
        tds[i][j].dataset.sign = x < 0 ? "-" : "+";
      }));
      return { node: size, set };
    };
    const slabs = { left: slab("left", "left of it"), erased: slab("erased", "erased"), added: slab("added", "added"), after: slab("after", "S now", true) };
    const sums = h("div", { class: "tfx-sums" }, Object.values(slabs).flatMap((s, i) => (i ? [h("span", { "aria-hidden": "true" }, i === 3 ? "=" : "+"), s.node] : [s.node])));
    const rows = data.writes.map(([key, value], i) => h("tr", {}, h("th", { scope: "row" }, String(i + 1)), h("td", {}, key ? "second" : "first"), h("td", {}, pair(value, 1))));
    const list = h("table", { class: "tfx-table tfx-writes" }, h("caption", {}, "Writes"),
      h("thead", {}, h("tr", {}, ["write", "key", "value v"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows));

    // ------------------------------------------------------------------ the curve
    const curves = Object.fromEntries(Object.entries(LINES).map(([key, kind]) => [key, h("polyline", { class: `tfx-line ${kind}`, "data-name": `curve_${key}` })]));
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const plot = chart(cursor, ...Object.values(curves));
    plot.node.classList.add("tfx-tall", "tfx-still");
    const mark = h("span", { class: "tfx-mark tfx-scaled" });
    plot.node.append(mark);
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Error of reading, over the degrees between the keys. "),
        Object.entries(data.modes).flatMap(([key, text]) => [h("span", { class: `tfx-key ${KEYS[key]}` }, text), " "])), plot.node);
    const answers = [0, 1].map((j) => reading(`read[${j}]`, 3));
    const stats = {
      first_error: stat("recall_error[0]", "first key reads off by", tiny), second_error: stat("recall_error[1]", "second key reads off by", tiny),
      between: stat("between", "degrees between the keys", 0), error: stat("error", "off in the curve", tiny),
    };
    const watched = options(model, "watched", "Each key written once; how far is off", [["first", "the first"], ["second", "the second"]]);
    const told = h("p", { class: "tfx-verdict" });
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title), mode.node,
      h("div", { class: "tfx-planes" },
        h("div", {}, plane, caption("Keys 1, 2 and the query q, all of length 1: drag them.")),
        h("div", {}, values, caption("Values. Crosses: last written. Rings: what the keys read. Arrow: what the query reads.")),
        h("div", { class: "tfx-stack" }, formula, h("div", { class: "tfx-stats tfx-ones" }, Object.values(stats).slice(0, 3).map((s) => s.node)))),
      h("div", { class: "tfx-thirds" }, Object.values(turns).map((c) => c.node)),
      h("div", { class: "tfx-pairs" }, beta.node, alpha.node), h("div", { class: "tfx-abreast" }, buttons, told), said.node,
      folded("The writes so far, and the last one in numbers", h("div", { class: "tfx-columns tfx-even" }, list, h("div", { class: "tfx-stack" }, h("p", { class: "tfx-label" }, "The last write"), sums))),
      folded("How far off the keys read, over the angle between them", h("div", { class: "tfx-pair-wide" }, watched.node, stats.error.node), figure)));

    const draw = () => {
      const c = now();
      [mode, beta, alpha, watched, ...Object.values(turns)].forEach((control) => control.update());
      formula.textContent = data.formulas[c.mode];
      next.setAttribute("aria-disabled", c.written >= count);
      const keys = [unit(c.first), unit(c.second)];
      let state = EMPTY, last = { left: EMPTY, erased: EMPTY, added: EMPTY, after: EMPTY };
      const goals = [null, null];
      for (const [key, value] of data.writes.slice(0, c.written)) {
        last = write(c.mode, state, keys[key], value, c);
        state = last.after;
        goals[key] = value;
      }
      for (const [key, s] of Object.entries(slabs)) s.set(last[key]);
      rows.forEach((row, i) => {
        row.classList.toggle("tfx-later", i >= c.written);
        row.classList.toggle("tfx-best", i === c.written - 1);
      });
      for (const side of sides) {
        const angle = c[side.name];
        const point = (r, by = 0) => {
          const [x, y] = unit(angle + by);
          return [px(r * x), py(r * y)];
        };
        const [x, y] = point(0.96);
        for (const [key, value] of Object.entries({ x2: x, y2: y })) side.arrow.setAttribute(key, value);
        side.tip.setAttribute("points", [point(0.88, 3.5), point(1), point(0.88, -3.5)].map((p) => p.join(",")).join(" "));
        const [hx, hy] = point(side.radius);
        Object.assign(side.handle.style, { left: `${(100 * hx) / SIDE}%`, top: `${(100 * hy) / SIDE}%` });
        side.handle.setAttribute("aria-valuenow", angle);
        side.handle.setAttribute("aria-valuetext", `${show(angle, 0)} degrees`);
      }
      const off = [];
      reads.forEach(({ line, ring, goal }, i) => {
        const found = read(state, keys[i]);
        const shown = goals[i] !== null;
        for (const node of [line, ring, goal]) node.style.display = shown ? "" : "none";
        off.push(shown ? distance(found, goals[i]) : null);
        if (!shown) return;
        const [gx, gy] = [vx(goals[i][0]), vy(goals[i][1])];
        for (const [key, value] of Object.entries({ x1: gx, y1: gy, x2: vx(found[0]), y2: vy(found[1]) })) line.setAttribute(key, value);
        goal.setAttribute("d", `M${gx - 6} ${gy - 6}l12 12m0-12l-12 12`);
        ring.setAttribute("cx", vx(found[0]));
        ring.setAttribute("cy", vy(found[1]));
      });
      const found = read(state, unit(c.query));
      for (const [node, a, b] of [[answer, "x2", "y2"], [end, "cx", "cy"]]) {
        node.setAttribute(a, vx(found[0]));
        node.setAttribute(b, vy(found[1]));
      }
      answers.forEach((r, j) => r.set(found[j]));
      told.replaceChildren("The query reads (", answers[0].node, ", ", answers[1].node, ").");

      const apart = Math.abs(c.first - c.second) % 360;
      const between = Math.min(apart, 360 - apart);
      const every = Array.from({ length: 91 }, (_, i) => 2 * i);
      const heights = Object.fromEntries(Object.keys(curves).map((key) => [key, every.map((x) => errorAt(key, x, c))]));
      const top = Math.max(1, Math.ceil(2 * Math.max(...Object.values(heights).flat())) / 2);
      plot.frame([0, 180], [0, 1.04 * top], [0, 45, 90, 135, 180], [0, top / 2, top], (x) => String(x));
      for (const [key, line] of Object.entries(curves)) plot.points(line, every.map((x, i) => [x, heights[key][i]]));
      const error = errorAt(c.mode, between, c);
      plot.place(mark, between, error);
      for (const side of ["x1", "x2"]) cursor.setAttribute(side, plot.at(between));
      ["first_error", "second_error"].forEach((key, i) => {
        if (off[i] === null) stats[key].clear();
        else stats[key].set(off[i]);
        stats[key].note.textContent = off[i] === null ? "not yet written" : `last written: ${pair(goals[i], 1)}`;
      });
      stats.between.set(between);
      stats.between.note.textContent = `k₁ · k₂ = ${show(Math.cos((between * Math.PI) / 180), 3)}`;
      stats.error.set(error);
      stats.error.note.textContent = `the ${c.watched} key, each written once`;
      said.set(`${c.written} of ${count} writes. It ${data.modes[c.mode]}. ` + (off[0] === null ? "Nothing is written yet." :
        `The first key reads off by ${tiny(off[0])}${off[1] === null ? "" : `, the second by ${tiny(off[1])}`}.`) + ` The query reads ${pair(found)}.`);
    };
    return follow(model, names, draw);
  },
};
