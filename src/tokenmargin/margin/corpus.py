"""The max-margin problem of a whole corpus: millions of constraints, given implicitly, by cutting planes.

Tokens are rows of a dictionary, so a constraint is a pair of rows: `<e_s - e_r, p> >= 1` where s is selected in some
sequence that also holds r. All of them are checked at the price of one product `E p` and a look-up per pair; only
those that matter enter the master problem, which daqp re-solves from where it stood.

The answer carries a certified duality gap. Whatever the master did, `p / (smallest margin of p)` satisfies every
constraint, and any non-negative multipliers bound the norm from below by `sum_j lambda_j / |sum_j lambda_j row_j|`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.corpus import TokenCorpus
from tokenmargin.margin.certificate import TOLERANCE, normalised
from tokenmargin.margin.master import Master
from tokenmargin.margin.solution import Status
from tokenmargin.margin.system import solve_systems

__all__ = ["CorpusMargin", "RowPairs", "argmax_pairs", "corpus_margin", "selected_pairs"]

CUTS = 3
"""Constraints added in a round, as a multiple of the dimension."""
PER_TOKEN = 2
"""Constraints of one selected token added in a round: more of the same hardly turn the solution."""
PIECE = 1 << 22
"""Tokens looked at at once when the constraints are collected."""
MASTER = 12
"""Largest master problem, as a multiple of the dimension, before slack constraints are dropped."""


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


def argmax_pairs(corpus: TokenCorpus, logits: Float[Array, " m"], *, tolerance: float = 0.0) -> RowPairs:
    """The constraints of the selection made by `logits = E p`: the tokens of largest logit of every sequence.

    Tokens within `tolerance` of the largest logit are selected too, and tied with it.
    """
    if logits.shape != (len(corpus.vocabulary),):
        raise ValueError(
            f"logits must have one entry per token of the vocabulary, {len(corpus.vocabulary)}, got {logits.shape}"
        )
    least, heads = np.empty(corpus.n), np.empty(corpus.n, dtype=np.intp)
    for piece in _pieces(corpus):
        ids, starts = corpus.tokens[piece.tokens], piece.starts
        values = logits[ids]
        least[piece.sequences] = np.maximum.reduceat(values, starts) - tolerance
        chosen = values >= np.repeat(least[piece.sequences], piece.lengths)
        # Of tied tokens the one of lowest row stands for all.
        heads[piece.sequences] = np.minimum.reduceat(np.where(chosen, ids, len(logits)), starts)
    return _merged(corpus, heads, lambda ids, piece: logits[ids] >= np.repeat(least[piece.sequences], piece.lengths))


def selected_pairs(corpus: TokenCorpus, selected: Int[Array, " n"]) -> RowPairs:
    """The constraints of a given selection: one token of the vocabulary per sequence."""
    if selected.shape != corpus.lengths.shape:
        raise ValueError(f"selected must be one token for each of the {corpus.n} sequences, got {selected.shape}")
    pairs = _merged(corpus, selected, lambda ids, piece: ids == np.repeat(selected[piece.sequences], piece.lengths))
    found = np.zeros(corpus.n, dtype=bool)
    found[corpus.sequence[corpus.tokens == np.repeat(selected, corpus.lengths)]] = True
    if not found.all():
        i = int(found.argmin())
        raise ValueError(f"the selected token {selected[i]} of sequence {i} does not occur in it")
    return pairs


class _Piece(NamedTuple):
    """Some sequences of a corpus, and where their tokens lie."""

    sequences: slice
    tokens: slice
    lengths: Int[Array, " s"]

    @property
    def starts(self) -> Int[Array, " s"]:
        """Where each sequence begins within the piece."""
        return np.cumsum(self.lengths) - self.lengths


def _pieces(corpus: TokenCorpus) -> Iterator[_Piece]:
    """The corpus in pieces of about `PIECE` tokens: memory stays bounded whatever its size."""
    ends = np.cumsum(corpus.lengths)
    first, begin = 0, 0
    while first < corpus.n:
        last = max(int(np.searchsorted(ends, begin + PIECE, side="right")), first + 1)
        yield _Piece(slice(first, last), slice(begin, int(ends[last - 1])), corpus.lengths[first:last])
        first, begin = last, int(ends[last - 1])


def _merged(corpus: TokenCorpus, selected: Int[Array, " n"], choose: Callable[[Array, _Piece], Array]) -> RowPairs:
    """Mark every (head, rival) pair in a table of heads by vocabulary, and read the distinct ones off it."""
    vocabulary = len(corpus.vocabulary)
    unique, rank = np.unique(selected, return_inverse=True)
    table = np.zeros(len(unique) * vocabulary, dtype=bool)
    occurrences, ties = 0, [np.zeros((0, 2), dtype=np.intp)]
    for piece in _pieces(corpus):
        ids = corpus.tokens[piece.tokens]
        chosen = choose(ids, piece)
        table[(np.repeat(rank[piece.sequences] * vocabulary, piece.lengths) + ids)[~chosen]] = True
        occurrences += int((~chosen).sum())
        heads = np.repeat(selected[piece.sequences], piece.lengths)
        tied = chosen & (ids != heads)
        ties.append(np.unique(np.column_stack([heads[tied], ids[tied]]), axis=0).astype(np.intp))
    distinct = np.flatnonzero(table)
    counts = np.bincount(distinct // vocabulary, minlength=len(unique))
    return RowPairs(
        heads=unique.astype(np.intp),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        rivals=(distinct % vocabulary).astype(np.int32),
        ties=np.unique(np.concatenate(ties), axis=0),
        occurrences=occurrences,
    )


def corpus_margin(
    vectors: Float[Array, "m d"],
    pairs: RowPairs,
    *,
    start: Float[Array, " d"] | None = None,
    gap: float = 1e-7,
    progress: Callable[[float], None] | None = None,
) -> CorpusMargin:
    """The shortest p that satisfies all `pairs`, to a certified relative gap in its norm.

    **Arguments**
    - `start`: a vector whose tightest constraints are taken first; the one that made the selection is a good one.
    - `gap`: duality gap at which to stop.
    - `progress`: called in every round with the gap reached (infinite until a feasible vector is known).

    >>> corpus = TokenCorpus.of([["the", "good"], ["the", "bad"], ["the", "great"]], [1, -1, 1])
    >>> vectors = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, -1.0], [0.5, 1.0]])
    >>> corpus_margin(vectors, selected_pairs(corpus, np.array([1, 2, 3]))).vector.round(6)
    array([1.333333, 0.333333])
    """
    search = _Search(_tied(np.asarray(vectors, dtype=np.float64), pairs.ties), pairs)
    if not len(pairs):
        return search.answer("optimal")
    p = search.dictionary[pairs.heads].mean(axis=0) if start is None else np.asarray(start, dtype=np.float64)
    while True:
        margins = search.look(p)
        if progress is not None:
            progress(search.gap)
        cuts = _worst(margins, pairs, search.master, first=not search.rounds)
        if search.gap <= gap or not len(cuts):
            return search.answer("optimal" if search.gap <= gap else "inaccurate")
        if not search.cut(cuts):
            return search.refute()
        p = search.master.vector


class _Search:
    """The cutting planes at work: the master, and the bounds on the norm from both sides."""

    def __init__(self, dictionary: Float[Array, "m d"], pairs: RowPairs) -> None:
        self.dictionary, self.pairs = dictionary, pairs
        self.master = Master(dictionary.shape[1])
        self.best = np.zeros(dictionary.shape[1])
        # Nothing to separate: p = 0, exactly.
        self.lower, self.upper = (0.0, np.inf) if len(pairs) else (1.0, 1.0)
        self.rounds, self.began = 0, time.perf_counter()

    @property
    def gap(self) -> float:
        """How far the best norm known may be above the least, relatively."""
        return max(self.upper / self.lower - 1, 0.0) if self.lower > 0 else np.inf

    def look(self, p: Float[Array, " d"]) -> Float[Array, " k"]:
        """The margins of all constraints at p; the master's p, scaled to satisfy them all, bounds the norm above."""
        margins = self.pairs.margins(self.dictionary @ p)
        least, norm = float(margins.min()), float(np.linalg.norm(p))
        if self.rounds and least > 0 and norm / least < self.upper:
            self.best, self.upper = p / least, norm / least
        return margins

    def cut(self, cuts: Int[Array, " c"]) -> bool:
        """Take constraints into play and re-solve, which bounds the norm below; False when there is no solution."""
        raw = self.dictionary[self.pairs.plus(cuts)] - self.dictionary[self.pairs.rivals[cuts]]
        if len(self.master) + len(cuts) > MASTER * raw.shape[1]:
            self.master.forget_idle()
        lengths = np.sqrt(np.einsum("kd,kd->k", raw, raw))
        lengths[lengths == 0] = 1.0
        self.master.add(cuts, raw / lengths[:, None], 1 / lengths)
        self.rounds += 1
        if not self.master.solve():
            return False
        self.lower = max(self.lower, self.master.lower_bound)
        return True

    def refute(self) -> CorpusMargin:
        """The answer when the master has no solution: infeasible with a Farkas vector, or else inaccurate."""
        master = self.master
        verdict = solve_systems(normalised(master.rows[None], master.bound[None]))
        if verdict.farkas is None or verdict.farkas.residual[0] > TOLERANCE:
            return self.answer("inaccurate")
        master.multipliers = verdict.farkas.weights[0] / (verdict.farkas.weights[0] @ master.bound)
        return self.answer("infeasible")

    def answer(self, status: Status) -> CorpusMargin:
        """What is known, with the constraints that hold it."""
        held = np.flatnonzero(self.master.multipliers)
        numbers = self.master.numbers[held]
        vector = np.zeros_like(self.best) if status == "infeasible" else self.best
        norm = float(np.linalg.norm(vector))
        return CorpusMargin(
            status=status,
            vector=vector,
            margin=0.0 if status == "infeasible" else 1 / norm if norm > 0 else np.inf,
            gap=self.gap,
            pairs=np.stack([self.pairs.plus(numbers), self.pairs.rivals[numbers]], axis=1),
            multipliers=self.master.multipliers[held] * self.master.bound[held],
            rounds=self.rounds,
            constraints=len(self.pairs),
            occurrences=self.pairs.occurrences,
            seconds=time.perf_counter() - self.began,
        )


