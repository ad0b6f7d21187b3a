"""Drawings of the results of our own, of a vision transformer's attention, and of a priority graph."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import FancyBboxPatch
from numpy import ndarray as Array

from tokenmargin.data.images import CIFAR10_CLASSES
from tokenmargin.experiments import Result, Table
from tokenmargin.limits.next_token import NextTokenLimit
from tokenmargin.problem.next_token import PriorityGraph
from tokenmargin.report.style import GLOBAL, INK, LIMIT_COLOURS, LOCAL, MUTED, RELAXED, panels

COLOURS = (LIMIT_COLOURS[1], LIMIT_COLOURS[2], LIMIT_COLOURS[0], LIMIT_COLOURS[3])
MOST_WORDS = 4
"""Tokens of a component that are named; the others are counted."""


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


def draw_joint_phase(result: Result, ax: Axes) -> None:
    """Angle to p^relax against the ratio in units of the critical one: the law, ridge paths, descent."""
    law, measured = result.tables["law"], result.tables["measured"]
    how = measured["how"].astype(str)
    marks = (("ridge, R = 100", ".", 4.0), ("ridge, R = 10000", "o", 5.0), ("normalised descent", "x", 6.0))
    for j, name in enumerate(list(dict.fromkeys(law["problem"].tolist()))[: len(LIMIT_COLOURS)]):
        here, colour = law["problem"] == name, LIMIT_COLOURS[j]
        critical = float(result.tables["problems"]["critical"][result.tables["problems"]["problem"] == name][0])
        ax.plot(law["share"][here], law["angle"][here], color=colour, label=f"{name}, critical {critical:.4g}")
        for kind, mark, size in marks:
            these = (measured["problem"] == name) & (how == kind)
            ax.plot(
                measured["share"][these],
                measured["angle"][these],
                mark,
                color=colour,
                markersize=size,
                fillstyle="none",
            )
    for kind, mark, size in marks:
        ax.plot([], [], mark, color=INK, markersize=size, fillstyle="none", label=kind)
    ax.axvline(1, color=MUTED, linewidth=0.8, linestyle="--")
    label = r"$\rho = \|v\| \Gamma / \|p\|$, in units of the critical one"
    ax.set(xlabel=label, ylabel=r"angle of $p$ to $p^{relax}$", xlim=(0, 1.6))
    ax.legend(fontsize=7, frameon=False)


def draw_first_step_sharp(result: Result, ax: Axes) -> None:
    """Errors against dimension (left); share of corpora on which Theorem 5's conclusion holds (right)."""
    errors, phase = result.tables["errors"], result.tables["phase"]
    left, right = panels(ax, 2)
    for column, colour, style, label in (
        ("printed", GLOBAL, "-", "printed bound (6)"),
        ("sharp", LOCAL, "-", "sharp bound"),
        ("closed_form", RELAXED, "-", "closed form"),
        ("rms", INK, "o", "measured"),
    ):
        left.plot(errors["d"], errors[column], style, color=colour, label=label, markersize=4)
    left.set(xscale="log", yscale="log", xlabel="dimension $d$", ylabel=r"error of the first step over $\eta_0$")
    left.legend(fontsize=7, frameon=False)
    for j, part in enumerate(np.unique(phase["share_of_4n2T2"])):
        here = phase["share_of_4n2T2"] == part
        label = rf"$\eta_0 = {part:g} \cdot 4 n^2 T^2$"
        right.plot(
            phase["d"][here], phase["held"][here], marker="o", markersize=3, color=LIMIT_COLOURS[j % 6], label=label
        )
    right.set(xscale="log", xlabel="dimension $d$", ylabel="share of corpora where Theorem 5 holds", ylim=(-0.03, 1.03))
    right.legend(fontsize=7, frameon=False)


