"""Thousands of max-margin problems of one shape in one call, each with its certificate.

Compiled code solves and certifies small problems block by block, with a thread per processor. Problems that it leaves
undecided, and large ones, go through `compiled.systems`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Tabular
from tokenmargin.engines import usable_cores
from tokenmargin.margin.certificate import TOLERANCE, normalised_systems, rescale_exactly
from tokenmargin.margin.compiled.systems import (
    INFEASIBLE,
    MOST_ROWS,
    OUT_OF_RANGE,
    RAY,
    UNDECIDED,
    StackResult,
    solve_systems,
)
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.margin.normed.solve import gap_tolerance, solve_in_norm
from tokenmargin.margin.solution import Certificate, MarginSolution, Status
from tokenmargin.norms import L2, AbstractNorm, LpNorm, SchattenNorm, as_norm
from tokenmargin.problem.abstract_geometry import AbstractGeometry, as_array
from tokenmargin.problem.token_problem import TokenProblem

BLOCK, BLOCK_BYTES = 128, 1 << 24
"""Problems that a thread takes at a time, and the most memory that their constraint rows may take."""


@dataclass(frozen=True, eq=False)
class MarginBatch(Tabular):
    """The solutions of B problems of one shape; `batch[b]` is one of them as a `MarginSolution`.

    **Attributes**
    - `vectors`, `margins`, `multipliers`: as in `MarginSolution`, with a leading axis.
    - `farkas`: the proofs of infeasibility; rows of zeros elsewhere.
    - `residuals`: primal, dual, complementarity, gap and Farkas residual of each problem.
    - `selected`: the selected tokens; their constraints are in the order of `max_margin`.
    - `seconds`: time taken in all; a solution taken out of the batch carries its share.
    - `norm`: the norm of `|p|`.
    - `shape`: of the matrices that the vectors are, flattened row by row, where the problems are for W.
    """

    vectors: Float[Array, "B d"]
    margins: Float[Array, " B"]
    multipliers: Float[Array, "B k"]
    farkas: Float[Array, "B k"]
    residuals: Float[Array, "B 5"]
    selected: Int[Array, "B n"]
    seconds: float
    norm: AbstractNorm = L2
    shape: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.margins)

    @property
    def infeasible(self) -> Bool[Array, " B"]:
        """Which problems are proven to have no solution."""
        return self.residuals[:, 4] == 0

    @property
    def optimal(self) -> Bool[Array, " B"]:
        """Which problems are proven to be solved."""
        return (self.residuals[:, :4].max(axis=1) <= self.tolerance) & ~self.infeasible

    @property
    def tolerance(self) -> float:
        """Largest residual with which an answer is called optimal."""
        return TOLERANCE if self.norm == L2 else gap_tolerance(self.norm)

    @property
    def tokens(self) -> Int[Array, "B k 2"]:
        """(input, position) of each constraint of each problem."""
        return _constraint_tokens(self.selected, self.multipliers.shape[1])

    def __repr__(self) -> str:
        optimal, infeasible = int(self.optimal.sum()), int(self.infeasible.sum())
        left = len(self) - optimal - infeasible
        return f"MarginBatch({len(self)} problems: {optimal} optimal, {infeasible} infeasible, {left} inaccurate)"

    def _columns(self) -> dict[str, Array]:
        status = np.where(self.optimal, "optimal", np.where(self.infeasible, "infeasible", "inaccurate"))
        residual = np.where(self.infeasible, 0.0, self.residuals[:, :4].max(axis=1))
        active = (self.multipliers != 0).sum(axis=1)
        return {"status": status, "margin": self.margins, "active": active, "residual": residual}

    def __getitem__(self, b: int) -> MarginSolution:
        b = range(len(self))[b]
        certificate = Certificate(*self.residuals[b].tolist())
        status: Status = "inaccurate"
        if certificate.residual <= self.tolerance:
            status = "infeasible" if certificate.farkas == 0 else "optimal"
        return MarginSolution(
            status=status,
            vector=self.vectors[b],
            margin=float(self.margins[b]),
            multipliers=self.multipliers[b],
            tokens=_constraint_tokens(self.selected[b : b + 1], self.multipliers.shape[1])[0],
            certificate=certificate,
            farkas=self.farkas[b] if status == "infeasible" else None,
            seconds=self.seconds / len(self),
            norm=self.norm,
            shape=self.shape,
        )

    def __iter__(self) -> Iterator[MarginSolution]:
        return map(self.__getitem__, range(len(self)))


ONE_BY_ONE = "solve problems of different sizes one by one, by max_margin(problem, selected)"


def max_margin_batch(
    keys: Float[Array, "#B n T d"],
    selected: Int[Array, "B n"],
    *,
    queries: Float[Array, "#B n q"] | None = None,
    norm: AbstractNorm | str = "l2",
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> MarginBatch:
    """ATT-SVM for every row of `selected`, each with its own keys or all with the same.

    **Arguments**
    - `keys`: the tokens, of shape (B, n, T, d), or (1, n, T, d) when all selections are of one problem.
    - `selected`: one token per input and problem.
    - `queries`: those of every input, for problems in W: of shape (B, n, q), or (1, n, q) when all share them.
    - `norm`: what "shortest" means: "l2", "l1", "linf", "lp:1.5", one of your own, and for W "nuclear" and "spectral".
      Nuclear and spectral one problem at a time.
    - `threads`: how many to use; one per processor by default.
    - `progress`: called with the number of problems done, after every block.

    >>> keys = np.array([[[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [0.5, 1.0]]]])
    >>> batch = max_margin_batch(keys, np.array([[1, 1, 1], [0, 1, 1]]))
    >>> batch.vectors[0].round(6), batch.optimal
    (array([1.333333, 0.333333]), array([ True, False]))
    """
    began = time.perf_counter()
    chosen, (keys, selected) = as_norm(norm), _check_keys(keys, selected)
    pose = partial(_single_problem, keys, queries)
    shape = None
    if queries is not None:
        keys, shape = _outer_products(keys, queries, len(selected))
    elif isinstance(chosen, SchattenNorm):
        raise ValueError(f"the {chosen.name} norm is one of matrices: give the queries, queries= of shape (B, n, q)")
    B, n = selected.shape
    T, d = keys.shape[2:]
    answers = StackResult.empty(B, n * (T - 1), d)
    block = max(1, min(BLOCK, BLOCK_BYTES // (8 * n * T * d)))
    blocks = [slice(start, min(start + block, B)) for start in range(0, B if T > 1 else 0, block)]
    works = (lambda where=where: _answer_block(keys, selected, where, chosen, answers, pose) for where in blocks)
    for where, _ in zip(blocks, _in_threads(works, min(threads or usable_cores(), len(blocks))), strict=True):
        if progress is not None:
            progress(where.stop)
    with np.errstate(over="ignore"):
        margins = np.divide(1.0, answers.norms, out=np.zeros(B), where=answers.norms > 0)
    if T == 1:  # nothing to separate
        margins[:], answers.residuals[:, :4] = np.inf, 0.0
    return MarginBatch(
        vectors=answers.vectors,
        margins=margins,
        multipliers=answers.multipliers,
        farkas=answers.farkas,
        residuals=answers.residuals,
        selected=selected,
        seconds=time.perf_counter() - began,
        norm=chosen.of_shape(shape),
        shape=shape,
    )


def _single_problem(keys: Array, queries: Array | None, b: int) -> TokenProblem:
    """Problem b by itself."""
    tokens = keys[b if len(keys) > 1 else 0]
    problem = TokenProblem.of(tokens, np.ones(len(tokens)), scores=np.zeros(tokens.shape[:2]))
    return problem if queries is None else problem.with_matrix(np.asarray(queries)[b if len(queries) > 1 else 0])


def _outer_products(keys: Array, queries: object, B: int) -> tuple[Float[Array, "#B n T r"], tuple[int, int]]:
    """The tokens `z k'` of problems in W, row by row, and the shape of W."""
    asked = as_array("queries", queries, float)
    if asked.ndim != 3 or asked.shape[1] != keys.shape[1] or len(asked) not in (1, B) or not asked.shape[2]:
        raise ValueError(
            f"queries must have shape ({B}, {keys.shape[1]}, q) or (1, {keys.shape[1]}, q), got {asked.shape}"
        )
    if not np.isfinite(asked).all():
        raise ValueError("queries must be finite; remove or impute those that are not")
    products = asked[:, :, None, :, None] * keys[:, :, :, None, :]
    return products.reshape(*products.shape[:3], -1), (asked.shape[2], keys.shape[3])


def _check_keys(keys: object, selected: object) -> tuple[Array, Array]:
    """Contiguous and read-only keys and selections; whether the keys are finite is seen on the way."""
    if isinstance(keys, AbstractGeometry):
        raise TypeError(
            "a batch takes its keys as an array of shape (B, n, T, d); problems known by inner products alone are "
            "solved one by one, by max_margin(problem, selected)"
        )
    tokens = np.asarray(as_array("keys", keys, float, ragged=ONE_BY_ONE), order="C").view()
    alpha = as_array("selected", selected)
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
    alpha = alpha.astype(np.intp, order="C")  # a copy: the batch keeps it
    for array in (tokens, alpha):
        array.setflags(write=False)
    return tokens, alpha


def _in_threads(works: Iterable[Callable[[], Any]], threads: int) -> Iterator[Any]:
    """The results of `works`, in order."""
    if threads < 2:
        yield from (work() for work in works)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(lambda work: work(), works)


def _unselected_positions(selected: Int[Array, "B n"], T: int) -> Int[Array, "B n others"]:
    """Positions of the tokens that are not selected."""
    positions = np.arange(T - 1)
    return positions + (positions >= selected[:, :, None])


def _constraint_tokens(selected: Int[Array, "B n"], k: int) -> Int[Array, "B k 2"]:
    """(input, position) of the k constraints of each selection."""
    B, n = selected.shape
    others = _unselected_positions(selected, k // n + 1)
    return np.stack(np.broadcast_arrays(np.arange(n)[:, None], others), axis=-1).reshape(B, k, 2)


def _answer_block(
    keys: Array,
    selected: Array,
    where: slice,
    norm: AbstractNorm,
    answers: StackResult,
    pose: Callable[[int], TokenProblem],
) -> None:
    """Answer a block of problems: in compiled code, and the rest as a stack; other norms where none is infeasible."""
    from tokenmargin.margin.compiled.stack import solve_keys  # compiled code, loaded where it is used

    if answers.multipliers.shape[1] <= MOST_ROWS:
        solve_keys(keys, selected, where.start, where.stop, answers)
    codes = answers.codes[where]
    if (codes == OUT_OF_RANGE).any() and not np.isfinite(keys if len(keys) == 1 else keys[where]).all():
        raise ValueError("keys must be finite; remove or impute the tokens that are not")
    left = where.start + np.flatnonzero(np.isin(codes, (UNDECIDED, OUT_OF_RANGE, RAY)))
    if norm == L2:
        _answer_as_stack(keys, selected, left, answers)
        return
    answers.farkas[left], answers.residuals[left, 4] = 0.0, np.inf  # rays that prove nothing yet
    rest = where.start + np.flatnonzero(codes != INFEASIBLE)
    if isinstance(norm, LpNorm):
        rest = _answer_in_norm(keys, selected, rest, norm, answers)
    # Whether there is a solution does not depend on the norm: the Euclidean problem says it, where it is still open.
    _answer_as_stack(keys, selected, np.intersect1d(left, rest), answers)
    for b in rest[answers.residuals[rest, 4] != 0].tolist():
        one = solve_in_norm(attention_constraints(pose(b), selected[b]), norm)
        answers.vectors[b], answers.multipliers[b] = one.vector, one.multipliers
        answers.norms[b] = 1 / one.margin if one.margin else 0.0
        answers.residuals[b] = one.certificate if one.farkas is None else (np.inf,) * 4 + (0.0,)
        answers.farkas[b] = 0.0 if one.farkas is None else one.farkas


def _answer_in_norm(
    keys: Array, selected: Array, which: Int[Array, " c"], norm: LpNorm, answers: StackResult
) -> Int[Array, " left"]:
    """Answer the given problems in an lp norm by compiled code; returns those of which it proves nothing."""
    from tokenmargin.margin.normed.stack import solve_stack

    if not len(which):
        return which
    plus, minus = _token_pairs(keys, selected, which)
    # Each problem in its own unit, a power of two: one of 1e300 beside one of 1e-20 would cost that all its digits.
    most = np.maximum(np.abs(plus).max(axis=(1, 2)), np.abs(minus).max(axis=(1, 2)))
    size = np.ldexp(0.5, np.frexp(np.maximum(most, 1e-300))[1])[:, None]
    rows = plus / size[:, :, None] - minus / size[:, :, None]
    vectors, multipliers, found = solve_stack(rows, np.ones(rows.shape[:2]), norm.p)
    answers.vectors[which] = rescale_exactly(vectors, over=size)
    answers.multipliers[which] = rescale_exactly(rescale_exactly(multipliers, over=size), over=size)
    answers.norms[which] = rescale_exactly(found[:, 0], over=size[:, 0])
    longest = np.abs(answers.vectors[which]).max(axis=1)
    found[(longest > 1e306) | (longest < 1e-290), 1] = np.inf  # near the ends of the doubles digits may be lost
    answers.residuals[which, :3], answers.residuals[which, 3] = 0.0, found[:, 1]
    return which[~(found[:, 1] < np.inf)]


def _token_pairs(
    keys: Array, selected: Array, which: Int[Array, " c"]
) -> tuple[Float[Array, "c k d"], Float[Array, "c k d"]]:
    """Of every constraint, the selected token and the other one."""
    first = which[:, None] if len(keys) > 1 else np.zeros((1, 1), dtype=np.intp)
    inputs, alpha = np.arange(keys.shape[1]), selected[which]
    chosen, others = keys[first, inputs, alpha], _unselected_positions(alpha, keys.shape[2])
    minus = keys[first[:, :, None], inputs[:, None], others]
    shape = (len(which), -1, keys.shape[3])
    return np.broadcast_to(chosen[:, :, None], minus.shape).reshape(shape), minus.reshape(shape)


def _answer_as_stack(keys: Array, selected: Array, which: Int[Array, " c"], answers: StackResult) -> None:
    """Answer the given problems through `solve_systems`, in the units of the problem."""
    if not len(which):
        return
    plus, minus = _token_pairs(keys, selected, which)
    systems = normalised_systems(plus, np.ones((1, answers.multipliers.shape[1])), minus=minus)
    found = solve_systems(systems)
    scale = systems.scale[:, None]
    answers.multipliers[which] = rescale_exactly(found.multipliers, times=scale, over=systems.lengths)
    answers.vectors[which] = rescale_exactly(found.vectors, times=scale)
    answers.norms[which] = rescale_exactly(found.norms, times=systems.scale)
    answers.residuals[which] = found.residuals
    farkas = rescale_exactly(found.farkas, over=systems.lengths)
    total = farkas.sum(axis=1, keepdims=True)
    proven = found.infeasible[:, None] & (total > 0)
    answers.farkas[which] = np.divide(farkas, total, out=np.zeros_like(farkas), where=proven)
