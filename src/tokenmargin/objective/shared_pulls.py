"""How much the inputs pull along a difference of two keys that they share, and where these pulls cancel.

Close to a selection the risk is `sum |loss'(gamma_i)| (gamma_i - gamma_it) exp(-margin_it) / copies_i` over the other
tokens, up to terms that are smaller by a weight. Terms with the same difference of keys have the same margin at every
p, so that they can be added up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.norms import EPS
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import copies_of, leads, saturation, select, tokens_of_equal_score

SATURATED = 1 - 1e-5
"""Mean selected weight from which attention counts as saturated."""


class SharedPulls(NamedTuple):
    """The pulls to the selected side, added up difference by difference.

    - `pairs`: an input and a token of it that has each difference to the selected one.
    - `sums`: the pull along each difference. `errors`: what rounding may have made of it.
    """

    pairs: Int[Array, "2 g"]
    sums: Float[Array, " g"]
    errors: Float[Array, " g"]

    @property
    def cancel(self) -> Bool[Array, " g"]:
        """Differences along which the pulls cancel up to rounding, so that smaller terms decide."""
        return np.asarray(~(np.abs(self.sums) > self.errors))


def shared_pulls(
    problem: TokenProblem, selected: Int[Array, " n"], others: Bool[Array, "n T"], loss: AbstractLoss
) -> SharedPulls:
    """How much all inputs together pull to the selected side, along each of their differences to the `others`."""
    scores, (inputs, tokens) = problem.shared_scores, others.nonzero()
    leading = scores[np.arange(problem.n), selected]
    slopes = loss.log_slope(leading) - np.log(copies_of(problem, selected).sum(axis=1))
    with np.errstate(invalid="ignore"):  # -log has an infinite slope at a score of 0: nothing is said of such a pull
        logs = slopes - slopes.max()
        weights = np.exp(logs)
    pulls = weights[inputs] * (leading[inputs] - scores[inputs, tokens])
    # A logarithm is known to eps of its size and its exponential to as much, a score (a mean, an inner product) to eps
    # of its own, with a few operations each; a sum adds one for every term.
    sizes = weights[inputs] * (np.abs(leading[inputs]) + np.abs(scores[inputs, tokens]))
    operations = len(pulls) + 8 + np.abs(slopes)[inputs] + np.abs(logs)[inputs]
    which = shared_differences(problem, inputs, selected[inputs], tokens)
    with np.errstate(invalid="ignore"):
        errors = EPS * operations * sizes
    first = np.unique(which, return_index=True)[1]
    pairs = np.stack([inputs[first], tokens[first]])
    return SharedPulls(pairs, np.bincount(which, weights=pulls), np.bincount(which, weights=errors))


def shared_differences(
    problem: TokenProblem, inputs: Int[Array, " k"], plus: Int[Array, " k"], minus: Int[Array, " k"]
) -> Int[Array, " k"]:
    """A number for each difference of two keys of an input, the same for equal differences."""
    keys, (one, other) = problem.keys, (problem.keys.index[inputs, t] for t in (plus, minus))
    if isinstance(keys, Coordinates):
        rows = keys.vectors[one] - keys.vectors[other] + 0.0
        return np.asarray(np.unique(rows, axis=0, return_inverse=True)[1].ravel())
    pairs = keys.equal_rows[one] * keys.n_vectors + keys.equal_rows[other]
    return np.asarray(np.unique(pairs, return_inverse=True)[1].ravel())


def pulls_cancel(problem: TokenProblem, p: Float[Array, " D"], loss: AbstractLoss) -> bool:
    """Whether attention is saturated at `p` and the largest pulls, along a difference that inputs share, cancel.

    The gradient is then zero to rounding, wherever p is, and this says nothing of the smaller terms that are left.
    """
    if saturation(problem.keys, p, problem.shared_scores) < SATURATED:
        return False
    selected = select(problem.keys, p)
    others = problem.mask & ~tokens_of_equal_score(problem, selected)
    if not others.any():
        return False
    pulls = shared_pulls(problem, selected, others, loss)
    behind = leads(problem.keys, p, selected)[tuple(pulls.pairs)]
    with np.errstate(divide="ignore"):
        return bool(pulls.cancel[(np.log(pulls.errors) - behind).argmax()])
