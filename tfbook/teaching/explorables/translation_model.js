// A translator in plain JavaScript: text in byte pairs, the encoder, the decoder token by token with
// its cache, beam search, and who does the work. The file is what `translator_file` in _weights.py made.
import { attendPast, largest, layerNorm, logSoftmaxOf, matvec8, openWeights, plus, rotaryTable, rotate, row8 } from "./tensors.js";
import { slices } from "./workers.js";

const SHOWN = 8; // likeliest tokens that are told of each step
// GPT-2's pieces, as in tfbook/data/tokenizers.py; \s of a browser is another set of characters.
const PIECES = /'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

// ---------------------------------------------------------------------- text and tokens

/** The tokenizer of a file: what two tokens become and which pair goes first, and each token's bytes. */
export function openTokenizer({ specials, bytes, merges }) {
  const spelled = specials.map(() => []), joins = new Map();
  bytes.forEach((id, byte) => (spelled[id] = [byte]));
  merges.forEach(([left, right, id], rank) => {
    spelled[id] = [...spelled[left], ...spelled[right]];
    joins.set(`${left} ${right}`, { id, rank });
  });
  return { specials, bytes, spelled, joins };
}

/** The ids of a text: cut into pieces, written as bytes, and of each piece the pair that was learned
    first is joined, again and again. */
export function encodeText({ bytes, joins }, text) {
  return [...text.matchAll(PIECES)].flatMap(([piece]) => {
    const ids = Array.from(new TextEncoder().encode(piece), (byte) => bytes[byte]);
    for (;;) {
      let first = null, at = 0;
      for (let i = 0; i + 1 < ids.length; i++) {
        const join = joins.get(`${ids[i]} ${ids[i + 1]}`);
        if (join && (!first || join.rank < first.rank)) [first, at] = [join, i];
      }
      if (!first) return ids;
      ids.splice(at, 2, first.id);
    }
  });
}

/** The text of some ids, without special tokens; bytes that are no character become U+FFFD. */
export function decodeIds({ spelled }, ids) {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(ids.flatMap((id) => spelled[id])));
}

/** A token as it is shown by itself. */
export const faceOf = (tokenizer, id) => tokenizer.specials[id] ?? decodeIds(tokenizer, [id]);

// ---------------------------------------------------------------------- the model

/** The model of a file: its sizes, and its weights by the part that they belong to. */
export function openTranslator({ config, tensors, data }) {
  const weights = openWeights({ tensors, data });
  const linear = (name) => ({ ...weights[`${name}.weight`], bias: weights[`${name}.bias`] });
  const norm = (name) => ({ gain: weights[`${name}.weight`], bias: weights[`${name}.bias`], eps: config.eps });
  const attention = (name) => ({
    query: linear(`${name}.q_proj`), key: linear(`${name}.k_proj`), value: linear(`${name}.v_proj`), out: linear(`${name}.out_proj`),
  });
  const layers = (stack, cross) => Array.from({ length: config.n_layers }, (_, layer) => {
    const block = `${stack}.blocks.${layer}`;
    return {
      mixerNorm: norm(`${block}.mixer_residual.norm`), mixer: attention(`${block}.mixer`),
      ...(cross && { crossNorm: norm(`${block}.cross_residual.norm`), cross: attention(`${block}.cross`) }),
      ffnNorm: norm(`${block}.ffn_residual.norm`), up: linear(`${block}.ffn.up_proj`), down: linear(`${block}.ffn.down_proj`),
    };
  });
  return {
    ...config, table: weights["embed.weight"], encoder: layers("encoder", false), decoder: layers("decoder", true),
    encoderNorm: norm("encoder.final_norm"), decoderNorm: norm("decoder.final_norm"),
  };
}

const linear8 = (part, x) => plus(matvec8(part, x), part.bias);
const normed = ({ gain, bias, eps }, x) => layerNorm(x, gain, bias, eps);
/** The feed-forward network: what this token alone says of itself. */
const thought = (part, x) => linear8(part.down, linear8(part.up, normed(part.ffnNorm, x)).map((u) => Math.max(0, u)));

/** What the heads found, without those that are switched off, such as "cross 0.3". */
function heard({ found }, off, name, size) {
  for (let head = 0; head * size < found.length; head++)
    if (off.includes(`${name}.${head}`)) found.fill(0, head * size, (head + 1) * size);
  return found;
}

/** The encoder reads all tokens of the source, and each looks at all. A generator, which pauses after
    each token of each layer; in the end it gives what the decoder looks into: keys and values for each
    of its layers, made once. `looked` has, by layer and token, where each head looked. */
export const readSource = function* (model, ids, off = []) {
  const { d_head, scale, base } = model;
  const angles = ids.map((_, i) => rotaryTable(i, d_head, base));
  let rows = ids.map((id) => row8(model.table, id));
  const looked = [];
  for (const [layer, part] of model.encoder.entries()) {
    const { mixer } = part;
    const seen = rows.map((x) => normed(part.mixerNorm, x)), all = [], next = [];
    looked.push([]);
    for (const [i, x] of seen.entries()) {
      all.push({ key: rotate(linear8(mixer.key, x), angles[i]), value: linear8(mixer.value, x) });
      yield;
    }
    for (const [i, x] of rows.entries()) {
      const found = attendPast(rotate(linear8(mixer.query, seen[i]), angles[i]), all, d_head, scale);
      looked[layer].push(found.weights);
      const mixed = plus(x, linear8(mixer.out, heard(found, off, `encoder ${layer}`, d_head)));
      next.push(plus(mixed, thought(part, mixed)));
      yield;
    }
    rows = next;
  }
  const memory = rows.map((x) => normed(model.encoderNorm, x)), known = [];
  for (const { cross } of model.decoder) {
    known.push([]);
    for (const x of memory) {
      known.at(-1).push({ key: linear8(cross.key, x), value: linear8(cross.value, x) });
      yield;
    }
  }
  return { looked, memory, known };
};

