import { follow, h, prose } from "./shared.js";
import { hand, memory, posed, report, voice } from "./asking.js";

export default {
  render({ model, el }) {
    const data = model.get("data");
    const kept = memory(data.slug);
    const said = voice({});
    const set = (values) => {
      for (const [name, value] of Object.entries(values)) model.set(name, value);
      model.save_changes();
      kept.set({ text: model.get("text"), marks: model.get("marks"), compared: model.get("compared") });
    };

    const field = h("textarea", {
      class: "tfx-field tfx-long", rows: 5, maxlength: data.most,
      oninput: () => { said.clear(); set({ text: field.value }); },
      // JupyterLab takes line breaks from fields in its cells.
      onkeydown: (e) => {
        if (e.key !== "Enter" || e.ctrlKey || e.metaKey || !field.closest(".jp-Cell")) return;
        e.preventDefault();
        document.execCommand("insertText", false, "\n");
      },
    });
    const button = h("button", { type: "submit", class: "tfx-button" }, "Compare with a model answer");
    const marks = data.rubric.map((line, i) => {
      const input = h("input", {
        type: "checkbox",
        onchange: () => {
          set({ marks: model.get("marks").map((mark, j) => (j === i ? input.checked : mark)) });
          report(el, data.slug, model.get("marks").every(Boolean));
        },
      });
      return { input, node: h("label", { class: "tfx-choice" }, input, h("span", {}, prose(line))) };
    });
    const count = h("p", { class: "tfx-note", role: "status" });
    const solution = h("div", { class: "tfx-model", role: "group", "aria-label": "A model answer" },
      h("p", { class: "tfx-label" }, "A model answer"), h("p", {}, prose(data.model)));
    const rubric = h("fieldset", {}, h("legend", { class: "tfx-label" }, "Mark what your answer says"), marks.map((m) => m.node), count);
    const comparison = h("div", { class: "tfx-stack" }, solution, rubric);

    const submit = (event) => {
      event.preventDefault();
      if (!model.get("text").trim()) {
        said.tell("ask", "Write your answer first, a sentence or two.");
        field.focus();
        return;
      }
      set({ compared: true });
      hand(solution); // the button is gone, and what comes is to be read
    };

    el.classList.add("tfx");
    el.append(h("form", { class: "tfx-card tfx-question tfx-explain", "data-slug": data.slug, onsubmit: submit },
      h("label", { class: "tfx-asked" }, h("span", { class: "tfx-tag" }, "Explain"), posed(data.question), field),
      button, said.node, comparison));

    const old = kept.get();
    if (!model.get("text") && typeof old?.text === "string" && old.marks?.length === data.rubric.length)
      set({ text: old.text, marks: old.marks.map(Boolean), compared: Boolean(old.compared) });

    return follow(model, ["text", "marks", "compared"], () => {
      const now = model.get("marks");
      if (field.value !== model.get("text")) field.value = model.get("text");
      marks.forEach((m, i) => (m.input.checked = now[i]));
      button.hidden = model.get("compared");
      comparison.hidden = !model.get("compared");
      count.textContent = now.every(Boolean) ? "All three: well explained." : `${now.filter(Boolean).length} of ${now.length}`;
    });
  },
};
