import { chart, folded, follow, grouped, h, options, reading, show, slider, softmax, stat, stops, summary, titled, toggle, uniform } from "./shared.js";

const SIDE = 320; // the picture's own units
const REACH = 2.5; // the plane shown runs from -2.5 to 2.5
const GRID = 40; // squares a side, each in the colour of the expert that it goes to
const LINES = ["tfx-scaled", "tfx-raw", "tfx-third", "tfx-fourth"];
const signs = (x) => (x > 0 ? "+" : "") + show(x, 3);

const directions = (turn) => [0, 1, 2, 3].map((i) => ((turn + 90 * i) * Math.PI) / 180).map((angle) => [Math.cos(angle), Math.sin(angle)]);

/** The router's logits, a row for each token: the same as in _routing.py. */
function logits(tokens, { turn, temperature, noise, seed }) {
  const ways = directions(turn);
  return tokens.map(([, , x, y], t) => ways.map(([u, v], i) => {
    const at = 2 * (ways.length * t + i);
    const gauss = Math.sqrt(-2 * Math.log(uniform(seed, at + 1))) * Math.cos(2 * Math.PI * uniform(seed, at + 2));
    return (u * x + v * y) / temperature + noise * gauss;
  }));
}

const choose = (row, bias, k) => row.map((_, i) => i).sort((i, j) => row[j] + bias[j] - (row[i] + bias[i]) || i - j).slice(0, k);
const counts = (chosen) => [0, 1, 2, 3].map((i) => chosen.flat().filter((x) => x === i).length);