/** The decoder before its first token: nothing is written. */
export const nothingWritten = (model) => model.decoder.map(() => []);

/** The decoder reads one token more. Back come the scores of the next one, the longer past, and by
    layer and head where it looked: `own` among what is written, `cross` in the source. */
export function readWritten(model, { known }, past, token, off = []) {
  const { d_head, scale } = model;
  const angles = rotaryTable(past[0].length, d_head, model.base);
  const longer = [], own = [], cross = [];
  let x = row8(model.table, token);
  model.decoder.forEach((part, layer) => {
    // Attention to what is written so far, this token included.
    const seen = normed(part.mixerNorm, x);
    longer.push([...past[layer], { key: rotate(linear8(part.mixer.key, seen), angles), value: linear8(part.mixer.value, seen) }]);
    const before = attendPast(rotate(linear8(part.mixer.query, seen), angles), longer[layer], d_head, scale);
    x = plus(x, linear8(part.mixer.out, heard(before, off, `decoder ${layer}`, d_head)));
    // Attention to the source: the query comes from here, keys and values from the encoder.
    const there = attendPast(linear8(part.cross.query, normed(part.crossNorm, x)), known[layer], d_head, scale);
    x = plus(x, linear8(part.cross.out, heard(there, off, `cross ${layer}`, d_head)));
    x = plus(x, thought(part, x));
    own.push(before.weights);
    cross.push(there.weights);
  });
  return { logits: matvec8(model.table, normed(model.decoderNorm, x)), past: longer, own, cross };
}

// ---------------------------------------------------------------------- beam search

/** The beams before the first step: one hypothesis, in which nothing is written. A hypothesis has a
    number, that of the one it goes on from, its last token, ln p of all its tokens, and a score. */
export const noBeams = ({ bos }) => ({
  alive: [{ node: 0, parent: null, token: bos, log_prob: 0, score: 0, length: 0, ended: false }], finished: [], count: 1, done: false,
});

/** One step: each hypothesis under way with every token, and of those the best stay. The score is
    ln p / length^penalty, as in tfbook.generation; `logits` has a row for each of those under way. */
export function growBeams({ alive, finished, count }, logits, { n_beams, penalty, most, eos }) {
  const length = alive[0].length + 1, width = 2 * n_beams; // one way to end each
  const all = logits.flatMap((row, from) => {
    const chances = logSoftmaxOf(row);
    return largest(chances, width).map((token) => ({
      from, parent: alive[from].node, token, log_prob: alive[from].log_prob + chances[token], length, ended: token === eos,
    }));
  });
  const following = [], made = [];
  all.sort((a, b) => b.log_prob - a.log_prob).slice(0, width).forEach((each, rank) => {
    const over = each.ended || length === most;
    if (over ? rank >= n_beams : following.length === n_beams) return;
    made.push({ ...each, node: count + made.length, score: each.log_prob / length ** penalty });
    if (!over) following.push(made.at(-1));
  });
  const kept = [...finished, ...made.filter((each) => !following.includes(each))].sort((a, b) => b.score - a.score).slice(0, n_beams);
  // Can the best one under way still come in? ln p only falls, and its length only grows.
  const longest = penalty > 0 ? most : length + 1;
  const late = kept.length === n_beams && following.length > 0 && following[0].log_prob / longest ** penalty <= kept.at(-1).score;
  return { alive: following, finished: kept, made, count: count + made.length, done: late || !following.length };
}

// ---------------------------------------------------------------------- the work

/** Who does the work, in a worker or in the page itself: a function that takes requests and answers
    through `tell`. After `slice` milliseconds it lets others in: a newer request ends an older one. */
export function translating(tell, slice = 12) {
  const pause = slices(slice);
  let model = null, latest = null;

  async function translate(request) {
    const { id, ids, off } = request;
    const mayGoOn = async () => (await pause(), latest === id);
    const reading = readSource(model, ids, off);
    let begun = performance.now(), told = begun, read;
    while (!(read = reading.next()).done) if (!(await mayGoOn())) return;
    let beams = noBeams(model), pasts = [nothingWritten(model)], steps = [], many = 0;
    while (!beams.done) {
      const written = [];
      for (const [i, { token }] of beams.alive.entries()) {
        if (!(await mayGoOn())) return;
        written.push(readWritten(model, read.value, pasts[i], token, off));
      }
      many += written.length;
      const next = growBeams(beams, written.map(({ logits }) => logits), { ...request, eos: model.eos });
      steps.push({
        // Where those under way looked, and what they held for likely.
        looks: beams.alive.map(({ node }, i) => {
          const { cross, logits } = written[i];
          const chances = logSoftmaxOf(logits);
          return { node, cross, best: largest(logits, SHOWN).map((token) => ({ token, logit: logits[token], chance: Math.exp(chances[token]) })) };
        }),
        made: next.made,
        alive: next.alive.map(({ node }) => node),
        finished: next.finished.map(({ node }) => node),
      });
      pasts = next.alive.map(({ from }) => written[from].past);
      beams = next;
      if (beams.done || performance.now() - told > 60) {
        told = performance.now();
        tell({ kind: "grew", id, steps, many, seconds: (told - begun) / 1000, done: beams.done });
        steps = [];
      }
    }
  }

  const kinds = {
    open({ file }) {
      model = openTranslator(file);
      tell({ kind: "ready" });
    },
    translate,
  };
  return (request) => {
    latest = request.id;
    return kinds[request.kind](request);
  };
}
