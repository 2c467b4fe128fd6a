// Tensors in the page: typed arrays, row after row, and the operations of a transformer. A shape is
// told by whoever calls; an operation gives a new array and leaves its inputs alone, where it does
// not say otherwise. Numbers have 64 bits, so that what is computed here and in Python in float64
// differs by rounding only. `module_source` in _base.py puts this text in place of the import.

/** A B, with A (n, k) and B (k, m): each row of A weighs the rows of B. */
export function matmul(a, b, n, k, m) {
  const out = new Float64Array(n * m);
  for (let i = 0; i < n; i++)
    for (let p = 0; p < k; p++) {
      const weight = a[i * k + p];
      for (let j = 0; j < m; j++) out[i * m + j] += weight * b[p * m + j];
    }
  return out;
}

/** W x, with W (rows, cols) in 8 bits a number and a scale for each row: y_i = s_i Σ_j q_ij x_j. */
export function matvec8({ values, scale, rows, cols }, x) {
  const out = new Float64Array(rows);
  for (let i = 0; i < rows; i++) {
    const row = i * cols;
    let sum = 0;
    for (let j = 0; j < cols; j++) sum += values[row + j] * x[j];
    out[i] = scale[i] * sum;
  }
  return out;
}

/** Row i of a matrix in 8 bits: s_i q_i. */
export function row8({ values, scale, cols }, i) {
  return Float64Array.from(values.subarray(i * cols, (i + 1) * cols), (q) => scale[i] * q);
}

/** x + y, number by number. */
export function plus(x, y) {
  return x.map((number, i) => number + y[i]);
}

/** exp(x_i) / Σ exp(x_j), over the numbers of one row; the largest is taken off first. */
export function softmaxOf(row) {
  let top = -Infinity, total = 0;
  for (const x of row) top = Math.max(top, x);
  if (top === -Infinity) return new Float64Array(row.length); // nothing is allowed
  const out = new Float64Array(row.length);
  for (let i = 0; i < row.length; i++) total += out[i] = Math.exp(row[i] - top);
  for (let i = 0; i < row.length; i++) out[i] /= total;
  return out;
}

/** γ x / √(mean(x²) + ε), in pieces as long as γ: one piece for a stream, one for each head. */
export function rmsNorm(x, gain, eps) {
  const size = gain.length;
  const out = new Float64Array(x.length);
  for (let at = 0; at < x.length; at += size) {
    let squares = 0;
    for (let i = 0; i < size; i++) squares += x[at + i] ** 2;
    const root = Math.sqrt(squares / size + eps);
    for (let i = 0; i < size; i++) out[at + i] = (gain[i] * x[at + i]) / root;
  }
  return out;
}

/** γ (x − mean(x)) / √(var(x) + ε) + β, in pieces as long as γ. */
export function layerNorm(x, gain, bias, eps) {
  const size = gain.length;
  const centred = new Float64Array(x.length);
  for (let at = 0; at < x.length; at += size) {
    let sum = 0;
    for (let i = 0; i < size; i++) sum += x[at + i];
    for (let i = 0; i < size; i++) centred[at + i] = x[at + i] - sum / size;
  }
  return rmsNorm(centred, gain, eps).map((y, i) => y + bias[i % size]);
}

/** Cosine and sine of position · base^(−2i/size), the angle of pair i of a head of this size. */
export function rotaryTable(position, size, base) {
  const angles = Float64Array.from({ length: size / 2 }, (_, i) => position * base ** ((-2 * i) / size));
  return { cos: angles.map(Math.cos), sin: angles.map(Math.sin) };
}

/** Turn each pair of each head by its angle. Pairs are numbers 2i and 2i + 1 ("interleaved"), or i
    and i + size / 2 ("half"). */
export function rotate(x, { cos, sin }, layout = "interleaved") {
  const pairs = cos.length;
  const out = new Float64Array(x.length);
  for (let head = 0; head < x.length; head += 2 * pairs)
    for (let i = 0; i < pairs; i++) {
      const a = head + (layout === "half" ? i : 2 * i);
      const b = layout === "half" ? a + pairs : a + 1;
      out[a] = x[a] * cos[i] - x[b] * sin[i];
      out[b] = x[a] * sin[i] + x[b] * cos[i];
    }
  return out;
}

/** x σ(x). */
export const silu = (x) => x / (1 + Math.exp(-x));

