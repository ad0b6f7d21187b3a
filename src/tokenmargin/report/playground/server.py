"""The server of the playground: a few small endpoints, static files from the package, nothing from outside."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokenmargin._files import plain
from tokenmargin._version import __version__
from tokenmargin.classifier import TokenSelectionClassifier, load_model
from tokenmargin.classifier.what_if import decide_by_words
from tokenmargin.plugins import names
from tokenmargin.problem.problem_files import ProblemFileError, parse_problem
from tokenmargin.report.explore.page import explore_page
from tokenmargin.report.playground.guard import LOOPBACK, Guard, article_policy
from tokenmargin.report.playground.plane import picture
from tokenmargin.report.playground.presets import PRESETS
from tokenmargin.report.playground.schema import MOST_INPUTS, MOST_TOKENS, PlaneRequest, TextRequest, plane_inputs
from tokenmargin.report.word_model import can_be_read_by_pages, class_names, explore_model

HOME = Path(__file__).parent
STATIC = HOME / "static"
SHARED = HOME.parent / "explore" / "static"
SENTENCES = HOME / "sentences"  # written by `tokenmargin fit sentences`
WAITING = 256  # connections beyond which the server says it is busy
HEADER_SECONDS = 10.0  # from the opening of a connection, or its last answer, to the end of the next headers


def create_app(model: TokenSelectionClassifier | None = None, *, host: str = "127.0.0.1") -> FastAPI:
    """The application; `model`, of two classes, explains texts: that of the built-in sentences by default."""
    model = load_model(SENTENCES) if model is None else model
    app = FastAPI(title="tokenmargin playground", docs_url=None, redoc_url=None, openapi_url=None)
    presets = [preset.to_dict() for preset in PRESETS]
    # The arithmetic holds the interpreter: more threads would only make everyone wait longer. What takes milliseconds
    # has a thread of its own, so that it does not wait behind whole pictures.
    light, heavy = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)

    @app.get("/api/hello")
    async def hello() -> Response:
        limits = {"inputs": MOST_INPUTS, "tokens": MOST_TOKENS}
        known = {"presets": presets, "limits": limits, "losses": names("losses")}
        return _json({"version": __version__, **known, "model": _about(model)})

    @app.post("/api/plane")
    async def plane(asked: PlaneRequest, request: Request) -> Response:
        limiter = light if asked.draft else heavy
        async with limiter:
            if await request.is_disconnected():  # while it waited: nobody wants the picture any more
                return Response(status_code=499)
            return _json(await anyio.to_thread.run_sync(picture, asked, limiter=anyio.CapacityLimiter(1)))

    @app.post("/api/text")
    async def text(request: TextRequest) -> Response:
        work = partial(decide_by_words, model, request.text, leave_out=request.leave_out)
        decision = await anyio.to_thread.run_sync(work, limiter=light)
        return _json(asdict(decision) | {"label": decision.label, "abstains": decision.abstains})

    @app.post("/api/problem/load")
    async def load(request: Request) -> Response:
        try:
            inputs = plane_inputs(parse_problem(await request.body(), source="the file"))
        except (ProblemFileError, ValueError) as error:
            return JSONResponse({"detail": str(error)}, status_code=422)
        return _json({"inputs": [row.model_dump() for row in inputs]})

    @app.post("/api/problem/save")
    async def save(request: PlaneRequest) -> Response:
        return _json({name: array.tolist() for name, array in request.problem().fields().items()})

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # What was sent is not repeated: it may hold numbers that JSON cannot write.
        reasons = [{"loc": list(item["loc"]), "msg": item["msg"]} for item in error.errors()[:8]]
        return JSONResponse({"detail": reasons}, status_code=422)

    article = explore_page(
        model=explore_model(model) if can_be_read_by_pages(model) and len(model.classes_) == 2 else None, served=True
    )

    @app.get("/")
    async def page() -> Response:
        return Response(article, media_type="text/html", headers={"content-security-policy": article_policy(article)})

    app.mount("/explore", StaticFiles(directory=SHARED), name="explore")  # the drawing that both pages share
    app.mount("/", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(
        Guard, names=() if host in LOOPBACK else (host, socket.gethostname()), any_address=host not in LOOPBACK
    )
    return app


def _about(model: TokenSelectionClassifier) -> dict[str, Any]:
    """What the page says of a model: where it comes from, its classes, and the tokens with the largest logits."""
    names = model.vocabulary_.names
    return {
        "about": f"One attention layer trained on {model.n_texts_} texts.",
        "classes": class_names(model),
        "words": len(names),
        "heaviest": [names[row] for row in np.argsort(-model.token_model_.logits, kind="stable")[:11]],
    }


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
