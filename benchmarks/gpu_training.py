"""Training runs of paper A's figures, one after the other, with everything they show in two small files.

    python -m benchmarks.gpu_training one-layer --data data --out out --device cuda

reads `imdb.npz` and `yelp.npz` (written by `PreparedText.save_ids`) from `--data`, makes the synthetic corpus itself,
and writes `results-PLAN.json` (settings, loss and alignment along training) and `scores-PLAN.npz` (`<E_s, p>`,
`<E_s, v>` and the posterior difference of every token). Both are written anew after each run, so a run that is cut off
loses only itself; with `--keep FOLDER` not even that: its checkpoints are there, and the same command goes on with it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from tokenmargin._files import atomic_path
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.instances import SYNTHETIC_SIZE, balanced_sequences, k_level_corpus
from tokenmargin.training.config import TrainingConfig, choose_device
from tokenmargin.training.probe import machine, train_observed

__all__ = ["PLANS", "PRINTED", "SYNTHETIC", "load_corpus", "run_plan", "write_results"]

PRINTED = TrainingConfig()
"""Paper A, appendix E, for IMDB and Yelp."""
SYNTHETIC = replace(PRINTED, epochs=196, rate=1e-4, decay=1e-4)
"""Paper A, appendix E, for the synthetic data."""
SMALL = replace(PRINTED, model="two-layer", dimension=128, epochs=120, milestones=())
"""The printed rate, decay and batch, kept constant, on few reviews in few dimensions."""
LEAST_OCCURRENCES = {1200: 20, 4000: 50, 12000: 50}  # of a token in so many reviews; the paper's 50 are for 50,000


@dataclass(frozen=True)
class Job:
    """One training run of a plan."""

    name: str
    dataset: str
    config: TrainingConfig
    budget: float = float("inf")


def _printed(model: str, seeds: Sequence[int], datasets: Sequence[str]) -> list[Job]:
    """The printed settings."""
    config = replace(PRINTED, model=model)  # type: ignore[arg-type]
    return [
        Job(f"{dataset} {model} paper seed {seed}", dataset, replace(config, seed=seed))
        for seed in seeds
        for dataset in datasets
    ]


def _grid(model: str, dataset: str, settings: Sequence[dict[str, Any]], *, budget: float = float("inf")) -> list[Job]:
    """Runs that differ from the printed settings as named."""
    jobs = []
    for changes in settings:
        name = " ".join(
            f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in changes.items()
        )
        config = replace(PRINTED, model=model, **changes)  # type: ignore[arg-type]
        jobs.append(Job(f"{dataset} {model} {name}", dataset, config, budget))
    return jobs


CONSTANT: tuple[int, ...] = ()
ONE_LAYER_SETTINGS: tuple[dict[str, Any], ...] = (
    *({"rate": rate, "epochs": 200} for rate in (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)),
    *({"rate": rate, "epochs": 100, "milestones": CONSTANT} for rate in (1e-3, 1e-4)),
    *(
        {"rate": rate, "epochs": 100, "embedding_scale": scale, "prompt_scale": scale}
        for rate in (1e-3, 1e-4)
        for scale in (0.1, 10.0)
    ),
    *({"rate": rate, "epochs": 100, "decay": 1e-2} for rate in (1e-2, 1e-3)),
)
TWO_LAYER_SETTINGS: tuple[dict[str, Any], ...] = (
    {"rate": 1e-4, "epochs": 300},
    *({"rate": rate, "epochs": 60} for rate in (1e-3, 3e-4, 3e-5)),
    *({"rate": 1e-4, "epochs": 60, "embedding_scale": scale, "prompt_scale": scale} for scale in (0.1, 10.0)),
)

SHORT: dict[str, Any] = {"epochs": 100, "milestones": (50, 75)}
BOTH: dict[str, Any] = {"scaled_logits": True, "affine_norm": True}


def _readings(seeds: Sequence[int] = (0, 1, 2)) -> list[Job]:
    """What the paper leaves open: v fixed, logits over sqrt(d), a layer norm with gain and bias; and d, rate, data."""
    heads, flags = ({}, {"trained_head": False}), ({}, {"scaled_logits": True})
    norms: tuple[dict[str, Any], ...] = ({}, {"affine_norm": True})
    whole = [
        {"dimension": d, **SHORT, **head, **logits, **norm}
        for d in (2048, 512, 128)
        for head in heads
        for logits in flags
        for norm in norms
    ]
    cut = {**SHORT, "max_tokens": 384}
    few = [
        {"dimension": d, "rate": rate, "epochs": 200, "milestones": ()}
        for d in (128, 512, 2048)
        for rate in (1e-2, 1e-3)
    ]
    return [
        *_grid("two-layer", "yelp-balanced", whole),
        *_grid("two-layer", "imdb", [{**cut, **BOTH, **head, "seed": seed} for seed in seeds for head in heads]),
        *_grid(
            "two-layer",
            "imdb",
            [{"dimension": d, **cut, **head, **how} for d in (512, 128) for how in ({}, BOTH) for head in heads],
        ),
        *(
            job
            for size in (1200, 4000)
            for name in ("yelp", "imdb")
            for job in _grid("two-layer", f"{name}-{size}", few)
        ),
        *(
            job
            for name in ("imdb", "yelp-balanced")
            for job in _grid("one-layer", name, [{**head, **logits} for head in heads for logits in flags])
        ),
        *(
            job
            for name in ("imdb", "yelp-balanced")
            for job in _grid("one-layer", name, [{"trained_head": False, "seed": seed} for seed in seeds[1:]])
        ),
    ]


def _phase(seeds: Sequence[int] = (0, 1, 2)) -> list[Job]:
    """Two layers, the formula to the letter, constant rate: loss and picture by rate, dimension and reviews."""
    epochs = {
        "yelp-1200": 200, "imdb-1200": 200, "yelp-4000": 200, "imdb-4000": 200,
        "yelp-balanced": 100, "imdb-12000": 100, "imdb": 60,
    }  # fmt: skip
    jobs = [
        (seed, number, *_grid("two-layer", dataset, [settings]))
        for number, dataset in enumerate(epochs)
        for d in (2048, 512, 128)
        for rate in (1e-2, 3e-3, 1e-3)
        for seed in (seeds if rate != 3e-3 else seeds[:1])
        for settings in [
            {"dimension": d, "rate": rate, "epochs": epochs[dataset], "milestones": CONSTANT, "seed": seed}
            | ({"max_tokens": 384} if dataset == "imdb" else {})
        ]
    ]
    return [job for _, _, job in sorted(jobs, key=lambda entry: entry[:2])]  # a seed of everything before the next


def _padded(seeds: Sequence[int] = (0, 1, 2)) -> list[Job]:
    """Reviews filled up with a padding token that attention sees, beside the same runs without; rate as printed."""
    heads: tuple[dict[str, Any], ...] = ({}, {"trained_head": False})
    readings: tuple[dict[str, Any], ...] = (BOTH, {}, {"scaled_logits": True}, {"affine_norm": True})
    runs = [("two-layer", SHORT | reading | head) for reading in readings for head in heads]
    runs += [("two-layer", SHORT | BOTH | {"seed": seed}) for seed in seeds[1:]]
    runs += [("one-layer", logits | head) for logits in ({}, {"scaled_logits": True}) for head in heads]
    return [
        job
        for model, settings in runs
        for dataset in ("yelp-balanced-padded", "imdb-padded")
        for job in _grid(model, dataset, [settings])
    ]


PLANS: dict[str, list[Job]] = {
    "one-layer": [
        *(
            Job(f"synthetic one-layer paper seed {seed}", "synthetic", replace(SYNTHETIC, seed=seed))
            for seed in range(3)
        ),
        *_printed("one-layer", range(3), ("imdb", "yelp", "yelp-balanced")),
        *_grid("one-layer", "yelp-balanced", ONE_LAYER_SETTINGS),
        *_grid("one-layer", "imdb", ONE_LAYER_SETTINGS),
    ],
    "two-layer": [
        *_grid("two-layer", "yelp-balanced", TWO_LAYER_SETTINGS),
        *_grid("two-layer", "imdb", [{"rate": 1e-4, "epochs": 80}]),
        *_printed("two-layer", (0,), ("yelp-balanced", "yelp")),
    ],
    "two-layer-imdb": _printed("two-layer", (0,), ("imdb",)),
    "readings": _readings(),
    "phase": _phase(),
    "best-reading": [
        *_grid("two-layer", "imdb", [{"max_tokens": 384, **BOTH}]),
        *_grid("two-layer", "yelp-balanced", [{**BOTH, "seed": seed} for seed in range(3)]),
    ],
    "padded": _padded(),
    "small": [
        Job(f"{dataset} two-layer d=128", dataset, replace(SMALL, seed=seed))
        for seed, dataset in enumerate(("yelp-1200", "yelp-1200-other", "imdb-1200"))
    ],
}
"""The runs behind the figures, the ones that must not be cut off first; `small` is for one core of a laptop."""


def load_corpus(name: str, folder: Path) -> TokenCorpus:
    """A corpus by its name: `synthetic`, or `imdb` and `yelp` whole, `-balanced`, or of so many reviews (`-1200`).

    The last are balanced, without the tokens that are rare in them; `-1200-other` are other reviews. `-padded`: every
    review cut or filled up to 384 tokens, or to the longest review where that is shorter.
    """
    if name.endswith("-padded"):
        return padded(load_corpus(name.removesuffix("-padded"), folder), 384)
    if name == "synthetic":
        return k_level_corpus(SYNTHETIC_SIZE, rng=np.random.default_rng(0))
    dataset, *variant = name.split("-")
    with np.load(folder / f"{dataset}.npz", allow_pickle=False) as file:
        ids, lengths, labels = (file[key] for key in ("ids", "lengths", "labels"))
        words = tuple(map(str, range(int(file["vocabulary"]))))
    corpus = TokenCorpus(ids.astype(np.intp), lengths.astype(np.intp), labels.astype(float), words)
    if not variant:
        return corpus
    rng = np.random.default_rng(1 if "other" in variant else 0)
    size = None if variant[0] == "balanced" else int(variant[0])
    chosen = balanced_sequences(corpus, rng, size=size)
    return chosen if size is None else without_rare(chosen, LEAST_OCCURRENCES[size])


def padded(corpus: TokenCorpus, width: int) -> TokenCorpus:
    """Every sequence cut or filled up by a token of its own to `width` tokens; at most to the longest there is."""
    width = min(width, int(corpus.lengths.max()))
    table = np.full((corpus.n, width), corpus.size)
    places = np.arange(len(corpus.tokens)) - np.repeat(np.cumsum(corpus.lengths) - corpus.lengths, corpus.lengths)
    kept = places < width
    table[corpus.sequence[kept], places[kept]] = corpus.tokens[kept]
    return TokenCorpus(table.ravel(), np.full(corpus.n, width), corpus.labels, (*corpus.vocabulary, "[PAD]"))


def without_rare(corpus: TokenCorpus, least: int) -> TokenCorpus:
    """The corpus without the tokens that occur less than `least` times in it; sequences keep their order."""
    common = np.bincount(corpus.tokens, minlength=corpus.size) >= least
    number = np.cumsum(common) - 1
    kept = common[corpus.tokens]
    words = tuple(word for word, stays in zip(corpus.vocabulary, common, strict=True) if stays)
    lengths = np.bincount(corpus.sequence[kept], minlength=corpus.n)
    return TokenCorpus(number[corpus.tokens[kept]], lengths, corpus.labels, words)


def run_plan(
    jobs: Sequence[Job],
    *,
    data: Path,
    out: Path,
    name: str,
    device: str,
    budget: float,
    keep: Path | None = None,
) -> list[dict[str, Any]]:
    """Run jobs until they are done or the time is up; results are on disk after each."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + budget
    corpora: dict[str, TokenCorpus] = {}
    records: list[dict[str, Any]] = []
    arrays: dict[str, Array] = {}
    for job in jobs:
        left = end - time.monotonic()
        if left < 5.0:
            records.append({"name": job.name, "status": "not started: out of time"})
            continue
        if job.dataset not in corpora:
            corpora[job.dataset] = load_corpus(job.dataset, data)
        folder = None if keep is None else keep / job.name.replace(" ", "-")
        corpus, budget = corpora[job.dataset], min(left - 2.0, job.budget)
        run, record, scores = train_observed(job.config, corpus, device=device, budget=budget, folder=folder)
        records.append({"name": job.name, "dataset": job.dataset, **record})
        arrays[f"{job.dataset}/posterior"] = corpus.posterior_difference.astype(np.float32)
        arrays[f"{job.name}/scores"] = scores.astype(np.float32)
        line = (
            f"{job.name:55} {run.status:12} {record['seconds']:7.1f} s {record['steps']:7d} steps  "
            f"loss {record['final loss']:.3e} accuracy {record['final accuracy']:.4f}  "
            f"rho_v {record['final rho_v']:+.3f} rho_p {record['final rho_p']:+.3f} sign {record['final sign']:.3f}"
        )
        print(line, flush=True)
        results = {"machine": machine(device), "runs": records}
        write_results(out / f"results-{name}.json", results, out / f"scores-{name}.npz", arrays)
    return records


