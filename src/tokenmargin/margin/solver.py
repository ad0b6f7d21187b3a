"""One solver for every max-margin problem: daqp proposes, a polish refines, our own certificate decides.

No solver's word is taken. An answer is "optimal" only when the KKT residuals of the vector we return are at most
`TOLERANCE`, and "infeasible" only with a Farkas vector checked to `TOLERANCE`; anything else is "inaccurate", with
the residuals that were reached.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import daqp
import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.optimize import nnls

from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.solution import Certificate, MarginSolution

__all__ = ["TOLERANCE", "solve"]

TOLERANCE = 1e-10
_NO_UPPER_BOUND = 1e30
_EQUALITY_SENSE = 5  # daqp's code for an equality row


class _Rows(NamedTuple):
    """The problem `min |y|, rows y >= bound` with rows of unit length and the largest bound 1."""

    rows: Float[Array, "k r"]
    bound: Float[Array, " k"]
    equality: Bool[Array, " k"]


def solve(constraints: Constraints) -> MarginSolution:
    """Minimise |p| under `constraints`, with a certificate.

    >>> from tokenmargin.instances import figure3a
    >>> from tokenmargin.margin.constraints import attention_constraints
    >>> solution = solve(attention_constraints(figure3a(), [1, 1, 1]))
    >>> solution.status, solution.vector.round(6)
    ('optimal', array([1.333333, 0.333333]))
    """
    began = time.perf_counter()
    k = len(constraints)
    raw = constraints.rows()
    lengths = np.sqrt(np.einsum("kr,kr->k", raw, raw))
    equality = np.zeros(k, dtype=bool) if constraints.equality is None else constraints.equality
    scaled_bound = np.divide(constraints.bound, lengths, out=np.zeros(k), where=lengths > 0)
    scale = np.abs(scaled_bound).max(initial=0.0)

    def answer(
        status: str, multipliers: Array, certificate: Certificate, farkas: Array | None = None
    ) -> MarginSolution:
        vector = constraints.combine(multipliers) if status != "infeasible" else constraints.geometry.zero()
        norm = float(constraints.geometry.norm(vector))
        margin = 0.0 if status == "infeasible" else (1 / norm if norm > 0 else np.inf)
        return MarginSolution(
            status,  # type: ignore[arg-type]
            vector, margin, multipliers, constraints.token, certificate, farkas, time.perf_counter() - began,
        )  # fmt: skip

    resolved = lengths > constraints.geometry.resolution
    if not resolved[constraints.bound > 0].all():
        # Two tokens at one place cannot be separated. Exactly equal ones prove it; in Gram space, nearly equal ones
        # cannot be told from equal ones.
        j = int(np.argmin(np.where(constraints.bound > 0, lengths, np.inf)))
        farkas = np.eye(1, k, j)[0] / constraints.bound[j]
        status = "infeasible" if lengths[j] == 0 else "inaccurate"
        return answer(status, np.zeros(k), Certificate(farkas=0.0 if lengths[j] == 0 else 1.0), farkas)
    if scale == 0:  # nothing asks for a margin: p = 0
        return answer("optimal", np.zeros(k), Certificate(0.0, 0.0, 0.0, 0.0))

    safe_lengths = np.where(lengths > 0, lengths, 1.0)
    system = _Rows(_compressed(raw / safe_lengths[:, None]), scaled_bound / scale, equality)
    proposal = _propose(system)
    certificate = _kkt(system, proposal)
    if certificate.residual > TOLERANCE:
        witness, alternative = _least_distance(system)
        farkas_residual = _farkas_residual(system, witness)
        if farkas_residual <= TOLERANCE:
            farkas = witness / safe_lengths
            return answer(
                "infeasible", np.zeros(k), Certificate(farkas=farkas_residual), farkas / (farkas @ constraints.bound)
            )
        second = _kkt(system, alternative)
        if second.residual < certificate.residual:
            proposal, certificate = alternative, second
    status = "optimal" if certificate.residual <= TOLERANCE else "inaccurate"
    return answer(status, proposal * scale / safe_lengths, certificate)


def _compressed(rows: Float[Array, "k r"]) -> Float[Array, "k s"]:
    """The same inner products in at most k dimensions: R' of the QR factorisation of the rows."""
    k, r = rows.shape
    return rows if r <= k else np.asarray(np.linalg.qr(rows.T, mode="r")).T


