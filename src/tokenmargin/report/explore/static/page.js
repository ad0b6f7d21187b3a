// The page: sections, what each shows, and how it is drawn.

import { element, percent, plot, showBars, showHull, ticksOf } from "./charts.js";
import { Disc, meets, svg, outlineOf, viewOf } from "./drawing.js";
import { countSelections, logRest, numberOf, pictureOf } from "./model.js";
import { limitsOf } from "./limits.js";
import { angleBetween, basinWords, countWords, endWords, heldWords, logitWords, marginWords, proofWords, ratioWords, short, trainingWords, whyWords } from "./words.js";
import { nameOf, sharedScores } from "./plane.js";
import { promptInSquare, serveGround } from "./worker.js";
import { DEFAULTS } from "./state.js";

export const $ = (id) => document.getElementById(id);
export const DATA = JSON.parse($("data").textContent);
export const SECTIONS = [
  { id: "tokens", title: "Tokens", story: "one", patch: { start: [1.1, 0.75] } },
  { id: "training", title: "Training", story: "one", patch: { start: [0, -1], steps: 300 } },
  { id: "margin", title: "Margin", story: "one", patch: { start: [0, -1], method: "flow" } },
  { id: "settle", title: "Places to settle", story: "three", patch: { start: [-0.3, 0.6], method: "flow" } },
  { id: "proofs", title: "Proofs", story: "three", patch: { start: [-0.3, 0.6], method: "flow" } },
  { id: "words", title: "Your words" },
  ...(DATA.own ? [{ id: "own", title: "Your problem" }] : []), // with the playground's server behind the page
];

export const storyState = (name, patch = {}) => {
  const story = DATA.stories.find((one) => one.name === name);
  return { ...structuredClone(DEFAULTS), inputs: structuredClone(story.inputs), start: [...story.start], story: name, ...structuredClone(patch) };
};

export const FORMULAS = {
  tokens: `weight of <span class="c-key">k</span> = <span class="frac"><span>exp⟨<span class="c-key">k</span>, <span class="c-prompt">p</span>⟩</span><span>Σ<sub>u</sub> exp⟨<span class="c-key">k<sub>u</sub></span>, <span class="c-prompt">p</span>⟩</span></span>`,
  training: `pull on <span class="c-prompt">p</span> = Σ <span class="c-key">weight</span> (<span class="c-score">score</span> − output) <span class="c-key">k</span>`,
  margin: `1 − <span class="c-key">weight</span> ≈ c · exp(− margin · |<span class="c-prompt">p</span>|)`,
  settle: `selected <span class="c-score">score</span> &gt; <span class="c-score">score</span> on the margin`,
  words: `output = start + Σ <span class="c-key">weight</span> · value`,
  proofs: `⟨<span class="c-key">k</span><sub>selected</sub> − <span class="c-key">k</span><sub>other</sub>, <span class="c-prompt">p</span>⟩ ≥ 1`,
};
FORMULAS.own = FORMULAS.proofs;

/** The page as it stands. */
export const view = { section: "tokens", state: null, picture: null, frame: 0, playing: false, scales: null, focus: -1, colours: new Map(), chosen: "0,0", shares: null, hinted: false, moving: false };
export const disc = new Disc($("disc"), $("ground"));

const isFirst = (limit, k) => limit.global && k === 0;

/** The best has the first colour (of several, the first); the others keep theirs while they live. */
export function colourOf(k) {
  const limit = view.picture.limits[k];
  if (!limit) return -1;
  if (isFirst(limit, k)) return 0;
  const key = JSON.stringify(limit.sets);
  if (!view.colours.has(key)) {
    const used = new Set(view.picture.limits.filter((one, j) => !isFirst(one, j)).map((one) => view.colours.get(JSON.stringify(one.sets))));
    view.colours.set(key, [1, 2, 3, 4, 5].find((c) => !used.has(c)) ?? 1 + (k % 5));
  }
  return view.colours.get(key);
}

/** The prompt that is weighed now: the handle's in the first section, the run's in the others. */
export const promptNow = () => (view.section === "tokens" ? view.state.start : view.picture.run.points[Math.min(view.frame, view.picture.run.points.length - 1)]);