def write_results(record: Path, results: Mapping[str, Any], table: Path, arrays: Mapping[str, Array]) -> None:
    """A record as JSON and arrays as `.npz`, each whole or as it was before."""
    with atomic_path(record) as beside:
        beside.write_text(json.dumps(results))
    with atomic_path(table) as beside, beside.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a plan from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_training", description=__doc__.split("\n")[0])
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with imdb.npz and yelp.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--keep", type=Path, help="folder for checkpoints, to go on with runs that were cut off")
    parser.add_argument("--device", default=choose_device())
    parser.add_argument("--budget", type=float, default=480.0, help="seconds in all")
    parser.add_argument("--only", default="", help="run only jobs whose name contains this")
    parser.add_argument("--share", default="0/1", help="K/N: every N-th job from the K-th on, for N processes at once")
    parser.add_argument("--epochs", type=int, help="fewer epochs, for a trial")
    parser.add_argument("--dimension", type=int, help="smaller embeddings, for a trial")
    chosen = parser.parse_args(arguments)
    changes = {key: getattr(chosen, key) for key in ("epochs", "dimension") if getattr(chosen, key) is not None}
    jobs = [
        replace(job, config=replace(job.config, **changes)) for job in PLANS[chosen.plan] if chosen.only in job.name
    ]
    share, shares = map(int, chosen.share.split("/"))
    jobs = jobs[share::shares]
    places = {"data": chosen.data, "out": chosen.out, "keep": chosen.keep}
    run_plan(jobs, name=chosen.plan, device=chosen.device, budget=chosen.budget, **places)


if __name__ == "__main__":
    main()
