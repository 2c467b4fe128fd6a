import { called, h, listed, options, reading, show, slider, summary, titled, tokenRow, uniform } from "./shared.js";
import { shades, visible } from "./shades.js";
import { fetchWeights, handedOver, hire } from "./workers.js";
import { softmaxOf } from "./tensors.js";
import { cutDown, servant } from "./language_model.js";

const FIRST = 8; // rows of the table before the reader asks for all
const WRITTEN = 200; // characters written for one press
const STYLE = `
.tfx-live .tfx-off-grid { --parts: 6; max-width: 34rem; }
.tfx-live .tfx-lens td { text-align: left; white-space: normal; line-height: 1.7; }
.tfx-live .tfx-lens td:last-child { text-align: right; }
.tfx-live .tfx-guess { display: inline-grid; grid-auto-flow: column; gap: 0.35em; align-items: baseline; padding: 0 0.35em; border-radius: 4px; border: 1px solid var(--tfx-edge); background: color-mix(in oklab, var(--tfx-hot) calc(0.8 * var(--heat, 0%)), var(--tfx-paper)); }
.tfx-live .tfx-guess { margin-right: 4px; }
.tfx-live .tfx-two-columns { display: grid; gap: 1.25rem; grid-template-columns: minmax(0, 1fr); }
@container (min-width: 46rem) { .tfx-live .tfx-two-columns { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 1.5rem; } }
@container (max-width: 22rem) { .tfx-live .tfx-tokenlist :is(th, td) { padding-inline: 0.2rem; } .tfx-live .tfx-tokenlist .tfx-wide { display: none; } }
.tfx-live .tfx-sofar { font-family: var(--pst-font-family-monospace, monospace); font-size: 0.9em; overflow-wrap: anywhere; min-height: 4.2em; max-height: 22em; overflow-y: auto; }
.tfx-live .tfx-tokens > div { max-height: 17.5rem; overflow-y: auto; padding: 3px; }
.tfx-live .tfx-tokens .tfx-option span.tfx-token { min-width: 1.9rem; }
.tfx-live .tfx-source .tfx-token { cursor: grab; }
.tfx-live .tfx-dropped-here .tfx-token { outline: 3px dashed var(--tfx-blue); }
.tfx-live .tfx-patched .tfx-token { border: 2px solid var(--tfx-red) !important; }
`;

