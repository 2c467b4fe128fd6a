import { chart, folded, follow, grouped, h, options, stat, stops, summary, titled } from "./shared.js";

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const power = (e) => [...String(e)].map((c) => (c === "-" ? "⁻" : RAISED[c])).join("");

/** A number with the digits that count, in powers of ten where it is very large or small. */
function written(x, digits = 10) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x < 0 ? "−inf" : "inf";
  if (Object.is(x, -0)) return "−0";
  const size = Math.abs(x);
  if (size === 0 || (size >= 1e-4 && size < 1e7)) {
    const [whole, rest] = String(Number(size.toPrecision(digits))).split(".");
    return `${x < 0 ? "−" : ""}${grouped(whole)}${rest ? `.${rest}` : ""}`;
  }
  const [lead, e] = size.toExponential(digits - 1).split("e");
  return `${x < 0 ? "−" : ""}${Number(lead) === 1 ? "" : `${Number(lead)}·`}10${power(Number(e))}`;
}

/** To the nearest whole number, half way to the even one. */
function even(x) {
  const low = Math.floor(x);
  return x - low === 0.5 ? low + (low % 2) : Math.round(x);
}

const view = new DataView(new ArrayBuffer(8));
/** The power of two in a positive number. */
function exponentOf(x) {
  view.setFloat64(0, x);
  return ((view.getUint32(0) >>> 20) & 0x7ff) - 1023;
}

/** The bits nearest to a number: the same as encode in tfbook/hardware/formats.py. */
function encode(x, f) {
  if (f.whole) {
    const half = 2 ** (f.bits - 1);
    const code = Math.min(half - 1, Math.max(-half, even(x)));
    return code < 0 ? code + 2 * half : code + 0;
  }
  const size = Math.abs(x);
  const e = Math.max(size ? exponentOf(size) : -Infinity, 1 - f.bias);
  let code = (e + f.bias - 1) * 2 ** f.mantissa + even(size * 2 ** (f.mantissa - e));
  if (code > f.last) code = f.last + (f.special === "none" ? 0 : 1);
  return code + (x < 0 || Object.is(x, -0) ? 2 ** (f.bits - 1) : 0);
}

/** Sign, exponent and fraction of a pattern; bit operations end at 31 bits, so it divides. */
function fieldsOf(code, f) {
  const sign = 2 ** (f.bits - 1);
  const size = code % sign;
  return { sign: Math.floor(code / sign), size, exponent: Math.floor(size / 2 ** f.mantissa), fraction: size % 2 ** f.mantissa };
}

/** What a pattern stands for: the same as decode. */
function decode(code, f) {
  if (f.whole) return code >= 2 ** (f.bits - 1) ? code - 2 ** f.bits : code;
  const { sign, size, exponent, fraction } = fieldsOf(code, f);
  let x = ((exponent > 0) + fraction / 2 ** f.mantissa) * 2 ** (Math.max(exponent, 1) - f.bias);
  if (size > f.last) x = f.special === "ieee" && size === f.last + 1 ? Infinity : NaN;
  return sign ? -x : x;
}

/** The finite number some steps above or below a pattern, or null. */
function neighbour(code, f, steps) {
  const half = 2 ** (f.bits - 1);
  const size = code % half;
  const place = (f.whole ? decode(code, f) : code >= half ? -size : size) + steps;
  if (f.whole) return place < -half || place >= half ? null : (place + 2 * half) % (2 * half);
  if (size > f.last || Math.abs(place) > f.last) return null;
  return place >= 0 ? place : half - place;
}

