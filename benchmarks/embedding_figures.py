"""Pictures and tables of the full-size training runs: `python -m benchmarks.embedding_figures RESULTS [--out docs]`.

RESULTS is a folder with the files of `python -m benchmarks.gpu_training`. Written: `img/embeddings-FIGURE.png`
(every token's products at the printed settings and at ours), `img/embeddings-along.png` (loss and alignment along
training), `results/training-runs.csv` (a row a run) and `results/training-curves.csv` (a row an epoch looked at). Those
of the plan `small` alone: `--tables training-small`. The
tables of docs/training-notes.md are printed; with `--data`, the study's folder of ids, also how concentrated attention
is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from benchmarks.gpu_training import load_corpus
from benchmarks.tools import header, line, run_main, write_csv
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.report.figures import draw_products
from tokenmargin.report.style import GLOBAL, LOCAL, MUTED, paper_style

FIGURES = {
    "A1": ("imdb two-layer paper seed 0", "imdb two-layer rate=0.0001 epochs=80"),
    "A2": ("synthetic one-layer paper seed 0",),
    "A3-imdb": ("imdb one-layer paper seed 0", "imdb one-layer rate=1e-05 epochs=200"),
    "A3-yelp": (
        "yelp one-layer paper seed 0",
        "yelp-balanced one-layer paper seed 0",
        "yelp-balanced one-layer rate=1e-05 epochs=200",
    ),
    "A4": (
        "yelp two-layer paper seed 0",
        "yelp-balanced two-layer paper seed 0",
        "yelp-balanced two-layer rate=0.001 epochs=60",
    ),
    "small": tuple(f"{data} two-layer d=128" for data in ("yelp-1200", "yelp-1200-other", "imdb-1200")),
}
"""The runs beside each other in a figure: the printed settings first, ours last; `small` on its own."""

SETTINGS = ("dataset", "model", "rate", "epochs", "milestones", "decay", "embedding_scale", "seed")
OUTCOMES = ("status", "steps", "seconds", "loss", "accuracy", "rho_v", "rho_p", "sign")
ALONG = ("epoch", "loss", "rho_v", "rho_p", "sign")
Runs = Mapping[str, Mapping[str, Any]]


def load(folder: Path) -> tuple[Runs, Mapping[str, np.ndarray]]:
    """Every run by its name, and the arrays."""
    runs: dict[str, Mapping[str, Any]] = {}
    arrays: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("results-*.json")):
        runs |= {run["name"]: run for run in json.loads(path.read_text())["runs"] if "config" in run}
        with np.load(path.with_name(path.name.replace("results-", "scores-")).with_suffix(".npz")) as file:
            arrays |= {key: file[key] for key in file.files}
    return runs, arrays


def label(run: Mapping[str, Any]) -> str:
    """The data, and what differs from the printed settings."""
    settings = "printed settings" if " paper " in run["name"] else run["name"].split("-layer ")[1]
    return f"{run['dataset']}, {settings}"


def describe(run: Mapping[str, Any]) -> str:
    """A run in a line: what it was and how it ended."""
    done = "" if run["status"] == "finished" else f", stopped after {run['metrics'][-1]['epoch']} epochs"
    return (
        f"{label(run)}{done}: loss {run['final loss']:.2g}, rho_p {run['final rho_p']:.2f}, "
        f"rho_v {run['final rho_v']:.2f}, sign {run['final sign']:.2f}"
    )


def draw_scatter(runs: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]) -> Figure:
    """A row a run: products with p and with v against the posterior difference."""
    figure = Figure(figsize=(6.75, 2.6 * len(runs)), layout="constrained")
    for run, row in zip(runs, np.atleast_1d(figure.subfigures(len(runs))), strict=True):
        row.suptitle(describe(run), fontsize=7.5)
        posterior = arrays[f"{run['dataset']}/posterior"]
        for panel, products, name in zip(row.subplots(1, 2), arrays[f"{run['name']}/scores"], "pv", strict=True):
            draw_products(panel, posterior, products, name=name)
            low, high = np.quantile(products, (0.002, 0.998))  # a few tokens would flatten all others
            panel.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    return figure


def draw_along(runs: Runs) -> Figure:
    """Loss, rho_v and rho_p against the epoch; a column a figure of the paper."""
    figure = Figure(figsize=(6.75, 4.6), layout="constrained")
    figures = {title: names for title, names in FIGURES.items() if title != "small"}
    panels = figure.subplots(3, len(figures), sharex="col", sharey="row")
    ours, printed, unequal = "ours", "printed settings", "printed settings, labels as unequal as they are"
    colours = {printed: GLOBAL, ours: LOCAL, unequal: MUTED}
    for column, (title, names) in zip(panels.T, figures.items(), strict=True):
        first = runs[names[0]]
        column[0].set_title(f"{title.partition('-')[0]}: {first['config']['model']},\n{first['dataset']}", fontsize=8)
        for run in (runs[name] for name in names):
            kind = ours if " paper " not in run["name"] else unequal if run["dataset"] == "yelp" else printed
            seen = [row for row in run["metrics"] if "rho_v" in row]
            for panel, key in zip(column, ("loss", "rho_v", "rho_p"), strict=True):
                panel.plot([row["epoch"] for row in seen], [row[key] for row in seen], color=colours[kind])
        column[0].set(xscale="log", yscale="log")
        column[2].set_xlabel("epoch", fontsize=8)
        for panel in column:
            panel.tick_params(labelsize=7)
    lines = [Line2D([], [], color=colour) for colour in colours.values()]
    figure.legend(lines, list(colours), loc="outside lower center", ncols=len(lines), fontsize=7, frameon=False)
    for panel, quantity in zip(panels[:, 0], ("training loss", "rho_v", "rho_p"), strict=True):
        panel.set_ylabel(quantity, fontsize=8)
    return figure


def write_tables(runs: Runs, folder: Path, name: str) -> None:
    """The outcome of every run, and its course."""
    rows = []
    for run in runs.values():
        values = {"dataset": run["dataset"], **run["config"], **run}
        values |= {key.removeprefix("final "): value for key, value in run.items() if key.startswith("final ")}
        values["milestones"] = " ".join(map(str, run["config"]["milestones"]))
        rows.append([values[key] for key in (*SETTINGS, *OUTCOMES)])
    write_csv(folder / f"{name}-runs.csv", (*SETTINGS, *OUTCOMES), rows)
    seen = [(name, row) for name, run in runs.items() for row in run["metrics"] if "rho_v" in row]
    write_csv(folder / f"{name}-curves.csv", ("run", *ALONG), ([name, *map(row.get, ALONG)] for name, row in seen))


def print_tables(runs: Runs) -> None:
    """The tables of docs/training-notes.md: the printed settings over seeds, then the study of settings."""
    print(header("model", "data", "seeds", "loss", "rho_v", "rho_p", "sign", "seconds"))
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for name, run in runs.items():
        if " paper " in name:
            groups.setdefault(name.split(" paper ")[0], []).append(run)
    for name, group in groups.items():
        dataset, model = name.split(" ", 1)
        cells = [_spread([run[f"final {key}"] for run in group]) for key in ("loss", "rho_v", "rho_p", "sign")]
        seconds = np.mean([run["seconds"] for run in group])
        print(line(model, dataset, len(group), *cells, f"{seconds:.1f}"))
    best = "best rho_p: epoch, loss, rho_v, rho_p"
    print("\n" + header("model", "data", "settings", "loss", "rho_v", "rho_p", "sign", best))
    for name, run in runs.items():
        if " paper " in name:
            continue
        dataset, model, settings = name.split(" ", 2)
        cells = [f"{run['final loss']:.2g}", *(f"{run[f'final {key}']:.3f}" for key in ("rho_v", "rho_p", "sign"))]
        top = max((row for row in run["metrics"] if "rho_p" in row), key=lambda row: row["rho_p"])
        course = f"{top['epoch']}, {top['loss']:.2g}, {top['rho_v']:.2f}, {top['rho_p']:.2f}"
        print(line(model, dataset, settings, *cells, course))


def print_at_loss(runs: Runs, loss: float) -> None:
    """The alignment at one loss, whatever the rate: runs that differ from the printed settings in the rate alone."""
    first = f"first epoch of loss <= {loss:g}"
    print("\n" + header("model", "data", "rate", first, "loss", "rho_v", "rho_p", "sign"))
    for run in runs.values():
        config = run["config"]
        if config["embedding_scale"] != 1 or config["decay"] != 1e-8 or not config["milestones"] or config["seed"] != 0:
            continue
        reached = [row for row in run["metrics"] if "rho_v" in row and row["loss"] <= loss]
        if reached:
            cells = (f"{reached[0][key]:.2f}" for key in ("loss", "rho_v", "rho_p", "sign"))
            print(line(config["model"], run["dataset"], f"{config['rate']:g}", reached[0]["epoch"], *cells))


def print_concentration(runs: Runs, arrays: Mapping[str, np.ndarray], data: Path) -> None:
    """How much of a review's attention its most attended token has: one-layer, the printed settings and ours."""
    weights = ("mean weight of the top token", "reviews where it is > 0.999")
    print("\n" + header("run", "loss", "deviation of <E, p>", *weights))
    ours = {names[-1] for names in FIGURES.values()}
    find = cache(lambda dataset: load_corpus(dataset, data))
    for name, run in runs.items():
        if run["config"]["model"] != "one-layer" or not (" paper " in name or name in ours):
            continue
        corpus = find(run["dataset"])
        logits = arrays[f"{name}/scores"][0].astype(float)
        top = top_weights(logits, corpus)
        cells = (f"{run['final loss']:.2g}", f"{logits.std():.3g}", f"{top.mean():.3f}", f"{(top > 0.999).mean():.3f}")
        print(line(name, *cells))


