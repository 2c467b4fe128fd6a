import { choice, folded, follow, grouped, h, options, show, stat, stops, summary, titled } from "./shared.js";

/** The choices as far as they fit together: the same as settled in _planning.py. */
function settled(now) {
  const replicas = Math.min(now.replicas, now.batch);
  const micro_batch = Math.min(now.micro_batch, Math.floor(now.batch / replicas));
  return { ...now, replicas, micro_batch, zero: now.pipeline > 1 ? Math.min(now.zero, 1) : now.zero };
}

/** What a device of each stage holds, computes and sends: the same as stage_accounts. */
function accounts(model, { tensor, pipeline: p, micro_batch: b, recompute }, m) {
  const row = model.rows[`${tensor} ${recompute}`];
  const [weights, flops, moved, kept, working, messages, sent] = row.layer;
  const stage = (i) => Math.floor((model.layers * i) / p);
  return Array.from({ length: p }, (_, s) => {
    const own = stage(s + 1) - stage(s);
    const ends = [s === 0 ? row.first : [], s === p - 1 ? row.last : []];
    const all = (of, i) => own * of + ends.reduce((sum, end) => sum + (end[i] || 0), 0);
    return {
      weights: all(weights, 0) - (p === 1 ? row.tied : 0), flops: b * all(flops, 1), moved: b * own * moved,
      kept: b * all(kept, 2) - (s === 0 ? (b - 1) * row.once : 0), working: b * Math.max(working, s === p - 1 ? row.working : 0), flight: Math.min(m, p - s),
      tensor: [all(messages, 3), b * all(sent, 4)], pipeline: [(s > 0) + (s < p - 1), ((s > 0) + (s < p - 1)) * b * model.stream],
    };
  });
}

const times = ([messages, bytes], by) => [messages * by, bytes * by];
const both = (...list) => list.reduce(([a, b], [c, d]) => [a + c, b + d], [0, 0]);
/** What each of p processes sends in a ring of so many rounds over so many bytes. */
const ring = (rounds, size, p) => [rounds * (p - 1), (rounds * (p - 1) * size) / p];
/** The first of the largest. */
const largest = (list, of) => list.reduce((best, x) => (of(x) > of(best) ? x : best));

/** The same numbers as _results in _planning.py, which are those of estimate. */
function numbers(data, now) {
  const c = settled(now);
  const [model, machine, each] = [data.models[c.model], data.machines[c.machine], data.precisions[c.precision]];
  const devices = c.replicas * c.tensor * c.pipeline;
  const m = c.batch / (c.replicas * c.micro_batch);
  const seconds = ([messages, bytes], neighbours) => {
    const [latency, bandwidth] = neighbours <= data.per_node ? machine.inside : machine.between;
    return messages * latency + bytes / bandwidth;
  };
  const stages = accounts(model, c, m).map((a) => {
    const sharedBy = (zero) => (c.zero >= zero ? c.replicas : 1);
    const held = [(a.weights * each.weight) / sharedBy(3), (a.weights * each.gradient) / sharedBy(2), (a.weights * each.optimizer) / sharedBy(1), a.flight * a.kept + a.working];
    const [scattered, gathered] = [ring(1, a.weights * each.gradient, c.replicas), ring(1, a.weights * each.weight, c.replicas)];
    const sent = c.zero === 3 ? times(both(gathered, gathered, scattered), m) : c.zero ? both(times(scattered, c.zero === 2 ? m : 1), gathered) : ring(2, a.weights * each.gradient, c.replicas);
    const tensor = seconds(times(a.tensor, m), c.tensor);
    return {
      ...a, held, memory: held.reduce((x, y) => x + y), computing: m * (a.flops / (data.efficiency * machine.flops) + a.moved / machine.bandwidth),
      tensorSeconds: tensor, pipelineSeconds: seconds(times(a.pipeline, m), devices), dataSeconds: seconds(sent, c.replicas * c.tensor),
    };
  });
  const most = largest(stages, (s) => s.memory);
  const slowest = largest(stages, (s) => s.computing + s.tensorSeconds);
  const bubble = (c.pipeline - 1) / (m + c.pipeline - 1);
  const [computing, tensor] = [slowest.computing, slowest.tensorSeconds];
  const of = (name) => Math.max(...stages.map((s) => s[name]));
  const update = (2 * (most.held[2] + each.weight * slowest.weights)) / machine.bandwidth;
  const parts = { computing, waiting: ((computing + tensor) * bubble) / (1 - bubble), tensor, pipeline: of("pipelineSeconds"), data: of("dataSeconds"), update };
  const step = Object.values(parts).reduce((x, y) => x + y);
  const [weights, gradients, optimizer, activations] = most.held;
  const tokens = (c.batch * model.n) / step;
  return {
    devices, used_replicas: c.replicas, used_micro_batch: c.micro_batch, used_zero: c.zero, weights, gradients, optimizer, activations, memory: most.memory,
    fits: most.memory <= machine.memory, bubble, times: parts, seconds: step, utilisation: (3 * c.batch * model.flops) / (devices * machine.flops * step),
    tokens, days: data.many / tokens / 86400,
  };
}

