"""Max-margin problems of any kind by an interior-point solver, and the proofs of answers checked in extended precision.

Problems here are too large for exact arithmetic; `exact_margin` is for the small ones.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import clarabel
import numpy as np
from scipy import sparse
from tests.oracles.certified import apart, margins_apart
from tests.oracles.rounding import rounding

from tokenmargin.margin import MarginSolution
from tokenmargin.margin.constraints import Constraints, choice_constraints
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem

LARGEST = 1e-9
"""No residual of a claim may be larger: ten times the tolerance, for the rounding of this check itself."""
LARGEST_IN_GRAM = 1e-6
SHARP = 1e-6
"""Largest share by which clarabel's own bounds may differ, for its answer to be a witness."""


@dataclass
class Tally:
    """What was seen of one family."""

    statuses: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    over: int = 0
    oracle_wrong: int = 0
    oracle_silent: int = 0
    residual: float = 0.0
    difference: float = 0.0


class LeastNorm(NamedTuple):
    """What clarabel says of `min |p|`, and what its own vector and multipliers prove of the least norm.

    The vector, made feasible, is no shorter than the shortest one: `high`. Any p that keeps the constraints has
    `multipliers @ bound <= <multipliers @ rows, p>`, so none is shorter than `low`. Both have their rounding against
    them. Where nothing is proven they are infinite and zero; where clarabel says infeasible, both infinite.
    """

    status: str
    vector: np.ndarray
    low: float
    high: float

    @property
    def infeasible(self) -> bool:
        return self.status.endswith("PrimalInfeasible")

    def assert_agrees(self, solution: MarginSolution, vector: np.ndarray | None = None) -> None:
        """The certified length, and the vector in the coordinates of the rows, lie where clarabel's proofs leave them.

        For every feasible q and the shortest p, `|q - p|^2 <= |q|^2 - |p|^2`.
        """
        assert self.high - self.low <= SHARP * self.high
        room = margins_apart(solution)
        assert self.low * (1 - room) <= 1 / solution.margin <= self.high * (1 + room)
        if vector is not None:
            off = np.sqrt((self.high - self.low) * (self.high + self.low)) + apart(solution) * self.high
            assert np.linalg.norm(self.vector - vector) <= off


def least_norm(
    rows: np.ndarray, bound: np.ndarray | float = 1.0, equality: np.ndarray | None = None, *, tolerance: float = 1e-8
) -> LeastNorm:
    """`min |p|` with `rows p >= bound`, equal where `equality` says so, by an interior-point solver."""
    k, d = rows.shape
    bound = np.broadcast_to(bound, k).astype(float)
    equality = np.zeros(k, bool) if equality is None else equality
    order = np.argsort(~equality, kind="stable")
    lengths = np.linalg.norm(rows, axis=1)
    lengths[lengths == 0] = 1.0
    scaled = bound / lengths
    scale = scaled.max(initial=0.0) or 1.0
    held = int(equality.sum())
    cones = [kind(size) for kind, size in ((clarabel.ZeroConeT, held), (clarabel.NonnegativeConeT, k - held)) if size]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
    matrix = sparse.csc_matrix(-(rows / lengths[:, None])[order])
    found = clarabel.DefaultSolver(
        sparse.identity(d, format="csc"), np.zeros(d), matrix, -(scaled / scale)[order], cones, settings
    ).solve()
    status, vector, multipliers = str(found.status), np.array(found.x) * scale, np.empty(k)
    if status.endswith("PrimalInfeasible"):
        return LeastNorm(status, vector, np.inf, np.inf)
    if status != "Solved" and tolerance < 1e-8:
        return least_norm(rows, bound, equality, tolerance=10 * tolerance)
    multipliers[order] = np.array(found.z)
    multipliers = np.where(equality, multipliers, np.maximum(multipliers, 0.0)) / lengths * scale
    if (bound[equality] != 0).any() or not (bound[~equality] > 0).all():  # such bounds are not looked at here
        return LeastNorm(status, vector, 0.0, np.inf)
    return LeastNorm(status, *_proven(rows, bound, equality, vector, multipliers))


