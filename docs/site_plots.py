"""The plots of *Measured*, drawn from the tables of its pages while the site is built: they say what those say."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokenmargin.report.style import GLOBAL, INK, LIMIT_COLOURS, LOCAL, MUTED, paper_style

HERE = Path(__file__).parent


def table(page: str, first: str) -> list[list[str]]:
    """The rows of the table of a page whose header begins with `first`, the header first."""
    lines = (HERE / page).read_text(encoding="utf-8").splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"| {first}"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("\0", "|") for cell in line.replace("\\|", "\0").split("|")[1:-1]])
    return [rows[0], *rows[2:]]


def stacked(ax: Axes, names: Sequence[str], parts: Sequence[tuple[str, Sequence[float], str]]) -> None:
    """Horizontal bars, one a name, whose parts stand one after the other; the first name is on top."""
    place, at = np.arange(len(names))[::-1], np.zeros(len(names))
    for label, sizes, colour in parts:
        ax.barh(place, sizes, left=at, color=colour, label=label, height=0.72)
        at = at + np.asarray(sizes)
    ax.set_yticks(place, [name.replace("_", " ") for name in names])
    ax.set_xlim(0, float(at.max()))


def margin(ax: Axes) -> None:
    """Of the answers of the single solver, what is proven and what is left open."""
    _, *rows = table("margin.md", "family | feasible")
    answers = np.array([[int(part) for part in row[3].split("/")] for row in rows])
    labels = ("proven optimal", "proven infeasible", "inaccurate, and says so")
    stacked(ax, [row[0] for row in rows], list(zip(labels, answers.T.tolist(), (GLOBAL, LOCAL, MUTED), strict=True)))
    ax.set_xlabel(f"problems; false answers: {sum(int(row[-1]) for row in rows)}")


def limits(ax: Axes) -> None:
    """What flows of random problems came to, by family."""
    head, *rows = table("limits.md", "family | problems")
    colours = dict(zip(head[3:9], (MUTED, LIMIT_COLOURS[4], GLOBAL, LIMIT_COLOURS[3], LOCAL, INK), strict=True))
    parts = [(name, [int(row[head.index(name)]) for row in rows], colour) for name, colour in colours.items()]
    stacked(ax, [row[0] for row in rows], parts)
    ax.set_xlabel("flows")


def theory(ax: Axes) -> None:
    """How many claims of each paper there are, and how many of them fail as printed."""
    _, *rows = table("theory.md", "claim | about")
    all_of, failing = Counter(row[0][0] for row in rows), Counter(row[0][0] for row in rows if row[-1] != "-")
    names = sorted(all_of)
    stacked(ax, [f"paper {name}" if name in "AB" else f"claims {name}" for name in names],
            [("not refuted where its hypotheses hold", [all_of[name] - failing[name] for name in names], LOCAL),
             ("fail as printed, the instance shipped", [failing[name] for name in names], GLOBAL)])  # fmt: skip
    ax.set_xlabel("claims in the table")


def classifier(ax: Axes) -> None:
    """Accuracy less that of tuned logistic regression, set by set."""
    _, *rows = table("classifier.md", "set | accuracy")
    found = [(row[0], *(float(part) for part in row[2].split("±"))) for row in rows if "±" in row[2]]
    place = np.arange(len(found))[::-1]
    ax.errorbar([one[1] for one in found], place, xerr=[one[2] for one in found], fmt="o", ms=4, color=LOCAL, lw=1)
    ax.axvline(0, color=MUTED, lw=1, ls="--")
    ax.set_yticks(place, [one[0] for one in found])
    ax.set_xlabel("points of accuracy ahead of tuned logistic regression, with 95% intervals")


def cluster(ax: Axes) -> None:
    """Megabytes on the wire a step, by method, for the largest dimension."""
    head, *rows = table("cluster.md", "d | ranks")
    wire = head.index("on the wire")
    shown = [row for row in rows if row[0] == "2048" and row[1] != "1"]
    place = np.arange(len(shown))[::-1]
    colours = [GLOBAL if "Distributed" in row[2] else LOCAL for row in shown]
    ax.scatter([float(row[wire]) for row in shown], place, color=colours, s=24)
    ax.grid(axis="y", lw=0.4)
    ax.set_yticks(place, [f"{row[2]}, {row[1]} ranks" for row in shown])
    ax.set(xscale="log", xlabel="megabytes on the wire a step, $d = 2048$")


PLOTS: dict[str, tuple[Callable[[Axes], None], float, int]] = {
    "margin": (margin, 3.4, 3),
    "limits": (limits, 2.2, 6),
    "theory": (theory, 2.1, 2),
    "classifier": (classifier, 3.3, 0),
    "cluster": (cluster, 2.0, 0),
}
"""What is drawn, its height in inches, and the columns of its legend."""


def plots() -> dict[str, bytes]:
    """The plots as SVG, by the place each has in the site."""
    found = {}
    for name, (draw, height, columns) in PLOTS.items():
        with paper_style():
            figure = Figure(figsize=(6.75, height), layout="constrained")
            ax = figure.subplots()
            draw(ax)
            if columns:
                figure.legend(loc="outside lower center", ncols=columns, frameon=False)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None})
        found[f"measured/{name}.svg"] = re.sub(rb"<!--.*?-->", b"", buffer.getvalue(), flags=re.S)
    return found
