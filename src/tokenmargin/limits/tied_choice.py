"""The choice among tied next tokens, whose minimum W_fin is the finite part of the limit of next-token training.

What is left of the risk when every other token has lost its weight is the loss of choosing among tied tokens,
`-log(m_y exp(a_y) / sum_j m_j exp(a_j))` with counts m, summed over the sequences. It is convex in the logits a, and
strictly so across constants where the ties come from cycles: there is one minimum, Newton's method finds it, and its
gradient proves it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import normalised_systems
from tokenmargin.margin.graph_margin import node_vectors
from tokenmargin.margin.single.exact import exact_rank
from tokenmargin.norms import EPS
from tokenmargin.problem.next_token import NextTokenProblem, PriorityGraph

_STEPS = 200
_HALVINGS = 40
_REACH = 3.0
_RIDGE = 1e-13  # of each node's own curvature: what a factorisation needs where a weight is all but lost


RANK = 1e-10
"""Singular values of the ties below this share of the largest are taken for rounding."""


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
    - `hides`: whether rounding may hide dimensions of the span: then nothing is proven of the minimum.
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
    hides: bool = False

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
        if self.hides:
            return np.inf
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
    basis, longest = rows[sizes > RANK * sizes[0]], float(sizes[0]) or 1.0
    # In a unit in which logits of order one need coordinates of order one, whatever the length of the embeddings.
    return replace(
        choice, features=(apart / longest) @ basis.T, basis=basis, unit=1 / longest,
        hides=_may_hide_dimensions(problem, graph, np.unique(choice.nodes), told=len(basis)),
    )  # fmt: skip


def _may_hide_dimensions(
    problem: NextTokenProblem, graph: PriorityGraph, nodes: Int[Array, " used"], *, told: int
) -> bool:
    """Whether the ties of these nodes, `z (x_i - x_j)'` with the first of their class for j, may span more dimensions
    than rounding shows, the embeddings being taken for exact."""
    assert problem.embeddings is not None, "orthonormal tokens have no coordinates"
    rows, same = problem.embeddings, np.unique(problem.embeddings, axis=0, return_inverse=True)[1].ravel()
    first = np.unique(graph.component, return_index=True)[1][graph.component[nodes]]
    ties = np.unique(same[np.stack([graph.last[nodes], graph.token[nodes], graph.token[first]])], axis=1)
    query, own, other = np.unique(rows, axis=0)[ties[:, ties[1] != ties[2]]]
    if told >= min(len(query), rows.shape[1] ** 2):
        return False
    systems = normalised_systems(own[None], np.zeros((1, len(own))), minus=other[None])
    rank = exact_rank(systems.rows[0], None if systems.lost is None else systems.lost[0], times=query)
    return rank is None or rank > told
