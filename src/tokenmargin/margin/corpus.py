"""The max-margin problem of a whole corpus: millions of constraints, given implicitly, by cutting planes.

Tokens are rows of a dictionary, so a constraint is a pair of rows: `<e_s - e_r, p> >= 1` where s is selected in some
sequence that also holds r. All of them are checked at the price of one product `E p` and a look-up per pair; only
those that matter enter the master problem, which daqp re-solves from where it stood.

The answer carries a certified duality gap. Whatever the master did, `p / (smallest margin of p)` satisfies every
constraint, and any non-negative multipliers bound the norm from below by `sum_j lambda_j / |sum_j lambda_j row_j|`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import daqp
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.solution import Status
from tokenmargin.margin.system import TOLERANCE, normalised, solve_systems

__all__ = ["CorpusMargin", "RowPairs", "argmax_pairs", "corpus_margin", "selected_pairs"]

CUTS = 3
"""Constraints added in a round, as a multiple of the dimension."""
PER_TOKEN = 2
"""Constraints of one selected token added in a round: more of the same hardly turn the solution."""
MASTER = 12
"""Largest master problem, as a multiple of the dimension, before slack constraints are dropped."""
_INFINITE = 1e30


@dataclass(frozen=True, eq=False)
class RowPairs:
    """The distinct constraints of a corpus: `heads[j]` must beat the rows `rivals[starts[j] : starts[j + 1]]`.

    **Attributes**
    - `heads`: selected rows of the dictionary, ascending.
    - `starts`: where the rivals of each head begin, and their number at the end.
    - `rivals`: rows that occur with the head in some sequence and are not selected there.
    - `ties`: pairs of rows selected in one sequence, whose logits must be equal.
    - `occurrences`: constraints before equal ones were merged.
    """

    heads: Int[Array, " h"]
    starts: Int[Array, " s"]
    rivals: Int[Array, " k"]
    ties: Int[Array, "q 2"]
    occurrences: int

    def __len__(self) -> int:
        return len(self.rivals)

    def margins(self, logits: Float[Array, " m"]) -> Float[Array, " k"]:
        """`<e_s - e_r, p>` of every pair, from the logits `E p`."""
        return np.repeat(logits[self.heads], np.diff(self.starts)) - logits[self.rivals]

    def plus(self, pairs: Int[Array, " c"]) -> Int[Array, " c"]:
        """The head of each of the given pairs."""
        return self.heads[np.searchsorted(self.starts, pairs, side="right") - 1]


@dataclass(frozen=True, eq=False)
class CorpusMargin:
    """The max-margin vector of a corpus and why to believe it.

    **Attributes**
    - `status`: "optimal" when the gap is as small as asked for, "infeasible" with a Farkas vector, else "inaccurate".
    - `vector`: p, scaled so that every constraint holds.
    - `margin`: `1 / |p|`.
    - `gap`: `|p|` over the proven lower bound, less 1.
    - `pairs`, `multipliers`: (selected row, other row) of the constraints that hold p, and their multipliers; the
      Farkas vector when infeasible.
    - `rounds`: master problems solved.
    - `constraints`, `occurrences`: distinct constraints, and their number before equal ones were merged.
    - `seconds`: time taken.
    """

    status: Status
    vector: Float[Array, " d"]
    margin: float
    gap: float
    pairs: Int[Array, "a 2"]
    multipliers: Float[Array, " a"]
    rounds: int
    constraints: int
    occurrences: int
    seconds: float


def argmax_pairs(
    ids: Int[Array, " N"], offsets: Int[Array, " s"], logits: Float[Array, " m"], *, tolerance: float = 0.0
) -> RowPairs:
    """The constraints of the selection made by `logits = E p`: the tokens of largest logit of every sequence.

    Tokens within `tolerance` of the largest logit are selected too, and tied with it.

    **Arguments**
    - `ids`: tokens of all sequences, one after the other; sequence i is `ids[offsets[i] : offsets[i + 1]]`.
    """
    ids, offsets = _checked_sequences(ids, offsets, len(logits))
    values = logits[ids]
    best = np.repeat(np.maximum.reduceat(values, offsets[:-1]), np.diff(offsets))
    chosen = values >= best - tolerance
    first = np.flatnonzero(chosen)
    sequence = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    head = np.empty(len(offsets) - 1, dtype=np.intp)
    head[sequence[first][::-1]] = ids[first][::-1]  # the first selected token of each sequence is written last
    return _merged(ids, head[sequence], chosen, len(logits))


def selected_pairs(
    ids: Int[Array, " N"], offsets: Int[Array, " s"], selected: Int[Array, " n"], *, vocabulary: int
) -> RowPairs:
    """The constraints of a given selection: one row of the dictionary per sequence."""
    ids, offsets = _checked_sequences(ids, offsets, vocabulary)
    heads = np.repeat(np.asarray(selected), np.diff(offsets))
    chosen = ids == heads
    missing = ~np.logical_or.reduceat(chosen, offsets[:-1])
    if missing.any():
        i = int(missing.argmax())
        raise ValueError(f"the selected token {selected[i]} of sequence {i} does not occur in it")
    return _merged(ids, heads, chosen, vocabulary)


def _checked_sequences(ids: object, offsets: object, vocabulary: int) -> tuple[Array, Array]:
    tokens, ends = np.asarray(ids), np.asarray(offsets)
    if tokens.ndim != 1 or ends.ndim != 1 or tokens.dtype.kind not in "iu" or ends.dtype.kind not in "iu":
        raise ValueError("ids and offsets must be one-dimensional integer arrays")
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != len(tokens) or (np.diff(ends) < 1).any():
        raise ValueError("offsets must rise from 0 to len(ids), with at least one token in every sequence")
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise ValueError(f"ids must lie in 0..{vocabulary - 1}, got {tokens.min()}..{tokens.max()}")
    return tokens, ends


def _merged(ids: Array, heads: Array, chosen: Bool[Array, " N"], vocabulary: int) -> RowPairs:
    """Mark every (head, rival) pair in a table of heads by vocabulary, and read the distinct ones off it."""
    unique, rank = np.unique(heads, return_inverse=True)
    key = rank.astype(np.int64) * vocabulary + ids
    table = np.zeros(len(unique) * vocabulary, dtype=bool)
    table[key[~chosen]] = True
    distinct = np.flatnonzero(table)
    counts = np.bincount(distinct // vocabulary, minlength=len(unique))
    tied = chosen & (ids != heads)
    return RowPairs(
        heads=unique.astype(np.intp),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        rivals=(distinct % vocabulary).astype(np.int32),
        ties=np.unique(np.column_stack([heads[tied], ids[tied]]), axis=0).astype(np.intp),
        occurrences=int((~chosen).sum()),
    )


class _Master:
    """The constraints in play, as unit rows, and the multipliers of the last solve."""

    def __init__(self, vectors: Float[Array, "m d"]) -> None:
        self.vectors = vectors
        d = vectors.shape[1]
        self.rows, self.bound, self.multipliers = np.zeros((0, d)), np.zeros(0), np.zeros(0)
        self.pairs = np.zeros(0, dtype=np.intp)

    def add(self, pairs: Int[Array, " c"], plus: Int[Array, " c"], minus: Int[Array, " c"]) -> None:
        """Take new constraints in; drop idle ones when the master has grown too large."""
        keep = slice(None)
        if len(self.pairs) + len(pairs) > MASTER * self.rows.shape[1]:
            keep = np.flatnonzero(self.multipliers)  # type: ignore[assignment]
        new = self.vectors[plus] - self.vectors[minus]
        lengths = np.sqrt(np.einsum("kd,kd->k", new, new))
        lengths[lengths == 0] = 1.0
        self.rows = np.concatenate([self.rows[keep], new / lengths[:, None]])
        self.bound = np.concatenate([self.bound[keep], 1 / lengths])
        self.multipliers = np.concatenate([self.multipliers[keep], np.zeros(len(pairs))])
        self.pairs = np.concatenate([self.pairs[keep], pairs])

    def solve(self) -> bool:
        """Re-solve from the last active set; False when the constraints in play have no solution."""
        scale = self.bound.max()
        _, _, flag, info = daqp.solve(
            None, None, self.rows, np.full(len(self.rows), _INFINITE), self.bound / scale,
            (self.multipliers > 0).astype(np.intc), dual_start=-self.multipliers / scale, iter_limit=1_000_000,
        )  # fmt: skip
        self.multipliers = np.maximum(-np.asarray(info["lam"]) * scale, 0.0)
        return bool(flag > 0)

    @property
    def vector(self) -> Float[Array, " d"]:
        return self.multipliers @ self.rows

    @property
    def lower_bound(self) -> float:
        """A norm that no feasible vector can undercut: `bound' lambda / |rows' lambda|`."""
        length = float(np.linalg.norm(self.vector))
        return float(self.bound @ self.multipliers) / length if length > 0 else 0.0


def corpus_margin(
    vectors: Float[Array, "m d"],
    pairs: RowPairs,
    *,
    start: Float[Array, " d"] | None = None,
    gap: float = 1e-7,
    progress: Callable[[int, float], None] | None = None,
) -> CorpusMargin:
    """The shortest p that satisfies all `pairs`, to a certified relative gap in its norm.

    **Arguments**
    - `start`: a vector whose tightest constraints are taken first; the one that made the selection is a good one.
    - `gap`: duality gap at which to stop.
    - `progress`: called with the round and its gap (infinite until a feasible vector is known).

    >>> vectors = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, -1.0], [0.5, 1.0]])
    >>> pairs = selected_pairs(np.array([0, 1, 0, 2, 0, 3]), np.array([0, 2, 4, 6]), np.array([1, 2, 3]), vocabulary=4)
    >>> corpus_margin(vectors, pairs).vector.round(6)
    array([1.333333, 0.333333])
    """
    began = time.perf_counter()
    dictionary = _tied(np.asarray(vectors, dtype=np.float64), pairs.ties)
    master = _Master(dictionary)
    p = dictionary[pairs.heads].mean(axis=0) if start is None else np.asarray(start, dtype=np.float64)
    best, upper, lower, rounds = np.zeros(dictionary.shape[1]), np.inf, 0.0, 0

    def answer(status: Status, vector: Array, held: Array, weights: Array) -> CorpusMargin:
        norm = float(np.linalg.norm(vector))
        rows = np.stack([pairs.plus(held), pairs.rivals[held]], axis=1)
        reached = max(upper / lower - 1, 0.0) if lower > 0 else np.inf
        margin = 0.0 if status == "infeasible" else 1 / norm if norm > 0 else np.inf
        seconds = time.perf_counter() - began
        return CorpusMargin(
            status, vector, margin, reached, rows, weights, rounds, len(pairs), pairs.occurrences, seconds
        )

    if not len(pairs):
        upper = lower = 1.0  # nothing to separate: p = 0 exactly
        return answer("optimal", best, np.zeros(0, dtype=np.intp), np.zeros(0))
    while True:
        margins = pairs.margins(dictionary @ p)
        least = float(margins.min())
        if rounds and least > 0 and np.linalg.norm(p) / least < upper:
            best, upper = p / least, float(np.linalg.norm(p) / least)
        if progress is not None:
            progress(rounds, upper / lower - 1 if lower > 0 else np.inf)
        cuts = _worst(margins, pairs, master, first=not rounds)
        if (lower > 0 and upper / lower - 1 <= gap) or not len(cuts):
            break
        master.add(cuts, pairs.plus(cuts), pairs.rivals[cuts])
        rounds += 1
        if not master.solve():
            farkas = _refuted(master)
            if farkas is None:
                break
            held = np.flatnonzero(farkas)
            return answer("infeasible", np.zeros_like(p), master.pairs[held], farkas[held])
        p, lower = master.vector, max(lower, master.lower_bound)
    held = np.flatnonzero(master.multipliers)
    status: Status = "optimal" if lower > 0 and upper / lower - 1 <= gap else "inaccurate"
    return answer(status, best, master.pairs[held], master.multipliers[held] * master.bound[held])


def _tied(vectors: Float[Array, "m d"], ties: Int[Array, "q 2"]) -> Float[Array, "m d"]:
    """The vectors seen from the subspace where tied rows have equal logits: p lies there, so nothing else is seen."""
    if not len(ties):
        return vectors
    differences = vectors[ties[:, 0]] - vectors[ties[:, 1]]
    _, sizes, axes = np.linalg.svd(differences, full_matrices=False)
    axes = axes[sizes > len(axes) * np.finfo(float).eps * sizes[0]] if sizes[0] > 0 else axes[:0]
    return vectors - (vectors @ axes.T) @ axes


def _worst(margins: Float[Array, " k"], pairs: RowPairs, master: _Master, *, first: bool) -> Int[Array, " c"]:
    """The most violated constraints not in play yet, at most a few of one head; in the first round the tightest."""
    number = CUTS * master.rows.shape[1]
    candidates = np.arange(len(margins)) if first else np.flatnonzero(margins < 1 - TOLERANCE)
    if len(candidates) > 20 * number:
        candidates = candidates[np.argpartition(margins[candidates], 20 * number)[: 20 * number]]
    candidates = candidates[~np.isin(candidates, master.pairs)]
    candidates = candidates[np.argsort(margins[candidates], kind="stable")]
    heads = pairs.plus(candidates)
    by_head = np.argsort(heads, kind="stable")
    sorted_heads = heads[by_head]
    place = np.arange(len(heads)) - np.searchsorted(sorted_heads, sorted_heads)
    rank = np.empty(len(heads), dtype=np.intp)
    rank[by_head] = place
    return candidates[rank < PER_TOKEN][:number]


def _refuted(master: _Master) -> Float[Array, " k"] | None:
    """A Farkas vector of the constraints in play (in units of their original rows), or None when there is no proof."""
    verdict = solve_systems(normalised(master.rows[None], master.bound[None]))
    if verdict.farkas is None or verdict.farkas.residual[0] > TOLERANCE:
        return None
    weights = verdict.farkas.weights[0] * master.bound
    return weights / weights.sum()
