// The last section: a sentence of the reader's own, decided by the model in the page.

import { $, DATA, FORMULAS, disc, view } from "./page.js";
import { element } from "./charts.js";
import { sentenceShapes, signed } from "./sentence.js";
import { abstains, abstainWords, chancesOf, decideOn, fromServer, openModel, readWords } from "./wordmodel.js";
import { ask } from "./own.js";

const model = openModel(DATA.model), left = new Set();
export const sentence = { text: DATA.model.examples[0] ?? "", opening: DATA.model.examples[0] ?? "" };

/** Show another text; what was left out of the last one is forgotten. */
export function say(text) {
  sentence.text = text;
  left.clear();
  if ($("typed").value !== text) $("typed").value = text;
  if (view.section === "words") drawWords();
}

function leaveOut(places) {
  const out = places.every((place) => left.has(place));
  for (const place of places) if (out) left.delete(place); else left.add(place);
  drawWords();
}

/** All of the section: the sentence in the text, the picture, the list beside it, the caption. */
export function drawWords() {
  if (model.remote) return void askForWords();
  const words = readWords(model, sentence.text);
  paintWords(words, decideOn(model, words, { gone: left }), decideOn(model, words));
}

/** The same where only the library can cut a text as the model does. */
let newest = 0;
async function askForWords() {
  const { text } = sentence, number = ++newest;
  try {
    const [all, now] = await Promise.all([[], [...left]].map((leave_out) => ask("api/text", { text, leave_out })));
    if (number === newest && view.section === "words") paintWords(...fromServer(text, now, all));
  } catch (error) {
    $("caption").textContent = error.message;
  }
}

function paintWords(words, now, all) {
  const known = new Map(now.tokens.map((token) => [token.name, token]));
  const shown = all.tokens.map((token) => ({ ...token, ...(known.get(token.name) ?? { weight: 0, parts: [0], out: true }), places: token.places }));
  const parts = words.map(() => 0), read = new Set();
  for (const { places, parts: [part], out } of shown) for (const [i, n] of places) for (let k = 0; k < n; k++) { read.add(i + k); if (!out) parts[i + k] += part / places.length / n; }
  const focused = document.activeElement?.dataset?.word, within = document.activeElement?.closest?.("#sentence, #disc");
  document.body.dataset.section = "words";
  disc.clear(...Object.keys(disc.layers));
  disc.handle.style.display = "none";
  for (const node of disc.nodes.values()) node.remove();
  disc.nodes.clear();
  const tokens = shown.map((token) => ({ ...token, value: token.values[0], part: token.parts[0] }));
  disc.layers.sentence.replaceChildren(...sentenceShapes(disc.c, { tokens, sink: model.exponent > 0 && shown.length ? { logit: now.sinkLogit ?? model.sink, weight: now.sink } : null, sides: model.classes, zoom: disc.zoom }));
  $("sentence").replaceChildren(...litSentence(words, parts, read));
  showRows(tokens);
  speakOf(now, words, tokens);
  if (within && focused !== undefined) within.querySelector(`[data-word="${focused}"]`)?.focus();
  for (const [k, node] of disc.layers.sentence.querySelectorAll(".word-token").entries()) {
    const places = shown[k].places.flatMap(([i, n]) => Array.from({ length: n }, (_, j) => i + j));
    node.addEventListener("click", () => leaveOut(places));
    node.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); leaveOut(places); } });
  }
}

function litSentence(words, parts, read) {
  const most = Math.max(1e-9, ...parts.map(Math.abs)), nodes = [];
  let place = 0;
  words.forEach(({ start, raw }, k) => {
    nodes.push(sentence.text.slice(place, start));
    place = start + raw.length;
    const word = element("button", { className: `lit${read.has(k) ? "" : " unknown"}`, textContent: raw, title: read.has(k) ? `contribution ${signed(parts[k])}; click to leave it out` : "not known to the model" });
    word.dataset.word = k;
    word.setAttribute("aria-pressed", left.has(k));
    word.style.background = `color-mix(in srgb, var(--${parts[k] >= 0 ? "positive" : "negative"}) ${Math.round((45 * Math.abs(parts[k])) / most)}%, transparent)`;
    if (read.has(k)) word.addEventListener("click", () => leaveOut([k]));
    nodes.push(word);
  });
  return [...nodes, sentence.text.slice(place)];
}

function showRows(tokens) {
  const rows = tokens.filter(({ out }) => !out).sort((a, b) => Math.abs(b.part) - Math.abs(a.part)).slice(0, 12), most = Math.max(1e-9, ...rows.map(({ part }) => Math.abs(part)));
  $("word-rows").replaceChildren(...rows.map(({ name, part, weight }) => {
    const bar = element("i"), width = (50 * Math.abs(part)) / most;
    Object.assign(bar.style, { width: `${width}%`, left: `${part < 0 ? 50 - width : 50}%`, background: `var(--${part >= 0 ? "positive" : "negative"})` });
    return element("div", { className: "bar" }, element("span", { className: "name", textContent: name }), element("span", { className: "signed" }, bar),
      element("span", { className: "number", textContent: signed(part) }), element("span", { className: "number share", textContent: `${(100 * weight).toFixed(1)}%` }));
  }));
}

let hush = 0;
function speakOf(now, words, tokens) {
  const silent = abstains(now), [f] = now.f, chance = Math.max(...chancesOf(now.f));
  const strongest = [...tokens].filter(({ out }) => !out).sort((a, b) => Math.abs(b.part) - Math.abs(a.part))[0];
  const caption = silent ? abstainWords(now, words) : `${model.classes[f > 0 ? 1 : 0]}, ${chance >= 0.995 ? "over 99" : Math.round(100 * chance)}% sure: “${strongest.name}” says most (${signed(strongest.part)} of ${signed(f)}).`;
  $("caption").textContent = caption;
  const unknown = words.filter(({ name }, k) => !left.has(k) && !tokens.some((token) => token.name.split(" ").includes(name))).length;
  document.querySelector('[data-live="words"]').textContent = `The words known here sum up to ${signed(f - now.start[0])}; the start is ${signed(now.start[0])}.` + (unknown ? ` ${unknown} of ${words.length} ${words.length > 1 ? "words" : "word"} ${unknown > 1 ? "are" : "is"} not known.` : "");
  clearTimeout(hush);
  hush = setTimeout(() => { $("said").textContent = caption; }, 700);
}

export const sentencePython = () => `from tokenmargin.classifier import load_model
from tokenmargin.classifier.what_if import decide_by_words

model = load_model("model")  # ${model.about.replaceAll("\n", " ")}
decision = decide_by_words(model, ${JSON.stringify(sentence.text)}${left.size ? `, leave_out=${JSON.stringify([...left].sort((a, b) => a - b))}` : ""})
print("abstains" if decision.abstains else model.classes_[int(decision.label > 0)], round(decision.output, 4))
for word in sorted(decision.words, key=lambda word: -abs(word.contribution))[:5]:
    print(word.token, round(word.contribution, 4))
`;

export function beginWords() {
  $("typed").value = sentence.text;
  $("model-about").textContent = model.about;
  if (model.exponent < 1) FORMULAS.words = `output = start + Σ <span class="c-key">weight</span> · value · Z<sup>${+(1 - model.exponent).toFixed(2)}</sup>`;
  $("examples").replaceChildren(...model.examples.map((text) => {
    const button = element("button", { textContent: text.length > 72 ? `${text.slice(0, 70).replace(/\s+\S*$/, "")} …` : text, title: text });
    button.addEventListener("click", () => say(text));
    return button;
  }));
}
