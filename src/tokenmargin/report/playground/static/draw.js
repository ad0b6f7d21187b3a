// The disc of the explorable page, with what the server adds: a ring of starts, many paths, the cone, the head.

import { Disc, RIM, placeOf, promptAtPlace, svg } from "./explore/drawing.js";
import { nameOf } from "./explore/plane.js";

const RING = [269, 283], BADGE = 300, SPREAD = 178, HALF = 2.5; // the norm of p that is drawn half-way to the rim
const place = (point) => placeOf(point, { half: HALF });

/** The prompt at a place: the inverse of `place`, for dragging. */
export const prompt = (at) => promptAtPlace(at, { half: HALF });

/** Scale of the tokens: the farthest is drawn at `SPREAD`. */
export function scaleOf(state) {
  const far = Math.max(0.2, ...state.inputs.flatMap((row) => row.tokens.map((k) => Math.hypot(k.x, k.y))));
  return SPREAD / far;
}

export class Plane extends Disc {
  constructor(root) {
    super(root, null);
    this.handle.id = "start";
    this.handle.classList.add("token");
    this.layers.ring = svg("g", { id: "layer-ring" });
    this.layers.base.after(this.layers.ring);
    this.layers.training.setAttribute("pointer-events", "none");
  }

  theme() {
    super.theme();
    this.base({ half: HALF }, { beyond: 24 });
    this.layers.base.prepend(svg("circle", { r: RIM, fill: this.c.card }));
  }

  /** Tokens follow the pointer at once; everything else comes with the answer. */
  drawTokens(state, scale, chosen, answer) {
    const describe = (i, t) => {
      const { x, y, score } = state.inputs[i].tokens[t];
      return `Token ${nameOf(i, t)} at ${x.toFixed(2)}, ${y.toFixed(2)}, score ${score.toFixed(2)}. Arrow keys move it, plus and minus change its score, Delete removes it.`;
    };
    this.tokens(state.inputs, { scale }, answer ? this.marks(answer, state) : new Map(), describe);
    for (const [key, node] of this.nodes) node.classList.toggle("chosen", key === chosen);
  }

  tokenShapes(i, t, token, mark) {
    const near = (mark.near ?? []).map((colour, k) => {
      const a = -2.3 + 0.55 * k;
      return svg("circle", { cx: 16 * Math.cos(a), cy: 16 * Math.sin(a), r: 3.2, fill: colour, stroke: this.c.card });
    });
    return [...super.tokenShapes(i, t, token, mark), ...near];
  }

  /** For every token: is it selected or on the margin of the chosen direction, best by score, a neighbour of others. */
  marks(answer, state) {
    const marks = new Map();
    const at = (i, t) => {
      const key = `${i},${t}`;
      if (!marks.has(key)) marks.set(key, { near: [] });
      return marks.get(key);
    };
    answer.optimal.forEach((row, i) => row.forEach((best, t) => { if (best && state.inputs[i]?.tokens[t]) at(i, t).best = true; }));
    answer.limits.forEach((limit, k) => {
      const colour = this.c.limit(answer.colour[k]);
      if (k === answer.focus) {
        limit.chosen.forEach(([i, t]) => { at(i, t).selected = colour; });
        limit.neighbours.forEach(([i, t]) => { at(i, t).support = colour; });
      } else limit.neighbours.forEach(([i, t]) => at(i, t).near.push(colour));
    });
    return marks;
  }

  draw(answer, scale, inputs) {
    const limit = answer.limits[answer.focus], colour = limit && this.c.limit(answer.colour[answer.focus]);
    const limits = answer.limits.map((one) => ({ ...one, global: one.gmm, sets: inputs.map((_, i) => one.chosen.filter(([j]) => j === i).map(([, t]) => t)) }));
    this.bands(limits[answer.focus] ?? null, inputs, { scale }, colour);
    if (limit) this.layers.bands.append(...this.cone(answer, limit, `rotate(${(-Math.atan2(limit.unit[1], limit.unit[0]) * 180) / Math.PI})`, colour));
    this.layers.paths.replaceChildren(...answer.paths.map((path) => this.curve(path.points, this.c.limit(answer.colourOf(path.basin)), 1.3, 0.75)));
    this.rays(limits, (k) => answer.colour[k], answer.focus, BADGE);
    this.layers.rays.append(...this.together(answer));
    this.layers.ring.replaceChildren(...this.ring(answer));
  }

