"""Phase diagram of the two-layer model: `python -m benchmarks.training_phase RESULTS [--out docs]`.

RESULTS is a folder with the files `results-*.json` of `python -m benchmarks.gpu_training phase` (one a process).
Written: `results/training-phase.csv`, a row a run, and `img/training-phase.png`: final loss and rho_p by rate times
sqrt(d) and by reviews per token. The table of the documentation is printed: the worst and the best of the seeds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.tools import header, line, run_main, write_csv

COLUMNS = ("dataset", "texts", "tokens", "dimension", "rate", "epochs", "seed", "steps", "seconds")
OUTCOMES = ("loss", "accuracy", "rho_v", "rho_p", "sign", "alpha_v", "alpha_p")
Run = Mapping[str, Any]


def load(folder: Path) -> list[Run]:
    """The finished runs, one of each name."""
    runs: dict[str, Run] = {}
    for path in sorted(folder.glob("results-*.json")):
        runs |= {run["name"]: run for run in json.loads(path.read_text())["runs"] if run["status"] == "finished"}
    return list(runs.values())


def row(run: Run, sizes: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """What the table keeps of a run."""
    texts, tokens = sizes[run["dataset"]]
    kept = {**run["config"], **run, "texts": texts, "tokens": tokens}
    return {key: kept[key] for key in COLUMNS} | {key: run[f"final {key}"] for key in OUTCOMES if f"final {key}" in run}


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss and rho_p over the plane; a group of seeds is a row of dots."""
    figure = Figure(figsize=(6.75, 2.9), layout="constrained")
    for panel, key, title, scale in zip(
        figure.subplots(1, 2, sharey=True),
        ("loss", "rho_p"),
        (r"$\log_{10}$ of the final loss", r"rank correlation of $\langle E_s, p\rangle$ with $|(37)|$"),
        ("viridis_r", "viridis"),
        strict=True,
    ):
        x = np.array([r["rate"] * np.sqrt(r["dimension"]) * 1.07 ** (r["seed"] - 1) for r in rows])
        y = np.array([r["texts"] / r["tokens"] for r in rows]) * [1.06 if r["dataset"][0] == "y" else 1.0 for r in rows]
        values = np.array([np.log10(r[key]) if key == "loss" else r[key] for r in rows])
        marks = np.array([r["dataset"].startswith("yelp") for r in rows])
        limits = {"vmin": float(values.min()), "vmax": float(values.max()), "cmap": scale}
        for chosen, mark in ((marks, "o"), (~marks, "s")):
            dots = panel.scatter(x[chosen], y[chosen], c=values[chosen], s=22, marker=mark, lw=0, **limits)
        figure.colorbar(dots, ax=panel, label=title)
        panel.set(xscale="log", yscale="log", xlabel=r"rate $\times\sqrt{d}$")
        panel.set_yticks([1, 2, 3, 6], labels=["1", "2", "3", "6"])
        panel.set_yticks([], minor=True)
        if key == "loss":
            panel.set_ylabel("reviews per token")
    return figure


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """A row a setting: loss, rho_v and rho_p, from the least to the largest of the seeds."""
    groups: defaultdict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for r in rows:
        groups[r["dataset"], r["texts"], r["tokens"], r["dimension"], r["rate"]].append(r)
    print(header("data", "d", "rate", "rate sqrt(d)", "reviews per token", "seeds", "loss", "rho_v", "rho_p"))
    for (dataset, texts, tokens, d, rate), group in sorted(
        groups.items(), key=lambda g: (g[0][0][:4], g[0][1], *g[0][3:])
    ):
        spread = [sorted(r[key] for r in group) for key in ("loss", "rho_v", "rho_p")]
        loss = f"{spread[0][0]:.1e} to {spread[0][-1]:.1e}" if len(group) > 1 else f"{spread[0][0]:.1e}"
        rho = [f"{s[0]:.2f} to {s[-1]:.2f}" if len(group) > 1 else f"{s[0]:.2f}" for s in spread[1:]]
        place = (f"{rate * np.sqrt(d):.3f}", f"{texts / tokens:.1f}", len(group))
        print(line(dataset, d, f"{rate:g}", *place, loss, *rho))


def main(results: Path, /, *, data: Path, out: Path = Path("docs")) -> None:
    """`data` is the folder with imdb.npz and yelp.npz."""
    from benchmarks.gpu_training import load_corpus

    runs = load(results)
    corpora = {name: load_corpus(name, data) for name in sorted({run["dataset"] for run in runs})}
    sizes = {name: (len(corpus.lengths), corpus.size) for name, corpus in corpora.items()}
    rows = [row(run, sizes) for run in runs]
    write_csv(out / "results" / "training-phase.csv", list(rows[0]), (r.values() for r in rows))
    draw(rows).savefig(out / "img" / "training-phase.png", dpi=160)
    print_table(rows)
    good = [r for r in rows if r["loss"] <= 1e-4 and r["rho_v"] >= 0.5 and r["rho_p"] >= 0.3 and r["sign"] >= 0.8]
    print(f"\n{len(rows)} runs; loss at most 1e-4 with rho_v >= .5, rho_p >= .3, sign >= .8: {len(good)}")
    closer = [sum(r[f"rho_{of}"] > r[f"alpha_{of}"] for r in rows) for of in "vp"]
    print(f"closer to (37) than to alpha_s: <E, v> in {closer[0]}, <E, p> in {closer[1]}")


if __name__ == "__main__":
    run_main(main, __doc__)
