"""The max-margin problems in W, when they have a solution and of what rank; where W goes, and where K and Q go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import regularisation_path
from tokenmargin.margin import MarginSolution, max_margin
from tokenmargin.objective.factored import FactoredObjective
from tokenmargin.problem.attention_problems import cross_attention
from tokenmargin.problem.instances import figure8
from tokenmargin.problem.matrix_geometry import Bilinear
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import leads
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, above, below, seen
from tokenmargin.theory.evidence import has_solution
from tokenmargin.theory.paper_b.gradients import beyond_rounding, equal_scores_problem
from tokenmargin.theory.paper_b.prompt_limits import (
    one_optimum,
    path_to,
    start_to_local,
    theorem2,
    theorem2_direction,
    theorem3,
)
from tokenmargin.theory.settings import ProblemInstance

FARTHER = "following the path to larger norms"
KNOWN = 1e-12  # a smallest singular value below this share of the largest may be rounding: a few eps times the size


def matrix_keys(x: ProblemInstance) -> Bilinear:
    """The keys and queries behind a problem in W."""
    keys = x.problem.keys
    if isinstance(keys, Bilinear):
        return keys
    raise ValueError("this statement is about W; pose the problem by self_attention, cross_attention or with_matrix")


def _least_singular_value(vectors: Float[Array, "k d"]) -> float:
    """Smallest singular value over the largest, of vectors scaled to length 1, since lengths do not matter; zero where
    there are more of them than dimensions, or one is zero."""
    if len(vectors) > vectors.shape[1] or not vectors.any(axis=1).all():
        return 0.0
    sizes = np.linalg.svd(_units(vectors), compute_uv=False)
    return float(sizes[-1] / sizes[0])


def _units(vectors: Float[Array, "k d"]) -> Float[Array, "k d"]:
    """Vectors scaled to length 1, zeros as they are; in two steps, as squares of lengths may not be numbers."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    rows = vectors / np.where(largest > 0, largest, 1.0)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0))


def separability(x: ProblemInstance) -> Findings:
    """If `d >= max(T - 1, n)`, then for almost all data, self-attention included, some W separates the optimal tokens.
    (Read with the exceptional set of its proof: the queries are linearly independent, and so are the differences of the
    optimal token to the others of an input. Then `W' z_i` is free, and each input separable by itself.)"""
    keys, n = matrix_keys(x), x.problem.n
    tokens, mask, inputs = keys.keys.tokens, x.problem.mask, np.arange(n)
    apart = tokens[inputs, x.best][:, None] - tokens
    others = mask & (np.arange(x.problem.T) != x.best[:, None])
    independent = [_least_singular_value(apart[i, others[i]]) for i in inputs if others[i].any()]
    q, d = keys.queries.shape[1], keys.keys.dimension
    hypotheses = (
        above("dimensions of the queries", q, n),
        above("dimensions of the keys", d, int(others.sum(axis=1).max())),
        above("independence of the queries", _least_singular_value(keys.queries), KNOWN, strict=True),
        above("independence of the differences of tokens", min(independent), KNOWN, strict=True),
    )
    solution = max_margin(x.problem, x.best)
    return Findings(hypotheses, (has_solution("the optimal tokens are separable", solution),))


def _outside_span(x: ProblemInstance, solution: MarginSolution) -> tuple[float, int]:
    """Share of W across the span of the queries, and its rank to the root of the certificate's gap."""
    W = x.problem.as_matrix(solution.vector)
    _, sizes, rows = np.linalg.svd(_units(matrix_keys(x).queries), full_matrices=False)
    basis = rows[sizes > KNOWN * sizes[0]]
    across = float(np.linalg.norm(W - basis.T @ (basis @ W)) / np.linalg.norm(W))
    values = np.linalg.svd(W, compute_uv=False)
    return across, int((values > 1e-3 * values[0]).sum())


def rank_of_solutions(x: ProblemInstance) -> Findings:
    """Every solution of the max-margin problem in W, in the Frobenius norm or in the nuclear norm, has its columns in
    the span of the queries, and so a rank of at most n. (The solutions found, one for each norm. Their certificates
    allow a gap of 1e-7 and 1e-8, whose root bounds what they have outside; singular values are counted above 1e-3.)"""
    found = [max_margin(x.problem, x.alpha), max_margin(x.problem, x.alpha, norm="nuclear")]
    hypotheses = (has_solution("alpha is separable", found[0]),)
    if not all(solution.is_optimal for solution in found):
        return Findings(hypotheses)
    conclusion = []
    for solution, name in zip(found, ("Frobenius", "nuclear"), strict=True):
        across, count = _outside_span(x, solution)
        conclusion.append(below(f"{name}: share outside the span of the queries", across, 0, tolerance=1e-3))
        conclusion.append(below(f"{name}: rank", count, x.problem.n))
    return Findings(hypotheses, tuple(conclusion))


