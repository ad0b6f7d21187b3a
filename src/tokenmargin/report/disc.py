"""The disc of the pages, for print: tokens on a linear scale, prompts with infinity at the rim, colours by limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from numpy import ndarray as Array

from tokenmargin.experiments import Table
from tokenmargin.report.style import INK, MUTED, draw_tokens

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
        """A path of p, with a ring at its start; arrow heads where a third and two thirds of it are drawn."""
        drawn = self.place(points)
        self.ax.plot(*drawn.T, color=colour, linewidth=1.0, alpha=0.9, zorder=3)
        self.ax.plot(*drawn[0], marker="o", color="white", markeredgecolor=colour, markersize=3.5, zorder=5)
        lengths = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(drawn, axis=0).T))])
        for share in (0.35, 0.75):
            k = int(np.clip(np.searchsorted(lengths, share * lengths[-1]), 1, len(drawn) - 1))
            arrow = {"arrowstyle": "-|>", "color": colour, "lw": 0.8, "mutation_scale": 7}
            self.ax.annotate("", drawn[k], drawn[k - 1], arrowprops=arrow, zorder=3)
