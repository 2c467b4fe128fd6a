// A small GPT that learns, in plain JavaScript: the forward pass of one sequence, the backward pass,
// AdamW, and who does the work. Each part stands here twice: what it computes, and, with "Back" in
// its name, how the gradient of the loss goes back through it. With dy for the gradient of what a
// part gave, it returns that of what the part took, and adds to the gradients of its weights.
import { addByColumns, attention, matmul, matmulByRows, plus, rmsNorm, softmaxOf } from "./tensors.js";
import { drawn } from "./language_model.js";
import { slices } from "./workers.js";

// ---------------------------------------------------------------------- the weights

/** Name, rows and columns of each weight, as the same model of tfbook has them; 0 columns: a vector. */
export function shapesOf({ vocabulary, context, d_model, d_ff, n_layers }) {
  const layers = Array.from({ length: n_layers }, (_, layer) => [
    ["mixer.q_proj", d_model, d_model], ["mixer.k_proj", d_model, d_model], ["mixer.v_proj", d_model, d_model],
    ["mixer.out_proj", d_model, d_model], ["mixer_residual.norm", d_model, 0],
    ["ffn.up_proj", d_ff, d_model], ["ffn.down_proj", d_model, d_ff], ["ffn_residual.norm", d_model, 0],
  ].map(([name, rows, cols]) => [`stack.blocks.${layer}.${name}`, rows, cols])).flat();
  return [["embed", vocabulary, d_model], ["position", context, d_model], ...layers, ["stack.final_norm", d_model, 0]]
    .map(([name, rows, cols]) => [`${name}.weight`, rows, cols]);
}

/** Room for all weights, or for their gradients: one row of numbers, and by name the parts of it. */
export function roomFor(sizes) {
  const shapes = shapesOf(sizes).map(([name, rows, cols]) => [name, rows * (cols || 1)]);
  const numbers = new Float64Array(shapes.reduce((sum, [, size]) => sum + size, 0));
  const named = {};
  let at = 0;
  for (const [name, size] of shapes) named[name] = numbers.subarray(at, at += size);
  const layers = Array.from({ length: sizes.n_layers }, (_, layer) => {
    const part = (name) => named[`stack.blocks.${layer}.${name}.weight`];
    return {
      mixerNorm: part("mixer_residual.norm"), query: part("mixer.q_proj"), key: part("mixer.k_proj"), value: part("mixer.v_proj"),
      out: part("mixer.out_proj"), ffnNorm: part("ffn_residual.norm"), up: part("ffn.up_proj"), down: part("ffn.down_proj"),
    };
  });
  return { sizes, numbers, named, layers, table: named["embed.weight"], places: named["position.weight"], finalNorm: named["stack.final_norm.weight"] };
}

/** First weights: gains of 1; all others normal, with a standard deviation of 0.1 for the tables, of
    1/√inputs for linear maps, and √(2 · layers) times less where these write into the stream.
    `chance(seed, i)` is the i-th number of a seed, between 0 and 1; two of them make a normal one. */
export function drawWeights(sizes, seed, chance) {
  const model = roomFor(sizes);
  let i = 0;
  for (const [name, , cols] of shapesOf(sizes)) {
    const writes = /out_proj|down_proj/.test(name) ? Math.sqrt(2 * sizes.n_layers) : 1;
    const spread = name.startsWith("stack") ? 1 / Math.sqrt(cols) / writes : 0.1;
    const normal = () => Math.sqrt(-2 * Math.log(chance(seed, ++i))) * Math.cos(2 * Math.PI * chance(seed, ++i));
    const weight = model.named[name];
    for (let j = 0; j < weight.length; j++) weight[j] = cols ? spread * normal() : 1;
  }
  return model;
}

// ---------------------------------------------------------------------- parts and their gradients

/** Of y = x Wᵀ, W (rows, cols): dx = dy W, and dW = dyᵀ x, a sum over the n rows. */
export function linearBack(x, weight, dy, dweight, n, cols, rows) {
  addByColumns(dweight, dy, x, n, rows, cols);
  return matmul(dy, weight, n, rows, cols);
}

/** Of y = γ x / r, r = √(mean(x²) + ε): dx = (γ dy − x mean(γ dy x) / r²) / r, and dγ = Σ dy x / r. */
export function rmsNormBack(x, gain, eps, dy, dgain) {
  const size = gain.length;
  const dx = new Float64Array(x.length);
  for (let at = 0; at < x.length; at += size) {
    let squares = 0, along = 0;
    for (let i = 0; i < size; i++) {
      squares += x[at + i] ** 2;
      along += gain[i] * dy[at + i] * x[at + i];
    }
    const root = Math.sqrt(squares / size + eps);
    for (let i = 0; i < size; i++) {
      dx[at + i] = (gain[i] * dy[at + i] - (x[at + i] * along) / size / root ** 2) / root;
      dgain[i] += (dy[at + i] * x[at + i]) / root;
    }
  }
  return dx;
}

