"""Does the explorable page compute what the library computes? Random planar problems through both.

    python -m benchmarks.explore_plane [--count 1000] [--flows 30]

The page's mathematics is plain JavaScript, run here by node. Compared are: all limits and their margins, the answer
about selections drawn at random, the direction of descent and the loss at points up to norm 1e5, the ends of gradient
descent and normalised descent, gradient flow at several norms, and the limit at which starts end.

A path may amplify rounding (normalised steps across a narrow valley do, as does a start on the border of two basins).
It is compared where the library's own path from a start 1e-13 away stays within 1e-8, a flow where the library finds
that errors do not grow so much along it; the others are counted. A gradient whose terms cancel is known to the rounding
of its terms.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from tests.oracles.by_arcs import atlas_by_arcs

from benchmarks.explore_families import PLANE_FAMILIES, Inputs
from benchmarks.tools import run_main
from tokenmargin.dynamics import FlowSettings, GradientDescent, NormalizedGradientDescent, evolve, flow
from tokenmargin.limits import limit_of
from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.forward import descent_weights
from tokenmargin.objective.losses import LOSSES
from tokenmargin.problem.token_problem import TokenProblem

__all__ = ["NODE", "Tally", "asked_of", "compare", "page_answers", "problem_of"]

NODE = shutil.which("node")
SCRIPT = Path(__file__).with_suffix(".mjs")
NORMS = (10.0, 100.0, 1e4)
SHORT: dict[str, Any] = {"norms": (), "starts": 0}
MARGIN_ERROR, PATH_ERROR, FIELD_ERROR = 1e-9, 1e-6, 1e-8


@dataclass
class Tally:
    """What was compared, what differed (with the problem), and the largest differences."""

    compared: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    sensitive: int = 0
    largest: dict[str, float] = field(default_factory=dict)

    def check(self, what: str, error: float, allowed: float, asked: dict[str, Any]) -> None:
        """Count a comparison of numbers."""
        self.compared[what] += 1
        self.largest[what] = max(self.largest.get(what, 0.0), error)
        if not error <= allowed:
            self.wrong.append((f"{what}: {error:.2e}", asked))


def problem_of(inputs: Inputs) -> TokenProblem:
    """A problem of the page as the library knows it."""
    n, T = len(inputs), max(len(row["tokens"]) for row in inputs)
    keys, scores, mask = np.zeros((n, T, 2)), np.zeros((n, T)), np.zeros((n, T), dtype=bool)
    for i, row in enumerate(inputs):
        for t, token in enumerate(row["tokens"]):
            keys[i, t], scores[i, t], mask[i, t] = (token["x"], token["y"]), token["score"], True
    return TokenProblem.of(keys, [float(row["label"]) for row in inputs], scores=scores, mask=mask)


def asked_of(
    inputs: Inputs,
    rng: np.random.Generator,
    *,
    norms: tuple[float, ...] = NORMS,
    starts: int = 1,
    steps: int = 200,
) -> dict[str, Any]:
    """Questions about one problem, drawn at random; flows to `norms` and the ends of `starts` are what takes long."""
    sizes = [len(row["tokens"]) for row in inputs]
    scale = max(np.hypot(token["x"], token["y"]) for row in inputs for token in row["tokens"]) or 1.0
    directions = rng.standard_normal((8, 2))
    probes = directions / np.linalg.norm(directions, axis=1, keepdims=True) * (10 ** rng.uniform(-1, 5, (8, 1)) / scale)
    return {
        "inputs": inputs,
        "loss": str(rng.choice([name for name, _ in LOSSES])),
        "start": (rng.standard_normal(2) / scale).tolist(),
        "steps": steps,
        "step": 0.1 / scale,
        "descent_step": 1.0 / scale**2,
        "norms": [norm / scale for norm in norms],
        "probes": probes.tolist(),
        "selections": [[int(rng.integers(T)) for T in sizes] for _ in range(4)],
        "starts": (rng.standard_normal((starts, 2)) * 2 / scale).tolist(),
    }


def page_answers(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page's mathematics answers."""
    if NODE is None:
        raise RuntimeError("node is not on the PATH: install Node.js 18 or newer")
    done = subprocess.run([NODE, str(SCRIPT)], input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"node failed: {done.stderr[-2000:]}")
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def compare(asked: dict[str, Any], answer: dict[str, Any], tally: Tally) -> None:
    """One problem: the page's answers against the library's."""
    problem = problem_of(asked["inputs"])
    objective = PromptObjective(problem.merged, dict(LOSSES)[asked["loss"]])
    _compare_limits(objective, asked, answer, tally)
    _compare_verdicts(problem, asked, answer, tally)
    _compare_field(objective, asked, answer, tally)
    _compare_paths(objective, asked, answer, tally)
    if asked["norms"]:
        _compare_flow(objective, asked, answer["flow"], tally)
    if asked["starts"]:
        _compare_end(problem, objective, asked, answer, tally)


