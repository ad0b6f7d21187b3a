"""Nuclear and spectral norms: a semidefinite program by a primal-dual interior-point method of our own.

The nuclear norm's rounds are compiled (`nuclear`). The spectral norm's problem is `min t` under
`[[t I, W], [W', t I]] >= 0`, and its multiplier X holds `G = sum_j m_j M_j = -2 X_12` with trace one. The
directions are of the same kind as the nuclear norm's.

W may be taken in the span of the rows of all M_j, and of their columns: projecting on them satisfies the same
constraints and lengthens no singular value. So the size that counts is that of the data, not of W (`reduce_matrices`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.normed.faces import holding_constraints
from tokenmargin.norms import SchattenNorm

Candidate: TypeAlias = tuple[Float[Array, " r"], Float[Array, " k"]]
_ROUNDS = 60
_ENOUGH = 2e-9  # relative gap: a fifth of what is asked
_ROUGH = 1e-4  # a gap from which Newton's method mostly does the rest
_NEWTON = 4
_EXACT = 1e-13  # of its equations, beside bounds of 1: nothing is left to gain
_SHIFT = 1e-9  # added to a singular system of equations that has solutions
_CLOSE = 1e-2  # relative gap of the iterates from which that of their certificates is looked at
_IDLE = 4  # rounds without a better gap, after which there is none
_NEAR = 0.98  # share of the way to the boundary
_VANISHED = 1e-13  # share of the largest singular value below which a direction is not one of the data's


class ReducedMatrices(NamedTuple):
    """Matrices in the coordinates of their own rows and columns: `M_j = left core_j right'`.

    Where all are outer products, as constraints of attention are, `core_j = u_j v_j'`; u and v are empty elsewhere.
    """

    left: Float[Array, "q a"]
    core: Float[Array, "k a b"]
    right: Float[Array, "d b"]
    u: Float[Array, "k a"]
    v: Float[Array, "k b"]


def matrix_proposals(
    norm: SchattenNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"]
) -> Iterator[Candidate]:
    """A vector and multipliers close to optimal, for the nuclear or the spectral norm."""
    if norm.p not in (1, np.inf):
        raise ValueError(f"there is no solver for the norm {norm.name}; use nuclear, spectral or l2 (Frobenius)")
    small = reduce_matrices(norm.matrices(rows))
    if not small.core.size:
        return
    for w, m in (_nuclear_proposals if norm.p == 1 else _spectral_proposals)(small, bound, tied):
        yield (small.left @ w @ small.right.T).ravel(), m


def reduce_matrices(matrices: Float[Array, "k q d"]) -> ReducedMatrices:
    """The matrices with the directions left out that none of them has."""
    outer = _outer_factors(matrices)
    if outer is not None:
        left, right = _basis(outer[0].T), _basis(outer[1].T)
        u, v = outer[0] @ left, outer[1] @ right
        return ReducedMatrices(left, u[:, :, None] * v[:, None, :], right, u, v)
    left, right = (
        _basis(side.transpose(1, 0, 2).reshape(side.shape[1], -1)) for side in (matrices, matrices.transpose(0, 2, 1))
    )
    core = np.ascontiguousarray(np.einsum("kqd,qa,db->kab", matrices, left, right, optimize=True))
    return ReducedMatrices(left, core, right, np.empty((0, left.shape[1])), np.empty((0, right.shape[1])))


def _basis(columns: Float[Array, "q c"]) -> Float[Array, "q a"]:
    """An orthonormal basis of the span of the columns; the unit matrix where they span everything."""
    vectors, values, _ = np.linalg.svd(columns, full_matrices=False)
    kept = values > _VANISHED * values[0]
    return np.eye(len(columns)) if kept.sum() == len(columns) else vectors[:, kept]


class _BestIterate:
    """The best iterate so far, by the gap that its certificate would have, and whether to go on."""

    def __init__(
        self, core: Float[Array, "k a b"], bound: Float[Array, " k"], tied: Bool[Array, " k"], p: float, enough: float
    ) -> None:
        self.flat, self.bound, self.tied, self.norm = (
            core.reshape(len(core), -1),
            bound,
            tied,
            SchattenNorm(p, core.shape[1:]),
        )
        self.enough = enough
        self.w, self.m, self.gap, self.idle = np.zeros(core.shape[1:]), np.zeros(len(core)), np.inf, 0

    def goes_on(self, w: Float[Array, "a b"], m: Float[Array, " k"]) -> bool:
        """Look at an iterate; False once it is good enough, or the last ones were no better."""
        asks = (self.bound > 0) & ~self.tied
        margin = float(((self.flat @ w.ravel())[asks] / self.bound[asks]).min())
        upper, dual = self.norm.value(w.ravel()), self.norm.dual_value(m @ self.flat)
        gap = float(1 - (self.bound @ m) * margin / (upper * dual)) if margin > 0 and upper > 0 and dual > 0 else np.inf
        self.idle = 0 if not gap < np.inf or gap < 0.7 * self.gap else self.idle + 1
        if gap < self.gap:
            self.w, self.m, self.gap = w, m, gap
        return self.gap > self.enough and self.idle < _IDLE


def _nuclear_proposals(
    small: ReducedMatrices, bound: Float[Array, " k"], tied: Bool[Array, " k"]
) -> Iterator[tuple[Float[Array, "a b"], Float[Array, " k"]]]:
    """By compiled rounds until Newton's method can do the rest; where it does not, from there on to the end."""
    from tokenmargin.margin.normed.nuclear import first_state, run_rounds

    core, (k, a, b) = small.core, small.core.shape
    posed = (small.u, small.v, core, bound, tied)
    state = first_state(core.reshape(k, -1), (a, b), tied)
    if not run_rounds(*posed, state, _ROUNDS, _ROUGH):
        return  # nothing is feasible, or nothing was found
    yield from _try_method(_newton_at_rank, core, bound, tied, 2 * state.X[:a, a:], state.m)
    best = _BestIterate(core, bound, tied, 1.0, _ENOUGH)
    for _ in range(_ROUNDS):
        if not best.goes_on(2 * state.X[:a, a:], state.m.copy()):
            break
        run_rounds(*posed, state, 1, 0.0)
    if best.w.any() and best.m.any():
        yield from _try_method(_newton_at_rank, core, bound, tied, best.w, best.m)
        yield best.w, best.m


