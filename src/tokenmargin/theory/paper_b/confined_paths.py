"""No other limits: Theorems 4 and 7 of paper B, on regularisation paths confined to a cone."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.margin import max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import angle, is_locally_optimal
from tokenmargin.theory.claim import Claim, Findings, Slack, above, true
from tokenmargin.theory.instances import ProblemInstance
from tokenmargin.theory.paper_b.excess import signed_excess
from tokenmargin.theory.paper_b.local_cone import cone

__all__ = ["CLAIMS"]

HALF_ANGLE = 0.1
"""Half-angle of the cones that local regularisation paths are confined to."""


def theorem4(x: ProblemInstance) -> Findings:
    """A unit vector q that is no locally optimal max-margin direction is not the limit of its local regularisation
    path: with p confined to a cone around q and |p| >= R_0, either the minimisers stay bounded or their direction does
    not converge to q. (Cone of half-angle 0.1, R_0 = 10.)"""
    q = x.sphere(1, x.rng)[0] if x.q is None else x.q / x.problem.keys.norm(x.q)
    apart = [_apart(x, q, top) for top in (1e2, 1e3)]
    return Findings(
        hypotheses=(true("q is no LMM direction", not _is_lmm(x, q)), *_generic(x, q)),
        conclusion=tuple(
            above(f"|p(R)/R - q| at R = {top:g}", distance, HALF_ANGLE / 4)
            for top, distance in zip((1e2, 1e3), apart, strict=True)
        ),
    )


def theorem7(x: ProblemInstance) -> Findings:
    """With distinct scores and keys in general position, no unit vector but the locally optimal max-margin directions
    is the limit of its local regularisation path. (Twelve random vectors, one that ties two tokens, and q if given.)"""
    keys = x.problem.keys
    first, second = keys.index[0, :2]
    tied = keys.differences(np.array([first]), np.array([second]))[0]
    across = x.sphere(1, x.rng)[0]
    if len(tied) == keys.dimension:
        across = across - keys.inner(across, tied) / keys.inner(tied, tied) * tied
    candidates = [*x.sphere(12, x.rng), *([] if x.q is None else [x.q / keys.norm(x.q)])]
    if float(keys.norm(across)) > 1e-9:  # on a line nothing is tied
        candidates.append(across / keys.norm(across))
    apart = min(_apart(x, q, 1e3) for q in candidates)
    return Findings(
        hypotheses=(true("none is an LMM direction", not any(_is_lmm(x, q) for q in candidates)), *_generic(x, tied)),
        conclusion=(above("smallest |p(R)/R - q| at R = 1000", apart, HALF_ANGLE / 4),),
    )


def _generic(x: ProblemInstance, q: Float[Array, " D"]) -> tuple[Slack, Slack]:
    return (
        above("smallest difference of two scores of an input", _score_gap(x.problem), 0, strict=True),
        true("keys in general position", _general_position(x.problem, _selected_by(x, q))),
    )


def _apart(x: ProblemInstance, q: Float[Array, " D"], top: float) -> float:
    """`|p(R)/R - q|` for the local regularisation path at R = `top`."""
    mu = 2 * np.sin(HALF_ANGLE / 2) ** 2
    directions = np.concatenate([q[None], cone(x, q, mu, 2000, x.rng)])
    return float(x.problem.keys.norm(_confined(x, directions, top) / top - q))


def _selected_by(x: ProblemInstance, q: Float[Array, " D"]) -> Int[Array, " n"]:
    return np.asarray(x.problem.keys.logits(q).argmax(axis=1))


def _is_lmm(x: ProblemInstance, q: Float[Array, " D"]) -> bool:
    alpha = _selected_by(x, q)
    solution = max_margin(x.problem, alpha)
    aligned = solution.is_optimal and float(angle(x.problem.keys, q, solution.vector)) < 1e-7
    return aligned and is_locally_optimal(x.problem, solution.vector, alpha)


def _confined(x: ProblemInstance, directions: Float[Array, "k D"], top: float) -> Float[Array, " D"]:
    """The best point of the cone with length between 10 and `top`, over a fine grid.

    Risks are compared by `L - L_star`, sign and logarithm, with L_star the risk of selecting what the cone's axis
    selects: where the cone selects one thing, differences far below rounding still count.
    """
    alpha = _selected_by(x, directions[0])
    candidates = [(r, *signed_excess(x, r * directions, alpha)) for r in np.geomspace(10, top, 25)]
    best = min(
        (float(sign[k]), float(sign[k] * log[k]), -r, k)  # of equal risks the longest p: it may only be rounding
        for r, sign, log in candidates
        for k in [int(np.lexsort((sign * log, sign))[0])]
    )
    return np.asarray(-best[2] * directions[best[3]])


def _score_gap(problem: TokenProblem) -> float:
    rows = (np.sort(row[here]) for row, here in zip(problem.scores, problem.mask, strict=True))
    return float(min(np.diff(row).min(initial=np.inf) for row in rows))


def _general_position(problem: TokenProblem, alpha: Int[Array, " n"], most: int = 3000) -> bool:
    """Theorem 7's conditions on the differences `k_it - k_{i alpha_i}`: any d of them are independent, and the vector
    of ones is not in the range of any d + 1. Tried on all subsets, or on the first `most`."""
    others = problem.mask.copy()
    others[np.arange(problem.n), alpha] = False
    token = np.argwhere(others)
    index = problem.keys.index
    rows = problem.keys.differences(index[token[:, 0], token[:, 1]], index[token[:, 0], alpha[token[:, 0]]])
    d = int(np.linalg.matrix_rank(rows))
    for chosen in itertools.islice(itertools.combinations(range(len(rows)), d), most):
        if np.linalg.matrix_rank(rows[list(chosen)]) < d:
            return False
    for chosen in itertools.islice(itertools.combinations(range(len(rows)), d + 1), most):
        system = rows[list(chosen)]
        ones = np.ones(len(system))
        if np.abs(system @ np.linalg.lstsq(system, ones, rcond=None)[0] - ones).max() < 1e-9:
            return False
    return True


def _apart_tokens(q: tuple[float, ...], name: str) -> ProblemInstance:
    """Three tokens in the plane with distinct scores and keys in general position; the second is locally optimal."""
    keys = [[[-0.8, 1.0, 0.0], [1.0, 0.03, 0.0], [0.02, -0.05, 0.0]]]
    return ProblemInstance(TokenProblem.of(keys, [1], scores=[[1.0, 0.9, 0.0]]), name, q=np.array(q))


def _at_lmm() -> ProblemInstance:
    x = _apart_tokens((1.0, 0.0, 0.0), "")
    vector = max_margin(x.problem, [1]).vector
    return _apart_tokens(tuple(vector.tolist()), "three tokens, q the LMM direction")


def _equal_scores() -> ProblemInstance:
    """Two tokens share the highest score. The path goes to q = (0, 1), which selects the second against the third; it
    is no LMM direction, since the first stands at margin 1 and scores no less."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    return ProblemInstance(problem, "two optimal tokens, q=(0, 1)", q=np.array([0.0, 1.0]))


def _equal_keys() -> ProblemInstance:
    """Two tokens share a key: q = 1 selects both, and their mean score is the higher; no max-margin direction does."""
    problem = TokenProblem.of([[[0.0], [1.0], [1.0]]], [1], scores=[[0.2, 0.9, 0.1]])
    return ProblemInstance(problem, "keys 0, 1, 1, q=1", q=np.array([1.0]))


CLAIMS = (
    Claim(
        "B.theorem4",
        theorem4,
        "sampled",
        about="other directions are no local limits",
        example=lambda: _apart_tokens((1.0, 0.5, 0.0), "three tokens, q=(1, 0.5)"),
        outside=(_at_lmm, _equal_scores, _equal_keys),
    ),
    Claim(
        "B.theorem7",
        theorem7,
        "sampled",
        about="as Theorem 4, any direction",
        example=lambda: _apart_tokens((1.0, 0.5, 0.0), "three tokens"),
        outside=(_equal_scores, _at_lmm, _equal_keys),
        note=(
            "Read literally, general position asks for independence of k_t - k_a and k_a - k_t, which never holds; the "
            "proof uses it for one choice of alpha at a time, as here."
        ),
    ),
)
