// From the state of a section to everything that is drawn: plane, limits, the run and what is measured on it.

import { arcsOf, limitsOf, verdictOn } from "./limits.js";
import { descend, flow, limitReached } from "./paths.js";
import { Plane, sharedScores } from "./plane.js";
import { placeOf } from "./drawing.js";
import { angleBetween } from "./words.js";

const FRAMES = 240, FAR = 1e7;

/** The flow at any arc length: cubic pieces through its knots, whose slopes are the field there. */
function along(plane, { points, arcs, straight }) {
  const slopes = points.map(([x, y], k) => (straight && k >= straight.from ? straight.slope : plane.field(x, y) ? [plane.u, plane.v] : [0, 0]));
  let k = 0;
  return (arc) => {
    if (arc < arcs[k]) k = 0;
    while (k < arcs.length - 2 && arcs[k + 1] < arc) k++;
    if (arcs.length < 2) return points[0];
    const h = arcs[k + 1] - arcs[k], s = Math.min(1, (arc - arcs[k]) / h), r = 1 - s;
    const at = (j) => r * r * (1 + 2 * s) * points[k][j] + s * s * (3 - 2 * s) * points[k + 1][j] + h * s * r * (r * slopes[k][j] - s * slopes[k + 1][j]);
    return [at(0), at(1)];
  };
}

/** Points of a flow, evenly spaced in the drawing. */
function evenly(plane, path, view, count) {
  const total = path.arcs.at(-1), at = along(plane, path), fine = [];
  const first = Math.min(0.02 * view.half, total);
  for (let k = 0; k <= 4 * count; k++) fine.push(k === 0 ? 0 : first * (total / first) ** (k / (4 * count)));
  const points = fine.map(at), lengths = [0];
  for (let k = 1; k < points.length; k++) {
    const [a, b] = [placeOf(points[k - 1], view), placeOf(points[k], view)];
    lengths.push(lengths.at(-1) + Math.hypot(a[0] - b[0], a[1] - b[1]));
  }
  const kept = [];
  let j = 0;
  for (let k = 0; k <= count; k++) {
    const goal = (lengths.at(-1) * k) / count;
    while (j < lengths.length - 1 && lengths[j] < goal) j++;
    kept.push(points[j]);
  }
  return { kept, points };
}

const BESIDE = 1e-9; // of a start's size: what lies nearer to a border than this, rounding may carry across

/** The other limits at which starts end that lie a billionth to either side of one that ends at `own`; -1 for none. */
function endsBeside(plane, limits, state, unit, own, follow) {
  const size = BESIDE * (Math.hypot(...state.start) + unit);
  if (!plane.field(...state.start)) return [];
  return [size, -size].map((off) => [state.start[0] - off * plane.v, state.start[1] + off * plane.u]).map((start) => {
    const { points, stop, finite } = flow(plane, state.method === "flow" ? start : descend(plane, start, state).at(-1), follow), end = limitReached(plane, limits, ...points.at(-1));
    return end < 0 && stop !== "flat" && !finite ? own : end; // else it is not followed far enough to be told
  }).filter((end) => end !== own);
}

/**
 * Training from the start of a state: the points of its frames, how it goes on, the loss, and the limit it ends at; and,
 * where starts beside it end elsewhere (never asked while something moves), the limits of those.
 */
export function runOf(plane, limits, state, view, { moving = false, fine = false } = {}) {
  const follow = { untilNorm: (moving ? 1e4 : FAR) * view.unit, tolerance: moving ? 1e-5 : fine ? 1e-9 : 1e-7, maxSteps: moving ? 400 : 3000 };
  const byFlow = state.method === "flow";
  const points = byFlow ? [state.start] : descend(plane, state.start, { method: state.method, step: state.step, steps: state.steps });
  const path = flow(plane, points.at(-1), follow);
  const { kept, points: dense } = evenly(plane, path, view, byFlow ? FRAMES : 80);
  const last = path.points.at(-1), shown = byFlow ? kept : points;
  const end = path.stop === "flat" && path.points.length < 2 ? -1 : limitReached(plane, limits, ...last);
  const beside = moving ? [] : endsBeside(plane, limits, state, view.unit, end, follow);
  return {
    points: shown,
    beyond: byFlow ? [] : kept,
    dense: byFlow ? dense : [...points, ...dense],
    risk: shown.map(([x, y]) => plane.risk(x, y)),
    flat: path.stop === "flat",
    finite: path.finite ?? null,
    end,
    beside: beside.length ? [...new Set([end, ...beside])] : [],
  };
}

