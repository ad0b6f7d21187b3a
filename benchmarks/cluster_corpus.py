"""Preparing corpora in slices: growth of time and memory with texts, vocabulary and workers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster_tools import megabytes, peak_memory, slope
from tokenmargin.engines import AbstractEngine, LocalEngine, RayEngine, SerialEngine

LENGTH = 100
ENGINES: dict[str, Callable[[], AbstractEngine]] = {
    "this process": SerialEngine,
    "2 processes": lambda: LocalEngine(2),
    "ray, 2 workers": RayEngine,
}


def write_corpus(path: Path, texts: int, vocabulary: int, *, seed: int = 0, length: int = LENGTH) -> int:
    """JSON lines of random words under Zipf's law; bytes written."""
    rng = np.random.default_rng(seed)
    law = np.cumsum(1.0 / np.arange(1, vocabulary + 1) ** 0.9)
    words = np.array([f"w{number:x}" for number in rng.permutation(vocabulary)])
    with path.open("w") as file:
        for first in range(0, texts, 2000):
            rows = min(2000, texts - first)
            drawn = words[np.searchsorted(law / law[-1], rng.random((rows, length)))]
            file.writelines(
                f'{{"text": "{" ".join(row)}", "label": {label}}}\n'
                for row, label in zip(drawn, rng.integers(0, 2, rows), strict=True)
            )
    return path.stat().st_size


def growth() -> None:
    """Time and peak memory of both passes, each case in a process of its own."""
    print(f"texts of {LENGTH} words, slices of 4 MB; seconds and peak memory of the whole process")
    _table("texts", [(n, 20_000) for n in (10_000, 20_000, 40_000, 80_000)], 0)
    _table("vocabulary", [(20_000, m) for m in (2_000, 20_000, 200_000, 1_000_000)], 1)
    print(f"\n{'workers':>16} {'seconds':>8}   80,000 texts, vocabulary 20,000; the workers' start not counted")
    for name in ENGINES:
        print(f"{name:>16} {_alone((80_000, 20_000), name)['seconds']:8.1f}", flush=True)


def _table(axis: str, cases: list[tuple[int, int]], varied: int) -> None:
    found = [_alone(case, "this process") for case in cases]
    print(f"\n{axis:>16} {'MB of text':>11} {'kept':>9} {'seconds':>8} {'MB/s':>6} {'peak MB':>8}")
    for case, part in zip(cases, found, strict=True):
        rate = part["bytes"] / 1e6 / part["seconds"]
        sizes = f"{megabytes(part['bytes']):>11} {part['kept']:9,}"
        print(f"{case[varied]:16,} {sizes} {part['seconds']:8.1f} {rate:6.1f} {megabytes(part['memory']):>8}")
    values = [case[varied] for case in cases]
    slopes = [slope(values, [part[name] for part in found]) for name in ("seconds", "memory")]
    print(f"{'slope':>16} {'':11} {'':9} {slopes[0]:8.2f} {'':6} {slopes[1]:8.2f}", flush=True)


def _alone(case: tuple[int, int], engine: str) -> dict[str, Any]:
    """In a fresh process, so that its peak memory is its own."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.jsonl"
        size = write_corpus(source, *case)
        command = [sys.executable, "-m", "benchmarks.cluster_corpus", str(source), engine]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"bytes": size}


def _prepare(source: Path, name: str) -> None:
    """The child: prepare, and print what it took."""
    from tokenmargin.data.sharded.prepare import prepare_sharded

    engine = ENGINES[name]()
    list(engine.map(_nothing, iter([range(1), range(1, 2)])))  # start the workers
    begun = time.perf_counter()
    found = prepare_sharded(source, source.parent / "out", engine=engine, slice_bytes=4 << 20)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "kept": found.m, "memory": peak_memory()}))


def _nothing(piece: range) -> None:
    return


if __name__ == "__main__":
    _prepare(Path(sys.argv[1]), sys.argv[2])
