"""Directions of paper B: the cone around a locally optimal one (Lemma 7), and which of two is better (2, 8 and 11)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.special import logsumexp

from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import key_map
from tokenmargin.problem.instances import figure1b, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import (
    ConeConstants,
    cone_constants,
    directional_neighbours,
    leads,
    neighbours,
    optimal_tokens,
    score_gaps,
    selected_tokens,
)
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, equal, sampled, seen, true
from tokenmargin.theory.evidence import has_solution
from tokenmargin.theory.paper_b.assumptions import assumption_a, rank_of_vectors
from tokenmargin.theory.settings import ProblemInstance

ROUNDING = 1e-9
"""Relative error of a ratio of gradients in the log domain: logits of up to 1e4 carry about 1e-12 into it."""
SOME_CONE = "another cone: the lemma asks for some mu, R, c and C"


def locally_optimal(problem: TokenProblem, alpha: Int[Array, " n"]) -> tuple[Slack, ...]:
    """Definition 2: ATT-SVM is feasible for alpha, and every selected token outscores its SVM-neighbours."""
    solution = max_margin(problem, alpha)
    if not solution.is_optimal:
        return (has_solution("alpha is separable", solution),)
    gap = float(score_gaps(problem, solution.vector, alpha).min())
    return true("alpha is separable", True), above("smallest score gap to a neighbour", gap, 0, strict=True)


def vectors_in_cone(
    x: ProblemInstance, axis: Float[Array, " D"], mu: float, number: int, rng: np.random.Generator
) -> Float[Array, "number D"]:
    """Unit vectors of `cone_mu(axis)` in the span of the keys, half of them on its boundary."""
    keys = x.problem.keys
    axis = axis / keys.norm(axis)
    across = x.sphere(number, rng)
    across = across - keys.inner(across, axis)[:, None] * axis
    length = keys.norm(across)[:, None]
    across = np.where(length > 1e-12, across / np.maximum(length, 1e-12), 0.0)  # in one dimension the cone is a ray
    slope = np.where(np.arange(number) % 2 == 0, 1.0, rng.uniform(size=number))
    cos = 1 - mu * slope
    points = cos[:, None] * axis + np.sqrt(1 - cos**2)[:, None] * across
    return np.asarray(points / keys.norm(points)[:, None])


def along_the_axis(x: ProblemInstance, axis: Float[Array, " D"]) -> Slack:
    """Whether the axis, which every cone holds, is a direction of descent along itself at large norms."""
    keys = x.problem.keys
    unit = axis / keys.norm(axis)
    points = np.geomspace(30, 3000, 20)[:, None] * axis
    least = float(np.min(keys.inner(x.objective.descent(points).direction, unit)[10:]))
    return seen(above("smallest cosine of -dL with the axis, along it", least, 0, strict=True))


def lemma7(x: ProblemInstance) -> Findings:
    """Around the max-margin direction of locally optimal tokens there is a cone of some width mu that holds no
    stationary point beyond some radius (L1): for p in it and q in the cone of length |p_mm|, `-<dL(p), q>` lies between
    constants c and C > 0 times the mean attention on other tokens (31a), |dL| is at most A-bar C times it, which is at
    most A-bar C T exp(-R Theta/2) (31b), and the cosine of q with -dL is at least c Theta/(A-bar C) (31c) (L2). For any
    pi > 0, from some norm on p is no better a direction than p_mm by more than a factor 1 + pi (L3). (The cone is that
    of `cone_constants`, with c and C of the proof, c over n; 1200 points; L3 for pi = 0.1 and 0.01.)"""
    return _cone_findings(x, as_printed=False)


def lemma7_proof_constants(x: ProblemInstance) -> Findings:
    """Lemma 7 with the constants that its proof names: the cone of width mu by (32), beyond the radius (39), with
    c = -(1/8) l'_min min gap and C = -2 l'_max max gap."""
    return _cone_findings(x, as_printed=True)


def _cone_findings(x: ProblemInstance, *, as_printed: bool) -> Findings:
    """The findings of Lemma 7, in the cone of `cone_constants` or in the one that its proof names."""
    hypotheses = (assumption_a(x.loss, x.problem), *locally_optimal(x.problem, x.alpha))
    if len(hypotheses) < 3:
        return Findings(hypotheses)
    axis = max_margin(x.problem, x.alpha).vector
    if not hypotheses[-1].holds:
        return Findings(hypotheses, (along_the_axis(x, axis),))
    constants = cone_constants(x.problem, axis, x.alpha, as_printed=as_printed)
    inner = _gradient_condition(x, axis, constants, inputs=1 if as_printed else x.problem.n)
    if not as_printed:
        inner = tuple(seen(slack, SOME_CONE) for slack in inner)
    return Findings(hypotheses, (*inner, *_l3_ratios(x, axis, constants)))


def _proof_bounds(
    x: ProblemInstance, axis: Float[Array, " D"], c: ConeConstants, inputs: int
) -> tuple[float, float, float]:
    """The proof's c and C, and A-bar."""
    problem, alpha = x.problem, x.alpha
    lowest = np.where(neighbours(problem, axis, alpha), problem.scores, np.inf).min(axis=1)
    wide = problem.scores[np.arange(problem.n), alpha] - lowest
    largest = np.abs(problem.scores[problem.mask]).max()
    slopes = np.exp(x.loss.log_slope(np.array([-largest, largest])))
    high = float(2 * slopes.max() * wide[np.isfinite(wide)].max())
    return (
        float(slopes.min() * c.gap / 8) / inputs,
        high,
        max(_largest_key_distance(problem, i) for i in range(problem.n)),
    )


