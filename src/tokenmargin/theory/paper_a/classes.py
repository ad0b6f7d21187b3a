"""Paper A's max-margin classes (9): Lemmas 3 and 20, and the steps of Lemma 3's proof, (18) and `M p = 1`."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin import Constraints, MarginSolution, class_margin, solve
from tokenmargin.margin.constraints import class_constraints
from tokenmargin.norms import EPS
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, equal, seen
from tokenmargin.theory.settings import EmbeddingInstance

RESIDUAL = 1e-9
"""Certified solutions have residuals of at most 1e-10; a margin read off one is right to a few times that."""
SAME_VECTOR = 1e-7
"""Vectors agree to the square root of what is certified of their lengths, at worst."""
UNSOLVED = 1e-6
"""A least-squares residual beyond what rounding leaves of systems whose solutions are a thousand units long."""


def lemma3(x: EmbeddingInstance) -> Findings:
    """For any p_o other than zero, the max-margin problem (9) of its selection has exactly one solution."""
    residual, shortest, unsolved = 0.0, (np.inf, 0.0), 0
    for k, (problem, chosen) in enumerate(x.problems_and_choices):
        solution, keys = class_margin(problem, chosen), problem.keys
        if not solution.is_optimal:
            unsolved += _is_open(x, solution)
            continue
        residual = max(residual, solution.certificate.residual)
        if np.isinf(solution.margin):
            continue  # everything is selected: the one solution is 0
        other = _another_vector(x, k, solution)
        longer = float(keys.norm(other)) ** 2 - float(keys.norm(solution.vector)) ** 2
        apart = float(keys.norm(other - solution.vector)) ** 2
        excess = (longer - apart) / float(keys.norm(other)) ** 2
        shortest = min(shortest, (excess, _room_of_excess(problem, chosen, solution, other)), key=sum)
    return Findings(
        hypotheses=(),
        conclusion=(
            below("KKT residual of the solution found", residual, 1e-10),
            # |p|^2 >= |p^|^2 + |p - p^|^2 for every feasible p, as p_o / tau is: only p^ itself has its length
            above("(|p|^2 - |p^|^2 - |p - p^|^2) / |p|^2 at p = p_o / tau", shortest[0], 0, tolerance=shortest[1]),
            _all_solved(unsolved),
        ),
    )


def _is_open(x: EmbeddingInstance, solution: MarginSolution) -> bool:
    """Whether doubles do not solve a problem that may have a solution: no p_o may select the important tokens, or
    everything, but one that was drawn selects what it selects."""
    return solution.status == "inaccurate" or (not solution.is_optimal and x.selection in ("random", "tied"))


def _all_solved(unsolved: int) -> Slack:
    return seen(below("problems that doubles do not solve", unsolved, 0), "more digits")


def _another_vector(x: EmbeddingInstance, k: int, solution: MarginSolution) -> Float[Array, " D"]:
    """A vector that meets the constraints of (9): `p_o / tau`, or twice the solution where p_o is not drawn first."""
    if x.selection in ("important", "everything"):
        return 2 * solution.vector
    return np.asarray(x.point(k) / _smallest_gap(*x.problems_and_choices[k], x.point(k)))


def _room_of_excess(
    problem: TokenProblem, chosen: Bool[Array, "n T"], solution: MarginSolution, p: Float[Array, " D"]
) -> float:
    """`|p|^2 - |p^|^2 - |p - p^|^2 = 2 sum_j multiplier_j (<row_j, p> - bound_j)`: beside what is certified of p^, the
    rounding of p's products with the rows, and what it lacks of ties, times the multipliers."""
    constraints, size = class_constraints(problem, chosen), float(problem.keys.norm(p))
    rows = constraints.rows()
    untied = float(np.abs(rows[constraints.bound == 0] @ p).max(initial=0.0))
    rounding = (rows.shape[1] + 4) * EPS * float(np.linalg.norm(rows, axis=1).max()) * size
    return RESIDUAL + 2 * float(np.abs(solution.multipliers).sum()) * (untied + rounding) / size**2


