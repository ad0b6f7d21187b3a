"""The joint path confined to the quadrant of a selection: Lemmas 12 and 13 of paper B."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.linalg import null_space
from scipy.optimize import LinearConstraint, NonlinearConstraint, minimize

from tokenmargin.dynamics.paths.ball import prompt_landscape
from tokenmargin.dynamics.paths.joint import RidgePath, head_landscape
from tokenmargin.dynamics.paths.newton import SecondOrderFunction, Sphere, minimise
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import figure3b
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import attention_weights, margins
from tokenmargin.theory.claim import Claim, Findings, above, seen, true
from tokenmargin.theory.paper_b.joint_limits import (
    Joint,
    both_directions,
    relaxed_hypotheses,
    selecting_second,
    smaller_label_margin,
    without_directions,
)
from tokenmargin.theory.settings import ProblemInstance

SURE = 0.9
"""Attention on the selected token from which on the proof of Lemma 12 argues."""
ON_A_WALL = 1e-9
"""A row of the quadrant whose product with a unit vector is less holds it."""


def lemma12(x: ProblemInstance) -> Findings:
    """If the ridge solutions p_R come to select the tokens alpha, then from some R_0 on they lie in the quadrant of
    alpha: `<k_{i alpha_i} - k_it, p_R> >= 0` for all tokens (77). (At each R followed with attention of 0.9 or more on
    alpha.)"""
    j = Joint(x)
    if not j.head.is_optimal or not j.relaxed.is_optimal:
        return Findings((true("there is a ridge path towards alpha", False),), ())
    path = j.path(j.relaxed)
    inputs = np.arange(x.problem.n)
    sure = np.array([attention_weights(x.problem.keys, p)[inputs, x.alpha].min() for p in path.prompts])
    least = np.array([_least_margin(x, p) for p in path.prompts])
    counted = least[sure >= SURE] if (sure >= SURE).any() else least[-1:]
    selected = seen(
        above("smallest attention on alpha at the end", float(sure[-1]), SURE), "following the path farther"
    )
    return Findings((selected,), (above("smallest margin of p_R over |p_R|", float(counted.min()), 0),))


def _least_margin(x: ProblemInstance, p: Float[Array, " D"]) -> float:
    ahead = np.where(x.problem.mask, margins(x.problem, p, x.alpha), np.inf)
    return float(ahead.min() / x.problem.keys.norm(p))


def lemma13(x: ProblemInstance) -> Findings:
    """Let h_R be the ridge solution with p confined to the quadrant of alpha. Under the hypotheses of Theorem 6, h_R/R
    converges to the direction of the relaxed problem (10), and v_r/r to the max-margin head. (Printed, like Theorem 6,
    without a relation of r and R; here |v| = factor |p|, both growing.)"""
    j = Joint(x)
    if (nothing := without_directions(j)) is not None:
        return nothing
    path = j.path(j.relaxed)
    hypotheses = relaxed_hypotheses(j, path)
    ends = both_directions(j, confined_path(x, path), j.relaxed.vector, "the relaxed solution")
    return Findings(hypotheses, (j.law(), *ends))


def confined_path(x: ProblemInstance, path: RidgePath) -> RidgePath:
    """The path confined to the quadrant: where a point lies in it, the point itself; else the minimiser there."""
    heads, prompts = path.heads.copy(), path.prompts.copy()
    for k, (v, p) in enumerate(zip(path.heads, path.prompts, strict=True)):
        if _least_margin(x, p) < 0:
            heads[k], prompts[k] = quadrant_point(x, (v, p), path.radii[k])
    return replace(path, heads=heads, prompts=prompts)


def quadrant_point(
    x: ProblemInstance, start: tuple[Float[Array, " V"], Float[Array, " P"]], radii: Float[Array, " 2"]
) -> tuple[Float[Array, " V"], Float[Array, " P"]]:
    """`argmin L(v, p)` over |v| <= r and |p| <= R with p in the quadrant, by turns, as the ridge path does."""
    if not isinstance(x.problem.keys, Coordinates):
        raise TypeError("the quadrant is walked in coordinates; give tokens, not inner products")
    objective, walls = JointObjective(x.problem, x.loss), attention_constraints(x.problem, x.alpha).rows()
    walls = walls / np.maximum(np.linalg.norm(walls, axis=1, keepdims=True), 1e-300)
    v, p = start[0], Joint(x).relaxed.vector
    for k in range(30):
        before = p / np.linalg.norm(p)
        v = minimise(head_landscape(x.problem, objective.loss, p), v, sphere=Sphere(float(radii[0]))).point
        scores = x.problem.labels[:, None] * x.problem.values.gather(x.problem.values.project(v))
        given = PromptObjective(TokenProblem(x.problem.keys, x.problem.labels, scores=scores), x.loss)
        landscape = prompt_landscape(given)
        # Between symmetric walls the relaxed solution may be a ridge of the risk: at first the walls are tried as well.
        starts = [before, *_nearest_on_walls(before, walls)] if k == 0 else [before]
        p = min(
            (_lowest_in_quadrant(landscape, unit, walls, float(radii[1])) for unit in starts),
            key=lambda q: landscape(q)[0],
        )
        if np.linalg.norm(p / radii[1] - before) < 1e-10:
            break
    return v, p


def _nearest_on_walls(unit: Float[Array, " P"], walls: Float[Array, "k P"]) -> Float[Array, "feet P"]:
    """The directions of each wall that are nearest to a unit vector."""
    feet = unit - (walls @ unit)[:, None] * walls
    lengths = np.linalg.norm(feet, axis=1, keepdims=True)
    return np.asarray((feet / np.maximum(lengths, 1e-300))[lengths[:, 0] > 1e-6])


def _lowest_in_quadrant(
    landscape: SecondOrderFunction, unit: Float[Array, " P"], walls: Float[Array, "k P"], radius: float
) -> Float[Array, " P"]:
    """The lowest point of the quadrant at |p| = radius: roughly, to see which walls hold it, then exactly on them."""

    def rough(w: Float[Array, " P"]) -> tuple[float, Array]:
        value, gradient, _ = landscape(radius * w)
        return value / radius, gradient

    sphere = NonlinearConstraint(lambda w: w @ w, 1, 1, jac=lambda w: 2 * w)  # inside it, zero may be lower
    inside = LinearConstraint(walls, 0, np.inf)
    found = minimize(rough, unit, jac=True, constraints=(sphere, inside), method="SLSQP", options={"maxiter": 200}).x
    found = found / np.linalg.norm(found)
    held: Bool[Array, " k"] = walls @ found < 1e-6
    basis = null_space(walls[held]).T if held.any() else np.eye(len(unit))
    if not len(basis):
        return np.asarray(radius * found)
    face = Sphere(radius, np.zeros_like(unit), basis)
    point = minimise(landscape, radius * found, sphere=face).point
    return np.asarray(point if (walls @ point).min() >= -ON_A_WALL * radius else radius * found)


CLAIMS = (
    Claim("B.lemma12", lemma12, "sampled", about="selected tokens: the path lies in their quadrant",
        example=lambda: selecting_second(figure3b(), "fig3b"), outside=(smaller_label_margin,)),
    Claim("B.lemma13", lemma13, "sampled", about="the path confined to the quadrant: p to the relaxed problem",
        example=lambda: selecting_second(figure3b(), "fig3b", 2.0),
        refutation=lambda: selecting_second(figure3b(), "fig3b", 0.5),
        note="Printed without a relation of r and R, like Theorem 6, whose core it is: it holds and fails with it."),
)  # fmt: skip
