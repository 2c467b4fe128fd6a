import { chart, grouped, h, options, reading, show, slider, stat, summary, titled, tokenRow, uniform } from "./shared.js";
import { hire } from "./workers.js";
import { shapesOf, trainer } from "./training_model.js";

const AT_ONCE = 3000; // steps for one press
const RECENT = 20; // steps whose mean is called the loss
const PATIENT = 60; // steps after which more is expected than how often each character stands there
const POINTS = 150; // of the curve at most
const FOLLOWED = 12; // characters that are looked at, where nothing else is said
const visible = Math.sqrt; // how strongly a weight is filled: 0.01 shall be seen
const STYLE = `
.tfx-learn textarea.tfx-field { font-family: var(--pst-font-family-monospace, monospace); font-size: 0.9em; padding: 0.4em 0.75em; line-height: 1.4; }
.tfx-learn .tfx-two-columns { display: grid; gap: 1rem; grid-template-columns: minmax(0, 1fr); align-items: start; }
@container (min-width: 46rem) { .tfx-learn .tfx-two-columns { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 1.5rem; } }
@container (min-width: 34rem) { .tfx-learn .tfx-stats.tfx-two { grid-template-columns: repeat(4, minmax(0, 1fr)); } }
.tfx-learn .tfx-heads > div { max-width: calc(var(--line) * 10rem); }
.tfx-learn .tfx-mini svg path { fill: color-mix(in oklab, var(--tfx-blue) var(--heat, 0%), var(--tfx-wash)); shape-rendering: crispEdges; }
.tfx-learn .tfx-drawn { display: flex; flex-wrap: wrap; gap: 4px; margin: 0; padding: 0; list-style: none; min-height: 8.2em; align-content: start; }
.tfx-learn .tfx-drawn li { margin: 0; padding: 0 0.45em; border-radius: 4px; border: 1px solid var(--tfx-edge); background: var(--tfx-wash); font-family: var(--pst-font-family-monospace, monospace); font-size: 0.86em; line-height: 1.6; min-height: 1.7em; max-width: 100%; overflow-wrap: anywhere; white-space: pre-wrap; }
.tfx-learn .tfx-drawn li.tfx-copied { border: 1px dashed var(--tfx-rim); background: none; }
.tfx-learn .tfx-words-now { min-height: 3em; }
.tfx-learn .tfx-words-now[data-kind="bad"] { padding-left: 0.7rem !important; border-left: 4px solid var(--tfx-red); }
.tfx-learn .tfx-rate { stroke: var(--tfx-ink); stroke-dasharray: 2 3; }
.tfx-learn .tfx-key.tfx-even::before { border-top: 2px dashed var(--tfx-rim); }
`;

const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

/** Means of neighbours, so that at most `most` points are left: [step, loss]. */
function thinned(losses, most) {
  const wide = Math.max(1, Math.ceil(losses.length / most));
  return Array.from({ length: Math.ceil(losses.length / wide) }, (_, i) => {
    const part = losses.slice(i * wide, (i + 1) * wide);
    return [i * wide + (part.length + 1) / 2, mean(part)];
  });
}

/** The loss of a guess by how often each id stands in a text: −Σ p ln p. */
function costOfCounts(ids) {
  const counts = new Map();
  for (const id of ids) counts.set(id, (counts.get(id) ?? 0) + 1);
  return -[...counts.values()].reduce((sum, count) => sum + (count / ids.length) * Math.log(count / ids.length), 0);
}

