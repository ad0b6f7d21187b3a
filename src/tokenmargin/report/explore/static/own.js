// The section that only the playground has: a problem of the reader's own, in any dimension, answered by the library.

import { $, DATA, disc, marksOf, selectionButtons, view } from "./page.js";
import { element, showHull } from "./charts.js";
import { viewOf } from "./drawing.js";
import { bestOf } from "./model.js";
import { nameOf } from "./plane.js";

const CROWD = 40; // tokens beyond which they are drawn smaller, and chosen from lists
export const own = { name: "", problem: DATA.own, asked: null, answer: null, overview: null, number: 0 };

/** Ask the server; an answer, or an error in words. */
export async function ask(path, body) {
  let answer;
  try {
    answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  } catch {
    throw new Error("The server does not answer: is tokenmargin playground still running?");
  }
  const told = await answer.json();
  if (!answer.ok) throw new Error(typeof told.detail === "string" ? told.detail : told.detail.map(({ msg }) => msg).join("; "));
  return told;
}

/** The problem of a picture as a problem file. */
export function problemFile({ inputs }) {
  const T = Math.max(...inputs.map(({ tokens }) => tokens.length)), rows = (cell, blank) => inputs.map(({ tokens }) => Array.from({ length: T }, (_, t) => (tokens[t] ? cell(tokens[t]) : blank)));
  return { keys: rows((k) => [k.x, k.y], [0, 0]), labels: inputs.map(({ label }) => label ?? 1), scores: rows((k) => k.score, 0), mask: rows(() => true, false) };
}

/** Show another problem, or another selection of the same; what cannot be shown leaves everything as it is. */
export async function askOwn({ problem = own.problem, name = own.name, asked = null } = {}) {
  const number = ++own.number, other = problem !== own.problem || !own.answer;
  const answer = await ask("api/problem", { problem, asked });
  if (number !== own.number) return; // something newer was asked
  Object.assign(own, { problem, name, asked: answer.verdict.selected, answer, overview: other ? null : own.overview });
  if (view.section === "own") drawOwn();
  if (!own.overview) {
    const overview = await ask("api/problem/overview", { problem });
    if (own.problem === problem) own.overview = overview;
  }
  if (view.section === "own") drawOwn();
}

export const ownPython = () => `import tokenmargin as tm

problem = tm.load_problem("problem.json")  # Keep: save problem file
limit = tm.limit_direction(problem, ${JSON.stringify(own.asked)})
print(limit)
print(limit.solution)
`;

/** What the answer proves, as the drawing wants it. */
function drawn({ inputs, unit, verdict }) {
  const about = verdict.against;
  const row = ([i, t]) => { const [a, b] = [inputs[i].tokens[verdict.selected[i]], inputs[i].tokens[t]]; return [a.x - b.x, a.y - b.y]; };
  const margin = verdict.margin ?? 0;
  return { ...verdict, margin, about, rows: about.map(row), evidence: verdict.evidence.map((one) => ({ ...one, row: row(one.token) })), vector: unit.map((z) => (margin ? z / margin : 0)) };
}

export function drawOwn() {
  const { answer } = own;
  document.body.dataset.section = "own";
  disc.clear(...Object.keys(disc.layers).filter((name) => name !== "tokens"));
  disc.handle.style.display = "none";
  if (!answer) return void ($("caption").textContent = "Asking the library …");
  const { inputs } = answer, verdict = drawn(answer), many = inputs.reduce((sum, { tokens }) => sum + tokens.length, 0), zoom = disc.zoom;
  const feasible = verdict.status === "optimal" && verdict.margin > 0, kind = !feasible || verdict.gmm ? 0 : verdict.local ? 1 : -1, colour = disc.c.limit(kind);
  const limit = { sets: verdict.selected.map((t) => [t]), unit: answer.unit, margin: verdict.margin, neighbours: feasible ? verdict.neighbours : verdict.evidence.map(({ token }) => token) };
  view.scales = viewOf(inputs);
  disc.zoom *= Math.max(0.4, Math.min(1, Math.sqrt(CROWD / many)));
  disc.base(view.scales, { rings: false });
  if (feasible) disc.bands(limit, inputs, view.scales, colour);
  else disc.differences(verdict, inputs, view.scales, colour);
  disc.rays(feasible ? [{ unit: answer.unit, name: verdict.gmm ? "★" : "p" }] : [], () => kind, 0);
  disc.tokens(inputs, view.scales, marksOf(inputs, limit, colour), (i, t) => `Token ${nameOf(i, t)}, score ${inputs[i].tokens[t].score.toPrecision(3)}`, [[1, 0]]);
  disc.zoom = zoom;
  showHull($("hull"), disc.c, verdict, colour);
  selectionButtons(inputs, verdict.selected);
  showEvidence(verdict);
  showOverview();
  $("caption").textContent = $("said").textContent = verdict.why;
  document.querySelector('[data-live="own"]').textContent = aboutOwn(answer);
  for (const button of document.querySelectorAll('[data-act="own-move"]')) button.hidden = !answer.planar;
}

