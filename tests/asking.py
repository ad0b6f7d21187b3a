"""Requests to the playground's application in this process: no server, no client of another package."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cache
from typing import Any


def ask(app: Any, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> tuple[int, bytes]:
    """Give the application one request; the status and the body of its answer."""
    return _loop().run_until_complete(_ask(app, method, path, headers, body))


def ask_for_json(app: Any, path: str, asked: object) -> Any:
    """What the application answers to a JSON question from its own page."""
    body = json.dumps(asked).encode()
    headers = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(body))}
    status, answer = ask(app, "POST", path, headers, body)
    assert status == 200, answer
    return json.loads(answer)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


async def _ask(app: Any, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    said: list[dict[str, Any]] = []
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not sent:
            await asyncio.Event().wait()  # the client waits for the answer
        return sent.pop()

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    pairs = [(name.encode(), value.encode("utf-8", "replace")) for name, value in headers.items()]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
             "path": path, "raw_path": path.encode(), "query_string": b"", "headers": pairs, "root_path": "",
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}  # fmt: skip
    await app(scope, receive, send)
    return said[0]["status"], b"".join(message.get("body", b"") for message in said[1:])
