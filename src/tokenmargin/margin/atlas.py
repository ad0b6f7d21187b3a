"""The atlas: every direction in which attention can converge, for one problem.

A limit of training is the max-margin direction of a selection that is feasible and locally optimal (Definition 2 of
*Max-Margin Token Selection in Attention Mechanism*; Theorems 3 and 4). There are T^n selections. The atlas walks
their tree input by input, a block of prefixes at a time:

- a prefix that cannot be separated rules out all its extensions, by the same Farkas vector; short prefixes that are
  hardly ever infeasible in their dimension are not worth asking;
- a prefix's solution that already separates the next input's token is the solution of the longer prefix;
- only the rest is solved, each solution certified.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.geometry import Coordinates
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE, Systems, concatenated, in_doubles, normalised
from tokenmargin.margin.constraints import Constraints, attention_constraints
from tokenmargin.margin.limits import Atlas, LimitDirection
from tokenmargin.margin.rescue import proof
from tokenmargin.margin.solution import Certificate, MarginSolution
from tokenmargin.margin.solver import solve
from tokenmargin.margin.system import Verdicts, solve_systems
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, optimal_tokens

__all__ = ["atlas"]

BLOCK = 128
"""Prefixes extended at once: their constraints stay in the cache."""


class _Block(NamedTuple):
    """Prefixes of one length (tokens as ranks by score) and what is known of the solution of each.

    `residuals` are those of a proven solution, infinite where the prefix has none.
    """

    prefixes: Int[Array, "B j"]
    multipliers: Float[Array, "B k"]
    vectors: Float[Array, "B r"]
    residuals: Float[Array, "B 4"]

    @property
    def known(self) -> Bool[Array, " B"]:
        """Which prefixes have a proven solution."""
        return np.isfinite(self.residuals).all(axis=1)


class _Input(NamedTuple):
    """One input with its tokens by descending score, each as the selected one: scaled rows to the others."""

    order: Int[Array, " t"]
    vectors: Float[Array, "t r"]
    rows: Systems

    @property
    def units(self) -> Float[Array, "t o r"]:
        """The rows to the others, over `lengths`, powers of two."""
        return self.rows.rows

    @property
    def lengths(self) -> Float[Array, "t o"]:
        """What the rows were divided by."""
        return self.rows.lengths


def atlas(
    problem: TokenProblem,
    *,
    budget: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Atlas:
    """Every feasible and locally optimal selection of `problem`, with its certified direction.

    **Arguments**
    - `budget`: largest number of max-margin problems to solve. When it is spent the answer is partial: `complete` is
      False, the listed limits are proven, others may be missing. Highest scores are explored first.
    - `progress`: called with the number of selections decided, after every block.

    >>> from tokenmargin.instances import figure8
    >>> for limit in atlas(figure8()).limits:
    ...     print(limit.selected, limit.solution.vector.round(6), limit.is_global)
    [0 0] [1. 3. 0.] True
    [0 1] [1. 0. 0.] False
    """
    began = time.perf_counter()
    walk = _Walk(problem, math.inf if budget is None else budget)
    blocks = [walk.root()]
    while blocks and not walk.spent:
        blocks.extend(reversed(walk.extended(blocks.pop())))
        if progress is not None:
            progress(walk.feasible + walk.infeasible)
    return Atlas(
        limits=tuple(sorted(walk.limits, key=lambda limit: (not limit.is_global, -limit.solution.margin))),
        selections=walk.leaves[0],
        feasible=walk.feasible,
        infeasible=walk.infeasible,
        undecided=tuple(walk.undecided),
        solves=walk.solves,
        seconds=time.perf_counter() - began,
    )


def _inputs(problem: TokenProblem) -> list[_Input]:
    """The rows `k_it - k_iu` of every pair, up to an isometry of the span of the keys."""
    keys = problem.keys
    if isinstance(keys, Coordinates):
        vectors = _in_span(keys)
    else:
        first = keys.index[0, keys.mask[0].argmax()]
        vectors = keys.differences(np.arange(keys.rows), np.full(keys.rows, first))
    inputs = []
    for i in range(problem.n):
        visible = np.flatnonzero(problem.mask[i])
        order = visible[np.argsort(-problem.scores[i, visible], kind="stable")]
        tokens = vectors[keys.index[i, order]]
        # In the order of their positions, as the constraints of a selection are listed.
        others = np.stack([ranks[ranks != t] for ranks in [np.argsort(order)] for t in range(len(order))])
        minus = tokens[others]
        plus = np.broadcast_to(tokens[:, None], minus.shape)
        inputs.append(_Input(order, tokens, normalised(plus, np.ones(others.shape), minus=minus)))
    return inputs


def _in_span(keys: Coordinates) -> Float[Array, "m r"]:
    """Coordinates of the vectors in the span of the differences within inputs, where that has fewer dimensions.

    Rotating loses relative digits of near-duplicates, so it is done only when it saves much.
    """
    first = keys.index[np.arange(keys.n), keys.mask.argmax(axis=1)]
    inputs, positions = np.nonzero(keys.mask)
    differences = keys.vectors[keys.index[inputs, positions]] - keys.vectors[first[inputs]]
    differences = differences[differences.any(axis=1)]
    if keys.dimension <= 2 * len(differences) or not len(differences):
        return keys.vectors
    return keys.vectors @ np.linalg.qr(differences.T)[0]


def _seldom_infeasible(constraints: int, dimension: int, *, share: float) -> bool:
    """Whether random constraints of this shape have no solution with a probability below `share` (Wendel's theorem)."""
    if constraints <= dimension:
        return True
    ways = sum(math.comb(constraints - 1, i) for i in range(dimension))
    return 1 - ways / 2 ** (constraints - 1) < share


class _Walk:
    """The state of one walk through the tree of selections: counters, budget and what was found."""

    def __init__(self, problem: TokenProblem, budget: int | float) -> None:
        self.problem, self.budget = problem, budget
        self.inputs = _inputs(problem)
        sizes = [len(tokens.order) for tokens in self.inputs]
        self.leaves = [math.prod(sizes[j:]) for j in range(problem.n + 1)]
        self.rank = min(self.inputs[0].units.shape[2], sum(sizes) - problem.n)
        self.feasible = self.infeasible = self.solves = 0
        self.undecided: list[tuple[int, ...]] = []
        self.limits: list[LimitDirection] = []

    @property
    def spent(self) -> bool:
        return self.solves >= self.budget

    def root(self) -> _Block:
        """The empty prefix: nothing is asked of p = 0."""
        dimension = self.inputs[0].units.shape[2]
        return _Block(
            np.zeros((1, 0), dtype=np.intp), np.zeros((1, 0)), np.zeros((1, dimension)), np.full((1, 4), np.inf)
        )

    def extended(self, block: _Block) -> list[_Block]:
        """The prefixes one input longer, in blocks; leaves are recorded instead."""
        j = block.prefixes.shape[1]
        tokens = self.inputs[j]
        size, others = tokens.lengths.shape
        parents = np.repeat(np.arange(len(block.prefixes)), size)
        children = _Block(
            prefixes=np.column_stack([block.prefixes[parents], np.tile(np.arange(size), len(block.prefixes))]),
            multipliers=np.concatenate([block.multipliers[parents], np.zeros((len(parents), others))], axis=1),
            vectors=block.vectors[parents],
            residuals=self._inherited(block, tokens).reshape(-1, 4),
        )
        leaf = j + 1 == self.problem.n
        alive = np.ones(len(parents), dtype=bool)
        if leaf or not _seldom_infeasible(children.multipliers.shape[1], self.rank, share=1 / size):
            alive = self._solve(children, np.flatnonzero(~children.known))
        children = _Block(*(array[alive] for array in children))
        if leaf:
            self._record(children)
            return []
        return [_Block(*(array[s : s + BLOCK] for array in children)) for s in range(0, len(children.vectors), BLOCK)]

    def _inherited(self, block: _Block, tokens: _Input) -> Float[Array, "B t 4"]:
        """The parent's residuals for children that its vector already separates; infinity for the others."""
        if not isinstance(self.problem.keys, Coordinates):  # by inner products a margin is not known so simply
            return np.full((len(block.vectors), *tokens.lengths.shape[:1], 4), np.inf)
        margins = np.matmul(block.vectors, tokens.units.reshape(-1, block.vectors.shape[1]).T)
        margins = margins.reshape(len(margins), *tokens.lengths.shape) * tokens.lengths
        separated = (margins >= 1).all(axis=2)
        return np.where(separated[:, :, None], block.residuals[:, None, :], np.inf)

    def _solve(self, children: _Block, todo: Int[Array, " s"]) -> Bool[Array, " B"]:
        """Solve the given children in place; returns which of all children are still in the running."""
        alive = np.ones(len(children.vectors), dtype=bool)
        room = int(min(self.budget - self.solves, len(todo)))
        alive[todo[room:]] = False
        todo = todo[:room]
        if not room:
            return alive
        children.multipliers[todo], children.vectors[todo], verdicts = self._answers(children.prefixes[todo])
        self.solves += room
        children.residuals[todo] = np.where(verdicts.optimal[:, None], verdicts.residuals.table, np.inf)
        ruled_out = todo[verdicts.infeasible]
        alive[ruled_out] = False
        self.infeasible += len(ruled_out) * self.leaves[children.prefixes.shape[1]]
        return alive

    def _answers(self, prefixes: Int[Array, "B j"]) -> tuple[Float[Array, "B k"], Float[Array, "B r"], Verdicts]:
        """Multipliers of the scaled rows, vectors in the coordinates of the walk, and what is proven."""
        decided = self.inputs[: prefixes.shape[1]]
        systems = concatenated([tokens.rows for tokens in decided], list(prefixes.T))
        if isinstance(self.problem.keys, Coordinates):
            verdicts = solve_systems(systems)
            if systems.rows.shape[2] < self.problem.keys.dimension:  # proofs hold for the problem's own rows alone
                for b in np.flatnonzero(verdicts.infeasible):
                    own = self._constraints(prefixes[b]).systems()
                    if proof(own, verdicts.farkas.weights[b]) is None:
                        verdicts.farkas.residual[b] = np.inf
            multipliers = verdicts.multipliers * systems.scale[:, None]
            return multipliers, verdicts.residuals.vectors * systems.scale[:, None], verdicts
        verdicts = Verdicts.nothing(*systems.rows.shape, tolerance=PRODUCTS_TOLERANCE)
        multipliers = np.zeros_like(verdicts.multipliers)
        for b, prefix in enumerate(prefixes):
            own = self._constraints(prefix).systems()
            one = solve_systems(own)
            multipliers[b] = one.multipliers[0] * own.scale[0] / own.lengths[0] * systems.lengths[b]
            verdicts.residuals.table[b], verdicts.farkas.residual[b] = one.residuals.table[0], one.farkas.residual[0]
        return multipliers, np.einsum("bk,bkr->br", multipliers, systems.rows), verdicts

    def _constraints(self, prefix: Int[Array, " j"]) -> Constraints:
        """The constraints of the inputs that a prefix decides."""
        ranks = np.zeros(self.problem.n, dtype=np.intp)
        ranks[: len(prefix)] = prefix
        whole = attention_constraints(self.problem, self._positions(ranks[None])[0])
        kept = whole.token[:, 0] < len(prefix)
        assert whole.minus is not None, "constraints of ATT-SVM are on differences"
        return Constraints(whole.geometry, whole.plus[kept], whole.minus[kept], whole.bound[kept], whole.token[kept])

    def _record(self, leaves: _Block) -> None:
        """Count the leaves and keep the locally optimal ones."""
        known = leaves.known
        self.feasible += int(known.sum())
        self.undecided += [tuple(row) for row in self._positions(leaves.prefixes[~known]).tolist()]
        leaves = _Block(*(array[known] for array in leaves))
        gaps, near = self._gaps(leaves)
        optimal, inputs = optimal_tokens(self.problem), np.arange(self.problem.n)
        positions = self._positions(leaves.prefixes)
        for b in np.flatnonzero((gaps > 0).all(axis=1)).tolist():
            self.limits.append(
                LimitDirection(
                    selected=positions[b],
                    solution=self._solution(leaves, b, positions[b]),
                    neighbours=near[b],
                    gaps=gaps[b],
                    is_global=bool(optimal[inputs, positions[b]].all()),
                )
            )

    def _positions(self, prefixes: Int[Array, "B n"]) -> Int[Array, "B n"]:
        """Positions of the tokens given by rank."""
        return np.stack([tokens.order[t] for tokens, t in zip(self.inputs, prefixes.T, strict=True)], axis=1)

    def _gaps(self, leaves: _Block) -> tuple[Float[Array, "B n"], Bool[Array, "B n T"]]:
        """Score gaps of the leaves, selected token less best SVM-neighbour, and the neighbours themselves."""
        gaps = np.empty(leaves.prefixes.shape)
        near = np.zeros((*leaves.prefixes.shape, self.problem.T), dtype=bool)
        rows = np.arange(len(gaps))
        for i, (tokens, t) in enumerate(zip(self.inputs, leaves.prefixes.T, strict=True)):
            logits = leaves.vectors @ tokens.vectors.T
            close = logits[rows, t][:, None] - logits <= 1 + NEIGHBOUR_TOLERANCE
            close[rows, t] = False
            scores = self.problem.scores[i, tokens.order]
            gaps[:, i] = scores[t] - np.where(close, scores, -np.inf).max(axis=1)
            near[:, i, tokens.order] = close
        return gaps, near

    def _solution(self, leaves: _Block, b: int, selected: Int[Array, " n"]) -> MarginSolution:
        """The leaf's solution as a parameter of the problem's own geometry."""
        constraints = attention_constraints(self.problem, selected)
        if isinstance(self.problem.keys, Coordinates) and leaves.vectors.shape[1] < self.problem.keys.dimension:
            return solve(constraints)  # the walk went through rotated coordinates: certify in the problem's own
        lengths = np.concatenate([x.lengths[t] for x, t in zip(self.inputs, leaves.prefixes[b], strict=True)])
        multipliers = in_doubles(leaves.multipliers[b], over=lengths)
        norm = self.problem.keys.norm(constraints.parameter(multipliers, leaves.vectors[b]))
        return MarginSolution(
            status="optimal",
            vector=constraints.parameter(multipliers, leaves.vectors[b]),
            margin=float(1 / norm) if norm > 0 else np.inf,
            multipliers=multipliers,
            tokens=constraints.token,
            certificate=Certificate(*leaves.residuals[b].tolist()),
        )
