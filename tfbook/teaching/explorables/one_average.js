import { follow, h, reading, show, slider, stat, summary, titled } from "./shared.js";

const REACH = 2; // of a bar, to both sides
const at = (x) => 200 + (200 * x) / REACH; // in a box 400 wide

export default {
  render({ model, el }) {
    const data = model.get("data");
    const [first, second] = data.words;
    const weight = slider(model, "weight", {
      label: `Weight of ${first}`, min: 0, max: 20, read: (i) => i / 20, write: (x) => Math.round(20 * x),
      text: (x) => `${show(x, 2)}, so ${second} has ${show(1 - x, 2)}`,
    });
    const factor = slider(model, "factor", {
      label: "Number behind the average", min: -20, max: 20, read: (i) => i / 10, write: (x) => Math.round(10 * x),
      text: (x) => show(x, 1),
    });
    const rows = [[first, 1, "first"], [second, -1, "second"]].map(([word, wanted, name]) => {
      const value = reading(name, 2);
      const bar = h("rect", { y: 6, height: 18 });
      const picture = h("svg", { viewBox: "0 0 400 30", preserveAspectRatio: "none", "aria-hidden": "true" },
        h("line", { class: "tfx-axis", x1: at(0), x2: at(0), y1: 0, y2: 30 }), bar,
        h("line", { class: "tfx-wanted", x1: at(wanted), x2: at(wanted), y1: 0, y2: 30 }));
      const node = h("tr", {}, h("th", { scope: "row" }, word), h("td", {}, wanted > 0 ? "+1" : "−1"), h("td", {}, value.node),
        h("td", { class: "tfx-wide" }, picture));
      const set = (x) => {
        value.set(x);
        bar.setAttribute("x", at(Math.min(x, 0)));
        bar.setAttribute("width", at(Math.abs(x)) - at(0));
        bar.dataset.sign = x < 0 ? "-" : "+";
      };
      return { node, set };
    });
    const table = h("table", { class: "tfx-table tfx-signed" },
      h("thead", {}, h("tr", {}, ["how much of", "wanted", "returned", "line: wanted"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map((r) => r.node)));
    const error = stat("error", "error", 2);
    error.note.textContent = "returning nothing: 1";
    const least = stat("least", "smallest so far", 2);
    least.note.textContent = "of all you tried";
    const said = summary();
    el.classList.add("tfx");
    el.append(h("div", { class: "tfx-card", role: "group", "aria-label": data.title },
      titled(data.title),
      h("div", { class: "tfx-columns" },
        h("div", { class: "tfx-stack" }, weight.node, factor.node),
        h("div", { class: "tfx-stack" }, table, h("div", { class: "tfx-stats tfx-two" }, error.node, least.node))),
      said.node));

    let best = Infinity;
    const draw = () => {
      const [a, c] = [model.get("weight"), model.get("factor")];
      [weight, factor].forEach((control) => control.update());
      const got = [a * c, (1 - a) * c];
      const now = ((got[0] - 1) ** 2 + (got[1] + 1) ** 2) / 2;
      best = Math.min(best, now);
      rows.forEach((row, i) => row.set(got[i]));
      error.set(now);
      least.set(best);
      said.set(`The head returns ${show(got[0], 2)} of ${first} and ${show(got[1], 2)} of ${second}: the error is ${show(now, 2)}.`);
    };
    return follow(model, ["weight", "factor"], draw);
  },
};
