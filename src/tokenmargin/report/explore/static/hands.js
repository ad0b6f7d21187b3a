// Hands on the drawing: dragging, what is under the pointer, and keys.

import { $, disc, groundAt, promptNow, view } from "./page.js";
import { element } from "./charts.js";
import { keyAtPlace, promptAtPlace, RIM } from "./drawing.js";
import { nameOf } from "./plane.js";
import { limitWords, tokensOf, tokenWords } from "./words.js";
import { own } from "./own.js";
import { change, choose, focusOn, history_, pause, play, removeToken, travel } from "./controls.js";

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

export const hideCard = () => { $("card").hidden = true; };
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
