"""Fifty clients at once for a minute, each asking for pictures as fast as they come: is every answer right?

    python -m benchmarks.playground_load [seconds]

The server is started here, on loopback, and is the only one asked; each client sends at most 5000 requests.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from urllib.parse import urlsplit

import numpy as np

from benchmarks.playground_latency import running
from tokenmargin.problem.instances import random_problem
from tokenmargin.report.playground.schema import plane_inputs

CLIENTS, MOST, LONGEST = 50, 5000, 120.0


def client(address: str, seed: int, until: float, times: list[float], errors: list[str]) -> None:
    """One client with one connection and problems of its own."""
    rng = np.random.default_rng(seed)
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    for _ in range(MOST):
        if time.monotonic() > until:
            break
        problem = random_problem(4, 6, 2, rng=rng)
        body = {"inputs": [row.model_dump() for row in plane_inputs(problem)], "draft": bool(rng.random() < 0.9)}
        began = time.perf_counter()
        try:
            connection.request("POST", "/api/plane", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            found = json.loads(answer.read())
            if answer.status != 200 or found["selections"]["all"] != 6**4:
                errors.append(f"status {answer.status}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            errors.append(repr(error))
            connection.close()
        times.append(time.perf_counter() - began)
    connection.close()


def main() -> None:
    seconds = min(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0, LONGEST)
    times: list[float] = []
    errors: list[str] = []
    with running() as address:
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=client, args=(address, seed, until, times, errors)) for seed in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(f"{CLIENTS} clients, {seconds:g} s: {len(times)} answers, {len(errors)} errors {sorted(set(errors))[:3]}")
    slow = np.quantile(times, 0.95)
    print(f"seconds to an answer: median {np.median(times):.2f}, 95% {slow:.2f}, worst {max(times):.2f}")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
