"""Max-margin problems in any norm: a method for that norm proposes, one certificate decides for all.

l1 and linf: our interior-point method, then HiGHS. lp: an interior-point method for smooth norms. Nuclear and spectral:
one for matrices (`conic`). A norm of the user's own: the user's proposal. Infeasibility does not depend on the norm: it
is the Euclidean problem's, with its exact proof.

`min |x|` under `rows x >= bound` is at least `bound' m / |rows' m|_*` for every `m >= 0`, whatever the norm: for a
feasible x, `bound' m <= <rows' m, x> <= |rows' m|_* |x|`. So a feasible vector is an upper bound, multipliers are a
lower one, and where the two meet both are optimal, whoever proposed them. Rounding is counted against the claim.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE, Systems, rescale_exactly
from tokenmargin.margin.constraints import Constraints, row_constraints
from tokenmargin.margin.normed.conic import Candidate, matrix_proposals
from tokenmargin.margin.normed.faces import (
    Face,
    fit_multipliers_nearby,
    polish_at_vertex,
    polish_proposal,
    trim_proposal,
)
from tokenmargin.margin.single.solver import SPREAD, solve
from tokenmargin.margin.single.ties import distance_from_ties
from tokenmargin.margin.solution import Certificate, MarginSolution
from tokenmargin.norms import EPS, AbstractNorm, CustomNorm, LpNorm, SchattenNorm, as_norm
from tokenmargin.problem.geometry import Coordinates

GAP = 1e-9
"""Largest relative gap with which an answer is called optimal."""
MATRIX_GAP = 1e-8
"""The same for norms of singular values."""


class CertifiedVector(NamedTuple):
    """A vector and multipliers with `|rows' multipliers|_* = |vector|`, and what they prove.

    - `gap`: no feasible vector is shorter by more than this share, in exact arithmetic; infinite if nothing is proven.
    - `primal`: largest violation of a constraint that scaling cannot help: an equality, or one whose bound is zero.
    """

    vector: Float[Array, " r"]
    multipliers: Float[Array, " k"]
    norm: float
    gap: float
    primal: float

    @property
    def residual(self) -> float:
        """What decides between two proposals."""
        return max(self.gap, self.primal)

    def passes(self, norm: AbstractNorm) -> bool:
        """Whether this is called optimal."""
        return self.gap <= gap_tolerance(norm) and self.primal <= TOLERANCE


def gap_tolerance(norm: AbstractNorm) -> float:
    """Largest relative gap with which an answer in this norm is called optimal."""
    return MATRIX_GAP if isinstance(norm, SchattenNorm) else GAP


def judge_proposal(
    one: Systems, norm: AbstractNorm, vector: Float[Array, " r"], multipliers: Float[Array, " k"]
) -> CertifiedVector:
    """What a proposal proves about the first system of a stack, once scaled.

    An inner product of r terms, each a rounded difference times a rounded number, is off by at most `(r + 4) eps` times
    the sum of its terms' sizes; a combination of a rows, coordinate by coordinate, by `(a + 4) eps` times theirs.
    """
    rows, bound = one.rows[0], one.bound[0]
    k, r = rows.shape
    tied = np.zeros(k, dtype=bool) if one.equality is None else one.equality
    nothing = CertifiedVector(np.zeros(r), np.zeros(k), 0.0, np.inf, np.inf)
    if not (np.isfinite(vector).all() and np.isfinite(multipliers).all() and vector.any()):
        return nothing
    size = np.abs(rows)
    reached = rows @ vector
    surely = reached - (r + 4) * EPS * (size @ np.abs(vector))
    asks = (bound > 0) & ~tied
    if not (asks.any() and (surely[asks] > 0).all()):
        return nothing
    factor = float((bound[asks] / surely[asks]).max()) * (1 + 4 * EPS)
    x, reached, surely = vector * factor, reached * factor, surely * factor
    upper = float(norm.value(x)) * (1 + norm.rounding(r))
    short = np.where(tied, np.abs(reached - bound) + (reached - surely), np.where(asks, 0.0, -surely))
    primal = max(0.0, float((short / one.size[0]).max()))
    m = np.where(tied, multipliers, np.maximum(multipliers, 0.0))
    weights = np.abs(m)
    blur = (np.count_nonzero(m) + 4) * EPS * (weights @ size)
    dual = float(norm.dual_value(m @ rows)) * (1 + norm.rounding(r)) + norm.dual_bound(blur)
    gained = float(bound @ m) - (k + 2) * EPS * float(bound @ weights)
    if not (0 < dual < np.inf and gained > 0 and 0 < upper < np.inf):
        return CertifiedVector(x, np.zeros(k), upper, np.inf, primal)
    return CertifiedVector(x, m * (upper / dual), upper, abs(1 - gained / dual / upper), primal)


_WIDE = 600  # size up to which the larger linear system is worth trying
_RANGE = 1e60  # sizes up to this, and down to its reciprocal, have products without under- or overflow
_SHORT = 1e-6  # share of a vector by which it may be moved


def norm_for(constraints: Constraints, norm: AbstractNorm | str) -> AbstractNorm:
    """The norm as one of the problem's parameters, or the reason why it has no meaning there."""
    chosen, geometry = as_norm(norm), constraints.geometry
    if isinstance(chosen, SchattenNorm) and chosen.p == 2:
        chosen = LpNorm(2.0)
    if chosen == LpNorm(2.0):
        return chosen
    if not isinstance(geometry, Coordinates):
        raise ValueError(
            f"the {chosen.name} norm needs coordinates, and this problem is known by inner products alone, which give "
            "Euclidean lengths; pose it with keys of shape (n, T, d), or use norm='l2'"
        )
    if isinstance(chosen, SchattenNorm) and geometry.matrix_shape is None:
        raise ValueError(
            f"the {chosen.name} norm is one of matrices, and what is asked for here is a vector of length "
            f"{geometry.dimension}; a problem for p becomes one for W by problem.with_matrix(queries), a head stays one"
        )
    return chosen.of_shape(geometry.matrix_shape)


