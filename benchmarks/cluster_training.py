"""Ranks on one machine: what they exchange, how long a step takes, and what the cost model says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.cluster_tools import loopback, megabytes, peak_memory, slope, together
from benchmarks.training import naive_one_layer, pad
from tokenmargin.training.batches import TokenData
from tokenmargin.training.one_layer import OneLayer
from tokenmargin.training.parameters import AdamW, initial_state
from tokenmargin.training.ranks import ByDimension, ByTexts, Ranks

SETTINGS = AdamW(rate=1e-3, decay=1e-8)
SPLITS = {"texts": ByTexts, "dimension": ByDimension}
BATCH, LENGTH = 128, 240
TIMED = 3  # steps timed together; the best of five such runs counts


@dataclass(frozen=True)
class Case:
    """Sizes of a step."""

    m: int
    d: int
    batch: int = BATCH
    length: int = LENGTH
    steps: int = 16

    def data(self) -> TokenData:
        """Zipf's law, equal lengths."""
        rng = np.random.default_rng(0)
        law = 1.0 / np.arange(1, self.m + 1) ** 0.9
        n = self.batch * self.steps
        ids = rng.choice(self.m, n * self.length, p=law / law.sum())
        return TokenData.of(ids, np.arange(n + 1) * self.length, rng.choice([-1, 1], n), m=self.m)

    def distinct(self) -> float:
        """Mean number of distinct tokens in a batch."""
        data = self.data()
        batches = torch.arange(data.n).split(self.batch)
        return float(np.mean([len(torch.unique(data.batch(rows).ids)) for rows in batches]))


def steps_of(ranks: Ranks, case: Case, split: str) -> dict[str, Any]:
    """A few steps by our model; the first is not timed."""
    data, chosen = case.data(), SPLITS[split](ranks)
    before = peak_memory()
    state = initial_state(case.m, case.d, seed=0, columns=chosen.own_columns(case.d))
    model = OneLayer(data, state, SETTINGS, split=chosen)
    order = torch.arange(data.n)
    model.run(order, case.batch, first=0, last=1, rate=SETTINGS.rate)
    ranks.moved.clear()
    sent, best, busy = loopback(), float("inf"), float("inf")
    for first in range(1, case.steps, TIMED):
        ranks.wait_for_all()
        begun, used = time.perf_counter(), time.process_time()
        model.run(order, case.batch, first=first, last=first + TIMED, rate=SETTINGS.rate)
        busy = min(busy, (time.process_time() - used) / TIMED)
        ranks.wait_for_all()
        best = min(best, (time.perf_counter() - begun) / TIMED)
    timed = case.steps - 1
    return {
        "seconds": best,
        "busy": busy,
        "bytes": ranks.moved.get("vectors", 0) / timed,
        "wire": (loopback() - sent) / timed / ranks.size,
        "memory": peak_memory() - before,
        "embeddings": state.embeddings.numpy(),
    }