function aboutOwn({ shape: [n, T, d], verdict }) {
  const what = `${own.name || "An example"}: ${n} input${n > 1 ? "s" : ""} of ${T} token${T > 1 ? "s" : ""} in ${d} dimension${d > 1 ? "s" : ""}.`;
  if (d <= 2) return what;
  if (verdict.status === "optimal" && verdict.margin) return `${what} Across is p, so that the band and the margin are true; up is the direction in which the tokens differ most.`;
  if (verdict.status !== "infeasible") return what;
  return `${what} Seen in the plane in which the differences that refute the selection spread most; there, too, they add up to zero.`;
}

function showEvidence({ status, margin, residual, evidence, cone }) {
  const number = (x, digits = 5) => `${+Number(x).toPrecision(digits)}`, rows = [["residual of the proof", residual === null ? "–" : residual.toExponential(1)]];
  if (status === "optimal" && margin) rows.push(["margin 1/|p|", number(margin, 7)]);
  if (cone) rows.push(["training stays within", `${number(cone.degrees, 3)}° from |p| = ${number(cone.norm, 3)}`]);
  const heaviest = [...evidence].sort((a, b) => b.weight - a.weight), what = status === "infeasible" ? "Farkas weight" : "multiplier";
  for (const { token: [i, t], weight } of heaviest.slice(0, 12)) rows.push([`${what} against ${nameOf(i, t)}`, number(weight)]);
  if (evidence.length > 12) rows.push([`and ${evidence.length - 12} more`, ""]);
  $("evidence").replaceChildren(...rows.map(([name, value]) => element("tr", {}, element("td", { textContent: name }), element("td", { textContent: value }))));
}

function showOverview() {
  const { overview } = own;
  $("own-words").replaceChildren(...(overview?.words ?? ["Training on it …"]).map((textContent) => element("p", { textContent })));
  const rows = (overview?.limits ?? []).map(({ selected, sets, margin, gmm }, k) => {
    const badge = element("span", { className: "badge", textContent: gmm ? "★" : k + 1, ariaHidden: "true" }), names = sets.map((set, i) => set.map((t) => nameOf(i, t)).join("+")).join(" ");
    badge.style.background = disc.c.limit(gmm ? 0 : 1);
    const row = element("button", { className: "limit", title: "Ask for its certificate" }, badge, element("b", { textContent: names }), element("small", { textContent: `margin ${margin.toPrecision(3)}` }));
    row.dataset.limit = k;
    row.setAttribute("aria-pressed", `${selected}` === `${own.asked}`);
    return row;
  });
  const rest = (overview?.found ?? 0) - rows.length, more = overview && !overview.complete ? `There may be others: ${overview.unsearched}.` : rest > 0 ? `and ${rest} more` : "";
  delete $("limits").dataset.looks;
  $("limits").replaceChildren(...rows, ...(overview && !rows.length ? [overview.complete ? "Training settles on no selection. " : "No place to settle was found. "] : []), more);
}

/** The buttons of the section. */
export const OWN_ACTS = {
  "own-open": () => $("problem-file").click(),
  "own-best": () => askOwn({ asked: bestOf(own.answer.inputs) }),
  "own-trained": () => own.overview && askOwn({ asked: own.overview.trained }),
  "own-picture": () => askOwn({ problem: problemFile(view.state), name: "The problem of the pictures above" }),
};
