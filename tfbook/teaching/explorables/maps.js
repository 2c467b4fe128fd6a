// A map of numbers with names at its edges. `module_source` in _base.py puts this text in place of
// the import.
import { h, listed } from "./shared.js";

const CROWD = [12, 13]; // pixels that the name of a row and of a column takes

/** Cells filled by size and sign, named above and at the left; `pick(i, j)` is called with a cell
    that is clicked. With `bars` the row and the column of the chosen cell stand beside the map. */
export function labelledMap({ rows, columns, name, pick, bars = false, words = [false, false] }) {
  const [n, m] = [rows.length, columns.length];
  const node = h("div", { class: bars ? "tfx-labelled tfx-barred" : "tfx-labelled", "aria-hidden": "true", style: { "--rows": n, "--columns": m } });
  const svgOf = (kind, box) => h("svg", { class: kind, viewBox: box, preserveAspectRatio: "none" });
  const map = svgOf("tfx-mapped", `0 0 ${m} ${n}`);
  const tiles = rows.map((_, i) => columns.map((_, j) =>
    h("rect", { class: "tfx-effect", x: j + 0.02, y: i + 0.02, width: 0.96, height: 0.96, "data-name": `${name}[${i}][${j}]` })));
  const frame = h("rect", { class: "tfx-frame" });
  map.append(...tiles.flat(), frame);
  map.addEventListener("click", (e) => {
    const box = map.getBoundingClientRect();
    const cell = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    pick(cell((e.clientY - box.top) / box.height, n), cell((e.clientX - box.left) / box.width, m));
  });
  const label = (axis) => (text) => h("span", {}, words[axis] ? listed(text) : text);
  const left = h("div", { class: "tfx-left" }, rows.map(label(0)));
  const above = h("div", { class: "tfx-top" }, columns.map(label(1)));
  node.append(above, left, map);
  const side = bars && { row: svgOf("tfx-rowbars", "0 0 1 1"), column: svgOf("tfx-columnbars", "0 0 1 1") };
  if (bars) node.append(side.column, side.row);

  // Where names would lie upon each other every second, third, … is left out, but for the chosen.
  let place = [0, 0];
  const thin = () => [[left, n, map.clientHeight], [above, m, map.clientWidth]].forEach(([names, count, room], axis) => {
    const step = Math.max(1, Math.ceil((CROWD[axis] * count) / (room || 1)));
    const at = place[axis];
    [...names.children].forEach((label, i) => {
      label.classList.toggle("tfx-named", i === at);
      label.classList.toggle("tfx-skip", i !== at && (i % step > 0 || (at !== null && Math.abs(i - at) < step)));
    });
  });
  const watch = new ResizeObserver(thin);
  watch.observe(map);

  const fill = (rect, x, attributes) => {
    for (const [key, value] of Object.entries(attributes)) rect.setAttribute(key, value);
    Object.assign(rect.dataset, { sign: x < 0 ? "-" : "+", value: x });
  };
  const drawBars = (values, [low, high]) => {
    const [i, j] = place;
    const zero = (at) => h("line", { class: "tfx-axis", "vector-effect": "non-scaling-stroke", ...at });
    const bar = (key, k, x, on, at) => {
      const rect = h("rect", { class: on ? "tfx-effectbar tfx-on" : "tfx-effectbar", "data-name": `${key}[${k}]` });
      fill(rect, x, at);
      return rect;
    };
    side.row.setAttribute("viewBox", `0 ${-high} ${m} ${high - low}`);
    side.column.setAttribute("viewBox", `${low} 0 ${high - low} ${n}`);
    side.row.replaceChildren(...values[i].map((x, k) => bar("row", k, x, k === j, { x: k + 0.15, y: Math.min(0, -x), width: 0.7, height: Math.abs(x) })), zero({ x1: 0, x2: m, y1: 0, y2: 0 }));
    side.column.replaceChildren(...values.map((row, k) => bar("column", k, row[j], k === i, { x: Math.min(0, row[j]), y: k + 0.15, width: Math.abs(row[j]), height: 0.7 })), zero({ x1: 0, x2: 0, y1: 0, y2: n }));
  };

  /** `chosen` is a row and a column, or a row and null; colours are full at `reach`. */
  const draw = ({ values, chosen, reach, span, share = (x) => x }) => {
    place = chosen;
    tiles.forEach((line, i) => line.forEach((rect, j) => {
      const x = values[i][j];
      rect.style.setProperty("--heat", `${(100 * Math.min(1, share(Math.abs(x) / (reach || 1)))).toFixed(1)}%`);
      fill(rect, x, {});
    }));
    const [i, j] = chosen;
    const at = j === null ? { x: 0, y: i, width: m, height: 1 } : { x: j, y: i, width: 1, height: 1 };
    for (const [key, value] of Object.entries(at)) frame.setAttribute(key, value);
    if (bars) drawBars(values, span);
    thin();
  };
  return { node, draw, end: () => watch.disconnect() };
}
