// What is done on the page: changes of the state and their undoing, play, panels, the text's own buttons.

import { $, SECTIONS, compute, disc, draw, openTools, promptOfCell, selectionButtons, storyState, view } from "./page.js";
import { viewOf } from "./drawing.js";
import { bestOf, countSelections, numberOf, selectionAt } from "./model.js";
import { verdictOn } from "./limits.js";
import { nameOf } from "./plane.js";
import { DEFAULTS, encode } from "./state.js";
import { drawWords, sentence } from "./yourwords.js";
import { askOwn, drawOwn, own, OWN_ACTS } from "./own.js";
import { legend, openStory, tell, toast } from "./opening.js";

export const states = new Map(); // what a reader has made of each section
export const history_ = { past: [], future: [], group: null };
const opening = (id) => { const { story, patch } = SECTIONS.find((one) => one.id === id); return storyState(story, patch); };

/** Change the state. What happens under one `group` (a drag) is undone in one step. */
export function change(edit, { group = null, moving = false, keepFrame = false } = {}) {
  if (group === null || group !== history_.group) {
    history_.past.push([view.section, structuredClone(view.state)]);
    if (history_.past.length > 200) history_.past.shift();
    history_.future = [];
  }
  history_.group = group;
  edit(view.state);
  states.set(view.section, view.state);
  compute({ moving, keepFrame });
  if (!moving) settled();
}

export function travel(from, to) {
  if (!from.length) return;
  to.push([view.section, structuredClone(view.state)]);
  const [section, state] = from.pop();
  history_.group = null;
  states.set(section, state);
  show(section, { scroll: section !== view.section });
}

function offerTravel() {
  $("undo").disabled = !history_.past.length;
  $("redo").disabled = !history_.future.length;
}

/** After a change: panels that do not move with the pointer, and the address. */
let writing = 0;
function settled() {
  fillPanels();
  writeAddress();
}

export function writeAddress() {
  clearTimeout(writing);
  writing = setTimeout(() => window.history.replaceState(null, "", address()), 250);
}

/** The address now, as a place to come back to. */
export function pushAddress() {
  clearTimeout(writing);
  window.history.pushState(null, "", address());
}

export const address = () => {
  if (view.section === "words") return sentence.text === sentence.opening ? "#words" : `#words/${encodeURIComponent(sentence.text)}`;
  if (view.section === "own") return "#own";
  const same = encode(view.state) === encode(opening(view.section));
  return `#${view.section}${same ? "" : `/${encode(view.state)}`}`;
};

/** Show a section in the state its reader left it, or in that of the text. */
export function show(section, { scroll = false, push = false } = {}) {
  pause();
  const changed = view.section !== section || !view.state;
  view.section = section;
  if (section === "words" || section === "own") view.state ??= opening("settle"); // what is saved and taken, until another picture is seen
  if (section === "words") {
    openTools(section);
    drawWords();
    return arrive({ scroll, push });
  }
  if (section === "own") {
    openTools(section);
    drawOwn();
    if (!own.answer) tell(askOwn());
    return arrive({ scroll, push });
  }
  view.state = states.get(section) ?? opening(section);
  states.set(section, view.state);
  if (changed) {
    view.focus = -1;
    view.shares = view.ground = view.groundKey = null;
    view.colours.clear();
  }
  view.chosen = view.state.inputs[Number(view.chosen.split(",")[0])]?.tokens[Number(view.chosen.split(",")[1])] ? view.chosen : "0,0";
  view.frame = 0;
  compute();
  if (section === "training") playSoon();
  fillPanels();
  return arrive({ scroll, push });
}

