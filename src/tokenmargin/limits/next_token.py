"""Where next-token training ends: `W = R W_mm + W_fin`, both parts solved and certified without training anything.

The risk is convex. Tokens on a cycle of a priority graph tie for ever, and settle at the weights with which they come
next (W_fin, in the span of the ties); between components W grows along the shortest direction that keeps the ties and
separates the order (W_mm, across that span). Embeddings that are linearly dependent may force more ties than the graph.

What is left of the risk when every other token has lost its weight is the loss of choosing among tied tokens,
`-log(m_y exp(a_y) / sum_j m_j exp(a_j))` with counts m, summed over the sequences. It is convex in the logits a, and
strictly so across constants where the ties come from cycles: there is one minimum, Newton's method finds it, and its
gradient proves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.margin import MarginSolution
from tokenmargin.margin.graph_margin import forced_ties, graph_margin, node_vectors
from tokenmargin.norms import EPS
from tokenmargin.plugins import kind_in_words
from tokenmargin.problem.next_token import NextTokenProblem, PriorityGraph

_STEPS = 200
_HALVINGS = 40
_REACH = 3.0
_RIDGE = 1e-13  # of each node's own curvature: what a factorisation needs where a weight is all but lost


class SoftPart(NamedTuple):
    """A minimum of the choice among tied tokens, with the evidence for it.

    - `logits`: of every node; zero on average within each class of tied tokens when these are orthonormal.
    - `point`: the parameter in the tied span; the same as `logits` for orthonormal tokens.
    - `gradient`: length of the gradient there.
    - `balance`: the same over the summed lengths of its terms.
    - `distance`: the minimum is proven to be no farther than this; infinite where that is not proven.
    - `risk`: the infimum of the mean loss, which the choices among tied tokens leave.
    - `unit`: length of a parameter that changes logits by about one: 1, unless embeddings are long or short.
    """

    logits: Float[Array, " nodes"]
    point: Float[Array, " D"]
    gradient: float
    balance: float
    distance: float
    risk: float
    unit: float


@dataclass(frozen=True, eq=False)
class TiedChoice:
    """Choices among tied tokens, one row per sequence whose next token ties with others of it.

    **Attributes**
    - `rows`, `nodes`, `counts`: of every distinct tied token of every such sequence; rows ascend.
    - `labels`: the node that came next, per row.
    - `n`: sequences in all, of which the risk is the mean.
    - `classes`: of every node of the graph; tied nodes share one.
    - `features`: coordinates of every node in an orthonormal basis of the tied span; None for orthonormal tokens.
    - `basis`: that basis, as parameters.
    - `unit`: length of a parameter whose coordinates have length one.
    """

    rows: Int[Array, " entries"]
    nodes: Int[Array, " entries"]
    counts: Int[Array, " entries"]
    labels: Int[Array, " choices"]
    n: int
    classes: Int[Array, " all"]
    features: Float[Array, "all r"] | None = None
    basis: Float[Array, "r D"] | None = None
    unit: float = 1.0

    @cached_property
    def _first_entries(self) -> Int[Array, " choices"]:
        return np.searchsorted(self.rows, np.arange(len(self.labels)))

    @cached_property
    def _label_counts(self) -> Float[Array, " all"]:
        return np.bincount(self.labels, minlength=len(self.classes)).astype(float)

    @cached_property
    def _free_nodes(self) -> Int[Array, " free"]:
        """Nodes that move: of orthonormal ones, all in a class of several but its first, which stays at zero."""
        used = np.unique(self.nodes)
        first = np.unique(self.classes[used], return_index=True)[1]
        return np.delete(used, first)

    def shares(self, logits: Float[Array, " all"]) -> tuple[Float[Array, " entries"], Float[Array, " choices"]]:
        """Softmax weights of the tied tokens of each choice, and the loss of each."""
        if not len(self.labels):
            return np.zeros(0), np.zeros(0)
        sizes = logits[self.nodes] + np.log(self.counts)
        top = np.maximum.reduceat(sizes, self._first_entries)
        weights = np.exp(sizes - top[self.rows])
        totals = np.add.reduceat(weights, self._first_entries)
        chosen = sizes[self.nodes == self.labels[self.rows]]
        return weights / totals[self.rows], np.log(totals) + top - chosen

    def _matrix(self, shares: Float[Array, " entries"]) -> Any:
        from scipy.sparse import csr_array

        shape = (len(self.labels), len(self.classes))
        return csr_array((shares, self.nodes, np.append(self._first_entries, len(self.rows))), shape=shape)

    def hessian(self, shares: Float[Array, " entries"]) -> Any:
        """Second derivative of the summed loss in the logits of all nodes, sparse."""
        from scipy.sparse import diags_array

        matrix = self._matrix(shares)
        return (diags_array(np.asarray(matrix.sum(axis=0)).ravel()) - matrix.T @ matrix).tocsc()

    def minimum(self) -> SoftPart:
        """Newton's method, with steps halved while the loss does not fall."""
        logits = np.zeros(len(self.classes))
        shares, losses = self.shares(logits)
        for _ in range(_STEPS if len(self.labels) else 0):
            pull = self.pull(shares)
            move = self._newton(shares, pull)
            # Pull is minus the gradient. Curvature is known along a step only while logits change by order one.
            fall, length = float(pull @ move), min(1.0, _REACH / max(float(np.abs(move).max()), _REACH))
            # The loss itself is known to rounding; below that the step is taken whole, and the gradient decides.
            known = 16 * EPS * max(float(losses.sum()), 1.0)
            for _ in range(_HALVINGS):
                after = self.shares(logits + length * move)
                if after[1].sum() <= losses.sum() - 0.25 * length * fall + known:
                    break
                length /= 2
            logits = logits + length * move
            shares, losses = after
            if fall <= known and length == 1.0:
                break
        return self._to_soft_part(logits, shares, losses)

    def pull(self, shares: Float[Array, " entries"]) -> Float[Array, " all"]:
        """Minus the gradient in the logits: how often each token came next, less how often it was expected to."""
        return np.asarray(self._label_counts - np.bincount(self.nodes, shares, len(self.classes)))

    def _newton(self, shares: Float[Array, " entries"], pull: Float[Array, " all"]) -> Float[Array, " all"]:
        """The Newton step in the logits: within the tied span, or of the nodes that are free to move."""
        hessian = self.hessian(shares)
        if self.features is not None:
            bend = self.features.T @ (hessian @ self.features)
            return np.asarray(self.features @ np.linalg.lstsq(bend, self.features.T @ pull, rcond=1e-14)[0])
        from scipy.sparse import diags_array
        from scipy.sparse.linalg import splu

        move, free = np.zeros(len(pull)), self._free_nodes
        inner = hessian[free][:, free]
        inner = inner + diags_array(_RIDGE * (inner.diagonal() + inner.diagonal().max()))
        move[free] = splu(inner.tocsc()).solve(pull[free])
        return move

    def _to_soft_part(
        self, logits: Float[Array, " all"], shares: Float[Array, " entries"], losses: Float[Array, " choices"]
    ) -> SoftPart:
        """The result at these logits, in the caller's unit and with its certificate."""
        pull, terms = self.pull(shares), self._summed_lengths(shares)
        if self.features is None:
            members = np.bincount(self.classes)
            logits = logits - (np.bincount(self.classes, logits) / members)[self.classes]
            point, length = logits, float(np.linalg.norm(pull))
        else:
            assert self.basis is not None, "features come with their basis"
            theta = np.linalg.lstsq(self.features, logits, rcond=None)[0]
            point, length = self.unit * (theta @ self.basis), float(np.linalg.norm(self.features.T @ pull))
        return SoftPart(
            logits, point, length / self.unit / self.n, length / terms if terms else 0.0,
            self.unit * self.distance_bound(shares, length), float(losses.sum()) / self.n, self.unit,
        )  # fmt: skip

    def _summed_lengths(self, shares: Float[Array, " entries"]) -> float:
        """Summed lengths of the gradients of the choices."""
        if not len(self.labels):
            return 0.0
        apart = shares - (self.nodes == self.labels[self.rows])
        if self.features is None:
            return float(np.sqrt(np.add.reduceat(apart**2, self._first_entries)).sum())
        return float(np.linalg.norm(self._matrix(apart) @ self.features, axis=1).sum())

    def distance_bound(self, shares: Float[Array, " entries"], length: float) -> float:
        """A bound on the distance to the minimum; infinite where none is proven.

        Along a unit direction the second derivative falls at most like `exp(-M t)`, where M is the largest change of a
        difference of logits. So the minimum is within `2 |gradient| / (least curvature)`, if that is below 1 / M.
        """
        if not len(self.labels) or (self.features is not None and not self.features.size):
            return 0.0  # no choice, or one between tokens of equal embeddings: nothing can move
        hessian = self.hessian(shares)
        if self.features is None:
            least, spread = self._least_curvature(hessian), np.sqrt(2.0)
        else:
            least = float(np.linalg.eigvalsh(self.features.T @ (hessian @ self.features))[0])
            spread = 2 * float(np.linalg.norm(self.features, axis=1).max())
        # Rounding of the sums of n terms is counted with the gradient.
        length += 4 * EPS * len(self.rows)
        reach = 2 * length / least if least > 0 else np.inf
        return reach if reach * spread <= 1 else np.inf

    def _least_curvature(self, hessian: Any) -> float:
        """Over the classes, of the second derivative across constants: its second smallest eigenvalue."""
        used = np.unique(self.nodes)
        order = used[np.argsort(self.classes[used], kind="stable")]
        together = hessian[order][:, order].tocsr()  # classes lie end to end
        cuts = [0, *(np.flatnonzero(np.diff(self.classes[order])) + 1).tolist(), len(order)]
        blocks = (together[begin:end, begin:end].toarray() for begin, end in pairwise(cuts))
        return min(float(np.linalg.eigvalsh(block)[1]) for block in blocks)