/** Compute the picture of the state; `moving` while something is dragged. */
export function compute({ moving = false, keepFrame = false } = {}) {
  if (!moving || !view.scales) view.scales = viewOf(view.state.inputs);
  view.picture = pictureOf(view.state, view.scales, { section: view.section, moving });
  view.moving = moving;
  const frames = view.section === "tokens" ? 120 : view.section === "proofs" ? countSelections(view.state.inputs) - 1 : view.picture.run.points.length - 1;
  if (!keepFrame || moving) view.frame = view.section === "tokens" ? 0 : view.section === "training" && !keepFrame ? view.frame && Math.min(view.frame, frames) : frames;
  if (view.section === "proofs") view.frame = numberOf(view.state.inputs, view.picture.verdict.selected);
  $("time").max = frames;
  if (view.section === "settle") askGround(moving);
  draw();
}

export function draw() {
  const { state, picture, scales, section } = view, { limits, run, plane } = picture;
  const p = promptNow(), logits = plane.logits(...p), weights = plane.weights(...p);
  document.body.dataset.section = section;
  disc.clear("sentence");
  disc.base(scales);
  const focus = limits[view.focus] ? view.focus : (run?.end ?? -1);
  view.shown = focus;
  const asked = section === "proofs" ? picture.verdict : null;
  const limit = section === "tokens" || section === "training" ? null : asked ? fromVerdict(asked) : limits[focus];
  const colour = asked?.status === "infeasible" ? disc.c.limit(0) : disc.c.limit(asked ? askedColour(asked) : colourOf(focus));
  disc.bands((section === "settle" && view.focus < 0) || limit?.margin === 0 ? null : limit, state.inputs, scales, colour);
  if (section === "tokens") {
    disc.feet(state.inputs, scales, p, plane);
    disc.clear("rays", "training", "paths");
    disc.prompt(state.start, scales, "p", `Prompt p at ${p.map((z) => z.toFixed(2)).join(", ")}. Arrow keys move it.`);
  } else {
    disc.clear("feet");
    if (asked && asked.status !== "optimal") disc.differences(asked, state.inputs, scales, disc.c.limit(0));
    else disc.clear("paths");
    disc.rays(section === "training" ? [] : limits, colourOf, focus);
    const frame = Math.min(view.frame, run.points.length - 1);
    const pull = section === "training" && plane.field(...run.points[frame]) ? [plane.u, plane.v] : null;
    if (section === "proofs") disc.clear("training");
    else disc.training(run, frame, scales, disc.c.limit(section === "training" && frame < run.points.length - 1 ? 1 : colourOf(run.end)), pull);
    disc.prompt(state.start, scales, section === "proofs" ? "p" : "start", `Start of training at ${state.start.map((z) => z.toFixed(2)).join(", ")}. Arrow keys move it.`);
  }
  disc.handle.style.display = section === "proofs" ? "none" : "";
  disc.tokens(state.inputs, scales, marksOf(state.inputs, limit, colour, section === "tokens" || section === "training" ? weights : null), describeToken, ["tokens", "training"].includes(section) ? [] : limits.map(({ unit }) => unit));
  showHint();
  showSide(p, logits, weights);
  speak();
}

const askedColour = (verdict) => (verdict.status !== "optimal" ? -1 : Math.max(-1, ...view.picture.limits.map((limit, k) => (limit.sets.every((set, i) => set.includes(verdict.selected[i])) ? colourOf(k) : -1))));

function fromVerdict(verdict) {
  if (verdict.status !== "optimal") return { sets: verdict.selected.map((t) => [t]), unit: [1, 0], margin: 0, neighbours: verdict.evidence.map(({ token }) => token) };
  const norm = Math.hypot(...verdict.vector);
  return { sets: verdict.selected.map((t) => [t]), unit: verdict.vector.map((z) => z / norm), margin: verdict.margin, neighbours: verdict.neighbours };
}

/** What marks each token: the best of its input, those a limit selects and those that hold it, and weights where given. */
export function marksOf(inputs, limit, colour, weights = null) {
  const marks = new Map();
  inputs.forEach(({ tokens }, i) => {
    const scores = sharedScores(tokens), most = Math.max(...scores);
    tokens.forEach((_, t) => marks.set(`${i},${t}`, { best: scores[t] === most && tokens.length > 1, ...(weights ? { weight: +weights[i][t].toFixed(3) } : {}) }));
  });
  limit?.sets.forEach((set, i) => set.forEach((t) => { marks.get(`${i},${t}`).selected = colour; }));
  limit?.neighbours.forEach(([i, t]) => { marks.get(`${i},${t}`).support = colour; });
  return marks;
}

function describeToken(i, t) {
  const k = view.state.inputs[i].tokens[t];
  return `Token ${nameOf(i, t)} at ${k.x.toFixed(2)}, ${k.y.toFixed(2)}, score ${k.score.toFixed(2)}. Arrow keys move it, plus and minus change its score.`;
}

