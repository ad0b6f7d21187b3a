// The page: keeps state, drawing and panels in step.

import { Asker } from "./api.js";
import { RIM } from "./explore/drawing.js";
import { Plane, prompt, scaleOf } from "./draw.js";
import { asPng, asPython, download } from "./explore/keep.js";
import { problemFile, readProblem } from "./keep.js";
import { $, element, showCertificate, showEditor, showLimits, showSettings, showWeights } from "./panels.js";
import { DEFAULTS, Store, decode, encode, wanted } from "./state.js";
import { Tour, fromPreset, showStory } from "./story.js";
import { TextView } from "./text.js";

const REST = 140; // milliseconds without a change before the full picture is asked for
const hello = await (await fetch("api/hello")).json();
const plane = new Plane($("plane"));
const view = { answer: null, chosen: "0,0", focus: null, asked: null, scale: 1, frame: 0, playing: 0, mode: "plane", dragging: null };
const timings = [];

const store = new Store((state, { moving }) => {
  const [i, t] = view.chosen.split(",").map(Number);
  if (!state.inputs[i]?.tokens[t]) view.chosen = "0,0";
  if (view.asked && !view.asked.every((k, j) => state.inputs[j]?.tokens[k])) view.asked = null;
  if (view.asked && view.asked.length !== state.inputs.length) view.asked = null;
  if (!moving) view.scale = scaleOf(state);
  plane.drawTokens(state, view.scale, view.chosen, view.answer && sameShape(state, view.answer) ? view.answer : null);
  showEditor(state, view.chosen);
  if (!moving) showSettings(state);
  if (state.preset !== view.story) showStory(hello.presets, (view.story = state.preset));
  $("undo").disabled = !store.past.length;
  $("redo").disabled = !store.future.length;
  remember();
  request(moving);
});

const sameShape = (state, answer) => answer.shape === state.inputs.map((row) => row.tokens.length).join();

// ---- asking and painting

const asker = new Asker("api/plane", paint, (error) => toast(error.message));
let resting = 0;

function request(moving, since = performance.now()) {
  const state = store.now, body = wanted(state);
  const asked = view.asked ?? view.answer?.limits[view.answer.focus]?.selected;
  if (asked && asked.length === state.inputs.length && asked.every((t, i) => state.inputs[i].tokens[t])) body.asked = asked;
  clearTimeout(resting);
  asker.ask({ ...body, draft: true }, { since, state });
  if (!moving) resting = setTimeout(() => asker.ask({ ...body, draft: false }, { since: null, state }), REST);
}

function paint(answer, { since, state }) {
  const answered = performance.now();
  const before = view.answer;
  answer.shape = state.inputs.map((row) => row.tokens.length).join();
  answer.colour = hues(answer, before);
  answer.colourOf = (basin) => (basin < 0 ? -1 : answer.colour[basin]);
  const same = answer.limits.findIndex((limit) => view.focus !== null && `${limit.selected}` === view.focus);
  answer.focus = same >= 0 ? same : 0;
  view.answer = answer;
  const frames = path().length;
  if (!view.playing || view.frame >= frames) view.frame = frames - 1;
  $("time").max = frames - 1;
  const now = store.now;
  plane.draw(answer, view.scale, state.inputs);
  plane.drawTokens(now, view.scale, view.chosen, sameShape(now, answer) ? answer : null);
  $("note").textContent = answer.note;
  showLimits(answer, plane.c, focusOn);
  if ($("certificate").open) showCertificate(state, answer, plane.c, ask);
  showFrame();
  if (since !== null) {
    const drawn = performance.now();
    const time = { server: answer.milliseconds, answered: answered - since, drawn: drawn - answered };
    requestAnimationFrame(() => setTimeout(() => timings.push({ ...time, total: performance.now() - since })));
  }
  document.documentElement.dataset.painted = asker.painted;
}

