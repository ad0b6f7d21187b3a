"""Coordinates in the span of the tokens: where the dynamics happen, whatever the dimension around it.

The gradient in a parameter is a combination of the tokens, so a path moves in their span and what a start has outside
of it stays as it is. In an orthonormal basis of the span both geometries look alike, and d = 500 becomes n T = 24.

Keys may have any length. Where they are 1e-30 or 1e20 long, logits of order one need a p of 1e30 or 1e-20, and a solver
that expects lengths of order one fails. A flow of the prompt is then followed in a unit of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.norms import EPS
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.factored import FactoredObjective
from tokenmargin.objective.products import ProductObjective
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.matrix_geometry import Bilinear

_ORDINARY = 10  # keys whose differences are at most 2^10 and at least 2^-10 long are followed as they are
_EXTREME = 460  # beyond 2^460 (1e138) or below 2^-460, squares of the lengths that p comes to are no doubles


@dataclass(frozen=True, eq=False)
class Span:
    """An orthonormal basis of the span of the tokens of a geometry.

    **Attributes**
    - `tokens`: the same tokens in r coordinates, times the unit.
    - `basis`: the r basis vectors, as parameters of the geometry; None when its own coordinates serve.
    - `geometry`: where they come from.
    - `unit`: length of a parameter whose coordinates have length one, so that logits are the same: a power of two.
    """

    tokens: Coordinates
    basis: Float[Array, "r D"] | None
    geometry: AbstractGeometry
    unit: float = 1.0

    @classmethod
    def of(cls, geometry: AbstractGeometry, *, exact: bool = False) -> Span:
        """The span of the rows that some token points to.

        Where there are no more coordinates than tokens they are kept as they are, unless `exact`.
        """
        used = np.unique(geometry.index[geometry.mask])
        if isinstance(geometry, Coordinates):
            if geometry.dimension <= len(used) and not exact:
                return cls(geometry, None, geometry)
            left, sizes, right = np.linalg.svd(geometry.vectors[used], full_matrices=False)
            kept = sizes > len(used) * EPS * sizes[0]
            kept[0] = True  # tokens that are all zero have one coordinate, not none
            vectors, basis = left[:, kept] * sizes[kept], right[kept]
        else:
            values, columns = np.linalg.eigh(geometry.gram_of(used))
            kept = values > len(used) * EPS * values[-1]
            kept[-1] = True
            root = np.sqrt(values[kept])
            vectors = columns[:, kept] * root
            coefficients = np.zeros((root.size, geometry.n_vectors))
            coefficients[:, used] = (columns[:, kept] / np.where(root > 0, root, 1.0)).T
            basis = geometry.combine(coefficients)
        rows = np.zeros(geometry.n_vectors, dtype=np.intp)
        rows[used] = np.arange(len(used))
        return cls(Coordinates(vectors, rows[geometry.index], geometry.mask), basis, geometry)

    def in_its_unit(self) -> Span:
        """The same span in a unit in which the longest difference of two tokens is of order one."""
        length = longest_difference(self.tokens)
        exponent = int(np.log2(length)) if length > 0 else 0
        if abs(exponent) <= _ORDINARY:
            return self
        if abs(exponent) > _EXTREME:
            raise ValueError(
                f"keys must differ by 1e-138 to 1e138 to be followed, got {length:.0e}: squares of the lengths that p "
                "comes to are no doubles; scale the keys, and p by the inverse"
            )
        scaled = np.ldexp(self.tokens.vectors, -exponent)
        tokens = Coordinates(scaled, self.tokens.index, self.tokens.mask)
        return replace(self, tokens=tokens, unit=float(np.ldexp(1.0, -exponent)))

    @property
    def dimension(self) -> int:
        """Number of coordinates."""
        return self.tokens.dimension

    def reduce(self, p: Float[Array, "... D"]) -> Float[Array, "... r"]:
        """Coordinates of the part of `p` in the span."""
        if self.basis is None:
            return p / self.unit
        return np.stack([self.geometry.inner(p, vector) for vector in self.basis], axis=-1) / self.unit

    def lift(self, y: Float[Array, "... r"]) -> Float[Array, "... D"]:
        """The parameter with coordinates `y`."""
        return self.unit * (y if self.basis is None else y @ self.basis)


def longest_difference(tokens: Coordinates) -> float:
    """Longest difference of two tokens of an input, up to a factor of two: the first one is in the middle."""
    apart = np.where(tokens.mask[..., None], tokens.tokens - tokens.tokens[:, :1], 0.0)
    largest = float(np.abs(apart).max(initial=0.0)) or 1.0  # squares of lengths may not be numbers
    return 2 * largest * float(np.linalg.norm(apart / largest, axis=-1).max(initial=0.0))


@dataclass(frozen=True, eq=False)
class ReducedObjective:
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
    def of(cls, original: AbstractObjective, *, in_units: bool = False) -> ReducedObjective:
        """Reduce every trained block; what is not trained stays as it is. A prompt alone may have its own unit."""
        problem = original.problem
        if isinstance(original, ProductObjective):
            return cls._product(original)
        spans = {name: Span.of(geometry) for name, geometry in original.blocks}
        if in_units and len(spans) == 1:
            spans = {name: span.in_its_unit() for name, span in spans.items()}
        values = spans["head"].tokens if "head" in spans else problem.values
        reduced = problem.with_keys(spans["prompt"].tokens, values)
        return cls(original, replace(original, problem=reduced), tuple(spans.values()))

    @classmethod
    def _product(cls, original: ProductObjective) -> ReducedObjective:
        """The columns of K move in the span of the keys, those of Q in that of the queries; other factors anywhere."""
        keys, problem = original.problem.keys, original.problem
        if not (isinstance(original, FactoredObjective) and isinstance(keys, Bilinear)):
            return cls(original, original, tuple(Span(space, None, space) for space in original.spaces))
        of_keys, of_queries = Span.of(keys.keys), Span.of(Coordinates.of(keys.queries[:, None]))
        small = Bilinear(of_keys.tokens, of_queries.tokens.tokens[:, 0])
        base = None if original.base is None else of_queries.reduce(of_keys.reduce(original.base).T).T
        reduced = problem.with_keys(small)
        # A factor lies row by row: a basis vector of the span, times any of its columns, is a basis vector of factors.
        objective, columns = replace(original, problem=reduced, base=base), np.eye(original.rank)
        parts = zip((of_keys, of_queries), objective.spaces, original.spaces, strict=True)
        spans = (Span(to, None if s.basis is None else np.kron(s.basis, columns), space) for s, to, space in parts)
        return cls(original, objective, tuple(spans))

    @property
    def unit(self) -> float:
        """Length of a parameter whose coordinates have length one."""
        return self.spans[0].unit

    def reduce(self, theta: Float[Array, "... D"]) -> Float[Array, "... r"]:
        """Coordinates of a parameter, block after block."""
        parts = self.original.split(theta).values()
        return np.concatenate([span.reduce(part) for span, part in zip(self.spans, parts, strict=True)], axis=-1)

    def lift(self, y: Float[Array, "... r"]) -> Float[Array, "... D"]:
        """The parameter with coordinates `y`."""
        parts = self.objective.split(y).values()
        return np.concatenate([span.lift(part) for span, part in zip(self.spans, parts, strict=True)], axis=-1)
