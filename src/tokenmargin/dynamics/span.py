"""Coordinates in the span of the tokens: where the dynamics happen, whatever the dimension around it.

The gradient in a parameter is a combination of the tokens, so a path moves in their span and what a start has outside
of it stays as it is. In an orthonormal basis of the span both geometries look alike, and d = 500 becomes n T = 24.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.factored import FactoredObjective
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.bilinear import Bilinear
from tokenmargin.problem.geometry import Coordinates


@dataclass(frozen=True, eq=False)
class Span:
    """An orthonormal basis of the span of the tokens of a geometry.

    **Attributes**
    - `tokens`: the same tokens in r coordinates.
    - `basis`: the r basis vectors, as parameters of the geometry; None when its own coordinates serve.
    - `geometry`: where they come from.
    """

    tokens: Coordinates
    basis: Float[Array, "r D"] | None
    geometry: AbstractGeometry

    @classmethod
    def of(cls, geometry: AbstractGeometry, *, exact: bool = False) -> Span:
        """The span of the rows that some token points to.

        Coordinates no more than the tokens serve as they are, unless the `exact` span is asked for.
        """
        used = np.unique(geometry.index[geometry.mask])
        if isinstance(geometry, Coordinates):
            if geometry.dimension <= len(used) and not exact:
                return cls(geometry, None, geometry)
            left, sizes, right = np.linalg.svd(geometry.vectors[used], full_matrices=False)
            kept = sizes > len(used) * np.finfo(float).eps * sizes[0]
            kept[0] = True  # tokens that are all zero have one coordinate, not none
            vectors, basis = left[:, kept] * sizes[kept], right[kept]
        else:
            values, columns = np.linalg.eigh(geometry.gram_of(used))
            kept = values > len(used) * np.finfo(float).eps * values[-1]
            kept[-1] = True
            root = np.sqrt(values[kept])
            vectors = columns[:, kept] * root
            coefficients = np.zeros((root.size, geometry.rows))
            coefficients[:, used] = (columns[:, kept] / np.where(root > 0, root, 1.0)).T
            basis = geometry.combine(coefficients)
        rows = np.zeros(geometry.rows, dtype=np.intp)
        rows[used] = np.arange(len(used))
        return cls(Coordinates(vectors, rows[geometry.index], geometry.mask), basis, geometry)

    @property
    def dimension(self) -> int:
        """Number of coordinates."""
        return self.tokens.dimension

    def reduce(self, p: Float[Array, "... D"]) -> Float[Array, "... r"]:
        """Coordinates of the part of `p` in the span."""
        if self.basis is None:
            return p
        return np.stack([self.geometry.inner(p, vector) for vector in self.basis], axis=-1)

    def lift(self, y: Float[Array, "... r"]) -> Float[Array, "... D"]:
        """The parameter with coordinates `y`."""
        return y if self.basis is None else y @ self.basis


@dataclass(frozen=True, eq=False)
class Reduced:
    """An objective written in the spans of its blocks, and the way there and back.

    **Attributes**
    - `original`: the objective as given.
    - `objective`: the same risk as a function of the coordinates in the spans.
    - `spans`: one per block.
    """

    original: AbstractObjective
    objective: AbstractObjective
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, original: AbstractObjective) -> Reduced:
        """Reduce every trained block; what is not trained stays as it is."""
        problem = original.problem
        if isinstance(original, FactoredObjective):
            return cls._factored(original)
        spans = {name: Span.of(geometry) for name, geometry in original.blocks}
        values = spans["head"].tokens if "head" in spans else problem.values
        reduced = problem.with_keys(spans["prompt"].tokens, values)
        return cls(original, replace(original, problem=reduced), tuple(spans.values()))

    @classmethod
    def _factored(cls, original: FactoredObjective) -> Reduced:
        """The columns of K move in the span of the keys, those of Q in that of the queries."""
        keys, problem = original.problem.keys, original.problem
        if not isinstance(keys, Bilinear):
            return cls(original, original, tuple(Span(space, None, space) for space in original.spaces))
        of_keys, of_queries = Span.of(keys.keys), Span.of(Coordinates.of(keys.queries[:, None]))
        small = Bilinear(of_keys.tokens, of_queries.tokens.tokens[:, 0])
        base = None if original.base is None else of_queries.reduce(of_keys.reduce(original.base).T).T
        reduced = problem.with_keys(small)
        objective, columns = replace(original, problem=reduced, base=base), np.eye(original.rank)
        parts = zip((of_keys, of_queries), objective.spaces, original.spaces, strict=True)
        spans = (Span(to, None if s.basis is None else np.kron(s.basis, columns), space) for s, to, space in parts)
        return cls(original, objective, tuple(spans))

    def reduce(self, theta: Float[Array, "... D"]) -> Float[Array, "... r"]:
        """Coordinates of a parameter, block after block."""
        parts = self.original.split(theta).values()
        return np.concatenate([span.reduce(part) for span, part in zip(self.spans, parts, strict=True)], axis=-1)

    def lift(self, y: Float[Array, "... r"]) -> Float[Array, "... D"]:
        """The parameter with coordinates `y`."""
        parts = self.objective.split(y).values()
        return np.concatenate([span.lift(part) for span, part in zip(self.spans, parts, strict=True)], axis=-1)