def _largest_key_distance(problem: TokenProblem, i: int) -> float:
    tokens = problem.keys.index[i, problem.mask[i]]
    rows = problem.keys.differences(
        tokens, np.full_like(tokens, tokens[0])
    )  # from inner products an offset takes digits
    size = np.abs(rows).max(initial=0.0) or 1.0  # squares of lengths may not be numbers
    return float(size * max(np.linalg.norm((rows - row) / size, axis=1).max() for row in rows))


def _gradient_condition(
    x: ProblemInstance, axis: Float[Array, " D"], c: ConeConstants, *, inputs: int
) -> tuple[Slack, ...]:
    """(31a) to (31c) at 1200 points of the cone, a third each at 1, 2 and 5 times the radius."""
    keys, rng, number = x.problem.keys, x.rng, 400
    low, high, spread = _proof_bounds(x, axis, c, inputs)
    radii = np.repeat([1, 2, 5], number) * c.radius
    points = radii[:, None] * vectors_in_cone(x, axis, c.mu, 3 * number, rng)
    directions = vectors_in_cone(x, axis, c.mu, len(points), rng) / c.theta
    direction, log_norm = x.objective.descent(points)
    log_rest = _log_other_attention(x.problem, points, x.alpha)
    steep = np.exp(log_norm[:, 0] - log_rest)
    cosine = keys.inner(direction, directions) * c.theta
    ratio = cosine / c.theta * steep
    fade = float((log_rest + radii * c.theta / 2).max())
    slacks = (
        above("(31a) smallest -<dL, q> / attention on others", ratio.min(), low, tolerance=ROUNDING * low),
        below("(31a) largest", ratio.max(), high, tolerance=ROUNDING * high),
        below(
            "(31b) largest |dL| / attention on others", steep.max(), spread * high, tolerance=ROUNDING * spread * high
        ),
        below("(31b) largest log(attention on others) + R Theta/2", fade, np.log(x.problem.T), tolerance=ROUNDING),
        above("(31c) smallest cosine with -dL", cosine.min(), (low / high) * (c.theta / spread), tolerance=ROUNDING),
    )
    sizes = np.array([steep.min(), steep.max(), low * spread, high * spread])
    if np.isfinite(sizes).all() and (sizes > np.finfo(float).tiny).all():
        return tuple(sampled(slack) for slack in slacks)
    return tuple(seen(slack, "numbers within doubles") for slack in slacks)


def _l3_ratios(x: ProblemInstance, axis: Float[Array, " D"], c: ConeConstants) -> tuple[Slack, ...]:
    """L3: the largest ratio of descent along p to descent along p_mm in the cone, 20 and 200 times beyond its
    radius."""
    keys, slacks = x.problem.keys, []
    units = vectors_in_cone(x, axis, c.mu, 400, x.rng)
    for times, pi in ((20, 0.1), (200, 0.01)):
        descent = x.objective.descent(times * c.radius * units).direction
        lead = keys.inner(descent, units) / keys.inner(descent, axis / keys.norm(axis))
        slacks.append(seen(below(f"(L3) largest ratio at {times} R", lead.max(), 1 + pi)))
    return tuple(slacks)


