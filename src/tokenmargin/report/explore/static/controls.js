// Hands on the page: dragging, keys, play, sections, stories, the address, and what can be kept.

import { $, DATA, SECTIONS, colourOf, compute, disc, draw, groundAt, openTools, paintGround, promptNow, promptOfCell, selectionButtons, storyState, thumbnail, view } from "./page.js";
import { element } from "./charts.js";
import { keyAtPlace, promptAtPlace, RIM, viewOf } from "./drawing.js";
import { bestOf, selectionAt } from "./model.js";
import { verdictOn } from "./limits.js";
import { nameOf } from "./plane.js";
import { limitWords, tokensOf, tokenWords } from "./words.js";
import { decode, DEFAULTS, encode, readAddress } from "./state.js";
import { asPng, asPython, asSvg, copyText, download } from "./keep.js";
import { beginWords, drawWords, say, sentence, sentencePython } from "./yourwords.js";
import { askOwn, drawOwn, own, ownPython, OWN_ACTS, problemFile } from "./own.js";

const states = new Map(); // what a reader has made of each section
const history_ = { past: [], future: [], group: null };
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

function travel(from, to) {
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
  clearTimeout(writing);
  writing = setTimeout(() => window.history.replaceState(null, "", address()), 250);
}

const address = () => {
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
function play() {
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

function pause() {
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

// --- dragging -----------------------------------------------------------------------------------------------------

const at = (event) => {
  const box = $("disc").getBoundingClientRect();
  return [((event.clientX - box.left) / box.width - 0.5) * 580, ((event.clientY - box.top) / box.height - 0.5) * 580];
};
let held = null, drawing = 0;

$("disc").addEventListener("pointerdown", (event) => {
  if (event.button > 0 || view.section === "own") return;
  const grip = event.target.closest(".grip"), ray = event.target.closest(".ray");
  if (grip) held = { what: grip.dataset.token ?? "start", id: event.pointerId };
  else if (ray && view.section !== "proofs") return focusOn(Number(ray.dataset.limit));
  else if (event.pointerType === "mouse" && ["settle", "margin", "training", "tokens"].includes(view.section) && Math.hypot(...at(event)) < RIM) held = { what: "start", id: event.pointerId };
  else return;
  event.preventDefault();
  pause();
  view.hinted = true;
  hideCard();
  if (held.what !== "start") choose(held.what);
  (held.what === "start" ? disc.handle : disc.nodes.get(held.what)).focus({ preventScroll: true });
  $("disc").setPointerCapture(event.pointerId);
  held.group = `drag ${event.timeStamp}`;
  if (!grip) moveTo(at(event));
});
$("disc").addEventListener("pointermove", (event) => {
  if (held?.id !== event.pointerId) return held ? undefined : hover(event);
  held.to = at(event);
  if (!drawing) drawing = requestAnimationFrame(() => { drawing = 0; if (held?.to) moveTo(held.to); });
});
for (const name of ["pointerup", "pointercancel"]) {
  $("disc").addEventListener(name, (event) => {
    if (held?.id !== event.pointerId) return;
    cancelAnimationFrame(drawing);
    drawing = 0;
    if (held.to) moveTo(held.to);
    const { group } = held;
    held = null;
    change(() => {}, { group, keepFrame: view.section !== "training" });
  });
}

function moveTo(place) {
  const { what, group } = held;
  change((state) => {
    if (what === "start") state.start = promptAtPlace(place, view.scales);
    else {
      const [i, t] = what.split(",").map(Number);
      [state.inputs[i].tokens[t].x, state.inputs[i].tokens[t].y] = keyAtPlace(place, view.scales);
      state.story = "";
    }
  }, { group, moving: true });
}

// --- hover --------------------------------------------------------------------------------------------------------

function hover(event) {
  const token = event.target.closest?.("[data-token]"), ray = event.target.closest?.(".ray");
  if (token) return card(event, tokenCard(token.dataset.token));
  const word = event.target.closest?.(".word-token");
  if (word) return card(event, word.getAttribute("aria-label").split(/[:,] /));
  if (ray && view.section !== "own") {
    const limit = view.picture.limits[Number(ray.dataset.limit)];
    return card(event, [tokensOf(limit.sets), ...limitWords(limit, view.state.inputs, view.shares?.get(Number(ray.dataset.limit)))]);
  }
  if (event.target.closest?.("#prompt")) return card(event, [view.section === "tokens" ? "The prompt p" : "The start of training", `(${view.state.start.map((z) => z.toFixed(2)).join(", ")}), |p| = ${Math.hypot(...view.state.start).toFixed(2)}`]);
  if (view.section === "settle" && Math.hypot(...at(event)) < RIM) {
    const p = promptAtPlace(at(event), view.scales), limit = view.picture.limits[groundAt(p)];
    return card(event, [limit ? `From here training ends on ${tokensOf(limit.sets)}` : "From here training comes to rest, or settles on no limit", `p = (${p.map((z) => z.toFixed(2)).join(", ")})`]);
  }
  return hideCard();
}

function tokenCard(key) {
  const [i, t] = key.split(",").map(Number);
  if (view.section === "own") return [nameOf(i, t), `score ${own.answer.inputs[i].tokens[t].score.toPrecision(4)}`];
  const p = promptNow();
  return [nameOf(i, t), ...tokenWords(view.state.inputs, [i, t], { logits: view.picture.plane.logits(...p), weights: view.picture.plane.weights(...p), limit: ["margin", "settle"].includes(view.section) ? view.picture.limits[view.shown] : null })];
}

function card({ clientX, clientY, pointerType }, [title, ...lines]) {
  if (pointerType === "touch") return;
  const box = $("card");
  box.replaceChildren(element("b", { textContent: title }), ...lines.map((words) => element("span", { textContent: words })));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.min(clientX + 14, innerWidth - width - 8)}px`;
  box.style.top = `${clientY + 18 + height > innerHeight ? clientY - height - 12 : clientY + 18}px`;
}

const hideCard = () => { $("card").hidden = true; };
$("disc").addEventListener("pointerleave", hideCard);
addEventListener("scroll", hideCard, { passive: true });

// --- keys ---------------------------------------------------------------------------------------------------------

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
$("disc").addEventListener("keydown", (event) => {
  const grip = event.target.closest(".grip"), arrow = ARROWS[event.key];
  if (!grip || view.section === "own") return;
  const key = grip.dataset.token, far = event.shiftKey ? 5 : 1;
  if (arrow) {
    event.preventDefault();
    view.hinted = true;
    change((state) => {
      if (!key) return void (state.start = state.start.map((z, j) => z + 0.1 * far * view.scales.unit * arrow[j]));
      const [i, t] = key.split(",").map(Number), token = state.inputs[i].tokens[t], reach = (RIM - 16) / view.scales.scale;
      const [x, y] = [token.x + (0.02 * far * arrow[0]) / view.scales.unit, token.y + (0.02 * far * arrow[1]) / view.scales.unit], shrink = Math.min(1, reach / Math.hypot(x, y));
      [token.x, token.y] = [x * shrink, y * shrink];
      state.story = "";
    }, { group: `keys ${key}` });
  } else if (key && ["+", "=", "-"].includes(event.key)) {
    event.preventDefault();
    const [i, t] = key.split(",").map(Number);
    change((state) => { state.inputs[i].tokens[t].score = Math.round(100 * (state.inputs[i].tokens[t].score + (event.key === "-" ? -0.05 : 0.05))) / 100; state.story = ""; }, { group: `score ${key}` });
  } else if (key && event.key === "Delete") removeToken(key);
  else if (key && event.key === "Enter") choose(key);
});
$("disc").addEventListener("focusin", (event) => { const key = event.target.closest("[data-token]")?.dataset.token; if (key && view.section !== "own") choose(key); });

addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    hideCard();
    for (const menu of document.querySelectorAll("details.menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
  }
  if (event.target.closest?.("input, select, textarea, summary, button, a")) return;
  if (event.key === " " && !["words", "own"].includes(view.section)) { event.preventDefault(); if (view.playing) pause(); else play(); }
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") { event.preventDefault(); if (event.shiftKey) travel(history_.future, history_.past); else travel(history_.past, history_.future); }
});
addEventListener("pointerdown", (event) => { for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false; });
$("undo").addEventListener("click", () => travel(history_.past, history_.future));
$("redo").addEventListener("click", () => travel(history_.future, history_.past));

// --- panels -------------------------------------------------------------------------------------------------------

function focusOn(k) {
  view.focus = view.focus === k ? -1 : k;
  draw();
}
$("limits").addEventListener("click", (event) => { const row = event.target.closest(".limit"); if (row && view.section === "own") tell(askOwn({ asked: own.overview.limits[Number(row.dataset.limit)].selected })); else if (row) focusOn(Number(row.dataset.limit)); });

function choose(key) {
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

function removeToken(key) {
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
    const all = view.state.inputs.reduce((lists, { tokens }) => lists.flatMap((list) => tokens.map((_, t) => [...list, t])), [[]]);
    const ruled = all.map((selected) => verdictOn(view.state.inputs, selected)).filter((verdict) => verdict.status === "infeasible");
    if (!ruled.length) return toast("Every selection is possible here.");
    const next = ruled[(ruled.findIndex(({ selected }) => `${selected}` === `${view.state.asked}`) + 1) % ruled.length];
    return change((state) => { state.asked = next.selected; });
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

// --- stories, sections, address -----------------------------------------------------------------------------------

function openStory(name) {
  pause();
  const kept = { method: view.state.method, ...(view.section === "tokens" ? { start: view.state.start } : {}) };
  view.ground = view.shares = null;
  view.focus = -1;
  view.colours.clear();
  $("ground").getContext("2d").clearRect(0, 0, 768, 768);
  change((state) => { const fresh = storyState(name, kept); for (const key of Object.keys(state)) delete state[key]; Object.assign(state, fresh); });
  if (view.section === "training") { view.frame = 0; play(); }
  clearTimeout(writing);
  window.history.pushState(null, "", address());
}

function legend() {
  const swatch = (shape) => `<svg viewBox="-11 -8 22 16" aria-hidden="true">${shape}</svg>`, c = disc.c;
  const items = {
    star: ["best score", `<text text-anchor="middle" y="5" font-size="13" fill="${c.score}">★</text>`],
    weight: ["halo: weight", `<circle r="8" fill="${c.key}" opacity=".3"/><circle r="4" fill="${c.token}" stroke="${c.ink}"/>`],
    foot: ["foot on p: logit", `<path d="M-9 6L9 -6" stroke="${c.prompt}" stroke-dasharray="2 2"/><path d="M4 6L0 0" stroke="${c.key}" stroke-width="1.5"/><circle r="3" fill="${c.key}"/>`],
    start: ["start", `<path d="M0 -6L6 0L0 6L-6 0Z" fill="${c.prompt}"/>`],
    pull: ["downhill", `<path d="M-9 0H5" stroke="${c.ink}" stroke-width="2"/><path d="M10 0L3 -4V4Z" fill="${c.ink}"/>`],
    path: ["path of p", `<path d="M-10 5Q-2 -8 10 -4" fill="none" stroke="${c.limit(1)}" stroke-width="2.5"/>`],
    dotted: ["how it goes on", `<path d="M-10 5Q-2 -8 10 -4" fill="none" stroke="${c.limit(1)}" stroke-width="2" stroke-dasharray="1 4" stroke-linecap="round"/>`],
    ray: ["direction to settle on", `<path d="M-10 0H5" stroke="${c.limit(0)}" stroke-width="3"/><circle cx="6" r="5" fill="${c.limit(0)}"/>`],
    band: ["margin", `<rect x="-6" y="-7" width="12" height="14" fill="${c.limit(0)}" opacity=".25"/><path d="M6 -7V7" stroke="${c.limit(0)}"/><path d="M-6 -7V7" stroke="${c.limit(0)}" stroke-dasharray="3 2"/>`],
    holds: ["holds it", `<circle r="6" fill="${c.token}" stroke="${c.limit(0)}" stroke-width="2" stroke-dasharray="3 2"/>`],
    chosen: ["selected", `<circle r="6" fill="${c.token}" stroke="${c.limit(0)}" stroke-width="3"/>`],
    ground: ["ground: where it ends", `<rect x="-10" y="-6" width="10" height="12" fill="${c.limit(0)}" opacity=".4"/><rect y="-6" width="10" height="12" fill="${c.limit(1)}" opacity=".4"/>`],
  };
  const shown = { tokens: ["star", "weight", "foot"], training: ["start", "path", "dotted", "pull", "weight"], margin: ["ray", "band", "chosen", "holds"], settle: ["ground", "ray", "start", "path"], proofs: ["chosen", "holds", "band", "ray"], own: ["chosen", "holds", "band"], words: ["foot", "weight"] }[view.section];
  $("legend").innerHTML = shown.map((name) => `<li>${swatch(items[name][1])}${items[name][0]}</li>`).join("");
}

function watchSections() {
  const near = () => {
    const wide = innerWidth > 860, line = wide ? innerHeight * 0.45 : $("stage").getBoundingClientRect().bottom + 60;
    let now = SECTIONS[0].id;
    for (const { id } of SECTIONS) if ($(id).getBoundingClientRect().top <= line) now = id;
    if (innerHeight + scrollY >= document.documentElement.scrollHeight - 4 && scrollY > 0) now = SECTIONS.at(-1).id;
    if (now !== view.section) show(now);
  };
  let due = false;
  addEventListener("scroll", () => { if (!due) { due = true; requestAnimationFrame(() => { due = false; near(); }); } }, { passive: true });
}

function follow({ first = false } = {}) {
  const { section, state, text, broken } = readAddress(location.hash);
  if (text !== undefined) say(text);
  const known = SECTIONS.some(({ id }) => id === section) ? section : first ? "tokens" : view.section;
  if (state) states.set(known, state);
  else if (section === known && !first) states.delete(known);
  if (broken) toast("The link could not be read; this is the picture of the text.");
  show(known, { scroll: section === known && !(first && section === "tokens") });
}

let hiding = 0;
export function toast(words) {
  $("toast").textContent = words;
  $("toast").hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { $("toast").hidden = true; }, 3500);
}

const link = () => { const full = address().includes("/") ? address() : `#${view.section}`; return `${location.href.split("#")[0]}${full}`; };
const kept = async (text, words) => toast((await copyText(text)) ? words : "This browser does not let the page copy; use the address bar.");
$("copy-link").addEventListener("click", () => kept(link(), DATA.own ? "Link copied. It opens on this computer while the playground runs; pages that can be sent are written by tokenmargin explore." : "Link copied."));
$("copy-embed").addEventListener("click", () => kept(`<iframe src="${link().replace("#", "?embed#")}" width="900" height="620" style="border:0" title="See attention choose"></iframe>`, "Code copied."));
$("copy-python").addEventListener("click", () => kept(view.section === "words" ? sentencePython() : view.section === "own" ? ownPython() : asPython(view.state), "Python copied."));
$("save-problem").addEventListener("click", () => download("problem.json", JSON.stringify(view.section === "own" ? own.problem : problemFile(view.state)), "application/json"));
$("open-problem").addEventListener("click", () => OWN_ACTS["own-open"]());
$("problem-file").addEventListener("change", async ({ target }) => {
  const [file] = target.files;
  const text = await file.text();
  target.value = "";
  await tell(openFile(file.name, text));
});

async function openFile(name, text) {
  let problem;
  try {
    problem = JSON.parse(text);
  } catch {
    throw new Error(`${name} is not JSON: save the problem with problem.save("problem.json").`);
  }
  if (view.section !== "own") show("own", { scroll: true, push: true });
  return askOwn({ problem, name });
}

/** Wait for the server; what goes wrong is said. */
const tell = (work) => Promise.resolve(work).catch((error) => toast(error.message));
$("typed").addEventListener("input", () => {
  if (view.section !== "words") show("words");
  say($("typed").value);
  clearTimeout(writing);
  writing = setTimeout(() => window.history.replaceState(null, "", address()), 250);
});
$("examples").addEventListener("click", () => window.history.replaceState(null, "", address()));
$("save-svg").addEventListener("click", () => download("attention.svg", picture(), "image/svg+xml"));
$("save-png").addEventListener("click", async () => download("attention.png", await asPng(picture()), "image/png"));
const picture = () => asSvg($("disc"), $("ground"), view.section === "settle", disc.c, $("caption").textContent);

function begin() {
  document.body.classList.toggle("embed", new URLSearchParams(location.search).has("embed"));
  $("contents").replaceChildren(...SECTIONS.map(({ id, title }, k) => element("li", {}, element("a", { href: `#${id}`, title }, `${k + 1} `, element("span", { textContent: title })))));
  $("contents").addEventListener("click", (event) => {
    const to = event.target.closest("a");
    if (!to) return;
    event.preventDefault();
    show(to.hash.slice(1), { scroll: true, push: true });
  });
  stories();
  beginWords();
  if (!DATA.own) for (const node of document.querySelectorAll("[data-served]")) node.remove();
  addEventListener("popstate", () => follow());
  follow({ first: true });
  watchSections();
  const redraw = () => { disc.theme(); if (view.section === "words") drawWords(); else if (view.section === "own") drawOwn(); else draw(); };
  const again = () => { redraw(); stories(); legend(); paintGround(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("resize", redraw);
  requestAnimationFrame(() => setTimeout(() => { performance.mark("painted"); document.documentElement.dataset.painted = ""; }, 0));
}

function stories() {
  $("stories").replaceChildren(...DATA.stories.map((story) => {
    const button = element("button", { className: "story", title: story.title }, thumbnail(story));
    button.setAttribute("aria-label", story.title);
    button.dataset.story = story.name;
    button.addEventListener("click", () => openStory(story.name));
    return button;
  }));
}

begin();
window.explore = { view, own, show, change, decode, encode, asPython: () => asPython(view.state), colourOf, picture, asPng };
