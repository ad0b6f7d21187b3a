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
