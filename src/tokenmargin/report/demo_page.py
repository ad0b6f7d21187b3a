"""The page of the demonstration: the problem, its limits, and where each start went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenmargin.experiments import Result
from tokenmargin.report.figures import draw
from tokenmargin.report.page import Section, findings_table, inline_svg, page_table, write_page

NEXT = """\
tokenmargin solve three-limits --select A1,B1   # one certified direction
tokenmargin evolve fig1b --start 0,-1,0         # a start that reaches a local limit
tokenmargin reproduce fig3b                     # a figure of the paper, expected beside measured
tokenmargin --help"""


WHAT = {
    "explore.html": "See attention choose: drag tokens, starts and scores in this picture",
    "report.html": "The same for words: a classifier of short reviews, and how far to trust it",
}


def write_demo_page(result: Result, path: Path, *, counts: dict[str, int], pages: Sequence[str] = ()) -> Path:
    """Write the demonstration's page and return its path; `pages` are those beside it."""
    tokens, limits, directions = (result.tables[name] for name in ("tokens", "limits", "directions"))
    figure = draw(result)
    assert figure is not None, "the demonstration has a drawing"
    picture = Section(
        "Twelve starts, three places to settle",
        (
            "Left: training moves p from each ring to infinity, the rim; its colour is the certified direction it "
            "reaches. Right: its angle to that direction falls like one over its norm.",
        ),
        svg=inline_svg(figure, "demo"),
        links=[(name, WHAT[name]) for name in pages if name in WHAT],
    )
    atlas = Section(
        "Where can it converge?",
        (
            f"There are {counts['all']} ways to pick one token per input. {counts['infeasible']} of them no direction "
            "can pick: a combination of the constraints is proven to be zero. "
            f"{counts['limits']} are locally optimal: descent that starts near one of these directions converges to it "
            "(Theorem 3). GMM is the globally optimal one, LMM a locally optimal one; A1 is the first token of the "
            "first input.",
        ),
        tables=(page_table(directions, ("direction", "selected", "x", "y", "margin", "residual")),),
    )
    runs = Section(
        "Where did it converge?",
        ("Normalised gradient descent from a ring of starts, and the angle of each run to its certified direction.",),
        tables=(
            page_table(limits, ("start_x", "start_y", "selected", "limit", "angle", "cosine", "norm")),
            findings_table(result),
        ),
    )
    problem = Section(
        "The problem",
        (
            "Each input is a handful of tokens in the plane. Attention gives token t of input i the weight "
            "softmax(<k_it, p>), and training moves p to lower the loss. A star marks the token of highest score.",
        ),
        tables=(page_table(tokens, ("name", "x", "y", "score", "optimal")),),
    )
    return write_page(
        path,
        title="Attention selects tokens with a margin",
        lead=result.experiment.title + ".",
        sections=(picture, atlas, runs, problem, Section("What to try next", code=NEXT)),
        command="tokenmargin demo",
    )
