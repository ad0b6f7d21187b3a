// Training in the plane: gradient descent, normalised descent, gradient flow by arc length, and where starts end.

import { finitePart, NEAR_FINITE } from "./finite.js";
import { Plane } from "./plane.js";

export const SATURATED = 1 - 1e-5;

/** `steps` steps from a start: all points, the first included. `method` is "normalized" or "descent". */
export function descend(plane, start, { method = "normalized", step = 0.1, steps = 200 } = {}) {
  const points = [[...start]];
  let [x, y] = start;
  for (let k = 0; k < steps; k++) {
    if (plane.field(x, y)) {
      const length = method === "descent" ? step * Math.exp(plane.logNorm) : step;
      x += length * plane.u;
      y += length * plane.v;
    }
    points.push([x, y]);
  }
  return points;
}

// A stiffly accurate, L-stable diagonally implicit method of order 4 with an embedded one of order 3: competing tokens
// settle over a length of order 1 while the norm grows without bound, and its steps may grow with the norm.
const G = 1 / 4;
const A = [[], [1 / 2], [17 / 50, -1 / 25], [371 / 1360, -137 / 2720, 15 / 544], [25 / 24, -49 / 48, 125 / 16, -85 / 12]];
const ERROR = [25 / 24 - 59 / 48, -49 / 48 + 17 / 96, 125 / 16 - 225 / 32, 0, G];

/**
 * Gradient flow by arc length from a start to a norm: {points, arcs, stop}, stop being "norm", "flat" (the gradient
 * cancels: a stationary point, or no direction left) or "steps". With `exactly`, the last point has the norm asked for.
 * Where tokens come to hold one another for ever, the rest of the path is straight, and `finite` are they, input by input.
 */
export function flow(plane, start, { untilNorm = 1e6, tolerance = 1e-9, maxSteps = 5000, exactly = false } = {}) {
  const points = [[...start]], arcs = [0];
  let [x, y] = start, h = 1e-3, arc = 0;
  for (let k = 0; k < maxSteps; k++) {
    if (Math.hypot(x, y) >= untilNorm) return { points, arcs, stop: "norm" };
    const goes = plane.field(x, y), part = plane.balance < NEAR_FINITE ? finitePart(plane, x, y) : null;
    if (part !== null) {
      const end = Math.sqrt(Math.max(untilNorm ** 2 - part.w ** 2, 0)), begin = part.z, straight = { from: points.length - 1, slope: part.n };
      for (let j = 1; j <= 60 && end > begin; j++) {
        const z = begin + (end - begin) * (begin > 0 ? ((end / begin) ** (j / 60) - 1) / (end / begin - 1) : j / 60);
        points.push([part.w * part.e[0] + z * part.n[0], part.w * part.e[1] + z * part.n[1]]);
        arcs.push(arc + z - begin);
      }
      return { points, arcs, stop: "norm", finite: part.tied, straight };
    }
    if (!goes || plane.balance < Math.max(1e-11, 1e-3 * tolerance)) return { points, arcs, stop: "flat" };
    // On a line the unit field is constant and the error nothing: a longer step could leap over a point that turns back.
    h = Math.min(h, 1.01 * untilNorm, (1 + Math.hypot(x, y)) / 8);
    const taken = implicitStep(plane, x, y, h, Math.max(1e-3 * tolerance, 1e-13));
    const error = taken ? Math.hypot(taken.ex, taken.ey) / (tolerance * (1 + Math.hypot(x, y))) : Infinity;
    if (!(error <= 1)) {
      h *= taken && Number.isFinite(error) ? Math.max(0.2, 0.9 * error ** -0.25) : 0.25;
      if (h < 1e-13 * (1 + Math.hypot(x, y))) return { points, arcs, stop: "flat" };
      continue;
    }
    const over = Math.hypot(taken.x, taken.y) - untilNorm;
    if (exactly && over > 1e-13 * untilNorm) {
      const under = untilNorm - Math.hypot(x, y);
      if (under <= 1e-13 * untilNorm) return { points, arcs, stop: "norm" };
      h *= Math.max(under / (over + under), 1e-3); // the norm grows almost linearly with the arc: a few secant steps
      continue;
    }
    arc += h;
    [x, y] = [taken.x, taken.y];
    points.push([x, y]);
    arcs.push(arc);
    h *= Math.min(5, 0.9 * Math.max(error, 1e-10) ** -0.25);
  }
  return { points, arcs, stop: "steps" };
}