def _iterate_spectral(
    core: Float[Array, "k a b"], bound: Float[Array, " k"], tied: Bool[Array, " k"], best: _BestIterate
) -> None:
    """Rounds of the interior-point method of the spectral norm; what they find is kept in `best`."""
    k, a, b = core.shape
    flat, free = core.reshape(k, -1), ~tied
    w, t, X = np.zeros((a, b)), 1.0, np.eye(a + b) / (a + b)
    m, s = np.where(tied, 0.0, 1.0 / k), np.where(tied, 0.0, 1.0)
    for _ in range(_ROUNDS):
        S = _block_matrix(t, w)
        short = flat @ w.ravel() - bound - s
        off, one = -2 * X[:a, a:] - (m @ flat).reshape(a, b), 1 - np.trace(X)
        gap = float(np.sum(X * S) + s @ m)
        if gap < _CLOSE * t and not best.goes_on(w, m):
            return
        factors = _inverse_factors(X, S)
        Z = factors[1].T @ factors[1]
        # Equalities enter as inequalities with a very stiff spring; the slack of an equality is zero.
        stiff = np.where(tied, 1e10 * np.abs(m).max(), np.divide(m, s, out=np.ones(k), where=free))
        solve = _refined_solver(_step_matrix(X, Z, a, (flat.T * stiff) @ flat))
        mean = gap / (a + b + free.sum())
        second, change, centre = np.zeros_like(X), -s * m, 0.0
        for corrected in range(2):
            lead = centre * Z - X - second
            pushed = np.where(tied, 0.0, np.divide(change, s, out=np.zeros(k), where=free)) - stiff * short
            asked = 2 * lead[:a, a:].ravel() + pushed @ flat - off.ravel()
            step = solve(np.append(asked, np.trace(lead) - one))
            dw, dt = step[:-1].reshape(a, b), float(step[-1])
            dS = _block_matrix(dt, dw)
            dX = _symmetric(lead - X @ dS @ Z)
            moved = flat @ dw.ravel()
            ds = np.where(tied, 0.0, moved + short)
            dm = pushed - stiff * moved
            of_X, of_S = _longest_steps(factors, dX, dS)
            forward = min(1.0, _NEAR * min(of_S, _longest_vector_step(s, ds, free)))
            backward = min(1.0, _NEAR * min(of_X, _longest_vector_step(m, dm, free)))
            if not corrected:
                after = np.sum((X + backward * dX) * (S + forward * dS)) + (s + forward * ds) @ (m + backward * dm)
                centre = mean * max(after / gap, 0.0) ** 3
                second, change = _symmetric(dX @ dS @ Z), centre - s * m - ds * dm
        w, t, s = w + forward * dw, t + forward * dt, s + forward * ds
        X, m = X + backward * dX, m + backward * dm


def _step_matrix(
    X: Float[Array, "c c"], Z: Float[Array, "c c"], a: int, springs: Float[Array, "ab ab"]
) -> Float[Array, "ab+1 ab+1"]:
    """The matrix of a step in w and t, once those of X, the slacks and the multipliers are eliminated."""
    bent = _symmetric(X @ Z)  # t stands on the diagonal of the block matrix, w beside it
    out = np.zeros((len(springs) + 1, len(springs) + 1))
    out[:-1, :-1] = _operator_matrix(X, Z, a) + springs
    out[-1, :-1] = out[:-1, -1] = 2 * bent[:a, a:].ravel()
    out[-1, -1] = np.trace(bent)
    return out