def draw_theorem5_plus(result: Result, ax: Axes) -> None:
    """1 - cosine along flows of corpora, with the proof's bound; angles at the end by the start's risk."""
    curves, starts = result.tables["curves"], result.tables["starts"]
    left, right = panels(ax, 2)
    for j, corpus in enumerate(np.unique(curves["corpus"])):
        here, colour = curves["corpus"] == corpus, LIMIT_COLOURS[j % len(LIMIT_COLOURS)]
        left.plot(curves["norm"][here], curves["lacking"][here], color=colour, label=f"corpus {corpus}")
        left.plot(curves["norm"][here], curves["bound"][here], color=colour, linestyle=":")
    left.plot([], [], color=INK, linestyle=":", label="bound of the proof")
    left.set(xscale="log", yscale="log", xlabel=r"$\|p\| / \|\hat p\|$", ylabel=r"$1 - $ cosine with $\hat p$")
    left.legend(fontsize=7, frameon=False)
    reached = starts["reached"].astype(bool)
    height = np.where(np.isfinite(starts["angle"]), np.maximum(starts["angle"], 1e-7), np.pi)
    for chosen, colour, marker, label in (
        (reached, RELAXED, ".", "reached the best tokens"),
        (~reached, GLOBAL, "x", "did not"),
    ):
        right.plot(starts["share"][chosen], height[chosen], marker, color=colour, label=label)
    right.axvline(1, color=MUTED, linestyle="--", linewidth=0.8)
    right.set(xscale="log", yscale="log", xlabel="excess risk at the start over that of the level",
              ylabel="angle to the best tokens' direction at the end")  # fmt: skip
    right.legend(fontsize=7, frameon=False)


def draw_saturation(result: Result, ax: Axes) -> None:
    """Where flow from zero ends, by dimension (left); global limits and the size of their basin (right)."""
    table = result.tables["dimensions"]
    left, right = panels(ax, 2)
    place, base = np.arange(len(table["d"])), np.zeros(len(table["d"]))
    for kind, colour, label in (
        ("at_rest", MUTED, "at rest"),
        ("LMM", LOCAL, "locally optimal direction"),
        ("GMM", GLOBAL, "global direction"),
    ):
        left.bar(place, table[kind], 0.7, bottom=base, color=colour, label=label)
        base = base + table[kind]
    left.set(xlabel="dimension $d$", ylabel="share of the problems", ylim=(0, 1.3), yticks=np.linspace(0, 1, 6))
    left.legend(loc="upper center", ncols=2)
    right.plot(place, table["GMM"], "o-", color=GLOBAL, label="global limit from $p = 0$")
    right.plot(place, table["gmm_basin"], "s--", color=INK, fillstyle="none", label="mean size of its basin")
    right.plot(place, 1 / table["directions"], ":", color=MUTED, label="one over the mean number of directions")
    right.set(xlabel="dimension $d$", ylabel="share", ylim=(0, 1.3), yticks=np.linspace(0, 1, 6))
    right.legend(loc="upper left")
    for panel in (left, right):
        panel.set_xticks(place, [str(d) for d in table["d"]])


def draw_sharpness(result: Result, ax: Axes) -> None:
    """Dimension needed and dimension asked for, per size of the corpus and of the first step."""
    table = result.tables["sharpness"]
    labels = [
        f"$n={n}$\n$T={T}$\n$\\eta_0={eta:g}$" for n, T, eta in zip(table["n"], table["T"], table["eta"], strict=True)
    ]
    at = np.arange(len(labels))
    ax.scatter(at, table["needed"], color=COLOURS[0], marker="o", label="holds in 95% of draws", zorder=3)
    ax.scatter(at, table["asked"], color=COLOURS[2], marker="^", label="asked for by (10)", zorder=3)
    for x, low, high in zip(at, table["needed"], table["asked"], strict=True):
        ax.plot([x, x], [low, high], color=MUTED, linewidth=0.8)
    ax.set(yscale="log", ylabel="dimension $d$", xticks=at)
    ax.set_xticklabels(labels, fontsize=6.5)
    ax.legend()


def draw_first_step_error(result: Result, ax: Axes) -> None:
    """The error per unit of step over dimensions, and the bound."""
    table = result.tables["errors"]
    sizes = sorted({(int(n), int(T)) for n, T in zip(table["n"], table["T"], strict=True)})
    for colour, (n, T) in zip(COLOURS, sizes, strict=False):
        here = (table["n"] == n) & (table["T"] == T)
        ax.plot(
            table["d"][here], table["median"][here], ".-", color=colour, linewidth=1, label=f"$n={n}$, $T={T}$, median"
        )
    ax.plot(table["d"][here], table["bound"][here], "--", color="#000000", linewidth=1, label="bound $11 d^{-1/4}$")
    ax.set(xscale="log", yscale="log", xlabel="dimension $d$", ylabel="largest error / $\\eta_0$")
    ax.legend()


