"""The objectives: the training risk of p alone, or of head and p together, with its stable direction of descent."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.objective.forward import (
    Attention,
    Descent,
    Linearisation,
    PivotedAttention,
    attend,
    from_pivot,
    head_block,
    head_descent,
    join_blocks,
    prompt_block,
    prompt_descent,
)
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss, LogLoss, LogSigned, SquareLoss, signed_excess
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates, in_coordinates
from tokenmargin.problem.label_problems import ClassProblem, RegressionProblem
from tokenmargin.problem.token_problem import TokenProblem, checked_problem
from tokenmargin.selection import attention_weights, selected_share


@dataclass(frozen=True)
class AbstractObjective(abc.ABC):
    """The training risk `mean_i loss(Y_i f(X_i))` as a function of a flat parameter made of blocks.

    Every method takes parameters with leading axes: many starts are evaluated in one call.
    """

    problem: TokenProblem
    loss: AbstractLoss = field(default_factory=LogisticLoss)

    @property
    def blocks(self) -> tuple[tuple[str, AbstractGeometry], ...]:
        """Name and geometry of each block of the parameter, in order; the attention parameter alone unless said."""
        return (("prompt", self.problem.keys),)

    @property
    def constant_scores(self) -> Float[Array, "n T"] | None:
        """The scores of the tokens where training does not change them; copies share their mean."""
        return None

    @property
    def merged(self) -> AbstractObjective:
        """The same risk, of which copies of a key have one score where training does not change scores: their pulls at
        one another cancel whatever p is, and while they are larger than all others these are lost beside them."""
        return self

    @property
    def has_kinks(self) -> bool:
        """Whether the field has kinks, at which stiff solvers fail; gradient flow then takes Euler's steps."""
        return False

    def has_exact_weights(self, theta: Float[Array, " D"]) -> bool:
        """Whether every input gives exactly all its weight to one token, so that the gradient is zero."""
        return False

    def weights(self, theta: Float[Array, "... D"]) -> Float[Array, "... n T"]:
        """The attention weights."""
        return attention_weights(self.problem.keys, self.prompt(theta))

    def saturation(self, theta: Float[Array, "... D"]) -> Float[Array, "..."]:
        """Mean over the inputs of the selected weight; tokens that training cannot tell apart count together."""
        return selected_share(self.problem.keys, self.weights(theta), self.constant_scores)

    def around(self, weights: Float[Array, "n T"]) -> TokenProblem:
        """The problem with fixed scores that agrees with this one to first order at some attention weights."""
        return self.problem.around(weights)

    def local_problem(self, theta: Float[Array, " D"]) -> TokenProblem:
        """The problem with fixed scores that agrees with this one to first order at a point."""
        return self.around(self.weights(theta))

    @property
    def degree(self) -> int:
        """Degree of the logits in the parameter: at length R they are of the order of R to this power."""
        return 1

    def start(self) -> Float[Array, " D"]:
        """Where training starts unless told otherwise."""
        return np.zeros(self.dimension)

    @abc.abstractmethod
    def outputs(self, theta: Float[Array, "... D"]) -> Float[Array, "... n"]:
        """The margins `Y_i f(X_i)`."""

    @abc.abstractmethod
    def descent(self, theta: Float[Array, "... D"]) -> Descent:
        """Unit direction of steepest descent per block, and the logarithm of the gradient norm."""

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        """The descent field at one point with its Jacobian; the geometries must be coordinates."""
        raise TypeError(f"{type(self).__name__} has no Jacobian of its field; train it with a descent method")

    def excess(self, theta: Float[Array, "... D"], selected: Int[Array, " n"] | None = None) -> LogSigned:
        """Log size and sign of `risk - risk of selecting`, exact where the difference itself has underflowed.

        The risk is compared with that of attending to the `selected` tokens alone; by default to the best ones, which
        gives the infimum.
        """
        raise TypeError(f"{type(self).__name__} has no closed form of its excess risk")

    def log_excess(self, theta: Float[Array, " D"], selected: Int[Array, " n"] | None = None) -> float:
        """Logarithm of the excess risk over that of a selection; NaN where the risk is below that of the selection."""
        size, sign = self.excess(theta, selected)
        return float(size) if sign > 0 else np.nan

    def excess_rank(self, theta: Float[Array, " D"], selected: Int[Array, " n"] | None = None) -> tuple[float, float]:
        """What orders points as their risk does, where risks agree to every digit: the sign of the excess, then its
        logarithm with that sign."""
        size, sign = self.excess(theta, selected)
        return float(sign), float(sign * size) if sign else 0.0

    @property
    def dimension(self) -> int:
        """Length of the flat parameter."""
        return sum(geometry.dimension for _, geometry in self.blocks)

    def split(self, theta: Float[Array, "... D"]) -> dict[str, Float[Array, "... D_block"]]:
        """The blocks of a flat parameter by name."""
        parts, begin = {}, 0
        for name, geometry in self.blocks:
            parts[name] = theta[..., begin : begin + geometry.dimension]
            begin += geometry.dimension
        return parts

    def prompt(self, theta: Float[Array, "... D"]) -> Float[Array, "... D_keys"]:
        """The attention parameter p: the last block."""
        return theta[..., self.dimension - self.problem.keys.dimension :]

    def expand(self, per_block: Float[Array, "... blocks"]) -> Float[Array, "... D"]:
        """One number per block, repeated over the block's coordinates."""
        return np.repeat(per_block, [geometry.dimension for _, geometry in self.blocks], axis=-1)

    def norms(self, theta: Float[Array, "... D"]) -> Float[Array, "... blocks"]:
        """Length of each block."""
        parts = self.split(theta)
        return np.stack([geometry.norm(parts[name]) for name, geometry in self.blocks], axis=-1)

    def value(self, theta: Float[Array, "... D"]) -> Float[Array, "..."]:
        """The training risk."""
        return np.asarray(self.loss.value(self.outputs(theta)).mean(axis=-1))

    def gradient(self, theta: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The plain gradient; it underflows where `descent` does not."""
        direction, log_norm = self.descent(theta)
        return np.asarray(-self.expand(np.exp(log_norm)) * direction)


def _check_signs(problem: TokenProblem, loss: AbstractLoss) -> None:
    """Refuse problems whose labels are not -1 and +1, and name the objective that they need."""
    if isinstance(problem, RegressionProblem):
        raise TypeError(
            f"this problem has real labels, and {type(loss).__name__} is a loss of classes; "
            "use SquareObjective(problem)"
        )
    if isinstance(problem, ClassProblem):
        raise TypeError(f"this problem has {problem.k} classes; use ClassObjective(problem)")
    if not isinstance(loss, AbstractLoss):
        raise TypeError(
            f"loss must be a loss such as tokenmargin.LogisticLoss(), got {loss!r}; "
            "by its name: tokenmargin.objective.losses.loss_named(name)"
        )
    if isinstance(loss, SquareLoss):
        raise TypeError("the square loss is for real labels; give a RegressionProblem to SquareObjective")


@dataclass(frozen=True)
class PromptObjective(AbstractObjective):
    """The risk as a function of the attention parameter p alone; the head is fixed.

    >>> from tokenmargin.problem.instances import figure1a
    >>> objective = PromptObjective(figure1a())
    >>> direction, log_norm = objective.descent(np.array([-500.0, 5000.0, 0.0]))
    >>> direction.round(3) + 0.0, bool(np.exp(log_norm[0]) == 0.0)
    (array([-0.1  ,  0.995,  0.   ]), True)
    """

    def __post_init__(self) -> None:
        _check_signs(checked_problem(self.problem, type(self).__name__), self.loss)

    @property
    def merged(self) -> AbstractObjective:
        return replace(self, problem=self.problem.merged)

    @property
    def constant_scores(self) -> Float[Array, "n T"] | None:
        return self.problem.shared_scores

    def outputs(self, theta: Float[Array, "... D"]) -> Float[Array, "... n"]:
        return self.forward(theta).output

    def value(self, theta: Float[Array, "... D"]) -> Float[Array, "..."]:
        state = self.forward(theta)
        losses = self.loss.value(state.output)
        return np.asarray(np.where(np.isposinf(losses), self._log_slope(state), losses).mean(axis=-1))

    def descent(self, theta: Float[Array, "... D"]) -> Descent:
        state = self.forward(theta)
        return prompt_descent(self.problem.keys, state, self._log_slope(state))

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        forward = self.forward(theta)
        seen = PivotedAttention.of(self.problem.keys, forward, self.loss)
        return join_blocks((prompt_block(seen._replace(log_slope=self._log_slope(forward))),), self.problem.n)

    def _log_slope(self, state: Attention) -> Float[Array, "... n"]:
        """`log(-loss')` at the outputs. Of the loss -log it is the loss itself, which the logarithm of an output gives
        where the output has underflowed."""
        found = self.loss.log_slope(state.output)
        if isinstance(self.loss, LogLoss) and np.isposinf(found).any():
            from scipy.special import logsumexp  # loaded where an output needs it

            found = np.where(np.isposinf(found), -logsumexp(state.log_weights, b=self.problem.scores, axis=-1), found)
        return found

    def excess(self, theta: Float[Array, "... D"], selected: Int[Array, " n"] | None = None) -> LogSigned:
        scores = np.where(self.problem.mask, self.problem.scores, -np.inf)
        reference = scores.max(axis=-1) if selected is None else scores[np.arange(self.problem.n), selected]
        return signed_excess(self.loss, reference, self.forward(theta).log_weights, self.problem.scores)

    def forward(self, theta: Float[Array, "... D"]) -> Attention:
        """The forward pass at a point, with what the stable gradient needs of it."""
        return attend(self.problem.keys.logits(theta), self.problem.scores)

    def smoothness(self) -> float:
        """A Lipschitz constant of the gradient: `mean_i |K_i|^2 (M0 |gamma_i|^2 + 3 M1 |gamma_i|)`.

        It is not the printed L_p of (6) and (24), which is `printed_smoothness`, but the bound that the proof of Lemma
        6 reaches one line earlier, before it puts `|v| |X_i|` for `|gamma_i|` and `|X_i| |W|` for `|K_i|`. So it is
        valid by the same proof and never larger, and it does not ask how keys and values are tied.
        """
        m0, m1 = self._loss_constants()
        gamma = np.linalg.norm(self.problem.scores, axis=1)
        return float((_largest_eigenvalues(self.problem.keys) * (m0 * gamma**2 + 3 * m1 * gamma)).mean())

    def printed_smoothness(self, *, weights_norm: float | None = None) -> float:
        """The constant L_p as (6) and (24) print it: `mean_i |W|^2 (M0 |v|^2 |X_i|^4 + 3 M1 |v| |X_i|^3)`.

        All norms are spectral; X_i holds the values of input i, v is the head, and the keys are `K_i = X_i W'`. M0 and
        M1 are those of the loss on the interval of the scores, where all outputs lie.

        **Arguments**
        - `weights_norm`: |W|; by default that of the least W with `K_i = X_i W'`, for values and keys in coordinates.
        """
        problem = self.problem
        if problem.head is None:
            raise ValueError(
                "the printed L_p is in terms of the head v; this problem has scores alone, use smoothness()"
            )
        norm_of_w = _weights_norm(problem) if weights_norm is None else weights_norm
        m0, m1 = self._loss_constants()
        head = float(problem.values.norm(problem.head))
        tokens = np.sqrt(_largest_eigenvalues(problem.values))  # |X_i|
        return float((norm_of_w**2 * (m0 * head**2 * tokens**4 + 3 * m1 * head * tokens**3)).mean())

    def _loss_constants(self) -> tuple[float, float]:
        visible = self.problem.scores[self.problem.mask]
        return self.loss.constants(float(visible.min()), float(visible.max()))


def _largest_eigenvalues(geometry: AbstractGeometry) -> Float[Array, " n"]:
    """`|K_i|^2` for the matrix of the tokens of each input; infinite where it is no double."""
    with np.errstate(over="ignore", invalid="ignore"):
        grams = [geometry.gram_of(row[here]) for row, here in zip(geometry.index, geometry.mask, strict=True)]
    return np.array([max(np.linalg.eigvalsh(G)[-1], 0.0) if np.isfinite(G).all() else np.inf for G in grams])


def _weights_norm(problem: TokenProblem) -> float:
    """Spectral norm of the least W that takes the values to the keys."""
    if problem.values is problem.keys:
        return 1.0
    mapped = key_map(problem)
    # Backward stability of least squares: the residual of a consistent system is rounding.
    if mapped is not None and mapped[0] <= 1e-12 * int(problem.mask.sum()):
        return float(np.linalg.norm(mapped[1], 2))
    raise ValueError("the printed L_p needs |W|, and these keys are no linear image of the values; give weights_norm=")


def key_map(problem: TokenProblem) -> tuple[float, Float[Array, "d k"]] | None:
    """The relative residual of `k = W x` for all tokens, and the transpose of the smallest W that fits it best.

    None where keys or values are not in coordinates.
    """
    if not isinstance(problem.keys, Coordinates) or not isinstance(problem.values, Coordinates):
        return None
    keys, values = problem.keys.tokens[problem.mask], problem.values.tokens[problem.mask]
    transposed = np.linalg.lstsq(values, keys, rcond=None)[0]
    return float(np.linalg.norm(values @ transposed - keys) / max(float(np.linalg.norm(keys)), 1e-300)), transposed


@dataclass(frozen=True)
class JointObjective(AbstractObjective):
    """The risk as a function of the head v and the attention parameter p together: the parameter is (v, p).

    >>> from tokenmargin.problem.instances import figure3a
    >>> objective = JointObjective(figure3a())
    >>> {name: part.tolist() for name, part in objective.split(objective.start()).items()}
    {'head': [-1.0, 0.0], 'prompt': [0.0, 0.0]}
    """

    def __post_init__(self) -> None:
        checked_problem(self.problem, type(self).__name__)
        if isinstance(self.problem, ClassProblem):
            raise TypeError(
                f"head and p are trained together for labels -1 and +1, and this problem has {self.problem.k} classes; "
                "move tokens towards the heads by class_first_step, then train p: limit_of(ClassProblem.of(...))"
            )
        _check_signs(self.problem, self.loss)

    @property
    def blocks(self) -> tuple[tuple[str, AbstractGeometry], ...]:
        return (("head", self.problem.values), ("prompt", self.problem.keys))

    def start(self) -> Float[Array, " D"]:
        head = self.problem.values.zero() if self.problem.head is None else self.problem.head
        return np.concatenate([head, self.problem.keys.zero()])

    def outputs(self, theta: Float[Array, "... D"]) -> Float[Array, "... n"]:
        return self.forward(theta).output

    def descent(self, theta: Float[Array, "... D"]) -> Descent:
        state = self.forward(theta)
        log_slope = self.loss.log_slope(state.output)
        head = head_descent(self.problem.values, state, self.problem.labels, log_slope)
        prompt = prompt_descent(self.problem.keys, state, log_slope)
        return Descent(
            np.concatenate([head.direction, prompt.direction], axis=-1),
            np.concatenate([head.log_norm, prompt.log_norm], axis=-1),
        )

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        attention = self.forward(theta)
        seen = PivotedAttention.of(self.problem.keys, attention, self.loss)
        values = in_coordinates(self.problem.values)
        offsets = from_pivot(values, attention.pivot)
        mean = np.einsum("nt,ntd->nd", attention.weights, offsets)
        labels = self.problem.labels[:, None]
        features = labels * (values[attention.pivot] + mean)
        spread = labels[..., None] * (offsets - mean[:, None])
        blocks = (head_block(seen, features, spread), prompt_block(seen, features=features, spread=spread))
        return join_blocks(blocks, self.problem.n)

    def forward(self, theta: Float[Array, "... D"]) -> Attention:
        """The forward pass at a point, with what the stable gradient needs of it."""
        parts = self.split(theta)
        values = self.problem.values
        scores = self.problem.labels[:, None] * values.outputs(parts["head"])
        return attend(self.problem.keys.logits(parts["prompt"]), scores)
