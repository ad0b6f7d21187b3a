// The drawing: from numbers to shapes. Tokens lie on a linear scale; p is drawn with infinity at the rim.

import { nameOf } from "./plane.js";

const NS = "http://www.w3.org/2000/svg";
export const RIM = 262;
const TOKEN = 13, SPREAD = 170, FARTHEST = RIM - 16;

export function svg(name, attributes = {}, children = []) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Scales of a problem: pixels per unit of key, and the norm of p that is drawn half-way to the rim. */
export function viewOf(inputs) {
  const far = Math.max(1e-9, ...inputs.flatMap(({ tokens }) => tokens.map((k) => Math.hypot(k.x, k.y))));
  return { scale: SPREAD / far, half: 2.5 / far, unit: 1 / far };
}

export function placeOf([x, y], { half }) {
  const squeeze = RIM / (Math.hypot(x, y) + half);
  return [x * squeeze, -y * squeeze];
}

/** The prompt at a place, the inverse of `placeOf`; places beyond the rim are drawn in. */
export function promptAtPlace([x, y], { half }) {
  const away = Math.hypot(x, y), radius = Math.min(away, RIM * 0.95);
  if (away === 0) return [0, 0];
  const norm = (half * radius) / (RIM - radius);
  return [(norm * x) / away, (-norm * y) / away];
}

/** The key at a place: never outside the disc, where it could not be reached again. */
export function keyAtPlace([x, y], { scale }) {
  const away = Math.hypot(x, y), shrink = away > FARTHEST ? FARTHEST / away : 1;
  return [(x * shrink) / scale, (-y * shrink) / scale];
}

export function palette() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["ink", "soft", "line", "grid", "card", "token", "accent", "prompt", "key", "score", "paper", "positive", "negative"];
  const limits = [0, 1, 2, 3, 4, 5].map((k) => get(`limit-${k}`));
  return { ...Object.fromEntries(names.map((name) => [name, get(name)])), limit: (k) => (k < 0 ? get("limit-none") : k === 0 ? limits[0] : limits[1 + ((k - 1) % 5)]) };
}

/** The outline of a token: inputs are told apart by shape. */
export function outlineOf(i, r) {
  if (i === 0) return `M${r} 0A${r} ${r} 0 1 1 ${-r} 0A${r} ${r} 0 1 1 ${r} 0Z`;
  const corners = [0, 4, 3, 6, 5, 4][i] ?? 8, turn = { 1: Math.PI / 4, 2: -Math.PI / 2, 3: 0, 4: -Math.PI / 2, 5: 0 }[i] ?? 0;
  const size = { 1: 1.2, 2: 1.42, 3: 1.12, 4: 1.16, 5: 1.25 }[i] ?? 1.1;
  const at = (k) => [Math.cos(turn + (2 * Math.PI * k) / corners), Math.sin(turn + (2 * Math.PI * k) / corners)].map((z) => (z * r * size).toFixed(2)).join(" ");
  return `M${Array.from({ length: corners }, (_, k) => at(k)).join("L")}Z`;
}

/** How far the nearest other token is from each, in the drawing; tokens at one place fan out and do not count. */
function roomOf(inputs, { scale }) {
  const all = inputs.flatMap(({ tokens }) => tokens);
  return (i, t) => {
    const { x, y } = inputs[i].tokens[t];
    return Math.min(...all.map((k) => Math.hypot(k.x - x, k.y - y) * scale || Infinity));
  };
}

/** Whether two boxes [left, top, right, bottom] overlap. */
export const meets = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

/** Whether a ray from the centre crosses a box. */
const crosses = (box, [ux, uy]) => {
  for (let r = 4; r < RIM; r += 4) if (meets(box, [r * ux - 1, -r * uy - 1, r * ux + 1, -r * uy + 1])) return true;
  return false;
};

const line = (x1, y1, x2, y2, more) => svg("line", { x1, y1, x2, y2, ...more });
const degreesOf = ([x, y]) => (Math.atan2(y, x) * 180) / Math.PI;

