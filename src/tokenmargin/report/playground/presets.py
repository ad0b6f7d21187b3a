"""The problems the page opens with: the figures of the max-margin paper, and the theorem each of them shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenmargin.margin import label_margin
from tokenmargin.problem.instances import NAMED_PROBLEMS, figure5, figure9
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.report.playground.schema import plane_inputs

PAPER = "https://arxiv.org/abs/2306.13596"
"""*Max-Margin Token Selection in Attention Mechanism*."""


PROBLEMS: dict[str, Callable[[], TokenProblem]] = {
    **NAMED_PROBLEMS,
    "fig2": NAMED_PROBLEMS["fig1b"],
    "fig4": NAMED_PROBLEMS["fig1c"],
    "fig5": lambda: figure5(4.0),
    "fig9": lambda: figure9(2, rng=np.random.default_rng(0)),
}


@dataclass(frozen=True)
class Preset:
    """A problem with its title, the theorem it shows and what that says, and the settings to open it with."""

    name: str
    title: str
    theorem: str
    says: str
    settings: dict[str, Any] = field(default_factory=dict)

    def problem(self) -> TokenProblem:
        """The problem with its scores; where the head is trained, those of the max-margin head."""
        problem = PROBLEMS[self.name]()
        if self.settings.get("trained") != "both":
            return problem
        head = label_margin(problem, [1] * problem.n).vector
        return TokenProblem(problem.keys, problem.labels, head=head)

    def to_dict(self) -> dict[str, Any]:
        """What the page needs of it."""
        return {
            "name": self.name,
            "title": self.title,
            "theorem": self.theorem,
            "says": self.says,
            "link": PAPER,
            "settings": self.settings,
            "inputs": [row.model_dump() for row in plane_inputs(self.problem())],
        }


PRESETS = (
    Preset(
        "fig1a",
        "Figure 1a: one winner",
        "Theorem 2",
        "With one input whose other tokens score alike, descent from any start turns to the direction that separates "
        "the best token from the rest with the largest margin.",
        {"start": [0.0, -1.0]},
    ),
    Preset(
        "fig1b",
        "Figure 1b: two winners",
        "Theorem 3",
        "Token A2 is not the best, but it outscores the only token on its margin. It is locally optimal, and starts on "
        "its side stay there.",
        {"start": [0.0, -1.0]},
    ),
    Preset(
        "fig2",
        "Figure 2: the cone of no return",
        "Theorem 3",
        "Around every locally optimal direction lies a cone (hatched, from the norm the proof asks for to infinity) "
        "that training does not leave. The true basin, on the ring, is far wider.",
        {"start": [1.5, 0.5]},
    ),
    Preset(
        "fig1c",
        "Figure 1c: three inputs",
        "Theorem 1",
        "One direction must serve all inputs. Under a growing bound on its norm, the best prompt turns to the "
        "max-margin direction of all best tokens; here descent goes there too.",
        {"start": [-1.0, 0.0]},
    ),
    Preset(
        "fig4",
        "Figure 4: plain descent is slow",
        "Theorem 2",
        "The problem of Figure 1c under plain descent: the norm still grows without end, but only like a logarithm. "
        "Compare with normalised descent under Training.",
        {"start": [0.0, 0.0], "method": "descent", "step": 1.0, "steps": 400},
    ),
    Preset(
        "three-limits",
        "Three places to settle",
        "Theorems 3 and 4",
        "Locally optimal directions have cones around them that training does not leave, and no "
        "other direction can be a limit. The ring shows who wins where.",
        {"start": [-0.9, 1.8]},
    ),
    Preset(
        "fig8",
        "Figure 8: two inputs, two limits",
        "Theorem 2 needs n = 1",
        "With two inputs, a direction that picks the worse token of B is locally optimal too. Uniqueness is lost.",
        {"start": [1.7, -1.0], "steps": 400},
    ),
    Preset(
        "fig5",
        "Figure 5: the loss bends the path",
        "Theorem 2",
        "A2 scores four times as much as B2 and pulls the path to its side. The limit direction is the same for every "
        "loss, the way there is not: try correlation under Training.",
        {"start": [0.0, 0.0]},
    ),
    Preset(
        "fig9",
        "Figure 9: random tokens",
        "Theorem 3",
        "Four inputs of six random tokens on the circle. Few of the 1296 selections are feasible, fewer are locally "
        "optimal, and training ends at one of these.",
        {"start": [0.0, 0.0], "step": 1.0},
    ),
    Preset(
        "fig3a",
        "Figure 3a: head and prompt together",
        "Theorem 5",
        "Every best token supports the max-margin head. As their norms grow, head and prompt turn to the two "
        "max-margin directions.",
        {"trained": "both", "start": [0.0, -1.0], "head": [-1.0, 0.0], "steps": 400},
    ),
    Preset(
        "fig3b",
        "Figure 3b: a token off the margin",
        "Theorem 6",
        "The best token of C no longer supports the head. The prompt then asks no margin of C, and turns to the "
        "relaxed direction.",
        {"trained": "both", "start": [0.0, -1.0], "head": [-1.0, 0.0], "steps": 400},
    ),
)
