"""The atlas: every selection to which attention can converge, for one problem, with its direction.

Such a limit of training is the max-margin direction of a selection that is feasible and locally optimal (Definition 2
of *Max-Margin Token Selection in Attention Mechanism*; Theorems 3 and 4; `limit_directions` beside says what this means
where scores tie, keys repeat, or inputs share keys). There are T^n selections of distinct tokens. The atlas walks their
tree input by input, a block of prefixes at a time:

- a prefix that cannot be separated rules out all its extensions, by the same Farkas vector; short prefixes that are
  hardly ever infeasible in their dimension are not worth asking;
- a prefix's solution that already separates the next input's token is the solution of the longer prefix;
- only the rest is solved, each solution certified.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import (
    PRODUCTS_TOLERANCE,
    Systems,
    joined_systems,
    normalised_systems,
    rescale_exactly,
)
from tokenmargin.margin.compiled.systems import StackResult, solve_systems
from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.held_ties import held_ties
from tokenmargin.margin.limit_directions import (
    limit_constraints,
    name_direction,
    name_global,
    near_by_rounding,
    shares_differences,
)
from tokenmargin.margin.limit_results import Atlas, SelectionTally
from tokenmargin.margin.normed.atlas import atlas_in_norm
from tokenmargin.margin.single.refine import infeasibility_proof
from tokenmargin.margin.single.solver import solve
from tokenmargin.margin.solution import Certificate, MarginSolution
from tokenmargin.norms import EPS, AbstractNorm, LpNorm, as_norm
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.label_problems import ClassProblem
from tokenmargin.problem.token_problem import TokenProblem, checked_problem, with_fixed_scores
from tokenmargin.selection import gaps_over, near_tokens, tokens_of_equal_score

BLOCK = 128
"""Prefixes extended at once: their constraints stay in the cache."""
KEPT = 1 << 24
"""Numbers that the rows of all inputs, or of the children that are solved together, may hold: 128 MiB."""


class _PrefixBlock(NamedTuple):
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


class _InputTokens:
    """One input with its distinct tokens by descending score, each as the selected one: rows to the others.

    - `order`: their positions. `vectors`: their keys. `scores`: their scores.
    """

    def __init__(self, order: Int[Array, " t"], vectors: Float[Array, "t r"], scores: Float[Array, " t"]) -> None:
        self.order, self.vectors, self.scores = order, vectors, scores
        self._kept: Systems | None = None

    def keep(self) -> None:
        """Form the rows of all tokens now, instead of those asked for each time."""
        self._kept = self._rows(np.arange(len(self.order)))

    def rows(self, selected: Int[Array, " B"]) -> Systems:
        """Rows from the selected tokens to the others, scaled, with bounds of 1, or 0 for equals."""
        return self._rows(selected) if self._kept is None else self._kept.some(selected)

    def _rows(self, selected: Int[Array, " B"]) -> Systems:
        """The rows formed anew, with what their rounding took."""
        # In the order of their positions, as the constraints of a selection are listed.
        ranks = np.argsort(self.order)
        others = np.stack([ranks[ranks != t] for t in selected.tolist()])
        minus = self.vectors[others]
        plus = np.broadcast_to(self.vectors[selected][:, None], minus.shape)
        asked = np.where(self.scores[others] == self.scores[selected][:, None], 0.0, 1.0)
        return normalised_systems(plus, asked, minus=minus)


def atlas(
    problem: TokenProblem,
    *,
    norm: AbstractNorm | str = "l2",
    budget: int | None = None,
    loss: AbstractLoss | None = None,
    progress: Callable[[int], None] | None = None,
) -> Atlas:
    """Every selection of `problem` that training can converge to, with its certified direction.

    Ties of equals that training holds are listed as well, as sets of tokens. Limits with a finite part beside their
    direction, where tokens of different scores keep their weights, are no selections: `limit_of` names those. Of a
    `ClassProblem` selections are gone through one by one, each by the scores around it.

    **Arguments**
    - `norm`: in which the directions are shortest: l2 for gradient descent. In others the walk is slower, and ties of
      equals are not searched.
    - `budget`: largest number of max-margin problems to solve. When it is spent the answer is partial: `complete` is
      False, the listed limits are proven, others may be missing. Highest scores are explored first.
    - `loss`: logistic by default; it matters where a neighbour scores higher and differences of keys are shared or
      depend on one another linearly, and beside ties of equals: it says how much each input pulls.
    - `progress`: called with the number of selections decided, after every block.

    >>> from tokenmargin.problem.instances import figure8
    >>> for limit in atlas(figure8()).limits:
    ...     print(limit.selected, limit.solution.vector.round(6) + 0.0, limit.is_global)
    [0 0] [1. 3.] True
    [0 1] [1. 0.] False
    """
    remedy = "name one selection with limit_direction, or follow training with limit_of"
    problem = checked_problem(problem, "atlas")
    classes = isinstance(problem, ClassProblem)
    problem = problem if classes else with_fixed_scores(problem, "the atlas", remedy)
    if (chosen := as_norm(norm)) != LpNorm(2.0) or classes:
        return atlas_in_norm(problem, chosen, budget=budget, loss=loss, progress=progress)
    began = time.perf_counter()
    walk = _Walk(problem, math.inf if budget is None else budget, loss)
    tally, blocks = walk.tally, [iter([walk.root()])]
    while blocks and not tally.budget_is_spent:
        block = next(blocks[-1], None)
        if progress is not None:
            progress(tally.feasible + tally.infeasible)
        if block is None:
            blocks.pop()
        else:
            blocks.append(walk.extend_prefixes(block))
    ties = held_ties(problem, loss, listed=tally.limits, most=tally.budget - tally.solves)
    tally.solves += ties.solves
    named = name_global(problem, tally, ties.held)
    return tally.atlas(named, began=began, ties_left=ties.left, ties_undecided=ties.unknown)


def _distinct_tokens(problem: TokenProblem) -> list[_InputTokens]:
    """The distinct tokens of every input, up to an isometry of the span of the keys; copies are one token."""
    keys = problem.keys
    if isinstance(keys, Coordinates):
        vectors = _in_span(keys)
    else:
        first = keys.index[0, keys.mask[0].argmax()]
        vectors = keys.differences(np.arange(keys.n_vectors), np.full(keys.n_vectors, first))
        vectors = vectors if vectors.shape[1] else np.zeros((keys.n_vectors, 1))  # all are equal
    inputs = []
    for i in range(problem.n):
        visible = np.flatnonzero(problem.mask[i] & (keys.first_copies[i] == np.arange(problem.T)))
        scores = problem.shared_scores[i]
        order = visible[np.argsort(-scores[visible], kind="stable")]
        inputs.append(_InputTokens(order, vectors[keys.index[i, order]], scores[order]))
    if sum(tokens.vectors.size * len(tokens.order) for tokens in inputs) <= KEPT:
        for tokens in inputs:
            tokens.keep()
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
    """One walk through the tree of selections; what it finds stands in `tally`."""

    def __init__(self, problem: TokenProblem, budget: int | float, loss: AbstractLoss | None) -> None:
        self.problem, self.loss = problem, loss
        self.shares = shares_differences(problem)
        self.inputs = _distinct_tokens(problem)
        sizes = [len(tokens.order) for tokens in self.inputs]
        self.tally = SelectionTally(sizes, budget)
        self.dimension = self.inputs[0].vectors.shape[1]
        self.rank = min(self.dimension, sum(sizes) - problem.n)

    def root(self) -> _PrefixBlock:
        """The empty prefix: nothing is asked of p = 0, which is its solution."""
        return _PrefixBlock(
            np.zeros((1, 0), dtype=np.intp), np.zeros((1, 0)), np.zeros((1, self.dimension)), np.zeros((1, 4))
        )

    def extend_prefixes(self, block: _PrefixBlock) -> Iterator[_PrefixBlock]:
        """The prefixes one input longer, in blocks; leaves are recorded instead."""
        size = len(self.inputs[block.prefixes.shape[1]].order)
        most = KEPT // (self.dimension * (block.multipliers.shape[1] + size))  # children in memory at once
        together = max(most // len(block.prefixes), 1)
        for begin in range(0, size, together):
            if self.tally.budget_is_spent and begin:
                return
            children = self._children(block, np.arange(begin, min(begin + together, size)))
            if children.prefixes.shape[1] == self.problem.n:
                self._record_leaves(children)
                continue
            width = max(min(BLOCK, most), 1)
            for s in range(0, len(children.vectors), width):
                yield _PrefixBlock(*(array[s : s + width] for array in children))

    def _children(self, block: _PrefixBlock, chosen: Int[Array, " t"]) -> _PrefixBlock:
        """The prefixes followed by each of the chosen tokens (ranks) of the next input, less what is ruled out."""
        j = block.prefixes.shape[1]
        size, others = len(chosen), len(self.inputs[j].order) - 1
        parents = np.repeat(np.arange(len(block.prefixes)), size)
        children = _PrefixBlock(
            prefixes=np.column_stack([block.prefixes[parents], np.tile(chosen, len(block.prefixes))]),
            multipliers=np.concatenate([block.multipliers[parents], np.zeros((len(parents), others))], axis=1),
            vectors=block.vectors[parents],
            residuals=self._parent_residuals(block, self.inputs[j], chosen).reshape(-1, 4),
        )
        alive = np.ones(len(parents), dtype=bool)
        leaf, share = j + 1 == self.problem.n, 1 / (others + 1)
        if leaf or not _seldom_infeasible(children.multipliers.shape[1], self.rank, share=share):
            alive = self._solve_children(children, np.flatnonzero(~children.known))
        return _PrefixBlock(*(array[alive] for array in children))

    def _parent_residuals(
        self, block: _PrefixBlock, tokens: _InputTokens, chosen: Int[Array, " t"]
    ) -> Float[Array, "B t 4"]:
        """The parent's residuals for children that its vector already separates; infinity for the others."""
        if not isinstance(self.problem.keys, Coordinates) and len(tokens.order) > 1:
            return np.full((len(block.vectors), len(chosen), 4), np.inf)  # margins are not known so simply
        rows = tokens.rows(chosen)
        margins = np.matmul(block.vectors, rows.rows.reshape(-1, block.vectors.shape[1]).T)
        with np.errstate(over="ignore"):
            margins = margins.reshape(len(margins), *rows.lengths.shape) * rows.lengths
        # A parent's vector that has room for the rounding of these products, (r + 4) eps |row| |p|.
        longest = self.dimension**0.5 * np.abs(block.vectors).max(axis=1)
        rounding = (self.dimension + 4) * EPS * longest
        separated = (margins - rounding[:, None, None] * rows.lengths >= np.where(rows.bound > 0, 1.0, 0.0)).all(axis=2)
        return np.where(separated[:, :, None], block.residuals[:, None, :], np.inf)

    def _solve_children(self, children: _PrefixBlock, todo: Int[Array, " s"]) -> Bool[Array, " B"]:
        """Solve the given children in place; returns which of all children are still in the running."""
        alive = np.ones(len(children.vectors), dtype=bool)
        room = int(min(self.tally.budget - self.tally.solves, len(todo)))
        alive[todo[room:]] = False
        todo = todo[:room]
        if not room:
            return alive
        children.multipliers[todo], children.vectors[todo], verdicts = self._solve_prefixes(children.prefixes[todo])
        self.tally.solves += room
        children.residuals[todo] = np.where(verdicts.optimal[:, None], verdicts.residuals[:, :4], np.inf)
        ruled_out = todo[verdicts.infeasible]
        alive[ruled_out] = False
        self.tally.infeasible += len(ruled_out) * self.tally.leaves[children.prefixes.shape[1]]
        return alive

    def _solve_prefixes(
        self, prefixes: Int[Array, "B j"]
    ) -> tuple[Float[Array, "B k"], Float[Array, "B r"], StackResult]:
        """Multipliers of the scaled rows, vectors in the coordinates of the walk, and what is proven."""
        systems = joined_systems([tokens.rows(t) for tokens, t in zip(self.inputs, prefixes.T, strict=False)])
        if isinstance(self.problem.keys, Coordinates):
            verdicts = solve_systems(systems)
            if self.dimension < self.problem.keys.dimension:  # a proof must hold for the problem's own rows
                for b in np.flatnonzero(verdicts.infeasible).tolist():
                    if infeasibility_proof(self._constraints(prefixes[b]).systems(), verdicts.farkas[b]) is None:
                        verdicts.residuals[b, 4] = np.inf
            scale = systems.scale[:, None]
            return verdicts.multipliers * scale, rescale_exactly(verdicts.vectors, times=scale), verdicts
        verdicts = StackResult.empty(*systems.rows.shape, tolerance=PRODUCTS_TOLERANCE)
        multipliers = np.zeros_like(verdicts.multipliers)
        for b, prefix in enumerate(prefixes):
            own = self._constraints(prefix).systems()
            one = solve_systems(own)
            multipliers[b] = one.multipliers[0] * own.scale[0] / own.lengths[0] * systems.lengths[b]
            verdicts.residuals[b] = one.residuals[0]
        return multipliers, np.einsum("bk,bkr->br", multipliers, systems.rows), verdicts

    def _constraints(self, prefix: Int[Array, " j"]) -> Constraints:
        """The constraints of the inputs that a prefix decides."""
        ranks = np.zeros(self.problem.n, dtype=np.intp)
        ranks[: len(prefix)] = prefix
        whole = limit_constraints(self.problem, self._positions(ranks[None])[0])
        return whole.only(whole.token[:, 0] < len(prefix))

    def _record_leaves(self, leaves: _PrefixBlock) -> None:
        """Count the leaves and keep the locally optimal ones."""
        known = leaves.known
        self.tally.undecided += [tuple(row) for row in self._positions(leaves.prefixes[~known]).tolist()]
        leaves = _PrefixBlock(*(array[known] for array in leaves))
        positions, logits = self._positions(leaves.prefixes), self._logits_of_leaves(leaves)
        near = near_tokens(logits, positions) & self.problem.mask & ~tokens_of_equal_score(self.problem, positions)
        gaps = gaps_over(self.problem.shared_scores, positions, near)
        moved = leaves.vectors.any(axis=1)  # p = 0 is the solution where there is nothing to choose, and no direction
        # Neighbours that score higher are outweighed only along differences that depend on one another. Those that hold
        # the vector, with positive multipliers, are independent; more of them are not.
        holds = leaves.multipliers > 0
        if self.problem.has_ties:  # an equal that holds the vector is no neighbour
            chosen = zip(self.inputs, leaves.prefixes.T, strict=True)
            holds &= np.concatenate([tokens.rows(t).bound for tokens, t in chosen], axis=1) > 0
        more = near.sum(axis=(1, 2)) > holds.sum(axis=1)
        unsure = near_by_rounding(self.problem.keys, leaves.vectors, logits, positions).any(axis=(1, 2))
        named = np.flatnonzero((self.shares | more | unsure | (gaps > 0).all(axis=1)) & moved)
        self.tally.feasible += len(positions) - len(named)
        for b in named.tolist():
            solution = self._solution_of_leaf(leaves, b, positions[b])
            self.tally.record(positions[b], name_direction(self.problem, positions[b], solution, self.loss))

    def _positions(self, prefixes: Int[Array, "B n"]) -> Int[Array, "B n"]:
        """Positions of the tokens given by rank."""
        return np.stack([tokens.order[t] for tokens, t in zip(self.inputs, prefixes.T, strict=True)], axis=1)

    def _logits_of_leaves(self, leaves: _PrefixBlock) -> Float[Array, "B n T"]:
        """Logits of the leaves' vectors less those of each input's first token, by differences of keys; minus infinity
        where there is no token, and at copies."""
        logits = np.full((*leaves.prefixes.shape, self.problem.T), -np.inf)
        for i, tokens in enumerate(self.inputs):
            logits[:, i, tokens.order] = leaves.vectors @ (tokens.vectors - tokens.vectors[:1]).T
        return logits

    def _solution_of_leaf(self, leaves: _PrefixBlock, b: int, selected: Int[Array, " n"]) -> MarginSolution:
        """The leaf's solution as a parameter of the problem's own geometry."""
        constraints = limit_constraints(self.problem, selected)
        known = isinstance(self.problem.keys, Coordinates)
        if not known or leaves.vectors.shape[1] < self.problem.keys.dimension:
            return solve(constraints)  # the walk went through other coordinates: certify in the problem's own
        parts = [tokens.rows(t[None]).lengths[0] for tokens, t in zip(self.inputs, leaves.prefixes[b], strict=True)]
        multipliers = rescale_exactly(leaves.multipliers[b], over=np.concatenate(parts))
        vector = constraints.parameter(multipliers, leaves.vectors[b])
        return MarginSolution(
            status="optimal",
            vector=vector,
            margin=float(1 / self.problem.keys.norm(vector)),
            multipliers=multipliers,
            tokens=constraints.token,
            certificate=Certificate(*leaves.residuals[b].tolist()),
        )