export class Disc {
  constructor(root, canvas) {
    this.root = root;
    this.canvas = canvas;
    this.layers = {};
    this.nodes = new Map();
    root.append(svg("defs", {}, [svg("clipPath", { id: "inside" }, [svg("circle", { r: RIM })])]));
    for (const name of ["base", "bands", "paths", "rays", "feet", "training", "tokens", "sentence", "front"]) {
      this.layers[name] = svg("g", { id: `layer-${name}` });
      if (["bands", "paths", "feet", "training"].includes(name)) this.layers[name].setAttribute("clip-path", "url(#inside)");
      root.append(this.layers[name]);
    }
    this.handle = svg("g", { id: "prompt", class: "grip", tabindex: "0", role: "group", "aria-roledescription": "movable point" });
    root.append(this.handle);
    this.theme();
  }

  theme() {
    this.c = palette();
    this.zoom = Math.min(1.9, Math.max(1, 540 / (Math.min(this.root.clientWidth, this.root.clientHeight) || 540)));
    this.root.setAttribute("font-family", "system-ui, sans-serif");
    for (const node of this.nodes.values()) node.looks = null;
  }

  text(x, y, words, more = {}) {
    return svg("text", { x, y, "text-anchor": "middle", fill: this.c.ink, "font-size": 11, ...more }, [words]);
  }

  /** The frame: axes, two rings of norm, and infinity at the rim. */
  base(view, { rings = true, beyond = 0 } = {}) {
    const { c } = this, small = 9.5 * this.zoom, shapes = [
      svg("path", { d: `M${-RIM} 0H${RIM}M0 ${-RIM}V${RIM}`, stroke: c.grid }),
      svg("circle", { r: RIM, fill: "none", stroke: c.line, "stroke-width": 1.5 }),
    ];
    if (rings) {
      for (const norm of [view.half * 0.8, view.half * 8]) {
        const r = placeOf([norm, 0], view)[0];
        shapes.push(svg("circle", { r, fill: "none", stroke: c.line, "stroke-dasharray": "2 5" }),
          this.text(r * Math.SQRT1_2 + 12 * this.zoom, r * Math.SQRT1_2 + 9 * this.zoom, `|p| = ${+norm.toPrecision(2)}`, { fill: c.soft, "font-size": small, class: "quiet" }));
      }
      shapes.push(this.text((RIM + beyond) * Math.SQRT1_2 + 24 * this.zoom, (RIM + beyond) * Math.SQRT1_2 + 16 * this.zoom, "|p| = ∞", { fill: c.soft, "font-size": small + 1 }));
    }
    this.layers.base.replaceChildren(...shapes);
  }

  /** Tokens: drawn anew only where their looks change, moved otherwise. */
  tokens(inputs, view, marks, describe, rays = []) {
    const seen = new Set(), room = roomOf(inputs, view), placed = [];
    inputs.forEach(({ tokens }, i) => tokens.forEach((token, t) => {
      const key = `${i},${t}`;
      seen.add(key);
      let node = this.nodes.get(key);
      if (!node) {
        node = svg("g", { class: "grip token", tabindex: "0", role: "group", "aria-roledescription": "movable token", "data-token": key });
        this.nodes.set(key, node);
        this.layers.tokens.append(node);
      }
      // Tokens at one place fan out, so that each can be seen and taken.
      const before = inputs.flatMap((row, j) => row.tokens.filter((k, u) => (j < i || (j === i && u < t)) && k.x === token.x && k.y === token.y)).length;
      const crowd = Math.max(0.66, Math.min(1, room(i, t) / (2 * TOKEN * this.zoom))), [x, y] = [token.x * view.scale + 15 * before, -token.y * view.scale + 9 * before];
      node.setAttribute("transform", `translate(${x} ${y}) scale(${this.zoom * crowd})`);
      node.setAttribute("aria-label", describe(i, t));
      placed.push({ i, t, token, node, x, y, crowd, mark: marks.get(key) });
    }));
    this.placeScores(placed, rays);
    for (const { i, t, token, node, crowd, mark, score } of placed) {
      const looks = JSON.stringify([token.score, mark, this.zoom, crowd < 0.9, score]);
      if (node.looks === looks) continue;
      node.looks = looks;
      node.replaceChildren(...this.tokenShapes(i, t, mark, crowd < 0.9, score));
    }
    for (const [key, node] of this.nodes) {
      if (seen.has(key)) continue;
      node.remove();
      this.nodes.delete(key);
    }
  }

