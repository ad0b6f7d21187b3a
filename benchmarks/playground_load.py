"""A hundred clients at once for five minutes: light requests, long ones, and people who mean harm.

    python -m benchmarks.playground_load [--seconds 300]

The server is started here, on loopback, and is the only one asked. Sixty clients ask for certificates and about
texts, twenty for all limits and training, some of them leaving before the answer comes, and twenty send headers byte by
byte, bodies that are too large, and foreign hosts and origins. Printed are the times to an answer of each kind, answers
that were not as they should be, and the memory of the server.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.tools import print_table, run_main
from tokenmargin.problem.instances import random_problem

LIGHT, HEAVY, HOSTILE = 60, 20, 20
Times = dict[str, list[float]]


@contextmanager
def running() -> Iterator[str]:
    """The address of a playground in a process of its own."""
    command = [sys.executable, "-m", "tokenmargin", "playground", "--no-browser"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield next(found.group() for found in (re.search(r"http://[^ ]+/", line) for line in process.stderr) if found)
        process.terminate()


def question(rng: np.random.Generator) -> bytes:
    """Four inputs of six tokens in two to twenty dimensions."""
    problem = random_problem(4, 6, int(rng.integers(2, 21)), rng=rng)
    return json.dumps({"problem": {name: array.tolist() for name, array in problem.fields().items()}}).encode()


class Clients:
    """What all clients share: the address, the end, the times and the complaints."""

    def __init__(self, address: str, until: float) -> None:
        self.netloc, self.until = urlsplit(address).netloc, until
        self.times: Times = defaultdict(list)
        self.wrong: list[str] = []

    def ask(
        self, kind: str, path: str, body: bytes, wanted: tuple[int, ...], *, wait: float = 120, **headers: str
    ) -> None:
        """One request on a connection of its own."""
        began = time.perf_counter()
        connection = http.client.HTTPConnection(self.netloc, timeout=wait)
        try:
            connection.request("POST", path, body, {"content-type": "application/json"} | headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status not in wanted:
                self.wrong.append(f"{kind}: status {answer.status}")
        except (OSError, http.client.HTTPException) as error:
            if kind != "left":
                self.wrong.append(f"{kind}: {type(error).__name__}")
        finally:
            connection.close()
        self.times[kind].append(time.perf_counter() - began)

    def light(self, rng: np.random.Generator) -> None:
        if rng.random() < 0.7:
            self.ask("certificate", "/api/problem", question(rng), (200,))
        else:
            self.ask("text", "/api/text", b'{"text": "What a dreadful ferry!"}', (200,))
        time.sleep(rng.exponential(0.5))  # people, not machines: two a second at most

    def heavy(self, rng: np.random.Generator) -> None:
        if rng.random() < 0.3:
            self.ask("left", "/api/problem/overview", question(rng), (200,), wait=1.0)
        else:
            self.ask("overview", "/api/problem/overview", question(rng), (200,))

    def hostile(self, rng: np.random.Generator) -> None:
        match int(rng.integers(4)):
            case 0:
                self.slow_headers()
            case 1:
                self.ask("too large", "/api/problem", b" " * 300_000, (413,))
            case 2:
                self.ask("foreign host", "/api/text", b"{}", (421,), host="evil.example")
            case _:
                self.ask("foreign origin", "/api/problem", b"{}", (403,), origin="http://evil.example")
        time.sleep(rng.exponential(0.5))

    def slow_headers(self) -> None:
        """A header byte a second: the server must end it, not the client."""
        began = time.perf_counter()
        host, port = self.netloc.rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port)), timeout=5) as line:
                line.settimeout(1)
                line.sendall(b"GET / HTTP/1.1\r\nhost: ")
                for _ in range(60):
                    try:
                        if line.recv(1) == b"":
                            break
                    except TimeoutError:
                        line.sendall(b"a")
                else:
                    self.wrong.append("slow headers: held for a minute")
        except OSError:
            pass
        self.times["slow headers"].append(time.perf_counter() - began)

    def run(self, what: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while time.monotonic() < self.until:
            getattr(self, what)(rng)


def memory_of(port: str) -> float:
    """Megabytes that the server on a port holds."""
    listening = subprocess.run(["ss", "-ltnpH", f"sport = :{port}"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"pid=(\d+)", listening)
    if not found:
        return float("nan")
    status = Path(f"/proc/{found[1]}/status").read_text()
    held = re.search(r"VmHWM:\s+(\d+)", status)
    return int(held[1]) / 1024 if held else float("nan")


def main(*, seconds: float = 300.0) -> int:
    with running() as address:
        clients = Clients(address, time.monotonic() + seconds)
        kinds = ["light"] * LIGHT + ["heavy"] * HEAVY + ["hostile"] * HOSTILE
        threads = [threading.Thread(target=clients.run, args=(kind, k)) for k, kind in enumerate(kinds)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = memory_of(clients.netloc.rsplit(":", 1)[1])
    print(f"{len(kinds)} clients, {seconds:g} s; the server held {held:.0f} MB at most")
    rows = (
        (kind, len(times), *(f"{np.quantile(times, share):.2f}" for share in (0.5, 0.99, 1)))
        for kind, times in sorted(clients.times.items())
    )
    print_table(("request", "answers", "p50, s", "p99, s", "worst, s"), rows, numbers=4)
    print(f"{len(clients.wrong)} answers not as they should be {sorted(set(clients.wrong))[:5]}")
    return int(bool(clients.wrong))


if __name__ == "__main__":
    run_main(main, __doc__)