def ddp_steps(ranks: Ranks, case: Case) -> dict[str, Any]:
    """The same steps by embedding lookup, automatic differentiation, DistributedDataParallel and torch's AdamW."""
    data, state = case.data(), initial_state(case.m, case.d, seed=0)
    before = peak_memory()

    class Lookup(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.E, self.p, self.v = (torch.nn.Parameter(x.clone()) for x in (state.embeddings, *state.heads))

        def forward(self, x: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
            return naive_one_layer(x, inside, self.E, self.p, self.v)

    moved = [0]

    def counted(_: object, bucket: Any) -> Any:
        gradient = bucket.buffer()
        moved[0] += gradient.numel() * gradient.element_size()
        work = dist.all_reduce(gradient.div_(ranks.size), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    counted.__annotations__ = {"bucket": dist.GradBucket}  # DistributedDataParallel looks at the type itself
    model: Any = Lookup()
    inner = model
    if not ranks.is_alone:
        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(None, counted)
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS.rate, weight_decay=SETTINGS.decay)
    best, sent = float("inf"), 0
    for k, rows in enumerate(torch.arange(data.n).split(case.batch)):
        x, inside, y = pad(data, rows[ranks.own_part(len(rows))])
        if k == 1:
            moved[0], sent = 0, loopback()
        ranks.wait_for_all()
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.softplus(-y * model(x, inside)).mean().backward()
        optimizer.step()
        ranks.wait_for_all()
        best = min(best, time.perf_counter() - begun)
    timed = case.steps - 1
    return {
        "seconds": best,
        "bytes": moved[0] / timed,
        "wire": (loopback() - sent) / timed / ranks.size,
        "memory": peak_memory() - before,
        "embeddings": inner.E.detach().numpy(),
    }


def exchange() -> None:
    """Bytes, time and difference, for two dimensions."""
    print(f"batch {BATCH} texts of {LENGTH} tokens, vocabulary 8000, float32; megabytes a step and rank")
    print(f"{'d':>5} {'ranks':>5} {'method':28} {'counted':>8} {'model':>8} {'on wire':>8} {'ms':>7} {'apart':>8}")
    for d in (256, 2048):
        case = Case(8000, d)
        u = case.distinct()
        whole = together(1, steps_of, case, "texts")[0]["embeddings"]
        for size in (1, 2, 4):
            models = {"texts": 2 * case.m * 4, "dimension": 2 * u * 4}
            for split, expected in models.items():
                found = together(size, steps_of, case, split)
                parts = [part["embeddings"] for part in found]
                ours = np.concatenate(parts, axis=1) if split == "dimension" else parts[0]
                _line(d, size, f"tokenmargin, by {split}", found, expected, ours, whole)
            found = together(size, ddp_steps, case)
            gradient = 4 * (case.m + 2) * d
            _line(d, size, "DistributedDataParallel", found, gradient, found[0]["embeddings"], whole)


def _line(d: int, size: int, name: str, found: list[Any], expected: float, ours: Any, whole: Any) -> None:
    counted, wire = found[0]["bytes"], np.mean([part["wire"] for part in found])
    apart = float(np.abs(ours - whole).max())
    expected = expected if size > 1 else 0
    print(
        f"{d:5} {size:5} {name:28} {counted / 1e6:8.3f} {expected / 1e6:8.3f} {wire / 1e6:8.3f} "
        f"{found[0]['seconds'] * 1e3:7.1f} {apart:8.1e}",
        flush=True,
    )


@dataclass(frozen=True)
class Machine:
    """What the cost model must know: measured here, or on paper.

    **Attributes**
    - `bandwidth`: bytes a second that one rank moves while it updates.
    - `token`: seconds to attend over a token, forwards and backwards.
    - `latency`, `link`: seconds of a collective, and bytes a second of one rank's share of the network.
    """

    bandwidth: float
    token: float
    latency: float
    link: float

    def step(self, case: Case, ranks: int, split: str, *, distinct: float) -> dict[str, float]:
        """Seconds of the parts of a step, bytes exchanged and floating-point operations of a rank."""
        tokens = case.batch * case.length / (ranks if split == "texts" else 1)
        numbers = case.m * case.d / (ranks if split == "dimension" else 1)
        payload = 0.0 if ranks == 1 else 8 * (case.m if split == "texts" else distinct)
        wire = 2 * (ranks - 1) / ranks * payload  # a ring sends every number twice, less our own share
        exchange = 0.0 if ranks == 1 else self.latency + wire / self.link
        return {
            "attend": tokens * self.token,
            "update": 7 * 4 * numbers / self.bandwidth,
            "exchange": exchange,
            "bytes": payload,
            "operations": 30 * tokens + 24 * numbers,
        }


def calibrate(size: int) -> Machine:
    """The constants of this machine with `size` ranks at work at the same time."""
    found = together(size, _measure)
    means = np.mean([list(part) for part in found], axis=0)
    return Machine(*means.tolist())


def _measure(ranks: Ranks) -> tuple[float, float, float, float]:
    x, y = torch.zeros(1 << 24), torch.empty(1 << 24)
    y.copy_(x)
    ranks.wait_for_all()
    copy = _clock(lambda: y.copy_(x), 12)
    case = Case(8000, 1, batch=128)
    data = case.data()
    model = OneLayer(data, initial_state(case.m, 1, seed=0), SETTINGS)
    batch = data.batch(torch.arange(case.batch))
    attend = _clock(lambda: (data.batch(torch.arange(case.batch)), model.gradient(batch)), 12)
    if ranks.is_alone:
        return 2 * x.nbytes / copy, attend / (case.batch * case.length), 0.0, float("inf")
    small, large = torch.zeros(16), torch.zeros(1 << 21)
    latency = _clock(lambda: ranks.sum_(small, "trial"), 50, time.perf_counter)
    whole = _clock(lambda: ranks.sum_(large, "trial"), 12, time.perf_counter)
    wire = 2 * (ranks.size - 1) / ranks.size * large.nbytes
    return 2 * x.nbytes / copy, attend / (case.batch * case.length), latency, wire / max(whole - latency, 1e-9)


def _clock(work: Any, repeats: int, clock: Callable[[], float] = time.process_time) -> float:
    """The best time of some, by the given clock."""
    best = float("inf")
    for _ in range(repeats + 1):
        begun = clock()
        work()
        best = min(best, clock() - begun)
    return best


SWEEPS = {
    "dimension": [Case(8000, d) for d in (256, 512, 1024, 2048)],
    "vocabulary": [Case(m, 256) for m in (8000, 16000, 32000, 64000)],
    "texts in a batch": [Case(8000, 64, batch=b) for b in (128, 256, 512, 1024)],
}


def growth() -> None:
    """Measured against the cost model, and the slopes of both; as many ranks as there are cores, since each has one.

    Attending and updating are taken by the processor's clock, which waiting and other people's work do not advance.
    """
    sizes = [size for size in (1, 2, 4, 8) if size <= len(os.sched_getaffinity(0))]
    machines = {size: calibrate(size) for size in sizes}
    for size, machine in machines.items():
        print(
            f"{size} ranks: {machine.bandwidth / 1e9:.1f} GB/s each, {machine.token * 1e9:.0f} ns a token, "
            f"collective {machine.latency * 1e6:.0f} us, {machine.link / 1e9:.2f} GB/s"
        )
    for axis, cases in SWEEPS.items():
        for size in sizes:
            for split in SPLITS if size > 1 else ("texts",):
                _sweep(axis, cases, size, split, machines[size])
    _extrapolate()


def _sweep(axis: str, cases: list[Case], size: int, split: str, machine: Machine) -> None:
    x = {"dimension": "d", "vocabulary": "m", "texts in a batch": "batch"}[axis]
    values = [getattr(case, x) for case in cases]
    found = [together(size, steps_of, case, split)[0] for case in cases]
    expected = [machine.step(case, size, split, distinct=case.distinct()) for case in cases]
    ms = [part["busy"] * 1e3 for part in found]
    model = [1e3 * (cost["attend"] + cost["update"]) for cost in expected]
    memory = [part["memory"] for part in found]
    print(f"\n{axis}, {size} ranks by {split}")
    print(f"{axis:>16} {'CPU ms':>8} {'model ms':>9} {'wall ms':>8} {'MB exchanged':>13} {'model MB':>9} {'MB':>8}")
    for k, value in enumerate(values):
        exchanged = f"{found[k]['bytes'] / 1e6:13.3f} {expected[k]['bytes'] / 1e6:9.3f}"
        wall = found[k]["seconds"] * 1e3
        print(f"{value:16} {ms[k]:8.1f} {model[k]:9.1f} {wall:8.1f} {exchanged} {megabytes(memory[k]):>8}")
    print(
        f"{'slope':>16} {slope(values, ms):8.2f} {slope(values, model):9.2f} {'':8} "
        f"{_slope_of(values, [part['bytes'] for part in found]):>13} {'':9} {_slope_of(values, memory):>8}",
        flush=True,
    )


def _slope_of(x: list[int], y: list[float]) -> str:
    """Nothing where there is nothing to measure, or no growth above the noise."""
    return f"{slope(x, y):.2f}" if min(y) > 0 and y[-1] > 1.5 * y[0] else ""


# Measured: the bandwidth of an H200 and what its step leaves beside the update for a token (docs/training-notes.md),
# and the time of a token on one thread here. Assumed: 100 GB/s of memory in a CPU host; ten gigabits, or NVLink,
# between ranks.
PAPER = (
    ("16 CPU hosts, 10 Gbit/s", 16, Machine(bandwidth=100e9, token=70e-9, latency=200e-6, link=1.25e9)),
    ("8 H200, NVLink", 8, Machine(bandwidth=4.2e12, token=1e-9, latency=30e-6, link=100e9)),
)


def _extrapolate() -> None:
    """The cost model on machines that are not here: nothing below is measured."""
    case, steps = Case(10**6, 2048, batch=8192), 10**9 / 8192
    law = 1.0 / np.arange(1, case.m + 1) ** 0.9
    distinct = float(-np.expm1(case.batch * case.length * np.log1p(-law / law.sum())).sum())
    print(f"\non paper: 1e9 texts of {LENGTH} tokens, m = 1e6, d = 2048; batch 8192, {steps:,.0f} steps an epoch")
    columns = ("attend", "update", "exchange", "MB a step", "GFLOP", "hours", "GB held")
    print(f"{'ms:':37}" + " ".join(f"{name:>9}" for name in columns))
    for name, ranks, machine in PAPER:
        for split in SPLITS:
            cost = machine.step(case, ranks, split, distinct=distinct)
            times = [cost[part] for part in ("attend", "update", "exchange")]
            held = 12 * case.m * case.d / (ranks if split == "dimension" else 1)
            row = [*(1e3 * part for part in times), cost["bytes"] / 1e6, cost["operations"] / 1e9]
            row += [sum(times) * steps / 3600, held / 1e9]
            print(f"{name:26} {split:10}" + " ".join(f"{value:9.2f}" for value in row))
        gradient = 4 * (case.m + 2) * case.d
        seconds = 2 * (ranks - 1) / ranks * gradient / machine.link
        print(
            f"{'':26} the gradient itself: {gradient / 1e6:,.0f} MB a step, {seconds * steps / 3600:,.0f} hours of it"
        )
