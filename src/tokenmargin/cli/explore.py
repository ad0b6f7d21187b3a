"""`tokenmargin explore`: the explorable article as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tokenmargin.cli._common import UsageError, needs_extra, say
from tokenmargin.cli._texts import open_model, two_classes


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
