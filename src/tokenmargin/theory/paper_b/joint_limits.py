"""Head and prompt together: Theorems 5 and 6 of paper B, the law behind Theorem 6, and Lemmas 12 and 13.

Theorem 6 relates |v| <= r and |p| <= R in no way. Its conclusion depends on it: with m_i the label margin of input i in
units of Gamma, an input that is no support vector weighs exp(-(m_i - 1) r Gamma) in the risk, not nothing, and p
maximises the least of mu_i(p) + (m_i - 1) r Gamma/R over all inputs (mu_i the margin of p in input i). The lemmas are
about the joint path confined to the quadrant of a selection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.linalg import null_space
from scipy.optimize import LinearConstraint, NonlinearConstraint, minimize

from tokenmargin.dynamics import RidgePath, ridge_path
from tokenmargin.dynamics.paths.ball import prompt_landscape
from tokenmargin.dynamics.paths.joint import head_landscape
from tokenmargin.dynamics.paths.newton import SecondOrderFunction, Sphere, minimise
from tokenmargin.margin import (
    MarginSolution,
    joint_phases,
    label_margin,
    label_room,
    max_margin,
    relaxed_max_margin,
    support_inputs,
)
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import figure3a, figure3b
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, attention_weights, leads, margins
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, searched, seen
from tokenmargin.theory.evidence import falls_to_zero, has_solution
from tokenmargin.theory.paper_b.assumptions import AssumptionC, assumption_c
from tokenmargin.theory.settings import ProblemInstance

REACH = 200.0
"""|p| times the margin of its limit at the end of a ridge path."""
EDGE = 1e-7
"""The share of a margin that certificates leave open of the law's inequality: at equality it counts as met."""


@dataclass(frozen=True, eq=False)
class Joint:
    """What the joint theorems speak of, at a problem and tokens alpha, with `|v| = ratio |p|`."""

    x: ProblemInstance

    @cached_property
    def head(self) -> MarginSolution:
        """The SVM at the selected tokens; its margin is Gamma."""
        return label_margin(self.x.problem, self.x.alpha)

    @cached_property
    def prompt(self) -> MarginSolution:
        """ATT-SVM at the selected tokens."""
        return max_margin(self.x.problem, self.x.alpha)

    @cached_property
    def relaxed(self) -> MarginSolution:
        """(10): a margin of 1 on the support inputs, of 0 on the others."""
        return relaxed_max_margin(self.x.problem, self.x.alpha)

    @cached_property
    def margin_spared(self) -> Float[Array, " n"]:
        """`(m_i - 1) r Gamma / R`: what each input is spared of its margin; zero on the support inputs."""
        _, room = label_room(self.x.problem, self.x.alpha)
        return room * self.x.factor * self.head.margin

    @cached_property
    def support(self) -> Bool[Array, " n"]:
        """The inputs whose selected token is a support vector."""
        return support_inputs(self.x.problem, self.x.alpha)

    @cached_property
    def label_leads(self) -> Float[Array, " n"]:
        """By how much alpha's label margin exceeds that of any other token, in units of Gamma."""
        problem, inputs = self.x.problem, np.arange(self.x.problem.n)
        outputs = problem.labels[:, None] * problem.values.outputs(self.head.vector)
        others = problem.mask.copy()
        others[inputs, self.x.alpha] = False
        return np.asarray(outputs[inputs, self.x.alpha] - np.where(others, outputs, -np.inf).max(axis=1))

    def assumption(self, support: Bool[Array, " n"] | None = None) -> AssumptionC:
        """Assumption C over the inputs of `support`."""
        points = np.concatenate([r * self.x.sphere(20, self.x.rng) for r in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)])
        return assumption_c(self.x.problem, self.x.alpha, points, support)

    def path(self, target: MarginSolution) -> RidgePath:
        """The ridge path at a tenth of the reach and at the reach: from random starts, and from the target itself."""
        ends = np.array([REACH / 10, REACH])[:, None] / target.margin * [self.x.factor, 1.0]
        objective, rng = JointObjective(self.x.problem, self.x.loss), self.x.rng
        first = ridge_path(objective, [tuple(ends[0] / 5)], rng=rng, starts=4)
        starts = np.stack(
            [np.concatenate([first.heads[-1], first.prompts[-1]]), np.concatenate([self.head.vector, target.vector])]
        )
        return ridge_path(objective, [tuple(end) for end in ends], rng=rng, starts=0, also=starts)

    def law(self) -> Slack:
        """What Theorem 6's limit implies: at p_relax no other input's `mu_i + (m_i - 1) r Gamma/R` is below Xi.

        Suppose p_R/R went to p_relax and one were. Keep v_R and turn p_R a little towards p_mm: the support inputs lose
        about exp(-r Gamma - R Xi) of risk, that input gains about exp(-m_i r Gamma - R mu_i), exponentially more. So
        p_R was no minimiser: where the inequality is broken, the theorem is.
        """
        unit = self.relaxed.vector * self.relaxed.margin
        least = least_margins(self.x.problem, unit, self.x.alpha) + self.margin_spared
        others = float(least[~self.support].min(initial=np.inf))
        name = "least mu_i + (m_i - 1) |v| Gamma/|p| at p_relax, other inputs"
        return above(name, others, self.relaxed.margin, tolerance=EDGE * self.relaxed.margin)


