"""Every way in, fuzzed: files, tables, flags, calls and requests, with what became of each input, counted.

    python -m benchmarks.fuzz                          # the counts of `tests/fuzz`, over 10^5 inputs
    python -m benchmarks.fuzz --minutes 60             # as many as fit into an hour
    python -m benchmarks.fuzz --surface flags --only 8123   # one input again, with its traceback

Each surface runs in a process of its own that may take 4 GiB more than it began with. A refusal is *clear* when a
statement of ours raised it. Wrong answers: an optimal margin below 1 in rational arithmetic, a damaged file that is
read as another, numbers that are none, exit codes without a word.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import traceback
from pathlib import Path

from tests.fuzz.calls import calls
from tests.fuzz.files import SURFACES as FILES
from tests.fuzz.flags import flags
from tests.fuzz.harness import MEMORY, Surface, Tally, fuzz
from tests.fuzz.requests import requests
from tests.fuzz.samples import Samples

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--surface", action="append", choices=sorted(SURFACES))
    parser.add_argument("--minutes", type=float, help="shared among the surfaces; without it, their counts")
    parser.add_argument("--share", type=float, default=1.0, help="of the counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", type=int, help="give this one input, and show what it raises")
    given = parser.parse_args()
    chosen = given.surface or list(SURFACES)
    if given.only is not None:
        return _once(chosen[0], given.seed, given.only)
    print(f"| surface | {' | '.join(COLUMNS)} | seconds |\n|---|{'---:|' * (len(COLUMNS) + 1)}")
    failures, faults, total = 0, [], [0] * len(COLUMNS)
    for name in chosen:
        count = int(SURFACES[name][1] * given.share) if given.minutes is None else 10**9
        seconds = 1e9 if given.minutes is None else 60 * given.minutes / len(chosen)
        tally = run(name, seed=given.seed, count=count, first=given.first, seconds=seconds)
        numbers = [getattr(tally, column) for column in COLUMNS]
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        print(f"| {name} | {' | '.join(map(str, numbers))} | {tally.seconds:.0f} |", flush=True)
        failures += tally.failures
        for where, times in tally.faults.most_common():
            number, said = tally.examples.get(where, (-1, ""))
            faults.append(f"{name}: {times} x {where} (first: {number}) {said}")
    print(f"| **all** | {' | '.join(map(str, total))} | |\n")
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
    sys.exit(main())
