"""Which direction is better: Lemmas 2, 8 and 14 of paper B."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.special import logsumexp

from tokenmargin.geometry import Coordinates
from tokenmargin.instances import random_problem
from tokenmargin.margin import max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import margins, optimal_tokens
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, equal, true
from tokenmargin.theory.instances import ProblemInstance
from tokenmargin.theory.paper_b.excess import signed_excess

__all__ = ["CLAIMS", "log_outside"]


def lemma2(x: ProblemInstance) -> Findings:
    """If all labels are +1, every input has one optimal token, the keys are `k = W x` and v lies in the range of W'
    (as when W has full rank), then the optimal tokens can be separated: the GMM exists."""
    problem = x.problem
    unlinear, outside = _key_map(problem)
    return Findings(
        hypotheses=(
            equal("smallest label", problem.labels.min(), 1, tolerance=0),
            below("most optimal tokens in an input", optimal_tokens(problem).sum(axis=1).max(), 1),
            below("keys minus the best W x, relative", unlinear, 1e-10),
            below("part of v outside the range of W', relative", outside, 1e-10),
        ),
        conclusion=(true("ATT-SVM is feasible for the optimal tokens", max_margin(problem, x.alpha).is_optimal),),
    )


def _key_map(problem: TokenProblem) -> tuple[float, float]:
    """How far the keys are from a linear map W of the values, and v (as the values see it) from the range of W'."""
    if not isinstance(problem.keys, Coordinates) or not isinstance(problem.values, Coordinates) or problem.head is None:
        return np.inf, np.inf
    keys, values = problem.keys.tokens[problem.mask], problem.values.tokens[problem.mask]
    transposed = np.linalg.lstsq(values, keys, rcond=None)[0]  # W'
    unlinear = np.linalg.norm(values @ transposed - keys) / np.linalg.norm(keys)
    seen = np.linalg.pinv(values) @ (values @ problem.head)
    missing = seen - transposed @ (np.linalg.pinv(transposed) @ seen)
    return float(unlinear), float(np.linalg.norm(missing) / np.linalg.norm(seen))


def lemma8(x: ProblemInstance) -> Findings:
    """Let unit vectors p and q select the same single tokens, p with the larger margin. If both are neighbour-optimal,
    then `L(R p) < L(R q)` for all large R. If instead q has one neighbour and it scores higher than the selected token,
    then `L(R q) < L(R p)` for all large R."""
    problem, keys = x.problem, x.problem.keys
    if x.p is None and not max_margin(problem, x.alpha).is_optimal:
        return Findings((true("alpha is separable", False),), (true("there are directions to compare", False),))
    p, q = _two_directions(x)
    alpha = keys.logits(q).argmax(axis=1)
    of_p, of_q = _Neighbours(problem, p, alpha), _Neighbours(problem, q, alpha)
    better = of_q.lead > 0
    radii = np.geomspace(30, 3000, 40) / max(min(abs(of_p.margin - of_q.margin), of_q.next, of_p.next), 1e-9)
    low, high = (p, q) if better else (q, p)
    winners = [_less(x, r * low, r * high, alpha) for r in radii]
    hypotheses: tuple[Slack, ...] = (
        true("p selects what q selects", bool((keys.logits(p).argmax(axis=1) == alpha).all())),
        above("margin of p minus margin of q", of_p.margin - of_q.margin, 0, strict=True),
    )
    if better:
        hypotheses += (above("smallest score lead over neighbours of p", of_p.lead, 0, strict=True),)
    else:
        hypotheses += (equal("neighbours of q", of_q.number, 1, tolerance=0),)
    return Findings(
        hypotheses,
        (below("radii at which the risks are ordered otherwise, of 40", len(winners) - sum(winners), 0),),
    )


def _two_directions(x: ProblemInstance) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    """The instance's p and q as unit vectors; by default the max-margin direction of alpha, and one beside it."""
    keys = x.problem.keys
    p = max_margin(x.problem, x.alpha).vector if x.p is None else x.p
    p = p / keys.norm(p)
    q = p + 0.2 * x.sphere(1, x.rng)[0] * float(keys.norm(p)) if x.q is None else x.q
    return np.asarray(p), np.asarray(q / keys.norm(q))