/** Of p = softmax(s), row by row: ds_j = p_j (dp_j − Σ_i p_i dp_i). */
export function softmaxBack(p, dp, n, m) {
  const ds = new Float64Array(n * m);
  for (let i = 0; i < n; i++) {
    let mean = 0;
    for (let j = 0; j < m; j++) mean += p[i * m + j] * dp[i * m + j];
    for (let j = 0; j < m; j++) ds[i * m + j] = p[i * m + j] * (dp[i * m + j] - mean);
  }
  return ds;
}

/** Of o = P v, P = softmax(scale · q kᵀ), one head: dv = Pᵀ do, dP = do vᵀ, then through the softmax
    dS, and dq = scale · dS k, dk = scale · dSᵀ q. Hidden keys have P = 0, so nothing goes to them. */
export function attentionBack(q, k, v, weights, dout, n, size) {
  const scale = size ** -0.5;
  const dv = new Float64Array(n * size), dk = new Float64Array(n * size);
  addByColumns(dv, weights, dout, n, n, size);
  const dscores = softmaxBack(weights, matmulByRows(dout, v, n, size, n), n, n).map((ds) => scale * ds);
  addByColumns(dk, dscores, q, n, n, size);
  return { dq: matmul(dscores, k, n, n, size), dk, dv };
}

/** −log p(target), summed over rows of scores (n, m): dscores = p − 1 at the target, p elsewhere. */
export function crossEntropy(scores, targets, m) {
  const dscores = new Float64Array(scores.length);
  let loss = 0;
  targets.forEach((target, i) => {
    const row = scores.subarray(i * m, (i + 1) * m);
    const top = row.reduce((a, b) => Math.max(a, b));
    loss += top - row[target] + Math.log(row.reduce((sum, s) => sum + Math.exp(s - top), 0));
    dscores.set(softmaxOf(row), i * m);
    dscores[i * m + target] -= 1;
  });
  return { loss, dscores };
}

const relu = (x) => (x > 0 ? x : 0);

/** Columns `from`, from + 1, … of a matrix of a width: one head of all. */
function columns(x, n, width, from, size) {
  const out = new Float64Array(n * size);
  for (let i = 0; i < n; i++) out.set(x.subarray(i * width + from, i * width + from + size), i * size);
  return out;
}

/** Put a head back where `columns` took it from. */
function putColumns(x, part, n, width, from, size) {
  for (let i = 0; i < n; i++) x.set(part.subarray(i * size, (i + 1) * size), i * width + from);
}

// ---------------------------------------------------------------------- the whole model

/** Read a sequence. The scores of what follows each token come back, and all that the way back needs. */
export function forward(model, ids) {
  const { vocabulary, d_model, d_ff, n_heads, eps } = model.sizes;
  const n = ids.length, size = d_model / n_heads;
  // Each token brings its row of the table; its place is added.
  let x = new Float64Array(n * d_model);
  ids.forEach((id, i) => {
    for (let c = 0; c < d_model; c++) x[i * d_model + c] = model.table[id * d_model + c] + model.places[i * d_model + c];
  });
  const layers = model.layers.map((part) => {
    // Attention: each head looks back, and what all found is added to the stream.
    const entered = x;
    const seen = rmsNorm(entered, part.mixerNorm, eps);
    const [q, k, v] = [part.query, part.key, part.value].map((weight) => matmulByRows(seen, weight, n, d_model, d_model));
    const found = new Float64Array(n * d_model);
    const heads = Array.from({ length: n_heads }, (_, head) => {
      const own = [q, k, v].map((all) => columns(all, n, d_model, head * size, size));
      const { weights, found: mixed } = attention(...own, n, n, size, { causal: true });
      putColumns(found, mixed, n, d_model, head * size, size);
      return { own, weights };
    });
    const middle = plus(entered, matmulByRows(found, part.out, n, d_model, d_model));
    // The feed-forward network: each token by itself.
    const read = rmsNorm(middle, part.ffnNorm, eps);
    const active = matmulByRows(read, part.up, n, d_model, d_ff).map(relu);
    x = plus(middle, matmulByRows(active, part.down, n, d_ff, d_model));
    return { entered, seen, heads, found, middle, read, active };
  });
  const last = rmsNorm(x, model.finalNorm, eps);
  return { ids, layers, left: x, last, scores: matmulByRows(last, model.table, n, d_model, vocabulary) };
}

/** The way back through all that `forward` did, from the last line to the first: from the gradient
    of the scores to that of each weight, which is added to `grads`, a room like the model's. */
