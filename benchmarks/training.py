"""Training steps against the naive model: `python -m benchmarks.training [--device cuda] [--out FOLDER]`.

One-layer and two-layer steps at a vocabulary of 8000, dimension 2048, batch 128, beside an embedding-lookup model under
automatic differentiation with torch's AdamW (eager, and compiled where a compiler is at hand). Before a model is timed,
its parameters after the first steps are compared with those of the same steps in float64: "difference". "x matrix": how
often a step would have to move the embedding matrix, at the measured copy bandwidth, to take the time it takes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenmargin.training.batches import TokenData
from tokenmargin.training.one_layer import Model, OneLayer
from tokenmargin.training.one_layer_cuda import OneLayerCuda
from tokenmargin.training.parameters import AdamW, State, initial_state
from tokenmargin.training.two_layer import TwoLayer, times_transposed
from tokenmargin.training.two_layer_cuda import TwoLayerCuda

VOCABULARY, DIMENSION, BATCH, LENGTH = 8000, 2048, 128, 240
SETTINGS = AdamW(rate=1e-3, decay=1e-8)


def make_data(device: str, *, batches: int, ragged: bool) -> TokenData:
    """Sequences with Zipf frequencies: ragged, or 240 tokens each, so that padding costs the naive model nothing."""
    rng = np.random.default_rng(0)
    lengths = np.full(batches * BATCH, LENGTH)
    if ragged:
        lengths = np.clip(rng.lognormal(np.log(LENGTH) - 0.125, 0.5, batches * BATCH), 10, 1000).astype(int)
    law = 1.0 / np.arange(1, VOCABULARY + 1) ** 0.9
    ids = rng.choice(VOCABULARY, lengths.sum(), p=law / law.sum())
    labels = rng.choice([-1, 1], len(lengths))
    return TokenData.of(ids, np.append(0, lengths.cumsum()), labels, m=VOCABULARY, device=device)


def pad(data: TokenData, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and mask of a batch, padded to its longest sequence: what a naive model works on."""
    batch = data.batch(rows)
    lengths = torch.bincount(batch.segment)
    inside = torch.arange(int(lengths.max()), device=rows.device) < lengths[:, None]
    x = torch.zeros(inside.shape, dtype=torch.long, device=rows.device)
    x[inside] = batch.ids
    return x, inside, batch.labels


def naive_one_layer(x: Tensor, inside: Tensor, E: Tensor, p: Tensor, v: Tensor) -> Tensor:
    EX = torch.nn.functional.embedding(x, E)
    weights = torch.softmax((EX @ p).masked_fill(~inside, -torch.inf), 1)
    return (weights[..., None] * EX).sum(1) @ v


def naive_two_layer(x: Tensor, inside: Tensor, E: Tensor, p: Tensor, v: Tensor) -> Tensor:
    EX = torch.nn.functional.embedding(x, E)
    A = torch.softmax((EX @ EX.mT).masked_fill(~inside[:, None, :], -torch.inf), 2)
    H = torch.nn.functional.layer_norm(A @ EX + EX, (E.shape[1],))
    weights = torch.softmax((H @ p).masked_fill(~inside, -torch.inf), 1)
    return (weights[..., None] * H).sum(1) @ v


class Naive:
    """Embedding lookup, automatic differentiation, `torch.optim.AdamW`; batches are padded before the clock starts."""

    def __init__(
        self, forward: Callable[..., Tensor], data: TokenData, state: State, *, batches: int, compiled: bool
    ) -> None:
        self.parameters = [torch.nn.Parameter(tensor.clone()) for tensor in (state.embeddings, *state.heads)]
        fused = True if data.ids.device.type == "cuda" else None
        self.optimizer = torch.optim.AdamW(self.parameters, lr=SETTINGS.rate, weight_decay=SETTINGS.decay, fused=fused)
        self.forward = torch.compile(forward, dynamic=True) if compiled else forward
        order = torch.arange(data.n, device=data.ids.device)
        self.batches = [pad(data, rows) for rows in torch.split(order, BATCH)[:batches]]

    def run(self, first: int, last: int) -> None:
        for k in range(first, last):
            x, inside, y = self.batches[k]
            self.optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.softplus(-y * self.forward(x, inside, *self.parameters)).mean()
            loss.backward()
            self.optimizer.step()


def clock(run: Callable[[int, int], object], steps: int, *, warm: int, device: str, repeats: int) -> float:
    """Milliseconds a step: the best of some repeats, after a warm-up."""
    if warm:
        run(0, warm)
    best = math.inf
    for _ in range(repeats):
        _wait(device)
        begun = time.perf_counter()
        run(warm, warm + steps)
        _wait(device)
        best = min(best, (time.perf_counter() - begun) / steps)
    return best * 1e3


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def difference(parameters: Iterable[Tensor], exact: State) -> float:
    """Largest difference of a parameter from the same steps in float64."""
    pairs = zip(parameters, (exact.embeddings, *exact.heads), strict=True)
    return max(float((ours.detach() - theirs).abs().max()) for ours, theirs in pairs)


def copy_bandwidth(device: str) -> float:
    """Bytes a second of a large copy, read and written."""
    x = torch.zeros((1 << 28) if device == "cuda" else (1 << 25), device=device)
    y = torch.empty_like(x)
    ms = clock(lambda first, last: [y.copy_(x) for _ in range(first, last)], 5, warm=2, device=device, repeats=3)
    return 2 * x.numel() * 4 / (ms * 1e-3)


