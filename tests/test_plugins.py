"""What other packages add: found by name everywhere, and harmless where it is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import mpmath
import numpy as np
import pytest

import tokenmargin as tm
from tokenmargin.cli import main
from tokenmargin.dynamics.methods import method_named
from tokenmargin.experiments import experiment_named
from tokenmargin.objective.losses import LogisticLoss, loss_named
from tokenmargin.plugins import PluginError, PluginWarning, find, load_added, own_objects

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "plugin"
Install = Callable[[str, Mapping[str, Mapping[str, str]]], None]


def write_metadata(folder: Path, package: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """What an installer leaves of a package's entry points."""
    place = folder / f"{package.replace('-', '_')}-0.1.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    sections = (
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in groups.items()
    )
    (place / "entry_points.txt").write_text("\n".join(sections))


def example_groups() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a package visible: its metadata on the path, and the example's module beside it."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return lambda package, groups: write_metadata(tmp_path / "site", package, groups)


@pytest.fixture
def example(install: Install) -> None:
    install("heavy-tails", example_groups())


@pytest.mark.usefixtures("example", "unchecked_shapes")
def test_evolve_knows_an_added_loss_method_norm_map_and_head(capsys) -> None:
    assert main(["evolve", "fig1b", "--loss", "hyperbolic", "--method", "clipped", "--step", "20", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    objective = tm.PromptObjective(tm.figure1b(), loss_named("hyperbolic"))
    path = tm.evolve(objective, method_named("clipped", 20.0), steps=1000)
    assert report["final"] == path.final.tolist()
    assert report["direction"]["kind"] == "GMM"

    assert main(["evolve", "fig1b", "--method", "steepest:two-largest", "--step", "0.5", "--json"]) == 0
    limit = json.loads(capsys.readouterr().out)["direction"]
    assert (limit["kind"], limit["norm"]) == ("GMM", "two-largest")

    assert main(["evolve", "fig1b", "--attention", "softplus", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["selected"] == [0]
    assert main(["evolve", "fig1b", "--attention", "softplus", "--method", "flow"]) == 2
    assert "SoftplusAttention has no curvature" in capsys.readouterr().err

    assert main(["evolve", "fig1b", "--head", "tanh", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["direction"]["kind"] is None
    assert main(["evolve", "fig1b", "--head", "tanh", "--train", "joint"]) == 2


@pytest.mark.usefixtures("example")
def test_the_added_loss_is_what_it_says() -> None:
    """Against 50 digits, from one end of the doubles' useful range to the other."""
    loss = loss_named("hyperbolic")
    with mpmath.workdps(50):
        for u in (-1e6, -3.0, 0.0, 0.5, 40.0, 1e6):
            exact = mpmath.sqrt(1 + mpmath.mpf(u) ** 2) - mpmath.mpf(u)
            slope = mpmath.log(1 - mpmath.mpf(u) / mpmath.sqrt(1 + mpmath.mpf(u) ** 2))
            # A few roundings of arsinh and log, each at most 30 in size; the exponential turns them into relative ones.
            assert abs(float(loss.value(np.array(u))) / float(exact) - 1) < 1e-14
            assert abs(float(loss.log_slope(np.array(u))) - float(slope)) < 1e-14 * max(1.0, abs(float(slope)))


@pytest.mark.usefixtures("example", "unchecked_shapes")
def test_reproduce_and_verify_know_what_was_added(tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'tokenmargin[report]')")
    assert main(["reproduce", "heavy-tails", "--steps", "500", "--out", str(tmp_path / "runs"), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["config"] == {"steps": 500}
    assert record["verdict"] == "as expected"
    assert "A loss with a heavy tail" in (tmp_path / "runs" / "reproduction.html").read_text()

    assert main(["verify", "heavy.scaling", "--json"]) == 0
    assert [report["verdict"] for report in json.loads(capsys.readouterr().out)] == ["holds"]
    assert main(["verify", "Heavy.Scaling", "fig8", "--json"]) == 0
    assert [report["kind"] for report in json.loads(capsys.readouterr().out)] == ["given"]
    with pytest.raises(ValueError, match=r"did you mean heavy\.scaling"):
        tm.claim("heavy.scalin")


def test_sweeps_and_the_lists_hold_what_was_added(tmp_path: Path) -> None:
    """In a process of its own: its workers, too, must find the package, and the lists are made once per process."""
    write_metadata(tmp_path, "heavy-tails", example_groups())
    code = """
import tokenmargin as tm
from tokenmargin.cli import main
from tokenmargin.experiments import EXPERIMENTS
assert main(["sweep", "heavy-tails", "--over", "steps=100,200", "--jobs", "1", "--out", "runs", "--json"]) == 0
assert tm.CLAIMS[-1].name == "heavy.scaling" and EXPERIMENTS[-1].figure == "heavy-tails"
"""
    places = os.pathsep.join(map(str, (ROOT / "src", EXAMPLE, tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": places},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    details = json.loads(done.stdout)
    assert (details["cells"], details["failed"]) == (2, 0)


def test_what_is_broken_is_one_line(install: Install, tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "fragile.py").write_text("raise RuntimeError('no license\\nfound')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    groups = {"absent": "not_there:Study", "fragile": "fragile:Study", "wrong": "heavy_tails:TANH"}
    install("bad-luck", {"tokenmargin.experiments": groups, "tokenmargin.losses": {"odd": "math:pi"}})
    for name, reason in {
        "absent": "ModuleNotFoundError: No module named 'not_there'",
        "fragile": "RuntimeError: no license found",
        "wrong": "TypeError: must be a subclass of AbstractExperiment",
    }.items():
        assert main(["reproduce", name]) == 2
        assert capsys.readouterr().err.startswith(f"error: package bad-luck: '{name}' ({groups[name]}): {reason}")
    assert main(["evolve", "fig1b", "--loss", "odd"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "error: package bad-luck: 'odd' (math:pi): TypeError: must be of type AbstractLoss, or what makes one when "
        "called without arguments, got an object of type float"
    )
    with pytest.warns(PluginWarning, match="left out of the experiments: package bad-luck") as lines:
        assert load_added("experiments") == {}
    assert len(lines) == 3


def test_names_that_collide_are_refused(install: Install, capsys) -> None:
    install(
        "first",
        {"tokenmargin.losses": {"logistic": "heavy_tails:HyperbolicLoss", "mine": "heavy_tails:HyperbolicLoss"}},
    )
    install("second", {"tokenmargin.losses": {"mine": "heavy_tails:HyperbolicLoss"}})
    install("third", {"tokenmargin.claims": {"B.Lemma3": "heavy_tails:SCALING"}})
    assert main(["evolve", "fig1b", "--steps", "1", "--json"]) == 0
    taken = "package first: tokenmargin has a 'logistic' of its own; choose another name"
    assert capsys.readouterr().err == f"warning: left out of the losses: {taken}\n"
    with pytest.warns(PluginWarning, match="package first"):
        assert isinstance(loss_named("logistic"), LogisticLoss)
    with pytest.raises(PluginError, match="package first and package second both add 'mine'"):
        loss_named("mine")
    with pytest.warns(PluginWarning, match="package third: tokenmargin has a 'B.Lemma3' of its own"):
        assert load_added("claims", taken=["B.lemma3"]) == {}
    assert tm.claim("b.lemma3").name == "B.lemma3"


def test_an_entry_has_the_name_its_object_says(install: Install) -> None:
    install("mislabelled", {"tokenmargin.claims": {"other": "heavy_tails:SCALING"}})
    with pytest.raises(PluginError, match=r"calls itself 'heavy\.scaling'; the entry point must have that name"):
        tm.claim("other")


def test_a_module_in_the_current_folder_needs_no_package(monkeypatch) -> None:
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place) != EXAMPLE])
    monkeypatch.delitem(sys.modules, "heavy_tails", raising=False)
    assert experiment_named("heavy_tails:HeavyTails").figure == "heavy-tails"
    assert find("claims", "heavy_tails:SCALING").name == "heavy.scaling"
    with pytest.raises(PluginError, match="heavy_tails:Absent: AttributeError"):
        find("losses", "heavy_tails:Absent")


def test_unknown_names_say_what_there_is(capsys) -> None:
    assert main(["evolve", "fig1b", "--loss", "hinge"]) == 2
    assert "choose from logistic, exponential, correlation" in capsys.readouterr().err
    assert main(["evolve", "fig1b", "--method", "adamm"]) == 2
    assert "choose from ngd, gd, momentum" in capsys.readouterr().err
    assert main(["evolve", "--help"]) == 0
    help_page = capsys.readouterr().out
    assert all(name in help_page for name, _ in own_objects("losses"))


def test_nothing_is_looked_for_on_import() -> None:
    code = "import sys, tokenmargin, tokenmargin.plugins; print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
