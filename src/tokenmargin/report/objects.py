"""Drawings of what users hold: problems, paths, atlases, limits and basins; `item.plot()` leads here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy import ndarray as Array

from tokenmargin.dynamics import FlowPath, Trajectory
from tokenmargin.experiments import Table
from tokenmargin.limits import Basins, Limit
from tokenmargin.margin import Atlas, LimitDirection, atlas, is_planar, limit_direction
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.report.planes import Disc
from tokenmargin.report.style import (
    GLOBAL,
    LIMIT_COLOURS,
    MUTED,
    ONE,
    draw_angles,
    draw_tokens,
    finish_plane,
    legend_below,
    paper_style,
    settle_names,
)
from tokenmargin.selection import angle, optimal_tokens, selection_text

MOST_BARS = 20
MOST_SOLVED = 1000
"""Max-margin problems solved, at most, to give the limits of a problem in the plane their colours."""


def plot(item: Any, ax: Axes | None = None, **settings: Any) -> Axes:
    """Draw an object into axes, or into a new figure that pyplot shows; returns the axes."""
    with paper_style():
        if ax is not None:
            draw_object(item, ax, **settings)
            return ax
        figure = plt.figure(figsize=ONE, layout="constrained")
        try:
            draw_object(item, figure.add_subplot(), **settings)
            settle_names(figure)
        except BaseException:  # an empty figure would be shown with the next one
            plt.close(figure)
            raise
        return figure.axes[0]


@singledispatch
def draw_object(item: Any, ax: Axes) -> None:
    """Draw into axes, by the kind of object."""
    raise TypeError(f"there is no drawing of a {type(item).__name__}")


@draw_object.register
def _(item: TokenProblem, ax: Axes) -> None:
    """Tokens in the plane, or in the two directions along which they vary most."""
    tokens, names = _tokens_in_plane(item)
    draw_tokens(ax, tokens)
    finish_plane(ax, np.stack([tokens["x"], tokens["y"]], axis=1), names=names)


@draw_object.register
def _(item: Trajectory, ax: Axes) -> None:
    if "point" not in item.kept:
        raise ValueError("plot needs the points of the path: evolve(..., keep=('point',))")
    points = item["point"].reshape(len(item.at), -1, item.final.shape[-1])
    prompts = item.objective.prompt(points)
    _draw_paths(item.objective.problem, [prompts[:, run] for run in range(prompts.shape[1])], ax)


@draw_object.register
def _(item: FlowPath, ax: Axes, *, samples: int = 400) -> None:
    arcs = np.unique(np.concatenate([[0.0], np.geomspace(1e-3 * min(1.0, item.arcs[-1]), item.arcs[-1], samples)]))
    _draw_paths(item.objective.problem, [item.objective.prompt(item(arcs))], ax)


@draw_object.register
def _(item: Limit, ax: Axes) -> None:
    draw_object(item.path, ax)


@draw_object.register
def _(item: Atlas, ax: Axes) -> None:
    """The directions in the disc where they lie in a plane, else their margins as bars."""
    vectors = [limit.solution.vector for limit in item.limits]
    if vectors and len(vectors[0]) >= 2 and not any(vector[2:].any() for vector in vectors):
        disc = Disc.on(ax, {"x": np.ones(1), "y": np.zeros(1)})
        for limit, colour in zip(item.limits, _colours(item.limits), strict=True):
            disc.ray(limit.solution.vector[:2], colour=colour, label=_title(limit))
        legend_below(ax, columns=1)
        return
    shown = item.limits[:MOST_BARS]
    place = np.arange(len(shown))
    ax.barh(place, [limit.solution.margin for limit in shown], color=_colours(shown), height=0.7)
    ax.set_yticks(place, [f"{limit.kind} {_short(selection_text(limit.chosen))}" for limit in shown])
    ax.invert_yaxis()
    ax.set_xlabel(r"margin $1/\|p^{mm}\|$")


@draw_object.register
def _(item: Basins, ax: Axes) -> None:
    """A map where the starts are a grid of the plane, else a bar a basin with its interval."""
    colours = _colours([basin.named for basin in item.basins], item.runs.problems[0])
    side = round(len(item.labels) ** 0.5)
    if side > 2 and side**2 == len(item.labels) and _is_grid(item.starts, side):
        draw_map(item, ax, colours)
        return
    place = np.arange(len(item.basins))
    shares = np.array([basin.share for basin in item.basins])
    ends = np.array([basin.interval for basin in item.basins]).reshape(-1, 2)
    off = np.stack([shares - ends[:, 0], ends[:, 1] - shares])
    ax.barh(place, shares, color=colours, xerr=np.maximum(off, 0), height=0.7, error_kw={"lw": 0.8})
    ax.set_yticks(place, [f"{basin.kind} {_short(selection_text(basin.named.chosen))}" for basin in item.basins])
    ax.invert_yaxis()
    ax.set_xlabel("share of the starts")


def draw_map(basins: Basins, ax: Axes, colours: list[str]) -> None:
    """A square grid of starts, coloured by the limit they reach."""
    side = round(len(basins.labels) ** 0.5)
    across, up = (basins.starts[:, axis].reshape(side, side) for axis in (0, 1))
    shades = np.array([to_rgb("#d9d9d9"), *map(to_rgb, colours)])[basins.labels.reshape(side, side) + 1]
    step = across[0, 1] - across[0, 0]
    box = (across.min() - step / 2, across.max() + step / 2, up.min() - step / 2, up.max() + step / 2)
    ax.imshow(1 - 0.55 * (1 - shades), origin="lower", extent=box, interpolation="nearest")
    for basin, colour in zip(basins.basins, colours, strict=True):
        name = f"{basin.kind} {selection_text(basin.named.chosen)}: {100 * basin.share:.0f}%"
        ax.scatter([], [], marker="s", color=colour, alpha=0.55, label=name)
    if basins.unsettled:
        ax.scatter([], [], marker="s", color="#d9d9d9", label=f"bounded or unsettled: {100 * basins.unsettled:.0f}%")
    ax.set(aspect="equal", xlabel=r"start, first coordinate", ylabel="start, second coordinate")
    legend_below(ax, columns=2)


def _draw_paths(problem: TokenProblem, paths: list[Float[Array, "k D"]], ax: Axes) -> None:
    """Paths of p coloured by their limit: in the disc where the keys lie in the plane, else angle against norm."""
    ends = [limit_direction(problem, problem.keys.logits(points[-1]).argmax(axis=-1)) for points in paths]
    limits = list({limit.chosen.tobytes(): limit for limit in ends}.values())
    colour = {limit.chosen.tobytes(): shade for limit, shade in zip(limits, _colours(limits, problem), strict=True)}
    if is_planar(problem):
        tokens, _ = _tokens_in_plane(problem)
        disc = Disc.on(ax, tokens)
        for points, limit in zip(paths, ends, strict=True):
            disc.path(points[:, :2], colour=colour[limit.chosen.tobytes()])
        for limit in limits:
            if limit.solution.is_optimal:
                disc.ray(limit.solution.vector[:2], colour=colour[limit.chosen.tobytes()], label=_title(limit))
        disc.tokens(tokens)
        legend_below(ax, columns=2)
        return
    courses: list[tuple[Array, Array, str, str | None]] = []
    for points, limit in zip(paths, ends, strict=True):
        if limit.solution.is_optimal:
            norms = problem.keys.norm(points)
            off = angle(problem.keys, points, np.broadcast_to(limit.solution.vector, points.shape))
            courses.append((norms, np.nan_to_num(off), colour[limit.chosen.tobytes()], _title(limit)))
    if not courses:
        raise ValueError("the path has no certified direction to be compared with, and its keys are not in the plane")
    draw_angles(ax, courses)


def _colours(limits: Sequence[LimitDirection], problem: TokenProblem | None = None) -> list[str]:
    """The GMM has the first colour, the others follow by margin: among all limits of a problem in the plane."""
    every = atlas(problem, budget=MOST_SOLVED).limits if problem is not None and is_planar(problem) else limits
    ranked = sorted((one for one in every if one.is_limit and not one.is_global), key=lambda one: -one.solution.margin)
    shades = {one.chosen.tobytes(): LIMIT_COLOURS[1 + k % (len(LIMIT_COLOURS) - 1)] for k, one in enumerate(ranked)}
    return [GLOBAL if one.is_global else shades.get(one.chosen.tobytes(), MUTED) for one in limits]


def _title(limit: LimitDirection) -> str:
    return f"{limit.kind} {_short(selection_text(limit.chosen))}, margin {limit.solution.margin:.3g}"


def _short(names: str) -> str:
    return names if len(names) <= 24 else f"{names[:24]}..."


def _is_grid(starts: Float[Array, "k D"], side: int) -> bool:
    if starts.shape[1] < 2 or starts[:, 2:].any():
        return False
    across, up = (starts[:, axis].reshape(side, side) for axis in (0, 1))
    return bool((across == across[0]).all() and (up == up[:, :1]).all())


def _tokens_in_plane(problem: TokenProblem) -> tuple[Table, tuple[str, str]]:
    """Places of the tokens: their two coordinates, or the two principal ones of the keys."""
    inputs, positions = np.nonzero(problem.mask)
    if is_planar(problem):
        assert isinstance(problem.keys, Coordinates), "planar keys have coordinates"
        places = problem.keys.tokens[problem.mask][:, :2]
        names = ("first coordinate of the keys", "second coordinate")
    else:
        places = _principal(problem)
        names = ("first principal direction of the keys", "second principal direction")
    best = optimal_tokens(problem)[problem.mask]
    table = {
        "input": inputs, "token": positions, "x": places[:, 0], "y": places[:, 1],
        "score": problem.scores[problem.mask], "optimal": best,
    }  # fmt: skip
    return table, names


def _principal(problem: TokenProblem) -> Float[Array, "m 2"]:
    """The two coordinates along which the tokens vary most, from their inner products alone."""
    rows = problem.keys.index[problem.mask]
    used, place = np.unique(rows, return_inverse=True)
    inner = problem.keys.project(problem.keys.combine(np.eye(problem.keys.n_vectors)[used]))[:, used]
    middle = np.eye(len(used)) - 1 / len(used)
    values, vectors = np.linalg.eigh(middle @ inner @ middle)
    coordinates = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    two = np.hstack([coordinates, np.zeros((len(used), 1))])[:, :2]  # one token alone has a single coordinate
    return np.asarray(two[place])
