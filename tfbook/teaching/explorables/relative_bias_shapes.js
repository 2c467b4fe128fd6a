import { chart, folded, follow, h, options, reading, show, slider, softmax, stat, summary, titled, toggle } from "./shared.js";

const NAMES = { none: "none", alibi: "ALiBi", t5: "T5", shaw: "Shaw" };
const flipped = (x) => String(0 - x).replace("-", "−"); // a distance is the query's position less the key's
const NEAR = 32; // what happens, happens among near keys: so far the picture reaches at first
const DEEPEST = -8; // a bias of -8 leaves e⁻⁸ ≈ 0.0003 of a weight: no need to draw below it

/** Press's slopes: a geometric sequence, filled up from the next longer one if need be. */
function slopes(heads) {
  const power = 2 ** Math.floor(Math.log2(heads));
  const own = Array.from({ length: power }, (_, h) => 2 ** ((-8 * (h + 1)) / power));
  const between = Array.from({ length: power }, (_, h) => 2 ** ((-4 * (2 * h + 1)) / power));
  return [...own, ...between.slice(0, heads - power)];
}

/** T5's bucket of a distance, key less query. */
function bucket(delta, bidirectional, count, furthest) {
  const size = bidirectional ? count / 2 : count;
  const start = bidirectional && delta > 0 ? Math.floor(size) : 0;
  const whole = Math.floor(size);
  const far = bidirectional ? Math.abs(delta) : Math.max(0, -delta);
  const exact = Math.floor(whole / 2);
  if (far < exact) return start + far;
  const share = Math.log(far / exact) / Math.log(furthest / exact);
  // Where the share is a whole number of buckets, rounding must not take one off.
  return start + Math.min(whole - 1, exact + Math.floor(share * (whole - exact) + 1e-9));
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { reach } = data;
    const tables = { t5: data.t5_table, shaw: data.shaw_table };

    // ------------------------------------------------------------------ the bias
    let wide = false;
    const now = () => {
      const [scheme, heads, both] = ["scheme", "n_heads", "bidirectional"].map((k) => model.get(k));
      const table = tables[scheme];
      const count = scheme === "alibi" ? heads : table ? table[0].length : 1;
      const head = Math.min(model.get("head"), count - 1);
      const delta = both ? model.get("distance") : Math.min(0, model.get("distance"));
      const last = both ? reach : 0;
      const distances = Array.from({ length: reach + last + 1 }, (_, i) => i - reach);
      const view = wide || Math.abs(delta) > NEAR ? reach : Math.min(NEAR, reach);
      return { scheme, table, count, head, delta, both, last, distances, view, numbers: scheme === "none" || scheme === "alibi" || Boolean(table) };
    };
    const indexAt = ({ scheme, both }, delta) => {
      if (scheme === "t5") return bucket(delta, both, model.get("n_buckets"), model.get("max_distance"));
      if (scheme === "shaw") return Math.max(-model.get("clip"), Math.min(model.get("clip"), delta));
      return null;
    };
    const biasAt = (a, delta, head = a.head) => {
      if (a.scheme === "none") return 0;
      if (a.scheme === "alibi") return -slopes(model.get("n_heads"))[head] * Math.abs(delta);
      if (!a.table) return null;
      return a.table[indexAt(a, delta) + (a.scheme === "shaw" ? model.get("clip") : 0)][head];
    };

    // ------------------------------------------------------------------ controls
    const scheme = options(model, "scheme", "Scheme", data.schemes.map((s) => [s, NAMES[s]]));
    const whole = (name, label, min, max, step, more) => slider(model, name, { label, min, max, step, text: String, ...more });
    const head = whole("head", "Head", 0, 15);
    const heads = whole("n_heads", "Number of heads", 1, 16);
    const furthest = whole("max_distance", "Maximum distance of T5", 2, 512);
    const buckets = whole("n_buckets", "Number of buckets", 4, 64, 2);
    const clip = whole("clip", "Clip k", 1, 64);
    const both = toggle(model, "bidirectional", "Keys after the query too");
    const distance = slider(model, "distance", { label: "Distance m − n, query less key", min: -reach, max: reach, text: (x) => show(0 - x, 0) });
    const controls = [scheme, head, heads, furthest, buckets, clip, both, distance];
    const span = h("button", {
      type: "button", class: "tfx-chip", "data-control": "span",
      onclick: () => {
        wide = now().view < reach;
        if (!wide && Math.abs(model.get("distance")) > NEAR) {
          model.set("distance", -NEAR);
          model.save_changes();
        }
        draw();
      },
    });

    // ------------------------------------------------------------------ pictures
    const others = h("g", { class: "tfx-others" });
    const line = h("polyline", { class: "tfx-line tfx-scaled", "data-name": "curve" });
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const plot = chart(cursor, others, line);
    const mark = h("span", { class: "tfx-mark tfx-scaled" });
    plot.node.append(mark);
    const caption = h("strong", {});
    const strip = h("svg", { class: "tfx-strip", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
    const runs = reading("runs", 0);
    const shape = h("figure", { class: "tfx-curve" }, h("figcaption", {}, caption), plot.node,
      h("figcaption", {}, "Distances that look the same share a block; ", runs.node, " blocks in view."), strip);
    const area = h("path", { class: "tfx-area" });
    const level = chart(area);
    const far = reading("half", 0);
    const weights = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Weights if all contents scored alike"), "; half of the weight lies at most ", far.node, " away"), level.node);
    const bias = stat("bias", "bias", 3);
    const index = stat("bucket", "bucket", 0);
    const slope = stat("slope", "slope", 4);
    const weight = stat("weight", "weight from bias alone", 3);
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title), scheme.node,
      h("div", { class: "tfx-pairs" }, distance.node, head.node),
      h("div", { class: "tfx-columns tfx-even" }, shape, weights), h("div", { class: "tfx-stats tfx-four" }, bias.node, index.node, slope.node, weight.node), said.node,
      folded("How far the picture reaches, and the numbers of the scheme", span,
        h("div", { class: "tfx-pairs" }, heads.node, buckets.node, furthest.node, clip.node, both.node))));

    const nice = (low, high) => {
      const step = [1, 2, 2.5, 5, 10].map((s) => s * 10 ** Math.floor(Math.log10((high - low) / 4))).find((s) => (high - low) / s <= 5);
      const first = Math.ceil(low / step - 1e-9);
      return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
    };
    const draw = () => {
      const a = now();
      const exact = Math.floor(model.get("n_buckets") / (a.both ? 4 : 2));
      furthest.input.min = exact + 1;
      if (model.get("max_distance") <= exact) {
        model.set("max_distance", exact + 1);
        model.save_changes();
        return; // the change draws again
      }
      head.input.max = Math.max(0, a.count - 1);
      const end = a.both ? a.view : 0;
      distance.input.min = -a.view;
      distance.input.max = end;
      span.hidden = reach <= NEAR;
      span.textContent = a.view < reach ? `Show distances up to ${reach}` : `Show distances up to ${NEAR}`;
      controls.forEach((c) => c.update());
      head.node.hidden = a.count < 2;
      heads.node.hidden = a.scheme !== "alibi";
      furthest.node.hidden = a.scheme !== "t5";
      buckets.node.hidden = a.scheme !== "t5" || Boolean(a.table);
      clip.node.hidden = a.scheme !== "shaw" || Boolean(a.table);
      both.node.hidden = Boolean(tables.t5);

      const xs = nice(-a.view, end);
      const seen = a.distances.filter((x) => x >= -a.view && x <= end);
      const height = (x, c) => (a.numbers ? biasAt(a, x, c) : indexAt(a, x));
      const all = a.numbers ? Array.from({ length: a.count }, (_, c) => seen.map((x) => height(x, c))).flat() : seen.map((x) => height(x));
      let [low, high] = [Math.min(...all), Math.max(...all)];
      if (a.scheme === "alibi") [low, high] = [Math.max(DEEPEST, low), 0];
      if (low === high) [low, high] = [low - 1, high + 1];
      const room = 0.04 * (high - low);
      plot.frame([-a.view, end], [low - room, high + room], xs, nice(low, high), undefined, flipped);
      // A table is a staircase. ALiBi's line has a corner at 0 and ends where it leaves the picture.
      const stairs = (c) => {
        if (a.table || !a.numbers) {
          return seen.flatMap((x) => [[Math.max(-a.view, x - 0.5), height(x, c)], [Math.min(end, x + 0.5), height(x, c)]]);
        }
        const left = Math.min(a.view, (low - room) / Math.min(height(1, c), -1e-9));
        return (a.both ? [-left, 0, left] : [-left, 0]).map((x) => [x, height(x, c)]);
      };
      plot.points(line, stairs(a.head));
      others.replaceChildren(...(a.numbers && a.count > 1 ? Array.from({ length: a.count }, (_, c) => {
        const other = h("polyline", { class: "tfx-line" });
        plot.points(other, stairs(c));
        return other;
      }) : []));
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.at(a.delta));
      plot.place(mark, a.delta, Math.max(low, height(a.delta, a.head)));
      caption.textContent = a.numbers ? `Bias of ${a.count > 1 ? `head ${a.head}, thin lines the other heads,` : "every head"} over the distance`
        : a.scheme === "t5" ? "Bucket over the distance" : "Clipped distance over the distance";

      // Blocks of distances that get the same: their bucket, or, without buckets, their bias.
      const keyOf = (x) => (a.scheme === "none" ? 0 : indexAt(a, x) ?? x);
      const blocks = [];
      for (const x of seen) {
        if (!blocks.length || keyOf(blocks.at(-1).from) !== keyOf(x)) blocks.push({ from: x, to: x });
        else blocks.at(-1).to = x;
      }
      const width = seen.length;
      strip.replaceChildren(...blocks.map((b, i) => h("rect", {
        class: b.from <= a.delta && a.delta <= b.to ? "tfx-block tfx-on" : i % 2 ? "tfx-block tfx-odd" : "tfx-block",
        x: (100 * (b.from + a.view)) / width, width: (100 * (b.to - b.from + 1)) / width, y: 0, height: 10,
      })));
      runs.set(blocks.length);
      const block = blocks.find((b) => b.from <= a.delta && a.delta <= b.to);

      weights.hidden = !a.numbers;
      bias.node.hidden = weight.node.hidden = !a.numbers;
      index.node.hidden = indexAt(a, 0) === null;
      slope.node.hidden = a.scheme !== "alibi";
      index.node.firstChild.textContent = a.scheme === "t5" ? "bucket" : "clipped distance";
      if (!index.node.hidden) {
        index.set(indexAt(a, a.delta));
        index.note.textContent = block.from === block.to ? "for this distance alone" : `for ${show(0 - block.to, 0)} to ${show(0 - block.from, 0)}`;
      }
      if (a.scheme === "alibi") slope.set(slopes(model.get("n_heads"))[a.head]);
      let story = "";
      if (a.numbers) {
        const p = softmax(a.distances.map((x) => biasAt(a, x)));
        const top = Math.max(...p);
        level.frame([-a.view, end], [0, top], xs, [0, Number(top.toPrecision(2))], undefined, flipped);
        const outline = seen.map((x) => `L${level.at(x)} ${level.up(p[x + reach])}`).join("");
        area.setAttribute("d", `M0 100${outline}L100 100Z`);
        let within = 0;
        const inside = (d) => a.distances.reduce((sum, x, i) => sum + (Math.abs(x) <= d ? p[i] : 0), 0);
        while (within < reach && inside(within) < 0.5) within++;
        far.set(within);
        bias.set(biasAt(a, a.delta));
        bias.note.textContent = "added to the score";
        weight.set(p[a.delta + reach]);
        weight.note.textContent = `all equal: 1/${p.length} = ${show(1 / p.length, 3)}`;
        story = ` Half of the weight, from this alone, lies within ${within} position${within === 1 ? "" : "s"}.`;
      }
      const same = block.from === block.to ? "" : ` like all from ${show(0 - block.to, 0)} to ${show(0 - block.from, 0)}`;
      const what = a.numbers ? `a key at the distance ${show(0 - a.delta, 0)} gets ${show(biasAt(a, a.delta), 3)}`
        : `the distance ${show(0 - a.delta, 0)} counts as ${a.scheme === "t5" ? "bucket " : ""}${show(indexAt(a, a.delta), 0)}${same}`;
      said.set(`${a.scheme === "none" ? "No scheme" : NAMES[a.scheme]}${a.count > 1 ? `, head ${a.head}` : ""}: ${what}.${story}${a.scheme === "shaw" ? " Each clipped distance has a learned vector, so what it adds depends on the query too." : ""}`);
    };
    return follow(model, ["scheme", "head", "n_heads", "distance", "n_buckets", "max_distance", "bidirectional", "clip"], draw);
  },
};
