// Limits with a finite part: tokens on a line hold one another for ever, while p leaves the others behind across it.

export const NEAR_FINITE = 1e-6; // balance from which such tokens are looked for, as in the library
const TIED = 3e-4; // weight from which tokens are seen to rest together; the others have about its square then
const DRIFTS = 3e-3; // balance of the others' pull that is more than what leaving them out has done
const SAME = 1e-10; // share of the longest difference of keys below which one is rounding

/**
 * The limit p = w e + z n, z without bound, near whose path p lies: {w, e, n, z, tied}, `tied` input by input. Null where
 * tokens rest in no such way, or the others' pull may turn.
 */
export function finitePart(plane, px, py) {
  const line = lineOfTies(plane, px, py);
  if (line === null) return null;
  const { e, tied, pivots } = line, begun = px * e[0] + py * e[1], w = restAlong(plane, line, begun);
  if (w === null || Math.abs(w - begun) > 1e-3 * Math.max(1, Math.hypot(px, py))) return null;
  const across = (t) => plane.y[t] * e[0] - plane.x[t] * e[1], z = py * e[0] - px * e[1];
  const drift = othersDrift(plane, line, across, w), way = Math.sign(drift(z));
  const leaves = everyToken(plane, pivots).every(([, t, pivot]) => tied[t] || way * (across(t) - across(pivot)) < 0);
  if (way === 0 || !leaves) return null;
  for (let k = 0; k < 40; k++) if (!(way * drift(z + way * (1 + Math.abs(z)) * (1.3 ** k - 1)) > DRIFTS)) return null;
  const sets = plane.inputs.map(({ tokens }, i) => tokens.flatMap((_, t) => (tied[plane.first[i] + t] ? [t] : [])));
  return { w, e, z: way * z, n: [-way * e[1], way * e[0]], tied: sets };
}

/** (input, token, pivot of the input) of all tokens. */
function everyToken({ first }, pivots) {
  return pivots.flatMap((pivot, i) => Array.from({ length: first[i + 1] - first[i] }, (_, t) => [i, first[i] + t, pivot]));
}

/** The direction e along which all tokens with weight differ, and all that differ from their pivot along it alone. */
function lineOfTies(plane, px, py) {
  const { x, y, score } = plane, pivots = plane.inputs.map((_, i) => plane.lead(i, px, py)), all = everyToken(plane, pivots);
  const seen = all.filter(([, t, pivot]) => Math.exp(plane.logit[t] - plane.logit[pivot]) > TIED);
  // Tokens of one score do not pull at one another: they may still be parting.
  const mixed = new Set(seen.filter(([, t, pivot]) => score[t] !== score[pivot]).map(([i]) => i));
  const apart = seen.filter(([i]) => mixed.has(i)).map(([, t, pivot]) => [x[t] - x[pivot], y[t] - y[pivot]]);
  const longest = apart.reduce((a, b) => (Math.hypot(...b) > Math.hypot(...a) ? b : a), [0, 0]), size = Math.hypot(...longest);
  if (!(size > 0)) return null;
  const e = [longest[0] / size, longest[1] / size], off = (dx, dy) => Math.abs(dx * e[1] - dy * e[0]) > SAME * size;
  if (apart.some(([dx, dy]) => off(dx, dy))) return null;
  const tied = new Uint8Array(x.length);
  for (const [, t, pivot] of all) tied[t] = off(x[t] - x[pivot], y[t] - y[pivot]) ? 0 : 1;
  return { e, tied, pivots };
}

/** The tied tokens of one input alone, where p is w along e: output, sum of masses, pull along e and its derivative. */
function alone(plane, { e, tied, pivots }, i, w) {
  const place = (t) => plane.x[t] * e[0] + plane.y[t] * e[1], top = place(pivots[i]) * w, own = [];
  for (let t = plane.first[i]; t < plane.first[i + 1]; t++) if (tied[t]) own.push([Math.exp(place(t) * w - top), place(t), plane.score[t]]);
  const total = own.reduce((sum, [s]) => sum + s, 0), mean = (of) => own.reduce((sum, [s, a, g]) => sum + (s / total) * of(a, g), 0);
  const output = mean((a, g) => g), middle = mean((a) => a);
  const pull = mean((a, g) => (g - output) * (a - middle)), bent = mean((a, g) => (g - output) * (a - middle) ** 2);
  return { output, total, pull, bent, slope: Math.exp(plane.loss.logSlope(output)) };
}

/** Where along e the tied tokens rest, by Newton's method; null where that is no minimum of their loss. */
function restAlong(plane, line, begun) {
  let w = begun, step = Infinity, curved = 0;
  for (let k = 0; k < 30 && Math.abs(step) > 1e-14 * (1 + Math.abs(w)); k++) {
    const parts = line.pivots.map((_, i) => alone(plane, line, i, w));
    curved = parts.reduce((sum, { slope, bent, output, pull }) => sum + slope * (bent + plane.loss.bend(output) * pull ** 2), 0);
    step = -parts.reduce((sum, { slope, pull }) => sum + slope * pull, 0) / curved;
    w += step;
  }
  return curved < 0 && Math.abs(step) < 1e-10 * (1 + Math.abs(w)) ? w : null;
}

/** The pull of the others across the line as a function of z, over the sum of its terms. */
function othersDrift(plane, line, across, w) {
  const { e, tied, pivots } = line, place = (t) => plane.x[t] * e[0] + plane.y[t] * e[1];
  const parts = pivots.map((_, i) => alone(plane, line, i, w));
  const others = everyToken(plane, pivots).filter(([, t]) => !tied[t]).map(([i, t, pivot]) => {
    const ahead = across(t) - across(pivot), { slope, total, output } = parts[i];
    return [(place(t) - place(pivot)) * w + Math.log(slope / total), ahead, (plane.score[t] - output) * ahead];
  });
  return (z) => {
    const logs = others.map(([log, ahead]) => log + ahead * z), most = Math.max(...logs);
    let sum = 0, sizes = 0;
    others.forEach(([, , pull], k) => {
      sum += Math.exp(logs[k] - most) * pull;
      sizes += Math.exp(logs[k] - most) * Math.abs(pull);
    });
    return sizes > 0 ? sum / sizes : 0;
  };
}