/** "Drag me", at the first thing to drag, until something was dragged. */
function showHint() {
  if (view.hinted || view.section === "proofs") return disc.clear("front");
  const place = disc.handle.getAttribute("transform").match(/translate\(([-\d.e]+) ([-\d.e]+)\)/).slice(1).map(Number), { zoom } = disc;
  const low = [-27, 36].map((y) => y * zoom).find((y) => { const box = [place[0] - 26 * zoom, place[1] + y - 11 * zoom, place[0] + 26 * zoom, place[1] + y + 3 * zoom]; return !disc.taken.some((other) => meets(box, other)); }) ?? -27 * zoom;
  disc.layers.front.replaceChildren(svg("g", { class: "hint", transform: `translate(${place[0]} ${place[1]})`, "pointer-events": "none" }, [
    svg("circle", { r: 18, fill: "none", stroke: disc.c.prompt, "stroke-width": 2 }),
    svg("text", { x: 0, y: low, "text-anchor": "middle", fill: disc.c.prompt, "font-size": 12 * zoom, "font-weight": 650, stroke: disc.c.card, "stroke-width": 4, "paint-order": "stroke" }, ["drag me"]),
  ]));
}

/** The formula and the instruments of a section. */
export function openTools(section) {
  if ($("formula").dataset.section !== section) {
    $("formula").dataset.section = section;
    $("formula").innerHTML = FORMULAS[section];
  }
  for (const tool of document.querySelectorAll(".tool[data-in]")) tool.hidden = !tool.dataset.in.split(" ").includes(section);
}

function showSide(p, logits, weights) {
  const { section, picture, state } = view, { limits, run, plane } = picture;
  openTools(section);
  $("bars-title").textContent = section === "tokens" ? "Logits and weights" : "Weights now";
  showBars($("bars"), state.inputs, logits, weights, { withLogits: section === "tokens" });
  const frame = Math.min(view.frame, Number($("time").max));
  $("time").value = frame;
  $("clock").textContent = section === "proofs" ? `${frame + 1} of ${Number($("time").max) + 1}` : section === "tokens" || state.method === "flow" ? `|p| = ${short(Math.hypot(...p))}` : `step ${frame}`;
  if (section === "training") lossPlot(run, frame, plane);
  if (section === "margin") marginPlots(limits[run.end], picture.curves, p, plane);
  if (section === "settle") showLimits();
  if (section === "proofs") {
    showHull($("hull"), disc.c, picture.verdict, picture.verdict.status === "optimal" ? disc.c.limit(askedColour(picture.verdict)) : disc.c.limit(0));
  }
}

function lossPlot(run, frame, plane) {
  const least = plane.infimum(), most = Math.max(...run.risk), low = Math.min(least, ...run.risk), pad = 0.15 * (most - low || 1), end = run.risk.length - 1 || 1;
  plot($("loss-plot"), disc.c, {
    x: { from: 0, to: end, label: view.state.method === "flow" ? "along the path" : "steps", ticks: ticksOf(0, end) },
    y: { from: low - pad, to: most + 2 * pad, label: "", ticks: ticksOf(low - pad, most + pad) },
    lines: [
      { points: [[0, least], [end, least]], colour: disc.c.soft, dash: "4 4", width: 1.2 },
      { points: run.risk.map((z, k) => [k, z]), colour: disc.c.soft, width: 1 },
      { points: run.risk.slice(0, frame + 1).map((z, k) => [k, z]), colour: disc.c.limit(1), width: 2.5 },
    ],
    mark: { point: [frame, run.risk[frame]], colour: disc.c.limit(1) },
    notes: [{ point: [end, least], words: "the best tokens alone", colour: disc.c.soft }],
  });
}