/** A direction keeps its colour while tokens move; the best one is always the first colour. */
function hues(answer, before) {
  const kept = new Map(before?.limits.map((limit, k) => [`${limit.selected}`, before.colour[k]]));
  const used = new Set([0]);
  const hue = answer.limits.map((limit) => {
    const old = kept.get(`${limit.selected}`);
    if (limit.gmm) return 0;
    if (!old || used.has(old)) return -1;
    used.add(old);
    return old;
  });
  let next = 1;
  return hue.map((k) => {
    if (k >= 0) return k;
    while (used.has(next) && next < 6) next += 1;
    used.add(next);
    return next;
  });
}

function focusOn(k) {
  view.focus = `${view.answer.limits[k].selected}`;
  view.asked = null;
  view.answer.focus = k;
  paint(view.answer, { since: null, state: store.now });
  request(false);
}

$("certificate").addEventListener("toggle", () => {
  if (view.answer && $("certificate").open) showCertificate(store.now, view.answer, plane.c, ask);
});

function ask(selected) {
  view.asked = selected;
  request(false);
}

/** The address follows, but not every move of a drag: browsers refuse that many changes. */
function remember() {
  clearTimeout(remember.timer);
  remember.timer = setTimeout(writeAddress, 200);
}

function writeAddress() {
  const fragment = view.mode === "text" ? `t=${encodeURIComponent($("text").value)}` : `s=${encode(store.now)}`;
  history.replaceState(null, "", `#${fragment}`);
}

// ---- training on show

const path = () => view.answer?.both?.prompt_path ?? view.answer?.training.points ?? [];

function showFrame() {
  const shown = view.answer.both ?? view.answer.training;
  const frame = Math.min(view.frame, shown.at.length - 1);
  $("time").value = frame;
  const when = store.now.method === "flow" && !view.answer.both ? `point ${frame}` : `step ${shown.at[frame]}`;
  $("clock").textContent = when;
  showWeights(store.now, shown.weights[frame], `at ${when}`);
  plane.drawTraining(store.now, view.answer, frame);
}

function play() {
  stop();
  view.frame = 0;
  $("play").firstElementChild.textContent = "❚❚";
  $("play").setAttribute("aria-label", "Pause training");
  let last = 0;
  const tick = (now) => {
    if (now - last > 45) {
      last = now;
      if (view.frame >= path().length - 1) return stop();
      view.frame += 1;
      showFrame();
    }
    view.playing = requestAnimationFrame(tick);
    return undefined;
  };
  view.playing = requestAnimationFrame(tick);
}

function stop() {
  cancelAnimationFrame(view.playing);
  view.playing = 0;
  $("play").firstElementChild.textContent = "▶";
  $("play").setAttribute("aria-label", "Play training");
}

$("play").addEventListener("click", () => (view.playing ? stop() : play()));
$("time").addEventListener("input", () => {
  stop();
  view.frame = Number($("time").value);
  showFrame();
});

// ---- mouse, touch and keyboard on the plane

const at = (event) => {
  const box = plane.root.getBoundingClientRect(), side = Math.min(box.width, box.height);
  return [((event.clientX - box.left - box.width / 2) * 640) / side, ((event.clientY - box.top - box.height / 2) * 640) / side];
};
const clamp = (x) => Math.max(-900, Math.min(900, Math.round(x * 1000) / 1000));

function moveTo(what, [x, y], group) {
  store.edit((state) => {
    state.preset = "";
    if (what === "start") state.start = prompt([x, y]).map(clamp);
    else {
      // Never outside the disc, where it could not be reached again.
      const [i, t] = what.split(",").map(Number), inside = Math.min(1, (RIM - 16) / (Math.hypot(x, y) || 1));
      Object.assign(state.inputs[i].tokens[t], { x: clamp((x * inside) / view.scale), y: clamp((-y * inside) / view.scale) });
    }
  }, { group, moving: true });
}

function choose(key) {
  view.chosen = key;
  showEditor(store.now, key);
  plane.drawTokens(store.now, view.scale, key, sameShape(store.now, view.answer) ? view.answer : null);
}

