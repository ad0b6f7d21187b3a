// Text: which words a loaded model selects, and what happens without one of them.

import { Asker } from "./api.js";
import { palette, svg } from "./explore/drawing.js";
import { sentenceShapes, signed } from "./explore/sentence.js";
import { abstainWords } from "./explore/wordmodel.js";
import { $, element } from "./panels.js";

const EXAMPLE = "We went there after work. The lobby was noisy, honestly. What a delightful hotel! Somebody asked about the pillow and nobody answered.";

export class TextView {
  constructor(model, changed) {
    this.left = new Set();
    this.changed = changed;
    this.classes = model.classes;
    this.asker = new Asker("api/text", (answer) => this.paint(answer), (error) => { $("decision").textContent = error.message; });
    $("model-about").textContent = `${model.about} It knows ${model.words} tokens. Heaviest: ${model.heaviest.join(", ")}.`;
    $("text").value = EXAMPLE;
    $("text").addEventListener("input", () => {
      this.left.clear();
      this.ask();
    });
  }

  open(text) {
    if (text) $("text").value = text;
    this.ask();
  }

  ask() {
    this.changed($("text").value);
    this.asker.ask({ text: $("text").value, leave_out: [...this.left] }, $("text").value);
  }

  paint(answer) {
    const text = $("text").value, style = getComputedStyle(document.documentElement);
    const colour = (x) => style.getPropertyValue(x >= 0 ? "--positive" : "--negative");
    const focused = document.activeElement?.dataset?.word;
    this.heaviest = Math.max(1e-9, ...answer.words.map(({ weight }) => weight));
    $("words").replaceChildren(...answer.words.map((word, k) => this.word(word, k, text, colour)));
    if (focused !== undefined) document.querySelector(`[data-word="${focused}"]`)?.focus();
    const known = answer.words.filter((word) => word.token !== null);
    const verdict = this.classes[answer.label > 0 ? 1 : 0], top = [...known].sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution))[0];
    if (answer.abstains) $("decision").textContent = abstainWords({ tokens: known.map(({ token, contribution }) => ({ name: token, parts: [contribution] })) }, answer.words);
    else $("decision").textContent = `${verdict}, output ${signed(answer.output)}: “${top.token}” says most (${signed(top.contribution)}). Without it the output would be ${signed(top.without)}.`;
    this.table(known);
    this.plane(known);
  }

  word(word, k, text, colour) {
    const bar = element("i"), out = this.left.has(k);
    bar.style.width = `${Math.round((100 * word.weight) / this.heaviest)}%`;
    bar.style.background = colour(word.contribution);
    const pull = signed(word.contribution);
    const node = element("button", { className: word.token === null && !out ? "word unknown" : "word", type: "button" },
      text.slice(word.start, word.end), element("span", { className: "meter" }, bar),
      element("small", { textContent: word.token === null ? "" : pull }));
    node.dataset.word = k;
    node.setAttribute("aria-pressed", out);
    node.setAttribute("aria-label", `${text.slice(word.start, word.end)}: ${out ? "left out" : word.token === null ? "unknown" : `weight ${Math.round(100 * word.weight)} percent, contribution ${pull}`}`);
    node.addEventListener("click", () => {
      if (!this.left.delete(k)) this.left.add(k);
      this.ask();
    });
    return node;
  }

  /** The words in the picture of the plane; a weight is the exponential of a logit, up to what all of them share. */
  plane(known) {
    const tokens = [...new Map(known.map((word) => [word.token, word])).values()].filter(({ weight }) => weight > 0)
      .map(({ token, weight, value, contribution }) => ({ name: token, logit: Math.log(weight), value, weight, part: contribution }));
    const c = palette(), zoom = Math.min(1.75, Math.max(1, 470 / ($("sentence-plane").clientWidth || 470)));
    $("sentence-plane").replaceChildren(svg("circle", { r: 262, fill: c.card, stroke: c.line }), ...sentenceShapes(c, { tokens, sink: null, sides: this.classes, zoom }));
    for (const node of $("sentence-plane").querySelectorAll(".word-token")) { node.setAttribute("role", "img"); node.removeAttribute("tabindex"); node.removeAttribute("aria-pressed"); }
  }

  table(known) {
    const rows = [...known].sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution)).slice(0, 8);
    const head = element("tr", {}, ...["word", "weight", "value", "contribution", "without it"].map((textContent) => element("th", { textContent })));
    $("deciding").replaceChildren(head, ...rows.map((word) => element("tr", {},
      ...[word.token, word.weight.toFixed(2), signed(word.value), signed(word.contribution), signed(word.without)].map((textContent) => element("td", { textContent })))));
  }
}
