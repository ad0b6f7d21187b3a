// What can be taken away: a link, Python, a picture, the problem file.

import { post } from "./api.js";
import { wanted } from "./state.js";

export function asPython(state) {
  const longest = Math.max(...state.inputs.map((row) => row.tokens.length));
  const number = (x) => `${+x.toFixed(6)}`;
  const padded = (row, cell, blank) => Array.from({ length: longest }, (_, t) => (t < row.tokens.length ? cell(row.tokens[t]) : blank)).join(", ");
  const rows = (cell, blank) => state.inputs.map((row) => `        [${padded(row, cell, blank)}],`).join("\n");
  const ragged = state.inputs.some((row) => row.tokens.length < longest);
  const method = state.method === "descent" ? "GradientDescent" : "NormalizedGradientDescent";
  const run = state.method === "flow"
    ? `from tokenmargin.dynamics.flow import flow\n\npath = flow(objective, start=np.array([${state.start.map(number)}]), until_norm=1e4)`
    : `path = tm.evolve(objective, tm.${method}(${state.step}), steps=${state.steps}, start=np.array([${state.start.map(number)}]))`;
  return `import numpy as np
import tokenmargin as tm
from tokenmargin.margin import atlas
from tokenmargin.objective.losses import loss_named

problem = tm.TokenProblem.of(
    keys=[
${rows((k) => `[${number(k.x)}, ${number(k.y)}]`, "[0, 0]")}
    ],
    labels=[${state.inputs.map((row) => row.label).join(", ")}],
    scores=[
${rows((k) => number(k.score), "0")}
    ],${ragged ? `\n    mask=[\n${rows(() => "True", "False")}\n    ],` : ""}
)


def named(selected):  # the names of the page: A1 is the first token of the first input
    return " ".join(f"{'ABCDEF'[i]}{t + 1}" for i, t in enumerate(selected))


for limit in atlas(problem).limits:
    print(named(limit.selected), "margin", round(limit.solution.margin, 6), "best" if limit.is_global else "")

objective = tm.PromptObjective(problem, loss_named("${state.loss}"))
${run}
print("training selects", named(path.selected))
`;
}

export function download(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export async function png(markup) {
  const picture = new Image();
  picture.src = URL.createObjectURL(new Blob([markup], { type: "image/svg+xml" }));
  await picture.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 1920, height: 1920 });
  canvas.getContext("2d").drawImage(picture, 0, 0, 1920, 1920);
  URL.revokeObjectURL(picture.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

export async function problemFile(state) {
  return JSON.stringify(await post("api/problem/save", wanted(state)));
}

export const readProblem = (text) => post("api/problem/load", text);