_RANK = 1e-10  # singular values of the ties below this share of the largest are rounding


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
        return bool(np.linalg.norm(apart - apart @ basis.T @ basis) <= _RANK * np.linalg.norm(rows))

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


def tied_choice(problem: NextTokenProblem, graph: PriorityGraph) -> TiedChoice:
    """The choices of the sequences whose next token ties with another of their tokens."""
    node, label = problem.node, problem.label_node
    tied = graph.component[node] == graph.component[label][problem.sequence]
    # One entry for each sequence and distinct tied token; sequences with a single one have no choice and are left out.
    entries, counts = np.unique(problem.sequence[tied] * graph.nodes + node[tied], return_counts=True)
    rows, nodes = entries // graph.nodes, entries % graph.nodes
    several = np.bincount(rows, minlength=problem.n) > 1
    kept = several[rows]
    place = np.cumsum(several) - 1
    choice = TiedChoice(place[rows[kept]], nodes[kept], counts[kept], label[several], problem.n, graph.component)
    return choice if problem.embeddings is None else _in_span_of_ties(problem, graph, choice)


def _in_span_of_ties(problem: NextTokenProblem, graph: PriorityGraph, choice: TiedChoice) -> TiedChoice:
    """The same in coordinates of the span of the ties."""
    vectors = node_vectors(problem)
    first = np.unique(graph.component, return_index=True)[1]
    apart = vectors - vectors[first[graph.component]]
    used = apart[np.unique(choice.nodes)] if len(choice.labels) else apart[:0]
    if not len(used):
        return replace(choice, features=np.zeros((graph.nodes, 0)), basis=np.zeros((0, vectors.shape[1])))
    _, sizes, rows = np.linalg.svd(used, full_matrices=False)
    basis, longest = rows[sizes > _RANK * sizes[0]], float(sizes[0]) or 1.0
    # In a unit in which logits of order one need coordinates of order one, whatever the length of the embeddings.
    return replace(choice, features=(apart / longest) @ basis.T, basis=basis, unit=1 / longest)