def _compare_limits(objective: PromptObjective, asked: dict[str, Any], answer: dict[str, Any], tally: Tally) -> None:
    found = atlas_by_arcs(objective.problem, loss=objective.loss)
    ours = {_sets(np.flatnonzero(row).tolist() for row in limit.chosen): limit for limit in found.limits}
    theirs = {_sets(limit["sets"]): limit for limit in answer["limits"]}
    tally.compared["limits"] += 1
    if ours.keys() != theirs.keys():
        tally.wrong.append((f"limits: {sorted(ours)} in the library, {sorted(theirs)} in the page", asked))
        return
    for name, limit in ours.items():
        error = abs(theirs[name]["margin"] / limit.solution.margin - 1)
        tally.check("margin of a limit", error, MARGIN_ERROR, asked)
        if theirs[name]["global"] != limit.is_global:
            tally.wrong.append((f"limit {name}: best {theirs[name]['global']} in the page", asked))


def _sets(rows: Iterable[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, rows))


def _compare_verdicts(problem: TokenProblem, asked: dict[str, Any], answer: dict[str, Any], tally: Tally) -> None:
    for selected, verdict in zip(asked["selections"], answer["verdicts"], strict=True):
        solution = max_margin(problem, selected)
        status = "optimal" if verdict["status"] == "free" else verdict["status"]
        tally.compared["verdict"] += 1
        if status != solution.status:
            tally.wrong.append((f"{selected}: {solution.status} in the library, {status} in the page", asked))
        elif status == "optimal" and verdict["status"] != "free":
            error = abs(verdict["margin"] / solution.margin - 1)
            tally.check("margin of a selection", error, MARGIN_ERROR, asked)


def _compare_field(objective: PromptObjective, asked: dict[str, Any], answer: dict[str, Any], tally: Tally) -> None:
    probes = np.array(asked["probes"])
    descent, risks, cancelled = objective.descent(probes), objective.value(probes), _cancelled(objective, probes)
    for k, (u, v, log_norm, risk) in enumerate(answer["probes"]):
        tally.check("loss", abs(risk - float(risks[k])), 1e-12 * (1 + abs(risk)), asked)
        known = float(descent.log_norm[k, 0])
        if log_norm is None or not np.isfinite(known):
            # One of the two calls the sum rounding: the other must not see much more than that.
            continue
        tally.check("direction", float(np.hypot(*(descent.direction[k] - [u, v]))), FIELD_ERROR, asked)
        # Sums of some dozens of terms: each side is off by a few dozen roundings of the largest.
        allowed = FIELD_ERROR + 64 * np.finfo(float).eps * float(cancelled[k])
        tally.check("log of the gradient", abs(log_norm - known) / (1 + abs(known)), allowed, asked)


def _cancelled(objective: PromptObjective, probes: Float[Array, "m 2"]) -> Float[Array, " m"]:
    """How much larger the terms of the gradient are than their sum."""
    state = objective.forward(probes)
    weights, log_scale = descent_weights(state, objective.loss.log_slope(state.output))
    terms = np.einsum("mit,it->m", np.abs(weights), objective.problem.keys.token_norms)
    length = objective.descent(probes).log_norm[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):  # where all tokens score alike there are no terms, and no sum
        return np.exp(np.log(terms) + log_scale - np.log(objective.problem.n) - length)


