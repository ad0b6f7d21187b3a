"""No other limits: Theorems 4 and 7 of paper B, on regularisation paths confined to a cone, and Lemmas 9 and 10."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.dynamics import cone_path
from tokenmargin.margin import max_margin
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, directional_neighbours, is_locally_optimal, leads, selected_tokens
from tokenmargin.theory.claim import Claim, Findings, above, below, seen, true
from tokenmargin.theory.paper_b.assumptions import general_position, rank_of_vectors
from tokenmargin.theory.settings import ProblemInstance

WIDTH = 0.005
"""The cone's epsilon: directions of cosine at least 1 - 0.005 with q, a half-angle of 0.1."""
RADII = (10.0, 1e2, 1e3, 1e4)
"""R_0, and the largest norms that the path is followed to."""
RESOLVED = 1e-6
"""Directions of a followed path are known to about a hundredth of this."""
SAME = 1e-7
"""Two directions closer than this are one: the certificate of a max-margin solution says no more."""


def theorem4(x: ProblemInstance) -> Findings:
    """A unit vector q that is no locally optimal max-margin direction is not the limit of its local regularisation
    path, if scores are distinct and keys in general position: with p confined to `cone_eps(q)` and |p| >= R_0, either
    the minimisers stay bounded, or their direction does not converge to q; in either case p(R)/R does not. (eps =
    0.005, R_0 = 10; q is given, or drawn. Followed to R = 10^4: a path that goes to q comes nearer with every
    decade.)"""
    return _path_findings(x, x.sphere(1, x.rng)[0] if x.q is None else x.q / x.problem.keys.norm(x.q))


def theorem7(x: ProblemInstance) -> Findings:
    """Theorem 4, with general position spelt out. (q is given, or one that ties two tokens of the first input where the
    keys leave room for one: case B of the proof.)"""
    return _path_findings(x, _tying_direction(x) if x.q is None else x.q / x.problem.keys.norm(x.q))


def _tying_direction(x: ProblemInstance) -> Float[Array, " D"]:
    """A random unit vector orthogonal to the difference of two tokens, or any on a line."""
    keys, across = x.problem.keys, x.sphere(1, x.rng)[0]
    one, two = keys.index[int(x.problem.mask.sum(axis=1).argmax()), :2]
    weights = np.zeros(keys.n_vectors)
    weights[one] += 1.0
    weights[two] -= 1.0
    tied = keys.combine(weights)
    length = float(keys.inner(tied, tied))
    beside = across - keys.inner(across, tied) / length * tied if length > 0 else across
    size = float(keys.norm(beside))
    return np.asarray(beside / size if size > SAME else across)


def _path_findings(x: ProblemInstance, q: Float[Array, " D"]) -> Findings:
    """The findings of Theorems 4 and 7 for a unit vector q."""
    problem = x.problem
    alpha = np.asarray(problem.keys.logits(q).argmax(axis=1))
    hypotheses = (
        true("q is no LMM direction", not _is_lmm(x, q, alpha)),
        above("smallest difference of two scores of an input", _score_gap(problem), 0, strict=True),
        general_position(problem, alpha),
    )
    early, late = _distances(x, q)
    decide = "following the path farther, or a narrower cone"
    return Findings(
        hypotheses,
        (
            seen(above(f"|p(R)/R - q| at R = {RADII[-1]:g}", late, RESOLVED), decide),
            seen(above("... over the same at a tenth of R", late / early if early > RESOLVED else 0.0, 0.5), decide),
        ),
    )


def _distances(x: ProblemInstance, q: Float[Array, " D"]) -> tuple[float, float]:
    """`|p(R)/R - q|` for the local regularisation path at the last two radii."""
    keys = x.problem.keys
    if rank_of_vectors(keys) > 1:
        points = cone_path(x.objective, q, RADII, width=WIDTH, rng=x.rng, starts=1).points[-2:]
    else:  # the cone is a ray
        points = np.stack([_on_the_ray(x, q, top) for top in RADII[-2:]])
    early, late = keys.norm(points / np.array(RADII[-2:])[:, None] - q)
    return float(early), float(late)


def _on_the_ray(x: ProblemInstance, q: Float[Array, " D"], top: float) -> Float[Array, " D"]:
    """The point of least risk on a ray, of length between R_0 and `top`; of equal risks the longest."""
    alpha = np.asarray(x.problem.keys.logits(q).argmax(axis=1))
    lengths = np.geomspace(RADII[0], top, 200)[::-1]
    return np.asarray(min(lengths, key=lambda r: x.risk.excess_rank(r * q, alpha)) * q)


def _is_lmm(x: ProblemInstance, q: Float[Array, " D"], alpha: Int[Array, " n"]) -> bool:
    solution = max_margin(x.problem, alpha)
    aligned = solution.is_optimal and float(angle(x.problem.keys, q, solution.vector)) < SAME
    return aligned and is_locally_optimal(x.problem, solution.vector, alpha)


def _score_gap(problem: TokenProblem) -> float:
    rows = (np.sort(row[here]) for row, here in zip(problem.scores, problem.mask, strict=True))
    return float(min(np.diff(row).min(initial=np.inf) for row in rows))


