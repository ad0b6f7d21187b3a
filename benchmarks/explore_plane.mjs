// Answers of the explorable page's mathematics to problems read from standard input, as JSON to standard output.

import { readFileSync } from "node:fs";
import { arcsOf, limitsOf, verdictOn } from "../src/tokenmargin/report/explore/static/limits.js";
import { descend, flow, settle } from "../src/tokenmargin/report/explore/static/paths.js";
import { Plane } from "../src/tokenmargin/report/explore/static/plane.js";

function answer({ inputs, loss, start, steps, step, descent_step, norms, probes, selections, starts }) {
  const plane = new Plane(inputs, loss), limits = limitsOf(inputs, loss);
  const along = norms.length && flow(plane, start, { untilNorm: 1.001 * Math.max(...norms), tolerance: 1e-11, maxSteps: 20000 });
  return {
    limits,
    arcs: arcsOf(inputs).arcs,
    probes: probes.map(([x, y]) => {
      plane.field(x, y);
      return [plane.u, plane.v, Number.isFinite(plane.logNorm) ? plane.logNorm : null, plane.risk(x, y)];
    }),
    normalized: descend(plane, start, { step, steps }).at(-1),
    descent: descend(plane, start, { method: "descent", step: descent_step, steps }).at(-1),
    flow: along && { stop: along.stop, steps: along.points.length, points: norms.map((norm) => atNorm(plane, start, along, norm)) },
    verdicts: selections.map((selected) => verdictOn(inputs, selected)),
    ends: starts.map((one) => settle(plane, limits, one, { step })),
  };
}

/** The first point of a path of that norm: by bisection over the last step, each point by a flow of its own. */
function atNorm(plane, start, { points }, norm) {
  const k = points.findIndex(([x, y]) => Math.hypot(x, y) >= norm);
  if (k < 1) return null;
  return flow(plane, points[k - 1], { untilNorm: norm, tolerance: 1e-11, exactly: true }).points.at(-1);
}

const problems = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(problems.map(answer)));