export function backward(model, run, dscores, grads) {
  const { vocabulary, d_model, d_ff, n_heads, eps } = model.sizes;
  const n = run.ids.length, size = d_model / n_heads;
  const dlast = linearBack(run.last, model.table, dscores, grads.table, n, d_model, vocabulary);
  let dx = rmsNormBack(run.left, model.finalNorm, eps, dlast, grads.finalNorm);
  for (let layer = model.layers.length - 1; layer >= 0; layer--) {
    const part = model.layers[layer], grad = grads.layers[layer], kept = run.layers[layer];
    // A sum gives its gradient to both: past the network as it is, and through the network.
    const dactive = linearBack(kept.active, part.down, dx, grad.down, n, d_ff, d_model);
    const dinner = dactive.map((d, i) => (kept.active[i] > 0 ? d : 0));
    const dread = linearBack(kept.read, part.up, dinner, grad.up, n, d_model, d_ff);
    dx = plus(dx, rmsNormBack(kept.middle, part.ffnNorm, eps, dread, grad.ffnNorm));
    // The same with attention, head by head.
    const dfound = linearBack(kept.found, part.out, dx, grad.out, n, d_model, d_model);
    const [dq, dk, dv] = [0, 1, 2].map(() => new Float64Array(n * d_model));
    kept.heads.forEach(({ own, weights }, head) => {
      const back = attentionBack(...own, weights, columns(dfound, n, d_model, head * size, size), n, size);
      putColumns(dq, back.dq, n, d_model, head * size, size);
      putColumns(dk, back.dk, n, d_model, head * size, size);
      putColumns(dv, back.dv, n, d_model, head * size, size);
    });
    let dseen = linearBack(kept.seen, part.query, dq, grad.query, n, d_model, d_model);
    dseen = plus(dseen, linearBack(kept.seen, part.key, dk, grad.key, n, d_model, d_model));
    dseen = plus(dseen, linearBack(kept.seen, part.value, dv, grad.value, n, d_model, d_model));
    dx = plus(dx, rmsNormBack(kept.entered, part.mixerNorm, eps, dseen, grad.mixerNorm));
  }
  run.ids.forEach((id, i) => {
    for (let c = 0; c < d_model; c++) {
      grads.table[id * d_model + c] += dx[i * d_model + c];
      grads.places[i * d_model + c] += dx[i * d_model + c];
    }
  });
}

/** What AdamW keeps of the past: how many steps, and means of the gradients and of their squares. */
export const emptyMoments = (model) => ({ step: 0, mean: new Float64Array(model.numbers.length), square: new Float64Array(model.numbers.length) });

/** One step of AdamW with a learning rate η: w ← (1 − ηλ) w − η m̂ / (√v̂ + ε). Weights change. */
export function adamW(weights, grads, moments, lr, { betas: [b1, b2], eps, weight_decay }) {
  const { mean, square } = moments;
  const t = ++moments.step;
  for (let i = 0; i < weights.length; i++) {
    mean[i] = b1 * mean[i] + (1 - b1) * grads[i];
    square[i] = b2 * square[i] + (1 - b2) * grads[i] ** 2;
    const size = Math.sqrt(square[i] / (1 - b2 ** t)) + eps;
    weights[i] = (1 - lr * weight_decay) * weights[i] - (lr * mean[i]) / (1 - b1 ** t) / size;
  }
}

// ---------------------------------------------------------------------- learning from a text

const OTHER = { batches: 10_000, samples: 20_000 }; // seeds beside that of the weights

/** A text cut in two: its end is held out, so that it can be asked what is not learned from. */
export function cutText(ids, context, share) {
  const held = Math.max(context + 1, Math.floor(ids.length * share));
  return { learned: ids.slice(0, ids.length - held), held: ids.slice(ids.length - held) };
}

/** Sequence `row` of step `step`: context + 1 tokens from a place drawn by chance. */
export function piece({ learned, seed, batch, sizes: { context } }, step, row, chance) {
  const at = Math.floor(chance(seed + OTHER.batches, step * batch + row + 1) * (learned.length - context));
  return learned.slice(at, at + context + 1);
}

/** Whole pieces of the text that is held out, one after the other, `most` of them. */
export function heldPieces(held, context, most) {
  const pieces = [];
  for (let at = 0; at + context < held.length && pieces.length < most; at += context) pieces.push(held.slice(at, at + context + 1));
  return pieces;
}

/** The loss of one sequence, summed over its tokens; with `grads`, its gradient is added to them. */
export function lossOf(model, ids, grads = null) {
  const run = forward(model, ids.slice(0, -1));
  const { loss, dscores } = crossEntropy(run.scores, ids.slice(1), model.sizes.vocabulary);
  if (grads) backward(model, run, dscores, grads);
  return loss;
}

