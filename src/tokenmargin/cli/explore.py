"""`tokenmargin explore`: the explorable article as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenmargin.cli._common import say


def explore(*, out: Path = Path("explore.html"), open_it: Annotated[bool, Parameter(name="--open")] = False) -> int:
    """Write the explorable article: one page in which attention can be seen to choose.

    One HTML file that needs no server, no network and nothing installed: open it, send it, put it on any site.

    Examples:

        tokenmargin explore
        tokenmargin explore --out page.html --open

    Parameters
    ----------
    out:
        The file to write.
    open_it:
        Open the page in the browser.
    """
    from tokenmargin.report.explore.page import write_explore_page

    page = write_explore_page(out)
    say(f"The page: {page} (one file; open it in a browser)")
    if open_it:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0