def _spectral_proposals(
    small: ReducedMatrices, bound: Float[Array, " k"], tied: Bool[Array, " k"]
) -> Iterator[tuple[Float[Array, "a b"], Float[Array, " k"]]]:
    """By rounds in numpy, then with multipliers of the rank they should have."""
    core = small.core
    best = _BestIterate(core, bound, tied, np.inf, _ENOUGH)
    with np.errstate(all="ignore"), contextlib.suppress(np.linalg.LinAlgError, ValueError):
        _iterate_spectral(core, bound, tied, best)
    if not (best.w.any() and best.m.any()):
        return
    yield from _try_method(_multipliers_at_rank, core, bound, tied, best)
    yield best.w, best.m


def _try_method(
    method: Callable[..., tuple[Float[Array, "a b"], Float[Array, " k"]]], *given: object
) -> list[tuple[Float[Array, "a b"], Float[Array, " k"]]]:
    """What a method finds, unless its equations have no solution."""
    with np.errstate(all="ignore"), contextlib.suppress(np.linalg.LinAlgError):
        return [method(*given)]
    return []


def _newton_at_rank(
    core: Float[Array, "k a b"], bound: Float[Array, " k"], tied: Bool[Array, " k"],
    w: Float[Array, "a b"], m: Float[Array, " k"],
) -> tuple[Float[Array, "a b"], Float[Array, " k"]]:  # fmt: skip
    """Nuclear: Newton's method for `W = A B'` of the rank it should have, `G B = A`, `G' A = B`, active constraints.

    Where a singular value of G is below the largest, W has none. The equations leave A and B free to turn together, so
    the system is singular, and shifted a little.
    """
    k, a, b = core.shape
    given, m = m, np.where(holding_constraints(core.reshape(k, -1), bound, tied, w.ravel(), m), m, 0.0)
    if not m.any():  # an iterate so far away that no constraint holds it
        return w, given
    left, values, right = np.linalg.svd(w, full_matrices=False)
    of_g = np.linalg.svd(np.tensordot(m, core, axes=1), compute_uv=False)
    kept = values / values[0] > 1 - of_g / of_g[0]
    r, active = int(kept.sum()), np.flatnonzero(m)
    A, B, m = left[:, kept] * np.sqrt(values[kept]), right[kept].T * np.sqrt(values[kept]), m / of_g[0]
    held = core[active]
    for _ in range(_NEWTON):
        G, on_b, on_a = np.tensordot(m, core, axes=1), held @ B, held.transpose(0, 2, 1) @ A
        # The unknowns are A row by row, B row by row, then the active multipliers. Column t of A stands at every r-th
        # place from t on, that of B likewise from a r + t on: `G dB - dA` couples the two, column by column.
        system = np.diag(np.r_[np.full((a + b) * r, _SHIFT - 1.0), np.full(len(active), _SHIFT)])
        for t in range(r):
            system[t : a * r : r, a * r + t : (a + b) * r : r] = G
            system[a * r + t : (a + b) * r : r, t : a * r : r] = G.T
        moved = np.concatenate([on_b.reshape(len(active), -1), on_a.reshape(len(active), -1)], axis=1)
        system[: (a + b) * r, (a + b) * r :], system[(a + b) * r :, : (a + b) * r] = moved.T, moved
        missing = np.concatenate(
            [(A - G @ B).ravel(), (B - G.T @ A).ravel(), bound[active] - np.sum(on_b * A, axis=(1, 2))]
        )
        if np.abs(missing).max() < _EXACT:
            break
        step = np.linalg.solve(system, missing)
        A = A + step[: a * r].reshape(a, r)
        B = B + step[a * r : (a + b) * r].reshape(b, r)
        m[active] += step[(a + b) * r :]
    return A @ B.T, m


