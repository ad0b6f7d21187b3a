"""Cutting planes: the constraints that matter enter a master problem, which daqp re-solves from where it stood."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE, normalised_systems
from tokenmargin.margin.compiled.systems import solve_systems
from tokenmargin.margin.corpus.pairs import Differences, Proposal
from tokenmargin.margin.corpus.polish import polish_solution
from tokenmargin.margin.single.proposals import RestrictedProblem

CUTS = 3
"""Constraints added in a round, as a multiple of the dimension."""
PER_TOKEN = 2
"""Constraints of one selected token added in a round: more of the same hardly turn the solution."""
MASTER = 12
"""Largest master problem, as a multiple of the dimension, before slack constraints are dropped."""


def cutting_planes(
    rows: Differences,
    *,
    start: Float[Array, " d"] | None = None,
    gap: float,
    progress: Callable[[float], None] | None = None,
) -> Proposal:
    """Multipliers of the solution or of a refutation.

    **Arguments**
    - `start`: a vector whose tightest constraints are taken first.
    - `gap`: relative gap in the norm at which to stop.
    - `progress`: called in every round with the gap reached (infinite until a feasible vector is known).
    """
    master = RestrictedProblem(rows.vectors.shape[1])
    p = rows.vectors[np.unique(rows.plus)].mean(axis=0) if start is None else start
    best, least = Proposal(np.zeros(len(rows)), p), np.inf
    while True:
        margins = rows.times(p)
        if len(master):
            guess = Proposal(_scatter_multipliers(master, rows), p)
            reached = rows.gap(guess.multipliers, p)
            if reached <= least:
                best, least = guess, reached
        if progress is not None:
            progress(least)
        cuts = _worst(margins, rows, master)
        if least <= gap or not len(cuts):
            return polish_solution(rows, best, best.multipliers > 0)
        _take(master, rows, cuts)
        if not master.solve():
            return _refutation(master, rows)
        p = master.vector


def _take(master: RestrictedProblem, rows: Differences, cuts: Int[Array, " c"]) -> None:
    """Take constraints into play, and let idle ones go when there are many."""
    raw = rows.dense(cuts)
    if len(master) + len(cuts) > MASTER * raw.shape[1]:
        master.forget_idle()
    lengths = np.sqrt(np.einsum("kd,kd->k", raw, raw))
    lengths[lengths == 0] = 1.0
    master.add(cuts, raw / lengths[:, None], 1 / lengths)


def _scatter_multipliers(master: RestrictedProblem, rows: Differences) -> Float[Array, " k"]:
    """The master's multipliers, scaled to the given rows and put at the rows' places; zero elsewhere."""
    multipliers = np.zeros(len(rows))
    multipliers[master.numbers] = master.multipliers * master.bound
    return multipliers


def _refutation(master: RestrictedProblem, rows: Differences) -> Proposal:
    """The Farkas vector of a master problem that has no solution, where one is found."""
    systems = normalised_systems(master.rows[None], master.bound[None])
    found = solve_systems(systems)
    if found.residuals[0, 4] < np.inf:
        master.multipliers = found.farkas[0] / systems.lengths[0]
    return Proposal(_scatter_multipliers(master, rows), None)


def _worst(margins: Float[Array, " k"], rows: Differences, master: RestrictedProblem) -> Int[Array, " c"]:
    """The most violated constraints not in play yet, few of one selected token; in the first round the tightest."""
    number = CUTS * rows.vectors.shape[1]
    candidates = np.flatnonzero(margins < 1 - TOLERANCE) if len(master) else np.arange(len(margins))
    # Sorting all would cost more than the rounds: a selection first, twenty times what is wanted since most of it may
    # be in play already or share its selected token.
    if len(candidates) > 20 * number:
        candidates = candidates[np.argpartition(margins[candidates], 20 * number)[: 20 * number]]
    candidates = candidates[~np.isin(candidates, master.numbers)]
    candidates = candidates[np.argsort(margins[candidates], kind="stable")]
    heads = rows.plus[candidates]
    by_head = np.argsort(heads, kind="stable")
    sorted_heads = heads[by_head]
    # Candidates are sorted by margin, and the sort by token is stable: the distance to the first of one's own token
    # (which searchsorted finds) is one's rank among them, 0 for the most violated.
    rank = np.empty(len(heads), dtype=np.intp)
    rank[by_head] = np.arange(len(heads)) - np.searchsorted(sorted_heads, sorted_heads)
    return candidates[rank < PER_TOKEN][:number]