  /** Where each score is written: below its token, or where nothing else lies; without room, the best alone have theirs. */
  placeScores(placed, rays) {
    const { zoom } = this, handle = this.handle.style.display === "none" ? null : this.handle.getAttribute("transform")?.match(/translate\(([-\d.e]+) ([-\d.e]+)\)/)?.slice(1).map(Number);
    this.taken = placed.map(({ x, y, crowd }) => { const r = TOKEN * zoom * crowd; return [x - r, y - r, x + r, y + r]; });
    if (handle) { // the diamond, and what is written beside it
      const [x, y] = handle, wide = 8 * this.handle.textContent.length;
      this.taken.push([x - 9 * zoom, y - 9 * zoom, x + 9 * zoom, y + 9 * zoom], [x + 15 * zoom, y - 20 * zoom, x + (15 + wide) * zoom, y - 6 * zoom]);
    }
    for (const one of [...placed].sort((a, b) => Boolean(b.mark.best) - Boolean(a.mark.best))) {
      const words = `${one.mark.best ? "★ " : ""}${+one.token.score.toFixed(2)}`.replace("-", "−"), r = TOKEN * one.crowd, wide = 3.4 * words.length + 1;
      const places = [["middle", 0, r + 13], ["middle", 0, -r - 5], ["start", r + 4, 3.8], ["end", -r - 4, 3.8]].map(([anchor, dx, dy]) => {
        const middle = dx + (anchor === "start" ? wide : anchor === "end" ? -wide : 0);
        return { words, anchor, dx: +(dx / one.crowd).toFixed(1), dy: +(dy / one.crowd).toFixed(1), size: +(10.5 / one.crowd).toFixed(1), box: [one.x + zoom * (middle - wide), one.y + zoom * (dy - 9), one.x + zoom * (middle + wide), one.y + zoom * (dy + 2)] };
      });
      const free = places.filter(({ box }) => !this.taken.some((other) => meets(box, other))), found = free.find(({ box }) => !rays.some((unit) => crosses(box, unit))) ?? free[0] ?? (one.mark.best ? places[0] : null);
      if (!found) continue;
      this.taken.push(found.box);
      const { box, ...score } = found;
      one.score = score;
    }
  }

  tokenShapes(i, t, { selected, support, weight }, crowded, score) {
    const { c } = this, ring = selected ?? support;
    const shapes = [
      svg("path", { class: "halo", d: outlineOf(i, TOKEN + 6), fill: "transparent", stroke: "none" }),
      svg("path", { d: outlineOf(i, TOKEN), fill: c.token, stroke: ring ?? c.ink, "stroke-width": selected ? 4 : ring ? 2.6 : 1.3, ...(support && !selected ? { "stroke-dasharray": "4 3" } : {}) }),
    ];
    if (weight !== undefined) shapes.splice(1, 0, svg("path", { d: outlineOf(i, TOKEN + 11 * Math.sqrt(weight)), fill: c.key, "fill-opacity": 0.25 }));
    shapes.push(this.text(0, 3.8, nameOf(i, t), { "font-weight": 650, "font-size": crowded ? 12 : 10.5 }));
    if (score) shapes.push(
      svg("text", { x: score.dx, y: score.dy, "text-anchor": score.anchor, "font-size": score.size, fill: c.score, "font-weight": 600, stroke: c.card, "stroke-width": 3, "paint-order": "stroke" }, [score.words]),
    );
    return shapes;
  }

  /** p as an arrow, its line through the disc, and the foot of every token on it. */
  feet(inputs, view, p, plane) {
    const { c } = this, norm = Math.hypot(...p), shapes = [], tip = placeOf(p, view);
    if (norm > 0) {
      const [ux, uy] = [p[0] / norm, p[1] / norm];
      shapes.push(line(-ux * RIM, uy * RIM, ux * RIM, -uy * RIM, { stroke: c.prompt, "stroke-opacity": 0.35, "stroke-dasharray": "3 4" }));
      const logits = plane.logits(...p);
      const feet = inputs.flatMap(({ tokens }, i) => tokens.map((k, t) => ({ k, i, t, along: k.x * ux + k.y * uy, logit: logits[i][t] })));
      for (const { k, i, t, along } of feet) {
        const [fx, fy] = [along * ux * view.scale, -along * uy * view.scale];
        shapes.push(line(k.x * view.scale, -k.y * view.scale, fx, fy, { stroke: c.key, "stroke-opacity": 0.75, "stroke-width": 1.4, class: "foot", "data-foot": `${i},${t}` }),
          svg("circle", { cx: fx, cy: fy, r: 4, fill: c.key }));
      }
      let shown = -Infinity; // logits are written where they do not collide
      for (const { k, along, logit } of feet.sort((a, b) => a.along - b.along)) {
        if (along * view.scale - shown < 26 * this.zoom || Math.hypot(k.x - along * ux, k.y - along * uy) * view.scale < 24) continue;
        shown = along * view.scale;
        const side = uy * 16 > 0 ? 1 : -1, [fx, fy] = [along * ux * view.scale + 20 * this.zoom * uy * side, -along * uy * view.scale + 20 * this.zoom * ux * side];
        shapes.push(svg("text", { x: fx, y: fy + 4, "text-anchor": "middle", fill: c.key, "font-size": 11 * this.zoom, "font-weight": 650, stroke: c.card, "stroke-width": 3.5, "paint-order": "stroke" }, [logit.toFixed(2)]));
      }
      shapes.push(this.arrow(0, 0, ...tip, c.prompt, 3));
    }
    this.layers.feet.replaceChildren(...shapes);
  }

