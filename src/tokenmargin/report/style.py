"""What all drawings share: one style for print, colours of directions, tokens, paths with arrows, angles by norm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure, SubFigure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import BboxBase
from numpy import ndarray as Array

from tokenmargin.experiments import Table
from tokenmargin.problem.names import token_name

ONE, TWO = (3.25, 3.05), (6.75, 3.55)
"""Inches: a column of a two-column page, and the whole width."""

# Okabe and Ito's palette, distinct to colour-blind readers, two of them darkened for lines on white. A colour means a
# direction: the globally optimal one has the first, here and on every page.
LIMIT_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#B58900", "#3A95CC")
GLOBAL, LOCAL, RELAXED, MUTED, INK = *LIMIT_COLOURS[:3], "#8a8a8a", "#1d2327"
MOST_SCORES = 6  # tokens that have room for their scores beside them
MOST_NAMES = 16  # ... and for their names
NAME = "token name"  # marks the names of tokens among the texts of a drawing
HALO = [withStroke(linewidth=2, foreground="white")]  # so that names can be read over lines

PAPER: Any = MappingProxyType(
    {
        "font.family": "STIXGeneral",
        "mathtext.fontset": "stix",
        "font.size": 8.0,
        "axes.labelsize": 8.0,
        "axes.titlesize": 8.0,
        "xtick.labelsize": 7.0,
        "ytick.labelsize": 7.0,
        "legend.fontsize": 7.0,
        "axes.linewidth": 0.6,
        "axes.prop_cycle": cycler(color=LIMIT_COLOURS),
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "lines.linewidth": 1.1,
        "legend.frameon": False,
        "pdf.fonttype": 42,  # TrueType: a journal's checks and every editor read the text
        "ps.fonttype": 42,
        "savefig.dpi": 220,
    }
)


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """Draw in the style of the figures; matplotlib's own settings are as before afterwards."""
    with mpl.rc_context(PAPER):
        yield


def direction_colours(directions: Float[Array, "k 2"], kinds: Sequence[str], asked: Float[Array, "m 2"]) -> list[str]:
    """The colours of directions asked for: those of the listed ones they are, the GMM first, the others in order."""
    others = iter(LIMIT_COLOURS[1:] * len(kinds))
    known = [GLOBAL if kind == "GMM" else next(others) for kind in kinds]
    units, wanted = (
        rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300) for rows in (directions, asked)
    )
    near = wanted @ units.T if len(units) else np.zeros((len(asked), 0))
    # Certified directions differ by far more than rounding; the same one solved twice agrees to 1e-10.
    return [known[int(row.argmax())] if row.size and row.max() > 1 - 1e-9 else MUTED for row in near]


def panels(ax: Axes, count: int, widths: Sequence[float] | None = None) -> list[Axes]:
    """Divide axes into panels beside each other; the first is `ax` itself."""
    spec, figure = ax.get_subplotspec(), ax.figure
    if spec is None or not isinstance(figure, Figure | SubFigure):
        raise ValueError("this drawing divides its axes: give axes made by add_subplot")
    parts = spec.subgridspec(1, count, width_ratios=widths)
    ax.set_subplotspec(parts[0])
    return [ax, *(figure.add_subplot(parts[k]) for k in range(1, count))]


def draw_tokens(ax: Axes, tokens: Table, *, scores: bool = True) -> None:
    """Tokens with their names: a star for the optimal one, a square for a locally optimal one; rings where several
    coincide. Colours are left to directions."""
    places = np.stack([tokens["x"], tokens["y"]], axis=1)
    local = tokens.get("local", np.zeros(len(places), dtype=bool))
    beside = scores and len(places) <= MOST_SCORES
    written: set[tuple[float, ...]] = set()
    for k, place in enumerate(places):
        below = int((places[:k] == place).all(axis=1).sum())  # how many lie at the same place already
        marker, size = ("*", 90.0) if tokens["optimal"][k] else ("s", 26.0) if local[k] else ("o", 20.0)
        face = INK if tokens["optimal"][k] else MUTED if local[k] else "white"
        ax.scatter(
            place[0], place[1], s=size * (1 + 1.6 * below), marker=marker, facecolors="none" if below else face,
            edgecolors=INK, linewidths=0.8, zorder=4,
        )  # fmt: skip
        if len(places) <= MOST_NAMES and tuple(place) not in written:
            written.add(tuple(place))
            _write_name(ax, tokens, (places == place).all(axis=1), places, scores=beside)
    _name_markers(ax, tokens, local, scores=scores and not beside)


def _write_name(ax: Axes, tokens: Table, here: Bool[Array, " m"], places: Float[Array, "m 2"], *, scores: bool) -> None:
    """The names of the tokens at a place, on the side away from the middle of all, with their scores."""
    names = ", ".join(
        token_name(i, t) for i, t in zip(tokens["input"][here].tolist(), tokens["token"][here].tolist(), strict=True)
    )
    if scores:
        names += rf": $\gamma={', '.join(dict.fromkeys(f'{score:g}' for score in tokens['score'][here]))}$"
    place, others = places[here][0], places[~here]
    # Away from the nearest neighbours: what is near pushes by the inverse square of its distance.
    off = place - (others if len(others) else place - np.array([[1.0, 1.0]]))
    push = (off / np.sum(off**2, axis=1, keepdims=True) ** 1.5).sum(axis=0)
    name = ax.annotate(
        names, place, xytext=(0, 0), textcoords="offset points", fontsize=7, zorder=6, path_effects=HALO, gid=NAME
    )
    _turn_name(name, np.arctan2(push[1], push[0]))


