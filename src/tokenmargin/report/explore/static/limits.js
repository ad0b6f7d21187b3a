// Every direction that training in the plane can settle on, with its margin and the proof; and any selection, refuted.
//
// A direction selects, in every input, the tokens of largest logit. The circle falls into arcs of equal selection whose
// ends are known exactly: they are perpendicular to differences of keys. The max-margin problem of an arc's selection is
// the point nearest the origin of the convex hull of its difference vectors, which in the plane is held by one or two of
// them; where the hull holds the origin, three (or two) of them prove that nothing can be selected so.

import { LOSSES, sharedScores } from "./plane.js";

/** A neighbour's margin is 1 up to this: the tolerance of the library. */
const NEIGHBOUR = 1e-7;
const TIE = 1e-9; // relative: directions and norms that agree to this are the same

/** Tokens of one input by place: copies stand together and count as one token with their mean score. */
export function placesOf({ tokens }) {
  const places = [], scores = sharedScores(tokens);
  tokens.forEach((k, t) => {
    const same = places.find((place) => place.x === k.x && place.y === k.y);
    if (same) same.tokens.push(t);
    else places.push({ x: k.x, y: k.y, tokens: [t], score: scores[t] });
  });
  return places;
}

/** The point nearest the origin of the convex hull of some rows: which rows hold it, and with what weights. */
export function nearest(rows) {
  const norm = ([x, y]) => x * x + y * y;
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
  let held = [rows.reduce((best, row, j) => (norm(row) < norm(rows[best]) ? j : best), 0)], weights = [1], point = rows[held[0]];
  for (let round = 0; round < 4 * rows.length + 8; round++) {
    let worst = 0;
    rows.forEach((row, j) => { if (dot(row, point) < dot(rows[worst], point)) worst = j; });
    if (held.includes(worst) || dot(rows[worst], point) >= norm(point) * (1 - 4 * 2 ** -52)) break;
    if (held.length === 2) {
      const inside = around(rows[held[0]], rows[held[1]], rows[worst]);
      if (inside) return { held: [...held, worst], weights: inside, point: [0, 0] };
    }
    const tried = [...held.map((j) => between(rows, j, worst)), { held: [worst], weights: [1], point: rows[worst] }];
    const best = tried.reduce((a, b) => (norm(b.point) < norm(a.point) ? b : a));
    if (!(norm(best.point) < norm(point))) break;
    ({ held, weights, point } = best);
  }
  return { held, weights, point };
}

/** The point nearest the origin between two rows. */
function between(rows, i, j) {
  const [a, b] = [rows[i], rows[j]], [dx, dy] = [b[0] - a[0], b[1] - a[1]], squared = dx * dx + dy * dy;
  const share = squared > 0 ? -(a[0] * dx + a[1] * dy) / squared : 0;
  if (!(share > 0)) return { held: [i], weights: [1], point: a };
  if (share >= 1) return { held: [j], weights: [1], point: b };
  // The distance of a line from the origin, from the cross product: exact where the sum would cancel.
  const cross = (a[0] * b[1] - a[1] * b[0]) / squared;
  return { held: [i, j], weights: [1 - share, share], point: [cross * dy, -cross * dx] };
}

/** Weights with which three rows meet in the origin, or null when it lies outside their triangle. */
function around(a, b, c) {
  const cross = (p, q) => p[0] * q[1] - p[1] * q[0];
  const parts = [cross(b, c), cross(c, a), cross(a, b)], sum = parts[0] + parts[1] + parts[2];
  if (sum === 0 || parts.some((part) => part * sum < 0)) return null;
  return parts.map((part) => part / sum);
}

/**
 * The shortest p with `<row, p> >= 1` for all rows: its margin, and which rows hold it with what multipliers; or the
 * convex combination of rows that meets in the origin, which proves that there is none.
 */