plane.root.addEventListener("pointerdown", (event) => {
  const ray = event.target.closest(".ray");
  const node = event.target.closest(".token");
  if (!node) {
    if (ray) focusOn(Number(ray.dataset.limit));
    return;
  }
  event.preventDefault();
  const what = node.dataset.token ?? "start";
  if (what !== "start") choose(what);
  node.focus({ preventScroll: true });
  plane.root.setPointerCapture(event.pointerId);
  view.dragging = { what, group: Symbol("drag") };
});
plane.root.addEventListener("pointermove", (event) => {
  if (view.dragging) moveTo(view.dragging.what, at(event), view.dragging.group);
});
for (const name of ["pointerup", "pointercancel"]) {
  plane.root.addEventListener(name, () => {
    if (!view.dragging) return;
    view.dragging = null;
    request(false);
  });
}
plane.root.addEventListener("dblclick", (event) => {
  if (!event.target.closest(".token")) addToken(at(event));
});
plane.root.addEventListener("keydown", (event) => {
  const node = event.target.closest?.(".token");
  if (!node || event.ctrlKey || event.metaKey) return;
  const what = node.dataset.token ?? "start";
  const size = event.shiftKey ? 0.25 : 0.05;
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
  const louder = { "+": 1, "=": 1, "-": -1 }[event.key];
  if (way) {
    store.edit((state) => {
      state.preset = "";
      const [dx, dy] = way.map((v) => v * size);
      if (what === "start") state.start = [clamp(state.start[0] + 4 * dx), clamp(state.start[1] + 4 * dy)];
      else {
        const [i, t] = what.split(",").map(Number), token = state.inputs[i].tokens[t];
        Object.assign(token, { x: clamp(token.x + dx), y: clamp(token.y + dy) });
      }
    }, { group: `keys ${what}` });
  } else if (what !== "start" && louder) {
    const [i, t] = what.split(",").map(Number);
    store.edit((state) => { state.preset = ""; state.inputs[i].tokens[t].score = clamp(state.inputs[i].tokens[t].score + louder * size); });
  } else if (what !== "start" && event.key === "Delete") {
    choose(what);
    removeToken();
  } else if (what !== "start" && (event.key === "Enter" || event.key === " ")) {
    choose(what);
  } else return;
  event.preventDefault();
});
plane.root.addEventListener("focusin", (event) => {
  const key = event.target.closest(".token")?.dataset.token;
  if (key && key !== view.chosen && view.answer) choose(key);
});

// ---- editing

const edit = (change, options) => store.edit((state) => { state.preset = ""; change(state); }, options);
const chosen = () => view.chosen.split(",").map(Number);

function addToken([x, y] = [60, -60]) {
  const [i] = chosen();
  if (store.now.inputs[i].tokens.length >= hello.limits.tokens) return toast(`An input has at most ${hello.limits.tokens} tokens.`);
  view.chosen = `${i},${store.now.inputs[i].tokens.length}`;
  edit((state) => state.inputs[i].tokens.push({ x: clamp(x / view.scale), y: clamp(-y / view.scale), score: 0 }));
  return plane.nodes.get(view.chosen)?.focus({ preventScroll: true });
}

function removeToken() {
  const [i, t] = chosen();
  if (store.now.inputs[i].tokens.length === 1) return removeInput();
  view.chosen = `${i},${Math.max(0, t - 1)}`;
  edit((state) => state.inputs[i].tokens.splice(t, 1));
  return plane.nodes.get(view.chosen)?.focus({ preventScroll: true });
}

function removeInput() {
  const [i] = chosen();
  if (store.now.inputs.length === 1) return toast("The last input stays.");
  view.chosen = "0,0";
  return edit((state) => state.inputs.splice(i, 1));
}

