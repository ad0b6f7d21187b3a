// The instruments beside the disc: bars of logits and weights, small plots, and the hull of differences.

import { nameOf } from "./plane.js";
import { meets, svg } from "./drawing.js";

export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

export const percent = (w) => (w > 0.9995 && w < 1 ? ">99.9" : w > 0 && w < 0.0005 ? "<0.1" : `${+(100 * w).toFixed(1)}`) + "%";

/** One row per token: logit as a signed bar, weight as a bar. */
export function showBars(box, inputs, logits, weights, { withLogits = true } = {}) {
  const shape = JSON.stringify([inputs.map(({ tokens }) => tokens.length), withLogits]);
  const many = inputs.reduce((sum, { tokens }) => sum + tokens.length, 0) > 12;
  if (box.dataset.shape !== shape) {
    box.dataset.shape = shape;
    box.className = `bars${withLogits ? "" : " short"}${many ? " many" : ""}`;
    box.replaceChildren(...inputs.flatMap(({ tokens }, i) => tokens.map((_, t) => {
      const row = element("div", { className: "bar" }, element("span", { className: "name", textContent: nameOf(i, t) }));
      if (withLogits) row.append(element("span", { className: "signed" }, element("i")), element("span", { className: "number logit" }));
      row.append(element("span", { className: "weight" }, element("i")), element("span", { className: "number share" }));
      row.dataset.bar = `${i},${t}`;
      if (t === 0 && i > 0) row.classList.add("first");
      return row;
    })));
  }
  const reach = Math.max(1e-9, ...logits.flat().map(Math.abs));
  [...box.children].forEach((row) => {
    const [i, t] = row.dataset.bar.split(",").map(Number), weight = weights[i][t], logit = logits[i][t];
    if (withLogits) {
      const bar = row.querySelector(".signed i"), width = (50 * Math.abs(logit)) / reach;
      bar.style.width = `${width}%`;
      bar.style.left = `${logit < 0 ? 50 - width : 50}%`;
      row.querySelector(".logit").textContent = Math.abs(logit) >= 1e4 ? logit.toExponential(1) : logit.toFixed(2);
    }
    row.querySelector(".weight i").style.width = `${100 * weight}%`;
    row.querySelector(".share").textContent = weights[i].length === 1 ? "100%" : percent(Math.min(Math.max(weight, 1e-300), 1 - 1e-15)); // never all, never nothing
    row.classList.toggle("top", weight === Math.max(...weights[i]));
  });
}

const W = 280, H = 150, LEFT = 40, BOTTOM = 26, TOP = 10, RIGHT = 10;

/**
 * A plot of one or two lines. `x` and `y` are {from, to, log, label, ticks}; `lines` are {points, colour, dash, width};
 * `mark` is a point that moves.
 */
export function plot(box, colours, { x, y, lines, mark, notes = [] }) {
  const span = (axis) => (axis.log ? [Math.log10(axis.from), Math.log10(axis.to)] : [axis.from, axis.to]);
  const place = (axis, value, from, to) => {
    const [a, b] = span(axis), z = axis.log ? Math.log10(value) : value;
    return from + ((z - a) / (b - a || 1)) * (to - from);
  };
  const at = ([px, py]) => [place(x, px, LEFT, W - RIGHT), place(y, py, H - BOTTOM, TOP)];
  const known = ([px, py]) => Number.isFinite(px) && Number.isFinite(py) && (!x.log || px > 0) && (!y.log || py > 0);
  const shapes = [svg("path", { d: `M${LEFT} ${TOP}V${H - BOTTOM}H${W - RIGHT}`, fill: "none", stroke: colours.line })];
  const label = (words, px, py, more = {}) => svg("text", { x: px, y: py, fill: colours.soft, "font-size": 10.5, ...more }, [words]);
  for (const tick of x.ticks) shapes.push(label(written(tick, x.log), at([tick, y.from])[0], H - BOTTOM + 12, { "text-anchor": "middle" }));
  for (const tick of y.ticks) {
    const py = at([x.from, tick])[1];
    shapes.push(svg("path", { d: `M${LEFT} ${py}H${W - RIGHT}`, stroke: colours.grid }), label(written(tick, y.log), LEFT - 4, py + 3.5, { "text-anchor": "end" }));
  }
  shapes.push(label(x.label, W - RIGHT, H - 2, { "text-anchor": "end" }), label(y.label, LEFT + 5, TOP + 4, { "font-weight": 600 }));
  const frame = `frame-${box.id}`;
  shapes.push(svg("clipPath", { id: frame }, [svg("rect", { x: LEFT - 1, y: TOP - 4, width: W - LEFT - RIGHT + 6, height: H - BOTTOM - TOP + 5 })]));
  const inside = svg("g", { "clip-path": `url(#${frame})` });
  for (const { points, colour, dash, width = 2 } of lines) {
    const d = points.filter(known).map((point, k) => `${k ? "L" : "M"}${at(point).map((z) => Math.max(-50, Math.min(400, z)).toFixed(1)).join(" ")}`).join("");
    if (d) inside.append(svg("path", { d, fill: "none", stroke: colour, "stroke-width": width, ...(dash ? { "stroke-dasharray": dash } : {}) }));
  }
  if (mark && known(mark.point)) {
    const [cx, cy] = at(mark.point);
    if (cx <= W - RIGHT + 1) inside.append(svg("circle", { cx, cy: Math.min(cy, H - BOTTOM), r: 4.5, fill: mark.colour, stroke: colours.card, "stroke-width": 1.5 }));
  }
  for (const { point, words, colour } of notes) shapes.push(label(words, at(point)[0] - 4, at(point)[1] - 5, { fill: colour, "text-anchor": "end", "font-weight": 600 }));
  box.setAttribute("viewBox", `0 0 ${W} ${H}`);
  box.replaceChildren(...shapes, inside);
}

