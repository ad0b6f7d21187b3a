// What can be taken away: a link, code to embed, Python that gives the same numbers, a picture.

export function asPython(state) {
  const longest = Math.max(...state.inputs.map(({ tokens }) => tokens.length));
  const number = (x) => `${+x.toFixed(6)}`;
  const padded = ({ tokens }, cell, blank) => Array.from({ length: longest }, (_, t) => (tokens[t] ? cell(tokens[t]) : blank)).join(", ");
  const rows = (cell, blank) => state.inputs.map((row) => `        [${padded(row, cell, blank)}],`).join("\n");
  const ragged = state.inputs.some(({ tokens }) => tokens.length < longest), start = `np.array([${state.start.map(number).join(", ")}])`;
  const known = { logistic: "LogisticLoss", exponential: "ExponentialLoss", correlation: "CorrelationLoss" }[state.loss];
  const loss = known ? `tm.${known}()` : `loss_named("${state.loss}")`, found = known ? "" : "from tokenmargin.objective.losses import loss_named\n\n";
  const method = state.method === "descent" ? "GradientDescent" : "NormalizedGradientDescent";
  const run = state.method === "flow" ? `path = tm.flow(objective, start=${start}, until_norm=1e4)` : `path = tm.evolve(objective, tm.${method}(${state.step}), steps=${state.steps}, start=${start})`;
  return `import numpy as np
import tokenmargin as tm

problem = tm.TokenProblem.of(
    keys=[
${rows((k) => `[${number(k.x)}, ${number(k.y)}]`, "[0, 0]")}
    ],
    labels=[${state.inputs.map(({ label }) => label ?? 1).join(", ")}],
    scores=[
${rows((k) => number(k.score), "0")}
    ],${ragged ? `\n    mask=[\n${rows(() => "True", "False")}\n    ],` : ""}
)


def named(selected):  # the names of the page: A1 is the first token of the first input
    tokens = [[t] if np.ndim(t) == 0 else t for t in selected]
    return " ".join("+".join(f"{'ABCDEF'[i]}{int(t) + 1}" for t in row) for i, row in enumerate(tokens))


for limit in tm.atlas(problem).limits:
    print(named(limit.selected), "margin", round(limit.solution.margin, 6), "best" if limit.is_global else "")

${found}objective = tm.PromptObjective(problem, ${loss})
${run}
print("training leads with", named(path.selected), "at p =", path.prompt.round(6))
`;
}

/** The drawing as a file of its own: its ground, its colours, its frame. */
export function asSvg(disc, canvas, withGround, background, title) {
  const copy = disc.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", "1200");
  copy.setAttribute("height", "1200");
  for (const node of copy.querySelectorAll(".halo, .hint")) node.remove();
  const make = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const heading = make("title", {});
  heading.textContent = title;
  const front = [heading, make("rect", { x: -290, y: -290, width: 580, height: 580, fill: background.paper }), make("circle", { r: 262, fill: background.card })];
  if (withGround) front.push(make("image", { href: canvas.toDataURL("image/png"), x: -262, y: -262, width: 524, height: 524, opacity: 0.36, "clip-path": "url(#inside)" }));
  copy.querySelector("defs").after(...front);
  return new XMLSerializer().serializeToString(copy);
}

export async function asPng(markup) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(markup)}`;
  await picture.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 1200, height: 1200 });
  canvas.getContext("2d").drawImage(picture, 0, 0, 1200, 1200);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

export function download(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** To the clipboard, where there is one; a page opened from a file may have to select and copy. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}