function marginPlots(limit, curves, p, plane) {
  const none = { from: 0, to: 1, label: "", ticks: [] };
  if (!limit || curves.rest.length < 2) {
    for (const id of ["rest-plot", "angle-plot"]) plot($(id), disc.c, { x: none, y: { ...none, label: "" }, lines: [] });
    return;
  }
  const c = disc.c.limit(colourOf(view.picture.run.end)), now = Math.hypot(...p), e = (z) => Math.exp(z), last = curves.rest.filter(([x]) => x <= curves.reach).at(-1);
  const low = 10 ** Math.floor(Math.log10(e(last[1])));
  const guide = [0.25 * curves.reach, curves.reach].map((x) => [x, e(last[1] - limit.margin * (x - last[0]))]);
  plot($("rest-plot"), disc.c, {
    x: { from: 0, to: curves.reach, label: "|p|", ticks: ticksOf(0, curves.reach) },
    y: { from: low, to: 1, log: true, label: "", ticks: ticksOf(low, 1, true) },
    lines: [{ points: guide, colour: disc.c.ink, dash: "5 4", width: 1.2 }, { points: curves.rest.map(([x, z]) => [x, e(z)]), colour: c }],
    mark: { point: [now, now > curves.reach ? NaN : e(logRest(plane, limit, p))], colour: c },
    notes: [{ point: [curves.reach, 0.02], words: `dashed: slope −${short(limit.margin)}`, colour: disc.c.ink }],
  });
  const seen = curves.angle.filter(([x, off]) => x >= 0.3 * view.scales.unit && off > 1e-7);
  if (seen.length < 2) return plot($("angle-plot"), disc.c, { x: none, y: { ...none, label: "" }, lines: [], notes: [] });
  const to = 10 ** Math.ceil(Math.log10(seen.at(-1)[0])), from = 10 ** Math.floor(Math.log10(seen[0][0])), bottom = 10 ** Math.floor(Math.log10(Math.min(...seen.map(([, off]) => off))));
  const ref = seen.at(-1), line = [[Math.min(3 / limit.margin, to), ref[1] * (ref[0] / Math.min(3 / limit.margin, to))], ref];
  plot($("angle-plot"), disc.c, {
    x: { from, to, log: true, label: "|p|", ticks: ticksOf(from, to, true) },
    y: { from: bottom, to: 10, log: true, label: "", ticks: ticksOf(bottom, 1, true) },
    lines: [{ points: line, colour: disc.c.ink, dash: "5 4", width: 1.2 }, { points: seen, colour: c }],
    mark: { point: [now, angleBetween(p, limit.unit)], colour: c },
    notes: [{ point: [to, 1.2], words: "dashed: slope −1", colour: disc.c.ink }],
  });
}

/** One token of every input to choose: buttons, or lists where there are many. */
export function selectionButtons(inputs, chosen) {
  const many = inputs.reduce((sum, { tokens }) => sum + tokens.length, 0) > 40, focused = document.activeElement?.dataset?.ask;
  $("asked").replaceChildren(...inputs.map(({ tokens }, i) => {
    if (many) return element("select", { ariaLabel: `Token of ${nameOf(i, 0)[0]}` }, ...tokens.map((_, t) => element("option", { value: `${i},${t}`, textContent: nameOf(i, t), selected: chosen[i] === t })));
    return element("div", { className: "set", role: "group" }, ...tokens.map((_, t) => {
      const button = element("button", { textContent: nameOf(i, t) });
      button.dataset.ask = `${i},${t}`;
      button.setAttribute("aria-pressed", chosen[i] === t);
      return button;
    }));
  }));
  $("asked").classList.toggle("lists", many);
  if (focused) $("asked").querySelector(`[data-ask="${focused}"]`)?.focus();
}

export function showLimits() {
  const { limits, run } = view.picture, { shares } = view;
  const rows = limits.slice(0, 7).map((limit, k) => {
    const badge = element("span", { className: "badge", textContent: limit.global ? "★" : k + 1, ariaHidden: "true" });
    badge.style.background = disc.c.limit(colourOf(k));
    const part = shares ? `, ${percent(shares.get(k) ?? 1e-300)}` : ""; // starts far out along it stay
    const row = element("button", { className: "limit", title: "Show its band" }, badge, element("b", { textContent: limit.sets.map((set, i) => set.map((t) => nameOf(i, t)).join("+")).join(" ") }), element("small", { textContent: `margin ${short(limit.margin)}${part}` }));
    row.dataset.limit = k;
    row.setAttribute("aria-pressed", k === view.focus);
    if (k === run.end) row.setAttribute("aria-description", "the run ends here");
    return row;
  });
  const looks = rows.map((row) => row.outerHTML).join();
  if ($("limits").dataset.looks === looks) return;
  $("limits").dataset.looks = looks;
  const held = document.activeElement?.closest?.("#limits .limit")?.dataset.limit;
  $("limits").replaceChildren(...rows, ...(limits.length > 7 ? [`and ${limits.length - 7} more`] : limits.length ? [] : ["None."]));
  if (held !== undefined) $("limits").querySelector(`[data-limit="${held}"]`)?.focus();
}

