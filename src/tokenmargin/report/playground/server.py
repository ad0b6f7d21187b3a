"""The server of the playground: the article, and what the library answers behind it; nothing from outside."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokenmargin._files import plain
from tokenmargin.classifier import TokenSelectionClassifier, load_model
from tokenmargin.classifier.what_if import decide_by_words
from tokenmargin.problem.problem_files import problem_of
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.report.explore.page import explore_page
from tokenmargin.report.playground.guard import LOOPBACK, Guard, article_policy
from tokenmargin.report.playground.own_problem import MOST_INPUTS, MOST_TOKENS, answer_about, example, overview
from tokenmargin.report.word_model import served_model

SENTENCES = Path(__file__).parent / "sentences"  # written by `tokenmargin fit sentences`
MOST_CHARACTERS = 5000
WAITING = 256  # connections beyond which the server says it is busy
HEADER_SECONDS = 10.0  # from the opening of a connection, or its last answer, to the end of the next headers


class Strict(BaseModel):
    """Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ProblemRequest(Strict):
    """The contents of a problem file, and the selection that is asked about: a token of every input."""

    problem: dict[str, Any]
    asked: Annotated[list[Annotated[int, Field(ge=0, lt=MOST_TOKENS)]], Field(max_length=MOST_INPUTS)] | None = None


class TextRequest(Strict):
    """A text, and the numbers of the words to decide without."""

    text: Annotated[str, Field(max_length=MOST_CHARACTERS)]
    leave_out: Annotated[list[Annotated[int, Field(ge=0, lt=MOST_CHARACTERS)]], Field(max_length=MOST_CHARACTERS)] = []


def create_app(model: TokenSelectionClassifier | None = None, *, host: str = "127.0.0.1") -> FastAPI:
    """The application; `model`, of two classes, explains texts: that of the built-in sentences by default."""
    model = load_model(SENTENCES) if model is None else model
    app = FastAPI(title="tokenmargin playground", docs_url=None, redoc_url=None, openapi_url=None)
    # The arithmetic holds the interpreter: more threads would only make everyone wait longer. What takes milliseconds
    # has a thread of its own, so that it does not wait behind what takes a second.
    light, heavy = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
    article = explore_page(model=served_model(model), own=example())
    policy = {"content-security-policy": article_policy(article)}

    @app.get("/")
    async def page() -> Response:
        return Response(article, media_type="text/html", headers=policy)

    async def work(limiter: anyio.CapacityLimiter, request: Request, job: Callable[[], Any]) -> Response:
        async with limiter:
            if await request.is_disconnected():  # while it waited: nobody wants the answer any more
                return Response(status_code=499)
            try:
                return _json(await anyio.to_thread.run_sync(job, limiter=anyio.CapacityLimiter(1)))
            except (TypeError, ValueError) as error:  # a problem that cannot be read or shown
                return JSONResponse({"detail": str(error)}, status_code=422)

    @app.post("/api/problem")
    async def problem(asked: ProblemRequest, request: Request) -> Response:
        return await work(light, request, lambda: answer_about(_parse_problem(asked), asked.asked))

    @app.post("/api/problem/overview")
    async def whole(asked: ProblemRequest, request: Request) -> Response:
        return await work(heavy, request, lambda: overview(_parse_problem(asked)))

    @app.post("/api/text")
    async def text(asked: TextRequest, request: Request) -> Response:
        return await work(light, request, lambda: _decide_text(model, asked))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # What was sent is not repeated: it may hold numbers that JSON cannot write.
        reasons = [{"loc": list(item["loc"]), "msg": item["msg"]} for item in error.errors()[:8]]
        return JSONResponse({"detail": reasons}, status_code=422)

    app.add_middleware(
        Guard, names=() if host in LOOPBACK else (host, socket.gethostname()), any_address=host not in LOOPBACK
    )
    return app


def _parse_problem(asked: ProblemRequest) -> TokenProblem:
    return problem_of(asked.problem, source="the file")


def _decide_text(model: TokenSelectionClassifier, asked: TextRequest) -> dict[str, Any]:
    decision = decide_by_words(model, asked.text, leave_out=asked.leave_out)
    return asdict(decision) | {"label": decision.label, "abstains": decision.abstains}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns off Nagle's algorithm, which would hold every answer back by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # who comes before the server is ready waits instead of being refused
    except OSError:
        listener.close()
        raise
    except (TypeError, UnicodeError) as error:  # a name that no name can be, such as half a character
        listener.close()
        raise OSError(errno.EINVAL, "no name of a computer") from error
    return listener


class PromptProtocol(H11Protocol):
    """HTTP in which the headers of a request must come in time: who sends them byte by byte holds no connection."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Begin to wait for headers, or stop: once they are here, the guard bounds the time of the body."""
        waiting = self.cycle is None or self.cycle.response_complete
        if waiting and self._late is None:
            self._late = self.loop.call_later(HEADER_SECONDS, self.transport.close)
        elif not waiting and self._late is not None:
            self._late.cancel()
            self._late = None


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until interrupted."""
    config = uvicorn.Config(
        app, http=PromptProtocol, log_level="warning", limit_concurrency=WAITING, timeout_keep_alive=10,
        server_header=False, lifespan="off",
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def _json(data: Any) -> Response:
    """An answer; numbers that JSON cannot write (a loss that overflows) become null."""
    return Response(json.dumps(plain(data), allow_nan=False, separators=(",", ":")), media_type="application/json")
