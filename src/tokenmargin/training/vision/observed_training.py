"""Train a vision transformer and measure its attention on the way, for Figures 6 and 7 of paper B."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from tokenmargin._files import write_arrays
from tokenmargin.data.images import ImageSet
from tokenmargin.training.epochs import EpochLoop, TrainingHistory, TrainingProgress
from tokenmargin.training.probe import machine
from tokenmargin.training.vision.attention_probe import measure_attention, model_norms
from tokenmargin.training.vision.learner import ImageData, VisionConfig, VisionLearner

MEASURED, SHOWN, BATCH = 256, 10, 64  # test images whose attention is measured; whose maps are kept; at a time
CHECKPOINT_EVERY = 240.0  # seconds


class VisionProbe:
    """Measures the attention of a model after an epoch, on the same test images each time.

    A call returns numbers for the row of the epoch. It writes two files an epoch to `folder`: the arrays, and the last
    layer's key and query weights. It draws nothing at random and does not change the model.
    """

    def __init__(self, data: ImageData, folder: Path) -> None:
        self.data, self.folder = data, folder
        self.images = data.test_images[:MEASURED]
        labels = data.test_labels[:MEASURED].cpu().numpy()
        self.shown = np.unique(labels, return_index=True)[1][:SHOWN]  # where each class occurs first

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
        write_arrays(self.folder / name, arrays, compressed=False)

    def _load_kept(self, name: str) -> dict[str, Array]:
        with np.load(self.folder / name) as file:
            return {key: file[key] for key in file.files}

    def gather(self, epochs: Sequence[int]) -> dict[str, Array]:
        """The arrays of some epochs, stacked, with the cosine of each key-query product with the last, and images."""
        kept = [self._load_kept(f"probe-{epoch:05d}.npz") for epoch in epochs]
        stacked = {name: np.stack([arrays[name] for arrays in kept]) for name in kept[0]}
        last = self._load_kept(f"weights-{epochs[-1]:05d}.npz")
        stacked["direction"] = np.array(
            [_cosine(self._load_kept(f"weights-{epoch:05d}.npz"), last) for epoch in epochs]
        )
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


def train_vision_observed(
    config: VisionConfig,
    images: ImageSet,
    *,
    folder: Path,
    device: str = "cpu",
    budget: float = float("inf"),
    compiled: bool = False,
    observe_at: Callable[[int], bool] = lambda epoch: True,
    progress: Callable[[TrainingProgress], None] | None = None,
) -> tuple[TrainingHistory, dict[str, Any], dict[str, Array]]:
    """Train a vision transformer in a folder, or go on there, and measure its attention on the way.

    Returns how the run went, a record of it, and the arrays that the figures need.

    **Arguments**
    - `observe_at`: whether the model is measured after an epoch; 0 stands for before the first.
    """
    begun = time.monotonic()
    data = ImageData.of(images, device=device)
    learner = VisionLearner(data, config, compiled=compiled)
    probe = VisionProbe(data, folder)
    history = EpochLoop(
        learner,
        config,
        n=data.n,
        device=data.images.device,
        folder=folder,
        checkpoint_every=CHECKPOINT_EVERY,
        budget=budget - (time.monotonic() - begun),
        observe=probe,
        observe_at=observe_at,
        chunk=20,
        progress=progress,
    ).run()
    call = {"status": history.status, "seconds": time.monotonic() - begun, "steps": learner.state.step}
    record = {
        "config": asdict(config),
        "machine": machine(device),
        "parameters": sum(parameter.numel() for parameter in learner.model.parameters()),
        "images": {"training": data.n, "test": len(data.test_labels), "sha256": images.digest, "notes": images.notes},
        "compiled": compiled,
        "calls": _add_call(folder, call),
        "metrics": history.metrics,
    }
    return history, record, probe.gather([int(row["epoch"]) for row in history.metrics if "sparsity" in row])


def _add_call(folder: Path, call: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of all calls that trained in the folder, this one last."""
    path = folder / "calls.json"
    calls: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    calls.append(call)
    path.write_text(json.dumps(calls), encoding="utf-8")
    return calls