SPARSITY, NORM = LIMIT_COLOURS[:2]
ROWS = 5


def draw_maps(result: Result, ax: Axes, *, images: bool = True) -> None:
    """A row a test image: the image (unless left out), then where [CLS] attends after chosen epochs.

    Every map has its own scale, from zero to its largest weight, which is printed as a multiple of uniform weight.
    """
    maps, pictures = result.tables["maps"], result.tables["images"]
    epochs, shown = np.unique(maps["epoch"]), np.unique(maps["image"])[:ROWS]
    spec, figure = ax.get_subplotspec(), ax.figure
    if spec is None or not isinstance(figure, Figure | SubFigure):
        raise ValueError("this drawing divides its axes: give axes made by add_subplot")
    ax.set_axis_off()
    grid = spec.subgridspec(len(shown), len(epochs) + images, wspace=0.05, hspace=0.05)
    for row, image in enumerate(shown):
        if images:
            _show_picture(figure.add_subplot(grid[row, 0]), pictures, int(image))
        for column, epoch in enumerate(epochs):
            panel = figure.add_subplot(grid[row, column + images])
            here = (maps["epoch"] == epoch) & (maps["image"] == image)
            _show_map(panel, maps["weight"][here])
            if row == 0:
                panel.set_title(f"epoch {epoch}", fontsize=7)
            if column == 0 and not images:
                label = int(maps["label"][here][0])
                panel.set_ylabel(
                    CIFAR10_CLASSES[label] if label < len(CIFAR10_CLASSES) else f"class {label}", fontsize=7
                )


def _show_map(panel: Axes, weights: np.ndarray) -> None:
    side = round(len(weights) ** 0.5)
    panel.imshow(weights.reshape(side, side), cmap="magma", vmin=0.0, interpolation="nearest")
    panel.set(xticks=[], yticks=[])
    panel.set_xlabel(f"{weights.max() * len(weights):.3g}×", fontsize=6, labelpad=1)


def _show_picture(panel: Axes, pictures: Table, image: int) -> None:
    here = pictures["image"] == image
    side = int(pictures["row"][here].max()) + 1
    pixels = np.stack([pictures[name][here] for name in ("red", "green", "blue")], axis=-1)
    panel.imshow(pixels.reshape(side, -1, 3).astype(np.uint8), interpolation="nearest")
    panel.set(xticks=[], yticks=[])


def draw_sparsity(result: Result, ax: Axes) -> None:
    """Sparsity level of the average attention map (left axis) and norm of the key-query product (right), by epoch."""
    curves = result.tables["curves"]
    ax.plot(curves["epoch"], curves["sparsity"], color=SPARSITY, marker=".", markersize=3)
    ax.set_xlabel("epoch")
    ax.set_ylabel(r"sparsity of attention, $\|s\|_1 / (T \|s\|_2^2)$", color=SPARSITY)
    ax.set_ylim(0, None)
    right = ax.twinx()
    right.plot(curves["epoch"], curves["norm"], color=NORM, marker=".", markersize=3)
    right.set_ylabel(r"$\|W\|_F$ of the last layer", color=NORM)
    right.set_ylim(0, None)


def draw_priority_graph(limit: NextTokenLimit, last: int, ax: Axes, *, most: int = 12) -> None:
    """The graph of a last token: an arrow leads from what came next to what could have, where no detour does.

    Components of several tokens are framed, with the share of each in the limit; beside each stands its logit in W_mm.
    Of more than `most` components those that most sequences speak of are drawn, and the others counted.
    """
    graph, here = limit.graph.graph_of(last), np.flatnonzero(limit.graph.last == last)
    kept = np.sort(np.argsort(-graph.component_counts, kind="stable")[:most])  # that most sequences speak of
    rank = graph.ranks
    layers = [[c for c in kept.tolist() if rank[c] == level] for level in np.unique(rank[kept])]
    arrows = _arrows(graph, kept)
    places: dict[int, tuple[float, float]] = {}
    for height, layer in enumerate(layers):
        # Below what is ahead of them, so that few arrows cross.
        ahead = {c: [places[a][0] for a, b in arrows if b == c and a in places] for c in layer}
        layer.sort(key=lambda c: (np.mean(ahead[c]) if ahead[c] else 0.5, -graph.component_counts[c]))
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