def _smallest_gap(problem: TokenProblem, chosen: Bool[Array, "n T"], p: Float[Array, " D"]) -> float:
    # Differences first: logits are as large as the first step, and lose the digits of what is between two of them.
    constraints = class_constraints(problem, chosen)
    gaps = constraints.rows() @ p
    return float(gaps[constraints.bound > 0].min(initial=np.inf))


def printed_constraints(problem: TokenProblem, chosen: Bool[Array, "n T"]) -> Constraints:
    """The rows of M: `E_s - E_s'` for every selected s and every other s' of a sequence, as (18) has them."""
    index = problem.keys.index
    pairs = [
        (index[i, s], index[i, t], i, t)
        for i in range(problem.n)
        for s in np.flatnonzero(chosen[i])
        for t in np.flatnonzero(problem.mask[i] & ~chosen[i])
    ]
    plus, minus, *token = np.array(pairs, dtype=np.intp).reshape(-1, 4).T
    return Constraints(problem.keys, plus, minus, np.ones(len(pairs)), np.stack(token, axis=1))


def without_the_class(x: EmbeddingInstance) -> Findings:
    """The problem (9) of a selection can equivalently be written as (18): the shortest p with
    `<E_s - E_s', p> >= 1` for all s selected and s' not, whether or not p ties what is selected together."""
    shorter, unsolved = 0.0, 0
    for problem, chosen in x.problems_and_choices:
        ours, theirs = class_margin(problem, chosen), solve(printed_constraints(problem, chosen))
        if ours.is_optimal and theirs.is_optimal and np.isfinite(ours.margin):
            shorter = max(shorter, 1 - ours.margin / theirs.margin)
        # Where (9) has a solution (18) has one too.
        unsolved += _is_open(x, ours) or (ours.is_optimal and not theirs.is_optimal)
    return Findings((), (below("1 - |p of (18)| / |p of (9)|", shorter, 0, tolerance=RESIDUAL), _all_solved(unsolved)))


def without_ties(x: EmbeddingInstance) -> Findings:
    """(18) has the solution of (9) where the selection has no ties between different tokens: then there is nothing that
    the class asks for beyond (18)."""
    ties = max(_count_ties(problem, chosen) for problem, chosen in x.problems_and_choices)
    return Findings((below("sequences that select several tokens", ties, 0),), without_the_class(x).conclusion)


def _count_ties(problem: TokenProblem, chosen: Bool[Array, "n T"]) -> int:
    return sum(len(set(row[here].tolist())) > 1 for row, here in zip(problem.keys.index, chosen, strict=True))


def solvable(x: EmbeddingInstance) -> Findings:
    """For d > |S| + 2 the system `M p = 1` of any selection has a solution (the end of Lemma 3's proof: tokens selected
    anywhere get logit 1, the others 0)."""
    unsolved = max(_least_squares(problem, chosen)[1] for problem, chosen in x.problems_and_choices)
    return Findings(
        (above("d, beyond the vocabulary", x.dimension, x.corpus.size + 3),),
        (below("residual of M p = 1", unsolved, UNSOLVED),),
    )


def solvable_repaired(x: EmbeddingInstance) -> Findings:
    """For d > |S| + 2 the system `M p = 1` of a selection has a solution if no token is selected in one sequence and
    passed over in another."""
    both = max(_split_vectors(problem, chosen) for problem, chosen in x.problems_and_choices)
    return solvable(x).given(below("tokens both selected and passed over", both, 0))


def _split_vectors(problem: TokenProblem, chosen: Bool[Array, "n T"]) -> int:
    index = problem.keys.index
    return len(set(index[chosen].tolist()) & set(index[problem.mask & ~chosen].tolist()))


def _least_squares(problem: TokenProblem, chosen: Bool[Array, "n T"]) -> tuple[Float[Array, "k D"], float]:
    """M, and the largest residual of `M p = 1` at the least-squares solution, every coordinate in a unit of its own:
    that changes nothing of what can be solved, and one along v, of size eta_0, does not drown the others."""
    M = printed_constraints(problem, chosen).rows()
    if not len(M):
        return M, 0.0
    sizes = np.abs(M).max(axis=0)
    scaled = M / np.where(sizes > 0, sizes, 1.0)
    return M, float(np.abs(scaled @ (np.linalg.pinv(scaled) @ np.ones(len(M))) - 1).max())


