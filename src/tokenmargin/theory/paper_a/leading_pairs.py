"""Which pairs of tokens the gradient is made of at large norm (paper A): Definitions 15 and 16, Lemmas 8 and 17."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.norms import EPS
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import LogisticLoss
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, seen, true
from tokenmargin.theory.settings import EmbeddingInstance


class Choices(NamedTuple):
    """The positions of each sequence in three parts, and how far apart they are.

    - `first`: `S_X(p)` (8), the tokens of largest logit.
    - `second`: `S_X^2(p)` (20), the largest among the others; empty where all are tied.
    - `rest`: `S_X^<(p)` (21).
    - `gap`: the least logit difference from first to second and from second to rest (22); infinite where there are
      no such pairs.
    """

    first: Bool[Array, "n T"]
    second: Bool[Array, "n T"]
    rest: Bool[Array, "n T"]
    gap: float


def choices(problem: TokenProblem, p: Float[Array, " D"], *, tie: float = 0.0) -> Choices:
    """First choices, second choices and the rest of every sequence (Definition 15).

    **Arguments**
    - `tie`: logits closer than this count as equal. The definition means exactly equal; vectors found by a solver tie
      up to its residual.

    >>> problem = TokenProblem.of([[[2.0], [2.0], [1.0], [0.0]]], [1], scores=[[1.0, 0.0, 0.0, 0.0]])
    >>> choices(problem, np.ones(1)).second.tolist()
    [[False, False, True, False]]
    """
    return ranked_choices(np.where(problem.mask, problem.keys.logits(p), -np.inf), tie=tie)


def ranked_choices(logits: Float[Array, "n T"], *, tie: float = 0.0) -> Choices:
    """As `choices`, from logits that are minus infinity where there is no token."""
    visible = np.isfinite(logits)
    top = logits.max(axis=1, keepdims=True)
    first = (logits >= top - tie) & visible
    others = np.where(first, -np.inf, logits)
    best = others.max(axis=1, keepdims=True)
    second = (others >= best - tie) & np.isfinite(others)
    rest = visible & ~first & ~second
    last = np.where(rest, logits, -np.inf).max(axis=1, keepdims=True)
    gaps = np.concatenate(
        [top[np.isfinite(best)] - best[np.isfinite(best)], best[np.isfinite(last)] - last[np.isfinite(last)]]
    )
    return Choices(first, second, rest, float(gaps.min(initial=np.inf)))


def local_optimality(problem: TokenProblem, chosen: Choices) -> float:
    """The largest mu of Definition 16: the least `sum over i in S_X of (gamma_i - gamma_j)`, j a second choice.

    The sum runs over the positions selected, as in the pairs of Lemma 8: two tied tokens lead together, and one of them
    may well score below j. Positive means locally optimal; infinite where every token of every sequence is selected.
    """
    gamma = problem.scores
    total = np.where(chosen.first, gamma, 0.0).sum(axis=1, keepdims=True)
    leads = total - chosen.first.sum(axis=1, keepdims=True) * gamma
    return float(leads[chosen.second].min(initial=np.inf))


SMALL = (1e-1, 1e-3, 1e-6)
"""The values of eps that stand for "any eps > 0" in Lemma 17."""
DIGITS_LEFT = 0.1
"""A relative rounding error from which on two computations of one number say nothing about each other."""


def rounding_of_sums(problem: TokenProblem, *points: Float[Array, " D"]) -> float:
    """Relative error of a sum over tokens of terms that are products of exponentials of logits: each logit is a sum of
    as many products as there are dimensions, and its absolute error is the relative one of its exponential."""
    logits = (np.abs(problem.keys.logits(p))[problem.mask].max(initial=0.0) for p in points)
    return float(8 * EPS * (problem.keys.dimension + problem.n * problem.T) * (1 + max(logits)))


def rounding_of_logs(*logs: float) -> float:
    """Relative error of a number kept as a logarithm: the absolute one of the logarithm. Zero has no logarithm."""
    return float(EPS * sum(abs(value) for value in logs if np.isfinite(value)))


def no_more_than_rounding(name: str, difference: float, room: float) -> Slack:
    """That two ways to compute one sum differ by no more than their rounding; where rounding is all there is, nobody
    can tell."""
    slack = below(name, difference, room)
    return slack if room < DIGITS_LEFT else seen(slack, "more digits: logits are too large for these")


class Pairs:
    """`h_ij = g q_i q_j (gamma_i - gamma_j)` for every pair of positions, and sums of `(a_i - a_j) h_ij`.

    Weights are kept as logarithms: g alone spans `exp(-eta_0)`. Sums are scaled by the largest weight that counts in
    them, one with `a_i != a_j` and `gamma_i != gamma_j`: tied tokens of another sequence may weigh any amount more.
    """

    def __init__(self, problem: TokenProblem, p: Float[Array, " D"], logits: Float[Array, "n T"] | None = None) -> None:
        logits = problem.keys.logits(p) if logits is None else logits
        relative = logits - logits.max(axis=1, keepdims=True)
        log_q = relative - np.log(np.exp(relative).sum(axis=1, keepdims=True))
        log_g = LogisticLoss().log_slope(PromptObjective(problem).outputs(p))
        gamma = np.where(problem.mask, problem.scores, 0.0)
        self._leads = gamma[:, :, None] - gamma[:, None, :]
        self._logs = log_g[:, None, None] + log_q[:, :, None] + log_q[:, None, :]
        self._counted = problem.mask[:, :, None] & problem.mask[:, None, :] & (self._leads != 0)

    def _weighted(self, a: Float[Array, "n T"]) -> tuple[Float[Array, "n T T"], Float[Array, "n T T"], float]:
        """`a_i - a_j`, `h_ij` over its scale, and the logarithm of that scale; nothing where either is zero."""
        a = np.where(np.isfinite(a), a, 0.0)
        ahead = a[:, :, None] - a[:, None, :]
        counted = self._counted & (ahead != 0)
        scale = float(self._logs[counted].max(initial=-np.inf)) if counted.any() else 0.0
        return ahead, np.exp(np.where(counted, self._logs - scale, -np.inf)) * self._leads, scale

    def log_scale(self, a: Float[Array, "n T"]) -> float:
        """The logarithm of what `total` and `size` are to be multiplied with, for a mean over the sequences."""
        return self._weighted(a)[2] - float(np.log(len(a)))

    def total(self, a: Float[Array, "n T"], among: Bool[Array, "n T T"] | None = None) -> float:
        """`sum (a_i - a_j) h_ij` over unordered pairs, or over the ordered pairs in `among`."""
        ahead, h, _ = self._weighted(a)
        terms = ahead * h
        return float(terms.sum() / 2 if among is None else terms[among].sum())

    def size(self, a: Float[Array, "n T"]) -> float:
        """`sum (|a_i| + |a_j|) |h_ij|` over unordered pairs: what the rounding of `total` is a share of."""
        _, h, _ = self._weighted(a)
        a = np.abs(np.where(np.isfinite(a), a, 0.0))
        return float(((a[:, :, None] + a[:, None, :]) * np.abs(h)).sum() / 2)


def lemma17(x: EmbeddingInstance) -> Findings:
    """Let a unit vector u be locally optimal (Definition 16: the selected tokens lead over each second choice by mu > 0
    in sum), with a gap tau_1 from the selected tokens to the second choices and from those to the rest (22), and let w
    select as u does, with a gap tau_2. Then for any eps there is R such that at p = R u `-<w, dL/dp>` is its sum over
    the pairs (selected, second choice) alone, up to a factor `1 +- eps`.

    Here u has logits 2 (selected), 1, 0 in units, ties included, and w has random gaps beyond the selected. By the
    proof, the ratio of (B1) to (B0) is at most `T C_3 C_4 exp(-tau_1 R)` and that of (B2) at most T^2 times the same;
    checked with the left sides of (23) and (25) in place of their bounds C_3 and C_4, where R is so small that the
    ratios are far from rounding; and at the R that the proof gives for each eps."""
    problem, _ = x.problems_and_choices[0]
    given = _levelled_vectors(x, problem)
    if given is None:
        return Findings((true("tokens linearly independent, so that u and w exist", False),), ())
    u, w, levels, ahead = given
    chosen = ranked_choices(levels)
    if not chosen.second.any():
        return Findings((true("some token is not selected", False),), ())
    length = float(np.linalg.norm(u))
    tau1, mu = chosen.gap / length, local_optimality(problem, chosen)
    own = ranked_choices(ahead)
    tau2 = float(_lead_of_selected(ahead, own)[problem.mask & ~own.first].min(initial=np.inf))
    same = bool((own.first == chosen.first).all())
    hypotheses = (
        true("tokens linearly independent, so that u and w exist", True),
        true("w selects as u does", same),
        above("tau_1", tau1, 0, strict=True),
        above("tau_2", tau2, 0, strict=True),
        above("mu: least lead in sum over a second choice", mu, 0, strict=True),
    )
    near = np.log(1e3) / tau1  # the rest's weights are a thousandth of the second choices': nothing is lost to rounding
    printed = _printed_constant(x, problem, w, tau2, mu)
    radii = [max(near, np.log(printed / eps) / tau1 if printed > 0 else near) for eps in SMALL]
    given_at = problem, chosen, u, levels, ahead
    return Findings(
        hypotheses,
        (
            *_AtRadius.of(*given_at, near).remaining_parts(problem, tau1),
            *(_AtRadius.of(*given_at, R).leading_alone(eps) for R, eps in zip(radii, SMALL, strict=True)),
        ),
    )


def _levelled_vectors(
    x: EmbeddingInstance, problem: TokenProblem
) -> tuple[Float[Array, " D"], Float[Array, " D"], Float[Array, "n T"], Float[Array, "n T"]] | None:
    """u and w with their logits: 2, 1 or 0 for u; for w the same selection, everything else behind by 1 to 2.

    Important tokens are at level 2. The others are at 2 too (a tie), 1 or 0, at random. Where `selection` is
    "everything", w ties all. None where tokens are dependent.
    """
    size = x.corpus.size
    E = problem.keys.vectors[:size]  # type: ignore[attr-defined]  # starts are drawn in coordinates
    if np.linalg.matrix_rank(E) < size:
        return None
    rng = np.random.default_rng([x.seed, 17])
    level = np.where(x.corpus.sole_label != 0, 2.0, rng.choice([2.0, 1.0, 0.0], p=[0.2, 0.4, 0.4], size=size))
    behind = np.where(level == 2, 2.0, rng.uniform(0, 1, size))
    if x.selection == "everything":
        behind = np.full(size, 2.0)
    inverse = np.linalg.pinv(E)
    laid_out = (np.where(problem.mask, values[problem.keys.index], -np.inf) for values in (level, behind))
    return (inverse @ level, inverse @ behind, *laid_out)  # type: ignore[return-value]


def _lead_of_selected(ahead: Float[Array, "n T"], chosen: Choices) -> Float[Array, "n T"]:
    """`a_{i_0} - a_j` per position, i_0 any selected token of the sequence."""
    top = np.where(chosen.first, ahead, -np.inf).max(axis=1, keepdims=True)
    return np.where(np.isfinite(ahead), top - ahead, np.inf)


def _summed_leads(problem: TokenProblem, chosen: Choices, *, absolute: bool) -> Float[Array, "n T"]:
    """`sum over selected i of (gamma_i - gamma_k)`, or of absolute values, per position k."""
    gamma = problem.scores
    differences = gamma[:, :, None] - gamma[:, None, :]
    differences = np.abs(differences) if absolute else differences
    return np.asarray(np.where(chosen.first[:, :, None], differences, 0.0).sum(axis=1))


def _constants_of_23_and_25(problem: TokenProblem, chosen: Choices, ahead: Float[Array, "n T"]) -> tuple[float, float]:
    """The largest left side of (23) and of (25) within a sequence, for its own gaps and leads."""
    leads, others = _lead_of_selected(ahead, chosen), problem.mask & ~chosen.first
    gaps, scores = 0.0, 0.0
    sums, sizes = _summed_leads(problem, chosen, absolute=False), _summed_leads(problem, chosen, absolute=True)
    for i in range(problem.n):
        if chosen.second[i].any():
            values = np.append(ahead[i][others[i]], ahead[i][chosen.first[i]].max())
            least = float(leads[i][chosen.second[i]].min())
            gaps = max(gaps, float(values.max() - values.min()) / least if least else np.inf)
            gamma = problem.scores[i][others[i]]
            most = max(float(sizes[i][others[i]].max()), float(gamma.max() - gamma.min()))
            lead = float(sums[i][chosen.second[i]].min())
            scores = max(scores, most / lead if lead > 0 else np.inf)
    return gaps, scores


def _printed_constant(
    x: EmbeddingInstance, problem: TokenProblem, w: Float[Array, " D"], tau2: float, mu: float
) -> float:
    """`(T + T^2) C_3 C_4` with the constants as printed; 0 where the lemma's lead or gap is not positive."""
    if min(tau2, mu) <= 0:
        return 0.0
    T, size = problem.T, float(x.steps[0].after.geometry.vector_norms[:-2].max())
    return float((T + T**2) * (2 * np.linalg.norm(w) * size / tau2) * (2 * T * size / mu))


