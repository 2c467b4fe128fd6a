// What is folded stands in a `noscript`, as text: its elements are made when the fold is opened, or
// when a link points into it.
(() => {
  const LATER = "#main-content details > noscript";
  let made = 0;

  const addCopyButton = (pre) => {
    pre.id ||= `folded-code-${++made}`;
    const pattern = document.querySelector("button.copybtn");
    if (!pattern) return;
    const button = pattern.cloneNode(true);
    button.dataset.clipboardTarget = `#${pre.id}`;
    pre.after(button);
  };

  const fill = (fold) => {
    const later = fold.querySelector(":scope > noscript");
    if (!later) return;
    const range = document.createRange();
    range.selectNode(later);
    const parts = range.createContextualFragment(later.textContent);
    const codes = [...parts.querySelectorAll("div.highlight pre")];
    later.replaceWith(parts);
    codes.forEach(addCopyButton);
    fold.dispatchEvent(new Event("tfbook-filled", { bubbles: true }));
  };

  // The element of an id, made if it is folded away.
  const find = (id) => {
    const there = document.getElementById(id);
    if (there) return there;
    const mark = `id="${id}"`;
    const later = [...document.querySelectorAll(LATER)].find((each) => each.textContent.includes(mark));
    if (later) fill(later.parentElement);
    return document.getElementById(id);
  };

  document.addEventListener("click", ({ target }) => {
    const summary = target.closest?.("summary");
    if (summary) fill(summary.parentElement);
  }, true);
  document.addEventListener("toggle", ({ target }) => target.open && fill(target), true);
  window.tfbookFolds = { find };
})();
