// Stories, sections and the address; what can be kept; and the page's beginning.

import { $, DATA, SECTIONS, colourOf, disc, draw, paintGround, storyState, thumbnail, view } from "./page.js";
import { element } from "./charts.js";
import { decode, encode, readAddress } from "./state.js";
import { asPng, asPython, asSvg, copyText, download } from "./keep.js";
import { beginWords, drawWords, say, sentencePython } from "./yourwords.js";
import { askOwn, drawOwn, own, ownPython, OWN_ACTS, problemFile } from "./own.js";
import { address, change, pause, play, pushAddress, show, states, writeAddress } from "./controls.js";

export function openStory(name) {
  pause();
  const kept = { method: view.state.method, ...(view.section === "tokens" ? { start: view.state.start } : {}) };
  view.ground = view.shares = null;
  view.focus = -1;
  view.colours.clear();
  $("ground").getContext("2d").clearRect(0, 0, 768, 768);
  change((state) => { const fresh = storyState(name, kept); for (const key of Object.keys(state)) delete state[key]; Object.assign(state, fresh); });
  if (view.section === "training") { view.frame = 0; play(); }
  pushAddress();
}

export function legend() {
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
export const tell = (work) => Promise.resolve(work).catch((error) => toast(error.message));
$("typed").addEventListener("input", () => {
  if (view.section !== "words") show("words");
  say($("typed").value);
  writeAddress();
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