def random_matrix_problem(seed: int, n: int, T: int, d: int, *, name: str = "", **options: object) -> ProblemInstance:
    """Random tokens, queries and head."""
    rng = np.random.default_rng(seed)
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    problem = cross_attention(tokens, queries, np.ones(n), head=rng.standard_normal(d))
    return ProblemInstance(problem, name or f"random, d = {d}, seed {seed}", **options)  # type: ignore[arg-type]


def _one_query_two_wishes() -> ProblemInstance:
    """Two inputs of the same tokens and query, with opposite optimal tokens."""
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0]]] * 2)
    problem = cross_attention(tokens, [[1.0, 0.0], [1.0, 0.0]], [1, -1], head=[1.0, 0.0])
    return ProblemInstance(problem, "one query, opposite labels")


def _middle_token() -> ProblemInstance:
    """The optimal token is the middle of the two others."""
    tokens = [[[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0]]]
    return ProblemInstance(cross_attention(tokens, [[1.0, 0.0]], [1], scores=[[1.0, 0.0, 0.0]]), "the middle token")


def frobenius_path(x: ProblemInstance) -> Findings:
    """If the optimal tokens are unique and W can separate them, the minimiser of the risk over `|W|_F <= R` converges
    in direction to the max-margin W in the Frobenius norm as R grows. (The lowest minimum that continuation from many
    starts finds, at |W| up to 1000 times that of the solution.)"""
    matrix_keys(x)
    return path_to(x, max_margin(x.problem, x.best), "the max-margin W")


def nuclear_path(x: ProblemInstance) -> Findings:
    """If the optimal tokens are unique and W can separate them, let K and Q minimise the risk over
    `|K|_F^2 + |Q|_F^2 <= 2 R`, with as many columns as the smaller side of W. As R grows, the distance of `Q K' / R` to
    the max-margin solutions in the nuclear norm, divided by that norm, goes to zero. (Solutions need not be unique;
    their set is approached if and only if the margin over the nuclear norm approaches the largest. At |W|_* of 100 and
    1000 times that of a solution. With fewer columns the statement has a rank constraint, which is not checked.)"""
    matrix_keys(x)
    solution = max_margin(x.problem, x.best, norm="nuclear")
    hypotheses = one_optimum(x, solution)
    if not solution.is_optimal:
        return Findings(hypotheses)
    objective = FactoredObjective(x.problem, x.loss)
    left, sizes, right = np.linalg.svd(x.problem.as_matrix(solution.vector), full_matrices=False)
    root = np.sqrt(sizes)
    guide = objective.point(right.T * root, left * root)
    guide = guide + 0.05 * np.linalg.norm(guide) * objective.random_start(1 / np.sqrt(guide.size), rng=x.rng)
    radii = np.sqrt(2 * sizes.sum() * np.array([10.0, 100.0, 1000.0]))
    try:
        path = regularisation_path(objective, radii, rng=x.rng, starts=1, directions=guide[None])
        short = [_missing_margin(x, objective, theta, solution) for theta in path.points[1:]]
    except ValueError:  # tokens of one score: no choice of one per input is best, and there is no such path
        short = [np.inf, np.inf]
    exponent = float(np.log10(short[1] / short[0])) if 1e-9 < short[1] < np.inf and short[0] > 0 else -1.0
    return Findings(
        hypotheses,
        (
            seen(below("1 - share of the largest nuclear margin, at 1000 times the solution", short[1], 1e-2), FARTHER),
            seen(below("its exponent in R, last decade", exponent, -0.8), FARTHER),
        ),
    )


def _missing_margin(
    x: ProblemInstance, objective: FactoredObjective, theta: np.ndarray, solution: MarginSolution
) -> float:
    """1 - share of the largest nuclear margin that the W of these factors has; infinite where they ran away."""
    if not np.isfinite(theta).all():
        return np.inf
    W = objective.matrix(theta)
    margin = float(leads(x.problem.keys, W.ravel(), x.best).min())
    return 1 - margin / float(np.linalg.norm(W, "nuc")) / solution.margin


def unbounded_growth(x: ProblemInstance) -> Findings:
    """If W can separate the optimal tokens and the other tokens of every input score alike, descent on W with a step of
    at most the inverse smoothness grows without bound from any start. (The statement for p, with the matrices `z k'`
    for keys: three starts, 2000 steps of descent, and gradient flow from the same starts.)"""
    matrix_keys(x)
    found = theorem2(x)
    return Findings(found.hypotheses, found.conclusion[:2])


def global_convergence(x: ProblemInstance) -> Findings:
    """If there is one input, W can separate its optimal token and all its other tokens score alike, no W is stationary:
    the risk falls along the max-margin W everywhere, and descent on W with a step of at most the inverse smoothness
    converges to it in direction from any start. (Global convergence, in the form of the statement for p; that the risk
    falls is tried at 200 random W of lengths up to 1000, the direction on flows from three starts.)"""
    matrix_keys(x)
    found = theorem2_direction(x)
    solution = max_margin(x.problem, x.best)
    if not solution.is_optimal:
        return found
    points = x.sphere(200, x.rng) * 10 ** x.rng.uniform(-2, 3, (200, 1))
    along = x.objective.descent(points).direction @ (solution.vector * solution.margin)
    falls = above("least cosine between descent and the max-margin W", float(along.min()), 0, strict=True)
    return Findings(found.hypotheses, (beyond_rounding(x, falls, solution.vector), *found.conclusion))


