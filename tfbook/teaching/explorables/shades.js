// A map of weights without names, drawn in shades. `module_source` in _base.py puts this text in place
// of the import.
import { h } from "./shared.js";

/** How strongly a weight is filled: 0.01 shall be seen. */
export const visible = Math.sqrt;

/** One path for each shade, made of runs of cells: far fewer nodes than a rectangle for each cell. */
export function shades(rows, levels = 8) {
  const paths = Array.from({ length: levels + 1 }, () => []);
  rows.forEach((row, i) => {
    const shade = Array.from(row, (w) => Math.round(levels * visible(w)));
    for (let j = 0; j < shade.length; ) {
      let end = j + 1;
      while (end < shade.length && shade[end] === shade[j]) end++;
      paths[shade[j]].push(`M${j} ${i}h${end - j}v1h${j - end}z`);
      j = end;
    }
  });
  return paths.map((d, shade) => shade && d.length
    ? h("path", { d: d.join(""), class: "tfx-shade", style: { "--heat": `${(100 * shade) / levels}%` } }) : null).filter(Boolean);
}
