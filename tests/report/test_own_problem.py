"""A problem of the reader's own: what is drawn of it is true, in any dimension; what is said is what a run did."""

import json
import re

import numpy as np
import pytest

import tokenmargin as tm
from tokenmargin.problem.instances import figure8
from tokenmargin.problem.problem_files import parse_problem
from tokenmargin.report.playground.own_problem import answer_about, example, overview

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
# Places are products with unit vectors, in double precision, of keys of length about one.
ROUNDING = 1e-9


def drawn_rows(answer: dict) -> dict[tuple[int, int], np.ndarray]:
    """Selected minus other, as drawn."""
    places = [[(token["x"], token["y"]) for token in row["tokens"]] for row in answer["inputs"]]
    selected = answer["verdict"]["selected"]
    return {(i, t): np.subtract(places[i][selected[i]], places[i][t]) for i, t in answer["verdict"]["against"]}


@pytest.mark.parametrize("d", [1, 2, 3, 10, 40])
def test_the_drawing_proves_what_the_library_proves(d: int) -> None:
    """Feasible: every drawn difference lies beyond the margin, those of the proof on it. Infeasible: they cancel."""
    rng, seen = np.random.default_rng(d), set()
    for _ in range(30):
        problem = tm.random_problem(3, 4, d, rng=rng)
        asked = rng.integers(4, size=3).tolist()
        answer = answer_about(problem, asked)
        rows, verdict, unit = drawn_rows(answer), answer["verdict"], np.array(answer["unit"])
        weights = {tuple(one["token"]): one["weight"] for one in verdict["evidence"]}
        seen.add(verdict["status"])
        total = sum(weight * rows[token] for token, weight in weights.items())
        if verdict["status"] == "optimal":
            along = {token: float(row @ unit) for token, row in rows.items()}
            assert min(along.values()) == pytest.approx(verdict["margin"], abs=ROUNDING)
            assert all(along[token] == pytest.approx(verdict["margin"], abs=ROUNDING) for token in weights)
            # The drawing is rounded to as many digits.
            assert total @ unit == pytest.approx(1 / verdict["margin"], rel=1e-6, abs=0)
        elif verdict["status"] == "infeasible":
            np.testing.assert_allclose(total, 0, rtol=0, atol=ROUNDING * sum(weights.values()))
    assert {"infeasible", "optimal"} & seen


def test_limits_and_training_are_the_library_s() -> None:
    problem = tm.three_limits()
    told = overview(problem)
    limits = tm.atlas(problem).limits
    assert [limit["selected"] for limit in told["limits"]] == [limit.selected.tolist() for limit in limits]
    assert told["complete"]
    assert told["trained"] in [limit["selected"] for limit in told["limits"]]
    assert "degrees from their max-margin direction" in told["words"][0]


def test_words_about_head_and_prompt_look_at_the_run() -> None:
    """A run that leaves both directions of Theorems 5 and 6 is not said to go there."""
    words = overview(parse_problem(json.dumps(example())))["words"]
    assert "head and prompt together" in words[1]
    assert "Theorems 5 and 6 speak of the best tokens, and say nothing about this run" in words[1]
    scored = tm.TokenProblem.of([[[1.0, 0.0], [0.0, 0.0]]], [1], scores=[[1.0, 0.0]])
    assert len(overview(scored)["words"]) == 1  # without a head there is nothing to train with p


def test_masks_and_matrices_are_shown() -> None:
    ragged = tm.TokenProblem.of(
        [[[1.0, 0], [0, 1]], [[1, 1], [0, 0]]], [1, -1], scores=[[1, 0], [1, 0]], mask=[[True, True], [True, False]]
    )
    answer = answer_about(ragged)
    assert [len(row["tokens"]) for row in answer["inputs"]] == [2, 1]
    assert answer["planar"]
    assert not answer_about(figure8().with_matrix(np.ones((2, 3))))["planar"]
    alone = tm.TokenProblem.of([[[1.0, 0.0]]], [1], scores=[[1.0]])
    assert answer_about(alone)["verdict"]["why"].startswith("Every input has a single token")
    assert overview(alone)["limits"] == []


def test_copies_count_with_their_mean_and_are_listed_together() -> None:
    keys = np.array([[[1, 0], [0, 0], [0, 0]]])
    assert answer_about(tm.TokenProblem.of(keys, [1], scores=[[1.5, 0, 2]]))["best"] == [0]
    assert overview(tm.TokenProblem.of(keys, [1], scores=[[0, 1, 1]]))["limits"][0]["sets"] == [[1, 2]]


@pytest.mark.parametrize(
    ("keys", "scores", "asked", "words"),
    [
        ([[1, 0], [0, 1], [-1, 0]], [1, 1, 1], None, "No input has tokens that score differently at different places"),
        ([[1, 0]], [1], None, "Every input has a single token"),
        ([[1, 0], [0, 2], [0, 0]], [1, 1, 0], [0], "here: this is as good as the best, with less margin."),
        ([[1, 0], [0, 1], [0, 0]], [0.5, 1, 0], [0], "Training does not stay: A2 on the margin scores higher."),
    ],
)
def test_odd_problems_are_said_as_they_are(keys: list, scores: list, asked: list | None, words: str) -> None:
    problem = tm.TokenProblem.of([keys], [1], scores=[scores])
    assert words in answer_about(problem, asked)["verdict"]["why"]


def test_training_is_said_with_the_weight_that_it_gives() -> None:
    """Between mirror images p goes straight ahead: neither has more than half, whichever is named first."""
    mirror = tm.TokenProblem.of([[[1, 1], [1, -1], [-1, 0]]], [1], scores=[[1, 1, 0]])
    words = told(mirror)
    level = "gives A1 and A2 50% of the weight each; some of these are level, and to which of them training goes on"
    if level not in words:  # within a thousand steps rounding may have turned p a little
        found = re.search(r"gives A[12] ([\d.]+)% of the weight; this is as good as any, and p is 26.6", words)
        assert 50 < float(found[1]) < 51
    copies = tm.TokenProblem.of([[[1, 0], [1, 0], [0, 1]]], [1], scores=[[1, 1, 0]])
    assert "gives A1 and A2 50% of the weight each; these are the best tokens, and p is 0 degrees" in told(copies)
    assert "p is still zero: the pulls on it cancel" in told(tm.TokenProblem.of([[[1, 0]]], [1], scores=[[1]]))


def told(problem: tm.TokenProblem) -> str:
    return overview(problem)["words"][0]
