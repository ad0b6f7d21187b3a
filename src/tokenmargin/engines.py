"""Engines run pieces of work: in this process, in several, or on a cluster. Results come in the order they end."""

from __future__ import annotations

import abc
import functools
import gc
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

NO_CLUSTER = (
    "ray needs the address of a cluster (auto, or host:port): none is started here, since it would run whatever anyone "
    "on the network sends it; on this machine alone use the local engine"
)
IN_FLIGHT = 2  # pieces of work per worker that are given out: one to do, one waiting


def usable_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class LostTask:
    """A piece of work whose worker died, with the engine's words."""

    reason: str


class AbstractEngine(abc.ABC):
    """Runs one function on many pieces of work."""

    @property
    @abc.abstractmethod
    def workers(self) -> int:
        """How many pieces run at the same time."""

    @abc.abstractmethod
    def map(self, task: Callable[[range], Any], pieces: Iterator[range]) -> Iterator[tuple[range, Any]]:
        """Give `(piece, task(piece))` in the order in which they end, or `(piece, LostTask)` when the worker died.

        The next of `pieces` is taken only when a worker is free. After a loss an engine may stop early: pieces that it
        has not given back by then have not been done.
        """


@dataclass(frozen=True)
class SerialEngine(AbstractEngine):
    """This process, one piece after the other."""

    @property
    def workers(self) -> int:
        return 1

    def map(self, task: Callable[[range], Any], pieces: Iterator[range]) -> Iterator[tuple[range, Any]]:
        for piece in pieces:
            yield piece, task(piece)


@dataclass(frozen=True)
class LocalEngine(AbstractEngine):
    """Processes on this machine, by joblib. Each cell runs on one thread, so results do not depend on `jobs`."""

    jobs: int = -1

    @property
    def workers(self) -> int:
        return usable_cores() if self.jobs == -1 else self.jobs

    def map(self, task: Callable[[range], Any], pieces: Iterator[range]) -> Iterator[tuple[range, Any]]:
        from joblib import Parallel, delayed, parallel_config
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        flying: set[range] = set()

        def calls() -> Iterator[Any]:
            for piece in pieces:
                flying.add(piece)
                yield delayed(_with_piece)(task, piece)

        # Never one job: joblib would run it in this process, and a crash would take the sweep with it.
        jobs = max(self.workers, 2)
        ahead = IN_FLIGHT * self.workers if self.workers > 1 else 1
        with parallel_config("loky", inner_max_num_threads=1):
            run = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch=ahead)
            try:
                for piece, outcome in run(calls()):
                    flying.discard(piece)
                    yield piece, outcome
            except TerminatedWorkerError as error:
                for piece in sorted(flying, key=lambda piece: piece.start):
                    yield piece, LostTask(str(error).partition("\n")[0])


@dataclass(frozen=True)
class RayEngine(AbstractEngine):
    """Tasks on a ray cluster: the one at `address`, or the one that this process has already joined.

    This class never starts a cluster, which would listen on every network of the machine and run what it is sent. A
    task whose node or worker is lost is run again by ray, `retries` times, before it is given back as lost.
    """

    address: str | None = None
    retries: int = 5

    def connect(self) -> None:
        """Join the cluster, unless this process is already part of one."""
        import ray

        if ray.is_initialized():
            return
        if self.address is None:
            raise ValueError(NO_CLUSTER)
        ray.init(self.address, log_to_driver=False, logging_level=logging.ERROR)

    @property
    def workers(self) -> int:
        import ray

        self.connect()
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return max(int(resources.get("CPU", 1)), 1)

    def map(self, task: Callable[[range], Any], pieces: Iterator[range]) -> Iterator[tuple[range, Any]]:
        import ray
        from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError

        self.connect()
        remote = ray.remote(num_cpus=1, max_retries=self.retries)(_call)
        shared = ray.put(task)
        flying: dict[Any, range] = {}
        while True:
            room = IN_FLIGHT * self.workers - len(flying)
            for piece in _next_pieces(pieces, room):
                flying[remote.remote(shared, piece)] = piece
            if not flying:
                return
            ready, _ = ray.wait(list(flying), num_returns=1)
            for reference in ready:
                piece = flying.pop(reference)
                try:
                    yield piece, ray.get(reference)
                except (NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError) as error:
                    yield piece, LostTask(str(error).partition("\n")[0])


def _with_piece(task: Callable[[range], Any], piece: range) -> tuple[range, Any]:
    return piece, _call(task, piece)


def _call(task: Callable[[range], Any], piece: range) -> Any:
    _freeze_what_is_loaded()
    return task(piece)


@functools.cache
def _freeze_what_is_loaded() -> None:
    """Once per worker: loky collects garbage every second, which takes long unless loaded modules are left out."""
    gc.collect()
    gc.freeze()


def _next_pieces(pieces: Iterator[range], count: int) -> Iterator[range]:
    for _ in range(count):
        piece = next(pieces, None)
        if piece is None:
            return
        yield piece
