"""What the benchmarks and the tests of the cluster share: ranks on one machine, peak memory, slopes."""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["megabytes", "peak_memory", "slope", "together"]


def together(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`work(ranks, *arguments)` on `size` ranks of this machine, one thread each; what they return, in order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokenmargin.training.trainer"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        environment = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(context.Process(target=_member, args=(theirs, environment, work, arguments)))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    results = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a rank ended with exit code {process.exitcode}")
    return results


def _member(pipe: Connection, environment: dict[str, object], work: Callable[..., Any], arguments: tuple[Any]) -> None:
    import torch

    from tokenmargin.training.ranks import join_ranks

    os.environ |= {name: str(value) for name, value in environment.items()}
    torch.set_num_threads(1)
    with join_ranks() as ranks:
        pipe.send(work(ranks, *arguments))


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def loopback() -> int:
    """Bytes that this machine has sent to itself, by the kernel's count."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[8])
    return 0


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of a power law through the points, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def megabytes(size: float) -> str:
    return f"{size / 1e6:.1f}"
