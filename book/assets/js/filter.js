// A list that is folded by chapter gets a field above it: what is typed there opens the folds and
// leaves the rows that have all of its words.
(() => {
  const start = () => {
    const folds = [...document.querySelectorAll("details.tfbook-rows")];
    if (!folds.length) return;
    const rows = folds.map((fold) => [...fold.querySelectorAll("li")].map((row) => [row, row.textContent.toLowerCase()]));
    const input = Object.assign(document.createElement("input"), { type: "search", autocomplete: "off" });
    const label = document.createElement("label");
    label.textContent = "Filter";
    label.htmlFor = input.id = "tfbook-filter";
    const told = document.createElement("output");
    told.htmlFor = input.id;
    const field = document.createElement("div");
    field.className = "tfbook-filter";
    field.append(label, input, told);
    folds[0].closest("section").before(field);

    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let all = 0;
      folds.forEach((fold, i) => {
        let count = 0;
        for (const [row, text] of rows[i]) {
          row.hidden = !words.every((word) => text.includes(word));
          count += !row.hidden;
        }
        // A heading within the fold says nothing where no row of its group is left.
        for (const group of fold.querySelectorAll("ul")) {
          const empty = !group.querySelector("li:not([hidden])");
          group.hidden = empty;
          if (group.previousElementSibling?.matches(".tfbook-index-section")) group.previousElementSibling.hidden = empty;
        }
        fold.open = words.length > 0 && count > 0;
        fold.closest("section").hidden = count === 0;
        all += count;
      });
      told.textContent = words.length ? `${all} row${all === 1 ? "" : "s"}` : "";
    });
  };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
