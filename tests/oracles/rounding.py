"""How far two computations of one number may be apart: each function owns the derivation of a tolerance.

A rounded operation errs by at most half of EPS times what it handles, whatever the processor; a sum of n terms in any
order is n - 1 of them. So nothing here depends on the order of summation, on fused operations or on the BLAS.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenmargin.dynamics import evolve
from tokenmargin.objective.losses import LogisticLoss
from tokenmargin.problem.token_problem import TokenProblem

EPS = float(np.finfo(float).eps)
NOISE = 1e-9


def rounding(operations: float, size: Any = 1.0) -> Any:
    """Two computations of one number, of so many operations each on quantities up to `size`: EPS/2 each, and twice."""
    return operations * EPS * size


def of_difference(step: float, size: float, third: float, operations: float = 2) -> float:
    """A central difference of values up to `size`: their rounding over the step, and the next term, `h^2 f'''/6`."""
    return operations * EPS * size / step + step**2 * third / 6


def of_logits(problem: TokenProblem, p: np.ndarray) -> float:
    """Logits are sums of d products: d roundings of the sum of their absolute values."""
    if hasattr(problem.keys, "matrix"):  # inner products and coefficients in place of coordinates
        most = np.abs(problem.keys.matrix) @ np.abs(p).T
    else:
        most = np.abs(problem.keys.vectors) @ np.abs(p).T
    return rounding(problem.keys.dimension, float(most.max()))


def of_attention(problem: TokenProblem, p: np.ndarray, loss: Any = None) -> tuple[float, float]:
    """Rounding of the risk and of its gradient in p (each entry), at points p of any number, for scores of any size.

    Logits off by e change weights by 2 e of themselves, and normalising T of them adds T + 4 roundings. As weights sum
    to 1, an output moves by that times the spread of the scores; the loss carries it on with its slope M1, and its
    slope with M0. A gradient is a sum over n inputs of T tokens of slope, weight, gap of scores and difference of keys.
    """
    loss = LogisticLoss() if loss is None else loss
    scores, seen = problem.scores, problem.mask
    low, high = float(scores[seen].min()), float(scores[seen].max())
    m0, m1 = loss.constants(low, high)
    n, T, d = problem.n, problem.T, problem.keys.dimension
    weight = 2 * of_logits(problem, p) + rounding(T + 4)
    output = weight * (high - low) + rounding(T + d, max(abs(low), abs(high)))
    value = m1 * output + rounding(n + 6, float(np.abs(loss.value(np.array([low, high]))).max()))
    pull = (high - low) * 2 * float(np.sqrt((problem.keys.vectors**2).sum(axis=1)).max())
    gradient = pull * (m1 * (2 * weight + rounding(n + T + d + 8)) + m0 * output)
    return value, gradient


def of_path(objective: Any, method: Any, steps: int, start: Any = None, seen: Any = lambda p: p) -> float:
    """What rounding can do to the points of a descent: the path's own answer to noise of a known size, scaled down.

    Every step rounds p and the sums behind its direction by up to EPS (n T + d) of their size. Noise of 1e-9 in p for
    every step, given at forty places, moves the points, as `seen` sees them, by so much; for errors this small the
    response is linear. Ten times the largest, since noise is one draw and rounding another. A list of objectives has
    one for each step.
    """
    each = objective if isinstance(objective, list) else [objective] * min(steps, 40)
    rng, problem = np.random.default_rng(0), each[0].problem
    start = each[0].start() if start is None else np.asarray(start)
    both, memory, most = np.stack([start, start]), None, 0.0
    for one, part in zip(each, np.array_split(np.arange(steps), len(each)), strict=True):
        path = evolve(one, method, steps=len(part), start=both, memory=memory)
        both, memory = np.array(path.final), path.memory
        noise = rng.standard_normal(start.shape) / np.sqrt(start.shape[-1])
        both[1] += len(part) * NOISE * np.linalg.norm(both[1], axis=-1, keepdims=True) * noise
        most = max(most, float(np.abs(seen(both[1]) - seen(both[0])).max()))
    return 10 * most / NOISE * rounding(problem.n * problem.T + problem.keys.dimension)


def of_training(still: Any, noisy: Any, steps: int, operations: float) -> float:
    """As `of_path` for a training of so many steps, by its ends: after its start, and after one with noise of NOISE.

    Each step rounds a gradient's terms by `operations` of EPS at most, as noise of that size in the parameters would.
    """
    return 10 * float(abs(noisy - still).max()) / NOISE * steps * rounding(operations)


def of_joint(problem: TokenProblem, theta: np.ndarray, loss: Any = None) -> tuple[float, float]:
    """As `of_attention` where the head is trained too: its gradient is a sum of slope, weight and value."""
    head, p = np.split(np.atleast_2d(theta), [problem.values.dimension], axis=1)
    risks, gradients = zip(*(_of_head(problem, v, x, loss) for v, x in zip(head, p, strict=True)), strict=True)
    return max(risks), max(gradients)


def _of_head(problem: TokenProblem, head: np.ndarray, p: np.ndarray, loss: Any) -> tuple[float, float]:
    values = problem.values.tokens
    posed = TokenProblem.of(problem.keys.tokens, problem.labels, values=values, head=head, mask=problem.mask)
    risk, gradient = of_attention(posed, p, loss)
    # Of prompt and head, whichever is longer: a difference of keys times a gap of scores, or a value.
    pull = float(np.ptp(posed.scores[posed.mask])) * 2 * float(np.linalg.norm(posed.keys.vectors, axis=1).max())
    longest = float(np.linalg.norm(values, axis=-1).max())
    return risk, gradient * max(1.0, longest / pull)


def of_flow(*paths: Any, tolerance: float = 1e-10) -> float:
    """How far flows to one end may be apart, as a share of |p|: the solver's error per step, times the steps of each.

    A step errs by at most `tolerance` (that of `FlowSettings`) times |p|, and paths to a common limit do not part.
    """
    return sum(path.steps * tolerance for path in paths)
