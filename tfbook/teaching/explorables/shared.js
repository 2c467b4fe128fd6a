// What the explorables share: building the page, controls, numbers. `module_source` in _base.py
// puts this text in place of the import, so that each delivered module stands alone.

/** Make an element. Text children become text nodes, so that nothing a reader types is markup. */
export function h(tag, props, ...children) {
  const svg = ["svg", "g", "path", "circle", "line", "rect", "text", "polyline"].includes(tag);
  const node = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else node.setAttribute(key, value === true ? "" : value);
  }
  // On what can have the focus: JupyterLab would take arrow keys and letters for its own commands.
  if (["input", "textarea", "button", "select", "summary"].includes(tag) || node.hasAttribute("tabindex"))
    node.setAttribute("data-lm-suppress-shortcuts", "true");
  node.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return node;
}

/** Text as nodes: `code` stands in backticks, and a letter_index gets its index lowered. */
export function prose(text) {
  return text.split(/`([^`]+)`/).flatMap((part, i) =>
    i % 2 ? h("code", {}, part) : part.split(/\b([a-zA-Z])_([a-z0-9])\b/).map((piece, j) =>
      j % 3 === 2 ? h("sub", {}, piece) : piece));
}

const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** A number as a reader wants it: a true minus sign, and powers of ten for tiny ones. */
export function show(x, digits = 3) {
  if (x === -Infinity) return "−inf";
  if (x !== 0 && Math.abs(x) < 0.5 * 10 ** -digits && digits > 2) {
    const [lead, power] = x.toExponential(0).split("e-");
    const raised = [...power].map((c) => SUPERSCRIPT[c]).join("");
    return `${lead === "1" ? "" : lead + "·"}10⁻${raised}`.replace("-", "−");
  }
  const text = x.toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

/** A whole number with its thousands apart. */
export const grouped = (x) => String(x).replace(/\B(?=(\d{3})+$)/g, "\u202f");

/** A large number in a unit that suits it, four digits long: 134.5 M. */
function scaled(x, base, units) {
  let i = 0;
  for (; x >= 0.99995 * base && i < units.length - 1; i++) x /= base;
  const text = i ? x.toFixed(x < 9.9995 ? 3 : x < 99.995 ? 2 : x < 999.95 ? 1 : 0) : grouped(Math.round(x));
  return units[i] ? `${text}\u00a0${units[i]}` : text;
}
export const counted = (x) => scaled(x, 1000, ["", "k", "M", "B", "T"]);
export const flops = (x) => scaled(x, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"]);
export const bytes = (x) => scaled(x, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);

/** A number on the page that also carries its full precision; `digits` may say how it is written. */
export function reading(name, digits = 3, props = {}) {
  const node = h("span", { class: "tfx-number", "data-name": name, ...props });
  const set = (x) => {
    node.dataset.value = String(x);
    node.textContent = typeof digits === "function" ? digits(x) : show(x, digits);
  };
  const clear = () => {
    delete node.dataset.value;
    node.textContent = "–";
  };
  return { node, set, clear };
}

/** Row of cells coloured by their numbers; with `digits` the numbers stand in the cells. */
export function cells(numbers, { name = null, digits = null, reach = 1, label = null } = {}) {
  const bare = digits === null;
  const props = { class: bare ? "tfx-cells tfx-bare" : "tfx-cells" };
  if (bare) Object.assign(props, { role: "img", "aria-label": label });
  return h("span", props, numbers.map((x, i) =>
    h("span", {
      class: "tfx-cell",
      style: { "--heat": `${Math.min(100, (100 * Math.abs(x)) / reach).toFixed(1)}%` },
      "data-sign": x < 0 ? "-" : "+",
      "data-name": name && `${name}[${i}]`,
      "data-value": name && String(x),
    }, bare ? "" : show(x, digits))));
}

/** A labelled range input. `read` and `write` translate between positions and values. */
export function slider(model, name, { label, min, max, step, read, write, text, index = null }) {
  const value = () => (index === null ? model.get(name) : model.get(name)[index]);
  const output = h("span", { class: "tfx-output", "aria-hidden": "true" });
  const input = h("input", {
    type: "range", min, max, step: step || 1, class: "tfx-range", "data-control": index === null ? name : `${name}[${index}]`,
    oninput: () => {
      const v = (read || Number)(Number(input.value));
      if (index === null) model.set(name, v);
      // A new list: setting an entry of the old one would not count as a change.
      else model.set(name, model.get(name).map((old, i) => (i === index ? v : old)));
      model.save_changes();
    },
  });
  const update = () => {
    const v = value();
    input.value = (write || String)(v);
    output.textContent = text ? text(v) : show(v, 1);
    input.setAttribute("aria-valuetext", output.textContent);
    const span = input.max - input.min || 1;
    input.style.setProperty("--filled", `${(100 * (input.value - input.min)) / span}%`);
  };
  const node = h("label", { class: "tfx-control" },
    h("span", { class: "tfx-label" }, h("span", {}, prose(label)), output), input);
  return { node, update, input };
}

/** A labelled switch for a boolean. */
export function toggle(model, name, label) {
  const input = h("input", {
    type: "checkbox", role: "switch", class: "tfx-switch", "data-control": name,
    onchange: () => {
      model.set(name, input.checked);
      model.save_changes();
    },
  });
  const node = h("label", { class: "tfx-control tfx-row" }, h("span", {}, prose(label)), input);
  return { node, update: () => (input.checked = model.get(name)), input };
}

/** A group of buttons of which one is on. Each form has its own name space, so no ids are needed. */
export function options(model, name, label, choices, { hidden = false, shown = null } = {}) {
  const buttons = choices.map(([value, text]) => {
    const input = h("input", {
      type: "radio", name, value: String(value), "data-control": name,
      onchange: () => {
        model.set(name, value);
        model.save_changes();
      },
    });
    return { value, input, node: h("label", { class: "tfx-option" }, input, h("span", {}, text)) };
  });
  const legend = h("legend", { class: hidden ? "tfx-hidden" : "tfx-label" }, label);
  const node = h("form", { class: "tfx-control", onsubmit: (e) => e.preventDefault() },
    h("fieldset", { class: "tfx-options" }, legend, h("div", {}, buttons.map((b) => b.node))));
  const update = () => {
    const now = shown ? shown() : model.get(name);
    for (const b of buttons) b.input.checked = b.value === now;
  };
  return { node, update };
}

/** A slider over a list of values. `stops()` is the list and `now()` the value that holds: what is
    set in Python may lie between two stops, and null stands for a value from elsewhere. */
export function stops(model, name, { label, stops, now, text = grouped }) {
  const place = (list, value) => list.reduce((best, x, i) => (Math.abs(x - value) < Math.abs(list[best] - value) ? i : best), 0);
  const made = slider(model, name, {
    label, min: 0, max: 0, read: (i) => stops()[i], write: () => place(stops(), now()), text: () => text(now()),
  });
  const update = () => {
    made.input.max = Math.max(1, stops().length - 1);
    made.update();
    made.node.hidden = stops().length < 2;
  };
  return { ...made, update };
}

/** A labelled list to choose from, for choices too long for buttons; `choices` are texts. What is
    set is the number of the choice, or its key; `also` are values set with it. */
export function choice(model, name, label, choices, { keys = null, also = {} } = {}) {
  const input = h("select", {
    class: "tfx-field tfx-long", "data-control": name,
    onchange: () => {
      const chosen = keys ? input.value : Number(input.value); // before a change draws the list anew
      for (const [key, value] of Object.entries(also)) model.set(key, value);
      model.set(name, chosen);
      model.save_changes();
    },
  }, choices.map((text, i) => h("option", { value: keys ? keys[i] : i }, text)));
  const node = h("label", { class: "tfx-control" }, h("span", { class: "tfx-label" }, label), input);
  return { node, update: () => (input.value = model.get(name)), input };
}

// Tokens that cannot be seen get a sign, and a name for those who listen.
const SEEN = { " ": ["␣", "space"], "\n": ["⏎", "line break"], "\t": ["⇥", "tab"], "": ["∅", "nothing"] };
const unseen = (token) => h("span", { class: "tfx-unseen", "data-sign": SEEN[token][0] }, h("span", { class: "tfx-hidden" }, SEEN[token][1]));

/** A token as it stands in a list. */
export const listed = (token) => (SEEN[token] ? unseen(token) : token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥"));

/** A token as a sentence names it. */
export const called = (token) => (SEEN[token] ? SEEN[token][1] : `“${token}”`);

/** Tokens in a row, of which one is followed; the others are filled by a weight and show it.
    `pick(i)` is called with the chosen token, `point(i)` with the one under a mouse, or null. */
export function tokenRow(name, label, pick, point) {
  const list = h("div", { onpointerleave: () => point(null) });
  const node = h("form", { class: "tfx-control", onsubmit: (e) => e.preventDefault() },
    h("fieldset", { class: "tfx-options tfx-tokens" }, h("legend", { class: "tfx-label" }, label), list));
  let chips = [];
  const fill = (tokens) => {
    chips = tokens.map((token, i) => {
      const input = h("input", { type: "radio", name, value: i, "data-control": name, onchange: () => pick(i) });
      const weight = h("span", { class: "tfx-number" });
      const chip = h("label", { class: "tfx-option", onpointerenter: (e) => e.pointerType === "mouse" && point(i) },
        input, h("span", { class: "tfx-token" }, SEEN[token] ? unseen(token) : h("span", {}, token), weight));
      return { input, weight, node: chip, face: chip.lastChild };
    });
    list.replaceChildren(...chips.map((c) => c.node));
  };
  /** `checked` is the chosen token, `followed` the one looked at now; `weights` may be null. */
  const draw = ({ checked, followed, weights, share = (w) => w }) => chips.forEach((c, i) => {
    c.input.checked = i === checked;
    c.face.classList.toggle("tfx-followed", i === followed);
    c.face.style.setProperty("--heat", weights ? `${(100 * Math.min(1, share(weights[i]))).toFixed(1)}%` : "0%");
    c.weight.textContent = !weights ? "" : weights[i] < 0.005 ? "·" : show(weights[i], 2).replace(/^0/, "");
    if (weights) Object.assign(c.weight.dataset, { name: `weight[${i}]`, value: weights[i] });
    else for (const key of ["name", "value"]) delete c.weight.dataset[key];
  });
  return { node, fill, draw, faces: () => chips.map((c) => c.face) };
}

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/** Rows of weights from the two characters each that `pack_weights` in _packing.py wrote. */
export function unpackWeights({ shape, causal, codes }) {
  const [n, m] = shape.slice(-2);
  const rows = [];
  for (let at = 0; at < codes.length; ) {
    const kept = causal ? (rows.length % n) + 1 : m;
    const squares = Array.from({ length: m }, (_, j) =>
      j < kept ? (DIGITS.indexOf(codes[at + 2 * j]) * 64 + DIGITS.indexOf(codes[at + 2 * j + 1])) ** 2 : 0);
    const total = squares.reduce((a, b) => a + b, 0);
    rows.push(squares.map((s) => s / total));
    at += 2 * kept;
  }
  return rows;
}

/** What stands above the controls: a title, the question of the card, and what to try. Both texts
    are in `ASKED`, which module_source puts before a module. */
export function titled(title) {
  const [question, trial] = ASKED;
  return h("div", { class: "tfx-head" }, h("p", { class: "tfx-title" }, title),
    h("p", { class: "tfx-ask" }, h("strong", {}, prose(question)), h("span", {}, " Try: ", prose(trial))));
}

/** Settings that can wait: folded, below those that the question needs. */
export const folded = (label, ...nodes) => h("details", { class: "tfx-more" },
  h("summary", {}, label), h("div", { class: "tfx-stack" }, nodes));

/** A large number with its name above and a note below. */
export function stat(name, label, digits) {
  const value = reading(name, digits);
  const note = h("span", { class: "tfx-note" });
  return { ...value, note, node: h("div", { class: "tfx-stat" }, h("span", {}, prose(label)), value.node, note) };
}

/** A plot in a box of 100 by 100 that stretches; text stands beside the drawing, so it does not. */
export function chart(...lines) {
  const grid = h("g", {});
  const ticks = h("div", {});
  const svg = h("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" }, grid, lines);
  const node = h("div", { class: "tfx-plot", "aria-hidden": "true" }, svg, ticks);
  let across = [0, 1], upward = [0, 1];
  const at = (x) => (100 * (x - across[0])) / (across[1] - across[0]);
  const up = (y) => (100 * (upward[1] - y)) / (upward[1] - upward[0]);
  const frame = (xRange, yRange, xs, ys, format = (x) => String(x).replace("-", "−"), formatX = format) => {
    [across, upward] = [xRange, yRange];
    grid.replaceChildren(...ys.map((y) => h("line", { class: "tfx-grid", x1: 0, x2: 100, y1: up(y), y2: up(y) })));
    ticks.replaceChildren(
      h("div", {}, ys.map((y) => h("span", { class: "tfx-ytick", style: { top: `${up(y)}%` } }, format(y)))),
      h("div", {}, xs.map((x) => h("span", { class: "tfx-xtick", style: { left: `${at(x)}%` } }, formatX(x)))));
  };
  const points = (line, pairs) => line.setAttribute("points", pairs.map(([x, y]) => `${at(x)},${up(y)}`).join(" "));
  const place = (mark, x, y) => Object.assign(mark.style, { left: `${at(x)}%`, top: `${up(y)}%` });
  return { node, svg, at, up, frame, points, place };
}

/** The i-th number of a seed, from 1: mulberry32, the same bits as uniforms in _chance.py has. */
export function uniform(seed, i) {
  const a = (Math.imul(seed, 0x9e3779b9) + Math.imul(i, 0x6d2b79f5)) | 0;
  let t = Math.imul(a ^ (a >>> 15), a | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 2 ** 32;
}

/** A line that screen readers hear when it changes, once the reader's hand rests. */
export function summary() {
  const node = h("p", { class: "tfx-summary", role: "status" });
  let timer = 0;
  const set = (text) => {
    clearTimeout(timer);
    if (!node.textContent) node.textContent = text;
    timer = setTimeout(() => node.textContent !== text && (node.textContent = text), 250);
  };
  return { node, set };
}

/** Draw now and whenever one of the values changes; returns what ends it. */
export function follow(model, names, draw) {
  draw();
  for (const name of names) model.on(`change:${name}`, draw);
  return () => names.forEach((name) => model.off(`change:${name}`, draw));
}

export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

/** exp(s_i) / Σ exp(s_j), with the largest score taken off first; all −∞ gives zeros. */
export function softmax(scores) {
  const top = Math.max(...scores);
  if (top === -Infinity) return scores.map(() => 0);
  const powers = scores.map((s) => Math.exp(s - top));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((p) => p / total);
}
