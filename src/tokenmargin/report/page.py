"""One self-contained HTML page: text, tables and inline pictures; no script, no network."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from tokenmargin._files import atomic_path
from tokenmargin._notebook import table_cell
from tokenmargin._version import __version__
from tokenmargin.experiments import Result, Table, Verdict


@dataclass(frozen=True)
class PageTable:
    """A small table of strings; a cell found in `links` leads to that anchor of the page."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    links: Mapping[str, str] = field(default_factory=dict)
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A titled part of a page: paragraphs, a picture, tables, a listing; each optional."""

    title: str
    paragraphs: Sequence[str] = ()
    svg: Markup | None = None
    tables: Sequence[PageTable] = ()
    code: str = ""
    anchor: str = ""
    verdict: str = ""
    points: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()


def write_page(path: Path, *, title: str, lead: str, sections: Sequence[Section], command: str) -> Path:
    """Render the page and write it."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tokenmargin.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template("page.html")
    verdicts = get_args(Verdict)
    text = page.render(
        title=title, lead=lead, sections=sections, command=command, verdicts=verdicts, version=__version__
    )
    with atomic_path(path) as beside:
        beside.write_text(text, encoding="utf-8")
    return path


def inline_svg(figure: Figure, prefix: str) -> Markup:
    """The figure as SVG to put into a page; `prefix` keeps the ids of several figures apart."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return Markup(svg)  # our own drawing, not input


def page_table(table: Table, columns: Sequence[str] | None = None) -> PageTable:
    """A result table for the page: all its columns, or some."""
    names = list(table) if columns is None else list(columns)
    rows = zip(*(table[name].tolist() for name in names), strict=True)
    return PageTable(names, [[table_cell(value) for value in row] for row in rows])


def findings_table(result: Result) -> PageTable:
    """Expected beside measured."""
    return PageTable(
        ("what", "measured", "expected", "verdict", "bounds from", "because"),
        [(f.what, f"{f.measured:.6g}", f.expected, f.verdict, f.bounds_from, f.source) for f in result.findings],
    )