export function maxMargin(rows) {
  if (!rows.length) return { status: "free", vector: [0, 0], margin: Infinity, held: [], multipliers: [] };
  const { held, weights, point } = nearest(rows);
  const size = Math.hypot(...point), largest = Math.max(...rows.map((row) => Math.hypot(...row)));
  if (size <= 1e-14 * largest) return { status: "infeasible", vector: [0, 0], margin: 0, held, farkas: weights, multipliers: [] };
  let vector;
  if (held.length === 1) vector = point.map((z) => z / size / size);
  else {
    const [a, b] = held.map((j) => rows[j]), det = a[0] * b[1] - a[1] * b[0];
    vector = [(b[1] - a[1]) / det, (a[0] - b[0]) / det];
  }
  const norm = Math.hypot(...vector);
  const least = Math.min(...rows.map((row) => row[0] * vector[0] + row[1] * vector[1]));
  if (!(least >= 1 - 1e-9)) return { status: "inaccurate", vector: [0, 0], margin: 0, held, multipliers: [] };
  return { status: "optimal", vector, margin: 1 / norm, held, multipliers: weights.map((w) => w * norm * norm) };
}

/** The circle cut into arcs {start, stop, places} of equal selection; `places` is the leading place of every input. */
export function arcsOf(inputs) {
  const rows = inputs.map(placesOf);
  const turn = 2 * Math.PI;
  const ends = new Set();
  for (const places of rows) {
    for (const a of places) {
      for (const b of places) {
        if (a === b) continue;
        let angle = Math.atan2(a.x - b.x, b.y - a.y); // the difference, turned by a quarter; each pair comes twice
        if (angle < 0) angle += turn;
        ends.add(angle >= turn ? 0 : angle);
      }
    }
  }
  const sorted = [...ends].sort((a, b) => a - b);
  if (!sorted.length) return { rows, arcs: [{ start: 0, stop: turn, places: rows.map(() => 0) }] };
  const pieces = sorted.map((start, j) => {
    const stop = j + 1 < sorted.length ? sorted[j + 1] : sorted[0] + turn, middle = (start + stop) / 2;
    return { start, stop, places: rows.map((places) => leading(places, Math.cos(middle), Math.sin(middle))) };
  });
  const arcs = pieces.filter((piece, j) => `${piece.places}` !== `${pieces.at(j - 1).places}`);
  if (!arcs.length) return { rows, arcs: [{ start: sorted[0], stop: sorted[0] + turn, places: pieces[0].places }] };
  arcs.forEach((arc, j) => { arc.stop = j + 1 < arcs.length ? arcs[j + 1].start : arcs[0].start + turn; });
  return { rows, arcs };
}

function leading(places, x, y) {
  let best = 0, most = -Infinity;
  places.forEach((place, j) => {
    const logit = place.x * x + place.y * y;
    if (logit > most) [best, most] = [j, logit];
  });
  return best;
}

/** What a selection of places asks of p: a row for every place of another score, with the input and place it is about. */
function asked(rows, chosen) {
  const differences = [], about = [];
  rows.forEach((places, i) => places.forEach((place, j) => {
    const own = places[chosen[i]];
    if (j === chosen[i] || place.score === own.score) return;
    differences.push([own.x - place.x, own.y - place.y]);
    about.push([i, j]);
  }));
  return { differences, about };
}

/**
 * All limits of training, the best first, then by margin. Each has `sets` (the tokens selected in every input),
 * `vector` (the shortest p of margin 1), `margin`, `unit`, `neighbours` as [input, token], `support` (those with a
 * multiplier), `best` where all of them have the highest score of their input, `global` where of those it has the largest
 * margin, and `shared` where a neighbour that scores more is outweighed by others. The list's `open` holds the selections
 * of which terms smaller than those on the margin decide.
 *
 * Places of exactly the selected score ask for nothing: once one of them leads, they pull neither way. So a limit is the
 * max-margin direction against the tokens of other scores, where the chosen place does lead those of its own score.
 */
