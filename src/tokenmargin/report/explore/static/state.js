// What is shown: one plain object per section, its history, and its place in the address.

export const DEFAULTS = { method: "normalized", loss: "logistic", step: 0.1, steps: 200, start: [0, 0], asked: null, story: "" };
const round = (x) => Math.round(x * 1000) / 1000;
const LARGEST = 1e4, MOST = { inputs: 6, tokens: 10, steps: 2000 };

/** The state of a section as a short text: numbers to three decimals, defaults left out. */
export function encode(state) {
  const compact = { i: state.inputs.map(({ tokens }) => tokens.map((k) => [round(k.x), round(k.y), round(k.score)])) };
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = name === "start" ? state.start.map(round) : state[name];
    if (JSON.stringify(value) !== JSON.stringify(usual)) compact[name] = value;
  }
  return btoa(JSON.stringify(compact)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The state in an address, or null when it holds none that can be shown. */
export function decode(text) {
  try {
    const { i, ...rest } = JSON.parse(atob(text.replaceAll("-", "+").replaceAll("_", "/")));
    const number = (x) => {
      if (!Number.isFinite(x) || Math.abs(x) > LARGEST) throw new Error("not a number to draw");
      return x;
    };
    if (!i.length || i.length > MOST.inputs || i.some((row) => !row.length || row.length > MOST.tokens)) return null;
    const inputs = i.map((row) => ({ tokens: row.map(([x, y, score]) => ({ x: number(x), y: number(y), score: number(score) })) }));
    const state = { ...structuredClone(DEFAULTS), inputs };
    if (["normalized", "descent", "flow"].includes(rest.method)) state.method = rest.method;
    if (["logistic", "exponential", "correlation"].includes(rest.loss)) state.loss = rest.loss;
    if (rest.step > 0) state.step = Math.min(number(rest.step), 100);
    if (rest.steps > 0) state.steps = Math.min(Math.round(number(rest.steps)), MOST.steps);
    if (rest.start) state.start = [number(rest.start[0]), number(rest.start[1])];
    if (typeof rest.story === "string") state.story = rest.story;
    if (rest.asked?.length === inputs.length && rest.asked.every((t, j) => Number.isInteger(t) && inputs[j].tokens[t])) state.asked = rest.asked;
    return state;
  } catch {
    return null;
  }
}

/** `#section` or `#section/state`. */
export function readAddress(hash) {
  const [section, text] = hash.replace(/^#/, "").split("/");
  if (section === "words") return { section, state: null, ...readSentence(text) };
  return { section, state: text ? decode(text) : null, broken: Boolean(text) && decode(text) === null };
}

function readSentence(text) {
  if (!text) return { broken: false };
  try {
    return { text: decodeURIComponent(text).slice(0, 2000), broken: false };
  } catch {
    return { broken: true };
  }
}