def _log_other_attention(
    problem: TokenProblem, points: Float[Array, "k D"], alpha: Int[Array, " n"]
) -> Float[Array, " k"]:
    """`log mean_i (1 - s_{i alpha_i})`, right where the attention has saturated."""
    logits = problem.keys.logits(points)
    others = np.ones(problem.mask.shape, dtype=bool)
    others[np.arange(problem.n), alpha] = False
    rest = logsumexp(np.where(others, logits, -np.inf), axis=-1) - logsumexp(logits, axis=-1)
    return np.asarray(logsumexp(rest, axis=-1) - np.log(problem.n))


def without_neighbours() -> ProblemInstance:
    """Input 2's selected token has no SVM-neighbour, and a better token at margin 1.05 where input 1's is at 1."""
    keys = [[[1.0, 0.0], [0.0, 0.0]], [[1.05, 1.0], [0.0, 0.0]]]
    problem = TokenProblem.of(keys, [1, 1], scores=[[1.0, 0.0], [0.0, 5.0]])
    return ProblemInstance(problem, "two inputs, the second without neighbours", selected=(0, 0))


def behind_its_neighbour() -> ProblemInstance:
    """One input whose selected token is separable and scores less than its neighbour."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 0.0], [-0.5, 1.0]]], [1], scores=[[0.0, 1.0, -1.0]])
    return ProblemInstance(problem, "a neighbour of higher score", selected=(0,))


LINEAR = 1e-10
"""Relative residual of a linear map fitted to tokens, well above rounding."""


def lemma2(x: ProblemInstance) -> Findings:
    """If all labels are +1, every input has one optimal token, and the keys are `k = W x` with W of full rank, then the
    optimal tokens can be separated: the GMM exists. (W is seen on the tokens alone: of full rank if it loses none of
    theirs.)"""
    return _existence_findings(x, _lost_rank(x.problem))


def lemma11(x: ProblemInstance) -> Findings:
    """Lemma 2 with the weaker condition that v lies in the range of W'. (v as the tokens see it.)"""
    return _existence_findings(
        x, below("part of v outside the range of W', relative", _part_outside_range(x.problem), 0, tolerance=LINEAR)
    )


def _existence_findings(x: ProblemInstance, condition: Slack) -> Findings:
    """The findings of Lemmas 2 and 11, which differ in one condition."""
    problem, mapped = x.problem, key_map(x.problem)
    residual = np.inf if mapped is None or problem.head is None else mapped[0]
    solution = max_margin(problem, x.best)
    feasible = has_solution("ATT-SVM is feasible for the optimal tokens", solution)
    return Findings(
        hypotheses=(
            equal("smallest label", problem.labels.min(), 1, tolerance=0),
            below("most optimal tokens in an input", optimal_tokens(problem).sum(axis=1).max(), 1),
            below("keys minus the best W x, relative", residual, 0, tolerance=LINEAR),
            condition,
        ),
        conclusion=(feasible if solution.status != "inaccurate" else seen(feasible, "a proof either way"),),
    )


def _lost_rank(problem: TokenProblem) -> Slack:
    name, mapped = "rank of the tokens that W loses", key_map(problem)
    if mapped is None:
        return seen(below(name, np.inf, 0), "tokens in coordinates")
    return below(name, rank_of_vectors(problem.values) - rank_of_vectors(problem.keys), 0)


def _part_outside_range(problem: TokenProblem) -> float:
    """How far v, as the tokens see it, is from the range of W'."""
    mapped = key_map(problem)
    if mapped is None or problem.head is None:
        return np.inf
    values, transposed = problem.values.differences(np.arange(problem.values.n_vectors), None), mapped[1]
    seen_ = np.linalg.pinv(values) @ (values @ problem.head)
    missing = seen_ - transposed @ (np.linalg.pinv(transposed) @ seen_)
    return float(np.linalg.norm(missing) / max(float(np.linalg.norm(seen_)), 1e-300))


def lemma8(x: ProblemInstance) -> Findings:
    """Let unit vectors p and q select the same single tokens, p with the larger directional margin, both
    neighbour-optimal. Then `L(R p) < L(R q)` for all R beyond some R(delta), delta the difference of the margins. (40
    norms up to 3000 over the smallest difference of margins; the last 20 count.)"""
    return _compare_risks(x, second=False)


