import { chart, choice, counted, flops, folded, follow, grouped, h, options, show, stat, stops, summary, titled } from "./shared.js";

const SHOWN = [1, 8, 64, 512, 4096]; // rows whose places stand on the roof

/** The same numbers as _results in _roofline.py. */
function costs({ rows, d_in, d_out, size, peak, bandwidth }) {
  const work = 2 * rows * d_in * d_out;
  const moved = size * (d_in * d_out + rows * d_in + rows * d_out);
  const ridge = peak / bandwidth;
  const left = 2 * d_in * d_out - ridge * size * (d_in + d_out);
  const seconds = Math.max(work / peak, moved / bandwidth);
  return {
    flops: work, bytes: moved, intensity: work / moved, ridge, seconds, rate: work / seconds, used: work / seconds / peak,
    ridge_rows: left > 0 ? (ridge * size * d_in * d_out) / left : null,
    bound: work / peak >= moved / bandwidth ? "compute" : "memory",
  };
}

// Bytes of machines are counted in thousands, as their makers do.
const decimal = (x) => flops(x).replace("FLOP", "B");
const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const time = (x) => {
  const [unit, name] = UNITS.find(([u]) => x >= 0.9995 * u) || UNITS.at(-1);
  return `${Number((x / unit).toPrecision(3))}\u00a0${name}`;
};
const percent = (x) => `${show(100 * x, x < 0.1 ? 2 : 0)}%`;
const three = (x) => (x >= 99.95 ? grouped(Math.round(x)) : String(Number(x.toPrecision(3))));

