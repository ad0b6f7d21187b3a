"""What the claims on next tokens are checked on, and the hypotheses they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.limits import Limit, NextTokenLimit, limit_of, next_token_limit
from tokenmargin.margin import MarginSolution
from tokenmargin.margin.graph_margin import graph_margin, node_vectors
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import AbstractLoss, LogLoss
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.theory.claim import Slack, above, true


@dataclass(frozen=True, eq=False)
class NextTokenInstance:
    """Sequences with their next tokens, embeddings, a loss and a start.

    **Arguments**
    - `problem`: with embeddings.
    - `name`: how to call it in a report.
    - `loss`: of the weight of the next token; `-log` by default.
    - `start`: where training begins; zero by default.
    - `norm`: how far gradient flow is followed.
    - `seed`: of what a check draws.
    """

    problem: NextTokenProblem
    name: str = "sequences"
    loss: AbstractLoss = LogLoss()  # noqa: RUF009  # frozen and without state
    start: Float[Array, " D"] | None = None
    norm: float = 1e5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.problem.embeddings is None:
            raise ValueError("claims on next tokens are about embeddings; give some, such as np.eye(vocabulary)")

    @cached_property
    def objective(self) -> PromptObjective:
        """The risk as a function of W."""
        return PromptObjective(self.problem.attention(), self.loss)

    @cached_property
    def graph_solution(self) -> MarginSolution:
        """The graph max-margin problem of the components, which may be infeasible."""
        return graph_margin(self.problem)

    @cached_property
    def limit(self) -> NextTokenLimit:
        """Both parts of the limit with log loss, certified."""
        return next_token_limit(self.problem)

    @cached_property
    def trained(self) -> Limit:
        """Gradient flow of W from the start."""
        return limit_of(self.objective.problem, self.start, loss=self.loss, until_norm=self.norm)

    @cached_property
    def ties(self) -> Float[Array, "s D"]:
        """An orthonormal basis of the span of the ties: of `z (x_i - x_j)'` for i and j of one component."""
        graph, vectors = self.problem.graph, node_vectors(self.problem)
        first = np.unique(graph.component, return_index=True)[1]
        apart = (vectors - vectors[first[graph.component]])[first[graph.component] != np.arange(graph.nodes)]
        if not len(apart):
            return np.zeros((0, vectors.shape[1]))
        _, sizes, rows = np.linalg.svd(apart, full_matrices=False)
        return rows[sizes > 1e-10 * sizes[0]]

    def __str__(self) -> str:
        assert self.problem.embeddings is not None
        size, d = self.problem.embeddings.shape
        return f"{self.name} (n={self.problem.n} K={size} d={d})"


def independent(x: NextTokenInstance) -> Slack:
    """The embeddings are linearly independent, to ten digits."""
    assert x.problem.embeddings is not None
    sizes = np.linalg.svd(x.problem.embeddings, compute_uv=False)
    return above("rank of the embeddings", int((sizes > 1e-10 * sizes[0]).sum()), x.problem.size)


def log_loss(x: NextTokenInstance) -> Slack:
    return true("the loss is -log", isinstance(x.loss, LogLoss))


def ordered(x: NextTokenInstance) -> Slack:
    """Some component is ahead of another, so that W_mm is not zero."""
    return above("pairs of components in order", len(x.problem.graph.order), 1)


def _embedded(sequences: list[list[int]], labels: list[int], rows: Array) -> NextTokenProblem:
    return NextTokenProblem.of(sequences, labels, embeddings=rows)


def tied_pair(loss: AbstractLoss | None = None) -> NextTokenInstance:
    """After a 0 the tokens 1 and 2 come next, two times in three and one in three, ahead of 3 and 0."""
    rows = np.random.default_rng(0).standard_normal((4, 4))
    problem = _embedded([[1, 2, 3, 0], [2, 1, 3, 0], [1, 2, 0]], [1, 2, 1], rows)
    named = "1 and 2 tie" if loss is None else f"1 and 2 tie, {type(loss).__name__}"
    return NextTokenInstance(problem, named, loss=LogLoss() if loss is None else loss)


def two_chains() -> NextTokenInstance:
    """No cycle: 2 ahead of 1 ahead of 0 after a 0, and 0 ahead of 2 after a 1."""
    rows = np.random.default_rng(1).standard_normal((3, 3))
    return NextTokenInstance(_embedded([[1, 0], [2, 1, 0], [0, 2, 1]], [1, 2, 0], rows), "two chains")


def twice_forced() -> NextTokenInstance:
    """1 ahead of 2 and 4 ahead of 3 where x_1 - x_2 = x_3 - x_4: no W satisfies both orders."""
    rows = np.array([[0.0, 0, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 1, 0]])
    return NextTokenInstance(_embedded([[1, 2, 0], [3, 4, 0], [1, 2, 0]], [1, 4, 1], rows), "x1 - x2 = x3 - x4")
