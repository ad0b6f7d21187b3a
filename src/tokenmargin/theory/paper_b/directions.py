"""Which direction is better: Lemmas 2, 8 and 11 of paper B."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import key_map
from tokenmargin.problem.instances import random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import directional_neighbours, leads, optimal_tokens, selected_tokens
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, equal, seen, true
from tokenmargin.theory.paper_b.assumptions import rank_of_vectors
from tokenmargin.theory.settings import ProblemInstance

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
    feasible = true("ATT-SVM is feasible for the optimal tokens", solution.is_optimal)
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
    if x.p is None and not max_margin(problem, x.alpha).is_optimal:
        return Findings((true("alpha is separable", False),), ())
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
