"""The constraints of a max-margin problem, as pairs of dictionary rows: `<e_plus - e_minus, p> >= bound`.

Each function here poses one of the papers' problems; `solve` in the module beside answers all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import Systems, cached_ones, normalised_systems
from tokenmargin.margin.single.exact import exact_rank
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates, Gram, KnownProducts
from tokenmargin.problem.matrix_geometry import Bilinear
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import Selection, checked_selection, checked_token_sets


@dataclass(frozen=True, eq=False)
class Constraints:
    """`sign_j <e_plus[j] - e_minus[j], p> >= bound_j`, or `=` where `equality` says so; minimise |p|.

    **Attributes**
    - `geometry`: where the vectors live.
    - `plus`, `minus`: rows of the dictionary; `minus` is None when the constraints are on single vectors.
    - `bound`: right-hand sides.
    - `token`: the (input, position) each constraint speaks of, for reading multipliers.
    - `sign`: +1 or -1 per constraint.
    - `equality`: which constraints are equalities.
    """

    geometry: AbstractGeometry
    plus: Int[Array, " k"]
    minus: Int[Array, " k"] | None
    bound: Float[Array, " k"]
    token: Int[Array, "k 2"]
    sign: Float[Array, " k"] | None = None
    equality: Bool[Array, " k"] | None = None

    def __len__(self) -> int:
        return len(self.plus)

    def only(self, kept: Bool[Array, " k"]) -> Constraints:
        """Some of the constraints."""
        parts = {name: getattr(self, name) for name in ("plus", "minus", "bound", "token", "sign", "equality")}
        return replace(self, **{name: part[kept] for name, part in parts.items() if part is not None})

    def rows(self) -> Float[Array, "k r"]:
        """The constraint vectors, up to an isometry of their span."""
        rows = self.geometry.differences(self.plus, self.minus)
        return rows if self.sign is None else rows * self.sign[:, None]

    def systems(self) -> Systems:
        """The constraints as a stack of one, scaled, with what is known of their rounding."""
        bound = self.bound[None]
        if isinstance(self.geometry, Coordinates):
            sign = 1.0 if self.sign is None else self.sign[:, None]
            plus, minus = self.geometry.vectors[self.plus] * sign, None
            if self.minus is not None:
                minus = (self.geometry.vectors[self.minus] * sign)[None]
            return normalised_systems(plus[None], bound, self.equality, minus=minus)
        assert isinstance(self.geometry, Gram), "the two geometries"
        known = self.geometry.products(self.plus, self.minus)
        sign = np.ones(len(self)) if self.sign is None else self.sign
        systems = normalised_systems(self.rows()[None], bound, self.equality)
        lengths = systems.lengths[0]
        with np.errstate(over="ignore", invalid="ignore"):
            products = known.products * np.outer(sign, sign) / lengths / lengths[:, None]
            noise, terms = known.noise / lengths, known.terms / lengths
        return systems._replace(known=KnownProducts(products, noise, terms, known.rank))

    def rank_at_most(self, kept: Bool[Array, " k"]) -> int:
        """How many of these rows can be independent, by what is known without rounding: the number of dimensions, and
        which vectors the rows are differences of."""
        geometry, m = self.geometry, self.geometry.n_vectors
        dimensions, same = geometry.dimension, geometry.equal_rows
        if isinstance(geometry, Gram):
            dimensions = m if geometry.rank is None else geometry.rank
        ends = np.array([self.plus[kept], np.full(kept.sum(), m) if self.minus is None else self.minus[kept]])
        most = min(dimensions, independent_at_most(*np.append(same, m)[ends]))
        if not isinstance(geometry, Bilinear) or self.minus is None:
            return most
        # Products z x' that were rounded are independent where z and x are not; both ends of a tie have one z.
        z, x = geometry.factors
        ties = normalised_systems(x[ends[0]][None], np.zeros((1, kept.sum())), minus=x[ends[1]][None])
        rank = exact_rank(ties.rows[0], None if ties.lost is None else ties.lost[0], times=z[ends[0]])
        return most if rank is None else min(most, rank)

    def parameter(self, multipliers: Float[Array, " k"], y: Float[Array, " r"]) -> Float[Array, " D"]:
        """The solution as a parameter: in coordinates it is the vector y of the rows' space, else its multipliers."""
        return y if isinstance(self.geometry, Coordinates) else self.combine(multipliers)

    def combine(self, multipliers: Float[Array, " k"]) -> Float[Array, " D"]:
        """`sum_j multipliers_j (constraint vector j)` as a parameter of the geometry."""
        weights = multipliers if self.sign is None else multipliers * self.sign
        coefficients = np.bincount(self.plus, weights=weights, minlength=self.geometry.n_vectors)
        if self.minus is not None:
            coefficients -= np.bincount(self.minus, weights=weights, minlength=self.geometry.n_vectors)
        return self.geometry.combine(coefficients)


