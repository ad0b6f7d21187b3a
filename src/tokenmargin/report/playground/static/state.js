// The state of the page: one plain object, its history, and its place in the address.

export const DEFAULTS = {
  method: "normalized", loss: "logistic", trained: "prompt", step: 0.1, steps: 200, start: [0, 0], head: [0, 0], radius: 2,
};
const round = (x) => Math.round(x * 1000) / 1000;

export class Store {
  constructor(changed) {
    this.changed = changed;
    this.past = [];
    this.future = [];
    this.now = null;
  }

  /** Take a new state. What happens under one `group` (a drag, say) is undone in one step. */
  set(state, { group = null, moving = false } = {}) {
    if (this.now && (group === null || group !== this.group)) {
      this.past.push(this.now);
      if (this.past.length > 200) this.past.shift();
    }
    this.group = group;
    this.future = [];
    this.now = state;
    this.changed(state, { moving });
  }

  update(patch, options) {
    this.set({ ...structuredClone(this.now), ...patch }, options);
  }

  edit(change, options) {
    const next = structuredClone(this.now);
    change(next);
    this.set(next, options);
  }

  undo() { this.travel(this.past, this.future); }

  redo() { this.travel(this.future, this.past); }

  travel(from, to) {
    if (!from.length) return;
    to.push(this.now);
    this.now = from.pop();
    this.group = null;
    this.changed(this.now, { moving: false });
  }
}

/** The state as a short text for the address: numbers to three decimals, defaults left out. */
export function encode(state) {
  const compact = {
    i: state.inputs.map((row) => [row.label, ...row.tokens.map((k) => [round(k.x), round(k.y), round(k.score)])]),
  };
  for (const name of Object.keys(DEFAULTS)) {
    const value = Array.isArray(state[name]) ? state[name].map(round) : state[name];
    if (JSON.stringify(value) !== JSON.stringify(DEFAULTS[name])) compact[name] = value;
  }
  if (state.preset) compact.preset = state.preset;
  const bytes = new TextEncoder().encode(JSON.stringify(compact));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The state of an address, or null when it holds none that can be read. The server checks the numbers. */
export function decode(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const { i, ...rest } = JSON.parse(new TextDecoder().decode(bytes));
    const inputs = i.map(([label, ...tokens]) => ({
      label, tokens: tokens.map(([x, y, score]) => ({ x, y, score })),
    }));
    const known = Object.fromEntries(Object.keys(DEFAULTS).filter((name) => name in rest).map((name) => [name, rest[name]]));
    return { ...structuredClone(DEFAULTS), ...known, inputs, preset: typeof rest.preset === "string" ? rest.preset : "" };
  } catch {
    return null;
  }
}

export function wanted(state) {
  const { inputs, method, loss, trained, step, steps, start, head, radius } = state;
  return { inputs, method, loss, trained, step, steps, start, head, radius };
}
