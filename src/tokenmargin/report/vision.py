"""Drawings of a vision transformer's attention: maps by epoch, and sparsity against the norm of its weights."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from tokenmargin.data.images import CIFAR10_CLASSES
from tokenmargin.experiments import Result, Table
from tokenmargin.report.style import LIMIT_COLOURS

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
                panel.set_ylabel(_class_name(int(maps["label"][here][0])), fontsize=7)


def _show_map(panel: Axes, weights: np.ndarray) -> None:
    side = round(len(weights) ** 0.5)
    panel.imshow(weights.reshape(side, side), cmap="magma", vmin=0.0, interpolation="nearest")
    panel.set(xticks=[], yticks=[])
    panel.set_xlabel(f"{weights.max() * len(weights):.3g}x", fontsize=5, labelpad=1)


def _show_picture(panel: Axes, pictures: Table, image: int) -> None:
    here = pictures["image"] == image
    side = int(pictures["row"][here].max()) + 1
    pixels = np.stack([pictures[name][here] for name in ("red", "green", "blue")], axis=-1)
    panel.imshow(pixels.reshape(side, -1, 3).astype(np.uint8), interpolation="nearest")
    panel.set(xticks=[], yticks=[])


def _class_name(label: int) -> str:
    return CIFAR10_CLASSES[label] if label < len(CIFAR10_CLASSES) else f"class {label}"


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
