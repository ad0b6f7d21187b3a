"""Speed of training a vision transformer: `python -m benchmarks.vision [--device cuda] [--sizes tiny small base]`.

Images a second of whole steps (augmentation, forward, backward, AdamW) at T = 256 patches, on random images: eager or
compiled, float32 or bfloat16, by batch size; and the share of the device's own speed at multiplying matrices. Also the
seconds of one look (exact attention of 256 images, accuracy on 10,000).
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from tokenmargin.data.images import ImageSet
from tokenmargin.training.config import ViTSize
from tokenmargin.training.vision.learner import ImageData, VisionConfig, VisionLearner
from tokenmargin.training.vision.observed_training import VisionProbe
from tokenmargin.training.vision.vit import ViTShape


def flops(shape: ViTShape) -> float:
    """Floating-point operations of a training step for one image: forward, and twice that backward."""
    tokens, width = shape.tokens + 1, shape.width
    linear = (4 + 2 * 4) * width**2 * tokens  # attention, and a perceptron four times as wide
    attention = 2 * tokens**2 * width
    return 3 * 2 * shape.depth * (linear + attention)


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Wall time of some work, the device's queue emptied before and after."""
    finish = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    finish()
    begun = time.perf_counter()
    work()
    finish()
    return time.perf_counter() - begun


def matrix_speed(device: str, dtype: torch.dtype, size: int) -> float:
    """Operations a second of one large product."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        a @ b
    return 10 * 2 * size**3 / seconds_of(lambda: [a @ b for _ in range(10)], device)


def measure(data: ImageData, config: VisionConfig, *, compiled: bool, steps: int) -> tuple[float, float, VisionLearner]:
    """Seconds of the first steps (compiling included) and images a second afterwards."""
    device = data.images.device.type
    learner = VisionLearner(data, config, compiled=compiled)
    order = torch.arange(data.n, device=data.images.device)
    per_epoch = data.n // config.batch

    def run(count: int) -> None:
        for _ in range(count):
            place = learner.state.step % per_epoch
            learner.run(order, config.batch, first=place, last=place + 1, rate=1e-4)

    first = seconds_of(lambda: run(2), device)
    return first, steps * config.batch / seconds_of(lambda: run(steps), device), learner


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", nargs="+", choices=get_args(ViTSize), default=["nano"])
    parser.add_argument("--batches", nargs="+", type=int, default=[50])
    parser.add_argument("--steps", type=int, default=5)
    chosen = parser.parse_args(arguments)
    device = chosen.device
    chip = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    print(f"{chip}, torch {torch.__version__}, Python {platform.python_version()}", flush=True)
    rng = np.random.default_rng(0)
    made = ImageSet(rng.integers(0, 256, (20_000, 32, 32, 3), np.uint8), rng.integers(0, 10, 20_000), 10_000)
    data = ImageData.of(made, device=device)
    peak = {precision: matrix_speed(device, getattr(torch, precision), 8192 if device == "cuda" else 1024)
            for precision in ("bfloat16", "float32")}  # fmt: skip
    print("matrix products: " + ", ".join(f"{name} {speed / 1e12:.2f} TFLOP/s" for name, speed in peak.items()))
    print("| size | batch | precision | compiled | first 2 steps, s | images/s | TFLOP/s | of a product's | GB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    variants = [("bfloat16", True), ("bfloat16", False)] if device == "cuda" else [("float32", False)]
    for size in chosen.sizes:
        for batch in chosen.batches:
            for precision, compiled in variants:
                config = VisionConfig(size=size, batch=batch, precision=precision)
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                first, speed, learner = measure(data, config, compiled=compiled, steps=chosen.steps)
                rate = speed * flops(learner.model.shape)
                memory = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else float("nan")
                print(f"| {size} | {batch} | {precision} | {'yes' if compiled else 'no'} | {first:.1f} | {speed:.0f} "
                      f"| {rate / 1e12:.2f} | {rate / peak[precision]:.0%} | {memory:.1f} |", flush=True)  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            probe = VisionProbe(data, Path(folder))
            look = seconds_of(partial(probe, learner), device)
        print(f"{size}: a look takes {look:.2f} s", flush=True)


if __name__ == "__main__":
    main()
