// Attention in the plane: softmax weights, loss, and a direction of descent that stays right at any norm.
//
// Nothing here knows a page: the same file runs in a browser, in its worker and in node, where it is tested against the
// Python library. Inputs are lists of tokens {x, y, score}; a prompt p is two numbers.

const EPS = 2 ** -52;
export const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

export const nameOf = (i, t) => `${LETTERS[i]}${t + 1}`;

/** Losses of an output u: value, log of minus the slope, and the derivative of that log. */
export const LOSSES = {
  logistic: {
    value: (u) => (u > 0 ? Math.log1p(Math.exp(-u)) : Math.log1p(Math.exp(u)) - u),
    logSlope: (u) => (u > 0 ? -u - Math.log1p(Math.exp(-u)) : -Math.log1p(Math.exp(u))),
    bend: (u) => (u > 0 ? -1 / (1 + Math.exp(-u)) : -Math.exp(u) / (1 + Math.exp(u))),
  },
  exponential: { value: (u) => Math.exp(-u), logSlope: (u) => -u, bend: () => -1 },
  correlation: { value: (u) => -u, logSlope: () => 0, bend: () => 0 },
};

/**
 * The scores of an input's tokens; copies have the mean of theirs: their weights are equal for ever, and nothing must cancel
 * between them. The mean of equal numbers is that number, without rounding: it may tie with another token's.
 */
export function sharedScores(tokens) {
  return tokens.map(({ x, y, score }) => {
    const copies = tokens.filter((other) => other.x === x && other.y === y);
    return copies.every((other) => other.score === score) ? score : copies.reduce((sum, other) => sum + other.score, 0) / copies.length;
  });
}

/**
 * A problem in the plane and the field that training follows.
 *
 * The textbook gradient, weight times (score - output), loses its direction once a weight rounds to 1. Here the token of
 * largest weight is a pivot whose coefficient is minus the sum of the others, and sizes are kept relative to the largest
 * rival's weight, `exp(shift)`: nothing cancels and nothing underflows. Tokens that score exactly as the pivot does pull
 * with the output's shortfall alone, which is as small as the rivals' weights: it is kept relative to them, too.
 */
export class Plane {
  constructor(inputs, loss = "logistic") {
    this.inputs = inputs;
    this.loss = LOSSES[loss];
    this.n = inputs.length;
    this.first = [0];
    for (const { tokens } of inputs) this.first.push(this.first.at(-1) + tokens.length);
    const all = inputs.flatMap((row) => row.tokens);
    this.x = Float64Array.from(all, (k) => k.x);
    this.y = Float64Array.from(all, (k) => k.y);
    this.score = Float64Array.from(inputs.flatMap(({ tokens }) => sharedScores(tokens)));
    this.length = Float64Array.from(all, (k) => Math.hypot(k.x, k.y));
    this.logit = new Float64Array(all.length);
    this.mass = new Float64Array(all.length); // exp(logit - largest logit of the input)
    this.rival = new Float64Array(all.length); // the same over exp(shift), for tokens of another score than the pivot's
    this.parts = Array.from({ length: this.n }, () => ({}));
    this.u = 0; // the last direction of descent, of unit length or zero,
    this.v = 0;
    this.logNorm = -Infinity; // and the logarithm of the gradient's length
  }

  /** Logits `<k, p>` of one input into `this.logit`; the place of the largest is returned, the first of equals. */
  lead(i, px, py) {
    const { x, y, logit } = this;
    let pivot = this.first[i];
    for (let t = this.first[i]; t < this.first[i + 1]; t++) {
      logit[t] = x[t] * px + y[t] * py;
      if (logit[t] > logit[pivot]) pivot = t;
    }
    return pivot;
  }

  /** Softmax weights, input by input. */
  weights(px, py) {
    return this.inputs.map(({ tokens }, i) => {
      const top = this.logit[this.lead(i, px, py)];
      const raw = tokens.map((_, t) => Math.exp(this.logit[this.first[i] + t] - top));
      const total = raw.reduce((a, b) => a + b, 0);
      return raw.map((w) => w / total);
    });
  }

  logits(px, py) {
    return this.inputs.map(({ tokens }, i) => {
      this.lead(i, px, py);
      return tokens.map((_, t) => this.logit[this.first[i] + t]);
    });
  }

  /** The token of largest logit in every input. */
  selected(px, py) {
    return this.inputs.map((_, i) => this.lead(i, px, py) - this.first[i]);
  }

