// The ground of the disc, computed beside the page: coarse first, then finer, dropped when something newer is asked.

import { limitsOf } from "./limits.js";
import { ground } from "./paths.js";

const SLICE = 400; // starts between two looks at the post
const PATIENCE = 8000; // milliseconds for a finer picture; one that would take longer is not begun
export const SIDES = { moving: [26], still: [32, 64, 128, 192] };

/** The prompt at a place of the unit square that holds the disc, or null outside: `half` is drawn half-way to the rim. */
export function promptInSquare(half) {
  return (across, down) => {
    const x = 2 * across - 1, y = 1 - 2 * down, radius = Math.hypot(x, y);
    if (radius >= 1.15) return null; // a little beyond the rim, for the picture's edge
    const inside = Math.min(radius, 0.985);
    return radius === 0 ? [0, 0] : [x, y].map((z) => ((z / radius) * half * inside) / (1 - inside));
  };
}

/** Answer messages {id, inputs, loss, half, moving} with {id, side, labels, last}, newest first and only. */
export function serveGround(scope, later = (act) => setTimeout(act, 0)) {
  let newest = 0;
  scope.onmessage = ({ data }) => {
    newest = data.id;
    const limits = limitsOf(data.inputs, data.loss), sides = data.moving ? SIDES.moving : SIDES.still;
    let began = 0;
    const work = (level, from, labels) => {
      if (newest !== data.id) return;
      if (from === 0) began = performance.now();
      const side = sides[level], to = Math.min(from + SLICE, side * side);
      ground(data.inputs, limits, { side, promptAt: promptInSquare(data.half), loss: data.loss, step: 0.1 * data.unit, draft: data.moving, from, to, into: labels });
      if (to < side * side) return later(() => work(level, to, labels));
      const finer = sides[level + 1] ?? Infinity, last = (performance.now() - began) * (finer / side) ** 2 > PATIENCE;
      scope.postMessage({ id: data.id, side, labels, last });
      if (!last) later(() => work(level + 1, 0, new Int8Array(sides[level + 1] ** 2)));
    };
    later(() => work(0, 0, new Int8Array(sides[0] ** 2)));
  };
}