/** Who does the work, in a worker or in the page itself: a function that takes requests and answers
    through `tell`. After `slice` milliseconds it lets others in; between two sequences it can be
    stopped. What comes out depends on the text, the seed and the learning rates, not on the pace. */
export function trainer(tell, chance, slice = 12) {
  const EVERY = 10; // steps from one look at what is held out to the next
  const [TELL, SHOW] = [100, 600]; // ms between two answers
  const breathe = slices(slice);
  let now = null, busy = null, until = 0;

  /** Measure the loss of what is held out, at this step; null if another training began. */
  async function measure(own) {
    let sum = 0;
    for (const ids of own.pieces) {
      await breathe();
      if (now !== own) return null;
      sum += lossOf(own.model, ids);
    }
    return [own.moments.step, sum / own.pieces.length / own.sizes.context];
  }

  /** Write `count` tokens on from the first of the text, always with the same luck. */
  async function write(own) {
    const { context, vocabulary } = own.sizes, tokens = [own.first];
    for (let i = 1; i <= own.count; i++) {
      await breathe();
      if (now !== own) return null;
      const { scores } = forward(own.model, tokens.slice(-context));
      tokens.push(drawn(softmaxOf(scores.slice(-vocabulary)), chance(own.seed + OTHER.samples, i)));
    }
    return tokens.slice(1);
  }

  /** Tell what the model does by now: what it writes, and where its heads look. */
  async function show(own) {
    const step = own.moments.step;
    const held = await measure(own);
    const sample = held && (await write(own));
    if (!sample || now !== own) return;
    const { layers } = forward(own.model, own.probe);
    const looked = layers.map(({ heads }) => heads.map(({ weights }) => weights));
    tell({ kind: "shown", id: own.id, step, held, sample, probe: own.probe, looked });
  }

  /** One step; null if another training began, false if its numbers are none. */
  async function learn(own) {
    const { grads, model, batch, moments } = own;
    const count = batch * own.sizes.context;
    grads.numbers.fill(0);
    let loss = 0;
    for (let row = 0; row < batch; row++) {
      await breathe();
      if (now !== own) return null;
      loss += lossOf(model, piece(own, moments.step, row, chance), grads);
    }
    loss /= count;
    if (!Number.isFinite(loss)) return false;
    for (let i = 0; i < grads.numbers.length; i++) grads.numbers[i] /= count;
    adamW(model.numbers, grads.numbers, moments, own.lr, own.adam);
    return loss;
  }

  /** Go on learning as long as there are steps to do. */
  async function go(own) {
    let losses = [], held = [], begun = performance.now(), told = begun, shown = begun, broken = false;
    const report = (running) => {
      const time = performance.now();
      tell({ kind: "told", id: own.id, turn: own.turn, step: own.moments.step, losses, held, seconds: (time - begun) / 1000, running, broken });
      [losses, held, begun, told] = [[], [], time, time];
    };
    while (own.moments.step < until && !broken) {
      const loss = await learn(own);
      if (loss === null) return;
      broken = loss === false;
      if (!broken) losses.push(loss);
      if (!broken && own.moments.step % EVERY === 0) {
        held.push(await measure(own));
        if (now !== own) return;
      }
      if (performance.now() - told > TELL) report(true);
      if (performance.now() - shown > SHOW) {
        await show(own);
        if (now !== own) return;
        shown = performance.now();
      }
    }
    await show(own);
    if (now === own) report(own.wanted); // something may have been asked in between
  }
  const work = async () => {
    if (busy === now) return;
    const own = busy = now;
    while (now === own && own.wanted) {
      own.wanted = false;
      await go(own);
    }
    if (busy === own) busy = null;
  };

  const kinds = {
    /** Begin with new weights: the text as ids, sizes, seed and all that AdamW takes. */
    begin(request) {
      const { ids, sizes, seed, share, most } = request;
      const model = drawWeights(sizes, seed, chance);
      const { learned, held } = cutText(ids, sizes.context, share);
      now = { ...request, learned, model, grads: roomFor(sizes), moments: emptyMoments(model), pieces: heldPieces(held, sizes.context, most), wanted: true };
      until = 0;
      return work();
    },
    /** Do `count` steps more, or fewer if told to pause. */
    run({ turn, count }) {
      until = now.moments.step + count;
      Object.assign(now, { turn, wanted: true });
      return work();
    },
    pause() {
      until = 0;
    },
    /** From the next step on. */
    rate({ lr }) {
      now.lr = lr;
    },
    /** Another text to look at: nothing is learned by it. */
    look({ turn, probe }) {
      Object.assign(now, { turn, probe, wanted: true });
      return work();
    },
  };
  return (request) => kinds[request.kind](request);
}
