"""The page's mathematics, run by node, against the library: a sample of `benchmarks.explore_plane`."""

import numpy as np
import pytest
from benchmarks.explore_families import PLANE_FAMILIES
from benchmarks.explore_plane import NODE, Tally, asked_of, compare, page_answers

from tokenmargin.report.explore.page import STORIES

pytestmark = [
    pytest.mark.skipif(NODE is None, reason="node is not on the PATH: install Node.js 18 or newer"),
    pytest.mark.usefixtures("unchecked_shapes"),
]


def compared(asked: list[dict]) -> Tally:
    tally = Tally()
    for question, answer in zip(asked, page_answers(asked), strict=True):
        compare(question, answer, tally)
    assert not tally.wrong, tally.wrong[0]
    return tally


@pytest.mark.parametrize("family", PLANE_FAMILIES, ids=lambda family: family.__name__)
def test_random_problems_have_the_same_answers(family) -> None:
    rng = np.random.default_rng(5)
    tally = compared([asked_of(family(rng), rng, norms=(), starts=0, steps=50) for _ in range(14)])
    assert tally.compared["verdict"] == 56
    assert tally.compared["end of normalized"] + tally.sensitive > 10


def test_the_stories_have_the_same_answers_and_paths() -> None:
    rng = np.random.default_rng(6)
    large = {"seven", "random"}  # the library's flow takes seconds on these; the benchmark follows such problems
    asked = [
        asked_of(story.to_dict()["inputs"], rng, norms=() if story.name in large else (10.0, 50.0), starts=0)
        for story in STORIES
    ]
    assert compared(asked).compared["flow"] >= len(STORIES) - len(large)


def test_starts_end_where_the_library_says() -> None:
    rng = np.random.default_rng(7)
    stories = [story for story in STORIES if story.name in ("two", "ties", "twice")]
    tally = compared([asked_of(story.to_dict()["inputs"], rng, norms=()) for story in stories])
    assert tally.compared["end of a start"] >= 2


def test_tokens_that_hold_one_another_are_left_behind_by_neither() -> None:
    """Four tokens of one height, the best between two others: p grows upwards, and their weights stay as they are."""
    along, scores = (-1.0, -0.75, -0.5, 0.75), (0.5, 0.625, 0.125, 0.25)
    level = [{"x": x, "y": 0.0, "score": score} for x, score in zip(along, scores, strict=True)]
    inputs = [{"label": 1, "tokens": [*level, {"x": -0.25, "y": -1.0, "score": 0.0}]}]
    asked = asked_of(inputs, np.random.default_rng(0), norms=(10.0, 100.0, 1e4), starts=0)
    assert compared([asked | {"start": [-3.0, 1.0], "loss": "correlation"}]).compared["flow"] == 3
