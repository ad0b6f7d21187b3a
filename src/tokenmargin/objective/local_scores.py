"""Outputs that are not linear in the attention weights: what a token is worth depends on where attention is.

To first order around a point such an output is linear, with *local scores* of the tokens as its coefficients, and the
stable gradient of a linear head is right for them as well. The curvature of the output enters the derivative of the
field alone. Many classes, real labels and nonlinear heads `f(X_i) = psi(X_i' softmax(K_i p))`, with any differentiable
psi (appendix D of *Max-Margin Token Selection in Attention Mechanism*), are of this kind.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.special import logsumexp, softmax

from tokenmargin._notebook import one_line
from tokenmargin.norms import EPS
from tokenmargin.objective.attention import AbstractObjective, PromptObjective
from tokenmargin.objective.forward import (
    Attention,
    Block,
    Descent,
    Linearisation,
    PivotedAttention,
    attend,
    exp_shifted,
    from_pivot,
    join_blocks,
    prompt_block,
    prompt_descent,
)
from tokenmargin.objective.losses import (
    AbstractLoss,
    LogisticLoss,
    LogSigned,
    SquareLoss,
    check_derivative,
    signed_excess,
)
from tokenmargin.plugins import find, kind_in_words
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates, in_coordinates
from tokenmargin.problem.label_problems import ClassProblem, RegressionProblem
from tokenmargin.problem.token_problem import TokenProblem, checked_problem

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
_TRIED = 16  # inputs in which the gradient of a head is compared with differences


@dataclass(frozen=True)
class AbstractLocalObjective(AbstractObjective):
    """The risk as a function of p, through local scores."""

    @property
    def merged(self) -> AbstractObjective:
        return replace(self, problem=self.problem.merged)

    @abc.abstractmethod
    def forward(self, theta: Float[Array, "... D"]) -> Attention:
        """The forward pass with local scores; its output is what the loss is of."""

    def log_slopes(self, state: Attention) -> Float[Array, "... n"]:
        """`log(-loss')` at the outputs."""
        return self.loss.log_slope(state.output)

    def outputs(self, theta: Float[Array, "... D"]) -> Float[Array, "... n"]:
        return self.forward(theta).output

    def descent(self, theta: Float[Array, "... D"]) -> Descent:
        state = self.forward(theta)
        return prompt_descent(self.problem.keys, state, self.log_slopes(state))


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
            h = np.cbrt(EPS) * np.maximum(1.0, np.abs(x[..., j]))[..., None]
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


def _soft_margin_hessian(rivals: Float[Array, "... r"]) -> Float[Array, "... r r"]:
    shares = softmax(-rivals, axis=-1)
    return np.asarray(shares[..., :, None] * (shares[..., None, :] - np.eye(shares.shape[-1])))


# `soft_margin` as a head; its gradient is the softmax of minus the rivals.
_SOFT_MARGIN = NonlinearHead(lambda x: -logsumexp(-x, axis=-1), lambda x: softmax(-x, axis=-1), _soft_margin_hessian)


@dataclass(frozen=True)
class AbstractSmoothObjective(AbstractLocalObjective):
    """The risk of outputs `Y_i psi(sum_t s_it x_it)` with a smooth head psi."""

    head: NonlinearHead = field(kw_only=True)

    @property
    @abc.abstractmethod
    def vectors(self) -> Float[Array, "n T d"]:
        """The x_it."""

    def forward(self, theta: Float[Array, "... D"]) -> Attention:
        logits, labels = self.problem.keys.logits(theta), self.problem.labels
        attended = np.einsum("...nt,ntd->...nd", softmax(logits, axis=-1), self.vectors)
        gradient = labels[:, None] * self.head.gradient(attended)
        # Summed token by token in one order: tokens of equal vectors have equal scores, to the bit.
        scores = (gradient[..., None, :] * self.vectors).sum(axis=-1)
        return attend(logits, scores)._replace(output=labels * self.head.function(attended))

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        state = self.forward(theta)
        seen = PivotedAttention.of(self.problem.keys, state, self.loss)
        offsets = from_pivot(self.vectors, state.pivot)
        mean = np.einsum("nt,ntd->nd", state.weights, offsets)
        attended, spread = self.vectors[state.pivot] + mean, offsets - mean[:, None]
        moved = np.einsum("nt,ntd,ntr->ndr", state.weights, spread, seen.keys)  # derivative of the attended vector
        bending = moved.swapaxes(1, 2) @ (self.head.second(attended) @ moved)
        block = prompt_block(seen, bending=self.problem.labels[:, None, None] * bending)
        # Where a mixture is best its tokens have one local score, and every term of the gradient vanishes by itself.
        with np.errstate(divide="ignore"):
            apart = np.log(np.einsum("nd,ntd->nt", np.abs(self.head.gradient(attended)), np.abs(spread)))
        return join_blocks((with_balance_against(block, seen, seen.log_slope[:, None] + apart),), self.problem.n)


@dataclass(frozen=True)
class ClassObjective(AbstractSmoothObjective):
    """The risk of a `ClassProblem` as a function of p: with the logistic loss, the mean cross-entropy.

    Other losses are of the margin `F_y - log sum_{c != y} exp(F_c)`; the exponential one is
    `sum_{c != y} exp(F_c - F_y)`.

    >>> from tokenmargin.problem.label_problems import ClassProblem
    >>> problem = ClassProblem.of([[[0.0, 1.0], [1.0, 0.0]]] * 2, [0, 1], head=[[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(ClassObjective(problem).value(np.zeros(2))), 4)
    0.6931
    """

    problem: ClassProblem
    head: NonlinearHead = field(default=_SOFT_MARGIN, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.problem, ClassProblem):
            raise TypeError(
                f"ClassObjective is for a ClassProblem, got a {type(self.problem).__name__}; with labels -1 and +1 use "
                "PromptObjective"
            )

    @property
    def vectors(self) -> Float[Array, "n T r"]:
        """The leads of the right class over its rivals."""
        return self.problem.rivals


@dataclass(frozen=True)
class HeadObjective(AbstractSmoothObjective):
    """The risk as a function of p with a nonlinear head; the values must be coordinates.

    >>> from tokenmargin.problem.instances import figure1a
    >>> bowl = NonlinearHead(lambda x: x[..., 2] ** 3, lambda x: 3 * x**2 * [0.0, 0.0, 1.0])
    >>> direction, _ = HeadObjective(figure1a(), head=bowl).descent(np.array([0.0, 5000.0, 0.0]))
    >>> direction.round(3) + 0.0
    array([-0.514,  0.857,  0.   ])
    """

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

    @property
    def vectors(self) -> Float[Array, "n T d"]:
        return _values(self.problem.values)

    def around(self, weights: Float[Array, "n T"]) -> TokenProblem:
        attended = np.einsum("nt,ntd->nd", weights, self.vectors)
        gradient, output = self.head.gradient(attended), self.head.function(attended)
        scores = output[:, None] + np.einsum("nd,ntd->nt", gradient, self.vectors - attended[:, None])
        return TokenProblem(self.problem.keys, self.problem.labels, scores=self.problem.labels[:, None] * scores)

    def excess(self, theta: Float[Array, "... D"], selected: Int[Array, " n"] | None = None) -> LogSigned:
        problem, values, state = self.problem, self.vectors, self.forward(theta)
        attended = np.einsum("...nt,ntd->...nd", state.weights, values)
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


def _values(geometry: AbstractGeometry) -> Float[Array, "n T d"]:
    if not isinstance(geometry, Coordinates):
        raise TypeError("a nonlinear head needs the values in coordinates; keys may be known by inner products alone")
    return geometry.tokens


@dataclass(frozen=True)
class SquareObjective(AbstractLocalObjective):
    """The mean of `(y_i - f_i)^2` as a function of p, for a `RegressionProblem`; its outputs are `-|y_i - f_i|`.

    A residual is `(y - prediction of the pivot) + its shortfall`, kept as a logarithm: it is right where a token that
    meets its target exactly has all but the last of the weight.

    >>> from tokenmargin.problem.label_problems import RegressionProblem
    >>> problem = RegressionProblem.of([[[0.0], [1.0]]], [0.25], scores=[[0.0, 1.0]])
    >>> float(SquareObjective(problem).value(np.array([-np.log(3)])).round(12))  # weights 3/4 and 1/4 meet the target
    0.0
    """

    problem: RegressionProblem
    loss: AbstractLoss = field(default_factory=SquareLoss)

    def __post_init__(self) -> None:
        if not isinstance(self.problem, RegressionProblem):
            raise TypeError(
                f"SquareObjective is for a RegressionProblem, got a {type(self.problem).__name__}; classes have "
                "PromptObjective and ClassObjective"
            )
        if not isinstance(self.loss, SquareLoss):
            raise TypeError(f"real labels have the square loss, got {type(self.loss).__name__}: a loss of classes")

    def forward(self, theta: Float[Array, "... D"]) -> Attention:
        state, size, sign = self._residuals(theta)
        side = np.where(sign == 0, 1.0, -sign)[..., None]  # where the target lies, seen from the prediction
        return state._replace(output=-np.exp(size), lead=side * state.lead, lead_sign=side * state.lead_sign)

    def log_slopes(self, state: Attention) -> Float[Array, "... n"]:
        return np.log(2.0) + _log_sum(state, self.problem.residuals)[0]

    def _residuals(
        self, theta: Float[Array, "... D"]
    ) -> tuple[Attention, Float[Array, "... n"], Float[Array, "... n"]]:
        """The forward pass of the tokens' residuals, and the logarithm and the sign of that of each output."""
        logits = self.problem.keys.logits(theta)
        state = attend(logits, np.broadcast_to(self.problem.residuals, logits.shape))
        return state, *_log_sum(state, self.problem.residuals)

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        state = self.forward(theta)
        keys = from_pivot(in_coordinates(self.problem.keys), state.pivot)
        seen = PivotedAttention(state, keys, self.log_slopes(state), np.zeros(self.problem.n))
        return join_blocks((self._with_residuals(prompt_block(seen), seen),), self.problem.n)

    def _with_residuals(self, block: Block, seen: PivotedAttention) -> Block:
        """The block with the term `-2 g g'`, the change of a residual, and with another measure of its terms.

        Where the tokens of an input meet its target together, every term of the gradient vanishes with the residual. So
        the terms are measured with `sum_t s_it |prediction_it - y_i|` in place of the residual.
        """
        sizes, tops = exp_shifted(seen.log_pulls, (1,))
        tops = np.maximum(tops, -1e300)  # an input without pull; twice its logarithm must exist
        slopes = np.einsum(
            "nt,ntr->nr", np.copysign(sizes, seen.attention.lead_sign), seen.keys
        )  # g_i, over exp(top_i)
        curved = -2 * np.einsum("n,nr,nq->rq", _exponentials(2 * tops, block), slopes, slopes)
        with np.errstate(divide="ignore"):
            reach, most = exp_shifted(seen.attention.log_weights + np.log(np.abs(self.problem.residuals)), (1,))
            log_reach = np.log(2 * reach.sum(axis=1)) + most
        curvature = curved / (block.length if block.length > 0 else 1.0)
        block = block._replace(rows=(block.rows[0] + curvature,))
        return with_balance_against(block, seen, log_reach[:, None] + seen.attention.log_lead)

    def local_problem(self, theta: Float[Array, " D"]) -> TokenProblem:
        sign = self._residuals(theta)[2]
        return self.problem.with_sides(np.where(sign == 0, np.nan, -sign))


def with_balance_against(block: Block, seen: PivotedAttention, log_pulls: Float[Array, "n T"]) -> Block:
    """The block with its balance taken against terms of size `exp(log_pulls)` per weight.

    The block's own terms may all vanish at a point of rest, where a balance against them says nothing.
    """
    sizes = _exponentials(seen.log_unless_idle(seen.attention.log_weights + log_pulls), block)
    total = float((sizes * np.linalg.norm(seen.keys, axis=-1)).sum())
    return block._replace(balance=block.length / total if total > 0 else 0.0)


def _exponentials(logs: Float[Array, "..."], block: Block) -> Float[Array, "..."]:
    """The exponentials, divided by the scale of a block; bounded, since the scale of a block of zeros is zero."""
    return np.asarray(np.exp(np.minimum(logs - block.log_scale, 300.0)))


def prompt_objective(
    problem: TokenProblem, loss: AbstractLoss | None = None
) -> PromptObjective | AbstractLocalObjective:
    """The risk as a function of p that fits the labels: of two classes, of several, or of real numbers."""
    if isinstance(problem, RegressionProblem):
        return SquareObjective(problem, SquareLoss() if loss is None else loss)
    if isinstance(problem, ClassProblem):
        return ClassObjective(problem, LogisticLoss() if loss is None else loss)
    return PromptObjective(problem, LogisticLoss() if loss is None else loss)


def as_objective(given: AbstractObjective | TokenProblem, asked_by: str) -> AbstractObjective:
    """The objective itself; a problem stands for the risk of p with the loss that fits its labels."""
    if isinstance(given, TokenProblem):
        return prompt_objective(given)
    if isinstance(given, AbstractObjective):
        return given
    wanted = "an objective, such as PromptObjective(problem), or a problem"
    raise TypeError(f"{asked_by} takes {wanted}; got {kind_in_words(given)}")


def _log_sum(state: Attention, off: Float[Array, "n T"]) -> LogSigned:
    """Logarithm and sign of `sum_t s_it off_it`, from the pivot's term; where that is zero, by logarithms."""
    off = np.broadcast_to(off, state.weights.shape)
    best = np.where(state.pivot, off, 0.0).sum(axis=-1)
    with np.errstate(divide="ignore"):
        sizes, top = exp_shifted(state.log_weights + np.log(np.abs(off)), (-1,))
        others = (np.copysign(sizes, off)).sum(axis=-1)
        plain = best + (state.weights * (off - best[..., None])).sum(axis=-1)
        exact = best == 0
        size = np.where(exact, np.log(np.abs(others)) + top, np.log(np.abs(plain)))
    return size, np.where(exact, np.sign(others), np.sign(plain))
