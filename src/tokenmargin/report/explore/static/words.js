// The picture in words. Every sentence is made from the numbers of the run that is drawn.

import { nameOf } from "./plane.js";

export const listed = (items) => (items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items.at(-1)}` : items[0] ?? "none");
export const tokensOf = (sets) => listed(sets.map((set, i) => set.map((t) => nameOf(i, t)).join("+"))); 
const share = (w) => (w > 0.9995 && w < 1 ? "over 99.9%" : `${+(100 * w).toFixed(w > 0.99 ? 2 : 0)}%`);
const raised = (n) => `${n}`.replace(/[-\d]/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻");
const minus = (text) => text.replaceAll("-", "−");
/** A number in three figures; large and small ones as a power of ten. */
export const short = (x) => {
  if (x === 0 || (Math.abs(x) < 1e4 && Math.abs(x) >= 1e-3) || !Number.isFinite(x)) return minus(`${+x.toPrecision(3)}`);
  const [front, power] = x.toExponential(1).split("e");
  return `${minus(front)}·10${raised(Number(power))}`;
};
const degrees = (radians) => `${+((radians * 180) / Math.PI).toPrecision(2)}°`;

/** Who leads now, and by how much. */
export function logitWords({ plane, p }) {
  const weights = plane.weights(...p), logits = plane.logits(...p);
  if (Math.hypot(...p) === 0) return "p is zero: every logit is zero, and all tokens weigh the same.";
  const tops = weights.map((row, i) => {
    const most = Math.max(...row), lead = row.flatMap((w, t) => (w === most ? [t] : []));
    return `${listed(lead.map((t) => nameOf(i, t)))} lead${lead.length > 1 ? "" : "s"} with logit ${short(logits[i][lead[0]])} and ${lead.length > 1 ? "share" : "gets"} ${share(most * lead.length)} of the weight`;
  });
  return `|p| = ${short(Math.hypot(...p))}. ${tops.slice(0, 2).join("; ")}.`;
}

/** Why the leader has its weight: a ratio of two weights is the exponential of a difference of logits. */
export function ratioWords({ plane, p }) {
  const [logits] = plane.logits(...p), order = logits.map((z, t) => [z, t]).sort((a, b) => b[0] - a[0]);
  if (order.length < 2 || order[0][0] === order[1][0]) return "No token is ahead: those with the largest logit weigh the same.";
  const [[most, a], [next, b]] = order, ahead = most - next;
  return `${nameOf(0, a)} is ahead of ${nameOf(0, b)} by ${short(ahead)} in logit, so it weighs exp(${short(ahead)}) = ${short(Math.exp(ahead))} times as much.`;
}

/** What holds the direction of the run. */
export function heldWords({ run, limits }) {
  const limit = limits[run.end];
  if (!limit) return "This run has no direction to measure.";
  return `Here ${tokensOf(limit.sets)} ${limit.sets.flat().length > 1 ? "are" : "is"} selected, the band is ${limit.margin.toFixed(3)} wide, and ${listed(limit.neighbours.map(([i, t]) => nameOf(i, t)))} touch${limit.neighbours.length > 1 ? "" : "es"} its dashed edge.`;
}

/** Why each place is one to settle on. */
export function whyWords({ limits, inputs }) {
  if (!limits.length) return "No direction here selects tokens that outscore all tokens on their margin.";
  return limits.slice(0, 3).map((limit) => {
    const held = limit.neighbours.map(([i, t]) => `${nameOf(i, t)} (${short(inputs[i].tokens[t].score)})`);
    if (limit.shared) return `${tokensOf(limit.sets)}: not all on the margin score less, but the others outweigh those that do not.`;
    return `${tokensOf(limit.sets)}: ${listed(held)} on the margin score${held.length > 1 ? "" : "s"} less.`;
  }).join(" ");
}

/** How many selections are possible, and how many of them are places to settle. */
export function countWords({ limits, inputs, arcs }) {
  const all = inputs.reduce((product, { tokens }) => product * tokens.length, 1);
  return `Of ${all} ways to choose, ${arcs} can be selected by a direction; ${limits.length === 1 ? "one is a place" : `${limits.length} are places`} to settle: ${limits.slice(0, 4).map((limit) => tokensOf(limit.sets)).join("; ")}${limits.length > 4 ? "; ..." : ""}.`;
}

/** Where the run is, and what it has lowered. */
export function trainingWords({ plane, run, frame, limits, state }) {
  const p = run.points[frame], weights = plane.weights(...p), end = run.points.length - 1;
  const where = state.method === "flow" ? `At |p| = ${short(Math.hypot(...p))}` : `Step ${frame}: |p| = ${short(Math.hypot(...p))}`;
  const lead = weights.map((row, i) => `${nameOf(i, row.indexOf(Math.max(...row)))} has ${share(Math.max(...row))}`);
  const now = `${where}, loss ${run.risk[frame].toFixed(4)}; ${listed(lead.slice(0, 3))} of the weight.`;
  return frame < end ? now : `${now} ${endWords({ run, limits, state })}`;
}

/** Where the run goes: said only after following it. */
export function endWords({ run, limits, state }) {
  const last = run.points.at(-1), limit = limits[run.end];
  if (!limit) {
    if (run.finite) return `${listed(run.finite.flatMap((set, i) => (set.length > 1 ? set.map((t) => nameOf(i, t)) : [])))} keep their shares of the weight for ever; p grows across them, and the others fall behind.`;
    if (!limits.length) return "No direction is locally optimal here, and this run settles on none.";
    return run.flat ? "The pulls cancel to rounding: it rests, or tokens keep their shares of the weight while the others fall behind." : "It has not settled on one of the limits.";
  }
  const off = angleBetween(last, limit.unit);
  const there = `${tokensOf(limit.sets)}${limit.global ? ", the best" : ", not the best"}`;
  if (state.method === "flow") return `It turns to the direction of ${there}: ${degrees(off)} away at |p| = ${short(Math.hypot(...last))}.`;
  return `After ${state.steps} steps p is ${degrees(off)} from the direction of ${there}; followed on (dotted), it turns there.`;
}

export function angleBetween([x, y], [u, v]) {
  return Math.abs(Math.atan2(x * v - y * u, x * u + y * v));
}

/** The two slopes, measured on the run. */
export function marginWords({ run, limits, slopes }) {
  const limit = limits[run.end];
  if (!limit) return `${endWords({ run, limits, state: { method: "flow" } })} Without a limit there is no margin to measure: move a token or the start.`;
  const lost = Number.isFinite(slopes.rest) ? `1 − weight falls like exp(−${(-slopes.rest).toFixed(3)} |p|), and the margin is ${limit.margin.toFixed(3)}.` : "The path is too short to measure how 1 − weight falls.";
  const turn = Number.isFinite(slopes.angle) ? `The angle falls like |p| to the power ${minus(slopes.angle.toFixed(2))}.` : "The angle is zero to rounding all the way: this path is straight.";
  return `Measured on this run: ${lost} ${turn}`;
}

/** Where the start leads, and how the disc is shared. */
export function basinWords({ run, limits, state, shares }) {
  if (!limits.length) return "No direction is locally optimal here: there is nowhere to settle.";
  const from = `From p = (${short(state.start[0])}, ${short(state.start[1])})`, limit = limits[run.end];
  const goes = limit ? `${from}, training ends on ${tokensOf(limit.sets)}${limit.global ? ", the best tokens" : ""}.` : `${from}, training settles on none of the limits.`;
  const best = limits[0].global && shares ? ` ${Math.round(100 * (shares.get(0) ?? 0))}% of the disc leads to the best.` : "";
  const count = limits.length === 1 ? "There is one place to settle." : `There are ${limits.length} places to settle.`;
  return `${goes} ${count}${best}`;
}

/** The answer about one selection, and its proof. */
export function proofWords({ verdict, limits }) {
  const names = listed(verdict.selected.map((t, i) => nameOf(i, t)));
  const said = (list) => listed(list.map(([i, t]) => nameOf(i, t)));
  if (verdict.status === "free") return "Every input has a single token: there is nothing to choose.";
  if (verdict.status === "inaccurate") return `Whether a direction selects ${names} is too close to call in double precision.`;
  if (verdict.status === "infeasible") {
    if (verdict.evidence.some(({ row }) => row[0] === 0 && row[1] === 0)) return `No direction selects ${names} alone: another token lies at the same place.`;
    const sum = verdict.evidence.map(({ token: [i, t], weight }) => `${+weight.toFixed(3)} (${nameOf(i, verdict.selected[i])} − ${nameOf(i, t)})`).join(" + ");
    return `No direction selects ${names}: ${sum} = 0, and no p can make zero positive.`;
  }
  const held = said(verdict.neighbours);
  const band = `A direction selects ${names} with margin ${short(verdict.margin)}; ${held} hold${verdict.neighbours.length > 1 ? "" : "s"} it.`;
  if (!verdict.local && limits.some(({ sets, shared }) => shared && sets.every((set, i) => set.includes(verdict.selected[i])))) return `${band} ${said(verdict.beaten)} score${verdict.beaten.length > 1 ? "" : "s"} no less, but the others outweigh that: training can settle here.`;
  if (!verdict.local) return `${band} Training does not stay: ${said(verdict.beaten)} score${verdict.beaten.length > 1 ? "" : "s"} no less than the selected token of the same input.`;
  return `${band} Each selected token outscores them, so training can settle here${verdict.global ? ": these are the best tokens" : ", though these are not the best tokens"}.`;
}

/** A token under the pointer. */
export function tokenWords(inputs, [i, t], { logits, weights, limit }) {
  const token = inputs[i].tokens[t], parts = [`key (${short(token.x)}, ${short(token.y)})`, `score ${short(token.score)}`];
  if (logits) parts.push(`logit ${short(logits[i][t])}`, `weight ${share(weights[i][t])}`);
  if (limit) {
    if (limit.sets[i].includes(t)) parts.push("selected by the highlighted direction");
    if (limit.neighbours.some(([j, u]) => j === i && u === t)) parts.push("on its margin: it holds the direction");
  }
  return parts;
}

export function limitWords(limit, inputs, part) {
  const list = [`margin ${short(limit.margin)}`, `direction (${minus(limit.unit.map((z) => z.toFixed(3)).join(", "))})`];
  list.push(`held by ${listed(limit.support.map(({ token: [i, t] }) => nameOf(i, t)))}`);
  if (part !== undefined) list.push(`${Math.round(100 * part)}% of the disc leads here`);
  if (limit.shared) list.push("held although a token on the margin scores more: the others outweigh it");
  else list.push(limit.global ? "the best tokens: the global max-margin direction" : "locally optimal: not the best tokens, but no token on the margin scores more");
  return list;
}