def lemma8_second(x: ProblemInstance) -> Findings:
    """Let unit vectors p and q select the same single tokens, p with the larger directional margin, and let q have one
    directional neighbour, which scores higher than the selected token. Then `L(R q) < L(R p)` for all large R. (As for
    the first part.)"""
    return _compare_risks(x, second=True)


def _compare_risks(x: ProblemInstance, *, second: bool) -> Findings:
    """The findings of both parts of Lemma 8."""
    problem, keys = x.problem, x.problem.keys
    if x.p is None and not (solution := max_margin(problem, x.alpha)).is_optimal:
        return Findings((has_solution("alpha is separable", solution),), ())
    p, q = _two_directions(x)
    alpha = np.asarray(keys.logits(q).argmax(axis=1))
    of_p, of_q = _Margins(problem, p, alpha), _Margins(problem, q, alpha)
    together = max(int(selected_tokens(keys, u).sum(axis=1).max()) for u in (p, q))
    hypotheses: tuple[Slack, ...] = (
        true("p selects what q selects", bool((keys.logits(p).argmax(axis=1) == alpha).all())),
        below("most tokens selected in an input", together, 1),
        above("margin of p minus margin of q", of_p.margin - of_q.margin, 0, strict=True),
    )
    if second:
        hypotheses += (
            equal("neighbours of q", of_q.number, 1, tolerance=0),
            below("score lead over the neighbour of q", of_q.lead, 0, strict=True),
        )
    else:
        hypotheses += (
            above("smallest score lead over neighbours of q", of_q.lead, 0, strict=True),
            above("smallest score lead over neighbours of p", of_p.lead, 0, strict=True),
        )
    low, high = (q, p) if second else (p, q)
    radii = np.geomspace(30, 3000, 40) / max(min(abs(of_p.margin - of_q.margin), of_q.next, of_p.next), 1e-9)
    wrong = sum(not x.risk.excess_rank(r * low, alpha) < x.risk.excess_rank(r * high, alpha) for r in radii[20:])
    return Findings(
        hypotheses, (seen(below("norms of the last 20 at which the risks are ordered otherwise", wrong, 0)),)
    )


def _two_directions(x: ProblemInstance) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    """The instance's p and q as unit vectors; by default the max-margin direction of alpha, and one beside it."""
    keys = x.problem.keys
    p = max_margin(x.problem, x.alpha).vector if x.p is None else x.p
    p = p / keys.norm(p)
    q = p + 0.2 * x.sphere(1, x.rng)[0] if x.q is None else x.q
    return np.asarray(p), np.asarray(q / keys.norm(q))


class _Margins:
    """Directional margin, number of neighbours, their score lead, distance to the next margin (Definition 3)."""

    def __init__(self, problem: TokenProblem, u: Float[Array, " D"], alpha: Int[Array, " n"]) -> None:
        ahead = leads(problem.keys, u, alpha)
        others = np.isfinite(ahead)
        near = directional_neighbours(problem.keys, u) & others
        lead = problem.scores[np.arange(problem.n), alpha][:, None] - problem.scores
        self.margin = float(ahead[others].min())
        self.number = int(near.sum())
        self.lead = float(lead[near].min(initial=np.inf))
        self.next = float((ahead[others & ~near] - self.margin).min(initial=1.0))


def _all_positive_problem(seed: int, n: int, d: int) -> TokenProblem:
    """A random problem with all labels +1 and W = I."""
    base = random_problem(n, 4, d, rng=np.random.default_rng(seed))
    return TokenProblem(base.keys, np.ones(n), head=base.head)


def three_tokens(scores: tuple[float, ...]) -> TokenProblem:
    """Three tokens in the plane with the first at (1, 0)."""
    return TokenProblem.of([[[1.0, 0.0], [0.0, 0.0], [-0.5, 1.0]]], [1], scores=[scores])


def _two_neighbours() -> ProblemInstance:
    """q = (1, 0) has two neighbours, one a little better than the selected token, the other much worse."""
    keys = [[[0.0, 0.0], [-1.0, 0.5], [-1.0, 0.8]]]
    problem = TokenProblem.of(keys, [1], scores=[[0.5, 0.6, -1.0]])
    return ProblemInstance(problem, "q has two neighbours", p=np.array([1.0, -0.3]), q=np.array([1.0, 0.0]))