class _AtRadius(NamedTuple):
    """What Lemma 17 speaks of at `R u / |u|`: the pairs there, u's choices, w's logits, and what rounding may do."""

    pairs: Pairs
    chosen: Choices
    ahead: Float[Array, "n T"]
    R: float
    rounding: float

    @classmethod
    def of(
        cls, problem: TokenProblem, chosen: Choices, u: Float[Array, " D"], levels: Float[Array, "n T"],
        ahead: Float[Array, "n T"], R: float,
    ) -> _AtRadius:  # fmt: skip
        """With exact ties, which the product of u with the tokens has up to rounding."""
        length = np.linalg.norm(u)
        pairs = Pairs(problem, R * (u / length), levels * R / length)
        return cls(pairs, chosen, ahead, R, rounding_of_sums(problem, R * u))

    def total(self, others: Bool[Array, "n T"]) -> float:
        """The sum over pairs of a selected token with one of the others."""
        return self.pairs.total(self.ahead, self.chosen.first[:, :, None] & others[:, None, :])

    def leading_alone(self, eps: float) -> Slack:
        """The sum over all pairs over that of the leading ones, (B0), less 1: at most eps, and what rounding may do
        where scores of both signs all but cancel in (B0)."""
        part = self.total(self.chosen.second)
        off = abs(self.pairs.total(self.ahead) / part - 1) if part else np.inf
        room = self.rounding * self.pairs.size(self.ahead) / abs(part) if part else 0.0
        return below(f"|sum / leading pairs - 1| at R = {self.R:.3g}", off, eps, tolerance=room)

    def remaining_parts(self, problem: TokenProblem, tau1: float) -> tuple[Slack, Slack]:
        """(B1) and (B2) over (B0), against the proof's bounds with its own left sides of (23) and (25)."""
        gaps, scores = _constants_of_23_and_25(problem, self.chosen, self.ahead)
        others, T = problem.mask & ~self.chosen.first, problem.T
        base, one = self.total(self.chosen.second), self.total(self.chosen.rest)
        two = self.pairs.total(self.ahead, others[:, :, None] & others[:, None, :]) / 2
        of_one, of_two = (abs(part / base) if base else np.inf for part in (one, two))
        factor = gaps * scores * float(np.exp(-tau1 * self.R))
        return (
            below(f"|(B1)| / (B0) at R = {self.R:.3g}", of_one, T * factor, tolerance=self.rounding),
            below(f"|(B2)| / (B0) at R = {self.R:.3g}", of_two, T**2 * factor, tolerance=self.rounding),
        )


CLAIMS = (
    Claim("A.lemma17", lemma17, "exact", about="leading pairs of the gradient at large norm, ties included",
        example=lambda: EmbeddingInstance.of(6, 4, varied=True, seed=9),
        outside=(lambda: EmbeddingInstance.of(6, 4, varied=True, seed=9, selection="everything"),),
        unneeded={
            "tau_1": "Positive by definition of the second choices.",
            "tau_2": "Positive by definition of what w selects.",
            "mu: least lead in sum over a second choice": (
                "Needed only to keep the leading sum from vanishing: the bound has its inverse as a factor. Where all "
                "second choices score higher, signs change on both sides."
            ),
        },
        note=(
            "The sums over i in S_X run over positions. Read with the least pairwise lead instead of the sum of "
            "Definition 16, the lemma would say nothing of ties."
        )),
)  # fmt: skip
