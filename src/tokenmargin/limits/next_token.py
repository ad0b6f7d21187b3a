"""Where next-token training ends: `W = R W_mm + W_fin`, both parts solved and certified without training anything.

The risk is convex. Tokens on a cycle of a priority graph tie for ever, and settle at the weights with which they come
next (W_fin, in the span of the ties); between components W grows along the shortest direction that keeps the ties and
separates the order (W_mm, across that span). Embeddings that are linearly dependent may force more ties than the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.limits.tied_choice import RANK, SoftPart, tied_choice
from tokenmargin.margin import MarginSolution
from tokenmargin.margin.graph_margin import forced_ties, graph_margin, node_vectors
from tokenmargin.plugins import kind_in_words
from tokenmargin.problem.next_token import NextTokenProblem, PriorityGraph


@dataclass(frozen=True, eq=False)
class NextTokenLimit:
    """The limit of next-token training, in two parts.

    **Attributes**
    - `problem`: what is trained.
    - `graph`: its priority graph, with the classes of tied tokens as components.
    - `dependent`: whether linearly dependent embeddings tie more than the graph's own components.
    - `direction`: the graph max-margin problem, solved: W_mm and its certificate. Its margin is infinite where nothing
      is ordered: W then stays finite.
    - `finite`: W_fin and its certificate, the gradient.

    Parameters are W flattened row by row; for orthonormal tokens, the logits of the graph's nodes.
    """

    problem: NextTokenProblem
    graph: PriorityGraph
    dependent: bool
    direction: MarginSolution
    finite: SoftPart

    @property
    def is_certified(self) -> bool:
        """Whether both parts are proven: the direction optimal, the finite part within 1e-6 units of the minimum."""
        return self.direction.is_optimal and bool(self.finite.distance <= 1e-6 * self.finite.unit)

    @cached_property
    def logits(self) -> Float[Array, " nodes"]:
        """The logits of W_mm at every node."""
        if self.problem.embeddings is None:
            return self.direction.vector
        return np.asarray(node_vectors(self.problem) @ self.direction.vector)

    def matrix(self, part: Float[Array, " D"]) -> Float[Array, "q d"]:
        """A part as a matrix W, with logits `z' W x`."""
        if self.problem.embeddings is not None:
            d = self.problem.embeddings.shape[1]
            return part.reshape(d, d)
        table = np.zeros((self.problem.size, self.problem.size))
        table[self.graph.last, self.graph.token] = part
        return table

    def cosine(self, weights: Float[Array, "q d"] | Float[Array, " D"]) -> float:
        """Cosine of trained weights, of any start, to W_mm; NaN where nothing is ordered, and W_mm is zero."""
        mm = self.matrix(self.direction.vector).ravel()
        lengths = float(np.linalg.norm(weights) * np.linalg.norm(mm))
        return float(np.ravel(weights) @ mm) / lengths if lengths > 0 else np.nan

    def predict(self, sequence: Sequence[int]) -> dict[int, float]:
        """Probabilities of the next token in the limit: of the tokens that none in the sequence is ahead of.

        ValueError where tokens are level that no sequence ties: how they share depends on the course of training.

        >>> problem = NextTokenProblem.of([[1, 2, 0], [1, 2, 0], [1, 2, 0]], [1, 1, 2])
        >>> {token: round(p, 6) for token, p in next_token_limit(problem).predict([2, 1, 0]).items()}
        {1: 0.666667, 2: 0.333333}
        """
        last, (tokens, counts) = sequence[-1], np.unique(sequence, return_counts=True)
        known = np.array([self._node(last, token) for token in tokens.tolist()])
        if (known < 0).any():
            word = self.problem.vocabulary[int(tokens[known < 0][0])]
            raise ValueError(
                f"{word} never occurs with the last token {self.problem.vocabulary[last]}: it has no logit"
            )
        hard, soft = self.logits[known], self._finite_logits[known] + np.log(counts)
        # Logits of W_mm are known to its residual; components that are ordered differ by 1.
        kept = hard >= hard.max() - 1e-6
        if not self._settles_shares_of(known[kept]):
            words = " and ".join(self.problem.vocabulary[token] for token in tokens[kept].tolist())
            raise ValueError(
                f"{words} are level in the limit, and no sequence ties them: how they share depends on the course of "
                "training; follow it with limit_of(problem.attention(), loss=LogLoss())"
            )
        weights = np.exp(soft[kept] - soft[kept].max())
        return dict(zip(tokens[kept].tolist(), (weights / weights.sum()).tolist(), strict=True))

    @cached_property
    def _finite_logits(self) -> Float[Array, " nodes"]:
        """The logits of W_fin at every node, of all classes of tied tokens alike."""
        if self.problem.embeddings is None:
            return self.finite.logits
        return np.asarray(node_vectors(self.problem) @ self.finite.point)

    def _settles_shares_of(self, nodes: Int[Array, " k"]) -> bool:
        """Whether the differences of these nodes' logits, level in W_mm, are those of W_fin: they lie in its span."""
        if (self.graph.component[nodes] == self.graph.component[nodes[0]]).all():
            return True
        basis = tied_choice(self.problem, self.graph).basis
        if basis is None:
            return False
        rows = node_vectors(self.problem)[nodes]
        apart = rows - rows[0]
        return bool(np.linalg.norm(apart - apart @ basis.T @ basis) <= RANK * np.linalg.norm(rows))

    def _node(self, last: int, token: int) -> int:
        here = np.flatnonzero((self.graph.last == last) & (self.graph.token == token))
        return int(here[0]) if len(here) else -1

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        solution, soft = self.direction, self.finite
        return {
            "direction": {
                "status": solution.status,
                "margin": solution.margin,
                "norm": 1 / solution.margin if solution.margin > 0 else None,
                "residual": solution.certificate.residual,
            },
            "finite": {
                "norm": float(np.linalg.norm(soft.point)),
                **{name: float(getattr(soft, name)) for name in ("gradient", "balance", "distance", "risk")},
            },
            "certified": self.is_certified,
            "dependent": self.dependent,
        }

    def __repr__(self) -> str:
        tied = int(self.graph.sizes[self.graph.sizes > 1].sum())
        return (
            f"NextTokenLimit(direction: {self.direction.status}, margin={self.direction.margin:.6g}; "
            f"finite part: {tied} tied tokens, |W_fin|={np.linalg.norm(self.finite.point):.6g}, "
            f"gradient={self.finite.gradient:.1e})"
        )