/** What the curve says in words, and whether it is bad: numbers alone do not say when to stop. */
function verdict({ losses, held, even, often, kinds, lr, broken }) {
  if (broken) return { bad: true, words: `After ${losses.length} steps a number has left all bounds, and the training stopped. A learning rate of ${lr} is too high: lower it and begin again.` };
  const guess = `Guessing evenly among ${kinds} characters costs ${show(even, 2)}.`;
  if (!losses.length) return { bad: false, words: `Before the first step the weights are random: what is held out costs ${show(held, 2)} nats a character. ${guess}` };
  const recent = mean(losses.slice(-RECENT));
  const lowest = Math.min(...Array.from({ length: Math.floor(losses.length / RECENT) }, (_, i) => mean(losses.slice(i * RECENT, (i + 1) * RECENT))));
  if (losses.length >= 5 && recent > even + 0.2)
    return { bad: true, words: `The loss is ${show(recent, 2)}: worse than guessing evenly, which costs ${show(even, 2)}. The steps are so long that they leap over what they look for; the training diverges. Lower the learning rate, or begin again.` };
  if (recent > lowest + 0.25)
    return { bad: true, words: `The loss was ${show(lowest, 2)} and is ${show(recent, 2)} again: the steps are too long. Lower the learning rate.` };
  if (losses.length >= PATIENT && recent > often - 0.05)
    return { bad: false, words: `It knows how often each character stands in the text, and hardly more: that alone costs ${show(often, 2)}, and the loss is ${show(recent, 2)}. Steps that are too long find no more than that; steps that are too short need more time.` };
  if (held > recent + 0.3)
    return { bad: false, words: `It learns its text by heart: what it learns from costs ${show(recent, 2)} nats a character, what is held out ${show(held, 2)}. ${guess}` };
  return { bad: false, words: `What it learns from costs ${show(recent, 2)} nats a character, what is held out ${show(held, 2)}. ${guess}` };
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { sizes, shortest, longest, most_kinds } = data;
    const get = (key) => model.get(key);
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };
    let crew = null, ended = false, id = 0, turn = 0, run = null, at = null;

    // ------------------------------------------------------------------ the text
    const charactersOf = (text) => [...new Set(text)].sort((a, b) => a.codePointAt(0) - b.codePointAt(0));
    /** The characters that are looked at: of those given the known ones, or the first of the text. */
    const probeOf = () => {
      const known = new Set(get("text"));
      const probe = [...get("probe")].filter((c) => known.has(c)).slice(0, sizes.context);
      return probe.length ? probe : [...get("text")].slice(0, FOLLOWED);
    };
    const left = h("p", { class: "tfx-note", role: "status" });
    const take = (text) => save({ text, probe: [...text].slice(0, FOLLOWED).join("") });
    const field = h("textarea", {
      class: "tfx-field tfx-long", rows: 3, "data-control": "learned_text", spellcheck: "false", autocapitalize: "off", autocomplete: "off",
      oninput: () => {
        const typed = [...field.value], kept = typed.slice(0, longest).join(""), kinds = new Set(kept).size;
        const wrong = typed.length < shortest ? `The text must have ${shortest} characters at least; it has ${typed.length}.`
          : kinds > most_kinds ? `The text may have ${most_kinds} different characters; it has ${kinds}.` : "";
        left.textContent = wrong || (typed.length > longest ? `Only the first ${longest} characters are taken.` : "");
        if (!wrong && kept !== get("text")) take(kept);
      },
    });
    const chips = h("div", { class: "tfx-chips" }, data.texts.map(([name, text]) => h("button", {
      type: "button", class: "tfx-chip", "data-control": `learned_text[${name}]`,
      onclick: () => {
        left.textContent = "";
        take(text);
      },
    }, name)));

    // ------------------------------------------------------------------ controls
    const rate = slider(model, "lr", {
      label: "Learning rate", min: -16, max: 4, read: (i) => Number((10 ** (i / 4)).toPrecision(2)),
      write: (lr) => Math.round(4 * Math.log10(lr)), text: String,
    });
    const depth = options(model, "n_layers", "Layers", [[1, "1"], [2, "2"]]);
    const press = (name, label, kind, act) => h("button", { type: "button", class: kind, "data-control": name, onclick: act }, label);
    const go = press("learn", "", "tfx-button", () => (run?.running ? pause() : learn(AT_ONCE)));
    const one = press("learn_one", "One step", "tfx-chip", () => learn(1));
    const again = press("learn_again", "Begin again", "tfx-chip", () => begin());
    const luck = press("learn_luck", "Other luck", "tfx-chip", () => save({ seed: (get("seed") + 1) % 10_000 }));

    // ------------------------------------------------------------------ the training
    /** What asks for an answer is numbered: only the answer to the newest says that all is done. */
    const ask = (request) => {
      run.turn = ++turn;
      tell({ ...request, turn });
    };
    const tell = (request) => {
      crew ??= hire(window.tfbookModules?.live_training ?? get("_esm"), (answer) => trainer(answer, uniform), hear);
      crew.then((hired) => {
        card.dataset.place = hired.where;
        if (ended) hired.end();
        else hired.tell(request);
      });
    };
    /** Random weights; the loss so far, the text and the luck belong to a run of their own. */
    function begin() {
      const text = get("text"), characters = charactersOf(text), numbers = new Map(characters.map((c, i) => [c, i]));
      const ids = Array.from(text, (c) => numbers.get(c));
      run = {
        id: ++id, text, characters, numbers, seed: get("seed"), n_layers: get("n_layers"), lines: new Set(text.split("\n")), even: Math.log(characters.length), often: costOfCounts(ids),
        step: 0, losses: [], held: [], rates: [], shown: null, running: false, broken: false, busy: true, spent: 0, done: 0,
      };
      ask({
        kind: "begin", id, ids, seed: run.seed, lr: get("lr"), first: numbers.get("\n") ?? ids[0], probe: probeOf().map((c) => numbers.get(c)),
        sizes: { ...sizes, vocabulary: characters.length, n_layers: run.n_layers },
        batch: data.batch, adam: data.adam, share: data.share, most: data.most, count: data.written,
      });
      drawAll();
    }
    function learn(count) {
      if (!run) begin();
      if (run.running) return;
      Object.assign(run, { running: true, busy: true, spent: 0, done: 0 });
      ask({ kind: "run", count });
      drawControls();
    }
    const pause = () => tell({ kind: "pause" });
    function hear(answer) {
      if (answer.id !== run.id || ended) return;
      if (answer.kind === "shown") {
        run.shown = answer;
        note([answer.held]);
        fresh = true;
      } else {
        run.losses.push(...answer.losses);
        note(answer.held);
        run.spent += answer.seconds;
        run.done += answer.losses.length;
        Object.assign(run, { step: answer.step, broken: answer.broken });
        if (answer.turn === run.turn && !answer.running) Object.assign(run, { running: false, busy: false });
      }
      // However fast answers come, they are drawn once a frame.
      if (waiting) return;
      waiting = true;
      if (document.hidden) drawAnswers();
      else requestAnimationFrame(drawAnswers);
    }
    let waiting = false, fresh = false;
    function drawAnswers() {
      waiting = false;
      if (ended) return;
      drawCurve();
      if (fresh) drawShown();
      fresh = false;
      drawButtons();
    }
    const note = (pairs) => {
      for (const pair of pairs) if (pair[0] > (run.held.at(-1)?.[0] ?? -1)) run.held.push(pair);
    };

    // ------------------------------------------------------------------ what is shown
    const stats = {
      step: stat("step", "Steps", (x) => String(x)), loss: stat("loss", "Loss", 2), held: stat("held", "Held out", 2), pace: stat("pace", "Steps a second", 0),
    };
    stats.loss.note.textContent = `mean of ${RECENT} steps`;
    stats.held.note.textContent = `last ${show(100 * data.share, 0)} % of the text`;
    const lines = { learned: h("polyline", { class: "tfx-line tfx-scaled" }), held: h("polyline", { class: "tfx-line tfx-raw" }) };
    const even = h("line", { class: "tfx-cursor" });
    const rates = h("g", {});
    const curve = chart(even, rates, lines.learned, lines.held);
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, "Nats a character, over the steps. ", h("span", { class: "tfx-key" }, "what it learns from"), " ", h("span", { class: "tfx-key tfx-raw" }, "held out"), " ",
        h("span", { class: "tfx-key tfx-even" }, "guessing evenly")), curve.node);
    const words = h("p", { class: "tfx-words-now" });
    const said = summary();
    said.node.classList.add("tfx-hidden");
    const sample = h("ul", { class: "tfx-drawn", "aria-label": "What it writes" });
    const counted = h("p", { class: "tfx-note" });
    const looking = h("textarea", {
      class: "tfx-field tfx-long", rows: 2, "data-control": "probe", spellcheck: "false", autocapitalize: "off", autocomplete: "off",
      oninput: () => {
        const known = new Set(get("text")), typed = [...looking.value];
        const kept = typed.filter((c) => known.has(c)).slice(0, sizes.context).join("");
        const unknown = [...new Set(typed.filter((c) => !known.has(c)))].join(" ");
        unseen.textContent = unknown ? `Not in the text, so left out: ${unknown}` : typed.length > sizes.context ? `It sees ${sizes.context} characters at once.` : "";
        if (kept) save({ probe: kept });
      },
    });
    const unseen = h("p", { class: "tfx-note", role: "status" });
    const row = tokenRow("followed", "Character that is followed, and where this head looks from it", (i) => {
      at = i;
      drawHead();
    }, () => {});
    const heads = h("div", {});
    const choose = h("form", { class: "tfx-control", onsubmit: (e) => e.preventDefault() },
      h("fieldset", { class: "tfx-options tfx-heads" }, h("legend", { class: "tfx-label" }, "Layer and head: a row for each character, a column for each that it may look at"), heads));
    let minis = [], faces = "";
    /** Maps are made once for a length of the text, and filled anew at each change. */
    function makeMaps(layers, n) {
      minis = Array.from({ length: layers * sizes.n_heads }, (_, c) => {
        const [layer, head] = [Math.floor(c / sizes.n_heads), c % sizes.n_heads];
        const cells = Array.from({ length: n }, (_, i) => Array.from({ length: i + 1 }, (_, j) => h("path", { d: `M${j} ${i}h1v1h-1z` })));
        const input = h("input", { type: "radio", name: "learned_head", value: `${layer}.${head}`, "data-control": "learned_head", onchange: () => save({ layer, head }) });
        return { layer, head, cells, input, node: h("label", { class: "tfx-option tfx-mini" }, input,
          h("span", {}, h("svg", { viewBox: `0 0 ${n} ${n}`, "aria-hidden": "true" }, cells.flat()), h("span", {}, h("span", { class: "tfx-hidden" }, "head "), `${layer}.${head}`))) };
      });
      heads.style.setProperty("--line", sizes.n_heads);
      heads.replaceChildren(...minis.map((m) => m.node));
    }

    // ------------------------------------------------------------------ the page
    const about = h("p", { class: "tfx-note" });
    const inside = h("div", { class: "tfx-two-columns" },
      h("div", { class: "tfx-stack" }, h("p", { class: "tfx-label" }, "What it writes by now, with the same luck each time"), sample, counted),
      h("div", { class: "tfx-stack" }, choose));
    const below = h("div", { class: "tfx-stack" }, inside, row.node, h("label", { class: "tfx-control" }, h("span", { class: "tfx-label" }, "Characters to look at"), looking), unseen);
    const title = (words) => h("p", { class: "tfx-part-title" }, words);
    const inward = title("Look inside");
    const card = h("div", { class: "tfx-card tfx-learn", role: "group", "aria-label": data.title }, h("style", {}, STYLE),
      titled(data.title), about,
      h("div", { class: "tfx-stack" }, h("label", { class: "tfx-control" }, h("span", { class: "tfx-label" }, "A text to learn; paste one of your own"), field), left, chips),
      title("Train it"), h("div", { class: "tfx-pair-wide" }, rate.node, depth.node), h("div", { class: "tfx-chips" }, go, one, again, luck),
      h("div", { class: "tfx-stats tfx-two" }, Object.values(stats).map((s) => s.node)), figure, words,
      inward, below, said.node);
    el.classList.add("tfx");
    el.append(card);

    // ------------------------------------------------------------------ drawing
    const lettersOf = (ids) => ids.map((i) => run.characters[i]);
    function drawControls() {
      [rate, depth].forEach((c) => c.update());
      if (document.activeElement !== field && field.value !== get("text")) field.value = get("text");
      if (document.activeElement !== looking) looking.value = probeOf().join("");
      const kinds = charactersOf(get("text")).length;
      const weights = shapesOf({ ...sizes, vocabulary: kinds, n_layers: get("n_layers") }).reduce((sum, [, rows, cols]) => sum + rows * (cols || 1), 0);
      about.textContent = `A decoder with ${grouped(weights)} weights guesses the next of ${kinds} characters. It begins at random and learns here, on your machine, ${data.batch} pieces of ${sizes.context} characters a step.`;
      drawButtons();
    }
    function drawButtons() {
      go.textContent = run?.running ? "Pause" : run?.step ? "Train on" : "Train";
      again.hidden = !run?.step;
      one.disabled = Boolean(run?.running);
      card.dataset.busy = run?.busy ? "yes" : "no";
      below.hidden = !run?.shown;
      inward.hidden = !run?.shown;
    }
    function drawCurve() {
      const { losses, held, rates: changes } = run ?? { losses: [], held: [], rates: [] };
      const least = run?.even ?? Math.log(charactersOf(get("text")).length);
      const points = thinned(losses, POINTS);
      const highest = Math.max(least, ...points.slice(-20).map(([, loss]) => loss));
      const top = Math.ceil(1.15 * Math.min(highest, 3 * least));
      const right = losses.length <= 100 ? 100 : 10 ** Math.floor(Math.log10(losses.length)) * [1, 2, 5, 10].find((m) => m * 10 ** Math.floor(Math.log10(losses.length)) >= losses.length);
      const step = top > 6 ? 2 : 1;
      curve.frame([0, right], [0, top], [0, right / 2, right], Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step));
      const below = ([x, y]) => [x, Math.min(y, top)];
      curve.points(lines.learned, points.map(below));
      curve.points(lines.held, held.filter((_, i) => i % Math.ceil(held.length / POINTS) === 0).map(below));
      for (const [key, value] of Object.entries({ x1: 0, x2: 100, y1: curve.up(least), y2: curve.up(least) })) even.setAttribute(key, value);
      rates.replaceChildren(...changes.map((x) => h("line", { class: "tfx-rate", x1: curve.at(x), x2: curve.at(x), y1: 0, y2: 100 })));
      if (!run) {
        words.textContent = "Train it, or go step by step.";
        return Object.values(stats).forEach((s) => s.clear());
      }
      const last = held.at(-1);
      stats.step.set(run.losses.length);
      if (losses.length) stats.loss.set(mean(losses.slice(-RECENT)));
      else stats.loss.clear();
      if (last) stats.held.set(last[1]);
      else stats.held.clear();
      if (run.done > 1 && run.spent) stats.pace.set(run.done / run.spent);
      else stats.pace.clear();
      if (!last) return;
      const now = verdict({ losses, held: last[1], even: least, often: run.often, kinds: run.characters.length, lr: get("lr"), broken: run.broken });
      words.textContent = now.words;
      words.dataset.kind = now.bad ? "bad" : "good";
      if (!run.running) said.set(`After ${losses.length} steps: ${now.words}`);
    }
    function drawShown() {
      if (!run?.shown) return;
      const text = lettersOf(run.shown.sample).join(""), all = text.split("\n");
      const whole = all.slice(0, -1).filter((line) => line), rest = all.at(-1);
      const known = (line) => run.lines.has(line);
      sample.replaceChildren(...whole.map((line) => known(line)
        ? h("li", { class: "tfx-copied" }, line, h("span", { class: "tfx-hidden" }, ", which stands in the text")) : h("li", {}, line)),
      ...(rest ? [h("li", {}, `${rest}…`)] : []));
      sample.dataset.written = text;
      counted.textContent = whole.length > 1 ? `Of ${whole.length} whole lines ${whole.filter(known).length} stand in the text (dashed).` : "";
      const { probe, looked } = run.shown;
      const form = `${looked.length} ${probe.length}`;
      if (form !== faces) makeMaps(looked.length, probe.length);
      const letters = lettersOf(probe);
      if (form !== faces || row.letters !== letters.join("")) row.fill(letters);
      if (form !== faces) at = null;
      [faces, row.letters] = [form, letters.join("")];
      minis.forEach(({ layer, head, cells }) => {
        const weights = looked[layer][head];
        cells.forEach((line, i) => line.forEach((cell, j) => cell.style.setProperty("--heat", `${Math.round(100 * visible(weights[i * probe.length + j]))}%`)));
      });
      drawHead();
    }
    function drawHead() {
      if (!run?.shown) return;
      const { probe, looked } = run.shown;
      const layer = Math.min(get("layer"), looked.length - 1), head = get("head"), n = probe.length;
      const place = Math.min(at ?? n - 1, n - 1);
      minis.forEach((m) => (m.input.checked = m.layer === layer && m.head === head));
      const weights = Array.from({ length: n }, (_, j) => looked[layer][head][place * n + j]);
      row.draw({ checked: place, followed: place, weights, share: visible });
    }
    function drawAll() {
      drawControls();
      drawCurve();
      drawShown();
    }

    const changed = {
      lr() {
        if (run) {
          if (run.losses.length) run.rates.push(run.losses.length);
          tell({ kind: "rate", lr: get("lr") });
        }
        drawAll();
      },
      probe() {
        if (run && run.text === get("text")) {
          run.busy = true;
          ask({ kind: "look", probe: probeOf().map((c) => run.numbers.get(c)) });
        }
        drawControls();
      },
      layer: drawHead,
      head: drawHead,
    };
    const anew = () => (run ? begin() : drawAll());
    for (const key of ["text", "seed", "n_layers"]) changed[key] = anew;
    for (const [key, act] of Object.entries(changed)) model.on(`change:${key}`, act);
    drawAll();
    return () => {
      ended = true;
      for (const [key, act] of Object.entries(changed)) model.off(`change:${key}`, act);
      crew?.then((hired) => hired.end());
    };
  },
};

// The same text is what the worker runs.
if (typeof document === "undefined") {
  const answer = trainer((told) => postMessage(told), uniform, 50);
  onmessage = ({ data }) => answer(data);
  postMessage({ kind: "here" });
}
