"""What the page says of a picture, run by node: in states that nobody chose, and against the library's answers."""

import json
import math
import re
import subprocess

import numpy as np
import pytest
from benchmarks.explore_families import PLANE_FAMILIES, Inputs
from benchmarks.explore_plane import NODE, problem_of

from tokenmargin.margin import atlas, max_margin
from tokenmargin.report.explore.page import STATIC

pytestmark = [
    pytest.mark.skipif(NODE is None, reason="node is not on the PATH: install Node.js 18 or newer"),
    pytest.mark.usefixtures("unchecked_shapes"),
]

SCRIPT = """
import { pictureOf } from "%(here)s/model.js";
import { viewOf } from "%(here)s/drawing.js";
import { DEFAULTS } from "%(here)s/state.js";
import * as words from "%(here)s/words.js";
const above = { tokens: words.logitWords, training: words.trainingWords, margin: words.marginWords };
Object.assign(above, { settle: words.basinWords, proofs: words.proofWords });
const beside = { tokens: words.ratioWords, training: words.endWords, margin: words.heldWords };
Object.assign(beside, { settle: words.whyWords, proofs: words.countWords });
const asked = JSON.parse(await new Response(process.stdin).text());
console.log(JSON.stringify(asked.map((given) => Object.fromEntries(Object.keys(above).map((section) => {
  const state = { ...DEFAULTS, ...given }, view = viewOf(state.inputs), { inputs } = state;
  state.step = 0.1 * view.unit;
  if (["margin", "settle"].includes(section)) state.method = "flow";
  const picture = pictureOf(state, view, { section }), frame = (picture.run?.points.length ?? 1) - 1;
  const shares = new Map(picture.limits.map((_, k) => [k, 1 / picture.limits.length]));
  const p = picture.run ? picture.run.points[frame] : state.start;
  const about = { ...picture, state, inputs, frame, p, shares, slopes: picture.curves?.slopes };
  const cards = picture.limits.map((limit) => words.limitWords(limit, inputs).at(-1));
  return [section, { above: above[section](about), beside: beside[section](about), cards }];
})))));
"""


def inputs_of(*rows: list[tuple[float, float, float]]) -> Inputs:
    return [{"label": 1, "tokens": [{"x": x, "y": y, "score": score} for x, y, score in row]} for row in rows]


def said(*asked: dict) -> list[dict[str, dict[str, str]]]:
    command = [NODE, "--input-type=module", "-e", SCRIPT % {"here": STATIC.as_uri()}]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


