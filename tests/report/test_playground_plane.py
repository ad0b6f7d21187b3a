"""The picture says what the library says."""

import numpy as np
import pytest

import tokenmargin as tm
from tokenmargin.dynamics.batch import evolve_many
from tokenmargin.margin import atlas
from tokenmargin.report.playground.plane import FINE_STARTS, picture
from tokenmargin.report.playground.presets import PRESETS, Preset
from tokenmargin.report.playground.schema import PlaneRequest, plane_inputs

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def request(problem: tm.TokenProblem, **settings: object) -> PlaneRequest:
    return PlaneRequest(inputs=plane_inputs(problem), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_presets_show_the_limits_of_their_problems(preset: Preset) -> None:
    answer = picture(PlaneRequest(inputs=preset.to_dict()["inputs"], draft=True, **preset.settings))
    limits = atlas(preset.problem()).limits
    assert [limit["selected"] for limit in answer["limits"]] == [limit.selected.tolist() for limit in limits]
    for shown, limit in zip(answer["limits"], limits, strict=True):
        np.testing.assert_allclose(shown["direction"], limit.solution.vector[:2], atol=1e-9)
    assert answer["note"].startswith(
        "The best token" if limits[0].is_global else "No direction selects the best tokens"
    )


def test_every_named_problem_is_a_preset() -> None:
    assert {preset.name for preset in PRESETS} == set(tm.NAMED_PROBLEMS) | {"fig2", "fig4", "fig9"}


@pytest.mark.parametrize("method", ["normalized", "descent"])
def test_ring_and_training_are_those_of_evolve(method: str) -> None:
    problem, start = tm.three_limits(), (0.9, 1.2)
    answer = picture(request(problem, method=method, start=start, step=0.2, steps=150))
    turn = 2 * np.pi * np.arange(FINE_STARTS) / FINE_STARTS
    assert answer["ring_norm"] == 1.5
    starts = np.vstack([1.5 * np.stack([np.cos(turn), np.sin(turn)], axis=1), start])
    planar = request(problem).problem()
    rule = tm.NormalizedGradientDescent(0.2) if method == "normalized" else tm.GradientDescent(0.2)
    runs = evolve_many([planar], rule, steps=150, starts=[starts])
    selections = [limit["selected"] for limit in answer["limits"]]
    expected = [selections.index(s) if s in selections else -1 for s in runs.selected[0].tolist()]
    assert answer["ring"] == expected[:-1]
    assert answer["training"]["basin"] == expected[-1]
    np.testing.assert_allclose(answer["training"]["points"][-1], runs.finals[0][-1], atol=1e-5)
    np.testing.assert_allclose(
        answer["training"]["weights"][-1], tm.attention_weights(planar.keys, runs.finals[0][-1]), atol=1e-5
    )


def test_flow_goes_where_flow_goes() -> None:
    answer = picture(request(tm.figure1a(), method="flow", start=(0.0, -1.0)))
    end = np.array(answer["training"]["points"][-1])
    gmm = np.array(answer["limits"][0]["unit"])
    assert end @ gmm / np.linalg.norm(end) > 0.98
    assert answer["training"]["basin"] == 0
    assert len(answer["paths"]) >= 1


def test_head_and_prompt_together_show_the_relaxed_direction() -> None:
    preset = next(preset for preset in PRESETS if preset.name == "fig3b")
    answer = picture(PlaneRequest(inputs=preset.to_dict()["inputs"], **preset.settings))["both"]
    np.testing.assert_allclose(answer["relaxed"], [1.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(answer["head"], [0.0, 1.0], atol=1e-9)
    end = np.array(answer["head_path"][-1])
    assert end[1] / np.linalg.norm(end) > 0.95


PROMPT_ALONE = [preset for preset in PRESETS if preset.settings.get("trained") != "both"]


@pytest.mark.parametrize("preset", PROMPT_ALONE, ids=lambda preset: preset.name)
def test_ring_and_path_agree(preset: Preset) -> None:
    """The ring is of starts with the diamond's norm: at the diamond's angle it has the colour of the diamond's path."""
    settings = {**preset.settings}
    x, y = settings["start"]
    if x == y == 0:
        settings["start"] = x, y = 1.0, 0.0
    answer = picture(PlaneRequest(inputs=preset.to_dict()["inputs"], **settings))
    assert answer["ring_norm"] == pytest.approx(np.hypot(x, y))
    place = np.arctan2(y, x) / (2 * np.pi) * FINE_STARTS
    beside = {answer["ring"][int(step(place)) % FINE_STARTS] for step in (np.floor, np.ceil)}
    assert answer["training"]["basin"] in beside
    if x == 1.0 and y == 0.0:  # exactly one of the ring's starts
        assert answer["ring"][0] == answer["training"]["basin"]


def test_words_about_head_and_prompt_look_at_the_run() -> None:
    """Three places to settle, both trained: the run leaves both directions, and the words say so."""
    settings = {"trained": "both", "start": (-0.3, 0.6)}
    answer = picture(request(tm.three_limits(), **settings))
    both, note = answer["both"], answer["note"]
    end = np.array(both["prompt_path"][-1])
    off = np.degrees(np.arccos(end @ both["relaxed"] / np.linalg.norm(end)))
    assert off > 90
    assert f"the prompt is {off:.3g} degrees from" in note
    assert both["selected"] != both["best"]
    assert "not the best tokens A1 and B1" in note
    assert "say nothing about where this run goes" in note
    preset = next(preset for preset in PRESETS if preset.name == "fig3a")
    good = picture(PlaneRequest(inputs=preset.to_dict()["inputs"], **preset.settings))
    assert "The best tokens, A2, B2 and C2, are selected." in good["note"]
    assert "not coming nearer" not in good["note"]
    assert max(good["both"]["head_degrees"][-1], good["both"]["prompt_degrees"][-1]) < 1


def test_words_about_training_say_how_far_it_is_from_its_direction() -> None:
    answer = picture(request(tm.figure1a(), start=(0.0, -1.0)))
    end, unit = np.array(answer["training"]["points"][-1]), np.array(answer["limits"][0]["unit"])
    off = np.degrees(np.arccos(end @ unit / np.linalg.norm(end)))
    assert f"p is now {off:.2g} degrees from that direction" in answer["note"]


def test_infeasible_best_tokens_say_so_with_a_farkas_proof() -> None:
    keys = [[[1.0, 0.0], [-1.0, 0.0]], [[-1.0, 0.1], [1.0, 0.1]]]
    problem = tm.TokenProblem.of(keys, [1, 1], scores=[[1.0, 0.0], [1.0, 0.0]])
    answer = picture(request(problem, draft=True))
    assert "No direction selects the best tokens, A1 and B1" in answer["note"]
    asked = answer["asked"]
    assert asked["status"] == "infeasible"
    assert "No direction selects A1 and B1" in asked["why"]
    rows = np.array([np.array(keys[i][0]) - keys[i][t] for i, t in (weight["token"] for weight in asked["farkas"])])
    weights = np.array([weight["weight"] for weight in asked["farkas"]])
    assert (weights > 0).all()
    np.testing.assert_allclose(weights @ rows, 0, atol=1e-12)


def test_feasible_but_not_locally_optimal_says_who_scores_more() -> None:
    asked = picture(request(tm.figure1a(), asked=[2], draft=True))["asked"]
    assert asked["status"] == "optimal"
    assert not asked["local"]
    assert "training leaves" in asked["why"]


def test_ties_and_single_tokens_have_words_too() -> None:
    tied = tm.TokenProblem.of([[[1.0, 0.0], [0.0, 1.0]]], [1], scores=[[1.0, 1.0]])
    assert "share the highest score" in picture(request(tied, draft=True))["note"]
    single = tm.TokenProblem.of([[[1.0, 0.0]]], [1], scores=[[1.0]])
    assert "nothing to choose" in picture(request(single, draft=True))["note"]
    crowd = tm.TokenProblem.of(np.zeros((2, 3, 2)), [1, 1], scores=np.eye(3)[:2])
    assert "infeasible" in picture(request(crowd, draft=True))["note"]


def test_problems_that_do_not_fit_the_plane_are_refused() -> None:
    with pytest.raises(ValueError, match="keys in the plane"):
        plane_inputs(tm.random_problem(2, 3, 3, rng=np.random.default_rng(0)))
    with pytest.raises(ValueError, match="at most 6 inputs"):
        plane_inputs(tm.random_problem(7, 3, 2, rng=np.random.default_rng(0)))