/** Logarithm of 1 - weight of a limit's tokens (and those of the same score) at p, the mean over the inputs. */
export function logRest(plane, limit, [x, y]) {
  const parts = plane.inputs.map(({ tokens }, i) => {
    const pivot = plane.lead(i, x, y), top = plane.logit[pivot], own = limit.sets[i], score = tokens[own[0]].score;
    let others = -Infinity, total = 0;
    const rest = [];
    tokens.forEach((token, t) => {
      const z = plane.logit[plane.first[i] + t] - top;
      total += Math.exp(z);
      if (!own.includes(t) && token.score !== score) rest.push(z);
    });
    if (rest.length) {
      const most = Math.max(...rest);
      others = most + Math.log(rest.reduce((sum, z) => sum + Math.exp(z - most), 0));
    }
    return others - Math.log(total);
  });
  const most = Math.max(...parts);
  return most + Math.log(parts.reduce((sum, part) => sum + Math.exp(part - most), 0) / parts.length);
}

function slopeOf(points) {
  if (points.length < 4) return NaN;
  const mean = (j) => points.reduce((sum, p) => sum + p[j], 0) / points.length, [mx, my] = [mean(0), mean(1)];
  const up = points.reduce((sum, [x, y]) => sum + (x - mx) * (y - my), 0), across = points.reduce((sum, [x]) => sum + (x - mx) ** 2, 0);
  return across > 0 ? up / across : NaN;
}

/** The two curves of "why the margin", and their slopes measured over their ends. */
export function curvesOf(plane, limit, run) {
  if (!limit) return { rest: [], angle: [], reach: 1, slopes: { rest: NaN, angle: NaN } };
  const norm = ([x, y]) => Math.hypot(x, y), reach = 40 / limit.margin + norm(run.dense[0]);
  const rest = run.dense.filter((p) => norm(p) <= 1.4 * reach && norm(p) > 0).map((p) => [norm(p), logRest(plane, limit, p)]);
  const angle = run.dense.filter((p) => norm(p) > 0).map((p) => [norm(p), angleBetween(p, limit.unit)]);
  const measured = angle.filter(([x, off]) => x > 30 / limit.margin && x < 3e4 / limit.margin && off > 1e-8);
  return {
    rest, angle, reach,
    slopes: {
      rest: slopeOf(rest.filter(([x]) => x > 0.5 * reach && x <= reach)),
      angle: slopeOf(measured.map(([x, off]) => [Math.log(x), Math.log(off)])),
    },
  };
}

/** The tokens of highest score, the first of equals: what is asked about unless something else is. */
export const bestOf = (inputs) => inputs.map(({ tokens }) => { const scores = sharedScores(tokens); return scores.indexOf(Math.max(...scores)); });

/** Selections are counted like numbers, the last input's token changing fastest. */
export const countSelections = (inputs) => inputs.reduce((product, { tokens }) => product * tokens.length, 1);
export function selectionAt(inputs, number) {
  let rest = number;
  return inputs.map(({ tokens }) => tokens.length).reverse().map((size) => { const t = rest % size; rest = (rest - t) / size; return t; }).reverse();
}
export const numberOf = (inputs, selected) => inputs.reduce((number, { tokens }, i) => number * tokens.length + selected[i], 0);

/** Everything about a state. */
export function pictureOf(state, view, { section, moving = false }) {
  const plane = new Plane(state.inputs, state.loss), limits = limitsOf(state.inputs, state.loss);
  const run = section === "tokens" ? null : runOf(plane, limits, state, view, { moving, fine: section === "margin" });
  const picture = { plane, limits, run, state, view };
  if (section === "margin") Object.assign(picture, { curves: curvesOf(plane, limits[run.end], run) });
  if (section === "proofs") picture.arcs = new Set(arcsOf(state.inputs).arcs.map(({ places }) => `${places}`)).size;
  if (section === "proofs") picture.verdict = verdictOn(state.inputs, state.asked ?? bestOf(state.inputs));
  return picture;
}