class _Neighbours:
    """Directional margin, neighbours and their score leads (Definition 3)."""

    def __init__(self, problem: TokenProblem, u: Float[Array, " D"], alpha: Int[Array, " n"]) -> None:
        ahead = margins(problem, u, alpha)
        others = problem.mask.copy()
        others[np.arange(problem.n), alpha] = False
        lead = problem.scores[np.arange(problem.n), alpha][:, None] - problem.scores
        self.margin = float(ahead[others].min())
        near = others & (ahead <= self.margin + 1e-12 * abs(self.margin))
        self.number = int(near.sum())
        self.lead = float(lead[near].min())
        self.next = float((ahead[others & ~near] - self.margin).min(initial=1.0))


def _less(x: ProblemInstance, one: Float[Array, " D"], other: Float[Array, " D"], alpha: Int[Array, " n"]) -> bool:
    """`L(one) < L(other)`, by sign and logarithm of `L - L_star`."""
    sign, log = signed_excess(x, np.stack([one, other]), alpha)
    first, second = ((s, s * v) for s, v in zip(sign, log, strict=True))
    return bool(first < second)


def lemma14(x: ProblemInstance) -> Findings:
    """If the output is `nu_i (1 - q_i) + Z_i` with `nu_i > 0` and `-C q_max <= Z_i <= (1 - eps) nu_i q_i`, q_i being
    the attention outside O_i, then Assumption D holds: for any Delta, wherever log q_max of p is at most (1 + Delta)
    times that of p' and at most rho(Delta), L(p) < L(p'). (O_i the optimal tokens; Delta = 0.5; 360 points.)"""
    problem, delta = x.problem, 0.5
    optimal = optimal_tokens(problem) if x.optimal is None else x.optimal
    nu = np.where(optimal, problem.scores, np.inf).min(axis=1)
    spread = float((np.where(optimal, problem.scores, -np.inf).max(axis=1) - nu).max())
    outside = np.where(problem.mask & ~optimal, problem.scores, -np.inf).max(axis=1)
    eps = float(1 - (outside / nu).max()) if nu.min() > 0 else 0.0
    rho = -2 * (1 + 1 / delta) * np.log(_spread_of_risk(x, nu, eps)) if eps > 0 else -1.0
    points = np.concatenate([r * x.sphere(60, x.rng) for r in np.geomspace(3, 300, 6)])
    log_q = log_outside(problem, points, optimal)
    excess = np.array([x.objective.log_excess(p) for p in points])
    compared = log_q[:, None] <= np.minimum((1 + delta) * log_q[None, :], rho)
    wrong = compared & (excess[:, None] >= excess[None, :])
    return Findings(
        hypotheses=(
            above("smallest nu_i", nu.min(), 0, strict=True),
            below("spread of scores within O_i", spread, 0),
            above("eps", eps, 0, strict=True),
            above("pairs that Assumption D compares, of those sampled", compared.sum(), 1),
        ),
        conclusion=(below("pairs ordered otherwise", wrong.sum(), 0),),
    )


def _spread_of_risk(x: ProblemInstance, nu: Float[Array, " n"], eps: float) -> float:
    """`Theta = C_+ / C_-` of the proof: the excess risk lies between `C_- q_max` and `C_+ q_max`."""
    scores = x.problem.scores[x.problem.mask]
    largest = np.abs(scores).max()
    low, high = np.sort(np.exp(x.loss.log_slope(np.array([-largest, largest]))))
    return float(high * (max(0.0, -scores.min()) + nu.max()) / (low * eps * nu.min() / x.problem.n))


def log_outside(problem: TokenProblem, points: Float[Array, "k D"], optimal: Array) -> Float[Array, " k"]:
    """`log q_max`: the largest attention on tokens outside O_i, over the inputs."""
    logits = problem.keys.logits(points)
    others = logsumexp(np.where(problem.mask & ~optimal, logits, -np.inf), axis=-1)
    return np.asarray((others - logsumexp(logits, axis=-1)).max(axis=-1))


def _positive(seed: int, n: int, d: int) -> TokenProblem:
    """A random problem with all labels +1 and W = I."""
    base = random_problem(n, 4, d, rng=np.random.default_rng(seed))
    return TokenProblem(base.keys, np.ones(n), head=base.head)


def _line(scores: tuple[float, ...]) -> TokenProblem:
    """Three tokens in the plane with the first at (1, 0)."""
    return TokenProblem.of([[[1.0, 0.0], [0.0, 0.0], [-0.5, 1.0]]], [1], scores=[scores])