def _turn_name(name: Annotation, angle: float) -> None:
    """Put a name on one side of its place."""
    x, y = np.cos(angle), np.sin(angle)
    name.xyann = 6 * x, 6 * y
    name.set_horizontalalignment("left" if x > 0.4 else "right" if x < -0.4 else "center")
    name.set_verticalalignment("bottom" if y > 0.4 else "top" if y < -0.4 else "center")


def settle_names(figure: Figure) -> None:
    """Turn every name of a token to where it covers least: within the frame, off paths, tokens and other names.

    To be called once all is drawn. A name that covers nothing where it is stays there.
    """
    figure.draw_without_rendering()
    for ax in figure.axes:
        names = [one for one in ax.texts if isinstance(one, Annotation) and one.get_gid() == NAME]
        if not names:
            continue
        frame = ax.get_window_extent()
        lines = [ax.transData.transform(_points_along(np.asarray(line.get_xydata(), dtype=float))) for line in ax.lines]
        marks = [_points_around(ax, cloud) for cloud in ax.collections]
        drawn = np.concatenate([*lines, *marks, np.zeros((0, 2))])

        for name in names:
            first = float(np.arctan2(name.xyann[1], name.xyann[0]))
            turns = first + np.pi / 4 * np.array([0, 1, -1, 2, -2, 3, -3, 4])
            costs = []
            for turn in turns:
                _turn_name(name, turn)
                costs.append(_cost_of_place(name, names, drawn, frame))
            _turn_name(name, turns[int(np.argmin(costs))])


def _cost_of_place(name: Annotation, names: Sequence[Annotation], drawn: Float[Array, "k 2"], frame: BboxBase) -> float:
    """How much a name covers where it is: points that are drawn, other names, and what is beyond the frame."""
    box = name.get_window_extent()
    (left, low), (right, high) = box.padded(1.0).get_points()
    inside = (drawn > (left, low)).all(axis=1) & (drawn < (right, high)).all(axis=1)
    others = sum(box.overlaps(other.get_window_extent()) for other in names if other is not name)
    outside = box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
    return float(inside.sum() + 100 * others + 1000 * outside)


def _points_around(ax: Axes, cloud: Collection) -> Float[Array, "m 2"]:
    """Points about the marks of a cloud, as large as these are drawn."""
    sizes = np.sqrt(np.atleast_1d(getattr(cloud, "get_sizes", lambda: 20.0)())) / 2 * ax.figure.dpi / 72
    turns = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    ring = float(sizes.max(initial=1.0)) * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    middles = ax.transData.transform(np.asarray(cloud.get_offsets()))
    return (middles[:, None] + ring).reshape(-1, 2)


def _points_along(points: Float[Array, "k 2"]) -> Float[Array, "m 2"]:
    """Points along a line, so close that none of its stretches is missed by a name."""
    if len(points) < 2:
        return points
    shares = np.linspace(0, 1, max(2, 400 // len(points)))[:, None, None]
    return (points[:-1] + shares * np.diff(points, axis=0)).reshape(-1, 2)


def _name_markers(ax: Axes, tokens: Table, local: Bool[Array, " m"], *, scores: bool) -> None:
    """Entries of the legend for the shapes that occur, with their scores where these are not beside the tokens."""
    for marker, name, face, here in (
        ("*", "optimal token", INK, tokens["optimal"]),
        ("s", "locally optimal", MUTED, local & ~tokens["optimal"]),
        ("o", "other token", "white", ~tokens["optimal"] & ~local),
    ):
        if here.any():
            values = sorted(set(tokens["score"][here].tolist()))
            listed = scores and len(values) <= 2
            label = rf"{name}, $\gamma={', '.join(f'{value:g}' for value in values)}$" if listed else name
            size = 50 if marker == "*" else 20
            ax.scatter([], [], marker=marker, facecolors=face, edgecolors=INK, linewidths=0.8, s=size, label=label)


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


def draw_path(
    ax: Axes, points: Float[Array, "k 2"], *, colour: str, label: str | None = None, arrow: float | None = None
) -> None:
    """A path with a ring at its start and arrow heads along it, by length as drawn; `arrow` is the size of these."""
    ax.plot(*points.T, color=colour, linewidth=1, alpha=0.9, label=label, zorder=3)
    ax.plot(*points[0], marker="o", color="white", markeredgecolor=colour, markersize=4, zorder=5)
    look = {"arrowstyle": "-|>", "color": colour, "lw": 1} | ({} if arrow is None else {"mutation_scale": arrow})
    lengths = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    for share in (0.35, 0.8):
        k = int(np.clip(np.searchsorted(lengths, share * lengths[-1]), 1, len(points) - 1))
        ax.annotate("", points[k], points[k - 1], arrowprops=look, zorder=3)


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
    ax.set_ylim(bottom=max(1e-13, 0.1 * min(ends) / reached))  # below that it is rounding

    def two_or_five(value: float, _: int) -> str:
        """The label of a minor tick where little more than a power of ten is shown, whatever is drawn after this."""
        low, high = ax.get_xlim()
        return f"{value:g}" if high < 20 * low and f"{value:.0e}"[0] in "25" else ""

    ax.xaxis.set_minor_formatter(FuncFormatter(two_or_five))
    legend_below(ax, columns=2)


def finish_plane(
    ax: Axes, shown: Float[Array, "m 2"], *, names: tuple[str, str] = ("first coordinate", "second coordinate")
) -> None:
    """A window that fits what is shown, with equal scales, and a legend of distinct entries."""
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, half = (low + high) / 2, 0.62 * float((high - low).max()) or 1.0  # one token alone has no extent
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