def solve_in_norm(constraints: Constraints, norm: AbstractNorm | str = "l2") -> MarginSolution:
    """Minimise `|p|` in a norm under `constraints`, with a certificate.

    >>> from tokenmargin.problem.instances import figure3a
    >>> from tokenmargin.margin.constraints import attention_constraints
    >>> solution = solve_in_norm(attention_constraints(figure3a(), [1, 1, 1]), "linf")
    >>> solution.status, solution.vector.round(6)
    ('optimal', array([1.333333, 0.333333]))
    """
    shape = constraints.geometry.matrix_shape
    if shape is None and isinstance(norm, str) and norm == "l2":
        return solve(constraints)
    chosen = norm_for(constraints, norm)
    began = time.perf_counter()
    if chosen == LpNorm(2.0) or not constraints.bound.any():
        return replace(solve(constraints), norm=chosen, shape=shape)
    systems = _well_scaled(constraints) or constraints.systems()
    proposals: list[Candidate] = []
    best = _solve_at_once(systems, chosen)
    if best is None:
        best, proposals = _best_proposal(systems, chosen, _proposals(systems, chosen))
    if not best.passes(chosen):
        euclidean = solve(constraints)
        if euclidean.status == "infeasible":
            return replace(euclidean, norm=chosen, shape=shape, seconds=time.perf_counter() - began)
        others = itertools.chain(_move_inwards(systems, proposals), [_scale_solution(systems, euclidean)])
        best = min(best, _best_proposal(systems, chosen, others)[0], key=lambda judged: judged.residual)
    if best.passes(chosen) and not constraints.bound.all():
        best = _keeping_ties(constraints, systems, chosen, best)
    return _to_solution(constraints, systems, chosen, best, time.perf_counter() - began)


def _keeping_ties(
    constraints: Constraints, systems: Systems, norm: AbstractNorm, best: CertifiedVector
) -> CertifiedVector:
    """The proposal with what it is off its ties, all together, counted against it."""
    exact = constraints.systems()  # with what rounding took from the rows
    vector = rescale_exactly(rescale_exactly(best.vector, times=systems.scale[0]), over=exact.scale[0])
    away = distance_from_ties(constraints, exact, best.multipliers, vector, norm=norm)
    return best._replace(primal=max(best.primal, away))