def _two_neighbours() -> ProblemInstance:
    """q = (1, 0) has two neighbours, one a little better than the selected token, the other much worse."""
    keys = [[[0.0, 0.0], [-1.0, 0.5], [-1.0, 0.8]]]
    problem = TokenProblem.of(keys, [1], scores=[[0.5, 0.6, -1.0]])
    return ProblemInstance(problem, "q has two neighbours", p=np.array([1.0, -0.3]), q=np.array([1.0, 0.0]))


def _directions(scores: tuple[float, ...], p: tuple[float, float], q: tuple[float, float]) -> ProblemInstance:
    name = f"three tokens, scores {scores}, p={p}, q={q}".replace(", ", ",").replace(",s", ", s").replace(",p", ", p")
    return ProblemInstance(_line(scores), name.replace(",q", ", q"), p=np.array(p), q=np.array(q))


def _chosen(*optimal: bool) -> ProblemInstance:
    """Sets O_i that hold a worse token than they leave out, or tokens of unequal scores."""
    names = ",".join(str(t) for t in np.flatnonzero(optimal))
    return ProblemInstance(_line((1.0, 0.5, -0.2)), f"three tokens, O={names}", optimal=np.array([optimal]))


def _existence(keys: list[list[float]], tokens: list[list[float]], name: str) -> ProblemInstance:
    """One input, label +1, whose optimal token (v = (0, 1)) cannot be separated."""
    problem = TokenProblem.of(np.array([keys], float), [1], values=np.array([tokens], float), head=[0.0, 1.0])
    return ProblemInstance(problem, name)


CLAIMS = (
    Claim(
        "B.lemma2",
        lemma2,
        "bounded",
        about="labels +1: the GMM exists",
        example=lambda: ProblemInstance(_positive(0, 6, 5), "random d=5, labels +1"),
        outside=(
            lambda: ProblemInstance(random_problem(4, 6, 2, rng=np.random.default_rng(0)), "random d=2"),
            lambda: _existence([[0, 1], [-1, 1], [1, 1]], [[0, 1], [-1, 1], [1, 1]], "the optimum between two others"),
            lambda: _existence([[0, 0], [1, 0], [0, 0]], [[0, 0], [0, 1], [0, 2]], "keys no map of the tokens"),
            lambda: _existence([[0, 0], [1, 0], [-1, 0]], [[0, 1], [1, 0], [-1, 0]], "W that kills v"),
        ),
        note="The weaker condition that v lies in the range of W' is the one of its restatement, Lemma 11.",
    ),
    Claim(
        "B.lemma8",
        lemma8,
        "sampled",
        about="larger margin, smaller risk at large norm",
        example=lambda: _directions((1.0, 0.5, 0.2), (1.0, 0.0), (1.0, 0.4)),
        outside=(lambda: _directions((0.0, 0.2, 1.0), (1.0, 0.0), (-0.5, 1.0)),),
        unneeded={
            "smallest score lead over neighbours of p": (
                "Not needed: whatever p's neighbours score, its excess risk is of size exp(-R margin), below q's."
            )
        },
        note="Its proof of the first part takes neighbour-optimality for optimality over all tokens; large R mends it.",
    ),
    Claim(
        "B.lemma8-second-part",
        lemma8,
        "sampled",
        about="a better neighbour, smaller risk at large norm",
        example=lambda: _directions((0.5, 1.0, 0.2), (1.0, -0.2), (1.0, -1.0)),
        outside=(
            _two_neighbours,
            lambda: _directions((0.5, 1.0, 0.2), (-1.0, -1.0), (1.0, -1.0)),
            lambda: _directions((0.5, 1.0, 0.2), (1.0, -1.0), (1.0, -0.2)),
        ),
    ),
    Claim(
        "B.lemma14",
        lemma14,
        "sampled",
        about="mixing others in hurts: Assumption D",
        example=lambda: ProblemInstance(_line((1.0, 0.5, -0.2)), "three tokens"),
        outside=(lambda: _chosen(False, True, False), lambda: _chosen(True, True, False)),
        unneeded={
            "smallest nu_i": "A way to say that O_i leads: only differences of scores matter, as B.theorem1 shows.",
            "pairs that Assumption D compares, of those sampled": "Ours: without such pairs the sample shows nothing.",
        },
    ),
)
