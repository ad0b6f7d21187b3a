"""R.joint-phase and R.joint-descent: where p goes when the head is trained with it (`docs/results/joint-phase.md`)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import logsumexp

from tokenmargin.dynamics import FlowPath, FlowSettings, flow, ridge_path
from tokenmargin.dynamics.paths.joint import head_landscape
from tokenmargin.dynamics.paths.newton import Sphere, minimise
from tokenmargin.margin import JointPhases, Phase, joint_phases
from tokenmargin.margin.graph_margin import unit_rows
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import figure3b
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, attention_weights
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, sampled, seen
from tokenmargin.theory.evidence import falls_to_zero
from tokenmargin.theory.paper_b.joint_limits import (
    Joint,
    least_margins,
    nearly_support,
    rather_another,
    selecting_second,
    separable,
    smaller_label_margin,
)
from tokenmargin.theory.settings import ProblemInstance

RADII = (1e2, 1e3, 1e4)
REACH = (1e2, 1e3)
NEAR = (2.0, 20.0)
"""Outside the hypotheses head and prompt can depend on each other so that minimising them in turn takes minutes."""


def scaled_values(problem: TokenProblem, factor: float) -> TokenProblem:
    """The same problem with values `factor` times as long: normalised descent with one step for both blocks is then
    descent with a step `factor` times as long for the head, in units of the new values."""
    assert isinstance(problem.values, Coordinates)
    values = Coordinates(problem.values.vectors * factor, problem.values.index, problem.values.mask)
    return TokenProblem(problem.keys, problem.labels, values, head=np.zeros(values.dimension))


def _below_the_margin(x: ProblemInstance, phases: JointPhases) -> Slack:
    """Every other token has a label margin below 1 at the max-margin head."""
    problem = x.problem
    labels = problem.labels[:, None] * problem.values.logits(phases.head.vector)
    others = problem.mask.copy()
    others[np.arange(problem.n), x.alpha] = False
    return below(
        "largest label margin of another token, in units of Gamma", float(labels[others].max()), 1, strict=True
    )


def _shared_hypotheses(x: ProblemInstance) -> tuple[tuple[Slack, ...], JointPhases | None]:
    """What both statements ask of the problem, and its phases where there are any."""
    hypotheses = separable(Joint(x))
    if not all(slack.holds for slack in hypotheses):
        return hypotheses, None
    phases = joint_phases(x.problem, x.alpha)
    return (*hypotheses, _below_the_margin(x, phases)), phases


def _best_head(x: ProblemInstance, r: float) -> tuple[Float[Array, " D"], Float[Array, " n"]]:
    """v_0(r), which minimises the risk over `|v| <= r` where alpha has all attention, and its margins Y_i v_0' x_i."""
    problem = x.problem
    assert isinstance(problem.values, Coordinates)
    index = problem.values.index[np.arange(problem.n), x.alpha][:, None]
    chosen = Coordinates(problem.values.vectors, index)
    one = TokenProblem(chosen, problem.labels, chosen, head=np.zeros(chosen.dimension))
    landscape = head_landscape(one, x.loss, np.zeros(chosen.dimension))
    found = minimise(landscape, problem.labels @ chosen.tokens[:, 0], sphere=Sphere(r))
    return found.point, np.asarray(problem.labels * (chosen.tokens[:, 0] @ found.point))


def _bound_by_convexity(x: ProblemInstance, phases: JointPhases) -> Slack:
    """(3) of the proof, for random v and p: `L - L_0 >= mean_i w_i sum_t s_it Y_i v'(x_i alpha - x_it)`."""
    problem, rng, least = x.problem, x.rng, np.inf
    best = np.arange(problem.n), x.alpha
    prompts = 4 / phases.prompt.margin
    for r in np.array([1.0, 3.0, 6.0]) / phases.head.margin:
        head, margins = _best_head(x, r)
        slope = np.exp(x.loss.log_slope(margins))
        for v, p in zip(r * unit_rows(rng.normal(size=(40, head.size))), prompts * x.sphere(40, rng), strict=True):
            v = 0.5 * (v + head) if rng.integers(2) else v
            scores = problem.labels[:, None] * problem.values.logits(v)
            weights = attention_weights(problem.keys, p)
            lost = (weights * (scores[best][:, None] - scores)).sum(axis=1, where=problem.mask)
            risk = x.loss.value(scores[best] - lost)
            room = float((risk - x.loss.value(margins) - slope * lost).sum())
            least = min(least, room / float(np.abs(slope * lost).sum() + risk.sum()))
    return sampled(above("(3) of the proof: least room, over the size of its terms", least, 0, tolerance=1e-12))