def local_convergence(x: ProblemInstance) -> Findings:
    """If the tokens alpha are locally optimal (W can separate them, and each outscores its support vectors), there are
    a cone around their max-margin W and a radius, beyond which descent on W started in the cone stays, grows without
    bound and converges in direction to that W. (The statement for p, with the matrices `z k'` for keys.)"""
    matrix_keys(x)
    return theorem3(x)


def _two_optima() -> ProblemInstance:
    """Two tokens of the highest score, of which the second is cheaper to select."""
    tokens = [[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]]
    problem = cross_attention(tokens, [[1.0, 0.5]], [1], scores=[[1.0, 1.0, 0.0]])
    return ProblemInstance(problem, "two optimal tokens in W")


def _equal_others() -> ProblemInstance:
    """Two inputs of random tokens and queries, in each of which all but the optimal token score 0."""
    rng = np.random.default_rng(3)
    tokens, queries = rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 2))
    return ProblemInstance(
        cross_attention(tokens, queries, [1, -1], scores=[[1, 0, 0], [0, 1, 0]]), "others score alike", norm=1e3
    )


def _one_input() -> ProblemInstance:
    """One input of random tokens, of which all but the optimal one score 0."""
    keys = np.random.default_rng(5).standard_normal((1, 4, 3))
    return ProblemInstance(
        TokenProblem.of(keys, [1], scores=[[0.0, 1.0, 0.0, 0.0]]), "one input, others alike", norm=1e3
    )


def _of_one_query(x: ProblemInstance) -> ProblemInstance:
    """The same problem for a W of one row."""
    return replace(x, problem=x.problem.with_matrix(np.ones(1)), name=f"{x.name}, in W")


def _nothing_to_gain() -> ProblemInstance:
    """Two tokens of one score: the gradient is zero everywhere."""
    return _of_one_query(equal_scores_problem())


def _behind_a_neighbour() -> ProblemInstance:
    """alpha scores less than the token beside it, which its max-margin direction holds at bay."""
    tokens = [[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]
    problem = cross_attention(tokens, [[1.0, 1.0]], [1], scores=[[0.0, 1.0, 0.5]])
    return ProblemInstance(problem, "alpha behind its neighbours, in W", selected=(0,))


CLAIMS = (
    Claim("C.separability", separability, "bounded", about="d >= max(T - 1, n): W separates any optimal tokens",
        example=lambda: random_matrix_problem(0, 3, 4, 3), outside=(_one_query_two_wishes, _middle_token),
        unneeded={
            "dimensions of the queries": "Independent queries are at most as many as their dimensions.",
            "dimensions of the keys": "Independent differences are at most as many as their dimensions.",
        }),
    Claim("C.rank", rank_of_solutions, "bounded",
        about="max-margin W has its columns in the span of the queries: rank at most n",
        example=lambda: random_matrix_problem(1, 2, 3, 4), unneeded={"alpha is separable": NO_SUBJECT}),
    Claim("C.frobenius-path", frobenius_path, "sampled", about="regularisation path of W to the Frobenius max-margin",
        example=lambda: random_matrix_problem(2, 2, 2, 2), outside=(_two_optima,),
        unneeded={"the optimal tokens are separable": NO_SUBJECT}),
    Claim("C.nuclear-path", nuclear_path, "sampled", about="regularisation path of K and Q to the nuclear max-margin",
        example=lambda: random_matrix_problem(2, 2, 2, 2), outside=(_two_optima,),
        unneeded={"the optimal tokens are separable": NO_SUBJECT}),
    Claim("C.growth", unbounded_growth, "sampled", about="others score alike: descent on W grows without bound",
        example=_equal_others, outside=(_nothing_to_gain,), unneeded={"the optimal tokens are separable": NO_SUBJECT}),
    Claim("C.global", global_convergence, "sampled",
        about="one input, others score alike: descent on W to the max-margin W",
        example=lambda: _of_one_query(_one_input()),
        outside=(
            _nothing_to_gain,
            lambda: _of_one_query(start_to_local()),
            lambda: _of_one_query(ProblemInstance(figure8(), "fig8")),
        ),
        unneeded={"the optimal tokens are separable": NO_SUBJECT}),
    Claim("C.local", local_convergence, "sampled", about="local convergence of descent on W",
        example=lambda: random_matrix_problem(4, 1, 3, 2, name="random, in W"), outside=(_behind_a_neighbour,),
        unneeded={"alpha is separable": NO_SUBJECT}),
)  # fmt: skip
