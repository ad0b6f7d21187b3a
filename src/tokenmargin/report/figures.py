"""Static figures: each draws a Result's tables, and changes none of the user's matplotlib settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from numpy import ndarray as Array

from tokenmargin._files import atomic_path
from tokenmargin.experiments import Result
from tokenmargin.problem.instances import IRRELEVANT
from tokenmargin.report.planes import draw_cone, draw_disc_paths, draw_joint_paths, draw_loss_bias, draw_prompt_paths
from tokenmargin.report.results import (
    draw_constants,
    draw_first_step_error,
    draw_first_step_sharp,
    draw_joint_phase,
    draw_maps,
    draw_saturation,
    draw_sharpness,
    draw_sparsity,
    draw_theorem5_plus,
)
from tokenmargin.report.style import (
    GLOBAL,
    HALO,
    LIMIT_COLOURS,
    LOCAL,
    MUTED,
    ONE,
    TWO,
    legend_below,
    panels,
    paper_style,
    settle_names,
)

EXTREMES = 2  # words named at either end of a cloud
PLOTTED_STEPS = 200  # of a thousand, as in the papers


@dataclass(frozen=True)
class Drawing:
    """How a result is drawn into axes, and the size of the figure."""

    function: Callable[[Result, Axes], None]
    size: tuple[float, float] = ONE


def draw(result: Result) -> Figure | None:
    """The figure of a result: its own drawing, or the curves the experiment names; None when there is neither.

    There is no title inside, that is for the caption; where data stand in for the paper's, a mark lies over the
    picture and a line under it says what they are.
    """
    drawing = DRAWINGS.get(result.experiment.figure)
    if drawing is None and result.experiment.curves is not None:
        drawing = Drawing(draw_curves)
    if drawing is None:
        return None
    with paper_style():
        figure = Figure(figsize=drawing.size, layout="constrained")
        drawing.function(result, figure.add_subplot())
        settle_names(figure)
        if result.stand_in:
            figure.text(
                0.5, 0.5, "stand-in data", fontsize=30, color=MUTED, alpha=0.3, rotation=25, ha="center", va="center",
                zorder=10,
            )  # fmt: skip
            figure.supxlabel(f"({result.stand_in})", fontsize=6)
    return figure


def draw_figures(result: Result, folder: Path) -> None:
    """Draw a result into a folder, when there is something to draw."""
    figure = draw(result)
    if figure is not None:
        about = f"{result.experiment.source}, {result.experiment.figure}"
        save_figure(figure, folder, result.experiment.figure, title=result.title, about=about)


def save_figure(figure: Figure, folder: Path, name: str, *, title: str = "", about: str = "") -> list[Path]:
    """Write SVG, PDF and PNG; title and what it is about go into the files, which are the same for the same result."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without a date the same result gives the same file. Each format has names of its own for what is said of it.
    known: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None, "Title": title, "Description": about},
        "pdf": {"CreationDate": None, "Title": title, "Subject": about},
        "png": {"Title": title, "Description": about},
    }
    paths = [folder / f"{name}.{suffix}" for suffix in known]
    with paper_style():
        for path, metadata in zip(paths, known.values(), strict=True):
            figure.savefig(path, metadata={key: text for key, text in metadata.items() if text != ""})
    return paths


def draw_probabilities(result: Result, ax: Axes) -> None:
    """Softmax and logistic probability along training."""
    paths = result.tables["paths"]
    shown = paths["step"] <= PLOTTED_STEPS
    for column, colour, label in (
        ("optimal_probability", GLOBAL, "softmax probability of the optimal tokens"),
        ("logistic_probability", LOCAL, "logistic probability of the labels"),
    ):
        ax.plot(paths["step"][shown], paths[column][shown], color=colour, label=label)
    _finish_curves(ax, "mean over the inputs")


DASHES = ("-", "--", ":", "-.")
MOST_TICKS = 6  # different values along the axis that are all written


def _words(name: str) -> str:
    """The name of a column as words."""
    return name.replace("_", " ")


def draw_curves(result: Result, ax: Axes) -> None:
    """The curves that the experiment names."""
    curves = result.experiment.curves
    assert curves is not None, "only for experiments that name their curves"
    table = result.table(curves.table)
    groups = [None] if curves.by is None else np.unique(table[curves.by]).tolist()
    for nth, group in enumerate(groups):
        chosen = slice(None) if group is None else table[curves.by or ""] == group
        for column in curves.y:
            label = (
                _words(column)
                if group is None
                else _words(f"{group}" if isinstance(group, str) else f"{curves.by} {group}")
            )
            look: dict[str, Any] = {}
            if group is not None and len(curves.y) > 1:  # a colour for each column, a dash for each group
                colour = LIMIT_COLOURS[curves.y.index(column) % len(LIMIT_COLOURS)]
                label, look = _words(f"{column}, {group}"), {"color": colour, "linestyle": DASHES[nth % len(DASHES)]}
            ax.plot(table[curves.x][chosen], table[column][chosen], marker=".", markersize=3, label=label, **look)
    ax.set(xlabel=curves.x_label or _words(curves.x), ylabel=curves.y_label or _words(", ".join(curves.y)))
    ax.set_xscale("log" if "x" in curves.log else "linear")  # a scale puts ticks of its own: ours come after it
    ax.set_yscale("log" if "y" in curves.log else "linear")
    values = np.unique(table[curves.x])
    if len(values) <= MOST_TICKS and (values == values.round()).all():
        ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend()


