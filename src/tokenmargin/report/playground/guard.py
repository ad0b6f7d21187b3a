"""What every request must pass: a host and an origin that are ours, a body of bounded size that arrives in time."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 256 << 10
BODY_SECONDS = 10.0
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def allowed_host(host: str, names: Iterable[str], *, any_address: bool) -> bool:
    """Whether a Host header names this server.

    A foreign page can make its own name point here, but not a number: an address is safe where all are served.

    >>> allowed_host("localhost:8000", (), any_address=False), allowed_host("evil.example", (), any_address=True)
    (True, False)
    """
    name = urlsplit(f"//{host}").hostname or ""
    if name in LOOPBACK or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return any_address


def article_policy(page: str) -> str:
    """The policy of a page whose scripts stand in it: those very scripts, and nothing from elsewhere."""
    scripts = re.findall(r"<script(?: id=\"mathematics\")?>(.*?)</script>", page, flags=re.S)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; worker-src blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )


class Guard:
    """ASGI middleware: refuses what does not pass, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str] = (), any_address: bool = False) -> None:
        self.app, self.names, self.any_address = app, frozenset(names), any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({name: headers.get(name, value) for name, value in SECURITY_HEADERS.items()})
            await send(message)

        refusal = self._refusal(Headers(scope=scope))
        if refusal is None:
            body = await _body(receive)
            if isinstance(body, bytes):
                await self.app(scope, _replay(body, receive), send_secured)
                return
            refusal = body
        await refusal(scope, receive, send_secured)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "")
        try:
            ours = allowed_host(host, self.names, any_address=self.any_address)
            origin = headers.get("origin")
            same = origin is None or urlsplit(origin).netloc.lower() == host.lower()
            length = int(headers.get("content-length", "0"))
        except ValueError:
            return _refuse(400, "a header cannot be read")
        if not ours:
            return _refuse(421, "this server does not go by that name; open it as localhost")
        if not same or headers.get("sec-fetch-site") == "cross-site":
            return _refuse(403, "requests from other sites are refused")
        if length > LARGEST_BODY:
            return _refuse(413, f"the body is larger than {LARGEST_BODY} bytes")
        return None


def _refuse(status: int, reason: str) -> JSONResponse:
    return JSONResponse({"detail": reason}, status_code=status, headers={"connection": "close"})


async def _body(receive: Receive) -> bytes | JSONResponse:
    """The whole body, or the refusal of one that is too large or too slow."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return _refuse(400, "the body was cut short")
                size += len(message.get("body", b""))
                if size > LARGEST_BODY:
                    return _refuse(413, f"the body is larger than {LARGEST_BODY} bytes")
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        return _refuse(408, f"the body took longer than {BODY_SECONDS:g} seconds")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body again, then whatever comes after it: the news that the client has left."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
