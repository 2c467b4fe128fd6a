// The article as it stands on paper: what is folded is out, answers and solutions come at its end,
// figures keep the picture they show. A reader's browser prints this copy in the place of the
// article, in light colours; `book/tools/leaves.py` takes it for the PDF and for the EPUB.
(() => {
  const root = document.documentElement;
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const each = (node, selector, act) => node.querySelectorAll(selector).forEach(act);

  const QUESTIONS = ["quiz", "predict", "explain"];
  const KINDS = { "Quiz.": "", "Predict first.": "Predict first.", "Explain.": "Explain." };
  const LEFT_OUT = [
    ".headerlink", "script", "button:not(.tfx-bit)", ".tfx-run", ".tfbook-filter", ".tfbook-forget", ".tfbook-place",
    "details.hide:not(.tfbook-prediction, .tfbook-verified)", "details.tfbook-code",
    ".tfbook-check[data-state='todo']", ".tfbook-check details", ".tfx-words", ".tfbook-explorable > noscript",
  ].join(",");

  // A canvas holds no picture in its element.
  const picture = (canvas) => {
    const image = make("img", { class: canvas.className, alt: "", style: canvas.getAttribute("style") || "" });
    image.src = canvas.toDataURL();
    image.width = canvas.clientWidth || canvas.width;
    return image;
  };

  // What a control of a figure is called, and how it stands.
  const stand = (control) => {
    const label = (control.querySelector("legend, .tfx-label") || control.querySelector("span"))?.cloneNode(true);
    label?.querySelector(".tfx-output")?.remove();
    const name = label?.textContent.trim();
    const input = control.querySelector("input, select, textarea");
    const chosen = control.querySelector("fieldset") && control.querySelector("input:checked");
    let value = control.querySelector(".tfx-output")?.textContent || input?.value;
    if (input?.type === "checkbox") value = input.checked ? "yes" : "no";
    if (input?.tagName === "SELECT") value = input.selectedOptions[0]?.textContent;
    if (chosen) value = chosen.parentElement.textContent;
    return [name, (value || "").trim()].filter(Boolean).join(": ");
  };

  // A figure without its controls: how they stand is said in one line below its title.
  const still = (card) => {
    const told = [];
    each(card, ".tfx-control, .tfx-field", (control) => {
      if (!card.contains(control)) return;
      if (control.querySelector(".tfx-options :is(svg, img, .tfx-number, .tfx-mini)")) return; // part of the picture
      if (!control.closest('[hidden]')) told.push(stand(control));
      let empty = control.parentElement;
      control.remove();
      while (empty !== card && !empty.textContent.trim() && !empty.children.length) {
        const above = empty.parentElement;
        empty.remove();
        empty = above;
      }
    });
    each(card, "input, .tfx-chips, p.tfx-label", (part) => part.remove());
    each(card, "button", (part) => part.replaceWith(make("span", { class: part.className }, ...part.childNodes)));
    const line = make("p", { class: "tfx-settings" }, told.filter((each) => each.includes(":")).join(" · "));
    if (line.textContent) (card.querySelector(".tfx-title") || card.firstElementChild)?.after(line);
  };

  // Verifications are one line; what links to one of them finds it there.
  const verified = (fold) => {
    const line = make("p", { class: "tfbook-verified" });
    const told = fold.querySelector("noscript")?.textContent ?? fold.innerHTML;
    for (const [, id] of told.matchAll(/class="tfbook-claim" id="([\w-]+)"/g)) line.append(make("span", { id }));
    line.append("✓ ", fold.querySelector("summary > :last-child").textContent);
    fold.replaceWith(line);
  };

  const numbers = (fold) => {
    const [measured, ...rest] = [...fold.childNodes];
    const says = measured.querySelector(".tfbook-claim-measured") ? [...measured.childNodes, " "] : []; // or just "numbers"
    const told = make("span", { class: "tfbook-claim-numbers" }, ...says, "(", ...rest, ")");
    each(told, ".tfbook-claim-wrong", (wrong) => wrong.removeAttribute("style"));
    const before = rest[0];
    if (before?.nodeType === Node.TEXT_NODE) before.data = before.data.trimStart();
    fold.replaceWith(told);
  };

  // A question with its number; its answer, with the letter of the right choice.
  const question = (host, number, prefix) => {
    const text = host.querySelector(".tfx-text");
    const kind = text.querySelector("strong");
    const answer = text.querySelector("details");
    const [here, there] = [`${prefix}question-${number}`, `${prefix}answer-${number}`];
    const box = make("div", { class: "tfbook-question-asked", id: here });
    kind.replaceChildren(make("a", { href: `#${there}` }, `Question ${number}.`), ` ${KINDS[kind.textContent] ?? ""}`);
    answer.remove();
    answer.querySelector("summary").remove();
    box.append(...text.childNodes);
    host.replaceWith(box);
    const said = answer.querySelector("p");
    const choices = [...box.querySelectorAll("ol[type=a] > li")];
    const right = choices
      .map((choice, at) => [choice.innerHTML, at])
      .filter(([html]) => said.innerHTML.startsWith(html))
      .sort(([a], [b]) => b.length - a.length)[0];
    if (right) {
      const [html, at] = right;
      const rest = said.innerHTML.slice(html.length);
      said.innerHTML = `<strong>${"abcdef"[at]}.</strong> ${html}${/[.!?]$/.test(html) ? "" : "."}${rest}`;
    }
    said.prepend(make("a", { href: `#${here}` }, `Question ${number}.`), " ");
    return make("div", { class: "tfbook-answer", id: there }, ...answer.childNodes);
  };

  // A copy of the article for paper. `prefix` makes what it adds different on each page.
  const leaf = (prefix = "") => {
    const article = document.querySelector("article.bd-article");
    const copy = article.cloneNode(true);
    const drawn = article.querySelectorAll("canvas");
    copy.querySelectorAll("canvas").forEach((canvas, at) => canvas.replaceWith(picture(drawn[at])));
    const lists = article.querySelectorAll("select");
    copy.querySelectorAll("select").forEach((list, at) => (list.selectedIndex = lists[at].selectedIndex));
    each(copy, "details.tfbook-verified", verified);
    each(copy, LEFT_OUT, (part) => part.remove());
    each(copy, "details.tfbook-claim-numbers", numbers);
    const answers = [];
    each(copy, ".tfbook-explorable", (host) => {
      if (QUESTIONS.includes(host.dataset.module)) {
        answers.push(question(host, answers.length + 1, prefix));
        return;
      }
      host.classList.add("tfbook-still");
      const text = host.querySelector(".tfx-text");
      text.removeAttribute("hidden");
      text.removeAttribute("style");
      const card = host.querySelector(":scope > div:not(.tfx-text)");
      if (!card) return;
      still(card);
      // The picture has its title, and its summary says what it shows.
      text.querySelector("p:has(> strong:only-child)")?.remove();
      const said = host.dataset.module !== "stepper" && card.querySelector(".tfx-summary");
      if (said) each(text, "p, ul, ol", (part) => part.textContent.startsWith("In the page") || part.remove());
    });
    each(copy, "details", (fold) => {
      fold.querySelector(":scope > summary")?.remove();
      fold.replaceWith(make("div", { class: fold.className.replace("hide", "").trim() }, ...fold.childNodes));
    });
    each(copy, "img[loading]", (image) => image.removeAttribute("loading"));
    const solutions = [...copy.querySelectorAll("div.solution")];
    const whole = copy.querySelector("section") || copy;
    const end = (name, title, parts) => {
      if (!parts.length) return;
      const heading = make("h2", {}, title);
      whole.append(make("section", { id: `${prefix}${name}`, class: "tfbook-at-the-end" }, heading, ...parts));
    };
    solutions.forEach((solution) => {
      solution.classList.remove("dropdown", "toggle", "toggle-hidden");
      each(solution, ".toggle-hidden", (part) => part.classList.remove("toggle-hidden"));
    });
    end("answers", "Answers to the questions", answers);
    end("solutions", "Solutions of the exercises", solutions);
    // What is empty now would leave a gap.
    each(copy, ".output, .cell_output, .cell", (part) => {
      if (!part.textContent.trim() && !part.querySelector("img, svg")) part.remove();
    });
    return copy;
  };

  let put = null;
  const before = (event, prefix = "") => {
    const article = document.querySelector("article.bd-article");
    if (put || !article) return;
    put = { article, copy: leaf(prefix), theme: root.dataset.theme };
    root.dataset.theme = "light";
    article.before(put.copy);
    article.remove();
  };
  const after = () => {
    if (!put) return;
    put.copy.replaceWith(put.article);
    if (put.theme !== undefined) root.dataset.theme = put.theme;
    put = null;
  };
  addEventListener("beforeprint", before);
  addEventListener("afterprint", after);
  window.tfbookPaper = { lay: (prefix) => before(null, prefix) };
})();