def top_weights(logits: np.ndarray, corpus: TokenCorpus) -> np.ndarray:
    """Attention of each sequence's most attended token, all its occurrences together."""
    starts = np.cumsum(corpus.lengths) - corpus.lengths
    values = logits[corpus.tokens]
    below = values - np.maximum.reduceat(values, starts)[corpus.sequence]
    return np.add.reduceat((below == 0).astype(float), starts) / np.add.reduceat(np.exp(below), starts)


def save(figure: Figure, path: Path) -> None:
    """A PNG of 64 colours: a third of the size, and points look the same."""
    figure.savefig(path, dpi=160)
    Image.open(path).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def _spread(values: Sequence[float]) -> str:
    digits = ".3f" if np.mean(values) > 0.01 else ".2g"
    spread = f" ± {np.std(values, ddof=1):{digits}}" if len(values) > 1 else ""
    return f"{np.mean(values):{digits}}{spread}"


def main(results: Path, /, *, out: Path = Path("docs"), tables: str = "training", data: Path | None = None) -> None:
    """`tables` is what the tables' names begin with, `data` the folder with imdb.npz and yelp.npz."""
    runs, arrays = load(results)
    images = out / "img"
    images.mkdir(parents=True, exist_ok=True)
    there = {figure: names for figure, names in FIGURES.items() if all(name in runs for name in names)}
    for figure, names in there.items():
        with paper_style():
            picture = draw_scatter([runs[name] for name in names], arrays)
        save(picture, images / f"embeddings-{figure}.png")
    if there.keys() - {"small"}:
        with paper_style():
            save(draw_along(runs), images / "embeddings-along.png")
    write_tables(runs, out / "results", tables)
    print_tables(runs)
    print_at_loss(runs, 0.2)
    if data is not None:
        print_concentration(runs, arrays, data)


if __name__ == "__main__":
    run_main(main, __doc__)
