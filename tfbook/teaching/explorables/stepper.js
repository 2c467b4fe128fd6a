import { follow, h, prose, show, summary, titled } from "./shared.js";

/** A matrix or a vector: a table that is kept and changed, so that bars and colours can move. */
function slabOf(name, span) {
  const node = h("div", { class: "tfx-slab", "data-part": name });
  const [low, high] = span;
  const room = high - low || 1;
  let shape = "", boxes = [], caption = null;

  const build = (part) => {
    const bars = part.kind === "bars";
    const line = (i) => Array.from({ length: part.shape[1] }, (_, j) => {
      const number = h("span", { class: "tfx-number" });
      const bar = bars && part.values ? h("span", { class: "tfx-bar" }) : null;
      const cell = h("td", { class: bars ? "tfx-barcell" : "tfx-cell" }, bar && h("span", { class: "tfx-track" }, bar), number);
      boxes.push({ i, j, cell, bar, number });
      return cell;
    });
    boxes = [];
    caption = h("caption", {});
    const names = (list) => list.map((text) => h("th", { scope: "col" }, prose(text)));
    node.replaceChildren(h("table", { class: "tfx-grid-table" }, caption,
      part.columns && h("thead", {}, h("tr", {}, part.rows && h("td", {}), names(part.columns))),
      h("tbody", {}, Array.from({ length: part.shape[0] }, (_, i) =>
        h("tr", {}, part.rows && h("th", { scope: "row" }, part.rows[i]), line(i))))));
  };

  const draw = (part) => {
    const key = JSON.stringify([part.kind, part.shape, part.rows, part.columns, !part.values]);
    if (key !== shape) build(part);
    shape = key;
    const bars = part.kind === "bars";
    caption.replaceChildren(h("span", { class: "tfx-slabname" }, prose(part.label)),
      h("span", { class: "tfx-size" }, bars ? String(part.shape[0]) : part.shape.join(" × ")));
    for (const { i, j, cell, bar, number } of boxes) {
      cell.parentNode.classList.toggle("tfx-on", i === part.highlight);
      if (!part.values) continue;
      const x = bars ? part.values[i] : part.values[i][j];
      number.dataset.name = bars ? `${name}[${i}]` : `${name}[${i}][${j}]`;
      number.dataset.value = String(x);
      number.textContent = show(x, part.digits);
      if (bar) {
        bar.style.marginLeft = `${(100 * (Math.min(x, 0) - low)) / room}%`;
        bar.style.width = `${(100 * Math.abs(x)) / room}%`;
      } else {
        cell.style.setProperty("--heat", `${((100 * Math.abs(x)) / Math.max(-low, high, 1e-12)).toFixed(1)}%`);
      }
      (bar || cell).dataset.sign = x < 0 ? "-" : "+";
    }
    node.style.gridArea = `${part.at[0] + 1} / ${part.at[1] + 1}`;
  };
  return { node, draw };
}

