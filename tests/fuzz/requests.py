"""Hostile requests to the playground, through its application in this process."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tests.asking import ask
from tests.fuzz.harness import FLOATS, INTEGERS, ODD, TEXTS, Generator, WrongAnswer, damaged, pick, strange
from tests.fuzz.samples import Samples

from tokenmargin.report.playground.server import create_app

PATHS = ("/api/problem", "/api/problem", "/api/problem/overview", "/api/text", "/", "/nothing", "/../../etc/passwd",
         "/%2e%2e/", "/explore/plane.js", "/api")  # fmt: skip


@cache
def _app() -> Any:
    return create_app()


def requests(rng: Generator, samples: Samples) -> bool:
    """A request with something wrong in it: answered, or refused with 4xx and a reason; never 5xx."""
    path = pick(rng, PATHS)

    body: Any = {"text": pick(rng, TEXTS), "leave_out": [0]}
    if path != "/api/text":
        n, T, d = (int(rng.integers(1, 4)) for _ in range(3))
        scale = pick(rng, (0, 1, -1, 1000, 1e-9, 1e200))
        keys = (scale * rng.normal(size=(n, T, d)).round(int(rng.integers(3)))).tolist()
        made = {"keys": keys, "labels": [pick(rng, (1, -1))] * n, "scores": rng.integers(3, size=(n, T)).tolist()}
        fields = made if rng.random() < 0.7 else pick(rng, samples.problems)
        body = {"problem": fields, "asked": pick(rng, (None, [0] * n, [T] * n))}
    if rng.random() < 0.5:
        body = strange(rng, body)
    sent = json.dumps(body, default=str).encode()
    if rng.random() < 0.2:
        sent = damaged(rng, sent)
    headers = {"host": "localhost", "content-type": "application/json", "content-length": str(len(sent))}
    if rng.random() < 0.1:
        name = pick(rng, ("host", "origin", "content-length", "content-type", "sec-fetch-site"))
        headers[name] = str(pick(rng, (*TEXTS, *INTEGERS, *FLOATS, *ODD, "evil.example", "[::1", "localhost:x")))
    posted = path in ("/api/problem", "/api/problem/overview", "/api/text")
    method = (
        ("POST" if posted else "GET") if rng.random() < 0.9 else pick(rng, ("POST", "GET", "PUT", "DELETE", "HEAD"))
    )
    status, answer = ask(_app(), method, path, headers, sent)
    if status >= 500:
        raise WrongAnswer(f"{method} {path}: {status} {answer[:200]!r}")
    if status >= 400 and not answer and method != "HEAD":
        raise WrongAnswer(f"{method} {path}: {status} without a word")
    if status == 200 and path.startswith("/api/") and method != "HEAD":
        json.loads(answer, parse_constant=_no_constant)
    return status < 400


def _no_constant(name: str) -> None:
    raise WrongAnswer(f"{name} in an answer")
