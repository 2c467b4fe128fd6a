import { chart, follow, grouped, h, listed, slider, stat, summary, titled } from "./shared.js";

const ROWS = 6; // merges listed at once
// GPT-2's pieces, as in tfbook/data/tokenizers.py; \s of a browser is another set of characters.
const PIECES = /'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** Replace each pair by the new id, from the left. */
function join(ids, [left, right], id) {
  const found = [];
  for (let i = 0; i < ids.length; i++) {
    if (ids[i] === left && ids[i + 1] === right) {
      found.push(id);
      i++;
    } else found.push(ids[i]);
  }
  return found;
}

// Signs alone on a token get a name for those who listen.
const ALONE = { "␣": " ", "⏎": "\n", "⇥": "\t" };
const face = (name) => (ALONE[name] ? listed(ALONE[name]) : name);

export default {
  render({ model, el }) {
    const data = model.get("data");
    const { merges, names, longest } = data;
    const first = data.bytes.length;
    const place = [];
    data.bytes.forEach((byte, i) => (place[byte] = i));
    const save = (values) => {
      for (const [key, value] of Object.entries(values)) model.set(key, value);
      model.save_changes();
    };

    /** The pieces of a text, each as ids of its bytes. */
    const cut = (text) => [...text.matchAll(PIECES)].map(([piece]) => [...new TextEncoder().encode(piece)].map((byte) => place[byte]));
    const size = (pieces) => pieces.reduce((n, ids) => n + ids.length, 0);
    // Merges in the order in which they were learned: a pair that holds a new token came later.
    const merged = (pieces, n) => pieces.map((ids) => join(ids, merges[n], first + n));
    let known = { text: null };
    const counted = (text) => {
      if (known.text === text) return known;
      let pieces = cut(text);
      const bytes = size(pieces);
      const counts = [bytes];
      merges.forEach((_, n) => {
        pieces = merged(pieces, n);
        counts.push(size(pieces));
      });
      known = { text, counts, bytes };
      return known;
    };

    // ------------------------------------------------------------------ controls
    const field = h("textarea", {
      class: "tfx-field tfx-long", rows: 2, "data-control": "text", spellcheck: "false", autocapitalize: "off", autocomplete: "off",
      "data-lm-suppress-shortcuts": "true",
      oninput: () => {
        // Half of a surrogate pair is no character, and UTF-8 cannot write it.
        const typed = [...field.value].map((c) => (/\p{Surrogate}/u.test(c) ? "\ufffd" : c));
        const kept = typed.slice(0, longest).join("");
        if (kept !== field.value) field.value = kept;
        save({ text: kept });
      },
    });
    const examples = h("div", { class: "tfx-chips" }, data.texts.map((text, i) =>
      h("button", { type: "button", class: "tfx-chip", "data-control": `text[${i}]`, onclick: () => save({ text }) }, text)));
    const applied = slider(model, "merges", { label: "Merges applied", min: 0, max: merges.length, text: String });
    const step = (name, label, to, kind = "tfx-chip") => h("button", {
      type: "button", class: kind, "data-control": name, onclick: () => save({ merges: Math.min(merges.length, Math.max(0, to(model.get("merges")))) }),
    }, label);
    // The next merge, or the one before, that finds its pair in this text.
    const next = (now, way) => {
      const { counts } = counted(model.get("text"));
      for (let n = now + way; n >= 0 && n <= merges.length; n += way) {
        if (way > 0 ? counts[n] < counts[n - 1] : counts[n] > (counts[n + 1] ?? -1)) return n;
      }
      return way > 0 ? merges.length : 0;
    };
    const buttons = h("div", { class: "tfx-chips" },
      step("next_here", "Next merge in this text", (n) => next(n, 1), "tfx-button"), step("back_here", "Back in this text", (n) => next(n, -1)),
      step("next", "Next merge", (n) => n + 1), step("none", "None", () => 0), step("all", "All", () => merges.length));

    // ------------------------------------------------------------------ what is shown
    const tokens = h("div", { class: "tfx-pieces", role: "group", "aria-label": "Tokens, each with its number" });
    const list = h("tbody", {});
    const table = h("table", { class: "tfx-table tfx-scanned" },
      h("thead", {}, h("tr", {}, ["merge", "joined", "token", "here"].map((t) => h("th", { scope: "col" }, t)))), list);
    const cursor = h("line", { class: "tfx-cursor", y1: 0, y2: 100 });
    const line = h("polyline", { class: "tfx-line tfx-scaled", "data-name": "curve" });
    const level = h("line", { class: "tfx-weights" });
    const plot = chart(cursor, level, line);
    const mark = h("span", { class: "tfx-mark tfx-scaled" });
    plot.node.append(mark);
    const figure = h("figure", { class: "tfx-curve" },
      h("figcaption", {}, h("strong", {}, "Tokens over the merges. "), h("span", { class: "tfx-key" }, "tokens of this text"), " ",
        h("span", { class: "tfx-key tfx-weights" }, "its characters")), plot.node);
    const stats = {
      characters: stat("characters", "characters", grouped), bytes: stat("bytes", "bytes", grouped),
      count: stat("count", "tokens", grouped), ratio: stat("ratio", "bytes in a token", 2),
    };
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("label", { class: "tfx-control" }, h("span", { class: "tfx-label" }, "Your text"), field), examples,
      applied.node, buttons, tokens,
      h("div", { class: "tfx-stats tfx-four" }, Object.values(stats).map((s) => s.node)),
      h("div", { class: "tfx-columns tfx-even" }, table, figure), said.node));

    const draw = () => {
      applied.update();
      const [text, n] = [model.get("text"), model.get("merges")];
      if (field.value !== text) field.value = text;
      const { counts, bytes } = counted(text);
      let pieces = cut(text);
      for (let i = 0; i < n; i++) pieces = merged(pieces, i);
      const newest = n ? first + n - 1 : -1;
      let at = 0;
      tokens.replaceChildren(...pieces.map((ids) => h("span", { class: "tfx-piece" }, ids.map((id) => h("span", {
        class: id === newest ? "tfx-bytes tfx-new" : "tfx-bytes", "data-tint": at % 3, "data-name": `token[${at++}]`, "data-value": id,
      }, h("span", {}, face(names[id])), h("small", {}, String(id)))))));
      list.replaceChildren(...Array.from({ length: Math.min(ROWS, merges.length) }, (_, i) => {
        // The last one applied stands in the middle, if there are enough before it.
        const k = Math.min(Math.max(n - ROWS / 2, 1), Math.max(1, merges.length - ROWS + 1)) + i;
        const [left, right] = merges[k - 1];
        const places = counts[k - 1] - counts[k];
        return h("tr", { class: k > n ? "tfx-later" : k === n ? "tfx-best" : "" },
          h("th", { scope: "row" }, String(k)), h("td", { class: "tfx-word" }, `${names[left]} + ${names[right]}`),
          h("td", { class: "tfx-word" }, names[first + k - 1]), h("td", { class: "tfx-number", "data-name": `places[${k}]`, "data-value": places }, places ? `${places}×` : "·"));
      }));
      const top = Math.max(1, bytes);
      const characters = [...text].length;
      plot.frame([0, merges.length], [0, 1.05 * top], [0, 0.25, 0.5, 0.75, 1].map((x) => Math.round(x * merges.length)), [0, Math.round(top / 2), top]);
      plot.points(line, counts.map((c, i) => [i, c]));
      plot.place(mark, n, counts[n]);
      for (const [key, value] of Object.entries({ x1: 0, x2: 100, y1: plot.up(characters), y2: plot.up(characters) })) level.setAttribute(key, value);
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.at(n));
      stats.characters.set(characters);
      stats.bytes.set(bytes);
      stats.bytes.note.textContent = bytes > characters ? `${bytes - characters} more than characters` : "one a character";
      stats.count.set(counts[n]);
      stats.count.note.textContent = `after ${grouped(n)} of ${grouped(merges.length)} merges`;
      if (counts[n]) stats.ratio.set(bytes / counts[n]);
      else stats.ratio.clear();
      let words = `${grouped(counts[n])} tokens after ${grouped(n)} merges.`;
      if (n) {
        const [left, right] = merges[n - 1];
        const places = counts[n - 1] - counts[n];
        words += ` The last one joins ${names[left]} and ${names[right]} to ${names[newest]}, ${places ? `in ${places} place${places > 1 ? "s" : ""}` : "which are not together"} here.`;
      }
      said.set(words);
    };
    return follow(model, ["text", "merges"], draw);
  },
};
