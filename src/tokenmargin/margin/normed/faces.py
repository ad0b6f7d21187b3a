"""Which constraints hold a solution and which coordinates are free.

A proposal becomes exact where the equations of its active set are solved. In norms that leave several shortest vectors
the same equations give the dimension of their set, and angles to it: multipliers that are optimal say what all
solutions share (complementary slackness). Constraints with a positive multiplier hold with equality, and, with
`g = rows' m`,

- l1: coordinates where `|g_i|` is below the largest are zero, the others have the sign of g;
- linf: coordinates where g is not zero are at the bound, with its sign;
- nuclear: `W = U H V'` with H symmetric, not negative, on the singular vectors of G for its largest singular value;
- spectral: `W = t U V' + U_0 R V_0'` with the singular vectors of G, R free on the others and no longer than t.

What is left are linear equations; their number of free directions is the dimension of the face. Interior points end
inside of it, where every inequality that some solution satisfies strictly is strict, so all this can be read off.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.single.proposals import nearest_point
from tokenmargin.norms import AbstractNorm, LpNorm, SchattenNorm
from tokenmargin.selection import angle

_CLOSE = 0.05  # slack, of constraints whose bounds are at most 1
_VANISHED = 1e-13  # share of the largest coordinate that is rounding
_STEPS = 4  # of Newton's method, from a proposal that is right to some digits


def holding_constraints(
    rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"],
    x: Float[Array, " r"], m: Float[Array, " k"], power: int = 1,
) -> Bool[Array, " k"]:  # fmt: skip
    """The constraints that hold the solution: their multiplier is larger, relatively, than their slack to a power."""
    slack = np.abs(rows @ x - bound)
    return tied | (m / max(m.max(), 1e-300) > slack**power)


def stiff_coordinates(norm: LpNorm, x: Float[Array, " r"], g: Float[Array, " r"]) -> Bool[Array, " r"]:
    """l1: coordinates that may differ from zero, where `|g_i|` is largest. linf: those at the bound, where g is not."""
    size, pull = np.abs(x) / np.abs(x).max(), np.abs(g) / np.abs(g).max()
    return size > 1 - pull if norm.p == 1 else pull > 1 - size


def trim_proposal(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"],
    x: Float[Array, " r"], m: Float[Array, " k"],
) -> tuple[Float[Array, " r"], Float[Array, " k"]]:  # fmt: skip
    """The proposal without what interior points leave: multipliers of idle constraints, coordinates that vanish."""
    if not (x.any() and m.any()):
        return x, m
    m = np.where(holding_constraints(rows, bound, tied, x, m), m, 0.0)
    g = m @ rows
    if norm.p == 1 and g.any():
        x = np.where(stiff_coordinates(norm, x, g), x, 0.0)
    if np.isinf(norm.p) and g.any():
        x = np.where(stiff_coordinates(norm, x, g), np.sign(x) * np.abs(x).max(), x)
    return x, m


def polish_proposal(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"],
    x: Float[Array, " r"], m: Float[Array, " k"], power: int = 1,
) -> tuple[Float[Array, " r"], Float[Array, " k"]] | None:  # fmt: skip
    """The proposal with the equations of its active set solved, by the smallest change; None where that cannot be.

    A `power` of 2 reads more constraints as active.
    """
    m = np.where(tied, m, np.maximum(m, 0.0))
    if not (x.any() and m.any() and np.isfinite(x).all() and np.isfinite(m).all()):
        return None
    active = np.flatnonzero(holding_constraints(rows, bound, tied, x, m, power))
    kept, asked = rows[active], bound[active]
    pull = norm.dual_value(m @ rows)
    if pull == 0:  # the multipliers cancel: they prove that nothing is feasible, or nothing at all
        return None
    with np.errstate(all="ignore"):
        weights = m[active] / pull
        try:
            if 1 < norm.p < np.inf:
                y, weights = _newton_in_multipliers(norm.p, kept, asked, x, m[active])
            else:
                y, weights = _solve_active_set(norm, kept, asked, x, weights)
        except np.linalg.LinAlgError:
            return None
    multipliers = np.zeros_like(m)
    multipliers[active] = weights
    return y, multipliers


def polish_at_vertex(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"],
    x: Float[Array, " r"], m: Float[Array, " k"],
) -> tuple[Float[Array, " r"], Float[Array, " k"]]:  # fmt: skip
    """lp: the vector as its active constraints determine it, and the multipliers by its gradient.

    For p < 2 and a coordinate that vanishes, x is a double root as a function of the multipliers, and Newton's method
    halves the error only; but there x often is where constraints cross, and they tell.
    """
    active = np.flatnonzero(holding_constraints(rows, bound, tied, x, m))
    inverse = np.linalg.pinv(rows[active], rcond=1e-11)
    y = x + inverse @ (bound[active] - rows[active] @ x)
    y[np.abs(y) < _VANISHED * np.abs(y).max(initial=0.0)] = 0.0
    multipliers = np.zeros_like(m)
    multipliers[active] = m[active] + inverse.T @ (_gradient(norm.p, y) - m[active] @ rows[active])
    return y, multipliers


def fit_multipliers_nearby(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], x: Float[Array, " r"]
) -> tuple[Float[Array, " r"], Float[Array, " k"]]:
    """The vector with other multipliers: non-negative ones of constraints close by that make up its gradient best.

    For p > 2 interior points find x to more digits than multipliers, and which constraints hold may not be clear.
    """
    from scipy.optimize import nnls  # it takes half a second to load, and is needed by the hardest cases alone

    close = np.flatnonzero(rows @ x - bound < _CLOSE)
    m = np.zeros(len(bound))
    with contextlib.suppress(RuntimeError):  # no convergence: no proposal
        if len(close):  # of no columns at all, scipy 1.17 frees memory twice, which ends the process
            m[close] = nnls(rows[close].T, _gradient(norm.p, x))[0]
    return x, m


def _solve_active_set(
    norm: LpNorm, rows: Float[Array, "a r"], bound: Float[Array, " a"], x: Float[Array, " r"], m: Float[Array, " a"]
) -> tuple[Float[Array, " r"], Float[Array, " a"]]:
    """l1: `rows x = bound` on the free coordinates, `rows' m` equal to the signs there. linf: t in the place of all
    that are at the bound, `rows' m` zero on the others and signs' combination equal to one."""
    stiff, signs = stiff_coordinates(norm, x, m @ rows), np.sign(x)
    if norm.p == 1:
        columns, start = rows[:, stiff], x[stiff]
        target = signs[stiff]
    else:
        columns = np.column_stack([rows[:, stiff] @ signs[stiff], rows[:, ~stiff]])
        start = np.r_[np.abs(x).max(), x[~stiff]]
        target = np.r_[1.0, np.zeros((~stiff).sum())]
    inverse = np.linalg.pinv(columns, rcond=1e-11)
    for _ in range(2):
        start = start + inverse @ (bound - columns @ start)
        m = m + inverse.T @ (target - columns.T @ m)
    y = np.zeros_like(x)
    if norm.p == 1:
        y[stiff] = start
    else:
        y[stiff], y[~stiff] = start[0] * signs[stiff], start[1:]
    return y, m


