import { choice, folded, follow, grouped, h, listed, reading, show, slider, stat, summary, titled, uniform } from "./shared.js";

const FIRST = 8; // rows before the reader asks for all
const sum = (list) => list.reduce((a, b) => a + b, 0);

/** Probability of one token of each entry at a temperature. */
function shares(entries, temperature) {
  const powers = entries.map(([, x]) => Math.exp((x - entries[0][1]) / temperature));
  const total = sum(powers.map((p, i) => p * entries[i][0]));
  return powers.map((p) => p / total);
}

/** The same as warp of tfbook.generation: temperature, then top-k, then top-p, then min-p. */
function warped(entries, { temperature, top_k, top_p, min_p }) {
  const p = shares(entries, temperature);
  let counts = entries.map(([c]) => c);
  if (top_k) counts = counts.map((c, i) => (entries[i][1] >= entries[top_k - 1][1] ? c : 0));
  if (top_p < 1) {
    const total = sum(counts.map((c, i) => c * p[i]));
    let before = 0;
    counts = counts.map((c, i) => {
      const room = p[i] ? (top_p * total - before) / p[i] : 0;
      before += c * p[i];
      return Math.min(c, Math.max(0, Math.ceil(room)));
    });
  }
  if (min_p) counts = counts.map((c, i) => (entries[i][1] / temperature >= entries[0][1] / temperature + Math.log(min_p) ? c : 0));
  const mass = sum(counts.map((c, i) => c * p[i]));
  return { counts, p: p.map((q, i) => (counts[i] ? q / mass : 0)), mass: Math.min(1, mass) };
}

const entropy = (counts, p) => Math.max(0, -sum(counts.map((c, i) => (c && p[i] ? c * p[i] * Math.log(p[i]) : 0))));

/** How often each entry is drawn, and the last one drawn. */
function drawn(masses, seed, draws) {
  const sums = [];
  masses.reduce((s, m, i) => (sums[i] = s + m), 0);
  const tally = masses.map(() => 0);
  let last = null;
  for (let i = 1; i <= draws; i++) {
    const u = uniform(seed, i) * sums.at(-1);
    let [low, high] = [0, sums.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sums[middle] > u) high = middle;
      else low = middle + 1;
    }
    tally[low]++;
    last = low;
  }
  return { tally, last };
}

