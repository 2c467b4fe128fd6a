import { h, prose } from "./shared.js";

// "0,5" and "1/8" are numbers too.
function parse(text) {
  const parts = text.trim().replace(/,/g, ".").replace(/−/g, "-").split("/");
  const numbers = parts.map((p) => (/^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(p) ? Number(p) : NaN));
  const value = parts.length === 2 ? numbers[0] / numbers[1] : numbers[0];
  return parts.length <= 2 && Number.isFinite(value) ? value : null;
}

export default {
  render({ model, el }) {
    const data = model.get("data");
    // Always there: screen readers follow a region only if it stood there before it spoke.
    const told = h("div", { role: "status" });
    const tell = (kind, text) => {
      const word = { right: "Right. ", wrong: "Not yet. ", ask: "" }[kind];
      told.replaceChildren(h("p", { class: "tfx-feedback", "data-kind": kind }, h("strong", {}, word), prose(text)));
    };
    const clear = () => told.replaceChildren();

    const inputs = [];
    let fields;
    if (data.kind === "choice") {
      fields = data.choices.map((choice, i) => {
        const input = h("input", { type: "radio", name: "choice", value: i, onchange: clear });
        inputs.push(input);
        return h("label", { class: "tfx-choice" }, input, h("span", {}, prose(choice.text)));
      });
    } else {
      const input = h("input", {
        type: "text", inputmode: "decimal", autocomplete: "off", class: "tfx-field", oninput: clear,
        "aria-label": data.unit ? `Your number, in ${data.unit}` : "Your number",
      });
      inputs.push(input);
      fields = [h("span", { class: "tfx-answer" }, input, data.unit ? h("span", {}, data.unit) : null)];
    }

    const judge = (answer) => {
      if (data.kind === "choice") {
        const choice = data.choices[answer];
        tell(choice.correct ? "right" : "wrong", choice.feedback);
      } else if (Math.abs(answer - data.target) <= data.tolerance) {
        tell("right", data.explanation);
      } else {
        const near = data.feedback.find((f) => Math.abs(answer - f.value) <= data.tolerance);
        tell("wrong", near ? near.text : `Your number is too ${answer > data.target ? "large" : "small"}.`);
      }
    };
    const submit = (event) => {
      event.preventDefault();
      const chosen = inputs.findIndex((i) => i.checked);
      const answer = data.kind === "number" ? parse(inputs[0].value) : chosen < 0 ? null : chosen;
      if (answer === null) {
        tell("ask", data.kind === "number" ? "Type a number, for instance 0.25 or 1/4." : "Choose one of the answers first.");
        inputs[0].focus();
        return;
      }
      model.set("answer", answer);
      model.save_changes();
      judge(answer);
    };

    el.classList.add("tfx");
    el.append(h("form", { class: "tfx-card tfx-quiz", "data-slug": data.slug, onsubmit: submit },
      h("fieldset", {}, h("legend", {}, h("span", { class: "tfx-tag" }, "Quiz"), h("span", {}, prose(data.question))), fields),
      h("button", { type: "submit", class: "tfx-button" }, "Check"), told));

    // An answer given before, or set from Python.
    const draw = () => {
      const answer = model.get("answer");
      if (answer === null || answer === undefined) return;
      if (data.kind === "choice") inputs[answer].checked = true;
      else if (parse(inputs[0].value) !== answer) inputs[0].value = String(answer);
      judge(answer);
    };
    draw();
    model.on("change:answer", draw);
    return () => model.off("change:answer", draw);
  },
};
