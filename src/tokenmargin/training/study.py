"""Training runs of paper A's figures, one after the other, with everything they show in two small files.

    python -m tokenmargin.training.study one-layer --data data --out out --device cuda

reads `imdb.npz` and `yelp.npz` (written by `PreparedText.save_ids`) from `--data`, makes the synthetic corpus itself,
and writes `results-PLAN.json` (settings, loss and alignment along training) and `scores-PLAN.npz` (`<E_s, p>`,
`<E_s, v>` and the posterior difference of every token). Both are written anew after each run, so a run that is cut off
loses only itself; with `--keep FOLDER` not even that: its checkpoints are there, and the same command goes on with it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray as Array

from tokenmargin.corpora import SYNTHETIC_SIZE, k_level_corpus
from tokenmargin.corpus import TokenCorpus
from tokenmargin.training.batches import TokenData
from tokenmargin.training.probe import alignment, attention_mass, evaluate, token_scores
from tokenmargin.training.trainer import TrainingConfig, TrainingRun, train

__all__ = [
    "PLANS",
    "PRINTED",
    "SYNTHETIC",
    "Job",
    "balanced",
    "load_corpus",
    "run_job",
    "run_plan",
    "subset",
    "without_rare",
    "write_results",
]

PRINTED = TrainingConfig()
"""Paper A, appendix E, for IMDB and Yelp."""
SYNTHETIC = replace(PRINTED, epochs=196, rate=1e-4, decay=1e-4)
"""Paper A, appendix E, for the synthetic data."""
SMALL = replace(PRINTED, model="two-layer", dimension=128, epochs=120, milestones=())
"""The printed rate, decay and batch, kept constant, on few reviews in few dimensions."""
LEAST_OCCURRENCES = 20  # of a token in a corpus of few reviews; the paper's 50 are for 50,000


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
    "small": [
        Job(f"{dataset} two-layer d=128", dataset, replace(SMALL, seed=seed))
        for seed, dataset in enumerate(("yelp-1200", "yelp-1200-other", "imdb-1200"))
    ],
}
"""The runs behind the figures, the ones that must not be cut off first; `small` is for one core of a laptop."""


def load_corpus(name: str, folder: Path) -> TokenCorpus:
    """A corpus of the figures by its name: `synthetic`, or `imdb` and `yelp` whole, `-balanced`, or of `-1200` reviews.

    The last are balanced, without the tokens that are rare in them; `-1200-other` are other reviews.
    """
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
    chosen = balanced(corpus, rng, size=size)
    return chosen if size is None else without_rare(chosen, LEAST_OCCURRENCES)


def balanced(corpus: TokenCorpus, rng: np.random.Generator, *, size: int | None = None) -> TokenCorpus:
    """As many sequences of either label, `size` in all: by default as many as the smaller class allows."""
    sides = [np.flatnonzero(corpus.labels == y) for y in (-1.0, 1.0)]
    each = min(map(len, sides)) if size is None else size // 2
    rows = np.zeros(corpus.n, dtype=bool)
    for side in sides:
        rows[rng.choice(side, each, replace=False)] = True
    return subset(corpus, np.flatnonzero(rows))


def without_rare(corpus: TokenCorpus, least: int) -> TokenCorpus:
    """The corpus without the tokens that occur less than `least` times in it; sequences keep their order."""
    common = np.bincount(corpus.tokens, minlength=corpus.size) >= least
    number = np.cumsum(common) - 1
    kept = common[corpus.tokens]
    words = tuple(word for word, stays in zip(corpus.vocabulary, common, strict=True) if stays)
    lengths = np.bincount(corpus.sequence[kept], minlength=corpus.n)
    return TokenCorpus(number[corpus.tokens[kept]], lengths, corpus.labels, words)


def subset(corpus: TokenCorpus, rows: Int[Array, " r"]) -> TokenCorpus:
    """Some sequences, in their order; the vocabulary stays."""
    kept = np.zeros(corpus.n, dtype=bool)
    kept[rows] = True
    return TokenCorpus(
        corpus.tokens[kept[corpus.sequence]], corpus.lengths[kept], corpus.labels[kept], corpus.vocabulary
    )


def observed_epochs(epoch: int) -> bool:
    """About ten epochs per decade are looked at closely."""
    return epoch <= 10 or epoch % 10 ** int(np.log10(epoch)) == 0 or (epoch > 100 and epoch % 20 == 0)


def run_job(
    job: Job,
    corpus: TokenCorpus,
    *,
    device: str,
    budget: float,
    folder: Path | None = None,
    progress: Callable[[Any], None] | None = None,
) -> tuple[TrainingRun, dict[str, Any], dict[str, Array]]:
    """Train, and gather what the figures need: the record and the arrays."""
    offsets = np.concatenate([[0], np.cumsum(corpus.lengths)])
    data = TokenData.of(corpus.tokens, offsets, corpus.labels, m=corpus.size, device=device)
    run = train(
        data,
        job.config,
        folder=folder,
        checkpoint_every=300.0,
        budget=min(budget, job.budget),
        observe=lambda model: asdict(alignment(token_scores(model), corpus)),
        observe_at=observed_epochs,
        chunk=1 << 20 if device == "cuda" and job.config.model == "one-layer" else 64,
        progress=progress,
    )
    loss, accuracy = evaluate(run.model, corpus)
    scores = token_scores(run.model)
    record = {
        "name": job.name,
        "dataset": job.dataset,
        "config": asdict(job.config),
        "status": run.status,
        "seconds": run.seconds,
        "steps": run.model.state.step,
        "final loss": loss,
        "final accuracy": accuracy,
        **{f"final {key}": value for key, value in asdict(alignment(scores, corpus)).items()},
        "mass": attention_mass(scores[0], corpus) if job.config.model == "one-layer" else None,
        "metrics": run.metrics,
    }
    arrays = {"scores": scores.astype(np.float32), "posterior": corpus.posterior_difference.astype(np.float32)}
    return run, record, arrays


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
        run, record, found = run_job(job, corpora[job.dataset], device=device, budget=left - 2.0, folder=folder)
        records.append(record)
        arrays[f"{job.dataset}/posterior"] = found["posterior"]
        arrays[f"{job.name}/scores"] = found["scores"]
        line = (
            f"{job.name:55} {run.status:12} {record['seconds']:7.1f} s {record['steps']:7d} steps  "
            f"loss {record['final loss']:.3e} accuracy {record['final accuracy']:.4f}  "
            f"rho_v {record['final rho_v']:+.3f} rho_p {record['final rho_p']:+.3f} sign {record['final sign']:.3f}"
        )
        print(line, flush=True)
        results = {"machine": machine(device), "runs": records}
        write_results(out / f"results-{name}.json", results, out / f"scores-{name}.npz", arrays)
    return records


def machine(device: str) -> dict[str, str]:
    """What the numbers were measured on."""
    chip = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {"device": chip, "torch": torch.__version__, "python": platform.python_version(), "numpy": np.__version__}


def write_results(record: Path, results: Mapping[str, Any], table: Path, arrays: Mapping[str, Array]) -> None:
    """A record as JSON and arrays as `.npz`, each whole or as it was before."""
    partial = record.with_name(f".{record.stem}")
    partial.write_text(json.dumps(results))
    os.replace(partial, record)
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    os.replace(partial, table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a plan from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tokenmargin.training.study", description=__doc__.split("\n")[0])
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with imdb.npz and yelp.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--keep", type=Path, help="folder for checkpoints, to go on with runs that were cut off")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds in all")
    parser.add_argument("--only", default="", help="run only jobs whose name contains this")
    parser.add_argument("--epochs", type=int, help="fewer epochs, for a trial")
    parser.add_argument("--dimension", type=int, help="smaller embeddings, for a trial")
    chosen = parser.parse_args(arguments)
    changes = {key: getattr(chosen, key) for key in ("epochs", "dimension") if getattr(chosen, key) is not None}
    jobs = [
        replace(job, config=replace(job.config, **changes)) for job in PLANS[chosen.plan] if chosen.only in job.name
    ]
    places = {"data": chosen.data, "out": chosen.out, "keep": chosen.keep}
    run_plan(jobs, name=chosen.plan, device=chosen.device, budget=chosen.budget, **places)


if __name__ == "__main__":
    main()