def _newton_in_multipliers(
    p: float, rows: Float[Array, "a r"], bound: Float[Array, " a"], x: Float[Array, " r"], m: Float[Array, " a"]
) -> tuple[Float[Array, " r"], Float[Array, " a"]]:
    """`rows x = bound` with x the gradient of `|g|_q^2 / 2` at `g = rows' m`: Newton's method in the multipliers."""
    q = p / (p - 1)
    m = m * ((bound @ m) / float(LpNorm(q).value(m @ rows)) ** 2)
    for _ in range(_STEPS):
        g = m @ rows
        norm = float(LpNorm(q).value(g))
        u = np.abs(g / norm)
        y = np.sign(g) * u ** (q - 1)
        curved = (rows * ((q - 1) * np.maximum(u, 1e-13) ** (q - 2))) @ rows.T + (2 - q) * np.outer(rows @ y, rows @ y)
        missing = bound - norm * (rows @ y)
        if not (np.isfinite(curved).all() and np.isfinite(missing).all()):  # the iterates had run away
            raise np.linalg.LinAlgError("numbers beyond the doubles")
        m = m + np.linalg.lstsq(curved, missing, rcond=1e-13)[0]
    return _gradient(q, m @ rows), m


def _gradient(p: float, x: Float[Array, " r"]) -> Float[Array, " r"]:
    """Of `|x|_p^2 / 2`."""
    length = float(LpNorm(p).value(x))
    return np.asarray(length * np.sign(x) * np.abs(x / length) ** (p - 1))


