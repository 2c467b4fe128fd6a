import { follow, h } from "./shared.js";
import { answerFields, foreseen, hand, memory, near, posed, report, voice } from "./asking.js";

export default {
  render({ model, el }) {
    const data = model.get("data");
    const kept = memory(data.slug);
    const said = voice({ kept: "Kept:", right: "As you said.", other: "It went otherwise." });
    const asked = answerFields(data, said.clear);
    // In the page the experiment's outputs are folded below, in one fold or more; elsewhere the reader runs it.
    const folds = [...document.querySelectorAll(`details[data-predict="${data.slug}"]`)];
    const fold = folds[0];

    const button = h("button", { type: "submit", class: "tfx-button" });
    const offer = (text) => {
      button.hidden = !text;
      button.textContent = text;
    };
    const fieldset = h("fieldset", {},
      h("legend", {}, h("span", { class: "tfx-tag" }, "Predict first"), posed(data.question)), asked.nodes);

    const quoted = (answer) => data.kind === "choice"
      ? `“${data.choices[answer].text.replace(/\.$/, "")}”`
      : `${String(answer).replace("-", "−")}${data.unit ? ` ${data.unit}` : ""}`;
    const compare = () => {
      const answer = model.get("answer");
      offer("");
      if (data.kind === "choice") {
        const choice = data.choices[answer];
        said.add(choice.correct ? "right" : "other", choice.feedback);
      } else if (near(answer, data)) said.add("right", data.explanation);
      else said.add("other", [foreseen(answer, data), data.explanation].filter(Boolean).join(" "));
    };

    const fits = (answer) => (data.kind === "choice" ? Boolean(data.choices[answer]) : typeof answer === "number");
    const given = () => model.get("answer") ?? null;
    const submit = (event) => {
      event.preventDefault();
      if (given() !== null) {
        hand(said.node); // the button goes
        return compare();
      }
      const answer = asked.read();
      if (answer === null) {
        said.tell("ask", asked.missing);
        asked.inputs[0].focus();
        return;
      }
      hand(said.node); // fields and button are about to be closed
      model.set("answer", answer);
      model.save_changes();
      report(el, data.slug);
    };

    el.classList.add("tfx");
    el.append(h("form", { class: "tfx-card tfx-question tfx-predict", "data-slug": data.slug, onsubmit: submit },
      fieldset, button, said.node));

    if (given() === null && fits(kept.get())) {
      model.set("answer", kept.get());
      model.save_changes();
    }
    return follow(model, ["answer"], () => {
      const answer = given();
      fieldset.disabled = answer !== null;
      said.clear();
      if (answer === null) return offer("Keep my prediction");
      asked.put(answer);
      kept.set(answer);
      said.tell("kept", `you said ${quoted(answer)}.`);
      if (!fold) return offer("Compare");
      offer("");
      if (fold.open) return compare();
      fold.addEventListener("toggle", compare, { once: true });
      for (const each of folds) each.open = true;
    });
  },
};
