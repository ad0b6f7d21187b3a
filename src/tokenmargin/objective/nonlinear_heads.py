"""Nonlinear prediction heads: `f(X_i) = psi(X_i' softmax(K_i p))`, with any differentiable psi (appendix D).

To first order around the attended vector `x_i = X_i' s_i` a head is linear: the tokens have the local scores
`gamma_it = Y_i <grad psi(x_i), x_it>`, and the stable gradient of a linear head is right for these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.special import softmax

from tokenmargin._notebook import one_line
from tokenmargin.objective.forward import (
    Attention,
    Linearisation,
    PivotedAttention,
    attend,
    from_pivot,
    join_blocks,
    prompt_block,
)
from tokenmargin.objective.local_scores import AbstractLocalObjective, with_balance_against
from tokenmargin.objective.losses import LogSigned, check_derivative, signed_excess
from tokenmargin.plugins import find
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem, checked_problem

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
_TRIED = 16  # inputs in which the gradient of a head is compared with differences


@dataclass(frozen=True)
class NonlinearHead:
    """A head psi, its gradient, and its Hessian, each applied to the last axis of an array of vectors.

    **Arguments**
    - `function`: `psi(x)`, from shape (..., d) to (...).
    - `gradient`: from (..., d) to (..., d). An objective compares it with differences of the function.
    - `hessian`: from (..., d) to (..., d, d), used by the flow and the regularisation path; by default central
      differences of the gradient over `eps^(1/3) max(1, |x_j|)`, right to about ten digits.

    >>> bowl = NonlinearHead(lambda x: (x**2).sum(-1), lambda x: 2 * x)
    >>> bowl.second(np.array([1.0, 2.0])).round(6) + 0.0
    array([[2., 0.],
           [0., 2.]])
    """

    function: Callable[[Array], Array]
    gradient: Callable[[Array], Array]
    hessian: Callable[[Array], Array] | None = None

    __repr__ = one_line

    def second(self, x: Float[Array, "... d"]) -> Float[Array, "... d d"]:
        """The Hessian, given or by differences."""
        if self.hessian is not None:
            return np.asarray(self.hessian(x))
        columns = []
        for j in range(x.shape[-1]):
            h = np.cbrt(np.finfo(float).eps) * np.maximum(1.0, np.abs(x[..., j]))[..., None]
            shift = h * np.eye(1, x.shape[-1], j)[0]
            columns.append((self.gradient(x + shift) - self.gradient(x - shift)) / (2 * h))
        return np.stack(columns, axis=-1)


def head_named(name: str) -> NonlinearHead:
    """The head that another package adds under this name, or the one at `MODULE:OBJECT`."""
    head: NonlinearHead = find("heads", name)
    return head


def optimal_sets(problem: TokenProblem, head: NonlinearHead, *, tolerance: float = 1e-12) -> Bool[Array, "n T"]:
    """The optimal sets `O_i` found by evaluation: the tokens of lowest loss when attended to alone.

    Tokens whose `Y_i psi(x_it)` is within `tolerance` of the input's largest count as optimal together.
    """
    outputs = problem.labels[:, None] * head.function(_values(problem.values))
    outputs = np.where(problem.mask, outputs, -np.inf)
    return np.asarray(outputs >= outputs.max(axis=1, keepdims=True) - tolerance)


@dataclass(frozen=True)
class HeadObjective(AbstractLocalObjective):
    """The risk as a function of p with a nonlinear head; the values must be coordinates.

    >>> from tokenmargin.problem.instances import figure1a
    >>> bowl = NonlinearHead(lambda x: x[..., 2] ** 3, lambda x: 3 * x**2 * [0.0, 0.0, 1.0])
    >>> direction, _ = HeadObjective(figure1a(), head=bowl).descent(np.array([0.0, 5000.0, 0.0]))
    >>> direction.round(3) + 0.0
    array([-0.514,  0.857,  0.   ])
    """

    head: NonlinearHead = field(kw_only=True)

    def __post_init__(self) -> None:
        checked_problem(self.problem, type(self).__name__)
        values, mask = _values(self.problem.values)[:_TRIED], self.problem.mask[:_TRIED]
        weights = np.sqrt(2.0 + np.arange(self.problem.T)) * mask  # roots, to meet no kink
        middle = np.einsum("nt,ntd->nd", weights / weights.sum(axis=1, keepdims=True), values)
        ways = np.where(mask[..., None], values - middle[:, None], 0.0)
        number, gradient = (np.asarray(part(middle)) for part in (self.head.function, self.head.gradient))
        if number.shape != middle.shape[:-1] or gradient.shape != middle.shape:
            raise ValueError(
                f"the head and its gradient must give shapes {middle.shape[:-1]} and {middle.shape} for vectors of "
                f"shape {middle.shape}, got {number.shape} and {gradient.shape}"
            )
        check_derivative(
            "the gradient of the head, along the way to a token,",
            lambda h: self.head.function(middle[:, None] + h * ways),
            lambda: np.einsum("nd,ntd->nt", gradient, ways),
        )

    def forward(self, theta: Float[Array, "... D"]) -> Attention:
        return self._state(theta)[0]

    def around(self, weights: Float[Array, "n T"]) -> TokenProblem:
        problem, values = self.problem, _values(self.problem.values)
        attended = np.einsum("nt,ntd->nd", weights, values)
        gradient, output = self.head.gradient(attended), self.head.function(attended)
        scores = output[:, None] + np.einsum("nd,ntd->nt", gradient, values - attended[:, None])
        return TokenProblem(problem.keys, problem.labels, scores=problem.labels[:, None] * scores)

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        state, attended = self._state(theta)
        seen = PivotedAttention.of(self.problem.keys, state, self.loss)
        offsets = from_pivot(_values(self.problem.values), state.pivot)
        spread = offsets - np.einsum("nt,ntd->nd", state.weights, offsets)[:, None]
        moved = np.einsum("nt,ntd,ntr->ndr", state.weights, spread, seen.keys)  # derivative of the attended vector
        bending = np.einsum("ndr,nde,neq->nrq", moved, self.head.second(attended), moved)
        block = prompt_block(seen, bending=self.problem.labels[:, None, None] * bending)
        # Where a mixture is best its tokens have one local score, and every term of the gradient vanishes by itself.
        with np.errstate(divide="ignore"):
            apart = np.log(np.einsum("nd,ntd->nt", np.abs(self.head.gradient(attended)), np.abs(spread)))
        return join_blocks((with_balance_against(block, seen, seen.log_slope[:, None] + apart),), self.problem.n)

    def excess(self, theta: Float[Array, "... D"], selected: Int[Array, " n"] | None = None) -> LogSigned:
        problem, values = self.problem, _values(self.problem.values)
        state, attended = self._state(theta)
        alone = np.where(problem.mask, problem.labels[:, None] * self.head.function(values), -np.inf)
        chosen = alone.argmax(axis=1) if selected is None else selected
        inputs = np.arange(problem.n)
        start = values[inputs, chosen]
        # psi(start) - psi(attended) as an integral along the segment: linear in the weights, so nothing cancels.
        on_way = start + _NODES[:, None, None] * (attended - start)[..., None, :, :]
        gradient = np.einsum("k,...knd->...nd", _WEIGHTS, self.head.gradient(on_way))
        gaps = problem.labels[:, None] * np.einsum("...nd,ntd->...nt", gradient, start[:, None] - values)
        reference = alone[inputs, chosen]
        return signed_excess(self.loss, reference, state.log_weights, reference[:, None] - gaps)

    def _state(self, theta: Float[Array, "... D"]) -> tuple[Attention, Float[Array, "... n d"]]:
        """The forward pass with local scores, and the attended vectors."""
        problem, values = self.problem, _values(self.problem.values)
        logits = problem.keys.logits(theta)
        attended = np.einsum("...nt,ntd->...nd", softmax(logits, axis=-1), values)
        gradient = problem.labels[:, None] * self.head.gradient(attended)
        scores = np.einsum("...nd,ntd->...nt", gradient, values)
        return attend(logits, scores)._replace(output=problem.labels * self.head.function(attended)), attended


def _values(geometry: AbstractGeometry) -> Float[Array, "n T d"]:
    if not isinstance(geometry, Coordinates):
        raise TypeError("a nonlinear head needs the values in coordinates; keys may be known by inner products alone")
    return geometry.tokens
