// Small repairs of the theme for keyboards and screen readers. Nothing here is needed to read.
(() => {
  // A box that scrolls sideways has to be reachable by keyboard, and to say what it is.
  const boxes = "pre, .pst-scrollable-table-container, .cell_output > .output, .tfbook-formula, a.image-reference";
  const name = (box) => {
    if (box.matches(".tfbook-formula")) return "Formula";
    if (box.closest(".cell_output")) return "Output";
    return box.matches("pre") ? "Code" : "Table";
  };
  // To ask for the width of a box lays the page out, so a few boxes have their turn at a time.
  let waiting = [];
  const mark = () => {
    if (!waiting.length) setTimeout(markSome);
    waiting = [...document.querySelectorAll(`#main-content :is(${boxes})`)];
  };
  const markSome = () => {
    const start = performance.now();
    while (waiting.length && performance.now() - start < 12) {
      const box = waiting.shift();
      const high = !box.matches(".tfbook-formula") && box.scrollHeight > box.clientHeight + 1;
      if (!high && box.scrollWidth <= box.clientWidth + 1) {
        if (box.dataset.scrolls !== undefined) box.removeAttribute("tabindex");
        delete box.dataset.scrolls;
        continue;
      }
      box.dataset.scrolls = "";
      if (box.matches("a")) continue; // a link can be reached, and has the words of its picture
      box.tabIndex = 0;
      if (!box.hasAttribute("role")) box.setAttribute("role", "group");
      if (!box.hasAttribute("aria-label")) box.setAttribute("aria-label", name(box));
    }
    if (waiting.length) setTimeout(markSome, 16);
  };

  // A link to a claim or an exercise may point into a folded part: open it.
  const unfold = () => {
    const target = location.hash && window.tfbookFolds.find(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let part = target; part; part = part.parentElement) {
      if (part.tagName === "DETAILS") part.open = true;
    }
    hold(target);
  };

  // What stands above a place grows when it is laid out and its figures begin to live: the place is
  // held until that is over, or the reader moves on.
  const hold = (target) => {
    const until = performance.now() + 1500;
    let held = true;
    const free = () => (held = false);
    for (const moved of ["wheel", "touchstart", "pointerdown", "keydown"]) addEventListener(moved, free, { once: true, passive: true });
    const keep = () => {
      if (!held || performance.now() > until) return;
      target.scrollIntoView();
      requestAnimationFrame(keep);
    };
    keep();
  };

  // The colour switch says which mode is on.
  const names = { light: "light", dark: "dark", auto: "as the system" };
  const say = () => {
    const mode = names[document.documentElement.dataset.mode] || names.auto;
    for (const button of document.querySelectorAll(".theme-switch-button")) {
      button.setAttribute("aria-label", `Colours: ${mode}`);
    }
  };

  // "On this page" follows the scroll. The theme watches headings as they come into sight, and keeps
  // the wrong one after a jump or a fast scroll; it does not begin where it does not find the list.
  const follow = () => {
    const nav = document.querySelector("#pst-page-toc-nav");
    const links = [...(nav?.querySelectorAll('a[href^="#"]') || [])];
    const places = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
    if (!links.length) return;
    nav.removeAttribute("id");
    addEventListener("load", () => setTimeout(() => (nav.id = "pst-page-toc-nav"))); // the theme has looked
    let asked = false;
    const look = () => {
      asked = false;
      const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
      const passed = places.map((place) => place && place.getBoundingClientRect().top < 0.3 * innerHeight);
      const at = atEnd ? links.length - 1 : passed.lastIndexOf(true);
      links.forEach((link, i) => {
        link.classList.toggle("active", i === at);
        if (i === at) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
      nav.querySelectorAll(".toc-entry").forEach((entry) => entry.classList.toggle("active", entry.contains(links[at] || null)));
      const [list, link] = [links[at]?.closest(".bd-sidebar-secondary"), links[at]];
      if (list) list.scrollTop += Math.min(0, link.getBoundingClientRect().top - list.getBoundingClientRect().top - 60)
        + Math.max(0, link.getBoundingClientRect().bottom - list.getBoundingClientRect().bottom + 60);
    };
    const later = () => {
      if (!asked) requestAnimationFrame(look);
      asked = true;
    };
    addEventListener("scroll", later, { passive: true });
    addEventListener("load", later);
    new ResizeObserver(later).observe(document.body); // a window or a figure of another size
  };

  follow();
  say();
  if (document.documentElement.dataset.page === "search") document.querySelector(".bd-article-container .bd-search input, form.bd-search input")?.focus();
  new MutationObserver(say).observe(document.documentElement, { attributeFilter: ["data-mode"] });
  addEventListener("hashchange", unfold);
  addEventListener("load", () => {
    mark();
    unfold();
  });
  let soon;
  const markSoon = () => {
    clearTimeout(soon);
    soon = setTimeout(mark, 500);
  };
  // The text gets its width later than the window, while the list of pages slides beside it.
  let broad = 0;
  const widened = new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width !== broad) markSoon();
    broad = contentRect.width;
  });
  addEventListener("load", () => {
    const main = document.getElementById("main-content");
    new MutationObserver(markSoon).observe(main, { subtree: true, childList: true });
    widened.observe(main);
  });
  document.addEventListener("tfbook-opened", mark);
  document.addEventListener("toggle", mark, true);
  document.addEventListener("click", ({ target }) => target.closest("[data-print]") && print());
})();
