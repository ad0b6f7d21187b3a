"""Drawings of paths in the plane: from several starts, of head and prompt together, in a cone, under two losses.

The disc is that of the pages, for print: tokens on a linear scale, prompts with infinity at the rim, colours by limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from numpy import ndarray as Array

from tokenmargin.experiments import Result, Table
from tokenmargin.report.style import (
    GLOBAL,
    INK,
    LOCAL,
    MUTED,
    direction_colours,
    draw_angles,
    draw_hyperplane,
    draw_path,
    draw_ray,
    draw_tokens,
    finish_plane,
    legend_below,
    panels,
)

NAMES = (r"first coordinate of $p$ and of the keys", r"second coordinate")


def draw_prompt_paths(result: Result, ax: Axes) -> None:
    """Tokens, the certified rays and the path of p from every start; beside it the angle to the limit by the norm."""
    tables = result.tables
    plane, angles = panels(ax, 2, (1.15, 1))
    shown = _draw_near(plane, tables)
    draw_tokens(plane, tables["tokens"])
    finish_plane(plane, shown, names=NAMES)
    draw_angles(angles, _courses(tables))
    if "flow" in tables:
        _draw_flow(angles, tables)


def draw_disc_paths(result: Result, ax: Axes) -> None:
    """Tokens, rays and whole paths in the disc whose rim is infinity; beside it the angle to the limit by the norm."""
    tables = result.tables
    paths, directions = tables["paths"], tables["directions"]
    plane, angles = panels(ax, 2, (1.15, 1))
    disc = Disc.on(plane, tables["tokens"])
    for start, colour in enumerate(_start_colours(tables)):
        here = paths["start"] == start
        disc.path(np.stack([paths["x"][here], paths["y"][here]], axis=1), colour=colour)
    for row, name, colour in _rays(directions):
        disc.ray(row, colour=colour, label=name)
    disc.tokens(tables["tokens"])
    legend_below(plane, columns=2)
    draw_angles(angles, _courses(tables))


def _rays(directions: Table) -> list[tuple[Float[Array, " 2"], str, str]]:
    """Direction, name and colour of every limit in the table."""
    rows = np.stack([directions["x"], directions["y"]], axis=1)
    kinds = directions["direction"].tolist()
    shades = direction_colours(rows, kinds, rows)
    named = directions["selected"].tolist() if "selected" in directions else [""] * len(kinds)
    return [
        (row, f"{kind} {tokens}".strip(), shade)
        for row, kind, tokens, shade in zip(rows, kinds, named, shades, strict=True)
        if kind in ("GMM", "LMM")
    ]


def _start_colours(tables: Mapping[str, Table]) -> list[str]:
    """The colour of the limit that each start reached."""
    directions, limits = tables["directions"], tables["limits"]
    known = np.stack([directions["x"], directions["y"]], axis=1)
    reached = np.stack([limits["direction_x"], limits["direction_y"]], axis=1)
    return direction_colours(known, directions["direction"].tolist(), reached)


def _draw_near(ax: Axes, tables: Mapping[str, Table]) -> Float[Array, "m 2"]:
    """Rays, hyperplane and paths around the tokens and starts; returns what the window should show."""
    tokens, limits, paths, directions = (tables[name] for name in ("tokens", "limits", "paths", "directions"))
    corners = np.stack([np.concatenate([tokens[c], limits[f"start_{c}"]]) for c in "xy"], axis=1)
    reach = 1.7 * float(np.hypot(*corners.T).max())
    shown = [corners]
    for start, (kind, colour) in enumerate(zip(limits["limit"], _start_colours(tables), strict=True)):
        here = paths["start"] == start
        points = np.stack([paths["x"][here], paths["y"][here]], axis=1)
        beyond = np.flatnonzero(paths["norm"][here] > reach)
        points = points[: beyond[0]] if beyond.size else points
        if len(points) > 1:
            draw_path(ax, points, colour=colour, label=f"paths of $p$ to the {kind}")
        shown.append(points)
    for (x, y), name, colour in _rays(directions):
        draw_ray(ax, x, y, colour=colour, label=name, reach=1.25 * reach)
        level = (
            directions["level"][(directions["x"] == x) & (directions["y"] == y)][0] if "level" in directions else np.nan
        )
        if np.isfinite(level):
            draw_hyperplane(ax, x, y, float(level), reach=reach)
    return np.concatenate(shown)


def _draw_flow(ax: Axes, tables: Mapping[str, Table]) -> None:
    """Gradient flow from the same starts goes on where the runs end, to a norm of 1e8."""
    course, last = tables["flow"], tables["limits"]["norm"]
    for start, colour in enumerate(_start_colours(tables)):
        here = (course["start"] == start) & (course["norm"] >= last[start])
        label = "gradient flow goes on"
        ax.plot(course["norm"][here], course["angle"][here], ":", color=colour, linewidth=1.2, label=label)
    ax.set_ylim(bottom=0.3 * float(course["angle"][course["norm"] > 1e7].min()))
    legend_below(ax, columns=2)


def _courses(tables: Mapping[str, Table], shade: str | None = None) -> list[tuple[Array, Array, str, str | None]]:
    paths, limits = tables["paths"], tables["limits"]
    kinds = limits["limit"].tolist()
    if len(set(zip(kinds, limits["selected"].tolist(), strict=True))) > len(set(kinds)):  # two of one kind: by tokens
        kinds = [f"{kind} {tokens}" for kind, tokens in zip(kinds, limits["selected"].tolist(), strict=True)]
    colours = _start_colours(tables) if shade is None else [shade] * len(kinds)
    courses = []
    for start, (kind, colour) in enumerate(zip(kinds, colours, strict=True)):
        here = paths["start"] == start
        name = f"to the {kind}" if colour not in colours[:start] else None
        courses.append((paths["norm"][here], paths["angle"][here], colour, name))
    return courses


def draw_joint_paths(result: Result, ax: Axes) -> None:
    """Tokens, the paths of p and v and the directions they reach; beside it their angles to these by the norm."""
    tables, relaxed = result.tables, result.experiment.figure == "fig3b"
    plane, angles = panels(ax, 2, (1.15, 1))
    paths, directions, tokens = (tables[name] for name in ("paths", "directions", "tokens"))
    reach, shown = 3.0, [np.stack([tokens["x"], tokens["y"]], axis=1)]
    for name, colour in (("p", GLOBAL), ("v", LOCAL)):
        points = np.stack([paths[f"{name}_x"], paths[f"{name}_y"]], axis=1)
        points = points[: int((paths[f"{name}_norm"] <= reach).sum())]
        draw_path(plane, points, colour=colour, label=f"path of ${name}$")
        shown.append(points)
    looks = {
        "p_mm": (MUTED if relaxed else GLOBAL, "$p^{mm}$"),
        "p_relax": (GLOBAL if relaxed else None, "$p^{relax}$"),
        "v_mm": (LOCAL, "$v^{mm}$"),
    }
    for name, x, y in zip(directions["direction"], directions["x"], directions["y"], strict=True):
        shade, label = looks[str(name)]
        if shade is not None:
            draw_ray(plane, x, y, colour=shade, label=label, reach=1.4 * reach)
    draw_tokens(plane, tokens, scores=False)
    finish_plane(plane, np.concatenate(shown), names=("first coordinate of $p$, $v$ and the tokens", NAMES[1]))
    limit = "p_relax" if relaxed else "p_mm"
    courses: list[tuple[Array, Array, str, str | None]] = [
        (paths["p_norm"], paths[f"angle_{limit}"], GLOBAL, f"$p$ to {looks[limit][1]}"),
        (paths["v_norm"], paths["angle_v_mm"], LOCAL, "$v$ to $v^{mm}$"),
    ]
    if relaxed:
        courses.append((paths["p_norm"], paths["angle_p_mm"], MUTED, "$p$ to $p^{mm}$"))
    draw_angles(angles, courses)
    angles.set_xlabel(r"norm $\|p\|$ or $\|v\|$")


def draw_cone(result: Result, ax: Axes) -> None:
    """The cone of an LMM from the norm it begins at, paths started inside; beside it the angle to its axis."""
    tables = result.tables
    plane, angles = panels(ax, 2, (1.15, 1))
    width, radius = (float(tables["cone"][name][0]) for name in ("half_width", "norm"))
    directions, paths = tables["directions"], tables["paths"]
    axis = float(np.arctan2(directions["y"][0], directions["x"][0]))
    reach, turn = 3 * radius, np.linspace(axis - width, axis + width, 60)
    edge = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    plane.fill(*np.concatenate([radius * edge, 1.6 * reach * edge[::-1]]).T, color=LOCAL, alpha=0.15, linewidth=0,
               label=rf"cone: {np.degrees(width):.1f}$^\circ$, $\|p\|\geq{radius:.1f}$")  # fmt: skip
    for start in np.unique(paths["start"]):
        here = (paths["start"] == start) & (paths["norm"] <= reach)
        points = np.stack([paths["x"][here], paths["y"][here]], axis=1)
        draw_path(plane, points, colour=LOCAL, label="paths of $p$ from $p(0)$ in the cone")
    draw_ray(plane, directions["x"][0], directions["y"][0], colour=LOCAL, label="$p^{mm}$ (LMM)", reach=1.3 * reach)
    tall = 1.15 * reach * np.tan(width)
    plane.set(xlim=(0, reach), ylim=(-tall, tall), xlabel=NAMES[0], ylabel="second coordinate (scale stretched)")
    legend_below(plane, columns=2)
    draw_angles(angles, _courses(tables, LOCAL))
    angles.axhline(width, color=LOCAL, linestyle="--", linewidth=1, label="half-width of the cone")
    angles.axvline(radius, color=LOCAL, linestyle=":", linewidth=1, label="norm it begins at")
    legend_below(angles, columns=2)


def draw_loss_bias(result: Result, ax: Axes) -> None:
    """Paths of p for growing scores under two losses, near the origin and to their ends, with their heights."""
    tables = result.tables
    paths, bias = tables["paths"], tables["bias"]
    near, far = panels(ax, 2)
    near.set_ylim(-5.6, 2.8)
    far.set_ylim(-52, 8)
    for panel, reach in ((near, 10.0), (far, float(paths["x"].max()))):
        for loss, colour in (("correlation", GLOBAL), ("logistic", LOCAL)):
            for score in np.unique(paths["score"]):
                chosen = (paths["loss"] == loss) & (paths["score"] == score) & (paths["x"] <= reach)
                shade, style = (0.25 + 0.075 * score, "-") if score <= 10 else (1.0, "--")
                panel.plot(paths["x"][chosen], paths["y"][chosen], style, color=colour, alpha=shade, linewidth=1)
                height = bias["predicted"][(bias["loss"] == loss) & (bias["score"] == score)][0]
                if panel.get_ylim()[0] < height:
                    panel.plot(reach, height, marker="<", color=colour, alpha=shade, markersize=4, clip_on=False)
        panel.axhline(0, color=MUTED, linestyle=":", linewidth=1.2)
        panel.set(xlim=(-0.12 * reach, reach), xlabel="$p_1$", ylabel="$p_2$")
    draw_tokens(near, tables["tokens"], scores=False)
    legend_below(near, columns=2)
    for colour, name in ((GLOBAL, "correlation loss"), (LOCAL, "logistic loss")):
        far.plot([], [], color=colour, label=f"{name}, $C=1,\\ldots,10$")
        far.plot([], [], color=colour, linestyle="--", label=f"{name}, $C=100$")
    far.plot([], [], color=MUTED, linestyle=":", label="$p^{mm}=(1,0)$")
    far.plot([], [], color=MUTED, marker="<", linestyle="none", markersize=4, label="height in closed form")
    legend_below(far, columns=2)


SPREAD = 0.65  # radius at which the farthest token is drawn
HALF_WAY = 2.5  # |p| that is drawn half-way to the rim, in units of one over the farthest token


@dataclass(frozen=True)
class Disc:
    """Axes with the unit disc, and the length of the farthest token."""

    ax: Axes
    farthest: float

    @classmethod
    def on(cls, ax: Axes, tokens: Table) -> Disc:
        """An empty disc for tokens with columns x and y."""
        farthest = float(np.hypot(tokens["x"], tokens["y"]).max(initial=0.0)) or 1.0
        disc = cls(ax, farthest)
        ax.add_patch(Circle((0, 0), 1.0, facecolor="none", edgecolor=INK, linewidth=0.8, zorder=1))
        for norm in (1.0, 10.0):
            radius = float(disc.radius(np.array(norm / farthest)))
            ax.add_patch(Circle((0, 0), radius, fill=False, edgecolor=MUTED, linewidth=0.4, linestyle=":", zorder=1))
            ax.text(0, -radius, rf"$\|p\|={norm / farthest:.2g}$", fontsize=5.5, color=MUTED, ha="center", va="bottom")
        ax.text(0, -1.01, r"$\|p\|=\infty$", fontsize=6, color=MUTED, ha="center", va="top")
        ax.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12), aspect="equal")
        ax.set_axis_off()
        return disc

    def radius(self, norms: Float[Array, "..."]) -> Float[Array, "..."]:
        """Where a prompt of a norm is drawn: 0 at the middle, 1 at infinity."""
        return np.asarray(norms / (norms + HALF_WAY / self.farthest))

    def place(self, points: Float[Array, "k 2"]) -> Float[Array, "k 2"]:
        """Prompts as places in the disc."""
        norms = np.linalg.norm(points, axis=1, keepdims=True)
        return np.asarray(points / (norms + HALF_WAY / self.farthest))

    def tokens(self, tokens: Table) -> None:
        """The tokens, the farthest at a fixed place."""
        scale = SPREAD / self.farthest
        draw_tokens(self.ax, {**tokens, "x": tokens["x"] * scale, "y": tokens["y"] * scale}, scores=False)

    def ray(self, direction: Float[Array, " 2"], *, colour: str, label: str) -> None:
        """A direction from the middle to the rim, with a mark at its end."""
        end = direction / np.linalg.norm(direction)
        self.ax.plot([0, end[0]], [0, end[1]], "--", color=colour, linewidth=1.1, label=label, zorder=2)
        self.ax.plot(*end, marker="o", color=colour, markersize=5, zorder=5, clip_on=False)

    def path(self, points: Float[Array, "k 2"], *, colour: str) -> None:
        """A path of p, with a ring at its start and arrow heads along it."""
        draw_path(self.ax, self.place(points), colour=colour, arrow=7)
