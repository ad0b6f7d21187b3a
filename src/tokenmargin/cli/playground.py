"""`tokenmargin explore` and `playground`: the explorable article as a file, and served with the library behind it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tokenmargin.cli._common import UsageError, needs_extra, say
from tokenmargin.cli._texts import open_model, two_classes


def playground(
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    model: Path | None = None,
    no_browser: Annotated[bool, Parameter(name="--no-browser")] = False,
) -> int:
    """Serve the playground and open it in the browser. Ctrl-C ends it.

    The server listens on this computer alone unless another address is asked for with --host.

    Examples:

        tokenmargin playground
        tokenmargin playground --port 8017 --no-browser
        tokenmargin playground --model model

    Parameters
    ----------
    port:
        Port to listen on; 0 takes a free one.
    host:
        Address to listen on. Anything but loopback lets other computers in.
    model:
        A model folder of two classes to explain texts with, written by tokenmargin fit.
    no_browser:
        Do not open the page.
    """
    # Threads of the linear algebra library only wait for each other on arrays this small; numpy reads this once.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    with needs_extra("playground"):
        from tokenmargin.report.playground.guard import LOOPBACK
        from tokenmargin.report.playground.server import create_app, listen, serve

    if not 0 <= port <= 65535:
        raise UsageError(f"--port must lie in 0..65535, got {port}")
    loaded = None if model is None else open_model(model)
    if loaded is not None:
        two_classes(loaded, model)
    try:
        listener = listen(host, port)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port} ({error.strerror}); choose another --port") from error
    bracketed = f"[{host}]" if ":" in host else host
    address = f"http://{bracketed}:{listener.getsockname()[1]}/"
    if host not in LOOPBACK:
        say(f"[yellow]listening on {host}: other computers can open this page[/yellow]", markup=True)
    say(f"The playground is at {address} (Ctrl-C ends it)")
    if not no_browser:
        import webbrowser

        webbrowser.open(address)
    serve(create_app(loaded, host=host), listener)
    return 0


def explore(
    *,
    out: Path = Path("explore.html"),
    model: Path | None = None,
    open_it: Annotated[bool, Parameter(name="--open")] = False,
) -> int:
    """Write the explorable article: one page in which attention can be seen to choose.

    One HTML file that needs no server, no network and nothing installed: open it, send it, put it on any site.

    Examples:

        tokenmargin explore
        tokenmargin explore --out page.html --open
        tokenmargin explore --model english --out page.html

    Parameters
    ----------
    out:
        The file to write.
    model:
        A model folder of two classes, written by tokenmargin fit, that goes into the page and decides the reader's own
        words; without one, a small example of 112 words does.
    open_it:
        Open the page in the browser.
    """
    from tokenmargin.report.explore.page import write_explore_page

    page = write_explore_page(out, model=None if model is None else _embedded(model))
    say(f"The page: {page} (one file; open it in a browser)")
    if open_it:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0


def _embedded(folder: Path) -> dict[str, Any]:
    """The model of a folder as the page reads it."""
    model = open_model(folder)
    with needs_extra("classify"):
        from tokenmargin.classifier.files import model_notes
        from tokenmargin.report.word_model import can_be_read_by_pages, explore_model
    two_classes(model, folder)
    if not can_be_read_by_pages(model):
        raise UsageError(
            f"{folder}: its tokenizer ({model.tokenizer}) does not run in a page; fit with --tokenizer words, or open "
            "it with tokenmargin playground --model"
        )
    return explore_model(model, data=Path(str(model_notes(folder).get("data", ""))).name)