/** The error function, 2/√π e^(−x²) Σ 2^n x^(2n+1) / (1 · 3 · 5 ⋯ (2n+1)): no term is taken off. */
export function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let sum = x;
  for (let n = 1, term = x; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

/** x Φ(x), with Φ the normal distribution's sums. */
export const gelu = (x) => (x * (1 + erf(x / Math.SQRT2))) / 2;

/** softmax(scale · Q Kᵀ) V of one head, with Q (n, size), K and V (m, size); causal: the last query
    sees all keys, the one before it all but the last. */
export function attention(q, k, v, n, m, size, { scale = size ** -0.5, causal = false } = {}) {
  const weights = new Float64Array(n * m);
  for (let i = 0; i < n; i++) {
    const scores = Float64Array.from({ length: m }, (_, j) => {
      if (causal && j > i + m - n) return -Infinity;
      let sum = 0;
      for (let c = 0; c < size; c++) sum += q[i * size + c] * k[j * size + c];
      return scale * sum;
    });
    weights.set(softmaxOf(scores), i * m);
  }
  return { weights, found: matmul(weights, v, n, m, size) };
}

/** Keys and values of the last `window` tokens; a new one takes the place of the oldest. */
export function emptyCache(window, width) {
  return { window, width, seen: 0, keys: new Float64Array(window * width), values: new Float64Array(window * width) };
}

/** Put the key and the value of one token, of all heads, into the cache, which changes. */
export function remember(cache, key, value) {
  const at = (cache.seen % cache.window) * cache.width;
  cache.keys.set(key, at);
  cache.values.set(value, at);
  cache.seen++;
}

/** What one query of each head finds in the cache, and by which weights, oldest key first. */
export function attendCached(query, cache, size, scale) {
  const { keys, values, window, width, seen } = cache;
  const held = Math.min(seen, window);
  const place = (j) => ((seen - held + j) % window) * width;
  const found = new Float64Array(width), weights = [];
  for (let head = 0; head < width; head += size) {
    const scores = new Float64Array(held);
    for (let j = 0; j < held; j++) {
      const at = place(j) + head;
      for (let c = 0; c < size; c++) scores[j] += query[head + c] * keys[at + c];
      scores[j] *= scale;
    }
    const row = softmaxOf(scores);
    for (let j = 0; j < held; j++) {
      const at = place(j) + head;
      for (let c = 0; c < size; c++) found[head + c] += row[j] * values[at + c];
    }
    weights.push(row);
  }
  return { found, weights };
}

/** A Bᵀ, with A (n, k) and B (m, k): every row of A with every row of B. A linear map is X Wᵀ. */
export function matmulByRows(a, b, n, k, m) {
  const out = new Float64Array(n * m);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < m; j++) {
      let sum = 0;
      for (let p = 0; p < k; p++) sum += a[i * k + p] * b[j * k + p];
      out[i * m + j] = sum;
    }
  return out;
}

/** Add Aᵀ B to `out` (k, m), which changes, with A (n, k) and B (n, m): a sum over rows. */
export function addByColumns(out, a, b, n, k, m) {
  for (let i = 0; i < n; i++)
    for (let p = 0; p < k; p++) {
      const weight = a[i * k + p];
      for (let j = 0; j < m; j++) out[p * m + j] += weight * b[i * m + j];
    }
}

/** The weights of a file by their names: matrices as {values, scale, rows, cols}, others in float32. */
export function openWeights({ tensors, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const bits = bytes.buffer;
  return Object.fromEntries(tensors.map(({ name, rows, cols, numbers, scale }) => [name, cols
    ? { rows, cols, values: new Int8Array(bits, numbers, rows * cols), scale: new Float32Array(bits, scale, rows) }
    : new Float32Array(bits, numbers, rows)]));
}

/** ln of softmaxOf: x_i − ln Σ exp(x_j). */
export function logSoftmaxOf(row) {
  let top = -Infinity, total = 0;
  for (const x of row) top = Math.max(top, x);
  for (const x of row) total += Math.exp(x - top);
  const whole = top + Math.log(total);
  return row.map((x) => x - whole);
}

/** What one query of each head finds in a past, a list of {key, value}, and by which weights. The past
    stays as it is: what goes on makes a longer list, and several may go on from one. */
export function attendPast(query, past, size, scale) {
  const found = new Float64Array(query.length), weights = [];
  for (let head = 0; head < query.length; head += size) {
    const scores = Float64Array.from(past, ({ key }) => {
      let sum = 0;
      for (let c = head; c < head + size; c++) sum += query[c] * key[c];
      return scale * sum;
    });
    const row = softmaxOf(scores);
    past.forEach(({ value }, j) => {
      for (let c = head; c < head + size; c++) found[c] += row[j] * value[c];
    });
    weights.push(row);
  }
  return { found, weights };
}

/** The places of the largest numbers, from the largest on; of equal ones the first place is first. */
export function largest(numbers, count) {
  const best = [];
  for (let i = 0; i < numbers.length; i++) {
    if (best.length === count && numbers[i] <= numbers[best[count - 1]]) continue;
    let at = best.length;
    while (at > 0 && numbers[best[at - 1]] < numbers[i]) at--;
    best.splice(at, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}
