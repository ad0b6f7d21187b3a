"""Static figures: each draws a Result's tables, and changes none of the user's matplotlib settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy import ndarray as Array

from tokenmargin.basins import Basins
from tokenmargin.experiments import Result, Table
from tokenmargin.report.sharpness import draw_first_step_error, draw_sharpness
from tokenmargin.report.vision import draw_maps, draw_sparsity
from tokenmargin.selection import spelled

__all__ = [
    "DRAWINGS",
    "draw",
    "draw_basins",
    "draw_figures",
    "draw_products",
    "save_basin_map",
    "save_figure",
]

# Okabe and Ito's palette: distinct to colour-blind readers.
INPUT_COLOURS = ("#E69F00", "#009E73", "#0072B2", "#CC79A7", "#56B4E9", "#D55E00")
GLOBAL, LOCAL, RELAXED, MUTED = "#D55E00", "#0072B2", "#009E73", "#8a8a8a"
PLOTTED_STEPS = 200  # of a thousand, as in the papers


def draw(result: Result) -> Figure | None:
    """The figure of a result: its own drawing, or the curves the experiment names; None when there is neither."""
    drawing = DRAWINGS.get(result.experiment.figure)
    if drawing is None and result.experiment.curves is not None:
        drawing = draw_curves
    if drawing is None:
        return None
    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    drawing(result, axes)
    set_title = figure.suptitle if len(figure.axes) > 1 else axes.set_title
    set_title(result.experiment.title, fontsize=8.5, wrap=True)
    return figure


def draw_figures(result: Result, folder: Path) -> None:
    """Draw a result into a folder, when there is something to draw."""
    figure = draw(result)
    if figure is not None:
        save_figure(figure, folder, result.experiment.figure)


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write SVG, PDF and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in ("svg", "pdf", "png")]
    for path in paths:
        # Without a date, the same result gives the same file.
        metadata = (
            {"Date": None} if path.suffix == ".svg" else {"CreationDate": None} if path.suffix == ".pdf" else None
        )
        figure.savefig(path, dpi=160, metadata=metadata)
    return paths


def draw_prompt_paths(result: Result, ax: Axes) -> None:
    """Tokens, the certified rays, and the path of p from every start."""
    tables = result.tables
    tokens, limits = tables["tokens"], tables["limits"]
    widest = max(np.hypot(tokens["x"], tokens["y"]).max(), np.hypot(limits["start_x"], limits["start_y"]).max())
    reach = 3 * float(widest)
    _draw_tokens(ax, tokens)
    directions = tables["directions"]
    for kind, x, y in zip(directions["direction"], directions["x"], directions["y"], strict=True):
        if kind in ("GMM", "LMM"):
            _draw_ray(ax, x, y, colour=GLOBAL if kind == "GMM" else LOCAL, label=str(kind), reach=reach)
    paths = tables["paths"]
    for start in np.unique(paths["start"]):
        chosen = (paths["start"] == start) & (np.hypot(paths["x"], paths["y"]) <= 2 * reach)
        _draw_path(ax, paths["x"][chosen], paths["y"][chosen], colour=MUTED, label="path of p" if start == 0 else None)
    _finish_plane(ax, reach)


def draw_joint_paths(result: Result, ax: Axes) -> None:
    """Tokens with their labels, the paths of p and v, and the directions they reach."""
    tables = result.tables
    _draw_tokens(ax, tables["tokens"])
    reach = 4.0
    relaxed = result.experiment.figure == "fig3b"
    looks = {
        "p_mm": (MUTED if relaxed else GLOBAL, "p^mm"),
        "p_relax": (GLOBAL if relaxed else None, "p^relax"),
        "v_mm": (LOCAL, "v^mm"),
    }
    directions = tables["directions"]
    for name, x, y in zip(directions["direction"], directions["x"], directions["y"], strict=True):
        colour, label = looks[name]
        if colour is not None:
            _draw_ray(ax, x, y, colour=colour, label=label, reach=reach)
    paths = tables["paths"]
    for name, colour in (("p", GLOBAL), ("v", LOCAL)):
        x, y = paths[f"{name}_x"], paths[f"{name}_y"]
        near = np.hypot(x, y) <= 2 * reach
        _draw_path(ax, x[near], y[near], colour=colour, label=f"path of {name}")
    _finish_plane(ax, reach)


def draw_probabilities(result: Result, ax: Axes) -> None:
    """Softmax and logistic probability along training."""
    paths = result.tables["paths"]
    shown = paths["step"] <= PLOTTED_STEPS
    for column, colour, label in (
        ("softmax_probability", GLOBAL, "softmax, mean over inputs"),
        ("logistic_probability", LOCAL, "logistic, mean over inputs"),
    ):
        ax.plot(paths["step"][shown], paths[column][shown], color=colour, label=label)
    _finish_curves(ax, "probability")


def draw_curves(result: Result, ax: Axes) -> None:
    """The curves that the experiment names."""
    curves = result.experiment.curves
    assert curves is not None, "only for experiments that name their curves"
    table = result.table(curves.table)
    groups = [None] if curves.by is None else np.unique(table[curves.by]).tolist()
    for group in groups:
        chosen = slice(None) if group is None else table[curves.by or ""] == group
        for column in curves.y:
            label = column if group is None else f"{curves.by} {group}"
            ax.plot(table[curves.x][chosen], table[column][chosen], marker=".", markersize=3, label=label)
    ax.set(xlabel=curves.x_label or curves.x, ylabel=curves.y_label or ", ".join(curves.y))
    ax.set_xscale("log" if "x" in curves.log else "linear")
    ax.set_yscale("log" if "y" in curves.log else "linear")
    ax.legend(fontsize=8, frameon=False)


def draw_growth(column: str, label: str) -> Callable[[Result, Axes], None]:
    """One quantity under normalised and under plain descent."""

    def draw_both(result: Result, ax: Axes) -> None:
        curves = result.tables["curves"]
        for method, colour, name in (("ngd", GLOBAL, "normalised descent"), ("gd", LOCAL, "gradient descent")):
            ax.plot(curves["step"], curves[f"{column}_{method}"], color=colour, label=name)
        _finish_curves(ax, label)

    return draw_both


def draw_loss_bias(result: Result, ax: Axes) -> None:
    """Paths of p for growing scores under two losses, and the height each must settle at."""
    tables = result.tables
    _draw_tokens(ax, tables["tokens"])
    paths, bias = tables["paths"], tables["bias"]
    scores = np.unique(paths["score"])
    for loss, colour in (("correlation", GLOBAL), ("logistic", LOCAL)):
        for score in scores[scores <= 10]:
            chosen = (paths["loss"] == loss) & (paths["score"] == score) & (paths["x"] <= 10)
            shade = 0.25 + 0.75 * score / 10
            ax.plot(paths["x"][chosen], paths["y"][chosen], color=colour, alpha=shade, linewidth=1)
            height = bias["predicted"][(bias["loss"] == loss) & (bias["score"] == score)][0]
            ax.plot([9.6, 10], [height, height], color=colour, alpha=shade, linewidth=3)
        ax.plot([], [], color=colour, label=f"{loss} loss, C = 1..10")
    ax.axhline(0, color=MUTED, linestyle="--", linewidth=1, label="p^mm = (1, 0)")
    ax.set(xlim=(-0.5, 10), ylim=(-3.6, 2.2), xlabel="p, first coordinate", ylabel="p, second coordinate")
    ax.legend(fontsize=8, loc="lower left", frameon=False)


def draw_shares(result: Result, ax: Axes) -> None:
    """Bars per dimension: not saturated, locally optimal, globally optimal, with confidence intervals."""
    shares = result.tables["shares"]
    place, width = np.arange(len(shares["d"])), 0.27
    for offset, kind, colour, label in (
        (-1, "not_saturated", GLOBAL, "not saturated"),
        (0, "LMM", LOCAL, "LMM, not global"),
        (1, "GMM", RELAXED, "GMM"),
    ):
        errors = np.stack([shares[kind] - shares[f"{kind}_low"], shares[f"{kind}_high"] - shares[kind]])
        ax.bar(place + offset * width, shares[kind], width, color=colour, label=label)
        ax.errorbar(
            place + offset * width, shares[kind], yerr=np.maximum(errors, 0), fmt="none", ecolor="black", lw=0.8
        )
    ax.set_xticks(place, [str(d) for d in shares["d"]])
    ax.set(xlabel="dimension d", ylabel="share of the trials", ylim=(0, 1.08))
    ax.legend(fontsize=8, frameon=False, loc="upper center")


def draw_gaps(result: Result, ax: Axes) -> None:
    """Histogram of the smallest score gap of every saturated run."""
    gaps = result.tables["runs"]["gap"]
    gaps = gaps[np.isfinite(gaps)]
    edges = np.arange(np.floor(gaps.min() * 100) / 100, gaps.max() + 0.01, 0.01)
    ax.hist(gaps, bins=edges.tolist(), density=True, color=LOCAL)
    ax.axvline(0, color=MUTED, linestyle="--", linewidth=1)
    ax.set(xlabel="smallest score gap to an SVM-neighbour", ylabel="density")


def draw_gap_distribution(result: Result, ax: Axes) -> None:
    """Cumulative distribution of the same gaps, per dimension."""
    runs = result.tables["runs"]
    for j, d in enumerate(np.unique(runs["d"])):
        gaps = np.sort(runs["gap"][(runs["d"] == d) & np.isfinite(runs["gap"])])
        colour = INPUT_COLOURS[j % len(INPUT_COLOURS)]
        ax.plot(gaps, np.arange(1, len(gaps) + 1) / len(gaps), color=colour, label=f"d = {d}")
    ax.axvline(0, color=MUTED, linestyle="--", linewidth=1)
    ax.set(xlabel="smallest score gap to an SVM-neighbour", ylabel="cumulative share", ylim=(0, 1.02))
    ax.legend(fontsize=8, frameon=False)


def draw_basins(basins: Basins, ax: Axes) -> None:
    """A square grid of starts in the plane of the first two coordinates, coloured by the limit they reach."""
    resolution = round(len(basins.labels) ** 0.5)
    across, up = (basins.starts[:, axis].reshape(resolution, resolution) for axis in (0, 1))
    colours = ["#d9d9d9"] + [INPUT_COLOURS[j % len(INPUT_COLOURS)] for j in range(len(basins.basins))]
    labels = basins.labels.reshape(resolution, resolution)
    ax.pcolormesh(
        across, up, labels, cmap=ListedColormap(colours), vmin=-1.5, vmax=len(basins.basins) - 0.5, alpha=0.5,
        shading="nearest",
    )  # fmt: skip
    for j, basin in enumerate(basins.basins):
        name = f"{basin.kind} {spelled(basin.named.chosen)}: {100 * basin.share:.0f}%"
        ax.scatter([], [], marker="s", color=colours[j + 1], alpha=0.5, label=name)
    if basins.unsettled:
        ax.scatter([], [], marker="s", color=colours[0], label=f"bounded or unsettled: {100 * basins.unsettled:.0f}%")
    ax.set(aspect="equal", xlabel="start, first coordinate", ylabel="start, second coordinate")
    ax.legend(fontsize=8, loc="upper right")


def save_basin_map(basins: Basins, path: Path) -> None:
    """Draw the map of basins into a .png, .svg or .pdf file."""
    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    draw_basins(basins, figure.add_subplot())
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def _draw_tokens(ax: Axes, tokens: Table) -> None:
    for i in np.unique(tokens["input"]):
        for optimal, marker, size in ((True, "*", 130), (False, "o", 36)):
            here = (tokens["input"] == i) & (tokens["optimal"] == optimal)
            colour = INPUT_COLOURS[int(i) % len(INPUT_COLOURS)]
            label = f"input {i}" if optimal else None
            ax.scatter(tokens["x"][here], tokens["y"][here], s=size, marker=marker, color=colour, label=label,
                       zorder=3, edgecolors="white", linewidths=0.5)  # fmt: skip


def _draw_ray(ax: Axes, x: float, y: float, *, colour: str, label: str, reach: float) -> None:
    scale = 2 * reach / np.hypot(x, y)
    ax.plot([0, scale * x], [0, scale * y], linestyle="--", color=colour, linewidth=1.6, label=label, zorder=2)


def _draw_path(ax: Axes, x: Array, y: Array, *, colour: str, label: str | None) -> None:
    ax.plot(x, y, color=colour, linewidth=1, label=label, zorder=1)
    ax.plot(x[0], y[0], marker=".", color=colour, markersize=5, zorder=1)


def _finish_plane(ax: Axes, reach: float) -> None:
    ax.set(
        xlim=(-reach, reach),
        ylim=(-reach, reach),
        aspect="equal",
        xlabel="first coordinate",
        ylabel="second coordinate",
    )
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    ax.legend(unique.values(), unique.keys(), fontsize=8, loc="best", frameon=False)


def _finish_curves(ax: Axes, label: str) -> None:
    ax.set(xlabel="step", ylabel=label)
    ax.legend(fontsize=8, frameon=False)


def draw_embeddings(result: Result, ax: Axes) -> None:
    """Every token's product with p (left) and with v (right) against its posterior difference."""
    tokens = result.tables["tokens"]
    seen = tokens["occurrences"] > 0
    spec = ax.get_subplotspec()
    if spec is None:
        raise ValueError("this drawing divides its axes in two: give axes made by add_subplot")
    halves = spec.subgridspec(1, 2)
    ax.set_subplotspec(halves[0])
    for panel, column, name in ((ax, "prompt", "p"), (ax.figure.add_subplot(halves[1]), "head", "v")):
        draw_products(panel, tokens["posterior"][seen], tokens[column][seen], name=name)