def independent_at_most(plus: Int[Array, " k"], minus: Int[Array, " k"]) -> int:
    """How many differences are independent where the vectors themselves are: those along a cycle sum to zero."""
    from scipy.sparse import coo_array  # loaded where ties are many: most problems do without
    from scipy.sparse.csgraph import connected_components

    vertices, ends = np.unique(np.array([plus, minus]), return_inverse=True)
    edges = tuple(ends.reshape(2, -1))
    graph = coo_array((np.ones(len(plus)), edges), shape=(len(vertices), len(vertices)))
    return len(vertices) - int(connected_components(graph, directed=False)[0])


def row_constraints(rows: Float[Array, "k d"]) -> Constraints:
    """`<row_j, p> >= 1` for vectors that belong to no problem; row j is token 0 of input j."""
    every = np.arange(len(rows))
    token = np.stack([every, np.zeros_like(every)], axis=1)
    return Constraints(Coordinates(rows, every[:, None]), every, None, np.ones(len(rows)), token)


def attention_constraints(problem: TokenProblem, selected: Selection) -> Constraints:
    """ATT-SVM: `<k_{i alpha_i} - k_it, p> >= 1` for every other token t of every input i."""
    alpha = checked_selection(problem, selected)
    keys = problem.keys
    chosen = keys.first_positions + alpha
    others = keys.mask.flatten()
    others[chosen] = False
    inputs, positions = others.reshape(keys.mask.shape).nonzero()
    index = keys.index.ravel()
    return Constraints(
        geometry=keys,
        plus=index.take(chosen).take(inputs),
        minus=index.take(others.nonzero()[0]),
        bound=cached_ones(len(inputs)),
        token=np.array((inputs, positions)).T,
    )


def relaxed_constraints(problem: TokenProblem, selected: Selection, support: Bool[Array, " n"]) -> Constraints:
    """The relaxed problem (10): margin 1 on the inputs in `support`, mere selection (margin 0) on the others."""
    hard = attention_constraints(problem, selected)
    bound = np.where(np.asarray(support, dtype=bool)[hard.token[:, 0]], 1.0, 0.0)
    return Constraints(hard.geometry, hard.plus, hard.minus, bound, hard.token)


def label_constraints(problem: TokenProblem, selected: Selection) -> Constraints:
    """SVM for the head: `Y_i <v, x_{i alpha_i}> >= 1`."""
    alpha = checked_selection(problem, selected)
    inputs = np.arange(problem.n)
    return Constraints(
        geometry=problem.values,
        plus=problem.values.index[inputs, alpha],
        minus=None,
        bound=np.ones(problem.n),
        token=np.stack([inputs, alpha], axis=1),
        sign=problem.labels,
    )


def class_constraints(problem: TokenProblem, selection: Bool[Array, "n T"]) -> Constraints:
    """The selection class of *Attention with Trained Embeddings* (9): several tokens per input may be selected.

    Every selected token must beat every other one by 1, and p must lie in the class: selected tokens of one input
    have equal logits. With the equalities, one representative per input carries the inequalities of all.
    """
    chosen = checked_token_sets(problem, selection)
    index = problem.keys.index
    inputs, positions = np.nonzero(problem.mask)
    first = chosen.argmax(axis=1)
    plus, minus = index[inputs, first[inputs]], index[inputs, positions]
    tied = chosen[inputs, positions]
    kept = ~tied | (plus != minus)  # the representative, and other occurrences of its dictionary row, tie by themselves
    return Constraints(
        geometry=problem.keys,
        plus=plus[kept],
        minus=minus[kept],
        bound=np.where(tied, 0.0, 1.0)[kept],
        token=np.stack([inputs, positions], axis=1)[kept],
        equality=tied[kept] if tied[kept].any() else None,
    )


def choice_constraints(problem: TokenProblem, optimal: Bool[Array, "n T"], choices: dict[int, int]) -> Constraints:
    """ATT-SVM' with the choice made for some inputs: `choices[i]` in `O_i` beats every token outside `O_i` by 1."""
    rivals = problem.mask & ~np.asarray(optimal, dtype=bool)
    rivals[[i for i in range(problem.n) if i not in choices]] = False
    inputs, positions = rivals.nonzero()
    chosen = np.array([choices.get(i, 0) for i in range(problem.n)])
    index = problem.keys.index
    token = np.stack([inputs, positions], axis=1)
    return Constraints(
        problem.keys, index[inputs, chosen[inputs]], index[inputs, positions], np.ones(len(inputs)), token
    )