$("add-token").addEventListener("click", () => addToken());
$("remove-token").addEventListener("click", removeToken);
$("remove-input").addEventListener("click", removeInput);
$("add-input").addEventListener("click", () => {
  if (store.now.inputs.length >= hello.limits.inputs) return toast(`The plane holds at most ${hello.limits.inputs} inputs.`);
  view.chosen = `${store.now.inputs.length},0`;
  const far = 120 / view.scale;
  return edit((state) => state.inputs.push({ label: 1, tokens: [{ x: clamp(far), y: clamp(far / 2), score: 1 }, { x: clamp(-far / 2), y: clamp(-far), score: 0 }] }));
});
for (const field of ["x", "y", "score"]) {
  $(`chosen-${field}`).addEventListener("input", (event) => {
    const value = event.target.valueAsNumber, [i, t] = chosen();
    if (Number.isFinite(value)) edit((state) => { state.inputs[i].tokens[t][field] = clamp(value); }, { group: `field ${field} ${view.chosen}` });
  });
}
$("chosen-label").addEventListener("change", (event) => {
  // The score of a token is its value times the label of its input.
  const [i] = chosen(), label = Number(event.target.value);
  edit((state) => {
    if (state.inputs[i].label !== label) state.inputs[i].tokens.forEach((token) => { token.score = -token.score || 0; });
    state.inputs[i].label = label;
  });
});
$("loss").append(...hello.losses.map((name) => element("option", { value: name, textContent: name })));
for (const name of ["loss", "trained"]) $(name).addEventListener("change", (event) => store.update({ [name]: event.target.value }));
$("method").addEventListener("change", (event) => {
  // A step that suits the method: the gradient fades, so plain descent needs a longer one than steps of equal length.
  const method = event.target.value, suits = method === "descent" ? 2 : DEFAULTS.step;
  store.update({ method, step: (method === "descent") === (store.now.method === "descent") ? store.now.step : suits });
});
for (const name of ["step", "steps", "radius"]) {
  $(name).addEventListener("change", (event) => {
    if (event.target.checkValidity() && event.target.value !== "") store.update({ [name]: event.target.valueAsNumber });
    else {
      toast(`It must lie in ${event.target.min}..${event.target.max}; ${store.now[name]} is kept.`);
      event.target.value = store.now[name];
    }
  });
}

// ---- stories and tour

$("preset").append(element("option", { value: "", textContent: "my own" }), ...hello.presets.map((preset) => element("option", { value: preset.name, textContent: preset.title })));
$("preset").addEventListener("change", () => {
  const preset = hello.presets.find((one) => one.name === $("preset").value);
  if (!preset) return;
  writeAddress(); // what is left is there to come back to
  open(fromPreset(preset));
  clearTimeout(remember.timer);
  history.pushState(null, "", `#s=${encode(store.now)}`);
});

function open(state, options) {
  Object.assign(view, { focus: null, asked: null, chosen: "0,0" });
  view.frame = 0;
  store.set(state, options);
}

let swaying = 0;
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const pace = Number(new URLSearchParams(location.search).get("pace")) || 1;
const tour = new Tour({
  pace,
  open: (name, patch) => open({ ...fromPreset(hello.presets.find((one) => one.name === name)), ...patch }, { group: "tour" }),
  play: () => (still ? showFrame() : play()),
  rest: () => { cancelAnimationFrame(swaying); stop(); request(false); },
  sway: () => {
    const began = performance.now(), token = { ...store.now.inputs[0].tokens[1] };
    const tick = (now) => {
      const a = (now - began) / 1000 / pace;
      if (a > 6.28 || still || !tour.running) return request(false);
      store.edit((state) => Object.assign(state.inputs[0].tokens[1], { x: clamp(token.x - 0.5 + 0.5 * Math.cos(a)), y: clamp(token.y + 0.5 * Math.sin(a)) }), { group: "tour", moving: true });
      swaying = requestAnimationFrame(tick);
      return undefined;
    };
    swaying = requestAnimationFrame(tick);
  },
});
$("tour").addEventListener("click", () => (tour.running ? tour.stop() : tour.start()));
const onTour = (event) => event.target.closest?.("#tour");
addEventListener("change", () => tour.stop(), { capture: true });
addEventListener("pointerdown", (event) => { if (!onTour(event)) tour.stop(); }, { capture: true });
addEventListener("keydown", (event) => { if (!onTour(event) || event.key === "Escape") tour.stop(); }, { capture: true });

