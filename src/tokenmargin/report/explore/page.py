"""The page as one file: scripts, style and the problems it shows, written into the article. No bundler, no network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin._files import atomic_path
from tokenmargin.problem.geometry import in_coordinates
from tokenmargin.problem.instances import figure1a, figure1b, figure1c, figure5, figure8, figure9, three_limits
from tokenmargin.problem.token_problem import TokenProblem

STATIC = Path(__file__).parent / "static"
EXAMPLE = Path(__file__).parent / "example_model.json"  # `explore_model` of the model in playground/sentences
MATHEMATICS = ("plane.js", "limits.js", "finite.js", "paths.js", "worker.js")
"""Modules that also run in the worker, each after those it imports."""
PAGE = (
    *("words.js", "drawing.js", "charts.js", "model.js", "state.js", "keep.js", "wordmodel.js", "sentence.js"),
    *("page.js", "yourwords.js", "own.js", "controls.js", "hands.js", "opening.js"),
)


def join_modules(names: tuple[str, ...]) -> str:
    """Modules as one script: imports of each other are dropped, exports become plain declarations.

    >>> join_modules(("worker.js",)).strip().splitlines()[0]
    'const SLICE = 400; // starts between two looks at the post'
    """
    text = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)
    text = re.sub(r'^import \{[^}]*\} from "[^"]*";\n', "", text, flags=re.M)
    text = re.sub(r"^export (?=(async )?(const|let|function|class) )", "", text, flags=re.M)
    # Comments of whole lines are for those who read the modules.
    return re.sub(r"^\s*//.*\n", "", text, flags=re.M)


def explore_page(*, picture: str = "", model: dict[str, Any] | None = None, own: dict[str, Any] | None = None) -> str:
    """The whole page.

    **Arguments**
    - `picture`: the address of the picture that a shared link shows.
    - `model`: decides the reader's own words, as `explore_model` gives it; None for the small example in the package.
    - `own`: a problem file to open the seventh section with, which asks the server of the playground; None without one.
    """
    told = {
        "stories": [story.to_dict() for story in STORIES],
        "model": model or json.loads(EXAMPLE.read_text(encoding="utf-8")),
        "own": own,
    }
    data = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    parts = {
        "/*STYLE*/": (STATIC / "colours.css").read_text(encoding="utf-8")
        + (STATIC / "style.css").read_text(encoding="utf-8"),
        "/*DATA*/": data.replace("<", "\\u003c"),
        "/*MATHEMATICS*/": "\n" + join_modules(MATHEMATICS),
        "/*PAGE*/": "\n" + join_modules(PAGE),
        "/*CONNECT*/": "connect-src 'self'; " if own else "",
        "<!--OPEN GRAPH PICTURE-->": f'<meta property="og:image" content="{picture}">' if picture else "",
    }
    text = (STATIC / "article.html").read_text(encoding="utf-8")
    for mark, content in parts.items():
        text = text.replace(mark, content, 1)
    return text


def write_explore_page(path: Path, *, model: dict[str, Any] | None = None) -> Path:
    """Write the page to a file, making its folder."""
    with atomic_path(path) as beside:
        beside.write_text(explore_page(model=model), encoding="utf-8")
    return path


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
        inputs = page_inputs(problem, in_coordinates(problem.keys)[..., :2])
        return {"name": self.name, "title": self.title, "start": list(self.start), "inputs": inputs}


def page_inputs(problem: TokenProblem, places: Float[Array, "n T 2"]) -> list[dict[str, Any]]:
    """The inputs as the page knows them: tokens with their places and scores; these hold the labels already."""
    return [
        {
            "label": 1,
            "tokens": [
                {"x": float(x), "y": float(y), "score": float(problem.scores[i, t])}
                for t, (x, y) in enumerate(places[i])
                if problem.mask[i, t]
            ],
        }
        for i in range(problem.n)
    ]


def tied_problem() -> TokenProblem:
    """Two inputs; two tokens of the first score alike, and best."""
    keys = [[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]], [[0.9, 0.2], [-1.0, 0.4], [0.0, 0.7]]]
    return TokenProblem.of(keys, [1, 1], scores=[[1.0, 1.0, 0.0], [1.0, 0.3, 0.1]])


def repeated_problem() -> TokenProblem:
    """An input that holds the same token twice, and one that does not."""
    keys = [[[0.9, 0.3], [0.9, 0.3], [-0.5, 0.6]], [[0.2, -0.9], [-0.4, 0.2], [-0.5, 0.6]]]
    return TokenProblem.of(keys, [1, 1], scores=[[0.8, 0.8, 0.1], [0.7, 0.3, 0.1]])


STORIES = (
    Story("one", "One input of three tokens; the two others score alike (Figure 1a)", figure1a, (0.0, -1.0)),
    Story("two", "The same places, other scores (Figure 1b)", figure1b, (0.0, -1.0)),
    Story("three", "Two inputs of four tokens: three places to settle", three_limits, (-0.3, 0.6)),
    Story("eight", "Two inputs of two tokens: two places to settle (Figure 8)", figure8, (0.5, -0.3)),
    Story("ties", "Two inputs; A1 and A2 score alike", tied_problem, (-0.5, 0.4)),
    Story("twice", "Two inputs; A1 and A2 are the same token", repeated_problem, (-0.4, -0.6)),
    Story("bent", "Two inputs; A2 scores four times as much as B2 (Figure 5)", lambda: figure5(4.0)),
    Story("seven", "Three inputs of seven tokens (Figure 1c)", figure1c, (-1.0, 0.0)),
    Story("random", "Four inputs of six random tokens (Figure 9)", lambda: figure9(2, rng=np.random.default_rng(0))),
)
