"""Vision transformers trained on CIFAR-10, a plan of runs at a time: the runs behind Figures 6 and 7 of paper B.

    python -m benchmarks.gpu_vision short --data DATA --runs RUNS --out OUT --device cuda --budget 550

reads the images (the file of `tokenmargin data get cifar10`), trains the jobs of a plan one after the other, each in a
folder of its own under RUNS, and writes `vision-JOB.json` (settings, machine, a row an epoch) and `vision-JOB.npz`
(attention maps, measures per layer and head) to OUT. Called again, it goes on where the time was up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_training import write_results
from tokenmargin.data.images import ImageSet, load_images
from tokenmargin.training.config import choose_device
from tokenmargin.training.vision.learner import VisionConfig
from tokenmargin.training.vision.observed_training import train_vision_observed

__all__ = ["PLANS", "SHORT", "run_plan"]

LEAST = 15.0  # seconds without which no job is begun
SHORT = VisionConfig(epochs=24, rate=5e-4, warmup=2.0)
"""ViT-base for a few of the paper's epochs, at a sixth of its rate."""


@dataclass(frozen=True)
class VisionJob:
    """One training run of a plan, on the first `images` of the training images."""

    name: str
    config: VisionConfig
    images: int | None = None


PLANS: dict[str, tuple[VisionJob, ...]] = {
    "short": (VisionJob("short", SHORT),),
    "rates": (
        VisionJob("rate-5e-4", SHORT),
        VisionJob("rate-1e-3", replace(SHORT, rate=1e-3)),
        VisionJob("rate-3e-3", replace(SHORT, rate=3e-3)),
        VisionJob("rate-3e-3-sgd", replace(SHORT, rate=3e-3, optimizer="sgd")),
    ),
    "paper": (VisionJob("paper", VisionConfig()),),
}
"""`short` is the run of the documentation; `rates` asks how the printed rate does, under two optimisers."""

OPTIONS: dict[str, Callable[[str], Any]] = {
    "size": str,
    "patch": int,
    "epochs": int,
    "batch": int,
    "rate": float,
    "schedule": str,
    "warmup": float,
    "optimizer": str,
    "decay": float,
    "precision": str,
    "seed": int,
}
"""Settings that the command line may change."""


def run_plan(
    jobs: Sequence[VisionJob],
    images: ImageSet,
    *,
    runs: Path,
    out: Path,
    device: str,
    budget: float,
    compiled: bool,
) -> None:
    """Run jobs until they are done or the time is up; the results of each are on disk when it ends."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + budget
    for job in jobs:
        left = end - time.monotonic()
        if left < LEAST:
            print(f"{job.name}: not started, {max(left, 0.0):.0f} s left", flush=True)
            continue
        print(f"{job.name}: {job.config}", flush=True)
        chosen = images.first_images(training=job.images)
        history, record, arrays = train_vision_observed(
            job.config, chosen, folder=runs / job.name, device=device, budget=left, compiled=compiled
        )
        write_results(out / f"vision-{job.name}.json", record, out / f"vision-{job.name}.npz", arrays)
        print(
            f"{job.name}: {history.status} after {history.seconds:.1f} s, {len(history.metrics) - 1} epochs", flush=True
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a plan from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_vision", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("--data", type=Path, required=True, help="cifar10.npz")
    parser.add_argument("--runs", type=Path, required=True, help="folder for checkpoints; found again, a run goes on")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--device", default=choose_device())
    parser.add_argument(
        "--budget", type=float, default=540.0, help="seconds in all, less a few for the last checkpoint"
    )
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--images", type=int, help="train on the first so many images")
    parser.add_argument("--name", help="of the run, where it is not the plan's own: for its folder and its files")
    for name, kind in OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, help=f"another {name} than the plan's")
    chosen = vars(parser.parse_args(arguments))
    changes = {name: chosen[name] for name in OPTIONS if chosen[name] is not None}
    jobs = [
        VisionJob(chosen["name"] or job.name, replace(job.config, **changes), chosen["images"] or job.images)
        for job in PLANS[chosen["plan"]]
    ]
    compiled = chosen["device"] == "cuda" and not chosen["eager"]
    where = {name: chosen[name] for name in ("runs", "out", "device", "budget")}
    run_plan(jobs, load_images(chosen["data"]), **where, compiled=compiled)


if __name__ == "__main__":
    main()
