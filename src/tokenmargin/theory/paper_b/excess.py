"""The risk minus that of a selection, by sign and logarithm: comparisons far below rounding."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.theory.instances import ProblemInstance

__all__ = ["signed_excess"]


def signed_excess(
    x: ProblemInstance, points: Float[Array, "k D"], alpha: Int[Array, " n"]
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Sign and logarithm of `L(p) - L_star`, L_star being the risk of the scores of `alpha`."""
    problem, inputs = x.problem, np.arange(x.problem.n)
    logits = problem.keys.logits(points)
    relative = logits - logits.max(axis=-1, keepdims=True)
    log_s = relative - np.log(np.exp(relative).sum(axis=-1, keepdims=True))
    behind = np.where(problem.mask, problem.scores[inputs, alpha][:, None] - problem.scores, 0.0)
    sign, log_gap = _signed_sum(log_s, behind)  # gamma_alpha - f
    best = problem.scores[inputs, alpha] + np.where(sign < 0, np.exp(np.minimum(log_gap, 300)), 0.0)
    log_loss = x.loss.log_excess(best, np.maximum(log_gap, -1e300))
    return _signed_sum(log_loss, sign / problem.n)


def _signed_sum(logs: Float[Array, "... T"], factors: Float[Array, "... T"]) -> tuple[Array, Array]:
    """Sign and logarithm of `sum exp(logs) factors`."""
    with np.errstate(divide="ignore"):
        sizes = np.where(factors != 0, logs + np.log(np.abs(factors)), -np.inf)
        top = np.maximum(sizes.max(axis=-1, keepdims=True), -1e300)
        total = (np.exp(sizes - top) * np.sign(factors)).sum(axis=-1)
        return np.sign(total), np.log(np.abs(total)) + top[..., 0]