def _compare_paths(objective: PromptObjective, asked: dict[str, Any], answer: dict[str, Any], tally: Tally) -> None:
    start = np.array(asked["start"])
    twins = np.stack([start, start + 1e-13 * np.linalg.norm(start)])
    methods = {
        "normalized": NormalizedGradientDescent(asked["step"]),
        "descent": GradientDescent(asked["descent_step"]),
    }
    for name, method in methods.items():
        ends = evolve(objective, method, steps=asked["steps"], start=twins).final
        size = float(np.linalg.norm(ends[0]))
        if np.linalg.norm(ends[0] - ends[1]) > 1e-8 * size:
            tally.sensitive += 1
            continue
        error = float(np.linalg.norm(ends[0] - answer[name])) / size
        tally.check(f"end of {name}", error, PATH_ERROR, asked)


def _compare_flow(objective: PromptObjective, asked: dict[str, Any], answer: dict[str, Any], tally: Tally) -> None:
    start = np.array(asked["start"])
    settings = FlowSettings(max_steps=4000)
    paths = [
        flow(objective, start=s, until_norm=asked["norms"][-1], settings=settings) for s in (start, start * (1 + 1e-10))
    ]
    # What the solver allows itself must not have grown to what is compared.
    if paths[0].decided_by_rounding or paths[0].rounding.log_growth > np.log(PATH_ERROR / settings.tolerance):
        tally.sensitive += 1
        return
    for norm, theirs in zip(asked["norms"], answer["points"], strict=True):
        try:
            ours, twin = (path.at_norm(norm * (1 - 1e-9)) for path in paths)
        except ValueError:
            continue  # a stationary point, or no direction left: the path does not come so far
        if theirs is None:
            tally.wrong.append((f"flow: the page stops ({answer['stop']}) before norm {norm:g}", asked))
            return
        if np.linalg.norm(ours - twin) > 1e-7 * norm:
            tally.sensitive += 1
            return
        tally.check("flow", float(np.linalg.norm(ours - theirs)) / norm, PATH_ERROR, asked)


def _compare_end(
    problem: TokenProblem, objective: PromptObjective, asked: dict[str, Any], answer: dict[str, Any], tally: Tally
) -> None:
    """Where the first of the starts ends, unless starts a hundredth away end elsewhere: it is by a border then."""
    start = np.array(asked["starts"][0])
    around = [limit_of(problem, start * share, loss=objective.loss, until_norm=1e6) for share in (1.0, 0.99, 1.01)]
    if not all(limit.outcome == "direction" and limit.named.is_limit for limit in around):
        return
    names = [_sets(np.flatnonzero(row).tolist() for row in limit.chosen) for limit in around]
    if len(set(names)) > 1:
        tally.sensitive += 1
        return
    tally.compared["end of a start"] += 1
    end = answer["ends"][0]
    theirs = None if end < 0 else _sets(answer["limits"][end]["sets"])
    if theirs != names[0]:
        tally.wrong.append((f"start {start.tolist()} ends at {names[0]} in the library, {theirs} in the page", asked))


def main(*, count: int = 1000, flows: int | None = None, seed: int = 0, family: str | None = None) -> int:
    """Problems of each `family`, of which the first `flows` (all by default) are followed by flow."""
    rng = np.random.default_rng(seed)
    makers = [make for make in PLANE_FAMILIES if family in (None, make.__name__)]
    failed = 0
    for make in makers:
        tally = Tally()
        each = -(-count // len(makers))
        followed = each if flows is None else flows
        asked = [asked_of(make(rng), rng, **({} if k < followed else SHORT)) for k in range(each)]
        for question, answer in zip(asked, page_answers(asked), strict=True):
            compare(question, answer, tally)
        failed += len(tally.wrong)
        counts = ", ".join(f"{number} {what}" for what, number in tally.compared.items())
        print(f"{make.__name__}: {counts}; {tally.sensitive} paths amplify rounding")
        print("  largest differences: " + ", ".join(f"{what} {error:.1e}" for what, error in tally.largest.items()))
        for what, question in tally.wrong[:5]:
            print(
                f"  DIFFERS {what}\n    {json.dumps(question['inputs'])} start {question['start']} {question['loss']}"
            )
    print(f"{failed} differences")
    return int(failed > 0)


if __name__ == "__main__":
    run_main(main, __doc__)
