"""Figures 9 and 10 in small, against one run at a time."""

import numpy as np
import pytest
from tests.oracles.rounding import of_path, rounding

from tokenmargin.dynamics import NormalizedGradientDescent, evolve
from tokenmargin.experiments.figures.overparameterisation import Figure9a, Figure9b, Figure10
from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.report.figures import draw
from tokenmargin.selection import attention_weights, cosine, is_globally_optimal, score_gaps

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

SMALL = {"dimensions": (2, 10, 100), "trials": 12, "steps": 300}


def test_table_agrees_with_single_runs() -> None:
    experiment = Figure9a(**SMALL)
    runs = experiment.run().tables["runs"]
    for d in (2, 10):
        for trial in range(3):
            row = np.flatnonzero((runs["d"] == d) & (runs["trial"] == trial))[0]
            problem = experiment.problems(d)[trial]
            objective, method = PromptObjective(problem), NormalizedGradientDescent(1.0)
            path = evolve(objective, method, steps=300)
            # In a batch sums run in another order.
            off = of_path(objective, method, 300, seen=lambda p, keys=problem.keys: attention_weights(keys, p))
            assert runs["saturation"][row] == pytest.approx(float(path.saturation), abs=off)
            if path.saturation < 1 - 1e-5:
                assert runs["kind"][row] == "not saturated"
                continue
            solution = max_margin(problem, path.selected)

            def along(p, keys=problem.keys, axis=solution.vector):
                return cosine(keys, p, axis)

            off = of_path(objective, method, 300, seen=along) + rounding(4 * d)
            assert runs["cosine"][row] == pytest.approx(float(along(path.final)), abs=off)
            gap = score_gaps(problem, solution.vector, path.selected).min()
            assert runs["gap"][row] == pytest.approx(gap, abs=rounding(d, np.abs(problem.scores).max()))
            assert (runs["kind"][row] == "GMM") == is_globally_optimal(problem, path.selected)


@pytest.mark.parametrize("figure", [Figure9a, Figure9b, Figure10])
def test_every_view_draws_and_finds(figure) -> None:
    result = figure(**SMALL).run()
    assert result.findings
    assert result.experiment.figure == figure.figure
    assert draw(result).axes
    shares = result.tables["shares"]
    total = sum(shares[kind] for kind in ("not_saturated", "LMM", "neither"))
    # Three shares.
    np.testing.assert_allclose(total, 1.0, rtol=1e-15 * 4)
    assert (shares["GMM"] <= shares["LMM"]).all()  # green is a part of blue


def test_scales() -> None:
    assert Figure9a.paper().trials == 1000
    assert Figure9a.paper().dimensions == (2, 5, 10, 100, 300, 500)
    assert Figure9a.quick().trials < 1000


def test_a_guard_in_the_normalisation_stops_runs_before_they_settle() -> None:
    """The paper's correlation of 0.997: a division by |gradient| + 1e-12 ends the run at a moderate norm."""
    free, guarded = (Figure9a(**SMALL, guard=guard).run() for guard in (0.0, 1e-12))
    wide = free.tables["runs"]["d"] == 100
    assert guarded.tables["runs"]["norm"][wide].max() < 80 < free.tables["runs"]["norm"][wide].min()
    found = [np.nanmean(result.tables["runs"]["cosine"]) for result in (free, guarded)]
    assert found[0] > found[1] > 0.99
    assert guarded.findings[0].verdict in ("explained", "as expected")