  /** The cone of Theorem 3, from the norm its proof asks for to the rim. */
  cone(answer, limit, turn, colour) {
    const { cone, selected } = answer.asked;
    if (!cone || `${selected}` !== `${limit.selected}`) return [];
    const inner = place([cone.norm, 0])[0], corner = (r, a) => `${(r * Math.cos(a)).toFixed(2)} ${(r * Math.sin(a)).toFixed(2)}`;
    const [a, b] = [-cone.half_angle, cone.half_angle];
    const lines = [a, a / 2, 0, b / 2, b].map((turned) => `M${corner(inner, turned)}L${corner(RIM, turned)}`).join("");
    return [svg("g", { transform: turn, class: "cone" }, [
      svg("path", { d: `M${corner(inner, a)}L${corner(RIM, a)}A${RIM} ${RIM} 0 0 1 ${corner(RIM, b)}L${corner(inner, b)}Z`, fill: colour, "fill-opacity": 0.3 }),
      svg("path", { d: lines, stroke: colour, "stroke-width": 1.2, "stroke-opacity": 0.8 }),
    ])];
  }

  /** Where head and prompt go when they are trained together. */
  together({ both }) {
    return [["relaxed", "p relaxed", "3 4"], ["head", "v", "8 4"]].filter(([name]) => both?.[name]).flatMap(([name, label, dash]) => {
      const [x, y] = both[name];
      return [svg("path", { d: `M0 0L${x * RIM} ${-y * RIM}`, stroke: this.c.ink, "stroke-width": 1.6, "stroke-dasharray": dash }),
        this.text(x * (RIM - 34) - 12 * y, -y * (RIM - 34) - 12 * x, label, { stroke: this.c.card, "stroke-width": 3.5, "paint-order": "stroke" })];
    });
  }

  ring(answer) {
    const count = answer.ring.length, shapes = [];
    for (let k = 0; k < count; ) {
      let end = k + 1;
      while (end < count && answer.ring[end] === answer.ring[k]) end += 1;
      shapes.push(svg("path", {
        d: sector((2 * Math.PI * (k - 0.5)) / count, (2 * Math.PI * (end - 0.5)) / count), class: "sector", "data-basin": answer.ring[k],
        fill: this.c.limit(answer.colourOf(answer.ring[k])), ...(answer.ring[k] < 0 ? { "fill-opacity": 0.45 } : {}),
      }));
      k = end;
    }
    return shapes;
  }

  drawTraining(state, answer, frame) {
    const points = answer.both?.prompt_path ?? answer.training.points;
    this.training({ points, beyond: [] }, Math.min(frame, points.length - 1), { half: HALF }, this.c.ink, null);
    this.layers.training.prepend(svg("circle", { r: place([answer.ring_norm, 0])[0], fill: "none", stroke: this.c.line, "stroke-dasharray": "2 5" }));
    if (answer.both) this.layers.training.prepend(this.curve(answer.both.head_path, this.c.soft, 1.8, 0.9, "6 4"));
    this.prompt(state.start, { half: HALF }, "p", "Start of training p. Arrow keys move it.");
    this.handle.setAttribute("aria-valuetext", `${state.start[0].toFixed(2)}, ${state.start[1].toFixed(2)}`);
  }

  curve(points, colour, width, opacity, dash) {
    return svg("path", { d: this.pathOf(points, { half: HALF }), fill: "none", stroke: colour, "stroke-width": width, "stroke-opacity": opacity, "stroke-linejoin": "round", ...(dash ? { "stroke-dasharray": dash } : {}) });
  }

  /** A picture that stands on its own: nothing in it refers to the page. */
  export() {
    const copy = this.root.cloneNode(true);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.removeAttribute("role");
    copy.setAttribute("width", 960);
    copy.setAttribute("height", 960);
    copy.prepend(svg("rect", { x: -320, y: -320, width: 640, height: 640, fill: this.c.paper }));
    return new XMLSerializer().serializeToString(copy);
  }
}

function sector(from, to) {
  const at = (radius, angle) => `${(radius * Math.cos(angle)).toFixed(2)} ${(-radius * Math.sin(angle)).toFixed(2)}`;
  if (to - from > 6.283) {
    const circle = (r, way) => `M${r} 0A${r} ${r} 0 1 ${way} ${-r} 0A${r} ${r} 0 1 ${way} ${r} 0Z`;
    return circle(RING[1], 0) + circle(RING[0], 1);
  }
  const large = to - from > Math.PI ? 1 : 0;
  return `M${at(RING[0], from)}L${at(RING[1], from)}A${RING[1]} ${RING[1]} 0 ${large} 0 ${at(RING[1], to)}` +
    `L${at(RING[0], to)}A${RING[0]} ${RING[0]} 0 ${large} 1 ${at(RING[0], from)}Z`;
}