const giga = (x) => `${show(x / 1e9, x < 1e10 ? 2 : x < 1e11 ? 1 : 0)}\u00a0GB`;
const time = (x) => (x === 0 ? "0" : x < 0.0995 ? `${Number((1000 * x).toPrecision(3))}\u00a0ms` : `${Number(x.toPrecision(3))}\u00a0s`);
const percent = (x) => `${show(100 * x, 0)}%`;
const MEMORY = { weights: "weights", gradients: "gradients", optimizer: "optimizer", activations: "activations" };
const TIME = { computing: "computing", waiting: "waiting in the pipeline", tensor: "messages, tensor", pipeline: "messages, pipeline", data: "messages, data", update: "update of the weights" };

export default {
  render({ model, el }) {
    const data = model.get("data");
    const names = ["model", "machine", "replicas", "tensor", "pipeline", "zero", "micro_batch", "recompute", "precision", "batch"];
    const now = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));
    const fits = () => settled(now());

    // ------------------------------------------------------------------ controls
    const list = (name, label, items) => choice(model, name, label, Object.values(items).map((x) => x.label), { keys: Object.keys(items) });
    const stop = (name, label, fit = () => true) => stops(model, name, { label, stops: () => data.stops[name].filter(fit), now: () => fits()[name] });
    const controls = {
      model: list("model", "Model", data.models),
      machine: options(model, "machine", "Device", Object.keys(data.machines).map((name) => [name, name.split(" ")[0]])),
      batch: stop("batch", "Sequences of a step"),
      replicas: stop("replicas", "Replicas d (data)", (x) => x <= model.get("batch")),
      tensor: stop("tensor", "Layer parts t (tensor)"),
      pipeline: stop("pipeline", "Stages p (pipeline)"),
      micro_batch: stop("micro_batch", "Sequences of a micro-batch", (x) => x * fits().replicas <= model.get("batch")),
      zero: options(model, "zero", "ZeRO: replicas share", [[0, "0 nothing"], [1, "1 optimizer"], [2, "2 + gradients"], [3, "3 + weights"]], { shown: () => fits().zero }),
      recompute: options(model, "recompute", "Computed again", Object.entries(data.recompute)),
      precision: list("precision", "Bytes: weight + gradient + optimizer", data.precisions),
    };
    const { node: zeroNode } = controls.zero;

    // ------------------------------------------------------------------ the two bars
    const parts = (title, labels, room) => {
      const pieces = Object.keys(labels).map((_, i) => h("span", { class: `tfx-piece-of tfx-p${i}` }));
      const limit = room ? h("span", { class: "tfx-room" }) : null;
      const bar = h("div", { class: "tfx-parts", "aria-hidden": "true" }, pieces, limit);
      const cells = Object.entries(labels).map(([key, label], i) => {
        const [amount, share] = ["tfx-number", "tfx-number"].map((kind) => h("td", { class: kind }));
        amount.dataset.name = room ? key : `time[${key}]`;
        return { key, amount, share, node: h("tr", {}, h("th", { scope: "row" }, h("span", { class: `tfx-swatch tfx-square tfx-p${i}` }), label), amount, share) };
      });
      const table = h("table", { class: "tfx-table tfx-partlist" }, h("caption", { class: "tfx-hidden" }, title),
        h("thead", { class: "tfx-hidden" }, h("tr", {}, ["part", "amount", "share"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, cells.map((c) => c.node)));
      const caption = h("p", {}, h("strong", {}, title), " ", h("span", { class: "tfx-note" }, room ? "Black line: what a device has." : ""));
      const set = (values, whole, most, write) => {
        cells.forEach(({ key, amount, share }, i) => {
          amount.dataset.value = String(values[key]);
          amount.textContent = write(values[key]);
          share.textContent = percent(values[key] / whole);
          pieces[i].style.width = `${(100 * values[key]) / most}%`;
        });
        if (limit) limit.style.left = `${(100 * room()) / most}%`;
      };
      return { node: h("div", { class: "tfx-stack" }, caption, bar, table), set };
    };
    const memory = () => data.machines[model.get("machine")].memory;
    const held = parts("Memory of the device that holds most.", MEMORY, memory);
    const spent = parts("Time of a step.", TIME, null);
    const stats = {
      devices: stat("devices", "devices, d · t · p", grouped),
      memory: stat("memory", "held by one device", giga),
      seconds: stat("seconds", "for a step", time),
      utilisation: stat("utilisation", "of what the devices could compute", percent),
      tokens: stat("tokens", "tokens a second", (x) => grouped(Math.round(x))),
      days: stat("days", "for 10¹² tokens", (x) => `${x < 99.5 ? Number(x.toPrecision(3)) : grouped(Math.round(x))}\u00a0days`),
    };
    const verdict = h("p", { class: "tfx-verdict" });
    const said = summary();
    const c = controls;
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-pairs tfx-apart" }, c.model.node, c.machine.node),
      h("div", { class: "tfx-thirds" }, c.replicas.node, c.tensor.node, c.pipeline.node),
      zeroNode, verdict, h("div", { class: "tfx-columns tfx-even" }, held.node, spent.node),
      h("div", { class: "tfx-stats tfx-loose" }, Object.values(stats).slice(0, 3).map((s) => s.node)), said.node,
      folded("Batches, precision and what is computed again", h("div", { class: "tfx-pairs" }, c.batch.node, c.micro_batch.node),
        h("div", { class: "tfx-pairs tfx-apart" }, c.recompute.node, c.precision.node)),
      folded("How well the devices are used", h("div", { class: "tfx-stats tfx-loose" }, Object.values(stats).slice(3).map((s) => s.node)))));

    const draw = () => {
      Object.values(controls).forEach((control) => control.update());
      const staged = model.get("pipeline") > 1;
      zeroNode.querySelectorAll("input").forEach((input) => (input.disabled = staged && Number(input.value) > 1));
      const given = now();
      const found = numbers(data, given);
      const { memory: has } = data.machines[given.machine];
      held.set(found, found.memory, Math.max(found.memory, 1.05 * has), giga);
      spent.set(found.times, found.seconds, found.seconds, time);
      for (const [name, s] of Object.entries(stats)) s.set(found[name]);
      const chosen = data.models[given.model];
      stats.devices.note.textContent = found.devices > data.per_node ? `${grouped(found.devices / data.per_node)} nodes of ${data.per_node}` : "in one node";
      stats.memory.note.textContent = `of ${giga(has)}`;
      stats.seconds.note.textContent = `${grouped(given.batch * chosen.n)} tokens`;
      stats.utilisation.note.textContent = `products run at ${percent(data.efficiency)} of the peak`;
      stats.tokens.note.textContent = `${grouped(Math.round(found.tokens / found.devices))} on each device`;
      stats.days.note.textContent = `${grouped(Math.round((found.days * found.devices) / 365.25))} device-years`;
      verdict.dataset.fits = found.fits ? "yes" : "no";
      verdict.replaceChildren(`${chosen.label}: one device holds ${giga(found.memory)}, which `, h("strong", {}, found.fits ? "fits" : "does not fit"), ` into ${giga(has)}.`);
      const slow = Object.entries(found.times).sort(([, a], [, b]) => b - a);
      said.set(`${grouped(found.devices)} device${found.devices > 1 ? "s" : ""}: ${giga(found.memory)} on one of them ${found.fits ? "fits" : "does not fit"}; a step takes ${time(found.seconds)}, ${percent(slow[0][1] / found.seconds)} ${TIME[slow[0][0]]} and ${percent(slow[1][1] / found.seconds)} ${TIME[slow[1][0]]}.`);
    };
    return follow(model, names, draw);
  },
};
