"""200 answers recorded before the rooms were moved: the numbers do not change when the house does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.oracles.rounding import of_path

import tokenmargin as tm

RECORDED: dict[str, list[float]] = json.loads((Path(__file__).parent / "recorded" / "answers.json").read_text())
STATUSES = ("optimal", "infeasible", "inaccurate")
# On the processor of the recording all agree to 1.3e-14. Elsewhere sums run in another order: a solution is certified
# to 1e-10 and its entries are of order 1 to 100; an integrator may choose other steps, each with an error of 1e-10, and
# its path carries the sum of them on. What descent makes of rounding is measured on each path: see `of_path`.
TOLERANCE = {"max_margin": 1e-8, "atlas": 1e-8, "flow": 1e-5}


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
            allowed[f"evolve {k}"] = of_path(objective, tm.NormalizedGradientDescent(step=0.5), 60)
            yield f"evolve {k}", tm.evolve(objective, tm.NormalizedGradientDescent(step=0.5), steps=60).prompt.tolist()
        if k < 20:
            yield f"flow {k}", tm.flow(objective, until_norm=50.0).prompt.tolist()
            gram = problem.as_gram()
            by_products = tm.PromptObjective(gram)
            path = tm.evolve(by_products, tm.GradientDescent(step=0.3), steps=40)
            seen = gram.keys.logits
            allowed[f"gram descent {k}"] = of_path(by_products, tm.GradientDescent(step=0.3), 40, seen=seen)
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
