// The picture in words. Every sentence is made from the numbers of the run that is drawn.

import { placesOf } from "./limits.js";
import { nameOf, sharedScores } from "./plane.js";

export const listed = (items) => (items.length > 1 ? `${items.slice(0, -1).join(", ")} and ${items.at(-1)}` : items[0] ?? "none");
export const tokensOf = (sets) => listed(sets.map((set, i) => set.map((t) => nameOf(i, t)).join("+"))); 
/** A weight in words; beside other tokens it is never all and never nothing, whatever it rounds to. */
const share = (w, alone = false) => (alone ? "100%" : w > 0.9995 ? "over 99.9%" : w < 0.0005 ? "under 0.1%" : `${+(100 * w).toFixed(w > 0.99 || w < 0.01 ? 1 : 0)}%`);
const verb = (items, one, several) => (items.length > 1 ? several : one);
const raised = (n) => `${n}`.replace(/[-\d]/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻");
const minus = (text) => text.replaceAll("-", "−");
/** A number in three figures; large and small ones as a power of ten. */
export const short = (x) => {
  if (x === Infinity) return "over 10³⁰⁸";
  if (x === 0 || (Math.abs(x) < 1e4 && Math.abs(x) >= 1e-3) || !Number.isFinite(x)) return minus(`${+x.toPrecision(3)}`);
  const [front, power] = x.toExponential(1).split("e");
  return `${minus(front)}·10${raised(Number(power))}`;
};
const lossText = (loss) => (Math.abs(loss) < 1e-3 || Math.abs(loss) >= 1e4 ? short(loss) : minus(loss.toFixed(4)));
const degrees = (radians) => `${short(+((radians * 180) / Math.PI).toPrecision(2))}°`;
/** The part of the disc that leads to a limit, in whole percent: never nothing, for starts far out along it stay, and all only without `others`. */
const partOf = (part, others = false) => (part >= 0.995 && (others || part < 1 - 1e-9) ? "over 99%" : part < 0.005 ? "under 1%" : `${Math.round(100 * part)}%`);
const tokens = (sets) => verb(sets.flat(), "token", "tokens");

/** Who leads now, and by how much. */
export function logitWords({ plane, p }) {
  const weights = plane.weights(...p), logits = plane.logits(...p);
  if (Math.hypot(...p) === 0) return "p is zero: every logit is zero, and all tokens weigh the same.";
  const tops = weights.map((row, i) => {
    if (row.length === 1) return `${nameOf(i, 0)} is alone in its input and has all of the weight`;
    const lead = leading(row), names = listed(lead.map((t) => nameOf(i, t)));
    return `${names} ${verb(lead, "leads", "lead")} with logit ${short(logits[i][lead[0]])} and ${verb(lead, "gets", "share")} ${share(row[lead[0]] * lead.length, lead.length === row.length)} of the weight`;
  });
  return `|p| = ${short(Math.hypot(...p))}. ${tops.slice(0, 2).join("; ")}${tops.length > 2 ? `; and so on in ${tops.length - 2} more` : ""}.`;
}

/** The tokens of largest weight: several where they are level. */
function leading(row) {
  const most = Math.max(...row);
  return row.flatMap((w, t) => (w === most ? [t] : []));
}

/** Why the leader has its weight: a ratio of two weights is the exponential of a difference of logits. */
export function ratioWords({ plane, p }) {
  const [logits] = plane.logits(...p), order = logits.map((z, t) => [z, t]).sort((a, b) => b[0] - a[0]);
  if (order.length < 2) return "A1 is alone in its input: its weight is 1, whatever p is.";
  const level = order.filter(([z]) => z === order[0][0]).map(([, t]) => nameOf(0, t));
  if (level.length > 1) return `${listed(level)} have the same logit, so they weigh the same.`;
  const [[most, a], [next, b]] = order, ahead = most - next;
  return `${nameOf(0, a)} is ahead of ${nameOf(0, b)} by ${short(ahead)} in logit, so it weighs exp(${short(ahead)}) = ${short(Math.exp(ahead))} times as much.`;
}

/** What holds the direction of the run. */
export function heldWords({ run, limits }) {
  const limit = limits[run.end];
  if (!limit) return "This run has no direction to measure.";
  return `Here ${tokensOf(limit.sets)} ${verb(limit.sets.flat(), "is", "are")} selected, the band is ${short(limit.margin)} wide, and ${listed(limit.neighbours.map(([i, t]) => nameOf(i, t)))} touch${limit.neighbours.length > 1 ? "" : "es"} its dashed edge.`;
}

/** Why each place is one to settle on. */
export function whyWords({ limits, inputs }) {
  if (!limits.length) return nowhere(limits, inputs);
  const scores = inputs.map(({ tokens }) => sharedScores(tokens));
  return limits.slice(0, 3).map((limit) => {
    const held = limit.neighbours.map(([i, t]) => `${nameOf(i, t)} (${short(scores[i][t])})`);
    if (limit.shared) return `${tokensOf(limit.sets)}: not all on the margin score less, but the others outweigh those that do not.`;
    return `${tokensOf(limit.sets)}: ${listed(held)} on the margin ${verb(held, "scores", "score")} less.`;
  }).join(" ");
}

/** Why there is no place to settle, or that it is not known. */
function nowhere(limits, inputs) {
  if (pullsNothing(inputs)) return "Nothing pulls p, and it stays where it starts: no input has tokens that score differently at different places.";
  if (limits.open.length) return `Whether training settles on ${tokensOf(limits.open[0])} is not said here: its tokens on the margin cancel, and smaller terms decide.`;
  return "No max-margin direction here is a place to settle.";
}

const pullsNothing = (inputs) => inputs.every(({ tokens }) => new Set(sharedScores(tokens)).size === 1);

/** How good the tokens of a limit are. */
const goodness = (limit) => (limit.global ? (limit.only ? "the best" : "as good as any") : limit.best ? "as good as the best, with less margin" : "not the best");

/** How many selections are possible, and how many of them are places to settle. */
export function countWords({ limits, inputs, arcs }) {
  const places = inputs.map((input) => placesOf(input).length), all = places.reduce((product, count) => product * count, 1);
  const copies = places.some((count, i) => count < inputs[i].tokens.length) ? " (copies count as one)" : "";
  if (all === 1) return `There is one way to choose${copies}.`;
  const settle = limits.length === 0 ? "none is a place" : limits.length === 1 ? "one is a place" : `${limits.length} are places`, names = limits.slice(0, 4).map((limit) => tokensOf(limit.sets)).join("; ");
  return `Of ${all} ways to choose${copies}, ${arcs} can be selected by a direction; ${settle} to settle${names ? `: ${names}` : ""}${limits.length > 4 ? `; and ${limits.length - 4} more` : ""}.${limits.open.length ? ` ${nowhere({ open: limits.open }, inputs)}` : ""}`;
}

/** Where the run is, and what it has lowered. */
export function trainingWords({ plane, run, frame, limits, state, inputs }) {
  const p = run.points[frame], weights = plane.weights(...p), end = run.points.length - 1;
  const where = state.method === "flow" ? `At |p| = ${short(Math.hypot(...p))}` : `Step ${frame}: |p| = ${short(Math.hypot(...p))}`;
  const leads = weights.map((row, i) => {
    const lead = leading(row);
    return `${listed(lead.map((t) => nameOf(i, t)))} ${verb(lead, "has", "have")} ${share(row[lead[0]], row.length === 1)}${verb(lead, "", " each")}`;
  });
  const now = `${where}, loss ${lossText(run.risk[frame])}; ${listed(leads.slice(0, 3))} of the weight${leads.length > 3 ? `, and so on in ${leads.length - 3} more` : ""}.`;
  return frame < end ? now : `${now} ${endWords({ run, limits, state, inputs })}`;
}

/** Where the run goes: said only after following it, and starts on either side of it. */
export function endWords(about) {
  const { run, limits } = about, ends = run.beside ?? [];
  if (!ends.length) return followed(about);
  const names = ends.filter((end) => limits[end]).map((end) => tokensOf(limits[end].sets)), rest = ends.includes(-1) ? ["none"] : [];
  if (limits[run.end]) return `The start lies on a border, to a billionth: beside it training ends on ${[...names, ...rest].join(" or on ")}, and which is drawn here, rounding has decided.`;
  return `${followed(about)} But a billionth beside this start it ends on ${names.join(" or on ")}.`;
}

function followed({ run, limits, state, inputs }) {
  const last = run.points.at(-1), limit = limits[run.end];
  if (!limit) {
    if (run.finite) return `${listed(run.finite.flatMap((set, i) => (set.length > 1 ? set.map((t) => nameOf(i, t)) : [])))} keep their shares of the weight for ever; p grows across them, and the others fall behind.`;
    if (pullsNothing(inputs)) return nowhere(limits, inputs);
    const stop = limits.open.length ? "can be followed to" : "comes to a stop at"; // smaller terms may go on
    const away = run.flat ? `${run.beyond.length ? "Followed on (dotted), it" : "It"} ${stop} |p| = ${short(Math.hypot(...run.dense.at(-1)))}: the pulls cancel there to rounding.` : "It has not settled on one of the limits.";
    return limits.length ? away : `${away} ${nowhere(limits, inputs)}`;
  }
  const off = angleBetween(last, limit.unit);
  const there = `${tokensOf(limit.sets)}, ${goodness(limit)}`;
  if (state.method === "flow") return `It turns to the direction of ${there}: ${degrees(off)} away at |p| = ${short(Math.hypot(...last))}.`;
  return `After ${state.steps} steps p is ${degrees(off)} from the direction of ${there}; followed on (dotted), it turns there.`;
}

export function angleBetween([x, y], [u, v]) {
  return Math.abs(Math.atan2(x * v - y * u, x * u + y * v));
}

/** The two slopes, measured on the run. */
export function marginWords({ run, limits, slopes, inputs }) {
  const limit = limits[run.end], end = endWords({ run, limits, state: { method: "flow" }, inputs });
  if (!limit) return `${end} Without a limit there is no margin to measure: move a token or the start.`;
  const lost = Number.isFinite(slopes.rest) ? `1 − weight falls like exp(−${short(-slopes.rest)} |p|), and the margin is ${short(limit.margin)}.` : "The path is too short to measure how 1 − weight falls.";
  const turn = Number.isFinite(slopes.angle) ? `The angle falls like |p| to the power ${minus(slopes.angle.toFixed(2))}.` : "The angle is zero to rounding all the way: this path is straight.";
  return `Measured on this run: ${lost} ${turn}${run.beside?.length ? ` ${end}` : ""}`;
}

/** Where the start leads, and how the disc is shared. */
export function basinWords({ run, limits, state, shares, inputs }) {
  const start = `p = (${short(state.start[0])}, ${short(state.start[1])})`, limit = limits[run.end];
  if (!limit || run.beside?.length) {
    const count = limits.length ? ` ${placesToSettle(limits)}` : "";
    return `Started at ${start}. ${endWords({ run, limits, state: { method: "flow" }, inputs })}${count}`;
  }
  const good = limits.flatMap((one, k) => (one.best ? [k] : []));
  const best = good.length && shares ? ` ${partOf(good.reduce((sum, k) => sum + (shares.get(k) ?? 0), 0), good.length < limits.length)} of the disc leads to the best.` : "";
  return `From ${start}, training ends on ${tokensOf(limit.sets)}${limit.only ? `, the best ${tokens(limit.sets)}` : limit.best ? ", as good as any" : ""}. ${placesToSettle(limits)}${best}`;
}

const placesToSettle = (limits) => (limits.length === 1 ? "There is one place to settle." : `There are ${limits.length} places to settle.`);

/** The answer about one selection, and its proof. */
export function proofWords({ verdict, limits, inputs }) {
  const names = listed(verdict.selected.map((t, i) => nameOf(i, t)));
  const said = (list) => listed(list.map(([i, t]) => nameOf(i, t)));
  if (verdict.status === "free") return "Every input has a single token: there is nothing to choose.";
  if (verdict.status === "inaccurate") return `Whether a direction selects ${names} is too close to call in double precision.`;
  if (verdict.status === "infeasible") {
    if (verdict.evidence.some(({ row }) => row[0] === 0 && row[1] === 0)) return `No direction selects ${names} alone: another token lies at the same place.`;
    const sum = verdict.evidence.map(({ token: [i, t], weight }) => `${short(weight)} (${nameOf(i, verdict.selected[i])} − ${nameOf(i, t)})`).join(" + ");
    return `No direction selects ${names}: ${sum} = 0, and no p can make zero positive.`;
  }
  const { neighbours, higher, level } = verdict, held = verdict.evidence.map(({ token }) => token), touch = neighbours.filter(([i, t]) => !held.some(([j, u]) => j === i && u === t));
  const band = `A direction selects ${names} with margin ${short(verdict.margin)}; ${said(held)} ${verb(held, "holds", "hold")} it${touch.length ? `, and ${said(touch)} ${verb(touch, "touches", "touch")} its margin` : ""}.`;
  const selects = ({ sets }) => sets.every((set, i) => set.includes(verdict.selected[i])), here = ({ unit }) => angleBetween(unit, verdict.vector) < 1e-7;
  const above = `${said(higher)} ${verb(higher, "scores", "score")} more than the selected token of the same input`;
  const limit = limits.find((one) => selects(one) && here(one)), elsewhere = limits.find(selects);
  if (limit) {
    const why = limit.shared ? `${above}, but the others outweigh that` : level.length ? `${said(level)} ${verb(level, "scores", "score")} the same and ${verb(level, "asks", "ask")} for nothing; the others on the margin score less` : "Each selected token outscores them";
    const these = verb(limit.sets.flat(), "this is", "these are");
    return `${band} ${why}, so training can settle here: ${{ "the best": `${these} the best ${tokens(limit.sets)}`, "not the best": `though ${these} not the best ${tokens(limit.sets)}` }[goodness(limit)] ?? `${these} ${goodness(limit)}`}.`;
  }
  if (pullsNothing(inputs)) return `${band} ${nowhere(limits, inputs)}`;
  if (limits.open.some((sets) => selects({ sets }))) return `${band} ${nowhere({ open: [verdict.selected.map((t) => [t])] }, inputs)}`;
  if (elsewhere) return `${band} Training that selects them goes on to a margin of ${short(elsewhere.margin)}, for ${said(level)} ${verb(level, "scores", "score")} the same and ${verb(level, "asks", "ask")} for none.`;
  if (higher.length) return `${band} Training does not stay: ${above}.`;
  return `${band} Training does not stay: ${level.length ? `${said(level)} ${verb(level, "scores", "score")} the same and ${verb(level, "asks", "ask")} for no margin` : "a choice among equals has a larger margin"}.`;
}

/** A token under the pointer. */
export function tokenWords(inputs, [i, t], { logits, weights, limit }) {
  const token = inputs[i].tokens[t], parts = [`key (${short(token.x)}, ${short(token.y)})`, `score ${short(token.score)}`];
  if (logits) parts.push(`logit ${short(logits[i][t])}`, `weight ${share(weights[i][t], weights[i].length === 1)}`);
  if (limit) {
    if (limit.sets[i].includes(t)) parts.push("selected by the highlighted direction");
    const among = (list) => list.some(([j, u]) => j === i && u === t);
    if (among(limit.neighbours)) parts.push(among(limit.support.map(({ token: one }) => one)) ? "on its margin: it holds the direction" : "touches its margin");
  }
  return parts;
}

export function limitWords(limit, inputs, part) {
  const list = [`margin ${short(limit.margin)}`, `direction (${minus(limit.unit.map((z) => z.toFixed(3)).join(", "))})`];
  list.push(`held by ${listed(limit.support.map(({ token: [i, t] }) => nameOf(i, t)))}`);
  if (part !== undefined) list.push(`${partOf(part)} of the disc leads here`);
  if (limit.shared) list.push("held although a token on the margin scores more: the others outweigh it");
  else if (limit.best) list.push(limit.global ? `${limit.only ? `the best ${tokens(limit.sets)}: the` : "as good as any: a"} global max-margin direction` : `locally optimal: the best ${tokens(limit.sets)}, but others that score the same have a larger margin`);
  else list.push(`locally optimal: not the best ${tokens(limit.sets)}, but all on the margin score less`);
  return list;
}
