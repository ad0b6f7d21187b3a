"""Outputs that are not linear in the attention weights: what a token is worth depends on where attention is.

To first order around a point such an output is linear, with *local scores* of the tokens as its coefficients, and the
stable gradient of a linear head is right for them as well. The curvature of the output enters the derivative of the
field alone. Many classes, real labels and nonlinear heads are of this kind.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import softmax

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
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss, LogSigned, SquareLoss
from tokenmargin.plugins import kind_in_words
from tokenmargin.problem.geometry import in_coordinates
from tokenmargin.problem.label_problems import ClassProblem, RegressionProblem, soft_margin
from tokenmargin.problem.token_problem import TokenProblem


@dataclass(frozen=True)
class AbstractLocalObjective(AbstractObjective):
    """The risk as a function of p, through local scores."""

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
class ClassObjective(AbstractLocalObjective):
    """The risk of a `ClassProblem` as a function of p: with the logistic loss, the mean cross-entropy.

    Other losses are of the margin `F_y - log sum_{c != y} exp(F_c)`; the exponential one is
    `sum_{c != y} exp(F_c - F_y)`.

    >>> from tokenmargin.problem.label_problems import ClassProblem
    >>> problem = ClassProblem.of([[[0.0, 1.0], [1.0, 0.0]]] * 2, [0, 1], head=[[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(ClassObjective(problem).value(np.zeros(2))), 4)
    0.6931
    """

    problem: ClassProblem

    def __post_init__(self) -> None:
        if not isinstance(self.problem, ClassProblem):
            raise TypeError(
                f"ClassObjective is for a ClassProblem, got a {type(self.problem).__name__}; with labels -1 and +1 use "
                "PromptObjective"
            )

    def forward(self, theta: Float[Array, "... D"]) -> Attention:
        logits, rivals = self.problem.keys.logits(theta), self.problem.rivals
        weights = softmax(logits, axis=-1)
        margin, shares = soft_margin(np.einsum("...nt,ntr->...nr", weights, rivals))
        # Summed token by token in one order: tokens of equal class logits have equal scores, to the bit.
        scores = (shares[..., None, :] * rivals).sum(axis=-1)
        return attend(logits, scores)._replace(output=margin)

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        state = self.forward(theta)
        seen = PivotedAttention.of(self.problem.keys, state, self.loss)
        offsets = from_pivot(self.problem.rivals, state.pivot)
        mean = np.einsum("nt,ntc->nc", state.weights, offsets)
        moved = np.einsum("nt,ntc,ntr->ncr", state.weights, offsets - mean[:, None], seen.keys)
        _, shares = soft_margin(self.problem.rivals[state.pivot] + mean)
        along = np.einsum("nc,ncr->nr", shares, moved)
        bending = np.einsum("nr,nq->nrq", along, along) - np.einsum("nc,ncr,ncq->nrq", shares, moved, moved)
        # Where a mixture is best its tokens have one local score, and every term of the gradient vanishes by itself.
        with np.errstate(divide="ignore"):
            apart = np.log(np.einsum("nc,ntc->nt", shares, np.abs(offsets - mean[:, None])))
        block = with_balance_against(prompt_block(seen, bending=bending), seen, seen.log_slope[:, None] + apart)
        return join_blocks((block,), self.problem.n)


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