/** One step of length h, its slopes right to `enough`, or null when Newton's method does not settle. */
function implicitStep(plane, x, y, h, enough) {
  plane.field(x, y);
  const [a, b, c, d] = plane.jacobian();
  const m = [1 - h * G * a, -h * G * b, -h * G * c, 1 - h * G * d], det = m[0] * m[3] - m[1] * m[2];
  if (!(Math.abs(det) > 0)) return null;
  const kx = [], ky = [];
  let nx = plane.u, ny = plane.v;
  for (let stage = 0; stage < 5; stage++) {
    let bx = x, by = y;
    for (let j = 0; j < stage; j++) {
      bx += h * A[stage][j] * kx[j];
      by += h * A[stage][j] * ky[j];
    }
    let settled = false, before = Infinity;
    for (let round = 0; round < 12 && !settled; round++) {
      if (!plane.field(bx + h * G * nx, by + h * G * ny)) return null;
      const rx = nx - plane.u, ry = ny - plane.v;
      const dx = (m[3] * rx - m[1] * ry) / det, dy = (m[0] * ry - m[2] * rx) / det, size = Math.hypot(dx, dy);
      nx -= dx;
      ny -= dy;
      // Settled well below the error that is allowed, or where rounding stops the gain.
      settled = h * size < enough * (1 + Math.hypot(x, y)) || (size < 1e-7 && size > before / 2);
      if (!settled && size > 2 * before) return null;
      before = size;
    }
    if (!settled) return null;
    kx.push(nx);
    ky.push(ny);
  }
  let sx = 0, sy = 0, ex = 0, ey = 0;
  for (let j = 0; j < 5; j++) {
    const weight = j < 4 ? A[4][j] : G;
    sx += weight * kx[j];
    sy += weight * ky[j];
    ex += ERROR[j] * kx[j];
    ey += ERROR[j] * ky[j];
  }
  // The error of stiff parts is filtered by the matrix of the step, as they are by the method itself.
  const fx = (m[3] * ex - m[1] * ey) / det, fy = (m[0] * ey - m[2] * ex) / det;
  return { x: x + h * sx, y: y + h * sy, ex: h * fx, ey: h * fy };
}

/** Which limit holds the tokens of largest weight at p; -1 where none does, or the weight is not theirs yet. */
export function limitReached(plane, limits, x, y, enough = SATURATED) {
  let mean = 0;
  const leads = [];
  for (let i = 0; i < plane.n; i++) {
    const first = plane.first[i], pivot = plane.lead(i, x, y), top = plane.logit[pivot];
    let total = 0, own = 0;
    for (let t = first; t < plane.first[i + 1]; t++) {
      const weight = Math.exp(plane.logit[t] - top);
      total += weight;
      // Tokens that score alike share the weight of a selection: which of them leads decides which selection it is.
      if (plane.score[t] === plane.score[pivot] || (plane.x[t] === plane.x[pivot] && plane.y[t] === plane.y[pivot])) own += weight;
    }
    mean += own / total;
    leads.push(pivot - first);
  }
  if (mean / plane.n < enough) return -1;
  return limits.findIndex((limit) => leads.every((t, i) => limit.sets[i].includes(t)));
}

const offBy = ([u, v], x, y) => Math.abs(Math.atan2(x * v - y * u, x * u + y * v));

/**
 * The number of the limit where training from a start ends, or -1. Normalised steps keep to the path of the flow; beyond
 * the norm of 40 steps they grow with the norm, so that infinity is not far. Where such steps are too coarse (a narrow arc,
 * a saddle), the flow itself is followed; a `draft` says what leads at the end instead.
 */
export function settle(plane, limits, start, { step = 0.1, draft = false } = {}) {
  let [x, y] = start, found = -1, since = 0, before = 0;
  for (let k = 0; k < (draft ? 160 : 240); k++) {
    if (!plane.field(x, y)) return -1;
    const length = Math.max(step, Math.hypot(x, y) / 40);
    x += length * plane.u;
    y += length * plane.v;
    if (k % 4) continue;
    const now = limitReached(plane, limits, x, y), off = now < 0 ? 0 : offBy(limits[now].unit, x, y);
    if (now < 0 || now !== found) [found, since, before] = [now, k, off];
    else if (k - since >= (draft ? 8 : 24)) {
      // Saturated is not settled: a path may pass by. Meanwhile p has grown by 1.8 (1.2), so the angle, which falls like
      // 1 / |p|, must have shrunk; below a step's own angle, 1 / 40, it only trembles.
      if (off <= Math.max((draft ? 1 : 0.7) * before, 0.04)) return found;
      [since, before] = [k, off];
    }
  }
  if (draft) return limitReached(plane, limits, x, y, 0);
  const { points, stop } = flow(plane, start, { untilNorm: 1e7 * 10 * step, tolerance: 1e-4, maxSteps: 400 });
  return stop === "flat" && points.length < 2 ? -1 : limitReached(plane, limits, ...points.at(-1));
}

/** Starts on a square grid over the disc `place(p)`, row by row, or those of its `cells`; each the number of its limit, -2 outside the disc. */
export function ground(inputs, limits, { side, promptAt, loss = "logistic", step = 0.1, draft = false, cells = Array(side * side).keys(), into = null }) {
  const plane = new Plane(inputs, loss), labels = into ?? new Int8Array(side * side);
  for (const k of cells) {
    const start = promptAt(((k % side) + 0.5) / side, (Math.floor(k / side) + 0.5) / side);
    labels[k] = start === null ? -2 : settle(plane, limits, start, { step, draft });
  }
  return labels;
}
