// Text: which words a loaded model selects, and what happens without one of them.

import { Asker } from "./api.js";
import { svg } from "./draw.js";
import { $, element } from "./panels.js";

const EXAMPLE = "We went there after work. The lobby was noisy, honestly. What a delightful hotel! Somebody asked about the pillow and nobody answered.";

const signed = (x) => (Math.abs(x) < 0.005 ? "0" : `${x > 0 ? "+" : "−"}${Math.abs(x).toFixed(2)}`);

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
    $("words").replaceChildren(...answer.words.map((word, k) => this.word(word, k, text, colour)));
    if (focused !== undefined) document.querySelector(`[data-word="${focused}"]`)?.focus();
    const known = answer.words.filter((word) => word.token !== null);
    const verdict = answer.label ? this.classes[answer.label > 0 ? 1 : 0] : "undecided";
    const top = [...known].sort((a, b) => b.weight - a.weight)[0];
    $("decision").textContent = top
      ? `${verdict}, output ${signed(answer.output)}. Most attention goes to “${top.token}” (${Math.round(100 * top.weight)}%). Without it the output would be ${signed(top.without)}.`
      : "No word of this text is known to the model.";
    this.scale(answer.output, colour);
    this.table(known);
  }

  word(word, k, text, colour) {
    const bar = element("i"), out = this.left.has(k);
    bar.style.width = `${Math.round(100 * word.weight)}%`;
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

  table(known) {
    const rows = [...known].sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution)).slice(0, 8);
    const head = element("tr", {}, ...["word", "weight", "value", "contribution", "without it"].map((textContent) => element("th", { textContent })));
    $("deciding").replaceChildren(head, ...rows.map((word) => element("tr", {},
      ...[word.token, word.weight.toFixed(2), signed(word.value), signed(word.contribution), signed(word.without)].map((textContent) => element("td", { textContent })))));
  }

  scale(output, colour) {
    const x = 150 + 130 * Math.tanh(output / 3), ink = getComputedStyle(document.documentElement).getPropertyValue("--soft");
    const label = (at, words) => svg("text", { x: at, y: 52, "text-anchor": "middle", "font-size": 11, fill: ink }, [words]);
    $("scale").replaceChildren(
      svg("line", { x1: 20, x2: 280, y1: 24, y2: 24, stroke: ink }), svg("line", { x1: 150, x2: 150, y1: 16, y2: 32, stroke: ink }),
      svg("circle", { cx: x, cy: 24, r: 10, fill: colour(output) }), label(34, this.classes[0]), label(266, this.classes[1]),
    );
  }
}
