import { h, prose } from "./shared.js";
// What a quiz, a prediction and a question in words share: fields, a memory, and word to the page.

/** A number as a reader types it, or null: "0,5" and "1/8" are numbers too. */
export function parse(text) {
  const parts = text.trim().replace(/,/g, ".").replace(/−/g, "-").split("/");
  const numbers = parts.map((p) => (/^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(p) ? Number(p) : NaN));
  const value = parts.length === 2 ? numbers[0] / numbers[1] : numbers[0];
  return parts.length <= 2 && Number.isFinite(value) ? value : null;
}

/** The fields of a question: choices, a number, or several by name. `read()` gives the answer, or
    null where something is missing; `put(answer)` writes one in; `changed` is called by a hand. */
export function answerFields(data, changed) {
  const number = (label, props = {}) => h("input", {
    type: "text", inputmode: "decimal", autocomplete: "off", class: "tfx-field", oninput: changed, "aria-label": label, ...props,
  });
  if (data.kind === "choice") {
    const inputs = data.choices.map((_, i) => h("input", { type: "radio", name: "choice", value: i, onchange: changed }));
    return {
      inputs,
      nodes: data.choices.map((choice, i) => h("label", { class: "tfx-choice" }, inputs[i], h("span", {}, prose(choice.text)))),
      missing: "Choose one of the answers first.",
      read: () => {
        const chosen = inputs.findIndex((i) => i.checked);
        return chosen < 0 ? null : chosen;
      },
      put: (answer) => (inputs[answer].checked = true),
    };
  }
  const fields = data.numbers || [{ name: null }];
  const unit = data.unit || "";
  const inputs = fields.map((f) => number(f.name || (unit ? `Your number, in ${unit}` : "Your number")));
  const read = () => {
    const numbers = inputs.map((i) => parse(i.value));
    return numbers.includes(null) ? null : data.numbers ? numbers : numbers[0];
  };
  return {
    inputs,
    nodes: data.numbers
      ? [h("span", { class: "tfx-answers" }, fields.map((f, i) =>
          h("label", { class: "tfx-answer" }, h("span", {}, prose(f.name), " ="), inputs[i])))]
      : [h("span", { class: "tfx-answer" }, inputs[0], unit ? h("span", {}, unit) : null)],
    missing: data.numbers ? "Type a number into each field, for instance 0.25 or 1/4." : "Type a number, for instance 0.25 or 1/4.",
    read,
    put: (answer) => [answer].flat().forEach((x, i) => {
      if (parse(inputs[i].value) !== x) inputs[i].value = String(x);
    }),
  };
}

/** What is asked, after what is given, which stands in plain type: a long question is no wall. */
export function posed(text) {
  const sentences = text.match(/(?:`[^`]*`|[^`])+?(?:[.:?!]["”’)]*(?=\s|$)\s*|$)/g) ?? [text];
  const asks = sentences.findIndex((sentence) => /\?["”’)]*\s*$/.test(sentence));
  const first = asks < 0 ? sentences.length - 1 : asks;
  return h("span", {},
    first > 0 ? h("span", { class: "tfx-given" }, prose(sentences.slice(0, first).join(""))) : null,
    prose(sentences.slice(first).join("")));
}

export const near = (answer, field) => Math.abs(answer - field.target) <= field.tolerance;
/** What is to be said of one wrong number, or null. */
export const foreseen = (answer, field) =>
  field.feedback.find((f) => Math.abs(answer - f.value) <= field.tolerance)?.text ?? null;

/** The place for what is said. It is always there: screen readers follow a region only if it stood
    there before it spoke. `tell` says one thing alone, `add` one more. */
export function voice(words) {
  const node = h("div", { class: "tfx-voice", role: "status" });
  const line = (kind, text) => h("p", { class: "tfx-feedback", "data-kind": kind }, words[kind] && h("strong", {}, `${words[kind]} `), prose(text));
  return {
    node,
    tell: (kind, text) => node.replaceChildren(line(kind, text)),
    add: (kind, text) => node.append(line(kind, text)),
    clear: () => node.replaceChildren(),
  };
}

/** What the browser remembers of a question; where it may not, nothing. */
export function memory(slug) {
  const key = `tfbook:answer:${slug}`;
  return {
    get: () => {
      try {
        return JSON.parse(localStorage.getItem(key));
      } catch {
        return null;
      }
    },
    set: (value) => {
      try {
        localStorage.setItem(key, JSON.stringify(value));
      } catch {
        // Full, or refused: the answer holds as long as the page.
      }
    },
  };
}

/** Give the focus to what is no control, when the control that had it goes. */
export function hand(node) {
  node.tabIndex = -1;
  node.focus();
}

/** Tell the page, which counts, that a question is answered, or no longer. */
export const report = (el, slug, done = true) =>
  el.dispatchEvent(new CustomEvent("tfbook-answer", { bubbles: true, detail: { slug, done } }));
