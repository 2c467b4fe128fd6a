import { called, h, listed, reading, show, slider, summary, titled, tokenRow } from "./shared.js";
import { shades, visible } from "./shades.js";
import { fetchWeights, handedOver, hire } from "./workers.js";
import { decodeIds, encodeText, faceOf, openTokenizer, translating } from "./translation_model.js";

const PACE = 450; // ms for a token, when it is written slowly
const WIDE = 84, TALL = 32; // room of a token in the tree
const CELL = 24; // of the grid
const LONG = 9; // characters of a token in a drawing
const STYLE = `
.tfx-translator .tfx-two { display: grid; gap: 0 1.5rem; grid-template-columns: minmax(0, 1fr); }
.tfx-translator .tfx-off-grid { --parts: 5; max-width: 32rem; }
.tfx-translator .tfx-result { padding: 0.6rem 0.8rem !important; border-radius: 8px; background: var(--tfx-wash); min-height: 3.1em; overflow-wrap: anywhere; font-weight: 600; }
.tfx-translator .tfx-source { display: flex; flex-wrap: wrap; gap: 4px; }
.tfx-translator .tfx-source .tfx-token { display: inline-grid; place-items: center; min-height: 40px; min-width: 2rem; padding: 0.1rem 0.4em; border: 1px solid var(--tfx-edge); border-radius: 8px; font-weight: 600; text-align: center; line-height: 1.3; font-size: 0.9em; }
.tfx-translator .tfx-tokens > div { max-height: 17.5rem; overflow-y: auto; padding: 3px; }
.tfx-translator .tfx-scroll { overflow: auto; padding: 3px; }
.tfx-translator .tfx-drawn { position: relative; font-size: 13px; line-height: 1.2; }
.tfx-translator .tfx-drawn svg { display: block; max-width: none; }
.tfx-translator .tfx-drawn span { position: absolute; white-space: pre; }
.tfx-translator .tfx-limb { fill: none; stroke: var(--tfx-rim); stroke-width: 1.5; }
.tfx-translator .tfx-limb.tfx-givenup { stroke-width: 1; stroke-dasharray: 2 3; }
.tfx-translator .tfx-limb.tfx-ofpath { stroke: var(--tfx-blue); stroke-width: 3; }
.tfx-translator .tfx-drawn .tfx-leaf { display: grid; place-items: center; border: 1px solid var(--tfx-rim); border-radius: 6px; background: var(--tfx-paper); color: var(--tfx-ink); font-weight: 600; }
.tfx-translator .tfx-drawn .tfx-leaf.tfx-givenup { border-style: dashed; color: var(--tfx-soft); font-weight: 400; }
.tfx-translator .tfx-drawn .tfx-leaf.tfx-over { border: 2px solid var(--tfx-green); background: color-mix(in srgb, var(--tfx-green) 14%, var(--tfx-paper)); }
.tfx-translator .tfx-drawn .tfx-leaf.tfx-ofpath { border: 3px solid var(--tfx-blue); }
.tfx-translator .tfx-drawn .tfx-columnname { writing-mode: vertical-rl; transform: rotate(180deg); display: grid; place-items: center start; }
.tfx-translator .tfx-drawn .tfx-rowname { display: grid; place-items: center end; }
.tfx-translator .tfx-map-grid { cursor: pointer; }
.tfx-translator .tfx-beams td:nth-child(2) { white-space: normal; text-align: left; overflow-wrap: anywhere; width: 100%; line-height: 1.35; padding-block: 0.3rem; }
.tfx-translator .tfx-beams th:nth-child(2) { text-align: left; }
@container (min-width: 36rem) { .tfx-translator .tfx-two { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); } }
@container (max-width: 24rem) { .tfx-translator .tfx-narrow { display: none; } }
`;

/** A token in a list: its space is seen. A single sign keeps its name for those who listen. */
const face = (token) => (token.length > 1 ? listed(token) : token);
const short = (token) => {
  const letters = [...(token.length > 1 ? listed(token) : token === " " ? "␣" : token === "\n" ? "⏎" : token)];
  return letters.length > LONG ? letters.slice(0, LONG - 1).join("") + "…" : letters.join("");
};

