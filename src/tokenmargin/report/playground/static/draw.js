// The drawing: from the server's answer to shapes. Nothing is computed here but places on the screen.

import { RIM, outlineOf, palette, placeOf, promptAtPlace, svg } from "./explore/drawing.js";
import { LETTERS, nameOf } from "./state.js";

export { RIM, palette, svg };
const RING = [269, 283], BADGE = 300, TOKEN = 13, SPREAD = 178;
const SQUEEZE = { half: 2.5 }; // the norm of p that is drawn half-way to the rim; the rim is infinity
const place = (point) => placeOf(point, SQUEEZE);

/** The prompt at a place: the inverse of `place`, for dragging. */
export const prompt = (at) => promptAtPlace(at, SQUEEZE);

/** Scale of the tokens: the farthest is drawn at `SPREAD`. */
export function scaleOf(state) {
  const far = Math.max(0.2, ...state.inputs.flatMap((row) => row.tokens.map((k) => Math.hypot(k.x, k.y))));
  return SPREAD / far;
}

export class Plane {
  constructor(root) {
    this.root = root;
    this.layers = {};
    this.tokens = new Map();
    root.append(
      svg("defs", {}, [svg("clipPath", { id: "disc" }, [svg("circle", { r: RIM })])]),
      (this.ground = svg("g")),
    );
    for (const name of ["bands", "paths", "rays", "ring", "training", "tokens"]) {
      this.layers[name] = svg("g", { id: `layer-${name}` });
      if (["bands", "paths", "training"].includes(name)) this.layers[name].setAttribute("clip-path", "url(#disc)");
      root.append(this.layers[name]);
    }
    this.handle = svg("g", { id: "start", class: "token", tabindex: "0", role: "slider", "aria-valuenow": "0" });
    this.root.append(this.handle);
    this.theme();
  }

  /** The colours, and the size of what is drawn: on a small screen larger, to be read and touched. */
  theme() {
    this.zoom = Math.min(1.6, Math.max(1, 560 / (this.root.clientWidth || 560)));
    const ink = (this.c = palette());
    this.root.setAttribute("font-family", "system-ui, sans-serif");
    this.ground.replaceChildren(
      svg("circle", { r: RIM, fill: ink.card, stroke: ink.line }),
      svg("path", { d: `M${-RIM} 0H${RIM}M0 ${-RIM}V${RIM}`, stroke: ink.grid }),
    );
  }

  /** Tokens follow the pointer at once; everything else comes with the answer. */
  drawTokens(state, scale, chosen, answer) {
    const marks = answer ? this.marks(answer, state) : new Map();
    const seen = new Set();
    state.inputs.forEach((row, i) => row.tokens.forEach((token, t) => {
      const key = `${i},${t}`;
      seen.add(key);
      let node = this.tokens.get(key);
      if (!node) {
        node = svg("g", { class: "token", tabindex: "0", role: "button", "data-token": key });
        this.tokens.set(key, node);
        this.layers.tokens.append(node);
      }
      node.setAttribute("transform", `translate(${token.x * scale} ${-token.y * scale}) scale(${this.zoom})`);
      node.classList.toggle("chosen", key === chosen);
      node.setAttribute("aria-label",
        `Token ${nameOf(i, t)} at ${token.x.toFixed(2)}, ${token.y.toFixed(2)}, score ${token.score.toFixed(2)}. ` +
        "Arrow keys move it, plus and minus change its score, Delete removes it.");
      const looks = JSON.stringify([token.score, marks.get(key), this.c.ink]);
      if (node.looks !== looks) {
        node.looks = looks;
        node.replaceChildren(...this.tokenShapes(i, t, token, marks.get(key)));
      }
    }));
    for (const [key, node] of this.tokens) {
      if (!seen.has(key)) {
        node.remove();
        this.tokens.delete(key);
      }
    }
  }

  tokenShapes(i, t, token, mark = { near: [] }) {
    const ring = mark.selected ?? mark.neighbour;
    const shapes = [
      svg("path", { class: "halo", d: outlineOf(i, TOKEN + 6), fill: "transparent", stroke: "none" }),
      svg("path", {
        d: outlineOf(i, TOKEN), fill: this.c.token, stroke: ring ?? this.c.ink, "stroke-width": mark.selected ? 4.5 : ring ? 2.5 : 1.3,
        ...(mark.neighbour ? { "stroke-dasharray": "4 3" } : {}),
      }),
      this.text(0, 3.6, nameOf(i, t), { "font-weight": 600, "font-size": 10.5 }),
      this.text(0, TOKEN + 14, `${mark.best ? "★ " : ""}${+token.score.toFixed(2)}`, { fill: this.c.soft, "font-size": 10 }),
    ];
    mark.near.forEach((colour, k) => {
      const a = -2.3 + 0.55 * k;
      shapes.push(svg("circle", { cx: (TOKEN + 3) * Math.cos(a), cy: (TOKEN + 3) * Math.sin(a), r: 3.2, fill: colour, stroke: this.c.card }));
    });
    return shapes;
  }