// ---- menus and the space bar

const menu = document.querySelector("details.menu");
addEventListener("pointerdown", (event) => { if (!menu.contains(event.target)) menu.open = false; });
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && menu.open) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
  if (event.key === " " && view.mode === "plane" && !event.target.closest?.("button, input, select, textarea, summary, a, .token")) {
    event.preventDefault();
    if (view.playing) stop();
    else play();
  }
});

// ---- undo, keep, modes

$("undo").addEventListener("click", () => store.undo());
$("redo").addEventListener("click", () => store.redo());
addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || /INPUT|TEXTAREA/.test(event.target.tagName)) return;
  if (event.key.toLowerCase() === "z") {
    event.preventDefault();
    if (event.shiftKey) store.redo();
    else store.undo();
  } else if (event.key.toLowerCase() === "y") {
    event.preventDefault();
    store.redo();
  }
});

function toast(message) {
  $("status").textContent = message;
  $("status").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("status").hidden = true; }, 4000);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied.`);
  } catch {
    download("playground.txt", text, "text/plain");
  }
}

const kept = {
  "copy-link": () => {
    writeAddress();
    return copy(location.href, "Link");
  },
  "copy-python": () => copy(asPython(store.now), "Python"),
  "save-svg": () => download("attention.svg", plane.export(), "image/svg+xml"),
  "save-png": async () => download("attention.png", await asPng(plane.export())),
  "save-problem": async () => download("problem.json", await problemFile(store.now), "application/json"),
  "load-problem": () => $("problem-file").click(),
};
for (const [id, act] of Object.entries(kept)) {
  $(id).addEventListener("click", () => {
    $(id).closest("details").open = false;
    Promise.resolve(act()).catch((error) => toast(error.message));
  });
}
$("problem-file").addEventListener("change", async (event) => {
  try {
    const { inputs } = await readProblem(await event.target.files[0].text());
    open({ ...structuredClone(DEFAULTS), inputs, preset: "" });
  } catch (error) {
    toast(error.message);
  }
  event.target.value = "";
});

const texts = new TextView(hello.model, () => { if (view.mode === "text") remember(); });
function show(mode) {
  view.mode = mode;
  for (const name of ["plane", "text"]) {
    const on = name === mode;
    $(`${name}-view`).hidden = !on;
    $(`tab-${name}`).setAttribute("aria-selected", on);
    $(`tab-${name}`).tabIndex = on ? 0 : -1;
  }
  if (mode === "text") texts.open();
  remember();
}
for (const mode of ["plane", "text"]) {
  $(`tab-${mode}`).addEventListener("click", () => show(mode));
  $(`tab-${mode}`).addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const other = mode === "plane" ? "text" : "plane";
    show(other);
    $(`tab-${other}`).focus();
  });
}
function restyle() {
  plane.theme();
  if (view.answer) paint(view.answer, { since: null, state: store.now });
  if (view.mode === "text") texts.ask();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
addEventListener("resize", restyle);

// ---- the beginning

function fromAddress() {
  const fragment = location.hash.slice(1);
  if (fragment.startsWith("s=")) return decode(fragment.slice(2));
  return null;
}
function begin() {
  const fragment = location.hash.slice(1), state = fromAddress();
  store.set(state ?? fromPreset(hello.presets[0]));
  store.past.length = 0;
  $("undo").disabled = true;
  if (fragment.startsWith("t=")) {
    $("text").value = decodeURIComponent(fragment.slice(2));
    show("text");
  } else if (fragment.startsWith("s=") && !state) toast("The link could not be read; this is the first story.");
  else if (!state) tour.start();
}
addEventListener("hashchange", () => {
  const state = fromAddress();
  if (state) open(state);
});
begin();
window.playground = { store, view, timings, asker, tour };
