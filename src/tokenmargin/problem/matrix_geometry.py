"""The geometries of a matrix W.

Matrix attention has the logits `z_i' W k_it`, those of one vector, W row by row, when the tokens become the rank-one
matrices `z_i k_it'`. Everything proven for a vector p then holds for W, with the Frobenius norm of W for the Euclidean
norm of p. Only this module knows how a matrix is laid out as a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.norms import EPS
from tokenmargin.problem.abstract_geometry import AbstractGeometry, as_array, check_finite
from tokenmargin.problem.geometry import Coordinates, Gram


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Bilinear(Coordinates):
    """Coordinates of a matrix W, row by row; the tokens are `z_i k_it'`, each number rounded to a double.

    What is proven is proven of these, but for which ties depend on others: that is decided by z and k themselves. Keys
    far from the origin lose digits here: centre them first.

    **Attributes**
    - `keys`: the tokens `k_it`, in d coordinates.
    - `queries`: `z_i`, a row of q numbers per input.
    - `factors`: z and k of every row of the dictionary.
    """

    keys: Coordinates
    queries: Float[Array, "n q"]
    factors: tuple[Float[Array, "m q"], Float[Array, "m d"]]

    def __init__(self, keys: Coordinates, queries: Float[Array, "n q"] | Float[Array, " q"]) -> None:
        if queries.ndim == 1:
            rows, index, of_row = keys.vectors, keys.index, queries[None]
        else:
            rows, index = keys.vectors[keys.index.ravel()], np.arange(keys.index.size).reshape(keys.index.shape)
            of_row = np.repeat(queries, keys.T, axis=0)
        outer = of_row[:, :, None] * rows[:, None, :]
        shape = (queries.shape[-1], keys.dimension)
        super().__init__(outer.reshape(len(rows), -1), index, keys.mask, matrix_shape=shape)
        object.__setattr__(self, "keys", keys)
        object.__setattr__(self, "factors", (np.broadcast_to(of_row, (len(rows), of_row.shape[1])), rows))
        object.__setattr__(self, "queries", np.broadcast_to(queries, (keys.n, queries.shape[-1])))

    def at_inputs(self, inputs: Int[Array, " k"]) -> Bilinear:
        return Bilinear(self.keys.at_inputs(inputs), self.queries[inputs])


def bilinear(keys: AbstractGeometry, queries: Float[Array, "n q"] | Float[Array, " q"]) -> AbstractGeometry:
    """Geometry of the matrix parameter W in the logits `z_i' W k_it = <z_i k_it', W>`.

    In coordinates a parameter is W flattened row by row (`as_matrix` undoes it); in Gram space the inner products are
    the Hadamard product of two Gram matrices. One query shared by all inputs leaves the dictionary its size; a query
    per input gives every token its own row.

    **Arguments**
    - `keys`: the tokens.
    - `queries`: `z`, or one `z_i` per input.
    """
    queries = as_array("queries", queries, float)
    if queries.ndim not in (1, 2) or (queries.ndim == 2 and len(queries) != keys.n):
        raise ValueError(f"queries must have shape (q,) or (n, q) with n = {keys.n}, got {queries.shape}")
    check_finite("queries", queries)
    if isinstance(keys, Coordinates):
        return Bilinear(keys, queries)
    assert isinstance(keys, Gram), "the two geometries"
    z = np.atleast_2d(queries)
    if queries.ndim == 1:
        rows, index, of_row = np.arange(keys.n_vectors), keys.index, np.zeros(keys.n_vectors, dtype=np.intp)
    else:
        rows, index = keys.index.ravel(), np.arange(keys.index.size).reshape(keys.index.shape)
        of_row = np.repeat(np.arange(keys.n), keys.T)
    known = {"accuracy": keys.accuracy + (z.shape[1] + 4) * EPS}
    return Gram(keys.gram_of(rows) * (z @ z.T)[np.ix_(of_row, of_row)], index, keys.mask, **known)


def as_matrix(geometry: AbstractGeometry, vector: Float[Array, "... D"]) -> Float[Array, "... q d"]:
    """A parameter of a matrix geometry as the matrix W; a stack of them as a stack of matrices."""
    if geometry.matrix_shape is None:
        what = "is a vector" if isinstance(geometry, Coordinates) else "is known by inner products alone"
        raise TypeError(
            f"the parameter of this problem {what}, not a matrix; pose one in coordinates with self_attention, "
            "cross_attention or with_matrix"
        )
    vector = np.asarray(vector, dtype=np.float64)
    if vector.shape[-1:] != (geometry.dimension,):
        raise ValueError(f"a parameter of this problem has {geometry.dimension} numbers, got shape {vector.shape}")
    return vector.reshape(*vector.shape[:-1], *geometry.matrix_shape)