def _propose(system: _Rows) -> Float[Array, " k"]:
    """Multipliers from daqp, polished on their active set; zeros when daqp finds no solution."""
    rows, bound, equality = system
    sense = np.where(equality, _EQUALITY_SENSE, 0).astype(np.intc)
    upper = np.where(equality, bound, _NO_UPPER_BOUND)
    settings = {"eq_reduction": -1} if equality.any() else {}
    _, _, flag, info = daqp.solve(
        None, None, np.ascontiguousarray(rows), upper, np.ascontiguousarray(bound), sense, **settings
    )
    if flag < 1:
        return np.zeros(len(rows))
    return _polished(system, -np.asarray(info["lam"]))


def _polished(system: _Rows, multipliers: Float[Array, " k"]) -> Float[Array, " k"]:
    """Solve the active constraints as equations; keep the result if it is feasible for the dual and no worse."""
    rows, bound, equality = system
    active = np.flatnonzero(multipliers)
    if active.size == 0:
        return multipliers
    # y = A^+ b is the shortest vector on the active constraints; its multipliers solve A' mu = y.
    y = np.linalg.lstsq(rows[active], bound[active], rcond=None)[0]
    mu = np.linalg.lstsq(rows[active].T, y, rcond=None)[0]
    if (mu[~equality[active]] < 0).any():
        return multipliers
    polished = np.zeros_like(multipliers)
    polished[active] = mu
    return polished if _kkt(system, polished).residual <= _kkt(system, multipliers).residual else multipliers


def _kkt(system: _Rows, multipliers: Float[Array, " k"]) -> Certificate:
    """Residuals of the optimality conditions at the vector `rows' multipliers`."""
    rows, bound, equality = system
    y = multipliers @ rows
    squared = y @ y
    if squared == 0:
        return Certificate()
    slack = rows @ y - bound
    # A violation in the units of the original constraint, whose bound is 1, is the scaled one over the scaled bound;
    # constraints with bound 0 are judged against the largest bound, which is 1.
    size = np.where(bound > 0, bound, 1.0)
    violation = np.where(equality, np.abs(slack), np.maximum(-slack, 0.0)) / size
    negative = np.where(equality, 0.0, np.maximum(-multipliers, 0.0))
    return Certificate(
        primal=float(violation.max()),
        dual=float(negative.max() / np.abs(multipliers).max()),
        complementarity=float(np.abs(multipliers * slack).max() / squared),
        gap=float(abs(squared - bound @ multipliers) / squared),
    )


def _least_distance(system: _Rows) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Farkas candidate and multipliers, both from one non-negative least-squares problem (Lawson and Hanson's LDP).

    `min |[rows'; bound'] u - (0, ..., 0, 1)|` over `u >= 0` has residual zero exactly when the problem is infeasible,
    and then u is the proof; otherwise the residual's last entry r turns u into the multipliers `u / r`.
    """
    rows, bound, equality = system
    # An equality is a pair of inequalities: u enters with both signs.
    columns = np.concatenate([rows, -rows[equality]]).T
    ends = np.concatenate([bound, -bound[equality]])
    matrix = np.vstack([columns, ends])
    target = np.zeros(len(matrix))
    target[-1] = 1.0
    try:
        u, _ = nnls(matrix, target, maxiter=30 * matrix.shape[1])
    except RuntimeError:  # iteration limit: no proof either way
        return np.zeros(len(rows)), np.zeros(len(rows))

    def folded(weights: Float[Array, " columns"]) -> Float[Array, " k"]:
        signed = weights[: len(rows)].copy()
        signed[equality] -= weights[len(rows) :]
        return signed

    support = np.flatnonzero(u)
    refined = np.zeros_like(u)
    refined[support] = np.linalg.lstsq(matrix[:, support], target, rcond=None)[0]
    witness = folded(refined if (refined >= 0).all() else u)
    remainder = 1.0 - ends @ u
    multipliers = _polished(system, folded(u) / remainder) if remainder > 0 else np.zeros(len(rows))
    return witness, multipliers


def _farkas_residual(system: _Rows, witness: Float[Array, " k"]) -> float:
    """`|rows' u|` relative to `bound' u`, for `u >= 0` with `bound' u > 0`: zero proves that no p exists."""
    rows, bound, equality = system
    gain = bound @ witness
    if gain <= 0 or (witness[~equality] < 0).any():
        return np.inf
    return float(np.linalg.norm(witness @ rows) / max(gain, np.abs(witness).sum()))
