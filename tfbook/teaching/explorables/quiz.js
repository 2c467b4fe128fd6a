import { follow, h } from "./shared.js";
import { answerFields, foreseen, near, posed, report, voice } from "./asking.js";

export default {
  render({ model, el }) {
    const data = model.get("data");
    const said = voice({ right: "Right.", wrong: "Not yet." });
    const asked = answerFields(data, said.clear);
    const wrong = (answer, field) => foreseen(answer, field) || `Your number is too ${answer > field.target ? "large" : "small"}.`;

    const judge = (answer) => {
      if (data.kind === "choice") {
        const choice = data.choices[answer];
        said.tell(choice.correct ? "right" : "wrong", choice.feedback);
        return choice.correct;
      }
      const fields = data.numbers || [data];
      const numbers = [answer].flat();
      const right = fields.map((field, i) => near(numbers[i], field));
      if (right.every(Boolean)) said.tell("right", data.explanation);
      else if (!data.numbers) said.tell("wrong", wrong(answer, data));
      else said.tell("wrong", fields.map((f, i) => `${f.name}: ${right[i] ? "right." : wrong(numbers[i], f)}`).join(" "));
      return right.every(Boolean);
    };
    const submit = (event) => {
      event.preventDefault();
      const answer = asked.read();
      if (answer === null) {
        said.tell("ask", asked.missing);
        (asked.inputs.find((i) => i.type === "radio" || !i.value.trim()) || asked.inputs[0]).focus();
        return;
      }
      model.set("answer", answer);
      model.save_changes();
      if (judge(answer)) report(el, data.slug);
    };

    el.classList.add("tfx");
    el.append(h("form", { class: "tfx-card tfx-question tfx-quiz", "data-slug": data.slug, onsubmit: submit },
      h("fieldset", {}, h("legend", {}, h("span", { class: "tfx-tag" }, "Quiz"), posed(data.question)), asked.nodes),
      h("button", { type: "submit", class: "tfx-button" }, "Check"), said.node));

    // An answer given before, or set from Python.
    return follow(model, ["answer"], () => {
      const answer = model.get("answer");
      if (answer === null || answer === undefined) return;
      asked.put(answer);
      judge(answer);
    });
  },
};