def least_margins(problem: TokenProblem, p: Float[Array, " D"], alpha: Int[Array, " n"]) -> Float[Array, " n"]:
    """`mu_i(p)`: by how much the selected token of each input leads."""
    return np.asarray(leads(problem.keys, p, alpha).min(axis=1))


def phase_direction(problem: TokenProblem, alpha: Int[Array, " n"], ratio: float) -> Float[Array, " D"]:
    """The direction that maximises the least `mu_i(p) + (m_i - 1) ratio Gamma`, with no negative mu_i: p_mm for small
    ratios |v|/|p| and p_relax for large ones (`margin.joint_phases`).

    >>> phase_direction(figure3b(), np.array([1, 1, 1]), 2.0).round(6) + 0.0
    array([1., 0.])
    """
    phases = joint_phases(problem, alpha)
    vector = phases.at(ratio * phases.head.margin).solution.vector
    return np.asarray(vector / problem.keys.norm(vector))


def both_directions(j: Joint, path: RidgePath, target: Float[Array, " D"], name: str) -> tuple[Slack, ...]:
    """The directions of head and prompt at the end of a ridge path, against the max-margin head and `target`."""
    values, keys = j.x.problem.values, j.x.problem.keys
    r, R = path.radii[-1].tolist()
    v = [float(angle(values, head, j.head.vector)) for head in path.heads[-2:]]
    p = [float(angle(keys, prompt, target)) for prompt in path.prompts[-2:]]
    return (
        *falls_to_zero("the max-margin head", (v[0], v[1]), norm=r),
        *falls_to_zero(name, (p[0], p[1]), norm=R),
    )


def separable(j: Joint) -> tuple[Slack, Slack]:
    """That there is a max-margin prompt of alpha, and a max-margin head."""
    return (
        has_solution("alpha is separable", j.prompt),
        has_solution("there is a max-margin head", j.head),
    )


def theorem5(x: ProblemInstance) -> Findings:
    """If the tokens alpha are separable and mixing others in shrinks the label margin (Assumption C), the ridge
    solutions `argmin_{|v| <= r, |p| <= R} L(v, p)` converge in direction to the max-margin head and to the max-margin
    prompt of alpha. (Logistic loss; |v| = factor |p|, both growing; |p| up to 200 |p_mm|.)"""
    j = Joint(x)
    hypotheses = separable(j)
    if not all(slack.holds for slack in hypotheses):
        return Findings(hypotheses)
    conclusion = both_directions(j, j.path(j.prompt), j.prompt.vector, "the max-margin prompt")
    return Findings((*hypotheses, j.assumption().slack()), conclusion)


def relaxed_hypotheses(j: Joint, path: RidgePath) -> tuple[Slack, ...]:
    """Theorem 6's: alpha is asymptotically selected, and Assumption C holds over the support inputs.

    Selection is proven where nu > 0 is certified, and in every other input alpha has the largest label margin of all
    tokens and what it is spared is below the margin of p_mm: losing a share of such an input costs exponentially more
    than turning to p_mm costs the support inputs.
    """
    x, assumption = j.x, j.assumption(j.support)
    reached = attention_weights(x.problem.keys, path.prompts[-1])[np.arange(x.problem.n), x.alpha]
    selected = above("smallest attention on alpha at the end", float(reached.min()), 0.9)
    spared = bool((j.margin_spared[~j.support] < (1 - EDGE) * j.prompt.margin).all())
    proven = assumption.at_least > 0 and spared and bool((j.label_leads[~j.support] > EDGE).all())
    return (
        searched(selected, "following the path farther") if proven else seen(selected, "a proof that it selects alpha"),
        assumption.slack(" over the support inputs"),
    )


def without_directions(j: Joint) -> Findings | None:
    """Where the problem has no max-margin head or prompt, there is nothing to converge to."""
    for name, solution in _solutions(j):
        if not solution.is_optimal:
            return Findings((has_solution(name, solution),), ())
    return None


def _solutions(j: Joint) -> Iterator[tuple[str, MarginSolution]]:
    """The max-margin problems, one after the other: the relaxed one is posed by the head."""
    yield "there is a max-margin head", j.head
    yield "alpha is separable", j.prompt
    yield "the relaxed problem has a solution", j.relaxed


def theorem6(x: ProblemInstance) -> Findings:
    """If the ridge solutions come to select the tokens alpha, and mixing others in shrinks the label margin of the
    support inputs (Assumption C over them), then v converges in direction to the max-margin head and p to the solution
    of the relaxed problem (10), which asks for a margin on the support inputs only. (Printed without a relation between
    |v| <= r and |p| <= R; here |v| = factor |p|, both growing.)"""
    found, law = _relaxed_limit(x)
    return Findings(found.hypotheses, (*law, *found.conclusion))


