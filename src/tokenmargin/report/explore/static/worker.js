// The ground of the disc, computed beside the page: coarse first, then finer, dropped when something newer is asked.

import { limitsOf } from "./limits.js";
import { ground } from "./paths.js";

const SLICE = 400; // starts between two looks at the post
const PATIENCE = 8000; // milliseconds for a finer picture; one that would take longer is not begun
export const SIDES = { moving: [26], still: [32, 64, 128, 384] };
const WHOLE = 128; // finer pictures, and those that would take too long, are computed along the borders of the last one

/** The prompt at a place of the unit square that holds the disc, or null outside: `half` is drawn half-way to the rim. */
export function promptInSquare(half) {
  return (across, down) => {
    const x = 2 * across - 1, y = 1 - 2 * down, radius = Math.hypot(x, y);
    if (radius >= 1.15) return null; // a little beyond the rim, for the picture's edge
    const inside = Math.min(radius, 0.985);
    return radius === 0 ? [0, 0] : [x, y].map((z) => ((z / radius) * half * inside) / (1 - inside));
  };
}

/** A finer grid begun: labels that a coarser one gives, and the cells still to compute, near its borders. */
function finer(side, { coarse = 0, known = null, every = side <= WHOLE } = {}) {
  const labels = new Int8Array(side * side), cells = [];
  const inner = (z) => Math.max(0, Math.min(coarse - 1, z)), alike = every ? null : known.map((label, k) => {
    const [x, y] = [k % coarse, Math.floor(k / coarse)];
    for (let j = 0; j < 9; j++) if (known[inner(y + Math.floor(j / 3) - 1) * coarse + inner(x + (j % 3) - 1)] !== label) return 0;
    return 1;
  });
  for (let k = 0; k < side * side; k++) {
    const from = Math.floor((Math.floor(k / side) * coarse) / side) * coarse + Math.floor(((k % side) * coarse) / side);
    if (every || !alike[from]) cells.push(k);
    else labels[k] = known[from];
  }
  return { labels, cells };
}

/** Answer messages {id, inputs, loss, half, moving} with {id, side, labels, last}, newest first and only. */
export function serveGround(scope, later = (act) => setTimeout(act, 0)) {
  let newest = 0;
  scope.onmessage = ({ data }) => {
    newest = data.id;
    const limits = limitsOf(data.inputs, data.loss), sides = data.moving ? SIDES.moving : SIDES.still;
    let began = 0;
    const work = (level, from, labels, cells) => {
      if (newest !== data.id) return;
      if (from === 0) began = performance.now();
      const side = sides[level], part = cells.slice(from, from + SLICE);
      ground(data.inputs, limits, { side, promptAt: promptInSquare(data.half), loss: data.loss, step: 0.1 * data.unit, draft: data.moving, cells: part, into: labels });
      if (from + SLICE < cells.length) return later(() => work(level, from + SLICE, labels, cells));
      const takes = (next) => ((performance.now() - began) * next.cells.length) / cells.length, known = { coarse: side, known: labels };
      let next = level + 1 < sides.length ? finer(sides[level + 1], known) : null;
      if (next && takes(next) > PATIENCE) next = finer(sides[level + 1], { ...known, every: false });
      const last = !next || takes(next) > PATIENCE;
      scope.postMessage({ id: data.id, side, labels, last });
      if (!last) later(() => work(level + 1, 0, next.labels, next.cells));
    };
    later(() => work(0, 0, ...Object.values(finer(sides[0]))));
  };
}
