"""The page's mathematics, run by node, against the library: a sample of `benchmarks.explore_plane`."""

import numpy as np
import pytest
from benchmarks.explore_families import PLANE_FAMILIES
from benchmarks.explore_plane import NODE, Tally, asked_of, compare, page_answers

from tokenmargin.report.playground.presets import PRESETS

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not on the PATH: install Node.js 18 or newer")


@pytest.mark.parametrize("family", PLANE_FAMILIES, ids=lambda family: family.__name__)
def test_random_problems_have_the_same_answers(family) -> None:
    rng = np.random.default_rng(5)
    asked, tally = [asked_of(family(rng), rng, flows=False) for _ in range(15)], Tally()
    for question, answer in zip(asked, page_answers(asked), strict=True):
        compare(question, answer, tally)
    assert not tally.wrong, tally.wrong[0]
    assert tally.compared["verdict"] == 60
    assert tally.compared["end of normalized"] + tally.sensitive > 10


def test_the_stories_have_the_same_answers_and_paths() -> None:
    rng = np.random.default_rng(6)
    asked, tally = [asked_of(preset.to_dict()["inputs"], rng) for preset in PRESETS], Tally()
    for question, answer in zip(asked, page_answers(asked), strict=True):
        compare(question, answer, tally)
    assert not tally.wrong, tally.wrong[0]
    assert tally.compared["flow"] >= len(PRESETS)
