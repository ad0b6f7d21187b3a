"""Vision transformers trained on CIFAR-10 and looked at while they train: the runs behind Figures 6 and 7 of paper B.

    python -m tokenmargin.training.vision.study short --data DATA --runs RUNS --out OUT --device cuda --budget 550

reads the images (the file of `tokenmargin data get cifar10`, or a folder of packed parts), trains the jobs of a plan
one after the other, each in a folder of its own under RUNS, and writes `vision-JOB.json` (settings, machine, a row an
epoch) and `vision-JOB.npz` (attention maps, measures per layer and head) to OUT. Called again, it goes on where the
time was up.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from tokenmargin._files import atomic_path
from tokenmargin.data.images import ImageSet, load_images
from tokenmargin.training.device import choose_device
from tokenmargin.training.epochs import Progress, TrainingHistory, run_epochs
from tokenmargin.training.study import machine, write_results
from tokenmargin.training.vision.attention_probe import measure_attention, model_norms
from tokenmargin.training.vision.learner import ImageData, VisionConfig, VisionLearner

__all__ = ["PLANS", "SHORT", "VisionJob", "VisionProbe", "run_job", "run_plan"]

PROBED, SHOWN, BATCH = 256, 10, 64
CHECKPOINT_EVERY, LEAST = 240.0, 15.0  # seconds
SHORT = VisionConfig(epochs=24, rate=5e-4, warmup=2.0)
"""ViT-base for a few of the paper's epochs, at a sixth of its rate."""


@dataclass(frozen=True)
class VisionJob:
    """One training run."""

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


class VisionProbe:
    """What is looked at after an epoch, on the same test images each time, with the parameters as they are.

    A call gives the numbers of the epoch's row and keeps the arrays, and the last layer's key and query weights, in
    `folder`, one file an epoch each. It draws nothing at random and changes nothing.
    """

    def __init__(self, data: ImageData, folder: Path, *, probed: int = PROBED, shown: int = SHOWN) -> None:
        self.data, self.folder = data, folder
        self.images = data.test_images[:probed]
        self.shown = first_of_each(data.test_labels[:probed].cpu().numpy())[:shown]

    @torch.no_grad()
    def __call__(self, learner: VisionLearner) -> Mapping[str, float]:
        model = learner.model
        weights = [model.class_attention(self.data.normal(part)).cpu() for part in torch.split(self.images, BATCH)]
        found = measure_attention(list(torch.cat(weights, dim=1)))
        norms, together = model_norms([block.attention for block in model.blocks], heads=model.shape.heads)  # type: ignore[misc]
        loss, accuracy = learner.evaluate(self.data.test_images, self.data.test_labels)
        tokens = model.shape.tokens
        epoch = learner.state.step // -(-self.data.n // learner.config.batch)
        query, key = model.blocks[-1].attention.key_query()  # type: ignore[operator, union-attr]
        self._keep(f"weights-{epoch:05d}.npz", query=query.cpu().numpy(), key=key.cpu().numpy())
        self._keep(
            f"probe-{epoch:05d}.npz",
            layer_sparsity=found.sparsity / tokens,
            layer_norm=norms,
            layer_norm_together=together,
            image_sparsity=found.mean_sparsity[-1] / tokens,
            maps=found.mean_map[-1, self.shown].astype(np.float32),
        )
        return {
            "test loss": loss,
            "test accuracy": accuracy,
            "sparsity": float(found.mean_sparsity[-1].mean()) / tokens,
            "head sparsity": float(found.sparsity[-1].mean()) / tokens,
            "entropy": float(found.mean_entropy[-1].mean()),
            "top 10": float(found.mean_top[-1].mean()),
            "own": float(found.own[-1].mean()),
            "norm": float(together[-1]),
            "head norm": float(norms[-1].mean()),
        }

    def _keep(self, name: str, **arrays: Array) -> None:
        with atomic_path(self.folder / name) as beside, beside.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def _kept(self, name: str) -> dict[str, Array]:
        with np.load(self.folder / name) as file:
            return {key: file[key] for key in file.files}

    def gather(self, epochs: Sequence[int]) -> dict[str, Array]:
        """The kept arrays of some epochs, stacked; the cosine of each key-query product with the last; the images."""
        kept = [self._kept(f"probe-{epoch:05d}.npz") for epoch in epochs]
        stacked = {name: np.stack([arrays[name] for arrays in kept]) for name in kept[0]}
        last = self._kept(f"weights-{epochs[-1]:05d}.npz")
        stacked["direction"] = np.array([_cosine(self._kept(f"weights-{epoch:05d}.npz"), last) for epoch in epochs])
        shown = torch.as_tensor(self.shown, device=self.images.device)
        labels: Tensor = self.data.test_labels[shown]
        return stacked | {
            "epoch": np.array(epochs),
            "shown": self.shown,
            "shown_labels": labels.cpu().numpy(),
            "shown_images": self.images[shown].cpu().numpy(),
        }