/** The caption, the sentence in the text, and, once it is quiet, the voice of a screen reader. */
let quiet = 0;
function speak() {
  const { section, picture, state } = view;
  const about = { ...picture, state, frame: Math.min(view.frame, (picture.run?.points.length ?? 1) - 1), p: promptNow(), slopes: picture.curves?.slopes, shares: view.shares, inputs: state.inputs };
  const words = { tokens: logitWords, training: trainingWords, margin: marginWords, settle: basinWords, proofs: proofWords }[section](about);
  if ($("caption").textContent === words) return;
  $("caption").textContent = words;
  const text = document.querySelector(`[data-live="${section}"]`);
  if (text) text.textContent = { tokens: ratioWords, training: endWords, margin: heldWords, settle: whyWords, proofs: countWords }[section](about);
  clearTimeout(quiet);
  quiet = setTimeout(() => { $("said").textContent = words; }, 700);
}

/** The ground comes from a worker; without one, from this thread in small pieces. */
let asked = 0;
const helper = startHelper();

function startHelper() {
  try {
    const text = `${$("mathematics").textContent}\nserveGround(self);`;
    const worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => received(data);
    return worker;
  } catch {
    const local = { postMessage: (data) => received(data) };
    serveGround(local);
    return { postMessage: (data) => local.onmessage({ data }) };
  }
}

function askGround(moving) {
  const key = JSON.stringify([view.state.inputs, view.state.loss, view.scales.half, moving]);
  if (view.groundKey === key) return;
  view.groundKey = key;
  view.groundLimits = view.picture.limits;
  if (moving && view.groundBusy) {
    view.groundNext = true; // one at a time while dragging: the next goes out when this one is back
    return;
  }
  view.groundBusy = true;
  helper.postMessage({ id: ++asked, inputs: view.state.inputs, loss: view.state.loss, half: view.scales.half, unit: view.scales.unit, moving });
}

function received({ id, side, labels, last }) {
  if (id !== asked) return;
  view.groundBusy = !last;
  if (view.section !== "settle") return;
  const counts = new Map();
  let all = 0;
  labels.forEach((label, k) => {
    if (Math.hypot((k % side) + 0.5 - side / 2, Math.floor(k / side) + 0.5 - side / 2) > side / 2) return; // beyond the rim
    all++;
    counts.set(label, (counts.get(label) ?? 0) + 1);
  });
  view.shares = new Map([...counts].map(([label, count]) => [label, count / all]));
  view.ground = { side, labels, last };
  paintGround();
  showLimits();
  speak();
  if (view.groundNext) {
    view.groundNext = false;
    view.groundKey = null;
    askGround(view.moving);
  }
}

export function paintGround() {
  if (view.ground) disc.ground(view.ground.side, view.ground.labels, colourOf);
}

/** The label of the ground at a prompt. */
export function groundAt(p) {
  if (!view.ground) return -1;
  const { side, labels } = view.ground, r = Math.hypot(...p), squeeze = 1 / (r + view.scales.half);
  const cell = (z) => Math.max(0, Math.min(side - 1, Math.floor(((z + 1) / 2) * side)));
  return labels[cell(-p[1] * squeeze) * side + cell(p[0] * squeeze)];
}

export const promptOfCell = (k) => promptInSquare(view.scales.half)(((k % view.ground.side) + 0.5) / view.ground.side, (Math.floor(k / view.ground.side) + 0.5) / view.ground.side);

/** A story in miniature: its tokens on a disc whose rim shows the directions to settle on. */
export function thumbnail(story) {
  const scale = viewOf(story.inputs).scale * 0.1, limits = limitsOf(story.inputs);
  const shapes = [svg("circle", { r: 24, fill: disc.c.card, stroke: disc.c.line })];
  limits.forEach((limit, k) => shapes.push(svg("line", { x2: limit.unit[0] * 24, y2: -limit.unit[1] * 24, stroke: disc.c.limit(isFirst(limit, k) ? 0 : 1 + ((k - 1 + 5) % 5)), "stroke-width": 2.5 })));
  story.inputs.forEach(({ tokens }, i) => tokens.forEach((k) => shapes.push(svg("path", { d: outlineOf(i, 3), transform: `translate(${k.x * scale} ${-k.y * scale})`, fill: disc.c.token, stroke: disc.c.ink, "stroke-width": 1.2 }))));
  return svg("svg", { viewBox: "-26 -26 52 52", "aria-hidden": "true" }, shapes);
}

