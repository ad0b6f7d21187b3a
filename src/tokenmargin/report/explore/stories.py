"""The problems of the explorable page: small ones, each for something to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import figure1a, figure1b, figure1c, figure5, figure8, figure9, three_limits
from tokenmargin.problem.token_problem import TokenProblem


@dataclass(frozen=True)
class Story:
    """A problem in the plane, what it is, and where training starts."""

    name: str
    title: str
    problem: Callable[[], TokenProblem]
    start: tuple[float, float] = (0.0, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """What the page needs of it."""
        problem = self.problem()
        keys = problem.keys
        assert isinstance(keys, Coordinates), "stories have keys in the plane"
        inputs = [
            {
                "label": 1,
                "tokens": [
                    {"x": float(key[0]), "y": float(key[1]), "score": float(score)}
                    for key, score, seen in zip(row, scores, mask, strict=True)
                    if seen
                ],
            }
            for row, scores, mask in zip(keys.laid_out, problem.scores, problem.mask, strict=True)
        ]
        return {"name": self.name, "title": self.title, "start": list(self.start), "inputs": inputs}


def tied() -> TokenProblem:
    """Two inputs; two tokens of the first score alike, and best."""
    keys = [[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]], [[0.9, 0.2], [-1.0, 0.4], [0.0, 0.7]]]
    return TokenProblem.of(keys, [1, 1], scores=[[1.0, 1.0, 0.0], [1.0, 0.3, 0.1]])


def repeated() -> TokenProblem:
    """An input that holds the same token twice, and one that does not."""
    keys = [[[0.9, 0.3], [0.9, 0.3], [-0.5, 0.6]], [[0.2, -0.9], [-0.4, 0.2], [-0.5, 0.6]]]
    return TokenProblem.of(keys, [1, 1], scores=[[0.8, 0.8, 0.1], [0.7, 0.3, 0.1]])


STORIES = (
    Story("one", "One input of three tokens; the two others score alike (Figure 1a)", figure1a, (0.0, -1.0)),
    Story("two", "The same places, other scores (Figure 1b)", figure1b, (0.0, -1.0)),
    Story("three", "Two inputs of four tokens: three places to settle", three_limits, (-0.3, 0.6)),
    Story("eight", "Two inputs of two tokens: two places to settle (Figure 8)", figure8, (0.5, -0.3)),
    Story("ties", "Two inputs; A1 and A2 score alike", tied, (-0.5, 0.4)),
    Story("twice", "Two inputs; A1 and A2 are the same token", repeated, (-0.4, -0.6)),
    Story("bent", "Two inputs; A2 scores four times as much as B2 (Figure 5)", lambda: figure5(4.0)),
    Story("seven", "Three inputs of seven tokens (Figure 1c)", figure1c, (-1.0, 0.0)),
    Story("random", "Four inputs of six random tokens (Figure 9)", lambda: figure9(2, rng=np.random.default_rng(0))),
)
