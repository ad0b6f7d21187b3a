"""Flow and basins on the command line."""

import json

import numpy as np
import pytest
from tests.oracles.certified import SETTLED

from tokenmargin.cli import main
from tokenmargin.problem.token_problem import TokenProblem

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def test_flow_to_a_large_norm_as_json(capsys, tmp_path) -> None:
    saved = tmp_path / "path.npz"
    code = main(["evolve", "fig1c", "--method", "flow", "--until-norm", "1e8", "--json", "--save", str(saved)])
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert report["stop"] == "norm"
    # The norm is met by a search to 1e-15, on a step that is right to 1e-10.
    assert report["norm"] == pytest.approx(1e8, rel=1e-9, abs=0)
    assert report["angle"] <= SETTLED
    assert report["log_time"] > 1e8
    with np.load(saved) as data:
        assert data["point"].shape == (len(data["arc"]), 3)
        assert np.isneginf(data["log_time"][0])


def test_flow_is_told_in_words(capsys) -> None:
    assert main(["evolve", "fig8", "--method", "flow", "--until-norm", "100"]) == 0
    assert "stopped by norm" in capsys.readouterr().out


def test_a_flow_that_is_not_finished_says_why(capsys, tmp_path) -> None:
    problem = tmp_path / "cancelling.json"
    TokenProblem.of([[[-1.0], [2.0]], [[2.0], [-1.0]]], [1, 1], scores=[[1, 0], [2, 1]]).save(problem)
    assert main(["evolve", str(problem), "--method", "flow"]) == 0
    assert "smaller terms decide" in capsys.readouterr().out


def test_a_tie_of_equals_that_flow_keeps_is_named(capsys, tmp_path) -> None:
    problem = tmp_path / "leaning.json"
    keys = [[[5, 0, 0], [0, 0, 2], [0, 0, -2]], [[0, 3, 1], [0, 3, -1], [0, 0, 0]]]
    TokenProblem.of(keys, [1, 1], scores=[[1.0, 0, 0], [1, 1, 0]]).save(problem)
    assert main(["evolve", str(problem), "--method", "flow", "--start", "0,0,0.3"]) == 0
    assert "A1 B1+B2" in capsys.readouterr().out


def test_the_weight_is_that_of_the_tokens_named(capsys, tmp_path) -> None:
    """Five equal weights at p = 0; three tokens that keep all of it for ever; weights that are no shares."""
    around = TokenProblem.of([[[2.0, 0], [0, 2], [-2, 0], [0, -2], [0, 0]]], [1], scores=[[1, 1, 1, 1, 0]])
    around.save(around_file := tmp_path / "around.npz")
    held = TokenProblem.of([[[0.0, 0], [1, 0], [-1, 0], [0, -1]]], [1], scores=[[1, 0, 0, 0]])
    held.save(held_file := tmp_path / "held.npz")
    for words, *asked in (
        ("A1 (mean weight 0.200000)", str(around_file)),
        ("A1+A2+A3 (mean weight 1.000000)", str(held_file), "--method", "flow"),
        ("A1+A2 (mean weight 1.000000)", "fig1b", "--attention", "sigmoid"),
    ):
        assert main(["evolve", *asked]) == 0
        assert words in capsys.readouterr().out


def test_a_zero_coordinate_of_a_problem_in_space_is_printed(capsys, tmp_path) -> None:
    space = tmp_path / "space.npz"
    TokenProblem.of([[[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.5, 1.5]]], [1], scores=[[1, 0, 0]]).save(space)
    line = tmp_path / "line.npz"
    TokenProblem.of([[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]], [1], scores=[[1, 0]]).save(line)
    for problem, solved, listed in (
        (line, "[1.]", "(1)"), ("fig1b", "[1. 0.]", "(1, 0)"), (space, "[1. 0. 0.]", "(1, 0, 0)"),
    ):  # fmt: skip
        assert main(["solve", str(problem), "--select", "A2" if problem == "fig1b" else "A1"]) == 0
        assert f"{solved}\n" in capsys.readouterr().out
        assert main(["atlas", str(problem)]) == 0
        assert f"{listed}\n" in capsys.readouterr().out


def test_a_norm_beyond_doubles_is_bad_usage(capsys) -> None:
    assert main(["evolve", "fig8", "--method", "flow", "--until-norm", "1e40"]) == 2
    assert "until_norm" in capsys.readouterr().err


