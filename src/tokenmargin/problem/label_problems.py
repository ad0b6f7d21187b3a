"""Problems with other labels than -1 and +1: k classes under a head with k columns, and real numbers.

Attention gives every input the class logits `F_i = sum_t s_it u_it` with `u_it = (<v_1, x_it>, ..., <v_k, x_it>)`. The
cross-entropy of the right class y is the logistic loss of the *margin* `m_i = F_iy - log sum_{c != y} exp(F_ic)`, so
two classes are the binary problem with the head `v_1 - v_0`. With more classes m is concave: a mixture of tokens can do
better than each of them, and what a token is worth depends on the weights of the others. `around` gives scores that are
right to first order at given weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

from tokenmargin.problem.abstract_geometry import AbstractGeometry, MaybeArray, as_array, check_finite, read_only
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem, checked_vector


def checked_classes(classes: ArrayLike, n: int, k: int, *, keep_unused: bool = False) -> Int[Array, " n"]:
    """Validate one class of 0..k-1 per input, each used unless `keep_unused`."""
    array = as_array("labels", classes)
    if array.shape != (n,) or array.dtype.kind not in "fiub":
        raise ValueError(f"labels must be {n} numbers, one class per input, got {array.dtype} {array.shape}")
    wrong = ~np.isin(array, np.arange(k))
    if wrong.any():
        hint = "; two classes are labelled 0 and 1 here, not -1 and +1" if (array == -1).any() else ""
        raise ValueError(
            f"labels must be classes 0..{k - 1} for a head of {k} columns, got {array[wrong][0]:g} "
            f"for input {int(wrong.argmax())}{hint}"
        )
    unused = np.setdiff1d(np.arange(k), array)
    if unused.size and not keep_unused:
        raise ValueError(
            f"class {unused[0]} has no example; drop its column of the head, or give keep_unused=True to keep it as a "
            "rival that no input belongs to"
        )
    return array.astype(np.intp)


def soft_margin(rivals: Float[Array, "... r"]) -> tuple[Float[Array, "..."], Float[Array, "... r"]]:
    """`-log sum_c exp(-rival_c)`, a smooth minimum of the rivals, and its gradient, the softmax of minus the rivals."""
    return np.asarray(-logsumexp(-rivals, axis=-1)), np.asarray(softmax(-rivals, axis=-1))


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ClassProblem(TokenProblem):
    """Inputs, keys, values and classes under a head with one column per class.

    As a `TokenProblem` it has the label +1 everywhere. The score of a token is the margin m of the right class when
    that token has all the attention, so that the tokens of largest score are the best to select.

    **Arguments**
    - `keys`, `values`: geometries, as of a `TokenProblem`.
    - `classes`: 0..k-1 per input; each class has an example, unless `keep_unused`.
    - `head`: one column per class, parameters of the values' geometry.
    - `class_logits`: the numbers `u_it` of shape (n, T, k), when no head is given.

    >>> problem = ClassProblem.of([[[0.0, 1.0], [1.0, 0.0]]] * 3, [0, 1, 2], head=[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> problem.scores.round(3)
    array([[-1.313,  0.307],
           [ 0.307, -1.313],
           [-1.313, -1.313]])
    """

    classes: Int[Array, " n"]
    class_head: Float[Array, "D k"] | None
    class_logits: Float[Array, "n T k"]
    keep_unused: bool

    def __init__(
        self,
        keys: AbstractGeometry,
        classes: ArrayLike,
        values: AbstractGeometry | None = None,
        *,
        head: MaybeArray = None,
        class_logits: MaybeArray = None,
        keep_unused: bool = False,
    ) -> None:
        if (head is None) == (class_logits is None):
            raise ValueError("give exactly one of head (one column per class) and class_logits (n x T x k numbers)")
        seen = keys if values is None else values
        columns = None if head is None else _numbers("head", head, (seen.dimension,))
        if columns is not None:
            logits = np.stack([seen.outputs(column) for column in columns.T], axis=-1)
        else:
            logits = _numbers("class_logits", class_logits, keys.index.shape)
        logits = np.where(keys.mask[..., None], logits, 0.0)
        chosen = checked_classes(classes, keys.n, logits.shape[-1], keep_unused=keep_unused)
        others = np.arange(logits.shape[-1]) != chosen[:, None]
        own = np.take_along_axis(logits, chosen[:, None, None], axis=-1)
        rivals = (own - logits)[np.broadcast_to(others[:, None], logits.shape)].reshape(*logits.shape[:2], -1)
        super().__init__(keys, np.ones(keys.n), values, scores=soft_margin(rivals)[0])
        fields = {"classes": chosen, "class_head": columns, "class_logits": logits, "rivals": rivals}
        for name, value in fields.items():
            object.__setattr__(self, name, None if value is None else read_only(value))
        object.__setattr__(self, "keep_unused", keep_unused)

    rivals: Float[Array, "n T r"]
    """`u_ity - u_itc` for every class c but the right one, y."""

    @classmethod
    def of(  # type: ignore[override]
        cls,
        keys: ArrayLike,
        classes: ArrayLike,
        *,
        head: MaybeArray = None,
        class_logits: MaybeArray = None,
        values: MaybeArray = None,
        mask: MaybeArray = None,
        keep_unused: bool = False,
    ) -> ClassProblem:
        """From arrays: `keys` and `values` (n, T, d), `classes` (n,), `head` (d, k) or `class_logits` (n, T, k)."""
        geometry = None if values is None else Coordinates.of(values, mask)
        return cls(
            Coordinates.of(keys, mask), classes, geometry, head=head, class_logits=class_logits, keep_unused=keep_unused
        )

    def _label_column(self) -> Array:
        return self.classes

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.class_logits.shape[-1]

    @property
    def has_fixed_scores(self) -> bool:
        return False

    def _part(self, rows: Int[Array, " k"], keys: AbstractGeometry, values: AbstractGeometry) -> ClassProblem:
        logits = self.class_logits[rows] if self.class_head is None else None
        part = ClassProblem(
            keys, self.classes[rows], values, head=self.class_head, class_logits=logits, keep_unused=True
        )
        for name in ("class_logits", "rivals"):
            object.__setattr__(part, name, read_only(getattr(self, name)[rows]))
        return part

    @property
    def _token_outputs(self) -> Float[Array, "n T k"]:
        return self.class_logits

    def _with_outputs(self, keys: AbstractGeometry, values: AbstractGeometry | None, outputs: Array) -> ClassProblem:
        return ClassProblem(keys, self.classes, values, class_logits=outputs, keep_unused=True)

    def around(self, chosen: Int[Array, " n"] | Float[Array, "n T"]) -> TokenProblem:
        """The binary problem that agrees with this one to first order at these weights (or at this selection).

        Its scores are `m_i + <gradient of m_i, u_it - F_i>`. Since m is concave, the selected token has the largest of
        them exactly when no mixture of tokens is better than it.
        """
        weights = _as_weights(chosen, self.T)
        outputs = np.einsum("nt,ntr->nr", weights, self.rivals)
        margin, shares = soft_margin(outputs)
        scores = margin[:, None] + (shares[:, None] * (self.rivals - outputs[:, None])).sum(axis=-1)
        return TokenProblem(self.keys, self.labels, self.values, scores=scores)

    def mixture_is_better(self, selected: Int[Array, " n"]) -> Bool[Array, " n"]:
        """Inputs in which some mixture with another token beats the selected one, by the first-order condition."""
        scores = np.where(self.mask, self.around(selected).scores, -np.inf)
        return np.asarray(scores.max(axis=1) > scores[np.arange(self.n), selected])

    def fields(self) -> dict[str, Array]:
        arrays = super().fields() | {"labels": self.classes}
        if self.keep_unused:
            arrays["keep_unused"] = np.array(True)
        if self.class_head is None:
            return arrays | {"scores": self.class_logits}
        del arrays["scores"]
        return arrays | {"head": self.class_head}


def _as_weights(chosen: Int[Array, " n"] | Float[Array, "n T"], T: int) -> Float[Array, "n T"]:
    """The attention weights given, or those that have all the weight on one token of each input."""
    given = np.asarray(chosen)
    return given if given.ndim == 2 else (np.arange(T) == given[:, None]).astype(np.float64)


def _numbers(name: str, value: ArrayLike | None, leading: tuple[int, ...]) -> Float[Array, "... k"]:
    """Validate finite numbers with the given leading shape and at least two classes in the last axis."""
    array = as_array(name, () if value is None else value)
    shape = f"({', '.join(map(str, leading))}, k)"
    if array.dtype.kind not in "fiub" or array.shape[:-1] != leading or array.shape[-1] < 2:
        raise ValueError(
            f"{name} must be numbers of shape {shape} with k >= 2 classes, got {array.dtype} {array.shape}"
        )
    array = array.astype(np.float64)
    check_finite(name, array)
    return array


@dataclass(frozen=True, eq=False, init=False, repr=False)
class RegressionProblem(TokenProblem):
    """Inputs, keys, values and real targets.

    As a `TokenProblem` it has the label +1 everywhere, and its scores are the tokens' own predictions `<v, x_it>`.

    **Arguments**
    - `keys`, `values`, `head`: as of a `TokenProblem`.
    - `targets`: a real number `y_i` per input.
    - `scores`: the predictions of the tokens, when no head is given.

    >>> problem = RegressionProblem.of([[[0.0, 1.0], [1.0, 0.0]]], [0.3], head=[1.0, 0.0])
    >>> problem.scores, problem.around(np.array([0])).scores  # the second token's prediction is on the target's side
    (array([[0., 1.]]), array([[-0.3,  0.7]]))
    """

    targets: Float[Array, " n"]

    def __init__(
        self,
        keys: AbstractGeometry,
        targets: ArrayLike,
        values: AbstractGeometry | None = None,
        *,
        head: MaybeArray = None,
        scores: MaybeArray = None,
    ) -> None:
        wanted = checked_vector("targets", targets, keys.n, "one real number per input")
        super().__init__(keys, np.ones(keys.n), values, head=head, scores=scores)
        object.__setattr__(self, "targets", read_only(wanted))

    def _label_column(self) -> Array:
        return self.targets

    @cached_property
    def residuals(self) -> Float[Array, "n T"]:
        """Prediction of each token less the target of its input; zero where there is no token."""
        return np.where(self.mask, self.scores - self.targets[:, None], 0.0)

    @property
    def has_fixed_scores(self) -> bool:
        return False

    def _part(self, rows: Int[Array, " k"], keys: AbstractGeometry, values: AbstractGeometry) -> RegressionProblem:
        scores = self.scores[rows] if self.head is None else None
        return RegressionProblem(keys, self.targets[rows], values, head=self.head, scores=scores)

    def _with_outputs(
        self, keys: AbstractGeometry, values: AbstractGeometry | None, outputs: Array
    ) -> RegressionProblem:
        return RegressionProblem(keys, self.targets, values, scores=outputs)

    def around(self, chosen: Int[Array, " n"] | Float[Array, "n T"]) -> TokenProblem:
        """The problem with fixed scores that agrees with this one to first order at these weights (or selection).

        Its scores are `side_i (prediction_it - y_i)`, with the side of the prediction on which the target lies: 1
        above, -1 below. The mean score of an input is then minus its distance to the target. In an input that meets its
        target exactly, the score of a token is minus its own distance.
        """
        side = -np.sign((_as_weights(chosen, self.T) * self.residuals).sum(axis=1))
        return self.with_sides(np.where(side == 0, np.nan, side))

    def with_sides(self, side: Float[Array, " n"]) -> TokenProblem:
        """As `around`, given the sides on which the targets lie; NaN where a target is met exactly."""
        off = self.residuals
        scores = np.where(np.isnan(side)[:, None], -np.abs(off), np.nan_to_num(side)[:, None] * off)
        return TokenProblem(self.keys, self.labels, self.values, scores=scores)

    def fields(self) -> dict[str, Array]:
        arrays = super().fields()
        del arrays["labels"]
        return arrays | {"targets": self.targets}