def _proven(
    rows: np.ndarray, bound: np.ndarray, equality: np.ndarray, vector: np.ndarray, multipliers: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """The vector made feasible, and bounds on the least norm, of inequalities with positive bounds and of ties."""
    k, d = rows.shape
    lengths = np.linalg.norm(rows, axis=1)
    built = float(np.linalg.norm(multipliers @ rows)) + rounding(k + d, float(np.abs(multipliers) @ lengths))
    low = float(multipliers @ bound) / built * (1 - rounding(k + d)) if built > 0 else 0.0
    if equality.any():
        vector = vector - np.linalg.lstsq(rows[equality], rows[equality] @ vector, rcond=None)[0]
    norm = float(np.linalg.norm(vector))
    kept = (rows @ vector - rounding(2 * d, norm) * lengths)[~equality] / bound[~equality]
    least = float(kept.min(initial=np.inf))
    return (vector / least, low, norm / least * (1 + rounding(d))) if least > 0 else (vector, low, np.inf)


def by_clarabel(constraints: Constraints, *, tolerance: float = 1e-8) -> LeastNorm:
    """The same for constraints of any kind; the vector is in the coordinates of `constraints.rows()`."""
    return least_norm(constraints.rows(), constraints.bound, constraints.equality, tolerance=tolerance)


def semidefinite_value(name: str, matrices: np.ndarray) -> float | None:
    """The least norm of W by clarabel, asked for 1e-9 beside matrices of order one; None where it has no answer.

    `[[P, W], [W', Q]] >= 0`, half the trace for the nuclear norm, P = Q = t I for the spectral one.
    """
    k, q, d = matrices.shape
    n = q + d
    pairs = [(i, j) for j in range(n) for i in range(j + 1)]  # the upper triangle, by columns
    number = {pair: c for c, pair in enumerate(pairs)}
    constraints = np.array([[m[i, j - q] if i < q <= j else 0.0 for i, j in pairs] for m in matrices])
    cost = np.array([0.5 if i == j else 0.0 for i, j in pairs])
    equal = []
    if name == "spectral":
        cost = np.array([float((i, j) == (0, 0)) for i, j in pairs])
        for i, j in pairs:
            if (i < q) == (j < q) and (i, j) != (0, 0):
                line = np.zeros(len(pairs))
                line[number[i, j]] = 1.0
                line[0] = -1.0 if i == j else 0.0
                equal.append(line)
    weights = np.array([1.0 if i == j else np.sqrt(2) for i, j in pairs])
    parts = [np.array(equal).reshape(-1, len(pairs)), -constraints, -np.diag(weights)]
    room = np.r_[np.zeros(len(equal)), -np.ones(k), np.zeros(len(pairs))]
    cones = [clarabel.ZeroConeT(len(equal)), clarabel.NonnegativeConeT(k), clarabel.PSDTriangleConeT(n)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_rel = settings.tol_gap_abs = settings.tol_feas = 1e-9
    nothing = sparse.csc_matrix((len(pairs), len(pairs)))
    solver = clarabel.DefaultSolver(nothing, cost, sparse.csc_matrix(np.vstack(parts)), room, cones, settings)
    found = solver.solve()
    return float(found.obj_val) if str(found.status) == "Solved" else None


def _extended_rows(constraints: Constraints) -> np.ndarray:
    """The rows in extended precision, differences taken there; in Gram space, those that have its inner products."""
    if not isinstance(constraints.geometry, Coordinates):
        return constraints.rows().astype(np.longdouble)
    vectors = constraints.geometry.vectors.astype(np.longdouble)
    rows = vectors[constraints.plus] - (0 if constraints.minus is None else vectors[constraints.minus])
    return rows if constraints.sign is None else rows * constraints.sign[:, None]


def check_proof(constraints: Constraints, solution: MarginSolution) -> float:
    """The largest residual of the claim, recomputed in extended precision on the original rows."""
    rows = _extended_rows(constraints)
    bound = constraints.bound.astype(np.longdouble)
    equality = np.zeros(len(rows), bool) if constraints.equality is None else constraints.equality
    lengths = np.sqrt((rows**2).sum(axis=1))
    if solution.status == "infeasible":
        farkas = solution.farkas
        assert farkas is not None
        if (farkas[~equality] < 0).any() or not bound @ farkas > 0:
            return np.inf
        weight = np.abs(farkas) @ lengths
        return float(np.sqrt(((farkas @ rows) ** 2).sum()) / weight) if weight > 0 else 0.0
    multipliers = solution.multipliers.astype(np.longdouble)
    built = multipliers @ rows
    # In Gram space the parameter is the multipliers; in coordinates it is the vector itself.
    vector = solution.vector.astype(np.longdouble) if isinstance(constraints.geometry, Coordinates) else built
    norm, reach = np.sqrt(vector @ vector), np.sqrt(built @ built)
    if norm == 0:
        return float(bound.max(initial=0.0))
    slack = rows @ vector - bound
    largest = (bound / np.where(lengths > 0, lengths, 1)).max()
    size = np.where(bound > 0, bound, np.where(lengths > 0, largest * lengths, 1))
    primal = (np.where(equality, np.abs(slack), -slack) / size).max()
    negative = (-np.where(equality, 0, multipliers)).max() / np.abs(multipliers).max()
    return float(max(primal, negative, abs(1 - bound @ multipliers / (reach * norm))))


def compare(constraints: Constraints, solution: MarginSolution, tally: Tally, *, peer: bool = True) -> None:
    """Count one answer, and what the check of its proof and (as a `peer`) the oracle say of it."""
    tally.statuses[solution.status] += 1
    if solution.status == "inaccurate":
        return
    allowed = LARGEST if isinstance(constraints.geometry, Coordinates) else LARGEST_IN_GRAM
    residual = check_proof(constraints, solution)
    tally.residual = max(tally.residual, residual)
    tally.over += residual > allowed
    if not peer or not len(constraints) or not constraints.bound.any():
        return
    status, vector, *_ = by_clarabel(constraints)
    said = {"Solved": "optimal", "PrimalInfeasible": "infeasible"}.get(status)
    if said is None:
        tally.oracle_silent += 1
    elif said != solution.status:
        # Our claim comes with a proof that was just checked: the oracle is wrong if the proof holds.
        tally.oracle_wrong += residual <= allowed
        tally.wrong += residual > allowed
    elif said == "optimal":
        ours = solution.multipliers @ constraints.rows()
        tally.difference = max(tally.difference, float(np.linalg.norm(ours - vector) / np.linalg.norm(vector)))


def compare_choice(
    problem: TokenProblem, sets: np.ndarray, solution: MarginSolution, tally: Tally, *, peer: bool = True
) -> None:
    """The same for the least over all choices, of which the oracle tries every one."""
    tally.statuses[solution.status] += 1
    if solution.status == "inaccurate":
        return
    minima = solution.minima
    for minimum in minima:
        constraints = choice_constraints(problem, sets, dict(enumerate(minimum.choice or ())))
        residual = check_proof(constraints, minimum)
        tally.residual = max(tally.residual, residual)
        tally.over += residual > LARGEST
    if not peer:
        return
    lengths = []
    for chosen in itertools.product(*(np.flatnonzero(row).tolist() for row in sets)):
        status, vector, *_ = by_clarabel(choice_constraints(problem, sets, dict(enumerate(chosen))))
        tally.oracle_silent += status not in ("Solved", "PrimalInfeasible")
        if status == "Solved":
            lengths.append(float(np.linalg.norm(vector)))
    least = min(lengths, default=np.inf)
    # The oracle's own accuracy: its default tolerance is 1e-8, on problems whose rows were made of length 1.
    tally.wrong += (least < np.inf) != solution.is_optimal or least * solution.margin < 1 - 1e-6
    if solution.is_optimal and least < np.inf:
        tally.difference = max(tally.difference, abs(least * solution.margin - 1))