def test_basins_as_json_and_picture(capsys, tmp_path) -> None:
    picture = tmp_path / "map.png"
    arguments = ["basins", "fig8", "--starts", "60", "--steps", "1000", "--picture", str(picture), "--resolution", "9"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {basin["kind"] for basin in report["basins"]} == {"GMM", "LMM"}
    assert picture.stat().st_size > 1000
    assert main(arguments[:6]) == 0
    assert "GMM" in capsys.readouterr().out


@pytest.mark.parametrize("extra", [["--picture", "map.txt"], ["--starts", "0"]])
def test_bad_usage_of_basins(extra) -> None:
    assert main(["basins", "fig8", *extra]) == 2


def _run(*arguments: str) -> int:
    return main(["evolve", "fig1b", *arguments])


def test_a_resumed_descent_is_the_uninterrupted_one(capsys, tmp_path) -> None:
    whole, halves = str(tmp_path / "whole.npz"), str(tmp_path / "halves.npz")
    assert _run("--start", "0,-1,0", "--steps", "600", "--save", whole) == 0
    assert _run("--start", "0,-1,0", "--steps", "200", "--save", halves) == 0
    assert _run("--steps", "600", "--resume", halves) == 0
    with np.load(whole) as one, np.load(halves) as two:
        assert set(one) == set(two)
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


def test_a_resumed_flow_goes_on_in_arc_and_time(capsys, tmp_path) -> None:
    kept = str(tmp_path / "flow.npz")
    flow = ["--method", "flow", "--json"]
    assert _run(*flow, "--until-norm", "1e8", "--save", str(tmp_path / "whole.npz")) == 0
    assert _run(*flow, "--until-norm", "30", "--save", kept) == 0
    assert _run(*flow, "--until-norm", "1e8", "--resume", kept) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["angle"] <= SETTLED
    with np.load(tmp_path / "whole.npz") as one, np.load(kept) as two:
        assert (np.diff(two["arc"]) > 0).all()
        assert (np.diff(two["log_time"]) >= 0).all()
        for name in ("arc", "log_time", "norm"):
            # Two flows with errors of 1e-10 a step, of some hundred steps; arcs and times are sums of those.
            assert two[name][-1] == pytest.approx(one[name][-1], rel=1e-6, abs=0)


def test_a_run_of_something_else_is_not_resumed(capsys, tmp_path) -> None:
    kept, broken = tmp_path / "run.npz", tmp_path / "broken.npz"
    assert _run("--steps", "10", "--save", str(kept)) == 0
    broken.write_bytes(kept.read_bytes()[:200])
    for arguments, complaint in (
        (["evolve", "fig1a", "--resume", str(kept)], "problem"),
        (["evolve", "fig1b", "--method", "gd", "--resume", str(kept)], "method"),
        (["evolve", "fig1b", "--start", "0,0,0", "--resume", str(kept)], "--start"),
        (["evolve", "fig1b", "--resume", str(broken)], "damaged"),
        (["evolve", "fig1b", "--resume", str(tmp_path / "none.npz")], "no such file"),
    ):
        assert main(arguments) == 2
        assert complaint in capsys.readouterr().err


def test_resumed_basins_are_the_uninterrupted_ones(capsys, tmp_path) -> None:
    whole, halves = tmp_path / "whole.npz", tmp_path / "halves.npz"
    starts = ["basins", "fig8", "--starts", "40"]
    assert main([*starts, "--steps", "1000", "--save", str(whole)]) == 0
    assert main([*starts, "--steps", "50", "--save", str(halves)]) == 0
    assert main([*starts, "--steps", "1000", "--resume", str(halves)]) == 0
    with np.load(whole) as one, np.load(halves) as two:
        assert set(one["labels"]) == {0, 1}
        np.testing.assert_array_equal(one["labels"], two["labels"])
        np.testing.assert_array_equal(one["steps"], two["steps"])
    assert main(["basins", "fig8", "--starts", "41", "--resume", str(halves)]) == 2
    assert "starts = 40" in capsys.readouterr().err


def test_descent_beyond_doubles_is_a_line(capsys, tmp_path) -> None:
    """Keys of 1e150 and scores of 1e-150: momentum adds up to a step that no double holds."""
    keys = np.array([[[-1, -2], [-2, 2], [-1, 0]], [[-2, -2], [1, 1], [-2, 0]]]) * 1e150
    scores = np.array([[-1, 0, 1], [1, 0, -1]]) * 1e-150
    problem = {"keys": keys.tolist(), "labels": [1, -1], "scores": scores.tolist()}
    (tmp_path / "p.json").write_text(json.dumps(problem))
    method = ["--method", "heavy-ball", "--train", "joint", "--save", str(tmp_path / "kept.npz")]
    assert main(["evolve", str(tmp_path / "p.json"), "--steps", "20", *method]) == 2
    assert "after 20 steps the point is no longer finite" in capsys.readouterr().err
    assert not (tmp_path / "kept.npz").exists()