def _tied(vectors: Float[Array, "m d"], ties: Int[Array, "q 2"]) -> Float[Array, "m d"]:
    """The vectors seen from the subspace where tied rows have equal logits: p lies there, so nothing else is seen."""
    if not len(ties):
        return vectors
    differences = vectors[ties[:, 0]] - vectors[ties[:, 1]]
    _, sizes, axes = np.linalg.svd(differences, full_matrices=False)
    axes = axes[sizes > len(axes) * np.finfo(float).eps * sizes[0]] if sizes[0] > 0 else axes[:0]
    return vectors - (vectors @ axes.T) @ axes


def _worst(margins: Float[Array, " k"], pairs: RowPairs, master: Master, *, first: bool) -> Int[Array, " c"]:
    """The most violated constraints not in play yet, at most a few of one head; in the first round the tightest."""
    number = CUTS * master.rows.shape[1]
    candidates = np.arange(len(margins)) if first else np.flatnonzero(margins < 1 - TOLERANCE)
    if len(candidates) > 20 * number:
        candidates = candidates[np.argpartition(margins[candidates], 20 * number)[: 20 * number]]
    candidates = candidates[~np.isin(candidates, master.numbers)]
    candidates = candidates[np.argsort(margins[candidates], kind="stable")]
    heads = pairs.plus(candidates)
    by_head = np.argsort(heads, kind="stable")
    sorted_heads = heads[by_head]
    place = np.arange(len(heads)) - np.searchsorted(sorted_heads, sorted_heads)
    rank = np.empty(len(heads), dtype=np.intp)
    rank[by_head] = place
    return candidates[rank < PER_TOKEN][:number]