/** The places of the tokens with a row: the likeliest, and in place of the last of these what was drawn. */
function shownPlaces(named, all, tally, last) {
  const places = Array.from({ length: all ? named : Math.min(FIRST, named) }, (_, i) => i);
  const drawnBelow = Array.from({ length: named }, (_, i) => i).slice(places.length).filter((i) => tally[i])
    .sort((a, b) => (b === last) - (a === last) || tally[b] - tally[a] || a - b);
  for (const i of drawnBelow) {
    let free = places.findLastIndex((j) => j < FIRST && !tally[j]);
    if (free < 0 && i === last) free = places.indexOf(FIRST - 1);
    if (free < 1) break;
    places[free] = i;
  }
  return places.sort((a, b) => a - b);
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const get = (key) => model.get(key);
    const most = Math.min(...data.prompts.map((p) => p.tokens.length));

    // ------------------------------------------------------------------ controls
    const prompt = choice(model, "prompt", "The text so far", data.prompts.map((p) => p.prompt));
    const temperature = slider(model, "temperature", {
      label: "Temperature", min: -20, max: 14, read: (i) => Number((10 ** (i / 20)).toPrecision(2)),
      write: (t) => Math.round(20 * Math.log10(t)), text: (t) => show(t, 2),
    });
    const topK = slider(model, "top_k", { label: "Top-k", min: 0, max: most, text: (k) => (k ? String(k) : "off") });
    const cut = (name, label, min, off) => slider(model, name, {
      label, min, max: 100, read: (i) => i / 100, write: (p) => Math.round(100 * p), text: (p) => (p === off ? "off" : show(p, 2)),
    });
    const topP = cut("top_p", "Top-p", 1, 1);
    const minP = cut("min_p", "Min-p", 0, 0);
    const controls = [prompt, temperature, topK, topP, minP];
    const button = (name, label, act, kind = "tfx-chip") => h("button", {
      type: "button", class: kind, "data-control": name,
      onclick: () => {
        for (const [key, value] of Object.entries(act())) model.set(key, value);
        model.save_changes();
      },
    }, label);
    const more = (n) => () => ({ draws: Math.min(data.max_draws, get("draws") + n) });
    const buttons = h("div", { class: "tfx-chips" },
      button("draw_1", "Draw one", more(1), "tfx-button"), button("draw_100", "Draw 100", more(100), "tfx-button"),
      button("fresh", "Other luck", () => ({ seed: (get("seed") + 1) % 10_000 })),
      button("clear", "Clear", () => ({ draws: 0 })));
    const text = h("p", { class: "tfx-sofar" });

    // ------------------------------------------------------------------ the table
    let all = false;
    const body = h("tbody", {});
    const expand = h("button", {
      type: "button", class: "tfx-chip", "data-control": "all", "aria-expanded": "false",
      onclick: () => {
        all = !all;
        draw();
      },
    });
    const table = h("table", { class: "tfx-table tfx-tokenlist" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "token"),
        h("td", { class: "tfx-wide" }), h("th", { scope: "col" }, "model"), h("th", { scope: "col" }, "after"), h("th", { scope: "col" }, "drawn"))), body);
    let rows = [], filled = null;
    const fill = (places) => {
      const { tokens } = data.prompts[get("prompt")];
      filled = `${get("prompt")}: ${places}`;
      rows = [...places, "others"].map((id) => {
        const own = id !== "others";
        const row = {
          id, name: h("span", { class: own ? "tfx-word" : "" }, own ? listed(tokens[id]) : ""),
          before: reading(`before[${id}]`, 3), after: reading(`after[${id}]`, 3), times: reading(`drawn[${id}]`, 0),
          bars: [h("span", { class: "tfx-bar tfx-was" }), h("span", { class: "tfx-bar" })],
        };
        row.node = h("tr", {}, h("th", { scope: "row" }, row.name), h("td", { class: "tfx-wide" }, own ? h("span", { class: "tfx-track tfx-double" }, row.bars) : null),
          h("td", {}, row.before.node), h("td", {}, row.after.node), h("td", {}, row.times.node));
        return row;
      });
      body.replaceChildren(...rows.map((r) => r.node));
      expand.hidden = tokens.length <= FIRST;
      expand.textContent = all ? `Show the first ${FIRST} only` : `Show ${tokens.length} tokens`;
      expand.setAttribute("aria-expanded", String(all));
    };
    const kept = stat("kept", "tokens kept", (x) => grouped(x));
    const mass = stat("mass", "probability they had", 3);
    const was = stat("entropy_before", "entropy of the model", 3);
    const now = stat("entropy", "entropy after", 3);
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-columns tfx-cornered" },
        h("div", { class: "tfx-stack" }, prompt.node, temperature.node, topP.node, buttons, text),
        h("div", { class: "tfx-stack" },
          h("p", { class: "tfx-note" }, h("span", { class: "tfx-key tfx-before" }, "the model's probability"), " ", h("span", { class: "tfx-key" }, "after temperature and cuts")), table, expand),
        h("div", { class: "tfx-stats tfx-two" }, kept.node, mass.node, was.node, now.node)),
      said.node,
      folded("Two other cuts: top-k and min-p", h("div", { class: "tfx-pairs" }, topK.node, minP.node))));

    const draw = () => {
      controls.forEach((c) => c.update());
      prompt.node.hidden = data.prompts.length < 2;
      const chosen = data.prompts[get("prompt")];
      const entries = [...chosen.log_probs.map((x) => [1, x]), ...chosen.rest];
      const many = sum(entries.map(([c]) => c));
      const before = shares(entries, 1);
      const left = warped(entries, { temperature: get("temperature"), top_k: get("top_k"), top_p: get("top_p"), min_p: get("min_p") });
      const masses = left.counts.map((c, i) => c * left.p[i]);
      const { tally, last } = drawn(masses, get("seed"), get("draws"));
      const places = shownPlaces(chosen.tokens.length, all, tally, last);
      if (filled !== `${get("prompt")}: ${places}`) fill(places);
      const count = rows.length - 1;
      const inList = new Set(places);
      const rest = (list) => sum(list.filter((_, i) => !inList.has(i)));
      const models = before.map((p, i) => p * entries[i][0]);
      const columns = rows.map(({ id }, i) => (i < count ? [models[id], masses[id], tally[id]] : [rest(models), rest(masses), rest(tally)]));
      const widest = Math.max(...columns.slice(0, count).flatMap(([a, b]) => [a, b]), 1e-9);
      rows.forEach((row, i) => {
        const [a, b, times] = columns[i];
        row.before.set(a);
        row.after.set(b);
        row.times.set(times);
        if (!get("draws")) row.times.node.textContent = "";
        row.bars[0].style.width = `${(100 * a) / widest}%`;
        row.bars[1].style.width = `${(100 * b) / widest}%`;
        row.node.classList.toggle("tfx-cut", b === 0);
        row.node.classList.toggle("tfx-last", row.id === last || (row.id === "others" && last !== null && !inList.has(last)));
      });
      const others = many - count;
      const remaining = rest(left.counts);
      rows[count].name.textContent = `${grouped(others)} others`;
      rows[count].node.hidden = !others;
      kept.set(sum(left.counts));
      kept.note.textContent = `of ${grouped(many)}`;
      mass.set(left.mass);
      mass.note.textContent = "before the cut";
      was.set(entropy(entries.map(([c]) => c), before));
      now.set(entropy(left.counts, left.p));
      for (const s of [was, now]) s.note.textContent = `nats, as if choosing among ${show(Math.exp(Number(s.node.querySelector(".tfx-number").dataset.value)), 1)}`;
      const name = last === null ? null : last < chosen.tokens.length ? chosen.tokens[last] : data.others;
      text.replaceChildren(chosen.prompt, name === null ? h("span", { class: "tfx-note" }, " …") : h("mark", {}, name.replaceAll("\n", "⏎")));
      const best = left.p[0];
      said.set(`${grouped(sum(left.counts))} of ${grouped(many)} tokens are kept${remaining ? `, ${grouped(remaining)} of them not in the list` : ""}; “${chosen.tokens[0].trim()}” goes from ${show(models[0], 3)} to ${show(best, 3)}.` +
        (get("draws") ? ` ${grouped(get("draws"))} drawn, the last: “${name.trim()}”.` : ""));
    };
    return follow(model, ["prompt", "temperature", "top_k", "top_p", "min_p", "seed", "draws"], draw);
  },
};