const meanOf = (rows) => Array.from(rows[0], (_, j) => rows.reduce((sum, row) => sum + row[j], 0) / rows.length);

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { n_layers, n_heads, longest, most } = data;
    const get = (key) => model.get(key);
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };
    let worker = null, tokenizer = null, number = 0, seen = null, wanted = null, pointed = null, ended = false;

    // ------------------------------------------------------------------ asking for the model
    const said = summary();
    const ask = h("button", { type: "button", class: "tfx-button", "data-control": "ask", onclick: () => open() }, `Load the model (${show(data.size / 1e6, 1)} MB)`);
    const asking = h("p", { class: "tfx-note" }, `An encoder and a decoder of ${n_layers} layers each, ${show(data.weights / 1e6, 2)} million weights, which have read ${data.pairs.toLocaleString("en")} ` +
      "pairs of sentences from a desktop's help pages, English and French. They run here, on your machine: nothing that you type leaves it.");
    const stage = h("div", { class: "tfx-opened" });
    stage.hidden = true;

    async function open() {
      if (ask.disabled) return;
      ask.disabled = true;
      ask.textContent = "Loading …";
      try {
        const ours = window.tfbookModules?.live_translator;
        if (!get("asked")) save({ asked: true });
        const file = ours ? await fetchWeights("live_translator", data.name) : await handedOver(model);
        const hired = await hire(ours ?? get("_esm"), translating, hear);
        if (ended) return hired.end();
        worker = hired;
        tokenizer = openTokenizer(file.tokenizer);
        worker.tell({ kind: "open", file });
      } catch (error) {
        ask.disabled = false;
        ask.textContent = "The model did not load. Try again";
        console.warn("live translator", error.message);
      }
    }
    function hear(answer) {
      if (answer.kind === "ready") {
        ask.hidden = true;
        stage.hidden = false;
        stage.dataset.place = worker.where;
        look();
      } else if (answer.kind === "grew" && answer.id === wanted?.id) {
        if (seen?.id !== answer.id) seen = { ...wanted, nodes: new Map(), looks: new Map(), levels: [], steps: [] };
        for (const step of answer.steps) {
          step.looks.forEach((each) => seen.looks.set(each.node, each));
          step.made.forEach((each) => seen.nodes.set(each.node, each));
          seen.levels.push(step.made);
          seen.steps.push(step);
        }
        [seen.done, seen.many, seen.seconds] = [answer.done, answer.many, answer.seconds];
        if (seen.done) delete stage.dataset.busy;
        draw();
      }
    }
    /** What a translation rests on. */
    const asked = () => ({ text: get("text"), off: get("off"), n_beams: get("n_beams"), penalty: get("length_penalty") });
    function look() {
      if (!tokenizer || stage.hidden) return;
      const request = asked();
      const key = JSON.stringify(request);
      if (wanted?.key === key) return;
      wanted = { ...request, key, id: ++number, most, ids: [...encodeText(tokenizer, request.text), data.eos] };
      stage.dataset.busy = "";
      worker.tell({ kind: "translate", ...wanted });
    }

    // ------------------------------------------------------------------ the sentence
    const left = h("p", { class: "tfx-note", role: "status" });
    const input = h("textarea", {
      class: "tfx-field tfx-long", rows: 2, "data-control": "text", spellcheck: "false", autocapitalize: "off", autocomplete: "off", lang: "en",
      oninput: () => {
        // Half of a surrogate pair is no character, and UTF-8 cannot write it.
        const typed = [...input.value].map((c) => (/\p{Surrogate}/u.test(c) ? "\ufffd" : c));
        const kept = typed.slice(0, longest).join("");
        left.textContent = typed.length > longest ? `At most ${longest} characters.` : kept ? "" : "Type an English sentence.";
        if (kept !== input.value) input.value = kept;
        if (kept) save({ text: kept, step: null, token: 0, chosen: 0 });
      },
    });
    const press = (name, label, kind, act) => h("button", { type: "button", class: kind, "data-control": name, onclick: act }, label);
    const chips = h("div", { class: "tfx-chips" }, data.texts.map((text, i) => press(`text[${i}]`, text, "tfx-chip", () => {
      left.textContent = "";
      save({ text, step: null, token: 0, chosen: 0 });
    })));
    const result = h("p", { class: "tfx-result", lang: "fr", role: "group", "aria-label": "Translation, as far as it is written" });
    const pace = h("p", { class: "tfx-note" });
    const speed = reading("speed", 0);

    // ------------------------------------------------------------------ writing
    const beams = slider(model, "n_beams", { label: "Beams", min: 1, max: 5, text: String });
    const penalty = slider(model, "length_penalty", { label: "Length penalty α", min: 0, max: 20, read: (i) => i / 10, write: (a) => Math.round(10 * a), text: (a) => show(a, 1) });
    const total = () => seen?.steps.length ?? 1;
    const stepNow = () => Math.max(1, Math.min(get("step") ?? total(), total()));
    const goTo = (step) => save({ step: step >= total() ? null : Math.max(1, step), token: most - 1 });
    const steps = slider({ get: stepNow, set: (_, step) => goTo(step), save_changes() {} }, "step", { label: "Tokens written", min: 1, max: 1, text: (s) => `${s} of ${total()}` });
    let timer = 0;
    const pause = () => {
      clearInterval(timer);
      timer = 0;
    };
    const play = press("play", "Write it word by word", "tfx-button", () => {
      if (timer) {
        pause();
        return draw();
      }
      save({ chosen: 0 });
      goTo(stepNow() === total() ? 1 : stepNow() + 1);
      timer = setInterval(() => {
        if (stepNow() < total()) goTo(stepNow() + 1);
        else if (seen.done) pause();
        draw();
      }, PACE);
      draw();
    });
    const back = press("back", "One back", "tfx-chip", () => (pause(), goTo(stepNow() - 1)));
    const on = press("on", "One on", "tfx-chip", () => (pause(), goTo(stepNow() + 1)));

    // ------------------------------------------------------------------ the tree
    const limbs = h("svg", {}), leaves = h("div", {});
    const tree = h("div", { class: "tfx-drawn", "aria-hidden": "true" }, limbs, leaves);
    const scroll = (name, node) => h("div", { class: "tfx-scroll", tabindex: 0, role: "region", "aria-label": name }, node);
    const treeBox = scroll("Tree of hypotheses; the table below says the same", tree);
    const legend = h("p", { class: "tfx-note" }, "A column is a step; likelier ones stand higher. Blue: the hypothesis that is followed. Green: ended. Dashed: given up.");
    const hypotheses = Array.from({ length: 10 }, (_, i) => {
      const radio = h("input", { type: "radio", name: "chosen", value: i, "data-control": "chosen", onchange: () => (pause(), save({ chosen: i })) });
      const words = h("td", { lang: "fr" });
      const many = reading(`length[${i}]`, 0), chance = reading(`log_prob[${i}]`, 2), score = reading(`score[${i}]`, 3);
      const node = h("tr", {}, h("td", {}, h("label", { class: "tfx-option" }, radio, h("span", {}, h("span", { class: "tfx-hidden" }, "hypothesis "), String(i + 1)))), words,
        h("td", { class: "tfx-narrow" }, many.node), h("td", { class: "tfx-narrow" }, chance.node), h("td", {}, score.node));
      return { radio, words, many, chance, score, node };
    });
    const table = h("table", { class: "tfx-table tfx-beams" }, h("caption", {}, "Hypotheses at this step"),
      h("thead", {}, h("tr", {}, h("td", {}), h("th", { scope: "col" }, "written"), h("th", { scope: "col", class: "tfx-narrow" }, "tokens"), h("th", { scope: "col", class: "tfx-narrow" }, "ln p"), h("th", { scope: "col" }, "score"))),
      h("tbody", {}, hypotheses.map((each) => each.node)));

    // ------------------------------------------------------------------ where it looks
    const pick = (token) => {
      pointed = null;
      pause();
      save({ token });
    };
    const point = (token) => {
      if (token === pointed) return;
      pointed = token;
      draw();
    };
    const source = h("div", { class: "tfx-source" });
    const sourceTitle = h("p", { class: "tfx-label" }, "The source in tokens, filled by where the decoder looked");
    const row = tokenRow("token", "What is written; the token that is followed", pick, point);
    const minis = Array.from({ length: n_layers * (n_heads + 1) }, (_, c) => {
      const layer = Math.floor(c / (n_heads + 1)), at = c % (n_heads + 1);
      const head = at === n_heads ? null : at;
      const radio = h("input", { type: "radio", name: "head", value: `${layer}.${head ?? "mean"}`, "data-control": "cross_head", onchange: () => save({ layer, head }) });
      const picture = h("svg", { "aria-hidden": "true", preserveAspectRatio: "none" });
      return { layer, head, radio, picture, node: h("label", { class: "tfx-option tfx-mini" }, radio,
        h("span", {}, picture, h("span", {}, h("span", { class: "tfx-hidden" }, head === null ? `layer ${layer}, ` : "head "), head === null ? "mean" : `${layer}.${head}`))) };
    });
    const heads = h("form", { class: "tfx-control", onsubmit: (e) => e.preventDefault() },
      h("fieldset", { class: "tfx-options tfx-heads" }, h("legend", { class: "tfx-label" }, "Layer and head of the attention between the two"),
        Array.from({ length: n_layers }, (_, l) => h("div", { style: { "--line": n_heads + 1 } }, minis.slice(l * (n_heads + 1), (l + 1) * (n_heads + 1)).map((m) => m.node)))));
    const shadesOf = h("g", {}), names = h("div", {});
    const bar = h("rect", { class: "tfx-frame" });
    const map = h("svg", {}, shadesOf, bar);
    const grid = h("div", { class: "tfx-drawn tfx-map-grid", "aria-hidden": "true" }, map, names);
    const gridBox = scroll("Grid of weights: rows are written tokens, columns are tokens of the source", grid);
    let origin = [0, 0];
    const under = (event) => {
      const i = Math.floor((event.clientY - grid.getBoundingClientRect().top - origin[1]) / CELL);
      return i < 0 || i >= rowsOfGrid ? null : i;
    };
    grid.addEventListener("pointermove", (e) => seen && e.pointerType === "mouse" && point(under(e)));
    grid.addEventListener("pointerleave", () => seen && point(null));
    grid.addEventListener("click", (e) => seen && under(e) !== null && pick(under(e)));
    const name = h("p", { class: "tfx-label" });
    const likely = Array.from({ length: 8 }, (_, k) => {
      const logit = reading(`logit[${k}]`, 2), chance = reading(`chance[${k}]`, 3);
      const word = h("span", { class: "tfx-word" }), bar = h("span", { class: "tfx-bar" });
      const node = h("tr", {}, h("th", { scope: "row" }, word), h("td", { class: "tfx-wide" }, h("span", { class: "tfx-track" }, bar)), h("td", {}, logit.node), h("td", {}, chance.node));
      return { logit, chance, word, bar, node };
    });
    const nextTitle = h("caption", {});
    const next = h("table", { class: "tfx-table tfx-tokenlist" }, nextTitle, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "token"), h("td", { class: "tfx-wide" }),
      h("th", { scope: "col" }, "logit"), h("th", { scope: "col" }, "p"))), h("tbody", {}, likely.map((each) => each.node)));

    // ------------------------------------------------------------------ switches
    const kinds = ["encoder", "decoder", "cross"];
    const lines = kinds.flatMap((kind) => Array.from({ length: n_layers }, (_, layer) => `${kind} ${layer}`));
    const order = lines.flatMap((line) => Array.from({ length: n_heads }, (_, head) => `${line}.${head}`));
    const flip = (which, on) => {
      const off = new Set(get("off"));
      which.forEach((part) => (on ? off.delete(part) : off.add(part)));
      save({ off: order.filter((part) => off.has(part)), chosen: 0 });
    };
    const switches = lines.map((line) => {
      const own = order.filter((part) => part.startsWith(`${line}.`));
      const box = (control, label, which) => {
        const input = h("input", { type: "checkbox", "data-control": control, "aria-label": `${line}, ${label}`, onchange: () => flip(which, input.checked) });
        return { input, which, node: h("label", { class: "tfx-option" }, input, h("span", {}, label)) };
      };
      return [box(`on[${line}]`, "all", own), ...own.map((part, head) => box(`on[${part}]`, `h${head}`, [part]))];
    });
    const board = h("div", { class: "tfx-off-grid", role: "group", "aria-label": "Heads that are on" },
      switches.flatMap((boxes, i) => [h("span", { "aria-hidden": "true" }, lines[i]), ...boxes.map((b) => b.node)]));
    const allOn = press("all_on", "All on", "tfx-chip", () => save({ off: [], chosen: 0 }));

    // ------------------------------------------------------------------ the page
    const title = (words) => h("p", { class: "tfx-part-title" }, words);
    stage.append(h("div", { class: "tfx-stack" }, h("label", { class: "tfx-control" }, h("span", { class: "tfx-label" }, "An English sentence"), input), left, chips), result, pace,
      title("Watch the beams grow"), h("div", { class: "tfx-two" }, beams.node, penalty.node), h("div", { class: "tfx-chips" }, play, back, on), steps.node, treeBox, legend, table,
      title("Where the decoder looks"), h("div", {}, sourceTitle, source), row.node,
      h("div", { class: "tfx-columns tfx-even" }, h("div", {}, heads), h("div", {}, name, gridBox)), next,
      title("Switch heads off"), h("p", { class: "tfx-note" }, "encoder: within the source; decoder: within what is written; cross: from what is written to the source"), board,
      h("div", { class: "tfx-chips" }, allOn), said.node);
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card tfx-translator", role: "group", "aria-label": data.title }, h("style", {}, STYLE),
      titled(data.title), asking, h("div", { class: "tfx-chips" }, ask), stage));

    // ------------------------------------------------------------------ drawing
    let rowsOfGrid = 0, shown = {};
    const tokenOf = (id) => faceOf(tokenizer, id);
    /** Draw a part anew where what it shows has changed. */
    const once = (part, key, act) => {
      if (shown[part] === key) return;
      shown[part] = key;
      act();
    };
    const pathOf = (node) => {
      const path = [];
      for (let each = node; each; each = seen.nodes.get(each.parent)) path.unshift(each);
      return path;
    };
    /** Where the decoder looked when it wrote each token of a path, by layer and head. */
    const looksOf = (path) => path.map(({ parent }) => seen.looks.get(parent));

    function drawTree(step, hyps, path) {
      const living = new Set(hyps.flatMap((each) => pathOf(each).map(({ node }) => node)));
      const mine = new Set(path.map(({ node }) => node));
      const place = new Map(), levels = seen.levels.slice(0, step);
      levels.forEach((level, x) => level.forEach(({ node }, y) => place.set(node, [x * WIDE, y * TALL])));
      const kind = (node, more = "") => [more, mine.has(node) ? "tfx-ofpath" : living.has(node) ? "" : "tfx-givenup"].filter(Boolean).join(" ");
      const lines = [], boxes = [];
      for (const { node, parent, token, ended: over } of levels.flat()) {
        const [x, y] = place.get(node);
        if (place.has(parent)) {
          const [px, py] = place.get(parent);
          const [from, to] = [px + WIDE - 12, x + 4];
          lines.push(h("path", { class: kind(node, "tfx-limb"), d: `M${from} ${py + TALL / 2}C${(from + to) / 2} ${py + TALL / 2} ${(from + to) / 2} ${y + TALL / 2} ${to} ${y + TALL / 2}` }));
        }
        const where = { left: `${x + 4}px`, top: `${y + 3}px`, width: `${WIDE - 16}px`, height: `${TALL - 6}px` };
        boxes.push(h("span", { class: kind(node, over ? "tfx-leaf tfx-over" : "tfx-leaf"), style: where }, short(tokenOf(token))));
      }
      const size = [levels.length * WIDE, Math.max(...seen.levels.map((level) => level.length)) * TALL];
      for (const [key, value] of Object.entries({ width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}` })) limbs.setAttribute(key, value);
      Object.assign(tree.style, { width: `${size[0]}px`, height: `${size[1]}px` });
      limbs.replaceChildren(...lines);
      leaves.replaceChildren(...boxes);
      if (timer) treeBox.scrollLeft = treeBox.scrollWidth;
    }
    function drawTable(step, hyps, chosen) {
      hypotheses.forEach((each, i) => {
        const hyp = hyps[i];
        each.node.hidden = !hyp;
        each.radio.checked = i === chosen;
        if (!hyp) return [each.many, each.chance, each.score].forEach((number) => number.clear());
        each.words.textContent = wordsOf(hyp);
        each.many.set(hyp.length);
        each.chance.set(hyp.log_prob);
        each.score.set(hyp.score);
      });
    }
    const wordsOf = (hyp) => decodeIds(tokenizer, pathOf(hyp).map(({ token }) => token)) + (hyp.ended ? "" : " …");
    const rowOf = (look, layer, head) => (head === null ? meanOf(look.cross[layer]) : look.cross[layer][head]);

    function drawGrid(path, looks, layer, head) {
      const columns = seen.ids.map(tokenOf), rows = path.map(({ token }) => tokenOf(token));
      const room = (tokens) => 10 + 8 * Math.max(...tokens.map((t) => [...short(t)].length));
      origin = [room(rows), room(columns)];
      rowsOfGrid = rows.length;
      const [width, height] = [columns.length * CELL, rows.length * CELL];
      for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) map.setAttribute(key, value);
      Object.assign(map.style, { position: "absolute", left: `${origin[0]}px`, top: `${origin[1]}px`, overflow: "visible" });
      Object.assign(grid.style, { width: `${origin[0] + width + 2}px`, height: `${origin[1] + height + 2}px` });
      shadesOf.setAttribute("transform", `scale(${CELL})`);
      shadesOf.replaceChildren(h("rect", { class: "tfx-shade", width: columns.length, height: rows.length, style: { "--heat": "0%" } }), ...shades(looks.map((each) => rowOf(each, layer, head))));
      names.replaceChildren(
        ...rows.map((token, i) => h("span", { class: "tfx-rowname", style: { left: 0, top: `${origin[1] + i * CELL}px`, width: `${origin[0] - 6}px`, height: `${CELL}px` } }, short(token))),
        ...columns.map((token, j) => h("span", { class: "tfx-columnname", style: { left: `${origin[0] + j * CELL}px`, top: 0, width: `${CELL}px`, height: `${origin[1] - 6}px` } }, short(token))));
    }
    function drawMinis(looks) {
      minis.forEach(({ layer, head, picture }) => {
        picture.setAttribute("viewBox", `0 0 ${seen.ids.length} ${looks.length}`);
        picture.replaceChildren(...shades(looks.map((each) => rowOf(each, layer, head))));
      });
    }
    function drawControls() {
      if (document.activeElement !== input || input.value !== get("text")) input.value = get("text");
      [beams, penalty].forEach((c) => c.update());
      const off = new Set(get("off"));
      switches.flat().forEach(({ input, which }) => {
        const on = which.filter((part) => !off.has(part)).length;
        input.checked = which.length === 1 ? on === 1 : on > 0;
        input.indeterminate = on > 0 && on < which.length;
      });
      allOn.hidden = !off.size;
      steps.input.max = Math.max(2, total());
      steps.update();
      play.textContent = timer ? "Pause" : "Write it word by word";
    }
    function draw() {
      drawControls();
      if (!seen?.steps.length) return;
      const step = stepNow(), { alive, finished } = seen.steps[step - 1];
      const hyps = [...finished, ...alive].map((node) => seen.nodes.get(node)).sort((a, b) => b.score - a.score);
      const chosen = Math.min(get("chosen"), hyps.length - 1);
      const path = pathOf(hyps[chosen]), looks = looksOf(path);
      const kept = Math.min(get("token"), path.length - 1);
      const at = pointed === null ? kept : Math.min(pointed, path.length - 1);
      const layer = get("layer"), head = get("head");
      const here = `${seen.id} ${step} ${path.at(-1).node}`;
      once("tree", `${here} ${seen.steps.length}`, () => {
        drawTree(step, hyps, path);
        drawTable(step, hyps, chosen);
        result.textContent = wordsOf(hyps[chosen]);
        pace.replaceChildren(`${seen.ids.length} tokens read, ${seen.steps.length} steps; the decoder read ${seen.many} tokens, `, speed.node, " a second.");
        speed.set(seen.many / Math.max(seen.seconds, 1e-6));
      });
      hypotheses.forEach((each, i) => (each.radio.checked = i === chosen));
      once("source", String(seen.id), () => source.replaceChildren(...seen.ids.map((id, j) =>
        h("span", { class: "tfx-token", "data-name": `source[${j}]`, "data-value": id }, face(tokenOf(id)) === " " ? listed(" ") : face(tokenOf(id))))));
      once("row", here, () => row.fill(path.map(({ token }) => face(tokenOf(token)))));
      once("minis", here, () => drawMinis(looks));
      once("grid", `${here} ${layer} ${head}`, () => drawGrid(path, looks, layer, head));
      const weights = Array.from(rowOf(looks[at], layer, head));
      row.draw({ checked: kept, followed: at, weights: null });
      [...source.children].forEach((chip, j) => {
        chip.style.setProperty("--heat", `${(100 * visible(weights[j])).toFixed(1)}%`);
        chip.dataset.weight = weights[j];
      });
      minis.forEach((m) => (m.radio.checked = m.layer === layer && m.head === head));
      const own = head === null ? `the mean of layer ${layer}'s heads` : `head ${layer}.${head}`;
      name.textContent = `${own[0].toUpperCase()}${own.slice(1)}${get("off").includes(`cross ${layer}.${head}`) ? ", switched off" : ""}`;
      for (const [key, value] of Object.entries({ x: 0, y: at * CELL, width: seen.ids.length * CELL, height: CELL })) bar.setAttribute(key, value);
      nextTitle.textContent = `Likeliest tokens at step ${at + 1}`;
      likely.forEach((each, k) => {
        const { token, logit, chance } = looks[at].best[k];
        each.word.replaceChildren(listed(tokenOf(token)));
        each.logit.set(logit);
        each.logit.node.dataset.id = token;
        each.chance.set(chance);
        each.bar.style.width = `${(100 * chance) / looks[at].best[0].chance}%`;
        each.node.classList.toggle("tfx-best", token === path[at].token);
      });
      const best = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 2).filter((j) => weights[j] >= 0.005);
      said.set(`“${seen.text}” is written as “${wordsOf(hyps[chosen])}” For ${called(tokenOf(path[at].token))}, token ${at + 1}, ${own} looks at ${
        best.map((j) => `${called(tokenOf(seen.ids[j]))} (${show(weights[j], 2)})`).join(" and ")}.`);
    }

    drawControls();
    const followed = ["text", "n_beams", "length_penalty", "layer", "head", "token", "step", "chosen", "off", "asked"];
    let waiting = false;
    // Several values change at once: what follows from them is drawn once.
    const changed = () => {
      if (get("asked") && !worker) open();
      if (waiting) return;
      waiting = true;
      queueMicrotask(() => {
        waiting = false;
        if (ended) return;
        look();
        draw();
      });
    };
    for (const key of followed) model.on(`change:${key}`, changed);
    if (get("asked")) open();
    return () => {
      ended = true;
      pause();
      for (const key of followed) model.off(`change:${key}`, changed);
      worker?.end();
    };
  },
};

// The same text is what the worker runs.
if (typeof document === "undefined") {
  const answer = translating((told) => postMessage(told), 50);
  onmessage = ({ data }) => answer(data);
  postMessage({ kind: "here" });
}