def closed_form(x: EmbeddingInstance) -> Findings:
    """Where `M p = 1` has a solution, M holding the differences of (9), the max-margin vector is `M^+ 1`."""
    unsolved, apart, *_ = _pseudo_inverse(x)
    return Findings(hypotheses=(_is_solved(unsolved),), conclusion=(below("|M^+ 1 - p^| / |p^|", apart, SAME_VECTOR),))


def closed_form_with_signs(x: EmbeddingInstance) -> Findings:
    """Where `M p = 1` has a solution and the multipliers `(M M')^+ 1` are not negative, the solution of (18) is
    `M^+ 1`; without ties that is the max-margin vector of (9)."""
    unsolved, apart, smallest, off = _pseudo_inverse(x, printed=True)
    signs = above("smallest multiplier (M M')^+ 1", smallest, 0, tolerance=RESIDUAL)
    if off > RESIDUAL and abs(smallest) <= off:
        signs = seen(signs, "more digits")
    return Findings(
        hypotheses=(_is_solved(unsolved), signs),
        conclusion=(below("|M^+ 1 - p^| / |p^|", apart, SAME_VECTOR),),
    )


def _is_solved(residual: float) -> Slack:
    # Solvable systems leave rounding, unsolvable ones of entries 0 and 1 in the tokens a share of 1.
    return below("residual of M p = 1", residual, UNSOLVED)


def _pseudo_inverse(x: EmbeddingInstance, *, printed: bool = False) -> tuple[float, float, float, float]:
    """Over the draws: residual of `M p = 1`, relative distance of `M^+ 1` from p^ (of (9), or of (18) as printed), the
    smallest multiplier, and by how much rounding moves multipliers."""
    unsolved, apart, smallest, off = 0.0, 0.0, np.inf, 0.0
    for problem, chosen in x.problems_and_choices:
        M, residual = _least_squares(problem, chosen)
        unsolved = max(unsolved, residual)
        solution = solve(printed_constraints(problem, chosen)) if printed else class_margin(problem, chosen)
        if not solution.is_optimal:
            return unsolved, np.nan, smallest, off  # nothing to compare with
        if len(M):
            inverse = np.linalg.pinv(M)
            vector = inverse @ np.ones(len(M))
            apart = max(apart, float(problem.keys.norm(vector - solution.vector)) * solution.margin)
            multipliers = inverse.T @ vector  # (M M')^+ 1 without squaring the condition of M
            smallest = min(smallest, float(multipliers.min()))
            # A singular vector is known to the rounding of the largest singular value over the smallest.
            condition = float(np.linalg.norm(M, 2) * np.linalg.norm(inverse, 2))
            off = max(off, 8 * max(M.shape) * EPS * condition * float(np.abs(multipliers).max()))
    return unsolved, apart, smallest, off


def lemma20(x: EmbeddingInstance) -> Findings:
    """At the solution of (9) some constraint is tight: a selected token is ahead of another by exactly 1."""
    solved = [(problem, chosen, class_margin(problem, chosen)) for problem, chosen in x.problems_and_choices]
    gaps = [_smallest_gap(problem, chosen, found.vector) for problem, chosen, found in solved if found.is_optimal]
    worst = max((abs(gap - 1) for gap in gaps), default=0.0)
    tight = equal("furthest smallest gap from 1", worst, 0, tolerance=RESIDUAL)
    return Findings((), (tight, _all_solved(sum(_is_open(x, found) for _, _, found in solved))))


def lemma20_repaired(x: EmbeddingInstance) -> Findings:
    """If some token is not selected, then at the solution of (9) some constraint is tight."""
    left = min(int((problem.mask & ~chosen).sum()) for problem, chosen in x.problems_and_choices)
    return Findings((above("tokens not selected", left, 1),), lemma20(x).conclusion)


