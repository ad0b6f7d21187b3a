"""Figures 6 and 7 and the tables of a full-size run: `python -m benchmarks.vision_figures RESULTS [--out docs]`.

RESULTS is a folder with the files of `python -m benchmarks.gpu_vision`. Written: `img/vision-fig6.png` (the
maps; the images themselves are not ours to publish), `img/vision-fig7.png`, `img/vision-layers.png`,
`results/vision-curves.csv`, `results/vision-heads.csv`, and the page `vision-results.md` with every number; with
`--stem` another word than "vision" begins their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from matplotlib.figure import Figure

from benchmarks.tools import header, line, run_main, write_csv
from tokenmargin.experiments import Result, Table
from tokenmargin.experiments.figures.vision import Figure7, VisionAttention
from tokenmargin.report.results import draw_maps, draw_sparsity
from tokenmargin.report.style import ONE, paper_style

SETTINGS = ("size", "patch", "epochs", "batch", "rate", "schedule", "warmup", "optimizer", "decay", "seed")


def load(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A run's record and arrays."""
    record = json.loads((folder / f"vision-{name}.json").read_text())
    with np.load(folder / f"vision-{name}.npz") as file:
        return record, {key: file[key] for key in file.files}


def as_result(record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Result:
    """The run as Figure 7 judges it."""
    experiment: VisionAttention = Figure7(**{name: record["config"][name] for name in SETTINGS})
    return experiment.result(record, arrays)


def save_figures(result: Result, folder: Path, stem: str) -> None:
    """The two figures of the paper, and the layers side by side."""
    folder.mkdir(parents=True, exist_ok=True)
    with paper_style():
        maps = Figure(figsize=(6.75, 5.8), layout="constrained")
        draw_maps(result, maps.add_subplot(), images=False)
        curves = Figure(figsize=ONE, layout="constrained")
        draw_sparsity(result, curves.add_subplot())
        for name, figure in (("fig6", maps), ("fig7", curves), ("layers", draw_layers(result.tables["heads"]))):
            figure.savefig(folder / f"{stem}-{name}.png")


def draw_layers(heads: Table) -> Figure:
    """Sparsity and norm by epoch, a curve a layer (mean over its heads), and every head at the end."""
    figure = Figure(figsize=(6.75, 2.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    layers = np.unique(heads["layer"])
    colours = [(0.15 + 0.75 * k / len(layers), 0.35, 0.75 - 0.6 * k / len(layers)) for k in range(len(layers))]
    epochs = np.unique(heads["epoch"])
    for layer, colour in zip(layers, colours, strict=True):
        here = heads["layer"] == layer
        for panel, column in ((left, "sparsity"), (middle, "norm")):
            means = [np.nanmean(heads[column][here & (heads["epoch"] == epoch)]) for epoch in epochs]
            panel.plot(epochs, means, color=colour, linewidth=1, label=f"layer {layer + 1}")
        last = here & (heads["epoch"] == epochs[-1])
        right.scatter(heads["norm"][last], heads["sparsity"][last], s=9, color=colour)
    left.set(xlabel="epoch", ylabel="sparsity level, mean of the heads", ylim=(0, None))
    middle.set(xlabel="epoch", ylabel="norm of a head's product, mean", ylim=(0, None))
    right.set(xlabel="norm of a head's product, at the end", ylabel="sparsity level", ylim=(0, None))
    left.legend(fontsize=5, frameon=False, ncols=2)
    return figure


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    short = ([f"{value:.4g}" if isinstance(value, float) else value for value in row] for row in rows)
    return "\n".join([header(*columns), *(line(*row) for row in short)])


def page(result: Result, record: Mapping[str, Any], others: Sequence[Mapping[str, Any]], stem: str) -> str:
    """Everything measured, as markdown."""
    tables, machine, images = result.tables, record["machine"], record["images"]
    curves = tables["curves"]
    calls = ", ".join(f"{call['seconds']:.0f} s ({call['status']})" for call in record["calls"])
    settings = ", ".join(f"{name} {value}" for name, value in record["config"].items())
    looked = np.unique(np.round(np.geomspace(1, len(curves["epoch"]), 14) - 1).astype(int))
    shown = ("epoch", "loss", "test_accuracy", "sparsity", "head_sparsity", "entropy", "top_10", "own", "norm",
             "head_norm", "direction")  # fmt: skip
    rows = [[int(curves["epoch"][k]), *(float(curves[name][k]) for name in shown[1:])] for k in looked]
    found = tables["correlations"]
    parts = [
        f"# Attention of a vision transformer: the run at rate {record['config']['rate']:g}\n",
        "Written by `python -m benchmarks.vision_figures`; what it means is in [vision](vision.md).\n",
        f"{machine['device']}, torch {machine['torch']}, Python {machine['python']}, numpy {machine['numpy']}. "
        f"{record['parameters']:,} parameters; {images['training']:,} training and {images['test']:,} test images "
        f"(sha256 of pixels and labels {images['sha256'][:16]}); {'compiled' if record['compiled'] else 'eager'}; "
        f"calls: {calls}.\n\nSettings: {settings}.\n",
        f"![Attention maps](img/{stem}-fig6.png)\n\nWhere [CLS] attends in the last layer, average over its heads, in "
        "one test image a class; each map from zero to its own largest weight, printed as a multiple of uniform.\n",
        f"![Sparsity and norm](img/{stem}-fig7.png)\n\n![Layers](img/{stem}-layers.png)\n",
        "## Findings\n\n" + markdown(
            ("quantity", "measured", "expected", "verdict"),
            [
                (finding.what.replace("|", "\\|"), finding.measured, finding.expected, finding.verdict)
                for finding in result.findings
            ],
        ) + "\n",
        "## Rank correlations of sparsity with the norm\n\n" + markdown(
            ("of", "rho", "low", "high", "points"), list(zip(*(found[name].tolist() for name in found), strict=True))
        ) + "\n",
        "## By epoch\n\n" + markdown(shown, rows) + f"\n\nAll epochs: [curves](results/{stem}-curves.csv); every head: "
        f"[heads](results/{stem}-heads.csv). `direction`: cosine of W with its last value.\n",
    ]  # fmt: skip
    if others:
        parts.append("## Other settings, first epochs\n\n" + _other_runs(others) + "\n")
    return "\n".join(parts)


def _other_runs(records: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for record in records:
        config, last = record["config"], record["metrics"][-1]
        start = next(row for row in record["metrics"] if "sparsity" in row)
        rows.append(
            (config["size"], config["optimizer"], config["rate"], record["images"]["training"], last["epoch"],
             float(last.get("loss", np.nan)), last["test accuracy"], start["sparsity"], last["sparsity"],
             start["norm"], last["norm"])
        )  # fmt: skip
    names = ("size", "optimiser", "rate", "images", "epochs", "loss", "test accuracy", "sparsity at start", "at end",
             "norm at start", "at end")  # fmt: skip
    return markdown(names, rows)


def main(
    results: Path,
    /,
    *,
    out: Path = Path("docs"),
    shown: Annotated[str, Parameter(name="--run")] = "short",
    stem: str = "vision",
) -> None:
    """The figures are of the run `shown`."""
    record, arrays = load(results, shown)
    names = sorted(path.stem.removeprefix("vision-") for path in results.glob("vision-*.json"))
    others = [load(results, name)[0] for name in names if name != shown]
    result = as_result(record, arrays)
    save_figures(result, out / "img", stem)
    for name in ("curves", "heads"):
        table = result.tables[name]
        write_csv(out / "results" / f"{stem}-{name}.csv", list(table), zip(*table.values(), strict=True))
    (out / f"{stem}-results.md").write_text(page(result, record, others, stem), encoding="utf-8")
    for finding in result.findings:
        print(f"{finding.verdict}: {finding.what}: {finding.measured:.4g} (expected {finding.expected})")


if __name__ == "__main__":
    run_main(main, __doc__)