/** The load and the bias after 0, 1, … updates. */
function loads(shares, { top_k, rate, updates }) {
  let bias = [0, 0, 0, 0];
  const mean = (shares.length * top_k) / 4;
  return Array.from({ length: updates + 1 }, () => {
    const before = bias;
    const load = counts(shares.map((row) => choose(row, before, top_k)));
    bias = bias.map((b, i) => b + rate * ((mean > load[i]) - (mean < load[i])));
    return { load, bias: before };
  });
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["turn", "temperature", "noise", "seed", "top_k", "capacity", "balance", "steps", "rate"];
    const now = () => ({ ...Object.fromEntries(names.map((key) => [key, model.get(key)])), updates: data.updates });
    const { tokens, experts } = data;
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };

    // ------------------------------------------------------------------ controls
    const size = (name, label, text = (x) => String(Number(x.toPrecision(3)))) => stops(model, name, { label, stops: () => data.stops[name], now: () => model.get(name), text });
    const top = options(model, "top_k", "Experts for a token k", [[1, "1"], [2, "2"]]);
    const balance = toggle(model, "balance", "Choose with a bias");
    const controls = {
      turn: slider(model, "turn", { label: "Router turned by", min: 0, max: 90, step: 5, text: (x) => `${show(x, 0)}°` }),
      temperature: size("temperature", "Temperature τ"),
      noise: slider(model, "noise", { label: "Noise in the logits", min: 0, max: 20, read: (i) => i / 10, write: (x) => Math.round(10 * x), text: (x) => show(x, 1) }),
      capacity: size("capacity", "Capacity factor c"),
    };
    const rate = size("rate", "Step of the bias u"), steps = slider(model, "steps", { label: "Updates of the bias", min: 0, max: data.updates, text: String });
    const button = (name, label, kind, values) => h("button", { type: "button", class: kind, "data-control": name, onclick: () => save(values()) }, label);
    const further = (by) => () => ({ balance: true, steps: Math.min(data.updates, model.get("steps") + by) });
    const buttons = h("div", { class: "tfx-chips" },
      button("update", "Update the bias", "tfx-button", further(1)), button("update_10", "10 updates", "tfx-chip", further(10)), button("restart", "Back to 0", "tfx-chip", () => ({ steps: 0 })));
    const luck = button("fresh", "Other noise", "tfx-chip", () => ({ seed: (model.get("seed") + 1) % 10_000 }));

    // ------------------------------------------------------------------ the plane
    const px = (x) => ((x + REACH) / (2 * REACH)) * SIDE, py = (y) => ((REACH - y) / (2 * REACH)) * SIDE;
    const regions = experts.map((_, i) => h("path", { class: `tfx-region tfx-e${i}` }));
    const arrows = experts.map((_, i) => h("line", { class: `tfx-vector tfx-e${i}`, x1: px(0), y1: py(0) }));
    const dots = tokens.map(([, , x, y]) => h("circle", { cx: px(x), cy: py(y), r: 5 }));
    const labels = experts.map((name, i) => h("span", { class: `tfx-badge tfx-on-plane tfx-e${i}` }, name));
    const plane = h("div", { class: "tfx-plane tfx-turning", "aria-hidden": "true" },
      h("svg", { viewBox: `0 0 ${SIDE} ${SIDE}` }, regions, h("line", { class: "tfx-axis", x1: 0, x2: SIDE, y1: py(0), y2: py(0) }),
        h("line", { class: "tfx-axis", y1: 0, y2: SIDE, x1: px(0), x2: px(0) }), arrows, dots), labels);

    // ------------------------------------------------------------------ the tokens
    const list = h("div", { class: "tfx-sent", role: "list", "aria-label": "Tokens, each with its experts" });
    const rows = experts.map((name, i) => {
      const taken = h("span", { class: "tfx-bar" }), over = h("span", { class: "tfx-bar", "data-sign": "-" });
      const values = { load: reading(`load[${i}]`, grouped), f: reading(`f[${i}]`, 2), p: reading(`p[${i}]`, 2), bias: reading(`bias[${i}]`, signs) };
      const node = h("tr", {}, h("th", { scope: "row" }, h("span", { class: `tfx-badge tfx-e${i}` }, name)),
        h("td", { class: "tfx-wide" }, h("span", { class: "tfx-track tfx-split" }, taken, over)), Object.values(values).map((r) => h("td", {}, r.node)));
      return { taken, over, values, node };
    });
    const table = h("table", { class: "tfx-table tfx-costs" }, h("caption", {}, "The load"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "expert"), h("td", { class: "tfx-wide" }), ["got", "f", "P", "bias"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, rows.map((r) => r.node)));

    // ------------------------------------------------------------------ the load over the updates
    const curves = experts.map((name, i) => h("polyline", { class: `tfx-line ${LINES[i]}`, "data-name": `curve_${name}` }));
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 }), level = h("line", { class: "tfx-weights", x1: 0, x2: 100 });
    const plot = chart(cursor, level, ...curves);
    plot.node.classList.add("tfx-still");
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Load over the updates of the bias. "),
        experts.flatMap((name, i) => [h("span", { class: `tfx-key ${i ? LINES[i] : ""}` }, name), " "]), h("span", { class: "tfx-key tfx-weights" }, "even")), plot.node);
    const stats = {
      balancing_loss: stat("balancing_loss", "balancing loss E Σ f P", 3), z_loss: stat("z_loss", "z-loss", 3),
      dropped: stat("dropped", "choices dropped", grouped), most: stat("most", "fullest, of the mean", (x) => `${show(x, 2)}×`),
    };
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-columns tfx-even" },
        h("div", {}, plane, h("p", { class: "tfx-note tfx-caption" }, "Dots: what the router sees of each token, in the colour of its first expert; rings are dropped. Ground: where an input would go.")),
        h("div", { class: "tfx-stack" }, controls.turn.node, controls.capacity.node, top.node, balance.node, table)),
      h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).map((s) => s.node)), said.node,
      folded("Temperature and noise", h("div", { class: "tfx-pairs" }, controls.temperature.node, controls.noise.node), luck),
      folded("Tokens one by one", list),
      folded("The bias, update by update", buttons, h("div", { class: "tfx-pairs" }, steps.node, rate.node), figure)));

    const draw = () => {
      const c = now();
      [top, balance, steps, rate, ...Object.values(controls)].forEach((control) => control.update());
      luck.hidden = !c.noise;
      const z = logits(tokens, c);
      const shares = z.map(softmax);
      const history = loads(shares, c);
      const bias = c.balance ? history[c.steps].bias : [0, 0, 0, 0];
      const chosen = shares.map((row) => choose(row, bias, c.top_k));
      const load = counts(chosen);
      const total = tokens.length * c.top_k;
      const room = Math.ceil((c.capacity * c.top_k * tokens.length) / 4);
      const taken = [0, 0, 0, 0], kept = chosen.map((row) => row.map(() => false));
      for (let place = 0; place < c.top_k; place++) chosen.forEach((row, t) => {
        if (taken[row[place]] >= room) return;
        taken[row[place]]++;
        kept[t][place] = true;
      });

      const ways = directions(c.turn);
      const ground = experts.map(() => "");
      const side = SIDE / GRID;
      for (let j = 0; j < GRID; j++) for (let i = 0; i < GRID; i++) {
        const [x, y] = [((i + 0.5) * 2 * REACH) / GRID - REACH, REACH - ((j + 0.5) * 2 * REACH) / GRID];
        const row = softmax(ways.map(([u, v]) => (u * x + v * y) / c.temperature));
        ground[choose(row, bias, 1)[0]] += `M${i * side} ${j * side}h${side}v${side}h${-side}z`;
      }
      regions.forEach((node, i) => node.setAttribute("d", ground[i]));
      ways.forEach(([u, v], i) => {
        arrows[i].setAttribute("x2", px(1.9 * u));
        arrows[i].setAttribute("y2", py(1.9 * v));
        Object.assign(labels[i].style, { left: `${(100 * px(2.15 * u)) / SIDE}%`, top: `${(100 * py(2.15 * v)) / SIDE}%` });
      });
      dots.forEach((dot, t) => dot.setAttribute("class", `tfx-input tfx-e${chosen[t][0]}${kept[t].some(Boolean) ? "" : " tfx-lost"}`));
      list.replaceChildren(...tokens.map(([word, kind], t) => h("span", { class: kept[t].some(Boolean) ? "tfx-routed" : "tfx-routed tfx-lost", role: "listitem" },
        h("span", {}, word), h("small", {}, kind),
        h("span", { class: "tfx-badges" }, chosen[t].map((i, place) => h("span", {
          class: kept[t][place] ? `tfx-badge tfx-e${i}` : "tfx-badge tfx-dropped", "data-name": `chosen[${t}][${place}]`, "data-value": i, "data-kept": String(kept[t][place]),
        }, experts[i], kept[t][place] ? null : h("span", { class: "tfx-hidden" }, " dropped")))))));

      const widest = Math.max(room, ...load);
      const means = experts.map((_, i) => shares.reduce((sum, row) => sum + row[i], 0) / tokens.length);
      rows.forEach(({ taken: bar, over, values }, i) => {
        bar.style.width = `${(100 * taken[i]) / widest}%`;
        over.style.width = `${(100 * (load[i] - taken[i])) / widest}%`;
        values.load.set(load[i]);
        values.f.set(load[i] / total);
        values.p.set(means[i]);
        values.bias.set(bias[i]);
      });
      const mean = total / 4;
      const ceiling = Math.max(...history.flatMap((step) => step.load), mean);
      plot.frame([0, data.updates], [0, 1.05 * ceiling], [0, 25, 50, 75, 100].map((x) => (x * data.updates) / 100), [0, mean, ceiling].filter((x, i, all) => all.indexOf(x) === i),
        (x) => String(Number(x.toFixed(1))));
      curves.forEach((line, i) => plot.points(line, history.map((step, x) => [x, step.load[i]])));
      for (const end of ["y1", "y2"]) level.setAttribute(end, plot.up(mean));
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.at(c.steps));
      cursor.style.display = c.balance ? "" : "none";

      const sums = z.map((row) => {
        const most = Math.max(...row);
        return most + Math.log(row.reduce((sum, x) => sum + Math.exp(x - most), 0));
      });
      const balancing = 4 * load.reduce((sum, n, i) => sum + (n / total) * means[i], 0);
      stats.balancing_loss.set(balancing);
      stats.balancing_loss.note.textContent = "1 when f and P are even";
      stats.z_loss.set(sums.reduce((sum, s) => sum + s * s, 0) / sums.length);
      stats.z_loss.note.textContent = "mean of (log Σ exp z)²";
      const dropped = total - taken.reduce((a, b) => a + b, 0);
      const lost = kept.filter((row) => !row.some(Boolean)).length;
      stats.dropped.set(dropped);
      stats.dropped.note.textContent = `of ${total}; an expert takes ${room}. ${lost} token${lost === 1 ? "" : "s"} without any`;
      stats.most.set(Math.max(...load) / mean);
      stats.most.note.textContent = `loads ${load.join(", ")}`;
      said.set(`Experts ${experts.map((name, i) => `${name} ${load[i]}`).join(", ")} of ${total} choices; ${dropped} dropped. ` +
        (c.balance ? `After ${c.steps} update${c.steps === 1 ? "" : "s"} of the bias` : "Without a bias") + ` the balancing loss is ${show(balancing, 3)}.`);
    };
    return follow(model, names, draw);
  },
};
