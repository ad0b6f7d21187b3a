"""Flow and basins on the command line."""

import json

import numpy as np
import pytest

from tokenmargin.cli import main

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def test_flow_to_a_large_norm_as_json(capsys, tmp_path) -> None:
    saved = tmp_path / "path.npz"
    code = main(["evolve", "fig1c", "--method", "flow", "--until-norm", "1e8", "--json", "--save", str(saved)])
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert report["stop"] == "norm"
    assert report["norm"] == pytest.approx(1e8)
    assert report["angle"] <= 1e-6
    assert report["log_time"] > 1e8
    with np.load(saved) as data:
        assert data["point"].shape == (len(data["arc"]), 3)
        assert np.isneginf(data["log_time"][0])


def test_flow_is_told_in_words(capsys) -> None:
    assert main(["evolve", "fig8", "--method", "flow", "--until-norm", "100"]) == 0
    assert "stopped by norm" in capsys.readouterr().out


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
