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
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.geometry import Coordinates
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.margin.solution import Certificate, MarginSolution
from tokenmargin.margin.system import TOLERANCE, Systems, solve_systems
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, optimal_tokens

__all__ = ["Atlas", "LimitDirection", "atlas"]

BLOCK = 1024
"""Prefixes examined at once."""


@dataclass(frozen=True, eq=False)
class LimitDirection:
    """One locally optimal max-margin direction (LMM).

    **Attributes**
    - `selected`: the token of each input.
    - `solution`: direction, margin, multipliers and certificate.
    - `neighbours`: the SVM-neighbours, margin exactly 1.
    - `gaps`: score of the selected token less the best score among its neighbours; infinite without neighbours.
    - `is_global`: whether the selected tokens are the optimal ones: this is the GMM.
    """

    selected: Int[Array, " n"]
    solution: MarginSolution
    neighbours: Bool[Array, "n T"]
    gaps: Float[Array, " n"]
    is_global: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return {
            "selected": self.selected.tolist(),
            "margin": self.solution.margin,
            "direction": self.solution.vector.tolist(),
            "neighbours": np.argwhere(self.neighbours).tolist(),
            "score_gaps": [gap if math.isfinite(gap) else None for gap in self.gaps.tolist()],
            "gmm": self.is_global,
            "residual": self.solution.certificate.residual,
        }


@dataclass(frozen=True, eq=False)
class Atlas:
    """What was found, and how much of the tree was seen.

    **Attributes**
    - `limits`: the locally optimal selections, the GMM first, then by margin.
    - `selections`: number of selections, T^n.
    - `feasible`, `infeasible`: how many were proven to be so.
    - `undecided`: selections whose status could not be proven in double precision.
    - `solves`: max-margin problems solved on the way.
    - `seconds`: time taken.
    """

    limits: tuple[LimitDirection, ...]
    selections: int
    feasible: int
    infeasible: int
    undecided: tuple[tuple[int, ...], ...]
    solves: int
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether every selection was decided."""
        return self.feasible + self.infeasible == self.selections

    @property
    def gmm(self) -> LimitDirection | None:
        """The globally optimal direction, when it is feasible."""
        return next((limit for limit in self.limits if limit.is_global), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return {
            "complete": self.complete,
            "selections": self.selections,
            "feasible": self.feasible,
            "infeasible": self.infeasible,
            "undecided": [list(selected) for selected in self.undecided],
            "solves": self.solves,
            "seconds": self.seconds,
            "limits": [limit.to_dict() for limit in self.limits],
        }

    def __repr__(self) -> str:
        seen = "complete" if self.complete else f"partial ({self.feasible + self.infeasible} decided)"
        return f"Atlas({len(self.limits)} limits, {self.feasible} feasible of {self.selections} selections, {seen})"


class _Block(NamedTuple):
    """Prefixes of one length (tokens as ranks by score) and what is known of the solution of each.

    `residuals` are those of `Residuals`, infinite where the prefix has not been solved.
    """

    prefixes: Int[Array, "B j"]
    multipliers: Float[Array, "B k"]
    vectors: Float[Array, "B r"]
    residuals: Float[Array, "B 4"]

    @property
    def known(self) -> Bool[Array, " B"]:
        """Which prefixes have a proven solution."""
        return self.residuals.max(axis=1) <= TOLERANCE


class _Input(NamedTuple):
    """One input with its tokens by descending score, each as the selected one: unit rows to the others."""

    order: Int[Array, " t"]
    others: Int[Array, "t o"]
    units: Float[Array, "t o r"]
    lengths: Float[Array, "t o"]


def atlas(
    problem: TokenProblem,
    *,
    budget: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Atlas:
    """Every feasible and locally optimal selection of `problem`, with its certified direction.

    **Arguments**
    - `budget`: largest number of max-margin problems to solve. When it is spent the answer is partial: `complete` is
      False, the listed limits are proven, others may be missing. Highest scores are explored first.
    - `progress`: called with the number of selections decided and their total, after every block.

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
            progress(walk.feasible + walk.infeasible, walk.leaves[0])
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
    if isinstance(keys, Coordinates) and keys.dimension <= 2 * keys.rows:
        vectors = keys.vectors
    elif isinstance(keys, Coordinates):
        vectors = np.asarray(np.linalg.qr(keys.vectors.T, mode="r")).T
    else:
        vectors = keys.differences(np.arange(keys.rows), None)
    inputs = []
    for i in range(problem.n):
        visible = np.flatnonzero(problem.mask[i])
        order = visible[np.argsort(-problem.scores[i, visible], kind="stable")]
        tokens = vectors[keys.index[i, order]]
        # In the order of their positions, as the constraints of a selection are listed.
        others = np.stack([ranks[ranks != t] for ranks in [np.argsort(order)] for t in range(len(order))])
        raw = tokens[:, None] - tokens[others]
        lengths = np.sqrt(np.einsum("tor,tor->to", raw, raw))
        lengths[lengths == 0] = 1.0
        inputs.append(_Input(order, others, raw / lengths[:, :, None], lengths))
    return inputs