export function limitsOf(inputs, loss = "logistic") {
  const { rows, arcs } = arcsOf(inputs);
  const best = rows.map((places) => Math.max(...places.map((place) => place.score)));
  const seen = new Set(), limits = [], open = [];
  for (const { places } of arcs) {
    if (seen.has(`${places}`)) continue;
    seen.add(`${places}`);
    const limit = limitAt(rows, places, LOSSES[loss]);
    if (limit?.open) open.push(limit.sets);
    if (!limit || limit.open || limits.some((other) => Math.hypot(...other.unit.map((z, j) => z - limit.unit[j])) < TIE)) continue;
    limit.best = places.every((j, i) => rows[i][j].score === best[i]);
    limit.only = limit.best && rows.every((row, i) => row.every(({ score, tokens }) => score !== best[i] || tokens.every((t) => limit.sets[i].includes(t))));
    limits.push(limit);
  }
  // Where the highest score is shared there may be several choices of best tokens: that of largest margin is global.
  const widest = Math.max(...limits.filter((limit) => limit.best).map((limit) => limit.margin));
  for (const limit of limits) limit.global = limit.best && limit.margin >= widest * (1 - TIE);
  return Object.assign(limits.sort((a, b) => b.global - a.global || b.margin - a.margin), { open });
}

function limitAt(rows, chosen, loss) {
  const { differences, about } = asked(rows, chosen);
  const solution = maxMargin(differences);
  if (solution.status !== "optimal") return null;
  const [px, py] = solution.vector;
  const lead = (i, j) => (rows[i][chosen[i]].x - rows[i][j].x) * px + (rows[i][chosen[i]].y - rows[i][j].y) * py;
  const near = [], sets = [], options = [], beside = [];
  for (let i = 0; i < rows.length; i++) {
    const own = rows[i][chosen[i]], set = [...own.tokens], leaders = [chosen[i]];
    for (let j = 0; j < rows[i].length; j++) {
      if (j === chosen[i]) continue;
      const place = rows[i][j], ahead = lead(i, j);
      if (place.score === own.score) {
        if (ahead < -NEIGHBOUR) return null; // another place of the same score leads here
        if (ahead <= NEIGHBOUR) {
          set.push(...place.tokens);
          leaders.push(j);
        }
      } else if (ahead <= 1 + NEIGHBOUR) {
        near.push(...place.tokens.map((t) => [i, t]));
        beside.push({ i, j, own, place });
      }
    }
    sets.push(set.sort((a, b) => a - b));
    options.push(leaders);
  }
  const held = heldBy(beside, loss, solution.vector);
  if (held === "none" || !isLeast(rows, options, solution.margin)) return null;
  if (held === "smaller terms") return { open: true, sets };
  const support = solution.held.flatMap((row, k) => {
    const [i, j] = about[row];
    return rows[i][j].tokens.map((t) => ({ token: [i, t], weight: solution.multipliers[k] }));
  });
  const norm = Math.hypot(px, py);
  return { sets, vector: solution.vector, margin: solution.margin, unit: [px / norm, py / norm], neighbours: near, support, shared: beside.some(({ own, place }) => place.score >= own.score) };
}

/**
 * What keeps p there: "scores" where no token on the margin outscores the selected one of its input, "others" where one does
 * and others outweigh it, "none", or "smaller terms" where those on the margin cancel and it is not known.
 * Terms of one difference have one margin for ever, so their pulls add; three differences in the plane depend on one another,
 * and the sum of their terms, a function of how far p is beside the direction, must have a minimum above zero.
 */
function heldBy(beside, loss, [px, py]) {
  if (beside.every(({ own, place }) => place.score < own.score)) return "scores";
  const slopes = beside.map(({ own }) => loss.logSlope(own.score) - Math.log(own.tokens.length)), most = Math.max(...slopes), sums = new Map();
  beside.forEach(({ own, place }, k) => {
    const key = `${own.x - place.x + 0},${own.y - place.y + 0}`, pull = Math.exp(slopes[k] - most) * (own.score - place.score) * place.tokens.length;
    const { sum, size } = sums.get(key) ?? { sum: 0, size: 0 };
    sums.set(key, { sum: sum + pull, size: size + Math.abs(pull), across: (own.x - place.x) * -py + (own.y - place.y) * px });
  });
  const terms = [...sums.values()], sign = ({ sum, size }) => (Math.abs(sum) > beside.length * 2 ** -52 * size ? Math.sign(sum) : 0);
  const pulls = terms.map(sign);
  if (pulls.includes(0)) return pulls.includes(1) || !pulls.includes(-1) ? "smaller terms" : "none";
  if (pulls.every((pull) => pull > 0)) return "others";
  if (terms.length < 3) return "none";
  const widest = Math.max(...terms.map(({ across }) => Math.abs(across)));
  const value = (y) => terms.reduce((total, { sum, across }) => total + sum * Math.exp((-across / widest) * y), 0);
  for (let y = -30; y < 30; y += 0.02) {
    const here = value(y);
    if (here > 0 && here < value(y - 0.02) && here < value(y + 0.02)) return "others";
  }
  return "none";
}