def draw_products(ax: Axes, posterior: Float[Array, " m"], products: Float[Array, " m"], *, name: str) -> None:
    """Tokens: the product of the embedding with p or v against the posterior difference."""
    ax.scatter(posterior, products, s=2, alpha=0.35, color=LOCAL, linewidths=0)
    ax.axhline(0, color=MUTED, linewidth=0.6)
    ax.set_xlabel("posterior difference", fontsize=8)
    ax.set_ylabel(f"<E, {name}>", fontsize=8)
    ax.tick_params(labelsize=7)


DRAWINGS: Mapping[str, Callable[[Result, Axes], None]] = MappingProxyType(
    {
        "demo": draw_prompt_paths,
        "fig1a": draw_prompt_paths,
        "fig1b": draw_prompt_paths,
        "fig1c": draw_prompt_paths,
        "fig3a": draw_joint_paths,
        "fig3b": draw_joint_paths,
        "fig3c": draw_probabilities,
        "fig4a": draw_growth("saturation", "mean largest softmax weight"),
        "fig4b": draw_growth("norm", "norm of p"),
        "fig5": draw_loss_bias,
        "fig6": draw_maps,
        "fig7": draw_sparsity,
        "fig8": draw_prompt_paths,
        "fig9": draw_shares,
        "fig9b": draw_gaps,
        "fig10": draw_gap_distribution,
        "A1": draw_embeddings,
        "A2": draw_embeddings,
        "A3-imdb": draw_embeddings,
        "A3-yelp": draw_embeddings,
        "A4": draw_embeddings,
        "first-step-error": draw_first_step_error,
        "theorem5-sharpness": draw_sharpness,
    }
)
