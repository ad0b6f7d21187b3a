"""Thousands of max-margin problems of one shape in one call, each with its certificate.

Preparation and certificates are done for a whole block of problems at once, in a second thread that prepares the
next block while the solver works through this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE, Systems, normalised
from tokenmargin.margin.solution import Certificate, MarginSolution, Status
from tokenmargin.margin.system import Verdicts, narrowed, solve_systems

__all__ = ["MarginBatch", "max_margin_batch"]

X = TypeVar("X")
Y = TypeVar("Y")

BLOCK_BYTES = 1 << 20
"""Size of the constraint rows of one block: they stay in the cache between the passes over them."""


@dataclass(frozen=True, eq=False)
class MarginBatch:
    """The solutions of B problems of one shape; `batch[b]` is one of them as a `MarginSolution`.

    **Attributes**
    - `vectors`, `margins`, `multipliers`: as in `MarginSolution`, with a leading axis.
    - `farkas`: the proofs of infeasibility; rows of zeros elsewhere.
    - `residuals`: primal, dual, complementarity, gap and Farkas residual of each problem.
    - `tokens`: (input, position) of each constraint of each problem; the last position stands where the selected
      one would be.
    """

    vectors: Float[Array, "B d"]
    margins: Float[Array, " B"]
    multipliers: Float[Array, "B k"]
    farkas: Float[Array, "B k"]
    residuals: Float[Array, "B 5"]
    tokens: Int[Array, "B k 2"]

    def __len__(self) -> int:
        return len(self.margins)

    @property
    def infeasible(self) -> Bool[Array, " B"]:
        """Which problems are proven to have no solution."""
        return self.residuals[:, 4] <= TOLERANCE

    @property
    def optimal(self) -> Bool[Array, " B"]:
        """Which problems are proven to be solved."""
        return (self.residuals[:, :4].max(axis=1) <= TOLERANCE) & ~self.infeasible

    def __getitem__(self, b: int) -> MarginSolution:
        b = range(len(self))[b]
        status: Status = "optimal" if self.optimal[b] else "infeasible" if self.infeasible[b] else "inaccurate"
        return MarginSolution(
            status=status,
            vector=self.vectors[b],
            margin=float(self.margins[b]),
            multipliers=self.multipliers[b],
            tokens=self.tokens[b],
            certificate=Certificate(*self.residuals[b].tolist()),
            farkas=self.farkas[b] if status == "infeasible" else None,
        )


def max_margin_batch(
    keys: Float[Array, "#B n T d"],
    selected: Int[Array, "B n"],
    *,
    progress: Callable[[int], None] | None = None,
) -> MarginBatch:
    """ATT-SVM for every row of `selected`, each with its own keys or all with the same.

    **Arguments**
    - `keys`: the tokens, of shape (B, n, T, d), or (1, n, T, d) when all selections are of one problem.
    - `selected`: one token per input and problem.
    - `progress`: called with the number of problems done, after every block.

    >>> keys = np.array([[[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [0.5, 1.0]]]])
    >>> batch = max_margin_batch(keys, np.array([[1, 1, 1], [0, 1, 1]]))
    >>> batch.vectors[0].round(6), batch.optimal
    (array([1.333333, 0.333333]), array([ True, False]))
    """
    keys, selected = _checked(keys, selected)
    B, n = selected.shape
    T, d = keys.shape[2:]
    # The last token takes the place of the selected one: all other rows are copied as they lie.
    others = np.where(np.arange(T - 1) == selected[:, :, None], T - 1, np.arange(T - 1))
    results = MarginBatch(
        vectors=np.zeros((B, d)),
        margins=np.zeros(B),
        multipliers=np.zeros((B, n * (T - 1))),
        farkas=np.zeros((B, n * (T - 1))),
        residuals=np.full((B, 5), np.inf),
        tokens=np.stack(np.broadcast_arrays(np.arange(n)[:, None], others), axis=-1).reshape(B, n * (T - 1), 2),
    )
    block = max(1, BLOCK_BYTES // (8 * n * T * d))
    blocks = [slice(start, min(start + block, B)) for start in range(0, B, block)]
    for where, (systems, narrow) in zip(blocks, _ahead(lambda w: _prepared(keys, selected[w], w), blocks), strict=True):
        _record(results, where, systems, solve_systems(systems, narrow=narrow))
        if progress is not None:
            progress(where.stop)
    return results


def _checked(keys: object, selected: object) -> tuple[Array, Array]:
    tokens, alpha = np.asarray(keys, dtype=np.float64), np.asarray(selected)
    if tokens.ndim != 4 or 0 in tokens.shape:
        raise ValueError(f"keys must have shape (B, n, T, d) with no empty axis, got {tokens.shape}")
    if alpha.ndim != 2 or alpha.dtype.kind not in "iu" or alpha.shape[1] != tokens.shape[1]:
        raise ValueError(
            f"selected must be integers of shape (B, n) with n = {tokens.shape[1]}, got {alpha.dtype} {alpha.shape}"
        )
    if len(tokens) not in (1, len(alpha)):
        raise ValueError(f"keys must describe one problem or {len(alpha)} (one per selection), got {len(tokens)}")
    if alpha.size and (alpha.min() < 0 or alpha.max() >= tokens.shape[2]):
        raise ValueError(f"selected must lie in 0..{tokens.shape[2] - 1}, got {alpha.min()}..{alpha.max()}")
    if not np.isfinite(tokens).all():
        raise ValueError("keys must be finite; remove or impute the tokens that are not")
    return tokens, alpha.astype(np.intp, copy=False)


def _ahead(work: Callable[[X], Y], items: list[X]) -> Iterator[Y]:
    """`map(work, items)`, one item ahead of its consumer."""
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = pool.submit(work, items[0])
        for item in items[1:]:
            ready, coming = coming, pool.submit(work, item)
            yield ready.result()
        yield coming.result()


def _prepared(keys: Array, selected: Array, where: slice) -> tuple[Systems, Array]:
    """The constraint rows `k_{i alpha_i} - k_it` of a block, and the narrow rows for the solver."""
    tokens = keys if len(keys) == 1 else keys[where]
    first = np.zeros((len(selected), 1), dtype=np.intp) if len(keys) == 1 else np.arange(len(selected))[:, None]
    inputs = np.arange(tokens.shape[1])
    chosen = tokens[first, inputs, selected]
    rows = chosen[:, :, None] - tokens[:, :, :-1]
    problem, i = np.nonzero(selected < tokens.shape[2] - 1)
    rows[problem, i, selected[problem, i]] = chosen[problem, i] - tokens[first[problem, 0], i, -1]
    rows = rows.reshape(len(selected), -1, tokens.shape[3])
    systems = normalised(rows, np.ones((1, rows.shape[1])))
    return systems, narrowed(systems.rows)


def _record(results: MarginBatch, where: slice, systems: Systems, verdicts: Verdicts) -> None:
    """Write the block's answers in the units of the problem."""
    multipliers = verdicts.multipliers * (systems.scale[:, None] / systems.lengths)
    results.multipliers[where] = multipliers
    results.vectors[where] = verdicts.residuals.vectors * systems.scale[:, None]
    results.residuals[where, :4] = verdicts.residuals.table
    norm = verdicts.residuals.norm * systems.scale
    results.margins[where] = np.divide(1.0, norm, out=np.zeros_like(norm), where=norm > 0)
    if verdicts.farkas is None:
        return
    farkas = verdicts.farkas.weights / systems.lengths
    total = farkas.sum(axis=1, keepdims=True)
    results.farkas[where] = np.divide(farkas, total, out=np.zeros_like(farkas), where=total > 0)
    results.residuals[where, 4] = verdicts.farkas.residual