def lemma9(x: ProblemInstance) -> Findings:
    """If a unit vector p selects one token of every input and all its directional neighbours score higher than the
    tokens they neighbour, then the risk along p lies below its own limit from some norm on: `L(R p) < L_star` for all
    large R. (p is given, or drawn; R in steps up to 3000 over the distance of the next margin.)"""
    problem, keys = x.problem, x.problem.keys
    p = x.sphere(1, x.rng)[0] if x.p is None else x.p / keys.norm(x.p)
    alpha, near = np.asarray(keys.logits(p).argmax(axis=1)), directional_neighbours(keys, p)
    behind = problem.scores - problem.scores[np.arange(problem.n), alpha][:, None]
    hypotheses = (
        below("most tokens that p selects in an input", selected_tokens(keys, p).sum(axis=1).max(), 1),
        above("smallest lead of a neighbour over the selected token", behind[near].min(initial=np.inf), 0, strict=True),
    )
    ahead = leads(keys, p, alpha)
    margin, beyond = float(ahead.min()), ahead[np.isfinite(ahead) & ~near]
    next_ = float((beyond - margin).min(initial=margin if margin > 0 else 1.0))
    signs = [x.risk.excess(r * p, alpha)[1] for r in np.geomspace(30, 3000, 40) / max(next_, 1e-9)]
    wrong = int(np.sum(np.array(signs[20:]) >= 0))
    return Findings(hypotheses, (seen(below("radii of the last 20 at which L(R p) >= L_star", wrong, 0)),))


def lemma10(x: ProblemInstance) -> Findings:
    """With keys in general position, a direction q has at most d directional neighbours. (q is given; or the max-margin
    direction of alpha, which has as many neighbours as a direction can; or drawn.)"""
    problem = x.problem
    solution = max_margin(problem, x.alpha)
    drawn = solution.vector if solution.is_optimal else x.sphere(1, x.rng)[0]
    q = drawn if x.q is None else x.q
    alpha = np.asarray(problem.keys.logits(q).argmax(axis=1))
    number = int(directional_neighbours(problem.keys, q).sum())
    d = problem.keys.dimension if isinstance(problem.keys, Coordinates) else rank_of_vectors(problem.keys)
    return Findings((general_position(problem, alpha),), (below("directional neighbours", number, d),))


def _three_tokens(q: tuple[float, ...], name: str) -> ProblemInstance:
    """Three tokens in the plane with distinct scores and keys in general position; the second is locally optimal."""
    keys = [[[-0.8, 1.0], [1.0, 0.03], [0.02, -0.05]]]
    return ProblemInstance(TokenProblem.of(keys, [1], scores=[[1.0, 0.9, 0.0]]), name, q=np.array(q))


def _at_lmm() -> ProblemInstance:
    x = _three_tokens((1.0, 0.0), "")
    vector = max_margin(x.problem, [1]).vector
    return replace(x, name="three tokens, q the LMM direction", q=vector)


def _equal_scores() -> ProblemInstance:
    """Two tokens share the highest score. The path goes to q = (0, 1), which selects the second against the third; it
    is no LMM direction, since the first stands at margin 1 and scores no less."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    return ProblemInstance(problem, "two optimal tokens, q=(0, 1)", q=np.array([0.0, 1.0]))


def _equal_keys() -> ProblemInstance:
    """Two tokens share a key: q = 1 selects both, and their mean score is the higher; no max-margin direction does."""
    problem = TokenProblem.of([[[0.0], [1.0], [1.0]]], [1], scores=[[0.2, 0.9, 0.1]])
    return ProblemInstance(problem, "keys 0, 1, 1, q=1", q=np.array([1.0]))


def _better_neighbour(scores: tuple[float, float, float], name: str) -> ProblemInstance:
    """p = (1, 0) selects token 1; its neighbour is token 2, and token 3 is farther."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 0.5], [-1.0, 0.0]]], [1], scores=[scores])
    return ProblemInstance(problem, name, p=np.array([1.0, 0.0]))


def _on_a_square() -> ProblemInstance:
    """Token 1 against three tokens on a line at the same distance: not in general position."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, -1.0]]], [1], scores=[[3.0, 2.0, 1.0, 0.0]])
    return ProblemInstance(problem, "three neighbours on a line, q=(1, 0)", q=np.array([1.0, 0.0]))


CLAIMS = (
    Claim("B.theorem4", theorem4, "sampled", about="other directions are no local limits",
        example=lambda: _three_tokens((1.0, 0.5), "three tokens, q=(1, 0.5)"),
        outside=(_at_lmm, _equal_scores, _equal_keys)),
    Claim("B.theorem7", theorem7, "sampled", about="as Theorem 4, general position spelt out",
        example=lambda: replace(_three_tokens((1.0, 0.0), "three tokens, q ties two"), q=None),
        outside=(_at_lmm, _equal_scores, _equal_keys),
        note=(
            "General position is read with alpha fixed, as everywhere in the paper. Were alpha_i free in it, k_t - k_a "
            "and k_a - k_t would both be rows and no data would be in general position."
        )),
    Claim("B.lemma9", lemma9, "sampled", about="all neighbours better: the risk nears its limit from below",
        example=lambda: _better_neighbour((0.5, 1.0, 0.0), "the neighbour scores higher"),
        outside=(lambda: _better_neighbour((0.5, 0.2, 1.0), "the neighbour scores lower"),)),
    Claim("B.lemma10", lemma10, "bounded", about="at most d directional neighbours",
        example=lambda: _three_tokens((1.0, 0.5), "three tokens, q=(1, 0.5)"), outside=(_on_a_square,)),
)  # fmt: skip