def next_token_limit(problem: NextTokenProblem) -> NextTokenLimit:
    """Both parts of the limit of next-token training, certified; whatever the start of training was.

    >>> limit = next_token_limit(NextTokenProblem.of([[1, 2, 0], [1, 2, 0], [1, 2, 0]], [1, 1, 2]))
    >>> limit.logits.round(6), limit.finite.logits.round(6) + 0.0  # log(2 / 1), shared by the two
    (array([-0.666667,  0.333333,  0.333333]), array([ 0.      ,  0.346574, -0.346574]))
    """
    if not isinstance(problem, NextTokenProblem):
        raise TypeError(
            f"next_token_limit takes a NextTokenProblem.of(sequences, labels); got {kind_in_words(problem)}"
        )
    graph, dependent = problem.graph, False
    direction = graph_margin(problem, graph)
    if problem.embeddings is not None and not direction.is_optimal:
        graph = replace(graph, component=_classes_of_ties(graph, forced_ties(problem)))
        dependent = len(graph.sizes) < len(problem.graph.sizes)
        direction = graph_margin(problem, graph)
    return NextTokenLimit(problem, graph, dependent, direction, tied_choice(problem, graph).minimum())


def _classes_of_ties(graph: PriorityGraph, forced: Array) -> Array:
    """Tokens connected by edges that are forced to tie."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = graph.source[forced], graph.target[forced]
    links = coo_array((np.ones(int(forced.sum())), ends), shape=(graph.nodes, graph.nodes))
    return np.asarray(connected_components(links, directed=False)[1].astype(np.int64))
