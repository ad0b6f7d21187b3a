"""Drawings of the results of our own: constants of a limit."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from tokenmargin.experiments import Result
from tokenmargin.report.style import INK, LIMIT_COLOURS, MUTED

__all__ = ["draw_constants"]


def draw_constants(result: Result, ax: Axes) -> None:
    """Angle times norm: flow solid, regularisation path dotted, the closed forms as levels."""
    curves = result.tables["curves"]
    for j, name in enumerate(list(dict.fromkeys(curves["problem"].tolist()))[: len(LIMIT_COLOURS)]):
        here, colour = curves["problem"] == name, LIMIT_COLOURS[j]
        ax.plot(curves["norm"][here], curves["flow"][here], color=colour, label=name)
        ax.plot(curves["norm"][here], curves["path"][here], color=colour, linestyle=":")
        for column in ("closed_form", "closed_form_flow"):
            ax.axhline(curves[column][here][0], color=MUTED, linewidth=0.6, zorder=0)
    ax.plot([], [], color=INK, label="gradient flow")
    ax.plot([], [], color=INK, linestyle=":", label="regularisation path")
    ax.plot([], [], color=MUTED, linewidth=0.6, label="closed form")
    shown = np.concatenate([curves["closed_form"], curves["closed_form_flow"]])
    ax.set(xscale="log", xlabel=r"$\|p\|$", ylabel=r"angle to $p^{mm}$ times $\|p\|$", ylim=(0, 1.6 * shown.max()))
    ax.legend(fontsize=7, frameon=False, ncols=2)