/** The same numbers as _results in _bits.py. */
function numbers({ f, wanted, code, scale }) {
  const by = f.whole ? scale : 1;
  const chosen = code >= 0 && code < 2 ** f.bits;
  const pattern = chosen ? code : encode(wanted / by, f);
  const at = (steps) => {
    const next = neighbour(pattern, f, steps);
    return next === null ? null : by * decode(next, f);
  };
  const shown = by * decode(pattern, f);
  const [below, above] = [at(-1), at(1)];
  const gaps = [below, above].map((x) => (x === null ? null : Math.abs(x - shown)));
  const [outward, inward] = shown < 0 || Object.is(shown, -0) ? gaps : [gaps[1], gaps[0]];
  const fields = f.whole ? {} : fieldsOf(pattern, f);
  const finite = Number.isFinite(shown);
  const most = by * (f.whole ? 2 ** (f.bits - 1) - 1 : decode(f.last, f));
  const ends = f.whole || f.special === "none"; // what is too large is held there
  const end = f.whole && wanted < 0 ? most + by : most;
  const event = shown === wanted ? "exact" : chosen ? "chosen" :
    !finite || (ends && Math.abs(wanted) > end) ? "overflow" : shown === 0 ? "underflow" : "rounded";
  const kind = Number.isNaN(shown) ? "NaN" : !finite ? "infinity" : shown === 0 ? "zero" :
    f.whole ? "whole" : fields.exponent ? "normal" : "subnormal";
  return {
    pattern, shown, below, above, event, kind, fields, at,
    error: finite ? shown - wanted : null, relative: finite && wanted ? Math.abs(shown - wanted) / Math.abs(wanted) : null,
    spacing: outward === null ? inward : outward, largest: most, least: by * (f.whole ? 1 : decode(1, f)),
  };
}