  /** One input seen from its pivot: output, and its pull on p as `exp(scale) (gx, gy)`. */
  part(i, px, py) {
    const { logit, score, mass, rival } = this, begin = this.first[i], end = this.first[i + 1];
    const pivot = this.lead(i, px, py), top = logit[pivot], best = score[pivot];
    let total = 0, shift = -Infinity;
    for (let t = begin; t < end; t++) {
      mass[t] = Math.exp(logit[t] - top);
      total += mass[t];
      if (score[t] !== best && logit[t] - top > shift) shift = logit[t] - top;
    }
    const part = this.parts[i];
    part.pivot = pivot;
    part.total = total;
    part.shift = shift;
    part.short = 0; // (gamma_pivot - output) / exp(shift)
    part.scale = Math.exp(shift);
    if (shift > -Infinity) {
      const near = shift > -300; // then no mass has underflowed that matters
      for (let t = begin; t < end; t++) {
        if (score[t] === best) continue;
        rival[t] = near ? mass[t] / part.scale : Math.exp(logit[t] - top - shift);
        part.short += rival[t] * (best - score[t]);
      }
      part.short /= total;
    }
    part.output = best - part.short * part.scale;
    part.logSlope = this.loss.logSlope(part.output);
    return part;
  }

  /** Coefficient of token t in the pull of its input, relative to `exp(shift)`. */
  coefficient(part, t) {
    const ahead = this.score[part.pivot] - this.score[t];
    if (ahead === 0) return (this.mass[t] / part.total) * part.short;
    return (this.rival[t] / part.total) * (part.short * part.scale - ahead);
  }

  /** Outputs of all inputs; the weights' mean scores. */
  outputs(px, py) {
    return this.inputs.map((_, i) => this.part(i, px, py).output);
  }

  /** The training loss: the mean over the inputs. */
  risk(px, py) {
    let sum = 0;
    for (let i = 0; i < this.n; i++) sum += this.loss.value(this.part(i, px, py).output);
    return sum / this.n;
  }

  /** What the loss tends to when every input attends to its best token alone. */
  infimum() {
    const bests = this.inputs.map(({ tokens }) => Math.max(...tokens.map((k) => k.score)));
    return bests.reduce((sum, best) => sum + this.loss.value(best), 0) / this.n;
  }

  /** The direction of steepest descent at p into (u, v), and `logNorm`. False where there is none. */
  field(px, py) {
    const { x, y, length } = this;
    let largest = -Infinity;
    for (let i = 0; i < this.n; i++) {
      const part = this.part(i, px, py);
      largest = Math.max(largest, part.shift + part.logSlope);
    }
    this.u = this.v = 0;
    this.logNorm = -Infinity;
    if (largest === -Infinity) return false;
    let gx = 0, gy = 0, terms = 0;
    for (let i = 0; i < this.n; i++) {
      const part = this.parts[i], pivot = part.pivot, scale = Math.exp(part.shift + part.logSlope - largest);
      if (scale === 0) continue;
      let sum = 0;
      for (let t = this.first[i]; t < this.first[i + 1]; t++) {
        if (t === pivot) continue;
        const c = scale * this.coefficient(part, t);
        gx += c * (x[t] - x[pivot]);
        gy += c * (y[t] - y[pivot]);
        terms += Math.abs(c) * length[t];
        sum += c;
      }
      terms += Math.abs(sum) * length[pivot];
    }
    const size = Math.hypot(gx, gy);
    this.balance = terms > 0 ? size / terms : 0;
    if (!(size > 8 * EPS * terms)) return false; // what is left is rounding, and rounding has no direction
    this.u = gx / size;
    this.v = gy / size;
    this.size = size; // relative to exp(largest)
    this.largest = largest;
    this.logNorm = largest + Math.log(size) - Math.log(this.n);
    return true;
  }

  /** Derivative of the unit field at p, as [xx, xy, yx, yy]; call `field` at p first. */
  jacobian() {
    const { x, y, mass } = this;
    let a = 0, b = 0, c = 0, d = 0;
    for (let i = 0; i < this.n; i++) {
      const part = this.parts[i], pivot = part.pivot, scale = Math.exp(part.shift + part.logSlope - this.largest);
      if (scale === 0) continue;
      let mx = 0, my = 0, gx = 0, gy = 0, xx = 0, xy = 0, yy = 0;
      for (let t = this.first[i]; t < this.first[i + 1]; t++) {
        if (t === pivot) continue;
        const s = mass[t] / part.total, w = this.coefficient(part, t);
        const kx = x[t] - x[pivot], ky = y[t] - y[pivot];
        mx += s * kx;
        my += s * ky;
        gx += w * kx;
        gy += w * ky;
        xx += w * kx * kx;
        xy += w * kx * ky;
        yy += w * ky * ky;
      }
      const bent = this.loss.bend(part.output) * part.scale;
      a += scale * (xx - 2 * gx * mx + bent * gx * gx);
      b += scale * (xy - gx * my - mx * gy + bent * gx * gy);
      c += scale * (xy - gy * mx - my * gx + bent * gx * gy);
      d += scale * (yy - 2 * gy * my + bent * gy * gy);
    }
    const { u, v, size } = this;
    const along = [u * a + v * c, u * b + v * d];
    return [(a - u * along[0]) / size, (b - u * along[1]) / size, (c - v * along[0]) / size, (d - v * along[1]) / size];
  }
}
