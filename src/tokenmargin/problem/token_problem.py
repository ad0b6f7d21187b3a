"""TokenProblem: the immutable, validated data of one attention problem.

The model is `f(X_i) = sum_t s_it <v, x_it>` with `s_i = softmax(K_i p)`. A problem holds the keys `k_it`, the values
`x_it`, the labels `Y_i` and either the head `v` or directly the scores `gamma_it = Y_i <v, x_it>`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin._files import atomic_path, write_arrays
from tokenmargin._notebook import Drawable, Tabular
from tokenmargin.problem.abstract_geometry import AbstractGeometry, MaybeArray, as_array, check_finite, read_only
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.matrix_geometry import Bilinear, as_matrix, bilinear
from tokenmargin.problem.names import token_names

Kind = TypeVar("Kind", bound="TokenProblem")
SHOWN_COORDINATES = 8  # a table lists the coordinates of the keys up to this dimension


@dataclass(frozen=True, eq=False, init=False)
class TokenProblem(Tabular, Drawable):
    """Inputs, keys, values, labels and scores of a one-layer attention problem.

    **Arguments**
    - `keys`: geometry of the keys `k_it`.
    - `labels`: `Y_i` in {-1, +1}.
    - `values`: geometry of the values `x_it`; the keys by default.
    - `head`: parameter `v` of the values' geometry.
    - `scores`: `gamma_it = Y_i <v, x_it>`, when no head is given.

    >>> problem = TokenProblem.of(keys=[[[0.0, 1.0], [1.0, 0.0]]], labels=[1], head=[1.0, 0.0])
    >>> problem.scores
    array([[0., 1.]])
    """

    keys: AbstractGeometry
    labels: Float[Array, " n"]
    values: AbstractGeometry
    head: Float[Array, " D"] | None
    scores: Float[Array, "n T"]

    def __init__(
        self,
        keys: AbstractGeometry,
        labels: ArrayLike,
        values: AbstractGeometry | None = None,
        *,
        head: MaybeArray = None,
        scores: MaybeArray = None,
    ) -> None:
        values = keys if values is None else values
        if values.index.shape != keys.index.shape or (values.mask != keys.mask).any():
            raise ValueError(
                f"values and keys must describe the same tokens, got shapes {values.index.shape} and "
                f"{keys.index.shape} or different masks"
            )
        signs = _checked_signs(labels, keys.n, None if head is None else as_array("head", head).ndim)
        if (head is None) == (scores is None):
            raise ValueError(
                "give exactly one of head (the vector v) and scores (the n x T numbers Y_i <v, x_it>); to change one "
                "of a problem, make a new one: TokenProblem(problem.keys, problem.labels, problem.values, head=v)"
            )
        if head is not None:
            head = checked_vector("head", head, values.dimension, "as long as a value vector")
            scores = signs[:, None] * values.outputs(head)
        for name, value in (
            ("keys", keys),
            ("labels", signs),
            ("values", values),
            ("head", head),
            ("scores", _score_array(scores, keys.mask)),
        ):
            object.__setattr__(self, name, read_only(value) if isinstance(value, np.ndarray) else value)

    @classmethod
    def of(
        cls: type[Kind],
        keys: ArrayLike,
        labels: ArrayLike,
        *,
        head: MaybeArray = None,
        scores: MaybeArray = None,
        values: MaybeArray = None,
        mask: MaybeArray = None,
    ) -> Kind:
        """From plain arrays: `keys` and `values` of shape (n, T, d), `labels` (n,), `head` (d,) or `scores` (n, T).

        The labels of a `RegressionProblem` are its targets.
        """
        geometry = None if values is None else Coordinates.of(values, mask)
        return cls(Coordinates.of(keys, mask), labels, geometry, head=head, scores=scores)

    def __getitem__(self: Kind, inputs: slice | int | ArrayLike) -> Kind:
        """The problem of some inputs alone: `problem[:4]`, `problem[[0, 2]]`, `problem[labels > 0]`, `problem[3]`.

        Parameters stay what they were, so that a prompt of this problem is one of its parts.

        >>> problem = TokenProblem.of([[[0.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [1.0, 0.0]]], [1, -1], head=[1.0, 0.0])
        >>> problem[1:], problem[1:].scores
        (TokenProblem(n=1, T=2, d=2, scores from a head), array([[-2., -1.]]))
        """
        rows = _inputs(inputs, self.n)
        keys = self.keys.at_inputs(rows)
        part = self._part(rows, keys, keys if self.values is self.keys else self.values.at_inputs(rows))
        # The very same numbers: computed anew, a last digit could tell apart scores that tie.
        object.__setattr__(part, "scores", read_only(self.scores[rows]))
        return part

    def __len__(self) -> int:
        """Number of inputs."""
        return self.n

    __iter__: ClassVar[None] = None
    """A part is a problem again: to go through inputs, `for i in range(len(problem))`."""

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        """To numpy a problem is one object, though it has a length."""
        whole = np.empty((), dtype=object)
        whole[()] = self
        return whole

    def _part(self: Kind, rows: Int[Array, " k"], keys: AbstractGeometry, values: AbstractGeometry) -> Kind:
        """The problem of some inputs, given their keys and values."""
        scores = self.scores[rows] if self.head is None else None
        return type(self)(keys, self.labels[rows], values, head=self.head, scores=scores)

    @property
    def n(self) -> int:
        """Number of inputs."""
        return self.keys.n

    @property
    def T(self) -> int:
        """Largest number of tokens of an input."""
        return self.keys.T

    @property
    def mask(self) -> Bool[Array, "n T"]:
        """Which positions hold a token."""
        return self.keys.mask

    @cached_property
    def shared_scores(self) -> Float[Array, "n T"]:
        """The scores, copies of one key sharing their mean.

        Copies have equal weights whatever p is, so training sees the mean of their scores alone.

        >>> keys = [[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]
        >>> TokenProblem.of(keys, [1], scores=[[1.0, 0.0, 0.7]]).shared_scores
        array([[0.5, 0.5, 0.7]])
        """
        return mean_over_copies(self.keys, self.scores)

    @cached_property
    def has_ties(self) -> bool:
        """Whether two tokens of an input have one score, copies included."""
        ranked = np.sort(np.where(self.mask, self.shared_scores, np.inf), axis=1)
        return bool(((ranked[:, 1:] == ranked[:, :-1]) & np.isfinite(ranked[:, 1:])).any())

    def as_gram(self, starts: Float[Array, "k d"] | None = None) -> TokenProblem:
        """The same problem known by inner products alone.

        The rows after the keys' own hold `starts`, so `problem.keys.unit(m + j)` is the start `j`; the last row of the
        values' dictionary holds the head.
        """
        if not isinstance(self.keys, Coordinates) or not isinstance(self.values, Coordinates):
            raise TypeError("as_gram needs a problem in coordinates; this one is in Gram space already")
        keys = self.keys.as_gram(starts)
        if self.head is None or not self.has_fixed_scores:
            return self.with_keys(keys, keys if self.values is self.keys and starts is None else self.values.as_gram())
        values = self.values.as_gram(self.head[None])
        return TokenProblem(keys, self.labels, values, head=values.unit(values.n_vectors - 1))

    def with_keys(self, keys: AbstractGeometry, values: AbstractGeometry | None = None) -> TokenProblem:
        """The same labels and scores on other keys; the values are the keys unless given."""
        return self._with_outputs(keys, values, self._token_outputs)

    @property
    def _token_outputs(self) -> Float[Array, "n T *k"]:
        """What is given of every token: its score; of other kinds of problems its class logits, or its prediction."""
        return self.scores

    def _with_outputs(
        self, keys: AbstractGeometry, values: AbstractGeometry | None, outputs: Float[Array, "n T *k"]
    ) -> TokenProblem:
        """A problem of this kind with the same labels, and with what is given of every token."""
        return TokenProblem(keys, self.labels, values, scores=outputs)

    @property
    def has_fixed_scores(self) -> bool:
        """Whether the score of a token is a fixed number, whatever weights the other tokens have."""
        return True

    def around(self, chosen: Int[Array, " n"] | Float[Array, "n T"]) -> TokenProblem:
        """The problem with fixed scores that agrees with this one to first order at some weights, or at a selection.

        The scores of this problem are fixed, so it is the problem itself.
        """
        return self

    @cached_property
    def merged(self) -> TokenProblem:
        """The same training problem with one score for all copies of a key, the mean of theirs: no pulls then cancel
        between copies. With many classes and real labels it is one worth, or one prediction."""
        shared = mean_over_copies(self.keys, self._token_outputs)
        same = bool((shared == self._token_outputs).all())
        return self if same else self._with_outputs(self.keys, self.values, shared)

    def with_matrix(self, queries: Float[Array, "n q"] | Float[Array, " q"]) -> TokenProblem:
        """The problem of training W in the logits `z_i' W k_it` instead of p; values and scores stay.

        `as_matrix` makes matrices of its solutions. `self_attention` and `cross_attention` pose such problems from
        tokens and queries.

        **Arguments**
        - `queries`: one z for all inputs, or one `z_i` for each.
        """
        keys = bilinear(self.keys, queries)
        if self.head is None or not self.has_fixed_scores:
            return self.with_keys(keys, self.values)
        return TokenProblem(keys, self.labels, self.values, head=self.head)

    def __repr__(self) -> str:
        shape = self.keys.matrix_shape
        size = (
            f"n={self.n}, T={self.T}, W of {shape[0]} x {shape[1]}"
            if shape is not None
            else f"n={self.n}, T={self.T}, d={self.keys.dimension}"
            if isinstance(self.keys, Coordinates)
            else (f"n={self.n}, T={self.T}, in Gram space with {self.keys.n_vectors} vectors")
        )
        short = "" if self.mask.all() else f", {int(self.mask.sum())} tokens"
        return f"{type(self).__name__}({size}{short}, {'scores given' if self.head is None else 'scores from a head'})"

    def _label_column(self) -> Array:
        """The labels, as a table shows them."""
        return self.labels

    def _columns(self) -> dict[str, Array]:
        inputs, positions = np.nonzero(self.mask)
        scores = self.scores[inputs, positions]
        best = scores == np.where(self.mask, self.scores, -np.inf).max(axis=1)[inputs]
        table = {
            "token": token_names(inputs, positions), "input": inputs, "position": positions,
            "label": self._label_column()[inputs], "score": scores, "optimal": best,
        }  # fmt: skip
        if isinstance(self.keys, Coordinates) and self.keys.dimension <= SHOWN_COORDINATES:
            vectors = self.keys.vectors[self.keys.index[inputs, positions]]
            table |= {f"x{j + 1}": vectors[:, j] for j in range(self.keys.dimension)}
        return table

    def as_matrix(self, vector: Float[Array, "... D"]) -> Float[Array, "... q d"]:
        """A parameter of this problem as the matrix W in the logits `z_i' W k_it`.

        >>> problem = TokenProblem.of(keys=[[[0.0, 1.0], [1.0, 0.0]]], labels=[1], head=[1.0, 0.0])
        >>> problem.with_matrix(np.array([1.0, 2.0, 3.0])).as_matrix(np.arange(6.0))
        array([[0., 1.],
               [2., 3.],
               [4., 5.]])
        """
        return as_matrix(self.keys, vector)

    def fields(self) -> dict[str, Array]:
        """The arrays of the problem file by name; a problem in Gram space has no coordinates to write."""
        if not isinstance(self.keys, Coordinates) or not isinstance(self.values, Coordinates):
            raise TypeError("only a problem in coordinates can be saved; save it before calling as_gram()")
        keys = self.keys.keys if isinstance(self.keys, Bilinear) else self.keys
        arrays = {"keys": keys.tokens, "labels": self.labels, "mask": self.mask}
        if isinstance(self.keys, Bilinear):
            arrays["queries"] = self.keys.queries
        if self.values is not keys:
            arrays["values"] = self.values.tokens
        return arrays | ({"scores": self.scores} if self.head is None else {"head": self.head})

    def save(self, path: str | Path) -> None:
        """Write `.npz` or `.json`, by the suffix."""
        arrays = self.fields()
        path = Path(path)
        match path.suffix:
            case ".npz":
                write_arrays(path, arrays)
            case ".json":
                text = json.dumps({name: array.tolist() for name, array in arrays.items()})
                with atomic_path(path) as beside:
                    beside.write_text(text, encoding="utf-8")
            case suffix:
                raise ValueError(f"a problem file ends in .npz or .json, got {suffix!r} in {path.name}")


def mean_over_copies(keys: AbstractGeometry, tokens: Float[Array, "n T *k"]) -> Float[Array, "n T *k"]:
    """What is given per token, with the mean over all copies of a key in place of what each of them has."""
    if not keys.has_copies:
        return tokens
    means, first = tokens.copy(), keys.first_copies
    copied = np.argwhere(keys.mask & (first != np.arange(keys.T))).tolist()
    for i, t in {(i, int(first[i, t])) for i, t in copied}:
        copies = keys.mask[i] & (first[i] == t)
        if np.ptp(tokens[i, copies], axis=0).any():  # the mean of equal numbers is that number, without rounding
            means[i, copies] = tokens[i, copies].mean(axis=0)
    return means


def checked_problem(item: object, asked_by: str) -> TokenProblem:
    """The problem itself; TypeError with a remedy where something else was given."""
    if isinstance(item, TokenProblem):
        return item
    remedy = (
        "its problem is objective.problem; objectives other than the risk of p are followed by flow(objective)"
        if hasattr(item, "problem")
        else "make one with TokenProblem.of(keys, labels, head=v)"
    )
    raise TypeError(f"{asked_by} takes a TokenProblem, got {type(item).__name__}; {remedy}")


def with_fixed_scores(problem: TokenProblem, asked_by: str, remedy: str) -> TokenProblem:
    """The problem itself; TypeError with a remedy where its scores depend on the attention weights."""
    if problem.has_fixed_scores:
        return problem
    raise TypeError(
        f"{asked_by} ranks tokens by fixed scores, and those of a {type(problem).__name__} depend on where attention "
        f"is; {remedy}"
    )


def _inputs(given: slice | int | ArrayLike, n: int) -> Int[Array, " k"]:
    """The inputs that an index of numpy's kinds means, in its order."""
    chosen = np.arange(n)[given] if isinstance(given, slice) else as_array("inputs", given)
    chosen = chosen if chosen.size else chosen.astype(np.intp)  # an empty list has no kind of its own
    if chosen.ndim > 1 or chosen.dtype.kind not in "iub" or (chosen.dtype.kind == "b" and chosen.shape != (n,)):
        got = f"{chosen.dtype} {chosen.shape}"
        raise TypeError(f"inputs are a slice, a number, a list of numbers, or one boolean for each of {n}, got {got}")
    try:
        rows = np.atleast_1d(np.arange(n)[chosen])
    except IndexError:
        beyond = chosen.ravel()[((chosen >= n) | (chosen < -n)).ravel()]
        raise IndexError(f"input {beyond[0]} is out of range: this problem has {n} inputs, 0..{n - 1}") from None
    if not rows.size:
        raise ValueError(f"a problem needs at least one input; none of {n} is in this part")
    return rows


def checked_vector(name: str, value: ArrayLike, length: int, meaning: str) -> Float[Array, " k"]:
    """Validate a one-dimensional array of finite numbers of the given length."""
    vector = as_array(name, value)
    if vector.dtype.kind not in "fiub" or vector.shape != (length,):
        raise ValueError(f"{name} must be numbers of shape ({length},) ({meaning}), got {vector.dtype} {vector.shape}")
    vector = vector.astype(np.float64)
    check_finite(name, vector)
    return vector


def _checked_signs(labels: ArrayLike, n: int, head_axes: int | None) -> Float[Array, " n"]:
    """Validate labels of -1 and +1; others get the remedy that fits them."""
    signs = checked_vector("labels", labels, n, "one label per input")
    odd = signs[~np.isin(signs, (-1.0, 1.0))]
    if odd.size == 0 and head_axes != 2:
        return signs
    if head_axes == 2 or ((np.rint(signs) == signs).all() and signs.min() >= 0 and signs.max() > 1):
        remedy = "many classes: ClassProblem.of(keys, classes, head=...) takes classes 0..k-1 and a head of k columns"
    elif (np.rint(odd) != odd).any():
        remedy = "real labels need a square loss: RegressionProblem.of(keys, targets, head=...)"
    else:
        remedy = "map 0/1 labels with 2 * y - 1"
    got = f"got {odd[0]:g}" if odd.size else "and the head must be one vector"
    raise ValueError(f"labels must be -1 or +1, {got}; {remedy}")


def _score_array(scores: ArrayLike | None, mask: Bool[Array, "n T"]) -> Float[Array, "n T"]:
    """Validate the scores; zero where there is no token."""
    array = as_array("scores", () if scores is None else scores)
    if array.shape != mask.shape or array.dtype.kind not in "fiub":
        raise ValueError(f"scores must be numbers of shape (n, T) = {mask.shape}, got {array.dtype} {array.shape}")
    array = np.where(mask, array.astype(np.float64), 0.0)
    if not np.isfinite(array).all():
        i, t = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(f"scores must be finite, got {array[i, t]} for token {t} of input {i}")
    return array