def _seldom_infeasible(constraints: int, dimension: int, *, share: float) -> bool:
    """Whether random constraints of this shape have no solution with a probability below `share` (Wendel's theorem)."""
    if constraints <= dimension:
        return True
    ways = sum(math.comb(constraints - 1, i) for i in range(dimension))
    return 1 - ways / 2 ** (constraints - 1) < share


class _Walk:
    """The state of one walk through the tree of selections: counters, budget and what was found."""

    def __init__(self, problem: TokenProblem, budget: float) -> None:
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
        systems = self._systems(children.prefixes[todo])
        verdicts = solve_systems(systems, by_multipliers=not isinstance(self.problem.keys, Coordinates))
        self.solves += room
        children.multipliers[todo] = verdicts.multipliers * systems.scale[:, None]
        children.vectors[todo] = verdicts.residuals.vectors * systems.scale[:, None]
        children.residuals[todo] = np.stack(verdicts.residuals[:4], axis=1)
        if verdicts.farkas is not None:
            ruled_out = todo[verdicts.farkas.residual <= TOLERANCE]
            alive[ruled_out] = False
            self.infeasible += len(ruled_out) * self.leaves[children.prefixes.shape[1]]
        return alive

    def _systems(self, prefixes: Int[Array, "B j"]) -> Systems:
        """The max-margin problems of the prefixes, gathered from the unit rows."""
        chosen = list(zip(self.inputs, prefixes.T, strict=False))
        rows = np.concatenate([tokens.units[t] for tokens, t in chosen], axis=1)
        lengths = np.concatenate([tokens.lengths[t] for tokens, t in chosen], axis=1)
        bound = 1 / lengths
        scale = bound.max(axis=1, initial=0.0)
        bound /= scale[:, None]
        return Systems(rows, bound, None, bound, lengths, scale)

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
        rows = np.arange(len(gaps))[:, None]
        for i, (tokens, t) in enumerate(zip(self.inputs, leaves.prefixes.T, strict=True)):
            margins = np.matmul(tokens.units[t], leaves.vectors[:, :, None])[:, :, 0] * tokens.lengths[t]
            close = margins <= 1 + NEIGHBOUR_TOLERANCE
            others, scores = tokens.others[t], self.problem.scores[i, tokens.order]
            gaps[:, i] = scores[t] - np.where(close, scores[others], -np.inf).max(axis=1, initial=-np.inf)
            near[rows, i, tokens.order[others]] = close
        return gaps, near

    def _solution(self, leaves: _Block, b: int, selected: Int[Array, " n"]) -> MarginSolution:
        """The leaf's solution as a parameter of the problem's own geometry."""
        constraints = attention_constraints(self.problem, selected)
        lengths = np.concatenate([x.lengths[t] for x, t in zip(self.inputs, leaves.prefixes[b], strict=True)])
        multipliers = leaves.multipliers[b] / lengths
        return MarginSolution(
            status="optimal",
            vector=constraints.combine(multipliers),
            margin=float(1 / np.linalg.norm(leaves.vectors[b])),
            multipliers=multipliers,
            tokens=constraints.token,
            certificate=Certificate(*leaves.residuals[b].tolist()),
        )