const places = (n) => ["embedding", ...Array.from({ length: n }, (_, layer) => `layer ${layer}`)];
const falling = (numbers) => [...numbers.keys()].sort((a, b) => numbers[b] - numbers[a] || a - b);

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { n_layers, n_heads, characters, longest } = data;
    const get = (key) => model.get(key);
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };
    const idsOf = (text) => [...text].map((c) => characters.indexOf(c));
    let worker = null, number = 0, seen = null, wanted = null, pointed = null, ended = false;

    // ------------------------------------------------------------------ asking for the model
    const said = summary();
    const ask = h("button", { type: "button", class: "tfx-button", "data-control": "ask", onclick: () => open() }, `Load the model (${show(data.size / 1e6, 1)} MB)`);
    const asking = h("p", { class: "tfx-note" }, `A decoder of ${n_layers} layers with ${show(data.weights / 1e6, 2)} million weights, which has read nine plays of Shakespeare. ` +
      "It runs here, on your machine: nothing that you type leaves it.");
    const stage = h("div", { class: "tfx-opened" });
    stage.hidden = true;

    async function open() {
      if (ask.disabled) return;
      ask.disabled = true;
      ask.textContent = "Loading …";
      try {
        const ours = window.tfbookModules?.live_model;
        if (!get("asked")) save({ asked: true });
        const file = ours ? await fetchWeights("live_model", data.name) : await handedOver(model);
        const hired = await hire(ours ?? get("_esm"), (tell) => servant(tell, uniform), hear);
        if (ended) return hired.end();
        worker = hired;
        worker.tell({ kind: "open", file });
      } catch (error) {
        ask.disabled = false;
        ask.textContent = "The model did not load. Try again";
        console.warn("live model", error.message);
      }
    }
    function hear(answer) {
      if (answer.kind === "ready") {
        ask.hidden = true;
        stage.hidden = false;
        stage.dataset.place = worker.where;
        drawControls();
        look();
      } else if (answer.kind === "looked" && answer.id === wanted?.id) {
        seen = { ...wanted, ...answer };
        drawAll();
      } else if (answer.kind === "wrote" && answer.id === writing?.id) hearWriting(answer);
    }
    /** What a reading rests on. */
    const asked = () => {
      const [text, other] = [get("text"), get("other")];
      const fits = get("patch").length && get("patch")[1] < other.length && get("patch")[2] < text.length;
      return { text, ids: idsOf(text), other: idsOf(other), off: get("off"), patch: fits ? get("patch") : [] };
    };
    const keyOf = (request) => JSON.stringify([request.ids, request.patch.length ? request.other : [], request.off, request.patch]);
    function look() {
      if (!worker) return;
      const request = asked();
      if (wanted && keyOf(wanted) === keyOf(request)) return;
      wanted = { ...request, id: ++number };
      stage.dataset.busy = "";
      forget();
      worker.tell({ kind: "look", ...wanted });
    }

    // ------------------------------------------------------------------ the texts
    const textField = (name, label) => {
      const left = h("p", { class: "tfx-note", role: "status" });
      const input = h("textarea", {
        class: "tfx-field tfx-long", rows: 3, "data-control": name, spellcheck: "false", autocapitalize: "off", autocomplete: "off",
        "data-lm-suppress-shortcuts": "true",
        oninput: () => {
          const typed = [...input.value];
          const known = typed.filter((c) => characters.includes(c));
          const kept = known.slice(0, longest).join("");
          const unknown = [...new Set(typed.filter((c) => !characters.includes(c)))].join(" ");
          left.textContent = unknown ? `The model knows ${characters.length} characters; left out: ${unknown}`
            : known.length > longest ? `At most ${longest} characters.` : kept ? "" : "Type a character.";
          if (kept !== input.value) input.value = kept;
          if (kept) save(name === "text" ? { text: kept, token: kept.length - 1, patch: [] } : { other: kept, patch: [] });
        },
      });
      const chips = h("div", { class: "tfx-chips" }, data.texts.map((text, i) => h("button", {
        type: "button", class: "tfx-chip", "data-control": `${name}[${i}]`,
        onclick: () => save(name === "text" ? { text, token: text.length - 1, patch: [] } : { other: text, patch: [] }),
      }, text.replaceAll("\n", " ").slice(0, 34) + (text.length > 34 ? "…" : ""))));
      const update = () => {
        if (document.activeElement !== input || input.value !== get(name)) input.value = get(name);
      };
      const node = h("div", { class: "tfx-stack" }, h("label", { class: "tfx-control" }, h("span", { class: "tfx-label" }, label), input), left, chips);
      return { node, update };
    };
    const text = textField("text", "A text");
    const other = textField("other", "Another text");

    // ------------------------------------------------------------------ writing on
    let writing = null, output = [], spent = 0;
    const written = h("span", { class: "tfx-written" });
    const begun = h("span", { class: "tfx-note" });
    const sofar = h("p", { class: "tfx-sofar", tabindex: 0, role: "group", "aria-label": "The text with what the model wrote" }, begun, written);
    const speed = reading("speed", 0);
    const pace = h("p", { class: "tfx-note" });
    const temperature = slider(model, "temperature", {
      label: "Temperature", min: -20, max: 14, read: (i) => Number((10 ** (i / 20)).toPrecision(2)),
      write: (t) => Math.round(20 * Math.log10(t)), text: (t) => show(t, 2),
    });
    const topK = slider(model, "top_k", { label: "Top-k", min: 0, max: 20, text: (k) => (k ? String(k) : "off") });
    const topP = slider(model, "top_p", { label: "Top-p", min: 1, max: 100, read: (i) => i / 100, write: (p) => Math.round(100 * p), text: (p) => (p === 1 ? "off" : show(p, 2)) });
    const sampling = () => ({ temperature: get("temperature"), top_k: get("top_k"), top_p: get("top_p") });
    const press = (name, label, kind, act) => h("button", { type: "button", class: kind, "data-control": name, onclick: act }, label);
    const write = press("write", "Write", "tfx-button", () => {
      if (writing) return worker.tell({ kind: "stop" });
      writing = { id: ++number };
      spent = 0;
      writing.from = output.length;
      worker.tell({ kind: "write", ...asked(), id: writing.id, sampling: sampling(), seed: get("seed"), count: WRITTEN });
      drawWriting();
    });
    const clear = press("clear", "Clear", "tfx-chip", () => forget());
    const fresh = press("fresh", "Other luck", "tfx-chip", () => {
      forget();
      save({ seed: (get("seed") + 1) % 10_000 });
    });
    const inside = press("inside", "Look into its last characters", "tfx-chip", () => {
      const all = (get("text") + output.map((id) => characters[id]).join("")).slice(-longest);
      save({ text: all, token: all.length - 1, patch: [] });
    });
    /** What was written belongs to a text, its changes and a seed. */
    function forget() {
      if (worker) worker.tell({ kind: "again" });
      [writing, output, written.textContent] = [null, [], ""];
      drawWriting();
    }
    function hearWriting({ tokens, seconds, done }) {
      output.push(...tokens);
      spent += seconds;
      written.append(tokens.map((id) => characters[id]).join(""));
      sofar.scrollTop = sofar.scrollHeight;
      if (spent) speed.set((output.length - writing.from) / spent);
      if (done) writing = null;
      drawWriting();
    }
    function drawWriting() {
      begun.textContent = get("text");
      write.textContent = writing ? "Stop" : output.length ? "Write on" : "Write";
      inside.hidden = !output.length;
      clear.hidden = !output.length || Boolean(writing);
      pace.hidden = !output.length;
      sofar.dataset.writing = writing ? "yes" : "no";
    }
    pace.append(speed.node, " characters a second");

    // ------------------------------------------------------------------ what comes next
    let all = false;
    const rows = Array.from(characters, (character, id) => {
      const row = {
        logit: reading(`logit[${id}]`, 2), was: reading(`was[${id}]`, 3), now: reading(`now[${id}]`, 3), draw: reading(`drawn[${id}]`, 3),
        bars: [h("span", { class: "tfx-bar tfx-was" }), h("span", { class: "tfx-bar" })],
      };
      row.wasCell = h("td", {}, row.was.node);
      row.node = h("tr", {}, h("th", { scope: "row" }, h("span", { class: "tfx-word" }, listed(character))),
        h("td", { class: "tfx-wide" }, h("span", { class: "tfx-track tfx-double" }, row.bars)), h("td", {}, row.logit.node), row.wasCell,
        h("td", {}, row.now.node), h("td", {}, row.draw.node));
      return row;
    });
    const body = h("tbody", {});
    const wasHead = h("th", { scope: "col" }, "before");
    const expand = h("button", {
      type: "button", class: "tfx-chip", "data-control": "all", "aria-expanded": "false",
      onclick: () => {
        all = !all;
        drawToken();
      },
    }, `Show all ${rows.length}`);
    const table = h("table", { class: "tfx-table tfx-tokenlist" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "next"), h("td", { class: "tfx-wide" }),
      h("th", { scope: "col" }, "score"), wasHead, h("th", { scope: "col" }, "p"), h("th", { scope: "col" }, "drawn"))), body);
    const legend = h("p", { class: "tfx-note" });

    // ------------------------------------------------------------------ the lens
    const guesses = places(n_layers).map((place, at) => {
      const best = Array.from({ length: 3 }, (_, k) => {
        const p = reading(`lens[${at}][${k}]`, 2);
        const name = h("span", { class: "tfx-word" });
        return { p, name, node: h("span", { class: "tfx-guess" }, name, p.node) };
      });
      const right = reading(`right[${at}]`, 3);
      return { best, right, node: h("tr", {}, h("th", { scope: "row" }, place), h("td", {}, best.map((b) => b.node)), h("td", {}, right.node)) };
    });
    const rightHead = h("th", { scope: "col" });
    const lens = h("table", { class: "tfx-table tfx-lens" }, h("caption", {}, "What the stream says behind"),
      h("thead", {}, h("tr", {}, h("td", {}), h("th", { scope: "col", style: { "text-align": "left" } }, "three likeliest"), rightHead)),
      h("tbody", {}, guesses.map((g) => g.node)));

    // ------------------------------------------------------------------ attention
    const pick = (token) => {
      pointed = null;
      save({ token });
    };
    const point = (token) => {
      if (token === pointed) return;
      pointed = token;
      drawToken();
    };
    const row = tokenRow("token", "Character that is followed, and where this head looks from it", pick, point);
    const minis = Array.from({ length: n_layers * n_heads }, (_, c) => {
      const [layer, head] = [Math.floor(c / n_heads), c % n_heads];
      const input = h("input", { type: "radio", name: "head", value: `${layer}.${head}`, "data-control": "head", onchange: () => save({ layer, head }) });
      const picture = h("svg", { "aria-hidden": "true" });
      return { layer, head, input, picture, node: h("label", { class: "tfx-option tfx-mini" }, input,
        h("span", {}, picture, h("span", {}, h("span", { class: "tfx-hidden" }, "head "), `${layer}.${head}`))) };
    });
    const heads = h("form", { class: "tfx-control", onsubmit: (e) => e.preventDefault() },
      h("fieldset", { class: "tfx-options tfx-heads" }, h("legend", { class: "tfx-label" }, "Layer and head"),
        Array.from({ length: n_layers }, (_, l) => h("div", { style: { "--line": n_heads } }, minis.slice(l * n_heads, (l + 1) * n_heads).map((m) => m.node)))));
    const shadesOf = h("g", {});
    const bar = h("rect", { class: "tfx-frame" });
    const large = h("svg", { class: "tfx-large", "aria-hidden": "true" }, shadesOf, bar);
    const under = (event) => {
      const box = large.getBoundingClientRect();
      return Math.max(0, Math.min(seen.ids.length - 1, Math.floor(((event.clientY - box.top) / box.height) * seen.ids.length)));
    };
    large.addEventListener("pointermove", (e) => seen && e.pointerType === "mouse" && point(under(e)));
    large.addEventListener("pointerleave", () => seen && point(null));
    large.addEventListener("click", (e) => seen && pick(under(e)));
    const name = h("p", { class: "tfx-label" });

    // ------------------------------------------------------------------ switches
    const parts = [...Array(n_heads).keys(), "ffn"];
    const flip = (names, on) => {
      const off = new Set(get("off"));
      names.forEach((part) => (on ? off.delete(part) : off.add(part)));
      const order = Array.from({ length: n_layers }, (_, layer) => parts.map((part) => `${layer}.${part}`)).flat();
      save({ off: order.filter((part) => off.has(part)) });
    };
    const switches = Array.from({ length: n_layers }, (_, layer) => {
      const names = parts.map((part) => `${layer}.${part}`);
      const box = (control, label, which) => {
        const input = h("input", { type: "checkbox", "data-control": control, "aria-label": `layer ${layer}, ${label}`, onchange: () => flip(which, input.checked) });
        return { input, which, node: h("label", { class: "tfx-option" }, input, h("span", {}, label)) };
      };
      return [box(`on[${layer}]`, "all", names), ...parts.map((part, i) => box(`on[${names[i]}]`, part === "ffn" ? "FFN" : `h${part}`, [names[i]]))];
    });
    const grid = h("div", { class: "tfx-off-grid", role: "group", "aria-label": "Heads and feed-forward networks that are on" },
      switches.flatMap((boxes, layer) => [h("span", { "aria-hidden": "true" }, `layer ${layer}`), ...boxes.map((b) => b.node)]));
    const allOn = press("all_on", "All on", "tfx-chip", () => save({ off: [] }));

    // ------------------------------------------------------------------ patching
    let source = 0, place = 1;
    const own = {
      get: (key) => (key === "place" ? place : source),
      set: (key, value) => (key === "place" ? (place = value) : (source = value)),
      save_changes: () => drawPatch(),
    };
    const sources = tokenRow("source", "Character of the other text whose stream is taken", (i) => {
      own.set("source", i);
      drawPatch();
    }, () => {});
    sources.node.classList.add("tfx-source");
    const where = options(own, "place", "Taken behind", places(n_layers).map((p, i) => [i, p]));
    const put = press("put", "", "tfx-button", () => save({ patch: [place, source, Math.min(get("token"), get("text").length - 1)] }));
    const takeOut = press("take_out", "Take it out", "tfx-chip", () => save({ patch: [] }));
    const patched = h("p", {});
    // With a mouse a character can also be dragged onto one of the text.
    let dragged = null;
    const chipAt = (list, x, y) => {
      const under = document.elementFromPoint(x, y);
      return list.faces().findIndex((face) => face.parentNode.contains(under));
    };
    const mark = (to) => row.faces().forEach((face, i) => face.parentNode.classList.toggle("tfx-dropped-here", i === to));
    sources.node.addEventListener("pointerdown", (e) => {
      const from = e.pointerType === "mouse" && !e.button ? chipAt(sources, e.clientX, e.clientY) : -1;
      dragged = from < 0 ? null : { from, x: e.clientX, y: e.clientY, moved: false };
    });
    const drag = (e) => {
      if (!dragged) return;
      dragged.moved ||= Math.hypot(e.clientX - dragged.x, e.clientY - dragged.y) > 6;
      if (dragged.moved) mark(chipAt(row, e.clientX, e.clientY));
    };
    const drop = (e) => {
      const to = dragged?.moved ? chipAt(row, e.clientX, e.clientY) : -1;
      const { from } = dragged ?? {};
      dragged = null;
      mark(-1);
      if (to < 0) return;
      source = from;
      save({ patch: [place, from, to] });
    };
    addEventListener("pointermove", drag);
    addEventListener("pointerup", drop);

    // ------------------------------------------------------------------ the page
    const title = (words) => h("p", { class: "tfx-part-title" }, words);
    stage.append(text.node,
      title("Let it write on"), h("div", { class: "tfx-thirds" }, temperature.node, topK.node, topP.node),
      h("div", { class: "tfx-chips" }, write, fresh, clear, inside), sofar, pace,
      title("Look inside"), row.node,
      h("div", { class: "tfx-two-columns" }, h("div", { class: "tfx-stack" }, lens), h("div", { class: "tfx-stack" }, table, legend, expand)),
      h("div", { class: "tfx-columns tfx-even" }, h("div", {}, heads), h("div", {}, name, large,
        h("p", { class: "tfx-ends", "aria-hidden": "true" }, h("span", {}, "rows: queries"), h("span", {}, "columns: keys")))),
      title("Switch parts off"), grid, h("div", { class: "tfx-chips" }, allOn),
      title("Put an activation of another text in"), other.node, sources.node, where.node, h("div", { class: "tfx-chips" }, put, takeOut), patched, said.node);
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card tfx-live", role: "group", "aria-label": data.title }, h("style", {}, STYLE),
      titled(data.title), asking, h("div", { class: "tfx-chips" }, ask), stage));

    // ------------------------------------------------------------------ drawing
    let shownText = null, shownOther = null, shownMaps = null, drawing = 0;
    const now = () => {
      const kept = Math.min(get("token"), seen.ids.length - 1);
      return { kept, at: pointed === null ? kept : Math.min(pointed, seen.ids.length - 1), layer: get("layer"), head: get("head") };
    };
    function drawControls() {
      [text, other, temperature, topK, topP].forEach((c) => c.update());
      const off = new Set(get("off"));
      switches.flat().forEach(({ input, which }) => {
        const on = which.filter((part) => !off.has(part)).length;
        input.checked = on > 0;
        input.indeterminate = on > 0 && on < which.length;
        if (which.length === 1) input.checked = on === 1;
      });
      allOn.hidden = !off.size;
      if (shownOther !== get("other")) {
        shownOther = get("other");
        sources.fill([...shownOther]);
        source = shownOther.length - 1;
      }
      drawWriting();
      drawPatch();
    }
    function drawPatch() {
      where.update();
      sources.draw({ checked: source, followed: source, weights: null });
      const tokens = [...get("text")];
      const to = Math.min(get("token"), tokens.length - 1);
      put.textContent = `Put it where ${called(tokens[to])} stands, at ${to}`;
      const held = get("patch");
      takeOut.hidden = !held.length;
      row.faces().forEach((face, i) => face.parentNode.classList.toggle("tfx-patched", held.length > 0 && i === held[2]));
      patched.textContent = held.length
        ? `Behind ${held[0] ? "" : "the "}${places(n_layers)[held[0]]}, at ${called(tokens[held[2]] ?? "")} (${held[2]}), stands now what the other text has at ${called([...get("other")][held[1]] ?? "")} (${held[1]}).`
        : "Choose a character above and one of the other text here, or drag one onto the other with a mouse.";
    }
    /** Maps one after the other, so that the page answers in between. */
    function drawMaps() {
      const turn = ++drawing;
      shownMaps = seen;
      const n = seen.ids.length;
      const next = (c) => {
        if (turn !== drawing || c === minis.length) return;
        const { layer, head, picture } = minis[c];
        picture.setAttribute("viewBox", `0 0 ${n} ${n}`);
        picture.replaceChildren(...shades(seen.steps.map((step) => step.looked[layer][head])));
        setTimeout(() => next(c + 1));
      };
      next(0);
    }
    function drawAll() {
      delete stage.dataset.busy;
      if (shownText !== seen.text) {
        shownText = seen.text;
        pointed = null;
        row.fill([...seen.text]);
      }
      drawMaps();
      drawToken();
      drawPatch();
    }
    function drawToken() {
      if (!seen || seen.text !== shownText) return;
      const { kept, at, layer, head } = now();
      const n = seen.ids.length;
      const step = seen.steps[at];
      // where the head looks
      const weights = Array.from({ length: n }, (_, j) => step.looked[layer][head][j] ?? 0);
      row.draw({ checked: kept, followed: at, weights, share: visible });
      minis.forEach((m) => (m.input.checked = m.layer === layer && m.head === head));
      const map = `${layer}.${head}`;
      if (large.dataset.map !== map || large.seen !== seen) {
        [large.dataset.map, large.seen] = [map, seen];
        large.setAttribute("viewBox", `0 0 ${n} ${n}`);
        shadesOf.replaceChildren(...shades(seen.steps.map((s) => s.looked[layer][head])));
        name.textContent = `Layer ${layer}, head ${head}${get("off").includes(map) ? ", switched off" : ""}`;
      }
      for (const [key, value] of Object.entries({ x: 0, y: at, width: n, height: 1 })) bar.setAttribute(key, value);
      // what comes next
      const p = softmaxOf(step.logits), was = softmaxOf(seen.plain[at]), draws = cutDown(step.logits, sampling());
      const other = seen.off.length + seen.patch.length > 0;
      const order = falling(p);
      const widest = Math.max(p[order[0]], ...was);
      for (const [id, r] of rows.entries()) {
        r.logit.set(step.logits[id]);
        r.was.set(was[id]);
        r.now.set(p[id]);
        r.draw.set(draws[id]);
        r.bars[0].style.width = `${other ? (100 * was[id]) / widest : 0}%`;
        r.bars[1].style.width = `${(100 * p[id]) / widest}%`;
        r.wasCell.hidden = !other;
        r.node.classList.toggle("tfx-cut", draws[id] === 0);
      }
      wasHead.hidden = !other;
      order.forEach((id, i) => (rows[id].node.hidden = !all && i >= FIRST));
      body.replaceChildren(...order.map((id) => rows[id].node));
      expand.textContent = all ? `Show the first ${FIRST} only` : `Show all ${rows.length}`;
      expand.setAttribute("aria-expanded", String(all));
      legend.textContent = other ? "grey: before the change; blue: now" : "";
      // what the stream says
      const follower = seen.ids[at + 1];
      const truly = at + 1 < n;
      rightHead.replaceChildren("p of ", h("span", { class: "tfx-word" }, truly ? listed(characters[follower]) : ""));
      guesses.forEach((g, place) => {
        const best = falling(step.lens[place]);
        g.best.forEach((b, k) => {
          b.p.set(step.lens[place][best[k]]);
          b.p.node.dataset.id = best[k];
          b.name.replaceChildren(listed(characters[best[k]]));
          b.node.style.setProperty("--heat", `${(100 * step.lens[place][best[k]]).toFixed(1)}%`);
        });
        if (truly) g.right.set(step.lens[place][follower]);
        else g.right.clear();
        g.right.node.parentNode.hidden = !truly;
      });
      rightHead.hidden = !truly;
      drawPatch();
      const looks = falling(weights).slice(0, 2).filter((j) => weights[j] >= 0.005).map((j) => `${called([...seen.text][j])} at ${j} (${show(weights[j], 2)})`);
      said.set(`After ${called([...seen.text][at])} at ${at} the likeliest character is ${called(characters[order[0]])}, ${show(p[order[0]], 3)}${
        other ? `; before the change ${called(characters[falling(was)[0]])}, ${show(Math.max(...was), 3)}` : ""}. Head ${layer}.${head} looks at ${looks.join(" and ")}.`);
    }

    drawControls();
    const names = ["text", "other", "token", "layer", "head", "off", "patch", "temperature", "top_k", "top_p", "seed", "asked"];
    const changed = () => {
      if (get("asked") && !worker) open();
      drawControls();
      look();
      drawToken();
    };
    for (const key of names) model.on(`change:${key}`, changed);
    if (get("asked")) open();
    return () => {
      ended = true;
      for (const key of names) model.off(`change:${key}`, changed);
      removeEventListener("pointermove", drag);
      removeEventListener("pointerup", drop);
      worker?.end();
    };
  },
};

// The same text is what the worker runs.
if (typeof document === "undefined") {
  const answer = servant((told) => postMessage(told), uniform, 50);
  onmessage = ({ data }) => answer(data);
  postMessage({ kind: "here" });
}
