"""What all drawings share: colours, panels, tokens, paths with arrows, angles against norms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import NullFormatter
from numpy import ndarray as Array

from tokenmargin.experiments import Table

__all__ = [
    "GLOBAL",
    "INPUT_COLOURS",
    "LOCAL",
    "MUTED",
    "RELAXED",
    "colour_of",
    "draw_angles",
    "draw_hyperplane",
    "draw_path",
    "draw_ray",
    "draw_tokens",
    "finish_plane",
    "legend_below",
    "panels",
]

# Okabe and Ito's palette: distinct to colour-blind readers.
INPUT_COLOURS = ("#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#0072B2", "#D55E00")
GLOBAL, LOCAL, RELAXED, MUTED = "#D55E00", "#0072B2", "#009E73", "#8a8a8a"
MOST_SCORES = 6  # tokens that have room for their scores beside them


def colour_of(kind: str) -> str:
    """The colour of a direction by what it is."""
    return {"GMM": GLOBAL, "LMM": LOCAL}.get(kind, MUTED)


def panels(ax: Axes, count: int, widths: Sequence[float] | None = None) -> list[Axes]:
    """Divide axes into panels beside each other; the first is `ax` itself."""
    spec, figure = ax.get_subplotspec(), ax.figure
    if spec is None or not isinstance(figure, Figure | SubFigure):
        raise ValueError("this drawing divides its axes: give axes made by add_subplot")
    parts = spec.subgridspec(1, count, width_ratios=widths)
    ax.set_subplotspec(parts[0])
    return [ax, *(figure.add_subplot(parts[k]) for k in range(1, count))]


def draw_tokens(ax: Axes, tokens: Table, *, scores: bool = True) -> None:
    """Tokens by input: a star for the optimal one, a square for a locally optimal one; rings where several coincide."""
    places = np.stack([tokens["x"], tokens["y"]], axis=1)
    local = tokens.get("local", np.zeros(len(places), dtype=bool))
    beside = scores and len(places) <= MOST_SCORES
    written: set[tuple[float, ...]] = set()
    for k, place in enumerate(places):
        below = int((places[:k] == place).all(axis=1).sum())  # how many lie at the same place already
        marker, size = ("*", 150.0) if tokens["optimal"][k] else ("s", 50.0) if local[k] else ("o", 34.0)
        colour = INPUT_COLOURS[int(tokens["input"][k]) % len(INPUT_COLOURS)]
        ax.scatter(
            place[0], place[1], s=size * (1 + 1.6 * below), marker=marker, facecolors="none" if below else colour,
            edgecolors=colour if below else "white", linewidths=1.4 if below else 0.5, zorder=4,
        )  # fmt: skip
        if beside and tuple(place) not in written:
            written.add(tuple(place))
            here = (places == place).all(axis=1)
            values = ", ".join(dict.fromkeys(f"{score:g}" for score in tokens["score"][here]))
            ax.annotate(rf"$\gamma={values}$", place, xytext=(7, -11), textcoords="offset points", fontsize=7, zorder=6)
    _name_markers(ax, tokens, local, scores=scores and not beside)


def _name_markers(ax: Axes, tokens: Table, local: Bool[Array, " m"], *, scores: bool) -> None:
    """Entries of the legend for the shapes that occur, with their scores where these are not beside the tokens."""
    for marker, name, here in (
        ("*", "optimal token", tokens["optimal"]),
        ("s", "locally optimal", local & ~tokens["optimal"]),
        ("o", "other token", ~tokens["optimal"] & ~local),
    ):
        if here.any():
            values = sorted(set(tokens["score"][here].tolist()))
            listed = scores and len(values) <= 2
            label = rf"{name}, $\gamma={', '.join(f'{value:g}' for value in values)}$" if listed else name
            ax.scatter([], [], marker=marker, color=MUTED, s=60 if marker == "*" else 30, label=label)


def draw_ray(ax: Axes, x: float, y: float, *, colour: str, label: str, reach: float) -> None:
    """A direction as a dashed ray from the origin."""
    scale = reach / np.hypot(x, y)
    ax.plot([0, scale * x], [0, scale * y], linestyle="--", color=colour, linewidth=1.6, label=label, zorder=2)


def draw_hyperplane(ax: Axes, x: float, y: float, level: float, *, reach: float) -> None:
    """The line on which a direction has a level, grey and dotted."""
    normal = np.array([x, y]) / np.hypot(x, y)
    along = np.array([-normal[1], normal[0]])
    ends = normal * level / np.hypot(x, y) + np.outer([-reach, reach], along)
    ax.plot(*ends.T, linestyle=":", color=MUTED, linewidth=1.4, label="separating hyperplane", zorder=1)


def draw_path(ax: Axes, points: Float[Array, "k 2"], *, colour: str, label: str | None = None) -> None:
    """A path with a dot at its start and arrow heads along it, evenly by length within the window it is drawn in."""
    ax.plot(*points.T, color=colour, linewidth=1, alpha=0.9, label=label, zorder=3)
    ax.plot(*points[0], marker="o", color="white", markeredgecolor=colour, markersize=4, zorder=5)
    lengths = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    for share in (0.35, 0.8):
        k = int(np.clip(np.searchsorted(lengths, share * lengths[-1]), 1, len(points) - 1))
        ax.annotate("", points[k], points[k - 1], arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1}, zorder=3)


def draw_angles(ax: Axes, courses: Sequence[tuple[Array, Array, str, str | None]]) -> None:
    """Angle to the limit against the norm, with a line of slope -1; a course is norms, angles, colour and name."""
    ends = []
    for norms, angles, colour, name in courses:
        seen = (norms > 0) & (angles > 0)
        ax.plot(norms[seen], angles[seen], color=colour, linewidth=1, label=name)
        ends.append(float(norms[seen][-1] * angles[seen][-1]))
    reached = max(float(norms[-1]) for norms, *_ in courses)
    guide = np.array([reached / 10, reached])
    ax.plot(guide, 2 * max(ends) / guide, color=MUTED, linestyle=":", linewidth=1.2, label="slope $-1$")
    ax.set(xscale="log", yscale="log", xlabel=r"norm $\|p\|$", ylabel="angle to the limit (rad)")
    # Where a path crosses its ray the angle dips to zero; the window keeps to what it is at the end.
    ax.set_ylim(bottom=max(1e-4, 0.1 * min(ends) / reached))
    ax.xaxis.set_minor_formatter(NullFormatter())
    legend_below(ax, columns=2)


def finish_plane(
    ax: Axes, shown: Float[Array, "m 2"], *, names: tuple[str, str] = ("first coordinate", "second")
) -> None:
    """A window that fits what is shown, with equal scales, and a legend of distinct entries."""
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, half = (low + high) / 2, 0.62 * float((high - low).max())
    ax.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    ax.set(aspect="equal", xlabel=names[0], ylabel=names[1])
    legend_below(ax, columns=2)


def legend_below(ax: Axes, *, columns: int) -> None:
    """Distinct entries under the axes, where they hide nothing."""
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    ax.legend(
        unique.values(), unique.keys(), fontsize=7, frameon=False, ncols=columns, loc="upper center",
        bbox_to_anchor=(0.5, -0.16), columnspacing=1.2, handlelength=1.8,
    )  # fmt: skip
