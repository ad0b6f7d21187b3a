"""The max-margin problems in W: when they have a solution, and of what rank."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin import MarginSolution, max_margin
from tokenmargin.problem.attention_problems import cross_attention
from tokenmargin.problem.bilinear import Bilinear
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, above, below, searched, true
from tokenmargin.theory.settings import ProblemInstance

KNOWN = 1e-12  # a smallest singular value below this share of the largest may be rounding: a few eps times the size


def matrix_keys(x: ProblemInstance) -> Bilinear:
    """The keys and queries behind a problem in W."""
    keys = x.problem.keys
    if isinstance(keys, Bilinear):
        return keys
    raise ValueError("this statement is about W; pose the problem by self_attention, cross_attention or with_matrix")


def _least(vectors: Float[Array, "k d"]) -> float:
    """Smallest singular value over the largest; zero where there are more vectors than dimensions."""
    if len(vectors) > vectors.shape[1]:
        return 0.0
    sizes = np.linalg.svd(vectors, compute_uv=False)
    return float(sizes[-1] / sizes[0]) if sizes.size and sizes[0] > 0 else 0.0


def separability(x: ProblemInstance) -> Findings:
    """If `d >= max(T - 1, n)`, then for almost all data, self-attention included, some W separates the optimal tokens.
    (Read with the exceptional set of its proof: the queries are linearly independent, and so are the differences of the
    optimal token to the others of an input. Then `W' z_i` is free, and each input separable by itself.)"""
    keys, n = matrix_keys(x), x.problem.n
    tokens, mask, inputs = keys.keys.laid_out, x.problem.mask, np.arange(n)
    apart = tokens[inputs, x.best][:, None] - tokens
    others = mask & (np.arange(x.problem.T) != x.best[:, None])
    independent = [_least(apart[i, others[i]]) for i in inputs if others[i].any()]
    q, d = keys.queries.shape[1], keys.keys.dimension
    hypotheses = (
        above("dimensions of the queries", q, n),
        above("dimensions of the keys", d, int(others.sum(axis=1).max())),
        above("independence of the queries", _least(keys.queries), KNOWN, strict=True),
        above("independence of the differences of tokens", min(independent), KNOWN, strict=True),
    )
    solution = max_margin(x.problem, x.best)
    separable = true("the optimal tokens are separable", solution.is_optimal)
    return Findings(hypotheses, (separable if solution.status == "infeasible" else searched(separable),))


def _outside_span(x: ProblemInstance, solution: MarginSolution) -> tuple[float, int]:
    """Share of W across the span of the queries, and its rank to the root of the certificate's gap."""
    W = x.problem.as_matrix(solution.vector)
    _, sizes, rows = np.linalg.svd(matrix_keys(x).queries, full_matrices=False)
    basis = rows[sizes > KNOWN * sizes[0]]
    across = float(np.linalg.norm(W - basis.T @ (basis @ W)) / np.linalg.norm(W))
    values = np.linalg.svd(W, compute_uv=False)
    return across, int((values > 1e-3 * values[0]).sum())


def rank(x: ProblemInstance) -> Findings:
    """Every solution of the max-margin problem in W, in the Frobenius norm or in the nuclear norm, has its columns in
    the span of the queries, and so a rank of at most n. (The solutions found, one for each norm. Their certificates
    allow a gap of 1e-7 and 1e-8, whose root bounds what they have outside; singular values are counted above 1e-3.)"""
    found = [max_margin(x.problem, x.alpha), max_margin(x.problem, x.alpha, norm="nuclear")]
    hypotheses = (true("alpha is separable", found[0].is_optimal),)
    if not all(solution.is_optimal for solution in found):
        return Findings(hypotheses, ())
    conclusion = []
    for solution, name in zip(found, ("Frobenius", "nuclear"), strict=True):
        across, count = _outside_span(x, solution)
        conclusion.append(below(f"{name}: share outside the span of the queries", across, 0, tolerance=1e-3))
        conclusion.append(below(f"{name}: rank", count, x.problem.n))
    return Findings(hypotheses, tuple(conclusion))


def drawn(seed: int, n: int, T: int, d: int, *, name: str = "", **options: object) -> ProblemInstance:
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


def _between() -> ProblemInstance:
    """The optimal token is the middle of the two others."""
    tokens = [[[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0]]]
    return ProblemInstance(cross_attention(tokens, [[1.0, 0.0]], [1], scores=[[1.0, 0.0, 0.0]]), "the middle token")


CLAIMS = (
    Claim("C.separability", separability, "bounded", about="d >= max(T - 1, n): W separates any optimal tokens",
        example=lambda: drawn(0, 3, 4, 3), outside=(_one_query_two_wishes, _between),
        unneeded={
            "dimensions of the queries": "Independent queries are at most as many as their dimensions.",
            "dimensions of the keys": "Independent differences are at most as many as their dimensions.",
        }),
    Claim("C.rank", rank, "bounded", about="max-margin W has its columns in the span of the queries: rank at most n",
        example=lambda: drawn(1, 2, 3, 4), unneeded={"alpha is separable": NO_SUBJECT}),
)  # fmt: skip
