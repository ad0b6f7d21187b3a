"""Limits of methods, named by their own norms, and the rates of all paths beside what the theory says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.oracles.rounding import of_logits, rounding

import tokenmargin as tm
from tokenmargin.cli import main
from tokenmargin.dynamics import MirrorDescent, Polyak, Schedule, SteepestDescent, method_named
from tokenmargin.limits import Rates, rates
from tokenmargin.limits.by_method import margin_share
from tokenmargin.margin import GAP

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def problem_of(seed: int) -> tm.TokenProblem:
    return tm.random_problem(4, 6, 10, rng=np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("method", "norm"),
    [("ngd", "l2"), (SteepestDescent("linf", 0.05), "linf"), ("mirror:1.5", "lp:1.5"), ("coordinate", "l1")],
)
def test_a_limit_is_named_by_the_norm_of_its_method(method, norm: str) -> None:
    limit = tm.limit_of(problem_of(0), method=method, steps=8000)
    assert limit.outcome == "direction"
    assert limit.norm.name == norm
    assert limit.solution.is_optimal
    # A lead is a difference of logits; the norm and the quotients are rounded too.
    lead = limit.share * limit.solution.margin * float(limit.norm.value(limit.point))
    known = 2 * of_logits(problem_of(0), limit.point) / lead + 2 * limit.norm.rounding(10) + rounding(4)
    assert 0.98 <= limit.share <= 1 + 1e-9  # no margin is above the certified one, to the certificate's accuracy
    assert limit.share == pytest.approx(by_hand(problem_of(0), limit), rel=known, abs=0)
    assert (np.diff(limit.steps) > 0).all()


def by_hand(problem: tm.TokenProblem, limit) -> float:
    """The least lead over the norm, over the certified margin."""
    logits = problem.keys.tokens @ limit.point
    chosen = logits.argmax(axis=1)
    assert (chosen == limit.selected).all()
    behind = np.sort(logits, axis=1)
    size = np.linalg.norm(limit.point, {"l1": 1, "l2": 2, "linf": np.inf, "lp:1.5": 1.5}[limit.norm.name])
    return float((behind[:, -1] - behind[:, -2]).min() / size / limit.solution.margin)


def test_what_is_not_settled_says_why() -> None:
    """Signs with long steps stay below their margin for ever; few steps leave softmax soft."""
    long = tm.limit_of(problem_of(3), method=SteepestDescent("linf", 1.0), steps=4000)
    assert long.outcome == "undecided"
    assert "of the largest" in long.reason
    soft = tm.limit_of(problem_of(0), method="adam", steps=10)
    assert soft.outcome == "undecided"
    assert "still share the weight" in soft.reason
    assert "undecided" in repr(soft)


def test_basins_are_named_by_the_norm_of_the_method() -> None:
    problem = problem_of(0)
    starts = tm.random_starts(problem, 5, radius=1.0, rng=np.random.default_rng(0))
    found = tm.basins(problem, starts, method="sign")
    assert found.basins
    for basin in found.basins:
        assert basin.solution.norm.name == "linf"
        assert basin.solution.margin == pytest.approx(
            tm.max_margin(problem, basin.selected, norm="linf").margin, rel=2 * GAP, abs=0
        )


@pytest.mark.parametrize("seed", range(4))
def test_flow_grows_and_sparsifies_as_the_theory_says(seed: int) -> None:
    path = tm.flow(tm.PromptObjective(problem_of(seed)), until_norm=1e8)
    found = rates(path)
    # What is left out is of relative order c / |p|, from 1e5 on where it is fitted; least squares sees the far end.
    assert found["|p| against log t, times margin"].fitted == pytest.approx(1, abs=1e-6)
    assert found["log unselected against log t"].fitted == pytest.approx(-1, abs=1e-6)
    # c / |p| again; the angle falls like 1 / |p| with terms of order log |p| / |p|^2 beside it.
    assert found["log unselected against margin |p|"].fitted == pytest.approx(-1, abs=1e-6)
    assert found["log angle against log |p|"].fitted == pytest.approx(-1, abs=1e-3)
    assert found.constant == pytest.approx(found.predicted, rel=1e-4, abs=0)  # the four digits asked for
    assert margin_share(problem_of(seed), path.prompt, found.named) == pytest.approx(1, abs=1e-6)


def test_runs_of_methods_have_rates() -> None:
    problem = problem_of(0)

    def of(method, steps: int = 3000) -> Rates:
        return rates(tm.evolve(problem, method, steps=steps, keep=("point",)))

    plain = of("ngd")
    # Normalised steps add `margin step` to the leads of the selected tokens, once the direction is that of the limit.
    assert plain["log unselected against steps"].fitted == pytest.approx(
        -0.1 * plain.named.solution.margin, rel=0.01, abs=0
    )
    assert plain.constant == pytest.approx(plain.predicted, rel=0.01, abs=0)  # steps of 0.1 leave terms of their size
    shrinking = of(SteepestDescent("linf", Schedule(1.0)))
    assert shrinking["log |p| against log t"].theorem == 0.5
    # The first steps, of sizes near one, are a share of 1 / sqrt(3000) = 0.02 of the path, on both sides of the fit.
    assert shrinking["log |p| against log t"].fitted == pytest.approx(0.5, abs=0.05)
    assert np.isnan(shrinking.constant)
    mirror = of(MirrorDescent(1.5))
    assert mirror.named.solution.norm.name == "lp:1.5"
    assert "back and forth" in of(Polyak(), 300).reason
    descent = of(tm.GradientDescent(5.0))
    assert descent["|p| against log t, times margin"].theorem == 1.0
    assert "log unselected" in repr(descent)
    assert list(descent.to_frame()["quantity"]) == [rate.quantity for rate in descent.rates]


def test_rates_need_the_points_of_one_run() -> None:
    with pytest.raises(ValueError, match=r"keep=\(\"point\",\)"):
        rates(tm.evolve(problem_of(0), "ngd", steps=10))
    with pytest.raises(KeyError, match="no rate of 'speed'"):
        rates(tm.flow(tm.PromptObjective(tm.figure1b()), until_norm=1e4))["speed"]


def test_the_commands_know_the_methods(capsys, tmp_path) -> None:
    assert main(["evolve", "fig1b", "--method", "sign", "--step", "0.1", "--rates", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["direction"]["norm"] == "linf"
    assert report["direction"]["share"] > 0.98
    assert report["rates"]["fits"][0]["quantity"] == "log |p| against log t"
    assert report["rates"]["constant"] is None
    assert main(["evolve", "fig1b", "--method", "flow", "--rates"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("quantity"))) :]
    assert len(table) == 6
    assert all(len(line) <= 80 for line in table)
    assert main(["evolve", "fig1b", "--method", "flow", "--batch", "2"]) == 2
    assert "gradient flow has no steps" in capsys.readouterr().err


@pytest.mark.parametrize("extra", [[], ["--batch", "1", "--seed", "5"], ["--decay", "0.5"]])
def test_a_kept_run_of_a_method_with_a_state_goes_on(extra: list[str], capsys, tmp_path) -> None:
    file = str(tmp_path / "run.npz")
    command = ["evolve", "fig8", "--method", "adam", "--step", "0.05", *extra, "--json"]
    assert main([*command, "--steps", "60"]) == 0
    whole = json.loads(capsys.readouterr().out)["final"]
    assert main([*command, "--steps", "25", "--save", file]) == 0
    capsys.readouterr()
    assert main([*command, "--steps", "60", "--resume", file]) == 0
    assert json.loads(capsys.readouterr().out)["final"] == whole


def test_kept_basins_of_a_method_with_a_state_go_on(capsys, tmp_path) -> None:
    file = str(tmp_path / "starts.npz")
    command = ["basins", "fig8", "--method", "momentum", "--starts", "20", "--json"]
    assert main([*command, "--steps", "4000"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main([*command, "--steps", "25", "--save", file]) == 0
    capsys.readouterr()
    assert main([*command, "--steps", "4000", "--resume", file]) == 0
    assert json.loads(capsys.readouterr().out) == whole


def test_a_named_method_is_the_object() -> None:
    assert method_named("steepest:lp:1.5", 0.2) == SteepestDescent("lp:1.5", 0.2)
    assert method_named("mirror:3") == MirrorDescent(3.0)


def test_a_path_at_rest_has_no_rates_and_says_so() -> None:
    """Equal scores pull nowhere: flow and descent stay at zero, and nothing is fitted."""
    equal = tm.TokenProblem.of([[[1.0, 0.0], [-1.0, 0.0]]], [1], scores=[[0.0, 0.0]])
    bounded = tm.TokenProblem.of(np.tile([[1.0], [-1.0]], (2, 1, 1)), [1, 1], scores=[[2.0, 0.0], [0.0, 1.0]])
    for path in (tm.flow(equal), tm.evolve(equal, steps=5, keep=("point",)), tm.flow(bounded)):
        assert rates(path).rates == ()
        assert "p is at rest" in rates(path).reason


def test_rates_beside_a_finite_part_are_those_of_the_tied_direction() -> None:
    """Scores (1, 0) and (0, 1) of one pair of keys stay tied, ahead of a third token: p goes to (0, -1)."""
    keys = np.tile([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], (2, 1, 1))
    tied = tm.TokenProblem.of(keys, [1, 1], scores=[[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    path = tm.flow(tied)
    found = rates(path)
    assert found.named.kind == "finite part"
    assert margin_share(tied, path.prompt, found.named) == pytest.approx(
        1, rel=1e-7, abs=0
    )  # |p| is 1e8, w of order one
    assert [rate.fitted for rate in found.rates] == pytest.approx(
        [rate.theorem for rate in found.rates], rel=0, abs=1e-6
    )  # points are right to 1e-8 of |p|, slopes are of order one
    assert "stay tied" in found.reason