def _torn_tokens() -> EmbeddingInstance:
    """a is ahead of b, b of c, a of c: three leads of 1 cannot all be."""
    return EmbeddingInstance.on(["a b", "b c", "a c"], [1, -1, 1], dimension=20, step=1.0, draws=20)


def _any_selection() -> EmbeddingInstance:
    return EmbeddingInstance.of(6, 4, dimension=40, step=20.0, draws=20, selection="tied", seed=1)


CLAIMS = (
    Claim("A.lemma3", lemma3, "bounded", about="the max-margin class has one solution", example=_any_selection,
        unconditional="Any p_o will do. One that ties all tokens has the solution 0: unique, but without a direction."),
    Claim("A.equation18", without_the_class, "bounded", about="(9) written without the class: (18)",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=30, step=20.0, draws=20),
        refutation=lambda: EmbeddingInstance.of(4, 3, equal=False, selection="tied", seed=1),
        unconditional="Printed of any selection; A.equation18-without-ties has the condition it needs.",
        note=(
            "(18) does not ask that tokens selected together have equal logits, as p in the class of p_o has. Where a "
            "p that puts one of them ahead is shorter, the solution of (18) is outside the class."
        )),
    Claim("A.equation18-without-ties", without_ties, "bounded", about="... where each sequence selects one token",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=30, step=20.0, draws=20),
        outside=(lambda: EmbeddingInstance.of(4, 3, equal=False, selection="tied", seed=1),)),
    Claim("A.lemma3-solvable", solvable, "exact", about="M p = 1 is solvable for d > |S| + 2",
        example=lambda: EmbeddingInstance.of(4, 3, selection="important", draws=5),
        outside=(lambda: EmbeddingInstance.of(4, 3, dimension=2, selection="important"),), refutation=_torn_tokens,
        note=(
            "Part of the proof of Lemma 3. A token that is selected in one sequence and passed over in another would "
            "need the logits 1 and 0: a ahead of b, b of c and a of c by 1 each is impossible (residual 1/3)."
        )),
    Claim("A.lemma3-solvable-repaired", solvable_repaired, "exact",
        about="... if no token is both selected and passed over",
        example=lambda: EmbeddingInstance.of(4, 3, selection="important", draws=5),
        outside=(lambda: EmbeddingInstance.of(4, 3, dimension=2, selection="important"), _torn_tokens),
        note="So it is where only important tokens are selected, the selection of Lemma 19."),
    Claim("A.lemma3-closed-form", closed_form, "bounded", about="the solution is M^+ 1, where M p = 1 is solvable",
        example=lambda: EmbeddingInstance.of(2, 2, selection="important"),
        outside=(lambda: EmbeddingInstance.of(4, 3, dimension=5, selection="important"),),
        refutation=lambda: EmbeddingInstance.of(8, 4, irrelevant=3, dimension=30, selection="important"),
        note=(
            "Part of the proof of Lemma 3. A KKT point also needs multipliers (M M')^+ 1 >= 0; where one is negative, "
            "its constraint is slack and M^+ 1 is too long."
        )),
    Claim("A.lemma3-closed-form-with-signs", closed_form_with_signs, "bounded",
        about="... and the multipliers are not negative",
        example=lambda: EmbeddingInstance.of(4, 3, selection="important"),
        outside=(lambda: EmbeddingInstance.of(8, 4, irrelevant=3, dimension=30, selection="important"), _torn_tokens),
        note="The repair. With dependent rows the multipliers are not unique and the condition is not necessary."),
    Claim("A.lemma20", lemma20, "bounded", about="some constraint of the class is tight", example=_any_selection,
        refutation=lambda: EmbeddingInstance.of(4, 3, selection="everything"),
        unconditional="Printed without a condition; A.lemma20-repaired has the one it needs.",
        note="A selection of everything leaves no constraint to be tight; the statement needs one token not selected."),
    Claim("A.lemma20-repaired", lemma20_repaired, "bounded", about="... if some token is not selected",
        example=_any_selection, outside=(lambda: EmbeddingInstance.of(4, 3, selection="everything"),)),
)  # fmt: skip
