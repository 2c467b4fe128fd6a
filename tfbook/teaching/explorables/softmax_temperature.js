import { dot, follow, h, options, prose, reading, show, slider, softmax, stat, summary, titled, toggle } from "./shared.js";

// Keys first, then queries: standard normal numbers from a hash of a counter (mulberry32) and
// Box-Muller, the same bits as in _softmax.py.
function normals({ seed, n_keys, n_queries, d_max }) {
  const uniform = (i) => {
    const a = (seed + Math.imul(i + 1, 0x6d2b79f5)) | 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 2 ** 32;
  };
  const numbers = new Float64Array((n_keys + n_queries) * d_max);
  for (let i = 0; i < numbers.length; i += 2) {
    const radius = Math.sqrt(-2 * Math.log(uniform(i)));
    const angle = 2 * Math.PI * uniform(i + 1);
    numbers[i] = radius * Math.cos(angle);
    numbers[i + 1] = radius * Math.sin(angle);
  }
  const row = (r) => numbers.subarray(r * d_max, (r + 1) * d_max);
  return {
    keys: Array.from({ length: n_keys }, (_, r) => row(r)),
    queries: Array.from({ length: n_queries }, (_, r) => row(n_keys + r)),
  };
}

function jacobianNorm(p) {
  let sum = 0;
  p.forEach((a, i) => p.forEach((b, j) => (sum += ((i === j ? a : 0) - a * b) ** 2)));
  return Math.sqrt(sum);
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { keys, queries } = normals(data);
    const dots = new Map(); // d_k → scores of every query, computed once
    const scoresAt = (d) => {
      if (!dots.has(d)) {
        const cut = (v) => v.subarray(0, d);
        dots.set(d, queries.map((q) => keys.map((k) => dot(cut(q), cut(k)))));
      }
      return dots.get(d);
    };
    const meanNorm = (d, scaled, temperature) => {
      const by = (scaled ? Math.sqrt(d) : 1) * temperature;
      const norms = scoresAt(d).map((scores) => jacobianNorm(softmax(scores.map((s) => s / by))));
      return norms.reduce((a, b) => a + b, 0) / norms.length;
    };

    // ------------------------------------------------------------------ controls
    const size = data.sizes.length - 1;
    const mode = options(model, "mode", "Scores", [["keys", "random q and k"], ["scores", "your own"]]);
    const dk = slider(model, "d_k", {
      label: "Dimension d_k", min: 0, max: size, read: (i) => data.sizes[i],
      write: (d) => Math.log2(d), text: (d) => String(d),
    });
    const scaled = toggle(model, "scaled", "Divide scores by √d_k");
    const query = slider(model, "query", {
      label: "Which query", min: 0, max: data.n_queries - 1, text: (i) => `${i + 1} of ${data.n_queries}`,
    });
    const temperature = slider(model, "temperature", {
      label: "Temperature", min: -20, max: 20, read: (i) => Number((10 ** (i / 20)).toPrecision(2)),
      write: (t) => Math.round(20 * Math.log10(t)), text: (t) => show(t, t < 1 ? 2 : 1),
    });
    const own = model.get("scores").map((_, i) =>
      slider(model, "scores", { label: `Score ${i + 1}`, min: -10, max: 10, step: 0.5, index: i }));
    const forKeys = h("div", { class: "tfx-stack" }, dk.node, scaled.node, query.node);
    const forScores = h("div", { class: "tfx-stack" }, own.map((s) => s.node));
    const controls = [mode, dk, scaled, query, temperature, ...own];

    // ------------------------------------------------------------------ weights and readings
    const rows = Array.from({ length: Math.max(data.n_keys, own.length) }, (_, i) => {
      const score = reading(`score[${i}]`, 2);
      const weight = reading(`weight[${i}]`, 3);
      const bar = h("span", { class: "tfx-bar" });
      const node = h("tr", {}, h("th", { scope: "row" }, `k${"₁₂₃₄₅₆₇₈"[i]}`), h("td", {}, score.node),
        h("td", { class: "tfx-wide" }, h("span", { class: "tfx-track" }, bar)), h("td", {}, weight.node));
      return { node, score, weight, bar };
    });
    const table = h("table", { class: "tfx-table" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "key"), h("th", { scope: "col" }, "score"),
        h("th", { scope: "col", colspan: 2 }, "weight"))),
      h("tbody", {}, rows.map((r) => r.node)));
    const largest = stat("largest", "largest weight", 3);
    const entropy = stat("entropy", "entropy", 3);
    const norm = stat("jacobian_norm", "Jacobian norm", 4);
    norm.note.textContent = "0 = no gradient passes";

    // ------------------------------------------------------------------ curve over d_k
    const TOP = 0.5;
    const at = (i) => (100 * i) / size;
    const up = (x) => 100 - (100 * x) / TOP;
    const line = (name) => h("polyline", { class: `tfx-line tfx-${name}`, "data-name": `curve_${name}` });
    const raw = line("raw");
    const divided = line("scaled");
    const mark = h("span", { class: "tfx-mark" });
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const mean = reading("mean_jacobian_norm", 4);
    const curve = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, prose("Mean Jacobian norm of 32 queries over d_k. "),
        h("span", { class: "tfx-key tfx-raw" }, "not scaled"), " ",
        h("span", { class: "tfx-key tfx-scaled" }, prose("divided by √d_k")), " · now ", mean.node),
      h("div", { class: "tfx-plot", "aria-hidden": "true" },
        h("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none" },
          [0, 0.25, 0.5].map((y) => h("line", { class: "tfx-grid", x1: 0, x2: 100, y1: up(y), y2: up(y) })),
          cursor, raw, divided), mark,
        [0, 0.25, 0.5].map((y) => h("span", { class: "tfx-ytick", style: { top: `${up(y)}%` } }, String(y))),
        data.sizes.map((d, i) => h("span", { class: "tfx-xtick", style: { left: `${at(i)}%` } }, String(d)))));

    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-columns" },
        h("div", { class: "tfx-stack" }, mode.node, forKeys, forScores, temperature.node),
        h("div", { class: "tfx-stack" }, table,
          h("div", { class: "tfx-stats" }, largest.node, entropy.node, norm.node))),
      curve, said.node));

    const draw = () => {
      const [kind, d, divide, t, q] = ["mode", "d_k", "scaled", "temperature", "query"].map((k) => model.get(k));
      const keyed = kind === "keys";
      forKeys.hidden = !keyed;
      forScores.hidden = keyed;
      curve.hidden = !keyed;
      controls.forEach((c) => c.update());
      const scores = keyed ? scoresAt(d)[q].map((s) => (divide ? s / Math.sqrt(d) : s)) : model.get("scores");
      const p = softmax(scores.map((s) => s / t));
      const best = p.indexOf(Math.max(...p));
      rows.forEach((r, i) => {
        r.node.hidden = i >= p.length;
        if (i >= p.length) return;
        r.score.set(scores[i]);
        r.weight.set(p[i]);
        r.bar.style.setProperty("width", `${100 * p[i]}%`);
        r.node.classList.toggle("tfx-best", i === best);
      });
      const bits = -p.reduce((sum, x) => sum + (x > 0 ? x * Math.log(x) : 0), 0);
      largest.set(p[best]);
      entropy.set(Math.max(bits, 0));
      entropy.note.textContent = `nats, at most ${show(Math.log(p.length), 3)}`;
      largest.note.textContent = `even would be ${show(1 / p.length, 3)}`;
      norm.set(jacobianNorm(p));
      if (keyed) {
        const now = meanNorm(d, divide, t);
        const points = (on) => data.sizes.map((s, i) => `${at(i)},${up(meanNorm(s, on, t))}`).join(" ");
        raw.setAttribute("points", points(false));
        divided.setAttribute("points", points(true));
        const x = at(Math.log2(d));
        cursor.setAttribute("x1", x);
        cursor.setAttribute("x2", x);
        mark.style.left = `${x}%`;
        mark.style.top = `${up(now)}%`;
        mark.classList.toggle("tfx-scaled", divide);
        mean.set(now);
      }
      const how = keyed ? `d_k = ${d}, ${divide ? "divided by √d_k" : "not scaled"}, ` : "";
      said.set(`${how}temperature ${show(t, t < 1 ? 2 : 1)}: ${show(100 * p[best], 1)}% of the weight lies on ` +
        `key ${best + 1}, and the Jacobian has norm ${show(jacobianNorm(p), 4)}.`);
    };
    return follow(model, ["mode", "d_k", "scaled", "temperature", "query", "scores"], draw);
  },
};
