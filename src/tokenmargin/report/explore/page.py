"""The page as one file: scripts, style and data written into the article. No bundler, no network."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from tokenmargin._files import atomic_path
from tokenmargin.report.explore.stories import STORIES

STATIC = Path(__file__).parent / "static"
EXAMPLE = Path(__file__).parent / "example_model.json"  # `explore_model` of the model in playground/sentences
MATHEMATICS = ("plane.js", "limits.js", "paths.js", "worker.js")
"""Modules that also run in the worker, each after those it imports."""
PAGE = (
    *("words.js", "drawing.js", "charts.js", "model.js", "state.js", "keep.js", "wordmodel.js", "sentence.js"),
    *("page.js", "yourwords.js", "own.js", "controls.js"),
)


def joined(names: tuple[str, ...]) -> str:
    """Modules as one script: imports of each other are dropped, exports become plain declarations.

    >>> joined(("worker.js",)).strip().splitlines()[0]
    'const SLICE = 400; // starts between two looks at the post'
    """
    text = "\n".join((STATIC / name).read_text() for name in names)
    text = re.sub(r'^import \{[^}]*\} from "[^"]*";\n', "", text, flags=re.M)
    text = re.sub(r"^export (?=(async )?(const|let|function|class) )", "", text, flags=re.M)
    # Comments of whole lines are for those who read the modules.
    return re.sub(r"^\s*//.*\n", "", text, flags=re.M)


def explore_page(
    picture: bytes | str | None = None, model: dict[str, Any] | None = None, *, own: dict[str, Any] | None = None
) -> str:
    """The whole page.

    **Arguments**
    - `picture`: what a shared link shows: PNG bytes, or the address of a picture.
    - `model`: decides the reader's own words, as `explore_model` gives it; None for the small example in the package.
    - `own`: a problem file to open the seventh section with, which asks the server of the playground; None without one.
    """
    told = {
        "stories": [story.to_dict() for story in STORIES],
        "model": model or json.loads(EXAMPLE.read_text()),
        "own": own,
    }
    data = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    shown = "" if picture is None else picture
    if isinstance(shown, bytes):
        shown = "data:image/png;base64," + base64.b64encode(shown).decode()
    parts = {
        "/*STYLE*/": (STATIC / "colours.css").read_text() + (STATIC / "style.css").read_text(),
        "/*DATA*/": data.replace("<", "\\u003c"),
        "/*MATHEMATICS*/": "\n" + joined(MATHEMATICS),
        "/*PAGE*/": "\n" + joined(PAGE),
        "/*CONNECT*/": "connect-src 'self'; " if own else "",
        "<!--OPEN GRAPH PICTURE-->": f'<meta property="og:image" content="{shown}">' if shown else "",
    }
    text = (STATIC / "article.html").read_text()
    for mark, content in parts.items():
        text = text.replace(mark, content, 1)
    return text


def write_explore_page(path: Path, picture: bytes | str | None = None, model: dict[str, Any] | None = None) -> Path:
    """Write the page to a file, making its folder."""
    with atomic_path(path) as beside:
        beside.write_text(explore_page(picture, model), encoding="utf-8")
    return path