def _well_scaled(constraints: Constraints) -> Systems | None:
    """The system with all rows divided by one power of two, where their lengths and bounds are of one size: faster."""
    rows, bound = constraints.rows(), constraints.bound
    squares = np.einsum("kr,kr->k", rows, rows)
    longest, shortest = squares.max(initial=0.0) ** 0.5, squares.min(initial=np.inf) ** 0.5
    if not (1 / _RANGE < longest < _RANGE and longest <= SPREAD * shortest and bound.max() == 1):
        return None
    asked = bound > 0
    if bound.min(where=asked, initial=1.0) < 1 / SPREAD:
        return None
    power = 2.0 ** math.frexp(longest)[1]
    size = np.where(asked, bound, 1.0)[None]
    lengths = np.full((1, len(rows)), power)
    return Systems(rows[None] / power, bound[None], constraints.equality, size, lengths, np.array([1 / power]))


def _solve_at_once(systems: Systems, norm: AbstractNorm) -> CertifiedVector | None:
    """The ordinary case in compiled code, as one of a stack; None where that proves nothing."""
    if not isinstance(norm, LpNorm) or systems.equality is not None or not systems.bound.all():
        return None
    from tokenmargin.margin.normed.stack import solve_stack  # what is compiled loads when it is needed

    vectors, multipliers, found = solve_stack(systems.rows, systems.bound, norm.p)
    length, gap = found[0].tolist()
    return CertifiedVector(vectors[0], multipliers[0], length, gap, 0.0) if gap < np.inf else None


def _best_proposal(
    systems: Systems, norm: AbstractNorm, proposals: Iterable[Candidate]
) -> tuple[CertifiedVector, list[Candidate]]:
    """The first proposal that passes, or the best; and all that were looked at."""
    looked, best = (
        [],
        CertifiedVector(np.zeros(systems.rows.shape[2]), np.zeros(systems.rows.shape[1]), 0.0, np.inf, np.inf),
    )
    for vector, multipliers in proposals:
        looked.append((vector, multipliers))
        judged = judge_proposal(systems, norm, vector, multipliers)
        best = min(best, judged, key=lambda one: one.residual)
        if judged.passes(norm):
            break
    return best, looked


def _move_inwards(systems: Systems, proposals: list[Candidate]) -> Iterator[Candidate]:
    """The proposals moved into the feasible set by as little as rounding took: where bounds differ by many orders of
    magnitude, scaling a vector until it satisfies the smallest would lengthen it too much."""
    rows, bound = systems.rows[0], systems.bound[0]
    if systems.equality is not None or (inner := solve(row_constraints(rows))).status != "optimal":
        return
    for vector, multipliers in proposals:
        rounding = (rows.shape[1] + 8) * EPS * (np.abs(rows) @ np.abs(vector))
        short = float((bound + rounding - rows @ vector).max())
        if 0 < short < _SHORT * np.abs(vector).max():
            yield vector + 2 * short * inner.vector, multipliers


def _scale_solution(systems: Systems, found: MarginSolution) -> Candidate:
    """A solution in the units of the system."""
    lengths, scale = systems.lengths[0], systems.scale[0]
    return rescale_exactly(found.vector, over=scale), rescale_exactly(found.multipliers, times=lengths, over=scale)


