"""A drawing of a priority graph: components in layers, the first on top; tied tokens with their shares."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from numpy import ndarray as Array

from tokenmargin.limits.next_token import NextTokenLimit
from tokenmargin.problem.priority_graph import PriorityGraph
from tokenmargin.report.style import GLOBAL, INK, LOCAL, MUTED

MOST_WORDS = 4
"""Tokens of a component that are named; the others are counted."""


def draw_priority_graph(limit: NextTokenLimit, last: int, ax: Axes, *, most: int = 12) -> None:
    """The graph of a last token: an arrow leads from what came next to what could have, where no detour does.

    Components of several tokens are framed, with the share of each in the limit; beside each stands its logit in W_mm.
    Of more than `most` components those that most sequences speak of are drawn, and the others counted.
    """
    graph, here = limit.graph.graph_of(last), np.flatnonzero(limit.graph.last == last)
    kept = _kept(graph, most)
    rank = graph.ranks
    layers = [[c for c in kept.tolist() if rank[c] == level] for level in np.unique(rank[kept])]
    arrows = _arrows(graph, kept)
    places: dict[int, tuple[float, float]] = {}
    for height, layer in enumerate(layers):
        # Below what is ahead of them, so that few arrows cross.
        ahead = {c: [places[a][0] for a, b in arrows if b == c and a in places] for c in layer}
        layer.sort(key=lambda c: (np.mean(ahead[c]) if ahead[c] else 0.5, -graph.spoken[c]))
        places |= {c: ((k + 1) / (len(layer) + 1), -float(height)) for k, c in enumerate(layer)}
    hard, soft = limit.logits[here], limit.finite.logits[here]
    boxes = {}
    for component, (x, y) in places.items():
        members = np.flatnonzero(graph.component == component)
        logit = f"{round(float(hard[members[0]]), 2) + 0.0:+.2f}".replace("-", "\N{MINUS SIGN}")
        boxes[component] = _box(ax, _words(limit, graph, members, soft), logit, x, y, tied=len(members) > 1)
    for above, below in arrows:
        ax.annotate(
            "", places[below], xytext=places[above], zorder=1,
            arrowprops={"arrowstyle": "-|>", "color": MUTED, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 2,
                        "patchA": boxes[above], "patchB": boxes[below]},
        )  # fmt: skip
    left = len(graph.sizes) - len(kept)
    word = limit.problem.vocabulary[last]
    note = f"; {left} more components" if left else ""
    ax.set_title(f"after “{word}”: {graph.nodes} tokens, {len(graph.sizes)} components{note}", loc="left")
    ax.set(xlim=(0, 1), ylim=(-len(layers) + 0.5, 0.5))
    ax.axis("off")


def _kept(graph: PriorityGraph, most: int) -> Int[Array, " c"]:
    """The components that most edges, counted with their sequences, lead from or to."""
    return np.sort(np.argsort(-graph.spoken, kind="stable")[:most])


def _arrows(graph: PriorityGraph, kept: Int[Array, " c"]) -> list[tuple[int, int]]:
    """Pairs of drawn components in order, without those that follow from two others."""
    size = len(graph.sizes)
    place = np.full(size, -1)
    place[kept] = np.arange(len(kept))
    ahead: Bool[Array, "c c"] = np.zeros((len(kept), len(kept)), dtype=bool)
    above, below = place[graph.order[:, 0]], place[graph.order[:, 1]]
    drawn = (above >= 0) & (below >= 0)
    ahead[above[drawn], below[drawn]] = True
    reach = ahead.copy()
    for k in range(len(kept)):
        reach |= np.outer(reach[:, k], reach[k])
    detour = (reach.astype(int) @ reach.astype(int)) > 0
    return [(int(kept[a]), int(kept[b])) for a, b in np.argwhere(ahead & ~detour)]


def _words(limit: NextTokenLimit, graph: PriorityGraph, members: Int[Array, " m"], soft: Array) -> str:
    order = members[np.argsort(-soft[members], kind="stable")]
    names = [limit.problem.vocabulary[token].replace("$", r"\$") for token in graph.token[order]]
    if len(members) == 1:
        return names[0]
    shares = np.exp(soft[order] - np.logaddexp.reduce(soft[order]))
    lines = [f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True)][:MOST_WORDS]
    return "\n".join([*lines, f"and {len(names) - MOST_WORDS} more"] if len(names) > MOST_WORDS else lines)


def _box(ax: Axes, text: str, logit: str, x: float, y: float, *, tied: bool) -> FancyBboxPatch:
    drawn = ax.text(
        x, y, text, ha="center", va="center", color=INK, zorder=3, fontsize=8,
        bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": GLOBAL if tied else INK,
              "linewidth": 1.4 if tied else 0.8},
    )  # fmt: skip
    ax.annotate(
        logit, (1, 1), xycoords=drawn, xytext=(4, 0), textcoords="offset points", color=LOCAL, fontsize=6.5, va="center"
    )
    frame = drawn.get_bbox_patch()
    assert frame is not None, "the text has its frame"
    return frame
