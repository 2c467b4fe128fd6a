// The search page: sections, words of the glossary and functions, the best first. Whole words are
// found, and beginnings of words where no whole word is; never the middle of one.
(() => {
  const KINDS = [1, 0.85, 0.7, 1.15, 0.6, 0.3, 0.3]; // as in book/tools/searching.py
  const NAMES = ["", "second reading", "lab", "glossary", "", "list", "package"];
  const TITLE = 3.5, SPREAD = 0.75, SATURATION = 1.4, CHAPTER = 0.3, MOST = 60;
  const SAME = { sqrt: "root", rope: "rotari", llm: "languag" };
  const SHORT = /\bKV\b/gi; // key-value
  const FRAME = /^(What to remember|Further reading|Often got wrong|What to do|Summary)$/;
  const STOP = new Set("a an and are as at be by do does for from how i in is it of on or the to what why with".split(" "));
  const WORD = /[\p{L}\p{N}]+(?:_[\p{L}\p{N}]+)*/gu;

  const data = window.tfbookSearch;
  const lengths = data.results.map((result) => result[5]);
  const mean = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
  const stemmer = new Stemmer();
  const stem = (word) => stemmer.stemWord(word.toLowerCase());
  const vocabulary = Object.keys(data.words);

  // What a word of the query finds: result → how much. A word and the other name of its thing add up.
  const hits = (word) => {
    const found = new Map();
    const add = (postings, share, further = false) => {
      const places = postings.length / 2;
      const rarity = Math.log(1 + (data.results.length - places + 0.5) / (places + 0.5));
      let at = 0;
      for (let i = 0; i < postings.length; i += 2) {
        at += postings[i];
        const [told, named] = [postings[i + 1] >> 1, postings[i + 1] & 1];
        const long = 1 - SPREAD + (SPREAD * lengths[at]) / mean;
        const text = (told * (SATURATION + 1)) / (told + SATURATION * long);
        const score = share * rarity * (text + TITLE * named);
        const before = found.get(at) || 0;
        found.set(at, further ? before + score : Math.max(before, score));
      }
    };
    const stemmed = stem(word);
    const whole = data.words[stemmed];
    if (whole) add(whole, 1);
    const same = Object.hasOwn(SAME, word.toLowerCase()) ? SAME[word.toLowerCase()] : null;
    if (same && data.words[same]) add(data.words[same], 0.8, true);
    if (!whole && word.length > 2)
      for (const each of vocabulary) if (each.startsWith(stemmed) || each.startsWith(word.toLowerCase())) add(data.words[each], 0.5);
    return found;
  };

  const page = (at) => data.results[at][1].split(/_deeper|\.html/)[0];
  const plain = (text) => ` ${(text.toLowerCase().match(WORD) || []).join(" ")} `;

  const search = (query) => {
    const all = query.replace(SHORT, "key-value").match(WORD) || [];
    const told = all.filter((word) => !STOP.has(word.toLowerCase()));
    const words = told.length ? told : all;
    const scores = new Map(), matched = new Map();
    for (const word of words)
      for (const [at, score] of hits(word)) {
        scores.set(at, (scores.get(at) || 0) + score);
        matched.set(at, (matched.get(at) || 0) + 1);
      }
    const wanted = plain(words.join(" "));
    const rank = ([at, score]) => {
      const [title, , kind] = data.results[at];
      const share = matched.get(at) / words.length;
      const name = plain(title);
      const exact = name.trim() === wanted.trim() || (kind === 6 && title.split(".").at(-1) === query.trim());
      const phrase = exact ? (kind === 6 ? 8 : 3) : name.includes(wanted) ? 1.6 : 1;
      return [score * share ** 2 * KINDS[kind] * phrase * (FRAME.test(title) ? 0.5 : 1), at];
    };
    const ranked = [...scores].map(rank);
    // A chapter that treats the thing comes before one that mentions it.
    const treated = new Map();
    for (const [score, at] of ranked) treated.set(page(at), (treated.get(page(at)) || 0) + score);
    const most = Math.max(...treated.values());
    for (const each of ranked) {
      const kind = data.results[each[1]][2];
      if (kind < 2) each[0] *= 1 + (CHAPTER * treated.get(page(each[1]))) / most;
      if (kind === 3) each[0] *= 1 + CHAPTER; // a word of the glossary, too
    }
    return ranked.sort((a, b) => b[0] - a[0] || a[1] - b[1]).map(([, at]) => data.results[at]);
  };
  window.tfbookFind = search;

  const marked = (text, words) => {
    const parts = [];
    let last = 0;
    for (const match of text.matchAll(WORD)) {
      if (!words.has(stem(match[0]))) continue;
      parts.push(text.slice(last, match.index), Object.assign(document.createElement("mark"), { textContent: match[0] }));
      last = match.index + match[0].length;
    }
    return [...parts, text.slice(last)];
  };

  const element = (tag, className, ...children) => {
    const made = Object.assign(document.createElement(tag), { className });
    made.append(...children);
    return made;
  };

  const show = () => {
    const place = document.querySelector("#search-results");
    const query = new URLSearchParams(location.search).get("q") || "";
    document.querySelectorAll('form.bd-search input[name="q"]').forEach((input) => (input.value = query));
    if (!place || !query.trim()) return;
    const found = search(query);
    const words = new Set((query.match(WORD) || []).map(stem));
    const list = element("ul", "tfbook-found");
    for (const [title, address, kind, lead, page] of found.slice(0, MOST)) {
      const link = element("a", "", title);
      link.href = document.documentElement.dataset.content_root + address;
      const where = [title === page ? "" : page, NAMES[kind]].filter(Boolean).join(" · ");
      list.append(element("li", "", link, element("span", "tfbook-index-detail", where), element("p", "", ...marked(lead, words))));
    }
    const count = found.length > MOST ? `The first ${MOST} of ${found.length} results` : `${found.length} result${found.length === 1 ? "" : "s"}`;
    const told = found.length ? `${count} for “${query}”` : `Nothing was found for “${query}”. Is there another word for it?`;
    const status = element("p", "", told);
    status.setAttribute("role", "status");
    place.replaceChildren(status, list);
  };
  show();
})();