def _to_solution(
    constraints: Constraints, systems: Systems, norm: AbstractNorm, best: CertifiedVector, seconds: float
) -> MarginSolution:
    """The solution in the units of the constraints."""
    lengths, scale = systems.lengths[0], systems.scale[0]
    if 1 / _RANGE < scale < _RANGE and lengths.max() < _RANGE and lengths.min() > 1 / _RANGE:
        vector, multipliers = best.vector * scale, best.multipliers * (scale / lengths)
    else:
        vector = rescale_exactly(best.vector, times=scale)
        multipliers = rescale_exactly(best.multipliers, times=scale, over=lengths)
        if systems.in_range is not None or (rescale_exactly(vector, over=scale) != best.vector).any():
            # What was judged is beyond doubles.
            vector, multipliers = np.zeros_like(vector), np.zeros_like(multipliers)
            best = CertifiedVector(vector, multipliers, 0.0, np.inf, np.inf)
    proven = best.passes(norm) and systems.in_range is None
    margin = float(np.ldexp(1 / best.norm, 1 - np.frexp(scale)[1])) if best.norm > 0 else 0.0
    return MarginSolution(
        status="optimal" if proven else "inaccurate",
        vector=vector,
        margin=margin,
        multipliers=multipliers,
        tokens=constraints.token,
        certificate=Certificate(best.primal, 0.0, 0.0, best.gap),
        seconds=seconds,
        norm=norm,
        shape=constraints.geometry.matrix_shape,
        face=_face_of(systems, norm, best) if proven else None,
    )


def _face_of(systems: Systems, norm: AbstractNorm, best: CertifiedVector) -> Face:
    tied = np.zeros(len(best.multipliers), dtype=bool) if systems.equality is None else systems.equality
    return Face(norm, systems.rows[0], systems.bound[0], tied, best.vector, best.multipliers)


def _proposals(systems: Systems, norm: AbstractNorm) -> Iterator[Candidate]:
    """Whoever knows the norm, the fastest first."""
    rows, bound = systems.rows[0], systems.bound[0]
    tied = np.zeros(len(bound), dtype=bool) if systems.equality is None else systems.equality
    if isinstance(norm, LpNorm):
        yield from _of_vectors(norm, rows, bound, tied)
    elif isinstance(norm, SchattenNorm):
        yield from matrix_proposals(norm, rows, bound, tied)
    elif isinstance(norm, CustomNorm) and norm.propose is not None:
        if tied.any():
            raise ValueError(
                f"the norm {norm.name} proposes for inequalities alone, and these constraints have equalities"
            )
        vector, multipliers = norm.propose(rows, bound)
        yield np.asarray(vector, dtype=np.float64), np.asarray(multipliers, dtype=np.float64)
    else:
        raise ValueError(
            f"nobody proposes solutions in the norm {norm.name}; give CustomNorm(propose=...), a function "
            "(rows, bound) -> (vector, multipliers)"
        )


def _of_vectors(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"]
) -> Iterator[Candidate]:
    """Proposals for an lp norm: each attempt trimmed, polished, and as it came."""
    for attempt in _attempts(norm.p, rows, bound, tied):
        proposal = attempt()
        if proposal is None or not all(np.isfinite(part).all() for part in proposal):
            continue  # where nothing is feasible the iterates run away
        yield trim_proposal(norm, rows, bound, tied, *proposal)
        for power in (1, 2):
            better = polish_proposal(norm, rows, bound, tied, *proposal, power)
            if better is None or not all(np.isfinite(part).all() for part in better):
                continue
            yield better
            if 1 < norm.p < 2 and better[0].any() and better[1].any():
                yield polish_at_vertex(norm, rows, bound, tied, *better)
        yield proposal
        if 2 < norm.p < np.inf and not tied.any() and np.isfinite(proposal[0]).all() and proposal[0].any():
            yield fit_multipliers_nearby(norm, rows, bound, proposal[0])


def _attempts(
    p: float, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"]
) -> Iterator[Callable[[], Candidate | None]]:
    """Ways to propose, the fastest first; what is compiled loads when it is needed."""
    from tokenmargin.margin.normed.polyhedral import interior_point, propose_by_highs
    from tokenmargin.margin.normed.smooth import ENOUGH, smooth_interior_point

    k, r = rows.shape
    if p in (1, np.inf):
        yield partial(interior_point, rows, bound, tied, p > 1)
        yield partial(propose_by_highs, rows, bound, tied, common=p > 1)
        return
    # By the smaller linear system first; the other one is slower, and where the first stalls more robust.
    fewer = k < r or bool(tied.any())
    yield partial(smooth_interior_point, rows, bound, tied, p, fewer, ENOUGH)
    if max(k, r) <= _WIDE and not tied.any():
        yield partial(smooth_interior_point, rows, bound, tied, p, not fewer, ENOUGH)