def _multipliers_at_rank(
    core: Float[Array, "k a b"], bound: Float[Array, " k"], tied: Bool[Array, " k"], best: _BestIterate
) -> tuple[Float[Array, "a b"], Float[Array, " k"]]:
    """Spectral: multipliers whose G has the rank it should: where a singular value of W is below the largest, none.

    The nuclear norm counts what interior points leave there; the smallest change of the multipliers that removes it, to
    first order, is made some times: Newton's method for the rank.
    """
    m = np.where(holding_constraints(core.reshape(len(core), -1), bound, tied, best.w.ravel(), best.m), best.m, 0.0)
    active = np.flatnonzero(m)
    if not active.size:  # an iterate so far away that no constraint holds it
        return best.w, best.m
    of_w = np.linalg.svd(best.w, compute_uv=False)
    for _ in range(3):
        left, values, right = np.linalg.svd(np.tensordot(m, core, axes=1))
        rank = int((values / values[0] > 1 - of_w / of_w[0]).sum())
        left, right = left[:, rank:], right[rank:].T
        if not left.size or not right.size:
            break
        noise = (left.T @ core[active] @ right).reshape(len(active), -1)
        u, sizes, _ = np.linalg.svd(noise, full_matrices=False)
        seen = u[:, sizes > 1e-6]  # not m itself, which would do as well: G = 0 has no noise
        m[active] -= seen @ (seen.T @ m[active])
    return best.w, m


def _outer_factors(core: Float[Array, "k a b"]) -> tuple[Float[Array, "k a"], Float[Array, "k b"]] | None:
    """`M_j = u_j v_j'` where all are of rank one."""
    k = len(core)
    i, j = np.unravel_index(np.abs(core).reshape(k, -1).argmax(axis=1), core.shape[1:])
    every = np.arange(k)
    largest = core[every, i, j]
    v, u = core[every, i, :], core[every, :, j] / np.where(largest == 0, 1.0, largest)[:, None]
    return (u, v) if np.abs(core - u[:, :, None] * v[:, None, :]).max() <= 1e-13 * np.abs(core).max() else None


def _operator_matrix(X: Float[Array, "n n"], Z: Float[Array, "n n"], a: int) -> Float[Array, "c c"]:
    """`X11 W Z22 + Z11 W X22 + X12 W' Z12 + Z12 W' X12` as a matrix on W row by row."""
    (X11, X12, X22), (Z11, Z12, Z22) = _split_blocks(X, a), _split_blocks(Z, a)
    # Entry (i, j), (l, m) by broadcasting, which costs a fraction of np.kron on small matrices.
    out = X11[:, None, :, None] * Z22[None, :, None, :]
    out += Z11[:, None, :, None] * X22[None, :, None, :]
    out += X12[:, None, None, :] * Z12.T[None, :, :, None]
    out += Z12[:, None, None, :] * X12.T[None, :, :, None]
    return out.reshape(X12.size, X12.size)


def _split_blocks(matrix: Float[Array, "n n"], a: int) -> tuple[Array, Array, Array]:
    return matrix[:a, :a], matrix[:a, a:], matrix[a:, a:]


def _block_matrix(t: float, w: Float[Array, "a b"]) -> Float[Array, "n n"]:
    a, b = w.shape
    matrix = np.eye(a + b) * t
    matrix[:a, a:], matrix[a:, :a] = w, w.T
    return matrix


def _symmetric(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return (matrix + matrix.T) / 2


def _inverse_factors(*matrices: Float[Array, "n n"]) -> Float[Array, "2 n n"]:
    """R with `R' R` the inverse, of each; by LAPACK itself, since the checks around it cost more than the work."""
    from scipy.linalg.lapack import dpotrf, dtrtri

    inverse = np.empty((len(matrices), *matrices[0].shape))
    for out, matrix in zip(inverse, matrices, strict=True):
        factor, failed = dpotrf(matrix, lower=1)
        if failed:
            raise np.linalg.LinAlgError("not positive definite")
        out[:] = dtrtri(factor, lower=1, overwrite_c=1)[0]
    return inverse


def _refined_solver(matrix: Float[Array, "n n"]) -> Callable[[Array], Array]:
    """Solves with a square matrix, each time with two steps of refinement."""
    from scipy.linalg.lapack import dgetrf, dgetrs  # loaded when it is needed; by hand, without the checks

    factors, pivots, failed = dgetrf(matrix)
    if failed:
        raise np.linalg.LinAlgError("singular")

    def solve(right: Array) -> Array:
        found = dgetrs(factors, pivots, right)[0]
        for _ in range(2):
            found = found + dgetrs(factors, pivots, right - matrix @ found)[0]
        return np.asarray(found)

    return solve


def _longest_steps(factors: Float[Array, "2 n n"], *changes: Float[Array, "n n"]) -> list[float]:
    """The largest steps that keep matrices positive semidefinite, by the factors of their inverses."""
    from scipy.linalg.lapack import dsyevd

    scaled = (factor @ change @ factor.T for factor, change in zip(factors, changes, strict=True))
    least = (dsyevd(matrix, compute_v=0)[0].item(0) for matrix in scaled)
    return [-1 / value if value < 0 else 1e10 for value in least]


def _longest_vector_step(x: Float[Array, " k"], dx: Float[Array, " k"], free: Bool[Array, " k"]) -> float:
    steepest = (dx[free] / x[free]).min(initial=0.0).item()
    return -1 / steepest if steepest < 0 else 1e10
