"""All shortest vectors, in norms that leave several: the dimension of their set, and angles to it.

Multipliers that are optimal say what all solutions share (complementary slackness): constraints with a positive
multiplier hold with equality, and with `g = rows' m`

- l1: coordinates where `|g_i|` is below the largest are zero, the others have the sign of g;
- linf: coordinates where g is not zero are at the bound, with its sign;
- nuclear: `W = U H V'` with H symmetric, not negative, on the singular vectors of G for its largest singular value;
- spectral: `W = t U V' + U_0 R V_0'` with the singular vectors of G, R free on the others and no longer than t.

What is left are linear equations; their number of free directions is the dimension of the face. Interior points end
inside of it, where every inequality that some solution satisfies strictly is strict, so all this can be read off.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.normed.polish import holding_constraints, stiff_coordinates
from tokenmargin.margin.single.proposals import nearest_point
from tokenmargin.norms import AbstractNorm, LpNorm, SchattenNorm

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
    """Between a unit vector and another, right for small angles as well; pi/2 for zero."""
    length = float(np.linalg.norm(y))
    if length < 1e-12:
        return float(np.pi / 2)
    unit = y / length
    return float(2 * np.arctan2(np.linalg.norm(v - unit), np.linalg.norm(v + unit)))
