"""The experiments on W and on K and Q: small ones of each, and the trainings against those of single runs."""

import numpy as np
import pytest
from tests.oracles.rounding import of_path, rounding

from tokenmargin.dynamics import NormalizedGradientDescent, evolve
from tokenmargin.experiments.figures.svm_local import SvmKQ, SvmW
from tokenmargin.experiments.figures.svm_paths import KQRate, SvmPaths, SvmTokens
from tokenmargin.objective.factored import FactoredObjective, ManyFactored
from tokenmargin.problem.instances import figure1a

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def test_many_runs_of_k_and_q_are_the_runs_one_by_one():
    """For as long as steps do not zigzag; sums are taken in another order."""
    small = SvmKQ(runs=3)
    many = ManyFactored.of(small.problems)
    starts, method = small.starts(many.dimension), NormalizedGradientDescent(0.1)
    together = evolve(many, method, steps=60, start=starts).final
    for problem, start, end in zip(small.problems, starts, together, strict=True):
        one = evolve(FactoredObjective(problem), method, steps=60, start=start).final
        off = of_path(FactoredObjective(problem), method, 60, start=start)
        np.testing.assert_allclose(end, one, rtol=0, atol=off)
    # A mean over inputs of losses of sums over tokens and coordinates.
    of_value = rounding(problem.n * problem.T + 2 * many.dimension)
    np.testing.assert_allclose(
        many.value(starts)[1], FactoredObjective(small.problems[1]).value(starts[1]), rtol=of_value
    )


def test_many_runs_must_be_alike():
    with pytest.raises(ValueError, match="one shape and no masked tokens"):
        ManyFactored.of([SvmKQ(runs=1).problems[0], figure1a().with_matrix(np.ones(2))])
    many = ManyFactored.of(SvmKQ(runs=2).problems)
    with pytest.raises(ValueError, match="one row per problem, 2 of them"):
        many.descent(np.ones((3, many.dimension)))


@pytest.mark.parametrize(
    ("experiment", "own", "other"), [(SvmW, "frobenius", "nuclear"), (SvmKQ, "nuclear", "frobenius")]
)
def test_each_goes_to_the_direction_of_its_own_norm(experiment, own, other):
    result = experiment(runs=4, steps=400, followed=0).run()
    runs, means = result.tables["runs"], result.tables["means"]
    assert np.isfinite(runs[own]).all()  # every direction is certified
    assert (runs["nuclear_gap"] <= 1e-8).all()
    assert runs[own].mean() > runs[other].mean()
    assert (runs["nuclear_rank"] <= runs["frobenius_rank"]).all()
    assert (means["step"][means["settings"] == "ours"] == np.arange(21) * 20).all()
    assert result.holds


def test_flow_of_w_reaches_its_direction():
    result = SvmW(runs=1, steps=20, followed=1).run()
    assert result.findings[-1].holds


def test_the_exponent_is_that_of_the_dual():
    """The last of two decades of the norm: what is left of the way there is the first power of 1 / norm."""
    result = KQRate(norm=100.0).run()
    measured, predicted = (result.tables["exponents"][name][-1] for name in ("measured", "predicted"))
    # As said, over the last decade: a tenth of what is left of the way at its beginning.
    assert measured == pytest.approx(predicted, rel=0.1, abs=0)


def test_from_zero_all_go_to_the_global_directions():
    result = SvmPaths(steps=300).run()
    assert result.holds
    assert result.tables["ends"]["certified"].all()
    along = result.tables["along"]
    for run in set(along["run"]):  # one minus the cosine falls like one over the squared norm: 100 in a decade of steps
        steps, errors = (along[name][along["run"] == run] for name in ("step", "error"))
        assert errors[-1] < errors[np.searchsorted(steps, 30)] / 4


def test_several_tokens():
    result = SvmTokens(dimensions=(4,), runs=2, steps=400).run()
    runs = result.tables["runs"]
    assert set(runs["settings"]) == {"printed", "ours"}
    assert runs["equivalent"].mean() > runs["single"].mean()