def _three_token_directions(
    scores: tuple[float, ...], p: tuple[float, float], q: tuple[float, float]
) -> ProblemInstance:
    plain = (str(numbers).replace(" ", "") for numbers in (scores, p, q))
    name = "three tokens, scores {}, p={}, q={}".format(*plain)
    return ProblemInstance(three_tokens(scores), name, p=np.array(p), q=np.array(q))


def _inseparable_problem(keys: list[list[float]], tokens: list[list[float]], name: str) -> ProblemInstance:
    """One input, label +1, whose optimal token (v = (0, 1)) cannot be separated."""
    problem = TokenProblem.of(np.array([keys], float), [1], values=np.array([tokens], float), head=[0.0, 1.0])
    return ProblemInstance(problem, name)


_EXISTENCE = (
    lambda: ProblemInstance(random_problem(4, 6, 2, rng=np.random.default_rng(0)), "random d=2"),
    lambda: _inseparable_problem(
        [[0, 1], [-1, 1], [1, 1]], [[0, 1], [-1, 1], [1, 1]], "the optimum between two others"
    ),
    lambda: _inseparable_problem([[0, 0], [1, 0], [0, 0]], [[0, 0], [0, 1], [0, 2]], "keys no map of the tokens"),
    lambda: _inseparable_problem([[0, 0], [1, 0], [-1, 0]], [[0, 1], [1, 0], [-1, 0]], "W that kills v"),
)


CLAIMS = (
    Claim("B.lemma7", lemma7, "sampled", about="local cone: (31a)-(31c), L3, for some mu", example=without_neighbours,
        outside=(behind_its_neighbour,), unneeded={"alpha is separable": NO_SUBJECT},
        note="The lemma says that a cone exists. That which its proof names can be too wide: B.lemma7-proof-constants."
    ),
    Claim("B.lemma7-proof-constants", lemma7_proof_constants, "sampled", about="the same in the cone of (32) and (39)",
        example=lambda: ProblemInstance(figure1b(), "fig1b", selected=(1,)), outside=(behind_its_neighbour,),
        unneeded={"alpha is separable": NO_SUBJECT}, refutation=without_neighbours,
        note=(
            "A gap in the proof, not in the lemma: (35) needs an SVM-neighbour in every input; delta in (32) ignores "
            "inputs without any. There a better token may stand just beyond margin 1 and dominate the gradient inside "
            "the cone. B.lemma7 holds in a narrower one."
        )),
    Claim("B.lemma2", lemma2, "bounded", about="labels +1, W of full rank: the GMM exists",
        example=lambda: ProblemInstance(_all_positive_problem(0, 6, 5), "random d=5, labels +1"), outside=_EXISTENCE),
    Claim("B.lemma11", lemma11, "bounded", about="labels +1, v in the range of W': the GMM exists",
        example=lambda: ProblemInstance(_all_positive_problem(0, 6, 5), "random d=5, labels +1"), outside=_EXISTENCE),
    Claim("B.lemma8", lemma8, "sampled", about="larger margin, smaller risk at large norm",
        example=lambda: _three_token_directions((1.0, 0.5, 0.2), (1.0, 0.0), (1.0, 0.4)),
        outside=(
            lambda: _three_token_directions((0.0, 0.2, 1.0), (1.0, 0.0), (-0.5, 1.0)),
            lambda: _three_token_directions((1.0, 0.5, 0.2), (1.0, 0.4), (1.0, 0.0)),
            lambda: _three_token_directions((0.5, 1.0, 0.2), (1.0, -0.2), (1.0, -1.0)),
        ),
        unneeded={
            "smallest score lead over neighbours of p": (
                "Not needed: whatever p's neighbours score, its excess risk is of size exp(-R margin), below q's."
            ),
        },
        note="Its proof of the first part takes neighbour-optimality for optimality over all tokens; large R mends it."
    ),
    Claim("B.lemma8-second-part", lemma8_second, "sampled", about="a better neighbour, smaller risk at large norm",
        example=lambda: _three_token_directions((0.5, 1.0, 0.2), (1.0, -0.2), (1.0, -1.0)),
        outside=(
            _two_neighbours,
            lambda: _three_token_directions((0.5, 1.0, 0.2), (-1.0, -1.0), (1.0, -1.0)),
            lambda: _three_token_directions((0.5, 1.0, 0.2), (1.0, -1.0), (1.0, -0.2)),
            lambda: _three_token_directions((1.0, 0.5, 0.2), (1.0, 0.0), (1.0, 0.4)),
        )),
)  # fmt: skip
