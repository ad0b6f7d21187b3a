"""Every figure of the max-margin paper shows what it claims."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.oracles.rounding import rounding

from tokenmargin.experiments import EXPERIMENTS, Finding
from tokenmargin.experiments.figures.along_training import Figure5
from tokenmargin.experiments.figures.joint_paths import Figure3c
from tokenmargin.experiments.figures.prompt_paths import Demo, Figure1b, Figure2
from tokenmargin.problem.instances import figure8, three_limits
from tokenmargin.report.figures import draw
from tokenmargin.report.style import draw_angles

QUICK = ("fig1a", "fig1b", "fig1c", "fig2", "fig3a", "fig3b", "fig3c", "fig4a", "fig4b")


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", [*QUICK, "fig5", "fig8", "methods"])
def test_findings_hold(name: str) -> None:
    experiment = next(experiment for experiment in EXPERIMENTS if experiment.figure == name)
    result = experiment.quick().run()
    assert result.holds, [finding for finding in result.findings if not finding.holds]
    for table in result.tables.values():
        assert len({len(column) for column in table.values()}) == 1


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments_say_how_to_run_them_and_what_to_expect(experiment) -> None:
    assert f"tokenmargin reproduce {experiment.figure}" in experiment.__doc__
    assert experiment.title
    assert experiment.source
    assert experiment.shows, "what the paper shows there, for the reproduction report"
    quick, paper = experiment.seconds
    assert quick == paper or experiment.quick() != experiment.paper(), "two times for the same settings"


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_bias_of_figure_5_has_a_closed_form() -> None:
    """Correlation loss: log(C) / 2; the general form is checked by the experiment's own finding."""
    bias = Figure5(scores=(4.0, 9.0)).run().tables["bias"]
    correlation = bias["loss"] == "correlation"
    # Directions at the largest norm that is followed, 1e8, less what is left at 1 / |p| there.
    np.testing.assert_allclose(bias["height"][correlation], [np.log(2), np.log(3)], rtol=0, atol=1e-6)


@pytest.mark.usefixtures("unchecked_shapes")
def test_figure_3c_is_about_the_optimal_tokens() -> None:
    """At p = (0, -1) their logits are -1, 1 and -1 against 0; the largest weight of an input is another curve."""
    paths = Figure3c().run().tables["paths"]
    sigmoid = 1 / (1 + np.exp(1))
    # Three exponentials and divisions.
    assert paths["optimal_probability"][0] == pytest.approx((2 * sigmoid + 1 - sigmoid) / 3, abs=rounding(10))
    assert paths["largest_probability"][0] == pytest.approx(1 - sigmoid, abs=rounding(10))
    drawn = draw(Figure3c().run()).axes[0].lines[0]
    assert drawn.get_ydata()[0] == paths["optimal_probability"][0]


def test_figure_8_has_two_dimensions() -> None:
    """n = T = d = 2, W = I: keys are the tokens, and a head of the plane gives the scores."""
    problem = figure8()
    assert (problem.n, problem.T, problem.keys.dimension) == (2, 2, 2)
    np.testing.assert_array_equal(problem.keys.tokens, problem.values.tokens)
    np.testing.assert_array_equal(problem.scores, [[1, 0], [1, 0]])


@pytest.mark.usefixtures("unchecked_shapes")
def test_minor_labels_of_norms_go_when_a_flow_is_drawn_on() -> None:
    ax = Figure().subplots()
    draw_angles(ax, [(np.array([3.0, 12.0]), np.array([0.1, 0.02]), "black", "descent")])
    label = ax.xaxis.get_minor_formatter()
    assert label(5.0, 0) == "5"
    ax.plot([12.0, 1e8], [0.02, 1e-9])  # as in Figure 8
    assert label(5.0, 0) == ""


def test_a_start_outside_the_cone_is_noticed() -> None:
    class Outside(Figure2):
        def starts(self):
            return super().starts() @ np.array([[0.0, 1.0], [-1.0, 0.0]])  # a quarter turn

    result = Outside(steps=50).run()
    assert result.findings[0].measured == 0
    assert not result.findings[1].holds


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_run_too_short_to_align_is_not_called_a_success() -> None:
    assert not Figure1b(steps=5).run().holds


@pytest.mark.usefixtures("unchecked_shapes")
def test_progress_reaches_the_end() -> None:
    shares: list[float] = []
    Figure1b(steps=200).run(shares.append)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)


def test_the_demonstration_knows_all_selections() -> None:
    demo = Demo.quick()
    assert sorted(demo.direction_table(three_limits())["direction"]) == ["GMM", "LMM", "LMM"]
    assert demo.selection_counts(three_limits()) == {"all": 16, "infeasible": 10, "limits": 3}


@pytest.mark.parametrize(
    ("finding", "holds", "words"),
    [
        (Finding("x", 2.0, 2, 2), True, "2"),
        (Finding("x", 2.0, low=3), False, "at least 3"),
        (Finding("x", 2.0, high=3), True, "at most 3"),
        (Finding("x", 2.0, 1, 3), True, "1 to 3"),
        (Finding("x", np.nan, 1, 3), False, "1 to 3"),
    ],
)
def test_findings_judge_and_speak(finding: Finding, holds: bool, words: str) -> None:
    assert finding.holds is holds
    assert finding.expected == words