def draw_growth(column: str, label: str) -> Callable[[Result, Axes], None]:
    """One quantity under normalised and under plain descent."""

    def draw_both(result: Result, ax: Axes) -> None:
        curves = result.tables["curves"]
        for method, colour, name in (("ngd", GLOBAL, "normalised descent"), ("gd", LOCAL, "gradient descent")):
            ax.plot(curves["step"], curves[f"{column}_{method}"], color=colour, label=name)
        _finish_curves(ax, label)

    return draw_both


def draw_shares(result: Result, ax: Axes) -> None:
    """Bars per dimension with confidence intervals; a GMM is an LMM, so its bar is a part of the blue one."""
    shares = result.tables["shares"]
    place, width = np.arange(len(shares["d"])), 0.2
    for offset, kind, colour, label in (
        (-1.5, "not_saturated", MUTED, "softmax not saturated"),
        (-0.5, "LMM", LOCAL, "LMM (the GMM among them)"),
        (0.5, "GMM", GLOBAL, "GMM"),
        (1.5, "neither", LIMIT_COLOURS[4], "saturated, no LMM"),
    ):
        errors = np.stack([shares[kind] - shares[f"{kind}_low"], shares[f"{kind}_high"] - shares[kind]])
        ax.bar(place + offset * width, shares[kind], width, color=colour, label=label)
        ax.errorbar(
            place + offset * width, shares[kind], yerr=np.maximum(errors, 0), fmt="none", ecolor="black", lw=0.8
        )
    ax.set_xticks(place, [str(d) for d in shares["d"]])
    ax.set(xlabel="dimension $d$", ylabel="share of the trials", ylim=(0, 1.05), yticks=np.linspace(0, 1, 6))
    legend_below(ax, columns=2)


GAP = r"smallest score gap to an SVM-neighbour, $\gamma$"


def draw_gaps(result: Result, ax: Axes) -> None:
    """Histogram of the smallest score gap of every saturated run."""
    gaps = result.tables["runs"]["gap"]
    gaps = gaps[np.isfinite(gaps)]
    edges = np.arange(np.floor(gaps.min() * 100) / 100, gaps.max() + 0.01, 0.01)
    ax.hist(gaps, bins=edges.tolist(), density=True, color=LOCAL)
    ax.axvline(0, color=MUTED, linestyle="--", linewidth=1)
    ax.set(xlabel=GAP, ylabel="density")


def draw_gap_distribution(result: Result, ax: Axes) -> None:
    """Cumulative distribution of the same gaps, per dimension."""
    runs = result.tables["runs"]
    dimensions = np.unique(runs["d"])
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(dimensions)))  # in order, and none of them a direction's
    for colour, d in zip(shades, dimensions, strict=True):
        gaps = np.sort(runs["gap"][(runs["d"] == d) & np.isfinite(runs["gap"])])
        if gaps.size:  # in two dimensions a short run may have no saturated trial
            ax.ecdf(gaps, color=colour, label=f"$d={d}$")
    ax.axvline(0, color=MUTED, linestyle="--", linewidth=1)
    ax.set(xlabel=GAP, ylabel="cumulative share", ylim=(0, 1.02))
    ax.legend()


@contextlib.contextmanager
def axes_for_file(path: Path, size: tuple[float, float] = ONE) -> Iterator[Axes]:
    """Axes to draw into; what is drawn becomes a .png, .svg or .pdf file, in the style of the figures."""
    with paper_style(), atomic_path(path) as beside:
        figure = Figure(figsize=size, layout="constrained")
        yield figure.add_subplot()
        settle_names(figure)
        figure.savefig(beside)


def _finish_curves(ax: Axes, label: str) -> None:
    ax.set(xlabel="step", ylabel=label)
    ax.legend()


def draw_embeddings(result: Result, ax: Axes) -> None:
    """Every token's product with p (left) and with v (right) against its posterior difference."""
    tokens = result.tables["tokens"]
    seen = tokens["occurrences"] > 0
    cloud = np.char.startswith(tokens["token"].astype(str), IRRELEVANT)
    for panel, column, name in zip(panels(ax, 2), ("prompt", "head"), "pv", strict=True):
        draw_products(panel, tokens["posterior"][seen], tokens[column][seen], name=name)
        _label_extremes(panel, tokens["token"][seen], tokens["posterior"][seen], tokens[column][seen])
        if cloud.any():
            here = seen & cloud
            panel.scatter(tokens["posterior"][here], tokens[column][here], s=3, color=MUTED, label="irrelevant tokens")
            panel.legend(markerscale=3)