def theorem6_repaired(x: ProblemInstance) -> Findings:
    """Theorem 6 with a relation between |v| and |p|: at p_relax, no other input's margin plus (m_i - 1) |v| Gamma/|p|
    is below that of the support inputs. A constant ratio |v|/|p| is enough."""
    found, law = _relaxed_limit(x)
    return found.given(*law)


def _relaxed_limit(x: ProblemInstance) -> tuple[Findings, tuple[Slack, ...]]:
    """The limits of Theorem 6 under its printed hypotheses, and the law that decides them."""
    j = Joint(x)
    if (nothing := without_directions(j)) is not None:
        return nothing, ()
    path = j.path(j.relaxed)
    conclusion = both_directions(j, path, j.relaxed.vector, "the relaxed solution")
    return Findings(relaxed_hypotheses(j, path), conclusion), (j.law(),)


def theorem6_phases(x: ProblemInstance) -> Findings:
    """Under Theorem 6's hypotheses, with |v|/|p| constant, v converges to the max-margin head and p to the direction
    that maximises the least of mu_i(p) + (m_i - 1) |v| Gamma/|p|: p_mm where the ratio is small, p_relax where it is
    large, and between them in between. (Ours.)"""
    j = Joint(x)
    if (nothing := without_directions(j)) is not None:
        return nothing
    path, target = j.path(j.relaxed), phase_direction(x.problem, x.alpha, x.factor)
    conclusion = both_directions(j, path, target, "the direction of the phase law")
    return Findings(relaxed_hypotheses(j, path), conclusion)


def selecting_second(problem: TokenProblem, name: str, ratio: float = 1.0) -> ProblemInstance:
    """The second token of every input selected, with `|v| = ratio |p|`."""
    return ProblemInstance(problem, name, selected=(1,) * problem.n, factor=ratio)


def smaller_label_margin() -> ProblemInstance:
    """alpha separates the labels by 1; the tokens (1, 2) and (1, -2) do by 2, and the ridge path selects those."""
    keys = [[[1.0, 2.0], [0.0, 1.0]], [[1.0, -2.0], [0.0, -1.0]]]
    return selecting_second(TokenProblem.of(keys, [1, -1], head=[0.0, 1.0]), "better tokens left unselected")


def rather_another() -> ProblemInstance:
    """Of the third input, no support vector, the path selects (0.8, 1.2) and not alpha."""
    keys = [[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.8, 1.2], [0.5, 1.8]]]
    return selecting_second(TokenProblem.of(keys, [1, -1, 1], head=[0.0, 1.0]), "another token of the third input", 2.0)


def nearly_support(ratio: float = 1.0) -> ProblemInstance:
    """Figure 3 with the third token at (0.5, 1.1): its label margin is 1.1 times that of the support inputs."""
    return selecting_second(figure3a(third=(0.5, 1.1)), "fig3 with (0.5, 1.1)", ratio)


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
        missing = j.relaxed if j.head.is_optimal else j.head
        return Findings((has_solution("there is a ridge path towards alpha", missing),), ())
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
        given = TokenProblem(x.problem.keys, x.problem.labels, x.problem.values, head=v)
        landscape = prompt_landscape(PromptObjective(given, x.loss))
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
    Claim("B.theorem5", theorem5, "sampled", about="joint ridge path, all support vectors",
        example=lambda: selecting_second(figure3a(), "fig3a"), outside=(lambda: selecting_second(figure3b(), "fig3b"),),
        unneeded={"alpha is separable": NO_SUBJECT, "there is a max-margin head": NO_SUBJECT}),
    Claim("B.theorem6", theorem6, "sampled", about="joint ridge path: p to the relaxed problem",
        example=lambda: selecting_second(figure3b(), "fig3b", 2.0), outside=(smaller_label_margin, rather_another),
        refutation=lambda: selecting_second(figure3b(), "fig3b", 0.5),
        note=(
            "Printed without a relation of r and R, and true or false depending on it. The proof drops a factor 1/(2n) "
            "between (82) and (81), which counts unless r grows exponentially in R. On the paper's own Figure 3(b) it "
            "holds for r >= R and fails for r < R; for r fixed, p goes to p_mm. B.theorem6-repaired has the condition, "
            "B.theorem6-phases the law."
        )),
    Claim("B.theorem6-repaired", theorem6_repaired, "sampled", about="... where |v|/|p| is large enough",
        example=lambda: nearly_support(6.0), outside=(nearly_support, smaller_label_margin, rather_another)),
    Claim("B.theorem6-phases", theorem6_phases, "sampled", about="... for any ratio |v|/|p|: the phase law",
        example=nearly_support, outside=(smaller_label_margin, rather_another)),
    Claim("B.lemma12", lemma12, "sampled", about="selected tokens: the path lies in their quadrant",
        example=lambda: selecting_second(figure3b(), "fig3b"), outside=(smaller_label_margin,)),
    Claim("B.lemma13", lemma13, "sampled", about="the path confined to the quadrant: p to the relaxed problem",
        example=lambda: selecting_second(figure3b(), "fig3b", 2.0),
        refutation=lambda: selecting_second(figure3b(), "fig3b", 0.5),
        note="Printed without a relation of r and R, like Theorem 6, whose core it is: it holds and fails with it."),
)  # fmt: skip
