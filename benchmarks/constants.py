"""The constants of the limit, `angle(p, p^) |p| -> c`, against paths: random problems of five families.

    python -m benchmarks.constants [--count 1000] [--seed 0]

Each problem is one of: keys on the sphere; keys of several scales with free scores and ragged inputs; inputs of one
vocabulary (differences that repeat and depend on one another); the same in Gram space; corpora of paper A after their
first step, with unequal frequencies. The loss goes round. A limit is drawn from the atlas, `limit_constants` says c in
closed form, and two paths are measured: the regularisation path at R = 10^6 |p^|, whose constant is `c - correction/R`,
and gradient flow from a random start close to the direction, to |p| = 10^6 |p^|. Printed: the largest relative
difference, and how many agree to four digits.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.tools import run_main
from tokenmargin.dynamics import flow
from tokenmargin.dynamics.paths.ball import minimum_along
from tokenmargin.limits import LimitConstants, limit_constants
from tokenmargin.margin import atlas, limit_direction
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import AbstractLoss, CorrelationLoss, ExponentialLoss, LogisticLoss
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.theory import EmbeddingInstance

__all__ = ["FAMILIES", "Comparison", "compare", "drawn"]

LOSSES: tuple[AbstractLoss, ...] = (LogisticLoss(), ExponentialLoss(), CorrelationLoss())
FOUR_DIGITS = 5e-5
FAR = 1e6
SMALL = 1e-3  # constants below this are compared with this: a symmetric problem has c = 0


def _sphere(rng: np.random.Generator) -> TokenProblem:
    n, T, d = (int(rng.integers(*ends)) for ends in ((1, 5), (2, 6), (2, 13)))
    return random_problem(n, T, d, rng=rng)


def _scales(rng: np.random.Generator) -> TokenProblem:
    n, T, d = (int(rng.integers(*ends)) for ends in ((1, 5), (2, 5), (2, 9)))
    keys = rng.normal(size=(n, T, d)) * np.exp(rng.normal(size=(n, 1, 1)))
    mask = np.arange(T) < rng.integers(2, T + 1, size=n)[:, None]
    return TokenProblem.of(keys, rng.choice([-1.0, 1.0], size=n), scores=rng.normal(size=(n, T)), mask=mask)


def _vocabulary(rng: np.random.Generator) -> TokenProblem:
    """Scores of tokens, signed like the label, so that inputs agree on what is better."""
    m, n, d = int(rng.integers(4, 9)), int(rng.integers(2, 7)), int(rng.integers(4, 12))
    T = int(rng.integers(2, 4))
    index = np.stack([rng.choice(m, size=T, replace=False) for _ in range(n)])
    scores = rng.normal(size=m)[index] * np.exp(rng.normal(size=(n, 1)))
    return TokenProblem(Coordinates(rng.normal(size=(m, d)), index), np.ones(n), scores=scores)


def _gram(rng: np.random.Generator) -> TokenProblem:
    return _vocabulary(rng).as_gram()


def _embeddings(rng: np.random.Generator) -> TokenProblem:
    n, T = ((4, 2), (4, 3), (6, 3), (8, 4))[rng.integers(4)]
    x = EmbeddingInstance.of(n, T, varied=True, seed=int(rng.integers(1 << 30)))
    return x.steps[0].after.problem()


FAMILIES = {
    "sphere": _sphere,
    "scales": _scales,
    "vocabulary": _vocabulary,
    "vocabulary, Gram": _gram,
    "embeddings": _embeddings,
}


@dataclass(frozen=True)
class Comparison:
    """One limit: its constant, and how far two paths are from it, relatively; NaN where there was nothing to follow."""

    family: str
    reason: str
    constant: float = np.nan
    independent: bool = True
    spans: bool = True
    ridge: float = np.nan
    flow: float = np.nan


def drawn(number: int, seed: int) -> tuple[str, TokenProblem, AbstractLoss, np.random.Generator]:
    """Problem `number`: its family, the problem, the loss and the generator that goes on."""
    rng = np.random.default_rng([seed, number])
    family = list(FAMILIES)[number % len(FAMILIES)]
    return family, FAMILIES[family](rng), LOSSES[number // len(FAMILIES) % 3], rng


def compare(number: int, seed: int = 0) -> Comparison:
    """Draw a problem and a limit, and measure both paths."""
    family, problem, loss, rng = drawn(number, seed)
    if family == "embeddings":  # the important tokens, which Theorem 5 is about
        limits = [limit_direction(problem, np.where(problem.mask, problem.shared_scores, -np.inf).argmax(axis=1))]
    else:
        limits = [limit for limit in atlas(problem, loss=loss).limits if limit.kind in ("GMM", "LMM")]
    if not limits:
        return Comparison(family, "no limit")
    constants = limit_constants(problem, limits[rng.integers(len(limits))].selected, loss=loss)
    if constants.reason:
        return Comparison(family, constants.reason)
    active = int((constants.multipliers > 0).sum())
    return Comparison(
        family, "", constants.constant, active == constants.rank, constants.spans,
        _ridge(problem, loss, constants), _flow(problem, loss, constants, rng),
    )  # fmt: skip


def _off(measured: float, expected: float) -> float:
    return abs(measured - expected) / max(expected, SMALL)


def _ridge(problem: TokenProblem, loss: AbstractLoss, constants: LimitConstants) -> float:
    direction = constants.named.solution.vector
    radius = FAR * float(problem.keys.norm(direction))
    point = minimum_along(PromptObjective(problem, loss), direction, radius)
    expected = constants.constant - constants.correction / radius
    return _off(constants.product(point), expected)


def _flow(problem: TokenProblem, loss: AbstractLoss, constants: LimitConstants, rng: np.random.Generator) -> float:
    direction, keys = constants.named.solution.vector, problem.keys
    length = float(keys.norm(direction))
    aside = keys.combine(rng.normal(size=keys.n_vectors))
    start = (200 + 30 * constants.constant / length) * direction + aside / keys.norm(aside)
    path = flow(PromptObjective(problem, loss), start=start, until_norm=FAR * length)
    if path.stop != "norm" or path.selected.tolist() != constants.named.selected.tolist():
        return np.nan
    return _off(constants.product(path.prompt), constants.of_flow(path.prompt))


def main(*, count: int = 1000, seed: int = 0) -> None:
    began, found = time.time(), list[Comparison]()
    while sum(not one.reason for one in found) < count:
        found.append(compare(len(found), seed))
        print(f"\r{len(found)} problems", end="", file=sys.stderr, flush=True)
    for family in (*FAMILIES, None):
        these = [one for one in found if one.family == (family or one.family)]
        known = [one for one in these if not one.reason]
        ridge, along = (np.array([getattr(one, name) for one in known]) for name in ("ridge", "flow"))
        print(f"{family or 'all':17} {len(these)} drawn, {len(known)} with a constant "
              f"({sum(not one.independent for one in known)} with dependent differences, "
              f"{sum(not one.spans for one in known)} whose start counts)")  # fmt: skip
        for name, values in (("path", ridge), ("flow", along)):
            good = int((values <= FOUR_DIGITS).sum())
            nothing = int(np.isnan(values).sum())
            print(f"    {name}: {good} of {len(values)} to four digits, largest difference "
                  f"{np.nanmax(values, initial=0):.1e}, not followed {nothing}")  # fmt: skip
    reasons = sorted({one.reason for one in found if one.reason})
    for reason in reasons:
        print(f"without a constant, {sum(one.reason == reason for one in found)}: {reason}")
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    run_main(main, __doc__)
