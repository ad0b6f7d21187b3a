"""Drawings of how much room paper A's dimensions leave."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from tokenmargin.experiments import Result
from tokenmargin.report.style import LIMIT_COLOURS

COLOURS = (LIMIT_COLOURS[1], LIMIT_COLOURS[2], LIMIT_COLOURS[0], LIMIT_COLOURS[3])


def draw_sharpness(result: Result, ax: Axes) -> None:
    """Dimension needed and dimension asked for, per size of the corpus and of the first step."""
    table = result.tables["sharpness"]
    labels = [f"n={n} T={T}\n$\\eta_0$={eta:g}" for n, T, eta in zip(table["n"], table["T"], table["eta"], strict=True)]
    at = np.arange(len(labels))
    ax.scatter(at, table["needed"], color=COLOURS[0], marker="o", label="holds in 95% of draws", zorder=3)
    ax.scatter(at, table["asked"], color=COLOURS[2], marker="^", label="asked for by (10)", zorder=3)
    for x, low, high in zip(at, table["needed"], table["asked"], strict=True):
        ax.plot([x, x], [low, high], color="#8a8a8a", linewidth=0.8)
    ax.set(yscale="log", ylabel="dimension d", xticks=at)
    ax.set_xticklabels(labels, fontsize=6.5)
    ax.legend()


def draw_first_step_error(result: Result, ax: Axes) -> None:
    """The error per unit of step over dimensions, and the bound."""
    table = result.tables["errors"]
    sizes = sorted({(int(n), int(T)) for n, T in zip(table["n"], table["T"], strict=True)})
    for colour, (n, T) in zip(COLOURS, sizes, strict=False):
        here = (table["n"] == n) & (table["T"] == T)
        ax.plot(table["d"][here], table["median"][here], ".-", color=colour, linewidth=1, label=f"n={n} T={T}, median")
    ax.plot(table["d"][here], table["bound"][here], "--", color="#000000", linewidth=1, label="bound $11 d^{-1/4}$")
    ax.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="largest error / $\\eta_0$")
    ax.legend()