export default {
  render({ model, el }) {
    const data = model.get("data");
    const get = (key) => model.get(key);
    const now = (rows = get("rows")) => {
      const { flops: peaks, bandwidth } = data.machines[get("machine")];
      const peak = peaks[get("precision")];
      return { rows, d_in: get("d_in"), d_out: get("d_out"), size: data.bytes[get("precision")], peak, bandwidth };
    };

    // ------------------------------------------------------------------ controls
    const machines = Object.keys(data.machines);
    const machine = choice(model, "machine", "Machine", machines, { keys: machines });
    const size = (name, label) => stops(model, name, { label, stops: () => data.stops[name], now: () => get(name) });
    const rows = size("rows", "Rows r, tokens at once");
    const widths = [size("d_in", "Numbers in, d_in"), size("d_out", "Numbers out, d_out")];
    const precision = options(model, "precision", "A number takes", Object.entries(data.bytes).map(([key, b]) => [key, `${b} byte${b > 1 ? "s" : ""}`]));

    // ------------------------------------------------------------------ the picture
    const roof = h("polyline", { class: "tfx-line tfx-scaled", "data-name": "roof" });
    const ridgeLine = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const plot = chart(ridgeLine, roof);
    plot.node.classList.add("tfx-tall", "tfx-roomy", "tfx-still");
    const spots = SHOWN.map((r) => h("span", { class: "tfx-mark tfx-spot", "data-rows": r }));
    const mark = h("span", { class: "tfx-mark", "data-name": "point" });
    plot.node.append(...spots, mark);
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "FLOPs a second over FLOPs a byte. "), h("span", { class: "tfx-key" }, "the most that the machine can do"), " ",
        h("span", { class: "tfx-note" }, `Large dot: the layer. Small dots: ${SHOWN.map(grouped).join(", ")} rows. Dashed: the ridge.`)), plot.node);
    const stats = {
      seconds: stat("seconds", "takes at least", time),
      rate: stat("rate", "a second", flops),
      used: stat("used", "of the arithmetic", (x) => percent(x)),
      intensity: stat("intensity", "FLOPs a byte", three),
      ridge: stat("ridge", "FLOPs a byte at the ridge", three),
      ridge_rows: stat("ridge_rows", "rows at the ridge", (x) => (x >= 1 ? grouped(Math.ceil(x)) : "1")),
      flops: stat("flops", "work", flops),
      bytes: stat("bytes", "bytes moved", decimal),
    };
    const rates = h("p", { class: "tfx-note" });
    const verdict = h("p", { class: "tfx-verdict" });
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-pairs tfx-apart" }, machine.node, precision.node), rates, rows.node,
      verdict, figure,
      h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).slice(0, 4).map((s) => s.node)), said.node,
      folded("More numbers", h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).slice(4).map((s) => s.node))),
      folded("The sizes of the matrix", h("div", { class: "tfx-pairs" }, widths.map((w) => w.node)))));

    const units = ["", "k", "M", "G", "T", "P", "E", "Z"];
    const power = (p) => (p < 0 ? String(10 ** p) : `${10 ** (p % 3)}${units[Math.floor(p / 3)]}`);
    const draw = () => {
      [machine, precision, rows, ...widths].forEach((control) => control.update());
      const given = now();
      const c = costs(given);
      const [few, many] = [costs(now(1)), costs(now(data.stops.rows.at(-1)))];
      const left = Math.floor(Math.log10(Math.min(few.intensity, c.ridge / 10)));
      const right = Math.ceil(Math.log10(Math.max(many.intensity, 10 * c.ridge)));
      const level = (x) => Math.log10(Math.min(given.peak, given.bandwidth * 10 ** x));
      const [low, high] = [Math.floor(level(left)), Math.ceil(Math.log10(given.peak) + 0.15)];
      const stride = Math.ceil((high - low) / 6);
      const xs = Array.from({ length: right - left + 1 }, (_, i) => left + i);
      const ys = Array.from({ length: Math.floor((high - low) / stride) + 1 }, (_, i) => low + i * stride);
      plot.frame([left, right], [low, high], xs, ys, power);
      const bend = Math.log10(c.ridge);
      plot.points(roof, [left, bend, right].map((x) => [x, level(x)]));
      for (const end of ["x1", "x2"]) ridgeLine.setAttribute(end, plot.at(bend));
      ridgeLine.setAttribute("y1", plot.up(level(bend)));
      const place = (node, at) => plot.place(node, Math.log10(at.intensity), Math.log10(at.rate));
      spots.forEach((spot, i) => place(spot, costs(now(SHOWN[i]))));
      place(mark, c);

      for (const [key, s] of Object.entries(stats)) if (c[key] === null) s.clear();
      else s.set(c[key]);
      stats.seconds.note.textContent = `arithmetic ${time(c.flops / given.peak)}, memory ${time(c.bytes / given.bandwidth)}`;
      stats.rate.note.textContent = `of at most ${flops(given.peak)}`;
      stats.used.note.textContent = `and ${percent(c.bytes / given.bandwidth / c.seconds)} of the bandwidth`;
      stats.intensity.note.textContent = `of the layer with ${grouped(given.rows)} row${given.rows > 1 ? "s" : ""}`;
      stats.ridge.note.textContent = `${flops(given.peak)} by ${decimal(given.bandwidth)} a second`;
      stats.ridge_rows.note.textContent = c.ridge_rows === null ? "never reached by so narrow a layer" : "from here on it waits for arithmetic";
      stats.flops.note.textContent = "2 r d_in d_out";
      stats.bytes.note.textContent = `${decimal(given.size * given.d_in * given.d_out)} of it parameters, ${counted(given.d_in * given.d_out)} numbers`;
      const peaks = Object.values(data.machines[get("machine")].flops);
      const alike = peaks.every((x) => x === peaks[0]) ? ", taken alike for numbers of any size" : "";
      rates.textContent = `At most ${flops(given.peak)} with such numbers and ${decimal(given.bandwidth)} a second${alike}.`;
      verdict.dataset.bound = c.bound;
      verdict.replaceChildren("It waits for ", h("strong", {}, data.bounds[c.bound]), ".");
      said.set(`${grouped(given.rows)} row${given.rows > 1 ? "s" : ""}, ${three(c.intensity)} FLOPs a byte: the layer waits for ${data.bounds[c.bound]} and takes at least ${time(c.seconds)}, ${percent(c.used)} of what the arithmetic could do.`);
    };
    return follow(model, ["machine", "rows", "d_in", "d_out", "precision"], draw);
  },
};