SYMMETRIC = inputs_of([(1, 1, 1), (1, -1, 1), (-1, 0, 0)])
LEVEL = inputs_of([(0, 1, 1), (1, 0, 1), (0, 0, 0)])
COPIES = inputs_of([(1, 0, 1.5), (0, 0, 0), (0, 0, 2)])
SADDLE = inputs_of([(1, 1, 1), (1, -1, 1), (0, 0, 0.5), (3, 0, 0)])
STATES = {
    "one token": (
        {"inputs": inputs_of([(1, 0, 1)]), "start": [0.5, 0.5]},
        ("tokens", "beside", "A1 is alone in its input: its weight is 1, whatever p is."),
        ("tokens", "above", "A1 is alone in its input and has all of the weight"),
        ("settle", "above", "Started at p = (0.5, 0.5). Nothing pulls p, and it stays where it starts"),
        ("proofs", "beside", "There is one way to choose."),
    ),
    "all at one place": (
        {"inputs": inputs_of([(1, 0, 1), (1, 0, 0)]), "start": [0.5, 0.5]},
        ("training", "beside", "Nothing pulls p"),
        ("tokens", "above", "A1 and A2 lead with logit 0.5 and share 100% of the weight"),
    ),
    "all of one score": (
        {"inputs": inputs_of([(-1, -1, 0.5), (-2, -2, 0.5)]), "start": [1, -1]},
        ("proofs", "above", "A direction selects A1 with margin 1.41; A2 holds it. Nothing pulls p"),
    ),
    "symmetric, from the middle": (
        {"inputs": SYMMETRIC},
        ("training", "above", "A1 and A2 have 50% each of the weight"),
        ("training", "beside", "The start lies on a border, to a billionth: beside it training ends on "),
        ("settle", "above", "and which is drawn here, rounding has decided. There are 2 places to settle."),
    ),
    "symmetric, from the axis of a rest": (
        {"inputs": SADDLE, "start": [0.2, 0]},
        ("settle", "above", "It comes to a stop at |p| = 0.641: the pulls cancel there to rounding. But a billionth"),
        ("training", "beside", "Followed on (dotted), it comes to a stop at |p| = 0.641"),
    ),
    "an equal on the margin that asks for nothing": (
        {"inputs": LEVEL, "start": [0.5, 0.1], "asked": [0]},
        (
            "proofs",
            "above",
            "A2 scores the same and asks for nothing; the others on the margin score less, so training",
        ),
    ),
    "an equal that holds the direction back": (
        {"inputs": inputs_of([(0, 1, 1), (0.5, 0, 1), (-0.5, 0, 0.3)]), "start": [0.5, 0.1], "asked": [0]},
        ("proofs", "above", "A2 and A3 hold it. Training that selects them goes on to a margin of 1.12, for A2 scores"),
    ),
    "copies count with their mean": (
        {"inputs": COPIES, "start": [1, 1], "asked": [0]},
        ("proofs", "above", "Each selected token outscores them, so training can settle here: this is the best token."),
        ("settle", "beside", "A1: A2 (1) and A3 (1) on the margin score less."),
        ("proofs", "beside", "Of 2 ways to choose (copies count as one), 2 can be selected by a direction"),
    ),
    "copies alone": (
        {"inputs": inputs_of([(1, 0, 1), (1, 0, 0)])},
        ("proofs", "beside", "There is one way to choose (copies count as one)."),
    ),
    "weights of a proof that differ much": (
        {"inputs": inputs_of([(0, 0, 1), (1000, 0, 0), (-0.1, 0, 0)]), "asked": [0]},
        ("proofs", "above", "No direction selects A1: 1 (A1 − A3) + 1.0·10⁻⁴ (A1 − A2) = 0"),
    ),
    "a loss that is almost nothing": (
        {"inputs": inputs_of([(1, 0, 30), (0, 0, 20)])},
        ("training", "above", "loss 9.4·10⁻¹⁴; A1 has over 99.9% of the weight."),
    ),
    "a loss beyond doubles": (
        {"inputs": inputs_of([(1, 0, -1000), (0, 0, -2000)]), "loss": "exponential"},
        ("training", "above", "loss over 10³⁰⁸; A1 has over 99.9% of the weight."),
    ),
    "lengths that differ by 10^5: weights settle far out, and no border is near": (
        {
            "inputs": inputs_of(
                [(0.006, 0.009, -50.144), (0.32, -0.82, 87.916)],
                [(91, -2, 0.003), (-1250, -310, -0.01)],
                [(20, -47, -297.527), (0, 0.001, -810.815), (-1.65, 0.25, 752.244)],
            ),
            "start": [0.009, -0.003],
            "loss": "correlation",
        },
        ("settle", "above", "From p = (0.009, −0.003), training ends on A2, B2 and C3. There are 3 places to settle."),
    ),
    "in the mirror, which rounding leaves late": (
        {
            "inputs": inputs_of(
                [(0.5, 1, 1), (0.5, -1, 1)],
                [(1.5, 0, 0), (1.5, 1.5, 1.5), (-1, 1.5, 1.5), (1.5, -1.5, 1.5), (-1, -1.5, 1.5)],
            ),
            "start": [1.1793321763349756, 0],
        },
        ("settle", "above", "The start lies on a border, to a billionth: beside it training ends on A"),
    ),
    "five equals around one that scores less": (
        {"inputs": inputs_of([*[(math.cos(a), math.sin(a), 1) for a in (0.1, 1.3, 2.6, 3.9, 5.1)], (0, 0, 0)])},
        ("proofs", "beside", "; and 1 more."),
    ),
    "on a line": (
        {"inputs": inputs_of([(0, 0, 1), (1, 0, 0), (-1, 0, 0)]), "start": [0.5, 0.1], "asked": [0]},
        ("proofs", "above", "No direction selects A1: 0.5 (A1 − A2) + 0.5 (A1 − A3) = 0, and no p can make"),
    ),
    "by a hair beside a line": (
        {"inputs": inputs_of([(0, 0, 1), (-1, -1e-15, 0), (1, -1e-15, 0)]), "start": [0.5, 0.1], "asked": [0]},
        ("proofs", "above", "Whether a direction selects A1 is too close to call in double precision."),
    ),
    "three copies that tie with another token": (
        {"inputs": inputs_of([(1, 0, 0.1), (1, 0, 0.1), (1, 0, 0.1), (0, 1, 0.1), (-1, -1, 0)]), "start": [0.1, 0.5]},
        (
            "settle",
            "cards",
            "as good as any: a global max-margin direction\nas good as any: a global max-margin direction",
        ),
    ),
    "best tokens of smaller margin": (
        {"inputs": inputs_of([(1, 0, 1), (0, 2, 1), (0, 0, 0)]), "start": [0.5, 0.1], "asked": [0]},
        ("settle", "cards", "locally optimal: the best token, but others that score the same have a larger margin"),
        ("settle", "above", "There are 2 places to settle. 100% of the disc leads to the best."),
        ("proofs", "above", "so training can settle here: this is as good as the best, with less margin."),
    ),
    "tokens that hold one another": (
        {"inputs": inputs_of([(0, 0, 1), (1, 0, 0), (-1, 0, 0), (0, -1, 0)]), "start": [0.5, 0.1]},
        ("settle", "above", "A1, A2 and A3 keep their shares of the weight for ever"),
        ("settle", "beside", "No max-margin direction here is a place to settle."),
    ),
    "smaller terms decide": (
        {
            "inputs": inputs_of([(0, 1, 1), (0, 0, 1.5), (0, -0.5, 0)], [(0, 1, 1), (0, 0, 0.5), (0, -0.5, 0)]),
            "start": [0, 1],
            "asked": [0, 0],
        },
        ("training", "beside", "Whether training settles on A1 and B1 is not said here"),
        ("settle", "above", "It can be followed to |p| = "),
        ("proofs", "above", "its tokens on the margin cancel, and smaller terms decide."),
    ),
    "weights that round to one": (
        {"inputs": inputs_of([(1, 0, 1), (0, 1, 0.5)]), "start": [1000, 10]},
        ("tokens", "above", "A1 leads with logit 1000 and gets over 99.9% of the weight"),
        ("tokens", "beside", "so it weighs exp(990) = over 10³⁰⁸ times as much"),
    ),
    "six inputs": (
        {"inputs": inputs_of(*[[(1, 0.1 * i, 1), (0, 1, 0.5)] for i in range(6)]), "start": [1, 2]},
        ("tokens", "above", "; and so on in 4 more."),
        ("training", "above", ", and so on in 3 more."),
    ),
}


