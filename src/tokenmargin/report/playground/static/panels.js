// The panels beside the drawing: directions, weights, certificate, token editor.

import { element, showHull } from "./explore/charts.js";
import { LETTERS, nameOf } from "./explore/plane.js";

export const $ = (id) => document.getElementById(id);

export { element };

// Tokens of one input that are selected together are joined by a plus.
const tokens = (chosen) => chosen.map(([i, t], k) => (k && chosen[k - 1][0] === i ? "+" : " ") + nameOf(i, t)).join("").trim();
const number = (x, digits = 3) => (x === null ? "∞" : Number(x).toPrecision(digits));

export function showLimits(answer, palette, choose) {
  const focused = document.activeElement?.closest?.(".limit")?.dataset.limit;
  const rows = answer.limits.map((limit, k) => {
    const badge = element("span", { className: "badge", textContent: limit.gmm ? "★" : k + 1, ariaHidden: "true" });
    badge.style.background = palette.limit(answer.colour[k]);
    const row = element("button", { className: "limit", type: "button", tabIndex: k === answer.focus ? 0 : -1 }, badge,
      element("b", { textContent: tokens(limit.chosen) }),
      element("small", { textContent: `${limit.gmm ? "best, " : ""}margin ${number(limit.margin)}${share(answer, k)}` }));
    row.setAttribute("role", "radio");
    row.setAttribute("aria-checked", k === answer.focus);
    row.dataset.limit = k;
    row.addEventListener("click", () => choose(k));
    row.addEventListener("keydown", (event) => {
      const way = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      choose((k + way + answer.limits.length) % answer.limits.length);
      document.querySelector('.limit[aria-checked="true"]')?.focus();
    });
    return row;
  });
  const { all, feasible } = answer.selections;
  rows.push(element("p", { className: "hint", textContent: `${feasible} of ${all} selections are feasible, ${answer.limits.length} locally optimal.` }));
  $("limits").replaceChildren(...rows);
  if (focused !== undefined) document.querySelector(`.limit[data-limit="${focused}"]`)?.focus();
}

function share(answer, k) {
  const part = answer.ring.filter((basin) => basin === k).length / answer.ring.length;
  return answer.both ? "" : `, ${Math.round(100 * part)}% of starts`;
}

export function showWeights(state, weights, when) {
  $("weights-when").textContent = when;
  if (sameBars(state)) return state.inputs.forEach((row, i) => row.tokens.forEach((_, t) => setBar(i, t, weights)));
  const rows = state.inputs.map((row, i) => {
    const bars = row.tokens.map((_, t) => {
      const bar = element("div", { id: `bar-${i}-${t}` }, element("i"), nameOf(i, t));
      bar.setAttribute("role", "img");
      return bar;
    });
    return [element("span", { textContent: LETTERS[i] }), element("div", { className: "set" }, ...bars)];
  });
  $("weights").replaceChildren(element("div", { className: "bars" }, ...rows.flat()));
  return showWeights(state, weights, when);
}

const sameBars = (state) => {
  const sets = [...document.querySelectorAll("#weights .set")];
  return sets.length === state.inputs.length && sets.every((set, i) => set.children.length === state.inputs[i].tokens.length);
};

function setBar(i, t, weights) {
  const value = weights[i]?.[t] ?? 0, bar = $(`bar-${i}-${t}`);
  bar.className = value === Math.max(...(weights[i] ?? [1])) ? "bar top" : "bar";
  bar.firstChild.style.height = `${Math.round(36 * value)}px`;
  bar.setAttribute("aria-label", `${nameOf(i, t)}: ${Math.round(100 * value)} percent`);
  bar.title = `${nameOf(i, t)}: ${(100 * value).toFixed(2)}%`;
}

export function showCertificate(state, answer, palette, ask) {
  const asked = answer.asked;
  $("asked").replaceChildren(...state.inputs.map((row, i) => {
    const select = element("select", {}, ...row.tokens.map((_, t) => element("option", { value: t, textContent: nameOf(i, t), selected: asked.selected[i] === t })));
    select.addEventListener("change", () => ask(asked.selected.map((t, j) => (j === i ? Number(select.value) : t))));
    return element("label", {}, `${LETTERS[i]} `, select);
  }));
  const kind = asked.status !== "optimal" ? asked.status : asked.local ? (asked.gmm ? "globally optimal (GMM)" : "locally optimal (LMM)") : "feasible, not locally optimal";
  $("verdict").replaceChildren(element("strong", { textContent: kind }), `. ${asked.why}`);
  $("verdict").dataset.status = asked.status;
  const known = answer.limits.findIndex((limit) => `${limit.selected}` === `${asked.selected}`);
  showHull($("hull"), palette, proofOf(state, asked), palette.limit(asked.status === "infeasible" ? 0 : known < 0 ? -1 : answer.colour[known]));
  const rows = [["residual of the proof", asked.residual === null ? "–" : asked.residual.toExponential(1)]];
  if (asked.vector) rows.push(["p of least norm", `(${asked.vector.map((x) => number(x, 5)).join(", ")})`], ["margin 1/|p|", number(asked.margin, 6)]);
  for (const { token: [i, t], weight } of asked.multipliers) rows.push([`multiplier against ${nameOf(i, t)}`, number(weight, 5)]);
  for (const { token: [i, t], weight } of asked.farkas) rows.push([`Farkas weight against ${nameOf(i, t)}`, number(weight, 5)]);
  $("evidence").replaceChildren(...rows.map(([what, value]) => element("tr", {}, element("td", { textContent: what }), element("td", { textContent: value }))));
}

/** The differences selected minus other, and which of them prove the answer: those with a multiplier or a Farkas weight. */
function proofOf(state, asked) {
  const about = [], rows = [];
  state.inputs.forEach(({ tokens: row }, i) => row.forEach((token, t) => {
    const chosen = row[asked.selected[i]];
    if (!chosen || t === asked.selected[i]) return;
    about.push([i, t]);
    rows.push([chosen.x - token.x, chosen.y - token.y]);
  }));
  const held = [...asked.multipliers, ...asked.farkas].map(({ token }) => `${token}`);
  const evidence = about.map((token, k) => ({ token, row: rows[k] })).filter(({ token }) => held.includes(`${token}`));
  return { status: asked.status, about, rows, evidence, vector: (asked.vector ?? [0, 0]).slice(0, 2), margin: asked.margin ?? 0 };
}

export function showEditor(state, chosen) {
  const [i, t] = chosen.split(",").map(Number);
  const token = state.inputs[i].tokens[t];
  $("chosen-name").textContent = nameOf(i, t);
  $("chosen-input").textContent = LETTERS[i];
  for (const field of ["x", "y", "score"]) {
    const box = $(`chosen-${field}`);
    if (document.activeElement !== box) box.value = +token[field].toFixed(3);
  }
  $("chosen-label").value = state.inputs[i].label;
}

export function showSettings(state) {
  for (const name of ["method", "loss", "trained", "step", "steps", "radius"]) {
    if (document.activeElement !== $(name)) $(name).value = state[name];
  }
}
