// The words of a sentence as tokens in the plane: logit across, value up. The prompt p points to the right.

import { meets, outlineOf, RIM, svg } from "./drawing.js";

const WIDE = 196, HIGH = 152, SIZE = 12.5;

/**
 * Shapes of a decision. `tokens` are {name, logit, value, weight, part, out}, `sink` is {logit, weight} or null, and `sides` are
 * the names of the classes below and above.
 */
export function sentenceShapes(c, { tokens, sink, sides, zoom = 1 }) {
  const logits = [...tokens.map(({ logit }) => logit), ...(sink ? [sink.logit] : [])], low = Math.min(...logits), high = Math.max(...logits);
  const most = Math.max(1e-9, ...tokens.map(({ value }) => Math.abs(value))), heaviest = Math.max(1e-9, ...tokens.map(({ weight }) => weight));
  const across = (logit) => (high > low ? ((logit - low) / (high - low) - 0.5) * 2 * WIDE : 0), up = (value) => (-value / most) * HIGH;
  const placed = tokens.map((token) => ({ ...token, x: across(token.logit), y: up(token.value), r: 4 + 9 * Math.sqrt(token.weight / heaviest) }));
  const small = { "font-size": 11 * Math.sqrt(zoom), fill: c.soft, "text-anchor": "middle" };
  const shapes = [
    svg("path", { d: `M${-RIM} 0H${RIM - 8}`, stroke: c.prompt, "stroke-width": 2.4 }),
    svg("path", { d: `M${RIM} 0L${RIM - 12} -6V6Z`, fill: c.prompt }),
    svg("text", { x: RIM - 4, y: -12, fill: c.prompt, "font-style": "italic", "font-weight": 700, "font-size": 15, "text-anchor": "end" }, ["p: more attention →"]),
    svg("text", { ...small, y: -RIM + 26, fill: c.positive, "font-weight": 650 }, [`↑ speaks for ${sides[1]}`]),
    svg("text", { ...small, y: RIM - 18, fill: c.negative, "font-weight": 650 }, [`↓ speaks for ${sides[0]}`]),
  ];
  if (sink) {
    const x = across(sink.logit), words = `sink ${Math.round(100 * sink.weight)}%`;
    shapes.push(svg("path", { d: "M0 -7L7 0L0 7L-7 0Z", transform: `translate(${x} 0)`, fill: c.card, stroke: c.soft, "stroke-width": 2 }),
      svg("text", { ...small, x: Math.max(-RIM + 34, Math.min(RIM - 60, x)), y: 23 }, [words]));
  }
  const names = namesOf(placed, sink ? [{ x: across(sink.logit), y: 16, r: 22 }] : [], zoom);
  return [...shapes, ...placed.map((word, k) => wordShape(c, word, k, names[k], zoom))];
}

function wordShape(c, { name, x, y, r, value, part, weight, out }, k, label, zoom) {
  const colour = out ? c.soft : value >= 0 ? c.positive : c.negative, told = `${name}: weight ${(100 * weight).toFixed(1)}%, value ${signed(value)}, contribution ${signed(part)}`;
  const node = svg("g", { class: "word-token", "data-word": k, tabindex: "0", role: "button", "aria-pressed": Boolean(out), "aria-label": out ? `${name}: left out` : told }, [
    svg("path", { d: `M${x} 0V${y}`, stroke: c.key, "stroke-width": 1.2, "stroke-opacity": out ? 0 : 0.5, class: "foot" }),
    svg("path", { d: outlineOf(0, r + 6), transform: `translate(${x} ${y})`, fill: "transparent", class: "halo" }),
    svg("path", { d: outlineOf(0, r), transform: `translate(${x} ${y})`, fill: out ? "none" : colour, "fill-opacity": 0.3, stroke: colour, "stroke-width": 1.8, ...(out ? { "stroke-dasharray": "3 3" } : {}) }),
  ]);
  if (label) node.append(svg("text", { x: label.x, y: label.y, "text-anchor": label.anchor, "font-size": SIZE * Math.sqrt(zoom), "font-weight": 650, fill: out ? c.soft : c.ink, stroke: c.card, "stroke-width": 3.5, "paint-order": "stroke", ...(out ? { "text-decoration": "line-through" } : {}) }, [name]));
  return node;
}

/** Where names fit: those of the strongest words first, none over another; a name without room is left to the pointer. */
function namesOf(words, taken, zoom) {
  const boxes = [...words.map(({ x, y, r }) => [x - r, y - r, x + r, y + r]), ...taken.map(({ x, y, r }) => [x - r, y - 9, x + r, y + 9])], names = words.map(() => null);
  const order = words.map((_, k) => k).sort((a, b) => Math.abs(words[b].part) - Math.abs(words[a].part));
  for (const k of order) {
    const { x, y, r, name } = words[k], wide = (name.length * 7.2 + 6) * Math.sqrt(zoom), tall = SIZE * Math.sqrt(zoom);
    for (const [anchor, dx, dy] of [["middle", 0, -r - 5], ["middle", 0, r + tall], ["start", r + 4, 4], ["end", -r - 4, 4], ["middle", 0, -r - tall - 8], ["middle", 0, r + 2 * tall + 3]]) {
      const left = x + dx - (anchor === "middle" ? wide / 2 : anchor === "end" ? wide : 0), box = [left, y + dy - tall + 2, left + wide, y + dy + 3];
      if ([box[0], box[2]].some((at) => Math.hypot(at, y + dy) > RIM - 4)) continue;
      if (boxes.some((other, j) => j !== k && meets(box, other))) continue;
      boxes.push(box);
      names[k] = { anchor, x: x + dx, y: y + dy };
      break;
    }
  }
  return names;
}

export const signed = (x, digits = 2) => (Math.abs(x) < 0.5 * 10 ** -digits ? "0" : `${x > 0 ? "+" : "−"}${Math.abs(x).toFixed(digits)}`);