def test_a_place_to_settle_never_has_none_of_the_disc() -> None:
    """Starts far out along its direction stay, whatever a grid of starts meets; and with another place none has all."""
    script = """
    import { basinWords } from "%s/words.js";
    const limits = [true, false].map((best, k) => ({ sets: [[k]], best, global: best, only: best, margin: 1 }));
    const said = (shares) => basinWords({ run: { end: 0 }, limits, state: { start: [0, 0] }, shares: new Map(shares) });
    console.log(JSON.stringify([[[1, 1]], [[0, 1]]].map((shares) => said(shares))));
    """
    command = [NODE, "--input-type=module", "-e", script % STATIC.as_uri()]
    none, every = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert "under 1% of the disc leads to the best" in none
    assert "over 99% of the disc leads to the best" in every


@pytest.fixture(scope="module")
def states() -> dict[str, dict]:
    return dict(zip(STATES, said(*[state for state, *_ in STATES.values()]), strict=True))


@pytest.mark.parametrize("name", STATES)
def test_odd_states_are_said_as_they_are(states: dict[str, dict], name: str) -> None:
    for section, where, words in STATES[name][1:]:
        found = states[name][section][where]
        assert words in (found if isinstance(found, str) else "\n".join(found))


@pytest.mark.parametrize("family", PLANE_FAMILIES, ids=lambda family: family.__name__)
def test_training_is_said_to_settle_where_the_library_lists_that_limit(family) -> None:
    rng = np.random.default_rng(11)
    asked = []
    for _ in range(40):
        inputs = family(rng)
        asked.append({"inputs": inputs, "asked": [int(rng.integers(len(row["tokens"]))) for row in inputs]})
    for question, answer in zip(asked, said(*asked), strict=True):
        problem, selected, words = problem_of(question["inputs"]), question["asked"], answer["proofs"]["above"]
        solution = max_margin(problem, selected)
        if solution.status != "optimal" or not np.isfinite(solution.margin):
            assert "settle" not in words
            continue
        found = [
            limit
            for limit in atlas(problem.merged).limits
            if limit.chosen[np.arange(problem.n), selected].all()
            and np.linalg.norm(limit.solution.vector - solution.vector) < 1e-7 * np.linalg.norm(solution.vector)
        ]
        if "Whether" not in words:
            assert ("training can settle here" in words) == bool(found), (words, question)
        if found:
            best = re.search(r"(?<!not )the best token", words) is not None or "as good as" in words
            scores = np.where(problem.mask, problem.shared_scores, -np.inf)
            assert best == bool((scores[np.arange(problem.n), selected] == scores.max(axis=1)).all())