def _falls_like_inverse(name: str, angles: list[float], norms: tuple[float, ...]) -> tuple[Slack, ...]:
    """An angle that falls like 1/norm: at most 20/norm at the end, and by 0.8 of the factor over the last decade."""
    return falls_to_zero(name, (angles[-2], angles[-1]), norm=norms[-1], most=20 / norms[-1])


def joint_phase(x: ProblemInstance) -> Findings:
    """Let alpha be separable by p and by label, let no mixture with other tokens on the support inputs reach the label
    margin Gamma, and let every other token have a label margin below Gamma at the max-margin head v^mm. Let (v, p)
    minimise the risk over |v| <= r, |p| <= R, and r, R grow with r Gamma/R -> rho < infinity. Then v/r tends to the
    direction of v^mm, and p/R to the only maximiser of `min_i {mu_i(p) + (m_i - 1) rho}` over |p| <= 1, mu_i >= 0;
    `(1/R) log(L/L_0 - 1)` tends to minus its value, where L_0 is the risk of the best head on alpha alone. It is the
    direction of p^relax for rho >= max (M - mu_i)/(m_i - 1), M and mu_i the margins of that direction. (Logistic loss;
    ours, proof in docs/results/joint-phase.md.)"""
    hypotheses, phases = _shared_hypotheses(x)
    if phases is None:
        return Findings(hypotheses)
    joint = Joint(x)
    hypotheses = (*hypotheses, joint.assumption(joint.support).slack(" over the support inputs"))
    phase = phases.at(x.factor * phases.head.margin)
    start = np.concatenate([phases.head.vector, phase.solution.vector])
    norms = RADII if all(slack.holds for slack in hypotheses) else NEAR
    radii = [(x.factor * R, R) for R in norms]
    path = ridge_path(JointObjective(x.problem, x.loss), radii, rng=x.rng, starts=2, also=start[None])
    keys, values = x.problem.keys, x.problem.values
    p = [float(angle(keys, prompt, phase.solution.vector)) for prompt in path.prompts]
    v = [float(angle(values, head, phases.head.vector)) for head in path.heads]
    conclusion = (
        *_falls_like_inverse("the phase law, of p", p, norms),
        *_falls_like_inverse("v^mm, of v", v, norms),
        _exponent_of_excess(x, phase, path.heads[-1], path.prompts[-1]),
        _bound_by_convexity(x, phases),
    )
    return Findings(hypotheses, conclusion)


def _exponent_of_excess(x: ProblemInstance, phase: Phase, v: Float[Array, " a"], p: Float[Array, " b"]) -> Slack:
    """(1/R) log(L/L_0 - 1) against minus the value of the phase."""
    problem = x.problem
    scores = problem.labels[:, None] * problem.values.logits(v)
    excess = PromptObjective(TokenProblem(problem.keys, problem.labels, scores=scores), x.loss).log_excess(p)
    alone = float(logsumexp(x.loss.log_value(scores[np.arange(problem.n), x.alpha])) - np.log(problem.n))
    R = float(problem.keys.norm(p))
    name = "distance of (1/R) log(L/L_0 - 1) from the law's value"
    return seen(below(name, abs((excess - alone) / R + phase.value), 20 * np.log(R) / R))