function written(value, log) {
  if (log) {
    const power = Math.round(Math.log10(value));
    return power === 0 ? "1" : power === 1 ? "10" : `10${[...`${power}`].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d] ?? "⁻").join("")}`;
  }
  return `${+value.toPrecision(3)}`;
}

/** Three or so round numbers between two ends. */
export function ticksOf(from, to, log = false) {
  if (log) {
    const [a, b] = [Math.ceil(Math.log10(from) - 1e-9), Math.floor(Math.log10(to) + 1e-9)], every = Math.max(1, Math.ceil((b - a) / 4));
    return Array.from({ length: Math.max(0, Math.floor((b - a) / every)) + 1 }, (_, k) => 10 ** (b - k * every));
  }
  const raw = (to - from) / 3, size = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((k) => k * size).find((k) => k >= raw);
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(to / step + 1e-9) - first + 1) }, (_, k) => (first + k) * step);
}

/** The differences selected minus other as arrows, their hull, and what proves the answer. */
export function showHull(box, colours, verdict, colour) {
  // As large as fits: differences and the origin, with room for names.
  const all = [[0, 0], ...verdict.rows], low = [0, 1].map((j) => Math.min(...all.map((row) => row[j]))), high = [0, 1].map((j) => Math.max(...all.map((row) => row[j])));
  const zoom = Math.min(220 / (high[0] - low[0] || 1), 190 / (high[1] - low[1] || 1)), to = (row) => [row[0] * zoom, -row[1] * zoom], size = 400;
  const ends = verdict.rows.map(to), held = new Set(verdict.evidence.map(({ token }) => `${token}`));
  const shapes = [svg("path", { d: `M${-size} 0H${size}M0 ${-size}V${size}`, stroke: colours.grid })];
  const hull = convex(ends);
  if (hull.length > 1) shapes.push(svg("path", { d: `M${hull.map((p) => p.map((z) => z.toFixed(1)).join(" ")).join("L")}Z`, fill: colour, "fill-opacity": 0.16, stroke: colour, "stroke-opacity": 0.5 }));
  const taken = []; // names that would lie over others are left out; those that hold the direction come first
  if (verdict.status === "optimal" && verdict.rows.length) {
    const [x, y] = to(verdict.vector.map((z) => z * verdict.margin ** 2));
    taken.push([x / 2 + 6, y / 2 - 18, x / 2 + 52, y / 2 - 2]);
  }
  const holds = (j) => held.has(`${verdict.about[j]}`);
  verdict.rows.map((_, j) => j).sort((a, b) => holds(b) - holds(a)).forEach((j) => {
    const on = holds(j), [x, y] = ends[j], [i, t] = verdict.about[j], left = x + (x < 0 ? -35 : 7), top = y + (y < 0 ? -14 : 1), place = [left, top, left + 28, top + 12];
    const named = (on || verdict.rows.length < 25) && !taken.some((other) => meets(place, other));
    if (named) taken.push(place);
    shapes.push(svg("line", { x2: x, y2: y, stroke: on ? colour : colours.soft, "stroke-width": on ? 2.6 : 1, "stroke-opacity": on ? 1 : 0.6 }),
      svg("circle", { cx: x, cy: y, r: on ? 4.5 : 2.5, fill: on ? colour : colours.soft }),
      svg("text", { x: x + (x < 0 ? -7 : 7), y: y + (y < 0 ? -4 : 11), "text-anchor": x < 0 ? "end" : "start", "font-size": 12, fill: on ? colours.ink : colours.soft, "font-weight": on ? 700 : 400 }, [named ? `−${nameOf(i, t)}` : ""]));
  });
  if (verdict.status === "optimal" && verdict.rows.length) {
    const [x, y] = to(verdict.vector.map((z) => z * verdict.margin ** 2));
    shapes.push(svg("line", { x2: x, y2: y, stroke: colours.ink, "stroke-width": 3.5 }), svg("text", { x: x / 2 + 8, y: y / 2 - 6, "font-size": 12.5, "font-weight": 700, fill: colours.ink, stroke: colours.card, "stroke-width": 4, "paint-order": "stroke" }, ["margin"]));
  } else if (verdict.evidence.length) {
    const ring = verdict.evidence.map(({ row }) => to(row));
    shapes.push(svg("path", { d: `M${ring.map((p) => p.map((z) => z.toFixed(1)).join(" ")).join("L")}Z`, fill: colours.ink, "fill-opacity": 0.18, stroke: colours.ink, "stroke-width": 2 }), svg("circle", { r: 6, fill: colours.ink }));
  }
  const middle = to([(low[0] + high[0]) / 2, (low[1] + high[1]) / 2]);
  box.setAttribute("viewBox", `${middle[0] - 150} ${middle[1] - 118} 300 236`);
  box.replaceChildren(...shapes);
}

/** The convex hull of points, in order (Andrew's chain). */
function convex(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const half = (list) => {
    const chain = [];
    for (const p of list) {
      const bad = () => {
        const [a, b] = chain.slice(-2);
        return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]) <= 0;
      };
      while (chain.length > 1 && bad()) chain.pop();
      chain.push(p);
    }
    return chain.slice(0, -1);
  };
  return sorted.length < 2 ? sorted : [...half(sorted), ...half(sorted.reverse())];
}