/** The contents, the legend, the address and the place of the section that is shown. */
function arrive({ scroll, push }) {
  const { section } = view;
  for (const link of $("contents").querySelectorAll("a")) {
    if (link.hash === `#${section}`) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  legend();
  offerTravel();
  if (push) window.history.pushState(null, "", address());
  else window.history.replaceState(null, "", address());
  if (scroll) $(section).scrollIntoView();
}

// --- play ---------------------------------------------------------------------------------------------------------

let clock = 0, carried = 0, waits = 0;
export function play() {
  const last = Number($("time").max);
  if (view.frame >= last) view.frame = 0;
  view.playing = true;
  document.body.classList.add("playing");
  $("play").setAttribute("aria-label", "Pause");
  const origin = [...view.state.start], begin = view.frame;
  let before = performance.now();
  const tick = (now) => {
    if (!view.playing) return;
    carried += (Math.max(0, now - before) / 1000) * (view.section === "proofs" ? 1.2 : 45) * Number($("speed").value);
    before = Math.max(before, now); // the frame may have begun before the press
    const whole = Math.floor(carried);
    carried -= whole;
    if (whole) {
      view.frame = Math.min(view.frame + whole, last);
      if (view.section === "tokens") turnTo(origin, view.frame - begin);
      else showFrame();
    }
    if (view.frame >= last) return pause();
    clock = requestAnimationFrame(tick);
  };
  clock = requestAnimationFrame(tick);
}

/** Time is steps of training; in the last section, which has none, all selections one after the other. */
function showFrame() {
  if (view.section !== "proofs") return draw();
  const { frame } = view;
  view.state.asked = selectionAt(view.state.inputs, frame);
  states.set("proofs", view.state);
  compute();
  view.frame = frame;
  return settled();
}

/** In the first section time turns p once around. */
function turnTo([x, y], frames) {
  const a = (2 * Math.PI * frames) / Number($("time").max), frame = view.frame;
  view.state.start = [x * Math.cos(a) - y * Math.sin(a), x * Math.sin(a) + y * Math.cos(a)];
  compute({ moving: true });
  view.frame = frame;
  $("time").value = frame;
}

export function pause() {
  cancelAnimationFrame(clock);
  clearTimeout(waits);
  view.playing = false;
  document.body.classList.remove("playing");
  $("play").setAttribute("aria-label", "Play");
}

const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const playSoon = () => { if (!still) waits = setTimeout(() => { if (view.section === "training") play(); }, 500); };

$("play").addEventListener("click", () => (view.playing ? pause() : play()));
$("step").addEventListener("click", () => {
  pause();
  view.frame = Math.min(view.frame + 1, Number($("time").max));
  if (view.section === "tokens") turnTo(view.state.start, 1);
  else showFrame();
});
$("reset").addEventListener("click", () => {
  pause();
  const fresh = opening(view.section);
  view.focus = -1;
  change((state) => { for (const key of Object.keys(state)) delete state[key]; Object.assign(state, fresh); });
  view.frame = 0;
  if (view.section !== "training") compute();
  else draw();
});
$("time").addEventListener("input", () => {
  pause();
  const before = view.frame;
  view.frame = Number($("time").value);
  if (view.section === "tokens") turnTo(view.state.start, view.frame - before);
  else showFrame();
});

// --- panels -------------------------------------------------------------------------------------------------------

export function focusOn(k) {
  view.focus = view.focus === k ? -1 : k;
  draw();
}
$("limits").addEventListener("click", (event) => { const row = event.target.closest(".limit"); if (row && view.section === "own") tell(askOwn({ asked: own.overview.limits[Number(row.dataset.limit)].selected })); else if (row) focusOn(Number(row.dataset.limit)); });

export function choose(key) {
  view.chosen = key;
  fillEditor();
}

function fillEditor() {
  const [i, t] = view.chosen.split(",").map(Number), token = view.state.inputs[i]?.tokens[t];
  if (!token) return choose("0,0");
  $("chosen").textContent = nameOf(i, t);
  for (const name of ["x", "y", "score"]) if (document.activeElement !== $(`chosen-${name}`)) $(`chosen-${name}`).value = +token[name].toFixed(3);
}

function fillPanels() {
  const { state } = view;
  fillEditor();
  offerTravel();
  for (const [id, name] of [["method", "method"], ["loss", "loss"], ["step-size", "step"], ["steps", "steps"]]) if (document.activeElement !== $(id)) $(id).value = state[name];
  $("step-size").disabled = $("steps").disabled = state.method === "flow";
  for (const button of $("stories").children) button.setAttribute("aria-pressed", button.dataset.story === state.story);
  const chosen = state.asked ?? bestOf(state.inputs);
  selectionButtons(state.inputs, chosen);
}
$("asked").addEventListener("click", (event) => select(event.target.closest("button")?.dataset.ask));
$("asked").addEventListener("change", (event) => select(event.target.value));

function select(key) {
  if (!key) return;
  const [i, t] = key.split(",").map(Number);
  if (view.section === "own") return void tell(askOwn({ asked: own.asked.map((u, j) => (j === i ? t : u)) }));
  change((state) => { state.asked = (state.asked ?? bestOf(state.inputs)).map((u, j) => (j === i ? t : u)); });
  $("asked").querySelector(`[data-ask="${key}"]`).focus();
}

for (const name of ["x", "y", "score"]) {
  $(`chosen-${name}`).addEventListener("input", () => {
    const value = Number($(`chosen-${name}`).value), [i, t] = view.chosen.split(",").map(Number);
    if (!Number.isFinite(value) || $(`chosen-${name}`).value === "" || Math.abs(value) > 1e4) return;
    change((state) => { state.inputs[i].tokens[t][name] = value; state.story = ""; }, { group: `edit ${name} ${view.chosen}` });
  });
}

export function removeToken(key) {
  const [i, t] = key.split(",").map(Number);
  if (view.state.inputs[i].tokens.length === 1 && view.state.inputs.length === 1) return toast("The last token stays.");
  return change((state) => {
    state.inputs[i].tokens.splice(t, 1);
    if (!state.inputs[i].tokens.length) state.inputs.splice(i, 1);
    state.asked = null;
    state.story = "";
    view.chosen = "0,0";
  });
}
$("remove-token").addEventListener("click", () => removeToken(view.chosen));
$("add-token").addEventListener("click", () => {
  const i = Number(view.chosen.split(",")[0]), { tokens } = view.state.inputs[i];
  if (tokens.length >= 10) return toast("An input holds at most ten tokens here.");
  const far = 0.7 / viewOf(view.state.inputs).unit, a = 2.4 * tokens.length; // the golden angle: a free place
  return change((state) => { state.inputs[i].tokens.push({ x: +(far * Math.cos(a)).toFixed(2), y: +(far * Math.sin(a)).toFixed(2), score: 0.5 }); state.asked = null; state.story = ""; view.chosen = `${i},${tokens.length - 1}`; });
});
$("add-input").addEventListener("click", () => {
  if (view.state.inputs.length >= 6) return toast("At most six inputs fit here.");
  const far = 0.6 / viewOf(view.state.inputs).unit;
  return change((state) => { state.inputs.push({ tokens: [{ x: far, y: 0, score: 1 }, { x: 0, y: 0, score: 0 }] }); state.asked = null; state.story = ""; view.chosen = `${state.inputs.length - 1},0`; });
});
$("method").addEventListener("change", () => setMethod($("method").value));
$("loss").addEventListener("change", () => change((state) => { state.loss = $("loss").value; }));
$("step-size").addEventListener("change", () => bounded("step-size", 0.01, 100, (state, value) => { state.step = value; }));
$("steps").addEventListener("change", () => bounded("steps", 1, 2000, (state, value) => { state.steps = Math.round(value); }));

function bounded(id, low, high, set) {
  const value = Number($(id).value), kept = Math.max(low, Math.min(high, Number.isFinite(value) ? value : low));
  if (kept !== value) toast(`${id === "steps" ? "Steps" : "The step"} must lie in ${low}..${high}; ${kept} is taken.`);
  change((state) => set(state, kept));
  $(id).value = kept;
}

/** Every method with a step that suits it: plain descent slows down as the gradient fades. */
function setMethod(method) {
  change((state) => { state.method = method; state.step = +(method === "descent" ? 5 * view.scales.unit ** 2 : 0.1 * view.scales.unit).toPrecision(2); });
  view.frame = 0;
  if (view.section === "training") play();
}

// --- the text's own buttons ---------------------------------------------------------------------------------------

const LOOKED_AT = 20000; // selections, a second or so
const ACTS = {
  play,
  longer: () => change((state) => { state.start = state.start.map((z) => 2 * z); }),
  towards: () => change((state) => {
    const best = state.inputs[0].tokens[bestOf(state.inputs)[0]], norm = Math.hypot(...state.start) || 1, size = Math.hypot(best.x, best.y) || 1;
    state.start = [(best.x / size) * norm, (best.y / size) * norm];
  }),
  descent: () => setMethod("descent"),
  normalized: () => setMethod("normalized"),
  closer: () => {
    const limit = view.picture.limits[view.picture.run.end];
    if (!limit) return toast("This run settles nowhere: reset first.");
    const [i, t] = limit.support[0].token, [s] = limit.sets[i];
    return change((state) => {
      const [own, rival] = [state.inputs[i].tokens[s], state.inputs[i].tokens[t]];
      rival.x += 0.25 * (own.x - rival.x);
      rival.y += 0.25 * (own.y - rival.y);
      state.story = "";
    });
  },
  elsewhere: () => {
    if (!view.ground) return;
    const here = view.picture.run.end, { labels } = view.ground, found = [];
    labels.forEach((label, k) => { if (label >= 0 && label !== here) found.push(k); });
    if (!found.length) return toast("The whole disc has one colour.");
    const inner = found.map((k) => [Math.hypot(...promptOfCell(k)), k]).sort((a, b) => a[0] - b[0]);
    const [, k] = inner[Math.floor(inner.length * 0.35)];
    change((state) => { state.start = promptOfCell(k); });
    view.frame = 0;
    return play();
  },
  best: () => change((state) => { state.asked = null; }),
  impossible: () => {
    const { inputs, asked } = view.state, count = countSelections(inputs), here = numberOf(inputs, asked ?? bestOf(inputs));
    for (let k = 1; k <= Math.min(count, LOOKED_AT); k++) {
      const selected = selectionAt(inputs, (here + k) % count);
      if (verdictOn(inputs, selected).status === "infeasible") return change((state) => { state.asked = selected; });
    }
    return toast(count > LOOKED_AT ? `The next ${LOOKED_AT} selections are all possible.` : "Every selection is possible here.");
  },
  ties: () => openStory("ties"),
  "own-move": () => {
    states.set("settle", { ...structuredClone(DEFAULTS), inputs: structuredClone(own.answer.inputs), method: "flow", story: "" });
    show("settle", { scroll: true, push: true });
  },
};
$("article").addEventListener("click", (event) => {
  const act = event.target.closest("[data-act]")?.dataset.act;
  if (act in ACTS) { view.hinted = true; ACTS[act](); }
  if (act in OWN_ACTS) tell(OWN_ACTS[act]());
});