def joint_descent(x: ProblemInstance) -> Findings:
    """Train v and p together by any method whose steps are positive multiples of minus the gradient of each block, and
    suppose that v/|v| tends to the direction of v^mm, p/|p| to some u with mu_i(u) > 0 for all inputs, both norms grow
    without bound, and |v| Gamma/|p| tends to rho < infinity. Then u is the direction of the phase law at rho. Descent
    that normalises each block, and whose unit gradients converge, has rho = Gamma (step of v)/(step of p). Gradient
    flow has `|p| <= (2/mu) log |v| + C` for every mu below the margin of u: it is at rho = infinity, where u is that of
    p^relax if the support inputs keep comparable slopes. (Ours; proof in docs/results/joint-phase.md. Here factor is
    the ratio of the steps; both are followed as flows.)"""
    hypotheses, phases = _shared_hypotheses(x)
    if phases is None:
        return Findings(hypotheses)
    problem, keys = scaled_values(x.problem, x.factor), x.problem.keys
    phase = phases.at(x.factor * phases.head.margin)
    objective = JointObjective(problem, x.loss)
    start = np.concatenate([phases.head.vector, phases.prompt.vector])
    settings = FlowSettings(coupling="block", tolerance=1e-7)  # angles are compared to 1e-3
    unit = max(1.0, 2 * float(np.linalg.norm(start)) / REACH[0])  # norms are counted from beyond the start
    blocks = flow(objective, start=start, until_norm=1.5 * unit * REACH[-1], settings=settings)
    u = [
        float(angle(keys, objective.prompt(blocks.at_norm(unit * norm)), phase.solution.vector))
        if blocks.norm >= unit * norm else np.pi  # it came to rest before
        for norm in REACH
    ]  # fmt: skip
    together = flow(
        JointObjective(x.problem, x.loss), start=start, until_norm=1e8, settings=FlowSettings(tolerance=1e-7)
    )
    ends = [objective.prompt(path.final) / keys.norm(objective.prompt(path.final)) for path in (blocks, together)]
    least = min(float(least_margins(x.problem, end, x.alpha).min()) for end in ends)
    hypotheses = (*hypotheses, seen(above("least margin of p/|p| at the ends", least, 0, strict=True)))
    return Findings(
        hypotheses, (*_falls_like_inverse("the phase law, of p", u, REACH), *_flow_to_relaxed(x, phases, together))
    )


def _flow_to_relaxed(x: ProblemInstance, phases: JointPhases, path: FlowPath) -> tuple[Slack, ...]:
    """Gradient flow: the direction is that of p^relax, and |p| grows like 2 |p^relax| log |v|."""
    objective, keys = path.objective, x.problem.keys
    if path.norm < 0.99e8:
        return (seen(above("norm that gradient flow reaches", path.norm, 0.99e8)),)
    began = float(np.linalg.norm(path(0.0)))
    if began > 1e4:
        return (seen(below("norm that gradient flow starts from", began, 1e4), "shorter max-margin vectors"),)
    points = [path.at_norm(norm) for norm in (1e4, 1e6, 0.99e8)]
    lengths = [float(keys.norm(objective.prompt(point))) for point in points]
    growth = (lengths[2] - lengths[1]) / np.log(0.99e2)
    off = float(angle(keys, objective.prompt(points[-1]), phases.relaxed.vector))
    return (
        seen(below("gradient flow to |v| = 1e8: angle of p to p^relax, times |p|", off * lengths[-1], 20)),
        seen(below("|p| over log |v|, growth of the last two decades, off 2 |p^relax|",
                   abs(growth - 2 / phases.relaxed.margin) * phases.relaxed.margin, 0.05)),
    )  # fmt: skip


CLAIMS = (
    Claim("R.joint-phase", joint_phase, "sampled",
        about="joint ridge path: the phase law in |v| Gamma/|p|, and its critical value", example=nearly_support,
        outside=(smaller_label_margin, rather_another),
        unneeded={"alpha is separable": NO_SUBJECT, "there is a max-margin head": NO_SUBJECT}),
    Claim("R.joint-descent", joint_descent, "sampled",
        about="joint descent and flow: which phase each method lands in",
        example=lambda: selecting_second(figure3b(), "fig3b", 0.5), outside=(rather_another,),
        unneeded={"alpha is separable": NO_SUBJECT, "there is a max-margin head": NO_SUBJECT}),
)  # fmt: skip