export default {
  render({ model, el }) {
    const { title, alt, steps, spans } = model.get("data");
    const last = steps.length - 1;
    // What each part looks like at each step: as it was left, or as it will first be.
    const looks = steps.map(() => ({}));
    for (const name of Object.keys(spans)) {
      let look = steps.find((s) => s.changes[name]).changes[name];
      steps.forEach((s, k) => (looks[k][name] = look = s.changes[name] || look));
    }

    // ------------------------------------------------------------------ the frame
    const slabs = Object.fromEntries(Object.keys(spans).map((name) => [name, slabOf(name, spans[name])]));
    const lines = h("svg", { class: "tfx-arrows", "aria-hidden": "true" });
    const words = h("div", { class: "tfx-labels", "aria-hidden": "true" });
    // Lines of the drawing; where there is room, a grid that does not know of them.
    const rows = Array.from({ length: 8 }, () => h("div", { class: "tfx-line-of" }));
    const board = h("div", { class: "tfx-board" }, rows, lines, words);
    const said = summary();
    said.node.classList.add("tfx-hidden");
    const go = (step) => {
      if (step < 0 || step > last || step === model.get("step")) return;
      model.set("step", step);
      model.save_changes();
    };
    const turn = (text, by, control) => h("button", {
      type: "button", class: "tfx-button", "data-control": control, onclick: () => go(model.get("step") + by),
    }, text);
    const [back, on] = [turn("Previous", -1, "previous"), turn("Next", 1, "next")];
    const place = h("span", { class: "tfx-place" });
    const dots = steps.map(() => h("span", { class: "tfx-dotmark" }));
    // All captions lie in one place, of which one is seen: what stands below does not jump.
    const captions = steps.map((s) => h("div", { class: "tfx-saying" },
      h("p", {}, prose(s.caption)), s.formula && h("p", { class: "tfx-formula" }, prose(s.formula))));
    const keys = { ArrowLeft: () => model.get("step") - 1, ArrowRight: () => model.get("step") + 1, Home: () => 0, End: () => last };
    el.classList.add("tfx");
    el.append(h("div", {
      class: "tfx-card tfx-stepper", role: "group", "aria-label": title,
      onkeydown: (e) => {
        if (!keys[e.key] || e.ctrlKey || e.altKey || e.metaKey || e.shiftKey) return;
        e.preventDefault();
        go(keys[e.key]());
      },
    },
      h("div", { class: "tfx-stack" }, titled(title), h("p", { class: "tfx-hidden" }, prose(alt))),
      h("div", { class: "tfx-turns" }, back, h("span", { class: "tfx-where" }, place, h("span", { class: "tfx-dotmarks", "aria-hidden": "true" }, dots)), on),
      h("div", { class: "tfx-sayings" }, captions), board, said.node));

    // ------------------------------------------------------------------ arrows
    const shown = (name) => slabs[name].node.checkVisibility({ visibilityProperty: true });
    const edge = (from, to) => {
      const [a, b] = [from, to].map((name) => slabs[name].node.getBoundingClientRect());
      const frame = board.getBoundingClientRect();
      const across = b.left >= a.right - 1 || b.right <= a.left + 1;
      const both = a.top < b.bottom && b.top < a.bottom;
      const middle = (lo, hi) => (lo + hi) / 2;
      if (across && both) {
        const y = middle(Math.max(a.top, b.top), Math.min(a.bottom, b.bottom));
        const right = b.left >= a.right - 1;
        return [right ? a.right : a.left, y, right ? b.left : b.right, y].map((x, i) => x - (i % 2 ? frame.top : frame.left));
      }
      const shared = [Math.max(a.left, b.left), Math.min(a.right, b.right)];
      const straight = shared[0] < shared[1] ? middle(...shared) : null;
      const down = b.top >= a.top;
      return [straight ?? middle(a.left, a.right), down ? a.bottom : a.top, straight ?? middle(b.left, b.right), down ? b.top : b.bottom]
        .map((x, i) => x - (i % 2 ? frame.top : frame.left));
    };
    const drawArrows = () => {
      const arrows = steps[model.get("step")].arrows
        .filter((a) => shown(a.from) && shown(a.to));
      const made = arrows.map((a) => {
        const [x1, y1, x2, y2] = edge(a.from, a.to);
        const length = Math.hypot(x2 - x1, y2 - y1) || 1;
        const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
        const upright = Math.abs(uy) > Math.abs(ux);
        const [sx, sy, tx, ty] = [x1 + 5 * ux, y1 + 5 * uy, x2 - 5 * ux, y2 - 5 * uy];
        const wing = (side) => `${tx - 8 * ux + side * 5 * uy},${ty - 8 * uy - side * 5 * ux}`;
        return {
          path: h("path", { d: `M${sx},${sy}L${tx},${ty}M${wing(1)}L${tx},${ty}L${wing(-1)}` }),
          // Between two parts that stand close there is no room for words.
          word: a.words && (upright || length > 40) && h("span", { class: upright ? "tfx-beside" : "tfx-above", style: { left: `${(sx + tx) / 2}px`, top: `${(sy + ty) / 2}px` } }, prose(a.words)),
        };
      });
      lines.replaceChildren(...made.map((m) => m.path));
      words.replaceChildren(...made.map((m) => m.word).filter(Boolean));
    };

    // ------------------------------------------------------------------ a step
    const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
    const places = () => Object.values(slabs).map((s) => (s.node.checkVisibility() ? s.node.getBoundingClientRect() : null));
    /** In one piece where there is room for all parts of all steps; else what the step shows, line
        by line. Rows have their names once in a line, at its left, unless the line is broken. */
    const fit = () => {
      board.classList.remove("tfx-tight", "tfx-wrapped");
      rows.forEach((row) => row.classList.remove("tfx-broken"));
      const look = looks[model.get("step")];
      const wide = () => board.scrollWidth > board.clientWidth + 1;
      const name = (there) => rows.forEach((_, at) => {
        const line = Object.keys(look).filter((n) => look[n].at[0] === at && there(n)).sort((m, n) => look[m].at[1] - look[n].at[1]);
        const same = (m, n) => JSON.stringify(look[m].rows) === JSON.stringify(look[n].rows);
        line.forEach((n, i) => slabs[n].node.classList.toggle("tfx-unnamed", line.slice(0, i).some((m) => same(m, n))));
      });
      name(() => true);
      if (wide()) board.classList.add("tfx-tight");
      if (wide()) {
        board.classList.add("tfx-wrapped");
        name(shown);
        for (const row of rows) {
          const ends = [...row.children].filter((n) => n.checkVisibility()).map((n) => Math.round(n.getBoundingClientRect().bottom));
          row.classList.toggle("tfx-broken", new Set(ends).size > 1);
        }
      }
      drawArrows();
    };
    const draw = () => {
      const k = model.get("step");
      const step = steps[k];
      const before = calm() ? null : places();
      for (const [name, slab] of Object.entries(slabs)) {
        slab.draw(looks[k][name]);
        const row = rows[looks[k][name].at[0]];
        if (slab.node.parentNode !== row) row.append(slab.node);
        const pale = step.pale.includes(name);
        slab.node.classList.toggle("tfx-pale", pale);
        slab.node.classList.toggle("tfx-away", !pale && !step.parts.includes(name));
      }
      place.textContent = `Step ${k + 1} of ${steps.length}`;
      dots.forEach((dot, i) => dot.classList.toggle("tfx-on", i <= k));
      captions.forEach((c, i) => c.classList.toggle("tfx-away", i !== k));
      back.setAttribute("aria-disabled", String(k === 0)); // disabled, it would lose the focus
      on.setAttribute("aria-disabled", String(k === last));
      said.set(`${place.textContent}. ${captions[k].textContent}`);
      fit();
      // A part that has to move, where parts are wrapped, comes from where it was.
      before?.forEach((was, i) => {
        const node = Object.values(slabs)[i].node;
        const now = was && node.checkVisibility() ? node.getBoundingClientRect() : null;
        if (!now || !now.width || !was.width || (was.left === now.left && was.top === now.top)) return;
        node.animate([{ transform: `translate(${was.left - now.left}px, ${was.top - now.top}px)` }, {}], { duration: 250, easing: "ease-out" });
      });
    };
    let width = 0;
    const watch = new ResizeObserver(() => {
      if (board.clientWidth !== width) fit();
      width = board.clientWidth;
    });
    watch.observe(el);
    const end = follow(model, ["step"], draw);
    return () => {
      watch.disconnect();
      end();
    };
  },
};