/** Whether no choice among places that tie in score and in logit has a larger margin: else p moves on to that one. */
function isLeast(rows, options, margin) {
  const choices = options.reduce((lists, places) => lists.flatMap((list) => places.map((j) => [...list, j])), [[]]);
  return choices.length === 1 || choices.every((choice) => !(maxMargin(asked(rows, choice).differences).margin > margin * (1 + TIE)));
}

const DOUBLE = new DataView(new ArrayBuffer(8));

/** A double as a whole number, in units of the smallest one. */
function whole(x) {
  DOUBLE.setFloat64(0, x);
  const bits = DOUBLE.getBigUint64(0), exponent = Number((bits >> 52n) & 0x7ffn), digits = bits & 0xfffffffffffffn;
  const size = exponent ? (digits | 0x10000000000000n) << BigInt(exponent - 1) : digits;
  return bits >> 63n ? -size : size;
}

/** Whether some rows are proven to have zero among their mixtures, in exact arithmetic on the doubles given. */
function meetInZero(rows) {
  const cross = (a, b) => a[0] * b[1] - a[1] * b[0], opposite = (a, b) => cross(a, b) === 0n && a[0] * b[0] + a[1] * b[1] <= 0n;
  if (rows.some((a, j) => rows.some((b, k) => k > j && opposite(a, b)) || (a[0] === 0n && a[1] === 0n))) return true;
  if (rows.length < 3) return false;
  const [a, b, c] = rows, parts = [cross(b, c), cross(c, a), cross(a, b)]; // a (b x c) + b (c x a) + c (a x b) = 0
  return parts.some((part) => part !== 0n) && (parts.every((part) => part >= 0n) || parts.every((part) => part <= 0n));
}

/** Whether the rows that hold the hull at zero, with one other where need be, prove that a selection is impossible. */
function isRefuted(inputs, selected, about, held) {
  const row = (j) => {
    const [i, t] = about[j], [own, other] = [inputs[i].tokens[selected[i]], inputs[i].tokens[t]];
    return [whole(own.x) - whole(other.x), whole(own.y) - whole(other.y)];
  };
  const rows = held.map(row);
  return meetInZero(rows) || (held.length === 2 && about.some((_, j) => !held.includes(j) && meetInZero([...rows, row(j)])));
}

/** The answer about one selection of single tokens: status, margin, support, or the combination that refutes it. */
export function verdictOn(inputs, selected) {
  const rows = [], about = [];
  inputs.forEach(({ tokens }, i) => tokens.forEach((k, t) => {
    if (t === selected[i]) return;
    rows.push([tokens[selected[i]].x - k.x, tokens[selected[i]].y - k.y]);
    about.push([i, t]);
  }));
  const solution = maxMargin(rows);
  const weights = solution.farkas ?? solution.multipliers;
  const evidence = solution.held.map((row, k) => ({ token: about[row], row: rows[row], weight: weights[k] })).filter((one) => one.weight > 0);
  const status = solution.status === "infeasible" && !isRefuted(inputs, selected, about, solution.held) ? "inaccurate" : solution.status;
  const verdict = { ...solution, status, selected, evidence, rows, about, neighbours: [], higher: [], level: [] };
  if (status !== "optimal") return verdict;
  const [px, py] = solution.vector, shared = inputs.map(({ tokens }) => sharedScores(tokens));
  rows.forEach(([x, y], j) => {
    if (x * px + y * py > 1 + NEIGHBOUR) return;
    verdict.neighbours.push(about[j]);
    const [i, t] = about[j];
    const [other, chosen] = [shared[i][t], shared[i][selected[i]]];
    if (other >= chosen) (other > chosen ? verdict.higher : verdict.level).push(about[j]);
  });
  return verdict;
}
