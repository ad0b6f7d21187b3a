"""What the claims on next tokens are checked on, Assumptions 1 to 3, and the hypotheses that claims share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import mul
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin.limits import Limit, NextTokenLimit, limit_of, next_token_limit
from tokenmargin.margin import MarginSolution
from tokenmargin.margin.graph_margin import active_subspace, cyclic_subspace, graph_margin, node_vectors, unit_rows
from tokenmargin.norms import EPS
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import (
    AbstractLoss,
    CorrelationLoss,
    CustomLoss,
    ExponentialLoss,
    LogisticLoss,
    LogLoss,
)
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.theory.claim import Slack, above, below, sampled, true
from tokenmargin.theory.evidence import has_solution

FLAT = 1e-12
"""A slope below this is zero, or nearer to it than rounding of scores can tell; those of the losses are one or so."""
POINTS = 20
"""Points at which a statement about all W is tried."""


@dataclass(frozen=True, eq=False)
class NextTokenInstance:
    """Sequences with their next tokens, embeddings, a head, a loss and a start.

    **Arguments**
    - `problem`: with embeddings.
    - `name`: how to call it in a report.
    - `loss`: of the score that attention puts out; `-log` by default.
    - `head`: a row c_y for each token; by default the weight of the next token is read off, as the head of Assumption 1
      does where there is one.
    - `start`: where training begins; zero by default.
    - `factor`: the step of gradient descent, in units of 1/L with the L of (22).
    - `norm`: how far gradient flow is followed.
    - `seed`: of what a check draws.
    """

    problem: NextTokenProblem
    name: str = "sequences"
    loss: AbstractLoss = LogLoss()  # noqa: RUF009  # frozen and without state
    head: Float[Array, "K d"] | None = None
    start: Float[Array, " D"] | None = None
    factor: float = 1.0
    norm: float = 1e5
    seed: int = 0

    @classmethod
    def of(
        cls, sequences: list[list[int]], labels: list[int], rows: Array, name: str, loss: AbstractLoss | None = None,
        **options: Any,
    ) -> NextTokenInstance:  # fmt: skip
        """Sequences and their next tokens, with the `rows` for embeddings; the loss is `-log` by default."""
        return cls(NextTokenProblem.of(sequences, labels, embeddings=rows), name, loss or LogLoss(), **options)

    def __post_init__(self) -> None:
        if self.problem.embeddings is None:
            raise ValueError("claims on next tokens are about embeddings; give some, such as np.eye(vocabulary)")

    @property
    def embeddings(self) -> Float[Array, "K d"]:
        assert self.problem.embeddings is not None
        return self.problem.embeddings

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    @cached_property
    def objective(self) -> PromptObjective:
        """The risk as a function of W."""
        return PromptObjective(self.problem.attention(self.head), self.loss)

    @cached_property
    def graph_solution(self) -> MarginSolution:
        """(Graph-SVM), and (Acyc-SVM) where there is no cycle; it may be infeasible."""
        return graph_margin(self.problem)

    @property
    def has_risk(self) -> bool:
        """Whether the risk is finite everywhere: -log needs scores that are not negative, the next token's positive."""
        scores = self.objective.problem.scores[self.objective.problem.mask]
        return not isinstance(self.loss, LogLoss) or bool(scores.min() >= 0)

    @property
    def has_direction(self) -> bool:
        """Whether there is a risk, and a W_svm that is not zero, for a statement to speak of."""
        return self.has_risk and self.graph_solution.is_optimal and len(self.rows_behind) > 0

    @property
    def svm(self) -> Float[Array, " D"]:
        """W_svm, where the problem is feasible."""
        return self.graph_solution.vector

    @cached_property
    def limit(self) -> NextTokenLimit:
        """Both parts of the limit with log loss, certified."""
        return next_token_limit(self.problem)

    @cached_property
    def flow_limit(self) -> Limit:
        """Gradient flow of W from the start."""
        return limit_of(self.objective.problem, self.start, loss=self.loss, until_norm=self.norm)

    @cached_property
    def cyclic_basis(self) -> Float[Array, "s D"]:
        """An orthonormal basis of the cyclic subspace."""
        return cyclic_subspace(self.problem)

    @cached_property
    def active(self) -> Float[Array, "s D"]:
        """An orthonormal basis of the active subspace."""
        return active_subspace(self.problem)

    def across_cyclic(self, W: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The part of W orthogonal to the cyclic subspace."""
        return np.asarray(W - (W @ self.cyclic_basis.T) @ self.cyclic_basis)

    @cached_property
    def longest(self) -> float:
        """Length of the longest `z x'`: logits change by no more than this per unit of W."""
        return float(np.linalg.norm(node_vectors(self.problem), axis=1).max())

    @cached_property
    def tied(self) -> Bool[Array, "n T"]:
        """R_i of (3b): the tokens on a cycle with the next token, and that token itself."""
        laid_out = np.zeros(self.problem.mask.shape, dtype=bool)
        laid_out[self.problem.mask] = self.problem.with_label
        return laid_out

    @cached_property
    def rows_behind(self) -> Float[Array, "k D"]:
        """Rows `z (e_y - x)'` of the tokens strictly behind their next token, whose logits tell how far."""
        away = ~self.problem.with_label
        vectors, label = node_vectors(self.problem), self.problem.label_node[self.problem.sequence[away]]
        return np.asarray(vectors[label] - vectors[self.problem.node[away]])

    def points(self, count: int = POINTS, lowest: float = 0.1, highest: float = 10.0) -> Float[Array, "count D"]:
        """Random W whose logits are of the sizes from `lowest` to `highest`."""
        sizes = np.geomspace(lowest, highest, count) / (self.longest or 1.0)
        return np.asarray(sizes[:, None] * self.rng.standard_normal((count, self.objective.dimension)))

    @cached_property
    def cyclic_objective(self) -> PromptObjective | None:
        """The risk of the cyclic subdataset, as a mean over its own sequences; None where there is none."""
        kept, posed = self.problem.cyclic, self.objective.problem
        if not kept.any():
            return None
        keys = Coordinates(self.embeddings, self.problem.index[kept], self.tied[kept])
        scores = np.where(self.tied, posed.scores, 0.0)[kept]
        plain = TokenProblem(keys, np.ones(int(kept.sum())), scores=scores)
        return PromptObjective(plain.with_matrix(self.embeddings[self.problem.last[kept]]), self.loss)

    def cyclic_outputs(self, W: Float[Array, " D"]) -> Float[Array, " n"]:
        """`<c_y, X' softmax(X W z)>` of the sequences without the tokens behind their next token."""
        posed = self.objective.problem
        logits = np.where(self.tied, posed.keys.logits(W), -np.inf)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray((weights * posed.scores).sum(axis=1) / weights.sum(axis=1))

    @cached_property
    def has_fixed_output(self) -> Bool[Array, " n"]:
        """Of which sequences `cyclic_outputs` is the score of its tied tokens, whatever W, and free of rounding."""
        scores = np.where(self.tied, self.objective.problem.scores, np.nan)
        fixed = np.asarray(np.nanmax(scores, axis=1) == np.nanmin(scores, axis=1))
        if self.head is None:
            return fixed
        head, rows = ([[Fraction(x) for x in row] for row in part.tolist()] for part in (self.head, self.embeddings))
        for i, t in zip(*np.nonzero(self.tied & fixed[:, None]), strict=True):
            token, label = rows[self.problem.index[i, t]], head[self.problem.labels[i]]
            fixed[i] &= sum(map(mul, label, token), start=Fraction(0)) == Fraction(float(scores[i, t]))
        return fixed

    def cyclic_risk(self, W: Float[Array, " D"]) -> float:
        """The risk of the cyclic subdataset, over all n: Definition 4."""
        return (
            0.0 if self.cyclic_objective is None else float(self.problem.cyclic.mean() * self.cyclic_objective.value(W))
        )

    def settled_risk(self) -> float:
        """`|I^c| loss(1) / n`: what the other sequences leave in the limit."""
        return float((~self.problem.cyclic).mean() * self.loss.value(np.ones(1))[0])

    def smoothness(self) -> float:
        """The L of (22): `2 M^4 sqrt(T_max)`, M being the longest embedding."""
        return float(2 * np.linalg.norm(self.embeddings, axis=1).max() ** 4 * np.sqrt(self.problem.T))

    def __str__(self) -> str:
        size, d = self.embeddings.shape
        step = "" if self.factor == 1 else f" step={self.factor:g}/L"
        return f"{self.name} (n={self.problem.n} K={size} d={d}{step})"


def assumption1(embeddings: Float[Array, "K d"], head: Float[Array, "K d"] | None = None) -> Slack:
    """Assumption 1: `<c_y, e_y> = 1` and `<c_y, e_k> = 0` for other k. Without a head, that there is one: the
    embeddings are linearly independent, so K <= d.

    >>> assumption1(np.eye(3)).holds, assumption1(np.ones((3, 2))).holds
    (True, False)
    """
    if head is None:  # of the directions: how long a vector is does not make it dependent
        embeddings = unit_rows(embeddings)
        head = np.linalg.pinv(embeddings, rcond=1e-10).T
    off = np.abs(np.asarray(head) @ embeddings.T - np.eye(len(embeddings))).max()
    return below("Assumption 1: largest |<c_y, e_k> - [k = y]|", off, 1e-9)  # a head is known to rounding


def assumption2(sequences: Iterable[ArrayLike], labels: ArrayLike) -> Slack:
    """Assumption 2: every next token is one of its sequence.

    >>> assumption2([[1, 2], [0, 2]], [2, 1]).measured  # sequences that it is not in
    1.0
    """
    rows = zip(sequences, np.asarray(labels).tolist(), strict=True)
    return below(
        "Assumption 2: sequences without their next token", sum(y not in np.asarray(row) for row, y in rows), 0
    )


def assumption3(embeddings: Float[Array, "K d"], head: Float[Array, "K d"] | None = None) -> Slack:
    """Assumption 3: of all tokens, `<c_y, e_k>` is largest at k = y alone. Assumption 1 is a special case.

    >>> assumption3(np.eye(2), np.array([[2.0, 1], [0, 3]])).measured  # the smallest lead
    1.0
    """
    scores = np.eye(len(embeddings)) if head is None else np.asarray(head) @ embeddings.T
    if head is None and not assumption1(embeddings).holds:
        scores = np.zeros_like(scores)
    others = np.where(np.eye(len(scores), dtype=bool), -np.inf, scores).max(axis=1)
    return above("Assumption 3: smallest lead of <c_y, e_y>", float((scores.diagonal() - others).min()), 0, strict=True)


def rank_of(rows: Float[Array, "k d"]) -> int:
    """How many singular values of rows of length 1 or 0 are more than rounding."""
    return int((np.linalg.svd(rows, compute_uv=False) > 1e-10).sum())


def head_of_1(x: NextTokenInstance) -> Slack:
    """Assumption 1 of an instance; Assumption 2 is true of every one."""
    return assumption1(x.embeddings, x.head)


def log_loss(x: NextTokenInstance) -> Slack:
    """That the loss is -log."""
    return true("the loss is -log", isinstance(x.loss, LogLoss))


def feasible(x: NextTokenInstance) -> Slack:
    """That (Graph-SVM) has a solution."""
    return has_solution("(Graph-SVM) is feasible", x.graph_solution)


def some_order(x: NextTokenInstance) -> Slack:
    """Some component is ahead of another, so that W_svm is not zero."""
    return above("pairs of components in order", len(x.problem.graph.order), 1)


def decreasing_loss(x: NextTokenInstance) -> tuple[Slack, Slack]:
    """The loss is strictly decreasing with a bounded slope, on the outputs that can be reached: averages of scores."""
    outputs = _outputs(x)
    if isinstance(x.loss, LogLoss) and outputs[0] <= 0:
        return true("the loss falls strictly", True), below("largest |slope| of the loss", np.inf, 1e100)
    falls = true("the loss falls strictly", bool((np.diff(x.loss.value(outputs)) < 0).all()))
    with np.errstate(divide="ignore"):
        largest = float(np.exp(x.loss.log_slope(outputs)).max())
    bounded = below("largest |slope| of the loss", largest, 1e100)
    return (sampled(falls), sampled(bounded)) if isinstance(x.loss, CustomLoss) else (falls, bounded)


def nonzero_slope(x: NextTokenInstance) -> Slack:
    """The slope of the loss is nowhere zero on the outputs that can be reached: the proofs' c_dn. (Of losses other than
    those of the package at 200 points, and at the scores of all tokens.)"""
    outputs = _outputs(x)
    if isinstance(x.loss, LogLoss):
        least = 1 / max(float(outputs[-1]), 1e-300)
    else:
        visible = x.objective.problem.scores[x.objective.problem.mask]
        with np.errstate(divide="ignore"):
            least = float(np.exp(x.loss.log_slope(np.concatenate([outputs, visible]))).min())
    slack = above("least |slope| of the loss", least, FLAT)
    known = isinstance(x.loss, (LogLoss, LogisticLoss, ExponentialLoss, CorrelationLoss))
    return slack if known else sampled(slack)


def _outputs(x: NextTokenInstance) -> Float[Array, " 200"]:
    visible = x.objective.problem.scores[x.objective.problem.mask]
    low, high = float(visible.min()), float(visible.max())
    return np.linspace(low, high if high > low else low + 1, 200)


@dataclass(frozen=True)
class FlatLoss(AbstractLoss):
    """`v^2 / (1 + v)` of `v = 1 - u`, with the sign of v: strictly decreasing, slopes below 1, and flat at u = 1."""

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        v = 1 - np.asarray(u)
        return np.asarray(np.sign(v) * v**2 / (1 + np.abs(v)))

    def log_slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        v = np.abs(1 - np.asarray(u))
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(v) + np.log(2 + v) - 2 * np.log1p(v))

    def log_slope_derivative(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        v = 1 - np.asarray(u)
        size = np.maximum(np.abs(v), EPS)  # as u = 1 is known
        return np.asarray(-np.where(v < 0, -1.0, 1.0) * (1 / size + 1 / (2 + size) - 2 / (1 + size)))

    def constants(self, low: float, high: float) -> tuple[float, float]:
        return 2.0, 1.0


def tied_pair(loss: AbstractLoss | None = None) -> NextTokenInstance:
    """After a 0 the tokens 1 and 2 come next, two times in three and one in three, ahead of 3 and 0."""
    rows = np.random.default_rng(0).standard_normal((4, 4))
    named = "1 and 2 tie" if loss is None else f"1 and 2 tie, {type(loss).__name__}"
    return NextTokenInstance.of([[1, 2, 3, 0], [2, 1, 3, 0], [1, 2, 0]], [1, 2, 1], rows, named, loss)


def tied_pair_with_head(loss: AbstractLoss | None = None) -> NextTokenInstance:
    """The same, orthonormal, with a head that gives tokens of the sequence between 0.1 and 2: Assumption 3 holds."""
    head = np.array([[2.0, 0.5, 0.1, 0.3], [0.2, 2.0, 0.4, 1.8], [1.5, 0.1, 2.0, 0.1], [0.1, 0.1, 0.1, 2.0]])
    sequences, labels = [[1, 2, 3, 0], [2, 1, 3, 0], [1, 2, 0]], [1, 2, 1]
    return NextTokenInstance.of(sequences, labels, np.eye(4), "1 and 2 tie, another head", loss, head=head)


def two_chains(loss: AbstractLoss | None = None) -> NextTokenInstance:
    """No cycle: 2 ahead of 1 ahead of 0 after a 0, and 0 ahead of 2 after a 1."""
    rows = np.random.default_rng(1).standard_normal((3, 3))
    return NextTokenInstance.of([[1, 0], [2, 1, 0], [0, 2, 1]], [1, 2, 0], rows, "two chains", loss)


def twice_forced(loss: AbstractLoss | None = None) -> NextTokenInstance:
    """1 ahead of 2 and 4 ahead of 3 where x_1 - x_2 = x_3 - x_4: no W satisfies both orders."""
    rows = np.array([[0.0, 0, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 1, 0]])
    return NextTokenInstance.of([[1, 2, 0], [3, 4, 0], [1, 2, 0]], [1, 4, 1], rows, "x1 - x2 = x3 - x4", loss)


def one_ring(factor: float = 1.0) -> NextTokenInstance:
    """Every token is on one cycle: nothing is ahead of anything, and W_svm = 0."""
    rows, start = np.array([[1.0, 0.0], [0.5, 1.0]]), np.array([1.0, 0, 0, 1])
    return NextTokenInstance.of(
        [[1, 0], [1, 0], [0, 1, 0]], [1, 0, 1], rows, "0 and 1 tie, nothing else", start=start, factor=factor
    )


def beside_a_tie(loss: AbstractLoss | None = None, *, head: Float[Array, "K d"] | None = None) -> NextTokenInstance:
    """After a 0, the tokens 1 and 2 tie ahead of 0, and 3 is ahead of 4 and 0: unit vectors."""
    named = f"a tie beside an order{'' if loss is None else f', {type(loss).__name__}'}"
    sequences = [[1, 2, 0], [1, 2, 0], [1, 0], [3, 4, 0]]
    return NextTokenInstance.of(sequences, [1, 2, 1, 3], np.eye(5), named, loss, head=head)


def labels_alone(loss: AbstractLoss | None = None) -> NextTokenInstance:
    """Sequences that hold nothing but their next token."""
    return NextTokenInstance.of([[0], [1, 1]], [0, 1], np.eye(2), "nothing but next tokens", loss)