  /** For every token: is it selected or a neighbour of the chosen direction, best by score, a neighbour of others. */
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
        limit.neighbours.forEach(([i, t]) => { at(i, t).neighbour = colour; });
      } else limit.neighbours.forEach(([i, t]) => at(i, t).near.push(colour));
    });
    return marks;
  }

  draw(answer, scale) {
    this.layers.bands.replaceChildren(...this.bands(answer, scale));
    this.layers.paths.replaceChildren(...answer.paths.map((path) => this.path(path.points, this.c.limit(answer.colourOf(path.basin)), 1.3, 0.75)));
    this.layers.rays.replaceChildren(...this.rays(answer, scale));
    this.layers.ring.replaceChildren(...this.ring(answer));
  }

  bands(answer, scale) {
    const limit = answer.limits[answer.focus];
    if (!limit) return [];
    const colour = this.c.limit(answer.colour[answer.focus]);
    const turn = `rotate(${-degrees(limit.unit)})`;
    const bands = limit.levels.flatMap((level, i) => {
      const to = level * scale, from = to - limit.margin * scale;
      return [svg("g", { transform: turn, class: "band" }, [
        svg("rect", { x: from, y: -RIM, width: to - from, height: 2 * RIM, fill: colour, "fill-opacity": 0.11 }),
        svg("line", { x1: to, x2: to, y1: -RIM, y2: RIM, stroke: colour, "stroke-opacity": 0.55 }),
        svg("line", { x1: from, x2: from, y1: -RIM, y2: RIM, stroke: colour, "stroke-opacity": 0.55, "stroke-dasharray": "4 4" }),
        this.text(to, -RIM + 40 + 22 * i, LETTERS[i], { fill: colour, "font-weight": 700, "font-size": 11 }),
      ])];
    });
    return [...bands, ...this.cone(answer, limit, turn, colour)];
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

  rays(answer, scale) {
    const shapes = answer.limits.flatMap((limit, k) => {
      const colour = this.c.limit(answer.colour[k]);
      const [x, y] = limit.unit, focus = k === answer.focus;
      const length = Math.min(limit.margin * scale, RIM);
      return [svg("g", { class: "ray", "data-limit": k }, [
        svg("line", { x2: x * RIM, y2: -y * RIM, stroke: colour, "stroke-width": limit.gmm ? 3.5 : 2, "stroke-opacity": focus ? 1 : 0.75 }),
        svg("line", { class: "margin", x2: x * length, y2: -y * length, stroke: colour, "stroke-width": limit.gmm ? 9 : 6, "stroke-linecap": "round", "stroke-opacity": 0.55 }),
        svg("g", { transform: `translate(${x * BADGE} ${-y * BADGE}) scale(${this.zoom})` }, [
          svg("circle", { r: 11, fill: colour, stroke: focus ? this.c.ink : "none", "stroke-width": 2 }),
          this.text(0, 4, limit.gmm ? "★" : `${k + 1}`, { fill: "#fff", "font-weight": 700, "font-size": 11.5 }),
        ]),
      ])];
    });
    for (const [name, label, dash] of [["relaxed", "p relaxed", "3 4"], ["head", "v", "8 4"]]) {
      const unit = answer.both?.[name];
      if (!unit) continue;
      const [x, y] = unit;
      shapes.push(
        svg("line", { x2: x * RIM, y2: -y * RIM, stroke: this.c.ink, "stroke-width": 1.6, "stroke-dasharray": dash }),
        this.text(x * (RIM - 34), -y * (RIM - 34) - 7, label, {}),
      );
    }
    return shapes;
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
    const at = points[Math.min(frame, points.length - 1)];
    const [x, y] = place(at);
    const shapes = [
      svg("circle", { r: place([answer.ring_norm, 0])[0], fill: "none", stroke: this.c.line, "stroke-dasharray": "2 5" }),
      this.path(points, this.c.ink, 1, 0.35),
      this.path(points.slice(0, frame + 1), this.c.ink, 2.6, 1),
    ];
    if (answer.both) shapes.push(this.path(answer.both.head_path, this.c.soft, 1.8, 0.9, "6 4"));
    shapes.push(svg("circle", { cx: x, cy: y, r: 6, fill: this.c.ink, stroke: this.c.card, "stroke-width": 2 }));
    this.layers.training.replaceChildren(...shapes);
    this.layers.training.setAttribute("pointer-events", "none");
    const [hx, hy] = place(state.start);
    this.handle.setAttribute("transform", `translate(${hx} ${hy}) scale(${this.zoom})`);
    this.handle.setAttribute("aria-label", "Start of training p. Arrow keys move it.");
    this.handle.setAttribute("aria-valuetext", `${state.start[0].toFixed(2)}, ${state.start[1].toFixed(2)}`);
    this.handle.replaceChildren(
      svg("circle", { class: "halo", r: 14, fill: "transparent", stroke: "none" }),
      svg("path", { d: "M0 -8 8 0 0 8 -8 0Z", fill: this.c.card, stroke: this.c.ink, "stroke-width": 2 }),
      this.text(0, 3.5, "p", { "font-size": 9.5, "font-weight": 700 }),
    );
  }

  path(points, colour, width, opacity, dash) {
    const d = points.map((p, k) => `${k ? "L" : "M"}${place(p).map((v) => v.toFixed(1)).join(" ")}`).join("");
    return svg("path", { d, fill: "none", stroke: colour, "stroke-width": width, "stroke-opacity": opacity, "stroke-linejoin": "round", ...(dash ? { "stroke-dasharray": dash } : {}) });
  }

  text(x, y, content, attributes) {
    return svg("text", { x, y, "text-anchor": "middle", "pointer-events": "none", "font-size": 11, fill: this.c.ink, ...attributes }, [content]);
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

const degrees = ([x, y]) => (Math.atan2(y, x) * 180) / Math.PI;

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
