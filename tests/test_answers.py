"""200 answers recorded before the rooms were moved: the numbers do not change when the house does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tokenmargin as tm

RECORDED: dict[str, list[float]] = json.loads((Path(__file__).parent / "recorded" / "answers.json").read_text())
STATUSES = ("optimal", "infeasible", "inaccurate")
# On the processor of the recording all agree to 1.3e-14. Elsewhere sums run in another order: a solution is certified
# to 1e-10 and its entries are of order 1 to 100; an integrator may choose other steps, each with an error of 1e-10, and
# its path carries the sum of them on. What descent makes of rounding is measured on each path: see `rounding_of`.
TOLERANCE = {"max_margin": 1e-8, "atlas": 1e-8, "flow": 1e-5}
NOISE = 1e-9


def rounding_of(objective: tm.PromptObjective, method: object, steps: int) -> float:
    """What rounding can do to the end of a descent: the path's own answer to noise of a known size, scaled down.

    Every step rounds p and the sums behind its direction by up to eps (n T + d) of their size; noise of 1e-9 in p at
    every step moves the end by so much, and for errors this small the response is linear. Ten times that, since noise
    is one draw and rounding another.
    """
    rng = np.random.default_rng(0)
    problem = objective.problem
    calm = noisy = np.zeros(problem.keys.dimension)
    for _ in range(steps):
        calm = tm.evolve(objective, method, steps=1, start=calm).prompt
        noisy = tm.evolve(objective, method, steps=1, start=noisy).prompt
        noisy = noisy + NOISE * np.linalg.norm(noisy) * rng.standard_normal(len(noisy)) / np.sqrt(len(noisy))
    response = float(np.abs(problem.keys.logits(noisy - calm)).max()) / NOISE
    return 10 * response * np.finfo(float).eps * (problem.n * problem.T + problem.keys.dimension)


def answers(allowed: dict[str, float]) -> Iterator[tuple[str, list[float]]]:
    """The same questions in the same order, for they share one stream of random numbers."""
    rng = np.random.default_rng(2026)
    for k in range(70):
        n, T, d = (int(rng.integers(low, high)) for low, high in ((1, 5), (2, 6), (2, 9)))
        problem = tm.random_problem(n=n, T=T, d=d, rng=rng)
        found = tm.max_margin(problem, rng.integers(0, T, n))
        yield f"max_margin {k}", [STATUSES.index(found.status), *(found.vector if found.is_optimal else [])]
        objective = tm.PromptObjective(problem)
        if k < 30:
            allowed[f"evolve {k}"] = rounding_of(objective, tm.NormalizedGradientDescent(step=0.5), 60)
            yield f"evolve {k}", tm.evolve(objective, tm.NormalizedGradientDescent(step=0.5), steps=60).prompt.tolist()
        if k < 20:
            yield f"flow {k}", tm.flow(objective, until_norm=50.0).prompt.tolist()
            gram = problem.as_gram()
            path = tm.evolve(tm.PromptObjective(gram), tm.GradientDescent(step=0.3), steps=40)
            allowed[f"gram descent {k}"] = rounding_of(objective, tm.GradientDescent(step=0.3), 40)
            yield f"gram descent {k}", gram.keys.logits(path.prompt).ravel().tolist()
        if k < 25:
            yield f"atlas {k}", [limit.solution.margin for limit in tm.atlas(problem).limits]
        if k < 20:
            exponential, p = tm.PromptObjective(problem, tm.ExponentialLoss()), rng.standard_normal(d)
            direction = getattr(exponential.descent(p), "direction", 0)
            yield f"value {k}", [float(exponential.value(p)), *np.ravel(direction).tolist()]
    for k in range(15):
        corpus = tm.selective_corpus(4, 3, rng=rng)
        yield f"corpus {k}", [*corpus.signed_frequency, *corpus.posterior_difference]


@pytest.mark.usefixtures("unchecked_shapes")
def test_answers_are_as_they_were():
    allowed: dict[str, float] = {}
    found = dict(answers(allowed))
    assert found.keys() == RECORDED.keys()
    assert len(found) == 200
    for name, numbers in RECORDED.items():
        kind = name.rsplit(" ", 1)[0]
        relative, absolute = TOLERANCE.get(kind, 1e-13), allowed.get(name, 1e-13)
        assert found[name] == pytest.approx(numbers, rel=0 if name in allowed else relative, abs=absolute), name