const PARTS = { sign: "sign", exponent: "exponent", fraction: "fraction" };
const partOf = (i, f) => (f.whole ? (i ? "fraction" : "sign") : i === 0 ? "sign" : i <= f.exponent ? "exponent" : "fraction");

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = Object.keys(data.formats);
    const form = () => data.formats[model.get("format")];
    const now = () => ({ f: form(), wanted: model.get("value"), code: model.get("code"), scale: model.get("scale") });
    const set = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };

    // ------------------------------------------------------------------ controls
    const format = options(model, "format", "Format", names.map((name) => [name, data.formats[name].label]));
    format.node.addEventListener("change", () => set({ code: -1 })); // bits of one format mean nothing in another
    const advice = h("p", { class: "tfx-note tfx-oneline", role: "alert" });
    const field = h("input", {
      class: "tfx-field tfx-short", type: "text", inputmode: "decimal", autocomplete: "off", "data-control": "value",
      oninput: () => {
        const text = field.value.trim().replace(",", ".").replace("−", "-");
        const x = text === "" ? NaN : Number(text);
        const fine = Number.isFinite(x) && Math.abs(x) <= 1e300;
        field.setAttribute("aria-invalid", String(!fine));
        advice.textContent = fine || /^[-+]?\d*\.?\d*(e[-+]?)?$/i.test(text) ? "" : "Not a number: write it like 0.1, -3 or 6e-8.";
        if (fine) set({ value: x, code: -1 });
      },
      onchange: () => {
        field.value = String(model.get("value"));
        field.setAttribute("aria-invalid", "false");
        advice.textContent = "";
      },
    });
    const typed = h("label", { class: "tfx-control" }, h("span", { class: "tfx-label" }, "The number wanted"), field);
    const examples = h("div", { class: "tfx-chips", role: "group", "aria-label": "Numbers to try" }, data.examples.map((x) =>
      h("button", { class: "tfx-chip", type: "button", "data-control": "example", onclick: () => set({ value: x, code: -1 }) }, written(x, 5))));
    const scale = stops(model, "scale", { label: "Scale s of whole numbers", stops: () => data.scales, now: () => model.get("scale"), text: (x) => written(x, 3) });

    // ------------------------------------------------------------------ the bits
    const flip = (i) => {
      const { f, wanted, scale: s } = now();
      const { pattern } = numbers(now());
      const worth = 2 ** (f.bits - 1 - i);
      const code = pattern + (Math.floor(pattern / worth) % 2 ? -worth : worth);
      const x = (f.whole ? s : 1) * decode(code, f);
      set({ value: Number.isFinite(x) ? x + 0 : wanted, code });
    };
    const bits = Array.from({ length: 32 }, (_, i) => h("button", {
      class: "tfx-bit", type: "button", "data-control": `bit[${i}]`, onclick: () => flip(i),
      onkeydown: (event) => {
        const next = bits[i + { ArrowRight: 1, ArrowLeft: -1 }[event.key]];
        if (next?.isConnected) next.focus();
      },
    }));
    const board = h("div", { class: "tfx-bits", role: "group", "aria-label": "Bits" });
    const legend = h("p", { class: "tfx-note" });
    const keys = Object.fromEntries(Object.entries(PARTS).map(([part, name]) => [part, h("span", { class: `tfx-key tfx-bitkey tfx-${part}` }, name)]));
    const formula = h("p", { class: "tfx-worded" });

    // ------------------------------------------------------------------ neighbours
    const plot = chart(h("line", { class: "tfx-axis", x1: 0, x2: 100, y1: 50, y2: 50 }));
    plot.node.classList.add("tfx-neighbours");
    const dots = Array.from({ length: 9 }, (_, i) => h("span", { class: `tfx-mark tfx-spot${i === 4 ? " tfx-scaled" : ""}` }));
    const asked = h("span", { class: "tfx-wanted" });
    plot.node.append(...dots, asked);
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "The numbers around it. "), "Dots: numbers of the format, the large one is shown. Line: the number wanted."), plot.node);
    const stats = {
      shown: stat("shown", "the bits stand for", (x) => written(x, Math.abs(x) < 1e-4 || Math.abs(x) >= 1e7 ? 7 : 9)),
      error: stat("error", "error", (x) => written(x, 4)),
      spacing: stat("spacing", "to the next number", (x) => written(x, 6)),
      largest: stat("largest", "largest number", (x) => written(x, 6)),
    };
    const rows = names.map((name) => {
      const f = data.formats[name];
      const cells = [h("td", { class: "tfx-number", "data-name": `all[${name}]` }), h("td", { class: "tfx-number", "data-name": `off[${name}]` })];
      const kept = f.whole ? `${f.bits}` : `1+${f.exponent}+${f.mantissa}`;
      return { name, f, cells, node: h("tr", {}, h("th", { scope: "row" }, f.label), h("td", {}, kept), cells) };
    });
    const table = h("table", { class: "tfx-table tfx-known-table tfx-in-formats" },
      h("caption", {}, "The same number in every format"),
      h("thead", {}, h("tr", {}, ["format", "bits", "nearest", "error"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows.map((r) => r.node)));
    const verdict = h("p", { class: "tfx-verdict" });
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      format.node, h("div", { class: "tfx-stack" }, h("div", { class: "tfx-abreast" }, typed, examples), advice), scale.node,
      h("div", { class: "tfx-stack" }, legend, board, formula), verdict, figure,
      h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).map((s) => s.node)), said.node,
      folded("The same number in every format", table)));

    const percent = (x) => (x === null ? "" : x === 0 ? "no error" : x < 1e-5 ? `${written(100 * x, 2)}% off` : `${Number((100 * x).toPrecision(2))}% off`);
    const draw = () => {
      const given = now();
      const { f, wanted } = given;
      const c = numbers(given);
      [format, scale].forEach((control) => control.update());
      scale.node.hidden = !f.whole;
      // While the reader types, what stands there is theirs.
      if (document.activeElement !== field || Number(field.value.replace(",", ".")) !== wanted) field.value = String(wanted);
      const text = c.pattern.toString(2).padStart(f.bits, "0");
      if (board.childElementCount !== f.bits) board.replaceChildren(...bits.slice(0, f.bits));
      bits.slice(0, f.bits).forEach((bit, i) => {
        const part = partOf(i, f);
        bit.className = `tfx-bit tfx-${part}`;
        bit.textContent = text[i];
        bit.setAttribute("aria-pressed", String(text[i] === "1"));
        const place = part === "sign" ? "" : `, ${part === "exponent" ? f.exponent - i : f.bits - 1 - i}`;
        bit.setAttribute("aria-label", `${f.whole && i ? "bit" : part}${place}: ${text[i]}`);
      });
      board.dataset.bits = text;
      legend.replaceChildren(keys.sign, f.whole ? "" : keys.exponent, keys.fraction);
      keys.fraction.textContent = f.whole ? "bits of the whole number" : "fraction";
      const { sign, exponent: e, fraction } = c.fields;
      const raised = (text) => h("sup", {}, text);
      const minus = (x) => String(x).replace("-", "−");
      const sum = f.whole ? [`s c = ${written(given.scale, 4)} · ${minus(decode(c.pattern, f))} = `] :
        c.kind === "NaN" || c.kind === "infinity" ? ["the pattern at the top stands for "] :
          [`${sign ? "−" : "+"} 2`, raised(`${Math.max(e, 1)} − ${f.bias}`), e ? ` (1 + ${grouped(fraction)}/${grouped(2 ** f.mantissa)})` : ` · ${grouped(fraction)}/${grouped(2 ** f.mantissa)}`, " = "];
      formula.replaceChildren(...sum, h("strong", { class: "tfx-number" }, written(c.shown)), c.kind === "subnormal" ? " (subnormal)" : "");

      // The neighbours as dots, at their places between the two that are furthest.
      const around = dots.map((_, i) => c.at(i - 4));
      const known = around.filter((x) => x !== null);
      const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [-1, 1];
      const middle = known.length ? [c.shown] : [];
      const wide = high - low;
      // As many digits as tell two neighbours apart.
      const digits = Math.min(10, Math.max(4, Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / wide)) + 3));
      plot.frame([low - wide / 20, high + wide / 20], [0, 1], known.length ? [low, ...middle, high] : [], [], (x) => written(x, digits));
      plot.node.querySelectorAll(".tfx-xtick").forEach((node, i) => node.classList.toggle("tfx-lower", i === 1));
      dots.forEach((dot, i) => {
        dot.hidden = around[i] === null || !known.length;
        if (!dot.hidden) plot.place(dot, around[i], 0.5);
      });
      asked.hidden = !known.length || wanted < low - wide / 20 || wanted > high + wide / 20;
      if (!asked.hidden) plot.place(asked, wanted, 0.5);

      for (const key of ["shown", "error", "spacing", "largest"]) if (c[key] === null) stats[key].clear();
      else stats[key].set(c[key]);
      stats.shown.note.textContent = { normal: "a normal number", subnormal: "a subnormal number", zero: "zero", infinity: "infinity", NaN: "not a number", whole: "a whole number times s" }[c.kind];
      stats.error.note.textContent = c.relative === null ? "" : percent(c.relative);
      stats.spacing.note.textContent = c.spacing && c.shown ? `${percent(c.spacing / Math.abs(c.shown)).replace(" off", "")} of the number` : "";
      stats.largest.note.textContent = `least positive: ${written(c.least, 4)}`;
      for (const { name, f: other, cells, node } of rows) {
        const by = other.whole ? given.scale : 1;
        const x = by * decode(encode(wanted / by, other), other);
        cells[0].textContent = written(x, 6);
        cells[0].dataset.value = String(x);
        const off = Number.isFinite(x) && wanted ? Math.abs(x - wanted) / Math.abs(wanted) : null;
        cells[1].textContent = off === null ? "–" : percent(off).replace(" off", "").replace("no error", "0");
        if (off === null) delete cells[1].dataset.value;
        else cells[1].dataset.value = String(off);
        node.classList.toggle("tfx-best", name === model.get("format"));
      }
      const words = {
        exact: `${f.label} has ${written(wanted)} exactly.`,
        chosen: `These bits of ${f.label} stand for ${written(c.shown)}.`,
        rounded: `${written(wanted)} is rounded to ${written(c.shown)} in ${f.label}, ${percent(c.relative)}.`,
        underflow: `Underflow: ${written(wanted)} is nearer to 0 than to the least number of ${f.label}, ${written(c.least, 4)}.`,
        overflow: `Overflow: ${written(wanted)} is beyond the largest number of ${f.label}, ${written(c.largest, 6)}; ${Number.isFinite(c.shown) ? "it is held there" : `it becomes ${written(c.shown)}`}.`,
      }[c.event];
      verdict.dataset.event = c.event;
      verdict.textContent = words;
      said.set(`${words} ${c.spacing === null ? "" : `The next number is ${written(c.spacing, 4)} away.`}`);
    };
    return follow(model, ["format", "value", "code", "scale"], draw);
  },
};