  arrow(x1, y1, x2, y2, colour, width = 2, more = {}) {
    const length = Math.hypot(x2 - x1, y2 - y1);
    if (length < 1) return svg("g");
    const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length], head = Math.min(10, length / 2);
    const [bx, by] = [x2 - ux * head, y2 - uy * head];
    return svg("g", more, [
      line(x1, y1, bx, by, { stroke: colour, "stroke-width": width }),
      svg("path", { d: `M${x2} ${y2}L${bx - uy * head * 0.5} ${by + ux * head * 0.5}L${bx + uy * head * 0.5} ${by - ux * head * 0.5}Z`, fill: colour }),
    ]);
  }

  /** The prompt's handle: a diamond at the start, or at p itself. */
  prompt(p, view, label, describe) {
    const [x, y] = placeOf(p, view), r = 9.5;
    this.handle.setAttribute("transform", `translate(${x} ${y}) scale(${this.zoom})`);
    this.handle.setAttribute("aria-label", describe);
    this.handle.replaceChildren(
      svg("circle", { class: "halo", r: r + 6, fill: "transparent" }),
      svg("path", { d: `M0 ${-r}L${r} 0L0 ${r}L${-r} 0Z`, fill: this.c.prompt, stroke: this.c.card, "stroke-width": 2 }),
      svg("text", { x: 15, y: -9, fill: this.c.prompt, "font-weight": 700, "font-size": 13, "font-style": label === "p" ? "italic" : "normal", stroke: this.c.card, "stroke-width": 3.5, "paint-order": "stroke" }, [label]),
    );
  }

  /** The band of a limit: from the selected token of each input back to the closest rival, one margin wide. */
  bands(limit, inputs, view, colour) {
    if (!limit) return this.layers.bands.replaceChildren();
    const [ux, uy] = limit.unit, wide = limit.margin * view.scale;
    const shapes = limit.sets.flatMap(([t], i) => {
      if (inputs[i].tokens.length < 2) return [];
      const to = (inputs[i].tokens[t].x * ux + inputs[i].tokens[t].y * uy) * view.scale, from = to - wide;
      return [svg("g", { transform: `rotate(${-degreesOf(limit.unit)})`, class: "band" }, [
        svg("rect", { x: from, y: -RIM, width: wide, height: 2 * RIM, fill: colour, "fill-opacity": 0.13 }),
        line(to, -RIM, to, RIM, { stroke: colour, "stroke-width": 1.6 }),
        line(from, -RIM, from, RIM, { stroke: colour, "stroke-width": 1.2, "stroke-dasharray": "5 4" }),
      ])];
    });
    this.layers.bands.replaceChildren(...shapes);
  }

  /** The differences that refute a selection, where they lie: from each rival to the selected token of its input. */
  differences(verdict, inputs, view, colour) {
    this.layers.paths.replaceChildren(...verdict.evidence.map(({ token: [i, t] }) => {
      const [from, to] = [inputs[i].tokens[t], inputs[i].tokens[verdict.selected[i]]];
      const [x, y] = [to.x - from.x, from.y - to.y].map((z) => z * view.scale), short = 1 - Math.min(0.5, (19 * this.zoom) / (Math.hypot(x, y) || 1));
      return this.arrow(from.x * view.scale, -from.y * view.scale, from.x * view.scale + x * short, -from.y * view.scale + y * short, colour, 3, { class: "difference" });
    }));
  }

  rays(limits, colourOf, focus, badge = RIM + 16) {
    this.layers.rays.replaceChildren(...limits.map((limit, k) => {
      const [x, y] = limit.unit, colour = this.c.limit(colourOf(k)), large = Math.sqrt(this.zoom);
      return svg("g", { class: "ray", "data-limit": k }, [
        line(0, 0, x * RIM, -y * RIM, { stroke: "transparent", "stroke-width": 14 }),
        line(0, 0, x * RIM, -y * RIM, { stroke: colour, "stroke-width": k === focus ? 3.4 : 1.8, "stroke-opacity": k === focus ? 1 : 0.8 }),
        svg("circle", { cx: x * badge, cy: -y * badge, r: 11 * large, fill: colour }),
        this.text(x * badge, -y * badge + 4.2 * large, limit.name ?? (limit.global ? "★" : `${k + 1}`), { fill: this.c.paper, "font-size": 11 * large, "font-weight": 700 }),
      ]);
    }));
  }

  pathOf(points, view) {
    let d = "", last = null;
    for (const p of points) {
      const [x, y] = placeOf(p, view);
      if (last && Math.abs(x - last[0]) + Math.abs(y - last[1]) < 0.4) continue;
      d += `${last ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`;
      last = [x, y];
    }
    return d;
  }

  /** The run: what has been walked, what is still to come, where it goes on for ever, and p now with its pull. */
  training(run, frame, view, colour, pull) {
    const { c } = this, [x, y] = placeOf(run.points[frame], view);
    const shapes = [
      svg("path", { d: this.pathOf(run.points.slice(frame), view), fill: "none", stroke: colour, "stroke-width": 1.6, "stroke-opacity": 0.45 }),
      svg("path", { d: this.pathOf(run.beyond, view), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": "1 5", "stroke-linecap": "round", "stroke-opacity": 0.8 }),
      svg("path", { d: this.pathOf(run.points.slice(0, frame + 1), view), fill: "none", stroke: c.card, "stroke-width": 6, "stroke-opacity": 0.6 }),
      svg("path", { d: this.pathOf(run.points.slice(0, frame + 1), view), fill: "none", stroke: colour, "stroke-width": 3, "stroke-linejoin": "round" }),
    ];
    if (pull) { // shorter where the rim is near
      const out = x * pull[0] - y * pull[1], room = -out + Math.sqrt(Math.max(0, out * out + (RIM - 2) ** 2 - x * x - y * y)), reach = Math.min(46, room);
      shapes.push(this.arrow(x, y, x + reach * pull[0], y - reach * pull[1], c.ink, 2, { class: "pull" }));
    }
    shapes.push(svg("circle", { cx: x, cy: y, r: 6.5 * Math.sqrt(this.zoom), fill: colour, stroke: c.card, "stroke-width": 2, id: "now" }));
    this.layers.training.replaceChildren(...shapes);
  }

  /** The ground: a label per cell of a square grid, painted smoothly into the canvas behind the drawing. */
  ground(side, labels, colourOf) {
    const small = document.createElement("canvas");
    small.width = small.height = side;
    const brush = small.getContext("2d"), image = brush.createImageData(side, side), cells = new Uint32Array(image.data.buffer);
    const known = new Map([[-2, 0]]);
    for (const label of new Set(labels)) if (label > -2) known.set(label, wordOf(rgbOf(brush, this.c.limit(label < 0 ? -1 : colourOf(label)))));
    for (let k = 0; k < cells.length; k++) cells[k] = known.get(labels[k]);
    brush.putImageData(image, 0, 0);
    const to = this.canvas.getContext("2d");
    to.clearRect(0, 0, this.canvas.width, this.canvas.height);
    to.drawImage(small, 0, 0, this.canvas.width, this.canvas.height);
  }

  clear(...names) {
    for (const name of names) this.layers[name].replaceChildren();
  }
}

/** A colour as the word that a canvas keeps for a pixel. */
const wordOf = ([r, g, b]) => new Uint32Array(new Uint8ClampedArray([r, g, b, 255]).buffer)[0];

/** Red, green and blue of a colour as CSS writes it. */
function rgbOf(brush, colour) {
  brush.fillStyle = colour;
  const hex = brush.fillStyle;
  return [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
}