def _label_extremes(ax: Axes, names: Array, posterior: Float[Array, " m"], products: Float[Array, " m"]) -> None:
    """The words at the ends of the cloud, upwards and across, two at each where there is room."""
    ends = (order for values in (products, posterior) for order in (np.argsort(values), np.argsort(-values)))
    tall, written = float(np.ptp(products)) or 1.0, list[int]()
    for k in dict.fromkeys(int(k) for order in ends for k in order[:EXTREMES]):
        if any(
            abs(products[k] - products[j]) < 0.04 * tall and abs(posterior[k] - posterior[j]) < 0.3 for j in written
        ):
            continue  # its name would lie on another
        written.append(k)
        right = posterior[k] <= 0
        ax.annotate(
            str(names[k]).replace("$", r"\$"), (posterior[k], products[k]), fontsize=6, path_effects=HALO,
            ha="left" if right else "right", xytext=(3 if right else -3, 0), textcoords="offset points", va="center",
        )  # fmt: skip


def draw_products(ax: Axes, posterior: Float[Array, " m"], products: Float[Array, " m"], *, name: str) -> None:
    """Tokens: the product of the embedding with p or v against the posterior difference."""
    crowd = min(1.0, 1000 / max(len(products), 1))  # of thousands each mark is smaller and lighter
    ax.scatter(posterior, products, s=6 * crowd**0.5, alpha=0.6 * crowd**0.25, color=LOCAL, linewidths=0)
    ax.axhline(0, color=MUTED, linewidth=0.6)
    ax.set_xlabel("posterior difference")
    ax.set_ylabel(rf"$\langle E_s, {name}\rangle$")


def draw_pairs(result: Result, ax: Axes) -> None:
    """The two-layer model's mean output on every pair of deciding words, against the label that the pair decides."""
    pairs = result.tables["pairs"]
    rng = np.random.default_rng(0)
    ax.scatter(pairs["posterior"] + 0.1 * rng.uniform(-1, 1, len(pairs["output"])), pairs["output"], s=8, color=LOCAL)
    ax.axhline(0, color=MUTED, linewidth=0.6)
    ax.set(xticks=[-1, 1], xlabel="posterior difference of the pair", ylabel="mean output")


def draw_correlations(result: Result, ax: Axes) -> None:
    """One less the correlation with the theory's direction, draw by draw: as printed, as repeated, and farther out."""
    draws = result.tables["draws"]
    for column, marker, colour, label in (
        ("printed", "o", MUTED, "as printed"),
        ("cosine", "x", LOCAL, "repeated here"),
        ("farther", ".", GLOBAL, "trained farther"),
    ):
        face: dict[str, Any] = {"facecolors": "none", "edgecolors": colour} if marker == "o" else {"color": colour}
        ax.scatter(draws["draw"], np.maximum(1 - draws[column], 1e-16), marker=marker, s=22, label=label, **face)
    ax.set(yscale="log", xlabel="draw", ylabel="1 − correlation with the limit")
    legend_below(ax, columns=3)


DRAWINGS: Mapping[str, Drawing] = MappingProxyType(
    {
        "demo": Drawing(draw_disc_paths, TWO),
        **dict.fromkeys(("fig1a", "fig1b", "fig1c", "fig8"), Drawing(draw_prompt_paths, TWO)),
        "constants": Drawing(draw_constants, TWO),
        "saturation": Drawing(draw_saturation, TWO),
        "joint-phase": Drawing(draw_joint_phase, TWO),
        "first-step-sharp": Drawing(draw_first_step_sharp, TWO),
        "theorem5-plus": Drawing(draw_theorem5_plus, TWO),
        "fig2": Drawing(draw_cone, TWO),
        **dict.fromkeys(("fig3a", "fig3b"), Drawing(draw_joint_paths, TWO)),
        "fig3c": Drawing(draw_probabilities),
        "fig4a": Drawing(draw_growth("saturation", "mean largest softmax weight")),
        "fig4b": Drawing(draw_growth("norm", r"$\|p\|$")),
        "fig5": Drawing(draw_loss_bias, TWO),
        "fig6": Drawing(draw_maps, (3.25, 3.0)),
        "fig7": Drawing(draw_sparsity),
        "fig9": Drawing(draw_shares),
        "fig9b": Drawing(draw_gaps),
        "fig10": Drawing(draw_gap_distribution),
        **dict.fromkeys(("A1", "A2", "A3-imdb", "A3-yelp", "A4"), Drawing(draw_embeddings, TWO)),
        "pairs": Drawing(draw_pairs),
        **dict.fromkeys(("ntp-global", "ntp-local"), Drawing(draw_correlations)),
        "first-step-error": Drawing(draw_first_step_error),
        "theorem5-sharpness": Drawing(draw_sharpness, (6.75, 3.05)),
    }
)
