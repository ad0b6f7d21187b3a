"""Every way in, fuzzed: files, tables, flags, calls and requests, with what became of each input, counted.

    python -m benchmarks.fuzz                          # the counts of `tests/fuzz`, over 10^5 inputs
    python -m benchmarks.fuzz --minutes 60             # as many as fit into an hour
    python -m benchmarks.fuzz --surface flags --only 8123   # one input again, with its traceback

Each surface runs in a process of its own that may take 4 GiB more than it began with. A refusal is *clear* when a
statement of ours raised it. Wrong answers: an optimal margin below 1 in rational arithmetic, a damaged file that is
read as another, numbers that are none, exit codes without a word.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import traceback
from pathlib import Path

from tests.fuzz.calls import calls
from tests.fuzz.files import SURFACES as FILES
from tests.fuzz.flags import flags
from tests.fuzz.harness import MEMORY, Surface, Tally, fuzz
from tests.fuzz.requests import requests
from tests.fuzz.samples import Samples

from benchmarks.tools import line, print_table, run_main

SURFACES: dict[str, tuple[Surface, int]] = {
    **FILES,
    "flags": (flags, 15000),
    "calls": (calls, 20000),
    "requests": (requests, 10000),
}
COLUMNS = ("inputs", "accepted", "refused", "tracebacks", "unclear", "hangs", "memory", "wrong")


def _worker(name: str, seed: int, count: int, first: int, seconds: float, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as folder:
        samples = Samples(Path(folder))
        _bound_memory()
        queue.put(fuzz(SURFACES[name][0], samples, seed=seed, count=count, first=first, seconds=seconds))


def _bound_memory() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))


def run(name: str, *, seed: int, count: int, first: int = 0, seconds: float = 1e9) -> Tally:
    """Fuzz one surface in a process of its own."""
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[Tally] = context.Queue()
    process = context.Process(target=_worker, args=(name, seed, count, first, seconds, queue))
    process.start()
    while process.is_alive() and queue.empty():
        process.join(0.2)
    tally = queue.get() if not queue.empty() else Tally(tracebacks=1, faults=Tally().faults + {"the process died": 1})
    process.join()
    return tally


def main(
    *,
    surface: list[str] | None = None,
    minutes: float | None = None,
    share: float = 1.0,
    seed: int = 0,
    first: int = 0,
    only: int | None = None,
) -> int:
    """So many minutes in all, or a share of every surface's count, from the first input on; or one input alone."""
    chosen = surface or list(SURFACES)
    if only is not None:
        return _once(chosen[0], seed, only)
    print_table(("surface", *COLUMNS, "seconds"), (), numbers=len(COLUMNS) + 1)
    failures, faults, total = 0, [], [0] * len(COLUMNS)
    for name in chosen:
        count = int(SURFACES[name][1] * share) if minutes is None else 10**9
        seconds = 1e9 if minutes is None else 60 * minutes / len(chosen)
        tally = run(name, seed=seed, count=count, first=first, seconds=seconds)
        numbers = [getattr(tally, column) for column in COLUMNS]
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        print(line(name, *numbers, f"{tally.seconds:.0f}"), flush=True)
        failures += tally.failures
        for where, times in tally.faults.most_common():
            number, said = tally.examples.get(where, (-1, ""))
            faults.append(f"{name}: {times} x {where} (first: {number}) {said}")
    print(line("**all**", *total, "") + "\n")
    print("\n".join(faults))
    return int(failures > 0)


def _once(name: str, seed: int, number: int) -> int:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        try:
            print(
                "accepted"
                if SURFACES[name][0](np.random.default_rng([seed, number]), Samples(Path(folder)))
                else "refused"
            )
        except Exception:
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    run_main(main, __doc__)