_SAME = 1e-6  # singular values this close to the largest, relatively, are equal to it; below it, zero
_ROUNDS, _STILL = 5000, 1e-12  # of alternating projections: at most, and the change below which they have converged


@dataclass(frozen=True, eq=False)
class Face:
    """All shortest vectors of a max-margin problem, by one of them and its multipliers, in the solver's units."""

    norm: AbstractNorm
    rows: Float[Array, "k r"]
    bound: Float[Array, " k"]
    tied: Bool[Array, " k"]
    x: Float[Array, " r"]
    m: Float[Array, " k"]

    @cached_property
    def active(self) -> Bool[Array, " k"]:
        """Constraints that hold with equality in every solution."""
        return holding_constraints(self.rows, self.bound, self.tied, self.x, self.m)

    @cached_property
    def dimension(self) -> int | None:
        """Of the set of solutions: 0 where there is one. None for a norm of which nothing is known."""
        if isinstance(self.norm, LpNorm) and 1 < self.norm.p < np.inf:
            return 0
        free = self._free_directions()
        if free is None:
            return None
        return free.shape[1] - _rank(self.rows[self.active] @ free)

    def _free_directions(self) -> Float[Array, "r c"] | None:
        """Directions in which a solution may be moved, but for the active constraints."""
        g, eye = self.m @ self.rows, np.eye(len(self.x))
        if isinstance(self.norm, LpNorm):
            stiff = stiff_coordinates(self.norm, self.x, g)
            return eye[:, stiff if self.norm.p == 1 else ~stiff]
        if not isinstance(self.norm, SchattenNorm):
            return None
        if self.norm.p == 1:
            left, right = self._singular_vectors()
            pairs = [(i, j) for i in range(left.shape[1]) for j in range(i + 1)]
            both = [np.outer(left[:, i], right[:, j]) + np.outer(left[:, j], right[:, i]) for i, j in pairs]
            return np.array([one.ravel() for one in both]).T
        left, values, right = np.linalg.svd(self.norm.matrices(g))
        rank = int((values > _SAME * values[0]).sum())
        return np.kron(left[:, rank:], right[rank:].T)

    def _singular_vectors(self) -> tuple[Float[Array, "q s"], Float[Array, "d s"]]:
        """Of G, for its largest singular value."""
        assert isinstance(self.norm, SchattenNorm), "a norm of singular values"
        left, values, right = np.linalg.svd(self.norm.matrices(self.m @ self.rows), full_matrices=False)
        top = values > (1 - _SAME) * values[0]
        return left[:, top], right[top].T

    def angle(self, vector: Float[Array, " r"]) -> float:
        """The smallest Euclidean angle between `vector` and a solution; pi/2 where it is that or more."""
        v = np.asarray(vector, dtype=np.float64).ravel()
        if not v.any():
            raise ValueError("the zero vector has no angle")
        v = v / np.linalg.norm(v)
        if self.dimension == 0:
            return _angle(v, self.x)
        if isinstance(self.norm, LpNorm):
            nearest = self._nearest_by_signs(v)
        elif isinstance(self.norm, SchattenNorm) and self.norm.p == 1:
            nearest = self._nearest_of_low_rank(v)
        else:
            raise ValueError(
                f"the solutions in the norm {self.norm.name} are not unique, and there is no way to the nearest of "
                "them; compare margins instead"
            )
        return _angle(v, nearest)

    @property
    def _cone_rows(self) -> tuple[Float[Array, "k r"], Float[Array, " r"]]:
        """Constraints of the cone of solutions, `(row - bound g / gain) y` zero where active or not negative; g / gain.

        On solutions g has the value `bound' m`, so `g y / gain` says of which multiple of a solution y is.
        """
        share = self.m @ self.rows / (self.bound @ self.m)
        return self.rows - self.bound[:, None] * share, share

    def _nearest_by_signs(self, v: Float[Array, " r"]) -> Float[Array, " r"]:
        """The point of the cone of solutions nearest to v: a small quadratic program."""
        assert isinstance(self.norm, LpNorm), "a norm of coordinates"
        cone, share = self._cone_rows
        eye, signs = np.eye(len(v)), np.sign(self.m @ self.rows)
        stiff = stiff_coordinates(self.norm, self.x, self.m @ self.rows)
        if self.norm.p == 1:
            equal, more = eye[~stiff], eye[stiff] * signs[stiff, None]
        else:
            length = np.abs(self.x).max()
            equal = eye[stiff] * signs[stiff, None] - length * share
            more = np.concatenate([length * share - eye[~stiff], length * share + eye[~stiff]])
        rows = np.concatenate([cone, equal, more])
        tied = np.concatenate([self.active, np.ones(len(equal), dtype=bool), np.zeros(len(more), dtype=bool)])
        return nearest_point(v, rows, tied)

    def _nearest_of_low_rank(self, v: Float[Array, " r"]) -> Float[Array, " r"]:
        """The same for `W = U H V'`: projections on the linear constraints and on `H >= 0` in turn (Dykstra)."""
        left, right = self._singular_vectors()
        s = left.shape[1]
        cone, _ = self._cone_rows
        onto = np.einsum("qi,dj->qdij", left, right).reshape(len(v), s * s)
        rows = cone @ onto
        rows = (rows + rows.reshape(-1, s, s).transpose(0, 2, 1).reshape(-1, s * s)) / 2
        turned = np.concatenate([rows, _antisymmetric(s)])
        tied = np.concatenate([self.active, np.ones(len(turned) - len(rows), dtype=bool)])
        point, left_over = v @ onto, np.zeros(s * s)
        for _ in range(_ROUNDS):
            linear = nearest_point(point, turned, tied)
            values, vectors = np.linalg.eigh((linear + left_over).reshape(s, s))
            after = ((vectors * np.maximum(values, 0.0)) @ vectors.T).ravel()
            left_over = linear + left_over - after
            if np.abs(after - point).max() < _STILL:
                break
            point = after
        return onto @ after


def _antisymmetric(s: int) -> Float[Array, "c e"]:
    """Rows that vanish on symmetric matrices."""
    rows = []
    for i in range(s):
        for j in range(i):
            row = np.zeros((s, s))
            row[i, j], row[j, i] = 1.0, -1.0
            rows.append(row.ravel())
    return np.array(rows).reshape(-1, s * s)


def _rank(matrix: Float[Array, "a c"]) -> int:
    if not matrix.size:
        return 0
    values = np.linalg.svd(matrix, compute_uv=False)
    return int((values > _SAME * max(values[0], _SAME)).sum())


def _angle(v: Float[Array, " r"], y: Float[Array, " r"]) -> float:
    """Between a unit vector and another; pi/2 for zero."""
    return float(angle(v, y)) if np.linalg.norm(y) >= 1e-12 else float(np.pi / 2)
