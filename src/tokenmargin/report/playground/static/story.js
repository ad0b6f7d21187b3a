// The stories: presets with the theorem each shows, and a tour that plays by itself until someone touches the page.

import { $, element } from "./panels.js";
import { DEFAULTS } from "./state.js";

export function fromPreset(preset) {
  return { ...structuredClone(DEFAULTS), ...structuredClone(preset.settings), inputs: structuredClone(preset.inputs), preset: preset.name };
}

export function showStory(presets, name) {
  const preset = presets.find((one) => one.name === name);
  $("preset").value = preset ? name : "";
  if (!preset) {
    $("story").textContent = "A problem of your own. Drag tokens and the start p; the picture follows.";
    return;
  }
  const link = element("a", { href: preset.link, target: "_blank", rel: "noopener noreferrer", textContent: preset.theorem });
  $("story").replaceChildren(link, ". ", preset.says);
}

/** The scenes: what is said, what happens, and for how many seconds. */
function scenes(stage) {
  const open = (name, patch = {}) => () => stage.open(name, patch);
  return [
    [5.5, "An input is a set of tokens. Each has a place and a score; the star scores best.", open("fig1a")],
    [7, "Attention weighs tokens by a prompt p. Training moves p: watch it leave the diamond, and the bars.", () => stage.play()],
    [6.5, "p grows without end (the rim is infinity) and turns to one direction. One token takes all the weight.", () => stage.play()],
    [6.5, "Which direction? The one that separates the best token with the widest margin: the shaded band.", () => stage.rest()],
    [6.5, "Lower the score of A3 and a second direction appears: A2 is not the best, but locally optimal.", open("fig1b", { start: [0, -1] })],
    [6.5, "The coloured ring tells where training ends, for every direction it may start in at the same distance.", () => stage.play()],
    [7, "Move a token, and directions, margins and ring follow.", () => stage.sway()],
    [6.5, "Several inputs share one prompt, so directions compete. Each ray is a place where training can settle.", open("three-limits")],
    [6.5, "Not every choice is possible: most selections have no direction at all, and there is a proof of it.", () => stage.play()],
    [5, "Your turn: drag a token or the diamond, or choose a story.", () => stage.rest()],
  ];
}

export class Tour {
  constructor(stage) {
    this.stage = stage;
    this.running = false;
  }

  async start() {
    this.running = true;
    const turn = (this.turn = Symbol("tour"));
    $("tour").setAttribute("aria-pressed", "true");
    for (const [seconds, words, act] of scenes(this.stage)) {
      if (this.turn !== turn) return;
      $("caption").hidden = false;
      $("caption").textContent = words;
      act();
      await new Promise((done) => setTimeout(done, seconds * 1000 * this.stage.pace));
    }
    if (this.turn === turn) this.stop();
  }

  stop() {
    if (!this.running) return;
    this.running = false;
    this.turn = null;
    this.stage.rest();
    $("caption").hidden = true;
    $("tour").setAttribute("aria-pressed", "false");
  }
}
