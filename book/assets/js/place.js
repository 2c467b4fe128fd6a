// A reader's place: which sections were read to their end and which questions answered, kept by the
// browser on the reader's own machine, ticked in "On this page", told on the welcome page and on
// the list of exercises.
(() => {
  const KEY = "tfbook:page:";
  const nameOf = (href) => new URL(href, location.href).pathname.match(/\/chapters\/([^/]+)\.html$/)?.[1];
  const recall = (name) => {
    try {
      return JSON.parse(localStorage.getItem(KEY + name)) || {};
    } catch {
      return {}; // nothing is kept here, or it cannot be read
    }
  };
  const keep = (name, place) => {
    try {
      localStorage.setItem(KEY + name, JSON.stringify(place));
    } catch {
      // Full, or refused: the place holds as long as the page.
    }
  };
  const make = (tag, attributes, ...children) => {
    const node = Object.assign(document.createElement(tag), attributes);
    node.append(...children);
    return node;
  };

  // ------------------------------------------------------------------ in a chapter
  const follow = (name) => {
    const sections = [...document.querySelectorAll(".bd-article > section > section[id]")];
    const ids = sections.map((section) => section.id);
    const questions = document.querySelectorAll(':is([data-module="quiz"], [data-module="predict"], [data-module="explain"])').length;
    const before = recall(name);
    const read = new Set((before.read || []).filter((id) => ids.includes(id)));
    const answered = new Set(before.answered || []);
    const say = () => {
      for (const id of read) {
        const link = document.querySelector(`.page-toc a[href="#${CSS.escape(id)}"]`);
        if (!link || link.querySelector(".tfbook-tick")) continue;
        link.append(make("span", { className: "tfbook-tick" }, " ✓", make("span", { className: "tfbook-unseen" }, " read")));
      }
    };
    const save = () => {
      const next = sections.find((section) => !read.has(section.id));
      const heading = [...(next?.querySelector("h2")?.childNodes || [])];
      const title = heading.filter((node) => !node.matches?.(".headerlink")).map((node) => node.textContent).join("").trim();
      keep(name, { read: [...read], answered: [...answered], sections: ids.length, questions, next: next?.id, title });
      say();
    };
    // The last piece of a section tells that it was read: it has been on the screen.
    const seen = new IntersectionObserver((entries) => {
      const ends = entries.filter((entry) => entry.isIntersecting);
      ends.forEach((entry) => {
        read.add(entry.target.closest(".bd-article > section > section").id);
        seen.unobserve(entry.target);
      });
      if (ends.length) save();
    });
    for (const section of sections) {
      let end = section;
      while (end.lastElementChild?.matches("section")) end = end.lastElementChild;
      seen.observe(end.lastElementChild || end);
    }
    addEventListener("tfbook-answer", ({ detail: { slug, done } }) => {
      answered[done ? "add" : "delete"](slug);
      save();
    });
    say();
  };

  // ------------------------------------------------------------------ on the welcome page
  const tell = (list) => {
    const links = [...list.querySelectorAll("a[href]")].filter((link) => nameOf(link.href));
    const told = [];
    for (const link of links) {
      const place = recall(nameOf(link.href));
      if (!place.sections || !(place.read?.length || place.answered?.length)) continue;
      const parts = [`${place.read.length} of ${place.sections} sections read`];
      if (place.questions) parts.push(`${place.answered.length} of ${place.questions} questions answered`);
      const line = make("span", { className: "tfbook-place" }, `${link.textContent}: ${parts.join(", ")}`);
      if (place.next) line.append(". ", make("a", { href: `${link.href}#${place.next}` }, `Go on: ${place.title || "next section"}`));
      link.closest("p").append(line);
      told.push(line);
    }
    if (!told.length) return;
    const forget = make("button", { type: "button", className: "tfbook-forget" }, "Forget where I am");
    forget.addEventListener("click", () => {
      Object.keys(localStorage).filter((key) => key.startsWith(KEY)).forEach((key) => localStorage.removeItem(key));
      told.forEach((line) => line.remove());
      forget.parentElement.textContent = "Forgotten.";
    });
    const note = "Your place is kept by this browser only. ";
    list.after(make("p", { className: "tfbook-place", role: "status" }, note, forget));
  };

  // ------------------------------------------------------------------ on the list of exercises
  const count = (link) => {
    const place = recall(nameOf(link.href));
    if (!place.answered?.length) return;
    const told = `${place.answered.length} of ${place.questions} answered`;
    link.after(make("span", { className: "tfbook-place" }, told));
  };

  const start = () => {
    const name = nameOf(location.href);
    if (name) follow(name);
    document.querySelectorAll(".tfbook-chapters").forEach(tell);
    document.querySelectorAll(".tfbook-questions a").forEach(count);
  };
  if (document.readyState === "complete") start();
  else addEventListener("load", start);
})();