def _cosine(one: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    """Cosine of two products `Q' K`, by `<Q' K, R' L> = <Q R', K L'>`."""

    def inner(a: Mapping[str, Array], b: Mapping[str, Array]) -> float:
        return float(((a["query"] @ b["query"].T) * (a["key"] @ b["key"].T)).sum(dtype=float))

    return inner(one, other) / float(np.sqrt(inner(one, one) * inner(other, other)))


def first_of_each(labels: Array) -> Array:
    """Where each class occurs first, in the order of the classes."""
    return np.unique(labels, return_index=True)[1]


def run_job(
    job: VisionJob,
    images: ImageSet,
    *,
    folder: Path,
    device: str = "cpu",
    budget: float = float("inf"),
    compiled: bool = False,
    checkpoints: bool = True,
    observe_at: Callable[[int], bool] = lambda epoch: True,
    progress: Callable[[Progress], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> tuple[TrainingHistory, dict[str, Any], dict[str, Array]]:
    """Train in a folder, or go on there, and gather what the figures need: the record and the arrays.

    **Arguments**
    - `checkpoints`: without them a run cannot go on, and begins anew.
    - `observe_at`: the epochs after which the model is looked at; 0 is before the first.
    - `tell`: called with a line after every look.
    """
    begun = time.monotonic()
    chosen = images.limited(training=job.images)
    data = ImageData.of(chosen, device=device)
    learner = VisionLearner(data, job.config, compiled=compiled)
    probe = VisionProbe(data, folder)

    def observe(model: VisionLearner) -> Mapping[str, float]:
        row = probe(model)
        if tell is not None:
            tell(_line(row, step=model.state.step, seconds=time.monotonic() - begun))
        return row

    course = run_epochs(
        learner,
        job.config,
        n=data.n,
        device=data.images.device,
        folder=folder if checkpoints else None,
        checkpoint_every=CHECKPOINT_EVERY,
        budget=budget - (time.monotonic() - begun),
        observe=observe,
        observe_at=observe_at,
        chunk=20,
        progress=progress,
    )
    call = {"status": course.status, "seconds": time.monotonic() - begun, "steps": learner.state.step}
    record = {
        "name": job.name,
        "config": asdict(job.config),
        "machine": machine(device),
        "parameters": sum(parameter.numel() for parameter in learner.model.parameters()),
        "images": {"training": data.n, "test": len(data.test_labels), "sha256": chosen.digest, "notes": chosen.notes},
        "compiled": compiled,
        "calls": _calls(folder, call),
        "metrics": course.metrics,
    }
    return course, record, probe.gather([int(row["epoch"]) for row in course.metrics if "sparsity" in row])


def run_plan(
    jobs: Sequence[VisionJob],
    images: ImageSet,
    *,
    runs: Path,
    out: Path,
    device: str,
    budget: float,
    compiled: bool,
    checkpoints: bool,
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
        course, record, arrays = run_job(
            job, images, folder=runs / job.name, device=device, budget=left, compiled=compiled,
            checkpoints=checkpoints, tell=lambda line: print(line, flush=True),
        )  # fmt: skip
        write_results(out / f"vision-{job.name}.json", record, out / f"vision-{job.name}.npz", arrays)
        print(f"{job.name}: {course.status} after {course.seconds:.1f} s, {len(course.metrics) - 1} epochs", flush=True)


def _line(row: Mapping[str, float], *, step: int, seconds: float) -> str:
    words = " ".join(f"{name} {row[name]:.4f}" for name in ("test accuracy", "test loss", "sparsity", "head sparsity"))
    return f"  step {step:6d} {seconds:7.1f} s  {words} norm {row['norm']:.2f} head norm {row['head norm']:.2f}"


def _calls(folder: Path, call: dict[str, Any]) -> list[dict[str, Any]]:
    """This call and those before it that worked in the folder."""
    path = folder / "calls.json"
    calls: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    calls.append(call)
    path.write_text(json.dumps(calls))
    return calls


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a plan from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tokenmargin.training.vision.study", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("--data", type=Path, required=True, help="cifar10.npz, or a folder of packed parts")
    parser.add_argument("--runs", type=Path, required=True, help="folder for checkpoints; found again, a run goes on")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--device", default=choose_device())
    parser.add_argument(
        "--budget", type=float, default=540.0, help="seconds in all, less a few for the last checkpoint"
    )
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--trial", action="store_true", help="without checkpoints")
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
    run_plan(jobs, load_images(chosen["data"]), **where, compiled=compiled, checkpoints=not chosen["trial"])


if __name__ == "__main__":
    main()
