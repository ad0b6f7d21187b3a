"""Figures 6 and 7 of *Max-Margin Token Selection in Attention Mechanism*: how sparse a vision transformer attends.

Both figures come from one training run: Figure 6 shows where [CLS] attends in chosen test images, Figure 7 the sparsity
of that attention and the norm of the last layer's key-query product, epoch by epoch. The run is kept in the cache with
its checkpoints, so the second figure finds it there, and one that was killed goes on.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin._files import json_digest
from tokenmargin._statistics import spearman
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Scales, Table
from tokenmargin.experiments.provenance import code_digest
from tokenmargin.experiments.tables import PAPER_B, columns
from tokenmargin.training.config import VisionSettings

if TYPE_CHECKING:
    from tokenmargin.data.images import ImageSet
    from tokenmargin.training.vision.learner import VisionConfig

SHOWN_EPOCHS = 6


@dataclass(frozen=True)
class VisionAttention(VisionSettings, AbstractExperiment):
    """Train from scratch on CIFAR-10, and look at the attention of [CLS] in the last layer after every epoch."""

    source = PAPER_B
    needs = ("train",)
    seconds = (190, None)
    differences = (
        "The optimiser, batch size, augmentation and weight decay are not stated: AdamW, batches of 250, random shifts "
        "and mirroring, 0.01; a warm-up comes before the fixed rate, and gradients are cut at norm 1.",
        "Sparsity is of the attention on the patches, made to sum to one; the weight of [CLS] on itself is left out.",
        "W is the product of the last layer's query and key weights with all heads together; each head is in a table.",
    )
    scales = Scales(
        # A network of 0.2 million parameters, patches of 4 and 3000 images: minutes on two cores.
        quick={"size": "nano", "patch": 4, "images": 3000, "test_images": 1000, "epochs": 20, "batch": 50, "rate": 1e-3,
               "warmup": 1.0, "substitute": True},
        short={"epochs": 24, "rate": 5e-4, "warmup": 2.0},
    )  # fmt: skip

    images: int | None = None
    test_images: int = 10_000
    substitute: bool = False
    device: str = "auto"

    def config(self) -> VisionConfig:
        """The settings of the trainer: bfloat16 on a GPU, float32 elsewhere."""
        from tokenmargin.training.vision.learner import VisionConfig

        precision: Literal["bfloat16", "float32"] = "bfloat16" if self._device() == "cuda" else "float32"
        names = (field.name for field in fields(VisionSettings))
        return VisionConfig(**{name: getattr(self, name) for name in names}, precision=precision)

    def inputs(self) -> Mapping[str, str]:
        from tokenmargin.data.datasets import cached_digests

        return cached_digests("cifar10")

    def run(self, progress: Progress = None) -> Result:
        from tokenmargin.data.images import find_images
        from tokenmargin.training import epochs
        from tokenmargin.training.vision.observed_training import train_vision_observed

        found = find_images(substitute=self.substitute).first_images(training=self.images, test=self.test_images)
        device = self._device()

        def report(now: epochs.TrainingProgress) -> None:
            if progress is not None:
                progress(min(now.step / now.steps, 1.0))

        history, record, arrays = train_vision_observed(
            self.config(), found, folder=self._folder(found), device=device, compiled=device == "cuda", progress=report
        )
        if progress is not None:
            progress(1.0)
        if history.status != "finished":
            raise KeyboardInterrupt(f"training was {history.status}; the same command goes on")
        return self.result(record, arrays, notes=found.notes)

    def result(self, record: Mapping[str, Any], arrays: Mapping[str, Array], *, notes: tuple[str, ...] = ()) -> Result:
        """The tables and findings of a training run, from its record and arrays."""
        tables = vision_tables(record, arrays)
        findings, notes = self.findings(tables, record), (*notes, *_notes(record, tables))
        if self.inputs().get("cifar10") == "absent" and self.substitute:
            return Result(self, tables, tuple(f.without_bounds() for f in findings), notes, stand_in=STAND_IN)
        return Result(self, tables, findings, notes)

    @abc.abstractmethod
    def findings(self, tables: Mapping[str, Table], record: Mapping[str, Any]) -> tuple[Finding, ...]:
        """What the figure claims, measured."""

    def _device(self) -> str:
        from tokenmargin.training.config import choose_device

        return choose_device(self.device)

    def _folder(self, images: ImageSet) -> Path:
        """Where the run is kept: another place for other settings, images or code."""
        from tokenmargin.data.datasets import cache_folder

        identity = [asdict(self.config()), images.digest, code_digest(type(self))]
        name = json_digest(identity)[:12]
        return cache_folder() / "vision" / name


STAND_IN = "generated images standing in for CIFAR-10"


class Figure6(VisionAttention):
    """`tokenmargin reproduce fig6`: about 190 s; attention maps of [CLS] by epoch, dense at first, then sparse."""

    figure = "fig6"
    title = "Where [CLS] attends: average over the heads of the last layer, by epoch"
    shows = (
        "the attention weights of [CLS] on the 16 x 16 patches of a few images, averaged over 12 heads: spread out at "
        "first, on few patches later. No numbers are printed."
    )

    def findings(self, tables: Mapping[str, Table], record: Mapping[str, Any]) -> tuple[Finding, ...]:
        pictures = tables["pictures"]
        epochs = pictures["epoch"]
        first, last = (pictures["sparsity"][epochs == end] for end in (epochs.min(), epochs.max()))
        return (
            Finding(
                "share of the probed images whose attention is sparser at the end than at the start",
                float((last < first).mean()), 0.9, 1.0, "the maps grow sparse; the share is our choice",
            ),
            Finding(
                "mass on the ten most attended patches at the end, over its value at the start",
                float(tables["curves"]["top_10"][-1] / tables["curves"]["top_10"][0]),
            ),
        )  # fmt: skip


class Figure7(VisionAttention):
    """`tokenmargin reproduce fig7`: about 190 s; sparsity of attention and norm of the key-query product by epoch."""

    figure = "fig7"
    title = "Attention grows sparser as the key-query weights grow"
    shows = (
        "over 400 epochs, the sparsity level of the average attention map falls while the Frobenius norm of the last "
        "layer's key-query product grows. No numbers are printed."
    )
    shown_tables = ("correlations",)

    def findings(self, tables: Mapping[str, Table], record: Mapping[str, Any]) -> tuple[Finding, ...]:
        curves, found = tables["curves"], tables["correlations"]
        rho, low, high = (float(found[name][0]) for name in ("rho", "low", "high"))
        return (
            Finding(
                f"rank correlation of sparsity with |W|_F over epochs (95 % interval {low:.2f} to {high:.2f})",
                rho, high=-0.5, source="sparser as the norm grows; how closely is our choice",
            ),
            Finding("upper end of that interval", high, high=0.0, source="the trend is not chance"),
            Finding("|W|_F at the end over |W|_F at the start", float(curves["norm"][-1] / curves["norm"][0]), low=1.0,
                    source="one curve rises", basis="figure"),
            Finding("sparsity level at the end over its start", float(curves["sparsity"][-1] / curves["sparsity"][0]),
                    high=1.0, source="the other falls", basis="figure"),
            Finding("test accuracy at the end", float(curves["test_accuracy"][-1])),
        )  # fmt: skip


def vision_tables(record: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Table]:
    """The tables of a run: curves by epoch, correlations, heads, probed images, and the maps of the shown ones."""
    rows = [row for row in record["metrics"] if "sparsity" in row]
    names = dict.fromkeys(name for row in rows for name in row)
    curves = {name.replace(" ", "_"): np.array([row.get(name, np.nan) for row in rows], dtype=float) for name in names}
    curves["epoch"] = curves["epoch"].astype(int)
    curves["direction"] = arrays["direction"].astype(float)
    return {
        "curves": curves,
        "correlations": _correlations(curves, arrays),
        "heads": _columns(
            arrays["epoch"], ("layer", "head"), sparsity=arrays["layer_sparsity"], norm=arrays["layer_norm"]
        ),
        "pictures": _columns(arrays["epoch"], ("image",), sparsity=arrays["image_sparsity"]),
        "maps": _map_table(arrays),
        "images": _image_table(arrays),
    }


def _columns(epochs: Array, axes: tuple[str, ...], **values: Array) -> Table:
    """Arrays of shape (epochs, *axes) as one row an entry."""
    shape = next(iter(values.values())).shape
    places = np.indices(shape).reshape(len(shape), -1)
    table: dict[str, Array] = {"epoch": epochs[places[0]]}
    table |= {name: places[k + 1] for k, name in enumerate(axes)}
    return table | {name: array.astype(float).ravel() for name, array in values.items()}


def _map_table(arrays: Mapping[str, Array]) -> Table:
    """The maps of the shown images, at a few epochs spread over the run."""
    chosen = shown_epochs(arrays["epoch"])
    maps = arrays["maps"][np.searchsorted(arrays["epoch"], chosen)]
    side = round(maps.shape[-1] ** 0.5)
    table = dict(_columns(chosen, ("image", "row", "column"), weight=maps.reshape(*maps.shape[:2], side, side)))
    table["label"] = arrays["shown_labels"][table["image"]]
    return table


def _image_table(arrays: Mapping[str, Array]) -> Table:
    images = arrays["shown_images"]
    places = np.indices(images.shape[:3]).reshape(3, -1)
    table = dict(zip(("image", "row", "column"), places, strict=True))
    return table | {name: images[..., c].ravel().astype(int) for c, name in enumerate(("red", "green", "blue"))}


def shown_epochs(epochs: Array) -> Array:
    """A few of the epochs looked at: the first, the last, and closer together at the beginning.

    >>> shown_epochs(np.arange(41)).tolist()
    [0, 1, 3, 8, 19, 40]
    """
    places = np.round(np.geomspace(1, len(epochs), SHOWN_EPOCHS) - 1).astype(int)
    return epochs[np.unique(places)]


def _correlations(curves: Table, arrays: Mapping[str, Array]) -> Table:
    """Rank correlations of sparsity with the norm: over epochs, of changes, of single heads, and across heads."""
    trained = curves["epoch"] > 0  # the start is no result of training
    sparsity, norm = curves["sparsity"][trained], curves["norm"][trained]
    heads, norms = (arrays[name].reshape(len(arrays[name]), -1) for name in ("layer_sparsity", "layer_norm"))
    each = spearman(heads[trained].T, norms[trained].T)
    last = each[-arrays["layer_sparsity"].shape[2] :]
    changes = np.diff(sparsity), np.diff(norm)
    at_end = np.isfinite(heads[-1])  # a head that attends to nothing but itself has no sparsity

    def row(what: str, points: int, found: tuple[float, float, float]) -> dict[str, object]:
        return {"what": what, **dict(zip(("rho", "low", "high"), found, strict=True)), "points": points}

    return columns(
        [
            row("last layer, average map, over epochs", len(norm), correlation_interval(sparsity, norm)),
            row("the same, changes from look to look", len(norm) - 1, correlation_interval(*changes)),
            row(*_mean_and_range("heads of the last layer, over epochs: mean, least, largest", last)),
            row(*_mean_and_range("heads of all layers, over epochs: mean, least, largest", each)),
            row("across the heads of all layers, at the end", int(at_end.sum()),
                correlation_interval(heads[-1][at_end], norms[-1][at_end], block=1)),
        ]
    )  # fmt: skip


def _mean_and_range(what: str, values: Array) -> tuple[str, int, tuple[float, float, float]]:
    known = values[np.isfinite(values)]  # not of a head that once attended to nothing but itself
    return what, len(known), (float(known.mean()), float(known.min()), float(known.max()))


def correlation_interval(
    x: Float[Array, " n"], y: Float[Array, " n"], *, block: int | None = None, draws: int = 2000
) -> tuple[float, float, float]:
    """Spearman's correlation with a 95 % interval by resampling blocks of neighbouring points.

    Neighbouring epochs are alike, so whole blocks are drawn (the circular block bootstrap, block length the cube root
    of the number of points unless given). NaN where there are fewer than two points, or one of the two is constant.
    """
    n = len(x)
    if n < 2:
        return float("nan"), float("nan"), float("nan")
    block = max(1, round(n ** (1 / 3))) if block is None else block
    starts = np.random.default_rng(0).integers(0, n, (draws, -(-n // block)))
    places = ((starts[..., None] + np.arange(block)) % n).reshape(draws, -1)[:, :n]
    found = spearman(x[places], y[places])
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, (0.025, 0.975)) if found.size else (np.nan, np.nan)
    return float(spearman(x, y)), float(low), float(high)


def _notes(record: Mapping[str, Any], tables: Mapping[str, Table]) -> tuple[str, ...]:
    curves, machine, images = tables["curves"], record["machine"], record["images"]
    seconds = sum(call["seconds"] for call in record["calls"])
    return (
        f"{record['parameters']:,} parameters, {images['training']:,} training images, {curves['epoch'][-1]} epochs in "
        f"{seconds:.0f} s on {machine['device']} (torch {machine['torch']})",
        f"test accuracy {curves['test_accuracy'][-1]:.3f}; sparsity {curves['sparsity'][0]:.3f} to "
        f"{curves['sparsity'][-1]:.3f}; |W|_F {curves['norm'][0]:.2f} to {curves['norm'][-1]:.2f}",
    )