def products_alone(data: TokenData) -> float:
    """Milliseconds of the two dense products of a two-layer step, at the speed of one large product here."""
    rows = [data.ids[begin:end].unique().numel() for begin, end in pairwise(data.offsets[: BATCH + 1].tolist())]
    operations = (1 + 2) * DIMENSION * sum(u * u for u in rows)  # half of G, which is symmetric, and (dG + dG') C
    x = torch.randn(2048, 2048)
    repeat = lambda first, last: [times_transposed(x, x) for _ in range(first, last)]  # noqa: E731
    ms = clock(repeat, 3, warm=1, device="cpu", repeats=3)
    return operations / (2 * 2048**3) * ms


def models(name: str, data: TokenData, device: str) -> dict[str, Callable[[State], Model]]:
    """Our models of a kind, by name."""
    if name == "two-layer":
        if device == "cpu":
            return {"tokenmargin": lambda state: TwoLayer(data, state, SETTINGS)}
        return {
            "tokenmargin, torch's kernels": lambda state: TwoLayer(data, state, SETTINGS, group=32),
            "tokenmargin, float32 accuracy": lambda state: TwoLayerCuda(data, state, SETTINGS),
        }
    found: dict[str, Callable[[State], Model]] = {}
    if device == "cuda":
        found["tokenmargin, kernels"] = lambda state: OneLayerCuda(data, state, SETTINGS)
    found["tokenmargin, torch's kernels"] = lambda state: OneLayer(data, state, SETTINGS)
    return found


def compare(name: str, device: str, *, compiled: bool, ragged: bool) -> list[dict[str, Any]]:
    """Time the models of a kind; first check that they take the same steps."""
    quick = device == "cpu"
    steps, warm = (3, 1) if quick else (64, 16)
    if quick and name == "two-layer":
        steps = 1
    data = make_data(device, batches=steps + warm, ragged=ragged)
    forward = {"one-layer": naive_one_layer, "two-layer": naive_two_layer}[name]
    order = torch.arange(data.n, device=device)
    start = lambda: initial_state(VOCABULARY, DIMENSION, seed=0, device=device)  # noqa: E731
    rows: list[dict[str, Any]] = []

    exact = initial_state(VOCABULARY, DIMENSION, seed=0, dtype=torch.float64, device=device)
    witness = {"one-layer": OneLayer, "two-layer": TwoLayer}[name](data.cast(torch.float64), exact, SETTINGS)
    witness.run(order, BATCH, first=0, last=warm, rate=SETTINGS.rate)
    del witness

    naive = Naive(forward, data, start(), batches=steps + warm, compiled=False)
    naive.run(0, warm)
    apart = difference(naive.parameters, exact)
    ms = clock(naive.run, steps, warm=0, device=device, repeats=1 if quick else 3)
    rows.append(_row(name, "naive, eager", ms, apart))
    if compiled:
        try:
            fast = Naive(forward, data, start(), batches=steps + warm, compiled=True)
            rows.append(_row(name, "naive, torch.compile", clock(fast.run, steps, warm=warm, device=device, repeats=3)))
        except Exception as error:  # no compiler: the comparison is left out, and says so
            print(f"torch.compile left out: {type(error).__name__}")
    for title, build in models(name, data, device).items():
        model = build(start())
        model.run(order, BATCH, first=0, last=warm, rate=SETTINGS.rate)
        apart = difference((model.state.embeddings, *model.state.heads), exact)
        ms = clock(
            lambda first, last, model=model: model.run(order, BATCH, first=first, last=last, rate=SETTINGS.rate),
            steps,
            warm=0 if quick else warm,
            device=device,
            repeats=3,
        )
        rows.append(_row(name, title, ms, apart))
        del model
    return rows


def _row(kind: str, model: str, ms: float, apart: float | None = None) -> dict[str, Any]:
    return {"kind": kind, "model": model, "ms": ms, "difference": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="folder for bench-training.json")
    parser.add_argument("--kinds", nargs="+", default=["one-layer", "two-layer"])
    parser.add_argument("--ragged", action="store_true", help="sequences of different lengths")
    chosen = parser.parse_args()
    bandwidth = copy_bandwidth(chosen.device)
    matrix = VOCABULARY * DIMENSION * 4
    floor = 7 * matrix / bandwidth * 1e3
    threads = torch.get_num_threads()
    print(f"{chosen.device}, torch {torch.__version__}, {threads} threads, copy {bandwidth / 1e9:.0f} GB/s")
    print(f"E is {matrix / 1e6:.1f} MB; seven times that takes {floor:.3f} ms")
    print(f"{'kind':10} {'model':32} {'ms a step':>10} {'speed-up':>9} {'x matrix':>9} {'difference':>11}")
    rows: list[dict[str, Any]] = []
    for kind in chosen.kinds:
        found = compare(kind, chosen.device, compiled=chosen.device == "cuda", ragged=chosen.ragged)
        for row in found:
            row |= {"speed-up": found[0]["ms"] / row["ms"], "times matrix": row["ms"] * 1e-3 * bandwidth / matrix}
            apart = "" if row["difference"] is None else f"{row['difference']:.1e}"
            print(
                f"{row['kind']:10} {row['model']:32} {row['ms']:10.3f} {row['speed-up']:9.1f} "
                f"{row['times matrix']:9.1f} {apart:>11}",
                flush=True,
            )
        rows += found
        if kind == "two-layer" and chosen.device == "cpu":
            alone = products_alone(make_data("cpu", batches=1, ragged=chosen.ragged))
            print(f"its two dense products alone, at the speed of one large one: {alone:.0f} ms")
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        summary = {"device": chosen.device, "bandwidth": bandwidth, "floor ms": floor, "rows": rows}
        (chosen.out / "bench-training.json").write_text(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
